"""From a propensity table to the weights of a log's cells."""

from functools import partial

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.attractiveness.prior import estimate_prior, posterior_by_position
from posbias.core.attractiveness.uncertainty import with_errors_of_theta
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.counts.sums_of_weights import add_up_weights, count_cells
from posbias.core.errors import IdentifiabilityError, SchemaError, StatisticsError
from posbias.core.fit.fitted_theta import FittedTheta, covariance_of, covariance_table
from posbias.core.fit.propensities import EXAMINATION, PROPENSITY, STD_ERROR
from posbias.core.schema import CLICKS, IMPRESSIONS, WEIGHT
from posbias.core.training.layouts.layout import LayoutOfCounts, Posterior, RowsOfPairs, WeightedCounts
from posbias.core.training.replicates import draw_propensities, relative_covariance
from posbias.core.training.weights import ClickWeights, WeightOptions, WeightSummary, click_weights
from posbias.io.counting.count import CountedLog
from posbias.io.engines.engine import ReadLog

SQUARED_CLICKS = "squared_clicks"
"""The column with the sum of the squared weights that the clicks of a cell carry; null where it is not known."""


def weights_for(
    counts: pl.DataFrame, propensities: pl.DataFrame, options: WeightOptions, fitted: FittedTheta | None = None
) -> ClickWeights:
    """Click weights of the cells of a log, from a propensity table.

    Args:
        counts: the cell columns, the `impressions` and `clicks` of each cell, and its `squared_clicks` where rows
            carry weights.
        propensities: the table; cells that it lacks have no propensity.
        options: clipping and normalisation.
        fitted: theta with its errors, where replicate weights are asked for.

    Raises:
        StatisticsError: they are, and no errors are known.
    """
    cells = counts.drop(IMPRESSIONS, CLICKS, SQUARED_CLICKS, strict=False)
    theta = propensities_of_cells(cells, propensities, PROPENSITY)
    impressions, clicks = (counts[name].cast(pl.Float64).to_numpy() for name in (IMPRESSIONS, CLICKS))
    squared = counts[SQUARED_CLICKS].fill_null(np.nan).to_numpy() if SQUARED_CLICKS in counts.columns else None
    known = theta.fill_null(np.nan).to_numpy()
    drawn = _drawn(cells, known, propensities, fitted, options) if options.replicates and fitted is not None else None
    return click_weights(cells, known, impressions, clicks, options, squared_clicks=squared, replicates=drawn)


def _drawn(
    cells: pl.DataFrame, theta: Floats, propensities: pl.DataFrame, fitted: FittedTheta, options: WeightOptions
) -> Floats:
    """Other propensities of the cells that the log allows as well, shape (N, K)."""
    covariance = covariance_of_theta(cells, propensities, fitted)
    if covariance is None:
        raise StatisticsError(
            f"--replicates {options.replicates}: the errors of the propensities are not known together: they come with "
            "no theta_covariance.parquet. Estimate by a method with standard errors."
        )
    return draw_propensities(theta, covariance, options.replicates)


def covariance_of_theta(cells: pl.DataFrame, propensities: pl.DataFrame, fitted: FittedTheta) -> Floats | None:
    """The covariance of the log propensities that weights are made from, shape (K, K); None where it is not known.

    Args:
        cells: the cell columns, K rows.
        propensities: the table to make weights from, with its standard errors, a row for each of the fitted cells.
        fitted: theta as it was fitted.
    """
    if fitted.covariance is None:
        return None
    keys = fitted.propensities.select(cells.columns)
    examination = covariance_of(keys, fitted.covariance)
    chosen = propensities[STD_ERROR].cast(pl.Float64).fill_null(np.nan).to_numpy()
    table = fitted.propensities.select(*cells.columns, PROPENSITY, STD_ERROR)
    covariance = covariance_table(keys, relative_covariance(table, examination, chosen))
    return covariance_of(cells, covariance)


def examination_of(cells: pl.DataFrame, propensities: pl.DataFrame) -> Floats:
    """Theta of cells as a probability, nan where the table has none, shape (K,).

    Raises:
        SchemaError: a context has another type than in the table.
    """
    return propensities_of_cells(cells, propensities, EXAMINATION).cast(pl.Float64).fill_null(np.nan).to_numpy()


def posterior_attractiveness(statistics: SufficientStatistics, theta: FittedTheta) -> Posterior:
    """What is known of the attractiveness of each signature under a fitted theta."""
    examination = examination_of(statistics.cells, theta.propensities)
    table, position = statistics.pair_signatures, statistics.position_of_cell
    prior = theta.prior or estimate_prior(table, examination, position)
    gamma, std_dev = posterior_by_position(table, examination, prior, position)
    if theta.covariance is None:
        return Posterior(examination, gamma, None)
    covariance = covariance_of(statistics.cells, theta.covariance)
    return Posterior(examination, gamma, with_errors_of_theta(table, examination, covariance, gamma, std_dev))


def by_signature(
    counted: CountedLog,
    layout: LayoutOfCounts,
    weights: ClickWeights,
    options: WeightOptions,
    theta: FittedTheta,
) -> tuple[Floats, RowsOfPairs]:
    """What a layout that adds up by document needs to know of each signature, shape (J, S), and how it makes rows.

    Args:
        counted: the log, counted.
        layout: what the rows are.
        weights: of its cells.
        options: which labels.
        theta: the propensities, and the prior of attractiveness for labels that are expected ones.
    """
    counts = WeightedCounts(
        signatures=counted.statistics.pair_signatures,
        weights=weights,
        options=options,
        posterior=partial(posterior_attractiveness, counted.statistics, theta),
        whole=not counted.plan.weighted,
    )
    return layout.by_signature(counts)


def propensities_of_cells(cells: pl.DataFrame, propensities: pl.DataFrame, column: str) -> pl.Series:
    """A column of a propensity table for the given cells, null for those that the table lacks.

    Raises:
        SchemaError: a context has another type than in the table.
    """
    for name in cells.columns:
        ours, theirs = cells.schema[name], propensities.schema[name]
        if ours != theirs and not (ours.is_integer() and theirs.is_integer()):
            raise SchemaError(
                f"column {name!r} (--context) holds {ours} in this log and {theirs} in the fit, so that no value would "
                "meet its propensity. Write both with the same type."
            )
    known = propensities.select(*(pl.col(name).cast(cells.schema[name]) for name in cells.columns), column)
    return cells.join(known, on=cells.columns, how="left", maintain_order="left", nulls_equal=True)[column]


def counts_by_cell(read: ReadLog, plan: StatisticsPlan) -> pl.DataFrame:
    """The cell columns, `impressions` and `clicks` of a log, sorted by cell."""
    parts = read.buckets.map(partial(_count, plan=plan, squared=False))
    return add_up_weights(pl.concat(parts), plan.cell_columns).sort(plan.cell_order)


def _count(_: int, impressions: pl.LazyFrame, plan: StatisticsPlan, *, squared: bool) -> pl.DataFrame:
    return count_cells(impressions.with_columns(pl.col(WEIGHT) ** 2) if squared else impressions, plan)


def check_unidentified(summary: WeightSummary, *, stop: bool) -> None:
    """Stop where clicks would be left out and the user does not want that.

    Raises:
        IdentifiabilityError: some clicks lie in cells without a propensity.
    """
    lost = summary.clicks_without_propensity
    if stop and lost:
        raise IdentifiabilityError(
            f"{lost:,} clicks lie in cells without a propensity (--unidentified error). Leave them out with "
            "--unidentified drop, or see `reason` in the propensity table."
        )


def with_squared_clicks(counts: pl.DataFrame, read: ReadLog | None, plan: StatisticsPlan) -> pl.DataFrame:
    """The counts of the cells of a log whose rows carry weights, with the sum of the squares of these weights.

    Args:
        counts: the cell columns, `impressions` and `clicks`.
        read: the log; None where there are only statistics, which hold sums of weights.
        plan: what was counted.
    """
    if read is None:
        return counts.with_columns(pl.lit(None, pl.Float64).alias(SQUARED_CLICKS))
    of_parts = pl.concat(read.buckets.map(partial(_count, plan=plan, squared=True)))
    sums = of_parts.group_by(plan.cell_columns, maintain_order=True).agg(pl.col(CLICKS).sum())
    squared = sums.rename({CLICKS: SQUARED_CLICKS})
    return counts.join(squared, on=plan.cell_columns, how="left", maintain_order="left", nulls_equal=True)
