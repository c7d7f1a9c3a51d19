"""Plan what to show next: swaps of positions that narrow the intervals of propensities, and documents to explore.

Swaps: on every page that takes part, the documents at positions i and j change places with probability 1/2 (RandPair
and swap interventions; Joachims, Swaminathan & Schnabel 2017). Other positions do not change. With S strata of expected
clicks a_s by cell, the conditional likelihood has the information

    F(a) = sum_s diag(a_s) - a_s a_s' / |a_s|,    |a_s| = sum_e a_se

    b_s = (1 + r) a_s + d_s,    d_si = -r w a_si / 2,    d_sj = + r w (a_si / 2) theta_j / theta_i    (and j with i)

w is the share of pages with the swap, r the number of further pages relative to the log. Only the shared clicks
M = sum_s a_s a_s' / |a_s| are known (`core.fit.propensities`), not a_s. All strata shown at i are therefore given
their mean profile a = A_i M_i. / M_ii, with A_i = sum_e M_ie clicks at i, so that

    I_after = (1 + r) F + sum_{g = i, j} phi [F((1 + r) a_g + d_g) - F((1 + r) a_g)],    F = diag(M 1) - M

phi = 1 - strata / impressions is the probability that a further impression belongs to a known stratum (Good 1953): a
document that was never shown elsewhere has no information. If further pages have strata of their own, as with periods,
r a_g replaces (1 + r) a_g. In a fit of randomised rows, strata are queries, and further pages add

    I_after = F + n_i n_j / (n_i + n_j) (e_i - e_j)(e_i - e_j)',    n_i = N w (c_i + c_j theta_i / theta_j) / 2

with click rates c. The model variance of a cell, v = (I^-1)_ee, is scaled to the clustered variance V of the fit by the
present design effect V / v. The part q = tau^2 / G due to differences between queries, with standard deviation tau
between queries and effective number G of queries, does not shrink with further pages of the same queries:

    V_after = q + (V - q) v_after / v

The plan is greedy: pages are assigned in `PORTIONS` equal portions, each to the swap that leaves the narrowest
intervals: fewest cells without an interval, then the smallest sum of widths to the power `SHARPNESS`, in which the
widest intervals dominate.

Documents: the upper confidence bound of a document is the 97.5 % quantile of the posterior of its attractiveness,
approximated by a Beta distribution of the same mean m and standard deviation s (errors of theta included):

    u = quantile of Beta(m t, (1 - m) t) at .975,    t = m (1 - m) / s^2 - 1

With alpha, u = min(m + alpha s, 1) as in LinUCB.

The documents to show are those whose bound is above the k-th best mean of their query: each may be one of the k best.
Ranked by the bound, good documents come first (exploration that costs few clicks). Most is learnt where the reach is
largest:

    reach = u - max(m, k-th best mean of the query)

Sources: Auer, Cesa-Bianchi & Fischer 2002 (UCB); Kaufmann, Cappe & Garivier 2012 (Bayes-UCB, quantiles of posteriors);
Li, Chu, Langford & Schapire 2010 (alpha standard deviations).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Literal

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.arrays.linalg import NORMAL, connected
from posbias.core.counts.sufficient_statistics import context_numbers, dense_row_ranks
from posbias.core.errors import IdentifiabilityError, LogFormatError
from posbias.core.fit.propensities import STD_ERROR, working_theta
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, QUERY

Strata = Literal["shared", "apart", "randomized"]
"""Strata of further pages: those of the log, separate ones (as with periods), or queries of randomised rows."""

Swap = tuple[int, int]
"""Two positions, the smaller first."""

_LARGEST_CONSTANT_PART = 0.9  # largest share of q in V, as more clicks always reduce the variance
_LEAST_LINK = 1e-9  # fewer shared clicks are rounding


@dataclass(frozen=True)
class ContextCells:
    """Fit of the K cells of one context; arrays have shape (K,) unless noted."""

    position: Integers  # ascending within a curve
    theta: Floats  # > 0, imputed where a cell is not identified
    impressions: Floats  # in the log
    clicks: Floats
    shared: Floats  # M, shape (K, K)
    std_error: Floats  # of log propensity; infinite if unknown
    width: Floats  # of the 95 % interval of log propensity; infinite if unknown
    constant: Floats  # q, the part of the variance that further pages do not change
    reference: int  # index of the reference cell
    strata: Strata  # strata of further pages
    known_strata: float  # phi
    curve: Integers  # curve number of each cell: swaps are between two positions of one curve

    @property
    def pages(self) -> float:
        """Number of pages in the log, estimated by the impressions of the most frequent position."""
        return float(np.bincount(self.position, self.impressions).max(initial=0.0))

    @cached_property
    def _expected(self) -> Floats:
        """A, expected clicks by cell."""
        return self.shared.sum(axis=1)

    @cached_property
    def information(self) -> Floats:
        """F of the log, shape (K, K)."""
        return np.diag(self._expected) - self.shared

    @cached_property
    def _variance(self) -> Floats:
        """Present model variance v of log propensity, infinite where a cell is not linked to the reference."""
        return variances(self.information, self.reference)

    def std_errors_after(self, growth: float, swaps: Mapping[Swap, float]) -> Floats:
        """Predict the standard errors of log propensity after further pages, shape (K,); infinite if unknown.

        Args:
            growth: r, number of further pages relative to the log.
            swaps: share of further pages with each swap (half of which are swapped).
        """
        moves = list[tuple[int, int, float]]()  # the two cells of each swap, and its share
        for swap, share in swaps.items():
            one, other = (np.flatnonzero(self.position == position) for position in swap)
            _, *indices = np.intersect1d(self.curve[one], self.curve[other], return_indices=True)
            moves += [(int(one[i]), int(other[j]), share) for i, j in zip(*indices, strict=True)]
        after = variances(self._information_after(growth, moves), self.reference)
        now, fitted = self._variance, self.std_error**2
        constant = np.minimum(self.constant, _LARGEST_CONSTANT_PART * np.where(np.isfinite(fitted), fitted, np.inf))
        known = np.isfinite(fitted) & np.isfinite(now) & (now > 0)
        ratio = np.divide(after, now, out=np.ones_like(after), where=known)
        scaled = constant + (np.where(known, fitted, constant) - constant) * np.where(known, ratio, 1.0)
        # The median design effect, in which cells without an interval count as 1
        effect = np.divide(fitted, now, out=np.ones_like(fitted), where=known)
        usual = float(np.median(np.delete(effect, self.reference))) if len(effect) > 1 else 1.0
        unscaled = usual * after + constant
        variance = np.where(known, np.minimum(scaled, np.where(known, fitted, np.inf)), unscaled)
        variance[self.reference] = 0.0
        return np.sqrt(variance)

    def widths(self, std_error: Floats) -> Floats:
        """Return the widths of 95 % intervals of log propensity with these standard errors, shape (K,).

        The ratio of width and standard error, which is large with few degrees of freedom, approaches the usual ratio
        as the variance decreases.
        """
        known = np.isfinite(self.width) & (self.std_error > 0) & np.isfinite(std_error)
        factor = np.divide(self.width, self.std_error, out=np.full_like(std_error, 2 * NORMAL), where=known)
        usual = float(np.median(np.delete(factor, self.reference))) if len(factor) > 1 else 2 * NORMAL
        ratio = np.divide(std_error**2, self.std_error**2, out=np.zeros_like(std_error), where=known)
        return (usual + (factor - usual) * np.minimum(ratio, 1.0)) * std_error

    def _information_after(self, growth: float, moves: Sequence[tuple[int, int, float]]) -> Floats:
        """Return I_after, shape (K, K), after further pages with moves: two cells and their share of the pages."""
        both = [min(self.impressions[one], self.impressions[other]) for one, other, _ in moves]  # pages that show both
        if self.strata == "randomized":  # strata are queries
            rate, added = self.clicks / np.maximum(self.impressions, 1e-300), np.zeros_like(self.shared)
            for (one, other, share), together in zip(moves, both, strict=True):
                shown = growth * self.pages * share * together / max(self.pages, 1e-300)
                odds = self.theta[one] / self.theta[other]
                clicks = np.zeros((1, len(self.theta)))
                clicks[0, one] = shown * (rate[one] + rate[other] * odds) / 2
                clicks[0, other] = shown * (rate[other] + rate[one] / odds) / 2
                added += conditional_information(clicks)
            return self.information + added
        change = np.zeros_like(self.shared)
        for (one, other, share), together in zip(moves, both, strict=True):
            for origin, target in ((one, other), (other, one)):
                fraction = together / max(self.impressions[origin], 1e-300)
                moved = growth * share * fraction * self._expected[origin] / 2
                change[origin, origin] -= moved
                change[origin, target] += moved * self.theta[target] / self.theta[origin]
        rows = np.unique([cell for one, other, _ in moves for cell in (one, other)]).astype(np.int64)
        # a_g, expected clicks by cell of the strata that are shown at g
        own = np.diag(self.shared)
        scale = np.divide(self._expected, own, out=np.zeros_like(own), where=own > 0)
        before = (self.shared * scale[:, np.newaxis])[rows] * (growth if self.strata == "apart" else 1 + growth)
        gain = conditional_information(before + change[rows]) - conditional_information(before)
        return (1 + growth) * self.information + self.known_strata * gain


def conditional_information(expected: Floats) -> Floats:
    """Return the information F of the conditional likelihood, shape (K, K).

    Args:
        expected: expected clicks by stratum and cell, shape (S, K).
    """
    total = expected.sum(axis=1)
    root = np.divide(1.0, np.sqrt(total), out=np.zeros_like(total), where=total > 0)
    scaled = expected * root[:, np.newaxis]
    return np.asarray(np.diag(expected.sum(axis=0)) - scaled.T @ scaled)


def variances(information: Floats, reference: int) -> Floats:
    """Return the variance of log propensity relative to the reference, shape (K,); infinite for cells not linked."""
    variance = np.full(len(information), np.inf)
    variance[reference] = 0.0
    tails, heads = np.nonzero(-information > _LEAST_LINK)
    component = connected(tails.astype(np.int64), heads.astype(np.int64), len(information), both_ways=False)
    others = np.flatnonzero((component == component[reference]) & (np.arange(len(information)) != reference))
    if len(others):
        part = information[np.ix_(others, others)]
        scale = np.sqrt(np.diag(part))
        inverse = np.linalg.pinv(part / np.outer(scale, scale), hermitian=True)
        variance[others] = np.diag(inverse) / scale**2
    return variance


@dataclass(frozen=True)
class DesignInputs:
    """The results of a fit from which the effect of further pages is predicted."""

    table: pl.DataFrame  # `propensities.parquet`, K rows
    context: tuple[str, ...]  # context columns
    shared: Floats  # shared clicks M, shape (K, K)
    query_spread: float  # tau, the standard deviation of log theta between queries
    effective_clusters: Floats  # G of each cell, shape (K,), NaN if unknown
    strata: Strata  # strata of further pages
    n_strata: float  # number of strata of the log
    cell: tuple[str, ...] = ()  # cell columns other than the position

    @property
    def columns(self) -> dict[str, str]:
        """Columns of the table by meaning; with contexts, those of the unshrunken estimate."""
        prefix = "unshrunk_" if self.context else ""
        return {name: f"{prefix}{name}" for name in ("propensity", "ci_low", "ci_high")}

    def check(self, *, where: str) -> None:
        """Check that the table is that of a fit.

        Raises:
            LogFormatError: a column is missing, or holds no numbers.
        """
        columns = [*self.columns.values(), IMPRESSIONS, CLICKS, *(() if self.context else (STD_ERROR,))]
        for name in columns:
            dtype = self.table.schema.get(name)
            if dtype is None or not (dtype.is_numeric() or dtype == pl.Null):
                raise LogFormatError(f"{where}: has no numbers in a column {name!r}. Run `posbias fit` again.")
        counts = self.table.select(pl.col(IMPRESSIONS, CLICKS).cast(pl.Float64))
        broken = counts.filter(~((pl.col(CLICKS) >= 0) & (pl.col(IMPRESSIONS) > 0) & pl.col(IMPRESSIONS).is_finite()))
        if broken.height or counts.null_count().sum_horizontal().item():
            raise LogFormatError(f"{where}: a cell has no impressions, or no counts. Run `posbias fit` again.")

    def numbers(self, name: str) -> Floats:
        """Return a column of the table as floats, null as NaN, shape (K,)."""
        return self.table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()

    def curves(self) -> list[ContextCells]:
        """Return the cells of each context, in the order of the rows."""
        position, context = self.table[POSITION].to_numpy().astype(np.int64), context_numbers(self.table, self.context)
        # Columns that the position does not determine are constant on a page, unlike the row of a grid
        values = self.table.group_by(POSITION).agg(pl.col(self.cell).n_unique())
        beside = [name for name in self.cell if (values[name] > 1).any()]
        curve = dense_row_ranks(self.table.select(*self.context, *beside)) if beside else context
        propensity = self.numbers(self.columns["propensity"])
        impressions, clicks = self.numbers(IMPRESSIONS), self.numbers(CLICKS)
        theta = working_theta(propensity, impressions, clicks, position, curve)
        with np.errstate(divide="ignore", invalid="ignore"):
            width = np.log(self.numbers(self.columns["ci_high"])) - np.log(self.numbers(self.columns["ci_low"]))
        error = width / (2 * NORMAL) if self.context else self.numbers(STD_ERROR)
        known = np.isfinite(width) & np.isfinite(error)
        is_reference = (propensity == 1) & (width == 0)
        # G; if unknown, the median of the other cells
        clustered = np.isfinite(self.effective_clusters) & (self.effective_clusters >= 1)
        usual = float(np.median(self.effective_clusters[clustered])) if clustered.any() else 1.0
        constant = self.query_spread**2 / np.where(clustered, self.effective_clusters, usual)
        return [
            ContextCells(
                position=position[cells],
                theta=theta[cells],
                impressions=impressions[cells],
                clicks=clicks[cells],
                shared=self.shared[np.ix_(cells, cells)],
                std_error=np.where(known, error, np.inf)[cells],
                width=np.where(known, width, np.inf)[cells],
                constant=constant[cells],
                reference=int(np.argmax(is_reference[cells] if is_reference[cells].any() else clicks[cells])),
                strata=self.strata,
                known_strata=max(1 - self.n_strata / max(float(impressions.sum()), 1.0), 0.0),
                curve=curve[cells],
            )
            for cells in (context == number for number in np.unique(context))
        ]


PORTIONS = 20
SHARPNESS = 8.0
MOST_POSITIONS = 40
"""With more positions, only pairs with one of the widest intervals, or with one of the first positions, are tried."""

_WIDEST = 8
_MOST_IN_PLAN = 60


@dataclass(frozen=True)
class PlannedIntervals:
    """Predicted intervals after further pages, by cell, one context after the other."""

    std_error: Floats  # of log propensity, shape (cells,); infinite if unknown
    width: Floats  # of its 95 % interval, shape (cells,); infinite if unknown

    @property
    def largest(self) -> float:
        """Width of the widest interval."""
        return float(self.width.max(initial=0.0))

    @property
    def badness(self) -> tuple[int, float]:
        """The criterion to minimise: cells without an interval, then the sum of widths to the power `SHARPNESS`."""
        known = np.isfinite(self.width)
        return int((~known).sum()), float((self.width[known] ** SHARPNESS).sum())


@dataclass(frozen=True)
class Plan:
    """Plan of swaps on N further pages, with the intervals that it gives and those of alternatives."""

    pages: int  # N
    now: PlannedIntervals  # present intervals
    unswapped: PlannedIntervals  # after N pages without swaps
    alone: Mapping[Swap, PlannedIntervals]  # after N pages with a single swap on all of them, the best first
    shares: Mapping[Swap, float]  # share of pages of each swap of the plan
    planned: PlannedIntervals  # after N pages by the plan

    @property
    def best(self) -> Swap:
        """The best single swap."""
        return next(iter(self.alone))


def make_plan(curves: Sequence[ContextCells], pages: int) -> Plan:
    """Plan the swaps that narrow the widest intervals most.

    Args:
        curves: the contexts.
        pages: N, number of further pages.

    Raises:
        IdentifiabilityError: there is only one position.
    """
    possible = candidate_swaps(curves)
    if not possible:
        raise IdentifiabilityError("the fit has one position, so that there is nothing to swap.")
    growth = pages / sum(curve.pages for curve in curves)
    now = PlannedIntervals(*map(np.concatenate, ([c.std_error for c in curves], [c.width for c in curves])))
    tried = {swap: predict_intervals(curves, growth, {swap: 1.0}) for swap in possible}
    alone = dict(sorted(tried.items(), key=lambda entry: (entry[1].badness, entry[0])))
    portions: dict[Swap, int] = {}
    for _ in range(PORTIONS):
        options = [{**portions, swap: portions.get(swap, 0) + 1} for swap in list(alone)[:_MOST_IN_PLAN]]
        in_shares = ({swap: number / PORTIONS for swap, number in option.items()} for option in options)
        badness = [predict_intervals(curves, growth, swaps).badness for swaps in in_shares]
        portions = options[badness.index(min(badness))]
    shares = {swap: portions[swap] / PORTIONS for swap in sorted(portions, key=lambda swap: (-portions[swap], swap))}
    return Plan(
        pages, now, predict_intervals(curves, growth, {}), alone, shares, predict_intervals(curves, growth, shares)
    )


def predict_intervals(curves: Sequence[ContextCells], growth: float, swaps: Mapping[Swap, float]) -> PlannedIntervals:
    """Predict the intervals after further pages with swaps, each on its share of these pages."""
    errors = [curve.std_errors_after(growth, swaps) for curve in curves]
    widths = [curve.widths(error) for curve, error in zip(curves, errors, strict=True)]
    return PlannedIntervals(np.concatenate(errors), np.concatenate(widths))


def candidate_swaps(curves: Sequence[ContextCells]) -> list[Swap]:
    """Return the pairs of positions that are tried as swaps."""
    positions = sorted({position for curve in curves for position in curve.position.tolist()})
    pairs = list(combinations(positions, 2))
    if len(positions) <= MOST_POSITIONS:
        return pairs
    widest: dict[int, float] = {}
    for curve in curves:
        for position, width in zip(curve.position.tolist(), curve.width.tolist(), strict=True):
            widest[position] = max(width, widest.get(position, 0.0))
    widest_or_first = {*sorted(positions, key=lambda position: -widest[position])[:_WIDEST], *positions[:2]}
    return [pair for pair in pairs if not widest_or_first.isdisjoint(pair)]


ATTRACTIVENESS, STD_DEV = "attractiveness", "std_dev"
UCB, REACH = "ucb", "reach"
RANK, MEAN_RANK, REACH_RANK = "rank", "attractiveness_rank", "reach_rank"

LEVEL = 0.975
"""Level of the quantile: the upper end of a 95 % interval."""

_LEAST_DEVIATION = 1e-12
_LEAST_MEAN = 1e-9


def upper_bounds(mean: Floats, std_dev: Floats) -> Floats:
    """Return the 97.5 % quantile of each posterior, shape (J,), at least its mean and at most 1.

    Args:
        mean: of attractiveness, from 0 to 1.
        std_dev: of attractiveness, at least 0; one too large for any distribution on [0, 1] is reduced.
    """
    within = np.clip(mean, _LEAST_MEAN, 1 - _LEAST_MEAN)
    strength = within * (1 - within) / np.maximum(std_dev, _LEAST_DEVIATION) ** 2 - 1
    strength = np.maximum(strength, _LEAST_MEAN)
    bound = np.clip(scipy.special.betaincinv(within * strength, (1 - within) * strength, LEVEL), mean, 1.0)
    return np.where(std_dev > _LEAST_DEVIATION, bound, mean)


def most_promising_documents(
    pairs: pl.DataFrame, context: Sequence[str], top: int, alpha: float | None = None
) -> pl.DataFrame:
    """Return the documents that may be among the k best of their query (and context).

    Args:
        pairs: rows of `attractiveness.parquet`, sorted by query, of whole queries.
        context: context columns; each context has its own best documents.
        top: k, at least 1.
        alpha: of the bound, at least 0; None for the quantile.

    Returns:
        Rows of `pairs` sorted by query, context and bound, with `ucb`, `reach`, and ranks within query and context
        from 1: `rank` (by bound), `attractiveness_rank` (by mean), `reach_rank`. Of a query with k documents or fewer,
        all.
    """
    known, error = (pairs[name].cast(pl.Float64).to_numpy() for name in (ATTRACTIVENESS, STD_DEV))
    bound = upper_bounds(known, error) if alpha is None else np.minimum(known + alpha * error, 1.0)
    group = (_QUERY, *context)
    mean, best = pl.col(ATTRACTIVENESS), pl.col(_BEST)
    ranked = (
        pairs.with_columns(pl.Series(UCB, bound), pl.col(QUERY).rle_id().alias(_QUERY))
        .sort(group, maintain_order=True)
        .with_columns(_rank(UCB, ATTRACTIVENESS, group).alias(RANK), _rank(ATTRACTIVENESS, UCB, group).alias(MEAN_RANK))
        .with_columns(mean.filter(pl.col(MEAN_RANK) == top).first().over(group).alias(_BEST))
        .with_columns((pl.col(UCB) - pl.max_horizontal(mean, best)).alias(REACH))
        .with_columns(_rank(REACH, UCB, group).alias(REACH_RANK))
    )
    worth = ranked.filter(best.is_null() | (pl.col(MEAN_RANK) <= top) | (pl.col(UCB) > best))
    return worth.sort(*group, RANK).select(*pairs.columns, UCB, REACH, RANK, MEAN_RANK, REACH_RANK)


_QUERY, _BEST = "posbias_query", "posbias_best"


def _rank(by: str, then: str, group: Sequence[str]) -> pl.Expr:
    """Rank rows within groups by `by`, then by `then`, from 1, the largest first; ties in the order of the rows."""
    order = pl.struct(-pl.col(by), -pl.col(then)).rank("ordinal")
    return order.over(group).cast(pl.Int64)
