"""The proof that a directory is ours: a marker in it says which process made it, and that process holds its lock.

A name proves nothing. What a later run may remove bears a marker of this format, in a directory whose name holds the
marker's own token, of the same user, on the same machine, whose lock nobody holds and whose process no longer lives.
Whatever lacks any of this stays.
"""

import fcntl
import os
import re
import secrets
import socket
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

MARKER = "owner.json"
"""The name of the marker in a directory of ours."""

FORMAT = "posbias.owner/1"

_NAME = re.compile(r"\.?posbias-([0-9a-f]{32})")
_UNFINISHED = f"{MARKER}.new"
_LONGEST_MARKER = 1 << 16  # bytes: a target's path may be long
_PROCESS_STARTED = 19  # of the fields of /proc/PID/stat behind the command: field 22 of all
_DEAD = ("Z", "X")  # the state of a process that has ended and that nobody has asked about yet

State = Literal["in use", "abandoned", "doubtful", "foreign"]
"""Of a directory: a live process has it, a dead one of ours had it, nobody can tell, or it is not ours."""


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a marker says: which process of which user on which machine made the directory, and what for."""

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


class Found(NamedTuple):
    """What is known of a directory."""

    state: State  # whose it is
    owner: Owner | None = None  # what its marker says, where it has one of ours
    # of an abandoned one the handle that now holds its lock, to be closed when the directory is gone
    lock: int | None = None


def new_name(*, hidden: bool) -> str:
    """A name that nobody can guess."""
    return f"{'.' if hidden else ''}posbias-{secrets.token_hex(16)}"


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


def look_at(directory: Path) -> Found:
    """What is known of a directory; the lock of an abandoned one is taken. Symbolic links are not followed."""
    name = _NAME.fullmatch(directory.name)
    if name is None:
        return Found("foreign")
    try:
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return Found("doubtful" if _is_own(directory) else "foreign")
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return Found("foreign")
        return _look_into(folder, name[1])
    finally:
        os.close(folder)


def _look_into(folder: int, token: str) -> Found:
    try:
        # O_NONBLOCK: a named pipe of that name does not hold us up.
        lock = os.open(MARKER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return Found("doubtful")
    owner = _read(lock)
    state = "doubtful" if owner is None or owner.token != token else _state(owner, lock)
    if state == "abandoned":
        return Found(state, owner, lock)
    os.close(lock)
    return Found(state, owner)


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
