"""Smooth curves near a power of the position, for logs with few clicks.

    beta_k = -eta x_k + W(x_k),  x_k = log position_k - log position_ref,  W a random walk from x = 0, Var W = tau^2 |x|

    l(beta) / phi - beta' R beta / (2 tau^2)        R: the walk's precision, with the slope projected out

where l is the conditional likelihood, not a normal approximation, so that cells with two clicks or none count exactly,
and phi is the overdispersion of the clusters, >= 1 unless clicks are sums of weights. The weight of tau is Laplace's
approximation of its marginal likelihood times a prior. With many clicks the curve is the free estimate, with few it is
nearly a power.

Errors: with A = H / phi + R / tau^2, leaving a cluster out changes the curve by (A - H_g / phi)^-1 s_g / phi. Summed as
for the free estimate (CR3, V_data, with nu effective degrees of freedom), and with the posterior variance of W,

    V = V_data + V_walk,    V_walk = A^-1 (R / tau^2) A^-1, averaged over tau, plus the variance of the mean over tau
    log theta_k +- sqrt(t_{.975, nu_k}^2 V_data,kk + z_.975^2 V_walk,kk)

Sources: Wahba 1983 (variance of smoothing); Rue, Martino & Chopin 2009 (the strength over a grid); Gelman 2006
(half-Cauchy); Bell & McCaffrey 2002 (CR3).
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core import shapes
from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.standard_errors import cluster, contrasts
from posbias.core.standard_errors.contrasts import StrataEstimate
from posbias.core.theta.conditional import Likelihood

_TAU = np.geomspace(0.01, 3.0, 20)
"""Grid of tau: from a power of the position to departures by a factor of twenty at e times the reference's position."""

_POWER = 0.1
"""Prior probability of a power of the position, represented by the smallest tau; the rest is half-Cauchy(1). Chosen on
simulated logs, as a compromise between true powers and bumpy curves."""

_SLOPE = 0.01  # prior precision of eta: slopes within -20 .. 20 are likely, whichever cluster is left out
_PHI_TAU = 1.0  # tau for the estimate of phi: vague, yet it keeps cells without clicks finite
_SMALLEST_PHI = 1e-3  # where clicks are sums of weights
_LIMITS = optimize.Limits(longest_step=4.0, tolerance=1e-9, stalled=1e-7)  # of a log propensity


class SmoothShape(shapes.CurveShape):
    """Partial pooling towards a power of the position, of estimated strength."""

    name = "smooth"

    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> shapes.ShapedEstimate:
        """Fit a smooth curve to each group of cells, all with one tau.

        The whole table counts, including cells that are not linked to their reference: these are interpolated, with
        intervals that include the variance of W.

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
        no_error = np.isnan(std_error)
        conditions = [np.isnan(log_theta), no_error & curves.identical, no_error, unlinked]
        choices = [shapes.ONE_END, cluster.IDENTICAL_CLUSTERS, cluster.ONE_CLUSTER, shapes.SHAPE_ALONE]
        reason = tuple(str(reason) or None for reason in np.select(conditions, choices, default=""))
        empty = np.empty(0)
        test = contrasts.contrast_test(empty, empty, empty)  # not tested: the curve adapts to the log
        return shapes.ShapedEstimate.from_numbers(numbers, reason, converged=converged, test=test, tau=tau)


@dataclass(frozen=True)
class _Mode:
    """Posterior mode of the curve given tau."""

    beta: Floats  # shape (K,)
    precision: Floats  # shape (F, F), A
    inverse: Floats  # shape (F, F), A^-1
    walk: Floats  # shape (F,), diagonal of V_walk given tau
    data: Floats  # shape (F,), diagonal of A^-1 (H / phi) A^-1: V_data of independent clicks with overdispersion phi
    log_weight: float  # log marginal likelihood of tau, up to a constant
    converged: bool


class _Curves:
    """Posterior of the curves of the groups in which clicks determine a slope.

    Attributes:
        counts: of all cells; cells of other groups are their own references, and carry no information.
        free: shape (F,), the free cells.
        identical: shape (K,), cells on which the clusters are identical, so that they have no error.
        at_reference: shape (K,), references of these groups.
        roughness: shape (F, F), R = P - P x (x'P x)^-1 x'P by group, P the precision of the walk at tau = 1.
        slope_precision: shape (F, F), the prior precision of slopes, (x'P x)^-1 x'P beta for a curve beta.
        rank: of R.
    """

    def __init__(self, free: StrataEstimate, position_of_cell: Integers) -> None:
        self.fitted = free
        reference_of, own = free.fit.linkage.reference_of, np.arange(len(position_of_cell))
        counts = shapes.all_counts(free)
        log_position = np.log(position_of_cell)
        x = log_position - log_position[reference_of]
        sloped = shapes.in_sloped_group(counts, x)
        self.identical = np.array([reason == cluster.IDENTICAL_CLUSTERS for reason in free.errors.reason])
        self.at_reference = sloped & (reference_of == own)
        self.counts = replace(counts, reference_of=np.where(sloped, reference_of, own))
        self.free = self.counts.free
        reference, x = reference_of[self.free], x[self.free]
        walk: Floats = (reference[:, np.newaxis] == reference) * shapes.walk_covariance(x)
        precision = linalg.inverse(walk)
        slopes: Floats = (reference[:, np.newaxis] == np.unique(reference)) * x[:, np.newaxis]
        explained = precision @ slopes
        slope_of: Floats = np.linalg.solve(slopes.T @ explained, explained.T).astype(np.float64)
        rough = precision - explained @ slope_of
        self.roughness, self.slope_precision = (rough + rough.T) / 2, _SLOPE * slope_of.T @ slope_of
        self.rank = len(x) - slopes.shape[1]
        self.likelihood = Likelihood(self.counts)

    def posterior(self) -> tuple[Floats, float, bool]:
        """The curve with its errors, averaged over tau.

        Returns:
            Log theta, the root of V (NaN for a single cluster or identical clusters), the ends of the interval of
            theta, and G* of V_data, shape (5, F); the mean of tau; whether all modes converged.
        """
        phi = self._overdispersion()
        modes, start = list[_Mode](), np.zeros(self.counts.table.n_cells)
        for tau in _TAU[::-1].tolist():
            modes.insert(0, self.mode(tau, phi, start))
            start = modes[0].beta
        density = _TAU / (1 + _TAU**2)  # half-Cauchy(1), times the width of a step
        prior = (1 - _POWER) * density / density.sum() + _POWER * (_TAU[0] == _TAU)
        log_weight = np.array([mode.log_weight for mode in modes]) + np.log(prior)
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        curves = np.array([mode.beta[self.free] for mode in modes])
        mean, tau = weight @ curves, float(weight @ _TAU)
        walk = weight @ (np.array([mode.walk for mode in modes]) + (curves - mean) ** 2)
        sums, ratio = self._cluster_sums(modes[int(np.argmin(np.abs(tau - _TAU)))], phi)
        data = ratio * (weight @ np.array([mode.data for mode in modes]))
        data[self.identical[self.free] | (sums.variance <= cluster.SMALLEST_ERROR**2)] = np.nan
        margin = np.sqrt(cluster.t_quantile(sums.degrees) ** 2 * data + linalg.NORMAL**2 * walk)
        effective = np.where(np.isnan(data), np.nan, sums.effective_clusters)
        numbers = [mean, np.sqrt(data + walk), np.exp(mean - margin), cluster.finite_exp(mean + margin), effective]
        return np.stack(numbers), tau, all(mode.converged for mode in modes)

    def _overdispersion(self) -> float:
        """Phi: clustered variance relative to that of independent clicks, on average over all directions.

        At least 1 for counts of clicks; sums of weights may vary less than independent clicks.
        """
        mode = self.mode(_PHI_TAU, 1.0, np.zeros(self.counts.table.n_cells))
        sums, _ = self._cluster_sums(mode, 1.0)
        information = mode.precision - self._penalty(_PHI_TAU)
        expected = np.trace(information @ mode.inverse @ information @ mode.inverse)
        phi = float(np.trace(information @ sums.covariance) / expected)
        clicks = self.counts.table.clicks
        return max(phi, 1.0 if (clicks == np.floor(clicks)).all() else _SMALLEST_PHI)

    def _penalty(self, tau: float) -> Floats:
        """Prior precision given tau, shape (F, F)."""
        return self.roughness / tau**2 + self.slope_precision

    def mode(self, tau: float, phi: float, start: Floats) -> _Mode:
        """Posterior mode given tau and phi, by Newton's method."""
        free, penalty = self.free, self._penalty(tau)

        def propose(beta: Floats) -> optimize.Proposal:
            gradient, precision = self._slopes(beta, phi, penalty)
            step = np.zeros_like(beta)
            step[free] = linalg.solve(precision, gradient)

            def falls_short(step: Floats) -> bool:
                loss = step[free] @ penalty @ (beta[free] + step[free] / 2)
                gain = self.likelihood.gain(beta, step) / phi - float(loss)
                return not gain >= optimize.ENOUGH_ASCENT * float(gradient @ step[free])

            return step, falls_short, None

        beta, converged, _ = optimize.climb(propose, start, _LIMITS)
        _, precision = self._slopes(beta, phi, penalty)
        inverse = linalg.inverse(precision)
        walk = inverse @ penalty @ inverse
        log_likelihood = self.likelihood.objective(beta) / phi - float(beta[free] @ penalty @ beta[free]) / 2
        log_weight = log_likelihood - self.rank * np.log(tau) - float(np.linalg.slogdet(precision)[1]) / 2
        data = np.maximum(np.diag(inverse) - np.diag(walk), 0.0)
        return _Mode(beta, precision, inverse, np.diag(walk), data, log_weight, converged)

    def _slopes(self, beta: Floats, phi: float, penalty: Floats) -> tuple[Floats, Floats]:
        """Gradient, shape (F,), and minus the Hessian, shape (F, F), of the penalised likelihood."""
        gradient, information = self.likelihood.slopes(beta)
        free = self.free
        return gradient[free] / phi - penalty @ beta[free], information[np.ix_(free, free)] / phi + penalty

    def _cluster_sums(self, mode: _Mode, phi: float) -> tuple[cluster.ClusterSums, Floats]:
        """Leave-one-out sums over clusters, and the ratio of their variances to `mode.data`, shape (F,)."""
        fit = replace(self.fitted.fit, log_theta=mode.beta, information=mode.precision * phi)
        scores = cluster.cluster_scores(fit, self.fitted.strata, self.counts)
        sums = cluster.LeaveOneOut(fit, scores, penalised=True).sums()
        return sums, np.divide(sums.variance, mode.data, out=np.ones_like(mode.data), where=mode.data > 0)
