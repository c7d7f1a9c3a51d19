"""`posbias evaluate`: what rankings are worth, by the clicks of a log that they did not make."""

from pathlib import Path
from typing import Annotated

import typer

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.evaluation import EvaluationOptions
from posbias.cli.options.option import option
from posbias.cli.options.options import OutputOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.report.result import open_result
from posbias.cli.work import evaluation, steps
from posbias.cli.work.engine import open_engine
from posbias.cli.work.job import Kept, resolve
from posbias.cli.work.plan import like_the_fit
from posbias.io.fits.read import read_fit
from posbias.io.places.locations import location


def evaluate(
    inputs: Annotated[list[str], typer.Argument(metavar="LOGS...", help="Logs that the rankings did not learn from.")],
    propensities: Annotated[Path, option("--propensities", "Directory written by `posbias fit` or `run`.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    rankings: EvaluationOptions,
    output: OutputOptions,
) -> int:
    """Evaluate rankings by clicks, corrected for position bias: DCG and average relevance position.

    Example: posbias evaluate heldout.parquet --propensities fit --scores new.csv --scores old.csv -o evaluated
    """
    request = evaluation.requested(rankings)
    evaluation.check_logs(inputs)
    place = location(propensities)
    fitted = read_fit(place)
    columns, counting = like_the_fit(fitted.plan, columns, place)
    job = resolve(inputs, columns, reading, counting, statistics=(), kept=Kept(sessions_for="posbias evaluate"))
    also_read = [str(place), *(reading.clicks or ()), *request.files]
    with (
        open_result("evaluate", output, inputs, [columns, reading, rankings], also_read) as result,
        open_engine(reading, output.output) as engine,
    ):
        result.content["propensities"] = str(place)
        evaluation.check_files(job.open_log(), request)
        read = steps.read_pages(job, engine, result)
        evaluation.evaluate(read, job.plan, fitted.theta, request, engine, result)
    return result.exit_code
