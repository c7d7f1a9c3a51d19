"""How text says numbers, clicks and times where a log writes them in a way of its own.

Numbers as days: 20260105, 2026010512, or counts since 1970 of days, seconds, milli-, micro- or nanoseconds.

The same number means different days in different units, so that all numbers of a column are read in one: the one in
which most of a sample are days that a log can have. A number that is no such day in that unit is none at all.
"""

from dataclasses import dataclass, replace

import polars as pl

from posbias.core.errors import UsageError

_WITH_COMMA = r"^(\s*[+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?\s*)$"
_A_DAY = "2026-01-31"


def grouped(marks: str) -> str:
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
    def without_words(self) -> "TextValues":
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
        number = pl.when(text.str.contains(grouped(marks))).then(without).otherwise(self.number(text))
        return pl.when(~text.str.contains(grouped(","))).then(number) if self.decimal_comma else number

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
class Written:
    """Digits as a date and a time are written: yyyymmdd, then hours, minutes, seconds and their fractions."""

    words: str  # those digits by what they say

    def day(self, number: pl.Expr) -> pl.Expr:
        """The day of the first digits, where the others are a time."""
        text = number.cast(pl.String)
        clock = [
            text.str.slice(at, 2).cast(pl.Int32, strict=False) < limit
            for at, limit in ((8, 24), (10, 60), (12, 60))
            if at < len(self.words)
        ]
        valid = pl.all_horizontal(text.str.len_bytes() == len(self.words), *clock)
        day = text.str.slice(0, _DATE_DIGITS).str.to_date("%Y%m%d", strict=False)
        return pl.when(valid & day.dt.year().is_between(*_YEARS)).then(day)

    def moment(self, number: pl.Expr) -> pl.Expr:
        """The time to the minute, as far as it is written."""
        if len(self.words) == _DATE_DIGITS:
            return pl.lit(None, pl.Datetime("us"))
        minutes = number.cast(pl.String).str.slice(0, 12).str.pad_end(12, "0")
        return minutes.str.to_datetime("%Y%m%d%H%M", time_unit="us", strict=False)


@dataclass(frozen=True)
class CountedSince1970:
    """A count since the beginning of 1970, UTC."""

    words: str  # of what
    per_day: int  # so many a day
    years: tuple[int, int] = _YEARS  # the first and the last year in which such counts are read

    def day(self, number: pl.Expr) -> pl.Expr:
        """The day of a count."""
        days = (number // self.per_day).cast(pl.Int32, strict=False)
        day = days.cast(pl.Date)
        return pl.when(day.dt.year().is_between(*self.years)).then(day)

    def moment(self, number: pl.Expr) -> pl.Expr:
        """The time of a count."""
        if self.per_day == 1:
            return pl.lit(None, pl.Datetime("us"))
        seconds = number // (self.per_day // _SECONDS_OF_A_DAY)
        within = seconds.is_between(0, _FIRST_AND_LAST[1])
        return (pl.when(within).then(seconds) * 10**6).cast(pl.Datetime("us"))


TimeUnit = Written | CountedSince1970
"""How a number says a day: the days, or the times, that whole numbers say; null where one says none."""

TIME_UNITS: tuple[TimeUnit, ...] = (
    *map(Written, ("yyyymmdd", "yyyymmddhh", "yyyymmddhhmm", "yyyymmddhhmmss", "yyyymmddhhmmssfff")),
    CountedSince1970("days since 1970", 1, _YEARS_OF_COUNTED_DAYS),
    CountedSince1970("seconds since 1970", _SECONDS_OF_A_DAY),
    CountedSince1970("milliseconds since 1970", _SECONDS_OF_A_DAY * 10**3),
    CountedSince1970("microseconds since 1970", _SECONDS_OF_A_DAY * 10**6),
    CountedSince1970("nanoseconds since 1970", _SECONDS_OF_A_DAY * 10**9),
)
"""The units that are distinguished. What could be hours as they are written, or seconds of 2030, is hours."""


def time_unit_of(numbers: pl.Series) -> TimeUnit | None:
    """The unit in which most of some whole numbers are days, the first such one; None where none of them is a day."""
    days = pl.select(unit.day(pl.lit(numbers)).count().alias(unit.words) for unit in TIME_UNITS).row(0, named=True)
    best = max(TIME_UNITS, key=lambda unit: days[unit.words])
    return best if days[best.words] else None


def is_dated(dtype: pl.DataType | None) -> bool:
    """Whether values are dates, or dates with a time."""
    return dtype == pl.Date or isinstance(dtype, pl.Datetime)


def bounded(column: pl.Expr, dtype: pl.DataType) -> pl.Expr:
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
