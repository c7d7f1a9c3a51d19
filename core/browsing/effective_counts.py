"""How much a log says of parameters by unit where it does not show what was decided, in plain counts.

Whether a document that was not clicked was examined is not in a log. What EM expects there repeats what it believed
before, and is no evidence of it. What a log does say of one parameter x, near its estimate, is the slope and the
curvature of its log-likelihood: effective counts are the f and a with which f log x + a log(1 - x) has the same two.

    f / x   - a / (1 - x)    =  g  =  sum_i w_i g_i,     g_i = f_i / x - (d_i - f_i) / (1 - x)
    f / x^2 + a / (1 - x)^2  =  I  =  sum_i w_i g_i^2

so that f = x^2 ((1 - x) I + g) and a = (1 - x)^2 (x I - g). Here row i says that of d_i expected decisions f_i are in
favour of x; g_i is the slope of its log-likelihood (Fisher's identity). That likelihood is linear in x, L = u + v x, as
a page decides x once, so that -(log L)'' = (v / L)^2 = g_i^2. What a row is certain of counts apart: m favourable
decisions add m / x^2 to I. Where no f, a >= 0 have both slope and curvature, the slope alone is kept.

Where all rows are certain, these are the counts themselves.

Sources: Louis 1982 (the information of what is observed); Tierney & Kadane 1986 (integrals from slope and curvature).
"""

import numpy as np

from posbias.core.browsing.batch import Floats
from posbias.core.browsing.parameters import Ratio


def of_rows(ratio: Ratio, x: Floats) -> Ratio:
    """What each row adds to f and to f + a, which may be less than nothing.

    Args:
        ratio: f_i and d_i, shape (N, L).
        x: the parameter of each row, in (0, 1), likewise.
    """
    certain = np.floor(ratio.favourable)
    hidden = ratio.favourable - certain
    slope = hidden / x - (ratio.decided - ratio.favourable) / (1 - x)
    favourable = x**2 * slope * ((1 - x) * slope + 1) + certain
    against = (1 - x) ** 2 * slope * (x * slope - 1)
    return Ratio(favourable, favourable + against)


def of_units(sums: Ratio, x: Floats) -> Ratio:
    """The effective counts f and f + a.

    Args:
        sums: of `of_rows`, by unit.
        x: the parameter by unit.
    """
    f, a = sums.favourable, sums.decided - sums.favourable
    slope = f / x - a / (1 - x)
    favourable = np.where(f < 0, 0.0, np.where(a < 0, slope * x, f))
    against = np.where(a < 0, 0.0, np.where(f < 0, -slope * (1 - x), a))
    return Ratio(favourable, favourable + against)
