"""Times of any usual form as whole microseconds since 1970, so that they can be put in order and subtracted."""

import polars as pl

_WRITTEN = (  # with a blank between date and time
    "%Y-%m-%d %H:%M:%S%.f",
    "%Y-%m-%d %H:%M",
    "%Y-%m-%d",
)
_ZONED = "%Y-%m-%d %H:%M:%S%.f%z"
_DIGITS = (19_800_101_000_000, 21_000_101_000_000)  # yyyymmddhhmmss, which would be milliseconds of the year 2600
_UNITS = ((10**17, 10**-3), (10**14, 1), (10**11, 10**3))  # nano-, micro-, milliseconds from such numbers on
_SECONDS = 10**6


def moment(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column of times as Int64; null where a value is none.

    Text is read as a time (ISO 8601, UTC without a zone) or as a number; a number counts seconds, or whatever smaller
    unit makes it a time of our days.
    """
    column = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        utc = column if dtype.time_zone is None else column.dt.convert_time_zone("UTC")
        return utc.dt.replace_time_zone(None).cast(pl.Datetime("us")).cast(pl.Int64)
    if dtype == pl.Date:
        return column.cast(pl.Datetime("us")).cast(pl.Int64)
    if dtype.is_numeric():
        return _number(column.cast(pl.Float64))
    if isinstance(dtype, pl.String | pl.Categorical):
        return text_moment(column.cast(pl.String))
    return pl.lit(None, pl.Int64)


def text_moment(text: pl.Expr) -> pl.Expr:
    """Text as Int64, as `moment` reads it."""
    blank = text.str.strip_chars().str.replace("T", " ", literal=True).str.replace(r"[Zz]$", "")
    zoned = blank.str.to_datetime(_ZONED, time_unit="us", strict=False).dt.replace_time_zone(None).cast(pl.Int64)
    written = [blank.str.to_datetime(form, time_unit="us", strict=False).cast(pl.Int64) for form in _WRITTEN[:2]]
    day = blank.str.to_date(_WRITTEN[2], strict=False).cast(pl.Datetime("us")).cast(pl.Int64)
    return pl.coalesce(_number(text.cast(pl.Float64, strict=False)), zoned, *written, day)


def _number(number: pl.Expr) -> pl.Expr:
    digits = number.cast(pl.Int64, strict=False).cast(pl.String).str.to_datetime("%Y%m%d%H%M%S", strict=False)
    counted = pl.when(number.abs() >= _UNITS[0][0]).then(number * _UNITS[0][1])
    for least, factor in _UNITS[1:]:
        counted = counted.when(number.abs() >= least).then(number * factor)
    since = counted.otherwise(number * _SECONDS).cast(pl.Int64, strict=False)
    return pl.when(number.is_between(*_DIGITS)).then(digits.cast(pl.Datetime("us")).cast(pl.Int64)).otherwise(since)
