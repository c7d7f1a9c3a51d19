"""What values say: from which number positions count, what a click column holds, whether rows are sums.

The first rows of a log, of several of its files: enough to recognise it, however large it is.
"""

from dataclasses import replace

import polars as pl

from posbias.core.log.impressions import REJECTED, RowFault
from posbias.core.schema import CLICK, POSITION
from posbias.io.log.findings import Finding
from posbias.io.log.log import Log
from posbias.io.log.misread import are_sums, clicked_rank, unused_count
from posbias.io.log.recognition.roles import option
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


_AS_MANY = 0.2
"""Rows at position 0 per row at position 1 from which 0 is the top position, and no mark of a missing one."""

_NEARLY_NONE = 0.01
"""Share of the clicks that could not be read, up to which the rest of them are bad rows."""

_MOSTLY_EMPTY = 0.5


def find_sums(log: Log) -> list[Finding]:
    """Whether a row adds up impressions and clicks."""
    if log.raw is not None:
        return []
    count, click = unused_count(log), log.roles.click
    if count is None or click is None or not are_sums(log, count, click):
        return []
    said = f"a row adds up the impressions in {count!r} and the clicks on them in {click!r}"
    return [Finding(said, option("--impressions", count))]


def find_position_base(log: Log) -> list[Finding]:
    """Whether positions count from 0."""
    if log.raw is not None:
        return []
    counts = dict(first_impressions(log).group_by(POSITION).len().iter_rows())
    above = {position: rows for position, rows in counts.items() if position is not None and position < 1}
    if not above or set(above) != {0} or counts[0] < _AS_MANY * counts.get(1, 0):
        return []
    base = log.request.rules.position_base - 1
    return [Finding(f"positions count from {base}", option("--position-base", str(base)))]


def find_clicks(log: Log) -> list[Finding]:
    """Whether the click column holds counts or ranks, and what its empty cells mean."""
    if log.raw is not None or log.click_sources:
        return []
    top = clicked_rank(log)
    if top is not None:
        said = f"{log.roles.click!r} holds the rank of the clicked result, from {top}"
        return [Finding(said, ("--click-ranks", str(top)))]
    rows = first_impressions(log)
    faults = _click_faults(rows)
    if faults[RowFault.CLICK_INVALID] and not log.roles.impressions:
        rules = replace(log.request.rules, click_counts=True)
        counted = first_impressions(replace(log, request=replace(log.request, rules=rules)))
        if _click_faults(counted)[RowFault.CLICK_INVALID] <= _NEARLY_NONE * faults[RowFault.CLICK_INVALID]:
            return [Finding(f"{log.roles.click!r} counts clicks", ("--click-counts",))]
    filled = rows.filter(pl.col(REJECTED) == 0)[CLICK]
    if faults[RowFault.CLICK_MISSING] and len(filled) and (filled > 0).all():
        said = f"{log.roles.click!r} is 1 or empty: an empty cell means no click"
        mostly = faults[RowFault.CLICK_MISSING] > _MOSTLY_EMPTY * rows.height
        return [Finding(said, ("--null-click", "0"), certain=mostly)]
    return []


def _click_faults(rows: pl.DataFrame) -> dict[int, int]:
    counts = dict(rows.group_by(REJECTED).len().iter_rows())
    return {fault: counts.get(fault, 0) for fault in (RowFault.CLICK_INVALID, RowFault.CLICK_MISSING)}
