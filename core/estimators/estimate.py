"""Input and output of all estimators: options, the estimate of theta, and the choice of reference cells."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.choices import BetaPrior, CellForm, Cluster, Period, Plugin, Shrink, Source
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.standard_errors.cluster import ClusterErrors, Intervals
from posbias.core.standard_errors.contrasts import StrataEstimate, correlation_matrix
from posbias.core.theta import conditional
from posbias.core.theta.conditional import ConditionalFit, Linkage
from posbias.core.theta.joint import JointFit


@dataclass(frozen=True)
class EstimationOptions:
    """Options of an estimate; None leaves the choice to the estimator."""

    attractiveness_prior: BetaPrior | None = None  # of gamma; None estimates it from the log
    examination_prior: BetaPrior = BetaPrior(0.5, 2.0)  # of theta, in joint EM
    max_iterations: int | None = None
    tolerance: float | None = None  # relative change at which an estimate has converged; 0 runs all iterations
    accelerate: bool = True  # joint EM by SQUAREM
    reference: tuple[int, ...] = ()  # values of a cell's columns; empty: the first cell that is linked
    period: Period = "auto"  # length of the periods between which gamma may differ, if statistics have times
    cluster: Cluster | None = None  # None: query, or two-way if there is a cluster column that the method uses
    bootstrap: int = 0  # number of bootstrap replicates over queries; 0: sandwich errors
    seed: int = 0  # of the bootstrap
    shape: str = "free"  # assumed shape of theta over positions
    cell_form: CellForm | None = None  # form of cells of several columns; None: by the test of the product form
    shrink: Shrink = "auto"  # whether contexts are shrunk towards each other, as far as the log supports it
    weigh_by: Source = "smooth"  # propensities from which weights are made

    @property
    def limits(self) -> dict[str, Any]:
        """`max_iterations` and `tolerance` as keyword arguments, those that are set."""
        limits = {"max_iterations": self.max_iterations, "tolerance": self.tolerance}
        return {name: value for name, value in limits.items() if value is not None}


@dataclass(frozen=True)
class CurveEstimate:
    """Conditional fit, with its errors, to strata other than those of the log (strata of features)."""

    fit: ConditionalFit
    errors: ClusterErrors


@dataclass(frozen=True)
class Estimate:
    """Estimate of theta per cell; arrays of shape (K,), NaN where a cell is not identified."""

    method: str
    linkage: Linkage  # identification of the cells
    propensity: Floats  # theta relative to the reference cell, > 0; above 1 if a cell is examined more
    examination: Floats  # theta relative to the largest, in [0, 1]
    intervals: Intervals  # of the propensity, and the reason if a cell has no propensity or no interval
    converged: bool
    iterations: int
    attractiveness: Floats | None = None  # gamma per pair signature, if the method estimates it jointly with theta
    conditional: StrataEstimate | CurveEstimate | None = None  # the underlying conditional fit, with its errors
    joint: JointFit | None = None  # the underlying joint fit
    errors_by: Cluster | None = None  # clusters of the errors; None if the method has no errors
    n_clusters: int = 0
    of_form: Floats | None = None  # covariance of log propensities under the product form, shape (K, K)

    @property
    def fitted(self) -> StrataEstimate | None:
        """The conditional fit, if it was made on the strata of the log, not on strata of features; else None."""
        return self.conditional if isinstance(self.conditional, StrataEstimate) else None

    @property
    def correlation(self) -> Floats:
        """Correlation of log propensities from clustered errors, shape (K, K); 0 with a cell that has no error.

        Under the product form, that of the form; otherwise without a shape. The identity if the method has no errors.
        """
        if self.of_form is not None:
            return correlation_matrix(self.of_form)
        correlation = np.eye(len(self.propensity))
        errors = self.intervals if self.conditional is None else self.conditional.errors
        if isinstance(errors, ClusterErrors):
            free = np.setdiff1d(np.flatnonzero(self.linkage.identified), self.linkage.references)
            correlation[np.ix_(free, free)] = correlation_matrix(errors.covariance)
        return correlation


def conditional_estimate(
    method: str, behind: StrataEstimate | CurveEstimate, table: CountTable, by: Cluster
) -> Estimate:
    """Make an estimate from a conditional fit and its errors.

    Args:
        method: its name.
        behind: the fit with its errors.
        table: the table of the fit, for the upper limits of cells without clicks.
        by: clusters of the errors.
    """
    fit, errors = behind.fit, behind.errors
    upper = conditional.upper_limits_without_clicks(fit, table)
    alone = errors.reason
    if by != "query":  # in terms of the clusters of the errors, e.g. `one query alone` -> `one pair alone`
        many, one = _NAMES[by]
        alone = [why and why.replace("queries", many).replace("query", one) for why in alone]
    reason = tuple(unlinked or why for unlinked, why in zip(fit.linkage.reason, alone, strict=True))
    return Estimate(
        method=method,
        linkage=fit.linkage,
        propensity=fit.theta,
        examination=relative_to_largest(fit.theta, fit.linkage),
        intervals=replace(errors, high=np.where(np.isnan(upper), errors.high, upper), reason=reason),
        converged=fit.converged,
        iterations=fit.iterations,
        conditional=behind,
        errors_by=by,
        n_clusters=errors.n_clusters,
    )


_NAMES: dict[Cluster, tuple[str, str]] = {
    "pair": ("pairs", "pair"),
    "session": ("sessions", "session"),
    "column": ("values of the cluster column", "value of the cluster column"),
    "two-way": ("queries or values of the cluster column", "query or value of the cluster column"),
}


def linkage_of(statistics: SufficientStatistics, strata: Strata, options: EstimationOptions) -> Linkage:
    """Find the cells that are identified relative to the requested (or the default) reference.

    Raises:
        UsageError: there is no such reference cell.
        IdentifiabilityError: nothing links two cells, or nothing links the requested reference.
    """
    periods = [] if options.period in {"auto", "none"} else [options.period]
    preference = candidate_references(statistics, options.reference)
    return conditional.find_linkage(
        strata.signatures,
        statistics.context_of_cell,
        preference,
        [*statistics.plan.strata, *periods],
        by_clicks=bool(statistics.plan.cell) and not options.reference,
    )


def candidate_references(statistics: SufficientStatistics, reference: tuple[int, ...]) -> Integers:
    """Return the candidates for the reference cell, best first.

    In the order of the cells. If cells have further columns, by position, and at one position by the impressions of the
    curve, then by its clicks, the most first.

    Args:
        statistics: the counts.
        reference: values of a cell's first columns: position, then previous click; empty for all cells.

    Raises:
        UsageError: there is none.
    """
    curve, order = statistics.curve_of_cell, np.arange(statistics.n_cells)
    if statistics.plan.cell:
        impressions, clicks = (np.bincount(curve, totals)[curve] for totals in statistics.cell_totals)
        order = np.lexsort((order, -clicks, -impressions, statistics.position_of_cell))
    if not reference:
        return order
    listed, columns = ",".join(map(str, reference)), statistics.plan.model.cell_columns
    if len(reference) > len(columns):
        raise UsageError(f"--reference {listed}: a cell has {len(columns)} number(s) ({', '.join(columns)}).")
    values = statistics.cells.select(columns[: len(reference)]).to_numpy()
    cells = order[(values == np.array(reference)).all(axis=1)[order]]
    if not len(cells):
        first, last = values[:, 0].min(), values[:, 0].max()
        raise UsageError(f"--reference {listed}: there is no such cell; positions run from {first} to {last}.")
    return cells


def linkage_of_clicks(statistics: SufficientStatistics, options: EstimationOptions) -> Linkage:
    """Return the linkage for a method that identifies every cell with a click, without pairs that link it.

    Raises:
        UsageError: there is no such reference cell.
        IdentifiabilityError: there is no click, or none in the requested reference.
    """
    _, clicks = statistics.cell_totals
    context, ordered = statistics.context_of_cell, candidate_references(statistics, options.reference)
    first = {int(context[cell]): int(cell) for cell in ordered[clicks[ordered] > 0][::-1]}
    reference_of = np.array([first.get(int(number), -1) for number in context], np.int64)
    known = (clicks > 0) & (reference_of >= 0)
    if not known.any():
        raise IdentifiabilityError(
            "no cell (position) that could be the reference has a click, so there is no click rate to compare with."
        )
    reasons = np.select([known, clicks == 0], ["", conditional.NO_CLICKS], default=conditional.NO_REFERENCE)
    return Linkage(
        reference_of=np.where(reference_of >= 0, reference_of, 0),
        identified=known,
        reason=tuple(str(reason) or None for reason in reasons),
        linking_pairs=np.zeros(statistics.n_cells),
        linking_clicks=np.zeros(statistics.n_cells),
        component=reference_of,
    )


def relative_to_largest(propensity: Floats, linkage: Linkage) -> Floats:
    """Divide propensities by the largest with the same reference: examination in [0, 1], shape (K,)."""
    largest = np.full(len(propensity), -np.inf)
    np.maximum.at(largest, linkage.reference_of, np.nan_to_num(propensity, nan=-np.inf))
    return propensity / largest[linkage.reference_of]


OnIteration = Callable[[str], None]
"""Called with the progress in a few words."""


class Method(Plugin):
    """Base of the methods of estimating theta, the choices of `--method`."""

    reference: ClassVar[str]  # source
    clusters: ClassVar[tuple[Cluster, ...]] = ("query", "pair")  # supported values of `cluster`, the default first
    uses_strata: ClassVar[bool] = True  # whether the estimate depends on periods and strata

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError if the method does not support the plan."""


class Estimator(Method):
    """A method that estimates from sufficient statistics."""

    @abstractmethod
    def estimate(
        self, statistics: SufficientStatistics, strata: Strata, options: EstimationOptions, on_iteration: OnIteration
    ) -> Estimate:
        """Estimate theta per cell.

        Args:
            statistics: the counts of the whole log.
            strata: the counts per stratum.
            options: of the estimate.
            on_iteration: called with the progress.

        Raises:
            IdentifiabilityError: no two cells can be compared.
            UsageError: there is no such reference cell.
        """


class MethodOfRows(Method):
    """A method that estimates from impressions with features; implemented in `core.features`."""

    clusters = ("session", "query")
    uses_strata = False

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError if examination depends on more than the position, or if rows are sums."""
        if plan.model.beside_position:
            raise UsageError(
                f"--method {self.name}: only with --model pbm; what is clicked above a document depends on it, so that "
                f"features cannot stand for its exposure below a click ({plan.model.beside_position})."
            )
        if plan.cell:
            raise UsageError(
                f"--method {self.name}: takes no --cell; it tells relevance from places along one list. Use --method "
                "conditional, which compares a document where it stands several times."
            )
        if plan.summed:
            raise UsageError(f"--method {self.name}: needs a row for each impression, and --impressions adds them up.")
