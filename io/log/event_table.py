"""A table whose rows are impressions and clicks, as a log of one row per impression.

A click is joined to its impression by page and document. Where rows have no page, but a visit and a time, a page is
what was shown in a visit, for a query, at one time, and a click belongs to the last impression of that document before
it. What clients send twice is counted once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import Roles
from posbias.core.wording import Coded
from posbias.io.log import lost_clicks
from posbias.io.log.click_table import ClickRows, check_plain
from posbias.io.log.headers import check_headers
from posbias.io.log.lost_clicks import CLICKS, OUTCOME, Fate, as_text, whole_position
from posbias.io.log.moments import moment
from posbias.io.log.raw import (
    ACTION,
    CLICKED,
    CLICKED_EVENT,
    KIND,
    OF_FILE,
    OF_ROW,
    OTHER,
    RECORD,
    SHOWN,
    UNDECIDED,
    Outcomes,
    RawReader,
    Resolved,
    actions_in_words,
    clicks_in_visits,
    clicks_on_pages,
    first_clicks,
    first_that_holds,
    resolved,
    with_outcome,
)
from posbias.io.log.rows import RawLines
from posbias.io.log.scan import FILE, ROW, scan_sources, schema_of
from posbias.io.log.sources import Source

EVENTS = "events"
"""What a table of events is called in the manifest."""

SHOWN_FLAG, CLICKED_FLAG, TIME_FLAG = "--impression-where", "--click-where", "--page-time"
_MICROSECONDS = 10**6
_KEY, _WHEN = "posbias_key", "posbias_when"


class _Outcome(Coded):
    """What becomes of a row."""

    IMPRESSION = 1, "impressions"

    OTHER_EVENT = 10, "rows of other events"
    BOTH = 11, f"rows that are impressions ({SHOWN_FLAG}) and clicks ({CLICKED_FLAG}) at once"
    NO_TIME = 12, f"rows without a time that can be read ({TIME_FLAG})"
    REPEATED_IMPRESSION = 13, "impressions that were seen before"


_OUTCOMES = Outcomes(
    _Outcome,
    fatal=(_Outcome.BOTH, _Outcome.NO_TIME),
    other_action=_Outcome.OTHER_EVENT,
)


@dataclass(frozen=True)
class EventsRequest:
    """What the user said about a table of events."""

    shown: tuple[ClickRows, ...]  # which rows are impressions: any of these
    clicked: tuple[ClickRows, ...]  # which rows are clicks, likewise
    time: str | None = None  # the column of the time, where a session is a visit and a page what it shows at one time
    window: int = 1800  # the most seconds between an impression and its click, where they are joined by time

    def check(self, sources: Sequence[Source]) -> None:
        """See that all files have these columns, and that they hold plain values.

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
    found: Roles  # the column of each role; the session is the visit, where pages are told by their time
    paths: tuple[str, ...]  # of its files, for the places of faulty rows
    as_text: tuple[str, ...] = ()  # columns of NDJSON that are read as text
    name = EVENTS
    title = "events"
    unit = "rows"
    of_lines = False
    outcomes = _OUTCOMES
    key = _KEY

    @property
    def page(self) -> tuple[str, ...]:
        """The columns that tell pages apart."""
        if self.request.time is None:
            return self.found.session
        return tuple(dict.fromkeys([*self.found.session, *self.found.query, self.request.time]))

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """One record per row, with the columns of roles as they are."""
        schema, time = schema_of(source), self.request.time
        rows = scan_sources([source], self.as_text)
        schema = rows.collect_schema()
        shown, clicked = self.is_shown(schema), self._fits(self.request.clicked, schema)
        session, doc = list(self.found.session), list(self.found.doc)
        at = pl.lit(None, pl.Int64) if time is None else moment(time, schema[time])
        kind = pl.when(shown).then(SHOWN).when(clicked).then(CLICKED).otherwise(OTHER)
        wheres = list(dict.fromkeys(rows.column for rows in (*self.request.shown, *self.request.clicked)))
        read = rows.with_row_index(ROW, offset=1).select(
            *(name for name in self._columns if name in schema),
            pl.lit(number, pl.UInt32).alias(FILE),
            ROW,
            kind.cast(pl.UInt8).alias(KIND),
            (shown & clicked).alias("posbias_both"),
            pl.coalesce(pl.col(name).cast(pl.String) for name in wheres).alias(ACTION),
            at.alias(_WHEN),
            (pl.col(session[0]) if len(session) == 1 else pl.struct(session)).alias(_KEY),
        )
        is_click = pl.col(KIND) == CLICKED
        outcome = first_that_holds(
            [
                (pl.col("posbias_both"), _Outcome.BOTH),
                (pl.col(KIND) == OTHER, _Outcome.OTHER_EVENT),
                (pl.col(_WHEN).is_null() & (time is not None), _Outcome.NO_TIME),
                (is_click & pl.any_horizontal(pl.col(name).is_null() for name in session), Fate.NO_PAGE),
                (is_click & pl.any_horizontal(pl.col(name).is_null() for name in doc), Fate.NO_DOC),
            ]
        )
        return read.with_columns(outcome.alias(OUTCOME)).drop("posbias_both")

    def resolve(self, records: pl.DataFrame) -> Resolved:
        """The impressions of some pages, and which of them were clicked."""
        records = records.sort(FILE, ROW).with_row_index(RECORD)
        undecided = records.filter(pl.col(OUTCOME) == UNDECIDED)
        shown, of_shown = self._shown(undecided.filter(pl.col(KIND) == SHOWN))
        clicks = undecided.filter(pl.col(KIND) == CLICKED)
        on_page = list(dict.fromkeys([*self.page, *self.found.doc]))
        if self.request.time is None:
            known = shown.select(self.page).unique()
            found, of_lost = clicks_on_pages(clicks, shown, known, list(self.page), on_page)
        else:
            by = list(dict.fromkeys([*self.found.session, *self.found.doc]))
            of_page = [name for name in self.page if name not in by]
            window = self.request.window * _MICROSECONDS
            found, of_lost = clicks_in_visits(clicks, shown.drop_nulls(on_page), by, _WHEN, of_page, window)
        clicked, of_clicks = first_clicks(found, on_page)
        marked = clicked.with_columns(pl.lit(1, pl.Int8).alias(CLICKED_EVENT))
        rows = shown.join(marked, on=on_page, how="left", maintain_order="left")
        rows = rows.select(
            *self._columns,
            pl.col(CLICKED_EVENT).fill_null(0),
            pl.Series(self.paths, dtype=pl.String).gather(rows[FILE]).alias(OF_FILE),
            pl.col(ROW).alias(OF_ROW),
        )
        page = as_text(self.found.session)
        names = {lost_clicks.KEY: page, lost_clicks.PAGE: page, lost_clicks.DOC: as_text(self.found.doc)}
        return resolved(
            records,
            [of_shown, of_lost, of_clicks],
            rows,
            shown,
            [text.alias(name) for name, text in names.items()],
            pl.lit(None, pl.Int64) if self.found.position is None else whole_position(self.found.position),
            {SHOWN_FLAG: records.filter(pl.col(KIND) == SHOWN).height},
        )

    def judge(self, where: str, rows: int, counts: Counter[str], account: RawLines) -> None:
        """See that there are impressions and clicks.

        Raises:
            SchemaError: there are none of one kind.
        """
        del rows
        n_shown, n_clicked = counts[SHOWN_FLAG], counts[CLICKS]
        of_kinds = ((SHOWN_FLAG, self.request.shown, n_shown), (CLICKED_FLAG, self.request.clicked, n_clicked))
        for flag, wanted, number in of_kinds:
            if account.lines and not number:
                held = actions_in_words(account)
                others = f" The other rows hold: {held}." if held else " There are no other rows than these."
                kind = "impressions" if flag == CLICKED_FLAG else "clicks"
                raise SchemaError(
                    f"{where}: no row has {' or '.join(map(str, wanted))} ({flag}). {n_shown:,} rows are "
                    f"impressions and {n_clicked:,} are clicks.{others if held else f' All are {kind}.'}"
                )

    @property
    def _columns(self) -> list[str]:
        names = [*self.found.columns(), *([self.request.time] if self.request.time else [])]
        return [name for name in dict.fromkeys(names) if name != CLICKED_EVENT]

    def is_shown(self, schema: Mapping[str, pl.DataType]) -> pl.Expr:
        """Which rows are impressions."""
        return self._fits(self.request.shown, schema)

    def _fits(self, wanted: Sequence[ClickRows], schema: Mapping[str, pl.DataType]) -> pl.Expr:
        return pl.any_horizontal(rows.holds(schema[rows.column]) for rows in wanted)

    def _shown(self, impressions: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Impressions without exact repeats, and what became of each. Rows without a key are for the log to judge."""
        position = [] if self.found.position is None else [self.found.position]
        key = list(dict.fromkeys([*self.page, *self.found.query, *self.found.doc, *position]))
        has_key = pl.all_horizontal(pl.col(name).is_not_null() for name in key)
        first = impressions.filter(has_key).unique(key, keep="first", maintain_order=True)
        shown = pl.concat([first, impressions.filter(~has_key)]).sort(RECORD)
        repeated = impressions.join(shown, on=RECORD, how="anti")
        outcomes = [
            with_outcome(shown, _Outcome.IMPRESSION),
            with_outcome(repeated, _Outcome.REPEATED_IMPRESSION),
        ]
        return shown, pl.concat(outcomes)
