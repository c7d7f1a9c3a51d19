"""Counts that a query made in a warehouse, exported as a table: a log whose rows add up impressions.

A row says with `rejected` what it counts. Sums of `impressions` over the rows with `rejected` >= 0 are the rows of the
table that was counted.

    0         impressions that keep the contract, by query, document and cell
    1 .. 34   rows that are left out, by `RowFault` or `PageFault`
    -1 .. -3  where pages end (see `PageEnds`)
    -4        the table itself: `about` describes what was counted
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from posbias.core.errors import PosbiasError, SchemaError
from posbias.core.log.impressions import REJECTED, RowFault
from posbias.core.log.pages import PageEnds, PageFault
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, POSITION, QUERY
from posbias.io.log.scan import reading, scan_sources, schema_of
from posbias.io.log.sources import Source, find_sources

ABOUT = "about"
"""The column that describes what was counted, in one row."""

WITH_CLICK, ABOVE_LAST, WITHOUT_CLICK, DESCRIPTION = -1, -2, -3, -4
"""Codes of `rejected`: pages with a click and those that end on one, rows above the last row of these and the clicks on
them, pages without a click, and what was counted."""

_OWN = {QUERY, DOC, POSITION, REJECTED, IMPRESSIONS, CLICKS, ABOUT}
_CODES = {WITH_CLICK, ABOVE_LAST, WITHOUT_CLICK, DESCRIPTION, *RowFault, *PageFault}
_TYPED = ("parquet", "csv", "tsv", "ndjson", "ipc")
_CODE, _FIRST_SUM, _SECOND_SUM = (pl.col(name).cast(pl.Int64) for name in (REJECTED, IMPRESSIONS, CLICKS))


@dataclass(frozen=True)
class Export:
    """The rejected rows, the ends of pages and the description that stand beside exported counts."""

    where: str  # the name of its files
    rejected: Mapping[int, int]  # rows that are left out, by fault
    page_ends: PageEnds
    about: tuple[str, ...]  # what was counted, once for each query that was run


def only_counts(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of an exported table that count impressions."""
    return rows.filter(_CODE == 0)


def find_export(names: Sequence[str]) -> Export | None:
    """The description of exported counts; None where the files hold something else, or cannot be opened.

    Raises:
        SchemaError: some of them are exported tables, and others are not; or one does not say what it counts.
        LogFormatError: one cannot be read.
    """
    try:
        sources = find_sources(names)
        is_export = {source: source.format in _TYPED and _OWN.issubset(schema_of(source)) for source in sources[:1]}
        if not any(is_export.values()):
            return None
        is_export |= {source: _OWN.issubset(schema_of(source)) for source in sources}
    except (PosbiasError, pl.exceptions.PolarsError, OSError):
        return None  # whoever reads them as a log says why
    first = sources[0].path
    other = next((source.path for source, is_one in is_export.items() if not is_one), None)
    if other is not None:
        raise SchemaError(f"{first} holds counts of a warehouse, and {other} does not. Give one kind of files.")
    return _read(names, sources)


def _read(names: Sequence[str], sources: Sequence[Source]) -> Export:
    with reading(sources):
        beside = scan_sources(sources).filter(_CODE != 0)
        sums = beside.group_by(_CODE).agg(_FIRST_SUM.sum(), _SECOND_SUM.sum()).collect()
        about = beside.filter(_CODE == DESCRIPTION).select(ABOUT).collect().to_series().to_list()
    if not about or None in about:
        raise SchemaError(
            f"{names[0]}: holds counts of a warehouse, but no row with {REJECTED} = {DESCRIPTION}, which says what was "
            "counted. Export the result of the query as a whole."
        )
    of = {code: (first, second) for code, first, second in sums.iter_rows()}
    unknown = [code for code in of if code not in _CODES]
    if unknown:
        raise SchemaError(
            f"{names[0]}: {REJECTED} = {unknown[0]} has no meaning. Run the query of `posbias sql` again."
        )
    (pages, ended), (above, clicked_above) = of.get(WITH_CLICK, (0, 0)), of.get(ABOVE_LAST, (0, 0))
    ends = PageEnds(of.get(WITHOUT_CLICK, (0, 0))[0], pages, ended, above, clicked_above)
    rejected = {code: rows for code, (rows, _) in sorted(of.items()) if code > 0}
    return Export(
        names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", rejected, ends, tuple(about)
    )
