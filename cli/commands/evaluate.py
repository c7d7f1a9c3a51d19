"""`posbias evaluate`: what rankings are worth, by the clicks of a log that they did not make."""

from typing import Annotated

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.evaluation import EvaluationOptions
from posbias.cli.options.models import ModelsOptions
from posbias.cli.options.option import argument
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.shared import PROPENSITIES
from posbias.core.errors import UsageError


def evaluate(
    inputs: Annotated[list[str], argument("LOGS...", "Logs that the rankings did not learn from.")],
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
    from posbias.cli.work import models as model_work
    from posbias.cli.work.carrying_out import carry_out
    from posbias.io.engines.engine import Engine
    from posbias.io.jobs.result import Result

    request = model_work.requested(models, rankings)
    learn, test = model_work.jobs(inputs, columns, reading, request)

    def work(engine: Engine, result: Result) -> None:
        model_work.evaluate(learn, test, request, engine, result)

    return carry_out("evaluate", learn, reading, output, [columns, reading, models], request.files, work)


def _rankings(
    inputs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    rankings: EvaluationOptions,
    output: ResultOptions,
    propensities: str | None,
) -> int:
    from posbias.cli.work import evaluation
    from posbias.cli.work.carrying_out import carry_out
    from posbias.cli.work.job import resolve
    from posbias.cli.work.plan import like_the_fit
    from posbias.io.engines.engine import Engine
    from posbias.io.fits.read import read_theta
    from posbias.io.jobs.reading import name_propensities, read_pages
    from posbias.io.jobs.result import Result

    request = evaluation.requested(rankings)
    if propensities is None:
        raise UsageError(
            "rankings are evaluated with propensities: --propensities DIR, written by `posbias fit`, or a table."
        )
    fitted = read_theta(propensities)
    columns, counting = like_the_fit(fitted, columns)
    job = resolve(inputs, columns, reading, counting, statistics=(), sessions_for="posbias evaluate")

    def work(engine: Engine, result: Result) -> None:
        name_propensities(fitted, result)
        evaluation.check_files(job.open_log(), request)
        read = read_pages(job, engine, result)
        evaluation.evaluate(read, job.plan, fitted.theta, request, engine, result)

    also_read = [*fitted.files, *request.files]
    return carry_out("evaluate", job, reading, output, [columns, reading, rankings], also_read, work)
