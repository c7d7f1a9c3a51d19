"""The order of clicks and positions within strata: the signed area, against its definition."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from present import present
from small_logs import PBM, dense_table, log_in_order

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.order import RowOrder, add_orders, order_of_rows, order_of_strata
from posbias.core.fit.periods import feedback_by_rows, feedback_test
from posbias.core.theta.conditional import find_linkage, fit_conditional

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


@pytest.mark.parametrize("days", [2, 3, 7])
def test_days_that_are_alike_say_nothing_of_order_whatever_their_sums_are_rounded_to(days: int) -> None:
    day = (
        rows_of(0, n_queries=40)
        .group_by(*UNIT, "position", maintain_order=True)
        .agg(pl.col("impressions", "clicks").sum())
    )
    rows = pl.concat([day.with_columns(period=pl.lit(START + timedelta(days=number))) for number in range(days)])
    sums = order_of_strata(rows.sort(*UNIT, "period", "position"), UNIT)

    assert sums.clicks > 0
    assert feedback_test(sums) is None


def test_parts_add_up_query_by_query() -> None:
    rows = rows_of(1)
    parts = [order_of_strata(rows.filter(query=query), UNIT) for query in range(3)]
    whole, together = order_of_strata(rows, UNIT), add_orders(parts)

    for name, sums in vars(whole).items():
        assert vars(together)[name] == pytest.approx(sums)


@pytest.mark.slow
def test_the_test_finds_documents_that_move_up_after_clicks_and_leaves_others_alone() -> None:
    found = [feedback_test(order_of_strata(rows_of(seed, n_queries=40, moves=0.8), UNIT)) for seed in range(10)]
    quiet = [feedback_test(order_of_strata(rows_of(seed, n_queries=40), UNIT)) for seed in range(40)]

    assert all(test is not None and test.rejected and test.move > 0 for test in found)
    assert sum(test is not None and test.rejected for test in quiet) <= 5


def order_of(log: pl.DataFrame, plan: StatisticsPlan = PBM) -> RowOrder:
    return present(order_of_rows([log.lazy()], plan))


def test_the_area_of_rows_is_that_of_its_definition_with_theta_of_the_fit() -> None:
    log = log_in_order(0, n_queries=5, n_pages=30)  # too few documents to tell what changes with time
    counts = log.group_by("query", "doc", "position").agg(pl.len(), pl.col("click").sum()).sort("query", "doc")
    shown, clicked = np.zeros((2, 5 * 9, 6))
    at = (counts["query"] * 9 + counts["doc"]).to_numpy(), counts["position"].to_numpy() - 1
    shown[at], clicked[at] = counts["len"].to_numpy(), counts["click"].to_numpy()
    table = dense_table(shown, clicked)
    theta = fit_conditional(table, find_linkage(table)).theta
    area = 0.0
    for _, pair in log.group_by("query", "doc"):
        place, c = pair["position"].to_numpy() - 1, pair["click"].to_numpy().astype(float)
        if not c.any() or len(set(place.tolist())) == 1:
            continue
        m, p = -np.log(place + 1.0), theta[place] / theta[place].sum()
        x, z = c - c.sum() * p, m - m.mean()
        area += sum(x[s] * z[t] - x[t] * z[s] for s, t in combinations(range(len(c)), 2)) / len(c)

    order = order_of(log)
    assert order.sums.area.sum() == pytest.approx(area)


def test_rows_backwards_turn_the_sign_and_parts_say_what_the_whole_says() -> None:
    log = log_in_order(1, n_queries=5)
    forwards, back = order_of(log), order_of(log.reverse())
    parts = [log.filter(pl.col("query") % 3 == part).lazy() for part in range(3)]
    together = present(order_of_rows(parts, PBM))

    assert back.sums.area.tolist() == pytest.approx((-forwards.sums.area).tolist(), abs=1e-9)
    assert together.sums.area.tolist() == pytest.approx(forwards.sums.area.tolist(), abs=1e-9)
    assert (together.rises, together.falls) == (forwards.rises, forwards.falls) == (back.falls, back.rises)


@pytest.mark.parametrize("order", [["query"], ["query", "doc"]])
def test_documents_that_follow_clicks_show_in_any_order_that_keeps_that_of_each_document(order: list[str]) -> None:
    log = log_in_order(2, learns=3.0).sort(order, maintain_order=True)

    assert present(feedback_by_rows(order_of(log))).rejected


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("order", "theta"), [([], 1.0), (["position"], 0.2), (["position"], 2.0), (["click"], 1.0), (["query", "doc"], 1.0)]
)
def test_no_order_of_a_log_whose_ranker_learns_nothing_looks_as_if_it_did(order: list[str], theta: float) -> None:
    logs = [log_in_order(seed, theta=theta, changes=seed % 2 == 0) for seed in range(8)]
    tests = [feedback_by_rows(order_of(log.sort(order, maintain_order=True) if order else log)) for log in logs]

    assert not any(test is not None and test.rejected for test in tests)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(0.6 + 0.4 * pl.col("t"), id="more and more clicks"),
        pytest.param(pl.when(pl.col("t") > 0.75).then(0.5).otherwise(1), id="half of the clicks in the last quarter"),
        pytest.param(pl.when((6 * pl.col("t")).floor() == 4).then(1).otherwise(0.7), id="a weekend"),
        pytest.param(
            pl.when(pl.col("t") > 0.66).then(pl.col("position") ** -0.6).otherwise(0.6), id="another page from then on"
        ),
    ],
)
@pytest.mark.parametrize("order", [[], ["query"]])
def test_clicks_that_all_documents_gain_or_lose_with_time_are_no_feedback(rate: pl.Expr, order: list[str]) -> None:
    log = log_in_order(7, changes=True, n_queries=300, n_pages=100)
    drawn = pl.Series("drawn", np.random.default_rng(0).random(log.height))
    kept = log.with_columns(drawn, t=pl.col("session") / pl.col("session").max()).with_columns(
        click=pl.when(pl.col("drawn") < rate).then("click").otherwise(0).cast(pl.Int8)
    )

    assert not present(feedback_by_rows(order_of(kept.sort(order, maintain_order=True) if order else kept))).moves


@pytest.mark.parametrize("column", ["position", "click"])
@pytest.mark.parametrize("learns", [0.0, 3.0])
def test_rows_that_are_sorted_by_position_or_click_say_nothing_of_time(column: str, learns: float) -> None:
    log = log_in_order(7, n_pages=80, learns=learns)
    order = ["query", "doc", column, *{"position", "click"}.difference({column})]

    assert not order_of(log).is_sorted
    assert feedback_by_rows(order_of(log.drop("session").sort(order))) is None
    assert feedback_by_rows(order_of(log.sort(order).reverse())) is None


def test_rows_may_be_in_the_order_of_time_where_pages_stand_together() -> None:
    log = log_in_order(3, changes=True)

    assert order_of(log).may_be_time
    assert order_of(log.sort("query", maintain_order=True)).may_be_time
    assert not order_of(log.sort("position", maintain_order=True)).may_be_time
    assert not order_of(log.drop("session")).may_be_time


def test_logs_whose_rows_say_nothing_have_no_order() -> None:
    log = log_in_order(4, n_queries=2, n_pages=3)

    assert order_of_rows([], PBM) is None
    assert order_of_rows([log.with_columns(click=pl.lit(0, pl.Int8)).lazy()], PBM) is None
    assert order_of_rows([log.head(0).lazy()], PBM) is None
    assert order_of_rows([log.lazy()], replace(PBM, weighted=True)) is None


def test_days_are_kept_apart_and_times_set_the_order() -> None:
    log, plan = log_in_order(5, learns=3.0), replace(PBM, period="day")
    moment = pl.lit(START) + pl.duration(minutes=pl.col("session"))
    days = log.with_columns(period=moment.cast(pl.Date))
    backwards = days.sort("period", descending=True, maintain_order=True)
    timed = log.with_columns(period=moment).sample(fraction=1.0, shuffle=True, seed=1)

    assert order_of(backwards, plan).sums.area.tolist() == pytest.approx(
        order_of(days, plan).sums.area.tolist(), abs=1e-9
    )
    assert days["period"].n_unique() == 2
    by_time = feedback_test(order_of(timed, replace(PBM, period="quarter")).sums, by_rows=True)
    assert present(by_time).rejected
