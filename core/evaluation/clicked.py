"""Sums over clicked documents by query, ranking and measure, from which rankings are evaluated.

Measures: lambda is the value of a click by the rank of its document in a ranking.

    DCG    discounted cumulative gain: lambda = 1 / log2(1 + rank) in the first K ranks, 0 below and without a score
    ARP    average relevance position: lambda = rank; without a score, the last rank

For query q, ranking r, measure lambda, u the weight of a row (1 without weights) and w = 1 / max(theta, tau), sums over
the clicks are

    A = sum of u lambda(rank_r(d))   (naive)        B = sum of u w lambda(rank_r(d))   (IPS)

Candidates by page: d is ranked among the documents of its page, and w is that of the cell of the click (Joachims,
Swaminathan & Schnabel 2017). The log's own ranking is the order of the page.

Candidates by query: d is ranked among all documents of the query in the ranking, and w = 1 / max(rho, tau), where
rho_qd = sum of u theta over all impressions of d, divided by the pages of q: documents missing on some pages have
larger weights (policy-aware weights, Oosterhuis & de Rijke 2020). The log's own ranks are the positions.

A click in a cell without a propensity has w = 0 and contributes to naive sums only.

Sources: Järvelin & Kekäläinen 2002 (DCG); Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019 (DCG of weighted clicks);
Joachims, Swaminathan & Schnabel 2017 (sum of the ranks of relevant documents, from weighted clicks).
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
    """The cells of a log with their propensities and weights."""

    cells: pl.DataFrame  # the cell columns, K rows
    propensity: Floats  # theta, shape (K,); NaN if unknown
    min_propensity: float  # tau

    @property
    def weight(self) -> Floats:
        """1 / max(theta, tau), shape (K,); 0 without a propensity."""
        return np.nan_to_num(1.0 / np.maximum(self.propensity, self.min_propensity))

    def bent(self, bend: Bend) -> "CellWeights":
        """Return the weights by bent propensities."""
        return replace(self, propensity=bend.theta(self.propensity, self.cells[POSITION].to_numpy().astype(np.float64)))

    @property
    def unclipped(self) -> Flags:
        """Cells with w = 1 / theta, shape (K,)."""
        return np.nan_to_num(self.propensity) >= self.min_propensity


@dataclass(frozen=True)
class PageRows:
    """N rows of pages: impressions, or with candidates by query, counts of a document in a cell and place."""

    queries: pl.DataFrame  # `query` and `PAGES`, number of pages or sum of their weights, Q rows
    documents: pl.DataFrame  # `query` and `doc` of each pair, J rows
    query: Integers  # row of `queries`, shape (N,)
    document: Integers  # row of `documents`, shape (N,)
    page: Integers  # page number, ascending, shape (N,); empty if rows are counts
    place: Integers  # rank of the document on its page, from 1; in counts, its position; shape (N,)
    cell: Integers  # cell number, shape (N,); -1 if the table of cells lacks it
    impressions: Floats  # number or sum of weights, shape (N,)
    clicks: Floats  # number or sum of weights, shape (N,)
    n_pages: int  # number of pages, without weights

    @property
    def pages(self) -> Floats:
        """Pages of each query, shape (Q,)."""
        return self.queries[PAGES].to_numpy()


def page_impressions(impressions: pl.DataFrame, plan: StatisticsPlan, weights: CellWeights) -> pl.DataFrame:
    """Sort the impressions of whole pages by page and position, and number pages and cells.

    Rows below the last position of the plan are dropped, so that they are no candidates.

    Returns:
        `query`, `doc`, `PAGE` (ascending), `AT` (rank on the page, from 1), `position`, `CELL`, `impressions` (1, or
        the weight of the row) and `clicks`.
    """
    in_cells = plan.with_cells_in_memory(impressions.with_columns(pl.col(POSITION).alias(AT)))
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
    """Return `query`, `PAGES` (sum over pages of their mean weight) and `PAGE` (number of pages).

    Args:
        rows: of `page_impressions`.
    """
    pages = rows.group_by(QUERY, PAGE, maintain_order=True).agg(pl.col(IMPRESSIONS).mean())
    return pages.group_by(QUERY, maintain_order=True).agg(
        pl.col(IMPRESSIONS).sum().alias(PAGES), pl.len().cast(pl.Int64).alias(PAGE)
    )


def cell_counts(rows: pl.DataFrame) -> pl.DataFrame:
    """Add up `page_impressions`, or such counts, by document and cell.

    Returns:
        `query`, `doc`, `position`, `CELL`, `impressions`, `clicks`, in the order of first occurrence.
    """
    keys = (QUERY, DOC, POSITION, CELL)
    return rows.group_by(keys, maintain_order=True).agg(pl.col(IMPRESSIONS, CLICKS).sum())


def page_rows(rows: pl.DataFrame, by_query: pl.DataFrame) -> PageRows:
    """Convert rows to arrays.

    Args:
        rows: of `page_impressions` or `cell_counts`.
        by_query: their `pages_by_query`.
    """
    queries = by_query.sort(QUERY)
    documents = rows.select(QUERY, DOC).unique(maintain_order=True)
    has_pages = PAGE in rows.columns
    return PageRows(
        queries=queries.select(QUERY, PAGES),
        documents=documents,
        query=key_numbers(queries, rows, [QUERY]).cast(pl.Int64).to_numpy(),
        document=key_numbers(documents, rows, [QUERY, DOC]).cast(pl.Int64).to_numpy(),
        page=rows[PAGE].to_numpy() if has_pages else np.empty(0, np.int64),
        place=rows[AT if has_pages else POSITION].to_numpy(),
        cell=rows[CELL].to_numpy(),
        impressions=rows[IMPRESSIONS].to_numpy(),
        clicks=rows[CLICKS].to_numpy(),
        n_pages=int(queries[PAGE].sum()),
    )


@dataclass(frozen=True)
class Measure:
    """A measure of a ranking by its clicked documents."""

    name: str  # in tables
    label: str  # in words, without the cutoff
    gain: bool  # whether larger is better and only the first K ranks count

    def title(self, depth: int) -> str:
        """Return the label with the cutoff, e.g. `DCG@10`."""
        return f"{self.label}@{depth}" if self.gain else self.label

    def values(self, rank: Integers, scored: Flags, last: Integers, depth: int) -> Floats:
        """Return lambda of documents, shape (N,).

        Args:
            rank: among the candidates, from 1, shape (N,); arbitrary for documents not scored.
            scored: whether the ranking contains the document, shape (N,).
            last: rank of documents not scored, for ARP, shape (N,).
            depth: K.
        """
        if self.gain:
            return np.where(scored & (rank <= depth), 1.0 / np.log2(1.0 + rank), 0.0)
        return np.where(scored, rank, last).astype(np.float64)


MEASURES = DCG, ARP = Measure("dcg", "DCG", gain=True), Measure("arp", "ARP", gain=False)
"""All measures, in the order of tables."""


RANKING, SCORE, RANK = "posbias_ranking", "posbias_score", "posbias_rank"
"""Columns of lists: number of the ranking, its score of a document, and the rank of the document, from 1."""

SCORE_REST = "posbias_score_rest"
"""Column of the difference between an integer score and its float in `SCORE`, which has 53 bits."""

_TEXT = "posbias_text"


def rank_lists(scores: pl.DataFrame) -> pl.DataFrame:
    """Rank documents by score, the largest first, ties by descending id as text.

    Args:
        scores: `RANKING`, `query`, `doc`, `SCORE` and possibly `SCORE_REST`; each document once in a list.

    Returns:
        The rows sorted by list and rank, with `RANK` and without `SCORE_REST`.
    """
    lists = [*([RANKING] if scores[RANKING].n_unique() > 1 else []), QUERY]  # one column less takes half the time
    best = [name for name in (SCORE, SCORE_REST) if name in scores.columns]
    ordered = scores.with_columns(id_text(scores.schema[DOC]).alias(_TEXT)).sort(
        *lists, *best, _TEXT, descending=[*(False for _ in lists), *(True for _ in best), True]
    )
    number = ordered.select(pl.struct(lists).rle_id()).to_series().to_numpy()
    rank = 1 + np.arange(len(number)) - first_of_runs(number)[number]
    ordered = ordered.drop(_TEXT, SCORE_REST, strict=False)
    return ordered.with_columns(pl.Series(RANK, rank, pl.Int32))


def id_text(doc: pl.DataType) -> pl.Expr:
    """Return the expression of a document id as text; the columns of a struct are joined by tabs."""
    names = [field.name for field in doc.fields] if isinstance(doc, pl.Struct) else []
    parts = [pl.col(DOC).struct.field(name) for name in names] or [pl.col(DOC)]
    return pl.concat_str([part.cast(pl.String) for part in parts], separator="\t")


RELEVANCE = "relevance"
NDCG = "ndcg"


def ndcg_by_query(lists: pl.DataFrame, judgments: pl.DataFrame, n_rankings: int, depth: int) -> pl.DataFrame:
    """Compute NDCG@K, with relevance as gain, of every judged query.

    Args:
        lists: `RANKING` (from 1), `query`, `doc`, `RANK`.
        judgments: `query`, `doc`, `relevance`; each document once in a query.
        n_rankings: R, with ranking 0, the log's own, which is not evaluated.
        depth: K.

    Returns:
        `query`, and a column for each of the rankings 1 .. R - 1, named by its number; sorted by query.
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
    """Rankings and options of an evaluation, and the columns of its P sums."""

    n_rankings: int  # R, the log's own first
    depth: int  # K
    candidates: Candidates  # documents of a page or of a query
    bends: tuple[Bend, ...] = ()  # bends of theta for which DCG is computed too

    def column(self, ranking: int, measure: Measure, *, weighted: bool) -> int:
        """Return the column of A, or of B if weighted."""
        return FIRST + 2 * (ranking * len(MEASURES) + MEASURES.index(measure)) + weighted

    def bent(self, number: int) -> int:
        """Return the column of the sum of weights by a bend; B of DCG of each ranking follows."""
        return self.column(self.n_rankings, MEASURES[0], weighted=False) + number * (1 + self.n_rankings)


@dataclass(frozen=True)
class PooledSums(Sums):
    """Sums over all pages, not by query; M measures."""

    moves: Floats  # sum of u w lambda of clicks by cell, if not clipped: the derivative by -log theta, shape (R, M, K)
    weight_moves: Floats  # the same of u w, shape (K,)
    bent_moves: Floats  # the same by bend, of u w, then of u w lambda of DCG of each ranking, shape (B, 1 + R, K)
    squares: Floats  # sum over pages of B^2, shape (R, M); 0 with candidates by query
    unscored_impressions: Floats  # of documents without a score, shape (R,)
    unscored_clicks: Floats  # of documents without a score, shape (R,)
    unscored_pages: Floats  # without any score, shape (R,)
    top: Floats  # documents in the first K ranks, once per page of their query, shape (R,)
    never_shown: Floats  # those of `top` on no page of their query, shape (R,)
    weights: Floats  # number and sum of the weights of clicks before clipping, by size class, shape (2, `_SIZES`)
    impressions: float  # of all rows
    clipped: float  # clicks with clipped w
    unweighted: float  # clicks in cells without a propensity
    n_pages: int


@dataclass(frozen=True)
class QuerySums:
    """The sums of Q queries."""

    queries: pl.DataFrame  # `query` and `PAGES`, Q rows
    documents: pl.DataFrame  # `query` and `doc` of impressions
    sums: Floats  # shape (Q, P)
    pooled: PooledSums  # with `top` and `never_shown` still 0


@dataclass(frozen=True)
class _RowWeights:
    """The weights of N rows, and their derivatives."""

    weight: Floats  # w, shape (N,); 0 without a propensity
    clipped: Flags  # whether w is clipped, shape (N,)
    share: Floats  # share of the row in the theta behind its w, shape (N,); 0 if w is clipped
    by_document: bool  # whether w is by the theta of all rows of the document, not of the row alone

    def derivative(self, rows: PageRows, clicked: Integers, values: Floats, n_cells: int) -> Floats:
        """Return the derivative of a sum over clicked rows by -log theta, shape (K,).

        Args:
            rows: all rows.
            clicked: indices of rows with clicks, shape (C,).
            values: terms of the sum, proportional to w, shape (C,).
            n_cells: K.
        """
        if self.by_document:
            values = sum_by_number(rows.document[clicked], values, rows.documents.height)[rows.document]
            cell, moved = rows.cell, values * self.share
        else:
            cell, moved = rows.cell[clicked], values * self.share[clicked]
        return sum_by_number(cell[cell >= 0], moved[cell >= 0], n_cells)


def query_sums(rows: PageRows, lists: pl.DataFrame, weights: CellWeights, options: RankingMeasures) -> QuerySums:
    """Compute the sums of whole pages by query; with candidates by query, of whole queries.

    Args:
        rows: the rows.
        lists: `RANKING` (from 1; 0 is the log's own), `query`, `doc`, `RANK`; lists of other queries are ignored.
        weights: theta by cell.
        options: rankings and measures.
    """
    by_page = options.candidates == "page"
    cell_weights = _cell_weights(rows, weights)
    row_weights = cell_weights if by_page else _query_weights(rows, weights)
    clicked = np.flatnonzero(rows.clicks > 0)
    query, clicks = rows.query[clicked], rows.clicks[clicked]
    weight = clicks * row_weights.weight[clicked]
    shape = options.n_rankings, len(MEASURES), len(weights.propensity)
    sums = np.zeros((len(rows.pages), options.bent(len(options.bends))))
    sums[:, N_PAGES] = rows.pages
    sums[:, N_CLICKS] = sum_by_number(query, clicks, len(sums))
    sums[:, SUM_WEIGHT] = sum_by_number(query, weight, len(sums))
    moves, squares = np.zeros(shape), np.zeros(shape[:2])
    unscored, gains = np.zeros((3, options.n_rankings)), np.ones((1 + options.n_rankings, len(clicked)))
    for ranking in range(options.n_rankings):
        own_list = lists.filter(pl.col(RANKING) == ranking) if ranking else None
        (rank, scored, last), unscored[:, ranking] = _ranks(rows, clicked, own_list, by_page=by_page)
        own = row_weights if ranking else cell_weights
        own_weight = clicks * own.weight[clicked]
        for number, measure in enumerate(MEASURES):
            value = measure.values(rank, scored, last, options.depth)
            if not number:
                gains[1 + ranking] = value
            naive, ips = clicks * value, own_weight * value
            sums[:, options.column(ranking, measure, weighted=False)] = sum_by_number(query, naive, len(sums))
            sums[:, options.column(ranking, measure, weighted=True)] = sum_by_number(query, ips, len(sums))
            moves[ranking, number] = own.derivative(rows, clicked, ips, shape[2])
            if by_page:
                squares[ranking, number] = float(np.sum(sum_by_number(rows.page[clicked], ips, 0) ** 2))
    bent_moves = np.zeros((len(options.bends), len(gains), shape[2]))
    for number, bend in enumerate(options.bends):
        bent = weights.bent(bend)
        by_cell = _cell_weights(rows, bent)
        by_ranking = by_cell if by_page else _query_weights(rows, bent)
        for index, gain in enumerate(gains):  # of 1, of the log's own ranking, of the other rankings
            own = by_cell if index == 1 else by_ranking
            ips = clicks * own.weight[clicked] * gain
            sums[:, options.bent(number) + index] = sum_by_number(query, ips, len(sums))
            bent_moves[number, index] = own.derivative(rows, clicked, ips, shape[2])
    pooled = PooledSums(
        moves,
        row_weights.derivative(rows, clicked, weight, shape[2]),
        bent_moves,
        squares,
        *unscored,
        weights=_weight_histogram(rows, clicked, weights, by_page=by_page),
        top=np.zeros(options.n_rankings),
        never_shown=np.zeros(options.n_rankings),
        impressions=float(rows.impressions.sum()),
        clipped=float(rows.clicks[row_weights.clipped].sum()),
        unweighted=float(rows.clicks[(rows.cell < 0) | (row_weights.weight == 0)].sum()),
        n_pages=rows.n_pages,
    )
    return QuerySums(rows.queries, rows.documents, sums, pooled)


_SIZES = 1024
"""Number of size classes of weights, of width 1 / 64 in log; the first quarter is below 1."""


def _weight_histogram(rows: PageRows, clicked: Integers, weights: CellWeights, *, by_page: bool) -> Floats:
    """Return number and sum of the weights of clicked rows before clipping, by size class, shape (2, `_SIZES`)."""
    unclipped = replace(weights, min_propensity=_TINY)
    weight = (_cell_weights if by_page else _query_weights)(rows, unclipped).weight[clicked]
    known = weight > 0
    weight, clicks = weight[known], rows.clicks[clicked][known]
    if by_page:  # a row is an impression, and its clicks are its own weight
        weight, clicks = weight * clicks, np.ones(len(weight))
    size = np.clip(_SIZES // 4 + np.floor(64 * np.log(weight)), 0, _SIZES - 1).astype(np.int64)
    return np.stack([sum_by_number(size, values, _SIZES) for values in (clicks, clicks * weight)])


def _cell_weights(rows: PageRows, weights: CellWeights) -> _RowWeights:
    """Return weights by the cell of each row."""
    known = rows.cell >= 0
    weight, unclipped = np.where(known, weights.weight[rows.cell], 0.0), known & weights.unclipped[rows.cell]
    return _RowWeights(weight, (weight > 0) & ~unclipped, unclipped.astype(np.float64), by_document=False)


def _query_weights(rows: PageRows, weights: CellWeights) -> _RowWeights:
    """Return policy-aware weights, by the exposure of each document over the pages of its query."""
    theta = np.where(rows.cell >= 0, np.nan_to_num(weights.propensity)[rows.cell], 0.0)
    n_documents = rows.documents.height
    exposure = sum_by_number(rows.document, rows.impressions * theta, n_documents)
    document_query = np.zeros(n_documents, np.int64)
    document_query[rows.document] = rows.query
    rho = exposure / rows.pages[document_query]
    weight = np.divide(1.0, np.maximum(rho, weights.min_propensity), out=np.zeros(n_documents), where=rho > 0)
    unclipped = (rho >= weights.min_propensity)[rows.document]
    share = np.divide(rows.impressions * theta, exposure[rows.document], out=np.zeros(len(theta)), where=theta > 0)
    row_weight = np.where(theta > 0, weight[rows.document], 0.0)
    return _RowWeights(row_weight, (row_weight > 0) & ~unclipped, share * unclipped, by_document=True)


def _ranks(
    rows: PageRows, clicked: Integers, lists: pl.DataFrame | None, *, by_page: bool
) -> tuple[tuple[Integers, Flags, Integers], tuple[float, float, float]]:
    """Rank the clicked rows.

    Args:
        rows: all rows.
        clicked: indices of rows with clicks, shape (C,).
        lists: of the ranking; None for the log's own.
        by_page: whether candidates are those of a page.

    Returns:
        Rank, whether the ranking contains the document, and last rank, shape (C,) each; then impressions and clicks of
        documents without a score, and pages without any score.
    """
    size = np.bincount(rows.page)[rows.page[clicked]] if by_page and len(clicked) else np.empty(0, np.int64)
    if lists is None:
        place = rows.place[clicked]
        return (place, np.ones(len(clicked), bool), size if by_page else place), (0.0, 0.0, 0.0)
    with_rank = rows.documents.join(
        lists.select(QUERY, DOC, RANK), on=[QUERY, DOC], how="left", nulls_equal=True, maintain_order="left"
    )
    in_list = with_rank[RANK].cast(pl.Int64).fill_null(int(_UNRANKED)).to_numpy()[rows.document]
    scored = in_list != _UNRANKED
    unscored = float(rows.impressions[~scored].sum()), float(rows.clicks[~scored].sum())
    if by_page:
        order = np.argsort(rows.page * (2 * _UNRANKED) + in_list, kind="stable")  # pages ascend
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order)) - np.searchsorted(rows.page, rows.page) + 1
        weight = np.bincount(rows.page, rows.impressions) / np.maximum(np.bincount(rows.page), 1)
        unscored_pages = float(weight[np.bincount(rows.page, scored) == 0].sum())
        return (rank[clicked], scored[clicked], size), (*unscored, unscored_pages)
    longest = lists.group_by(QUERY).agg(pl.col(RANK).max())
    length = rows.queries.join(longest, on=QUERY, how="left", nulls_equal=True, maintain_order="left")[RANK]
    last = length.cast(pl.Int64).fill_null(0).to_numpy() + 1
    unscored_pages = float(rows.pages[np.bincount(rows.query, scored, len(rows.pages)) == 0].sum())
    return (in_list[clicked], scored[clicked], last[rows.query[clicked]]), (*unscored, unscored_pages)


def merge_query_sums(parts: Sequence[QuerySums]) -> QuerySums:
    """Add up the sums of parts that may share queries, but no page."""
    if len(parts) == 1:
        return parts[0]
    queries = pl.concat(part.queries for part in parts)
    once = queries.group_by(QUERY, maintain_order=True).agg(pl.col(PAGES).sum())
    number = key_numbers(once, queries, [QUERY]).to_numpy()
    sums = np.zeros((once.height, parts[0].sums.shape[1]))
    np.add.at(sums, number, np.concatenate([part.sums for part in parts]))
    documents = pl.concat(part.documents for part in parts).unique(maintain_order=True)
    return QuerySums(once, documents, sums, reduce(add, (part.pooled for part in parts)))


def count_top(totals: QuerySums, lists: pl.DataFrame, options: RankingMeasures) -> list[Floats]:
    """Count the documents in the first K ranks, once per page of their query: all, and those never shown, shape (R,).

    Args:
        totals: sums of whole queries.
        lists: `RANKING`, `query`, `doc`, `RANK`; lists of other queries are ignored.
        options: rankings and measures.
    """
    top = lists.filter(pl.col(RANK) <= options.depth).join(
        totals.queries, on=QUERY, nulls_equal=True, maintain_order="left"
    )
    never = top.join(totals.documents, on=[QUERY, DOC], how="anti", nulls_equal=True, maintain_order="left")
    by_ranking = ((rows[RANKING].cast(pl.Int64).to_numpy(), rows[PAGES].to_numpy()) for rows in (top, never))
    return [sum_by_number(*numbers, options.n_rankings) for numbers in by_ranking]
