"""A plan of what to show next on disk: `widths.parquet`, `swaps.parquet` and `documents.parquet`."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.exploration.swaps import Plan
from posbias.core.schema import POSITION
from posbias.io.results.tables import write_in_one_file

WIDTHS, SWAPS, DOCUMENTS = "widths.parquet", "swaps.parquet", "documents.parquet"
OTHER_POSITION, PAGES = "other_position", "pages"


def widths_table(cells: pl.DataFrame, plan: Plan) -> pl.DataFrame:
    """One row per cell: the interval of log propensity now, and after the further pages. What has none is infinite."""
    best = plan.alone[plan.best]
    columns = {
        "std_error": plan.now.std_error,
        "width": plan.now.width,
        "width_without_swaps": plan.unswapped.width,
        "width_with_best_swap": best.width,
        "width_with_plan": plan.planned.width,
    }
    return cells.with_columns(pl.Series(name, np.asarray(values, np.float64)) for name, values in columns.items())


def swaps_table(plan: Plan) -> pl.DataFrame:
    """One row per swap, the best first: what becomes of the intervals if it has all pages, and its part in the plan."""
    pages = pages_of(plan)
    rows = [
        {
            POSITION: swap[0],
            OTHER_POSITION: swap[1],
            PAGES: plan.pages,
            "largest_width": plan.now.largest,
            "largest_width_after": outcome.largest,
            "without_interval": int(np.isinf(plan.now.width).sum()),
            "without_interval_after": outcome.badness[0],
            "std_error_after": outcome.std_error.tolist(),
            "planned_pages": pages.get(swap, 0),
        }
        for swap, outcome in plan.alone.items()
    ]
    whole = {POSITION: pl.Int32, OTHER_POSITION: pl.Int32}
    return pl.DataFrame(rows, schema_overrides=whole)


def pages_of(plan: Plan) -> dict[tuple[int, int], int]:
    """How many pages each swap of the plan has: whole ones, all together N."""
    ends = np.rint(np.cumsum(list(plan.shares.values())) * plan.pages).astype(np.int64)
    return dict(zip(plan.shares, np.diff(ends, prepend=0).tolist(), strict=True))


def write_plan(cells: pl.DataFrame, plan: Plan, folder: Path) -> None:
    """Write what is to be swapped."""
    widths_table(cells, plan).write_parquet(folder / WIDTHS)
    swaps_table(plan).write_parquet(folder / SWAPS)


def write_documents(parts: Iterable[pl.DataFrame], folder: Path) -> Iterator[None]:
    """Write the documents that are worth showing, part by part."""
    yield from write_in_one_file(parts, folder / DOCUMENTS)
