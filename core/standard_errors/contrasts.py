"""Tests of differences: several contrasts of log propensities at once, and two estimates from the same log.

A contrast D_m with standard error sd_m and nu_m degrees of freedom is tested by Student's t. Of M contrasts, the one
with the smallest tail probability decides: its p-value is the probability that any contrast has a tail that small
(max-t), or M times its own where correlations are unknown (Bonferroni). For D = L b, b with the clustered covariance V
and the effective clusters nu_k of each cell,

    sd_m^2 = (L V L')_mm,    nu_m = min(nu_k over the cells k with L_mk^2 V_kk > .01 sum_l L_ml^2 V_ll)

Degrees of freedom are those of the cell with fewest, not Welch's sum over cells: cells of one log share their clusters,
so that 8 queries in ten contexts remain 8 queries. Cells that contribute 1 % of the variance or less do not limit them.

Power: with p* the p-value at which a single contrast is rejected, the test detects, in four of five such logs (or more,
where other contrasts differ, too), a contrast of

    (t_{1-p*/2, nu_m} + t_{.8, nu_m}) sd_m        (1 - p* where only rises count)

Two estimates b1, b2 from the same clusters (queries) are dependent. With the clusters' scores s1_g, s2_g and the
responses A1, A2 (inverse informations) that turn a score into a change of the estimate, b1 - b2 has

    psi_g = A1 s1_g - A2 s2_g,    V = sum_g psi_g psi_g'

computed from the sums of s1 s1', s1 s2' and s2 s2' over the clusters. First-order responses understate the influence of
large clusters, so each standard error is scaled by the larger of the two estimates' ratios CR3 / CR0.
Sources: White 1982 (scores of a misspecified model); Hausman 1978 (comparison of two estimates); Bell & McCaffrey 2002
(CR3).

Joint p-values: the distribution of the largest of M correlated statistics.

P-values p_m of single contrasts are turned into normal scores, z_m = Phi^-1(1 - p_m / 2), so that each contrast has its
own degrees of freedom. If all contrasts are 0, Z ~ N(0, R) with their correlations R, and the joint p-value of a
contrast is

    P(max_m |Z_m| >= z) = M p E[1 / number of l with |Z_l| >= z],    Z given Z_m >= z, m each equally often,

or the same without absolute values where only rises count. M p is Bonferroni's bound, and the mean corrects it for
dependence. The mean is over draws from a fixed seed, and lies between 1 / M and 1, so that the result is exact to about
a percent in the far tail, too.

R is estimated from few clusters, and chance correlations would understate the maximum. So they are shrunk,

    (1 - lambda) r_lm,    lambda = sum_{l != m} (1 - r_lm^2)^2 / nu_lm / sum_{l != m} r_lm^2,  at most 1

with nu_lm = min(nu_l, nu_m) degrees of freedom of r_lm: the sampling variance of the correlations over their size,
which vanishes with many clusters.

Sources: Westfall & Young 1993, Hothorn, Bretz & Westfall 2008 (max-t); Schaefer & Strimmer 2005 (lambda); Naiman &
Wynn 2001 (probability of a union).

Score tests of a factorised model: does theta differ within a cell of the model?

Cells f are finer than the model's own, e = e(f). By the model, theta is the same in all f of one e; the alternative is
theta_f = theta_e exp(delta z_f). With p_jf = n_jf theta_e(f) / sum, theta estimated under the model, and C_j the clicks
of unit j,

    s_g = sum_{j in g} (c_j - C_j p_j),    H_g = sum_{j in g} C_j (diag(p_j) - p_j p_j'),    H = sum_g H_g
    z* = z - D (D'H D)^-1 D'H z            D the model's cells: z*'s is free of the error of theta, to first order
    a_g = z*'H_g z*,    A = sum_g a_g,     delta = sum_g z*'s_g / A
    V(delta) = (G - 1) / G sum_g u_g^2 / A^2,    u_g = (z*'s_g - a_g delta) / (1 - a_g / A)

u_g / A is the change of delta without cluster g. Where few clicks are expected, chance may leave none, and clusters
without any agree with each other. Where theta cancels, a unit's clicks are drawn from its n_j impressions without
replacement, and V is at least the variance of that,

    V >= sum_j (n_j - C_j) / (n_j - 1) z'H_j z / A^2

delta is tested by Student's t with min(G*, G - 1) degrees of freedom, G* = A^2 / sum_g a_g^2. Only the model itself is
fitted, so that cells without clicks count as the others do.

Sources: Rao 1948 (score test); Neyman 1959 (z*); Bell & McCaffrey 2002, MacKinnon, Nielsen & Webb 2023 (jackknife).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy

from posbias.core.arrays import linalg
from posbias.core.arrays.count_table import Floats, Integers, sum_by_number
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.errors import IdentifiabilityError
from posbias.core.standard_errors.cluster import ROUNDING, SMALLEST_ERROR, ClusterErrors, cluster_scores
from posbias.core.theta.conditional import ConditionalFit, find_linkage, fit_conditional

LEVEL = 0.05
"""Type I error of a test, over all its contrasts."""

POWER = 0.8
"""Share of logs in which a difference of `detectable` size is significant."""

MOST_CONTRASTS = 256
"""Largest number of contrasts whose correlations are used; with more, the p-value is M p."""

_NOTABLE = 0.01  # share of a contrast's variance above which a cell's clusters limit the degrees of freedom
_ROUNDING = 1e-7  # share of an estimate's error below which the error of a difference is rounding
_SAME = 1e-6  # share of the errors of its terms below which the error of a contrast is rounding
_MOST_DEGREES = 1e9

_DRAWS = 4096
_SEED = 19_930_101
_ROUNDS = 3  # fixed-point iterations for the p-value at a level; the third moves it by less than a percent
_NODES = 8  # p-values at which the bound ratio is computed; interpolated between
_SMALLEST, _LARGEST = 1e-300, 1 - 1e-12  # p-values whose normal scores are finite


BoundRatio = Callable[[float], float]
"""P(max_m |Z_m| >= z) / (M p) as a function of the p-value p of a single contrast at z, in [1 / M, 1]."""


def joint_p_values(p_values: Floats, bound_ratio: BoundRatio) -> Floats:
    """P(max_m |Z_m| >= z_m) of each of M contrasts, if all are 0.

    Args:
        p_values: shape (M,), of each contrast by itself, in [0, 1]; M > 0.
        bound_ratio: as from `max_t`.

    Returns:
        Shape (M,), at least p_m, at most min(M p_m, 1).
    """
    n_contrasts = len(p_values)
    bound = np.minimum(n_contrasts * p_values, 1.0)
    score = np.log(np.clip(p_values, _SMALLEST, _LARGEST))
    nodes = np.linspace(float(score.min()), float(score.max()), _NODES)
    ratio = np.array([bound_ratio(float(p)) for p in np.exp(nodes)])
    joint = np.clip(n_contrasts * p_values * np.exp(np.interp(score, nodes, np.log(ratio))), p_values, bound)
    order = np.argsort(p_values)
    joint[order] = np.maximum.accumulate(joint[order])  # Monte Carlo errors break the order by less than a percent
    return joint


def single_p_value(level: float, n_contrasts: int, bound_ratio: BoundRatio) -> float:
    """Inverse of `joint_p_values`: the p-value of a single contrast at which the joint one is a level in (0, 1)."""
    p_value = level / n_contrasts
    for _ in range(_ROUNDS):
        p_value = level / (n_contrasts * bound_ratio(p_value))
    return p_value


def shrunk_correlation(correlation: Floats, degrees: Floats) -> Floats:
    """(1 - lambda) R off the diagonal, shape (M, M)."""
    off_diagonal = np.where(np.eye(len(correlation), dtype=np.bool_), 0.0, correlation)
    variance = (1 - off_diagonal**2) ** 2 / np.minimum.outer(degrees, degrees)
    size = (off_diagonal**2).sum()
    shrinkage = (variance.sum() - np.trace(variance)) / size if size > 0 else 1.0
    return np.eye(len(correlation)) + (1 - min(shrinkage, 1.0)) * off_diagonal


def max_t(correlation: Floats | None, degrees: Floats, *, two_sided: bool) -> BoundRatio:
    """The bound ratio of M contrasts; constant 1 (Bonferroni) without correlations, or with M > `MOST_CONTRASTS`.

    Args:
        correlation: shape (M, M), estimated; None where unknown.
        degrees: shape (M,), degrees of freedom of each contrast's error, >= 1.
        two_sided: whether falls count as rises do.
    """
    size = len(degrees)
    if correlation is None or not 1 < size <= MOST_CONTRASTS:
        return lambda _: 1.0
    shrunk = shrunk_correlation(correlation, degrees)
    rng = np.random.default_rng(_SEED)
    values, vectors = np.linalg.eigh(shrunk)
    free = rng.standard_normal((_DRAWS, size)) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    draw, beyond = np.arange(_DRAWS), np.arange(_DRAWS) % size  # m, the contrast with Z_m >= z, draw by draw
    alone, regression = free[draw, beyond], shrunk[beyond]
    share = 1 - rng.random(_DRAWS)  # P(Z >= Z_m) as a share of the tail beyond z, in (0, 1]

    def bound_ratio(p_value: float) -> float:
        tail = p_value / 2 if two_sided else p_value
        bound = -scipy.special.ndtri(tail)
        shift = -scipy.special.ndtri(share * tail) - alone
        drawn = free + shift[:, np.newaxis] * regression
        outside = (np.abs(drawn) if two_sided else drawn) >= bound
        outside[draw, beyond] = True
        return float((1 / np.count_nonzero(outside, axis=1)).mean())

    return bound_ratio


def detectable(std_error: float, degrees: float, level: float = LEVEL) -> float:
    """The difference at which a two-sided test has a power of .8, (t_(1 - level / 2) + t_.8) sd."""
    return float(scipy.special.stdtrit(degrees, [1 - level / 2, POWER]).sum()) * std_error


@dataclass(frozen=True)
class ContrastTest:
    """A joint test of several contrasts, with its deciding contrast, the one of the smallest tail probability."""

    statistic: float  # D / sd of the deciding contrast, its absolute value in a two-sided test; NaN without contrasts
    degrees: float  # degrees of freedom of the deciding contrast, >= 1
    p_value: float  # joint p-value
    n_contrasts: int  # M, contrasts with a standard error
    largest: int  # index of the deciding contrast among all M', -1 without contrasts
    difference: float  # D of the deciding contrast, a difference of log propensities
    std_error: float  # of the deciding contrast
    p_values: Floats  # shape (M',), joint p-value of each contrast; NaN without a standard error
    detectable: Floats  # shape (M',), difference that four of five such logs would show; NaN without a standard error

    @property
    def rejected(self) -> bool:
        """Whether the joint p-value is below .05."""
        return self.p_value < LEVEL


def contrast_test(
    difference: Floats,
    std_error: Floats,
    degrees: Floats,
    *,
    correlation: Floats | None = None,
    rises_only: bool = False,
) -> ContrastTest:
    """Test that all contrasts are 0, or that none is above 0.

    Args:
        difference: shape (M',), D.
        std_error: shape (M',); contrasts whose error is 0 or NaN are not tested.
        degrees: shape (M',), degrees of freedom of the error (effective clusters); raised to 1.
        correlation: shape (M', M'), of the errors; None where unknown.
        rises_only: whether the hypothesis is D <= 0 instead of D = 0.
    """
    usable = np.flatnonzero(np.isfinite(difference) & (std_error > 0))
    p_values, smallest = np.full((2, len(difference)), np.nan)
    if not len(usable):
        return ContrastTest(np.nan, np.nan, 1.0, 0, -1, np.nan, np.nan, p_values, smallest)
    ratio = difference[usable] / std_error[usable]
    statistic = ratio if rises_only else np.abs(ratio)
    nu = np.maximum(np.nan_to_num(degrees[usable], nan=1.0), 1.0)
    tail = scipy.special.stdtr(nu, -statistic)
    correlation = None if correlation is None else correlation[np.ix_(usable, usable)]
    bound_ratio = max_t(correlation, nu, two_sided=not rises_only)
    p_values[usable] = joint_p_values(np.minimum((1 if rises_only else 2) * tail, 1.0), bound_ratio)
    level = (2 if rises_only else 1) * single_p_value(LEVEL, len(usable), bound_ratio)
    errors = zip(std_error[usable].tolist(), nu.tolist(), strict=True)
    smallest[usable] = [detectable(error, degree, level) for error, degree in errors]
    deciding = np.lexsort((-statistic, tail))[0]  # by the statistic where tails underflow to 0
    largest = int(usable[deciding])
    return ContrastTest(
        statistic=float(statistic[deciding]),
        degrees=float(nu[deciding]),
        p_value=float(p_values[largest]),
        n_contrasts=len(usable),
        largest=largest,
        difference=float(difference[largest]),
        std_error=float(std_error[largest]),
        p_values=p_values,
        detectable=smallest,
    )


@dataclass(frozen=True)
class Differences:
    """Estimates and a joint test of M contrasts."""

    difference: Floats  # shape (M,), of log propensities; NaN where unknown
    std_error: Floats  # shape (M,); NaN where unknown, 0 where both sides are the same function of the counts
    degrees: Floats  # shape (M,), degrees of freedom of the error, >= 1
    test: ContrastTest  # of all contrasts


def linear_contrasts(
    contrasts: Floats,
    log_theta: Floats,
    covariance: Floats,
    degrees: Floats,
    *,
    correlated: bool = True,
    rises_only: bool = False,
) -> Differences:
    """Estimate and test contrasts L b.

    Args:
        contrasts: shape (M, K), L. Rows of cells without an estimate or an error, or of references only, are not
            tested.
        log_theta: shape (K,), b; NaN where unknown.
        covariance: shape (K, K), V; 0 at references, NaN beside cells without an error.
        degrees: shape (K,), degrees of freedom of the errors; NaN where unknown.
        correlated: whether the covariances in V are known; without them the test is Bonferroni's.
        rises_only: as for `contrast_test`.
    """
    variance = np.diag(covariance)
    involved = np.nan_to_num(contrasts, nan=1.0) != 0
    known = ~(involved & ~np.isfinite(log_theta)).any(axis=1) & np.isfinite(contrasts).all(axis=1)
    has_error = known & ~(involved & ~np.isfinite(variance)).any(axis=1)
    rows = np.nan_to_num(contrasts)
    row_covariance = rows @ np.nan_to_num(covariance) @ rows.T
    terms = rows**2 * np.nan_to_num(variance)
    notable = terms > _NOTABLE * terms.sum(axis=1, keepdims=True)
    nu = np.where(notable, np.nan_to_num(degrees, nan=1.0), np.inf).min(axis=1, initial=np.inf)
    std_error = np.sqrt(np.maximum(np.diag(row_covariance), 0.0))
    std_error[std_error < _SAME * np.sqrt(terms.sum(axis=1))] = 0.0
    difference = np.where(known, rows @ np.nan_to_num(log_theta), np.nan)
    std_error, nu = np.where(has_error, std_error, np.nan), np.clip(nu, 1.0, _MOST_DEGREES)
    correlation = correlation_matrix(row_covariance) if correlated else None
    test = contrast_test(difference, std_error, nu, correlation=correlation, rises_only=rises_only)
    return Differences(difference, std_error, nu, test)


def linear_contrast_test(
    contrasts: Floats, fit: ConditionalFit, errors: ClusterErrors, *, rises_only: bool = False
) -> ContrastTest:
    """`linear_contrasts` of one estimate with clustered errors."""
    covariance = log_theta_covariance(fit, errors)
    return linear_contrasts(contrasts, fit.log_theta, covariance, errors.degrees, rises_only=rises_only).test


def log_theta_covariance(fit: ConditionalFit, errors: ClusterErrors) -> Floats:
    """Covariance of log theta, shape (K, K): 0 at the references, NaN beside cells without an error or an estimate."""
    covariance = np.zeros((len(fit.log_theta),) * 2)
    covariance[np.ix_(fit.free_cells, fit.free_cells)] = errors.covariance
    unknown = np.isnan(fit.log_theta) | np.isnan(np.diag(covariance))
    covariance[unknown, :] = covariance[:, unknown] = np.nan
    return covariance


def pairwise_contrasts(minus: Sequence[int] | Integers, plus: Sequence[int] | Integers, n_cells: int) -> Floats:
    """Contrast matrix, shape (M, K): row m is 1 at cell plus[m], -1 at cell minus[m]."""
    contrasts, row = np.zeros((len(plus), n_cells)), np.arange(len(plus))
    contrasts[row, plus], contrasts[row, minus] = 1.0, -1.0
    return contrasts


def correlation_matrix(covariance: Floats) -> Floats:
    """Correlations of a covariance, shape (M, M); 0 beside variances that are 0 or not finite."""
    variance = np.diag(covariance)
    known = (variance > 0) & np.isfinite(variance)
    both = np.outer(known, known) & np.isfinite(covariance)
    sd = np.sqrt(np.where(known, variance, 1.0))
    correlation = np.clip(np.where(both, covariance, 0.0) / np.outer(sd, sd), -1.0, 1.0)
    np.fill_diagonal(correlation, 1.0)
    return correlation


@dataclass(frozen=True)
class ScoredEstimate:
    """An estimate of K log propensities with the scores of its clusters on S parameters."""

    log_theta: Floats  # shape (K,), NaN where unknown
    std_error: Floats  # shape (K,), CR3; NaN where unknown
    degrees: Floats  # shape (K,), degrees of freedom of the error; NaN without an error
    clusters: Integers  # shape (G,), the clusters' numbers, ascending
    scores: linalg.Sparse  # shape (G, S), s_g
    response: Floats  # shape (K, S), A: without cluster g the estimate falls by A s_g, to first order


@dataclass(frozen=True)
class StrataEstimate:
    """A conditional fit with its counts and its errors."""

    strata: Strata
    fit: ConditionalFit
    errors: ClusterErrors  # by the strata's clusters, unless `--cluster` names other clusters

    def scored(self) -> ScoredEstimate:
        """Compute the scores s_g = sum_{j in g} (c_j - C_j p_j), and the response H^-1."""
        fit, errors = self.fit, self.errors
        scores = cluster_scores(fit, self.strata)
        response = np.zeros((len(fit.log_theta), len(scores.linked.cells)))
        response[np.ix_(fit.free_cells, scores.linked.free)] = fit.inverse
        return ScoredEstimate(fit.log_theta, errors.std_error, errors.degrees, scores.numbers, scores.scores, response)


def difference_errors(first: ScoredEstimate, second: ScoredEstimate) -> tuple[Floats, Floats | None]:
    """Errors of first - second, cell by cell, from the same clusters.

    Returns:
        The standard error, shape (K,), NaN where an estimate has none or all its scores vanish, 0 where the estimates
        are the same function of the log; and the correlations, shape (K, K), None if K > `MOST_CONTRASTS`.
    """
    _, in_first, in_second = np.intersect1d(first.clusters, second.clusters, assume_unique=True, return_indices=True)
    products = [  # A1 s1 s1', A2 s2 s2' and A1 s1 s2', summed over the clusters
        first.response @ linalg.gram(first.scores),
        second.response @ linalg.gram(second.scores),
        first.response @ linalg.gram(first.scores[in_first], second.scores[in_second]),
    ]
    responses = first.response, second.response, second.response
    variances = [np.einsum("ks,ks->k", *pair) for pair in zip(products, responses, strict=True)]
    variance, correlation = variances[0] + variances[1] - 2 * variances[2], None
    if len(first.log_theta) <= MOST_CONTRASTS:
        own, other, mixed = (product @ response.T for product, response in zip(products, responses, strict=True))
        covariance = own + other - (mixed + mixed.T)
        variance, correlation = np.diag(covariance), correlation_matrix(covariance)
    cr0 = [np.sqrt(np.maximum(own, 0.0)) for own in variances[:2]]
    with np.errstate(invalid="ignore", divide="ignore"):  # 0 / 0 at references
        correction = np.fmax(np.fmax(first.std_error / cr0[0], second.std_error / cr0[1]), 1.0)
    error = np.sqrt(np.maximum(variance, 0.0))
    error[error < _ROUNDING * np.maximum(*cr0)] = 0.0
    vanish = (cr0[0] < _ROUNDING * first.std_error) | (cr0[1] < _ROUNDING * second.std_error)
    usable = np.isfinite(first.std_error + second.std_error) & ~vanish
    return np.where(usable, correction * error, np.nan), correlation


def difference_test(first: ScoredEstimate, second: ScoredEstimate) -> ContrastTest:
    """Test that two estimates from the same clusters, relative to the same references, agree in every cell."""
    std_error, correlation = difference_errors(first, second)
    degrees = np.minimum(first.degrees, second.degrees)
    return contrast_test(first.log_theta - second.log_theta, std_error, degrees, correlation=correlation)


_PRECISION = 1e-8  # of theta; the test needs no more


@dataclass(frozen=True)
class ScoreTest:
    """Result of a score test, in the manifest of a fit."""

    statistic: float  # |delta| / its standard error
    degrees: float  # degrees of freedom of the error
    difference_of_logs: float  # delta, a one-step estimate: rough where it is large
    std_error: float  # of delta
    clusters: int  # G, with information on delta
    p_value: float  # of delta = 0, two-sided
    p_value_adjusted: float  # adjusted for the tests of its family
    rejected: bool  # whether the adjusted p-value is below .05
    observed_clicks: float = 0.0  # where z > 0, on units with information on delta; 0 in earlier versions
    expected_clicks: float = 0.0  # the same by the model, given the clicks on each unit; 0 in earlier versions
    largest_missed_error: float | None = None  # of log theta in any cell, that one such log in five would not show


def score_test(strata: Strata, cell: Integers, direction: Floats, group: Integers) -> ScoreTest | None:
    """Test a model against one direction.

    Args:
        strata: counts per unit and fine cell, and the clusters of the units, each unit once.
        cell: shape (F,), the model's cell e(f) of each fine cell, ascending.
        direction: shape (F,), z.
        group: shape (K,), the context of each cell of the model; only cells of one context are compared.

    Returns:
        The test; None where the log has no information on the direction.
    """
    try:
        counts = strata.signatures.merge_cells(cell, len(group))
        fit = fit_conditional(counts, find_linkage(counts, group), tolerance=_PRECISION)
    except (IdentifiabilityError, np.linalg.LinAlgError):
        return None
    identified = replace(strata, signatures=strata.signatures.only_cells(fit.linkage.identified[cell]))
    return direction_test(identified, direction, cell, fit)


def direction_test(
    strata: Strata, direction: Floats, cell: Integers | None = None, fit: ConditionalFit | None = None
) -> ScoreTest | None:
    """`score_test` given a fit, or without a fit where each unit lies in one cell of the model, whose theta cancels.

    Args:
        strata: counts per unit and fine cell, and the clusters of the units, each unit once.
        direction: shape (F,), z; z* = z without a fit.
        cell: shape (F,), the model's cell e(f) of each fine cell, with a fit.
        fit: of the model.
    """
    units = np.flatnonzero(strata.signatures.links)
    table, members = strata.signatures.take(units), strata.members.among(units).by_cluster()
    shown, clicked = table.sum_by_unit(table.impressions), table.sum_by_unit(table.clicks)
    share = table.impressions.copy()
    if cell is not None and fit is not None:
        share *= np.exp(np.nan_to_num(fit.log_theta))[cell[table.cell]]
    share /= table.spread(table.sum_by_unit(share))
    expected = table.spread(clicked) * share

    def centred(values: Floats) -> Floats:
        """Values of the fine cells, by entry, minus their mean over p_j."""
        by_entry = values[table.cell]
        return by_entry - table.spread(table.sum_by_unit(share * by_entry))

    z = direction
    if cell is not None and fit is not None:
        explained = np.zeros(len(fit.log_theta))
        by_cell = sum_by_number(cell[table.cell], expected * centred(direction), len(explained))
        explained[fit.free_cells] = linalg.solve(fit.information, by_cell[fit.free_cells])
        z = direction - explained[cell]
    distance, number = centred(z), members.cluster.astype(np.int64)
    scores, information = (
        sum_by_number(number, table.sum_by_unit(by_entry)[members.unit], int(number.max(initial=-1)) + 1)
        for by_entry in (table.clicks * distance, expected * distance**2)
    )
    delta, std_error, degrees, n_clusters = jackknife_ratio(scores, information)
    if fit is None and n_clusters > 1:
        drawn = table.sum_by_unit(expected * distance**2) * (shown - clicked) / np.maximum(shown - 1, 1)
        std_error = max(std_error, float(np.sqrt(drawn.sum()) / information.sum()))
    if n_clusters <= 1 or std_error <= SMALLEST_ERROR:
        return None
    p_value = min(2 * float(scipy.special.stdtr(degrees, -abs(delta) / std_error)), 1.0)
    upwards = direction[table.cell] > 0
    return ScoreTest(
        statistic=abs(delta) / std_error,
        degrees=degrees,
        difference_of_logs=delta,
        std_error=std_error,
        clusters=n_clusters,
        p_value=p_value,
        p_value_adjusted=p_value,
        rejected=p_value < LEVEL,
        observed_clicks=float(table.clicks[upwards].sum()),
        expected_clicks=float(expected[upwards].sum()),
    )


def jackknife_ratio(numerator: Floats, denominator: Floats) -> tuple[float, float, float, int]:
    """Ratio of two sums over clusters, both of shape (G,), with its jackknife error.

    Returns:
        The ratio, its standard error, the degrees of freedom of the error, and the number of clusters in the
        denominator; NaN without any cluster, and a standard error of 0 with one.
    """
    total = float(denominator.sum())
    number = int((denominator > ROUNDING * total).sum())
    if not number:
        return np.nan, np.nan, np.nan, 0
    ratio, share = float(numerator.sum()) / total, denominator / total
    change = (numerator / total - share * ratio) / np.maximum(1 - share, ROUNDING)
    std_error = float(np.sqrt((number - 1) / number * (change**2).sum()))
    return ratio, std_error, max(min(1 / float((share**2).sum()), number - 1.0), 1.0), number
