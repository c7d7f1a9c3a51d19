"""Predictions of rankings over the counts of a log or of statistics: two passes over parts of whole queries."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial, reduce
from operator import add
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import SchemaError
from posbias.core.evaluation.clicked import RANKING, ranked
from posbias.core.evaluation.page_slope import UNIT
from posbias.core.evaluation.prediction import (
    LATE,
    CellTheta,
    PageSums,
    Placed,
    Prediction,
    Prior,
    Scope,
    ShownPart,
    most_changed,
    predict,
)
from posbias.core.fit.propensities import EXAMINATION, FittedTheta
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, QUERY, SESSION
from posbias.io.engines.engine import Engine, Parts
from posbias.io.places.temporary import KeptFrame, keep
from posbias.io.progress import Progress
from posbias.io.rankings import Rankings, check_scores
from posbias.io.training.feature_parts import route_rows
from posbias.io.training.laid_out import covariance_of_theta, propensities_of_cells

_SAMPLED_IMPRESSIONS = 1 << 22
"""Impressions whose pairs say what attractiveness is like; of a larger log those of some queries, by their hash."""

_LOOKED_AT = 1 << 19  # rows of pages that are compared with others of their query; of more, those of some queries
_MOST_CONTEXTS = 30  # with predictions of their own
_SEED = 2  # of that hash: parts are made by another one
CHANGED, DEPTH = 20, 10
"""Queries of each ranking that are shown with their documents, and how many of these."""


def scopes_of(by: CellTheta) -> list[Scope]:
    """Of which clicks predictions are made: of all first."""
    contexts = [Scope(name, context=number) for number, name in enumerate(by.contexts[:_MOST_CONTEXTS])]
    return [Scope("all"), Scope("top 3", top=3), *contexts]


@dataclass(frozen=True)
class CountsOfPages:
    """The counts of whole queries, in parts that are gone over again."""

    plan: StatisticsPlan
    rows: tuple[KeptFrame, ...]  # of each part: `query`, `doc`, the cell columns, `impressions`, `clicks`
    queries: tuple[KeptFrame, ...]  # of each part
    cells: pl.DataFrame  # that occur, with their `impressions` and `clicks`, sorted
    units: pl.DataFrame | None  # pages, or what queries showed on a day, of a sample; see `page_slope`

    @classmethod
    def of(
        cls,
        statistics: Parts,
        plan: StatisticsPlan,
        cut: date | None,
        some_pages: pl.LazyFrame | None,
        engine: Engine,
        progress: Progress,
    ) -> "CountsOfPages":
        """Count what a prediction needs.

        Args:
            statistics: of a log.
            plan: what they count.
            cut: the first day of the later half of the pages; None where days are not known.
            some_pages: whole pages of the log, where it has pages.
            engine: where they are.
            progress: is told.

        Raises:
            SchemaError: nothing was counted.
        """
        folder = engine.scratch / "counts"
        folder.mkdir(mode=0o700)
        by_day = (statistics.number or 1) if cut is not None and some_pages is None else 0
        work = partial(_count, plan=plan, cut=cut, by_day=by_day, folder=None if statistics.in_memory else folder)
        with progress.stage("counting", statistics.number) as stage:
            parts = list[tuple[KeptFrame, KeptFrame, pl.DataFrame, pl.DataFrame]]()
            for part in statistics.map(work):
                parts += [] if part is None else [part]
                stage.advance()
        if not parts:
            raise SchemaError(f"no impression is left within --max-position {plan.max_position}.")
        rows, queries, cells, units = zip(*parts, strict=True)
        every = pl.concat(cells).group_by(plan.cell_columns).sum().sort(plan.cell_order)
        found = None
        if some_pages is not None:
            found = _pages(some_pages, plan)
        elif by_day:
            found = pl.concat(units)
        return cls(plan, tuple(rows), tuple(queries), every, found)


def _count(
    number: int, statistics: pl.LazyFrame, plan: StatisticsPlan, cut: date | None, by_day: int, folder: Path | None
) -> tuple[KeptFrame, KeptFrame, pl.DataFrame, pl.DataFrame] | None:
    """The rows, queries, cells and, by day, units of a part, one of so many; None where it holds nothing."""
    keys, counts = [QUERY, DOC, *plan.cell_columns], (IMPRESSIONS, CLICKS)
    day = pl.col(PERIOD).cast(pl.Date)
    columns = [] if cut is None else [day.alias(UNIT), (day >= cut).alias(LATE)]
    rows = statistics.select(*keys, *columns, *counts).collect()
    if not rows.height:
        return None
    units = rows.clear()
    if by_day:
        units = _some_queries(rows, by_day).group_by(*keys, UNIT).agg(pl.col(counts).sum())
    keys += [] if cut is None else [LATE]
    if set(plan.keys) != set(keys):
        rows = rows.group_by(keys, maintain_order=True).agg(pl.col(counts).sum())
    cells = rows.group_by(plan.cell_columns).agg(pl.col(counts).sum())
    kept = keep(rows, folder, f"rows-{number:05d}", quickly=True)
    return kept, keep(rows.select(pl.col(QUERY).unique()), folder, f"queries-{number:05d}"), cells, units


def _some_queries(rows: pl.DataFrame, parts: int = 1) -> pl.DataFrame:
    """The rows of some queries, about as many as are looked at, of one of so many parts."""
    one_in = -(-rows.height * parts // _LOOKED_AT)
    return rows.filter(pl.col(QUERY).hash(_SEED) % one_in == 0) if one_in > 1 else rows


def _pages(some_pages: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    """Pages as units."""
    rows = plan.with_cells_in_memory(_some_queries(some_pages.collect(engine="streaming")))
    one = pl.lit(1, pl.Int64).alias(IMPRESSIONS)
    return rows.select(QUERY, DOC, *plan.cell_columns, pl.col(SESSION).alias(UNIT), one, pl.col(CLICK).alias(CLICKS))


def theta_of(counts: CountsOfPages, propensities: pl.DataFrame, fitted: FittedTheta) -> tuple[CellTheta, Floats | None]:
    """Theta of the cells of a log, and the covariance of its logarithm, None where that is not known.

    Args:
        counts: of the log.
        propensities: the table that theta is taken from.
        fitted: theta as it was fitted, with its errors.
    """
    cells = counts.cells.select(counts.plan.cell_columns)
    theta = propensities_of_cells(cells, propensities, EXAMINATION).cast(pl.Float64).fill_null(np.nan).to_numpy()
    covariance = covariance_of_theta(cells, propensities, fitted)
    return CellTheta(counts.plan, cells, theta), None if covariance is None else np.nan_to_num(covariance)


def predict_rankings(
    counts: CountsOfPages,
    rankings: Rankings,
    by: CellTheta,
    covariance: Floats | None,
    variance: float | None,
    engine: Engine,
    progress: Progress,
) -> list[tuple[list[Prediction], pl.DataFrame]]:
    """Predict each ranking, over all of `scopes_of`; with each the queries that change most (see `most_changed`).

    Args:
        counts: of the log.
        rankings: them.
        by: theta of its cells.
        covariance: of log theta; None takes theta as known.
        variance: of the clicks of a page of the log; None takes that of the model.
        engine: where the parts are.
        progress: is told.

    Raises:
        SchemaError: a ranking has no document of the log, one of its scores is no number, or stands twice.
    """
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
        found = list[list[tuple[list[PageSums], pl.DataFrame]]]()
        for of_part in parts.map(work):
            found.append(of_part)
            stage.advance()
    predictions = list[tuple[list[Prediction], pl.DataFrame]]()
    for number, prior in enumerate(priors):
        sums = [reduce(add, (of_part[number][0][scope] for of_part in found)) for scope in range(len(scopes_of(by)))]
        if not sums[0].supported:
            raise SchemaError(
                f"{rankings.files[number]}: {rankings.names[number]} has a score for no document that the log shows. "
                "Write its ids as in the log."
            )
        changed = pl.concat(of_part[number][1] for of_part in found)
        changed = changed.sort(pl.col("difference").abs(), descending=True, maintain_order=True).head(CHANGED)
        of_scopes = [predict(sums[0], prior, covariance, variance)]
        of_scopes += [predict(of_scope, prior, covariance) for of_scope in sums[1:]]
        predictions.append((of_scopes, changed))
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
    of_query = by.pages(counted)
    scopes = scopes_of(by)
    pages = np.zeros((len(rankings.names), len(scopes)))
    for ranking in range(len(rankings.names)):
        queries = of_part.filter(pl.col(RANKING) == ranking + 1)[QUERY].unique()
        is_ranked = of_query.filter(pl.col(QUERY).is_in(queries.implode()))
        pages[ranking] = [is_ranked.filter(scope.groups)["pages"].sum() for scope in scopes]
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
) -> list[tuple[list[PageSums], pl.DataFrame]]:
    """The second pass over a part: for each ranking the sums by scope, and the queries that change most."""
    part, of_part = ShownPart.of(rows.collect(), by), ranked(lists[number].collect())
    found = list[tuple[list[PageSums], pl.DataFrame]]()
    for ranking, prior in enumerate(priors):
        placed = Placed.of(part, of_part.filter(pl.col(RANKING) == ranking + 1))
        sums = [PageSums.of(placed, prior, scope, pages[ranking, at]) for at, scope in enumerate(scopes_of(by))]
        found.append((sums, most_changed(placed, prior, CHANGED, DEPTH)))
    return found
