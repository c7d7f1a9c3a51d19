"""`posbias weight`: training files, from logs and the propensities of a fit."""

from pathlib import Path
from typing import Annotated

import typer

from posbias.cli import setup, steps, weighing
from posbias.cli.options import (
    ColumnOptions,
    CountingOptions,
    OutputOptions,
    ReadingOptions,
    option,
)
from posbias.cli.result import open_result
from posbias.cli.training_options import WeightingOptions
from posbias.core.fit import prior_of
from posbias.io.local_copies import on_disk
from posbias.io.manifest import read_manifest
from posbias.io.object_urls import location
from posbias.io.output_tables import FILES_OF_A_FIT, read_propensities
from posbias.io.statistics_store import find_statistics


def weight(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="LOGS|STATISTICS...", help="Logs; statistics do for pointwise and judgments."),
    ],
    propensities: Annotated[Path, option("--propensities", "The directory that `posbias fit` or `run` wrote.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    weighting: WeightingOptions,
    output: OutputOptions,
) -> int:
    """Write training files whose weights undo the bias.

    Example: posbias weight logs/*.parquet --propensities fit -o weighted
    """
    request = weighing.requested(weighting)
    fit = location(propensities)
    with on_disk(fit, FILES_OF_A_FIT) as folder:
        manifest = read_manifest(folder, "fit")
        fitted = setup.counted_by(manifest, fit)
        table = read_propensities(folder, fitted.cell_columns)
    prior = prior_of(manifest["estimate"])
    counting = CountingOptions()
    if not find_statistics(inputs):
        columns, counting = setup.like_the_fit(fitted, columns, fit)
    also_read = [str(fit), *(reading.clicks or ()), *request.tables]
    with open_result("weight", output, inputs, [columns, reading, weighting], also_read) as result:
        result.content["propensities"] = str(fit)
        with setup.open_engine(reading, output.output) as engine:
            kept = steps.Kept(request.needs_sessions, request.log_features, request.tables)
            if request.needs_sessions:
                plan = setup.statistics_plan(columns, counting)
                read = steps.read_pages(inputs, columns, reading, plan, engine, result, kept)
                weighing.weigh_pages(read, plan, engine, table, request, result)
            else:
                gathered = steps.gather(inputs, columns, reading, counting, engine, result, kept=kept)
                setup.check_same_cells(gathered.plan, fitted, fit)
                weighing.weigh(gathered, engine, table, prior, request, result)
    return result.exit_code
