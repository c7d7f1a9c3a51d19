"""What `weight` writes: training files, by cell or by row."""

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.options import CountingOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.training import TrainingOptions
from posbias.cli.report.result import open_result
from posbias.cli.work import click_models, steps, training_files
from posbias.cli.work.engine import open_engine
from posbias.cli.work.job import Kept, resolve
from posbias.cli.work.plan import check_same_cells, like_the_fit
from posbias.cli.work.rehearsal import rehearse
from posbias.core.training.layouts import LayoutOfPages
from posbias.io.browsing.fits import has_click_model, read_click_model
from posbias.io.fits.read import is_own, read_theta
from posbias.io.places.locations import Location, location
from posbias.io.stores.store import find_statistics


def weight(
    inputs: list[str],
    propensities: str,
    columns: ColumnOptions,
    reading: ReadingOptions,
    training: TrainingOptions,
    output: ResultOptions,
) -> int:
    """Write training files whose weights correct for position bias."""
    files = training_files.requested(training)
    if not is_own(propensities) and has_click_model(location(propensities)):
        return _by_row(inputs, location(propensities), columns, reading, training, files, output)
    fitted = read_theta(propensities)
    counting, statistics = CountingOptions(), find_statistics(inputs)
    if not statistics:
        columns, counting = like_the_fit(fitted, columns)
    kept = Kept(files.needs_sessions, files.log_features, files.tables)
    job = resolve(inputs, columns, reading, counting, statistics=statistics, kept=kept)
    also_read = [*fitted.files, *(reading.clicks or ()), *files.tables]
    if output.dry_run:
        return rehearse("weight", job, output.output, output, also_read)
    with (
        open_result("weight", output, inputs, [columns, reading, training], also_read) as result,
        open_engine(reading, output.output) as engine,
    ):
        steps.name_propensities(fitted, result)
        if isinstance(files.layout, LayoutOfPages):
            read = steps.read_pages(job, engine, result)
            training_files.write_from_pages(read, job.plan, engine, fitted.theta, files.layout, files, result)
        else:
            counted = steps.count(job, engine, result)
            check_same_cells(counted.plan, fitted)
            training_files.write_from_counts(counted, engine, fitted.theta, files, result)
    return result.exit_code


def _by_row(
    logs: list[str],
    propensities: Location,
    columns: ColumnOptions,
    reading: ReadingOptions,
    training: TrainingOptions,
    files: training_files.Request,
    output: ResultOptions,
) -> int:
    """Weights by the examination of each impression, under a click model that has no propensity by cell."""
    fitted = read_click_model(propensities)
    click_models.check_weights(fitted.model, files)
    kept = Kept(features=files.log_features, tables=files.tables)
    job = click_models.job_like(logs, columns, reading, fitted, kept)
    also_read = [propensities, *(reading.clicks or ()), *files.tables]
    if output.dry_run:
        return rehearse("weight", job, output.output, output, also_read)
    with (
        open_result("weight", output, logs, [columns, reading, training], also_read) as result,
        open_engine(reading, output.output) as engine,
    ):
        result.content["propensities"] = str(propensities)
        read = steps.read_pages(job, engine, result)
        click_models.write_training_files(read, fitted, engine, files, result)
    return result.exit_code
