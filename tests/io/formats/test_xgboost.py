"""XGBoost learns from the files what it learns from the arrays."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import xgboost as xgb

from posbias.core.errors import SchemaError

ROUNDS = 100
TYPES = ["q", "c", "q", "q", "q"]
Sample = Any  # of conftest.py: tests are no package to import from
Array = np.ndarray[Any, Any]


def arrays(sample: Sample, **more: Array) -> xgb.DMatrix:
    label = sample.rows["grade" if sample.of.layout.name == "judgments" else sample.of.layout.label].to_numpy()
    grouped = {"qid": sample.rows["group"].to_numpy()} if sample.of.layout.name != "pointwise" else {}
    return xgb.DMatrix(sample.numbers, label, feature_types=TYPES, enable_categorical=True, **grouped, **more)


@pytest.mark.parametrize("layout", ["pointwise", "clicked-group"])
def test_files_teach_what_arrays_teach_and_weights_count(
    layout: str, sample: Callable[..., Any], load: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    rows = sample(layout)
    loaded = load(rows.write("xgboost", tmp_path))
    weight = rows.group_weights if layout == "clicked-group" else rows.rows["weight"].to_numpy()
    data = arrays(rows)
    weighted = xgb.train(loaded["PARAMETERS"], arrays(rows, weight=weight), ROUNDS).predict(data)
    unweighted = xgb.train(loaded["PARAMETERS"], data, ROUNDS).predict(data)
    predicted = loaded["model"].predict(data)
    np.testing.assert_array_equal(predicted, weighted)
    np.testing.assert_array_equal(predicted, loaded["model"].predict(loaded["train"]))
    assert np.abs(predicted - unweighted).max() > 0.01


def test_judgments_are_ranked_by_grade(
    sample: Callable[..., Any], load: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    rows = sample("judgments")
    loaded = load(rows.write("xgboost", tmp_path))
    model = xgb.train(loaded["PARAMETERS"], arrays(rows), ROUNDS)
    np.testing.assert_array_equal(loaded["model"].predict(arrays(rows)), model.predict(arrays(rows)))


@pytest.mark.parametrize("value", [np.inf, -1e39])
def test_a_feature_that_xgboost_refuses_is_an_error_that_names_it(
    value: float, sample: Callable[..., Any], tmp_path: Path
) -> None:
    rows = sample("pointwise")
    price = pl.when(pl.int_range(pl.len()) == 200).then(value).otherwise("price")
    with pytest.raises(SchemaError, match=r"feature 'price' reaches (inf|1e\+39) in size"):
        type(rows)(rows.of, rows.rows.with_columns(price=price)).write("xgboost", tmp_path)


def test_validation_rows_are_scored_and_an_empty_validation_set_is_left_out(
    sample: Callable[..., Any],
    load: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = sample("clicked-group")
    folder = rows.write("xgboost", tmp_path / "training")
    sample("clicked-group", seed=2).write("xgboost", tmp_path / "validation")
    load(folder)
    assert "; validation ndcg@10 0." in capsys.readouterr().out
    rows.empty().write("xgboost", tmp_path / "validation")
    load(folder)
    assert "validation" not in capsys.readouterr().out.splitlines()[0]


def test_features_may_all_be_whole_numbers(
    sample: Callable[..., Any], load: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    rows = sample("pointwise")
    feature = next(feature for feature in rows.of.features if feature.name == "in stock")
    columns = ["group", "query", "doc", "label", "weight", feature.name]
    whole = type(rows)(replace(rows.of, features=(feature,)), rows.rows.select(columns))
    assert load(whole.write("xgboost", tmp_path))["train"].num_col() == 1
