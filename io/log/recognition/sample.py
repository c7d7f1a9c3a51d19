"""The first rows of a log, of several of its files: enough to recognise it, however large it is."""

from dataclasses import replace

import polars as pl

from posbias.io.log.log import Log
from posbias.io.log.scan import reading

_ROWS, _FILES = 200_000, 8


def first_impressions(log: Log) -> pl.DataFrame:
    """Canonical impressions of the first rows of some files; faulty ones are marked in `rejected`."""
    step = -(-len(log.sources) // _FILES)
    some = log.sources[::step]
    with reading([*some, *log.click_sources]):
        frames = [
            replace(log, sources=(source,)).impressions.head(_ROWS // len(some)).collect(engine="streaming")
            for source in some
        ]
    return pl.concat(frames, how="diagonal_relaxed")
