"""Files in pieces: joined in order, whole, and with every number as it was."""

from io import BytesIO
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from posbias.io.training.format import join_pieces, open_pieces, piece_path, write_lines


def test_pieces_are_joined_in_the_order_of_their_parts_whatever_was_written_first(tmp_path: Path) -> None:
    for part in (100_000, 2, 0, 10):
        with open_pieces(tmp_path, part, "train.tsv", "train.tsv.weight") as (rows, weights):
            rows.write(f"row {part}\n".encode())
            weights.write(f"weight {part}\n".encode())
    join_pieces(tmp_path, "train.tsv", header="head\n")
    assert (tmp_path / "train.tsv").read_text() == "head\nrow 0\nrow 2\nrow 10\nrow 100000\n"
    join_pieces(tmp_path, "train.tsv.weight")
    assert (tmp_path / "train.tsv.weight").read_text() == "weight 0\nweight 2\nweight 10\nweight 100000\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.tsv", "train.tsv.weight"]


def test_where_the_system_cannot_copy_within_files_bytes_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.copy_file_range", refuse)
    for part in range(3):
        piece_path(tmp_path, "a", part).write_bytes(b"%d" % part * 100_000)
    join_pieces(tmp_path, "b", "a", "a", header="x")
    assert (tmp_path / "b").read_bytes() == b"x" + b"".join(b"%d" % part * 100_000 for part in range(3))


def test_a_file_without_pieces_is_empty(tmp_path: Path) -> None:
    join_pieces(tmp_path, "train.tsv")
    assert (tmp_path / "train.tsv").read_bytes() == b""


def test_numbers_read_back_as_they_were() -> None:
    random = np.random.default_rng(1)
    doubles = pl.Series("double", random.normal(size=5_000) * 10.0 ** random.integers(-300, 300, 5_000))
    singles = doubles.clip(-1e30, 1e30).cast(pl.Float32).alias("single")
    lines = BytesIO()
    write_lines(pl.DataFrame([doubles, singles]), lines)
    read = [line.split(b"\t") for line in lines.getvalue().splitlines()]
    np.testing.assert_array_equal([float(double) for double, _ in read], doubles.to_numpy())
    np.testing.assert_array_equal([np.float32(single) for _, single in read], singles.to_numpy())
