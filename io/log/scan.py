"""Source files as one lazy Polars frame, whatever their format."""

import csv
import glob
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path

import polars as pl

from posbias.core.errors import LogFormatError
from posbias.io.log.paths import is_path, with_paths
from posbias.io.log.sources import Source
from posbias.io.places.locations import ObjectUrl
from posbias.io.places.object_stores import storage_options

FILE = "posbias_file"
ROW = "posbias_row"
LINE = "posbias_line"

TEXT_SEPARATORS = {"csv": ",", "tsv": "\t"}
"""The formats that have no types, and what stands between their fields."""


def separator_of(source: Source) -> str:
    """What stands between the fields of a CSV or TSV file."""
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
    """What files have in common that Polars reads at once."""
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
        is_list = {name: isinstance(schema.get(name), pl.List) for name in as_text if not is_path(name, schema)}
        overrides = {name: pl.List(pl.String()) if of_lists else pl.String() for name, of_lists in is_list.items()}
        escaped = [_escaped(source) for source in sources]  # scan_ndjson always takes a path for a pattern
        frame = pl.scan_ndjson(
            escaped, infer_schema_length=_SCHEMA_ROWS, schema_overrides=overrides, storage_options=options
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
    frame, folders = with_paths(frame), dict(sources[0].hive)
    if not folders:
        return frame
    own = frame.collect_schema()
    return frame.with_columns(pl.lit(value, pl.String).alias(key) for key, value in folders.items() if key not in own)


def _escaped(source: Source) -> str:
    """A path as a pattern that only it fits.

    Raises:
        LogFormatError: it is in an object store, where Polars has no way to say so.
    """
    if isinstance(source.place, ObjectUrl) and glob.has_magic(str(source.path)):
        raise LogFormatError(f"{source.path}: NDJSON in an object store cannot have *, ? or [ in its name. Rename it.")
    return glob.escape(str(source.place))


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


def header_of(source: Source) -> list[str]:
    """The names in the first line of a CSV or TSV file, as they stand there; none in other formats."""
    if source.format not in TEXT_SEPARATORS:
        return []
    if source.dialect.columns:
        return list(source.dialect.columns)
    return first_fields(source)


def first_fields(source: Source) -> list[str]:
    """The fields of the first line of a CSV or TSV file."""
    first = scan_lines(source, lossy=True).select(pl.col(LINE).fill_null("")).head(_HEADER_LINES).collect()
    lines = (line.removeprefix("\ufeff") for line in first.to_series())
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
        raise LogFormatError(_first_broken(sources) or f"cannot read the log: {_first_line(error)}") from error


def _first_broken(sources: Sequence[Source]) -> str | None:
    """Read each file by itself to find the one at fault."""
    for source in sources:
        try:
            scan_sources([source]).select(pl.all().is_null().any()).collect(engine="streaming")
        except _UNREADABLE as error:
            said = _first_line(error)
            hint = " Name its encoding with --encoding, e.g. cp1252." if "utf" in said.lower() else ""
            return f"{source.path}: cannot be read as {source.format}: {said}{hint}"
    return None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".") + "."
