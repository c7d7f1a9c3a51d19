"""The split into training and validation, by a hash of the id: the same on every day and every engine.

    validation, where  h(id) mod 10^6 < share * 10^6,  h = XXH64 of the id's text (UTF-8), seed 42, as a signed number

Ids that are bytes are hashed as they are. Spark SQL computes the same:
pmod(xxhash64(CAST(query AS STRING)), 1000000). An id of several columns is hashed column by column, each with the hash
of the one before as its seed, as Spark's xxhash64(a, b). A larger share holds all of a smaller one.

Source: XXH64 (Collet), as specified at xxhash.com and used by Spark.
"""

import polars as pl
import xxhash

_SEED, _SHARES, _SIGN = 42, 1_000_000, 1 << 63


def in_validation(ids: pl.Series, share: float) -> pl.Series:
    """Which ids belong to the validation set, in the order of the ids, as booleans.

    Args:
        ids: of any type whose values can be written as text; structs for ids of several columns.
        share: of all ids, in [0, 1), in steps of a millionth.
    """
    below = round(share * _SHARES)
    distinct = ids.unique()
    chosen = [number % _SHARES < below for number in hashes(distinct)]
    table = pl.DataFrame({"id": distinct, "chosen": pl.Series(chosen, dtype=pl.Boolean)})
    return pl.DataFrame({"id": ids}).join(table, on="id", how="left", nulls_equal=True, maintain_order="left")["chosen"]


def hashes(ids: pl.Series) -> list[int]:
    """H of each id, as signed 64-bit numbers."""
    columns = ids.struct.unnest().get_columns() if isinstance(ids.dtype, pl.Struct) else [ids]
    found = [_SEED] * len(ids)
    for column in columns:
        texts = column if column.dtype == pl.Binary else column.cast(pl.String).cast(pl.Binary)
        found = [
            seed if text is None else xxhash.xxh64_intdigest(text, seed)
            for text, seed in zip(texts.to_list(), found, strict=True)  # a list is read twice as fast as a column
        ]
    return [number - 2 * _SIGN if number >= _SIGN else number for number in found]
