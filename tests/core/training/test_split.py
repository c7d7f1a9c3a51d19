"""The split into training and validation: the same ids on every day and every engine."""

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from posbias.core.training.weights import is_in_validation, split_hashes

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
LONG = "a query that is longer than thirty-two bytes"

# Printed by Spark 4.1: xxhash64(CAST(q AS STRING)), likewise of n, and xxhash64(q, CAST(n AS STRING), c).
TEXTS = {
    "shoes": -3538847001699881688,
    "": -7444071767201028348,
    "Ünïcode €": 1850663724133416996,
    LONG: 1649139182687228362,
}
NUMBERS = {7: -7434725489921472031, -1: -4220454218755575868, 2**40: 7439414083124039189, 0: -6091425354261976140}
SEVERAL = {
    ("shoes", 7, "a"): -6926533193448712879,
    ("", -1, "b"): 1937699213611815289,
    ("Ünïcode €", 2**40, None): -1188270964340747399,
    (LONG, 0, "x"): 7990842104230706384,
}


def test_the_hash_is_that_of_spark() -> None:
    assert split_hashes(pl.Series(list(TEXTS))) == list(TEXTS.values())
    assert split_hashes(pl.Series(list(NUMBERS))) == list(NUMBERS.values())
    assert split_hashes(pl.Series([text.encode() for text in TEXTS])) == list(TEXTS.values())
    columns = pl.DataFrame(list(SEVERAL), schema=["q", "n", "c"], orient="row")
    assert split_hashes(columns.to_struct("key")) == list(SEVERAL.values())


def test_an_id_is_set_apart_where_its_hash_modulo_a_million_is_below_the_share() -> None:
    """-3538847001699881688 mod 10^6 is 118312, as Spark's pmod has it, and not -881688."""
    assert is_in_validation(pl.Series(["shoes"]), 0.118312).to_list() == [False]
    assert is_in_validation(pl.Series(["shoes"]), 0.118313).to_list() == [True]


@SETTINGS
@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.floats(0, 0.99), st.floats(0, 0.99))
def test_a_larger_share_holds_a_smaller_one_and_equal_ids_stay_together(ids: list[int], one: float, two: float) -> None:
    smaller, larger = sorted((one, two))
    series = pl.Series(ids + ids, dtype=pl.Int64)
    in_smaller, in_larger = is_in_validation(series, smaller), is_in_validation(series, larger)

    assert not (in_smaller & ~in_larger).any()
    assert in_smaller[: len(ids)].to_list() == in_smaller[len(ids) :].to_list()
    assert len(in_larger) == 2 * len(ids)


@pytest.mark.parametrize("ids", [pl.Series(range(20_000)), pl.Series([f"query {n}" for n in range(20_000)])])
def test_the_share_is_what_was_asked_for_whatever_the_ids(ids: pl.Series) -> None:
    standard_error = (0.1 * 0.9 / len(ids)) ** 0.5
    assert abs(sum(is_in_validation(ids, 0.1)) / len(ids) - 0.1) < 4 * standard_error


def test_ids_may_be_bytes_that_are_no_text() -> None:
    assert len(set(split_hashes(pl.Series([b"\xff", b"\xfe\x00", b""])))) == 3
