"""A model, an estimator, a layout and a format are one new file each, and a line in a table."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

pytestmark = pytest.mark.slow

FILES = {
    "core/models/after_click.py": '''
"""A click above, wherever it was, changes what is examined."""

import narwhals as nw

from posbias.core.models import FactorisedModel
from posbias.core.schema import CLICK, POSITION, SESSION


class AfterClickModel(FactorisedModel):
    name = "after-click"
    reference = "a test"
    cell_columns = (POSITION, "after_click")
    needs_session = True

    def with_cells(self, impressions):
        above = nw.col(CLICK).cast(nw.Int32).shift(1).over(SESSION, order_by=POSITION).fill_null(0)
        above = impressions.with_columns(above.alias("after_click"))
        return above.with_columns(nw.col("after_click").cum_max().over(SESSION, order_by=POSITION))
''',
    "core/estimators/squared_ctr.py": '''
"""The click rate, squared."""

from dataclasses import replace

from posbias.core.estimators.methods import ClickRateEstimator


class SquaredClickRate(ClickRateEstimator):
    name = "squared-ctr"
    reference = "a test"

    def estimate(self, statistics, strata, options, on_iteration):
        found = super().estimate(statistics, strata, options, on_iteration)
        return replace(found, method=self.name, propensity=found.propensity**2)
''',
    "core/training/ratios.py": '''
"""One row per document: how much it was clicked for what it was shown."""

import numpy as np
import polars as pl

from posbias.core.training.layout import GROUP, LayoutOfCounts, add_up_signatures


class RatioLayout(LayoutOfCounts):
    name = "ratios"
    ranked = False
    columns_without_information = (GROUP,)

    def by_document(self, sums):
        return np.column_stack([sums.attracted, sums.impressions]), ratio_rows


def ratio_rows(pairs, by_signature):
    documents, sums = add_up_signatures(pairs, by_signature)
    return documents.with_columns(label=pl.Series(sums[:, 0] / sums[:, 1]), weight=pl.Series(sums[:, 1]))
''',
    "io/training/json_lines.py": '''
"""One JSON object a row."""

from posbias.io.training.format import TrainingFormat


class JsonLinesFormat(TrainingFormat):
    name = "jsonl"
    needs_features = False

    def write(self, training_set, part, folder):
        with (folder / f"part-{part.number:05d}.jsonl").open("wb") as file:
            for chunk in part.rows:
                chunk.drop(training_set.layout.columns_without_information).write_ndjson(file)

    def finish(self, training_set, folder):
        (folder / "load.py").write_text("print()", encoding="utf-8")
''',
}
LINES = """
MODELS["after-click"] = CLICK_MODELS["after-click"] = "posbias.core.models.after_click:AfterClickModel"
ESTIMATORS["squared-ctr"] = "posbias.core.estimators.squared_ctr:SquaredClickRate"
LAYOUTS["ratios"] = "posbias.core.training.ratios:RatioLayout"
FORMATS["jsonl"] = "posbias.io.training.json_lines:JsonLinesFormat"
"""
OF_FIT = ("--model", "after-click", "--method", "squared-ctr")
OF_FILES = ("--layout", "ratios", "--format", "jsonl")

COMMANDS: dict[str, tuple[str, ...]] = {
    "help": ("run", "--help-all"),
    "run": ("run", "LOG", *OF_FIT, *OF_FILES, "-o", "run", "--quiet"),
    "collect": ("collect", "LOG", "--model", "after-click", "-o", "store"),
    "fit": ("fit", "store", "--method", "squared-ctr", "-o", "fit"),
    "weight": ("weight", "store", "--propensities", "fit", "--layout", "ratios", "-o", "weighted"),
    "pages": ("run", "LOG", *OF_FIT, "--layout", "session", "-o", "pages"),
    "shape": ("run", "LOG", *OF_FIT, "--shape", "power", "-o", "none"),
    "grades": ("run", "LOG", *OF_FILES, "--layout-options", "grades=3", "-o", "none"),
    "carrying": ("run", "LOG", "--layout", "ratios", "--format", "ranklib", "-o", "none"),
    "layout": ("run", "LOG", "--layout", "ratio", "-o", "none"),
    "column": ("run", "LOG", "--model", "after-click", "--stratify", "after_click", "-o", "none"),
}

DRIVER = """
import json, sys
from typer.testing import CliRunner
from posbias.cli.main import app

done = {name: CliRunner().invoke(app, words) for name, words in json.load(sys.stdin).items()}
print(json.dumps({name: [result.exit_code, result.stdout, result.stderr] for name, result in done.items()}))
"""
"""Runs all commands in one process: starting takes longer than most of them."""


@dataclass(frozen=True)
class Done:
    """What the commands did.

    Attributes:
        folder: where they ran.
        said: exit code, stdout and stderr of each.
    """

    folder: Path
    said: dict[str, tuple[int, str, str]]


@pytest.fixture(scope="module")
def done(
    repository: Path, sample_logs: Path, clean_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Done:
    """Return what a copy of posbias does, to which one file of each kind was added."""
    folder = tmp_path_factory.mktemp("plugins")
    package = folder / "site" / "posbias"
    for part in ("core", "io", "cli"):
        shutil.copytree(repository / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(package / "cli" / "posbias", package, dirs_exist_ok=True)  # as it is installed
    for name, code in FILES.items():
        assert not (package / name).exists()
        (package / name).write_text(code.lstrip(), encoding="utf-8")
    with (package / "core/choices.py").open("a", encoding="utf-8") as tables:
        tables.write(LINES)
    log = str(sample_logs / "web_search.parquet")
    commands = {name: [log if word == "LOG" else word for word in words] for name, words in COMMANDS.items()}
    ran = subprocess.run(
        # -S: an editable install hooks imports, and would find the repository instead of the copy.
        [sys.executable, "-S", "-c", DRIVER],
        cwd=folder,
        env=clean_environment | {"PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path]), "COLUMNS": "400"},
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
    )
    return Done(folder, {name: (code, out, err) for name, (code, out, err) in json.loads(ran.stdout).items()})


def test_help_shows_what_was_added_behind_what_was_there(done: Done) -> None:
    _, said, _ = done.said["help"]

    said = " ".join(said.split())
    assert "With a propensity by cell: pbm, ubm, after-click. " in said
    assert "allpairs, randomized, ctr, squared-ctr, features, regression-em." in said
    assert "catboost, ranklib, qrels, opensearch, elasticsearch, quepid, jsonl." in said


@pytest.mark.parametrize("command", ["run", "collect", "fit", "weight", "pages"])
def test_commands_run_with_what_was_added(command: str, done: Done) -> None:
    code, _, said = done.said[command]

    assert code == 0, said


def test_the_main_job_does_what_the_added_files_say(done: Done) -> None:
    result = done.folder / "run"
    propensities = pl.read_parquet(result / "propensities.parquet")
    assert propensities.columns[:2] == ["position", "after_click"]
    assert set(propensities["after_click"]) == {0, 1}
    second, first = (propensities.row(by_predicate=_cell(position), named=True) for position in (2, 1))
    assert first["propensity"] == 1.0
    assert second["propensity"] == pytest.approx((second["ctr"] / first["ctr"]) ** 2)
    lines = [json.loads(line) for line in (result / "training/part-00000.jsonl").read_text().splitlines()]
    assert list(lines[0]) == ["query", "doc", "label", "weight"]
    content = json.loads((result / "manifest.json").read_text(encoding="utf-8"))
    assert (content["counted"]["model"], content["estimate"]["method"]) == ("after-click", "squared-ctr")


def _cell(position: int) -> pl.Expr:
    return (pl.col("position") == position) & (pl.col("after_click") == 0)


def test_formats_that_were_there_carry_a_layout_that_was_added(done: Done) -> None:
    parts = sorted((done.folder / "weighted" / "training" / "rows").glob("part-*.parquet"))

    assert pl.read_parquet(parts).columns == ["query", "doc", "label", "weight"]


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("shape", "--method squared-ctr does not support it. Methods that do: conditional, randomized."),
        ("grades", "it applies only to --layout judgments"),
        ("carrying", "in the format of another trainer: lightgbm, xgboost, catboost."),
        ("layout", "choose from pointwise, clicked-group, session, pairs, judgments, ratios."),
        ("column", "--stratify after_click: this name means something else in the results."),
    ],
)
def test_what_does_not_go_with_what_was_added_is_one_error(command: str, error: str, done: Done) -> None:
    code, _, said = done.said[command]

    assert code == 2
    assert error in " ".join(said.split())
    assert not (done.folder / "none").exists()
