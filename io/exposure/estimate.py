"""Estimates from features: learnt from a sample of pages, then made from all rows, part by part."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from pathlib import Path

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.choices import Cluster
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import SchemaError
from posbias.core.estimators import Estimate, EstimationOptions
from posbias.core.estimators.estimate import linkage_of_clicks
from posbias.core.estimators.features import FeaturesMethod
from posbias.core.estimators.regression_em import RegressionEMMethod
from posbias.core.exposure.cross_fitting import draws_of, fold_of, in_sample
from posbias.core.exposure.estimate import FittedExposure, features_estimate, fit_exposure
from posbias.core.exposure.nuisances import LearningRows, Nuisances, learn_nuisances, tree_options
from posbias.core.exposure.regression_em import ITERATIONS, regression_em
from posbias.core.exposure.strata import ExposureCounts, ScoredRows, StratumEdges
from posbias.core.fit.from_rows import FromRows
from posbias.core.learners.boosting import BinnedRows, bin_rows
from posbias.core.learners.forest import Forest
from posbias.core.learners.links import sigmoid
from posbias.core.schema import CLICK, DOC, QUERY, SESSION, WEIGHT
from posbias.core.standard_errors.intervals import Intervals
from posbias.core.standard_errors.leave_one_out import ClusterSums
from posbias.core.training.layouts import GROUP, get_layout
from posbias.io.counting.count import CountedLog
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.features.of_parts import FeaturedRows, FeaturesOfPart, RowsRequest, WantedFeatures, bring_features
from posbias.io.features.rows import chunks, held, rows_per_chunk
from posbias.io.layouts.parts import LaidOut, keep_rows
from posbias.io.layouts.training_set import Feature
from posbias.io.progress import Progress, Stage
from posbias.io.temporary.kept import KeptFrame, keep

DRAW, CELL, CLUSTER, OWN_WEIGHT = "posbias_draw", "posbias_cell", "posbias_cluster", "posbias_weight"

_MOST_ROWS_AT_ONCE = 1 << 21
_OTHER_SEED = 2  # so that pieces of a bucket are no buckets
_SHARE_OF_FEATURES = 4  # of the memory: those of a part, if they fit, are held as long as it is read


@dataclass(frozen=True)
class Impressions:
    """The rows of a log.

    Attributes:
        parts: them, by page, and where their features are. A part holds whole clusters.
        features: the features, in their order.
        report: what the manifest says of them.
        warnings: what a reader must know.
        memory: target for the memory of the process, in bytes.
    """

    parts: tuple[tuple[LaidOut, FeaturesOfPart], ...]
    features: tuple[Feature, ...]
    report: dict[str, object]
    warnings: tuple[str, ...]
    memory: int

    @property
    def n_pages(self) -> int:
        """Number of pages."""
        return sum(part.n_groups for part, _ in self.parts)

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(part.n_rows for part, _ in self.parts)

    @property
    def names(self) -> list[str]:
        """The names of the features."""
        return [feature.name for feature in self.features]

    @property
    def categorical(self) -> list[int]:
        """Which features are numbers of categories."""
        return [number for number, feature in enumerate(self.features) if feature.categories is not None]

    def chunks(
        self, part: tuple[LaidOut, FeaturesOfPart], wanted: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows
    ) -> Iterator[tuple[pl.DataFrame, "Matrix"]]:
        """The rows of a part, and their features, so many at once as fit.

        Args:
            part: one of the parts.
            wanted: picks rows before features are brought to them.
        """
        laid_out, features = part
        own = {name.meta.output_name() for name in features.own}
        rows = laid_out.rows
        others = [name for name in rows.scan().collect_schema().names() if name not in own]
        tables = tuple(held(table, self.memory // _SHARE_OF_FEATURES) for table in features.tables)
        in_reach = FeaturesOfPart(features.own, tables)
        for chunk in chunks(rows, rows_per_chunk(len(self.features), self.memory)):
            some = wanted(chunk)
            if some.height:
                found = in_reach.bring(some, others)
                yield found.select(others), Matrix(_as_numbers(found, self.features))


@dataclass(frozen=True)
class Matrix:
    """Features as single-precision numbers, which trees compare as double.

    Attributes:
        values: shape (n, F); nan where a value is missing.
    """

    values: np.ndarray[tuple[int, int], np.dtype[np.float32]]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.values)

    def __getitem__(self, wanted: slice | Integers, /) -> Floats:
        """Some rows in double precision."""
        return self.values[wanted].astype(np.float64)


def _as_numbers(rows: pl.DataFrame, features: tuple[Feature, ...]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Texts as their place among the categories, booleans as 0 and 1, what is missing as nan."""
    read = (
        pl.col(feature.name)
        if feature.categories is None
        else pl.col(feature.name).cast(pl.Enum(feature.categories), strict=False).to_physical()
        for feature in features
    )
    return rows.select(read).cast(pl.Float32).fill_null(np.nan).to_numpy()


def read_impressions(
    counted: CountedLog, wanted: WantedFeatures, by: Cluster, seed: int, engine: Engine, progress: Progress
) -> Impressions:
    """Lay out the rows of a log, and bring their features to them.

    Args:
        counted: the log.
        wanted: which features.
        by: what a part must hold whole: pages (`session`) or queries.
        seed: of folds and samples.
        engine: where the rows are.
        progress: is told.

    Raises:
        LogFormatError: a table of features cannot be read.
        SchemaError: a feature is none that a model can learn from, or rows have none.
    """
    read = _read_of(counted)
    folder = None if read.buckets.in_memory else engine.scratch
    work = partial(_lay_out, layout=_Layout(counted.plan, counted.statistics.cells, wanted.columns, by, seed, folder))
    laid_out: list[LaidOut] = []
    with progress.stage("laying out rows", read.buckets.number) as stage:
        for of_bucket in read.buckets.map(work):
            stage.advance()
            laid_out += of_bucket
    layout = get_layout("session")  # rows are impressions there too
    found = bring_features({"training": laid_out}, wanted, layout, read, engine, progress)
    return _impressions(found, engine.memory)


def _impressions(found: FeaturedRows, memory: int) -> Impressions:
    return Impressions(tuple(found.parts["training"]), found.features, found.report, found.warnings, memory)


def _read_of(counted: CountedLog) -> ReadLog:
    if counted.read is None:
        raise SchemaError("features of impressions need the log, and there are only statistics. Name the logs.")
    return counted.read


@dataclass(frozen=True)
class _Layout:
    """How rows are laid out."""

    plan: StatisticsPlan
    cells: pl.DataFrame
    columns: tuple[str, ...]
    by: Cluster
    seed: int
    folder: Path | None

    def rows(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """Rows by query and page: number of the page, ids, draw, cell, click, weight, cluster, columns of features."""
        shown = self.plan.with_cells(nw.from_native(impressions.lazy())).to_native().collect()
        cells, keys = self.cells.with_row_index(CELL), list(self.plan.cell_columns)
        ordered = shown.join(cells, on=keys, how="inner", nulls_equal=True).sort(QUERY, SESSION, CELL, DOC)
        sessions = ordered.select(pl.col(SESSION).unique(maintain_order=True)).to_series()
        draws = pl.DataFrame({SESSION: sessions, DRAW: draws_of(sessions, self.seed)})
        cluster = SESSION if self.by == "session" else QUERY
        weight = pl.col(WEIGHT).cast(pl.Float64) if self.plan.weighted else pl.lit(1.0)
        return ordered.join(draws, on=SESSION, how="left", maintain_order="left").select(
            pl.struct(QUERY, SESSION).rle_id().cast(pl.Int64).alias(GROUP),
            pl.struct(QUERY, cluster).rle_id().cast(pl.Int64).alias(CLUSTER)
            if cluster != QUERY
            else pl.col(QUERY).rle_id().cast(pl.Int64).alias(CLUSTER),
            *(QUERY, DOC, DRAW),
            pl.col(CELL).cast(pl.Int64),
            pl.col(CLICK).cast(pl.Float64),
            weight.alias(OWN_WEIGHT),
            *self.columns,
        )


def _lay_out(number: int, impressions: pl.LazyFrame, layout: _Layout) -> list[LaidOut]:
    """The rows of a bucket; of one that a frequent query makes large, in pieces of whole clusters."""
    n_pieces = max(1, -(-impressions.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE))
    key = pl.col(SESSION if layout.by == "session" else QUERY).hash(_OTHER_SEED) % n_pieces
    found: list[LaidOut | None] = []
    for piece in range(n_pieces):
        some = (impressions.filter(key == piece) if n_pieces > 1 else impressions).collect(engine="streaming")
        found.append(keep_rows(layout.folder, f"impressions-{number:05d}-{piece:05d}", layout.rows(some), None))
    return [part for part in found if part is not None]


_BYTES_PER_VALUE = 8  # of the sample: as read, and binned, once for each fold to learn and once to follow
_SHARE = 3  # of the memory, for the sample
_STRATUM, _EXPOSURE = "posbias_stratum", "posbias_exposure"


@dataclass(frozen=True)
class FoundInRows:
    """The estimate, and what is said of how it was made.

    Attributes:
        found: the estimate.
        features: what the manifest says of the features.
        warnings: what a reader must know.
    """

    found: FromRows
    features: dict[str, object]
    warnings: tuple[str, ...]


def estimate_from_rows(
    counted: CountedLog, request: RowsRequest, options: EstimationOptions, engine: Engine, progress: Progress
) -> FoundInRows:
    """Estimate theta from the rows of a log and their features.

    Raises:
        LogFormatError: a table of features cannot be read.
        SchemaError: a feature is none that trees can learn from, or rows have none.
        IdentifiabilityError: nothing can be compared.
        MissingExtraError: LightGBM is not installed.
        UsageError: there is no such reference cell.
    """
    by: Cluster = options.cluster or FeaturesMethod.clusters[0]
    impressions = read_impressions(counted, request.wanted, by, options.seed, engine, progress)
    _check_score(impressions, request.score)
    with progress.stage("sampling pages", len(impressions.parts)) as stage:
        sample = _sample(impressions, counted, request.sample_pages, stage)
    work = _Work(counted, impressions, options, by, engine)
    if request.method == RegressionEMMethod.name:
        estimate, moment = work.regression_em(sample, progress), None
    else:
        estimate, moment = work.features(sample, progress)
    found = FromRows(estimate, moment, sample.n_pages, impressions.n_pages, request.score)
    return FoundInRows(found, impressions.report, impressions.warnings)


def _check_score(impressions: Impressions, score: str | None) -> None:
    if score is not None and any(feature.name == score and feature.categories for feature in impressions.features):
        raise SchemaError(f"--ranker-score {score}: the column holds text. Name the number that the ranker orders by.")


@dataclass(frozen=True)
class _Sample:
    """The rows of some pages.

    Attributes:
        rows: where they were shown, and which were clicked.
        features: of them.
        n_pages: how many pages there are.
    """

    rows: LearningRows
    features: BinnedRows
    n_pages: int


def _sample(impressions: Impressions, counted: CountedLog, most_pages: int, stage: Stage) -> _Sample:
    """The rows of at most so many pages, fewer where they would not fit into memory."""
    width = len(impressions.features) * _BYTES_PER_VALUE
    fitting = impressions.memory // _SHARE / max(width * impressions.n_rows, 1)
    share = min(1.0, most_pages / max(impressions.n_pages, 1), fitting)
    frames: list[pl.DataFrame] = []
    matrices: list[Matrix] = []
    for part in impressions.parts:
        for rows, matrix in impressions.chunks(part, partial(_sampled, share=share)):
            frames.append(rows.select(DRAW, CELL, CLICK, OWN_WEIGHT))
            matrices.append(matrix)
        stage.advance()
    if not frames:
        raise SchemaError("--sample-pages: no page is in the sample. Ask for more pages.")
    rows, statistics = pl.concat(frames), counted.statistics
    learning = LearningRows(
        cell=rows[CELL].to_numpy(),
        click=rows[CLICK].to_numpy(),
        weight=rows[OWN_WEIGHT].to_numpy(),
        fold=fold_of(rows[DRAW].to_numpy()),
        position=statistics.position_of_cell,
        context=statistics.context_of_cell,
    )
    values = Matrix(np.concatenate([matrix.values for matrix in matrices]))
    matrices.clear()
    _check_informative(values)
    names, categorical = impressions.names, impressions.categorical
    return _Sample(
        learning, bin_rows(values, names, categorical, tree_options(values.values.size)), rows[DRAW].n_unique()
    )


def _check_informative(matrix: Matrix) -> None:
    """Trees need a feature that differs between rows.

    Raises:
        SchemaError: there is none.
    """
    first = matrix.values[:1]
    if not ((matrix.values != first) & ~(np.isnan(matrix.values) & np.isnan(first))).any():
        raise SchemaError(
            f"the features say nothing: each has one value in all of {len(matrix):,} rows. Name others (--features, "
            "--feature), or more pages (--sample-pages)."
        )


def _sampled(rows: pl.DataFrame, share: float) -> pl.DataFrame:
    return rows if share >= 1 else rows.filter(pl.Series(in_sample(rows[DRAW].to_numpy(), share)))


@dataclass(frozen=True)
class _Work:
    """What both methods need."""

    counted: CountedLog
    impressions: Impressions
    options: EstimationOptions
    by: Cluster
    engine: Engine

    def regression_em(self, sample: _Sample, progress: Progress) -> Estimate:
        """The published estimate, from the sampled pages."""
        statistics, options = self.counted.statistics, self.options
        linkage = linkage_of_clicks(statistics, options)
        iterations = options.max_iterations or ITERATIONS
        with progress.stage("regression EM") as stage:
            theta = regression_em(sample.features, sample.rows, options.seed, iterations, stage.say)
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

    def features(self, sample: _Sample, progress: Progress) -> tuple[Estimate, Floats]:
        """The conditional estimate on strata with exposure, and the moment estimate beside it."""
        statistics = self.counted.statistics
        with progress.stage("growing trees"):
            learned = learn_nuisances(sample.features, sample.rows)
        edges = StratumEdges.of(learned.scores, learned.places, sample.rows.fold)
        with progress.stage("exposure", len(self.impressions.parts)) as stage:
            scored = [self._scored(number, learned, edges, stage) for number in range(len(self.impressions.parts))]
        n_strata, n_cells = edges.n_strata, statistics.n_cells
        counts = reduce(add, (ExposureCounts.of(_rows_of(kept), n_strata, n_cells) for kept in scored))
        fitted = fit_exposure(counts, statistics, self.options)
        estimate = features_estimate(fitted, _sums(fitted, scored), self.by)
        moment = learned.theta / learned.theta[estimate.linkage.reference_of]
        return estimate, np.where(np.isfinite(estimate.propensity), moment, np.nan)

    def _scored(self, number: int, learned: Nuisances, edges: StratumEdges, stage: Stage) -> KeptFrame:
        """The rows of a part with stratum and exposure, kept where the rows are."""
        part = self.impressions.parts[number]
        folder = None if part[0].rows.in_memory else self.engine.scratch
        frames = [_scored(rows, matrix, learned, edges) for rows, matrix in self.impressions.chunks(part)]
        stage.advance()
        return keep(pl.concat(frames), folder, f"exposure-{number:05d}")


def _scored(rows: pl.DataFrame, matrix: Matrix, learned: Nuisances, edges: StratumEdges) -> pl.DataFrame:
    fold = fold_of(rows[DRAW].to_numpy())
    scores, places = _by_fold(learned.relevance, matrix, fold), _by_fold(learned.place, matrix, fold)
    return rows.select(CLUSTER, CELL, CLICK, OWN_WEIGHT).with_columns(
        pl.Series(_STRATUM, edges.stratum(scores, places, fold).astype(np.int32)),
        pl.Series(_EXPOSURE, sigmoid(scores)),
    )


def _by_fold(forests: Iterable[Forest], matrix: Matrix, fold: Integers) -> Floats:
    """The scores of rows, each by the trees that have not seen its fold."""
    found = np.zeros(len(fold))
    for one, forest in enumerate(forests):
        rows = np.flatnonzero(fold == one)
        if len(rows):
            found[rows] = forest.scores(Matrix(matrix.values[rows]), threads=1)
    return found


def _rows_of(kept: KeptFrame) -> ScoredRows:
    return _as_scored(kept.load())


def _as_scored(rows: pl.DataFrame) -> ScoredRows:
    return ScoredRows(
        stratum=rows[_STRATUM].to_numpy().astype(np.int64),
        cell=rows[CELL].to_numpy(),
        exposure=rows[_EXPOSURE].to_numpy(),
        click=rows[CLICK].to_numpy(),
        weight=rows[OWN_WEIGHT].to_numpy(),
    )


def _sums(fitted: FittedExposure, scored: Iterable[KeptFrame]) -> Iterator[ClusterSums]:
    for kept in scored:
        rows = kept.load()
        yield fitted.sums_of(_as_scored(rows), rows[CLUSTER].to_numpy())
