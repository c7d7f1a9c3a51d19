"""The order of clicks and positions within strata: the signed area, against its definition."""

from datetime import datetime, timedelta
from itertools import combinations

import numpy as np
import polars as pl
import pytest

from posbias.core.counts.counting_plan import OrderSums, add_orders, order_of_strata
from posbias.core.fit.periods import feedback_test

UNIT = ("query", "doc")
START = datetime.fromisoformat("2026-01-05")


def rows_of(seed: int, n_queries: int = 3, moves: float = 0.0) -> pl.DataFrame:
    """Statistics of a few pairs over eight moments; a click moves the document up by `moves` positions."""
    rng = np.random.default_rng(seed)
    rows = list[tuple[object, ...]]()
    for query in range(n_queries):
        for doc in range(4):
            surplus = 0.0
            for moment in range(8):
                position = min(max(round(int(rng.integers(2, 5)) - moves * surplus), 1), 6)
                shown = int(rng.integers(1, 4))
                clicks = int((rng.random(shown) < 0.6 / position**0.5).sum())
                surplus += clicks - shown * 0.6 / position**0.5
                period = START + timedelta(minutes=15 * moment)
                rows.append((query, doc, period, position, shown, clicks))
    names = ["query", "doc", "period", "position", "impressions", "clicks"]
    return pl.DataFrame(rows, schema=names, orient="row").sort(*UNIT, "period", "position")


def area_by_definition(rows: pl.DataFrame) -> float:
    """The sum over s < t of (x_s M_t - x_t M_s) / N, pair by pair."""
    total = 0.0
    for _, of_pair in rows.group_by(*UNIT):
        moments = of_pair.sort("period")
        n, c, r = (moments[name].to_numpy().astype(float) for name in ("impressions", "clicks", "position"))
        if not c.sum():
            continue
        m, examined = -np.log(r), n / r
        x = c - c.sum() * examined / examined.sum()
        better = n * (m - (n * m).sum() / n.sum())
        pairs = combinations(range(len(n)), 2)
        total += sum(x[s] * better[t] - x[t] * better[s] for s, t in pairs) / n.sum()
    return total


@pytest.mark.parametrize("seed", range(5))
def test_the_area_is_that_of_its_definition(seed: int) -> None:
    rows = rows_of(seed)

    assert order_of_strata(rows, UNIT).area.sum() == pytest.approx(area_by_definition(rows))


def test_time_that_runs_backwards_turns_the_sign() -> None:
    rows = rows_of(0)
    backwards = rows.with_columns(period=_mirrored())

    forwards, back = (order_of_strata(log.sort(*UNIT, "period"), UNIT) for log in (rows, backwards))
    assert back.area.tolist() == pytest.approx((-forwards.area).tolist())
    assert back.variance.tolist() == pytest.approx(forwards.variance.tolist())


def _mirrored() -> pl.Expr:
    return pl.lit(START) + (pl.lit(START + timedelta(minutes=15 * 7)) - pl.col("period"))


def test_one_moment_says_nothing_of_order() -> None:
    sums = order_of_strata(rows_of(0).with_columns(period=pl.lit(START)).sort(*UNIT, "period", "position"), UNIT)

    assert sums.area.tolist() == pytest.approx([0.0] * 3)
    assert feedback_test(sums) is None


def test_parts_add_up_query_by_query() -> None:
    rows = rows_of(1)
    parts = [order_of_strata(rows.filter(query=query), UNIT) for query in range(3)]
    whole, together = order_of_strata(rows, UNIT), add_orders(parts)

    for name in OrderSums.__dataclass_fields__:
        assert getattr(together, name).tolist() == pytest.approx(getattr(whole, name).tolist())


def test_the_test_finds_documents_that_move_up_after_clicks_and_leaves_others_alone() -> None:
    found = [feedback_test(order_of_strata(rows_of(seed, n_queries=40, moves=0.8), UNIT)) for seed in range(10)]
    quiet = [feedback_test(order_of_strata(rows_of(seed, n_queries=40), UNIT)) for seed in range(40)]

    assert all(test is not None and test.rejected and test.move > 0 for test in found)
    assert sum(test is not None and test.rejected for test in quiet) <= 5
