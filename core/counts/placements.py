"""How often documents stand where among randomised rows: the sums that say whether they were placed at random.

Within a query q and an experiment g, positions are scored z_e, with mean 0 and variance 1 over the rows of (q, g). A
document d that was shown n_d >= 2 times there adds

    w_d = sum over pairs of its rows of 2 z z' / n_d = ((sum_e n_de z_e)^2 - sum_e n_de z_e^2) / n_d

Pages are shuffled independently, so that E[w_d] = 0 whatever the documents and however often each was shown, and

    Var[w_d] = 2 (n_d - 1) / n_d

Two documents of the same pages get in each other's way. With L positions that raises the variance of the sum over the
documents of a query by a factor of at most L / (L - 1), which it reaches where they always stand on the same pages.
"""

from dataclasses import dataclass

import polars as pl

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.schema import DOC, IMPRESSIONS, POSITION, QUERY, RANDOMIZED

_SUMS = ("documents", "excess", "excess_squared", "lowest_variance", "highest_variance", "together", "pairs")


@dataclass(frozen=True)
class Placements:
    """The sums over the queries of a log, or of a part of it that holds whole queries: those of parts add up.

    Attributes:
        sums: one row per experiment (`randomized`, its number from 1): `queries` and `documents` that were shown there
            more than once; `excess`, the sum of w_d; `excess_squared`, that of the squares of the queries' sums;
            `lowest_variance` and `highest_variance` of `excess`; `together`, the sum of z z' over the `pairs` of rows
            of one document.
        shown: `randomized` and `position`, once each.
    """

    sums: pl.DataFrame
    shown: pl.DataFrame

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
