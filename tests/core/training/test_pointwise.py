"""The pointwise layout, against loops over impressions."""

import numpy as np
import polars as pl
import pytest
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.training.layout import DocumentSums, PointwiseLayout, expected_attractions, pointwise_rows
from posbias.core.training.weights import ClickWeights, WeightOptions, click_weights

UNKNOWN = float("nan")


def cells_of(size: int) -> pl.DataFrame:
    return pl.DataFrame({"position": range(1, size + 1)}, schema={"position": pl.Int32})


def weights_of(table: CountTable, propensity: Floats, options: WeightOptions) -> ClickWeights:
    impressions, clicks = table.sum_by_cell(table.impressions), table.sum_by_cell(table.clicks)
    return click_weights(cells_of(table.n_cells), propensity, impressions, clicks, options)


def positive_and_shown(table: CountTable, weights: ClickWeights, gamma: Floats | None = None) -> Floats:
    """W+ of the layout, by click weights or with gamma by the posterior, and the impressions."""
    options = WeightOptions(negatives="clamp" if gamma is None else "posterior")
    known = np.zeros(0) if gamma is None else gamma
    sums = DocumentSums.of_signatures(table, weights, options, lambda: (weights.propensity, known, known))
    return PointwiseLayout().by_document(sums)[0]


@pytest.mark.parametrize("self_normalize", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_pointwise_rows_are_those_of_a_loop_and_cells_without_a_propensity_leave_n(
    seed: int,
    self_normalize: bool,  # noqa: FBT001
) -> None:
    impressions, clicks = random_counts(seed)
    theta = np.array([1.0, 0.4, UNKNOWN, 0.005])
    table = dense_table(impressions, clicks)
    weights = weights_of(table, theta, WeightOptions(min_propensity=0.1, self_normalize=self_normalize))
    signature = np.array([3, 0, 11, 3])
    pairs = pl.DataFrame({"query": list("aabb"), "doc": [1, 2, 1, 2], "signature": signature})
    rows = pointwise_rows(pairs, positive_and_shown(table, weights))

    each_click = np.array([1.0, 2.5, 0.0, 10.0])
    total = (clicks * each_click).sum()
    factor = clicks[:, [0, 1, 3]].sum() / total if self_normalize else 1.0
    expected: list[float] = []
    for unit in signature:
        positive = float((clicks[unit] * each_click).sum()) * factor
        shown = float(impressions[unit, [0, 1, 3]].sum())
        expected += [positive, max(shown - positive, 0.0)]
    np.testing.assert_allclose(rows["weight"], expected, rtol=1e-12, atol=1e-12)
    assert rows["label"].to_list() == [1, 0] * 4
    assert rows["label"].dtype == pl.Int8
    assert rows["query"].to_list() == list("aaaabbbb")
    assert rows["doc"].to_list() == [1, 1, 2, 2, 1, 1, 2, 2]


def test_normalisation_comes_before_the_unclicked_part_is_formed() -> None:
    """3 of 4 impressions clicked at theta 0.5: W+ = 6 leaves nothing; normalised, W+ = 3 leaves 1."""
    table = dense_table(np.array([[0.0, 4.0]]), np.array([[0.0, 3.0]]))
    pairs = pl.DataFrame({"query": ["q"], "doc": [0], "signature": [0]})

    def parts(*, self_normalize: bool) -> list[float]:
        weights = weights_of(table, np.array([1.0, 0.5]), WeightOptions(self_normalize=self_normalize))
        return pointwise_rows(pairs, positive_and_shown(table, weights))["weight"].to_list()

    assert parts(self_normalize=False) == pytest.approx([6.0, 0.0])
    assert parts(self_normalize=True) == pytest.approx([3.0, 1.0])


def pairs_of(signature: list[int], query: list[str], doc: list[int]) -> pl.DataFrame:
    schema = {"query": pl.String, "doc": pl.Int64, "signature": pl.Int64}
    return pl.DataFrame({"query": query, "doc": doc, "signature": signature}, schema=schema)


def random_counts(seed: int) -> tuple[Floats, Floats]:
    rng = np.random.default_rng(seed)
    impressions = rng.integers(0, 6, (12, 4)).astype(np.float64)
    return impressions, rng.binomial(impressions.astype(np.int64), 0.3).astype(np.float64)


@pytest.mark.parametrize("seed", range(3))
def test_expected_labels_are_those_of_a_loop_over_impressions(seed: int) -> None:
    impressions, clicks = random_counts(seed)
    theta = [1.0, 0.4, UNKNOWN, 0.005]
    gamma = np.random.default_rng(seed).random(12)
    table = dense_table(impressions, clicks)
    found = expected_attractions(table, np.array(theta), gamma)

    for unit in range(12):
        expected = 0.0
        for cell in (0, 1, 3):
            unclicked = gamma[unit] * (1 - theta[cell]) / (1 - theta[cell] * gamma[unit])
            for impression in range(int(impressions[unit, cell])):
                expected += 1.0 if impression < clicks[unit, cell] else unclicked
        assert found[unit] == pytest.approx(expected)


def test_expected_labels_and_the_rest_add_up_to_the_impressions_in_cells_with_a_propensity() -> None:
    impressions, clicks = random_counts(7)
    theta = np.array([1.0, 0.4, UNKNOWN, 0.005])
    table = dense_table(impressions, clicks)
    gamma = np.linspace(0, 1, 12)
    positive = expected_attractions(table, theta, gamma)
    pairs = pairs_of(list(range(12)), ["q"] * 12, list(range(12)))
    rows = pointwise_rows(pairs, positive_and_shown(table, weights_of(table, theta, WeightOptions()), gamma))

    shown = impressions[:, [0, 1, 3]].sum(axis=1)
    weight = rows["weight"].to_numpy().reshape(12, 2)
    np.testing.assert_allclose(weight[:, 0], positive, rtol=1e-12)
    np.testing.assert_allclose(weight.sum(axis=1), shown, rtol=1e-12)
    assert np.all(weight >= 0)
    assert np.all(positive >= clicks[:, [0, 1, 3]].sum(axis=1))


def test_an_examined_impression_without_a_click_did_not_attract_even_where_gamma_is_1() -> None:
    table = dense_table(np.array([[4.0]]), np.array([[3.0]]))
    assert expected_attractions(table, np.array([1.0]), np.array([1.0])).tolist() == [3.0]


def test_rows_of_one_document_are_summed_before_the_clamp() -> None:
    """Shown once and clicked at theta 0.5, and three times without a click: W+ = 2 of 4, not 2 of 1 and 0 of 3."""
    table = dense_table(np.array([[0.0, 1.0], [3.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 0.0]]))
    pairs = pairs_of([0, 1, 1, 0], ["a", "a", "a", "b"], [1, 1, 2, 2])
    rows = pointwise_rows(pairs, positive_and_shown(table, weights_of(table, np.array([1.0, 0.5]), WeightOptions())))

    assert rows.rows() == [
        (0, "a", 1, 1, 2),
        (0, "a", 1, 0, 2),
        (0, "a", 2, 1, 0),
        (0, "a", 2, 0, 3),
        (1, "b", 2, 1, 2),
        (1, "b", 2, 0, 0),
    ]


def test_no_pair_gives_no_row() -> None:
    table = dense_table(np.array([[1.0]]), np.array([[1.0]]))
    rows = pointwise_rows(
        pairs_of([], [], []), positive_and_shown(table, weights_of(table, np.array([1.0]), WeightOptions()))
    )
    assert rows.height == 0
    assert rows.schema["weight"] == pl.Float64
