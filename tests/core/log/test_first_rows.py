"""Faults that the first rows show: rounded ids, pages in the order of ids or clicks, columns that decide relevance."""

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from present import present
from small_logs import log_by_value

from posbias.core.arrays.count_table import Flags
from posbias.core.log.first_rows import (
    effect_of_missing_rows,
    page_level_columns,
    page_order,
    relevance_score,
    rounded_ids,
)
from posbias.core.simulation.simulate import SimulationOptions, simulate


def by_the_equation(log: pl.DataFrame) -> float:
    """The score in standard errors, summed in loops, with the factors r_kv as iterated from 1."""
    shown, clicked = defaultdict[tuple[int, int, int, str], int](int), defaultdict[tuple[int, int, int, str], int](int)
    for _, query, doc, position, click, value in log.iter_rows():
        shown[query, doc, position, value] += 1
        clicked[query, doc, position, value] += click
    values = {(q, d): {v for a, b, _, v in shown if (a, b) == (q, d)} for q, d, _, _ in shown}
    cells = [cell for cell in shown if len(values[cell[:2]]) > 1]
    factor = {(k, v): 1.0 for _, _, k, v in cells}
    expected: dict[tuple[int, int, int, str], float] = {}
    for _ in range(8):
        for q, d, k, v in cells:
            weights = {u: shown.get((q, d, k, u), 0) * factor.get((k, u), 0.0) for u in values[q, d]}
            clicks = sum(clicked.get((q, d, k, u), 0) for u in values[q, d])
            expected[q, d, k, v] = clicks * weights[v] / sum(weights.values())
        for key in factor:
            found = [cell for cell in cells if cell[2:] == key]
            factor[key] *= max(sum(clicked[c] for c in found), 0.5) / max(sum(expected[c] for c in found), 1e-9)
    by_query = defaultdict[int, float](float)
    for (q, d), several in values.items():
        if len(several) < 2:
            continue
        of = {v: [cell for cell in cells if cell[:2] == (q, d) and cell[3] == v] for v in several}
        share = {v: sum(expected[c] for c in of[v]) for v in several}
        height = {v: -sum(shown[c] * math.log(c[2]) for c in of[v]) / sum(shown[c] for c in of[v]) for v in several}
        mean = sum(share[v] * height[v] for v in several) / max(sum(share.values()), 1e-300)
        by_query[q] += sum((sum(clicked[c] for c in of[v]) - share[v]) * (height[v] - mean) for v in several)
    return sum(by_query.values()) / math.sqrt(sum(score**2 for score in by_query.values()))


def test_the_score_is_that_of_the_equation() -> None:
    log = log_by_value("known", 5, n_pages=150, n_values=3)
    assert present(relevance_score(log, "value")) == pytest.approx(by_the_equation(log), rel=1e-9)


def test_the_order_of_rows_and_the_names_of_values_change_nothing() -> None:
    log = log_by_value("known", 6, n_pages=500)
    renamed = log.sample(fraction=1, shuffle=True, seed=1).with_columns(pl.format("q{}", "query").alias("query"))
    renamed = renamed.with_columns(pl.col("value").replace({"0": "z"}))
    assert relevance_score(renamed, "value") == pytest.approx(present(relevance_score(log, "value")), rel=1e-9)


@pytest.mark.parametrize("kind", ["nothing", "examination", "taste", "ranking", "unknown"])
def test_columns_that_mislead_nobody_score_like_chance(kind: str) -> None:
    scores = [z for seed in range(12) if (z := relevance_score(log_by_value(kind, seed, 1000), "value")) is not None]
    assert len(scores) == 12
    assert max(scores) < 3
    assert abs(np.mean(scores)) < 0.9  # 3 standard errors of a mean of 12


@pytest.mark.parametrize("n_values", [2, 5])
def test_a_column_that_decides_relevance_is_seen(n_values: int) -> None:
    scores = [z for seed in range(5) if (z := relevance_score(log_by_value("known", seed, 4000, n_values), "value"))]
    assert min(scores) > 3


def test_a_column_of_documents_is_not_compared() -> None:
    log = log_by_value("nothing", 1, 200).with_columns(value=pl.col("doc") % 3)
    assert relevance_score(log, "value") is None


def test_columns_of_pages_with_few_values_are_looked_at() -> None:
    log = log_by_value("nothing", 2, 400)
    page_clicked = pl.col("click").max().over("session")
    log = log.with_columns(
        of_row=pl.col("position") % 2,
        user="session",
        number=pl.lit(1),
        tier=pl.col("session") % 2 * 1.5,
        any=page_clicked,
    )
    assert [*page_level_columns(log, ["value", "of_row", "user", "number", "tier", "any"])] == ["value", "tier"]


def page(session: int, docs: list[str], clicks: list[int]) -> pl.DataFrame:
    """One results page."""
    return pl.DataFrame({"session": session, "doc": docs, "click": clicks}).with_row_index("position", 1)


def test_pages_in_the_order_of_ids_or_of_clicks_are_counted() -> None:
    pages = [
        page(1, ["9", "10", "11", "200"], [0, 1, 0, 0]),  # ascending as numbers
        page(2, ["d", "c", "b", "a"], [1, 1, 0, 0]),
        page(3, ["a", "b", "d", "c"], [1, 0, 1, 0]),
        page(4, ["a", "b", "c"], [1, 0, 0]),  # too short
        page(5, ["z", "a", "c", "b"], [1, 1, 1, 1]),
    ]
    assert page_order(pl.concat(pages[:1]).sample(fraction=1, shuffle=True, seed=2))["ascending"] == 1
    assert [*page_order(pl.concat(pages)).values()] == [4, 0, 1, 3, 1, 1]
    assert [*page_order(pl.concat(pages[1:])).values()] == [3, 0, 1, 2, 1, 1]


def test_ids_that_a_spreadsheet_rounded_are_known_by_their_form() -> None:
    assert rounded_ids(pl.Series(["4006381333931", "4.00638E+12"])) == "4.00638E+12"
    assert rounded_ids(pl.Series(["e+12", "1e5", "12E", "4.0", "1.5E-7"])) is None
    assert rounded_ids(pl.Series(["400638000000.0", "400638133393"])) == "400638000000.0"
    assert rounded_ids(pl.Series([1, 2, 1_000_000, 400_638_133_393])) is None
    assert rounded_ids(pl.Series([4006381333931, 4006380000000])) == "4006380000000"
    assert rounded_ids(pl.Series([4.00638e12, math.nan])) == "4006380000000"


Chosen = Callable[[np.random.Generator, Flags], Flags]
FEWER: dict[str, tuple[Chosen, bool]] = {  # rows that go missing, and whether they were left out before the page
    "results left out before the page": (lambda rng, click: rng.random(click.shape) < 0.2, True),
    "rows lost by chance": (lambda rng, click: rng.random(click.shape) < 0.2, False),
    "rows without a click, thinned out": (lambda rng, click: (rng.random(click.shape) < 0.5) & ~click, False),
    "rows of users who click more": (
        lambda rng, click: (rng.random(click.shape) < 0.3) & (click.sum(1, keepdims=True) > 1),
        False,
    ),
}


@pytest.mark.parametrize("which", FEWER)
@pytest.mark.parametrize("seed", range(3))
def test_positions_that_are_ranks_before_a_filter_show_below_the_rows_that_it_left_out(which: str, seed: int) -> None:
    missing, shown_without = FEWER[which]
    rng = np.random.default_rng(seed)
    doc = rng.permuted(np.tile(np.arange(12), (12_000, 1)), axis=1)[:, :8]
    attractive, position = 0.7 * rng.random(12), np.arange(1, 9)
    left_out = missing(rng, np.zeros(doc.shape, bool)) & shown_without
    place = np.maximum(position - np.cumsum(left_out, axis=1), 1)
    click = (rng.random(doc.shape) < attractive[doc]) & (rng.random(doc.shape) < 1 / place)
    logged = ~left_out if shown_without else ~missing(rng, click)
    columns = {
        "session": np.repeat(np.arange(12_000), 8),
        "query": np.zeros(doc.size, np.int64),
        "doc": doc.ravel(),
        "position": np.tile(position, 12_000),
        "click": click.ravel().astype(np.int8),
    }

    effect = effect_of_missing_rows(pl.DataFrame(columns).filter(pl.Series(logged.ravel())))

    assert effect is not None
    assert (effect[0] > 4) == shown_without
    assert effect[1] > 1.05 or not shown_without


def test_rows_lost_by_chance_are_no_filter_where_clicks_lead_to_more_clicks() -> None:
    log = simulate(SimulationOptions(model="ubm", n_sessions=12_000, n_queries=60, seed=1)).log

    effect = effect_of_missing_rows(log.filter(pl.concat_str("session", "position").hash(seed=2) % 2 == 0))

    assert effect is not None
    assert effect[0] < 3


def test_the_score_of_missing_rows_is_that_of_all_permutations_of_clicks_within_a_stratum() -> None:
    above = np.array([1, 1, 1, 0, 0])  # of one missing position, whether it is above document "b" at position 3
    rows = [(page, 3, "b", int(page < 2)) for page in range(5)]
    for page, is_above in enumerate(above):
        rows += [(page, place, f"{page} {place}", 0) for place in ((1,) if is_above else (1, 2, 5))]
    log = pl.DataFrame(rows, ["session", "position", "doc", "click"], orient="row").with_columns(query=pl.lit("q"))

    effect = effect_of_missing_rows(log)

    sums = np.array([above[[*clicked]].sum() for clicked in combinations(range(5), 2)])
    assert effect is not None
    assert effect[0] == pytest.approx((2 - sums.mean()) / sums.std())
    assert effect[1] == pytest.approx(math.exp((2 - sums.mean()) / (2 / 5 * ((above - above.mean()) ** 2).sum())))
    assert effect[2] == 1
