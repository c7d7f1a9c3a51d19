"""Periods: how finely statistics keep time, and how long the parts of a log are within which gamma is one.

A stratum is a pair within a week, a day or an hour. Statistics keep the beginning of what is finest.
"""

from collections.abc import Sequence
from typing import Literal

import polars as pl

from posbias.core.schema import PERIOD

Resolution = Literal["day", "hour", "quarter"]
"""What statistics keep apart: days (as dates), hours, or quarters of an hour (as times)."""

RESOLUTIONS: tuple[Resolution, ...] = ("day", "hour", "quarter")
"""From the coarsest to the finest."""

Length = Literal["none", "week", "day", "hour"]
"""How long a period is within which attractiveness is one; `none` for the whole log."""

LENGTHS: tuple[Length, ...] = ("none", "week", "day", "hour")
"""From the coarsest to the finest."""

EVERY: dict[str, str] = {"week": "1w", "day": "1d", "hour": "1h", "quarter": "15m"}
"""In Polars' words."""

COARSER = frozenset(f"posbias_{length}" for length in LENGTHS[1:])
"""The columns of periods that are coarser than what statistics keep."""

HALF = "posbias_half"
"""Whether a row lies in the later half of its stratum, by impressions."""


def lengths_of(kept: Resolution | None) -> tuple[Length, ...]:
    """The lengths into which statistics can be parted that keep so much, the coarsest first."""
    return {None: LENGTHS[:1], "day": LENGTHS[:3], "hour": LENGTHS, "quarter": LENGTHS}[kept]


def column_of(length: Length, kept: Resolution | None) -> tuple[str, ...]:
    """The column that tells periods of a length apart; none for the whole log."""
    if length == "none":
        return ()
    return (PERIOD,) if length == kept else (f"posbias_{length}",)


def with_periods(frame: pl.DataFrame, unit: tuple[str, ...]) -> pl.DataFrame:
    """Statistics, or impressions, with the columns of periods that a unit has and the statistics have not."""
    made = [
        pl.col(PERIOD).dt.truncate(EVERY[length]).alias(f"posbias_{length}")
        for length in LENGTHS[1:]
        if f"posbias_{length}" in unit
    ]
    return frame.with_columns(made) if made else frame


def coarsest(kept: Sequence[Resolution | None]) -> Resolution | None:
    """What all of several statistics keep apart, that keep so much."""
    if None in kept:
        return None
    return next((resolution for resolution in RESOLUTIONS if resolution in kept), None)


def coarsened(statistics: pl.LazyFrame, kept: Resolution) -> pl.LazyFrame:
    """Statistics that keep time more finely, with coarser periods; rows of equal keys are not added up."""
    period = pl.col(PERIOD).dt.truncate(EVERY[kept])
    return statistics.with_columns(period.cast(pl.Date) if kept == "day" else period)
