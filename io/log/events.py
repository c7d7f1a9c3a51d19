"""Logs that a script makes of records: the lines of raw files, or the rows of a table of events.

Where rows have no page, but a visit and a time, a page is what was shown in a visit for a query, each result less than
a second after the one before, and a click belongs to the last impression of that document before it. What clients send
twice is counted once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import Roles
from posbias.io.log.clicks import MADE_CLICK, ClickRows, Fate, RawLines, check_plain, holds_any, whole_position
from posbias.io.log.scan import LINE, ROW, check_headers, scan_lines, scan_sources, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.sql import quoted_name, sql_text

IMPRESSION = "impression"
"""The action of an event that says that a document was shown."""

OF_FILE, OF_ROW = "posbias_of_file", "posbias_of_row"
"""Columns of the place that a row was made from, so that a faulty one can be shown."""


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
    attributes: tuple[str, ...] = ()  # further columns of it that were named

    def keeping(self, names: Sequence[str]) -> "RawReader":
        """The reader of these columns, too, where records may have more of them."""
        del names
        return self

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


EVENTS = "events"
"""The name of a table of events in the manifest."""

SHOWN_FLAG, CLICKED_FLAG, TIME_FLAG = "--impression-where", "--click-where", "--page-time"
_MICROSECONDS = 10**6
_FEWEST_SHOWN, _ALONE = 100, 0.9  # so many impressions, and more pages per impression, are pages of one result each


@dataclass(frozen=True)
class EventsRequest:
    """A table of events as the command line describes it."""

    shown: tuple[ClickRows, ...]  # which rows are impressions: any of these
    clicked: tuple[ClickRows, ...]  # which rows are clicks: any of these
    time: str | None = None  # the column of the time, where a session is a visit and a page what it shows at one time
    window: int = 1800  # the most seconds between an impression and its click, where they are joined by time

    def check(self, sources: Sequence[Source]) -> None:
        """Check that all files have these columns, and that they hold plain values.

        Raises:
            SchemaError: one does not.
        """
        named = [(SHOWN_FLAG, rows.column) for rows in self.shown]
        named += [(CLICKED_FLAG, rows.column) for rows in self.clicked]
        named += [(TIME_FLAG, self.time)] if self.time else []
        for source in sources:
            for flag, name in named:
                check_plain(str(source.path), schema_of(source), name, flag)
        check_headers(sources, [name for _, name in named])


@dataclass(frozen=True)
class EventReader(RawReader):
    """Makes a log of a table of events."""

    request: EventsRequest
    event_roles: Roles  # the column of each role; the session is the visit, where pages differ by their time
    paths: tuple[str, ...]  # of its files, for the places of faulty rows
    as_text: tuple[str, ...] = ()  # columns of NDJSON that are read as text
    kept: tuple[str, ...] = ()  # columns that play no role, and are kept: those of clients and of times
    name = EVENTS
    title = "events"
    unit = "rows"
    of_lines = False
    other_action = "rows of other events"

    @property
    def page(self) -> tuple[str, ...]:
        """The columns that tell pages apart."""
        if self.request.time is None:
            return self.event_roles.session
        return tuple(dict.fromkeys([*self.event_roles.session, *self.event_roles.query, self.request.time]))

    @property
    def script(self) -> str:
        """The script that joins its rows."""
        return "_events_by_page" if self.request.time is None else "_events_by_time"

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the script, in SQL."""
        return {
            "files": f"[{', '.join(map(sql_text, self.paths))}]",
            "longest": str(self.request.window * _MICROSECONDS),
        }

    @property
    def _columns(self) -> dict[str, str]:
        """The columns of the log, each with its name in the script, where case makes no difference."""
        times = [self.request.time] if self.request.time else []
        names = dict.fromkeys([*self.event_roles.columns(), *times, *self.kept])
        return {name: f"column_{number}" for number, name in enumerate(names)}

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """One record per row: what it is, and the columns of the log as they are."""
        rows, time, position = scan_sources([source], self.as_text), self.request.time, self.event_roles.position
        schema = rows.collect_schema()
        shown, clicked = (holds_any(of, schema) for of in (self.request.shown, self.request.clicked))
        session, doc = self.event_roles.session, self.event_roles.doc
        moment_of = pl.lit(None, pl.Int64) if time is None else moment(time, schema[time])
        wheres = dict.fromkeys(rows.column for rows in (*self.request.shown, *self.request.clicked))
        outcome = (
            pl.when(shown & clicked)
            .then(pl.lit(f"rows that are impressions ({SHOWN_FLAG}) and clicks ({CLICKED_FLAG}) at once"))
            .when(~shown & ~clicked)
            .then(pl.lit(self.other_action))
            .when(moment_of.is_null() & (time is not None))
            .then(pl.lit(f"rows without a time that can be read ({TIME_FLAG})"))
            .when(clicked & pl.any_horizontal(pl.col(name).is_null() for name in session))
            .then(pl.lit(Fate.NO_PAGE.words))
            .when(clicked & pl.any_horizontal(pl.col(name).is_null() for name in doc))
            .then(pl.lit(Fate.NO_DOC.words))
        )
        return rows.with_row_index(ROW, offset=1).select(
            *(pl.col(name).alias(column) for name, column in self._columns.items() if name in schema),
            order_of_records(number, ROW),
            pl.lit(number, pl.Int64).alias("file"),
            pl.col(ROW).alias("line"),
            pl.when(shown).then(pl.lit("impression")).when(clicked).then(pl.lit("click")).alias("kind"),
            outcome.alias("outcome"),
            pl.coalesce(pl.col(name).cast(pl.String) for name in wheres).alias("action"),
            moment_of.alias("moment"),
            pl.lit(None, pl.Int64).alias("place") if position is None else whole_position(position).alias("place"),
        )

    @property
    def view(self) -> str:
        """The view of events that the script reads."""
        roles, time, position = self.event_roles, self.request.time, self.event_roles.position
        ids = {"visit": roles.session, "query": roles.query, "doc": roles.doc}
        columns = {role: _id([self._columns[name] for name in names]) for role, names in ids.items()}
        columns["position"] = "0" if position is None else self._columns[position]
        columns["time"] = "NULL" if time is None else self._columns[time]
        named = ", ".join(f"{column} AS {role}" for role, column in columns.items())
        return f"CREATE VIEW events AS SELECT *, {named} FROM records"

    @property
    def made(self) -> str:
        """The query for the rows of the log: impressions, and whether they were clicked."""
        columns = {name: "time" if name == self.request.time else column for name, column in self._columns.items()}
        named = ", ".join(f"{column} AS {quoted_name(name)}" for name, column in columns.items())
        return (
            f"SELECT {named}, CAST(c.n IS NOT NULL AS TINYINT) AS {MADE_CLICK}, "
            f"getvariable('files')[file + 1] AS {OF_FILE}, line AS {OF_ROW} FROM impressions AS i "
            "LEFT JOIN first_clicks AS c USING (page, doc) WHERE result = 'impressions' ORDER BY i.n"
        )

    def schema(self, records: pl.Schema) -> pl.Schema:
        """The columns of the log, with the types that they have in the files."""
        own = {name: records[column] for name, column in self._columns.items()}
        return pl.Schema(own | {MADE_CLICK: pl.Int8(), OF_FILE: pl.String(), OF_ROW: pl.UInt32()})

    def judge(self, where: str, counts: Mapping[str, int], account: RawLines) -> None:
        """Check that there are impressions and clicks, and that times make pages.

        Raises:
            SchemaError: there are none of one kind, or nearly every page has one row.
        """
        n_shown, n_clicked, shown, pages = (counts[name] for name in ("declared", "clicks", "shown", "pages"))
        of_kinds = ((SHOWN_FLAG, self.request.shown, n_shown), (CLICKED_FLAG, self.request.clicked, n_clicked))
        for flag, declared, number in of_kinds:
            if account.lines and not number:
                held = actions_in_words(account)
                others = f" The other rows hold: {held}." if held else " There are no other rows than these."
                kind = "impressions" if flag == CLICKED_FLAG else "clicks"
                raise SchemaError(
                    f"{where}: no row has {' or '.join(map(str, declared))} ({flag}). {n_shown:,} rows are "
                    f"impressions and {n_clicked:,} are clicks.{others if held else f' All are {kind}.'}"
                )
        if self.request.time is not None and shown >= _FEWEST_SHOWN and pages > _ALONE * shown:
            raise SchemaError(
                f"{where}: the {shown:,} impressions would be {pages:,} pages, nearly all with one result: in column "
                f"{self.request.time!r} ({TIME_FLAG}), the results of a page are a second or more apart. Name the id "
                "of a page with --session instead, or write one time for a whole page with --sql, such as that of the "
                "search before it."
            )


def _id(columns: Sequence[str]) -> str:
    """An id in SQL, of several columns as a struct; null where one of them is, and alike where there is none."""
    if len(columns) <= 1:
        return "".join(columns) or "0"
    fields = ", ".join(f"{column} := {column}" for column in columns)
    return f"CASE WHEN {' AND '.join(f'{column} IS NOT NULL' for column in columns)} THEN struct_pack({fields}) END"
