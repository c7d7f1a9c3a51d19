"""`posbias run`: the main job."""

from typing import Annotated

import typer

from posbias.cli.options.options import (
    ColumnOptions,
    CountingOptions,
    EstimationOptions,
    OutputOptions,
    ReadingOptions,
)
from posbias.cli.options.training import TrainingOptions
from posbias.cli.report.result import open_result
from posbias.cli.work import setup, steps, training_files


def run(
    logs: Annotated[list[str], typer.Argument(metavar="LOGS...", help="Log files, globs or directories.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    estimation: EstimationOptions,
    training: TrainingOptions,
    output: OutputOptions,
) -> int:
    """The main job: from click logs to propensities, attractiveness and training files.

    Example: posbias run logs/*.parquet -o result
    """
    steps.check_estimation(logs, columns, counting, estimation)
    request = training_files.requested(training)
    also_read = [*(reading.clicks or ()), *request.tables]
    with (
        open_result("run", output, logs, [columns, reading, counting, estimation, training], also_read) as result,
        setup.open_engine(reading, output.output) as engine,
    ):
        sessions_for = request.needs_sessions or steps.option_that_needs_sessions(estimation)
        kept = steps.Kept(sessions_for, request.log_features, request.tables)
        counted = steps.count_inputs(logs, columns, reading, counting, engine, result, kept=kept)
        fit = steps.fit(counted, engine, estimation, counting, result)
        training_files.write_from_counts(counted, engine, fit.propensities, fit.prior, request, result)
    return result.exit_code
