"""How text says numbers, clicks and times where a log writes them in a way of its own."""

from dataclasses import dataclass, replace

import polars as pl

from posbias.core.errors import UsageError

_WITH_COMMA = r"^(\s*[+-]?[0-9]*),([0-9]+(?:[eE][+-]?[0-9]+)?\s*)$"
_A_DAY = "2026-01-31"


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

    def with_point(self, text: pl.Expr) -> pl.Expr:
        """Text whose numbers have a point; other text as it is."""
        return text.str.replace(_WITH_COMMA, "${1}.${2}") if self.decimal_comma else text

    def time(self, text: pl.Expr) -> pl.Expr:
        """Text as a time without a zone, that of UTC if a zone is written; null where it has another form."""
        read = text.str.strip_chars().str.to_datetime(str(self.timestamp_format), time_unit="us", strict=False)
        return read.dt.replace_time_zone(None)


PLAIN_TEXT = TextValues()


def check_timestamp_format(form: str) -> None:
    """See that a format says a whole day: what it writes of one is read as that day again.

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
            f"--timestamp-format {form}: does not say a day as strftime does. 31.01.2026 13:05 is '%d.%m.%Y %H:%M', "
            "01/31/2026 is %m/%d/%Y, 31/01/2026 is %d/%m/%Y."
        )
