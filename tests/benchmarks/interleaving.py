"""What verdicts of interleaving are worth where the truth is known, and propensities from its coins.

    python tests/benchmarks/interleaving.py verdicts [--runs 1000] [--only WORDS] [--processes 1]
    python tests/benchmarks/interleaving.py coins [--runs 60] [--pages 50000] [--expected] [--only WORDS]

verdicts  Team drafts of two rankers at 20 looks, in a world of its own each run: 10 positions, theta = 1 / position, 20
          documents a query with gamma ~ Beta(1, 3), Zipf (.8) queries. Rankers order by log gamma and normal errors of
          their own, as large as each other's (.8), or A's smaller (.5). A part of the pages is of 200 users who come
          back (Zipf .5); half of the documents are for each of them what they are for nobody else.

          wrong      share of runs with a verdict for the ranker that is not better on this traffic (queries: at all);
                     in brackets its 95 % limit (Clopper & Pearson)
          right      share of runs with a verdict for the better one
          pages      median number of pages to the verdict, over all runs
          held       share of runs whose 20 intervals all hold the truth: of the traffic, the mean of its own pages
          at a look  the same look by look: the lowest, of those with intervals in 50 runs or more
          known      share of the looks with an interval: it takes 20 effective queries
          A/B        pages of a test of clicks a page, n fixed, two-sided 5 %, of the power of traffic by plain credit

coins     Mean error of log theta over logs of `simulate --interleave`, and its standard error. Lists and taste follow a
          segment of users that the log hides: 2 of them; 10; 50 and few documents; lists that differ by page, too.

          pure, all rounds   swaps of 1 and 2, of 3 and 4 (--method randomized): where the ranks differ, or everywhere
          all clicks         clicks at 2 over those at 1, at 4 over those at 3
          no strata, ranks   `fit`; with --stratify rank_a --stratify rank_b
          firsts, lists      strata of the first document, or the first five, of both rankers, which each page shows
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray
from processes import table_console
from recovery import WRONG, options_of, posbias
from rich.box import SIMPLE_HEAD
from rich.table import Table

from posbias.core.evaluation.interleaving import CreditRule, Verdict, rho_for
from posbias.core.simulation.simulate import team_draft

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Figures = dict[str, Any]
K, DOCS, LOOKS, LEVEL = 10, 20, 20, 0.05
USERS_WHO_RETURN, TIMES, FEWEST_RUNS = 200, 1_000_000, 50
THETA: Floats = 1 / np.arange(1.0, K + 1)
COINS: Integers = (np.arange(2 ** (K // 2))[:, None] >> np.arange(K) // 2) & 1  # B picks first, all 32 ways
NORMAL, OWN_TASTE = NormalDist(), 0.5  # share of documents that are for a user who returns as for nobody else
SQUARES = {"plain": 0.5, "corrected": 2.0, "pairs": 0.5}  # of a page, by which `interleave` chooses rho
TRAFFIC, QUERIES, USERS, ONCE, LOOKING = "traffic", "queries", "users", "sign test, once", "sign test, 20 looks"


@dataclass(frozen=True)
class Design:
    """Two rankers and their pages."""

    noise_a: float
    noise_b: float | None  # None: B is A, and credit is by teams alone, as if no ranks were known
    pages: int = 4_000
    queries: int = 200
    returning: float = 0.3  # share of the pages


DESIGNS = {
    "A/A": Design(0.8, None),
    "as good": Design(0.8, 0.8),
    "A better": Design(0.5, 0.8, returning=0.0),
    "A better, users return": Design(0.5, 0.8),
    "A better, 1,500 queries": Design(0.5, 0.8, 6_000, 1_500, 0.0),
}


class World:
    """Queries and two rankings of each, with the drafts of all coins, and the credit of a click on each place."""

    def __init__(self, design: Design, rng: np.random.Generator) -> None:
        shape = design.queries, DOCS
        self.gamma: Floats = rng.beta(1, 3, shape)
        noise = [design.noise_a] * 2 if design.noise_b is None else [design.noise_a, design.noise_b]
        errors = rng.standard_normal((2, *shape))[[0, 0 if design.noise_b is None else 1]]
        scores = np.log(self.gamma + 1e-2) + np.reshape(noise, (2, 1, 1)) * errors
        self.orders: Integers = np.argsort(-scores, axis=2)
        ranks = np.repeat(np.argsort(self.orders, axis=2), len(COINS), axis=1)
        doc, team = team_draft(ranks, np.tile(COINS, (design.queries, 1)))
        drafts = design.queries, len(COINS), K
        self.ranks: Integers = np.take_along_axis(ranks, doc[None], axis=2).reshape(2, *drafts)
        self.doc, self.sign = doc.reshape(drafts), (1.0 - 2 * team).reshape(drafts)
        share = np.arange(1, design.queries + 1.0) ** -0.8
        self.share: Floats = share / share.sum()
        differ, above = self.ranks[0] != self.ranks[1], self.ranks[..., ::2] < self.ranks[..., 1::2]
        contest = self.sign if design.noise_b is None else self.sign * np.logical_or.accumulate(differ, axis=2)
        self.credit = {"plain": contest, "corrected": contest * np.minimum(1 / THETA, 5)}
        if design.noise_b is not None:
            self.credit["pairs"] = self.sign * np.repeat(above[0] != above[1], 2, axis=2)

    def expected(self, credit: str, gamma: Floats, query: Integers) -> Floats:
        """Mean difference of a page over the coins: gamma of shape (N, D), of queries of shape (N,)."""
        shown = np.take_along_axis(gamma, self.doc[query].reshape(len(query), -1), axis=1)
        return (self.credit[credit][query] * THETA * shown.reshape(-1, len(COINS), K)).sum(axis=2).mean(axis=1)

    def pages_of_test(self) -> float:
        """Pages of both arms of a test of clicks a page, over (z of its level + z of its power) squared."""
        p = THETA * np.take_along_axis(self.gamma[None], self.orders[..., :K], axis=2)
        mean, each = p.sum(axis=2) @ self.share, ((p * (1 - p)).sum(axis=2) + p.sum(axis=2) ** 2) @ self.share
        return float(2 * (each - mean**2).sum() / (mean[0] - mean[1]) ** 2) if mean[0] != mean[1] else np.inf


def in_general(design: Design, worlds: int = 200) -> dict[str, float]:
    """Mean difference of a page over queries like these, by credit; 0 where both rankers are as good."""
    drawn = [World(design, np.random.default_rng([8, seed])) for seed in range(worlds)]
    every = np.arange(design.queries)
    better = design.noise_b not in {None, design.noise_a}
    return {
        credit: better * float(np.mean([world.expected(credit, world.gamma, every) for world in drawn]))
        for credit in drawn[0].credit
    }


def measured(task: tuple[str, int, int, dict[str, float]]) -> dict[str, Figures]:
    """By credit and question: pages to the verdict, who wins and who is better, which intervals hold the truth."""
    name, seed, expected_pages, general = task
    design, rng = DESIGNS[name], np.random.default_rng([7, list(DESIGNS).index(name), seed])
    world, n, every = World(design, rng), design.pages, np.arange(design.queries)
    query, coin = rng.choice(design.queries, n, p=world.share), rng.integers(len(COINS), size=n)
    often = np.arange(1, USERS_WHO_RETURN + 1.0) ** -0.5
    known = rng.choice(USERS_WHO_RETURN, n, p=often / often.sum())
    returns = rng.random(n) < design.returning
    user = np.where(returns, known, USERS_WHO_RETURN + np.arange(n))
    codes, pair = np.unique(np.where(returns, user * design.queries + query, -1 - query), return_inverse=True)
    query_of = np.where(codes < 0, -1 - codes, codes % design.queries)  # of each (user who returns, query), or query
    own = (rng.random((len(codes), DOCS)) < OWN_TASTE) & (codes >= 0)[:, None]
    gamma = np.where(own, rng.beta(1, 3, own.shape), world.gamma[query_of])
    click = rng.random((n, K)) < THETA * np.take_along_axis(gamma[pair], world.doc[query, coin], axis=1)
    if seed == 0 and design.noise_b is not None:
        compare_with_product(world, query, coin, click)
    at = np.linspace(n / LOOKS, n, LOOKS).astype(int)
    look, kept = np.searchsorted(at, np.arange(n), side="right"), 1 - OWN_TASTE * design.returning
    units = {QUERIES: query, USERS: np.unique(user, return_inverse=True)[1]}
    found = {"A/B": Figures(pages=world.pages_of_test())}
    for credit, table in world.credit.items():
        d, rho = (table[query, coin] * click).sum(axis=1), rho_for(expected_pages * SQUARES[credit])
        # What a document is for one user alone favours neither ranker
        mean = kept * float(world.expected(credit, world.gamma, every) @ world.share)
        own_mean = np.cumsum(world.expected(credit, gamma, query_of)[pair])[at - 1] / at
        truths = {TRAFFIC: own_mean, QUERIES: kept * general[credit], USERS: mean}
        sums = zip(at, np.cumsum(d)[at - 1], np.cumsum(d * d)[at - 1], strict=True)
        seen = {TRAFFIC: [Verdict.of_pages(pages, total, squares, rho) for pages, total, squares in sums]}
        for question, unit in units.items():
            by_unit = np.zeros((2, LOOKS, unit.max() + 1))
            np.add.at(by_unit[0], (look, unit), 1)
            np.add.at(by_unit[1], (look, unit), d)
            pages, totals = by_unit.cumsum(axis=1)
            seen[question] = [Verdict.of_clusters(*of_look, rho) for of_look in zip(pages, totals, strict=True)]
        for question, of_looks in seen.items():
            winner = np.array([verdict.winner for verdict in of_looks])
            low, high = np.array([verdict.interval for verdict in of_looks]).T
            held = np.where(np.isnan(low), np.nan, (low <= truths[question]) & (truths[question] <= high))
            truth = mean if question == TRAFFIC else float(truths[question])
            found[f"{credit}, {question}"] = {**ended(winner, at, truth), "held": held}
        if credit == "plain":
            wins, losses = (np.cumsum(side)[at - 1] for side in (d > 0, d < 0))
            tests = 2 * scipy.special.bdtr(np.minimum(wins, losses), wins + losses, 0.5) < LEVEL
            winner = np.sign(wins - losses) * tests
            found |= {ONCE: ended(winner[-1:], at[-1:], mean), LOOKING: ended(winner, at, mean)}
    return found


def ended(winner: Integers, at: Integers, truth: float) -> Figures:
    """The first verdict of some looks, where there is one."""
    first = int((winner != 0).argmax())
    better = np.sign(np.round(truth, 12))
    return {
        "pages": float(at[first]) if winner[first] else np.inf,
        "wrong": float(winner[first] not in {0, better}),
        "right": float(winner[first] == better != 0),
    }


def compare_with_product(world: World, query: Integers, coin: Integers, click: NDArray[np.bool_]) -> None:
    """Check that pages are credited as `interleave` does it."""
    of = {"team": world.sign, "rank_a": world.ranks[0], "rank_b": world.ranks[1]}
    n = len(query)
    rows = pl.DataFrame(
        {
            "session": np.repeat(np.arange(n), K),
            "query": np.repeat(query, K),
            "position": np.tile(np.arange(1, K + 1), n),
        }
        | {"click": click.ravel().astype(int)}
        | {name: table[query, coin].ravel().astype(int) for name, table in of.items()}
    )
    theta = {position: float(value) for position, value in enumerate(THETA, 1)}
    for name, table in world.credit.items():
        rule = CreditRule((1, -1), "team", ("rank_a", "rank_b"), credit="pairs" if name == "pairs" else "plain")
        rule = replace(rule, propensities=theta) if name == "corrected" else rule
        credited = rule.page_sums(rows.lazy())["difference"].sort().to_numpy()
        np.testing.assert_allclose(credited, np.sort((table[query, coin] * click).sum(axis=1)), atol=1e-9)


def tables_of_verdicts(runs: int, only: str, expected_pages: int, processes: int) -> Iterator[Table]:
    """A table of each design."""
    for name, design in DESIGNS.items():
        if only not in name:
            continue
        general = in_general(design)
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            tasks = [(name, seed, expected_pages, general) for seed in range(runs)]
            found = list(pool.map(measured, tasks, chunksize=20))
        returning = f", {design.returning:.0%} by users who return" * bool(design.returning)
        title = f"{name}: {runs:,} runs of {design.pages:,} pages of {design.queries:,} queries{returning}"
        rows = list[tuple[str, ...]]()
        for row in list(found[0])[1:]:
            of = {figure: np.array([each[row][figure] for each in found]) for figure in found[0][row]}
            wrong, pages = int(of["wrong"].sum()), np.median(of["pages"])
            limit = scipy.special.betaincinv(wrong + 1, runs - wrong, 1 - LEVEL / 2) if wrong < runs else 1.0
            shares = ["", "", ""]
            if "held" in of:
                known = np.isfinite(of["held"])
                throughout = (of["held"] != 0)[known.any(axis=1)].all(axis=1).mean()
                looks = np.nanmean(of["held"][:, known.sum(axis=0) >= FEWEST_RUNS], axis=0)
                at_a_look = looks.min() if len(looks) else np.nan
                shares = [f"{share:.1%}" for share in (throughout, at_a_look, known.mean())]
            number = f"{pages:,.0f}" if pages < np.inf else "-"
            cells = f"{wrong / runs:.1%} ({limit:.1%})", f"{of['right'].mean():.1%}", number
            rows.append((row, *cells, *shares))
        power = float(np.mean([each[f"plain, {TRAFFIC}"]["right"] for each in found]))
        if any(general.values()) and power < 1:
            z = NORMAL.inv_cdf(1 - LEVEL / 2) + NORMAL.inv_cdf(power)
            pages = np.median([each["A/B"]["pages"] for each in found]) * z**2
            rows.append(("A/B test of clicks", "", f"{power:.1%}", f"{pages:,.0f}", "", "", ""))
        yield table_of(title, ("", "wrong", "right", "pages", "held", "at a look", "known"), rows)


def table_of(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first column names its rows."""
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


LOGS = {
    "2 segments": "--segments 2 --segment-difference 1",
    "10 segments": "--segments 10 --segment-difference 1",
    "50 segments, 50 queries of 12": "--segments 50 --segment-difference 1 --queries 50 --docs-per-query 12",
    "lists differ by page": "--segments 2 --segment-difference 1 --ranker-strength 3",
}
RANKS = "--stratify rank_a --stratify rank_b"
RECIPES = {"no strata": "", "ranks": RANKS, "ranks, firsts": f"{RANKS} --stratify firsts", "lists": "--stratify lists"}


def with_lists(log: pl.DataFrame) -> pl.DataFrame:
    """The log with columns of rounds (`all`, `pure`) and of lists (`firsts`, `lists`)."""

    def first(depth: int) -> pl.Expr:
        ranks = (pl.col("rank_a"), pl.col("rank_b"))
        ids = [pl.col("doc").filter(rank <= depth).sort_by(rank.filter(rank <= depth)) for rank in ranks]
        return pl.concat_str([of.cast(pl.String).str.join(" ") for of in ids], separator="|")

    lists = log.group_by("session").agg(firsts=first(1), lists=first(K // 2))
    number = ((pl.col("position") + 1) // 2).cast(pl.String)
    a, b = ((pl.col(rank).last() > pl.col(rank).first()).over("session", number) for rank in ("rank_a", "rank_b"))
    log = log.join(lists, on="session", maintain_order="left")
    return log.with_columns(all=number, pure=pl.when(a != b).then(number))


def errors_of_theta(task: tuple[str, int, int, bool]) -> dict[str, Floats]:
    """Log theta minus the truth, by recipe and position; NaN where it is refused."""
    kind, pages, seed, expected = task
    found = dict[str, Floats]()
    with tempfile.TemporaryDirectory(prefix="interleaving-") as folder:
        options = (
            "--queries 200 --docs-per-query 20 --query-exponent .8 --attractiveness 1:3 --ranker-strength inf "
            f"--interleave .6:.6 --days 0 --sessions {pages} --seed {seed} {LOGS[kind]}"
        )
        posbias("simulate", *options_of(options), "-o", f"{folder}/log")
        log = with_lists(pl.read_parquet(f"{folder}/log/log.parquet"))
        if expected:  # each impression a million times, with as many clicks as are expected
            pairs = pl.read_parquet(f"{folder}/log/attractiveness_truth.parquet")
            log = log.join(pairs, on=["query", "doc", "segment"], maintain_order="left")
            log = log.with_columns(click=pl.col("attractiveness") / pl.col("position"))
        sums = {"impressions": TIMES * pl.len(), "clicks": (TIMES * pl.sum("click")).round().cast(pl.Int64)}
        of = log.group_by("query", "doc", "position", "rank_a", "rank_b", "firsts", "lists", "all", "pure").agg(**sums)
        (of if expected else log.drop("segment", "team")).write_parquet(f"{folder}/log.parquet")

        def errors(words: str, reference: int, *positions: int) -> Floats:
            words += " --impressions impressions --click clicks" * expected
            code = posbias("fit", f"{folder}/log.parquet", *words.split(), "-o", f"{folder}/fit", may_fail=True)
            theta = np.full(K, np.nan)
            if code != WRONG:
                theta = pl.read_parquet(f"{folder}/fit/propensities.parquet").sort("position")["propensity"].to_numpy()
            return np.array([np.log(theta[position - 1] * position / reference) for position in positions])

        for rounds in ("pure", "all"):
            swaps = f"--method randomized --reference {{1}} --randomized-where {rounds}={{0}}@{{1}},{{2}}"
            of_rounds = [errors(swaps.format(r, 2 * r - 1, 2 * r), 2 * r - 1, 2 * r)[0] for r in (1, 2)]
            found[f"{rounds} rounds"] = np.array(of_rounds)
        clicks = log.group_by("position").agg(pl.sum("click")).sort("position")["click"].to_numpy()
        found["all clicks"] = np.log([clicks[1] / clicks[0] * 2, clicks[3] / clicks[2] * 4 / 3])
        for recipe, words in RECIPES.items():
            found[recipe] = errors(words, 1, *range(2, K + 1))
    return found


def tables_of_coins(runs: int, only: str, pages: int, processes: int, *, expected: bool) -> Iterator[Table]:
    """A table of each kind of log."""
    for kind in LOGS:
        if only not in kind:
            continue
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            found = list(pool.map(errors_of_theta, [(kind, pages, seed, expected) for seed in range(runs)]))
        columns = list[list[str]]()
        for recipe in found[0]:
            errors = np.array([each[recipe] for each in found])
            known = errors[np.isfinite(errors).all(axis=1)]
            cells = ["refused" if len(known) == 0 else f"{len(known)} logs"] * errors.shape[1]
            if len(known) > 1:
                spread = known.std(axis=0, ddof=1) / np.sqrt(len(known))
                cells = [f"{mean:+.3f} ±{error:.3f}" for mean, error in zip(known.mean(axis=0), spread, strict=True)]
            blank = [""] * (K - 1)
            columns.append([*cells, *blank] if len(cells) < K - 1 else ["", "", *cells])
        ratios = ["2/1", "4/3", *(f"{position}/1" for position in range(2, K + 1))]
        title = f"{kind}: {runs} logs of {pages:,} pages"
        yield table_of(title, ("", *found[0]), list(zip(ratios, *columns, strict=True)))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=("verdicts", "coins"))
    parser.add_argument("--runs", type=int, help="of each kind, seeds from 0 on; 1000 of verdicts, 60 of coins")
    parser.add_argument("--only", default="", help="kinds whose names contain this")
    parser.add_argument("--expected-pages", type=int, default=10_000, help="as that of `interleave`, of verdicts")
    parser.add_argument("--pages", type=int, default=50_000, help="of a log, of coins")
    parser.add_argument("--expected", action="store_true", help="of coins: clicks as expected, without their chance")
    parser.add_argument("--processes", type=int, default=1)
    o = parser.parse_args()
    os.environ |= dict.fromkeys(("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    if o.study == "coins":
        tables = tables_of_coins(o.runs or 60, o.only, o.pages, o.processes, expected=o.expected)
    else:
        tables = tables_of_verdicts(o.runs or 1000, o.only, o.expected_pages, o.processes)
    for table in tables:
        table_console().print(table)


if __name__ == "__main__":
    main()
