"""The account of rows and clicks, read, used, rejected or lost, and why; and clicks in a table of their own.

Every form of log in which clicks stand apart from impressions counts them here, and every command judges them here.
A click is joined to its impression by page and document. A click that is sent twice is no loss: its impression is
clicked.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from itertools import chain, groupby
from typing import Annotated, Any, NamedTuple, Self, cast

import msgspec
import polars as pl
from msgspec import UNSET, Meta, UnsetType

from posbias.core.errors import Coded, SchemaError, UsageError
from posbias.core.log.impressions import ReadingRules, read_click, whole_numbers
from posbias.core.roles import plain_name, resolve_roles, words_in
from posbias.core.schema import ALIASES, CLICK, DOC, POSITION, QUERY, SESSION, Roles
from posbias.io.log.scan import check_headers, reading, scan_sources
from posbias.io.log.sources import Source
from posbias.io.results.conclusions import CAUTION, STOP, Reason

Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class RawLines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Counts of the lines of raw files, or of the rows of a table of events, by how they were used."""

    lines: Count
    used: dict[str, Count]
    not_used: dict[str, Count]
    other_actions: dict[str, Count]
    positions: dict[str, Count] | UnsetType = UNSET


class ClicksAtPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clicks that name one position."""

    read: Count
    lost: Count


class Clicks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clicks that stood apart from impressions; those lost have no impression."""

    read: Count
    joined: Count
    repeated: Count
    lost: dict[str, Count]
    by_position: dict[Annotated[str, Meta(pattern=r"^[0-9]{1,2}\Z")], ClicksAtPosition]

    def __post_init__(self) -> None:
        """Find what contradicts itself."""
        if self.read != self.joined + self.repeated + sum(self.lost.values()):
            raise ValueError("clicks do not add up to those that were read")


class Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows read, rejected per reason, and used; what they were made of, by the name of the source."""

    read: Count
    used: Count
    rejected: dict[str, Count]
    clicks: Clicks | UnsetType = UNSET
    clicks_without_impression: Count | UnsetType = UNSET  # in statistics that were collected before there was `clicks`
    ubi: RawLines | UnsetType = UNSET
    raw: dict[str, RawLines] | UnsetType = UNSET

    @classmethod
    def total(cls, several: Sequence["Rows"]) -> "Rows":
        """Rows of several logs together; what only some of them count, as far as these do."""
        return msgspec.convert(_add_up([msgspec.to_builtins(rows) for rows in several]), cls)


def _add_up(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for count in counts:
        for key, rows in count.items():
            if isinstance(rows, dict):
                total[key] = _add_up([total.get(key, {}), cast("dict[str, Any]", rows)])
            else:
                total[key] = total.get(key, 0) + rows
    return total


SHARE_NAMED, SHARE_BORNE = 0.01, 0.05
"""The share of lost clicks above which a warning names them, and above which a result cannot be relied on."""

OUTCOME, AT, KEY, PAGE_ID, DOC_ID, CLICKS = (
    f"posbias_{name}" for name in ("outcome", "at", "key", "page", "doc", "clicks")
)
"""Columns of clicks: what becomes of them (`Fate`), the position that they name, what they are joined by (a page or a
visit), their page and document as text, and how many they are."""

_IS_SHOWN, _HAS_PAGE = "posbias_is_shown", "posbias_has_page"
_LARGEST_POSITION = 50  # of those that are counted by themselves
_POSITIONS = 5  # in a message, of those one after the other that lose the same share; the rest is one
_MOST = 0.5  # of the lost clicks
_EXAMPLES, _LONGEST = 2, 60
COMPARED = 1_000
"""Ids that one of a lost click is compared with."""

UNDECIDED = 0
"""The outcome of a record that depends on other records of its page or visit."""

MADE_CLICK = "posbias_clicked"
"""The column of clicks in a log whose clicks are apart from impressions."""


class Fate(Coded):
    """The fate of a click; the numbers are no outcome of other records."""

    JOINED = 100, "clicks"
    NO_PAGE = 110, "clicks without the id of a page or visit"
    NO_DOC = 111, "clicks without a document"
    OTHER_PAGE = 112, "clicks on a page that was not recorded"
    PAGE_NOT_USED = 113, "clicks on a page that is not used"
    NOT_SHOWN = 114, "clicks on a document that the page did not show"
    NOT_SHOWN_BEFORE = 115, "clicks on a document that the visit had not shown before"
    TOO_LATE = 116, "clicks longer after the impression than --click-window"
    OTHER_POSITION = 117, "clicks whose ordinal says another position than the impression"
    REPEATED = 101, "clicks that were seen before"


REASONS: Mapping[int, str] = {fate: fate.words for fate in Fate if fate != Fate.JOINED}
"""Why a click is not counted."""

_ALIKE = "Write the ids of documents alike in clicks and impressions."
_ADVICE: Mapping[str, str] = {
    Fate.NO_PAGE.words: "Record the id of the page with every click.",
    Fate.NO_DOC.words: "Record the id of the document with every click.",
    Fate.OTHER_PAGE.words: "Write the ids of pages alike in clicks and impressions, and give both of the same time.",
    Fate.PAGE_NOT_USED.words: "`rows` in the manifest says why pages, such as those without results, are not used.",
    Fate.NOT_SHOWN.words: _ALIKE,
    Fate.NOT_SHOWN_BEFORE.words: _ALIKE,
    Fate.TOO_LATE.words: "If clicks may come so late, use a longer --click-window.",
    Fate.OTHER_POSITION.words: "Check from what number the ordinals of clicks count: --position-base.",
}

WITH_EXAMPLES = {Fate.OTHER_PAGE: PAGE_ID, Fate.NOT_SHOWN: DOC_ID, Fate.NOT_SHOWN_BEFORE: DOC_ID}
"""Fates of clicks whose id, of the page or of the document, may be written otherwise than in impressions."""

_UNREADABLE = "clicks that cannot be read"


class Example(NamedTuple):
    """An id that a lost click names, beside the closest one that was shown."""

    fate: int
    named: str
    shown: str


@dataclass(frozen=True)
class JoinedClicks:
    """The clicks of a log, with some ids of lost ones."""

    counts: Clicks
    examples: tuple[Example, ...] = ()

    @classmethod
    def of(cls, clicks: pl.DataFrame, examples: Sequence[Example] = ()) -> "JoinedClicks":
        """Add up clicks with `OUTCOME`, `AT` and `CLICKS`; what is no `Fate` cannot be read."""
        no_loss, number, reasons = [int(Fate.JOINED), int(Fate.REPEATED)], pl.col(CLICKS).sum(), Counter[str]()
        fates = Counter(dict(clicks.group_by(OUTCOME).agg(number).sort(OUTCOME).iter_rows()))
        for fate, lost in fates.items():
            if lost and fate not in no_loss:
                reasons[REASONS.get(fate, _UNREADABLE)] += lost
        is_lost = ~pl.col(OUTCOME).is_in(no_loss)
        sums = (
            clicks.drop_nulls(AT).group_by(AT).agg(number, pl.col(CLICKS).filter(is_lost).sum().alias("lost")).sort(AT)
        )
        by_position = {str(at): ClicksAtPosition(*counts) for at, *counts in sums.iter_rows()}
        counts = Clicks(fates.total(), fates[Fate.JOINED], fates[Fate.REPEATED], dict(reasons), by_position)
        by_reason = [[one for one in examples if one.fate == fate][:_EXAMPLES] for fate in REASONS]
        return cls(counts, tuple(one for some in by_reason for one in some))

    def check(self, where: str) -> None:
        """Check that some clicks have an impression.

        Raises:
            SchemaError: none of them has.
        """
        clicks = self.counts
        if clicks.read and not clicks.joined:
            raise SchemaError(
                f"{where}: no click has an impression, so that nothing can be estimated. All {clicks.read:,} clicks "
                f"are lost: {_reasons(clicks, self.examples)} {_advice(clicks)}"
            )


def lost_clicks(clicks: Clicks | UnsetType, examples: Sequence[Example] = ()) -> list[Reason]:
    """What lost clicks say against a log; nothing where they are few, or where clicks need not be joined."""
    if clicks is UNSET or not clicks.read:
        return []
    lost = sum(clicks.lost.values())
    share = lost / clicks.read
    if share <= SHARE_NAMED:
        return []
    # Where an id is another one with something added, whole pages or documents lose their clicks.
    pairs = [sorted((one.named, one.shown), key=len) for one in examples]
    written_differently = any(short in long and not long.replace(short, "", 1).isdigit() for short, long in pairs)
    doubtful = share > SHARE_BORNE or written_differently
    meaning = "Do not rely on this log" if doubtful else "Some clicks are missing"
    sentence = (
        f"{meaning}: {lost:,} of {clicks.read:,} clicks ({share:.1%}) are lost, because no impression fits them: "
        f"{_reasons(clicks, examples)}{' All clicks of such ids are lost.' if written_differently else ''}"
        f"{_by_position(clicks)} {_advice(clicks)}"
    )
    figures = {"lost": lost, "clicks": clicks.read, "share": share}
    return [Reason("clicks-lost", STOP if doubtful else CAUTION, sentence, figures)]


def _reasons(clicks: Clicks, examples: Sequence[Example]) -> str:
    """Why clicks are lost, with ids that were not met."""
    reasons = ", ".join(f"{number:,} x {why}" for why, number in clicks.lost.items())
    named = ", ".join(f"{_id(one.named)} (closest that was shown: {_id(one.shown)})" for one in examples)
    return f"{reasons}." + (f" Clicks name {named}." if named else "")


def _advice(clicks: Clicks) -> str:
    """Advice on the most frequent reason."""
    shown = [int(at) for at, counts in clicks.by_position.items() if counts.read > counts.lost]
    below = {int(at): counts.lost for at, counts in clicks.by_position.items() if shown and int(at) > max(shown)}
    if sum(below.values()) > _MOST * sum(clicks.lost.values()):
        return (
            f"{sum(below.values()):,} of them name positions from {min(below)} on, below all that are joined: pages "
            "after the first are not logged, or not under the id that their clicks name (Coveo's tracker sends no "
            "search event for them). Log what each of these pages showed, too."
        )
    return _ADVICE.get(max(clicks.lost, key=lambda why: clicks.lost[why]), "Look at them in the files.")


def _by_position(clicks: Clicks) -> str:
    """The meaning of the loss, and where it is."""
    meaning = " Propensities are wrong where clicks at some positions are lost more often than at others"
    counts = sorted((int(at), of) for at, of in clicks.by_position.items() if of.read)
    runs = [[*run] for _, run in groupby(counts, lambda at_of: f"{at_of[1].lost / at_of[1].read:.0%}")]
    runs = [run for run in (*runs[:_POSITIONS], [*chain(*runs[_POSITIONS:])]) if run]
    shares = [sum(of.lost for _, of in run) / sum(of.read for _, of in run) for run in runs]
    ends = [f"{run[0][0]}{f' to {run[-1][0]}' if run[1:] else ''}" for run in runs]
    named = ", ".join(f"{share:.0%} at {at}" for share, at in zip(shares, ends, strict=True))
    return f"{meaning}; by the position that clicks name: {named}." if named else f"{meaning}."


def _id(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")


def as_text(names: Sequence[str]) -> pl.Expr:
    """An id in several columns as one text."""
    return pl.concat_str([pl.col(name).cast(pl.String) for name in names], separator=" ")


def whole_position(column: str) -> pl.Expr:
    """The position that a click names; null where it is none that is counted by itself."""
    number = pl.col(column).cast(pl.Float64, strict=False)
    is_one = (number == number.floor()) & number.is_between(0, _LARGEST_POSITION)
    return pl.when(is_one).then(number).cast(pl.Int64, strict=False).alias(AT)


def find_examples(clicks: pl.DataFrame, shown: pl.DataFrame) -> list[Example]:
    """Find ids of lost clicks, and what was shown that is most like them.

    Args:
        clicks: `OUTCOME`, `KEY`, `PAGE_ID`, `DOC_ID`, as text.
        shown: `KEY`, `PAGE_ID`, `DOC_ID`, as text, at least of what has a key of those clicks.
    """
    examples: list[Example] = []
    for fate, column in WITH_EXAMPLES.items():
        lost = clicks.filter(pl.col(OUTCOME) == fate).drop_nulls(column).unique(column, maintain_order=True)
        for key, named in lost.head(_EXAMPLES).select(KEY, column).iter_rows():
            beside = shown if column == PAGE_ID else shown.filter(pl.col(KEY) == key)
            others = beside[column].drop_nulls().unique(maintain_order=True).head(COMPARED).to_list()
            if others:
                examples.append(Example(int(fate), named, max(others, key=lambda other: likeness(named, other))))
    return examples


def likeness(named: str, other: str) -> float:
    """How alike two ids are, from 0 to 1."""
    return SequenceMatcher(None, named, other, autojunk=False).ratio()


Shown = Callable[[pl.DataFrame | None, Sequence[str]], pl.DataFrame]
"""Columns of impressions: each row once of those whose keys are among some (no nulls), or of the first ones."""


def join_table(clicks: pl.DataFrame, session: Sequence[str], doc: Sequence[str], shown: Shown) -> JoinedClicks:
    """Count the clicks of a table of their own.

    Args:
        clicks: key columns as in the impressions, `OUTCOME` (0 where impressions decide it), `AT` and `CLICKS`.
        session: key columns of the page.
        doc: key columns of the document.
        shown: the impressions.
    """
    page, keys = list(session), [*session, *doc]
    open_ones = clicks.filter(pl.col(OUTCOME) == UNDECIDED)
    clicked = shown(open_ones.select(keys).unique(), keys)
    lost = open_ones.join(clicked, on=keys, how="anti")
    pages = shown(lost.select(page).unique(), page) if lost.height else lost.select(page)
    judged = open_ones.drop(OUTCOME)
    for rows, names, mark in ((clicked, keys, _IS_SHOWN), (pages, page, _HAS_PAGE)):
        marked = rows.select(names).unique().with_columns(pl.lit(value=True).alias(mark))
        judged = judged.join(marked, on=names, how="left", maintain_order="left")
    fate = pl.when(_IS_SHOWN).then(UNDECIDED).when(_HAS_PAGE).then(int(Fate.NOT_SHOWN)).otherwise(int(Fate.OTHER_PAGE))
    judged = judged.select(fate.cast(pl.UInt8).alias(OUTCOME), pl.exclude(_IS_SHOWN, _HAS_PAGE)).select(clicks.columns)
    named = judged.filter(pl.col(OUTCOME) > 0).group_by(OUTCOME, maintain_order=True).head(_EXAMPLES)
    of_pages = named.filter(pl.col(OUTCOME) == Fate.NOT_SHOWN)
    beside = shown(of_pages.select(page).unique(), keys) if of_pages.height else clicked.clear()
    if named.height > of_pages.height:
        beside = pl.concat([beside, shown(None, keys)])
    texts = (as_text(page).alias(KEY), as_text(page).alias(PAGE_ID), as_text(doc).alias(DOC_ID))
    examples = find_examples(named.select(OUTCOME, *texts), beside.select(texts))
    counts = pl.concat([clicks.filter(pl.col(OUTCOME) > 0), judged]).select(
        pl.when(pl.col(OUTCOME) == UNDECIDED).then(int(Fate.JOINED)).otherwise(OUTCOME).alias(OUTCOME), AT, CLICKS
    )
    repeated = int(judged.filter(pl.col(OUTCOME) == UNDECIDED)[CLICKS].sum()) - clicked.height
    again = {OUTCOME: [int(Fate.JOINED), int(Fate.REPEATED)], AT: [None, None], CLICKS: [-repeated, repeated]}
    return JoinedClicks.of(pl.concat([counts, pl.DataFrame(again, schema=counts.schema)]), examples)


READ, NAMED, CLICKED_IDS, ELSEWHERE, LOST_ID, BESIDE = "read", "named", "clicked", "elsewhere", "lost_id", "beside"
"""Clicks that pages list: all, those with an id, clicked documents, clicks on documents that the page does not list;
the id of one of the last, and what its page lists."""

LONGEST_PAGE = 100
"""Documents of a page that such an id is compared with."""


def join_lists(files: Sequence[pl.DataFrame]) -> JoinedClicks:
    """Count the clicks that pages list, from a row of the columns above for each file."""
    rows = pl.concat(files)
    read, named, joined, elsewhere = rows.select(READ, NAMED, CLICKED_IDS, ELSEWHERE).sum().row(0)
    fates = {
        Fate.JOINED: joined,
        Fate.REPEATED: named - joined - elsewhere,
        Fate.NO_DOC: read - named,
        Fate.NOT_SHOWN: elsewhere,
    }
    clicks = pl.DataFrame({OUTCOME: map(int, fates), CLICKS: fates.values()}).with_columns(pl.lit(None).alias(AT))
    lost = rows.filter(pl.col(BESIDE).list.len() > 0)
    key, fate = pl.int_range(pl.len()).cast(pl.String).alias(KEY), pl.lit(int(Fate.NOT_SHOWN)).alias(OUTCOME)
    named_ids = lost.select(fate, key, key.alias(PAGE_ID), pl.col(LOST_ID).alias(DOC_ID))
    shown = lost.select(key, key.alias(PAGE_ID), pl.col(BESIDE).alias(DOC_ID)).explode(DOC_ID)
    return JoinedClicks.of(clicks, find_examples(named_ids, shown))


FLAGS_OF_CLICKS = {SESSION: "--clicks-session", DOC: "--clicks-doc", CLICK: "--clicks-click"}
"""The options that name the columns of the clicks' table."""

_TEXTS = (pl.String, pl.Categorical, pl.Enum)
_YES, _NO = ("1", "1.0", "true", "t", "yes", "y"), ("0", "0.0", "false", "f", "no", "n")
_CLICK_WORDS = ("click", "clicks", "clicked")
_YES_OR_NO = "says yes or no"
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


def holds_any(declared: Sequence[ClickRows], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Whether a row is one of those that are declared."""
    return pl.any_horizontal(rows.holds(schema[rows.column]) for rows in declared)


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
        no_page, no_doc = (pl.any_horizontal(pl.col(of).is_null()) for of in (self._roles.session, self._roles.doc))
        outcome = pl.when(no_page).then(int(Fate.NO_PAGE)).when(no_doc).then(int(Fate.NO_DOC)).otherwise(UNDECIDED)
        # An id that the type of the impressions' column cannot hold becomes null, and has no impression.
        keys = (pl.col(their).cast(types[our], strict=False).alias(our) for our, their in pairs)
        known = {plain_name(name) for name in ALIASES[POSITION]}
        usual = [name for name, dtype in self._schema.items() if plain_name(name) in known and not dtype.is_nested()]
        at = next((name for name in (self.shown.position, *usual) if name in usual and name not in self._keys), None)
        position = pl.lit(None, pl.Int64).alias(AT) if at is None else whole_position(at)
        clicks = scan_sources(self.sources).filter(self._was_clicked)
        return clicks.select(*keys, outcome.cast(pl.UInt8).alias(OUTCOME), position)

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
            session=named.session or (self.shown.session if {*self._schema}.issuperset(self.shown.session) else ()),
            doc=named.doc or (self.shown.doc if {*self._schema}.issuperset(self.shown.doc) else ()),
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
        """Which rows are clicks: all, unless a column says otherwise.

        Raises:
            SchemaError: there is no column that is declared to say so, or no such row; or a click column says something
                else than how often.
        """
        declared, click = self.request.where, self._roles.click
        for rows in declared:
            check_plain(self._where, self._schema, rows.column, "--clicks-where")
        holds = [rows.holds(self._schema[rows.column]) for rows in declared]
        with reading(self.sources):
            counts = [pl.len().alias("posbias_rows"), *(there.sum().alias(str(n)) for n, there in enumerate(holds))]
            numbers = scan_sources(self.sources).select(counts).collect(engine="streaming") if holds else pl.DataFrame()
        for n, rows in enumerate(declared):
            if numbers["posbias_rows"].item() and not numbers[str(n)].item():
                raise SchemaError(
                    f"{self._where}: no row has {rows} (--clicks-where). {rows.column!r} holds: "
                    f"{self._values_of(rows.column)}."
                )
        of_kind = pl.any_horizontal(holds) if holds else pl.lit(value=True)
        if click is None:
            if not declared:
                self._check_every_row_is_a_click()
            return of_kind
        counting = replace(self.rules, click_counts=True)
        bad = self._first_invalid(click, counting, of_kind)
        if bad.height:
            raise SchemaError(
                f"{self._where}: column {click!r} says how often a row was clicked, but holds {bad.item()!r}. Fix it, "
                f"or say which rows are clicks with --clicks-where {click}=VALUE. If every row is a click, drop the "
                "column."
            )
        return of_kind & (read_click(click, self._schema, counting)[0] == 1)

    def _values_of(self, column: str) -> str:
        """The most frequent values of a column."""
        with reading(self.sources):
            counts = scan_sources(self.sources).group_by(pl.col(column).cast(pl.String)).len()
            most = counts.sort("len", column, descending=[True, False]).head(_SHOWN + 1).collect(engine="streaming")
        values = most[column].to_list()
        return ", ".join(map(str, values[:_SHOWN])) + (", ..." if len(values) > _SHOWN else "")

    def _check_every_row_is_a_click(self) -> None:
        """Raise SchemaError if a column seems to mark which rows are clicks.

        Raises:
            SchemaError: one does.
        """
        known = {name for name in self._schema if name.lower() in (*ALIASES[QUERY], *ALIASES[POSITION])}
        known |= {*self._keys, *self.shown.columns()}
        free = {name: dtype for name, dtype in self._schema.items() if name not in known}
        marks = dict[tuple[str, str], pl.Expr]()  # by the column, and what it seems to say
        for name, dtype in free.items():
            if (flag := _flag(name, dtype)) is not None:
                marks[name, _YES_OR_NO] = flag
            if isinstance(dtype, _TEXTS):  # some rows say click, and others do not
                clicks = pl.col(name).cast(pl.String).str.to_lowercase().is_in(_CLICK_WORDS).fill_null(value=False)
                is_kind = clicks.any() & ~clicks.all() & (clicks.mean() >= _FEWEST_CLICKS)
                marks[name, "holds click and other values"] = is_kind
            if _KIND_OF_EVENT.fullmatch(" ".join(words_in(name))) and (dtype.is_numeric() or dtype == pl.String):
                numbers = whole_numbers(name, dtype)  # a few of them, and nothing else
                is_code = numbers.is_not_null().all() & numbers.n_unique().is_between(2, _MOST_CODES)
                marks[name, "seems to hold codes of events"] = is_code
        with reading(self.sources):
            named = [mark.alias(f"{number}") for number, mark in enumerate(marks.values())]
            seen = scan_sources(self.sources).select(named).collect(engine="streaming").row(0) if marks else ()
        as_numbers = replace(self.rules, click_counts=False, null_click=False)
        for name, holds in (mark for mark, is_so in zip(marks, seen, strict=True) if is_so):
            how, dtype = f"--clicks-where {name}=VALUE", free[name]
            advice = f"Keep the rows that are clicks with {how}."
            if holds == _YES_OR_NO:
                is_text = isinstance(dtype, _TEXTS) and dtype != pl.String
                is_text |= dtype == pl.String and self._first_invalid(name, as_numbers, pl.lit(value=True)).height > 0
                how = f"{how} with the value that it has there" if is_text else f"--clicks-click {name}"
                advice = f"If it says which rows are clicks, use {how}."
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
