"""Logs that a script makes of records: the lines of raw files, or the rows of a table of events.

Where rows have no page, but a visit and a time, a page is what was shown in a visit for a query, each result less than
a second after the one before, and a click belongs to the last impression of that document before it. What clients send
twice is counted once.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import Roles
from posbias.io.log.clicks import (
    JOINED_CLICK,
    ClickOutcome,
    RawLines,
    RowCondition,
    any_condition,
    check_plain_column,
    stated_position,
)
from posbias.io.log.scan import LINE, ROW, check_headers, scan_lines, scan_sources, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.sql import quoted_name, sql_text

IMPRESSION = "impression"
"""The action of an event that says that a document was shown."""

RAW_FILE, RAW_ROW = "posbias_of_file", "posbias_of_row"
"""Columns of converted rows: the raw file and the row in it, for messages."""


_ROW_BITS = 40  # of the number of a record in its file


def _record_number(file: int, row: str) -> pl.Expr:
    """Number records over all files: `file` * 2**40 + row."""
    return (pl.lit(file << _ROW_BITS, pl.Int64) + pl.col(row)).alias("n")


class RawReader:
    """Convert records to impressions with a script of `io/sources`; this class reads the lines of NDJSON."""

    name: ClassVar[str]  # of the account in the manifest
    title: ClassVar[str]  # of the source, for people
    unit: ClassVar[str] = "lines"  # of the files, in messages
    reads_lines: ClassVar[bool] = True  # whether records are lines of text, so that no schema is known beforehand
    formats: ClassVar[tuple[str, ...]] = ("ndjson",)  # of the files
    expected: ClassVar[str] = ""  # the message about a file of another format
    columns: ClassVar[tuple[str, ...]] = ()  # of the converted log; empty: the columns of the files
    other_action: ClassVar[str]  # the outcome of a record of another action
    attributes: tuple[str, ...] = ()  # additional columns of the converted log

    @property
    def otherwise(self) -> str:
        """Advice where no click has an impression: another way to read the log."""
        return ""

    def with_attributes(self, names: Sequence[str]) -> "RawReader":
        """Return a reader that adds columns, where records may have more of them."""
        del names
        return self

    @property
    def script(self) -> str:
        """The file name of the script, without its extension."""
        return f"_{self.name}"

    @property
    def variables(self) -> Mapping[str, str]:
        """Variables of the script, as SQL expressions."""
        return {}

    def roles(self, requested: Roles) -> Roles:
        """Fill roles that no option names with the columns of the source."""
        return requested

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """Scan the records of a file: `text`, `line`, `n` and `file`, the number of the file."""
        lines = scan_lines(source).select(pl.col(LINE).alias("text"), pl.col(ROW).alias("line"))
        return lines.with_columns(_record_number(number, "line"), pl.lit(number, pl.Int64).alias("file"))

    @property
    def view(self) -> str:
        """The statement that creates a view for the script; empty if this reads `records`."""
        return ""

    @property
    def rows_query(self) -> str:
        """The query for the rows of the log."""
        return "FROM made"

    def schema(self, records: pl.Schema) -> pl.Schema | None:
        """Return the schema of the log; None if it is the one that DuckDB writes."""
        del records
        return None

    def check_counts(self, where: str, counts: Mapping[str, int], account: RawLines) -> None:
        """Raise SchemaError if there are no impressions."""
        if not counts["rows"]:
            raise SchemaError(f"{where}: nothing that was shown could be read. {self.in_words(account)}")

    def in_words(self, account: RawLines) -> str:
        """List the reasons of unused lines with their counts."""
        reasons = ", ".join(f"{lines:,} x {reason}" for reason, lines in account.not_used.items())
        return f"Of {account.lines:,} {self.unit}: {reasons}."

    def no_clicks_error(
        self, where: str, actions: tuple[str, ...], account: RawLines, flag: str | None = "--click-actions"
    ) -> SchemaError:
        """Return the error about events of other actions alone; `flag` is the option that chooses the actions."""
        how = "" if flag is None else f" ({flag})"
        return SchemaError(
            f"{where}: no event has the action {' or '.join(actions)}{how}, so that nothing is clicked. The actions "
            f"that occur are: {actions_in_words(account)}."
        )


_MOST_ACTIONS = 10


def actions_in_words(account: RawLines) -> str:
    """List the ten most frequent other actions with their counts."""
    actions = sorted(account.other_actions.items(), key=lambda entry: (-entry[1], entry[0]))
    listed = ", ".join(f"{action} ({lines:,})" for action, lines in actions[:_MOST_ACTIONS])
    return listed + (", ..." if len(actions) > _MOST_ACTIONS else "")


_LOCAL = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M")
_ZONED = "%Y-%m-%d %H:%M:%S%.f%z"
_DIGITS = (19_800_101_000_000, 21_000_101_000_000)  # yyyymmddhhmmss, which would be milliseconds of the year 2600
_UNITS = ((10**17, 10**-3), (10**14, 1), (10**11, 10**3))  # nano-, micro- and milliseconds, from these numbers on
_MICROSECONDS = 10**6  # per second


def _microseconds(name: str, dtype: pl.DataType) -> pl.Expr:
    """Convert a column of times to microseconds since 1970, UTC, as Int64; null for other values.

    Text is parsed as ISO 8601 (UTC without a zone) or as a number. The unit of a number follows from its size: seconds,
    milli-, micro- or nanoseconds; from 19800101000000 to 21000101000000 its digits are a date and a time.
    """
    column = pl.col(name)
    if isinstance(dtype, pl.Datetime):
        utc = column if dtype.time_zone is None else column.dt.convert_time_zone("UTC")
        return utc.dt.replace_time_zone(None).cast(pl.Datetime("us")).cast(pl.Int64)
    if dtype == pl.Date:
        return column.cast(pl.Datetime("us")).cast(pl.Int64)
    if dtype.is_numeric():
        return _number_in_microseconds(column.cast(pl.Float64))
    if not isinstance(dtype, pl.String | pl.Categorical):
        return pl.lit(None, pl.Int64)
    text = column.cast(pl.String)
    blank = text.str.strip_chars().str.replace("T", " ", literal=True).str.replace(r"[Zz]$", "")
    zoned = blank.str.to_datetime(_ZONED, time_unit="us", strict=False).dt.replace_time_zone(None).cast(pl.Int64)
    local = [blank.str.to_datetime(form, time_unit="us", strict=False).cast(pl.Int64) for form in _LOCAL]
    day = blank.str.to_date("%Y-%m-%d", strict=False).cast(pl.Datetime("us")).cast(pl.Int64)
    return pl.coalesce(_number_in_microseconds(text.cast(pl.Float64, strict=False)), zoned, *local, day)


def _number_in_microseconds(number: pl.Expr) -> pl.Expr:
    """Convert a number as `_microseconds` describes it."""
    digits = number.cast(pl.Int64, strict=False).cast(pl.String).str.to_datetime("%Y%m%d%H%M%S", strict=False)
    scaled = pl.when(number.abs() >= _UNITS[0][0]).then(number * _UNITS[0][1])
    for least, factor in _UNITS[1:]:
        scaled = scaled.when(number.abs() >= least).then(number * factor)
    since = scaled.otherwise(number * _MICROSECONDS).cast(pl.Int64, strict=False)
    return pl.when(number.is_between(*_DIGITS)).then(digits.cast(pl.Datetime("us")).cast(pl.Int64)).otherwise(since)


EVENTS = "events"
"""The name of a table of events in the manifest."""

SHOWN_FLAG, CLICKED_FLAG, TIME_FLAG = "--impression-where", "--click-where", "--page-time"
_FEWEST_SHOWN, _ALONE = 100, 0.9  # impressions, and pages per impression above which nearly every page has one result


@dataclass(frozen=True)
class EventsRequest:
    """The options of a table of events."""

    shown: tuple[RowCondition, ...]  # a row is an impression if it meets any of them
    clicked: tuple[RowCondition, ...]  # a row is a click if it meets any of them
    time: str | None = None  # the column of times, where a session is a visit and a page its impressions at one time
    window: int = 1800  # seconds between an impression and its click at most, where a session is a visit

    def check(self, sources: Sequence[Source]) -> None:
        """Raise SchemaError if a file lacks a column of the options, or the column is nested."""
        columns = [(SHOWN_FLAG, condition.column) for condition in self.shown]
        columns += [(CLICKED_FLAG, condition.column) for condition in self.clicked]
        columns += [(TIME_FLAG, self.time)] if self.time else []
        for source in sources:
            for flag, name in columns:
                check_plain_column(str(source.path), schema_of(source), name, flag)
        check_headers(sources, [name for _, name in columns])


@dataclass(frozen=True)
class EventReader(RawReader):
    """Convert a table of events to a log."""

    request: EventsRequest
    event_roles: Roles  # the column of each role; the session is the visit if a page is a time
    paths: tuple[str, ...]  # of the files, for messages about invalid rows
    as_text: tuple[str, ...] = ()  # columns that NDJSON reads as text
    extra: tuple[str, ...] = ()  # columns of clients and times without a role, to retain
    name = EVENTS
    title = "events"
    unit = "rows"
    reads_lines = False
    other_action = "rows of other events"

    @property
    def page(self) -> tuple[str, ...]:
        """Columns that tell pages apart."""
        if self.request.time is None:
            return self.event_roles.session
        return tuple(dict.fromkeys([*self.event_roles.session, *self.event_roles.query, self.request.time]))

    @property
    def otherwise(self) -> str:
        """Advice where the column of events may say of each result whether it was clicked."""
        columns = {condition.column for condition in (*self.request.shown, *self.request.clicked)}
        if len(columns) > 1:
            return ""
        flags = {"--true": self.request.clicked, "--false": self.request.shown}
        words = {flag: ",".join(condition.value for condition in conditions) for flag, conditions in flags.items()}
        options = shlex.join(["--click", *columns, *chain.from_iterable(words.items())])
        return (
            f" If each row is a result that was shown, and {columns.pop()!r} says whether it was clicked, use "
            f"{options} in place of {SHOWN_FLAG} and {CLICKED_FLAG}."
        )

    @property
    def script(self) -> str:
        """The script that joins clicks by page, or by time."""
        return "_events_by_page" if self.request.time is None else "_events_by_time"

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the script, as SQL expressions: paths of the files, window in microseconds."""
        return {
            "files": f"[{', '.join(map(sql_text, self.paths))}]",
            "longest": str(self.request.window * _MICROSECONDS),
        }

    @property
    def _columns(self) -> dict[str, str]:
        """Columns of the log, each with its name in the script: names of SQL are the same in any case."""
        times = [self.request.time] if self.request.time else []
        names = dict.fromkeys([*self.event_roles.columns(), *times, *self.extra])
        return {name: f"column_{number}" for number, name in enumerate(names)}

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """Scan the rows of a file with their `kind`, `outcome`, `action` and `moment`, and the columns of the log."""
        rows, time, position = scan_sources([source], self.as_text), self.request.time, self.event_roles.position
        schema = rows.collect_schema()
        shown, clicked = (any_condition(of, schema) for of in (self.request.shown, self.request.clicked))
        session, doc = self.event_roles.session, self.event_roles.doc
        moment = pl.lit(None, pl.Int64) if time is None else _microseconds(time, schema[time])
        types = dict.fromkeys(condition.column for condition in (*self.request.shown, *self.request.clicked))
        outcome = (
            pl.when(shown & clicked)
            .then(pl.lit(f"rows that are impressions ({SHOWN_FLAG}) and clicks ({CLICKED_FLAG}) at once"))
            .when(~shown & ~clicked)
            .then(pl.lit(self.other_action))
            .when(moment.is_null() & (time is not None))
            .then(pl.lit(f"rows without a time that can be read ({TIME_FLAG})"))
            .when(clicked & pl.any_horizontal(pl.col(name).is_null() for name in session))
            .then(pl.lit(ClickOutcome.NO_PAGE.words))
            .when(clicked & pl.any_horizontal(pl.col(name).is_null() for name in doc))
            .then(pl.lit(ClickOutcome.NO_DOC.words))
        )
        return rows.with_row_index(ROW, offset=1).select(
            *(pl.col(name).alias(column) for name, column in self._columns.items() if name in schema),
            _record_number(number, ROW),
            pl.lit(number, pl.Int64).alias("file"),
            pl.col(ROW).alias("line"),
            pl.when(shown).then(pl.lit("impression")).when(clicked).then(pl.lit("click")).alias("kind"),
            outcome.alias("outcome"),
            pl.coalesce(pl.col(name).cast(pl.String) for name in types).alias("action"),
            moment.alias("moment"),
            pl.lit(None, pl.Int64).alias("place") if position is None else stated_position(position).alias("place"),
        )

    @property
    def view(self) -> str:
        """The statement that creates the view `events` of records, with the columns of roles."""
        roles, time, position = self.event_roles, self.request.time, self.event_roles.position
        ids = {"visit": roles.session, "query": roles.query, "doc": roles.doc}
        columns = {role: _sql_id([self._columns[name] for name in names]) for role, names in ids.items()}
        columns["position"] = "0" if position is None else self._columns[position]
        columns["time"] = "NULL" if time is None else self._columns[time]
        selected = ", ".join(f"{column} AS {role}" for role, column in columns.items())
        return f"CREATE VIEW events AS SELECT *, {selected} FROM records"

    @property
    def rows_query(self) -> str:
        """The query for the impressions, with `JOINED_CLICK` 0 or 1 and their place in the raw files."""
        columns = {name: "time" if name == self.request.time else column for name, column in self._columns.items()}
        selected = ", ".join(f"{column} AS {quoted_name(name)}" for name, column in columns.items())
        return (
            f"SELECT {selected}, CAST(c.n IS NOT NULL AS TINYINT) AS {JOINED_CLICK}, "
            f"getvariable('files')[file + 1] AS {RAW_FILE}, line AS {RAW_ROW} FROM impressions AS i "
            "LEFT JOIN first_clicks AS c USING (page, doc) WHERE result = 'impressions' ORDER BY i.n"
        )

    def schema(self, records: pl.Schema) -> pl.Schema:
        """Return the columns of the log with their types in the files."""
        own = {name: records[column] for name, column in self._columns.items()}
        return pl.Schema(own | {JOINED_CLICK: pl.Int8(), RAW_FILE: pl.String(), RAW_ROW: pl.UInt32()})

    def check_counts(self, where: str, counts: Mapping[str, int], account: RawLines) -> None:
        """Raise SchemaError if there are no impressions or no clicks, or if nearly every page has one impression."""
        n_shown, n_clicked, shown, pages = (counts[name] for name in ("declared", "clicks", "shown", "pages"))
        kinds = (
            (SHOWN_FLAG, self.request.shown, n_shown, "clicks"),
            (CLICKED_FLAG, self.request.clicked, n_clicked, "impressions"),
        )
        for flag, conditions, number, other in kinds:
            if account.lines and not number:
                actions = actions_in_words(account)
                raise SchemaError(
                    f"{where}: no row has {' or '.join(map(str, conditions))} ({flag}). {n_shown:,} rows are "
                    f"impressions and {n_clicked:,} are clicks."
                    f"{f' The other rows hold: {actions}.' if actions else f' All are {other}.'}"
                )
        if self.request.time is not None and shown >= _FEWEST_SHOWN and pages > _ALONE * shown:
            raise SchemaError(
                f"{where}: the {shown:,} impressions would be {pages:,} pages, nearly all with one result: in column "
                f"{self.request.time!r} ({TIME_FLAG}), the results of a page are a second or more apart. Name the id "
                "of a page with --session instead, or write one time for a whole page with --sql, such as that of the "
                "search before it."
            )


def _sql_id(columns: Sequence[str]) -> str:
    """Return the SQL expression of an id: a struct of several columns, null if one is null; 0 for no columns."""
    if len(columns) <= 1:
        return "".join(columns) or "0"
    fields = ", ".join(f"{column} := {column}" for column in columns)
    return f"CASE WHEN {' AND '.join(f'{column} IS NOT NULL' for column in columns)} THEN struct_pack({fields}) END"
