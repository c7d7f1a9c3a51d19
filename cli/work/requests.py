"""From options to jobs: validated plans of counts, models, training files and logs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from datetime import date, timedelta
from functools import partial
from typing import TYPE_CHECKING

from posbias.cli.options import groups
from posbias.cli.options.inputs import drop_none, export_of, log_request
from posbias.cli.options.option import parse_bins, parse_prior, parse_reference
from posbias.core.choices import MODELS, LayoutOptions, RandomizedRows, Source
from posbias.core.counts.checks import DEFAULT_MODEL, check_curves, check_named_columns, counted_model
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import StatisticsError, UsageError, printable
from posbias.core.estimators import get_method
from posbias.core.estimators.estimate import EstimationOptions as CoreOptions
from posbias.core.estimators.estimate import MethodOfRows
from posbias.core.roles import words_in
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, PREVIOUS_CLICK, QUERY, RANDOMIZED, RESERVED
from posbias.core.training.layout import LayoutOfPages, choose_grouping, get_layout, layouts_of_pages
from posbias.core.training.weights import WeightOptions, check_min_propensity
from posbias.io.counting.warehouse import WarehouseQuery, about_export
from posbias.io.fits.saved_fit import CellPropensities, StoredFit
from posbias.io.forms.page_structure import team_error
from posbias.io.jobs.fit import CellFit, Job
from posbias.io.jobs.training import TrainingRequest, WeightRequest
from posbias.io.log.click_log import LogRequest
from posbias.io.log.exports import Export
from posbias.io.options import ModelsOptions
from posbias.io.stores.store import Statistics, find_statistics
from posbias.io.training import check_format, get_format
from posbias.io.training.feature_parts import FeaturesRequest, RowsRequest
from posbias.io.training.feature_tables import is_in_a_table

if TYPE_CHECKING:
    from posbias.io.jobs.click_models import PageFit


def statistics_plan(log: groups.LogOptions, counting: groups.CountingOptions) -> StatisticsPlan:
    """Return the plan of the counts that options describe.

    Raises:
        UsageError: an option cannot be parsed, or conflicts with another option.
    """
    model = counted_model(counting.model or DEFAULT_MODEL)
    context, cell, strata = tuple(log.context or ()), tuple(log.cell or ()), tuple(log.stratify or ())
    version, clusters, arms = (
        () if name is None else (name,) for name in (log.period_column, log.cluster_column, log.arm)
    )
    columns_by_flag = {"--stratify": strata, "--period-column": version, "--cluster-column": clusters, "--arm": arms}
    check_named_columns(model, (*columns_by_flag.items(), ("--context", context), ("--cell", cell)))
    differs, separating = "already lets attractiveness differ by it", (*context, *strata, *version)
    compares = "--cell compares a document under its different values, which then share none"
    once = "attractiveness may already differ by it, so that its values share no documents. Name it once"
    conflicts = (
        ("--stratify", context, f"--context {differs}. Leave one of them out"),
        ("--stratify", cell, f"{compares}. Leave one of them out"),
        ("--period-column", (*context, *strata), f"--context or --stratify {differs}. Leave it out"),
        ("--cluster-column", separating, once),
        ("--arm", separating, once),
    )
    for flag, columns, why in conflicts:
        if shared := sorted({*columns_by_flag[flag]} & {*columns}):
            raise UsageError(f"{flag} {' '.join(shared)}: {why}.")
    if arms:
        refusals = {
            f"works only with --model {DEFAULT_MODEL}, not {model.name}": model.beside_position,
            "--cluster-column already names it. Name the users, markets or days there": arms == clusters,
            "arms are compared by impressions that count one each. Leave out --weight-column": log.weight_column,
        }
        for reason, holds in refusals.items():
            if holds:
                raise UsageError(f"--arm {arms[0]}: {reason}.")
    _check_days(log, counting)
    # The resolution of times: `auto` looks into periods and needs quarters of an hour; for weeks days suffice.
    period = "day" if log.timestamp is not None or counting.date is not None else None
    if period is not None and counting.date is None and counting.period in {"auto", "hour", "none"}:
        period = "quarter" if counting.period == "auto" else "hour" if counting.period == "hour" else None
    check_curves(model, context, cell)
    return StatisticsPlan(
        model=model,
        max_position=counting.max_position,
        position_bins=parse_bins(counting.position_bins),
        context=context,
        cell=cell,
        period=period,
        strata=(*strata, *version),
        clusters=clusters,
        arms=arms,
        randomized=tuple(RandomizedRows.parse(text) for text in log.randomized_where or ()),
        weighted=log.weight_column is not None,
        summed=log.impressions is not None,
    )


def _check_days(log: groups.LogOptions, counting: groups.CountingOptions) -> None:
    day = counting.date
    if day is None:
        if counting.period not in {"auto", "none"} and log.timestamp is None:
            raise UsageError(f"--period {counting.period} needs a column of dates or times: --timestamp COLUMN.")
        return
    if counting.period == "hour":
        raise UsageError(f"--date {day}: is a day, and --period hour needs times: --timestamp COLUMN.")
    check_day("--date", day)
    if date.fromisoformat(day) > date.today() + timedelta(days=1):  # noqa: DTZ011 - tomorrow has begun somewhere
        raise UsageError(f"--date {day}: is in the future. Give the day that the log is from.")
    if log.timestamp is not None:
        raise UsageError(
            f"--date {day}: --timestamp {log.timestamp} already gives the day of each row. Leave one of them out."
        )
    if counting.period == "none":
        raise UsageError(f"--date {day}: --period none keeps no days. Leave one of them out.")


def check_day(flag: str, text: str) -> date:
    """Parse a day YYYY-MM-DD.

    Raises:
        UsageError: not a day in this form.
    """
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise UsageError(f"{flag} {text}: give a day such as 2026-01-31.")
    return day


def check_counting(plan: StatisticsPlan, counting: groups.CountingOptions, log: groups.LogOptions) -> None:
    """Raise StatisticsError for an option that differs from the plan with which statistics were collected."""
    version = log.period_column
    strata = [name for name in plan.strata if name != version]  # --period-column is a stratum of its own
    period = None if counting.period in {"auto", "none"} else counting.period
    options: list[tuple[str, object, object]] = [  # flag, requested value, value of the plan
        ("--model", counting.model, plan.model.name),
        ("--max-position", counting.max_position, plan.max_position),
        ("--position-bins", counting.position_bins, ",".join(map(str, plan.position_bins)) or None),
        ("--cell", _words(log.cell), _words(plan.cell)),
        ("--context", _words(log.context), _words(plan.context)),
        ("--stratify", _words(log.stratify), _words(strata)),
        ("--period-column", version, version if version in plan.strata else None),
        ("--cluster-column", log.cluster_column, _words(plan.clusters)),
        ("--arm", log.arm, _words(plan.arms)),
        ("--randomized-where", _words(log.randomized_where), _words(map(str, plan.randomized))),
        ("--weight-column", log.weight_column, log.weight_column if plan.weighted else None),
        ("--timestamp", log.timestamp, log.timestamp if plan.period else None),
        ("--period", period, period if period in plan.lengths else plan.period),
    ]
    for flag, requested, counted in options:
        if requested not in (None, counted):
            how = f"with {flag} {counted}" if counted is not None else f"without {flag}"
            raise StatisticsError(
                f"{flag} {requested}: the statistics were collected {how}. "
                "Leave it out, or collect the logs again with it."
            )


def _words(names: Iterable[str] | None) -> str | None:
    return " ".join(names or ()) or None


def _cells_in_words(plan: StatisticsPlan) -> str:
    bins, cell = ",".join(map(str, plan.position_bins)), f", cell {','.join(plan.cell)}" if plan.cell else ""
    start = f"model {plan.model.name}, max-position {plan.max_position or 'none'}, position-bins {bins or 'none'}"
    return f"{start}, context {','.join(plan.context) or 'none'}{cell}"


CELL_COLUMNS = (
    "cell",
    "context",
    "period_column",
    "stratify",
    "cluster_column",
    "arm",
    "randomized_where",
    "timestamp",
)
"""Options for columns that only a fit by cell reads."""


def _check_rows(log: groups.LogOptions, model: str, pages_for: str | None) -> None:
    """Raise UsageError for an option without a meaning for a table of sums, or for a log without queries.

    Args:
        log: how the log is read.
        model: the option --model where the model needs whole pages; else empty.
        pages_for: another option that needs whole pages.
    """
    refusals: list[tuple[object, str | None, str]] = []  # condition, option, reason
    if log.impressions is not None:
        sums = "the rows of a table of sums (--impressions) add up many pages. Leave it out"
        pages = "needs whole pages, which a table of sums (--impressions) does not hold. Leave it out, or give the log"
        row = "a row of a table of sums (--impressions) is one query, document and position. Leave it out"
        event = "a row of a table of sums is no event. Leave it out"
        number = "in a table of sums (--impressions), --click names their number. Leave it out"
        weight = "--impressions says already what a row stands for. Leave it out"
        several = "takes several clicks for one, but a sum counts all. Leave it out"
        refusals += [
            (log.click_counts, "--click-counts", several),
            (log.weight_column, "--weight-column", weight),
            (log.session, "--session", sums),
            (log.impression_where, "--impression-where", event),
            (log.clicks, "--clicks", number),
            (log.input_format not in {"auto", "flat"}, f"--input-format {log.input_format}", row),
            (model, model, pages),
            (pages_for, pages_for, pages),
        ]
    if log.no_query:
        keep = "cannot be combined with --no-query. Use --duplicate-docs keep"
        alone = (
            "compares the documents of a page, and without queries (--no-query) each is compared with itself only. "
            "Name what pages have in common, such as the slot, with --query COLUMN instead"
        )
        refusals += [
            (log.query, "--query", "--no-query says that the log has none. Leave one of them out"),
            (model, model, alone),
            (pages_for, pages_for, alone),
            (log.duplicate_docs == "first", "--duplicate-docs first", keep),
        ]
    for is_set, option, reason in refusals:
        if is_set:
            raise UsageError(f"{option}: {reason}.")


def resolve(
    inputs: Sequence[str],
    log: groups.LogOptions,
    counting: groups.CountingOptions,
    statistics: Sequence[Statistics] | None = None,
    *,
    sessions_for: str | None = None,
    features: FeaturesRequest | None = None,
    decay: float | None = None,
    only_fit: bool = False,
    detect_timestamp: bool = False,
) -> Job:
    """Validate options and return the job to read and count the inputs.

    Args:
        inputs: logs or statistics, as named by the user.
        log: how logs are read.
        counting: how impressions are counted.
        statistics: the statistics among the inputs; looked up if None.
        sessions_for: the option that needs whole pages; None without.
        features: columns of the log, and tables, to learn from.
        decay: the factor per day by which older days weigh less, in (0, 1]; None for equal weights.
        only_fit: whether ids serve only to distinguish documents.
        detect_timestamp: whether to detect a column of times where no option gives the days.

    Raises:
        StatisticsError: statistics lack what an option needs, or were collected with other options.
        UsageError: an option cannot be parsed, or conflicts with another option.
    """
    detect_timestamp, log = detect_timestamp and log.timestamp is None and counting.date is None, drop_none(log)
    statistics = find_statistics(inputs) if statistics is None else statistics
    features, request = features or FeaturesRequest(), None
    export = None if statistics else export_of(inputs, log)
    needed_for = sessions_for or ("--feature" if features.columns else None)
    if needed_for is not None and statistics:
        raise StatisticsError(
            f"{statistics[0].path} holds statistics; {needed_for} needs the logs. Give the logs, or leave it out."
        )
    if needed_for is not None and export is not None:
        raise StatisticsError(
            f"{export.where} holds counts of a warehouse; {needed_for} needs the log itself. Give the log, or leave it "
            "out."
        )
    if export is not None:
        plan, request = _export_request(inputs, export, log, counting, only_fit=only_fit)
    elif statistics:
        plan = statistics[0].metadata.plan
        check_counting(plan, counting, log)
    else:
        plan = statistics_plan(log, counting)
        _check_rows(log, f"--model {plan.model.name}" if plan.model.needs_session else "", sessions_for)
        request = log_request(
            inputs, log, plan, day=counting.date, sessions_for=sessions_for, features=features.columns
        )
        request = replace(request, detect_timestamp=detect_timestamp)
    if decay is not None and not 0 < decay <= 1:
        raise UsageError(f"--decay {decay:g}: must be above 0 and at most 1.")
    if decay is not None and not plan.period:
        raise UsageError(
            f"--decay {decay:g}: the days are not known. Count the logs with --date or --timestamp (and without "
            "--period none)."
        )
    return Job(tuple(inputs), plan, request, tuple(statistics), sessions_for, features.tables, decay)


def job_for_propensities(
    inputs: Sequence[str],
    log: groups.LogOptions,
    fitted: CellPropensities | None,
    *,
    beside: Sequence[str] = (),
    sessions_for: str | None = None,
    features: FeaturesRequest | None = None,
    as_counted: Callable[[StatisticsPlan], StatisticsPlan] | None = None,
) -> tuple[Job, groups.LogOptions]:
    """Return the job that counts the cells of propensities, and the options of the log with the columns it reads.

    Args:
        inputs: logs or statistics, as named by the user.
        log: how logs are read.
        fitted: the propensities, if there are any.
        beside: options for further columns to read, such as `timestamp`.
        sessions_for: the option that needs whole pages; None without.
        features: columns of the log, and tables, to learn from.
        as_counted: maps the plan of statistics to the cells to be used; by default the cells as collected.

    Raises:
        StatisticsError: statistics have other cells.
        UsageError: --context or --cell differ from those of the propensities, or options conflict.
    """
    statistics, counting = find_statistics(inputs), groups.CountingOptions(period="none")
    given = fitted is not None and not isinstance(fitted, StoredFit)
    if fitted is not None and given:  # a user's own table does not tell columns of cells from contexts
        columns = statistics[0].metadata.plan.cell if statistics else log.cell or ()
        cells = tuple(name for name in columns if name in fitted.plan.context)
        context = tuple(name for name in fitted.plan.context if name not in cells)
        fitted = replace(fitted, plan=replace(fitted.plan, context=context, cell=cells))
    if fitted is not None and not statistics:
        plan = fitted.plan
        for name, requested, columns in (("context", log.context, plan.context), ("cell", log.cell, plan.cell)):
            if requested and tuple(requested) != columns:
                raise UsageError(
                    f"--{name} {' '.join(requested)}: the propensities in {fitted.name} "
                    + (f"differ by {' '.join(columns)}. " if columns else f"have no {name}. ")
                    + ("Name columns of the table." if given else "Fit again with it, or leave it out.")
                )
        period = "day" if "timestamp" in beside and drop_none(log).timestamp else "none"
        bins = ",".join(map(str, plan.position_bins)) or None
        counting = groups.CountingOptions(plan.model.name, plan.max_position, bins, period)
        further = {name: getattr(log, name) for name in beside}
        log = replace(without_cell_columns(log), cell=list(plan.cell), context=list(plan.context), **further)
    job = resolve(inputs, log, counting, statistics, sessions_for=sessions_for, features=features)
    reads_counts = job.log is None or job.log.export is not None
    if fitted is not None and reads_counts:
        counted = job.plan if as_counted is None else as_counted(job.plan)
        estimated = replace(fitted.plan, max_position=counted.max_position) if given else fitted.plan
        if _cells_in_words(counted) != _cells_in_words(estimated):
            raise StatisticsError(
                f"the statistics were collected with {_cells_in_words(counted)}; the propensities in {fitted.name} "
                f"are for {_cells_in_words(estimated)}. Collect with the same options as the fit."
            )
    only = fitted.only if isinstance(fitted, StoredFit) else ()  # (column, value) of a fit by --for-each
    if only and reads_counts:
        raise StatisticsError(
            f"{job.inputs[0]} holds counts, in which the values of {printable(only[0][0])} are added up, and the fit "
            "is of one of them (--for-each). Give the logs."
        )
    return job.with_roles(only=only) if only else job, log


def _export_request(
    inputs: Sequence[str], export: Export, log: groups.LogOptions, counting: groups.CountingOptions, *, only_fit: bool
) -> tuple[StatisticsPlan, LogRequest]:
    """Return the plan of exported warehouse counts, and the request that reads them as a table of sums.

    Raises:
        StatisticsError: the counts were made with other options, or their ids serve only for a fit.
        UsageError: --date is not a day or in the future, or the counts already have days.
    """
    about = about_export(export)
    if about.ids == "number" and not only_fit:
        raise StatisticsError(
            f"{export.where}: its ids are numbers that hold in this result alone (--ids number), and documents that "
            "compare no positions are left out. `posbias fit` estimates propensities from it; for all else, leave out "
            "--ids, or use --ids hash."
        )
    counted = about.counted.plan()
    time = PERIOD if counted.period else None
    _check_days(groups.LogOptions(timestamp=time), replace(counting, period="auto"))
    plan = replace(
        counted,
        max_position=counting.max_position,
        position_bins=parse_bins(counting.position_bins),
        period="day" if counting.date is not None else counted.period,
        summed=True,
    )
    check_counting(plan, counting, log)
    reading = ("on_bad_rows", "max_bad_rows", "memory", "threads", "temp_dir", "engine", "master")
    columns = groups.LogOptions(
        query=[QUERY],
        doc=[DOC],
        position=POSITION,
        click=CLICKS,
        impressions=IMPRESSIONS,
        timestamp=time,
        page="none",
        input_format="flat",
        **{name: getattr(log, name) for name in reading},
    )
    request = log_request(inputs, columns, plan, day=counting.date, sessions_for=None, features=())
    numbers = [PREVIOUS_CLICK] * plan.model.needs_session + [RANDOMIZED] * bool(plan.randomized)
    roles = replace(request.roles, counted=tuple(numbers), randomized=())
    return plan, replace(request, roles=roles, needs_session=False, export=export)


def warehouse_query(table: str, columns: groups.ColumnOptions, warehouse: groups.WarehouseOptions) -> WarehouseQuery:
    """Return the query that counts a table as options describe.

    Raises:
        UsageError: an option cannot be parsed, or conflicts with another option.
    """
    log = groups.LogOptions(**{entry.name: getattr(columns, entry.name) for entry in fields(columns)})
    counting = groups.CountingOptions(model=warehouse.model, period="none" if log.timestamp is None else "day")
    plan = statistics_plan(log, counting)
    model_flag = f"--model {plan.model.name}" if plan.model.needs_session else ""
    _check_rows(log, model_flag, None)
    if model_flag and not log.session:
        raise UsageError(f"{model_flag}: looks at the clicks above on a page. Name the pages with --session COLUMN.")
    if model_flag and warehouse.check_pages == "sample":
        raise UsageError(f"--check-pages sample: {model_flag} needs pages that are sound. Leave it out.")
    if (warehouse.ids == "hash") is not (warehouse.salt is not None):
        raise UsageError("--ids hash and --salt TEXT: need each other. Without a salt, hashes can be guessed.")
    request = log_request([table], log, plan, day=None, sessions_for=None, features=())
    for mark in request.roles.randomized:
        if "team" in words_in(mark.column):
            raise team_error(mark, "Mark the rounds that both order differently in a view, by their ranks.")
    options = (warehouse.check_pages, warehouse.ids, warehouse.salt, warehouse.min_impressions)
    return WarehouseQuery(table, request.roles, request.rules, plan, *options)


def model_to_fit(
    counting: groups.CountingOptions,
    estimation: groups.EstimationOptions,
    features: groups.FeatureOptions | groups.TrainingOptions,
    log: groups.LogOptions,
    weigh_by: Source = "smooth",
) -> "CellFit | PageFit":
    """Return the model to fit, with its validated options.

    Args:
        counting: the name of the model, and the period.
        estimation: method, priors, standard errors.
        features: the features of a method of rows.
        log: how the log is read.
        weigh_by: the propensities to be used for weights: smoothed or as fitted.

    Raises:
        PosbiasError: an option cannot be parsed, is out of range, or conflicts with another option; or LightGBM is
            missing.
    """
    prior = estimation.attractiveness_prior
    fixed_prior = None if prior == "estimate" else parse_prior("--attractiveness-prior", prior)
    if counting.model is not None and counting.model not in MODELS:
        from posbias.core.models import get_click_model  # noqa: PLC0415 - only for click models
        from posbias.core.models.em import EMOptions  # noqa: PLC0415 - only for click models
        from posbias.io.jobs.click_models import PageFit, read_trust  # noqa: PLC0415 - only for click models

        model = get_click_model(counting.model)
        if model.name == "tpbm" and estimation.trust is None:
            raise UsageError(
                "--model tpbm: clicks alone do not tell trust bias from attractiveness: P(click) = alpha_k gamma + "
                "beta_k stays the same if gamma is stretched or moved and alpha and beta are changed to fit, so that "
                "every such curve explains the log equally well. Give alpha and beta of each position, e.g. from an "
                "experiment with judged documents: --trust FILE."
            )
        trust = {} if estimation.trust is None else read_trust(estimation.trust)
        em = EMOptions(prior=fixed_prior, passes=estimation.max_iterations or EMOptions.passes, fixed=trust)
        return PageFit(model, em, estimation.trust, estimation.csv)
    rows, method, score = None, estimation.method, estimation.ranker_score
    if isinstance(get_method(method), MethodOfRows):
        if not features.features and not features.feature:
            raise UsageError(
                f"--method {method}: says nothing without features. Name a table of them (--features FILE) or columns "
                "of the log (--feature COLUMN)."
            )
        if log.engine != "polars":
            raise UsageError(f"--method {method}: runs on this machine only. Use --engine polars.")
        from posbias.core.learners.boosting import import_lightgbm  # noqa: PLC0415 - only for methods of rows

        import_lightgbm()
        rows = RowsRequest(method, features_request(features, score), score, estimation.sample_pages)
    if estimation.tolerance is not None and not estimation.tolerance < 1:
        raise UsageError(f"--tolerance {estimation.tolerance:g}: must be below 1; it is a relative change.")
    options = CoreOptions(
        attractiveness_prior=fixed_prior,
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
        cell_form=estimation.cell_form,
        shrink=estimation.shrink,
        weigh_by=weigh_by,
    )
    joint_em_option = "--no-acceleration" if estimation.no_acceleration else None
    if estimation.examination_prior != groups.EstimationOptions().examination_prior:
        joint_em_option = f"--examination-prior {estimation.examination_prior}"
    return CellFit(method, options, estimation.compare, estimation.csv, estimation.strict, rows, joint_em_option)


def job_of_fit(
    model: "CellFit | PageFit",
    inputs: Sequence[str],
    log: groups.LogOptions,
    counting: groups.CountingOptions,
    files: TrainingRequest | None = None,
    decay: float | None = None,
) -> Job:
    """Return the job that reads a log to fit a model, and to write training files if `files` are requested.

    Raises:
        PosbiasError: options conflict, or statistics lack what the model needs.
    """
    columns = (*(files.features.columns if files else ()), *model.features.columns)
    tables = files.features.tables if files else model.features.tables
    features, statistics = FeaturesRequest(tables, tuple(dict.fromkeys(columns))), find_statistics(inputs)
    pages_for, by_strata = (files and files.sessions_for) or model.sessions_for, False
    if isinstance(model, CellFit):
        by_strata = get_method(model.method).uses_strata
        if by_strata and not statistics and drop_none(log).timestamp is not None and counting.date is None:
            counting = replace(counting, period="auto")  # times of day, for tests within the periods
    else:  # a click model may be fitted from statistics of pages
        log, counting = without_cell_columns(log), groups.CountingOptions(max_position=counting.max_position)
        pages_for, decay = None if statistics else pages_for, None
    job = resolve(
        inputs,
        log,
        counting,
        statistics,
        sessions_for=pages_for,
        features=features,
        decay=decay,
        only_fit=files is None,
        detect_timestamp=by_strata,
    )
    model.check(job)
    return job


def without_cell_columns(log: groups.LogOptions) -> groups.LogOptions:
    """Unset `CELL_COLUMNS`."""
    return replace(log, **dict.fromkeys(CELL_COLUMNS))


def jobs_of_models(inputs: Sequence[str], log: groups.LogOptions, models: ModelsOptions) -> tuple[Job, Job | None]:
    """Return the job of the log that click models are fitted to, and of the test log if --test names one.

    Raises:
        UsageError: options conflict.
    """
    if models.test and log.clicks:
        raise UsageError("--test: clicks in a table of their own (--clicks) belong to one log. Use --split instead.")
    by_time = models.split == "time" and not models.test
    if by_time and log.timestamp is None:
        raise UsageError("--split time needs a column of dates or times: --timestamp COLUMN.")
    counting = groups.CountingOptions(period="auto" if by_time else "none")
    log = replace(without_cell_columns(log), timestamp=log.timestamp if by_time else None)
    job_of = partial(resolve, log=log, counting=counting, statistics=(), sessions_for="posbias evaluate --models")
    return job_of(inputs), job_of(models.test) if models.test else None


def job_of_interleaving(
    inputs: Sequence[str], log: groups.LogOptions, day: str | None, columns: Sequence[str], *, needs_days: bool
) -> Job:
    """Return the job that reads the pages of an interleaved log.

    Args:
        inputs: the logs.
        log: how they are read.
        day: of all rows, where no column has it.
        columns: of teams, ranks, users and outcomes.
        needs_days: whether the days must be known.

    Raises:
        UsageError: options conflict, or the days are needed and not known.
    """
    if needs_days and day is None and drop_none(log).timestamp is None:
        raise UsageError("--into: say of which day the log is: --date YYYY-MM-DD, or --timestamp COLUMN.")
    if log.weight_column is not None:
        raise UsageError("--weight-column: verdicts count pages, each of which counts once. Leave it out.")
    timed = drop_none(log).timestamp is not None
    counting = groups.CountingOptions(period="day" if day is not None else "hour" if timed else "none", date=day)
    features = FeaturesRequest((), tuple(columns))
    log, pages_for = replace(without_cell_columns(log), timestamp=log.timestamp), "posbias interleave"
    job = resolve(inputs, log, counting, (), sessions_for=pages_for, features=features, detect_timestamp=True)
    return job.with_roles(features_by="--team, --rank-a, --rank-b, --user, --outcome")


def features_request(
    given: groups.FeatureOptions | groups.TrainingOptions | groups.LearningOptions, score: str | None = None
) -> FeaturesRequest:
    """Return the features to learn from, with the column of the ranker's score unless a table has it.

    Raises:
        UsageError: a column has a reserved name.
    """
    tables, columns = tuple(given.features or ()), tuple(given.feature or ())
    for flag, name in [*(("--feature", name) for name in columns), ("--ranker-score", score)]:
        if name in RESERVED:
            raise UsageError(f"{flag} {name}: this name is reserved. Rename the column to use it as a feature.")
    if score is not None and score not in columns and not is_in_a_table(score, tables):
        columns = (*columns, score)
    return FeaturesRequest(tables, columns, given.missing)


def training_request(training: groups.TrainingOptions) -> TrainingRequest:
    """Return the validated request of training files.

    Raises:
        UsageError: a value is out of range, or options conflict.
    """
    layout, own = get_layout(training.layout), LayoutOptions(**(training.layout_options or {}))
    features = features_request(training)
    check_format(training.format, layout, has_features=bool(features.tables or features.columns))
    form = get_format(training.format)
    if "search_index" in form.takes and not own.search_index:
        raise UsageError(
            f"--format {training.format}: a rating names the index that its document is in. Add "
            "--layout-options search_index=NAME."
        )
    check_min_propensity(training.min_propensity)
    if not 0 <= training.validation < 1:
        raise UsageError(f"--validation {training.validation:g}: must be at least 0 and below 1, e.g. 0.1.")
    if own.validation_by == "session" and not layout.from_pages:
        raise UsageError(
            f"--layout-options validation_by=session: --layout {layout.name} adds up all pages of a query. "
            f"Hold out queries, or choose another layout: {', '.join(layouts_of_pages())}."
        )
    expected_labels = "negatives" in layout.takes and own.negatives == "posterior"
    options = WeightOptions(
        training.min_propensity,
        training.self_normalize and layout.weighted is not None,
        own.negatives,
        own.rate,
        own.grades,
        0 if layout.weighted is None or expected_labels else own.replicates,
    )
    in_rows = features.columns if isinstance(layout, LayoutOfPages) and layout.rows_are_impressions else ()
    grouping = choose_grouping(layout, own.group)
    across = not layout.from_pages or (layout.weighted == "row" and grouping == "query")
    return TrainingRequest(
        layout,
        grouping,
        form,
        own.search_index,
        WeightRequest(options, training.propensity, training.unidentified == "error", in_rows, across),
        features,
        training.validation,
        own.validation_by,
    )
