"""Bootstrap over clusters from the compressed statistics alone: a studentised wild bootstrap of the scores.

Each replicate gives every cluster g (a query) an independent sign w_g = +1 or -1 and lets it move the estimate by its
adjusted score x_g = H (H - H_g)^-1 s_g (`leave_one_out`); the scores are then taken again at the moved estimate, and
their clustered variance (CR3, as for the estimate itself) studentises the move:

    delta = H^-1 sum_g w_g x_g,    d*_g = (H - H_g)^-1 (w_g x_g - H_g delta),    t*_k = delta_k / sqrt(V*_kk)
    V*_kk = (G_k - 1)/G_k sum_g d*_gk^2,    interval  log theta_k +- q_k sqrt(V_kk)

with q_k the .95 quantile of |t*_k|, but never less than the t_{.975, nu_k} of `cluster_errors`, nor more than t with
one degree of freedom. Where a cluster has hardly any leverage, x_g = s_g and d*_g = w_g H^-1 x_g. No replicate is
refitted, so none can lose the link of a cell.

Sources: Kline & Santos 2012 (score bootstrap); Cameron, Gelbach & Miller 2008 (why studentised); MacKinnon, Nielsen &
Webb 2023 (scores adjusted by CR3). Without restricting the scores to a hypothesis, such quantiles are somewhat too
small where few clusters carry most of the weight (MacKinnon & Webb 2017), hence the lower bound: this bootstrap can
widen the sandwich's interval, and never narrows it. Its standard error is the sandwich's.
"""

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.linalg import gram
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors.cluster import ClusterErrors, cluster_scores, errors_from_sums
from posbias.core.standard_errors.leave_one_out import CONFIDENCE, ClusterSums, LeaveOneOut, t_quantile
from posbias.core.theta.conditional import ConditionalFit

FEWEST_REPLICATES = 19
"""Below it, the quantile .95 lies outside the replicates."""

_BLOCK = 4_000_000  # signs at a time, 32 MB


def bootstrap(fit: ConditionalFit, strata: Strata, replicates: int, seed: int) -> ClusterErrors:
    """Bootstrap intervals beside the sandwich's standard errors.

    Args:
        fit: the estimate from `strata`.
        strata: the counts. The ascending order of the clusters, with the seed, decides their signs.
        replicates: B >= 19; with 1,000 the width of an interval is known to about 3 %.
        seed: of the random signs, >= 0.

    Raises:
        ValueError: there are fewer than 19 replicates.
    """
    if replicates < FEWEST_REPLICATES:
        raise ValueError(f"A bootstrap interval needs at least {FEWEST_REPLICATES} replicates, not {replicates}.")
    left_out = LeaveOneOut(fit, cluster_scores(fit, strata))
    sums = left_out.sums()
    statistic = _statistics(left_out, sums, np.random.default_rng(seed), replicates)
    widest = t_quantile(np.ones(1))
    quantile = np.quantile(np.minimum(statistic, widest), CONFIDENCE, axis=1, method="weibull")
    quantile = np.maximum(quantile, t_quantile(sums.degrees))
    return errors_from_sums(fit.log_theta, fit.free_cells, sums, quantile)


def _statistics(left_out: LeaveOneOut, sums: ClusterSums, random: np.random.Generator, number: int) -> Floats:
    """|t*| of each free cell and replicate, shape (F, B)."""
    inverse, high = left_out.inverse, left_out.high
    low = left_out.clusters.scores[left_out.low]
    adjusted, _ = left_out.adjusted_scores(high)
    signs = _signs(random, len(high), number)
    total = adjusted.T @ signs
    n_rows = max(1, _BLOCK // number)
    for first in range(0, len(left_out.low), n_rows):
        rows = low[first : first + n_rows]
        total += (rows.T @ _signs(random, len(rows.indptr) - 1, number))[left_out.free]
    moved = inverse @ total
    of_low = inverse @ gram(low)[np.ix_(left_out.free, left_out.free)] @ inverse
    variance = np.repeat(np.diag(of_low)[:, np.newaxis], number, axis=1)
    for score, sign, cluster in zip(adjusted, signs, high.tolist(), strict=True):
        without = left_out.without(cluster)
        again = np.outer(score, sign)
        again[without.cells] -= without.information @ moved[without.cells]
        variance += (inverse @ without.adjust(again)) ** 2
    spread = sums.correction[:, np.newaxis] * np.sqrt(variance)
    # Two clusters of opposite sign agree perfectly after the move: nothing is left to studentise by.
    return np.divide(np.abs(moved), spread, out=np.full_like(moved, np.inf), where=spread > 0)


def _signs(random: np.random.Generator, n_rows: int, n_columns: int) -> Floats:
    return np.where(random.random((n_rows, n_columns)) < 0.5, -1.0, 1.0)  # noqa: PLR2004 - a fair coin
