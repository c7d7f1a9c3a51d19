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
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Self

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.choices import Candidates
from posbias.core.evaluation.measures import MEASURES, Measure
from posbias.core.evaluation.ndcg import RANK, RANKING
from posbias.core.evaluation.shown import PAGES, CellWeights, Shown
from posbias.core.schema import DOC, QUERY

N_PAGES, N_CLICKS, SUM_WEIGHT, FIRST = 0, 1, 2, 3
"""Columns of the sums: pages, clicks, the weight of the clicks; then A and B by ranking and measure."""

_UNRANKED = np.int64(1 << 30)
_NUMBER = "posbias_number"


@dataclass(frozen=True)
class Asked:
    """What rankings are judged by."""

    n_rankings: int  # R, with the log's own as the first
    depth: int  # K
    candidates: Candidates  # what documents are ranked among

    @property
    def n_sums(self) -> int:
        """P, columns of the sums."""
        return FIRST + 2 * self.n_rankings * len(MEASURES)

    def column(self, ranking: int, measure: Measure, *, weighted: bool) -> int:
        """The column of A, or of B."""
        return FIRST + 2 * (ranking * len(MEASURES) + MEASURES.index(measure)) + weighted


@dataclass(frozen=True)
class Added:
    """Sums of which some parts add up to those of the whole."""

    def __add__(self, other: Self) -> Self:
        """Those of both parts."""
        return replace(self, **{name: value + getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Missing(Added):
    """What rankings lack, and what the log never showed; each of shape (R,)."""

    impressions: Floats  # of documents without a score
    clicks: Floats  # on them
    pages: Floats  # on which no document has a score
    top: Floats  # documents in the first K places, once for each page of their query
    never_shown: Floats  # those among them that no page of the query showed


@dataclass(frozen=True)
class Rest(Added):
    """What is known of some pages beside the sums by query."""

    moves: Floats  # sum of u w lambda of the clicks by cell, as far as w follows theta there, shape (R, M, K)
    weight_moves: Floats  # sum of u w likewise, shape (K,)
    squares: Floats  # sum over the pages of B^2, shape (R, M); 0 for candidates of queries
    missing: Missing
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
    """What the clicks weigh."""

    weight: Floats  # w of each row, shape (N,), 0 where it has none
    clipped: Flags  # whether it is clipped, shape (N,)
    share: Floats  # of the theta that w is made of, this row's, 0 where w does not follow it, shape (N,)
    by_document: bool  # whether that is the theta of all rows of the document, or of the row alone

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
    shape = asked.n_rankings, len(MEASURES), len(weights.propensity)
    moves, squares = np.zeros(shape), np.zeros(shape[:2])
    lacking = np.zeros((3, asked.n_rankings))
    for ranking in range(asked.n_rankings):
        of_documents = None if ranking == 0 else _ranks_of_documents(shown, lists, ranking)
        if of_documents is not None:
            lacking[:, ranking] = _lacking(shown, of_documents != _UNRANKED, by_page=by_page)
        rank, scored, last = _ranks(shown, of_documents, clicked, lists, ranking, by_page=by_page)
        own = as_shown if ranking == 0 else weighted
        own_weight = shown.clicks[clicked] * own.weight[clicked]
        for number, measure in enumerate(MEASURES):
            value = measure.values(rank, scored, last, asked.depth)
            naive, ips = shown.clicks[clicked] * value, own_weight * value
            sums[:, asked.column(ranking, measure, weighted=False)] = _by(shown.query[clicked], naive, len(sums))
            sums[:, asked.column(ranking, measure, weighted=True)] = _by(shown.query[clicked], ips, len(sums))
            moves[ranking, number] = own.by_cell(shown, clicked, ips, len(weights.propensity))
            if by_page:
                squares[ranking, number] = float(np.sum(_by(shown.page[clicked], ips) ** 2))
    rest = Rest(
        moves=moves,
        weight_moves=weighted.by_cell(shown, clicked, weight, len(weights.propensity)),
        squares=squares,
        missing=Missing(*lacking, *np.zeros((2, asked.n_rankings))),
        impressions=float(shown.impressions.sum()),
        clipped=float(shown.clicks[weighted.clipped].sum()),
        unweighted=float(shown.clicks[~known | (weighted.weight == 0)].sum()),
        n_pages=shown.n_pages,
    )
    return QuerySums(shown.queries, shown.documents, sums, rest)


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
    documents = pl.concat(part.documents for part in parts).unique(maintain_order=True)
    return QuerySums(once, documents, sums, reduce(add, (part.rest for part in parts)))


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
    rankings = [rows[RANKING].cast(pl.Int64).to_numpy() for rows in (top, never)]
    return _by(rankings[0], top[PAGES].to_numpy(), asked.n_rankings), _by(
        rankings[1], never[PAGES].to_numpy(), asked.n_rankings
    )
