"""The files of a log as they are to be read: in the dialect that was said, and from copies where Polars needs them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.io.log.contents import format_of_content, wide_encoding
from posbias.io.log.dialect import PLAIN, Dialect
from posbias.io.log.scan import TEXT_SEPARATORS, first_fields, reading
from posbias.io.log.sources import Source, check_whole, find_sources, read_end, read_start
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
    last = read_end(source, 2)  # in UTF-16 a zero byte may follow the line break
    if form in {*TEXT_SEPARATORS, "ndjson"} and not {*b"\r\n"} & {*last}:
        raise LogFormatError(
            "-: standard input ends in the middle of a line. Did the command before the pipe fail? If it is whole, end "
            "its last line with a line break."
        )
    _piped[:] = [source]
    return source


def _is_there(copy: Location) -> bool:
    return isinstance(copy, Path) and copy.exists()


def _in_dialect(source: Source, dialect: Dialect) -> Source:
    """A file with its dialect, and a copy where it has to be one."""
    made = _made.get((source, dialect))
    if made is not None and _is_there(made.place):
        return made
    if source.format not in {*TEXT_SEPARATORS, "ndjson", "json"}:
        return source
    read = source
    if dialect.encoding is not None:
        read = replace(read, copy=in_utf8(read.place, dialect.encoding, read.path))
    elif not isinstance(read.place, ObjectUrl):  # objects of a store are not asked for that
        found = wide_encoding(read_start(read, _PAIR))
        if found is not None:
            raise LogFormatError(f"{read.path}: is not UTF-8, but {found}. Say --encoding {found}.")
    if read.format == "json":
        read = replace(read, format="ndjson", copy=as_lines(read.place, read.path))
    if read.format in TEXT_SEPARATORS:
        read = replace(read, dialect=dialect)
        _check_width(read, dialect.columns)
    if read.place != source.place:
        _made[source, dialect] = read
    return read


def _check_width(source: Source, columns: Sequence[str]) -> None:
    if not columns:
        return
    with reading([source]):
        first = first_fields(source)
    if len(first) != len(columns):
        raise SchemaError(
            f"{source.path}: the first line has {len(first)} fields, and --columns names {len(columns)}: "
            f"{', '.join(first[:10])}. Name each of them, in order."
        )
