"""`posbias evaluate`: what rankings are worth, by the clicks of a log that they did not make."""

from typing import Annotated

import typer

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.evaluation import EvaluationOptions
from posbias.cli.options.models import ModelsOptions
from posbias.cli.options.option import read_name
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.shared import PROPENSITIES
from posbias.core.errors import UsageError


def evaluate(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="LOGS...", help="Logs that the rankings did not learn from.", parser=read_name),
    ],
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

    request = model_work.requested(models, rankings)
    learn, test = model_work.jobs(inputs, columns, reading, request)
    also_read = [*(reading.clicks or ()), *request.files]
    if output.dry_run:
        return rehearse("evaluate", learn, output.output, output, also_read)
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
    propensities: str | None,
) -> int:
    from posbias.cli.report.result import open_result
    from posbias.cli.work import evaluation, steps
    from posbias.cli.work.engine import open_engine
    from posbias.cli.work.job import Kept, resolve
    from posbias.cli.work.plan import like_the_fit
    from posbias.cli.work.rehearsal import rehearse
    from posbias.io.fits.read import read_theta

    request = evaluation.requested(rankings)
    if propensities is None:
        raise UsageError(
            "rankings are evaluated with propensities: --propensities DIR, written by `posbias fit`, or a table."
        )
    fitted = read_theta(propensities)
    columns, counting = like_the_fit(fitted, columns)
    job = resolve(inputs, columns, reading, counting, statistics=(), kept=Kept(sessions_for="posbias evaluate"))
    also_read = [*fitted.files, *(reading.clicks or ()), *request.files]
    if output.dry_run:
        return rehearse("evaluate", job, output.output, output, also_read)
    with (
        open_result("evaluate", output, inputs, [columns, reading, rankings], also_read) as result,
        open_engine(reading, output.output) as engine,
    ):
        steps.name_propensities(fitted, result)
        evaluation.check_files(job.open_log(), request)
        read = steps.read_pages(job, engine, result)
        evaluation.evaluate(read, job.plan, fitted.theta, request, engine, result)
    return result.exit_code
