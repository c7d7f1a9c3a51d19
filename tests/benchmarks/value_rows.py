"""Training rows from a log and propensities, layout by layout, as the definitions have them.

    weight of a click: w = 1 / max(theta_k, 0.01)

Every layout starts from counts or from pages. What the layouts are is said at each function; what they are for, in
`posbias weight --help`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.attractiveness_prior import estimate_prior, posterior_by_position
from posbias.core.signatures import CountTable, sum_by_number

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Layout = Literal["pointwise", "clicked-group", "session", "pairs", "judgments"]
Losers = Literal["shown", "unclicked"]
Rate = Literal["ips", "coec", "posterior"]
Cut = Literal["steps", "quantiles", "query"]

MIN_PROPENSITY = 0.01
GRADES = 5
HIGH_RATE = 0.99
"""The share of the pairs whose rate lies below the highest grade's full height."""


@dataclass(frozen=True)
class TrainingRows:
    """What a learner is given.

    Attributes:
        rows: `group` (ascending), `doc`, `label`, `weight`, and `position` in the session layout.
        preferences: of pairs: `winner` and `loser` (row numbers) and `weight`; None in other layouts.
    """

    rows: pl.DataFrame
    preferences: pl.DataFrame | None = None


def training_rows(log: pl.DataFrame, propensity: Floats, layout: Layout) -> TrainingRows:
    """Weight a log.

    Args:
        log: `session`, `query`, `doc`, `position`, `click`, by session and position.
        propensity: theta relative to position 1, by position, shape (K,).
        layout: what the rows are.
    """
    match layout:
        case "pointwise":
            return TrainingRows(pointwise(log, propensity))
        case "session":
            return TrainingRows(session(log, propensity))
        case "clicked-group":
            return TrainingRows(clicked_groups(log, propensity))
        case "pairs":
            return preferences(log, propensity)
        case "judgments":
            return TrainingRows(judgments(log, propensity))


def click_weight(propensity: Floats) -> pl.Expr:
    """The weight of a click at a row's position."""
    weight = pl.Series(1 / np.maximum(propensity, MIN_PROPENSITY))
    return pl.lit(weight).gather(pl.col("position") - 1)


def pointwise(log: pl.DataFrame, propensity: Floats) -> pl.DataFrame:
    """Two rows per (query, document): label 1, W+ = sum of w; label 0, W- = max(impressions - W+, 0)."""
    pairs = log.group_by("query", "doc").agg(
        pl.len().alias("shown"), (pl.col("click") * click_weight(propensity)).sum().alias("clicked")
    )
    halves = [
        pairs.select("query", "doc", pl.lit(1).alias("label"), pl.col("clicked").alias("weight")),
        pairs.select(
            "query", "doc", pl.lit(0).alias("label"), (pl.col("shown") - pl.col("clicked")).clip(0).alias("weight")
        ),
    ]
    return pl.concat(halves).rename({"query": "group"}).sort("group", "doc", "label")


def session(log: pl.DataFrame, propensity: Floats) -> pl.DataFrame:
    """The impressions as shown: label is the click; its weight w, 1 where there is none."""
    weight = pl.when(pl.col("click") == 1).then(click_weight(propensity)).otherwise(1.0)
    return log.select(
        pl.col("session").alias("group"), "doc", "position", pl.col("click").alias("label"), weight.alias("weight")
    )


def _clicked_candidates(log: pl.DataFrame, propensity: Floats, losers: Losers) -> pl.DataFrame:
    """`query`, `winner` (a clicked document), `losers` (sorted), `weight`: equal ones merged."""
    beside = pl.col("doc") if losers == "shown" else pl.col("doc").filter(pl.col("click") == 0)
    shown = log.group_by("session").agg(beside.sort().alias("losers"))
    clicks = log.filter(pl.col("click") == 1).select(
        "session", "query", pl.col("doc").alias("winner"), click_weight(propensity).alias("weight")
    )
    found = clicks.join(shown, on="session").with_columns(key=pl.col("losers").hash())
    merged = found.group_by("query", "winner", "key").agg(pl.first("losers"), pl.sum("weight"))
    return merged.sort("query", "winner", "key").drop("key")


def clicked_groups(log: pl.DataFrame, propensity: Floats, losers: Losers = "shown") -> pl.DataFrame:
    """One group per (query, clicked document, documents shown beside it): it has label 1, they have 0.

    Every row of a group has its weight, the sum of w over its clicks.
    """
    groups = _clicked_candidates(log, propensity, losers).with_row_index("group")
    beside = (
        groups.explode("losers")
        .filter(pl.col("losers") != pl.col("winner"))
        .select("group", pl.col("losers").alias("doc"), pl.lit(0).alias("label"), "weight")
    )
    clicked = groups.select("group", pl.col("winner").alias("doc"), pl.lit(1).alias("label"), "weight")
    return pl.concat([clicked, beside]).sort("group", "label", "doc", descending=[False, True, False])


def preferences(log: pl.DataFrame, propensity: Floats, losers: Losers = "shown") -> TrainingRows:
    """One row per (query, document), and the pairs that the clicked groups imply, summed per query."""
    rows = log.select(pl.col("query").alias("group"), "doc").unique().sort("group", "doc").with_row_index("row")
    pairs = _clicked_candidates(log, propensity, losers).explode("losers").filter(pl.col("losers") != pl.col("winner"))
    summed = pairs.group_by("winner", "losers").agg(pl.sum("weight")).sort("winner", "losers")
    number = rows.select("doc", "row")
    numbered = summed.join(number, left_on="winner", right_on="doc").join(
        number, left_on="losers", right_on="doc", suffix="_loser"
    )
    return TrainingRows(
        rows.select("group", "doc", pl.lit(1).alias("label"), pl.lit(1.0).alias("weight")),
        numbered.select(pl.col("row").alias("winner"), pl.col("row_loser").alias("loser"), "weight"),
    )


def judgments(log: pl.DataFrame, propensity: Floats, rate: Rate = "ips", cut: Cut = "steps") -> pl.DataFrame:
    """One row per (query, document) with `rate`, the debiased click rate, and its grade as the label."""
    pairs, table = count_pairs(log, len(propensity))
    debiased = debiased_rate(table, propensity, rate)
    grade = cut_grades(debiased, pairs["query"].to_numpy(), cut)
    return pairs.select(
        pl.col("query").alias("group"),
        "doc",
        pl.Series("label", grade),
        pl.Series("rate", debiased),
        pl.lit(1.0).alias("weight"),
    )


def count_pairs(log: pl.DataFrame, n_positions: int) -> tuple[pl.DataFrame, CountTable]:
    """`query` and `doc` of the pairs that were shown, sorted, and their counts by position."""
    pairs = log.select("query", "doc").unique().sort("query", "doc").with_row_index("pair")
    pair = log.join(pairs, on=["query", "doc"], maintain_order="left")["pair"].to_numpy().astype(np.int64)
    cell = pair * n_positions + log["position"].to_numpy() - 1
    size = pairs.height * n_positions
    impressions, clicks = (
        sum_by_number(cell, values, size).reshape(-1, n_positions)
        for values in (np.ones(len(cell)), log["click"].to_numpy().astype(np.float64))
    )
    return pairs, CountTable.from_dense(impressions, clicks)


def debiased_rate(table: CountTable, propensity: Floats, rate: Rate) -> Floats:
    """IPS: sum c w / n.  COEC: sum c / sum theta.  Posterior: the mean of gamma given theta."""
    theta = np.maximum(propensity, MIN_PROPENSITY)[table.cell]
    if rate == "ips":
        return table.sum_by_unit(table.clicks / theta) / table.sum_by_unit(table.impressions)
    if rate == "coec":
        return table.sum_by_unit(table.clicks) / table.sum_by_unit(table.impressions * theta)
    position = np.arange(1, len(propensity) + 1)
    examination = propensity / propensity.max()
    prior = estimate_prior(table, examination, position)
    gamma, _ = posterior_by_position(table, examination, prior, position)
    return gamma


def cut_grades(rate: Floats, query: Integers, cut: Cut) -> Integers:
    """Grades 0 .. 4: in equal steps up to a high rate, or to the query's highest; or a fifth of the pairs each."""
    if cut == "quantiles":
        return np.searchsorted(np.quantile(rate, np.arange(1, GRADES) / GRADES), rate, side="right")
    if cut == "query":
        highest = np.zeros(int(query.max()) + 1)
        np.maximum.at(highest, query, rate)
        top = np.maximum(highest[query], 1e-12)
    else:
        top = max(float(np.quantile(rate, HIGH_RATE)), 1e-12)
    return np.minimum(rate / top * GRADES, GRADES - 1).astype(np.int64)
