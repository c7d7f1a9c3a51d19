"""How a command is used: help, settings, what goes to stdout and to stderr, exit codes, the same bytes."""

import errno
import os
import pty
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import cast

import polars as pl
import pytest
from command_results import contents, manifest_of
from patience import ended
from typer.core import TyperGroup, TyperOption
from typer.main import get_command
from workshop import RunPosbias

from posbias.cli.main import app
from posbias.cli.options.config import COMMAND_SPECIFIC, NOT_SETTABLE
from posbias.core.simulation.simulate import SimulationOptions, simulate

GROUP = cast("TyperGroup", get_command(app))
COMMANDS = sorted(GROUP.commands)
OPTIONS = {
    name: [option for option in GROUP.commands[name].params if isinstance(option, TyperOption)] for name in COMMANDS
}
ESCAPE = "\x1b["


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log that gives no reason for a warning."""
    path = tmp_path_factory.mktemp("interface") / "log.parquet"
    options = SimulationOptions(n_sessions=4000, n_queries=60, docs_per_query=6, n_positions=4, query_exponent=0.3)
    simulate(options).log.write_parquet(path)
    return path


@pytest.fixture(scope="module")
def unlinked_log(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Path:
    """Return a log whose last position shows documents of its own, so that nothing says how it is examined."""
    path = tmp_path_factory.mktemp("unlinked") / "log.parquet"
    own = pl.when(pl.col("position") == 4).then(pl.col("doc") + 100).otherwise(pl.col("doc"))
    pl.read_parquet(log).with_columns(own.alias("doc")).write_parquet(path)
    return path


def options_of(folder: Path) -> dict[str, object]:
    """The options in a manifest."""
    return manifest_of(folder)["options"]


# --- help -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_every_option_in_full_in_80_columns(
    run_in_process: RunPosbias, command: str
) -> None:
    done = run_in_process(command, "--help-all", COLUMNS="80", code=0)
    assert [option.opts[0] for option in OPTIONS[command] if option.opts[0] not in done.stdout] == []
    assert f"Example: posbias {command} " in " ".join(done.stdout.split())
    assert done.stderr == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_first_what_a_first_user_needs_on_one_screen(run_in_process: RunPosbias, command: str) -> None:
    first = run_in_process(command, "-h", COLUMNS="80", code=0)
    assert first.stdout == run_in_process(command, "--help", COLUMNS="80").stdout
    assert f"Example: posbias {command} " in " ".join(first.stdout.split())
    assert len(first.stdout.splitlines()) < 45
    assert max(map(len, first.stdout.splitlines())) <= 80
    options = OPTIONS[command]
    shown = {option.opts[0] for option in options if re.search(rf"^ .*{option.opts[0]}\b", first.stdout, re.MULTILINE)}
    assert shown >= {option.opts[0] for option in options if option.required} | {"--help-all"}


def test_a_help_text_is_a_sentence_and_one_name_means_one_thing_in_every_command_and_variable() -> None:
    texts: dict[str, set[str | None]] = {}
    for name, option in ((command, option) for command in COMMANDS for option in OPTIONS[command]):
        assert (option.help or "")[-1:] == ".", (name, option.name)
        if (name, option.name) not in COMMAND_SPECIFIC:
            texts.setdefault(option.opts[0], set()).add(option.help)
            expected = "POSBIAS_" + option.opts[0].removeprefix("--").replace("-", "_").upper()
            assert option.name in NOT_SETTABLE or option.envvar == expected
    assert {name for name, helps in texts.items() if len(helps) > 1} == set()


def test_help_lists_every_command(run_in_process: RunPosbias) -> None:
    done = run_in_process("--help", code=0)
    assert [command for command in COMMANDS if command not in done.stdout] == []


def test_without_a_command_help_is_shown(run_posbias: RunPosbias) -> None:
    done = run_posbias()
    assert done.returncode == 2
    assert "Usage: " in done.stdout + done.stderr


def test_the_version_is_that_of_the_package(run_posbias: RunPosbias) -> None:
    done = run_posbias("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"posbias {version('posbias')}\n", "")


# --- settings -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "environment", "file", "expected"),
    [(True, True, True, 0.04), (False, True, True, 0.03), (False, False, True, 0.02), (False, False, False, 0.01)],
    ids=["flag", "environment", "posbias.toml", "default"],
)
def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    run_in_process: RunPosbias, log: Path, tmp_path: Path, *, flag: bool, environment: bool, file: bool, expected: float
) -> None:
    if file:
        (tmp_path / "posbias.toml").write_text("min-propensity = 0.02\n", encoding="utf-8")
    flags = ("--min-propensity", "0.04") if flag else ()
    variables = {"POSBIAS_MIN_PROPENSITY": "0.03"} if environment else {}
    run_in_process("run", log, "-o", "out", *flags, **variables, code=0)
    assert options_of(tmp_path / "out")["min-propensity"] == expected


def test_a_commands_own_section_beats_the_common_options(run_in_process: RunPosbias, log: Path, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text(
        'max_position = 4\nmin-propensity = 0.02\n[run]\nmin-propensity = 0.05\n[collect]\nmodel = "ubm"\n',
        encoding="utf-8",
    )
    run_in_process("run", log, "-o", "out", "--config", "other.toml", code=0)
    options = options_of(tmp_path / "out")
    assert (options["min-propensity"], options["max-position"]) == (0.05, 4)


# --- what is said, and where ----------------------------------------------------------------------------------


def test_quiet_keeps_warnings(run_in_process: RunPosbias, unlinked_log: Path) -> None:
    done = run_in_process("run", unlinked_log, "-o", "out", "--quiet")
    lines = done.stderr.splitlines()
    assert lines != []
    assert all(line.startswith(("! ", "✘ ")) for line in lines)


@pytest.mark.slow
def test_a_stderr_that_is_no_terminal_gets_neither_bars_nor_colours(
    run_posbias: RunPosbias, unlinked_log: Path
) -> None:
    for arguments in (("run", unlinked_log, "-o", "out"), ("run", "nowhere.csv", "-o", "other")):
        said = run_posbias(*arguments).stderr
        assert ESCAPE not in said
        assert "\r" not in said
        assert "━" not in said


def on_a_terminal(
    environment: dict[str, str], cwd: Path, *arguments: str | Path, **settings: str
) -> tuple[int, str, str]:
    """Run the command line with stderr on a pseudo-terminal; return exit code, stdout and what the terminal got."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "posbias.cli", *map(str, arguments)]
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=environment | {"TERM": "xterm-256color", "COLUMNS": "120"} | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = bytearray()
        while True:
            try:
                block = os.read(ours, 65536)
            except OSError as error:  # Linux says EIO where the other end is closed
                assert error.errno == errno.EIO  # noqa: PT017
                break
            if not block:
                break
            seen += block
        os.close(ours)
        assert process.stdout is not None
        said = process.stdout.read().decode()
    return process.returncode, said, seen.decode()


@pytest.mark.slow
def test_a_terminal_gets_bars_for_every_stage(clean_environment: dict[str, str], log: Path, tmp_path: Path) -> None:
    code, out, seen = on_a_terminal(clean_environment, tmp_path, "run", log, "-o", "out")
    assert (code, out) == (0, "")
    for stage in ("reading", "counting", "fitting", "writing", "weighting"):
        assert stage in seen
    assert "━" in seen
    assert ESCAPE in seen


@pytest.mark.slow
def test_messages_on_a_terminal_break_at_words_but_not_what_is_to_be_copied(
    clean_environment: dict[str, str], log: Path, tmp_path: Path
) -> None:
    for words in (("run", log, "-o", "out", "--max-position", "many"), ("run", log, "-o", "out", "--method", "no one")):
        _, _, seen = on_a_terminal(clean_environment, tmp_path, *words, COLUMNS="40")
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).splitlines()
        message = lines[next(number for number, line in enumerate(lines) if line.startswith("posbias: error: ")) :]
        assert len(message) > 1
        assert max(map(len, message)) <= 40
        unbroken = ended(
            [sys.executable, "-m", "posbias.cli", *map(str, words)],
            cwd=tmp_path,
            env=clean_environment | {"COLUMNS": "40"},
        )
        assert " ".join(message) == unbroken.stderr.splitlines()[-1]
    pl.read_parquet(log).rename({"doc": "thing"}).write_parquet(tmp_path / "other.parquet")
    _, _, seen = on_a_terminal(clean_environment, tmp_path, "run", "other.parquet", "-o", "out", COLUMNS="40")
    copied = [line for line in seen.splitlines() if "Try: " in line]
    assert all("other.parquet -o out" in line for line in copied)


@pytest.mark.slow
def test_an_error_on_a_terminal_is_one_line_and_leaves_no_bar(
    clean_environment: dict[str, str], tmp_path: Path
) -> None:
    code, out, seen = on_a_terminal(clean_environment, tmp_path, "run", "nowhere.csv", "-o", "out")
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)
    assert (code, out) == (2, "")
    assert plain.count("error") == 1
    assert "━" not in plain


# --- exit codes -----------------------------------------------------------------------------------------------


def test_a_fit_that_has_not_converged_is_written_with_exit_code_1(
    run_in_process: RunPosbias, log: Path, tmp_path: Path
) -> None:
    done = run_in_process("run", log, "-o", "out", "--method", "joint", "--max-iterations", "3", code=1)
    assert "The estimate is not finished" in done.stderr
    assert "--max-iterations" in done.stderr
    assert manifest_of(tmp_path / "out")["estimate"]["converged"] is False
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "attractiveness.parquet",
        "manifest.json",
        "propensities.parquet",
        "training",
    ]


@pytest.mark.slow
def test_strict_turns_an_unidentified_cell_into_exit_code_1(
    run_in_process: RunPosbias, log: Path, tmp_path: Path
) -> None:
    rare = pl.DataFrame(
        {"session": [10**6], "query": [0], "doc": [99], "position": [9], "click": [1]},
        schema=pl.read_parquet_schema(log),
    )
    pl.concat([pl.read_parquet(log), rare]).write_parquet(tmp_path / "rare.parquet")
    lenient = run_in_process("run", "rare.parquet", "-o", "lenient")
    strict = run_in_process("run", "rare.parquet", "-o", "strict", "--strict")
    assert (lenient.returncode, strict.returncode) == (0, 1)
    assert "1 of 5 positions is not known" in lenient.stderr
    files = ["propensities.parquet", "attractiveness.parquet"]
    assert [(tmp_path / "lenient" / name).read_bytes() for name in files] == [
        (tmp_path / "strict" / name).read_bytes() for name in files
    ]


# --- the same input gives the same bytes ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("run",),
        ("run", "--model", "ubm", "--layout", "session"),
        ("run", "--format", "csv", "--csv", "--method", "joint"),
        ("collect",),
        ("collect", "--model", "ubm"),
    ],
    ids=" ".join,
)
@pytest.mark.slow
def test_the_same_command_gives_the_same_bytes(
    run_posbias: RunPosbias, run_in_process: RunPosbias, log: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    command, *options = arguments
    made: list[object] = []
    for run in (run_in_process, run_posbias):  # another process hashes texts in another way
        done = run(command, log, "-o", "out", "--force", *options)
        assert done.returncode == int("joint" in options), done.stderr  # EM is off on this log
        made.append(contents(tmp_path / "out"))
    assert made[0] == made[1]


@pytest.mark.parametrize("options", [(), ("--model", "ubm"), ("--position-bins", "1,2,3")], ids=" ".join)
@pytest.mark.slow
def test_fit_and_weight_give_the_bytes_of_run(
    run_in_process: RunPosbias, log: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    doubtful = int("--position-bins" in options)  # positions 3 and 4 differ
    assert run_in_process("run", log, "-o", "run", *options).returncode == doubtful
    assert run_in_process("fit", log, "-o", "fit", *options).returncode == doubtful
    run_in_process("weight", log, "--propensities", "fit", "-o", "weight", code=0)
    whole = contents(tmp_path / "run")
    parts = contents(tmp_path / "fit") | contents(tmp_path / "weight")
    assert sorted(parts) == sorted(whole)
    for name in whole:
        if name != "manifest.json":
            assert parts[name] == whole[name], name
