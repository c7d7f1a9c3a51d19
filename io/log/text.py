"""Inputs that are converted before they are read: standard input, text in other encodings, JSON that is not in lines.

Conversions are written beside the temporary files, in bounded memory, and exist until the command ends.
"""

import codecs
import json
import re
import shutil
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.core.roles import NAMES_IN_EXPORTS, plain_name
from posbias.core.schema import ALIASES, QUERY, SESSION
from posbias.io.log.scan import TEXT_SEPARATORS, first_fields, reading
from posbias.io.log.sources import (
    DECOMPRESSION_ERRORS,
    PLAIN,
    STANDARD_INPUT,
    Dialect,
    Source,
    check_whole,
    decompress,
    decompress_start,
    find_sources,
    format_of_content,
    is_compressed,
    read_end,
    read_start,
    utf_16_variant,
)
from posbias.io.places.locations import Location, ObjectUrl
from posbias.io.places.object_stores import copies, download, folder_for_copies
from posbias.io.places.temporary import temporary_files

_PIECE = 1 << 20  # bytes
_LARGEST_ROW = 64 << 20  # characters of one row of a JSON array
_MAGIC = 4  # bytes of the magic number of a compressed file
_UTF_8 = "utf-8-sig"
_BLANKS = " \t\r\n"


def is_terminal(stream: BinaryIO) -> bool:
    """Return True if a stream reads from a terminal."""
    return stream.isatty()


def _convert(source: Source, encoding: str | None) -> Path:
    """Write a file as UTF-8 without a byte order mark, and JSON that is not in lines as NDJSON.

    Raises:
        LogFormatError: a byte is invalid in the encoding; or the JSON is no array or sequence of objects, or truncated.
        OutputError: the disk is full.
    """
    texts = _decode(source, encoding)
    if source.format == "json":  # an array, a sequence of objects, or an object with a list of rows
        objects = _objects(texts, source.path)
        first, second = next(objects, None), next(objects, None)
        all_objects = chain(filter(None, (first, second)), objects)
        rows = (row for text in all_objects for row in _rows_in(text, is_single=second is None))
        texts = (row.replace("\r", " ").replace("\n", " ") + "\n" for row in rows)
    name = "rows.ndjson" if source.format == "json" else "utf-8"
    with _new_file(name) as path, path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(texts)
    return path


def _decode(source: Source, encoding: str | None) -> Iterator[str]:
    """Yield the text of a file in pieces; None stands for UTF-8.

    Raises:
        LogFormatError: a byte is invalid in the encoding, or the file is damaged.
    """
    shown, line = source.path, 1
    try:
        pieces = _decompress(_on_disk(source.place), shown)
        for number, text in enumerate(codecs.iterdecode(pieces, encoding or _UTF_8)):
            if encoding is not None and "\0" in text:
                line += text[: text.index("\0")].count("\n")
                raise LogFormatError(
                    f"{shown}: is not {encoding.removesuffix('-sig')}: there is a zero byte near line {line:,}. Is it "
                    "utf-16? Try another --encoding."
                )
            text.encode()  # fails for a lone surrogate of UTF-7
            yield text if number else text.removeprefix("\ufeff")
            line += text.count("\n")
    except UnicodeError as error:
        if encoding is None:
            raise LogFormatError(f"{shown}: is not UTF-8. Name its encoding with --encoding.") from error
        why = str(error)
        if isinstance(error, UnicodeDecodeError):
            line += error.object[: error.start].count(b"\n")
            why = f"near line {line:,} there is {error.object[error.start : error.end]!r}"
        name = encoding.removesuffix("-sig")
        raise LogFormatError(f"{shown}: is not {name}: {why}. Try another --encoding.") from error


def _in_lines(source: Source, encoding: str | None) -> bool:
    """Return True if NDJSON, by its start, has an object per line: no array, no object of many lines or of rows."""
    head = decompress_start(read_start(source, _START)).decode(encoding or _UTF_8, "ignore").lstrip(_BLANKS)
    first, _, others = head.partition("\n")
    first, others = first.rstrip(_BLANKS), others.strip(_BLANKS)
    is_cut = not others and source.bytes > _START
    if first[:1] != "{" or first[-1] in "{[," or is_cut:
        return first[:1] not in {"{", "["}
    return _rows_in(first, is_single=not others) == [first]


_FIELDS, _ENTRIES = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.json.Decoder(list[msgspec.Raw])
_LIST_OF_OBJECTS = re.compile(rb"\[\s*\{")
_QUERY_NAMES = frozenset(map(plain_name, ALIASES[QUERY])) | NAMES_IN_EXPORTS[QUERY]
_PAGE_NAMES = _QUERY_NAMES | frozenset(map(plain_name, ALIASES[SESSION]))
_EVENT_NAMES = frozenset(("event", "eventname", "eventtype", "type", "action"))


def _rows_in(text: str, *, is_single: bool) -> list[str]:
    """Return the rows in an object that is the envelope of a list; of another object, the object.

    Envelopes are requests, `{"batch": [{...}, ...]}` or with `events` that have properties. So is the only object
    of a file, such as `{"data": [...]}`, around its longest list of objects, if these have queries, ids of pages or
    lists, and it is no event and has no query.
    """
    with suppress(msgspec.DecodeError):
        levels = [_FIELDS.decode(text)]
        batch = bytes(levels[0].get("batch", b""))
        if b'"event_properties"' in (events := bytes(levels[0].get("events", b""))):  # a request of Amplitude's client
            batch = events
        if _LIST_OF_OBJECTS.match(batch):
            return [bytes(row).decode() for row in _ENTRIES.decode(batch)]
        if not is_single or not (_QUERY_NAMES | _EVENT_NAMES).isdisjoint(map(plain_name, levels[0])):
            return [text]
        lists = [[text.encode()]]
        for raw in (bytes(value) for level in levels for value in level.values()):
            levels += [_FIELDS.decode(raw)] if raw.startswith(b"{") else []
            lists += [[*map(bytes, _ENTRIES.decode(raw))]] if _LIST_OF_OBJECTS.match(raw) else []
        rows = [row.decode() for row in max(lists, key=len)]
        names = {plain_name(name) for name in re.findall(r'"(\w+)"\s*:', rows[0])}
        if re.search(r'"\s*:\s*\[', rows[0]) or not names.isdisjoint(_PAGE_NAMES):
            return rows
    return [text]


def _objects(pieces: Iterator[str], shown: Location) -> Iterator[str]:
    """Yield the text of each object of an array, or of a sequence of objects.

    Raises:
        LogFormatError: the text is neither, or damaged or truncated, or an object has more than 64 Mi characters.
    """
    # Only the ends of objects matter, and `int` refuses very long numbers.
    decoder, rest, number, done, enough = json.JSONDecoder(parse_int=str), "", 0, False, 0
    expected, after = "", ","
    for piece in chain(pieces, [""]):
        rest, enough = rest + piece, enough if piece else 0
        if not expected and (rest := rest.lstrip(_BLANKS)):
            expected, after = ("{", "{") if rest[0] == "{" else ("[", ",")
        while len(rest) >= enough and (rest := rest.lstrip(_BLANKS)):
            if done:
                raise LogFormatError(f"{shown}: the end of the array is followed by {rest[:20]!r}. Remove it.")
            if rest[0] == "]" and (expected == "," or (expected == "{" and not number)):
                done, rest = True, rest[1:]
                continue
            if rest[0] != expected:
                raise LogFormatError(
                    f"{shown}: row {number + 1:,} of the JSON: {expected!r} is expected, and {rest[:20]!r} is "
                    "there. Write an array of objects, or one object per line (.ndjson)."
                )
            if expected != "{":
                rest, expected = rest[1:], "{"
                continue
            try:
                _, end = decoder.raw_decode(rest)
            except (json.JSONDecodeError, RecursionError) as error:
                if len(rest) <= _LARGEST_ROW and not isinstance(error, RecursionError):
                    enough = 2 * len(rest)  # characters to wait for before the next attempt
                    break
                raise LogFormatError(
                    f"{shown}: row {number + 1:,} of the JSON cannot be read: {error}. Fix it, or write one "
                    "object per line (.ndjson)."
                ) from error
            yield rest[:end]
            number, rest, expected, enough = number + 1, rest[end:], after, 0
    if not done and (after == "," or rest.strip(_BLANKS)):
        raise LogFormatError(
            f"{shown}: the JSON is damaged or truncated in row {number + (expected == '{'):,}: {rest[:40]!r}. "
            "Write it again, or one object per line (.ndjson)."
        )


def _on_disk(place: Location) -> Path:
    """Return a path, or download an object."""
    if not isinstance(place, ObjectUrl):
        return place
    with _new_file("object") as path:
        download(place, path)
    return path


def _decompress(path: Path, shown: Location) -> Iterator[bytes]:
    """Yield the decompressed content of a file in pieces.

    Raises:
        LogFormatError: the file is damaged or truncated.
    """
    with path.open("rb") as file:
        try:
            yield from decompress(file)
        except DECOMPRESSION_ERRORS as error:
            raise LogFormatError(f"{shown}: is damaged or ends too early: {error}. Write it again.") from error


@contextmanager
def _new_file(name: str) -> Generator[Path]:
    """Yield the path of a new file, in a directory of its own, to be written in the block."""
    folder = folder_for_copies()
    with temporary_files(folder):
        yield folder / name


_START = 1 << 16  # bytes from which a format is detected
_UTF_16_UNIT = 2  # bytes
_STANDARD_INPUT = Path(STANDARD_INPUT)


def find_log_files(names: Sequence[str], dialect: Dialect = PLAIN) -> tuple[Source, ...]:
    """Resolve names to the files of a log, as `find_sources` does, and `-` to standard input; convert them if needed.

    Raises:
        LogFormatError: a name has no files, or a file is empty, truncated, of an unknown format or another encoding.
        SchemaError: the first line has more or fewer fields than --columns has names.
        UsageError: a file is named twice, or is a result of posbias.
        OutputError: the disk is full.
    """
    if names.count(STANDARD_INPUT) > 1:
        raise UsageError("- is named twice: standard input can be read once. Name it once.")
    named = [name for name in names if name != STANDARD_INPUT]
    files = find_sources(named)
    if STANDARD_INPUT in names:
        files.insert(names.index(STANDARD_INPUT) if len(names) == len(files) + 1 else len(files), _standard_input())
    return tuple(_in_dialect(source, dialect) for source in files)


def check_dialect_matters(sources: Sequence[Source], dialect: Dialect) -> None:
    """Raise UsageError if the dialect has an option for text files, and no file is one."""
    formats = {source.format for source in sources}
    fields = formats & set(TEXT_SEPARATORS)
    given = {"--separator": dialect.separator, "--encoding": dialect.encoding, "--no-header": dialect.columns}
    flags = [flag for flag, value in given.items() if value]
    idle = [flag for flag in flags if not (fields or (flag == "--encoding" and "ndjson" in formats))]
    if idle:
        raise UsageError(
            f"{idle[0]}: has no effect here: the log is {' and '.join(sorted(formats))}, and no text that it is about. "
            "Leave it out."
        )


def _standard_input() -> Source:
    """Write standard input, decompressed, to a file; later calls return the same file.

    Raises:
        LogFormatError: standard input is closed, a terminal, empty, of an unknown format, or ends within a line.
    """
    if STANDARD_INPUT in copies:
        return copies[STANDARD_INPUT]
    stream = cast("BinaryIO | None", getattr(sys.stdin, "buffer", None))
    if stream is None or stream.closed:
        raise LogFormatError("-: standard input is closed. Pipe a log into it, or name a file.")
    if is_terminal(stream):
        raise LogFormatError("-: standard input is a terminal. Pipe a log into it, or name a file.")
    with _new_file("standard-input") as spooled, spooled.open("wb") as file:
        shutil.copyfileobj(stream, file, _PIECE)
    with spooled.open("rb") as file:
        compressed = is_compressed(file.read(_MAGIC))
    if compressed:
        with _new_file("decompressed") as content, content.open("wb") as file:
            file.writelines(_decompress(spooled, _STANDARD_INPUT))
        spooled.unlink()
        spooled = content
    if not spooled.stat().st_size:
        raise LogFormatError("-: standard input is empty. Did the command before the pipe fail?")
    with spooled.open("rb") as file:
        form = format_of_content(file.read(_START))
    if form is None:
        raise LogFormatError("-: cannot tell the format of standard input. Pipe CSV, TSV, NDJSON or Parquet into it.")
    source = Source.temporary(STANDARD_INPUT, form, spooled)
    check_whole(source)
    last = read_end(source, 2)  # in UTF-16 a zero byte may follow the line break
    if form in {*TEXT_SEPARATORS, "ndjson"} and not {*b"\r\n"} & {*last}:
        raise LogFormatError(
            "-: standard input ends in the middle of a line. Did the command before the pipe fail? If it is whole, end "
            "its last line with a line break."
        )
    copies[STANDARD_INPUT] = source
    return source


def _in_dialect(source: Source, dialect: Dialect) -> Source:
    """Set the dialect of a text file, and convert it if needed."""
    if (source, dialect) in copies:
        return copies[source, dialect]
    if source.format not in {*TEXT_SEPARATORS, "ndjson", "json"}:
        return source
    read = source
    if dialect.encoding is None and not isinstance(read.place, ObjectUrl):  # objects would take a request each
        encoding = utf_16_variant(read_start(read, _UTF_16_UNIT))
        if encoding is not None:
            raise LogFormatError(f"{read.path}: is not UTF-8, but {encoding}. Use --encoding {encoding}.")
    if read.format == "ndjson" and not isinstance(read.place, ObjectUrl) and not _in_lines(read, dialect.encoding):
        read = replace(read, format="json")
    if dialect.encoding is not None or read.format == "json":
        read = replace(read, copy=_convert(read, dialect.encoding))
    if read.format == "json":
        read = replace(read, format="ndjson")
    if read.format in TEXT_SEPARATORS:
        read = replace(read, dialect=dialect)
        if columns := dialect.columns:
            with reading([read]):
                first = first_fields(read)
            if len(first) != len(columns):
                raise SchemaError(
                    f"{read.path}: the first line has {len(first)} fields, and --columns names {len(columns)}: "
                    f"{', '.join(first[:10])}. Name each of them, in order."
                )
    if read.place != source.place:
        copies[source, dialect] = read
    return read
