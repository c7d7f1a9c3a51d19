"""Metadata of statistics: the plan, the sources and the decay.

It is in the manifest of a directory of statistics and in the key-value metadata of every Parquet part.

Decay: counts of older days weigh less, so that past rankers, page designs and users fade out of the propensities.

    weight of day d = factor ** max(newest day - d, 0)
"""

import json
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import reduce
from itertools import pairwise
from math import isclose
from operator import add
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import msgspec
import numpy as np
import polars as pl
from msgspec import UNSET, Meta, UnsetType, structs

from posbias.core.choices import RandomizedRows
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.order import N_GROUPS, OrderSums, RowOrder
from posbias.core.errors import UsageError
from posbias.core.log.impressions import SMALLEST_WEIGHT
from posbias.core.models import get_model, model_names
from posbias.core.schema import CLICKS, IMPRESSIONS, PERIOD, RESERVED, Resolution
from posbias.io.log.clicks import Count, Rows


class Decay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Exponential decay of counts by day."""

    factor: Annotated[float, Meta(gt=0, le=1)]  # weight of a day relative to the next one
    newest: date  # has weight 1, as have later, implausible days

    def weigh(self, statistics: pl.LazyFrame, held: "Decay | None" = None) -> pl.LazyFrame:
        """Weigh counts by day, as Float64; drop days that weigh less than `SMALLEST_WEIGHT`.

        Args:
            statistics: counts with a `period`.
            held: earlier decay of these counts, of equal factor and no later `newest`.
        """
        age = (pl.lit(self.newest) - pl.col(PERIOD).cast(pl.Date)).dt.total_days().clip(lower_bound=0)
        weight = pl.lit(self.factor).pow(age)
        share = weight if held is None else pl.lit(self.factor ** (self.newest - held.newest).days)
        weighed = pl.col(IMPRESSIONS, CLICKS).cast(pl.Float64) * share
        return statistics.filter(weight >= SMALLEST_WEIGHT).with_columns(weighed)


SCHEMA = "posbias.statistics"
VERSION = 7
OLDEST = 4
"""The oldest readable version, whose `period` is a bool. Segments have `of` from version 6 on, `order` from 7 on."""


@dataclass(frozen=True)
class StatisticsMetadata:
    """Plan, sources and decay of statistics."""

    plan: StatisticsPlan
    sources: dict[str, str]  # path of each counted log file, by digest
    rows: Rows  # numbers of rows read and rejected
    decay: Decay | None = None  # None for undecayed counts

    def to_parquet(self) -> dict[str, str]:
        """Key-value metadata of a Parquet file."""
        described = {
            "version": VERSION,
            **describe_plan(self.plan),
            "sources": self.sources,
            "rows": msgspec.to_builtins(self.rows),
            "decay": msgspec.to_builtins(self.decay),
        }
        return {"schema": SCHEMA, "posbias": json.dumps(described, sort_keys=True)}


def describe_plan(plan: StatisticsPlan) -> dict[str, Any]:
    """Convert a plan to builtin values for metadata and manifests; inverse of `Counted.plan`."""
    values = {name: getattr(plan, name) for name in Counted.__struct_fields__}
    values |= {name: [*cast("tuple[Any, ...]", value)] for name, value in values.items() if isinstance(value, tuple)}
    values |= {"model": plan.model.name, "randomized": [str(rows) for rows in plan.randomized]}
    return msgspec.to_builtins({name: value for name, value in values.items() if value or name not in _IF_ANY})


Amount = Count | Annotated[float, Meta(ge=0)]
Position = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_IF_ANY = ("cell", "clusters", "arms")
"""Fields that `describe_plan` omits if empty."""


class Counted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A `StatisticsPlan` as `describe_plan` writes it."""

    model: str
    max_position: Position | None
    position_bins: tuple[Position, ...]
    context: tuple[str, ...]
    period: Resolution | bool | None
    strata: tuple[str, ...]
    cell: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    arms: tuple[str, ...] = ()
    randomized: tuple[str, ...]
    weighted: bool

    def __post_init__(self) -> None:
        """Raise ValueError for a plan that cannot be counted."""
        if self.model not in model_names():
            raise ValueError(f"there is no model {self.model!r}")
        if self.position_bins and (self.position_bins[0] != 1 or any(b <= a for a, b in pairwise(self.position_bins))):
            raise ValueError("position_bins do not ascend from 1")
        names = [*self.cell, *self.context, *self.strata, *self.clusters, *self.arms]
        if len(set(names)) < len(names) or not RESERVED.isdisjoint(names):
            raise ValueError(
                "cell, context, strata, clusters and arms name a column twice, or one with a meaning of its own"
            )
        self._randomized()

    def plan(self) -> StatisticsPlan:
        """Convert to a plan."""
        period = ("day" if self.period else None) if isinstance(self.period, bool) else self.period
        own: dict[str, Any] = {"model": get_model(self.model), "period": period, "randomized": self._randomized()}
        return StatisticsPlan(**(structs.asdict(self) | own))

    def _randomized(self) -> tuple[RandomizedRows, ...]:
        try:
            return tuple(RandomizedRows.parse(text) for text in self.randomized)
        except UsageError as error:
            raise ValueError(str(error)) from error


Amounts: TypeAlias = dict[str, int | float]
"""Totals of `rows`, `impressions` and `clicks`."""

_SAME = 1e-9  # relative rounding error of sums of floats in another order


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"place": "name", "checksum": "xxh3_128"}):
    """One Parquet file of statistics: whole queries of its segment."""

    # path; in a manifest, the file name in the directory of the manifest
    place: Annotated[str, Meta(pattern=r"^part-[0-9]{5,9}\.parquet\Z")]
    bytes: Count
    checksum: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]  # XXH3-128 of the file, in hex

    @property
    def path(self) -> Path:
        """The place as a `Path`."""
        return Path(self.place)

    def at(self, path: str | Path) -> "Part":
        """Replace the path."""
        return structs.replace(self, place=str(path))


class PageTotals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Moments of the clicks per page, over all pages of a log or, if it is large, a sample."""

    pages: Annotated[int, Meta(ge=1)]
    clicks: Count
    squared_clicks: Count  # sum over pages of squared clicks
    clicked: Count  # pages with a click

    def __post_init__(self) -> None:
        """Raise ValueError for impossible totals."""
        if not self.clicked <= self.clicks <= self.squared_clicks or self.clicked > self.pages:
            raise ValueError("pages have other clicks than their squares")

    def __add__(self, other: "PageTotals") -> "PageTotals":
        return PageTotals(*map(add, structs.astuple(self), structs.astuple(other)))

    @property
    def variance(self) -> float:
        """Variance of the number of clicks per page."""
        return self.squared_clicks / self.pages - (self.clicks / self.pages) ** 2


class OrderTotals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `RowOrder` in a manifest; `area` and `variance` hold N_GROUPS float32 values in base64."""

    area: str
    variance: str
    weight: float
    clicks: float
    information: float
    rises: Count
    falls: Count
    clicked: Count
    unclicked: Count
    pages: Count
    pieces: Count

    def __post_init__(self) -> None:
        """Raise ValueError if `area` or `variance` does not hold N_GROUPS finite numbers."""
        for name, text in (("area", self.area), ("variance", self.variance)):
            values = np.frombuffer(b64decode(text, validate=True), _NUMBERS)
            if len(values) != N_GROUPS or not np.isfinite(values).all():
                raise ValueError(f"{name} does not hold {N_GROUPS} numbers")

    @classmethod
    def of(cls, order: RowOrder) -> "OrderTotals":
        """Encode row-order sums."""
        sums = order.sums
        area, variance = (b64encode(sum_.astype(_NUMBERS).tobytes()).decode() for sum_ in (sums.area, sums.variance))
        turns = order.rises, order.falls, order.clicked, order.unclicked
        return cls(area, variance, sums.weight, sums.clicks, sums.information, *turns, order.pages, order.pieces)

    def order(self) -> RowOrder:
        """Decode the row-order sums."""
        area, variance = (np.frombuffer(b64decode(text), _NUMBERS) for text in (self.area, self.variance))
        totals = self.weight, self.clicks, self.information
        sums = OrderSums(area.astype(np.float64), variance.astype(np.float64), *totals)
        return RowOrder(sums, self.rises, self.falls, self.clicked, self.unclicked, self.pages, self.pieces)


_NUMBERS = "<f4"  # little-endian float32


def total_order(segments: "Sequence[Segment]") -> RowOrder | None:
    """Sum the row-order statistics of segments; None if no segment has them.

    Over several logs without days, movement from log to log is unseen: `pages` is then 0, so the order is not read as
    time.
    """
    known = [segment.order.order() for segment in segments if segment.order is not UNSET]
    if not known:
        return None
    total = reduce(add, known)
    in_days = all(segment.days for segment in segments)
    return total if in_days or len(segments) == 1 else replace(total, pages=0)


def total_pages(segments: "Sequence[Segment]") -> PageTotals | None:
    """Sum the page totals of segments; None if a segment lacks them."""
    known = [segment.pages for segment in segments if segment.pages is not UNSET]
    return reduce(add, known) if len(known) == len(segments) else None


class Segment(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename={"totals": "statistics"}
):
    """Parts of one counting, or of all countings of a month."""

    days: tuple[str, ...]  # sorted; empty if statistics keep no period
    sources: dict[str, str]  # path of each counted log file, by digest
    rows: Rows  # numbers of log rows read and rejected
    totals: dict[str, Amount]  # `rows` of the statistics, and the sums of `impressions` and `clicks`
    parts: tuple[Part, ...]
    pages: PageTotals | UnsetType = UNSET  # unset if the log has no pages, or the version is old
    order: OrderTotals | UnsetType = UNSET  # unset if rows have no order, or the version is old
    of: "tuple[Segment, ...]" = ()  # countings of a month, without parts; empty for a single counting

    def __post_init__(self) -> None:
        """Raise ValueError if the countings do not add up to the month."""
        if self.of and (
            any(counting.of or counting.parts or not counting.days for counting in self.of)
            or any(counting.totals.keys() != self.totals.keys() for counting in self.of)
            or set(self.days) != {day for counting in self.of for day in counting.days}
            or self.sources != join_sources(self.of)
            or self.rows != Rows.total([counting.rows for counting in self.of])
            or not same_totals(self.totals, add_totals([counting.totals for counting in self.of]))
        ):
            raise ValueError("a month is not what its countings add up to")

    @property
    def countings(self) -> "tuple[Segment, ...]":
        """The countings of a month, or the segment itself."""
        return self.of or (self,)

    @classmethod
    def join_countings(cls, countings: "Sequence[Segment]", parts: tuple[Part, ...]) -> "Segment":
        """Join countings that share parts; countings without days are summed into one."""
        apart = tuple(structs.replace(counting, parts=()) for counting in countings)
        order = total_order(apart)
        return cls(
            days=tuple(sorted({day for counting in apart for day in counting.days})),
            sources=join_sources(apart),
            rows=Rows.total([counting.rows for counting in apart]),
            totals=add_totals([counting.totals for counting in apart]),
            parts=parts,
            pages=total_pages(apart) or UNSET,
            order=UNSET if order is None else OrderTotals.of(order),
            of=apart if len(apart) > 1 and all(counting.days for counting in apart) else (),
        )


def join_sources(segments: "Sequence[Segment]") -> dict[str, str]:
    """Merge the sources of segments: path of each log file, by digest."""
    return {digest: path for segment in segments for digest, path in segment.sources.items()}


class StatisticsManifest(msgspec.Struct, frozen=True):
    """Manifest of a directory of statistics."""

    counted: Counted
    key_types: dict[str, str]
    decay: Decay | None
    rows: Rows
    statistics: dict[str, Amount]
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        """Raise ValueError for contradictory fields."""
        names = Counter(part.place for segment in self.segments for part in segment.parts)
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
        totals = [segment.totals for segment in self.segments]
        if any(set(entry) != {"rows", IMPRESSIONS, CLICKS} or type(entry["rows"]) is not int for entry in totals):
            raise ValueError("statistics are not rows, impressions and clicks")
        if any(date.fromisoformat(day).isoformat() != day for segment in self.segments for day in segment.days):
            raise ValueError("a day is not written as 2026-01-31")
        if not same_totals(self.statistics, add_totals(totals)):
            raise ValueError("statistics are not what the segments add up to")
        if self.rows != Rows.total([segment.rows for segment in self.segments]):
            raise ValueError("rows are not what the segments add up to")


def add_totals(totals: Sequence[Amounts]) -> Amounts:
    """Sum totals by name; `totals` is not empty."""
    return {name: sum(entry[name] for entry in totals) for name in totals[0]}


def same_totals(one: Amounts, other: Amounts) -> bool:
    """Whether totals are equal: integers exactly, floats up to a relative error of 1e-9."""
    return one.keys() == other.keys() and all(
        total == other[name] or (isinstance(total + other[name], float) and isclose(total, other[name], rel_tol=_SAME))
        for name, total in one.items()
    )
