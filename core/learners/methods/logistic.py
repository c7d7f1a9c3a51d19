"""Logistic regression on standardised features, with position as a feature, which is fixed at 1 when predicting.

    P(click | d, k) = 1 / (1 + exp(-(w x_d + o_k + b))),   score of d = w x_d + o_1 + b

o_k is the weight of position k as a column of its own (one-hot); without position, o is 0. It is found by Newton's
method on the counts, one row per document and position:

    minimise sum_dk { n log(1 + exp(f)) - c f } + (|w|^2 + |o|^2) / 2

Position takes up the clicks that it explains, as far as the two are not seen only together: what a ranker always puts
at the top and the top itself cannot be told apart. Rows of features are read in runs, once for each of the few rounds.

Sources: Hosmer & Lemeshow 2000; Guo et al. 2019 (position as an input with a fixed value in serving, their baseline).
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_by_number
from posbias.core.learners.boosting import Rows, runs
from posbias.core.learners.data import LearningData
from posbias.core.learners.growing import features_of
from posbias.core.learners.learner import RATES, Learned, Learner, LearningOptions, OnRound, Rounds
from posbias.core.learners.links import logit, sigmoid
from posbias.core.learners.models import NetworkModel, standardized

_RIDGE = 1.0
_MOST_ROUNDS = 100
_CLOSE = 1e-10  # of the log-likelihood per impression: what the next step would still gain
_SMALLEST_STEP = 1e-6
_RUN = 1 << 13  # documents that are read at once
_CONSTANT = 1e-12  # relative to the mean: what rounding leaves of a feature without any spread


class LogisticLearner(Learner):
    """A linear model of clicks."""

    name = "logistic"
    reference = "Guo et al. 2019"
    about = "logistic regression, position one of its features"
    uses_propensities = False
    is_probability = True
    takes = ("no_position_feature",)

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Take Newton's steps until they gain nothing."""
        regression = Regression(data, options.position_as_feature)
        learnt, held_out = regression.shown
        rounds, at = Rounds(options.early_stopping), regression.at(regression.start())
        kept = at.weights
        while rounds.last < _MOST_ROUNDS and not rounds.over:
            found = regression.better(at)
            if found is None:
                break
            value = found.likelihood[1] / held_out if held_out else None
            rounds.add(rounds.last + 1, found.likelihood[0] / max(learnt, 1.0), value)
            kept = found.weights if rounds.best == rounds.last else kept
            on_round()
            gained, at = at.loss - found.loss, found
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
        self._rows, self._counts = features_of(data, LogisticLearner.name).rows, data.counts
        self._mean, self._scale = mean_and_scale(self._rows, ~data.held_out)
        self._learnt = (~data.held_out).astype(np.float64)
        positions, place = np.unique(data.position, return_inverse=True)
        self._place: Integers = place  # of each cell among the positions
        self._n_places = len(positions) if with_position else 0  # K
        per_document = self._counts.sum_by_unit(self._counts.impressions)
        self.shown = float(per_document @ self._learnt), float(per_document @ (1 - self._learnt))

    def start(self) -> Floats:
        """Weights 0, and the constant that expects as many clicks as there are."""
        weights = np.zeros(len(self._mean) + self._n_places + 1)
        clicks = float(self._counts.sum_by_unit(self._counts.clicks) @ self._learnt)
        weights[-1] = logit(float(np.clip(clicks / max(self.shown[0], 1.0), *RATES)))
        return weights

    def model(self, weights: Floats) -> NetworkModel:
        """What scores documents as if they stood at the first position."""
        n = len(self._mean)
        constant = weights[-1] + (weights[n] if self._n_places else 0.0)
        return NetworkModel(self._mean, self._scale, (weights[:n, np.newaxis],), (np.array([constant]),))

    def better(self, at: Fitted) -> Fitted | None:
        """Newton's step, as much of it as lowers the loss; None where none does."""
        step, share = np.linalg.solve(at.hessian, at.gradient), 1.0
        while share > _SMALLEST_STEP:
            found = self.at(at.weights - share * step)
            if found.loss < at.loss:
                return found
            share /= 2
        return None

    def at(self, weights: Floats) -> Fitted:
        """The loss at weights, and its derivatives n p - c and n p (1 - p) by the score, times the inputs."""
        ridge, n = np.append(np.full(len(weights) - 1, _RIDGE), 0.0), len(self._mean)
        gradient, hessian, likelihood = ridge * weights, np.diag(ridge), np.zeros(2)
        for run in runs(self._counts.n_units, _RUN):
            rows, counts = (
                standardized(self._rows[run], self._mean, self._scale),
                self._counts.read(run.start, run.stop),
            )
            scores, learnt = counts.spread(rows @ weights[:n] + weights[-1]), counts.spread(self._learnt[run])
            if self._n_places:
                scores += weights[n:-1][self._place[counts.cell]]
            terms = counts.clicks * scores - counts.impressions * np.logaddexp(0.0, scores)
            likelihood += learnt @ terms, (1 - learnt) @ terms
            chance = sigmoid(scores)
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


def mean_and_scale(rows: Rows, wanted: Flags) -> tuple[Floats, Floats]:
    """The mean and the standard deviation of each feature, shapes (F,), over some rows.

    Missing and infinite values are left out. A feature that is constant or has no value has scale 1.

    Args:
        rows: shape (n, F).
        wanted: which rows, shape (n,).
    """
    mean = _mean(rows, wanted, None)
    scale = np.sqrt(_mean(rows, wanted, mean))
    return mean, np.where(scale > _CONSTANT * np.maximum(np.abs(mean), 1.0), scale, 1.0)


def _mean(rows: Rows, wanted: Flags, center: Floats | None) -> Floats:
    """The mean of each feature, or of its squared distance from a center, 0 where it has no value."""
    total, count = np.zeros(1), np.zeros(1)
    for chunk in runs(len(rows)):
        values = rows[chunk][wanted[chunk]]
        known = np.isfinite(values)
        values = np.where(known, values, 0.0) if center is None else np.where(known, values - center, 0.0) ** 2
        total, count = total + values.sum(axis=0), count + known.sum(axis=0)
    return total / np.maximum(count, 1)
