"""What `weight` does: training files, by the cells of propensities or by the rows of a click model."""

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.options import CountingOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.training import TrainingOptions
from posbias.cli.work.carrying_out import carry_out
from posbias.cli.work.job import of_pages, resolve
from posbias.cli.work.plan import check_same_cells, like_the_fit
from posbias.cli.work.training_files import requested_files
from posbias.core.browsing.em import EMOptions
from posbias.core.errors import StatisticsError
from posbias.io.browsing.fits import has_click_model, read_click_model
from posbias.io.engines.engine import Engine
from posbias.io.fits.read import is_own, read_theta
from posbias.io.jobs.click_models import FittedPages, PageFit
from posbias.io.jobs.fit import FittedCells
from posbias.io.jobs.reading import count, name_propensities, read_pages
from posbias.io.jobs.result import Result
from posbias.io.jobs.training import write_training_files
from posbias.io.places.locations import location
from posbias.io.stores.store import find_statistics


def weight(
    named: list[str],
    propensities: str,
    columns: ColumnOptions,
    reading: ReadingOptions,
    training: TrainingOptions,
    output: ResultOptions,
) -> int:
    """Write training files whose weights correct for position bias."""
    files, shaping = requested_files(training), columns
    if not is_own(propensities) and has_click_model(location(propensities)):
        pages = read_click_model(location(propensities))
        model, counting = PageFit(pages.model, EMOptions()), CountingOptions(max_position=pages.plan.max_position)
        model.check_weights(files.layout, files.weights.options)
        job = resolve(
            named,
            of_pages(columns),
            reading,
            counting,
            sessions_for=model.sessions_for,
            features=files.features,
        )
        model.check(job)
        if job.statistics:
            raise StatisticsError(
                f"{job.statistics[0].path} holds statistics, and {model.sessions_for} weighs the impressions of pages. "
                "Give the logs."
            )
        cells, fitted, also_read = None, FittedPages(pages), [str(location(propensities))]
    else:
        cells, counting, statistics = read_theta(propensities), CountingOptions(), find_statistics(named)
        fitted, also_read = FittedCells(cells.theta), cells.files
        if not statistics:
            shaping, counting = like_the_fit(cells, columns)
        pages_for = files.sessions_for
        job = resolve(
            named, shaping, reading, counting, statistics=statistics, sessions_for=pages_for, features=files.features
        )

    def work(engine: Engine, result: Result) -> None:
        result.content["propensities"] = propensities
        if cells is not None:
            name_propensities(cells, result)
        if job.sessions_for is not None:
            data, plan = read_pages(job, engine, result), job.plan
        else:
            data = count(job, engine, result)
            plan = data.plan
        if cells is not None and job.sessions_for is None:
            check_same_cells(plan, cells)
        write_training_files(data, plan, fitted, files, engine, result)

    return carry_out(
        "weight", job, reading, output, [shaping, reading, training], [*also_read, *files.features.tables], work
    )
