"""Curves of thin logs: a smooth curve near a power of the position.

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
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core import shapes
from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.standard_errors import cluster, contrasts
from posbias.core.standard_errors.contrasts import StrataEstimate
from posbias.core.theta.conditional import Likelihood

_TAU = np.geomspace(0.01, 3.0, 20)
"""Where tau is looked at: from no difference to a power to factors of twenty at e times the reference's position."""

_POWER = 0.1
"""Prior probability that the curve is a power of the position, for which the smallest tau stands. The rest is
half-Cauchy(1). Chosen on simulated logs, as a compromise between true powers and bumpy curves."""

_SLOPE = 0.01  # prior precision of eta: slopes within -20 .. 20 are likely, whichever cluster is left out
_FIRST_TAU = 1.0  # vague, yet it holds cells without clicks: from where phi is read
_LEAST_SPREAD = 1e-3  # of phi, where clicks are sums of weights
_LIMITS = optimize.Limits(longest_step=4.0, tolerance=1e-9, stalled=1e-7)  # of a log propensity


class SmoothShape(shapes.CurveShape):
    """Partial pooling towards a power of the position, as strong as the log says."""

    name = "smooth"

    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> shapes.ShapedEstimate:
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
        log_theta, std_error, *_ = numbers
        unlinked = ~linkage.identified & ~curves.at_reference
        alone, nothing = np.isnan(std_error), np.empty(0)
        conditions = [np.isnan(log_theta), alone & curves.agreeing, alone, unlinked]
        reasons = np.select(
            conditions,
            [shapes.ONE_END, cluster.IDENTICAL_CLUSTERS, cluster.ONE_CLUSTER, shapes.SHAPE_ALONE],
            default="",
        )
        test = contrasts.contrast_test(nothing, nothing, nothing)  # it follows the log where the log speaks
        reason = tuple(str(reason) or None for reason in reasons)
        return shapes.ShapedEstimate.of(numbers, reason, converged=converged, test=test, tau=tau)


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
        counts = shapes.counts_of_all_cells(free.strata.signatures, free.fit.linkage)
        log_position = np.log(position_of_cell)
        x = log_position - log_position[reference_of]
        # The cells of groups with clicks at more than one end.
        table = counts.table
        reference = counts.reference_of[table.cell[table.start[:-1]]]
        ends = (
            np.isin(counts.reference_of, reference[inner]) for inner in shapes.units_with_slope(counts, x[table.cell])
        )
        sloped: Flags = np.logical_and(*ends)
        # Cells on which the clusters agree to the last click, so that errors cannot be read; and the references, (K,).
        self.agreeing = np.array([reason == cluster.IDENTICAL_CLUSTERS for reason in free.errors.reason])
        self.at_reference = sloped & (reference_of == own)
        # Cells of other groups are compared with themselves alone, and so say nothing.
        self.counts = replace(counts, reference_of=np.where(sloped, reference_of, own))
        self.free = self.counts.free  # shape (F,)
        # R = P - P x (x'P x)^-1 x'P group by group, P the precision of the walk at tau = 1, with the prior precision of
        # slopes, shape (F, F) each, and R's rank. The slope of a curve beta is (x'P x)^-1 x'P beta.
        reference, x = reference_of[self.free], x[self.free]
        walk: Floats = (reference[:, np.newaxis] == reference) * shapes.walk_covariance(x)
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
        data[self.agreeing[self.free] | (sums.variance <= cluster.SMALLEST_ERROR**2)] = np.nan
        margin = np.sqrt(cluster.t_quantile(sums.degrees) ** 2 * data + linalg.NORMAL**2 * walk)
        effective = np.where(np.isnan(data), np.nan, sums.effective_clusters)
        numbers = [mean, np.sqrt(data + walk), np.exp(mean - margin), cluster.finite_exp(mean + margin), effective]
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

    def _left_out(self, mode: _Mode, spread: float) -> tuple[cluster.ClusterSums, Floats]:
        """The sums of leaving out one cluster at a time, and the ratio of its variances to `data`, shape (F,)."""
        fit = replace(self.fitted.fit, log_theta=mode.beta, information=mode.precision * spread)
        sums = cluster.LeaveOneOut(
            fit, cluster.cluster_scores(fit, self.fitted.strata, self.counts), penalised=True
        ).sums()
        variance = sums.variance
        return sums, np.divide(variance, mode.data, out=np.ones_like(variance), where=mode.data > 0)
