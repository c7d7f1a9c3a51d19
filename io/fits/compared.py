"""What `compare` reads of a fit: its propensities, what is known of their errors, and what is doubtful of it."""

from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from posbias.core.comparison.curves import FittedCurve
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.fit.model_tests import ModelTests
from posbias.core.fit.propensities import PROPENSITY
from posbias.io.fits.read import require_propensities
from posbias.io.places.locations import Location
from posbias.io.results.stored import open_stored
from posbias.io.results.tables import FILES_OF_A_FIT, read_covariance, read_propensities
from posbias.io.stores.manifest import Counted


class _Estimate(msgspec.Struct, frozen=True):
    method: str
    converged: bool
    query_spread: float
    model_tests: ModelTests | None
    shape: str | UnsetType = UNSET
    contexts_tau: float | UnsetType = UNSET
    effective_clusters: list[float | None] | UnsetType = UNSET
    clusters: int | UnsetType = UNSET


class _FitManifest(msgspec.Struct, frozen=True):
    """As much of the manifest of a fit as is read again."""

    counted: Counted
    estimate: _Estimate


@dataclass(frozen=True)
class ComparedFit:
    """A fit on disk.

    Attributes:
        plan: what it counted.
        made_by: how it was estimated: the method, the shape, whether contexts are shrunk.
        curve: its propensities.
        converged: whether it converged.
        identified: whether every cell has a propensity.
        rejected: whether a test says that the model does not hold.
    """

    plan: StatisticsPlan
    made_by: str
    curve: FittedCurve
    converged: bool
    identified: bool
    rejected: bool


def open_compared(place: Location) -> ComparedFit:
    """A fit to compare.

    Raises:
        LogFormatError: it is no result, is damaged, or was replaced while it was read.
        UsageError: it is a result of another kind.
    """
    with open_stored(place, FILES_OF_A_FIT) as stored:
        if "for_each" in stored.content:
            require_propensities(stored, str(stored.folder))
        if "estimate" not in stored.content:
            raise UsageError(
                f"{stored.folder}: is a result of `posbias {stored.command}`, which holds no propensities. Name two "
                "directories that `posbias fit` or `run` wrote, or two that `posbias collect` wrote."
            )
        said = stored.typed(_FitManifest)
        plan, estimate = said.counted.plan(), said.estimate
        table = read_propensities(stored.folder, plan.cell_columns)
        covariance = read_covariance(stored.folder, plan.cell_columns)
    effective = None if estimate.effective_clusters is UNSET else estimate.effective_clusters
    if effective is not None and len(effective) != table.height:
        raise UsageError(f"{place}: its table has {table.height} cells, and its manifest {len(effective)}. Fit again.")
    tests = estimate.model_tests
    how = [f"the {estimate.method} method"]
    how += [] if estimate.shape is UNSET else [f"the shape {estimate.shape}"]
    how += [] if estimate.contexts_tau is UNSET else ["shrinkage of contexts"]
    return ComparedFit(
        plan=plan,
        made_by=" with ".join(how),
        curve=FittedCurve(
            table, covariance, estimate.query_spread, effective, 0 if estimate.clusters is UNSET else estimate.clusters
        ),
        converged=estimate.converged,
        identified=not table[PROPENSITY].has_nulls(),
        rejected=tests is not None and bool(tests.rejected),
    )
