"""Clicks in tables of their own, and tables of events.

A click is joined to its impression by page and document. Where rows have no page, but a visit and a time, a page is
what was shown in a visit for a query, each result less than a second after the one before, and a click belongs to the
last impression of that document before it. What clients send twice is counted once.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import polars as pl

from posbias.core.errors import SchemaError, UsageError
from posbias.core.log.impressions import ReadingRules, read_click, whole_numbers
from posbias.core.roles import plain, resolve_roles, words
from posbias.core.schema import ALIASES, CLICK, DOC, POSITION, QUERY, SESSION, Roles
from posbias.io.log.clicks import AT, MADE_CLICK, OUTCOME, UNDECIDED, Fate, RawLines, whole_position
from posbias.io.log.lists import check_headers
from posbias.io.log.raw import OF_FILE, OF_ROW, RawReader, actions_in_words, moment, order_of_records
from posbias.io.log.scan import ROW, reading, scan_sources, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.sql import quoted_name, sql_text

FLAGS_OF_CLICKS = {SESSION: "--clicks-session", DOC: "--clicks-doc", CLICK: "--clicks-click"}
"""The options that name the columns of the clicks' table."""

_TEXTS = (pl.String, pl.Categorical, pl.Enum)
_YES, _NO = ("1", "1.0", "true", "t", "yes", "y"), ("0", "0.0", "false", "f", "no", "n")
_CLICK_WORDS = ("click", "clicks", "clicked")
_KIND_OF_EVENT = re.compile("(.* )?(event|action|interaction) ?(type|kind|code|id)?|type|kind")
_MOST_CODES = 10  # different whole numbers that stand for kinds of events
_FEWEST_CLICKS = 1e-3  # share of the rows from which a column that says `click` is one of kinds of events, not of text
_SHOWN = 10


@dataclass(frozen=True)
class ClickRows:
    """Rows of the clicks' table that are clicks: where a column holds a value."""

    column: str  # the column that says what a row is
    value: str  # what it holds in the rows of clicks, as text

    @classmethod
    def parse(cls, text: str, flag: str = "--clicks-where") -> Self:
        """Read `COLUMN=VALUE`, the value of an option.

        Raises:
            UsageError: the text has another form.
        """
        column, equals, value = text.partition("=")
        if not (column and equals):
            raise UsageError(f"{flag} {text}: write COLUMN=VALUE, for example action=click.")
        return cls(column, value)

    def __str__(self) -> str:
        """As it is written on the command line."""
        return f"{self.column}={self.value}"

    def holds(self, dtype: pl.DataType) -> pl.Expr:
        """Whether a row is one of them; a number is compared as a number."""
        column = pl.col(self.column)
        if dtype.is_numeric():
            try:
                return (column.cast(pl.Float64) == float(self.value)).fill_null(value=False)
            except ValueError:
                return pl.lit(value=False)
        return (column.cast(pl.String) == self.value).fill_null(value=False)


def check_plain(where: str, schema: pl.Schema, name: str, flag: str) -> None:
    """Check that a table has a column, and that it holds plain values.

    Raises:
        SchemaError: it does not.
    """
    if name not in schema:
        raise SchemaError(f"{where}: there is no column {name!r} ({flag}). The columns are: {', '.join(schema)}.")
    if schema[name].is_nested():
        raise SchemaError(f"{where}: column {name!r} ({flag}) holds {schema[name]}; it must hold plain values.")


@dataclass(frozen=True)
class ClicksRequest:
    """The table of clicks as the command line describes it."""

    inputs: tuple[str, ...]  # its files
    session: tuple[str, ...] = ()  # its columns of the session; empty where they are called as in the impressions
    doc: tuple[str, ...] = ()  # its columns of the document; empty where they are called as in the impressions
    click: str | None = None  # the column that says whether, or how often, a row was clicked
    where: tuple[ClickRows, ...] = ()  # which rows are clicks: any of these


@dataclass(frozen=True)
class ClickTable:
    """The clicks' table beside a log."""

    request: ClicksRequest
    sources: tuple[Source, ...]  # its files
    shown: Roles  # the roles of the impressions' columns
    rules: ReadingRules  # how the log is read
    click_of_log: str | None = None  # the click column that was named for the log, which may stand in this table

    def clicks(self, types: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        """Its clicks: the session and doc under the names and types of the impressions' columns, `OUTCOME` and `AT`.

        Args:
            types: those of the impressions' columns.

        Raises:
            SchemaError: the table lacks a column, or does not say which rows are clicks.
        """
        pairs = list(zip([*self.shown.session, *self.shown.doc], self._keys, strict=True))
        for our, their in pairs:
            theirs, ours = self._schema[their], types[our]
            if theirs != ours and not (theirs.is_integer() and ours.is_integer()):
                raise SchemaError(
                    f"{self._where}: column {their!r} holds {theirs}, {our!r} of the impressions {ours}. "
                    "Write both with the same type."
                )
        named = ((self._roles.session, Fate.NO_PAGE), (self._roles.doc, Fate.NO_DOC))
        outcome = pl.lit(UNDECIDED)
        for names, fate in reversed(named):
            lacks_one = pl.any_horizontal(pl.col(name).is_null() for name in names)
            outcome = pl.when(lacks_one).then(int(fate)).otherwise(outcome)
        # An id that the type of the impressions' column cannot hold becomes null, and has no impression.
        keys = (pl.col(their).cast(types[our], strict=False).alias(our) for our, their in pairs)
        position = pl.lit(None, pl.Int64).alias(AT) if self._position is None else whole_position(self._position)
        clicks = scan_sources(self.sources).filter(self._was_clicked)
        return clicks.select(*keys, outcome.cast(pl.UInt8).alias(OUTCOME), position)

    @cached_property
    def _position(self) -> str | None:
        """The column of the position that a click names, if there is one."""
        known = {plain(name) for name in ALIASES[POSITION]}
        usual = [name for name, dtype in self._schema.items() if plain(name) in known and not dtype.is_nested()]
        return next((name for name in (self.shown.position, *usual) if name in usual and name not in self._keys), None)

    @property
    def guessed(self) -> tuple[tuple[str, str], ...]:
        """Options with their columns: what was taken from names that are likely, but not certain."""
        return self._roles.guessed

    @property
    def _where(self) -> str:
        return str(self.sources[0].path)

    @cached_property
    def _schema(self) -> pl.Schema:
        with reading(self.sources):
            return scan_sources(self.sources).collect_schema()

    @cached_property
    def _roles(self) -> Roles:
        """The columns of session and document, and of the click where there is one."""
        named = self.request
        of_log = self.click_of_log if self.click_of_log in self._schema else None
        requested = Roles(
            session=named.session or _same(self.shown.session, self._schema),
            doc=named.doc or _same(self.shown.doc, self._schema),
            click=named.click or of_log,
        )
        roles = resolve_roles(
            requested,
            self._schema.names(),
            where=self._where,
            required=(SESSION, DOC),
            looked_for=(SESSION, DOC, CLICK),
            flags=FLAGS_OF_CLICKS,
        )
        for role, ours, theirs in ((SESSION, self.shown.session, roles.session), (DOC, self.shown.doc, roles.doc)):
            if len(ours) != len(theirs):
                raise SchemaError(
                    f"{self._where}: the {role} of the impressions is {', '.join(ours)}, that of the clicks "
                    f"{', '.join(theirs)}. Name as many columns with {FLAGS_OF_CLICKS[role]}, in the same order."
                )
        return roles

    @cached_property
    def _keys(self) -> list[str]:
        keys = [*self._roles.session, *self._roles.doc]
        check_headers(self.sources, [*keys, *([self._roles.click] if self._roles.click else [])])
        return keys

    @cached_property
    def _was_clicked(self) -> pl.Expr:
        """Which rows are clicks: all, unless a column says otherwise."""
        of_kind = self._of_kind() if self.request.where else pl.lit(value=True)
        if self._roles.click is not None:
            return of_kind & self._counted(self._roles.click, of_kind)
        if not self.request.where:
            self._check_every_row_is_a_click()
        return of_kind

    def _of_kind(self) -> pl.Expr:
        """The rows that are declared to be clicks.

        Raises:
            SchemaError: there is no such column, or no such row.
        """
        for rows in self.request.where:
            check_plain(self._where, self._schema, rows.column, "--clicks-where")
        holds = [rows.holds(self._schema[rows.column]) for rows in self.request.where]
        with reading(self.sources):
            numbers = scan_sources(self.sources).select(
                pl.len().alias("posbias_rows"), *(there.sum().alias(str(n)) for n, there in enumerate(holds))
            )
            rows_in_all, *counts = numbers.collect(engine="streaming").row(0)
        for rows, count in zip(self.request.where, counts, strict=True):
            if rows_in_all and not count:
                raise SchemaError(
                    f"{self._where}: no row has {rows} (--clicks-where). {rows.column!r} holds: "
                    f"{self._values_of(rows.column)}."
                )
        return pl.any_horizontal(holds)

    def _values_of(self, column: str) -> str:
        """The most frequent values of a column."""
        with reading(self.sources):
            values = (
                scan_sources(self.sources)
                .group_by(pl.col(column).cast(pl.String))
                .len()
                .sort("len", column, descending=[True, False])
                .head(_SHOWN + 1)
                .collect(engine="streaming")[column]
                .to_list()
            )
        return ", ".join(map(str, values[:_SHOWN])) + (", ..." if len(values) > _SHOWN else "")

    def _counted(self, column: str, of_kind: pl.Expr) -> pl.Expr:
        """The rows that a click column says were clicked.

        Raises:
            SchemaError: it says something else than how often.
        """
        click, _ = read_click(column, self._schema, replace(self.rules, click_counts=True))
        bad = self._first_invalid(column, replace(self.rules, click_counts=True), of_kind)
        if bad.height:
            raise SchemaError(
                f"{self._where}: column {column!r} says how often a row was clicked, but holds {bad.item()!r}. Fix it, "
                f"or say which rows are clicks with --clicks-where {column}=VALUE. If every row is a click, drop the "
                "column."
            )
        return click == 1

    def _check_every_row_is_a_click(self) -> None:
        """Raise SchemaError if a column seems to mark which rows are clicks.

        Raises:
            SchemaError: one does.
        """
        known = {name for name in self._schema if name.lower() in (*ALIASES[QUERY], *ALIASES[POSITION])}
        known |= {*self._keys, *self.shown.columns()}
        free = {name: dtype for name, dtype in self._schema.items() if name not in known}
        flags = {f"flag {name}": flag for name, dtype in free.items() if (flag := _flag(name, dtype)) is not None}
        kinds = {f"kind {name}": _kind(name) for name, dtype in free.items() if isinstance(dtype, _TEXTS)}
        codes = {
            f"code {name}": _has_codes(name, dtype)
            for name, dtype in free.items()
            if _KIND_OF_EVENT.fullmatch(" ".join(words(name))) and (dtype.is_numeric() or dtype == pl.String)
        }
        if not flags and not kinds and not codes:
            return
        with reading(self.sources):
            rows = scan_sources(self.sources).select(**flags, **kinds, **codes).collect(engine="streaming")
        seen = rows.row(0, named=True)
        as_numbers = replace(self.rules, click_counts=False, null_click=False)
        for name, dtype in free.items():
            is_flag, is_kind, how = seen.get(f"flag {name}"), seen.get(f"kind {name}"), f"--clicks-where {name}=VALUE"
            if not (is_flag or is_kind or seen.get(f"code {name}")):
                continue
            others = "holds click and other values" if is_kind else "seems to hold codes of events"
            holds = "says yes or no" if is_flag else others
            if not is_flag:
                advice = f"Keep the rows that are clicks with {how}."
            elif isinstance(dtype, _TEXTS) and (
                dtype != pl.String or self._first_invalid(name, as_numbers, pl.lit(value=True)).height
            ):
                advice = f"If it says which rows are clicks, use {how} with the value that it has there."
            else:
                advice = f"If it says which rows are clicks, use --clicks-click {name}."
            raise SchemaError(
                f"{self._where}: column {name!r} {holds} ({self._values_of(name)}) and plays no role, so that every "
                f"row would count as a click. {advice} If every row is a click, drop the column."
            )

    def _first_invalid(self, column: str, rules: ReadingRules, of_kind: pl.Expr) -> pl.DataFrame:
        """The first value, if any, that a click column may not hold."""
        invalid = pl.any_horizontal(broken for broken, _ in read_click(column, self._schema, rules)[1])
        with reading(self.sources):
            return scan_sources(self.sources).filter(of_kind & invalid).select(column).head(1).collect()


def _flag(name: str, dtype: pl.DataType) -> pl.Expr | None:
    """Whether a column says no and, where it says something else, yes; None for a type that cannot. Null is no."""
    column = pl.col(name)
    if dtype == pl.Boolean:
        return (~column).any() | (column.is_null().any() & column.any())
    if dtype.is_numeric():
        yes, no = column == 1, column == 0
    elif isinstance(dtype, _TEXTS):
        word = column.cast(pl.String).str.strip_chars().str.to_lowercase()
        yes, no = word.is_in(_YES), word.is_in(_NO)
    else:
        return None
    only_these = (yes | no).all() & column.is_not_null().any()
    return only_these & (no.any() | column.is_null().any())


def _kind(name: str) -> pl.Expr:
    """Whether some rows of a text column say click, and others do not."""
    clicks = pl.col(name).cast(pl.String).str.to_lowercase().is_in(_CLICK_WORDS).fill_null(value=False)
    return clicks.any() & ~clicks.all() & (clicks.mean() >= _FEWEST_CLICKS)


def _has_codes(name: str, dtype: pl.DataType) -> pl.Expr:
    """Whether a column holds a few whole numbers and nothing else."""
    numbers = whole_numbers(name, dtype)
    return numbers.is_not_null().all() & numbers.n_unique().is_between(2, _MOST_CODES)


def _same(names: Sequence[str], schema: pl.Schema) -> tuple[str, ...]:
    """The names, where the other table has them too."""
    return tuple(names) if all(name in schema for name in names) else ()


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
        shown, clicked = self.is_shown(schema), _fits(self.request.clicked, schema)
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

    def is_shown(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        """Which rows are impressions."""
        return _fits(self.request.shown, schema)


def _fits(declared: Sequence[ClickRows], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    return pl.any_horizontal(rows.holds(schema[rows.column]) for rows in declared)


def _id(columns: Sequence[str]) -> str:
    """An id in SQL, of several columns as a struct; null where one of them is, and alike where there is none."""
    if len(columns) <= 1:
        return "".join(columns) or "0"
    fields = ", ".join(f"{column} := {column}" for column in columns)
    return f"CASE WHEN {' AND '.join(f'{column} IS NOT NULL' for column in columns)} THEN struct_pack({fields}) END"
