"""The clicks of a part of a log, by session: what errors clustered by session need beside the counts."""

from dataclasses import dataclass

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import count_units
from posbias.core.periods import Length, with_periods
from posbias.core.schema import CLICK, SESSION, WEIGHT
from posbias.core.standard_errors.cluster import ClusterSums
from posbias.core.standard_errors.session import session_sums
from posbias.core.theta.conditional import ConditionalFit

_SESSION, _UNIT, _CELL = "posbias_session", "posbias_unit", "posbias_cell"


@dataclass(frozen=True)
class FittedLog:
    """A conditional fit of a whole log, which its parts are held against.

    Attributes:
        plan: what was counted.
        cells: the cell columns; a cell's number is its row.
        fit: the estimate.
        period: the length of the periods within which attractiveness was one.
    """

    plan: StatisticsPlan
    cells: pl.DataFrame
    fit: ConditionalFit
    period: Length

    def sums_of(self, impressions: pl.LazyFrame) -> ClusterSums:
        """The sums over the sessions of a part that holds whole sessions and whole queries; sums of parts add up.

        Args:
            impressions: canonical impressions of the part.
        """
        plan, cells = self.plan, self.cells
        unit = plan.stratum_columns(self.period)
        shown = plan.with_cells(nw.from_native(impressions)).to_native().collect(engine="streaming")
        statistics = plan.count(nw.from_native(impressions)).to_native().sort(plan.keys).collect(engine="streaming")
        units, table = count_units(statistics, plan, cells, unit)
        clicked = with_periods(shown.filter(pl.col(CLICK) == 1), unit)
        keys = (
            (clicked.select(SESSION).unique().sort(SESSION), [SESSION], _SESSION),
            (units, list(unit), _UNIT),
            (cells, cells.columns, _CELL),
        )
        for frame, columns, number in keys:
            clicked = clicked.join(frame.with_row_index(number), on=columns, how="inner", nulls_equal=True)
        return session_sums(
            self.fit,
            table,
            session=clicked[_SESSION].to_numpy().astype(np.int64),
            unit=clicked[_UNIT].to_numpy().astype(np.int64),
            cell=clicked[_CELL].to_numpy().astype(np.int64),
            weight=clicked[WEIGHT].cast(pl.Float64).to_numpy() if plan.weighted else None,
        )
