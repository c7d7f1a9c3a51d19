"""What is read to compare days: of a store only the days next to a new one, of a large log only a part."""

from datetime import date, timedelta
from pathlib import Path

import polars as pl
import pytest
from command_results import Run

from posbias.core.counts import odd_days
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.counting import profile as reading
from posbias.io.engines.local import LocalEngine
from posbias.io.stores.metadata import Part
from posbias.io.stores.store import Statistics, find_statistics

FIRST, N_DAYS = date(2026, 1, 5), 7
MEMORY = 1 << 30


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log of a week, day by day."""
    return simulate(SimulationOptions("pbm", N_DAYS * 300, 20, 6, 4, days=N_DAYS)).log


@pytest.fixture
def days(log: pl.DataFrame, run_in_process: Run, tmp_path: Path) -> list[Statistics]:
    """Return a store of all days but one, and that day."""
    for number in range(N_DAYS):
        day = FIRST + timedelta(days=number)
        log.filter(pl.col("timestamp").dt.date() == day).drop("timestamp").write_parquet(tmp_path / f"{day}.parquet")
        run_in_process("collect", f"{day}.parquet", "--date", day, "-o", f"days/{day}", code=0)
    names = sorted(map(str, (tmp_path / "days").iterdir()))
    run_in_process("collect", *names[:3], *names[4:], "-o", "store", code=0)
    return find_statistics([str(tmp_path / "store"), names[3]])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return what parts are read from now on."""
    paths = list[Path]()
    count = reading.count_days_of_part

    def recording(part: Part, name: str | tuple[str, ...] | set[str]) -> pl.DataFrame:
        paths.append(part.path)
        return count(part, name)

    monkeypatch.setattr(reading, "count_days_of_part", recording)
    return paths


@pytest.mark.slow
def test_of_a_store_only_the_days_next_to_a_new_one_are_read(
    days: list[Statistics], read: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(odd_days, "NEAREST", 2)
    store, new = days
    [look], _ = reading.compare_merged_days(days, store, LocalEngine(MEMORY, tmp_path))
    near = [
        part for segment in store.segments if segment.days[0] in {"2026-01-07", "2026-01-09"} for part in segment.parts
    ]
    assert len(store.segments) == N_DAYS - 1
    assert sorted(read) == sorted(part.path for part in (*near, *new.parts))
    assert (look.day, look.others) == ("2026-01-08", 2)


@pytest.mark.slow
def test_of_a_large_log_as_many_parts_are_read_as_say_enough(
    log: pl.DataFrame, run_in_process: Run, read: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 1000)
    for rows, parts in ((1, 1), (1 << 20, 6)):
        read.clear()
        monkeypatch.setattr(reading, "_ENOUGH_ROWS", rows)
        run_in_process("collect", "log.parquet", "--timestamp", "timestamp", "-o", f"out-{rows}", code=0)
        assert parts <= len(read) <= len(list((tmp_path / f"out-{rows}").glob("part-*.parquet")))
    assert len(read) > 1


def test_a_single_day_is_not_read_again(
    log: pl.DataFrame, run_in_process: Run, read: list[Path], tmp_path: Path
) -> None:
    log.drop("timestamp").write_parquet(tmp_path / "log.parquet")
    run_in_process("collect", "log.parquet", "--date", "2026-01-05", "-o", "day", code=0)
    run_in_process("collect", "log.parquet", "-o", "dayless", code=0)
    assert read == []
