"""Logistic regression on standardised features, with position as a feature, which is fixed at 1 when predicting.

    P(click | d, k) = 1 / (1 + exp(-(w x_d + o_k + b))),   score of d = w x_d + o_1 + b

o_k is the weight of position k as a column of its own (one-hot); without position, o is 0. It is found by Newton's
method on the counts, one row per document and position:

    minimise sum_dk { n log(1 + exp(f)) - c f } + (|w|^2 + |o|^2) / 2

Position takes up the clicks that it explains, as far as the two are not seen only together: what a ranker always puts
at the top and the top itself cannot be told apart.

Rows of features are read in runs, once for each of the few rounds.

Sources: Hosmer & Lemeshow 2000; Guo et al. 2019 (position as an input with a fixed value in serving, their baseline).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers, sum_by_number
from posbias.core.learners.data import Features, LearningData
from posbias.core.learners.growing import Rounds
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.links import logit, sigmoid
from posbias.core.learners.models import NetworkModel
from posbias.core.learners.standardizing import mean_and_scale, numbers_of

_RIDGE = 1.0
_MOST_ROUNDS = 100
_CLOSE = 1e-10  # of the log-likelihood per impression: what the next step would still gain
_SMALLEST_STEP = 1e-6
_RATES = (1e-4, 0.9)  # what the start is kept within
_RUN = 1 << 13  # documents that are read at once


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
        rounds = Rounds(options.early_stopping)
        at, steps = regression.at(regression.start()), list[Floats]()
        while rounds.last < _MOST_ROUNDS and not rounds.over:
            found = regression.better(at)
            if found is None:
                break
            gained = at.loss - found.loss
            at = found
            steps.append(at.weights)
            rounds.add(len(steps), *regression.per_impression(at))
            on_round()
            if gained < _CLOSE * regression.shown[0]:
                break
        chosen = steps[rounds.best - 1] if steps else regression.start()
        return Learned(regression.model(chosen), rounds.curve, report={"rounds": rounds.best})


@dataclass(frozen=True)
class Fitted:
    """The loss at some weights.

    Attributes:
        weights: of the features, the positions and the constant, shape (F + K + 1,).
        loss: with the ridge.
        gradient: its derivative, likewise.
        hessian: its second derivative.
        likelihood: log-likelihood of the clicks to learn from, and of those held out.
    """

    weights: Floats
    loss: float
    gradient: Floats
    hessian: Floats
    likelihood: tuple[float, float]


@dataclass(frozen=True)
class Regression:
    """The loss as a function of the weights.

    Attributes:
        data: the log.
        with_position: whether positions have weights.
    """

    data: LearningData
    with_position: bool

    @cached_property
    def _features(self) -> Features:
        """The features, all of them numbers.

        Raises:
            SchemaError: one is text.
        """
        return numbers_of(self.data, LogisticLearner.name)

    @cached_property
    def _blank(self) -> NetworkModel:
        """The model before anything is learnt, which standardises."""
        mean, scale = mean_and_scale(self._features.rows, ~self.data.held_out)
        return NetworkModel(mean, scale, (np.zeros((len(mean), 1)),), (np.zeros(1),))

    @cached_property
    def _places(self) -> tuple[Integers, Integers]:
        """The positions that have weights, ascending, and the place of each cell among them."""
        positions, place = np.unique(self.data.position, return_inverse=True)
        return (positions, place) if self.with_position else (positions[:0], np.zeros(len(place), np.int64))

    @property
    def _n_features(self) -> int:
        return len(self._blank.mean)

    @cached_property
    def shown(self) -> tuple[float, float]:
        """Impressions to learn from, and held out."""
        per_document = self.data.counts.sum_by_unit(self.data.counts.impressions)
        return float(per_document[~self.data.held_out].sum()), float(per_document[self.data.held_out].sum())

    def start(self) -> Floats:
        """Weights 0, and the constant that expects as many clicks as there are."""
        clicks = float(self.data.counts.sum_by_unit(self.data.counts.clicks)[~self.data.held_out].sum())
        weights = np.zeros(self._n_features + len(self._places[0]) + 1)
        weights[-1] = logit(float(np.clip(clicks / max(self.shown[0], 1.0), *_RATES)))
        return weights

    def per_impression(self, at: Fitted) -> tuple[float, float | None]:
        """The log-likelihood per impression, of those to learn from and of those held out, where there are any."""
        learnt, held_out = self.shown
        return at.likelihood[0] / max(learnt, 1.0), at.likelihood[1] / held_out if held_out else None

    def model(self, weights: Floats) -> NetworkModel:
        """What scores documents as if they stood at the first position."""
        n, first = self._n_features, weights[self._n_features] if self.with_position else 0.0
        blank = self._blank
        return NetworkModel(blank.mean, blank.scale, (weights[:n, np.newaxis],), (np.array([weights[-1] + first]),))

    def better(self, at: Fitted) -> Fitted | None:
        """Newton's step, as much of it as lowers the loss; None where none does."""
        step = np.linalg.solve(at.hessian, at.gradient)
        share = 1.0
        while share > _SMALLEST_STEP:
            found = self.at(at.weights - share * step)
            if found.loss < at.loss:
                return found
            share /= 2
        return None

    def at(self, weights: Floats) -> Fitted:
        """The loss at weights, and its derivatives."""
        ridge = np.append(np.full(len(weights) - 1, _RIDGE), 0.0)
        gradient, hessian = ridge * weights, np.diag(ridge)
        likelihood = [0.0, 0.0]
        for run in self._runs():
            clicks = RunOfClicks(*run, self._places[1], len(self._places[0]), weights)
            likelihood[0] += clicks.likelihood(held_out=False)
            likelihood[1] += clicks.likelihood(held_out=True)
            gradient += clicks.gradient
            hessian += clicks.hessian
        loss = float(ridge @ weights**2) / 2 - likelihood[0]
        return Fitted(weights, loss, gradient, hessian, (likelihood[0], likelihood[1]))

    def _runs(self) -> Iterator[tuple[Floats, CountTable, Floats]]:
        """Standardised features, counts, and 1 for documents to learn from, some documents at a time."""
        counts = self.data.counts
        for first in range(0, self.data.n_documents, _RUN):
            last = min(first + _RUN, self.data.n_documents)
            rows = self._blank.standardized(self._features.rows[first:last])
            yield rows, counts.read(first, last), (~self.data.held_out[first:last]).astype(np.float64)


@dataclass(frozen=True)
class RunOfClicks:
    """Some documents at some weights.

    Attributes:
        rows: standardised features, shape (m, F).
        counts: of the documents.
        learnt: 1 for documents to learn from, 0 for those held out, shape (m,).
        place: of each cell among the positions that have weights.
        n_places: number of these K; 0 without position.
        weights: shape (F + K + 1,).
    """

    rows: Floats
    counts: CountTable
    learnt: Floats
    place: Integers
    n_places: int
    weights: Floats

    @cached_property
    def _scores(self) -> Floats:
        """The score f of each entry."""
        n = self.rows.shape[1]
        scores = self.counts.spread(self.rows @ self.weights[:n] + self.weights[-1])
        return scores + self.weights[n:-1][self.place[self.counts.cell]] if self.n_places else scores

    def likelihood(self, *, held_out: bool) -> float:
        """The log-likelihood, sum c f - n log(1 + exp(f))."""
        counted = self.counts.spread(1 - self.learnt if held_out else self.learnt)
        terms = self.counts.clicks * self._scores - self.counts.impressions * np.logaddexp(0.0, self._scores)
        return float(counted @ terms)

    @cached_property
    def gradient(self) -> Floats:
        """The derivative of the loss."""
        shown = self.counts.spread(self.learnt)
        return self._by_weight(shown * (self.counts.impressions * sigmoid(self._scores) - self.counts.clicks))

    def _by_weight(self, per_entry: Floats) -> Floats:
        """Values of entries times what each weight is multiplied with, added up."""
        of_features = self.rows.T @ self.counts.sum_by_unit(per_entry)
        return np.concatenate([of_features, self._by_place(per_entry).sum(axis=0), [per_entry.sum()]])

    def _by_place(self, per_entry: Floats) -> Floats:
        """Sums by document and position, shape (m, K)."""
        if not self.n_places:
            return np.zeros((len(self.rows), 0))
        key = self.counts.unit_of_entry * self.n_places + self.place[self.counts.cell]
        return sum_by_number(key, per_entry, len(self.rows) * self.n_places).reshape(len(self.rows), self.n_places)

    @cached_property
    def hessian(self) -> Floats:
        """Its second derivative: n p (1 - p), by any two weights."""
        chance = sigmoid(self._scores)
        bend = self.counts.spread(self.learnt) * self.counts.impressions * chance * (1 - chance)
        of_document, of_place = self.counts.sum_by_unit(bend), self._by_place(bend)
        rest = np.column_stack([of_place, of_document])  # positions, and the constant
        across = self.rows.T @ rest
        among = np.diag(np.append(of_place.sum(axis=0), bend.sum()))
        among[-1, :-1] = among[:-1, -1] = of_place.sum(axis=0)
        return np.block([[self.rows.T @ (of_document[:, np.newaxis] * self.rows), across], [across.T, among]])
