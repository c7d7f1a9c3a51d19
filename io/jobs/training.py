"""Training files, from a log or statistics and a fitted model."""

from contextlib import closing
from dataclasses import dataclass

from posbias.core.choices import Grouping
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import StatisticsError, plural
from posbias.core.training.layout import LayoutOfCounts, LayoutOfPages
from posbias.core.training.weights import ClickWeights, RowWeights
from posbias.io.counting.count import CountedLog
from posbias.io.engines.engine import Engine
from posbias.io.fits import verdicts
from posbias.io.jobs import tables
from posbias.io.jobs.fit import Data, Fitted, WeightRequest
from posbias.io.jobs.tables import Result
from posbias.io.training.feature_parts import FeaturesRequest, bring_features
from posbias.io.training.format import TrainingFiles, TrainingFormat, write_as_laid_out, write_training_sets
from posbias.io.training.laid_out import PageLayout, RowBuffer, lay_out_pages, lay_out_pairs, together


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


def write_training_files(
    data: Data, plan: StatisticsPlan, fitted: Fitted, request: TrainingRequest, engine: Engine, result: Result
) -> None:
    """Write training files from a log, or from statistics, that has been read or counted by a plan.

    Raises:
        IdentifiabilityError: clicks have no propensity, and the request says to stop then.
        SchemaError: a split has nothing to learn from.
        StatisticsError: the layout needs the pages, and there are only statistics.
    """
    layout, features = request.layout, request.features
    read = data.read if isinstance(data, CountedLog) else data
    weighed = fitted.weigh(data, plan, request.weights, engine, result.progress)
    result.content["weights_from"] = weighed.section
    result.reasons += weighed.reasons
    if isinstance(data, CountedLog) and isinstance(layout, LayoutOfCounts):
        in_memory = data.in_memory
    else:
        in_memory = read is not None and read.buckets.in_memory
    passes_on = engine.in_this_process and not (features.tables or features.columns)
    buffer = RowBuffer(None if in_memory else engine.scratch, request.validation, request.validation_by, passes_on)
    n_documents = 0
    if isinstance(layout, LayoutOfCounts):
        pairs, terms, rows_of, n_documents = weighed.documents(layout)
        laid_out = lay_out_pairs(pairs, terms, rows_of, engine, buffer, result.progress)
    elif weighed.pages is not None:
        page_layout = PageLayout(layout, request.grouping, weighed.weigh)
        laid_out = lay_out_pages(weighed.pages, page_layout, buffer, result.progress)
    else:
        raise StatisticsError(f"--layout {layout.name}: it needs the logs, not only statistics. Give the logs.")
    _report(weighed.weights, result)
    files = TrainingFiles(layout, request.grouping, request.form, request.search_index)
    if passes_on:
        with closing(laid_out):  # where writing fails, nothing more is laid out
            sizes = write_as_laid_out(laid_out, buffer.splits, files, engine, result.folder)
        n_rows = sum(size["rows"] for size in sizes.values())
    else:
        kept = together(laid_out, buffer)
        n_rows = sum(part.n_rows for parts in kept.values() for part in parts)
        rows = bring_features(kept, features, layout, read, engine, result.progress)
        sizes = write_training_sets(rows, files, engine, result.folder, result.progress)
        if rows.features:
            result.content["features"] = rows.report
            result.facts.append(tables.features_line(rows.report))
        result.reasons += rows.reasons
    result.content |= {"grouped_by": request.grouping, "training_sets": sizes}
    result.facts.append(tables.training_sets_line(sizes))
    if isinstance(layout, LayoutOfCounts) and layout.one_row_each:
        result.content["documents_left_out"] = left_out = n_documents - n_rows
        if isinstance(weighed.weights, ClickWeights):
            result.reasons += verdicts.left_out_reasons(left_out)


def _report(weights: ClickWeights | RowWeights, result: Result) -> None:
    """Say what weighting does to the log."""
    summary = weights.summary
    result.content |= {"weights": summary, "weights_by_position": weights.by_position.to_dicts()}
    result.facts.append(tables.weights_line(summary))
    result.reasons += verdicts.weight_reasons(summary)
    if not result.headline:  # of a weighing alone: a fit has its own
        result.headline = f"{plural(summary.clicks_weighted, 'clicks')} are weighted for position"
