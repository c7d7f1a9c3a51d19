"""What statistics say about themselves: what was counted, from which sources, and how far it has decayed.

It stands in the manifest of a directory of statistics and, for whoever meets a part alone, in the metadata of every
Parquet part.

Forgetting: the counts of a day weigh less, the older the day is.

    weight of day d = factor ** max(newest day - d, 0)

So what a ranker, a page design or the users were like long ago fades out of the propensities.
"""

import json
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import msgspec
import polars as pl
from msgspec import Meta

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.log.impressions import SMALLEST_WEIGHT
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD
from posbias.io.log.rows import Rows


class Decay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much less the counts of older days weigh."""

    factor: Annotated[float, Meta(gt=0, le=1)]  # what a day is worth of the following one
    newest: date  # the day that weighs 1, and what is dated after it: days that cannot be meant

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


SCHEMA = "posbias.statistics"
VERSION = 5
DAYS_ONLY = 4
"""The version before, in which `period` says whether there are days; it is read as well."""


@dataclass(frozen=True)
class StatisticsMetadata:
    """What statistics hold."""

    plan: StatisticsPlan  # what was counted
    sources: dict[str, str]  # path by digest of every log file that was counted
    rows: Rows  # rows read, rejected and used
    decay: Decay | None = None  # how much less the counts of older days weigh; None for counts as they were

    def to_parquet(self) -> dict[str, str]:
        """As the key-value metadata of a Parquet file."""
        described = {
            "version": VERSION,
            **describe_plan(self.plan),
            "sources": self.sources,
            "rows": msgspec.to_builtins(self.rows),
            "decay": describe_decay(self.decay),
        }
        return {"schema": SCHEMA, "posbias": json.dumps(described, sort_keys=True)}


def describe_plan(plan: StatisticsPlan) -> dict[str, Any]:
    """A plan as plain values, for metadata and manifests."""
    return {
        "model": plan.model.name,
        "max_position": plan.max_position,
        "position_bins": list(plan.position_bins),
        "context": list(plan.context),
        "period": plan.period,
        "strata": list(plan.strata),
        **({"clusters": list(plan.clusters)} if plan.clusters else {}),
        "randomized": [str(rows) for rows in plan.randomized],
        "weighted": plan.weighted,
    }


def describe_decay(decay: Decay | None) -> dict[str, Any] | None:
    """A decay as plain values."""
    return msgspec.to_builtins(decay)
