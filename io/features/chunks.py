"""A part's rows in chunks that fit into memory together with their features."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from posbias.core.training.layouts import GROUP
from posbias.io.temporary.kept import KeptFrame

_MOST_ROWS = 1 << 20
_FEWEST_ROWS = 1 << 10
_BYTES_PER_ROW = 200  # ids, label, weight
_BYTES_PER_VALUE, _COPIES = 8, 3  # as found, as joined, as a format turns it
_SHARE = 8  # of the memory: the rest is for the part's features, and for the process itself


def rows_per_chunk(n_features: int, memory: int) -> int:
    """How many rows are worked on at once, by a process that may take so many bytes."""
    width = _BYTES_PER_ROW + n_features * _BYTES_PER_VALUE * _COPIES
    return max(min(memory // _SHARE // width, _MOST_ROWS), _FEWEST_ROWS)


def chunks(rows: KeptFrame, size: int) -> Iterator[pl.DataFrame]:
    """Rows in their order, in frames of whole groups.

    Args:
        rows: the rows of a part, by `group`.
        size: the most rows of a chunk; a group that is larger is a chunk of its own.
    """
    lengths = rows.scan().select(pl.col(GROUP).rle().struct.field("len")).collect().to_series()
    ends = np.cumsum(lengths.to_numpy(), dtype=np.int64)
    start, group = 0, 0
    while group < len(ends):
        following = max(int(np.searchsorted(ends, start + size, side="right")), group + 1)
        end = int(ends[following - 1])
        yield rows.slice(start, end - start)
        start, group = end, following
