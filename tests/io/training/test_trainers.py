"""LightGBM, XGBoost and CatBoost learn from the files what they learn from the arrays."""

import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import xgboost as xgb
from training_sample import Sample, load, make_sample

from posbias.core.errors import SchemaError

catboost: Any = import_module("catboost")  # without types
lgb: Any = import_module("lightgbm")  # with types that know no keywords
ROUNDS = 100
OF_FILES = {"header", "label_column", "group_column", "weight_column"}
TRAINERS = ("lightgbm", "xgboost", "catboost")
Array = np.ndarray[Any, Any]


def labels(sample: Sample, of_judgments: str = "grade") -> Array:
    """What is learnt."""
    return sample.rows[of_judgments if sample.of.layout.name == "judgments" else sample.of.layout.label].to_numpy()


def for_lightgbm(sample: Sample, **more: Array) -> Any:  # noqa: ANN401
    grouped = {"group": sample.group_sizes} if sample.of.layout.name != "pointwise" else {}
    return lgb.Dataset(sample.numbers, labels(sample), categorical_feature=[1], **grouped, **more)


def for_xgboost(sample: Sample, **more: Array) -> xgb.DMatrix:
    grouped = {"qid": sample.rows["group"].to_numpy()} if sample.of.layout.name != "pointwise" else {}
    types = ["q", "c", "q", "q", "q"]
    return xgb.DMatrix(sample.numbers, labels(sample), feature_types=types, enable_categorical=True, **grouped, **more)


def for_catboost(sample: Sample, **more: Array) -> Any:  # noqa: ANN401
    names = [feature.name for feature in sample.of.features]
    numbers = sample.rows.with_columns(pl.lit(0).alias("brand")).select(names).cast(pl.Float64).fill_null(np.nan)
    values = numbers.to_numpy().astype(object)
    values[:, names.index("brand")] = sample.rows["brand"].fill_null("").to_list()
    grouped = {"group_id": sample.rows["group"].to_numpy()} if sample.of.layout.name != "pointwise" else {}
    label = {} if sample.of.layout.name == "pairs" else {"label": labels(sample, sample.of.layout.label)}
    return catboost.Pool(values, cat_features=[names.index("brand")], **label, **grouped, **more)


def weights(form: str, sample: Sample) -> dict[str, Array]:
    """The weights, as the trainer's API takes them."""
    layout, of_rows = sample.of.layout.name, sample.rows["weight"].to_numpy()
    if layout == "pairs":
        return {"pairs_weight": sample.preferences["weight"].to_numpy()}
    if form == "xgboost" and layout == "clicked-group":
        return {"weight": sample.group_weights}
    return {"group_weight" if form == "catboost" and layout == "clicked-group" else "weight": of_rows}


def learnt_from_arrays(form: str, sample: Sample, parameters: dict[str, Any], **of_rows: Array) -> Any:  # noqa: ANN401
    """The model that a trainer makes of arrays."""
    if form == "lightgbm":
        of_arrays = {name: value for name, value in parameters.items() if name not in OF_FILES}
        return lgb.train(of_arrays, for_lightgbm(sample, **of_rows), ROUNDS)
    if form == "xgboost":
        return xgb.train(parameters, for_xgboost(sample, **of_rows), ROUNDS)
    if sample.of.layout.name == "pairs":
        of_rows["pairs"] = sample.preferences.select("winner_row", "loser_row").to_numpy()
    return catboost.train(for_catboost(sample, **of_rows), parameters)


def scores(form: str, model: Any, sample: Sample) -> Array:  # noqa: ANN401
    """What a model says of the rows."""
    data = {"lightgbm": lambda: sample.numbers, "xgboost": lambda: for_xgboost(sample)}
    return model.predict(data.get(form, lambda: for_catboost(sample))())


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("form", "layout"),
    [
        *(("lightgbm", layout) for layout in ("pointwise", "clicked-group", "session")),
        *(("xgboost", layout) for layout in ("pointwise", "clicked-group")),
        *(("catboost", layout) for layout in ("pointwise", "session", "clicked-group", "pairs")),
    ],
)
def test_files_teach_what_arrays_teach_and_weights_count(form: str, layout: str, tmp_path: Path) -> None:
    rows = make_sample(layout)
    loaded = load(rows.write(form, tmp_path))
    weighted = learnt_from_arrays(form, rows, loaded["PARAMETERS"], **weights(form, rows))
    unweighted = learnt_from_arrays(form, rows, loaded["PARAMETERS"])
    predicted = scores(form, loaded["model"], rows)
    np.testing.assert_array_equal(predicted, scores(form, weighted, rows))
    if form != "lightgbm":
        np.testing.assert_array_equal(predicted, loaded["model"].predict(loaded["train"]))
    assert np.abs(predicted - scores(form, unweighted, rows)).max() > 0.01


@pytest.mark.parametrize("form", TRAINERS)
def test_judgments_are_ranked_by_grade_and_by_catboost_by_the_debiased_rate(form: str, tmp_path: Path) -> None:
    rows = make_sample("judgments")
    loaded = load(rows.write(form, tmp_path))
    of_arrays = learnt_from_arrays(form, rows, loaded["PARAMETERS"])
    np.testing.assert_array_equal(scores(form, loaded["model"], rows), scores(form, of_arrays, rows))


@pytest.mark.parametrize(
    ("form", "layout", "said"),
    [
        ("lightgbm", "pointwise", "; validation binary_logloss 0."),
        ("xgboost", "clicked-group", "; validation ndcg@10 0."),
        ("catboost", "pairs", "; validation: PairLogit 0."),
    ],
)
def test_validation_rows_are_scored_and_an_empty_validation_set_is_left_out(
    form: str, layout: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = make_sample(layout)
    folder = rows.write(form, tmp_path / "training")
    make_sample(layout, seed=2).write(form, tmp_path / "validation")
    load(folder)
    assert said in capsys.readouterr().out
    rows.empty().write(form, tmp_path / "validation")
    load(folder)
    assert "validation" not in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(
    ("form", "layout"), [("lightgbm", "session"), ("xgboost", "judgments"), ("catboost", "judgments")]
)
def test_ndcg_is_that_of_the_groups_with_a_click_or_a_grade(
    form: str, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = make_sample(layout)
    label = {"session": "click", "judgments": "label"}[layout]
    first = pl.col("group") == pl.col("group").min()
    zeros = [pl.when(first).then(0).otherwise(name).alias(name) for name in {label, "grade"} & {*rows.rows.columns}]
    of_script = load(Sample(rows.of, rows.rows.with_columns(zeros)).write(form, tmp_path))
    said, train = capsys.readouterr().out, of_script["train"]
    labels = np.asarray(train.get_label(), float)
    sizes: Array = rows.rows["group"].rle().struct.field("len").cast(pl.Int64).to_numpy()
    start = np.cumsum(sizes) - sizes
    predicted = scores(form, of_script["model"], rows)
    weight = np.add.reduceat(train.get_weight(), start) / sizes if form == "lightgbm" else np.ones(len(sizes))
    values = list[float]()
    for at, size in zip(start.tolist(), sizes.tolist(), strict=True):
        of_group: Array = labels[at : at + size]
        gain: Array = of_group if form == "catboost" else 2.0**of_group - 1
        discount: Array = 1 / np.log2(np.arange(2, min(int(size), 10) + 2))
        ideal = np.sort(gain)[::-1][:10] @ discount
        order = np.argsort(-predicted[at : at + size], kind="stable")[:10]
        values.append(float(gain[order] @ discount / ideal) if ideal > 0 else np.nan)
    known = np.isfinite(values)
    assert not known.all()
    expected = np.average(np.array(values)[known], weights=weight[known])
    assert float(re.findall(r"(?i)ndcg\S* ([0-9.]+)", said)[0]) == pytest.approx(expected, abs=0.01)


def test_positions_lie_there_under_a_name_by_which_lightgbm_does_not_correct_twice(tmp_path: Path) -> None:
    rows = make_sample("session")
    loaded = load(rows.write("lightgbm", tmp_path))
    positions = (tmp_path / "positions.txt").read_text().split()
    assert positions == [str(position) for position in rows.rows["position"]]
    (tmp_path / "positions.txt").rename(tmp_path / "train.tsv.position")
    corrected_twice = load(tmp_path)
    predicted, twice = (each["model"].predict(rows.numbers) for each in (loaded, corrected_twice))
    assert np.abs(predicted - twice).max() > 0.01


def test_a_group_that_lightgbm_refuses_is_an_error_that_names_it(tmp_path: Path) -> None:
    rows = make_sample("session")
    large = pl.concat([rows.rows.head(8), *[rows.rows.slice(8, 8)] * 1251, rows.rows.slice(16, 8)])
    with pytest.raises(
        SchemaError, match=r"'red\\tshoes #0\\n' has a group of 10,008 rows.*--layout-options group=session"
    ):
        Sample(rows.of, large).write("lightgbm", tmp_path)


@pytest.mark.parametrize("value", [np.inf, -1e39])
def test_a_feature_that_xgboost_refuses_is_an_error_that_names_it(value: float, tmp_path: Path) -> None:
    rows = make_sample("pointwise")
    price = pl.when(pl.int_range(pl.len()) == 200).then(value).otherwise("price")
    with pytest.raises(SchemaError, match=r"feature 'price' reaches (inf|1e\+39) in size"):
        Sample(rows.of, rows.rows.with_columns(price=price)).write("xgboost", tmp_path)


def test_features_may_all_be_whole_numbers(tmp_path: Path) -> None:
    rows = make_sample("pointwise")
    feature = next(feature for feature in rows.of.features if feature.name == "in stock")
    columns = ["group", "query", "doc", "label", "weight", feature.name]
    whole = Sample(replace(rows.of, features=(feature,)), rows.rows.select(columns))
    assert load(whole.write("xgboost", tmp_path))["train"].num_col() == 1


@pytest.mark.slow
def test_line_ends_in_texts_do_not_break_rows(tmp_path: Path) -> None:
    rows = make_sample("pointwise")
    broken = rows.rows.with_columns(brand=pl.col("brand") + "\r\nlast")
    Sample(rows.of, broken).write("catboost", tmp_path)
    lines = (tmp_path / "train.tsv").read_bytes().splitlines()
    assert len(lines) == rows.rows.height
    pool = catboost.Pool(str(tmp_path / "train.tsv"), column_description=str(tmp_path / "train.cd"))
    assert pool.shape == (rows.rows.height, 5)
