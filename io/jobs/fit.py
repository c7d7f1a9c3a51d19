"""A fit with a propensity by cell: from a log or statistics to its tables, and to weights by it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import polars as pl
from msgspec import structs

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.linalg import loaded_meanwhile
from posbias.core.choices import Source
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.odd_days import days_lacking_clicks
from posbias.core.errors import RoleError, StatisticsError, UsageError, shown
from posbias.core.estimators import check_method
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.diagnostics import FromRows
from posbias.core.fit.fit import LARGEST_COMPARISON, MOST_CELLS_BESIDE, Fit, check_cells
from posbias.core.fit.propensities import ChosenPropensities, ThetaEstimate, choose_propensities
from posbias.core.training.layout import LayoutOfCounts, LayoutOfPages, RowsOfPairs, weighted_pages
from posbias.core.training.weights import ClickWeights, RowWeights, WeightOptions
from posbias.io.counting.count import CountedLog, count_log, read_log, read_statistics
from posbias.io.counting.profile import facts_of_rows, faults_of_log, profile_of_days
from posbias.io.counting.warehouse import about_export
from posbias.io.engines.engine import Engine, Parts, ReadLog
from posbias.io.fits.new_fit import FitRequest, fit_counts, sections_of_counts, sections_of_reading
from posbias.io.fits.saved_fit import PreviousFit, StoredFit
from posbias.io.fits.verdicts import OTHER_MODEL, context_reasons, label_in_words
from posbias.io.jobs import tables
from posbias.io.jobs.tables import Result
from posbias.io.log import click_log
from posbias.io.log.click_log import Log, LogRequest
from posbias.io.log.clicks import JoinedClicks, Rows, lost_clicks
from posbias.io.log.faults import doubts, faults_in
from posbias.io.log.times import Days
from posbias.io.progress import Progress
from posbias.io.results.conclusions import CONDITIONS, Reason, reason
from posbias.io.stores.store import Statistics
from posbias.io.training.feature_parts import FeaturesRequest, RowsRequest
from posbias.io.training.feature_tables import check_features
from posbias.io.training.laid_out import (
    PairsOfParts,
    by_signature,
    check_unidentified,
    count_documents,
    counts_by_cell,
    scales_of_contexts,
    weights_for,
    with_squared_clicks,
)


@dataclass(frozen=True)
class Job:
    """A log, or statistics, to read and count."""

    inputs: tuple[str, ...]  # as named by the user
    plan: StatisticsPlan
    log: LogRequest | None  # None where the inputs are statistics
    statistics: tuple[Statistics, ...] = ()
    sessions_for: str | None = None  # the option that needs the pages themselves, if there is one
    features: tuple[str, ...] = ()  # columns of the log to learn from
    tables: tuple[str, ...] = ()  # of features, beside the log
    decay: float | None = None  # by what older days weigh less, if they do

    def open_log(self, result: Result | None = None) -> Log:
        """Open the log; where columns are missing because it holds events, the error says so.

        Args:
            result: what guessed columns are a reason to doubt.

        Raises:
            LogFormatError: a file is not there, or cannot be read.
            SchemaError: a column is not there, or is of the wrong type.
        """
        request = self.log
        if request is None:
            raise TypeError("statistics are no log")
        try:
            log = click_log.open_log(request)
        except RoleError as error:
            if request.raw is not None or request.events is not None or request.clicks is not None:
                raise
            from posbias.io.forms.recognition import find_form  # noqa: PLC0415 - only for the advice

            forms = find_form(request.sources())
            if not forms:
                raise
            form = forms[0]
            known = list(error.options) if form.options[0] != "--input-format" else []
            if ("--click", "COLUMN") in zip(known[::2], known[1::2], strict=True):  # events have no column of clicks
                where = known.index("--click")
                del known[where : where + 2]
            advice, options = f"{form.text[:1].upper()}{form.text[1:]}.", (*known, *form.options)
            raise RoleError(*error.lines, advice, options=options) from error
        check_features(log, self.tables, self.features)
        if result is not None:
            result.faults += doubts(log)
        return log

    def finding_times(self) -> "Job":
        """The job whose log is searched for a column of times, unless days are known without one."""
        log = self.log
        if log is None or log.rules.day is not None or log.export is not None:
            return self
        return replace(self, log=replace(log, finds_times=True))

    def for_each(self, column: str) -> "Job":
        """The job whose log is fitted to each value of a column by itself."""
        log = self.log and replace(self.log, roles=replace(self.log.roles, each=(column,)))
        return replace(self, log=log)

    def like_the_fit(self, fitted: PreviousFit | None) -> "Job":
        """The job that reads the rows that a fit is of: those of one value of a column, or all.

        Raises:
            StatisticsError: values are added up in what is read.
        """
        only = fitted.of_value if isinstance(fitted, StoredFit) else ()
        if only and (self.log is None or self.log.export is not None):
            raise StatisticsError(
                f"{self.inputs[0]} holds counts, in which the values of {shown(only[0][0])} are added up, and the fit "
                "is of one of them (--for-each). Give the logs."
            )
        if not only or self.log is None:
            return self
        return replace(self, log=replace(self.log, roles=replace(self.log.roles, only=only)))

    @property
    def only_links(self) -> bool:
        """Whether ids are numbers, and pairs that compare no cells are added up (`posbias sql --ids number`)."""
        return self.log is not None and self.log.export is not None and about_export(self.log.export).ids == "number"

    def require_logs(self) -> None:
        """Raise StatisticsError if statistics are at hand where the log is needed: they do not hold all of it."""
        needed_for = self.sessions_for or ("--feature" if self.features else None)
        if self.statistics and needed_for:
            raise StatisticsError(
                f"{self.statistics[0].path} holds statistics; {needed_for} needs the logs. Give the logs, or leave "
                "it out."
            )


def name_propensities(fitted: PreviousFit, result: Result) -> None:
    """Put into the manifest where propensities come from, and print it where no fit estimated them."""
    result.content["propensities"] = fitted.name
    result.fit = fitted if isinstance(fitted, StoredFit) else None
    if fitted.own:
        says = "given, not estimated: neither their errors nor whether they belong to this log are known"
        result.content["own_propensities"] = {"files": fitted.digests, "says": says}
        result.reasons.append(reason("own-propensities", name=fitted.name, what=says))
    if isinstance(fitted, StoredFit) and fitted.of_value:
        (name, value), *_ = fitted.of_value
        column, text = shown(name), label_in_words(value)
        result.reasons.append(reason("rows-of-one-value", name=fitted.name, column=column, value=text))
    if isinstance(fitted, StoredFit) and fitted.refused:
        result.reasons.append(reason("fit-not-usable", name=fitted.name))
    elif isinstance(fitted, StoredFit) and fitted.condition is not None:
        condition = CONDITIONS[fitted.condition]
        result.reasons.append(reason(f"{fitted.condition}.of-the-fit", condition=condition))


def count(job: Job, engine: Engine, result: Result) -> CountedLog:
    """Count logs or merge statistics, and describe them in the manifest; with a decay, older days weigh less."""
    job.require_logs()
    if job.statistics:
        check_features(None, job.tables, ())
        counted = read_statistics(job.statistics, engine, result.progress, job.decay)
    else:
        log, keep = job.open_log(result), job.sessions_for is not None
        counted = count_log(log, job.plan, engine, result.progress, keep_sessions=keep, factor=job.decay)
    describe(counted, result)
    return counted


def describe(counted: CountedLog, result: Result) -> None:
    """Put into the manifest, and print, what was read and counted."""
    result.content |= sections_of_counts(counted)
    describe_reading(result, counted.rows, counted.clicks, counted.days, counted.notes)
    lost, unbinned = days_lacking_clicks(counted.statistics.by_day), counted.unbinned
    if counted.read is None:
        result.faults += faults_in(profile_of_days(lost, None))
    else:
        plan = counted.plan if unbinned is None else unbinned.plan
        result.faults += faults_of_log(counted.read, counted.facts, plan, lost)
    result.facts.append(tables.totals_line(result.content["totals"]))


def read_pages(job: Job, engine: Engine, result: Result) -> ReadLog:
    """Read a log with its pages, and describe it in the manifest."""
    job.require_logs()
    read = read_log(job.open_log(result), job.plan, engine, result.progress, keep_sessions=True)
    result.content |= sections_of_reading(job.plan, read.sources, read.rows)
    describe_reading(result, read.rows, read.clicks, read.days, read.notes)
    result.faults += faults_of_log(read, facts_of_rows(read, job.plan), job.plan)
    return read


def describe_reading(
    result: Result,
    rows: Rows,
    clicks: JoinedClicks | None = None,
    days: Days | None = None,
    notes: tuple[str, ...] = (),
) -> None:
    """Print what was read and left out, and which days there are; clicks that were lost put a result in doubt."""
    result.facts += [*tables.rows_lines(rows), *notes]
    result.reasons += reasons_of_clicks(rows, clicks)
    if days is not None:
        result.content["days"] = days.describe()
        result.facts.append(tables.days_line(result.content["days"]))
        result.reasons += days.reasons()


def reasons_of_clicks(rows: Rows, clicks: JoinedClicks | None, of: str = "") -> list[Reason]:
    """What clicks without an impression say against a log; `of` goes before the sentence."""
    lost = lost_clicks(rows.clicks, () if clicks is None else clicks.examples)
    return [structs.replace(reason, sentence=of + reason.sentence) for reason in lost]


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

    weights: ClickWeights | RowWeights
    pages: Parts | None  # None of statistics
    weigh: Callable[[pl.DataFrame], pl.DataFrame]  # whole pages; see `weighted_pages`
    documents: Callable[[LayoutOfCounts], tuple[PairsOfParts, Floats, RowsOfPairs, int]]
    """The documents, what makes rows of them (see `lay_out_pairs`), and how many there are."""

    section: dict[str, Any]  # what the manifest says of what weights are made from
    reasons: list[Reason] = field(default_factory=list[Reason])


class Fitted(Protocol):
    """A fitted model: it knows how likely a row of a log was examined, and weighs its click by that."""

    def weigh(
        self, data: Data, plan: StatisticsPlan, request: WeightRequest, engine: Engine, progress: Progress
    ) -> Weighed:
        """Weigh a log that was read or counted by a plan; with `stop`, clicks without a propensity are an error."""
        ...


class Model(Protocol):
    """A request for a model to be fitted: counts or pages are how it asks for data."""

    @property
    def sessions_for(self) -> str | None:
        """The option for which pages must be kept together while a log is read, if there is one."""
        ...

    @property
    def features(self) -> FeaturesRequest:
        """The features that it needs."""
        ...

    @property
    def also_read(self) -> list[str]:
        """Files to read beside the log."""
        ...

    def check_weights(self, layout: LayoutOfPages | LayoutOfCounts, options: WeightOptions) -> None:
        """Raise UsageError, before anything is read, if it cannot make the weights of a layout."""
        ...

    def check(self, job: Job) -> None:
        """Raise UsageError or StatisticsError, before anything is read, if it cannot be fitted to what a job reads."""
        ...

    def fit(self, job: Job, engine: Engine, result: Result) -> tuple[Data, Fitted]:
        """Read, fit, write the tables and say how sure they are; the data are given back as they were read."""
        ...


@dataclass(frozen=True)
class CellFit:
    """A request for propensities by cell, by an estimator."""

    method: str
    options: EstimationOptions
    compare: bool | None = None  # whether joint EM is run as well; None where that is quick
    csv: bool = False
    strict: bool = False  # whether a cell that is not identified puts the result in doubt
    rows: RowsRequest | None = None  # of a method that needs the rows
    of_joint_em: str | None = None  # an option that only joint EM knows, where one is set
    pairs: bool = True  # whether all pairs are known, so that their attractiveness is

    @property
    def sessions_for(self) -> str | None:
        """The option for which pages must be kept together while a log is read, if there is one."""
        if self.rows is not None:
            return f"--method {self.method}"
        return "--cluster session" if self.options.cluster == "session" else None

    @property
    def features(self) -> FeaturesRequest:
        """The features that the method needs."""
        return FeaturesRequest() if self.rows is None else self.rows.features

    @property
    def also_read(self) -> list[str]:
        """The tables of features."""
        return [*self.features.tables]

    def check_weights(self, layout: LayoutOfPages | LayoutOfCounts, options: WeightOptions) -> None:
        """All layouts can be weighed by cell."""

    def check(self, job: Job) -> None:
        """Raise UsageError, before anything is read, if the method cannot serve the job."""
        if job.decay is not None and self.sessions_for:
            raise UsageError(
                f"--decay {job.decay:g}: cannot be combined with {self.sessions_for}. Leave one of them out."
            )
        if job.only_links and (self.method != "conditional" or self.compare):
            option = "--compare" if self.compare else f"--method {self.method}"
            raise StatisticsError(
                f"{job.inputs[0]}: holds only documents that compare positions (--ids number), and {option} needs all. "
                "Leave it out, or count without --ids number."
            )
        check_method(self.method, job.plan, self.options)

    def fit(self, job: Job, engine: Engine, result: Result) -> tuple[CountedLog, "FittedCells"]:
        """Count, fit, write the tables and say how sure they are."""
        with loaded_meanwhile():
            counted = count(job, engine, result)
        if not job.only_links:
            return counted, FittedCells(self.fit_counts(counted, engine, result).theta)
        fitted = replace(self, compare=False, pairs=False).fit_counts(counted, engine, result)
        result.reasons.append(reason("attractiveness-not-written"))
        return counted, FittedCells(fitted.theta)

    def fit_counts(self, counted: CountedLog, engine: Engine, result: Result) -> Fit:
        """The same from what was counted."""
        from_rows = self._from_rows(counted, engine, result)
        wanted = FitRequest(self.method, self.options, self.compare, self.csv, self.pairs)
        written = fit_counts(counted, wanted, engine, result.folder, result.progress, from_rows)
        fit = written.fit
        result.content |= written.sections
        result.headline = written.headline
        result.printed += [*tables.propensity_table(fit), *tables.clicks_above_table(fit)]
        result.curve = fit.propensities, counted.plan.cell_columns
        result.reasons += written.reasons
        if self.of_joint_em and fit.joint is None and self.compare is None:
            signatures, option = LARGEST_COMPARISON, self.of_joint_em
            why = reason("option-without-effect", option=option, signatures=signatures, cells=MOST_CELLS_BESIDE)
            result.reasons.append(why)
        unknown = int((~fit.estimate.linkage.identified).sum())
        if self.strict and unknown:
            result.reasons.append(reason("not-identified.strict", {"unknown": unknown}))
        result.next = f"posbias weight LOGS --propensities {result.target} -o weighted"
        better = next((reason.figures["model"] for reason in result.reasons if reason.code == OTHER_MODEL), None)
        judge = f"posbias evaluate LOGS --models {counted.plan.model.name},{better} -o judged"
        result.next_if_refused = judge if better else f"posbias show {result.target} --details"
        return fit

    def _from_rows(self, counted: CountedLog, engine: Engine, result: Result) -> FromRows | None:
        """The estimate of a method that reads rows; None for other methods."""
        if self.rows is None:
            return None
        from posbias.io.features_method import estimate_from_rows  # noqa: PLC0415 - other methods need no trees

        check_cells(counted.statistics, self.method, self.options, engine.memory, compare=self.compare)
        from_rows = estimate_from_rows(counted, self.rows, self.options, engine, result.progress)
        result.content["features_of_fit"] = from_rows.features
        result.facts.append(tables.features_line(from_rows.features))
        result.reasons += from_rows.reasons
        return from_rows.estimate


@dataclass(frozen=True)
class FittedCells:
    """Propensities by cell."""

    theta: ThetaEstimate

    def weigh(
        self, data: Data, plan: StatisticsPlan, request: WeightRequest, engine: Engine, progress: Progress
    ) -> Weighed:
        """Weigh a log by the cells that its rows are in; see `Fitted`."""
        del progress
        chosen = choose_propensities(self.theta.propensities, request.source)
        if isinstance(data, CountedLog):
            counted, read, weighted = data, data.read, plan.weighted or data.decay is not None
            counts = counted.statistics.counts_by_cell()
        else:
            counted, read, weighted = None, data, plan.weighted
            counts = counts_by_cell(data, plan)
        counts = with_squared_clicks(counts, read, plan) if weighted else counts
        weights = weights_for(counts, chosen.table, request.options, self.theta)
        check_unidentified(weights.summary, stop=request.stop)

        def documents(layout: LayoutOfCounts) -> tuple[PairsOfParts, Floats, RowsOfPairs, int]:
            if counted is None:
                raise TypeError("documents are counted")
            weighed_by = replace(self.theta, propensities=chosen.table)
            terms, rows_of = by_signature(counted, layout, weights, request.options, weighed_by)
            return counted, terms, rows_of, count_documents(counted, engine) if layout.one_row_each else 0

        weigh = partial(weighted_pages, plan=plan, weights=weights, features=request.features)
        pages, section = None if read is None else read.buckets, weights_from(request.source, chosen)
        reasons = tables.smooth_weights(chosen)
        reasons += reasons_of_contexts(data, plan, counts, chosen.table, engine, across=request.across_pages)
        return Weighed(weights, pages, weigh, documents, section, reasons)


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
    scales = scales_of_contexts(data, plan, counts, table, engine) if across and not weighted else None
    return context_reasons(contexts, scales, across=across)


def weights_from(source: Source, chosen: ChosenPropensities) -> dict[str, Any]:
    """Which propensities weights are made from, for the manifest."""
    return {"propensity": source, "largest_std_error": chosen.largest_error, "smooth_at": chosen.smooth}
