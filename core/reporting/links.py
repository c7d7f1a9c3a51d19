"""Which positions the log compares with which: clicks on documents that were shown at both."""

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats

MOST_LINKED_POSITIONS = 40
"""The side of the matrix; of more positions, the first ones are looked at."""


def links_between(positions: pl.Series, shared: Floats) -> pl.DataFrame:
    """The clicks that compare two positions, contexts together.

    Args:
        positions: of K cells.
        shared: the clicks that compare two cells, shape (K, K).

    Returns:
        `position`, `other_position` (the larger one), `clicks`, a row for each pair among the first positions.
    """
    first = positions.unique().sort().head(MOST_LINKED_POSITIONS)
    member = np.equal.outer(first.to_numpy(), positions.to_numpy()).astype(np.float64)
    clicks = member @ np.where(np.isfinite(shared), shared, 0.0) @ member.T
    one, other = np.triu_indices(len(first), k=1)
    return pl.DataFrame(
        {
            "position": first.gather(one.tolist()),
            "other_position": first.gather(other.tolist()),
            "clicks": clicks[one, other],
        }
    )
