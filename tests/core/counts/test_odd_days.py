"""Days beside others: what stands out, and what does not although there are millions of impressions."""

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pytest
from present import present

from posbias.core.counts.odd_days import (
    FEWEST_CLICKS,
    DayReport,
    compare_days,
    count_by_day,
    days_lacking_clicks,
    merge_day_counts,
    nearest_days,
)

RATES = (0.3, 0.15, 0.1, 0.05)
N_QUERIES = 200


def day_of(
    name: str,
    factor: float = 1.0,
    *,
    per_query: int = 1000,
    rates: Sequence[float] = RATES,
    first: int = 1,
    queries: int = N_QUERIES,
) -> pl.DataFrame:
    """Statistics of a day on which every query has exactly the clicks that its rates say, times a factor."""
    rows = [
        (name, query, first + at, per_query, round(per_query * rate * factor))
        for query in range(queries)
        for at, rate in enumerate(rates)
    ]
    return pl.DataFrame(rows, schema=["day", "query", "position", "impressions", "clicks"], orient="row")


def looks(days: Sequence[pl.DataFrame], judged: Sequence[str] = (), known: Sequence[str] = ()) -> dict[str, DayReport]:
    """How days look, by name."""
    statistics = pl.concat(days)
    counts = merge_day_counts([count_by_day(statistics.lazy(), pl.col("day")).collect()])
    return {look.day: look for look in compare_days(counts, judged or counts["day"].unique().to_list(), known)}


def week(**named: pl.DataFrame) -> dict[str, DayReport]:
    """How a week looks, of which some days are given."""
    return looks([named.get(name, day_of(name)) for name in ("d1", "d2", "d3", "d4", "d5", "d6", "d7")])


def odd(found: Mapping[str, DayReport]) -> list[str]:
    """The days that are odd."""
    return [day for day, look in found.items() if look.is_odd]


def test_counts_by_day_add_up_over_parts_of_whole_queries_as_if_there_were_one() -> None:
    statistics = pl.concat([day_of("a"), day_of("a", 0.5), day_of("b")])  # rows of equal keys add up first
    even = pl.col("query") % 2 == 0
    parts = [count_by_day(statistics.filter(of).lazy(), pl.col("day")).collect() for of in (even, ~even)]
    together = merge_day_counts(parts)
    assert together.equals(merge_day_counts([count_by_day(statistics.lazy(), pl.col("day")).collect()]))
    first = together.row(0, named=True)
    assert (first["day"], first["position"]) == ("a", 1)
    shown, clicks = 2 * 1000, 300 + 150
    expected = [shown * N_QUERIES, clicks * N_QUERIES, shown**2 * N_QUERIES, shown * clicks * N_QUERIES]
    assert list(first.values())[2:] == [*expected, clicks**2 * N_QUERIES]


def test_days_that_differ_by_a_few_percent_are_ordinary_however_many_impressions_they_have() -> None:
    """By single clicks, 5 % of 3 million clicks are 80 standard errors."""
    rng = np.random.default_rng(1)
    days = [day_of(f"d{n:02d}", float(np.exp(rng.normal(0, 0.05))), per_query=50_000) for n in range(14)]
    assert odd(looks(days)) == []


def test_a_first_monday_with_a_quarter_fewer_clicks_is_ordinary() -> None:
    assert odd(week(d7=day_of("d7", 0.75))) == []
    assert odd(week(d7=day_of("d7", 1.25))) == []


def test_a_day_with_half_of_the_clicks_is_odd_and_the_others_are_not() -> None:
    found = week(d4=day_of("d4", 0.5))
    assert odd(found) == ["d4"]
    change = found["d4"].far[0]
    assert (change.rate, change.usual) == pytest.approx(
        (RATES[change.position - 1] / 2, RATES[change.position - 1]), 0.01
    )
    assert change.relative == pytest.approx(-0.5, abs=0.01)


def test_one_position_with_three_times_the_clicks_is_told_from_the_others() -> None:
    found = week(d4=day_of("d4", rates=(*RATES[:3], 3 * RATES[3])))
    assert [change.position for change in found["d4"].far] == [4]
    assert odd(found) == ["d4"]


def test_a_query_that_is_asked_more_often_is_no_oddity_of_the_day() -> None:
    """The click rate rises from 33 % to 48 %, by one query of four; by all of 400 queries, that is odd."""
    rates = (0.1, 0.2, 0.4, 0.6)

    def one_day(name: str, sizes: Sequence[int]) -> pl.DataFrame:
        rows = [(name, query, 1, n, round(n * rate)) for query, (n, rate) in enumerate(zip(sizes, rates, strict=True))]
        return pl.DataFrame(rows, schema=["day", "query", "position", "impressions", "clicks"], orient="row")

    known = [f"d{n}" for n in range(7)]
    of_one = looks([*(one_day(name, [9000] * 4) for name in known), one_day("d9", [4000] * 3 + [24000])], ["d9"], known)
    of_all = looks([*(day_of(name, rates=[0.325], queries=400) for name in known)], known)
    assert odd(of_all) == []
    of_all = looks(
        [*(day_of(n, rates=[0.325], queries=400) for n in known), day_of("d9", rates=[0.478])], ["d9"], known
    )
    rate = 4.3 / 9
    assert of_one["d9"].changes[0].rate == pytest.approx(rate, abs=0.001)
    assert of_all["d9"].changes[0].rate == pytest.approx(rate, abs=0.001)
    assert (odd(of_one), odd(of_all)) == ([], ["d9"])


def test_positions_one_lower_are_gone_above_and_new_below() -> None:
    found = week(d4=day_of("d4", first=2))
    look = found["d4"]
    assert (look.gone, look.new, look.positions, look.usual_positions) == ((1,), (5,), (2, 5), (1, 4))
    assert odd(found) == ["d4"]


def test_a_last_position_of_one_day_is_new_and_one_that_is_missing_is_gone() -> None:
    found = week(d3=day_of("d3", rates=(*RATES, 0.02)), d5=day_of("d5", rates=RATES[:3]))
    assert (found["d3"].new, found["d3"].gone) == ((5,), ())
    assert (found["d5"].new, found["d5"].gone) == ((), (4,))
    assert odd(found) == ["d3", "d5"]


def test_a_new_last_position_that_stays_is_announced_for_some_days_and_then_usual() -> None:
    longer = [day_of(f"d{n:02d}", rates=(*RATES, 0.02)) for n in range(8, 15)]
    shorter = [day_of(f"d{n:02d}") for n in range(1, 8)]
    warned = [
        name
        for name, known in ((f"d{n:02d}", [f"d{m:02d}" for m in range(1, n)]) for n in range(8, 15))
        if looks([*shorter, *longer], [name], known)[name].is_odd
    ]
    assert warned == ["d08", "d09", "d10", "d11"]


def test_a_day_without_clicks_is_odd_where_clicks_are_to_be_expected_and_only_there() -> None:
    found = week(d2=day_of("d2", 0.0))
    assert odd(found) == ["d2"]
    assert found["d2"].without_clicks
    assert found["d2"].expected_clicks == pytest.approx(sum(RATES) * 1000 * N_QUERIES, rel=0.01)
    assert odd(week(d2=day_of("d2", 0.0, per_query=1, queries=5))) == []


def test_a_thin_position_does_not_exceed_a_limit_by_noise_alone() -> None:
    days = [day_of(f"d{n}") for n in range(7)]
    thin = day_of("d9", per_query=1, queries=20).with_columns(clicks=(pl.col("query") < 4).cast(pl.Int64))
    look = looks([*days, thin], ["d9"], [f"d{n}" for n in range(7)])["d9"]
    last = next(change for change in look.changes if change.position == 4)
    assert last.relative > 2
    assert look.beyond(0.5) is None
    thick = day_of("d9", rates=(*RATES[:3], 0.2))
    assert present(looks([*days, thick], ["d9"], [f"d{n}" for n in range(7)])["d9"].beyond(0.5)).position == 4


def test_the_largest_change_beyond_a_limit_counts_the_first_one_above_it_and_none_below() -> None:
    look = week(d4=day_of("d4", 0.5))["d4"]
    assert look.beyond(0.51) is None
    assert look.beyond(0.45) is not None


def test_positions_that_the_others_hardly_click_are_not_compared() -> None:
    rare = (*RATES[:3], 0.001)
    for queries, compared in ((FEWEST_CLICKS // 2 - 1, [1, 2, 3]), (FEWEST_CLICKS // 2, [1, 2, 3, 4])):
        days = [day_of(f"d{n}", rates=rare, queries=queries) for n in range(2)]  # a click per day and query
        found = looks([*days, day_of("d9")], ["d9"], ["d0", "d1"])["d9"]
        assert [change.position for change in found.changes] == compared


def test_of_two_days_that_differ_the_later_one_is_judged() -> None:
    found = looks([day_of("d1"), day_of("d2", first=2)])
    assert list(found) == ["d2"]
    assert odd(found) == ["d2"]
    assert looks([day_of("d1")]) == {}


def test_the_nearest_days_are_those_before_and_after_whatever_their_number() -> None:
    days = [f"{n:03d}" for n in range(100)]
    assert nearest_days("100", days) == days[-28:]
    assert nearest_days("", days) == days[:28]
    assert nearest_days("050", days) == [*days[36:50], *days[51:65]]
    assert nearest_days("001", days) == [days[0], *days[2:29]]
    assert nearest_days("000", []) == []


def counts_of(days: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Their counts by day and position."""
    return merge_day_counts([count_by_day(pl.concat(days).lazy(), pl.col("day")).collect()])


@pytest.mark.parametrize("bad", [1, 2, 14, 20])
def test_days_with_lost_clicks_do_not_hide_each_other(bad: int) -> None:
    rng = np.random.default_rng(bad)
    days = [
        day_of(f"d{n:02d}", np.exp(rng.normal(0, 0.1)), rates=(*RATES[:2], 0.001, 0) if n < bad else RATES)
        for n in range(28)
    ]
    lost = present(days_lacking_clicks(counts_of(days)))
    assert (lost.days, lost.of_days) == (tuple(f"d{n:02d}" for n in range(bad)), 28)
    assert lost.positions == (3, 4)
    assert lost.clicks == pytest.approx(bad * 0.149 * 1000 * N_QUERIES, 0.1)


def test_days_without_clicks_at_the_end_are_lost_and_a_hole_in_the_middle_of_a_day_is() -> None:
    days = [
        day_of(f"d{n}", rates=(0.0,) * 4 if n > 6 else (0.3, 0.15, 0.0, 0.05) if n == 2 else RATES) for n in range(9)
    ]
    assert present(days_lacking_clicks(counts_of(days))).days == ("d2", "d7", "d8")
    assert days_lacking_clicks(counts_of(days[3:7])) is None


def test_few_clicks_and_a_redesign_are_no_loss() -> None:
    redesign = [day_of(f"d{n}", rates=(0.3, 0.1, 0.04, 0.01) if n < 7 else (0.3, 0.2, 0.15, 0.08)) for n in range(14)]
    rare = [day_of(f"d{n}", per_query=10, rates=(0.3, 0.0 if n == 3 else 0.1), queries=10) for n in range(14)]
    for days in (redesign, rare):
        assert days_lacking_clicks(counts_of(days)) is None


def test_few_of_few_clicks_are_chance_after_a_redesign() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rates = [(0.3, *rng.poisson(285 * (0.07, 0.028)[n % 2], 4) / 285) for n in range(28)]
        days = [day_of(f"d{n:02d}", per_query=285, rates=of_day, queries=1) for n, of_day in enumerate(rates)]
        assert days_lacking_clicks(counts_of(days)) is None
