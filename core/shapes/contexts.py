"""Propensities of several contexts (devices, countries): each shrunk towards the others, and a test that they differ.

Each context c has its own estimate y = log theta, relative to its own reference, and with little data it is poor. The
others say m, their curve for the positions of c (`_SharedCurve`). The context's true curve beta leaves it by a random
walk along the logarithm of the position, so that neighbouring positions leave it together and the reference does not:

    y = beta + e,    m = beta - z + e',    z ~ N(0, tau_c^2 W),    tau_c ~ tau |t_3|,    tau ~ half-Cauchy(1)
    W_kl = min(|x_k|, |x_l|) on one side of the reference, else 0,    x_k = log position_k - log position_ref

tau is what contexts have in common: with many that agree, another one is believed to agree, too. tau_c is what the
context's own data say: the tails of Student's t with 3 degrees of freedom are heavy, so that one that differs keeps its
own curve. Given tau_c

    d = y - m,    b = y - G d,    G = C (S + tau_c^2 W)^-1,    S = cov(d),    C = cov(e, d)

tau and tau_c are integrated over a grid; the likelihood of tau counts each of C contexts (C - 1)/C times, because that
many differences are independent.

Two covariances play two parts. The weights G need an inverse, and the clustered covariance V of all contexts together
(CR3) has none with few clusters: S and C in them have the correlations of the inverse information, in which contexts
are independent, at the standard deviations that V gives to d, what contexts share by sharing queries included. V
itself says how far y and m may be off and how much of that they share, whatever the weights are, with its standard
deviations replaced by the half-widths of the free estimate's intervals over z_.975 (V*), so that few clusters count.
The intervals made from these (`compare_contexts`) hold for each context by itself, also for one that differs.
Copies of a context have d = 0 and S = 0: they add nothing, and its interval is the free one.

Sources: Gelman 2006 (half-Cauchy, half-t); Carvalho, Polson & Scott 2010 (a strength of all and one of each); Liang &
Zeger 1986 (weights from a working covariance, errors from the clusters); Varin, Reid & Firth 2011 (composite
likelihood).

How far one context's curve leaves that of the others: the estimate that borrows, and an interval for that context.

    d = y - m,    S = cov(d),    C = cov(e, d),    G = C (S + tau_c^2 W)^-1,    b = y - G d

on the cells that the context has an interval for and the others speak of. On others of the context's cells b is m and
what d says there. In general, with N = S - C and K = (N + tau_c^2 W)(S + tau_c^2 W)^-1, which is I - G where y is
known, b = K y + (I - K) m, with K averaged over tau_c. S and C have the correlations of the inverse information, in
which contexts are independent, with one overdispersion of y and one of m, and S has the diagonal that the clusters give
to d.

The error of b depends on how far this context leaves the others, which its own data alone can say. So its interval is
that of y, moved towards m: with sigma the standard deviation of y,

    low = min(y - p sigma, max(m, y - q sigma)),    high = max(y + p sigma, min(m, y + q sigma)),    p < z_.975 < q

It extends as far as m, but never beyond q. Where beta > m, it misses beta if y is below it by p sigma or above it by
q sigma; where beta < m, the other way round. With Phi(-p) + Phi(-q) = .05 it covers 95 % of the time for every beta,
close to m or far from it, if y and m are independent. With the correlation rho > 0 of their errors, from what contexts
share, it covers least at beta = E m, and p is the solution of

    Phi(-p) + Phi(-q) + 2 T(p, r) - 2 T(q, r) = .05,    r = rho / sqrt(1 - rho^2)

with Owen's T: z_.975 at rho = 1, where nothing is to be gained. No interval that covers every beta can be much shorter.

Sources: Pratt 1961 (q = infinity: the shortest interval at beta = m, .84 of that of y); Yu & Hoff 2018 (intervals of
groups that borrow and cover in each group); Armstrong, Kolesar & Plagborg-Moller 2022 (intervals about b that cover on
average over groups, and less in one that differs). For notation see `contexts`.
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
"""Where tau and tau_c are looked at, per square root of a unit of log position: from 0 to factors of thousands."""

_SAME_TO_ROUNDING = 1e-6  # of a standard deviation: a difference that is as small as that is rounding

_MISSED = 0.05
_MISSED_BEYOND_OTHERS = 0.01  # beta lies between m and y, and the interval, extended to q, still does not reach it
_HALVINGS = 40  # of the bracket of p


@dataclass(frozen=True)
class Evidence:
    """Estimates of a context's n cells from one source."""

    values: Floats  # shape (n,); 0 where not known
    known: Flags  # shape (n,), where there is a value
    variance: Floats  # shape (n,), of its sampling errors, by the clusters; 0 where not known
    model: Floats  # shape (n, n), their covariance by the inverse information


@dataclass(frozen=True)
class Difference:
    """One context beside the others."""

    own: Evidence  # what its own data say, y
    others: Evidence  # what the other contexts say, m
    shared: Floats  # shape (n,), covariance of the errors of y and m by the clusters: from what contexts have in common
    walk: Floats  # shape (n, n), W

    @cached_property
    def both(self) -> Integers:
        """Cells of which both say something, shape (s,)."""
        return np.flatnonzero(self.own.known & self.others.known)

    @cached_property
    def overdispersion(self) -> tuple[float, float]:
        """Variance of the errors that y and m do not share, each relative to the inverse information, on average."""
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
        """Means b of beta, and the share of m in each, shape (n,), over the grid of tau_c with weights of shape (T,).

        NaN where nobody says anything.
        """
        kept = self._kept(weight)
        mean = kept @ self.own.values + self.others.values - kept @ self.others.values
        known = self.own.known | self.others.known
        return np.where(known, mean, np.nan), np.where(known, 1 - np.diag(kept), np.nan)

    def interval(self, mean: Floats) -> tuple[Floats, Floats]:
        """Ends of the 95 % interval of beta that holds whatever beta is, shape (n,) each; NaN without an own interval.

        Args:
            mean: shape (n,), b; in the rare case that it lies outside, the interval extends to it.
        """
        own = np.where(self.own.known, self.own.values, np.nan)
        others = np.where(self.others.known, self.others.values, own)
        sd = np.sqrt(self.own.variance)
        of_both = sd * np.sqrt(self.others.variance)
        rho = np.divide(self.shared, of_both, out=np.ones_like(sd), where=self.others.known & (of_both > 0))
        least, most = _reach(rho) * sd, -scipy.special.ndtri(_MISSED_BEYOND_OTHERS) * sd
        low = np.minimum(own - least, np.maximum(others, own - most))
        high = np.maximum(own + least, np.minimum(others, own + most))
        return np.minimum(low, mean), np.maximum(high, mean)

    def _kept(self, weight: Floats) -> Floats:
        """K, shape (n, n); where the others say nothing, what the context says is kept."""
        kept = np.diag((~self.others.known).astype(np.float64))
        spectrum, rotation = self._axes
        by_tau = weight / (1 + np.outer(spectrum, TAU**2))
        served = np.ix_(self.others.known, self.both)
        _, others = self._working
        of_noise, of_walk = by_tau.sum(axis=1), by_tau @ TAU**2
        kept[served] = others[served] @ (rotation.T * of_noise) @ rotation
        kept[served] += self.walk[served] @ (rotation.T * of_walk) @ rotation
        return kept

    @cached_property
    def _working(self) -> tuple[Floats, Floats]:
        """C and N, shape (n, n) each."""
        both, by_own = self.both, self.own.variance
        variance = by_own + self.others.variance - 2 * self.shared
        of_own, of_others = self.overdispersion
        if of_own + of_others == 0:  # copies
            of_own = of_others = 1.0
        own, others = of_own * self.own.model, of_others * self.others.model
        scale = np.ones(len(variance))
        if len(both):
            ratio = np.sqrt(np.maximum(variance, _SAME_TO_ROUNDING**2 * by_own)[both] / np.diag(own + others)[both])
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


def _reach(rho: Floats) -> Floats:
    """p, of the shape of rho: how far the interval reaches from y at least, in standard deviations."""
    rho = np.clip(rho, 0.0, 1.0 - np.finfo(np.float64).eps)
    slope = rho / np.sqrt(1 - rho**2)
    most = -scipy.special.ndtri(_MISSED_BEYOND_OTHERS)
    beyond = _MISSED_BEYOND_OTHERS - 2 * scipy.special.owens_t(most, slope)
    low = np.broadcast_to(-scipy.special.ndtri(_MISSED - _MISSED_BEYOND_OTHERS), rho.shape)
    high = np.broadcast_to(-scipy.special.ndtri(_MISSED / 2), rho.shape)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        missed = scipy.special.ndtr(-middle) + 2 * scipy.special.owens_t(middle, slope) + beyond
        low, high = np.where(missed > _MISSED, middle, low), np.where(missed > _MISSED, high, middle)
    return high


_PAIR = 2  # contexts whose two contrasts are one
_ESTIMABLE = 1e-8  # what may be left of a row of X outside the rows with data, by rounding
_SAME = 1e-6  # share of the information's variance below which a context has no errors of its own


@dataclass(frozen=True)
class ShrunkContexts:
    """Propensities of contexts that borrow from each other, each array of shape (K,), NaN where not identified.

    The intervals cover the context's own theta, however far it is from the others, in which few clusters count; the
    standard error is how far the interval of log theta reaches from it over z_.975. NaN where the context's own data
    give no interval.
    """

    log_theta: Floats  # posterior mean, 0 at the references; NaN also where no context has an interval at the position
    intervals: Intervals
    tau: float  # posterior mean: by how much a context typically leaves the others' at e times its reference's position
    tau_of_cell: Floats  # posterior mean of tau_c of the cell's own context
    borrowed_of_cell: Floats  # weight of the other contexts in its numbers, from 0 to 1 (they rest on those alone)


def shrink_contexts(fit: ConditionalFit, errors: ClusterErrors, position_of_cell: Integers) -> ShrunkContexts:
    """Shrink each context's curve towards that of the others.

    Args:
        fit: the free estimate of all contexts side by side; the cells of one reference are a context.
        errors: its clustered errors.
        position_of_cell: shape (K,), >= 1.
    """
    contexts, differences = _contexts(fit, errors, position_of_cell)
    tau, weights = _strengths(differences)
    log_theta = np.where(np.isnan(fit.log_theta), np.nan, 0.0)
    low, high, tau_of_cell, borrowed = (log_theta.copy() for _ in range(4))
    for context, difference, weight in zip(contexts, differences, weights, strict=True):
        cells = fit.free_cells[context.rows]
        log_theta[cells], shares = difference.posterior(weight)
        low[cells], high[cells] = difference.interval(log_theta[cells])
        of_context = [*cells, fit.linkage.reference_of[cells[0]]]
        tau_of_cell[of_context] = weight @ TAU
        known = shares[~np.isnan(shares)]
        borrowed[of_context] = np.clip(known.mean(), 0.0, 1.0) if len(known) else np.nan
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
    """One context's own estimate."""

    rows: Integers  # shape (n,), its cells' numbers among the F free cells
    seen: Flags  # shape (n,), cells that have an interval
    design: Floats  # shape (n, P), X: the shared curve at the cell's position minus that at its reference's
    walk: Floats  # shape (n, n), W
    model: Floats  # shape (n, n), its block of the inverse information

    def pull(self, noise: float, tau: float) -> Floats:
        """X'(noise C + tau^2 W)^-1 on the cells that have an interval, shape (P, s): how much each counts for mu."""
        seen = np.ix_(self.seen, self.seen)
        return self.design[self.seen].T @ inverse(noise * self.model[seen] + tau**2 * self.walk[seen])


def _contexts(
    fit: ConditionalFit, errors: ClusterErrors, position_of_cell: Integers
) -> tuple[list[_Context], list[Difference]]:
    """All contexts, in the order of their references, and each beside the others."""
    free = fit.free_cells
    reference = fit.linkage.reference_of[free]
    with np.errstate(divide="ignore"):  # an interval from 0 says nothing
        half_width = (np.log(errors.high[free]) - np.log(errors.low[free])) / 2
    stretch = half_width / NORMAL / errors.std_error[free]
    seen = np.isfinite(stretch) & (stretch > 0)
    stretch[~seen] = 0.0
    # V*: V with the half-widths over z_.975; 0 without a finite interval
    covariance = np.where(np.outer(seen, seen), errors.covariance, 0.0) * np.outer(stretch, stretch)
    seen = np.diag(covariance) > 0
    position, of_reference = position_of_cell[free], position_of_cell[reference]
    positions = np.unique(np.concatenate([position, of_reference]))
    design = (position[:, np.newaxis] == positions).astype(np.float64) - (of_reference[:, np.newaxis] == positions)
    x = np.log(position / of_reference)
    contexts = [
        _Context(rows, seen[rows], design[rows], walk_covariance(x[rows]), fit.inverse[np.ix_(rows, rows)])
        for rows in (np.flatnonzero(reference == first) for first in np.unique(reference))
    ]
    values = fit.log_theta[free]
    # Once by information alone, then by how far they turned out to scatter.
    by_information = _beside_others(contexts, values, covariance, [(1.0, 0.0)] * len(contexts))
    taus = [float(weight @ TAU) for weight in _strengths(by_information)[1]]
    noises = [max(difference.overdispersion[0], _SAME) for difference in by_information]
    return contexts, _beside_others(contexts, values, covariance, list(zip(noises, taus, strict=True)))


def _beside_others(
    contexts: list[_Context], values: Floats, covariance: Floats, spread: list[tuple[float, float]]
) -> list[Difference]:
    """Each context beside the generalised mean of the others.

    Args:
        contexts: all of them.
        values: y, shape (F,).
        covariance: V*, shape (F, F), 0 where there is no interval.
        spread: the noise and tau of each context.
    """
    pulls = [context.pull(noise, tau) for context, (noise, tau) in zip(contexts, spread, strict=True)]
    differences: list[Difference] = []
    for number, context in enumerate(contexts):
        others = [other for other in range(len(contexts)) if other != number]
        precision = np.zeros((context.design.shape[1],) * 2)
        for other in others:
            precision += pulls[other] @ contexts[other].design[contexts[other].seen]
        onto = context.design @ pseudo_inverse(precision)
        weights = np.zeros((len(context.rows), len(values)))
        model = np.zeros_like(context.model)
        for other in others:
            share, seen = onto @ pulls[other], contexts[other].seen
            weights[:, contexts[other].rows[seen]] = share
            model += spread[other][0] * share @ contexts[other].model[np.ix_(seen, seen)] @ share.T
        served = np.abs(context.design - onto @ precision).max(axis=1) < _ESTIMABLE
        weights[~served] = 0.0
        of_others, rows, noise = weights @ covariance, context.rows, spread[number][0]
        own = np.nan_to_num(values[rows]) * context.seen, context.seen, np.diag(covariance)[rows], noise * context.model
        theirs = weights @ np.nan_to_num(values), served, (of_others * weights).sum(axis=1), model
        shared = of_others[np.arange(len(rows)), rows]
        differences.append(Difference(Evidence(*own), Evidence(*theirs), shared, context.walk))
    return differences


def _strengths(differences: list[Difference]) -> tuple[float, list[Floats]]:
    """The posterior mean of tau, and for each context the weights of the grid of tau_c, shape (T,)."""
    likelihoods = np.array([difference.log_likelihood() for difference in differences])
    scatter = np.log(TAU) - 2.0 * np.log1p(TAU**2 / TAU[:, np.newaxis] ** 2 / 3)  # of tau_c given tau
    scatter = scipy.special.log_softmax(scatter, axis=1)
    of_tau = np.array([scipy.special.logsumexp(scatter + likelihood, axis=1) for likelihood in likelihoods])
    prior = np.log(TAU / (1 + TAU**2))  # half-Cauchy(1), times the width tau of a step of the grid
    differs = np.array([len(difference.both) > 0 for difference in differences])
    tau = float(scipy.special.softmax(prior + _per_context(int(differs.sum())) * of_tau.sum(axis=0)) @ TAU)
    of_context: list[Floats] = []
    for number, likelihood in enumerate(likelihoods):
        others = of_tau.sum(axis=0) - of_tau[number]
        share = _per_context(int(differs.sum() - differs[number]))
        strength = scipy.special.softmax(prior + share * others)
        of_context.append(scipy.special.softmax(np.log(strength @ np.exp(scatter)) + likelihood))
    return tau, of_context


def _per_context(contexts: int) -> float:
    """How many independent differences there are for each of some contexts: one fewer than contexts in all."""
    return max(contexts - 1, 0) / max(contexts, 1)


def compare_contexts(fit: ConditionalFit, errors: ClusterErrors, position_of_cell: Integers) -> ContrastTest:
    """Test that contexts do not differ: each one's log theta against the mean of the others at the same position.

    Contexts are compared where they have the same reference position. In the mean they weigh as much as their linking
    clicks. Of two, one difference says it all. The covariance over the clusters counts what contexts share by sharing
    queries.

    Args:
        fit: the free estimate of all contexts side by side; the cells of one reference are a context.
        errors: its clustered errors.
        position_of_cell: shape (K,), >= 1.

    Returns:
        The test, whose contrasts are numbered as the cells.
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
