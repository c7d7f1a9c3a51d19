"""Standard errors of the conditional estimate: CR3 sandwich over clusters, with effective degrees of freedom.

A cluster (a query) g has the score s_g and the information H_g = sum_{j in g} C_j (diag(p_j) - p_j p_j'); H = sum H_g.

    d_g  = (H - H_g)^-1 s_g         what leaving the cluster out would change (H^-1 s_g where tr(H^-1 H_g) < .01)
    a_gk = [H^-1 H_g H^-1]_kk,      G*_k = (sum_g a_gk)^2 / sum_g a_gk^2
    V_kl = sqrt((G_k - 1)/G_k (G_l - 1)/G_l) sum_g d_gk d_gl,     G_k = number of clusters with a_gk > 0
    log theta_k +- t_{.975, nu_k} sqrt(V_kk),     nu_k = max(min(G*_k, G_k - 1), 1)

Clusters that agree to the last click (two with the same counts do) say nothing about how far they could differ: a cell
whose V_kk is 0 gets no interval, instead of one of width 0.

CR3 is the jackknife's estimate (Bell & McCaffrey 2002; MacKinnon, Nielsen & Webb 2023); G* after Carter, Schnepel &
Steigerwald (2017): under Zipf's law thousands of queries can be worth a few dozen. The scores of G clusters sum to
zero, so they never hold more than G - 1 independent numbers.

Only clusters that hold a unit with a click and two identified cells count.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers, Numbers
from posbias.core.arrays.linalg import Sparse, by_unit_and_cell, counted, sparse_product
from posbias.core.arrays.members import Members
from posbias.core.arrays.threads import at_once
from posbias.core.arrays.unit_diagonal import MANY
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors.column import TwoWaySums
from posbias.core.standard_errors.intervals import Intervals, upper_end
from posbias.core.standard_errors.leave_one_out import AGREEMENT, ClusterScores, ClusterSums, LeaveOneOut, t_quantile
from posbias.core.theta.conditional import ConditionalFit
from posbias.core.theta.linked_counts import LinkedCounts, linked_counts

_BLOCK = 1 << 16  # members that are worked on at a time

ONE_CLUSTER = "one query alone identifies it"
AGREEING = "its queries agree to the last click, so that no error can be read from them"


@dataclass(frozen=True)
class ClusterErrors(Intervals):
    """Standard errors and intervals by cluster."""

    degrees: Floats  # shape (K,), nu, degrees of freedom of the interval; NaN where there is no G*
    n_clusters: int  # G, clusters that hold a unit with a click and two identified cells
    covariance: Floats  # shape (F, F), V on the fit's free cells; NaN beside cells without interval


def cluster_errors(fit: ConditionalFit, strata: Strata) -> ClusterErrors:
    """Standard errors clustered by whatever the members are grouped by, as a rule queries.

    Args:
        fit: the estimate from `strata`.
        strata: the counts, and the clusters of their members; a unit's multiplicity is the number of its members.
    """
    return errors_from_sums(fit.log_theta, fit.free_cells, sum_clusters(fit, strata))


def pair_errors(fit: ConditionalFit, table: CountTable) -> ClusterErrors:
    """Standard errors clustered by member (pair or stratum): those of `cluster_errors` with each member a cluster.

    Equal members have equal scores, so that the signatures and their multiplicities are enough. Too small where
    something is shared within a query.

    Args:
        fit: the estimate from `table`.
        table: counts per unit; a unit's multiplicity is the number of its members.
    """
    linked = linked_counts(table, fit.linkage)
    each = np.arange(len(linked.units))
    members = counted(each, each, (len(each), len(each)))
    scores = scores_of_members(fit, linked, members, linked.table.multiplicity)
    return errors_from_sums(fit.log_theta, fit.free_cells, LeaveOneOut(fit, scores).sums())


def sum_clusters(fit: ConditionalFit, strata: Strata) -> ClusterSums:
    """The sums over the clusters of some members: all members of these clusters, not necessarily all clusters.

    Args: as for `cluster_errors`.
    """
    members = strata.members
    blocks = list(_blocks_of_clusters(members.cluster))
    if len(blocks) == 1 or len(fit.free_cells) >= MANY:  # each block has a dense matrix, and three products
        return LeaveOneOut(fit, cluster_scores(fit, strata)).sums()

    def sums_of(block: slice) -> ClusterSums:
        units, unit = np.unique(members.unit[block], return_inverse=True)
        part = Strata(strata.signatures.take(units), Members(unit, members.cluster[block]))
        return LeaveOneOut(fit, cluster_scores(fit, part), threads=1).sums()

    return reduce(add, at_once(sums_of, blocks))


def _blocks_of_clusters(cluster_of_member: Numbers) -> Iterator[slice]:
    """Runs of members of whole clusters; one run of all where the members are not in the order of their clusters."""
    change = np.flatnonzero(np.diff(cluster_of_member)) + 1
    ordered = bool((cluster_of_member[1:] >= cluster_of_member[:-1]).all())
    first, n_members = 0, len(cluster_of_member)
    while ordered and n_members - first > _BLOCK:
        later = change[np.searchsorted(change, first + _BLOCK) :]
        last = int(later[0]) if len(later) else n_members
        yield slice(first, last)
        first = last
    if first < n_members or not n_members:
        yield slice(first, n_members)


def cluster_scores(fit: ConditionalFit, strata: Strata) -> ClusterScores:
    """Score and information of each cluster that counts, in ascending order of the clusters' numbers.

    Args: as for `cluster_errors`.
    """
    linked = linked_counts(strata.signatures, fit.linkage)
    clusters, members = strata.members.among(linked.units).counted(len(linked.units))
    return scores_of_members(fit, linked, members, np.ones(len(clusters)))


def scores_of_members(fit: ConditionalFit, linked: LinkedCounts, members: Sparse, copies: Floats) -> ClusterScores:
    """Score and information of clusters of whole units; row g of `members` counts cluster g's units."""
    table = linked.table
    shares = linked.shares(fit.log_theta[linked.cells])
    unit_scores = by_unit_and_cell(table, table.clicks - table.spread(linked.unit_clicks) * shares)
    scores = sparse_product(members, unit_scores)
    members.data *= linked.unit_clicks[members.indices]
    return ClusterScores(linked, shares, scores, members, copies)


def errors_from_sums(
    log_theta: Floats, free_cells: Integers, sums: ClusterSums | TwoWaySums, quantile: Floats | None = None
) -> ClusterErrors:
    """Standard errors and intervals from the sums over all clusters.

    A cell that one cluster alone identifies gets no interval. The others do: without that cluster, the cells that it
    alone identifies fall apart from the rest, and leaving it out is well defined for the rest. Nor does a cell on
    which the clusters agree to the last click.

    Args:
        log_theta: shape (K,), the estimate; NaN where not identified.
        free_cells: shape (F,), the identified cells other than the references.
        sums: over all clusters.
        quantile: shape (F,), half the width of the interval of log theta, in standard errors; by default t_{.975, nu}.
    """
    covariance = sums.covariance
    variance = np.maximum(np.diag(covariance), 0.0)
    without = sums.alone | (variance <= AGREEMENT**2)
    covariance[without, :] = np.nan
    covariance[:, without] = np.nan
    center = np.where(without, np.nan, log_theta[free_cells])
    margin = (t_quantile(sums.degrees) if quantile is None else quantile) * np.sqrt(variance)
    why = np.where(sums.alone, ONE_CLUSTER, AGREEING)
    reason = dict(zip(free_cells[without].tolist(), map(str, why[without]), strict=True))

    def on_all_cells(of_free: Floats, of_reference: float) -> Floats:
        values = np.where(np.isnan(log_theta), np.nan, of_reference)
        values[free_cells] = of_free
        return values

    return ClusterErrors(
        std_error=on_all_cells(np.sqrt(np.diag(covariance)), 0.0),
        low=on_all_cells(np.exp(center - margin), 1.0),
        high=on_all_cells(upper_end(center + margin), 1.0),
        effective_clusters=on_all_cells(sums.effective_clusters, np.nan),
        degrees=on_all_cells(sums.degrees, np.nan),
        n_clusters=sums.n_clusters,
        reason=tuple(reason.get(cell) for cell in range(len(log_theta))),
        covariance=covariance,
    )
