"""What is read of a result for a report: its manifest as types, and its tables, each checked before it is believed."""

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from msgspec import UNSET, UnsetType

from posbias.core.arrays.count_table import Floats
from posbias.core.credentials import masked
from posbias.core.errors import LogFormatError, UsageError
from posbias.core.escapes import escaped
from posbias.core.fit.fitted_theta import SHARED_CLICKS, matrix_of
from posbias.core.reporting.curves import Curves, curves_of
from posbias.core.schema import POSITION
from posbias.io.fits.manifest import FitSection
from posbias.io.fits.read import fits_of_values
from posbias.io.fits.verdict_sections import Number
from posbias.io.log.rows import Rows
from posbias.io.places.locations import Location
from posbias.io.results.manifest import manifest_text
from posbias.io.results.stored import open_stored
from posbias.io.results.tables import ATTRACTIVENESS, FILES_OF_A_FIT, PROPENSITIES, read_covariance, read_table
from posbias.io.results.tables import read_propensities as check_table
from posbias.io.stores.manifest import Amount, Counted, Position

_AGAIN = "Make it again with the command that wrote it."
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


class Said(msgspec.Struct, frozen=True):
    """As much of a manifest as a report looks at."""

    command: str
    inputs: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    counted: Counted | UnsetType = UNSET
    estimate: FitSection | UnsetType = UNSET
    click_model: ClickModelSection | UnsetType = UNSET
    rows: Rows | UnsetType = UNSET
    days: DaysSection | UnsetType = UNSET
    segments: tuple[Segment, ...] = ()
    totals: dict[str, Amount] = {}
    statistics: dict[str, Amount] = {}
    weights: WeightsSection | UnsetType = UNSET
    weights_by_position: tuple[WeightsOfPosition, ...] = ()
    verdicts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    files: dict[str, int] = {}
    versions: dict[str, str] = {}


@dataclass(frozen=True)
class ReportedFit:
    """The tables of a fit.

    Attributes:
        estimate: what its manifest says of it.
        curves: its cells.
        n_cells: how many there are.
        positions: of all cells, in the order of the table.
        identified: of all cells, likewise.
        reasons: why cells are not identified, or have no interval, with the number of cells.
        shared_clicks: the clicks that compare two cells, shape (K, K); None where that is not known.
        documents: the file of attractiveness; None where there is none.
        context: the columns that tell contexts apart.
    """

    estimate: FitSection
    curves: Curves
    n_cells: int
    positions: pl.Series
    identified: pl.Series
    reasons: dict[str, int]
    shared_clicks: Floats | None
    documents: Path | None
    context: tuple[str, ...]


@dataclass(frozen=True)
class ReportedResult:
    """A result that is reported on.

    Attributes:
        name: what it is called on the page.
        said: what its manifest says.
        manifest: the manifest as text.
        fit: its tables; None of a result without propensities.
    """

    name: str
    said: Said
    manifest: str
    fit: ReportedFit | None


@contextmanager
def open_reported(places: Sequence[Location]) -> Generator[list[ReportedResult]]:
    """The results in some directories, in their order; their files stay where they are while the block runs.

    Raises:
        LogFormatError: one is damaged, or was replaced while it was read.
        UsageError: one holds nothing that a report could show, or is named twice.
    """
    if len(set(places)) < len(places):
        twice = next(place for number, place in enumerate(places) if place in places[:number])
        raise UsageError(f"{twice}: is named twice. Name each result once.")
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
        if said.estimate is UNSET and said.weights is UNSET and not said.segments:
            raise UsageError(f"{folder}: {_why_nothing(said)}")
        yield ReportedResult(name, said, manifest_text(stored.content), _fit(folder, said))


def _why_nothing(said: Said) -> str:
    """Why a report has nothing to show of a result."""
    if said.click_model is not UNSET:
        return (
            f"a report draws propensities, and click model {escaped(said.click_model.model)} has none. `posbias show` "
            "prints its parameters."
        )
    return (
        f"was written by `posbias {escaped(said.command)}`, of which a report has nothing to show. Name directories "
        "that fit, run, weight or collect wrote."
    )


def _fit(folder: Path, said: Said) -> ReportedFit | None:
    if said.estimate is UNSET or said.counted is UNSET:
        return None
    plan, path = said.counted.plan(), folder / f"{PROPENSITIES}.parquet"
    cells = check_table(folder, plan.cell_columns).select(plan.cell_columns)
    table = read_table(path)
    curves = curves_of(table, plan.context, where=str(path))
    matrices = read_covariance(folder, plan.cell_columns)
    shared = None
    if matrices is not None and SHARED_CLICKS in matrices.columns:
        if not matrices.select(plan.cell_columns).equals(cells):
            raise LogFormatError(f"{folder}: theta_covariance.parquet and {path.name} have other cells. {_AGAIN}")
        shared = _matrix(matrices[SHARED_CLICKS], where=f"{folder}: theta_covariance.parquet")
    clicks = said.estimate.clicks
    if any(len(values) != table.height for values in clicks.values()) or set(clicks) != {"observed", "expected"}:
        raise LogFormatError(f"{folder}: manifest.json and {path.name} have other cells. {_AGAIN}")
    reasons = table["reason"].drop_nulls().value_counts(sort=True).iter_rows()
    documents = folder / f"{ATTRACTIVENESS}.parquet"
    return ReportedFit(
        estimate=said.estimate,
        curves=curves,
        n_cells=table.height,
        positions=table[POSITION],
        identified=table["identified"],
        reasons={str(reason): int(count) for reason, count in reasons},
        shared_clicks=shared,
        documents=documents if documents.is_file() else None,
        context=plan.context,
    )


def _matrix(column: pl.Series, where: str) -> Floats:
    """A column of lists as a matrix.

    Raises:
        LogFormatError: it is none.
    """
    try:
        return matrix_of(column)
    except (TypeError, ValueError) as error:
        raise LogFormatError(f"{where}: column {column.name!r} holds no square of numbers. {_AGAIN}") from error
