"""A fit of a frame, by the code of `posbias fit`."""

import warnings
from dataclasses import replace
from operator import index
from typing import SupportsIndex, cast

from posbias.core.counts.checks import DEFAULT_MODEL, check_context, check_named_columns, counted_model
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.estimators import EstimationOptions, get_estimator
from posbias.core.log.impressions import LARGEST_POSITION, ReadingRules
from posbias.core.schema import Roles
from posbias.io.engines.engine import OnBadRows
from posbias.io.jobs.fit import CellFit
from posbias.io.jobs.reading import Job
from posbias.io.jobs.result import Result, write_description
from posbias.io.log.log import Log
from posbias.io.notebooks.frames import FRAME, Frame, Names, local_engine, log_of, name, name_or_none, names
from posbias.io.notebooks.results import FitResult, read_result
from posbias.io.progress import SilentProgress

_FEWEST_POSITIONS = 2


def fit(  # noqa: PLR0913 - each is an option of the command
    frame: object,
    *,
    session: Names = None,
    query: Names = None,
    doc: Names = None,
    position: str | None = None,
    click: str | None = None,
    weight_column: str | None = None,
    timestamp: str | None = None,
    context: Names = None,
    model: str = DEFAULT_MODEL,
    method: str = "conditional",
    max_position: int | None = None,
    on_bad_rows: OnBadRows = "error",
) -> FitResult:
    """Estimate propensities and attractiveness from a frame, by the code of `posbias fit`.

        P(click) = theta_cell * gamma_(query, doc)

    The same rows in a Parquet file give `posbias fit` the same numbers, to the bit. Every parameter means what the
    option of its name means, and errors name options; other options than these are for the command.

    Args:
        frame: a row per impression: a Polars frame (lazy or not), a pandas frame or an Arrow table.
        session: the column of one results page, or several that make up one id; by default one of a well-known name.
        query: likewise.
        doc: likewise.
        position: its column, from 1.
        click: its column, 0/1 or boolean.
        weight_column: how many impressions a row stands for (> 0).
        timestamp: when the page was shown; attractiveness may then vary by period, as needed.
        context: columns by which propensities differ.
        model: `pbm` or `ubm`, which needs the session.
        method: the estimator.
        max_position: impressions further down are left out; at least 2.
        on_bad_rows: whether rows that break the rules for logs are an error, or left out (drop).

    Returns:
        What `open_result` returns, with all tables in memory. What the command warns of is in its `warnings`, and is
        issued as a `UserWarning` as well.

    Raises:
        UsageError: what was handed in is no such frame, or an option is unknown or does not go with another one.
        SchemaError: a column is missing or of the wrong type, rows break the rules, or nothing can be estimated.
        IdentifiabilityError: the log cannot say what is asked of it.
        OutputError: there is no place for temporary files.
    """
    given = Frame.of(frame)
    max_position = None if max_position is None else _position(max_position)
    named = {
        "session": names("session", session),
        "query": names("query", query),
        "doc": names("doc", doc),
        "position": name_or_none("position", position),
        "click": name_or_none("click", click),
        "weight-column": name_or_none("weight-column", weight_column),
        "timestamp": name_or_none("timestamp", timestamp),
        "context": names("context", context),
    }
    roles = Roles(*named.values())  # pyright: ignore[reportArgumentType] - in their order
    counted = counted_model(name("model", model))
    check_named_columns(counted, [("--context", roles.context)])
    check_context(counted, roles.context)
    period, weighted = None if roles.timestamp is None else "quarter", roles.weight is not None
    plan = StatisticsPlan(counted, max_position, context=roles.context, period=period, weighted=weighted)
    get_estimator(name("method", method))
    request = CellFit(method, EstimationOptions())
    with local_engine(on_bad_rows) as engine:

        def log(job: Job) -> Log:
            rules, pages = ReadingRules(period=job.plan.period), job.plan.model.needs_session
            return log_of(given, roles, rules, engine.scratch, needs_session=pages, numbered=False)

        job = Job((FRAME,), plan, log)
        request.check(job)
        result = Result(engine.scratch / "result", SilentProgress())
        result.folder.mkdir()
        request.fit(job, engine, result)
        result.content["sources"] = dict.fromkeys(result.content["sources"], FRAME)
        options = {option: list(given) if isinstance(given, tuple) else given for option, given in named.items()}
        options |= {"model": model, "method": method, "on-bad-rows": on_bad_rows, "max-position": max_position}
        options = {option: given for option, given in options.items() if given not in (None, [])}
        write_description(result, "fit", [FRAME], options)
        found = read_result(result.folder, FRAME)
        found = replace(found, tables={name: table.collect().lazy() for name, table in found.tables.items()})
    for sentence in result.warnings:
        warnings.warn(sentence, stacklevel=2)
    return found


def _position(given: object) -> int:
    """The last position that is kept; NumPy's whole numbers are such, too.

    Raises:
        UsageError: it is none.
    """
    try:
        position = index(cast("SupportsIndex", given))
    except TypeError:
        position = 0
    if not _FEWEST_POSITIONS <= position <= LARGEST_POSITION:
        raise UsageError(f"--max-position {given}: give a whole number from {_FEWEST_POSITIONS} to {LARGEST_POSITION}.")
    return position
