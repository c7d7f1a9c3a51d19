"""A kept frame is what it was, wherever it lies."""

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from posbias.io.places.temporary import keep

NUMBERS = pl.DataFrame({"query": [2**60, -1, 0], "weight": [0.5, float("nan"), 2.0], "label": [1, 0, 1]}).with_columns(
    pl.col("label").cast(pl.Int8)
)
TEXTS = NUMBERS.with_columns(doc=pl.Series(["a", "ä", None]))
CHUNKS = pl.concat([NUMBERS, NUMBERS[:0], NUMBERS], rechunk=False)


@pytest.mark.parametrize("frame", [NUMBERS, TEXTS, CHUNKS, NUMBERS[:0]], ids=["numbers", "texts", "chunks", "empty"])
@pytest.mark.parametrize("quickly", [True, False])
@pytest.mark.parametrize("on_disk", [True, False])
def test_all_of_it_and_parts_of_it(frame: pl.DataFrame, *, quickly: bool, on_disk: bool, tmp_path: Path) -> None:
    kept = keep(frame, tmp_path if on_disk else None, "rows", quickly=quickly)

    assert_frame_equal(kept.load(), frame)
    assert_frame_equal(kept.scan().collect(), frame)
    assert_frame_equal(kept.slice(1, 1), frame.slice(1, 1))
    assert kept.in_memory != on_disk
    assert len(list(tmp_path.iterdir())) == on_disk


def test_what_was_read_stays_when_its_file_is_gone(tmp_path: Path) -> None:
    loaded = keep(NUMBERS, tmp_path, "rows", quickly=True).load()
    for file in tmp_path.iterdir():
        file.unlink()

    assert_frame_equal(loaded, NUMBERS)


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise KeyError

    monkeypatch.setattr(pl.DataFrame, "write_parquet", fails)
    with pytest.raises(KeyError):
        keep(TEXTS, tmp_path, "rows")

    assert not list(tmp_path.iterdir())
