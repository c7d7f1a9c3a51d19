"""Source files as one lazy Polars frame, whatever their format; and the meaning of quotes in text files.

A quote encloses a field, or is a character of it. A reader that mistakes one for the other swallows lines: a query
`"nike`, not quoted by its writer, opens a field that ends at the next quote, lines further down.

CSV is read by RFC 4180: quotes around a field, doubled inside. TSV is written in two ways: like CSV by pandas, Spark or
BigQuery, literally by databases and most tools of the field. It is read like CSV unless quotes stand where no such
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


def holds_structs(dtype: pl.DataType) -> bool:
    """Return True for structs, and lists and arrays of structs, whose fields are columns with a path."""
    return isinstance(dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype, pl.Struct)


def _leaves(path: str, values: pl.Expr, dtype: pl.DataType) -> Iterator[tuple[str, pl.Expr, pl.DataType]]:
    """Yield path, values and type of each innermost field of structs; of another column, the column itself.

    A field of structs in a list is a list with an entry for each struct; nested fields of such structs are left out.
    """
    if isinstance(dtype, pl.Struct):
        for field in dtype.fields:
            inner = pl.Series(dtype=field.dtype).dtype  # a type may be given as its class
            yield from _leaves(f"{path}.{field.name}", values.struct.field(field.name), inner)
    elif isinstance(dtype, pl.List | pl.Array) and isinstance(dtype.inner, pl.Struct):
        values = values.arr.to_list() if isinstance(dtype, pl.Array) else values
        for rest, entry, inner in _leaves("", pl.element(), dtype.inner):
            if not inner.is_nested():
                yield f"{path}{rest}", values.list.eval(entry), pl.List(inner)
    else:
        yield path, values, dtype


FILE = "posbias_file"
ROW = "posbias_row"
LINE = "posbias_line"

TEXT_SEPARATORS = {"csv": ",", "tsv": "\t"}
"""Usual separators of the formats without types."""


def separator_of(source: Source) -> str:
    """Return the separator of a CSV or TSV file."""
    return source.dialect.separator or TEXT_SEPARATORS[source.format]


_NO_SEPARATOR = "\x01"  # does not occur in text; JSON escapes it
_SCHEMA_ROWS = 1000
_HEADER_LINES = 100  # names may have line breaks in quotes
_READ_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError)


def scan_sources(sources: Sequence[Source], as_text: Sequence[str] = ()) -> pl.LazyFrame:
    """Scan files of any formats as one frame, with text columns for folders `key=value` and a column per leaf field.

    Columns of CSV and TSV are text ("007" is not 7).

    Args:
        sources: the files.
        as_text: columns of NDJSON to read as text, so that a value of the wrong type can be reported.

    Raises:
        LogFormatError: NDJSON in an object store has a name with a wildcard.
    """
    frames = [_scan([*group], as_text) for _, group in groupby(sources, key=_scan_key)]
    if len(frames) == 1:
        return frames[0]
    schemas = [frame.collect_schema() for frame in frames]
    types = {name: {schema[name] for schema in schemas if name in schema} for schema in schemas for name in schema}
    times = {name: of_files for name, of_files in types.items() if all(map(has_date, of_files))}
    mixed = {name for name, of in times.items() if len({getattr(dtype, "time_zone", None) for dtype in of}) > 1}
    in_utc = [  # times of different zones, or of a zone and of none, have no common type
        frame.with_columns(pl.col(name).cast(pl.Datetime("us")) for name in schema if name in mixed)
        for frame, schema in zip(frames, schemas, strict=True)
    ]
    return pl.concat(in_utc, how="diagonal_relaxed")


def _scan_key(source: Source) -> tuple[object, ...]:
    """Return the properties that files of one Polars scan have in common."""
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
    """Return the schema of a file, with the leaf fields of structs; cached."""
    return _scan([source], ()).collect_schema()


def _scan(sources: Sequence[Source], as_text: Sequence[str]) -> pl.LazyFrame:
    """Scan files that share their `_scan_key`."""
    form, options = sources[0].format, storage_options(sources[0].place) or None
    on_disk = [source.place for source in sources if isinstance(source.place, Path)]
    paths = on_disk or [str(source.place) for source in sources]
    if form == "parquet":
        frame = pl.scan_parquet(paths, hive_partitioning=False, glob=False, storage_options=options)
    elif form == "ipc":
        frame = pl.scan_ipc(paths, hive_partitioning=False, glob=False, storage_options=options)
    elif form == "ndjson":
        schema = schema_of(sources[0]) if as_text else pl.Schema()
        structs = tuple(f"{name}." for name, dtype in schema.items() if holds_structs(dtype))
        is_list = {name: isinstance(schema.get(name), pl.List) for name in as_text if not name.startswith(structs)}
        overrides = {name: pl.List(pl.String()) if nested else pl.String() for name, nested in is_list.items()}
        for source in sources:  # scan_ndjson expands wildcards, which cannot be escaped in URLs
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
    # Fields that no query uses cost nothing.
    leaves = [leaf for name, dtype in schema.items() for leaf in _leaves(name, pl.col(name), dtype)]
    fields = [values.alias(path) for path, values, _ in leaves if path not in schema]
    frame = frame.with_columns(fields) if fields else frame
    own = frame.collect_schema()
    columns = [clip_to_calendar(pl.col(name), dtype).alias(name) for name, dtype in own.items() if has_date(dtype)]
    columns += [pl.lit(value, pl.String).alias(key) for key, value in folders.items() if key not in own]
    return frame.with_columns(columns) if columns else frame


def scan_with_place(source: Source, as_text: Sequence[str] = ()) -> pl.LazyFrame:
    """Scan a file with its path in `FILE` and the number of each row, from 1, in `ROW`."""
    rows = scan_sources([source], as_text).with_row_index(ROW, offset=1)
    return rows.with_columns(pl.lit(str(source.path)).alias(FILE))


def untyped_columns(sources: Sequence[Source], columns: Collection[str]) -> set[str]:
    """Return the columns that are text because CSV, TSV and names of folders have no types."""
    if any(source.format in TEXT_SEPARATORS for source in sources):
        return set(columns)
    return {name for source in sources for name, _ in source.hive if name in columns}


def has_rows(source: Source) -> bool:
    """Return True if a file has at least one row.

    Raises:
        LogFormatError: the file cannot be read.
    """
    with reading([source]):
        if source.format == "ndjson":  # Polars may fail to parse the rows
            rows = scan_lines(source, lossy=True).filter(pl.col(LINE).str.strip_chars() != "")
        else:
            rows = scan_sources([source])
        return bool(rows.head(1).select(pl.len()).collect().item())


def header_of(source: Source) -> list[str]:
    """Return the unmodified column names of a CSV or TSV file, repeated ones as well; none for other formats."""
    if source.format not in TEXT_SEPARATORS:
        return []
    if source.dialect.columns:
        return list(source.dialect.columns)
    return first_fields(source)


def first_fields(source: Source) -> list[str]:
    """Read the fields of the first line of a CSV or TSV file that is not blank."""
    first = scan_lines(source, lossy=True).select(pl.col(LINE).fill_null("")).head(_HEADER_LINES).collect().to_series()
    lines = (line.removeprefix("\ufeff") for line in first)
    quoting = csv.QUOTE_NONE if source.quoted is False else csv.QUOTE_MINIMAL
    rows = csv.reader(lines, delimiter=separator_of(source), quoting=quoting)
    return next((row for row in rows if row), list[str]())


def scan_lines(source: Source, *, lossy: bool = False) -> pl.LazyFrame:
    """Scan the lines of a text file as `LINE`, with their numbers, from 1, in `ROW`; a blank line may be null.

    Bytes that are not UTF-8 are an error of Polars, or with `lossy` replaced.
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
    """Translate errors of reading in the block to LogFormatError, which names the first unreadable file."""
    try:
        yield
    except _READ_ERRORS as error:
        for source in sources:
            try:
                scan_sources([source]).select(pl.all().is_null().any()).collect(engine="streaming")
            except _READ_ERRORS as cause:
                reason = _first_line(cause)
                message = f"{source.path}: cannot be read as {source.format}: {reason}{_hint(source, reason)}"
                raise LogFormatError(message) from error
        raise LogFormatError(f"cannot read the log: {_clash(sources) or _first_line(error)}") from error


def _clash(sources: Sequence[Source]) -> str:
    """Name the first column whose types in two files have none in common; empty if there is none."""
    first: dict[str, Source] = {}
    for source in sources:
        for name, dtype in schema_of(source).items():
            other = first.setdefault(name, source)
            theirs = schema_of(other)[name]
            try:
                pl.concat(
                    [pl.DataFrame(schema={name: theirs}), pl.DataFrame(schema={name: dtype})], how="vertical_relaxed"
                )
            except pl.exceptions.PolarsError:
                return (
                    f"column {name!r} holds {theirs} in {other.path} and {dtype} in {source.path}. Write the files "
                    "with the same type, or leave the column out by a query (--sql, EXCLUDE)."
                )
    return ""


def _hint(source: Source, reason: str) -> str:
    """Return the option that an unreadable text file probably needs."""
    if "utf" in reason.lower():
        return " Name its encoding with --encoding, e.g. cp1252 or shift_jis; `posbias check` recognises it."
    if "more fields" in reason and len(header := header_of(source)) == 1:
        marks = [name for mark, name in ((";", "';'"), ("\t", "tab"), ("|", "'|'"), (",", ",")) if mark in header[0]]
        return f" Are fields separated by another mark? Use --separator {marks[0]}." if marks else ""
    if "supertype" in reason:
        query = "--sql 'SELECT * REPLACE (CAST(FIELD AS VARCHAR) AS FIELD) FROM log'"
        return (
            f" A field is a list or an object on some lines, and neither on others. Read such fields as text: {query}."
        )
    return ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".") + "."


_REPEATED_NAME = "_duplicated_"  # Polars' suffix


def check_headers(sources: Sequence[Source], columns: Iterable[str]) -> None:
    """Raise SchemaError if a file has several columns of one of the names, but for blanks around it."""
    required = {name.strip() for name in columns if name.strip()}
    for source in sources:
        with reading([source]):
            names = list(schema_of(source))
            if any(_REPEATED_NAME in name for name in names):
                names = header_of(source) or names
        for name in required:
            if len(alike := [other for other in names if other.strip() == name]) > 1:
                raise SchemaError(
                    f"{source.path}: {len(alike)} columns are called alike: {', '.join(map(repr, alike))}. Rename all "
                    "but one of them."
                )


_QUOTED = r'"(?:[^"]|"")*"'
_LONGEST_RECORD = 1000  # lines of one row: a snippet of text may have several
_SHOWN = 60  # characters
_QUOTES, _RECORD, _TEXT = "posbias_quotes", "posbias_record", "posbias_text"

_Quotes = tuple[bool, int | None, str]
"""Quotes of a text file: whether the header has some; the first line, from 1, with a quote that encloses no field, None
if there is none; and the first characters of that line."""

Each = Callable[[Iterable[Source], Callable[[Source], _Quotes]], Iterator[_Quotes]]
"""Map a function over sources, as `Engine.each` does."""


def resolve_quotes(sources: Sequence[Source], each: Each | None = None) -> tuple[tuple[Source, ...], list[str]]:
    """Determine the meaning of quotes in text files, each of which is read once.

    Returns:
        The sources with `quoted` set, and notes for the user.

    Raises:
        LogFormatError: a quote of CSV, or of TSV with a quoted header, encloses no field: lines would be swallowed.
    """
    texts = [source for source in sources if source.format in TEXT_SEPARATORS and source.quoted is None]
    with reading(texts):
        places = [source.with_absolute_path for source in texts]
        uses = dict(zip(texts, map(_quotes_of, places) if each is None else each(places, _quotes_of), strict=True))
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
    """Resolve the quotes of TSV alone, without which samples of it cannot be read."""
    return [resolve_quotes([source])[0][0] if source.format == "tsv" else source for source in sources]


@cache
def _quotes_of(source: Source) -> _Quotes:
    """Determine the use of quotes from the lines with quotes."""
    separator, n_columns = separator_of(source), len(header_of(source))
    lines = scan_lines(source, lossy=True).filter(pl.col(LINE).str.contains('"', literal=True))
    quotes = pl.col(LINE).str.count_matches('"', literal=True)
    in_header = (pl.col(ROW).min() == 1) & (not source.dialect.columns)
    odd = quotes % 2 == 1
    columns = [in_header.alias("in_header"), odd.any().alias("odd")]
    if source.format == "tsv":
        inside = odd.cum_sum() % 2 == 1  # lines of a field that extends over several lines
        # A line with an even number of quotes has a stray one if they enclose no fields, or if it has the right number
        # of fields only when quotes are characters.
        mark = re.escape(separator)
        field = f'(?:[^"{mark}]*|{_QUOTED})'
        is_quoted = pl.col(LINE).str.contains(f"^{field}(?:{mark}{field})*$")
        n_quoted = _n_fields(pl.col(LINE).str.replace_all(_QUOTED, ""), separator)
        is_literal = (_n_fields(pl.col(LINE), separator) == n_columns) & (n_quoted != n_columns)
        stray = ~odd & ~inside & (~is_quoted | is_literal)
        columns.append(pl.col(ROW).filter(stray).min().alias("stray"))
    use = lines.select(columns).collect(engine="streaming").row(0, named=True)
    places = [use.get("stray"), _first_swallowing(source, separator, n_columns) if use["odd"] else None]
    first = min((place for place in places if place is not None), default=None)
    text = "" if first is None else lines.filter(pl.col(ROW) == first).select(LINE).collect().item()
    return bool(use["in_header"]), first, text[:_SHOWN]


def _n_fields(text: pl.Expr, separator: str) -> pl.Expr:
    return text.str.count_matches(separator, literal=True) + 1


def _first_swallowing(source: Source, separator: str, n_columns: int) -> int | None:
    """Return the first line of a quoted row over several lines that are no row together, or a row each.

    A reader joins the lines from one with an odd number of quotes to the next one.
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
            (_n_fields(pl.col(LINE), separator) == n_columns).all().alias("rows_each"),
            pl.col(LINE).sort_by(ROW).head(_LONGEST_RECORD).str.join("\n").alias(_TEXT),
        )
    )
    without = pl.col(_TEXT).str.replace_all(_QUOTED, "")
    is_row = ~without.str.contains(r'["\n]') & (_n_fields(without, separator) == n_columns)
    swallowing = rows.filter(pl.col("rows_each") | (pl.col("lines") > _LONGEST_RECORD) | ~is_row)
    return swallowing.select(pl.col(ROW).min()).collect(engine="streaming").item()
