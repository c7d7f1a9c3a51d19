"""The days of a log: which were found, and which of them are hardly meant."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any

_LONG_GAP = timedelta(days=31)
_HARDLY_ANY = 0.01  # of the rows of a usual day


@dataclass(frozen=True)
class Days:
    """Days with their rows."""

    rows: Mapping[date, float]  # number of rows (impressions, of statistics) by day
    today: date  # the day on which they are read
    read_as: str | None = None  # the unit of timestamps that are numbers

    @cached_property
    def in_order(self) -> list[date]:
        """The days, the first one first."""
        return sorted(self.rows)

    @cached_property
    def after_tomorrow(self) -> list[date]:
        """Days that cannot be over: somewhere it is tomorrow already, but nowhere the day after."""
        return [day for day in self.in_order if day > self.today + timedelta(days=1)]

    @cached_property
    def far_off(self) -> list[date]:
        """Days with hardly any rows that more than a month parts from the others."""
        groups = self._groups()
        most = max(groups, key=lambda group: sum(self.rows[day] for day in group), default=list[date]())
        usual = median([self.rows[day] for day in most]) if most else 0
        few = [group for group in groups if max(self.rows[day] for day in group) < _HARDLY_ANY * usual]
        return [day for group in few for day in group if day not in self.after_tomorrow]

    @property
    def newest(self) -> date:
        """The last day that can be meant; the last one of all where none can."""
        doubtful = {*self.after_tomorrow, *self.far_off}
        return max((day for day in self.in_order if day not in doubtful), default=self.in_order[-1])

    def describe(self) -> dict[str, Any]:
        """As plain values, for the manifest."""
        first, last = self.in_order[0], self.in_order[-1]
        found: dict[str, Any] = {"first": first.isoformat(), "last": last.isoformat(), "number": len(self.rows)}
        return found if self.read_as is None else {**found, "read_as": self.read_as}

    def warnings(self) -> list[str]:
        """What is wrong with days, in words."""
        return [
            f"{_rows(sum(self.rows[day] for day in days))} dated {why}: {_listed(days)}. Look at the timestamps."
            for days, why in (
                (self.after_tomorrow, "after tomorrow"),
                (self.far_off, "more than a month away from the others"),
            )
            if days
        ]

    def _groups(self) -> list[list[date]]:
        """The days, parted where there is none for long."""
        groups = [self.in_order[:1]] if self.in_order else []
        for before, day in pairwise(self.in_order):
            if day - before > _LONG_GAP:
                groups.append([])
            groups[-1].append(day)
        return groups


def look_odd(days: Mapping[date, object], today: date) -> bool:
    """Whether it is worth counting rows to find implausible days, where only the days themselves are known."""
    in_order = sorted(days)
    gaps = [later - earlier for earlier, later in pairwise(in_order)]
    return bool(in_order) and (in_order[-1] > today + timedelta(days=1) or max(gaps, default=timedelta()) > _LONG_GAP)


def _rows(number: float) -> str:
    return "1 row is" if number == 1 else f"{number:,.0f} rows are"


def _listed(days: list[date]) -> str:
    shown = ", ".join(day.isoformat() for day in days[:3])
    return shown if len(days) <= 3 else f"{shown}, ... {days[-1]} ({len(days):,} days)"  # noqa: PLR2004 - as above
