"""Readers decode whole row groups, so long ones are read in slices where they do not fit into memory."""

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.log.impressions import ReadingRules
from posbias.core.models import get_model
from posbias.core.schema import Roles
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.counting.count import count_log, read_log
from posbias.io.engines import local
from posbias.io.engines.local import LocalEngine
from posbias.io.log.click_log import Log, LogRequest, open_log
from posbias.io.progress import SilentProgress

ROWS = 5_000
SHORT, LONG = 500, ROWS  # rows of a group
MEMORY = 8 * 150_000  # bytes: an eighth of it has room for some 3,000 rows


def opened(files: Path) -> Log:
    return open_log(LogRequest((str(files),), Roles(), ReadingRules(1)))


def rows() -> pl.DataFrame:
    return simulate(SimulationOptions(n_sessions=ROWS // 5, n_queries=60, docs_per_query=8, n_positions=5, seed=4)).log


def four(*_: object) -> int:
    """However large a log is, it is split into so many buckets."""
    return 4


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many slices a log was read in, each time that it was."""
    found = list[int]()
    of_log = Log.slices

    def watched(log: Log, rows: int) -> list[pl.LazyFrame]:
        frames = of_log(log, rows)
        found.append(len(frames))
        return frames

    monkeypatch.setattr(Log, "slices", watched)
    monkeypatch.setattr(local, "_ROWS_ON_THE_WAY", 1_000)
    monkeypatch.setattr(local, "n_threads", lambda: 2)
    monkeypatch.setattr("posbias.io.engines.engine.fewest_parts", four)
    return found


@pytest.mark.parametrize("group", [SHORT, LONG])
def test_long_row_groups_are_read_in_slices_and_give_the_same_counts(
    group: int, tmp_path: Path, slices: list[int]
) -> None:
    log = rows()
    counts = list[pl.DataFrame]()
    for name, rows_of_group, memory in (("as-asked", group, MEMORY), ("with-room", SHORT, 8 * MEMORY)):
        log.write_parquet(tmp_path / f"{name}.parquet", row_group_size=rows_of_group)
        (tmp_path / name).mkdir()
        plan, engine = StatisticsPlan(get_model("pbm")), LocalEngine(memory, tmp_path / name)
        read = read_log(opened(tmp_path / f"{name}.parquet"), plan, engine, SilentProgress())
        counted = count_log(read, engine, SilentProgress())
        counts.append(pl.concat([kept.load() for kept in counted.pairs]).sort("query", "doc"))
    assert [number > 1 for number in slices] == ([True] if group == LONG else [])
    assert_frame_equal(*counts)


def test_the_longest_row_group_is_that_of_all_files_in_impressions(tmp_path: Path) -> None:
    log = rows()
    (tmp_path / "days").mkdir()
    for day, group in enumerate((700, 1_250, 300)):
        log.write_parquet(tmp_path / "days" / f"{day}.parquet", row_group_size=group)
    log.clear().write_parquet(tmp_path / "days" / "empty.parquet")
    assert opened(tmp_path / "days").longest_row_group == 1_250


def test_a_row_that_is_a_page_counts_as_its_documents(tmp_path: Path) -> None:
    nested = rows().group_by("session", "query", maintain_order=True).agg("doc", "click")
    nested.write_parquet(tmp_path / "pages.parquet", row_group_size=250)
    assert opened(tmp_path / "pages.parquet").longest_row_group == 250 * 5


def test_text_has_no_row_groups(tmp_path: Path) -> None:
    rows().write_csv(tmp_path / "log.csv")
    assert opened(tmp_path / "log.csv").longest_row_group == 0
