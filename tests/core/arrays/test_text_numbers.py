"""The number of a text is its place among the different ones."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.arrays import packing
from posbias.core.arrays.packing import dense_ranks


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.one_of(st.text(), st.sampled_from(["", "a", "a\0", "https://example.com/1", "https://example.com/2"])))
)
def test_ranks_are_those_of_the_sorted_texts(texts: list[str]) -> None:
    ranks, different = dense_ranks(pl.Series("id", texts, pl.String))
    in_order = sorted(set(texts), key=str.encode)
    assert different.to_list() == in_order
    assert ranks.tolist() == [in_order.index(text) for text in texts]


@pytest.mark.parametrize("together", [1, 5])
def test_texts_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(packing, "first_equal_index", lambda hashes: np.zeros(len(hashes), np.int64))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    texts = [f"doc {number % 7}" for number in range(60) for _ in range(together)]
    ranks, different = dense_ranks(pl.Series("id", texts, pl.String))
    assert different.to_list() == sorted(set(texts))
    assert [different[rank] for rank in ranks.tolist()] == texts


@pytest.mark.parametrize("together", [3, 4, 50])
def test_texts_that_stand_together_have_the_ranks_of_each(together: int) -> None:
    texts = [f"query {number * 7 % 11}" for number in range(40) for _ in range(together)]
    ranks, different = dense_ranks(pl.Series("id", texts, pl.String))
    assert [different[rank] for rank in ranks.tolist()] == texts


def test_texts_have_their_ranks_where_polars_counts_rows_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As its builds for older processors, and for more than 4 billion rows, do."""
    counted = pl.Series.arg_true
    monkeypatch.setattr(pl.Series, "arg_true", lambda series: counted(series).cast(pl.UInt64))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownMemberType]
    ranks, different = dense_ranks(pl.Series("id", ["b"] * 9 + ["a"] * 9))
    assert (ranks.tolist(), different.to_list()) == ([1] * 9 + [0] * 9, ["a", "b"])
