"""Only what a dead process of ours provably made is removed; whatever else is there stays, whatever it is called."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory

import msgspec
import pytest
from command_results import contents
from patience import PATIENCE

from posbias.core.errors import OutputError
from posbias.io.places import ownership
from posbias.io.places import ownership as owned
from posbias.io.places.ownership import (
    MARKER,
    Owner,
    look_at,
    owned_by_this_process,
    owned_directory,
    remove_abandoned,
    take_doubtful,
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

# A process that tidies up in argv[1], and says what it left alone.
TIDY = """
import sys
from pathlib import Path
from posbias.io.places.ownership import remove_abandoned, take_doubtful
remove_abandoned(Path(sys.argv[1]))
print(take_doubtful())
"""

Change = Callable[[Path], object]


@pytest.fixture(autouse=True)
def nothing_doubtful() -> None:
    """Forget what other tests have left alone."""
    take_doubtful()


def left_by_the_killed(parent: Path) -> Path:
    """A directory whose owner was killed."""
    done = subprocess.run(
        [sys.executable, "-c", MAKE, parent, "die"], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    path = Path(done.stdout.strip())
    assert (path / "work" / "file").read_text(encoding="utf-8") == "temporary"
    return path


@cache
def marker_of_the_killed() -> bytes:
    """What the marker of such a directory says."""
    with TemporaryDirectory() as parent:
        return (left_by_the_killed(Path(parent)) / MARKER).read_bytes()


def left_by_the_dead(parent: Path) -> Path:
    """A directory like that, of a process that was killed before."""
    path = parent / f"posbias-{token_hex(16)}"
    (path / "work").mkdir(parents=True)
    (path / "work" / "file").write_text("temporary", encoding="utf-8")
    (path / MARKER).write_bytes(marker_of_the_killed())
    rewrite(path, token=path.name.removeprefix("posbias-"))
    return path


def rewrite(directory: Path, **changes: object) -> None:
    """Change what the marker says."""
    marker = directory / MARKER
    content = msgspec.json.decode(marker.read_bytes())
    marker.write_bytes(msgspec.json.encode(content | changes))


def test_a_directory_is_for_its_owner_alone_and_goes_at_the_end(tmp_path: Path) -> None:
    with owned_directory(tmp_path) as work:
        assert work.parent.stat().st_mode & 0o777 == 0o700
        assert len(work.parent.name) == len("posbias-") + 32
        said = msgspec.json.decode((work.parent / MARKER).read_bytes(), type=Owner)
        assert (said.user, said.process) == (os.geteuid(), os.getpid())
        assert work.parent.name.endswith(said.token)
    assert list(tmp_path.iterdir()) == []


def test_what_the_dead_have_left_is_removed(tmp_path: Path) -> None:
    path = left_by_the_killed(tmp_path)
    found = look_at(path)
    assert found.state == "abandoned"
    assert found.lock is not None
    os.close(found.lock)
    remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert take_doubtful() == {}


def test_what_a_live_process_has_stays(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE, tmp_path, "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        path = Path(process.stdout.readline().strip())
        remove_abandoned(tmp_path)
        assert (path / "work" / "file").exists()
        assert [theirs.process for _, theirs in owned.owners_in(tmp_path)] == [process.pid]
        process.communicate("")
    assert list(tmp_path.iterdir()) == []
    assert take_doubtful() == {}


def test_a_process_lives_even_where_its_lock_has_been_lost(tmp_path: Path) -> None:
    path = left_by_the_dead(tmp_path)
    rewrite(path, process=os.getpid(), started=ownership.started(os.getpid()))
    remove_abandoned(tmp_path)
    assert (path / "work" / "file").exists()


def test_a_later_process_of_the_same_number_is_not_the_owner(tmp_path: Path) -> None:
    path = left_by_the_dead(tmp_path)
    rewrite(path, process=os.getpid(), started=1)
    remove_abandoned(tmp_path)
    assert not path.exists()


CHANGES: dict[str, Change] = {
    "without a marker": lambda path: (path / MARKER).unlink(),
    "with an empty marker": lambda path: (path / MARKER).write_bytes(b""),
    "with a marker of no JSON": lambda path: (path / MARKER).write_bytes(b"\xff{"),
    "with a marker of another format": lambda path: rewrite(path, format="posbias.owner/2"),
    "with another token than its name": lambda path: rewrite(path, token="0" * 32),
    "of another user by its marker": lambda path: rewrite(path, user=os.geteuid() + 1),
    "of another host": lambda path: rewrite(path, host="elsewhere"),
    "with a marker that says more": lambda path: rewrite(path, more=1),
    "with a process that is no number": lambda path: rewrite(path, process="1"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.slow_after(2)
def test_when_in_doubt_a_directory_stays_and_is_named(tmp_path: Path, change: Change) -> None:
    path = left_by_the_dead(tmp_path)
    change(path)
    before = contents(path)
    for _ in range(3):
        remove_abandoned(tmp_path)
        with owned_directory(tmp_path):
            pass
    assert contents(path) == before
    assert set(take_doubtful()) == {path}


def test_a_marker_that_is_a_link_or_a_pipe_proves_nothing_and_does_not_block(tmp_path: Path) -> None:
    makes: list[Change] = [lambda at: at.symlink_to(tmp_path / "marker"), os.mkfifo, Path.mkdir]
    for number, make in enumerate(makes):
        path = left_by_the_dead(tmp_path)
        (path / MARKER).rename(tmp_path / "marker")
        make(path / MARKER)
        remove_abandoned(tmp_path)
        assert (path / "work" / "file").exists(), number
        assert path in take_doubtful()


def test_a_marker_with_a_second_name_proves_nothing(tmp_path: Path) -> None:
    path = left_by_the_dead(tmp_path)
    os.link(path / MARKER, tmp_path / "second")
    remove_abandoned(tmp_path)
    assert (path / "work" / "file").exists()


def test_a_link_to_what_the_dead_have_left_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = left_by_the_dead(elsewhere)
    (tmp_path / path.name).symlink_to(path)
    remove_abandoned(tmp_path)
    assert (path / "work" / "file").exists()
    assert (tmp_path / path.name).is_symlink()
    assert take_doubtful() == {}


def test_links_in_what_the_dead_have_left_are_removed_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    path = left_by_the_dead(tmp_path / "temporary")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "file").write_text("kept", encoding="utf-8")
    (path / "link").symlink_to(mine)
    (path / "work" / "link").symlink_to(mine)
    remove_abandoned(path.parent)
    assert not path.exists()
    assert contents(mine) == {"file": b"kept"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to another user")
def test_what_belongs_to_another_user_stays_and_is_not_even_named(tmp_path: Path) -> None:
    path = left_by_the_dead(tmp_path)
    os.chown(path, 12345, 12345)
    remove_abandoned(tmp_path)
    assert (path / "work" / "file").exists()
    assert take_doubtful() == {}


@pytest.mark.parametrize(
    "name",
    [
        "posbias-mine",
        "posbias-output-0123456789ab",
        "posbias-input-0123456789ab",
        "posbias-0123456789ab",
        ".posbias-0123456789ab",
        ".out.posbias-0123456789ab",
        "posbias-" + "0" * 31,
        "posbias-" + "0" * 33,
        "posbias-" + "A" * 32,
        "my-posbias-" + "0" * 32,
        "posbias-" + "0" * 32 + "\n",
    ],
)
def test_a_name_that_begins_like_ours_proves_nothing(tmp_path: Path, name: str) -> None:
    path = left_by_the_dead(tmp_path)
    renamed = path.rename(tmp_path / name)
    remove_abandoned(tmp_path)
    assert (renamed / "work" / "file").exists()
    assert take_doubtful() == {}


def test_the_lock_is_held_until_the_directory_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked: list[str] = []

    def watched(path: Path) -> None:
        locked.append(look_at(path.parent).state)
        remove(path)

    remove = owned.remove_tree
    monkeypatch.setattr(owned, "remove_tree", watched)
    with owned_directory(tmp_path) as work:
        (work / "file").touch()
    assert locked == ["in use"]
    path = left_by_the_dead(tmp_path)
    remove_abandoned(tmp_path)
    assert locked == ["in use", "in use"]
    assert not path.exists()


@pytest.mark.slow
def test_two_who_tidy_up_at_once_do_no_harm(tmp_path: Path) -> None:
    for _ in range(3):
        left_by_the_dead(tmp_path)
    both = [
        subprocess.Popen([sys.executable, "-c", TIDY, tmp_path], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert [process.communicate(timeout=PATIENCE)[0].strip() for process in both] == ["{}", "{}"]
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
    assert (work.parent / MARKER).exists(), "the marker goes last, so that a later run can still prove whose it was"
