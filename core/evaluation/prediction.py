"""Clicks per page of another ranking, predicted from what a log showed: the A/B test before it is run.

Pair d of query q (and context), counts n_dk and c_dk by cell k, N_q pages of the query, N of all:

    e_d = sum_k n_dk theta_k            exposure that the log gave (A)
    w_d = n_q(r) theta_q(r)             exposure that the ranking gives (B): r its rank of d, n_q(r) slots of that rank
    D   = (1 / N) sum_d (w_d - e_d) g_d         B - A, clicks per page

theta_q(r) = sum_k n_q(k) theta_k / n_q(r) over the cells k at position r: theta_r where cells are positions. Pages keep
their cells, such as a block above the results, whatever is ranked.

g, the attractiveness, is c / e shrunk towards the mean m of its class with variance V, by moments (linear empirical
Bayes; Morris 1983). A class is an octile of A's exposure per page x B's rank: B lifts what is better than its place
under A says, so that a prior by A's exposure alone pulls D to 0.

    s2 = (e m - m^2 sum_k n theta^2) / e^2      h = 1 / (V + s2)      b = V h      g = m + b (c / e - m)

A class of few pairs leans to the product of its row and column. Documents that no page of the query showed get between
half of what the least shown have at B's rank and what any shown one has there; D itself takes the least shown at two
parts and any at one; bounds let g be anything in [0, 1].

Errors, with u = w - e and L_c = sum_{d in c} u (1 - b):

    the same queries    N^2 Var = sum u^2 V (1 - b) + sum_q [sum_{d in q} L_c h_d (c / e - m) / H_c]^2 + G' S G
    queries like these  the jackknife over queries of D, or what equal queries would give it if that is more, and the
                        means and theta as above

S is the covariance of log theta and G_k = sum_{r(d) = k} w g - sum_d w g a*_dk, where a*_dk is the share of cell k in
the exposure behind g: that of the pair for the part b c / e of g, that of its class for the rest. Clicks given theta
and theta itself need no cross term: theta's score is conditional on the totals c_d that g uses (Hausman, Hall &
Griliches 1984).

A ranking that has learned from these pages puts on top what was lucky there. Where the pages are parted by time,

    F = (1 / N) sum_d u b (c_d1 / e_d1 - c_d2 / e_d2),    N^2 Var F = sum u^2 b^2 (s2_d1 + s2_d2)

has mean 0, over documents that both halves show, unless the ranking has seen the clicks of one of them.

The difference of another ranking's clicks under the user browsing model, beside that of the position-based model.

A document at rank r is examined with theta_rl, l the rank of the last click above it, 0 for none (Dupret & Piwowarski
2008). With counts by rank and last click, and the equations of `prediction`,

    e_d = sum_rl n_drl theta_rl              exposure that the log gave
    w_d = N_q sum_l P(l) theta_rl            exposure that the ranking gives, from the top down:
                                             a document d at rank r is clicked with P(l) theta_rl g_d, and then l is r
    D   = (1 / N) sum_d (w_d - e_d) g_d

Attractiveness g is shrunk as there. What stands on top changes how often what is below it is examined, which the
position-based model does not know.

Whether pages of better documents get as many more clicks as the position-based model says: a slope of 1.

Pages p of a query differ in what they show. Under the model they get x_p = sum_d E_pd g_d clicks, where E_pd is the sum
over cells of n_pdk theta_k. A difference between rankings is such a difference between pages, so no prediction holds
where clicks do not follow x: under a cascade a good document takes clicks from those below it, and the slope of clicks
on x is about 1/4.

The slope is free of attenuation. z_p is predicted from the clicks of the other half of the pages, less its mean over
the query; x_p has the rates of d on all other pages of its own half, and d counts only where there are such pages:

    R_pd = (c_d - C_pd) / (e_d - E_pd)        M = sum_pd z_p (C_pd - E_pd R_pd)
    slope = 1 + M / sum_pd z_p E_pd R_pd

E M = 0 under the model whatever z is. M is linear in the clicks of independent pages: M = sum_pd a_pd C_pd with
a_pd = z_p - sum_{v != p} z_v E_vd / (e_d - E_vd), so that

    Var M = sum_p [sum_d a_pd (C_pd - E_pd g_d)]^2 + G' S G,    G_k = dM / d log theta_k

The two halves change places, and their M add up. Where pages are not known, a unit is what a query showed on one day.
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

_LAST_RANKS = np.array([1, 2, 3, 5, 10, 20])  # of the classes of ranks; then further down, then not shown
_N_RANKS = len(_LAST_RANKS) + 2
_NOT_SHOWN = _N_RANKS - 1
_CLASS_OF_RANK = np.array([_NOT_SHOWN, *np.searchsorted(_LAST_RANKS, np.arange(1, int(_LAST_RANKS[-1]) + 2))])
_N_EXPOSURES = 9  # never shown, then octiles
_SHAPE = _N_EXPOSURES, _N_RANKS
_N_CLASSES = _N_EXPOSURES * _N_RANKS
_ROUNDS = 4  # of the moments: mean and variance need each other
_LEANING_PAIRS, _POOLED_PAIRS = 5.0, 10.0  # what the product of row and column, and the common variance, count
_LEAST_NOISE, _LEAST_MEAN, _LEAST_SPREAD = 0.05, 0.02, 0.1  # relative to what a Poisson count, all pairs, m say
_TINY, _MANY = 1e-300, 1e9
_FEWEST_DEGREES, _FEWEST_QUERIES = 3.0, 2.0
_UNSEEN = 0.5  # of what the least shown have: what documents that were never shown have at least
_LIKE_ANY = 1 / 3  # of the way from the least shown to any: what they have in the estimate itself
_POWER, _LEVEL, _LEAK_LEVEL = 0.8, 0.05, 0.01
CELL, CONTEXT, _GROUP, PAIR = "posbias_cell", "posbias_context", "posbias_group", "posbias_pair"
_QUERY = "posbias_query"
CLASS = "posbias_class"
"""The class of the query of each row, as text; counts without classes lack the column."""

LATE = "posbias_late"
"""The column that marks rows of the later half of the pages; counts that are not parted lack it."""

Ends = tuple[float, float]
"""The lower and the upper end of an interval."""


@dataclass(frozen=True)
class CellTheta:
    """Theta of the K cells that occur."""

    plan: StatisticsPlan
    cells: pl.DataFrame  # the cell columns, sorted
    theta: Floats  # P(examined), up to a factor; NaN where it is not known; shape (K,)

    @cached_property
    def known(self) -> Flags:
        """Cells with a theta, shape (K,)."""
        return np.isfinite(self.theta)

    @cached_property
    def examined(self) -> Floats:
        """Theta, 0 where it is not known, shape (K,)."""
        return np.nan_to_num(self.theta)

    @cached_property
    def position(self) -> Integers:
        """The first position of each cell, shape (K,)."""
        return self.cells[POSITION].to_numpy().astype(np.int64)

    @cached_property
    def place(self) -> Integers:
        """The first cell of each cell's position and context, shape (K,); itself where cells are positions."""
        _, first, number = np.unique(
            self.context * (int(self.position.max()) + 1) + self.position, return_index=True, return_inverse=True
        )
        return first[number]

    @cached_property
    def width(self) -> Floats:
        """Number of positions of each cell, infinite for the last bin, shape (K,)."""
        bins = self.plan.position_bins
        if not bins:
            return np.ones(len(self.theta))
        ends = np.array([*bins[1:], np.inf], np.float64)
        return ends[np.searchsorted(bins, self.position, side="right") - 1] - self.position

    @cached_property
    def context(self) -> Integers:
        """The number of each cell's context, from 0, shape (K,)."""
        return context_numbers(self.cells, self.plan.context)

    @property
    def contexts(self) -> list[str]:
        """Names of the contexts, by number; empty without contexts."""
        names = self.plan.context
        of_cells = self.cells.select(names).unique(maintain_order=True).rows()
        return [", ".join(f"{name}={value}" for name, value in zip(names, row, strict=True)) for row in of_cells]

    def numbered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with the number of their cell, and that of its context."""
        rows = rows.with_columns(key_numbers(self.cells, rows, self.plan.cell_columns).alias(CELL).cast(pl.Int64))
        return rows.with_columns(pl.Series(CONTEXT, self.context[rows[CELL].to_numpy()]))


@dataclass(frozen=True)
class ShownPart:
    """Counts of some whole queries: R rows of P pairs, in G groups (a query and a context)."""

    by: CellTheta
    groups: pl.DataFrame  # `query`, context, group, perhaps `CLASS`
    pairs: pl.DataFrame  # group, `doc`, pair
    query: Integers  # of each group, numbered from 0, shape (G,)
    pages: Floats  # shape (G,)
    slot: Integers  # group * K + place of the cell, ascending, of what was shown
    slots: Floats  # impressions there
    mixture: Integers  # the number of the shares of cells in it
    mixtures: CountTable  # these shares, as impressions
    group: Integers  # of each pair, shape (P,)
    # Of pairs, in cells with a theta: 2 k is cell k in the earlier half of the pages, or all, 2 k + 1 in the later one
    counts: CountTable

    @classmethod
    def of(cls, counts: pl.DataFrame, by: CellTheta) -> "ShownPart":
        """Arrays of counts, one row a key: `query`, `doc`, the cell columns, `impressions`, `clicks`, maybe `LATE`."""
        parted, classes = ([name] if name in counts.columns else [] for name in (LATE, CLASS))
        rows = by.numbered(counts).select(QUERY, CONTEXT, DOC, CELL, IMPRESSIONS, CLICKS, *parted, *classes)
        rows = rows.sort(QUERY, CONTEXT, DOC, CELL, *parted)
        rows = rows.with_columns(
            pl.struct(QUERY, CONTEXT).rle_id().cast(pl.Int64).alias(_GROUP),
            pl.struct(QUERY, CONTEXT, DOC).rle_id().cast(pl.Int64).alias(PAIR),
            pl.col(QUERY).rle_id().cast(pl.Int64).alias(_QUERY),
        )
        of_group, of_pair = (rows[name].to_numpy() for name in (_GROUP, PAIR))
        groups = rows[first_of_runs(of_group)].select(QUERY, CONTEXT, _GROUP, _QUERY, *classes)
        pairs = rows[first_of_runs(of_pair)].select(_GROUP, DOC, PAIR)
        n_cells, cell = len(by.theta), rows[CELL].to_numpy()
        shown = rows[IMPRESSIONS].to_numpy().astype(np.float64)
        of_cell, at = np.unique(of_group * n_cells + cell, return_inverse=True)
        of_cells, cells = sum_by_number(at, shown, len(of_cell)), of_cell % n_cells
        slot, at = np.unique(of_cell - cells + by.place[cells], return_inverse=True)
        slots, order = sum_by_number(at, of_cells, len(slot)), np.argsort(at, kind="stable")
        shares, one = (of_cells / slots[at])[order], np.ones(len(slot))
        shares = CountTable(n_cells, starts(np.bincount(at)), cells[order], shares, 0 * shares, one)
        mixtures, mixture = compress(shares)
        pages = np.maximum.reduceat(slots / by.width[slot % n_cells], first_of_runs(slot // n_cells))
        known, late = by.known[cell], rows[LATE].to_numpy() if parted else 0
        start = starts(np.bincount(of_pair[known], minlength=pairs.height))
        clicks = rows[CLICKS].to_numpy().astype(np.float64)[known]
        table = CountTable(2 * n_cells, start, (2 * cell + late)[known], shown[known], clicks, np.ones(pairs.height))
        query, group, of_slots = groups[_QUERY].to_numpy(), pairs[_GROUP].to_numpy(), (slot, slots, mixture, mixtures)
        return cls(by, groups.drop(_QUERY), pairs, query, pages, *of_slots, group, table)

    @cached_property
    def cell(self) -> Integers:
        """The cell of each row, shape (R,)."""
        return self.counts.cell // 2

    @cached_property
    def theta_there(self) -> Floats:
        """theta_q(r) of each mixture of cells; cells without a theta count as 0."""
        return self.mixtures.sum_by_unit(self.mixtures.impressions * self.by.examined[self.mixtures.cell])

    def by_cell_there(self, mixture: Integers, values: Floats) -> Floats:
        """The sum of exposure by cell, shape (K,), of what pairs get in slots of these mixtures."""
        rate = sum_by_number(mixture, values, self.mixtures.n_units) / np.maximum(self.theta_there, _TINY)
        return self.mixtures.sum_by_cell(self.mixtures.spread(rate) * self.mixtures.impressions) * self.by.examined

    @cached_property
    def row_exposure(self) -> Floats:
        """N theta of each row, shape (R,)."""
        return self.counts.impressions * self.by.theta[self.cell]


@dataclass(frozen=True)
class Placed:
    """The P' pairs of a part as a ranking places them: the P that were shown, then those that it adds.

    Pairs of one kind are alike in all that is below, and in the counts of their rows: most are of queries with a page
    or two. The counts of the part are those of its J kinds.
    """

    part: ShownPart
    ranked: Flags  # whether it has a list for the group, shape (G,)
    doc: pl.Series  # of each pair, of length P'
    pair_group: Integers  # of each pair, shape (P',)
    kind: Integers  # of each pair, shape (P',)
    group: Integers  # of a pair of each kind: the others' have as many pages, in one context and class; shape (J,)
    rank: Integers  # from 1; 0 where it has none
    mixture: Integers  # of the slot in which it is then; 0 where none
    pages_there: Floats  # that have the slot filled as far as its rank
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
        # The cell of each rank, -1 where there is none
        number = np.full((int(by.context.max()) + 1, int(by.position.max()) + 1), -1)
        number[by.context, by.position] = by.place
        first = rank
        if by.plan.position_bins:
            bins = np.array(by.plan.position_bins)
            first = bins[np.searchsorted(bins, rank, side="right") - 1]
        numbered = number[joined[CONTEXT].to_numpy(), np.minimum(first, number.shape[1] - 1)]
        cell = np.where(first < number.shape[1], numbered, -1)
        key = group * n_cells + cell
        at = np.minimum(np.searchsorted(part.slot, key), len(part.slot) - 1)
        there = (cell >= 0) & (part.slot[at] == key)
        per_page = np.where(there, part.slots[at], 0.0) / part.pages[group]
        filled = np.clip(per_page - (rank - by.position[cell]), 0.0, 1.0) * part.pages[group] * there
        there = (filled > 0) & (part.theta_there[part.mixture[at]] > 0)
        pair = joined[PAIR].fill_null(-1).to_numpy()
        old, new, n_pairs = there & (pair >= 0), there & (pair < 0), len(part.group)

        def placed(values: Floats | Integers) -> Floats:
            of_shown = np.zeros(n_pairs)
            of_shown[pair[old]] = values[old]
            return np.append(of_shown, values[new].astype(np.float64))

        groups, ranked = np.concatenate([part.group, group[new]]), np.zeros(len(part.pages), bool)
        ranked[group] = True
        docs = part.pairs[DOC].append(joined[DOC].filter(pl.Series(new)))
        alike = part.groups.select(pl.selectors.by_name(CLASS, require_all=False), pages=part.pages, ranked=ranked)
        beside = dense_row_ranks(alike)[groups].astype(np.float64), *map(placed, (filled, rank, part.mixture[at]))
        rows = starts(np.append(part.counts.entries_of_unit, np.zeros(len(groups) - n_pairs, np.int64)))
        table = replace(part.counts, start=rows, multiplicity=np.ones(len(groups)))
        counts, kind = compress(table, beside=beside)
        one = np.zeros(counts.n_units, np.int64)
        one[kind] = np.arange(len(kind))  # a pair of each kind
        filled, *there = (of[one] for of in beside[1:])
        rank, mixture = (of.astype(np.int64) for of in there)
        part, clicks = replace(part, counts=counts), counts.sum_by_unit(counts.clicks)
        of_pairs = docs, groups, kind
        return cls(part, ranked, *of_pairs, groups[one], rank, mixture, filled, clicks, clicks, clicks).bent(Bend())

    def bent(self, bend: Bend) -> "Placed":
        """The same pairs under bent propensities."""
        by = self.part.by
        part = replace(self.part, by=replace(by, theta=bend.theta(by.theta, by.position.astype(np.float64))))
        rows = part.row_exposure, part.row_exposure * part.by.theta[part.cell]
        exposure, squared = (part.counts.sum_by_unit(of) for of in rows)
        return replace(self, part=part, exposure=exposure, squared=squared)

    @cached_property
    def class_of_rank(self) -> Integers:
        """The class of the rank, shape (J,)."""
        return _CLASS_OF_RANK[np.minimum(self.rank, len(_CLASS_OF_RANK) - 1)]

    @property
    def number(self) -> Floats:
        """Pairs of each kind, shape (J,)."""
        return self.part.counts.multiplicity

    def by_group(self, of_kinds: Floats) -> Floats:
        """The sum over the pairs of each group of values of their kinds, shape (G,)."""
        return sum_by_number(self.pair_group, of_kinds[self.kind], len(self.part.pages))

    @cached_property
    def exposure_there(self) -> Floats:
        """Exposure that the ranking gives, w, shape (J,)."""
        return self.pages_there * self.part.theta_there[self.mixture]

    @cached_property
    def divisor(self) -> Floats:
        """Exposure by the log, 1 where never shown, shape (J,)."""
        return np.where(self.exposure > 0, self.exposure, 1.0)

    @cached_property
    def used(self) -> Flags:
        """Pairs that were shown, of a query that the ranking has a list for, shape (J,)."""
        return (self.exposure > 0) & self.ranked[self.group]

    @cached_property
    def per_page(self) -> Floats:
        """Exposure by the log per page, shape (J,)."""
        return self.exposure / self.part.pages[self.group]

    @cached_property
    def rate(self) -> Floats:
        """Own rate c / e, 0 where never shown, shape (J,)."""
        return self.clicks * (self.exposure > 0) / self.divisor

    def noise(self, mean: Floats) -> Floats:
        """Variance s2 of c / e where attractiveness is m; of pairs that were shown."""
        expected = self.divisor * mean
        return np.maximum(expected - self.squared * mean**2, _LEAST_NOISE * expected) / self.divisor**2


@dataclass(frozen=True)
class PairAttractiveness:
    """Attractiveness of the kinds of pairs of a part, of shape (J,)."""

    placed: Placed
    number: Integers  # of the class
    kept: Floats  # b; of pairs that were shown
    variance: Floats  # V (1 - b); of pairs that were shown
    value: Floats  # g
    unseen: Integers  # the pairs that were never shown, N
    lent: Floats  # the least and the most that these may have, shape (2, N)

    def by_query(self, seen: Floats, lent: Floats, chosen: Flags) -> Floats:
        """Sums over queries, of chosen groups, of values of kinds, instead of them two of those never shown: (2, Q)."""
        part = self.placed.part
        ends = np.stack([seen, seen] if len(self.unseen) else [seen])
        ends[:, self.unseen] = lent[: len(ends)]
        of_groups = (self.placed.by_group(end) * chosen for end in ends)
        n_queries = int(part.query[-1]) + 1
        return np.broadcast_to([sum_by_number(part.query, of, n_queries) for of in of_groups], (2, n_queries))

    def gains(self) -> pl.DataFrame:
        """The clicks that each query with a list gains, whether documents never shown have the least or the most."""
        placed, part, chosen = self.placed, self.placed.part, self.placed.ranked
        gained = (placed.exposure_there - placed.exposure) * self.value
        lent = placed.exposure_there[self.unseen] * self.lent
        low, high = self.by_query(gained, lent, chosen)
        pages = sum_by_number(part.query, part.pages * chosen, len(low))
        return pl.DataFrame({"low": low, "high": high, "pages": pages}).filter(pl.col("pages") > 0)


@dataclass(frozen=True)
class Prior:
    """Mean and variance of attractiveness by class, and what is lent to documents that were never shown."""

    edges: Floats  # octiles of exposure per page
    mean: Floats  # m, shape (C,)
    spread: Floats  # V, shape (C,)
    share: Floats  # of each cell in the exposure behind the means, shape (C, K)
    # For each class of ranks: half of what the least shown have, what any shown one has, and between; shape (3, B)
    lent: Floats
    lender: Integers  # the class whose exposure stands behind that, shape (B,)
    pairs: pl.DataFrame  # that means were made from: `query`, `CLASS` (its number), `precision`, `rate`

    @classmethod
    def fit(cls, placed: Placed) -> "Prior":
        """Estimate it by moments from the pairs of whole queries; there is a pair that was shown."""
        used, rate = placed.used, placed.rate
        of_pairs = placed.kind[used[placed.kind]]
        edges = np.quantile(placed.per_page[of_pairs], np.arange(1, _N_EXPOSURES - 1) / (_N_EXPOSURES - 1))
        edges *= 1 - 1e-9  # so that pairs that were shown as much as each other stay together, whatever is rounded
        number = _classes(placed, edges)
        at, own, times = number[used], rate[used], placed.number[used]
        count, exposed, clicks = (_by_class(at, times * of) for of in (1.0, placed.exposure[used], placed.clicks[used]))
        overall = float(max(clicks.sum(), 0.5) / exposed.sum())  # where there is no click, half a one
        mean = np.where(exposed > 0, clicks / np.maximum(exposed, _TINY), overall)
        mean = np.maximum(mean, _LEAST_MEAN * overall)
        spread = np.full(_N_CLASSES, overall**2)
        h = noise = np.zeros(0)
        for _ in range(_ROUNDS):
            noise = placed.noise(mean[number])[used]
            h = 1.0 / (spread[at] + noise)
            mass, total = _by_class(at, times * h), _by_class(at, times * h * own)
            # A class of few pairs leans to the product of its row and column
            product = np.outer(*_products(mass, total, overall)).ravel()
            extra = _LEANING_PAIRS * mass / np.maximum(count, 1.0)
            leaning = np.where(mass > 0, (total + extra * product) / np.maximum(mass + extra, _TINY), product)
            mean = np.maximum(leaning, _LEAST_MEAN * overall)
            squares = _by_class(at, times * h**2)
            excess = _by_class(at, times * h**2 * ((own - mean[at]) ** 2 - noise))
            raw, pooled = excess / np.maximum(squares, _TINY), excess.sum() / squares.sum()
            spread = (count * raw + _POOLED_PAIRS * pooled) / (count + _POOLED_PAIRS)
            spread = np.maximum(spread, (_LEAST_SPREAD * mean) ** 2 + 1e-8 * overall**2)
        mass, total = _by_class(at, times * h), _by_class(at, times * h * own)
        lent, lender = _lent(mass, total, count, overall)
        precision = np.zeros(len(number))
        precision[used] = h
        weight = placed.number * precision / placed.divisor  # h c / e, shared by the exposure of its rows
        part, n_cells = placed.part, len(placed.part.by.theta)
        of_rows = part.counts.spread(weight * rate) * part.row_exposure
        of_class = number[part.counts.unit_of_entry] * n_cells + part.cell
        share = sum_by_number(of_class, of_rows, _N_CLASSES * n_cells).reshape(-1, n_cells)
        share = np.where(share.any(1, keepdims=True), share, share.sum(0))  # a class without clicks leans to all
        share /= np.maximum(share.sum(1, keepdims=True), _TINY)
        query = placed.part.query[placed.pair_group[used[placed.kind]]]
        columns = {CLASS: number, "precision": precision, "rate": rate}
        pairs = pl.DataFrame({QUERY: query} | {name: column[of_pairs] for name, column in columns.items()})
        return cls(edges, mean, spread, share, lent, lender, pairs)

    def posterior(self, placed: Placed) -> PairAttractiveness:
        """The attractiveness of pairs."""
        number = _classes(placed, self.edges)
        mean, spread = self.mean[number], self.spread[number]
        kept = spread / (spread + placed.noise(mean))
        value = mean + kept * (placed.rate - mean)
        unseen = np.flatnonzero(placed.exposure <= 0)
        *lent, value[unseen] = self.lent[:, placed.class_of_rank[unseen]]
        return PairAttractiveness(placed, number, kept, spread * (1 - kept), value, unseen, np.stack(lent))


def _classes(placed: Placed, edges: Floats) -> Integers:
    octile = sum((placed.per_page > edge).astype(np.int8) for edge in edges)  # with few edges, faster than a search
    return (1 + np.int64(octile)) * _N_RANKS + placed.class_of_rank


def _by_class(number: Integers, values: Floats) -> Floats:
    return sum_by_number(number, values, _N_CLASSES)


def _products(mass: Floats, total: Floats, overall: float) -> tuple[Floats, Floats]:
    """Rows a_i and columns b_j whose products fit a table of means, by iterative proportional fitting."""
    mass, total = mass.reshape(_SHAPE), total.reshape(_SHAPE)
    row, column = np.full(_N_EXPOSURES, overall), np.ones(_N_RANKS)
    least = 1e-6 * mass.sum() + _TINY
    for _ in range(10):
        row = (total.sum(1) + least * overall) / ((mass * column).sum(1) + least)
        column = (total.sum(0) + least * overall) / ((mass * row[:, None]).sum(0) + least * overall)
    return row, column


def _lent(mass: Floats, total: Floats, count: Floats, overall: float) -> tuple[Floats, Integers]:
    """Attractiveness of pairs that were never shown, by rank (`Prior.lent`), and the class that it comes from most."""
    row, column = _products(mass, total, overall)
    lowest = float(row[1])
    at_rank, total_at_rank = mass.reshape(_SHAPE).sum(0), total.reshape(_SHAPE).sum(0)
    there = at_rank > 0
    least = lowest * np.where(there, column, 1.0)
    most = np.where(there, total_at_rank / np.maximum(at_rank, _TINY), overall)
    lender = np.argmax(count.reshape(_SHAPE), axis=0) * _N_RANKS + np.arange(_N_RANKS)
    between = least + _LIKE_ANY * (most - least)
    return np.stack([np.minimum(_UNSEEN * least, most), np.maximum(_UNSEEN * least, most), between]), lender


def most_changed(posterior: PairAttractiveness, number: int, depth: int) -> pl.DataFrame:
    """The queries whose clicks a ranking changes most, with what they show most now and what it puts on top.

    Args:
        posterior: the pairs of some queries.
        number: how many queries.
        depth: how many documents of each.

    Returns:
        A row a query (and context): `query`, `pages`, `difference` (clicks in all), `before` and `after` (ids as text).
    """
    placed, part = posterior.placed, posterior.placed.part
    gained = placed.by_group((placed.exposure_there - placed.exposure) * posterior.value) * placed.ranked
    groups = part.groups.with_columns(pages=part.pages, difference=gained)
    groups = groups.sort(pl.col("difference").abs(), descending=True, maintain_order=True).head(number)
    here = np.flatnonzero(np.isin(np.arange(len(part.pages)), groups[_GROUP].to_numpy())[placed.pair_group])
    kind = placed.kind[here]
    columns = {"per_page": placed.per_page[kind], "rank": placed.rank[kind]}
    pairs = pl.DataFrame({_GROUP: placed.pair_group[here], DOC: placed.doc.gather(here), **columns})
    pairs = pairs.with_columns(id_text(placed.doc.dtype).alias(DOC))
    before = pairs.filter(pl.col("per_page") > 0).sort("per_page", descending=True, maintain_order=True)
    after = pairs.filter(pl.col("rank") > 0).sort("rank", maintain_order=True)
    for name, rows in (("before", before), ("after", after)):
        lists = rows.group_by(_GROUP).agg(pl.col(DOC).head(depth).alias(name))
        groups = groups.join(lists, on=_GROUP, how="left", maintain_order="left")
    return groups.select(QUERY, "pages", "difference", pl.col("before", "after").fill_null([]))


@dataclass(frozen=True)
class Scope:
    """The clicks that a prediction is of: all, those in the first ranks, of a context, or of a class of queries."""

    name: str
    top: int | None = None  # the first ranks only
    part: tuple[str, int | str] | None = None  # `CONTEXT` and its number, or `CLASS` and its name

    @property
    def groups(self) -> pl.Expr:
        """The condition that a group is in the scope."""
        return pl.lit(True) if self.part is None else pl.col(self.part[0]) == self.part[1]


@dataclass(frozen=True)
class PageSums(Sums):
    """Sums over some whole queries that a ranking has lists for; those of the log at last. B classes of ranks."""

    pages: float
    clicks: float  # those of the log
    slots: float  # exposure by the log
    seen: float  # sum of u g of documents that were shown
    lent: Floats  # exposure that the ranking gives to others, shape (B,)
    lent_squared: Floats  # sum of its squares, shape (B,)
    supported: float  # exposure that it gives to those that were shown
    variance: float  # sum of u^2 V (1 - b)
    variance_squared: Floats  # sum over queries of the squares of that and of what is lent, for each end; shape (2,)
    lever: Floats  # sum of u (1 - b), shape (C,)
    moved: Floats  # sum of w g by cell under the ranking, of documents that were shown, shape (K,)
    moved_lent: Floats  # sum of w by class of ranks and cell, of others, shape (B, K)
    own: Floats  # sum of w b c / e by cell of the log, shape (K,)
    rest: Floats  # sum of w (g - b c / e) by class, shape (C,)
    pages_squared: float
    # Of the clicks of a page under the model, by the log and by the ranking: sums of the variance given the query, of
    # the mean, and of its square over N; shape (2, 3)
    spread: Floats
    halves: Floats  # N F and its variance; 0 where pages are not parted; shape (2,)

    @classmethod
    def of(cls, posterior: PairAttractiveness, scope: Scope, *, planned: bool = True) -> "PageSums":
        """The sums of a part.

        Args:
            posterior: its pairs.
            scope: of which clicks.
            planned: whether `spread` and `halves` are needed, which take as long as all the rest; they are 0 if not.
        """
        placed, part = posterior.placed, posterior.placed.part
        by, counts = part.by, part.counts
        n_cells, n_queries, top = len(by.theta), int(part.query[-1]) + 1, np.ones(len(by.theta))
        chosen = placed.ranked & part.groups.select(pl.lit(True) & scope.groups).to_series().to_numpy()
        number, n_q = placed.number * chosen[placed.group], sum_by_number(part.query, part.pages * chosen, n_queries)
        w, e, clicks = placed.exposure_there, placed.exposure, placed.clicks
        if scope.top is not None:
            top = (by.position <= scope.top).astype(np.float64)
            w = w * (placed.rank <= scope.top)
            e, clicks = (counts.sum_by_unit(of * top[part.cell]) for of in (part.row_exposure, counts.clicks))
        g, unseen, own = posterior.value, posterior.unseen, posterior.kept * placed.rate
        lent, rank_lent, times = w[unseen], placed.class_of_rank[unseen], number[unseen]
        w_seen = w.copy()
        w_seen[unseen] = 0.0
        u = w_seen - e
        variance, weight = u**2 * posterior.variance, number * w_seen * own / placed.divisor
        of_rank = (rank_lent == rank for rank in range(_N_RANKS))
        moved_lent = [part.by_cell_there(placed.mixture[unseen][at], (times * lent)[at]) for at in of_rank]
        spread, halves = np.zeros((2, 3)), np.zeros(2)
        if planned:
            g_of_row, theta_there = counts.spread(g), part.theta_there[placed.mixture]
            of_rows = counts.spread(number) * part.row_exposure * top[part.cell] * g_of_row
            chances = np.minimum(by.theta[part.cell] * g_of_row, 1.0), np.minimum(theta_there * g, 1.0)
            means = (placed.by_group(of * g) * chosen for of in (e, w))
            for end, (values, p, m) in enumerate(zip((of_rows, number * w * g), chances, means, strict=True)):
                spread[end] = m.sum() - values @ p, m.sum(), np.sum(m**2 / np.maximum(part.pages, _TINY))
            halves = _between_halves(placed, number, u * posterior.kept, g)
        return cls(
            pages=float(n_q.sum()),
            clicks=float(number @ clicks),
            slots=float(number @ e),
            seen=float((number * u) @ g),
            lent=sum_by_number(rank_lent, times * lent, _N_RANKS),
            lent_squared=sum_by_number(rank_lent, times * lent**2, _N_RANKS),
            supported=float(number @ w_seen),
            variance=float(number @ variance),
            variance_squared=np.sum(posterior.by_query(variance, (lent * posterior.lent) ** 2, chosen) ** 2, axis=1),
            lever=_by_class(posterior.number, number * u * (1 - posterior.kept)),
            moved=part.by_cell_there(placed.mixture, number * w_seen * g),
            moved_lent=np.stack(moved_lent),
            own=sum_by_number(part.cell, counts.spread(weight) * part.row_exposure, n_cells),
            rest=_by_class(posterior.number, number * w_seen * (g - own)),
            pages_squared=float(np.sum(n_q**2)),
            spread=spread,
            halves=halves,
        )


def _between_halves(placed: Placed, number: Floats, weight: Floats, value: Floats) -> Floats:
    """A weighted sum of attractiveness by the earlier half of the pages, less that by the later; and its variance."""
    part, counts = placed.part, placed.part.counts
    if not (counts.cell % 2).any():
        return np.zeros(2)
    rates, noises, there = list[Floats](), list[Floats](), np.ones(counts.n_units, bool)
    for late in range(2):
        rows = (part.row_exposure, part.row_exposure * part.by.theta[part.cell], counts.clicks)
        exposure, squared, clicks = (counts.sum_by_unit(values * (counts.cell % 2 == late)) for values in rows)
        of_half = replace(placed, exposure=exposure, squared=squared, clicks=clicks)
        there &= exposure > 0
        rates.append(of_half.rate)
        noises.append(of_half.noise(value))
    apart = np.where(there, weight, 0.0)
    return np.array([number @ (apart * (rates[0] - rates[1])), number @ (apart**2 * (noises[0] + noises[1]))])


@dataclass(frozen=True)
class Prediction:
    """Predicted clicks per page of a ranking; `difference` and what follows are B - A."""

    observed: float  # clicks per page of the log
    difference: float
    std_error: float  # for the same queries
    interval: Ends  # 95 %, for the same queries, whatever documents that were never shown are worth
    new_interval: Ends  # for queries like these; NaN where nearly all pages are of one query, or it was left out
    bounds: Ends  # chance aside: documents that were never shown clicked never, or whenever examined
    unsupported: float  # share of the ranking's exposure that goes to documents that were never shown
    filled: float  # the exposure that it gives, over that of the log
    variances: tuple[float, float]  # of the clicks of a page, by the log and by the ranking
    pages: float
    halves: Ends  # how much higher the earlier half of the pages puts it than the later, with its error; or 0

    @property
    def faded(self) -> bool:
        """True if the earlier half of the pages speaks for the ranking more than by chance, as if it knew them."""
        more, error = self.halves
        return more > normal(1 - _LEAK_LEVEL) * error > 0

    @property
    def relative(self) -> float:
        """The difference over the clicks of the log; NaN where there are none."""
        return self.difference / self.observed if self.observed > 0 else np.nan

    @property
    def smallest(self) -> float:
        """The smallest difference that this log shows in four of five cases."""
        return (normal(1 - _LEVEL / 2) + normal(_POWER)) * self.std_error

    def pages_per_arm(self, difference: float) -> float:
        """Pages of each arm of an A/B test of a difference D: (z_.975 + z_.8)^2 (s2_A + s2_B) / D^2."""
        z = normal(1 - _LEVEL / 2) + normal(_POWER)
        return z**2 * sum(self.variances) / difference**2 if difference else np.inf


def predict(
    sums: PageSums,
    prior: Prior,
    covariance: Floats | None,
    observed_variance: float | None = None,
    gains: Iterable[pl.DataFrame] = (),
) -> Prediction:
    """Predict from the sums of a log.

    Args:
        sums: of all of its queries.
        prior: of the ranking.
        covariance: of log theta, shape (K, K); None takes theta as known.
        observed_variance: of the clicks of a page of the log. That of the ranking is then as many times what the model
            says, because clicks of a page share more than the model knows; None takes the model's.
        gains: of each query, in parts (see `PairAttractiveness.gains`); none leaves out the interval for new queries.
    """
    n, lent, moments = sums.pages, float(sums.lent.sum()), np.zeros((6, 2))
    for part in gains:
        t, n_q = part.select("low", "high").to_numpy(), part.select("pages").to_numpy()
        left_in = 1.0 / np.maximum(1.0 - n_q / n, 1e-9) ** 2
        of_part = t**2 * left_in, t * n_q * left_in, n_q**2 * left_in + 0 * t, 1 + 0 * t, t / n_q, (t / n_q) ** 2
        moments += np.sum(of_part, axis=1)
    ends = (_end(sums, prior, covariance, moments[:, end], end) for end in range(2))
    errors, intervals, new_intervals = zip(*ends, strict=True)
    within, mean, squared = sums.spread.T / n
    variances = within + np.maximum(squared - mean**2, 0.0)
    if observed_variance is not None:
        variances *= observed_variance / max(float(variances[0]), _TINY)
    return Prediction(
        observed=sums.clicks / n,
        difference=(sums.seen + float(sums.lent @ prior.lent[2])) / n,
        std_error=max(errors),
        interval=(min(low for low, _ in intervals), max(high for _, high in intervals)),
        new_interval=(min(low for low, _ in new_intervals), max(high for _, high in new_intervals)),
        bounds=(sums.seen / n, (sums.seen + lent) / n),
        unsupported=lent / max(sums.supported + lent, _TINY),
        filled=(sums.supported + lent) / max(sums.slots, _TINY),
        variances=(float(variances[0]), float(variances[1])),
        pages=n,
        halves=(float(sums.halves[0]) / n, float(np.sqrt(sums.halves[1])) / n),
    )


def _end(
    sums: PageSums, prior: Prior, covariance: Floats | None, moments: Floats, end: int
) -> tuple[float, Ends, Ends]:
    """Error, interval and interval for new queries, with unseen documents worth the least (0) or the most (1).

    The moments are sums over queries, t_q the difference and N_q the pages: for the jackknife of t^2, t N and N^2 by
    1 / (1 - N_q / N)^2, and of 1, t / N and (t / N)^2 for equal queries.
    """
    n, lent = sums.pages, prior.lent[end]
    value = (sums.seen + float(sums.lent @ lent)) / n
    mixed = sums.rest @ prior.share + (sums.lent * lent) @ prior.share[prior.lender]
    gradient = sums.moved + lent @ sums.moved_lent - sums.own - mixed
    of_theta = 0.0 if covariance is None else max(float(gradient @ covariance @ gradient), 0.0) / n**2
    # Influence of each query on N D through the means of classes, shape (Q,)
    query, number, h, rate = (column.to_numpy() for column in prior.pairs.get_columns())
    rank = number % _N_RANKS
    mass = np.maximum(_by_class(number, h), _TINY)
    moved = (sums.lever / mass)[number] * h * (rate - prior.mean[number])
    at_rank, clicks = sum_by_number(rank, h, _N_RANKS), sum_by_number(rank, h * rate, _N_RANKS)
    slope = np.divide(sums.lent * lent, clicks, out=np.zeros(_N_RANKS), where=clicks > 0)
    moved += slope[rank] * h * (rate - (clicks / np.maximum(at_rank, _TINY))[rank])
    influence = sum_by_number(query, moved, 1)
    of_means = float(np.sum(influence**2)) / n**2
    of_clicks = (sums.variance + float(sums.lent_squared @ lent**2)) / n**2
    # Satterthwaite; the parts of clicks and of means are taken to meet in the same queries
    together = (np.sqrt(sums.variance_squared[end]) + np.sqrt(np.sum(influence**4))) / n**2
    degrees = max((of_clicks + of_means) ** 2 / max(float(together) ** 2, _TINY), _FEWEST_DEGREES)
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
    """The quantile of the standard normal distribution."""
    return float(scipy.special.ndtri(probability))


def browsing_difference(posterior: PairAttractiveness) -> float:
    """The clicks that a ranking gains under the user browsing model, N D.

    Args:
        posterior: pairs of whole queries, with counts by position and last click above.
    """
    placed, value = posterior.placed, posterior.value
    part, by = placed.part, placed.part.by
    n_contexts, n_ranks, n_groups = int(by.context.max()) + 1, int(by.position.max()) + 1, len(part.pages)
    theta = np.zeros((n_contexts, n_ranks, n_ranks))
    theta[by.context, by.position, by.cells[PREVIOUS_CLICK].to_numpy()] = np.nan_to_num(by.theta)
    there = (placed.exposure_there > 0)[placed.kind]
    group, kind, attraction = placed.pair_group[there], placed.kind[there], np.zeros((n_groups, n_ranks))
    attraction[group, placed.rank[kind]] = (value * placed.pages_there)[kind] / part.pages[group]
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
"""The page, or the day, of rows of counts."""

_SEED = 3  # of the hash by which units are halved
_REJECTED, _MUCH, _ROUNDING = 0.02, 0.1, 1e-9


@dataclass(frozen=True)
class PageSlope:
    """The slope of clicks on predicted clicks within queries."""

    slope: float  # 1 under the position-based model
    std_error: float

    @property
    def interval(self) -> tuple[float, float]:
        """95 %."""
        half = normal(1 - _LEVEL / 2) * self.std_error
        return self.slope - half, self.slope + half

    @property
    def rejects(self) -> bool:
        """True if clicks contradict the model: the slope is neither 1 up to chance nor nearly 1."""
        return abs(self.slope - 1) > max(normal(1 - _REJECTED / 2) * self.std_error, _MUCH)


def page_slope(rows: pl.DataFrame, by: CellTheta, covariance: Floats | None) -> PageSlope | None:
    """Compare the pages of queries with each other.

    Args:
        rows: of whole pages: `query`, `doc`, the cell columns, `UNIT`, `impressions`, `clicks`; at least one.
        by: theta of their cells.
        covariance: of log theta, shape (K, K); None takes theta as known.

    Returns:
        The slope; None where no two pages of a query differ in what they show.
    """
    keys, counts = (QUERY, DOC, *by.cells.columns), pl.col(IMPRESSIONS, CLICKS).sum()
    part = ShownPart.of(rows.group_by(keys).agg(counts), by)
    grouped = by.numbered(rows).join(part.groups, on=[QUERY, CONTEXT], how="left")
    rows = grouped.join(part.pairs, on=[_GROUP, DOC], how="left")
    rows = rows.group_by(PAIR, CELL, UNIT).agg(counts).sort(PAIR, UNIT, CELL)
    pair, cell = rows[PAIR].to_numpy(), rows[CELL].to_numpy()
    n_pairs, theta = len(part.group), np.nan_to_num(by.theta)[cell]
    shown, clicks = (rows[name].to_numpy().astype(np.float64) for name in (IMPRESSIONS, CLICKS))
    values = shown * theta, shown * theta**2, clicks * by.known[cell]
    group = pl.Series(part.group[pair])
    is_tested = (rows.select(pl.struct(group.alias(QUERY), UNIT).hash(_SEED) % 2).to_series() == 1).to_numpy()
    unit = dense_row_ranks(rows.select(group.alias(QUERY), UNIT))
    all_clicks = _attractiveness(part, *(sum_by_number(pair, of, n_pairs) for of in values))
    moment, variance, expected, gradient = 0.0, 0.0, 0.0, np.zeros(len(by.theta))
    for test in (is_tested, ~is_tested):
        others = [sum_by_number(pair[~test], of[~test], n_pairs) for of in values]
        if not others[0].any() or not test.any():
            return None
        half = pair[test], cell[test], unit[test], shown[test], values[0][test], values[2][test]
        moments = _moment(part, half, _attractiveness(part, *others), all_clicks)
        moment, variance, expected = moment + moments[0], variance + moments[1], expected + moments[2]
        gradient += moments[3]
    if covariance is not None:
        variance += max(float(gradient @ covariance @ gradient), 0.0)
    if not (expected > _ROUNDING * values[2].sum() and variance > 0):
        return None
    return PageSlope(1 + moment / expected, float(np.sqrt(variance)) / expected)


def _attractiveness(part: ShownPart, exposure: Floats, squared: Floats, clicks: Floats) -> Floats:
    """Shrunken attractiveness of each pair by some of its rows, shape (P,)."""
    each, ranked = np.arange(len(exposure)), np.ones(len(part.pages), bool)
    there = part.group, 0 * each, 0 * each, 0 * exposure
    placed = Placed(part, ranked, part.pairs[DOC], part.group, each, *there, exposure, squared, clicks)
    return Prior.fit(placed).posterior(placed).value


def _moment(
    part: ShownPart, half: tuple[Integers, Integers, Integers, Floats, Floats, Floats], learnt: Floats, expected: Floats
) -> tuple[float, float, float, Floats]:
    """M, its variance given theta, the sum of z E R, and G.

    Args:
        part: the queries.
        half: pair, cell, unit, impressions, exposure and clicks of the rows of half of the units, each of shape (R,).
        learnt: attractiveness by the other half.
        expected: attractiveness by all pages.
    """
    n_pairs, n_cells = len(part.group), len(part.by.theta)
    of_pair, cell, of_unit, shown, exposure, clicks = half
    key, at = np.unique(of_unit * n_pairs + of_pair, return_inverse=True)
    e, c = (sum_by_number(at, values, len(key)) for values in (exposure, clicks))  # by page and pair
    pair, (_, unit) = key % n_pairs, np.unique(key // n_pairs, return_inverse=True)
    others = sum_by_number(pair, e, n_pairs)[pair] - e
    there = others > _ROUNDING * e
    e, others = np.where(there, e, 0.0), np.where(there, others, 1.0)
    rate = np.where(there, sum_by_number(pair, c, n_pairs)[pair] - c, 0.0) / others
    n_units, group = int(unit[-1]) + 1, np.zeros(int(unit[-1]) + 1, np.int64)
    group[unit] = part.group[pair]
    slot, of_slot = np.unique(unit[at] * n_cells + cell, return_inverse=True)
    pages = np.zeros(n_units)
    np.maximum.at(pages, slot // n_cells, sum_by_number(of_slot, shown, len(slot)) / part.by.width[slot % n_cells])
    z = sum_by_number(unit, e * learnt[pair], n_units) / pages
    n_groups = len(part.pages)
    mean = sum_by_number(group, z * pages, n_groups) / np.maximum(sum_by_number(group, pages, n_groups), _ROUNDING)
    z = (z - mean[group])[unit]
    taken = z * e / others
    weight = np.where(there, z - sum_by_number(pair, taken, n_pairs)[pair] + taken, 0.0)
    noise = sum_by_number(unit, weight * (c - e * expected[pair]), n_units)
    moved = taken * rate
    gradient = sum_by_number(pair, moved, n_pairs)[pair] - moved - np.where(there, z * rate, 0.0)
    of_cells = sum_by_number(cell, exposure * gradient[at], n_cells)
    predicted = z * e * rate
    moment = float(np.sum(z * np.where(there, c, 0.0) - predicted))
    return moment, float(noise @ noise), float(predicted.sum()), of_cells
