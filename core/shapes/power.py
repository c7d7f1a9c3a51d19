"""A power of the position: theta_k = (position_k / position_ref)^-eta, one eta for each group of cells.

beta_k = -eta x_k,  x_k = log position_k - log position_ref    (Joachims, Swaminathan & Schnabel 2017)
score s = -sum_e x_e (c_e - C p_e),  information h = C Var_p(x), per unit
"""

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_by_number
from posbias.core.arrays.members import Members
from posbias.core.arrays.newton import ROUNDING, Limits, Proposal, climb
from posbias.core.shapes.shape import (
    CurveShape,
    ShapedEstimate,
    counts_of_all_cells,
    gains,
    reasons_of,
    units_with_slope,
)
from posbias.core.standard_errors.contrasts import (
    FittedStrata,
    ScoredEstimate,
    conditional_scores,
    difference_test,
    sum_by_cluster,
)
from posbias.core.standard_errors.intervals import Intervals, upper_end
from posbias.core.standard_errors.leave_one_out import AGREEMENT, t_quantile
from posbias.core.theta.linkage import Linkage

_LIMITS = Limits(longest_step=4.0, tolerance=1e-11)  # of eta
_WHOLE = 1 - 1e-9  # a cluster with this share of the information is the only one


class PowerShape(CurveShape):
    """A power of the position."""

    name = "power"

    def fit(self, free: FittedStrata, position_of_cell: Integers) -> ShapedEstimate:
        """As `fit_power`."""
        return fit_power(free, position_of_cell)


def fit_power(free: FittedStrata, position_of_cell: Integers) -> ShapedEstimate:
    """Fit theta_k = (position_k / position_ref)^-eta, with one eta for each group of cells.

    The whole table counts, also cells that the log does not link with the reference. Errors of eta are CR3 over
    clusters: d_g = s_g / (h - h_g), V = (G - 1)/G sum_g d_g^2, G* = (sum_g h_g)^2 / sum_g h_g^2.

    Args:
        free: the free estimate; the cells of one reference are a group.
        position_of_cell: shape (K,), >= 1.
    """
    members, linkage = free.strata.members, free.fit.linkage
    power = _Power(free.strata.signatures, linkage, position_of_cell)
    eta, converged = power.maximum()
    eta_error, eta_margin, eta_effective, agreeing = power.errors(eta, members)
    distance = power.distance
    log_theta = -eta[power.group] * distance
    std_error = eta_error[power.group] * np.abs(distance)
    std_error[(distance == 0) & np.isfinite(log_theta)] = 0.0
    margin = eta_margin[power.group] * np.abs(distance)
    margin[std_error == 0] = 0.0
    effective = np.where(distance == 0, np.nan, eta_effective[power.group])
    test = difference_test(power.scored(log_theta, std_error, members), free.scored())
    low, high = np.exp(log_theta - margin), upper_end(log_theta + margin)
    reasons = reasons_of(np.isnan(log_theta), np.isnan(std_error), agreeing[power.group], ~linkage.identified)
    warning = (
        f"Propensities do not follow a power of the position: at position {position_of_cell[test.largest]} the power "
        f"says {np.exp(test.difference):.2f} times what the log says without a shape (p = {test.p_value:.2g})."
    )
    return ShapedEstimate(
        log_theta=log_theta,
        intervals=Intervals(std_error, low, high, effective, reasons),
        converged=converged,
        test=test,
        warning=warning if test.rejected else None,
        eta=eta[power.group],
        eta_error=eta_error[power.group],
    )


class _Power:
    """The likelihood of one eta for each group of cells, on the units with a click and two cells."""

    def __init__(self, table: CountTable, linkage: Linkage, position_of_cell: Integers) -> None:
        log_position = np.log(position_of_cell)
        self.distance = log_position - log_position[linkage.reference_of]
        references, self.group = np.unique(linkage.reference_of, return_inverse=True)
        self.n_groups = len(references)
        self.links = counts_of_all_cells(table, linkage)
        part = self.links.table
        self.x = self.distance[part.cell]
        self.group_of_unit = self.group[part.cell[part.start[:-1]]]

    def maximum(self) -> tuple[Floats, bool]:
        """The etas, NaN where clicks lie at one end, and whether Newton's method converged."""
        summit = climb(self._propose, np.zeros(self.n_groups), _LIMITS)
        return np.where(self.finite, summit.at, np.nan), summit.converged

    def _propose(self, eta: Floats) -> Proposal:
        """Newton's step of each group, which has a likelihood of its own."""
        shares = self.links.shares(-eta[self.group] * self.distance)
        score, information = (self._by_group(values) for values in self.slopes(shares))
        step = np.divide(score, information, out=np.zeros_like(eta), where=self.finite & (information > 0))

        def falls_short(step: Floats) -> Flags:
            gain = gains(self.links, shares, -step[self.group[self.links.table.cell]] * self.x)
            return (self._by_group(gain) < 0) & (np.abs(step) > ROUNDING)

        return Proposal(np.clip(step, -_LIMITS.longest_step, _LIMITS.longest_step), falls_short)

    @property
    def finite(self) -> Flags:
        """The groups with an optimum: some click lies before the last, and some after the first cell of its unit."""
        inner = units_with_slope(self.links, self.x)
        return np.logical_and(*(np.bincount(self.group_of_unit[some], minlength=self.n_groups) > 0 for some in inner))

    def slopes(self, shares: Floats) -> tuple[Floats, Floats]:
        """The score and the information of one copy of each unit, each of shape (J,)."""
        part, clicks = self.links.table, self.links.unit_clicks
        mean = part.sum_by_unit(shares * self.x)
        score = clicks * mean - part.sum_by_unit(part.clicks * self.x)
        return score, clicks * part.sum_by_unit(shares * (self.x - part.spread(mean)) ** 2)

    def _by_group(self, per_unit: Floats) -> Floats:
        return sum_by_number(self.group_of_unit, self.links.table.multiplicity * per_unit, self.n_groups)

    def errors(self, eta: Floats, members: Members) -> tuple[Floats, Floats, Floats, Flags]:
        """CR3 over the clusters of each group: the clusters of different groups do not mix.

        Returns:
            Errors of the etas, half the widths of their intervals, G*, and whether the clusters agree to the last
            click, each of shape (number of groups,).
        """
        scores, informations = self.slopes(self.links.shares(-np.nan_to_num(eta)[self.group] * self.distance))
        linked = members.among(self.links.units)
        unit = linked.unit
        _, row = np.unique(linked.cluster, return_inverse=True)
        keys, number = np.unique(row * self.n_groups + self.group_of_unit[unit], return_inverse=True)
        group = keys % self.n_groups
        score = sum_by_number(number, scores[unit], len(keys))
        information = sum_by_number(number, informations[unit], len(keys))
        total = sum_by_number(group, information, self.n_groups)[group]
        alone = information > _WHOLE * total
        change = score / np.where(alone, np.nan, total - information)
        n_clusters = np.bincount(group, minlength=self.n_groups)
        with np.errstate(invalid="ignore", divide="ignore"):  # a group without clusters has no error
            variance = sum_by_number(group, change**2, self.n_groups) * (n_clusters - 1) / n_clusters
            effective = 1 / sum_by_number(group, (information / total) ** 2, self.n_groups)
            agreeing = variance <= AGREEMENT**2
        variance[~self.finite | (n_clusters == 0) | agreeing] = np.nan
        quantile, std_error = t_quantile(np.maximum(np.minimum(effective, n_clusters - 1), 1.0)), np.sqrt(variance)
        return std_error, quantile * std_error, effective, agreeing

    def scored(self, log_theta: Floats, std_error: Floats, members: Members) -> ScoredEstimate:
        """The curve with its clusters' scores and the response x x' / h."""
        known = np.nan_to_num(log_theta)
        clusters, scores = sum_by_cluster(
            self.links.table, conditional_scores(self.links, known), members.among(self.links.units)
        )
        information = np.where(self.finite, self._by_group(self.slopes(self.links.shares(known))[1]), np.inf)
        same = self.group[:, np.newaxis] == self.group
        return ScoredEstimate(
            log_theta=log_theta,
            std_error=std_error,
            degrees=np.full(len(log_theta), np.inf),
            clusters=clusters,
            scores=scores,
            response=same * np.outer(self.distance / information[self.group], self.distance),
        )
