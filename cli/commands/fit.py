"""`posbias fit`: propensities and attractiveness."""

from typing import Annotated

import typer

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.exposure import FeatureOptions
from posbias.cli.options.options import CountingOptions, DecayOptions, EachOptions, EstimationOptions, OutputOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.report.result import open_result
from posbias.cli.work import click_models, steps
from posbias.cli.work.each_value import check_column, fit_each
from posbias.cli.work.engine import open_engine
from posbias.cli.work.exposure import requested_rows
from posbias.cli.work.job import Kept, requested_estimate, resolve


def fit(  # noqa: PLR0913, PLR0917 - a group of options each
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="LOGS|STATISTICS...", help="Logs, or statistics written by `collect`."),
    ],
    columns: ColumnOptions,
    reading: ReadingOptions,
    counting: CountingOptions,
    decay: DecayOptions,
    estimation: EstimationOptions,
    features: FeatureOptions,
    each: EachOptions,
    output: OutputOptions,
) -> int:
    """Estimate propensities and attractiveness from logs or statistics.

    Example: posbias fit statistics/2026-01-* -o fit
    """
    groups = [columns, reading, counting, decay, estimation, features, each]
    model = click_models.requested(counting, estimation)
    if model is not None:
        job = click_models.job(inputs, columns, reading, counting, model.model)
        with (
            open_result("fit", output, inputs, groups, [*(reading.clicks or ()), *model.also_read]) as result,
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
    with (
        open_result("fit", output, inputs, groups, [*(reading.clicks or ()), *kept.tables]) as result,
        open_engine(reading, output.output) as engine,
    ):
        if each.for_each is not None:
            fit_each(job, each.for_each, estimate, engine, groups, result)
        else:
            steps.fit(steps.count(job, engine, result), engine, estimate, result)
    return result.exit_code
