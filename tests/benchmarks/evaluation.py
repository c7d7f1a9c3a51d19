"""Whether clicks choose the right ranking, and whether what is said of it holds: `posbias evaluate`.

    python tests/benchmarks/evaluation.py choice [--seeds 5]
    python tests/benchmarks/evaluation.py intervals [--logs 200]
    python tests/benchmarks/evaluation.py real
    python tests/benchmarks/evaluation.py cost [--impressions 10000000]

choice: on the worlds of `value.py` (LightGBM's documents, 30,000 pages, eta 1), sixteen rankers learn from the clicks
on three quarters of the training queries (`evaluation_rankers.py`); the clicks on the last quarter are to say which is
best. Truth is NDCG@10 by labels, on the same queries. Kendall's tau over the sixteen, and regret, the NDCG that is lost
with the ranker that comes out first. Nothing was chosen by these numbers.

intervals: simulated logs of 200 or 60 new queries each (15 documents, 10 positions, Zipf exponent 0.7 or 1, 3,000
pages), theta from another log of 10,000 pages. Truth is that of 1,000 other logs (seeds from 1000 on) with true
propensities; reported are seeds 0 on: how often the 95 % intervals hold it, how often two rankings that are equally
good are told apart, and how often the lower bound is above the truth.

real: rankings of items by click rates, evaluated on the clicks of a bandit, against the clicks of random display
(Open Bandit data).

cost: wall time and peak memory of the command, with 4 rankings.
"""

import argparse
import tempfile
from collections import defaultdict
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from evaluation_rankers import rankers
from evaluation_runs import evaluated, fitted
from numpy.typing import NDArray
from processes import POSBIAS, Stage, measure, table_console
from recovery_logs import in_parallel
from rich.table import Table
from value_measure import ndcg
from value_worlds import DATA, FILES, SHOWN, Documents, Fold, Setting, draw_folds

from posbias.core.choices import Candidates
from posbias.core.evaluation.estimates import CONFIDENCE, ESTIMATORS, Evaluation
from posbias.core.evaluation.measures import measures
from posbias.core.evaluation.query_sums import N_CLICKS
from posbias.core.evaluation.tables import Bound
from posbias.core.simulation.simulate import Simulation, SimulationOptions, simulate

stats: Any = import_module("scipy.stats")  # it has no types

Floats = NDArray[np.float64]

DEPTH = 10
_TRUTH_FROM, _TRUTH_LOGS = 1000, 1000
_TRAINING_SEEDS = 50_000
_NOISE = (0.15, 0.15, 0.5)  # of the scores of three rankings: the first two are equally good
_BOUND = 0.95
_FEW = 100  # impressions without a click that rates of items start from
_SMALLEST_RHO = 1e-4


def main() -> None:
    """Parse the command line, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("choice", "intervals", "real", "cost"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--impressions", type=int, default=10_000_000)
    options = parser.parse_args()
    console = table_console()
    if options.part == "choice":
        console.print(choice_table(options.seeds))
    elif options.part == "intervals":
        for table in interval_tables(options.logs):
            console.print(table)
    elif options.part == "real":
        console.print(real_table())
    else:
        console.print(cost_table(options.impressions))


# --- choice -----------------------------------------------------------------------------------------------------


def choice_table(n_seeds: int) -> Table:
    """Tau and regret of each way to choose."""
    found = pl.concat(in_parallel(choose, list(range(n_seeds)), "choice"))
    table = Table(title=f"choice among 16 rankers, mean ± standard error over {n_seeds} seeds x 3 folds", box=None)
    for name in ("by", "Kendall's tau", "regret", "chosen most often"):
        table.add_column(name, justify="left" if name in {"by", "chosen most often"} else "right")
    for (name,), rows in found.group_by("by", maintain_order=True):
        cells = [_mean(rows[column].to_numpy()) for column in ("tau", "regret")]
        table.add_row(str(name), *cells, str(rows["chosen"].mode().sort()[0]))
    return table


def _mean(values: Floats) -> str:
    return f"{values.mean():.3f} ± {values.std(ddof=1) / np.sqrt(len(values)):.3f}"


def choose(seed: int) -> pl.DataFrame:
    """One seed: `by`, `tau`, `regret`, `chosen`, fold by fold."""
    documents = Documents.read(FILES["LightGBM"])
    parts = [_choose(fold, seed, part) for part, fold in enumerate(draw_folds(documents, Setting(), seed))]
    return pl.concat(parts)


def _choose(fold: Fold, seed: int, part: int) -> pl.DataFrame:
    rng = np.random.default_rng([seed, part])
    judged = np.sort(rng.choice(fold.training, len(fold.training) // 4, replace=False))
    apart = pl.col("query").is_in(judged.tolist())
    training, held_out = fold.log.filter(~apart), fold.log.filter(apart)
    theta = fitted(training)
    by_position = dict(theta.propensities.select("position", "propensity").iter_rows())
    found = rankers(fold, training, np.array([by_position[k] for k in range(1, SHOWN + 1)]))
    documents = fold.documents
    keys = pl.DataFrame({"query": documents.query, "doc": np.arange(len(documents.query))}).cast(pl.Int32)
    scores = [keys.with_columns(score=pl.Series(score)) for score in found.values()]
    evaluation, _ = evaluated(held_out, scores, theta, depth=DEPTH)
    truth = [ndcg(documents, score, judged, DEPTH) for score in found.values()]
    rows: list[dict[str, Any]] = []
    for measure_ in measures():
        for estimator in ESTIMATORS:
            sign = 1 if measure_.gain else -1
            values = [
                sign * evaluation.value(number, measure_, estimator).value for number in range(1, len(scores) + 1)
            ]
            best = int(np.argmax(values))
            tau = float(stats.kendalltau(values, truth).statistic)
            said = f"{measure_.title(DEPTH)}, {estimator}"
            rows.append({"by": said, "tau": tau, "regret": max(truth) - truth[best], "chosen": [*found][best]})
    return pl.DataFrame(rows)


# --- intervals and bounds ---------------------------------------------------------------------------------------

World = tuple[int, float, Candidates]
WORLDS: tuple[World, ...] = ((200, 0.7, "page"), (60, 1.0, "page"), (200, 0.7, "query"))


def interval_tables(n_logs: int) -> list[Table]:
    """Coverage, size and bounds."""
    title = f"share of {n_logs} logs whose 95 % interval holds the truth"
    coverage = Table(title=title, box=None)
    coverage.add_column("")
    worlds = [f"{n} queries, Zipf {zipf}\nby {candidates}" for n, zipf, candidates in WORLDS]
    for name in worlds:
        coverage.add_column(name, justify="right")
    size = Table(title="two rankings that are equally good are told apart (at 5 %)", box=None)
    bounds = Table(
        title=f"share of logs whose lower bound on DCG@{DEPTH} (--bound {_BOUND}) is below the truth", box=None
    )
    for table in (size, bounds):
        table.add_column("")
        for name in worlds:
            table.add_column(name, justify="right")
    found = [_world_results(world, n_logs) for world in WORLDS]
    for table, kind in ((coverage, "holds"), (size, "apart"), (bounds, "bound")):
        for key in dict.fromkeys(key for result in found for key in result if key[0] == kind):
            table.add_row(key[1], *(_share(result.get(key)) for result in found))
    return [coverage, size, bounds]


def _share(hits: list[float] | None) -> str:
    return "-" if not hits else f"{np.mean(hits):.3f}"


def _world_results(world: World, n_logs: int) -> dict[tuple[str, str], list[float]]:
    seeds = range(_TRUTH_FROM, _TRUTH_FROM + _TRUTH_LOGS)
    totals = in_parallel(true_totals, [(world, seed) for seed in seeds], "truth")
    truth = totals[0]
    for other in totals[1:]:
        truth = replace(truth, totals=truth.totals + other.totals)
    gathered: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for hits in in_parallel(hits_of_log, [(world, seed, truth) for seed in range(n_logs)], "logs"):
        for key, hit in hits.items():
            gathered[key].append(hit)
    return gathered


def _drawn(world: World, seed: int, pages: int = 3_000) -> Simulation:
    n_queries, zipf, _ = world
    settings = SimulationOptions(
        *("pbm", pages, n_queries, 15, 10), query_exponent=zipf, days=0, seed=seed, attractiveness_scale=0.5
    )
    return simulate(settings)


def _scores(drawn: Simulation, seed: int) -> list[pl.DataFrame]:
    rng, truth = np.random.default_rng(seed), drawn.attractiveness
    return [
        truth.select("query", "doc", score=pl.col("attractiveness") + pl.Series(sd * rng.standard_normal(truth.height)))
        for sd in _NOISE
    ]


def true_totals(task: tuple[World, int]) -> Evaluation:
    """The sums of a log with true propensities."""
    world, seed = task
    drawn = _drawn(world, seed)
    return evaluated(drawn.log, _scores(drawn, seed), drawn.propensities, candidates=world[2])[0]


def hits_of_log(task: tuple[World, int, Evaluation]) -> dict[tuple[str, str], float]:
    """Whether what is said of a log holds: intervals, differences, bounds."""
    world, seed, truth = task
    drawn, theta = _drawn(world, seed), fitted(_drawn(world, seed + _TRAINING_SEEDS, 10_000).log)
    scores = _scores(drawn, seed)
    found, weights = evaluated(drawn.log, scores, theta, candidates=world[2])
    hits: dict[tuple[str, str], float] = {}
    for measure_ in measures():
        for estimator in ESTIMATORS[1:]:
            said = f"{measure_.title(DEPTH)}, {estimator}"
            for number, name in ((0, "logged"), (1, "good"), (3, "worse")):
                true, value = (of.value(number, measure_, estimator) for of in (truth, found))
                if np.isfinite(true.value):
                    hits["holds", f"{said}, {name}"] = value.low <= true.value <= value.high
            between = found.difference(3, 1, measure_, estimator)
            true = truth.difference(3, 1, measure_, estimator)
            hits["holds", f"{said}, worse - good"] = between.low <= true.value <= between.high
            hits["apart", said] = found.difference(2, 1, measure_, estimator).p_value < 1 - CONFIDENCE
    if world[2] == "page":
        known, true_weights = evaluated(drawn.log, scores, drawn.propensities)
        for name, evaluation, of_cells in (("theta known", known, true_weights), ("theta estimated", found, weights)):
            for number, which in ((0, "logged"), (1, "good")):
                low = Bound(_BOUND, of_cells).of(evaluation, number, measures()[0])
                true = truth.value(number, measures()[0], "ips").value
                for method, value in zip(("Hoeffding", "empirical Bernstein"), low, strict=True):
                    hits["bound", f"{method}, {name}, {which}"] = value <= true
    return hits


# --- real clicks ------------------------------------------------------------------------------------------------


def real_table() -> Table:
    """Rankings of a campaign's items on the clicks of a bandit, and on those of random display."""
    rows = pl.read_parquet(DATA / "open_bandit_zozo.parquet").with_row_index("session")
    roles = {"query": "campaign", "doc": "item_id", "click": "click", "policy": "policy"}
    log = rows.select(
        "session", pl.col("position").cast(pl.Int32), **{role: pl.col(name) for role, name in roles.items()}
    )
    first = pl.col("session").hash(7) % 2 == 0
    random, bandit = (log.filter(policy=name).drop("policy") for name in ("random", "bts"))
    no_bias = pl.DataFrame({"position": [1, 2, 3], "propensity": [1.0] * 3}, schema_overrides={"position": pl.Int32})
    items = log.select("query", "doc").unique(maintain_order=True)
    clicks = pl.col("click").sum()
    scores = {
        "click rates of random display": _scored(items, random.filter(first), clicks / (pl.len() + _FEW)),
        "click rates of the bandit": _scored(items, bandit.filter(first), clicks / (pl.len() + _FEW)),
        "clicks of the bandit": _scored(items, bandit.filter(first), clicks),
        "how often the bandit shows it": _scored(items, bandit.filter(first), pl.len()),
        "least often shown first": _scored(items, bandit.filter(first), -pl.len().cast(pl.Int64)),
    }
    held_out = {"random display": random.filter(~first), "bandit": bandit.filter(~first)}
    found = {
        name: evaluated(shown, [*scores.values()], no_bias, candidates="query", min_propensity=_SMALLEST_RHO)[0]
        for name, shown in held_out.items()
    }
    table = Table(title=f"DCG@{DEPTH} of all items of a campaign, for each (weighted) click", box=None)
    table.add_column("ranking")
    for name, shown in held_out.items():
        for way in ("IPS", "naive"):
            table.add_column(f"{name}\n{shown['click'].sum()} clicks\n{way}", justify="right")
    for number, name in enumerate(scores, start=1):
        cells: list[str] = []
        for evaluation in found.values():
            sums, asked = evaluation.totals.sums, evaluation.asked
            naive = sums[asked.column(number, 0, weighted=False)] / sums[N_CLICKS]
            cells += [f"{evaluation.value(number, measures()[0], 'snips').value:.3f}", f"{naive:.3f}"]
        table.add_row(name, *cells)
    return table


def _scored(items: pl.DataFrame, shown: pl.DataFrame, score: pl.Expr) -> pl.DataFrame:
    found = shown.group_by("query", "doc").agg(score=score.cast(pl.Float64))
    return items.join(found, on=["query", "doc"], how="left").with_columns(pl.col("score").fill_null(0.0))


# --- cost -------------------------------------------------------------------------------------------------------


def cost_table(impressions: int) -> Table:
    """Wall time and peak memory of the command."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prepare = ("simulate", "--sessions", str(impressions // 10), "--queries", str(max(impressions // 500, 100)))
        files = [f"--scores={folder / name}.parquet" for name in ("a", "b", "c", "d")]
        evaluate = ("evaluate", str(folder / "sim" / "log.parquet"), "--propensities", str(folder / "fit"), *files)
        stages = [
            Stage("simulate", (*POSBIAS, *prepare, "-o", str(folder / "sim"))),
            Stage("fit", (*POSBIAS, "fit", str(folder / "sim" / "log.parquet"), "-o", str(folder / "fit"))),
        ]
        measure(stages, 1, "cost")
        truth = pl.read_parquet(folder / "sim" / "attractiveness_truth.parquet")
        rng = np.random.default_rng(0)
        for name, noise in zip(("a", "b", "c", "d"), (0.1, 0.2, 0.5, 2.0), strict=True):
            noisy = pl.col("attractiveness") + pl.Series(noise * rng.standard_normal(truth.height))
            truth.select("query", "doc", score=noisy).write_parquet(folder / f"{name}.parquet")
        (found,) = measure([Stage("evaluate", (*POSBIAS, *evaluate, "-o", str(folder / "out")))], 1, "cost")
    table = Table(title=f"{impressions:,} impressions, {truth.height:,} pairs, 4 rankings", box=None)
    for name in ("wall s", "CPU s", "peak MiB"):
        table.add_column(name, justify="right")
    table.add_row(f"{found.median_seconds():.1f}", f"{found.median_cpu_seconds():.1f}", f"{max(found.mebibytes):,.0f}")
    return table


if __name__ == "__main__":
    main()
