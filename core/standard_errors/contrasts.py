"""Tests of differences: several contrasts of log propensities at once, and two estimates from the same log.

A contrast D_m with standard error sd_m and nu_m degrees of freedom is judged by Student's t; of M contrasts the one
with the smallest tail decides, and its p-value is the probability of so small a tail in any of them (`max_t`), or M
times its own where their correlations are not known (Bonferroni). For D = L b, b with the clustered covariance V and
the effective clusters nu_k of each cell,

    sd_m^2 = (L V L')_mm,    nu_m = min(nu_k over the cells k with L_mk^2 V_kk > .01 sum_l L_ml^2 V_ll)

Degrees of freedom are those of the worst known cell, not Welch's sum over cells: cells of one log share their clusters,
and 8 queries in ten contexts are 8 queries still. A cell that hardly adds to the variance does not limit it.

What a test could have missed: with p* the p-value of a single contrast at which it rejects, it finds a contrast of

    (t_{1-p*/2, nu_m} + t_{.8, nu_m}) sd_m        (1 - p* where only rises count)

in four of five such logs (or more, where others differ, too).

Two estimates b1, b2 from the same clusters (queries) are far from independent. With the clusters' scores s1_g, s2_g
and the responses A1, A2 (inverse informations) that turn a score into a change of the estimate, b1 - b2 has

    psi_g = A1 s1_g - A2 s2_g,    V = sum_g psi_g psi_g'

which needs only the sums of s1 s1', s1 s2' and s2 s2' over the clusters. First-order responses understate what a
large cluster does, so each standard error is scaled by the larger of the two estimates' ratios CR3 / CR0.
Sources: White 1982 (scores of a misspecified model); Hausman 1978 (the idea of the
comparison); Bell & McCaffrey 2002 (CR3).

P-values of several contrasts at once, from their joint distribution: the largest of M correlated statistics.

P-values p_m of single contrasts are turned into normal scores, z_m = Phi^-1(1 - p_m / 2), so that each may have degrees
of freedom of its own. If all contrasts are 0, Z ~ N(0, R) with their correlations R, and what is reported for a
contrast is the probability that any of them shows as much,

    P(max_m |Z_m| >= z) = M p E[1 / number of l with |Z_l| >= z],    Z given Z_m >= z, m each equally often,

or the same without absolute values where only rises count. M p is Bonferroni's bound, and the mean tells what
dependence makes of it. It is taken over draws that are the same in every run, and lies between 1 / M and 1, so that far
out in the tail, too, the result is known to about a percent.

R is estimated from few clusters, and chance correlations would understate the maximum. So they are shrunk,

    (1 - lambda) r_lm,    lambda = sum_{l != m} (1 - r_lm^2)^2 / nu_lm / sum_{l != m} r_lm^2,  at most 1

with the degrees of freedom nu_lm = min(nu_l, nu_m) from which r_lm is known: the sampling variance of the correlations
over their size. With many clusters nothing is shrunk.

Sources: Westfall & Young 1993, Hothorn, Bretz & Westfall 2008 (max-t); Schaefer & Strimmer 2005 (lambda); Naiman &
Wynn 2001 (probability of a union).

Score tests of a factorised model: whether theta differs within the cells that the model takes for one.

Cells f are finer than the model's own, e = e(f). The model says that theta is the same in all f of one e; against it
stands theta_f = theta_e exp(delta z_f). With p_jf = n_jf theta_e(f) / sum and C_j the clicks of unit j, at the estimate
of theta under the model,

    s_g = sum_{j in g} (c_j - C_j p_j),    H_g = sum_{j in g} C_j (diag(p_j) - p_j p_j'),    H = sum_g H_g
    z* = z - D (D'H D)^-1 D'H z            D the model's cells: that theta is estimated no longer matters
    a_g = z*'H_g z*,    A = sum_g a_g,     delta = sum_g z*'s_g / A
    V(delta) = (G - 1) / G sum_g u_g^2 / A^2,    u_g = (z*'s_g - a_g delta) / (1 - a_g / A)

u_g / A is what leaving cluster g out changes in delta. It is judged by Student's t with min(G*, G - 1) degrees of
freedom, G* = A^2 / sum_g a_g^2. Only the model itself is fitted, so that cells without any click say as much as others.

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
from posbias.core.standard_errors.cluster import ClusterErrors, cluster_scores
from posbias.core.theta.conditional import ConditionalFit, find_linkage, fit_conditional

LEVEL = 0.05
"""Probability of a false alarm, over all contrasts of a test together."""

POWER = 0.8
"""Share of logs that show a difference of `detectable` size."""

MOST_CONTRASTS = 256
"""Most contrasts of which correlations are used; with more, the p-value is M p."""

_NOTABLE = 0.01  # share of a contrast's variance from which on a cell's clusters limit the degrees of freedom
_ROUNDING = 1e-7  # a difference whose error is this small a share of the estimate's own is no difference
_SAME = 1e-6  # a contrast whose error is this small a share of the errors it is made of has none
_MOST_DEGREES = 1e9

_DRAWS = 4096
_SEED = 19_930_101
_ROUNDS = 3  # of the search for the p-value at a level; the third moves it by less than a percent
_NODES = 8  # p-values at which the probability is computed; between them it is interpolated
_SMALLEST, _LARGEST = 1e-300, 1 - 1e-12  # p-values whose normal scores are finite


Maximum = Callable[[float], float]
"""P(some of M numbers is as far out as a single one is with probability p) / (M p), at most 1, by p."""


def joint_p_values(p_values: Floats, relative_to_bound: Maximum) -> Floats:
    """The probability that some of M contrasts shows as much as each of them, if all are 0.

    Args:
        p_values: shape (M,), of each contrast by itself, in [0, 1]; M > 0.
        relative_to_bound: of the contrasts, by `largest_of`.

    Returns:
        Shape (M,), at least p_m, at most min(M p_m, 1).
    """
    n_contrasts = len(p_values)
    bound = np.minimum(n_contrasts * p_values, 1.0)
    score = np.log(np.clip(p_values, _SMALLEST, _LARGEST))
    nodes = np.linspace(float(score.min()), float(score.max()), _NODES)
    relative = np.array([relative_to_bound(float(p)) for p in np.exp(nodes)])
    joint = np.clip(n_contrasts * p_values * np.exp(np.interp(score, nodes, np.log(relative))), p_values, bound)
    order = np.argsort(p_values)
    joint[order] = np.maximum.accumulate(joint[order])  # draws leave it uneven by less than a percent
    return joint


def p_value_at(level: float, n_contrasts: int, relative_to_bound: Maximum) -> float:
    """The p-value of a single contrast at which the probability over all of them reaches a level in (0, 1)."""
    p_value = level / n_contrasts
    for _ in range(_ROUNDS):
        p_value = level / (n_contrasts * relative_to_bound(p_value))
    return p_value


def shrunk_correlation(correlation: Floats, degrees: Floats) -> Floats:
    """Correlations less what chance may have made of them, shape (M, M)."""
    apart = np.where(np.eye(len(correlation), dtype=np.bool_), 0.0, correlation)
    chance = (1 - apart**2) ** 2 / np.minimum.outer(degrees, degrees)
    size = (apart**2).sum()
    share = (chance.sum() - np.trace(chance)) / size if size > 0 else 1.0
    return np.eye(len(correlation)) + (1 - min(share, 1.0)) * apart


def largest_of(correlation: Floats | None, degrees: Floats, *, two_sided: bool) -> Maximum:
    """How the largest of M normal numbers is distributed; 1, Bonferroni's bound, where there is nothing to draw from.

    Args:
        correlation: shape (M, M), estimated; None where it is not known.
        degrees: shape (M,), the degrees of freedom that each was estimated with, >= 1.
        two_sided: whether falls count as rises do.
    """
    size = len(degrees)
    if correlation is None or not 1 < size <= MOST_CONTRASTS:
        return lambda _: 1.0
    shrunk = shrunk_correlation(correlation, degrees)
    rng = np.random.default_rng(_SEED)
    values, vectors = np.linalg.eigh(shrunk)
    free = rng.standard_normal((_DRAWS, size)) @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
    draw, given = np.arange(_DRAWS), np.arange(_DRAWS) % size  # the number that is beyond the bound, draw by draw
    alone, along = free[draw, given], shrunk[given]
    beyond = 1 - rng.random(_DRAWS)  # how far beyond, as a share of the tail, in (0, 1]

    def relative_to_bound(p_value: float) -> float:
        tail = p_value / 2 if two_sided else p_value
        bound = -scipy.special.ndtri(tail)
        shift = -scipy.special.ndtri(beyond * tail) - alone
        drawn = free + shift[:, np.newaxis] * along
        outside = (np.abs(drawn) if two_sided else drawn) >= bound
        outside[draw, given] = True
        return float((1 / np.count_nonzero(outside, axis=1)).mean())

    return relative_to_bound


def detectable(std_error: float, degrees: float, level: float = LEVEL) -> float:
    """The difference that four of five logs would show, (t_(1 - level / 2) + t_.8) sd, by a two-sided test."""
    return float(scipy.special.stdtrit(degrees, [1 - level / 2, POWER]).sum()) * std_error


@dataclass(frozen=True)
class ContrastTest:
    """The verdict on several contrasts, and the one that decides it."""

    statistic: float  # D / sd of the deciding contrast, its absolute value in a two-sided test; NaN without contrasts
    degrees: float  # its degrees of freedom, >= 1
    p_value: float  # the probability that any contrast shows as much if all are 0
    n_contrasts: int  # M, contrasts with a standard error
    largest: int  # index of the deciding contrast among those given, -1 without contrasts
    difference: float  # its D, a difference of log propensities
    std_error: float
    p_values: Floats  # shape (M',), the same for each contrast that was given; NaN where it was left out
    detectable: Floats  # shape (M',), how large each must be for four of five such logs to show it; NaN where left out

    @property
    def rejected(self) -> bool:
        """Whether some contrast differs from 0 at the level .05."""
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
        difference: shape (M,), D.
        std_error: shape (M,); a contrast whose error is 0 or NaN is left out.
        degrees: shape (M,), degrees of freedom of the error: the effective clusters; at least 1 is taken.
        correlation: shape (M, M), of the errors; None where it is not known.
        rises_only: whether a contrast below 0 does not count against the hypothesis.
    """
    usable = np.flatnonzero(np.isfinite(difference) & (std_error > 0))
    p_values, least = np.full((2, len(difference)), np.nan)
    if not len(usable):
        return ContrastTest(np.nan, np.nan, 1.0, 0, -1, np.nan, np.nan, p_values, least)
    ratio = difference[usable] / std_error[usable]
    statistic = ratio if rises_only else np.abs(ratio)
    known_degrees = np.maximum(np.nan_to_num(degrees[usable], nan=1.0), 1.0)
    tail = scipy.special.stdtr(known_degrees, -statistic)
    alone = np.minimum((1 if rises_only else 2) * tail, 1.0)
    of_usable = None if correlation is None else correlation[np.ix_(usable, usable)]
    maximum = largest_of(of_usable, known_degrees, two_sided=not rises_only)
    p_values[usable] = joint_p_values(alone, maximum)
    rejecting = p_value_at(LEVEL, len(usable), maximum)
    level = 2 * rejecting if rises_only else rejecting
    pairs = zip(std_error[usable].tolist(), known_degrees.tolist(), strict=True)
    least[usable] = [detectable(error, nu, level) for error, nu in pairs]
    deciding = np.lexsort((-statistic, tail))[0]  # far out, all tails are 0
    largest = int(usable[deciding])
    return ContrastTest(
        statistic=float(statistic[deciding]),
        degrees=float(known_degrees[deciding]),
        p_value=float(p_values[largest]),
        n_contrasts=len(usable),
        largest=largest,
        difference=float(difference[largest]),
        std_error=float(std_error[largest]),
        p_values=p_values,
        detectable=least,
    )


@dataclass(frozen=True)
class Differences:
    """Estimates and a joint test of M contrasts."""

    difference: Floats  # shape (M,), of log propensities; NaN where it is not known
    std_error: Floats  # shape (M,); NaN where it is not known, 0 where both sides are the same function of the counts
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
        contrasts: shape (M, K), L. A row that involves a cell without an estimate or without an error is not tested,
            and neither is one that involves no cell but references.
        log_theta: shape (K,), b; NaN where not known.
        covariance: shape (K, K), V; 0 at references, NaN beside cells without an error.
        degrees: shape (K,), degrees of freedom of the errors; NaN where there is none.
        correlated: whether the covariances in V are known; without them the test is Bonferroni's.
        rises_only: as for `contrast_test`.
    """
    variance = np.diag(covariance)
    involved = np.nan_to_num(contrasts, nan=1.0) != 0
    known = ~(involved & ~np.isfinite(log_theta)).any(axis=1) & np.isfinite(contrasts).all(axis=1)
    sure = known & ~(involved & ~np.isfinite(variance)).any(axis=1)
    rows = np.nan_to_num(contrasts)
    between = rows @ np.nan_to_num(covariance) @ rows.T
    parts = rows**2 * np.nan_to_num(variance)
    notable = parts > _NOTABLE * parts.sum(axis=1, keepdims=True)
    fewest = np.where(notable, np.nan_to_num(degrees, nan=1.0), np.inf).min(axis=1, initial=np.inf)
    std_error = np.sqrt(np.maximum(np.diag(between), 0.0))
    std_error[std_error < _SAME * np.sqrt(parts.sum(axis=1))] = 0.0
    difference = np.where(known, rows @ np.nan_to_num(log_theta), np.nan)
    std_error, fewest = np.where(sure, std_error, np.nan), np.clip(fewest, 1.0, _MOST_DEGREES)
    correlation = correlation_of(between) if correlated else None
    test = contrast_test(difference, std_error, fewest, correlation=correlation, rises_only=rises_only)
    return Differences(difference, std_error, fewest, test)


def linear_contrast_test(
    contrasts: Floats, fit: ConditionalFit, errors: ClusterErrors, *, rises_only: bool = False
) -> ContrastTest:
    """Test contrasts L log theta of one estimate with clustered errors, as `linear_contrasts` does."""
    covariance = covariance_of_cells(fit, errors)
    return linear_contrasts(contrasts, fit.log_theta, covariance, errors.degrees, rises_only=rises_only).test


def covariance_of_cells(fit: ConditionalFit, errors: ClusterErrors) -> Floats:
    """Covariance of log theta, shape (K, K): 0 at the references, NaN beside cells without an error or an estimate."""
    covariance = np.zeros((len(fit.log_theta),) * 2)
    unknown = np.isnan(fit.log_theta)
    covariance[np.ix_(fit.free_cells, fit.free_cells)] = errors.covariance
    covariance[unknown, :] = covariance[:, unknown] = np.nan
    without = np.isnan(np.diag(covariance))
    covariance[without, :] = covariance[:, without] = np.nan
    return covariance


def pairwise_contrasts(minus: Sequence[int] | Integers, plus: Sequence[int] | Integers, n_cells: int) -> Floats:
    """Contrasts of one cell minus another one, a row each, shape (M, K)."""
    contrasts, row = np.zeros((len(plus), n_cells)), np.arange(len(plus))
    contrasts[row, plus], contrasts[row, minus] = 1.0, -1.0
    return contrasts


def correlation_of(covariance: Floats) -> Floats:
    """The correlations in a covariance, shape (M, M); 0 beside what has no error, or none that is a number."""
    variance = np.diag(covariance)
    known = (variance > 0) & np.isfinite(variance)
    both = np.outer(known, known) & np.isfinite(covariance)
    sd = np.sqrt(np.where(known, variance, 1.0))
    correlation = np.clip(np.where(both, covariance, 0.0) / np.outer(sd, sd), -1.0, 1.0)
    np.fill_diagonal(correlation, 1.0)
    return correlation


@dataclass(frozen=True)
class ScoredEstimate:
    """An estimate of the K log propensities, and what each cluster did to it."""

    log_theta: Floats  # shape (K,), NaN where there is no estimate
    std_error: Floats  # shape (K,), with the correction for few clusters; NaN where there is none
    degrees: Floats  # shape (K,), its degrees of freedom; NaN where there is no error
    clusters: Integers  # shape (G,), the clusters' numbers, ascending
    scores: linalg.Sparse  # shape (G, S), the score of each cluster
    response: Floats  # shape (K, S): without cluster g the estimate loses response @ scores[g], to first order


@dataclass(frozen=True)
class StrataEstimate:
    """A conditional fit with what it was fitted to."""

    strata: Strata
    fit: ConditionalFit
    errors: ClusterErrors  # by the strata's clusters unless others were requested

    def scored(self) -> ScoredEstimate:
        """The estimate with its scores, s_g = sum_{j in g} (c_j - C_j p_j), and response H^-1."""
        fit, errors = self.fit, self.errors
        scores = cluster_scores(fit, self.strata)
        response = np.zeros((len(fit.log_theta), len(scores.linked.cells)))
        response[np.ix_(fit.free_cells, scores.linked.free)] = fit.inverse
        return ScoredEstimate(fit.log_theta, errors.std_error, errors.degrees, scores.numbers, scores.scores, response)


def difference_errors(first: ScoredEstimate, second: ScoredEstimate) -> tuple[Floats, Floats | None]:
    """Errors of first - second, cell by cell, from the same clusters.

    Returns:
        The standard error, shape (K,), NaN where one of the two has none or clusters agree so well that their scores
        vanish, 0 where the two estimates are the same function of the log; and the correlations, shape (K, K), None
        with more cells than tests make use of correlations of.
    """
    _, of_first, of_second = np.intersect1d(first.clusters, second.clusters, assume_unique=True, return_indices=True)
    moved = [  # A1 s1 s1', A2 s2 s2' and A1 s1 s2', summed over the clusters
        first.response @ linalg.gram(first.scores),
        second.response @ linalg.gram(second.scores),
        first.response @ linalg.gram(first.scores[of_first], second.scores[of_second]),
    ]
    responses = first.response, second.response, second.response
    variances = [np.einsum("ks,ks->k", part, response) for part, response in zip(moved, responses, strict=True)]
    variance, correlation = variances[0] + variances[1] - 2 * variances[2], None
    if len(first.log_theta) <= MOST_CONTRASTS:
        of_first, of_second, between = (part @ response.T for part, response in zip(moved, responses, strict=True))
        covariance = of_first + of_second - (between + between.T)
        variance, correlation = np.diag(covariance), correlation_of(covariance)
    own = [np.sqrt(np.maximum(of_own, 0.0)) for of_own in variances[:2]]  # CR0, without a correction for few clusters
    with np.errstate(invalid="ignore", divide="ignore"):  # a reference has no error to divide by
        few_clusters = np.fmax(np.fmax(first.std_error / own[0], second.std_error / own[1]), 1.0)
    error = np.sqrt(np.maximum(variance, 0.0))
    error[error < _ROUNDING * np.maximum(*own)] = 0.0
    agree = (own[0] < _ROUNDING * first.std_error) | (own[1] < _ROUNDING * second.std_error)
    usable = np.isfinite(first.std_error + second.std_error) & ~agree
    return np.where(usable, few_clusters * error, np.nan), correlation


def difference_test(first: ScoredEstimate, second: ScoredEstimate) -> ContrastTest:
    """Test that two estimates from the same clusters, relative to the same references, agree in every cell."""
    std_error, correlation = difference_errors(first, second)
    degrees = np.minimum(first.degrees, second.degrees)
    return contrast_test(first.log_theta - second.log_theta, std_error, degrees, correlation=correlation)


_NOTHING = 1e-12  # share of the information on a direction that is rounding
_PRECISION = 1e-8  # of theta: it need not be more exact than what is judged
_AGREEMENT = 1e-10  # a standard error that is rounding


@dataclass(frozen=True)
class ScoreTest:
    """The result of a score test, as the manifest of a fit holds it."""

    statistic: float  # |delta| / its standard error
    degrees: float  # of freedom of the error
    difference_of_logs: float  # delta, one step from 0 towards it, so that a large one is only rough
    std_error: float  # of delta
    clusters: int  # G, those that say something about delta
    p_value: float  # of delta = 0, two-sided
    p_value_adjusted: float  # the same, adjusted for the tests of its family
    rejected: bool  # whether the adjusted p-value is below .05
    observed_clicks: float = 0.0  # where z > 0, among those that say something about it; 0 in earlier versions
    expected_clicks: float = 0.0  # by the model, given the clicks on each unit; 0 in earlier versions
    largest_missed_error: float | None = None  # of log theta in any cell, that one such log in five would not show


def score_test(strata: Strata, cell: Integers, direction: Floats, group: Integers) -> ScoreTest | None:
    """Test a model against one direction.

    Args:
        strata: counts per unit and fine cell, and the clusters of the units, each unit once.
        cell: shape (F,), the model's cell e(f) of each fine cell, ascending.
        direction: shape (F,), z.
        group: shape (K,), the context of each cell of the model; cells of one context are compared with each other.

    Returns:
        The test; None where the log says nothing about the direction.
    """
    try:
        counts = strata.signatures.merge_cells(cell, len(group))
        fit = fit_conditional(counts, find_linkage(counts, group), tolerance=_PRECISION)
    except (IdentifiabilityError, np.linalg.LinAlgError):
        return None
    inside = replace(strata, signatures=strata.signatures.only_cells(fit.linkage.identified[cell]))
    return units_test(inside, direction, cell, fit)


def units_test(
    strata: Strata, direction: Floats, cell: Integers | None = None, fit: ConditionalFit | None = None
) -> ScoreTest | None:
    """Score test where each unit lies in one cell of the model, so that its theta drops out: there is none to fit.

    Args:
        strata: counts per unit and fine cell, and the clusters of the units, each unit once.
        direction: shape (F,), z; z* = z without a fit.
        cell: shape (F,), the model's cells e(f), if units lie in several.
        fit: of these.
    """
    units = np.flatnonzero(strata.signatures.links)
    table, members = strata.signatures.take(units), strata.members.among(units).by_cluster()
    share = table.impressions.copy()
    if cell is not None and fit is not None:
        share *= np.exp(np.nan_to_num(fit.log_theta))[cell[table.cell]]
    share /= table.spread(table.sum_by_unit(share))
    expected = table.spread(table.sum_by_unit(table.clicks)) * share

    def centred(values: Floats) -> Floats:
        """Values of the fine cells, by entry, less their mean over p_j."""
        of_entry = values[table.cell]
        return of_entry - table.spread(table.sum_by_unit(share * of_entry))

    along = direction
    if cell is not None and fit is not None:
        explained = np.zeros(len(fit.log_theta))
        of_cell = sum_by_number(cell[table.cell], expected * centred(direction), len(explained))
        explained[fit.free_cells] = linalg.solve(fit.information, of_cell[fit.free_cells])
        along = direction - explained[cell]
    distance, number = centred(along), members.cluster.astype(np.int64)
    scores, information = (
        sum_by_number(number, table.sum_by_unit(of_entry)[members.unit], int(number.max(initial=-1)) + 1)
        for of_entry in (table.clicks * distance, expected * distance**2)
    )
    delta, std_error, degrees, n_clusters = ratio_of_sums(scores, information)
    if n_clusters <= 1 or std_error <= _AGREEMENT:
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


def ratio_of_sums(above: Floats, below: Floats) -> tuple[float, float, float, int]:
    """The ratio of two sums over clusters, both of shape (G,), and how far it moves when each cluster is left out.

    Returns:
        The ratio, its standard error, the degrees of freedom of that, and how many clusters count; one has no error.
    """
    total = float(below.sum())
    number = int((below > _NOTHING * total).sum())
    if not number:
        return np.nan, np.nan, np.nan, 0
    ratio, share = float(above.sum()) / total, below / total
    lost = (above / total - share * ratio) / np.maximum(1 - share, _NOTHING)
    std_error = float(np.sqrt((number - 1) / number * (lost**2).sum()))
    return ratio, std_error, max(min(1 / float((share**2).sum()), number - 1.0), 1.0), number
