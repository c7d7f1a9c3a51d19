"""From options to the objects that do the work."""

import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path

from posbias.cli.options import inputs
from posbias.cli.options.options import (
    ColumnOptions,
    CountingOptions,
    EstimationOptions,
    ReadingOptions,
)
from posbias.core import estimators
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import OutputError, StatisticsError, UsageError
from posbias.core.log.impressions import ReadingRules
from posbias.core.models import get_model
from posbias.core.priors import BetaPrior
from posbias.core.randomization import RandomizedRows
from posbias.core.schema import NAMES_TAKEN, RequestedRoles
from posbias.io.engines.engine import Engine
from posbias.io.engines.local import LocalEngine
from posbias.io.engines.spark import SparkEngine
from posbias.io.engines.spark_session import DEFAULT_MASTER, open_session
from posbias.io.log.log import Log, LogRequest, open_log
from posbias.io.places.file_names import is_text
from posbias.io.places.locations import Location, ObjectUrl, location
from posbias.io.temporary.directories import owned_directory, system_temporary

_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_SMALLEST_MEMORY = 256 << 20
_FEWEST_BINS = 2
DEFAULT_MODEL = "pbm"
ESTIMATED = "estimate"


def statistics_plan(columns: ColumnOptions, counting: CountingOptions) -> StatisticsPlan:
    """What will be counted."""
    model = get_model(counting.model or DEFAULT_MODEL)
    for flag, names in (("--stratify", columns.stratify), ("--context", columns.context)):
        for name in names or ():
            if name in NAMES_TAKEN[flag] or name in model.cell_columns:
                raise UsageError(f"{flag} {name}: this name means something else in the results. Rename the column.")
    both = set(columns.context or ()) & set(columns.stratify or ())
    if both:
        raise UsageError(f"--stratify {' '.join(sorted(both))}: --context says it already: attractiveness differs too.")
    _check_days(columns, counting)
    if columns.context and model.name != DEFAULT_MODEL:
        raise UsageError(f"--context: contexts are estimated within --model {DEFAULT_MODEL}, not {model.name}.")
    return StatisticsPlan(
        model=model,
        max_position=counting.max_position,
        position_bins=parse_bins(counting.position_bins),
        context=tuple(columns.context or ()),
        period=counting.date is not None or (columns.timestamp is not None and counting.period != "none"),
        strata=tuple(columns.stratify or ()),
        randomized=tuple(RandomizedRows.parse(text) for text in columns.randomized_where or ()),
        weighted=columns.weight_column is not None,
    )


def _check_days(columns: ColumnOptions, counting: CountingOptions) -> None:
    day = counting.date
    if day is None:
        if counting.period == "day" and columns.timestamp is None:
            raise UsageError("--period day needs the column that says when: --timestamp COLUMN.")
        return
    if not _is_day(day):
        raise UsageError(f"--date {day}: give a day such as 2026-01-31.")
    if date.fromisoformat(day) > date.today() + timedelta(days=1):  # noqa: DTZ011 - tomorrow has begun somewhere
        raise UsageError(f"--date {day}: is still to come. A log holds days that are over.")
    if columns.timestamp is not None:
        raise UsageError(
            f"--date {day}: --timestamp {columns.timestamp} says the day of each row already. Leave one of them out."
        )
    if counting.period == "none":
        raise UsageError(f"--date {day}: --period none keeps no days. Leave one of them out.")


def _is_day(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def check_decay(factor: float | None, plan: StatisticsPlan, estimation: EstimationOptions | None = None) -> None:
    """Find wrong options before anything is read.

    Raises:
        UsageError: the factor is none, the days are not known, or sessions would have to decay.
    """
    if factor is None:
        return
    if not 0 < factor <= 1:
        raise UsageError(f"--decay {factor:g}: must be above 0 and at most 1.")
    if not plan.period:
        raise UsageError(
            f"--decay {factor:g}: the days are not known. Count the logs with --date or --timestamp (and without "
            "--period none)."
        )
    if estimation is not None and estimation.cluster == "session":
        raise UsageError(f"--decay {factor:g}: sessions do not decay. Leave it out, or --cluster session.")


def open_requested_log(
    logs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    plan: StatisticsPlan,
    *,
    needs_session: bool,
    day: str | None = None,
    features: Sequence[str] = (),
) -> Log:
    """Open the log that the options describe.

    Args:
        logs: as named by the user.
        columns: which column plays which role.
        reading: how values are read.
        plan: what will be counted.
        needs_session: whether the work cannot be done without the session column.
        day: that of all rows, where no column says it.
        features: columns to keep for training.
    """
    roles = RequestedRoles(
        session=tuple(columns.session or ()),
        query=tuple(columns.query or ()),
        doc=tuple(columns.doc or ()),
        position=columns.position,
        click=columns.click,
        weight=columns.weight_column,
        timestamp=columns.timestamp,
        context=plan.context,
        stratify=plan.strata,
        randomized=plan.randomized,
        features=tuple(features),
    )
    base, ubi = inputs.position_base(reading), inputs.ubi_rules(reading)
    rules = ReadingRules(base, click_counts=reading.click_counts, daily=plan.period, day=day)
    return open_log(
        LogRequest(
            inputs=tuple(logs),
            roles=roles,
            rules=rules,
            clicks=tuple(reading.clicks or ()),
            needs_session=needs_session or plan.model.needs_session,
            form=reading.input_format,
            ubi=ubi,
        )
    )


def check_counting(plan: StatisticsPlan, counting: CountingOptions, columns: ColumnOptions) -> None:
    """Statistics were counted when they were collected: an option that asks for something else is an error.

    Raises:
        StatisticsError: an option contradicts the statistics.
    """
    bins = ",".join(map(str, plan.position_bins)) or None
    asked: list[tuple[str, object, object]] = [
        ("--model", counting.model, plan.model.name),
        ("--max-position", counting.max_position, plan.max_position),
        ("--position-bins", counting.position_bins, bins),
        ("--context", _words(columns.context), _words(plan.context)),
        ("--stratify", _words(columns.stratify), _words(plan.strata)),
        ("--randomized-where", _words(columns.randomized_where), _words(map(str, plan.randomized))),
        ("--weight-column", columns.weight_column, columns.weight_column if plan.weighted else None),
        ("--timestamp", columns.timestamp, columns.timestamp if plan.period else None),
        ("--period", "day" if counting.period == "day" else None, "day" if plan.period else None),
    ]
    for flag, wanted, counted in asked:
        if wanted not in (None, counted):
            how = f"with {flag} {counted}" if counted is not None else f"without {flag}"
            raise StatisticsError(
                f"{flag} {wanted}: the statistics were collected {how}. "
                "Leave it out, or collect the logs again with it."
            )


def _words(names: Iterable[str] | None) -> str | None:
    return " ".join(names or ()) or None


def like_the_fit(
    fitted: StatisticsPlan, columns: ColumnOptions, folder: Location
) -> tuple[ColumnOptions, CountingOptions]:
    """The options that count the cells of a fit; what only its estimate depended on is left aside.

    Raises:
        UsageError: other contexts are asked for than the propensities have.
    """
    if columns.context and tuple(columns.context) != fitted.context:
        raise UsageError(
            f"--context {' '.join(columns.context)}: the propensities in {folder} "
            + (f"differ by {' '.join(fitted.context)}." if fitted.context else "have no context.")
        )
    bins = ",".join(map(str, fitted.position_bins)) or None
    counting = CountingOptions(fitted.model.name, fitted.max_position, bins, "none")
    of_cells = replace(columns, context=list(fitted.context), timestamp=None, stratify=None, randomized_where=None)
    return of_cells, counting


def check_same_cells(plan: StatisticsPlan, fitted: StatisticsPlan, folder: Location) -> None:
    """Statistics come with cells of their own, which must be those of the propensities.

    Raises:
        StatisticsError: they differ.
    """
    if _cells(plan) != _cells(fitted):
        raise StatisticsError(
            f"the statistics count by {_cells(plan)}, the propensities in {folder} are for {_cells(fitted)}. "
            "Collect with the same options as the fit."
        )


def _cells(plan: StatisticsPlan) -> str:
    bins, context = ",".join(map(str, plan.position_bins)), ",".join(plan.context)
    return (
        f"model {plan.model.name}, max-position {plan.max_position or 'none'}, position-bins {bins or 'none'}, "
        f"context {context or 'none'}"
    )


@contextmanager
def open_engine(reading: ReadingOptions, output: Path) -> Generator[Engine]:
    """The engine, with a directory for temporary files for as long as the block runs.

    Raises:
        UsageError: an option does not go with the engine.
        OutputError: there is no place for temporary files.
        EngineError: the engine cannot start.
    """
    memory = parse_memory(reading.memory)
    if reading.engine == "polars":
        with _scratch(reading.temp_dir or system_temporary(), hidden=False) as scratch:
            yield LocalEngine(memory, scratch, reading.on_bad_rows, reading.check_pages)
        return
    if isinstance(location(output), ObjectUrl) and reading.temp_dir is None:
        raise UsageError(
            f"--output {location(output)}: with --engine spark the result is made on disk before it is uploaded. "
            "Name a directory that all machines of the cluster see with --temp-dir."
        )
    # Where all machines of a cluster find the output, they find temporary files too.
    beside = next(folder for folder in output.absolute().parents if folder.is_dir())
    with (
        _scratch(reading.temp_dir or beside, hidden=True) as scratch,
        open_session(reading.master or DEFAULT_MASTER, scratch) as session,
        closing(SparkEngine(session, memory, scratch, reading.on_bad_rows, reading.check_pages)) as engine,
    ):
        yield engine


@contextmanager
def _scratch(parent: Path, *, hidden: bool) -> Generator[Path]:
    if not parent.is_dir():
        raise OutputError(f"--temp-dir {parent}: there is no such directory.")
    if not is_text(parent.absolute()):
        raise OutputError(f"--temp-dir {str(parent)!a}: the name is not UTF-8. Choose another directory.")
    with owned_directory(parent.absolute(), hidden=hidden) as scratch:
        yield scratch


def estimation_options(estimation: EstimationOptions, counting: CountingOptions) -> estimators.EstimationOptions:
    """What is asked of an estimate.

    Raises:
        UsageError: a value cannot be read, or is out of range.
    """
    if estimation.tolerance is not None and not estimation.tolerance < 1:
        raise UsageError(f"--tolerance {estimation.tolerance:g}: a relative change is below 1.")
    return estimators.EstimationOptions(
        attractiveness_prior=(
            None
            if estimation.attractiveness_prior == ESTIMATED
            else _prior("--attractiveness-prior", estimation.attractiveness_prior)
        ),
        examination_prior=_prior("--examination-prior", estimation.examination_prior),
        max_iterations=estimation.max_iterations,
        tolerance=estimation.tolerance,
        accelerate=not estimation.no_acceleration,
        reference=parse_reference(estimation.reference),
        period=counting.period,
        cluster=estimation.cluster,
        bootstrap=estimation.bootstrap,
        seed=estimation.seed,
        shape=estimation.shape,
    )


def parse_reference(text: str | None) -> tuple[int, ...]:
    """Read `1`, or with UBM `1,0`.

    Raises:
        UsageError: not whole numbers.
    """
    try:
        return tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        raise UsageError(f"--reference {text}: give a position such as 1; with --model ubm also 1,0.") from None


def _prior(flag: str, text: str) -> BetaPrior:
    try:
        return BetaPrior.parse(text)
    except UsageError as error:
        raise UsageError(f"{flag} {text}: {error}") from error


def parse_bins(text: str | None) -> tuple[int, ...]:
    """Read `1,2,3,5,10`.

    Raises:
        UsageError: not ascending positions that start at 1.
    """
    if text is None:
        return ()
    try:
        bins = tuple(int(number) for number in text.split(","))
    except ValueError:
        bins = tuple[int, ...]()
    if len(bins) < _FEWEST_BINS or bins[0] != 1 or any(b <= a for a, b in pairwise(bins)):
        raise UsageError(
            f"--position-bins {text}: give the first position of each bin, ascending from 1, e.g. 1,2,3,5,10,20."
        )
    return bins


def parse_memory(text: str) -> int:
    """Read `2GiB`, `500M`, `1073741824` as bytes.

    Raises:
        UsageError: not a size, or too small to work with.
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise UsageError(f"--memory {text}: give a size such as 2GiB or 500MB.")
    size = int(float(match[1]) * _UNITS[match[2] or ""])
    if size < _SMALLEST_MEMORY:
        raise UsageError(f"--memory {text}: at least 256MiB are needed.")
    return size
