"""The commands: arguments, options, and the order of the steps."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from posbias.cli.messages import tell, warn
from posbias.cli.options.estimating import (
    ComparingOptions,
    CountingOptions,
    DecayOptions,
    EachOptions,
    EstimationOptions,
    ExperimentOptions,
    ExplorationOptions,
    ExposureOptions,
    FeatureOptions,
    GateOptions,
    LabelOptions,
    ModelsOptions,
    RankerOptions,
    StoreOptions,
    UserOptions,
    WorldOptions,
)
from posbias.cli.options.learning import EvaluationOptions, LearningOptions, TrainingOptions
from posbias.cli.options.log import ColumnOptions, ReadingOptions
from posbias.cli.options.option import (
    DOC,
    MEMORY,
    PROPENSITIES,
    QUERY,
    THREADS,
    argument,
    option,
    parse_memory,
    read_place,
)
from posbias.cli.options.output import (
    CheckOptions,
    OutputOptions,
    OutputOrInfoOptions,
    OutputOrPrintOptions,
    ReportOptions,
    ResultOptions,
    ShowingOptions,
)
from posbias.io.places.locations import Location


def run(
    logs: Annotated[list[str], argument("LOGS...", "Log files, globs or directories.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    estimation: EstimationOptions,
    exposure: ExposureOptions,
    training: TrainingOptions,
    output: ResultOptions,
) -> int:
    """Run the whole job: from click logs to propensities, attractiveness and training files.

    Example: posbias run logs/*.parquet -o result
    """
    from posbias.cli.work.carrying_out import carry_out
    from posbias.cli.work.requests import job_of_fit, requested_files, requested_fit
    from posbias.io.engines.engine import Engine
    from posbias.io.jobs.tables import Result
    from posbias.io.jobs.training import write_training_files

    files = requested_files(training)
    model = requested_fit(counting, estimation, training, exposure, reading, training.propensity)
    model.check_weights(files.layout, files.weights.options)
    job = job_of_fit(model, logs, columns, reading, counting, files)

    def work(engine: Engine, result: Result) -> None:
        data, fitted = model.fit(job, engine, result)
        write_training_files(data, job.plan, fitted, files, engine, result)

    groups = [columns, reading, counting, estimation, exposure, training]
    return carry_out("run", job, reading, output, groups, [*files.features.tables, *model.also_read], work)


def collect(
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    gate: GateOptions,
    store: StoreOptions,
    output: OutputOrInfoOptions,
    inputs: Annotated[
        list[str] | None, argument("LOGS|STATISTICS...", "Logs to count, or statistics to merge.")
    ] = None,
) -> int:
    """Count a log once and for all, into compact statistics that can be merged across days.

    Example: posbias collect logs/2026-01-05.parquet --date 2026-01-05 --into store
    """
    from posbias.cli.work import stores

    return stores.collect(columns, reading, counting, decay, gate, store, output, inputs)


def fit(  # noqa: PLR0913, PLR0917 - a group of options each
    inputs: Annotated[list[str], argument("LOGS|STATISTICS...", "Logs, or statistics written by `collect`.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    estimation: EstimationOptions,
    features: FeatureOptions,
    each: EachOptions,
    output: ResultOptions,
) -> int:
    """Estimate propensities and attractiveness from logs or statistics.

    Example: posbias fit statistics/2026-01-* -o fit
    """
    from posbias.cli.work.carrying_out import carry_out
    from posbias.cli.work.fits import check_column, fit_each
    from posbias.cli.work.requests import job_of_fit, requested_fit
    from posbias.io.engines.engine import Engine
    from posbias.io.jobs.fit import CellFit
    from posbias.io.jobs.tables import Result

    groups, column = [columns, reading, counting, decay, estimation, features, each], each.for_each
    model = requested_fit(counting, estimation, features, features, reading)
    job = job_of_fit(model, inputs, columns, reading, counting, decay=decay.decay)
    if column is not None and isinstance(model, CellFit):
        check_column(job, column, model)

    def work(engine: Engine, result: Result) -> None:
        if column is not None and isinstance(model, CellFit):
            fit_each(job, column, model, engine, groups, result)
        else:
            model.fit(job, engine, result)

    return carry_out("fit", job, reading, output, groups, model.also_read, work)


def explore(
    fit: Annotated[Location, argument("FIT", "Directory written by `posbias fit` or `run`.", read_place)],
    exploration: ExplorationOptions,
    output: OutputOptions,
) -> int:
    """Say which positions to swap, and which documents to show, to learn most.

    Example: posbias explore fit --pages 20000 -o explored
    """
    from posbias.cli.work import exploring

    return exploring.explore(fit, exploration, output)


def compare(
    inputs: Annotated[list[str], argument("A B", "Two fits, or two statistics; with --by day, one store.")],
    comparing: ComparingOptions,
    output: OutputOrPrintOptions,
) -> int:
    """Compare the propensities of two results, or of the days of a store.

    Example: posbias compare last_week this_week --max-change 0.2 --fail-if change
    """
    from posbias.cli.console import stderr_console
    from posbias.cli.report.result import open_result, show_progress
    from posbias.cli.report.shown import print_on_stdout
    from posbias.cli.report.table import renderable
    from posbias.cli.work.requests import open_engine
    from posbias.io.jobs import comparing as job
    from posbias.io.jobs.tables import Result
    from posbias.io.results.tables import write_small_table

    comparing.check()
    target, fail_if = output.to_write(), comparing.fail_if or ()
    by_day, most = comparing.by == "day", comparing.max_change
    if target is not None:
        with open_result("compare", target, inputs, [comparing]) as result:
            with open_engine(ReadingOptions(), target.output) as engine:
                table = job.compare(inputs, engine, result, by_day=by_day, max_change=most, fail_if=fail_if)
            write_small_table(table, result.folder, job.COMPARISON, csv=output.csv)
        return result.exit_code
    with (
        show_progress(stderr_console(), quiet=output.quiet) as progress,
        open_engine(ReadingOptions(), Path()) as engine,
    ):
        result = Result(Path(), progress)
        job.compare(inputs, engine, result, by_day=by_day, max_change=most, fail_if=fail_if)
    as_json = result.content | {"warnings": result.warnings} if output.json else None
    print_on_stdout([] if output.quiet else map(renderable, result.printed), as_json)
    for warning in result.warnings:
        warn(warning)
    return result.exit_code


def simulate(
    drawn: WorldOptions,
    labels: LabelOptions,
    ranking: RankerOptions,
    users: UserOptions,
    experiments: ExperimentOptions,
    output: OutputOptions,
) -> int:
    """Simulate a click log of which the truth is known, from scratch or from graded labels.

    Example: posbias simulate -o simulated
    """
    from posbias.cli.work import simulating

    return simulating.simulate(drawn, labels, ranking, users, experiments, output)


def weight(
    inputs: Annotated[
        list[str], argument("LOGS|STATISTICS...", "Logs; for pointwise and judgments, statistics will do.")
    ],
    propensities: Annotated[str, PROPENSITIES],
    columns: ColumnOptions,
    reading: ReadingOptions,
    training: TrainingOptions,
    output: ResultOptions,
) -> int:
    """Write training files whose weights correct for position bias.

    Example: posbias weight logs/*.parquet --propensities fit -o weighted
    """
    from posbias.cli.work import fits

    return fits.weight(inputs, propensities, columns, reading, training, output)


def train(
    inputs: Annotated[list[str], argument("LOGS|STATISTICS...", "Logs; for most learners, statistics will do.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    learned: LearningOptions,
    output: ResultOptions,
    propensities: Annotated[str | None, PROPENSITIES] = None,
) -> int:
    """Train a ranker on clicks, corrected for position bias.

    Example: posbias train logs/*.parquet --features features.parquet --propensities fit -o ranker
    """
    from posbias.cli.work import learning
    from posbias.cli.work.carrying_out import carry_out
    from posbias.cli.work.requests import check_same_cells, like_the_fit, resolve
    from posbias.io.engines.engine import Engine
    from posbias.io.fits.saved_fit import read_theta
    from posbias.io.jobs.fit import count, name_propensities
    from posbias.io.jobs.tables import Result
    from posbias.io.stores.store import find_statistics

    request = learning.requested(learned, propensities)
    fitted = None if propensities is None else read_theta(propensities)
    placed = columns.randomized_where if request.learner.needs_randomized else None
    counting, statistics = CountingOptions(period="none"), find_statistics(inputs)
    if fitted is not None and not statistics:
        columns, counting = like_the_fit(fitted, columns)
    columns = replace(columns, randomized_where=placed)
    pages_for, features = request.needs_sessions, request.features
    job = resolve(inputs, columns, reading, counting, statistics=statistics, sessions_for=pages_for, features=features)
    learning.check_randomized(request, job.plan)

    def work(engine: Engine, result: Result) -> None:
        counted = count(job, engine, result)
        if fitted is not None:
            name_propensities(fitted, result)
            check_same_cells(counted.plan, fitted)
        learning.learn(counted, None if fitted is None else fitted.theta, request, engine, result)

    also_read = [*(fitted.files if fitted else ()), *features.tables]
    return carry_out("train", job, reading, output, [columns, reading, learned], also_read, work)


def score(
    inputs: Annotated[list[str], argument("FILE...", "Documents to score: their ids, and the model's features.")],
    model: Annotated[
        Location, option("Directory written by `posbias train`.", "DIR", parser=read_place, environment=False)
    ],
    output: OutputOptions,
    query: Annotated[list[str] | None, QUERY] = None,
    doc: Annotated[list[str] | None, DOC] = None,
    memory: Annotated[str, MEMORY] = "2GiB",
    threads: Annotated[int | None, THREADS] = None,  # noqa: ARG001 - set before anything is loaded
) -> int:
    """Score documents with a model that `posbias train` wrote.

    Example: posbias score candidates.parquet --model ranker -o scored
    """
    from posbias.cli.report.result import open_result
    from posbias.core.errors import counted
    from posbias.io.training.documents import open_new_documents, score_rows, write_scores
    from posbias.io.training.model_files import read_model

    stored = read_model(model)
    found = open_new_documents(inputs, tuple(query or ()), tuple(doc or ()), stored.section.features)
    with open_result("score", output, inputs, [], [model]) as result:
        with result.progress.stage("scoring") as stage:
            n_rows = write_scores(score_rows(found, stored, parse_memory(memory)), result.folder, stage)
        result.content |= {
            "model": str(model),
            "sources": {str(source.path): source.digest() for source in found.sources},
            "documents": n_rows,
        }
        result.printed.append(f"scored {counted(n_rows, 'documents')}")
    return result.exit_code


def evaluate(
    inputs: Annotated[list[str], argument("LOGS...", "Logs that the rankings did not learn from.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    rankings: EvaluationOptions,
    models: ModelsOptions,
    output: ResultOptions,
    propensities: Annotated[str | None, PROPENSITIES] = None,
) -> int:
    """Evaluate rankings by clicks corrected for position bias, or click models by clicks they were not fitted to.

    Example: posbias evaluate heldout.parquet --propensities fit --scores new.csv --scores old.csv -o evaluated

    Example: posbias evaluate logs/*.parquet --models pbm,ubm,dbn -o judged
    """
    from posbias.cli.work import evaluation

    evaluation.check_logs(inputs)
    if models.models is not None:
        from posbias.cli.work.models import evaluate_models

        return evaluate_models(inputs, columns, reading, rankings, models, output)
    return evaluation.evaluate(inputs, columns, reading, rankings, output, propensities)


_WIDTH_IN_A_FILE = 80


def check(
    logs: Annotated[list[str], argument("LOGS...", "Log files, globs or directories.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    output: CheckOptions,
) -> int:
    """Look at a log before a fit: what is recognised, what is wrong, what can be estimated.

    Nothing is written, unless --write-config FILE keeps what it takes to read the log.

    Example: posbias check logs/*.parquet
    """
    from posbias.cli.console import stderr_console
    from posbias.cli.report.result import show_progress
    from posbias.cli.report.shown import print_on_stdout, settings_text
    from posbias.cli.work.checking import Asked, check_report, command_line
    from posbias.cli.work.checking import check as look_into
    from posbias.core.errors import shown
    from posbias.io.jobs.tables import DONE, WITH_DOUBTS
    from posbias.io.results.outputs_on_disk import check_settings, write_settings

    target = output.write_config
    if target is not None:
        check_settings(target, force=output.force)

    with show_progress(stderr_console(), quiet=output.quiet) as progress:
        asked, content = look_into(Asked(tuple(logs), columns, reading, counting), progress)
    if output.quiet and not output.json:
        print_on_stdout([])
    else:
        as_json = content if output.json else None
        report, command = check_report(content), f"\n{shown(command_line(content))}"
        print_on_stdout([report], as_json, unwrapped=command, width_in_a_file=_WIDTH_IN_A_FILE)
    if output.quiet:
        for sentence in (*content["warnings"], *content["reasons"]):
            warn(sentence)
    if target is not None:
        text = settings_text(logs, asked.options, asked.findings, content["advice"])
        write_settings(target, text, force=output.force)
        if not output.quiet:
            tell(f"written: {target}. Read it, then: posbias run LOGS -o DIR")
    return DONE if content["carries_estimate"] else WITH_DOUBTS


def report(
    results: Annotated[list[str], argument("RESULT...", "Directories written by `posbias fit`, `run` and others.")],
    output: ReportOptions,
) -> int:
    """Draw results on one page that opens offline (.html), or one chart as a picture (.svg, .png).

    Example: posbias report fit -o report.html
    """
    from posbias.cli.console import stderr_console
    from posbias.cli.interrupts import result_stands
    from posbias.cli.report.result import show_progress
    from posbias.cli.work.exploring import check_results, format_of, make_report
    from posbias.core.errors import shown
    from posbias.io.jobs.tables import DONE
    from posbias.io.places.locations import location

    target = output.output
    form = format_of(target)
    places = [location(name) for name in results]
    check_results(places, target, force=output.force)
    with show_progress(stderr_console(), quiet=output.quiet) as progress:
        size = make_report(places, target, form, output.chart, progress, force=output.force)
    result_stands(DONE)
    if not output.quiet:
        about = ", with all that it takes to draw it: it opens in any browser, offline" if form == "html" else ""
        tell(f"written: {shown(str(target))}, {size / 1e6:.1f} MB{about}")
    return DONE


def show(
    result: Annotated[Location, argument("RESULT", "Directory that a command wrote with -o.", read_place)],
    showing: ShowingOptions,
) -> int:
    """Show a result as it was printed when it was made.

    Example: posbias show fit --plot
    """
    from posbias.cli.report import shown
    from posbias.io.jobs.tables import DONE
    from posbias.io.results.manifest import open_stored

    with open_stored(result, shown.FILES) as stored:
        forms = {
            "table": lambda: shown.as_table(stored, plot=showing.plot),
            "markdown": lambda: shown.as_markdown(stored),
            "csv": lambda: shown.as_csv(stored),
            "json": lambda: shown.as_json(stored),
        }
        forms[showing.format]()
    shown.check_stdout()
    return DONE
