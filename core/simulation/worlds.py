"""Worlds: what documents there are, how attractive each one is, and what the ranker thinks of it.

A world from nothing draws attractiveness from a Beta distribution; `simulation_judgements` makes one from labels.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.simulation.options import SimulationOptions

WORLD, SESSION, NOISE, SEGMENT_WORLD, SHOCK, POPULARITY, TRAINING, SATISFACTION, RATES = 0, 1, 2, 3, 4, 5, 6, 7, 8
SEGMENT, CONTEXT, READINESS, DEPTH, EXPERIMENT = 10, 11, 12, 13, 14
"""Streams of random numbers, so that one feature does not change what another one draws."""


def random_stream(options: SimulationOptions, *key: int) -> np.random.Generator:
    """A source of randomness of its own for each key."""
    return np.random.default_rng(np.random.SeedSequence(options.seed, spawn_key=key))


@dataclass(frozen=True)
class World:
    """Queries in the order of their frequency, their documents, and the truth about them.

    A document is known by its number d within its query; queries with fewer than D documents are padded.
    """

    attractiveness: Floats  # shape (G, Q, D), gamma in [0, 1] by segment, query and document
    score: Floats  # shape (G, Q, D), what the ranker sorts by, largest first; -inf where there is no document
    deviation: float  # the standard deviation of the scores, > 0, the unit of the ranker's strength
    query_ids: pl.Series  # length Q
    doc_ids: pl.Series  # the documents of all queries, query by query
    start: Integers  # shape (Q,), where in `doc_ids` the documents of a query start

    @property
    def n_docs(self) -> Integers:
        """The number of documents of each query, shape (Q,)."""
        return np.count_nonzero(self.present, axis=1)

    @property
    def present(self) -> Flags:
        """Which documents there are, shape (Q, D)."""
        return self.score[0] > -np.inf


def random_world(options: SimulationOptions) -> World:
    """Draw a world from nothing: gamma ~ attractiveness_scale * Beta(a, b), for every query and document alike.

    In each further segment a share of the pairs is drawn anew; the others are those of the first segment.
    """
    n_queries, n_docs = options.n_queries, options.docs_per_query
    shape = (options.segments, n_queries, n_docs)
    attractiveness = np.empty(shape)
    attractiveness[0] = _beta(random_stream(options, WORLD), shape[1:], options)
    for segment in range(1, options.segments):
        rng = random_stream(options, SEGMENT_WORLD, segment)
        differs = rng.random(shape[1:]) < options.segment_difference
        attractiveness[segment] = np.where(differs, _beta(rng, shape[1:], options), attractiveness[0])
    noise = _beta(random_stream(options, NOISE), shape[1:], options) if options.score_weight < 1 else 0.0
    a, b = options.attractiveness_shape
    deviation = options.attractiveness_scale * np.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    return World(
        attractiveness=attractiveness,
        score=blended_score(attractiveness, noise, options.score_weight),
        deviation=float(deviation * np.hypot(options.score_weight, 1 - options.score_weight)),
        query_ids=pl.Series(np.arange(n_queries, dtype=np.int32)),
        doc_ids=pl.Series(np.tile(np.arange(n_docs, dtype=np.int32), n_queries)),
        start=np.arange(n_queries, dtype=np.int64) * n_docs,
    )


def blended_score(quality: Floats, noise: Floats | float, weight: float) -> Floats:
    """The ranker's score w * quality + (1 - w) * noise."""
    return quality if weight == 1 else weight * quality + (1 - weight) * noise


def theta_shocks(options: SimulationOptions, n_queries: int) -> Floats | None:
    """Log-normal factors of mean 1 on theta by query and position, shape (Q, K); None where there are none."""
    sigma = options.theta_shock
    if sigma == 0:
        return None
    draw = random_stream(options, SHOCK).standard_normal((n_queries, options.n_positions))
    return np.exp(sigma * draw - sigma**2 / 2)


def _beta(rng: np.random.Generator, shape: tuple[int, ...], options: SimulationOptions) -> Floats:
    return options.attractiveness_scale * rng.beta(*options.attractiveness_shape, size=shape)
