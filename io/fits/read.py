"""What `weight` reads of a fit: its propensities, the cells that they are for, and the prior of attractiveness."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import LogFormatError, UsageError
from posbias.core.fit.fitted_theta import FittedTheta
from posbias.io.fits.manifest import PriorSection
from posbias.io.places.local_copies import is_current, on_disk
from posbias.io.places.locations import Location
from posbias.io.places.plain_files import is_still
from posbias.io.results.manifest import Manifest, read_manifest
from posbias.io.results.tables import FILES_OF_A_FIT, read_covariance, read_propensities
from posbias.io.stores.manifest_types import Counted


class _Value(msgspec.Struct, frozen=True):
    folder: str | None


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
    with on_disk(place, FILES_OF_A_FIT) as folder:
        manifest = read_manifest(folder, "fit")
        require_propensities(manifest, f"--propensities {folder}")
        said = manifest.typed(_FitManifest, LogFormatError, "Run `posbias fit` again.")
        plan = said.counted.plan()
        table, covariance = read_propensities(folder, plan.cell_columns), read_covariance(folder, plan.cell_columns)
        if not (is_still(manifest.path, manifest.state) and is_current(place)):
            raise LogFormatError(f"{folder}: was replaced while it was read. Run the command again.")
    return PreviousFit(plan, FittedTheta(table, said.estimate.attractiveness_prior.prior(), covariance))


def require_propensities(manifest: Manifest, where: str) -> None:
    """See that a result has propensities by cell.

    Raises:
        UsageError: it has none.
    """
    if "click_model" in manifest.content:
        raise UsageError(
            f"{where}: holds a click model that has no propensity by position. It serves `posbias weight`; fit --model "
            "pbm or ubm for this command."
        )
    each = fits_of_values(manifest)
    if each:
        raise UsageError(f"{where}: holds several fits (--for-each). Name one of them, such as {each[0]}.")
    if "estimate" not in manifest.content:
        raise UsageError(f"{where}: holds no propensities. Name the directory that `posbias fit` wrote.")


def fits_of_values(manifest: Manifest) -> list[Path]:
    """The fits that a result holds, one for each value of a column (`fit --for-each`); none of any other result.

    Raises:
        LogFormatError: the manifest is damaged.
    """
    said = manifest.typed(_OfValues, LogFormatError, "Run `posbias fit` again.")
    names = [value.folder for value in said.for_each.values if value.folder is not None]
    wrong = next((name for name in names if Path(name).name != name), None)
    if wrong is not None:
        raise LogFormatError(f"{manifest.path}: names no folder of a fit: {wrong!r}. Run `posbias fit` again.")
    return [manifest.path.parent / name for name in names]
