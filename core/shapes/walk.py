"""Random walks along the logarithm of the position: how neighbouring positions leave a curve together."""

import numpy as np

from posbias.core.arrays.count_table import Floats


def walk_covariance(x: Floats) -> Floats:
    """Covariance at tau = 1 of random walks that start at x = 0, one on each side of it, shape (n, n).

        Cov_kl = min(|x_k|, |x_l|) where x_k and x_l have the same sign, else 0

    Args:
        x: log position minus log reference position, shape (n,).
    """
    return np.where(np.outer(x, x) > 0, np.minimum.outer(np.abs(x), np.abs(x)), 0.0)
