"""What statistics say about themselves: what was counted, from which sources, and how far it has decayed.

It stands in the manifest of a directory of statistics and, for whoever meets a part alone, in the metadata of every
Parquet part.
"""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from posbias.core.counts.plan import StatisticsPlan
from posbias.io.log.rows import Rows
from posbias.io.stores.decay import Decay

SCHEMA = "posbias.statistics"
VERSION = 5
DAYS_ONLY = 4
"""The version before, in which `period` says whether there are days; it is read as well."""


@dataclass(frozen=True)
class StatisticsMetadata:
    """What statistics hold.

    Attributes:
        plan: what was counted.
        sources: path by digest of every log file that was counted.
        rows: rows read, rejected and used.
        decay: how much less the counts of older days weigh; None for counts as they were.
    """

    plan: StatisticsPlan
    sources: dict[str, str]
    rows: Rows
    decay: Decay | None = None

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
    return None if decay is None else decay.describe()
