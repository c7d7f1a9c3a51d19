"""What every estimator takes and returns."""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.arrays.members import Members
from posbias.core.choices import Cluster, Period, Shrink, Source
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators.harvesting import HarvestedPropensities
from posbias.core.priors import BetaPrior
from posbias.core.standard_errors.cluster import ClusterErrors
from posbias.core.standard_errors.contrasts import FittedStrata, correlation_of
from posbias.core.standard_errors.intervals import Intervals
from posbias.core.theta.conditional import ConditionalFit
from posbias.core.theta.joint import EMOptions, JointFit
from posbias.core.theta.linkage import NO_CLICKS, NO_REFERENCE, Linkage, find_linkage


@dataclass(frozen=True)
class EstimationOptions:
    """What is asked of an estimate; None leaves the choice to the estimator.

    Attributes:
        attractiveness_prior: Beta prior of gamma; None estimates it from the log.
        examination_prior: Beta prior of theta, in joint EM.
        max_iterations: stop after so many, converged or not.
        tolerance: relative change at which an estimate has converged; 0 runs all iterations.
        accelerate: whether joint EM is accelerated.
        reference: the cell that others are compared with, as the values of its columns (position, and with UBM the
            previous click); empty for the first one that is linked.
        period: the length of periods by which gamma may differ, where the statistics keep time; `auto` decides.
        cluster: what shares the errors that the model does not know; None for queries, and for both ways where the
            statistics keep a column of clusters and the method can use it.
        bootstrap: number of bootstrap replicates over queries; 0 for the sandwich.
        seed: of the bootstrap.
        shape: the name of what is assumed of theta as a function of the position.
        shrink: whether contexts are shrunk towards each other, as far as the log says.
        weigh_by: where weights come from that are made of the estimate.
    """

    attractiveness_prior: BetaPrior | None = None
    examination_prior: BetaPrior = BetaPrior(0.5, 2.0)
    max_iterations: int | None = None
    tolerance: float | None = None
    accelerate: bool = True
    reference: tuple[int, ...] = ()
    period: Period = "auto"
    cluster: Cluster | None = None
    bootstrap: int = 0
    seed: int = 0
    shape: str = "free"
    shrink: Shrink = "auto"
    weigh_by: Source = "smooth"


@dataclass(frozen=True)
class FittedJointly:
    """A joint fit, and what it was asked for."""

    fit: JointFit
    options: EMOptions


@dataclass(frozen=True)
class FittedCurve:
    """A conditional fit with its errors, where it was fitted to something other than the log's own strata.

    Attributes:
        fit: the estimate.
        errors: its errors.
    """

    fit: ConditionalFit
    errors: ClusterErrors


@dataclass(frozen=True)
class Estimate:
    """Theta per cell, each array of shape (K,), nan where nothing is known.

    Attributes:
        method: the estimator's name.
        linkage: which cells are identified, and by what.
        propensity: theta relative to the reference cell = 1; above 1 where a slot is seen more.
        examination: on the probability scale, in [0, 1].
        intervals: of the propensity, and why a cell has none or no interval.
        converged: whether the iterations converged.
        iterations: how many there were.
        attractiveness: gamma per pair signature where the method estimates it with theta, else None.
        fitted: the conditional fit behind the estimate, where the method is one on the log's own strata.
        curve: the conditional fit behind it, where it was fitted to strata of features.
        joint: the joint fit behind it, likewise.
        errors_by: what the errors are clustered by; None where the method has none.
        n_clusters: how many clusters there are.
    """

    method: str
    linkage: Linkage
    propensity: Floats
    examination: Floats
    intervals: Intervals
    converged: bool
    iterations: int
    attractiveness: Floats | None = None
    fitted: FittedStrata | None = None
    joint: FittedJointly | None = None
    errors_by: Cluster | None = None
    n_clusters: int = 0
    curve: FittedCurve | None = None

    @property
    def conditional(self) -> FittedStrata | FittedCurve | None:
        """The conditional fit with its errors, whatever it was fitted to."""
        return self.fitted or self.curve

    @property
    def correlation(self) -> Floats:
        """Of the log propensities, shape (K, K), by the clusters and without a shape; 0 beside cells without an error.

        The identity where the method has no errors.
        """
        correlation = np.eye(len(self.propensity))
        errors = self.intervals if self.conditional is None else self.conditional.errors
        if isinstance(errors, ClusterErrors):
            free = np.setdiff1d(np.flatnonzero(self.linkage.identified), self.linkage.references)
            correlation[np.ix_(free, free)] = correlation_of(errors.covariance)
        return correlation


def linkage_of(statistics: SufficientStatistics, strata: Strata, options: EstimationOptions) -> Linkage:
    """Which cells the strata can compare, with the reference that was asked for.

    Raises:
        UsageError: there is no such reference cell.
        IdentifiabilityError: nothing links two cells, or nothing links the reference that was asked for.
    """
    preference = cells_like(statistics, options.reference) if options.reference else None
    return find_linkage(strata.signatures, statistics.context_of_cell, preference)


def cells_like(statistics: SufficientStatistics, reference: tuple[int, ...]) -> Integers:
    """The cells whose first columns hold these values: position, then previous click; one per context.

    Raises:
        UsageError: there is none.
    """
    wanted = ",".join(map(str, reference))
    columns = statistics.plan.model.cell_columns
    if len(reference) > len(columns):
        raise UsageError(f"--reference {wanted}: a cell has {len(columns)} number(s) ({', '.join(columns)}).")
    held = statistics.cells.select(columns[: len(reference)]).to_numpy()
    found = np.flatnonzero((held == np.array(reference)).all(axis=1))
    if not len(found):
        first, last = held[:, 0].min(), held[:, 0].max()
        raise UsageError(f"--reference {wanted}: there is no such cell; positions run from {first} to {last}.")
    return found


def linkage_of_clicks(statistics: SufficientStatistics, options: EstimationOptions) -> Linkage:
    """The linkage of a method that compares every cell that has a click: no pair has to link it.

    Raises:
        UsageError: there is no such reference cell.
        IdentifiabilityError: there is no click, or none in the reference that was asked for.
    """
    _, clicks = statistics.cell_totals
    asked = cells_like(statistics, options.reference) if options.reference else np.arange(statistics.n_cells)
    reference_of = _first_of_context(statistics.context_of_cell, asked[clicks[asked] > 0])
    known = (clicks > 0) & (reference_of >= 0)
    if not known.any():
        raise IdentifiabilityError(
            "no cell (position) that could be the reference has a click, so there is no click rate to compare with."
        )
    reasons = np.select([known, clicks == 0], ["", NO_CLICKS], default=NO_REFERENCE)
    return Linkage(
        reference_of=np.where(reference_of >= 0, reference_of, 0),
        identified=known,
        reason=tuple(str(reason) or None for reason in reasons),
        linking_pairs=np.zeros(statistics.n_cells),
        linking_clicks=np.zeros(statistics.n_cells),
        component=reference_of,
    )


def _first_of_context(context: Integers, candidates: Integers) -> Integers:
    """The first candidate of each cell's context, -1 where it has none, shape (K,)."""
    first = {int(context[cell]): int(cell) for cell in candidates[::-1]}
    return np.array([first.get(int(number), -1) for number in context], np.int64)


def clustered(strata: Strata, options: EstimationOptions) -> Strata:
    """The strata with the clusters that were asked for: queries, or each stratum by itself."""
    if options.cluster in {None, "query"}:
        return strata
    unit = strata.members.unit
    return replace(strata, members=Members(unit, np.arange(len(unit))))


def from_harvest(method: str, linkage: Linkage, found: HarvestedPropensities, options: EstimationOptions) -> Estimate:
    """The common form of an estimate by intervention harvesting; cells without a number are not identified by it."""
    linkage = replace(linkage, identified=np.isfinite(found.log_theta))
    return Estimate(
        method=method,
        linkage=linkage,
        propensity=found.theta,
        examination=relative_to_largest(found.theta, linkage),
        intervals=found.errors,
        converged=found.converged,
        iterations=found.iterations,
        errors_by=options.cluster or "query",
        n_clusters=found.errors.n_clusters,
    )


def relative_to_largest(propensity: Floats, linkage: Linkage) -> Floats:
    """Propensities on the probability scale: divided by the largest one with the same reference, shape (K,)."""
    largest = np.full(len(propensity), -np.inf)
    np.maximum.at(largest, linkage.reference_of, np.nan_to_num(propensity, nan=-np.inf))
    return propensity / largest[linkage.reference_of]
