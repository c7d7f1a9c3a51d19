"""The files of a log as they are to be read: in the dialect that was said, and from copies where Polars needs them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.io.log.contents import format_of_content, wide_encoding
from posbias.io.log.dialect import PLAIN, Dialect
from posbias.io.log.scan import TEXT_SEPARATORS, first_fields, reading
from posbias.io.log.sources import Source, check_whole, find_sources
from posbias.io.log.text_copies import STANDARD_INPUT, as_lines, in_utf8, spool_standard_input
from posbias.io.places.locations import Location, ObjectUrl

_TELLING = 1 << 16  # bytes
_PAIR = 2  # bytes of a letter of UTF-16


def find_log_files(names: Sequence[str], dialect: Dialect = PLAIN) -> tuple[Source, ...]:
    """The files behind files, globs, directories and `-`, standard input, in a stable order.

    Raises:
        LogFormatError: nothing is there, a file is empty, truncated, of an unknown format or not in that encoding.
        SchemaError: a line has more fields, or fewer, than there are names of columns.
        UsageError: a file is named twice.
        OutputError: there is no space for a copy.
    """
    if names.count(STANDARD_INPUT) > 1:
        raise UsageError("- is named twice: standard input can be read once. Name it once.")
    named = [name for name in names if name != STANDARD_INPUT]
    found = find_sources(named)
    if STANDARD_INPUT in names:
        found.insert(names.index(STANDARD_INPUT) if len(names) == len(found) + 1 else len(found), _standard_input())
    return tuple(_in_dialect(source, dialect) for source in found)


def check_dialect_matters(sources: Sequence[Source], dialect: Dialect) -> None:
    """See that there is a file of text for which the dialect means something.

    Raises:
        UsageError: there is none.
    """
    formats = {source.format for source in sources}
    fields = formats & set(TEXT_SEPARATORS)
    idle = [flag for flag in dialect.options if not (fields or (flag == "--encoding" and "ndjson" in formats))]
    if idle:
        raise UsageError(
            f"{idle[0]}: has no effect here: the log is {' and '.join(sorted(formats))}, and no text that it is about. "
            "Leave it out."
        )


_made: dict[tuple[Source, Dialect], Source] = {}
_piped: list[Source] = []
"""What was copied already, by what it was made of: a command may open its log several times."""


def _standard_input() -> Source:
    """Standard input as a file; the same one if it is asked for again."""
    if _piped and _is_there(_piped[0].place):
        return _piped[0]
    _piped[:] = [_spooled_input()]
    return _piped[0]


def _spooled_input() -> Source:
    spooled = spool_standard_input()
    status = spooled.stat()
    if not status.st_size:
        raise LogFormatError("-: standard input is empty. Did the command before the pipe fail?")
    with spooled.open("rb") as file:
        form = format_of_content(file.read(_TELLING))
    if form is None:
        raise LogFormatError("-: cannot tell the format of standard input. Pipe CSV, TSV, NDJSON or Parquet into it.")
    source = Source(
        *(Path(STANDARD_INPUT), form, (), status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino)),
        spooled=spooled,
    )
    check_whole(source)
    if form in {*TEXT_SEPARATORS, "ndjson"}:
        _check_last_line(spooled)
    return source


def _check_last_line(spooled: Path) -> None:
    with spooled.open("rb") as file:
        file.seek(max(spooled.stat().st_size - 2, 0))
        last = file.read()
    if not {*b"\r\n"} & {*last}:  # in UTF-16 a zero byte may follow
        raise LogFormatError(
            "-: standard input ends in the middle of a line. Did the command before the pipe fail? If it is whole, end "
            "its last line with a line break."
        )


def _is_there(copy: Location) -> bool:
    return isinstance(copy, Path) and copy.exists()


def _in_dialect(source: Source, dialect: Dialect) -> Source:
    """A file with its dialect, and a copy where it has to be one."""
    made = _made.get((source, dialect))
    if made is not None and _is_there(made.place):
        return made
    read = _read_in(source, dialect)
    if read.place != source.place:
        _made[source, dialect] = read
    return read


def _read_in(source: Source, dialect: Dialect) -> Source:
    if source.format not in {*TEXT_SEPARATORS, "ndjson", "json"}:
        return source
    if dialect.encoding is not None:
        source = replace(source, copy=in_utf8(source.place, dialect.encoding, source.path))
    else:
        _check_narrow(source)
    if source.format == "json":
        source = replace(source, format="ndjson", copy=as_lines(source.place, source.path))
    if source.format == "ndjson":
        return source
    source = replace(source, dialect=dialect)
    if dialect.columns:
        _check_width(source, dialect.columns)
    return source


def _check_narrow(source: Source) -> None:
    """See that a file does not begin as UTF-16 does; for that, objects of a store are not asked.

    Raises:
        LogFormatError: it does.
    """
    if isinstance(source.place, ObjectUrl):
        return
    with source.place.open("rb") as file:
        found = wide_encoding(file.read(_PAIR))
    if found is not None:
        raise LogFormatError(f"{source.path}: is not UTF-8, but {found}. Say --encoding {found}.")


def _check_width(source: Source, columns: Sequence[str]) -> None:
    with reading([source]):
        first = first_fields(source)
    if len(first) != len(columns):
        raise SchemaError(
            f"{source.path}: the first line has {len(first)} fields, and --columns names {len(columns)}: "
            f"{', '.join(first[:10])}. Name each of them, in order."
        )
