"""Clicks in a table of their own: which of its rows are clicks, and the clicked (session, document)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import polars as pl

from posbias.core.column_names import plain
from posbias.core.errors import SchemaError, UsageError
from posbias.core.log.impressions import ReadingRules, read_click
from posbias.core.role_search import resolve_roles
from posbias.core.schema import ALIASES, CLICK, DOC, POSITION, QUERY, SESSION, Roles
from posbias.io.log.headers import check_headers
from posbias.io.log.lost_clicks import AT, OUTCOME, Fate, whole_position
from posbias.io.log.raw import first_that_holds
from posbias.io.log.scan import reading, scan_sources
from posbias.io.log.sources import Source

FLAGS_OF_CLICKS = {SESSION: "--clicks-session", DOC: "--clicks-doc", CLICK: "--clicks-click"}
"""The options that name the columns of the clicks' table."""

_TEXTS = (pl.String, pl.Categorical, pl.Enum)
_YES, _NO = ("1", "1.0", "true", "t", "yes", "y"), ("0", "0.0", "false", "f", "no", "n")
_CLICK_WORDS = ("click", "clicks", "clicked")
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
    """See that a table has a column, and that it holds plain values.

    Raises:
        SchemaError: it does not.
    """
    if name not in schema:
        raise SchemaError(f"{where}: there is no column {name!r} ({flag}). The columns are: {', '.join(schema)}.")
    if schema[name].is_nested():
        raise SchemaError(f"{where}: column {name!r} ({flag}) holds {schema[name]}; it must hold plain values.")


@dataclass(frozen=True)
class ClicksRequest:
    """What the user said about the clicks' table."""

    inputs: tuple[str, ...]  # its files
    session: tuple[str, ...] = ()  # its columns of the session; empty where they are called as in the impressions
    doc: tuple[str, ...] = ()  # its columns of the document, likewise
    click: str | None = None  # the column that says whether, or how often, a row was clicked
    where: tuple[ClickRows, ...] = ()  # what rows are clicks; where it is said several times, any of them


@dataclass(frozen=True)
class ClickTable:
    """The clicks' table beside a log."""

    request: ClicksRequest  # what was said about it
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
        decided = [(pl.any_horizontal(pl.col(name).is_null() for name in names), fate) for names, fate in named]
        # An id that the type of the impressions' column cannot hold becomes null, and has no impression.
        keys = (pl.col(their).cast(types[our], strict=False).alias(our) for our, their in pairs)
        position = pl.lit(None, pl.Int64).alias(AT) if self._position is None else whole_position(self._position)
        clicks = scan_sources(self.sources).filter(self._was_clicked)
        return clicks.select(*keys, first_that_holds(decided).alias(OUTCOME), position)

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
        """The rows that are said to be clicks.

        Raises:
            SchemaError: there is no such column, or no such row.
        """
        for rows in self.request.where:
            check_plain(self._where, self._schema, rows.column, "--clicks-where")
        holds = [rows.holds(self._schema[rows.column]) for rows in self.request.where]
        with reading(self.sources):
            found = scan_sources(self.sources).select(
                pl.len().alias("posbias_rows"), *(there.sum().alias(str(n)) for n, there in enumerate(holds))
            )
            rows_in_all, *counts = found.collect(engine="streaming").row(0)
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
        click, faults = read_click(column, self._schema, replace(self.rules, click_counts=True))
        invalid = pl.any_horizontal(broken for broken, _ in faults)
        with reading(self.sources):
            bad = scan_sources(self.sources).filter(of_kind & invalid).select(column).head(1).collect()
        if bad.height:
            raise SchemaError(
                f"{self._where}: column {column!r} says how often a row was clicked, but holds {bad.item()!r}. Fix it, "
                f"or say which rows are clicks with --clicks-where {column}=VALUE. If every row is a click, drop the "
                "column."
            )
        return click == 1

    def _check_every_row_is_a_click(self) -> None:
        """See that no column looks as if it said which rows are clicks.

        Raises:
            SchemaError: one does.
        """
        known = {name for name in self._schema if name.lower() in (*ALIASES[QUERY], *ALIASES[POSITION])}
        known |= {*self._keys, *self.shown.columns()}
        free = {name: dtype for name, dtype in self._schema.items() if name not in known}
        flags = {f"flag {name}": found for name, dtype in free.items() if (found := _flag(name, dtype)) is not None}
        kinds = {f"kind {name}": _kind(name) for name, dtype in free.items() if isinstance(dtype, _TEXTS)}
        if not flags and not kinds:
            return
        with reading(self.sources):
            found = scan_sources(self.sources).select(**flags, **kinds).collect(engine="streaming").row(0, named=True)
        for name, dtype in free.items():
            is_flag = found.get(f"flag {name}")
            if not is_flag and not found.get(f"kind {name}"):
                continue
            holds, how = "says yes or no" if is_flag else "holds click and other values", f"--clicks-where {name}=VALUE"
            if not is_flag:
                advice = f"Keep the rows that are clicks with {how}."
            elif isinstance(dtype, _TEXTS) and not (dtype == pl.String and self._is_numbers(name)):
                advice = f"If it says which rows are clicks, say {how}, with what it holds there."
            else:
                advice = f"If it says which rows are clicks, say --clicks-click {name}."
            raise SchemaError(
                f"{self._where}: column {name!r} {holds} ({self._values_of(name)}) and plays no role, so that every "
                f"row would count as a click. {advice} If every row is a click, drop the column."
            )

    def _is_numbers(self, name: str) -> bool:
        """Whether a text column holds what a click column may."""
        _, faults = read_click(name, self._schema, replace(self.rules, click_counts=False, null_click=False))
        invalid = pl.any_horizontal(broken for broken, _ in faults)
        with reading(self.sources):
            return not scan_sources(self.sources).filter(invalid).select(name).head(1).collect().height


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


def _same(names: Sequence[str], schema: pl.Schema) -> tuple[str, ...]:
    """The names, where the other table has them too."""
    return tuple(names) if all(name in schema for name in names) else ()
