"""Features that stand in the log itself."""

from pathlib import Path

import polars as pl

from posbias.core.schema import PAIR
from posbias.io.features.columns import FeatureColumns
from posbias.io.temporary.files import temporary_files

_VARIES = "posbias_varies:"


def features_of_pairs(
    impressions: pl.LazyFrame, columns: FeatureColumns, path: Path
) -> tuple[pl.LazyFrame, dict[str, int]]:
    """One row per (query, doc) of a part: the largest value of each feature over the pair's impressions.

    Args:
        impressions: canonical impressions with the raw columns; a query lies wholly in one part.
        columns: the features.
        path: a Parquet file to make, in the directory of temporary files.

    Returns:
        `query`, `doc` and the features, and for each feature the number of pairs where its values differ. A value that
        is missing in some impressions does not differ from the others.

    Raises:
        OutputError: there is no room.
    """
    names = [feature.name for feature in columns.features]
    read = impressions.select(*PAIR, *columns.read)
    schema = read.collect_schema()
    values = [pl.col(name).fill_nan(None) if schema[name].is_float() else pl.col(name) for name in names]
    varies = [(value.min() != value.max()).fill_null(value=False).name.prefix(_VARIES) for value in values]
    with temporary_files(path.parent):
        read.group_by(PAIR).agg(*(value.max() for value in values), *varies).sink_parquet(
            path, compression="lz4", statistics=False
        )
    pairs = pl.scan_parquet(path, glob=False)
    counts = pairs.select(pl.col(f"{_VARIES}{name}").sum().alias(name) for name in names).collect(engine="streaming")
    return pairs.select(*PAIR, *names), dict(zip(names, map(int, counts.row(0)), strict=True))
