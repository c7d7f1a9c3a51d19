"""Click weights, against loops over clicks."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.arrays.tails import tail_index, threshold
from posbias.core.training.weights import ClickWeights, WeightOptions, click_weights

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
UNKNOWN = float("nan")


def cells_of(size: int) -> pl.DataFrame:
    return pl.DataFrame({"position": range(1, size + 1)}, schema={"position": pl.Int32})


def weigh(
    propensity: list[float],
    clicks: list[float],
    options: WeightOptions = WeightOptions(),  # noqa: B008 - frozen
) -> ClickWeights:
    totals = np.array(clicks, np.float64)
    return click_weights(cells_of(len(clicks)), np.array(propensity), totals * 10, totals, options)


def test_the_weight_of_a_click_is_1_by_the_propensity_and_at_most_1_by_the_minimum() -> None:
    weights = weigh([1.0, 0.5, 0.05, 2.0], [8, 4, 2, 1], WeightOptions(min_propensity=0.1))

    np.testing.assert_allclose(weights.weight, [1, 2, 10, 0.5])
    assert weights.summary.clicks_clipped == 2
    assert weights.summary.weight_before_clipping == pytest.approx(8 + 8 + 40 + 0.5)
    assert weights.summary.weight_after_clipping == pytest.approx(8 + 8 + 20 + 0.5)


def test_a_propensity_of_exactly_the_minimum_is_not_clipped() -> None:
    assert weigh([1.0, 0.1], [1, 1], WeightOptions(min_propensity=0.1)).summary.clicks_clipped == 0


def test_the_effective_sample_size_is_the_squared_sum_by_the_sum_of_squares_over_clicks() -> None:
    weights = weigh([1.0, 0.5, 0.05], [8, 4, 2], WeightOptions(min_propensity=0.1))
    each_click = np.array([1.0] * 8 + [2.0] * 4 + [10.0] * 2)
    unclipped = np.array([1.0] * 8 + [2.0] * 4 + [20.0] * 2)

    assert weights.summary.effective_sample_size == pytest.approx(each_click.sum() ** 2 / (each_click**2).sum())
    assert weights.summary.effective_sample_size_before_clipping == pytest.approx(
        unclipped.sum() ** 2 / (unclipped**2).sum()
    )
    assert weigh([1.0, 1.0], [3, 4]).summary.effective_sample_size == pytest.approx(7)


def test_the_effective_sample_size_counts_what_each_row_weighs() -> None:
    """Clicks that carry weights of their own, of two cells."""
    rows, theta = [np.array([1.0, 3.0, 0.5]), np.array([2.0, 2.0])], np.array([1.0, 0.25])
    sums, squares = (np.array([np.sum(row**power) for row in rows]) for power in (1, 2))
    weights = click_weights(cells_of(2), theta, sums * 4, sums, WeightOptions(), squared_clicks=squares)
    each = np.concatenate([row / at for row, at in zip(rows, theta, strict=True)])

    assert weights.summary.effective_sample_size == pytest.approx(each.sum() ** 2 / (each**2).sum())
    assert weights.summary.pareto_k is None  # sums of weights do not say how large each is
    unknown = click_weights(cells_of(2), theta, sums * 4, sums, WeightOptions(), squared_clicks=squares * np.nan)
    assert unknown.summary.effective_sample_size is None


@SETTINGS
@given(
    st.lists(st.tuples(st.floats(0.001, 3), st.integers(0, 50), st.booleans()), min_size=1, max_size=6).filter(
        lambda cells: any(clicks and known for _, clicks, known in cells)
    )
)
def test_self_normalised_weights_have_mean_1_over_the_weighted_clicks(cells: list[tuple[float, int, bool]]) -> None:
    propensity = [theta if known else UNKNOWN for theta, _, known in cells]
    clicks = [float(number) for _, number, _ in cells]
    plain, normalised = (weigh(propensity, clicks, WeightOptions(self_normalize=asked)) for asked in (False, True))

    known = np.isfinite(propensity)
    total = float((np.array(clicks) * np.nan_to_num(normalised.weight))[known].sum())
    assert total == pytest.approx(float(np.array(clicks)[known].sum()))
    ratio = (normalised.weight / plain.weight)[known]
    assert ratio.tolist() == pytest.approx([normalised.summary.self_normalization_factor] * len(ratio))
    assert normalised.summary.effective_sample_size == pytest.approx(plain.summary.effective_sample_size)


def test_clicks_in_cells_without_a_propensity_are_counted_and_weigh_nothing() -> None:
    weights = weigh([1.0, UNKNOWN], [5, 3])

    assert np.isnan(weights.weight[1])
    assert weights.summary.clicks_weighted == 5
    assert weights.summary.clicks_without_propensity == 3
    assert weights.summary.impressions_without_propensity == 30
    assert weights.summary.weight_after_clipping == pytest.approx(5)
    assert weights.frame()["propensity"].to_list() == [1.0, None]


def test_pareto_k_is_that_of_the_weights_of_all_clicks_before_clipping() -> None:
    propensity, clicks = [1.0, *(0.1 / np.arange(1, 9)).tolist()], [500.0, 40, 20, 12, 8, 5, 3, 2, 1]
    for least in (0.01, 0.05):
        summary = weigh(propensity, clicks, WeightOptions(min_propensity=least)).summary
        each = np.repeat(1 / np.array(propensity), np.array(clicks, int))
        assert summary.pareto_k == pytest.approx(tail_index(each, np.ones(len(each))), rel=1e-9)
        assert summary.pareto_k_at_most == threshold(sum(clicks))
    assert weigh([1.0, 0.5, 0.25], [500, 40, 20]).summary.pareto_k is None


def test_a_log_without_weighted_clicks_has_no_effective_sample_size() -> None:
    assert weigh([1.0, UNKNOWN], [0, 3]).summary.effective_sample_size is None


def test_the_shares_of_the_positions_are_those_of_the_clipped_weights_over_all_cells_of_a_position() -> None:
    cells = pl.DataFrame({"position": [1, 2, 2, 3], "previous_click": [0, 0, 1, 0]})
    propensity, clicks = np.array([1.0, 0.5, 0.05, UNKNOWN]), np.array([4.0, 3.0, 1.0, 9.0])
    weights = click_weights(cells, propensity, clicks * 2, clicks, WeightOptions(min_propensity=0.1))

    assert weights.by_position.rows() == [(1, 4, 4 / 20), (2, 4, 16 / 20), (3, 0, 0)]
