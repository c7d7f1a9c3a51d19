"""Predict the clicks per page of another ranking from a log: an A/B test before it runs.

Pair d of a query q (and context) has counts n_dk and c_dk by cell k; q has N_q pages, the log N:

    e_d = sum_k n_dk theta_k            exposure under the log (A)
    w_d = n_q(r) theta_q(r)             exposure under the ranking (B): r its rank of d, n_q(r) slots of that rank
    D   = (1 / N) sum_d (w_d - e_d) g_d         B - A, clicks per page

theta_q(r) = sum_k n_q(k) theta_k / n_q(r) over the cells k at position r: theta_r if cells are positions. Pages keep
their cells, such as a block above the results, under any ranking.

g, the attractiveness, is c / e shrunk towards the mean m of its class with variance V, by moments (linear empirical
Bayes; Morris 1983). A class is an octile of A's exposure per page x B's rank: B lifts documents that are better than
their exposure under A suggests, so that a prior by A's exposure alone would bias D towards 0.

    s2 = (e m - m^2 sum_k n theta^2) / e^2      h = 1 / (V + s2)      b = V h      g = m + b (c / e - m)

The mean of a class of few pairs leans to the product of its row and column. Unseen documents, which no page of the
query showed, get between half the attractiveness of the least shown documents at B's rank and that of any shown
document there; D itself takes two parts of the least shown and one of any; bounds allow any g in [0, 1].

Errors, with u = w - e and L_c = sum_{d in c} u (1 - b):

    the same queries    N^2 Var = sum u^2 V (1 - b) + sum_q [sum_{d in q} L_c h_d (c / e - m) / H_c]^2 + G' S G
    queries like these  the jackknife over queries of D, or the variance by equal queries if larger, and the terms of
                        means and theta

S is the covariance of log theta and G_k = sum_{r(d) = k} w g - sum_d w g a*_dk, where a*_dk is the share of cell k in
the exposure behind g: that of the pair for the part b c / e of g, that of its class for the rest. Clicks given theta
and theta itself need no cross term: theta's score is conditional on the totals c_d that g uses (Hausman, Hall &
Griliches 1984).

A ranking trained on these pages puts documents with lucky clicks on top. If the pages are split by time,

    F = (1 / N) sum_d u b (c_d1 / e_d1 - c_d2 / e_d2),    N^2 Var F = sum u^2 b^2 (s2_d1 + s2_d2)

over documents shown in both halves has mean 0, unless the ranking was trained on the clicks of one half.

User browsing model: a document at rank r is examined with theta_rl, l the rank of the last click above it, 0 for none
(Dupret & Piwowarski 2008). With counts by rank and last click,

    e_d = sum_rl n_drl theta_rl              exposure under the log
    w_d = N_q sum_l P(l) theta_rl            exposure under the ranking, from the top down: a document d at rank r is
                                             clicked with P(l) theta_rl g_d, and then l is r
    D   = (1 / N) sum_d (w_d - e_d) g_d

and g is shrunk as above. Documents at the top change the examination of documents below, unlike in the position-based
model.

Slope test of the position-based model: whether pages with better documents get proportionally more clicks. Pages p of a
query differ in their documents. Under the model a page gets x_p = sum_d E_pd g_d clicks, E_pd the sum over cells of
n_pdk theta_k, and the slope of clicks on x is 1. Rankings differ as such pages do, so that predictions are invalid if
clicks do not follow x: under a cascade a good document takes clicks from those below it, and the slope is about 1/4.

The slope has no attenuation. z_p is predicted from the clicks of the other half of the pages, minus its mean over the
query; x_p has the rates of d on all other pages of its own half, and d is used only if there are such pages:

    R_pd = (c_d - C_pd) / (e_d - E_pd)        M = sum_pd z_p (C_pd - E_pd R_pd)
    slope = 1 + M / sum_pd z_p E_pd R_pd

E M = 0 under the model for any z. M is linear in the clicks of independent pages: M = sum_pd a_pd C_pd with
a_pd = z_p - sum_{v != p} z_v E_vd / (e_d - E_vd), so that

    Var M = sum_p [sum_d a_pd (C_pd - E_pd g_d)]^2 + G' S G,    G_k = dM / d log theta_k

The two halves change places, and their M are added. Without pages, a unit is the impressions of a query on one day.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import (
    CountTable,
    Flags,
    Floats,
    Integers,
    Sums,
    compress,
    first_of_runs,
    starts,
    sum_by_number,
)
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import context_numbers, dense_row_ranks, key_numbers
from posbias.core.evaluation.break_even import Bend
from posbias.core.evaluation.clicked import RANK, id_text
from posbias.core.evaluation.estimates import t_quantile
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, POSITION, PREVIOUS_CLICK, QUERY

_LAST_RANKS = np.array([1, 2, 3, 5, 10, 20])  # last rank of each class; then lower ranks, then without a rank
_N_RANKS = len(_LAST_RANKS) + 2
_CLASS_OF_RANK = np.array([_N_RANKS - 1, *np.searchsorted(_LAST_RANKS, np.arange(1, int(_LAST_RANKS[-1]) + 2))])
_N_EXPOSURES = 9  # unseen, then octiles
_SHAPE = _N_EXPOSURES, _N_RANKS
_N_CLASSES = _N_EXPOSURES * _N_RANKS
_ROUNDS = 4  # iterations of the moments, as mean and variance depend on each other
_LEANING_PAIRS, _POOLED_PAIRS = 5.0, 10.0  # weight of the product of row and column, and of the common variance
_LEAST_NOISE, _LEAST_MEAN, _LEAST_SPREAD = 0.05, 0.02, 0.1  # relative to Poisson noise, the overall mean, and m
_TINY, _MANY = 1e-300, 1e9
_FEWEST_DEGREES, _FEWEST_QUERIES = 3.0, 2.0
_UNSEEN = 0.5  # least attractiveness of unseen documents, relative to the least shown
_LIKE_ANY = 1 / 3  # part of the way from the least shown to any document, of unseen documents in D
_POWER, _LEVEL, _LEAK_LEVEL = 0.8, 0.05, 0.01
CELL, CONTEXT, _GROUP, PAIR = "posbias_cell", "posbias_context", "posbias_group", "posbias_pair"
_QUERY = "posbias_query"
CLASS = "posbias_class"
"""Optional column of counts: class of the row's query, as text."""

LATE = "posbias_late"
"""Optional column of counts: whether a row is of the later half of the pages."""

Ends = tuple[float, float]
"""Lower and upper end of an interval."""


@dataclass(frozen=True)
class CellTheta:
    """Theta of K cells; all arrays have shape (K,)."""

    plan: StatisticsPlan
    cells: pl.DataFrame  # the cell columns, sorted
    theta: Floats  # P(examined), up to a factor; NaN if unknown

    @cached_property
    def known(self) -> Flags:
        """Cells with a theta."""
        return np.isfinite(self.theta)

    @cached_property
    def examined(self) -> Floats:
        """Theta, 0 if unknown."""
        return np.nan_to_num(self.theta)

    @cached_property
    def position(self) -> Integers:
        """First position of each cell."""
        return self.cells[POSITION].to_numpy().astype(np.int64)

    @cached_property
    def place(self) -> Integers:
        """First cell with the position and context of each cell; itself if cells are positions."""
        _, first, number = np.unique(
            self.context * (int(self.position.max()) + 1) + self.position, return_index=True, return_inverse=True
        )
        return first[number]

    @cached_property
    def width(self) -> Floats:
        """Number of positions of each cell; infinite for the last bin."""
        bins = self.plan.position_bins
        if not bins:
            return np.ones(len(self.theta))
        ends = np.array([*bins[1:], np.inf], np.float64)
        return ends[np.searchsorted(bins, self.position, side="right") - 1] - self.position

    @cached_property
    def context(self) -> Integers:
        """Context number of each cell, from 0."""
        return context_numbers(self.cells, self.plan.context)

    @property
    def contexts(self) -> list[str]:
        """Names of the contexts, by number; empty without contexts."""
        names = self.plan.context
        values = self.cells.select(names).unique(maintain_order=True).rows()
        return [", ".join(f"{name}={value}" for name, value in zip(names, row, strict=True)) for row in values]

    def with_numbers(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add the cell number and the context number of each row."""
        rows = rows.with_columns(key_numbers(self.cells, rows, self.plan.cell_columns).alias(CELL).cast(pl.Int64))
        return rows.with_columns(pl.Series(CONTEXT, self.context[rows[CELL].to_numpy()]))


@dataclass(frozen=True)
class ShownPart:
    """Counts of whole queries: R rows of P pairs, in G groups (a query and a context).

    A slot is a position on the pages of a group; its mixture is the distribution of its cells.
    """

    by: CellTheta
    groups: pl.DataFrame  # `query`, context, group, optional `CLASS`; G rows
    pairs: pl.DataFrame  # group, `doc`, pair; P rows
    query: Integers  # query number of each group, from 0, shape (G,)
    pages: Floats  # pages of each group, shape (G,)
    slot: Integers  # group * K + `CellTheta.place` of each slot with impressions, ascending, shape (n,)
    slots: Floats  # impressions of each slot, shape (n,)
    mixture: Integers  # number of the mixture of each slot, shape (n,)
    mixtures: CountTable  # mixtures as units; the shares of cells are their impressions
    group: Integers  # group of each pair, shape (P,)
    counts: CountTable  # of pairs, by 2 k (earlier half, or all pages) and 2 k + 1 (later half) for cell k with a theta

    @classmethod
    def of(cls, counts: pl.DataFrame, by: CellTheta) -> "ShownPart":
        """Convert counts to arrays.

        Args:
            counts: `query`, `doc`, the cell columns, `impressions`, `clicks`, optional `LATE` and `CLASS`; a row per
                key.
            by: theta.
        """
        halves, classes = ([name] if name in counts.columns else [] for name in (LATE, CLASS))
        rows = by.with_numbers(counts).select(QUERY, CONTEXT, DOC, CELL, IMPRESSIONS, CLICKS, *halves, *classes)
        rows = rows.sort(QUERY, CONTEXT, DOC, CELL, *halves)
        rows = rows.with_columns(
            pl.struct(QUERY, CONTEXT).rle_id().cast(pl.Int64).alias(_GROUP),
            pl.struct(QUERY, CONTEXT, DOC).rle_id().cast(pl.Int64).alias(PAIR),
            pl.col(QUERY).rle_id().cast(pl.Int64).alias(_QUERY),
        )
        row_group, row_pair = (rows[name].to_numpy() for name in (_GROUP, PAIR))
        groups = rows[first_of_runs(row_group)].select(QUERY, CONTEXT, _GROUP, _QUERY, *classes)
        pairs = rows[first_of_runs(row_pair)].select(_GROUP, DOC, PAIR)
        n_cells, cell = len(by.theta), rows[CELL].to_numpy()
        impressions = rows[IMPRESSIONS].to_numpy().astype(np.float64)
        group_cell, at = np.unique(row_group * n_cells + cell, return_inverse=True)
        by_cell, cells = sum_by_number(at, impressions, len(group_cell)), group_cell % n_cells
        slot, at = np.unique(group_cell - cells + by.place[cells], return_inverse=True)
        slots, order = sum_by_number(at, by_cell, len(slot)), np.argsort(at, kind="stable")
        shares, one = (by_cell / slots[at])[order], np.ones(len(slot))
        shares = CountTable(n_cells, starts(np.bincount(at)), cells[order], shares, 0 * shares, one)
        mixtures, mixture = compress(shares)
        known, late = by.known[cell], rows[LATE].to_numpy() if halves else 0
        return cls(
            by=by,
            groups=groups.drop(_QUERY),
            pairs=pairs,
            query=groups[_QUERY].to_numpy(),
            pages=np.maximum.reduceat(slots / by.width[slot % n_cells], first_of_runs(slot // n_cells)),
            slot=slot,
            slots=slots,
            mixture=mixture,
            mixtures=mixtures,
            group=pairs[_GROUP].to_numpy(),
            counts=CountTable(
                n_cells=2 * n_cells,
                start=starts(np.bincount(row_pair[known], minlength=pairs.height)),
                cell=(2 * cell + late)[known],
                impressions=impressions[known],
                clicks=rows[CLICKS].to_numpy().astype(np.float64)[known],
                multiplicity=np.ones(pairs.height),
            ),
        )

    @cached_property
    def cell(self) -> Integers:
        """Cell of each row, shape (R,)."""
        return self.counts.cell // 2

    @cached_property
    def mixture_theta(self) -> Floats:
        """theta_q(r) of each mixture; cells without a theta count as 0."""
        return self.mixtures.sum_by_unit(self.mixtures.impressions * self.by.examined[self.mixtures.cell])

    def sum_by_cell(self, mixture: Integers, values: Floats) -> Floats:
        """Distribute values, proportional to theta_q(r), over the cells of their mixtures, and sum, shape (K,)."""
        rate = sum_by_number(mixture, values, self.mixtures.n_units) / np.maximum(self.mixture_theta, _TINY)
        return self.mixtures.sum_by_cell(self.mixtures.spread(rate) * self.mixtures.impressions) * self.by.examined

    @cached_property
    def row_exposure(self) -> Floats:
        """N theta of each row, shape (R,)."""
        return self.counts.impressions * self.by.theta[self.cell]


@dataclass(frozen=True)
class Placed:
    """The P' pairs of a part under a ranking: the P pairs with impressions, then pairs that the ranking adds.

    Pairs of one kind are equal in all fields below and in the counts of their rows; most are of queries with a page or
    two. The counts of the part are those of its J kinds. Arrays have shape (J,) unless noted.
    """

    part: ShownPart
    ranked: Flags  # whether the ranking has a list for the group, shape (G,)
    doc: pl.Series  # document of each pair, length P'
    pair_group: Integers  # group of each pair, shape (P',)
    kind: Integers  # kind of each pair, shape (P',)
    group: Integers  # group of a pair of each kind; groups of a kind have equal pages, context and class
    rank: Integers  # from 1; 0 without a rank
    mixture: Integers  # mixture of the slot at the rank; 0 without a slot
    ranked_pages: Floats  # pages whose slot is filled down to the rank
    exposure: Floats  # e
    squared: Floats  # sum of n theta^2
    clicks: Floats

    @classmethod
    def of(cls, part: ShownPart, lists: pl.DataFrame) -> "Placed":
        """Place the pairs by the lists of a ranking: `query`, `doc`, `RANK`; each document once in a list."""
        by, n_cells = part.by, len(part.by.theta)
        joined = lists.join(part.groups, on=QUERY, maintain_order="left_right").join(
            part.pairs, on=[_GROUP, DOC], how="left", maintain_order="left"
        )
        group, rank = joined[_GROUP].to_numpy(), joined[RANK].to_numpy().astype(np.int64)
        # Cell of each rank, -1 without a cell
        number = np.full((int(by.context.max()) + 1, int(by.position.max()) + 1), -1)
        number[by.context, by.position] = by.place
        first = rank
        if by.plan.position_bins:
            bins = np.array(by.plan.position_bins)
            first = bins[np.searchsorted(bins, rank, side="right") - 1]
        cell = number[joined[CONTEXT].to_numpy(), np.minimum(first, number.shape[1] - 1)]
        cell = np.where(first < number.shape[1], cell, -1)
        key = group * n_cells + cell
        at = np.minimum(np.searchsorted(part.slot, key), len(part.slot) - 1)
        has_slot = (cell >= 0) & (part.slot[at] == key)
        per_page = np.where(has_slot, part.slots[at], 0.0) / part.pages[group]
        filled = np.clip(per_page - (rank - by.position[cell]), 0.0, 1.0) * part.pages[group] * has_slot
        is_examined = (filled > 0) & (part.mixture_theta[part.mixture[at]] > 0)
        pair = joined[PAIR].fill_null(-1).to_numpy()
        old, new, n_pairs = is_examined & (pair >= 0), is_examined & (pair < 0), len(part.group)

        def by_pair(values: Floats | Integers) -> Floats:
            of_old = np.zeros(n_pairs)
            of_old[pair[old]] = values[old]
            return np.append(of_old, values[new].astype(np.float64))

        groups, ranked = np.concatenate([part.group, group[new]]), np.zeros(len(part.pages), bool)
        ranked[group] = True
        group_kinds = part.groups.select(
            pl.selectors.by_name(CLASS, require_all=False), pages=part.pages, ranked=ranked
        )
        beside = (
            dense_row_ranks(group_kinds)[groups].astype(np.float64),
            *map(by_pair, (filled, rank, part.mixture[at])),
        )
        rows = starts(np.append(part.counts.entries_of_unit, np.zeros(len(groups) - n_pairs, np.int64)))
        table = replace(part.counts, start=rows, multiplicity=np.ones(len(groups)))
        counts, kind = compress(table, beside=beside)
        member = np.zeros(counts.n_units, np.int64)
        member[kind] = np.arange(len(kind))  # a pair of each kind
        clicks = counts.sum_by_unit(counts.clicks)
        return cls(
            part=replace(part, counts=counts),
            ranked=ranked,
            doc=part.pairs[DOC].append(joined[DOC].filter(pl.Series(new))),
            pair_group=groups,
            kind=kind,
            group=groups[member],
            rank=beside[2][member].astype(np.int64),
            mixture=beside[3][member].astype(np.int64),
            ranked_pages=beside[1][member],
            exposure=clicks,  # until `bent` computes both
            squared=clicks,
            clicks=clicks,
        ).bent(Bend())

    def bent(self, bend: Bend) -> "Placed":
        """Return the same pairs under bent propensities."""
        by = self.part.by
        part = replace(self.part, by=replace(by, theta=bend.theta(by.theta, by.position.astype(np.float64))))
        rows = part.row_exposure, part.row_exposure * part.by.theta[part.cell]
        exposure, squared = (part.counts.sum_by_unit(values) for values in rows)
        return replace(self, part=part, exposure=exposure, squared=squared)

    @cached_property
    def rank_class(self) -> Integers:
        """Class of the rank."""
        return _CLASS_OF_RANK[np.minimum(self.rank, len(_CLASS_OF_RANK) - 1)]

    @property
    def number(self) -> Floats:
        """Number of pairs of each kind."""
        return self.part.counts.multiplicity

    def sum_by_group(self, values: Floats) -> Floats:
        """Sum values of kinds, shape (J,), over the pairs of each group, shape (G,)."""
        return sum_by_number(self.pair_group, values[self.kind], len(self.part.pages))

    @cached_property
    def new_exposure(self) -> Floats:
        """Exposure under the ranking, w."""
        return self.ranked_pages * self.part.mixture_theta[self.mixture]

    @cached_property
    def divisor(self) -> Floats:
        """Exposure under the log, 1 for unseen documents."""
        return np.where(self.exposure > 0, self.exposure, 1.0)

    @cached_property
    def used(self) -> Flags:
        """Pairs with exposure whose query has a list in the ranking."""
        return (self.exposure > 0) & self.ranked[self.group]

    @cached_property
    def per_page(self) -> Floats:
        """Exposure under the log per page."""
        return self.exposure / self.part.pages[self.group]

    @cached_property
    def rate(self) -> Floats:
        """Own rate c / e, 0 for unseen documents."""
        return self.clicks * (self.exposure > 0) / self.divisor

    def noise(self, mean: Floats) -> Floats:
        """Return the variance s2 of c / e by attractiveness m; undefined for unseen documents."""
        expected = self.divisor * mean
        return np.maximum(expected - self.squared * mean**2, _LEAST_NOISE * expected) / self.divisor**2


@dataclass(frozen=True)
class PairAttractiveness:
    """Attractiveness of J kinds of pairs; `weight` and `variance` are undefined for unseen documents."""

    placed: Placed
    number: Integers  # class number, shape (J,)
    weight: Floats  # b, weight of the own rate, shape (J,)
    variance: Floats  # V (1 - b), shape (J,)
    value: Floats  # g, shape (J,)
    unseen: Integers  # the kinds of unseen documents, shape (N,)
    imputed: Floats  # lower and upper limit of their g, shape (2, N)

    def sum_by_query(self, shown: Floats, unseen: Floats, chosen: Flags) -> Floats:
        """Sum values over queries, once with each of two values of unseen documents, shape (2, Q).

        Args:
            shown: values of kinds, shape (J,).
            unseen: values of unseen kinds that replace them, shape (2, N).
            chosen: groups to sum over, shape (G,).
        """
        part = self.placed.part
        ends = np.stack([shown, shown] if len(self.unseen) else [shown])
        ends[:, self.unseen] = unseen[: len(ends)]
        by_group = (self.placed.sum_by_group(end) * chosen for end in ends)
        n_queries = int(part.query[-1]) + 1
        return np.broadcast_to([sum_by_number(part.query, sums, n_queries) for sums in by_group], (2, n_queries))

    def gains(self) -> pl.DataFrame:
        """Return the gain of clicks of each query with a list, `low` and `high` by unseen documents, and `pages`."""
        placed, part, chosen = self.placed, self.placed.part, self.placed.ranked
        gained = (placed.new_exposure - placed.exposure) * self.value
        low, high = self.sum_by_query(gained, placed.new_exposure[self.unseen] * self.imputed, chosen)
        pages = sum_by_number(part.query, part.pages * chosen, len(low))
        return pl.DataFrame({"low": low, "high": high, "pages": pages}).filter(pl.col("pages") > 0)


@dataclass(frozen=True)
class Prior:
    """Prior of attractiveness by class: C classes, B classes of ranks."""

    edges: Floats  # octiles of exposure per page
    mean: Floats  # m, shape (C,)
    spread: Floats  # V, shape (C,)
    share: Floats  # share of each cell in the exposure behind the means, shape (C, K)
    imputed: Floats  # g of unseen documents: lower limit, upper limit, and value in D, shape (3, B)
    imputed_from: Integers  # class with most of the exposure behind `imputed`, shape (B,)
    pairs: pl.DataFrame  # the pairs of the means: `query`, `CLASS` (number), `precision` (h), `rate`

    @classmethod
    def fit(cls, placed: Placed) -> "Prior":
        """Estimate the prior by moments from the pairs of whole queries, at least one with exposure."""
        used, rate = placed.used, placed.rate
        pair_kind = placed.kind[used[placed.kind]]
        edges = np.quantile(placed.per_page[pair_kind], np.arange(1, _N_EXPOSURES - 1) / (_N_EXPOSURES - 1))
        edges *= 1 - 1e-9  # so that equal exposures stay in one class despite rounding
        number = _classes(placed, edges)
        at, own, times = number[used], rate[used], placed.number[used]
        count, exposure, clicks = (
            _sum_by_class(at, times * values) for values in (1.0, placed.exposure[used], placed.clicks[used])
        )
        overall = float(max(clicks.sum(), 0.5) / exposure.sum())  # half a click if there is none
        mean = np.where(exposure > 0, clicks / np.maximum(exposure, _TINY), overall)
        mean = np.maximum(mean, _LEAST_MEAN * overall)
        spread = np.full(_N_CLASSES, overall**2)
        h = noise = np.zeros(0)
        for _ in range(_ROUNDS):
            noise = placed.noise(mean[number])[used]
            h = 1.0 / (spread[at] + noise)
            mass, total = _sum_by_class(at, times * h), _sum_by_class(at, times * h * own)
            # The mean of a class of few pairs leans to the product of its row and column
            product = np.outer(*_products(mass, total, overall)).ravel()
            extra = _LEANING_PAIRS * mass / np.maximum(count, 1.0)
            leaning = np.where(mass > 0, (total + extra * product) / np.maximum(mass + extra, _TINY), product)
            mean = np.maximum(leaning, _LEAST_MEAN * overall)
            squares = _sum_by_class(at, times * h**2)
            excess = _sum_by_class(at, times * h**2 * ((own - mean[at]) ** 2 - noise))
            raw, pooled = excess / np.maximum(squares, _TINY), excess.sum() / squares.sum()
            spread = (count * raw + _POOLED_PAIRS * pooled) / (count + _POOLED_PAIRS)
            spread = np.maximum(spread, (_LEAST_SPREAD * mean) ** 2 + 1e-8 * overall**2)
        mass, total = _sum_by_class(at, times * h), _sum_by_class(at, times * h * own)
        imputed, imputed_from = _imputation(mass, total, count, overall)
        precision = np.zeros(len(number))
        precision[used] = h
        weight = placed.number * precision / placed.divisor  # h c / e, distributed by the exposure of rows
        part, n_cells = placed.part, len(placed.part.by.theta)
        by_row = part.counts.spread(weight * rate) * part.row_exposure
        class_cell = number[part.counts.unit_of_entry] * n_cells + part.cell
        share = sum_by_number(class_cell, by_row, _N_CLASSES * n_cells).reshape(-1, n_cells)
        share = np.where(share.any(1, keepdims=True), share, share.sum(0))  # a class without clicks has those of all
        share /= np.maximum(share.sum(1, keepdims=True), _TINY)
        query = placed.part.query[placed.pair_group[used[placed.kind]]]
        columns = {CLASS: number, "precision": precision, "rate": rate}
        pairs = pl.DataFrame({QUERY: query} | {name: column[pair_kind] for name, column in columns.items()})
        return cls(edges, mean, spread, share, imputed, imputed_from, pairs)

    def posterior(self, placed: Placed) -> PairAttractiveness:
        """Compute the attractiveness of pairs."""
        number = _classes(placed, self.edges)
        mean, spread = self.mean[number], self.spread[number]
        weight = spread / (spread + placed.noise(mean))
        value = mean + weight * (placed.rate - mean)
        unseen = np.flatnonzero(placed.exposure <= 0)
        *limits, value[unseen] = self.imputed[:, placed.rank_class[unseen]]
        return PairAttractiveness(placed, number, weight, spread * (1 - weight), value, unseen, np.stack(limits))


def _classes(placed: Placed, edges: Floats) -> Integers:
    """Return the class number of each kind, shape (J,)."""
    octile = sum((placed.per_page > edge).astype(np.int8) for edge in edges)  # with few edges, faster than a search
    return (1 + np.int64(octile)) * _N_RANKS + placed.rank_class


def _sum_by_class(number: Integers, values: Floats) -> Floats:
    return sum_by_number(number, values, _N_CLASSES)


def _products(mass: Floats, total: Floats, overall: float) -> tuple[Floats, Floats]:
    """Fit row factors a_i and column factors b_j to a table of means, by iterative proportional fitting."""
    mass, total = mass.reshape(_SHAPE), total.reshape(_SHAPE)
    row, column = np.full(_N_EXPOSURES, overall), np.ones(_N_RANKS)
    least = 1e-6 * mass.sum() + _TINY
    for _ in range(10):
        row = (total.sum(1) + least * overall) / ((mass * column).sum(1) + least)
        column = (total.sum(0) + least * overall) / ((mass * row[:, None]).sum(0) + least * overall)
    return row, column


def _imputation(mass: Floats, total: Floats, count: Floats, overall: float) -> tuple[Floats, Integers]:
    """Return `Prior.imputed` and `Prior.imputed_from`."""
    row, column = _products(mass, total, overall)
    lowest = float(row[1])
    rank_mass, rank_total = mass.reshape(_SHAPE).sum(0), total.reshape(_SHAPE).sum(0)
    least = lowest * np.where(rank_mass > 0, column, 1.0)
    most = np.where(rank_mass > 0, rank_total / np.maximum(rank_mass, _TINY), overall)
    imputed_from = np.argmax(count.reshape(_SHAPE), axis=0) * _N_RANKS + np.arange(_N_RANKS)
    between = least + _LIKE_ANY * (most - least)
    return np.stack([np.minimum(_UNSEEN * least, most), np.maximum(_UNSEEN * least, most), between]), imputed_from


def most_changed(posterior: PairAttractiveness, number: int, depth: int) -> pl.DataFrame:
    """Return the queries whose clicks a ranking changes most, with their top documents before and after.

    Args:
        posterior: attractiveness of the pairs of whole queries.
        number: largest number of queries.
        depth: largest number of documents of each.

    Returns:
        A row per query (and context): `query`, `pages`, `difference` (total clicks), `before` (documents by exposure)
        and `after` (by rank), as lists of ids as text.
    """
    placed, part = posterior.placed, posterior.placed.part
    gained = placed.sum_by_group((placed.new_exposure - placed.exposure) * posterior.value) * placed.ranked
    groups = part.groups.with_columns(pages=part.pages, difference=gained)
    groups = groups.sort(pl.col("difference").abs(), descending=True, maintain_order=True).head(number)
    chosen = np.flatnonzero(np.isin(np.arange(len(part.pages)), groups[_GROUP].to_numpy())[placed.pair_group])
    kind = placed.kind[chosen]
    columns = {"per_page": placed.per_page[kind], "rank": placed.rank[kind]}
    pairs = pl.DataFrame({_GROUP: placed.pair_group[chosen], DOC: placed.doc.gather(chosen), **columns})
    pairs = pairs.with_columns(id_text(placed.doc.dtype).alias(DOC))
    before = pairs.filter(pl.col("per_page") > 0).sort("per_page", descending=True, maintain_order=True)
    after = pairs.filter(pl.col("rank") > 0).sort("rank", maintain_order=True)
    for name, rows in (("before", before), ("after", after)):
        lists = rows.group_by(_GROUP).agg(pl.col(DOC).head(depth).alias(name))
        groups = groups.join(lists, on=_GROUP, how="left", maintain_order="left")
    return groups.select(QUERY, "pages", "difference", pl.col("before", "after").fill_null([]))


@dataclass(frozen=True)
class Scope:
    """The clicks to predict: all, in the first ranks, of a context, or of a class of queries."""

    name: str
    top: int | None = None  # number of first ranks; None for all
    part: tuple[str, int | str] | None = None  # `CONTEXT` and its number, or `CLASS` and its name; None for all

    @property
    def groups(self) -> pl.Expr:
        """Condition for groups in the scope."""
        return pl.lit(True) if self.part is None else pl.col(self.part[0]) == self.part[1]


@dataclass(frozen=True)
class PageSums(Sums):
    """Sums over whole queries with lists in a ranking; those of parts add up. B classes of ranks, C classes."""

    pages: float
    clicks: float  # of the log
    slots: float  # exposure under the log
    shown: float  # sum of u g of documents with exposure
    unseen: Floats  # exposure of unseen documents under the ranking, shape (B,)
    unseen_squared: Floats  # sum of its squares, shape (B,)
    supported: float  # exposure of other documents under the ranking
    variance: float  # sum of u^2 V (1 - b)
    variance_squared: Floats  # sum of squares over queries of that variance, by limit of unseen documents, shape (2,)
    lever: Floats  # sum of u (1 - b), shape (C,)
    moved: Floats  # sum of w g by cell under the ranking, without unseen documents, shape (K,)
    moved_unseen: Floats  # sum of w by class of ranks and cell, of unseen documents, shape (B, K)
    own: Floats  # sum of w b c / e by cell of the log, shape (K,)
    rest: Floats  # sum of w (g - b c / e) by class, shape (C,)
    pages_squared: float  # sum over queries
    # Clicks of a page by the model, under the log and under the ranking: sums over pages of the variance given the
    # query, of the mean, and of its square; shape (2, 3)
    spread: Floats
    halves: Floats  # N F and its variance, shape (2,); 0 if pages are not split

    @classmethod
    def of(cls, posterior: PairAttractiveness, scope: Scope, *, planned: bool = True) -> "PageSums":
        """Compute the sums of a part.

        Args:
            posterior: attractiveness of its pairs.
            scope: the clicks to predict.
            planned: whether to compute `spread` and `halves`, which takes half of the time; else they are 0.
        """
        placed, part = posterior.placed, posterior.placed.part
        by, counts = part.by, part.counts
        n_cells, n_queries, top = len(by.theta), int(part.query[-1]) + 1, np.ones(len(by.theta))
        chosen = placed.ranked & part.groups.select(pl.lit(True) & scope.groups).to_series().to_numpy()
        number, n_q = placed.number * chosen[placed.group], sum_by_number(part.query, part.pages * chosen, n_queries)
        w, e, clicks = placed.new_exposure, placed.exposure, placed.clicks
        if scope.top is not None:
            top = (by.position <= scope.top).astype(np.float64)
            w = w * (placed.rank <= scope.top)
            e, clicks = (counts.sum_by_unit(values * top[part.cell]) for values in (part.row_exposure, counts.clicks))
        g, unseen, own = posterior.value, posterior.unseen, posterior.weight * placed.rate
        w_unseen, rank_class, times = w[unseen], placed.rank_class[unseen], number[unseen]
        w_shown = w.copy()
        w_shown[unseen] = 0.0
        u = w_shown - e
        variance, weight = u**2 * posterior.variance, number * w_shown * own / placed.divisor
        by_rank = (rank_class == rank for rank in range(_N_RANKS))
        moved_unseen = [part.sum_by_cell(placed.mixture[unseen][at], (times * w_unseen)[at]) for at in by_rank]
        spread, halves = np.zeros((2, 3)), np.zeros(2)
        if planned:
            row_g, new_theta = counts.spread(g), part.mixture_theta[placed.mixture]
            row_clicks = counts.spread(number) * part.row_exposure * top[part.cell] * row_g
            chances = np.minimum(by.theta[part.cell] * row_g, 1.0), np.minimum(new_theta * g, 1.0)
            means = (placed.sum_by_group(exposure * g) * chosen for exposure in (e, w))
            for side, (values, p, m) in enumerate(zip((row_clicks, number * w * g), chances, means, strict=True)):
                spread[side] = m.sum() - values @ p, m.sum(), np.sum(m**2 / np.maximum(part.pages, _TINY))
            halves = _difference_of_halves(placed, number, u * posterior.weight, g)
        variances = posterior.sum_by_query(variance, (w_unseen * posterior.imputed) ** 2, chosen)
        return cls(
            pages=float(n_q.sum()),
            clicks=float(number @ clicks),
            slots=float(number @ e),
            shown=float((number * u) @ g),
            unseen=sum_by_number(rank_class, times * w_unseen, _N_RANKS),
            unseen_squared=sum_by_number(rank_class, times * w_unseen**2, _N_RANKS),
            supported=float(number @ w_shown),
            variance=float(number @ variance),
            variance_squared=np.sum(variances**2, axis=1),
            lever=_sum_by_class(posterior.number, number * u * (1 - posterior.weight)),
            moved=part.sum_by_cell(placed.mixture, number * w_shown * g),
            moved_unseen=np.stack(moved_unseen),
            own=sum_by_number(part.cell, counts.spread(weight) * part.row_exposure, n_cells),
            rest=_sum_by_class(posterior.number, number * w_shown * (g - own)),
            pages_squared=float(np.sum(n_q**2)),
            spread=spread,
            halves=halves,
        )


def _difference_of_halves(placed: Placed, number: Floats, weight: Floats, value: Floats) -> Floats:
    """Return the weighted sum of rates by the earlier half of the pages minus by the later half, and its variance."""
    part, counts = placed.part, placed.part.counts
    if not (counts.cell % 2).any():
        return np.zeros(2)
    rates, noises, in_both = list[Floats](), list[Floats](), np.ones(counts.n_units, bool)
    for late in range(2):
        rows = (part.row_exposure, part.row_exposure * part.by.theta[part.cell], counts.clicks)
        exposure, squared, clicks = (counts.sum_by_unit(values * (counts.cell % 2 == late)) for values in rows)
        half = replace(placed, exposure=exposure, squared=squared, clicks=clicks)
        in_both &= exposure > 0
        rates.append(half.rate)
        noises.append(half.noise(value))
    weight = np.where(in_both, weight, 0.0)
    return np.array([number @ (weight * (rates[0] - rates[1])), number @ (weight**2 * (noises[0] + noises[1]))])


@dataclass(frozen=True)
class Prediction:
    """Predicted clicks per page of a ranking; differences are B - A."""

    observed: float  # clicks per page of the log
    difference: float  # clicks per page
    std_error: float  # for the same queries
    interval: Ends  # 95 %, for the same queries, over both limits of unseen documents
    new_interval: Ends  # 95 %, for queries like these; NaN if nearly all pages are of one query, or not computed
    bounds: Ends  # without random error, with unseen documents never clicked, or whenever examined
    unsupported: float  # share of unseen documents in the exposure under the ranking
    filled: float  # exposure under the ranking over that under the log
    variances: tuple[float, float]  # of the clicks of a page, under the log and under the ranking
    pages: float
    halves: Ends  # F, difference by the earlier minus by the later half of the pages, and its error; or 0

    @property
    def faded(self) -> bool:
        """True if the earlier half of the pages favours the ranking significantly, as if it was trained on them."""
        more, error = self.halves
        return more > normal(1 - _LEAK_LEVEL) * error > 0

    @property
    def relative(self) -> float:
        """The difference over the clicks of the log; NaN without clicks."""
        return self.difference / self.observed if self.observed > 0 else np.nan

    @property
    def smallest(self) -> float:
        """The smallest difference that such a log detects in four of five cases."""
        return (normal(1 - _LEVEL / 2) + normal(_POWER)) * self.std_error

    def pages_per_arm(self, difference: float) -> float:
        """Return the pages of each arm of an A/B test of a difference D: (z_.975 + z_.8)^2 (s2_A + s2_B) / D^2."""
        z = normal(1 - _LEVEL / 2) + normal(_POWER)
        return z**2 * sum(self.variances) / difference**2 if difference else np.inf


def predict(
    sums: PageSums,
    prior: Prior,
    covariance: Floats | None,
    observed_variance: float | None = None,
    gains: Iterable[pl.DataFrame] = (),
) -> Prediction:
    """Predict clicks from the sums of a log.

    Args:
        sums: of all queries.
        prior: of the ranking.
        covariance: of log theta, shape (K, K); None takes theta as known.
        observed_variance: variance of the clicks of a page of the log. Both variances of the model are scaled to it,
            as clicks of a page are more correlated than in the model; None for the variances of the model.
        gains: parts of `PairAttractiveness.gains`, for the interval for new queries.
    """
    n, unseen, moments = sums.pages, float(sums.unseen.sum()), np.zeros((6, 2))
    for part in gains:
        t, n_q = part.select("low", "high").to_numpy(), part.select("pages").to_numpy()
        left_in = 1.0 / np.maximum(1.0 - n_q / n, 1e-9) ** 2
        terms = t**2 * left_in, t * n_q * left_in, n_q**2 * left_in + 0 * t, 1 + 0 * t, t / n_q, (t / n_q) ** 2
        moments += np.sum(terms, axis=1)
    ends = (_end(sums, prior, covariance, moments[:, end], end) for end in range(2))
    errors, intervals, new_intervals = zip(*ends, strict=True)
    within, mean, squared = sums.spread.T / n
    variances = within + np.maximum(squared - mean**2, 0.0)
    if observed_variance is not None:
        variances *= observed_variance / max(float(variances[0]), _TINY)
    return Prediction(
        observed=sums.clicks / n,
        difference=(sums.shown + float(sums.unseen @ prior.imputed[2])) / n,
        std_error=max(errors),
        interval=(min(low for low, _ in intervals), max(high for _, high in intervals)),
        new_interval=(min(low for low, _ in new_intervals), max(high for _, high in new_intervals)),
        bounds=(sums.shown / n, (sums.shown + unseen) / n),
        unsupported=unseen / max(sums.supported + unseen, _TINY),
        filled=(sums.supported + unseen) / max(sums.slots, _TINY),
        variances=(float(variances[0]), float(variances[1])),
        pages=n,
        halves=(float(sums.halves[0]) / n, float(np.sqrt(sums.halves[1])) / n),
    )


def _end(
    sums: PageSums, prior: Prior, covariance: Floats | None, moments: Floats, end: int
) -> tuple[float, Ends, Ends]:
    """Return error, interval and interval for new queries, with the lower (0) or upper (1) limit of unseen documents.

    The moments, shape (6,), are sums over queries, with t_q the gain and N_q the pages: for the jackknife of t^2, t N
    and N^2 by 1 / (1 - N_q / N)^2, and of 1, t / N and (t / N)^2 for equal queries.
    """
    n, imputed = sums.pages, prior.imputed[end]
    value = (sums.shown + float(sums.unseen @ imputed)) / n
    by_class = sums.rest @ prior.share + (sums.unseen * imputed) @ prior.share[prior.imputed_from]
    gradient = sums.moved + imputed @ sums.moved_unseen - sums.own - by_class
    of_theta = 0.0 if covariance is None else max(float(gradient @ covariance @ gradient), 0.0) / n**2
    # Influence of each query on N D through the means of classes, shape (Q,)
    query, number, h, rate = (column.to_numpy() for column in prior.pairs.get_columns())
    rank = number % _N_RANKS
    mass = np.maximum(_sum_by_class(number, h), _TINY)
    terms = (sums.lever / mass)[number] * h * (rate - prior.mean[number])
    rank_mass, clicks = sum_by_number(rank, h, _N_RANKS), sum_by_number(rank, h * rate, _N_RANKS)
    slope = np.divide(sums.unseen * imputed, clicks, out=np.zeros(_N_RANKS), where=clicks > 0)
    terms += slope[rank] * h * (rate - (clicks / np.maximum(rank_mass, _TINY))[rank])
    influence = sum_by_number(query, terms, 1)
    of_means = float(np.sum(influence**2)) / n**2
    of_clicks = (sums.variance + float(sums.unseen_squared @ imputed**2)) / n**2
    # Satterthwaite, as if the variances of clicks and of means were largest in the same queries
    fourth = (np.sqrt(sums.variance_squared[end]) + np.sqrt(np.sum(influence**4))) / n**2
    degrees = max((of_clicks + of_means) ** 2 / max(float(fourth) ** 2, _TINY), _FEWEST_DEGREES)
    squares, products, pages, n_queries, mean, mean_squares = moments
    jackknife = (squares - 2 * value * products + value**2 * pages) / n**2
    between = (mean_squares - mean**2 / max(n_queries, 1.0)) / max(n_queries - 1, 1.0)
    spread = float(max(jackknife, between * sums.pages_squared / n**2))
    new = spread + of_theta + of_means
    effective = n**2 / sums.pages_squared  # number of queries
    degrees_new = max(effective - 1.0, 1.0) * min(new / max(spread, _TINY), _MANY) ** 2

    def around(variance: float, degrees: float) -> Ends:
        half = t_quantile(degrees) * float(np.sqrt(variance))
        return value - half, value + half

    same = of_clicks + of_means + of_theta
    of_new = around(new, degrees_new) if n_queries and effective >= _FEWEST_QUERIES else (np.nan, np.nan)
    return float(np.sqrt(same)), around(same, degrees), of_new


def normal(probability: float) -> float:
    """Return a quantile of the standard normal distribution."""
    return float(scipy.special.ndtri(probability))


def browsing_difference(posterior: PairAttractiveness) -> float:
    """Return the gain of clicks of a ranking under the user browsing model, N D.

    Args:
        posterior: attractiveness of pairs of whole queries, with counts by position and last click above.
    """
    placed, value = posterior.placed, posterior.value
    part, by = placed.part, placed.part.by
    n_contexts, n_ranks, n_groups = int(by.context.max()) + 1, int(by.position.max()) + 1, len(part.pages)
    theta = np.zeros((n_contexts, n_ranks, n_ranks))
    theta[by.context, by.position, by.cells[PREVIOUS_CLICK].to_numpy()] = np.nan_to_num(by.theta)
    is_exposed = (placed.new_exposure > 0)[placed.kind]
    group, kind, attraction = placed.pair_group[is_exposed], placed.kind[is_exposed], np.zeros((n_groups, n_ranks))
    attraction[group, placed.rank[kind]] = (value * placed.ranked_pages)[kind] / part.pages[group]
    context = part.groups[CONTEXT].to_numpy()
    clicks, last = np.zeros(n_groups), np.zeros((n_groups, n_ranks))  # probability of each rank of the last click
    last[:, 0] = 1.0
    for at in range(1, n_ranks):
        clicked = last[:, :at] * np.minimum(theta[context, at, :at] * attraction[:, at, np.newaxis], 1.0)
        last[:, :at] -= clicked
        last[:, at] = clicked.sum(axis=1)
        clicks += last[:, at]
    return float(
        clicks @ (part.pages * placed.ranked) - (placed.number * placed.exposure)[placed.used] @ value[placed.used]
    )


UNIT = "posbias_unit"
"""Column of the page, or of the day, of counts."""

_SEED = 3  # of the hash that splits units into halves
_REJECTED, _MUCH, _ROUNDING = 0.02, 0.1, 1e-9


@dataclass(frozen=True)
class PageSlope:
    """The slope of clicks on predicted clicks within queries."""

    slope: float  # 1 under the position-based model
    std_error: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        half = normal(1 - _LEVEL / 2) * self.std_error
        return self.slope - half, self.slope + half

    @property
    def rejects(self) -> bool:
        """True if the slope differs from 1 significantly and by more than .1."""
        return abs(self.slope - 1) > max(normal(1 - _REJECTED / 2) * self.std_error, _MUCH)


def page_slope(rows: pl.DataFrame, by: CellTheta, covariance: Floats | None) -> PageSlope | None:
    """Estimate the slope of clicks on predicted clicks, between the pages of each query.

    Args:
        rows: counts of whole pages: `query`, `doc`, the cell columns, `UNIT`, `impressions`, `clicks`; at least one.
        by: theta of their cells.
        covariance: of log theta, shape (K, K); None takes theta as known.

    Returns:
        The slope; None without differences in predicted clicks, or if half of the units has no exposure.
    """
    keys, counts = (QUERY, DOC, *by.cells.columns), pl.col(IMPRESSIONS, CLICKS).sum()
    part = ShownPart.of(rows.group_by(keys).agg(counts), by)
    grouped = by.with_numbers(rows).join(part.groups, on=[QUERY, CONTEXT], how="left")
    rows = grouped.join(part.pairs, on=[_GROUP, DOC], how="left")
    rows = rows.group_by(PAIR, CELL, UNIT).agg(counts).sort(PAIR, UNIT, CELL)
    pair, cell = rows[PAIR].to_numpy(), rows[CELL].to_numpy()
    n_pairs, theta = len(part.group), np.nan_to_num(by.theta)[cell]
    impressions, clicks = (rows[name].to_numpy().astype(np.float64) for name in (IMPRESSIONS, CLICKS))
    values = impressions * theta, impressions * theta**2, clicks * by.known[cell]
    group = pl.Series(part.group[pair])
    is_tested = (rows.select(pl.struct(group.alias(QUERY), UNIT).hash(_SEED) % 2).to_series() == 1).to_numpy()
    unit = dense_row_ranks(rows.select(group.alias(QUERY), UNIT))
    by_all_pages = _attractiveness(part, *(sum_by_number(pair, column, n_pairs) for column in values))
    moment, variance, expected, gradient = 0.0, 0.0, 0.0, np.zeros(len(by.theta))
    for test in (is_tested, ~is_tested):
        others = [sum_by_number(pair[~test], column[~test], n_pairs) for column in values]
        if not others[0].any() or not test.any():
            return None
        half = pair[test], cell[test], unit[test], impressions[test], values[0][test], values[2][test]
        moments = _moment(part, half, _attractiveness(part, *others), by_all_pages)
        moment, variance, expected = moment + moments[0], variance + moments[1], expected + moments[2]
        gradient += moments[3]
    if covariance is not None:
        variance += max(float(gradient @ covariance @ gradient), 0.0)
    if not (expected > _ROUNDING * values[2].sum() and variance > 0):
        return None
    return PageSlope(1 + moment / expected, float(np.sqrt(variance)) / expected)


def _attractiveness(part: ShownPart, exposure: Floats, squared: Floats, clicks: Floats) -> Floats:
    """Return the shrunken attractiveness of each pair by some of its rows, shape (P,)."""
    each, zero = np.arange(len(exposure)), np.zeros(len(exposure), np.int64)
    placed = Placed(
        part=part,
        ranked=np.ones(len(part.pages), bool),
        doc=part.pairs[DOC],
        pair_group=part.group,
        kind=each,
        group=part.group,
        rank=zero,
        mixture=zero,
        ranked_pages=0 * exposure,
        exposure=exposure,
        squared=squared,
        clicks=clicks,
    )
    return Prior.fit(placed).posterior(placed).value


def _moment(
    part: ShownPart, half: tuple[Integers, Integers, Integers, Floats, Floats, Floats], learnt: Floats, expected: Floats
) -> tuple[float, float, float, Floats]:
    """Return M, its variance given theta, the sum of z E R, and G, shape (K,).

    Args:
        part: the queries.
        half: pair, cell, unit, impressions, exposure and clicks of the rows of half of the units, shape (R,) each.
        learnt: attractiveness by the other half, shape (P,).
        expected: attractiveness by all pages, shape (P,).
    """
    n_pairs, n_cells = len(part.group), len(part.by.theta)
    row_pair, cell, row_unit, impressions, exposure, clicks = half
    key, at = np.unique(row_unit * n_pairs + row_pair, return_inverse=True)
    e, c = (sum_by_number(at, values, len(key)) for values in (exposure, clicks))  # by page and pair
    pair, (_, unit) = key % n_pairs, np.unique(key // n_pairs, return_inverse=True)
    others = sum_by_number(pair, e, n_pairs)[pair] - e
    repeated = others > _ROUNDING * e
    e, others = np.where(repeated, e, 0.0), np.where(repeated, others, 1.0)
    rate = np.where(repeated, sum_by_number(pair, c, n_pairs)[pair] - c, 0.0) / others
    n_units, group = int(unit[-1]) + 1, np.zeros(int(unit[-1]) + 1, np.int64)
    group[unit] = part.group[pair]
    slot, number = np.unique(unit[at] * n_cells + cell, return_inverse=True)
    pages, slots = np.zeros(n_units), sum_by_number(number, impressions, len(slot))
    np.maximum.at(pages, slot // n_cells, slots / part.by.width[slot % n_cells])
    z = sum_by_number(unit, e * learnt[pair], n_units) / pages
    n_groups = len(part.pages)
    mean = sum_by_number(group, z * pages, n_groups) / np.maximum(sum_by_number(group, pages, n_groups), _ROUNDING)
    z = (z - mean[group])[unit]
    relative = z * e / others
    weight = np.where(repeated, z - sum_by_number(pair, relative, n_pairs)[pair] + relative, 0.0)
    noise = sum_by_number(unit, weight * (c - e * expected[pair]), n_units)
    moved = relative * rate
    gradient = sum_by_number(pair, moved, n_pairs)[pair] - moved - np.where(repeated, z * rate, 0.0)
    by_cell = sum_by_number(cell, exposure * gradient[at], n_cells)
    predicted = z * e * rate
    moment = float(np.sum(z * np.where(repeated, c, 0.0) - predicted))
    return moment, float(noise @ noise), float(predicted.sum()), by_cell
