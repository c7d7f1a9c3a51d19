"""From what the user names (files, globs, directories) to the files that will be read, with format and digest."""

import glob
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from posbias.core.errors import LogFormatError, UsageError

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
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "ipc"}
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_HIVE_FOLDER = re.compile(r"([^/=]+)=([^/]*)")
_MEBIBYTE = 1 << 20
_MAY_BE_EMPTY = 1 << 16  # bytes of headers and footers alone


@dataclass(frozen=True)
class Source:
    """One input file.

    Attributes:
        path: where it is.
        format: "parquet", "csv", "tsv", "ndjson" or "ipc".
        hive: values of the folders `key=value` on the way to it.
        bytes: its size.
        modified: when it was last changed, in nanoseconds.
    """

    path: Path
    format: str
    hive: tuple[tuple[str, str | None], ...]
    bytes: int
    modified: int

    @property
    def compressed(self) -> bool:
        """Whether it is text in a .gz or .zst wrapper."""
        return self.path.suffix.lower() in _COMPRESSIONS

    def digest(self) -> str:
        """A fingerprint: size, first and last MiB (which hold a Parquet file's footer)."""
        with self.path.open("rb") as file:
            head = file.read(_MEBIBYTE)
            file.seek(max(self.bytes - _MEBIBYTE, 0))
            tail = file.read(_MEBIBYTE)
        return f"{self.bytes}-{hashlib.sha256(head + tail).hexdigest()[:32]}"


def find_sources(names: Sequence[str]) -> list[Source]:
    """The files behind files, globs and directories, in a stable order.

    Raises:
        LogFormatError: nothing is there, a file is empty, truncated or of an unknown format.
        UsageError: a file is named twice.
    """
    sources = [source for name in names for source in _readable(name)]
    seen: dict[Path, str] = {}
    for source in sources:
        real = source.path.resolve()
        if real in seen:
            raise UsageError(f"{source.path} is named twice: its rows would count twice. Name it once.")
        seen[real] = str(source.path)
    return sources


def _readable(name: str) -> list[Source]:
    try:
        sources = _expand(_checked(name))
        for source in sources:
            _check_whole(source)
    except OSError as error:
        raise LogFormatError(f"{error.filename or name}: cannot be read: {error.strerror}.") from error
    return sources


def digests(sources: Iterable[Source], holds_rows: Callable[[Source], bool]) -> dict[str, str]:
    """Path by digest, of the files that hold rows.

    Args:
        sources: the files.
        holds_rows: tells files with rows from those without, which may well be equal.

    Raises:
        UsageError: two files hold the same rows.
    """
    found: dict[str, str] = {}
    for source in sources:
        if source.bytes < _MAY_BE_EMPTY and not holds_rows(source):
            continue
        digest = source.digest()
        if digest in found:
            raise UsageError(
                f"{source.path} and {found[digest]} hold the same data: their rows would count twice. Name one of them."
            )
        found[digest] = str(source.path)
    return found


def named_paths(name: str) -> list[Path]:
    """The files and directories behind a name, which may be a pattern; none if there is nothing.

    Raises:
        LogFormatError: the name cannot be a file's.
    """
    if Path(_checked(name)).exists():
        return [Path(name)]
    return [Path(match) for match in sorted(glob.glob(name, recursive=True))]  # noqa: PTH207 - takes absolute patterns


def _checked(name: str) -> str:
    """A name that can be a file's.

    Raises:
        LogFormatError: it is empty, too long, or no text.
    """
    if not name:
        raise LogFormatError("one of the names is empty; is a variable unset?")
    try:
        name.encode()
        Path(name).exists()
    except (OSError, UnicodeEncodeError) as error:
        raise LogFormatError(f"{name!a}: cannot be the name of a file: {error}.") from error
    return name


def _expand(name: str) -> list[Source]:
    path = Path(name)
    if path.is_dir():
        results = {manifest.parent for manifest in path.rglob("manifest.json") if _is_ours(manifest)}
        files = [file for file in sorted(path.rglob("*")) if (results - {path}).isdisjoint(file.parents)]
        found = [_source(file) for file in files if _is_data(file, path)]
        if not found:
            raise LogFormatError(
                f"{name}: the directory holds no log file (known: {', '.join(_FORMAT_BY_EXTENSION)}; "
                "text also with .gz or .zst)."
            )
        return found
    if path.is_file():
        return [_source(path)]
    if glob.has_magic(name) and not path.exists():
        matches = named_paths(name)
        if not matches:
            raise LogFormatError(f"{name}: no file matches this pattern.")
        return [source for match in matches for source in _expand(str(match))]
    if path.exists():
        raise LogFormatError(f"{name}: is neither a file nor a directory. Name files that can be read more than once.")
    raise LogFormatError(f"{name}: no such file or directory.")


def _is_data(file: Path, below: Path) -> bool:
    hidden = any(part.startswith((".", "_")) for part in file.relative_to(below).parts)
    return file.is_file() and not hidden and _format_by_name(file) is not None


def _is_ours(manifest: Path) -> bool:
    """Whether a manifest is that of a result of posbias, which is no log."""
    return '"posbias": "' in manifest.read_text(encoding="utf-8", errors="replace")


def _format_by_name(file: Path) -> str | None:
    suffix = file.suffix.lower()
    if suffix in _COMPRESSIONS:
        inner = _FORMAT_BY_EXTENSION.get(Path(file.stem).suffix.lower())
        return inner if inner in _COMPRESSIBLE else None
    return _FORMAT_BY_EXTENSION.get(suffix)


def _source(file: Path) -> Source:
    name_says = _format_by_name(file)
    if name_says is None:
        with file.open("rb") as opened:
            start = opened.read(8)
        name_says = next((known for magic, known in _MAGIC.items() if start.startswith(magic)), None)
    if name_says is None:
        raise LogFormatError(
            f"{file}: cannot tell the format by its name. Known endings: {', '.join(_FORMAT_BY_EXTENSION)} "
            f"({', '.join(_COMPRESSIBLE)} also with {' or '.join(_COMPRESSIONS)}). Rename the file."
        )
    folders = [match for part in file.parent.parts if (match := _HIVE_FOLDER.fullmatch(part)) is not None]
    hive = tuple((unquote(key), None if value == _HIVE_NULL else unquote(value)) for key, value in map(_parts, folders))
    status = file.stat()
    return Source(file, name_says, hive, status.st_size, status.st_mtime_ns)


def _parts(folder: re.Match[str]) -> tuple[str, str]:
    return folder[1], folder[2]


def _check_whole(source: Source) -> None:
    size = source.bytes
    if size == 0:
        raise LogFormatError(f"{source.path}: the file is empty (0 bytes).")
    if source.format != "parquet":
        return
    with source.path.open("rb") as file:
        head = file.read(4)
        file.seek(max(size - 4, 0))
        tail = file.read(4)
    if head != b"PAR1":
        raise LogFormatError(f"{source.path}: is not a Parquet file (it does not start with PAR1).")
    if tail != b"PAR1":
        raise LogFormatError(
            f"{source.path}: the Parquet file is truncated (it has {size:,} bytes and does not end with PAR1). "
            "Write or copy it again."
        )
