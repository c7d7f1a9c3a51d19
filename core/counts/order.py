"""Feedback and randomisation in a log: whether documents rise after clicks, and whether they were placed at random."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers, sum_by_number
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, RANDOMIZED

_SUMS = ("documents", "excess", "excess_squared", "lowest_variance", "highest_variance", "together", "pairs")


@dataclass(frozen=True)
class Placements:
    """The sums over the queries of a log, or of a part of it that holds whole queries: those of parts add up."""

    # One row per experiment (`randomized`, its number from 1): `queries` and `documents` that were shown there more
    # than once; `excess`, the sum of w_d; `excess_squared`, that of the squares of the queries' sums;
    # `lowest_variance` and `highest_variance` of `excess`; `together`, the sum of z z' over the `pairs` of rows of one
    # document
    sums: pl.DataFrame
    shown: pl.DataFrame  # `randomized` and `position`, once each

    def __add__(self, other: "Placements") -> "Placements":
        sums = pl.concat([self.sums, other.sums]).group_by(RANDOMIZED, maintain_order=True).sum().sort(RANDOMIZED)
        return Placements(sums, pl.concat([self.shown, other.shown]).unique().sort(RANDOMIZED, POSITION))


def sum_placements(statistics: pl.DataFrame, plan: StatisticsPlan) -> Placements:
    """The sums over whole queries.

    Args:
        statistics: the plan's keys and `impressions`, which are whole numbers.
        plan: what was counted; some rows are randomised.
    """
    rows = statistics.filter(pl.col(RANDOMIZED) > 0)
    within = [QUERY, *plan.context, RANDOMIZED]
    impressions = pl.col(IMPRESSIONS).cast(pl.Float64)
    at_position = rows.group_by(*within, DOC, POSITION, maintain_order=True).agg(impressions.sum().alias("n"))
    scored = at_position.join(
        _scores(at_position, within), on=[*within, POSITION], nulls_equal=True, maintain_order="left"
    )
    of_document = (
        scored.group_by(*within, DOC, maintain_order=True)
        .agg(
            n=pl.col("n").sum(),
            score=(pl.col("n") * pl.col("z")).sum(),
            squares=(pl.col("n") * pl.col("z") ** 2).sum(),
            positions=pl.col("positions").first(),
        )
        .filter(pl.col("n") > 1)
    )
    together = pl.col("score") ** 2 - pl.col("squares")
    variance = 2 * (pl.col("n") - 1) / pl.col("n")
    of_query = of_document.group_by(*within, maintain_order=True).agg(
        documents=pl.len().cast(pl.Int64),
        excess=(together / pl.col("n")).sum(),
        lowest_variance=variance.sum(),
        highest_variance=(variance * pl.col("positions") / (pl.col("positions") - 1)).sum(),
        together=together.sum(),
        pairs=(pl.col("n") * (pl.col("n") - 1)).sum(),
    )
    sums = of_query.with_columns(excess_squared=pl.col("excess") ** 2).group_by(RANDOMIZED, maintain_order=True)
    return Placements(
        sums.agg(pl.len().cast(pl.Int64).alias("queries"), pl.col(_SUMS).sum()).sort(RANDOMIZED),
        rows.select(RANDOMIZED, POSITION).unique().sort(RANDOMIZED, POSITION),
    )


def _scores(at_position: pl.DataFrame, within: list[str]) -> pl.DataFrame:
    """The score z of each position of a query and experiment, and how many `positions` there are, if several."""
    n, position = pl.col("n"), pl.col(POSITION).cast(pl.Float64)
    shown = at_position.group_by(*within, POSITION, maintain_order=True).agg(n.sum())
    mean = (n * position).sum().over(within) / n.sum().over(within)
    centered = shown.with_columns(away=position - mean, positions=pl.len().over(within)).filter(pl.col("positions") > 1)
    away = pl.col("away")
    spread = ((n * away**2).sum().over(within) / n.sum().over(within)).sqrt()
    return centered.select(*within, POSITION, "positions", z=away / spread)


@dataclass(frozen=True)
class OrderSums:
    """What strata say about feedback, summed over those of each query, all of shape (Q,)."""

    area: Floats  # A
    weight: Floats  # W, the mean of A where each surplus click moves what follows by 1
    variance: Floats  # of A, if clicks are Poisson
    clicks: Floats  # C of strata that were shown more than once
    information: Floats  # sum C Var_p(m), about the slope of theta


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
        rows = rows.filter(_tells(rows, runs_of(rows, unit)))
    if not rows.height:
        nothing = np.zeros(0)
        return OrderSums(nothing, nothing, nothing, nothing, nothing)
    stratum, moment = runs_of(rows, unit), runs_of(rows, [*unit, PERIOD])
    return _by_query(rows, stratum, moment)


def _tells(rows: pl.DataFrame, stratum: Integers) -> Flags:
    """Whether each row's stratum was clicked, and has more than one row with impressions, shape (R,)."""
    first = np.flatnonzero(np.diff(stratum, prepend=-1))
    shown, clicks = rows[IMPRESSIONS].to_numpy(), rows[CLICKS].to_numpy()
    clicked = np.add.reduceat(clicks, first) > 0
    again = np.add.reduceat(shown, first) > np.maximum.reduceat(shown, first)
    return (clicked & again)[stratum]


def runs_of(rows: pl.DataFrame, columns: Sequence[str]) -> Integers:
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
    query = runs_of(rows, [QUERY])[np.flatnonzero(np.diff(stratum, prepend=-1))]
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
