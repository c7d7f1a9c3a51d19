"""Logistic regression and small networks on features: one tower, two, or one for position.

    P(click | d, k) = 1 / (1 + exp(-(w x_d + o_k + b))),   score of d = w x_d + o_1 + b

o_k is the weight of position k as a column of its own (one-hot); without position, o is 0. It is fitted by Newton's
method on the counts, one row per document and position:

    minimise sum_dk { n log(1 + exp(f)) - c f } + (|w|^2 + |o|^2) / 2

Position takes up the clicks that it explains, as far as the two are not seen only together: what a ranker always puts
at the top and the top itself cannot be distinguished. Rows of features are read in chunks, once for each round.

    single-tower    P(click | d) = 1 / (1 + exp(-f(x_d)))
    pal-product     P(click | d, k) = gamma_d theta_k,  gamma_d = 1 / (1 + exp(-f(x_d))),  theta_k = 1 / (1 + exp(-o_k))
    pal-sum         P(click | d, k) = 1 / (1 + exp(-(f(x_d) + o_k))),   score of d = f(x_d) + o_1

f is a network, o_k a number for each position; f alone scores. What a good ranker made the log with can be read as
relevance or as position, and nothing here tells them apart; the sum has two ways to keep position from taking up
relevance. Observation dropout hides the position of a row with chance p (o_k = 0, else o_k / (1 - p)): what relevance
can say of a click, it has to say itself. Gradient reversal lets an adversary predict clicks from position, (c - a o_k
- b)^2, and moves o against it, by alpha times its gradient. exp(o_k) of an additive model is no propensity: there is
none.

One row is a document at a position, weighted by its impressions. Learning stops once queries that are set apart have
fared no better for six passes: an eighth of those to learn from, by the seed, or, with early stopping, the held-out
ones. The learning curve shows them. The standardised features of all documents are held in memory, four bytes a value.

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
from posbias.core.learners.boosting import Rows, chunks
from posbias.core.learners.learning import Learned, Learner, LearningData, OnRound, Rounds
from posbias.core.learners.models import Adam, NetworkModel, forward, standardized

_RIDGE = 1.0
_MOST_ROUNDS = 100
_CLOSE = 1e-10  # of the log-likelihood per impression: what the next step would still gain
_SMALLEST_STEP = 1e-6
_RUN = 1 << 13  # documents that are read at once
_CONSTANT = 1e-12  # relative to the mean: what rounding leaves of a feature without any spread


def learn_linear(_: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Take Newton's steps until they gain nothing."""
    regression = Regression(data, options.position_feature)
    learnt, held_out = regression.shown
    rounds, at = Rounds(options.early_stopping), regression.at(regression.start())
    kept = at.weights
    while rounds.last < _MOST_ROUNDS and not rounds.over:
        newton, share, step = np.linalg.solve(at.hessian, at.gradient), 1.0, at
        while not step.loss < at.loss and share > _SMALLEST_STEP:  # as much of Newton's step as lowers the loss
            step, share = regression.at(at.weights - share * newton), share / 2
        if not step.loss < at.loss:
            break
        value = step.likelihood[1] / held_out if held_out else None
        rounds.add(rounds.last + 1, step.likelihood[0] / max(learnt, 1.0), value)
        kept = step.weights if rounds.best == rounds.last else kept
        on_round()
        gained, at = at.loss - step.loss, step
        if gained < _CLOSE * learnt:
            break
    return Learned(regression.model(kept), rounds.curve, report={"rounds": rounds.best})


@dataclass(frozen=True)
class Fitted:
    """The loss at some weights of the features, the positions and the constant, shape (F + K + 1,)."""

    weights: Floats
    loss: float  # with the ridge
    gradient: Floats
    hessian: Floats
    likelihood: tuple[float, float]  # logarithm, of the clicks to learn from, and of those held out


class Regression:
    """The loss as a function of the weights."""

    def __init__(self, data: LearningData, with_position: bool) -> None:  # noqa: FBT001 - as the option says
        """Take a log, and whether positions have weights.

        Raises:
            SchemaError: a feature is text.
        """
        self._rows, self._counts = learning.features_of(data, "logistic").rows, data.counts
        self._mean, self._scale = mean_and_scale(self._rows, ~data.held_out)
        self._learnt = (~data.held_out).astype(np.float64)
        positions, place = np.unique(data.place, return_inverse=True)
        self._place: Integers = place  # of each cell among the positions
        self._n_places = len(positions) if with_position else 0  # K
        per_document = self._counts.sum_by_unit(self._counts.impressions)
        self.shown = float(per_document @ self._learnt), float(per_document @ (1 - self._learnt))

    def start(self) -> Floats:
        """Weights 0, and the constant that expects as many clicks as there are."""
        weights = np.zeros(len(self._mean) + self._n_places + 1)
        clicks = float(self._counts.sum_by_unit(self._counts.clicks) @ self._learnt)
        weights[-1] = learning.logit(float(np.clip(clicks / max(self.shown[0], 1.0), *learning.RATES)))
        return weights

    def model(self, weights: Floats) -> NetworkModel:
        """The model that scores documents as if they stood at the first position."""
        n = len(self._mean)
        constant = weights[-1] + (weights[n] if self._n_places else 0.0)
        return NetworkModel(self._mean, self._scale, (weights[:n, np.newaxis],), (np.array([constant]),))

    def at(self, weights: Floats) -> Fitted:
        """The loss at weights, and its derivatives n p - c and n p (1 - p) by the score, times the inputs."""
        ridge, n = np.append(np.full(len(weights) - 1, _RIDGE), 0.0), len(self._mean)
        gradient, hessian, likelihood = ridge * weights, np.diag(ridge), np.zeros(2)
        for run in chunks(self._counts.n_units, _RUN):
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
            bend = self._by_place(counts, learnt * counts.impressions * chance * (1 - chance))
            across, among = rows.T @ bend, np.diag(bend.sum(axis=0))
            among[-1] = among[:, -1] = bend.sum(axis=0)
            hessian += np.block([[rows.T @ (bend[:, -1:] * rows), across], [across.T, among]])
        loss = float(ridge @ weights**2) / 2 - float(likelihood[0])
        return Fitted(weights, loss, gradient, hessian, (float(likelihood[0]), float(likelihood[1])))

    def _by_place(self, counts: CountTable, per_entry: Floats) -> Floats:
        """Sums by document and position, and by document, shape (m, K + 1)."""
        of_document, places = counts.sum_by_unit(per_entry)[:, np.newaxis], self._n_places
        if not places:
            return of_document
        key = counts.unit_of_entry * places + self._place[counts.cell]
        of_place = sum_by_number(key, per_entry, counts.n_units * places).reshape(-1, places)
        return np.column_stack([of_place, of_document])


def mean_and_scale(rows: Rows, some: Flags) -> tuple[Floats, Floats]:
    """The mean and the standard deviation of each feature, shapes (F,), over some rows.

    Missing and infinite values are left out. A feature that is constant or has no value has scale 1.

    Args:
        rows: shape (n, F).
        some: which rows, shape (n,).
    """
    mean = _mean(rows, some, None)
    scale = np.sqrt(_mean(rows, some, mean))
    return mean, np.where(scale > _CONSTANT * np.maximum(np.abs(mean), 1.0), scale, 1.0)


def _mean(rows: Rows, some: Flags, center: Floats | None) -> Floats:
    """The mean of each feature, or of its squared distance from a center, 0 where it has no value."""
    total, count = np.zeros(1), np.zeros(1)
    for chunk in chunks(len(rows)):
        values = rows[chunk][some[chunk]]
        known = np.isfinite(values)
        values = np.where(known, values, 0.0) if center is None else np.where(known, values - center, 0.0) ** 2
        total, count = total + values.sum(axis=0), count + known.sum(axis=0)
    return total / np.maximum(count, 1)


Reals = NDArray[np.float32]
"""Networks work in single precision: it halves their time, and a minibatch is noisier than that."""

_AnyReals = TypeVar("_AnyReals", bound=NDArray[np.floating[Any]])

Slopes = tuple[Floats, Floats, Floats]
"""Derivatives of a loss by relevance, shape (n,), by positions, shape (K,), by the adversary's slope and constant."""

_POSITIONS, _ADVERSARY = "positions", "adversary"
_HIDDEN = (64, 32)
_LAST_LAYER = 0.1  # its first weights are smaller by this, so that learning begins near the constant
_BATCH, _SMALLEST_BATCH = 512, 32
_FEWEST_STEPS = 50  # of a pass: small logs have small batches
_RATE, _POSITION_RATE = 1e-3, 1e-2
_DECAY = 1e-4
_PATIENCE = 6
_ONE_QUERY_IN = 8  # is set apart, where the user sets none apart
_SMALLEST = 1e-7  # chance of a click, in logarithms


@dataclass(frozen=True)
class Batch:
    """Rows of a minibatch or of a log: documents at positions."""

    place: Integers  # the position of each row, from 0
    rate: Floats  # clicks over impressions
    weight: Floats  # impressions; of mean 1 / n over a batch that is learnt from
    seen: Floats | float = 1.0  # 0 where the position is dropped, else 1 / (1 - chance of that)
    reversal: float = 0.0  # of the gradient that keeps position from taking up relevance


Towers = Literal["alone", "product", "sum"]
"""The joint of the towers of relevance and position; `alone`: without position."""


def chance(towers: Towers, relevance: Floats, position: Floats) -> Floats:
    """P(click) of rows, from relevance and the number o of the row's position, each of shape (n,)."""
    if towers == "product":
        return learning.sigmoid(relevance) * learning.sigmoid(position)
    return learning.sigmoid(relevance + position if towers == "sum" else relevance)


def slopes(towers: Towers, relevance: Floats, positions: Floats, adversary: Floats, batch: Batch) -> Slopes:
    """The derivatives of the mean of -log P; of a sum, o moves against the adversary, and a and b lower its error.

    Args:
        towers: how they are joined.
        relevance: what the network says, shape (n,).
        positions: the number o of each position, shape (K,).
        adversary: slope and constant, shape (2,).
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
    of_positions = sum_by_number(batch.place, slope * seen, len(positions))
    if not batch.reversal:
        return slope, of_positions, 0 * adversary
    left = 2 * batch.weight * (adversary[0] * at + adversary[1] - batch.rate)
    of_positions += sum_by_number(batch.place, -batch.reversal * left * adversary[0], len(positions))
    return slope, of_positions, np.array([left @ at, left.sum()])


def learn_towers(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Pass over the log until queries that are set apart fare no better.

    Raises:
        IdentifiabilityError: there is but one query, so that none can be set apart.
        SchemaError: a feature is text.
    """
    rows, counts, rng = learning.features_of(data, learner.name).rows, data.counts, np.random.default_rng(options.seed)
    towers: Towers = learner.fits
    first_position = 2.0 if towers == "product" else 0.0  # o_k at the start
    # The documents whose clicks say when to stop: with early stopping the held-out ones, else an eighth of the others
    stop_by, own = data.held_out, 0  # how many queries are set apart for that here
    if options.early_stopping is None or not data.held_out.any():
        queries = np.unique(data.query[~data.held_out])
        if len(queries) < 2:  # noqa: PLR2004 - one to learn from, one to stop by
            raise IdentifiabilityError(
                "networks stop by the clicks of queries that are set apart, and there is a single query to learn from. "
                "Use --learner pbm."
            )
        own = max(len(queries) // _ONE_QUERY_IN, 1)
        stop_by = np.isin(data.query, rng.choice(queries, own, replace=False))
    mean, scale = mean_and_scale(rows, ~(stop_by | data.held_out))
    inputs = np.concatenate([standardized(rows[chunk], mean, scale).astype(np.float32) for chunk in chunks(len(rows))])
    positions, place = np.unique(data.place, return_inverse=True)
    log = Batch(place[counts.cell], counts.clicks / counts.impressions, counts.impressions)
    document = counts.unit_of_entry
    learnt, apart = (np.flatnonzero(of[document]) for of in (~(stop_by | data.held_out), stop_by))
    weights, biases = initial_layers((len(mean), *_HIDDEN, 1), rng)
    start = log.weight[learnt] @ log.rate[learnt] / log.weight[learnt].sum()
    biases[-1][:] = learning.logit(float(np.clip(start, *learning.RATES))) + first_position / 2
    at = {_POSITIONS: np.full(len(positions), first_position, np.float32), _ADVERSARY: np.zeros(2, np.float32)}
    parameters = _named(weights, biases) | at
    adam = Adam(parameters, _RATE, dict.fromkeys(at, _POSITION_RATE))

    def epoch() -> None:
        order, mean_weight = rng.permutation(learnt), log.weight[learnt].mean()
        size = int(np.clip(len(order) // _FEWEST_STEPS, _SMALLEST_BATCH, _BATCH))
        for first in range(0, len(order), size):
            some = order[first : first + size]
            layers = forward(inputs[document[some]], weights, biases)
            weight, seen = log.weight[some] / mean_weight / len(some), keep(rng, len(some), options)
            batch = Batch(log.place[some], log.rate[some], weight, seen, options.gradient_reversal)
            relevance, now, adversary = (a.astype(np.float64) for a in (layers[-1][:, 0], *at.values()))
            of_parts = slopes(towers, relevance, now, adversary, batch)
            of_relevance, *others = (slope.astype(np.float32) for slope in of_parts)
            adam.step(backward(layers, weights, of_relevance, _DECAY) | dict(zip(at, others, strict=True)))

    def likelihoods() -> list[float]:
        """The log-likelihood per impression of the rows to learn from, and of those to stop by."""
        relevance = np.concatenate(
            [forward(inputs[chunk], weights, biases)[-1][:, 0] for chunk in chunks(len(inputs))]
        ).astype(np.float64)
        clicked = chance(towers, relevance[document], at[_POSITIONS].astype(np.float64)[log.place])
        clicked = np.clip(clicked, _SMALLEST, 1 - _SMALLEST)
        likelihood = log.weight * (log.rate * np.log(clicked) + (1 - log.rate) * np.log1p(-clicked))
        return [float(likelihood[some].sum() / log.weight[some].sum()) for some in (learnt, apart)]

    rounds, kept = Rounds(options.early_stopping or _PATIENCE), [each.copy() for each in parameters.values()]
    while rounds.last < options.epochs and not rounds.over:
        epoch()
        rounds.add(rounds.last + 1, *likelihoods())
        if rounds.best == rounds.last:
            kept = [each.copy() for each in parameters.values()]
        on_round()
    best = dict(zip(parameters, (values.astype(np.float64) for values in kept), strict=True))
    theta, first = learning.sigmoid(best[_POSITIONS]), best[_POSITIONS][0] if towers == "sum" else 0.0
    of_layers, (*others, last) = (
        tuple(best[f"{kind}_{layer}"] for layer in range(len(weights))) for kind in ("weight", "bias")
    )
    return Learned(
        NetworkModel(mean, scale, of_layers, (*others, last + first)),
        rounds.curve,
        propensities=(theta / theta[0])[place] if towers == "product" else None,
        report={"rounds": rounds.best, **({"queries_set_apart_to_stop": own} if own else {})},
    )


def keep(rng: np.random.Generator, n_rows: int, options: LearningOptions) -> Floats:
    """Draw observation dropout: 0 with probability p, else 1 / (1 - p), shape (n,)."""
    dropout = options.observation_dropout
    return (rng.random(n_rows) >= dropout) / (1 - dropout) if dropout else np.ones(n_rows)


def initial_layers(sizes: Sequence[int], rng: np.random.Generator) -> tuple[list[Reals], list[Reals]]:
    """Weights and biases to begin with: of so many inputs, hidden units of each layer, and 1."""
    weights = [
        (rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)).astype(np.float32)
        for inputs, outputs in pairwise(sizes)
    ]
    weights[-1] *= np.float32(_LAST_LAYER)
    return weights, [np.zeros(outputs, np.float32) for outputs in sizes[1:]]


def backward(
    layers: Sequence[_AnyReals], weights: Sequence[_AnyReals], slope: _AnyReals, decay: float
) -> dict[str, _AnyReals]:
    """The gradients of weights and biases, of a loss whose derivative by f is given.

    Args:
        layers: as from `forward`.
        weights: of each layer.
        slope: the derivative by f of the rows, shape (n,).
        decay: of half the squared weights, which the loss holds too.
    """
    behind: Any = slope[:, np.newaxis]
    of_weights, of_biases = list[Any](), list[Any]()
    for inputs, weight in zip(layers[-2::-1], reversed(weights), strict=True):
        of_weights.append(inputs.T @ behind + decay * weight)
        of_biases.append(behind.sum(axis=0))
        if len(of_weights) < len(weights):
            behind = (behind @ weight.T) * (inputs > 0)
    return _named(of_weights[::-1], of_biases[::-1])


def _named(weights: Sequence[_AnyReals], biases: Sequence[_AnyReals]) -> dict[str, _AnyReals]:
    of_weights = {f"weight_{layer}": weight for layer, weight in enumerate(weights)}
    return of_weights | {f"bias_{layer}": bias for layer, bias in enumerate(biases)}


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
