"""What a command would do is said without doing it: --print-config and --dry-run."""

import json
import tomllib
from pathlib import Path
from typing import cast

import pytest
from typer.core import TyperGroup, TyperOption
from typer.main import get_command
from workshop import RunPosbias as Run

from posbias.cli.main import app
from posbias.cli.options.config import CONFIG, NOT_SETTABLE
from posbias.core.simulation.simulate import SimulationOptions, simulate

COMMANDS = cast("TyperGroup", get_command(app)).commands


def origins(printed: str) -> dict[str, str]:
    """Where each option's value comes from."""
    lines = [line.removeprefix("# ") for line in printed.splitlines()[1:]]
    return {line.split()[0]: line.rpartition("  # ")[2] for line in lines}


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a directory, and every directory."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


# --- --print-config -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_printed_without_anything_that_the_command_requires(
    run_in_process: Run, tmp_path: Path, command: str
) -> None:
    done = run_in_process(command, "--print-config")

    assert (done.returncode, done.stderr) == (0, "")
    options = [option for option in COMMANDS[command].params if isinstance(option, TyperOption)]
    names = {flag.removeprefix("--") for option in options for flag in option.opts if option.name not in NOT_SETTABLE}
    assert set(origins(done.stdout)) == {name for name in names if not name.startswith("-")}
    assert list(tmp_path.iterdir()) == []


def test_each_value_is_said_to_come_from_where_it_comes_from(run_in_process: Run, tmp_path: Path) -> None:
    (tmp_path / "posbias.toml").write_text('memory = "3GiB"\nperiod = "day"\nseed = 4\n', encoding="utf-8")

    done = run_in_process("fit", "--seed", "5", "--print-config", POSBIAS_PERIOD="week", POSBIAS_SESSION="a b")

    found, values = origins(done.stdout), tomllib.loads(done.stdout)["fit"]
    assert (found["memory"], values["memory"]) == ("file: posbias.toml", "3GiB")
    assert (found["period"], values["period"]) == ("environment: POSBIAS_PERIOD", "week")
    assert (found["seed"], values["seed"]) == ("flag", 5)
    assert (found["session"], values["session"]) == ("environment: POSBIAS_SESSION", ["a", "b"])
    assert (found["check-pages"], values["check-pages"]) == ("default", "sample")
    assert (found["position"], "position" in values) == ("not set", False)


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name not in {"show", "demo"}]
)  # which take no --config
def test_what_is_printed_sets_the_same_from_a_file(run_in_process: Run, tmp_path: Path, command: str) -> None:
    odd = ("--config", "odd\t'\"name.toml")
    (tmp_path / odd[1]).write_text("quiet = true\n", encoding="utf-8")
    first = run_in_process(command, "--print-config", *odd)
    (tmp_path / "posbias.toml").write_text(first.stdout, encoding="utf-8")

    second = run_in_process(command, "--print-config", code=0)

    ours, theirs = tomllib.loads(first.stdout), tomllib.loads(second.stdout)
    assert ours == theirs
    assert ours[command]["quiet"] is True
    assert {origin for name, origin in origins(second.stdout).items() if name != CONFIG} <= {
        "file: posbias.toml",
        "not set",
    }


def test_neither_secrets_nor_control_characters_are_printed(run_in_process: Run) -> None:
    done = run_in_process("fit", "--print-config", "-o", "s3://key:secret@bucket/x", "--query", "a\x1b[31m\nb", code=0)

    assert "secret" not in done.stdout
    assert "\x1b" not in done.stdout
    assert tomllib.loads(done.stdout)["fit"]["query"] == "a\x1b[31m\nb"


@pytest.mark.parametrize("words", ["--model pbm --model ubm", "--bogus", "--max-position many"])
def test_what_is_wrong_is_said_instead(run_in_process: Run, words: str) -> None:
    done = run_in_process("fit", "--print-config", *words.split())

    assert (done.returncode, done.stdout) == (2, "")


# --- --dry-run ------------------------------------------------------------------------------------------------

DRY = {
    "run": "run log.parquet -o out",
    "a click model": "run log.parquet -o out --model dbn",
    "fit": "fit log.parquet -o out",
    "fit to statistics": "fit store -o out",
    "collect": "collect log.parquet -o out",
    "merge": "collect store -o out",
    "a day": "collect other.parquet --date 2026-01-06 --into store",
    "a new store": "collect log.parquet --date 2026-01-06 --into out",
    "weight": "weight log.parquet --propensities fitted -o out",
    "train": "train log.parquet --propensities fitted --features numbers.csv -o out",
    "evaluate": "evaluate log.parquet --models pbm,dbn -o out",
    "rankings": "evaluate log.parquet --propensities fitted --scores scores.csv -o out",
}


@pytest.fixture
def bench(run_in_process: Run, log: Path, tmp_path: Path) -> Run:
    """Return how to run a command beside a store, a fit and a ranking."""
    world = SimulationOptions(n_sessions=300, n_queries=20, docs_per_query=5, n_positions=4, seed=9)
    frame = simulate(world).log
    frame.write_parquet(tmp_path / "other.parquet")
    frame.select("query", "doc", score="position").unique(["query", "doc"]).write_csv(tmp_path / "scores.csv")
    frame.select("query", "doc", x="doc").unique(["query", "doc"]).write_csv(tmp_path / "numbers.csv")
    for words in ("collect log.parquet --date 2026-01-05 --into store", "fit log.parquet -o fitted"):
        assert run_in_process(*words.split(), "--quiet").returncode in {0, 1}, log
    return run_in_process


@pytest.mark.parametrize("words", DRY.values(), ids=DRY)
@pytest.mark.slow
def test_a_dry_run_says_what_the_run_then_does_and_leaves_everything_as_it_was(
    bench: Run, tmp_path: Path, words: str
) -> None:
    before = contents(tmp_path)
    dry = bench(*words.split(), "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    assert contents(tmp_path) == before

    said = json.loads(dry.stdout)
    target = tmp_path / said["writes"]["target"]
    assert said["command"] == words.split(maxsplit=1)[0]
    assert said["writes"]["replaces"] is target.exists()
    assert said["reads"]["inputs"] == [words.split()[1]]
    assert bench(*words.split(), "--quiet").returncode in {0, 1}
    assert (target / "manifest.json").exists()


def test_a_dry_run_names_columns_target_and_guesses(run_in_process: Run, log: Path) -> None:
    done = run_in_process("run", log, "-o", "out", "--dry-run")

    assert (done.returncode, done.stderr) == (0, "")
    assert "log: 1 file of parquet, one row per impression" in done.stdout
    assert "position position (" in done.stdout
    assert "would write: out, with propensities, attractiveness, training files, manifest" in done.stdout
    assert run_in_process("run", log, "-o", "out", "--dry-run", "--quiet").stdout == ""


@pytest.mark.parametrize(
    "words",
    [
        "run nowhere.parquet -o out",
        "run log.parquet -o fitted",
        "run log.parquet -o log.parquet --force",
        "run log.parquet -o . --force",
        "fit log.parquet -o out --context nosuch",
        "fit log.parquet -o out --method randomized",
        "run log.parquet -o out --features nowhere.csv",
        "collect other.parquet --date 2026-01-05 --into store",
        "collect log.parquet --date 2026-01-06 --into store",
        "weight log.parquet --propensities nowhere -o out",
    ],
)
@pytest.mark.slow_after(3)
def test_a_dry_run_ends_with_the_error_of_the_run(bench: Run, tmp_path: Path, words: str) -> None:
    before = contents(tmp_path)
    dry, real = bench(*words.split(), "--dry-run"), bench(*words.split())

    assert (dry.returncode, dry.stdout) == (2, "")
    assert dry.stderr == real.stderr
    assert contents(tmp_path) == before
