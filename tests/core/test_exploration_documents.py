"""Documents worth showing: upper bounds of posteriors, and which of them reach above the best known."""

import numpy as np
import polars as pl
import pytest
import scipy

from posbias.core.exploration import LEVEL, most_promising_documents, upper_bounds


def test_a_bound_is_the_quantile_of_the_posterior() -> None:
    a, b = np.array([1.0, 30.0, 0.5, 400.0]), np.array([2.0, 70.0, 20.0, 3.0])
    mean, variance = a / (a + b), a * b / ((a + b) ** 2 * (a + b + 1))
    np.testing.assert_allclose(scipy.special.betainc(a, b, upper_bounds(mean, np.sqrt(variance))), LEVEL, rtol=1e-8)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.0), (1.0, 0.0), (0.3, 0.0), (0.5, 0.9), (1e-12, 1e-3)])
def test_a_bound_lies_between_the_mean_and_one(mean: float, deviation: float) -> None:
    (bound,) = upper_bounds(np.array([mean]), np.array([deviation]))
    assert mean <= bound <= 1


def pairs(rows: list[tuple[str, str, float, float]]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=["query", "doc", "attractiveness", "std_dev"], orient="row")


def test_documents_are_shown_whose_bound_reaches_above_the_last_of_the_best() -> None:
    table = pairs(
        [
            *(("a", "good", 0.6, 0.01), ("a", "second", 0.4, 0.01), ("a", "unknown", 0.3, 0.2)),
            *(("a", "known to be worse", 0.3, 0.01), ("a", "nearly", 0.39, 0.02)),
            *(("b", "only", 0.1, 0.001), ("b", "other", 0.05, 0.001)),
        ]
    )
    worth = most_promising_documents(table, (), 2)
    assert worth["query"].to_list() == ["a"] * 4 + ["b"] * 2
    assert worth["doc"].to_list() == ["unknown", "good", "nearly", "second", "only", "other"]
    assert worth["rank"].to_list() == [1, 2, 3, 4, 1, 2]
    assert worth["attractiveness_rank"].to_list() == [4, 1, 3, 2, 1, 2]
    assert worth["reach_rank"].to_list() == [1, 4, 2, 3, 2, 1]
    reach = dict(zip(worth["doc"], worth["reach"], strict=True))
    bound = dict(zip(worth["doc"], worth["ucb"], strict=True))
    assert reach["unknown"] == pytest.approx(bound["unknown"] - 0.4)
    assert reach["good"] == pytest.approx(bound["good"] - 0.6)


def test_of_a_query_with_few_documents_all_are_shown() -> None:
    table = pairs([("a", "one", 0.5, 0.001), ("a", "two", 0.01, 0.001)])
    assert most_promising_documents(table, (), 5)["doc"].to_list() == ["one", "two"]


def test_each_of_the_best_is_shown_also_where_means_are_equal() -> None:
    table = pairs([("a", name, 0.5, 0.0) for name in "vwxyz"])
    assert most_promising_documents(table, (), 3).height == 3


def test_each_context_has_best_documents_of_its_own_whatever_the_order_of_the_rows() -> None:
    one = pairs([("b", "x", 0.5, 0.001), ("b", "y", 0.1, 0.001), ("a", "x", 0.5, 0.001), ("a", "y", 0.1, 0.001)])
    both = pl.concat([one.with_columns(device=pl.lit(device)) for device in (1, 0)])
    other = pl.when(pl.col("device") == 0).then(0.6 - pl.col("attractiveness")).otherwise("attractiveness")
    table = both.with_columns(attractiveness=other).sort("query", "doc", maintain_order=True)
    worth = most_promising_documents(table, ("device",), 1)
    assert worth.select("query", "device", "doc").rows() == [("a", 0, "y"), ("a", 1, "x"), ("b", 0, "y"), ("b", 1, "x")]


def test_alpha_says_how_many_deviations_above_the_mean_a_document_counts_as() -> None:
    """0 is greedy, and the more it is, the sooner what is little known is shown."""
    table = pairs([("a", "good", 0.6, 0.01), ("a", "second", 0.4, 0.05), ("a", "unknown", 0.3, 0.2)])
    for alpha, order in ((0.0, ["good"]), (1.0, ["good", "unknown", "second"]), (2.0, ["unknown", "good", "second"])):
        worth = most_promising_documents(table, (), 1, alpha)
        expected = table.select(pl.min_horizontal(pl.col("attractiveness") + alpha * pl.col("std_dev"), 1.0))
        known = dict(zip(table["doc"], expected.to_series(), strict=True))
        assert worth["ucb"].to_list() == pytest.approx([known[doc] for doc in worth["doc"]])
        assert worth["doc"].to_list() == [doc for doc in order if doc == "good" or known[doc] > 0.6]
