"""A digest finds the same content under another name, and tells what is not the same apart."""

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from command_results import Run

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.log.sources import find_sources, query_suffix

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


# --- rows of a query --------------------------------------------------------------------------------------------

ALL = ("--sql", "SELECT * FROM log")
SOURCE = ("--input-format", "searches")
DAYS = ("2026-01-05", "2026-01-06")


@pytest.fixture
def searches(tmp_path: Path) -> list[Path]:
    """Write two files of searches, in which one page has another query than the other."""
    paths = [tmp_path / f"{name}.ndjson" for name in "ab"]
    for number, path in enumerate(paths):
        rows = [
            {
                "search_id": f"{number} {page}",
                "query": f"q{page % 2}",
                "results": docs,
                "clicked": docs[page % 3 :][: page % 4],
            }
            for page, docs in enumerate([["x", "y", "z"], ["z", "y", "x"], ["y", "z", "x"]] * 20)
        ]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return paths


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    """Write two logs of a day each."""
    drawn = simulate(SimulationOptions(n_sessions=300, n_queries=6, docs_per_query=6, n_positions=4, seed=3)).log
    paths = [tmp_path / f"{name}.parquet" for name in "cd"]
    for number, path in enumerate(paths):
        drawn.filter(pl.col("session") % 2 == number).write_parquet(path)
    return paths


@pytest.fixture
def add(run_in_process: Run) -> Callable[..., str]:
    """Return a function that counts files as a day into the store, and returns messages; with a code, it must fail."""

    def run(day: str, *words: object, code: int = 0) -> str:
        return run_in_process("collect", *words, "--date", day, "--into", "store", code=code).stderr

    return run


@pytest.mark.slow
@pytest.mark.parametrize("way", [ALL, SOURCE], ids=["--sql", "a source"])
def test_the_files_of_a_query_are_counted_as_one_day_alone(
    add: Callable[..., str], searches: list[Path], logs: list[Path], tmp_path: Path, way: tuple[str, str]
) -> None:
    files = searches if way is SOURCE else logs
    add(DAYS[0], *files, *way)

    assert "counted again, and replaced" in add(DAYS[0], *reversed(files), *way, "--threads", 1)
    copy = files[1].rename(tmp_path / f"renamed{files[1].suffix}")
    for again in ([*files[:1], copy], [copy, *files[:1]], [copy]):
        assert f"has counted {again[0]} as {DAYS[0]} already" in add(DAYS[1], *again, *way, code=2)


@pytest.mark.slow
def test_days_of_one_file_are_counted_by_queries_of_their_own(add: Callable[..., str], logs: list[Path]) -> None:
    queries = ("SELECT * FROM log WHERE session % 4 = 0", "SELECT * FROM log WHERE session % 4 = 2")
    for day, query in zip(DAYS, queries, strict=True):
        add(day, logs[0], "--sql", query)
    spaced = queries[0].replace(" ", "\n ").lower() + " -- of a day\n;"

    assert "has counted" in add("2026-01-07", logs[0], "--sql", spaced, code=2)
    assert "counted again, and replaced" in add(DAYS[0], logs[0], "--sql", spaced)


def test_a_query_is_known_by_its_words_and_by_the_letters_of_those_in_quotes() -> None:
    query = """SELECT s,"a  b" FROM log WHERE q='It''s' AND e <> E'\\'X' AND t >= $$A$$;"""
    alike = """select  s , "a  b" -- 'of'\nfrom log /* "all" */ where q = 'It''s' and e<>E'\\'X' AND t>=$$A$$ ; """
    assert query_suffix(alike) == query_suffix(query)
    for one, other in (("It", "it"), ("a  b", "a b"), ("'X", "'x"), ("$A", "$a"), ("s,", "s2,"), (">=", ">")):
        assert query_suffix(query.replace(one, other)) != query_suffix(query)


@pytest.mark.parametrize("whole_first", [True, False])
@pytest.mark.slow_after(1)
def test_a_file_that_was_counted_as_a_whole_has_no_other_day(
    add: Callable[..., str], logs: list[Path], *, whole_first: bool
) -> None:
    first, second = ((), ALL) if whole_first else (ALL, ())
    add(DAYS[0], logs[0], *first)
    assert f"has counted {logs[0]} as {DAYS[0]} already" in add(DAYS[1], logs[0], *second, code=2)


@pytest.mark.parametrize(("one", "other"), [(ALL, ALL), (ALL, ()), ((), ALL)])
def test_statistics_that_count_a_file_twice_do_not_merge(
    run_in_process: Run, logs: list[Path], one: tuple[str, ...], other: tuple[str, ...]
) -> None:
    for name, way in (("one", one), ("other", other)):
        run_in_process("collect", logs[0], *way, "-o", name, code=0)
    refused = run_in_process("collect", "one", "other", "-o", "both", code=2).stderr
    assert f"one and other both count the log {logs[0]}" in refused


@pytest.mark.slow
def test_empty_files_of_a_query_may_be_equal(run_in_process: Run, searches: list[Path], tmp_path: Path) -> None:
    for name in ("1.ndjson.gz", "2.ndjson.gz"):
        (tmp_path / name).write_bytes(gzip.compress(b""))
    files = [*searches, *tmp_path.glob("*.gz")]
    run_in_process("collect", *files, *SOURCE, "-o", "out", code=0)
