"""From options to the objects that do the work."""

import re
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from posbias.cli.options import (
    ColumnOptions,
    CountingOptions,
    EstimationOptions,
    ReadingOptions,
    WeightingOptions,
)
from posbias.core import estimators
from posbias.core.errors import OutputError, StatisticsError, UsageError
from posbias.core.impressions import ReadingRules
from posbias.core.models import get_model
from posbias.core.priors import BetaPrior
from posbias.core.schema import RESERVED, RequestedRoles
from posbias.core.statistics_plan import StatisticsPlan
from posbias.core.weights import WeightOptions
from posbias.io.engines.local import LocalEngine
from posbias.io.logs import Log, LogRequest, open_log
from posbias.io.owned import owned_directory
from posbias.io.statistics_store import plan_from

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


def statistics_plan(columns: ColumnOptions, counting: CountingOptions) -> StatisticsPlan:
    """What will be counted."""
    period = counting.period == "day"
    for name in columns.stratify or ():
        if name in RESERVED:
            raise UsageError(f"--stratify {name}: this name has a meaning in the statistics. Rename the column.")
    if period and columns.timestamp is None:
        raise UsageError("--period day needs the column that says when: --timestamp COLUMN.")
    return StatisticsPlan(
        model=get_model(counting.model),
        max_position=counting.max_position,
        position_bins=parse_bins(counting.position_bins),
        period=period,
        strata=tuple(columns.stratify or ()),
        weighted=columns.weight_column is not None,
    )


def open_requested_log(
    logs: list[str],
    columns: ColumnOptions,
    reading: ReadingOptions,
    plan: StatisticsPlan,
    *,
    needs_session: bool,
) -> Log:
    """Open the log that the options describe."""
    roles = RequestedRoles(
        session=tuple(columns.session or ()),
        query=tuple(columns.query or ()),
        doc=tuple(columns.doc or ()),
        position=columns.position,
        click=columns.click,
        weight=columns.weight_column,
        timestamp=columns.timestamp,
        stratify=tuple(columns.stratify or ()),
    )
    rules = ReadingRules(reading.position_base, click_counts=reading.click_counts, daily=plan.period)
    return open_log(
        LogRequest(
            inputs=tuple(logs),
            roles=roles,
            rules=rules,
            clicks=tuple(reading.clicks or ()),
            needs_session=needs_session or plan.model.needs_session,
        )
    )


def counting_of(manifest: dict[str, Any], folder: Path) -> CountingOptions:
    """What a fit counted, so that its propensities meet the cells that they were estimated for.

    Raises:
        UsageError: the manifest is not that of a fit.
    """
    if "estimate" not in manifest:
        raise UsageError(
            f"--propensities {folder}: holds no propensities. Name the directory that `posbias fit` wrote."
        )
    plan = plan_from(manifest["counted"])
    return counting_options(replace(plan, period=False))


def check_counting(plan: StatisticsPlan, counting: CountingOptions, columns: ColumnOptions) -> None:
    """Statistics were counted when they were collected: an option that asks for something else is an error.

    Raises:
        StatisticsError: an option contradicts the statistics.
    """
    if tuple(columns.stratify or plan.strata) != plan.strata:
        raise StatisticsError(
            f"--stratify {' '.join(columns.stratify or ())}: the statistics were collected "
            + (f"by {' '.join(plan.strata)}." if plan.strata else "without strata. Collect the logs again with it.")
        )
    if columns.weight_column is not None and not plan.weighted:
        raise StatisticsError("--weight-column: the statistics were collected without it. Collect the logs again.")
    asked = counting_options(plan)
    for entry in fields(CountingOptions):
        wanted, counted = getattr(counting, entry.name), getattr(asked, entry.name)
        if wanted not in (entry.default, counted):
            flag = f"--{entry.name.replace('_', '-')}"
            raise StatisticsError(
                f"{flag} {wanted}: the statistics were collected with {flag} {counted}. "
                "Leave it out, or collect the logs again with it."
            )


def counting_options(plan: StatisticsPlan) -> CountingOptions:
    """The options that ask for a plan."""
    bins = ",".join(map(str, plan.position_bins)) or None
    return CountingOptions(plan.model.name, plan.max_position, bins, "day" if plan.period else "none")


def check_same_cells(plan: StatisticsPlan, counting: CountingOptions, folder: Path) -> None:
    """Statistics come with cells of their own, which must be those of the propensities.

    Raises:
        StatisticsError: they differ.
    """
    theirs = (counting.model, counting.max_position, parse_bins(counting.position_bins))
    ours = (plan.model.name, plan.max_position, plan.position_bins)
    if ours != theirs:
        raise StatisticsError(
            f"the statistics count by {_cells(*ours)}, the propensities in {folder} are for {_cells(*theirs)}. "
            "Collect with the same options as the fit."
        )


def _cells(model: str, max_position: int | None, bins: tuple[int, ...]) -> str:
    return f"model {model}, max-position {max_position or 'none'}, position-bins {','.join(map(str, bins)) or 'none'}"


@contextmanager
def local_engine(reading: ReadingOptions) -> Generator[LocalEngine]:
    """The engine, with a directory for temporary files for as long as the block runs."""
    parent = reading.temp_dir or Path(tempfile.gettempdir())
    if not parent.is_dir():
        raise OutputError(f"--temp-dir {parent}: there is no such directory.")
    with owned_directory(parent, "posbias-") as scratch:
        yield LocalEngine(
            memory=parse_memory(reading.memory),
            scratch=scratch,
            on_bad_rows=reading.on_bad_rows,
            check_pages=reading.check_pages,
        )


def estimation_options(estimation: EstimationOptions) -> estimators.EstimationOptions:
    """Priors and stopping rules."""
    return estimators.EstimationOptions(
        attractiveness_prior=_prior("--attractiveness-prior", estimation.attractiveness_prior),
        examination_prior=_prior("--examination-prior", estimation.examination_prior),
        max_iterations=estimation.max_iterations,
        tolerance=estimation.tolerance,
        accelerate=not estimation.no_acceleration,
    )


def _prior(flag: str, text: str) -> BetaPrior:
    try:
        return BetaPrior.parse(text)
    except UsageError as error:
        raise UsageError(f"{flag} {text}: {error}") from error


def weight_options(weighting: WeightingOptions) -> WeightOptions:
    """Clipping and normalisation.

    Raises:
        UsageError: the minimum propensity is out of range.
    """
    if not 0 < weighting.min_propensity <= 1:
        raise UsageError(f"--min-propensity {weighting.min_propensity:g}: must be above 0 and at most 1.")
    return WeightOptions(weighting.min_propensity, self_normalize=weighting.self_normalize)


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
