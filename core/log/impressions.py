"""The row contract of a log: raw columns in, canonical impressions out, each row with its reason to be rejected.

Canonical impressions: `session`, `query`, `doc` (any type, kept as they came), `position` (Int32 >= 1),
`click` (Int8, 0/1), `weight` (> 0) and `period` (a date) where known, contexts, strata, features, and `randomized`
where requested: the number, from 1, of the first description of randomised rows that fits, 0 where none does.
Where rows add up impressions, `impressions` (Int64 > 0) is their number, and `click` (Int64) that of clicks on them.

`TextValues` is how text says numbers, clicks and times where a log writes them in a way of its own. Numbers may be
days: 20260105, 2026010512, or counts since 1970 of days, seconds, milli-, micro- or nanoseconds. The same number means
different days in different units, so that all numbers of a column are read in one `TimeUnit`: the one in which most of
a sample are days that a log can have. A number that is no such day in that unit is none at all.
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
    """The pattern of a whole number with one of some marks between thousands, e.g. `12,345`."""
    return rf"^\s*[1-9][0-9]{{0,2}}(?:[{marks}][0-9]{{3}})+\s*$"


@dataclass(frozen=True)
class TextValues:
    """How text is read."""

    # whether numbers have a comma before their fraction; then a point is no part of a number
    decimal_comma: bool = False
    true: tuple[str, ...] = ()  # words of the click column that mean a click, in lower case, beside 1 and true
    false: tuple[str, ...] = ()  # words that mean none, beside 0 and false
    timestamp_format: str | None = None  # how times are written, as strftime has it; None for ISO dates and for numbers

    @property
    def without_click_words(self) -> "TextValues":
        """The same, for a click column that is not of the log."""
        return replace(self, true=(), false=())

    def number(self, text: pl.Expr) -> pl.Expr:
        """Text as Float64; null where it is no number."""
        if not self.decimal_comma:
            return text.cast(pl.Float64, strict=False)
        return pl.when(~text.str.contains(".", literal=True)).then(self.with_point(text)).cast(pl.Float64, strict=False)

    def count(self, text: pl.Expr) -> pl.Expr:
        """Text of a count as Float64, e.g. 2000 for `2,000`; null where it is no number.

        A comma before three digits is a mark between thousands. Where a comma is to stand before a fraction, a point is
        such a mark, and a comma before three digits could be either: that is no number.
        """
        marks = rf"{'.' if self.decimal_comma else ','}'\u2019\s"
        without = text.str.replace_all(f"[{marks}]", "").cast(pl.Float64, strict=False)
        number = pl.when(text.str.contains(thousands_pattern(marks))).then(without).otherwise(self.number(text))
        return pl.when(~text.str.contains(thousands_pattern(","))).then(number) if self.decimal_comma else number

    def with_point(self, text: pl.Expr) -> pl.Expr:
        """Text whose numbers have a point; other text as it is."""
        return text.str.replace(_WITH_COMMA, "${1}.${2}") if self.decimal_comma else text

    def time(self, text: pl.Expr) -> pl.Expr:
        """Text as a time without a zone, that of UTC if a zone is written; null where it has another form."""
        read = text.str.strip_chars().str.to_datetime(str(self.timestamp_format), time_unit="us", strict=False)
        return read.dt.replace_time_zone(None)


PLAIN_TEXT = TextValues()


def check_timestamp_format(form: str) -> None:
    """Check that a format says a whole day: what it writes of one is read as that day again.

    Raises:
        UsageError: it does not.
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
_YEARS_OF_COUNTED_DAYS = (1990, 2069)  # later ones are days of 2000 and after as spreadsheets count them, from 1900
_DATE_DIGITS = 8
_FIRST_AND_LAST = (-62_135_596_800, 253_402_300_799)  # seconds since 1970: the years 1 to 9999


@dataclass(frozen=True)
class TimeUnit:
    """How a whole number says a day: its digits as a date is written, or a count since the beginning of 1970, UTC."""

    # the digits by what they say: yyyymmdd, then hours, minutes, seconds and their fractions; or what is counted
    words: str
    per_day: int | None = None  # of a count: so many a day
    years: tuple[int, int] = _YEARS  # the first and the last year in which a number is a day

    def day(self, number: pl.Expr) -> pl.Expr:
        """The day that a number says, or that its first digits say where the others are a time; null where none."""
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
        """The time that a number says, of digits to the minute; null where it says only a day."""
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
"""The units that are distinguished. What could be hours as they are written, or seconds of 2030, is hours."""


def time_unit_of(numbers: pl.Series) -> TimeUnit | None:
    """The unit in which most of some whole numbers are days, the first such one; None where none of them is a day."""
    days = pl.select(unit.day(pl.lit(numbers)).count().alias(unit.words) for unit in TIME_UNITS).row(0, named=True)
    best = max(TIME_UNITS, key=lambda unit: days[unit.words])
    return best if days[best.words] else None


def has_date(dtype: pl.DataType | None) -> bool:
    """Whether values are dates, or dates with a time."""
    return dtype == pl.Date or isinstance(dtype, pl.Datetime)


def clip_to_calendar(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Dates or times in the years 1 to 9999; of what lies beyond, e.g. infinity, the nearest one.

    Python holds no others, and Polars does not write all others as text. Nanoseconds end in 2262.
    """
    first, last = _FIRST_AND_LAST
    if not isinstance(dtype, pl.Datetime):
        return column.to_physical().clip(first // _SECONDS_OF_A_DAY, last // _SECONDS_OF_A_DAY).cast(dtype)
    if dtype.time_unit == "ns":
        return column
    per_second = 10**3 if dtype.time_unit == "ms" else 10**6
    margin = _SECONDS_OF_A_DAY if dtype.time_zone else 0  # by which zones differ at most
    return column.to_physical().clip((first + margin) * per_second, (last - margin) * per_second).cast(dtype)


def whole_numbers(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column of numbers, or of text that may hold some, as Int64; null where a value is none."""
    if not isinstance(dtype, pl.String):
        return pl.col(name).cast(pl.Int64, strict=False)
    text = pl.col(name).str.strip_chars()
    fractions = text.cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)  # seconds as Python writes them
    return pl.coalesce(text.cast(pl.Int64, strict=False), fractions)


REJECTED = "rejected"
"""The column that holds a row's `RowRejection` code, 0 for a good row."""

EARLIER_REJECTION = "posbias_fault"
"""A column of raw rows that says what was wrong with them before they were rows: a `RowRejection`, or 0."""

SMALLEST_WEIGHT = 1e-12
"""Weights lie between this and its inverse: beyond, a sum in floating point forgets the others."""

LARGEST_COUNT = 10**12
"""The most impressions that a row stands for: sums of millions of them are exact."""

LARGEST_POSITION = 2**31 - 1
"""Positions are stored as whole numbers of 32 bits; no page is that long."""

_BEYOND_64_BITS = (pl.UInt64, pl.Int128, pl.UInt128)
_NO_TIME = (
    r"^.{10}[T ](?:2[5-9]|24:(?:0[1-9]|[1-5])|[3-9]\d|\d\d:[6-9]|\d\d:\d\d:(?:6[1-9]|[7-9])|.*[+-](?:1[5-9]|[2-9]\d))"
)
"""Text with a day and, behind it, an hour, a minute, a second or an offset that no clock or zone has."""
_TRUE, _FALSE = ("true", "t"), ("false", "f")


class Rejection(Coded):
    """Why a row or a page is rejected, the role whose column it is about, and what to do."""

    role: str
    advice: str

    def __new__(cls, number: int, words: str, role: str, advice: str = "") -> Self:
        """A number with its words."""
        member = int.__new__(cls, number)
        member._value_ = number
        member.words, member.role, member.advice = words, role, advice
        return member


_NO_RESULTS = (
    "If rows without one are no results, but recommendations, leave them out: "
    '--sql "SELECT * FROM log WHERE COLUMN IS NOT NULL", with the name of the column.'
)


class RowRejection(Rejection):
    """Why one row, by itself, breaks the contract. Where several hold, the first is counted."""

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
    """How positions go on from one results page to the next: position = (page - base) * size + slot."""

    size: int  # results that a page holds; 1 where the column is an offset, which counts results
    base: int = 1  # the number of the first page

    def positions(
        self, slot: pl.Expr, name: str, schema: pl.Schema, values: TextValues
    ) -> tuple[pl.Expr, list[tuple[pl.Expr, RowRejection]]]:
        """Positions, from 1, of slots, from 1, on the pages that a column numbers, and where that is no number."""
        page, is_count = _count(name, schema, "--page", values)
        position = (page - self.base) * self.size + slot
        faults = [
            (~is_count | (page < self.base), RowRejection.PAGE_INVALID),
            (position > LARGEST_POSITION, RowRejection.POSITION_TOO_LARGE),
        ]
        return position, [*faults, (slot > self.size, RowRejection.SLOT_BELOW_PAGE)] if self.size > 1 else faults


@dataclass(frozen=True)
class ReadingRules:
    """How raw values are read."""

    position_base: int = 1  # the number of the topmost position in the log
    click_counts: bool = False  # whether the click column counts clicks, so that any n > 0 is a click
    # the number of the topmost rank, where the click column holds the ranks of clicked results
    click_ranks: int | None = None
    paging: Paging | None = None  # how positions go on from page to page, where they begin anew on each
    null_click: bool = False  # whether an empty cell of the click column means no click
    period: Resolution | None = None  # resolution of the timestamp as the `period`; None without one
    day: str | None = None  # the `period` of all rows, as 2026-01-31, where no timestamp says it
    time_unit: TimeUnit | None = None  # in which numbers are read as times; None where no number is one
    values: TextValues = PLAIN_TEXT  # how text says numbers, clicks and times


def canonical_impressions(raw: pl.LazyFrame, roles: Roles, schema: pl.Schema, rules: ReadingRules) -> pl.LazyFrame:
    """Read raw columns as impressions and mark the rows that break the row contract in `rejected`.

    A fault in column `EARLIER_REJECTION`, where there is one, takes precedence.

    Raises:
        SchemaError: a column's type cannot play its role.
    """
    keys = (
        (SESSION, roles.session, RowRejection.NULL_SESSION),
        (QUERY, roles.query, RowRejection.NULL_QUERY),
        (DOC, roles.doc, RowRejection.NULL_DOC),
    )
    columns = [_key(names).alias(role) for role, names, _ in keys if names]
    null = [(pl.any_horizontal(pl.col(name).is_null() for name in names), fault) for _, names, fault in keys if names]
    slot, position_faults = _position(_required(roles.position), schema, rules)
    position = slot
    if roles.page is not None and rules.paging is not None:
        position, page_faults = rules.paging.positions(slot, roles.page, schema, rules.values)
        position_faults += page_faults
    if roles.impressions is None and rules.click_ranks is not None:
        click, click_faults = _clicked_rank(_required(roles.click), schema, slot + (rules.click_ranks - 1), rules)
    elif roles.impressions is None:
        click, click_faults = read_click(_required(roles.click), schema, rules)
    else:
        shown, click, click_faults = _read_sums(roles.impressions, _required(roles.click), schema, rules)
        columns.append(shown.alias(IMPRESSIONS))
    faults = [*_of_other_values(roles.only, schema), *null, *position_faults, *click_faults]
    columns += [position.cast(pl.Int32, strict=False).alias(POSITION), click.alias(CLICK)]
    if roles.weight is not None:
        weight = _number(roles.weight, schema, "--weight-column", rules.values.number)
        columns.append(weight.alias(WEIGHT))
        valid = weight.is_between(SMALLEST_WEIGHT, 1 / SMALLEST_WEIGHT) & weight.is_not_nan()
        faults.append((~valid.fill_null(value=False), RowRejection.WEIGHT_INVALID))
    if rules.day is not None:
        columns.append(pl.lit(rules.day).str.to_date("%Y-%m-%d").alias(PERIOD))
    elif rules.period is not None and roles.timestamp is not None:
        day, time = _times(roles.timestamp, schema, rules)
        # The beginning of the hour, or of a finer period; midnight without a time.
        begun = pl.coalesce(time, day.cast(pl.Datetime("us"))).dt.truncate(EVERY[rules.period])
        period = pl.when(day.is_not_null()).then(begun)
        columns.append((day if rules.period == "day" else period).alias(PERIOD))
        faults.append((day.is_null(), RowRejection.TIMESTAMP_INVALID))
    plain = {
        "--cell": roles.cell,
        "--context": roles.context,
        "--stratify": roles.stratify,
        "--for-each or --by": roles.each,
        "--period-column": roles.version,
        "--cluster-column": roles.cluster,
        "--arm": roles.arm,
    }
    for flag, names in plain.items():
        _check_keys(flag, names, schema)
    kept = [name for names in plain.values() for name in names]
    columns += [pl.col(name) for name in dict.fromkeys(kept)]
    columns += [
        rules.values.with_point(pl.col(name)) if schema[name] == pl.String else pl.col(name)  # else as it is
        for name in dict.fromkeys(roles.features)
        if name not in kept
    ]
    numbers = {name: pl.col(name).cast(pl.Int64, strict=False) for name in roles.counted}
    kept_as = {name: pl.UInt8 if name == RANDOMIZED else pl.Int32 for name in numbers}  # as posbias counts them
    columns += [number.cast(kept_as[name], strict=False).alias(name) for name, number in numbers.items()]
    faults += [(~(number >= 0).fill_null(value=False), RowRejection.COUNT_INVALID) for number in numbers.values()]
    ids = {name: schema[name] for name in (*roles.session, *roles.ids()) if has_date(schema[name])}
    beyond = [pl.col(name).is_not_null() & _day(pl.col(name), dtype).is_null() for name, dtype in ids.items()]
    faults += [(is_beyond, RowRejection.TIMESTAMP_INVALID) for is_beyond in beyond]
    if roles.randomized:
        _check_keys("--randomized-where", [rows.column for rows in roles.randomized], schema)
        columns.append(_randomized(roles.randomized, position).alias(RANDOMIZED))
    rejected = pl.lit(0, pl.UInt8)
    for broken, fault in reversed(faults):  # the first one counts
        rejected = pl.when(broken).then(pl.lit(int(fault), pl.UInt8)).otherwise(rejected)
    if EARLIER_REJECTION in schema:
        rejected = pl.when(pl.col(EARLIER_REJECTION) > 0).then(pl.col(EARLIER_REJECTION)).otherwise(rejected)
    return raw.select(*columns, rejected.alias(REJECTED))


def _of_other_values(only: Sequence[tuple[str, object]], schema: pl.Schema) -> Iterator[tuple[pl.Expr, RowRejection]]:
    """Where a column does not hold the one value of the rows that are read."""
    for name, value in only:
        literal = pl.lit(value).str.to_datetime(strict=False) if has_date(schema[name]) else pl.lit(value)
        own = pl.col(name).is_null() if value is None else pl.col(name) == literal.cast(schema[name], strict=False)
        yield ~own.fill_null(value=False), RowRejection.OTHER_VALUE


def _randomized(randomized: Sequence[RandomizedRows], position: pl.Expr) -> pl.Expr:
    number = pl.lit(0)
    for index, rows in reversed(list(enumerate(randomized, start=1))):
        fits = pl.col(rows.column).cast(pl.String) == rows.value
        fits = fits & position.is_in(rows.positions) if rows.positions else fits
        number = pl.when(fits).then(index).otherwise(number)
    return number.cast(pl.UInt8)


def _check_keys(flag: str, names: Sequence[str], schema: pl.Schema) -> None:
    """Raise SchemaError unless a key is a plain value, which every tool can read.

    Raises:
        SchemaError: it is not.
    """
    for name in names:
        dtype = schema[name]
        if dtype.is_nested() or isinstance(dtype, pl.Int128 | pl.UInt128):
            raise SchemaError(
                f"column {name!r} ({flag}) holds {dtype}, which few tools read. Write it as text or as numbers of 64 "
                "bits at most."
            )


def _required(column: str | None) -> str:
    if column is None:
        raise SchemaError("the log has no click column, and no separate table of clicks was given (--clicks FILE).")
    return column


def _key(names: Sequence[str]) -> pl.Expr:
    return pl.col(names[0]) if len(names) == 1 else pl.struct(*names)


def page_keys(roles: Roles) -> list[pl.Expr]:
    """`session` and `doc` of raw columns."""
    return [_key(roles.session).alias(SESSION), _key(roles.doc).alias(DOC)]


def _number(name: str, schema: pl.Schema, role: str, read: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    """A column as Float64, its text as `TextValues` has it; what is no number becomes null."""
    dtype = schema[name]
    if not (dtype.is_numeric() or isinstance(dtype, pl.String | pl.Boolean)):
        raise SchemaError(f"column {name!r} ({role}) holds {dtype}; it must hold numbers.")
    return read(pl.col(name)) if dtype == pl.String else pl.col(name).cast(pl.Float64, strict=False)


def _position(name: str, schema: pl.Schema, rules: ReadingRules) -> tuple[pl.Expr, list[tuple[pl.Expr, RowRejection]]]:
    dtype, base = schema[name], rules.position_base
    if dtype == pl.Boolean:
        raise SchemaError(f"column {name!r} (--position) holds Boolean; it must hold whole numbers.")
    missing = pl.col(name).is_null()
    largest = LARGEST_POSITION + base - 1
    if dtype.is_integer():
        whole = pl.col(name).cast(pl.Int64, strict=False)
        broken = whole.is_null() if isinstance(dtype, _BEYOND_64_BITS) else None  # nothing else can be lost
        too_large = pl.col(name) > largest
    else:
        number = _number(name, schema, "--position", rules.values.count)
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
    """A click column as Int8, 0 or 1, and where it breaks the contract.

    Args:
        name: the column.
        schema: the types of the log's columns.
        rules: whether it counts clicks, and whether an empty cell is one without a click.
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
        number = _number(name, schema, "--click", values.number)
    if dtype == pl.String:
        number = pl.when(word.is_in(_TRUE)).then(1.0).when(word.is_in(_FALSE)).then(0.0).otherwise(number)
    if words:
        impossible = next((one for one in words if not one.removeprefix("-").isdecimal()), None)
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


def _clicked_rank(
    name: str, schema: pl.Schema, rank: pl.Expr, rules: ReadingRules
) -> tuple[pl.Expr, list[tuple[pl.Expr, RowRejection]]]:
    """Whether a row's rank is that of the clicked result, or of one of several, as Int8; an empty cell is none."""
    top = rules.click_ranks or 0
    if isinstance(schema[name], pl.List | pl.Array):
        ranks = pl.col(name).cast(pl.List(pl.Int64), strict=False)
        was_clicked, invalid = rank.is_in(ranks), ranks.list.min() < top
    else:
        clicked, is_count = _count(name, schema, "--click", rules.values)
        was_clicked, invalid = rank == clicked, ~_is_empty(name, schema) & ~(is_count & (clicked >= top))
    click = was_clicked.fill_null(value=False).cast(pl.Int8)
    return click, [(invalid.fill_null(value=False), RowRejection.RANK_INVALID)]


def _is_empty(name: str, schema: pl.Schema) -> pl.Expr:
    """Whether a cell holds nothing, or blanks alone."""
    empty = pl.col(name).is_null()
    return empty | (pl.col(name).str.strip_chars() == "") if schema[name] == pl.String else empty


def _read_sums(
    impressions: str, clicks: str, schema: pl.Schema, rules: ReadingRules
) -> tuple[pl.Expr, pl.Expr, list[tuple[pl.Expr, RowRejection]]]:
    """The impressions that a row adds up, the clicks on them, both Int64, and where they break the contract.

    They are whole numbers, impressions >= clicks >= 0; an empty number of clicks is 0 where the rules say so.
    """
    shown, shown_is_count = _count(impressions, schema, FLAGS[IMPRESSIONS], rules.values)
    clicked, clicked_is_count = _count(clicks, schema, FLAGS[CLICK], rules.values)
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


def _count(name: str, schema: pl.Schema, role: str, values: TextValues) -> tuple[pl.Expr, pl.Expr]:
    """A column as Int64, and whether that is what it holds: a whole number from 0."""
    number = pl.col(name) if schema[name].is_integer() else _number(name, schema, role, values.count)
    whole = pl.lit(value=True) if schema[name].is_integer() else number == number.floor()
    is_count = (number.is_between(0, LARGEST_COUNT) & whole).fill_null(value=False)
    return number.cast(pl.Int64, strict=False), is_count


def _times(name: str, schema: pl.Schema, rules: ReadingRules) -> tuple[pl.Expr, pl.Expr]:
    """The calendar day and the time, null where it is unknown; in UTC where a zone is known, but of text as written."""
    dtype, column, unit = schema[name], pl.col(name), rules.time_unit
    unknown = pl.lit(None, pl.Datetime("us"))
    if rules.values.timestamp_format is not None:
        if not (dtype == pl.String or dtype.is_integer()):
            raise SchemaError(
                f"column {name!r} (--timestamp) holds {dtype}, and --timestamp-format says how text is read. Leave it "
                "out."
            )
        time = rules.values.time(column.cast(pl.String))
        return _of_our_era(time.dt.date()), time
    if has_date(dtype):
        time = _in_utc(column, dtype).dt.replace_time_zone(None).cast(pl.Datetime("us"))
        return _day(column, dtype), unknown if dtype == pl.Date else time
    if not (dtype.is_numeric() or isinstance(dtype, pl.String)):
        raise SchemaError(f"column {name!r} (--timestamp) holds {dtype}; it must hold dates or times.")
    number = whole_numbers(name, dtype)
    day, time = (pl.lit(None, pl.Date), unknown) if unit is None else (unit.day(number), unit.moment(number))
    if dtype != pl.String:
        return day, time
    day_of_text = column.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    written = pl.when(~column.str.contains(_NO_TIME)).then(day_of_text)
    clock = column.str.slice(11, 5).str.to_time("%H:%M", strict=False)
    return pl.coalesce(_of_our_era(written), day), pl.coalesce(written.dt.combine(clock), time)


def _day(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """The day of dates or times as `_times` has it."""
    return _of_our_era(column if dtype == pl.Date else _in_utc(column, dtype).dt.date())


def _in_utc(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    return column.dt.convert_time_zone("UTC") if isinstance(dtype, pl.Datetime) and dtype.time_zone else column


def _of_our_era(day: pl.Expr) -> pl.Expr:
    """Days of a log; null at the ends of the years 1 to 9999, where `clip_to_calendar` puts what lies beyond."""
    return pl.when(day.is_between(pl.date(1, 1, 3), pl.date(9999, 12, 29))).then(day)
