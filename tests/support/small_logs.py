"""Small logs as tests of core take them: drawn, counted, compressed, fitted."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats, Integers, Members, compress, starts
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics, compress_part, merge_parts
from posbias.core.models import get_model
from posbias.core.simulation.simulate import simulate
from posbias.core.standard_errors.cluster import cluster_errors
from posbias.core.standard_errors.contrasts import StrataEstimate
from posbias.core.theta.conditional import find_linkage, fit_conditional

PBM = StatisticsPlan(get_model("pbm"))
UBM = StatisticsPlan(get_model("ubm"))

LOG_OF_TEXTS = pl.DataFrame(
    {
        "session": [str(n // 3) for n in range(30)],
        "query": [f"café {n // 6}, crème" for n in range(30)],
        "doc": [f"d{n % 7}" for n in range(30)],
        "position": [str(n % 3 + 1) for n in range(30)],
        "click": [str(int(n % 4 == 0)) for n in range(30)],
        "copies": [f"{n + 1}.5" for n in range(30)],
    }
)
"""Ten pages whose values are texts, with letters beyond ASCII and commas in queries, as files of text hold them."""

simulated = lru_cache(maxsize=16)(simulate)
"""What `simulate` draws, once for all tests of a file that take the same."""


def dense_table(impressions: Floats, clicks: Floats) -> CountTable:
    """The table of dense counts, each of shape (J, K): no impressions, no entry.

    e.g. impressions [[3, 0, 2]] -> start [0, 2], cell [0, 2], impressions [3, 2]
    """
    unit, cell = np.nonzero(impressions)
    return CountTable(
        n_cells=impressions.shape[1],
        start=starts(np.bincount(unit, minlength=len(impressions))),
        cell=cell.astype(np.int64),
        impressions=impressions[unit, cell].astype(np.float64),
        clicks=clicks[unit, cell].astype(np.float64),
        multiplicity=np.ones(len(impressions)),
    )


def counted(log: pl.DataFrame, plan: StatisticsPlan = PBM) -> pl.DataFrame:
    """The statistics of a log as a table."""
    return plan.count(nw.from_native(log.lazy())).to_native().collect().sort(plan.keys)


def feed(*, newest_on_top: bool, ages: bool) -> pl.DataFrame:
    """A list that a new document enters each day, at the top or at the bottom; halved attractiveness after five days.

    The true theta is position ** -0.75.
    """
    rng, n_queries, n_days, n_pages, n_positions = np.random.default_rng(4), 60, 15, 40, 5
    query, day, page, place = np.indices((n_queries, n_days, n_pages, n_positions)).reshape(4, -1)
    age = place if newest_on_top else n_positions - 1 - place
    attractiveness = rng.beta(2, 4, (n_queries, n_days + n_positions))[query, day - age + n_positions]
    examined = (place + 1) ** -0.75 * (0.5 ** (age / n_positions) if ages else 1.0)
    columns = {
        "session": (query * n_days + day) * n_pages + page,
        "query": query,
        "doc": day - age,
        "position": place + 1,
        "click": (rng.random(len(place)) < attractiveness * examined).astype(np.int8),
        "period": day,
    }
    return pl.DataFrame(columns).with_columns(period=pl.date(2026, 1, 5) + pl.duration(days="period"))


def log_by_value(kind: str, seed: int, n_pages: int = 3000, n_values: int = 2) -> pl.DataFrame:
    """Impressions of 60 queries with 14 documents each, 8 on a page, and a column `value` of the page.

    Args:
        kind: what the value changes: "examination", "taste" (clicks at all positions), "ranking" (of the same
            relevance), or relevance, which the ranker knows or not ("known", "unknown"); anything else for nothing.
        seed: of what is drawn.
        n_pages: how many there are.
        n_values: of the column.
    """
    rng, theta = np.random.default_rng(seed), np.array([1.0, 0.72, 0.55, 0.44, 0.36, 0.30, 0.26, 0.23])
    by_value = 0.6 * rng.beta(1.2, 2, (60, n_values, 14))
    if kind not in {"known", "unknown"}:
        by_value[:] = by_value[:, :1]
    frequency = 1 / np.sqrt(1 + np.arange(60))
    query, value = rng.choice(60, n_pages, p=frequency / frequency.sum()), rng.integers(0, n_values, n_pages)
    known = by_value[query].mean(1) if kind == "unknown" else by_value[query, value]
    known = known + (0.2 * rng.normal(size=(60, n_values, 14))[query, value] if kind == "ranking" else 0)
    doc = np.argsort(-known / 0.6 - 0.15 * rng.normal(size=known.shape), 1)[:, :8]
    examined = np.where((value[:, None] == 0) & (kind == "examination"), 0.6 * theta**1.8, theta)
    examined = examined * np.where((value[:, None] == 0) & (kind == "taste"), 0.5, 1.0)
    click = rng.random(doc.shape) < examined * by_value[query[:, None], value[:, None], doc]
    page, position = np.divmod(np.arange(doc.size), 8)
    columns = {"session": page, "query": query[page], "doc": doc.ravel(), "position": position + 1}
    return pl.DataFrame({**columns, "click": click.ravel().astype(np.int8), "value": value[page].astype(str)})


def log_in_order(
    seed: int, *, learns: float = 0.0, changes: bool = False, theta: float = 1.0, n_queries: int = 60, n_pages: int = 40
) -> pl.DataFrame:
    """Impressions in the order of time: six positions, examined by position ** -theta.

    Args:
        seed: of what is drawn.
        learns: how much the ranker's scores follow clicks, at once.
        changes: whether there is another ranker in the later half.
        theta: how fast examination falls.
        n_queries: each has nine documents.
        n_pages: of each query.
    """
    rng = np.random.default_rng(seed)
    attractive = rng.beta(1.2, 3, (n_queries, 9))
    liked, shown, clicked = rng.normal(0, 0.4, (2, n_queries, 9)), np.full((n_queries, 9), 5.0), attractive * 1.5
    queries, pages = np.arange(n_queries)[:, None], list[pl.DataFrame]()
    examined = np.arange(1.0, 7) ** -theta
    for number in range(n_pages):
        scores: Floats = attractive + liked[int(changes and 2 * number >= n_pages)] + learns * clicked / shown
        docs = np.argsort(-scores - 0.2 * rng.normal(size=scores.shape), 1)[:, :6]
        click = rng.random(docs.shape) < examined * attractive[queries, docs]
        np.add.at(shown, (queries, docs), 1)
        np.add.at(clicked, (queries, docs), click)
        query, position = np.divmod(np.arange(docs.size), 6)
        columns = {"session": number * n_queries + query, "query": query, "doc": docs.ravel(), "position": position + 1}
        pages.append(pl.DataFrame({**columns, "click": click.ravel().astype(np.int8)}))
    return pl.concat(pages).cast({"position": pl.Int32})


def over_frames(*frames: pl.DataFrame) -> Callable[[Callable[[pl.DataFrame], Any], int | None], Iterable[Any]]:
    """Goes over statistics in memory."""
    return lambda work, n_parts: map(work, frames[:n_parts])


def statistics_of(log: pl.DataFrame, plan: StatisticsPlan = PBM, parts: int = 1) -> SufficientStatistics:
    """The statistics of a log, in parts of whole queries."""
    rows = counted(log, plan)
    frames = [rows.filter(pl.col("query").hash(1) % parts == part) for part in range(parts)] if parts > 1 else [rows]
    return merge_parts([compress_part(frame, plan) for frame in frames], plan, over_frames(*frames))


def strata_of(pairs: CountTable, cluster: Integers) -> Strata:
    """Pairs as signatures, each pair with its cluster."""
    table, signature = compress(pairs)
    return Strata(table, Members(signature, cluster))


def fitted_pairs(pairs: CountTable, cluster: Integers, n_contexts: int = 1) -> StrataEstimate:
    """The conditional estimate of pairs with its errors; contexts have as many cells each."""
    return fitted_strata(strata_of(pairs, cluster), n_contexts)


def fitted_strata(strata: Strata, n_contexts: int = 1) -> StrataEstimate:
    """The same of strata."""
    table = strata.signatures
    fit = fit_conditional(table, find_linkage(table, np.repeat(np.arange(n_contexts), table.n_cells // n_contexts)))
    return StrataEstimate(strata, fit, cluster_errors(fit, strata))


def random_pairs(seed: int, n_units: int = 60, n_cells: int = 4, n_queries: int = 12) -> tuple[CountTable, Integers]:
    """Pairs, and the query of each, with a few large queries."""
    rng = np.random.default_rng(seed)
    impressions = rng.integers(1, 9, (n_units, n_cells)) * (rng.random((n_units, n_cells)) < 0.6)
    clicks = rng.binomial(impressions, rng.beta(2, 3, (n_units, 1)) / np.arange(1, n_cells + 1))
    table = dense_table(impressions.astype(float), clicks.astype(float))
    return table, np.minimum(rng.geometric(0.2, n_units), n_queries).astype(np.int64)


def side_by_side(first: Floats, second: Floats) -> Floats:
    """Dense counts of two contexts, each with cells of its own, as those of one log."""
    return np.block(
        [[first, np.zeros((len(first), second.shape[1]))], [np.zeros((len(second), first.shape[1])), second]]
    )
