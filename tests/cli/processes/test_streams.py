"""stdout and stderr may be full, closed or read by nobody: the exit code says what became of the result."""

import ctypes
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_results import invoke, manifest_of
from patience import PATIENCE

from posbias.cli.messages import keep_freed_memory
from posbias.core.simulation.simulate import SimulationOptions, simulate

UNWRITABLE = ("full", "closed")
BROKEN = (*UNWRITABLE, "unread")
Runs = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small log that works."""
    path = tmp_path_factory.mktemp("streams") / "log.parquet"
    simulate(SimulationOptions(n_sessions=300, n_queries=5, docs_per_query=5, n_positions=4, seed=4)).log.write_parquet(
        path
    )
    return path


def broken(how: str) -> int:
    """A file descriptor on which nothing can be written."""
    if how == "full":
        return os.open("/dev/full", os.O_WRONLY)
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.fixture
def runs(clean_environment: dict[str, str], tmp_path: Path) -> Runs:
    """Return a function that runs the command line with some of its streams broken."""

    def run(arguments: Sequence[str | Path], **streams: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr; `stdout` and `stderr` say how they are broken."""
        given = {name: broken(how) for name, how in streams.items() if how != "closed"}
        closing = " ".join(f"{['stdout', 'stderr'].index(name) + 1}>&-" for name in set(streams) - set(given))
        done = subprocess.run(
            ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-m", "posbias.cli", *map(str, arguments)],
            cwd=tmp_path,
            env=clean_environment,
            stdin=subprocess.DEVNULL,
            stdout=given.get("stdout", subprocess.PIPE),
            stderr=given.get("stderr", subprocess.PIPE),
            timeout=PATIENCE,
            check=False,
        )
        for handle in given.values():
            os.close(handle)
        said = (done.stderr or b"").decode()
        assert "Traceback" not in said
        assert "Exception ignored" not in said
        return done.returncode, (done.stdout or b"").decode(), said

    return run


@pytest.fixture(scope="module")
def statistics(log: Path) -> Path:
    """Return a directory of statistics."""
    invoke("collect", log, "-o", log.with_name("statistics"))
    return log.with_name("statistics")


@pytest.mark.parametrize("how", UNWRITABLE)
@pytest.mark.parametrize("arguments", [("--help",), ("--version",)], ids=" ".join)
@pytest.mark.slow
def test_help_that_cannot_be_printed_exits_with_2(runs: Runs, how: str, arguments: tuple[str]) -> None:
    code, _, said = runs(arguments, stdout=how)
    assert code == 2
    assert said.startswith("posbias: error: stdout cannot be written: ")
    assert runs(arguments, stdout=how, stderr=how)[0] == 2


@pytest.mark.parametrize("arguments", ["--help", "check LOG", "sql t --dialect duckdb", "collect LOG -o out --json"])
@pytest.mark.slow
def test_a_reader_that_stops_reading_early_is_no_error(runs: Runs, log: Path, arguments: str) -> None:
    words = [log if word == "LOG" else word for word in arguments.split()]
    _, _, usual = runs([word.replace("out", "other") if isinstance(word, str) else word for word in words])

    code, _, said = runs(words, stdout="unread")

    assert code == 0
    assert re.sub(r"\bout\b", "other", said) == usual


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("arguments", [("fit", "--nosuch"), ("fit", "nosuch.csv", "-o", "out"), ()], ids=" ".join)
@pytest.mark.slow
def test_an_error_that_cannot_be_told_exits_with_2(
    runs: Runs, tmp_path: Path, how: str, arguments: tuple[str, ...]
) -> None:
    assert runs(arguments, stderr=how)[0] == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("command", "how"), [*(("collect", how) for how in UNWRITABLE), ("fit", "full")])
@pytest.mark.slow
def test_a_result_that_stands_but_is_not_printed_exits_with_1_and_says_so(
    runs: Runs, log: Path, tmp_path: Path, command: str, how: str
) -> None:
    code, _, said = runs((command, log, "-o", "out", "--json", "--quiet"), stdout=how)
    silent, _, _ = runs((command, log, "-o", "silent", "--json"), stdout=how, stderr=how)

    assert (code, silent) == (1, 1)
    assert said.splitlines()[-1].startswith(
        "posbias: error: out is written, but its manifest could not be printed to stdout: "
    )
    for folder in ("out", "silent"):
        assert manifest_of(tmp_path / folder)["command"] == command


@pytest.mark.slow
def test_what_goes_to_stdout_is_json_in_utf_8_whatever_the_terminal(
    runs: Runs, log: Path, monkeypatch: pytest.MonkeyPatch, clean_environment: dict[str, str], tmp_path: Path
) -> None:
    monkeypatch.setitem(clean_environment, "PYTHONIOENCODING", "ascii")
    (tmp_path / "Größe.parquet").write_bytes(log.read_bytes())

    code, printed, _ = runs(("fit", "Größe.parquet", "-o", "out", "--json"))

    assert code == 0
    assert json.loads(printed) == manifest_of(tmp_path / "out")


SETTING = "_RJEM_MALLOC_CONF"


def test_what_the_environment_says_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "dirty_decay_ms:0")
    told = list[tuple[int, int]]()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=lambda *both: told.append(both)))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    keep_freed_memory()
    assert os.environ[SETTING] == "dirty_decay_ms:0"
    assert [parameter for parameter, _ in told] == [-1, -3, -8]


def test_other_allocators_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTING, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    keep_freed_memory()
    assert os.environ[SETTING].startswith("dirty_decay_ms")
    monkeypatch.delenv(SETTING)
