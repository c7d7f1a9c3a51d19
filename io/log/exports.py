"""Counts that a query made in a warehouse, exported as a table: a log whose rows add up impressions.

A row says with `rejected` what it counts. Sums of `impressions` over the rows with `rejected` >= 0 are the rows of the
table that was counted.

    0         impressions that keep the contract, by query, document and cell
    1 .. 34   rows that are left out, by `RowRejection` or `PageRejection`
    -1 .. -3  where pages end (see `PageEnds`)
    -4        the table itself: `about` describes what was counted

The last one holds the sums of all others, so that rows which were lost, doubled or changed after the query are noticed.
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
"""The column that describes what was counted, in one row."""

WITH_CLICK, ABOVE_LAST, WITHOUT_CLICK, DESCRIPTION = -1, -2, -3, -4
"""Codes of `rejected`: pages with a click and those that end on one, rows above the last row of these and the clicks on
them, pages without a click, and what was counted."""

_OWN = {QUERY, DOC, POSITION, REJECTED, IMPRESSIONS, CLICKS, ABOUT}
_OF_SOME = {
    PREVIOUS_CLICK: "click models (--model)",
    PERIOD: "periods (--timestamp)",
    RANDOMIZED: "experiments (--randomized-where)",
}
"""Columns of some queries, with the options that they differ by."""
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
    """A column as Int64; null where it holds no whole number."""
    number = pl.col(name).cast(pl.Float64, strict=False)
    return pl.when(number == number.floor()).then(number.cast(pl.Int64, strict=False))


_CODE, _SHOWN, _CLICKED = map(_whole, (REJECTED, IMPRESSIONS, CLICKS))
_BESIDE = (pl.col(REJECTED) != DESCRIPTION, pl.col(REJECTED) == DESCRIPTION)


@dataclass(frozen=True)
class Export:
    """The rejected rows, the ends of pages and the description that stand beside exported counts."""

    where: str  # the name of its files
    rejected: Mapping[int, int]  # rows that are left out, by fault
    page_ends: PageEnds
    about: tuple[str, ...]  # what was counted, once for each query that was run
    columns: frozenset[str]  # those that all files have
    experiments: int  # the largest number of a description of randomised rows
    has_pages: bool  # whether it says where pages end


def only_counts(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows of an exported table that count impressions."""
    return rows.filter(_CODE == 0)


def find_export(names: Sequence[str]) -> Export | None:
    """The description of exported counts; None where the files hold something else, or cannot be opened.

    Raises:
        SchemaError: some of them are exported tables, and others are not; or rows or columns are not those of a query.
        LogFormatError: one cannot be read.
    """
    try:
        sources = find_sources(names)
        first = {name.lower() for name in schema_of(sources[0])} if sources[0].format in _TYPED else set[str]()
        if not (first >= {REJECTED, ABOUT} or len(first & _OWN) >= len(_OWN) - 1):
            return None
        plain = [[name for name, dtype in schema_of(source).items() if not dtype.is_nested()] for source in sources]
    except (PosbiasError, pl.exceptions.PolarsError, OSError):
        return None  # whoever reads them as a log says why
    having = {name: source for source, own in zip(sources, plain, strict=True) for name in own if name in _OF_SOME}
    for source, own in zip(sources, plain, strict=True):
        if len(_OWN.intersection(own)) < len(_OWN) - 1 and source is not sources[0]:
            raise SchemaError(
                f"{sources[0].path} holds counts of a warehouse, and {source.path} does not. Give one kind of files."
            )
        if differing := sorted(having.keys() - own):
            name = differing[0]
            raise SchemaError(
                f"{source.path} has no column {name!r}, which {having[name].path} has: they are results of different "
                f"queries, whose {_OF_SOME[name]} differ. Make them by the same query."
            )
        if lacking := _OWN.difference(own):
            raise SchemaError(
                f"{source.path}: holds counts of a warehouse, but no column {min(lacking)!r}. {_AS_A_WHOLE}"
            )
    return _read(tuple(names), tuple(sources))


@cache
def _read(names: tuple[str, ...], sources: tuple[Source, ...]) -> Export:
    """The description of exported counts, once all rows are seen to be those that a query gives.

    Raises:
        SchemaError: they are not.
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
    of = {row[REJECTED]: row for row in sums.to_dicts()}
    held, given = ({name: sums.filter(which)[name].sum() for name in (IMPRESSIONS, CLICKS)} for which in _BESIDE)
    if held != given:
        raise SchemaError(
            f"{where}: its rows add up to {held[IMPRESSIONS]:,} impressions and {held[CLICKS]:,} clicks, and those of "
            f"the query did to {given[IMPRESSIONS]:,} and {given[CLICKS]:,}: some are missing, changed, or there "
            f"twice. {_AS_A_WHOLE}"
        )
    nothing = dict.fromkeys((IMPRESSIONS, CLICKS, RANDOMIZED, ROW), 0)
    ends, above, without = (of.get(code, nothing) for code in _ENDS)
    times = {ends[ROW], above[ROW], without[ROW]}
    if times not in ({0}, {len(about)}) or above[IMPRESSIONS] < ends[IMPRESSIONS]:
        raise SchemaError(f"{where}: contradicts itself in what it says of where pages end. {_AS_A_WHOLE}")
    return Export(
        where,
        {code: of[code][IMPRESSIONS] for code in sorted(of) if code > 0},
        PageEnds(without[IMPRESSIONS], ends[IMPRESSIONS], ends[CLICKS], above[IMPRESSIONS], above[CLICKS]),
        tuple(about),
        frozenset(name for name in rows.collect_schema() if all(name in schema_of(one) for one in sources)),
        of.get(0, nothing)[RANDOMIZED] or 0,
        has_pages=times != {0},
    )


def _fault(schema: pl.Schema) -> pl.Expr:
    """The column in which a row is none that a query gives; null for a good one."""
    good = {
        REJECTED: _CODE.is_in(_CODES),
        IMPRESSIONS: _SHOWN.is_between(pl.when(_CODE == 0).then(1).otherwise(0), LARGEST_COUNT),
        CLICKS: _CLICKED.is_between(0, _SHOWN),
    }
    if PREVIOUS_CLICK in schema:
        above = _whole(PREVIOUS_CLICK).is_between(0, _whole(POSITION) - 1)
        good[PREVIOUS_CLICK] = (_CODE != 0) | _whole(POSITION).is_null() | above
    if RANDOMIZED in schema:
        good[RANDOMIZED] = (_CODE != 0) | (_whole(RANDOMIZED) >= 0)
    return pl.coalesce(pl.when(~is_good.fill_null(value=False)).then(pl.lit(name)) for name, is_good in good.items())


def _check_copies(sources: Sequence[Source]) -> None:
    """Check that no two files hold the same counts, in whatever order and format.

    Raises:
        SchemaError: two do.
    """
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
    """The digest of a file by its counts, whatever their order and format; by its bytes where it has none."""
    rows = total = 0
    texts = _as_texts(source).select(pl.concat_str(pl.all().fill_null(""), separator="\0").cast(pl.Binary))
    for batch in texts.collect_batches(maintain_order=False, engine="streaming"):
        rows, total = rows + batch.height, total + sum(map(xxhash.xxh3_64_intdigest, batch.to_series().to_list()))
    return f"{rows}-counts-{total % 2**64:016x}" if rows else source.digest()


def _as_texts(source: Source) -> pl.LazyFrame:
    """The counts of a file as text, with columns in the order of their names."""
    schema = {name: of for name, of in schema_of(source).items() if name not in {ABOUT, *dict(source.hive)}}
    return only_counts(scan_sources([source])).select(_as_text(*column) for column in sorted(schema.items()))


def _as_text(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column as text that is the same whether it was exported as text or as numbers."""
    text = pl.col(name).cast(pl.String, strict=False)
    if not (dtype.is_numeric() or dtype == pl.String):
        return text
    return pl.coalesce(pl.col(name).cast(pl.Float64, strict=False).cast(pl.String), text, pl.lit("")).alias(name)
