"""A table that is written part by part is whole, in order, and what stops it is told."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import cast

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from posbias.io.results.tables import write_in_one_file

PARTS = [pl.DataFrame({"doc": [f"d{number}"] * 3, "n": [number, None, number]}) for number in range(5)]


def test_parts_are_written_in_their_order_one_at_each_step(tmp_path: Path) -> None:
    steps = list(write_in_one_file(PARTS, tmp_path / "table.parquet"))
    assert len(steps) == len(PARTS)
    assert_frame_equal(pl.read_parquet(tmp_path / "table.parquet"), pl.concat(PARTS))


def test_without_parts_there_is_no_file(tmp_path: Path) -> None:
    assert not list(write_in_one_file([], tmp_path / "table.parquet"))
    assert not list(tmp_path.iterdir())


def test_an_error_of_a_part_is_raised(tmp_path: Path) -> None:
    def parts() -> Iterator[pl.DataFrame]:
        yield from PARTS[:2]
        raise KeyError("of a part")

    with pytest.raises(KeyError, match="of a part"):
        list(write_in_one_file(parts(), tmp_path / "table.parquet"))


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing"):
        list(write_in_one_file(PARTS, tmp_path / "missing" / "table.parquet"))


def test_who_stops_in_the_middle_does_not_wait_for_ever(tmp_path: Path) -> None:
    writing = cast("Generator[None]", write_in_one_file(PARTS, tmp_path / "table.parquet"))
    next(writing)
    writing.close()
