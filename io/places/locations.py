"""Locations, paths on disk or URLs of objects and prefixes in object stores; and reading of plain files.

`location` parses every name of a location: on the command line, in configuration files and in calls from Python.

A file that posbias wrote is read only if it is a plain one, and not through a symbolic link: a FIFO of its name would
block, a device could do anything, and a link could lead to a file of another user.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import unquote

import xxhash

from posbias.core.errors import MASK, UsageError, holds_key, mask_secrets, without_userinfo

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")
"""Schemes of object stores, whose URLs can be read, listed and written."""

_ELSEWHERE = (
    *("file", "http", "https", "ftp", "ftps", "sftp", "scp", "ssh", "smb", "nfs", "data", "jdbc", "hf"),
    *("hdfs", "webhdfs", "viewfs", "dbfs", "s3n", "gcs", "wasb", "wasbs", "adl", "azure", "oss", "cos", "obs", "swift"),
)
"""Schemes that begin a URL, not a path, even without a slash behind them."""

_URL = re.compile(r"\s*([a-z][a-z0-9+.\-]*):(/*)(.*)", re.DOTALL | re.IGNORECASE)
_URL_WITHIN = re.compile(r"[a-z][a-z0-9+.\-]*://", re.IGNORECASE)
_HOST = re.compile(r"//[^/]*")
_USER = re.compile(r"(?<=:)(?!/)\S*@")
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_MOST_SLASHES = 2  # pathlib shortens two to one


@dataclass(frozen=True, order=True)
class ObjectUrl:
    """An object, or a prefix with all objects below it; object stores have no directories."""

    scheme: str  # of the kind of store, e.g. `s3`
    bucket: str  # or container
    key: str  # name within the bucket, without slashes at its ends; empty for the whole bucket

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def __truediv__(self, name: str) -> "ObjectUrl":
        return ObjectUrl(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def root(self) -> str:
        """URL of the bucket."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def path(self) -> PurePosixPath:
        """The key as a path."""
        return PurePosixPath(self.key)

    @property
    def suffix(self) -> str:
        """The extension of the name."""
        return self.path.suffix

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.path.name

    def resolve(self) -> "ObjectUrl":
        """Return the URL: an object has one name."""
        return self

    def is_relative_to(self, other: "ObjectUrl") -> bool:
        """Return True for `other`, and for objects below it."""
        return self.root == other.root and self.path.is_relative_to(other.path)


Location: TypeAlias = Path | ObjectUrl


def location(name: str | Location) -> Location:
    """Parse a name as a URL of an object store or a path on disk.

    A name is a URL if it begins with a scheme of RFC 3986 and `:/` (`hdfs:/x`, `S3://b/x`), or with the scheme of an
    object store or another well-known one and `:` (`file:x`). All other names are paths (`a:b.csv`, `ts=12:00/x`), as
    are names that begin with `./` and `Path`s. The case of the scheme is ignored, and so are user and password before
    an @, which no object store uses.

    Raises:
        UsageError: a URL is not that of an object store, has no bucket or contains a secret key; or a path has a zero
            byte or contains a URL.
    """
    if not isinstance(name, str):
        return name
    if "\0" in name:
        raise UsageError(f"{name!a}: cannot be the name of a file: it holds a zero byte.")
    match = _URL.fullmatch(name)
    scheme, slashes, rest = (match[1].lower(), match[2], match[3]) if match else ("", "", "")
    if not slashes and scheme not in {*SCHEMES, *_ELSEWHERE}:
        if _URL_WITHIN.search(name):
            raise UsageError(f"{_shown(name)}: a path with a URL in it. Give the one or the other.")
        return Path(name)
    if scheme not in SCHEMES:
        url = name.strip()
        shown = _QUERY.sub(f"?{MASK}", _shown(url))
        if scheme == "file":
            path = unquote(_HOST.sub("", url[len("file:") :], count=1))
            raise UsageError(f"{shown}: is a URL. Give the path instead: {path}")
        known = ", ".join(f"{name}://" for name in SCHEMES)
        local = "" if "://" in url else f" If it is a file or directory here, write ./{shown}"
        raise UsageError(
            f"{shown}: posbias cannot read or write {scheme}: URLs. Give a path, or a URL of {known}.{local}"
        )
    if holds_key(name):
        raise UsageError(f"{mask_secrets(name)} holds a key, where no object store looks for it. Leave it out.")
    bucket, _, key = without_userinfo(f"{scheme}://{rest}").removeprefix(f"{scheme}://").partition("/")
    if not bucket or not 0 < len(slashes) <= _MOST_SLASHES:
        raise UsageError(f"{_shown(name)}: names no bucket. Write {scheme}://BUCKET/KEY.")
    return ObjectUrl(scheme, bucket, key.strip("/"))


def _shown(url: str) -> str:
    """Mask the secrets of a malformed URL."""
    return _USER.sub(f"{MASK}@", mask_secrets(url))


_AT_ONCE = 1 << 18  # bytes; they stay in the processor's cache
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
}


@dataclass(frozen=True)
class FileState:
    """Identity, size and time of a file, which change when it is replaced or written."""

    device: int
    inode: int
    bytes: int  # size
    modified: int  # nanoseconds since 1970


def state_of(place: Path | FileIO) -> FileState:
    """Return the state of a plain file, by its path or opened.

    Raises:
        OSError: the file does not exist, or is a link, directory, FIFO, socket or device.
    """
    status = place.lstat() if isinstance(place, Path) else os.fstat(place.fileno())
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind}, not a plain file")
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def is_same(path: Location, target: Location) -> bool:
    """Return True if two locations are one existing file or directory, or one URL."""
    if isinstance(path, ObjectUrl) or isinstance(target, ObjectUrl):
        return path == target
    try:
        return path.samefile(target)
    except (OSError, ValueError):  # one does not exist, or cannot
        return False


def plain_file(path: Path) -> FileState | None:
    """Return the state of a plain file; None if there is none of that name."""
    try:
        return state_of(path)
    except OSError:
        return None


def open_plain(path: Path) -> FileIO:
    """Open a plain file for reading; nothing else is opened.

    Raises:
        OSError: the file does not exist, is not plain, or cannot be opened.
    """
    state_of(path)  # opening a device may have effects
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = FileIO(handle)
    try:
        state_of(file)  # again, as the file may have been replaced
    except OSError:
        file.close()
        raise
    return file


def chunks_of(file: FileIO) -> Iterator[memoryview]:
    """Yield the bytes of a file from its position on; a chunk is valid until the next one is read."""
    room = memoryview(bytearray(_AT_ONCE))
    while n_read := file.readinto(room):
        yield room[:n_read]


def checksum(chunks: Iterable[bytes | memoryview]) -> str:
    """Compute XXH3-128 in hexadecimal digits; it detects damage, not malice."""
    digest = xxhash.xxh3_128()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


_MOST_TEXT = 1 << 20  # bytes


def read_text(path: Path) -> str:
    """Read a text file of the user, such as a configuration or a query.

    Raises:
        OSError: the file does not exist, cannot be read, has more than 1 MiB, or is not regular: a FIFO would block.
        ValueError: the text is not UTF-8.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        if status.st_size > _MOST_TEXT:
            raise OSError(errno.EFBIG, f"It has {status.st_size:,} bytes, more than {_MOST_TEXT:,}", str(path))
        return file.read(_MOST_TEXT).decode()


def is_text(name: str | Path) -> bool:
    """Return True if the bytes of a name are UTF-8."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_inside(name: str) -> None:
    """Raise ValueError if a stored name, with `/` between folders, may lead out of a directory or is not UTF-8."""
    if {"", ".", ".."} & set(name.split("/")) or "\0" in name or "\\" in name or not is_text(name):
        raise ValueError(f"{name[:100]!a} is no name of a file or folder within a result")
