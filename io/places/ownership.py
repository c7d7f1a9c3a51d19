"""Temporary directories of a running process, the proof of it, and the removal of those whose owner died.

The proof that a directory is ours: a marker in it says which process made it, and that process holds its lock.

A name proves nothing. What a later run may remove bears a marker of this format, in a directory whose name holds the
marker's own token, of the same user, on the same machine, whose lock nobody holds and whose process no longer lives.
Whatever lacks any of this stays.

Temporary directories that belong to a running process, and the removal of those whose owner has died.

    posbias-3f0c.../     for its owner alone (0700), of a name that nobody can guess
        owner.json       whose it is; its lock is held until the directory is gone
        work/            what is written

A later run removes it once its owner is proven dead (see `owner`), a signal handler knows what to remove, and nothing
else is ever removed, whatever it is called.
"""

import fcntl
import os
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from posbias.core.errors import OutputError

MARKER = "owner.json"
"""The name of the marker in a directory of ours."""

FORMAT = "posbias.owner/1"

_NAME = re.compile(r"\.?posbias-([0-9a-f]{32})")
_UNFINISHED = f"{MARKER}.new"
_LONGEST_MARKER = 1 << 16  # bytes: a target's path may be long
_PROCESS_STARTED = 19  # of the fields of /proc/PID/stat behind the command: field 22 of all
_DEAD = ("Z", "X")  # the state of a process that has ended and that its parent has not waited for yet

State = Literal["in use", "abandoned", "doubtful", "foreign"]
"""State of a directory: a live process has it, a dead one of ours had it, it is unclear, or it is not ours."""


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a marker: which process of which user on which machine made the directory, and what for."""

    format: str  # of the marker
    token: str  # random, and part of the directory's name
    user: int  # numeric id
    host: str  # its name
    machine: str  # what tells machines of one name apart; empty where the system does not say
    boot: str  # since when the machine runs, as the kernel names it; empty where it does not
    process: int  # number of the process
    started: int  # when it started, in the kernel's ticks; -1 where it is not known
    target: str = ""  # full name of the result that is made here; empty where none is

    @property
    def is_of_this_machine(self) -> bool:
        """Whether its process can be looked for here."""
        if self.host != socket.gethostname() or self.machine != _machine():
            return False
        return bool(self.machine) or self.boot == _boot()

    @property
    def lives(self) -> bool:
        """Whether its process, of this machine, is still there; a later one of the same number is another."""
        if self.boot != _boot():
            return False
        if self.started >= 0:
            return started(self.process) == self.started
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except OSError:  # it is there, and somebody else's
            return True
        return True


class OwnershipState(NamedTuple):
    """The owner and state of a directory."""

    state: State  # whose it is
    owner: Owner | None = None  # what its marker says, where it has one of ours
    # of an abandoned one the handle that now holds its lock, to be closed when the directory is gone
    lock: int | None = None


def is_name_of_ours(name: str) -> bool:
    """Whether a name has the form of ours, which proves nothing."""
    return _NAME.fullmatch(name) is not None


def mark(directory: Path, target: str) -> int:
    """Write the marker of this process into a new directory; return the handle that holds its lock.

    It gets its name when it is whole and locked, so that nobody ever finds it otherwise.

    Raises:
        OSError: it cannot be written.
    """
    owner = Owner(
        format=FORMAT,
        token=directory.name.rpartition("-")[2],
        user=os.geteuid(),
        host=socket.gethostname(),
        machine=_machine(),
        boot=_boot(),
        process=os.getpid(),
        started=started(os.getpid()),
        target=target,
    )
    unfinished = directory / _UNFINISHED
    lock = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with suppress(OSError):  # a file system without locks: the directory stays if the process is killed
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(lock, msgspec.json.encode(owner))
        unfinished.rename(directory / MARKER)
    except OSError:
        os.close(lock)
        raise
    return lock


def look_at(directory: Path) -> OwnershipState:
    """Look up the owner and state of a directory, and lock an abandoned one. Symbolic links are not followed."""
    name = _NAME.fullmatch(directory.name)
    if name is None:
        return OwnershipState("foreign")
    try:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return OwnershipState("doubtful" if _is_own(directory) else "foreign")
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return OwnershipState("foreign")
        return _look_into(folder, name[1])
    finally:
        os.close(folder)


def _look_into(folder: int, token: str) -> OwnershipState:
    try:
        # O_NONBLOCK: a named pipe of that name does not hold us up.
        lock = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return OwnershipState("doubtful")
    owner = _read(lock)
    state = "doubtful" if owner is None or owner.token != token else _state(owner, lock)
    if state == "abandoned":
        return OwnershipState(state, owner, lock)
    os.close(lock)
    return OwnershipState(state, owner)


def _read(marker: int) -> Owner | None:
    """The marker, if it is one of ours."""
    status = os.fstat(marker)
    plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_size <= _LONGEST_MARKER
    if not plain or status.st_uid != os.geteuid():
        return None
    try:
        owner = msgspec.json.decode(os.read(marker, _LONGEST_MARKER), type=Owner)
    except (msgspec.MsgspecError, OSError, UnicodeDecodeError):
        return None
    return owner if owner.format == FORMAT and owner.user == os.geteuid() else None


def _state(owner: Owner, marker: int) -> State:
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "in use"
    except OSError:  # a file system without locks
        return "doubtful"
    if not owner.is_of_this_machine:
        return "doubtful"
    return "in use" if owner.lives else "abandoned"


def _is_own(path: Path) -> bool:
    """Whether there is a directory of this user, and not a link to one."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def started(process: int) -> int:
    """When a process of this machine started, in ticks since it booted; -1 where there is none, or nobody says."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return -1 if fields[0] in _DEAD else int(fields[_PROCESS_STARTED])
    except (OSError, ValueError, IndexError):
        return -1


@cache
def _machine() -> str:
    return _first_line("/etc/machine-id")


@cache
def _boot() -> str:
    return _first_line("/proc/sys/kernel/random/boot_id")


def _first_line(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


WORK, SET_ASIDE = "work", "replaced"
"""In a directory of ours: what is written; and a result that was moved aside to make room for it."""

TRIES = 20
"""How often it is tried to remove what another thread may still write into."""

_A_MOMENT = 0.05  # seconds in which another process gets from a directory to its marker, or back

_alive: dict[Path, int | None] = {}  # the lock of each, None until it is taken
_doubtful: dict[Path, str] = {}


@dataclass(frozen=True)
class OwnedDirectory:
    """A directory of this process."""

    path: Path  # its name

    @property
    def work(self) -> Path:
        """The directory that is written to."""
        return self.path / WORK

    @property
    def set_aside(self) -> Path:
        """The place of a result that is being replaced, on systems that cannot exchange two directories in one step."""
        return self.path / SET_ASIDE


@contextmanager
def owned_directory(parent: Path, *, hidden: bool = False) -> Generator[Path]:
    """A new directory for temporary files below `parent`, removed at the end with all that is in it.

    Raises:
        OutputError: the directory cannot be made.
    """
    remove_abandoned(parent)
    with made_directory(parent, hidden=hidden) as made:
        yield made.work


@contextmanager
def made_directory(parent: Path, *, hidden: bool, target: str = "") -> Generator[OwnedDirectory]:
    """A new directory of ours, removed at the end; nothing else is.

    Args:
        parent: in which it is made.
        hidden: whether its name begins with a dot.
        target: the result that is made in it.

    Raises:
        OutputError: the directory cannot be made.
    """
    path = parent / f"{'.' if hidden else ''}posbias-{secrets.token_hex(16)}"  # nobody can guess it
    _alive[path] = None  # before it is there, so that a signal handler never misses it
    try:
        _make(path, target)
        yield OwnedDirectory(path)
    finally:
        _release(path)


def _make(path: Path, target: str) -> None:
    try:
        path.mkdir(mode=0o700)
        _alive[path] = mark(path, target)
        (path / WORK).mkdir()
    except OSError as error:
        raise OutputError(f"cannot write in {path.parent}: {error.strerror}.") from error


def _release(path: Path) -> None:
    remove_owned(path)
    lock = _alive.pop(path, None)
    if lock is not None:
        os.close(lock)


def owners_in(parent: Path) -> Generator[tuple[Path, Owner]]:
    """The directories in `parent` that other live processes own."""
    for path in _candidates(parent):
        ownership = look_at(path)
        if ownership.lock is not None:
            os.close(ownership.lock)
        elif ownership.state == "in use" and ownership.owner is not None:
            yield path, ownership.owner


def abandoned_in(parent: Path) -> Generator[tuple[OwnedDirectory, Owner]]:
    """The directories in `parent` whose owner is proven dead, each locked while the caller has it."""
    unclear = list[Path]()
    for path in _candidates(parent):
        ownership = look_at(path)
        if ownership.state == "doubtful":
            unclear.append(path)
        elif ownership.lock is not None and ownership.owner is not None:
            try:
                yield OwnedDirectory(path), ownership.owner
            finally:
                os.close(ownership.lock)
    if unclear:
        time.sleep(_A_MOMENT)  # an owner may have been about to write its marker, or to remove the directory
        _doubtful.update({path: why for path in unclear if (why := _why_doubtful(path))})


def remove_abandoned(parent: Path) -> None:
    """Remove the directories in `parent` whose owner is proven dead, but for those that hold part of a result."""
    for abandoned, owner in abandoned_in(parent):
        if not owner.target:
            remove_owned(abandoned.path)


def _candidates(parent: Path) -> list[Path]:
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if is_name_of_ours(entry.name)]
    except OSError:  # whoever wants to write there will say so
        return []
    return [path for path in (parent / name for name in sorted(names)) if path not in _alive]


def _why_doubtful(path: Path) -> str | None:
    state, owner, lock = look_at(path)
    if lock is not None:
        os.close(lock)
    if state != "doubtful":
        return None
    if owner is None:
        return f"it has the name of a temporary directory of posbias, but no {MARKER} that proves it"
    return f"process {owner.process} on {owner.host} made it, and whether that still runs cannot be seen from here"


def keep(path: Path, why: str) -> None:
    """Note that a directory stays because it cannot be proven that nobody needs it."""
    _doubtful[path] = why


def take_doubtful() -> dict[Path, str]:
    """The directories that have been left alone since the last call, and why."""
    taken = dict(_doubtful)
    _doubtful.clear()
    return taken


def remove_owned(path: Path) -> None:
    """Remove a directory of ours with all that is in it, its marker last; the caller holds its lock."""
    for _ in range(TRIES):  # another thread may still write into it
        for entry in [name for name in _names_in(path) if name != MARKER]:
            _remove(path / entry)
        if _names_in(path) == [MARKER]:
            with suppress(OSError):
                (path / MARKER).unlink()
        with suppress(OSError):
            path.rmdir()
        if not path.is_dir():
            return


def _names_in(path: Path) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - names
    except OSError:
        return []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        with suppress(OSError):
            path.unlink()


def remove_tree(path: Path) -> None:
    """Remove what this process has made, also while another thread still writes into it. Links are not followed."""
    for _ in range(TRIES):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return


def owned_by_this_process() -> dict[Path, int | None]:
    """The directories that this process owns, and their locks: for a signal handler that is about to end it."""
    return dict(_alive)


def system_temporary() -> Path:
    """The system's place for temporary files.

    Raises:
        OutputError: there is none.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise OutputError(
            "there is no place for temporary files: TMPDIR names none, and /tmp and /var/tmp cannot be written. Name a "
            "directory with --temp-dir."
        ) from error
