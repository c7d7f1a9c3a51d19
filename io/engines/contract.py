"""What engines share: what becomes of rows and pages that break the contract, and how many parts a log takes."""

from collections.abc import Mapping

import polars as pl

from posbias.core.choices import OnBadRows
from posbias.core.errors import SchemaError
from posbias.core.log.impressions import REJECTED
from posbias.core.log.pages import HARMLESS
from posbias.core.schema import DOC, QUERY, SESSION
from posbias.io.log.log import Log
from posbias.io.log.rejects import describe_page_faults, describe_row_faults, reason

ROWS = "rows"
"""The column that counts the rows of a page, or of a reason."""

PAGES = "pages"
"""The column that counts the pages of a reason."""

SAMPLED_ROWS = 1 << 20
"""Rows whose pages are checked, of a larger log: enough to see a visit for sure."""

# What a plan holds at its peak, per row: measured on group-by, sort and window over integer ids, rounded up.
_BYTES_PER_ROW, _BYTES_PER_KEY_BYTE = 220, 3
_TEXT_BYTES, _NUMBER_BYTES = 40, 8

PROCESS_BYTES = 300 << 20
"""Of the interpreter, its libraries and their thread buffers."""

_MOSTLY = 0.5


def judge_rows(log: Log, counts: Mapping[int, int], read: int, on_bad_rows: OnBadRows) -> dict[str, int]:
    """Rows by reason, of those that break the contract by themselves.

    Args:
        log: where they stand.
        counts: number of rows per `RowFault`.
        read: number of rows in the log.
        on_bad_rows: whether they stop the run.

    Raises:
        SchemaError: they stop the run.
    """
    faulty = {code: rows for code, rows in counts.items() if code not in HARMLESS}
    if faulty and on_bad_rows == "error":
        raise SchemaError(describe_row_faults(log, faulty, read))
    return {reason(code): counts[code] for code in sorted(counts)}


def judge_pages(
    log: Log, faults: pl.DataFrame, examples: pl.DataFrame, rows: int, on_bad_rows: OnBadRows
) -> dict[str, int]:
    """Rows by reason, of pages that cannot be one results page.

    Args:
        log: where they stand.
        faults: the `page_faults`.
        examples: `session` and `rejected` of some or all of these pages, of each reason at least one.
        rows: number of rows in the log.
        on_bad_rows: whether such pages stop the run.

    Raises:
        SchemaError: they stop the run, or hold most of the rows.
    """
    mostly = faults[ROWS].sum() > _MOSTLY * rows
    if faults.height and (on_bad_rows == "error" or mostly):
        counts = dict(faults.select(REJECTED, PAGES).iter_rows())
        raise SchemaError(describe_page_faults(log, counts, examples, dropped=on_bad_rows == "drop"))
    return rows_by_reason(faults)


def page_faults(faulty: pl.DataFrame) -> pl.DataFrame:
    """Number of `pages` and their `rows` by `rejected`, of faulty pages (`session`, `rows`, `rejected`)."""
    return faulty.group_by(REJECTED).agg(pl.len().alias(PAGES), pl.col(ROWS).sum()).sort(REJECTED)


def rows_by_reason(faults: pl.DataFrame) -> dict[str, int]:
    """Rows by reason in words."""
    return {reason(code): int(rows) for code, rows in faults.sort(REJECTED).select(REJECTED, ROWS).iter_rows()}


def fewest_parts(rows: int, schema: pl.Schema, memory: int, text_bytes: int = 0) -> int:
    """Into how many parts rows must be split, so that a process that works on one keeps to so many bytes.

    Args:
        rows: how many there are.
        schema: their columns.
        memory: the bytes.
        text_bytes: how long ids that are texts are, where they may be long.
    """
    return max(1, -(-rows * bytes_per_row(schema, text_bytes) // room_for_parts(memory)))


def bytes_per_row(schema: pl.Schema, text_bytes: int = 0) -> int:
    """What a plan holds at its peak for each row; for the arguments see `fewest_parts`."""
    keys = [schema[name] for name in (SESSION, QUERY, DOC) if name in schema]
    width = sum(_NUMBER_BYTES if dtype.is_numeric() else max(_TEXT_BYTES, text_bytes) for dtype in keys)
    return _BYTES_PER_ROW + _BYTES_PER_KEY_BYTE * width


def room_for_parts(memory: int) -> int:
    """How many bytes of so many a process has for the parts that it works on."""
    return max(memory - PROCESS_BYTES, memory // 8)
