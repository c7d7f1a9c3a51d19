"""LightGBM learns from the files what it learns from the arrays."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from posbias.core.errors import SchemaError

lgb: Any = import_module("lightgbm")  # with types that know no keywords
ROUNDS = 100
OF_FILES = {"header", "label_column", "group_column", "weight_column"}
Booster = Any
Sample = Any  # of conftest.py: tests are no package to import from
Array = np.ndarray[Any, Any]


def trained_on_arrays(sample: Sample, parameters: dict[str, Any], **of_rows: Array) -> Booster:
    grouped = {"group": sample.group_sizes} if sample.of.layout.name != "pointwise" else {}
    label = sample.rows["grade" if sample.of.layout.name == "judgments" else sample.of.layout.label].to_numpy()
    data = lgb.Dataset(sample.numbers, label, categorical_feature=[1], **grouped, **of_rows)
    return lgb.train({k: v for k, v in parameters.items() if k not in OF_FILES}, data, ROUNDS)


@pytest.mark.parametrize("layout", ["pointwise", "clicked-group", "session"])
def test_files_teach_what_arrays_teach_and_weights_count(
    layout: str, sample: Callable[..., Any], load: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    rows = sample(layout)
    loaded = load(rows.write("lightgbm", tmp_path))
    weighted = trained_on_arrays(rows, loaded["PARAMETERS"], weight=rows.rows["weight"].to_numpy())
    unweighted = trained_on_arrays(rows, loaded["PARAMETERS"])
    predicted = loaded["model"].predict(rows.numbers)
    np.testing.assert_array_equal(predicted, weighted.predict(rows.numbers))
    assert np.abs(predicted - unweighted.predict(rows.numbers)).max() > 0.01


def test_judgments_are_ranked_by_grade(
    sample: Callable[..., Any], load: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    rows = sample("judgments")
    loaded = load(rows.write("lightgbm", tmp_path))
    predicted = loaded["model"].predict(rows.numbers)
    np.testing.assert_array_equal(predicted, trained_on_arrays(rows, loaded["PARAMETERS"]).predict(rows.numbers))


def test_positions_lie_there_under_a_name_by_which_lightgbm_does_not_correct_twice(
    sample: Callable[..., Any], load: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    rows = sample("session")
    loaded = load(rows.write("lightgbm", tmp_path))
    positions = (tmp_path / "positions.txt").read_text().split()
    assert positions == [str(position) for position in rows.rows["position"]]
    (tmp_path / "positions.txt").rename(tmp_path / "train.tsv.position")
    corrected_twice = load(tmp_path)
    predicted, twice = (each["model"].predict(rows.numbers) for each in (loaded, corrected_twice))
    assert np.abs(predicted - twice).max() > 0.01


def test_a_group_that_lightgbm_refuses_is_an_error_that_names_it(sample: Callable[..., Any], tmp_path: Path) -> None:
    rows = sample("session")
    large = pl.concat([rows.rows.head(8), *[rows.rows.slice(8, 8)] * 1251, rows.rows.slice(16, 8)])
    with pytest.raises(SchemaError, match=r"'red\\tshoes #0\\n' has a group of 10,008 rows.*--group session"):
        type(rows)(rows.of, large).write("lightgbm", tmp_path)


def test_validation_rows_are_scored_and_an_empty_validation_set_is_left_out(
    sample: Callable[..., Any],
    load: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = sample("pointwise")
    folder = rows.write("lightgbm", tmp_path / "training")
    sample("pointwise", seed=2).write("lightgbm", tmp_path / "validation")
    load(folder)
    assert "; validation binary_logloss 0." in capsys.readouterr().out
    rows.empty().write("lightgbm", tmp_path / "validation")
    load(folder)
    assert "validation" not in capsys.readouterr().out.splitlines()[0]
