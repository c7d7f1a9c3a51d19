"""The times of a log: the column that says when pages were shown, where no option names it; and the days."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any

import polars as pl

from posbias.core.errors import PosbiasError
from posbias.core.log.impressions import REJECTED, RowRejection
from posbias.core.roles import TIMES, plain_name
from posbias.core.schema import DOC, PERIOD, QUERY, SESSION
from posbias.io.log.click_log import Log
from posbias.io.log.lists import find_timestamp_format, holds_times
from posbias.io.log.scan import reading, scan_sources, schema_of
from posbias.io.results.conclusions import Reason, reason

_FIRST_ROWS = 10_000  # that are looked at
_MOST_PAGES = 0.95  # the least share of pages that are shown at one time
_LONGEST_PAGE = timedelta(hours=1)  # what is shown on it may be logged one by one
_ENOUGH_REPEATS = 20  # documents to expect at several times, of which there must then be some
_ENOUGH_CHANGES, _IN_ORDER = 20, 0.8  # changes from one row to the next, and the least share of them in one direction
_OF_ACCOUNTS = frozenset(("createdat",))  # names of times of pages, and as often of other times


def with_times(log: Log) -> Log:
    """The log with the column that says when pages were shown, as finely as it does; as it is where none does.

    It is the first one, by its name or its values. The values in the first rows are times, one a page; times of
    documents are none of pages. A column without a name of times may hold other dates, of users or journeys: its values
    must also follow the order of the rows.
    """
    if log.raw is not None or log.roles.timestamp is not None or log.request.rules.day is not None:
        return log
    try:
        return next(filter(_fit, _candidates(log)), log)
    except PosbiasError:  # the first rows cannot be read, as is reported once all are
        return log


def free_columns(log: Log) -> list[str]:
    """Columns of plain values that play no role."""
    schema, played = schema_of(log.sources[0]), {*log.roles.columns()}
    return [name for name in schema if name not in played and not schema[name].is_nested()]


def _candidates(log: Log) -> Iterator[Log]:
    """The log with columns with a name of times, then those with values of times that follow the order of the rows."""
    schemas, rules = [schema_of(source) for source in log.sources], log.request.rules
    of_page = log.roles.session if len(log.roles.session) > 1 else ()  # a visit and the time of its page
    free = [name for name in (*free_columns(log), *of_page) if len({schema.get(name) for schema in schemas}) == 1]
    named = [name for name in free if plain_name(name) in TIMES - _OF_ACCOUNTS]
    with reading(log.sources):
        first = scan_sources(log.sources[:1]).select(free).head(_FIRST_ROWS).collect(engine="streaming")
    named = finest_first(first.select(named))
    by_values = [] if log.nesting is not None else [name for name in free if holds_times(first[name])]
    for name in dict.fromkeys([*named, *by_values]):
        texts = first[name].unique().to_list() if first[name].dtype == pl.String else []
        form = find_timestamp_format(texts) if rules.values.timestamp_format is None else None
        if form is None or form.certain:
            values, timed = first[name], replace(rules, period="quarter")
            if form is not None:
                written = form.options[-1]
                values = values.str.strip_chars().str.to_datetime(written, strict=False)
                timed = replace(timed, values=replace(rules.values, timestamp_format=written))
            if _may_be_of_rows(values, known=name in named):
                roles = replace(log.roles, timestamp=name)
                yield replace(log, roles=roles, request=replace(log.request, rules=timed))


def finest_first(times: pl.DataFrame) -> list[str]:
    """Columns of times in their order, dates last beside times of day: with less than half the values of another."""
    different = {name: times[name].n_unique() for name in times.columns}
    return sorted(different, key=lambda name: 2 * different[name] < max(different.values()))


def _may_be_of_rows(values: pl.Series, *, known: bool) -> bool:
    """Whether rows may have been shown at these times: they are not all one moment, and follow the order of the rows.

    Args:
        values: of the first rows.
        known: whether the column has a name of times, so that rows may be in any order.
    """
    values = values.drop_nulls()
    if known and (values.n_unique() != 1 or len(values) < _ENOUGH_REPEATS):
        return True
    if known and values.dtype == pl.String:  # all are one moment, unless it is but a day
        return not values[:1].str.contains(":", literal=True).any()
    if known:
        seconds = values[:1].dt.epoch("s") if isinstance(values.dtype, pl.Datetime) else values[:1]
        return not (seconds.dtype.is_numeric() and (seconds % 86_400 != 0).any())
    changes = values.rank("dense").cast(pl.Int64).diff().drop_nulls()
    rises, falls = int((changes > 0).sum()), int((changes < 0).sum())
    enough = rises + falls >= _ENOUGH_CHANGES
    return max(rises, falls) >= _IN_ORDER * (rises + falls) if enough else min(rises, falls) == 0 < rises + falls


def _fit(log: Log) -> bool:
    """Whether the first rows can be read with the times of a log, and these are of pages."""
    keys = [SESSION] if log.has_sessions else [QUERY, DOC]
    with reading(log.sources):
        first = log.impressions.head(_FIRST_ROWS).select(REJECTED, PERIOD, *keys).collect(engine="streaming")
    if not first.height or first[PERIOD].null_count() or RowRejection.TIMESTAMP_INVALID in first[REJECTED]:
        return False
    moment = pl.col(PERIOD).cast(pl.Datetime("us"))
    spread = (moment.max() - moment.min()).alias("spread")
    if log.has_sessions:
        at_once = first.group_by(keys).agg(spread).select((pl.col("spread") <= _LONGEST_PAGE).mean()).item()
        return at_once >= _MOST_PAGES
    repeated = first.group_by(keys).agg(spread, pl.len().alias("rows")).filter(pl.col("rows") > 1)
    shares = first[PERIOD].value_counts(normalize=True)["proportion"].to_numpy()
    expected = repeated.height * (1 - float(shares @ shares))  # at several times, where times are not of documents
    return expected < _ENOUGH_REPEATS or bool((repeated["spread"] > timedelta()).any())


_LONG_GAP = timedelta(days=31)
_HARDLY_ANY = 0.01  # of the rows of a usual day
_SHOWN = 3


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
        groups = [self.in_order[:1]] if self.in_order else []
        for before, day in pairwise(self.in_order):
            if day - before > _LONG_GAP:
                groups.append([])
            groups[-1].append(day)
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
        described: dict[str, Any] = {"first": first.isoformat(), "last": last.isoformat(), "number": len(self.rows)}
        return described if self.read_as is None else {**described, "read_as": self.read_as}

    def reasons(self) -> list[Reason]:
        """What is wrong with days."""
        reasons = list[Reason]()
        away = "more than a month away from the others"
        for days, why in ((self.after_tomorrow, "after tomorrow"), (self.far_off, away)):
            if days:
                rows = sum(self.rows[day] for day in days)
                shown = ", ".join(day.isoformat() for day in days[:_SHOWN])
                shown += f", ... {days[-1]} ({len(days):,} days)" if len(days) > _SHOWN else ""
                reasons.append(reason("odd-dates", {"rows": rows}, why=why, days=shown))
        return reasons


def look_odd(days: Mapping[date, object], today: date) -> bool:
    """Whether it is worth counting rows to find implausible days, where only the days themselves are known."""
    in_order = sorted(days)
    gaps = [later - earlier for earlier, later in pairwise(in_order)]
    return bool(in_order) and (in_order[-1] > today + timedelta(days=1) or max(gaps, default=timedelta()) > _LONG_GAP)
