"""The number of a text is its place among the different ones."""

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.arrays.text_numbers import ranks_of


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.one_of(st.text(), st.sampled_from(["", "a", "a\0", "https://example.com/1", "https://example.com/2"])))
)
def test_ranks_are_those_of_the_sorted_texts(texts: list[str]) -> None:
    ranks, different = ranks_of(pl.Series("id", texts, pl.String))
    in_order = sorted(set(texts), key=str.encode)
    assert different.to_list() == in_order
    assert ranks.tolist() == [in_order.index(text) for text in texts]
