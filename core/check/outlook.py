"""What a fit will be able to say: the cells that the log can compare, and the standard errors to expect.

It is the conditional fit itself, without what a fit compares it with. From a sample of queries, standard errors are
those of the sample times sqrt(queries in it / queries in all), as errors are clustered by query.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.counts.checks import check_no_silent_position
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators import ConditionalEstimator, EstimationOptions
from posbias.core.fit.fit import WANTED_CLICK_SHARE, check_cells


@dataclass(frozen=True)
class Outlook:
    """What one model can say on a log."""

    model: str  # its name
    reason: str | None  # why nothing can be estimated; None where something can
    # the cell columns, `impressions`, `clicks`, `identified`, `reason`, `std_error` (to expect, of the log of the
    # propensity; 0 at a reference, null where there is none), `linking_pairs`, `linking_clicks`
    cells: pl.DataFrame
    click_share: float  # share of the clicks in identified cells
    share: float = 1.0  # share of the log's queries that it was told from; 1 for all

    @property
    def errors(self) -> Floats:
        """The standard errors to expect, of identified cells other than references."""
        known = self.cells.filter(pl.col("identified") & (pl.col("std_error") > 0))
        return known["std_error"].to_numpy() if self.reason is None else np.empty(0)

    @property
    def carries(self) -> bool:
        """Whether the log carries an estimate that may be taken at face value, as far as the counts say."""
        return self.reason is None and self.click_share >= WANTED_CLICK_SHARE and bool(len(self.errors))


def outlook(statistics: SufficientStatistics, memory: int, share: float = 1.0) -> Outlook:
    """What the model of the statistics can say.

    Args:
        statistics: of the log, or of whole queries of it.
        memory: in bytes, of a fit.
        share: share of the queries that they hold.
    """
    model = statistics.plan.model.name
    counts = statistics.counts_by_cell()
    try:
        check_no_silent_position(statistics)
        check_cells(statistics, ConditionalEstimator.name, EstimationOptions(), memory, compare=False)
        with np.errstate(all="ignore" if statistics.plan.weighted else None):
            estimate = ConditionalEstimator().estimate(
                statistics, statistics.strata(), EstimationOptions(), lambda _: None
            )
    except (IdentifiabilityError, UsageError, np.linalg.LinAlgError, OverflowError) as error:
        nothing = counts.with_columns(
            pl.lit(value=False).alias("identified"),
            pl.lit(None, pl.String).alias("reason"),
            pl.lit(None, pl.Float64).alias("std_error"),
            pl.lit(0.0).alias("linking_pairs"),
            pl.lit(0.0).alias("linking_clicks"),
        )
        return Outlook(model, str(error), nothing, 0.0, share)
    linkage = estimate.linkage
    errors = estimate.intervals.std_error * np.sqrt(share)
    clicks = counts["clicks"].to_numpy()
    known = clicks[np.isfinite(estimate.propensity)].sum()
    cells = counts.with_columns(
        pl.Series("identified", linkage.identified),
        pl.Series("reason", linkage.reason, pl.String),
        pl.Series("std_error", errors, nan_to_null=True),
        pl.Series("linking_pairs", linkage.linking_pairs),
        pl.Series("linking_clicks", linkage.linking_clicks),
    )
    return Outlook(model, None, cells, float(known / clicks.sum()) if clicks.any() else 0.0, share)


@dataclass(frozen=True)
class Movement:
    """How documents move between cells."""

    pairs: float  # number of (query, document) pairs
    moved: float  # those of them that were shown in several cells
    linking: float  # those that were also clicked: only they say anything about propensities
    share: float  # impressions of pairs that moved, as a share of all

    def in_all(self, share: float) -> "Movement":
        """The same of the whole log, of whose queries these were a share."""
        return Movement(*(count / share for count in (self.pairs, self.moved, self.linking)), share=self.share)


def movement(table: CountTable) -> Movement:
    """How the pairs of a table move; equal pairs may stand in it once, with their number."""
    pairs = moved = linking = shown = shown_of_moved = 0.0
    for _, block in table.blocks():
        several = block.entries_of_unit > 1
        impressions = block.sum_by_unit(block.impressions) * block.multiplicity
        pairs += float(block.multiplicity.sum())
        moved += float(block.multiplicity[several].sum())
        linking += float(block.multiplicity[block.links].sum())
        shown += float(impressions.sum())
        shown_of_moved += float(impressions[several].sum())
    return Movement(pairs, moved, linking, shown_of_moved / shown)
