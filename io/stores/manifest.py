"""The manifest of statistics as types: whatever differs is an error with its place."""

from collections import Counter
from collections.abc import Sequence
from datetime import date
from itertools import pairwise
from math import isclose
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.models import get_model, model_names
from posbias.core.periods import Resolution
from posbias.core.randomization import RandomizedRows
from posbias.core.schema import PERIOD, RESERVED
from posbias.io.log.rows import Count, Rows
from posbias.io.stores.metadata import Decay

Amount = Count | Annotated[float, Meta(ge=0)]
Position = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Probability = Annotated[float, Meta(gt=0, lt=1)]


class Counted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was counted, as `describe_plan` says it."""

    model: str
    max_position: Position | None
    position_bins: tuple[Position, ...]
    context: tuple[str, ...]
    period: Resolution | bool | None
    strata: tuple[str, ...]
    randomized: tuple[str, ...]
    weighted: bool
    clusters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Find what cannot have been counted."""
        if self.model not in model_names():
            raise ValueError(f"there is no model {self.model!r}")
        if self.position_bins and (self.position_bins[0] != 1 or any(b <= a for a, b in pairwise(self.position_bins))):
            raise ValueError("position_bins do not ascend from 1")
        names = [*self.context, *self.strata, *self.clusters]
        if len(set(names)) < len(names) or not RESERVED.isdisjoint(names):
            raise ValueError("context, strata and clusters name a column twice, or one with a meaning of its own")
        self._randomized()

    def plan(self) -> StatisticsPlan:
        """As a plan."""
        return StatisticsPlan(
            model=get_model(self.model),
            max_position=self.max_position,
            position_bins=self.position_bins,
            context=self.context,
            period=("day" if self.period else None) if isinstance(self.period, bool) else self.period,
            strata=self.strata,
            clusters=self.clusters,
            randomized=self._randomized(),
            weighted=self.weighted,
        )

    def _randomized(self) -> tuple[RandomizedRows, ...]:
        try:
            return tuple(RandomizedRows.parse(text) for text in self.randomized)
        except UsageError as error:
            raise ValueError(str(error)) from error


Amounts: TypeAlias = dict[str, int | float]
"""`rows`, `impressions` and `clicks`."""

_SAME = 1e-9  # sums of floats, added up in another order


class DescribedPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part: a plain name as posbias gives it, in the directory of the manifest; its size; its checksum."""

    name: Annotated[str, Meta(pattern=r"^part-[0-9]{5,9}\.parquet\Z")]
    bytes: Count
    xxh3_128: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]


class Totals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of statistics, and what they add up to."""

    rows: Count
    impressions: Amount
    clicks: Amount

    def plain(self) -> Amounts:
        """As plain values."""
        return msgspec.to_builtins(self)


class DescribedSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A segment."""

    days: tuple[date, ...]
    sources: dict[str, str]
    rows: Rows
    statistics: Totals
    parts: tuple[DescribedPart, ...]


class StatisticsManifest(msgspec.Struct, frozen=True):
    """The manifest of a directory of statistics of this version."""

    counted: Counted
    key_types: dict[str, str]
    decay: Decay | None
    rows: Rows
    statistics: Totals
    segments: tuple[DescribedSegment, ...]

    def __post_init__(self) -> None:
        """Find what contradicts itself."""
        names = Counter(part.name for segment in self.segments for part in segment.parts)
        if not names:
            raise ValueError("it names no part")
        twice = [name for name, times in names.items() if times > 1]
        if twice:
            raise ValueError(f"it names {twice[0]} twice")
        if set(self.key_types) != set(self.counted.plan().keys):
            raise ValueError("key_types are not those of what was counted")
        kept = self.counted.plan().period
        if kept is not None and (self.key_types[PERIOD] == "Date") != (kept == "day"):
            raise ValueError("period is not of the type of what was counted")
        if not same_totals(self.statistics.plain(), add_totals([part.statistics.plain() for part in self.segments])):
            raise ValueError("statistics are not what the segments add up to")
        if self.rows != Rows.total([segment.rows for segment in self.segments]):
            raise ValueError("rows are not what the segments add up to")


def add_totals(totals: Sequence[Amounts]) -> Amounts:
    """What totals add up to."""
    return {name: sum(entry[name] for entry in totals) for name in totals[0]}


def same_totals(one: Amounts, other: Amounts) -> bool:
    """Whether totals are equal: to the last one where they are counts, nearly where they are sums of weights."""
    return one.keys() == other.keys() and all(
        found == other[name] or (isinstance(found + other[name], float) and isclose(found, other[name], rel_tol=_SAME))
        for name, found in one.items()
    )
