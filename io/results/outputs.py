"""Outputs appear whole or not at all: where a result may stand, and how it gets there in one step.

**On disk** a result is written in a directory beside the target, synced, and moved into place in one step. A kill at
any moment leaves the old result or the new one; what else it leaves, the next run removes.

**In an object store** a result is whole with its manifest, or has none, and then nobody reads it. There is no rename.
So a result is written on disk first, and uploaded when it is done:

1. a marker says that an upload is under way, whose it is, and which objects belong to it or to the result that it
   replaces, so that a later run may replace those, and nothing else, without being forced to;
2. the manifest of an old result goes, and with it the old result, as far as any reader is concerned;
3. the new objects are put, and what is left of the old ones is removed;
4. if the marker is still that of this upload, the new manifest is put, last, in one step, and the marker goes.

A reader that finds a manifest finds the result that it describes. A run that is stopped between 2 and 4 leaves no
result. What neither a manifest nor a marker of posbias lists is never replaced or removed.
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
from posbias.io.results.manifest import FILE_NAME, foreign_in, listed_by, listed_in
from posbias.io.results.renames import committing, exchange, identity, rename_new, uploading

OnWait: TypeAlias = Callable[[str], None]
"""Called once with the process that a run waits for."""


@contextmanager
def output_directory(
    target: Location,
    *,
    force: bool,
    protected: Sequence[Location],
    temporary: Path | None,
    on_wait: OnWait | None = None,
) -> Generator[Path]:
    """A directory to write into, which becomes `target` when the block ends without an error.

    Args:
        target: where the result will stand.
        force: whether an older result there is replaced.
        protected: what is read, or written meanwhile; a target that holds some of it is refused.
        temporary: where temporary files go, None for the system's place.
        on_wait: called when another process writes the directory, to wait until that has ended; None is an error then.
            In an object store it is always one.

    Raises:
        OutputExistsError: the target is there, and `force` is not given.
        OutputError: the target cannot be written, or must not be replaced.
        ObjectStoreError: the object store cannot be reached, or does not let us write or delete.
    """
    if isinstance(target, Path):
        paths = [path for path in protected if isinstance(path, Path)]
        with atomic_directory(target, force=force, protected=paths, on_wait=on_wait) as work:
            yield work
        return
    # Whether objects can be put and deleted there is checked before the work begins, not after it.
    marker = target / _MARKER
    if marker not in _check_prefix(target, protected, force=force):
        upload(msgspec.json.encode(_Upload()), marker)
        delete([marker])
    with owned_directory(temporary or system_temporary()) as work:
        with temporary_files(work):
            yield work
        _upload_tree(work, target, _check_prefix(target, protected, force=force))


def check_output(target: Location, *, force: bool, protected: Sequence[Location]) -> bool:
    """Whether a result stands at a target; nothing is written to find out.

    Args:
        target: where a result would stand.
        force: whether an older result there is to be replaced.
        protected: what is read; a target that holds some of it is refused.

    Raises:
        OutputExistsError: the target is there, and `force` is not given.
        OutputError: the target must not be replaced, or is no directory.
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
    """Where a result will stand. Of a symbolic link, what it points to is replaced, and the link stays."""

    named: Path  # as the user calls it
    path: Path  # its full name, without symbolic links
    force: bool  # whether an older result there is replaced
    protected: tuple[Path, ...]  # what it must not hold

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
        """The directory in which the result is made: the target's own, or the first above it that there is.

        Raises:
            OutputError: the target is the root of the file system, or nothing above it can be seen.
        """
        if self.path == self.path.parent:
            raise OutputError(f"{self}: is the root of the file system. Name a directory in it.")
        try:
            return next(folder for folder in self.path.parents if folder.exists())
        except OSError as error:
            raise OutputError(f"cannot write {self}: {error.strerror}.") from error

    def check(self) -> None:
        """Check that it is free, or may be replaced.

        Raises:
            OutputExistsError: it is there, and `force` is not given.
            OutputError: it must not be replaced.
            UsageError: it would lie in a result, which can then no longer be replaced.
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
            with suppress(OSError, RuntimeError):  # there may be neither; a loop of links holds nothing
                path = find().resolve()
                if path.is_relative_to(self.path):
                    is_it = path == self.path
                    named = "a directory that this command uses" if is_it and isinstance(what, Path) else what
                    raise OutputError(
                        f"{self}: {'is' if is_it else 'holds'} {named}, which --force would delete. Choose another "
                        "directory."
                    )
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise OutputError(f"{self}: is read-only, so --force does not replace it.")
        why_not = self.why_no_result(self.path)
        if why_not is not None:
            raise OutputError(why_not)

    def why_no_result(self, path: Path) -> str | None:
        """Why a directory, the target or what was there, holds more than a whole result; None if it does not."""
        try:
            holds_nothing = not any(path.iterdir())
        except OSError as error:
            return f"{self}: cannot be listed: {error.strerror}. --force does not replace it."
        if holds_nothing:
            return None
        listed = listed_in(path)
        if listed is None:
            return (
                f"{self}: is not empty, and no manifest.json of posbias says what is in it. --force replaces only "
                "results of posbias. Choose another directory, or remove this one yourself."
            )
        foreign = foreign_in(path, listed)
        if not foreign:
            return None
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        return (
            f"{self}: {foreign[0].relative_to(path)}{more} is not part of the result there, or has been "
            "changed since, and --force would delete it. Move it away, or choose another directory."
        )


def _check_outside_results(target: Path | _Target, path: Path) -> None:
    """Raise UsageError if a place, by its full name, lies in a result, which could then no longer be replaced."""
    result = next((folder for folder in path.parents if listed_in(folder) is not None), None)
    if result is not None:
        elsewhere = result.with_name(f"{result.name}{path.suffix or f'-{path.name}'}")
        raise UsageError(
            f"{target}: lies in a result of posbias, which holds nothing but its own files. Name a place elsewhere, "
            f"such as {elsewhere}."
        )


_ASIDE = "replaced"
"""In a directory of ours, where two directories cannot be exchanged: the one that holds the old result, by its name."""


@contextmanager
def atomic_directory(
    target: Path, *, force: bool, protected: Sequence[Path] = (), on_wait: OnWait | None = None
) -> Generator[Path]:
    """As `output_directory`, on disk.

    Only one process at a time writes a target. Parents of the target that do not exist are made at the end.
    """
    place = _Target.of(target, force, protected)
    _tidy(place.beside)
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
        _tidy(place.beside)  # who had the target until now may have been killed
        work = stack.enter_context(owned_directory(place.beside, ".posbias-out"))
        before = identity(place.path)
        try:
            yield work
            written = [Path(folder) / name for folder, _, names in os.walk(work) for name in [*names, "."]]
            own = [path for path in written if path.is_dir() or path.stat().st_nlink == 1]  # others were synced before
            for _ in thread_map(_sync, own, _SYNCED_AT_ONCE):
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


def _tidy(parent: Path) -> None:
    """Remove what killed runs have left beside their results; bring back a result that one had moved aside."""
    for abandoned, _ in abandoned_in(parent, results=True):
        for old in (abandoned / _ASIDE).glob("*"):
            if not (parent / old.name).exists():
                with suppress(OSError):
                    rename_new(old, parent / old.name)
    for abandoned, lock in abandoned_in(parent, results=True):
        # A result that was replaced stays if somebody has put a file into it in the moment of the kill.
        listed = {old: listed_in(old) for old in (abandoned / WORK, *(abandoned / _ASIDE).glob("*"))}
        if not any(foreign_in(old, of_old) for old, of_old in listed.items() if of_old is not None):
            remove_owned(abandoned, lock)


def _replace(work: Path, target: _Target, before: tuple[int, int]) -> None:
    """Exchange the old result for the new one, and back if it is not the old one as it was checked."""
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
            why_not = target.why_no_result(old)
    finally:
        if not exchanged:
            rename_new(work if why_not is None else old, target.path)
        elif why_not is not None:
            exchange(work, target.path)
    if why_not is not None:
        raise OutputError(why_not)


_SYNCED_AT_ONCE = 16  # a disk writes several as fast as one


def _sync(place: Path) -> None:
    """Have a file, or the names in a directory, written to the disk."""
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
    # what a person who finds it must know
    about: str = "posbias is uploading a result, or was stopped while it did. Without manifest.json nothing is whole."
    token: str = msgspec.field(default_factory=lambda: secrets.token_hex(16))  # random, of this upload alone
    files: tuple[str, ...] = ()  # the objects that belong to it, by name below the prefix


def is_unfinished(url: ObjectUrl) -> bool:
    """Whether an object marks the place of an upload that has not ended."""
    return url.name == _MARKER


def _check_prefix(target: ObjectUrl, protected: Sequence[Location], *, force: bool) -> set[ObjectUrl]:
    """Return the objects at a target, which may be replaced; raise as `check_output`."""
    if not target.key:
        raise OutputError(f"{target}: is a whole bucket. Name a prefix in it, such as {target}result.")
    there = {entry.url for entry in list_objects(target)}
    if not there:
        return there
    manifest, marker = target / FILE_NAME, target / _MARKER
    if not force and (marker not in there or manifest in there):  # what a stopped upload left needs no --force
        raise OutputExistsError(f"{target}: already exists. Choose another name, or replace it with --force.")
    held = [url for url in protected if isinstance(url, ObjectUrl) and url.is_relative_to(target)]
    if held:
        raise OutputError(f"{target}: holds {held[0]}, which would be deleted. Choose another prefix.")
    listed = (
        listed_by(read_object(manifest)) if manifest in there else None,
        _read_marker(marker) if marker in there else None,
    )
    ours = {url for url, of_file in zip((manifest, marker), listed, strict=True) if of_file is not None}
    ours |= {target / name for of_file in listed if of_file is not None for name in of_file.files}
    foreign = sorted(there - ours)
    if foreign:
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        raise OutputError(
            f"{target}: {foreign[0]}{more} is not part of a result of posbias, as far as a manifest.json there says, "
            "and would be deleted. Move it away, or choose another prefix."
        )
    return there


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
    with suppress(ObjectStoreError):  # beside a manifest the marker says nothing
        delete([marker])


# --- single files ---

FileKind: TypeAlias = Literal["report", "file of options", "query"]
"""What a single file is: it carries a stamp, by which it is known again as written by posbias and not changed since."""

_STAMPS: dict[FileKind, bytes] = {
    "report": b"<!-- posbias report %s -->\n",
    "file of options": b"# posbias options %s\n",
    "query": b"/* posbias query %s */\n",
}
"""The last line of a file, with a digest of all before it; the second last chunk of a PNG says the same."""
_DIGITS = 64
_PNG, _KEYWORD = b"\x89PNG\r\n\x1a\n", b"posbias\0"
_CHUNK_LENGTH = 12 + len(_KEYWORD) + _DIGITS
_END_OF_PNG = 12  # bytes of its last chunk, which is empty


def stamped(content: bytes, kind: FileKind) -> bytes:
    """A file with its stamp."""
    digest = hashlib.sha256(content).hexdigest().encode()
    if not content.startswith(_PNG) or len(content) < len(_PNG) + _END_OF_PNG:
        return content + _STAMPS[kind] % digest
    body = b"tEXt" + _KEYWORD + digest
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return content[:-_END_OF_PNG] + chunk + content[-_END_OF_PNG:]


def is_stamped(content: bytes, kind: FileKind) -> bool:
    """Whether it is a file of this kind, as it was written."""
    before_a_comment = content[: -len(_STAMPS[kind] % (b"0" * _DIGITS))]
    around_a_chunk = content[: -_END_OF_PNG - _CHUNK_LENGTH] + content[-_END_OF_PNG:]
    return any(stamped(without, kind) == content for without in (before_a_comment, around_a_chunk))


LARGEST = 1 << 28
"""Bytes of the largest single file that can be replaced; a larger one is not looked into."""


def check_file(target: Path, kind: FileKind, inputs: Iterable[Location], *, force: bool) -> None:
    """Check that a single file may be written.

    Args:
        target: where it will stand.
        kind: what it is.
        inputs: what the command reads, which is never replaced.
        force: whether a file of this kind that posbias wrote is replaced. Nothing else ever is.

    Raises:
        OutputExistsError: something is there, and `force` is not given.
        OutputError: what is there is read, was not written by posbias, or was changed since; or there is no folder.
        UsageError: it would lie in a result, which can then no longer be replaced.
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
    _check_ours(kind, target)


def _check_ours(kind: FileKind, target: Path) -> None:
    """Raise OutputError unless posbias wrote a file of this kind there, and nobody has changed it."""
    try:
        size = state_of(target).bytes
        with open_plain(target) as file:
            ours = size <= LARGEST and is_stamped(file.read(size + 1), kind)
    except OSError as error:
        raise OutputError(f"{target}: is not replaced: {error.strerror}.") from error
    if not ours:
        raise OutputError(
            f"{target}: is no {kind} of posbias, or has been changed since. --force replaces only what posbias wrote, "
            "as it was written. Choose another name, or remove it yourself."
        )


def write_file(target: Path, content: bytes | str, kind: FileKind, inputs: Iterable[Location], *, force: bool) -> None:
    """Write a single file, whole or not at all; a replaced one is checked once more, and goes back if it must stay.

    Raises:
        OutputExistsError: something is there, and is not to be replaced.
        OutputError: it cannot be written, or what is there must not be replaced.
    """
    check_file(target, kind, inputs, force=force)
    try:
        whole = stamped(content.encode() if isinstance(content, str) else content, kind)
    except UnicodeEncodeError as error:
        raise OutputError(f"{target}: cannot be written: a name in it is not UTF-8. Rename what it names.") from error
    folder = target.absolute().parent
    with owned_directory(folder, ".posbias") as work:
        made = work / "file"
        try:
            made.write_bytes(whole)
            _sync(made)
            with committing():
                if force and os.path.lexists(target):
                    _check_ours(kind, target)
                    made.replace(target)
                else:
                    rename_new(made, target)
            _sync(folder)
        except FileExistsError as error:
            raise OutputExistsError(f"{target}: already exists: it appeared during this run and was kept.") from error
        except OSError as error:
            raise OutputError(f"{target}: cannot be written: {error.strerror}. Nothing was written.") from error
