"""From options to what is read and estimated: a command resolves them once, before anything is read."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from posbias.cli.options import inputs
from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.exposure import ExposureOptions, FeatureOptions
from posbias.cli.options.options import CountingOptions, EstimationOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.training import TrainingOptions
from posbias.cli.options.values import parse_prior, parse_reference
from posbias.cli.work.plan import check_counting, check_decay, statistics_plan
from posbias.core.choices import MODELS, Missing, Source
from posbias.core.errors import RoleError, UsageError
from posbias.core.estimators import EstimationOptions as CoreOptions
from posbias.core.estimators import MethodOfRows, get_method
from posbias.core.log.impressions import ReadingRules
from posbias.core.schema import RESERVED, Roles
from posbias.io.features.of_parts import RowsRequest, WantedFeatures
from posbias.io.features.table import is_in_a_table
from posbias.io.forms.recognition import find_form
from posbias.io.jobs.fit import CellFit, Model
from posbias.io.jobs.reading import Job
from posbias.io.jobs.training import TrainingRequest
from posbias.io.log.log import Log
from posbias.io.log.opening import open_log
from posbias.io.log.request import LogRequest
from posbias.io.log.text_files import find_log_files
from posbias.io.stores.store import Statistics, find_statistics

ESTIMATED = "estimate"
OF_CELLS = ("context", "period_column", "stratify", "cluster_column", "randomized_where", "timestamp")
"""Columns that a fit by cell looks at, and others do not."""

_ROWS = "a row of a table of sums (--impressions) is one query, document and position. Leave it out"
_OF_PAGES = "needs whole pages, which a table of sums (--impressions) does not hold. Leave it out, or give the log"
_ONE_EACH = (
    "compares the documents of a page, and without queries (--no-query) each is compared with itself only. Name what "
    "pages have in common, such as the slot, with --query COLUMN instead"
)


def _check_rows(columns: ColumnOptions, reading: ReadingOptions, model: str, pages_for: str | None) -> None:
    """Raise UsageError for an option that means nothing of a table of sums, or of a log without queries.

    Args:
        columns: which column plays which role.
        reading: how the log is read.
        model: the option that needs whole pages because of the model; empty if the model does not.
        pages_for: another option that does.
    """
    refusals: list[tuple[object, str | None, str]] = []
    if columns.impressions is not None:
        sums = "the rows of a table of sums (--impressions) add up many pages. Leave it out"
        form = f"--input-format {reading.input_format}"
        event = "a row of a table of sums is no event. Leave it out"
        number = "in a table of sums (--impressions), --click names their number. Leave it out"
        weight = "--impressions says already what a row stands for. Leave it out"
        several = "takes several clicks for one, but a sum counts all. Leave it out"
        refusals += [
            (reading.click_counts, "--click-counts", several),
            (columns.weight_column, "--weight-column", weight),
            (columns.session, "--session", sums),
            (reading.impression_where, "--impression-where", event),
            (reading.clicks, "--clicks", number),
            (reading.input_format not in {"auto", "flat"}, form, _ROWS),
            (model, model, _OF_PAGES),
            (pages_for, pages_for, _OF_PAGES),
        ]
    if columns.no_query:
        keep = "cannot be combined with --no-query. Use keep"
        refusals += [
            (columns.query, "--query", "--no-query says that the log has none. Leave one of them out"),
            (model, model, _ONE_EACH),
            (pages_for, pages_for, _ONE_EACH),
            (reading.duplicate_docs == "first", "--duplicate-docs first", keep),
        ]
    for is_set, option, reason in refusals:
        if is_set:
            raise UsageError(f"{option}: {reason}.")


def resolve(
    named: Sequence[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    *,
    statistics: Sequence[Statistics] | None = None,
    sessions_for: str | None = None,
    features: WantedFeatures | None = None,
    decay: float | None = None,
) -> Job:
    """Find out what is to be read and counted, and wrong options before anything is read.

    Args:
        named: logs or statistics, as named by the user.
        columns: which column plays which role.
        reading: how logs are read.
        counting: what is counted.
        statistics: the statistics that were named, where they have been looked for already.
        sessions_for: the option that needs the pages of the log, if there is one.
        features: columns of the log, and tables, to learn from.
        decay: by what older days weigh less, if they do.

    Raises:
        StatisticsError: an option contradicts the statistics.
        UsageError: an option cannot be read, or does not go with another one.
    """
    held = find_statistics(named) if statistics is None else statistics
    plan = held[0].metadata.plan if held else statistics_plan(columns, counting)
    features = features or WantedFeatures()
    if held:
        check_counting(plan, counting, columns)
    else:
        _check_rows(columns, reading, f"--model {plan.model.name}" if plan.model.needs_session else "", sessions_for)
    check_decay(decay, plan)
    return Job(
        tuple(named),
        plan,
        partial(_open, columns=columns, reading=reading),
        tuple(held),
        counting.date,
        sessions_for,
        features.columns,
        features.tables,
        decay,
    )


def _open(job: Job, columns: ColumnOptions, reading: ReadingOptions) -> Log:
    """Open the log that options describe; where columns are missing because it holds events, the error says so."""
    plan = job.plan
    roles = Roles(
        session=tuple(columns.session or ()),
        query=tuple(columns.query or ()),
        doc=tuple(columns.doc or ()),
        position=columns.position,
        click=columns.click,
        weight=columns.weight_column,
        impressions=columns.impressions,
        timestamp=columns.timestamp,
        context=plan.context,
        stratify=tuple(name for name in plan.strata if name not in {columns.period_column, job.each}),
        each=() if job.each is None else (job.each,),
        version=tuple(name for name in plan.strata if name == columns.period_column),
        cluster=plan.clusters,
        randomized=plan.randomized,
        features=job.features,
        clicked=columns.clicked,
        page=None if columns.page == inputs.NO_PAGE else columns.page,
        no_page=columns.page == inputs.NO_PAGE,
        no_query=columns.no_query,
    )
    inputs.check_standard_input(job.inputs, reading)
    base, raw = inputs.position_base(reading), inputs.raw_reader(reading, no_query=columns.no_query)
    request = LogRequest(
        inputs=job.inputs,
        roles=roles,
        rules=ReadingRules(
            base,
            paging=inputs.paging(columns, reading),
            click_counts=reading.click_counts,
            click_ranks=inputs.click_ranks(columns, reading),
            null_click=reading.null_click is not None,
            period=plan.period,
            day=job.day,
            values=inputs.text_values(reading),
        ),
        clicks=inputs.clicks_request(reading),
        needs_session=job.sessions_for is not None or plan.model.needs_session or reading.duplicate_docs == "first",
        form=reading.input_format,
        events=inputs.events_request(reading),
        raw=raw,
        dialect=inputs.dialect(reading),
        max_bad_rows=inputs.max_bad_rows(reading),
        duplicate_docs=inputs.duplicate_docs(reading, plan, job.sessions_for),
        lists=inputs.list_rules(reading, columns),
    )
    try:
        return open_log(request)
    except RoleError as error:
        of_rows = request.raw is None and request.events is None and request.clicks is None
        forms = find_form(find_log_files(request.inputs, request.dialect)) if of_rows else []
        if not forms:
            raise
        form = forms[0]
        known = list(error.options) if form.options[0] != "--input-format" else []
        if ("--click", "COLUMN") in zip(known[::2], known[1::2], strict=True):  # events have no column of clicks
            where = known.index("--click")
            del known[where : where + 2]
        raise RoleError(f"{error} {form.said[:1].upper()}{form.said[1:]}.", (*known, *form.options)) from error


def requested_fit(
    counting: CountingOptions,
    estimation: EstimationOptions,
    features: FeatureOptions | TrainingOptions,
    exposure: ExposureOptions,
    reading: ReadingOptions,
    weigh_by: Source = "smooth",
) -> Model:
    """The model that is to be fitted.

    Args:
        counting: its name.
        estimation: how.
        features: those that a method of rows learns from.
        exposure: how such a method learns.
        reading: how the log is read.
        weigh_by: which propensities weights are to be made from.

    Raises:
        PosbiasError: an option cannot be read, is out of range, or does not go with another one.
    """
    prior = estimation.attractiveness_prior
    known_prior = None if prior == ESTIMATED else parse_prior("--attractiveness-prior", prior)
    if counting.model is not None and counting.model not in MODELS:
        from posbias.cli.work.click_models import requested_page_fit  # noqa: PLC0415 - other models need none of it

        return requested_page_fit(counting.model, estimation, known_prior)
    named = features.features, features.feature, features.missing
    rows = _requested_rows(estimation.method, named, exposure, reading)
    if estimation.tolerance is not None and not estimation.tolerance < 1:
        raise UsageError(f"--tolerance {estimation.tolerance:g}: must be below 1; it is a relative change.")
    options = CoreOptions(
        attractiveness_prior=known_prior,
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
    of_joint_em = "--no-acceleration" if estimation.no_acceleration else None
    if estimation.examination_prior != EstimationOptions().examination_prior:
        of_joint_em = f"--examination-prior {estimation.examination_prior}"
    asked = estimation
    return CellFit(asked.method, options, asked.compare, asked.csv, asked.strict, rows, of_joint_em)


def job_of_fit(
    model: Model,
    named: Sequence[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    files: TrainingRequest | None = None,
    decay: float | None = None,
) -> Job:
    """What is read to fit a model, and to write training files by it.

    Raises:
        PosbiasError: options do not go together, or statistics do not hold what is needed.
    """
    in_log = (*(files.features.columns if files else ()), *model.features.columns)
    tables = files.features.tables if files else model.features.tables
    features = WantedFeatures(tables, tuple(dict.fromkeys(in_log)))
    if isinstance(model, CellFit):
        pages_for = (files and files.sessions_for) or model.sessions_for
        job = resolve(named, columns, reading, counting, sessions_for=pages_for, features=features, decay=decay)
    else:
        columns, counting = of_pages(columns), CountingOptions(max_position=counting.max_position)
        job = resolve(named, columns, reading, counting, sessions_for=model.sessions_for, features=features)
    model.check(job)
    # Statistics that hold all that a click model looks at serve as well as pages.
    return replace(job, sessions_for=None) if job.statistics and not isinstance(model, CellFit) else job


def of_pages(columns: ColumnOptions) -> ColumnOptions:
    """The columns without those that only a fit by cell looks at."""
    return replace(columns, **dict.fromkeys(OF_CELLS))


def _requested_rows(
    method: str,
    features: tuple[Sequence[str] | None, Sequence[str] | None, Missing],
    exposure: ExposureOptions,
    reading: ReadingOptions,
) -> RowsRequest | None:
    """The request of a method that needs the features of every row; None for other methods.

    Raises:
        LogFormatError: a table of features is missing.
        MissingExtraError: LightGBM is not installed.
        UsageError: there is no feature, or rows cannot be read so.
    """
    if not isinstance(get_method(method), MethodOfRows):
        return None
    tables, columns, missing = tuple(features[0] or ()), tuple(features[1] or ()), features[2]
    score = exposure.ranker_score
    for flag, name in [*(("--feature", name) for name in columns), ("--ranker-score", score)]:
        if name in RESERVED:
            raise UsageError(f"{flag} {name}: this name is reserved. Rename the column to use it as a feature.")
    if not tables and not columns:
        raise UsageError(
            f"--method {method}: says nothing without features. Name a table of them (--features FILE) or columns of "
            "the log (--feature COLUMN)."
        )
    if reading.engine != "polars":
        raise UsageError(f"--method {method}: runs on this machine only. Use --engine polars.")
    from posbias.core.learners.boosting import import_lightgbm  # noqa: PLC0415 - no other method grows trees

    import_lightgbm()
    if score is not None and score not in columns and not is_in_a_table(score, tables):
        columns = (*columns, score)
    return RowsRequest(method, WantedFeatures(tables, columns, missing), score, exposure.sample_pages)
