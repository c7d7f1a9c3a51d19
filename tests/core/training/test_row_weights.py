"""Weights of impressions with propensities of their own, by hand."""

import numpy as np
import polars as pl
import pytest

from posbias.core.arrays.tails import tail_index
from posbias.core.training.weights import WeightOptions, row_weights, sum_by_document, sums_by_position, weigh_rows

LOG = pl.DataFrame(
    {
        "session": [1, 1, 1, 2, 2],
        "query": [1] * 5,
        "doc": ["a", "b", "c", "b", "a"],
        "position": [1, 2, 3, 1, 2],
        "click": [1, 1, 1, 0, 1],
        "propensity": [1.0, 0.5, None, 1.0, 0.2],
        "posbias_baseline": [0.0, 0.1, 0.1, 0.1, 0.1],
        "attractive": [0.1, 0.2, 0.3, 0.2, 0.1],
    }
)
CLIPPED = WeightOptions(min_propensity=0.25)


def test_the_summary_counts_clicks_by_what_becomes_of_them() -> None:
    summary, by_position = row_weights(sums_by_position(LOG, CLIPPED), CLIPPED)

    assert (summary.clicks_weighted, summary.clicks_without_propensity, summary.clicks_clipped) == (3, 1, 1)
    assert summary.impressions_without_propensity == 1
    assert summary.weight_before_clipping == pytest.approx(1 + 2 + 5)
    assert summary.weight_after_clipping == pytest.approx(1 + 2 + 4)
    assert summary.effective_sample_size == pytest.approx(7**2 / (1 + 4 + 16))
    assert by_position.rows() == [(1, 1, pytest.approx(1 / 7)), (2, 2, pytest.approx(6 / 7)), (3, 0, 0.0)]


def test_the_summary_of_parts_is_that_of_the_whole() -> None:
    parts = pl.concat([sums_by_position(LOG.head(2), CLIPPED), sums_by_position(LOG.tail(3), CLIPPED)])
    of_parts, whole = row_weights(parts, CLIPPED), row_weights(sums_by_position(LOG, CLIPPED), CLIPPED)

    assert of_parts[0] == whole[0]
    assert of_parts[1].equals(whole[1])


def test_pareto_k_is_that_of_single_rows_to_the_size_of_the_classes() -> None:
    propensity = 1 / (1 + np.random.default_rng(2).pareto(2.5, 2000))
    log = pl.DataFrame({"position": [1, 2] * 1000, "click": [1] * 2000, "propensity": propensity})
    halves = [sums_by_position(half, WeightOptions()) for half in (log.head(700), log.tail(1300))]
    found = row_weights(pl.concat(halves), WeightOptions())[0]
    assert found.pareto_k == pytest.approx(tail_index(1 / propensity, np.ones(2000)), abs=0.02)


def test_clicks_weigh_one_over_examination_and_other_impressions_one() -> None:
    options = WeightOptions(min_propensity=0.25, self_normalize=True)
    factor = row_weights(sums_by_position(LOG, options), options)[0].self_normalization_factor
    rows = weigh_rows(LOG, options, factor)

    assert factor == pytest.approx(3 / 7)
    assert rows["weight"].to_list() == [pytest.approx(3 / 7), pytest.approx(6 / 7), None, 1.0, pytest.approx(12 / 7)]
    assert "attractive" in rows.columns


def test_documents_add_up_what_lies_beyond_trust_in_the_position() -> None:
    found = sum_by_document(LOG, CLIPPED, 1.0)
    rows = {row["doc"]: row for row in found.iter_rows(named=True)}

    assert found["doc"].to_list() == ["a", "b", "c"]
    assert rows["a"]["beyond_baseline"] == pytest.approx(1 + 0.9)
    assert rows["a"]["attracted"] == pytest.approx(1 / 1 + 0.9 / 0.25)
    assert rows["b"]["attracted"] == pytest.approx(0.9 / 0.5 - 0.1 / 1)
    assert rows["b"]["expected"] == pytest.approx(1.5)
    assert (rows["c"]["impressions"], rows["c"]["clicks"], rows["c"]["attracted"]) == (0, 0, 0)


def test_rows_that_stand_for_several_count_so_often() -> None:
    several = LOG.with_columns(weight=pl.Series([2.0, 1.0, 3.0, 1.0, 2.0]))
    apart = pl.concat([LOG, LOG[[0, 2, 2, 4]]])

    assert sum_by_document(several, CLIPPED, 1.0).equals(sum_by_document(apart, CLIPPED, 1.0))
    assert row_weights(sums_by_position(several, CLIPPED), CLIPPED)[0].clicks_weighted == 5
    assert weigh_rows(several, CLIPPED, 1.0)["weight"].to_list() == [2.0, 2.0, None, 1.0, 8.0]
