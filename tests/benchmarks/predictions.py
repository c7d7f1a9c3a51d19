"""What predictions of rankings are worth where the truth is known: `fit` and `predict` themselves, on simulated logs.

    python tests/benchmarks/predictions.py [--logs 40] [--only noisy,cascade] [--processes 1] [--into FILE]
    python tests/benchmarks/predictions.py --turns [--logs 15]

Each design draws worlds of queries, documents and a logging ranker, a log, and seven rankings: as good as the log's but
unlike it, slightly better, much better, worse, random, its first ten in another order, and one with new documents. The
table has, over logs and rankings:

coverage      share of 95 % intervals that hold the truth, for the same queries: the mean, and the worst ranking
new queries   the same for queries like these
bias, RMSE    in points of the log's clicks; the mean over rankings but that with new documents, of absolute biases
of IPS        RMSE over that of IPS by exposure (policy-aware weights)
UBM           RMSE of the user browsing model's difference
sign, clear   where the interval excludes 0, share of right signs; how often it does
tau, regret   Kendall's tau of the rankings' order with the true one; clicks lost by the choice, in points
power         of A/B tests whose arms have as many pages as `pages_per_arm` says for the true difference
refused       share of logs of which no claim is made

--turns draws small logs, and says how often the printed interval of s holds the true turning point: where the
difference changes its sign if clicks, known without error, are read by theta^s; nearest to 1 on each side, in (0, 3).
Columns: turning points; share held; median width; median of |estimate - truth|; those without an interval there

--into keeps what was measured of each log in a file of JSON lines; logs that are there already are not drawn again.
"""

import argparse
import json
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from processes import table_console
from recovery import posbias
from rich.box import SIMPLE_HEAD
from rich.table import Table

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
K, DOCS, DAYS = 10, 20, 14
THETA: Floats = np.arange(1, K + 1, dtype=np.float64) ** -0.8
FRESH, SAMPLED = "new documents", 20_000


@dataclass(frozen=True)
class Design:
    """One kind of log."""

    queries: int = 300
    pages: int = 12_000
    zipf: float = 1.0
    noise: float = 0.8  # of the logging ranker, in log odds
    daily: bool = False  # whether it changes by day, and not by page
    readiness: float = 0.0  # how differently users click (sd of the log)
    cascade: bool = False  # users who are satisfied leave (DBN)


TURNS = {
    "20 queries": Design(queries=20, pages=1_500),
    "80 queries": Design(queries=80, pages=3_000),
    "80 queries near-deterministic": Design(queries=80, pages=3_000, noise=0.3),
    "300 queries sparse": Design(queries=300, pages=2_000, zipf=0.8),
    "300 queries": Design(queries=300, pages=12_000),
}
"""Small logs, for `--turns`."""

DESIGNS = {
    "noisy": Design(),
    "sparse": Design(queries=600, pages=3_000, zipf=0.8),
    "near-deterministic": Design(noise=0.15),
    "sticky": Design(daily=True),
    "users differ": Design(readiness=0.6),
    "5000 queries": Design(queries=5_000, pages=50_000, zipf=0.9),
    "cascade": Design(pages=10_000, cascade=True),
    "sparse cascade": Design(queries=600, pages=3_000, zipf=0.8, cascade=True),
}


def ranks(score: Floats) -> Integers:
    """The rank of each document from 0; K for those below."""
    return np.minimum(np.argsort(np.argsort(-score, axis=1), axis=1), K)


class World:
    """A world, its log and its rankings."""

    def __init__(self, design: Design, rng: np.random.Generator) -> None:
        self.design, self.rng = design, rng
        shape = design.queries, DOCS
        odds = -2 + 0.5 * rng.standard_normal((design.queries, 1)) + 1.2 * rng.standard_normal(shape)
        self.gamma: Floats = 1 / (1 + np.exp(-odds))
        self.satisfied: Floats = 1 / (1 + np.exp(-(0.6 * odds + 1.2)))
        fault, known = 1.2 * rng.standard_normal(shape), rng.random(shape) > 0.15
        self.score = np.where(known, odds + fault, -50.0)

        def inside(score: Floats) -> Integers:
            return ranks(np.where(known, score, -50.0))

        def noise(sd: float) -> Floats:
            return sd * rng.standard_normal(shape)

        better = odds + noise(0.4)
        self.rankings = {
            "same": inside(odds + noise(1.2)),
            "slightly better": inside(odds + 0.85 * fault + noise(0.4)),
            "much better": inside(better),
            "worse": inside(odds + fault + noise(1.5)),
            "random": inside(noise(1.0)),
            "rerank 10": ranks(np.where(ranks(self.score) < K, better, -40.0)),
            FRESH: ranks(better),
        }
        share = np.arange(1, design.queries + 1.0) ** -design.zipf
        self.traffic = share / share.sum()
        self.query, self.docs, self.day = self.pages(design.pages)
        self.clicks = self.click(self.query, self.docs)

    def pages(self, number: int, traffic: Floats | None = None) -> tuple[Integers, Integers, Integers]:
        """Queries, documents by position and days of pages of the logging ranker."""
        design, rng = self.design, self.rng
        query = np.sort(rng.choice(design.queries, number, p=self.traffic if traffic is None else traffic))
        day = rng.integers(0, DAYS, number)
        if design.daily:
            noise = (design.noise * rng.standard_normal((design.queries, DAYS, DOCS)))[query, day]
        else:
            noise = design.noise * rng.standard_normal((number, DOCS))
        return query, np.argsort(-(self.score[query] + noise), axis=1)[:, :K], day

    def click(self, query: Integers, docs: Integers) -> NDArray[np.bool_]:
        """Clicks on pages."""
        gamma, sd, number = self.gamma[query[:, None], docs], self.design.readiness, len(query)
        gamma = np.minimum(gamma * np.exp(sd * self.rng.standard_normal((number, 1)) - sd**2 / 2), 0.98)
        chance, clicks = self.rng.random((number, K)), np.zeros((number, K), bool)
        if not self.design.cascade:
            return chance < THETA * gamma
        there = np.ones(number, bool)
        for k in range(K):
            clicks[:, k] = there & (chance[:, k] < gamma[:, k])
            leaves = np.where(clicks[:, k], self.satisfied[query, docs[:, k]], 0.0)
            there &= self.rng.random(number) < 0.85 * (1 - leaves)
        return clicks

    def expected(self, query: Integers, docs: Integers) -> Floats:
        """Expected clicks of pages."""
        gamma = self.gamma[query[:, None], docs]
        if self.design.cascade:
            there, total = np.ones(len(query)), np.zeros(len(query))
            for k in range(K):
                hit = there * gamma[:, k]
                total += hit
                there = 0.85 * (there - hit * self.satisfied[query, docs[:, k]])
            return total
        if not self.design.readiness:
            return (THETA * gamma).sum(1)
        sd, total = self.design.readiness, np.zeros(len(query))
        node, weight = np.polynomial.hermite_e.hermegauss(9)
        for x, share in zip(node.tolist(), (weight / weight.sum()).tolist(), strict=True):
            total += share * (np.minimum(gamma * np.exp(sd * x - sd**2 / 2), 0.98) @ THETA)
        return total

    def truth(self, rank: Integers) -> tuple[float, float]:
        """Clicks per page that a ranking gains, on the pages of the log and on queries like these."""
        every, lists = np.arange(self.design.queries), np.argsort(rank, axis=1)[:, :K]
        gained = self.expected(every, lists)
        ours = float(gained[self.query].mean() - self.expected(self.query, self.docs).mean())
        flat = np.full(self.design.queries, 1 / self.design.queries)
        query, docs, _ = self.pages(20 * self.design.queries, flat)
        return ours, float(gained.mean() - self.expected(query, docs).mean())

    def turning_points(self, rank: Integers) -> list[float]:
        """Powers of theta nearest to 1 on each side, in (0, 3), at which the ranking gains nothing, without chance."""
        shape = self.design.queries, DOCS
        pages = np.bincount(self.query, minlength=shape[0])[:, None]
        shown = np.zeros((*shape, K))
        np.add.at(shown, (np.broadcast_to(self.query[:, None], self.docs.shape), self.docs, np.arange(K)), 1.0)
        clicks, at = (shown @ THETA) * self.gamma, np.arange(0, 3.0001, 0.01)
        gained = np.zeros(len(at))
        for number, power in enumerate(at.tolist()):
            theta = THETA**power
            exposure, there = shown @ theta, np.where(rank < K, theta[np.minimum(rank, K - 1)], 0.0) * pages
            # what was never shown is worth what it is, seen at the last place
            unseen = self.gamma * THETA[-1] ** (1 - power)
            value = np.divide(clicks, exposure, out=unseen, where=exposure > 0)
            gained[number] = np.sum((there - exposure) * value)
        turns = at[np.flatnonzero(np.diff(np.sign(gained)))] + 0.005
        sides = turns[turns < 1], turns[turns > 1]
        return [float(side[np.argmin(np.abs(side - 1))]) for side in sides if len(side)]

    def write(self, folder: Path) -> None:
        """Write the log and the rankings."""
        n = len(self.query)
        columns: dict[str, Any] = {
            "session": np.repeat(np.arange(n), K),
            "query": np.repeat(self.query, K),
            "doc": self.docs.ravel(),
            "position": np.tile(np.arange(1, K + 1), n),
            "click": self.clicks.ravel().astype(np.int8),
        }
        pl.DataFrame(columns).write_parquet(folder / "log.parquet")
        for name, rank in self.rankings.items():
            query, doc = np.nonzero(rank < K)
            scores = pl.DataFrame({"query": query, "doc": doc, "score": -rank[query, doc].astype(np.float64)})
            scores.write_parquet(folder / f"{name}.parquet")

    def by_exposure(self, rank: Integers, theta: Floats) -> float:
        """Clicks per page that a ranking gains, by policy-aware weights."""
        shape = self.design.queries, DOCS
        exposure, clicks = np.zeros(shape), np.zeros(shape)
        at = np.broadcast_to(self.query[:, None], self.docs.shape), self.docs
        np.add.at(exposure, at, np.broadcast_to(theta, self.docs.shape))
        np.add.at(clicks, at, self.clicks)
        there = (
            np.where(rank < K, theta[np.minimum(rank, K - 1)], 0.0)
            * np.bincount(self.query, minlength=shape[0])[:, None]
        )
        ratio = np.divide(there, exposure, out=np.ones(shape), where=exposure > 0)
        return float(np.sum((ratio - 1) * clicks) / len(self.query))

    def variance(self, rank: Integers | None) -> float:
        """Variance of the clicks of a page of the log's ranker, or of another."""
        query, docs, _ = self.pages(SAMPLED)
        if rank is not None:
            docs = np.argsort(rank, axis=1)[:, :K][query]
        return float(self.click(query, docs).sum(1).var())


def measured(task: tuple[str, int]) -> list[dict[str, Any]]:
    """Return the predictions of the rankings of one log, and the truth."""
    design, seed = task
    world = World(DESIGNS[design], np.random.default_rng([7, seed]))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        world.write(folder)
        log, fit, out = (folder / name for name in ("log.parquet", "fit", "out"))
        posbias("fit", log, "-o", fit)
        named = [word for name in world.rankings for word in ("--scores", f"{name}={folder / name}.parquet")]
        refused = posbias("predict", log, "--propensities", fit, *named, "-o", out)
        theta = pl.read_parquet(fit / "propensities.parquet").sort("position")["weight_propensity"].to_numpy()
        rows = pl.read_parquet(out / "predictions.parquet").to_dicts()
    observed, of_log = float(world.clicks.sum(1).mean()), world.variance(None)
    for row in rows:
        rank = world.rankings[row["ranking"]]
        true, of_new = world.truth(rank)
        pages = row["pages_per_arm"] * (row["difference"] / true) ** 2
        error = np.sqrt((of_log + world.variance(rank)) / pages)
        row |= {
            "design": design,
            "log": seed,
            "true": true,
            "true_new": of_new,
            "observed": observed,
            "refused": float(refused),
        }
        row |= {"ips": world.by_exposure(rank, theta), "power": NormalDist().cdf(abs(true) / float(error) - 1.96)}
    return rows


def measured_turns(task: tuple[str, int]) -> list[dict[str, Any]]:
    """Return the true turning points of the rankings of one log, and what is said of them."""
    design, seed = task
    world = World(TURNS[design], np.random.default_rng([8, seed]))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        world.write(folder)
        log, fit, out = (folder / name for name in ("log.parquet", "fit", "out"))
        posbias("fit", log, "--no-compare", "-o", fit, may_fail=True)
        named = [word for name in world.rankings for word in ("--scores", f"{name}={folder / name}.parquet")]
        posbias("predict", log, "--propensities", fit, *named, "-o", out, may_fail=True)
        verdicts = json.loads((out / "manifest.json").read_text(encoding="utf-8")).get("verdicts", [])
    rows = list[dict[str, Any]]()
    for verdict in verdicts:
        for true in world.turning_points(world.rankings[verdict["ranking"]]):
            side = "turns_below" if true < 1 else "turns_above"
            printed = [
                [verdict[f"{name}{end}"] for end in ("_ci_low", "_ci_high")] for name in ("turns_below", "turns_above")
            ]
            held = any(low is not None and low <= true <= high for low, high in printed)
            low, high = verdict[f"{side}_ci_low"], verdict[f"{side}_ci_high"]
            error = None if verdict[side] is None else abs(verdict[side] - true)
            width = None if low is None else high - low
            rows.append({"design": design, "log": seed, "held": held, "width": width, "error": error})
    return rows


def figures_of_turns(rows: pl.DataFrame) -> dict[str, str]:
    """The row of a design, for `--turns`."""
    return {
        "turning points": f"{rows.height}",
        "held": f"{rows['held'].mean():.3f}",
        "width": f"{rows['width'].median():.2f}",
        "error": f"{rows['error'].median():.2f}",
        "nothing": f"{rows['width'].null_count()}",
    }


def tau(one: Floats, other: Floats) -> float:
    """Kendall's rank correlation, without ties."""
    agree = np.sign(one[:, None] - one) * np.sign(other[:, None] - other)
    return float(agree.sum() / (len(one) * (len(one) - 1)))


def figures(rows: pl.DataFrame) -> dict[str, str]:
    """The row of a design."""
    col, old = pl.col, pl.col("ranking") != FRESH
    rows = rows.with_columns(true_new=col("true_new").mean().over("ranking"))
    of = {"predicted": "difference", "by_ips": "ips", "by_ubm": "ubm_difference"}
    errors = {name: 100 * (col(by) - col("true")) / col("observed") for name, by in of.items()}
    each = rows.group_by("ranking").agg(
        covered=col("true").is_between("ci_low", "ci_high").mean(),
        new=col("true_new").is_between("new_queries_ci_low", "new_queries_ci_high").mean(),
        bias=errors["predicted"].mean().abs(),
        **{name: error.pow(2).mean().sqrt() for name, error in errors.items()},
    )
    clear = rows.filter((col("ci_low") > 0) | (col("ci_high") < 0))
    signs = (clear["difference"].sign() == clear["true"].sign()).mean()
    taus, regrets = list[float](), list[float]()
    for log in rows.partition_by("log"):
        guess, true = log["difference"].to_numpy(), log["true"].to_numpy()
        taus.append(tau(guess, true))
        regrets.append(100 * (true.max() - true[guess.argmax()]) / log["observed"][0])
    mean = each.filter(old).select(pl.col("bias", "predicted", "by_ips", "by_ubm").mean()).row(0, named=True)
    return {
        "logs": f"{rows['log'].n_unique()}",
        "coverage": f"{each['covered'].mean():.3f}, {each['covered'].min():.2f}",
        "new queries": f"{each['new'].mean():.3f}, {each['new'].min():.2f}",
        "bias": f"{mean['bias']:.2f}",
        "RMSE": f"{mean['predicted']:.2f}",
        "of IPS": f"{mean['predicted'] / mean['by_ips']:.2f}",
        "UBM": f"{mean['by_ubm']:.2f}",
        "sign": f"{signs:.3f}",
        "clear": f"{clear.height / rows.height:.2f}",
        "tau": f"{np.mean(taus):.3f}",
        "regret": f"{np.mean(regrets):.2f}",
        "power": f"{rows.filter(old)['power'].mean():.2f}",
        "refused": f"{rows['refused'].mean():.3f}",
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=40, help="of each design, seeds from 0 on")
    parser.add_argument("--turns", action="store_true", help="how often intervals of the turning point hold it")
    parser.add_argument("--only", help="designs, by default all")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--into", help="a file of what was measured, to which logs are added")
    options = parser.parse_args()
    of, measure, summarise = (
        (TURNS, measured_turns, figures_of_turns) if options.turns else (DESIGNS, measured, figures)
    )
    designs = options.only.split(",") if options.only else list(of)
    os.environ |= dict.fromkeys(("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    rows, into = list[dict[str, Any]](), Path(options.into or os.devnull)
    if into.is_file():
        rows += [row for line in into.read_text(encoding="utf-8").splitlines() for row in json.loads(line)]
    done = {(row["design"], row["log"]) for row in rows}
    tasks = [(design, seed) for seed in range(options.logs) for design in designs if (design, seed) not in done]
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for of_log in pool.map(measure, tasks):
            rows += of_log
            with into.open("a", encoding="utf-8") as file:
                file.write(json.dumps(of_log) + "\n")
    frame = pl.DataFrame(rows, infer_schema_length=None)
    by_design = {name: summarise(frame.filter(pl.col("design") == name)) for name in designs}
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("design", *next(iter(by_design.values()))):
        table.add_column(heading, justify="right" if heading != "design" else "left")
    for name, row in by_design.items():
        table.add_row(name, *row.values())
    table_console().print(table)


if __name__ == "__main__":
    main()
