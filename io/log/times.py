"""Recognition of the column of times, where no option names it; and checks of the days of a log."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import Any

import polars as pl

from posbias.core.errors import PosbiasError, printable
from posbias.core.log.impressions import REJECTED, RowRejection, has_date, time_unit_of
from posbias.core.roles import TIMES, plain_name
from posbias.core.schema import DOC, PERIOD, QUERY, SESSION
from posbias.io.log.click_log import Log
from posbias.io.log.lists import find_timestamp_format, holds_times
from posbias.io.log.scan import reading, scan_sources, schema_of
from posbias.io.results.conclusions import Reason, reason

_FIRST_ROWS = 10_000  # that are examined
_MOST_PAGES = 0.95  # least share of pages whose times are close together
_LONGEST_PAGE = timedelta(hours=1)  # between the first and the last result, if these are logged one by one
_ENOUGH_REPEATS = 20  # expected number of documents with several times, above which at least one must have several
_ENOUGH_CHANGES, _IN_ORDER = 20, 0.8  # changes from one row to the next, and least share of them in one direction
_AMBIGUOUS = frozenset(("createdat",))  # names of times of pages, and as often of other times


def with_times(log: Log) -> Log:
    """Add the first column of times of pages to the roles, with quarter hours as periods; without one, return the log.

    A column is recognised by its name or its values: in the first rows it holds times, close together on a page, and
    not times of documents. Without a name of times it may hold other dates, of users or journeys: its values must also
    follow the order of the rows.
    """
    if log.raw is not None or log.roles.timestamp is not None or log.request.rules.day is not None:
        return log
    try:
        return next(filter(_is_time_of_pages, _candidates(log)), log)
    except PosbiasError:  # the first rows cannot be read, as is reported once all are
        return log


_EARLIEST, _LATEST = timedelta(hours=-14), timedelta(hours=36)  # of a day in any time zone, from its midnight in UTC


def reasons_against_day(log: Log) -> list[Reason]:
    """Return a caution where the first rows of a log with `--date` have times of another day, in every time zone."""
    day = log.request.rules.day
    if day is None:
        return []
    timed = with_times(replace(log, request=replace(log.request, rules=replace(log.request.rules, day=None))))
    if timed.roles.timestamp is None:
        return []
    median_time = pl.col(PERIOD).cast(pl.Datetime("us")).median()
    with reading(timed.sources):
        moment = timed.impressions.head(_FIRST_ROWS).select(median_time).collect(engine="streaming").item()
    if moment is None or _EARLIEST <= moment - datetime.fromisoformat(day) < _LATEST:
        return []
    figures = {"first": str(moment.date()), "day": day}
    return [reason("odd-dates.of-another-day", figures, column=repr(printable(timed.roles.timestamp)))]


def free_columns(log: Log) -> list[str]:
    """Return the columns of plain values without a role."""
    schema, used = schema_of(log.sources[0]), {*log.roles.columns()}
    return [name for name in schema if name not in used and not schema[name].is_nested()]


def _candidates(log: Log) -> Iterator[Log]:
    """Yield the log with each plausible column of times: those with a usual name first, then by their values."""
    schemas, rules = [schema_of(source) for source in log.sources], log.request.rules
    page = log.roles.session if len(log.roles.session) > 1 else ()  # may be a visit and a time
    types = {name: {schema.get(name) for schema in schemas} for name in (*free_columns(log), *page)}
    free = [name for name, of_files in types.items() if len(of_files) == 1 or all(map(has_date, of_files))]
    with reading(log.sources):
        first = scan_sources(log.sources[:1]).select(free).head(_FIRST_ROWS).collect(engine="streaming")
    by_name = finest_first(first.select(name for name in free if plain_name(name) in TIMES - _AMBIGUOUS))
    by_values = [] if log.nesting is not None else [name for name in free if holds_times(first[name])]
    for name in dict.fromkeys([*by_name, *by_values]):
        texts = first[name].unique().to_list() if first[name].dtype == pl.String else []
        found = find_timestamp_format(texts) if rules.values.timestamp_format is None else None
        if found is None or found.certain:
            values, timed = first[name], replace(rules, period="quarter")
            if found is not None:
                form = found.options[-1]
                values = values.str.strip_chars().str.to_datetime(form, strict=False)
                timed = replace(timed, values=replace(rules.values, timestamp_format=form))
            if _may_be_of_rows(values, has_usual_name=name in by_name):
                roles = replace(log.roles, timestamp=name)
                yield replace(log, roles=roles, request=replace(log.request, rules=timed))


def finest_first(times: pl.DataFrame) -> list[str]:
    """Return the columns in their order, but those with less than half the distinct values of another (days) last."""
    distinct = {name: times[name].n_unique() for name in times.columns}
    return sorted(distinct, key=lambda name: 2 * distinct[name] < max(distinct.values()))


def _may_be_of_rows(values: pl.Series, *, has_usual_name: bool) -> bool:
    """Return True if the times of the first rows may be those of their pages.

    Args:
        values: times of the first rows.
        has_usual_name: whether the column has a name of times: then many rows must not have one time of day (they may
            have one day); otherwise the times must follow the order of the rows.
    """
    values = values.drop_nulls()
    if has_usual_name:
        if values.n_unique() != 1 or len(values) < _ENOUGH_REPEATS:
            return True
        if values.dtype == pl.String:
            return not values[:1].str.contains(":", literal=True).any()
        if not values.dtype.is_numeric():
            return not isinstance(values.dtype, pl.Datetime) or values.dt.epoch("s")[0] % 86_400 == 0
        number = values[:1].cast(pl.Int64, strict=False)
        unit = time_unit_of(number)
        moment = None if unit is None else pl.select(unit.moment(pl.lit(number))).item()
        return unit is not None and (moment is None or moment.time() == time())
    changes = values.rank("dense").cast(pl.Int64).diff().drop_nulls()
    rises, falls = int((changes > 0).sum()), int((changes < 0).sum())
    enough = rises + falls >= _ENOUGH_CHANGES
    return max(rises, falls) >= _IN_ORDER * (rises + falls) if enough else min(rises, falls) == 0 < rises + falls


def _is_time_of_pages(log: Log) -> bool:
    """Return True if the times of the first rows are valid, and those of pages rather than documents."""
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
    expected = repeated.height * (1 - float(shares @ shares))  # with several times, were these independent of documents
    return expected < _ENOUGH_REPEATS or bool((repeated["spread"] > timedelta()).any())


_LONG_GAP = timedelta(days=31)
_FEW_ROWS = 0.01  # of the median day
_SHOWN = 3


@dataclass(frozen=True)
class Days:
    """The days of a log or of statistics."""

    rows: Mapping[date, float]  # number of rows (impressions, of statistics) by day
    today: date
    read_as: str | None = None  # the unit of numeric timestamps

    @cached_property
    def in_order(self) -> list[date]:
        """The days, ascending."""
        return sorted(self.rows)

    @cached_property
    def after_tomorrow(self) -> list[date]:
        """Days that have begun in no time zone."""
        return [day for day in self.in_order if day > self.today + timedelta(days=1)]

    @cached_property
    def far_off(self) -> list[date]:
        """Days of groups, more than 31 days apart, in which every day has under 1 % of the rows of a usual day."""
        groups = [self.in_order[:1]] if self.in_order else []
        for before, day in pairwise(self.in_order):
            if day - before > _LONG_GAP:
                groups.append([])
            groups[-1].append(day)
        largest = max(groups, key=lambda group: sum(self.rows[day] for day in group), default=list[date]())
        usual = median([self.rows[day] for day in largest]) if largest else 0
        small = [group for group in groups if max(self.rows[day] for day in group) < _FEW_ROWS * usual]
        return [day for group in small for day in group if day not in self.after_tomorrow]

    @property
    def newest(self) -> date:
        """The last plausible day; without plausible ones, the last day."""
        doubtful = {*self.after_tomorrow, *self.far_off}
        return max((day for day in self.in_order if day not in doubtful), default=self.in_order[-1])

    def describe(self) -> dict[str, Any]:
        """Return the entry of the manifest."""
        first, last = self.in_order[0], self.in_order[-1]
        entry: dict[str, Any] = {"first": first.isoformat(), "last": last.isoformat(), "number": len(self.rows)}
        return entry if self.read_as is None else {**entry, "read_as": self.read_as}

    def reasons(self) -> list[Reason]:
        """Return cautions about implausible days."""
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
    """Return True if days may be implausible, so that rows must be counted: one is after tomorrow, or a gap is long."""
    in_order = sorted(days)
    gaps = [later - earlier for earlier, later in pairwise(in_order)]
    return bool(in_order) and (in_order[-1] > today + timedelta(days=1) or max(gaps, default=timedelta()) > _LONG_GAP)
