"""A table of sums that lacks its rows without clicks is told from one that has few."""

import numpy as np
import polars as pl
import pytest
from present import present

from posbias.core.counts.checks import WITHOUT, rows_left_out


def table(seed: int, size: float, top: float, shape: float = 1.0) -> pl.DataFrame:
    """Rows of about so many impressions, clicked at the top at this rate on average, at place k a k-th as often."""
    rng = np.random.default_rng(seed)
    position = np.repeat(np.arange(1, 11), 300)
    shown = 1 + rng.poisson(size * rng.exponential(size=len(position)))
    rate = np.minimum(top / position * rng.gamma(shape, 1 / shape, len(position)), 1)
    return pl.DataFrame({"position": position, "impressions": shown, "clicks": rng.binomial(shown, rate)})


def by_size(rows: pl.DataFrame) -> pl.DataFrame:
    without = (pl.col("clicks") == 0).sum().alias(WITHOUT)
    return rows.group_by("position", "impressions").agg(
        pl.len().cast(pl.Int64).alias("rows"), pl.sum("clicks"), without
    )


@pytest.mark.slow_after(11)
@pytest.mark.parametrize("size", [1, 3, 20, 400])
@pytest.mark.parametrize("top", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("shape", [1.0, 100.0])
def test_a_full_table_lacks_nothing(size: float, top: float, shape: float) -> None:
    assert [rows_left_out(by_size(table(seed, size, top, shape))) for seed in range(5)] == [None] * 5


@pytest.mark.parametrize("size", [3, 20, 100])
def test_rows_with_clicks_alone_lack_the_others(size: float) -> None:
    whole = table(1, size, 0.3)
    lacking = present(rows_left_out(by_size(whole.filter(pl.col("clicks") > 0))))

    assert lacking.without_click == 0
    assert 20 < lacking.expected < whole.filter(pl.col("clicks") == 0).height
    large = whole.filter((pl.col("clicks") > 0) & (pl.col("impressions") >= lacking.enough))
    assert rows_left_out(by_size(large)) is None
