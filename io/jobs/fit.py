"""Fit of propensities by cell: from a log or statistics to tables and a section of the manifest."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any

import polars as pl
from msgspec import structs

from posbias.core.arrays.linalg import preload_scipy
from posbias.core.arrays.threads import meanwhile
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.odd_days import days_lacking_clicks
from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.errors import RoleError, SchemaError, StatisticsError, UsageError, plural, printable
from posbias.core.estimators import check_method
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import LARGEST_COMPARISON, MOST_CELLS_BESIDE, Fit, LogInputs, check_cells, fit_statistics
from posbias.core.fit.model_tests import can_compare, compare_models
from posbias.core.schema import CLICKS, IMPRESSIONS, Roles
from posbias.core.standard_errors.cluster import ClusterSums
from posbias.core.standard_errors.column import LogFit
from posbias.core.training.layout import LayoutOfCounts, LayoutOfPages
from posbias.core.training.weights import WeightOptions, as_count
from posbias.io.counting.count import CountedLog, PairsOfPart, count_log, read_log, read_statistics
from posbias.io.counting.profile import ROWS_TO_TEST, facts_of_rows, faults_of_log, pages_to_test, profile_of_days
from posbias.io.counting.warehouse import about_export
from posbias.io.engines.engine import Engine, KeepSessions, ReadLog, sample_rows
from posbias.io.fits.saved_fit import CellPropensities, StoredFit, estimate_section
from posbias.io.fits.verdicts import OTHER_MODEL, fit_headline, fit_reasons, label_in_words
from posbias.io.forms.page_structure import check_drafts
from posbias.io.jobs import tables
from posbias.io.jobs.tables import Result
from posbias.io.jobs.training import Weigh, weigh_by_cell
from posbias.io.log import click_log
from posbias.io.log.click_log import Log, LogRequest
from posbias.io.log.clicks import JoinedClicks, Rows, check_plain_column, lost_clicks
from posbias.io.log.events import SHOWN_FLAG
from posbias.io.log.faults import column_faults, faults_in
from posbias.io.log.lists import find_inner_pages
from posbias.io.log.scan import schema_of, with_quotes
from posbias.io.log.times import Days
from posbias.io.results.conclusions import CAUTION, CODES, CONDITIONS, STOPS_OF_FITS, Reason, reason, sentence
from posbias.io.results.tables import (
    ATTRACTIVENESS,
    PROPENSITIES,
    THETA_COVARIANCE,
    write_attractiveness_csv,
    write_small_table,
)
from posbias.io.stores.metadata import describe_plan
from posbias.io.stores.store import Statistics
from posbias.io.training.feature_parts import FeaturesRequest, RowsRequest
from posbias.io.training.feature_tables import check_features

SCHEMA = "posbias.result"


@dataclass(frozen=True)
class Job:
    """Inputs to read and count: a log, or statistics."""

    inputs: tuple[str, ...]  # as named by the user
    plan: StatisticsPlan
    log: LogRequest | None  # None where the inputs are statistics
    statistics: tuple[Statistics, ...] = ()
    sessions_for: str | None = None  # option that requires whole pages, for messages
    tables: tuple[str, ...] = ()  # files of features beside the log
    decay: float | None = None  # weight of a day relative to the next one

    def open_log(self, result: Result | None = None) -> Log:
        """Open the log; an error on missing columns names the recognised form of log, if any.

        Args:
            result: receives doubts about guessed columns.

        Raises:
            LogFormatError: a file is missing or unreadable.
            SchemaError: a column is missing or of the wrong type.
            UsageError: the position column is binned and a cell column, or an interleaving is declared randomised.
        """
        request = self.log
        if request is None:
            raise TypeError("statistics are no log")
        try:
            log = click_log.open_log(request)
        except RoleError as error:
            if request.raw is not None or request.events is not None or request.clicks is not None:
                raise
            from posbias.io.forms.recognition import check_shown, find_form  # noqa: PLC0415 - only for the advice

            sources = with_quotes(request.sources())
            forms = find_form(sources) or ([] if request.query else find_inner_pages(schema_of(sources[0])))
            if not forms:
                if "--click" in error.options:
                    check_shown(sources)
                raise
            form = forms[0]
            known = list(error.options) if form.options[0] == SHOWN_FLAG else []
            if ("--click", "COLUMN") in zip(known[::2], known[1::2], strict=True):  # events have no column of clicks
                where = known.index("--click")
                del known[where : where + 2]
            advice, options = f"{form.text[:1].upper()}{form.text[1:]}.", (*known, *form.options)
            raise RoleError(*error.lines, advice, options=options) from error
        if self.plan.position_bins and log.roles.position in self.plan.cell:
            raise UsageError(
                f"--position-bins: column {log.roles.position!r} is the position, and --cell keeps its values apart. "
                f"Use --position {log.roles.position} in place of --cell {log.roles.position}."
            )
        if log.roles.randomized:
            check_drafts(log)
        if log.roles.features_by != Roles().features_by and log.raw is None:
            for name in log.roles.features:
                check_plain_column(request.where, log.schema, name, log.roles.features_by)
                if log.schema[name].is_temporal():
                    raise SchemaError(
                        f"{request.where}: column {name!r} ({log.roles.features_by}) holds {log.schema[name]}; it must "
                        "hold text or numbers. Write it as text."
                    )
        check_features(log, self.tables, log.roles.features)
        if result is not None:
            result.faults += column_faults(log)
        return log

    def with_roles(self, **roles: object) -> "Job":
        """Replace columns of roles, if the input is a log."""
        return replace(self, log=self.log and replace(self.log, roles=replace(self.log.roles, **roles)))

    @property
    def only_links(self) -> bool:
        """Whether pairs in only one cell are summed up and ids are numbers (`posbias sql --ids number`)."""
        return self.log is not None and self.log.export is not None and about_export(self.log.export).ids == "number"


def name_propensities(fitted: CellPropensities, result: Result) -> None:
    """Add the source of propensities to the manifest, and reasons against given ones or those of a doubtful fit."""
    result.content["propensities"] = fitted.name
    if not isinstance(fitted, StoredFit):
        says = "given, not estimated: neither their errors nor whether they belong to this log are known"
        result.content["own_propensities"] = {"files": fitted.digests, "says": says}
        result.reasons.append(reason("own-propensities", name=fitted.name, what=says))
        return
    result.fit = fitted
    for name, value in fitted.only:
        column, text = printable(name), label_in_words(value)
        result.reasons.append(reason("rows-of-one-value", name=fitted.name, column=column, value=text))
    if fitted.refused:
        result.reasons.append(reason("fit-not-usable", name=fitted.name))
        return
    for code in sorted(fitted.cautions & STOPS_OF_FITS):
        text = sentence("fit-not-usable.with-care", name=fitted.name, meaning=CODES[code])
        result.reasons.append(Reason(code, CAUTION, text))
    if fitted.condition is not None:
        result.reasons.append(reason(f"{fitted.condition}.of-the-fit", condition=CONDITIONS[fitted.condition]))


def count(job: Job, engine: Engine, result: Result) -> CountedLog:
    """Count a log or merge statistics, with the decay of the job, and describe the counts in the result."""
    if job.statistics:
        check_features(None, job.tables, ())
        counted = read_statistics(job.statistics, engine, result.progress, job.decay)
    else:
        log, keep_sessions = job.open_log(result), job.sessions_for is not None
        read = read_log(log, job.plan, engine, result.progress, keep_sessions=keep_sessions)
        counted = count_log(read, engine, result.progress, job.decay)
    describe(counted, result)
    return counted


def describe(counted: CountedLog, result: Result) -> None:
    """Add the log, its totals and its faults to the manifest and the printed facts."""
    statistics, totals = counted.statistics, counted.statistics.cell_totals
    impressions, clicks = (as_count(counts.sum()) for counts in totals)
    describe_log(result, counted.plan, counted)
    result.content |= {
        "decay": counted.decay,
        "totals": {
            "queries": statistics.n_queries,
            "pairs": statistics.n_pairs,
            "signatures": statistics.pair_signatures.n_units,
            "impressions": impressions,
            "clicks": clicks,
        },
    }
    lost, unbinned = days_lacking_clicks(statistics.by_day, float(totals[0].sum())), counted.unbinned
    if counted.read is None:
        result.faults += faults_in(profile_of_days(lost, None))
    else:
        plan = counted.plan if unbinned is None else unbinned.plan
        result.faults += faults_of_log(counted.read, counted.facts, plan, lost)
    result.facts.append(
        f"log: {plural(impressions, 'impressions')}, {plural(clicks, 'clicks')}, "
        f"{plural(statistics.n_queries, 'queries')}, {plural(statistics.n_pairs, '(query, doc) pairs')}"
    )


def read_pages(job: Job, engine: Engine, result: Result, *, keep_sessions: KeepSessions = True) -> ReadLog:
    """Read a log with its pages, and describe it in the result."""
    read = read_log(job.open_log(result), job.plan, engine, result.progress, keep_sessions=keep_sessions)
    describe_log(result, job.plan, read)
    result.faults += faults_of_log(read, facts_of_rows(read, job.plan), job.plan)
    return read


def describe_log(result: Result, plan: StatisticsPlan, read: CountedLog | ReadLog) -> None:
    """Add the plan, sources and rows of a log to the manifest and the printed facts."""
    result.content |= sections_of_log(plan, read.sources, read.rows)
    describe_reading(result, read.rows, read.clicks, read.days, read.notes)


def sections_of_log(plan: StatisticsPlan, sources: dict[str, str], rows: Rows) -> dict[str, object]:
    """Sections of the manifest on the plan, sources and rows of a log."""
    return {"schema": SCHEMA, "counted": describe_plan(plan), "sources": sources, "rows": rows}


def describe_reading(
    result: Result,
    rows: Rows,
    clicks: JoinedClicks | None = None,
    days: Days | None = None,
    notes: tuple[str, ...] = (),
) -> None:
    """Print numbers of rows read and rejected, and the days; add reasons on lost clicks and on days."""
    result.facts += [*tables.rows_lines(rows), *notes]
    result.reasons += lost_click_reasons(rows, clicks)
    if days is None:
        return
    result.content["days"] = about = days.describe()
    span = about["first"] if about["number"] == 1 else "{first} to {last}, {number:,} days".format(**about)
    result.facts.append(f"days: {span}" + (f" (timestamps are {days.read_as})" if days.read_as is not None else ""))
    result.reasons += days.reasons()


def lost_click_reasons(rows: Rows, clicks: JoinedClicks | None, prefix: str = "") -> list[Reason]:
    """Reasons against a log with clicks that have no impression; `prefix` goes before each sentence."""
    lost = lost_clicks(rows.clicks, () if clicks is None else clicks.examples)
    return [structs.replace(reason, sentence=prefix + reason.sentence) for reason in lost]


@dataclass(frozen=True)
class CellFit:
    """Request to fit propensities by cell."""

    method: str
    options: EstimationOptions
    compare: bool | None = None  # whether joint EM and other click models are fitted too; None: if that is fast
    csv: bool = False
    strict: bool = False  # whether unidentified cells are a reason to refuse the result
    rows: RowsRequest | None = None  # for a method that reads rows and features
    joint_em_option: str | None = None  # given option that only joint EM uses
    pairs: bool = True  # whether the attractiveness of pairs is written: not if some pairs are summed up

    @property
    def sessions_for(self) -> str | None:
        """The option that requires whole pages, if any."""
        if self.rows is not None:
            return f"--method {self.method}"
        return "--cluster session" if self.options.cluster == "session" else None

    @property
    def features(self) -> FeaturesRequest:
        """Features that the method reads."""
        return FeaturesRequest() if self.rows is None else self.rows.features

    @property
    def also_read(self) -> list[str]:
        """Files to read beside the log: tables of features."""
        return [*self.features.tables]

    def check_weights(self, layout: LayoutOfPages | LayoutOfCounts, options: WeightOptions) -> None:
        """Accept every layout: all can be weighed by cell."""

    def check(self, job: Job) -> None:
        """Raise UsageError or StatisticsError, before reading, if the method cannot be applied to the job."""
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

    def fit(self, job: Job, engine: Engine, result: Result) -> tuple[CountedLog, Weigh]:
        """Count the inputs and fit them; return the counts and the function that weighs clicks by the fit."""
        with preload_scipy():
            counted = count(job, engine, result)
        request = replace(self, compare=False, pairs=False) if job.only_links else self
        fit = request.fit_counts(counted, engine, result)
        if job.only_links:
            result.reasons.append(reason("attractiveness-not-written"))
        return counted, partial(weigh_by_cell, fit.theta)

    def fit_counts(self, counted: CountedLog, engine: Engine, result: Result) -> Fit:
        """Fit counts; write propensities, their covariance and attractiveness; add tables and reasons to the result.

        Raises:
            IdentifiabilityError: the counts do not identify the requested estimate.
            UsageError: there are too many cells.
        """
        statistics, read, folder, from_rows = counted.statistics, counted.read, result.folder, None
        check_cells(statistics, self.method, self.options, engine.memory, compare=self.compare)
        if self.rows is not None:
            from posbias.io.features_method import estimate_from_rows  # noqa: PLC0415 - other methods need no trees

            from_rows, about_features, reasons = estimate_from_rows(
                counted, self.rows, self.options, engine, result.progress
            )
            result.content["features_of_fit"] = about_features
            result.facts.append(tables.features_line(about_features))
            result.reasons += reasons
        with result.progress.stage("fitting") as stage:
            fit = fit_statistics(
                statistics,
                self.method,
                self.options,
                compare=self.compare,
                log=LogInputs(
                    sum_sessions=None if read is None else partial(sum_sessions, read),
                    unbinned=counted.unbinned,
                    pages=partial(pages_to_test, read, counted.plan),
                    from_rows=from_rows,
                ),
                on_iteration=stage.say,
            )
        if self.pairs:
            with meanwhile(lambda: (fit.theta, fit.expected_clicks)):  # computed while files are written
                items = ((part, fit.pair_attractiveness(part.signature)) for part in counted.parts)
                rows = partial(_attractiveness_rows, columns=counted.plan.pair_columns)
                with result.progress.stage("writing", len(counted.pairs)) as stage:
                    for _ in engine.write_table(items, rows, folder / f"{ATTRACTIVENESS}.parquet"):
                        stage.advance()
                if self.csv:
                    write_attractiveness_csv(folder)
        write_small_table(fit.propensities, folder, PROPENSITIES, csv=self.csv)
        if fit.theta.covariance is not None:
            write_small_table(fit.theta.covariance, folder, THETA_COVARIANCE, csv=False)
        tests, others = fit.model_tests, None
        doubted = tests is not None and bool(tests.rejected or counted.plan.model.beside_position)
        if doubted and self.compare is not False:
            with result.progress.stage("looking at other click models"):
                pages = read.page_sample if read is not None and can_compare(counted.plan) else None
                sample = None if pages is None else sample_rows([pages], ROWS_TO_TEST // 2)[0]
                if sample is not None and sample.height:
                    others = compare_models(sample, counted.plan.model.name)
        if others is not None:
            result.content["other_models"] = {
                "log_likelihood": others.log_likelihood,
                "held_out_impressions": others.impressions,
                "models": [asdict(other) for other in others.others],
            }
        result.content["estimate"] = estimate_section(fit, all_pairs=self.pairs)
        result.headline = fit_headline(fit)
        result.printed += [*tables.propensity_table(fit), *tables.clicks_above_table(fit)]
        result.curve = fit.propensities, counted.plan.cell_columns
        time = None if read is None or read.log.raw_sources else read.log.roles.timestamp
        result.reasons += fit_reasons(fit, others, time)
        if self.joint_em_option and fit.joint is None and self.compare is None:
            limits: dict[str, Any] = {"signatures": LARGEST_COMPARISON, "cells": MOST_CELLS_BESIDE}
            result.reasons.append(reason("option-without-effect", option=self.joint_em_option, **limits))
        unknown = int((~fit.estimate.linkage.identified).sum())
        if self.strict and unknown:
            result.reasons.append(reason("not-identified.strict", {"unknown": unknown}))
        result.next = f"posbias weight LOGS --propensities {result.target} -o weighted"
        better = next((reason.figures["model"] for reason in result.all_reasons if reason.code == OTHER_MODEL), None)
        judge = f"posbias evaluate LOGS --models {counted.plan.model.name},{better} -o judged"
        result.next_if_refused = judge if better else f"posbias show {result.target} --details"
        return fit


def _attractiveness_rows(item: tuple[PairsOfPart, pl.DataFrame], columns: Sequence[str]) -> pl.DataFrame:
    """Rows of a part: the pair columns, `impressions`, `clicks`, `attractiveness`, `std_dev`."""
    part, signatures = item
    pairs = part.kept.load()
    return pairs.select(*columns, IMPRESSIONS, CLICKS).hstack(signatures[pairs[SIGNATURE]])


def sum_sessions(read: ReadLog, log: LogFit) -> ClusterSums:
    """Sum scores by session over all parts of a log, for errors clustered by session."""
    return reduce(add, read.buckets.map(partial(_cluster_sums, log=log)))


def _cluster_sums(_: int, impressions: pl.LazyFrame, log: LogFit) -> ClusterSums:
    return log.sums_by_session(impressions)
