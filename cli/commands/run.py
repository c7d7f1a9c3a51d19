"""`posbias run`: the main job."""

from typing import Annotated

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.exposure import ExposureOptions
from posbias.cli.options.option import argument
from posbias.cli.options.options import CountingOptions, EstimationOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.training import TrainingOptions


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
    from posbias.cli.work.job import job_of_fit, requested_fit
    from posbias.cli.work.training_files import requested_files
    from posbias.io.engines.engine import Engine
    from posbias.io.jobs.result import Result
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
