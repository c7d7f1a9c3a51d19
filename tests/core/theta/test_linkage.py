"""Which cells are identified, and why the others are not."""

import numpy as np
import pytest
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Integers, compress
from posbias.core.errors import IdentifiabilityError
from posbias.core.theta.conditional import NO_CLICKS, NOT_LINKED, ONE_WAY, find_linkage


def table_of(*pairs: dict[int, tuple[float, float]], n_cells: int = 4) -> CountTable:
    """One unit per pair, given as {cell: (impressions, clicks)}."""
    counts = np.zeros((2, len(pairs), n_cells))
    for unit, pair in enumerate(pairs):
        for cell, values in pair.items():
            counts[:, unit, cell] = values
    return dense_table(counts[0], counts[1])


ONE_WAY_BRIDGE = table_of({0: (10, 4), 1: (10, 2)}, {2: (10, 3), 3: (10, 1)}, {1: (5, 2), 2: (5, 0)})


def test_groups_joined_by_clicks_in_one_direction_are_not_compared() -> None:
    linkage = find_linkage(ONE_WAY_BRIDGE)
    assert linkage.references.tolist() == [0]
    assert linkage.identified.tolist() == [True, True, False, False]
    assert linkage.reason == (None, None, ONE_WAY, ONE_WAY)
    assert linkage.component.tolist() == [0, 0, 2, 2]
    assert linkage.linking_pairs.tolist() == [1, 1, 1, 1]
    assert linkage.linking_clicks.tolist() == [6, 6, 4, 4]


def test_a_linked_cell_that_was_never_clicked_says_so_and_shows_its_counts() -> None:
    linkage = find_linkage(table_of({0: (10, 4), 1: (10, 2), 2: (6, 0)}, {0: (3, 1), 2: (1, 0)}, {3: (9, 5)}))
    assert linkage.reason == (None, None, NO_CLICKS, NOT_LINKED)
    assert linkage.linking_pairs.tolist() == [1, 1, 2, 0]
    assert linkage.linking_clicks.tolist() == [6, 6, 7, 0]


REASONS = {
    "a click back joins the groups": (
        table_of({0: (10, 4), 1: (10, 2)}, {2: (10, 3), 3: (10, 1)}, {1: (5, 2), 2: (5, 0)}, {1: (5, 0), 3: (5, 1)}),
        (None, None, None, None),
    ),
    "a cell that only pairs click which link nothing is without clicks": (
        table_of({0: (10, 4), 1: (10, 2), 2: (6, 0)}, {2: (9, 5)}),
        (None, None, NO_CLICKS, NOT_LINKED),
    ),
    "a cell never clicked and linked to unidentified cells only is linked one way": (
        table_of({0: (10, 4), 1: (10, 2)}, {1: (9, 1), 2: (9, 0)}, {2: (9, 1), 3: (9, 0)}),
        (None, None, ONE_WAY, ONE_WAY),
    ),
    "pairs without a click link nothing": (
        table_of({0: (1, 1), 1: (1, 1)}, {1: (99, 0), 2: (99, 0)}),
        (None, None, NOT_LINKED, NOT_LINKED),
    ),
}


@pytest.mark.parametrize(("table", "reason"), REASONS.values(), ids=REASONS)
def test_why_a_cell_is_not_identified(table: CountTable, reason: tuple[str | None, ...]) -> None:
    assert find_linkage(table).reason == reason


def test_the_reference_is_the_first_preferred_cell_that_is_linked() -> None:
    table = table_of({0: (9, 3)}, {1: (10, 4), 2: (10, 2)}, {2: (4, 1), 3: (4, 1)})
    assert find_linkage(table).references.tolist() == [1]
    assert find_linkage(table, preference=np.array([0, 3, 1, 2])).references.tolist() == [3]
    assert find_linkage(table).reason == (NOT_LINKED, None, None, None)


def test_a_preference_decides_between_components() -> None:
    table = table_of({0: (9, 3), 1: (9, 3)}, {2: (10, 4), 3: (10, 2)})
    assert find_linkage(table, preference=np.array([2, 3, 0, 1])).identified.tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("table", "preference", "message"),
    [
        (table_of({0: (10, 4)}, {1: (10, 2)}), None, "Position swaps would help"),
        (table_of({0: (10, 4), 1: (5, 0)}), None, "Position swaps would help"),
        (table_of({0: (10, 0), 1: (5, 0)}), None, "no click in any of its 2"),
        (table_of({0: (10, 3)}), None, r"1 cell\(s\)"),
        (table_of(), None, r"0 cell\(s\)"),
        (ONE_WAY_BRIDGE, np.array([], np.int64), "4 others can be compared"),
    ],
)
def test_a_log_that_links_nothing_says_what_was_found_and_what_would_help(
    table: CountTable, preference: Integers | None, message: str
) -> None:
    with pytest.raises(IdentifiabilityError, match=message):
        find_linkage(table, preference=preference)


def test_where_nothing_moves_within_a_version_swaps_are_advised_and_not_features() -> None:
    with pytest.raises(IdentifiabilityError, match=r"same query and version, .* --method randomized") as error:
        find_linkage(table_of({0: (10, 4)}, {1: (10, 2)}), within=["version"])
    assert "--method features" not in str(error.value)


def test_compression_changes_no_linkage() -> None:
    rng = np.random.default_rng(3)
    impressions = rng.integers(0, 2, (60, 4)).astype(np.float64)
    clicks = impressions * (rng.random((60, 4)) < 0.2)
    table = dense_table(impressions, clicks)
    whole, compressed = find_linkage(table), find_linkage(compress(table)[0])
    assert whole.reason == compressed.reason
    np.testing.assert_array_equal(whole.linking_pairs, compressed.linking_pairs)
    np.testing.assert_array_equal(whole.linking_clicks, compressed.linking_clicks)


def test_reachability_agrees_with_warshalls_closure() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        impressions = (rng.random((7, 6)) < 0.3).astype(np.float64)
        clicks = impressions * (rng.random((7, 6)) < 0.5)
        reach = np.eye(6, dtype=bool) | (((impressions > 0).T.astype(int) @ (clicks > 0).astype(int)) > 0)
        for k in range(6):
            reach |= np.outer(reach[:, k], reach[k])
        together = reach & reach.T
        if not (together.sum(axis=1) > 1).any():
            continue
        linkage = find_linkage(dense_table(impressions, clicks))
        np.testing.assert_array_equal(linkage.identified, together[linkage.references[0]])


def test_each_context_has_a_reference_of_its_own() -> None:
    impressions = np.array([[5, 5, 0, 0, 0], [0, 0, 5, 5, 5], [0, 0, 5, 5, 5.0]])
    clicks = np.array([[2, 1, 0, 0, 0], [0, 0, 0, 2, 1], [0, 0, 0, 1, 1.0]])
    linkage = find_linkage(dense_table(impressions, clicks), np.array([0, 0, 1, 1, 1]))

    assert linkage.reference_of.tolist() == [0, 0, 3, 3, 3]
    assert linkage.references.tolist() == [0, 3]
    assert linkage.identified.tolist() == [True, True, False, True, True]


def test_a_context_in_which_nothing_is_linked_has_no_identified_cell() -> None:
    impressions = np.array([[5, 5, 0, 0], [0, 0, 5, 5.0]])
    clicks = np.array([[2, 1, 0, 0], [0, 0, 0, 0.0]])
    linkage = find_linkage(dense_table(impressions, clicks), np.array([0, 0, 1, 1]))

    assert linkage.references.tolist() == [0]
    assert linkage.identified.tolist() == [True, True, False, False]


def test_groups_of_comparable_cells_are_named_the_largest_first() -> None:
    impressions = np.array([[9, 9, 0, 0, 0, 0], [0, 0, 9, 9, 9, 0], [0, 0, 0, 0, 0, 9.0]])
    table = dense_table(impressions, impressions / 3)

    assert [cells.tolist() for cells in find_linkage(table).comparable()] == [[2, 3, 4], [0, 1]]
