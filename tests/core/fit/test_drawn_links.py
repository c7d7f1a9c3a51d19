"""Links between positions: each pair once, contexts together."""

import numpy as np
import polars as pl

from posbias.core.fit.plot_data import MOST_LINKED_POSITIONS, links_between


def test_contexts_are_added_up_and_each_pair_stands_once() -> None:
    positions = pl.Series([1, 1, 2, 2, 3, 3])
    shared = np.zeros((6, 6))
    shared[0, 2] = shared[2, 0] = 5.0
    shared[1, 3] = shared[3, 1] = 7.0
    shared[2, 4] = shared[4, 2] = 1.0
    found = links_between(positions, shared)

    assert found.rows() == [(1, 2, 12.0), (1, 3, 0.0), (2, 3, 1.0)]


def test_of_many_positions_the_first_are_looked_at() -> None:
    n = 3 * MOST_LINKED_POSITIONS
    found = links_between(pl.Series(range(1, n + 1)), np.full((n, n), np.nan))

    assert found["other_position"].max() == MOST_LINKED_POSITIONS
    assert found.height == MOST_LINKED_POSITIONS * (MOST_LINKED_POSITIONS - 1) // 2
    assert found["clicks"].sum() == 0
