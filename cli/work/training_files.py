"""From options and propensities to training files: what `run` and `weight` do last."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl

from posbias.cli.options.training import TrainingOptions
from posbias.cli.report import summary
from posbias.cli.report.result import WITH_DOUBTS, Result
from posbias.core.choices import Grouping, Source
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import StatisticsError, UsageError
from posbias.core.fit.fit import WANTED_CLICK_SHARE
from posbias.core.fit.fitted_theta import FittedTheta
from posbias.core.fit.propensities import ChosenPropensities, choose_propensities
from posbias.core.schema import RESERVED
from posbias.core.training.layouts import (
    Layout,
    LayoutOfCounts,
    LayoutOfPages,
    choose_grouping,
    get_layout,
    layouts_of_pages,
)
from posbias.core.training.layouts.layout import weighted_pages
from posbias.core.training.row_weights import RowWeights
from posbias.core.training.weights import ClickWeights, WeightOptions, check_min_propensity
from posbias.io.counting.count import CountedLog
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.features.of_parts import WantedFeatures, bring_features
from posbias.io.fits import verdicts
from posbias.io.formats import TrainingFormat, check_format, get_format
from posbias.io.formats.training_sets import TrainingFiles, write_as_laid_out, write_training_sets
from posbias.io.layouts.pair_weights import (
    by_signature,
    check_unidentified,
    weights_for,
    weights_of_log,
    with_squared_clicks,
)
from posbias.io.layouts.parts import (
    LaidOutSplits,
    PageLayout,
    RowBuffer,
    count_documents,
    lay_out_pages,
    lay_out_pairs,
    together,
)


@dataclass(frozen=True)
class Request:
    """What training files are asked for.

    Attributes:
        layout: in which rows.
        grouping: what stands together.
        form: in which files.
        options: with which weights and labels.
        asked: as it was said.
    """

    layout: LayoutOfPages | LayoutOfCounts
    grouping: Grouping
    form: TrainingFormat
    options: WeightOptions
    asked: TrainingOptions

    @property
    def needs_sessions(self) -> str | None:
        """The option for which pages must be kept together while a log is read, if there is one."""
        return f"--layout {self.layout.name}" if self.layout.from_pages else None

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of features beside the log."""
        return tuple(self.asked.features or ())

    @property
    def log_features(self) -> tuple[str, ...]:
        """The features that stand in the log."""
        return tuple(self.asked.feature or ())

    @property
    def wanted_features(self) -> WantedFeatures:
        """All features, and what becomes of rows without."""
        return WantedFeatures(self.tables, self.log_features, self.asked.missing)

    def buffer(self, engine: Engine, *, in_memory: bool) -> RowBuffer:
        """Where laid-out rows are kept until their features are known; where there are none, they are not kept.

        Args:
            engine: where they are made.
            in_memory: whether the log is in memory.
        """
        passes_on = engine.in_this_process and not (self.tables or self.log_features)
        folder = None if in_memory else engine.scratch
        return RowBuffer(folder, self.asked.validation, self.asked.validation_by, passes_on)


def requested(training: TrainingOptions) -> Request:
    """Read the options, and find wrong ones before anything is read.

    Raises:
        UsageError: a value is out of range, or options do not go together.
    """
    layout = get_layout(training.layout)
    has_features = bool(training.features or training.feature)
    check_format(training.format, layout, has_features=has_features)
    if "search_index" in get_format(training.format).takes and not training.search_index:
        raise UsageError(
            f"--format {training.format}: a rating names the index that its document is in. Add --search-index NAME."
        )
    check_min_propensity(training.min_propensity)
    if not 0 <= training.validation < 1:
        raise UsageError(f"--validation {training.validation:g}: must be at least 0 and below 1, e.g. 0.1.")
    _check_possible(training, layout)
    options = WeightOptions(
        training.min_propensity,
        training.self_normalize,
        training.negatives,
        training.rate,
        training.grades,
        training.replicates if _has_click_weights(training, layout) else 0,
    )
    return Request(
        layout,
        choose_grouping(layout, training.group),
        get_format(training.format),
        options,
        training,
    )


def _has_click_weights(training: TrainingOptions, layout: Layout) -> bool:
    return layout.weighted is not None and not ("negatives" in layout.takes and training.negatives == "posterior")


def _check_possible(training: TrainingOptions, layout: Layout) -> None:
    """What an option asks for must be there, and a name have one meaning."""
    if training.validation_by == "session" and not layout.from_pages:
        raise UsageError(
            f"--validation-by session: --layout {layout.name} adds up all pages of a query. Hold out queries, or "
            f"choose another layout: {', '.join(layouts_of_pages())}."
        )
    for name in training.feature or ():
        if name in RESERVED:
            raise UsageError(f"--feature {name}: this name is reserved. Rename the column to use it as a feature.")


def write_from_counts(
    counted: CountedLog,
    engine: Engine,
    theta: FittedTheta,
    request: Request,
    result: Result,
) -> None:
    """Write training files from a log, or from statistics, that has been counted.

    Raises:
        StatisticsError: the layout needs the pages, and there are only statistics.
    """
    layout, propensities = request.layout, _chosen(theta.propensities, request, result)
    counts = counted.statistics.counts_by_cell()
    if counted.plan.weighted or counted.decay is not None:
        counts = with_squared_clicks(counts, counted.read, counted.plan)
    weights = _weights(counts, propensities, theta, request)
    if isinstance(layout, LayoutOfPages):
        if counted.read is None:
            raise StatisticsError(f"--layout {layout.name}: it needs the logs, not only statistics. Give the logs.")
        _write_pages(counted.read, counted.plan, weights, layout, request, engine, result)
        return
    weighed_by = replace(theta, propensities=propensities)
    terms, rows_of = by_signature(counted, layout, weights, request.options, weighed_by)
    buffer = request.buffer(engine, in_memory=counted.in_memory)
    laid_out = lay_out_pairs(counted, terms, rows_of, engine, buffer, result.progress)
    report_weights(weights, result)
    n_rows = write_laid_out(laid_out, buffer, counted.read, request, engine, result)
    if layout.one_row_each:
        left_out = count_documents(counted, engine) - n_rows
        result.content["documents_left_out"] = left_out
        result.warnings += verdicts.left_out_warnings(left_out)


def write_from_pages(
    read: ReadLog,
    plan: StatisticsPlan,
    engine: Engine,
    theta: FittedTheta,
    layout: LayoutOfPages,
    request: Request,
    result: Result,
) -> None:
    """Write training files in a layout of pages from a log that has been read, and not counted."""
    propensities = _chosen(theta.propensities, request, result)
    stop = request.asked.unidentified == "error"
    weights = weights_of_log(read, plan, propensities, request.options, theta, stop=stop)
    _write_pages(read, plan, weights, layout, request, engine, result)


def _write_pages(
    read: ReadLog,
    plan: StatisticsPlan,
    weights: ClickWeights,
    layout: LayoutOfPages,
    request: Request,
    engine: Engine,
    result: Result,
) -> None:
    in_rows = request.log_features if layout.shows_impressions else ()
    pages = PageLayout(layout, request.grouping, partial(weighted_pages, plan=plan, weights=weights, features=in_rows))
    buffer = request.buffer(engine, in_memory=read.buckets.in_memory)
    laid_out = lay_out_pages(read.buckets, pages, buffer, result.progress)
    report_weights(weights, result)
    write_laid_out(laid_out, buffer, read, request, engine, result)


def _chosen(propensities: pl.DataFrame, request: Request, result: Result) -> pl.DataFrame:
    """The propensities to weigh by; where they are not the fitted ones, the summary and the manifest say so."""
    chosen = choose_propensities(propensities, request.asked.propensity)
    result.content["weights_from"] = weights_from(request.asked.propensity, chosen)
    if chosen.smooth:
        result.printed.append(summary.smooth_weights_line(chosen))
    return chosen.table


def weights_from(asked: Source, chosen: ChosenPropensities) -> dict[str, Any]:
    """Which propensities weights are made from, for the manifest."""
    return {"propensity": asked, "largest_std_error": chosen.largest_error, "smooth_at": chosen.smooth}


def _weights(counts: pl.DataFrame, propensities: pl.DataFrame, theta: FittedTheta, request: Request) -> ClickWeights:
    weights = weights_for(counts, propensities, request.options, theta)
    check_unidentified(weights.summary, stop=request.asked.unidentified == "error")
    return weights


def write_laid_out(
    laid_out: Generator[LaidOutSplits],
    buffer: RowBuffer,
    read: ReadLog | None,
    request: Request,
    engine: Engine,
    result: Result,
) -> int:
    """Write laid-out rows, with their features if there are any; return how many rows were laid out."""
    files = TrainingFiles(request.layout, request.grouping, request.form, request.asked.search_index)
    if buffer.passes_on:
        with closing(laid_out):  # where writing fails, nothing more is laid out
            sizes = write_as_laid_out(laid_out, buffer.splits, files, engine, result.folder)
        n_rows = sum(size["rows"] for size in sizes.values())
    else:
        kept = together(laid_out, buffer)
        n_rows = sum(part.n_rows for parts in kept.values() for part in parts)
        rows = bring_features(kept, request.wanted_features, request.layout, read, engine, result.progress)
        sizes = write_training_sets(rows, files, engine, result.folder, result.progress)
        if rows.features:
            result.content["features"] = rows.report
            result.printed.append(summary.features_line(rows.report))
        result.warnings += rows.warnings
    result.content["grouped_by"] = request.grouping
    result.content["training_sets"] = sizes
    result.printed.append(summary.training_sets_line(sizes))
    return n_rows


def report_weights(weights: ClickWeights | RowWeights, result: Result) -> None:
    """Say what weighting does to the log."""
    result.content["weights"] = weights.summary
    result.content["weights_by_position"] = weights.by_position.to_dicts()
    weighted, lost = weights.summary.clicks_weighted, weights.summary.clicks_without_propensity
    if not weighted or lost > (1 - WANTED_CLICK_SHARE) * (weighted + lost):
        result.exit_code = WITH_DOUBTS
    result.printed.append(summary.weights_line(weights.summary))
    result.warnings += verdicts.weight_warnings(weights.summary)
