"""The cells of statistics are sorted, and each row has the number of its own."""

import polars as pl
import pytest

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import CELL, numbered_cells
from posbias.core.models import get_model

POSITIONS = pl.Series("position", [3, 1, 1, 10, 3], dtype=pl.Int32)
PREVIOUS = pl.Series("previous_click", [0, 0, 1, 3, 2], dtype=pl.Int32)


@pytest.mark.parametrize(
    "context",
    [
        pl.Series("context", [-128, 127, 0, -128, 127], dtype=pl.Int8),
        pl.Series("context", [2**64 - 1, 0, 2**64 - 1, 0, 5], dtype=pl.UInt64),
        pl.Series("context", [-(2**63), 2**63 - 1, 0, 0, 0], dtype=pl.Int64),
        pl.Series("context", [0, None, 0, 1, None], dtype=pl.Int64),
        pl.Series("context", ["b", "a", "b", "a", "c"]),
        pl.Series("context", [True, False, True, True, False]),
        None,
    ],
    ids=["small", "unsigned", "far apart", "missing", "text", "flag", "none"],
)
@pytest.mark.parametrize("model", ["pbm", "ubm"])
def test_each_row_has_the_number_of_its_cell(context: pl.Series | None, model: str) -> None:
    plan = StatisticsPlan(model=get_model(model), context=() if context is None else ("context",))
    columns = [POSITIONS, PREVIOUS] if context is None else [POSITIONS, PREVIOUS, context]
    keys = pl.DataFrame(columns).select(plan.cell_columns)
    cells, number = numbered_cells(keys, plan)
    assert cells.equals(keys.unique().sort(*plan.cell_order))
    assert cells.schema == keys.schema
    assert (number.name, number.dtype) == (CELL, pl.UInt32)
    assert cells[number.to_numpy()].equals(keys)


def test_no_rows_have_no_cells() -> None:
    plan = StatisticsPlan(model=get_model("pbm"))
    cells, number = numbered_cells(pl.DataFrame([POSITIONS.clear()]), plan)
    assert (cells.height, len(number)) == (0, 0)
