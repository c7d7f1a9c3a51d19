"""Sums by document, for the layouts that add up all that was seen of a (query, document)."""

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.sufficient_statistics import SIGNATURE
from posbias.core.schema import DOC, QUERY
from posbias.core.training.layouts.layout import GROUP


def sums_by_document(pairs: pl.DataFrame, by_signature: Floats) -> tuple[pl.DataFrame, Floats]:
    """The documents of a part, and what its signatures add up to for each.

    Args:
        pairs: `query`, `doc`, `signature`; rows of one document (one per context, say) follow one another, and so do
            those of one query.
        by_signature: what is added up, by signature, shape (J, S).

    Returns:
        `group` (the query's number, from 0), `query`, `doc`, in the order of the pairs, and the sums, shape (D, S).
    """
    document = pairs.select(pl.struct(QUERY, DOC).rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(document, prepend=-1))
    by_row = by_signature[pairs[SIGNATURE].to_numpy()]
    documents = pairs[first].select(pl.col(QUERY).rle_id().cast(pl.Int64).alias(GROUP), QUERY, DOC)
    return documents, np.add.reduceat(by_row, first) if len(first) else by_row
