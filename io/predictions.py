"""Predictions of rankings over the counts of a log or of statistics: two passes over parts of whole queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import SchemaError
from posbias.core.evaluation.clicked import RANKING, ranked
from posbias.core.evaluation.prediction import CellTheta, PageSums, Placed, Prediction, Prior, Scope, ShownPart, predict
from posbias.core.fit.propensities import EXAMINATION, FittedTheta
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, QUERY
from posbias.io.engines.engine import Engine, Parts
from posbias.io.places.temporary import KeptFrame, keep
from posbias.io.progress import Progress
from posbias.io.rankings import Rankings, check_scores
from posbias.io.training.feature_parts import route_rows
from posbias.io.training.laid_out import covariance_of_theta, propensities_of_cells

_SAMPLED_IMPRESSIONS = 1 << 22
"""Impressions whose pairs say what attractiveness is like; of a larger log those of some queries, by their hash."""

_SEED = 2  # of that hash: parts are made by another one
SCOPES = (Scope("all"), Scope("top 3", top=3))


@dataclass(frozen=True)
class CountsOfPages:
    """The counts of whole queries, in parts that are gone over again."""

    plan: StatisticsPlan
    rows: tuple[KeptFrame, ...]  # of each part: `query`, `doc`, the cell columns, `impressions`, `clicks`
    queries: tuple[KeptFrame, ...]  # of each part
    cells: pl.DataFrame  # that occur, with their `impressions` and `clicks`, sorted

    @classmethod
    def of(cls, statistics: Parts, plan: StatisticsPlan, engine: Engine, progress: Progress) -> "CountsOfPages":
        """Count what a prediction needs.

        Raises:
            SchemaError: nothing was counted.
        """
        folder = engine.scratch / "counts"
        folder.mkdir(mode=0o700)
        work = partial(_count, plan=plan, folder=None if statistics.in_memory else folder)
        with progress.stage("counting", statistics.number) as stage:
            parts = list[tuple[KeptFrame, KeptFrame, pl.DataFrame]]()
            for part in statistics.map(work):
                parts += [] if part is None else [part]
                stage.advance()
        if not parts:
            raise SchemaError(f"no impression is left within --max-position {plan.max_position}.")
        rows, queries, cells = zip(*parts, strict=True)
        every = pl.concat(cells).group_by(plan.cell_columns).sum().sort(plan.cell_order)
        return cls(plan, tuple(rows), tuple(queries), every)


def _count(
    number: int, statistics: pl.LazyFrame, plan: StatisticsPlan, folder: Path | None
) -> tuple[KeptFrame, KeptFrame, pl.DataFrame] | None:
    """The rows, queries and cells of a part; None where it holds nothing."""
    keys, counts = (QUERY, DOC, *plan.cell_columns), (IMPRESSIONS, CLICKS)
    rows = statistics.select(*keys, *counts).collect()
    if not rows.height:
        return None
    if set(plan.keys) != set(keys):
        rows = rows.group_by(keys, maintain_order=True).agg(pl.col(counts).sum())
    cells = rows.group_by(plan.cell_columns).agg(pl.col(counts).sum())
    kept = keep(rows, folder, f"rows-{number:05d}", quickly=True)
    return kept, keep(rows.select(pl.col(QUERY).unique()), folder, f"queries-{number:05d}"), cells


def predict_rankings(
    counts: CountsOfPages,
    rankings: Rankings,
    propensities: pl.DataFrame,
    fitted: FittedTheta,
    engine: Engine,
    progress: Progress,
) -> list[list[Prediction]]:
    """Predict each ranking, over all of `SCOPES`.

    Args:
        counts: of the log.
        rankings: them.
        propensities: the table that theta is taken from.
        fitted: theta as it was fitted, with its errors.
        engine: where the parts are.
        progress: is told.

    Raises:
        SchemaError: a ranking has no document of the log, one of its scores is no number, or stands twice.
    """
    cells = counts.cells.select(counts.plan.cell_columns)
    theta = propensities_of_cells(cells, propensities, EXAMINATION).cast(pl.Float64).fill_null(np.nan).to_numpy()
    by = CellTheta(counts.plan, cells, theta)
    with progress.stage("reading rankings"):
        keys = [queries.scan() for queries in counts.queries]
        routed = route_rows(rankings.rows, (QUERY,), rankings.sources, keys, engine.scratch / "lists", engine.memory)
    lists = dict(enumerate(routed))
    parts = engine.parts_of([rows.scan() for rows in counts.rows])
    one_in = -(-int(counts.cells[IMPRESSIONS].sum()) // _SAMPLED_IMPRESSIONS)
    with progress.stage("comparing exposure", parts.number) as stage:
        pages, sampled = list[Floats](), list[tuple[pl.DataFrame, pl.DataFrame]]()
        for of_part, sample in parts.map(partial(_look, by=by, rankings=rankings, lists=lists, one_in=one_in)):
            pages.append(of_part)
            sampled.append(sample)
            stage.advance()
    n_pages = np.sum(pages, axis=0)
    for number, (name, file) in enumerate(zip(rankings.names, rankings.files, strict=True)):
        if not n_pages[number, 0]:
            raise SchemaError(f"{file}: {name} has a score for no query of the log. Write its ids as in the log.")
    priors = _priors(sampled, by, len(rankings.names))
    work = partial(_sums, by=by, lists=lists, priors=priors, pages=n_pages)
    with progress.stage("predicting", parts.number) as stage:
        found = list[list[list[PageSums]]]()
        for of_part in parts.map(work):
            found.append(of_part)
            stage.advance()
    covariance = covariance_of_theta(cells, propensities, fitted)
    if covariance is not None:
        covariance = np.nan_to_num(covariance)
    predictions = list[list[Prediction]]()
    for number, prior in enumerate(priors):
        sums = [reduce(add, (of_part[number][scope] for of_part in found)) for scope in range(len(SCOPES))]
        if not sums[0].supported:
            raise SchemaError(
                f"{rankings.files[number]}: {rankings.names[number]} has a score for no document that the log shows. "
                "Write its ids as in the log."
            )
        predictions.append([predict(of_scope, prior, covariance) for of_scope in sums])
    return predictions


def _lists(scores: pl.LazyFrame, rankings: Rankings) -> pl.DataFrame:
    """The lists of the queries of a part."""
    found = scores.collect()
    check_scores(found, rankings)
    return ranked(found)


def _look(
    number: int,
    rows: pl.LazyFrame,
    by: CellTheta,
    rankings: Rankings,
    lists: Mapping[int, pl.LazyFrame],
    one_in: int,
) -> tuple[Floats, tuple[pl.DataFrame, pl.DataFrame]]:
    """The first pass over a part: pages by ranking and scope, and a sample of its rows and lists."""
    counted, of_part = rows.collect(), _lists(lists[number], rankings)
    part = ShownPart.of(counted, by)
    pages = np.zeros((len(rankings.names), len(SCOPES)))
    for ranking in range(len(rankings.names)):
        queries = of_part.filter(pl.col(RANKING) == ranking + 1)[QUERY].unique()
        pages[ranking] = part.pages[part.groups[QUERY].is_in(queries.implode()).to_numpy()].sum()
    is_sampled = pl.col(QUERY).hash(_SEED) % one_in == 0
    return pages, (counted.filter(is_sampled), of_part.filter(is_sampled))


def _priors(sampled: Sequence[tuple[pl.DataFrame, pl.DataFrame]], by: CellTheta, n_rankings: int) -> list[Prior]:
    rows, lists = (pl.concat(frames) for frames in zip(*sampled, strict=True))
    part = ShownPart.of(rows, by)
    return [Prior.fit(Placed.of(part, lists.filter(pl.col(RANKING) == number + 1))) for number in range(n_rankings)]


def _sums(
    number: int,
    rows: pl.LazyFrame,
    by: CellTheta,
    lists: Mapping[int, pl.LazyFrame],
    priors: Sequence[Prior],
    pages: Floats,
) -> list[list[PageSums]]:
    """The second pass over a part: its sums by ranking and scope."""
    part, of_part = ShownPart.of(rows.collect(), by), ranked(lists[number].collect())
    sums = list[list[PageSums]]()
    for ranking, prior in enumerate(priors):
        placed = Placed.of(part, of_part.filter(pl.col(RANKING) == ranking + 1))
        sums.append([PageSums.of(placed, prior, scope, pages[ranking, at]) for at, scope in enumerate(SCOPES)])
    return sums
