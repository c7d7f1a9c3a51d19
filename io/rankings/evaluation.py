"""What the pages of a log say of rankings, part by part: two passes, of which the first counts cells and pages.

The lists of each part's queries are brought to it by the hash of the query, on disk.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sums_of_weights import add_up_weights, count_cells
from posbias.core.errors import SchemaError
from posbias.core.evaluation.estimates import Evaluation, Totals
from posbias.core.evaluation.ndcg import ndcg_by_query, ranked
from posbias.core.evaluation.query_sums import Asked, QuerySums, merged, query_sums
from posbias.core.evaluation.shown import CellWeights, counted_rows, pages_by_query, rows_of_pages, shown_of
from posbias.core.fit.fitted_theta import FittedTheta
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.schema import QUERY, SESSION, WEIGHT
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.features.routing import route_rows
from posbias.io.layouts.pair_weights import covariance_of_theta, propensities_of_cells
from posbias.io.log.scan import reading
from posbias.io.progress import Progress
from posbias.io.rankings.read import Rankings, check_scores
from posbias.io.temporary.kept import KeptFrame, keep

_MOST_ROWS_AT_ONCE = 1 << 21  # of pages: they and their copies take about 500 MB
_OTHER_SEED = 1  # so that pieces of a bucket are no buckets


@dataclass(frozen=True)
class Theta:
    """Theta to weigh clicks by."""

    propensities: pl.DataFrame
    fitted: FittedTheta  # with its errors
    min_propensity: float  # at which weights are clipped


def evaluate_rankings(
    read: ReadLog,
    plan: StatisticsPlan,
    rankings: Rankings,
    theta: Theta,
    asked: Asked,
    engine: Engine,
    progress: Progress,
) -> tuple[Evaluation, CellWeights]:
    """Evaluate rankings on the clicks of a log; return the sums, and theta by cell.

    Args:
        read: the log, with its sessions.
        plan: how the fit counted.
        rankings: them.
        theta: to weigh clicks by.
        asked: what is asked of them.
        engine: where the rows are.
        progress: is told.

    Raises:
        SchemaError: a ranking has no document of the log, one of its scores is no number, or stands twice.
    """
    folder = engine.scratch / "rankings"
    folder.mkdir(mode=0o700)
    in_memory = read.buckets.in_memory
    looked = list(read.buckets.map(partial(_look, plan=plan, folder=None if in_memory else folder)))
    counts = add_up_weights(pl.concat(look.cells for look in looked), plan.cell_columns)
    cells = counts.sort(plan.cell_order).select(plan.cell_columns)
    propensity = propensities_of_cells(cells, theta.propensities, PROPENSITY).fill_null(np.nan).to_numpy()
    weights = CellWeights(cells, propensity, theta.min_propensity)
    with progress.stage("reading rankings"):
        keys = [look.queries.scan() for look in looked]
        lists = route_rows(rankings.rows, (QUERY,), rankings.sources, keys, folder / "lists", engine.memory)
    by_number = {look.number: part for look, part in zip(looked, lists, strict=True)}
    work = _Work(plan, weights, asked, sum(look.pages for look in looked), rankings, by_number)
    with progress.stage("evaluating", read.buckets.number) as stage:
        parts = read.buckets.map(work)
        totals = next(parts)
        stage.advance()
        for part in parts:
            totals += part
            stage.advance()
    for number, (name, file) in enumerate(zip(rankings.names, rankings.files, strict=True), start=1):
        if totals.rest.missing.impressions[number] >= totals.rest.impressions:
            raise SchemaError(
                f"{file}: {name} has a score for no document that the log shows. Write its ids as in the log."
            )
    return Evaluation(totals, asked, covariance_of_theta(cells, theta.propensities, theta.fitted)), weights


def judged_lists(rankings: Rankings, judgments: pl.DataFrame, asked: Asked) -> pl.DataFrame:
    """NDCG of each ranking by judged query; see `ndcg_by_query`.

    Raises:
        SchemaError: a score is no number, or stands twice.
    """
    queries = judgments.select(QUERY).unique()
    with reading(rankings.sources):
        scores = rankings.rows.join(queries.lazy(), on=QUERY, how="semi").collect(engine="streaming")
    check_scores(scores, rankings)
    return ndcg_by_query(ranked(scores), judgments, asked.n_rankings, asked.depth)


@dataclass(frozen=True)
class _Look:
    """What the first pass finds in a part."""

    number: int
    cells: pl.DataFrame
    pages: float  # their number, or the sum of their weights
    queries: KeptFrame


def _look(number: int, impressions: pl.LazyFrame, plan: StatisticsPlan, folder: Path | None) -> _Look:
    queries = impressions.select(QUERY).unique().collect(engine="streaming")
    if plan.weighted:
        weights = impressions.group_by(SESSION).agg(pl.col(WEIGHT).cast(pl.Float64).mean()).collect(engine="streaming")
        pages = float(weights.sort(SESSION)[WEIGHT].sum())
    else:
        pages = float(impressions.select(pl.col(SESSION).n_unique()).collect(engine="streaming").item())
    return _Look(number, count_cells(impressions, plan), pages, keep(queries, folder, f"queries-{number:05d}"))


@dataclass(frozen=True)
class _Work:
    """The second pass over a part."""

    plan: StatisticsPlan
    weights: CellWeights
    asked: Asked
    pages: float
    rankings: Rankings
    lists: dict[int, pl.LazyFrame]

    def __call__(self, number: int, impressions: pl.LazyFrame) -> Totals:
        """The sums of its queries."""
        scores = self.lists[number].collect()
        check_scores(scores, self.rankings)
        lists = ranked(scores)
        pieces = (rows_of_pages(piece, self.plan, self.weights) for piece in _pieces(impressions))
        if self.asked.candidates == "page":
            parts = [self._sums(rows, pages_by_query(rows), lists) for rows in pieces]
        else:
            counted = [(counted_rows(rows), pages_by_query(rows)) for rows in pieces]
            rows = counted_rows(pl.concat(rows for rows, _ in counted))
            pages = pl.concat(pages for _, pages in counted).group_by(QUERY, maintain_order=True).sum()
            parts = [self._sums(rows, pages, lists)]
        return Totals.of(merged(parts), lists, self.asked, self.pages)

    def _sums(self, rows: pl.DataFrame, pages: pl.DataFrame, lists: pl.DataFrame) -> QuerySums:
        return query_sums(shown_of(rows, pages), lists, self.weights, self.asked)


def _pieces(impressions: pl.LazyFrame) -> Iterator[pl.DataFrame]:
    """The pages of a part, in pieces where a frequent query makes it large."""
    n_pieces = max(1, -(-impressions.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE))
    key = pl.col(SESSION).hash(_OTHER_SEED) % n_pieces
    for piece in range(n_pieces):
        yield (impressions.filter(key == piece) if n_pieces > 1 else impressions).collect(engine="streaming")
