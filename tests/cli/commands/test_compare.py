"""`posbias compare`: fits, statistics and days; what they come to, exit codes of conditions, and what is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest
from typer.testing import CliRunner

from posbias.cli.main import app

Run = Callable[..., CompletedProcess[str]]

WORLD = "--sessions 4000 --queries 40 --docs-per-query 8 --positions 4 --days 4 --query-exponent 0.3 --seed 5"
COMMANDS = (
    f"simulate {WORLD} -o sim",
    f"simulate {WORLD} --theta 1,.5,.15,.25 -o other",
    "simulate --sessions 800 --queries 20 --model ubm -o browsed",
    "fit sim/log.parquet -o fit",
    "fit sim/log.parquet --reference 2 -o second",
    "fit sim/log.parquet --max-position 3 -o short",
    "fit other/log.parquet -o changed",
    "fit other/log.parquet --method joint -o joint",
    "fit sim/log.parquet --position-bins 1,2,4 -o bins",
    "fit browsed/log.parquet --model ubm -o ubm",
    "collect sim/log.parquet --timestamp timestamp --period day -o counts",
    "collect other/log.parquet --timestamp timestamp --period day -o changed-counts",
    "collect browsed/log.parquet --model ubm -o ubm-counts",
    "collect sim/log.parquet -o dayless",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with fits and statistics of two worlds; position 3 is examined far less in the second one."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in COMMANDS:
            done = CliRunner().invoke(app, words.split(), catch_exceptions=False)
            assert done.exit_code in {0, 1}, done.output
    shutil.copytree(folder / "fit", folder / "copy")
    shutil.copytree(folder / "ubm", folder / "ubm-copy")
    shutil.copytree(folder / "counts", folder / "counts-copy")
    return folder


@pytest.mark.parametrize(("one", "other"), [("fit", "changed"), ("counts", "changed-counts")])
@pytest.mark.slow
def test_a_change_is_found_and_nothing_is_written(run_in_process: Run, results: Path, one: str, other: str) -> None:
    before = sorted(results.rglob("*"))
    done = run_in_process("compare", one, other, cwd=results)

    assert (done.returncode, done.stderr) == (0, "")
    assert "propensities differ between a and b" in done.stdout
    assert "most surely at position 3" in done.stdout.replace("\n", " ")
    assert sorted(results.rglob("*")) == before


@pytest.mark.parametrize(("one", "other"), [("fit", "copy"), ("counts", "counts-copy"), ("ubm", "ubm-copy")])
def test_a_result_does_not_differ_from_its_copy(run_in_process: Run, results: Path, one: str, other: str) -> None:
    done = run_in_process("compare", one, other, "--fail-if", "not-converged", cwd=results)

    assert done.returncode == 0, done.stderr
    assert "propensities differ" not in done.stdout


def test_the_table_and_the_manifest_say_what_was_printed(run_in_process: Run, results: Path, tmp_path: Path) -> None:
    done = run_in_process("compare", "fit", "changed", "-o", tmp_path / "out", "--csv", "--json", cwd=results)
    assert done.returncode == 0, done.stderr
    table = pl.read_parquet(tmp_path / "out" / "comparison.parquet")
    manifest = json.loads(done.stdout)
    a, b = (pl.read_parquet(results / name / "propensities.parquet") for name in ("fit", "changed"))

    assert table["propensity_a"].to_list() == pytest.approx(a["propensity"].to_list())
    assert table["propensity_b"].to_list() == pytest.approx(b["propensity"].to_list())
    errors = ((a["std_error"] ** 2 + b["std_error"] ** 2) ** 0.5).to_list()
    assert table["std_error"].to_list() == pytest.approx(errors)
    assert [row["change"] for row in manifest["comparison"]["differences"]] == table["change"].to_list()
    assert (tmp_path / "out" / "comparison.csv").is_file()
    shown = run_in_process("show", tmp_path / "out")
    assert shown.stdout.split() == done.stderr.replace(f"written: {tmp_path / 'out'}", "").split()


def test_two_statistics_have_the_propensities_of_their_fits(run_in_process: Run, results: Path) -> None:
    done = run_in_process("compare", "counts", "changed-counts", "--json", cwd=results)
    rows = json.loads(done.stdout)["comparison"]["differences"]
    fits = [pl.read_parquet(results / name / "propensities.parquet")["propensity"] for name in ("fit", "changed")]

    assert [row["propensity_a"] for row in rows] == pytest.approx(fits[0].to_list(), rel=1e-6)
    assert [row["propensity_b"] for row in rows] == pytest.approx(fits[1].to_list(), rel=1e-6)


def test_other_references_are_compared_relative_to_the_same(run_in_process: Run, results: Path) -> None:
    done = run_in_process("compare", "fit", "second", "--json", cwd=results)
    said = json.loads(done.stdout)

    assert [row["ratio"] for row in said["comparison"]["differences"]] == pytest.approx([1.0] * 4, rel=1e-6)
    assert any("relative to different cells" in sentence for sentence in said["verdicts"])


def test_a_cell_of_one_side_alone_is_named(run_in_process: Run, results: Path) -> None:
    done = run_in_process("compare", "fit", "short", "--fail-if", "unidentified", cwd=results)

    assert done.returncode == 3
    assert "position 4: not shown in b" in done.stdout
    assert "warning: --fail-if unidentified: 1 of 8 propensities are not known." in done.stderr


def test_days_have_a_row_per_day_and_cell(run_in_process: Run, results: Path, tmp_path: Path) -> None:
    done = run_in_process("compare", "counts", "--by", "day", "-o", tmp_path / "days", cwd=results)
    assert done.returncode == 0, done.stderr
    table = pl.read_parquet(tmp_path / "days" / "comparison.parquet")

    assert table.height == 4 * 4
    assert table["day"].n_unique() == 4
    assert table.columns[:3] == ["day", "position", "propensity"]
    assert "no propensity differs significantly between days" in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("fit changed --max-change 0.2", 3),
        ("fit changed --max-change 20", 0),
        ("fit copy --max-change 0.0001", 0),
        ("fit changed --fail-if change", 3),
        ("fit changed --fail-if rejected", 3),  # by chance, p = 0.03, a test finds something in this log
        ("fit changed --fail-if not-converged --fail-if unidentified", 0),
        ("fit changed --fail-if unidentified --fail-if change", 3),
        ("counts changed-counts --fail-if change --max-change 0.2", 3),
    ],
)
def test_conditions_end_with_exit_code_3(run_in_process: Run, results: Path, words: str, code: int) -> None:
    done = run_in_process("compare", *words.split(), "--quiet", cwd=results)

    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("warning: --") == (words.count("--") if words.startswith("counts") else min(code, 1))


def test_a_result_with_a_condition_that_is_met_is_written(run_in_process: Run, results: Path, tmp_path: Path) -> None:
    done = run_in_process("compare", "fit", "changed", "--fail-if", "change", "-o", tmp_path / "out", cwd=results)

    assert done.returncode == 3
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["comparison"]["conditions_met"] == ["change"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fit", "1 given: name two results"),
        ("fit changed copy", "3 given"),
        ("fit fit", "is named twice"),
        ("fit ./fit", "is named twice"),
        ("fit counts", "name two fits, or two statistics"),
        ("fit ubm", "different cells: model pbm and ubm"),
        ("fit bins", "different cells: position bins"),
        ("fit sim", "holds no propensities"),
        ("fit nowhere", "nowhere"),
        ("counts ubm-counts", "do not count the same: model pbm and ubm"),
        ("fit --by day", "holds no statistics"),
        ("dayless --by day", "does not know days"),
        ("fit joint --max-change 0.1", "need standard errors"),
        ("fit changed --max-change 0", "give a share above 0"),
        ("fit changed --max-change nan", "give a share above 0"),
        ("fit changed --fail-if doubt", "must be one of change, rejected"),
        ("fit changed --csv", "nothing is written without --output"),
    ],
)
def test_what_cannot_be_compared_is_refused(run_in_process: Run, results: Path, words: str, expected: str) -> None:
    done = run_in_process("compare", *words.split(), cwd=results)

    assert (done.returncode, done.stdout) == (2, "")
    assert expected in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_side_without_errors_is_shown_without_a_test(run_in_process: Run, results: Path) -> None:
    done = run_in_process("compare", "fit", "joint", cwd=results)

    assert done.returncode == 0, done.stderr
    assert "nothing can be said about changes" in done.stdout
    assert "they may differ by that alone" in done.stdout.replace("\n", " ")
