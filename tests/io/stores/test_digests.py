"""A digest finds the same content under another name, and tells what is not the same apart."""

import os
from pathlib import Path

import pytest

from posbias.io.log.sources import find_sources

MEBIBYTE = 1 << 20


def digest(path: Path) -> str:
    (source,) = find_sources([str(path)])
    return source.digest()


def write(path: Path, size: int, *changed: int) -> Path:
    """A file of a size, with a few bytes changed."""
    with path.open("wb") as file:
        file.write(b"query,doc\n")
        file.truncate(size)
        for place in changed:
            file.seek(place)
            file.write(b"x")
    return path


def test_a_digest_depends_on_content_alone(tmp_path: Path) -> None:
    one, other = write(tmp_path / "one.csv", 5 * MEBIBYTE), write(tmp_path / "other.csv", 5 * MEBIBYTE)
    os.utime(other, (0, 0))
    assert digest(one) == digest(other)
    assert digest(one) != digest(write(tmp_path / "longer.csv", 5 * MEBIBYTE + 1))


@pytest.mark.parametrize("size", [100, MEBIBYTE, 3 * MEBIBYTE + 7, 20 * MEBIBYTE, 64 * MEBIBYTE])
def test_every_byte_up_to_64_mebibytes_counts(tmp_path: Path, size: int) -> None:
    whole = digest(write(tmp_path / "log.csv", size))
    places = {
        size // 3,
        size // 2,
        size - 1,
        *(place for place in (MEBIBYTE, size - MEBIBYTE - 1) if 10 < place < size),
    }
    for place in places:
        assert digest(write(tmp_path / "log.csv", size, place)) != whole


def test_of_a_larger_file_blocks_at_equal_distances_count(tmp_path: Path) -> None:
    size = 640 * MEBIBYTE
    whole = digest(write(tmp_path / "log.csv", size))
    assert digest(write(tmp_path / "log.csv", size, size - 1)) != whole
    assert (
        digest(write(tmp_path / "log.csv", size, size // 2, *range(size // 2, size // 2 + 11 * MEBIBYTE, 4096)))
        != whole
    )
    assert digest(write(tmp_path / "log.csv", size, 5 * MEBIBYTE)) == whole


def test_a_digest_of_an_enormous_file_reads_little_of_it(tmp_path: Path) -> None:
    size = 10**11
    whole = digest(write(tmp_path / "log.csv", size))
    assert whole.startswith(f"{size}-")
    assert digest(write(tmp_path / "log.csv", size, size - 1)) != whole
