"""Compression keeps every number: the table can be rebuilt, whatever the hash does."""

import numpy as np
import pytest
from dense import dense_counts
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from small_logs import dense_table

from posbias.core.arrays import count_table
from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, compress, first_equal_index

SETTINGS = settings(deadline=None, derandomize=True)
COUNTS = st.sampled_from([0.0, 1.0, 2.0, 0.1, 0.1 + 0.2, 0.3, 1e12])


@st.composite
def tables(draw: st.DrawFn, n_cells: int = 3) -> CountTable:
    n_units = draw(st.integers(0, 12))
    impressions = draw(hnp.arrays(np.float64, (n_units, n_cells), elements=COUNTS))
    clicks = draw(hnp.arrays(np.float64, (n_units, n_cells), elements=COUNTS))
    return dense_table(impressions, np.minimum(clicks, impressions))


def dense(table: CountTable) -> Floats:
    """Impressions and clicks, shape (J, 2 K)."""
    return np.hstack(dense_counts(table))


def restored(compressed: CountTable, signature: Integers) -> Floats:
    return dense(compressed)[signature]


@SETTINGS
@given(tables())
@pytest.mark.slow
def test_compression_keeps_every_count_and_leaves_no_two_signatures_equal(table: CountTable) -> None:
    compressed, signature = compress(table)
    np.testing.assert_array_equal(restored(compressed, signature), dense(table))
    assert len(np.unique(dense(compressed), axis=0)) == compressed.n_units
    np.testing.assert_array_equal(compressed.multiplicity, np.bincount(signature, minlength=compressed.n_units))


def test_units_that_differ_in_what_is_beside_them_stay_apart() -> None:
    table, beside = dense_table(np.ones((4, 2)), np.zeros((4, 2))), np.array([1.0, 2.0, 1.0, 2.0])
    compressed, signature = compress(table, beside=[beside, beside[::-1].copy()])
    assert signature[0] == signature[2] != signature[1] == signature[3]
    np.testing.assert_array_equal(compressed.multiplicity, [2, 2])


def test_last_bits_of_weighted_counts_do_not_change_the_order_of_signatures() -> None:
    rng = np.random.default_rng(0)
    impressions = rng.integers(1, 9, (2000, 3)) * 0.9 ** rng.integers(0, 99, (2000, 3))
    table = dense_table(impressions, impressions / 3)
    moved = dense_table(np.nextafter(impressions, rng.choice([0.0, 1e9], impressions.shape)), impressions / 3)
    orders = [compress(counts)[1].tolist() for counts in (table, moved)]
    assert orders[0] == orders[1]
    assert len(set(orders[0])) == 2000


@SETTINGS
@given(tables(), st.randoms(use_true_random=False))
@pytest.mark.slow
def test_signatures_do_not_depend_on_the_order_of_units(table: CountTable, random: st.DataObject) -> None:
    order = np.arange(table.n_units)
    random.shuffle(order)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    compressed, signature = compress(table)
    other, other_signature = compress(table.take(order))
    np.testing.assert_array_equal(dense(other), dense(compressed))
    np.testing.assert_array_equal(other.multiplicity, compressed.multiplicity)
    np.testing.assert_array_equal(other_signature, signature[order])


@pytest.mark.slow
@SETTINGS
@given(table=tables())
def test_compression_stays_exact_when_every_hash_collides(table: CountTable) -> None:
    def same_for_all(of: CountTable, *_: object) -> np.typing.NDArray[np.uint64]:
        return np.zeros(of.n_units, np.uint64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count_table, "_hash_entries", same_for_all)
        compressed, signature = compress(table)
    np.testing.assert_array_equal(restored(compressed, signature), dense(table))
    assert compressed.n_units == compress(table)[0].n_units


@pytest.mark.slow
@SETTINGS
@given(tables())
def test_signatures_that_link_cells_stand_first(table: CountTable) -> None:
    links = compress(table)[0].links
    assert links.tolist() == sorted(links.tolist(), reverse=True)


@SETTINGS
@given(tables(), st.integers(1, 5))
def test_blocks_hold_every_unit_once_and_in_order(table: CountTable, entries: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(count_table, "_BLOCK", entries)
        blocks = list(table.blocks())
    rows = [np.empty((0, 2 * table.n_cells)), *(dense(block) for _, block in blocks)]
    np.testing.assert_array_equal(np.concatenate(rows), dense(table))
    for units, block in blocks:
        np.testing.assert_array_equal(block.multiplicity, table.multiplicity[units])
        assert block.n_entries <= entries or block.n_units == 1


def test_a_unit_without_entries_sums_to_zero_and_leaves_its_neighbours_alone() -> None:
    table = dense_table(np.array([[1.0, 2.0], [0.0, 0.0], [4.0, 0.0], [0.0, 0.0]]), np.zeros((4, 2)))
    np.testing.assert_array_equal(table.sum_by_unit(table.impressions), [3.0, 0.0, 4.0, 0.0])
    np.testing.assert_array_equal(table.max_by_unit(table.impressions), [2.0, -np.inf, 4.0, -np.inf])
    np.testing.assert_array_equal(table.sum_by_cell(table.impressions), [5.0, 2.0])
    np.testing.assert_array_equal(table.spread(np.array([7.0, 8.0, 9.0, 0.0])), [7.0, 7.0, 9.0])


@pytest.mark.slow
@SETTINGS
@given(tables(), hnp.arrays(np.bool_, 3))
def test_restricting_cells_drops_entries_and_keeps_units(table: CountTable, kept: Flags) -> None:
    inside = dense(table.only_cells(kept))
    np.testing.assert_array_equal(inside, dense(table) * np.tile(kept, 2))


HASHES = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(0, 3))


@SETTINGS
@given(st.lists(HASHES))
def test_the_first_with_the_same_hash_is_found(hashes: list[int]) -> None:
    first = first_equal_index(np.array(hashes, np.uint64))
    assert first.tolist() == [hashes.index(value) for value in hashes]


def test_the_first_with_the_same_hash_is_found_among_many() -> None:
    hashes = np.random.default_rng(3).integers(0, 30_000, 50_000).astype(np.uint64) << np.uint64(40)
    _, wanted, number = np.unique(hashes, return_index=True, return_inverse=True)
    np.testing.assert_array_equal(first_equal_index(hashes), wanted[number])
