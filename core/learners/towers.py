"""Two towers on counts: a network for relevance, a number for each position, and what they say of a click together.

One row is a document at a position, weighted by its impressions. Learning stops once queries that are set apart have
fared no better for six passes: an eighth of those to learn from, by the seed, or, with early stopping, the held-out
ones. The learning curve shows them. The standardised features of all documents are held in memory, four bytes a value.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers, sum_by_number
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.adam import Adam
from posbias.core.learners.boosting import runs
from posbias.core.learners.data import LearningData
from posbias.core.learners.growing import Rounds
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.links import logit, sigmoid
from posbias.core.learners.models import NetworkModel
from posbias.core.learners.network import Perceptron, Reals
from posbias.core.learners.standardizing import mean_and_scale, numbers_of

_POSITIONS, _ADVERSARY = "positions", "adversary"
_HIDDEN = (64, 32)
_BATCH, _SMALLEST_BATCH = 512, 32
_FEWEST_STEPS = 50  # of a pass: small logs have small batches
_RATE, _POSITION_RATE = 1e-3, 1e-2
_DECAY = 1e-4
_PATIENCE = 6
_ONE_QUERY_IN = 8  # is set apart, where the user sets none apart
_RATES = (1e-4, 0.9)  # what the start is kept within
_SMALLEST = 1e-7  # chance of a click, in logarithms


@dataclass(frozen=True)
class Step:
    """What one minibatch says.

    Attributes:
        of_relevance: derivative of the loss by the relevance of each row, shape (n,).
        of_positions: by the number of each position, shape (K,).
        of_adversary: by the slope and the constant of the adversary, shape (2,).
    """

    of_relevance: Floats
    of_positions: Floats
    of_adversary: Floats = field(default_factory=lambda: np.zeros(2))


@dataclass(frozen=True)
class Batch:
    """Some rows.

    Attributes:
        relevance: what the network says, shape (n,).
        place: the position of each row, from 0.
        rate: clicks over impressions.
        weight: impressions, of mean 1 / n over a batch.
    """

    relevance: Floats
    place: Integers
    rate: Floats
    weight: Floats

    def by_position(self, values: Floats, n_positions: int) -> Floats:
        """Sums of values by position, shape (K,)."""
        return sum_by_number(self.place, values, n_positions)


class Towers(ABC):
    """How relevance and position make a click."""

    @abstractmethod
    def chance(self, relevance: Floats, position: Floats) -> Floats:
        """P(click) of rows, from relevance and the number of the row's position, each of shape (n,)."""

    @abstractmethod
    def step(self, batch: Batch, positions: Floats, adversary: Floats, rng: np.random.Generator) -> Step:
        """The derivatives of the mean of -log P.

        Args:
            batch: the rows.
            positions: the number of each position, shape (K,).
            adversary: slope and constant, shape (2,).
            rng: draws what is dropped.
        """

    def propensities(self, positions: Floats) -> Floats | None:  # noqa: ARG002 - most have none
        """Theta by position relative to the first, where the towers say what it is."""
        return None

    def top(self, positions: Floats) -> float:  # noqa: ARG002 - likewise
        """What a score gains at the first position."""
        return 0.0


class TowerLearner(Learner):
    """A learner of towers; what it is made of is `towers`."""

    uses_propensities = False
    is_probability = True
    takes: ClassVar[tuple[str, ...]] = ("epochs",)
    first_position: ClassVar[float] = 0.0

    @abstractmethod
    def towers(self, options: LearningOptions) -> Towers:
        """How relevance and position make a click."""

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Pass over the log until queries that are set apart fare no better.

        Raises:
            IdentifiabilityError: there is but one query, so that none can be set apart.
            SchemaError: a feature is text.
        """
        run = _Run(data, self.name, self.towers(options), options, self.first_position)
        rounds = Rounds(options.early_stopping or _PATIENCE)
        kept = run.copy()
        while rounds.last < options.epochs and not rounds.over:
            run.epoch()
            number = rounds.last + 1
            rounds.add(number, run.likelihood(run.learnt), run.likelihood(run.apart))
            if rounds.best == number:
                kept = run.copy()
            on_round()
        run.restore(kept)
        return Learned(run.model(), rounds.curve, propensities=run.propensities(), report=run.report(rounds.best))


class _Run:
    """The state of learning."""

    def __init__(
        self, data: LearningData, name: str, towers: Towers, options: LearningOptions, first_position: float
    ) -> None:
        rows = numbers_of(data, name).rows
        self._data, self._towers = data, towers
        self._rng = np.random.default_rng(options.seed)
        stop_by, self._own = _to_stop_by(data, options, self._rng)
        mean, scale = mean_and_scale(rows, ~(stop_by | data.held_out))
        self._blank = NetworkModel(mean, scale, (np.zeros((len(mean), 1)),), (np.zeros(1),))
        self._rows: Reals = np.concatenate(
            [self._blank.standardized(rows[chunk]).astype(np.float32) for chunk in runs(len(rows))]
        )
        counts = data.counts
        self._document, self._impressions = counts.unit_of_entry, counts.impressions
        self._rate = counts.clicks / counts.impressions
        positions, place = np.unique(data.position, return_inverse=True)
        self._place: Integers = place[counts.cell]
        self.apart = np.flatnonzero(stop_by[self._document])
        self.learnt = np.flatnonzero(~(stop_by | data.held_out)[self._document])
        self._network = Perceptron((len(mean), *_HIDDEN, 1), self._rng)
        start = self._impressions[self.learnt] @ self._rate[self.learnt] / self._impressions[self.learnt].sum()
        self._network.biases[-1][:] = logit(float(np.clip(start, *_RATES))) + first_position / 2
        self._positions: Reals = np.full(len(positions), first_position, np.float32)
        self._adversary: Reals = np.zeros(2, np.float32)
        self._steps = (
            Adam(self._network.parameters, _RATE),
            Adam({_POSITIONS: self._positions}, _POSITION_RATE),
            Adam({_ADVERSARY: self._adversary}, _POSITION_RATE),
        )

    def epoch(self) -> None:
        """Pass over the rows to learn from once, in a new order."""
        order = self._rng.permutation(self.learnt)
        mean_weight = self._impressions[self.learnt].mean()
        size = int(np.clip(len(order) // _FEWEST_STEPS, _SMALLEST_BATCH, _BATCH))
        for first in range(0, len(order), size):
            rows = order[first : first + size]
            relevance = self._network.forward(self._rows[self._document[rows]]).astype(np.float64)
            weight = self._impressions[rows] / mean_weight / len(rows)
            batch = Batch(relevance, self._place[rows], self._rate[rows], weight)
            positions, adversary = self._positions.astype(np.float64), self._adversary.astype(np.float64)
            step = self._towers.step(batch, positions, adversary, self._rng)
            network, of_positions, of_adversary = self._steps
            network.step(self._network.backward(step.of_relevance.astype(np.float32), _DECAY))
            of_positions.step({_POSITIONS: step.of_positions.astype(np.float32)})
            of_adversary.step({_ADVERSARY: step.of_adversary.astype(np.float32)})

    def _relevance(self) -> Iterator[Floats]:
        for chunk in runs(len(self._rows)):
            yield self._network.forward(self._rows[chunk]).astype(np.float64)

    def likelihood(self, rows: Integers) -> float:
        """The log-likelihood per impression of some rows."""
        relevance = np.concatenate(list(self._relevance()))
        positions = self._positions.astype(np.float64)
        chance = self._towers.chance(relevance[self._document[rows]], positions[self._place[rows]])
        kept = np.clip(chance, _SMALLEST, 1 - _SMALLEST)
        found = self._rate[rows] * np.log(kept) + (1 - self._rate[rows]) * np.log1p(-kept)
        return float(self._impressions[rows] @ found / self._impressions[rows].sum())

    def copy(self) -> list[Reals]:
        """What has been learnt until now."""
        return [*self._network.copy(), self._positions.copy()]

    def restore(self, kept: list[Reals]) -> None:
        """Go back to what had been learnt before."""
        self._network.restore(kept[:-1])
        self._positions[...] = kept[-1]

    def model(self) -> NetworkModel:
        """The network, which scores documents as if they stood at the first position."""
        weights = tuple(weight.astype(np.float64) for weight in self._network.weights)
        *biases, last = (bias.astype(np.float64) for bias in self._network.biases)
        top = self._towers.top(self._positions.astype(np.float64))
        return replace(self._blank, weights=weights, biases=(*biases, last + top))

    def propensities(self) -> Floats | None:
        """Theta of each cell as the towers estimate it."""
        by_position = self._towers.propensities(self._positions.astype(np.float64))
        if by_position is None:
            return None
        return by_position[np.unique(self._data.position, return_inverse=True)[1]]

    def report(self, passes: int) -> dict[str, Any]:
        """What the manifest says."""
        return {"rounds": passes, **({"queries_set_apart_to_stop": self._own} if self._own else {})}


def _to_stop_by(data: LearningData, options: LearningOptions, rng: np.random.Generator) -> tuple[Flags, int]:
    """The documents whose clicks say when to stop, and how many queries were set apart for that here.

    Those of held-out queries, where early stopping is asked for; else these say nothing, and an eighth of the others
    does.

    Raises:
        IdentifiabilityError: there is but one query to learn from.
    """
    if options.early_stopping is not None and data.held_out.any():
        return data.held_out, 0
    queries = np.unique(data.query[~data.held_out])
    if len(queries) < 2:  # noqa: PLR2004 - one to learn from, one to stop by
        raise IdentifiabilityError(
            "networks stop by the clicks of queries that are set apart, and there is a single query to learn from. Use "
            "--learner pbm."
        )
    apart = rng.choice(queries, max(len(queries) // _ONE_QUERY_IN, 1), replace=False)
    return np.isin(data.query, apart), len(apart)


class Sum(Towers):
    """P(click) = 1 / (1 + exp(-(f + o_k))), with what keeps o from taking up relevance.

    Attributes:
        dropout: the chance with which o_k is 0; it is o_k / (1 - dropout) otherwise.
        reversal: the strength alpha of the reversed gradient of an adversary, (click - a o_k - b)^2: a and b lower it,
            o raises it, times alpha.
    """

    def __init__(self, dropout: float, reversal: float) -> None:
        """Take both strengths; 0 for none."""
        self._dropout, self._reversal = dropout, reversal

    def chance(self, relevance: Floats, position: Floats) -> Floats:
        """1 / (1 + exp(-(f + o)))."""
        return sigmoid(relevance + position)

    def top(self, positions: Floats) -> float:
        """Where o is of the first position."""
        return float(positions[0])

    def step(self, batch: Batch, positions: Floats, adversary: Floats, rng: np.random.Generator) -> Step:
        """The derivatives; what is dropped is drawn row by row."""
        seen = np.ones(len(batch.place))
        if self._dropout:
            seen = (rng.random(len(seen)) >= self._dropout) / (1 - self._dropout)
        at = positions[batch.place]
        slope = batch.weight * (sigmoid(batch.relevance + at * seen) - batch.rate)
        of_positions = batch.by_position(slope * seen, len(positions))
        if not self._reversal:
            return Step(slope, of_positions)
        left = 2 * batch.weight * (adversary[0] * at + adversary[1] - batch.rate)
        reversed_slope = -self._reversal * left * adversary[0]
        of_adversary = np.array([left @ at, left.sum()])
        return Step(slope, of_positions + batch.by_position(reversed_slope, len(positions)), of_adversary)


class Product(Towers):
    """P(click) = gamma theta_k, gamma = 1 / (1 + exp(-f)), theta_k = 1 / (1 + exp(-o_k))."""

    def chance(self, relevance: Floats, position: Floats) -> Floats:
        """Gamma theta."""
        return sigmoid(relevance) * sigmoid(position)

    def propensities(self, positions: Floats) -> Floats:
        """Theta over that of the first position."""
        theta = sigmoid(positions)
        return theta / theta[0]

    def step(self, batch: Batch, positions: Floats, adversary: Floats, rng: np.random.Generator) -> Step:  # noqa: ARG002
        """The derivatives."""
        gamma, theta = sigmoid(batch.relevance), sigmoid(positions)[batch.place]
        chance = np.clip(gamma * theta, _SMALLEST, 1 - _SMALLEST)
        slope = batch.weight * (chance - batch.rate) / (1 - chance)  # by log P, times P
        return Step(slope * (1 - gamma), batch.by_position(slope * (1 - theta), len(positions)))


class Single(Towers):
    """P(click) = 1 / (1 + exp(-f)), wherever the document stands."""

    def chance(self, relevance: Floats, position: Floats) -> Floats:  # noqa: ARG002 - that is the point
        """1 / (1 + exp(-f))."""
        return sigmoid(relevance)

    def step(self, batch: Batch, positions: Floats, adversary: Floats, rng: np.random.Generator) -> Step:  # noqa: ARG002
        """The derivatives."""
        return Step(batch.weight * (sigmoid(batch.relevance) - batch.rate), np.zeros(len(positions)))
