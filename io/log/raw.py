"""Logs that a script makes of records: the lines of raw files, or the rows of a table of events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import polars as pl
from msgspec import UNSET, UnsetType

from posbias.core.choices import Impressions
from posbias.core.errors import SchemaError
from posbias.core.schema import Roles
from posbias.io.log.clicks import RawLines
from posbias.io.log.scan import LINE, ROW, scan_lines
from posbias.io.log.sources import Source

IMPRESSION = "impression"
"""The action of an event that says that a document was shown."""

OF_FILE, OF_ROW = "posbias_of_file", "posbias_of_row"
"""Columns of the place that a row was made from, so that a faulty one can be shown."""


@dataclass(frozen=True)
class RawRules:
    """How raw files are read."""

    impressions: Impressions = "hits"  # what says that a document was shown, in UBI
    click_actions: tuple[str, ...] = ("click",)  # the actions that are clicks, where a source has several
    # the number of the topmost position in the ordinals of each action of UBI; no number, no trust: the official sample
    # mixes ordinals from 0 and from 1
    bases: Mapping[str, int] = field(default_factory=dict[str, int])
    no_query: bool = False  # whether pages have no query, where the source allows that


NO_RULES = RawRules()
"""The usual rules."""

_ROWS = 40  # bits of the number of a record in a file


def order_of_records(number: int, row: str) -> pl.Expr:
    """The number of a record among those of all files, by that of its file, and the column of that in the file."""
    return (pl.lit(number << _ROWS, pl.Int64) + pl.col(row)).alias("n")


class RawReader:
    """Makes a log of records by a script of `io/sources`."""

    name: ClassVar[str]  # of the account in the manifest
    title: ClassVar[str]  # for people
    unit: ClassVar[str] = "lines"  # what the files consist of
    of_lines: ClassVar[bool] = (
        True  # whether they are read as lines of text, so that nothing is known of the log before
    )
    formats: ClassVar[tuple[str, ...]] = ("ndjson",)  # those of the files that are read
    expected: ClassVar[str] = ""  # the message about another one
    columns: ClassVar[tuple[str, ...]] = ()  # of the log that is made; none where those of the files are kept
    other_action: ClassVar[str]  # the outcome of a record of another action

    @property
    def script(self) -> str:
        """The name of the script."""
        return f"_{self.name}"

    @property
    def variables(self) -> Mapping[str, str]:
        """What the script looks up, in SQL."""
        return {}

    def roles(self, requested: Roles) -> Roles:
        """The columns that were named, and the usual ones for the others."""
        return requested

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """The lines of a file."""
        lines = scan_lines(source).select(pl.col(LINE).alias("text"), pl.col(ROW).alias("line"))
        return lines.with_columns(order_of_records(number, "line"), pl.lit(number, pl.Int64).alias("file"))

    @property
    def view(self) -> str:
        """The view of records that the script reads, where it is another than these."""
        return ""

    @property
    def made(self) -> str:
        """The query for the rows of the log."""
        return "FROM made"

    def schema(self, records: pl.Schema) -> pl.Schema | None:
        """The columns of the log, where they may have types that DuckDB has not."""
        del records
        return None

    def positions(self, counts: Mapping[str, int]) -> dict[str, int] | UnsetType:
        """Where the positions of the rows come from, where there are several ways."""
        del counts
        return UNSET

    def judge(self, where: str, counts: Mapping[str, int], account: RawLines) -> None:
        """Check that there is a log in the files.

        Raises:
            SchemaError: there is none.
        """
        if not counts["rows"]:
            raise SchemaError(f"{where}: nothing that was shown could be read. {self.in_words(account)}")

    def in_words(self, account: RawLines) -> str:
        """The reasons of lines that are not used, in words."""
        reasons = ", ".join(f"{lines:,} x {reason}" for reason, lines in account.not_used.items())
        return f"Of {account.lines:,} {self.unit}: {reasons}."

    def no_clicks(
        self, where: str, actions: tuple[str, ...], account: RawLines, flag: str | None = "--click-actions"
    ) -> SchemaError:
        """The error where other actions occur, and none that is a click; the option says which are, if there is one."""
        how = "" if flag is None else f" ({flag})"
        return SchemaError(
            f"{where}: no event has the action {' or '.join(actions)}{how}, so that nothing is clicked. The actions "
            f"that occur are: {actions_in_words(account)}."
        )


_MOST_ACTIONS = 10


def actions_in_words(account: RawLines) -> str:
    """The other actions that occur, most frequent first, with their counts."""
    actions = sorted(account.other_actions.items(), key=lambda entry: (-entry[1], entry[0]))
    named = ", ".join(f"{action} ({lines:,})" for action, lines in actions[:_MOST_ACTIONS])
    return named + (", ..." if len(actions) > _MOST_ACTIONS else "")


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
    if not isinstance(dtype, pl.String | pl.Categorical):
        return pl.lit(None, pl.Int64)
    text = column.cast(pl.String)
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
