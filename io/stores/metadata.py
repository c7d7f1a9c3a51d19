"""Metadata of statistics: what was counted, from which sources, and how far it has decayed.

It stands in the manifest of a directory of statistics and, for whoever meets a part alone, in the metadata of every
Parquet part.

Forgetting: the counts of a day weigh less, the older the day is.

    weight of day d = factor ** max(newest day - d, 0)

So what a ranker, a page design or the users were like long ago fades out of the propensities.
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
VERSION = 7
OLDEST = 4
"""The oldest that is read: its `period` says only whether there are days. Before 6, no segment has `of`, before 7
`order`."""


@dataclass(frozen=True)
class StatisticsMetadata:
    """Content of statistics."""

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
            "decay": msgspec.to_builtins(self.decay),
        }
        return {"schema": SCHEMA, "posbias": json.dumps(described, sort_keys=True)}


def describe_plan(plan: StatisticsPlan) -> dict[str, Any]:
    """A plan as plain values, for metadata and manifests."""
    values = {name: getattr(plan, name) for name in Counted.__struct_fields__}
    values |= {name: [*cast("tuple[Any, ...]", of)] for name, of in values.items() if isinstance(of, tuple)}
    values |= {"model": plan.model.name, "randomized": [str(rows) for rows in plan.randomized]}
    return msgspec.to_builtins({name: value for name, value in values.items() if value or name not in _IF_ANY})


Amount = Count | Annotated[float, Meta(ge=0)]
Position = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Probability = Annotated[float, Meta(gt=0, lt=1)]


_IF_ANY = ("cell", "clusters", "arms")
"""Columns that a plan is described without where it has none."""


class Counted(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The plan of the counts, as `describe_plan` writes it."""

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
        """Find what cannot have been counted."""
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
        """The counts as a plan."""
        period = ("day" if self.period else None) if isinstance(self.period, bool) else self.period
        own: dict[str, Any] = {"model": get_model(self.model), "period": period, "randomized": self._randomized()}
        return StatisticsPlan(**(structs.asdict(self) | own))

    def _randomized(self) -> tuple[RandomizedRows, ...]:
        try:
            return tuple(RandomizedRows.parse(text) for text in self.randomized)
        except UsageError as error:
            raise ValueError(str(error)) from error


Amounts: TypeAlias = dict[str, int | float]
"""`rows`, `impressions` and `clicks`."""

_SAME = 1e-9  # sums of floats, added up in another order


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"place": "name", "checksum": "xxh3_128"}):
    """One Parquet file of statistics, which holds whole queries of its segment."""

    # where it is; in a manifest a plain name as posbias gives it, in the directory of the manifest
    place: Annotated[str, Meta(pattern=r"^part-[0-9]{5,9}\.parquet\Z")]
    bytes: Count  # its size
    checksum: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]  # of its bytes

    @property
    def path(self) -> Path:
        """Path of the file."""
        return Path(self.place)

    def at(self, path: str | Path) -> "Part":
        """The same part under another name."""
        return structs.replace(self, place=str(path))


class PageTotals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clicks by page, of all pages of a log or, where it is large, of a sample: how far the clicks of a page vary."""

    pages: Annotated[int, Meta(ge=1)]
    clicks: Count
    squared_clicks: Count  # the sum over pages of the square of their clicks
    clicked: Count  # pages with a click

    def __post_init__(self) -> None:
        """Find what no pages have."""
        if not self.clicked <= self.clicks <= self.squared_clicks or self.clicked > self.pages:
            raise ValueError("pages have other clicks than their squares")

    def __add__(self, other: "PageTotals") -> "PageTotals":
        return PageTotals(*(one + two for one, two in zip(structs.astuple(self), structs.astuple(other), strict=True)))

    @property
    def variance(self) -> float:
        """Variance of the clicks of a page."""
        return self.squared_clicks / self.pages - (self.clicks / self.pages) ** 2


class OrderTotals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sums over the rows of a log in their order, as `RowOrder` has them; those of groups as float32 in base64."""

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
        """Refuse text that is no sums of groups.

        Raises:
            ValueError: it is not.
        """
        for name, text in (("area", self.area), ("variance", self.variance)):
            values = np.frombuffer(b64decode(text, validate=True), _NUMBERS)
            if len(values) != N_GROUPS or not np.isfinite(values).all():
                raise ValueError(f"{name} does not hold {N_GROUPS} numbers")

    @classmethod
    def of(cls, order: RowOrder) -> "OrderTotals":
        """The sums as they are written."""
        sums = order.sums
        area, variance = (b64encode(of.astype(_NUMBERS).tobytes()).decode() for of in (sums.area, sums.variance))
        turns = order.rises, order.falls, order.clicked, order.unclicked
        return cls(area, variance, sums.weight, sums.clicks, sums.information, *turns, order.pages, order.pieces)

    def order(self) -> RowOrder:
        """The sums as they are added up."""
        area, variance = (np.frombuffer(b64decode(text), _NUMBERS) for text in (self.area, self.variance))
        totals = self.weight, self.clicks, self.information
        sums = OrderSums(area.astype(np.float64), variance.astype(np.float64), *totals)
        return RowOrder(sums, self.rises, self.falls, self.clicked, self.unclicked, self.pages, self.pieces)


_NUMBERS = "<f4"  # the type of the numbers of groups


def total_order(segments: "Sequence[Segment]") -> RowOrder | None:
    """What the order of rows says within each of several segments; None where none knows it.

    Of several logs without days, movement from one to the next is not seen: then no order counts as that of time.
    """
    known = [segment.order.order() for segment in segments if segment.order is not UNSET]
    if not known:
        return None
    total = reduce(add, known)
    in_days = all(segment.days for segment in segments)
    return total if in_days or len(segments) == 1 else replace(total, pages=0)


def total_pages(segments: "Sequence[Segment]") -> PageTotals | None:
    """The clicks by page of several segments; None where one does not know them."""
    known = [segment.pages for segment in segments if segment.pages is not UNSET]
    return reduce(add, known) if len(known) == len(segments) else None


class Segment(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename={"totals": "statistics"}
):
    """The parts that one counting wrote, or the countings of a month together."""

    days: tuple[str, ...]  # the days that it holds, sorted; none where the statistics keep no period
    sources: dict[str, str]  # path by digest of every log file that was counted
    rows: Rows  # rows read, rejected and used
    totals: dict[str, Amount]  # `rows` of the statistics, and the `impressions` and `clicks` that they add up to
    parts: tuple[Part, ...]  # its files
    pages: PageTotals | UnsetType = UNSET  # unset where the log has no pages, and in statistics of an older posbias
    order: OrderTotals | UnsetType = UNSET  # unset where rows have no order, and in statistics of an older posbias
    of: "tuple[Segment, ...]" = ()  # the countings of a month, without parts, as they were by themselves

    def __post_init__(self) -> None:
        """Find countings that do not make up the month."""
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
        """The countings that it holds, each with days, sources and totals of its own."""
        return self.of or (self,)

    @classmethod
    def of_countings(cls, countings: "Sequence[Segment]", parts: tuple[Part, ...]) -> "Segment":
        """Countings that lie in the same parts, each by itself if they have days; one alone is itself."""
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
    """Path by digest of every log file of segments."""
    return {digest: path for segment in segments for digest, path in segment.sources.items()}


class StatisticsManifest(msgspec.Struct, frozen=True):
    """The manifest of a directory of statistics of this version."""

    counted: Counted
    key_types: dict[str, str]
    decay: Decay | None
    rows: Rows
    statistics: dict[str, Amount]
    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        """Find what contradicts itself."""
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
        if any(set(of) != {"rows", IMPRESSIONS, CLICKS} or type(of["rows"]) is not int for of in totals):
            raise ValueError("statistics are not rows, impressions and clicks")
        if any(date.fromisoformat(day).isoformat() != day for segment in self.segments for day in segment.days):
            raise ValueError("a day is not written as 2026-01-31")
        if not same_totals(self.statistics, add_totals(totals)):
            raise ValueError("statistics are not what the segments add up to")
        if self.rows != Rows.total([segment.rows for segment in self.segments]):
            raise ValueError("rows are not what the segments add up to")


def add_totals(totals: Sequence[Amounts]) -> Amounts:
    """The sum of totals."""
    return {name: sum(entry[name] for entry in totals) for name in totals[0]}


def same_totals(one: Amounts, other: Amounts) -> bool:
    """Whether totals are equal: to the last one where they are counts, nearly where they are sums of weights."""
    return one.keys() == other.keys() and all(
        total == other[name] or (isinstance(total + other[name], float) and isclose(total, other[name], rel_tol=_SAME))
        for name, total in one.items()
    )
