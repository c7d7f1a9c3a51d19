"""Members of units: which of them units have, and how clusters count them."""

import numpy as np

from posbias.core.arrays.count_table import Members

MEMBERS = Members(unit=np.array([2, 0, 2, 5, 1]), cluster=np.array([7, 3, 3, 7, 9]))


def test_among_some_units_their_members_stay_under_the_units_new_numbers() -> None:
    found = MEMBERS.among(np.array([1, 2, 4, 5]))  # unit 4 has none
    np.testing.assert_array_equal(found.unit, [1, 1, 3, 0])
    np.testing.assert_array_equal(found.cluster, [7, 3, 7, 9])


def test_among_no_units_there_are_no_members() -> None:
    assert len(MEMBERS.among(np.empty(0, np.int64)).unit) == 0


def test_by_cluster_the_members_of_each_keep_their_order() -> None:
    found = MEMBERS.by_cluster()
    np.testing.assert_array_equal(found.unit, [0, 2, 2, 5, 1])
    np.testing.assert_array_equal(found.cluster, [0, 0, 1, 1, 2])


def test_every_cluster_counts_its_members_of_each_unit() -> None:
    clusters, counts = Members(np.array([2, 0, 2, 2]), np.array([7, 3, 7, 3])).occurrences(4)
    np.testing.assert_array_equal(clusters, [3, 7])
    np.testing.assert_array_equal(counts.toarray(), [[1, 0, 1, 0], [0, 0, 2, 0]])
