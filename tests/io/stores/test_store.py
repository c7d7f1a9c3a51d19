"""Statistics grow day by day: merging adds up whatever the order, costs what is new, and notices what is not whole."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Run, invoke, manifest_of

from posbias.core.errors import StatisticsError
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.counting.merge import worth_adding_up
from posbias.io.log.clicks import Rows
from posbias.io.results.manifest import checksum_of_content
from posbias.io.stores.metadata import VERSION, Segment
from posbias.io.stores.store import find_statistics

Collect = Callable[..., pl.DataFrame]

DAYS = ("2026-01-05", "2026-01-06", "2026-01-09", "2026-01-10", "2026-01-11")
PLANS = {
    "pooled": ("--timestamp", "none"),
    "by day": ("--timestamp", "day"),
    "weighted": ("--weight-column", "weight", "--timestamp", "none"),
    "ubm": ("--model", "ubm", "--timestamp", "none"),
}
ORDERS = {
    "at once": [[("a", "b", "c", "d", "e"), "out"]],
    "backwards": [[("e", "d", "c", "b", "a"), "out"]],
    "one by one": [[("a", "b"), "ab"], [("ab", "c"), "abc"], [("abc", "d"), "abcd"], [("abcd", "e"), "out"]],
    "in groups": [[("e", "c"), "ec"], [("a", "d", "b"), "adb"], [("ec", "adb"), "out"]],
}
FACTOR = 0.75


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Five days of 60 pages, with a weight that adds up exactly."""
    frame = simulate(SimulationOptions(n_sessions=300, n_queries=8, docs_per_query=6, n_positions=4, seed=3)).log
    day = pl.col("session") % len(DAYS)
    return frame.with_columns(
        number=day, day=day.replace_strict(list(range(len(DAYS))), DAYS), weight=pl.col("session") % 3 + 0.5
    )


@pytest.fixture
def logs(log: pl.DataFrame, tmp_path: Path) -> None:
    """The log in one file, and each day in one of its own: a.parquet and so on."""
    log.write_parquet(tmp_path / "log.parquet")
    for number, name in enumerate("abcde"):
        log.filter(number=number).write_parquet(tmp_path / f"{name}.parquet")


@pytest.fixture
def collect(run_in_process: Run, tmp_path: Path) -> Collect:
    """Return a function that collects into the last name and returns the counts, equal keys added up."""

    def run(*words: object) -> pl.DataFrame:
        run_in_process("collect", *map(str, words[:-1]), "-o", str(words[-1]), "--force", code=0)
        return counts_in(tmp_path / str(words[-1]))

    return run


@pytest.fixture(scope="module")
def counted(log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    """Return a function that gives the statistics of the log (`whole`), its fit, and each day's, collected once."""

    @cache
    def of(plan: tuple[str, ...]) -> Path:
        place = tmp_path_factory.mktemp("counted")
        frames = {"whole": log} | {name: log.filter(number=number) for number, name in enumerate("abcde")}
        for name, frame in frames.items():
            frame.write_parquet(place / f"{name}.parquet")
            invoke("collect", place / f"{name}.parquet", *plan, "-o", place / name, code=(0, 1))
        invoke("fit", place / "whole", "-o", place / "fit-whole", "--no-compare", code=(0, 1))
        return place

    return of


def counts_in(statistics: Path) -> pl.DataFrame:
    """The counts of statistics, equal keys added up."""
    rows = pl.read_parquet(statistics / "*.parquet")
    keys = [name for name in rows.columns if name not in ("impressions", "clicks")]
    return rows.group_by(keys).agg(pl.col("impressions", "clicks").sum()).sort(keys)


def part_inodes(folder: Path) -> set[int]:
    return {path.stat().st_ino for path in folder.glob("part-*.parquet")}


@pytest.mark.parametrize(
    ("plan", "order"),
    [*(("by day", order) for order in ORDERS), *((plan, "in groups") for plan in PLANS if plan != "by day")],
)
@pytest.mark.slow
def test_days_merged_in_any_order_hold_the_counts_of_the_whole_log(
    collect: Collect,
    counted: Callable[[tuple[str, ...]], Path],
    plan: str,
    order: str,
    run_in_process: Run,
    tmp_path: Path,
) -> None:
    place = counted(PLANS[plan])
    days = {name: str(place / name) for name in "abcde"}
    merged = [collect(*(days.get(name, name) for name in names), into) for names, into in ORDERS[order]]
    assert merged[-1].equals(counts_in(place / "whole"))

    run_in_process("fit", "out", "-o", "fit-out", "--no-compare", code=(0, 1))
    for table in ("propensities.parquet", "attractiveness.parquet"):
        assert (tmp_path / "fit-out" / table).read_bytes() == (place / "fit-whole" / table).read_bytes()


# --- the cost of a day ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("logs")
@pytest.mark.slow
def test_adding_a_day_writes_none_of_the_old_files_again(collect: Collect, tmp_path: Path) -> None:
    for name, day in zip("abcde", DAYS, strict=True):
        collect(f"{name}.parquet", "--date", day, name)
    collect("a", "b", "c", "d", "year")
    old = part_inodes(tmp_path / "year")
    collect("year", "e", "year")

    assert len(old) == 4
    assert part_inodes(tmp_path / "year") == old | part_inodes(tmp_path / "e")


@pytest.mark.usefixtures("logs")
def test_where_files_cannot_be_linked_they_are_copied(
    collect: Collect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [collect(f"{name}.parquet", "--date", day, name) for name, day in zip("ab", DAYS, strict=False)]

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr("posbias.io.stores.store.os.link", refused)
    merged = collect("a", "b", "year")

    assert merged.equals(pl.concat(days).sort(merged.columns[:-2]))
    assert part_inodes(tmp_path / "year").isdisjoint(part_inodes(tmp_path / "a"))


@pytest.mark.slow
@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize(("small", "expected"), [(1 << 20, [1, 1, 1, 1]), (0, [2, 3, 4, 1])], ids=["small", "large"])
def test_without_days_segments_are_added_up_at_once_in_small_stores_and_now_and_then_in_large_ones(
    collect: Collect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, expected: list[int]
) -> None:
    monkeypatch.setattr("posbias.io.counting.merge._SMALL", small)
    for name in "abcde":
        collect(f"{name}.parquet", *PLANS["pooled"], name)
    segments = list[int]()
    collect("a", "store")
    for name in "bcde":
        collect("store", name, "store")
        segments.append(len(manifest_of(tmp_path / "store")["segments"]))

    assert segments == expected


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_a_year_of_days_costs_a_logarithm_of_rewriting_and_stays_few_segments(overlap: float) -> None:
    day_rows, n_days = 1000, 365
    store, written = list[Segment](), 0
    for number in range(n_days):
        store.append(segment(number, day_rows))
        small = worth_adding_up(store)
        if small:
            new = max(rows_of(entry) for entry in small)
            new += int((sum(map(rows_of, small)) - new) * (1 - overlap))
            store = [entry for entry in store if entry not in small] + [segment(n_days + number, new)]
            written += new

        assert len(store) < 16
    assert written <= n_days * day_rows * 5


def segment(number: int, rows: int) -> Segment:
    return Segment((), {str(number): "log"}, Rows(0, 0, {}), {"rows": rows}, ())


def rows_of(entry: Segment) -> int:
    return int(entry.totals["rows"])


# --- decay ----------------------------------------------------------------------------------------------------


def decayed(counts: pl.DataFrame) -> pl.DataFrame:
    """The formula: the counts of day d weigh factor ** (newest day - d)."""
    age = (pl.lit(date.fromisoformat(DAYS[-1])) - pl.col("period")).dt.total_days()
    return counts.with_columns(pl.col("impressions", "clicks") * FACTOR**age)


def assert_close(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    keys = expected.columns[:-2]
    joined = found.join(expected, on=keys, how="full", suffix="_expected")
    assert joined.height == found.height == expected.height
    for name in ("impressions", "clicks"):
        assert found.schema[name] == pl.Float64
        assert ((joined[name] - joined[f"{name}_expected"]).abs() < 1e-9).all()


@pytest.mark.usefixtures("logs")
@pytest.mark.slow
def test_decayed_counts_follow_the_formula_also_step_by_step(collect: Collect) -> None:
    expected = decayed(collect("log.parquet", "--timestamp", "day", "whole"))
    for name, day in zip("abcde", DAYS, strict=True):
        collect(f"{name}.parquet", "--date", day, name)
    decay = ("--decay", FACTOR)

    assert_close(collect("whole", *decay, "at-once"), expected)
    collect("a", "b", *decay, "ab")
    collect("ab", "c", *decay, "ab")
    collect("e", "d", *decay, "de")
    assert_close(collect("de", "ab", *decay, "out"), expected)


@pytest.mark.usefixtures("logs")
def test_a_day_of_next_to_no_weight_is_left_out(collect: Collect) -> None:
    collect("a.parquet", "--date", "2016-01-05", "old")
    recent = collect("b.parquet", "--date", "2026-01-05", "recent")

    assert_close(collect("old", "recent", "--decay", 0.98, "out"), recent.cast({"impressions": pl.Float64}))


# --- what is not whole ----------------------------------------------------------------------------------------


def manifest(part: Path, text: str) -> None:
    """Write another manifest beside a part."""
    part.with_name("manifest.json").write_text(text)


SCHEMA = '"schema": "posbias.statistics"'
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a part less": (Path.unlink, r"part-00000\.parquet.* is missing"),
    "truncated": (lambda part: part.write_bytes(part.read_bytes()[:-50]), r"part-00000\.parquet.* is truncated"),
    "replaced": (lambda part: part.write_bytes(part.read_bytes() + b" "), r"part-00000\.parquet.* has been replaced"),
    "a part more": (
        lambda part: part.with_name("part-00009.parquet").write_bytes(part.read_bytes()),
        r"part-00009\.parquet.* is not part of these statistics",
    ),
    "no manifest": (lambda part: part.with_name("manifest.json").unlink(), "manifest is missing or damaged"),
    "broken manifest": (lambda part: manifest(part, '{"schema": '), "manifest is missing or damaged"),
    "empty manifest": (lambda part: manifest(part, f'{{{SCHEMA}, "version": {VERSION}}}'), "is damaged"),
    "old manifest": (
        lambda part: manifest(part, f"{{{SCHEMA}}}"),
        f"version 2 or earlier, this posbias reads versions 4 to {VERSION}. Collect them again",
    ),
}


@pytest.mark.usefixtures("logs")
@pytest.mark.parametrize(("damage", "says"), DAMAGES.values(), ids=DAMAGES)
def test_statistics_that_are_not_whole_are_refused(
    collect: Collect, tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    collect("a.parquet", "s")
    assert len(find_statistics([str(tmp_path / "s")])) == 1
    damage(tmp_path / "s" / "part-00000.parquet")

    with pytest.raises(StatisticsError, match=says):
        find_statistics([str(tmp_path / "s")])


MONTH = Path(__file__).parent / "of_versions" / "version_6"
EDITS: dict[str, Any] = {
    "days": ["2026-01-07"],
    "sources": {},
    "rows": {"read": 481, "used": 481, "rejected": {}},
    "statistics": {"rows": 128, "impressions": 480},
    "parts": [{"name": "part-00001.parquet", "bytes": 1, "xxh3_128": "0" * 32}],
}


@pytest.mark.parametrize(("field", "value"), EDITS.items(), ids=EDITS)
def test_a_month_that_is_not_what_its_days_add_up_to_is_refused(tmp_path: Path, field: str, value: object) -> None:
    shutil.copytree(MONTH, tmp_path / "s")
    path = tmp_path / "s" / "manifest.json"
    content = json.loads(path.read_text())
    content["segments"][0]["of"][0][field] = value
    path.write_text(json.dumps(content | {"checksum": checksum_of_content(content)}))

    with pytest.raises(StatisticsError, match="a month is not what its countings add up to"):
        find_statistics([str(tmp_path / "s")])
