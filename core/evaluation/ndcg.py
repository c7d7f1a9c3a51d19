"""NDCG@K by judgments, as trec_eval has it (its ndcg_cut): linear gains.

    DCG = sum over the first K ranks of max(relevance, 0) / log2(1 + rank)        NDCG = DCG / DCG of the best order

The best order is that of all judged documents of the query. What is not judged gains nothing, a query without a
relevant document counts 0, and so does a judged query of which a ranking has no list.

Source: Järvelin & Kekäläinen 2002.
"""

import polars as pl

from posbias.core.evaluation.lists import RANK, RANKING
from posbias.core.schema import DOC, QUERY

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
    ideal = (
        judgments.sort(QUERY, RELEVANCE, descending=[False, True])
        .with_columns((pl.int_range(pl.len()).over(QUERY) + 1).alias(RANK))
        .filter(pl.col(RANK) <= depth)
        .group_by(QUERY)
        .agg(_gain().sum().alias("ideal"))
        .sort(QUERY)
    )
    top = lists.filter(pl.col(RANK) <= depth).join(judgments, on=[QUERY, DOC], nulls_equal=True)
    gained = top.group_by(RANKING, QUERY).agg(_gain().sum().alias(NDCG))
    found = ideal
    for ranking in range(1, n_rankings):
        own = gained.filter(pl.col(RANKING) == ranking).select(QUERY, NDCG)
        share = pl.when(pl.col("ideal") > 0).then(pl.col(NDCG).fill_null(0.0) / pl.col("ideal")).otherwise(0.0)
        joined = found.join(own, on=QUERY, how="left", nulls_equal=True, maintain_order="left")
        found = joined.with_columns(share.alias(str(ranking))).drop(NDCG)
    return found.drop("ideal")


def _gain() -> pl.Expr:
    """What a document gains at its rank."""
    return pl.max_horizontal(pl.col(RELEVANCE), 0.0) / (pl.col(RANK) + 1).cast(pl.Float64).log(2)
