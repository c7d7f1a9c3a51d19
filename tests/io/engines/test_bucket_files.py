"""Rows lie in the file of their bucket in the order in which they came, however many are sorted at once."""

import resource
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from posbias.io.engines.buckets import BUCKET, BucketFiles, can_be_open

N_BUCKETS = 7


def rows(together: int) -> pl.DataFrame:
    """Rows of which so many that stand together are of one bucket."""
    bucket = ((pl.int_range(1_000) // together).hash(3) % (N_BUCKETS - 1)).cast(pl.UInt16).alias(BUCKET)
    return pl.select(number=pl.int_range(1_000), word=pl.format("w{}", pl.int_range(1_000))).with_columns(bucket)


def write(folder: Path, shown: pl.DataFrame, block: int = 64, at_once: int = 1) -> tuple[BucketFiles, list[int], int]:
    files = BucketFiles(folder, N_BUCKETS, {"number": 0, "word": 3})
    frames = [shown.head(300).lazy(), shown.slice(300).lazy()]
    height, tallied = files.write(frames, block, at_once, lambda some: int(some["number"].sum()))
    return files, height.tolist(), tallied


@pytest.mark.parametrize("together", [1, 2, 10, 1_000])
@pytest.mark.parametrize(("block", "at_once"), [(10_000, 1), (10_000, 3), (64, 1), (64, 3)])
def test_a_bucket_holds_its_rows_in_their_order(tmp_path: Path, block: int, at_once: int, together: int) -> None:
    shown = rows(together)
    files, height, tallied = write(tmp_path / "files", shown, block, at_once)
    assert tallied == shown["number"].sum()
    for bucket in range(N_BUCKETS):
        wanted = shown.filter(pl.col(BUCKET) == bucket).select("number", *(["word"] if bucket >= 3 else []))
        assert height[bucket] == wanted.height
        assert files.path(bucket).exists() == (wanted.height > 0)
        if wanted.height:
            assert_frame_equal(pl.scan_ipc(files.path(bucket)).collect(), wanted)


@pytest.mark.parametrize("most", [1, 30, 64, 100_000])
@pytest.mark.parametrize(("column", "buckets"), [("number", (0, 4)), ("word", (4,)), ("number", ())])
def test_a_column_of_some_buckets_is_read_in_pieces(
    tmp_path: Path, column: str, buckets: tuple[int, ...], most: int
) -> None:
    shown = rows(2)
    files, _, _ = write(tmp_path / "files", shown)
    wanted = [row for bucket in buckets for row in shown.filter(pl.col(BUCKET) == bucket)[column]]
    pieces = list(files.pieces(column, buckets, most))
    assert [row for piece in pieces for row in piece] == wanted
    assert all(len(piece) == most for piece in pieces[:-1])
    assert all(len(piece) <= most for piece in pieces)


def test_more_files_than_the_system_lets_be_open_are_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1_024, 4_096))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert can_be_open(500)
    assert not asked
    assert can_be_open(3_000)
    assert [limits[1] for limits in asked] == [4_096]
    assert 3_000 < asked[0][0] <= 4_096
    assert not can_be_open(4_096)
