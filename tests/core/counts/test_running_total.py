"""Counts that come in pieces add up to what they are together, and few of them wait."""

from collections.abc import Iterator, Sequence

import polars as pl
import pytest

from posbias.core.counts.counting_plan import merge_pieces


@pytest.mark.parametrize("n_keys", [3, 1_000])
def test_pieces_add_up_to_their_sum_and_no_more_than_the_total_waits(n_keys: int) -> None:
    waiting, largest = 0, 0

    def pieces() -> Iterator[pl.DataFrame]:
        nonlocal waiting
        for number in range(40):
            keys = (pl.int_range(10, eager=True) * 7 + number * 13) % n_keys
            piece = pl.DataFrame({"key": keys, "n": range(10)}).group_by("key").sum()
            waiting += piece.height
            yield piece

    def add_up(counts: Sequence[pl.DataFrame]) -> pl.DataFrame:
        nonlocal waiting, largest
        assert waiting == sum(piece.height for piece in counts)
        added = pl.concat(counts).group_by("key").sum().sort("key")
        largest = max(largest, waiting - 2 * counts[0].height)
        waiting = added.height
        return added

    found = merge_pieces(pieces(), add_up)

    waiting = 0
    assert found.equals(pl.concat(pieces()).group_by("key").sum().sort("key"))
    assert largest <= 10


def test_one_piece_is_its_own_sum() -> None:
    piece = pl.DataFrame({"key": [1], "n": [2]})
    assert merge_pieces([piece], pl.concat) is piece
