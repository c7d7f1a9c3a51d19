"""Parquet and CSV: columns by layout, ids as they came, and scikit-learn learns from them."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from training_sample import Sample, load, make_sample

ensemble: Any = import_module("sklearn.ensemble")  # without types
linear_model: Any = import_module("sklearn.linear_model")
READ: dict[str, Callable[[Path], pl.DataFrame]] = {"parquet": pl.read_parquet, "csv": pl.read_csv}
COLUMNS = {
    "pointwise": ["query", "doc", "label", "weight"],
    "session": ["session", "query", "doc", "position", "click", "propensity", "weight"],
    "clicked-group": ["group", "query", "doc", "label", "weight", "clicks"],
    "pairs": ["query", "winner", "loser", "weight"],
    "judgments": ["query", "doc", "label", "label_std_dev", "grade", "impressions", "clicks"],
}


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize("layout", COLUMNS)
def test_parts_hold_the_rows_in_order_with_the_columns_of_the_layout(form: str, layout: str, tmp_path: Path) -> None:
    rows = make_sample(layout)
    rows.write(form, tmp_path)
    of_features = [] if layout == "pairs" else [feature.name for feature in rows.of.features]
    parts = pl.concat(READ[form](part) for part in sorted((tmp_path / "rows").iterdir()))
    assert parts.columns == [*COLUMNS[layout], *of_features]
    expected = (rows.preferences if layout == "pairs" else rows.rows).select(parts.columns)
    assert_frame_equal(parts.cast(expected.schema), expected)
    documents = tmp_path / "documents"
    assert documents.exists() == (layout == "pairs")
    assert not documents.exists() or sorted(path.name for path in documents.iterdir()) == [
        f"part-0000{part}.{form}" for part in range(2)
    ]


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize("layout", ["pointwise", "session", "clicked-group", "judgments"])
@pytest.mark.slow
def test_scikit_learn_learns_from_the_files_what_it_learns_from_the_arrays(
    form: str, layout: str, tmp_path: Path
) -> None:
    rows = make_sample(layout)
    loaded = load(rows.write(form, tmp_path))
    graded = layout == "judgments"
    learner = ensemble.HistGradientBoostingRegressor if graded else ensemble.HistGradientBoostingClassifier
    labels, weight = (
        rows.rows[rows.of.layout.label].to_numpy(),
        rows.rows["impressions" if graded else "weight"].to_numpy(),
    )
    weighted = learner(max_iter=100, random_state=1).fit(rows.numbers, labels, sample_weight=weight)
    unweighted = learner(max_iter=100, random_state=1).fit(rows.numbers, labels)
    predict = "predict" if graded else "decision_function"
    predicted, expected, plain = (
        getattr(model, predict)(rows.numbers) for model in (loaded["model"], weighted, unweighted)
    )
    np.testing.assert_array_equal(predicted, expected)
    assert np.abs(predicted - plain).max() > 0.01


@pytest.mark.parametrize("form", READ)
def test_pairs_teach_a_linear_ranker_by_their_weights(form: str, tmp_path: Path) -> None:
    rows = make_sample("pairs")
    loaded = load(rows.write(form, tmp_path))
    numbers = np.delete(rows.numbers, 1, axis=1)
    winner, loser = (rows.preferences[side].to_numpy() for side in ("winner_row", "loser_row"))
    ahead = np.nan_to_num(numbers[winner] - numbers[loser])
    weight = np.tile(rows.preferences["weight"].to_numpy(), 2)
    both_ways = np.concatenate([ahead, -ahead]), np.repeat([1, 0], len(ahead))
    weighted = linear_model.LogisticRegression(fit_intercept=False).fit(*both_ways, sample_weight=weight)
    unweighted = linear_model.LogisticRegression(fit_intercept=False).fit(*both_ways)
    np.testing.assert_allclose(loaded["model"].coef_, weighted.coef_, atol=1e-12)
    assert np.abs(loaded["model"].coef_ - unweighted.coef_).max() > 0.01


def test_a_document_that_stands_in_several_groups_has_its_features_once(tmp_path: Path) -> None:
    rows = make_sample("pairs")
    folder = rows.write("parquet", tmp_path)
    once = load(folder)["ahead"]
    pl.read_parquet(folder / "documents" / "part-00000.parquet").write_parquet(
        folder / "documents" / "part-00002.parquet"
    )
    np.testing.assert_array_equal(load(folder)["ahead"], once)


@pytest.mark.parametrize("form", READ)
@pytest.mark.parametrize("layout", ["session", "pairs"])
def test_without_features_the_script_counts_rows(
    form: str, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = make_sample(layout, features=False)
    load(rows.write(form, tmp_path))
    count = rows.rows.height if layout == "session" else rows.preferences.height
    assert capsys.readouterr().out.startswith(f"{count} rows with the columns {', '.join(COLUMNS[layout])};")
    assert not (tmp_path / "documents").exists()


def test_ids_of_several_columns_stay_structs_in_parquet_and_are_json_in_csv(tmp_path: Path) -> None:
    rows = make_sample("pointwise")
    several = rows.rows.with_columns(doc=pl.struct(shop=pl.lit("a,b"), item="doc"))
    for form in READ:
        Sample(rows.of, several).write(form, tmp_path)
    assert_frame_equal(pl.read_parquet(tmp_path / "rows" / "part-*.parquet").select("doc"), several.select("doc"))
    assert pl.read_csv(tmp_path / "rows" / "part-00000.csv")["doc"][1] == '{"shop":"a,b","item":7}'
