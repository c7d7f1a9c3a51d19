"""Weights of clicks by propensities, and training files: from a log or statistics and a fitted model."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import LARGEST_ERROR, Grouping, Source
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import StatisticsError, plural
from posbias.core.fit.propensities import ChosenPropensities, ThetaEstimate, choose_propensities
from posbias.core.training.layout import LayoutOfCounts, LayoutOfPages, RowsOfPairs, weighted_pages
from posbias.core.training.weights import CELL_NUMBER, WeightOptions, WeightSummary
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.engines.engine import Engine, Parts, ReadLog
from posbias.io.fits.verdicts import context_reasons, pareto_clause, weight_reasons
from posbias.io.jobs import tables
from posbias.io.jobs.tables import Result
from posbias.io.progress import Progress
from posbias.io.results.conclusions import Reason, reason
from posbias.io.training import laid_out
from posbias.io.training.feature_parts import FeaturesRequest, bring_features
from posbias.io.training.format import TrainingFormat, write_training_sets

Data = CountedLog | ReadLog
"""Counts or pages: a log that was counted, or statistics; or a log that was read with its pages."""


@dataclass(frozen=True)
class WeightRequest:
    """How clicks are weighed."""

    options: WeightOptions
    source: Source = "smooth"  # which propensities weights are made from
    stop: bool = False  # whether clicks without a propensity are an error
    features: tuple[str, ...] = ()  # columns of the log that weighed pages keep
    across_pages: bool = False  # whether documents of several pages are compared, by labels or in one ranked group


@dataclass(frozen=True)
class Weighed:
    """A log whose clicks have weights, for layouts of pages and for layouts that add up by document."""

    summary: WeightSummary
    by_position: pl.DataFrame  # see `row_weights`
    pages: Parts | None  # None of statistics
    weigh: Callable[[pl.DataFrame], pl.DataFrame]  # whole pages; see `weighted_pages`
    documents: Callable[[LayoutOfCounts], tuple[list[PairsOfPart], Floats, RowsOfPairs, int]]
    """The documents, what makes rows of them (see `lay_out_pairs`), and how many there are."""

    section: dict[str, Any]  # what the manifest says of what weights are made from
    reasons: list[Reason] = field(default_factory=list[Reason])


Weigh = Callable[[Data, WeightRequest, Engine, Progress], Weighed]
"""Give every click of a log its weight by a fitted model; with `stop`, clicks without a propensity are an error."""


def weigh_by_cell(
    theta: ThetaEstimate, data: Data, request: WeightRequest, engine: Engine, progress: Progress
) -> Weighed:
    """Weigh a log by the cells that its rows are in; see `Weigh`."""
    del progress
    plan, chosen = data.plan, choose_propensities(theta.propensities, request.source)
    if isinstance(data, CountedLog):
        counted, read, weighted = data, data.read, plan.weighted or data.decay is not None
        counts = counted.statistics.counts_by_cell()
    else:
        counted, read, weighted = None, data, plan.weighted
        counts = laid_out.counts_by_cell(data, plan)
    counts = laid_out.with_squared_clicks(counts, read, plan) if weighted else counts
    weights = laid_out.weights_for(counts, chosen.table, request.options, theta)
    if plan.cell:
        numbered = chosen.table.with_row_index(CELL_NUMBER, 1)
        number = laid_out.propensities_of_cells(weights.cells, numbered, CELL_NUMBER).fill_null(0).cast(pl.Int32)
        weights = replace(weights, number=number)
    laid_out.check_unidentified(weights.summary, stop=request.stop)

    def documents(layout: LayoutOfCounts) -> tuple[list[PairsOfPart], Floats, RowsOfPairs, int]:
        if counted is None:
            raise TypeError("documents are counted")
        weighed_by = replace(theta, propensities=chosen.table)
        sums = laid_out.sums_of_signatures(counted, weights, request.options, weighed_by)
        number = laid_out.count_documents(counted, engine) if layout.one_row_per_document else 0
        return [*counted.parts], *layout.by_document(sums), number

    weigh = partial(weighted_pages, plan=plan, weights=weights, features=request.features)
    pages, section = None if read is None else read.buckets, weights_from(request.source, chosen)
    reasons = reasons_of_curve(chosen)
    reasons += reasons_of_contexts(data, plan, counts, chosen.table, engine, across=request.across_pages)
    return Weighed(weights.summary, weights.by_position, pages, weigh, documents, section, reasons)


def reasons_of_contexts(
    data: Data, plan: StatisticsPlan, counts: pl.DataFrame, table: pl.DataFrame, engine: Engine, *, across: bool
) -> list[Reason]:
    """What it does that each of several contexts has a first position of its own; see `scales_of_contexts`.

    Args:
        data: the log, or its counts.
        plan: of its cells.
        counts: the cell columns, sorted, and the `impressions` of each cell.
        table: the propensities by which clicks are weighed.
        engine: where the parts are.
        across: whether documents of several pages are compared.
    """
    contexts = counts.select(plan.context).unique(maintain_order=True) if plan.context else pl.DataFrame()
    if contexts.height <= 1:
        return []
    weighted = plan.weighted or (isinstance(data, CountedLog) and data.decay is not None)
    scales = laid_out.scales_of_contexts(data, plan, counts, table, engine) if across and not weighted else None
    return context_reasons(contexts, scales, across=across)


def weights_from(source: Source, chosen: ChosenPropensities) -> dict[str, Any]:
    """Which propensities weights are made from, for the manifest."""
    return {"propensity": source, "largest_std_error": LARGEST_ERROR, "smooth_at": chosen.smooth}


def reasons_of_curve(chosen: ChosenPropensities) -> list[Reason]:
    """Where weights are not made from the fitted propensities, and why; nothing where all are."""
    if not chosen.smooth:
        return []
    figures = {"smooth": len(chosen.smooth), "positions": chosen.known, "largest_std_error": LARGEST_ERROR}
    return [reason("weights-from-a-curve", figures)]


@dataclass(frozen=True)
class TrainingRequest:
    """Which training files are to be written."""

    layout: LayoutOfPages | LayoutOfCounts
    grouping: Grouping
    form: TrainingFormat
    search_index: str | None
    weights: WeightRequest
    features: FeaturesRequest
    validation: float  # the share that is held out
    validation_by: Grouping

    @property
    def sessions_for(self) -> str | None:
        """The option for which pages must be kept together while a log is read, if there is one."""
        return f"--layout {self.layout.name}" if self.layout.from_pages else None


def write_training_files(data: Data, weigh: Weigh, request: TrainingRequest, engine: Engine, result: Result) -> None:
    """Write training files from a log, or from statistics, that has been read or counted.

    Raises:
        IdentifiabilityError: clicks have no propensity, and the request says to stop then.
        SchemaError: a split has nothing to learn from.
        StatisticsError: the layout needs the pages, and there are only statistics.
    """
    layout, features, n_documents, without_features = request.layout, request.features, 0, 0
    read = data.read if isinstance(data, CountedLog) else data
    weighed = weigh(data, request.weights, engine, result.progress)
    result.content["weights_from"] = weighed.section
    result.reasons += weighed.reasons
    in_memory = read is not None and read.buckets.in_memory
    if isinstance(data, CountedLog) and isinstance(layout, LayoutOfCounts):
        in_memory = data.in_memory
    passes_on = engine.in_this_process and not (features.tables or features.columns)
    buffer = laid_out.RowBuffer(
        None if in_memory else engine.scratch, request.validation, request.validation_by, passes_on
    )
    if isinstance(layout, LayoutOfCounts):
        pairs, terms, rows_of, n_documents = weighed.documents(layout)
        rows_of_parts = laid_out.lay_out_pairs(pairs, terms, rows_of, engine, buffer, result.progress)
    elif weighed.pages is not None:
        rows_of = partial(laid_out.weigh_and_lay_out, layout=layout, grouping=request.grouping, weigh=weighed.weigh)
        rows_of_parts = laid_out.lay_out_pages(weighed.pages, rows_of, request.grouping, buffer, result.progress)
    else:
        raise StatisticsError(f"--layout {layout.name}: it needs the logs, not only statistics. Give the logs.")
    summary = weighed.summary
    result.content |= {"weights": summary, "weights_by_position": weighed.by_position.to_dicts()}
    size, clicks, clipped = summary.effective_sample_size, summary.clicks_weighted, summary.clicks_clipped
    worth = f", effective sample size {size:,.0f}" if size is not None else ""
    also = (f"; {clipped:,.0f} clipped" if clipped else "") + pareto_clause(summary.pareto_k, summary.pareto_k_at_most)
    result.facts.append(f"weights: {plural(clicks, 'clicks')} weighted{worth}{also}")
    result.reasons += weight_reasons(summary)
    if not result.headline:  # of a weighing alone: a fit has its own
        result.headline = f"{plural(clicks, 'clicks')} are weighted for position"
    about = laid_out.TrainingSet(layout, layout.ids(request.grouping), (), request.search_index)
    write = partial(
        write_training_sets, splits=buffer.splits, form=request.form, memory=engine.memory, folder=result.folder
    )
    if passes_on:
        with closing(rows_of_parts):  # where writing fails, nothing more is laid out
            sizes = write(rows_of_parts, about=about)
    else:
        rows = bring_features(laid_out.together(rows_of_parts, buffer), features, layout, read, engine, result.progress)
        without_features, about = rows.left_out, replace(about, features=rows.features)
        with result.progress.stage("writing", sum(map(len, rows.parts.values()))) as stage:
            sizes = write([rows.parts], about=about, each=engine.each, on_part=stage.advance, left_out=without_features)
        if rows.features:
            result.content["features"] = rows.report
            result.facts.append(tables.features_line(rows.report))
        result.reasons += rows.reasons
    result.content |= {"grouped_by": request.grouping, "training_sets": sizes}
    of_splits = [f"{split}: {', '.join(plural(n, what) for what, n in size.items())}" for split, size in sizes.items()]
    result.facts.append("; ".join(of_splits))
    if isinstance(layout, LayoutOfCounts) and layout.one_row_per_document:
        n_rows = sum(size["rows"] for size in sizes.values()) + without_features
        result.content["documents_left_out"] = left_out = n_documents - n_rows
        if isinstance(data, CountedLog) and left_out:
            result.reasons.append(reason("documents-without-judgment", {"documents": left_out}))
