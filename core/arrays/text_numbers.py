"""Texts as numbers: equal texts, equal numbers, so that a column is sorted and grouped as numbers are.

Exact: a hash proposes which texts are equal, and each text is compared with the first one of its hash. Where two
differ, Polars ranks them, which is slower.
"""

import numpy as np
import polars as pl

from posbias.core.arrays.compression import first_with_same
from posbias.core.arrays.count_table import Integers

_LEAST_LENGTH_OF_RUNS = 3  # equal texts that stand together, on average, from which on that is used


def ranks_of(texts: pl.Series) -> tuple[Integers, pl.Series]:
    """The number of each text among the different ones in their order, shape (N,), and these.

    e.g. ["b", "a", "b"] -> [1, 0, 1], ["a", "b"]

    Args:
        texts: no nulls.
    """
    first = np.concatenate([np.zeros(min(len(texts), 1), np.uint32), (texts[1:] != texts[:-1]).arg_true() + 1])
    if len(first) * _LEAST_LENGTH_OF_RUNS > len(texts):
        return _ranks(texts)
    rank, different = _ranks(texts.gather(first))
    return np.repeat(rank, np.diff(first, append=len(texts))), different


def _ranks(texts: pl.Series) -> tuple[Integers, pl.Series]:
    first = first_with_same(texts.hash().to_numpy())
    if not (texts == texts.gather(first)).all():
        return (texts.rank("dense").to_numpy() - 1).astype(np.int64), texts.unique().sort()
    chosen = np.flatnonzero(first == np.arange(len(texts)))
    found = texts.gather(chosen)
    different = found.sort(multithreaded=False)  # several of these run at once
    both = np.concatenate([found.hash().to_numpy(), different.hash().to_numpy()])
    rank = np.empty(len(texts), np.int64)
    rank[chosen[first_with_same(both)[len(chosen) :]]] = np.arange(len(chosen))
    return rank[first], different
