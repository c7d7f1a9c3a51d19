"""Source files as one lazy Polars frame, whatever their format.

What quotes in text files mean: marks around a field, or letters of it.

Readers swallow lines where they take one for the other: a query `"nike`, written as it was typed, opens a field that
ends at the next quote, lines further down.

CSV is read by RFC 4180: quotes around a field, doubled inside. TSV is written in two ways: like CSV by pandas, Spark or
BigQuery, to the letter by databases and most tools of the field. It is read like CSV unless quotes stand where no such
writer puts them.
"""

import csv
import glob
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

import polars as pl

from posbias.core.errors import LogFormatError, SchemaError
from posbias.core.log.impressions import clip_to_calendar, has_date
from posbias.io.log.sources import Source
from posbias.io.places.locations import ObjectUrl
from posbias.io.places.object_stores import storage_options


def are_structs(dtype: pl.DataType) -> bool:
    """Whether a column holds structs, or lists of them: its fields have paths."""
    return isinstance(dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype, pl.Struct)


def _fields_below(path: str, values: pl.Expr, dtype: pl.DataType) -> Iterator[tuple[str, pl.Expr, pl.DataType]]:
    """Path, values and type of a column or, if it holds structs or lists of them, of the fields below that hold none.

    Of structs in a list, these are the fields of plain values: each is a list, an entry for each of the structs.
    """
    if isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            inner = pl.Series(dtype=field.dtype).dtype  # a type may be given as its class
            yield from _fields_below(f"{path}.{field.name}", values.struct.field(field.name), inner)
    elif isinstance(dtype, pl.List | pl.Array) and isinstance(dtype.inner, pl.Struct):
        values = values.arr.to_list() if isinstance(dtype, pl.Array) else values
        for below, of_entry, inner in _fields_below("", pl.element(), dtype.inner):
            if not inner.is_nested():
                yield f"{path}{below}", values.list.eval(of_entry), pl.List(inner)
    else:
        yield path, values, dtype


FILE = "posbias_file"
ROW = "posbias_row"
LINE = "posbias_line"

TEXT_SEPARATORS = {"csv": ",", "tsv": "\t"}
"""The formats that have no types, and what stands between their fields."""


def separator_of(source: Source) -> str:
    """The separator of fields of a CSV or TSV file."""
    return source.dialect.separator or TEXT_SEPARATORS[source.format]


_NO_SEPARATOR = "\x01"  # which JSON has to escape
_SCHEMA_ROWS = 1000
_HEADER_LINES = 100  # names may have line breaks in quotes
_UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError)


def scan_sources(sources: Sequence[Source], as_text: Sequence[str] = ()) -> pl.LazyFrame:
    """All sources as one lazy frame; folders `key=value` become text columns.

    CSV and TSV have no types: every column is text, to the letter ("007" is not 7).

    Args:
        sources: files, each of its own format.
        as_text: columns of NDJSON that are read as text, so that a value of the wrong type can be reported.

    Raises:
        LogFormatError: a file cannot be read.
    """
    frames = [_scan([*group], as_text) for _, group in groupby(sources, key=_likeness)]
    return frames[0] if len(frames) == 1 else pl.concat(frames, how="diagonal_relaxed")


def _likeness(source: Source) -> tuple[object, ...]:
    """The properties that files must share for Polars to read them at once."""
    return (
        source.store,
        source.format,
        source.quoted,
        source.hive,
        source.dialect,
        source.copy is None,
        tuple(schema_of(source).items()),
    )


@cache
def schema_of(source: Source) -> pl.Schema:
    """The columns of one file and their types."""
    return _scan([source], ()).collect_schema()


def _scan(sources: Sequence[Source], as_text: Sequence[str]) -> pl.LazyFrame:
    form, options = sources[0].format, storage_options(sources[0].place) or None
    on_disk = [source.place for source in sources if isinstance(source.place, Path)]
    paths = on_disk or [str(source.place) for source in sources]
    if form == "parquet":
        frame = pl.scan_parquet(paths, hive_partitioning=False, glob=False, storage_options=options)
    elif form == "ipc":
        frame = pl.scan_ipc(paths, hive_partitioning=False, glob=False, storage_options=options)
    elif form == "ndjson":
        schema = schema_of(sources[0]) if as_text else pl.Schema()
        structs = tuple(f"{name}." for name, dtype in schema.items() if are_structs(dtype))
        is_list = {name: isinstance(schema.get(name), pl.List) for name in as_text if not name.startswith(structs)}
        overrides = {name: pl.List(pl.String()) if of_lists else pl.String() for name, of_lists in is_list.items()}
        for source in sources:  # scan_ndjson always takes a path for a pattern, of which a URL cannot be the only match
            if isinstance(source.place, ObjectUrl) and glob.has_magic(str(source.path)):
                raise LogFormatError(
                    f"{source.path}: NDJSON in an object store cannot have *, ? or [ in its name. Rename it."
                )
        frame = pl.scan_ndjson(
            [glob.escape(str(source.place)) for source in sources],
            infer_schema_length=_SCHEMA_ROWS,
            schema_overrides=overrides,
            storage_options=options,
        )
    else:
        columns = sources[0].dialect.columns
        frame = pl.scan_csv(
            paths,
            separator=separator_of(sources[0]),
            has_header=not columns,
            schema=dict.fromkeys(columns, pl.String()) if columns else None,
            quote_char=None if sources[0].quoted is False else '"',
            infer_schema=False,
            glob=False,
            storage_options=options,
        )
    schema, folders = frame.collect_schema(), dict(sources[0].hive)
    # A column for each field of a struct, or of the structs in a list, but for those that are columns themselves; only
    # those that are used cost.
    fields = [field for name, dtype in schema.items() for field in _fields_below(name, pl.col(name), dtype)]
    fields = [values.alias(path) for path, values, _ in fields if path not in schema]
    frame = frame.with_columns(fields) if fields else frame
    own = frame.collect_schema()
    columns = [clip_to_calendar(pl.col(name), dtype).alias(name) for name, dtype in own.items() if has_date(dtype)]
    columns += [pl.lit(value, pl.String).alias(key) for key, value in folders.items() if key not in own]
    return frame.with_columns(columns) if columns else frame


def scan_with_place(source: Source, as_text: Sequence[str] = ()) -> pl.LazyFrame:
    """One source with its path in `FILE` and the number of each row, from 1, in `ROW`."""
    return (
        scan_sources([source], as_text).with_row_index(ROW, offset=1).with_columns(pl.lit(str(source.path)).alias(FILE))
    )


def untyped_columns(sources: Sequence[Source], columns: Collection[str]) -> set[str]:
    """Those columns that are text only because files, or names of folders, have no types."""
    if any(source.format in TEXT_SEPARATORS for source in sources):
        return set(columns)
    return {name for source in sources for name, _ in source.hive if name in columns}


def has_rows(source: Source) -> bool:
    """Whether a file holds rows."""
    with reading([source]):
        if source.format == "ndjson":  # whose rows Polars may not be able to read
            rows = scan_lines(source, lossy=True).filter(pl.col(LINE).str.strip_chars() != "")
        else:
            rows = scan_sources([source])
        return bool(rows.head(1).select(pl.len()).collect().item())


def header_of(source: Source) -> list[str]:
    """The names in the first line of a CSV or TSV file, as they stand there; none in other formats."""
    if source.format not in TEXT_SEPARATORS:
        return []
    if source.dialect.columns:
        return list(source.dialect.columns)
    return first_fields(source)


def first_fields(source: Source) -> list[str]:
    """The fields of the first line of a CSV or TSV file."""
    first = scan_lines(source, lossy=True).select(pl.col(LINE).fill_null("")).head(_HEADER_LINES).collect().to_series()
    lines = (line.removeprefix("\ufeff") for line in first)
    quoting = csv.QUOTE_NONE if source.quoted is False else csv.QUOTE_MINIMAL
    rows = csv.reader(lines, delimiter=separator_of(source), quoting=quoting)
    return next((row for row in rows if row), list[str]())


def scan_lines(source: Source, *, lossy: bool = False) -> pl.LazyFrame:
    """The lines of one text file in `LINE`, with their number, from 1, in `ROW`; a blank line may be null.

    What is not UTF-8 is an error, or with `lossy` replaced.
    """
    path = source.place if isinstance(source.place, Path) else str(source.place)
    lines = pl.scan_csv(
        path,
        separator=_NO_SEPARATOR,
        quote_char=None,
        has_header=False,
        schema={LINE: pl.String},
        truncate_ragged_lines=True,
        encoding="utf8-lossy" if lossy else "utf8",
        glob=False,
        storage_options=storage_options(source.place) or None,
    )
    return lines.with_row_index(ROW, offset=1)


@contextmanager
def reading(sources: Sequence[Source]) -> Generator[None]:
    """Turn what Polars says about unreadable input into an error that names the file.

    Raises:
        LogFormatError: a file is damaged, or not what its name says.
    """
    try:
        yield
    except _UNREADABLE as error:
        for source in sources:  # each by itself, to find the file at fault
            try:
                scan_sources([source]).select(pl.all().is_null().any()).collect(engine="streaming")
            except _UNREADABLE as cause:
                line = _first_line(cause)
                message = f"{source.path}: cannot be read as {source.format}: {line}{_hint(source, line)}"
                raise LogFormatError(message) from error
        raise LogFormatError(f"cannot read the log: {_first_line(error)}") from error


def _hint(source: Source, line: str) -> str:
    """The option that an unreadable text file probably needs."""
    if "utf" in line.lower():
        return " Name its encoding with --encoding, e.g. cp1252 or shift_jis; `posbias check` recognises it."
    if "more fields" in line and len(header := header_of(source)) == 1:
        marks = [name for mark, name in ((";", "';'"), ("\t", "tab"), ("|", "'|'"), (",", ",")) if mark in header[0]]
        return f" Are fields separated by another mark? Use --separator {marks[0]}." if marks else ""
    return ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".") + "."


_RENAMED = "_duplicated_"  # by Polars


def check_headers(sources: Sequence[Source], columns: Iterable[str]) -> None:
    """Check that each file has one column of each of these names, and none that differs from it by blanks only.

    Raises:
        SchemaError: a name stands twice, so that nobody knows which column is meant.
    """
    named = {name.strip() for name in columns if name.strip()}
    for source in sources:
        with reading([source]):
            names = list(schema_of(source))
            if any(_RENAMED in name for name in names):
                names = header_of(source) or names
        for name in named:
            if len(alike := [other for other in names if other.strip() == name]) > 1:
                raise SchemaError(
                    f"{source.path}: {len(alike)} columns are called alike: {', '.join(map(repr, alike))}. Rename all "
                    "but one of them."
                )


_QUOTED = r'"(?:[^"]|"")*"'
_LONGEST_RECORD = 1000  # lines of one row: a snippet of text may have some
_SHOWN = 60  # letters
_QUOTES, _RECORD, _TEXT = "posbias_quotes", "posbias_record", "posbias_text"

_Quotes = tuple[bool, int | None, str]
"""The use of quotes in a text file: whether names of columns are in quotes, the first line, from 1, where they do not
mark fields, None where all of them may, and the beginning of that line."""

Each = Callable[[Iterable[Source], Callable[[Source], _Quotes]], Iterator[_Quotes]]
"""Does something to each source, as `Engine.each` does."""


def resolve_quotes(sources: Sequence[Source], each: Each | None = None) -> tuple[tuple[Source, ...], list[str]]:
    """Find out what quotes mean in text files. Each is read once for that.

    Returns:
        The sources with `quoted` set, and what a reader should know about them.

    Raises:
        LogFormatError: quotes of CSV are not balanced, so that lines would be swallowed.
    """
    of_text = [source for source in sources if source.format in TEXT_SEPARATORS and source.quoted is None]
    with reading(of_text):
        places = [source.with_absolute_path for source in of_text]
        uses = dict(zip(of_text, map(_quotes_of, places) if each is None else each(places, _quotes_of), strict=True))
    strays = [(source, *quotes) for source, quotes in uses.items() if quotes[1] is not None]
    for source, in_header, line, text in strays:
        if source.format == "csv" or in_header:
            raise LogFormatError(
                f"{source.path} line {line}: a quote is opened but not closed at the end of a field, so "
                f"the lines that follow would be lost: {text!r}. Put such a field in quotes and double "
                'those inside ("5"" tv"), or write the log as Parquet.'
            )
    notes = [f"{source.path} line {line}: quotes in TSV are read as letters." for source, _, line, _ in strays[:1]]
    quoted = {source: source.format == "csv" or not strays or in_header for source, (in_header, _, _) in uses.items()}
    return tuple(replace(one, quoted=quoted[one]) if one in quoted else one for one in sources), notes


def with_quotes(sources: Iterable[Source]) -> list[Source]:
    """The sources, those of TSV with what quotes mean in them, without which samples of them cannot be read."""
    return [resolve_quotes([source])[0][0] if source.format == "tsv" else source for source in sources]


@cache
def _quotes_of(source: Source) -> _Quotes:
    """Read the lines that hold quotes."""
    separator, n_columns = separator_of(source), len(header_of(source))
    lines = scan_lines(source, lossy=True).filter(pl.col(LINE).str.contains('"', literal=True))
    quotes = pl.col(LINE).str.count_matches('"', literal=True)
    in_header = (pl.col(ROW).min() == 1) & (not source.dialect.columns)
    odd = quotes % 2 == 1
    columns = [in_header.alias("in_header"), odd.any().alias("odd")]
    if source.format == "tsv":
        between = odd.cum_sum() % 2 == 1  # lines of a field that runs over several
        # With an even number of quotes, there are some that mark no field; or without those there are more fields.
        mark = re.escape(separator)
        field = f'(?:[^"{mark}]*|{_QUOTED})'
        marked = pl.col(LINE).str.contains(f"^{field}(?:{mark}{field})*$")
        as_marked = _fields(pl.col(LINE).str.replace_all(_QUOTED, ""), separator)
        fits = (_fields(pl.col(LINE), separator) == n_columns) & (as_marked != n_columns)
        stray = ~odd & ~between & (~marked | fits)
        columns.append(pl.col(ROW).filter(stray).min().alias("stray"))
    seen = lines.select(columns).collect(engine="streaming").row(0, named=True)
    places = [seen.get("stray"), _first_swallowing(source, separator, n_columns) if seen["odd"] else None]
    first = min((place for place in places if place is not None), default=None)
    text = "" if first is None else lines.filter(pl.col(ROW) == first).select(LINE).collect().item()
    return bool(seen["in_header"]), first, text[:_SHOWN]


def _fields(text: pl.Expr, separator: str) -> pl.Expr:
    return text.str.count_matches(separator, literal=True) + 1


def _first_swallowing(source: Source, separator: str, n_columns: int) -> int | None:
    """The first line from which a row runs over several lines that are no row together, or each of them one.

    Between a line with an odd number of quotes and the next one lies what a reader takes for one row.
    """
    text = pl.col(LINE).fill_null("")
    odd = text.str.count_matches('"', literal=True) % 2
    lines = scan_lines(source, lossy=True).with_columns(text, odd.alias(_QUOTES))
    rows = (
        lines.with_columns(pl.col(_QUOTES).cum_sum().alias(_RECORD))
        .filter((pl.col(_RECORD) % 2 == 1) | (pl.col(_QUOTES) == 1))
        .group_by((pl.col(_RECORD) + 1) // 2)
        .agg(
            pl.col(ROW).min(),
            pl.len().alias("lines"),
            (_fields(pl.col(LINE), separator) == n_columns).all().alias("rows_each"),
            pl.col(LINE).sort_by(ROW).head(_LONGEST_RECORD).str.join("\n").alias(_TEXT),
        )
    )
    without = pl.col(_TEXT).str.replace_all(_QUOTED, "")
    whole = ~without.str.contains(r'["\n]') & (_fields(without, separator) == n_columns)
    swallowing = rows.filter(pl.col("rows_each") | (pl.col("lines") > _LONGEST_RECORD) | ~whole)
    return swallowing.select(pl.col(ROW).min()).collect(engine="streaming").item()
