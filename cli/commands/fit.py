"""`posbias fit`: propensities and attractiveness."""

from typing import Annotated

import typer

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.exposure import FeatureOptions
from posbias.cli.options.names import cell_models
from posbias.cli.options.option import read_name
from posbias.cli.options.options import CountingOptions, DecayOptions, EachOptions, EstimationOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions


def fit(  # noqa: PLR0913, PLR0917 - a group of options each
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="LOGS|STATISTICS...", help="Logs, or statistics written by `collect`.", parser=read_name
        ),
    ],
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
    from posbias.cli.report.result import open_result
    from posbias.cli.work import steps
    from posbias.cli.work.each_value import check_column, fit_each
    from posbias.cli.work.engine import open_engine
    from posbias.cli.work.exposure import requested_rows
    from posbias.cli.work.job import Kept, requested_estimate, resolve
    from posbias.cli.work.rehearsal import rehearse

    groups = [columns, reading, counting, decay, estimation, features, each]
    if counting.model is not None and counting.model not in cell_models():
        from posbias.cli.work import click_models

        model = click_models.requested(counting.model, estimation)
        job = click_models.job(inputs, columns, reading, counting, model.model)
        also_read = [*(reading.clicks or ()), *model.also_read]
        if output.dry_run:
            return rehearse("fit", job, output.output, output, also_read)
        with (
            open_result("fit", output, inputs, groups, also_read) as result,
            open_engine(reading, output.output) as engine,
        ):
            click_models.fit(job, model, engine, result)
        return result.exit_code
    named = features.features, features.feature, features.missing
    rows = requested_rows(estimation.method, named, features, reading)
    estimate = requested_estimate(estimation, counting, rows)
    kept = Kept(estimate.needs_sessions, estimate.features.columns, estimate.features.tables)
    job = resolve(inputs, columns, reading, counting, kept=kept, decay=decay.decay)
    estimate.check(job)
    if each.for_each is not None:
        check_column(job, each.for_each, estimate)
    also_read = [*(reading.clicks or ()), *kept.tables]
    if output.dry_run:
        return rehearse("fit", job, output.output, output, also_read)
    with (
        open_result("fit", output, inputs, groups, also_read) as result,
        open_engine(reading, output.output) as engine,
    ):
        if each.for_each is not None:
            fit_each(job, each.for_each, estimate, engine, groups, result)
        else:
            steps.fit(steps.count_for_fit(job, engine, result), engine, estimate, result)
    return result.exit_code
