"""What is read of a result for a report: its manifest as types, and its tables, each checked before it is believed."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from posbias.core.errors import UsageError, escaped, masked
from posbias.core.fit.plot_data import PlottedCurves, plotted_curves
from posbias.io.fits.new_fit import Number, StoredEstimate
from posbias.io.fits.saved_fit import StoredFit, fit_in, fits_of_values
from posbias.io.log.clicks import Rows
from posbias.io.places.locations import Location
from posbias.io.results.conclusions import Reason, Verdict
from posbias.io.results.manifest import manifest_text, open_stored
from posbias.io.results.tables import ATTRACTIVENESS, FILES_OF_A_FIT, PROPENSITIES
from posbias.io.stores.metadata import Amount, Counted, Position

_FILES = (*FILES_OF_A_FIT, f"{ATTRACTIVENESS}.parquet")


class DaysSection(msgspec.Struct, frozen=True):
    """The days of a log."""

    first: str
    last: str
    number: int


class WeightsSection(msgspec.Struct, frozen=True):
    """What clipping did to the weights of clicks."""

    clicks_weighted: Amount
    clicks_without_propensity: Amount
    clicks_clipped: Amount
    weight_before_clipping: Number
    weight_after_clipping: Number
    effective_sample_size_before_clipping: Number
    effective_sample_size: Number


class WeightsOfPosition(msgspec.Struct, frozen=True):
    """The clicks of a position, and their share of the weight."""

    position: Position
    clicks: Amount
    weight_share: Number


class SegmentCounts(msgspec.Struct, frozen=True):
    """How much a segment of statistics counts."""

    impressions: Amount
    clicks: Amount


class Segment(msgspec.Struct, frozen=True):
    """A segment of statistics."""

    days: tuple[str, ...]
    statistics: SegmentCounts


class ClickModelSection(msgspec.Struct, frozen=True):
    """Which click model was fitted."""

    model: str


class ChangedQuery(msgspec.Struct, frozen=True):
    """A query whose clicks a ranking changes, with its documents now and then."""

    query: str
    pages: Number
    difference: Number
    before: tuple[str, ...]
    after: tuple[str, ...]


class PredictedRanking(msgspec.Struct, frozen=True):
    """The prediction of a ranking."""

    ranking: str
    clicks_per_page: Number
    difference: Number
    ci_low: Number
    ci_high: Number
    new_queries_ci_low: Number | None
    new_queries_ci_high: Number | None
    unsupported_share: Number
    pages_per_arm: Number | None
    changed_queries: tuple[ChangedQuery, ...]
    ubm_difference: Number | None = None


class Said(msgspec.Struct, frozen=True):
    """As much of a manifest as a report looks at."""

    command: str
    inputs: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    counted: Counted | UnsetType = UNSET
    estimate: StoredEstimate | UnsetType = UNSET
    click_model: ClickModelSection | UnsetType = UNSET
    rows: Rows | UnsetType = UNSET
    days: DaysSection | UnsetType = UNSET
    segments: tuple[Segment, ...] = ()
    totals: dict[str, Amount] = {}
    statistics: dict[str, Amount] = {}
    weights: WeightsSection | UnsetType = UNSET
    weights_by_position: tuple[WeightsOfPosition, ...] = ()
    predictions: tuple[PredictedRanking, ...] = ()
    verdict: Verdict | UnsetType = UNSET
    conclusion: str = ""
    reasons: tuple[Reason, ...] = ()
    next: str | None = None
    warnings: tuple[str, ...] = ()
    files: dict[str, int] = {}
    versions: dict[str, str] = {}


@dataclass(frozen=True)
class ReportedFit:
    """A fit and its cells as they are drawn."""

    fit: StoredFit
    curves: PlottedCurves


@dataclass(frozen=True)
class ReportedResult:
    """A result that is reported on."""

    name: str  # what it is called on the page
    said: Said
    manifest: str
    fit: ReportedFit | None  # None of a result without propensities


@contextmanager
def open_reported(places: Sequence[Location]) -> Generator[list[ReportedResult]]:
    """The results in some directories, in their order; their files stay where they are while the block runs.

    Raises:
        LogFormatError: one is damaged, or was replaced while it was read.
        UsageError: one holds nothing that a report could show.
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
    short = next((found for found in ends if len(set(found)) == len(found)), list(names))
    return [masked(escaped(name)) for name in short]


@contextmanager
def _opened(place: Location, name: str) -> Generator[ReportedResult]:
    with open_stored(place, _FILES) as stored:
        folder, said = stored.folder, stored.typed(Said)
        if said.click_model is not UNSET and said.weights is UNSET:
            raise UsageError(
                f"{folder}: a report draws propensities, and click model {escaped(said.click_model.model)} has none. "
                "`posbias show` prints its parameters."
            )
        if said.estimate is UNSET and said.weights is UNSET and not (said.segments or said.predictions):
            raise UsageError(
                f"{folder}: was written by `posbias {escaped(said.command)}`, of which a report has nothing to show. "
                "Name directories that fit, run, weight, collect or predict wrote."
            )
        fit = None
        if said.estimate is not UNSET:
            read = fit_in(stored, str(folder))
            where = str(folder / f"{PROPENSITIES}.parquet")
            fit = ReportedFit(read, plotted_curves(read.table, read.plan.context, where=where))
        yield ReportedResult(name, said, manifest_text(stored.content), fit)
