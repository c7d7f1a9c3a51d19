"""Whether documents move after they are clicked, by the order in which they were shown.

The impressions of a stratum, which shares one attractiveness, in the order of time: moments t with n_t impressions and
c_t clicks, n and C in all. With m = -log(position) and theta of the fit,

    p_t = sum over t of theta / sum over all of theta     the share of the C clicks to expect of moment t
    M_t = sum over t of (m - mean of m)                   how much better than usual the document stood
    f_t = (sum_{s > t} M_s - sum_{s < t} M_s) / n         how much better it stood afterwards than before
    A   = sum_t (c_t - C p_t) f_t

A is 0 on average unless positions follow clicks, above 0 where clicked documents stand better afterwards. If clicks are
Poisson, Var(A) = C (sum_t p_t f_t^2 - (sum_t p_t f_t)^2); W is the mean of A where every surplus click moves all that
follows by 1. Strata without a click, or with one position, say nothing.

The order of rows serves where no times are known: moments are then single impressions, in the order of the file. It is
a clock only if the file is in the order of time, at least document by document, which no file shows; that it is not
shows where pages are torn apart, or where all documents fall, or all rise. Documents may be clicked more or less
readily as time goes by, all of them, at the top or below: weekends, a share of robots, another page. So p_t is made of

    theta_k exp(rho_b + sigma_b m),      b = the sixteenth of the stratum's impressions that t is in

by the maximum of the likelihood of where the C clicks of each stratum are, given C, in all parameters together:

    score = sum (c - C p) x,     information = sum C (sum p x x' - (sum p x) (sum p x)')
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
"""Groups of queries by whose sums the order of rows is judged: few enough to be kept for each day."""

MOST_POSITIONS = 100
"""Positions that the order of rows is looked at."""

_SEED_OF_GROUPS = 11
_GROUP = "posbias_group"
_FIRST_ROWS = 1 << 17  # by which it is judged whether pages stand together
_TOGETHER = 0.95  # the least share of pages that do, where the order may be that of time
_LEAST_TURNS = 0.01  # of the moves of documents, those up and those down, where rows are not sorted by position, or so
_MOST_TIMES, _STRATA_OF_A_TIME = 16, 25  # parts of a stratum's time, and strata that it takes to tell two of them apart
_MOST_CELLS = 200  # whose theta is estimated with what changes over time
_STEPS, _PRECISION, _LONGEST, _RIDGE = 50, 1e-6, 0.5, 1e-9  # of the steps to the rates by time
_ROWS_AT_ONCE = 1 << 18  # of strata whose sums are made together: their arrays stay in a cache
_LEAST_VARIANCE = 1e-24  # of A, per click: where the order is the same at all times, rounding leaves less than 1e-30
_MOST = 0.9  # of the variance, that one group can have without making the others count for nothing


@dataclass(frozen=True)
class OrderSums:
    """Sums over strata: A and Var(A) of each query, or group of queries, of shape (G,), and totals."""

    area: Floats  # A
    variance: Floats  # Var(A)
    weight: float  # W
    clicks: float  # C
    information: float  # sum C Var_p(m), about the slope of theta


def add_orders(parts: Sequence[OrderSums]) -> OrderSums:
    """The queries of all parts."""
    area, variance = (np.concatenate([getattr(part, name) for part in parts]) for name in ("area", "variance"))
    weight, clicks, information = (
        float(sum(getattr(part, name) for part in parts)) for name in ("weight", "clicks", "information")
    )
    return OrderSums(area, variance, weight, clicks, information)


@dataclass(frozen=True)
class RowOrder:
    """What the order of rows says, summed by group of queries; the sums of days add up."""

    sums: OrderSums
    rises: int  # from one impression of a document to the next
    falls: int
    clicked: int  # impressions with a click after one without, of a document
    unclicked: int  # those without after one with a click
    pages: int = 0  # that were looked at; 0 where that would not show whether the order may be that of time
    pieces: int = 0  # stretches of neighbouring rows of one page that they make: as many where pages stand together

    def __add__(self, other: "RowOrder") -> "RowOrder":
        one, two = (vars(order.sums).values() for order in (self, other))
        sums = OrderSums(*(values + others for values, others in zip(one, two, strict=True)))
        numbers = zip(*(tuple(vars(order).values())[1:] for order in (self, other)), strict=True)
        return RowOrder(sums, *map(sum, numbers))

    @property
    def is_sorted(self) -> bool:
        """Whether rows are sorted by position or by click, document by document, so that they say nothing of time."""
        turns = (self.rises, self.falls), (self.clicked, self.unclicked)
        return any(min(turn) < _LEAST_TURNS * sum(turn) for turn in turns)

    @property
    def may_be_time(self) -> bool:
        """Whether rows may be in the order of time, as far as pages show."""
        return self.pages > _TOGETHER * self.pieces


def group_t_test(values: Floats, variance: Floats) -> tuple[float, float, float, float]:
    """Student's t of a sum over independent groups, its two-sided p-value, its standard error and degrees of freedom.

        sd^2 = (G - 1) / G sum_g (v_g / (1 - h_g))^2,    nu = min(1 / sum h_g^2, G - 1),    h_g = share of the variance

    Args:
        values: v, shape (G,).
        variance: of each if only chance is at work, shape (G,); groups without any are left out.

    Returns:
        Numbers that are NaN where fewer than two groups say something.
    """
    telling = np.flatnonzero(variance > 0)
    if len(telling) < 2:  # noqa: PLR2004 - one group has no error
        return np.nan, np.nan, np.nan, np.nan
    values, share = values[telling], variance[telling] / variance[telling].sum()
    left_out = values / (1 - np.minimum(share, _MOST))
    std_error = float(np.sqrt((len(telling) - 1) / len(telling) * (left_out**2).sum()))
    if not std_error > 0:
        return np.nan, np.nan, np.nan, np.nan
    degrees = float(max(min(1 / (share**2).sum(), len(telling) - 1), 1.0))
    t = float(values.sum()) / std_error
    p_value = min(2 * float(scipy.special.stdtr(degrees, -abs(t))), 1.0)
    return t, p_value, std_error, degrees


def order_of_strata(rows: pl.DataFrame, unit: Sequence[str]) -> OrderSums:
    """Sums of a part by query, with theta = 1 / position, whatever its fit: it weighs, and is not tested.

    Args:
        rows: statistics, sorted by unit and period.
        unit: the columns that tell strata apart.
    """
    if rows.height:
        stratum = run_numbers(rows, unit)
        first = first_of_runs(stratum)
        again = np.diff(first, append=rows.height) > 1
        rows = rows.filter((again & (np.add.reduceat(rows[CLICKS].to_numpy(), first) > 0))[stratum])
    if not rows.height:
        return OrderSums(np.zeros(0), np.zeros(0), 0.0, 0.0, 0.0)
    stratum, position = run_numbers(rows, unit), rows[POSITION].to_numpy()
    shown, clicks = (rows[name].to_numpy().astype(np.float64) for name in (IMPRESSIONS, CLICKS))
    sums = _sums_of_strata(stratum, run_numbers(rows, [*unit, PERIOD]), position, 1 / position, shown, clicks)
    query = run_numbers(rows, [QUERY])[first_of_runs(stratum)]
    area, variance, weight, of_clicks, information = (
        sum_by_number(query, values, int(query[-1]) + 1) for values in sums
    )
    return OrderSums(
        area, variance, float(weight[variance > 0].sum()), float(of_clicks.sum()), float(information.sum())
    )


def order_of_rows(parts: Sequence[pl.LazyFrame], plan: StatisticsPlan) -> RowOrder | None:
    """Sums of impressions in the order of their rows, or of their times where these are known to parts of an hour.

    Theta is estimated from the same impressions, so that whatever positions it gives, its own error does not count for
    a movement.

    Args:
        parts: canonical impressions, each query in one part.
        plan: what strata are made of; days of it are kept apart, as their rows may come in any order.

    Returns:
        None where no two positions can be compared.
    """
    if plan.weighted or plan.summed or not parts:
        return None
    unit = plan.stratum_columns("day" if plan.period == "day" else "none")
    at, click = pl.col(POSITION), pl.col(CLICK)
    lowest = min(plan.max_position or MOST_POSITIONS, MOST_POSITIONS)
    group = (pl.col(QUERY).hash(_SEED_OF_GROUPS) % N_GROUPS).cast(pl.Int64, wrap_numerical=True).alias(_GROUP)
    of_parts = list[pl.DataFrame]()
    for part in parts:  # strata that were clicked and changed places, with these in the order of time
        rows = part if plan.period in {None, "day"} else part.sort(PERIOD, maintain_order=True)
        by_stratum = rows.filter(at <= lowest).group_by(*unit, maintain_order=True)  # the same sums to the last bit
        listed = by_stratum.agg(at, click, tells=(at.min() < at.max()) & (click.max() > 0)).filter("tells")
        of_parts.append(listed.select(group, *plan.context, POSITION, CLICK).collect())
    strata = pl.concat(of_parts)
    context = strata.select(pl.struct(plan.context).rank("dense")).to_series().to_numpy() if plan.context else 0
    start = starts(strata[POSITION].list.len().to_numpy())
    stratum = np.repeat(np.arange(strata.height), np.diff(start))
    position, clicks = (strata[name].explode(empty_as_null=False).to_numpy() for name in (POSITION, CLICK))
    place = np.broadcast_to(context, strata.height)[stratum].astype(np.int64) * (MOST_POSITIONS + 1) + position
    theta = _theta_of_rows(stratum, place, clicks)
    if theta is None:  # also where there is no stratum
        return None
    kept = np.flatnonzero(np.isfinite(theta))
    stratum, position, clicks, theta = stratum[kept], position[kept], clicks[kept].astype(np.float64), theta[kept]
    start = np.searchsorted(stratum, np.arange(strata.height + 1))
    cell = np.searchsorted(np.flatnonzero(np.bincount(place[kept])), place[kept])
    theta *= _rates_of_rows(stratum, start, cell, position, theta, clicks)
    blocks = np.unique([*np.searchsorted(start, np.arange(0, len(stratum), _ROWS_AT_ONCE)), strata.height])
    group = strata[_GROUP].to_numpy()
    runs = (slice(*ends) for ends in pairwise(start[blocks].tolist()))
    of_runs = (_order_in_groups(stratum[run], position[run], theta[run], clicks[run], group) for run in runs)
    order = reduce(add, of_runs)
    if SESSION not in parts[0].collect_schema():
        return order
    session = parts[0].select(SESSION).head(_FIRST_ROWS).collect().to_series()
    return replace(order, pages=session.n_unique(), pieces=session.rle_id().n_unique())


def _theta_of_rows(stratum: Integers, place: Integers, clicks: Integers) -> Floats | None:
    """Theta of each row by the conditional estimate, NaN where it cannot be compared; None where none can."""
    places = np.flatnonzero(np.bincount(place))
    cell = np.searchsorted(places, place)
    counts = count_equal(2 * (stratum * len(places) + cell) + clicks)
    unit, of_unit = np.divmod(counts[NUMBER].to_numpy() >> 1, len(places))
    n, c = (counts[name].to_numpy().astype(np.float64) for name in (IMPRESSIONS, CLICKS))
    n_units = int(stratum.max(initial=-1)) + 1
    table = CountTable(len(places), starts(np.bincount(unit, minlength=n_units)), of_unit, n, c, np.ones(n_units))
    signatures, _ = compress(table)
    try:
        linkage = find_linkage(signatures, places // (MOST_POSITIONS + 1))
        return fit_conditional(signatures, linkage).theta[cell]
    except (IdentifiabilityError, np.linalg.LinAlgError):
        return None


def _rates_of_rows(
    stratum: Integers, start: Integers, cell: Integers, position: Integers, theta: Floats, clicks: Floats
) -> Floats:
    """exp(rho + sigma m) of each row, and what that changes of theta, where there are strata enough to tell.

    Args:
        stratum: of each row, ascending, shape (R,).
        start: its first row, and R, shape (J + 1,).
        cell: of each row.
        position: of each row.
        theta: of each row, without regard to time.
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
    """The sums of some strata, by the group of each."""
    first = first_of_runs(stratum)
    if len(first):  # only strata that were clicked, and shown at different positions, say something
        clicked = np.maximum.reduceat(clicks, first) > 0
        tells = clicked & (np.maximum.reduceat(position, first) > np.minimum.reduceat(position, first))
        telling = np.repeat(tells, np.diff(first, append=len(stratum)))
        stratum, position, theta, clicks = stratum[telling], position[telling], theta[telling], clicks[telling]
        first = first_of_runs(stratum)
    numbers = np.repeat(np.arange(len(first)), np.diff(first, append=len(stratum)))
    area, variance, *totals = _sums_of_strata(numbers, None, position, theta, np.ones(len(stratum)), clicks)
    of, within = group[stratum[first]], np.diff(numbers) == 0
    move, click = np.diff(position)[within], np.diff(clicks)[within]
    weight, total_clicks, information = (float(values.sum()) for values in totals)
    in_groups, spread = (sum_by_number(of, values, N_GROUPS) for values in (area, variance))
    sums = OrderSums(in_groups, spread, weight, total_clicks, information)
    return RowOrder(sums, *(int(turns.sum()) for turns in (move < 0, move > 0, click > 0, click < 0)))


def _sums_of_strata(
    stratum: Integers, moment: Integers | None, position: Integers, theta: Floats, shown: Floats, clicks: Floats
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """A, Var(A), W, C and C Var_p(m) of each stratum, each of shape (J,).

    Args:
        stratum: the number of each row's stratum, ascending from 0, shape (R,).
        moment: that of its moment, ascending; None where each row is one.
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
    if moment is not None:
        first = first_of_runs(moment)
        of = stratum[first]
        p, nu, m, c = (np.add.reduceat(values, first) if len(first) else values for values in (p, nu, m, c))
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
    )


def _before(values: Floats, of: Integers) -> Floats:
    """The sum of the earlier values of the same stratum."""
    running = np.cumsum(values) - values
    first = first_of_runs(of)
    return running - np.repeat(running[first], np.diff(np.append(first, len(of))))
