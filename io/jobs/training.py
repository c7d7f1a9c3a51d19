"""Click weights by cell, and training files from weighted logs or statistics."""

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
"""Counts of a log or of statistics; or a log read with its pages."""


@dataclass(frozen=True)
class WeightRequest:
    """Parameters of click weights."""

    options: WeightOptions
    source: Source = "smooth"  # propensities to weigh by
    stop: bool = False  # raise if clicks lack a propensity
    features: tuple[str, ...] = ()  # log columns to retain in weighed pages
    across_pages: bool = False  # whether training compares documents of several pages


@dataclass(frozen=True)
class Weighed:
    """A weighed log, for layouts of pages and layouts of counts."""

    summary: WeightSummary
    by_position: pl.DataFrame  # as from `row_weights`
    pages: Parts | None  # None for statistics
    weigh: Callable[[pl.DataFrame], pl.DataFrame]  # weigh whole pages; see `weighted_pages`
    documents: Callable[[LayoutOfCounts], tuple[list[PairsOfPart], Floats, RowsOfPairs, int]]
    """Return pairs, terms and row function as `lay_out_pairs` takes them, and the number of documents."""

    section: dict[str, Any]  # of the manifest, on the source of weights
    reasons: list[Reason] = field(default_factory=list[Reason])


Weigh = Callable[[Data, WeightRequest, Engine, Progress], Weighed]
"""Weigh the clicks of a log by a fitted model.

With `stop`, raise IdentifiabilityError if clicks lack a propensity.
"""


def weigh_by_cell(
    theta: ThetaEstimate, data: Data, request: WeightRequest, engine: Engine, progress: Progress
) -> Weighed:
    """Weigh clicks by the propensity of their cell; see `Weigh`."""
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
    reasons = smooth_curve_reasons(chosen)
    reasons += context_scale_reasons(data, plan, counts, chosen.table, engine, across=request.across_pages)
    return Weighed(weights.summary, weights.by_position, pages, weigh, documents, section, reasons)


def context_scale_reasons(
    data: Data, plan: StatisticsPlan, counts: pl.DataFrame, table: pl.DataFrame, engine: Engine, *, across: bool
) -> list[Reason]:
    """Reasons on propensities that are relative to each context's own reference; see `scales_of_contexts`.

    Args:
        data: the log, or its counts.
        plan: plan of the cells.
        counts: the cell columns, sorted, and `impressions`.
        table: propensities that clicks are weighed by.
        engine: runs over parts.
        across: whether training compares documents of several pages.
    """
    contexts = counts.select(plan.context).unique(maintain_order=True) if plan.context else pl.DataFrame()
    if contexts.height <= 1:
        return []
    weighted = plan.weighted or (isinstance(data, CountedLog) and data.decay is not None)
    scales = laid_out.scales_of_contexts(data, plan, counts, table, engine) if across and not weighted else None
    return context_reasons(contexts, scales, across=across)


def weights_from(source: Source, chosen: ChosenPropensities) -> dict[str, Any]:
    """Section of the manifest on the propensities behind weights."""
    return {"propensity": source, "largest_std_error": LARGEST_ERROR, "smooth_at": chosen.smooth}


def smooth_curve_reasons(chosen: ChosenPropensities) -> list[Reason]:
    """Note on positions weighed by the smooth curve instead of the fitted propensity; empty if there are none."""
    if not chosen.smooth:
        return []
    figures = {"smooth": len(chosen.smooth), "positions": chosen.known, "largest_std_error": LARGEST_ERROR}
    return [reason("weights-from-a-curve", figures)]


@dataclass(frozen=True)
class TrainingRequest:
    """Request to write training files."""

    layout: LayoutOfPages | LayoutOfCounts
    grouping: Grouping
    form: TrainingFormat
    search_index: str | None
    weights: WeightRequest
    features: FeaturesRequest
    validation: float  # held-out share
    validation_by: Grouping

    @property
    def sessions_for(self) -> str | None:
        """The option that requires whole pages, if any."""
        return f"--layout {self.layout.name}" if self.layout.from_pages else None


def write_training_files(data: Data, weigh: Weigh, request: TrainingRequest, engine: Engine, result: Result) -> None:
    """Weigh a log or statistics, lay out its rows, and write the training sets.

    Raises:
        IdentifiabilityError: clicks lack a propensity, and `request.weights.stop` is set.
        SchemaError: a split has nothing to learn from.
        StatisticsError: the layout needs pages, and the inputs are statistics.
    """
    layout, features, n_documents, without_features = request.layout, request.features, 0, 0
    read = data.read if isinstance(data, CountedLog) else data
    weighed = weigh(data, request.weights, engine, result.progress)
    result.content["weights_from"] = weighed.section
    result.reasons += weighed.reasons
    in_memory = read is not None and read.buckets.in_memory
    if isinstance(data, CountedLog) and isinstance(layout, LayoutOfCounts):
        in_memory = data.in_memory
    streaming = engine.in_this_process and not (features.tables or features.columns)
    buffer = laid_out.RowBuffer(
        None if in_memory else engine.scratch, request.validation, request.validation_by, streaming
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
    if not result.headline:  # `weight`; `run` has the headline of its fit
        result.headline = f"{plural(clicks, 'clicks')} are weighted for position"
    about = laid_out.TrainingSet(layout, layout.ids(request.grouping), (), request.search_index)
    write = partial(
        write_training_sets, splits=buffer.splits, form=request.form, memory=engine.memory, folder=result.folder
    )
    if streaming:
        with closing(rows_of_parts):  # stop laying out if writing fails
            sizes = write(rows_of_parts, about=about)
    else:
        rows = bring_features(
            laid_out.merge_splits(rows_of_parts, buffer), features, layout, read, engine, result.progress
        )
        without_features, about = rows.left_out, replace(about, features=rows.features)
        with result.progress.stage("writing", sum(map(len, rows.parts.values()))) as stage:
            sizes = write([rows.parts], about=about, each=engine.each, on_part=stage.advance, left_out=without_features)
        if rows.features:
            result.content["features"] = rows.report
            result.facts.append(tables.features_line(rows.report))
        result.reasons += rows.reasons
    result.content |= {"grouped_by": request.grouping, "training_sets": sizes}
    by_split = [f"{split}: {', '.join(plural(n, what) for what, n in size.items())}" for split, size in sizes.items()]
    result.facts.append("; ".join(by_split))
    if isinstance(layout, LayoutOfCounts) and layout.one_row_per_document:
        n_rows = sum(size["rows"] for size in sizes.values()) + without_features
        result.content["documents_left_out"] = left_out = n_documents - n_rows
        if isinstance(data, CountedLog) and left_out:
            result.reasons.append(reason("documents-without-judgment", {"documents": left_out}))
