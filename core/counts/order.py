"""Feedback in a log: does a document stand higher after it was clicked, within what counts as one stratum?

A stratum j was shown at moments t = 1 .. T (what statistics keep apart), with n impressions and c clicks at positions
r, m = -log r. Held against a working examination 1 / r, which the test does not depend on (below),

    x_t = c_t - C_j p_t         surplus clicks, p_t the share of the examination that fell into t; they add up to 0
    M_t = sum (m - mean of m)   how much better than usual the document stood, over the impressions of t
    A_j = sum_{s < t} (x_s M_t - x_t M_s) / N_j

A_j is the signed area between clicks and positions: positive where clicks come first and better positions after. If
the ranker does not react, what happened at the moments of a stratum can change places, so that A_j has mean 0: whatever
theta is, whatever clicks are like, however good a document is. A wrong slope of theta adds a multiple of M to x, and
that adds M_s M_t - M_t M_s = 0.

If each surplus click moves the impressions after it by a in m, A_j has the mean a W_j, by the covariance C_j (p_s 1{s =
t} - p_s p_t) of x, and the estimate of theta, read as position ** -eta, is off by a sum C_j / 2 over sum C_j Var_p(m)
in eta (to first order; Nickell 1981), as the surplus that moved the document is not repeated where it stands then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers, sum_by_number
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD, POSITION, QUERY


@dataclass(frozen=True)
class OrderSums:
    """What strata say about feedback, summed over those of each query, all of shape (Q,).

    Attributes:
        area: A.
        weight: W, the mean of A where each surplus click moves what follows by 1.
        variance: of A, if clicks are Poisson.
        clicks: C of strata that were shown more than once.
        information: sum C Var_p(m), about the slope of theta.
    """

    area: Floats
    weight: Floats
    variance: Floats
    clicks: Floats
    information: Floats


def add_orders(parts: Sequence[OrderSums]) -> OrderSums:
    """The queries of all parts."""
    names = ("area", "weight", "variance", "clicks", "information")
    return OrderSums(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def order_of_strata(rows: pl.DataFrame, unit: Sequence[str]) -> OrderSums:
    """Sums of a part.

    Args:
        rows: statistics, sorted by unit, period and cell.
        unit: the columns that tell strata apart.
    """
    if rows.height:
        rows = rows.filter(_tells(rows, _runs(rows, unit)))
    if not rows.height:
        nothing = np.zeros(0)
        return OrderSums(nothing, nothing, nothing, nothing, nothing)
    stratum, moment = _runs(rows, unit), _runs(rows, [*unit, PERIOD])
    return _by_query(rows, stratum, moment)


def _tells(rows: pl.DataFrame, stratum: Integers) -> Flags:
    """Whether each row's stratum was clicked, and has more than one row with impressions, shape (R,)."""
    first = np.flatnonzero(np.diff(stratum, prepend=-1))
    shown, clicks = rows[IMPRESSIONS].to_numpy(), rows[CLICKS].to_numpy()
    clicked = np.add.reduceat(clicks, first) > 0
    again = np.add.reduceat(shown, first) > np.maximum.reduceat(shown, first)
    return (clicked & again)[stratum]


def _runs(rows: pl.DataFrame, columns: Sequence[str]) -> Integers:
    """The number of the run of equal values that each row lies in."""
    return rows.select(pl.struct(columns).rle_id()).to_series().to_numpy().astype(np.int64)


def _by_query(rows: pl.DataFrame, stratum: Integers, moment: Integers) -> OrderSums:
    n_strata = int(stratum[-1]) + 1
    shown, clicks = (rows[name].to_numpy().astype(np.float64) for name in (IMPRESSIONS, CLICKS))
    better = -np.log(rows[POSITION].to_numpy().astype(np.float64))

    def per_stratum(values: Floats) -> Floats:
        return sum_by_number(stratum, values, n_strata)

    n, total_clicks = per_stratum(shown), per_stratum(clicks)
    seen = shown * np.exp(better)
    share = seen / per_stratum(seen)[stratum]
    usual = per_stratum(shown * better) / n
    mean = per_stratum(share * better)
    spread = per_stratum(share * (better - mean[stratum]) ** 2)

    first = np.flatnonzero(np.diff(moment, prepend=-1))
    of = stratum[first]  # the stratum of each moment
    add = np.add.reduceat
    p, nu = add(share, first), add(shown, first) / n[of]
    x = add(clicks, first) - total_clicks[of] * p
    m = add(shown * (better - usual[stratum]), first)
    m_before = _before(m, of)
    f = -(2 * m_before + m) / n[of]  # all M of a stratum add up to 0: those after t are minus those up to t

    def over_moments(values: Floats) -> Floats:
        return sum_by_number(of, values, n_strata)

    area, variance = over_moments(x * f), over_moments(p * f**2) - over_moments(p * f) ** 2
    weight = total_clicks * _mean_area(p, nu, of, over_moments)
    query = _runs(rows, [QUERY])[np.flatnonzero(np.diff(stratum, prepend=-1))]
    n_queries = int(query[-1]) + 1
    sums = (area, weight, total_clicks * variance, total_clicks, total_clicks * spread)
    return OrderSums(*(sum_by_number(query, values, n_queries) for values in sums))


def _mean_area(p: Floats, nu: Floats, of: Integers, over_moments: Callable[[Floats], Floats]) -> Floats:
    """W / C of each stratum: sum_{s < t} over the covariances of x and of the M that follow from them."""
    p_before, nu_before = _before(p, of), _before(nu, of)
    nu_after = 1 - nu_before - nu
    q = over_moments(nu * p_before)[of]
    forwards = nu * (p_before * (1 - p_before + q) - _before(p * nu_after, of))
    backwards = p * (nu_before * (q - nu_after) - _before(nu * p_before, of))
    return over_moments(forwards - backwards)


def _before(values: Floats, of: Integers) -> Floats:
    """The sum of the earlier values of the same stratum."""
    running = np.cumsum(values) - values
    first = np.flatnonzero(np.diff(of, prepend=-1))
    return running - np.repeat(running[first], np.diff(np.append(first, len(of))))
