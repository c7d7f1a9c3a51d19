"""`posbias run`: the main job."""

from typing import Annotated

import typer

from posbias.cli import setup, steps, weighing
from posbias.cli.options import (
    ColumnOptions,
    CountingOptions,
    EstimationOptions,
    OutputOptions,
    ReadingOptions,
)
from posbias.cli.result import open_result
from posbias.cli.training_options import WeightingOptions
from posbias.core.fit import prior_of


def run(
    logs: Annotated[list[str], typer.Argument(metavar="LOGS...", help="Log files, globs or directories.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    estimation: EstimationOptions,
    weighting: WeightingOptions,
    output: OutputOptions,
) -> int:
    """The main job: from click logs to propensities, attractiveness and training files.

    Example: posbias run logs/*.parquet -o result
    """
    steps.check_estimation(logs, columns, counting, estimation)
    request = weighing.requested(weighting)
    also_read = [*(reading.clicks or ()), *request.tables]
    with (
        open_result("run", output, logs, [columns, reading, counting, estimation, weighting], also_read) as result,
        setup.open_engine(reading, output.output) as engine,
    ):
        sessions_for = request.needs_sessions or steps.option_that_needs_sessions(estimation)
        kept = steps.Kept(sessions_for, request.log_features, request.tables)
        gathered = steps.gather(logs, columns, reading, counting, engine, result, kept=kept)
        fit = steps.fit(gathered, engine, estimation, counting, result)
        prior = prior_of(result.content["estimate"])
        weighing.weigh(gathered, engine, fit.propensities, prior, request, result)
    return result.exit_code
