"""`posbias run`: the main job."""

from typing import Annotated

import typer

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.exposure import ExposureOptions
from posbias.cli.options.names import cell_models
from posbias.cli.options.option import read_name
from posbias.cli.options.options import CountingOptions, EstimationOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.training import TrainingOptions


def run(
    logs: Annotated[
        list[str], typer.Argument(metavar="LOGS...", help="Log files, globs or directories.", parser=read_name)
    ],
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
    from posbias.cli.report.result import open_result
    from posbias.cli.work import steps, training_files
    from posbias.cli.work.engine import open_engine
    from posbias.cli.work.exposure import requested_rows
    from posbias.cli.work.job import Kept, requested_estimate, resolve
    from posbias.cli.work.rehearsal import rehearse

    files = training_files.requested(training)
    groups = [columns, reading, counting, estimation, exposure, training]
    if counting.model is not None and counting.model not in cell_models():
        from posbias.cli.work import click_models

        model = click_models.requested(counting.model, estimation)
        click_models.check_weights(model.model, files)
        kept = Kept(features=files.log_features, tables=files.tables)
        job = click_models.job(logs, columns, reading, counting, model.model, kept)
        also_read = [*(reading.clicks or ()), *files.tables, *model.also_read]
        if output.dry_run:
            return rehearse("run", job, output.output, output, also_read)
        with (
            open_result("run", output, logs, groups, also_read) as result,
            open_engine(reading, output.output) as engine,
        ):
            read, fitted = click_models.fit_log(job, model, engine, result)
            click_models.write_training_files(read, fitted, engine, files, result)
        return result.exit_code
    named = training.features, training.feature, training.missing
    rows = requested_rows(estimation.method, named, exposure, reading)
    estimate = requested_estimate(estimation, counting, rows, training.propensity)
    in_log = tuple(dict.fromkeys((*files.log_features, *estimate.features.columns)))
    kept = Kept(files.needs_sessions or estimate.needs_sessions, in_log, files.tables)
    job = resolve(logs, columns, reading, counting, kept=kept)
    estimate.check(job)
    also_read = [*(reading.clicks or ()), *files.tables]
    if output.dry_run:
        return rehearse("run", job, output.output, output, also_read)
    with (
        open_result("run", output, logs, groups, also_read) as result,
        open_engine(reading, output.output) as engine,
    ):
        counted = steps.count_for_fit(job, engine, result)
        fit = steps.fit(counted, engine, estimate, result)
        training_files.write_from_counts(counted, engine, fit.theta, files, result)
    return result.exit_code
