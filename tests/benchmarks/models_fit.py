"""Fit a click model to a log in memory, and write what the fit alone took; see `models.py`.

    python tests/benchmarks/models_fit.py LOG MODEL OUTPUT

Reading the log and grouping its pages come before it, and are not counted. OUTPUT gets the processor seconds.
"""

import os
import sys
import time
from pathlib import Path

import polars as pl

from posbias.core.browsing.em import EMOptions, fit
from posbias.core.browsing.frames import UNIT, pages_in_numberings, small_batches
from posbias.core.browsing.in_memory import PagesInMemory
from posbias.core.models import get_click_model


def main() -> None:
    """Read, fit, write."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the command does
    log, name, output = sys.argv[1:]
    model = get_click_model(name)
    impressions = pl.read_parquet(log)
    columns = list(model.unit_columns)
    units = impressions.select(columns).unique().sort(columns).with_row_index(UNIT)
    numbered = impressions.join(units, on=columns).select("session", "position", "click", UNIT)
    in_order = (pages.sort("shown 0") for (pages,) in pages_in_numberings(numbered, (UNIT,)))
    batches = tuple(batch for pages in in_order for batch in small_batches(pages))
    pages = PagesInMemory(batches, units.height, int(impressions.select(pl.max("position")).item()))
    begin = time.process_time()
    fit(model, pages, EMOptions(), lambda: None)
    Path(output).write_text(f"{time.process_time() - begin}", encoding="utf-8")


if __name__ == "__main__":
    main()
