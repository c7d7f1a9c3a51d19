"""Whatever ends a run (a full disk, Ctrl-C, a kill), the output is whole or not there, and the next run tidies up."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Container
from pathlib import Path
from subprocess import CompletedProcess, Popen

import polars as pl
import pytest
from command_results import contents
from patience import PATIENCE, worked
from workshop import RunPosbias, left_in

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.results.manifest import write_manifest

MountTmpfs = Callable[[Path, str], Path]

PROMPT_SECONDS = 5  # of processor time, that a run may use after it is stopped
SMALL_MEMORY = ("--memory", "256MiB")  # splits the log into buckets
N_KILLS = 2  # while it works, not while it loads


@pytest.fixture(scope="module")
def big_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of 1.5 million impressions: some ten buckets, over which a run takes a second or two."""
    path = tmp_path_factory.mktemp("big") / "log.parquet"
    simulate(SimulationOptions(n_sessions=150_000, n_queries=2_000)).log.write_parquet(path)
    return path


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Return the directory for temporary files."""
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def write_old(target: Path) -> Path:
    """Write a small result, which --force may replace."""
    target.mkdir()
    (target / "which").write_text("old", encoding="utf-8")
    write_manifest(target, {"command": "run"})
    return target


def start(environment: dict[str, str], *arguments: str | Path) -> Popen[str]:
    """Start the command line and do not wait for it."""
    command = [sys.executable, "-m", "posbias.cli", *map(str, arguments)]
    return Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(folder: Path, pattern: str, process: Popen[str], besides: Container[Path] = ()) -> None:
    """Wait until a running process has made a file or directory, besides those that were there."""
    deadline = time.monotonic() + PATIENCE
    while all(path in besides for path in folder.glob(pattern)):
        assert process.poll() is None, f"ended before it made {pattern}: {process.communicate()}"
        assert time.monotonic() < deadline, f"made no {pattern}"
        time.sleep(0.001)


# --- a full disk ----------------------------------------------------------------------------------------------


def assert_no_space(done: CompletedProcess[str], place: Path) -> None:
    """Exit code 2, one message that says what is full, nothing on disk."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("posbias: error: ")
    assert "o space left on" in done.stderr
    assert str(place) in done.stderr
    assert "Traceback" not in done.stderr


TINY_MEMORY = 8_000_000  # bytes: some ten buckets for the log below


@pytest.fixture
def in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give commands next to no memory."""

    def tiny(_: str) -> int:
        return TINY_MEMORY

    monkeypatch.setattr("posbias.cli.work.execution.parse_memory", tiny)


@pytest.fixture(scope="module")
def wide_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of 200,000 impressions of 20,000 documents."""
    path = tmp_path_factory.mktemp("wide") / "log.parquet"
    simulate(SimulationOptions(n_sessions=20_000, n_queries=2_000, query_exponent=0.3)).log.write_parquet(path)
    return path


@pytest.mark.parametrize("options", [(), ("--format", "csv"), ("--layout", "session"), SMALL_MEMORY], ids=" ".join)
@pytest.mark.slow
def test_a_disk_that_is_full_for_the_result_is_named_and_left_as_it_was(
    run_in_process: RunPosbias,
    request: pytest.FixtureRequest,
    wide_log: Path,
    tmp_path: Path,
    scratch: Path,
    mount_tmpfs: MountTmpfs,
    options: tuple[str, ...],
) -> None:
    if options == SMALL_MEMORY:
        request.getfixturevalue("in_buckets")
    full = mount_tmpfs(tmp_path / "full", "size=64k")
    done = run_in_process("run", wide_log, "-o", full / "out", "--temp-dir", scratch, *options)
    assert_no_space(done, full)
    assert left_in(full) == []
    assert left_in(scratch) == []


@pytest.mark.parametrize("command", [("run",), ("collect",), ("run", "--model", "ubm")], ids=" ".join)
@pytest.mark.usefixtures("in_buckets")
def test_a_disk_that_is_full_for_temporary_files_is_named_and_left_as_it_was(
    run_in_process: RunPosbias,
    wide_log: Path,
    tmp_path: Path,
    results: Path,
    mount_tmpfs: MountTmpfs,
    command: tuple[str, ...],
) -> None:
    full = mount_tmpfs(tmp_path / "full", "size=128k")
    done = run_in_process(*command, wide_log, "-o", results / "out", "--temp-dir", full)
    assert_no_space(done, full)
    assert left_in(full) == []
    assert left_in(results) == []


@pytest.mark.slow
def test_a_full_disk_keeps_the_old_result(
    run_in_process: RunPosbias, log: Path, wide_log: Path, tmp_path: Path, mount_tmpfs: MountTmpfs
) -> None:
    full = mount_tmpfs(tmp_path / "full", "size=256k")
    run_in_process("run", log, "-o", full / "out", code=0)
    old = contents(full)
    assert_no_space(run_in_process("run", wide_log, "-o", full / "out", "--force"), full)
    assert contents(full) == old


# --- stopped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "moment", "force"),
    [  # every two of the three together
        (signal.SIGINT, "starting", False),
        (signal.SIGTERM, "starting", True),
        (signal.SIGTERM, "splitting", False),
        (signal.SIGINT, "splitting", True),
        (signal.SIGINT, "writing", False),
        (signal.SIGTERM, "writing", True),
    ],
)
@pytest.mark.slow
def test_a_run_that_is_stopped_ends_at_once_and_leaves_nothing(
    clean_environment: dict[str, str],
    big_log: Path,
    results: Path,
    scratch: Path,
    number: signal.Signals,
    moment: str,
    *,
    force: bool,
) -> None:
    target = results / "out"
    if force:
        write_old(target)
    before = contents(results)
    options = ("--temp-dir", scratch, *SMALL_MEMORY, *(("--force",) if force else ()))
    with start(clean_environment, "run", big_log, "-o", target, *options) as process:
        if moment == "starting":
            wait_for(scratch, "posbias-*/work", process)
        elif moment == "splitting":
            wait_for(scratch, "posbias-*/work/impressions/*/*/*", process)
        else:
            wait_for(results, ".posbias-*/work/propensities.parquet", process)
        used = worked(process.pid) + sum(os.times()[2:4])
        process.send_signal(number)
        out, said = process.communicate(timeout=PATIENCE)
    took = sum(os.times()[2:4]) - used
    assert process.returncode == 128 + number
    assert (out, said.strip()) == ("", f"posbias: stopped by {number.name}; nothing was written.")
    assert took < PROMPT_SECONDS
    assert contents(results) == before
    assert left_in(scratch) == []
    assert [name for name in left_in(results) if "posbias" in name] == []


def test_a_run_that_is_stopped_while_it_loads_shows_no_traceback(
    clean_environment: dict[str, str], log: Path, results: Path
) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "posbias.cli", "run", log, "-o", results / "out"]
    with Popen(command, env=clean_environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "polars." in line:  # the first of many modules
                process.send_signal(signal.SIGINT)
                break
        said = process.stderr.read()
    assert process.returncode in {128 + signal.SIGINT, -signal.SIGINT}
    assert "Traceback" not in said
    assert left_in(results) == []


# --- killed ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("force", [False, True], ids=["new", "force"])
def test_a_kill_at_any_moment_leaves_one_whole_result_and_the_next_run_tidies_up(
    clean_environment: dict[str, str],
    run_in_process: RunPosbias,
    log: Path,
    big_log: Path,
    results: Path,
    scratch: Path,
    *,
    force: bool,
) -> None:
    target = results / "out"
    old = results.parent / "old"
    run_in_process("run", log, "-o", old, code=0)
    whole: list[dict[str, bytes]] = [contents(old) if force else {}]
    run_big = ("run", big_log, "-o", target, "--force", "--temp-dir", scratch, *SMALL_MEMORY)
    with start(clean_environment, *run_big) as process:
        wait_for(scratch, "posbias-*/work", process)
        began = time.monotonic()
        process.communicate()
    duration = time.monotonic() - began
    assert process.returncode == 0
    whole.append(contents(target))
    killed = 0
    for moment in range(N_KILLS):
        shutil.rmtree(target)
        if force:
            shutil.copytree(old, target)
        left = set(scratch.glob("posbias-*/work"))
        with start(clean_environment, *run_big) as process:
            wait_for(scratch, "posbias-*/work", process, besides=left)
            time.sleep(duration * (moment + (0.75 if force else 0.25)) / N_KILLS)
            process.kill()
            process.communicate()
        killed += process.returncode == -signal.SIGKILL
        target.mkdir(exist_ok=True)
        found = contents(target)
        assert found in whole, f"neither the old nor the new result after {moment} of {N_KILLS}: {sorted(found)}"
        if found:
            json.loads(found["manifest.json"])
            assert pl.read_parquet(target / "propensities.parquet").height > 0
    assert killed > 0
    run_in_process(*run_big, code=0)
    assert contents(target) == whole[1]
    assert [path.name for path in results.iterdir()] == ["out"]
    assert left_in(scratch) == []


# --- how a result moves into place ----------------------------------------------------------------------------

# Replaces the result argv[1] by one that holds "new"; the process kills itself after the rename number argv[2].
REPLACE = """
import os, signal, sys
from pathlib import Path
from posbias.io.results import renames
from posbias.io.results.outputs import atomic_directory
from posbias.io.results.manifest import write_manifest

count, rename = 0, Path.rename

def counted(self, target):
    global count
    directory = self.is_dir()
    moved = rename(self, target)
    count += directory
    if count == int(sys.argv[2]) and directory:
        os.kill(os.getpid(), signal.SIGKILL)
    return moved

Path.rename = counted
renames._rename = lambda one, other, how: False  # as on a system without renameat2
with atomic_directory(Path(sys.argv[1]), force=True) as work:
    (work / "which").write_text("new")
    write_manifest(work, {"command": "run"})
"""


def replace(target: Path, kill_after: int, environment: dict[str, str]) -> int:
    """Replace a directory where the system cannot exchange two; return the exit code."""
    command = [sys.executable, "-c", REPLACE, str(target), str(kill_after)]
    return subprocess.run(command, env=environment, check=False).returncode


@pytest.fixture
def old_result(results: Path) -> Path:
    """Return an older result that stands where the new one will."""
    return write_old(results / "out")


def test_without_exchange_a_directory_is_replaced_by_renames(
    old_result: Path, clean_environment: dict[str, str]
) -> None:
    assert replace(old_result, 0, clean_environment) == 0
    assert (old_result / "which").read_text(encoding="utf-8") == "new"
    assert left_in(old_result.parent) == ["out", "out/manifest.json", "out/which"]


@pytest.mark.slow
@pytest.mark.parametrize(("kill_after", "which"), [(1, "old"), (2, "new")])
def test_without_exchange_the_next_run_mends_what_a_kill_between_the_renames_left(
    run_in_process: RunPosbias,
    log: Path,
    old_result: Path,
    clean_environment: dict[str, str],
    kill_after: int,
    which: str,
) -> None:
    assert replace(old_result, kill_after, clean_environment) == -signal.SIGKILL
    refused = run_in_process("run", log, "-o", old_result, code=2)
    assert "already exists" in refused.stderr
    assert (old_result / "which").read_text(encoding="utf-8") == which
    run_in_process("run", log, "-o", old_result, "--force", code=0)
    assert not (old_result / "which").exists()
    assert [path.name for path in old_result.parent.iterdir()] == ["out"]


@pytest.mark.slow
def test_a_result_that_appears_meanwhile_is_not_replaced_without_force(
    clean_environment: dict[str, str], big_log: Path, results: Path, scratch: Path
) -> None:
    target = results / "out"
    with start(clean_environment, "run", big_log, "-o", target, "--temp-dir", scratch, *SMALL_MEMORY) as process:
        wait_for(scratch, "posbias-*/work", process)
        target.mkdir()
        (target / "mine").write_text("of another run", encoding="utf-8")
        _, said = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2, said
    assert f"{target}: already exists" in said
    assert left_in(results) == ["out", "out/mine"]


@pytest.mark.slow
def test_two_runs_beside_each_other_do_not_take_each_others_directories(
    clean_environment: dict[str, str], big_log: Path, results: Path, scratch: Path
) -> None:
    runs = [
        start(clean_environment, "run", big_log, "-o", results / name, "--temp-dir", scratch, *SMALL_MEMORY)
        for name in ("a", "b")
    ]
    for process in runs:
        _, said = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
    one, other = contents(results / "a"), contents(results / "b")
    manifests = [json.loads(of.pop("manifest.json")) | {"next": "", "checksum": ""} for of in (one, other)]
    assert manifests[0] == manifests[1]  # but for the next command, which names the result
    assert one == other
    assert sorted(path.name for path in results.iterdir()) == ["a", "b"]
    assert left_in(scratch) == []
