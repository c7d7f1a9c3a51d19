"""`posbias fit`: propensities and attractiveness."""

from typing import Annotated

import typer

from posbias.cli.options.options import (
    ColumnOptions,
    CountingOptions,
    DecayOptions,
    EstimationOptions,
    OutputOptions,
    ReadingOptions,
)
from posbias.cli.report.result import open_result
from posbias.cli.work import setup, steps


def fit(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="LOGS|STATISTICS...", help="Logs, or statistics that `collect` wrote."),
    ],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    estimation: EstimationOptions,
    output: OutputOptions,
) -> int:
    """Estimate propensities and attractiveness, from logs or from statistics.

    Example: posbias fit statistics/2026-01-* -o fit
    """
    steps.check_estimation(inputs, columns, counting, estimation, decay.decay)
    groups = [columns, reading, counting, decay, estimation]
    with (
        open_result("fit", output, inputs, groups, reading.clicks or ()) as result,
        setup.open_engine(reading, output.output) as engine,
    ):
        keep = steps.option_that_needs_sessions(estimation)
        counted = steps.count_inputs(
            inputs, columns, reading, counting, engine, result, kept=steps.Kept(keep), factor=decay.decay
        )
        steps.fit(counted, engine, estimation, counting, result)
    return result.exit_code
