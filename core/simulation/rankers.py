"""Rankers: which document stands where, session by session, and how a ranker learns from its own clicks.

A Plackett-Luce ranker orders the documents of a query anew in every session,

    P(d first) = exp(l_d) / sum over d' of exp(l_d'), and so on among those that are left,
    l_d        = strength * score_d / sd + feedback_strength * rate_d / sd,
    rate_d     = (clicks_d + s * v) / (impressions_d + s) over all sessions before the last update,

where v is the click rate of all that was shown and s = FEEDBACK_PRIOR. Without clicks so far, as at the start,
rate_d is the same for all documents, and only the score matters.

Sources: Plackett 1975; Joachims, Swaminathan & Schnabel 2017 (swap experiments).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.simulation.clicks import Clicks
from posbias.core.simulation.options import SimulationOptions
from posbias.core.simulation.worlds import CONTEXT, DEPTH, EXPERIMENT, READINESS, SEGMENT, World, random_stream

FEEDBACK_PRIOR = 10.0  # impressions at the overall click rate: one lucky click does not decide
NO_EXPERIMENT, RANDOM, FIRST_SWAP = 0, 1, 2


@dataclass(frozen=True)
class Sessions:
    """The sessions of a block, before anything is shown."""

    number: Integers  # shape (S,), like all others: the session's number in the log
    query: Integers  # the number of its query
    segment: Integers  # the segment of its user
    context: Integers  # the context in which it is shown
    readiness: Floats  # the factor on its click probabilities
    depth: Integers  # the number of positions shown, in 1 .. K.
    experiment: Integers  # NO_EXPERIMENT, RANDOM, or FIRST_SWAP + the number of the pair of positions


def draw_sessions(options: SimulationOptions, number: Integers, query: Integers, block: int) -> Sessions:
    """Draw what sessions differ in, each trait from its own stream.

    Args:
        options: how sessions differ.
        number: shape (S,), their numbers.
        query: shape (S,), their queries.
        block: which block of the log they are.
    """
    size = len(number)

    def choice(stream: int, n_values: int) -> Integers:
        if n_values == 1:
            return np.zeros(size, dtype=np.int64)
        return random_stream(options, stream, block).integers(n_values, size=size)

    return Sessions(
        number=number,
        query=query,
        segment=choice(SEGMENT, options.segments),
        context=choice(CONTEXT, max(len(options.contexts), 1)),
        readiness=np.array(options.readiness)[choice(READINESS, len(options.readiness))],
        depth=_draw_depth(options, size, block),
        experiment=_draw_experiment(options, size, block),
    )


def _draw_depth(options: SimulationOptions, size: int, block: int) -> Integers:
    n_positions, depth = options.n_positions, options.depth
    if depth is None:
        return np.full(size, n_positions)
    rng = random_stream(options, DEPTH, block)
    if isinstance(depth, tuple):
        weights = np.array(depth)
        return rng.choice(np.arange(1, n_positions + 1), size, p=weights / weights.sum())
    return np.minimum(rng.geometric(1 - depth, size), n_positions) if depth < 1 else np.full(size, n_positions)


def _draw_experiment(options: SimulationOptions, size: int, block: int) -> Integers:
    experiment = np.full(size, NO_EXPERIMENT)
    if options.randomized_share + options.swap_share == 0:
        return experiment
    rng = random_stream(options, EXPERIMENT, block)
    lot, pair = rng.random(size), rng.integers(max(len(options.swaps), 1), size=size)
    experiment[lot < options.randomized_share] = RANDOM
    swaps = (lot >= options.randomized_share) & (lot < options.randomized_share + options.swap_share)
    experiment[swaps] = FIRST_SWAP + pair[swaps]
    return experiment


class Ranker(ABC):
    """What orders the documents of a page."""

    @abstractmethod
    def rank(self, sessions: Sessions, rng: np.random.Generator) -> Integers:
        """The documents in the order of their positions, shape (S, K)."""

    def update(self, number: int) -> None:
        """Take note of the number of the update, from 0; at a new one a ranker may have learnt."""
        del number

    def observe(self, sessions: Sessions, doc: Integers, click: Clicks) -> None:
        """Take note of what was shown, shape (S, K), and of the clicks on it."""
        del sessions, doc, click


def make_ranker(options: SimulationOptions, world: World) -> Ranker:
    """The ranker that the options ask for."""
    if np.isinf(options.ranker_strength):
        return FixedRanker(options, world)
    return LearningRanker(options, world) if options.feedback_strength > 0 else PlackettLuceRanker(options, world)


class FixedRanker(Ranker):
    """Shows the documents in the order of their scores, ties in the order in which they come."""

    def __init__(self, options: SimulationOptions, world: World) -> None:
        # The document at each position, i.e. the inverse of each document's rank: sorted once, not twice.
        by_score = np.argsort(-world.score, axis=2, kind="stable")
        self._order = by_score[:, :, : options.n_positions]

    def rank(self, sessions: Sessions, rng: np.random.Generator) -> Integers:  # noqa: ARG002 - nothing is random
        """The documents in the order of their positions, shape (S, K)."""
        return self._order[sessions.segment, sessions.query]


class PlackettLuceRanker(Ranker):
    """Orders documents at random, better scores first more often, as the arrivals of exponential races."""

    def __init__(self, options: SimulationOptions, world: World) -> None:
        self._n_positions = options.n_positions
        known = np.where(world.present, world.score, 0.0)  # strength 0 times -inf is no number
        logits = options.ranker_strength / world.deviation * known
        self._logits: Floats = np.where(world.present, logits, -np.inf)
        # Queries of about the same size race together: a few large ones must not pad all the others.
        powers_of_two = 2 ** np.ceil(np.log2(world.n_docs)).astype(np.int64)
        self._width = np.minimum(powers_of_two, world.score.shape[2])

    def rank(self, sessions: Sessions, rng: np.random.Generator) -> Integers:
        """The documents in the order of their positions, shape (S, K)."""
        doc = np.empty((len(sessions.query), self._n_positions), dtype=np.int64)
        width = self._width[sessions.query]
        for columns in np.unique(width):
            rows = np.flatnonzero(width == columns)
            logits = self._logits[:, :, :columns][sessions.segment[rows], sessions.query[rows]]
            doc[rows] = self._race(logits, rng)
        return doc

    def _race(self, logits: Floats, rng: np.random.Generator) -> Integers:
        """The first K of the documents that race, shape (S, D), in the order of their arrival."""
        arrival = np.log(rng.standard_exponential(logits.shape))
        arrival -= logits
        first = np.argpartition(arrival, self._n_positions - 1, axis=1)[:, : self._n_positions]
        order = np.argsort(np.take_along_axis(arrival, first, axis=1), axis=1)
        return np.take_along_axis(first, order, axis=1)


class LearningRanker(PlackettLuceRanker):
    """Re-ranks at each update by the click rates up to then; it knows the segments."""

    def __init__(self, options: SimulationOptions, world: World) -> None:
        super().__init__(options, world)
        self._by_score = self._logits
        self._strength = options.feedback_strength / world.deviation
        self._number = 0
        self._impressions = np.zeros(world.score.shape)
        self._clicks = np.zeros(world.score.shape)

    def update(self, number: int) -> None:
        """Re-rank if it is a new update."""
        if number == self._number:
            return
        self._number = number
        overall = self._clicks.sum() / max(self._impressions.sum(), 1.0)
        rate = (self._clicks + FEEDBACK_PRIOR * overall) / (self._impressions + FEEDBACK_PRIOR)
        self._logits = self._by_score + self._strength * rate

    def observe(self, sessions: Sessions, doc: Integers, click: Clicks) -> None:
        """Count what was shown, shape (S, K), and the clicks on it."""
        shown: Flags = np.arange(self._n_positions) < sessions.depth[:, None]
        place = np.ravel_multi_index((sessions.segment[:, None], sessions.query[:, None], doc), self._clicks.shape)
        np.add.at(self._impressions.reshape(-1), place[shown], 1.0)
        np.add.at(self._clicks.reshape(-1), place[shown & (click == 1)], 1.0)


def intervene(
    doc: Integers, experiment: Integers, swaps: Sequence[tuple[int, int]], rng: np.random.Generator
) -> Integers:
    """Rearrange the pages of sessions that take part in an experiment.

    Args:
        doc: shape (S, K), what the ranker shows; not changed.
        experiment: shape (S,): RANDOM puts the K documents into uniformly random order, FIRST_SWAP + i swaps those
            at the i-th pair of positions with probability 1/2.
        swaps: pairs of positions, from 1.
        rng: source of randomness.

    Returns:
        Shape (S, K), what is shown.
    """
    shown = doc.copy()
    random = experiment == RANDOM
    shown[random] = rng.permuted(doc[random], axis=1)
    chosen = rng.random(len(doc)) < 0.5  # noqa: PLR2004 - a fair coin
    for number, (one, other) in enumerate(swaps):
        swapped = np.flatnonzero(chosen & (experiment == FIRST_SWAP + number))
        shown[swapped, one - 1], shown[swapped, other - 1] = doc[swapped, other - 1], doc[swapped, one - 1]
    return shown
