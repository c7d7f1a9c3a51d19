"""Predicted clicks of another ranking: right where the truth is known, and the same however the counts are parted."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import polars as pl
import pytest

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.evaluation.break_even import POWERS, Bend, BreakEven, bends
from posbias.core.evaluation.clicked import RANK
from posbias.core.evaluation.prediction import (
    CLASS,
    CONTEXT,
    CellTheta,
    PageSums,
    Placed,
    Prediction,
    Prior,
    Scope,
    ShownPart,
    browsing_difference,
    predict,
)
from posbias.core.models import get_model

PLAN, ALL, K, DOCS = StatisticsPlan(get_model("pbm")), Scope("all"), 5, 9
THETA: Floats = np.arange(1, K + 1, dtype=np.float64) ** -0.8


@dataclass(frozen=True)
class World:
    """Attractiveness (Q, D), pages (Q,), and the counts of what a noisy ranker showed, by position (Q, D, K)."""

    gamma: Floats
    shown: Floats
    clicks: Floats

    @property
    def counts(self) -> pl.DataFrame:
        """Return the counts as statistics have them."""
        query, doc, cell = np.nonzero(self.shown)
        return pl.DataFrame(
            {
                "query": query,
                "doc": doc,
                "position": (cell + 1).astype(np.int32),
                "impressions": self.shown[query, doc, cell],
                "clicks": self.clicks[query, doc, cell],
            }
        )

    def truth(self, rank: Integers) -> float:
        """Return the clicks per page that a ranking gains over what was shown; ranks from 1, 0 for none."""
        pages = self.shown.sum((1, 2)) / K
        theta = np.where((rank > 0) & (rank <= K), THETA[np.clip(rank - 1, 0, K - 1)], 0.0)
        return float(np.sum((pages[:, None] * theta - self.shown @ THETA) * self.gamma) / pages.sum())


def world(seed: int, *, queries: int = 40, pages: int = 2000, exact: bool = False) -> World:
    """Return a world; where `exact`, the clicks are what is expected of them."""
    rng = np.random.default_rng(seed)
    gamma = 1 / (1 + np.exp(2 - 1.2 * rng.standard_normal((queries, DOCS))))
    score = np.log(gamma / (1 - gamma)) + rng.standard_normal(gamma.shape)
    of_query = np.maximum((pages / (1 + np.arange(queries)) / 4).astype(int), 2)
    shown, clicks = np.zeros((2, queries, DOCS, K))
    for query, number in enumerate(of_query):
        order = np.argsort(-score[query] - 0.8 * rng.standard_normal((number, DOCS)), axis=1)[:, :K]
        np.add.at(shown[query], (order, np.arange(K)), 1.0)
    clicks = shown * THETA * gamma[:, :, None] if exact else rng.binomial(shown.astype(int), THETA * gamma[:, :, None])
    return World(gamma, shown, np.asarray(clicks, np.float64))


def ranks(score: Floats) -> Integers:
    """Return the rank of each document, from 1."""
    return 1 + np.argsort(np.argsort(-score, axis=1), axis=1)


def lists(rank: Integers) -> pl.DataFrame:
    """Return lists as a ranking has them."""
    query, doc = np.nonzero(rank)
    return pl.DataFrame({"query": query, "doc": doc, RANK: rank[query, doc].astype(np.int32)})


def theta_of(theta: Floats, plan: StatisticsPlan = PLAN) -> CellTheta:
    """Return theta by position."""
    return CellTheta(plan, pl.DataFrame({"position": np.arange(1, len(theta) + 1, dtype=np.int32)}), theta)


def predicted(
    counts: pl.DataFrame, rank: pl.DataFrame, by: CellTheta, covariance: Floats | None = None, scope: Scope = ALL
) -> Prediction:
    """Return a prediction from counts in one part."""
    placed = Placed.of(ShownPart.of(counts, by), rank)
    prior = Prior.fit(placed)
    posterior = prior.posterior(placed)
    return predict(PageSums.of(posterior, scope), prior, covariance, gains=[posterior.gains()])


def near(one: Prediction, other: Prediction) -> bool:
    """Whether two predictions are the same but for rounding."""
    return all(np.allclose(value, vars(other)[name], rtol=1e-9, atol=1e-12) for name, value in vars(one).items())


@pytest.fixture(scope="module")
def small() -> World:
    """Return a world with few clicks."""
    return world(1)


def test_with_many_pages_the_prediction_is_the_truth() -> None:
    made = world(2, pages=400_000, exact=True)
    for score in (made.gamma, -made.gamma, np.random.default_rng(0).random(made.gamma.shape)):
        one = predicted(made.counts, lists(ranks(score)), theta_of(THETA))
        assert one.difference == pytest.approx(made.truth(ranks(score)), abs=2e-3)
        assert one.interval[0] < made.truth(ranks(score)) < one.interval[1]


def test_a_ranking_that_repeats_what_was_shown_changes_nothing(small: World) -> None:
    shown = np.zeros_like(small.shown)
    order = np.argsort(-small.gamma, axis=1)[:, :K]
    shown[np.arange(len(order))[:, None], order, np.arange(K)] = 20
    clicks = np.random.default_rng(0).binomial(20, THETA * small.gamma[:, :, None]) * (shown > 0)
    one = predicted(replace(small, shown=shown, clicks=clicks).counts, lists(ranks(small.gamma)), theta_of(THETA))
    assert one.difference == pytest.approx(0, abs=1e-12)
    assert one.interval == pytest.approx((0, 0), abs=1e-9)
    assert one.unsupported == 0


def test_the_posterior_and_the_sums_are_those_of_their_equations(small: World) -> None:
    rank = ranks(np.random.default_rng(3).random(small.gamma.shape))
    placed = Placed.of(ShownPart.of(small.counts, theta_of(THETA)), lists(rank))
    prior = Prior.fit(placed)
    sums = PageSums.of(prior.posterior(placed), ALL)
    difference, variance, lent, last = 0.0, 0.0, 0.0, np.array([1, 2, 3, 5, 10, 20])
    for query in range(len(rank)):
        pages = small.shown[query, :, 0].sum()
        for doc in range(DOCS):
            n, c = small.shown[query, doc], small.clicks[query, doc].sum()
            e, there = float(n @ THETA), rank[query, doc] <= K
            w = pages * THETA[rank[query, doc] - 1] if there else 0.0
            if e == 0:
                lent += w
                continue
            row = 1 + int(np.sum(prior.edges < e / pages))
            column = int(np.sum(last < rank[query, doc])) if there else 7
            mean, spread = prior.mean[8 * row + column], prior.spread[8 * row + column]
            noise = max(e * mean - float(n @ THETA**2) * mean**2, 0.05 * e * mean) / e**2
            kept = spread / (spread + noise)
            difference += (w - e) * (mean + kept * (c / e - mean))
            variance += (w - e) ** 2 * spread * (1 - kept)
    assert sums.shown == pytest.approx(difference, rel=1e-12)
    assert sums.variance == pytest.approx(variance, rel=1e-12)
    assert sums.unseen.sum() == pytest.approx(lent, rel=1e-12)


def test_a_rank_is_examined_as_the_cells_there_that_the_pages_of_the_query_have(small: World) -> None:
    """Pages without and with a block, of each query another share: w_d = sum_k n_q(k) theta_k over the cells at r."""
    under, theta = world(8, pages=700), np.concatenate([THETA, THETA * np.linspace(0.4, 0.9, K)])
    counts = [of.counts.with_columns(block=pl.lit(value)) for value, of in enumerate((small, under))]
    cells = pl.DataFrame({"position": np.tile(np.arange(1, K + 1), 2), "block": np.repeat([0, 1], K)})
    by = CellTheta(replace(PLAN, cell=("block",)), cells.cast(pl.Int32), theta)
    rank = ranks(np.random.default_rng(4).random(small.gamma.shape))
    placed = Placed.of(ShownPart.of(pl.concat(counts).with_columns(pl.col("block").cast(pl.Int32)), by), lists(rank))
    posterior = Prior.fit(placed).posterior(placed)
    pages = np.stack([of.shown.sum((1, 2)) / K for of in (small, under)])  # by block and query
    np.testing.assert_allclose(placed.part.pages, pages.sum(0))
    group, kind = placed.pair_group, placed.kind
    at, there = placed.rank[kind] - 1, placed.rank[kind] > 0
    of_cells = pages[:, group] * theta.reshape(2, K)[:, at] * there  # by block and pair
    np.testing.assert_allclose(placed.new_exposure[kind], of_cells.sum(0))
    sums = PageSums.of(posterior, ALL)
    seen = (posterior.value * (placed.exposure > 0))[kind]
    moved = [np.bincount(at[there], (of_block * seen)[there], K) for of_block in of_cells]
    np.testing.assert_allclose(sums.moved, np.concatenate(moved))
    of_squares = pages[:, group] * theta.reshape(2, K)[:, at] ** 2 * there
    np.testing.assert_allclose(placed.bent(Bend(power=2.0)).new_exposure[kind], of_squares.sum(0))
    np.testing.assert_allclose(sums.moved_unseen.sum() + sums.moved.sum(), np.sum(of_cells * np.where(seen, seen, 1)))


def test_parts_of_whole_queries_add_up(small: World) -> None:
    rank, by = lists(ranks(small.gamma)), theta_of(THETA)
    whole = Placed.of(ShownPart.of(small.counts, by), rank)
    prior = Prior.fit(whole)
    parts = small.counts.filter(pl.col("query") % 3 == 0), small.counts.filter(pl.col("query") % 3 > 0)
    halves = [prior.posterior(Placed.of(ShownPart.of(rows, by), rank)) for rows in parts]
    sums, gains = [PageSums.of(half, ALL) for half in halves], [half.gains() for half in halves]
    covariance: Floats = 0.01 * np.diag(np.arange(K, dtype=np.float64))
    one = predicted(small.counts, rank, by, covariance)
    assert near(predict(sums[0] + sums[1], prior, covariance, gains=gains), one)


def test_pairs_that_are_alike_count_as_if_each_stood_for_itself() -> None:
    made, by = world(12, queries=60, pages=150), theta_of(THETA)
    rank, own_class = lists(ranks(made.gamma)), pl.col("query").cast(pl.String).alias(CLASS)
    kinds = [Placed.of(ShownPart.of(rows, by), rank) for rows in (made.counts, made.counts.with_columns(own_class))]
    assert len(kinds[0].number) < 0.8 * len(kinds[1].number)
    assert near(predicted(made.counts.with_columns(own_class), rank, by), predicted(made.counts, rank, by))


def test_scale_of_theta_and_names_and_order_of_rows_mean_nothing(small: World) -> None:
    rank = lists(ranks(small.gamma))
    one = predicted(small.counts, rank, theta_of(THETA), np.zeros((K, K)))
    scaled = predicted(small.counts, rank, theta_of(THETA / 2), np.ones((K, K)))  # all cells off together
    unlike = {"bounds": one.bounds}  # attractiveness of 1 means something else
    assert near(replace(scaled, **unlike), one)
    renamed = [
        frame.with_columns(pl.format("d{}", pl.col("doc") * 7 % 9).alias("doc")) for frame in (small.counts, rank)
    ]
    assert near(predicted(renamed[0].sample(fraction=1, shuffle=True, seed=1), renamed[1], theta_of(THETA)), one)


def test_bins_of_one_position_and_a_context_of_one_value_change_nothing(small: World) -> None:
    rank = lists(ranks(small.gamma))
    one = predicted(small.counts, rank, theta_of(THETA))
    bins = replace(PLAN, position_bins=(1, 2, 3, 4, 5))
    assert near(predicted(small.counts, rank, theta_of(THETA, bins)), one)
    device = pl.lit("phone").alias("device")
    by = theta_of(THETA, replace(PLAN, context=("device",)))
    assert near(
        predicted(small.counts.with_columns(device), rank, replace(by, cells=by.cells.with_columns(device))), one
    )


def test_a_last_bin_is_filled_as_far_as_pages_reach(small: World) -> None:
    bins = replace(PLAN, position_bins=(1, 2))
    counts = small.counts.with_columns(pl.col("position").clip(upper_bound=2))
    counts = counts.group_by("query", "doc", "position").sum()
    one = predicted(counts, lists(ranks(small.gamma)), theta_of(np.array([1.0, 0.5]), bins))
    assert one.filled == pytest.approx(1)


def test_documents_that_were_never_shown_widen_the_interval_and_the_bounds(small: World) -> None:
    known = predicted(small.counts, lists(ranks(small.gamma)), theta_of(THETA))
    rank = ranks(np.concatenate([small.gamma, np.full((len(small.gamma), 1), 0.4)], axis=1))
    one = predicted(small.counts, lists(rank), theta_of(THETA))
    assert 0.1 < one.unsupported < 0.5
    assert one.bounds[0] < one.difference < one.bounds[1]
    assert one.interval[1] - one.interval[0] > known.interval[1] - known.interval[0]


def test_cells_without_theta_count_on_neither_side(small: World) -> None:
    theta = np.where(np.arange(K) == K - 1, np.nan, THETA)
    one = predicted(small.counts, lists(ranks(small.gamma)), theta_of(theta))
    cut = small.counts.filter(pl.col("position") < K)
    other = predicted(cut, lists(ranks(small.gamma)), theta_of(THETA[:-1]))
    assert one.difference == pytest.approx(other.difference, rel=1e-9)
    assert one.observed == pytest.approx(other.observed, rel=1e-9)


def test_the_top_and_groups_are_parts_of_all(small: World) -> None:
    rank = lists(ranks(small.gamma))
    one = predicted(small.counts, rank, theta_of(THETA))
    assert near(predicted(small.counts, rank, theta_of(THETA), scope=Scope("all", top=K)), one)
    device = pl.when(pl.col("query") % 2 == 0).then(pl.lit("phone")).otherwise(pl.lit("desktop")).alias("device")
    cells = [theta_of(THETA).cells.with_columns(device=pl.lit(name)) for name in ("desktop", "phone")]
    by = CellTheta(replace(PLAN, context=("device",)), pl.concat(cells), np.tile(THETA, 2))
    counts = small.counts.with_columns(device)
    one = predicted(counts, rank, by)
    assert by.contexts == ["device=desktop", "device=phone"]
    placed = Placed.of(ShownPart.of(counts, by), rank)
    prior, scopes = Prior.fit(placed), [Scope(name, part=(CONTEXT, number)) for number, name in enumerate(by.contexts)]
    halves = [predict(PageSums.of(prior.posterior(placed), scope), prior, None) for scope in scopes]
    assert sum(half.pages * half.difference for half in halves) == pytest.approx(one.pages * one.difference, rel=1e-9)


def test_pages_of_an_ab_test_grow_with_the_inverse_square_of_the_difference(small: World) -> None:
    one = predicted(small.counts, lists(ranks(small.gamma)), theta_of(THETA))
    assert one.pages_per_arm(0.1) == pytest.approx(4 * one.pages_per_arm(0.2))
    assert one.pages_per_arm(0.1) == pytest.approx(7.849 * sum(one.variances) / 0.01, rel=1e-3)
    assert np.isinf(one.pages_per_arm(0.0))


@pytest.mark.slow
def test_intervals_cover_the_truth_and_zero_is_excluded_on_the_right_side() -> None:
    covered, number, right, errors = 0, 0, list[bool](), list[float]()
    for seed in range(60):
        made = world(100 + seed, queries=100)
        noise = np.random.default_rng(seed).standard_normal((4, *made.gamma.shape))
        for score in (np.log(made.gamma) + 0.4 * noise[0], np.log(made.gamma) + 1.5 * noise[1], noise[2]):
            truth, one = made.truth(ranks(score)), predicted(made.counts, lists(ranks(score)), theta_of(THETA))
            covered += one.interval[0] <= truth <= one.interval[1]
            errors.append((one.difference - truth) / one.observed)
            if not one.interval[0] <= 0 <= one.interval[1]:
                right.append(bool(np.sign(one.difference) == np.sign(truth)))
            number += 1
    assert covered / number >= 0.93
    assert np.mean(right) >= 0.99
    assert len(right) > number / 2
    assert abs(np.mean(errors)) < 0.01


def browsed(counts: pl.DataFrame, theta: Floats) -> tuple[pl.DataFrame, CellTheta]:
    """Return counts whose last clicks are spread over the positions above, and theta by position and last click."""
    last = (pl.col("query") + pl.col("doc")) % pl.col("position")
    counts = counts.with_columns(previous_click=last.cast(pl.Int32))
    cells = counts.select("position", "previous_click").unique().sort("position", "previous_click")
    at = cells["position"].to_numpy() - 1, cells["previous_click"].to_numpy()
    return counts, CellTheta(StatisticsPlan(get_model("ubm")), cells, theta[at])


def test_without_an_effect_of_clicks_above_the_browsing_model_is_the_position_based_one(small: World) -> None:
    rank = lists(ranks(np.random.default_rng(4).random(small.gamma.shape)))
    counts, by = browsed(small.counts, np.repeat(THETA[:, None], K, axis=1))
    placed = Placed.of(ShownPart.of(counts, by), rank)
    prior = Prior.fit(placed)
    summed = counts.group_by("query", "doc", "position").agg(pl.col("impressions", "clicks").sum())
    one = PageSums.of(prior.posterior(Placed.of(ShownPart.of(summed, theta_of(THETA)), rank)), ALL)
    assert browsing_difference(prior.posterior(placed)) == pytest.approx(
        one.shown + float(one.unseen @ prior.imputed[2]), rel=1e-9
    )


def test_the_browsing_model_expects_what_all_ways_to_click_on_a_page_add_up_to(small: World) -> None:
    theta = np.random.default_rng(5).uniform(0.2, 0.9, (K, K))
    counts, by = browsed(small.counts, theta)
    rank = ranks(np.random.default_rng(6).random(small.gamma.shape))
    placed = Placed.of(ShownPart.of(counts, by), lists(rank))
    prior = Prior.fit(placed)
    seen, kind = placed.exposure > 0, placed.kind
    value = np.where(seen, prior.posterior(placed).value, prior.imputed[2][placed.rank_class])[kind]
    total = -float((placed.exposure * seen)[kind] @ value)
    for query in range(len(rank)):
        here = (placed.pair_group == query) & (placed.new_exposure > 0)[kind]
        g = value[here][np.argsort(placed.rank[kind[here]])]
        for clicks in product((0, 1), repeat=K):
            chance, last = 1.0, 0
            for position, click in enumerate(clicks):
                examined = theta[position, last] * g[position]
                chance, last = chance * (examined if click else 1 - examined), position + 1 if click else last
            total += placed.part.pages[query] * chance * sum(clicks)
    assert browsing_difference(prior.posterior(placed)) == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("seed", [3, 8, 10])
def test_the_turning_point_is_where_a_prediction_under_bent_theta_is_zero(seed: int) -> None:
    made = world(seed, queries=60, pages=6000)
    odds = np.log(made.gamma / (1 - made.gamma))
    rank = lists(ranks(odds + 2 * np.random.default_rng([seed, 1]).standard_normal(odds.shape)))
    covariance: Floats = 1e-3 * np.diag(np.arange(K, dtype=np.float64))

    def by_itself(power: float) -> Prediction:
        return predicted(made.counts, rank, theta_of(THETA**power), power**2 * covariance)

    placed, bent = Placed.of(ShownPart.of(made.counts, theta_of(THETA)), rank), list[Prediction]()
    for bend in bends(0.0):  # from the same pairs, what a prediction by itself says
        under = placed.bent(bend)
        prior = Prior.fit(under)
        posterior = prior.posterior(under)
        sums, gains = PageSums.of(posterior, ALL), posterior.gains()
        bent.append(predict(sums, prior, bend.power**2 * covariance, gains=[gains]))
        assert near(bent[-1], by_itself(bend.power))
    whole, *others = ((one.difference, *one.interval) for one in (by_itself(1.0), *bent))
    found = BreakEven.of(whole, others)
    for turn, far in ((found.below, 0.0), (found.above, 3.0)):
        if np.isfinite(turn.at):
            least, most = 1.0, far
            for _ in range(10):  # bisection
                middle = (least + most) / 2
                turned = by_itself(middle).difference * whole[0] < 0
                least, most = (least, middle) if turned else (middle, most)
            assert turn.at == pytest.approx(least, abs=0.05)
            low, high = by_itself(turn.at).interval
            for end in {turn.first, turn.last} - {POWERS[0], POWERS[-1]}:  # where an end of the interval is 0
                assert min(np.abs(by_itself(end).interval)) < 0.1 * (high - low)
    assert np.isfinite([found.below.at, found.above.at]).any()
