"""Forgetting: the counts of a day weigh less, the older the day is.

    weight of day d = factor ** max(newest day - d, 0)

So what a ranker, a page design or the users were like long ago fades out of the propensities.
"""

from dataclasses import dataclass
from datetime import date
from typing import Any

import polars as pl

from posbias.core.log.impressions import SMALLEST_WEIGHT
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD


@dataclass(frozen=True)
class Decay:
    """How much less the counts of older days weigh.

    Attributes:
        factor: what a day is worth of the following one, above 0 and at most 1.
        newest: the day that weighs 1, and what is dated after it: days that cannot be meant.
    """

    factor: float
    newest: date

    def weigh(self, statistics: pl.LazyFrame, held: "Decay | None" = None) -> pl.LazyFrame:
        """Statistics with a `period`, their counts weighed (Float64). Days of next to no weight are left out.

        Args:
            statistics: what was counted.
            held: how it has decayed already, by the same factor, as of an earlier day or the same.
        """
        age = (pl.lit(self.newest) - pl.col(PERIOD).cast(pl.Date)).dt.total_days().clip(lower_bound=0)
        weight = pl.lit(self.factor).pow(age)
        share = weight if held is None else pl.lit(self.factor ** (self.newest - held.newest).days)
        weighed = pl.col(IMPRESSIONS, CLICKS).cast(pl.Float64) * share
        return statistics.filter(weight >= SMALLEST_WEIGHT).with_columns(weighed)

    def describe(self) -> dict[str, Any]:
        """As plain values, for metadata and manifests."""
        return {"factor": self.factor, "newest": self.newest.isoformat()}
