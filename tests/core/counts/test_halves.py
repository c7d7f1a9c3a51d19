"""The earlier and the later half of strata, and their alternate moments, against their definition."""

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
from small_logs import over_frames

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics, compress_part, merge_parts
from posbias.core.models import get_model
from posbias.core.schema import ALTERNATE, HALF, LENGTHS, Length

PLAN = StatisticsPlan(get_model("pbm"), period="quarter")
VERSIONS = replace(PLAN, strata=("version",))
START = datetime.fromisoformat("2026-01-05T22:00")
PARTS = {"none": "all", "week": "%G %V", "day": "%F", "hour": "%F %H"}

Entry = tuple[int, float, float]


def statistics(plan: StatisticsPlan) -> tuple[pl.DataFrame, SufficientStatistics]:
    """Statistics of 40 pairs, some without a click, over four hours around midnight."""
    rng = np.random.default_rng(7)
    rows = pl.DataFrame(
        {
            "query": (rows := rng.integers(0, 40, 3_000)) // 4,
            "doc": rows % 4,
            "period": [START + timedelta(minutes=15 * int(quarter)) for quarter in rng.integers(0, 16, 3_000)],
            "version": [None if version == 2 else f"v{version}" for version in rng.integers(0, 3, 3_000)],
            "position": rng.integers(1, 4, 3_000),
            "impressions": 1,
            "clicks": (rng.random(3_000) < 0.1) & (rows % 3 > 0),
        }
    )
    counts = rows.group_by(*plan.keys).agg(pl.col("impressions", "clicks").sum().cast(pl.Int64)).sort(*plan.keys)
    return counts, merge_parts([compress_part(counts, plan)], plan, over_frames(counts))


def halves_by_definition(
    rows: pl.DataFrame, length: Length, strata: tuple[str, ...], half: str
) -> Counter[frozenset[Entry]]:
    """The counts by cell of the halves that have a click and two cells: how often each set of them occurs."""
    found = Counter[frozenset[Entry]]()
    part = pl.col("period").dt.strftime(PARTS[length]).alias("part")
    for _, stratum in rows.group_by("query", "doc", part, *strata):
        shown = int(stratum["impressions"].sum())
        before = 0
        halves: list[dict[int, list[int]]] = [{}, {}]
        for number, (_, moment) in enumerate(stratum.sort("period").group_by("period", maintain_order=True)):
            now = int(moment["impressions"].sum())
            is_second = number % 2 > 0 if half == ALTERNATE else before + now / 2 > shown / 2
            before += now
            for position, n, clicks in moment.select("position", "impressions", "clicks").iter_rows():
                sums = halves[is_second].setdefault(position, [0, 0])
                sums[0] += n
                sums[1] += clicks
        for counts in halves:
            if len(counts) > 1 and sum(clicks for _, clicks in counts.values()):
                found[frozenset((position - 1, float(n), float(c)) for position, (n, c) in counts.items())] += 1
    return found


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("plan", [PLAN, VERSIONS], ids=["pairs", "versions"])
@pytest.mark.parametrize("half", [HALF, ALTERNATE])
@pytest.mark.slow_after(2)
def test_halves_are_those_of_their_definition(plan: StatisticsPlan, length: Length, half: str) -> None:
    rows, compressed = statistics(plan)
    table = compressed.strata(length, half).signatures
    found = Counter[frozenset[Entry]]()
    for unit in np.flatnonzero(table.links):
        entries = slice(table.start[unit], table.start[unit + 1])
        counts = table.cell[entries], table.impressions[entries], table.clicks[entries]
        found[frozenset(zip(*(of.tolist() for of in counts), strict=True))] += int(table.multiplicity[unit])

    assert found == halves_by_definition(rows, length, plan.strata, half)
    assert found.total() > (50 if half == HALF else 40)


@pytest.mark.parametrize("plan", [PLAN, VERSIONS], ids=["pairs", "versions"])
def test_statistics_keep_the_order_of_units_where_they_say_so(plan: StatisticsPlan) -> None:
    rows, _ = statistics(plan)
    days = rows.with_columns(posbias_day=pl.col("period").dt.truncate("1d"))

    for unit in (plan.pair_columns, plan.stratum_columns(), plan.stratum_columns("day"), ("doc", "query")):
        in_order = days.sort(*unit, "period", maintain_order=True).equals(days)
        assert plan.is_sorted_by(unit) == in_order, unit
