"""What a command is asked to read and to estimate, resolved once from its options and then handed on.

Options that mean nothing beside others: the first that is asked for is said.

Logs without queries, where each document is compared with itself: what does not go with them.

Tables that add up impressions and clicks: what does not go with them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from posbias.cli.options import inputs
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.options import CountingOptions, EstimationOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.values import parse_prior, parse_reference
from posbias.cli.work.plan import check_counting, check_decay, statistics_plan
from posbias.core import estimators
from posbias.core.choices import Source
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import RoleError, StatisticsError, UsageError
from posbias.core.estimators import check_method
from posbias.core.log.impressions import ReadingRules
from posbias.core.schema import RequestedRoles
from posbias.io.features.of_parts import RowsRequest, WantedFeatures
from posbias.io.forms.recognition import find_form
from posbias.io.log.log import Log
from posbias.io.log.opening import open_log
from posbias.io.log.request import LogRequest
from posbias.io.log.text_files import find_log_files
from posbias.io.stores.store import Statistics, find_statistics

_ROWS = "a row of a table of sums (--impressions) is one query, document and position. Leave it out"


def check_sums(columns: ColumnOptions, reading: ReadingOptions, plan: StatisticsPlan, sessions_for: str | None) -> None:
    """Find options that mean nothing where rows add up impressions.

    Args:
        columns: which column plays which role.
        reading: how the table is read.
        plan: what is counted.
        sessions_for: the option that needs whole pages, if there is one.

    Raises:
        UsageError: there is one.
    """
    of_pages = "needs whole pages, which a table of sums (--impressions) does not hold. Leave it out, or give the log"
    refusals: list[Refusal] = [
        (
            reading.click_counts,
            "--click-counts",
            "takes several clicks for one, but a sum counts all. Leave it out",
        ),
        (columns.weight_column, "--weight-column", "--impressions says already what a row stands for. Leave it out"),
        (columns.session, "--session", "the rows of a table of sums (--impressions) add up many pages. Leave it out"),
        (
            reading.impression_where,
            "--impression-where",
            "a row of a table of sums is no event. Leave it out",
        ),
        (reading.clicks, "--clicks", "in a table of sums (--impressions), --click names their number. Leave it out"),
        (reading.input_format not in {"auto", "flat"}, f"--input-format {reading.input_format}", _ROWS),
        (plan.model.needs_session, f"--model {plan.model.name}", of_pages),
        (sessions_for, sessions_for, of_pages),
    ]
    refuse(refusals)


_ONE_EACH = (
    "compares the documents of a page, and without queries (--no-query) each is compared with itself only. Name what "
    "pages have in common, such as the slot, with --query COLUMN instead"
)


def check_no_query(
    columns: ColumnOptions, reading: ReadingOptions, plan: StatisticsPlan, sessions_for: str | None
) -> None:
    """Find options that mean nothing where a log has no queries.

    Args:
        columns: which column plays which role.
        reading: how the log is read.
        plan: what is counted.
        sessions_for: the option that needs whole pages, if there is one.

    Raises:
        UsageError: there is one.
    """
    refusals: list[Refusal] = [
        (columns.query, "--query", "--no-query says that the log has none. Leave one of them out"),
        (plan.model.needs_session, f"--model {plan.model.name}", _ONE_EACH),
        (sessions_for, sessions_for, _ONE_EACH),
        (reading.duplicate_docs == "first", "--duplicate-docs first", "cannot be combined with --no-query. Use keep"),
    ]
    refuse(refusals)


Refusal = tuple[object, str | None, str]
"""Whether an option is asked for, how it was said, and why it means nothing."""


def refuse(refusals: Iterable[Refusal]) -> None:
    """See that none of them is asked for.

    Raises:
        UsageError: one is.
    """
    for is_asked, option, reason in refusals:
        if is_asked:
            raise UsageError(f"{option}: {reason}.")


ESTIMATED = "estimate"


_CLICK = ("--click", "COLUMN")


@dataclass(frozen=True)
class Kept:
    """What must be kept of a log beside what is counted.

    Attributes:
        sessions_for: the option that needs the pages themselves, if there is one.
        features: columns to train on.
        tables: tables of features beside the log.
    """

    sessions_for: str | None = None
    features: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()

    @property
    def why(self) -> str | None:
        """The option that needs the log, if there is one: statistics do not hold this."""
        return self.sessions_for or ("--feature" if self.features else None)


@dataclass(frozen=True)
class Job:
    """What a command reads and counts.

    Attributes:
        inputs: logs or statistics, as named by the user.
        statistics: the inputs, where they are statistics; none for logs.
        plan: what is counted.
        columns: which column of a log plays which role.
        reading: how a log is read.
        day: that of all rows of a log, where no column says it.
        kept: what must be kept of a log beside the counts.
        decay: by what older days weigh less, if they do.
        each: the column whose values are to be fitted each by itself, if there is one; it is one of the strata.
    """

    inputs: tuple[str, ...]
    statistics: tuple[Statistics, ...]
    plan: StatisticsPlan
    columns: ColumnOptions
    reading: ReadingOptions
    day: str | None = None
    kept: Kept = Kept()
    decay: float | None = None
    each: str | None = None

    def open_log(self) -> Log:
        """Open the log that the options describe.

        Raises:
            LogFormatError: a file is not there, or cannot be read.
            SchemaError: a column is not there, or is of the wrong type.
            UsageError: options contradict each other.
        """
        columns, reading, plan = self.columns, self.reading, self.plan
        roles = RequestedRoles(
            session=tuple(columns.session or ()),
            query=tuple(columns.query or ()),
            doc=tuple(columns.doc or ()),
            position=columns.position,
            click=columns.click,
            weight=columns.weight_column,
            impressions=columns.impressions,
            timestamp=columns.timestamp,
            context=plan.context,
            stratify=tuple(name for name in plan.strata if name not in {columns.period_column, self.each}),
            each=() if self.each is None else (self.each,),
            version=tuple(name for name in plan.strata if name == columns.period_column),
            cluster=plan.clusters,
            randomized=plan.randomized,
            features=self.kept.features,
            clicked=columns.clicked,
            page=None if columns.page == inputs.NO_PAGE else columns.page,
            no_page=columns.page == inputs.NO_PAGE,
            no_query=columns.no_query,
        )
        inputs.check_standard_input(self.inputs, reading)
        base, raw = inputs.position_base(reading), inputs.raw_reader(reading, no_query=columns.no_query)
        return _opened(
            LogRequest(
                inputs=self.inputs,
                roles=roles,
                rules=ReadingRules(
                    base,
                    paging=inputs.paging(columns, reading),
                    click_counts=reading.click_counts,
                    click_ranks=inputs.click_ranks(columns, reading),
                    null_click=reading.null_click is not None,
                    period=plan.period,
                    day=self.day,
                    values=inputs.text_values(reading),
                ),
                clicks=inputs.clicks_request(reading),
                needs_session=self.kept.sessions_for is not None
                or plan.model.needs_session
                or reading.duplicate_docs == "first",
                form=reading.input_format,
                events=inputs.events_request(reading),
                raw=raw,
                dialect=inputs.dialect(reading),
                max_bad_rows=inputs.max_bad_rows(reading),
                duplicate_docs=inputs.duplicate_docs(reading, plan, self.kept.sessions_for),
                lists=inputs.list_rules(reading, columns),
            )
        )

    def require_logs(self) -> None:
        """See that what must be kept of a log can be had.

        Raises:
            StatisticsError: only statistics are at hand.
        """
        if self.statistics and self.kept.why:
            raise StatisticsError(
                f"{self.statistics[0].path} holds statistics; {self.kept.why} needs the logs. Give the logs, or leave "
                "it out."
            )


def _opened(request: LogRequest) -> Log:
    """The log; where columns are missing because it holds events, the error says so.

    Raises:
        PosbiasError: those of `open_log`.
    """
    try:
        return open_log(request)
    except RoleError as error:
        of_rows = request.raw is None and request.events is None and request.clicks is None
        findings = find_form(find_log_files(request.inputs, request.dialect)) if of_rows else []
        if not findings:
            raise
        known = error.options if findings[0].options[0] != "--input-format" else ()
        said = findings[0].said
        raise RoleError(
            f"{error} {said[:1].upper()}{said[1:]}.", (*_without_click(known), *findings[0].options)
        ) from error


def _without_click(options: tuple[str, ...]) -> tuple[str, ...]:
    """Options without the one that names a column of clicks, which events do not have."""
    pairs = zip(options[::2], options[1::2], strict=True)
    return tuple(word for pair in pairs if pair != _CLICK for word in pair)


def resolve(
    named: Sequence[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    *,
    statistics: Sequence[Statistics] | None = None,
    kept: Kept | None = None,
    decay: float | None = None,
) -> Job:
    """Find out what is to be read and counted, and wrong options before anything is read.

    Args:
        named: logs or statistics, as named by the user.
        columns: which column plays which role.
        reading: how logs are read.
        counting: what is counted.
        statistics: the statistics that were named, where they have been looked for already.
        kept: what must be kept of a log beside the counts.
        decay: by what older days weigh less, if they do.

    Raises:
        StatisticsError: an option contradicts the statistics.
        UsageError: an option cannot be read, or does not go with another one.
    """
    found = find_statistics(named) if statistics is None else statistics
    plan = found[0].metadata.plan if found else statistics_plan(columns, counting)
    kept = kept or Kept()
    if found:
        check_counting(plan, counting, columns)
    elif columns.impressions is not None:
        check_sums(columns, reading, plan, kept.sessions_for)
    if not found and columns.no_query:
        check_no_query(columns, reading, plan, kept.sessions_for)
    check_decay(decay, plan)
    return Job(tuple(named), tuple(found), plan, columns, reading, counting.date, kept, decay)


@dataclass(frozen=True)
class EstimateRequest:
    """What estimate is asked for.

    Attributes:
        method: the estimator's name.
        options: what is asked of it.
        asked: as it was said.
        rows: what the rows are asked for, by a method that needs them.
    """

    method: str
    options: estimators.EstimationOptions
    asked: EstimationOptions
    rows: RowsRequest | None = None

    @property
    def needs_sessions(self) -> str | None:
        """The option for which pages must be kept together while a log is read, if there is one."""
        if self.rows is not None:
            return f"--method {self.method}"
        return "--cluster session" if self.options.cluster == "session" else None

    @property
    def features(self) -> WantedFeatures:
        """The features that the method needs."""
        return WantedFeatures() if self.rows is None else self.rows.wanted

    @property
    def option_of_joint_em(self) -> str | None:
        """The option that only joint EM knows, if one is set."""
        if self.asked.examination_prior != EstimationOptions().examination_prior:
            return f"--examination-prior {self.asked.examination_prior}"
        return "--no-acceleration" if self.asked.no_acceleration else None

    def check(self, job: Job) -> None:
        """Find out, before anything is read, whether the method can serve the job.

        Raises:
            UsageError: it cannot.
        """
        if job.decay is not None and self.needs_sessions:
            raise UsageError(
                f"--decay {job.decay:g}: cannot be combined with {self.needs_sessions}. Leave one of them out."
            )
        check_method(self.method, job.plan, self.options)


def requested_estimate(
    estimation: EstimationOptions,
    counting: CountingOptions,
    rows: RowsRequest | None = None,
    weigh_by: Source = "smooth",
) -> EstimateRequest:
    """Read the options of an estimate; `rows` is what a method of rows is asked.

    Raises:
        UsageError: a value cannot be read, or is out of range.
    """
    if estimation.tolerance is not None and not estimation.tolerance < 1:
        raise UsageError(f"--tolerance {estimation.tolerance:g}: must be below 1; it is a relative change.")
    prior = estimation.attractiveness_prior
    options = estimators.EstimationOptions(
        attractiveness_prior=None if prior == ESTIMATED else parse_prior("--attractiveness-prior", prior),
        examination_prior=parse_prior("--examination-prior", estimation.examination_prior),
        max_iterations=estimation.max_iterations,
        tolerance=estimation.tolerance,
        accelerate=not estimation.no_acceleration,
        reference=parse_reference(estimation.reference),
        period=counting.period,
        cluster=estimation.cluster,
        bootstrap=estimation.bootstrap,
        seed=estimation.seed,
        shape=estimation.shape,
        shrink=estimation.shrink,
        weigh_by=weigh_by,
    )
    return EstimateRequest(estimation.method, options, estimation, rows)
