"""Click weights and the layouts that carry them, against loops over impressions."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.evidence import Evidence, compress_part, merge_parts
from posbias.core.models import get_model
from posbias.core.signatures import CountTable, Floats
from posbias.core.simulation import Simulation, SimulationOptions, simulate
from posbias.core.statistics_plan import StatisticsPlan
from posbias.core.weights import (
    ClickWeights,
    WeightOptions,
    click_weights,
    expected_attractions,
    pointwise_rows,
    positive_and_shown,
    session_rows,
)

PBM = StatisticsPlan(get_model("pbm"))
UBM = StatisticsPlan(get_model("ubm"))
SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
STANDARD_ERRORS = 5.0
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
    assert weights.summary["clicks_clipped"] == 2
    assert weights.summary["weight_before_clipping"] == pytest.approx(8 + 8 + 40 + 0.5)
    assert weights.summary["weight_after_clipping"] == pytest.approx(8 + 8 + 20 + 0.5)


def test_a_propensity_of_exactly_the_minimum_is_not_clipped() -> None:
    assert weigh([1.0, 0.1], [1, 1], WeightOptions(min_propensity=0.1)).summary["clicks_clipped"] == 0


def test_the_effective_sample_size_is_the_squared_sum_by_the_sum_of_squares_over_clicks() -> None:
    weights = weigh([1.0, 0.5, 0.05], [8, 4, 2], WeightOptions(min_propensity=0.1))
    each_click = np.array([1.0] * 8 + [2.0] * 4 + [10.0] * 2)
    unclipped = np.array([1.0] * 8 + [2.0] * 4 + [20.0] * 2)

    assert weights.summary["effective_sample_size"] == pytest.approx(each_click.sum() ** 2 / (each_click**2).sum())
    assert weights.summary["effective_sample_size_before_clipping"] == pytest.approx(
        unclipped.sum() ** 2 / (unclipped**2).sum()
    )
    assert weigh([1.0, 1.0], [3, 4]).summary["effective_sample_size"] == pytest.approx(7)


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
    assert ratio.tolist() == pytest.approx([normalised.summary["self_normalization_factor"]] * len(ratio))
    assert normalised.summary["effective_sample_size"] == pytest.approx(plain.summary["effective_sample_size"])


def test_clicks_in_cells_without_a_propensity_are_counted_and_weigh_nothing() -> None:
    weights = weigh([1.0, UNKNOWN], [5, 3])

    assert np.isnan(weights.weight[1])
    assert weights.summary["clicks_weighted"] == 5
    assert weights.summary["clicks_without_propensity"] == 3
    assert weights.summary["impressions_without_propensity"] == 30
    assert weights.summary["weight_after_clipping"] == pytest.approx(5)
    assert weights.frame()["propensity"].to_list() == [1.0, None]


def test_a_log_without_weighted_clicks_has_no_effective_sample_size() -> None:
    assert weigh([1.0, UNKNOWN], [0, 3]).summary["effective_sample_size"] is None


def counted(table: CountTable, propensity: Floats, options: WeightOptions) -> ClickWeights:
    impressions, clicks = table.sum_by_cell(table.impressions), table.sum_by_cell(table.clicks)
    return click_weights(cells_of(table.n_cells), propensity, impressions, clicks, options)


@pytest.mark.parametrize("self_normalize", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_pointwise_rows_are_those_of_a_loop_and_cells_without_a_propensity_leave_n(
    seed: int,
    self_normalize: bool,  # noqa: FBT001
) -> None:
    rng = np.random.default_rng(seed)
    impressions = rng.integers(0, 6, (12, 4)).astype(np.float64)
    clicks = rng.binomial(impressions.astype(np.int64), 0.3).astype(np.float64)
    theta = np.array([1.0, 0.4, UNKNOWN, 0.005])
    table = CountTable.from_dense(impressions, clicks)
    weights = counted(table, theta, WeightOptions(min_propensity=0.1, self_normalize=self_normalize))
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
    table = CountTable.from_dense(np.array([[0.0, 4.0]]), np.array([[0.0, 3.0]]))
    pairs = pl.DataFrame({"query": ["q"], "doc": [0], "signature": [0]})

    def parts(*, self_normalize: bool) -> list[float]:
        weights = counted(table, np.array([1.0, 0.5]), WeightOptions(self_normalize=self_normalize))
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
    table = CountTable.from_dense(impressions, clicks)
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
    table = CountTable.from_dense(impressions, clicks)
    positive = expected_attractions(table, theta, np.linspace(0, 1, 12))
    pairs = pairs_of(list(range(12)), ["q"] * 12, list(range(12)))
    rows = pointwise_rows(pairs, positive_and_shown(table, counted(table, theta, WeightOptions()), positive))

    shown = impressions[:, [0, 1, 3]].sum(axis=1)
    weight = rows["weight"].to_numpy().reshape(12, 2)
    assert weight[:, 0].tolist() == positive.tolist()
    np.testing.assert_allclose(weight.sum(axis=1), shown, rtol=1e-12)
    assert np.all(weight >= 0)
    assert np.all(positive >= clicks[:, [0, 1, 3]].sum(axis=1))


def test_an_examined_impression_without_a_click_did_not_attract_even_where_gamma_is_1() -> None:
    table = CountTable.from_dense(np.array([[4.0]]), np.array([[3.0]]))
    assert expected_attractions(table, np.array([1.0]), np.array([1.0])).tolist() == [3.0]


def test_expected_labels_hold_their_mean_at_gamma_wherever_the_document_stood() -> None:
    """Given the true gamma and theta: E[W+] = n gamma in every cell, for one impression as for many."""
    theta, gamma = np.array([1.0, 0.1]), 0.3
    for cell in range(2):
        shown = np.zeros((2, 2))
        shown[:, cell] = 1
        skip_and_click = CountTable.from_dense(shown, shown * np.array([[0.0], [1.0]]))
        label = expected_attractions(skip_and_click, theta, np.array([gamma, gamma]))
        click = theta[cell] * gamma
        assert (1 - click) * label[0] + click * label[1] == pytest.approx(gamma)


def test_rows_of_one_document_are_summed_before_the_clamp() -> None:
    """Shown once and clicked at theta 0.5, and three times without a click: W+ = 2 of 4, not 2 of 1 and 0 of 3."""
    table = CountTable.from_dense(np.array([[0.0, 1.0], [3.0, 0.0]]), np.array([[0.0, 1.0], [0.0, 0.0]]))
    pairs = pairs_of([0, 1, 1, 0], ["a", "a", "a", "b"], [1, 1, 2, 2])
    rows = pointwise_rows(pairs, positive_and_shown(table, counted(table, np.array([1.0, 0.5]), WeightOptions())))

    assert rows.rows() == [
        ("a", 1, 1, 2),
        ("a", 1, 0, 2),
        ("a", 2, 1, 0),
        ("a", 2, 0, 3),
        ("b", 2, 1, 2),
        ("b", 2, 0, 0),
    ]


def test_no_pair_gives_no_row() -> None:
    table = CountTable.from_dense(np.array([[1.0]]), np.array([[1.0]]))
    rows = pointwise_rows(
        pairs_of([], [], []), positive_and_shown(table, counted(table, np.array([1.0]), WeightOptions()))
    )
    assert rows.height == 0
    assert rows.schema["weight"] == pl.Float64


PAGES = pl.LazyFrame(
    [
        # session, query, doc, position, click, weight: rows mixed, a gap at 2 in session 1
        (1, "a", 7, 4, 1, 2.0),
        (0, "a", 7, 1, 1, 1.0),
        (1, "a", 8, 1, 0, 2.0),
        (0, "a", 9, 3, 1, 1.0),
        (1, "a", 9, 3, 1, 2.0),
        (0, "a", 8, 2, 0, 1.0),
        (2, "b", 1, 1, 0, 0.5),
        (2, "b", 2, 2, 1, 0.5),
    ],
    schema={
        "session": pl.Int64,
        "query": pl.String,
        "doc": pl.Int64,
        "position": pl.Int32,
        "click": pl.Int8,
        "weight": pl.Float64,
    },
    orient="row",
)


def table_weights(plan: StatisticsPlan, theta: dict[tuple[int, ...], float]) -> ClickWeights:
    names = plan.model.cell_columns
    cells = pl.DataFrame(list(theta), schema=dict.fromkeys(names, pl.Int32), orient="row")
    nothing = np.zeros(len(theta))
    return click_weights(cells, np.array(list(theta.values())), nothing, nothing, WeightOptions(min_propensity=0.1))


def test_session_rows_of_pbm_are_the_pages_with_the_weight_of_their_position() -> None:
    weights = table_weights(PBM, {(1,): 1.0, (2,): 0.5, (3,): 0.05, (4,): UNKNOWN})
    rows = session_rows(PAGES, PBM, weights).collect()

    assert rows.columns == ["session", "query", "doc", "position", "click", "propensity", "weight"]
    assert rows.rows() == [
        (0, "a", 7, 1, 1, 1.0, 1.0),
        (0, "a", 8, 2, 0, 0.5, 1.0),
        (0, "a", 9, 3, 1, 0.05, 10.0),
        (1, "a", 8, 1, 0, 1.0, 1.0),
        (1, "a", 9, 3, 1, 0.05, 10.0),
        # the click at position 4 has no propensity and leaves
        (2, "b", 1, 1, 0, 1.0, 1.0),
        (2, "b", 2, 2, 1, 0.5, 2.0),
    ]


def test_session_rows_of_ubm_weigh_by_the_last_click_of_their_own_page() -> None:
    weights = table_weights(
        UBM, {(1, 0): 1.0, (2, 0): 0.5, (2, 1): 0.8, (3, 0): 0.25, (3, 1): 0.4, (3, 2): 0.9, (4, 3): 0.2}
    )
    rows = session_rows(PAGES, UBM, weights).collect()

    assert rows.select("session", "position", "propensity", "weight").rows() == [
        (0, 1, 1.0, 1.0),
        (0, 2, 0.8, 1.0),
        (0, 3, 0.4, pytest.approx(2.5)),
        (1, 1, 1.0, 1.0),
        (1, 3, 0.25, 4.0),
        (1, 4, 0.2, pytest.approx(5.0)),
        (2, 1, 1.0, 1.0),
        (2, 2, 0.5, 2.0),
    ]


def test_unclicked_rows_in_a_cell_without_a_propensity_stay_with_weight_1() -> None:
    rows = session_rows(PAGES.filter(click=0), PBM, table_weights(PBM, {(1,): 1.0, (2,): UNKNOWN})).collect()

    assert rows.select("position", "propensity", "weight").rows() == [(2, None, 1.0), (1, 1.0, 1.0), (1, 1.0, 1.0)]


def test_weights_of_the_log_multiply_in_session_rows() -> None:
    plan = replace(PBM, weighted=True)
    rows = session_rows(PAGES, plan, table_weights(plan, {(1,): 1.0, (2,): 0.5, (3,): 0.2, (4,): 0.1})).collect()

    assert rows["weight"].to_list() == pytest.approx([1.0, 1.0, 5.0, 2.0, 10.0, 20.0, 0.5, 1.0])


def test_binned_positions_weigh_by_their_bin_and_are_shown_as_they_stood() -> None:
    plan = replace(PBM, position_bins=(1, 3))
    rows = session_rows(PAGES, plan, table_weights(plan, {(1,): 1.0, (3,): 0.5})).collect()

    assert rows["position"].to_list() == [1, 2, 3, 1, 3, 4, 1, 2]
    assert rows["weight"].to_list() == [1.0, 1.0, 2.0, 1.0, 2.0, 2.0, 1.0, 1.0]


def test_positions_beyond_the_largest_leave_session_rows() -> None:
    plan = replace(UBM, max_position=3)
    rows = session_rows(PAGES, plan, table_weights(plan, {(1, 0): 1.0})).collect()

    assert max(rows["position"].to_list()) <= 3


def evidence_of(simulation: Simulation, plan: StatisticsPlan) -> Evidence:
    log = simulation.log.group_by("query", "doc", "position").agg(
        impressions=pl.len().cast(pl.Int64), clicks=pl.col("click").cast(pl.Int64).sum()
    )
    return merge_parts([compress_part(log.sort(plan.keys), plan)], plan)


RANDOM_PAGES = SimulationOptions(
    n_sessions=40_000, n_queries=20, docs_per_query=8, n_positions=5, ranker_strength=0.0, seed=3
)


def test_with_the_true_theta_each_position_has_the_weighted_click_rate_of_position_1() -> None:
    """Documents are placed at random, so that every position shows the same attractiveness on average."""
    simulation = simulate(RANDOM_PAGES)
    theta = {(row["position"],): row["propensity"] for row in simulation.propensities.iter_rows(named=True)}
    rows = session_rows(simulation.log.lazy(), PBM, table_weights(PBM, theta)).collect()

    weighted_click = pl.col("click") * pl.col("weight")
    rates = rows.group_by("position").agg(rate=weighted_click.mean(), sd=weighted_click.std() / pl.len().sqrt())
    first = rates.filter(position=1).row(0, named=True)
    for row in rates.filter(pl.col("position") > 1).iter_rows(named=True):
        assert abs(row["rate"] - first["rate"]) < STANDARD_ERRORS * np.hypot(row["sd"], first["sd"])
    naive = simulation.log.group_by("position").agg(pl.col("click").mean()).sort("position")["click"].to_list()
    assert naive[0] > 4 * naive[4]


def test_with_the_true_theta_ubm_weights_also_level_the_positions() -> None:
    simulation = simulate(replace(RANDOM_PAGES, model="ubm"))
    theta = {
        (row["position"], row["previous_click"]): row["propensity"]
        for row in simulation.propensities.iter_rows(named=True)
    }
    rows = session_rows(simulation.log.lazy(), UBM, table_weights(UBM, theta)).collect()

    weighted_click = pl.col("click") * pl.col("weight")
    rates = rows.group_by("position").agg(rate=weighted_click.mean(), sd=weighted_click.std() / pl.len().sqrt())
    first = rates.filter(position=1).row(0, named=True)
    for row in rates.iter_rows(named=True):
        assert abs(row["rate"] - first["rate"]) <= STANDARD_ERRORS * np.hypot(row["sd"], first["sd"])


def test_pointwise_weights_of_a_whole_log_add_up_to_its_session_weights_pair_by_pair() -> None:
    simulation = simulate(replace(RANDOM_PAGES, n_sessions=500))
    evidence = evidence_of(simulation, PBM)
    theta = {(row["position"],): row["propensity"] for row in simulation.propensities.iter_rows(named=True)}
    weights = table_weights(PBM, theta)
    part = compress_part(
        simulation.log.group_by(PBM.keys)
        .agg(impressions=pl.len().cast(pl.Int64), clicks=pl.col("click").cast(pl.Int64).sum())
        .sort(PBM.keys),
        PBM,
    )
    pairs = part.pairs.with_columns(signature=evidence.signature_of_part[0][part.pairs["signature"].to_numpy()])
    pointwise = pointwise_rows(pairs, positive_and_shown(evidence.pair_signatures, weights))

    clicked: dict[tuple[int, int], float] = defaultdict(float)
    shown: dict[tuple[int, int], int] = defaultdict(int)
    for query, doc, position, click in simulation.log.select("query", "doc", "position", "click").iter_rows():
        clicked[query, doc] += click / theta[position,]
        shown[query, doc] += 1
    found = {(query, doc, label): weight for query, doc, label, weight in pointwise.iter_rows()}
    assert len(found) == 2 * len(shown)
    for (query, doc), positive in clicked.items():
        assert found[query, doc, 1] == pytest.approx(positive)
        assert found[query, doc, 0] == pytest.approx(max(shown[query, doc] - positive, 0.0), abs=1e-9)
