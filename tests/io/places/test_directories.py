"""Only what a dead process of ours has left is removed; whatever else is there stays, whatever it is called."""

import errno
import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from threading import Timer

import pytest
from command_results import contents
from patience import PATIENCE, ended

from posbias.core.errors import OutputError
from posbias.io.places import ownership as owned
from posbias.io.places.object_stores import copies_below, folder_for_copies
from posbias.io.places.ownership import (
    LOCK,
    abandoned_in,
    claimed,
    owned_by_this_process,
    owned_directory,
    remove_owned,
)

# A process that makes a directory in argv[1], says its name, and dies or waits.
MAKE = """
import os, signal, sys, time
from pathlib import Path
from posbias.io.places.ownership import owned_directory
with owned_directory(Path(sys.argv[1])) as work:
    (work / "file").write_text("temporary")
    print(work.parent, flush=True)
    if sys.argv[2] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
"""

# A process that tidies up in argv[1].
TIDY = """
import sys
from pathlib import Path
from posbias.io.places.ownership import owned_directory
with owned_directory(Path(sys.argv[1])):
    pass
"""

Change = Callable[[Path], object]


def tidy(parent: Path) -> None:
    """Remove what the dead have left, as every run does before it makes a directory."""
    with owned_directory(parent):
        pass


def left_by_the_killed(parent: Path) -> Path:
    """A directory whose process was killed."""
    done = ended([sys.executable, "-c", MAKE, parent, "die"])
    path = Path(done.stdout.strip())
    assert (path / "work" / "file").read_text(encoding="utf-8") == "temporary"
    return path


def left_by_the_dead(parent: Path) -> Path:
    """A directory like that, of a process that was killed before."""
    path = parent / f"posbias-{token_hex(16)}"
    (path / "work").mkdir(parents=True)
    (path / "work" / "file").write_text("temporary", encoding="utf-8")
    (path / LOCK).write_text(f"process 1 on {socket.gethostname()}", encoding="utf-8")
    return path


def test_a_directory_is_for_its_owner_alone_and_goes_at_the_end(tmp_path: Path) -> None:
    with owned_directory(tmp_path) as work:
        assert work.parent.stat().st_mode & 0o777 == 0o700
        assert len(work.parent.name) == len("posbias-") + 32
        assert (work.parent / LOCK).read_text() == f"process {os.getpid()} on {socket.gethostname()}"
    assert list(tmp_path.iterdir()) == []


def test_what_the_dead_have_left_is_removed(tmp_path: Path) -> None:
    path = left_by_the_killed(tmp_path)
    assert [found for found, _ in abandoned_in(tmp_path)] == [path]
    tidy(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_a_live_process_has_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE, tmp_path, "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        tidy(tmp_path)
        assert (path / "work" / "file").exists()
        process.communicate("")
    assert list(tmp_path.iterdir()) == []


def test_what_was_made_before_it_had_a_lock_is_removed(tmp_path: Path) -> None:
    (tmp_path / f"posbias-{token_hex(16)}").mkdir()
    tidy(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_locks_a_process_removes_its_own_directory_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_: int, __: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    path = left_by_the_dead(tmp_path)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with owned_directory(tmp_path) as work, claimed(tmp_path, "0" * 32, None):
        assert work.is_dir()
    assert list(tmp_path.iterdir()) == [path]
    assert (path / "work" / "file").exists()


def with_lock(make: Change) -> Change:
    """Put something else in the place of the lock."""

    def change(path: Path) -> None:
        (path / LOCK).rename(path.parent / "lock")
        make(path / LOCK)

    return change


NAMES = [
    *("mine", "output-0123456789ab", "input-0123456789ab", "0123456789ab", "0" * 31, "0" * 33, "A" * 32),
    "0" * 32 + "\n",
]
ODD: dict[str, Change] = {
    "without a lock": lambda path: (path / LOCK).unlink(),
    "with an empty lock": lambda path: (path / LOCK).write_bytes(b""),
    "with a lock that names no process": lambda path: (path / LOCK).write_bytes(b"\xff{"),
    "of another host": lambda path: (path / LOCK).write_text("process 1 on elsewhere"),
    "with a lock that is a link": with_lock(lambda at: at.symlink_to(at.parents[1] / "lock")),
    "with a lock that is a pipe": with_lock(os.mkfifo),
    "with a lock that is a directory": with_lock(Path.mkdir),
    "with a lock that has a second name": lambda path: os.link(path / LOCK, path.parent / "second"),
    **{f"posbias-{name}": lambda path, name=name: path.rename(path.parent / f"posbias-{name}") for name in NAMES},
    **{
        name: lambda path, name=name: path.rename(path.parent / name)
        for name in (".posbias-0123456789ab", ".out.posbias-0123456789ab", "my-posbias-" + "0" * 32)
    },
}
if os.geteuid() == 0:  # only root can make what belongs to another user
    ODD["of another user"] = lambda path: os.chown(path, 12345, 12345)


@pytest.mark.parametrize("change", ODD.values(), ids=ODD)
def test_when_in_doubt_a_directory_stays(tmp_path: Path, change: Change) -> None:
    path = left_by_the_dead(tmp_path)
    moved = change(path)
    path = moved if isinstance(moved, Path) else path
    before = contents(path)
    for _ in range(3):
        tidy(tmp_path)
    assert before == contents(path)
    assert (path / "work" / "file").exists()


def test_a_link_to_what_the_dead_have_left_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = left_by_the_dead(elsewhere)
    (tmp_path / path.name).symlink_to(path)
    tidy(tmp_path)
    assert (path / "work" / "file").exists()
    assert (tmp_path / path.name).is_symlink()


def test_links_in_what_the_dead_have_left_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    path = left_by_the_dead(tmp_path / "temporary")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("kept", encoding="utf-8")
    (path / "link").symlink_to(mine)
    (path / "work" / "link").symlink_to(mine)
    tidy(path.parent)
    assert not path.exists()
    assert contents(mine) == {"file": b"kept"}


def test_the_lock_is_held_until_the_directory_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[Path] = []

    def watched(path: Path) -> None:
        with (path.parent / LOCK).open("r+b") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        removed.append(path.parent)
        remove(path)

    remove = owned.remove_tree
    monkeypatch.setattr(owned, "remove_tree", watched)
    with owned_directory(tmp_path) as work:
        (work / "file").touch()
    path = left_by_the_dead(tmp_path)
    for abandoned, lock in abandoned_in(tmp_path):
        remove_owned(abandoned, lock)
    assert removed == [work.parent, path]
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_another_process_in_the_same_directory_stays(tmp_path: Path) -> None:
    path = tmp_path / f".posbias-out-{'0' * 32}"
    with claimed(tmp_path, "0" * 32, None):
        (path / LOCK).rename(tmp_path / "old")  # as if it had been removed, and another process had come
        (path / LOCK).write_text("process 1 on elsewhere")
    assert (path / LOCK).read_text() == "process 1 on elsewhere"


@pytest.mark.slow
def test_two_who_tidy_up_at_once_do_no_harm(tmp_path: Path) -> None:
    for _ in range(3):
        left_by_the_dead(tmp_path)
    both = [subprocess.Popen([sys.executable, "-c", TIDY, tmp_path]) for _ in range(2)]
    assert [process.wait(PATIENCE) for process in both] == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_known_as_ours_from_before_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known, before = list[bool](), owned_by_this_process()
    make = Path.mkdir

    def watched(path: Path, mode: int = 0o777) -> None:
        known.append(path in owned_by_this_process())
        make(path, mode)

    monkeypatch.setattr(Path, "mkdir", watched)
    with owned_directory(tmp_path) as work:
        assert list(owned_by_this_process()) == [*before, work.parent]
    assert known[0]
    assert owned_by_this_process() == before


def test_where_nothing_can_be_made_the_error_comes_at_once() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("takes a /proc")
    before = owned_by_this_process()
    with pytest.raises(OutputError, match=r"cannot write in /proc/self"), owned_directory(Path("/proc/self")):
        pass
    assert owned_by_this_process() == before


def test_a_directory_that_cannot_be_removed_is_no_endless_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Path] = []
    monkeypatch.setattr(owned, "remove_tree", tried.append)
    with owned_directory(tmp_path) as work:
        (work / "file").touch()
    assert 1 <= len(tried) <= owned.TRIES
    assert (work.parent / LOCK).exists(), "the lock goes last, so that a later run can still remove the rest"


def test_who_tidies_up_is_in_nobodys_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It removes the directory while that is still empty, and then has the lock before its owner has it."""
    make, open_file, made, opened = Path.mkdir, os.open, list[Path](), list[int]()

    def removed_at_first(path: Path, mode: int = 0o777) -> None:
        make(path, mode)
        if path.parent == tmp_path and not made:
            path.rmdir()
        made.append(path)

    def had_at_first(path: Path, flags: int, mode: int = 0o777) -> int:
        lock = open_file(path, flags, mode)
        if not opened:
            opened.append(open_file(path, os.O_RDWR))
            fcntl.flock(opened[0], fcntl.LOCK_EX)
            Timer(0.05, os.close, opened).start()
        return lock

    monkeypatch.setattr(Path, "mkdir", removed_at_first)
    monkeypatch.setattr(os, "open", had_at_first)
    with owned_directory(tmp_path) as work:
        monkeypatch.undo()
        assert made == [work.parent, work.parent, work]
    assert list(tmp_path.iterdir()) == []


def test_on_a_full_disk_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OutputError, match="No space left"), owned_directory(tmp_path):
        pass
    with pytest.raises(OSError, match="No space left"), claimed(tmp_path, "0" * 32, None):
        pass
    assert list(tmp_path.iterdir()) == []


def test_copies_however_many_hold_one_lock_and_go_with_the_command(tmp_path: Path) -> None:
    with copies_below(tmp_path):
        folders = {folder_for_copies() for _ in range(20)}
        assert len(folders) == 20
        assert len({folder.parent for folder in folders}) == len(list(tmp_path.iterdir())) == 1
    assert not list(tmp_path.iterdir())
