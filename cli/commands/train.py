"""`posbias train`: a ranker, from clicks and the propensities of a fit."""

from dataclasses import replace
from typing import Annotated

from posbias.cli.options.columns import ColumnOptions
from posbias.cli.options.learning import LearningOptions
from posbias.cli.options.option import argument
from posbias.cli.options.options import CountingOptions
from posbias.cli.options.output import ResultOptions
from posbias.cli.options.reading import ReadingOptions
from posbias.cli.options.shared import PROPENSITIES


def train(
    inputs: Annotated[list[str], argument("LOGS|STATISTICS...", "Logs; for most learners, statistics will do.")],
    columns: ColumnOptions,
    reading: ReadingOptions,
    learned: LearningOptions,
    output: ResultOptions,
    propensities: Annotated[str | None, PROPENSITIES] = None,
) -> int:
    """Train a ranker on clicks, corrected for position bias.

    Example: posbias train logs/*.parquet --features features.parquet --propensities fit -o ranker
    """
    from posbias.cli.work import learning
    from posbias.cli.work.carrying_out import carry_out
    from posbias.cli.work.job import resolve
    from posbias.cli.work.plan import check_same_cells, like_the_fit
    from posbias.io.engines.engine import Engine
    from posbias.io.fits.read import read_theta
    from posbias.io.jobs.reading import count, name_propensities
    from posbias.io.jobs.result import Result
    from posbias.io.stores.store import find_statistics

    request = learning.requested(learned, propensities)
    fitted = None if propensities is None else read_theta(propensities)
    placed = columns.randomized_where if request.learner.needs_randomized else None
    counting, statistics = CountingOptions(period="none"), find_statistics(inputs)
    if fitted is not None and not statistics:
        columns, counting = like_the_fit(fitted, columns)
    columns = replace(columns, randomized_where=placed)
    pages_for, features = request.needs_sessions, request.features
    job = resolve(inputs, columns, reading, counting, statistics=statistics, sessions_for=pages_for, features=features)
    learning.check_randomized(request, job.plan)

    def work(engine: Engine, result: Result) -> None:
        counted = count(job, engine, result)
        if fitted is not None:
            name_propensities(fitted, result)
            check_same_cells(counted.plan, fitted)
        learning.learn(counted, None if fitted is None else fitted.theta, request, engine, result)

    also_read = [*(fitted.files if fitted else ()), *features.tables]
    return carry_out("train", job, reading, output, [columns, reading, learned], also_read, work)
