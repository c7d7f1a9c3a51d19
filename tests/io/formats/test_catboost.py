"""CatBoost learns from the files what it learns from the arrays."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

catboost: Any = import_module("catboost")  # without types
Pool = Any
Sample = Any  # of conftest.py: tests are no package to import from
Array = np.ndarray[Any, Any]


def arrays(sample: Sample, **more: Array) -> Pool:
    names = [feature.name for feature in sample.of.features]
    numbers = sample.rows.with_columns(pl.lit(0).alias("brand")).select(names).cast(pl.Float64).fill_null(np.nan)
    values = numbers.to_numpy().astype(object)
    values[:, names.index("brand")] = sample.rows["brand"].fill_null("").to_list()
    grouped = {"group_id": sample.rows["group"].to_numpy()} if sample.of.layout.name != "pointwise" else {}
    label = {} if sample.of.layout.name == "pairs" else {"label": sample.rows[sample.of.layout.label].to_numpy()}
    return catboost.Pool(values, cat_features=[names.index("brand")], **label, **grouped, **more)


WEIGHTS: dict[str, Callable[[Sample], dict[str, Array]]] = {
    "pointwise": lambda sample: {"weight": sample.rows["weight"].to_numpy()},
    "session": lambda sample: {"weight": sample.rows["weight"].to_numpy()},
    "clicked-group": lambda sample: {"group_weight": sample.rows["weight"].to_numpy()},
    "pairs": lambda sample: {"pairs_weight": sample.preferences["weight"].to_numpy()},
}


@pytest.mark.parametrize("layout", WEIGHTS)
def test_files_teach_what_arrays_teach_and_weights_count(
    layout: str, sample: Callable[..., Any], load: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    rows = sample(layout)
    loaded = load(rows.write("catboost", tmp_path))
    pairs = {"pairs": rows.preferences.select("winner_row", "loser_row").to_numpy()} if layout == "pairs" else {}
    weighted = catboost.train(arrays(rows, **pairs, **WEIGHTS[layout](rows)), loaded["PARAMETERS"])
    unweighted = catboost.train(arrays(rows, **pairs), loaded["PARAMETERS"])
    predicted, expected, plain = (model.predict(arrays(rows)) for model in (loaded["model"], weighted, unweighted))
    np.testing.assert_array_equal(predicted, expected)
    np.testing.assert_array_equal(predicted, loaded["model"].predict(loaded["train"]))
    assert np.abs(predicted - plain).max() > 0.01


def test_judgments_are_ranked_by_the_debiased_rate(
    sample: Callable[..., Any], load: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    rows = sample("judgments")
    loaded = load(rows.write("catboost", tmp_path))
    model = catboost.train(arrays(rows), loaded["PARAMETERS"])
    np.testing.assert_array_equal(loaded["model"].predict(arrays(rows)), model.predict(arrays(rows)))


def test_line_ends_in_texts_do_not_break_rows(sample: Callable[..., Any], tmp_path: Path) -> None:
    rows = sample("pointwise")
    broken = rows.rows.with_columns(brand=pl.col("brand") + "\r\nlast")
    type(rows)(rows.of, broken).write("catboost", tmp_path)
    lines = (tmp_path / "train.tsv").read_bytes().splitlines()
    assert len(lines) == rows.rows.height
    pool = catboost.Pool(str(tmp_path / "train.tsv"), column_description=str(tmp_path / "train.cd"))
    assert pool.shape == (rows.rows.height, 5)


def test_validation_rows_are_scored_and_an_empty_validation_set_is_left_out(
    sample: Callable[..., Any],
    load: Callable[[Path], dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = sample("pairs")
    folder = rows.write("catboost", tmp_path / "training")
    sample("pairs", seed=2).write("catboost", tmp_path / "validation")
    load(folder)
    assert "; validation: PairLogit 0." in capsys.readouterr().out
    rows.empty().write("catboost", tmp_path / "validation")
    load(folder)
    assert "validation" not in capsys.readouterr().out.splitlines()[0]
