"""The column that says when pages were shown, where no option names one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import polars as pl

from posbias.core.errors import PosbiasError
from posbias.core.log.impressions import REJECTED, RowFault
from posbias.core.roles import TIMES, plain
from posbias.core.schema import DOC, PERIOD, QUERY, SESSION
from posbias.io.log.click_log import Log
from posbias.io.log.lists import find_timestamp_format, holds_times
from posbias.io.log.scan import reading, scan_sources, schema_of

_FIRST_ROWS = 10_000  # that are looked at
_MOST_PAGES = 0.95  # the least share of pages that are shown at one time
_LONGEST_PAGE = timedelta(hours=1)  # what is shown on it may be logged one by one
_ENOUGH_REPEATS = 20  # documents shown several times, of which some must have been shown at several times
_ENOUGH_CHANGES, _IN_ORDER = 20, 0.8  # changes from one row to the next, and the least share of them in one direction
_OF_ACCOUNTS = frozenset(("createdat",))  # names of times of pages, and as often of other times


@dataclass(frozen=True)
class Times:
    """A column of times."""

    column: str
    form: str | None = None  # how they are written, as strftime has it; None for ISO dates and for numbers

    def values(self, column: pl.Series) -> pl.Series:
        """The values of the column, as something that is in order where the times are."""
        is_text = column.dtype == pl.String and self.form is not None
        return column.str.strip_chars().str.to_datetime(self.form, strict=False) if is_text else column

    def of(self, log: Log) -> Log:
        """The log with these times, as finely as they are known."""
        values = replace(log.request.rules.values, timestamp_format=self.form)
        rules = replace(log.request.rules, period="quarter", values=values if self.form else log.request.rules.values)
        return replace(log, roles=replace(log.roles, timestamp=self.column), request=replace(log.request, rules=rules))


def with_times(log: Log) -> Log:
    """The log with the column of times that is recognised; as it is where none is."""
    times = find_times(log)
    return log if times is None else times.of(log)


def find_times(log: Log) -> Times | None:
    """The first column, by its name or its values, that says when pages were shown; None where none does.

    Its values in the first rows are times, one a page; times of documents are none of pages. A column without a name of
    times may hold other dates, of users or journeys: its values must also follow the order of the rows.
    """
    if log.raw is not None or log.roles.timestamp is not None or log.request.rules.day is not None:
        return None
    try:
        return next((times for times in _candidates(log) if _fit(times.of(log))), None)
    except PosbiasError:  # the first rows cannot be read, as is reported once all are
        return None


def free_columns(log: Log) -> list[str]:
    """Columns of plain values that play no role."""
    schema, played = schema_of(log.sources[0]), {*log.roles.columns()}
    return [name for name in schema if name not in played and not schema[name].is_nested()]


def _candidates(log: Log) -> Iterator[Times]:
    """Columns with a name of times, then those with values of times that follow the order of the rows."""
    schemas = [schema_of(source) for source in log.sources]
    free = [name for name in free_columns(log) if len({schema.get(name) for schema in schemas}) == 1]
    named = [name for name in free if plain(name) in TIMES - _OF_ACCOUNTS]
    with reading(log.sources):
        first = scan_sources(log.sources[:1]).select(free).head(_FIRST_ROWS).collect(engine="streaming")
    by_values = [] if log.nesting is not None else [name for name in free if holds_times(first[name])]
    for name in dict.fromkeys([*named, *by_values]):
        texts = first[name].unique().to_list() if first[name].dtype == pl.String else []
        form = find_timestamp_format(texts) if log.request.rules.values.timestamp_format is None else None
        if form is None or form.certain:
            times = Times(name, None if form is None else form.options[-1])
            if _may_be_of_rows(times.values(first[name]), known=name in named):
                yield times


def _may_be_of_rows(values: pl.Series, *, known: bool) -> bool:
    """Whether rows may have been shown at these times: they are not all one moment, and follow the order of the rows.

    Args:
        values: of the first rows.
        known: whether the column has a name of times, so that rows may be in any order.
    """
    values = values.drop_nulls()
    if known:
        return values.n_unique() != 1 or len(values) < _ENOUGH_REPEATS or not _has_time_of_day(values[:1])
    changes = values.rank("dense").cast(pl.Int64).diff().drop_nulls()
    rises, falls = int((changes > 0).sum()), int((changes < 0).sum())
    enough = rises + falls >= _ENOUGH_CHANGES
    return max(rises, falls) >= _IN_ORDER * (rises + falls) if enough else min(rises, falls) == 0 < rises + falls


def _has_time_of_day(values: pl.Series) -> bool:
    """Whether times are more than days."""
    if values.dtype == pl.String:
        return bool(values.str.contains(":", literal=True).any())
    seconds = values.dt.epoch("s") if isinstance(values.dtype, pl.Datetime) else values
    return seconds.dtype.is_numeric() and bool((seconds % 86_400 != 0).any())


def _fit(log: Log) -> bool:
    """Whether the first rows can be read with the times of a log, and these are of pages."""
    keys = [SESSION] if log.has_sessions else [QUERY, DOC]
    with reading(log.sources):
        first = log.impressions.head(_FIRST_ROWS).select(REJECTED, PERIOD, *keys).collect(engine="streaming")
    if not first.height or first[PERIOD].null_count() or RowFault.TIMESTAMP_INVALID in first[REJECTED]:
        return False
    moment = pl.col(PERIOD).cast(pl.Datetime("us"))
    spread = (moment.max() - moment.min()).alias("spread")
    if log.has_sessions:
        at_once = first.group_by(keys).agg(spread).select((pl.col("spread") <= _LONGEST_PAGE).mean()).item()
        return at_once >= _MOST_PAGES
    repeated = first.group_by(keys).agg(spread, pl.len().alias("rows")).filter(pl.col("rows") > 1)
    return repeated.height < _ENOUGH_REPEATS or bool((repeated["spread"] > timedelta()).any())
