"""The layout of judgments, against loops over documents."""

import numpy as np
import polars as pl
import pytest
from small_logs import dense_table

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import Rate
from posbias.core.errors import StatisticsError
from posbias.core.training.layout import DocumentSums, JudgmentsLayout, judgment_rows, top_rate
from posbias.core.training.weights import WeightOptions, click_weights

UNKNOWN = float("nan")
THETA = np.array([1.0, 0.4, UNKNOWN, 0.005])
CLIPPED = {0: 1.0, 1: 0.4, 3: 0.1}
IMPRESSIONS = np.array([[4, 2, 1, 0], [0, 5, 0, 6], [0, 0, 3, 0], [3, 0, 0, 1]], np.float64)
CLICKS = np.array([[1, 1, 1, 0], [0, 2, 0, 1], [0, 0, 2, 0], [0, 0, 0, 0]], np.float64)
GAMMA = np.array([0.4, 0.3, 0.2, 0.1])
STD_DEV = np.array([0.1, 0.05, 0.2, 0.08])
PAIRS = pl.DataFrame({"query": list("aabb"), "doc": [1, 2, 1, 2], "signature": [0, 2, 1, 3]})


def terms(rate: Rate, attractiveness: Floats | None = GAMMA) -> Floats:
    table = dense_table(IMPRESSIONS, CLICKS)
    cells = pl.DataFrame({"position": range(1, 5)}, schema={"position": pl.Int32})
    options = WeightOptions(min_propensity=0.1, rate=rate)
    weights = click_weights(cells, THETA, IMPRESSIONS.sum(axis=0), CLICKS.sum(axis=0), options)
    gamma = np.full(4, UNKNOWN) if attractiveness is None else attractiveness
    sums = DocumentSums.of_signatures(table, weights, options, lambda: (THETA, gamma, STD_DEV))
    return JudgmentsLayout().by_document(sums)[0]


def expected(unit: int, rate: Rate) -> float:
    shown = {cell: IMPRESSIONS[unit, cell] for cell in CLIPPED}
    clicked = {cell: CLICKS[unit, cell] for cell in CLIPPED}
    if rate == "coec":
        return sum(clicked.values()) / sum(n * CLIPPED[cell] for cell, n in shown.items())
    if rate == "ips":
        return sum(c / CLIPPED[cell] for cell, c in clicked.items()) / sum(shown.values())
    return float(GAMMA[unit])


@pytest.mark.parametrize("attractiveness", [None, GAMMA[:3], np.array([0.4, UNKNOWN, 0.2, 0.1])])
def test_attractiveness_that_is_missing_is_no_zero(attractiveness: Floats | None) -> None:
    with pytest.raises(StatisticsError, match="some documents have no attractiveness"):
        terms("posterior", attractiveness)

    assert np.isfinite(terms("coec", attractiveness)[:, :4]).all()


@pytest.mark.parametrize("rate", ["coec", "ips", "posterior"])
def test_the_label_is_the_debiased_rate_over_the_cells_that_have_a_propensity(rate: Rate) -> None:
    rows = judgment_rows(PAIRS, terms(rate), top=1.0, grades=5, whole=True)

    assert rows.select("group", "query", "doc").rows() == [(0, "a", 1), (1, "b", 1), (1, "b", 2)]
    assert rows["label"].to_list() == pytest.approx([expected(unit, rate) for unit in (0, 1, 3)])
    assert rows.select("impressions", "clicks").rows() == [(6, 2), (11, 3), (4, 0)]
    assert rows["impressions"].dtype == pl.Int64


def test_grades_are_equal_steps_up_to_the_top() -> None:
    rates = np.array([0.0, 0.19, 0.21, 0.99, 1.0, 7.0])
    by_signature = np.stack([np.ones(6), np.ones(6), rates, np.ones(6), np.zeros(6)], axis=1)
    pairs = pl.DataFrame({"query": ["q"] * 6, "doc": range(6), "signature": range(6)})

    assert judgment_rows(pairs, by_signature, top=1.0, grades=5, whole=True)["grade"].to_list() == [0, 0, 1, 4, 4, 4]
    assert judgment_rows(pairs, by_signature, top=0.0, grades=5, whole=True)["grade"].to_list() == [0] * 6


def test_the_top_is_what_a_hundredth_of_the_documents_exceed() -> None:
    rates = np.array([0.9, 0.1, 0.5])
    by_signature = np.stack([np.ones(3), np.ones(3), rates, np.ones(3), np.zeros(3)], axis=1)

    assert top_rate(by_signature, np.array([1.0, 950.0, 49.0])) == 0.5
    assert top_rate(by_signature, np.array([11.0, 950.0, 39.0])) == 0.9
    assert top_rate(by_signature, np.array([0.0, 0.0, 1.0])) == 0.5


def test_documents_are_summed_over_their_contexts_before_the_rate_is_formed() -> None:
    pairs = pl.DataFrame({"query": ["a", "a"], "doc": [1, 1], "signature": [0, 1]})
    rows = judgment_rows(pairs, terms("coec"), top=1.0, grades=2, whole=True)

    assert rows["label"].item() == pytest.approx((2 + 3) / (4 + 2 * 0.4 + 5 * 0.4 + 6 * 0.1))


def test_the_label_has_the_standard_deviation_of_the_posterior_and_other_rates_have_none() -> None:
    rows = judgment_rows(PAIRS, terms("posterior"), top=1.0, grades=5, whole=True)

    assert rows["label_std_dev"].to_list() == pytest.approx([0.1, 0.05, 0.08])
    assert judgment_rows(PAIRS, terms("coec"), top=1.0, grades=5, whole=True)["label_std_dev"].is_null().all()
    assert judgment_rows(PAIRS, terms("ips"), top=1.0, grades=5, whole=True)["label_std_dev"].is_null().all()


def test_over_contexts_the_standard_deviation_is_that_of_the_mean_by_impressions() -> None:
    pairs = pl.DataFrame({"query": ["a", "a"], "doc": [1, 1], "signature": [0, 1]})
    rows = judgment_rows(pairs, terms("posterior"), top=1.0, grades=2, whole=True)

    assert rows["label_std_dev"].item() == pytest.approx(np.hypot(6 * 0.1, 11 * 0.05) / 17)
