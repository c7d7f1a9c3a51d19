"""Test for feedback: whether documents move up after they are clicked, from the order of impressions in time.

Take the impressions of a stratum in the order of time: moments t with n_t impressions and c_t clicks, n and C in total.
With m = -log(position) and the fitted theta,

    p_t = sum over t of theta / sum over all of theta     expected share of moment t in the C clicks
    M_t = sum over t of (m - mean of m)                   height of the document above its mean
    f_t = (sum_{s > t} M_s - sum_{s < t} M_s) / n         its height afterwards minus its height before
    A   = sum_t (c_t - C p_t) f_t

E(A) = 0 unless positions depend on earlier clicks; A > 0 if clicked documents stand higher afterwards. For Poisson
clicks, Var(A) = C (sum_t p_t f_t^2 - (sum_t p_t f_t)^2). W is E(A) if each click above expectation raises m by 1 in all
later moments. Strata without a click, or with a single position, carry no information.

Without times, the order of rows is used: each impression is a moment, in the order of the file. This is valid only if
the file is in the order of time, at least for each document, which a file cannot prove; it is refuted if pages are
torn apart, or if nearly all documents fall or nearly all rise. As the click rate of all documents, at the top or below,
may change over time (weekends, robots, a new page), p_t is then computed from

    theta_k exp(rho_b + sigma_b m),      b = the sixteenth of the stratum's impressions that t belongs to

estimated by maximum likelihood of the position of the C clicks of each stratum, given C, in all parameters together:

    score = sum (c - C p) x,     information = sum C (sum p x x' - (sum p x) (sum p x)')
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays import linalg
from posbias.core.arrays.count_table import CountTable, Floats, Integers, compress, first_of_runs, starts, sum_by_number
from posbias.core.arrays.packing import NUMBER
from posbias.core.counts.counting_plan import StatisticsPlan, count_equal, run_numbers
from posbias.core.errors import IdentifiabilityError
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, PERIOD, POSITION, QUERY, SESSION
from posbias.core.theta.conditional import find_linkage, fit_conditional

N_GROUPS = 64
"""Number of groups of queries by which the order of rows is tested: few enough to store for each day."""

MOST_POSITIONS = 100
"""Positions 1 .. 100 enter the test of the order of rows."""

_SEED_OF_GROUPS = 11
_GROUP = "posbias_group"
_FIRST_ROWS = 1 << 17  # rows that are checked for pages being contiguous
_TOGETHER = 0.95  # least share of contiguous pages for rows that may be in the order of time
_LEAST_TURNS = 0.01  # least share of moves up, and of moves down, for rows that are not sorted by position or click
_MOST_TIMES, _STRATA_OF_A_TIME = 16, 25  # number of time bins b at most, and strata needed for each
_MOST_CELLS = 200  # most cells for which rates by time are estimated
_STEPS, _PRECISION, _LONGEST, _RIDGE = 50, 1e-6, 0.5, 1e-9  # of Newton's method for the rates by time
_ROWS_AT_ONCE = 1 << 18  # rows whose sums are computed together: their arrays stay in a cache
_LEAST_VARIANCE = 1e-24  # of A, per click: constant positions leave less than 1e-30 by rounding
_MOST = 0.9  # largest share of the variance that a group counts with, so that 1 / (1 - h) stays bounded


@dataclass(frozen=True)
class OrderSums:
    """Sums over strata: A and Var(A) of each query or group of queries, shape (G,), and totals of the others."""

    area: Floats  # A
    variance: Floats  # Var(A)
    weight: float  # W
    clicks: float  # C
    information: float  # sum C Var_p(m), the information about the slope of log theta by m
    # C Cov_p(t, m) of each query, t the share of earlier impressions of the stratum; empty for the order of rows
    drift: Floats = field(default_factory=lambda: np.zeros(0))


def add_orders(parts: Sequence[OrderSums]) -> OrderSums:
    """Concatenate the queries of all parts, and add their totals."""
    area, variance, drift = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("area", "variance", "drift")
    )
    weight, clicks, information = (
        float(sum(getattr(part, name) for part in parts)) for name in ("weight", "clicks", "information")
    )
    return OrderSums(area, variance, weight, clicks, information, drift)


@dataclass(frozen=True)
class RowOrder:
    """Sums of the test from the order of rows, by group of queries; the sums of days add up."""

    sums: OrderSums
    rises: int  # moves up from one impression of a document to the next
    falls: int  # moves down
    clicked: int  # impressions of a document with a click that follow one without
    unclicked: int  # impressions without a click that follow one with a click
    pages: int = 0  # number of distinct pages among the first rows; 0 without sessions
    pieces: int = 0  # number of runs of rows of one page among them; equal to `pages` if pages are contiguous

    def __add__(self, other: "RowOrder") -> "RowOrder":
        one, two = (vars(order.sums).values() for order in (self, other))
        sums = OrderSums(*(values + others for values, others in zip(one, two, strict=True)))
        numbers = zip(*(tuple(vars(order).values())[1:] for order in (self, other)), strict=True)
        return RowOrder(sums, *map(sum, numbers))

    @property
    def is_sorted(self) -> bool:
        """Whether the rows of documents are sorted by position or click, so that their order is not that of time."""
        turns = (self.rises, self.falls), (self.clicked, self.unclicked)
        return any(min(turn) < _LEAST_TURNS * sum(turn) for turn in turns)

    @property
    def may_be_time(self) -> bool:
        """Whether (nearly) all pages are contiguous, as they are in the order of time."""
        return self.pages > _TOGETHER * self.pieces


def group_t_test(values: Floats, variance: Floats) -> tuple[float, float, float, float]:
    """Test a sum over independent groups by Student's t.

        sd^2 = (G - 1) / G sum_g (v_g / (1 - h_g))^2,    nu = min(1 / sum h_g^2, G - 1),    h_g = share of the variance

    Args:
        values: v, shape (G,).
        variance: variance of each v under the null hypothesis, shape (G,); groups of variance 0 are dropped.

    Returns:
        t, the two-sided p-value, the standard error and the degrees of freedom; NaN with fewer than two groups.
    """
    informative = np.flatnonzero(variance > 0)
    if len(informative) < 2:  # noqa: PLR2004 - one group has no error
        return np.nan, np.nan, np.nan, np.nan
    values, share = values[informative], variance[informative] / variance[informative].sum()
    leave_one_out = values / (1 - np.minimum(share, _MOST))
    std_error = float(np.sqrt((len(informative) - 1) / len(informative) * (leave_one_out**2).sum()))
    if not std_error > 0:
        return np.nan, np.nan, np.nan, np.nan
    degrees = float(max(min(1 / (share**2).sum(), len(informative) - 1), 1.0))
    t = float(values.sum()) / std_error
    p_value = min(2 * float(scipy.special.stdtr(degrees, -abs(t))), 1.0)
    return t, p_value, std_error, degrees


def order_of_strata(rows: pl.DataFrame, unit: Sequence[str]) -> OrderSums:
    """Compute the sums of a part by query, with theta = 1 / position.

    Theta serves only as a weight here, so that a rough value does.

    Args:
        rows: statistics, sorted by unit and period.
        unit: key columns of a stratum.
    """
    if rows.height:
        stratum = run_numbers(rows, unit)
        first = first_of_runs(stratum)
        several_rows = np.diff(first, append=rows.height) > 1
        rows = rows.filter((several_rows & (np.add.reduceat(rows[CLICKS].to_numpy(), first) > 0))[stratum])
    if not rows.height:
        return OrderSums(np.zeros(0), np.zeros(0), 0.0, 0.0, 0.0)
    stratum, position = run_numbers(rows, unit), rows[POSITION].to_numpy()
    shown, clicks = (rows[name].to_numpy().astype(np.float64) for name in (IMPRESSIONS, CLICKS))
    sums = _sums_of_strata(stratum, run_numbers(rows, [*unit, PERIOD]), position, 1 / position, shown, clicks)
    query = run_numbers(rows, [QUERY])[first_of_runs(stratum)]
    area, variance, weight, n_clicks, information, drift = (
        sum_by_number(query, values, int(query[-1]) + 1) for values in sums
    )
    moved = float(weight[variance > 0].sum())
    return OrderSums(area, variance, moved, float(n_clicks.sum()), float(information.sum()), drift)


def order_of_rows(parts: Sequence[pl.LazyFrame], plan: StatisticsPlan) -> RowOrder | None:
    """Compute the sums from impressions in the order of their rows, or of their times if `plan` has hours or quarters.

    Theta is estimated from the same impressions, so that its error is not taken for movement.

    Args:
        parts: canonical impressions, each query in one part.
        plan: defines the strata; those of different days are separate, as days may come in any order.

    Returns:
        None if no two positions can be compared, or if rows are weighted or are sums.
    """
    if plan.weighted or plan.summed or not parts:
        return None
    unit = plan.stratum_columns("day" if plan.period == "day" else "none")
    at, click = pl.col(POSITION), pl.col(CLICK)
    lowest = min(plan.max_position or MOST_POSITIONS, MOST_POSITIONS)
    group = (pl.col(QUERY).hash(_SEED_OF_GROUPS) % N_GROUPS).cast(pl.Int64, wrap_numerical=True).alias(_GROUP)
    strata_of_parts = list[pl.DataFrame]()
    for part in parts:  # strata with a click and several positions, with their rows as lists in the order of time
        rows = part if plan.period in {None, "day"} else part.sort(PERIOD, maintain_order=True)
        by_stratum = rows.filter(at <= lowest).group_by(*unit, maintain_order=True)  # the same sums to the last bit
        moved = (at.min() < at.max()) & (click.max() > 0)
        informative = by_stratum.agg(at, click, moved=moved).filter("moved")
        strata_of_parts.append(informative.select(group, *plan.context, POSITION, CLICK).collect())
    strata = pl.concat(strata_of_parts)
    context = strata.select(pl.struct(plan.context).rank("dense")).to_series().to_numpy() if plan.context else 0
    start = starts(strata[POSITION].list.len().to_numpy())
    stratum = np.repeat(np.arange(strata.height), np.diff(start))
    position, clicks = (strata[name].explode(empty_as_null=False).to_numpy() for name in (POSITION, CLICK))
    place = np.broadcast_to(context, strata.height)[stratum].astype(np.int64) * (MOST_POSITIONS + 1) + position
    theta = _theta_of_rows(stratum, place, clicks)
    if theta is None:  # also if there is no stratum
        return None
    known = np.flatnonzero(np.isfinite(theta))
    stratum, position, clicks, theta = stratum[known], position[known], clicks[known].astype(np.float64), theta[known]
    start = np.searchsorted(stratum, np.arange(strata.height + 1))
    cell = np.searchsorted(np.flatnonzero(np.bincount(place[known])), place[known])
    theta *= _rates_of_rows(stratum, start, cell, position, theta, clicks)
    blocks = np.unique([*np.searchsorted(start, np.arange(0, len(stratum), _ROWS_AT_ONCE)), strata.height])
    group = strata[_GROUP].to_numpy()
    runs = (slice(*ends) for ends in pairwise(start[blocks].tolist()))
    orders = (_order_in_groups(stratum[run], position[run], theta[run], clicks[run], group) for run in runs)
    order = reduce(add, orders)
    if SESSION not in parts[0].collect_schema():
        return order
    session = parts[0].select(SESSION).head(_FIRST_ROWS).collect().to_series()
    return replace(order, pages=session.n_unique(), pieces=session.rle_id().n_unique())


def _theta_of_rows(stratum: Integers, place: Integers, clicks: Integers) -> Floats | None:
    """Return the conditional estimate of theta for each row, NaN where not identified; None if nowhere identified."""
    places = np.flatnonzero(np.bincount(place))
    cell = np.searchsorted(places, place)
    counts = count_equal(2 * (stratum * len(places) + cell) + clicks)
    unit, cell_of_entry = np.divmod(counts[NUMBER].to_numpy() >> 1, len(places))
    n, c = (counts[name].to_numpy().astype(np.float64) for name in (IMPRESSIONS, CLICKS))
    n_units = int(stratum.max(initial=-1)) + 1
    start = starts(np.bincount(unit, minlength=n_units))
    table = CountTable(len(places), start, cell_of_entry, n, c, np.ones(n_units))
    signatures, _ = compress(table)
    try:
        linkage = find_linkage(signatures, places // (MOST_POSITIONS + 1))
        return fit_conditional(signatures, linkage).theta[cell]
    except (IdentifiabilityError, np.linalg.LinAlgError):
        return None


def _rates_of_rows(
    stratum: Integers, start: Integers, cell: Integers, position: Integers, theta: Floats, clicks: Floats
) -> Floats:
    """Return exp(rho_b + sigma_b m) of each row, times the resulting change of theta; 1 with too few strata.

    Args:
        stratum: stratum number of each row, ascending, shape (R,).
        start: first row of each stratum, and R, shape (J + 1,).
        cell: cell of each row.
        position: of each row.
        theta: of each row, estimated without rates by time.
        clicks: of each row.
    """
    length, n_cells = np.diff(start), int(cell.max(initial=-1)) + 1
    n_times = min(_MOST_TIMES, int((length > 0).sum()) // _STRATA_OF_A_TIME)
    if n_times < 2 or n_cells > _MOST_CELLS:  # noqa: PLR2004 - nothing to tell apart
        return np.ones(len(stratum))
    time = (np.arange(len(stratum)) - start[stratum]) * n_times // length[stratum]
    both, shape = cell * n_times + time, (n_cells, n_times)
    total = sum_by_number(stratum, clicks, len(length))
    m = np.zeros(n_cells)
    m[cell] = -np.log(position)
    log_rate = np.zeros(shape)

    def expected() -> Floats:
        seen = theta * np.exp(log_rate).ravel()[both]
        return seen * (total / np.maximum(sum_by_number(stratum, seen, len(length)), _LEAST_VARIANCE))[stratum]

    clicks_expected = expected()
    mean = clicks_expected / np.sqrt(np.maximum(total, 1.0))[stratum]
    columns = np.concatenate([cell, n_cells + time, n_cells + n_times + time])
    values = np.concatenate([mean, mean, mean * m[cell]])
    means = linalg.occurrences(np.tile(stratum, 3), columns, (len(length), n_cells + 2 * n_times), values)
    of_both = sum_by_number(both, clicks_expected, n_cells * n_times).reshape(shape)
    rate, slope = np.arange(n_times) + n_cells, np.arange(n_times) + n_cells + n_times
    squares = np.diag(np.concatenate([of_both.sum(axis=1), of_both.sum(axis=0), m**2 @ of_both]))
    squares[:n_cells, rate], squares[:n_cells, slope] = of_both, m[:, np.newaxis] * of_both
    squares[rate, slope] = m @ of_both
    information = np.triu(squares) + np.triu(squares, 1).T - linalg.gram(means)
    inverse = linalg.pseudo_inverse(information + _RIDGE * np.diag(np.diag(information)))  # also where nothing moves
    for _ in range(_STEPS):  # the information changes little
        surplus = sum_by_number(both, clicks - clicks_expected, n_cells * n_times).reshape(shape)
        score = np.concatenate([surplus.sum(axis=1), surplus.sum(axis=0), m @ surplus])
        step = np.clip(inverse @ score, -_LONGEST, _LONGEST)
        of_cells, of_rate, of_slope = np.split(step, [n_cells, n_cells + n_times])
        log_rate += of_cells[:, np.newaxis] + of_rate + m[:, np.newaxis] * of_slope
        if np.abs(step).max() < _PRECISION:
            break
        clicks_expected = expected()
    return np.exp(log_rate).ravel()[both]


def _order_in_groups(stratum: Integers, position: Integers, theta: Floats, clicks: Floats, group: Integers) -> RowOrder:
    """Compute the sums of some strata by their groups of queries."""
    first = first_of_runs(stratum)
    if len(first):  # strata with a click and several positions
        clicked = np.maximum.reduceat(clicks, first) > 0
        moved = np.maximum.reduceat(position, first) > np.minimum.reduceat(position, first)
        rows = np.repeat(clicked & moved, np.diff(first, append=len(stratum)))
        stratum, position, theta, clicks = stratum[rows], position[rows], theta[rows], clicks[rows]
        first = first_of_runs(stratum)
    numbers = np.repeat(np.arange(len(first)), np.diff(first, append=len(stratum)))
    area, variance, *totals = _sums_of_strata(numbers, None, position, theta, np.ones(len(stratum)), clicks)
    of, within = group[stratum[first]], np.diff(numbers) == 0
    move, click = np.diff(position)[within], np.diff(clicks)[within]
    weight, total_clicks, information, _ = (float(values.sum()) for values in totals)
    in_groups, spread = (sum_by_number(of, values, N_GROUPS) for values in (area, variance))
    sums = OrderSums(in_groups, spread, weight, total_clicks, information)
    return RowOrder(sums, *(int(turns.sum()) for turns in (move < 0, move > 0, click > 0, click < 0)))


def _sums_of_strata(
    stratum: Integers, moment: Integers | None, position: Integers, theta: Floats, shown: Floats, clicks: Floats
) -> tuple[Floats, ...]:
    """Return A, Var(A), W, C, C Var_p(m) and C Cov_p(t, m) of each stratum, each of shape (J,).

    Args:
        stratum: stratum number of each row, ascending from 0, shape (R,).
        moment: moment number of each row, ascending; None if each row is a moment.
        position: of each row.
        theta: of each row, up to a factor.
        shown: impressions of each row.
        clicks: of each row.
    """
    n_strata = int(stratum.max(initial=-1)) + 1

    def per_stratum(values: Floats) -> Floats:
        return sum_by_number(stratum, values, n_strata)

    better = -np.log(position.astype(np.float64))
    n, total_clicks = per_stratum(shown), per_stratum(clicks)
    seen = shown * theta
    share = seen / per_stratum(seen)[stratum]
    mean = per_stratum(share * better)
    spread = per_stratum(share * (better - mean[stratum]) ** 2)
    moved = shown * (better - (per_stratum(shown * better) / n)[stratum])

    of, p, nu, m, c = stratum, share, shown / n[stratum], moved, clicks
    height = share * (better - mean[stratum])
    if moment is not None:
        first = first_of_runs(moment)
        of = stratum[first]
        p, nu, m, c, height = (
            np.add.reduceat(values, first) if len(first) else values for values in (p, nu, m, c, height)
        )
    f = -(2 * _before(m, of) + m) / n[of]  # all M of a stratum add up to 0: those after t are minus those up to t

    def over_moments(values: Floats) -> Floats:
        return sum_by_number(of, values, n_strata)

    variance = over_moments(p * (f - over_moments(p * f)[of]) ** 2)
    variance[variance < _LEAST_VARIANCE] = 0.0
    # W / C is sum_{s < t} over the covariances of x and of the M that follow from them.
    p_before, nu_before = _before(p, of), _before(nu, of)
    nu_after = 1 - nu_before - nu
    q = over_moments(nu * p_before)[of]
    forwards = nu * (p_before * (1 - p_before + q) - _before(p * nu_after, of))
    backwards = p * (nu_before * (q - nu_after) - _before(nu * p_before, of))
    return (
        over_moments((c - total_clicks[of] * p) * f),
        total_clicks * variance,
        total_clicks * over_moments(forwards - backwards),
        total_clicks,
        total_clicks * spread,
        total_clicks * over_moments(height * (nu_before + nu / 2)),
    )


def _before(values: Floats, of: Integers) -> Floats:
    """Return the sum of the earlier values of the same stratum, for each value."""
    running = np.cumsum(values) - values
    first = first_of_runs(of)
    return running - np.repeat(running[first], np.diff(np.append(first, len(of))))
