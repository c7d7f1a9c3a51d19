"""Propensities of several contexts (devices, countries): each shrunk towards the others, and a test that they differ.

Each context c has its own estimate y = log theta, relative to its own reference, which is imprecise with little data.
m is the generalised mean of the other contexts at the positions of c. The context's true curve beta departs from the
mean of m by a random walk z along the logarithm of the position, 0 at the reference:

    y = beta + e,    m = beta - z + e',    z ~ N(0, tau_c^2 W),    tau_c ~ tau |t_3|,    tau ~ half-Cauchy(1)
    W_kl = min(|x_k|, |x_l|) on one side of the reference, else 0,    x_k = log position_k - log position_ref

tau is common to all contexts: the more of them agree, the closer another context is expected to be. tau_c is learned
from the context's own data: the tails of Student's t with 3 degrees of freedom are heavy, so that a context that
differs keeps its own curve. Given tau_c

    d = y - m,    b = y - G d,    G = C (S + tau_c^2 W)^-1,    S = cov(d),    C = cov(e, d)

on the cells with an interval of y and a value of m. In general b = K y + (I - K) m, with N = S - C and
K = (N + tau_c^2 W)(S + tau_c^2 W)^-1, averaged over tau_c; on those cells K = I - G. tau and tau_c are integrated over
a grid; the likelihood of tau counts each of C contexts (C - 1)/C times, the independent differences per context.

Two covariances. The weights G need an inverse, and the clustered covariance V of all contexts together (CR3) is
singular with few clusters: S and C are working covariances, the inverse information, in which contexts are independent,
with one overdispersion of y and one of m, scaled to the clustered variances of d. The errors of y and m, and their
correlation from shared queries, are those of V, with its standard deviations replaced by the half-widths of the free
estimate's intervals over z_.975 (V*), so that few clusters count. Copies of a context have d = 0 and S = 0: they carry
no information, and the interval is the free estimate's.

Sources: Gelman 2006 (half-Cauchy, half-t); Carvalho, Polson & Scott 2010 (global and local strengths); Liang & Zeger
1986 (weights from a working covariance, errors from the clusters); Varin, Reid & Firth 2011 (composite likelihood).

Intervals. The error of b depends on the departure of this context from the others, on which only its own data are
informative. So the interval is that of y, moved towards m: with sigma the standard deviation of y,

    low = min(y - p sigma, max(m, y - q sigma)),    high = max(y + p sigma, min(m, y + q sigma)),    p < z_.975 < q

It extends as far as m, but never beyond q. Where beta > m, it misses beta if y is below it by p sigma or above it by
q sigma; where beta < m, the other way round. With Phi(-p) + Phi(-q) = .05 it covers 95 % of the time for every beta,
close to m or far from it, if y and m are independent. With the correlation rho > 0 of their errors, from shared
queries, it covers least at beta = E m, and p is the solution of

    Phi(-p) + Phi(-q) + 2 T(p, r) - 2 T(q, r) = .05,    r = rho / sqrt(1 - rho^2)

with Owen's T: z_.975 at rho = 1, without any gain. No interval that covers every beta can be much shorter.

Sources: Pratt 1961 (q = infinity: the shortest interval at beta = m, .84 of that of y); Yu & Hoff 2018 (intervals of
groups that borrow and cover in each group); Armstrong, Kolesar & Plagborg-Moller 2022 (intervals about b that cover on
average over groups, and less in a group that differs).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.arrays.linalg import NORMAL, inverse, pseudo_inverse
from posbias.core.shapes import walk_covariance
from posbias.core.standard_errors.cluster import ClusterErrors, Intervals, finite_exp
from posbias.core.standard_errors.contrasts import ContrastTest, linear_contrast_test
from posbias.core.theta.conditional import ConditionalFit

TAU = np.geomspace(1e-3, 10.0, 61)
"""Grid of tau and tau_c, per square root of a unit of log position: from 0 to factors of thousands."""

_ROUNDING = 1e-6  # of a standard deviation: a difference up to it is rounding

_MISSED = 0.05
_MISSED_BEYOND = 0.01  # Phi(-q), where beta lies between m and y
_HALVINGS = 40  # of the bracket of p


@dataclass(frozen=True)
class Evidence:
    """An estimate of a context's n cells."""

    values: Floats  # shape (n,); 0 where unknown
    known: Flags  # shape (n,)
    variance: Floats  # shape (n,), clustered; 0 where unknown
    model: Floats  # shape (n, n), covariance by the inverse information


@dataclass(frozen=True)
class Difference:
    """Estimates y and m of one context."""

    own: Evidence  # y, from the context's own data
    others: Evidence  # m, from the other contexts
    shared: Floats  # shape (n,), clustered covariance of the errors of y and m, from shared queries
    walk: Floats  # shape (n, n), W

    @cached_property
    def both(self) -> Integers:
        """Cells where y and m are known, shape (s,)."""
        return np.flatnonzero(self.own.known & self.others.known)

    @cached_property
    def overdispersion(self) -> tuple[float, float]:
        """Mean over cells of var(e) - cov(e, e') and var(e') - cov(e, e'), relative to the inverse information."""
        if not len(self.both):
            return 1.0, 1.0
        own, others = (
            float(np.mean((side.variance - self.shared)[self.both] / np.diag(side.model)[self.both]))
            for side in (self.own, self.others)
        )
        return max(own, 0.0), max(others, 0.0)

    def log_likelihood(self) -> Floats:
        """Log-likelihood of each tau_c of the grid, up to a constant, shape (T,)."""
        spectrum, rotation = self._axes
        scale = 1 + np.outer(TAU**2, spectrum)
        rotated = rotation @ (self.own.values - self.others.values)[self.both]
        return -(np.log(scale) + rotated**2 / scale).sum(axis=1) / 2

    def posterior(self, weight: Floats) -> tuple[Floats, Floats]:
        """Posterior means b of beta, and weights of m in b, shape (n,) each; NaN where y and m are unknown.

        Args:
            weight: posterior of tau_c on the grid, shape (T,).
        """
        own_weight = self._own_weight(weight)
        mean = own_weight @ self.own.values + self.others.values - own_weight @ self.others.values
        known = self.own.known | self.others.known
        return np.where(known, mean, np.nan), np.where(known, 1 - np.diag(own_weight), np.nan)

    def interval(self, mean: Floats) -> tuple[Floats, Floats]:
        """Ends of the interval that covers any beta with probability .95, shape (n,) each; NaN where y is unknown.

        Args:
            mean: shape (n,), b; in the rare case that it lies outside, the interval extends to it.
        """
        own = np.where(self.own.known, self.own.values, np.nan)
        others = np.where(self.others.known, self.others.values, own)
        sd = np.sqrt(self.own.variance)
        sds = sd * np.sqrt(self.others.variance)
        rho = np.divide(self.shared, sds, out=np.ones_like(sd), where=self.others.known & (sds > 0))
        p, q = _inner_quantile(rho) * sd, -scipy.special.ndtri(_MISSED_BEYOND) * sd
        low = np.minimum(own - p, np.maximum(others, own - q))
        high = np.maximum(own + p, np.minimum(others, own + q))
        return np.minimum(low, mean), np.maximum(high, mean)

    def _own_weight(self, weight: Floats) -> Floats:
        """K, shape (n, n), averaged over tau_c with weights of shape (T,); 1 on the diagonal where m is unknown."""
        own_weight = np.diag((~self.others.known).astype(np.float64))
        spectrum, rotation = self._axes
        by_tau = weight / (1 + np.outer(spectrum, TAU**2))
        block = np.ix_(self.others.known, self.both)
        _, others = self._working
        own_weight[block] = others[block] @ (rotation.T * by_tau.sum(axis=1)) @ rotation
        own_weight[block] += self.walk[block] @ (rotation.T * (by_tau @ TAU**2)) @ rotation
        return own_weight

    @cached_property
    def _working(self) -> tuple[Floats, Floats]:
        """Working covariances C and N, shape (n, n) each."""
        both, own_variance = self.both, self.own.variance
        variance = own_variance + self.others.variance - 2 * self.shared
        own_factor, others_factor = self.overdispersion
        if own_factor + others_factor == 0:  # copies
            own_factor = others_factor = 1.0
        own, others = own_factor * self.own.model, others_factor * self.others.model
        scale = np.ones(len(variance))
        if len(both):
            ratio = np.sqrt(np.maximum(variance, _ROUNDING**2 * own_variance)[both] / np.diag(own + others)[both])
            scale *= ratio.mean()
            scale[both] = ratio
        return own * np.outer(scale, scale), others * np.outer(scale, scale)

    @cached_property
    def _axes(self) -> tuple[Floats, Floats]:
        """lambda, shape (s,), and R, shape (s, s), with R (S + tau^2 W) R' = diag(1 + tau^2 lambda) for every tau."""
        block = np.ix_(self.both, self.both)
        own, others = self._working
        whiten = np.linalg.inv(np.linalg.cholesky((own + others)[block])).astype(np.float64)
        spectrum, axes = np.linalg.eigh(whiten @ self.walk[block] @ whiten.T)
        return np.maximum(spectrum, 0.0), axes.T @ whiten


def _inner_quantile(rho: Floats) -> Floats:
    """P given rho, by bisection, of the shape of rho."""
    rho = np.clip(rho, 0.0, 1.0 - np.finfo(np.float64).eps)
    r = rho / np.sqrt(1 - rho**2)
    beyond = _MISSED_BEYOND - 2 * scipy.special.owens_t(-scipy.special.ndtri(_MISSED_BEYOND), r)
    low = np.broadcast_to(-scipy.special.ndtri(_MISSED - _MISSED_BEYOND), rho.shape)
    high = np.broadcast_to(-scipy.special.ndtri(_MISSED / 2), rho.shape)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        missed = scipy.special.ndtr(-middle) + 2 * scipy.special.owens_t(middle, r) + beyond
        low, high = np.where(missed > _MISSED, middle, low), np.where(missed > _MISSED, high, middle)
    return high


_PAIR = 2  # contexts: their two contrasts are the same
_ESTIMABLE = 1e-8  # residual of a row of X, projected onto the rows with data, that is rounding
_LEAST_NOISE = 1e-6  # overdispersion of a context whose errors are all shared


@dataclass(frozen=True)
class ShrunkContexts:
    """Shrunk propensities of contexts, each array of shape (K,), NaN where not identified.

    The intervals cover the context's own theta, however far it is from the others, and account for few clusters; NaN
    where the context's own data give no interval. The standard error is the larger half of the interval of log theta
    over z_.975.
    """

    log_theta: Floats  # posterior mean, 0 at the references; NaN also where no context has an interval at the position
    intervals: Intervals
    tau: float  # posterior mean: typical departure of a context from the others at e times its reference's position
    tau_of_cell: Floats  # posterior mean of tau_c of the cell's context
    borrowed_of_cell: Floats  # mean weight of the other contexts in the cell's context, from 0 (own data only) to 1


def shrink_contexts(fit: ConditionalFit, errors: ClusterErrors, position_of_cell: Integers) -> ShrunkContexts:
    """Shrink each context's curve towards the mean of the others.

    Args:
        fit: the free estimate of all contexts side by side; the cells of one reference are a context.
        errors: its clustered errors.
        position_of_cell: shape (K,), >= 1.
    """
    contexts, differences = _contexts(fit, errors, position_of_cell)
    tau, weights = _tau_posteriors(differences)
    log_theta = np.where(np.isnan(fit.log_theta), np.nan, 0.0)
    low, high, tau_of_cell, borrowed = (log_theta.copy() for _ in range(4))
    for context, difference, weight in zip(contexts, differences, weights, strict=True):
        cells = fit.free_cells[context.rows]
        log_theta[cells], shares = difference.posterior(weight)
        low[cells], high[cells] = difference.interval(log_theta[cells])
        with_reference = [*cells, fit.linkage.reference_of[cells[0]]]
        tau_of_cell[with_reference] = weight @ TAU
        known = shares[~np.isnan(shares)]
        borrowed[with_reference] = np.clip(known.mean(), 0.0, 1.0) if len(known) else np.nan
    return ShrunkContexts(
        log_theta=log_theta,
        intervals=Intervals(
            std_error=np.maximum(high - log_theta, log_theta - low) / NORMAL,
            low=np.exp(low),
            high=finite_exp(high),
            effective_clusters=errors.effective_clusters,
            reason=(None,) * len(low),
        ),
        tau=tau,
        tau_of_cell=tau_of_cell,
        borrowed_of_cell=borrowed,
    )


@dataclass(frozen=True)
class _Context:
    """A context's own estimate."""

    rows: Integers  # shape (n,), numbers of its cells among the F free cells
    known: Flags  # shape (n,), cells with an interval
    design: Floats  # shape (n, P), X: the shared curve mu at the cell's position minus mu at its reference's
    walk: Floats  # shape (n, n), W
    model: Floats  # shape (n, n), its block of the inverse information

    def normal_weights(self, noise: float, tau: float) -> Floats:
        """X'(noise C + tau^2 W)^-1 on the cells with an interval, shape (P, s): weights of y in the estimate of mu."""
        known = np.ix_(self.known, self.known)
        return self.design[self.known].T @ inverse(noise * self.model[known] + tau**2 * self.walk[known])


def _contexts(
    fit: ConditionalFit, errors: ClusterErrors, position_of_cell: Integers
) -> tuple[list[_Context], list[Difference]]:
    """All contexts, in the order of their references, and their differences from the others."""
    free = fit.free_cells
    reference = fit.linkage.reference_of[free]
    with np.errstate(divide="ignore"):  # low may be 0
        half_width = (np.log(errors.high[free]) - np.log(errors.low[free])) / 2
    stretch = half_width / NORMAL / errors.std_error[free]
    known = np.isfinite(stretch) & (stretch > 0)
    stretch[~known] = 0.0
    # V*: V with the half-widths over z_.975; 0 without a finite interval
    covariance = np.where(np.outer(known, known), errors.covariance, 0.0) * np.outer(stretch, stretch)
    known = np.diag(covariance) > 0
    position, reference_position = position_of_cell[free], position_of_cell[reference]
    positions = np.unique(np.concatenate([position, reference_position]))
    design = (position[:, np.newaxis] == positions).astype(np.float64)
    design -= reference_position[:, np.newaxis] == positions
    x = np.log(position / reference_position)
    contexts = [
        _Context(rows, known[rows], design[rows], walk_covariance(x[rows]), fit.inverse[np.ix_(rows, rows)])
        for rows in (np.flatnonzero(reference == first) for first in np.unique(reference))
    ]
    values = fit.log_theta[free]
    # Feasible generalised least squares: by information alone, then with the estimated noise and tau.
    initial = _differences(contexts, values, covariance, [(1.0, 0.0)] * len(contexts))
    taus = [float(weight @ TAU) for weight in _tau_posteriors(initial)[1]]
    noises = [max(difference.overdispersion[0], _LEAST_NOISE) for difference in initial]
    return contexts, _differences(contexts, values, covariance, list(zip(noises, taus, strict=True)))


def _differences(
    contexts: list[_Context], values: Floats, covariance: Floats, spread: list[tuple[float, float]]
) -> list[Difference]:
    """Each context and the generalised mean of the others.

    Args:
        contexts: C contexts.
        values: y, shape (F,).
        covariance: V*, shape (F, F), 0 without an interval.
        spread: the noise and tau of each context.
    """
    normal_weights = [context.normal_weights(*pair) for context, pair in zip(contexts, spread, strict=True)]
    differences: list[Difference] = []
    for number, context in enumerate(contexts):
        others = [other for other in range(len(contexts)) if other != number]
        precision = np.zeros((context.design.shape[1],) * 2)
        for other in others:
            precision += normal_weights[other] @ contexts[other].design[contexts[other].known]
        projection = context.design @ pseudo_inverse(precision)
        weights = np.zeros((len(context.rows), len(values)))
        model = np.zeros_like(context.model)
        for other in others:
            share, known = projection @ normal_weights[other], contexts[other].known
            weights[:, contexts[other].rows[known]] = share
            model += spread[other][0] * share @ contexts[other].model[np.ix_(known, known)] @ share.T
        estimable = np.abs(context.design - projection @ precision).max(axis=1) < _ESTIMABLE
        weights[~estimable] = 0.0
        product, rows, noise = weights @ covariance, context.rows, spread[number][0]
        own_values, variance = np.nan_to_num(values[rows]) * context.known, np.diag(covariance)[rows]
        own = Evidence(own_values, context.known, variance, noise * context.model)
        mean = Evidence(weights @ np.nan_to_num(values), estimable, (product * weights).sum(axis=1), model)
        differences.append(Difference(own, mean, product[np.arange(len(rows)), rows], context.walk))
    return differences


def _tau_posteriors(differences: list[Difference]) -> tuple[float, list[Floats]]:
    """The posterior mean of tau, and the posterior of each context's tau_c on the grid, shape (T,)."""
    likelihoods = np.array([difference.log_likelihood() for difference in differences])
    conditional = np.log(TAU) - 2.0 * np.log1p(TAU**2 / TAU[:, np.newaxis] ** 2 / 3)  # of tau_c given tau
    conditional = scipy.special.log_softmax(conditional, axis=1)
    marginal = np.array([scipy.special.logsumexp(conditional + likelihood, axis=1) for likelihood in likelihoods])
    prior = np.log(TAU / (1 + TAU**2))  # half-Cauchy(1), times the width tau of a step of the grid
    differs = np.array([len(difference.both) > 0 for difference in differences])
    tau = float(scipy.special.softmax(prior + _per_context(int(differs.sum())) * marginal.sum(axis=0)) @ TAU)
    posteriors: list[Floats] = []
    for number, likelihood in enumerate(likelihoods):
        others = marginal.sum(axis=0) - marginal[number]
        share = _per_context(int(differs.sum() - differs[number]))
        weight = scipy.special.softmax(prior + share * others)
        posteriors.append(scipy.special.softmax(np.log(weight @ np.exp(conditional)) + likelihood))
    return tau, posteriors


def _per_context(contexts: int) -> float:
    """(C - 1) / C, independent differences per context; 0 without contexts."""
    return max(contexts - 1, 0) / max(contexts, 1)


def compare_contexts(fit: ConditionalFit, errors: ClusterErrors, position_of_cell: Integers) -> ContrastTest:
    """Test that contexts do not differ: the log theta of each against the mean of the others at the same position.

    Contexts are compared where they have the same reference position, and weighted in the mean by their linking clicks.
    Two contexts have one contrast. The clustered covariance includes correlations from shared queries.

    Args:
        fit: the free estimate of all contexts side by side; the cells of one reference are a context.
        errors: its clustered errors.
        position_of_cell: shape (K,), >= 1.

    Returns:
        The test; contrasts have the numbers of their cells.
    """
    known = errors.std_error > 0
    position = np.stack([position_of_cell, position_of_cell[fit.linkage.reference_of]])
    same = (position[:, :, np.newaxis] == position[:, np.newaxis, :]).all(axis=0) & np.outer(known, known)
    others = same.sum(axis=1)
    first = np.argmax(same, axis=1) == np.arange(len(known))
    tested = np.flatnonzero((others > _PAIR) | ((others == _PAIR) & first))
    own = np.eye(len(known))
    share = (same - own)[tested] * fit.linkage.linking_clicks
    contrasts = np.zeros(same.shape)
    contrasts[tested] = own[tested] - share / share.sum(axis=1, keepdims=True)
    return linear_contrast_test(contrasts, fit, errors)
