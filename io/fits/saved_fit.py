"""Propensities to work with: of a fit, with its prior of attractiveness; of a table; or a power of the position."""

from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path, PurePosixPath
from typing import ClassVar

import msgspec
import polars as pl
from msgspec import UNSET

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.checks import DEFAULT_MODEL, check_context, counted_model
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.core.fit.propensities import (
    PROPENSITY,
    SHARED_CLICKS,
    WEIGHT_PROPENSITY,
    ThetaEstimate,
    matrix_of,
    own_propensities,
)
from posbias.core.schema import CLICKS, IMPRESSIONS, OUTPUT_COLUMNS, POSITION, PREVIOUS_CLICK
from posbias.io.fits.new_fit import FitManifest, StoredEstimate
from posbias.io.log.scan import reading, resolve_quotes, scan_sources
from posbias.io.log.sources import find_sources, format_by_name
from posbias.io.places.locations import Location, check_inside, location
from posbias.io.results.conclusions import CAUTION, condition_of
from posbias.io.results.manifest import StoredResult, open_stored
from posbias.io.results.tables import (
    ATTRACTIVENESS,
    FILES_OF_A_FIT,
    PROPENSITIES,
    read_covariance,
    read_propensities,
    read_table,
)


class _Value(msgspec.Struct, frozen=True):
    folder: str | None

    def __post_init__(self) -> None:
        """Find a name that is not one of a folder of the result."""
        if self.folder is not None:
            check_inside(self.folder)


class _ForEach(msgspec.Struct, frozen=True):
    column: str | None = None
    values: tuple[_Value, ...] = ()
    value: str | float | bool | None = None


class _Stated(msgspec.Struct, frozen=True):
    """As much of a reason as says what it states."""

    code: str
    severity: str


class _OfLog(msgspec.Struct, frozen=True):
    """As much of a manifest as says which logs a fit is of, of which value of a column, and what it states of them."""

    for_each: _ForEach = _ForEach()
    sources: dict[str, str] = {}
    reasons: tuple[_Stated, ...] = ()


@dataclass(frozen=True)
class PreviousFit:
    """Propensities, and the cells that they are for."""

    name: str  # of the directory or file, or power:ETA
    plan: StatisticsPlan  # what was counted, or would have been
    theta: ThetaEstimate
    digests: dict[str, str] = field(default_factory=dict[str, str])  # of the files that were read, where they are own

    own: ClassVar[bool] = True
    """Whether no fit estimated them, so that neither their errors nor their log are known."""

    @property
    def files(self) -> list[str]:
        """The files that were read."""
        return [] if self.name.startswith(POWER) else [self.name]


@dataclass(frozen=True, kw_only=True)
class StoredFit(PreviousFit):
    """A fit that `fit` or `run` wrote: whoever builds on one reads it as this."""

    folder: Path
    estimate: StoredEstimate
    table: pl.DataFrame  # `propensities.parquet` as it is
    refused: bool  # whether its own conclusion is not to use it
    of_value: tuple[tuple[str, object], ...]  # the column and the value whose rows it is of, if it is of some alone
    condition: str | None  # on which its own conclusion rests, by its code
    sources: frozenset[str]  # digests of the files that it is of
    cautions: frozenset[str]  # codes of the reasons for care that it states

    own: ClassVar[bool] = False

    @property
    def documents(self) -> Path:
        """The file of attractiveness."""
        return self.folder / f"{ATTRACTIVENESS}.parquet"

    @property
    def shared_clicks(self) -> Floats | None:
        """The clicks that compare two cells, shape (K, K); None where that is not known."""
        matrices = self.theta.covariance
        return None if matrices is None or SHARED_CLICKS not in matrices.columns else matrix_of(matrices[SHARED_CLICKS])


POWER = "power:"
LARGEST_POWER = 5.0
LAST_POSITION = 10_000
"""Positions below have no propensity under a power."""


def read_theta(named: str | Path) -> PreviousFit:
    """Read the propensities that `--propensities` names: a result of `fit` or `run`, a table, or `power:ETA`.

    Raises:
        LogFormatError: the file is damaged, or holds values that are no propensities.
        SchemaError: the table lacks a column, or one holds other than numbers.
        UsageError: the directory holds no fit, or the power is out of range.
    """
    name = str(named)
    if name.startswith(POWER):
        return _power(name)
    return _table(name) if is_own(name) else read_fit(location(name))


def is_own(name: str) -> bool:
    """Whether the name is that of a table, or of a power, and not of a result."""
    if name.startswith(POWER):
        return True
    place = location(name)
    if isinstance(place, Path) and place.exists():
        return place.is_file()
    return format_by_name(PurePosixPath(name)) is not None


def _power(name: str) -> PreviousFit:
    """Theta_k = k^-eta."""
    try:
        eta = float(name.removeprefix(POWER))
    except ValueError:
        eta = nan
    if not 0 <= eta <= LARGEST_POWER:
        raise UsageError(
            f"--propensities {name}: give the power as a number from 0 to {LARGEST_POWER:g}: {POWER}1 stands for "
            "1 / position."
        )
    position = pl.int_range(1, LAST_POSITION + 1, dtype=pl.Int32, eager=True).alias(POSITION)
    table = pl.DataFrame({POSITION: position, PROPENSITY: position.cast(pl.Float64) ** -eta})
    return _own(name, table, (), {})


def _table(name: str) -> PreviousFit:
    """A table of `position`, perhaps `previous_click` or contexts, and `propensity`; what else a fit writes is left."""
    sources = resolve_quotes(find_sources([name]))[0]
    with reading(sources):
        table = scan_sources(sources).collect()
    where = f"--propensities {name}"
    missing = [column for column in (POSITION, PROPENSITY) if column not in table.columns]
    if missing:
        raise SchemaError(
            f"{where}: has no column {missing[0]!r}. A table of propensities has {POSITION}, {PROPENSITY}, and perhaps "
            f"{PREVIOUS_CLICK} or columns of contexts. The columns are: {', '.join(table.columns)}."
        )
    if WEIGHT_PROPENSITY in table.columns and not table[WEIGHT_PROPENSITY].equals(table[PROPENSITY], null_equal=True):
        raise SchemaError(
            f"{where}: {PROPENSITY!r} and {WEIGHT_PROPENSITY!r} differ. Name the directory of the fit, or leave in the "
            f"table only the {PROPENSITY!r} to use."
        )
    for column in {POSITION, PREVIOUS_CLICK, PROPENSITY}.intersection(table.columns):
        if table.schema[column] == pl.String:  # a table of text
            dtype, kind = (pl.Float64, "number") if column == PROPENSITY else (pl.Int64, "whole number")
            numbers = table[column].cast(dtype, strict=False)
            wrong = (numbers.is_null() & table[column].is_not_null()).arg_true()
            if len(wrong):
                raise SchemaError(
                    f"{where}: row {wrong[0] + 1}: {column} is {table[column][int(wrong[0])]!r}; it must be a {kind}."
                )
            table = table.with_columns(numbers)
    taken = {POSITION, PREVIOUS_CLICK, IMPRESSIONS, CLICKS} | OUTPUT_COLUMNS
    context = tuple(column for column in table.columns if column not in taken)
    return _own(name, table, context, {str(source.path): source.digest() for source in sources})


def _own(name: str, table: pl.DataFrame, context: tuple[str, ...], digests: dict[str, str]) -> PreviousFit:
    model = counted_model("ubm" if PREVIOUS_CLICK in table.columns else DEFAULT_MODEL)
    check_context(model, context)
    plan = StatisticsPlan(model, context=context)
    known = own_propensities(table, plan.cell_columns, where=f"--propensities {name}")
    return PreviousFit(name, plan, ThetaEstimate(known, None), digests)


def read_fit(place: Location) -> StoredFit:
    """The fit in a directory that `fit` or `run` wrote.

    Raises:
        LogFormatError: it is damaged, or was replaced while it was read.
        UsageError: what the directory holds is no fit.
    """
    with open_stored(place, FILES_OF_A_FIT) as stored:
        return replace(fit_in(stored, f"--propensities {stored.folder}"), name=str(place))


def open_compared(place: Location) -> StoredFit:
    """A fit to compare with another.

    Raises:
        LogFormatError: it is damaged, or was replaced while it was read.
        UsageError: what the directory holds is no fit.
    """
    with open_stored(place, FILES_OF_A_FIT) as stored:
        if not {"estimate", "for_each"} & stored.content.keys():
            raise UsageError(
                f"{stored.folder}: is a result of `posbias {stored.command}`, which holds no propensities. Name two "
                "directories that `posbias fit` or `run` wrote, or two that `posbias collect` wrote."
            )
        return fit_in(stored, str(stored.folder))


def fit_in(stored: StoredResult, where: str) -> StoredFit:
    """The fit that a result holds.

    Raises:
        LogFormatError: it is damaged.
        UsageError: it holds none.
    """
    require_propensities(stored, where)
    manifest = stored.typed(FitManifest)
    plan, estimate, folder = manifest.counted.plan(), manifest.estimate, stored.folder
    known, covariance = read_propensities(folder, plan.cell_columns), read_covariance(folder, plan.cell_columns)
    by_cell = [estimate.clicks.observed, estimate.clicks.expected]
    by_cell += [] if estimate.effective_clusters is UNSET else [estimate.effective_clusters]
    others = ["manifest.json"] if any(len(values) != known.height for values in by_cell) else []
    if covariance is not None and not covariance.select(plan.cell_columns).equals(known.select(plan.cell_columns)):
        others.append("theta_covariance.parquet")
    if others:
        raise LogFormatError(
            f"{folder}: {others[0]} and propensities.parquet have other cells. Run `posbias fit` again."
        )
    log, theta = stored.typed(_OfLog), ThetaEstimate(known, estimate.attractiveness_prior, covariance)
    table = read_table(folder / f"{PROPENSITIES}.parquet")
    return StoredFit(
        str(folder),
        plan,
        theta,
        folder=folder,
        estimate=estimate,
        table=table,
        of_value=() if log.for_each.column is None else ((log.for_each.column, log.for_each.value),),
        refused=manifest.verdict == "do not use",
        condition=condition_of(manifest.conclusion),
        sources=frozenset(log.sources),
        cautions=frozenset(stated.code for stated in log.reasons if stated.severity == CAUTION),
    )


def require_propensities(stored: StoredResult, where: str) -> None:
    """Check that a result has propensities by cell.

    Raises:
        UsageError: it has none.
    """
    if "click_model" in stored.content:
        raise UsageError(
            f"{where}: holds a click model that has no propensity by position. It serves `posbias weight`; fit --model "
            "pbm or ubm for this command."
        )
    each = fits_of_values(stored)
    if each:
        raise UsageError(f"{where}: holds several fits (--for-each). Name one of them, such as {each[0]}.")
    if "estimate" not in stored.content:
        raise UsageError(f"{where}: holds no propensities. Name the directory that `posbias fit` wrote.")


def fits_of_values(stored: StoredResult) -> list[Path]:
    """The fits that a result holds, one for each value of a column (`fit --for-each`); none of any other result.

    Raises:
        LogFormatError: the manifest is damaged.
    """
    values = stored.typed(_OfLog).for_each.values
    return [stored.folder / value.folder for value in values if value.folder is not None]
