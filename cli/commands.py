"""The commands as functions: their arguments and options, and the calls that carry them out."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from posbias.cli.messages import print_message
from posbias.cli.options import groups
from posbias.cli.options.config import DEFAULT_FILE, settings_text
from posbias.cli.options.option import parse_memory, plain_options
from posbias.core.errors import StatisticsError, UsageError, plural
from posbias.io.options import EvaluationOptions, InterleavingOptions, ModelsOptions, PredictionOptions, ServingOptions
from posbias.io.places.locations import Location, location

if TYPE_CHECKING:
    from posbias.io.engines.engine import Engine
    from posbias.io.jobs.tables import Result


def run(
    logs: list[str],
    log: groups.LogOptions,
    counting: groups.CountingOptions,
    estimation: groups.EstimationOptions,
    training: groups.TrainingOptions,
    output: Location,
    printing: groups.ResultOptions,
) -> int:
    """Run the whole job: from click logs to propensities, attractiveness and training files.

    Example: posbias run logs/*.parquet -o result
    """
    from posbias.cli.work import execution, requests
    from posbias.io.jobs.fit import CellFit
    from posbias.io.jobs.training import write_training_files

    files = requests.training_request(training)
    model = requests.model_to_fit(counting, estimation, training, log, training.propensity)
    model.check_weights(files.layout, files.weights.options)
    job = requests.job_of_fit(model, logs, log, counting, files)

    def work(engine: "Engine", result: "Result") -> None:
        data, weigh = model.fit(job, engine, result)
        write_training_files(data, weigh, files, engine, result)
        if isinstance(model, CellFit):  # others have no propensities by position
            result.next = f"posbias train LOGS --features TABLE --propensities {result.target} -o ranker"

    options = plain_options(log, counting, estimation, training)
    also_read = [*files.features.tables, *model.also_read]
    return execution.run_job("run", job, log, output, printing, options, also_read, work)


def collect(
    log: groups.LogOptions,
    counting: groups.CountingOptions,
    *,
    decay: float | None = None,
    gate: float | None = None,
    store: groups.StoreOptions,
    output: Location | None = None,
    info: bool = False,
    printing: groups.ResultOptions,
    inputs: list[str] | None = None,
) -> int:
    """Count a log once and for all, into compact statistics that can be merged across days.

    Example: posbias collect logs/2026-01-05.parquet --date 2026-01-05 --into store
    """
    from posbias.cli.work import stores

    if store.remove_day is not None:
        return stores.remove_day(inputs or [], store.remove_day, store, log, printing)
    if not inputs:
        raise UsageError("LOGS|STATISTICS... is missing: name the logs to count, or the statistics to merge.")
    if info:
        return stores.show_info(inputs, as_json=printing.json)
    if store.into is not None:
        return stores.add_day(inputs, log, counting, decay, gate, store, printing)
    return stores.count_or_merge(inputs, log, counting, decay, gate, output, printing)


def sql(
    table: str,
    columns: groups.ColumnOptions,
    warehouse: groups.WarehouseOptions,
    *,
    output: Path | None = None,
    force: bool = False,
    quiet: bool = False,
    config: Path | None = None,
) -> int:
    """Print a query that counts a log in its warehouse: its result, exported, is read like statistics.

    Example: posbias sql shop.impressions --dialect bigquery --session serp -o counts.sql
    """
    import typer

    from posbias.cli.report.printing import check_stdout
    from posbias.cli.work.requests import warehouse_query
    from posbias.io.results.outputs import check_file, write_file

    read = [config or Path(DEFAULT_FILE)]
    if output is not None:
        check_file(output, "query", read, force=force)
    query = warehouse_query(table, columns, warehouse)
    text = query.text(warehouse.dialect)
    if output is None:
        typer.echo(text, nl=False)
        check_stdout()
    else:
        write_file(output, text, "query", read, force=force)
    if not quiet:
        for remark in query.remarks:
            print_message(remark)
        written = "" if output is None else f"written: {output}. "
        print_message(f"{written}Run it, export its result as Parquet or CSV, then: posbias fit EXPORT -o DIR")
    return 0


def fit(
    inputs: list[str],
    log: groups.LogOptions,
    counting: groups.CountingOptions,
    *,
    decay: float | None = None,
    estimation: groups.EstimationOptions,
    features: groups.FeatureOptions,
    for_each: str | None = None,
    output: Location,
    printing: groups.ResultOptions,
) -> int:
    """Estimate propensities and attractiveness from logs or statistics.

    Example: posbias fit statistics/2026-01-* -o fit
    """
    from posbias.cli.work import execution, requests
    from posbias.io.jobs.each_value import check_column, fit_each
    from posbias.io.jobs.fit import CellFit

    options = plain_options(log, counting, decay=decay) | plain_options(estimation, features, for_each=for_each)
    model = requests.model_to_fit(counting, estimation, features, log)
    job = requests.job_of_fit(model, inputs, log, counting, decay=decay)
    if for_each is not None and isinstance(model, CellFit):
        check_column(job, for_each, model)

    def work(engine: "Engine", result: "Result") -> None:
        if for_each is not None and isinstance(model, CellFit):
            fit_each(job, for_each, model, engine, options, result)
        else:
            model.fit(job, engine, result)

    return execution.run_job("fit", job, log, output, printing, options, model.also_read, work)


def explore(
    fit: Location,
    *,
    pages: int = 10_000,
    top: int = 10,
    ucb: float | None = None,
    output: Location,
    printing: groups.PrintOptions,
) -> int:
    """Say which positions to swap, and which documents to show, to learn most.

    Example: posbias explore fit --pages 20000 -o explored
    """
    from posbias.cli.report.result import write_result
    from posbias.io.jobs import exploring

    work = partial(exploring.explore, fit, pages=pages, top=top, ucb=ucb)
    return write_result("explore", [fit], output, printing, plain_options(pages=pages, top=top, ucb=ucb), work)


def compare(
    inputs: list[str],
    *,
    by: Literal["day"] | None = None,
    max_change: float | None = None,
    fail_if: list[str] | None = None,
    output: Location | None = None,
    csv: bool = False,
    printing: groups.PrintOptions,
) -> int:
    """Compare the propensities of two results, or of the days of a store.

    Example: posbias compare last_week this_week --max-change 0.2 --fail-if change
    """
    import msgspec

    from posbias.cli.report.printing import SafeConsole, in_order, print_on_stdout, print_warnings, renderable
    from posbias.cli.report.result import show_progress, write_result
    from posbias.cli.work.execution import open_engine
    from posbias.io.jobs import comparing
    from posbias.io.jobs.tables import Result
    from posbias.io.results.conclusions import CAUTION, STOP, Reason
    from posbias.io.results.tables import write_small_table

    comparing.check_conditions(max_change, fail_if or ())

    def work(result: "Result") -> None:
        with open_engine(groups.LogOptions(), Path() if output is None else output) as engine:
            table = comparing.compare(
                inputs, engine, result, by_day=by == "day", max_change=max_change, fail_if=fail_if or ()
            )
        if output is not None:
            write_small_table(table, result.folder, comparing.COMPARISON, csv=csv)

    if output is not None:
        options = plain_options(by=by, max_change=max_change, fail_if=fail_if)
        return write_result("compare", inputs, output, printing, options, work)
    with show_progress(SafeConsole(stderr=True), quiet=printing.quiet) as progress:
        work(result := Result(Path(), progress))
    conclusion = result.conclusion
    content = msgspec.to_builtins(conclusion) | result.content | {"warnings": result.warnings}
    items = [] if printing.quiet else in_order(conclusion, result.printed, result.facts, details=printing.details)
    on_stdout = [item for item in items if not (isinstance(item, Reason) and item.severity in {CAUTION, STOP})]
    renderables = [renderable(item, details=printing.details) for item in on_stdout]
    print_on_stdout(renderables, content if printing.json else None)
    print_warnings(conclusion, SafeConsole(stderr=True))
    return result.exit_code


def simulate(world: groups.WorldOptions, output: Location, printing: groups.PrintOptions) -> int:
    """Simulate a click log of which the truth is known, from scratch or from graded labels.

    Example: posbias simulate -o simulated
    """
    from posbias.cli.report.result import write_result
    from posbias.cli.work.simulation import simulation_options
    from posbias.core.simulation.worlds import JudgementOptions
    from posbias.io.jobs import simulating

    values = {name: getattr(world, name) for name in ("click_noise", "ranker", "ranker_queries")}
    judgements = JudgementOptions(**{name: value for name, value in values.items() if value is not None})
    simulation, labels = simulation_options(world), world.labels
    inputs = [] if labels is None else [labels]
    return write_result(
        "simulate",
        inputs,
        output,
        printing,
        plain_options(world),
        lambda result: simulating.simulate(simulation, labels, judgements, result, output),
    )


def demo(*, output: Location = Path("posbias-demo"), force: bool = False) -> int:
    """Write a small log, run the main commands on it, and say in a sentence what each prints. Takes some ten seconds.

    Example: posbias demo -o posbias-demo
    """
    from posbias.cli.report.result import write_result
    from posbias.cli.work.simulation import demonstrate

    printing = groups.PrintOptions(force=force, quiet=True)  # its commands print on their own
    code = write_result("demo", [], output, printing, {}, demonstrate)
    print_message(f"written: {output}")
    return code


def weight(
    inputs: list[str],
    propensities: str,
    log: groups.LogOptions,
    training: groups.TrainingOptions,
    output: Location,
    printing: groups.ResultOptions,
) -> int:
    """Write training files whose weights correct for position bias.

    Example: posbias weight logs/*.parquet --propensities fit -o weighted
    """
    from posbias.cli.work import execution, requests
    from posbias.core.models.em import EMOptions
    from posbias.io.fits.saved_fit import is_table_or_power, read_theta
    from posbias.io.jobs.agreement import disagreement
    from posbias.io.jobs.click_models import ClickModelFit, PageFit, read_fitted, weigh_by_row
    from posbias.io.jobs.fit import count, name_propensities, read_pages
    from posbias.io.jobs.training import weigh_by_cell, write_training_files
    from posbias.io.stores.store import find_statistics

    files = requests.training_request(training)
    fitted = read_theta(propensities) if is_table_or_power(propensities) else read_fitted(location(propensities))
    if isinstance(fitted, ClickModelFit):
        model = PageFit(fitted.model, EMOptions())
        model.check_weights(files.layout, files.weights.options)
        if statistics := find_statistics(inputs):
            raise StatisticsError(
                f"{statistics[0].path} holds statistics, and {model.sessions_for} weighs the impressions of pages. "
                "Give the logs."
            )
        counting = groups.CountingOptions(max_position=fitted.plan.max_position)
        pages, pages_for = requests.without_cell_columns(log), model.sessions_for
        job = requests.resolve(inputs, pages, counting, (), sessions_for=pages_for, features=files.features)
        weigh, also_read = partial(weigh_by_row, fitted), [str(location(propensities))]
    else:
        weigh, also_read = partial(weigh_by_cell, fitted.theta), fitted.files
        pages_for = files.sessions_for
        job, log = requests.job_for_propensities(inputs, log, fitted, sessions_for=pages_for, features=files.features)

    def work(engine: "Engine", result: "Result") -> None:
        result.content["propensities"] = propensities
        if not isinstance(fitted, ClickModelFit):
            name_propensities(fitted, result)
        data = (count if job.sessions_for is None else read_pages)(job, engine, result)
        if not isinstance(fitted, ClickModelFit):
            result.reasons += disagreement(fitted, data, engine, result.progress)
        write_training_files(data, weigh, files, engine, result)

    also_read = [*also_read, *files.features.tables]
    return execution.run_job("weight", job, log, output, printing, plain_options(log, training), also_read, work)


def train(
    inputs: list[str],
    log: groups.LogOptions,
    learned: groups.LearningOptions,
    output: Location,
    printing: groups.ResultOptions,
    propensities: str | None = None,
) -> int:
    """Train a ranker on clicks, corrected for position bias.

    Example: posbias train logs/*.parquet --features features.parquet --propensities fit -o ranker
    """
    from posbias.cli.work import execution, learning, requests
    from posbias.io.fits.saved_fit import read_theta
    from posbias.io.jobs.agreement import disagreement
    from posbias.io.jobs.fit import count, name_propensities

    request = learning.learning_request(learned, propensities)
    learner = request.learner
    pages_for = f"--learner {learner.name}" if learner.source == "pages" else None
    fitted = None if propensities is None else read_theta(propensities)
    placed = log.randomized_where if learner.needs_randomized else None
    log, features = replace(log, randomized_where=placed), request.features
    job, log = requests.job_for_propensities(
        inputs, log, fitted, beside=["randomized_where"], sessions_for=pages_for, features=features
    )
    if learner.needs_randomized and not job.plan.randomized:
        raise UsageError(
            f"--learner {learner.name}: say which rows were placed at random, for example --randomized-where "
            "policy=random (with statistics: when they are collected)."
        )

    def work(engine: "Engine", result: "Result") -> None:
        counted = count(job, engine, result)
        if fitted is not None:
            name_propensities(fitted, result)
            result.reasons += disagreement(fitted, counted, engine, result.progress)
        learning.learn(counted, None if fitted is None else fitted.theta, request, engine, result)

    also_read = [*(fitted.files if fitted else ()), *features.tables]
    options = plain_options(log, replace(learned, learner_options=request.settings))
    return execution.run_job("train", job, log, output, printing, options, also_read, work)


def score(
    inputs: list[str],
    model: Location,
    output: Location,
    printing: groups.PrintOptions,
    query: list[str] | None = None,
    doc: list[str] | None = None,
    memory: str = "2GiB",
    threads: int | None = None,  # noqa: ARG001 - set before anything is loaded
) -> int:
    """Score documents with a model that `posbias train` wrote.

    Example: posbias score candidates.parquet --model ranker -o scored
    """
    from posbias.cli.report.result import write_result
    from posbias.io.training.rankers import open_new_documents, read_model, score_rows, write_scores

    stored = read_model(model)
    documents = open_new_documents(inputs, tuple(query or ()), tuple(doc or ()), stored.section.features)
    most = parse_memory(memory)

    def work(result: "Result") -> None:
        with result.progress.stage("scoring") as stage:
            n_rows = write_scores(score_rows(documents, stored, most), result.folder, stage)
        sources = {str(source.path): source.digest() for source in documents.sources}
        result.content |= {"model": str(model), "sources": sources, "documents": n_rows}
        result.headline = f"{plural(n_rows, 'documents')} are scored"

    return write_result("score", inputs, output, printing, {}, work, [model])


def export(ranker: Location, serving: ServingOptions, output: Location, printing: groups.PrintOptions) -> int:
    """Write a ranker as a search engine loads it, scored back; or hold the engine's answer against it (--smoke).

    Example: posbias export ranker --engine opensearch -o exported
    """
    from posbias.cli.report.result import write_result
    from posbias.io.jobs import exporting
    from posbias.io.serving.answers import read_answer

    model, work = exporting.open_ranker(ranker, serving), exporting.export
    if serving.smoke is not None:
        work = partial(exporting.smoke, hits=read_answer(serving.smoke, serving.engine))
    work = partial(work, model, serving)
    also_read = [*(serving.features or ()), *([] if serving.smoke is None else [serving.smoke])]
    return write_result("export", [ranker], output, printing, plain_options(serving), work, also_read)


def predict(
    inputs: list[str],
    propensities: str,
    log: groups.LogOptions,
    rankings: PredictionOptions,
    output: Location,
    printing: groups.ResultOptions,
) -> int:
    """Predict how many more clicks rankings would get than the log's own: the A/B test before it is run.

    Example: posbias predict heldout.parquet --propensities fit --scores new.csv -o predicted
    """
    from posbias.cli.work import execution, requests
    from posbias.io.fits.saved_fit import read_theta
    from posbias.io.jobs import predicting
    from posbias.io.predictions import by_position

    if rankings.trained_until is not None:
        requests.check_day("--trained-until", rankings.trained_until)
    if not rankings.files:
        raise UsageError("nothing to predict: name a table of scores (--scores FILE) or a TREC run (--rankings FILE).")
    fitted = read_theta(propensities)
    as_counted = None if fitted.plan.model.needs_session else by_position
    job, log = requests.job_for_propensities(inputs, log, fitted, beside=["timestamp"], as_counted=as_counted)
    job = predicting.prediction_job(job, rankings)
    work = partial(predicting.predict, job, fitted, rankings)
    options, also_read = plain_options(log, rankings), [*fitted.files, *rankings.files]
    return execution.run_job("predict", job, log, output, printing, options, also_read, work)


def evaluate(
    inputs: list[str],
    log: groups.LogOptions,
    rankings: EvaluationOptions,
    models: ModelsOptions,
    output: Location,
    printing: groups.ResultOptions,
    propensities: str | None = None,
) -> int:
    """Evaluate rankings by clicks corrected for position bias, or click models by clicks they were not fitted to.

    Example: posbias evaluate heldout.parquet --propensities fit --scores new.csv --scores old.csv -o evaluated

    Example: posbias evaluate logs/*.parquet --models pbm,ubm,dbn -o judged
    """
    from posbias.cli.work import execution, requests
    from posbias.io.stores.store import find_statistics

    if statistics := find_statistics(inputs):
        raise StatisticsError(
            f"{statistics[0].path} holds statistics, and rankings and click models are evaluated on pages. Give the "
            "logs."
        )
    if models.models is not None:
        from posbias.io.jobs.held_out import judge_models, models_named

        judged = models_named(models)
        job, test = requests.jobs_of_models(inputs, log, models)
        judge = partial(judge_models, job, test, judged, models, rankings)
        also_read = [*(models.test or ()), *([] if rankings.judgments is None else [rankings.judgments])]
        return execution.run_job("evaluate", job, log, output, printing, plain_options(log, models), also_read, judge)

    from posbias.io.fits.saved_fit import read_theta
    from posbias.io.jobs import evaluating

    evaluating.check_evaluation(rankings)
    if propensities is None:
        raise UsageError(
            "rankings are evaluated with propensities: --propensities DIR, written by `posbias fit`, or a table."
        )
    fitted = read_theta(propensities)
    job, log = requests.job_for_propensities(inputs, log, fitted, sessions_for="posbias evaluate")
    work = partial(evaluating.evaluate, job, fitted, rankings)
    judgments = [] if rankings.judgments is None else [rankings.judgments]
    options, also_read = plain_options(log, rankings), [*fitted.files, *rankings.files, *judgments]
    return execution.run_job("evaluate", job, log, output, printing, options, also_read, work)


def interleave(
    inputs: list[str],
    team: str,
    log: groups.LogOptions,
    interleaving: InterleavingOptions,
    *,
    propensities: str | None = None,
    output: Location | None = None,
    printing: groups.ResultOptions,
) -> int:
    """Say which of two interleaved rankers wins, by a verdict that holds at any number of looks (exit code 3).

    Example: posbias interleave logs/*.parquet --team team --rank-a rank_a --rank-b rank_b -o verdict

    Example: posbias interleave logs/2026-01-05.parquet --date 2026-01-05 --team team --into verdict
    """
    from posbias.cli.work import execution, requests
    from posbias.io.fits.saved_fit import read_theta
    from posbias.io.jobs.interleaving import columns_to_read, counting_section, earlier_result
    from posbias.io.jobs.interleaving import interleave as decide

    given, into, columns = interleaving, interleaving.into, columns_to_read(team, interleaving)
    target = into if output is None else output
    if target is None:
        raise UsageError("--output DIR is missing: say where to write; or, for a day of several, --into DIR.")
    fitted = None if propensities is None else read_theta(propensities)
    job = requests.job_of_interleaving(inputs, log, given.date, columns, needs_days=into is not None)
    work = partial(decide, job, team, given, fitted)
    if into is not None and printing.dry_run:
        with earlier_result(into) as earlier:
            counting_section(team, given, fitted, earlier)
    options, also_read = plain_options(log, given, team=team, propensities=propensities), fitted.files if fitted else []
    printing = printing if into is None else replace(printing, force=True)
    return execution.run_job("interleave", job, log, target, printing, options, also_read, work, waits=into is not None)


_WIDTH = 80  # columns of the output of `check` in a file


def check(
    logs: list[str],
    log: groups.LogOptions,
    counting: groups.CountingOptions,
    *,
    write_config: Path | None = None,
    printing: groups.PrintOptions,
) -> int:
    """Look at a log before a fit: what is recognised, what is wrong, what can be estimated.

    Nothing is written, unless --write-config FILE keeps what it takes to read the log.

    Example: posbias check logs/*.parquet
    """
    from posbias.cli.report.printing import SafeConsole, print_on_stdout, print_warnings, renderable
    from posbias.cli.report.result import show_progress
    from posbias.cli.work import checking
    from posbias.io.jobs.tables import DONE, WITH_DOUBTS
    from posbias.io.log.sources import input_paths
    from posbias.io.results.outputs import check_file, write_file

    read = list[Location]()
    if write_config is not None:  # may replace --config: its options are written again
        read = input_paths((*logs, *(log.clicks or ())))
        read += [] if log.sql is None else [Path(log.sql)]
        check_file(write_config, "file of options", read, force=printing.force)

    with show_progress(SafeConsole(stderr=True), quiet=printing.quiet) as progress:
        view, content = checking.check(checking.LogView(tuple(logs), log, counting), progress)
    items = [] if printing.quiet else checking.items_of_check(content, details=printing.details)
    as_json = content if printing.json else None
    print_on_stdout([renderable(item, details=printing.details) for item in items], as_json, width_in_a_file=_WIDTH)
    if printing.quiet:
        print_warnings(checking.conclusion_of(content), SafeConsole(stderr=True))
    if write_config is not None:
        text = settings_text(logs, view.options(), view.findings, content["advice"])
        write_file(write_config, text, "file of options", read, force=printing.force)
        if not printing.quiet:
            print_message(f"written: {write_config}. Read it, then: posbias run LOGS -o DIR")
    return DONE if content["carries_estimate"] else WITH_DOUBTS


def report(
    results: list[str],
    *,
    output: Path,
    chart: str = "curve",
    force: bool = False,
    quiet: bool = False,
    config: Path | None = None,  # noqa: ARG001 - read before the command runs
) -> int:
    """Make a page about results for people who decide (.html), or one chart as a picture (.svg, .png).

    Example: posbias report fit -o report.html
    """
    from posbias.cli.interrupts import set_exit_code
    from posbias.cli.report.printing import SafeConsole
    from posbias.cli.report.result import show_progress
    from posbias.io.jobs.tables import DONE
    from posbias.io.reports.report import make_report

    places = [location(name) for name in results]
    with show_progress(SafeConsole(stderr=True), quiet=quiet) as progress:
        written = make_report(places, output, chart, progress, force=force)
    set_exit_code(DONE)
    if not quiet:
        print_message(f"written: {written}")
    return DONE


def show(
    result: Location,
    *,
    format: groups.Form = "table",  # noqa: A002 - as the option is called
    plot: bool = False,
    details: bool = False,
) -> int:
    """Show a result as it was printed when it was made.

    Example: posbias show fit --plot
    """
    from posbias.cli.report.result import show_stored
    from posbias.io.jobs.tables import DONE

    show_stored(result, format, plot=plot, details=details)
    return DONE
