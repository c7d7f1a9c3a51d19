"""The conditional likelihood written out pair by pair, with dense arrays: impressions and clicks of shape (J, K)."""

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers


def dense_counts(table: CountTable) -> tuple[Floats, Floats]:
    """Impressions and clicks, shape (J, K) each, whatever the multiplicity of units."""
    counts = np.zeros((2, table.n_units, table.n_cells))
    counts[:, table.unit_of_entry, table.cell] = table.impressions, table.clicks
    return counts[0], counts[1]


def log_likelihood(impressions: Floats, clicks: Floats, log_theta: Floats) -> float:
    """The sum over pairs of c @ log theta - C log(n @ theta)."""
    total = clicks.sum(axis=1)
    return float((clicks @ log_theta).sum() - total @ np.log(impressions @ np.exp(log_theta) + (total == 0)))


def scores_and_information(impressions: Floats, clicks: Floats, theta: Floats) -> tuple[Floats, Floats]:
    """Score c - C p, shape (J, K), and information C (diag(p) - p p'), shape (J, K, K); p = n theta / (n @ theta).

    0 for pairs that say nothing: they have no click, or were shown in one cell.
    """
    tells = (clicks.sum(axis=1) > 0) & ((impressions > 0).sum(axis=1) > 1)
    total = np.where(tells, clicks.sum(axis=1), 0)[:, np.newaxis]
    share = impressions * theta
    share /= np.where(tells, share.sum(axis=1), 1)[:, np.newaxis]
    outer = share[:, :, np.newaxis] * (np.eye(len(theta)) - share[:, np.newaxis])
    return np.where(tells[:, np.newaxis], clicks, 0) - total * share, total[:, :, np.newaxis] * outer


def by_cluster(of_pairs: Floats, cluster: Integers, among: Integers | None = None) -> Floats:
    """Sums over the pairs of each cluster, or of each that is among others, in their order, shape (G, ...)."""
    numbers = np.unique(cluster if among is None else among)
    return np.stack([of_pairs[cluster == number].sum(axis=0) for number in numbers])
