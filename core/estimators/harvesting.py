"""Intervention harvesting: two estimates of theta from the click rates of documents shown in several cells.

The interventional set S_ab holds the units that were shown in both cells a and b; its clicks are A_ab, the sum of the
units' click rates in a, and A_ba, with E[A_ab] / E[A_ba] = theta_a / theta_b (`allpairs`).

AllPairs fits all sets together. AdjacentChain takes the sets of neighbours only and multiplies their ratios,

    log theta_e - log theta_p = log A_ep - log A_pe,    p the neighbour of e on the side of the reference,

so that errors add up along the chain, and a set without clicks in one of its cells breaks it. Its standard errors are
the jackknife's over clusters (queries), V = (G - 1)/G sum_g d_g d_g' with d_g the exact change when g is left out:

    d_g,e = d_g,p + log(1 - A_g,ep / A_ep) - log(1 - A_g,pe / A_pe)

G* from a_gk, cluster g's share in the variance of log theta_k if rates varied like Poisson counts, and intervals by the
rule of `cluster_errors`. A cluster that holds all clicks of a link in one of its
cells identifies what lies beyond alone.

Source: Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019, "Estimating Position Bias without Intrusive Interventions".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_by_number
from posbias.core.arrays.linalg import by_unit_and_cell, counted, sparse_product
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.estimators.estimate import Estimate, EstimationOptions, relative_to_largest
from posbias.core.standard_errors.allpairs import (
    ALL_CLICKS,
    NOTHING,
    blocks_of_clusters,
    no_clusters,
    sum_clusters,
    sums_of,
)
from posbias.core.standard_errors.cluster import ClusterErrors, errors_from_sums
from posbias.core.standard_errors.leave_one_out import ClusterSums
from posbias.core.theta.allpairs import fit_allpairs
from posbias.core.theta.linkage import Linkage

NOT_ON_A_CHAIN = "it lies on no chain of neighbours from the reference"
BROKEN = "the chain breaks at {here}: pairs shown there and at {there} were not clicked in both"


@dataclass(frozen=True)
class HarvestedPropensities:
    """An estimate by intervention harvesting, with errors clustered by query."""

    log_theta: Floats  # shape (K,), relative to the cell's reference; 0 there, NaN where not identified
    errors: ClusterErrors  # and why a cell has no number or no interval
    converged: bool = True
    iterations: int = 0  # Newton steps taken

    @property
    def theta(self) -> Floats:
        """Propensity relative to the reference, shape (K,), > 0 and possibly above 1; NaN where not identified."""
        return np.exp(self.log_theta)

    def estimate(self, method: str, linkage: Linkage, options: EstimationOptions) -> Estimate:
        """The common form of an estimate; cells without a number are not identified by it."""
        linkage = replace(linkage, identified=np.isfinite(self.log_theta))
        return Estimate(
            method=method,
            linkage=linkage,
            propensity=self.theta,
            examination=relative_to_largest(self.theta, linkage),
            intervals=self.errors,
            converged=self.converged,
            iterations=self.iterations,
            errors_by=options.cluster or "query",
            n_clusters=self.errors.n_clusters,
        )


def harvest_allpairs(
    strata: Strata, linkage: Linkage, on_iteration: Callable[[int, float], None] | None = None
) -> HarvestedPropensities:
    """AllPairs on the identified cells: the optimum of l, with its standard errors (`allpairs`, `allpairs_errors`).

    Args:
        strata: the counts. Those without a click count in the sets.
        linkage: which cells are identified, of the same counts.
        on_iteration: called after each step with its number and its largest change.
    """
    fit = fit_allpairs(strata.signatures, linkage, on_iteration=on_iteration)
    log_theta = np.full(strata.signatures.n_cells, np.nan)
    log_theta[fit.linked.cells] = fit.log_theta
    free = fit.linked.cells[fit.linked.free]
    errors = _errors(log_theta, free, sum_clusters(fit, strata.members), linkage.reason)
    return HarvestedPropensities(log_theta, errors, fit.converged, fit.iterations)


def harvest_adjacent_chain(
    strata: Strata, linkage: Linkage, chains: Sequence[Integers], names: Sequence[str]
) -> HarvestedPropensities:
    """AdjacentChain: the product of the ratios between neighbours, from the reference on, with the jackknife's errors.

    Args:
        strata: the counts.
        linkage: the reference of each cell.
        chains: one array of cells per chain (a context), neighbours in order: each with its reference, no cell twice.
            A cell on no such chain has no number.
        names: K names of the cells, for the reasons; e.g. `position 4`.
    """
    paths = [path for chain in chains for path in _outward(chain, linkage)]
    links = _find_links(strata.signatures, paths)
    reason = _missing(paths, links, linkage, names)
    free = np.setdiff1d(np.flatnonzero([why is None for why in reason]), linkage.references)
    route = _routes(paths, free)
    log_theta = np.full(strata.signatures.n_cells, np.nan)
    log_theta[linkage.references] = 0.0
    log_theta[free] = route @ np.log(links.head_clicks[free] / links.tail_clicks[free])
    errors = _errors(log_theta, free, _sum_jackknife(strata, links, free, route), reason)
    return HarvestedPropensities(log_theta, errors)


def _missing(
    paths: Sequence[Integers], links: "_Links", linkage: Linkage, names: Sequence[str]
) -> tuple[str | None, ...]:
    """Why a cell has no number, else None: K reasons."""
    reason: list[str | None] = [unlinked or NOT_ON_A_CHAIN for unlinked in linkage.reason]
    for reference in linkage.references.tolist():
        reason[reference] = None
    for path in paths:
        n_reached = 1 + int(links.intact[path[1:]].cumprod().sum())
        for cell in path[:n_reached].tolist():
            reason[cell] = None
        for cell in path[n_reached:].tolist():
            here, there = names[int(path[n_reached])], names[int(path[n_reached - 1])]
            reason[cell] = linkage.reason[cell] or BROKEN.format(here=here, there=there)
    return tuple(reason)


def _errors(log_theta: Floats, free_cells: Integers, sums: ClusterSums, missing: Sequence[str | None]) -> ClusterErrors:
    """The intervals that the sums give, by the rule of `cluster_errors`, and why a cell has no number or interval."""
    errors = errors_from_sums(log_theta, free_cells, sums)
    return replace(
        errors, reason=tuple(none or no_error for none, no_error in zip(missing, errors.reason, strict=True))
    )


def _outward(chain: Integers, linkage: Linkage) -> list[Integers]:
    """The two paths that lead from a chain's reference to its ends, each with the reference; none without it.

    e.g. [2, 5, 7, 8] with the reference 5 -> [5, 7, 8] and [5, 2]
    """
    at = np.flatnonzero(np.isin(chain, linkage.references) & (linkage.reference_of[chain] == chain))
    return [chain[at[0] :], chain[: at[0] + 1][::-1]] if len(at) else []


@dataclass(frozen=True)
class _Links:
    """The links of chains: each cell but the reference with its neighbour on the side of the reference, its tail."""

    head_clicks: Floats  # shape (K,), A_ep of the link whose head is cell e; 0 for a cell that is none
    tail_clicks: Floats  # shape (K,), A_pe
    heads: Integers  # shape (L,), entries of the table in a head whose unit was also shown in its tail
    tails: Integers  # shape (L,), those units' entries in the tail
    rate: Floats  # shape (R,), click rate of each entry

    @property
    def intact(self) -> Flags:
        """Whether both cells of the link have clicks, shape (K,)."""
        return (self.head_clicks > 0) & (self.tail_clicks > 0)


def _find_links(table: CountTable, paths: Sequence[Integers]) -> _Links:
    tail_of = np.full(table.n_cells, -1)
    for path in paths:
        tail_of[path[1:]] = path[:-1]
    heads = np.flatnonzero(tail_of[table.cell] >= 0)
    unit = table.unit_of_entry
    key = table.entry_keys
    wanted = unit[heads] * table.n_cells + tail_of[table.cell[heads]]
    tails = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    shown = key[tails] == wanted
    heads, tails = heads[shown], tails[shown]
    rate = table.clicks / table.impressions
    weighted = rate * table.spread(table.multiplicity)
    return _Links(
        head_clicks=sum_by_number(table.cell[heads], weighted[heads], table.n_cells),
        tail_clicks=sum_by_number(table.cell[heads], weighted[tails], table.n_cells),
        heads=heads,
        tails=tails,
        rate=rate,
    )


def _routes(paths: Sequence[Integers], free: Integers) -> Floats:
    """1 where a link (column, by its head) lies on the way from the reference to a cell (row), else 0; shape (F, F)."""
    route = np.zeros((len(free), len(free)))
    for path in paths:
        way = path[np.isin(path, free)]
        number = np.searchsorted(free, way)
        route[np.ix_(number, number)] = np.tri(len(number))
    return route


def _sum_jackknife(strata: Strata, links: _Links, free: Integers, route: Floats) -> ClusterSums:
    """What leaving out each cluster changes, exactly, and its share in the variance, in blocks of clusters."""
    table = strata.signatures
    kept = np.isin(table.cell[links.heads], free)
    links = replace(links, heads=links.heads[kept], tails=links.tails[kept])
    shares = _shares_and_variance(table, links)
    clicked = np.flatnonzero(table.sum_by_unit(shares[0] + shares[1]) > 0)
    linked = strata.members.among(clicked).by_cluster()
    number, cluster = linked.unit, linked.cluster
    by_unit = [by_unit_and_cell(table, share) for share in shares]
    copies = table.spread(table.multiplicity)
    total = route @ table.sum_by_cell(copies * shares[2])[free]
    sums = no_clusters(len(free))
    for block in blocks_of_clusters(cluster, np.full(len(cluster), table.n_cells)):
        own = cluster[block] - cluster[block.start]
        members = counted(own, clicked[number[block]], (int(own[-1]) + 1, table.n_units))
        head, tail, variance = (sparse_product(members, share).toarray()[:, free] for share in by_unit)
        alone = route @ (np.maximum(head, tail) >= ALL_CLICKS).any(axis=0) > 0
        head, tail = np.minimum(head, ALL_CLICKS), np.minimum(tail, ALL_CLICKS)
        change = (np.log1p(-head) - np.log1p(-tail)) @ route.T
        influence = variance @ route.T
        influence[influence <= NOTHING * total] = 0.0
        sums = sums + sums_of(change, influence, alone)
    return sums


def _shares_and_variance(table: CountTable, links: _Links) -> tuple[Floats, Floats, Floats]:
    """At each entry in a head, shape (R,): its unit's share of the link's clicks there, of those in the tail, and v.

    v is what each link adds to the variance of log theta. A rate r_p on the way enters log theta by 1 / A_p,pp of the
    link before and by -1 / A_pe of the link behind; the reference's has no link before. What it adds is the square of
    their sum times r_p, the variance of a Poisson rate but for a factor.
    """
    heads, head = links.heads, table.cell[links.heads]
    head_share, tail_share, per_head_click, variance = np.zeros((4, len(table.cell)))
    head_share[heads] = links.rate[heads] / links.head_clicks[head]
    tail_share[heads] = links.rate[links.tails] / links.tail_clicks[head]
    per_head_click[heads], per_tail_click = 1 / links.head_clicks[head], 1 / links.tail_clicks[head]
    of_tail = per_tail_click * (per_tail_click - 2 * per_head_click[links.tails])
    variance[heads] = links.rate[heads] * per_head_click[heads] ** 2 + links.rate[links.tails] * of_tail
    return head_share, tail_share, variance
