"""From options and propensities to training files: what `run` and `weight` do last."""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posbias.cli.options.training import WeightingOptions
from posbias.cli.report import summary, verdicts
from posbias.cli.report.result import WITH_DOUBTS, Result
from posbias.core.attractiveness.prior import AttractivenessPrior
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.fit.fit import WANTED_CLICK_SHARE
from posbias.core.schema import CLICKS, IMPRESSIONS, RESERVED
from posbias.core.training.layouts import LAYOUTS, Grouping, Layout, choose_grouping
from posbias.core.training.weights import ClickWeights, WeightOptions
from posbias.io.counting.count import Gathered
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.features.of_parts import WantedFeatures, bring_features
from posbias.io.formats import TrainingFormat, check_format, get_format
from posbias.io.formats.training_sets import write_training_sets
from posbias.io.layouts import pair_weights as weights_of_log
from posbias.io.layouts.parts import LaidOutSplits, PageLayout, Spool, lay_out_pages, lay_out_pairs


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

    layout: Layout
    grouping: Grouping
    form: TrainingFormat
    options: WeightOptions
    asked: WeightingOptions

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

    def spool(self, scratch: Path | None) -> Spool:
        """Where laid-out rows are kept; None keeps them in memory."""
        return Spool(scratch, self.asked.validation, self.asked.validation_by)


def requested(weighting: WeightingOptions) -> Request:
    """Read the options, and find wrong ones before anything is read.

    Raises:
        UsageError: a value is out of range, or options do not go together.
    """
    layout = LAYOUTS[weighting.layout]
    has_features = bool(weighting.features or weighting.feature)
    check_format(weighting.format, layout.name, has_features=has_features)
    if not 0 < weighting.min_propensity <= 1:
        raise UsageError(f"--min-propensity {weighting.min_propensity:g}: must be above 0 and at most 1.")
    if not 0 <= weighting.validation < 1:
        raise UsageError(f"--validation {weighting.validation:g}: a share lies between 0 and 1, e.g. 0.1.")
    _check_possible(weighting, layout)
    options = WeightOptions(
        weighting.min_propensity, weighting.self_normalize, weighting.negatives, weighting.rate, weighting.grades
    )
    return Request(layout, choose_grouping(layout, weighting.group), get_format(weighting.format), options, weighting)


def _check_possible(weighting: WeightingOptions, layout: Layout) -> None:
    """What an option asks for must be there, and a name have one meaning."""
    if weighting.validation_by == "session" and not layout.from_pages:
        raise UsageError(
            f"--validation-by session: --layout {layout.name} adds up all pages of a query. Set queries apart, or "
            "choose --layout session, clicked-group or pairs."
        )
    for name in weighting.feature or ():
        if name in RESERVED:
            raise UsageError(
                f"--feature {name}: this name has a meaning of its own. Rename the column to learn from it."
            )


def weigh(
    gathered: Gathered,
    engine: Engine,
    propensities: pl.DataFrame,
    prior: AttractivenessPrior,
    request: Request,
    result: Result,
) -> None:
    """Write training files from a log, or from statistics, that has been counted."""
    if request.needs_sessions and gathered.read is not None:
        weigh_pages(gathered.read, gathered.plan, engine, propensities, request, result)
        return
    impressions, clicks = gathered.evidence.cell_totals()
    totals = pl.DataFrame({IMPRESSIONS: impressions, CLICKS: clicks})
    weights = _weights(gathered.evidence.cells, totals, propensities, request)
    terms, rows_of = weights_of_log.by_signature(
        gathered, request.layout, weights, request.options, propensities, prior
    )
    in_memory = all(isinstance(pairs, pl.DataFrame) for pairs in gathered.pairs)
    spool = request.spool(None if in_memory else engine.scratch)
    laid_out = lay_out_pairs(gathered, terms, rows_of, engine, spool, result.progress)
    _report(weights, result)
    _write(laid_out, gathered.read, request, engine, result)


def weigh_pages(
    read: ReadLog,
    plan: StatisticsPlan,
    engine: Engine,
    propensities: pl.DataFrame,
    request: Request,
    result: Result,
) -> None:
    """Write training files in a layout of pages from a log that has been read."""
    totals = weights_of_log.cell_totals(read, plan)
    weights = _weights(totals.select(plan.cell_columns), totals, propensities, request)
    in_rows = request.log_features if request.layout.name == "session" else ()
    layout = PageLayout(request.layout.name, request.grouping, plan, weights, in_rows)
    spool = request.spool(None if read.buckets.in_memory else engine.scratch)
    laid_out = lay_out_pages(read, layout, spool, result.progress)
    _report(weights, result)
    _write(laid_out, read, request, engine, result)


def _weights(cells: pl.DataFrame, totals: pl.DataFrame, propensities: pl.DataFrame, request: Request) -> ClickWeights:
    weights = weights_of_log.weights_for(cells, totals, propensities, request.options)
    weights_of_log.check_unidentified(weights, stop=request.asked.unidentified == "error")
    return weights


def _write(laid_out: LaidOutSplits, read: ReadLog | None, request: Request, engine: Engine, result: Result) -> None:
    rows = bring_features(laid_out, request.wanted_features, request.layout.name, read, engine, result.progress)
    sizes = write_training_sets(
        rows, request.layout, request.grouping, request.form, engine, result.folder, result.progress
    )
    result.content["grouped_by"] = request.grouping
    result.content["training_sets"] = sizes
    result.tables.append(summary.training_sets_line(sizes))
    if rows.features:
        result.content["features"] = rows.report
        result.tables.append(summary.features_line(rows.report))
    result.warnings += rows.warnings


def _report(weights: ClickWeights, result: Result) -> None:
    result.content["weights"] = weights.summary
    result.content["weights_by_position"] = weights.by_position.to_dicts()
    weighted, lost = (float(weights.summary[name] or 0) for name in ("clicks_weighted", "clicks_without_propensity"))
    if not weighted or lost > (1 - WANTED_CLICK_SHARE) * (weighted + lost):
        result.exit_code = WITH_DOUBTS
    result.tables.append(summary.weights_line(weights.summary))
    result.warnings += verdicts.weight_warnings(weights.summary)
