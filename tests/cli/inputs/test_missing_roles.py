"""A log whose columns are not known by name: what is missing is said at once, with a command that works."""

import shlex
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl

Run = Callable[..., CompletedProcess[str]]

LOG = pl.DataFrame({"our search": ["a", "b"], "theItem": [1, 2], "gridPlace": [1, 2], "tapped": [0, 1]})


def test_the_command_to_try_works(run_in_process: Run, tmp_path: Path) -> None:
    LOG.write_csv(tmp_path / "log.csv")

    refused = run_in_process("collect", "-o", "out", "--", "log.csv")

    assert refused.returncode == 2
    assert "4 roles have no column" in refused.stderr
    line = refused.stderr.partition("Try: posbias ")[2].splitlines()[0]
    assert "--query 'our search' --doc theItem --position gridPlace --click tapped" in line
    done = run_in_process(*shlex.split(line))
    assert done.returncode == 0, done.stderr
    assert "guessed" not in done.stderr


def test_columns_that_are_guessed_are_said_even_in_quiet(run_in_process: Run, tmp_path: Path) -> None:
    names = dict(zip(LOG.columns, ("search_term", "objectID", "slot", "is-click"), strict=True))
    LOG.rename(names).write_csv(tmp_path / "log.csv")

    done = run_in_process("collect", "log.csv", "-o", "out", "--quiet")

    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "guessed" in line]
    named = "--query search_term --doc objectID --position slot"
    assert said == [f"warning: columns were guessed from their names: {named}. Name them, or others, to be sure."]


def test_a_header_in_one_piece_is_no_reason_to_guess(run_in_process: Run, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("query;doc;position;click\na;b;1;0\n")

    refused = run_in_process("collect", "log.csv", "-o", "out")

    assert refused.returncode == 2
    assert "The columns seem to be separated by ';'" in refused.stderr
    assert "Try: posbias collect --separator ';' log.csv" in refused.stderr
    assert "--query" not in refused.stderr.partition("Try:")[2]
