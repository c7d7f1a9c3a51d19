"""The demonstration: every command is shown with its output and what it says, in a directory of its own."""

import re
from pathlib import Path
from resource import RLIM_INFINITY

import pytest
from command_results import Run

from posbias.cli.work import simulation
from posbias.io.reports import report


@pytest.mark.slow
def test_every_command_is_shown_with_its_output_and_what_it_says(run_posbias: Run, tmp_path: Path) -> None:
    done = run_posbias("demo", "-o", tmp_path / "shown")
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^\$ posbias (.+)\n((?:.*\n)*?)--> (.+)$", done.stdout, re.MULTILINE)
    assert [(words, sentence) for words, _, sentence in found] == simulation.steps()
    assert "propensity" in found[1][1]
    assert {"manifest.json", "result", "ranker", "predicted"} <= {path.name for path in (tmp_path / "shown").iterdir()}


@pytest.mark.slow
def test_a_directory_of_somebody_else_is_refused(run_posbias: Run, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    for force in ([], ["--force"]):
        done = run_posbias("demo", "-o", tmp_path, *force)
        assert (done.returncode, done.stdout) == (2, "")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(("is_there", "addresses"), [(True, RLIM_INFINITY), (False, RLIM_INFINITY), (True, 8 << 30)])
def test_nothing_but_posbias_is_needed(monkeypatch: pytest.MonkeyPatch, addresses: int, *, is_there: bool) -> None:
    def find(_: str) -> bool | None:
        return is_there or None

    def limits(_: int) -> tuple[int, int]:
        return addresses, RLIM_INFINITY

    monkeypatch.setattr(report, "find_spec", find)
    monkeypatch.setattr(report, "getrlimit", limits)
    commands = [words.partition(" ")[0] for words, _ in simulation.steps()]
    has_charts = is_there and addresses == RLIM_INFINITY
    assert commands == ["check", "run", "train", "predict", "report" if has_charts else "show"]
