"""`posbias evaluate`: what rankings are worth, by the clicks of a log that they did not make."""

from pathlib import Path
from typing import Annotated

import typer

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.evaluation import EvaluationOptions
from posbias.cli.options.models import ModelsOptions
from posbias.cli.options.option import option
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.core.errors import UsageError


def evaluate(
    inputs: Annotated[list[str], typer.Argument(metavar="LOGS...", help="Logs that the rankings did not learn from.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    rankings: EvaluationOptions,
    models: ModelsOptions,
    output: ResultOptions,
    propensities: Annotated[
        Path | None, option("--propensities", "Directory written by `posbias fit` or `run`.", metavar="DIR")
    ] = None,
) -> int:
    """Evaluate rankings by clicks corrected for position bias, or click models by clicks they were not fitted to.

    Example: posbias evaluate heldout.parquet --propensities fit --scores new.csv --scores old.csv -o evaluated

    Example: posbias evaluate logs/*.parquet --models pbm,ubm,dbn -o judged
    """
    from posbias.cli.work import evaluation

    evaluation.check_logs(inputs)
    if models.models is not None:
        return _models(inputs, columns, reading, rankings, models, output)
    return _rankings(inputs, columns, reading, rankings, output, propensities)


def _models(
    inputs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    rankings: EvaluationOptions,
    models: ModelsOptions,
    output: ResultOptions,
) -> int:
    from posbias.cli.report.result import open_result
    from posbias.cli.work import models as model_work
    from posbias.cli.work.engine import open_engine
    from posbias.cli.work.rehearsal import rehearse
    from posbias.io.places.locations import location

    request = model_work.requested(models, rankings)
    learn, test = model_work.jobs(inputs, columns, reading, request)
    also_read = [*(reading.clicks or ()), *request.files]
    if output.dry_run:
        return rehearse("evaluate", learn, location(output.output), output, also_read)
    with (
        open_result("evaluate", output, inputs, [columns, reading, models], also_read) as result,
        open_engine(reading, output.output) as engine,
    ):
        model_work.evaluate(learn, test, request, engine, result)
    return result.exit_code


def _rankings(
    inputs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    rankings: EvaluationOptions,
    output: ResultOptions,
    propensities: Path | None,
) -> int:
    from posbias.cli.report.result import open_result
    from posbias.cli.work import evaluation, steps
    from posbias.cli.work.engine import open_engine
    from posbias.cli.work.job import Kept, resolve
    from posbias.cli.work.plan import like_the_fit
    from posbias.cli.work.rehearsal import rehearse
    from posbias.io.fits.read import read_fit
    from posbias.io.places.locations import location

    request = evaluation.requested(rankings)
    if propensities is None:
        raise UsageError("rankings are evaluated with propensities: --propensities DIR, written by `posbias fit`.")
    place = location(propensities)
    fitted = read_fit(place)
    columns, counting = like_the_fit(fitted.plan, columns, place)
    job = resolve(inputs, columns, reading, counting, statistics=(), kept=Kept(sessions_for="posbias evaluate"))
    also_read = [str(place), *(reading.clicks or ()), *request.files]
    if output.dry_run:
        return rehearse("evaluate", job, location(output.output), output, also_read)
    with (
        open_result("evaluate", output, inputs, [columns, reading, rankings], also_read) as result,
        open_engine(reading, output.output) as engine,
    ):
        result.content["propensities"] = str(place)
        evaluation.check_files(job.open_log(), request)
        read = steps.read_pages(job, engine, result)
        evaluation.evaluate(read, job.plan, fitted.theta, request, engine, result)
    return result.exit_code
