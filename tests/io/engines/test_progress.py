"""Progress counts the rows that are read, each once, and only where somebody watches."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl
import pytest

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.log.impressions import ReadingRules
from posbias.core.models import get_model
from posbias.core.schema import Roles
from posbias.io.counting.count import count_log, read_log
from posbias.io.engines.local import LocalEngine
from posbias.io.log.click_log import LogRequest, open_log
from posbias.io.progress import SilentProgress, Stage, report_rows


@dataclass
class Watched:
    """Remembers how far each stage came, of how much."""

    is_watched: bool = True
    stages: dict[str, "Steps"] = field(default_factory=dict[str, "Steps"])

    @contextmanager
    def stage(
        self,
        description: str,
        total: int | None = None,
        *,
        unit: str = "buckets",
        size: int | None = None,
        estimated: bool = False,  # noqa: ARG002
    ) -> Generator[Stage]:
        """A stage that is remembered."""
        self.stages[description] = Steps(total, unit, size)
        yield self.stages[description]


@dataclass
class Steps:
    """One stage."""

    total: int | None
    unit: str
    size: int | None
    done: int = 0

    def advance(self, steps: int = 1) -> None:
        """Count."""
        self.done += steps

    def say(self, text: str) -> None:
        """Nothing is said here."""


MEMORY = {"one bucket": 1 << 30, "several buckets": 8 << 20}


@pytest.mark.parametrize("how", MEMORY)
def test_rows_bytes_and_buckets_add_up(log: pl.DataFrame, tmp_path: Path, how: str) -> None:
    large = pl.concat([log.with_columns(pl.col("session") + 1000 * number) for number in range(8)])
    large.write_parquet(tmp_path / "log.parquet", row_group_size=1000)
    request = LogRequest((str(tmp_path / "log.parquet"),), Roles(), ReadingRules(1))
    progress = Watched()
    engine = LocalEngine(memory=MEMORY[how], scratch=tmp_path)
    read = read_log(open_log(request), StatisticsPlan(get_model("pbm")), engine, progress)
    counted = count_log(read, engine, progress)
    reading, counting = progress.stages["reading"], progress.stages["counting"]
    assert (reading.done, reading.total, reading.unit) == (large.height, large.height, "rows")
    assert reading.size == (tmp_path / "log.parquet").stat().st_size
    assert (counting.done, counting.unit) == (counting.total, "buckets")
    assert (len(counted.pairs) > 1) == (how == "several buckets")


def test_what_nobody_watches_is_not_counted(log: pl.DataFrame) -> None:
    frame = log.lazy()
    assert report_rows(frame, None) is frame
    assert not SilentProgress.is_watched
