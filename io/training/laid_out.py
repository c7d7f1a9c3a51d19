"""Lay out training rows part by part, the same for all trainers, with the click weights of a log's cells.

Laid-out rows hold ids, labels and weights. They are stored in memory if the log is there, else on disk, until features
are joined; without features they are written at once and not stored.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
import polars.selectors as cs

from posbias.core.arrays.count_table import Floats
from posbias.core.attractiveness import estimate_prior, posterior_by_position, total_std_dev
from posbias.core.choices import Grouping
from posbias.core.counts.counting_plan import StatisticsPlan, add_up_weights, count_cells
from posbias.core.counts.sufficient_statistics import SIGNATURE, SufficientStatistics, context_numbers
from posbias.core.errors import IdentifiabilityError, SchemaError, StatisticsError, escape_unseen_in_json
from posbias.core.fit.propensities import (
    EXAMINATION,
    PROPENSITY,
    STD_ERROR,
    ThetaEstimate,
    cell_covariance,
    covariance_table,
)
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, PAIR, QUERY, SESSION, WEIGHT
from posbias.core.training.layout import GROUP, DocumentSums, Layout, LayoutOfPages, Posterior, RowsOfPairs
from posbias.core.training.scales import (
    CONTEXT,
    EXPOSURE,
    ON_PAGE,
    ScalesOfContexts,
    context_scales,
    counts_of_signatures,
    judge_scales,
    match_contexts,
    pairs_on_page,
    unevenness,
)
from posbias.core.training.weights import (
    ClickWeights,
    WeightOptions,
    WeightSummary,
    click_weights,
    draw_propensities,
    is_in_validation,
    relative_covariance,
)
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.engines.engine import Engine, Parts, ReadLog, collected
from posbias.io.places.temporary import KeptFrame, keep
from posbias.io.progress import Progress, Stage


@dataclass(frozen=True)
class Feature:
    """A column that a model learns from."""

    name: str
    categories: tuple[str, ...] | None = None  # texts in ascending order; None for numbers


def as_numbers(rows: pl.DataFrame, features: Sequence[Feature]) -> pl.DataFrame:
    """Return the features of rows as numbers: texts as their index in the categories, booleans as 0 and 1."""
    return rows.select(
        pl.col(feature.name)
        if feature.categories is None
        else pl.col(feature.name).cast(pl.Enum(feature.categories), strict=False).to_physical()
        for feature in features
    ).with_columns(cs.boolean().cast(pl.Int8))


def write_features(features: Sequence[Feature], folder: Path) -> None:
    """Write `features.json`: the features in order, each with its categories (a text's index is its code) or null."""
    described = [{"name": feature.name, "categories": feature.categories} for feature in features]
    text = escape_unseen_in_json(json.dumps(described, ensure_ascii=False, indent=1))
    (folder / "features.json").write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True)
class TrainingSet:
    """Properties that all rows share."""

    layout: Layout
    ids: tuple[str, ...]  # key columns: `query`, `doc`, and for pages `session` and `position`
    features: tuple[Feature, ...]  # the last columns of a row
    search_index: str | None = None  # the search engine's index of the documents, for formats that need it


@dataclass(frozen=True)
class TrainingPart:
    """Consecutive rows of a training set. Parts may be written in any order, by several processes."""

    number: int  # from 0
    # Chunks of whole groups, sorted by group: `group`, ids, label, `weight` and others by layout, then the features
    rows: Iterator[pl.DataFrame]
    # Sorted by group: `group`, [`session`], `query`, `winner`, `loser`, `winner_row`, `loser_row`, `weight`; None for
    # layouts without weighted preferences
    preferences: pl.LazyFrame | None = None


Split = Literal["training", "validation"]
SPLITS: tuple[Split, ...] = ("training", "validation")

_MOST_ROWS_AT_ONCE = 1 << 21  # impressions laid out together: they and their copies take about 500 MB
_SEED_OF_PIECES = 1  # not that of buckets, all of whose queries have one hash modulo their number

_MOST_ROWS, _FEWEST_ROWS = 1 << 20, 1 << 10  # of a chunk
_BYTES_PER_ROW = 200  # ids, label, weight
_BYTES_PER_VALUE, _COPIES = 8, 3  # a feature as read, as joined and as converted by a format
_SHARE_OF_CHUNK = 8  # a chunk takes at most an eighth of the memory
_SAMPLE = 1_000  # rows to measure the width of features
_SHARE_OF_FEATURES = 4  # features of a part are loaded if they take at most a quarter of the memory


@dataclass(frozen=True)
class LaidOut:
    """Rows of whole groups, numbered from 0."""

    rows: KeptFrame
    preferences: KeptFrame | None  # None for layouts without weighted preferences
    n_rows: int
    n_groups: int
    n_preferences: int = 0
    own: tuple[pl.Expr, ...] = ()  # expressions of the features that are columns of `rows`
    tables: tuple[pl.LazyFrame, ...] = ()  # features to join, with unique keys

    def chunks(
        self, memory: int, choose: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows
    ) -> Iterator[pl.DataFrame]:
        """Yield the rows in chunks of whole groups that fit into memory, with features as the last columns.

        Args:
            memory: of the process, in bytes; features that fit into a share of it are loaded once.
            choose: filter of rows, applied before features are joined.
        """
        own = {column.meta.output_name() for column in self.own}
        ids = [name for name in self.rows.scan().collect_schema().names() if name not in own]
        joined = [name for table in self.tables for name in table.collect_schema().names() if name not in PAIR]
        tables = list[pl.LazyFrame]()
        for table in self.tables:
            sample = table.head(_SAMPLE).collect()
            n_rows = table.select(pl.len()).collect(engine="streaming").item()
            fits = n_rows * sample.estimated_size() <= memory // _SHARE_OF_FEATURES * max(sample.height, 1)
            tables.append(table.collect(engine="streaming").lazy() if fits else table)
        for chunk in frames_of_groups(self.rows, rows_per_chunk(len(own) + len(joined), memory)):
            if (rows := choose(chunk)).height:
                for table in tables:
                    rows = with_features(rows, table)
                yield rows.select(*ids, *self.own, *joined)


def rows_per_chunk(n_features: int, memory: int) -> int:
    """Return the number of rows of a chunk, for a process of `memory` bytes."""
    width = _BYTES_PER_ROW + n_features * _BYTES_PER_VALUE * _COPIES
    return max(min(memory // _SHARE_OF_CHUNK // width, _MOST_ROWS), _FEWEST_ROWS)


def frames_of_groups(rows: KeptFrame, size: int) -> Iterator[pl.DataFrame]:
    """Yield rows in their order, in frames of whole groups.

    Args:
        rows: rows of a part, sorted by `group`.
        size: maximum number of rows of a chunk; a larger group is a chunk.
    """
    lengths = rows.scan().select(pl.col(GROUP).rle().struct.field("len")).collect().to_series()
    ends = np.cumsum(lengths.to_numpy(), dtype=np.int64)
    start, group = 0, 0
    while group < len(ends):
        following = max(int(np.searchsorted(ends, start + size, side="right")), group + 1)
        end = int(ends[following - 1])
        yield rows.slice(start, end - start)
        start, group = end, following


def with_features(rows: pl.DataFrame, features: pl.LazyFrame) -> pl.DataFrame:
    """Join features to rows as the last columns, null for rows without features; the order is unchanged.

    Args:
        rows: rows of a part.
        features: features of that part, with unique keys; only those of `rows` are loaded.
    """
    keys = keys_of(features)
    needed = features.join(rows.lazy().select(keys).unique(), on=keys, how="semi").collect(engine="streaming")
    return rows.join(needed, on=keys, how="left", maintain_order="left")


def keys_of(features: pl.LazyFrame) -> list[str]:
    """Return the key columns of features: `query` and `doc`, or `doc`."""
    names = features.collect_schema().names()
    return [key for key in PAIR if key in names]


LaidOutSplits = dict[Split, list[LaidOut]]


@dataclass(frozen=True)
class RowBuffer:
    """Where laid-out rows are stored, and how they are split."""

    folder: Path | None  # directory; None for memory
    validation: float = 0.0  # share of queries or sessions in the validation split
    by: Grouping = "query"  # whether queries or sessions are split
    streaming: bool = False  # whether rows are written as soon as they are laid out, and need not be stored

    @property
    def splits(self) -> tuple[Split, ...]:
        """The requested splits."""
        return SPLITS if self.validation else SPLITS[:1]

    def split(self, frame: pl.DataFrame) -> dict[Split, pl.DataFrame]:
        """Return the rows of each split."""
        if not self.validation:
            return {"training": frame}
        in_validation = is_in_validation(frame[QUERY if self.by == "query" else SESSION], self.validation)
        return {"training": frame.filter(~in_validation), "validation": frame.filter(in_validation)}


def keep_rows(
    folder: Path | None, name: str, rows: pl.DataFrame, preferences: pl.DataFrame | None, *, quickly: bool = False
) -> list[LaidOut]:
    """Store rows of whole groups, numbered from 0, in memory or in a directory; empty if there are no rows."""
    if not rows.height:
        return []
    size = rows.height, int(rows[GROUP][-1]) + 1, 0 if preferences is None else preferences.height
    kept = None if preferences is None else keep(preferences, folder, f"preferences-{name}")
    return [LaidOut(keep(rows, folder, f"rows-{name}", quickly=quickly), kept, *size)]


def lay_out_pairs(
    pairs: Sequence[PairsOfPart],
    by_signature: Floats,
    rows_of: RowsOfPairs,
    engine: Engine,
    buffer: RowBuffer,
    progress: Progress,
) -> Generator[LaidOutSplits]:
    """Lay out counts by pair, part by part, lazily.

    Args:
        pairs: pairs of each part.
        by_signature: the S arguments of `rows_of` for each signature, shape (J, S).
        rows_of: function of a layout, from pairs and `by_signature` to rows.
        engine: engine that holds the parts.
        buffer: where the rows are stored.
        progress: progress display.
    """
    items = ((part, by_signature.take(part.signature, axis=0)) for part in pairs)
    work = partial(_lay_out_part, rows_of=rows_of, buffer=buffer)
    with progress.stage("weighting", len(pairs)) as stage:
        yield from _with_progress(engine.each(items, work), stage)


def count_documents(counted: CountedLog, engine: Engine) -> int:
    """Return the number of (query, document) pairs of a log, over all contexts."""
    if counted.plan.context:
        return sum(engine.each(counted.pairs, _count_documents))
    return counted.statistics.n_pairs


def _count_documents(pairs: KeptFrame) -> int:
    return pairs.load().select(pl.struct(QUERY, DOC).n_unique()).item()


def _lay_out_part(item: tuple[PairsOfPart, Floats], rows_of: RowsOfPairs, buffer: RowBuffer) -> LaidOutSplits:
    (part, by_signature), folder = item, None if buffer.streaming else buffer.folder
    return {
        split: keep_rows(folder, f"{split}-{part.number:05d}", rows_of(pairs, by_signature), None, quickly=True)
        for split, pairs in buffer.split(part.kept.load()).items()
    }


RowsOfPages = Callable[[pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame | None]]
"""Picklable function from impressions of whole pages to rows, and preferences or None."""


def weigh_and_lay_out(
    impressions: pl.DataFrame, layout: LayoutOfPages, grouping: Grouping, weigh: Callable[[pl.DataFrame], pl.DataFrame]
) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """Return the rows and preferences of a layout for whole pages; `weigh` adds click weights (`weighted_pages`)."""
    return layout.rows(weigh(impressions), grouping)


def lay_out_pages(
    pages: Parts, rows_of: RowsOfPages, by: Grouping, buffer: RowBuffer, progress: Progress
) -> Generator[LaidOutSplits]:
    """Lay out pages, bucket by bucket, lazily; a large bucket in pieces of whole groups.

    Args:
        pages: impressions of whole pages.
        rows_of: function from impressions to rows.
        by: whether groups are queries or sessions.
        buffer: where the rows are stored.
        progress: progress display.
    """
    with progress.stage("weighting", pages.number) as stage:
        work = partial(_lay_out_bucket, rows_of=rows_of, key=SESSION if by == "session" else QUERY, buffer=buffer)
        yield from _with_progress(pages.map(work), stage)


def _lay_out_bucket(
    number: int, impressions: pl.LazyFrame, rows_of: RowsOfPages, key: str, buffer: RowBuffer
) -> LaidOutSplits:
    laid_out = LaidOutSplits({split: [] for split in buffer.splits})
    pieces = split_by_key(impressions, key)
    folder = None if buffer.streaming and len(pieces) == 1 else buffer.folder  # several pieces are stored on disk
    for piece, shown in enumerate(map(collected, pieces)):
        for split, part in buffer.split(shown).items():
            laid_out[split] += keep_rows(folder, f"{split}-{number:05d}-{piece:05d}", *rows_of(part))
    return laid_out


def split_by_key(impressions: pl.LazyFrame, key: str) -> list[pl.LazyFrame]:
    """Split a large bucket by the hash of a key into pieces that fit into memory; one piece if all rows fit."""
    n_pieces = max(1, -(-impressions.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE))
    piece_of = pl.col(key).hash(_SEED_OF_PIECES) % n_pieces
    return [impressions.filter(piece_of == piece) for piece in range(n_pieces)] if n_pieces > 1 else [impressions]


def _with_progress(parts: Iterator[LaidOutSplits], stage: Stage) -> Iterator[LaidOutSplits]:
    for part in parts:
        stage.advance()
        yield part


def merge_splits(parts: Iterable[LaidOutSplits], buffer: RowBuffer) -> LaidOutSplits:
    """Concatenate the rows of all parts, by split."""
    all_parts = list(parts)
    return {split: [rows for part in all_parts for rows in part.get(split, ())] for split in buffer.splits}


SQUARED_CLICKS = "squared_clicks"
"""Column: sum of the squared row weights of the clicks of a cell; null if it is unknown."""


def weights_for(
    counts: pl.DataFrame, propensities: pl.DataFrame, options: WeightOptions, fitted: ThetaEstimate | None = None
) -> ClickWeights:
    """Compute the click weights of the cells of a log from a propensity table.

    Args:
        counts: cell columns, `impressions` and `clicks`, and `squared_clicks` if rows have weights; K rows.
        propensities: the propensity table; cells that it lacks have no propensity.
        options: clipping, normalisation and number of replicates.
        fitted: theta with its covariance, for replicate weights.

    Raises:
        StatisticsError: replicate weights are requested, and the covariance of theta is unknown.
        SchemaError: a cell column has another type than in the table.
    """
    cells = counts.drop(IMPRESSIONS, CLICKS, SQUARED_CLICKS, strict=False)
    theta = propensities_of_cells(cells, propensities, PROPENSITY)
    impressions, clicks = (counts[name].cast(pl.Float64).to_numpy() for name in (IMPRESSIONS, CLICKS))
    squared = counts[SQUARED_CLICKS].fill_null(np.nan).to_numpy() if SQUARED_CLICKS in counts.columns else None
    known = theta.fill_null(np.nan).to_numpy()
    drawn = None  # propensities drawn from their joint distribution, shape (N, K)
    if options.replicates and fitted is not None:
        covariance = covariance_of_theta(cells, propensities, fitted)
        if covariance is None:
            raise StatisticsError(
                f"--layout-options replicates={options.replicates}: the errors of the propensities are not known "
                "together: they come with no theta_covariance.parquet. Estimate by a method with standard errors."
            )
        drawn = draw_propensities(known, covariance, options.replicates)
    return click_weights(cells, known, impressions, clicks, options, squared_clicks=squared, replicates=drawn)


def covariance_of_theta(cells: pl.DataFrame, propensities: pl.DataFrame, fitted: ThetaEstimate) -> Floats | None:
    """Return the covariance of the log propensities of cells, shape (K, K); None if it is unknown.

    Args:
        cells: cell columns, K rows.
        propensities: the table for the weights, with standard errors, one row for each fitted cell.
        fitted: the fitted theta.
    """
    if fitted.covariance is None:
        return None
    keys = fitted.propensities.select(cells.columns)
    examination = cell_covariance(keys, fitted.covariance)
    std_error = propensities[STD_ERROR].cast(pl.Float64).fill_null(np.nan).to_numpy()
    table = fitted.propensities.select(*cells.columns, PROPENSITY, STD_ERROR)
    covariance = covariance_table(keys, relative_covariance(table, examination, std_error, fitted.context))
    return cell_covariance(cells, covariance)


def examination_of_cells(cells: pl.DataFrame, propensities: pl.DataFrame) -> Floats:
    """Return theta of cells as a probability, shape (K,); NaN if the table has none.

    Raises:
        SchemaError: a cell column has another type than in the table.
    """
    return propensities_of_cells(cells, propensities, EXAMINATION).cast(pl.Float64).fill_null(np.nan).to_numpy()


def _posterior(statistics: SufficientStatistics, theta: ThetaEstimate) -> Posterior:
    """Return theta of cells, and mean and standard deviation of the attractiveness of each signature given theta."""
    examination = examination_of_cells(statistics.cells, theta.propensities)
    table, position = statistics.pair_signatures, statistics.position_of_cell
    prior = theta.prior or estimate_prior(table, examination, position)
    gamma, std_dev = posterior_by_position(table, examination, prior, position)
    if theta.covariance is None:
        return examination, gamma, np.full(len(gamma), np.nan)
    covariance = cell_covariance(statistics.cells, theta.covariance)
    return examination, gamma, total_std_dev(table, examination, covariance, gamma, std_dev)


def sums_of_signatures(
    counted: CountedLog, weights: ClickWeights, options: WeightOptions, theta: ThetaEstimate
) -> DocumentSums:
    """Return the sums over cells of each signature, for layouts of counts.

    Args:
        counted: the counted log.
        weights: click weights of its cells.
        options: kind of labels.
        theta: propensities, and the prior of attractiveness for expected labels.
    """
    posterior, table = partial(_posterior, counted.statistics, theta), counted.statistics.pair_signatures
    return DocumentSums.of_signatures(table, weights, options, posterior, whole=not counted.plan.weighted)


def propensities_of_cells(cells: pl.DataFrame, propensities: pl.DataFrame, column: str) -> pl.Series:
    """Return a column of a propensity table for the given cells, null for cells that the table lacks.

    Raises:
        SchemaError: a cell column has another type than in the table.
    """
    for name in cells.columns:
        ours, theirs = cells.schema[name], propensities.schema[name]
        if ours != theirs and not (ours.is_integer() and theirs.is_integer()):
            raise SchemaError(
                f"column {name!r} (--cell or --context) holds {ours} in this log and {theirs} in the fit, so that no "
                "value would meet its propensity. Write both with the same type."
            )
    known = propensities.select(*(pl.col(name).cast(cells.schema[name]) for name in cells.columns), column)
    return cells.join(known, on=cells.columns, how="left", maintain_order="left", nulls_equal=True)[column]


def counts_by_cell(read: ReadLog, plan: StatisticsPlan) -> pl.DataFrame:
    """Return the cell columns, `impressions` and `clicks` of a log, sorted by cell."""
    parts = read.buckets.map(partial(_count, plan=plan, squared=False))
    return add_up_weights(pl.concat(parts), plan.cell_columns).sort(plan.cell_order)


def _count(_: int, impressions: pl.LazyFrame, plan: StatisticsPlan, *, squared: bool) -> pl.DataFrame:
    return count_cells(impressions.with_columns(pl.col(WEIGHT) ** 2) if squared else impressions, plan)


def scales_of_contexts(
    data: CountedLog | ReadLog, plan: StatisticsPlan, counts: pl.DataFrame, table: pl.DataFrame, engine: Engine
) -> ScalesOfContexts | None:
    """Estimate how far the scales of contexts differ, and the effect on labels; None with one context.

    Args:
        data: the log, or its counts, without row weights.
        plan: keys of the counts.
        counts: cell columns, sorted, and `impressions`; K rows.
        table: propensity table for the click weights.
        engine: engine that holds the parts.
    """
    cells = counts.select(plan.cell_columns)
    theta, error = (
        propensities_of_cells(cells, table, column).fill_null(value).to_numpy()
        for column, value in ((PROPENSITY, np.nan), (STD_ERROR, 0.0))
    )
    context = context_numbers(counts, plan.context)
    impressions, number = counts[IMPRESSIONS].cast(pl.Float64).to_numpy(), int(context[-1]) + 1
    if number == 1:
        return None
    on_page, largest = pairs_on_page(impressions, context), int(np.bincount(context, impressions).argmax())
    if isinstance(data, CountedLog):
        sums = counts_of_signatures(data.statistics.pair_signatures, theta, on_page)
        numbers = counts.with_columns(pl.Series(CONTEXT, context)).select(*plan.context, CONTEXT).unique(CONTEXT)
        items = [(part, sums.take(part.signature, axis=0)) for part in data.parts]
        load = partial(_pairs_in_contexts, numbers=numbers)
    else:
        columns = pl.Series(CONTEXT, context), pl.Series(EXPOSURE, theta), pl.Series(ON_PAGE, on_page)
        cells = cells.with_columns(*columns)
        folder = None if data.buckets.in_memory else engine.scratch
        items = list(data.statistics(plan).map(partial(_rows_in_contexts, cells=cells, folder=folder)))
        load = KeptFrame.load

    def map_parts(function: Callable[[pl.DataFrame], Floats]) -> list[Floats]:
        return list(engine.each(items, partial(_load_and_apply, load=load, function=function)))

    matched = np.sum(map_parts(partial(match_contexts, largest=largest, n_contexts=number)), axis=0)
    scale = context_scales(matched, largest)
    unknown, seen = np.isnan(scale), impressions * np.nan_to_num(theta)
    theta_error = np.sqrt(np.bincount(context, (seen * error) ** 2)) / np.maximum(np.bincount(context, seen), 1e-9)
    known, apart = (
        map_parts(partial(unevenness, scale=assumed)) if (assumed != 1).any() else []
        for assumed in (np.where(unknown, 1.0, scale), np.where(unknown, 0.5, 1.0))
    )
    return judge_scales(scale, matched, np.hypot(theta_error, theta_error[largest]), known, apart)


def _pairs_in_contexts(item: tuple[PairsOfPart, Floats], numbers: pl.DataFrame) -> pl.DataFrame:
    """Return the counts of the pairs of a part, by context."""
    part, sums = item
    pairs = part.kept.load()
    sums_of_pairs = pl.DataFrame(sums[pairs[SIGNATURE].to_numpy()], [CLICKS, EXPOSURE, ON_PAGE])
    context = [name for name in numbers.columns if name != CONTEXT]
    shown = pairs.select(QUERY, DOC, *context, IMPRESSIONS)
    return shown.hstack(sums_of_pairs).join(numbers, on=context, nulls_equal=True, maintain_order="left")


def _rows_in_contexts(number: int, statistics: pl.LazyFrame, cells: pl.DataFrame, folder: Path | None) -> KeptFrame:
    """Store the counts of the pairs of a part, by context, from statistics by cell."""
    keys = [name for name in cells.columns if name not in (CONTEXT, EXPOSURE, ON_PAGE)]
    rows = statistics.join(cells.lazy(), on=keys, nulls_equal=True)
    known, n = pl.col(EXPOSURE).is_not_nan(), pl.col(IMPRESSIONS)
    counts = rows.group_by(QUERY, DOC, CONTEXT).agg(
        n.sum(),
        pl.col(CLICKS).filter(known).sum(),
        (pl.col(EXPOSURE) * n).filter(known).sum(),
        (pl.col(ON_PAGE) * n).sum(),
    )
    return keep(counts.sort(QUERY, DOC, CONTEXT).collect(), folder, f"contexts-{number:05d}")


def _load_and_apply(
    item: Any,  # noqa: ANN401
    load: Callable[[Any], pl.DataFrame],
    function: Callable[[pl.DataFrame], Floats],
) -> Floats:
    return function(load(item))


def check_unidentified(summary: WeightSummary, *, stop: bool) -> None:
    """Check that no click lies in a cell without a propensity (`--unidentified error`).

    Raises:
        IdentifiabilityError: with `stop`, if there are such clicks.
    """
    lost = summary.clicks_without_propensity
    if stop and lost:
        raise IdentifiabilityError(
            f"{lost:,} clicks lie in cells without a propensity (--unidentified error). Leave them out with "
            "--unidentified drop, or see `reason` in the propensity table."
        )


def with_squared_clicks(counts: pl.DataFrame, read: ReadLog | None, plan: StatisticsPlan) -> pl.DataFrame:
    """Add `squared_clicks` to the counts of the cells of a log with row weights.

    Args:
        counts: cell columns, `impressions` and `clicks`.
        read: the log; None for statistics, which hold sums of weights only: the squares are then unknown.
        plan: keys of the counts.
    """
    if read is None:
        return counts.with_columns(pl.lit(None, pl.Float64).alias(SQUARED_CLICKS))
    by_part = pl.concat(read.buckets.map(partial(_count, plan=plan, squared=True)))
    sums = by_part.group_by(plan.cell_columns, maintain_order=True).agg(pl.col(CLICKS).sum())
    squared = sums.rename({CLICKS: SQUARED_CLICKS})
    return counts.join(squared, on=plan.cell_columns, how="left", maintain_order="left", nulls_equal=True)
