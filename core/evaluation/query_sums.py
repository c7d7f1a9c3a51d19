"""Sums over the clicks of each query, for every ranking and measure: what estimates and their errors are made from.

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
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.choices import Candidates
from posbias.core.evaluation.measures import measures
from posbias.core.evaluation.ndcg import RANK, RANKING
from posbias.core.evaluation.shown import PAGES, CellWeights, Shown
from posbias.core.schema import DOC, QUERY

N_PAGES, N_CLICKS, SUM_WEIGHT, FIRST = 0, 1, 2, 3
"""Columns of the sums: pages, clicks, the weight of the clicks; then A and B by ranking and measure."""

_UNRANKED = np.int64(1 << 30)
_NUMBER = "posbias_number"


@dataclass(frozen=True)
class Asked:
    """What is asked of rankings.

    Attributes:
        n_rankings: R, with the log's own as the first.
        depth: K.
        candidates: what documents are ranked among.
    """

    n_rankings: int
    depth: int
    candidates: Candidates

    @property
    def n_sums(self) -> int:
        """P, columns of the sums."""
        return FIRST + 2 * self.n_rankings * len(measures())

    def column(self, ranking: int, measure: int, *, weighted: bool) -> int:
        """The column of A, or of B."""
        return FIRST + 2 * (ranking * len(measures()) + measure) + weighted


@dataclass(frozen=True)
class Missing:
    """What rankings lack, and what the log never showed; each of shape (R,).

    Attributes:
        impressions: of documents without a score.
        clicks: on them.
        pages: on which no document has a score.
        top: documents in the first K places, once for each page of their query.
        never_shown: those among them that no page of the query showed.
    """

    impressions: Floats
    clicks: Floats
    pages: Floats
    top: Floats
    never_shown: Floats

    def __add__(self, other: "Missing") -> "Missing":
        """Those of both."""
        return Missing(
            self.impressions + other.impressions,
            self.clicks + other.clicks,
            self.pages + other.pages,
            self.top + other.top,
            self.never_shown + other.never_shown,
        )


@dataclass(frozen=True)
class QuerySums:
    """The sums of some queries.

    Attributes:
        queries: `query` and `PAGES`, Q rows.
        documents: `query` and `doc` of what was shown.
        sums: shape (Q, P).
        moves: sum of u w lambda of the clicks by cell, as far as w follows theta there, shape (R, M, K).
        weight_moves: sum of u w likewise, shape (K,).
        squares: sum over the pages of B^2, shape (R, M); 0 for candidates of queries.
        missing: what rankings lack; what was never shown is not known yet.
        impressions: of all rows.
        clipped: clicks whose w is clipped.
        unweighted: clicks in cells without a propensity.
        n_pages: number of pages.
    """

    queries: pl.DataFrame
    documents: pl.DataFrame
    sums: Floats
    moves: Floats
    weight_moves: Floats
    squares: Floats
    missing: Missing
    impressions: float
    clipped: float
    unweighted: float
    n_pages: int


@dataclass(frozen=True)
class _Weighted:
    """What the clicks weigh.

    Attributes:
        weight: w of each row, shape (N,), 0 where it has none.
        clipped: whether it is clipped, shape (N,).
        share: of the theta that w is made of, this row's, 0 where w does not follow it, shape (N,).
        by_document: whether that is the theta of all rows of the document, or of the row alone.
    """

    weight: Floats
    clipped: Flags
    share: Floats
    by_document: bool

    def by_cell(self, shown: Shown, clicked: Integers, values: Floats, n_cells: int) -> Floats:
        """What a relative change of theta takes away from a sum over the clicks, shape (K,).

        Args:
            shown: the rows.
            clicked: those with clicks, shape (C,).
            values: their terms of the sum, shape (C,).
            n_cells: K.
        """
        of_row = np.zeros(len(shown.cell))
        if self.by_document:
            of_row = _by(shown.document[clicked], values, shown.documents.height)[shown.document]
        else:
            of_row[clicked] = values
        known = shown.cell >= 0
        return _by(shown.cell[known], (of_row * self.share)[known], n_cells)


def query_sums(shown: Shown, lists: pl.DataFrame, weights: CellWeights, asked: Asked) -> QuerySums:
    """The sums of the queries of some rows: whole pages, or for candidates of queries whole queries.

    Args:
        shown: the rows.
        lists: `RANKING` (from 1; 0 is the log's own), `query`, `doc`, `RANK` of these queries, perhaps of others.
        weights: theta by cell.
        asked: what is asked.
    """
    by_page = asked.candidates == "page"
    known = shown.cell >= 0
    as_shown = _cell_weights(shown, weights)
    weighted = as_shown if by_page else _query_weights(shown, weights)
    clicked = np.flatnonzero(shown.clicks > 0)
    weight = shown.clicks[clicked] * weighted.weight[clicked]
    sums = np.zeros((len(shown.pages), asked.n_sums))
    sums[:, N_PAGES] = shown.pages
    sums[:, N_CLICKS] = _by(shown.query[clicked], shown.clicks[clicked], len(sums))
    sums[:, SUM_WEIGHT] = _by(shown.query[clicked], weight, len(sums))
    shape = asked.n_rankings, len(measures()), len(weights.propensity)
    moves, squares = np.zeros(shape), np.zeros(shape[:2])
    lacking = np.zeros((3, asked.n_rankings))
    for ranking in range(asked.n_rankings):
        of_documents = None if ranking == 0 else _ranks_of_documents(shown, lists, ranking)
        if of_documents is not None:
            lacking[:, ranking] = _lacking(shown, of_documents != _UNRANKED, by_page=by_page)
        rank, scored, last = _ranks(shown, of_documents, clicked, lists, ranking, by_page=by_page)
        own = as_shown if ranking == 0 else weighted
        own_weight = shown.clicks[clicked] * own.weight[clicked]
        for number, measure in enumerate(measures()):
            value = measure.values(rank, scored, last, asked.depth)
            naive, ips = shown.clicks[clicked] * value, own_weight * value
            sums[:, asked.column(ranking, number, weighted=False)] = _by(shown.query[clicked], naive, len(sums))
            sums[:, asked.column(ranking, number, weighted=True)] = _by(shown.query[clicked], ips, len(sums))
            moves[ranking, number] = own.by_cell(shown, clicked, ips, len(weights.propensity))
            if by_page:
                squares[ranking, number] = float(np.sum(_by(shown.page[clicked], ips) ** 2))
    nothing = np.zeros(asked.n_rankings)
    return QuerySums(
        queries=shown.queries,
        documents=shown.documents,
        sums=sums,
        moves=moves,
        weight_moves=weighted.by_cell(shown, clicked, weight, len(weights.propensity)),
        squares=squares,
        missing=Missing(lacking[0], lacking[1], lacking[2], nothing, nothing),
        impressions=float(shown.impressions.sum()),
        clipped=float(shown.clicks[weighted.clipped].sum()),
        unweighted=float(shown.clicks[~known | (weighted.weight == 0)].sum()),
        n_pages=shown.n_pages,
    )


def _by(keys: Integers, values: Floats, number: int = 0) -> Floats:
    return np.bincount(keys, values, number).astype(np.float64, copy=False)  # of no rows, they are whole numbers


def _cell_weights(shown: Shown, weights: CellWeights) -> _Weighted:
    known = shown.cell >= 0
    weight = np.where(known, weights.weight[shown.cell], 0.0)
    moves = known & weights.moves[shown.cell]
    return _Weighted(weight, (weight > 0) & ~moves, moves.astype(np.float64), by_document=False)


def _query_weights(shown: Shown, weights: CellWeights) -> _Weighted:
    """Weights of the documents of queries."""
    theta = np.where(shown.cell >= 0, np.nan_to_num(weights.propensity)[shown.cell], 0.0)
    n_documents = shown.documents.height
    seen = _by(shown.document, shown.impressions * theta, n_documents)
    query_of = np.zeros(n_documents, np.int64)
    query_of[shown.document] = shown.query
    rho = seen / shown.pages[query_of]
    weight = np.divide(1.0, np.maximum(rho, weights.min_propensity), out=np.zeros(n_documents), where=rho > 0)
    moves = rho >= weights.min_propensity
    share = np.divide(shown.impressions * theta, seen[shown.document], out=np.zeros(len(theta)), where=theta > 0)
    of_row = np.where(theta > 0, weight[shown.document], 0.0)
    clipped = (of_row > 0) & ~moves[shown.document]
    return _Weighted(of_row, clipped, share * moves[shown.document], by_document=True)


def _ranks_of_documents(shown: Shown, lists: pl.DataFrame, ranking: int) -> Integers:
    """The place of each document in the list of its query, shape (J,); `_UNRANKED` where it is not there."""
    own = lists.filter(pl.col(RANKING) == ranking).select(QUERY, DOC, RANK)
    found = shown.documents.join(own, on=[QUERY, DOC], how="left", nulls_equal=True, maintain_order="left")
    return found[RANK].cast(pl.Int64).fill_null(int(_UNRANKED)).to_numpy()


def _ranks(
    shown: Shown, of_documents: Integers | None, clicked: Integers, lists: pl.DataFrame, ranking: int, *, by_page: bool
) -> tuple[Integers, Flags, Integers]:
    """The ranks of the clicked rows, whether they have one, and the last rank there."""
    if by_page:
        size = np.bincount(shown.page)[shown.page[clicked]] if len(clicked) else np.empty(0, np.int64)
        if of_documents is None:
            return shown.place[clicked], np.ones(len(clicked), bool), size
        in_list = of_documents[shown.document]
        return _ranks_on_pages(shown.page, in_list)[clicked], in_list[clicked] != _UNRANKED, size
    if of_documents is None:
        return shown.place[clicked], np.ones(len(clicked), bool), shown.place[clicked]
    own = lists.filter(pl.col(RANKING) == ranking).group_by(QUERY).agg(pl.col(RANK).max())
    length = shown.queries.join(own, on=QUERY, how="left", nulls_equal=True, maintain_order="left")[RANK]
    last = length.cast(pl.Int64).fill_null(0).to_numpy() + 1
    rank = of_documents[shown.document[clicked]]
    return rank, rank != _UNRANKED, last[shown.query[clicked]]


def _ranks_on_pages(page: Integers, in_list: Integers) -> Integers:
    """The rank of each row among those of its page; pages ascend."""
    order = np.argsort(page * (2 * _UNRANKED) + in_list, kind="stable")
    start = np.searchsorted(page, page)
    rank = np.empty(len(page), np.int64)
    rank[order] = np.arange(len(page)) - start + 1
    return rank


def _lacking(shown: Shown, scored: Flags, *, by_page: bool) -> tuple[float, float, float]:
    """Impressions and clicks of documents without a score, and the pages without any score."""
    of_row = scored[shown.document]
    without = float(shown.impressions[~of_row].sum()), float(shown.clicks[~of_row].sum())
    if by_page:
        some = np.bincount(shown.page, of_row)
        weight = np.bincount(shown.page, shown.impressions) / np.maximum(np.bincount(shown.page), 1)
        return *without, float(weight[some == 0].sum())
    some = np.bincount(shown.query, of_row, len(shown.pages))
    return *without, float(shown.pages[some == 0].sum())


def merged(parts: Sequence[QuerySums]) -> QuerySums:
    """The sums of several pieces of a part, which may share queries, but no page."""
    if len(parts) == 1:
        return parts[0]
    queries = pl.concat(part.queries for part in parts)
    once = queries.group_by(QUERY, maintain_order=True).agg(pl.col(PAGES).sum())
    numbers = once.select(QUERY).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(_NUMBER))
    number = queries.join(numbers, on=QUERY, how="left", nulls_equal=True, maintain_order="left")[_NUMBER].to_numpy()
    sums = np.zeros((once.height, parts[0].sums.shape[1]))
    np.add.at(sums, number, np.concatenate([part.sums for part in parts]))
    missing = parts[0].missing
    for part in parts[1:]:
        missing += part.missing
    return QuerySums(
        queries=once,
        documents=pl.concat(part.documents for part in parts).unique(maintain_order=True),
        sums=sums,
        moves=np.sum([part.moves for part in parts], axis=0),
        weight_moves=np.sum([part.weight_moves for part in parts], axis=0),
        squares=np.sum([part.squares for part in parts], axis=0),
        missing=missing,
        impressions=sum(part.impressions for part in parts),
        clipped=sum(part.clipped for part in parts),
        unweighted=sum(part.unweighted for part in parts),
        n_pages=sum(part.n_pages for part in parts),
    )


def count_top(found: QuerySums, lists: pl.DataFrame, asked: Asked) -> tuple[Floats, Floats]:
    """Documents in the first K places of each ranking, once for each page of their query, and those never shown.

    Args:
        found: sums of whole queries.
        lists: of these queries, perhaps of others.
        asked: what is asked.
    """
    top = lists.filter(pl.col(RANK) <= asked.depth).join(
        found.queries, on=QUERY, nulls_equal=True, maintain_order="left"
    )
    never = top.join(found.documents, on=[QUERY, DOC], how="anti", nulls_equal=True, maintain_order="left")
    shown, unseen = (
        _by(rows[RANKING].cast(pl.Int64).to_numpy(), rows[PAGES].to_numpy(), asked.n_rankings) for rows in (top, never)
    )
    return shown, unseen
