"""Where a thing is: a path on disk, or the URL of an object (or of all objects below a prefix) in an object store.

`location` is the only reader of names of places: on the command line, in configuration files, in the Python door.

Files that posbias reads because it wrote them: plain ones, known again, and never through a symbolic link.

A FIFO of the same name would block, a device could do anything, and a link may lead to a file of somebody else.
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
"""Schemes of URLs that Polars reads, and those that can be listed and written as well."""

_ELSEWHERE = (
    *("file", "http", "https", "ftp", "ftps", "sftp", "scp", "ssh", "smb", "nfs", "data", "jdbc", "hf"),
    *("hdfs", "webhdfs", "viewfs", "dbfs", "s3n", "gcs", "wasb", "wasbs", "adl", "azure", "oss", "cos", "obs", "swift"),
)
"""Schemes that mean another place even without a slash behind them."""

_URL = re.compile(r"\s*([a-z][a-z0-9+.\-]*):(/*)(.*)", re.DOTALL | re.IGNORECASE)
_URL_WITHIN = re.compile(r"[a-z][a-z0-9+.\-]*://", re.IGNORECASE)
_HOST = re.compile(r"//[^/]*")
_USER = re.compile(r"(?<=:)(?!/)\S*@")
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_MOST_SLASHES = 2  # pathlib makes one of two


@dataclass(frozen=True, order=True)
class ObjectUrl:
    """An object, or everything below a prefix; object stores have no directories."""

    scheme: str  # which kind of store, e.g. `s3`
    bucket: str  # the bucket or container
    key: str  # the name within the bucket, without a slash at its ends; empty for the whole bucket

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"

    def __truediv__(self, name: str) -> "ObjectUrl":
        return ObjectUrl(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def root(self) -> str:
        """The bucket alone, as a URL."""
        return f"{self.scheme}://{self.bucket}"

    @property
    def path(self) -> PurePosixPath:
        """The key, to look at its parts as at those of a path."""
        return PurePosixPath(self.key)

    @property
    def suffix(self) -> str:
        """The ending of the name."""
        return self.path.suffix

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.path.name

    def resolve(self) -> "ObjectUrl":
        """Itself: in an object store a thing has one name."""
        return self

    def is_relative_to(self, other: "ObjectUrl") -> bool:
        """Whether it is `other`, or below it."""
        return self.root == other.root and self.path.is_relative_to(other.path)


Location: TypeAlias = Path | ObjectUrl


def location(name: str | Location) -> Location:
    """The place that a name stands for: a URL of an object store, or else a path on disk.

    A name is a URL if it begins with a scheme of RFC 3986 and `:/` (`hdfs:/x`, `S3://b/x`), or with the scheme of an
    object store or another well-known one and `:` (`file:x`). All other names are paths: `a:b.csv`, `ts=12:00/x`. So is
    a name that begins with `./`, and any that is a `Path` already. The scheme's case does not matter, nor do user and
    password before an @: no object store takes them from there.

    Raises:
        UsageError: the URL is none of an object store, names no bucket or holds a key; or no file can have the name.
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
    if scheme not in SCHEMES:  # why it is no place, and what is
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
    """A URL that is not read, without all that may be secret wherever it should stand."""
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
    """Which file stands under a name: what differs once another one takes its place, or its content is written anew."""

    device: int  # the file
    inode: int
    bytes: int  # its size
    modified: int  # when it was last written, in nanoseconds


def state_of(place: Path | FileIO) -> FileState:
    """The plain file of that name, or that was opened.

    Raises:
        OSError: there is none, or it is something else.
    """
    status = place.lstat() if isinstance(place, Path) else os.fstat(place.fileno())
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        raise OSError(errno.EINVAL, f"it is {kind}, not a plain file")
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def is_same(path: Location, target: Location) -> bool:
    """Whether two names stand for one thing that is there."""
    if isinstance(path, ObjectUrl) or isinstance(target, ObjectUrl):
        return path == target
    try:
        return path.samefile(target)
    except (OSError, ValueError):  # there is no such target yet, or there cannot be one
        return False


def plain_file(path: Path) -> FileState | None:
    """The plain file of that name; None where there is none, or something else."""
    try:
        return state_of(path)
    except OSError:
        return None


def open_plain(path: Path) -> FileIO:
    """Open a plain file to read it; whatever else has the name is not touched.

    Raises:
        OSError: there is none, or it cannot be opened.
    """
    state_of(path)  # before it is opened: a device may do something then
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    file = FileIO(handle)
    try:
        state_of(file)  # again: another may have taken its place
    except OSError:
        file.close()
        raise
    return file


def chunks_of(file: FileIO) -> Iterator[memoryview]:
    """The bytes of a file from where it stands, little by little; a chunk is good until the next one is read."""
    room = memoryview(bytearray(_AT_ONCE))
    while n_read := file.readinto(room):
        yield room[:n_read]


def checksum(chunks: Iterable[bytes | memoryview]) -> str:
    """XXH3-128 of bytes, in hexadecimal digits: it detects damage, not malice."""
    digest = xxhash.xxh3_128()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


_MOST_TEXT = 1 << 20  # bytes


def read_text(path: Path) -> str:
    """A text that a person wrote: a configuration, a query.

    Raises:
        OSError: it is not there, cannot be read, is far too long, or is no regular file: a FIFO would keep us waiting.
        ValueError: it is not UTF-8.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", str(path))
        if status.st_size > _MOST_TEXT:
            raise OSError(errno.EFBIG, f"It has {status.st_size:,} bytes, more than {_MOST_TEXT:,}", str(path))
        return file.read(_MOST_TEXT).decode()


def is_text(name: str | Path) -> bool:
    """Whether a name, as Python shows it, is UTF-8."""
    try:
        str(name).encode()
    except UnicodeEncodeError:
        return False
    return True


def check_inside(name: str) -> None:
    """Raise ValueError if a stored name, with `/` between folders, may not be one of a file within a directory."""
    if {"", ".", ".."} & set(name.split("/")) or "\0" in name or "\\" in name or not is_text(name):
        raise ValueError(f"{name[:100]!a} is no name of a file or folder within a result")
