"""`weights` adds to a frame what `posbias weight` writes, to the bit, and refuses what that refuses."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
from command_results import Posbias, invoke
from polars.testing import assert_frame_equal

from posbias import Result, open_result
from posbias.core.errors import IdentifiabilityError, PosbiasError, SchemaError, UsageError
from posbias.io.engines.local import LocalEngine

pd: Any = import_module("pandas")  # types of its own would have to be told of every column
pa: Any = import_module("pyarrow")

KEYS = ["session", "doc"]
FITS = {
    "pbm": (),
    "contexts": ("--context", "device"),
    "cells": ("--cell", "device"),
    "ubm": ("--model", "ubm"),
    "bins": ("--position-bins", "1,2,3"),
    "max-position": ("--max-position", "3"),
    "dbn": ("--model", "dbn"),
}
WEIGHTED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "as it is": ((), {}),
    "clipped": (("--min-propensity", "0.4"), {"min_propensity": 0.4}),
    "normalized": (("--self-normalize",), {"self_normalize": True}),
    "as fitted": (("--propensity", "fitted"), {"propensity": "fitted"}),
    "of several impressions": (("--weight-column", "stands_for"), {"weight_column": "stands_for"}),
}


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory, impressions: pl.DataFrame) -> Callable[..., Path]:
    """Return a function that returns the fit of the log with some options, which is made once."""
    folder = tmp_path_factory.mktemp("fits")
    impressions.write_parquet(folder / "log.parquet")

    @cache
    def fit(*options: str) -> Path:
        out = folder / str(len(list(folder.iterdir())))
        invoke("fit", folder / "log.parquet", *options, "-o", out, code=(0, 1))
        return out

    return fit


@pytest.fixture
def result(fits: Callable[..., Path]) -> Result:
    """Return a fit of the position-based model."""
    return open_result(fits())


def in_pages(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(*KEYS, "position", "click", "propensity", "weight").sort(KEYS)


@pytest.mark.parametrize("fitted", FITS)
@pytest.mark.parametrize("weighted", WEIGHTED)
@pytest.mark.slow_after(1)
def test_each_row_weighs_what_the_command_writes(
    posbias: Posbias, fits: Callable[..., Path], path: Path, impressions: pl.DataFrame, *, fitted: str, weighted: str
) -> None:
    options, parameters = WEIGHTED[weighted]
    fit = fits(*FITS[fitted])
    written = posbias("weight", path, "--propensities", fit, "--layout", "session", *options).training

    found = open_result(fit).weights(impressions, **parameters)

    assert_frame_equal(found.drop("propensity", "weight"), impressions)
    kept = found.filter(pl.col("weight").is_not_null())
    assert kept.height == impressions.height - (fitted == "max-position") * impressions.filter(position=4).height
    assert_frame_equal(in_pages(kept), in_pages(written), check_exact=True)
    assert kept.filter(click=1)["weight"].n_unique() > 1


def test_the_clicks_of_a_document_add_up_to_its_pointwise_weight(
    posbias: Posbias, fits: Callable[..., Path], path: Path, impressions: pl.DataFrame
) -> None:
    pointwise = posbias("weight", path, "--propensities", fits()).training.filter(label=1)

    found = open_result(fits()).weights(impressions).filter(click=1)
    of_cells = found.group_by("query", "doc", "position").agg(pl.col("weight").first(), clicks=pl.len())
    sums = of_cells.sort("position").group_by("query", "doc").agg(added=(pl.col("clicks") * pl.col("weight")).sum())
    both = pointwise.filter(pl.col("weight") > 0).join(sums, on=["query", "doc"], how="full", coalesce=True)

    np.testing.assert_allclose(both["added"], both["weight"], rtol=1e-14)
    assert both.height > 10


def in_seven_buckets(*_: object) -> int:
    """Return how many buckets a log is split over: more than it has queries."""
    return 7


def test_a_frame_that_is_split_over_buckets_weighs_the_same(
    result: Result, impressions: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = result.weights(impressions)
    monkeypatch.setattr(LocalEngine, "_buckets_for", in_seven_buckets)

    assert_frame_equal(result.weights(impressions), whole, check_exact=True)


def pandas_frame(frame: pl.DataFrame) -> Any:  # noqa: ANN401 - of pandas
    return pd.DataFrame(frame.to_dict(as_series=False))


def arrow_table(frame: pl.DataFrame) -> Any:  # noqa: ANN401 - of pyarrow
    return cast("Any", frame).to_arrow()


FRAMES: dict[str, Callable[[pl.DataFrame], Any]] = {
    "polars": lambda frame: frame,
    "lazy": lambda frame: frame.lazy(),
    "arrow": arrow_table,
    "pandas": pandas_frame,
    "pandas, nullable": lambda frame: pandas_frame(frame).convert_dtypes(),
    "pandas, of Arrow": lambda frame: pandas_frame(frame).convert_dtypes(dtype_backend="pyarrow"),
    "pandas, an index": lambda frame: pandas_frame(frame).set_index(pd.Index([n // 2 for n in range(frame.height)])),
    "pandas, an index of ids": lambda frame: pandas_frame(frame).set_index(["query", "doc"], drop=False),
    "pandas, categories": lambda frame: pandas_frame(frame).astype(
        dict.fromkeys(["query", "doc", "session"], "category")
    ),
    "pandas, numbers as floats": lambda frame: pandas_frame(frame).astype({"position": float, "click": float}),
    "polars, categories": lambda frame: frame.with_columns(pl.col("query").cast(pl.Categorical)),
    "polars, ids as text": lambda frame: frame.with_columns(pl.col(KEYS).cast(pl.String)),
    "polars, clicks as booleans": lambda frame: frame.with_columns(pl.col("click").cast(pl.Boolean)),
}


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.slow_after(4)
def test_the_same_kind_of_frame_comes_back_with_its_rows_and_index(
    result: Result, impressions: pl.DataFrame, kind: str
) -> None:
    given = FRAMES[kind](impressions)
    expected = result.weights(impressions)

    found = result.weights(given)

    assert type(found) is type(given)
    if isinstance(found, pd.DataFrame):
        pd.testing.assert_frame_equal(found.drop(columns=["propensity", "weight"]), given)
        weights = found["weight"].tolist()
        assert str(found["weight"].dtype) == "float64"
    elif isinstance(found, pa.Table):
        assert found.drop_columns(["propensity", "weight"]) == given
        weights = found["weight"].to_pylist()
    else:
        assert_frame_equal(found.drop("propensity", "weight"), given)
        weights = found.lazy().collect()["weight"].to_list()
    assert weights == expected["weight"].to_list()


def test_what_is_given_is_not_changed(result: Result, impressions: pl.DataFrame) -> None:
    given = pandas_frame(impressions)
    before = given.copy()

    result.weights(given)

    pd.testing.assert_frame_equal(given, before)


def test_a_position_that_the_fit_has_not_has_no_propensity(result: Result, impressions: pl.DataFrame) -> None:
    pages = impressions.with_columns(pl.when(pl.col("position") == 4).then(9).otherwise("position").alias("position"))

    below = result.weights(pages).filter(position=9)

    assert below["propensity"].is_null().all()
    assert below.filter(click=1)["weight"].is_null().all()
    assert (below.filter(click=0)["weight"] == 1).all()
    assert set(below["click"]) == {0, 1}
    with pytest.raises(IdentifiabilityError, match="clicks lie in cells without a propensity"):
        result.weights(pages, unidentified="error")
    in_pandas = result.weights(pandas_frame(pages))
    assert in_pandas.loc[in_pandas["position"] == 9, "propensity"].isna().all()


def test_rows_that_are_dropped_have_no_weight(result: Result, impressions: pl.DataFrame) -> None:
    faulty = impressions.with_row_index("n").with_columns(
        pl.when(pl.col("n") == 5).then(None).otherwise("position").alias("position")
    )

    found = result.weights(faulty, on_bad_rows="drop")

    assert found.filter(pl.col("weight").is_null())["n"].to_list() == [5]
    assert_frame_equal(
        found.filter(pl.col("n") != 5).select("propensity", "weight"),
        result.weights(impressions).with_row_index("n").filter(pl.col("n") != 5).select("propensity", "weight"),
        check_exact=True,
    )


def test_without_a_click_every_row_weighs_1(result: Result, impressions: pl.DataFrame) -> None:
    assert set(result.weights(impressions.with_columns(click=0))["weight"]) == {1}


def test_columns_of_other_names_are_named(result: Result, impressions: pl.DataFrame) -> None:
    renamed = impressions.rename({"session": "a", "query": "b", "doc": "c", "position": "d", "click": "e"})

    found = result.weights(renamed, session="a", query=["b"], doc="c", position="d", click="e")

    assert found["weight"].equals(result.weights(impressions)["weight"])


def test_a_column_that_was_guessed_is_a_warning_of_python(result: Result, impressions: pl.DataFrame) -> None:
    with pytest.warns(UserWarning, match="Columns were guessed from their names: --doc sku") as caught:
        result.weights(impressions.rename({"doc": "sku"}))

    assert [Path(one.filename) for one in caught] == [Path(__file__)]


def test_without_sessions_positions_weigh_the_same(result: Result, impressions: pl.DataFrame) -> None:
    assert result.weights(impressions.drop("session"))["weight"].equals(result.weights(impressions)["weight"])


def with_value(frame: pl.DataFrame, column: str, value: object) -> pl.DataFrame:
    """The frame with another value in its sixth row."""
    values = frame[column].to_list()
    values[5] = value
    return frame.with_columns(pl.Series(column, values, strict=False))


REFUSED: dict[str, tuple[Callable[[pl.DataFrame], object], type[PosbiasError], str]] = {
    "no clicks column": (lambda f: f.drop("click"), SchemaError, "the frame: no column looks like the click"),
    "no document": (lambda f: f.drop("doc"), SchemaError, "the frame: no column looks like the doc"),
    "a null": (lambda f: with_value(f, "query", None), SchemaError, "the query is missing: the frame row 6"),
    "position 0": (
        lambda f: with_value(f, "position", 0),
        SchemaError,
        "the position is below the base: the frame row 6",
    ),
    "a click of 2": (lambda f: with_value(f, "click", 2), SchemaError, "neither 0 nor 1: the frame row 6"),
    "positions as words": (lambda f: f.with_columns(position=pl.lit("top")), SchemaError, "not a whole number"),
    "a page twice": (lambda f: pl.concat([f, f]), SchemaError, "the session shows a document twice"),
    "a weight": (lambda f: f.with_columns(weight=1.0), SchemaError, "the frame: has a column 'weight' already"),
    "a propensity": (lambda f: f.with_columns(propensity=1), SchemaError, "has a column 'propensity' already"),
    "no rows": (lambda f: f.clear(), SchemaError, "the frame: the log holds no rows"),
    "clicks alone": (lambda f: f.with_columns(click=pl.lit(1)), SchemaError, "the frame: .* are clicked"),
    "lists": (lambda f: f.with_columns(doc=pl.concat_list("doc")), SchemaError, "the frame: column 'doc' holds List"),
    "structs": (lambda f: f.with_columns(doc=pl.struct("doc")), SchemaError, "the frame: column 'doc' holds Struct"),
    "objects": (
        lambda f: f.with_columns(doc=pl.Series([object()] * f.height, dtype=pl.Object)),
        SchemaError,
        "the frame: column 'doc' holds Object",
    ),
    "mixed ids in pandas": (
        lambda f: pandas_frame(f).assign(doc=[1, "x"] * (f.height // 2)),
        SchemaError,
        "the frame: column .* cannot be read",
    ),
    "one name twice in pandas": (
        lambda f: pandas_frame(f).rename(columns={"device": "click"}),
        SchemaError,
        "the frame: cannot be read: .*'click' 2 times",
    ),
    "a lazy frame that fails": (
        lambda f: f.lazy().with_columns(pl.col("nowhere")),
        SchemaError,
        "the frame: cannot be collected",
    ),
    "a list of rows": (lambda f: f.to_dicts(), UsageError, "Give a Polars or pandas frame, or an Arrow table"),
    "a series": (lambda f: f["click"], UsageError, "Give a Polars or pandas frame, or an Arrow table"),
    "a path": (lambda _: "log.parquet", UsageError, "Give a Polars or pandas frame, or an Arrow table"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.slow_after(6)
def test_what_cannot_be_weighed_is_an_error_that_says_why(
    result: Result, impressions: pl.DataFrame, name: str, tmp_path: Path
) -> None:
    make, error, says = REFUSED[name]

    with pytest.raises(error, match=f"(?s){says}") as caught:
        result.weights(make(impressions))

    assert str(tmp_path) not in str(caught.value)


OF_FITS: dict[str, tuple[tuple[str, ...], Callable[[pl.DataFrame], pl.DataFrame], type[PosbiasError], str]] = {
    "no context": (
        ("--context", "device"),
        lambda f: f.drop("device"),
        SchemaError,
        r"the frame: there is no column 'device' \(--context\)",
    ),
    "a context of another type": (
        ("--context", "device"),
        lambda f: f.with_columns(device=pl.lit(1)),
        SchemaError,
        r"column 'device' .* holds Int32 in this log and String in the fit",
    ),
    "ubm without sessions": (
        ("--model", "ubm"),
        lambda f: f.drop("session"),
        SchemaError,
        "no column looks like the s",
    ),
    "dbn without sessions": (
        ("--model", "dbn"),
        lambda f: f.drop("session"),
        SchemaError,
        "no column looks like the s",
    ),
    "ids of another type": (
        ("--model", "dbn"),
        lambda f: f.with_columns(pl.col("doc").cast(pl.String)),
        SchemaError,
        "the doc holds String in this log and Int64 in the fit",
    ),
    "no examination": (("--model", "rdctr"), lambda f: f, UsageError, "has no examination"),
}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("name", OF_FITS)
def test_a_frame_must_hold_what_the_fit_looks_at(
    fits: Callable[..., Path], impressions: pl.DataFrame, name: str
) -> None:
    options, change, error, says = OF_FITS[name]
    result = open_result(fits(*options))

    with pytest.raises(error, match=says):
        result.weights(change(impressions))


def test_trust_bias_has_no_weight_by_row(fits: Callable[..., Path], impressions: pl.DataFrame, tmp_path: Path) -> None:
    trust = pl.DataFrame({"position": [1, 2, 3, 4], "alpha": [0.9, 0.7, 0.5, 0.4], "beta": [0.1, 0.08, 0.06, 0.05]})
    trust.write_csv(tmp_path / "trust.csv")
    result = open_result(fits("--model", "tpbm", "--trust", str(tmp_path / "trust.csv")))

    with pytest.raises(UsageError, match="--model tpbm: under trust bias"):
        result.weights(impressions)


@pytest.mark.parametrize("least", [0, -1, 1.5, float("nan"), "0.1", None])
def test_a_minimum_propensity_that_is_none_is_an_error(result: Result, impressions: pl.DataFrame, least: float) -> None:
    with pytest.raises(UsageError, match=r"--min-propensity .*: must be above 0 and at most 1"):
        result.weights(impressions, min_propensity=least)


@pytest.mark.parametrize("option", ["propensity", "unidentified", "on_bad_rows", "self_normalize"])
def test_a_word_that_is_no_choice_is_an_error(result: Result, impressions: pl.DataFrame, option: str) -> None:
    word: dict[str, Any] = {option: "maybe"}

    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} maybe: choose "):
        result.weights(impressions, **word)
