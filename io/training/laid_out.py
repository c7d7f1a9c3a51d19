"""Input of trainer formats: the rows of a layout, part by part, and what all of them have in common.

Layouts part by part: what of a training set is the same for every trainer, kept until all of it is known.

Only ids, labels and weights are kept, in memory where the log is, else on disk. Features come later; where there are
none, rows are written as they come, and nothing is kept.
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

    name: str  # the column
    categories: tuple[str, ...] | None = None  # its values in ascending order, where it holds text; None for numbers


def as_numbers(rows: pl.DataFrame, features: Sequence[Feature]) -> pl.DataFrame:
    """The features of rows: texts as their place among the categories, booleans as 0 and 1."""
    return rows.select(
        pl.col(feature.name)
        if feature.categories is None
        else pl.col(feature.name).cast(pl.Enum(feature.categories), strict=False).to_physical()
        for feature in features
    ).with_columns(cs.boolean().cast(pl.Int8))


def write_features(features: Sequence[Feature], folder: Path) -> None:
    """Write `features.json`: the features in order, each with its categories, whose places are numbers, or null."""
    described = [{"name": feature.name, "categories": feature.categories} for feature in features]
    text = escape_unseen_in_json(json.dumps(described, ensure_ascii=False, indent=1))
    (folder / "features.json").write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True)
class TrainingSet:
    """Properties that all rows share."""

    layout: Layout
    ids: tuple[str, ...]  # the columns that say what a row is: `query`, `doc`, and with pages `session` and `position`
    features: tuple[Feature, ...]  # the columns to learn from, the last ones of a row
    search_index: str | None = None  # the index of a search engine that the documents are in, if it was named


@dataclass(frozen=True)
class TrainingPart:
    """Some of the rows, in their order. Parts may be written in any order, by several processes."""

    number: int  # the part's number, from 0
    # chunks of rows: `group`, the ids, the label, `weight` and more by layout, then the features. A chunk holds whole
    # groups; groups stand in the order of their numbers.
    rows: Iterator[pl.DataFrame]
    # where these have weights: `group`, [`session`], `query`, `winner`, `loser`, `winner_row`, `loser_row`, `weight`,
    # by group
    preferences: pl.LazyFrame | None = None


Split = Literal["training", "validation"]
SPLITS: tuple[Split, ...] = ("training", "validation")

_MOST_ROWS_AT_ONCE = 1 << 21  # of pages: they and their copies take about 500 MB
_OTHER_SEED = 1  # so that pieces of a bucket are no buckets


_MOST_ROWS = 1 << 20
_FEWEST_ROWS = 1 << 10
_BYTES_PER_ROW = 200  # ids, label, weight
_BYTES_PER_VALUE, _COPIES = 8, 3  # as read, as joined, as a format turns it
_SHARE = 8  # of the memory: the rest is for the part's features, and for the process itself
_SAMPLE = 1_000  # rows, to tell how wide they are
_SHARE_OF_MEMORY = 4  # features of a part, if they fit, are held as long as it is worked on


@dataclass(frozen=True)
class LaidOut:
    """Some rows of a layout, whole groups, numbered within them."""

    rows: KeptFrame
    preferences: KeptFrame | None  # among them, where a preference has a weight
    n_rows: int  # number of rows
    n_groups: int  # number of groups
    n_preferences: int = 0  # number of preferences; 0 in other layouts
    own: tuple[pl.Expr, ...] = ()  # features that stand in the rows, as they are read there
    tables: tuple[pl.LazyFrame, ...] = ()  # features to join, each key once

    def chunks(
        self, memory: int, choose: Callable[[pl.DataFrame], pl.DataFrame] = lambda rows: rows
    ) -> Iterator[pl.DataFrame]:
        """The rows in whole groups, with their features as the last columns, so many at once as fit.

        Args:
            memory: of the process, in bytes; tables that take no more than a share of it are held meanwhile.
            choose: picks rows before features are brought to them.
        """
        own = {column.meta.output_name() for column in self.own}
        ids = [name for name in self.rows.scan().collect_schema().names() if name not in own]
        joined = [name for table in self.tables for name in table.collect_schema().names() if name not in PAIR]
        tables = list[pl.LazyFrame]()
        for table in self.tables:
            sample = table.head(_SAMPLE).collect()
            n_rows = table.select(pl.len()).collect(engine="streaming").item()
            fits = n_rows * sample.estimated_size() <= memory // _SHARE_OF_MEMORY * max(sample.height, 1)
            tables.append(table.collect(engine="streaming").lazy() if fits else table)
        for chunk in chunks(self.rows, rows_per_chunk(len(own) + len(joined), memory)):
            if (rows := choose(chunk)).height:
                for table in tables:
                    rows = with_features(rows, table)
                yield rows.select(*ids, *self.own, *joined)


def rows_per_chunk(n_features: int, memory: int) -> int:
    """How many rows are worked on at once, by a process that may take so many bytes."""
    width = _BYTES_PER_ROW + n_features * _BYTES_PER_VALUE * _COPIES
    return max(min(memory // _SHARE // width, _MOST_ROWS), _FEWEST_ROWS)


def chunks(rows: KeptFrame, size: int) -> Iterator[pl.DataFrame]:
    """Rows in their order, in frames of whole groups.

    Args:
        rows: the rows of a part, by `group`.
        size: the most rows of a chunk; a group that is larger is a chunk of its own.
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
    """Rows with their features as the last columns, in the same order; null where there are none.

    Args:
        rows: some rows of a part.
        features: the features of that part: each key once. Only those of these rows are held in memory.
    """
    keys = keys_of(features)
    needed = features.join(rows.lazy().select(keys).unique(), on=keys, how="semi").collect(engine="streaming")
    return rows.join(needed, on=keys, how="left", maintain_order="left")


def keys_of(features: pl.LazyFrame) -> list[str]:
    """The key of a row of features: `query` and `doc`, or `doc`."""
    names = features.collect_schema().names()
    return [key for key in PAIR if key in names]


LaidOutSplits = dict[Split, list[LaidOut]]


@dataclass(frozen=True)
class RowBuffer:
    """Where laid-out rows are kept, and how they are split."""

    folder: Path | None  # on disk; None keeps them in memory
    validation: float = 0.0  # the share of queries or sessions that are set apart for validation
    by: Grouping = "query"  # which of the two
    # whether rows are written as soon as they are laid out, so that memory holds those of a few parts
    passes_on: bool = False

    @property
    def splits(self) -> tuple[Split, ...]:
        """The requested splits."""
        return SPLITS if self.validation else SPLITS[:1]

    def split(self, frame: pl.DataFrame) -> dict[Split, pl.DataFrame]:
        """The rows of each split."""
        if not self.validation:
            return {"training": frame}
        apart = is_in_validation(frame[QUERY if self.by == "query" else SESSION], self.validation)
        return {"training": frame.filter(~apart), "validation": frame.filter(apart)}


def keep_rows(
    folder: Path | None, name: str, rows: pl.DataFrame, preferences: pl.DataFrame | None, *, quickly: bool = False
) -> list[LaidOut]:
    """Keep rows of whole groups, numbered from 0, in memory or in a directory; nothing where there are no rows."""
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
    """Lay out counts by pair, part by part, as they are requested.

    Args:
        pairs: the documents of each part.
        by_signature: what `rows_of` needs to know of each signature, shape (J, S).
        rows_of: the layout.
        engine: where the parts are.
        buffer: how and where the rows are kept.
        progress: where stages are reported.
    """
    items = ((part, by_signature.take(part.signature, axis=0)) for part in pairs)
    work = partial(_lay_out_pairs, rows_of=rows_of, buffer=buffer)
    with progress.stage("weighting", len(pairs)) as stage:
        yield from _advancing(engine.each(items, work), stage)


def count_documents(counted: CountedLog, engine: Engine) -> int:
    """How many documents a log has, each with its query."""
    if counted.plan.context:
        return sum(engine.each(counted.pairs, _count_documents))
    return counted.statistics.n_pairs


def _count_documents(pairs: KeptFrame) -> int:
    return pairs.load().select(pl.struct(QUERY, DOC).n_unique()).item()


def _lay_out_pairs(item: tuple[PairsOfPart, Floats], rows_of: RowsOfPairs, buffer: RowBuffer) -> LaidOutSplits:
    (part, by_signature), folder = item, None if buffer.passes_on else buffer.folder
    return {
        split: keep_rows(folder, f"{split}-{part.number:05d}", rows_of(pairs, by_signature), None, quickly=True)
        for split, pairs in buffer.split(part.kept.load()).items()
    }


RowsOfPages = Callable[[pl.DataFrame], tuple[pl.DataFrame, pl.DataFrame | None]]
"""Makes the rows, and the preferences where the layout has them, of whole pages. It travels: no lambda."""


def weigh_and_lay_out(
    impressions: pl.DataFrame, layout: LayoutOfPages, grouping: Grouping, weigh: Callable[[pl.DataFrame], pl.DataFrame]
) -> tuple[pl.DataFrame, pl.DataFrame | None]:
    """The rows of whole pages, of which `weigh` makes weighted ones, as from `weighted_pages`, and preferences."""
    return layout.rows(weigh(impressions), grouping)


def lay_out_pages(
    pages: Parts, rows_of: RowsOfPages, by: Grouping, buffer: RowBuffer, progress: Progress
) -> Generator[LaidOutSplits]:
    """Lay out pages, bucket by bucket, as they are requested.

    A bucket that a frequent query makes large is laid out in pieces, where that is possible.
    """
    with progress.stage("weighting", pages.number) as stage:
        work = partial(_lay_out_bucket, rows_of=rows_of, key=SESSION if by == "session" else QUERY, buffer=buffer)
        yield from _advancing(pages.map(work), stage)


def _lay_out_bucket(
    number: int, impressions: pl.LazyFrame, rows_of: RowsOfPages, key: str, buffer: RowBuffer
) -> LaidOutSplits:
    laid_out = LaidOutSplits({split: [] for split in buffer.splits})
    pieces = in_pieces(impressions, key)
    # what is not all rows of the part waits for the others on disk
    folder = None if buffer.passes_on and len(pieces) == 1 else buffer.folder
    for piece, shown in enumerate(map(collected, pieces)):
        for split, part in buffer.split(shown).items():
            laid_out[split] += keep_rows(folder, f"{split}-{number:05d}-{piece:05d}", *rows_of(part))
    return laid_out


def in_pieces(impressions: pl.LazyFrame, key: str) -> list[pl.LazyFrame]:
    """Rows by the hash of a key: in several pieces where a frequent query makes their bucket large."""
    n_pieces = max(1, -(-impressions.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE))
    piece_of = pl.col(key).hash(_OTHER_SEED) % n_pieces
    return [impressions.filter(piece_of == piece) for piece in range(n_pieces)] if n_pieces > 1 else [impressions]


def _advancing(parts: Iterator[LaidOutSplits], stage: Stage) -> Iterator[LaidOutSplits]:
    for part in parts:
        stage.advance()
        yield part


def together(parts: Iterable[LaidOutSplits], buffer: RowBuffer) -> LaidOutSplits:
    """The rows of all parts, by split."""
    of_parts = list(parts)
    return {split: [rows for part in of_parts for rows in part.get(split, ())] for split in buffer.splits}


SQUARED_CLICKS = "squared_clicks"
"""The column with the sum of the squared weights that the clicks of a cell carry; null where it is not known."""


def weights_for(
    counts: pl.DataFrame, propensities: pl.DataFrame, options: WeightOptions, fitted: ThetaEstimate | None = None
) -> ClickWeights:
    """Click weights of the cells of a log, from a propensity table.

    Args:
        counts: the cell columns, the `impressions` and `clicks` of each cell, and its `squared_clicks` where rows
            carry weights.
        propensities: the table; cells that it lacks have no propensity.
        options: clipping and normalisation.
        fitted: theta with its errors, where replicate weights are requested.

    Raises:
        StatisticsError: they are, and no errors are known.
    """
    cells = counts.drop(IMPRESSIONS, CLICKS, SQUARED_CLICKS, strict=False)
    theta = propensities_of_cells(cells, propensities, PROPENSITY)
    impressions, clicks = (counts[name].cast(pl.Float64).to_numpy() for name in (IMPRESSIONS, CLICKS))
    squared = counts[SQUARED_CLICKS].fill_null(np.nan).to_numpy() if SQUARED_CLICKS in counts.columns else None
    known = theta.fill_null(np.nan).to_numpy()
    drawn = None  # other propensities of the cells that the log allows as well, shape (N, K)
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
    """The covariance of the log propensities that weights are made from, shape (K, K); None where it is not known.

    Args:
        cells: the cell columns, K rows.
        propensities: the table to make weights from, with its standard errors, a row for each of the fitted cells.
        fitted: theta as it was fitted.
    """
    if fitted.covariance is None:
        return None
    keys = fitted.propensities.select(cells.columns)
    examination = cell_covariance(keys, fitted.covariance)
    chosen = propensities[STD_ERROR].cast(pl.Float64).fill_null(np.nan).to_numpy()
    table = fitted.propensities.select(*cells.columns, PROPENSITY, STD_ERROR)
    covariance = covariance_table(keys, relative_covariance(table, examination, chosen, fitted.context))
    return cell_covariance(cells, covariance)


def examination_of(cells: pl.DataFrame, propensities: pl.DataFrame) -> Floats:
    """Theta of cells as a probability, nan where the table has none, shape (K,).

    Raises:
        SchemaError: a context has another type than in the table.
    """
    return propensities_of_cells(cells, propensities, EXAMINATION).cast(pl.Float64).fill_null(np.nan).to_numpy()


def _posterior(statistics: SufficientStatistics, theta: ThetaEstimate) -> Posterior:
    """The posterior of the attractiveness of each signature under a fitted theta."""
    examination = examination_of(statistics.cells, theta.propensities)
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
    """What layouts of counts need of each signature.

    Args:
        counted: the log, counted.
        weights: of its cells.
        options: which labels.
        theta: the propensities, and the prior of attractiveness for labels that are expected ones.
    """
    posterior, table = partial(_posterior, counted.statistics, theta), counted.statistics.pair_signatures
    return DocumentSums.of_signatures(table, weights, options, posterior, whole=not counted.plan.weighted)


def propensities_of_cells(cells: pl.DataFrame, propensities: pl.DataFrame, column: str) -> pl.Series:
    """A column of a propensity table for the given cells, null for those that the table lacks.

    Raises:
        SchemaError: a context has another type than in the table.
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
    """The cell columns, `impressions` and `clicks` of a log, sorted by cell."""
    parts = read.buckets.map(partial(_count, plan=plan, squared=False))
    return add_up_weights(pl.concat(parts), plan.cell_columns).sort(plan.cell_order)


def _count(_: int, impressions: pl.LazyFrame, plan: StatisticsPlan, *, squared: bool) -> pl.DataFrame:
    return count_cells(impressions.with_columns(pl.col(WEIGHT) ** 2) if squared else impressions, plan)


def scales_of_contexts(
    data: CountedLog | ReadLog, plan: StatisticsPlan, counts: pl.DataFrame, table: pl.DataFrame, engine: Engine
) -> ScalesOfContexts | None:
    """How far the contexts of a log are apart, and what that does to labels; None where it has one context.

    Args:
        data: the log, or its counts; rows carry no weights.
        plan: of its cells.
        counts: the cell columns, sorted, and the `impressions` of each cell, K rows.
        table: the propensities by which clicks are weighed.
        engine: where the parts are.
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
        work = partial(_pairs_in_contexts, numbers=numbers)
    else:
        columns = pl.Series(CONTEXT, context), pl.Series(EXPOSURE, theta), pl.Series(ON_PAGE, on_page)
        cells = cells.with_columns(*columns)
        folder = None if data.buckets.in_memory else engine.scratch
        items = list(data.statistics(plan).map(partial(_rows_in_contexts, cells=cells, folder=folder)))
        work = KeptFrame.load

    def of_parts(judge: Callable[[pl.DataFrame], Floats]) -> list[Floats]:
        return list(engine.each(items, partial(_judged, work=work, judge=judge)))

    matched = np.sum(of_parts(partial(match_contexts, largest=largest, n_contexts=number)), axis=0)
    scale = context_scales(matched, largest)
    unknown, seen = np.isnan(scale), impressions * np.nan_to_num(theta)
    of_theta = np.sqrt(np.bincount(context, (seen * error) ** 2)) / np.maximum(np.bincount(context, seen), 1e-9)
    both = np.where(unknown, 1.0, scale), np.where(unknown, 0.5, 1.0)
    known, apart = (of_parts(partial(unevenness, scale=of)) if (of != 1).any() else [] for of in both)
    return judge_scales(scale, matched, np.hypot(of_theta, of_theta[largest]), known, apart)


def _pairs_in_contexts(item: tuple[PairsOfPart, Floats], numbers: pl.DataFrame) -> pl.DataFrame:
    """The counts of the documents of a part, by context."""
    part, sums = item
    pairs = part.kept.load()
    of_pairs = pl.DataFrame(sums[pairs[SIGNATURE].to_numpy()], [CLICKS, EXPOSURE, ON_PAGE])
    context = [name for name in numbers.columns if name != CONTEXT]
    shown = pairs.select(QUERY, DOC, *context, IMPRESSIONS)
    return shown.hstack(of_pairs).join(numbers, on=context, nulls_equal=True, maintain_order="left")


def _rows_in_contexts(number: int, statistics: pl.LazyFrame, cells: pl.DataFrame, folder: Path | None) -> KeptFrame:
    """The same of statistics by cell, kept."""
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


def _judged(item: Any, work: Callable[[Any], pl.DataFrame], judge: Callable[[pl.DataFrame], Floats]) -> Floats:  # noqa: ANN401
    return judge(work(item))


def check_unidentified(summary: WeightSummary, *, stop: bool) -> None:
    """Stop where clicks would be left out and the user does not want that.

    Raises:
        IdentifiabilityError: some clicks lie in cells without a propensity.
    """
    lost = summary.clicks_without_propensity
    if stop and lost:
        raise IdentifiabilityError(
            f"{lost:,} clicks lie in cells without a propensity (--unidentified error). Leave them out with "
            "--unidentified drop, or see `reason` in the propensity table."
        )


def with_squared_clicks(counts: pl.DataFrame, read: ReadLog | None, plan: StatisticsPlan) -> pl.DataFrame:
    """The counts of the cells of a log whose rows carry weights, with the sum of the squares of these weights.

    Args:
        counts: the cell columns, `impressions` and `clicks`.
        read: the log; None where there are only statistics, which hold sums of weights.
        plan: what was counted.
    """
    if read is None:
        return counts.with_columns(pl.lit(None, pl.Float64).alias(SQUARED_CLICKS))
    of_parts = pl.concat(read.buckets.map(partial(_count, plan=plan, squared=True)))
    sums = of_parts.group_by(plan.cell_columns, maintain_order=True).agg(pl.col(CLICKS).sum())
    squared = sums.rename({CLICKS: SQUARED_CLICKS})
    return counts.join(squared, on=plan.cell_columns, how="left", maintain_order="left", nulls_equal=True)
