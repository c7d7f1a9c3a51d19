"""What counts say of positions and queries: the same by parts as at once, and intervals that are worth their name."""

import numpy as np
import polars as pl
import pytest

from posbias.core.check import (
    add_details,
    add_facts,
    distinct_count,
    log_details,
    log_facts,
    position_rows,
    smallest_hashes,
    value_hashes,
)


def statistics(n_queries: int, seed: int = 0, positions: tuple[int, ...] = (1, 2, 3)) -> pl.DataFrame:
    """Counts of queries that differ in size and click rate, sorted as statistics are."""
    rng = np.random.default_rng(seed)
    rows = [
        {"query": f"q{query:05d}", "doc": f"d{doc}", "position": position, "impressions": shown, "clicks": clicked}
        for query in range(n_queries)
        for rate in [rng.beta(2, 5)]
        for doc in range(2)
        for position in positions
        for shown in [int(rng.integers(1, 40))]
        for clicked in [int(rng.binomial(shown, rate / position))]
    ]
    return pl.DataFrame(rows, schema_overrides={"position": pl.Int32}).sort("query", "doc", "position")


@pytest.mark.parametrize("positions", [(1, 2, 3), (1, 50_000)], ids=["table of all", "far apart"])
def test_parts_say_together_what_the_whole_says(positions: tuple[int, ...]) -> None:
    whole = statistics(40, positions=positions)
    first = pl.col("query") < "q00013"

    parts = whole.filter(first), whole.filter(~first)
    at_once, in_parts = add_facts([log_facts(whole)]), add_facts([*map(log_facts, parts)])
    details, details_of_parts = add_details([log_details(whole)]), add_details([*map(log_details, parts)])

    assert in_parts.positions.equals(at_once.positions)
    assert position_rows(details_of_parts) == position_rows(details)
    assert pl.DataFrame(position_rows(details))["ctr"].equals(at_once.positions["ctr"])
    assert in_parts.effective_queries == pytest.approx(at_once.effective_queries)
    assert (in_parts.queries, distinct_count(details_of_parts.docs), in_parts.impressions) == (
        40,
        (2, True),
        whole["impressions"].sum(),
    )
    expected = whole.group_by("position").agg(pl.col("impressions", "clicks").sum().cast(pl.Float64)).sort("position")
    assert in_parts.positions.select("position", "impressions", "clicks").rows() == expected.rows()
    sizes = whole.group_by("query").agg(pl.col("impressions").sum())
    largest = sizes.sort("impressions").row(-1)
    assert (in_parts.largest_query, in_parts.largest_share) == (largest[0], largest[1] / whole["impressions"].sum())


def test_queries_of_one_size_count_in_full_and_one_large_one_counts_for_all() -> None:
    even = pl.DataFrame(
        {"query": [f"q{n}" for n in range(9)], "doc": "d", "position": 1, "impressions": 5, "clicks": 1}
    )
    one = even.with_columns(pl.when(pl.col("query") == "q0").then(10**6).otherwise("impressions").alias("impressions"))

    assert add_facts([log_facts(even)]).effective_queries == pytest.approx(9)
    assert add_facts([log_facts(one)]).effective_queries == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_intervals_of_click_rates_hold_the_rate_nineteen_times_in_twenty() -> None:
    truth = 2 / 7
    ends = [position_rows(add_details([log_details(statistics(80, seed, positions=(1,)))]))[0] for seed in range(300)]
    held = np.mean([row["ctr_low"] <= truth <= row["ctr_high"] for row in ends])

    assert 0.9 <= held <= 0.98


def test_one_query_alone_has_no_interval() -> None:
    row = position_rows(add_details([log_details(statistics(1))]))[0]

    assert (row["ctr_low"], row["ctr_high"]) == (None, None)


def test_a_query_of_several_columns_is_told_by_its_values() -> None:
    rows = statistics(2).with_columns(query=pl.struct(text=pl.col("query"), market=pl.lit("de")))

    assert add_facts([log_facts(rows)]).largest_query in {"q00000, de", "q00001, de"}


def test_few_values_are_counted_exactly_and_many_within_some_percent() -> None:
    few, many = pl.Series(range(5000)), pl.Series(range(300_000))
    parts = [value_hashes(many[start : start + 60_000]) for start in range(0, 300_000, 50_000)]  # they overlap

    assert distinct_count(value_hashes(few)) == (5000, True)
    assert distinct_count(smallest_hashes(np.concatenate([value_hashes(few), value_hashes(few[:100])]))) == (5000, True)
    assert distinct_count(smallest_hashes(np.concatenate(parts))) == distinct_count(value_hashes(many))
    assert distinct_count(value_hashes(many)) == (pytest.approx(300_000, rel=0.03), False)


def test_values_that_repeat_are_counted_once() -> None:
    repeated = pl.Series(np.tile(np.arange(20_000), 10))

    assert distinct_count(value_hashes(repeated)) == distinct_count(value_hashes(repeated[:20_000]))
    assert distinct_count(value_hashes(pl.Series(np.tile(np.arange(100), 5000)))) == (100, True)
