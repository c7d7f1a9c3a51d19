"""Resolve files, globs, directories and URLs to the input files of a log, each with its format and digest."""

import codecs
import errno
import glob
import gzip
import io
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from os import scandir
from pathlib import Path, PurePath
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote

import msgspec

from posbias.core.errors import LogFormatError, UsageError, mask_secrets
from posbias.io.places.locations import Location, ObjectUrl, checksum, is_text, location, open_plain, plain_file
from posbias.io.places.object_stores import find_object, named_objects, read_object, read_ranges
from posbias.io.results.manifest import FILE_NAME, LARGEST
from posbias.io.results.outputs import is_unfinished

_MAGIC = {b"PAR1": "parquet", b"ARROW1": "ipc"}
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_PIECE = 1 << 20  # bytes
DECOMPRESSION_ERRORS = (EOFError, OSError, zlib.error)
"""Errors of gzip and zstd for damaged and truncated files."""

_BINARY = frozenset({*range(9), *range(14, 27)})
"""Control characters that text files do not contain."""


def format_of_content(start: bytes) -> str | None:
    """Detect the format of a file from its first bytes.

    Returns:
        "parquet", "ipc", "ndjson", "json" (an array of objects), "tsv" or "csv"; None for binary or blank content.
    """
    for magic, form in _MAGIC.items():
        if start.startswith(magic):
            return form
    start = decompress_start(start)
    is_utf_16 = utf_16_variant(start) is not None
    for mark in (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        start = start.removeprefix(mark)
    if is_utf_16:
        start = start.replace(b"\0", b"")
    if not start.strip() or not _BINARY.isdisjoint(start):
        return None
    first = start.lstrip()
    if first.startswith(b"{"):
        return "ndjson"
    if first.startswith(b"[") and first[1:].lstrip()[:1] in {b"{", b"]", b""}:
        return "json"
    line = first.splitlines()[0]
    return "tsv" if b"\t" in line else "csv"


def utf_16_variant(start: bytes) -> str | None:
    """Return the name of the UTF-16 encoding, by byte order mark or by one zero byte among the first two; else None."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if start[:2].count(0) != 1:
        return None
    return "utf-16-be" if start[0] == 0 else "utf-16-le"


def is_compressed(start: bytes) -> bool:
    """Return True if the first bytes of a file are the magic number of gzip or zstd."""
    return start.startswith((_GZIP, _ZSTD))


def decompress(file: BinaryIO) -> Iterator[bytes]:
    """Yield the content in pieces of 1 MiB, decompressed if the file begins with the magic number of gzip or zstd.

    Raises:
        EOFError, OSError, zlib.error: the file is damaged or truncated.
    """
    start = file.read(len(_ZSTD))
    file.seek(0)
    stream: Any = file
    if start.startswith(_GZIP):
        stream = gzip.GzipFile(fileobj=file)
    elif start == _ZSTD:
        arrow: Any = import_module("pyarrow")  # only here: importing it takes time
        stream = arrow.CompressedInputStream(arrow.PythonFile(file, mode="r"), "zstd")
    while piece := stream.read(_PIECE):
        yield piece


def decompress_start(start: bytes) -> bytes:
    """Decompress as much of the first bytes of a file as can be; uncompressed ones stay."""
    if not is_compressed(start):
        return start
    content = b""
    with suppress(*DECOMPRESSION_ERRORS):  # `start` is truncated
        for piece in decompress(io.BytesIO(start)):
            content += piece
    return content


_SEPARATOR_NAMES = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
_LAST_ASCII = "\x7f"
_UTF_8 = ("utf-8", "utf-8-sig", "ascii")


@dataclass(frozen=True)
class Dialect:
    """Separator, encoding and column names of a text file."""

    separator: str | None = None  # between fields; None for the usual one of the format
    encoding: str | None = None  # Python's name of a codec; None for UTF-8
    columns: tuple[str, ...] = ()  # names for a file without a header line; empty for a file with one


PLAIN = Dialect()


def read_separator(text: str) -> str:
    """Parse --separator: one character, or a name such as `tab`.

    Raises:
        UsageError: the text is longer, a letter, a digit, a quote, a line break or not ASCII.
    """
    mark = _SEPARATOR_NAMES.get(text.lower(), text)
    if len(mark) != 1 or mark > _LAST_ASCII or mark.isalnum() or mark in "\"'\r\n\0\x01":
        names = ", ".join(_SEPARATOR_NAMES)
        raise UsageError(f"--separator {text}: give one character such as ';' or '|', or one of the names {names}.")
    return mark


def read_encoding(text: str) -> str:
    """Parse --encoding: return the normalised name of a text codec, `utf-8-sig` for UTF-8 and ASCII.

    Raises:
        UsageError: no text codec has this name.
    """
    try:
        "".encode(text)
        name = codecs.lookup(text).name
    except (LookupError, ValueError):
        raise UsageError(
            f"--encoding {text}: is not known. Give a name such as utf-8, latin-1, cp1252, utf-16 or shift_jis."
        ) from None
    return "utf-8-sig" if name in _UTF_8 else name


def read_columns(text: str | None, *, header: bool) -> tuple[str, ...]:
    """Parse --columns, such as `session,query,doc`; return no names for files with a header line.

    Raises:
        UsageError: a name is missing, empty or repeated.
    """
    if header:
        return ()
    if text is None:
        raise UsageError(
            "--no-header: name the columns in their order, e.g. --columns session,query,doc,position,click."
        )
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(
            f"--columns {text}: give each column a name of its own, e.g. session,query,doc,position,click."
        )
    return names


_RESULT_MARK = b'"posbias": "'
"""Bytes in the manifest of every result."""


def _files_below(
    folder: Path, link: Path | None = None, above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[Path, Path | None]]:
    """Yield the logs below a directory, sorted by name in each directory, each with the first directory link to it.

    Symbolic links are followed. Names that begin with `.` or `_` are skipped, and so are results of posbias in
    subdirectories.

    Args:
        folder: the directory.
        link: the first symbolic link on the way from the named directory to `folder`, if there is one.
        above: (device, inode) of the directories from the named one to the parent of `folder`.

    Raises:
        LogFormatError: a link is broken or circular, or a FIFO, socket or device has the name of a log.
        OSError: a directory cannot be listed.
    """
    status = folder.stat()
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        raise LogFormatError(
            f"{folder}: this link leads back to a directory that contains it. Remove the link, or name the directories "
            "to read."
        )
    with scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    if above and FILE_NAME in names and _manifest_of_result(folder / FILE_NAME) is not None:
        return
    for path in (folder / name for name in names if not name.startswith((".", "_"))):
        if path.is_dir():
            yield from _files_below(path, link or (path if path.is_symlink() else None), (*above, identity))
        elif path.is_file():
            if _is_log(path):
                yield path, link
        elif path.is_symlink() and (_is_log(path) or not path.suffix):
            raise LogFormatError(f"{path}: this link is broken, so rows may be missing. Fix it, or remove it.")
        elif _is_log(path):
            raise LogFormatError(
                f"{path}: is neither a file nor a directory, but is called like a log. Name files that can be read "
                "more than once, or move it away."
            )


def _manifest_of_result(manifest: Path) -> bytes | None:
    """Read the manifest of a result of posbias; None for another file. A FIFO is not opened."""
    file = manifest.resolve()
    if plain_file(file) is None:
        return None
    with open_plain(file) as opened:
        text = opened.read(LARGEST)
    return text if _RESULT_MARK in text else None


def _check_listable(pattern: str) -> None:
    """Raise OSError if a directory that a pattern covers cannot be listed: `glob` would silently skip it."""
    parts = Path(pattern).parts
    for number, part in enumerate(parts):
        if not glob.has_magic(part):
            continue
        upto = parts[: number + 1] if part == "**" else parts[:number]
        for folder in glob.glob(str(Path(*upto, "")), recursive=True):  # noqa: PTH207 - takes absolute patterns
            if Path(folder).is_dir():
                scandir(folder).close()


def _first_directory_link(match: Path, pattern: str) -> Path | None:
    """Return the topmost symbolic link to a directory in the part of a match that wildcards stand for."""
    fixed = next(number for number, part in enumerate(Path(pattern).parts) if glob.has_magic(part))
    matched = [folder for folder in (*reversed(match.parents), match) if len(folder.parts) > fixed]
    return next((folder for folder in matched if folder.is_symlink() and folder.is_dir()), None)


_FORMAT_BY_EXTENSION = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".arrow": "ipc",
    ".ipc": "ipc",
    ".feather": "ipc",
}
_COMPRESSIONS = (".gz", ".zst")
_COMPRESSIBLE = ("csv", "tsv", "ndjson")
_COMPRESSED_JSON = tuple(f".json{suffix}" for suffix in _COMPRESSIONS)
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_HIVE_FOLDER = re.compile(r"([^/=]+)=([^/]*)")
_SUFFIXES_WITHOUT_FORMAT = ("", ".json", ".txt", ".log", *_COMPRESSIONS)
_START = 1 << 16  # bytes from which a format is detected
_MEBIBYTE = 1 << 20
_DIGESTED_WHOLE = 64 << 20  # bytes
_REQUESTS_AT_ONCE = 16
_RANGES_AT_ONCE = 8  # of one object: 8 MiB in memory for each of the requests at once

STANDARD_INPUT, _STANDARD_INPUT_FILE = "-", Path("/dev/stdin")
"""The name of standard input on the command line, and its path on disk."""

_INPUTS_SHOWN = 3

SIMULATED_LOG = "log.parquet"
"""The file of the log in a result of `posbias simulate`."""

_Output = TypeVar("_Output")


class _Provenance(msgspec.Struct):
    """The command and the inputs of a manifest."""

    command: str = ""
    inputs: list[str] = []


@dataclass(frozen=True)
class Source:
    """One input file, or object of an object store."""

    path: Location  # as the user knows it
    format: str  # "parquet", "csv", "tsv", "ndjson" or "ipc"; "json", an array of objects, until converted to "ndjson"
    hive: tuple[tuple[str, str | None], ...]  # keys and values of the folders `key=value` in its path
    bytes: int  # size
    modified: int  # nanoseconds since 1970
    file: tuple[int, int] | None = None  # (device, inode) on disk
    link: Path | None = None  # the first symbolic link to a directory in its path
    quoted: bool | None = None  # whether quotes enclose fields of text; None before the content is inspected
    dialect: Dialect = PLAIN
    copy: Path | None = None  # a converted copy to read instead: text in UTF-8, or NDJSON of a JSON array
    spooled: Path | None = None  # the temporary file of standard input or of the rows of a query
    made_of: tuple[tuple[str, str], ...] = ()  # digest and path of each log file behind the rows of a query

    @classmethod
    def temporary(cls, name: str, form: str, file: Path, made_of: tuple[tuple[str, str], ...] = ()) -> "Source":
        """Describe a temporary file, which messages call `name`."""
        status = file.stat()
        version = (status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))
        return cls(Path(name), form, (), *version, spooled=file, made_of=made_of)

    @property
    def place(self) -> Location:
        """The file or object to read rows from."""
        return self.copy or self.origin

    @property
    def origin(self) -> Location:
        """The file or object before any conversion."""
        return self.spooled or self.path

    @property
    def compressed(self) -> bool:
        """Whether the name ends in .gz or .zst."""
        return self.path.suffix.lower() in _COMPRESSIONS

    @property
    def store(self) -> str | None:
        """URL of the bucket; None on disk."""
        return self.path.root if isinstance(self.path, ObjectUrl) else None

    @property
    def with_absolute_path(self) -> "Source":
        """The same file for processes with another working directory."""
        if isinstance(self.path, ObjectUrl) or self.spooled is not None:
            return self
        return replace(self, path=self.path.absolute())

    def digest(self) -> str:
        """Compute "SIZE-HASH", with XXH3-128 of all bytes up to 64 MiB, and of 64 blocks of 1 MiB of a larger file.

        The blocks are at equal distances; the first and the last, with the metadata of Parquet, are among them. An edit
        of a file above 64 MiB that keeps its size and lies between two blocks goes unnoticed. The same content has the
        same digest under any name, on disk and in an object store, where it takes a few requests.
        """
        if self.bytes <= _DIGESTED_WHOLE:
            ranges = [(start, min(_MEBIBYTE, self.bytes - start)) for start in range(0, self.bytes, _MEBIBYTE)]
        else:
            last = _DIGESTED_WHOLE // _MEBIBYTE - 1
            ranges = [((self.bytes - _MEBIBYTE) * number // last, _MEBIBYTE) for number in range(last + 1)]
        return f"{self.bytes}-{checksum(_pieces(self.origin, ranges))}"


def find_sources(names: Sequence[str], instead: str | None = None) -> list[Source]:
    """Resolve names to files, in the order of the names, sorted within a glob or directory.

    Args:
        names: files, globs, directories and URLs.
        instead: advice in the error about a result of posbias, where no log is read and a table of scores is allowed.

    Raises:
        LogFormatError: a name has no files, or a file cannot be read, or is empty, truncated or of an unknown format.
        UsageError: a file is named twice, or a directory holds a result of posbias.
        ObjectStoreError: a store cannot be reached.
    """
    sources: list[Source] = []
    for name in names:
        try:
            files = _expand(name, instead)
            _ = [*each_source(check_whole, files)]
        except OSError as error:
            raise LogFormatError(f"{error.filename or name}: cannot be read: {error.strerror}.") from error
        sources += files
    seen: dict[Location, str] = {}
    for source in sources:
        real = source.path.resolve()
        if real in seen:
            raise UsageError(f"{source.path} is named twice: its rows would be counted twice. Name it once.")
        seen[real] = str(source.path)
    return sources


def each_source(work: Callable[[Source], _Output], sources: Sequence[Source]) -> Iterator[_Output]:
    """Map a function over sources, in their order; in threads if a source is in an object store."""
    if all(source.store is None for source in sources):
        yield from map(work, sources)
        return
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
        yield from threads.map(work, sources)


def named_paths(name: str | Location) -> list[Location]:
    """Return the files and directories of a name or glob; none if nothing exists there.

    Raises:
        LogFormatError: no file can have the name.
        ObjectStoreError: the name is a URL, and the store cannot be reached.
    """
    where = _checked_location(name)
    if isinstance(where, ObjectUrl):
        return [*named_objects(where)]
    if where.exists():
        return [where]
    return [*_matches(str(name))]


def input_paths(names: Iterable[str | Location]) -> list[Location]:
    """Return the files and directories that a command reads, and the logs outside that links in them lead to.

    Raises:
        LogFormatError: no file can have one of the names.
        ObjectStoreError: a name is a URL, and the store cannot be reached.
    """
    paths = list[Location]()
    for name in names:
        paths += [_STANDARD_INPUT_FILE] if name == STANDARD_INPUT else named_paths(name)
    for folder in [path for path in paths if isinstance(path, Path)]:
        with suppress(LogFormatError, OSError):  # a file, or a directory whose reading raises the error
            linked = [file for file, link in _files_below(folder) if link or file.is_symlink()]
            paths += [file for file in linked if not file.resolve().is_relative_to(folder.resolve())]
    return paths


def _matches(pattern: str) -> list[Path]:
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - takes absolute patterns
    for match in matches:
        _checked_location(match)
    return matches


def _checked_location(name: str | Location) -> Location:
    """Return the location of a name; a file need not exist there.

    Raises:
        LogFormatError: the name is empty, too long, not UTF-8 or a circle of links, or the working directory is gone.
        UsageError: the name is a URL that posbias does not read.
    """
    if not name:
        raise LogFormatError("one of the names is empty; is a variable unset?")
    if not is_text(str(name)):
        raise LogFormatError(f"{str(name)!a}: the name is not UTF-8, so that it cannot be read. Rename it.")
    place = location(name)
    if isinstance(place, ObjectUrl):
        return place
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        try:
            _ = place.absolute()
        except FileNotFoundError:
            raise LogFormatError(
                f"{place}: cannot be opened, because the current directory is gone. Change to another one, or name "
                "files in full."
            ) from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise LogFormatError(f"{place}: symbolic links lead in a circle here. Name the file itself.") from error
        raise LogFormatError(f"{str(place)!a}: cannot be the name of a file: {error}.") from error
    return place


def _expand(name: str | Location, instead: str | None) -> list[Source]:
    path = _checked_location(name)
    if isinstance(path, ObjectUrl):
        return _expand_objects(path, instead)
    if path.is_dir() or path.name == FILE_NAME:
        folder = path if path.is_dir() else path.parent
        if (manifest := _manifest_of_result(folder / FILE_NAME)) is not None:
            _check_readable(folder, manifest, instead)
    if path.is_dir():
        return _not_empty([_source_on_disk(*file) for file in _files_below(path)], path)
    if path.is_file():
        return [_source_on_disk(path)]
    pattern = str(name)
    if glob.has_magic(pattern) and not path.exists():
        _check_listable(pattern)
        matches = _matches(pattern)
        if not matches:
            raise LogFormatError(f"{name}: no file matches this pattern.")
        sources = list[Source]()
        for match in matches:
            link = _first_directory_link(match, pattern)
            sources += [replace(source, link=link or source.link) for source in _expand(match, instead)]
        return sources
    if path.exists():
        raise LogFormatError(f"{name}: is neither a file nor a directory. Name files that can be read more than once.")
    if path.is_symlink():
        raise LogFormatError(f"{name}: this link is broken. Fix it, or remove it.")
    raise LogFormatError(f"{name}: no such file or directory.")


def _expand_objects(url: ObjectUrl, instead: str | None) -> list[Source]:
    """Return the object of that key, or the logs below that prefix; with a glob, of each match."""
    if not (named := named_objects(url)):
        why = "matches this pattern" if glob.has_magic(url.key) else "has this name or prefix"
        raise LogFormatError(f"{url}: no object {why}.")
    sources = list[Source]()
    for place, objects in named.items():
        if [entry.url for entry in objects] == [place]:
            sources.append(_source(place, objects[0].bytes, objects[0].modified))
            continue
        manifests = [entry.url for entry in objects if entry.url.name == FILE_NAME and entry.bytes <= LARGEST]
        texts = {url.path.parent: text for url in manifests if _RESULT_MARK in (text := read_object(url))}
        if place.path in texts:
            _check_readable(place, texts[place.path], instead)
        results = {entry.url.path.parent for entry in objects if is_unfinished(entry.url)} | set(texts)
        logs = [
            _source(entry.url, entry.bytes, entry.modified)
            for entry in objects
            if (results - {place.path}).isdisjoint(entry.url.path.parents)
            and not any(part.startswith((".", "_")) for part in entry.url.path.relative_to(place.path).parts)
            and _is_log(entry.url.path)
        ]
        sources += _not_empty(logs, place)
    return sources


def _check_readable(place: Location, manifest: bytes, instead: str | None) -> None:
    """Raise UsageError for a result of posbias, unless it is a table of scores and `instead` is given."""
    try:
        result = msgspec.json.decode(manifest, type=_Provenance)
    except (ValueError, RecursionError):
        result = _Provenance()
    if result.command == "score" and instead is not None:
        return
    if instead is None and result.command == "simulate":
        instead = f"Name the log in it: {place / SIMULATED_LOG}."
    elif instead is None:
        inputs = ", ".join(result.inputs[:_INPUTS_SHOWN]) + (", ..." if result.inputs[_INPUTS_SHOWN:] else "")
        instead = f"Name the log itself: this was made from {inputs}." if inputs else "Name a log."
    maker = f"`posbias {result.command}`" if result.command else "posbias"
    raise UsageError(f"{place}: is a result of {maker}. {instead}")


def _not_empty(sources: list[Source], place: Location) -> list[Source]:
    """Raise LogFormatError if a directory or prefix holds no log; else return the logs."""
    if not sources:
        raise LogFormatError(
            f"{place}: the directory holds no log file (known: {', '.join(_FORMAT_BY_EXTENSION)}; "
            "text also with .gz or .zst, JSON with them). Name other files one by one."
        )
    return sources


def _is_log(file: PurePath) -> bool:
    """Return True if a file in a directory is a log by its name; plain .json is not, as it may hold settings."""
    return format_by_name(file) is not None or file.name.lower().endswith(_COMPRESSED_JSON)


def format_by_name(file: PurePath) -> str | None:
    """Return the format of a file extension; None for an unknown one."""
    suffix = file.suffix.lower()
    if suffix in _COMPRESSIONS:
        inner = _FORMAT_BY_EXTENSION.get(Path(file.stem).suffix.lower())
        return inner if inner in _COMPRESSIBLE else None
    return _FORMAT_BY_EXTENSION.get(suffix)


def _source_on_disk(path: Path, link: Path | None = None) -> Source:
    _checked_location(path)
    status = path.stat()
    source = _source(path, status.st_size, status.st_mtime_ns)
    return replace(source, file=(status.st_dev, status.st_ino), link=link)


def _source(file: Location, size: int, modified: int) -> Source:
    path = file.path if isinstance(file, ObjectUrl) else file
    form = format_by_name(path)
    if form is None:
        form = format_of_content(_read(file, 0, min(_START, size)))
        if form not in {"parquet", "ipc"} and path.suffix.lower() not in _SUFFIXES_WITHOUT_FORMAT:
            form = None
    if form is None:
        raise LogFormatError(
            f"{file}: cannot tell the format from its name. Known endings: {', '.join(_FORMAT_BY_EXTENSION)} "
            f"({', '.join(_COMPRESSIBLE)} also with {' or '.join(_COMPRESSIONS)}). Rename the file."
        )
    folders = [match.groups() for part in path.parent.parts if (match := _HIVE_FOLDER.fullmatch(part)) is not None]
    hive = tuple((unquote(key), None if value == _HIVE_NULL else unquote(value)) for key, value in folders)
    return Source(file, form, hive, size, modified)


def read_start(source: Source, length: int) -> bytes:
    """Read the first `length` bytes of the unconverted file, or fewer if it is shorter."""
    return _read(source.origin, 0, min(length, source.bytes))


def read_end(source: Source, length: int) -> bytes:
    """Read the last `length` bytes of the unconverted file, or fewer if it is shorter."""
    length = min(length, source.bytes)
    return _read(source.origin, source.bytes - length, length)


def _pieces(file: Location, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes of each (start, length); of an object, several ranges per round trip."""
    if isinstance(file, ObjectUrl):
        for first in range(0, len(ranges), _RANGES_AT_ONCE):
            yield from read_ranges(file, ranges[first : first + _RANGES_AT_ONCE])
        return
    with file.open("rb") as opened:
        for start, length in ranges:
            opened.seek(start)
            yield opened.read(length)


def _read(file: Location, start: int, length: int) -> bytes:
    return b"".join(_pieces(file, [(start, length)] if length else []))


def check_whole(source: Source) -> None:
    """Raise LogFormatError if a file is empty, or a Parquet file without its magic bytes at both ends."""
    size = source.bytes
    if size == 0:
        raise LogFormatError(f"{source.path}: the file is empty (0 bytes).")
    if source.format != "parquet":
        return
    head, tail = read_start(source, 4), read_end(source, 4)
    if head != b"PAR1":
        raise LogFormatError(f"{source.path}: is not a Parquet file (it does not start with PAR1).")
    if tail != b"PAR1":
        raise LogFormatError(
            f"{source.path}: the Parquet file is truncated (it has {size:,} bytes and does not end with PAR1). "
            "Write or copy it again."
        )


_MAY_LACK_ROWS = 1 << 16  # bytes; headers and footers alone are smaller


def digests(
    sources: Sequence[Source], holds_rows: Callable[[Source], bool], digest_of: Callable[[Source], str] = Source.digest
) -> dict[str, str]:
    """Return path by digest, with secrets masked; files without rows, which may be equal, are left out.

    Args:
        sources: the files.
        holds_rows: returns False for a file without rows; called for files under 64 KiB.
        digest_of: computes the digest of a file.

    Raises:
        UsageError: two files have the same digest.
    """

    def fingerprint(source: Source) -> str | None:
        return None if source.bytes < _MAY_LACK_ROWS and not holds_rows(source) else digest_of(source)

    path_of: dict[str, str] = {}
    for source, digest in zip(sources, each_source(fingerprint, sources), strict=True):
        if digest is None:
            continue
        if digest in path_of:
            raise UsageError(
                f"{source.path} and {path_of[digest]} hold the same data: their rows would be counted twice. "
                "Name one of them."
            )
        path_of[digest] = mask_secrets(str(source.path))
    return path_of


_QUERY_MARK = "-sql-"
_SECOND = 10**9  # nanoseconds


_WORDS = re.compile(
    r"""--[^\n]*|/\*.*?\*/|([eE]'(?:\\.|''|[^'\\])*'|'(?:''|[^'])*'|"(?:""|[^"])*"|\$(\w*)\$.*?\$\2\$)|(\w+|\S)""",
    re.DOTALL,
)
"""Tokens of SQL: comments; quoted texts and names (group 1); words and signs (group 3)."""


def query_suffix(text: str) -> str:
    """Return the suffix for digests of files that a query reads, the same whatever its comments, blanks and case."""
    words = [quoted or word.lower() for quoted, _, word in _WORDS.findall(text)]
    return f"{_QUERY_MARK}{checksum([' '.join(filter(None, words)).strip('; ').encode()])}"


def file_digest(digest: str) -> str:
    """Return the digest of the file alone."""
    return digest.partition(_QUERY_MARK)[0]


def counted_already(sources: Mapping[str, str], counted: Collection[str]) -> str | None:
    """Path of the first source (path by digest) whose rows, or some of them, are among those counted, by digest."""
    files = {*counted, *map(file_digest, counted)}
    return next((path for digest, path in sources.items() if digest in files or file_digest(digest) in counted), None)


def check_unchanged(sources: Sequence[Source]) -> None:
    """Raise LogFormatError if a file was changed, replaced or removed since it was opened."""
    for source, now in zip(sources, each_source(_current_state, sources), strict=True):
        if now != (source.file, source.bytes, source.modified if source.store is None else source.modified // _SECOND):
            what = "is gone" if now is None else "was changed or replaced"
            raise LogFormatError(
                f"{source.path}: {what} while it was read, so what was counted is unknown. Run again when "
                "nothing is writing to it."
            )


def _current_state(source: Source) -> tuple[tuple[int, int] | None, int, int] | None:
    """Return (device, inode), size and time of change (in nanoseconds; in seconds for objects); None if it is gone."""
    origin = source.origin
    if isinstance(origin, ObjectUrl):
        entry = find_object(origin)
        return entry and (None, entry.bytes, entry.modified // _SECOND)
    try:
        status = origin.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns
