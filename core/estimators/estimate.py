"""Input and output of every estimator."""

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
from posbias.core.standard_errors.contrasts import StrataEstimate, correlation_of
from posbias.core.theta import conditional
from posbias.core.theta.conditional import ConditionalFit, Linkage
from posbias.core.theta.joint import JointFit


@dataclass(frozen=True)
class EstimationOptions:
    """Options of an estimate; None leaves the choice to the estimator."""

    attractiveness_prior: BetaPrior | None = None  # of gamma; None estimates it from the log
    examination_prior: BetaPrior = BetaPrior(0.5, 2.0)  # of theta, in joint EM
    max_iterations: int | None = None  # stop after so many, converged or not
    tolerance: float | None = None  # relative change at which an estimate has converged; 0 runs all iterations
    accelerate: bool = True  # joint EM
    reference: tuple[int, ...] = ()  # values of a cell's columns; empty: the first cell that is linked
    period: Period = "auto"  # by which gamma may differ, where the statistics keep time
    cluster: Cluster | None = None  # None: query, or both ways where there is a column of clusters that the method uses
    bootstrap: int = 0  # replicates over queries; 0 for the sandwich
    seed: int = 0  # of the bootstrap
    shape: str = "free"  # what is assumed of theta as a function of the position
    cell_form: CellForm | None = None  # of cells of several columns; None: by the test of the product form
    shrink: Shrink = "auto"  # contexts towards each other, as far as the log says
    weigh_by: Source = "smooth"  # where weights come from that are made of the estimate

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of the iterations that were given, as arguments."""
        given = {"max_iterations": self.max_iterations, "tolerance": self.tolerance}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class CurveEstimate:
    """A conditional fit with its errors, where it was fitted to something other than the log's own strata."""

    fit: ConditionalFit
    errors: ClusterErrors


@dataclass(frozen=True)
class Estimate:
    """Theta per cell, each array of shape (K,), nan where nothing is known."""

    method: str
    linkage: Linkage  # which cells are identified, and by what
    propensity: Floats  # theta relative to the reference cell = 1; above 1 where a slot is seen more
    examination: Floats  # on the probability scale, in [0, 1]
    intervals: Intervals  # of the propensity, and why a cell has none or no interval
    converged: bool
    iterations: int
    attractiveness: Floats | None = None  # gamma per pair signature where the method estimates it with theta
    conditional: StrataEstimate | CurveEstimate | None = None  # the conditional fit behind it, with its errors
    joint: JointFit | None = None  # the joint fit behind it
    errors_by: Cluster | None = None  # what the errors are clustered by; None where the method has none
    n_clusters: int = 0
    of_form: Floats | None = None  # the covariance of log propensities under the product form, shape (K, K)

    @property
    def fitted(self) -> StrataEstimate | None:
        """The conditional fit, where it is one on the log's own strata, not on strata of features."""
        return self.conditional if isinstance(self.conditional, StrataEstimate) else None

    @property
    def correlation(self) -> Floats:
        """Correlation of log propensities, shape (K, K), by the clusters and without a shape; 0 where one has no error.

        Under the product form those of the form. The identity where the method has no errors.
        """
        if self.of_form is not None:
            return correlation_of(self.of_form)
        correlation = np.eye(len(self.propensity))
        errors = self.intervals if self.conditional is None else self.conditional.errors
        if isinstance(errors, ClusterErrors):
            free = np.setdiff1d(np.flatnonzero(self.linkage.identified), self.linkage.references)
            correlation[np.ix_(free, free)] = correlation_of(errors.covariance)
        return correlation


def conditional_estimate(
    method: str, behind: StrataEstimate | CurveEstimate, table: CountTable, by: Cluster
) -> Estimate:
    """The estimate that a conditional fit gives, with its errors.

    Args:
        method: its name.
        behind: the fit.
        table: what it was fitted to: a cell without clicks has an upper limit, whatever the clusters are.
        by: what the errors are clustered by.
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
    """Cells that the strata can compare with the requested reference.

    Raises:
        UsageError: there is no such reference cell.
        IdentifiabilityError: nothing links two cells, or nothing links the requested reference.
    """
    periods = [] if options.period in {"auto", "none"} else [options.period]
    preference = candidates(statistics, options.reference)
    return conditional.find_linkage(
        strata.signatures,
        statistics.context_of_cell,
        preference,
        [*statistics.plan.strata, *periods],
        by_clicks=bool(statistics.plan.cell) and not options.reference,
    )


def candidates(statistics: SufficientStatistics, reference: tuple[int, ...]) -> Integers:
    """The cells that may be a reference, best first.

    In the order of the cells; where cells have further columns, by position, and of one position the curve with the
    most impressions first, or, of as many, the most clicks.

    Args:
        statistics: the counts.
        reference: values of a cell's first columns: position, then previous click; empty for all cells.

    Raises:
        UsageError: there is none.
    """
    curve, order = statistics.curve_of_cell, np.arange(statistics.n_cells)
    if statistics.plan.cell:
        fewest, least = (-np.bincount(curve, of)[curve] for of in statistics.cell_totals)
        order = np.lexsort((order, least, fewest, statistics.position_of_cell))
    if not reference:
        return order
    listed, columns = ",".join(map(str, reference)), statistics.plan.model.cell_columns
    if len(reference) > len(columns):
        raise UsageError(f"--reference {listed}: a cell has {len(columns)} number(s) ({', '.join(columns)}).")
    held = statistics.cells.select(columns[: len(reference)]).to_numpy()
    cells = order[(held == np.array(reference)).all(axis=1)[order]]
    if not len(cells):
        first, last = held[:, 0].min(), held[:, 0].max()
        raise UsageError(f"--reference {listed}: there is no such cell; positions run from {first} to {last}.")
    return cells


def linkage_of_clicks(statistics: SufficientStatistics, options: EstimationOptions) -> Linkage:
    """The linkage of a method that compares every cell that has a click: no pair has to link it.

    Raises:
        UsageError: there is no such reference cell.
        IdentifiabilityError: there is no click, or none in the requested reference.
    """
    _, clicks = statistics.cell_totals
    context, ordered = statistics.context_of_cell, candidates(statistics, options.reference)
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
    """Propensities on the probability scale: divided by the largest one with the same reference, shape (K,)."""
    largest = np.full(len(propensity), -np.inf)
    np.maximum.at(largest, linkage.reference_of, np.nan_to_num(propensity, nan=-np.inf))
    return propensity / largest[linkage.reference_of]


OnIteration = Callable[[str], None]
"""Is called with the progress, in a few words."""


class Method(Plugin):
    """A way to get theta, as `--method` names it."""

    reference: ClassVar[str]  # the paper that it is from
    clusters: ClassVar[tuple[Cluster, ...]] = ("query", "pair")  # where it takes `cluster`, the usual one first
    uses_strata: ClassVar[bool] = True  # whether days and strata, which share one attractiveness, matter

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError if it cannot serve such a plan."""


class Estimator(Method):
    """A method that works on sufficient statistics."""

    @abstractmethod
    def estimate(
        self, statistics: SufficientStatistics, strata: Strata, options: EstimationOptions, on_iteration: OnIteration
    ) -> Estimate:
        """Estimate theta per cell.

        Args:
            statistics: the counts of the whole log.
            strata: the counts by what shares one attractiveness.
            options: of the estimate.
            on_iteration: called with the progress.

        Raises:
            IdentifiabilityError: nothing can be compared.
            UsageError: there is no such reference cell.
        """


class MethodOfRows(Method):
    """A method that needs the features of every impression: `core.features` estimates by it."""

    clusters = ("session", "query")
    uses_strata = False

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError if rows cannot be read so, or examination depends on more than the position."""
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
