"""Named files and folders: which are read, and what each is by its first bytes."""

import codecs
import glob
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from os import scandir
from pathlib import Path
from typing import Any, BinaryIO

from posbias.core.errors import LogFormatError, UsageError
from posbias.io.places.locations import is_plain, open_plain
from posbias.io.results.manifest import FILE_NAME, LARGEST

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
    try:
        for piece in unpacked(io.BytesIO(start)):
            beginning += piece
    except DAMAGED:  # it is but the beginning
        return beginning
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

    @property
    def options(self) -> tuple[str, ...]:
        """The options that declare it."""
        values = {"--separator": self.separator, "--encoding": self.encoding, "--no-header": self.columns}
        return tuple(flag for flag, value in values.items() if value)


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
    if not is_plain(file):
        return None
    with open_plain(file) as opened:
        text = opened.read(LARGEST)
    return text if is_result_text(text) else None


def is_result_text(manifest: bytes) -> bool:
    """Whether a manifest was written by posbias."""
    return _OURS in manifest


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
