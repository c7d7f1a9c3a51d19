"""Features beside the rows of a part, in chunks that fit into memory, and how many are missing."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import PAIR
from posbias.core.training.layouts import GROUP
from posbias.io.features.columns import described
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


_EXAMPLES = 3
_SAMPLE = 1_000  # rows, to tell how wide they are
_ROWS = "posbias_rows"


def with_features(rows: pl.DataFrame, features: pl.LazyFrame) -> pl.DataFrame:
    """Rows with their features as the last columns, in the same order; null where there are none.

    Args:
        rows: some rows of a part.
        features: the features of that part: each key once. Only those of these rows are held in memory.
    """
    keys = keys_of(features)
    needed = features.join(rows.lazy().select(keys).unique(), on=keys, how="semi").collect(engine="streaming")
    return rows.join(needed, on=keys, how="left", maintain_order="left")


def rows_with_features(rows: pl.LazyFrame, features: pl.LazyFrame) -> pl.LazyFrame:
    """Those rows that have features, in the same order."""
    keys = keys_of(features)
    return rows.join(features.select(keys), on=keys, how="semi", maintain_order="left")


def held(features: pl.LazyFrame, memory: int) -> pl.LazyFrame:
    """The features of a part in memory, if they take no more than so many bytes; else as they are, on disk."""
    sample = features.head(_SAMPLE).collect()
    rows = features.select(pl.len()).collect(engine="streaming").item()
    fits = rows * sample.estimated_size() <= memory * max(sample.height, 1)
    return features.collect(engine="streaming").lazy() if fits else features


def keys_of(features: pl.LazyFrame) -> list[str]:
    """What a row of features is about: `query` and `doc`, or `doc`."""
    names = features.collect_schema().names()
    return [key for key in PAIR if key in names]


@dataclass(frozen=True)
class MissingFeatures:
    """Keys without features; those of two parts add up."""

    keys: int = 0  # number of different keys: of (query, doc), or of documents in each part
    rows: int = 0  # number of rows with these keys
    examples: tuple[str, ...] = ()  # a few of the keys, in words

    def __add__(self, other: "MissingFeatures") -> "MissingFeatures":
        examples = tuple(dict.fromkeys([*self.examples, *other.examples]))[:_EXAMPLES]
        return MissingFeatures(self.keys + other.keys, self.rows + other.rows, examples)


def missing_features(rows: pl.LazyFrame, features: pl.LazyFrame) -> MissingFeatures:
    """The keys of rows of a part that have no features.

    Args:
        rows: `query` and `doc` of each row.
        features: the features of that part.
    """
    keys = keys_of(features)
    without = rows.select(keys).join(features.select(keys), on=keys, how="anti")
    found = without.group_by(keys).agg(pl.len().cast(pl.Int64).alias(_ROWS)).collect(engine="streaming")
    first = found.sort(keys).head(_EXAMPLES)
    examples = tuple(described(first, keys, number) for number in range(first.height))
    return MissingFeatures(found.height, int(found[_ROWS].sum()), examples)


def check_none_missing(missing: MissingFeatures, where: str) -> None:
    """What `--missing error` means.

    Raises:
        SchemaError: some rows have no features.
    """
    if missing.keys:
        raise SchemaError(
            f"{where}: has no features for {missing.keys:,} keys of the log ({missing.rows:,} training rows): "
            f"{'; '.join(missing.examples)}{'; ...' if missing.keys > len(missing.examples) else ''}. Add them, leave "
            "these rows out (--missing drop) or leave their features empty (--missing nan)."
        )
