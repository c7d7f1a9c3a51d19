"""A log of documents with two features, as learners see it, drawn from the position-based model."""

import numpy as np
from small_logs import dense_table

from posbias.core.arrays.count_table import Floats, sum_by_number
from posbias.core.learners.learning import Features, LearningData, Pages, sigmoid

N_QUERIES, N_DOCUMENTS, N_POSITIONS, N_PAGES = 60, 8, 5, 6_000
THETA = 1 / np.arange(1, N_POSITIONS + 1)
UNSEEN = np.random.default_rng(9).standard_normal((2_000, 2))
"""Features of documents that no log shows."""


def true_scores(rows: Floats) -> Floats:
    """What clicks are drawn from."""
    return 1.5 * rows[:, 0] - 1.0


def draw(seed: int = 0, held_out: float = 0.0, preference: float = 1.0) -> LearningData:
    """A log whose ranker likes the second feature, which says nothing, and the first a little.

    Args:
        seed: of all that is drawn.
        held_out: the share of queries that are held out.
        preference: how much the ranker does so; 0: it shuffles.
    """
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((N_QUERIES * N_DOCUMENTS, 2))
    liking = 0.5 * rows[:, 0] + rows[:, 1]
    query = np.repeat(np.arange(N_QUERIES), N_DOCUMENTS)
    of_page = rng.integers(N_QUERIES, size=N_PAGES)
    candidates = of_page[:, np.newaxis] * N_DOCUMENTS + np.arange(N_DOCUMENTS)
    noisy = preference * liking[candidates] + rng.gumbel(size=candidates.shape) * 0.5
    shown = np.take_along_axis(candidates, np.argsort(-noisy, axis=1)[:, :N_POSITIONS], axis=1)
    cell = np.tile(np.arange(N_POSITIONS), N_PAGES)
    document = shown.ravel()
    click = (rng.random(len(cell)) < THETA[cell] * sigmoid(true_scores(rows))[document]).astype(float)
    shape = (len(rows), N_POSITIONS)
    key = document * N_POSITIONS + cell
    impressions = np.bincount(key, minlength=len(rows) * N_POSITIONS).reshape(shape)
    clicks = sum_by_number(key, click, len(rows) * N_POSITIONS).reshape(shape)
    return LearningData(
        query=query,
        held_out=query >= N_QUERIES * (1 - held_out),
        counts=dense_table(impressions.astype(float), clicks),
        examination=THETA,
        position=np.arange(1, N_POSITIONS + 1),
        features=Features(rows, ("telling", "liked")),
        pages=Pages(np.arange(0, len(cell) + 1, N_POSITIONS), document, cell, click),
    )


def hidden_relevance(known: float, seed: int, n_queries: int = 800) -> tuple[LearningData, Floats]:
    """Pages of ten documents, each shown once, and true logits, half of which the features do not tell.

    Args:
        known: how much of them the ranker knows; 0: it shuffles.
        seed: of all that is drawn.
        n_queries: each with a page.
    """
    rng, length = np.random.default_rng(seed), 10
    rows = rng.standard_normal((n_queries * length, 2))
    truth = rows[:, 0] + rng.standard_normal(len(rows)) - 0.5
    likes = (known * truth + (1 - known) * rng.standard_normal(len(rows))).reshape(n_queries, length)
    position = np.argsort(np.argsort(-likes, axis=1), axis=1).ravel()
    theta = 1 / np.arange(1, length + 1)
    impressions, clicks = np.zeros((2, len(rows), length))
    every = np.arange(len(rows))
    impressions[every, position] = 1.0
    clicks[every, position] = rng.random(len(rows)) < theta[position] * sigmoid(truth)
    data = LearningData(
        query=np.repeat(np.arange(n_queries), length),
        held_out=np.zeros(len(rows), np.bool_),
        counts=dense_table(impressions, clicks),
        examination=theta,
        position=np.arange(1, length + 1),
        features=Features(rows, ("telling", "noise")),
    )
    return data, truth


def rank_correlation(left: Floats, right: Floats) -> float:
    """Spearman's."""
    first, second = (np.argsort(np.argsort(values)).astype(float) for values in (left, right))
    return float(np.corrcoef(first, second)[0, 1])
