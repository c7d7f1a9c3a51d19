"""Curves of thin logs: a power of the position, and a smooth curve near one.

    beta_k = -eta x_k + W(x_k),  x_k = log position_k - log position_ref,  W a random walk from x = 0, Var W = tau^2 |x|

    l(beta) / phi - beta' R beta / (2 tau^2)        R: the walk's precision, without what a slope explains

where l is the conditional likelihood itself and not its normal approximation, so that a cell with two clicks, or none,
counts for what it is, and phi >= 1 is how much more the clusters differ than independent clicks would. Tau's weight is
Laplace's approximation of its marginal likelihood times a prior. With much data the curve is the free estimate, with
little it is nearly a power.

Errors: with A = H / phi + R / tau^2, leaving a cluster out changes the curve by (A - H_g / phi)^-1 s_g / phi. Summed as
for the free estimate (CR3, V_data, with nu effective degrees of freedom), and with what the log does not say of W,

    V = V_data + V_walk,    V_walk = A^-1 (R / tau^2) A^-1, averaged over tau, plus the variance of the mean over tau
    log theta_k +- sqrt(t_{.975, nu_k}^2 V_data,kk + z_.975^2 V_walk,kk)

Sources: Wahba 1983 (what a smooth curve leaves open); Rue, Martino & Chopin 2009 (the strength over a grid); Gelman
2006 (half-Cauchy); Bell & McCaffrey 2002 (CR3).

A power of the position: theta_k = (position_k / position_ref)^-eta, one eta for each group of cells.

beta_k = -eta x_k,  x_k = log position_k - log position_ref    (Joachims, Swaminathan & Schnabel 2017)
score s = -sum_e x_e (c_e - C p_e),  information h = C Var_p(x), per unit
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, Members, sum_by_number
from posbias.core.shapes import (
    CurveShape,
    ShapedEstimate,
    counts_of_all_cells,
    gains,
    reasons_of,
    units_with_slope,
    walk_covariance,
)
from posbias.core.standard_errors import contrasts
from posbias.core.standard_errors.cluster import (
    AGREEING,
    AGREEMENT,
    ClusterSums,
    Intervals,
    LeaveOneOut,
    scores_of_members,
    t_quantile,
    upper_end,
)
from posbias.core.standard_errors.contrasts import ScoredEstimate, StrataEstimate
from posbias.core.theta.conditional import Likelihood, Linkage

_TAU = np.geomspace(0.01, 3.0, 20)
"""Where tau is looked at: from no difference to a power to factors of twenty at e times the reference's position."""

_POWER = 0.1
"""Prior probability that the curve is a power of the position, for which the smallest tau stands. The rest is
half-Cauchy(1). Chosen on simulated logs, as a compromise between true powers and bumpy curves."""

_SLOPE = 0.01  # prior precision of eta: slopes within -20 .. 20 are likely, whichever cluster is left out
_FIRST_TAU = 1.0  # vague, yet it holds cells without clicks: from where phi is read
_LEAST_SPREAD = 1e-3  # of phi, where clicks are sums of weights
_LIMITS = optimize.Limits(longest_step=4.0, tolerance=1e-9, stalled=1e-7)  # of a log propensity


class SmoothShape(CurveShape):
    """Partial pooling towards a power of the position, as strong as the log says."""

    name = "smooth"

    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> ShapedEstimate:
        """Fit a smooth curve to each group of cells, all with one tau.

        The whole table counts, also cells that the log does not link with the reference: they follow their neighbours,
        with intervals that say how far they need not.

        Args: as for `CurveShape.fit`.
        """
        curves = _Curves(free, position_of_cell)
        linkage, n_cells = free.fit.linkage, len(position_of_cell)
        numbers = np.full((5, n_cells), np.nan)
        numbers[:, curves.at_reference] = np.array([[0.0], [0.0], [1.0], [1.0], [np.nan]])
        tau, converged = np.nan, True
        if len(curves.free):
            numbers[:, curves.free], tau, converged = curves.posterior()
        log_theta, std_error, low, high, effective = numbers
        unlinked = ~linkage.identified & ~curves.at_reference
        reasons = reasons_of(np.isnan(log_theta), np.isnan(std_error), curves.agreeing, unlinked)
        nothing = np.empty(0)
        return ShapedEstimate(
            log_theta=log_theta,
            intervals=Intervals(std_error, low, high, effective, reasons),
            converged=converged,
            test=contrasts.contrast_test(nothing, nothing, nothing),  # it follows the log where the log speaks
            misfit=(),
            eta=np.full(n_cells, np.nan),
            eta_error=np.full(n_cells, np.nan),
            tau=tau,
        )


@dataclass(frozen=True)
class _Mode:
    """The best curve given tau."""

    beta: Floats  # shape (K,)
    precision: Floats  # shape (F, F), A
    inverse: Floats  # shape (F, F), its inverse
    walk: Floats  # shape (F,), the diagonal of V_walk given tau
    data: Floats  # shape (F,), that of A^-1 (H / phi) A^-1: V_data if clicks were independent up to phi
    log_weight: float  # log of tau's marginal likelihood, up to a constant
    converged: bool


class _Curves:
    """The likelihood with a walk around a power, on the cells of the groups in which clicks determine a slope."""

    def __init__(self, free: StrataEstimate, position_of_cell: Integers) -> None:
        self.fitted = free
        reference_of, own = free.fit.linkage.reference_of, np.arange(len(position_of_cell))
        counts = counts_of_all_cells(free.strata.signatures, free.fit.linkage)
        log_position = np.log(position_of_cell)
        x = log_position - log_position[reference_of]
        # The cells of groups with clicks at more than one end.
        table = counts.table
        reference = counts.reference_of[table.cell[table.start[:-1]]]
        ends = (np.isin(counts.reference_of, reference[inner]) for inner in units_with_slope(counts, x[table.cell]))
        sloped: Flags = np.logical_and(*ends)
        # Cells on which the clusters agree to the last click, so that errors cannot be read; and the references, (K,).
        self.agreeing = np.array([reason == AGREEING for reason in free.errors.reason])
        self.at_reference = sloped & (reference_of == own)
        # Cells of other groups are compared with themselves alone, and so say nothing.
        self.counts = replace(counts, reference_of=np.where(sloped, reference_of, own))
        self.free = self.counts.free  # shape (F,)
        # R = P - P x (x'P x)^-1 x'P group by group, P the precision of the walk at tau = 1, with the prior precision of
        # slopes, shape (F, F) each, and R's rank. The slope of a curve beta is (x'P x)^-1 x'P beta.
        reference, x = reference_of[self.free], x[self.free]
        walk: Floats = (reference[:, np.newaxis] == reference) * walk_covariance(x)
        precision = linalg.inverse(walk)
        slopes: Floats = (reference[:, np.newaxis] == np.unique(reference)) * x[:, np.newaxis]
        explained = precision @ slopes
        slope_of: Floats = np.linalg.solve(slopes.T @ explained, explained.T).astype(np.float64)
        rough = precision - explained @ slope_of
        self.roughness, self.of_slope = (rough + rough.T) / 2, _SLOPE * slope_of.T @ slope_of
        self.rank = len(x) - slopes.shape[1]
        self.likelihood = Likelihood(self.counts)

    def posterior(self) -> tuple[Floats, float, bool]:
        """The curve with its errors, over all tau.

        Returns:
            Log theta, the root of V (NaN where there is one cluster, or several that agree to the last click), the ends
            of the interval of theta, and G* of V_data, shape (5, F); the mean of tau; if all optima were reached.
        """
        spread = self._spread()
        modes, start = list[_Mode](), np.zeros(self.counts.table.n_cells)
        for tau in _TAU[::-1].tolist():
            modes.insert(0, self.mode(tau, spread, start))
            start = modes[0].beta
        density = _TAU / (1 + _TAU**2)  # half-Cauchy(1), times the width of a step
        prior = (1 - _POWER) * density / density.sum() + _POWER * (_TAU[0] == _TAU)
        log_weight = np.array([mode.log_weight for mode in modes]) + np.log(prior)
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        curves = np.array([mode.beta[self.free] for mode in modes])
        mean, tau = weight @ curves, float(weight @ _TAU)
        walk = weight @ (np.array([mode.walk for mode in modes]) + (curves - mean) ** 2)
        sums, ratio = self._left_out(modes[int(np.argmin(np.abs(tau - _TAU)))], spread)
        data = ratio * (weight @ np.array([mode.data for mode in modes]))
        data[self.agreeing[self.free] | (sums.variance <= AGREEMENT**2)] = np.nan
        margin = np.sqrt(t_quantile(sums.degrees) ** 2 * data + linalg.NORMAL**2 * walk)
        effective = np.where(np.isnan(data), np.nan, sums.effective_clusters)
        numbers = [mean, np.sqrt(data + walk), np.exp(mean - margin), upper_end(mean + margin), effective]
        return np.stack(numbers), tau, all(mode.converged for mode in modes)

    def _spread(self) -> float:
        """Phi: what clusters vary beyond independent clicks, over all that the log determines.

        Clicks that count one each vary at least as much as independent ones; sums of weights need not.
        """
        mode = self.mode(_FIRST_TAU, 1.0, np.zeros(self.counts.table.n_cells))
        sums, _ = self._left_out(mode, 1.0)
        information = mode.precision - self._penalty(_FIRST_TAU)
        expected = np.trace(information @ mode.inverse @ information @ mode.inverse)
        spread = float(np.trace(information @ sums.covariance) / expected)
        clicks = self.counts.table.clicks
        return max(spread, 1.0 if (clicks == np.floor(clicks)).all() else _LEAST_SPREAD)

    def _penalty(self, tau: float) -> Floats:
        """The prior's precision given tau, shape (F, F)."""
        return self.roughness / tau**2 + self.of_slope

    def mode(self, tau: float, spread: float, start: Floats) -> _Mode:
        """The best curve given tau and phi, by Newton's method."""
        free, penalty = self.free, self._penalty(tau)

        def propose(beta: Floats) -> optimize.Proposal:
            gradient, precision = self._slopes(beta, spread, penalty)
            step = np.zeros_like(beta)
            step[free] = linalg.solve(precision, gradient)

            def falls_short(step: Floats) -> bool:
                bent = step[free] @ penalty @ (beta[free] + step[free] / 2)
                gain = self.likelihood.gain(beta, step) / spread - float(bent)
                return not gain >= optimize.ENOUGH_ASCENT * float(gradient @ step[free])

            return step, falls_short, None

        beta, converged, _ = optimize.climb(propose, start, _LIMITS)
        _, precision = self._slopes(beta, spread, penalty)
        inverse = linalg.inverse(precision)
        walk = inverse @ penalty @ inverse
        log_likelihood = self.likelihood.objective(beta) / spread - float(beta[free] @ penalty @ beta[free]) / 2
        log_weight = log_likelihood - self.rank * np.log(tau) - float(np.linalg.slogdet(precision)[1]) / 2
        data = np.maximum(np.diag(inverse) - np.diag(walk), 0.0)
        return _Mode(beta, precision, inverse, np.diag(walk), data, log_weight, converged)

    def _slopes(self, beta: Floats, spread: float, penalty: Floats) -> tuple[Floats, Floats]:
        """Gradient, shape (F,), and minus the Hessian, shape (F, F), of the penalised likelihood."""
        gradient, information = self.likelihood.slopes(beta)
        free = self.free
        return gradient[free] / spread - penalty @ beta[free], information[np.ix_(free, free)] / spread + penalty

    def _left_out(self, mode: _Mode, spread: float) -> tuple[ClusterSums, Floats]:
        """The sums of leaving out one cluster at a time, and the ratio of its variances to `data`, shape (F,)."""
        clusters, members = self.fitted.strata.members.among(self.counts.units).occurrences(len(self.counts.units))
        fit = replace(self.fitted.fit, log_theta=mode.beta, information=mode.precision * spread)
        scores = scores_of_members(fit, self.counts, members, np.ones(len(clusters)))
        sums = LeaveOneOut(fit, scores, held=True).sums()
        variance = sums.variance
        return sums, np.divide(variance, mode.data, out=np.ones_like(variance), where=mode.data > 0)


_POWER_LIMITS = optimize.Limits(longest_step=4.0, tolerance=1e-11)  # of eta
_WHOLE = 1 - 1e-9  # a cluster with this share of the information is the only one


class PowerShape(CurveShape):
    """A power of the position."""

    name = "power"

    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> ShapedEstimate:
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
        test = contrasts.difference_test(power.scored(log_theta, std_error, members), free.scored())
        low, high = np.exp(log_theta - margin), upper_end(log_theta + margin)
        reasons = reasons_of(np.isnan(log_theta), np.isnan(std_error), agreeing[power.group], ~linkage.identified)
        return ShapedEstimate(
            log_theta=log_theta,
            intervals=Intervals(std_error, low, high, effective, reasons),
            converged=converged,
            test=test,
            misfit=(int(position_of_cell[test.largest]),) if test.rejected else (),
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
        eta, converged, _ = optimize.climb(self._propose, np.zeros(self.n_groups), _POWER_LIMITS)
        return np.where(self.finite, eta, np.nan), converged

    def _propose(self, eta: Floats) -> optimize.Proposal:
        """Newton's step of each group, which has a likelihood of its own."""
        shares = self.links.shares(-eta[self.group] * self.distance)
        score, information = (self._by_group(values) for values in self.slopes(shares))
        step = np.divide(score, information, out=np.zeros_like(eta), where=self.finite & (information > 0))

        def falls_short(step: Floats) -> Flags:
            gain = gains(self.links, shares, -step[self.group[self.links.table.cell]] * self.x)
            return (self._by_group(gain) < 0) & (np.abs(step) > optimize.ROUNDING)

        return np.clip(step, -_POWER_LIMITS.longest_step, _POWER_LIMITS.longest_step), falls_short, None

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
        clusters, scores = contrasts.sum_by_cluster(
            self.links.table, contrasts.conditional_scores(self.links, known), members.among(self.links.units)
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
