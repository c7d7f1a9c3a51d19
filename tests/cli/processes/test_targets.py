"""A result never replaces, removes or follows what posbias did not make, whatever it is called and wherever it lies."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import polars as pl
import pytest
from command_results import manifest_of
from patience import PATIENCE, ended
from workshop import RunPosbias, refused

from posbias.io.results.manifest import write_manifest


def everything_in(folder: Path) -> dict[str, bytes | str | None]:
    """What is below a directory: the content of files, the target of links, None for directories."""
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


# --- whatever it is called ------------------------------------------------------------------------------------

FOREIGN_NAMES = (
    "posbias-mine",
    "posbias-0123456789ab",
    "posbias-" + "0" * 32,
    ".posbias-" + "0" * 32,
    ".posbias-out-" + "0" * 32,
    ".posbias-mine",
    ".posbias-part-0123456789ab",
    "posbias-output-0123456789ab",
    "posbias-input-0123456789ab",
    ".out.posbias-0123456789ab",
    ".out.posbias.old",
    "out.kept-0123abcd",
)


@pytest.mark.slow
def test_foreign_directories_of_every_such_name_are_there_unchanged_after_runs(
    run_in_process: RunPosbias, log: Path, tmp_path: Path, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, scratch = tmp_path / "system", tmp_path / "scratch"
    for place in (system, scratch, results):
        for name in FOREIGN_NAMES:
            (place / name / "below").mkdir(parents=True)
            (place / name / "below" / "thesis.txt").write_text(name, encoding="utf-8")
    monkeypatch.setattr("tempfile.tempdir", str(system))
    before = {place: everything_in(place) for place in (system, scratch, results)}
    for _ in range(3):  # a first result, one that replaces it, and one that replaces that
        for options in ((), ("--temp-dir", scratch)):
            run_in_process("run", log, "-o", results / "out", "--force", "--memory", "256MiB", *options, code=0)
    shutil.rmtree(results / "out")
    assert {place: everything_in(place) for place in (system, scratch, results)} == before


# --- what --force may replace ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out", "posbias-out", "training", ".hidden"])
def test_force_replaces_no_directory_that_is_not_a_result(
    run_in_process: RunPosbias, log: Path, results: Path, name: str
) -> None:
    (results / name).mkdir()
    (results / name / "thesis.txt").write_text("mine", encoding="utf-8")
    before = everything_in(results)
    refused(run_in_process("run", log, "-o", results / name, "--force"), str(results / name), "manifest.json")
    assert everything_in(results) == before


MANIFESTS = {
    "empty": b"",
    "of another program": b'{"name": "my extension", "version": "1.0", "files": {"thesis.txt": 4}}',
    "with no list of files": b'{"command": "run", "versions": {"posbias": "0.1.0"}}',
    "with a list of nonsense": b'{"command": "run", "versions": {"posbias": "0.1.0"}, "files": ["thesis.txt"]}',
    "too deep": b'{"command": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("manifest", MANIFESTS.values(), ids=MANIFESTS.keys())
def test_a_manifest_that_is_not_ours_makes_no_result(
    run_in_process: RunPosbias, log: Path, results: Path, manifest: bytes
) -> None:
    (results / "out").mkdir()
    (results / "out" / "thesis.txt").write_text("mine", encoding="utf-8")
    (results / "out" / "manifest.json").write_bytes(manifest)
    before = everything_in(results)
    refused(run_in_process("run", log, "-o", results / "out", "--force"), "manifest.json")
    assert everything_in(results) == before


def test_a_manifest_that_is_a_pipe_does_not_block(run_in_process: RunPosbias, log: Path, results: Path) -> None:
    (results / "out").mkdir()
    os.mkfifo(results / "out" / "manifest.json")
    refused(run_in_process("run", log, "-o", results / "out", "--force"), "manifest.json")


@pytest.fixture
def result(results: Path) -> Path:
    """Return a small result, which --force may replace."""
    target = results / "out"
    (target / "training").mkdir(parents=True)
    (target / "training" / "load.py").write_text("load", encoding="utf-8")
    (target / "table.parquet").write_text("table", encoding="utf-8")
    write_manifest(target, {"command": "run"})
    return target


@pytest.mark.slow
def test_force_replaces_a_result_and_an_empty_directory(
    run_in_process: RunPosbias, log: Path, results: Path, result: Path
) -> None:
    (results / "empty").mkdir()
    for target in (result, results / "empty"):
        run_in_process("run", log, "-o", target, "--force", code=0)
        assert manifest_of(target)["command"] == "run"
    assert sorted(path.name for path in results.iterdir()) == ["empty", "out"]


ADDED: dict[str, Callable[[Path], object]] = {
    "notes": lambda result: (result / "notes.txt").write_text("mine", encoding="utf-8"),
    "hidden": lambda result: (result / ".hidden").write_text("mine", encoding="utf-8"),
    "training/model.txt": lambda result: (result / "training" / "model.txt").write_text("mine", encoding="utf-8"),
    "my": lambda result: (result / "my" / "empty").mkdir(parents=True),
    "training/load.py": lambda result: (result / "training" / "load.py").write_text("load, and more", encoding="utf-8"),
    "training/load.py, as long": lambda result: (result / "training" / "load.py").write_text("lo4d", encoding="utf-8"),
    "table.parquet": lambda result: (result / "table.parquet").write_text("tab1e", encoding="utf-8"),
    "link": lambda result: (result / "link").symlink_to(result.parent),
    "pipe": lambda result: os.mkfifo(result / "pipe"),
}


@pytest.mark.parametrize(("name", "add"), ADDED.items(), ids=ADDED.keys())
def test_what_is_not_part_of_the_old_result_is_not_lost(
    run_in_process: RunPosbias, log: Path, results: Path, result: Path, name: str, add: Callable[[Path], object]
) -> None:
    add(result)
    before = sorted(str(path) for path in results.rglob("*"))
    refused(run_in_process("run", log, "-o", result, "--force"), name.partition(",")[0], "not part of the result")
    assert sorted(str(path) for path in results.rglob("*")) == before


def test_a_link_in_place_of_a_file_of_the_result_is_not_part_of_it(
    run_in_process: RunPosbias, log: Path, result: Path
) -> None:
    (result / "training" / "load.py").rename(result.parent / "load.py")
    (result / "training" / "load.py").symlink_to(result.parent / "load.py")
    refused(run_in_process("run", log, "-o", result, "--force"), "training/load.py")


def test_the_root_home_the_current_directory_and_what_holds_them_are_refused(
    run_in_process: RunPosbias, log: Path, tmp_path: Path, result: Path
) -> None:
    below = result / "training"
    for target in (below, result, result.parent, tmp_path):
        refused(run_in_process("run", log, "-o", target, "--force", cwd=below), "the current directory")
    for target in (below, result, result.parent):
        done = run_in_process("run", log, "-o", target, "--force", HOME=str(below))
        refused(done, "your home directory")
    refused(run_in_process("run", log, "-o", "/", "--force"), "the root")
    refused(run_in_process("run", log, "-o", "//", "--force"), "the root")


def test_inputs_the_configuration_and_temporary_files_inside_the_target_are_refused(
    run_in_process: RunPosbias, log: Path, result: Path
) -> None:
    (result / "p.toml").write_text("", encoding="utf-8")
    (result / "tmp").mkdir()
    shutil.copy(log, result / "log.parquet")
    pl.read_parquet(log).select("query", "doc").unique().with_columns(x=1).write_parquet(result / "features.parquet")
    linked = result.parent / "linked.parquet"
    linked.symlink_to(result / "log.parquet")
    before = everything_in(result)
    for words, named in (
        ((log, "--config", result / "p.toml"), "p.toml"),
        ((log, "--temp-dir", result / "tmp"), "tmp"),
        ((log, "--features", result / "features.parquet"), "features.parquet"),
        ((result / "log.parquet",), "log.parquet"),
        ((linked,), "linked.parquet"),
        ((result / "l*.parquet",), "log.parquet"),
        ((result,), "a directory that this command uses"),
        ((log, "--clicks", result / "log.parquet"), "log.parquet"),
    ):
        refused(run_in_process("run", *words, "-o", result, "--force"), str(result), named, "would delete")
    fit = result.parent / "fit"
    run_in_process("fit", log, "-o", fit, code=0)
    refused(run_in_process("weight", log, "--propensities", fit, "-o", fit, "--force"), str(fit), "would delete")
    done = run_in_process("explore", result, "-o", result, "--force")
    refused(done, f"{result}: is a directory that this command uses, which --force would delete. ")
    assert everything_in(result) == before


@pytest.mark.slow
def test_an_input_that_a_directory_or_standard_input_leads_to_is_refused(
    run_in_process: RunPosbias, clean_environment: dict[str, str], log: Path, results: Path, result: Path
) -> None:
    shutil.copy(log, result / "log.parquet")
    write_manifest(result, {"command": "run"})
    link = results / "days" / "below" / "linked.parquet"
    link.parent.mkdir(parents=True)
    link.symlink_to(result / "log.parquet")
    (results / "folders").mkdir()
    (results / "folders" / "training").symlink_to(result / "training")
    shutil.copy(log, result / "training" / "more.parquet")
    write_manifest(result, {"command": "run"})
    before = everything_in(results)
    for words, named in (
        ((results / "days",), "linked.parquet"),
        ((results / "*s",), "linked.parquet"),
        ((results / "folders",), "more.parquet"),
        ((log, "--features", results / "days"), "linked.parquet"),
    ):
        for command in ("run", "collect")[: 3 - len(words)]:
            refused(run_in_process(command, *words, "-o", result, "--force"), f"holds {results}", named, "would delete")
    with (result / "log.parquet").open("rb") as opened:
        piped = [sys.executable, "-m", "posbias.cli", "collect", "-", "-o", str(result), "--force"]
        done = ended(piped, env=clean_environment, stdin=opened)
    refused(done, "/dev/stdin", "would delete")
    assert everything_in(results) == before


def test_a_link_as_target_is_said_to_be_one(run_in_process: RunPosbias, log: Path, results: Path, result: Path) -> None:
    (results / "link").symlink_to(result)
    refused(run_in_process("run", log, "-o", results / "link"), f"(a symbolic link to {result})", "already exists")
    done = run_in_process("run", log, "-o", results / "link", "--force", code=0)
    assert f"written: {results / 'link'} (a symbolic link to {result})" in done.stderr
    assert (results / "link").is_symlink()
    assert (result / "propensities.parquet").is_file()
    (results / "mine").mkdir()
    (results / "mine" / "thesis.txt").touch()
    (results / "other").symlink_to(results / "mine")
    refused(run_in_process("run", log, "-o", results / "other", "--force"), f"(a symbolic link to {results / 'mine'})")


QUERY = ("sql", "shown", "--dialect", "duckdb")
SINGLE_FILES = {"file of options": ("check", "log.parquet", "--write-config"), "query": (*QUERY, "-o")}


@pytest.mark.slow
@pytest.mark.parametrize("kind", SINGLE_FILES)
def test_force_replaces_no_file_that_posbias_did_not_write_or_that_was_changed(
    run_in_process: RunPosbias, log: Path, results: Path, kind: str
) -> None:
    shutil.copy(log, results / "log.parquet")
    for name, words in SINGLE_FILES.items():
        run_in_process(*words, f"a {name}", cwd=results, code=0)
    genuine = (results / f"a {kind}").read_bytes()
    for content in (b"", b"mine", genuine + b"# mine\n", genuine[:-1], genuine.replace(b"s", b"z", 1)):
        (results / "changed").write_bytes(content)
        done = run_in_process(*SINGLE_FILES[kind], "changed", "--force", cwd=results)
        refused(done, f"changed: is no {kind} of posbias, or has been changed since")
        assert (results / "changed").read_bytes() == content
    (other,) = SINGLE_FILES.keys() - {kind}
    refused(run_in_process(*SINGLE_FILES[kind], f"a {other}", "--force", cwd=results), f"is no {kind} of posbias")
    refused(run_in_process(*SINGLE_FILES[kind], f"a {kind}", cwd=results), "already exists", "--force")
    run_in_process(*SINGLE_FILES[kind], f"a {kind}", "--force", cwd=results, code=0)
    assert sorted(path.name for path in results.iterdir()) == ["a file of options", "a query", "changed", "log.parquet"]


def test_no_command_writes_over_what_it_reads(run_in_process: RunPosbias, log: Path, results: Path) -> None:
    shutil.copy(log, results / "log.parquet")
    (results / "link").symlink_to("log.parquet")
    (results / "hard").hardlink_to(results / "log.parquet")
    (results / "below").symlink_to(results)
    run_in_process(*SINGLE_FILES["file of options"], "options.csv", cwd=results, code=0)
    run_in_process(*QUERY, "-o", "query.sql", cwd=results, code=0)
    before = everything_in(results)
    names = ("log.parquet", "./log.parquet", "below/log.parquet", results / "log.parquet", "link", "hard")
    for words, targets in (
        (("check", "log.parquet", "--write-config"), names),
        (("check", "log.*", "--write-config"), names),
        (("check", "options.csv", "--write-config"), ("options.csv", "below/options.csv")),
        (("check", "log.parquet", "--clicks", "options.csv", "--write-config"), ("options.csv",)),
        (("check", "log.parquet", "--sql", "query.sql", "--write-config"), ("query.sql",)),
        ((*QUERY, "--config", "options.csv", "-o"), ("options.csv",)),
    ):
        for target in targets:
            for force in ((), ("--force",)):
                done = run_in_process(*words, target, *force, cwd=results)
                refused(done, f"{Path(target)}: is read by this command, and is never replaced")
    assert everything_in(results) == before


@pytest.mark.parametrize("name", ["manifest.json", "new.sql", "training/load.py", "training/new.sql"])
def test_a_single_file_does_not_lie_in_a_result_nor_take_the_place_of_one_of_its_files(
    run_in_process: RunPosbias, results: Path, result: Path, name: str
) -> None:
    (results / "link").symlink_to(result)
    before = everything_in(results)
    for target in (result / name, results / "link" / name):
        refused(run_in_process(*QUERY, "-o", target, "--force"), f"{target}: lies in a result of posbias")
    assert everything_in(results) == before


def test_a_result_does_not_lie_in_another_one(
    run_in_process: RunPosbias, log: Path, results: Path, result: Path
) -> None:
    (results / "link").symlink_to(result)
    (result / "empty").mkdir()
    before = everything_in(results)
    for name in ("below", "training/below", "new/below", "empty"):
        for target in (result / name, results / "link" / name):
            for command in (("collect", log), ("collect", log, "--dry-run"), ("simulate",)):
                done = run_in_process(*command, "-o", target, "--force")
                refused(done, ": lies in a result of posbias", str(results / f"out-{Path(name).name}"))
    assert everything_in(results) == before


@pytest.mark.parametrize("target", ["/proc/out", "/proc/self/out", "/proc/sys/out", "/sys/out"])
def test_a_place_in_which_nothing_can_be_made_is_an_error_and_no_hang(
    run_in_process: RunPosbias, log: Path, target: str
) -> None:
    if not Path(target).parent.is_dir():
        pytest.skip(f"there is no {Path(target).parent}")
    refused(run_in_process("run", log, "-o", target), "cannot write")
    refused(run_in_process("collect", log, "-o", target, "--force"), "cannot write")


def test_without_home_and_an_entry_for_the_user_force_works(
    run_in_process: RunPosbias, log: Path, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(*_: object) -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    run_in_process("run", log, "-o", result, "--force", code=0)


# --- one at a time --------------------------------------------------------------------------------------------


def start(environment: dict[str, str], *words: str | Path) -> Popen[str]:
    """Start the command line and do not wait for it."""
    command = [sys.executable, "-m", "posbias.cli", *map(str, words)]
    return Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_of_two_merges_into_one_store_none_loses_a_day(
    clean_environment: dict[str, str], run_in_process: RunPosbias, log: Path, results: Path
) -> None:
    store, table = results / "store", pl.read_parquet(log)
    for number in range(5):
        part = results / f"day{number}.parquet"
        table.with_columns(doc=pl.col("doc") + number).write_parquet(part)
        run_in_process("collect", part, "--date", f"2026-01-0{number + 1}", "-o", results / f"s{number}", code=0)
    shutil.copytree(results / "s0", store)
    merges = [
        start(clean_environment, "collect", store, results / f"s{day}", "-o", store, "--force") for day in (1, 2, 3, 4)
    ]
    ended = [(process.communicate(timeout=PATIENCE)[1], process.returncode) for process in merges]
    merged = {day for day, (_, code) in zip((1, 2, 3, 4), ended, strict=True) if code == 0}
    for said, code in ended:
        assert code == 0 or (code == 2 and ("another run" in said or "replaced" in said)), said
    assert merged
    held = json.loads(run_in_process("collect", store, "--info", "--json").stdout)[0]["days"]
    assert set(held) == {"2026-01-01", *(f"2026-01-0{day + 1}" for day in merged)}
    assert [path.name for path in results.iterdir() if "posbias" in path.name] == []


HOLD = """
import sys
from pathlib import Path
from posbias.io.results.outputs import atomic_directory
with atomic_directory(Path(sys.argv[1]), force=True) as work:
    print("writing", flush=True)
    sys.stdin.read()
    raise KeyboardInterrupt
"""


@pytest.mark.slow
def test_a_target_that_another_run_writes_is_said_to_be_taken(
    run_in_process: RunPosbias, log: Path, results: Path, result: Path
) -> None:
    command = [sys.executable, "-c", HOLD, result]
    with Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "writing\n"
        done = run_in_process("run", log, "-o", result, "--force")
        refused(done, "another run of posbias is writing it", f"process {other.pid} ")
        run_in_process("run", log, "-o", results / "beside", code=0)
        other.communicate("")
    run_in_process("run", log, "-o", result, "--force", code=0)
    assert sorted(path.name for path in results.iterdir()) == ["beside", "out"]


SWAP = """
import sys
from pathlib import Path
from posbias.io.results import renames
from posbias.io.results.outputs import atomic_directory
from posbias.io.results.manifest import write_manifest
if sys.argv[2] == "renames":
    renames._rename = lambda one, other, how: False  # as on a system without renameat2
target = Path(sys.argv[1])
with atomic_directory(target, force=True) as work:
    (work / "which").write_text("ours")
    write_manifest(work, {"command": "run"})
    target.rename(target.with_name("before"))  # another run, which nothing kept out, replaces it
    target.mkdir()
    (target / "which").write_text("theirs")
    write_manifest(target, {"command": "run"})
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exchange", "renames"])
def test_a_result_that_another_run_has_replaced_meanwhile_stays(result: Path, how: str) -> None:
    done = ended([sys.executable, "-c", SWAP, result, how])
    assert "has replaced it during this one" in done.stderr
    assert (result / "which").read_text(encoding="utf-8") == "theirs"
    assert sorted(path.name for path in result.parent.iterdir()) == ["before", "out"]


LATE = """
import os, signal, sys
from pathlib import Path
from posbias.io.results import outputs, renames
from posbias.io.results.manifest import write_manifest
target, moment = Path(sys.argv[1]), sys.argv[2]
def late(made, place):
    (target / "thesis.txt").write_text("mine")  # after all checks
    exchanged = moment != "renamed" and renames.exchange(made, place)
    if moment == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    return exchanged
outputs.exchange = late
with outputs.atomic_directory(target, force=True) as work:
    (work / "which").write_text("new")
    write_manifest(work, {"command": "run"})
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exchanged", "renamed", "killed"])
def test_a_file_that_appears_in_the_old_result_in_the_last_moment_is_not_lost(
    run_in_process: RunPosbias, log: Path, results: Path, result: Path, how: str
) -> None:
    done = ended([sys.executable, "-c", LATE, result, how])
    assert (result / "which").exists() is (how == "killed")
    assert how == "killed" or "thesis.txt is not part of the result there" in done.stderr
    run_in_process("run", log, "-o", results / "another", "--force", code=0)
    (found,) = results.rglob("thesis.txt")
    assert found.read_text(encoding="utf-8") == "mine"
    assert (found == result / "thesis.txt") is (how != "killed")
