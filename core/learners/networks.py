"""Logistic regression and small networks on features, without position or with a tower for position.

    P(click | d, k) = 1 / (1 + exp(-(w x_d + o_k + b))),   score of d = w x_d + o_1 + b

o_k is the weight of position k (one-hot); without position, o is 0. Fitted by Newton's method on the counts, one row
per document and position:

    minimise sum_dk { n log(1 + exp(f)) - c f } + (|w|^2 + |o|^2) / 2

The effects of features and position are identified as far as they are not collinear: features of documents that are
always at the top cannot be distinguished from the effect of the top. Features are read in chunks, once per round.

    single-tower    P(click | d) = 1 / (1 + exp(-f(x_d)))
    pal-product     P(click | d, k) = gamma_d theta_k,  gamma_d = 1 / (1 + exp(-f(x_d))),  theta_k = 1 / (1 + exp(-o_k))
    pal-sum         P(click | d, k) = 1 / (1 + exp(-(f(x_d) + o_k))),   score of d = f(x_d) + o_1

f is a network, o_k a number for each position; f alone scores. On the log of a good ranker, relevance and position are
confounded; the sum has two options to keep position from taking up relevance. Observation dropout hides the position of
a row with probability p (o_k = 0, else o_k / (1 - p)), so that f has to explain the click. Gradient reversal lets an
adversary predict clicks from position, (c - a o_k - b)^2, and moves o against it, by alpha times its gradient. exp(o_k)
of an additive model is not a propensity.

A row is a document at a position, weighted by its impressions. Learning stops after six passes without improvement on
queries set apart: an eighth of the training queries, by the seed, or, with early stopping, the held-out queries, after
its number of passes. The learning curve shows them as validation. The standardised features of all documents are in
memory, four bytes per value.

Sources: Guo et al. 2019 (PAL, the product); Zhang et al. 2023 (KDD, "Towards Disentangling Relevance and Bias in
Unbiased Learning to Rank": the sum, and the naive baseline); Rumelhart, Hinton & Williams 1986 (the gradients of a
network); He et al. 2015 (its first weights).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_by_number
from posbias.core.choices import LearningOptions
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners import learning
from posbias.core.learners.boosting import Rows, slices_of_size
from posbias.core.learners.learning import Learned, Learner, LearningData, OnRound, Rounds
from posbias.core.learners.models import Adam, NetworkModel, forward, standardized

_RIDGE = 1.0
_MOST_ROUNDS = 100
_TOLERANCE = 1e-10  # gain in log-likelihood per impression of the last step
_SMALLEST_STEP = 1e-6
_RUN = 1 << 13  # documents per chunk
_CONSTANT = 1e-12  # standard deviation of a constant feature by rounding, relative to the mean


def learn_linear(_: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Take Newton steps until convergence."""
    regression = Regression(data, options.position_feature)
    learnt, held_out = regression.shown
    rounds, at = Rounds(options.early_stopping), regression.at(regression.start())
    kept = at.weights
    while rounds.last < _MOST_ROUNDS and not rounds.over:
        newton, share, step = np.linalg.solve(at.hessian, at.gradient), 1.0, at
        while not step.loss < at.loss and share > _SMALLEST_STEP:  # step halving
            step, share = regression.at(at.weights - share * newton), share / 2
        if not step.loss < at.loss:
            break
        value = step.likelihood[1] / held_out if held_out else None
        rounds.add(rounds.last + 1, step.likelihood[0] / max(learnt, 1.0), value)
        kept = step.weights if rounds.best == rounds.last else kept
        on_round()
        gained, at = at.loss - step.loss, step
        if gained < _TOLERANCE * learnt:
            break
    return Learned(regression.model(kept), rounds.curve, report={"rounds": rounds.best})


@dataclass(frozen=True)
class Expansion:
    """The loss and its derivatives at weights of the F features, the K positions and the constant."""

    weights: Floats  # shape (F + K + 1,)
    loss: float  # with the ridge
    gradient: Floats  # shape (F + K + 1,)
    hessian: Floats  # shape (F + K + 1, F + K + 1)
    likelihood: tuple[float, float]  # log-likelihood of the clicks of training and held-out documents


class Regression:
    """The loss as a function of the weights.

    Attributes:
        shown: impressions of training and held-out documents.
    """

    def __init__(self, data: LearningData, with_position: bool) -> None:  # noqa: FBT001 - an option
        """Prepare a log; with_position gives positions weights.

        Raises:
            SchemaError: a feature is text.
        """
        self._rows, self._counts = learning.features_of(data, "logistic").rows, data.counts
        self._mean, self._scale = mean_and_scale(self._rows, ~data.held_out)
        self._learnt = (~data.held_out).astype(np.float64)
        positions, place = np.unique(data.place, return_inverse=True)
        self._place: Integers = place  # index of each cell's position
        self._n_places = len(positions) if with_position else 0  # K
        per_document = self._counts.sum_by_unit(self._counts.impressions)
        self.shown = float(per_document @ self._learnt), float(per_document @ (1 - self._learnt))

    def start(self) -> Floats:
        """Weights 0, and the constant by which expected clicks equal clicks."""
        weights = np.zeros(len(self._mean) + self._n_places + 1)
        clicks = float(self._counts.sum_by_unit(self._counts.clicks) @ self._learnt)
        weights[-1] = learning.logit(float(np.clip(clicks / max(self.shown[0], 1.0), *learning.RATES)))
        return weights

    def model(self, weights: Floats) -> NetworkModel:
        """The model, which scores documents at the first position."""
        n = len(self._mean)
        constant = weights[-1] + (weights[n] if self._n_places else 0.0)
        return NetworkModel(self._mean, self._scale, (weights[:n, np.newaxis],), (np.array([constant]),))

    def at(self, weights: Floats) -> Expansion:
        """The loss at weights; its derivatives by the score are n p - c and n p (1 - p)."""
        ridge, n = np.append(np.full(len(weights) - 1, _RIDGE), 0.0), len(self._mean)
        gradient, hessian, likelihood = ridge * weights, np.diag(ridge), np.zeros(2)
        for run in slices_of_size(self._counts.n_units, _RUN):
            rows = standardized(self._rows[run], self._mean, self._scale)
            counts = self._counts.read(run.start, run.stop)
            scores, learnt = counts.spread(rows @ weights[:n] + weights[-1]), counts.spread(self._learnt[run])
            if self._n_places:
                scores += weights[n:-1][self._place[counts.cell]]
            terms = counts.clicks * scores - counts.impressions * np.logaddexp(0.0, scores)
            likelihood += learnt @ terms, (1 - learnt) @ terms
            chance = learning.sigmoid(scores)
            slope = self._by_place(counts, learnt * (counts.impressions * chance - counts.clicks))
            gradient += np.concatenate([rows.T @ slope[:, -1], slope.sum(axis=0)])
            curvature = self._by_place(counts, learnt * counts.impressions * chance * (1 - chance))
            mixed, positions = rows.T @ curvature, np.diag(curvature.sum(axis=0))
            positions[-1] = positions[:, -1] = curvature.sum(axis=0)
            hessian += np.block([[rows.T @ (curvature[:, -1:] * rows), mixed], [mixed.T, positions]])
        loss = float(ridge @ weights**2) / 2 - float(likelihood[0])
        return Expansion(weights, loss, gradient, hessian, (float(likelihood[0]), float(likelihood[1])))

    def _by_place(self, counts: CountTable, per_entry: Floats) -> Floats:
        """Sums by document and position, and in the last column by document, shape (m, K + 1)."""
        by_document, places = counts.sum_by_unit(per_entry)[:, np.newaxis], self._n_places
        if not places:
            return by_document
        key = counts.unit_of_entry * places + self._place[counts.cell]
        by_place = sum_by_number(key, per_entry, counts.n_units * places).reshape(-1, places)
        return np.column_stack([by_place, by_document])


def mean_and_scale(rows: Rows, mask: Flags) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each feature over the rows of a mask, shape (F,) each.

    Missing and infinite values are ignored. The scale of constant features, and of features without values, is 1.

    Args:
        rows: shape (n, F).
        mask: shape (n,).
    """
    mean = _mean(rows, mask, None)
    scale = np.sqrt(_mean(rows, mask, mean))
    return mean, np.where(scale > _CONSTANT * np.maximum(np.abs(mean), 1.0), scale, 1.0)


def _mean(rows: Rows, mask: Flags, center: Floats | None) -> Floats:
    """Mean of each feature, or of its squared distance from a center; 0 without values."""
    total, count = np.zeros(1), np.zeros(1)
    for chunk in slices_of_size(len(rows)):
        values = rows[chunk][mask[chunk]]
        known = np.isfinite(values)
        values = np.where(known, values, 0.0) if center is None else np.where(known, values - center, 0.0) ** 2
        total, count = total + values.sum(axis=0), count + known.sum(axis=0)
    return total / np.maximum(count, 1)


Reals = NDArray[np.float32]
"""Single precision halves the time of networks; the noise of minibatches is larger."""

_AnyReals = TypeVar("_AnyReals", bound=NDArray[np.floating[Any]])

Slopes = tuple[Floats, Floats, Floats]
"""Derivatives of a loss by relevance, shape (n,), by positions, shape (K,), and by the adversary, shape (2,)."""

_POSITIONS, _ADVERSARY = "positions", "adversary"
_HIDDEN = (64, 32)
_LAST_LAYER = 0.1  # factor of its initial weights, so that learning starts near the constant
_BATCH, _SMALLEST_BATCH = 512, 32
_FEWEST_STEPS = 50  # per pass: small logs have small batches
_RATE, _POSITION_RATE = 1e-3, 1e-2
_DECAY = 1e-4
_PATIENCE = 6
_QUERIES_PER_ONE_APART = 8  # without --early-stopping
_SMALLEST = 1e-7  # lower bound of probabilities in logarithms


@dataclass(frozen=True)
class Batch:
    """n rows, documents at positions, of a minibatch or of a log."""

    place: Integers  # index of the position, from 0, shape (n,)
    rate: Floats  # clicks over impressions, shape (n,)
    weight: Floats  # impressions, or a share of them in a minibatch, shape (n,)
    seen: Floats | float = 1.0  # factor of observation dropout: 0 or 1 / (1 - p)
    reversal: float = 0.0  # alpha of gradient reversal


Towers = Literal["alone", "product", "sum"]
"""How relevance and position are joined; `alone`: without position."""


def click_probability(towers: Towers, relevance: Floats, position: Floats) -> Floats:
    """P(click) of rows, given f and o of the row's position, shape (n,) each."""
    if towers == "product":
        return learning.sigmoid(relevance) * learning.sigmoid(position)
    return learning.sigmoid(relevance + position if towers == "sum" else relevance)


def slopes(towers: Towers, relevance: Floats, positions: Floats, adversary: Floats, batch: Batch) -> Slopes:
    """Derivatives of the weighted sum of -log P; with gradient reversal, o moves against the adversary's error.

    Args:
        towers: the joint.
        relevance: f, shape (n,).
        positions: o, shape (K,).
        adversary: a and b, shape (2,).
        batch: the rows.
    """
    at = positions[batch.place]
    if towers == "product":  # by the derivatives of log(gamma theta)
        gamma, theta = learning.sigmoid(relevance), learning.sigmoid(at)
        clicked = np.clip(gamma * theta, _SMALLEST, 1 - _SMALLEST)
        slope = batch.weight * (clicked - batch.rate) / (1 - clicked)
        return slope * (1 - gamma), sum_by_number(batch.place, slope * (1 - theta), len(positions)), 0 * adversary
    seen = batch.seen if towers == "sum" else 0.0
    slope = batch.weight * (learning.sigmoid(relevance + at * seen) - batch.rate)
    by_position = sum_by_number(batch.place, slope * seen, len(positions))
    if not batch.reversal:
        return slope, by_position, 0 * adversary
    error = 2 * batch.weight * (adversary[0] * at + adversary[1] - batch.rate)
    by_position += sum_by_number(batch.place, -batch.reversal * error * adversary[0], len(positions))
    return slope, by_position, np.array([error @ at, error.sum()])


def learn_towers(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Pass over the log until the likelihood of queries set apart stops improving.

    Raises:
        IdentifiabilityError: there is a single training query, so that none can be set apart.
        SchemaError: a feature is text.
    """
    rows, counts, rng = learning.features_of(data, learner.name).rows, data.counts, np.random.default_rng(options.seed)
    towers: Towers = learner.fits
    first_position = 2.0 if towers == "product" else 0.0  # o_k at the start
    # Documents for the stopping rule: with early stopping the held-out ones, else those of some training queries
    stop_by, own = data.held_out, 0  # own: number of training queries set apart
    if options.early_stopping is None or not data.held_out.any():
        queries = np.unique(data.query[~data.held_out])
        if len(queries) < 2:  # noqa: PLR2004 - one to learn from, one to stop by
            raise IdentifiabilityError(
                "networks stop by the clicks of queries that are set apart, and there is a single query to learn from. "
                "Use --learner pbm."
            )
        own = max(len(queries) // _QUERIES_PER_ONE_APART, 1)
        stop_by = np.isin(data.query, rng.choice(queries, own, replace=False))
    mean, scale = mean_and_scale(rows, ~(stop_by | data.held_out))
    inputs = np.concatenate(
        [standardized(rows[chunk], mean, scale).astype(np.float32) for chunk in slices_of_size(len(rows))]
    )
    positions, place = np.unique(data.place, return_inverse=True)
    log = Batch(place[counts.cell], counts.clicks / counts.impressions, counts.impressions)
    document = counts.unit_of_entry
    learnt, apart = (np.flatnonzero(mask[document]) for mask in (~(stop_by | data.held_out), stop_by))
    weights, biases = initial_layers((len(mean), *_HIDDEN, 1), rng)
    start = log.weight[learnt] @ log.rate[learnt] / log.weight[learnt].sum()
    biases[-1][:] = learning.logit(float(np.clip(start, *learning.RATES))) + first_position / 2
    at = {_POSITIONS: np.full(len(positions), first_position, np.float32), _ADVERSARY: np.zeros(2, np.float32)}
    parameters = _by_name(weights, biases) | at
    adam = Adam(parameters, _RATE, dict.fromkeys(at, _POSITION_RATE))

    def epoch() -> None:
        order, mean_weight = rng.permutation(learnt), log.weight[learnt].mean()
        size = int(np.clip(len(order) // _FEWEST_STEPS, _SMALLEST_BATCH, _BATCH))
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            layers = forward(inputs[document[rows]], weights, biases)
            weight, seen = log.weight[rows] / mean_weight / len(rows), dropout(rng, len(rows), options)
            batch = Batch(log.place[rows], log.rate[rows], weight, seen, options.gradient_reversal)
            relevance, o, adversary = (values.astype(np.float64) for values in (layers[-1][:, 0], *at.values()))
            gradients = slopes(towers, relevance, o, adversary, batch)
            by_relevance, *others = (gradient.astype(np.float32) for gradient in gradients)
            adam.step(backward(layers, weights, by_relevance, _DECAY) | dict(zip(at, others, strict=True)))

    def likelihoods() -> list[float]:
        """The log-likelihood per impression of the training rows, and of those set apart."""
        relevance = np.concatenate(
            [forward(inputs[chunk], weights, biases)[-1][:, 0] for chunk in slices_of_size(len(inputs))]
        ).astype(np.float64)
        clicked = click_probability(towers, relevance[document], at[_POSITIONS].astype(np.float64)[log.place])
        clicked = np.clip(clicked, _SMALLEST, 1 - _SMALLEST)
        likelihood = log.weight * (log.rate * np.log(clicked) + (1 - log.rate) * np.log1p(-clicked))
        return [float(likelihood[rows].sum() / log.weight[rows].sum()) for rows in (learnt, apart)]

    def copied() -> dict[str, Floats]:
        return {name: values.astype(np.float64) for name, values in parameters.items()}

    rounds, best = Rounds(options.early_stopping or _PATIENCE), copied()
    while rounds.last < options.epochs and not rounds.over:
        epoch()
        rounds.add(rounds.last + 1, *likelihoods())
        if rounds.best == rounds.last:
            best = copied()
        on_round()
    theta, first = learning.sigmoid(best[_POSITIONS]), best[_POSITIONS][0] if towers == "sum" else 0.0
    best_weights, (*best_biases, last) = (
        tuple(best[f"{kind}_{layer}"] for layer in range(len(weights))) for kind in ("weight", "bias")
    )
    return Learned(
        NetworkModel(mean, scale, best_weights, (*best_biases, last + first)),
        rounds.curve,
        propensities=(theta / theta[0])[place] if towers == "product" else None,
        report={"rounds": rounds.best, **({"queries_set_apart_to_stop": own} if own else {})},
    )


def dropout(rng: np.random.Generator, n_rows: int, options: LearningOptions) -> Floats:
    """Draw observation dropout: 0 with probability p, else 1 / (1 - p), shape (n,)."""
    p = options.observation_dropout
    return (rng.random(n_rows) >= p) / (1 - p) if p else np.ones(n_rows)


def initial_layers(sizes: Sequence[int], rng: np.random.Generator) -> tuple[list[Reals], list[Reals]]:
    """Initial weights and biases, given the numbers of inputs, of hidden units by layer, and of outputs."""
    weights = [
        (rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)
        for inputs, outputs in pairwise(sizes)
    ]
    weights[-1] *= np.float32(_LAST_LAYER)
    return weights, [np.zeros(outputs, np.float32) for outputs in sizes[1:]]


def backward(
    layers: Sequence[_AnyReals], weights: Sequence[_AnyReals], slope: _AnyReals, decay: float
) -> dict[str, _AnyReals]:
    """Backpropagation: gradients of weights and biases, by name.

    Args:
        layers: as from `forward`.
        weights: of each layer.
        slope: derivative of the loss by f of the rows, shape (n,).
        decay: weight decay, the factor of half the squared weights in the loss.
    """
    by_output: Any = slope[:, np.newaxis]
    by_weight, by_bias = list[Any](), list[Any]()
    for inputs, weight in zip(layers[-2::-1], reversed(weights), strict=True):
        by_weight.append(inputs.T @ by_output + decay * weight)
        by_bias.append(by_output.sum(axis=0))
        if len(by_weight) < len(weights):
            by_output = (by_output @ weight.T) * (inputs > 0)
    return _by_name(by_weight[::-1], by_bias[::-1])


def _by_name(weights: Sequence[_AnyReals], biases: Sequence[_AnyReals]) -> dict[str, _AnyReals]:
    names = {f"weight_{layer}": weight for layer, weight in enumerate(weights)}
    return names | {f"bias_{layer}": bias for layer, bias in enumerate(biases)}


LOGISTIC = Learner(
    "logistic",
    "Guo et al. 2019",
    learn_linear,
    uses_propensities=False,
    is_probability=True,
    takes=("position_feature",),
)
SINGLE_TOWER = Learner(
    "single-tower",
    "Zhang et al. 2023",
    learn_towers,
    "alone",
    uses_propensities=False,
    is_probability=True,
    takes=("epochs",),
)
PAL_PRODUCT = replace(SINGLE_TOWER, name="pal-product", reference="Guo et al. 2019", fits="product")
PAL_SUM = replace(
    SINGLE_TOWER, name="pal-sum", fits="sum", takes=("epochs", "observation_dropout", "gradient_reversal")
)
