"""Merging parts of a log gives the signatures of the whole, wherever the parts lie and whatever cells they know."""

from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Floats, Hashes, Integers, compress, signature_keys
from posbias.core.counts import sufficient_statistics
from posbias.core.counts.sufficient_statistics import CompressedStrata, merge

SETTINGS = settings(deadline=None, derandomize=True)
CODES = np.array([7, 5, 11], np.uint64)
NOBODY = np.empty(0, np.int32)


@st.composite
def parts_of_a_log(draw: st.DrawFn) -> tuple[Floats, Floats, Integers]:
    """Impressions and clicks of some pairs in three cells, and the part that each pair lies in."""
    n_pairs = draw(st.integers(1, 12))
    counts = st.lists(st.sampled_from([0.0, 1.0, 2.0, 0.3]), min_size=3 * n_pairs, max_size=3 * n_pairs)
    impressions = np.array(draw(counts)).reshape(n_pairs, 3)
    clicks = np.minimum(np.array(draw(counts)).reshape(n_pairs, 3), impressions)
    part = np.array(draw(st.lists(st.integers(0, 3), min_size=n_pairs, max_size=n_pairs)))
    return impressions, clicks, part


def part_of(impressions: Floats, clicks: Floats) -> tuple[CompressedStrata, Integers, Integers]:
    """A part that knows only the cells it was shown in; those cells, and the signature of each pair."""
    cells = np.flatnonzero(impressions.any(axis=0))
    signatures, signature = compress(dense_table(impressions[:, cells], clicks[:, cells]), CODES[cells])
    keys: Hashes = signature_keys(signatures, CODES[cells])
    return CompressedStrata(signatures, keys, NOBODY, NOBODY), cells, signature


def set_range(patch: pytest.MonkeyPatch, units: int, of_a_part: int) -> None:
    patch.setattr(sufficient_statistics, "_UNITS_AT_ONCE", units)
    patch.setattr(sufficient_statistics, "_FEWEST_UNITS", units)
    patch.setattr(sufficient_statistics, "_UNITS_OF_A_PART", of_a_part)


@pytest.mark.slow
@SETTINGS
@given(parts_of_a_log(), st.sampled_from([1, 2, 1000]))
def test_merged_parts_are_the_whole_compressed_at_once(
    log: tuple[Floats, Floats, Integers], units_of_range: int
) -> None:
    impressions, clicks, number = log
    whole, signature = compress(dense_table(impressions, clicks), CODES)
    members = [np.flatnonzero(number == part) for part in np.unique(number)]
    parts = [part_of(impressions[pairs], clicks[pairs]) for pairs in members]
    with pytest.MonkeyPatch.context() as patch:
        set_range(patch, units_of_range, of_a_part=0)
        merged, new = merge([part for part, _, _ in parts], [cells for _, cells, _ in parts], CODES)
    for name in ("start", "cell", "impressions", "clicks", "multiplicity"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(whole, name))
    for pairs, (_, _, own), of_part in zip(members, parts, new, strict=True):
        np.testing.assert_array_equal(of_part[own], signature[pairs])


class CountedReads(CompressedStrata):
    """Signatures that note how often they are read."""

    reads: ClassVar[int] = 0

    def read(self, first: int, last: int) -> CountTable:
        """Note one more."""
        CountedReads.reads += 1
        return super().read(first, last)


@pytest.mark.parametrize(("of_a_part", "most"), [(3, 30), (1, 90)])
def test_how_often_a_part_is_read_does_not_grow_with_the_number_of_parts(
    monkeypatch: pytest.MonkeyPatch, of_a_part: int, most: int
) -> None:
    CountedReads.reads = 0
    impressions, clicks = np.array([[1.0, 1, 0], [2, 0, 1], [1, 0, 2]]), np.zeros((3, 3))
    part, cells, _ = part_of(impressions, clicks)
    counted = CountedReads(part.signatures, part.keys, NOBODY, NOBODY)
    set_range(monkeypatch, 1, of_a_part)
    merged, _ = merge([counted] * 30, [cells] * 30, CODES)
    assert merged.multiplicity.tolist() == [30, 30, 30]
    assert CountedReads.reads <= most + 30  # a range begins anew at the end
