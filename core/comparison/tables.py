"""What comparisons found, as tables: a row per cell, or per day and cell."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats
from posbias.core.comparison.curves import Curves, Differences

DAY = "day"


def change_table(cells: pl.DataFrame, curves: Curves, found: Differences) -> pl.DataFrame:
    """One row per cell.

    Args:
        cells: the cell columns, K rows.
        curves: two of them, relative to the same cells.
        found: of `change`.

    Returns:
        The cell columns, `propensity_a`, `propensity_b`, `change` (b - a), `ratio` (b / a), `ratio_ci_low`,
        `ratio_ci_high`, `std_error` (of the logarithm of the ratio), `p_value`, `p_value_joint`, `reason` (why it is
        not compared). What is not known is null.
    """
    first, second = np.exp(curves.log_theta)
    return cells.with_columns(
        _known("propensity_a", first),
        _known("propensity_b", second),
        _known("change", second - first),
        *_tested(found),
        pl.Series("reason", _why_not(curves, ("a", "b")), pl.String),
    )


def day_table(cells: pl.DataFrame, days: pl.Series, curves: Curves, found: Differences) -> pl.DataFrame:
    """One row per day and cell.

    Args:
        cells: the cell columns, K rows.
        days: S of them.
        curves: a curve per day, relative to the same cells.
        found: of `from_others`.

    Returns:
        `day`, the cell columns, `propensity`, `other_days` (what the others say together), `change` (from that), and
        the rest as in `change_table`.
    """
    is_reference = curves.std_error.ravel() == 0
    own, apart = np.exp(curves.log_theta.ravel()), np.exp(np.where(is_reference, 0.0, found.difference))
    return (
        days.alias(DAY)
        .to_frame()
        .join(cells, how="cross", maintain_order="left_right")
        .with_columns(
            _known("propensity", own),
            _known("other_days", own / apart),
            _known("change", own - own / apart),
            *_tested(found),
            pl.Series("reason", _why_not_the_day(curves, found), pl.String),
        )
    )


def _unknown(curves: Curves) -> list[tuple[Flags, str]]:
    """Which cells of which curves have no error, no propensity, or nothing, the last to be said first; (S, K)."""
    return [
        (~np.isfinite(curves.std_error), "no standard error"),
        (~np.isfinite(curves.log_theta), "no propensity"),
        (~curves.present, "not shown"),
    ]


def _why_not(curves: Curves, names: Sequence[str]) -> list[str | None]:
    """Why cells of two curves are not compared; None where they are."""
    reasons = np.full(curves.shape[1], None, np.object_)
    for unknown, reason in _unknown(curves):
        for cells, name in reversed(list(zip(unknown, names, strict=True))):
            reasons[cells] = f"{reason} in {name}"
    return reasons.tolist()


def _why_not_the_day(curves: Curves, found: Differences) -> list[str | None]:
    """Why a day's cell is not compared with other days; None where it is."""
    reasons = np.full(curves.log_theta.size, None, np.object_)
    alone = ~np.isfinite(found.difference)
    reasons[alone & ~(curves.std_error.ravel() == 0)] = "no other day has a propensity with an error"
    for unknown, reason in _unknown(curves):
        reasons[unknown.ravel()] = reason
    return reasons.tolist()


def _tested(found: Differences) -> list[pl.Series]:
    with np.errstate(over="ignore"):
        ratios = {
            "ratio": np.exp(found.difference),
            "ratio_ci_low": np.exp(found.low),
            "ratio_ci_high": np.exp(found.high),
        }
    return [
        *(_known(name, values) for name, values in ratios.items()),
        _known("std_error", found.std_error),
        _known("p_value", found.p_value),
        _known("p_value_joint", np.where(found.std_error > 0, found.test.p_values, np.nan)),
    ]


def beyond(table: pl.DataFrame, largest: float) -> pl.DataFrame:
    """The rows whose propensity has changed by more than a share, up or down, and by more than its error.

    Args:
        table: of `change_table` or `day_table`.
        largest: above 0; with 0.5, a propensity may be half as high again, or by that factor lower.
    """
    ratio = pl.col("ratio")
    far = (ratio > 1 + largest) | (ratio < 1 / (1 + largest))
    return table.filter(far & ((pl.col("ratio_ci_low") > 1) | (pl.col("ratio_ci_high") < 1)))


def _known(name: str, values: Floats) -> pl.Series:
    return pl.Series(name, np.where(np.isfinite(values), values, np.nan), nan_to_null=True)
