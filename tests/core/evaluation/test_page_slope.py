"""The slope of clicks on predicted clicks: 1 under the position-based model, far below it under a cascade."""

import numpy as np
import polars as pl
import pytest
from present import present

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.evaluation.prediction import UNIT, CellTheta, PageSlope, page_slope
from posbias.core.models import get_model

K, DOCS, QUERIES = 4, 8, 20
PLAN = StatisticsPlan(get_model("pbm"))
THETA: Floats = np.arange(1, K + 1, dtype=np.float64) ** -0.8
BY = CellTheta(PLAN, pl.DataFrame({"position": np.arange(1, K + 1, dtype=np.int32)}), THETA)


def pages(seed: int, number: int, *, stops: float = 0.0) -> pl.DataFrame:
    """Return pages of a noisy ranker, a row a document; users leave after a click with a chance."""
    rng = np.random.default_rng(seed)
    gamma = 1 / (1 + np.exp(1 - 1.5 * rng.standard_normal((QUERIES, DOCS))))
    query = rng.integers(0, QUERIES, number)
    docs = np.argsort(-(gamma[query] + 0.5 * rng.standard_normal((number, DOCS))), axis=1)[:, :K]
    clicks = rng.random((number, K)) < gamma[query[:, None], docs] * THETA
    leaves = np.cumsum(clicks & (rng.random((number, K)) < stops), axis=1)
    clicks &= np.concatenate([np.zeros((number, 1)), leaves[:, :-1]], axis=1) == 0
    return pl.DataFrame(
        {
            "query": np.repeat(query, K),
            "doc": docs.ravel(),
            "position": np.tile(np.arange(1, K + 1, dtype=np.int32), number),
            UNIT: np.repeat(np.arange(number), K),
            "impressions": np.ones(number * K, np.int64),
            "clicks": clicks.ravel().astype(np.int64),
        }
    )


def slope_of(rows: pl.DataFrame) -> PageSlope:
    """Return the slope, which there is."""
    return present(page_slope(rows, BY, None))


def test_clicks_that_take_no_others_pass_and_clicks_that_end_the_page_do_not() -> None:
    right, wrong = slope_of(pages(1, 4000)), slope_of(pages(1, 4000, stops=0.9))
    assert right.interval[0] < 1 < right.interval[1]
    assert not right.rejects
    assert wrong.rejects
    assert wrong.slope < 0.7


def test_clicks_without_noise_have_a_slope_of_1() -> None:
    rows = pages(2, 400)
    gamma = 0.1 + 0.8 * np.random.default_rng(0).random((QUERIES, DOCS))
    expected = gamma[rows["query"].to_numpy(), rows["doc"].to_numpy()] * THETA[rows["position"].to_numpy() - 1]
    assert slope_of(rows.with_columns(clicks=pl.Series(expected))).slope == pytest.approx(1, abs=1e-9)


def test_days_of_equal_pages_and_rows_in_any_order_change_nothing() -> None:
    rows = pages(3, 600)
    one = slope_of(rows)
    assert slope_of(rows.sample(fraction=1, shuffle=True, seed=0)).slope == pytest.approx(one.slope, rel=1e-9)
    renamed = rows.with_columns(pl.col("query") + 7, pl.format("d{}", "doc").alias("doc"))
    assert slope_of(renamed).interval[0] < 1 < slope_of(renamed).interval[1]


def test_pages_that_never_differ_say_nothing() -> None:
    rows = pages(4, 200).with_columns(doc=pl.col("position"))
    found = page_slope(rows, BY, None)
    assert found is None or found.std_error > 0.3
    assert page_slope(rows.head(K), BY, None) is None


@pytest.mark.slow
def test_one_log_in_twenty_is_a_false_alarm() -> None:
    found = [slope_of(pages(seed, 800)) for seed in range(200)]
    beyond = np.mean([abs(one.slope - 1) > 1.96 * one.std_error for one in found])
    assert 0.01 <= beyond <= 0.09
    assert np.mean([one.slope for one in found]) == pytest.approx(1, abs=0.05)
