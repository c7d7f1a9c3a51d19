"""What was clicked above each impression of a page, counted beside the statistics: for tests of the model.

State of an impression: nothing clicked above it; one click, on the result directly above; one click, further up; two
clicks; or three and more.
"""

from dataclasses import dataclass
from enum import IntEnum

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.members import Members
from posbias.core.counts.cells import CELL
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, table_of
from posbias.core.log.pages import in_page_order
from posbias.core.periods import Length, with_periods
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, QUERY, SESSION

STATE = "posbias_state"


class ClicksAbove(IntEnum):
    """What was clicked above an impression."""

    NONE = 0
    ONE_DIRECTLY_ABOVE = 1
    ONE_FURTHER_UP = 2
    TWO = 3
    MORE = 4


NUMBER_ABOVE = np.array([0, 1, 1, 2, 3])
"""Clicks above by state; 3 stands for three and more."""


@dataclass(frozen=True)
class CountedPages:
    """Counts of whole pages by what was clicked above."""

    plan: StatisticsPlan  # what tells units and cells apart
    counts: pl.DataFrame  # the plan's keys and the state, `impressions`, `clicks`; sorted by the keys
    impressions: int  # how many there are

    def strata(self, period: Length = "none") -> Strata:
        """The counts by state, clustered by query; a unit is what shares one attractiveness, in one cell.

        Args:
            period: by which attractiveness may differ.
        """
        unit = tuple(dict.fromkeys((*self.plan.stratum_columns(period), *self.plan.cell_columns)))
        by_unit = with_periods(self.counts, unit).group_by(*unit, STATE)
        rows = by_unit.agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(*unit, STATE)
        table = table_of(rows.rename({STATE: CELL}), unit, len(ClicksAbove))
        query = rows.select(pl.col(QUERY).rle_id().cast(pl.Int64)).to_series().to_numpy()[table.start[:-1]]
        return Strata(table, Members(np.arange(table.n_units), query))

    def largest_mean(self, value_of_state: Floats) -> float:
        """The largest mean over the impressions of a cell of a value by state, shape (5,)."""
        value = pl.Series(value_of_state).gather(self.counts[STATE])
        of_cell = self.counts.with_columns(value.alias(STATE)).group_by(self.plan.cell_columns)
        means = of_cell.agg((pl.col(STATE) * pl.col(IMPRESSIONS)).sum() / pl.col(IMPRESSIONS).sum())
        return float(means[STATE].to_numpy().max())


def count_pages(impressions: pl.DataFrame, plan: StatisticsPlan) -> CountedPages:
    """Count whole pages by what was clicked above.

    Args:
        impressions: canonical impressions of whole pages and whole queries, with their sessions.
        plan: of a model without weights.
    """
    in_cells = plan.with_cells(nw.from_native(with_state(impressions).lazy())).to_native()
    counts = pl.len().cast(pl.Int64).alias(IMPRESSIONS), pl.col(CLICK).cast(pl.Int64).sum().alias(CLICKS)
    counted = in_cells.group_by(*plan.keys, STATE).agg(*counts).sort(*plan.keys, STATE).collect()
    return CountedPages(plan, counted, impressions.height)


def with_state(impressions: pl.DataFrame) -> pl.DataFrame:
    """Impressions with their state, page by page from top to bottom.

    E.g. clicks [0, 1, 0, 0, 1, 0] of a page -> states [none, none, directly above, further up, further up, two].
    """
    shown = in_page_order(impressions)
    row = np.arange(shown.height)
    starts = shown[SESSION].rle_id().to_numpy().astype(np.int64)
    first = np.flatnonzero(np.diff(starts, prepend=-1))[starts]
    click = shown[CLICK].to_numpy().astype(np.int64)
    before = np.cumsum(click) - click
    above = before - before[first]
    last = np.roll(np.maximum.accumulate(np.where(click == 1, row, -1)), 1)
    one = np.where(last == row - 1, ClicksAbove.ONE_DIRECTLY_ABOVE, ClicksAbove.ONE_FURTHER_UP)
    several = np.where(above > 2, ClicksAbove.MORE, ClicksAbove.TWO)  # noqa: PLR2004 - the last state but one
    state = np.where(above > 1, several, np.where(above == 1, one, ClicksAbove.NONE))
    return shown.with_columns(pl.Series(STATE, state.astype(np.int8)))
