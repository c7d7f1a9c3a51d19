"""Rankings as lists, and their NDCG@K by judgments, as trec_eval has them: ties by id, linear gains."""

import polars as pl

from posbias.core.schema import DOC, QUERY

RANKING, SCORE, RANK = "posbias_ranking", "posbias_score", "posbias_rank"
"""Columns of lists: the number of the ranking, what it says of a document, and the place of the document, from 1."""

_TEXT = "posbias_text"


def ranked(scores: pl.DataFrame) -> pl.DataFrame:
    """The lists of some queries.

    Args:
        scores: `RANKING`, `query`, `doc`, `SCORE`; each document once in a list.

    Returns:
        Them with `RANK`, list by list.
    """
    lists = [RANKING, QUERY]
    ordered = scores.with_columns(_as_text(scores.schema[DOC]).alias(_TEXT)).sort(
        *lists, SCORE, _TEXT, descending=[False, False, True, True]
    )
    row = pl.int_range(pl.len(), dtype=pl.Int64).over(lists) + 1
    return ordered.drop(_TEXT).with_columns(row.cast(pl.Int32).alias(RANK))


def _as_text(doc: pl.DataType) -> pl.Expr:
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
