"""Read the raw columns of a log as canonical impressions, and mark rows that break the row contract with the reason.

Canonical impressions: `session`, `query`, `doc` (of the log's own types), `position` (Int32 >= 1), `click` (Int8, 0 or
1), and, if the log has them, `weight` (> 0), `period` (Date or Datetime), contexts, strata, features and `randomized`
(the number, from 1, of the first description of randomised rows that fits, else 0). If each row of the log is a sum of
impressions, `impressions` (Int64 > 0) is their number and `click` (Int64) the number of clicks on them.

`TextValues` parses numbers, clicks and times from text. Times may be integers: 20260105, 2026010512, or days, seconds,
milli-, micro- or nanoseconds since 1970. As the same integer is a different day in each unit, all integers of a column
are read in one `TimeUnit`: the one in which most of a sample are plausible days. An integer that is no plausible day in
that unit is null.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import polars as pl

from posbias.core.choices import RandomizedRows
from posbias.core.errors import Coded, SchemaError, UsageError
from posbias.core.schema import (
    CLICK,
    DOC,
    EVERY,
    FLAGS,
    IMPRESSIONS,
    PERIOD,
    POSITION,
    QUERY,
    RANDOMIZED,
    SESSION,
    WEIGHT,
    Resolution,
    Roles,
)

_WITH_COMMA = r"^(\s*[+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?\s*)$"
_A_DAY = "2026-01-31"


def thousands_pattern(marks: str) -> str:
    """Return a regular expression for integers with thousands separators out of `marks`, e.g. `12,345`."""
    return rf"^\s*[1-9][0-9]{{0,2}}(?:[{marks}][0-9]{{3}})+\s*$"


@dataclass(frozen=True)
class TextValues:
    """Formats of numbers, clicks and times in columns of text."""

    decimal_comma: bool = False  # whether the decimal separator is a comma; text with a point is then no number
    true: tuple[str, ...] = ()  # words for a click, in lower case, in addition to 1, true and t
    false: tuple[str, ...] = ()  # words for no click, in lower case, in addition to 0, false and f
    timestamp_format: str | None = None  # strftime format of times; None for ISO dates and integers

    @property
    def without_click_words(self) -> "TextValues":
        """The formats without words for clicks, for a click column that the log itself does not have."""
        return replace(self, true=(), false=())

    def number(self, text: pl.Expr) -> pl.Expr:
        """Parse text as Float64; null where it is no number."""
        if not self.decimal_comma:
            return text.cast(pl.Float64, strict=False)
        return pl.when(~text.str.contains(".", literal=True)).then(self.with_point(text)).cast(pl.Float64, strict=False)

    def count(self, text: pl.Expr) -> pl.Expr:
        """Parse the text of a count as Float64, e.g. 2000 for `2,000`; null where it is no number.

        A comma before three digits is a thousands separator. With a decimal comma, the point is the thousands
        separator, and a comma before three digits is ambiguous: null.
        """
        marks = rf"{'.' if self.decimal_comma else ','}'\u2019\s"
        ungrouped = text.str.replace_all(f"[{marks}]", "").cast(pl.Float64, strict=False)
        number = pl.when(text.str.contains(thousands_pattern(marks))).then(ungrouped).otherwise(self.number(text))
        return pl.when(~text.str.contains(thousands_pattern(","))).then(number) if self.decimal_comma else number

    def with_point(self, text: pl.Expr) -> pl.Expr:
        """Replace the decimal comma of text that is a number by a point; other text does not change."""
        return text.str.replace(_WITH_COMMA, "${1}.${2}") if self.decimal_comma else text

    def time(self, text: pl.Expr) -> pl.Expr:
        """Parse text by `timestamp_format` as Datetime without a zone (in UTC if the text has an offset), or null."""
        time = text.str.strip_chars().str.to_datetime(str(self.timestamp_format), time_unit="us", strict=False)
        return time.dt.replace_time_zone(None)


PLAIN_TEXT = TextValues()


def check_timestamp_format(form: str) -> None:
    """Check that a strftime format has year, month and day: a formatted date must be parsed as the same date.

    Raises:
        UsageError: the date is not parsed, or is another one.
    """
    values = TextValues(timestamp_format=form)
    try:
        written = pl.select(pl.datetime(2026, 1, 31, 13, 5, time_zone="UTC").dt.strftime(form)).to_series()
        read = pl.select(values.time(pl.lit(written)).dt.strftime("%Y-%m-%d")).item()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        read = None
    if read != _A_DAY:
        raise UsageError(
            f"--timestamp-format {form}: is no day in strftime's notation. 31.01.2026 13:05 is '%d.%m.%Y %H:%M', "
            "01/31/2026 is %m/%d/%Y, 31/01/2026 is %d/%m/%Y."
        )


_SECONDS_OF_A_DAY = 86_400
_YEARS = (1980, 2099)
_YEARS_OF_COUNTED_DAYS = (1990, 2069)  # later dates are spreadsheet days (since 1900) from the year 2000 on
_DATE_DIGITS = 8
_FIRST_AND_LAST = (-62_135_596_800, 253_402_300_799)  # seconds since 1970: the years 1 to 9999


@dataclass(frozen=True)
class TimeUnit:
    """The meaning of an integer as a time: the digits of a date and time, or a count since 1970-01-01 00:00 UTC."""

    words: str  # the digits, e.g. `yyyymmddhh` (hours, minutes, seconds, milliseconds); or the name of the count
    per_day: int | None = None  # units per day of a count; None for digits
    years: tuple[int, int] = _YEARS  # first and last plausible year

    def day(self, number: pl.Expr) -> pl.Expr:
        """Convert integers to Date; null for invalid dates and implausible years."""
        if self.per_day is None:
            text = number.cast(pl.String)
            clock = [
                text.str.slice(at, 2).cast(pl.Int32, strict=False) < limit
                for at, limit in ((8, 24), (10, 60), (12, 60))
                if at < len(self.words)
            ]
            valid = pl.all_horizontal(text.str.len_bytes() == len(self.words), *clock)
            day = text.str.slice(0, _DATE_DIGITS).str.to_date("%Y%m%d", strict=False)
            return pl.when(valid & day.dt.year().is_between(*self.years)).then(day)
        day = (number // self.per_day).cast(pl.Int32, strict=False).cast(pl.Date)
        return pl.when(day.dt.year().is_between(*self.years)).then(day)

    def moment(self, number: pl.Expr) -> pl.Expr:
        """Convert integers to Datetime, digits with minutes as resolution; null if the unit has no time of day."""
        if self.per_day == 1 or self.words == "yyyymmdd":
            return pl.lit(None, pl.Datetime("us"))
        if self.per_day is None:
            minutes = number.cast(pl.String).str.slice(0, 12).str.pad_end(12, "0")
            return minutes.str.to_datetime("%Y%m%d%H%M", time_unit="us", strict=False)
        seconds = number // (self.per_day // _SECONDS_OF_A_DAY)
        within = seconds.is_between(0, _FIRST_AND_LAST[1])
        return (pl.when(within).then(seconds) * 10**6).cast(pl.Datetime("us"))


TIME_UNITS: tuple[TimeUnit, ...] = (
    *map(TimeUnit, ("yyyymmdd", "yyyymmddhh", "yyyymmddhhmm", "yyyymmddhhmmss", "yyyymmddhhmmssfff")),
    TimeUnit("days since 1970", 1, _YEARS_OF_COUNTED_DAYS),
    TimeUnit("seconds since 1970", _SECONDS_OF_A_DAY),
    TimeUnit("milliseconds since 1970", _SECONDS_OF_A_DAY * 10**3),
    TimeUnit("microseconds since 1970", _SECONDS_OF_A_DAY * 10**6),
    TimeUnit("nanoseconds since 1970", _SECONDS_OF_A_DAY * 10**9),
)
"""All units. The first of two equally plausible ones is used: integers that may be digits with an hour, or seconds in
2030, are digits."""


def time_unit_of(numbers: pl.Series) -> TimeUnit | None:
    """Return the (first) unit in which most of these integers are plausible days; None if none is in any unit."""
    days = pl.select(unit.day(pl.lit(numbers)).count().alias(unit.words) for unit in TIME_UNITS).row(0, named=True)
    best = max(TIME_UNITS, key=lambda unit: days[unit.words])
    return best if days[best.words] else None


def has_date(dtype: pl.DataType | None) -> bool:
    """Return whether a type is Date or Datetime."""
    return dtype == pl.Date or isinstance(dtype, pl.Datetime)


def clip_to_calendar(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Clip Date or Datetime to the years 1 to 9999: values beyond, such as infinity, become the nearest value.

    Python has no other years, and Polars cannot format all others as text. Nanoseconds end in 2262 anyway.
    """
    first, last = _FIRST_AND_LAST
    if not isinstance(dtype, pl.Datetime):
        return column.to_physical().clip(first // _SECONDS_OF_A_DAY, last // _SECONDS_OF_A_DAY).cast(dtype)
    if dtype.time_unit == "ns":
        return column
    per_second = 10**3 if dtype.time_unit == "ms" else 10**6
    margin = _SECONDS_OF_A_DAY if dtype.time_zone else 0  # above every offset of a zone
    return column.to_physical().clip((first + margin) * per_second, (last - margin) * per_second).cast(dtype)


def whole_numbers(name: str, dtype: pl.DataType) -> pl.Expr:
    """Convert a column of numbers or text to Int64, without fractions; null for text that is no number."""
    if not isinstance(dtype, pl.String):
        return pl.col(name).cast(pl.Int64, strict=False)
    text = pl.col(name).str.strip_chars()
    fractions = text.cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)  # seconds with a fraction
    return pl.coalesce(text.cast(pl.Int64, strict=False), fractions)


REJECTED = "rejected"
"""The column of `RowRejection` codes; 0 for a row that keeps the contract."""

EARLIER_REJECTION = "posbias_fault"
"""A column of raw rows with a `RowRejection` code (or 0) that an earlier step found, e.g. when unnesting lists."""

SMALLEST_WEIGHT = 1e-12
"""Weights lie between this and its inverse: beside a larger weight, a smaller one would vanish in a float sum."""

LARGEST_COUNT = 10**12
"""Most impressions of one row: sums of millions of such rows are still exact."""

LARGEST_POSITION = 2**31 - 1
"""Positions are stored as Int32."""

_BEYOND_64_BITS = (pl.UInt64, pl.Int128, pl.UInt128)
_NO_TIME = (
    r"^.{10}[T ](?:2[5-9]|24:(?:0[1-9]|[1-5])|[3-9]\d|\d\d:[6-9]|\d\d:\d\d:(?:6[1-9]|[7-9])|.*[+-](?:1[5-9]|[2-9]\d))"
)
"""ISO date followed by an impossible hour, minute, second or offset."""
_TRUE, _FALSE = ("true", "t"), ("false", "f")


class Rejection(Coded):
    """Reason to reject a row or a page: its words, the role of the column concerned, and advice."""

    role: str
    advice: str

    def __new__(cls, number: int, words: str, role: str, advice: str = "") -> Self:
        """Create a member."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.words, member.role, member.advice = words, role, advice
        return member


_NO_RESULTS = (
    "If rows without one are no results, but recommendations, leave them out: "
    '--sql "SELECT * FROM log WHERE COLUMN IS NOT NULL", with the name of the column.'
)


class RowRejection(Rejection):
    """Reason why a single row breaks the contract. If several apply, the first that is checked is counted."""

    NULL_SESSION = (1, "the session is missing", SESSION, _NO_RESULTS)
    NULL_QUERY = (2, "the query is missing", QUERY, f"If no row has one, use --no-query. {_NO_RESULTS}")
    NULL_DOC = (3, "the document is missing", DOC)
    POSITION_MISSING = (4, "the position is missing", POSITION)
    POSITION_NOT_WHOLE = (5, "the position is not a whole number", POSITION)
    POSITION_BELOW_BASE = (6, "the position is below the base", POSITION)
    CLICK_MISSING = (7, "the click is missing", CLICK)
    CLICK_INVALID = (8, "the click is neither 0 nor 1", CLICK, "If the column counts clicks, use --click-counts.")
    WEIGHT_INVALID = (9, "the weight is not a number above 0", WEIGHT, "Weights go from 1e-12 to 1e12.")
    TIMESTAMP_INVALID = (10, "the timestamp is not a date or time", "timestamp")
    LIST_MISSING = (
        11,
        "the page lacks a list",
        SESSION,
        "A page without results has empty lists, [], which are counted and left out.",
    )
    LISTS_UNEQUAL = (
        12,
        "the lists of the page differ in length",
        SESSION,
        "Each list of a row has one entry per document.",
    )
    EMPTY_PAGE = (13, "the page shows no document", SESSION)
    IMPRESSIONS_MISSING = (14, "the number of impressions is missing", IMPRESSIONS)
    IMPRESSIONS_INVALID = (15, "the number of impressions is not a whole number from 0", IMPRESSIONS)
    CLICKS_INVALID = (16, "the number of clicks is not a whole number from 0", CLICK)
    CLICKS_ABOVE_IMPRESSIONS = (
        17,
        "there are more clicks than impressions",
        CLICK,
        "An impression is clicked once or not at all: add up the impressions that were clicked.",
    )
    NO_IMPRESSIONS = (18, "the row adds up no impression", IMPRESSIONS)
    POSITION_TOO_LARGE = (
        19,
        "the position is too large",
        POSITION,
        f"Positions go up to {LARGEST_POSITION:,}. Is the column an id, or a time?",
    )
    PAGE_INVALID = (30, "the page is no whole number from that of the first page", "page")
    SLOT_BELOW_PAGE = (
        31,
        "the position on the page is beyond --page-size",
        POSITION,
        "If positions go on from page to page, use --page none; else how many results a page holds.",
    )
    RARE_QUERY = (33, "the query has fewer impressions than --min-impressions", QUERY)
    COUNT_INVALID = (34, "the last click above, or the number of the experiment, is no number", "counted")
    OTHER_VALUE = (35, "the row is of another value than the fit is of (--for-each)", QUERY)
    RANK_INVALID = (32, "the rank of the clicked result is no whole number from --click-ranks on", CLICK)


@dataclass(frozen=True)
class Paging:
    """Positions across results pages: position = (page - base) * size + slot."""

    size: int  # results per page; 1 if the page column is an offset, which counts results
    base: int = 1  # number of the first page

    def positions(
        self, slot: pl.Expr, name: str, schema: pl.Schema, values: TextValues
    ) -> tuple[pl.Expr, list[tuple[pl.Expr, RowRejection]]]:
        """Compute positions (from 1) from slots (from 1) and the page column `name`.

        Returns:
            The positions, and the conditions for the rejection of a row.
        """
        page, is_count = _read_count(name, schema, "--page", values)
        position = (page - self.base) * self.size + slot
        faults = [
            (~is_count | (page < self.base), RowRejection.PAGE_INVALID),
            (position > LARGEST_POSITION, RowRejection.POSITION_TOO_LARGE),
        ]
        return position, [*faults, (slot > self.size, RowRejection.SLOT_BELOW_PAGE)] if self.size > 1 else faults


@dataclass(frozen=True)
class ReadingRules:
    """Rules by which raw values are converted."""

    position_base: int = 1  # number of the topmost position in the log
    click_counts: bool = False  # whether the click column counts clicks: any n > 0 is then a click
    # Number of the topmost rank if the click column holds the rank of the clicked result (or a list); else None
    click_ranks: int | None = None
    paging: Paging | None = None  # None if positions continue across pages
    null_click: bool = False  # whether an empty cell of the click column means no click
    period: Resolution | None = None  # resolution of `period`, from the timestamp; None for no `period`
    day: str | None = None  # `period` of all rows, e.g. 2026-01-31, if there is no timestamp
    time_unit: TimeUnit | None = None  # unit of integer timestamps; None if integers are no timestamps
    values: TextValues = PLAIN_TEXT


def canonical_impressions(raw: pl.LazyFrame, roles: Roles, schema: pl.Schema, rules: ReadingRules) -> pl.LazyFrame:
    """Convert raw columns to canonical impressions, with a `RowRejection` code or 0 in `rejected`.

    A code in column `EARLIER_REJECTION`, if it exists, takes precedence.

    Raises:
        SchemaError: the type of a column is invalid for its role.
    """
    keys = (
        (SESSION, roles.session, RowRejection.NULL_SESSION),
        (QUERY, roles.query, RowRejection.NULL_QUERY),
        (DOC, roles.doc, RowRejection.NULL_DOC),
    )
    columns = [_key(names).alias(role) for role, names, _ in keys if names]
    null = [(pl.any_horizontal(pl.col(name).is_null() for name in names), fault) for _, names, fault in keys if names]
    slot, position_faults = _read_position(_require(roles.position), schema, rules)
    position = slot
    if roles.page is not None and rules.paging is not None:
        position, page_faults = rules.paging.positions(slot, roles.page, schema, rules.values)
        position_faults += page_faults
    if roles.impressions is None and rules.click_ranks is not None:
        click, click_faults = _read_clicked_rank(_require(roles.click), schema, slot + (rules.click_ranks - 1), rules)
    elif roles.impressions is None:
        click, click_faults = read_click(_require(roles.click), schema, rules)
    else:
        shown, click, click_faults = _read_sums(roles.impressions, _require(roles.click), schema, rules)
        columns.append(shown.alias(IMPRESSIONS))
    faults = [*_other_value_faults(roles.only, schema), *null, *position_faults, *click_faults]
    columns += [position.cast(pl.Int32, strict=False).alias(POSITION), click.alias(CLICK)]
    if roles.weight is not None:
        weight = _read_number(roles.weight, schema, "--weight-column", rules.values.number)
        columns.append(weight.alias(WEIGHT))
        valid = weight.is_between(SMALLEST_WEIGHT, 1 / SMALLEST_WEIGHT) & weight.is_not_nan()
        faults.append((~valid.fill_null(value=False), RowRejection.WEIGHT_INVALID))
    if rules.day is not None:
        columns.append(pl.lit(rules.day).str.to_date("%Y-%m-%d").alias(PERIOD))
    elif rules.period is not None and roles.timestamp is not None:
        day, time = _read_times(roles.timestamp, schema, rules)
        # The beginning of the hour, or of a finer period; midnight without a time.
        start = pl.coalesce(time, day.cast(pl.Datetime("us"))).dt.truncate(EVERY[rules.period])
        period = pl.when(day.is_not_null()).then(start)
        columns.append((day if rules.period == "day" else period).alias(PERIOD))
        faults.append((day.is_null(), RowRejection.TIMESTAMP_INVALID))
    unchanged = {
        "--cell": roles.cell,
        "--context": roles.context,
        "--stratify": roles.stratify,
        "--for-each or --by": roles.each,
        "--period-column": roles.version,
        "--cluster-column": roles.cluster,
        "--arm": roles.arm,
    }
    for flag, names in unchanged.items():
        _check_key_types(flag, names, schema)
    key_columns = [name for names in unchanged.values() for name in names]
    columns += [pl.col(name) for name in dict.fromkeys(key_columns)]
    columns += [
        rules.values.with_point(pl.col(name)) if schema[name] == pl.String else pl.col(name)
        for name in dict.fromkeys(roles.features)
        if name not in key_columns
    ]
    numbers = {name: pl.col(name).cast(pl.Int64, strict=False) for name in roles.counted}
    types = {name: pl.UInt8 if name == RANDOMIZED else pl.Int32 for name in numbers}  # as in statistics
    columns += [number.cast(types[name], strict=False).alias(name) for name, number in numbers.items()]
    faults += [(~(number >= 0).fill_null(value=False), RowRejection.COUNT_INVALID) for number in numbers.values()]
    ids = {name: schema[name] for name in (*roles.session, *roles.ids()) if has_date(schema[name])}
    beyond = [pl.col(name).is_not_null() & _read_day(pl.col(name), dtype).is_null() for name, dtype in ids.items()]
    faults += [(is_beyond, RowRejection.TIMESTAMP_INVALID) for is_beyond in beyond]
    if roles.randomized:
        _check_key_types("--randomized-where", [rows.column for rows in roles.randomized], schema)
        columns.append(_experiment_number(roles.randomized, position).alias(RANDOMIZED))
    rejected = pl.lit(0, pl.UInt8)
    for is_broken, fault in reversed(faults):  # the first fault in the list wins
        rejected = pl.when(is_broken).then(pl.lit(int(fault), pl.UInt8)).otherwise(rejected)
    if EARLIER_REJECTION in schema:
        rejected = pl.when(pl.col(EARLIER_REJECTION) > 0).then(pl.col(EARLIER_REJECTION)).otherwise(rejected)
    return raw.select(*columns, rejected.alias(REJECTED))


def _other_value_faults(
    only: Sequence[tuple[str, object]], schema: pl.Schema
) -> Iterator[tuple[pl.Expr, RowRejection]]:
    """Yield the condition that a row has another value for each (column, value) of `--for-each`."""
    for name, value in only:
        literal = pl.lit(value).str.to_datetime(strict=False) if has_date(schema[name]) else pl.lit(value)
        equal = pl.col(name).is_null() if value is None else pl.col(name) == literal.cast(schema[name], strict=False)
        yield ~equal.fill_null(value=False), RowRejection.OTHER_VALUE


def _experiment_number(randomized: Sequence[RandomizedRows], position: pl.Expr) -> pl.Expr:
    """Return the number, from 1, of the first description of randomised rows that fits a row, else 0."""
    number = pl.lit(0)
    for index, rows in reversed(list(enumerate(randomized, start=1))):
        fits = pl.col(rows.column).cast(pl.String) == rows.value
        fits = fits & position.is_in(rows.positions) if rows.positions else fits
        number = pl.when(fits).then(index).otherwise(number)
    return number.cast(pl.UInt8)


def may_be_key(dtype: pl.DataType) -> bool:
    """Whether other tools can read a key column of that type: no nested types, no integers of 128 bits."""
    return not (dtype.is_nested() or isinstance(dtype, pl.Int128 | pl.UInt128))


def _check_key_types(flag: str, names: Sequence[str], schema: pl.Schema) -> None:
    """Check the types of key columns by `may_be_key`.

    Raises:
        SchemaError: a column has another type.
    """
    for name in names:
        if not may_be_key(schema[name]):
            raise SchemaError(
                f"column {name!r} ({flag}) holds {schema[name]}, which few tools read. Write it as text or as numbers "
                "of 64 bits at most."
            )


def _require(column: str | None) -> str:
    if column is None:
        raise SchemaError("the log has no click column, and no separate table of clicks was given (--clicks FILE).")
    return column


def _key(names: Sequence[str]) -> pl.Expr:
    return pl.col(names[0]) if len(names) == 1 else pl.struct(*names)


def page_keys(roles: Roles) -> list[pl.Expr]:
    """Return the expressions of `session` and `doc` from raw columns; several columns of a role become a struct."""
    return [_key(roles.session).alias(SESSION), _key(roles.doc).alias(DOC)]


def _read_number(name: str, schema: pl.Schema, role: str, read: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    """Convert a column to Float64, text by `read`, a method of `TextValues`; null where a value is no number.

    Raises:
        SchemaError: the column holds neither numbers, booleans nor text.
    """
    dtype = schema[name]
    if not (dtype.is_numeric() or isinstance(dtype, pl.String | pl.Boolean)):
        raise SchemaError(f"column {name!r} ({role}) holds {dtype}; it must hold numbers.")
    return read(pl.col(name)) if dtype == pl.String else pl.col(name).cast(pl.Float64, strict=False)


def _read_position(
    name: str, schema: pl.Schema, rules: ReadingRules
) -> tuple[pl.Expr, list[tuple[pl.Expr, RowRejection]]]:
    dtype, base = schema[name], rules.position_base
    if dtype == pl.Boolean:
        raise SchemaError(f"column {name!r} (--position) holds Boolean; it must hold whole numbers.")
    missing = pl.col(name).is_null()
    largest = LARGEST_POSITION + base - 1
    if dtype.is_integer():
        whole = pl.col(name).cast(pl.Int64, strict=False)
        broken = whole.is_null() if isinstance(dtype, _BEYOND_64_BITS) else None  # other types fit into Int64
        too_large = pl.col(name) > largest
    else:
        number = _read_number(name, schema, "--position", rules.values.count)
        whole = number.cast(pl.Int64, strict=False)
        broken = whole.is_null() | (number != number.floor())
        too_large = number.is_finite() & (number > largest)
    one_based = whole - (base - 1) if base != 1 else whole
    faults = [
        (missing, RowRejection.POSITION_MISSING),
        (too_large, RowRejection.POSITION_TOO_LARGE),
        *([] if broken is None else [(broken, RowRejection.POSITION_NOT_WHOLE)]),
        (one_based < 1, RowRejection.POSITION_BELOW_BASE),
    ]
    return one_based, faults


def read_click(name: str, schema: pl.Schema, rules: ReadingRules) -> tuple[pl.Expr, list[tuple[pl.Expr, RowRejection]]]:
    """Convert a click column to Int8, 0 or 1.

    Args:
        name: the column.
        schema: types of the log's columns.
        rules: words for clicks, whether the column counts clicks, and whether an empty cell means no click.

    Returns:
        The click, and the conditions for the rejection of a row.

    Raises:
        SchemaError: the type of the column cannot hold clicks.
    """
    dtype, values = schema[name], rules.values
    words = (*values.true, *values.false)
    if words and not (dtype == pl.String or dtype.is_integer()):
        raise SchemaError(
            f"column {name!r} (--click) holds {dtype}, and --true and --false are words of a column of text. Leave "
            "them out."
        )
    if has_date(dtype):
        how = f"--sql 'SELECT * EXCLUDE ({name}), {name} IS NOT NULL AS click FROM log', not --click"  # noqa: S608
        raise SchemaError(f"column {name!r} (--click) holds {dtype}. If an empty cell is no click, use {how}.")
    number, word = pl.col(name), pl.col(name).cast(pl.String).str.to_lowercase()
    if not (dtype.is_integer() or dtype == pl.Boolean):
        number = _read_number(name, schema, "--click", values.number)
    if dtype == pl.String:
        number = pl.when(word.is_in(_TRUE)).then(1.0).when(word.is_in(_FALSE)).then(0.0).otherwise(number)
    if words:
        impossible = next((text for text in words if not text.removeprefix("-").isdecimal()), None)
        if dtype.is_integer() and impossible is not None:
            raise SchemaError(
                f"column {name!r} (--click) holds {dtype}, and {impossible!r} (--true, --false) is no such number. "
                "Leave it out."
            )
        word = word.str.strip_chars()
        number = pl.when(word.is_in(values.true)).then(1).when(word.is_in(values.false)).then(0).otherwise(number)
    faults = [(pl.col(name).is_null(), RowRejection.CLICK_MISSING)]
    if dtype == pl.Boolean:
        click = number.cast(pl.Int8)
    elif rules.click_counts:
        whole = pl.lit(True) if dtype.is_integer() else (number == number.floor()) & number.is_finite()
        click = (number > 0).cast(pl.Int8)
        faults.append((~((number >= 0) & whole).fill_null(value=False), RowRejection.CLICK_INVALID))
    else:
        click = number.cast(pl.Int8, strict=False)
        faults.append((~((number == 0) | (number == 1)).fill_null(value=False), RowRejection.CLICK_INVALID))
    if not rules.null_click:
        return click, faults
    empty = _is_empty(name, schema)
    no_click = pl.when(empty).then(pl.lit(0, pl.Int8)).otherwise(click)
    return no_click, [(broken & ~empty, fault) for broken, fault in faults]


def _read_clicked_rank(
    name: str, schema: pl.Schema, rank: pl.Expr, rules: ReadingRules
) -> tuple[pl.Expr, list[tuple[pl.Expr, RowRejection]]]:
    """Compare the rank of each row with the clicked rank (or list of ranks) in the click column; empty for no click.

    Returns:
        The click, Int8, and the condition for the rejection of a row.
    """
    top = rules.click_ranks or 0
    if isinstance(schema[name], pl.List | pl.Array):
        ranks = pl.col(name).cast(pl.List(pl.String)).list.drop_nulls().cast(pl.List(pl.Float64), strict=False)
        whole = ranks.cast(pl.List(pl.Int64), strict=False).cast(pl.List(pl.Float64))
        no_number = ranks.list.drop_nulls().list.len() < ranks.list.len()
        was_clicked = rank.cast(pl.Float64).is_in(ranks)
        invalid = (ranks.list.min() < top) | (ranks != whole) | no_number
    else:
        clicked, is_count = _read_count(name, schema, "--click", rules.values)
        was_clicked, invalid = rank == clicked, ~_is_empty(name, schema) & ~(is_count & (clicked >= top))
    click = was_clicked.fill_null(value=False).cast(pl.Int8)
    return click, [(invalid.fill_null(value=False), RowRejection.RANK_INVALID)]


def _is_empty(name: str, schema: pl.Schema) -> pl.Expr:
    """Return the condition that a value is null or blank text."""
    empty = pl.col(name).is_null()
    return empty | (pl.col(name).str.strip_chars() == "") if schema[name] == pl.String else empty


def _read_sums(
    impressions: str, clicks: str, schema: pl.Schema, rules: ReadingRules
) -> tuple[pl.Expr, pl.Expr, list[tuple[pl.Expr, RowRejection]]]:
    """Read the number of impressions of a row and the number of clicks on them, impressions >= clicks >= 0.

    Returns:
        Impressions and clicks, both Int64 (an empty click cell is 0 with `null_click`), and the conditions for the
        rejection of a row.
    """
    shown, shown_is_count = _read_count(impressions, schema, FLAGS[IMPRESSIONS], rules.values)
    clicked, clicked_is_count = _read_count(clicks, schema, FLAGS[CLICK], rules.values)
    missing = pl.col(clicks).is_null()
    if rules.null_click:
        empty = _is_empty(clicks, schema)
        clicked, clicked_is_count = pl.when(empty).then(0).otherwise(clicked), clicked_is_count | empty
        missing &= ~empty
    faults = [
        (pl.col(impressions).is_null(), RowRejection.IMPRESSIONS_MISSING),
        (~shown_is_count, RowRejection.IMPRESSIONS_INVALID),
        (missing, RowRejection.CLICK_MISSING),
        (~clicked_is_count, RowRejection.CLICKS_INVALID),
        (clicked > shown, RowRejection.CLICKS_ABOVE_IMPRESSIONS),
        (shown == 0, RowRejection.NO_IMPRESSIONS),
    ]
    return shown, clicked, faults


def _read_count(name: str, schema: pl.Schema, role: str, values: TextValues) -> tuple[pl.Expr, pl.Expr]:
    """Convert a column to Int64; return it and the condition that the value is an integer in 0 .. LARGEST_COUNT."""
    number = pl.col(name) if schema[name].is_integer() else _read_number(name, schema, role, values.count)
    whole = pl.lit(value=True) if schema[name].is_integer() else number == number.floor()
    is_count = (number.is_between(0, LARGEST_COUNT) & whole).fill_null(value=False)
    return number.cast(pl.Int64, strict=False), is_count


def _read_times(name: str, schema: pl.Schema, rules: ReadingRules) -> tuple[pl.Expr, pl.Expr]:
    """Convert a timestamp column to Date and Datetime, null if unknown.

    Both are in UTC if the column's type has a time zone; the offset of text in ISO format is ignored.

    Raises:
        SchemaError: the type of the column cannot hold times.
    """
    dtype, column, unit = schema[name], pl.col(name), rules.time_unit
    unknown = pl.lit(None, pl.Datetime("us"))
    if rules.values.timestamp_format is not None:
        if not (dtype == pl.String or dtype.is_integer()):
            raise SchemaError(
                f"column {name!r} (--timestamp) holds {dtype}, and --timestamp-format says how text is read. Leave it "
                "out."
            )
        time = rules.values.time(column.cast(pl.String))
        return _null_outside_years(time.dt.date()), time
    if has_date(dtype):
        time = _to_utc(column, dtype).dt.replace_time_zone(None).cast(pl.Datetime("us"))
        return _read_day(column, dtype), unknown if dtype == pl.Date else time
    if not (dtype.is_numeric() or isinstance(dtype, pl.String)):
        raise SchemaError(f"column {name!r} (--timestamp) holds {dtype}; it must hold dates or times.")
    number = whole_numbers(name, dtype)
    day, time = (pl.lit(None, pl.Date), unknown) if unit is None else (unit.day(number), unit.moment(number))
    if dtype != pl.String:
        return day, time
    day_of_text = column.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    iso_day = pl.when(~column.str.contains(_NO_TIME)).then(day_of_text)
    clock = column.str.slice(11, 5).str.to_time("%H:%M", strict=False)
    return pl.coalesce(_null_outside_years(iso_day), day), pl.coalesce(iso_day.dt.combine(clock), time)


def _read_day(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Convert Date or Datetime to Date, as `_read_times` does."""
    return _null_outside_years(column if dtype == pl.Date else _to_utc(column, dtype).dt.date())


def _to_utc(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    return column.dt.convert_time_zone("UTC") if isinstance(dtype, pl.Datetime) and dtype.time_zone else column


def _null_outside_years(day: pl.Expr) -> pl.Expr:
    """Return null for days at the ends of the years 1 to 9999, to which `clip_to_calendar` clips values beyond."""
    return pl.when(day.is_between(pl.date(1, 1, 3), pl.date(9999, 12, 29))).then(day)
