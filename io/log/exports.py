"""Exported counts of a warehouse: a table of sums of impressions and clicks, made by a query.

The column `rejected` states what a row counts. `impressions` over the rows with `rejected` >= 0 add up to the rows of
the table in the warehouse.

    0         valid impressions, by query, document and cell
    1 .. 34   invalid rows, by `RowRejection` or `PageRejection`
    -1 .. -3  ends of pages (see `PageEnds`)
    -4        the description of the counted table, in `about`, with the sums of all other rows

By these sums, rows that were lost, doubled or changed after the query are noticed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import polars as pl
import xxhash

from posbias.core.errors import PosbiasError, SchemaError
from posbias.core.log.impressions import LARGEST_COUNT, REJECTED, RowRejection
from posbias.core.log.pages import PageEnds, PageRejection
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, PREVIOUS_CLICK, QUERY, RANDOMIZED
from posbias.io.log.scan import ROW, reading, scan_sources, scan_with_place, schema_of
from posbias.io.log.sources import Source, find_sources

ABOUT = "about"
"""The column of the description, which one row has."""

WITH_CLICK, ABOVE_LAST, WITHOUT_CLICK, DESCRIPTION = -1, -2, -3, -4
"""Codes of `rejected`, each with its meaning of `impressions` and `clicks`: pages with a click and pages that end on a
click; rows above the last row of pages with a click and clicks on these; pages without a click; all sums."""

_COLUMNS = {QUERY, DOC, POSITION, REJECTED, IMPRESSIONS, CLICKS, ABOUT}
_OPTIONAL_COLUMNS = {
    PREVIOUS_CLICK: "click models (--model)",
    PERIOD: "periods (--timestamp)",
    RANDOMIZED: "experiments (--randomized-where)",
}
"""Columns that depend on options of the query, with what these are about."""
_ENDS = (WITH_CLICK, ABOVE_LAST, WITHOUT_CLICK)
_CODES = (*_ENDS, DESCRIPTION, 0, *map(int, (*RowRejection, *PageRejection)))
_TYPED = ("parquet", "csv", "tsv", "ndjson", "ipc")
_FAULT, _HASH = "posbias_fault", "posbias_hash"
_FAULTS = {
    REJECTED: "has no meaning",
    IMPRESSIONS: "is no number of rows",
    CLICKS: "is no number of clicks, or there are more clicks than impressions",
    PREVIOUS_CLICK: "is no position above",
    RANDOMIZED: "is no number of an experiment",
}
_AS_A_WHOLE = "Export the result of the query as a whole, and name each of its files once."


def _whole(name: str) -> pl.Expr:
    """Cast a column to Int64; null unless it is a whole number."""
    number = pl.col(name).cast(pl.Float64, strict=False)
    return pl.when(number == number.floor()).then(number.cast(pl.Int64, strict=False))


_CODE, _SHOWN, _CLICKED = map(_whole, (REJECTED, IMPRESSIONS, CLICKS))
_IS_SUM = (pl.col(REJECTED) != DESCRIPTION, pl.col(REJECTED) == DESCRIPTION)
"""Counts, and the sums that the query stated."""


@dataclass(frozen=True)
class Export:
    """Invalid rows, ends of pages and description of exported counts."""

    where: str  # the files, for messages
    rejected: Mapping[int, int]  # number of invalid rows, by code
    page_ends: PageEnds
    about: tuple[str, ...]  # description of the counted table, once for each run of the query
    columns: frozenset[str]  # columns that all files have
    experiments: int  # the largest number of a condition on randomised rows
    has_pages: bool  # whether ends of pages were counted


def only_counts(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Filter the rows of an exported table that count valid impressions."""
    return rows.filter(_CODE == 0)


def find_export(names: Sequence[str]) -> Export | None:
    """Read the description of exported counts; None for other files, and files that cannot be opened.

    Raises:
        SchemaError: only part of the files are exported counts; or rows or columns are not those of the query.
        LogFormatError: a file cannot be read.
    """
    try:
        sources = find_sources(names)
        first = {name.lower() for name in schema_of(sources[0])} if sources[0].format in _TYPED else set[str]()
        if not (first >= {REJECTED, ABOUT} or len(first & _COLUMNS) >= len(_COLUMNS) - 1):
            return None
        plain = [[name for name, dtype in schema_of(source).items() if not dtype.is_nested()] for source in sources]
    except (PosbiasError, pl.exceptions.PolarsError, OSError):
        return None  # opening them as a log raises the error
    files = [*zip(sources, plain, strict=True)]
    having = {name: source for source, own in files for name in own if name in _OPTIONAL_COLUMNS}
    for source, own in files:
        if len(_COLUMNS.intersection(own)) < len(_COLUMNS) - 1 and source is not sources[0]:
            raise SchemaError(
                f"{sources[0].path} holds counts of a warehouse, and {source.path} does not. Give one kind of files."
            )
        if differing := sorted(having.keys() - own):
            name = differing[0]
            raise SchemaError(
                f"{source.path} has no column {name!r}, which {having[name].path} has: they are results of different "
                f"queries, whose {_OPTIONAL_COLUMNS[name]} differ. Make them by the same query."
            )
        if lacking := _COLUMNS.difference(own):
            raise SchemaError(
                f"{source.path}: holds counts of a warehouse, but no column {min(lacking)!r}. {_AS_A_WHOLE}"
            )
    return _read(tuple(names), tuple(sources))


@cache
def _read(names: tuple[str, ...], sources: tuple[Source, ...]) -> Export:
    """Validate all rows of exported counts, and return their description.

    Raises:
        SchemaError: a row is not that of a query, or rows are missing, changed or repeated.
        LogFormatError: a file cannot be read.
    """
    where = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    with reading(sources):
        rows = scan_sources(sources)
        fault = _fault(rows.collect_schema()).is_not_null().any()
        experiment = _whole(RANDOMIZED) if RANDOMIZED in rows.collect_schema() else pl.lit(0)
        numbers = (_SHOWN.sum(), _CLICKED.sum(), experiment.max().alias(RANDOMIZED), pl.len().alias(ROW))
        sums = rows.group_by(_CODE).agg(*numbers, fault.alias(_FAULT)).collect(engine="streaming")
        for source in sources if sums[_FAULT].any() else ():
            marked = scan_with_place(source).with_columns(_fault(schema_of(source)).alias(_FAULT))
            for row in marked.filter(pl.col(_FAULT).is_not_null()).head(1).collect().iter_rows(named=True):
                name = row[_FAULT]
                raise SchemaError(
                    f"{source.path} row {row[ROW]:,}: {name} = {row[name]} {_FAULTS[name]}. {_AS_A_WHOLE}"
                )
        about = rows.filter(_CODE == DESCRIPTION).select(pl.col(ABOUT).cast(pl.String)).collect().to_series().to_list()
        if len(sources) > 1 or len(about) > 1:
            _check_copies(sources)
    if not about or None in about:
        raise SchemaError(
            f"{where}: holds counts of a warehouse, but no row with {REJECTED} = {DESCRIPTION}, which says what was "
            f"counted. {_AS_A_WHOLE}"
        )
    by_code = {row[REJECTED]: row for row in sums.to_dicts()}
    total, stated = ({name: sums.filter(which)[name].sum() for name in (IMPRESSIONS, CLICKS)} for which in _IS_SUM)
    if total != stated:
        raise SchemaError(
            f"{where}: its rows add up to {total[IMPRESSIONS]:,} impressions and {total[CLICKS]:,} clicks, and those "
            f"of the query did to {stated[IMPRESSIONS]:,} and {stated[CLICKS]:,}: some are missing, changed, or there "
            f"twice. {_AS_A_WHOLE}"
        )
    nothing = dict.fromkeys((IMPRESSIONS, CLICKS, RANDOMIZED, ROW), 0)
    ends, above, without = (by_code.get(code, nothing) for code in _ENDS)
    times = {ends[ROW], above[ROW], without[ROW]}
    if times not in ({0}, {len(about)}) or above[IMPRESSIONS] < ends[IMPRESSIONS]:
        raise SchemaError(f"{where}: contradicts itself in what it says of where pages end. {_AS_A_WHOLE}")
    return Export(
        where,
        {code: by_code[code][IMPRESSIONS] for code in sorted(by_code) if code > 0},
        PageEnds(without[IMPRESSIONS], ends[IMPRESSIONS], ends[CLICKS], above[IMPRESSIONS], above[CLICKS]),
        tuple(about),
        frozenset(name for name in rows.collect_schema() if all(name in schema_of(one) for one in sources)),
        by_code.get(0, nothing)[RANDOMIZED] or 0,
        has_pages=times != {0},
    )


def _fault(schema: pl.Schema) -> pl.Expr:
    """Return the name of the first column with an invalid value; null for a valid row."""
    valid = {
        REJECTED: _CODE.is_in(_CODES),
        IMPRESSIONS: _SHOWN.is_between(pl.when(_CODE == 0).then(1).otherwise(0), LARGEST_COUNT),
        CLICKS: _CLICKED.is_between(0, _SHOWN),
    }
    if PREVIOUS_CLICK in schema:
        above = _whole(PREVIOUS_CLICK).is_between(0, _whole(POSITION) - 1)
        valid[PREVIOUS_CLICK] = (_CODE != 0) | _whole(POSITION).is_null() | above
    if RANDOMIZED in schema:
        valid[RANDOMIZED] = (_CODE != 0) | (_whole(RANDOMIZED) >= 0)
    return pl.coalesce(pl.when(~test.fill_null(value=False)).then(pl.lit(name)) for name, test in valid.items())


def _check_copies(sources: Sequence[Source]) -> None:
    """Raise SchemaError if two files hold the same counts, in any order and format, or a file holds them twice."""
    known = dict[str, Source]()
    for source in sources:
        if scan_sources([source]).filter(_CODE == DESCRIPTION).select(pl.len()).collect().item() > 1:
            hashed = _as_texts(source).select(pl.struct(pl.all()).hash().alias(_HASH))
            times = hashed.group_by(_HASH).len().select(pl.col("len").min()).collect(engine="streaming").item()
            if (times or 0) > 1:
                raise SchemaError(f"{source.path}: holds all its counts {times} times. {_AS_A_WHOLE}")
        first = known.setdefault(digest_of_counts(source), source)
        if first is not source:
            raise SchemaError(
                f"{source.path} and {first.path} hold the same counts: they would count twice. Name one of them."
            )


@cache
def digest_of_counts(source: Source) -> str:
    """Compute a digest of the counts of a file, the same in any order and format; of its bytes if it has no counts."""
    rows = total = 0
    texts = _as_texts(source).select(pl.concat_str(pl.all().fill_null(""), separator="\0").cast(pl.Binary))
    for batch in texts.collect_batches(maintain_order=False, engine="streaming"):
        rows, total = rows + batch.height, total + sum(map(xxhash.xxh3_64_intdigest, batch.to_series().to_list()))
    return f"{rows}-counts-{total % 2**64:016x}" if rows else source.digest()


def _as_texts(source: Source) -> pl.LazyFrame:
    """Cast the counts of a file to text, with columns sorted by name."""
    schema = {name: dtype for name, dtype in schema_of(source).items() if name not in {ABOUT, *dict(source.hive)}}
    return only_counts(scan_sources([source])).select(_as_text(*column) for column in sorted(schema.items()))


def _as_text(name: str, dtype: pl.DataType) -> pl.Expr:
    """Cast a column to text, the same whether it was exported as text or as numbers."""
    text = pl.col(name).cast(pl.String, strict=False)
    if not (dtype.is_numeric() or dtype == pl.String):
        return text
    return pl.coalesce(pl.col(name).cast(pl.Float64, strict=False).cast(pl.String), text, pl.lit("")).alias(name)
