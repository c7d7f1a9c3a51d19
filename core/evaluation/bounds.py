r"""Finite-sample lower bounds on a gain: no normal approximation, whatever the clicks.

X_s = sum of w lambda over the clicks of page s lies in [0, b]; n pages are independent; theta is taken as known. With
probability at least C = 1 - delta, for all of M rankings at once, and so for the best of them,

    Hoeffding:            E X >= mean(X) - b sqrt(ln(M / delta) / (2 n))
    empirical Bernstein:  E X >= mean(X) - sqrt(2 V ln(2 M / delta) / n) - 7 b ln(2 M / delta) / (3 (n - 1))

each by itself (the union over a finite class: every ranking has delta / M). V is the sample variance of X. b does not
depend on the clicks: the largest weights of distinct positions, paired with the largest lambdas. For a mean of
independent terms McDiarmid's bound is Hoeffding's.

Clipped weights are too small, and the gain is at least 0, so that E X is at most the true gain: what bounds it from
below bounds the gain. From above it does not: that would need the bias of clipping too. Nor does it hold for
self-normalised values, which are no means of independent terms.

Sources: Hoeffding 1963; McDiarmid 1989; Maurer & Pontil 2009, theorem 4 (empirical Bernstein).
"""

import math

import numpy as np
import polars as pl

from posbias.core.evaluation.shown import CellWeights
from posbias.core.schema import POSITION


def hoeffding(mean: float, n_pages: int, largest: float, confidence: float, n_rankings: int) -> float:
    """Hoeffding's lower bound on a mean of n terms in [0, b], one of M that hold together."""
    return mean - largest * math.sqrt(math.log(n_rankings / (1.0 - confidence)) / (2.0 * n_pages))


def empirical_bernstein(
    mean: float, variance: float, n_pages: int, largest: float, confidence: float, n_rankings: int
) -> float:
    """Maurer & Pontil's lower bound on a mean of n terms in [0, b], one of M that hold together; NaN for one term."""
    if n_pages <= 1:
        return math.nan
    log = math.log(2.0 * n_rankings / (1.0 - confidence))
    return mean - math.sqrt(2.0 * variance * log / n_pages) - 7.0 * largest * log / (3.0 * (n_pages - 1))


def sample_variance(total: float, squares: float, n_pages: int) -> float:
    """Of n terms with this sum and this sum of squares; 0 for one."""
    return max(squares - total**2 / n_pages, 0.0) / (n_pages - 1) if n_pages > 1 else 0.0


def largest_gain(weights: CellWeights, depth: int, lowest: int | None = None) -> float:
    """B of DCG: the most that one page can gain, every position with its largest weight and clicked.

    Args:
        weights: of the cells.
        depth: K.
        lowest: the number of documents on the longest page there can be; None: as many as there are positions.
    """
    by_position = weights.cells.select(POSITION, pl.Series("weight", weights.weight)).group_by(POSITION)
    largest = np.sort(by_position.agg(pl.col("weight").max())["weight"].to_numpy())[::-1]
    n_ranks = min(depth, len(largest) if lowest is None else lowest, len(largest))
    return float(largest[:n_ranks] @ (1.0 / np.log2(np.arange(2.0, n_ranks + 2.0))))
