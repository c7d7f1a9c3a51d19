"""`posbias check --write-config`: what it recognises, as options that `posbias run` then reads."""

import json
import tomllib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

WRITE = ("check", "log.csv", "--write-config", "posbias.toml")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log that cannot be read without options."""
    options = SimulationOptions(
        n_sessions=2000, n_queries=60, n_positions=4, docs_per_query=6, query_exponent=0.3, days=2, seed=2
    )
    made = simulate(options).log.rename({"doc": "sku", "query": "our search", "click": "clicked"})
    return made.with_columns(pl.col("position") - 1, pl.col("session") // 2)


def options_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["options"]


@pytest.mark.slow
def test_run_with_the_file_does_what_the_command_of_check_does(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_csv(tmp_path / "log.csv")
    command = json.loads(run_in_process("check", "log.csv", "--json").stdout)["command"]

    by_flags = run_in_process(*command, "-o", "by-flags", "--no-compare")
    made = run_in_process(*WRITE)
    by_file = run_in_process("run", "log.csv", "-o", "by-file", "--no-compare")

    assert made.returncode == 0
    assert made.stderr == "written: posbias.toml. Read it, then: posbias run LOGS -o DIR\n"
    assert by_flags.returncode == by_file.returncode
    assert options_of(tmp_path / "by-file") == options_of(tmp_path / "by-flags")
    table = "propensities.parquet"
    assert (tmp_path / "by-file" / table).read_bytes() == (tmp_path / "by-flags" / table).read_bytes()


def test_every_option_has_its_reason_above_it(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_csv(tmp_path / "log.csv")

    assert run_in_process(*WRITE, "--max-position", "3").returncode == 0

    lines = (tmp_path / "posbias.toml").read_text(encoding="utf-8").splitlines()
    assert tomllib.loads("\n".join(lines)) == {
        "query": "our search",
        "doc": "sku",
        "position-base": 0,
        "session": ["session", "timestamp"],
        "max-position": 3,
    }
    settings = [at for at, line in enumerate(lines) if line and not line.startswith("#")]
    assert all(lines[at - 1].startswith("#") for at in settings)
    assert "# the query is taken to be column 'our search' (a guess: see whether it is right)" in lines


def test_an_existing_file_is_replaced_only_if_that_is_asked_for(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_csv(tmp_path / "log.csv")
    file = tmp_path / "posbias.toml"
    file.write_text("max-position = 3\n", encoding="utf-8")

    refused = run_in_process(*WRITE)
    kept = file.read_text(encoding="utf-8")
    replaced = run_in_process(*WRITE, "--force")

    assert refused.returncode == 2
    assert "posbias.toml: already exists. Use --force to replace it." in refused.stderr
    assert kept == "max-position = 3\n"
    assert replaced.returncode == 0, replaced.stderr
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    assert (content["max-position"], content["doc"]) == (3, "sku")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.csv", "posbias.toml"]


@pytest.mark.parametrize("kind", ["link", "directory"])
def test_what_is_no_plain_file_is_not_replaced(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, kind: str
) -> None:
    here, other = tmp_path / "here", tmp_path / "other.toml"
    here.mkdir()
    log.write_csv(here / "log.csv")
    other.write_text("", encoding="utf-8")
    target = here / "posbias.toml"
    target.symlink_to(other) if kind == "link" else target.mkdir()

    done = run_in_process(*WRITE, "--force", "--config", other, cwd=here)

    assert done.returncode == 2
    assert "posbias.toml: is not replaced" in done.stderr
    assert other.read_text(encoding="utf-8") == ""
    assert sorted(path.name for path in here.iterdir()) == ["log.csv", "posbias.toml"]


def test_a_disk_that_cannot_be_written_is_an_error(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_csv(tmp_path / "log.csv")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("posbias.io.results.outputs_on_disk.os.fsync", full)
    done = run_in_process(*WRITE)

    assert done.returncode == 2
    said = "posbias.toml: cannot be written: No space left on device. Nothing was written."
    assert done.stderr == f"posbias: error: {said}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_names_that_would_break_the_file_are_written_as_they_are(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    name = 'a "strange" \\ näme 🙂'
    log.rename({"sku": name}).write_parquet(tmp_path / "log.parquet")

    assert run_in_process("check", "log.parquet", *WRITE[2:], "--doc", name).returncode == 0

    assert tomllib.loads((tmp_path / "posbias.toml").read_text(encoding="utf-8"))["doc"] == name
    assert run_in_process("collect", "log.parquet", "-o", "out").returncode == 0


def test_a_log_that_carries_no_estimate_is_said_to_carry_none(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.filter(pl.col("clicked") == 1).write_csv(tmp_path / "log.csv")

    done = run_in_process(*WRITE)

    assert done.returncode == 1
    assert "This looks like a log of clicks only" in " ".join(done.stdout.split())
    assert (tmp_path / "posbias.toml").is_file()
