"""`posbias fit`: propensities and attractiveness."""

from typing import Annotated

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.exposure import FeatureOptions
from posbias.cli.options.option import argument
from posbias.cli.options.options import CountingOptions, DecayOptions, EachOptions, EstimationOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions


def fit(  # noqa: PLR0913, PLR0917 - a group of options each
    inputs: Annotated[list[str], argument("LOGS|STATISTICS...", "Logs, or statistics written by `collect`.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    estimation: EstimationOptions,
    features: FeatureOptions,
    each: EachOptions,
    output: ResultOptions,
) -> int:
    """Estimate propensities and attractiveness from logs or statistics.

    Example: posbias fit statistics/2026-01-* -o fit
    """
    from posbias.cli.work.carrying_out import carry_out
    from posbias.cli.work.each_value import check_column, fit_each
    from posbias.cli.work.job import job_of_fit, requested_fit
    from posbias.io.engines.engine import Engine
    from posbias.io.jobs.fit import CellFit
    from posbias.io.jobs.result import Result

    groups, column = [columns, reading, counting, decay, estimation, features, each], each.for_each
    model = requested_fit(counting, estimation, features, features, reading)
    job = job_of_fit(model, inputs, columns, reading, counting, decay=decay.decay)
    if column is not None and isinstance(model, CellFit):
        check_column(job, column, model)

    def work(engine: Engine, result: Result) -> None:
        if column is not None and isinstance(model, CellFit):
            fit_each(job, column, model, engine, groups, result)
        else:
            model.fit(job, engine, result)

    return carry_out("fit", job, reading, output, groups, model.also_read, work)
