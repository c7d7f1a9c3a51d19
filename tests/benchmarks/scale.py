"""What posbias costs on large logs, next to the bare work; on stores of days; and with many cells.

    python tests/benchmarks/scale.py commands|times|growth|cells|store|export [--impressions N...] [--runs 3]
                                     [--models M...] [--ids KIND...] [--threads N...] [--fits] [--directory DIR]

commands  collect, fit, weight, predict and run with 1 GiB, next to DuckDB's group-by and Polars' copy of the same file,
          for each model, kind of ids (integer, text, long) and number of threads; --fits leaves out check, weight and
          predict
times     collect, fit and run of a log with times, a second a session, next to the same without them
growth    `fit --no-compare` with 2 GiB: cost, and how the numbers of pairs, statistics rows and signatures grow
cells     `fit` with 100 to 5,000 positions of lists that users scroll through
store     days that go one by one into a store (--days 30), its fit, and that of the same days collected in one go
export    a ranker of 400 trees and 40 features that lack values, for each search engine, scored back

The logs are simulated, the same ones every time, and deleted at once; --directory says where they and the results go.
The bare work of counting is DuckDB's (pip install duckdb; 2.0.1 was used; memory limit 2 GB): the group-by to (query,
document, position), for UBM with the last click above from a window over the session. Every stage is a process of its
own, interpreter start included.

New queries never cease in these logs, so that their pairs grow with them: queries follow a Zipf-Mandelbrot law over 200
million, density ~ (rank + 200) ** -1.3. A query has 13 documents, shuffled anew in every session; ten are shown. Gamma
is a hash of the pair, halved down the ranking. PBM: theta = 1 / position; UBM: 1 / (position - position of the last
click above). Ids are integers, or the same as text, short or as long as real ones are.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from datetime import date, timedelta
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray
from processes import POSBIAS, Measured, Stage, empty_table, error_of_theta, measure, stage_table, table_console

Integers = NDArray[np.int64]

SIZES = {"commands": [10_000_000, 100_000_000], "times": [20_000_000], "growth": [1_000_000, 10_000_000, 100_000_000]}
CELLS, FIRST_DAY = (100, 500, 2_000, 5_000), date(2025, 1, 1)
POSITIONS, SESSIONS_PER_BLOCK, SEED = 10, 100_000, 20_260_105

_QUERIES, _OFFSET, _EXPONENT = 200_000_000, 200.0, 1.3
_DOCS_PER_QUERY, _SHUFFLE, _MOST_ATTRACTIVE = 13, 10.0, 0.8
_CATALOGUE, _STEP = 9_999_991, 7_654_321  # documents in all, a prime; from a document of a query to the next
_SESSIONS_OF_A_LIST, _MOVED, _TO_THE_END = 20, 10.0, 0.2

_DIGITS = pl.col("session").cast(pl.String).str.zfill(12)
_URL = "https://www.example.com/en/catalogue/household/kitchen/small-appliances/{}/product-page?item={}&ref=search"
IDS: dict[str, list[pl.Expr]] = {
    "integer": [],
    "text": [
        pl.format("s{}", "session").alias("session"),
        pl.format("q{}", "query").alias("query"),
        pl.format("sku-{}", pl.col("doc").cast(pl.String).str.zfill(7)).alias("doc"),
    ],
    "long": [
        pl.format("6f1c2a9e-41d3-4b7a-9c55-{}", _DIGITS).alias("session"),
        pl.format("cheap hotels near station {} with breakfast", "query").alias("query"),
        pl.format(_URL, pl.col("doc") % 97, "doc").alias("doc"),
    ],
}

_PREVIOUS_CLICK = """(
    SELECT *, coalesce(max(CASE WHEN click = 1 THEN position END) OVER (
        PARTITION BY session ORDER BY position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0) AS previous_click FROM log
)"""
_COUNT = "SELECT {keys}, count(*) AS n, sum(click)::BIGINT AS c FROM {log} GROUP BY ALL"
_COUNTS = {
    "pbm": _COUNT.format(keys="query, doc, position", log="log"),
    "ubm": _COUNT.format(keys="query, doc, position, previous_click", log=_PREVIOUS_CLICK),
}
_SUM, _WRITE = "SELECT count(*), sum(n), sum(c) FROM ({})", "COPY ({} ORDER BY ALL) TO '{}' (FORMAT parquet)"
_DUCKDB = """
import sys
import duckdb
log, temp, threads, query = sys.argv[1:]
duckdb.sql(f"SET memory_limit='2GB'; SET threads={threads}; SET preserve_insertion_order=false")
duckdb.execute("SET temp_directory=$temp", dict(temp=temp))
duckdb.read_parquet(log).create_view("log")
print(duckdb.execute(query).fetchall())
"""
_COPY = """
import os
import sys
log, copy, os.environ["POLARS_MAX_THREADS"] = sys.argv[1:]
import polars as pl
pl.scan_parquet(log).sink_parquet(copy)
"""
_SCORES = """
import sys
log, scores = sys.argv[1:]
import polars as pl
pairs = pl.scan_parquet(log).group_by("query", "doc").agg(pl.col("position").mean())
noise = pl.struct("query", "doc").hash(7) % 1000 / 500
pairs.select("query", "doc", score=noise - pl.col("position")).sink_parquet(scores)
"""


# --- logs ------------------------------------------------------------------------------------------------------


@contextmanager
def simulated(directory: Path | None, *words: object) -> Generator[Path]:
    """A log in a temporary directory, by a process of its own: a child starts with its parent's peak of memory."""
    with tempfile.TemporaryDirectory(prefix="scale-", dir=directory) as folder:
        log = Path(folder) / "log.parquet"
        Measured().add((__file__, "--write", str(log), *map(str, words)))
        yield log


def write_log(path: Path, n_impressions: int, model: str, ids: str, timed: str = "") -> None:
    """Write a log of whole sessions, a row group a block, each with its own stream of random numbers."""
    time = [(pl.lit(FIRST_DAY).cast(pl.Datetime("us")) + pl.duration(seconds="session")).alias("time")] if timed else []
    parquet: Any = import_module("pyarrow.parquet")  # it has no types
    n_sessions = n_impressions // POSITIONS
    writer: Any = None
    for first in range(0, n_sessions, SESSIONS_PER_BLOCK):
        block = _block(first, min(SESSIONS_PER_BLOCK, n_sessions - first), model).with_columns([*IDS[ids], *time])
        table = cast("Any", block.to_arrow())
        writer = writer or parquet.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _block(first: int, n_sessions: int, model: str) -> pl.DataFrame:
    rng = np.random.default_rng([SEED, first])
    # Numbers of queries, by the inverse of the continuous law: (q + 200) / 200 = u ** (-1 / 0.3)
    power = 1 - _EXPONENT
    rarest = ((_QUERIES + _OFFSET) / _OFFSET) ** power
    u = rarest + (1 - rarest) * rng.random(n_sessions)
    query = (_OFFSET * u ** (1 / power) - _OFFSET).astype(np.int64)
    # Which document, by its rank from 0, stands at each position, shape (S, K)
    noise = rng.random((n_sessions, _DOCS_PER_QUERY), dtype=np.float32)
    score = np.arange(_DOCS_PER_QUERY, dtype=np.float32) + np.float32(_SHUFFLE) * noise
    rank = np.argsort(score, axis=1)[:, :POSITIONS].astype(np.int8)
    # Gamma of each pair: a hash, uniform below 0.8 at the top, below 0.4 at the end
    uniform = (_mixed(query[:, None] * 16 + rank) >> np.uint64(40)).astype(np.float32) * np.float32(2**-24)
    best = _MOST_ATTRACTIVE * (1 - np.arange(_DOCS_PER_QUERY) / (2 * _DOCS_PER_QUERY))
    gamma = best.astype(np.float32)[rank] * uniform
    chance = rng.random(rank.shape, dtype=np.float32)
    doc = (_mixed(query)[:, None] % _CATALOGUE + rank.astype(np.uint64) * _STEP) % _CATALOGUE
    columns = {
        "session": np.repeat(np.arange(first, first + n_sessions), POSITIONS),
        "query": np.repeat(query, POSITIONS),
        "doc": doc.astype(np.int64).ravel(),
        "position": np.tile(np.arange(1, POSITIONS + 1, dtype=np.int8), n_sessions),
        "click": _clicks(gamma, chance, model).ravel().view(np.int8),
    }
    return pl.DataFrame(columns)


def _mixed(number: Integers) -> NDArray[np.uint64]:
    """Well mixed bits of whole numbers: the finaliser of SplitMix64 (Steele, Lea & Flood 2014)."""
    z = number.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _clicks(gamma: NDArray[np.floating[Any]], chance: NDArray[np.floating[Any]], model: str) -> NDArray[np.bool_]:
    click = np.zeros(gamma.shape, dtype=np.bool_)
    last = np.zeros(len(gamma), dtype=np.int64)
    for position in range(1, POSITIONS + 1):
        clicked = chance[:, position - 1] * (position - last) < gamma[:, position - 1]
        click[:, position - 1] = clicked
        if model == "ubm":
            last[clicked] = position
    return click


def write_scrolled_log(path: Path, n_impressions: int, n_positions: int) -> None:
    """Write a log of lists through which users scroll; theta = position ** -.25.

    A query has as many documents as there are positions, each of its 20 sessions moves them by a few positions, and
    users see the first K ** u, u uniform between .3 and 1, or, one in five, all K.
    """
    rng, lists = np.random.default_rng([SEED, n_positions]), list[pl.DataFrame]()
    gamma, written, session = np.empty(0), 0, 0
    while written < n_impressions:
        if session % _SESSIONS_OF_A_LIST == 0:
            gamma = rng.beta(1, 2, n_positions)  # of the next query
        share = 1.0 if rng.random() < _TO_THE_END else rng.uniform(0.3, 1)
        length = int(np.ceil(n_positions**share))
        doc = np.argsort(np.arange(n_positions) + rng.normal(0, _MOVED, n_positions))[:length]
        position = np.arange(1, length + 1)
        click = rng.random(length) < position**-0.25 * gamma[doc]
        shown = pl.DataFrame({"doc": doc, "position": position, "click": click.view(np.int8)})
        query = session // _SESSIONS_OF_A_LIST
        lists.append(shown.select(pl.lit(session).alias("session"), pl.lit(query).alias("query"), pl.all()))
        written, session = written + length, session + 1
    pl.concat(lists).write_parquet(path)


def write_days(path: Path, n_impressions: int, model: str, n_days: int) -> None:
    """Write a log of days, a file each, beside the path."""
    n_sessions = n_impressions // POSITIONS // n_days
    for number in range(n_days):
        day = FIRST_DAY + timedelta(number)
        rows = _block(number * n_sessions, n_sessions, model).with_columns(date=day)
        rows.write_parquet(path.with_name(f"day-{day}.parquet"))


# --- what is measured ------------------------------------------------------------------------------------------


def commands(asked: argparse.Namespace, n_impressions: int) -> None:
    """Measure on logs of each kind, with each number of threads, and print a table each."""
    if not find_spec("duckdb"):
        raise SystemExit("DuckDB is not at hand: pip install duckdb")
    for model in asked.models:
        for ids in asked.ids:
            with simulated(asked.directory, n_impressions, model, ids) as log:
                for threads in asked.threads:
                    title = f"{n_impressions:,} impressions of a {model.upper()}, {ids} ids, {threads} threads, 1 GiB"
                    stages = _stages_of(log, model, str(threads), fits_only=asked.fits)
                    table_console().print(stage_table(title, stages, measure(stages, asked.runs, title)))


def _stages_of(log: Path, model: str, threads: str, *, fits_only: bool) -> list[Stage]:
    """Every stage, in an order in which each finds what it needs; or only what leads to propensities."""
    temp, counted, copied = log.with_name("temp"), "DuckDB: count", "Polars: copy the log"

    def posbias(command: str, name: str, *options: str, bare: str = counted, statistics: bool = False) -> Stage:
        settings = ("--force", "--memory", "1GiB", "--temp-dir", str(temp), "--threads", threads)
        output = log.with_name(name) / "propensities.parquet" if command in {"fit", "run"} else None
        read = str(log.with_name("statistics") if statistics else log)
        shown = " ".join([command, *(["STATISTICS"] if statistics else []), *options])
        for name_shown, file in (("FIT", "fit"), ("SCORES", "scores.parquet")):
            shown = shown.replace(str(log.with_name(file)), name_shown)
        words = (*POSBIAS, command, read, *options, "-o", str(log.with_name(name)), *settings)
        return Stage(shown, words, output, temp, bare)

    def duckdb(name: str, query: str) -> Stage:
        return Stage(name, ("-c", _DUCKDB, str(log), str(temp), threads, query), temp=temp, bare=counted)

    def weigh(layout: str, *, statistics: bool = False) -> Stage:
        options = ("--propensities", str(log.with_name("fit")), "--layout", layout)
        return posbias("weight", f"{layout}{statistics}", *options, bare=copied, statistics=statistics)

    of_model = () if model == "pbm" else ("--model", model)
    fits = [
        duckdb(counted, _SUM.format(_COUNTS[model])),
        duckdb("DuckDB: count, order and write", _WRITE.format(_COUNTS[model], log.with_name("counts.parquet"))),
        posbias("collect", "statistics", *of_model),
        posbias("fit", "fit", *of_model, "--no-compare"),
        posbias("fit", "fit-counted", "--no-compare", statistics=True),
        posbias("run", "run", *of_model),
    ]
    if fits_only:
        return fits
    scores = log.with_name("scores.parquet")
    predicted = ("--propensities", str(log.with_name("fit")), "--scores", str(scores))
    check = ("check", str(log), "--quiet", "--memory", "1GiB", "--temp-dir", str(temp), "--threads", threads)
    return [
        *fits,
        Stage("check", (*POSBIAS, *check), temp=temp, bare=counted),
        Stage("make scores of all pairs", ("-c", _SCORES, str(log), str(scores)), bare=counted),
        posbias("predict", "predicted", *predicted),
        Stage(copied, ("-c", _COPY, str(log), str(log.with_name("copy.parquet")), threads), bare=copied),
        weigh("pointwise"),
        weigh("pointwise", statistics=True),
        weigh("session"),
    ]


def times(asked: argparse.Namespace, n_impressions: int) -> None:
    """Measure a log with times, and the same without them, and print a table for each kind of ids."""
    for ids in asked.ids:
        with simulated(asked.directory, n_impressions, "pbm", ids, "timed") as log:
            temp, stages = log.with_name("temp"), list[Stage]()
            settings = ("--force", "--memory", "1GiB", "--temp-dir", str(temp))
            for command, *options in (["collect"], ["fit", "--no-compare"], ["run"]):
                without = " ".join([command, *options, "--timestamp none"])
                for read in (("--timestamp", "none"), ()):
                    output = log.with_name(command)
                    words = (*POSBIAS, command, str(log), *options, *read, "-o", str(output), *settings)
                    theta = None if command == "collect" else output / "propensities.parquet"
                    stages.append(Stage(" ".join([command, *options, *read]), words, theta, temp, without))
            title = f"{n_impressions:,} impressions of a PBM, {ids} ids, 1 GiB, with times and without"
            table_console().print(stage_table(title, stages, measure(stages, asked.runs, title)))


def growth(asked: argparse.Namespace, sizes: list[int]) -> None:
    """Measure one size after the other, and print both tables."""
    costs = empty_table(
        "fit --no-compare, 2 GiB, PBM", "impressions", "seconds", "CPU s", "peak MiB", "temp MiB", "error"
    )
    names = ("queries", "pairs", "statistics rows", "signatures")
    grown = empty_table("what grows with the log: count ~ impressions ** (exponent)", "impressions", *names)
    before = dict[str, int]()
    for n_impressions in sizes:
        with simulated(asked.directory, n_impressions, "pbm", "integer") as log:
            fit, temp, statistics = log.with_name("fit"), log.with_name("temp"), log.with_name("statistics")
            temp.mkdir()
            settings = ("--force", "--memory", "2GiB", "--temp-dir", str(temp))
            Measured().add((*POSBIAS, "collect", str(log), "-o", str(statistics), *settings))
            stage = Stage("fit", (*POSBIAS, "fit", str(log), "-o", str(fit), "--no-compare", *settings), temp=temp)
            (runs,) = measure([stage], asked.runs, f"{n_impressions:,} impressions")
            manifests = [json.loads((of / "manifest.json").read_text(encoding="utf-8")) for of in (fit, statistics)]
            error = error_of_theta(fit / "propensities.parquet")
        counts = {
            **manifests[0]["totals"],
            "statistics rows": manifests[1]["statistics"]["rows"],
            "impressions": n_impressions,
        }
        costs.add_row(
            f"{n_impressions:,}",
            f"{runs.median_seconds():.1f}",
            f"{np.median(runs.cpu_seconds):.1f}",
            f"{max(runs.mebibytes):,.0f}",
            f"{max(runs.disk_mebibytes):,.0f}",
            f"{error:.2%}",
        )
        cells = [f"{counts[name]:,}" for name in names]
        if before:
            ratio = math.log(n_impressions / before["impressions"])
            exponents = [math.log(counts[name] / before[name]) / ratio for name in names]
            cells = [f"{cell} ({exponent:.2f})" for cell, exponent in zip(cells, exponents, strict=True)]
        grown.add_row(f"{n_impressions:,}", *cells)
        before = counts
    table_console().print(costs, grown)


def cells(asked: argparse.Namespace, n_impressions: int) -> None:
    """Measure `fit` with more and more positions, and print a table."""
    title = f"posbias fit --memory 2GiB, PBM, {n_impressions:,} impressions"
    table = empty_table(title, "cells", "identified", "seconds", "CPU s", "peak MiB")
    for n_positions in CELLS:
        with simulated(asked.directory, n_impressions, "scrolled", n_positions) as log:
            fit = log.with_name("fit")
            command = (*POSBIAS, "fit", str(log), "-o", str(fit), "--force", "--memory", "2GiB")
            (runs,) = measure([Stage("fit", command)], asked.runs, f"{n_positions:,} positions")
            propensities = pl.read_parquet(fit / "propensities.parquet")
        table.add_row(
            f"{propensities.height:,}",
            f"{propensities['identified'].sum():,}",
            f"{runs.median_seconds():,.1f}",
            f"{np.median(runs.cpu_seconds):,.1f}",
            f"{max(runs.mebibytes):,.0f}",
        )
    table_console().print(table)


def store(asked: argparse.Namespace, n_impressions: int) -> None:
    """Measure days that go into a store one by one, and its fit beside that of one collect of all of them."""
    with simulated(asked.directory, n_impressions, "days", asked.models[0], asked.days) as log:
        target, together = log.with_name("store"), log.with_name("together")
        days = [str(FIRST_DAY + timedelta(number)) for number in range(asked.days)]

        def posbias(name: str, *words: object, bare: str = "") -> Stage:
            return Stage(name, (*POSBIAS, *map(str, words)), bare=bare)

        fit, at_once = "fit STORE", "fit of one collect"
        stages = [
            *(
                posbias(
                    f"collect {day}", "collect", log.with_name(f"day-{day}.parquet"), "--date", day, "--into", target
                )
                for day in days
            ),
            posbias("collect of all", "collect", log.with_name("day-*.parquet"), "--timestamp", "date", "-o", together),
            posbias(at_once, "fit", together, "-o", log.with_name("fit"), "--force", bare=at_once),
            posbias(fit, "fit", target, "-o", log.with_name("fit"), "--force", bare=at_once),
        ]
        title = f"{n_impressions:,} impressions in {asked.days} days"
        measured = measure(stages, 1, title)
        size, other = (sum(part.stat().st_size for part in of.glob("part-*")) / 1e6 for of in (target, together))
        shown = [0, asked.days // 2, *range(asked.days - 1, len(stages))]
        title += f"; {size:,.0f} MB, and {other:,.0f} MB from one collect"
        table_console().print(stage_table(title, [stages[n] for n in shown], [measured[n] for n in shown]))


def export(asked: argparse.Namespace, _: int) -> None:
    """Measure the export of a ranker of 400 trees and 40 features, scored back on 4,000 rows."""
    with tempfile.TemporaryDirectory(dir=asked.directory) as name:
        folder, rng, n = Path(name), np.random.default_rng(SEED), 20_000
        values = rng.normal(size=(n, 40)).astype(np.float32)
        values[rng.random(values.shape) < 0.2] = np.nan
        docs = pl.DataFrame(values, [f"x{i}" for i in range(40)]).with_columns(doc=rng.permutation(n)).fill_nan(None)
        docs.write_parquet(folder / "features.parquet")
        clicks = (rng.random(n) < 1 / (1 + np.exp(-np.nan_to_num(values).sum(1) / 6))).astype(np.int8)
        places = np.arange(n) % POSITIONS + 1
        log = docs.select("doc", query=np.arange(n) // POSITIONS, position=places, click=clicks)
        log.with_columns(session="query").write_parquet(folder / "log.parquet")
        learn = ("--learner", "naive", "--learner-options", "trees=400", "--features", folder / "features.parquet")
        words = ("train", folder / "log.parquet", *learn, "-o", folder / "ranker", "--force")
        engines = ("vespa", "elasticsearch", "solr", "opensearch", "opensearch --engine-version 3.2")
        stages = [Stage("train", (*POSBIAS, *map(str, words)))]
        for engine in engines:
            of_one = ("export", folder / "ranker", "--engine", *engine.split(), "-o", folder / "out", "--force")
            stages.append(Stage(engine, (*POSBIAS, *map(str, of_one))))
        title = "a ranker of 400 trees and 40 features"
        table_console().print(stage_table(title, stages, measure(stages, asked.runs, title)))


def main() -> None:
    """Parse the command line, measure, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "part", nargs="?", choices=("commands", "times", "growth", "cells", "store", "export"), default="commands"
    )
    parser.add_argument("--impressions", type=int, nargs="+", help="of the logs, instead of each part's own sizes")
    parser.add_argument("--runs", type=int, default=3, help="of each process that is timed")
    parser.add_argument(
        "--models", nargs="+", choices=tuple(_COUNTS), default=tuple(_COUNTS), help="of commands, store"
    )
    parser.add_argument("--ids", nargs="+", choices=tuple(IDS), default=("integer", "text"), help="of commands")
    parser.add_argument("--threads", type=int, nargs="+", default=(2,), help="of commands")
    parser.add_argument("--days", type=int, default=30, help="of store")
    parser.add_argument("--fits", action="store_true", help="of commands: only what leads to propensities")
    parser.add_argument("--directory", type=Path, help="where the logs and results go; a temporary one by default")
    parser.add_argument("--write", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.write:
        path, n_impressions, kind, *more = asked.write
        if kind == "scrolled":
            write_scrolled_log(Path(path), int(n_impressions), int(more[0]))
        elif kind == "days":
            write_days(Path(path), int(n_impressions), more[0], int(more[1]))
        else:
            write_log(Path(path), int(n_impressions), kind, *more)
        return
    sizes = asked.impressions or SIZES.get(asked.part, [1_000_000])
    if asked.part == "growth":
        growth(asked, sizes)
        return
    for n_impressions in sizes:
        parts = {"commands": commands, "times": times, "cells": cells, "store": store, "export": export}
        parts[asked.part](asked, n_impressions)


if __name__ == "__main__":
    main()
