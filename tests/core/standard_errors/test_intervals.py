"""Intervals: of a method without errors, of one that falls back on another where it has none, of degenerate logs."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_logs import PBM, statistics_of

from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.standard_errors.cluster import Intervals


def test_a_method_without_errors_keeps_the_reasons() -> None:
    found = Intervals.unknown((None, "no clicks"))
    assert np.isnan([found.std_error, found.low, found.high, found.effective_clusters]).all()
    assert found.reason == (None, "no clicks")


def test_where_there_is_no_error_everything_is_the_other_ones() -> None:
    nan = np.nan
    low, high = np.array([1, 0.4, nan]), np.array([1, 0.6, nan])
    own = Intervals(np.array([0, 0.1, nan]), low, high, np.full(3, nan), (None, None, None))
    wider = np.array([1, 0.3, nan]), np.array([1, 0.7, 0.9])
    other = Intervals(np.array([0, 0.2, nan]), *wider, np.array([nan, 5, nan]), (None, "a", "b"))
    found = own.where(np.isfinite(own.std_error), other)
    np.testing.assert_array_equal(found.std_error, [0, 0.1, nan])
    np.testing.assert_array_equal(found.low, [1, 0.4, nan])
    np.testing.assert_array_equal(found.high, [1, 0.6, 0.9])  # the limit of a cell without clicks stays
    assert found.reason == (None, None, "b")


def test_an_interval_reaches_as_far_as_its_farther_end() -> None:
    low, high = np.array([1, 0.4, 0.0, np.nan]), np.array([1, 0.6, 0.7, 0.9])
    found = Intervals(np.zeros(4), low, high, np.full(4, np.nan), (None,) * 4).half_width(np.log([1, 0.45, 0.3, 0.5]))
    np.testing.assert_allclose(found, [0, np.log(0.6 / 0.45), np.inf, np.nan])


def mirrored(*clicks: tuple[list[int], ...]) -> pl.DataFrame:
    """Two queries per context, of one document each, shown 20 times at each of three positions."""
    rows = [
        (f"{context}-{query}-{position}-{page}", query, context, position + 1, int(page < number))
        for context, queries in enumerate(clicks)
        for query, of_query in enumerate(queries)
        for position, number in enumerate(of_query)
        for page in range(20)
    ]
    columns = ["session", "query", "context", "position", "click"]
    return pl.DataFrame(rows, schema=columns, orient="row").with_columns(doc=pl.lit(1))


A, MIRRORED_A, SAME_SUM = [10, 2, 6], [10, 6, 2], [10, 3, 5]
DEGENERATE = {
    "mirrored": (A, MIRRORED_A),
    "equal": (A, A),
    "equal where the shape pools": (A, SAME_SUM),
    "one cell equal": (A, [8, 2, 5]),
}


def fitted(log: pl.DataFrame, context: tuple[str, ...], method: str, options: EstimationOptions) -> Fit:
    return fit_statistics(statistics_of(log, replace(PBM, context=context)), method, options, compare=False)


def test_a_context_of_one_query_has_the_number_of_the_others_without_an_interval_and_says_why() -> None:
    log = mirrored(([10, 2, 6], [10, 5, 3]), ([8, 4, 3], [9, 3, 4]))
    log = log.filter((pl.col("context") == 0) | (pl.col("query") == 0))
    found = fitted(log, ("context",), "conditional", EstimationOptions()).propensities
    of_one_query = found.filter(pl.col("context") == 1, pl.col("position") > 1)

    assert of_one_query["propensity"].is_between(0.2, 0.5).all()
    assert (of_one_query["propensity"] != of_one_query["unshrunk_propensity"]).all()
    assert of_one_query.select("std_error", "ci_low", "ci_high").null_count().row(0) == (2, 2, 2)
    assert of_one_query["reason"].str.contains("one query alone identifies it; its number is that of the other").all()


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize("context", [(), ("context",)])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((name, {}) for name in ("conditional", "allpairs")),
        *(("conditional", options) for options in ({"cluster": "pair"}, {"bootstrap": 99})),
        *(("conditional", {"shape": shape}) for shape in ("monotone", "power")),
    ],
)
@pytest.mark.slow_after(12)
def test_no_interval_has_width_0_where_clusters_mirror_each_other(
    name: str, context: tuple[str, ...], method: str, options: dict[str, Any]
) -> None:
    fit = fitted(mirrored(DEGENERATE[name], DEGENERATE[name][::-1]), context, method, EstimationOptions(**options))
    others = np.setdiff1d(np.arange(fit.statistics.n_cells), fit.estimate.linkage.references)
    width = np.log(fit.estimate.intervals.high[others] / fit.estimate.intervals.low[others])

    assert (np.isnan(width) | (width > 1e-3)).all()
