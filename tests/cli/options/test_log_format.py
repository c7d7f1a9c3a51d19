"""Messages as lines of JSON, and errors as objects, for programs that read them."""

import json
import warnings
from datetime import UTC, datetime
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
from command_results import manifest_of
from workshop import RunPosbias as Run

from posbias.cli import messages
from posbias.io.jobs import fit


@pytest.fixture
def log(log: Path) -> Path:
    """Return a log whose last position shows documents of its own, which is warned of."""
    own = pl.when(pl.col("position") == 4).then(pl.col("doc") + 100).otherwise(pl.col("doc"))
    pl.read_parquet(log).with_columns(own.alias("doc")).write_parquet(log)
    return log


def lines(done: CompletedProcess[str]) -> list[dict[str, Any]]:
    """What was said on stderr, each line read as JSON."""
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.slow
def test_every_message_of_a_run_is_a_line_of_json(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    as_text = run_in_process("run", log, "-o", "text")
    done = run_in_process("run", log, "-o", "out", "--log-format", "json")

    assert (done.returncode, done.stdout) == (as_text.returncode, "")
    said = lines(done)
    assert all(set(line) == {"time", "level", "message"} for line in said)
    assert all(abs(datetime.fromisoformat(line["time"]) - datetime.now(UTC)).total_seconds() < 600 for line in said)
    manifest = manifest_of(tmp_path / "out")
    assert said[0]["message"] == f"Do not use: {manifest['conclusion']}"
    assert sorted(line["message"] for line in said if line["level"] == "warning") == sorted(manifest["warnings"]) != []
    assert said[-1]["message"] == "written: out"


@pytest.mark.parametrize(
    "words", ["fit nowhere.parquet -o out", "fit --bogus", "fti", "fit", "fit log.parquet -o out --max-position many"]
)
def test_an_error_is_one_line_however_early_it_is_found(run_in_process: Run, log: Path, words: str) -> None:
    plain = run_in_process(*words.split())
    done = run_in_process(*words.split(), "--log-format", "json") if words != "fti" else None
    if done is None:
        assert "No such command 'fti'" in plain.stderr
        return

    (said,) = lines(done)
    assert (done.returncode, said["level"]) == (2, "error")
    assert f"posbias: error: {said['message']}\n" in plain.stderr
    assert log.exists()


@pytest.mark.parametrize("words", ["fit nowhere.parquet -o out", "fit --bogus", "fit", "check nowhere.parquet"])
def test_with_json_an_error_is_an_object_on_stdout(run_in_process: Run, words: str) -> None:
    done = run_in_process(*words.split(), "--json")

    (error,) = json.loads(done.stdout).values()
    assert list(json.loads(done.stdout)) == ["error"]
    assert set(error) == {"message", "kind", "exit_code"}
    assert error["exit_code"] == done.returncode == 2
    assert f"posbias: error: {error['message']}\n" in done.stderr
    assert run_in_process(*words.split()).stdout == ""


def test_names_are_kept_to_the_letter_and_do_not_act_on_a_terminal(run_in_process: Run) -> None:
    name = "a\x1b[31m\u202e\nb"
    done = run_in_process("fit", name, "-o", "out", "--json", "--log-format", "json")

    assert done.stderr.isprintable() or done.stderr.rstrip("\n").isprintable()
    assert lines(done)[0]["message"].startswith(name)
    assert json.loads(done.stdout)["error"]["message"].startswith(name)


def test_a_fault_of_ours_and_warnings_of_libraries_are_lines_too(
    run_in_process: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
        messages.escape_warnings()
        formatted = warnings.formatwarning(UserWarning("look out"), UserWarning, "file.py", 1)
        assert "look out" in json.loads(formatted)["message"]
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(fit, "count", fail)
    done = run_in_process("fit", log, "-o", "out", "--log-format", "json", "--json")

    assert [line["level"] for line in lines(done)] == ["error", "error"]
    assert "unforeseen" in lines(done)[0]["message"]
    assert "bug in posbias" in json.loads(done.stdout)["error"]["message"]
