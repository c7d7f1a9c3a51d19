"""Team-draft interleaving: credit of pages written out by hand, E, its intervals, and coins."""

import math
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from drafts import drafted

from posbias.core.evaluation.interleaving import (
    DECIDED,
    CreditRule,
    Verdict,
    add_up,
    log_e,
    repeated_coins,
    rho_for,
    whole_number,
)

# A ranks u v w x y z, B ranks u w v y x z; coins: A first, B first, A first.
PAGE = pl.DataFrame(
    {
        "session": [7] * 6,
        "query": ["q"] * 6,
        "doc": ["u", "w", "v", "x", "y", "z"],
        "position": [1, 2, 3, 4, 5, 6],
        "team": ["A", "B", "B", "A", "A", "B"],
        "rank_a": [1, 3, 2, 4, 5, 6],
        "rank_b": [1, 2, 3, 5, 4, 6],
        "user": [3] * 6,
        "orders": [2, None, None, None, None, None],
    },
    schema_overrides={"position": pl.Int32},
)
RULE = CreditRule(("A", "B"), "team")
RANKED = replace(RULE, ranks=("rank_a", "rank_b"))


def credited(rule: CreditRule, *clicked: int) -> dict[str, float]:
    page = PAGE.with_columns(click=pl.col("position").is_in(clicked).cast(pl.Int8))
    return rule.page_sums(page.lazy()).row(0, named=True)


@pytest.mark.parametrize(
    ("rule", "clicked", "difference", "squares", "credit"),
    [
        (RULE, (1, 2, 4, 5), 2, 4, 4),
        (RULE, (2, 3, 6), -3, 9, 3),
        (RULE, (), 0, 0, 0),
        (RANKED, (1, 2), -1, 1, 1),  # u is on top of both
        (RANKED, (1,), 0, 0, 0),
        (RANKED, (4, 5, 6), 1, 1, 3),  # below the common prefix all counts, also what both rank alike
        # rounds: (u, w) is none, as both have u first; (v, x) is none; (y, z) is none
        (replace(RANKED, credit="pairs"), (1, 2, 3, 4, 5, 6), 0, 0, 0),
        (replace(RULE, propensities={1: 1.0, 2: 0.5, 3: 0.1}), (1, 2, 3), 1 - 2 - 5, 36, 8),  # 1 / 0.1 is cut to 5
    ],
)
def test_the_credit_of_a_page_written_out(
    rule: CreditRule, clicked: tuple[int, ...], difference: float, squares: float, credit: float
) -> None:
    page = credited(rule, *clicked)
    assert (page["difference"], page["squares"], page["credit"]) == (difference, squares, credit)
    assert (page["pages"], page["clicks"], page["first_a"], page["first_b"]) == (1, len(clicked), 1, 0)


def test_pairs_count_where_the_rankers_order_both_documents_differently() -> None:
    swapped = PAGE.with_columns(rank_b=pl.Series([2, 1, 3, 5, 4, None]))  # A has u before w, B w before u
    page = swapped.with_columns(click=pl.lit(1, pl.Int8))
    rule = replace(RANKED, credit="pairs")
    assert rule.page_sums(page.lazy())["difference"].to_list() == [0]  # +1 for u, -1 for w
    one = page.with_columns(click=(pl.col("doc") == "u").cast(pl.Int8))
    assert rule.page_sums(one.lazy()).row(0, named=True)["difference"] == 1
    contested = page.with_columns(rank_b=pl.Series([2, 1, 3, 5, 6, 4]), click=(pl.col("doc") == "z").cast(pl.Int8))
    assert rule.page_sums(contested.lazy()).row(0, named=True)["difference"] == -1  # A has y before z, B z before y


@pytest.mark.parametrize(
    ("change", "name", "number"),
    [
        ({"team": ["A", "B", "A", "A", "A", "B"]}, "longer_a", 1),
        ({"team": ["A", "B", "A", "A", "A", "B"]}, "longer_b", 0),
        ({"team": ["A", "B", "A", "A", "A", "B"]}, "alone", 0),
        ({"team": ["A", "B", "B", "B", None, "B"]}, "longer_b", 1),
        ({"team": ["A", "B", "B", "A", "A", None]}, "longer_a", 0),
        ({"team": ["A", "A", None, None, None, None]}, "alone", 1),
        ({"team": ["A", None, None, None, None, None]}, "alone", 0),
        ({"rank_a": [3, 1, 2, 4, 5, 6]}, "misranked", 1),
        ({"rank_a": [None, 1, 2, 4, 5, 6]}, "misranked", 1),
        ({"rank_b": [1, 2, 3, 5, 4, None]}, "misranked", 1),  # B placed z
        ({"rank_a": [None] * 6, "team": ["both"] * 6}, "misranked", 0),
        ({"position": [4, 5, 6, 7, 8, 9], "rank_a": [3, 1, 2, 4, 5, 6]}, "misranked", 1),
        ({"position": [4, 5, 6, 7, 8, 9]}, "first_a", 1),
        ({"team": [None, "B", "A", "A", "B", "B"]}, "first_b", 1),
        ({}, "lead", 2),  # A has 1 and 5, B 3, at odd positions
        ({"user": [3, 3, 4, 3, 3, 3]}, "mixed_users", 1),
        ({"user": [3, None, 3, 3, 3, 3]}, "mixed_users", 0),
        ({"orders": [2, 1, None, None, None, None]}, "mixed", 1),
        ({"orders": [2, 2, None, None, None, None]}, "outcome", 2),
    ],
)
def test_what_is_no_draft_is_counted(change: dict[str, list[object]], name: str, number: int) -> None:
    page = PAGE.with_columns(click=pl.lit(0, pl.Int8), **{of: pl.Series(values) for of, values in change.items()})
    rule = replace(RANKED, user="user", outcome="orders")
    assert rule.page_sums(page.lazy()).row(0, named=True)[name] == number


def test_clicks_without_a_propensity_are_counted_and_not_credited() -> None:
    page = credited(replace(RULE, propensities={1: 1.0}), 1, 2, 3)
    assert (page["difference"], page["unweighted"], page["clicks"]) == (1, 2, 3)


def test_a_document_of_neither_team_counts_for_none() -> None:
    page = PAGE.with_columns(click=pl.lit(1, pl.Int8), team=pl.Series(["both", "B", None, "A", "A", "B"]))
    row = RULE.page_sums(page.lazy()).row(0, named=True)
    assert (row["difference"], row["credit"], row["first_a"], row["first_b"]) == (0, 4, 0, 1)


@pytest.mark.parametrize("credit", ["plain", "pairs"])
def test_credit_does_not_depend_on_the_order_of_rows_and_turns_its_sign_with_the_teams(credit: str) -> None:
    log = drafted(3, 60)
    rule = replace(RANKED, credit=credit, user="user")
    pages = rule.page_sums(log.lazy()).sort("user", "query", "difference", "credit")
    shuffled = rule.page_sums(log.sample(fraction=1, shuffle=True, seed=1).lazy())
    assert shuffled.sort("user", "query", "difference", "credit").equals(pages)
    other = replace(rule, teams=("B", "A"), ranks=("rank_b", "rank_a")).page_sums(log.lazy())
    assert other["difference"].sum() == -pages["difference"].sum()
    assert other["squares"].sum() == pages["squares"].sum()


def test_sums_of_queries_add_up_to_those_of_pages() -> None:
    pages = RANKED.page_sums(drafted(4, 80).lazy())
    queries = add_up(pages.lazy(), ["query"]).collect()
    for name in ("pages", "difference", "squares", "clicks", "first_a"):
        assert queries[name].sum() == pages[name].sum()
    assert queries["largest"].max() == pages["squares"].max()


def test_e_is_a_mixture_of_exponential_supermartingales() -> None:
    # E = integral of exp(l S - l^2 V / 2) over l ~ N(0, rho), by sums over a fine grid
    total, squares, rho = 11.0, 40.0, 0.02
    grid = np.linspace(-4, 4, 400_001)
    density = np.exp(-(grid**2) / (2 * rho)) / math.sqrt(2 * math.pi * rho)
    mixture = float((np.exp(grid * total - grid**2 * squares / 2) * density).sum() * (grid[1] - grid[0]))
    assert math.exp(log_e(total, squares, rho)) == pytest.approx(mixture, rel=1e-9)


def test_rho_is_the_best_where_the_verdict_falls() -> None:
    squares = 700.0
    best = rho_for(squares)

    def least_total(rho: float) -> float:  # S at which E reaches 20
        return math.sqrt((2 * math.log(DECIDED) + math.log1p(rho * squares)) * (1 + rho * squares) / rho)

    assert all(least_total(best) <= 1.001 * least_total(best * factor) for factor in (0.2, 0.5, 0.8, 1.25, 2, 5))


@pytest.mark.parametrize(("total", "squares"), [(0.0, 90.0), (25.0, 90.0), (-60.0, 140.0), (3.0, 5.0)])
def test_the_interval_holds_every_difference_that_has_less_evidence_than_a_verdict(
    total: float, squares: float
) -> None:
    pages, rho = 200.0, rho_for(100.0)
    verdict = Verdict.of_pages(pages, total, squares, rho)
    low, high = verdict.interval
    assert low < verdict.difference < high
    for end, inside in ((low, 1), (high, -1)):
        for mu, beyond in ((end + inside * 1e-9, False), (end - inside * 1e-9, True)):
            spread = squares - 2 * mu * total + mu * mu * pages
            assert (log_e(total - mu * pages, spread, rho) >= math.log(DECIDED)) is beyond
    assert (verdict.winner != 0) is not (low < 0 < high)


def test_clusters_of_one_page_each_are_pages_but_for_their_number() -> None:
    rng = np.random.default_rng(2)
    totals = rng.integers(-2, 3, 300).astype(np.float64)
    rho = rho_for(200.0)
    pages = Verdict.of_pages(300, totals.sum(), float((totals**2).sum()), rho)
    clusters = Verdict.of_clusters(np.ones(300), totals, rho)
    assert clusters.difference == pages.difference
    assert clusters.e_value == pytest.approx(
        math.exp(log_e(totals.sum(), (totals**2).sum() * clusters.effective / (clusters.effective - 1), rho))
    )
    assert clusters.interval[0] < pages.interval[0] < pages.interval[1] < clusters.interval[1]


def test_few_queries_say_nothing_of_others() -> None:
    verdict = Verdict.of_clusters(np.full(19, 1000.0), np.full(19, 500.0), rho_for(200.0))
    assert (verdict.winner, verdict.difference) == (0, 0.5)
    assert math.isnan(verdict.e_value)


def test_no_page_decides_nothing() -> None:
    verdict = Verdict.of_pages(0.0, 0.0, 0.0, 1.0)
    assert (verdict.winner, verdict.e_value, verdict.interval) == (0, 1.0, (-math.inf, math.inf))


@pytest.mark.parametrize(("n", "share", "repeated"), [(8, 0.0, False), (8, 0.3, True), (1, 1.0, False)])
def test_coins_that_are_thrown_once_a_query_are_seen(n: int, share: float, repeated: bool) -> None:  # noqa: FBT001
    rng = np.random.default_rng(5)
    fair = rng.binomial(n, 0.5, 3000)
    cached = n * rng.integers(0, 2, 3000)
    heads = np.where(rng.random(3000) < share, cached, fair).astype(np.float64)
    z, factor = repeated_coins(np.full(3000, float(n)), heads)
    assert (z > 5) is repeated
    assert factor == pytest.approx(1 + share * (n - 1), rel=0.1)


def test_a_few_large_queries_of_fair_coins_repeat_no_coin() -> None:
    # (2 a - n)^2 / n of one query is chi-squared: beyond 1 + 5 sqrt(2) in one look of 200, and z has the normal tail
    heads = np.random.default_rng(3).binomial(10_000, 0.5, (2, 5000)).T.astype(np.float64)
    tests = np.array([repeated_coins(np.array([10_000.0, 3.0]), np.array([of, 1.0]))[0] for of in heads[:, 0]])
    assert np.mean(tests > 1.645) == pytest.approx(0.05, abs=0.01)
    assert tests.max() < 4.5


def test_ranks_are_whole_numbers_in_digits_too() -> None:
    of = pl.DataFrame({"rank": ["3", "3.0", "2.5", "", "x", None, "nan", "inf"]})
    assert of.select(whole_number(pl.col("rank"))).to_series().to_list() == [3, 3, *[None] * 6]


def test_a_verdict_that_is_looked_at_twenty_times_is_wrong_in_less_than_one_of_twenty_experiments() -> None:
    rng = np.random.default_rng(11)
    rho, wrong = rho_for(500.0), 0
    for _ in range(200):  # rankers alike, taste by user: the size of a page's difference, not its sign, is shared
        size = rng.integers(0, 4, 100)[rng.integers(0, 100, 2000)]
        signed = size * rng.choice([-1, 1], 2000)
        sums = np.cumsum(signed)[99::100], np.cumsum(signed**2)[99::100]
        wrong += any(log_e(float(s), float(v), rho) >= math.log(DECIDED) for s, v in zip(*sums, strict=True))
    assert wrong <= 10
