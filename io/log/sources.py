"""From what the user names (files, globs, directories, URLs) to the files that will be read, with format and digest."""

import codecs
import errno
import glob
import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_PIECE = 1 << 20  # bytes
DAMAGED = (EOFError, OSError, zlib.error)
"""Errors where a packed file is damaged, or ends before its time."""

_OF_NO_TEXT = frozenset({*range(9), *range(14, 27)})


def format_of_content(start: bytes) -> str | None:
    """The format of a file that begins so: an object per line, an array of them, or text with tabs or without.

    Returns:
        "parquet", "ipc", "ndjson", "json", "tsv" or "csv"; None where it is no text.
    """
    known = next((form for magic, form in _MAGIC.items() if start.startswith(magic)), None)
    if known is not None:
        return known
    start = unpacked_start(start)
    is_wide = wide_encoding(start) is not None
    for mark in _MARKS:
        start = start.removeprefix(mark)
    if is_wide:
        start = start.replace(b"\0", b"")
    if not start.strip() or not _OF_NO_TEXT.isdisjoint(start):
        return None
    first = start.lstrip()
    if first.startswith(b"{"):
        return "ndjson"
    if first.startswith(b"[") and first[1:].lstrip()[:1] in {b"{", b"]", b""}:
        return "json"
    line = first.splitlines()[0]
    return "tsv" if b"\t" in line else "csv"


def wide_encoding(start: bytes) -> str | None:
    """The form of UTF-16 that text begins in, by its mark or by the zero byte of its first letter; None for others."""
    if start.startswith(_MARKS[1:]):
        return "utf-16"
    zeros = [place for place, byte in enumerate(start[:2]) if byte == 0]
    return {0: "utf-16-be", 1: "utf-16-le"}[zeros[0]] if len(zeros) == 1 else None


def is_packed(start: bytes) -> bool:
    """Whether a file that begins so is packed by gzip or zstd."""
    return start.startswith((_GZIP, _ZSTD))


def unpacked(packed: BinaryIO) -> Iterator[bytes]:
    """The content of a file, without gzip or zstd around it, piece by piece.

    Raises:
        EOFError, OSError, zlib.error: it is damaged, or ends before its time.
    """
    start = packed.read(len(_ZSTD))
    packed.seek(0)
    stream: Any = packed
    if start.startswith(_GZIP):
        stream = gzip.GzipFile(fileobj=packed)
    elif start == _ZSTD:
        arrow: Any = import_module("pyarrow")  # only here: importing it takes time
        stream = arrow.CompressedInputStream(arrow.PythonFile(packed, mode="r"), "zstd")
    while piece := stream.read(_PIECE):
        yield piece


def unpacked_start(start: bytes) -> bytes:
    """The beginning of a file, without its wrapper where it is packed by gzip or zstd."""
    if not is_packed(start):
        return start
    beginning = b""
    with suppress(*DAMAGED):  # it is but the beginning
        for piece in unpacked(io.BytesIO(start)):
            beginning += piece
    return beginning


_NAMED = {"tab": "\t", "\\t": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
_LAST_ASCII = "\x7f"
_UTF_8 = ("utf-8", "utf-8-sig", "ascii")


@dataclass(frozen=True)
class Dialect:
    """How a text file is written."""

    separator: str | None = None  # what stands between fields; None for what the format has
    encoding: str | None = None  # how letters are bytes, as Python names it; None for UTF-8
    columns: tuple[str, ...] = ()  # the names of the columns where the first line does not say them; none where it does


PLAIN = Dialect()


def read_separator(text: str) -> str:
    """Read `;`, or a name such as `tab`.

    Raises:
        UsageError: it cannot stand between fields.
    """
    mark = _NAMED.get(text.lower(), text)
    if len(mark) != 1 or mark > _LAST_ASCII or mark.isalnum() or mark in "\"'\r\n\0\x01":
        raise UsageError(
            f"--separator {text}: give one character such as ';' or '|', or one of the names {', '.join(_NAMED)}."
        )
    return mark


def read_encoding(text: str) -> str:
    """The encoding of a name.

    Raises:
        UsageError: there is none of this name, or it is one of no text.
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
    """Read `session,query,doc`, the names of columns that a file does not name itself.

    Raises:
        UsageError: names are missing, or stand twice.
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


_OURS = b'"posbias": "'
"""What the manifest of a result holds."""


def files_below(
    folder: Path, is_log: Callable[[Path], bool], link: Path | None = None, above: tuple[tuple[int, int], ...] = ()
) -> Iterator[tuple[Path, Path | None]]:
    """The logs in a directory and in those below it, also through symbolic links, in the order of their names.

    What is hidden (`.` or `_` first) is left out, and so are results of posbias in directories below.

    Args:
        folder: the directory.
        is_log: whether a file is a log, by its name.
        link: the first link to a directory that leads to this one, which is given with each file.
        above: the identities of the directories above.

    Raises:
        LogFormatError: a link leads nowhere, or back to where it is, or what is named like a log is no file.
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
    if above and FILE_NAME in names and manifest_of_result(folder / FILE_NAME) is not None:
        return
    for path in (folder / name for name in names if not name.startswith((".", "_"))):
        if path.is_dir():
            yield from files_below(path, is_log, link or (path if path.is_symlink() else None), (*above, identity))
        elif path.is_file():
            if is_log(path):
                yield path, link
        elif path.is_symlink() and (is_log(path) or not path.suffix):
            raise LogFormatError(f"{path}: this link is broken, so rows may be missing. Fix it, or remove it.")
        elif is_log(path):
            raise LogFormatError(
                f"{path}: is neither a file nor a directory, but is called like a log. Name files that can be read "
                "more than once, or move it away."
            )


def manifest_of_result(manifest: Path) -> bytes | None:
    """A manifest, if it is that of a result of posbias, which is no log. A FIFO of that name is not opened."""
    file = manifest.resolve()
    if plain_file(file) is None:
        return None
    with open_plain(file) as opened:
        text = opened.read(LARGEST)
    return text if _OURS in text else None


def check_listable(pattern: str) -> None:
    """Check that a pattern leaves out no directory because it cannot be listed.

    Raises:
        OSError: one cannot.
    """
    parts = Path(pattern).parts
    for number, part in enumerate(parts):
        if not glob.has_magic(part):
            continue
        upto = parts[: number + 1] if part == "**" else parts[:number]
        for folder in glob.glob(str(Path(*upto, "")), recursive=True):  # noqa: PTH207 - takes absolute patterns
            if Path(folder).is_dir():
                scandir(folder).close()


def link_on_the_way(path: Path, pattern: str) -> Path | None:
    """The first directory on the way to a match of a pattern, from where the pattern begins, that is a link."""
    parts = Path(pattern).parts
    fixed = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    on_the_way = [*reversed(path.parents), path]
    named = [place for place in on_the_way if len(place.parts) > fixed]
    return next((place for place in named if place.is_symlink() and place.is_dir()), None)


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
_PACKED_JSON = tuple(f".json{wrapper}" for wrapper in _COMPRESSIONS)
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_HIVE_FOLDER = re.compile(r"([^/=]+)=([^/]*)")
_KNOWN_BY_CONTENT = ("", ".json", ".txt", ".log", *_COMPRESSIONS)
_TELLING = 1 << 16  # bytes
_MEBIBYTE = 1 << 20
_DIGESTED_WHOLE = 64 << 20  # bytes
_REQUESTS_AT_ONCE = 16
_RANGES_AT_ONCE = 8  # of one object: 8 MiB in memory for each of the requests at once

STANDARD_INPUT, _OPEN_INPUT = "-", Path("/dev/stdin")
"""Standard input as it is named, and what leads to its file, if it is one."""

_INPUTS_SHOWN = 3

LOG_OF_SIMULATION = "log.parquet"

_Output = TypeVar("_Output")


class _Made(msgspec.Struct):
    """The fields of a manifest that say how a result was made."""

    command: str = ""
    inputs: list[str] = []


@dataclass(frozen=True)
class Source:
    """One input file, or object of an object store."""

    path: Location  # where it is
    format: str  # "parquet", "csv", "tsv", "ndjson" or "ipc"; "json", an array of rows, until it is copied
    hive: tuple[tuple[str, str | None], ...]  # values of the folders `key=value` on the way to it
    bytes: int  # its size
    modified: int  # when it was last changed, in nanoseconds
    file: tuple[int, int] | None = None  # device and number of the file, on disk
    link: Path | None = None  # the link to a directory that leads to it, if there is one
    # whether quotes around a field of text are no part of it; None where that is not known yet
    quoted: bool | None = None
    dialect: Dialect = PLAIN  # how its text is written
    copy: Path | None = None  # what is read in its stead: a copy in UTF-8, or rows of a JSON array line by line
    spooled: Path | None = None  # the file that standard input was written to, which can be read more than once
    # digest and path of each log file whose rows it holds, where its own bytes may differ from run to run
    made_of: tuple[tuple[str, str], ...] = ()

    @classmethod
    def temporary(cls, name: str, form: str, file: Path, made_of: tuple[tuple[str, str], ...] = ()) -> "Source":
        """A temporary file, under the name that it has in messages."""
        status = file.stat()
        version = (status.st_size, status.st_mtime_ns, (status.st_dev, status.st_ino))
        return cls(Path(name), form, (), *version, spooled=file, made_of=made_of)

    @property
    def place(self) -> Location:
        """The place that is read."""
        return self.copy or self.origin

    @property
    def origin(self) -> Location:
        """The place of its bytes as they came."""
        return self.spooled or self.path

    @property
    def compressed(self) -> bool:
        """Whether it is text in a .gz or .zst wrapper."""
        return self.path.suffix.lower() in _COMPRESSIONS

    @property
    def store(self) -> str | None:
        """The bucket that it is in; None on disk."""
        return self.path.root if isinstance(self.path, ObjectUrl) else None

    @property
    def from_anywhere(self) -> "Source":
        """The same file under its full name, for processes that work in another directory."""
        if isinstance(self.path, ObjectUrl) or self.spooled is not None:
            return self
        return replace(self, path=self.path.absolute())

    def digest(self) -> str:
        """A fingerprint: the size, and XXH3-128 of all bytes up to 64 MiB; of a larger file of 64 MiB of it.

        Those are 64 blocks of 1 MiB, the first and the last, which hold what Parquet says of the whole file, and 62
        at equal distances between. So it does not see an edit of a file above 64 MiB that keeps the size and lies
        between two blocks. It is the same for the same content under any name, on disk and in an object store, and
        costs a few requests there.
        """
        if self.bytes <= _DIGESTED_WHOLE:
            ranges = [(start, min(_MEBIBYTE, self.bytes - start)) for start in range(0, self.bytes, _MEBIBYTE)]
        else:
            last = _DIGESTED_WHOLE // _MEBIBYTE - 1
            ranges = [((self.bytes - _MEBIBYTE) * number // last, _MEBIBYTE) for number in range(last + 1)]
        return f"{self.bytes}-{checksum(_pieces(self.origin, ranges))}"


def find_sources(names: Sequence[str], instead: str | None = None) -> list[Source]:
    """The files behind files, globs and directories, in a stable order.

    Args:
        names: what the user names.
        instead: what to name in the place of a result of posbias; None where a log is read.

    Raises:
        LogFormatError: nothing is there, a file is empty, truncated or of an unknown format.
        UsageError: a file is named twice, or a directory holds a result of posbias.
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
    """Do the same with each source; several at a time where each takes a round trip to an object store."""
    if all(source.store is None for source in sources):
        yield from map(work, sources)
        return
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
        yield from threads.map(work, sources)


def named_paths(name: str | Location) -> list[Location]:
    """The files and directories behind a name, which may be a pattern; none if there is nothing.

    Raises:
        LogFormatError: the name cannot be a file's.
        ObjectStoreError: the name is a URL, and the store cannot be reached.
    """
    where = _place(name)
    if isinstance(where, ObjectUrl):
        return [*named_objects(where)]
    if where.exists():
        return [where]
    return [*_matches(str(name))]


def read_paths(names: Iterable[str | Location]) -> list[Location]:
    """The files and directories that a command reads, and the logs to which links in these directories lead.

    Raises:
        LogFormatError: a name cannot be a file's.
        ObjectStoreError: a name is a URL, and the store cannot be reached.
    """
    paths = [path for name in names for path in ([_OPEN_INPUT] if name == STANDARD_INPUT else named_paths(name))]
    for folder in [path for path in paths if isinstance(path, Path)]:
        with suppress(LogFormatError, OSError):  # it is a file, or reading it says why it cannot be read
            linked = [file for file, link in files_below(folder, _is_log) if link or file.is_symlink()]
            paths += [file for file in linked if not file.resolve().is_relative_to(folder.resolve())]
    return paths


def _matches(pattern: str) -> list[Path]:
    matches = [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207 - takes absolute patterns
    for match in matches:
        _place(match)
    return matches


def _place(name: str | Location) -> Location:
    """The place of a file, whether or not there is one.

    Raises:
        LogFormatError: the name is empty, too long, or no text, or leads nowhere.
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
    path = _place(name)
    if isinstance(path, ObjectUrl):
        return _expand_objects(path, instead)
    if path.is_dir() or path.name == FILE_NAME:
        folder = path if path.is_dir() else path.parent
        manifest = manifest_of_result(folder / FILE_NAME)
        if manifest is not None:
            _check_readable(folder, manifest, instead)
    if path.is_dir():
        return _some([_source_on_disk(*file) for file in files_below(path, _is_log)], path)
    if path.is_file():
        return [_source_on_disk(path)]
    pattern = str(name)
    if glob.has_magic(pattern) and not path.exists():
        check_listable(pattern)
        matches = _matches(pattern)
        if not matches:
            raise LogFormatError(f"{name}: no file matches this pattern.")
        linked = [(link_on_the_way(match, pattern), source) for match in matches for source in _expand(match, instead)]
        return [source if link is None else replace(source, link=link) for link, source in linked]
    if path.exists():
        raise LogFormatError(f"{name}: is neither a file nor a directory. Name files that can be read more than once.")
    if path.is_symlink():
        raise LogFormatError(f"{name}: this link is broken. Fix it, or remove it.")
    raise LogFormatError(f"{name}: no such file or directory.")


def _expand_objects(url: ObjectUrl, instead: str | None) -> list[Source]:
    """The objects of that name, and the logs among the objects below such prefixes."""
    if not (named := named_objects(url)):
        why = "matches this pattern" if glob.has_magic(url.key) else "has this name or prefix"
        raise LogFormatError(f"{url}: no object {why}.")
    sources = list[Source]()
    for place, objects in named.items():
        if [entry.url for entry in objects] == [place]:
            sources.append(_source(place, objects[0].bytes, objects[0].modified))
            continue
        manifests = [entry.url for entry in objects if entry.url.name == FILE_NAME and entry.bytes <= LARGEST]
        texts = {url.path.parent: text for url in manifests if _OURS in (text := read_object(url))}
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
        sources += _some(logs, place)
    return sources


def _check_readable(place: Location, manifest: bytes, instead: str | None) -> None:
    """Refuse a result of posbias, but for one that is a table of scores, where no log is read.

    Raises:
        UsageError: it is another result.
    """
    try:
        made = msgspec.json.decode(manifest, type=_Made)
    except (ValueError, RecursionError):
        made = _Made()
    if made.command == "score" and instead is not None:
        return
    if instead is None and made.command == "simulate":
        instead = f"Name the log in it: {place / LOG_OF_SIMULATION}."
    elif instead is None:
        inputs = ", ".join(made.inputs[:_INPUTS_SHOWN]) + (", ..." if made.inputs[_INPUTS_SHOWN:] else "")
        instead = f"Name the log itself: this was made from {inputs}." if inputs else "Name a log."
    maker = f"`posbias {made.command}`" if made.command else "posbias"
    raise UsageError(f"{place}: is a result of {maker}. {instead}")


def _some(sources: list[Source], place: Location) -> list[Source]:
    if not sources:
        raise LogFormatError(
            f"{place}: the directory holds no log file (known: {', '.join(_FORMAT_BY_EXTENSION)}; "
            "text also with .gz or .zst, JSON with them). Name other files one by one."
        )
    return sources


def _is_log(file: PurePath) -> bool:
    """Whether a file of a directory is a log by its name; JSON is one where it is packed, as settings are not."""
    return format_by_name(file) is not None or file.name.lower().endswith(_PACKED_JSON)


def format_by_name(file: PurePath) -> str | None:
    """The format that the ending of a name stands for; None where it stands for none."""
    suffix = file.suffix.lower()
    if suffix in _COMPRESSIONS:
        inner = _FORMAT_BY_EXTENSION.get(Path(file.stem).suffix.lower())
        return inner if inner in _COMPRESSIBLE else None
    return _FORMAT_BY_EXTENSION.get(suffix)


def _source_on_disk(path: Path, link: Path | None = None) -> Source:
    _place(path)
    status = path.stat()
    source = _source(path, status.st_size, status.st_mtime_ns)
    return replace(source, file=(status.st_dev, status.st_ino), link=link)


def _source(file: Location, size: int, modified: int) -> Source:
    path = file.path if isinstance(file, ObjectUrl) else file
    name_says = format_by_name(path)
    if name_says is None:
        name_says = format_of_content(_read(file, 0, min(_TELLING, size)))
        known_by_content = name_says in {"parquet", "ipc"} or path.suffix.lower() in _KNOWN_BY_CONTENT
        name_says = name_says if known_by_content else None
    if name_says is None:
        raise LogFormatError(
            f"{file}: cannot tell the format from its name. Known endings: {', '.join(_FORMAT_BY_EXTENSION)} "
            f"({', '.join(_COMPRESSIBLE)} also with {' or '.join(_COMPRESSIONS)}). Rename the file."
        )
    folders = [match.groups() for part in path.parent.parts if (match := _HIVE_FOLDER.fullmatch(part)) is not None]
    hive = tuple((unquote(key), None if value == _HIVE_NULL else unquote(value)) for key, value in folders)
    return Source(file, name_says, hive, size, modified)


def read_start(source: Source, length: int) -> bytes:
    """The first bytes of a file, at most so many."""
    return _read(source.origin, 0, min(length, source.bytes))


def read_end(source: Source, length: int) -> bytes:
    """The last bytes of a file, at most so many."""
    length = min(length, source.bytes)
    return _read(source.origin, source.bytes - length, length)


def _pieces(file: Location, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Pieces of a file; of an object several at a time, as each takes a round trip, but not all in memory."""
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
    """Check that a file is not empty, and not cut off where its format says so.

    Raises:
        LogFormatError: it is.
    """
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


_MAY_BE_EMPTY = 1 << 16  # bytes of headers and footers alone


def digests(
    sources: Sequence[Source], holds_rows: Callable[[Source], bool], digest_of: Callable[[Source], str] = Source.digest
) -> dict[str, str]:
    """Path by digest, of the files that hold rows.

    Args:
        sources: the files.
        holds_rows: tells files with rows from those without, which may well be equal.
        digest_of: makes the digest of a file.

    Raises:
        UsageError: two files hold the same rows.
    """

    def fingerprint(source: Source) -> str | None:
        return None if source.bytes < _MAY_BE_EMPTY and not holds_rows(source) else digest_of(source)

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


_OF_QUERY = "-sql-"
_SECOND = 10**9  # nanoseconds


_WORDS = re.compile(
    r"""--[^\n]*|/\*.*?\*/|([eE]'(?:\\.|''|[^'\\])*'|'(?:''|[^'])*'|"(?:""|[^"])*"|\$(\w*)\$.*?\$\2\$)|(\w+|\S)""",
    re.DOTALL,
)
"""The comments, quoted texts and names, and other words and signs of a query."""


def of_query(text: str) -> str:
    """What follows the digest of a file where a query reads it, by its words in lower case but for those in quotes."""
    words = [quoted or word.lower() for quoted, _, word in _WORDS.findall(text)]
    return f"{_OF_QUERY}{checksum([' '.join(filter(None, words)).strip('; ').encode()])}"


def of_file(digest: str) -> str:
    """The digest of the file alone, whatever reads it."""
    return digest.partition(_OF_QUERY)[0]


def check_unchanged(sources: Sequence[Source]) -> None:
    """Raise LogFormatError unless files that were read are still those that were opened.

    Raises:
        LogFormatError: one was changed, replaced or removed meanwhile.
    """
    for source, now in zip(sources, each_source(_version, sources), strict=True):
        if now != (source.file, source.bytes, source.modified if source.store is None else source.modified // _SECOND):
            what = "is gone" if now is None else "was changed or replaced"
            raise LogFormatError(
                f"{source.path}: {what} while it was read, so what was counted is unknown. Run again when "
                "nothing is writing to it."
            )


def _version(source: Source) -> tuple[tuple[int, int] | None, int, int] | None:
    """File, size and time of change, in seconds where a store gives no more for one object; None where it is gone."""
    origin = source.origin
    if isinstance(origin, ObjectUrl):
        entry = find_object(origin)
        return entry and (None, entry.bytes, entry.modified // _SECOND)
    try:
        status = origin.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino), status.st_size, status.st_mtime_ns
