"""Predictions of rankings over the counts of a log or of statistics: two passes over parts of whole queries."""

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
from posbias.core.evaluation.clicked import RANKING, ranked
from posbias.core.evaluation.prediction import (
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
from posbias.io.counting.count import compress
from posbias.io.engines.engine import Engine, Parts
from posbias.io.places.temporary import KeptFrame, keep
from posbias.io.progress import Progress
from posbias.io.rankings import Rankings, check_scores
from posbias.io.training.feature_parts import route_rows
from posbias.io.training.laid_out import covariance_of_theta, examination_of

_MORE_QUERIES = 16  # times as many are sampled where a ranking has no list among them
_SAMPLED_IMPRESSIONS = 1 << 21
"""Impressions whose pairs say what attractiveness is like; of a larger log those of some queries, by their hash."""

_LOOKED_AT = 1 << 18  # rows of pages that are compared with others of their query; of more, those of some queries
MOST_PARTS = 30
"""Contexts, and classes of queries, that have predictions of their own."""

_SEED = 2  # of that hash: parts are made by another one
# By how many standard errors, and by what share, the user browsing model says less where clicks are not independent: so
# little is chance on 2 % of position-based logs, and as much shows 9 of 10 sparse cascades and all others
_LESS, _MUCH_LESS = 1.5, 0.1
_APART = 2.0  # standard errors, where models disagree otherwise
_CLICKS_OF_A_CELL = 40  # on average, to fit the user browsing model: with 15, chance alone refused 7 of 12 sound logs
CHANGED, DEPTH = 20, 10
"""Queries of each ranking that are shown with their documents, and how many of these."""


def by_position(plan: StatisticsPlan) -> StatisticsPlan:
    """The plan of cells by position, whatever was clicked above."""
    return StatisticsPlan(get_model("pbm"), plan.max_position, plan.position_bins, plan.context, plan.cell)


def by_browsing(plan: StatisticsPlan) -> StatisticsPlan:
    """The plan of cells by position and last click above, for the user browsing model."""
    return StatisticsPlan(get_model("ubm"), plan.max_position, (), plan.context)


@dataclass(frozen=True)
class _CountedPart:
    """The counts of a part of a log."""

    rows: KeptFrame  # `query`, `doc`, the cell columns, perhaps `LATE` and `CLASS`, `impressions`, `clicks`
    queries: KeptFrame
    cells: pl.DataFrame  # that occur, with their `impressions` and `clicks`
    units: pl.DataFrame  # of some queries: rows by day
    browsed: pl.DataFrame  # of some queries: rows by position and last click above
    classes: pl.DataFrame  # of queries, with their `impressions`


@dataclass(frozen=True)
class CountsOfPages:
    """The counts of whole queries, in parts that are gone over again."""

    plan: StatisticsPlan  # by position
    rows: tuple[KeptFrame, ...]  # of each part: `query`, `doc`, the cell columns, `impressions`, `clicks`
    queries: tuple[KeptFrame, ...]  # of each part
    cells: pl.DataFrame  # that occur, with their `impressions` and `clicks`, sorted
    units: pl.DataFrame | None  # pages, or what queries showed on a day, of a sample; see `page_slope`
    browsed: pl.DataFrame | None  # counts by position and last click above, of a sample; None where not known
    by: str | None  # the column of classes of queries
    classes: pl.DataFrame  # of queries, those with most `impressions` first

    @classmethod
    def of(
        cls,
        statistics: Parts,
        counted: StatisticsPlan,
        cut: date | None,
        some_pages: pl.LazyFrame | None,
        by: str | None,
        engine: Engine,
        progress: Progress,
    ) -> "CountsOfPages":
        """Count what a prediction needs.

        Args:
            statistics: of a log.
            counted: what they count.
            cut: the first day of the later half of the pages; None where days are not known.
            some_pages: whole pages of the log, where it has pages.
            by: a column of the statistics that tells classes of queries apart.
            engine: where they are.
            progress: where stages are reported.

        Raises:
            SchemaError: nothing was counted, nothing was clicked, or a query is in two classes.
        """
        folder = engine.scratch / "counts"
        folder.mkdir(mode=0o700)
        work = partial(
            _count,
            counted=counted,
            cut=cut,
            by=by,
            n_parts=(statistics.number or 1) if some_pages is None else 0,
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
        every = pl.concat(part.cells for part in parts).group_by(plan.cell_columns).sum().sort(plan.cell_order)
        if not every[CLICKS].sum():
            raise SchemaError("no impression was clicked, so there is nothing to predict clicks from.")
        if some_pages is not None:
            units, browsed = _pages(some_pages, plan)
        else:
            units, browsed = (pl.concat(frames) for frames in zip(*((p.units, p.browsed) for p in parts), strict=True))
        classes = pl.concat(part.classes for part in parts)
        if by is not None:
            classes = classes.group_by(CLASS).agg(pl.col(IMPRESSIONS).sum()).sort(-pl.col(IMPRESSIONS), CLASS)
        return cls(
            plan,
            tuple(part.rows for part in parts),
            tuple(part.queries for part in parts),
            every,
            units if units.height else None,
            browsed if browsed.height else None,
            by,
            classes,
        )

    def scopes(self, by: CellTheta) -> list[Scope]:
        """Of which clicks predictions are made: of all first, then of those on top, of contexts and of classes."""
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
    """Count a part, one of so many, 0 where samples are taken elsewhere; None where it holds nothing."""
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
        units = _some_queries(rows, n_parts).group_by(*keys, UNIT).agg(counts.sum())
    if n_parts and set(by_click) <= set(rows.columns) and not counted.position_bins:
        browsed = _some_queries(rows, n_parts).group_by(by_click).agg(counts.sum())
    keys += ([] if cut is None else [LATE]) + ([] if by is None else [CLASS])
    if set(counted.keys) != set(keys):
        rows = rows.group_by(keys, maintain_order=True).agg(counts.sum())
    cells = rows.group_by(plan.cell_columns).agg(counts.sum())
    classes = pl.DataFrame(schema={CLASS: pl.String, IMPRESSIONS: pl.Int64})
    if by is not None:
        of_query = rows.group_by(QUERY).agg(pl.col(CLASS).unique().sort())
        several = of_query.filter(pl.col(CLASS).list.len() > 1).sort(QUERY)
        if several.height:
            query, names = several.row(0)
            raise SchemaError(
                f"--by {by}: pages of query {query} have {names[0]!r} and {names[1]!r}. Name a column that is the same "
                "on all pages of a query; what differs between them is a --context of the fit."
            )
        classes = rows.group_by(CLASS).agg(pl.col(IMPRESSIONS).sum())
    queries = keep(rows.select(pl.col(QUERY).unique()), folder, f"queries-{number:05d}")
    return _CountedPart(keep(rows, folder, f"rows-{number:05d}", quickly=True), queries, cells, units, browsed, classes)


def _some_queries(rows: pl.DataFrame, parts: int = 1) -> pl.DataFrame:
    """The rows of some queries, about as many as are looked at, of one of so many parts."""
    one_in = -(-rows.height * parts // _LOOKED_AT)
    return rows.filter(pl.col(QUERY).hash(_SEED) % one_in == 0) if one_in > 1 else rows


def _pages(some_pages: pl.LazyFrame, plan: StatisticsPlan) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Pages as units, and their counts by position and last click above."""
    browsing = by_browsing(plan)
    rows = browsing.with_cells_in_memory(_some_queries(some_pages.collect(engine="streaming")))
    rows = rows.with_columns(pl.lit(1, pl.Int64).alias(IMPRESSIONS), pl.col(CLICK).cast(pl.Int64).alias(CLICKS))
    browsed = rows.group_by(QUERY, DOC, *browsing.cell_columns).agg(pl.col(IMPRESSIONS, CLICKS).sum())
    units = plan.with_cells_in_memory(rows)
    return units.select(QUERY, DOC, *plan.cell_columns, pl.col(SESSION).alias(UNIT), IMPRESSIONS, CLICKS), browsed


def theta_by_position(counts: CountsOfPages, engine: Engine, progress: Progress) -> tuple[CellTheta, Floats | None]:
    """Theta of positions as these pages have it, and the covariance of its logarithm.

    Raises:
        IdentifiabilityError: nothing links two cells.
    """
    keys, folder = counts.plan.keys, engine.scratch / "by-position"
    folder.mkdir(mode=0o700)
    rows = [rows.scan().group_by(keys).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(keys) for rows in counts.rows]
    statistics, _ = compress(engine.parts_of(rows), counts.plan, engine, progress, folder=folder)
    conditional = get_estimator("conditional")
    estimate = conditional.estimate(statistics, statistics.strata(), EstimationOptions(), lambda _: None)
    return CellTheta(counts.plan, statistics.cells, estimate.examination), errors_of_theta(estimate)[1]


def theta_by_browsing(
    counts: CountsOfPages, propensities: pl.DataFrame | None, engine: Engine, progress: Progress
) -> CellTheta | str:
    """Theta of the user browsing model, or why there is none.

    Args:
        counts: of the log.
        propensities: a table of that model; None fits it to these pages.
        engine: where they are.
        progress: where stages are reported.
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
        return CellTheta(plan, cells, examination_of(cells, propensities))
    clicks = float(counts.browsed[CLICKS].sum())
    if clicks < _CLICKS_OF_A_CELL * cells.height:
        return f"to fit it takes {_CLICKS_OF_A_CELL * cells.height:,} clicks, and these pages have {clicks:,.0f}"
    try:
        statistics, _ = compress(engine.parts_of([counts.browsed.sort(plan.keys).lazy()]), plan, engine, progress)
        linkage = linkage_of(statistics, statistics.strata(), EstimationOptions())
        fit = fit_conditional(statistics.strata().signatures, linkage)
    except IdentifiabilityError:
        return "these pages do not show documents at enough places to fit it"
    return CellTheta(plan, statistics.cells, relative_to_largest(fit.theta, linkage))


def theta_of(
    counts: CountsOfPages, propensities: pl.DataFrame, fitted: ThetaEstimate
) -> tuple[CellTheta, Floats | None]:
    """Theta of the cells of a log, and the covariance of its logarithm, None where that is not known.

    Args:
        counts: of the log.
        propensities: the table that theta is taken from.
        fitted: theta as it was fitted, with its errors.
    """
    cells = counts.cells.select(counts.plan.cell_columns)
    covariance = covariance_of_theta(cells, propensities, fitted)
    theta = CellTheta(counts.plan, cells, examination_of(cells, propensities))
    return theta, None if covariance is None else np.nan_to_num(covariance)


_Fitted = tuple[Prior, KeptFrame]
"""A prior without its pairs, and these."""


@dataclass(frozen=True)
class PredictedRanking:
    """The predictions of a ranking."""

    name: str
    file: str
    of_scopes: list[Prediction]  # over each of `CountsOfPages.scopes`
    changed: pl.DataFrame  # the queries that change most (see `most_changed`)
    by_browsing: float | None  # the difference under the user browsing model; None where not known
    # Standard error of the prediction from as many pages as that was made from: how far both may be apart by chance
    browsing_error: float
    pages_of_log: float  # with those of queries that it has no scores for
    break_even: BreakEven  # of the prediction over all clicks

    @property
    def whole(self) -> Prediction:
        """The prediction over all clicks."""
        return self.of_scopes[0]

    @property
    def models_disagree(self) -> bool:
        """Whether the user browsing model's difference lies outside the interval, by more than chance."""
        if self.by_browsing is None:
            return False
        low, high = self.whole.interval
        apart = abs(self.by_browsing - self.whole.difference)
        return not low <= self.by_browsing <= high and apart > _APART * self.browsing_error

    @property
    def is_dampened(self) -> bool:
        """Whether the user browsing model says much less, as where clicks take clicks from results below (cascades)."""
        if self.by_browsing is None:
            return False
        one = self.whole
        less = abs(one.difference) - self.by_browsing * float(np.sign(one.difference))
        return less > max(_LESS * self.browsing_error, _MUCH_LESS * abs(one.difference))


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
    """Predict each ranking.

    Args:
        counts: of the log.
        rankings: them.
        by: theta of its cells.
        covariance: of log theta; None takes theta as known.
        browsing: theta of the user browsing model; None leaves that out.
        variance: of the clicks of a page of the log; None takes that of the model.
        bends: of theta, under which predictions over all clicks are made too.
        engine: where the parts are.
        progress: where stages are reported.

    Raises:
        SchemaError: a ranking has no document of the log or no query with a click, or a score is no number, or twice.
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
        sums_of_parts, n_pages = list[list[tuple[list[PageSums], pl.DataFrame, KeptFrame]]](), 0.0
        for pages, of_rankings in parts.map(partial(_sums, by=by, scopes=scopes, **given)):
            sums_of_parts.append(of_rankings)
            n_pages += pages
            stage.advance()
    apart, predictions = dict[int, tuple[float, float]](), list[PredictedRanking]()
    if browsing is not None and counts.browsed is not None:
        priors = (_with_pairs(*of_ranking[0]) for of_ranking in fitted)
        apart = _browsing_beside(counts.browsed, rankings, by, covariance, browsing, priors)
    errors = [None if covariance is None else bend.power**2 * covariance for bend in bends]
    for number, of_bends in enumerate(fitted):
        of_ranking = [of_part[number] for of_part in sums_of_parts]
        sums = [reduce(add, of_scope) for of_scope in zip(*(of_scopes for of_scopes, *_ in of_ranking), strict=True)]
        prior = _with_pairs(*of_bends[0])
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
        changed = pl.concat(changed for _, changed, _ in of_ranking)
        changed = changed.sort(pl.col("difference").abs(), descending=True, maintain_order=True).head(CHANGED)
        of_all = predict(sums[0], prior, covariance, variance, (gains.load() for *_, gains in of_ranking))
        of_scopes = [of_all, *(predict(of_scope, prior, covariance) for of_scope in sums[1 : len(scopes)])]
        more, error = apart.get(number, (None, np.inf))
        bent = zip(sums[len(scopes) :], of_bends[1:], errors, strict=True)
        predicted = (of_all, *(predict(of_bend, _with_pairs(*own), of_theta) for of_bend, own, of_theta in bent))
        whole, *others = ((one.difference, *one.interval) for one in predicted)
        of_browsing = None if more is None else of_all.difference + more, error
        rest = of_scopes, changed, *of_browsing, n_pages, BreakEven.of(whole, others)
        predictions.append(PredictedRanking(rankings.names[number], rankings.files[number], *rest))
    return predictions


def _browsing_beside(
    browsed: pl.DataFrame,
    rankings: Rankings,
    by: CellTheta,
    covariance: Floats | None,
    browsing: CellTheta,
    priors: Iterable[Prior],
) -> dict[int, tuple[float, float]]:
    """Compare the user browsing model with `by` on a sample.

    Returns:
        By the number of a ranking, how many more clicks per page the former gives it, and the standard error of the
        latter.
    """
    by_cell = by.plan.bin_cells(browsed) if by.plan.position_bins else browsed
    by_cell = by_cell.group_by(QUERY, DOC, *by.plan.cell_columns).agg(pl.col(IMPRESSIONS, CLICKS).sum())
    both = [ShownPart.of(by_cell, by), ShownPart.of(browsed, browsing)]
    queries = browsed.select(pl.col(QUERY).unique()).lazy()
    lists = ranked(rankings.rows.join(queries, on=QUERY, how="semi").collect())
    apart = dict[int, tuple[float, float]]()
    for number, prior in enumerate(priors):
        here, there = (Placed.of(part, lists.filter(pl.col(RANKING) == number + 1)) for part in both)
        pages = float(here.part.pages @ here.ranked)
        if here.used.any() and there.used.any():
            one = predict(PageSums.of(prior.posterior(here), Scope("all"), planned=False), prior, covariance)
            more = browsing_difference(Prior.fit(there).posterior(there)) / pages
            apart[number] = more - one.difference, one.std_error
    return apart


def _sample(
    parts: Parts, lists: Mapping[int, pl.LazyFrame], one_in: int
) -> tuple[list[tuple[pl.DataFrame, pl.DataFrame]], set[int]]:
    """The rows and scores of one in so many queries, or of more until each ranking has lists; and those rankings."""
    sampled, there = list[tuple[pl.DataFrame, pl.DataFrame]](), {0}
    while there.difference(number for _, scores in sampled for number in scores[RANKING].unique()):
        of_parts = list(parts.map(partial(_sampled, lists=lists, one_in=one_in)))
        sampled = [(rows, ranked(scores)) for rows, scores, _ in of_parts]
        there = set[int]().union(*(of_part for *_, of_part in of_parts))
        one_in = one_in // _MORE_QUERIES or 1
    return sampled, there


def _sampled(
    number: int, rows: pl.LazyFrame, lists: Mapping[int, pl.LazyFrame], one_in: int
) -> tuple[pl.DataFrame, pl.DataFrame, set[int]]:
    """The rows and scores of some queries of a part, and the numbers of the rankings that have scores there."""
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
) -> Iterator[list[_Fitted]]:
    """The priors of each ranking under each bend; their pairs are kept in a directory, or in memory."""
    rows, lists = (pl.concat(frames) for frames in zip(*sampled, strict=True))
    part = ShownPart.of(rows, by)
    for ranking in range(n_rankings):
        placed, fitted = Placed.of(part, lists.filter(pl.col(RANKING) == ranking + 1)), list[_Fitted]()
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
    fitted: Sequence[Sequence[_Fitted]],
    folder: Path | None,
) -> tuple[float, list[tuple[list[PageSums], pl.DataFrame, KeptFrame]]]:
    """The second pass over a part.

    Returns:
        Its pages, and for each ranking the sums by scope and bend, the queries that change most, and what each gains.
    """
    scores = lists[number].collect()
    check_scores(scores, rankings)
    part, of_part = ShownPart.of(rows.collect(), by), ranked(scores)
    predicted = list[tuple[list[PageSums], pl.DataFrame, KeptFrame]]()
    for ranking, ((prior, _), *of_bends) in enumerate(fitted):
        placed = Placed.of(part, of_part.filter(pl.col(RANKING) == ranking + 1))
        posterior = prior.posterior(placed)
        sums = [PageSums.of(posterior, scope, planned=not at) for at, scope in enumerate(scopes)]
        bent = (of_bend.posterior(placed.bent(bend)) for bend, (of_bend, _) in zip(bends, of_bends, strict=True))
        sums += [PageSums.of(of_bend, scopes[0], planned=False) for of_bend in bent]
        gains = keep(posterior.gains(), folder, f"gains-{ranking:05d}-{number:05d}", quickly=True)
        predicted.append((sums, most_changed(posterior, CHANGED, DEPTH), gains))
    return float(part.pages.sum()), predicted
