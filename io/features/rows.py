"""Features beside the rows of a part: brought to a chunk of rows, and counted where they are missing."""

from dataclasses import dataclass

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import PAIR
from posbias.io.features.columns import described

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
    """Keys without features; those of two parts add up.

    Attributes:
        keys: number of different keys: of (query, doc), or of documents in each part.
        rows: number of rows with these keys.
        examples: a few of the keys, in words.
    """

    keys: int = 0
    rows: int = 0
    examples: tuple[str, ...] = ()

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
