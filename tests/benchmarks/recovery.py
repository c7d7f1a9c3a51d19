"""What the numbers are worth where the truth is known: by the commands themselves, on simulated logs.

    python tests/benchmarks/recovery.py STUDY [--logs 20] [--only WORDS] [--processes 2]

accuracy        mean relative error of theta in %, per kind of log and estimator
coverage        of the 95 % intervals in %, by the sandwich and by the bootstrap, and their width in log
attractiveness  share of the documents within 1.96 standard deviations of the truth, of all and of the most shown tenth
thin            few clicks: `--shape smooth` beside the free estimate and a power of the position
cells           blocks, grids, carousels: bias in log and coverage, in the form that a test chooses and free; how often
                it rejects, how much narrower intervals are then; how far weighted click rates of documents are off,
                on average, and for the half that stood in worse cells of their positions against the other half
contexts        where contexts borrow from each other and the last one differs, or none does: all, and the last one
clusters        users, markets or days that share a theta: errors by query, by column and two-way
features        no (query, document) pair repeats: `--method features` beside the conditional estimate
arms            experiment arms (`--arm`): error of all movement and of the bent curve at position 5, F, the test
judgments       ratings of documents by posbias, and by COEC: the best of a query, low documents, 1 of 1
scales          training files of several contexts: how far labels of a query are off by them, and what is refused
feedback        rankers that learn from clicks: what `--period auto` claims, its error and coverage
order           the same without times: what the order of the rows shows, from logs, statistics, stores, little memory
tests           share of logs in which each test rejects at .05, where its hypothesis holds and where it does not
changes         the same of `compare`, by fits and by statistics
evaluation      share of logs whose 95 % interval of DCG@10 holds the truth, and in which equals are told apart

Each kind of log is a row: `simulate` draws it anew for every seed from 0 on, the other commands run on it in this
process, and the table is made from what they wrote. A cell is a mean over the logs, ± its standard error where it is
no share of logs. `--only` takes the rows whose names contain WORDS.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from processes import table_console
from rich.box import SIMPLE_HEAD
from rich.table import Table
from typer.testing import CliRunner

sys.path.append(str(Path(__file__).parents[1] / "support"))  # what tests share
from arm_logs import ETA, log_of_arms

Floats = NDArray[np.float64]
Figures = dict[str, float]

LEVEL, NORMAL, DEPTH, MOST_COLUMNS = 0.05, 1.96, 10, 9
SEEN = -np.log10(0.75)  # slope of an error of 25 % at position 10
OTHER_WAYS = 3
"""Every so many logs in order are also read by their times, day by day, from statistics and in little memory."""

DOUBTS, WRONG = 1, 2
"""Exit codes: a result that is to be taken with care, and input that cannot be worked with."""


@dataclass(frozen=True)
class Design:
    """One kind of log, and what is done with it.

    Attributes:
        name: the row of the table.
        log: options of `simulate`.
        ways: options of `fit`, by the column of the table.
        change: draws clicks or columns anew, given the log, the truth of its pairs and a generator.
        contexts: the context that each device of the log belongs to; empty where each is one of its own.
    """

    name: str
    log: str
    ways: Mapping[str, str] = field(default_factory=dict[str, str])
    change: Callable[[pl.DataFrame, pl.DataFrame, np.random.Generator], pl.DataFrame] | None = None
    contexts: tuple[int, ...] = ()


def posbias(*words: str | Path, may_fail: bool = False) -> int:
    """Run a command in this process, and return its exit code; it may fail where a log may not allow what is wanted."""
    from posbias.cli.main import app  # noqa: PLC0415 - once the number of threads is set

    done = CliRunner().invoke(app, [*map(str, words), "--quiet", "--force"], catch_exceptions=False)
    if done.exit_code == WRONG and not may_fail:
        raise RuntimeError(f"posbias {' '.join(map(str, words))}\n{done.stderr}")
    return done.exit_code


def options_of(text: str) -> list[str]:
    """The options in a text, where a later one takes the place of an earlier one, except for devices."""
    words = shlex.split(text)
    pairs = list(zip(words[::2], words[1::2], strict=True))
    last = {name: number for number, (name, _) in enumerate(pairs)}
    kept = [pair for number, pair in enumerate(pairs) if pair[0] == "--device" or last[pair[0]] == number]
    return [word for pair in kept for word in pair]


def draw(design: Design, seed: int, folder: Path) -> Path:
    """Simulate a log into a folder, and return its file; `truth.parquet` stands beside it."""
    if posbias("simulate", *options_of(design.log), "--seed", str(seed), "-o", folder):
        raise RuntimeError(f"{design.name}: no log from {design.log}")
    log = pl.read_parquet(folder / "log.parquet")
    if design.change is not None:
        pairs = pl.read_parquet(folder / "attractiveness_truth.parquet")
        log = design.change(log, pairs, np.random.default_rng(seed + 10**6))
    if design.contexts:
        of_device = pl.Series(design.contexts, dtype=pl.Int32)
        truth = pl.read_parquet(folder / "truth.parquet")
        truth = truth.with_columns(device=of_device.gather(truth["device"])).unique(["position", "device"])
        truth.write_parquet(folder / "truth.parquet")
        log = log.with_columns(device=of_device.gather(log["device"]))
    log.write_parquet(folder / "log.parquet")
    return folder / "log.parquet"


# --- theta -----------------------------------------------------------------------------------------------------


def fits(design: Design, seed: int, folder: Path) -> Figures:
    """What fits of a log say of theta, of attractiveness and against the model, named `way: figure`."""
    log, found = draw(design, seed, folder / "log"), Figures()
    for way, options in design.ways.items():
        code = posbias("fit", log, *shlex.split(options), "-o", folder / "fit", may_fail=True)
        if code <= DOUBTS:
            of_way = {**_of_theta(folder), **_of_pairs(folder), **_p_values(folder), "doubt": float(code == DOUBTS)}
            found |= {f"{way}: {name}".removeprefix(": "): value for name, value in of_way.items()}
    return found


def _of_theta(folder: Path) -> Figures:
    """Relative error, coverage and width, over the cells but the references; of the last context too."""
    estimate, truth = (pl.read_parquet(folder / name) for name in ("fit/propensities.parquet", "log/truth.parquet"))
    keys = [
        name for name in ("position", "previous_click", "device") if {name} <= {*estimate.columns} & {*truth.columns}
    ]
    cells = estimate.join(truth.rename({"propensity": "truth"}), on=keys).filter(pl.col("position") > 1)
    holds = pl.col("truth").is_between("ci_low", "ci_high")
    figures = [
        (pl.col("propensity") / pl.col("truth") - 1).abs().mean().alias("error"),
        pl.when(pl.col("ci_low").is_not_null() & (pl.col("ci_low") > 0)).then(holds).mean().alias("cover"),
        (pl.col("ci_high") / pl.col("ci_low")).log().median().alias("width"),
    ]
    found = cells.select(figures).row(0, named=True)
    if "device" in keys:
        last = cells.filter(pl.col("device") == pl.col("device").max()).select(figures).row(0, named=True)
        found |= {f"{name}, last": value for name, value in last.items()}
    of_rows: dict[str, Any] = _estimate(folder).get("from_rows") or {}
    hidden: dict[str, Any] = of_rows.get("hidden_relevance") or {}
    if hidden:
        tenth = cells.with_columns(hidden=pl.Series(hidden["relative_error"][1:])).filter(pl.col("position") == DEPTH)
        found |= {"too low at 10": tenth.select(1 - pl.col("propensity") / pl.col("truth")).item()}
        found |= {"by what hides": tenth["hidden"].item(), "seen": float(hidden["slope_by_rivals_at_least"] > SEEN)}
    return {name: np.nan if value is None else float(value) for name, value in found.items()}


def cells(design: Design, seed: int, folder: Path) -> Figures:
    """What one fit says of theta by cell under the form that it chooses and without a form, and of documents' rates."""
    from small_logs import PBM, statistics_of  # noqa: PLC0415 - once the number of threads is set

    from posbias.core.estimators.estimate import EstimationOptions  # noqa: PLC0415 - likewise
    from posbias.core.fit.fit import fit_statistics  # noqa: PLC0415 - likewise

    draw(design, seed, folder)
    log, truth = (pl.read_parquet(folder / name) for name in ("log.parquet", "truth.parquet"))
    keys, found, rates = truth.columns[:-2], Figures(), Figures()
    rows = log.join(truth.select(*keys, true="propensity"), on=keys, maintain_order="left")
    rows = rows.with_columns(better=(pl.col("true") / pl.col("true").mean().over("position")).log())
    for weights, cell in (("by cell", tuple(keys[1:])), ("by position", ())):
        statistics = statistics_of(log, replace(PBM, cell=cell))
        fit = fit_statistics(statistics, "conditional", EstimationOptions(), compare=False)
        table = statistics.cells.with_columns(fitted=fit.estimate.propensity)
        rows = rows.join(table, on=statistics.cells.columns, maintain_order="left")
        weighted = rows.group_by("query", "doc").agg((pl.col("true", "fitted") ** -1).dot("click"), pl.mean("better"))
        ratio = weighted.filter(pl.col("true") > 0).select(pl.col("fitted") / pl.col("true")).to_series().to_numpy()
        rates[f"rates off, {weights}"] = float(np.abs(ratio / np.median(ratio) - 1).mean())  # a common factor aside
        halves = weighted.group_by(pl.col("better") > pl.median("better"), maintain_order=True).agg(
            pl.sum("true", "fitted")
        )
        worse, better = halves.sort("better").select(pl.col("fitted") / pl.col("true")).to_series()
        rates[f"worse cells, {weights}"] = worse / better - 1
        rows = rows.drop("fitted")
        if not cell:
            continue
        width = Figures()
        theta = table.join(truth, on=keys, how="left", maintain_order="left")["propensity"].to_numpy()
        for way, estimate in (("chosen", fit.estimate), ("free", fit.free)):
            intervals, others = estimate.intervals, estimate.intervals.std_error != 0
            if theta[~others].tolist() != [1]:
                raise RuntimeError(f"{design.name}, seed {seed}: fit and truth have other references")
            known = np.isfinite(intervals.low) & others
            held = (intervals.low <= theta) & (theta <= intervals.high)
            found |= {f"{way}: cover": float(held[known].mean()), f"{way}: known": float(known.sum() / others.sum())}
            width[way] = float(np.median(np.log(intervals.high / intervals.low)[known]))
            errors = np.log(estimate.propensity / theta)[others]
            found |= {f"{way}: off {number}": float(error) for number, error in enumerate(errors)}
        found["rejects"] = np.nan if fit.form is None else float(fit.form.test.p_value < LEVEL)
        found["narrower"] = 1 - width["chosen"] / width["free"]
    return found | rates


def with_bias(logs: Sequence[Figures]) -> Sequence[Figures]:
    """Put the bias into the first log: the root mean square of mean errors by cell, less their variance."""
    found = Figures()
    for way in ("chosen", "free"):
        errors: Floats = np.array([[log[key] for key in log if key.startswith(f"{way}: off ")] for log in logs])
        mean, variance = np.nanmean(errors, axis=0), np.nanvar(errors, axis=0, ddof=1)
        squares: Floats = mean**2 - variance / np.isfinite(errors).sum(axis=0)
        found[f"{way}: bias"] = max(float(np.mean(squares)), 0.0) ** 0.5
    return [found | logs[0], *logs[1:]]


def _estimate(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "fit" / "manifest.json").read_text(encoding="utf-8"))["estimate"]


def _of_pairs(folder: Path) -> Figures:
    pairs, truth = (
        pl.read_parquet(folder / name) for name in ("fit/attractiveness.parquet", "log/attractiveness_truth.parquet")
    )
    if truth["query"].dtype != pairs["query"].dtype or truth.select("query", "doc").is_duplicated().any():
        return {}
    pairs = pairs.join(truth.rename({"attractiveness": "truth"}), on=["query", "doc"])
    held = (pairs["attractiveness"] - pairs["truth"]).abs() <= NORMAL * pairs["std_dev"]
    top = pairs["impressions"] >= pairs["impressions"].quantile(0.9)
    return {"documents": float(held.mean() or 0), "most shown": float(held.filter(top).mean() or 0)}  # type: ignore[arg-type]


def _p_values(folder: Path) -> Figures:
    """The tests of a manifest, 1 where one rejects, and whether a claim is made."""
    estimate = _estimate(folder)
    tests: dict[str, Any] = {
        name: estimate.get(name)
        for name in ("position_effect", "contexts_differ", "shape_against_free", "bins_against_free", "previous_click")
    }
    joint: dict[str, Any] = estimate.get("joint_against_conditional") or {}
    tests["joint_em"] = joint.get("test")
    model: dict[str, Any] = estimate.get("model_tests") or {}
    tests |= {name: model.get(name) for name in ("attractiveness", "clicks_above", "last_click")}
    found = {f"test {name}": float(test["p_value"] < LEVEL) for name, test in tests.items() if test}
    period: dict[str, Any] = estimate.get("period") or {}
    return found | {"claim": float(period.get("claim") is not False)}


def additive_clusters(
    sd: float, clusters: int, zipf: float = 0.0, by_query: float = 0.0
) -> Callable[..., pl.DataFrame]:
    """Clicks anew: each cluster (column `cluster`) has a theta of its own at each position, on average 1 / position."""
    return partial(_clustered, sd=sd, clusters=clusters, zipf=zipf, by_query=by_query)


def _clustered(
    log: pl.DataFrame,
    pairs: pl.DataFrame,
    rng: np.random.Generator,
    *,
    sd: float,
    clusters: int,
    zipf: float,
    by_query: float,
) -> pl.DataFrame:
    log = log.join(pairs, on=["query", "doc"], how="left", maintain_order="left")
    frequency = np.arange(1, clusters + 1.0) ** -zipf
    cluster = rng.choice(clusters, log["session"].n_unique(), p=frequency / frequency.sum())[log["session"].to_numpy()]
    query, position = log["query"].to_numpy(), log["position"].to_numpy()
    shocks = [rng.normal(-(s**2) / 2, s, (n, position.max())) for s, n in ((sd, clusters), (by_query, query.max() + 1))]
    for shock in shocks:
        shock[:, 0] = 0
    log_theta = shocks[0][cluster, position - 1] + shocks[1][query, position - 1] - np.log(position)
    click = rng.random(log.height) < np.minimum(np.exp(log_theta) * log["attractiveness"].to_numpy(), 1)
    return log.with_columns(click=pl.Series(click.astype(np.int8)), cluster=pl.Series(cluster)).drop("attractiveness")


def unrepeated(log: pl.DataFrame, pairs: pl.DataFrame, rng: np.random.Generator, *, unseen: float) -> pl.DataFrame:
    """Every row another document: six features, of which relevance and the ranker's score are made; see Design."""
    del pairs
    pages, shown, documents = log["session"].n_unique(), int(log["position"].max()), 20  # type: ignore[arg-type]
    x, hidden = rng.normal(size=(pages, documents, 6)), rng.normal(size=(pages, documents))
    relevance = 1.2 * x[..., 0] + 0.8 * np.abs(x[..., 1]) + 0.8 * x[..., 2] * (x[..., 3] > 0) - 0.4 * x[..., 4] - 2.5
    score = 0.6 * x[..., 0] + 0.6 * x[..., 2] + 0.5 * x[..., 5]
    relevance, score = relevance + 0.8 * unseen * hidden, score + 0.6 * unseen * hidden
    order = np.argsort(-score / score.std() / 0.4 - rng.gumbel(size=score.shape), axis=1)[:, :shown]
    cells = {f"f{number}": np.take_along_axis(x[..., number], order, axis=1).ravel() for number in range(6)}
    chance = np.take_along_axis(1 / (1 + np.exp(-relevance)), order, axis=1) / np.arange(1, shown + 1)
    click = (rng.random(chance.shape) < chance).astype(np.int8).ravel()
    return pl.DataFrame(
        {
            "session": np.repeat(np.arange(pages), shown),
            "query": np.repeat(np.arange(pages), shown),
            "doc": np.arange(pages * shown),
            "position": np.tile(np.arange(1, shown + 1), pages),
            "click": click,
            **cells,
            "score": np.take_along_axis(score, order, axis=1).ravel(),
        }
    )


def ranked_by_grades(
    log: pl.DataFrame, pairs: pl.DataFrame, rng: np.random.Generator, *, grades: float
) -> pl.DataFrame:
    """Every page another query, of 20 documents, 30 features and grades that these show in part.

    The order is by `grades` times the grade plus the rest times noise, which is the score (Zhang et al. 2023).
    """
    del pairs
    pages, shown = log["session"].n_unique(), 20
    x = rng.normal(size=(pages, shown, 30)) + rng.normal(size=(pages, 1, 30)) / 2
    known = (
        x[..., 0] + 0.7 * x[..., 1] * x[..., 2] + np.maximum(x[..., 3], 0) - 0.5 * np.abs(x[..., 4]) + 0.5 * x[..., 5]
    )
    relevance = known + rng.normal(size=known.shape)
    grade = np.digitize(relevance, np.quantile(relevance, [0.55, 0.8, 0.93, 0.985]))
    score = grades * grade + (1 - grades) * rng.uniform(0, 4, grade.shape)
    order = np.argsort(-score - 1e-9 * rng.random(score.shape), axis=1)
    attractive = np.take_along_axis(0.1 + 0.9 * (2.0**grade - 1) / 15, order, axis=1)
    click = rng.random(attractive.shape) < attractive / np.arange(1, shown + 1)
    return pl.DataFrame(
        {
            "session": np.repeat(np.arange(pages), shown),
            "query": np.repeat(np.arange(pages), shown),
            "doc": np.arange(pages * shown),
            "position": np.tile(np.arange(1, shown + 1), pages),
            "click": click.astype(np.int8).ravel(),
            **{f"f{number}": np.take_along_axis(x[..., number], order, axis=1).ravel() for number in range(30)},
            "score": np.take_along_axis(score, order, axis=1).ravel(),
        }
    )


@dataclass(frozen=True)
class InOrder:
    """120 pages of eight of twelve documents for each query, in the order of time, with times over seven days.

    Scores are relevance, a liking of the ranker, noise, and `learns` times the click rates of the last update.

    Attributes:
        learns: how much the ranker follows clicks.
        updates: how often it takes note of them in all; 0: with each page.
        changes: whether it has other likings from the middle on.
        drift: by how much attractiveness wanders from page to page, in log.
        rate: what all attractiveness is multiplied with.
        later: what clicks are multiplied with in the last third, and eta there.
        queries: how many there are.
        by: the columns that rows are sorted by afterwards, or `shuffled`.
    """

    learns: float = 0.0
    updates: int = 0
    changes: bool = False
    drift: float = 0.0
    rate: float = 1.0
    later: tuple[float, float] = (1.0, 0.8)
    queries: int = 120
    by: str = ""

    def __call__(self, log: pl.DataFrame, pairs: pl.DataFrame, rng: np.random.Generator) -> pl.DataFrame:
        """Draw the log; what `simulate` drew does not matter."""
        del log, pairs
        queries, documents, positions, rounds = self.queries, 12, 8, 120
        attractive, own = rng.beta(1.2, 3, (queries, documents)) * self.rate, np.arange(queries)[:, None]
        likes, walk = rng.normal(0, 0.3, (2, queries, documents)), np.zeros((queries, documents))
        shown = np.full((queries, documents), 5.0)
        clicked, pages = shown * attractive.mean() * 0.4, list[pl.DataFrame]()
        rates = clicked / shown
        for number in range(rounds):
            if not self.updates or number % max(rounds // self.updates, 1) == 0:
                rates = clicked / shown
            walk = walk + rng.normal(0, self.drift, walk.shape)
            now = np.clip(attractive * np.exp(walk), 0, 1)
            score: Floats = (
                attractive / self.rate + likes[int(self.changes and 2 * number >= rounds)] + self.learns * rates
            )
            docs = np.argsort(-score - 0.15 * rng.normal(size=score.shape), axis=1)[:, :positions]
            factor, eta = self.later if 3 * number >= 2 * rounds else (1.0, ETA)
            click = rng.random(docs.shape) < factor * now[own, docs] / np.arange(1.0, positions + 1) ** eta
            np.add.at(shown, (own, docs), 1)
            np.add.at(clicked, (own, docs), click)
            page = rng.permutation(queries)
            place = np.tile(np.arange(1, positions + 1), queries)
            session = np.repeat(number * queries + np.arange(queries), positions)
            rows = {"session": session, "query": np.repeat(page, positions), "doc": docs[page].ravel()}
            pages.append(pl.DataFrame({**rows, "position": place, "click": click[page].ravel().astype(np.int8)}))
        seconds = pl.col("session").cast(pl.Int64) * (7 * 86_400 // (rounds * queries))
        whole = pl.concat(pages).with_columns(timestamp=pl.datetime(2026, 1, 5) + pl.duration(seconds=seconds))
        if self.by == "shuffled":
            return whole.sample(fraction=1, shuffle=True, seed=int(rng.integers(1 << 31)))
        return whole.sort(self.by.split(), maintain_order=True) if self.by else whole


def order(design: Design, seed: int, folder: Path) -> Figures:
    """What fits say of a ranker that learns: from a log, its statistics, a store of its days, and in little memory."""
    whole = draw(design, seed, folder / "log")
    frame = pl.read_parquet(whole)
    frame.drop("timestamp").write_parquet(folder / "rows.parquet")
    posbias("fit", folder / "rows.parquet", "--no-compare", "-o", folder / "by rows")
    by_rows = _of_order(folder / "by rows")
    found = {f"rows: {name}": value for name, value in by_rows.items()}
    if seed % OTHER_WAYS:
        return found
    posbias("collect", folder / "rows.parquet", "-o", folder / "counts")
    for (day,), rows in frame.group_by(pl.col("timestamp").dt.date(), maintain_order=True):
        rows.drop("timestamp").write_parquet(folder / "day.parquet")
        posbias("collect", folder / "day.parquet", "--date", str(day), "-o", folder / f"day {day}")
    ways: dict[str, list[str | Path]] = {
        "times": [whole],
        "days": sorted(folder.glob("day 2*")),
        "counts": [folder / "counts"],
        "little memory": [folder / "rows.parquet", "--memory", "256MiB"],
    }
    for way, words in ways.items():
        posbias("fit", *words, "--no-compare", "-o", folder / f"by {way}")
    by = {way: _of_order(folder / f"by {way}") for way in ways}
    return found | {
        "same from statistics, in 256MiB": float(
            all(by[way]["stops"] == by_rows["stops"] for way in ("counts", "little memory"))
        ),
        "days: stops": by["days"]["stops"],
        "times: stops": by["times"]["stops"],
        "times: error": by["times"]["error"],
    }


def _of_order(folder: Path) -> Figures:
    """Whether a fit stops as the ranker learns, warns of it, or cannot tell at all; its error, if usable."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    severity = {reason["code"]: reason["severity"] for reason in manifest["reasons"]}
    theta = pl.read_parquet(folder / "propensities.parquet").filter(pl.col("position") == 5)["propensity"].item()
    used = manifest["verdict"] != "do not use"
    return {
        "stops": float(severity.get("ranker-learns") == "stop"),
        "warns": float("ranker-learns-little" in severity or "ranker-may-learn" in severity),
        "not tested": float("ranker-not-tested" in severity),
        "error": np.nan if theta is None or not used else abs(theta * 5**ETA - 1),
    }


# --- experiment arms -------------------------------------------------------------------------------------------


def arms(design: Design, seed: int, folder: Path) -> Figures:
    """All movement against experiment arms: errors and coverage, strength, and what the test says."""
    log, options = draw(design, seed, folder / "log"), shlex.split(design.ways[""])
    posbias("fit", log, "--arm", "arm", "--no-compare", *options, "-o", folder / "fit")
    cells = pl.read_parquet(folder / "fit" / "propensities.parquet").filter(pl.col("position") > 1)
    truth, found = pl.col("position") ** -ETA, Figures()
    for name, prefix in (("all movement", ""), ("bent", "arms_")):
        known = cells.drop_nulls(f"{prefix}propensity").with_columns(off=pl.col(f"{prefix}propensity") / truth - 1)
        if known.height:
            holds = truth.is_between(f"{prefix}ci_low", f"{prefix}ci_high").mean()
            found[f"{name}: at 5"] = known.filter(position=5)["off"].item()
            found[f"{name}: cover"] = known.select(holds).item()
    test = _estimate(folder)["arms"]
    found |= {"bent": float("bends" in test), "F": test["strength"] or np.inf, "apart": float(test["apart"])}
    return found | {"p < .05": float(test["p_value"] < LEVEL), "p < .01": float(test["rejected"])}


def judgments(design: Design, seed: int, folder: Path) -> Figures:
    """Judgments by posbias, and by COEC as engines make it: clicks over those expected by the mean click rate of ranks.

    `top`: the truth of the highest rated document of a query, as a share of the best one's. `low`: how far documents
    with a mean position from 6 on are overrated against those up to 3, by clicks. `once`: the mean rating of documents
    with one impression and one click, as a multiple of the mean rating.
    """
    log = draw(design, seed, folder / "log")
    posbias("fit", log, *_UNTIMED.split(), "--no-compare", "-o", folder / "fit", may_fail=True)
    posbias("weight", log, "--propensities", folder / "fit", "--layout", "judgments", "-o", folder / "weighted")
    rows, rate = pl.read_parquet(log), pl.col("click").mean().over("position")
    sums = rows.with_columns(rate=rate).group_by("query", "doc")
    pairs = sums.agg(pl.col("click", "rate").sum(), pl.col("position").mean(), n=pl.len())
    truth = pl.read_parquet(folder / "log" / "attractiveness_truth.parquet").rename({"attractiveness": "truth"})
    ours = pl.read_parquet(folder / "weighted" / "training" / "rows" / "*.parquet").select("query", "doc", "label")
    pairs = pairs.join(truth, on=["query", "doc"]).join(ours, on=["query", "doc"])
    found, clicks = Figures(), pl.col("click")
    for name, rating in (("COEC", clicks / pl.col("rate")), ("posbias", pl.col("label"))):
        rated = pairs.with_columns(rating=rating)
        best = rated.group_by("query").agg(pl.col("truth").sort_by("rating").last() / pl.col("truth").max())
        low, high = (
            rated.filter(where)
            .select(((pl.col("rating") / pl.col("truth")).log() * clicks).sum() / clicks.sum())
            .item()
            for where in ((clicks > 0) & (pl.col("position") >= 6), (clicks > 0) & (pl.col("position") <= 3))
        )
        once, usual = rated.filter(n=1, click=1)["rating"].to_numpy(), rated["rating"].to_numpy()
        found |= {f"{name}: top": float(best["truth"].to_numpy().mean()), f"{name}: low": float(np.exp(low - high) - 1)}
        found[f"{name}: once"] = float(once.mean() / usual.mean()) if len(once) else np.nan
    return found


def scales(design: Design, seed: int, folder: Path) -> Figures:
    """The error of labels by contexts, as the command says, and how often it refuses the files."""
    log = draw(design, seed, folder / "log")
    posbias("run", log, "--context", "arm", *_UNTIMED.split(), "--no-compare", "-o", folder / "run")
    reasons = json.loads((folder / "run" / "manifest.json").read_text(encoding="utf-8"))["reasons"]
    (found,) = (reason for reason in reasons if reason["code"] == "contexts-on-own-scales")
    return {"error": found["figures"]["error"], "refused": float(found["severity"] == "stop")}


def by_arm(
    log: pl.DataFrame,
    pairs: pl.DataFrame,
    rng: np.random.Generator,
    short: str = "",
    **world: Any,  # noqa: ANN401
) -> pl.DataFrame:
    """A log of arms in place of another, of which one may show four results."""
    del log, pairs
    made = log_of_arms(seed=int(rng.integers(2**31)), **world)
    return made.filter((pl.col("arm") != short) | (pl.col("position") <= 4))


# --- changes, evaluations --------------------------------------------------------------------------------------


def changes(design: Design, seed: int, folder: Path) -> Figures:
    """Whether `compare` finds a change between two sides of a log: early and late, or by query."""
    log, found = pl.read_parquet(draw(design, seed, folder / "log")), Figures()
    late = (
        log["timestamp"] > log["timestamp"].min() + pl.duration(days=3)
        if "days" in design.name
        else log["query"] % 2 == 0
    )
    fallen = (pl.col("position") == 3) & (pl.Series(np.random.default_rng(seed).random(log.height)) > 0.8)
    log = log.with_columns(late.alias("late"), fallen=pl.when(fallen).then(0).otherwise("click"))
    for column, click in (("no change", "click"), ("a fifth at position 3", "fallen")):
        for side in (False, True):
            part = log.filter(pl.col("late") == side).select(
                "session", "query", "doc", "position", pl.col(click).alias("click")
            )
            part.write_parquet(folder / f"{side}.parquet")
            posbias("fit", folder / f"{side}.parquet", "-o", folder / f"fit{side}")
            posbias("collect", folder / f"{side}.parquet", "-o", folder / f"counts{side}")
        for kind, how in (("fit", "fits"), ("counts", "statistics")):
            posbias("compare", folder / f"{kind}False", folder / f"{kind}True", "-o", folder / "compared")
            test = json.loads((folder / "compared" / "manifest.json").read_text(encoding="utf-8"))["comparison"]["test"]
            found[f"{how}, {column}"] = float(test["p_value"] < LEVEL)
    return found


TRUTH_FROM, TRUTH_LOGS, NOISE = 1000, 200, {"good": 0.15, "as good": 0.15, "worse": 0.5}


def evaluation(design: Design, seed: int, folder: Path) -> Figures:
    """Values and intervals of rankings of new queries, by theta of another log; from seed 1000 on by the truth."""
    log = draw(design, seed, folder / "log")
    pairs = pl.read_parquet(folder / "log" / "attractiveness_truth.parquet")
    rng, scores = np.random.default_rng(seed), list[str]()
    for name, sd in NOISE.items():
        score = pl.col("attractiveness") + pl.Series(sd * rng.standard_normal(pairs.height))
        pairs.select("query", "doc", score=score).write_parquet(folder / f"{name}.parquet")
        scores += ["--scores", f"{name}={folder / name}.parquet"]
    theta = folder / "log" / "truth.parquet"
    if seed < TRUTH_FROM:
        other = Design(design.name, f"{design.log} --sessions 10000")
        theta = folder / "fit"
        posbias("fit", draw(other, seed + 50_000, folder / "other"), "-o", theta)
    posbias(
        "evaluate", log, "--propensities", theta, *scores, *shlex.split(design.ways[""]), "-o", folder / "evaluated"
    )
    values = pl.read_parquet(folder / "evaluated" / "metrics.parquet").drop_nulls(["value", "ci_low"])
    values = values.filter(pl.col("estimator") != "naive")
    found = Figures()
    for ranking, metric, estimator, value, low, high in values.select(
        "ranking", "metric", "estimator", "value", "ci_low", "ci_high"
    ).iter_rows():
        key = f"{metric} {estimator} {ranking}"
        found |= {f"{key} value": value, f"{key} low": low, f"{key} high": high}
    differences = pl.read_parquet(folder / "evaluated" / "differences.parquet").filter(
        pl.col("ranking").is_in(["good", "as good"]) & pl.col("baseline").is_in(["good", "as good"])
    )
    for metric, estimator, p_value in differences.select("metric", "estimator", "p_value").iter_rows():
        found[f"{metric} {estimator} apart"] = float(p_value < LEVEL)
    return found


def held(logs: Sequence[Figures], truths: Sequence[Figures]) -> list[Figures]:
    """For each log, whether its intervals hold the mean of the values that true propensities give."""
    keys = [key.removesuffix(" value") for key in logs[0] if key.endswith(" value")]
    truth = {key: np.mean([log[f"{key} value"] for log in truths]) for key in keys}
    return [
        {key: float(log[f"{key} low"] <= truth[key] <= log[f"{key} high"]) for key in keys}
        | {key: value for key, value in log.items() if key.endswith("apart")}
        for log in logs
    ]


# --- designs ---------------------------------------------------------------------------------------------------

METHODS = {
    "conditional": "--timestamp none",
    "joint": "--method joint --timestamp none",
    "allpairs": "--method allpairs --timestamp none",
    "ctr": "--method ctr --timestamp none",
}
UBM = {name: f"{options} --model ubm" for name, options in METHODS.items()}


def _also(options: str) -> dict[str, str]:
    """The methods, each with further options."""
    return {name: f"{own} {options}" for name, own in METHODS.items()}


DENSE = "--sessions 30000 --queries 50 --docs-per-query 20"
SPARSE = "--sessions 100000 --queries 30000 --docs-per-query 20"
BY_DAY, BY_SEGMENT = _also("--timestamp timestamp --period day"), _also("--stratify segment")
LEARNS = "--days 30 --feedback-strength 6 --sessions"
PERSONAL = "--segments 4 --segment-difference .7 --ranker-strength 2"
ACCURACY = (
    Design("densest", "--sessions 100000 --queries 20 --docs-per-query 15 --query-exponent 0", METHODS),
    Design("dense", DENSE, METHODS),
    Design("dense, high click rate", f"{DENSE} --attractiveness 4:2 --eta .5", METHODS),
    Design("dense, low click rate", f"{DENSE} --attractiveness-scale .1", METHODS),
    Design("dense, sticky", f"{DENSE} --ranker-strength 30 --score-weight .3", METHODS),
    Design("dense, confounded", f"{DENSE} --ranker-strength 4", METHODS),
    Design("sparse", SPARSE, METHODS),
    Design("sparsest", "--sessions 200000 --queries 150000 --docs-per-query 20 --query-exponent .3", METHODS),
    Design("sparse, short log", f"{SPARSE} --sessions 20000 --queries 10000", METHODS),
    Design("sparse, high click rate", f"{SPARSE} --attractiveness 4:2 --eta .5", METHODS),
    Design("sparse, low click rate", f"{SPARSE} --attractiveness-scale .1", METHODS),
    Design("sparse, sticky", f"{SPARSE} --ranker-strength 30 --score-weight .3", METHODS),
    Design("sparse, confounded", f"{SPARSE} --ranker-strength 4", METHODS),
    Design("50 positions, dense", f"{DENSE} --positions 50 --docs-per-query 60 --queries 20", METHODS),
    Design("50 positions, sparse", "--sessions 40000 --queries 20000 --positions 50 --docs-per-query 60", METHODS),
    Design("UBM, dense", f"{DENSE} --model ubm", UBM),
    Design("UBM, sparse", f"{SPARSE} --model ubm", UBM),
    Design("uneven readiness", f"{DENSE} --sessions 100000 --readiness .3,1.7 --attractiveness-scale .58", METHODS),
    Design("re-ranked, dense: pooled", f"{DENSE} {LEARNS} 30000", METHODS),
    Design("re-ranked, dense: by day", f"{DENSE} {LEARNS} 30000", BY_DAY),
    Design("re-ranked, sparse: pooled", f"{SPARSE} {LEARNS} 100000 --queries 5000", METHODS),
    Design("re-ranked, sparse: by day", f"{SPARSE} {LEARNS} 100000 --queries 5000", BY_DAY),
    Design("personalised, dense: pooled", f"{DENSE} --sessions 60000 {PERSONAL}", METHODS),
    Design("personalised, dense: by segment", f"{DENSE} --sessions 60000 {PERSONAL}", BY_SEGMENT),
    Design("personalised, sparse: pooled", f"{SPARSE} {PERSONAL}", METHODS),
    Design("personalised, sparse: by segment", f"{SPARSE} {PERSONAL}", BY_SEGMENT),
)

QUERIES = {
    f"{n:,} {frequency}{', shocks' if shock else ''}": (
        f"--queries {n} --sessions {sessions} --docs-per-query 15 --attractiveness-scale .5 "
        f"--query-exponent {exponent}" + (f" --theta-shock {shock}" if shock else "")
    )
    for n, sessions in ((20, 8_000), (200, 12_000), (20_000, 30_000))
    for frequency, exponent in (("even", 0), ("Zipf", 1))
    for shock in (0, 0.3)
}
"""Logs whose queries are few or many, even or not, and differ in theta or not; the largest take most of the time."""
RANDOM = "--randomized-share .2"
ERRORS = {
    f"{name}, {kind}": f"{method} {bootstrap}"
    for name, method in (
        ("conditional", ""),
        ("allpairs", "--method allpairs"),
        ("randomized", '--method randomized --randomized-where "policy=random"'),
    )
    for kind, bootstrap in (("sandwich", ""), ("bootstrap", "--bootstrap 199"))
    if (name, kind) != ("allpairs", "bootstrap")
}
COVERAGE = (
    *(Design(name, f"{log} {RANDOM}", ERRORS) for name, log in QUERIES.items()),
    *(
        Design(
            f"UBM, {name}",
            f"--model ubm --docs-per-query 10 --positions 5 {log}",
            {"conditional, sandwich": "--model ubm"},
        )
        for name, log in (
            ("200 even", "--queries 200 --sessions 12000 --query-exponent 0"),
            ("20,000 Zipf", "--queries 20000 --sessions 60000 --query-exponent 1"),
        )
    ),
)
ATTRACTIVENESS = tuple(Design(name, log, {"": ""}) for name, log in QUERIES.items() if "20,000" not in name)

SHAPES = {"free": "", "smooth": "--shape smooth", "power": "--shape power"}
WAVY = "1,.9,.5,.6,.35,.45,.2,.3,.15,.2"
THIN = (
    Design("thin, power", "--sessions 800 --queries 60 --ranker-strength 8 --attractiveness-scale .7", SHAPES),
    Design("thin, wavy", f"--sessions 800 --queries 60 --ranker-strength 8 --theta {WAVY}", SHAPES),
    Design("thinnest", "--sessions 400 --queries 60 --ranker-strength 8 --attractiveness-scale .5", SHAPES),
    Design("rich, power", "--sessions 20000 --queries 60 --ranker-strength 4", SHAPES),
    Design("rich, wavy", f"--sessions 20000 --queries 60 --ranker-strength 4 --theta {WAVY}", SHAPES),
    Design("8 queries, shocks", "--sessions 1500 --queries 8 --ranker-strength 4 --theta-shock .3", SHAPES),
)

SHRUNK = {"alone": "--context device --shrink none", "borrowing": "--context device --shrink auto"}
SMALL_LOG = (
    "--docs-per-query 10 --positions 6 --attractiveness-scale .5 --queries 60 --sessions 12000 --query-exponent 0"
)


def _contexts(number: int, small: int, eta: float) -> Design:
    """The last context has `small` of 100 parts of the log, and a curve of its own; the others share the rest."""
    large = 100 - small
    devices = " ".join(["--device .7"] * large + [f"--device {eta}"] * small)
    parts = (*(part * (number - 1) // large for part in range(large)), *(number - 1,) * small)
    kind = "equal" if eta == 0.7 else "differs"
    return Design(f"{number} contexts, one of {small} % {kind}", f"{SMALL_LOG} {devices}", SHRUNK, contexts=parts)


CONTEXTS = (
    *(_contexts(number, small, 1.1) for number in (2, 5, 12) for small in (1, 3, 5)),
    *(_contexts(number, 1, 0.7) for number in (2, 12)),
    *(Design(f"{number} contexts alike", f"{SMALL_LOG} {'--device .7 ' * number}", SHRUNK) for number in (2, 12)),
)


def _grid(rows: Sequence[float], *off: tuple[int, float]) -> str:
    """Theta of a grid, slot by slot, by factors of rows and five columns, and of single slots."""
    theta = np.outer(rows, (1, 0.8, 0.65, 0.55, 0.5)).ravel()
    for slot, factor in off:
        theta[slot] *= factor
    table = ",".join(f"{value:.6g}" for value in theta)
    return f"--positions 5 --docs-per-query 30 --cells row={','.join('1' * len(rows))} --theta {table}"


_BELOW = ".45,.5,.56,.61,.67,.72,.78,.83,.89,.95"  # attention below an answer: the later the more of what it is without
_ROWS = (0.9, 0.65, 0.5, 0.4)
_HYPERBOLA = ",".join(f"{(row + column + 1) ** -0.7:.6g}" for row in range(4) for column in range(5))
_SOME = "--days 0 --query-exponent .5 --attractiveness-scale .5 --docs-per-query 15"
CELLS = tuple(
    Design(f"{name}, {queries} queries", f"{_SOME} --queries {queries} --sessions {sessions} {world}")
    for name, world, sessions, numbers in (
        ("block on 20 %", f"--cells block=.2,.15:{_BELOW}", 20_000, (40,)),
        ("block on 40 %", f"--cells block=.4,.25:{_BELOW}", 20_000, (8, 40, 500)),
        ("block on 60 %", f"--cells block=.6,.25:{_BELOW}", 20_000, (40,)),
        ("advert on 30 %", "--cells advert=.3,.2:.7", 20_000, (8, 40, 500)),
        ("grid", _grid(_ROWS), 10_000, (8, 40, 500)),
        ("grid, a cell 1.1", _grid(_ROWS, (6, 1.1)), 10_000, (40, 500)),
        ("grid, a cell 1.2", _grid(_ROWS, (6, 1.2)), 10_000, (40, 500)),
        ("grid, no product", f"{_grid(_ROWS)} --theta {_HYPERBOLA}", 10_000, (40,)),
        ("carousels", "--positions 6 --docs-per-query 36 --eta .5 --cells carousel=1,.7,.5,.4", 10_000, (40, 500)),
    )
    for queries in numbers
)

BY = {"by query": "", "two-way": "--cluster-column cluster"}
CLUSTERED = "--docs-per-query 8 --positions 5 --query-exponent .5 --attractiveness-scale .5 --sessions 6000 --queries"
CLUSTERS = tuple(
    Design(name, f"{CLUSTERED} {queries}", BY, additive_clusters(sd, clusters, zipf, by_query))
    for name, clusters, sd, zipf, queries, by_query in (
        ("500 users, nothing shared", 500, 0.0, 0.0, 300, 0.0),
        ("100 users", 100, 0.3, 0.0, 300, 0.0),
        ("100 users, Zipf", 100, 0.3, 1.0, 300, 0.0),
        ("20 markets", 20, 0.3, 0.0, 300, 0.0),
        ("8 markets", 8, 0.3, 0.0, 300, 0.0),
        ("100 users, and 30 queries", 100, 0.3, 0.0, 30, 0.3),
    )
)

_SCORE = " --ranker-score score"
FEATURES = tuple(
    Design(
        name,
        f"--sessions {pages} --queries 10 --positions {positions} --docs-per-query {positions}",
        {
            "features": f"--method features {' '.join(f'--feature f{number}' for number in range(width))}{score}",
            "ctr": "--method ctr",
        },
        world,
    )
    for name, world, score, pages, positions, width in (
        ("weak", partial(unrepeated, unseen=0.0), "", 5_000, 10, 6),
        ("weak, the score named", partial(unrepeated, unseen=0.0), _SCORE, 5_000, 10, 6),
        ("unseen, the score named", partial(unrepeated, unseen=1.0), _SCORE, 5_000, 10, 6),
        ("unseen, and the score too: nothing can be right", partial(unrepeated, unseen=1.0), "", 5_000, 10, 6),
        *(
            (f"order {share:g} grades{', the score named' * bool(score)}", world, score, 4_000, 20, 30)
            for share in (0.0, 0.6, 1.0)
            for world in (partial(ranked_by_grades, grades=share),)
            for score in ("", _SCORE)
        ),
    )
)

_REPLACED = "--sessions 20 --queries 2 --positions 8 --docs-per-query 8"
_UNTIMED, _TIMES = "--timestamp none", "--timestamp timestamp --period none"
ARMS = tuple(
    Design(name, _REPLACED, {"": options or _UNTIMED}, partial(by_arm, ranker=ranker, **world))
    for name, ranker, world, options in (
        ("fixed, 2 arms", "fixed", {}, ""),
        ("fixed, 6 arms", "fixed", {"arms": 6}, ""),
        ("fixed, weak arms", "fixed", {"spread": 0.1}, ""),
        ("fixed, arms alike", "fixed", {"spread": 0.0}, ""),
        ("fixed, 30 queries", "fixed", {"queries": 30}, ""),
        ("B is clicked 20 % more", "fixed", {"level": 1.2}, ""),
        ("B +20 % on 30 % of docs", "fixed", {"level": 1.2, "pictured": 0.3}, ""),
        ("B +20 % on 30 %, which it lifts", "fixed", {"level": 1.2, "pictured": 0.3, "lift": 0.3}, ""),
        ("knows the user, 2 arms", "knows the user", {}, ""),
        ("knows the user, 6 arms", "knows the user", {"arms": 6}, ""),
        ("knows the user, weak arms", "knows the user", {"spread": 0.1}, ""),
        ("knows the user, arms alike", "knows the user", {"spread": 0.0}, ""),
        ("knows the user, 30 queries", "knows the user", {"queries": 30}, ""),
        ("B alone knows the user", "others know the user", {}, ""),
        ("B alone knows the user, arms else alike", "others know the user", {"spread": 0.0}, ""),
        ("learns at once, 2 arms", "learns", {}, ""),
        ("learns at once, 6 arms", "learns", {"arms": 6}, ""),
        ("learns at once, a quarter", "learns", {"strength": 1.0}, ""),
        ("learns at once, weak arms", "learns", {"spread": 0.1}, ""),
        ("learns at once, 30 queries", "learns", {"queries": 30}, ""),
        ("learns at once, times known", "learns", {}, _TIMES),
        ("each arm learns by itself", "each arm learns", {}, ""),
        ("each arm learns, times known", "each arm learns", {}, _TIMES),
    )
)

SCALES = tuple(
    Design(name, _REPLACED, {}, partial(by_arm, ranker="fixed", **world))
    for name, world in (
        ("even, one scale", {"spread": 0.0}),
        ("even, B .45", {"spread": 0.0, "level": 0.45}),
        ("even, B .45, 30 queries", {"spread": 0.0, "level": 0.45, "queries": 30}),
        ("even, B .45, 10 pages each", {"spread": 0.0, "level": 0.45, "pages": 10}),
        ("even, B to F .45", {"spread": 0.0, "level": 0.45, "arms": 6}),
        ("uneven, one scale", {}),
        ("hardly uneven, B .45", {"level": 0.45, "spread": 0.1}),
        ("uneven, B .8", {"level": 0.8}),
        ("uneven, B .45", {"level": 0.45}),
        ("uneven, B .45, 30 queries", {"level": 0.45, "queries": 30}),
        ("uneven, B .45, 10 pages each", {"level": 0.45, "pages": 10}),
        ("uneven, B to F .45", {"level": 0.45, "arms": 6}),
        ("very uneven, B .8", {"level": 0.8, "spread": 1.5}),
        ("even, one scale, B shows 4", {"spread": 0.0, "short": "B"}),
        ("uneven, one scale, A shows 4", {"short": "A"}),
        ("even, B .45, B shows 4", {"spread": 0.0, "level": 0.45, "short": "B"}),
        ("even, B .45, A shows 4", {"spread": 0.0, "level": 0.45, "short": "A"}),
        ("uneven, B .45, B shows 4", {"level": 0.45, "short": "B"}),
        ("uneven, B .45, A shows 4", {"level": 0.45, "short": "A"}),
    )
)

AUTO = {"auto": "--timestamp timestamp", "pooled": "--timestamp timestamp --period none"}
FEEDBACK = tuple(
    Design(
        f"{n:,} queries, {f'{updates} updates a day' if updates else 'learns nothing'}{weakly}",
        f"--sessions 20000 --queries {n} --docs-per-query 15 --positions 6 --days 14 --attractiveness-scale .5"
        + (f" --feedback-strength {strength} --updates-per-day {updates}" if updates else ""),
        AUTO,
    )
    for n in (15, 200, 2_000)
    for updates, strength, weakly in (
        (0, 3, ""),
        (1, 3, ""),
        (4, 3, ""),
        (24, 3, ""),
        (1, 1, ", weakly"),
        (4, 1, ", weakly"),
        (24, 1, ", weakly"),
    )
)

_SMALL = "--sessions 2 --queries 1"  # what `simulate` draws does not matter
_STAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("stationary", {}),
    ("new ranker", {"changes": True}),
    ("drift", {"drift": 0.08}),
    ("few clicks, new ranker", {"changes": True, "rate": 0.1}),
    ("12 queries, new ranker", {"changes": True, "queries": 12}),
    ("clicks halved later, new ranker", {"changes": True, "queries": 300, "later": (0.5, ETA)}),
    ("clicks +50 % later, new ranker, by query", {"changes": True, "queries": 300, "later": (1.5, ETA), "by": "query"}),
    ("flatter page later, new ranker", {"changes": True, "queries": 300, "later": (1.0, 0.4)}),
    *((f"stationary, by {by}", {"by": by}) for by in ("query", "position", "click", "query doc", "shuffled")),
    *(
        (f"new ranker, by {by}", {"by": by, "changes": True})
        for by in ("query", "position", "click", "query doc position click", "shuffled")
    ),
)
_LEARNS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(
        (f"learns {how}, {strength:g}", {"learns": strength, "updates": updates})
        for how, updates in (("at once", 0), ("48 times", 48), ("nightly", 7))
        for strength in (4.0, 1.5, 0.6, 0.2)
    ),
    ("learns at once, 1.5, by query", {"learns": 1.5, "by": "query"}),
    ("learns at once, 1.5, few clicks", {"learns": 1.5, "rate": 0.1}),
    ("learns at once, 1.5, 15 queries", {"learns": 1.5, "queries": 15}),
    ("learns at once, 1.5, shuffled", {"learns": 1.5, "by": "shuffled"}),
)
ORDER = tuple(Design(name, _SMALL, change=InOrder(**world)) for name, world in (*_STAYS, *_LEARNS))

_STEPS = "1,.6,.4,.4,.3,.3,.3,.2,.2,.2"
_TESTED: tuple[tuple[str, str, str, str, str], ...] = (  # test, options where it holds, and where not, of the fit, base
    ("position_effect", "--eta 0", "--eta .1", "", "20 even"),
    ("position_effect", "--eta 0", "--eta .1", "", "200 Zipf, shocks"),
    ("contexts_differ", "--device 1 --device 1", "--device 1 --device .7", "--context device", "20 even"),
    ("contexts_differ", "--device 1 --device 1", "--device 1 --device .7", "--context device", "200 Zipf, shocks"),
    ("shape_against_free", "--eta 1", f"--theta {WAVY}", "--shape power", "20 even"),
    ("shape_against_free", "--eta 1", f"--theta {WAVY}", "--shape power", "200 Zipf, shocks"),
    ("bins_against_free", f"--theta {_STEPS}", "--eta 1", "--position-bins 1,2,3,5,8", "20 even"),
    ("joint_em", "--theta .5,.5,.5,.5,.5,.5,.5,.5,.5,.5 --ranker-strength 0", "--eta 1", "--compare", "200 even"),
    ("previous_click", "--model pbm", "--model ubm", "--model ubm", "200 even"),
    ("attractiveness", "", "--model tpbm", "", "200 even"),
    ("attractiveness", "", "--model tpbm", "", "20,000 Zipf"),
    ("clicks_above", "", "--model dbn", "", "200 even"),
    ("clicks_above", "", "--model cm", "", "20,000 Zipf"),
    ("clicks_above", "", "--readiness .3,1.7", "", "200 even"),
    ("last_click", "", "--model ubm", "", "200 even"),
)
TESTS = tuple(
    Design(f"{test}, {base}", "", {holds: f"{QUERIES[base]} {one}", fails: f"{QUERIES[base]} {other}", "": fit})
    for test, one, other, fit, base in _TESTED
    for holds, fails in (("holds", "does not hold"),)
)


def tests(design: Design, seed: int, folder: Path) -> Figures:
    """Whether a test rejects on two logs: where its hypothesis holds, and where it does not."""
    test, found = design.name.split(",")[0], Figures()
    for column in ("holds", "does not hold"):
        log = draw(Design(design.name, design.ways[column]), seed, folder / column.replace(" ", "-"))
        posbias("fit", log, *shlex.split(design.ways[""]), "-o", folder / "fit", may_fail=True)
        found[column] = _p_values(folder).get(f"test {test}", np.nan)
    return found


_SIDES = "--sessions 8000 --queries 100 --docs-per-query 10 --positions 5 --query-exponent .5 --days 7 --theta-shock .3"
CHANGES = (Design("days apart, same queries", _SIDES), Design("other queries", _SIDES))
_SHOWN = "--sessions 3000 --docs-per-query 15 --positions 10 --days 0 --attractiveness-scale .5"
EVALUATION = (
    Design("200 queries, Zipf 0.7, by page", f"{_SHOWN} --queries 200", {"": ""}),
    Design("60 queries, Zipf 1.0, by page", f"{_SHOWN} --queries 60 --query-exponent 1", {"": ""}),
    Design("200 queries, Zipf 0.7, by query", f"{_SHOWN} --queries 200", {"": "--candidates query"}),
)


@dataclass(frozen=True)
class Study:
    """A table: its rows, what is measured on each log, which figures it shows, and how (in %, or as they are)."""

    designs: Sequence[Design]
    measure: Callable[[Design, int, Path], Figures] = fits
    figures: tuple[str, ...] = ()
    plain: tuple[str, ...] = ("width",)
    gather: Callable[[Sequence[Figures]], Sequence[Figures]] = list  # of the logs of a row


JUDGMENTS = [
    Design("20,000 pages", "--sessions 20000 --queries 200 --docs-per-query 20"),
    Design("2,000 pages", "--sessions 2000 --queries 200 --docs-per-query 20"),
    Design("20,000 pages, a better ranker", "--sessions 20000 --queries 200 --docs-per-query 20 --ranker-strength 3"),
    Design("20,000 pages, steeper", "--sessions 20000 --queries 200 --docs-per-query 20 --eta 1.5"),
]
STUDIES = {
    "accuracy": Study(ACCURACY, figures=("error",)),
    "coverage": Study(COVERAGE, figures=("cover", "width")),
    "attractiveness": Study(ATTRACTIVENESS, figures=("documents", "most shown")),
    "thin": Study(THIN, figures=("error", "cover", "width")),
    "cells": Study(
        CELLS,
        cells,
        (
            "bias",
            "cover",
            "rejects",
            "narrower",
            "rates off, by cell",
            "worse cells, by cell",
            "worse cells, by position",
        ),
        ("bias",),
        with_bias,
    ),
    "contexts": Study(CONTEXTS, figures=("cover", "cover, last", "width, last"), plain=("width, last",)),
    "clusters": Study(CLUSTERS, figures=("cover",)),
    "features": Study(FEATURES, figures=("error", "cover", "too low at 10", "by what hides", "seen", "doubt")),
    "arms": Study(ARMS, arms, plain=("F",)),
    "scales": Study(SCALES, scales),
    "judgments": Study(JUDGMENTS, judgments, plain=("once",)),
    "feedback": Study(FEEDBACK, figures=("claim", "error", "cover")),
    "order": Study(ORDER, order),
    "tests": Study(TESTS, tests),
    "changes": Study(CHANGES, changes),
    "evaluation": Study(EVALUATION, evaluation),
}


def measured(task: tuple[str, int, int]) -> Figures:
    """The figures of one log of a study, by the number of its design and its seed."""
    name, number, seed = task
    study = STUDIES[name]
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        return study.measure(study.designs[number], seed, Path(folder))


def table_of(name: str, rows: Mapping[str, Sequence[Figures]], number: int) -> Table:
    """A row a kind of log and a column a figure, or the other way round."""
    study = STUDIES[name]
    keys = list(dict.fromkeys(key for logs in rows.values() for log in logs for key in log))
    shown = [key for key in keys if not study.figures or key.endswith(study.figures)]
    shown = [key for key in shown if not study.figures or key.rpartition(": ")[2] in study.figures]
    table = Table(title=f"{name}, {number} logs each", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    cells = {
        key: [_cell([log.get(key, np.nan) for log in logs], study.plain, key) for logs in rows.values()]
        for key in shown
    }
    if len(shown) > MOST_COLUMNS:  # as rows
        for heading in ("", *rows):
            table.add_column(heading.replace(", ", ",\n"), justify="right" if heading else "left")
        for key, values in cells.items():
            table.add_row(key, *values)
        return table
    table.add_column("log")
    for key in shown:
        table.add_column(key.replace(": ", "\n").replace(", ", ",\n"), justify="right")
    for row in zip(rows, *cells.values(), strict=True):
        table.add_row(*row)
    return table


def _cell(values: Sequence[float], plain: tuple[str, ...], key: str) -> str:
    """Mean and standard error over the logs that have the figure."""
    known = np.array(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return "-"
    scale, digits = (1, 3) if key.endswith(plain) else (100, 1)
    error = f"±{scale * known.std(ddof=1) / np.sqrt(len(known)):.{digits}f}" if len(known) > 1 else ""
    return f"{scale * known.mean():.{digits}f}{error}"


def main() -> None:
    """Parse the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--logs", type=int, default=20, help="of each kind, seeds from 0 on")
    parser.add_argument("--only", default="", help="kinds whose names contain this")
    parser.add_argument(
        "--truth", type=int, default=TRUTH_LOGS, help="of evaluation: logs that the truth is the mean of"
    )
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    study = STUDIES[asked.study]
    numbers = [number for number, design in enumerate(study.designs) if asked.only in design.name]
    seeds = list(range(asked.logs))
    truths = list(range(TRUTH_FROM, TRUTH_FROM + asked.truth)) if asked.study == "evaluation" else []
    tasks = [(asked.study, number, seed) for number in numbers for seed in (*seeds, *truths)]
    os.environ |= dict.fromkeys(("POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    with ProcessPoolExecutor(asked.processes, get_context("spawn")) as pool:
        found = list(pool.map(measured, tasks))
    rows, each = dict[str, Sequence[Figures]](), len(seeds) + len(truths)
    for place, number in enumerate(numbers):
        logs = found[place * each : (place + 1) * each]
        rows[study.designs[number].name] = (
            held(logs[: len(seeds)], logs[len(seeds) :]) if truths else study.gather(logs)
        )
    table_console().print(table_of(asked.study, rows, asked.logs))


if __name__ == "__main__":
    main()
