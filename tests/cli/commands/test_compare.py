"""`posbias compare`: fits, statistics and days; what they come to, exit codes of conditions, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
from command_results import invoke
from workshop import RunPosbias as Run

WORLD = "--sessions 2000 --queries 40 --docs-per-query 8 --positions 4 --days 4 --query-exponent 0.3 --seed 5"
COMMANDS = (
    f"simulate {WORLD} -o sim",
    f"simulate {WORLD} --theta 1,.5,.15,.25 -o other",
    "simulate --sessions 1000 --queries 20 --positions 4 --model ubm -o browsed",
    "fit sim/log.parquet --no-compare -o fit",
    "fit sim/log.parquet --reference 2 --no-compare -o second",
    "fit sim/log.parquet --max-position 3 --no-compare -o short",
    "fit other/log.parquet --no-compare -o changed",
    "fit browsed/log.parquet --model ubm --no-compare -o ubm",
    "fit browsed/log.parquet --no-compare -o rejected",
    "collect sim/log.parquet --timestamp timestamp --period day -o counts",
    "collect other/log.parquet --timestamp timestamp --period day -o changed-counts",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with fits and statistics of two worlds; position 3 is examined far less in the second one."""
    folder = tmp_path_factory.mktemp("compared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for words in COMMANDS:
            invoke(*words.split(), code=(0, 1))
    shutil.copytree(folder / "fit", folder / "copy")
    shutil.copytree(folder / "ubm", folder / "ubm-copy")
    shutil.copytree(folder / "counts", folder / "counts-copy")
    return folder


@pytest.mark.parametrize(("one", "other"), [("fit", "copy"), ("counts", "counts-copy"), ("ubm", "ubm-copy")])
def test_a_result_does_not_differ_from_its_copy(run_in_process: Run, results: Path, one: str, other: str) -> None:
    done = run_in_process("compare", one, other, "--fail-if", "not-converged", cwd=results, code=0)

    assert "propensities differ" not in done.stdout


def test_other_references_are_compared_relative_to_the_same(run_in_process: Run, results: Path) -> None:
    done = run_in_process("compare", "fit", "second", "--json", cwd=results)
    said = json.loads(done.stdout)

    assert [row["ratio"] for row in said["comparison"]["differences"]] == pytest.approx([1.0] * 4, rel=1e-6)
    assert "other-references" in {reason["code"] for reason in said["reasons"]}


def test_a_cell_of_one_side_alone_is_named(run_in_process: Run, results: Path) -> None:
    done = run_in_process("compare", "fit", "short", "--fail-if", "unidentified", cwd=results, code=3)

    assert "position 4: not shown in b" in done.stdout
    assert "A condition of --fail-if is met (unidentified): 1 of 8 propensities are not known." in done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("fit changed --max-change 0.2", 3),
        ("fit changed --max-change 20", 0),
        ("fit copy --max-change 0.0001", 0),
        ("fit changed --fail-if change", 3),
        ("fit rejected --fail-if rejected", 3),  # the clicks of its log depend on those above
        ("fit changed --fail-if not-converged --fail-if unidentified", 0),
        ("fit changed --fail-if unidentified --fail-if change", 3),
        ("counts changed-counts --fail-if change --max-change 0.2", 3),
    ],
)
def test_conditions_end_with_exit_code_3(run_in_process: Run, results: Path, words: str, code: int) -> None:
    done = run_in_process("compare", *words.split(), "--quiet", cwd=results)

    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n! ") == (words.count("--") if words.startswith("counts") else min(code, 1))
