"""A log of documents with two features, as learners see it, drawn from the position-based model."""

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, sum_by_number
from posbias.core.learners.learning import Features, LearningData, Pages, sigmoid

N_QUERIES, N_DOCUMENTS, N_POSITIONS, N_PAGES = 60, 8, 5, 6_000
THETA = 1 / np.arange(1, N_POSITIONS + 1)


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
        counts=CountTable.from_dense(impressions.astype(float), clicks),
        examination=THETA,
        position=np.arange(1, N_POSITIONS + 1),
        features=Features(rows, ("telling", "liked")),
        pages=Pages(np.arange(0, len(cell) + 1, N_POSITIONS), document, cell, click),
    )


def rank_correlation(left: Floats, right: Floats) -> float:
    """Spearman's."""
    first, second = (np.argsort(np.argsort(values)).astype(float) for values in (left, right))
    return float(np.corrcoef(first, second)[0, 1])
