"""The sample web search log is what its script makes of the judgements, and a log as posbias wants it."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal


@pytest.fixture(scope="module")
def script(sample_logs: Path) -> dict[str, Any]:
    return runpy.run_path(str(sample_logs / "make_sample.py"))


@pytest.fixture(scope="module")
def log(sample_logs: Path) -> pl.DataFrame:
    return pl.read_parquet(sample_logs / "web_search.parquet")


@pytest.mark.slow
def test_the_log_is_made_again_row_by_row(script: dict[str, Any], log: pl.DataFrame, shared_data: Path) -> None:
    qrels = pl.read_parquet(shared_data / "graded_dbpedia_entity_qrels.parquet")

    assert_frame_equal(script["web_search_log"](qrels), log)


def test_the_truth_is_made_again(script: dict[str, Any], sample_logs: Path) -> None:
    assert_frame_equal(script["truth"](), pl.read_parquet(sample_logs / "web_search_truth.parquet"))


def test_the_features_are_made_again_and_cover_every_pair(
    script: dict[str, Any], log: pl.DataFrame, sample_logs: Path, shared_data: Path
) -> None:
    shipped = pl.read_parquet(sample_logs / "web_search_features.parquet")
    qrels = pl.read_parquet(shared_data / "graded_dbpedia_entity_qrels.parquet")

    assert_frame_equal(script["features"](qrels, log), shipped)
    assert shipped.select("query", "doc").equals(log.select("query", "doc").unique().sort("query", "doc"))


def test_a_session_is_one_page_of_ten_documents_for_one_query_on_one_day(log: pl.DataFrame) -> None:
    pages = log.group_by("session").agg(pl.all().n_unique())

    assert pages.drop("session", "click").unique().to_dicts() == [{"query": 1, "doc": 10, "position": 10, "date": 1}]
    assert log["date"].n_unique() == 7
    assert log.null_count().to_numpy().sum() == 0


def test_documents_change_places_and_better_ones_stand_higher(log: pl.DataFrame) -> None:
    places = log.group_by("query", "doc").agg(pl.n_unique("position"), pl.mean("click"))
    rate = log.group_by("position").agg(pl.mean("click")).sort("position")["click"].to_numpy()
    truth = np.array([1.0, 0.76, 0.61, 0.46, 0.39, 0.35, 0.26, 0.23, 0.20, 0.22])

    assert (places["position"] > 1).mean() > 0.5  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]
    assert (rate[1:] / rate[0] < truth[1:] - 0.1).all()


def test_the_shipped_bandit_log_is_the_shared_one(sample_logs: Path, shared_data: Path) -> None:
    shipped, original = sample_logs / "open_bandit.parquet", shared_data / "open_bandit_zozo.parquet"

    assert shipped.read_bytes() == original.read_bytes()
