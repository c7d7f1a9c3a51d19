"""Sums over clicks, values and errors of rankings: against loops over pages, and against what must not matter."""

import math
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import polars as pl
import pytest

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.tails import holm
from posbias.core.counts.counting_plan import StatisticsPlan, count_cells
from posbias.core.evaluation.break_even import BreakEven, bends
from posbias.core.evaluation.clicked import (
    ARP,
    DCG,
    N_PAGES,
    RANK,
    RANKING,
    SCORE,
    CellWeights,
    RankingMeasures,
    cell_counts,
    count_top,
    merge_query_sums,
    page_impressions,
    page_rows,
    pages_by_query,
    query_sums,
    rank_lists,
)
from posbias.core.evaluation.estimates import Bound, Evaluation, Totals, hoeffding, largest_gain
from posbias.core.models import get_model
from posbias.core.simulation.simulate import SimulationOptions, simulate

Candidates = Literal["page", "query"]
PLAN = StatisticsPlan(get_model("pbm"))
THETA = (1.0, 0.6, 0.3, 0.05)
TAU, DEPTH = 0.1, 2


@dataclass(frozen=True)
class Case:
    """A log, two rankings, theta."""

    log: pl.DataFrame
    scores: tuple[pl.DataFrame, ...]

    @property
    def cells(self) -> CellWeights:
        """The last position has a clipped weight, the one below it no propensity."""
        counts = count_cells(self.log.lazy(), PLAN).sort("position")
        theta = np.array([*THETA, math.nan])[: counts.height]
        return CellWeights(counts.select("position"), theta, TAU)

    @property
    def lists(self) -> pl.DataFrame:
        """Both rankings."""
        numbered = [
            own.select(pl.lit(number, pl.UInt16).alias(RANKING), "query", "doc", pl.col("score").alias(SCORE))
            for number, own in enumerate(self.scores, start=1)
        ]
        return rank_lists(pl.concat(numbered))

    def evaluation(
        self, candidates: Candidates, theta: Floats | None = None, hidden: float = 0.0, tau: float = TAU
    ) -> Evaluation:
        """What is found, perhaps with another theta."""
        cells = self.cells
        cells = cells if theta is None else CellWeights(cells.cells, theta, tau)
        rows = page_impressions(self.log, PLAN, cells)
        pages = pages_by_query(rows)
        shown = page_rows(rows if candidates == "page" else cell_counts(rows), pages)
        lists = self.lists
        asked = RankingMeasures(1 + len(self.scores), DEPTH, candidates, bends(hidden))
        found = query_sums(shown, lists, cells, asked)
        totals = Totals.of(found, lists, asked, float(found.sums[:, N_PAGES].sum()))
        return Evaluation(totals, asked, np.diag(np.full(len(cells.propensity), 0.01)))


@pytest.fixture(scope="module")
def case() -> Case:
    """Pages of 5 positions, some documents without a score, some scores equal."""
    drawn = simulate(SimulationOptions("pbm", 300, 12, 8, 5, days=0, seed=3, query_exponent=0.3))
    rng = np.random.default_rng(1)
    truth = drawn.attractiveness
    good = truth.select("query", "doc", score=(pl.col("attractiveness") * 4).round())
    lacking = truth.select("query", "doc", score=pl.Series(rng.standard_normal(truth.height)))
    return Case(drawn.log, (good, lacking.filter(pl.col("doc") % 4 != 1)))


def ranks_of_query(case: Case, number: int, query: int) -> list[int]:
    """The documents of a list, by score and then by id as text, both downwards."""
    own = case.scores[number].filter(query=query).select("score", "doc").rows()
    return [doc for _, doc in sorted(own, key=lambda row: (row[0], str(row[1])), reverse=True)]


def by_loops(case: Case, candidates: Candidates) -> dict[tuple[int, str, str], float]:
    """Values of the rankings, computed page by page."""
    sums: dict[tuple[int, str, str], float] = {}
    weight_of_all, n_pages = 0.0, 0
    theta = dict(enumerate([*THETA, 0.0], start=1))
    pages_of_query = {query: rows["session"].n_unique() for (query,), rows in case.log.group_by("query")}
    seen = {
        key: sum(theta[position] for position in rows["position"].to_list())
        for key, rows in case.log.group_by("query", "doc")
    }
    for _, page in case.log.group_by("session", maintain_order=True):
        n_pages += 1
        query = page["query"][0]
        shown = page.sort("position").select("doc", "position", "click").rows()
        for doc, position, click in shown:
            if not click:
                continue
            by_cell = 1 / max(theta[position], TAU) if theta[position] else 0.0
            by_query = 1 / max(seen[query, doc] / pages_of_query[query], TAU) if theta[position] else 0.0
            weight_of_all += by_cell if candidates == "page" else by_query
            for number in range(3):
                if number:
                    listed = ranks_of_query(case, number - 1, query)
                    own = [name for name in listed if candidates == "query" or name in [row[0] for row in shown]]
                    rank = own.index(doc) + 1 if doc in own else None
                    last = len(shown) if candidates == "page" else len(listed) + 1
                else:
                    rank, last = position, position
                weight = by_cell if candidates == "page" or not number else by_query
                terms = {
                    "dcg": 1 / math.log2(1 + rank) if rank is not None and rank <= DEPTH else 0.0,
                    "arp": float(last if rank is None else rank),
                }
                for measure, term in terms.items():
                    for estimator, factor in (("naive", 1.0), ("ips", weight)):
                        key = number, measure, estimator
                        sums[key] = sums.get(key, 0.0) + factor * term
    values = {key: total / n_pages for key, total in sums.items()}
    return values | {
        (number, measure, "snips"): total / weight_of_all
        for (number, measure, estimator), total in sums.items()
        if estimator == "ips"
    }


@pytest.mark.parametrize("candidates", ["page", "query"])
def test_values_are_those_of_a_loop_over_pages(case: Case, candidates: Candidates) -> None:
    found, expected = case.evaluation(candidates), by_loops(case, candidates)
    for (number, measure, estimator), value in expected.items():
        if number == 0 and measure == "arp" and candidates == "query":
            continue
        got = found.value(number, DCG if measure == "dcg" else ARP, estimator).value  # type: ignore[arg-type]
        assert got == pytest.approx(value, rel=1e-12), (number, measure, estimator)


def test_the_logs_own_ranking_has_no_average_position_among_all_documents_of_a_query(case: Case) -> None:
    assert math.isnan(case.evaluation("query").value(0, ARP, "snips").value)
    assert case.evaluation("page").value(0, ARP, "snips").value > 1


@pytest.mark.slow
@pytest.mark.parametrize("candidates", ["page", "query"])
def test_the_slope_by_theta_is_the_derivative(case: Case, candidates: Candidates) -> None:
    step, theta = 1e-6, np.array([*THETA, math.nan])
    found = case.evaluation(candidates)
    for measure in (DCG, ARP):
        for estimator in ("ips", "snips"):
            slope = found.gradients(1, measure, estimator)[2]
            for cell in range(len(THETA)):
                moved = [theta * np.where(np.arange(5) == cell, math.exp(sign * step), 1.0) for sign in (1, -1)]
                high, low = (case.evaluation(candidates, at).value(1, measure, estimator).value for at in moved)
                assert slope[cell] == pytest.approx((high - low) / (2 * step), abs=2e-6), (
                    measure.name,
                    estimator,
                    cell,
                )


@pytest.mark.parametrize("candidates", ["page", "query"])
def test_bent_values_are_those_of_bent_theta_with_errors_scaled_alike(case: Case, candidates: Candidates) -> None:
    theta, position = np.array([*THETA, math.nan]), np.arange(1.0, 6.0)
    found = case.evaluation(candidates, hidden=0.4)
    for number, bend in enumerate(bends(0.4)):
        bent, by_itself = found.bent(number), case.evaluation(candidates, bend.theta(theta, position))
        for got, expected in (
            (bent.difference(1, 2, DCG, "snips"), by_itself.difference(1, 2, DCG, "snips")),
            (bent.difference(0, 2, DCG, "snips"), by_itself.difference(0, 2, DCG, "snips")),
        ):
            of_log = [value.std_error**2 - value.std_error_of_theta**2 for value in (got, expected)]
            assert got.value == pytest.approx(expected.value, rel=1e-9)
            assert got.std_error_of_theta == pytest.approx(bend.power * expected.std_error_of_theta, rel=1e-9)
            assert of_log[0] == pytest.approx(of_log[1], rel=1e-9)


def test_a_verdict_turns_where_its_differences_under_all_bends_do(case: Case) -> None:
    found = case.evaluation("page", hidden=0.4)
    under = (found, *(found.bent(number) for number in range(len(bends(0.4)))))
    values = [of.difference(1, 2, DCG, "snips") for of in under]
    whole, *bent = ((value.value, value.low, value.high) for value in values)
    np.testing.assert_equal(asdict(found.break_even(1, 2)), asdict(BreakEven.of(whole, bent)))


@pytest.mark.parametrize("candidates", ["page", "query"])
def test_weights_before_clipping_are_counted_by_their_size(case: Case, candidates: Candidates) -> None:
    number, total = case.evaluation(candidates).totals.pooled.weights
    clicks = case.log.filter(pl.col("click") == 1, pl.col("position") <= 4)
    assert number.sum() == clicks.height
    if candidates == "page":
        by_cell = clicks.group_by("position").len().sort("position", descending=True)["len"].to_list()
        assert number[number > 0][::-1].tolist() == by_cell
        weights = (total[number > 0] / number[number > 0]).tolist()
        assert weights == pytest.approx([1 / theta for theta in THETA])
    k, at_most = case.evaluation(candidates).pareto_k
    assert at_most == pytest.approx(1 - 1 / math.log10(clicks.height))
    assert (k is None) == (candidates == "page")  # four cells, but many documents


def test_the_error_is_the_jackknife_over_queries(case: Case) -> None:
    found = case.evaluation("page")
    queries = case.log["query"].unique().sort().to_list()
    without = [Case(case.log.filter(pl.col("query") != query), case.scores).evaluation("page") for query in queries]
    for ranking, baseline in ((1, None), (1, 2)):

        def value(of: Evaluation, one: int = ranking, other: int | None = baseline) -> float:
            own = of.value(one, DCG, "ips") if other is None else of.difference(one, other, DCG, "ips")
            return own.value

        apart = np.array([value(of) for of in without]) - value(found)
        spread = (len(queries) - 1) / len(queries) * np.sum(apart**2)
        got = found.value(ranking, DCG, "ips") if baseline is None else found.difference(1, 2, DCG, "ips")
        of_log = got.std_error**2 - got.std_error_of_theta**2
        assert of_log == pytest.approx(spread, rel=1e-9)
        assert got.std_error_of_theta > 0
        assert got.low < got.value < got.high


def test_a_clipped_weight_does_not_follow_theta(case: Case) -> None:
    found = case.evaluation("page")
    assert found.gradients(1, DCG, "ips")[2][3] == 0
    assert found.gradients(1, DCG, "ips")[2][2] < 0
    assert found.totals.pooled.clipped == case.log.filter(position=4)["click"].sum() > 0
    assert found.totals.pooled.unweighted == case.log.filter(position=5)["click"].sum() > 0


def test_pieces_of_a_part_add_up_to_the_part(case: Case) -> None:
    asked, cells, lists = RankingMeasures(3, DEPTH, "page"), case.cells, case.lists
    parts = [case.log, *(case.log.filter(pl.col("session") % 3 == rest) for rest in range(3))]
    rows = [page_impressions(part, PLAN, cells) for part in parts]
    whole, *pieces = (query_sums(page_rows(part, pages_by_query(part)), lists, cells, asked) for part in rows)
    together = merge_query_sums(pieces)
    one, other = (Totals.of(found, lists, asked, 300.0) for found in (whole, together))
    np.testing.assert_allclose(other.moments, one.moments, rtol=1e-12)
    np.testing.assert_allclose(other.pooled.moves, one.pooled.moves, rtol=1e-12)
    np.testing.assert_allclose(other.pooled.squares, one.pooled.squares, rtol=1e-12)
    assert other.pooled.n_pages == one.pooled.n_pages == 300
    assert other.pooled.never_shown.tolist() == one.pooled.never_shown.tolist()


def test_what_a_ranking_lacks_is_counted(case: Case) -> None:
    pooled = case.evaluation("page").totals.pooled
    without = case.log.filter(pl.col("doc") % 4 == 1)
    assert pooled.unscored_impressions.tolist() == [0, 0, without.height]
    assert pooled.unscored_clicks.tolist() == [0, 0, without["click"].sum()]
    only = Case(case.log, (case.scores[0], case.scores[1].filter(pl.col("query") > 0)))
    assert only.evaluation("page").totals.pooled.unscored_pages[2] == case.log.filter(query=0)["session"].n_unique()


def test_documents_on_top_that_were_never_shown_are_counted_by_page() -> None:
    log = pl.DataFrame(
        {"session": [1, 1, 2, 2, 3], "query": [1, 1, 1, 1, 2], "doc": [1, 2, 2, 3, 1], "position": [1, 2, 1, 2, 1]},
        schema_overrides={"position": pl.Int32},
    ).with_columns(click=pl.lit(1, pl.Int8))
    scores = pl.DataFrame({"query": [1, 1, 1, 2], "doc": [9, 1, 2, 8], "score": [3.0, 2.0, 1.0, 1.0]})
    case = Case(log, (scores, scores.filter(pl.col("doc") < 9)))
    asked, cells = RankingMeasures(3, DEPTH, "page"), case.cells
    rows = page_impressions(log, PLAN, cells)
    found = query_sums(page_rows(rows, pages_by_query(rows)), case.lists, cells, asked)
    top, never = count_top(found, case.lists, asked)
    assert top.tolist() == [0, 2 * 2 + 1, 2 * 2 + 1]
    assert never.tolist() == [0, 2 + 1, 1]


def test_equal_scores_stand_in_the_order_of_trec_eval() -> None:
    scores = pl.DataFrame({"query": ["q"] * 4, "doc": [9, 10, 2, 30], "posbias_score": [1.0, 1.0, 1.0, 2.0]})
    lists = rank_lists(scores.with_columns(pl.lit(1, pl.UInt16).alias(RANKING)))
    assert lists.sort(RANK)["doc"].to_list() == [30, 9, 2, 10]  # as text, the last letters first


def test_one_query_says_nothing_of_the_error(case: Case) -> None:
    only = Case(case.log.filter(query=0), case.scores).evaluation("page").value(1, DCG, "ips")
    assert only.value > 0
    assert math.isnan(only.std_error)
    assert math.isnan(only.p_value)


def test_holm_takes_steps_from_the_smallest_p_value() -> None:
    found = holm(np.array([0.01, math.nan, 0.04, 0.03]))
    assert found[[0, 2, 3]].tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert math.isnan(found[1])
    assert holm(np.array([0.6, 0.7])).tolist() == [1.0, 1.0]


def test_the_bound_of_a_ranking_is_one_of_as_many_as_there_are(case: Case) -> None:
    found = case.evaluation("page")
    value = found.value(1, DCG, "ips").value
    low, _ = Bound(0.9, case.cells).bounds(found, 1, DCG)
    expected = hoeffding(value, found.totals.pooled.n_pages, largest_gain(case.cells, DEPTH), 0.9, 3)
    assert low == pytest.approx(expected)
