"""The manifest of statistics, as types: what was counted, from which logs, and which parts hold the counts."""

from collections import Counter
from collections.abc import Sequence
from datetime import date
from math import isclose
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from posbias.core.schema import PERIOD
from posbias.io.log.rows import Count, Rows
from posbias.io.stores.manifest_types import Amount, Counted, Decayed

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
    decay: Decayed | None
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
