"""The first rows of a log, of several of its files: enough to recognise it, however large it is."""

from dataclasses import replace

import polars as pl

from posbias.io.log.log import Log
from posbias.io.log.scan import reading, scan_sources, schema_of

_ROWS, _FILES = 200_000, 8
_VALUES = 1000  # of a column of text


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


def first_texts(log: Log, column: str | None) -> list[str]:
    """The values of a column of text in the first rows, each once; none where it holds something else."""
    if column is None or schema_of(log.sources[0])[column] != pl.String:
        return []
    with reading(log.sources):
        rows = scan_sources(log.sources).select(column).head(_ROWS).unique().sort(column).head(_VALUES)
        return [value for value in rows.collect(engine="streaming")[column].to_list() if value is not None]
