"""Statistics in an object store are what their manifest says while they are read, as those on disk are."""

from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

import polars as pl
import pytest

from posbias.io.counting import count as gathering
from posbias.io.log.sources import find_sources
from posbias.io.stores.segments import Each, Expected, check_contents
from posbias.io.stores.store import find_statistics

RunPosbias = Callable[..., CompletedProcess[str]]


class Server(Protocol):
    """What the tests ask of the server."""

    requests: list[tuple[str, str, str]]


class Bucket(Protocol):
    """What the tests ask of a bucket."""

    put: Callable[[str, bytes | Path], str]
    put_tree: Callable[[Path, str], str]


def assert_one_line(done: CompletedProcess[str], url: str, words: str) -> None:
    """Exit code 2 and one line that names the URL and says what is wrong."""
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"posbias: error: {url}: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def more(log: pl.DataFrame, tmp_path: Path, run_command: RunPosbias) -> Path:
    """Return other statistics on disk, of 800 impressions."""
    log.head(800).write_parquet(tmp_path / "more.parquet")
    assert run_command("collect", "more.parquet", "-o", "more").returncode == 0
    return tmp_path / "more"


@pytest.fixture
def statistics(bucket: Bucket, log_file: Path, tmp_path: Path, run_command: RunPosbias) -> str:
    """Return the URL of statistics."""
    assert run_command("collect", log_file, "-o", tmp_path / "statistics").returncode == 0
    return bucket.put_tree(tmp_path / "statistics", "statistics")


@pytest.mark.slow
def test_a_copy_is_checked_and_named_by_its_url(
    bucket: Bucket, statistics: str, tmp_path: Path, run_command: RunPosbias
) -> None:
    part = bytearray((tmp_path / "statistics" / "part-00000.parquet").read_bytes())
    part[200] ^= 1
    url = bucket.put("statistics/part-00000.parquet", bytes(part))
    for words in (("fit", statistics, "-o", tmp_path / "out"), ("collect", "--info", statistics)):
        assert_one_line(run_command(*words), url, "is damaged: its bytes are not those that were written")
    bucket.put("statistics/part-00000.parquet", bytes(part[:-1]))
    assert_one_line(run_command("collect", "--info", statistics), url, "is truncated")


@pytest.mark.slow
def test_statistics_that_are_replaced_in_the_store_while_they_are_read_are_an_error(
    bucket: Bucket,
    statistics: str,
    more: Path,
    tmp_path: Path,
    run_in_process: RunPosbias,
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    def check_and_replace(expected: Sequence[Expected], each: Each) -> None:
        check_contents(expected, each)
        bucket.put_tree(more, "statistics")

    monkeypatch.setattr(gathering, "check_contents", check_and_replace)
    done = run_in_process("fit", statistics, "-o", "out")
    assert_one_line(done, statistics, "was replaced while it was read. Run the command again.")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_statistics_are_read_as_they_are_each_time(bucket: Bucket, statistics: str, more: Path) -> None:
    (first,) = find_statistics([statistics])
    (again,) = find_statistics([statistics])
    bucket.put_tree(more, "statistics")
    (other,) = find_statistics([statistics])
    assert first.opened == again.opened
    assert (first.totals["impressions"], other.totals["impressions"]) == (1600, 800)


@pytest.mark.slow
def test_only_the_manifest_and_the_parts_are_copied(
    bucket: Bucket, server: Server, statistics: str, run_command: RunPosbias
) -> None:
    bucket.put("statistics/notes.txt", b"mine")
    bucket.put("statistics/more/part-00000.parquet", b"mine")
    server.requests.clear()
    assert run_command("collect", "--info", statistics).returncode == 0
    read = {path for method, path, _ in server.requests if method == "GET"}
    assert not [path for path in read if path.endswith(("notes.txt", "more/part-00000.parquet"))]


def test_the_digest_of_a_large_object_is_that_of_the_file(bucket: Bucket, tmp_path: Path) -> None:
    with (tmp_path / "log.csv").open("wb") as file:
        file.write(b"query,doc\n")
        file.truncate(70 << 20)
    url = bucket.put("log.csv", tmp_path / "log.csv")
    (here,), (there,) = find_sources([str(tmp_path / "log.csv")]), find_sources([url])
    assert here.digest() == there.digest()
