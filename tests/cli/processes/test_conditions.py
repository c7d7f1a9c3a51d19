"""What a machine may have in store: links in circles, names that are no text, a FIFO, no home, no temporary place.

Each is one clear error, exit code 2, and leaves nothing behind.
"""

import faulthandler
import os
import shutil
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess
from typing import Never, cast

import polars as pl
import pytest
from command_results import invoke
from patience import PATIENCE, ended
from workshop import RunPosbias

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.places import object_stores

NO_TEXT = os.fsdecode(b"\xff")
FIT = ("fit", "log.parquet", "-o", "out")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a log, a fit of it and its statistics."""
    folder = tmp_path_factory.mktemp("fitted")
    log = simulate(SimulationOptions(n_sessions=300, n_queries=5, docs_per_query=5, n_positions=4, seed=4)).log
    log.write_parquet(folder / "log.parquet")
    for command, name in (("fit", "fit"), ("collect", "statistics")):
        invoke(command, folder / "log.parquet", "-o", folder / name)
    return folder


@pytest.fixture
def folder(fitted: Path, tmp_path: Path) -> Path:
    """Return a directory of its own with the same."""
    shutil.copytree(fitted, tmp_path, dirs_exist_ok=True)
    return tmp_path


def in_words(value: object) -> str:
    """The arguments of a case, for its name."""
    return ascii(" ".join(map(str, cast("tuple[object, ...]", value)))) if isinstance(value, tuple) else ""


def refused(done: CompletedProcess[str], says: str) -> None:
    said = " ".join(done.stderr.replace("│", " ").split())
    assert done.returncode == 2, said
    assert "Traceback" not in said
    assert says in said


def copy_without_text(what: Path, place: Path) -> None:
    """Copy it under a name that is no text."""
    if what.is_dir():
        shutil.copytree(what, place / NO_TEXT)
    else:
        shutil.copyfile(what, place / f"{NO_TEXT}{what.suffix}")


# --- links in circles ------------------------------------------------------------------------------------------


def test_a_configuration_that_is_there_but_cannot_be_read_is_not_passed_over(
    run_in_process: RunPosbias, folder: Path
) -> None:
    (folder / "posbias.toml").symlink_to("posbias.toml")
    refused(run_in_process(*FIT), "posbias.toml: cannot be read: Too many levels of symbolic links")


# --- names that are no text ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fit", "odd", "-o", "out"), r"'odd/\udcff.parquet': the name is not UTF-8"),
        (("fit", "odd/*", "-o", "out"), r"'odd/\udcff.parquet': the name is not UTF-8"),
        (("fit", f"odd/{NO_TEXT}.parquet", "-o", "out"), r"'odd/\udcff.parquet': the name is not UTF-8"),
        ((*FIT, "--clicks", "odd"), r"'odd/\udcff.parquet': the name is not UTF-8"),
        (("fit", "stores/*", "-o", "out"), r"'stores/\udcff': the name is not UTF-8"),
        (("collect", "stores/*", "--info", "--json"), r"'stores/\udcff': the name is not UTF-8"),
        (("weight", "log.parquet", "-o", "out", "--propensities", f"fits/{NO_TEXT}"), "the name is not UTF-8"),
        ((*FIT, "--temp-dir", f"fits/{NO_TEXT}"), r"--temp-dir 'fits/\udcff': the name is not UTF-8"),
        (("fit", "log.parquet", "-o", NO_TEXT), "cannot be the name of a directory"),
        ((*FIT, "--query", NO_TEXT), "there is no column"),
        ((*FIT, "--context", NO_TEXT), "there is no column"),
        ((*FIT, "--config", NO_TEXT), "cannot be read: No such file"),
    ],
    ids=in_words,
)
def test_a_name_that_is_no_text_is_one_error(
    run_in_process: RunPosbias, folder: Path, arguments: tuple[str, ...], says: str
) -> None:
    for place, what in (("odd", "log.parquet"), ("fits", "fit"), ("stores", "statistics")):
        (folder / place).mkdir()
        copy_without_text(folder / what, folder / place)

    refused(run_in_process(*arguments), says)

    assert not (folder / "out").exists()


# --- what is no regular file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fifo", "arguments", "says"),
    [
        ("posbias.toml", FIT, "posbias.toml: cannot be read: Not a regular file"),
        ("some.toml", (*FIT, "--config", "some.toml"), "some.toml: cannot be read: Not a regular file"),
        (
            "fit/propensities.parquet",
            ("weight", "log.parquet", "-o", "out", "--propensities", "fit"),
            "fit: is damaged: propensities.parquet cannot be read (it is a FIFO",
        ),
        ("statistics/part-00000.parquet", ("fit", "statistics", "-o", "out"), "cannot be read: it is a FIFO"),
        ("store/part-00000.parquet", ("fit", "store", "-o", "out"), "store/part-00000.parquet: is neither a file"),
    ],
    ids=in_words,
)
def test_a_fifo_is_not_waited_for(
    run_in_process: RunPosbias, folder: Path, fifo: str, arguments: tuple[str, ...], says: str
) -> None:
    (folder / "store").mkdir()
    (folder / fifo).unlink(missing_ok=True)
    os.mkfifo(folder / fifo)

    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    try:
        done = run_in_process(*arguments)
    finally:
        faulthandler.cancel_dump_traceback_later()

    refused(done, says)


# --- a place to stand on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fit", "log.parquet", "-o", "LIVES/out"), "log.parquet: cannot be opened, because the current directory is"),
        (("fit", "*.parquet", "-o", "LIVES/out"), "*.parquet: cannot be opened, because the current directory is"),
        (("fit", "LIVES/log.parquet", "-o", "out"), "cannot be the name of a directory"),
        (("weight", "LIVES/log.parquet", "-o", "LIVES/out", "--propensities", "fit"), "fit: is not there"),
        (("fit", "LIVES/log.parquet", "-o", "LIVES/out", "--temp-dir", "."), "No such file or directory"),
        (("fit", "LIVES/log.parquet", "-o", "LIVES/out"), None),
        (("check", "LIVES/log.parquet"), None),
        (("check", "LIVES/log.parquet", "--engine", "spark"), "the current directory is gone"),
        (("check", "LIVES/log.parquet", "--write-config", "c.toml"), "'c.toml': cannot be the name of a file: the"),
        (
            ("sql", "shown", "--dialect", "duckdb", "-o", "q.sql"),
            "the current directory is gone. Change to another one",
        ),
        (("simulate", "-o", "out"), "'out': cannot be the name of a directory: the current directory is gone."),
    ],
    ids=in_words,
)
def test_in_a_directory_that_is_gone_only_full_names_are_found(
    run_in_process: RunPosbias,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    says: str | None,
) -> None:
    gone = folder / "gone"
    gone.mkdir()
    chdir = os.chdir

    def go(place: str | Path) -> None:
        chdir(place)
        if Path(place) == gone:
            gone.rmdir()

    monkeypatch.setattr(os, "chdir", go)
    done = run_in_process(*(word.replace("LIVES", str(folder)) for word in arguments), cwd=gone)

    if says is None:
        assert done.returncode == 0, done.stderr
    else:
        refused(done, says)


def no_place() -> Never:
    """What `tempfile.gettempdir` does where nothing can be written."""
    raise FileNotFoundError(2, "No usable temporary directory found in ['/nowhere', '/tmp']")


def test_without_a_place_for_temporary_files_nothing_is_written(
    run_in_process: RunPosbias, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", no_place)

    refused(run_in_process(*FIT), "there is no place for temporary files")
    assert not (folder / "out").exists()
    run_in_process(*FIT, "--temp-dir", folder, code=0)


def unknown(number: int) -> Never:
    """What `pwd.getpwuid` does for a user whom the machine does not know."""
    raise KeyError(number)


def test_nobody_without_a_home_gets_the_keys_of_the_current_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "~" / ".aws").mkdir(parents=True)
    (folder / "~" / ".aws" / "credentials").write_text("[default]\naws_access_key_id = x\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)

    assert object_stores._aws_settings({}) == {}  # pyright: ignore[reportPrivateUsage]


# --- what breaks down ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [f"a = {'[' * 100_000}", "{" * 100_000, f"a = {'9' * 10_000}"], ids=len)
@pytest.mark.parametrize("named", [True, False])
def test_a_configuration_of_any_depth_is_one_error(
    run_in_process: RunPosbias,
    folder: Path,
    text: str,
    named: bool,  # noqa: FBT001
) -> None:
    file = folder / ("deep.toml" if named else "posbias.toml")
    file.write_text(text, encoding="utf-8")

    refused(run_in_process(*FIT, *(("--config", "deep.toml") if named else ())), f"{file.name}: ")


def test_a_panic_of_polars_is_one_error(
    run_in_process: RunPosbias, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(*_: object, **__: object) -> Never:
        raise pl.exceptions.PanicException("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr("posbias.io.jobs.fit.fit_statistics", panic)

    refused(run_in_process(*FIT), "posbias: error: Polars failed: called `Option::unwrap()`")
    assert not (folder / "out").exists()


def test_what_fails_while_the_program_loads_exits_with_2(folder: Path) -> None:
    code = "import sys; sys.modules['typer'] = None; from posbias.cli.__main__ import main; main()"
    done = ended([sys.executable, "-c", code], cwd=folder)
    assert done.returncode == 2
    assert "typer" in done.stderr
