"""What `weight` reads of a fit: its propensities, the cells that they are for, and the prior of attractiveness."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.fit.fitted_theta import FittedTheta
from posbias.io.fits.manifest import PriorSection
from posbias.io.places.file_names import check_inside
from posbias.io.places.locations import Location
from posbias.io.results.stored import StoredResult, open_stored
from posbias.io.results.tables import FILES_OF_A_FIT, read_covariance, read_propensities
from posbias.io.stores.manifest_types import Counted


class _Value(msgspec.Struct, frozen=True):
    folder: str | None

    def __post_init__(self) -> None:
        """Find a name that is not one of a folder of the result."""
        if self.folder is not None:
            check_inside(self.folder)


class _ForEach(msgspec.Struct, frozen=True):
    values: tuple[_Value, ...] = ()


class _OfValues(msgspec.Struct, frozen=True):
    """As much of a manifest as says which fits a result holds, one for each value of a column."""

    for_each: _ForEach = _ForEach()


class _Estimate(msgspec.Struct, frozen=True):
    attractiveness_prior: PriorSection


class _FitManifest(msgspec.Struct, frozen=True):
    """As much of the manifest of a fit as is read again."""

    counted: Counted
    estimate: _Estimate


@dataclass(frozen=True)
class PreviousFit:
    """A fit that is on disk.

    Attributes:
        plan: what it counted.
        theta: what training files are made from.
    """

    plan: StatisticsPlan
    theta: FittedTheta


def read_fit(place: Location) -> PreviousFit:
    """The fit in a directory that `fit` or `run` wrote.

    Raises:
        LogFormatError: it is damaged, or was replaced while it was read.
        UsageError: what the directory holds is no fit.
    """
    with open_stored(place, FILES_OF_A_FIT) as stored:
        return fit_in(stored, f"--propensities {stored.folder}")


def fit_in(stored: StoredResult, where: str) -> PreviousFit:
    """The fit that a result holds.

    Raises:
        LogFormatError: it is damaged.
        UsageError: it holds none.
    """
    require_propensities(stored, where)
    said = stored.typed(_FitManifest)
    plan, folder = said.counted.plan(), stored.folder
    table, covariance = read_propensities(folder, plan.cell_columns), read_covariance(folder, plan.cell_columns)
    return PreviousFit(plan, FittedTheta(table, said.estimate.attractiveness_prior.prior(), covariance))


def require_propensities(stored: StoredResult, where: str) -> None:
    """See that a result has propensities by cell.

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
    values = stored.typed(_OfValues).for_each.values
    return [stored.folder / value.folder for value in values if value.folder is not None]
