"""Rankings as lists: the documents of a query in the order of their scores, as trec_eval has it.

    higher scores first; of equal scores, the document whose id is later in the alphabet (as text) first

What a file says of ranks is not looked at, as in trec_eval.
"""

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
