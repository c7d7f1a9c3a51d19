"""What is read of a result for a report: its manifest as types, and its tables, each checked before it is believed."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl
from msgspec import UNSET, UnsetType

from posbias.core.errors import LogFormatError, escaped, masked
from posbias.core.fit.plot_data import PlottedCurves, plotted_curves
from posbias.io.fits.new_fit import Number, StoredEstimate
from posbias.io.fits.saved_fit import StoredFit, fit_in, fits_of_values
from posbias.io.places.locations import Location
from posbias.io.results.manifest import StoredResult, json_text, open_stored
from posbias.io.results.result import ResultManifest
from posbias.io.results.tables import ATTRACTIVENESS, FILES_OF_A_FIT, PROPENSITIES, read_table
from posbias.io.stores.metadata import Amount, Counted, Position, Segment

_METRICS = "metrics.parquet"
_FILES = (*FILES_OF_A_FIT, f"{ATTRACTIVENESS}.parquet", _METRICS)


class Interval(NamedTuple):
    """A value with its 95 % interval; its ends are None where they are not known."""

    label: str
    value: float
    low: float | None
    high: float | None


class DaysSection(msgspec.Struct, frozen=True):
    """The days of a log."""

    first: str
    last: str


class WeightsSection(msgspec.Struct, frozen=True):
    """What clipping did to the weights of clicks."""

    clicks_weighted: Amount
    clicks_clipped: Amount
    effective_sample_size: Number


class ChangedQuery(msgspec.Struct, frozen=True):
    """A query whose clicks a ranking changes, with its documents now and then."""

    query: str
    pages: Number
    difference: Number
    before: tuple[str, ...]
    after: tuple[str, ...]


class PredictedRanking(msgspec.Struct, frozen=True):
    """The prediction of a ranking; differences are clicks per page."""

    ranking: str
    clicks_per_page: Number
    difference: Number
    ci_low: Number
    ci_high: Number
    unsupported_share: Number
    pages_per_arm: Number
    changed_queries: tuple[ChangedQuery, ...]


class RankingSection(msgspec.Struct, frozen=True):
    """A ranking that was predicted or evaluated."""

    name: str
    smallest_difference: Number = None  # clicks per page that this log tells in four of five cases
    top_never_shown: Number = None  # the share of its first documents


class EvaluationSection(msgspec.Struct, frozen=True):
    """What an evaluation rests on."""

    cutoff: int
    pages: Amount
    effective_queries: Number


class JudgedModel(msgspec.Struct, frozen=True):
    """A click model by clicks that it was not fitted to; differences of the log-likelihood from the best one."""

    model: str
    difference: Number
    difference_std_error: Number
    perplexity: Number


class GainSection(msgspec.Struct, frozen=True):
    """What a ranker gains against another order, and what that order is worth."""

    difference: Number
    ci_low: Number
    ci_high: Number
    of: Number


class ChosenLearner(msgspec.Struct, frozen=True):
    """What was learnt of a ranker by clicks held out."""

    measure: str
    against: dict[str, GainSection] = {}


class LearnerSection(msgspec.Struct, frozen=True):
    """How a ranker was trained."""

    chosen: ChosenLearner | UnsetType = UNSET


class DifferenceOfCells(msgspec.Struct, frozen=True):
    """A cell in two fits, or in a day and the others: the ratio of its propensities, and whether it is by chance."""

    position: Position
    ratio: Number = None
    ratio_ci_low: Number = None
    ratio_ci_high: Number = None
    p_value_joint: Number = None
    previous_click: int | None = None
    day: str | None = None


class ComparisonSection(msgspec.Struct, frozen=True):
    """How two results differ, or days."""

    differences: tuple[DifferenceOfCells, ...]


class ReportManifest(ResultManifest, msgspec.Struct, frozen=True, kw_only=True):
    """As much of a manifest as a report looks at."""

    counted: Counted | UnsetType = UNSET
    estimate: StoredEstimate | UnsetType = UNSET
    days: DaysSection | UnsetType = UNSET
    segments: tuple[Segment, ...] = ()
    totals: dict[str, Amount] = {}
    statistics: dict[str, Amount] = {}
    weights: WeightsSection | UnsetType = UNSET
    predictions: tuple[PredictedRanking, ...] = ()
    rankings: tuple[RankingSection, ...] = ()
    evaluation: EvaluationSection | UnsetType = UNSET
    models: tuple[JudgedModel, ...] = ()
    learner: LearnerSection | UnsetType = UNSET
    comparison: ComparisonSection | UnsetType = UNSET


@dataclass(frozen=True)
class ReportedFit:
    """A fit and its cells as they are drawn."""

    fit: StoredFit
    curves: PlottedCurves


@dataclass(frozen=True)
class ReportedResult:
    """A result that is reported on."""

    name: str  # what it is called on the page
    described: ReportManifest
    manifest: str
    fit: ReportedFit | None  # None of a result without propensities
    values: tuple[Interval, ...]  # what rankings are worth, of an evaluation


@contextmanager
def open_reported(places: Sequence[Location]) -> Generator[list[ReportedResult]]:
    """The results in some directories, in their order; their files stay where they are while the block runs.

    Raises:
        LogFormatError: one is damaged, or was replaced while it was read.
    """
    opened = [fit for place in places for fit in _fits_of(place)]
    with ExitStack() as stack:
        names = short_names([str(place) for place in opened])
        yield [stack.enter_context(_opened(place, name)) for place, name in zip(opened, names, strict=True)]


def _fits_of(place: Location) -> Sequence[Location]:
    """The results at a place: one, or those of the values of a column (`fit --for-each`)."""
    if not isinstance(place, Path):
        return [place]
    with open_stored(place) as stored:
        return fits_of_values(stored) or [place]


def short_names(names: Sequence[str]) -> list[str]:
    """As much of the end of each path as it takes to tell them apart."""
    parts = [name.rstrip("/").split("/") for name in names]
    ends = (["/".join(path[-length:]) for path in parts] for length in range(1, max(map(len, parts))))
    short = next((part for part in ends if len(set(part)) == len(part)), list(names))
    return [masked(escaped(name)) for name in short]


@contextmanager
def _opened(place: Location, name: str) -> Generator[ReportedResult]:
    with open_stored(place, _FILES) as stored:
        folder, described, fit = stored.folder, stored.typed(ReportManifest), None
        if described.estimate is not UNSET:
            read = fit_in(stored, str(folder))
            where = str(folder / f"{PROPENSITIES}.parquet")
            fit = ReportedFit(read, plotted_curves(read.table, read.plan.context, where=where))
        yield ReportedResult(name, described, json_text(stored.content), fit, _values(stored))


_METRIC, _ESTIMATOR = "dcg", "snips"


def _values(stored: StoredResult) -> tuple[Interval, ...]:
    """DCG of each ranking with its interval, of an evaluation of rankings.

    Raises:
        LogFormatError: the table is damaged.
    """
    if _METRICS not in stored.files:
        return ()
    path = stored.folder / _METRICS
    try:
        rows = read_table(path).filter(metric=_METRIC, estimator=_ESTIMATOR)
        rows = rows.select(pl.col("ranking").cast(pl.String), pl.col("value", "ci_low", "ci_high").cast(pl.Float64))
    except pl.exceptions.PolarsError as error:
        raise LogFormatError(f"{path}: is damaged: {error}. Run `posbias evaluate` again.") from error
    return tuple(Interval(*row) for row in rows.filter(pl.col("value").is_finite()).iter_rows())
