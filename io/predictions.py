"""Predicted clicks of rankings from the counts of a log: two passes over parts of whole queries."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial, reduce
from operator import add
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import IdentifiabilityError, SchemaError
from posbias.core.estimators import get_estimator
from posbias.core.estimators.estimate import EstimationOptions, linkage_of, relative_to_largest
from posbias.core.evaluation.break_even import Bend, BreakEven
from posbias.core.evaluation.clicked import RANKING, rank_lists
from posbias.core.evaluation.prediction import (
    CELL,
    CLASS,
    CONTEXT,
    LATE,
    UNIT,
    CellTheta,
    PageSums,
    Placed,
    Prediction,
    Prior,
    Scope,
    ShownPart,
    browsing_difference,
    most_changed,
    predict,
)
from posbias.core.fit.fit import MOST_CELLS_BESIDE
from posbias.core.fit.propensities import ThetaEstimate, errors_of_theta
from posbias.core.models import get_model
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, QUERY, SESSION
from posbias.core.theta.conditional import fit_conditional
from posbias.io.counting.count import compress_parts
from posbias.io.engines.engine import Engine, Parts
from posbias.io.places.temporary import KeptFrame, keep
from posbias.io.progress import Progress
from posbias.io.rankings import Rankings, check_scores
from posbias.io.training.feature_parts import route_rows
from posbias.io.training.laid_out import covariance_of_theta, examination_of_cells

_MORE_QUERIES = 16  # factor by which the sample grows while a ranking has no list in it
_SAMPLED_IMPRESSIONS = 1 << 21  # that priors of attractiveness are fitted to; of a larger log, a sample of queries
_SAMPLED_ROWS = 1 << 18  # of pages that are compared within a query; of a larger log, a sample of queries
MOST_PARTS = 30
"""Largest number of contexts, and of classes of queries, with predictions of their own."""

_SEED = 2  # of the hash that samples queries; parts are made by another hash
# Standard errors, and share, by which the user browsing model must predict less to indicate a cascade: a false alarm on
# 2 % of position-based logs, found on 9 of 10 sparse cascades and on all others
_LESS, _MUCH_LESS = 1.5, 0.1
_APART = 2.0  # standard errors at which models disagree otherwise
_CLICKS_PER_CELL = 40  # needed to fit the user browsing model: with 15, chance alone refused 7 of 12 sound logs
CHANGED, DEPTH = 20, 10
"""Numbers of reported queries of each ranking, and of documents of each."""


def by_position(plan: StatisticsPlan) -> StatisticsPlan:
    """Plan of cells by position under the position-based model."""
    return StatisticsPlan(get_model("pbm"), plan.max_position, plan.position_bins, plan.context, plan.cell)


def by_browsing(plan: StatisticsPlan) -> StatisticsPlan:
    """Plan of cells by position and last click above, for the user browsing model."""
    return StatisticsPlan(get_model("ubm"), plan.max_position, (), plan.context)


@dataclass(frozen=True)
class _CountedPart:
    """Counts of a part of a log."""

    rows: KeptFrame  # `query`, `doc`, the cell columns, `LATE` and `CLASS` if requested, `impressions`, `clicks`
    queries: KeptFrame
    cells: pl.DataFrame  # the cell columns, `impressions`, `clicks`
    units: pl.DataFrame  # counts by day, of sampled queries
    browsed: pl.DataFrame  # counts by position and last click above, of sampled queries
    classes: pl.DataFrame  # classes of queries, and `impressions`


@dataclass(frozen=True)
class CountsOfPages:
    """Counts of a log in parts of whole queries, to be read in several passes."""

    plan: StatisticsPlan  # cells by position
    rows: tuple[KeptFrame, ...]  # of each part: `query`, `doc`, the cell columns, `impressions`, `clicks`
    queries: tuple[KeptFrame, ...]  # of each part
    cells: pl.DataFrame  # the cell columns, `impressions`, `clicks`; sorted
    units: pl.DataFrame | None  # sampled pages, or counts of a query by day; see `page_slope`
    browsed: pl.DataFrame | None  # sampled counts by position and last click above; None if unknown
    by: str | None  # column of classes of queries
    classes: pl.DataFrame  # `CLASS` and `impressions`, largest first

    @classmethod
    def of(
        cls,
        statistics: Parts,
        counted: StatisticsPlan,
        cut: date | None,
        page_sample: pl.LazyFrame | None,
        by: str | None,
        engine: Engine,
        progress: Progress,
    ) -> "CountsOfPages":
        """Count the parts of a log for a prediction.

        Args:
            statistics: counts of the log.
            counted: plan of the counts.
            cut: first day of the later half of the days; None if days are unknown.
            page_sample: whole pages of the log; None if it has no pages.
            by: column of classes of queries.
            engine: runs over parts.
            progress: receives stages.

        Raises:
            SchemaError: there are no impressions or no clicks, or a query is in two classes.
        """
        folder = engine.scratch / "counts"
        folder.mkdir(mode=0o700)
        work = partial(
            _count,
            counted=counted,
            cut=cut,
            by=by,
            n_parts=(statistics.number or 1) if page_sample is None else 0,
            folder=None if statistics.in_memory else folder,
        )
        with progress.stage("counting", statistics.number) as stage:
            parts = list[_CountedPart]()
            for part in statistics.map(work):
                parts += [] if part is None else [part]
                stage.advance()
        if not parts:
            raise SchemaError(f"no impression is left within --max-position {counted.max_position}.")
        plan = by_position(counted)
        cells = pl.concat(part.cells for part in parts).group_by(plan.cell_columns).sum().sort(plan.cell_order)
        if not cells[CLICKS].sum():
            raise SchemaError("no impression was clicked, so there is nothing to predict clicks from.")
        if page_sample is not None:
            units, browsed = _sample_pages(page_sample, plan)
        else:
            units, browsed = (pl.concat(frames) for frames in zip(*((p.units, p.browsed) for p in parts), strict=True))
        classes = pl.concat(part.classes for part in parts)
        if by is not None:
            classes = classes.group_by(CLASS).agg(pl.col(IMPRESSIONS).sum()).sort(-pl.col(IMPRESSIONS), CLASS)
        return cls(
            plan,
            tuple(part.rows for part in parts),
            tuple(part.queries for part in parts),
            cells,
            units if units.height else None,
            browsed if browsed.height else None,
            by,
            classes,
        )

    def where_known(self, by: CellTheta) -> "CountsOfPages":
        """Leave cells without a theta out of the counts by last click, so that both click models predict the same."""
        if self.browsed is None or self.plan.cell or by.known.all():
            return self
        cells = self.plan.bin_cells(self.browsed) if self.plan.position_bins else self.browsed
        number = by.with_numbers(cells)[CELL].to_numpy()
        return replace(self, browsed=self.browsed.filter(pl.Series(by.known[number])))

    def scopes(self, by: CellTheta) -> list[Scope]:
        """Scopes of predictions: all clicks, the top 3 positions, contexts, and classes of queries."""
        contexts = [Scope(name, part=(CONTEXT, number)) for number, name in enumerate(by.contexts[:MOST_PARTS])]
        names: list[str] = self.classes.head(MOST_PARTS)[CLASS].sort().to_list()
        return [
            Scope("all"),
            Scope("top 3", top=3),
            *contexts,
            *(Scope(f"{self.by}={name}", part=(CLASS, name)) for name in names),
        ]


def _count(
    number: int,
    statistics: pl.LazyFrame,
    counted: StatisticsPlan,
    cut: date | None,
    by: str | None,
    n_parts: int,
    folder: Path | None,
) -> _CountedPart | None:
    """Count a part, and sample it unless `n_parts` is 0; None if it has no rows."""
    plan, browsing, counts = by_position(counted), by_browsing(counted), pl.col(IMPRESSIONS, CLICKS)
    keys, by_click = [QUERY, DOC, *plan.cell_columns], [QUERY, DOC, *browsing.cell_columns]
    day = pl.col(PERIOD).cast(pl.Date)
    columns = [] if cut is None else [day.alias(UNIT), (day >= cut).alias(LATE)]
    columns += [] if by is None else [pl.col(by).cast(pl.String).fill_null("missing").alias(CLASS)]
    rows = statistics.select(QUERY, DOC, *counted.cell_columns, *columns, counts).collect()
    if not rows.height:
        return None
    units = browsed = rows.clear()
    if n_parts and cut is not None:
        units = _sample_queries(rows, n_parts).group_by(*keys, UNIT).agg(counts.sum())
    if n_parts and set(by_click) <= set(rows.columns) and not counted.position_bins:
        browsed = _sample_queries(rows, n_parts).group_by(by_click).agg(counts.sum())
    keys += ([] if cut is None else [LATE]) + ([] if by is None else [CLASS])
    if set(counted.keys) != set(keys):
        rows = rows.group_by(keys, maintain_order=True).agg(counts.sum())
    cells = rows.group_by(plan.cell_columns).agg(counts.sum())
    classes = pl.DataFrame(schema={CLASS: pl.String, IMPRESSIONS: pl.Int64})
    if by is not None:
        query_classes = rows.group_by(QUERY).agg(pl.col(CLASS).unique().sort())
        several = query_classes.filter(pl.col(CLASS).list.len() > 1).sort(QUERY)
        if several.height:
            query, names = several.row(0)
            raise SchemaError(
                f"--by {by}: pages of query {query} have {names[0]!r} and {names[1]!r}. Name a column that is the same "
                "on all pages of a query; what differs between them is a --context of the fit."
            )
        classes = rows.group_by(CLASS).agg(pl.col(IMPRESSIONS).sum())
    queries = keep(rows.select(pl.col(QUERY).unique()), folder, f"queries-{number:05d}")
    return _CountedPart(keep(rows, folder, f"rows-{number:05d}", quickly=True), queries, cells, units, browsed, classes)


def _sample_queries(rows: pl.DataFrame, parts: int = 1) -> pl.DataFrame:
    """Sample whole queries, for about `_SAMPLED_ROWS` rows over all parts."""
    one_in = -(-rows.height * parts // _SAMPLED_ROWS)
    return rows.filter(pl.col(QUERY).hash(_SEED) % one_in == 0) if one_in > 1 else rows


def _sample_pages(page_sample: pl.LazyFrame, plan: StatisticsPlan) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Units, one per page, and counts by position and last click above, of sampled queries."""
    browsing = by_browsing(plan)
    rows = browsing.with_cells_in_memory(_sample_queries(page_sample.collect(engine="streaming")))
    rows = rows.with_columns(pl.lit(1, pl.Int64).alias(IMPRESSIONS), pl.col(CLICK).cast(pl.Int64).alias(CLICKS))
    browsed = rows.group_by(QUERY, DOC, *browsing.cell_columns).agg(pl.col(IMPRESSIONS, CLICKS).sum())
    units = plan.with_cells_in_memory(rows)
    return units.select(QUERY, DOC, *plan.cell_columns, pl.col(SESSION).alias(UNIT), IMPRESSIONS, CLICKS), browsed


def theta_by_position(counts: CountsOfPages, engine: Engine, progress: Progress) -> tuple[CellTheta, Floats | None]:
    """Estimate theta by position from the log itself; return it with the covariance of log theta.

    Raises:
        IdentifiabilityError: no document links two cells.
    """
    keys, folder = counts.plan.keys, engine.scratch / "by-position"
    folder.mkdir(mode=0o700)
    rows = [rows.scan().group_by(keys).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(keys) for rows in counts.rows]
    statistics, _ = compress_parts(engine.parts_of(rows), counts.plan, engine, progress, folder=folder)
    conditional = get_estimator("conditional")
    estimate = conditional.estimate(statistics, statistics.strata(), EstimationOptions(), lambda _: None)
    return CellTheta(counts.plan, statistics.cells, estimate.examination), errors_of_theta(estimate)[1]


def theta_by_browsing(
    counts: CountsOfPages, propensities: pl.DataFrame | None, engine: Engine, progress: Progress
) -> CellTheta | str:
    """Theta of the user browsing model, or the reason for its absence.

    Args:
        counts: counts of the log.
        propensities: table of the model; None fits it to the sampled pages.
        engine: runs over parts.
        progress: receives stages.
    """
    plan = by_browsing(counts.plan)
    if counts.plan.cell:
        return "it takes no --cell"
    if counts.browsed is None:
        return "it needs to know which results above were clicked: give the log with its sessions" + (
            "" if counts.plan.position_bins else ", or statistics by collect --model ubm"
        )
    cells = counts.browsed.select(plan.cell_columns).unique().sort(*plan.cell_order)
    if cells.height > MOST_CELLS_BESIDE:
        return f"it would have {cells.height:,} cells on pages this long, more than {MOST_CELLS_BESIDE:,}"
    if propensities is not None:
        return CellTheta(plan, cells, examination_of_cells(cells, propensities))
    clicks = float(counts.browsed[CLICKS].sum())
    if clicks < _CLICKS_PER_CELL * cells.height:
        return f"to fit it takes {_CLICKS_PER_CELL * cells.height:,} clicks, and these pages have {clicks:,.0f}"
    try:
        statistics, _ = compress_parts(engine.parts_of([counts.browsed.sort(plan.keys).lazy()]), plan, engine, progress)
        linkage = linkage_of(statistics, statistics.strata(), EstimationOptions())
        fit = fit_conditional(statistics.strata().signatures, linkage)
    except IdentifiabilityError:
        return "these pages do not show documents at enough places to fit it"
    return CellTheta(plan, statistics.cells, relative_to_largest(fit.theta, linkage))


def theta_of(
    counts: CountsOfPages, propensities: pl.DataFrame, fitted: ThetaEstimate
) -> tuple[CellTheta, Floats | None]:
    """Look up theta of the cells of a log; return it with the covariance of log theta, None if unknown.

    Args:
        counts: counts of the log.
        propensities: table of theta.
        fitted: the fitted theta, with its errors.
    """
    cells = counts.cells.select(counts.plan.cell_columns)
    covariance = covariance_of_theta(cells, propensities, fitted)
    theta = CellTheta(counts.plan, cells, examination_of_cells(cells, propensities))
    return theta, None if covariance is None else np.nan_to_num(covariance)


_StoredPrior = tuple[Prior, KeptFrame]
"""A prior without its pairs, and the pairs on disk or in memory."""

_PartSums = tuple[list[PageSums], pl.DataFrame, KeptFrame]
"""Of a ranking and a part: sums by scope and bend, the most changed queries, and the gain of each query."""


@dataclass(frozen=True)
class PredictedRanking:
    """Predictions of a ranking."""

    name: str
    file: str
    by_scope: list[Prediction]  # in the order of `CountsOfPages.scopes`
    changed: pl.DataFrame  # the queries that change most (see `most_changed`)
    by_browsing: float | None  # difference under the user browsing model; None if unknown
    browsing_error: float  # standard error of the prediction from the sample that `by_browsing` is computed on
    pages_of_log: float  # including those of queries without scores
    break_even: BreakEven  # of the prediction over all clicks

    @property
    def whole(self) -> Prediction:
        """Prediction over all clicks."""
        return self.by_scope[0]

    @property
    def models_disagree(self) -> bool:
        """Whether the difference of the user browsing model is outside the interval, and significantly apart."""
        if self.by_browsing is None:
            return False
        low, high = self.whole.interval
        apart = abs(self.by_browsing - self.whole.difference)
        return not low <= self.by_browsing <= high and apart > _APART * self.browsing_error

    @property
    def is_dampened(self) -> bool:
        """Whether the user browsing model predicts much less, as if clicks preclude clicks below (cascades)."""
        if self.by_browsing is None:
            return False
        difference = self.whole.difference
        less = abs(difference) - self.by_browsing * float(np.sign(difference))
        return less > max(_LESS * self.browsing_error, _MUCH_LESS * abs(difference))


def predict_rankings(
    counts: CountsOfPages,
    rankings: Rankings,
    by: CellTheta,
    covariance: Floats | None,
    browsing: CellTheta | None,
    variance: float | None,
    bends: Sequence[Bend],
    engine: Engine,
    progress: Progress,
) -> list[PredictedRanking]:
    """Predict the clicks of each ranking.

    Args:
        counts: counts of the log.
        rankings: opened rankings.
        by: theta of the cells.
        covariance: of log theta; None treats theta as known.
        browsing: theta of the user browsing model; None omits that model.
        variance: of the clicks per page of the log; None uses that of the model.
        bends: changes of theta, for break-even points of the prediction over all clicks.
        engine: runs over parts.
        progress: receives stages.

    Raises:
        SchemaError: a ranking shares no document, or no query with a click, with the log; or a score is not a finite
            number, or is repeated.
    """
    with progress.stage("reading rankings"):
        keys = [queries.scan() for queries in counts.queries]
        routed = route_rows(rankings.rows, (QUERY,), rankings.sources, keys, engine.scratch / "lists", engine.memory)
    lists, scopes = dict(enumerate(routed)), counts.scopes(by)
    parts = engine.parts_of([rows.scan() for rows in counts.rows])
    one_in = -(-int(counts.cells[IMPRESSIONS].sum()) // _SAMPLED_IMPRESSIONS)
    folder = None if parts.in_memory else engine.scratch / "ranked"
    if folder is not None:
        folder.mkdir(mode=0o700)
    with progress.stage("sampling queries"):
        sampled, there = _sample(parts, lists, one_in)
    for number, (name, file) in enumerate(zip(rankings.names, rankings.files, strict=True), start=1):
        if number not in there:
            raise SchemaError(f"{file}: {name} has a score for no query of the log. Write its ids as in the log.")
    fitted = list(_priors(sampled, by, len(rankings.names), (Bend(), *bends), folder))
    del sampled
    given = {"rankings": rankings, "lists": lists, "bends": bends, "fitted": fitted, "folder": folder}
    with progress.stage("predicting", parts.number) as stage:
        sums_of_parts, n_pages = list[list[_PartSums]](), 0.0
        for pages, by_ranking in parts.map(partial(_sums, by=by, scopes=scopes, **given)):
            sums_of_parts.append(by_ranking)
            n_pages += pages
            stage.advance()
    apart, predictions = dict[int, tuple[float, float]](), list[PredictedRanking]()
    if browsing is not None and counts.browsed is not None:
        priors = (_with_pairs(*by_bend[0]) for by_bend in fitted)
        apart = _compare_browsing(counts.browsed, rankings, by, covariance, browsing, priors)
    errors = [None if covariance is None else bend.power**2 * covariance for bend in bends]
    for number, (stored, *bent_priors) in enumerate(fitted):
        part_sums = [by_ranking[number] for by_ranking in sums_of_parts]
        sums = [reduce(add, over_parts) for over_parts in zip(*(sums for sums, *_ in part_sums), strict=True)]
        prior = _with_pairs(*stored)
        if not sums[0].supported:
            raise SchemaError(
                f"{rankings.files[number]}: {rankings.names[number]} has a score for no document that the log shows. "
                "Write its ids as in the log."
            )
        if not sums[0].clicks:
            raise SchemaError(
                f"{rankings.files[number]}: no query that {rankings.names[number]} ranks has a click in a position "
                "whose propensity is known, so there is nothing to predict clicks from."
            )
        changed = pl.concat(changed for _, changed, _ in part_sums)
        changed = changed.sort(pl.col("difference").abs(), descending=True, maintain_order=True).head(CHANGED)
        whole = predict(sums[0], prior, covariance, variance, (gains.load() for *_, gains in part_sums))
        bent = zip(sums[len(scopes) :], bent_priors, errors, strict=True)
        under_bends = (predict(bent_sums, _with_pairs(*own), error) for bent_sums, own, error in bent)
        more, error = apart.get(number, (None, np.inf))
        predictions.append(
            PredictedRanking(
                name=rankings.names[number],
                file=rankings.files[number],
                by_scope=[whole, *(predict(scope_sums, prior, covariance) for scope_sums in sums[1 : len(scopes)])],
                changed=changed,
                by_browsing=None if more is None else whole.difference + more,
                browsing_error=error,
                pages_of_log=n_pages,
                break_even=BreakEven.of(
                    (whole.difference, *whole.interval), [(bent.difference, *bent.interval) for bent in under_bends]
                ),
            )
        )
    return predictions


def _compare_browsing(
    browsed: pl.DataFrame,
    rankings: Rankings,
    by: CellTheta,
    covariance: Floats | None,
    browsing: CellTheta,
    priors: Iterable[Prior],
) -> dict[int, tuple[float, float]]:
    """Compare the user browsing model with theta by position on the sampled counts.

    Returns:
        By number of a ranking: the difference in predicted clicks per page, browsing model minus position, and the
        standard error of the prediction by position.
    """
    by_cell = by.plan.bin_cells(browsed) if by.plan.position_bins else browsed
    by_cell = by_cell.group_by(QUERY, DOC, *by.plan.cell_columns).agg(pl.col(IMPRESSIONS, CLICKS).sum())
    both = [ShownPart.of(by_cell, by), ShownPart.of(browsed, browsing)]
    queries = browsed.select(pl.col(QUERY).unique()).lazy()
    lists = rank_lists(rankings.rows.join(queries, on=QUERY, how="semi").collect())
    apart = dict[int, tuple[float, float]]()
    for number, prior in enumerate(priors):
        here, there = (Placed.of(part, lists.filter(pl.col(RANKING) == number + 1)) for part in both)
        pages = float(here.part.pages @ here.ranked)
        if here.used.any() and there.used.any():
            ours = predict(PageSums.of(prior.posterior(here), Scope("all"), planned=False), prior, covariance)
            theirs = browsing_difference(Prior.fit(there).posterior(there)) / pages
            apart[number] = theirs - ours.difference, ours.std_error
    return apart


def _sample(
    parts: Parts, lists: Mapping[int, pl.LazyFrame], one_in: int
) -> tuple[list[tuple[pl.DataFrame, pl.DataFrame]], set[int]]:
    """Sample counts and scores of one query in `one_in`, or of more until each ranking has a list in the sample.

    Returns:
        Counts and lists of each part; and the numbers of rankings that have scores at all, and 0.
    """
    sampled, there = list[tuple[pl.DataFrame, pl.DataFrame]](), {0}
    while there.difference(number for _, scores in sampled for number in scores[RANKING].unique()):
        samples = list(parts.map(partial(_sample_part, lists=lists, one_in=one_in)))
        sampled = [(rows, rank_lists(scores)) for rows, scores, _ in samples]
        there = set[int]().union(*(numbers for *_, numbers in samples))
        one_in = one_in // _MORE_QUERIES or 1
    return sampled, there


def _sample_part(
    number: int, rows: pl.LazyFrame, lists: Mapping[int, pl.LazyFrame], one_in: int
) -> tuple[pl.DataFrame, pl.DataFrame, set[int]]:
    """Sample a part; return counts, scores, and the numbers of all rankings with scores in the part."""
    is_sampled, rankings = pl.col(QUERY).hash(_SEED) % one_in == 0, lists[number].select(pl.col(RANKING).unique())
    some_scores = lists[number].filter(is_sampled).collect()
    some_rows = rows.filter(is_sampled).join(some_scores.lazy().select(QUERY), on=QUERY, how="semi").collect()
    return some_rows, some_scores, set(rankings.collect()[RANKING])


def _priors(
    sampled: Sequence[tuple[pl.DataFrame, pl.DataFrame]],
    by: CellTheta,
    n_rankings: int,
    bends: Sequence[Bend],
    folder: Path | None,
) -> Iterator[list[_StoredPrior]]:
    """Fit a prior for each ranking under each bend."""
    rows, lists = (pl.concat(frames) for frames in zip(*sampled, strict=True))
    part = ShownPart.of(rows, by)
    for ranking in range(n_rankings):
        placed, fitted = Placed.of(part, lists.filter(pl.col(RANKING) == ranking + 1)), list[_StoredPrior]()
        for number, bend in enumerate(bends):
            prior = Prior.fit(placed.bent(bend))
            pairs = keep(prior.pairs, folder, f"prior-{ranking:05d}-{number:05d}", quickly=True)
            fitted.append((replace(prior, pairs=prior.pairs.clear()), pairs))
        yield fitted


def _with_pairs(prior: Prior, pairs: KeptFrame) -> Prior:
    return replace(prior, pairs=pairs.load())


def _sums(
    number: int,
    rows: pl.LazyFrame,
    by: CellTheta,
    scopes: Sequence[Scope],
    rankings: Rankings,
    lists: Mapping[int, pl.LazyFrame],
    bends: Sequence[Bend],
    fitted: Sequence[Sequence[_StoredPrior]],
    folder: Path | None,
) -> tuple[float, list[_PartSums]]:
    """Second pass over a part: return its number of pages, and the sums of each ranking."""
    scores = lists[number].collect()
    check_scores(scores, rankings)
    part, ranks = ShownPart.of(rows.collect(), by), rank_lists(scores)
    predicted = list[_PartSums]()
    for ranking, ((prior, _), *bent_priors) in enumerate(fitted):
        placed = Placed.of(part, ranks.filter(pl.col(RANKING) == ranking + 1))
        posterior = prior.posterior(placed)
        sums = [PageSums.of(posterior, scope, planned=not at) for at, scope in enumerate(scopes)]
        bent = (own.posterior(placed.bent(bend)) for bend, (own, _) in zip(bends, bent_priors, strict=True))
        sums += [PageSums.of(under_bend, scopes[0], planned=False) for under_bend in bent]
        gains = keep(posterior.gains(), folder, f"gains-{ranking:05d}-{number:05d}", quickly=True)
        predicted.append((sums, most_changed(posterior, CHANGED, DEPTH), gains))
    return float(part.pages.sum()), predicted
