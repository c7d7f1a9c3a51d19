"""Atomic outputs: where a result may be written, and how it is moved into place in one step.

**On disk** a result is written into a directory beside the target, synced, and moved into place in one step. A kill at
any moment leaves the old result or the new one; the next run removes anything else it left.

**In an object store** there is no rename, and a result without a manifest is never read. So a result is written on disk
first, and then uploaded:

1. put a marker with the token of this upload and the names of its objects and of those of the result it replaces; a
   later run may replace these objects, and no others, without --force;
2. delete the manifest of the old result, which ends the old result for all readers;
3. put the new objects, and delete old ones that are left;
4. if the marker is still that of this upload, put the new manifest, and delete the marker.

So a manifest always describes a complete result. A run stopped between 2 and 4 leaves no result. Objects that neither
a manifest nor a marker of posbias lists are never replaced or deleted.
"""

import hashlib
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import polars as pl

from posbias.core.arrays.threads import thread_map
from posbias.core.errors import ObjectStoreError, OutputError, OutputExistsError, UsageError
from posbias.io.places.locations import Location, ObjectUrl, checksum, is_same, open_plain, state_of
from posbias.io.places.object_stores import delete, list_objects, read_object, upload
from posbias.io.places.ownership import WORK, abandoned_in, claimed, owned_directory, remove_owned, system_temporary
from posbias.io.places.temporary import NO_SPACE, is_disk_full, temporary_files
from posbias.io.results.manifest import FILE_NAME, foreign_files, parse_listing, read_listing
from posbias.io.results.renames import committing, exchange, identity, rename_new, uploading

OnWait: TypeAlias = Callable[[str], None]
"""A callback, called once with a description of the process that the run waits for."""


@contextmanager
def output_directory(
    target: Location,
    *,
    force: bool,
    protected: Sequence[Location],
    temporary: Path | None,
    on_wait: OnWait | None = None,
) -> Generator[Path]:
    """Yield a directory to write into, which becomes `target` when the block ends without an error.

    Args:
        target: the place of the result.
        force: whether to replace an older result there.
        protected: inputs and other outputs; a target that contains any of them is refused.
        temporary: a directory for temporary files; None for the system's.
        on_wait: called before waiting for another process that writes the target; if None, and always in an object
            store, such a process is an error.

    Raises:
        OutputExistsError: the target exists, and `force` is false.
        OutputError: the target cannot be written, or must not be replaced.
        ObjectStoreError: the object store cannot be reached, or denies writing or deleting.
    """
    if isinstance(target, Path):
        paths = [path for path in protected if isinstance(path, Path)]
        with atomic_directory(target, force=force, protected=paths, on_wait=on_wait) as work:
            yield work
        return
    # Permission to put and delete objects is checked before the work begins.
    marker = target / _MARKER
    if marker not in _check_prefix(target, protected, force=force):
        upload(msgspec.json.encode(_Upload()), marker)
        delete([marker])
    with owned_directory(temporary or system_temporary()) as work:
        with temporary_files(work):
            yield work
        _upload_tree(work, target, _check_prefix(target, protected, force=force))


def check_output(target: Location, *, force: bool, protected: Sequence[Location]) -> bool:
    """Check that a result may be written, without writing; return whether a result exists there.

    Args:
        target: the place of the result.
        force: whether to replace an older result there.
        protected: inputs; a target that contains any of them is refused.

    Raises:
        OutputExistsError: the target exists, and `force` is false.
        OutputError: the target must not be replaced, is no directory, or is in a read-only directory.
        UsageError: the target is inside a result.
        ObjectStoreError: the object store cannot be reached.
    """
    if isinstance(target, ObjectUrl):
        return bool(_check_prefix(target, protected, force=force))
    place = _Target.of(target, force, [path for path in protected if isinstance(path, Path)])
    place.check()
    if not os.access(place.beside, os.W_OK | os.X_OK):
        raise OutputError(f"cannot write {target}: {place.beside} is read-only.")
    return place.path.exists()


# --- on disk ---

_GONE = "the current directory is gone. Change to another one, or give a full name"


@dataclass(frozen=True)
class _Target:
    """The target of a result. A symbolic link remains, and the directory it points to is replaced."""

    named: Path  # as the user typed it
    path: Path  # absolute, without symbolic links
    force: bool  # whether to replace an older result there
    protected: tuple[Path, ...]  # paths that it must not contain

    @classmethod
    def of(cls, named: Path, force: bool, protected: Sequence[Path]) -> "_Target":  # noqa: FBT001 - as the fields
        try:
            path = named.resolve()
            path.exists()
            str(path).encode()
        except (OSError, RuntimeError, UnicodeEncodeError) as error:
            why = _GONE if isinstance(error, FileNotFoundError) else error
            raise OutputError(f"{str(named)!a}: cannot be the name of a directory: {why}.") from error
        return cls(named, path, force, tuple(protected))

    def __str__(self) -> str:
        return f"{self.named} (a symbolic link to {self.path})" if self.named.is_symlink() else str(self.named)

    @cached_property
    def beside(self) -> Path:
        """The directory in which the result is made: the nearest existing ancestor of the target.

        Raises:
            OutputError: the target is the root of the file system, or its ancestors cannot be accessed.
        """
        if self.path == self.path.parent:
            raise OutputError(f"{self}: is the root of the file system. Name a directory in it.")
        try:
            return next(folder for folder in self.path.parents if folder.exists())
        except OSError as error:
            raise OutputError(f"cannot write {self}: {error.strerror}.") from error

    def check(self) -> None:
        """Check that the target is free, or may be replaced.

        Raises:
            OutputExistsError: the target exists, and `force` is false.
            OutputError: the target must not be replaced.
            UsageError: the target is inside a result, which could then no longer be replaced.
        """
        try:
            is_there = self.path.exists()
        except OSError as error:
            raise OutputError(f"cannot write {self}: {error.strerror}.") from error
        if is_there:
            self._check_replaceable()
        _check_outside_results(self, self.path)

    def _check_replaceable(self) -> None:
        if not self.path.is_dir():
            raise OutputExistsError(f"{self}: is a file; the output is a directory. Choose another name.")
        if not self.force:
            raise OutputExistsError(f"{self}: already exists. Choose another name, or replace it with --force.")
        for find, what in (
            (Path.cwd, "the current directory"),
            (Path.home, "your home directory"),
            *((path.resolve, path) for path in self.protected),
        ):
            with suppress(OSError, RuntimeError):  # no such directory, or a loop of links
                path = find().resolve()
                if path.is_relative_to(self.path):
                    is_same_path = path == self.path
                    named = "a directory that this command uses" if is_same_path and isinstance(what, Path) else what
                    raise OutputError(
                        f"{self}: {'is' if is_same_path else 'holds'} {named}, which --force would delete. Choose "
                        "another directory."
                    )
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise OutputError(f"{self}: is read-only, so --force does not replace it.")
        why_not = self.why_not_replaceable(self.path)
        if why_not is not None:
            raise OutputError(why_not)

    def why_not_replaceable(self, path: Path) -> str | None:
        """Return why a directory must not be replaced; None if it is empty, or holds a result and nothing else.

        Args:
            path: the target, or the directory moved aside from there.
        """
        try:
            is_empty = not any(path.iterdir())
        except OSError as error:
            return f"{self}: cannot be listed: {error.strerror}. --force does not replace it."
        if is_empty:
            return None
        listing = read_listing(path)
        if listing is None:
            return (
                f"{self}: is not empty, and no manifest.json of posbias says what is in it. --force replaces only "
                "results of posbias. Choose another directory, or remove this one yourself."
            )
        foreign = foreign_files(path, listing)
        if not foreign:
            return None
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        return (
            f"{self}: {foreign[0].relative_to(path)}{more} is not part of the result there, or has been "
            "changed since, and --force would delete it. Move it away, or choose another directory."
        )


def _check_outside_results(target: Path | _Target, path: Path) -> None:
    """Raise UsageError if an absolute path is inside a result, which could then no longer be replaced."""
    result = next((folder for folder in path.parents if read_listing(folder) is not None), None)
    if result is not None:
        elsewhere = result.with_name(f"{result.name}{path.suffix or f'-{path.name}'}")
        raise UsageError(
            f"{target}: lies in a result of posbias, which holds nothing but its own files. Name a place elsewhere, "
            f"such as {elsewhere}."
        )


_ASIDE = "replaced"
"""Subdirectory for the old result, in an owned directory, on systems that cannot exchange two directories."""


@contextmanager
def atomic_directory(
    target: Path, *, force: bool, protected: Sequence[Path] = (), on_wait: OnWait | None = None
) -> Generator[Path]:
    """Yield a directory as `output_directory`, on disk.

    Only one process at a time writes a target. Missing parents of the target are created at the end.
    """
    place = _Target.of(target, force, protected)
    _clean_up(place.beside)
    place.check()
    with ExitStack() as stack:
        try:
            stack.enter_context(claimed(place.beside, checksum([os.fsencode(place.path)]), on_wait))
        except BlockingIOError as error:
            raise OutputError(
                f"{place}: another run of posbias is writing it ({error}). Wait until that has ended, or choose "
                "another directory."
            ) from error
        except OSError as error:
            raise OutputError(f"cannot write in {place.beside}: {error.strerror}.") from error
        _clean_up(place.beside)  # the previous owner of the target may have been killed
        work = stack.enter_context(owned_directory(place.beside, ".posbias-out"))
        before = identity(place.path)
        try:
            yield work
            written = [Path(folder) / name for folder, _, names in os.walk(work) for name in [*names, "."]]
            # Hard links to files of an older result were synced before.
            unsynced = [path for path in written if path.is_dir() or path.stat().st_nlink == 1]
            for _ in thread_map(_sync, unsynced, _SYNC_THREADS):
                pass
        except OSError as error:
            why = NO_SPACE if is_disk_full(work, error) else error.strerror or error
            raise OutputError(f"cannot write {place}: {why}. Nothing was written.") from error
        except pl.exceptions.PolarsError as error:
            if is_disk_full(work, error):
                raise OutputError(f"cannot write {place}: {NO_SPACE}. Nothing was written.") from error
            raise
        with committing():
            place.check()
            try:
                place.path.parent.mkdir(parents=True, exist_ok=True)
                if before is None or not place.path.exists():
                    rename_new(work, place.path)
                else:
                    _replace(work, place, before)
            except FileExistsError as error:
                raise OutputExistsError(
                    f"{place}: already exists: it appeared during this run and was kept."
                ) from error
            except OSError as error:
                raise OutputError(
                    f"cannot write {place}: {error.strerror}. The new result was not put in place."
                ) from error
            _sync(place.path.parent)


def _clean_up(parent: Path) -> None:
    """Remove directories left by killed runs, and restore a result that such a run had moved aside."""
    for abandoned, _ in abandoned_in(parent, results=True):
        for old in (abandoned / _ASIDE).glob("*"):
            if not (parent / old.name).exists():
                with suppress(OSError):
                    rename_new(old, parent / old.name)
    for abandoned, lock in abandoned_in(parent, results=True):
        # A replaced result is retained if a foreign file was added to it at the moment of the kill.
        listings = {old: read_listing(old) for old in (abandoned / WORK, *(abandoned / _ASIDE).glob("*"))}
        if not any(foreign_files(old, listing) for old, listing in listings.items() if listing is not None):
            remove_owned(abandoned, lock)


def _replace(work: Path, target: _Target, before: tuple[int, int]) -> None:
    """Exchange the old result for the new one, and back if the old one is not as it was checked.

    Args:
        work: the directory of the new result.
        target: its place.
        before: `identity` of the old result at the start of the run.

    Raises:
        OutputError: another run has replaced the target, or files were added to it.
    """
    old, exchanged = work, exchange(work, target.path)
    if not exchanged:
        old = work.with_name(_ASIDE) / target.path.name
        old.parent.mkdir()
        target.path.rename(old)
    why_not: str | None = (
        f"{target}: another run has replaced it during this one. Its result was kept; run this command again."
    )
    try:
        if identity(old) == before:
            why_not = target.why_not_replaceable(old)
    finally:
        if not exchanged:
            rename_new(work if why_not is None else old, target.path)
        elif why_not is not None:
            exchange(work, target.path)
    if why_not is not None:
        raise OutputError(why_not)


_SYNC_THREADS = 16  # a disk syncs several files as fast as one


def _sync(place: Path) -> None:
    """Flush a file, or the entries of a directory, to the disk."""
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- in an object store ---

_MARKER = "_posbias_unfinished"
_FORMAT = "posbias.upload/1"


class _Upload(msgspec.Struct, frozen=True):
    """The content of a marker."""

    format: str = _FORMAT  # of the marker
    # for people who find the marker
    about: str = "posbias is uploading a result, or was stopped while it did. Without manifest.json nothing is whole."
    token: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))  # random, of this upload
    files: tuple[str, ...] = ()  # its objects, by name below the prefix


def is_unfinished(url: ObjectUrl) -> bool:
    """Whether an object is the marker of an unfinished upload."""
    return url.name == _MARKER


def _check_prefix(target: ObjectUrl, protected: Sequence[Location], *, force: bool) -> set[ObjectUrl]:
    """Return the objects at a target if they may be replaced; raise as `check_output`."""
    if not target.key:
        raise OutputError(f"{target}: is a whole bucket. Name a prefix in it, such as {target}result.")
    objects = {entry.url for entry in list_objects(target)}
    if not objects:
        return objects
    manifest, marker = target / FILE_NAME, target / _MARKER
    if not force and (marker not in objects or manifest in objects):  # a stopped upload is replaced without --force
        raise OutputExistsError(f"{target}: already exists. Choose another name, or replace it with --force.")
    inside = [url for url in protected if isinstance(url, ObjectUrl) and url.is_relative_to(target)]
    if inside:
        raise OutputError(f"{target}: holds {inside[0]}, which would be deleted. Choose another prefix.")
    listings = {
        manifest: parse_listing(read_object(manifest)) if manifest in objects else None,
        marker: _read_marker(marker) if marker in objects else None,
    }
    own = {url for url, listing in listings.items() if listing is not None}
    own |= {target / name for listing in listings.values() if listing is not None for name in listing.files}
    foreign = sorted(objects - own)
    if foreign:
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        raise OutputError(
            f"{target}: {foreign[0]}{more} is not part of a result of posbias, as far as a manifest.json there says, "
            "and would be deleted. Move it away, or choose another prefix."
        )
    return objects


def _read_marker(marker: ObjectUrl) -> _Upload | None:
    try:
        upload_of_marker = msgspec.json.decode(read_object(marker), type=_Upload)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return upload_of_marker if upload_of_marker.format == _FORMAT else None


def _upload_tree(work: Path, target: ObjectUrl, old: set[ObjectUrl]) -> None:
    """Upload a directory in place of old objects."""
    marker, manifest = target / _MARKER, target / FILE_NAME
    files = {target / path.relative_to(work).as_posix(): path for path in sorted(work.rglob("*")) if path.is_file()}
    last = files.pop(manifest)
    names = sorted(str(url.path.relative_to(target.path)) for url in old | files.keys())
    ours = _Upload(files=tuple(names))
    try:
        with uploading(str(target)):
            upload(msgspec.json.encode(ours), marker)
            delete([manifest])
            for url, path in files.items():
                upload(path, url)
            delete(old - files.keys() - {marker, manifest})
            if _read_marker(marker) != ours:
                raise OutputError(f"{target}: another run is writing it. Run this one again when it has finished.")
            with committing():
                upload(last, manifest)
    except ObjectStoreError as error:
        raise ObjectStoreError(f"{error} The result is not whole, and has no manifest.") from error
    with suppress(ObjectStoreError):  # a marker beside a manifest has no effect
        delete([marker])


# --- single files ---

FileKind: TypeAlias = Literal["report", "file of options", "query"]
"""Kinds of single files. Each carries a stamp that proves that posbias wrote it and nobody changed it."""

_STAMPS: dict[FileKind, bytes] = {
    "report": b"<!-- posbias report %s -->\n",
    "file of options": b"# posbias options %s\n",
    "query": b"/* posbias query %s */\n",
}
"""The last line of a file, with the SHA-256 of all bytes before it. A PNG has the digest in its second last chunk."""
_DIGITS = 64
_PNG, _KEYWORD = b"\x89PNG\r\n\x1a\n", b"posbias\0"
_CHUNK_LENGTH = 12 + len(_KEYWORD) + _DIGITS
_END_OF_PNG = 12  # bytes of its last chunk, which is empty


def add_stamp(content: bytes, kind: FileKind) -> bytes:
    """Return the content of a file with its stamp."""
    digest = hashlib.sha256(content).hexdigest().encode()
    if not content.startswith(_PNG) or len(content) < len(_PNG) + _END_OF_PNG:
        return content + _STAMPS[kind] % digest
    body = b"tEXt" + _KEYWORD + digest
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return content[:-_END_OF_PNG] + chunk + content[-_END_OF_PNG:]


def has_stamp(content: bytes, kind: FileKind) -> bool:
    """Whether the content has a valid stamp of this kind."""
    before_comment = content[: -len(_STAMPS[kind] % (b"0" * _DIGITS))]
    around_chunk = content[: -_END_OF_PNG - _CHUNK_LENGTH] + content[-_END_OF_PNG:]
    return any(add_stamp(body, kind) == content for body in (before_comment, around_chunk))


LARGEST = 1 << 28
"""Bytes of the largest single file that can be replaced; larger files are not read."""


def check_file(target: Path, kind: FileKind, inputs: Iterable[Location], *, force: bool) -> None:
    """Check that a single file may be written.

    Args:
        target: its path.
        kind: of the file.
        inputs: of the command, which are never replaced.
        force: whether to replace an existing file of this kind with a valid stamp; other files are never replaced.

    Raises:
        OutputExistsError: the target exists, and `force` is false.
        OutputError: the target is an input, was not written by posbias, or was changed; or its folder does not exist.
        UsageError: the target is inside a result, which could then no longer be replaced.
    """
    try:
        folder = target.absolute().parent
        str(target).encode()
        is_folder = folder.is_dir()
    except (UnicodeEncodeError, ValueError, OSError) as error:
        why = _GONE if isinstance(error, FileNotFoundError) else error
        raise OutputError(f"{str(target)!a}: cannot be the name of a file: {why}.") from error
    if not is_folder:
        raise OutputError(f"{target}: cannot be written: there is no directory {folder}. Make it first.")
    _check_outside_results(target, folder.resolve() / target.name)
    if not os.path.lexists(target):
        return
    if any(is_same(path, target) for path in inputs):
        raise OutputError(f"{target}: is read by this command, and is never replaced. Choose another name.")
    if not force:
        raise OutputExistsError(f"{target}: already exists. Choose another name, or replace it with --force.")
    _check_own_file(kind, target)


def _check_own_file(kind: FileKind, target: Path) -> None:
    """Raise OutputError unless a file has a valid stamp of this kind."""
    try:
        size = state_of(target).bytes
        with open_plain(target) as file:
            is_own = size <= LARGEST and has_stamp(file.read(size + 1), kind)
    except OSError as error:
        raise OutputError(f"{target}: is not replaced: {error.strerror}.") from error
    if not is_own:
        raise OutputError(
            f"{target}: is no {kind} of posbias, or has been changed since. --force replaces only what posbias wrote, "
            "as it was written. Choose another name, or remove it yourself."
        )


def write_file(target: Path, content: bytes | str, kind: FileKind, inputs: Iterable[Location], *, force: bool) -> None:
    """Write a single file, whole or not at all; the arguments are those of `check_file`, which is called first.

    Raises:
        OutputExistsError: the target exists, and `force` is false; or it appeared during the run.
        OutputError: the target cannot be written, or must not be replaced.
        UsageError: the target is inside a result.
    """
    check_file(target, kind, inputs, force=force)
    try:
        whole = add_stamp(content.encode() if isinstance(content, str) else content, kind)
    except UnicodeEncodeError as error:
        raise OutputError(f"{target}: cannot be written: a name in it is not UTF-8. Rename what it names.") from error
    folder = target.absolute().parent
    with owned_directory(folder, ".posbias") as work:
        file = work / "file"
        try:
            file.write_bytes(whole)
            _sync(file)
            with committing():
                if force and os.path.lexists(target):
                    _check_own_file(kind, target)
                    file.replace(target)
                else:
                    rename_new(file, target)
            _sync(folder)
        except FileExistsError as error:
            raise OutputExistsError(f"{target}: already exists: it appeared during this run and was kept.") from error
        except OSError as error:
            raise OutputError(f"{target}: cannot be written: {error.strerror}. Nothing was written.") from error
