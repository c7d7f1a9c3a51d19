"""`posbias weight`: training files, from logs and the propensities of a fit."""

from pathlib import Path
from typing import Annotated

import typer

from posbias.cli.options.options import (
    ColumnOptions,
    CountingOptions,
    OutputOptions,
    ReadingOptions,
    option,
)
from posbias.cli.options.training import TrainingOptions
from posbias.cli.report.result import open_result
from posbias.cli.work import setup, steps, training_files
from posbias.core.training.layouts import LayoutOfPages
from posbias.io.fits.read import read_fit
from posbias.io.places.locations import location
from posbias.io.stores.store import find_statistics


def weight(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="LOGS|STATISTICS...", help="Logs; statistics do for pointwise and judgments."),
    ],
    propensities: Annotated[Path, option("--propensities", "The directory that `posbias fit` or `run` wrote.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    training: TrainingOptions,
    output: OutputOptions,
) -> int:
    """Write training files whose weights undo the bias.

    Example: posbias weight logs/*.parquet --propensities fit -o weighted
    """
    request = training_files.requested(training)
    fit = location(propensities)
    fitted = read_fit(fit)
    counting = CountingOptions()
    if not find_statistics(inputs):
        columns, counting = setup.like_the_fit(fitted.plan, columns, fit)
    also_read = [str(fit), *(reading.clicks or ()), *request.tables]
    with open_result("weight", output, inputs, [columns, reading, training], also_read) as result:
        result.content["propensities"] = str(fit)
        with setup.open_engine(reading, output.output) as engine:
            kept = steps.Kept(request.needs_sessions, request.log_features, request.tables)
            if isinstance(request.layout, LayoutOfPages):
                plan = setup.statistics_plan(columns, counting)
                read = steps.read_pages(inputs, columns, reading, plan, engine, result, kept)
                training_files.write_from_pages(
                    read, plan, engine, fitted.propensities, request.layout, request, result
                )
            else:
                counted = steps.count_inputs(inputs, columns, reading, counting, engine, result, kept=kept)
                setup.check_same_cells(counted.plan, fitted.plan, fit)
                training_files.write_from_counts(counted, engine, fitted.propensities, fitted.prior, request, result)
    return result.exit_code
