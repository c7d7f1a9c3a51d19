"""Times of a log that is split are counted where they are asked for, and are then those of all rows at once."""

from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.log.impressions import ReadingRules
from posbias.core.models import get_model
from posbias.core.schema import ALTERNATE, HALF, PERIOD, Roles
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.counting.count import count_log, read_log
from posbias.io.engines.local import LocalEngine, choose_bit_fields
from posbias.io.log.click_log import LogRequest, open_log
from posbias.io.progress import SilentProgress

PLAN = StatisticsPlan(get_model("pbm"), period="quarter")


def request_of(log: Path) -> LogRequest:
    return LogRequest((str(log),), Roles(timestamp="timestamp"), ReadingRules(1, period="quarter"))


def counted(log: Path, scratch: Path, memory: int) -> SufficientStatistics:
    scratch.mkdir()
    engine = LocalEngine(memory, scratch)
    read = read_log(open_log(request_of(log)), PLAN, engine, SilentProgress())
    return count_log(read, engine, SilentProgress()).statistics


def strata(statistics: SufficientStatistics, *, n_parts: int | None = None) -> list[pl.DataFrame]:
    """The signatures of each kind of strata, with how many there are of each, in an order of their own."""
    found = list[pl.DataFrame]()
    for length in statistics.plan.lengths:
        for half in (None, HALF, ALTERNATE):
            table = statistics.strata(length, half, n_parts=n_parts).signatures
            entries = pl.DataFrame(
                {"unit": table.unit_of_entry, "cell": table.cell, "n": table.impressions, "c": table.clicks}
            )
            units = entries.group_by("unit").agg(pl.struct("cell", "n", "c")).sort("unit")
            found.append(units.select("cell", copies=pl.Series(table.multiplicity)).sort(pl.all()))
    return found


@pytest.mark.parametrize("packed", [True, False])
def test_they_are_those_that_are_counted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, packed: bool
) -> None:
    options = SimulationOptions(n_sessions=2_000, n_queries=60, docs_per_query=8, n_positions=5, days=9, seed=4)
    ids = {} if packed else {"query": pl.col("query") * 2**26, "doc": pl.col("doc") * 2**14}
    simulate(options).log.with_columns(**ids).write_parquet(tmp_path / "log.parquet")
    fields = choose_bit_fields(open_log(request_of(tmp_path / "log.parquet")))
    assert fields is not None
    assert (PERIOD in fields.names) == packed
    whole = counted(tmp_path / "log.parquet", tmp_path / "whole", 1 << 30)
    monkeypatch.setattr("posbias.io.engines.engine.fewest_parts", lambda *_: 4)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    split = counted(tmp_path / "log.parquet", tmp_path / "split", 1 << 30)

    assert (len(whole.queries_of_part), len(split.queries_of_part)) == (1, 4)
    assert whole.by_day is not None
    assert split.by_day is not None
    assert_frame_equal(whole.by_day, split.by_day)
    assert len(list((tmp_path / "split").glob("times-*"))) == 4
    for one, other in zip(strata(whole), strata(split), strict=True):
        assert_frame_equal(one, other)
    orders = [statistics.order("day") for statistics in (whole, split)]
    assert orders[0].area.sum() == pytest.approx(orders[1].area.sum())
    assert orders[0].weight == pytest.approx(orders[1].weight)
    of_first, rest = (sum(of["copies"].sum() for of in strata(split, n_parts=n)) for n in (1, None))
    assert 0 < of_first < rest / 2
