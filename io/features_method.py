"""Estimates of theta from features of impressions: learning on sampled pages, estimation on all rows by part."""

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.choices import Cluster
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import SchemaError
from posbias.core.estimators.estimate import Estimate, EstimationOptions, linkage_of_clicks
from posbias.core.estimators.methods import FeaturesMethod, RegressionEMMethod
from posbias.core.features import (
    ITERATIONS,
    ExposureCounts,
    LearningRows,
    Nuisances,
    ScoredRows,
    StratumEdges,
    features_estimate,
    fit_exposure,
    fold_numbers,
    hidden_relevance,
    in_sample,
    learn_nuisances,
    options_of_trees,
    regression_em,
    session_draws,
)
from posbias.core.fit.diagnostics import FromRows
from posbias.core.learners.boosting import BinnedRows, RowsBy, bin_rows
from posbias.core.learners.learning import sigmoid
from posbias.core.learners.models import Forest
from posbias.core.schema import CLICK, DOC, QUERY, SESSION, WEIGHT
from posbias.core.standard_errors.cluster import Intervals
from posbias.core.training.layout import GROUP, get_layout
from posbias.io.counting.count import CountedLog
from posbias.io.engines.engine import Engine, collected
from posbias.io.places.temporary import KeptFrame, keep
from posbias.io.progress import Progress
from posbias.io.results.conclusions import Reason
from posbias.io.training.feature_parts import RowsRequest, bring_features
from posbias.io.training.laid_out import Feature, LaidOut, as_numbers, keep_rows, split_by_key

DRAW, CELL, CLUSTER, OWN_WEIGHT = "posbias_draw", "posbias_cell", "posbias_cluster", "posbias_weight"
_STRATUM, _EXPOSURE = "posbias_stratum", "posbias_exposure"

Singles = np.ndarray[tuple[int, int], np.dtype[np.float32]]
_BYTES_PER_VALUE = 8  # of the sample: values as read, and bins for learning and for scoring
_MEMORY_DIVISOR = 3  # a third of the memory is for the sample


def estimate_from_rows(
    counted: CountedLog, request: RowsRequest, options: EstimationOptions, engine: Engine, progress: Progress
) -> tuple[FromRows, dict[str, Any], tuple[Reason, ...]]:
    """Estimate theta from the rows of a log and their features.

    Returns:
        The estimate, and a section of the manifest and reasons on the features.

    Raises:
        LogFormatError: a table of features is unreadable.
        SchemaError: the inputs are statistics, or features are unusable, constant or missing.
        IdentifiabilityError: no two cells can be compared.
        MissingExtraError: LightGBM is not installed.
        UsageError: the reference cell does not exist.
    """
    by = _cluster(options)
    read = counted.read
    if read is None:
        raise SchemaError("features of impressions need the log, and there are only statistics. Name the logs.")
    folder = None if read.buckets.in_memory else engine.scratch
    plan, cells, columns = counted.plan, counted.statistics.cells, request.features.columns
    work = partial(_lay_out, plan=plan, cells=cells, columns=columns, by=by, seed=options.seed, folder=folder)
    laid_out: list[LaidOut] = []
    with progress.stage("laying out rows", read.buckets.number) as stage:
        for pieces in read.buckets.map(work):
            stage.advance()
            laid_out += pieces
    layout = get_layout("session")  # whose rows are impressions, too
    joined = bring_features({"training": laid_out}, request.features, layout, read, engine, progress)
    impressions, features = joined.parts["training"], joined.features
    if any(feature.name == request.score and feature.categories for feature in features):
        raise SchemaError(
            f"--ranker-score {request.score}: the column holds text. Name the number that the ranker orders by."
        )
    rows, binned, page, score = _sample(impressions, features, counted, request, engine.memory, progress)
    moment = hidden = None
    if request.method == RegressionEMMethod.name:
        estimate = _estimate_by_regression_em(counted, binned, rows, options, progress)
    elif request.method == FeaturesMethod.name:
        with progress.stage("growing trees"):
            learned = learn_nuisances(binned, rows)
        estimate, moment = _estimate_by_strata(counted, impressions, features, rows, learned, options, engine, progress)
        hidden = hidden_relevance(rows, learned, page, score)
    else:
        raise TypeError(f"--method {request.method}: nothing estimates from rows by it")
    n_pages = sum(part.n_groups for part in impressions)
    from_rows = FromRows(estimate, moment, int(page.max()) + 1, n_pages, request.score, hidden)
    return from_rows, joined.report, joined.reasons


def _lay_out(
    number: int,
    impressions: pl.LazyFrame,
    plan: StatisticsPlan,
    cells: pl.DataFrame,
    columns: tuple[str, ...],
    by: Cluster,
    seed: int,
    folder: Path | None,
) -> list[LaidOut]:
    """Lay out a bucket: GROUP (page), CLUSTER, ids, DRAW, CELL, click, OWN_WEIGHT, and feature columns of the log.

    Rows are sorted by query and page. A large bucket is laid out in pieces of whole clusters.
    """
    laid_out, numbered, keys = list[LaidOut](), cells.with_row_index(CELL), list(plan.cell_columns)
    weight = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    page = pl.struct(QUERY, SESSION).rle_id().cast(pl.Int64)
    for piece, some in enumerate(map(collected, split_by_key(impressions, SESSION if by == "session" else QUERY))):
        shown = plan.with_cells(nw.from_native(some.lazy())).to_native().collect()
        ordered = shown.join(numbered, on=keys, how="inner", nulls_equal=True).sort(QUERY, SESSION, CELL, DOC)
        sessions = ordered.select(pl.col(SESSION).unique(maintain_order=True)).to_series()
        draws = pl.DataFrame({SESSION: sessions, DRAW: session_draws(sessions, seed)})
        rows = ordered.join(draws, on=SESSION, how="left", maintain_order="left").select(
            page.alias(GROUP),
            (page if by == "session" else pl.col(QUERY).rle_id().cast(pl.Int64)).alias(CLUSTER),
            *(QUERY, DOC, DRAW),
            pl.col(CELL).cast(pl.Int64),
            pl.col(CLICK).cast(pl.Float64),
            weight.alias(OWN_WEIGHT),
            *columns,
        )
        laid_out += keep_rows(folder, f"impressions-{number:05d}-{piece:05d}", rows, None)
    return laid_out


def _single_precision(rows: pl.DataFrame, features: tuple[Feature, ...]) -> Singles:
    """Features of rows, shape (n, F): text as index of its category, missing values as NaN."""
    return as_numbers(rows, features).cast(pl.Float32).fill_null(np.nan).to_numpy()


def _sample(
    impressions: Sequence[LaidOut],
    features: tuple[Feature, ...],
    counted: CountedLog,
    request: RowsRequest,
    memory: int,
    progress: Progress,
) -> tuple[LearningRows, BinnedRows, Integers, Floats | None]:
    """Sample pages within the memory limit: rows, binned features, page of each row, and ranker score if named."""
    n_rows, n_pages = sum(part.n_rows for part in impressions), sum(part.n_groups for part in impressions)
    fitting = memory // _MEMORY_DIVISOR / max(len(features) * _BYTES_PER_VALUE * n_rows, 1)
    share = min(1.0, request.sample_pages / max(n_pages, 1), fitting)

    def sample(rows: pl.DataFrame) -> pl.DataFrame:
        return rows if share >= 1 else rows.filter(pl.Series(in_sample(rows[DRAW].to_numpy(), share)))

    frames: list[pl.DataFrame] = []
    matrices: list[Singles] = []
    with progress.stage("sampling pages", len(impressions)) as stage:
        for part in impressions:
            for rows in part.chunks(memory, sample):
                frames.append(rows.select(DRAW, CELL, CLICK, OWN_WEIGHT))
                matrices.append(_single_precision(rows, features))
            stage.advance()
        if not frames:
            raise SchemaError("--sample-pages: no page is in the sample. Ask for more pages.")
        rows, statistics = pl.concat(frames), counted.statistics
        learning = LearningRows(
            cell=rows[CELL].to_numpy(),
            click=rows[CLICK].to_numpy(),
            weight=rows[OWN_WEIGHT].to_numpy(),
            fold=fold_numbers(rows[DRAW].to_numpy()),
            position=statistics.position_of_cell,
            context=statistics.context_of_cell,
        )
        values = np.concatenate(matrices)
        matrices.clear()
        first = values[:1]
        if not ((values != first) & ~(np.isnan(values) & np.isnan(first))).any():
            raise SchemaError(
                f"the features do not differ: each has one value in all of {len(values):,} rows. Name others "
                "(--features, --feature), or more pages (--sample-pages)."
            )
        names = [feature.name for feature in features]
        categorical = [number for number, feature in enumerate(features) if feature.categories is not None]
        binned = bin_rows(_in_double(values), names, categorical, options_of_trees(values.size))
        score = None if request.score is None else values[:, names.index(request.score)].astype(np.float64)
        return learning, binned, np.unique(rows[DRAW].to_numpy(), return_inverse=True)[1], score


def _estimate_by_regression_em(
    counted: CountedLog, features: BinnedRows, rows: LearningRows, options: EstimationOptions, progress: Progress
) -> Estimate:
    """Estimate theta by regression EM on the sampled pages, without standard errors."""
    linkage = linkage_of_clicks(counted.statistics, options)
    iterations = options.max_iterations or ITERATIONS
    with progress.stage("regression EM") as stage:
        theta = regression_em(features, rows, options.seed, iterations, stage.say)
    known = np.where(linkage.identified & (theta > 0), theta, np.nan)
    return Estimate(
        method=RegressionEMMethod.name,
        linkage=linkage,
        propensity=known / known[linkage.reference_of],
        examination=np.minimum(known, 1.0),
        intervals=Intervals.unknown(linkage.reason),
        converged=True,
        iterations=iterations,
    )


def _estimate_by_strata(
    counted: CountedLog,
    impressions: Sequence[LaidOut],
    features: tuple[Feature, ...],
    rows: LearningRows,
    learned: Nuisances,
    options: EstimationOptions,
    engine: Engine,
    progress: Progress,
) -> tuple[Estimate, Floats]:
    """Conditional estimate within strata of scores, with exposure; and the moment estimate."""
    edges = StratumEdges.of(learned.scores, learned.places, rows.fold)
    scored: list[KeptFrame] = []
    with progress.stage("exposure", len(impressions)) as stage:
        for number, part in enumerate(impressions):
            folder = None if part.rows.in_memory else engine.scratch
            chunks = part.chunks(engine.memory)
            frames = [_scored(chunk, _single_precision(chunk, features), learned, edges) for chunk in chunks]
            stage.advance()
            scored.append(keep(pl.concat(frames), folder, f"exposure-{number:05d}"))
    statistics = counted.statistics
    parts = (_scored_rows(kept.load()) for kept in scored)
    counts = reduce(add, (ExposureCounts.of(part, edges.n_strata, statistics.n_cells) for part in parts))
    fitted = fit_exposure(counts, statistics, options)
    loaded = (kept.load() for kept in scored)
    sums = (fitted.cluster_sums(_scored_rows(part), part[CLUSTER].to_numpy()) for part in loaded)
    estimate = features_estimate(fitted, sums, _cluster(options))
    moment = learned.theta / learned.theta[estimate.linkage.reference_of]
    return estimate, np.where(np.isfinite(estimate.propensity), moment, np.nan)


def _cluster(options: EstimationOptions) -> Cluster:
    """Clusters of standard errors."""
    return options.cluster or FeaturesMethod.clusters[0]


def _in_double(values: Singles) -> RowsBy:
    """Rows of features in double precision, as trees compare them, converted on access."""
    return RowsBy(len(values), lambda some: values[some].astype(np.float64))


def _scored(rows: pl.DataFrame, values: Singles, learned: Nuisances, edges: StratumEdges) -> pl.DataFrame:
    """Add stratum and exposure to rows."""
    fold = fold_numbers(rows[DRAW].to_numpy())
    scores, places = _by_fold(learned.relevance, values, fold), _by_fold(learned.place, values, fold)
    return rows.select(CLUSTER, CELL, CLICK, OWN_WEIGHT).with_columns(
        pl.Series(_STRATUM, edges.stratum(scores, places, fold).astype(np.int32)), pl.Series(_EXPOSURE, sigmoid(scores))
    )


def _by_fold(forests: Iterable[Forest], values: Singles, fold: Integers) -> Floats:
    """Cross-fitted scores: each row by the forest that was not trained on its fold."""
    scores = np.zeros(len(fold))
    for number, forest in enumerate(forests):
        rows = np.flatnonzero(fold == number)
        if len(rows):
            scores[rows] = forest.scores(_in_double(values[rows]), threads=1)
    return scores


def _scored_rows(rows: pl.DataFrame) -> ScoredRows:
    return ScoredRows(
        stratum=rows[_STRATUM].to_numpy().astype(np.int64),
        cell=rows[CELL].to_numpy(),
        exposure=rows[_EXPOSURE].to_numpy(),
        click=rows[CLICK].to_numpy(),
        weight=rows[OWN_WEIGHT].to_numpy(),
    )
