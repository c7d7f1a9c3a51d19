"""Pages as arrays: the rows in which clicks are counted, and the weight of a click in each of them.

Measures of a ranking by clicks: lambda, by which a click counts at the rank that a ranking gives its document.

    DCG    discounted cumulative gain: lambda = 1 / log2(1 + rank) in the first K ranks, 0 below, and without a score
    ARP    average relevance position: lambda = rank; without a score, the last rank that there is

Sources: Järvelin & Kekäläinen 2002, of clicks with weights Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019 (DCG);
Joachims, Swaminathan & Schnabel 2017 (the sum of the ranks of what is relevant, from clicks with weights).

Sums over the clicks of each query, for every ranking and measure: what estimates and their errors are made from.

Of page s with query q, rankings r, a measure lambda, u the weight of a row (1 where rows carry none) and
w = 1 / max(theta, tau):

    A = sum of u lambda(rank_r(d))   over the clicks (naive)        B = sum of u w lambda(rank_r(d)) (IPS)

Candidates of pages: d is ranked among the documents that its page showed, and w is that of the cell in which it was
clicked (Joachims, Swaminathan & Schnabel 2017). The log's own ranking is the order of the page.

Candidates of queries: d is ranked among all documents that the ranking has for the query, and w = 1 / max(rho, tau),
where rho_qd = sum of u theta over all impressions of d, divided by the pages of q: what was not shown on every page has
a larger weight (policy-aware weights, Oosterhuis & de Rijke 2020). The log's own ranks are the positions.

A click in a cell without a propensity has w = 0 and does not count, but for the naive sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers, Sums, first_of_runs, sum_by_number
from posbias.core.choices import Candidates
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import key_numbers
from posbias.core.evaluation.break_even import Bend
from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT

PAGES, PAGE, AT, CELL = "posbias_pages", "posbias_page", "posbias_at", "posbias_cell"
_NO_CELL = -1
_TINY = 1e-300


@dataclass(frozen=True)
class CellWeights:
    """The cells of a log, and theta there as weights take it."""

    cells: pl.DataFrame  # the cell columns, K rows
    propensity: Floats  # theta, shape (K,), NaN where a cell has none
    min_propensity: float  # tau

    @property
    def weight(self) -> Floats:
        """1 / max(theta, tau), shape (K,), 0 where a cell has no propensity."""
        return np.nan_to_num(1.0 / np.maximum(self.propensity, self.min_propensity))

    def bent(self, bend: Bend) -> "CellWeights":
        """The weights under bent propensities."""
        return replace(self, propensity=bend.theta(self.propensity, self.cells[POSITION].to_numpy().astype(np.float64)))

    @property
    def moves(self) -> Flags:
        """Cells in which w follows theta, as it is not clipped, shape (K,)."""
        return np.nan_to_num(self.propensity) >= self.min_propensity


@dataclass(frozen=True)
class Shown:
    """Rows of pages: an impression each, or, for candidates of queries, all of a document in one cell and place."""

    queries: pl.DataFrame  # `query` and `PAGES`, the number of its pages (or the sum of their weights), Q rows
    documents: pl.DataFrame  # `query` and `doc` of each pair, J rows
    query: Integers  # row of `queries`, shape (N,)
    document: Integers  # row of `documents`, shape (N,)
    page: Integers  # the number of the page, ascending, shape (N,); empty where rows are no impressions
    place: Integers  # the place that the document had, from 1, shape (N,)
    cell: Integers  # the number of the cell, shape (N,); -1 where the table lacks it
    impressions: Floats  # how many the row stands for, shape (N,)
    clicks: Floats  # on them, shape (N,)
    n_pages: int  # whatever they weigh

    @property
    def pages(self) -> Floats:
        """Pages of each query, shape (Q,)."""
        return self.queries[PAGES].to_numpy()


def rows_of_pages(impressions: pl.DataFrame, plan: StatisticsPlan, weights: CellWeights) -> pl.DataFrame:
    """Impressions of whole pages by page and position, numbered.

    What lies further down than the fit has counted is left out, so that it is no candidate either.

    Returns:
        `query`, `doc`, `PAGE` (ascending), `AT` (its place there, from 1), `position`, `CELL`, `impressions` (1, or the
        weight of the row) and `clicks`.
    """
    shown = impressions.with_columns(pl.col(POSITION).alias(AT))
    in_cells = plan.with_cells_in_memory(shown)
    in_cells = in_cells.with_columns(key_numbers(weights.cells, in_cells, plan.cell_columns).cast(pl.Int64).alias(CELL))
    own = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    page, row = pl.col(SESSION).rle_id().cast(pl.Int64), pl.int_range(pl.len(), dtype=pl.Int64)
    return (
        in_page_order(in_cells.with_columns(pl.col(AT).alias(POSITION)), plan.cell)
        .with_columns(page.alias(PAGE), row.alias(AT))
        .select(
            *(QUERY, DOC, PAGE, pl.col(POSITION).cast(pl.Int64), pl.col(CELL).fill_null(_NO_CELL)),
            (pl.col(AT) - pl.col(AT).min().over(PAGE) + 1).alias(AT),
            own.alias(IMPRESSIONS),
            (own * pl.col(CLICK)).alias(CLICKS),
        )
    )


def pages_by_query(rows: pl.DataFrame) -> pl.DataFrame:
    """`query`, `PAGES` (the sum of their mean weights) and their number, of `rows_of_pages`."""
    pages = rows.group_by(QUERY, PAGE, maintain_order=True).agg(pl.col(IMPRESSIONS).mean())
    return pages.group_by(QUERY, maintain_order=True).agg(
        pl.col(IMPRESSIONS).sum().alias(PAGES), pl.len().cast(pl.Int64).alias(PAGE)
    )


def counted_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Pages, or what is counted of them already, added up.

    Returns:
        `query`, `doc`, `position`, `CELL`, `impressions`, `clicks`, in an order that sums can rely on.
    """
    keys = (QUERY, DOC, POSITION, CELL)
    return rows.group_by(keys, maintain_order=True).agg(pl.col(IMPRESSIONS, CLICKS).sum())


def shown_of(rows: pl.DataFrame, by_query: pl.DataFrame) -> Shown:
    """Rows as arrays.

    Args:
        rows: of `rows_of_pages`, or of `counted_rows`.
        by_query: their `pages_by_query`.
    """
    queries = by_query.sort(QUERY)
    documents = rows.select(QUERY, DOC).unique(maintain_order=True)

    of_pages = PAGE in rows.columns
    return Shown(
        queries=queries.select(QUERY, PAGES),
        documents=documents,
        query=key_numbers(queries, rows, [QUERY]).cast(pl.Int64).to_numpy(),
        document=key_numbers(documents, rows, [QUERY, DOC]).cast(pl.Int64).to_numpy(),
        page=rows[PAGE].to_numpy() if of_pages else np.empty(0, np.int64),
        place=rows[AT if of_pages else POSITION].to_numpy(),
        cell=rows[CELL].to_numpy(),
        impressions=rows[IMPRESSIONS].to_numpy(),
        clicks=rows[CLICKS].to_numpy(),
        n_pages=int(queries[PAGE].sum()),
    )


@dataclass(frozen=True)
class Measure:
    """A measure."""

    name: str  # in the tables
    label: str  # in words, without the cutoff
    gain: bool  # whether more is better, and only the first K ranks count

    def title(self, depth: int) -> str:
        """In words, e.g. `DCG@10`."""
        return f"{self.label}@{depth}" if self.gain else self.label

    def values(self, rank: Integers, scored: Flags, last: Integers, depth: int) -> Floats:
        """Lambda of documents, each of shape (N,).

        Args:
            rank: among the candidates, from 1.
            scored: whether the ranking holds the document; it has a rank only then.
            last: what counts as the last rank there.
            depth: K.
        """
        if self.gain:
            return np.where(scored & (rank <= depth), 1.0 / np.log2(1.0 + rank), 0.0)
        return np.where(scored, rank, last).astype(np.float64)


MEASURES = DCG, ARP = Measure("dcg", "DCG", gain=True), Measure("arp", "ARP", gain=False)
"""All measures, in the order of tables."""


RANKING, SCORE, RANK = "posbias_ranking", "posbias_score", "posbias_rank"
"""Columns of lists: the number of the ranking, what it says of a document, and the place of the document, from 1."""

SCORE_REST = "posbias_score_rest"
"""A column beside `SCORE`: what a whole number is more than that float, which holds 53 bits of it."""

_TEXT = "posbias_text"


def ranked(scores: pl.DataFrame) -> pl.DataFrame:
    """The lists of some queries.

    Args:
        scores: `RANKING`, `query`, `doc`, `SCORE` and perhaps `SCORE_REST`; each document once in a list.

    Returns:
        Them with `RANK`, list by list.
    """
    lists = [*([RANKING] if scores[RANKING].n_unique() > 1 else []), QUERY]  # a column less is sorted in half the time
    best = [name for name in (SCORE, SCORE_REST) if name in scores.columns]
    ordered = scores.with_columns(as_text(scores.schema[DOC]).alias(_TEXT)).sort(
        *lists, *best, _TEXT, descending=[*(False for _ in lists), *(True for _ in best), True]
    )
    of_list = ordered.select(pl.struct(lists).rle_id()).to_series().to_numpy()
    rank = 1 + np.arange(len(of_list)) - first_of_runs(of_list)[of_list]
    ordered = ordered.drop(_TEXT, SCORE_REST, strict=False)
    return ordered.with_columns(pl.Series(RANK, rank, pl.Int32))


def as_text(doc: pl.DataType) -> pl.Expr:
    """The id as one text; ids of several columns, one after the other."""
    names = [field.name for field in doc.fields] if isinstance(doc, pl.Struct) else []
    parts = [pl.col(DOC).struct.field(name) for name in names] or [pl.col(DOC)]
    return pl.concat_str([part.cast(pl.String) for part in parts], separator="\t")


RELEVANCE = "relevance"
NDCG = "ndcg"


def ndcg_by_query(lists: pl.DataFrame, judgments: pl.DataFrame, n_rankings: int, depth: int) -> pl.DataFrame:
    """NDCG of every judged query.

    Args:
        lists: `RANKING` (from 1), `query`, `doc`, `RANK`.
        judgments: `query`, `doc`, `relevance`; each document once in a query.
        n_rankings: R, with the log's own as number 0, which has none here.
        depth: K.

    Returns:
        `query`, and a column for each ranking but the first, by its number as text; sorted by query.
    """
    gain = pl.max_horizontal(pl.col(RELEVANCE), 0.0) / (pl.col(RANK) + 1).cast(pl.Float64).log(2)
    ideal = (
        judgments.sort(QUERY, RELEVANCE, descending=[False, True])
        .with_columns((pl.int_range(pl.len()).over(QUERY) + 1).alias(RANK))
        .filter(pl.col(RANK) <= depth)
        .group_by(QUERY)
        .agg(gain.sum().alias("ideal"))
        .sort(QUERY)
    )
    top = lists.filter(pl.col(RANK) <= depth).join(judgments, on=[QUERY, DOC], nulls_equal=True)
    gained = top.group_by(RANKING, QUERY).agg(gain.sum().alias(NDCG))
    result = ideal
    for ranking in range(1, n_rankings):
        own = gained.filter(pl.col(RANKING) == ranking).select(QUERY, NDCG)
        share = pl.when(pl.col("ideal") > 0).then(pl.col(NDCG).fill_null(0.0) / pl.col("ideal")).otherwise(0.0)
        joined = result.join(own, on=QUERY, how="left", nulls_equal=True, maintain_order="left")
        result = joined.with_columns(share.alias(str(ranking))).drop(NDCG)
    return result.drop("ideal")


N_PAGES, N_CLICKS, SUM_WEIGHT, FIRST = 0, 1, 2, 3
"""Columns of the sums: pages, clicks, the weight of the clicks; then A and B by ranking and measure."""

_UNRANKED = np.int64(1 << 30)


@dataclass(frozen=True)
class RankingMeasures:
    """What is measured of rankings, and the columns of its sums."""

    n_rankings: int  # R, with the log's own as the first
    depth: int  # K
    candidates: Candidates  # what documents are ranked among
    bends: tuple[Bend, ...] = ()  # of theta, by which DCG is computed too

    def column(self, ranking: int, measure: Measure, *, weighted: bool) -> int:
        """The column of A, or of B."""
        return FIRST + 2 * (ranking * len(MEASURES) + MEASURES.index(measure)) + weighted

    def bent(self, number: int) -> int:
        """The column of the weight of the clicks by a bend, before those of B of DCG by ranking."""
        return self.column(self.n_rankings, MEASURES[0], weighted=False) + number * (1 + self.n_rankings)


@dataclass(frozen=True)
class Rest(Sums):
    """Sums over some pages that are not kept by query."""

    moves: Floats  # sum of u w lambda of the clicks by cell, as far as w follows theta there, shape (R, M, K)
    weight_moves: Floats  # sum of u w of the same clicks, shape (K,)
    bent_moves: Floats  # by bend: those of the weights, then those of DCG of each ranking; shape (B, 1 + R, K)
    squares: Floats  # sum over the pages of B^2, shape (R, M); 0 for candidates of queries
    # What rankings lack, and what the log never showed, of shape (R,)
    unscored_impressions: Floats  # of documents without a score
    unscored_clicks: Floats  # on them
    unscored_pages: Floats  # on which no document has a score
    top: Floats  # documents in the first K places, once for each page of their query
    never_shown: Floats  # those among them that no page of the query showed
    weights: Floats  # number and sum of the weights of clicks before clipping, by their size; shape (2, H)
    impressions: float  # of all rows
    clipped: float  # clicks whose w is clipped
    unweighted: float  # clicks in cells without a propensity
    n_pages: int


@dataclass(frozen=True)
class QuerySums:
    """The sums of some queries."""

    queries: pl.DataFrame  # `query` and `PAGES`, Q rows
    documents: pl.DataFrame  # `query` and `doc` of what was shown
    sums: Floats  # shape (Q, P)
    rest: Rest  # what was never shown is not known yet


@dataclass(frozen=True)
class _Weighted:
    """The weights of the clicks."""

    weight: Floats  # w of each row, shape (N,), 0 where it has none
    clipped: Flags  # whether it is clipped, shape (N,)
    share: Floats  # of the theta that w is made of, this row's, 0 where w does not follow it, shape (N,)
    by_document: bool  # whether that is the theta of all rows of the document, or of the row alone

    def by_cell(self, shown: Shown, clicked: Integers, values: Floats, n_cells: int) -> Floats:
        """The derivative of a sum over the clicks by -log theta, shape (K,).

        Args:
            shown: the rows.
            clicked: those with clicks, shape (C,).
            values: their terms of the sum, shape (C,).
            n_cells: K.
        """
        if self.by_document:
            values = sum_by_number(shown.document[clicked], values, shown.documents.height)[shown.document]
            cell, moved = shown.cell, values * self.share
        else:
            cell, moved = shown.cell[clicked], values * self.share[clicked]
        return sum_by_number(cell[cell >= 0], moved[cell >= 0], n_cells)


def query_sums(shown: Shown, lists: pl.DataFrame, weights: CellWeights, options: RankingMeasures) -> QuerySums:
    """The sums of the queries of some rows: whole pages, or for candidates of queries whole queries.

    Args:
        shown: the rows.
        lists: `RANKING` (from 1; 0 is the log's own), `query`, `doc`, `RANK` of these queries, perhaps of others.
        weights: theta by cell.
        options: how rankings are judged.
    """
    by_page = options.candidates == "page"
    as_shown = _cell_weights(shown, weights)
    weighted = as_shown if by_page else _query_weights(shown, weights)
    clicked = np.flatnonzero(shown.clicks > 0)
    query, clicks = shown.query[clicked], shown.clicks[clicked]
    weight = clicks * weighted.weight[clicked]
    shape = options.n_rankings, len(MEASURES), len(weights.propensity)
    sums = np.zeros((len(shown.pages), options.bent(len(options.bends))))
    sums[:, N_PAGES] = shown.pages
    sums[:, N_CLICKS] = sum_by_number(query, clicks, len(sums))
    sums[:, SUM_WEIGHT] = sum_by_number(query, weight, len(sums))
    moves, squares = np.zeros(shape), np.zeros(shape[:2])
    lacking, gains = np.zeros((3, options.n_rankings)), np.ones((1 + options.n_rankings, len(clicked)))
    for ranking in range(options.n_rankings):
        own_list = lists.filter(pl.col(RANKING) == ranking) if ranking else None
        (rank, scored, last), lacking[:, ranking] = _ranks(shown, clicked, own_list, by_page=by_page)
        own = weighted if ranking else as_shown
        own_weight = clicks * own.weight[clicked]
        for number, measure in enumerate(MEASURES):
            value = measure.values(rank, scored, last, options.depth)
            if not number:
                gains[1 + ranking] = value
            naive, ips = clicks * value, own_weight * value
            sums[:, options.column(ranking, measure, weighted=False)] = sum_by_number(query, naive, len(sums))
            sums[:, options.column(ranking, measure, weighted=True)] = sum_by_number(query, ips, len(sums))
            moves[ranking, number] = own.by_cell(shown, clicked, ips, shape[2])
            if by_page:
                squares[ranking, number] = float(np.sum(sum_by_number(shown.page[clicked], ips, 0) ** 2))
    bent_moves = np.zeros((len(options.bends), len(gains), shape[2]))
    for number, bend in enumerate(options.bends):
        bent = weights.bent(bend)
        by_cell = _cell_weights(shown, bent)
        both = by_cell if by_page else _query_weights(shown, bent), by_cell
        for place, gain in enumerate(gains):
            own = both[place == 1]  # the log's own ranking
            ips = clicks * own.weight[clicked] * gain
            sums[:, options.bent(number) + place] = sum_by_number(query, ips, len(sums))
            bent_moves[number, place] = own.by_cell(shown, clicked, ips, shape[2])
    rest = Rest(
        moves,
        weighted.by_cell(shown, clicked, weight, shape[2]),
        bent_moves,
        squares,
        *lacking,
        weights=_sizes_of_weights(shown, clicked, weights, by_page=by_page),
        top=np.zeros(options.n_rankings),
        never_shown=np.zeros(options.n_rankings),
        impressions=float(shown.impressions.sum()),
        clipped=float(shown.clicks[weighted.clipped].sum()),
        unweighted=float(shown.clicks[(shown.cell < 0) | (weighted.weight == 0)].sum()),
        n_pages=shown.n_pages,
    )
    return QuerySums(shown.queries, shown.documents, sums, rest)


_SIZES = 1024
"""Classes of the size of weights, each of 1 / 64 in log, of which a quarter is below 1."""


def _sizes_of_weights(shown: Shown, clicked: Integers, weights: CellWeights, *, by_page: bool) -> Floats:
    """The weights of the clicked rows before clipping, shape (C,), as numbers and sums by size."""
    unclipped = replace(weights, min_propensity=_TINY)
    weight = (_cell_weights if by_page else _query_weights)(shown, unclipped).weight[clicked]
    known = weight > 0
    weight, clicks = weight[known], shown.clicks[clicked][known]
    if by_page:  # a row is an impression, whose own weight counts
        weight, clicks = weight * clicks, np.ones(len(weight))
    size = np.clip(_SIZES // 4 + np.floor(64 * np.log(weight)), 0, _SIZES - 1).astype(np.int64)
    return np.stack([sum_by_number(size, of, _SIZES) for of in (clicks, clicks * weight)])


def _cell_weights(shown: Shown, weights: CellWeights) -> _Weighted:
    """Weights of the cells of rows."""
    known = shown.cell >= 0
    weight, moves = np.where(known, weights.weight[shown.cell], 0.0), known & weights.moves[shown.cell]
    return _Weighted(weight, (weight > 0) & ~moves, moves.astype(np.float64), by_document=False)


def _query_weights(shown: Shown, weights: CellWeights) -> _Weighted:
    """Weights of the documents of queries."""
    theta = np.where(shown.cell >= 0, np.nan_to_num(weights.propensity)[shown.cell], 0.0)
    n_documents = shown.documents.height
    seen = sum_by_number(shown.document, shown.impressions * theta, n_documents)
    query_of = np.zeros(n_documents, np.int64)
    query_of[shown.document] = shown.query
    rho = seen / shown.pages[query_of]
    weight = np.divide(1.0, np.maximum(rho, weights.min_propensity), out=np.zeros(n_documents), where=rho > 0)
    moves = rho >= weights.min_propensity
    share = np.divide(shown.impressions * theta, seen[shown.document], out=np.zeros(len(theta)), where=theta > 0)
    of_row = np.where(theta > 0, weight[shown.document], 0.0)
    clipped = (of_row > 0) & ~moves[shown.document]
    return _Weighted(of_row, clipped, share * moves[shown.document], by_document=True)


def _ranks(
    shown: Shown, clicked: Integers, own: pl.DataFrame | None, *, by_page: bool
) -> tuple[tuple[Integers, Flags, Integers], tuple[float, float, float]]:
    """The ranks of the clicked rows, whether they have one, and the last rank there; and what the ranking lacks.

    That is the impressions and the clicks of documents without a score, and the pages without any score.

    Args:
        shown: the rows.
        clicked: those with clicks, shape (C,).
        own: the lists of the ranking; None: it is the log's own.
        by_page: whether candidates are those of a page.
    """
    size = np.bincount(shown.page)[shown.page[clicked]] if by_page and len(clicked) else np.empty(0, np.int64)
    if own is None:
        place = shown.place[clicked]
        return (place, np.ones(len(clicked), bool), size if by_page else place), (0.0, 0.0, 0.0)
    with_rank = shown.documents.join(
        own.select(QUERY, DOC, RANK), on=[QUERY, DOC], how="left", nulls_equal=True, maintain_order="left"
    )
    in_list = with_rank[RANK].cast(pl.Int64).fill_null(int(_UNRANKED)).to_numpy()[shown.document]
    scored = in_list != _UNRANKED
    without = float(shown.impressions[~scored].sum()), float(shown.clicks[~scored].sum())
    if by_page:
        order = np.argsort(shown.page * (2 * _UNRANKED) + in_list, kind="stable")  # pages ascend
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - np.searchsorted(shown.page, shown.page) + 1
        weight = np.bincount(shown.page, shown.impressions) / np.maximum(np.bincount(shown.page), 1)
        pages_without = float(weight[np.bincount(shown.page, scored) == 0].sum())
        return (rank[clicked], scored[clicked], size), (*without, pages_without)
    longest = own.group_by(QUERY).agg(pl.col(RANK).max())
    length = shown.queries.join(longest, on=QUERY, how="left", nulls_equal=True, maintain_order="left")[RANK]
    last = length.cast(pl.Int64).fill_null(0).to_numpy() + 1
    pages_without = float(shown.pages[np.bincount(shown.query, scored, len(shown.pages)) == 0].sum())
    return (in_list[clicked], scored[clicked], last[shown.query[clicked]]), (*without, pages_without)


def merged(parts: Sequence[QuerySums]) -> QuerySums:
    """The sums of several pieces of a part, which may share queries, but no page."""
    if len(parts) == 1:
        return parts[0]
    queries = pl.concat(part.queries for part in parts)
    once = queries.group_by(QUERY, maintain_order=True).agg(pl.col(PAGES).sum())
    number = key_numbers(once, queries, [QUERY]).to_numpy()
    sums = np.zeros((once.height, parts[0].sums.shape[1]))
    np.add.at(sums, number, np.concatenate([part.sums for part in parts]))
    documents = pl.concat(part.documents for part in parts).unique(maintain_order=True)
    return QuerySums(once, documents, sums, reduce(add, (part.rest for part in parts)))


def count_top(totals: QuerySums, lists: pl.DataFrame, options: RankingMeasures) -> list[Floats]:
    """Documents in the first K places of each ranking, once for each page of their query, and those never shown.

    Args:
        totals: sums of whole queries.
        lists: of these queries, perhaps of others.
        options: how rankings are judged.
    """
    top = lists.filter(pl.col(RANK) <= options.depth).join(
        totals.queries, on=QUERY, nulls_equal=True, maintain_order="left"
    )
    never = top.join(totals.documents, on=[QUERY, DOC], how="anti", nulls_equal=True, maintain_order="left")
    by_ranking = ((rows[RANKING].cast(pl.Int64).to_numpy(), rows[PAGES].to_numpy()) for rows in (top, never))
    return [sum_by_number(*numbers, options.n_rankings) for numbers in by_ranking]
