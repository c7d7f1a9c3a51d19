"""The layouts of pages, against loops over pages."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import PBM, UBM

from posbias.core.choices import Grouping
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.training.layout import ClickedGroupLayout, PairsLayout, SessionLayout, weighted_pages
from posbias.core.training.weights import ClickWeights, WeightOptions, click_weights

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
UNKNOWN = float("nan")


def sessions(
    impressions: pl.DataFrame, plan: StatisticsPlan, weights: ClickWeights, grouping: Grouping = "session"
) -> pl.DataFrame:
    return SessionLayout().rows(weighted_pages(impressions, plan, weights), grouping)[0]


PAGES = pl.DataFrame(
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
    rows = sessions(PAGES, PBM, weights)

    assert rows.columns == ["group", "session", "query", "doc", "position", "click", "propensity", "weight"]
    assert rows.rows() == [
        (0, 0, "a", 7, 1, 1, 1.0, 1.0),
        (0, 0, "a", 8, 2, 0, 0.5, 1.0),
        (0, 0, "a", 9, 3, 1, 0.05, 10.0),
        (1, 1, "a", 8, 1, 0, 1.0, 1.0),
        (1, 1, "a", 9, 3, 1, 0.05, 10.0),
        # the click at position 4 has no propensity and leaves
        (2, 2, "b", 1, 1, 0, 1.0, 1.0),
        (2, 2, "b", 2, 2, 1, 0.5, 2.0),
    ]


def test_session_rows_of_ubm_weigh_by_the_last_click_of_their_own_page() -> None:
    weights = table_weights(
        UBM, {(1, 0): 1.0, (2, 0): 0.5, (2, 1): 0.8, (3, 0): 0.25, (3, 1): 0.4, (3, 2): 0.9, (4, 3): 0.2}
    )
    rows = sessions(PAGES, UBM, weights)

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
    rows = sessions(PAGES.filter(click=0), PBM, table_weights(PBM, {(1,): 1.0, (2,): UNKNOWN}))

    assert rows.select("position", "propensity", "weight").rows() == [(2, None, 1.0), (1, 1.0, 1.0), (1, 1.0, 1.0)]


def test_weights_of_the_log_multiply_in_session_rows() -> None:
    plan = replace(PBM, weighted=True)
    rows = sessions(PAGES, plan, table_weights(plan, {(1,): 1.0, (2,): 0.5, (3,): 0.2, (4,): 0.1}))

    assert rows["weight"].to_list() == pytest.approx([1.0, 1.0, 5.0, 2.0, 10.0, 20.0, 0.5, 1.0])


def test_binned_positions_weigh_by_their_bin_and_are_shown_as_they_stood() -> None:
    plan = replace(PBM, position_bins=(1, 3))
    rows = sessions(PAGES, plan, table_weights(plan, {(1,): 1.0, (3,): 0.5}))

    assert rows["position"].to_list() == [1, 2, 3, 1, 3, 4, 1, 2]
    assert rows["weight"].to_list() == [1.0, 1.0, 2.0, 1.0, 2.0, 2.0, 1.0, 1.0]


def test_positions_beyond_the_largest_leave_session_rows() -> None:
    plan = replace(UBM, max_position=3)
    rows = sessions(PAGES, plan, table_weights(plan, {(1, 0): 1.0}))

    assert max(rows["position"].to_list()) <= 3


def test_grouped_by_query_all_pages_of_a_query_stand_together() -> None:
    mixed = PAGES.with_columns(query=pl.col("session").replace_strict({0: "b", 1: "a", 2: "b"}))
    rows = sessions(mixed, PBM, table_weights(PBM, {(k,): 0.5 for k in range(1, 5)}), "query")

    assert rows["query"].to_list() == ["a"] * 3 + ["b"] * 5
    assert rows["group"].to_list() == [0] * 3 + [1] * 5
    assert rows["session"].to_list() == [1] * 3 + [0] * 3 + [2] * 2


Pages = dict[int, tuple[int, list[tuple[int, int]]]]
"""By session: the query, and from top to bottom each document with whether it was clicked."""

page = st.tuples(
    st.integers(0, 1),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=4, unique_by=lambda shown: shown[0]),
)
pages = st.dictionaries(st.integers(0, 9), page, min_size=1, max_size=8)
THETA = {1: 1.0, 2: 0.5, 3: UNKNOWN, 4: 0.05}
WEIGHT = {1: 1.0, 2: 2.0, 4: 10.0}  # clipped at 0.1; position 3 has none


def weighted(pages: Pages) -> pl.DataFrame:
    rows = [
        (session, query, doc, position, click)
        for session, (query, shown) in pages.items()
        for position, (doc, click) in enumerate(shown, start=1)
    ]
    schema = {"session": pl.Int64, "query": pl.Int64, "doc": pl.Int64, "position": pl.Int32, "click": pl.Int8}
    log = pl.DataFrame(rows, schema=schema, orient="row")
    return weighted_pages(log, PBM, table_weights(PBM, {(k,): theta for k, theta in THETA.items()}))


def weighted_clicks(pages: Pages) -> list[tuple[int, int, int, tuple[int, ...], float]]:
    """Session, query, clicked document, candidates and weight of every click that has one."""
    return [
        (session, query, doc, tuple(sorted(other for other, _ in shown)), WEIGHT[position])
        for session, (query, shown) in pages.items()
        for position, (doc, click) in enumerate(shown, start=1)
        if click and position in WEIGHT
    ]


@SETTINGS
@given(pages)
@pytest.mark.slow
def test_a_clicked_group_is_a_query_a_clicked_document_and_its_candidates_with_the_weights_of_all_such_clicks(
    pages: Pages,
) -> None:
    expected: dict[tuple[int, int, tuple[int, ...]], list[float]] = defaultdict(list)
    for _, query, doc, candidates, weight in weighted_clicks(pages):
        expected[query, doc, candidates].append(weight)
    rows, _ = ClickedGroupLayout().rows(weighted(pages), "query")

    found: dict[tuple[int, int, tuple[int, ...]], tuple[float, int]] = {}
    for _, group in rows.group_by("group", maintain_order=True):
        (query,), (clicked,) = group["query"].unique(), group.filter(label=1)["doc"]
        (weight,), (clicks,) = group["weight"].unique(), group["clicks"].unique()
        found[query, clicked, tuple(group["doc"])] = weight, clicks
    assert found == {key: (sum(weights), len(weights)) for key, weights in expected.items()}
    assert rows["group"].unique().sort().to_list() == list(range(len(expected)))
    assert rows["group"].is_sorted()
    assert rows["query"].is_sorted()


@SETTINGS
@given(pages)
@pytest.mark.slow
def test_grouped_by_session_each_weighted_click_is_a_group_of_its_own(pages: Pages) -> None:
    rows, _ = ClickedGroupLayout().rows(weighted(pages), "session")

    found = sorted(
        (
            group["session"][0],
            group["query"][0],
            group.filter(label=1)["doc"].item(),
            tuple(group["doc"]),
            group["weight"][0],
        )
        for _, group in rows.group_by("group", maintain_order=True)
    )
    assert found == sorted(weighted_clicks(pages))
    assert rows["session"].is_sorted()
    assert set(rows["clicks"]) <= {1}


@SETTINGS
@given(pages)
@pytest.mark.slow
def test_preferences_are_the_pairs_of_the_clicked_groups_added_up_by_query(pages: Pages) -> None:
    expected: dict[tuple[int, int, int], float] = defaultdict(float)
    for _, query, doc, candidates, weight in weighted_clicks(pages):
        for other in set(candidates) - {doc}:
            expected[query, doc, other] += weight
    documents, preferences = PairsLayout().rows(weighted(pages), "query")

    assert {
        tuple(row[:3]): row[3] for row in preferences.select("query", "winner", "loser", "weight").rows()
    } == expected
    assert preferences.height == len(expected)
    shown = sorted({(query, doc) for query, page in pages.values() for doc, _ in page})
    assert documents.select("query", "doc").rows() == shown
    assert_rows_hold_the_documents(documents, preferences)


@SETTINGS
@given(pages)
@pytest.mark.slow
def test_grouped_by_session_preferences_stay_within_their_page(pages: Pages) -> None:
    documents, preferences = PairsLayout().rows(weighted(pages), "session")

    found = zip(
        documents["session"].gather(preferences["winner_row"]), *preferences["winner", "loser", "weight"], strict=True
    )
    assert sorted(found) == sorted(
        (session, doc, other, weight)
        for session, _, doc, candidates, weight in weighted_clicks(pages)
        for other in set(candidates) - {doc}
    )
    assert documents.height == sum(len(shown) for _, shown in pages.values())
    assert_rows_hold_the_documents(documents, preferences)


def assert_rows_hold_the_documents(documents: pl.DataFrame, preferences: pl.DataFrame) -> None:
    for role in ("winner", "loser"):
        rows = documents[preferences[f"{role}_row"]]
        assert rows["doc"].to_list() == preferences[role].to_list()
        assert rows["group"].to_list() == preferences["group"].to_list()
    assert documents["group"].is_sorted()
    assert preferences["group"].is_sorted()
    assert set(documents["label"]) == set(documents["weight"]) == {1}


def test_documents_of_several_columns_make_groups_too() -> None:
    pages = weighted({0: (0, [(1, 1), (2, 0)]), 1: (0, [(2, 1), (1, 0)])})
    keyed = pages.with_columns(doc=pl.struct(shop="query", item="doc"))

    rows, plain = (ClickedGroupLayout().rows(shown, "query")[0] for shown in (keyed, pages))
    assert rows.with_columns(pl.col("doc").struct.field("item").alias("doc")).equals(plain)
