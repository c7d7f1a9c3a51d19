"""Counts of rows and clicks: read, used, rejected or lost, with reasons; and the join of a second table of clicks.

A click is joined to its impression by page and document. A repeated click is not lost: its impression is clicked.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import cached_property
from itertools import chain, compress, groupby
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
    """Lines of raw files, or rows of a table of events, by use and by reason."""

    lines: Count
    used: dict[str, Count]
    not_used: dict[str, Count]
    other_actions: dict[str, Count]
    positions: dict[str, Count] | UnsetType = UNSET


class ClicksAtPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clicks that state one position."""

    read: Count
    lost: Count


class Clicks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clicks of a second table, of events or of lists; lost ones, by reason, have no impression."""

    read: Count
    joined: Count
    repeated: Count
    lost: dict[str, Count]
    by_position: dict[Annotated[str, Meta(pattern=r"^[0-9]{1,2}\Z")], ClicksAtPosition]

    def __post_init__(self) -> None:
        """Validate."""
        if self.read != self.joined + self.repeated + sum(self.lost.values()):
            raise ValueError("clicks do not add up to those that were read")


class Rows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of a log: read, used, and rejected by reason; with the account of its raw files by name of the source."""

    read: Count
    used: Count
    rejected: dict[str, Count]
    clicks: Clicks | UnsetType = UNSET
    clicks_without_impression: Count | UnsetType = UNSET  # in statistics that were collected before there was `clicks`
    ubi: RawLines | UnsetType = UNSET
    raw: dict[str, RawLines] | UnsetType = UNSET

    @classmethod
    def total(cls, several: Sequence["Rows"]) -> "Rows":
        """Add up the rows of several logs; optional counts over the logs that have them."""
        return msgspec.convert(_add_up([msgspec.to_builtins(rows) for rows in several]), cls)


def _add_up(counts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add up nested dictionaries of numbers, key by key."""
    total: dict[str, Any] = {}
    for key, rows in chain.from_iterable(count.items() for count in counts):
        if isinstance(rows, dict):
            total[key] = _add_up([total.get(key, {}), cast("dict[str, Any]", rows)])
        else:
            total[key] = total.get(key, 0) + rows
    return total


CAUTION_SHARE, STOP_SHARE = 0.01, 0.05
"""Shares of lost clicks above which a log gets a caution, and above which its result cannot be relied on."""

OUTCOME, STATED_POSITION, KEY, PAGE_ID, DOC_ID, CLICKS = (
    f"posbias_{name}" for name in ("outcome", "at", "key", "page", "doc", "clicks")
)
"""Columns of clicks: `ClickOutcome`, stated position, key of the join (page or visit), page and document as text, and
number of clicks."""

_IS_SHOWN, _HAS_PAGE = "posbias_is_shown", "posbias_has_page"
_LARGEST_POSITION = 50  # larger ones are not counted one by one
_MOST_RUNS = 5  # of positions with the same share of lost clicks, in a message; the last one includes all others
_MOST = 0.5  # of the lost clicks
_MOST_EXAMPLES, _LONGEST_ID = 2, 60
MOST_COMPARED = 1_000
"""Number of ids in impressions that the id of a lost click is compared with."""

UNDECIDED = 0
"""The outcome of a click that depends on the impressions of its page or visit."""

JOINED_CLICK = "posbias_clicked"
"""The column of clicks, 0 or 1, that is joined to impressions."""


class ClickOutcome(Coded):
    """What became of a click. Codes do not overlap with those of rows and pages."""

    JOINED = 100, "clicks"
    NO_PAGE = 110, "clicks without the id of a page or visit"
    NO_DOC = 111, "clicks without a document"
    OTHER_PAGE = 112, "clicks on a page that was not recorded"
    PAGE_NOT_USED = 113, "clicks on a page that is not used"
    NOT_SHOWN = 114, "clicks on a document that the page did not show"
    NOT_SHOWN_BEFORE = 115, "clicks on a document that the visit had not shown before"
    BEYOND_LIST = 118, "clicks on a rank beyond the list of the page"
    TOO_LATE = 116, "clicks longer after the impression than --click-window"
    OTHER_POSITION = 117, "clicks whose ordinal says another position than the impression"
    REPEATED = 101, "clicks that were seen before"


LOSS_REASONS: Mapping[int, str] = {fate: fate.words for fate in ClickOutcome if fate != ClickOutcome.JOINED}
"""Reasons by outcome; repeated clicks have one, though they are not lost."""

_ALIKE = "Write the ids of documents alike in clicks and impressions."
_ADVICE: Mapping[str, str] = {
    ClickOutcome.NO_PAGE.words: "Record the id of the page with every click.",
    ClickOutcome.NO_DOC.words: "Record the id of the document with every click.",
    ClickOutcome.OTHER_PAGE.words: (
        "Write the ids of pages alike in clicks and impressions, and give both of the same time."
    ),
    ClickOutcome.PAGE_NOT_USED.words: (
        "`rows` in the manifest says why pages, such as those without results, are not used."
    ),
    ClickOutcome.NOT_SHOWN.words: _ALIKE,
    ClickOutcome.NOT_SHOWN_BEFORE.words: _ALIKE,
    ClickOutcome.BEYOND_LIST.words: (
        "If ranks count on from page to page, count them anew on each. If lists were cut off, leave these ranks out: "
        "no position that is there loses a click."
    ),
    ClickOutcome.TOO_LATE.words: "If clicks may come so late, use a longer --click-window.",
    ClickOutcome.OTHER_POSITION.words: "Check from what number the ordinals of clicks count: --position-base.",
}

COMPARED_IDS = {ClickOutcome.OTHER_PAGE: PAGE_ID, ClickOutcome.NOT_SHOWN: DOC_ID, ClickOutcome.NOT_SHOWN_BEFORE: DOC_ID}
"""Outcomes of clicks whose id, of the page or the document, may be spelled differently in impressions."""

_UNREADABLE = "clicks that cannot be read"


class Example(NamedTuple):
    """The id of a lost click, and the most similar id of an impression."""

    outcome: int
    clicked: str
    shown: str


@dataclass(frozen=True)
class JoinedClicks:
    """Counts of the clicks of a log, with examples of lost ones."""

    counts: Clicks
    examples: tuple[Example, ...] = ()

    @classmethod
    def count(cls, clicks: pl.DataFrame, examples: Sequence[Example] = ()) -> "JoinedClicks":
        """Add up `CLICKS` by `OUTCOME` and `STATED_POSITION`; an outcome without a reason means an unreadable click."""
        joined, repeated, number = int(ClickOutcome.JOINED), int(ClickOutcome.REPEATED), pl.col(CLICKS).sum()
        outcomes = Counter(dict(clicks.group_by(OUTCOME).agg(number).sort(OUTCOME).iter_rows()))
        reasons = Counter[str]()
        for outcome, lost in outcomes.items():
            if lost and outcome not in {joined, repeated}:
                reasons[LOSS_REASONS.get(outcome, _UNREADABLE)] += lost
        lost = pl.col(CLICKS).filter(~pl.col(OUTCOME).is_in([joined, repeated])).sum().alias("lost")
        stated = clicks.drop_nulls(STATED_POSITION)
        sums = stated.group_by(STATED_POSITION).agg(number, lost).sort(STATED_POSITION)
        by_position = {str(position): ClicksAtPosition(*counts) for position, *counts in sums.iter_rows()}
        counts = Clicks(outcomes.total(), outcomes[joined], outcomes[repeated], dict(reasons), by_position)
        by_reason = ([one for one in examples if one.outcome == outcome][:_MOST_EXAMPLES] for outcome in LOSS_REASONS)
        return cls(counts, tuple(chain.from_iterable(by_reason)))

    def check(self, where: str, otherwise: str = "") -> None:
        """Raise SchemaError, with another way to read the log, if there are clicks, and none has an impression."""
        clicks = self.counts
        if clicks.read and not clicks.joined:
            raise SchemaError(
                f"{where}: no click has an impression, so that nothing can be estimated. All {clicks.read:,} clicks "
                f"are lost: {_reasons(clicks, self.examples)} {_advice(clicks)}{otherwise}"
            )


def lost_clicks(clicks: Clicks | UnsetType, examples: Sequence[Example] = ()) -> list[Reason]:
    """Return a caution about lost clicks, or a reason to stop; none if few are lost or clicks are not joined."""
    if clicks is UNSET or not clicks.read:
        return []
    lost = sum(clicks.lost.values())
    share = lost / clicks.read
    if share <= CAUTION_SHARE:
        return []
    # If an id contains another one, whole pages or documents lose their clicks.
    pairs = [sorted((one.clicked, one.shown), key=len) for one in examples]
    written_differently = any(short in long and not long.replace(short, "", 1).isdigit() for short, long in pairs)
    doubtful = share > STOP_SHARE or written_differently
    meaning = "Do not rely on this log" if doubtful else "Some clicks are missing"
    sentence = (
        f"{meaning}: {lost:,} of {clicks.read:,} clicks ({share:.1%}) are lost, because no impression fits them: "
        f"{_reasons(clicks, examples)}{' All clicks of such ids are lost.' if written_differently else ''}"
        f"{_by_position(clicks)} {_advice(clicks)}"
    )
    figures = {"lost": lost, "clicks": clicks.read, "share": share}
    return [Reason("clicks-lost", STOP if doubtful else CAUTION, sentence, figures)]


def _reasons(clicks: Clicks, examples: Sequence[Example]) -> str:
    """List the reasons of lost clicks with their counts, and examples of ids."""
    reasons = ", ".join(f"{number:,} x {why}" for why, number in clicks.lost.items())
    ids = ", ".join(f"{_quoted(one.clicked)} (closest that was shown: {_quoted(one.shown)})" for one in examples)
    return f"{reasons}." + (f" Clicks name {ids}." if ids else "")


def _advice(clicks: Clicks) -> str:
    """Advise on lost clicks below all joined ones, if these are most; else on the most frequent reason."""
    positions = {int(position): counts for position, counts in clicks.by_position.items()}
    joined = [position for position, counts in positions.items() if counts.read > counts.lost]
    below = {position: counts.lost for position, counts in positions.items() if joined and position > max(joined)}
    if sum(below.values()) > _MOST * sum(clicks.lost.values()):
        return (
            f"{sum(below.values()):,} of them name positions from {min(below)} on, below all that are joined: pages "
            "after the first are not logged, or not under the id that their clicks name (Coveo's tracker sends no "
            "search event for them). Log what each of these pages showed, too."
        )
    return _ADVICE.get(max(clicks.lost, key=lambda why: clicks.lost[why]), "Look at them in the files.")


def _by_position(clicks: Clicks) -> str:
    """Return the effect of the loss, with the share of lost clicks by stated position, in runs of equal shares."""
    meaning = " Propensities are wrong where clicks at some positions are lost more often than at others"
    counts = sorted((int(position), of) for position, of in clicks.by_position.items() if of.read)
    runs = [[*run] for _, run in groupby(counts, lambda entry: f"{entry[1].lost / entry[1].read:.0%}")]
    runs = [run for run in (*runs[:_MOST_RUNS], [*chain(*runs[_MOST_RUNS:])]) if run]
    shares = [sum(of.lost for _, of in run) / sum(of.read for _, of in run) for run in runs]
    ends = [f"{run[0][0]}{f' to {run[-1][0]}' if run[1:] else ''}" for run in runs]
    by_run = ", ".join(f"{share:.0%} at {end}" for share, end in zip(shares, ends, strict=True))
    return f"{meaning}; by the position that clicks name: {by_run}." if by_run else f"{meaning}."


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_ID else text[:_LONGEST_ID] + "...")


def _id_text(names: Sequence[str]) -> pl.Expr:
    """Join the columns of an id to one text."""
    return pl.concat_str([pl.col(name).cast(pl.String) for name in names], separator=" ")


def stated_position(column: str) -> pl.Expr:
    """Cast the position that a click states to Int64; null unless it is a whole number from 0 to 50."""
    number = pl.col(column).cast(pl.Float64, strict=False)
    is_counted = (number == number.floor()) & number.is_between(0, _LARGEST_POSITION)
    return pl.when(is_counted).then(number).cast(pl.Int64, strict=False).alias(STATED_POSITION)


def find_examples(clicks: pl.DataFrame, shown: pl.DataFrame) -> list[Example]:
    """Pair up to two distinct ids of lost clicks per outcome with the most similar ids of impressions.

    Args:
        clicks: `OUTCOME`, `KEY`, `PAGE_ID`, `DOC_ID`, as text.
        shown: `KEY`, `PAGE_ID`, `DOC_ID` of impressions, as text; all those with a key of the clicks.
    """
    examples: list[Example] = []
    for outcome, column in COMPARED_IDS.items():
        lost = clicks.filter(pl.col(OUTCOME) == outcome).drop_nulls(column).unique(column, maintain_order=True)
        for key, clicked in lost.head(_MOST_EXAMPLES).select(KEY, column).iter_rows():
            candidates = shown if column == PAGE_ID else shown.filter(pl.col(KEY) == key)
            others = candidates[column].drop_nulls().unique(maintain_order=True).head(MOST_COMPARED).to_list()
            if others:
                closest = max(others, key=lambda other: similarity(clicked, other))
                examples.append(Example(int(outcome), clicked, closest))
    return examples


def similarity(one: str, other: str) -> float:
    """Compute the similarity of two ids, 0 to 1, as `difflib` does."""
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


ImpressionLookup = Callable[[pl.DataFrame | None, Sequence[str]], pl.DataFrame]
"""Look columns of impressions up: distinct rows with any of the keys (no nulls); for None, of the first impressions."""


def join_table(
    clicks: pl.DataFrame, session: Sequence[str], doc: Sequence[str], look_up: ImpressionLookup
) -> JoinedClicks:
    """Count the clicks of a second table by outcome.

    Args:
        clicks: key columns, `OUTCOME` (0 where impressions decide it), `STATED_POSITION` and `CLICKS`.
        session: key columns of the page.
        doc: key columns of the document.
        look_up: returns impressions by their keys.
    """
    joined, not_shown = int(ClickOutcome.JOINED), int(ClickOutcome.NOT_SHOWN)
    page, keys = list(session), [*session, *doc]
    undecided = clicks.filter(pl.col(OUTCOME) == UNDECIDED)
    clicked = look_up(undecided.select(keys).unique(), keys)
    lost = undecided.join(clicked, on=keys, how="anti")
    pages = look_up(lost.select(page).unique(), page) if lost.height else lost.select(page)
    decided = undecided.drop(OUTCOME)
    for rows, names, mark in ((clicked, keys, _IS_SHOWN), (pages, page, _HAS_PAGE)):
        marked = rows.select(names).unique().with_columns(pl.lit(value=True).alias(mark))
        decided = decided.join(marked, on=names, how="left", maintain_order="left")
    outcome = pl.when(_IS_SHOWN).then(joined).when(_HAS_PAGE).then(not_shown).otherwise(int(ClickOutcome.OTHER_PAGE))
    decided = decided.select(outcome.cast(pl.UInt8).alias(OUTCOME), pl.exclude(_IS_SHOWN, _HAS_PAGE))
    decided = decided.select(clicks.columns)
    lost = decided.filter(pl.col(OUTCOME) != joined).group_by(OUTCOME, maintain_order=True).head(_MOST_EXAMPLES)
    on_pages = lost.filter(pl.col(OUTCOME) == not_shown)
    shown = look_up(on_pages.select(page).unique(), keys) if on_pages.height else clicked.clear()
    if lost.height > on_pages.height:
        shown = pl.concat([shown, look_up(None, keys)])
    texts = (_id_text(page).alias(KEY), _id_text(page).alias(PAGE_ID), _id_text(doc).alias(DOC_ID))
    examples = find_examples(lost.select(OUTCOME, *texts), shown.select(texts))
    repeated = int(decided.filter(pl.col(OUTCOME) == joined)[CLICKS].sum()) - clicked.height
    counts = pl.concat([clicks.filter(pl.col(OUTCOME) != UNDECIDED), decided]).select(OUTCOME, STATED_POSITION, CLICKS)
    correction = {
        OUTCOME: [joined, int(ClickOutcome.REPEATED)],
        STATED_POSITION: [None, None],
        CLICKS: [-repeated, repeated],
    }
    return JoinedClicks.count(pl.concat([counts, pl.DataFrame(correction, schema=counts.schema)]), examples)


ENTRIES, WITH_ID, CLICKED_DOCS, NOT_LISTED = "entries", "with_id", "clicked_docs", "not_listed"
"""Numbers of listed clicks of a file: all, with an id, distinct clicked documents of pages, on documents not listed."""

SEVERAL_CLICKS, BOTH_CLICKED = "several_clicks", "both_clicked"
"""Numbers of pages with clicks beyond their list: and with any other click; and with one within the list."""

LOST_ID, LISTED_IDS = "lost_id", "listed_ids"
"""The first clicked document that its page does not list, and the documents of that page."""

LONGEST_PAGE = 100
"""Number of `LISTED_IDS` that `LOST_ID` is compared with."""


def join_lists(files: Sequence[pl.DataFrame], *, by_rank: bool) -> JoinedClicks:
    """Count the listed clicks by outcome.

    Ranks beyond the lists are no lost clicks if lists were cut off: then pages are clicked within and beyond theirs. Of
    ranks that count on from page to page, those of a page are all within or all beyond its list.

    Args:
        files: a row for each file, of the columns `ENTRIES` to `LISTED_IDS`.
        by_rank: whether pages list ranks, not documents.
    """
    rows = pl.concat(files)
    sums = rows.select(ENTRIES, WITH_ID, CLICKED_DOCS, NOT_LISTED, SEVERAL_CLICKS, BOTH_CLICKED).sum().row(0)
    entries, with_id, joined, not_listed, several, both = sums
    are_cut_off = by_rank and both > _CUT_OFF * several
    outcomes = {
        ClickOutcome.JOINED: joined,
        ClickOutcome.REPEATED: with_id - joined - not_listed,
        ClickOutcome.NO_DOC: entries - with_id,
        ClickOutcome.BEYOND_LIST if by_rank else ClickOutcome.NOT_SHOWN: 0 if are_cut_off else not_listed,
    }
    clicks = pl.DataFrame({OUTCOME: map(int, outcomes), CLICKS: outcomes.values()})
    lost = rows.filter(pl.col(LISTED_IDS).list.len() > 0, not by_rank)
    key, outcome = pl.int_range(pl.len()).cast(pl.String).alias(KEY), pl.lit(int(ClickOutcome.NOT_SHOWN)).alias(OUTCOME)
    lost_ids = lost.select(outcome, key, key.alias(PAGE_ID), pl.col(LOST_ID).alias(DOC_ID))
    shown = lost.select(key, key.alias(PAGE_ID), pl.col(LISTED_IDS).alias(DOC_ID)).explode(DOC_ID)
    return JoinedClicks.count(clicks.with_columns(pl.lit(None).alias(STATED_POSITION)), find_examples(lost_ids, shown))


_FLAGS = {SESSION: "--clicks-session", DOC: "--clicks-doc", CLICK: "--clicks-click"}
"""Options that name columns of the table of clicks, by role."""

_TEXTS = (pl.String, pl.Categorical, pl.Enum)
_YES, _NO = ("1", "1.0", "true", "t", "yes", "y"), ("0", "0.0", "false", "f", "no", "n")
_CLICK_WORDS = ("click", "clicks", "clicked")
_YES_OR_NO = "says yes or no"
_EVENT_TYPE_NAME = re.compile("(.* )?(event|action|interaction) ?(type|kind|code|id)?|type|kind")
_MOST_CODES = 10  # distinct integers in a column of event types
_FEWEST_CLICKS = 1e-3  # share of rows with the word `click` in a column of event types; prose has fewer
_MOST_VALUES = 10  # in messages
_CUT_OFF = 0.1  # least share, of pages with several clicks and one beyond the list, that are also clicked within it


@dataclass(frozen=True)
class RowCondition:
    """A condition on rows, COLUMN=VALUE, that selects clicks or impressions."""

    column: str
    value: str

    @classmethod
    def parse(cls, text: str, flag: str = "--clicks-where") -> Self:
        """Parse `COLUMN=VALUE`.

        Raises:
            UsageError: the text has another form; the message names the option `flag`.
        """
        column, equals, value = text.partition("=")
        if not (column and equals):
            raise UsageError(f"{flag} {text}: write COLUMN=VALUE, for example action=click.")
        return cls(column, value)

    def __str__(self) -> str:
        """Return COLUMN=VALUE."""
        return f"{self.column}={self.value}"

    def holds(self, dtype: pl.DataType) -> pl.Expr:
        """Compare the column with the value, as numbers if the column is numeric; False for nulls."""
        column = pl.col(self.column)
        if dtype.is_numeric():
            try:
                return (column.cast(pl.Float64) == float(self.value)).fill_null(value=False)
            except ValueError:
                return pl.lit(value=False)
        return (column.cast(pl.String) == self.value).fill_null(value=False)


def any_condition(conditions: Sequence[RowCondition], schema: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return True for rows that meet at least one condition."""
    return pl.any_horizontal(condition.holds(schema[condition.column]) for condition in conditions)


def check_plain_column(where: str, schema: pl.Schema, name: str, flag: str) -> None:
    """Raise SchemaError if a table lacks a column, or the column is nested."""
    if name not in schema:
        raise SchemaError(f"{where}: there is no column {name!r} ({flag}). The columns are: {', '.join(schema)}.")
    if schema[name].is_nested():
        raise SchemaError(f"{where}: column {name!r} ({flag}) holds {schema[name]}; it must hold plain values.")


@dataclass(frozen=True)
class ClicksRequest:
    """The options of a second table, of clicks."""

    inputs: tuple[str, ...]  # files, globs and directories
    session: tuple[str, ...] = ()  # columns of the session; empty: the names are those of the impressions
    doc: tuple[str, ...] = ()  # columns of the document; empty: the names are those of the impressions
    click: str | None = None  # the column with clicks per row
    where: tuple[RowCondition, ...] = ()  # a row is a click if it meets any of them


@dataclass(frozen=True)
class ClickTable:
    """The second table of a log, of clicks."""

    request: ClicksRequest
    sources: tuple[Source, ...]
    shown: Roles  # roles of the columns of impressions
    rules: ReadingRules
    click_of_log: str | None = None  # the column of --click, which may stand in this table

    def clicks(self, types: Mapping[str, pl.DataType]) -> pl.LazyFrame:
        """Scan the clicks: session and document as in the impressions, `OUTCOME` and `STATED_POSITION`.

        Args:
            types: types of the columns of impressions.

        Raises:
            SchemaError: the table lacks a column, has ids of another type, or does not say which rows are clicks.
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
        outcome = pl.when(no_page).then(int(ClickOutcome.NO_PAGE)).when(no_doc).then(int(ClickOutcome.NO_DOC))
        # An id that the type of the impressions' column cannot hold becomes null, and has no impression.
        keys = (pl.col(their).cast(types[our], strict=False).alias(our) for our, their in pairs)
        known = {plain_name(name) for name in ALIASES[POSITION]}
        usual = [name for name, dtype in self._schema.items() if plain_name(name) in known and not dtype.is_nested()]
        usual.sort(key=lambda name: name != self.shown.position)
        column = next((name for name in usual if name not in self._keys), None)
        position = pl.lit(None, pl.Int64).alias(STATED_POSITION) if column is None else stated_position(column)
        clicks = scan_sources(self.sources).filter(self._is_click)
        return clicks.select(*keys, outcome.otherwise(UNDECIDED).cast(pl.UInt8).alias(OUTCOME), position)

    @property
    def guessed(self) -> tuple[tuple[str, str], ...]:
        """(option, column) of roles that were recognised by a likely, not certain name."""
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
        """The columns of session, document and, if there is one, click."""
        request, columns = self.request, {*self._schema}
        requested = Roles(
            session=request.session or (self.shown.session if columns.issuperset(self.shown.session) else ()),
            doc=request.doc or (self.shown.doc if columns.issuperset(self.shown.doc) else ()),
            click=request.click or (self.click_of_log if self.click_of_log in columns else None),
        )
        roles = resolve_roles(
            requested,
            self._schema.names(),
            where=self._where,
            required=(SESSION, DOC),
            looked_for=(SESSION, DOC, CLICK),
            flags=_FLAGS,
        )
        for role, ours, theirs in ((SESSION, self.shown.session, roles.session), (DOC, self.shown.doc, roles.doc)):
            if len(ours) != len(theirs):
                raise SchemaError(
                    f"{self._where}: the {role} of the impressions is {', '.join(ours)}, that of the clicks "
                    f"{', '.join(theirs)}. Name as many columns with {_FLAGS[role]}, in the same order."
                )
        return roles

    @cached_property
    def _keys(self) -> list[str]:
        keys = [*self._roles.session, *self._roles.doc]
        check_headers(self.sources, [*keys, *([self._roles.click] if self._roles.click else [])])
        return keys

    @cached_property
    def _is_click(self) -> pl.Expr:
        """True for rows that are clicks: those that meet a condition of --clicks-where and have a click count >= 1.

        Raises:
            SchemaError: a condition names no column or meets no row; a click column holds no counts; or, without any of
                them, a column seems to mark clicks.
        """
        conditions, click = self.request.where, self._roles.click
        for condition in conditions:
            check_plain_column(self._where, self._schema, condition.column, "--clicks-where")
        holds = [condition.holds(self._schema[condition.column]) for condition in conditions]
        with reading(self.sources):
            counts = [pl.len().alias("posbias_rows"), *(held.sum().alias(str(n)) for n, held in enumerate(holds))]
            numbers = scan_sources(self.sources).select(counts).collect(engine="streaming") if holds else pl.DataFrame()
        for n, condition in enumerate(conditions):
            if numbers["posbias_rows"].item() and not numbers[str(n)].item():
                raise SchemaError(
                    f"{self._where}: no row has {condition} (--clicks-where). {condition.column!r} holds: "
                    f"{self._frequent_values(condition.column)}."
                )
        is_selected = pl.any_horizontal(holds) if holds else pl.lit(value=True)
        if click is None:
            if not conditions:
                self._check_every_row_is_a_click()
            return is_selected
        rules = replace(self.rules, click_counts=True)
        invalid = self._first_invalid(click, rules, is_selected)
        if invalid.height:
            raise SchemaError(
                f"{self._where}: column {click!r} says how often a row was clicked, but holds {invalid.item()!r}. Fix "
                f"it, or say which rows are clicks with --clicks-where {click}=VALUE. If every row is a click, drop "
                "the column."
            )
        return is_selected & (read_click(click, self._schema, rules)[0] == 1)

    def _frequent_values(self, column: str) -> str:
        """List the most frequent values of a column."""
        with reading(self.sources):
            counts = scan_sources(self.sources).group_by(pl.col(column).cast(pl.String)).len()
            most = counts.sort("len", column, descending=[True, False]).head(_MOST_VALUES + 1)
            values = most.collect(engine="streaming")[column].to_list()
        return ", ".join(map(str, values[:_MOST_VALUES])) + (", ..." if len(values) > _MOST_VALUES else "")

    def _check_every_row_is_a_click(self) -> None:
        """Raise SchemaError if a column without a role seems to mark which rows are clicks."""
        known = {name for name in self._schema if name.lower() in (*ALIASES[QUERY], *ALIASES[POSITION])}
        known |= {*self._keys, *self.shown.columns()}
        free = {name: dtype for name, dtype in self._schema.items() if name not in known}
        marks = dict[tuple[str, str], pl.Expr]()  # by column and what it seems to hold
        for name, dtype in free.items():
            if (flag := _flag(name, dtype)) is not None:
                marks[name, _YES_OR_NO] = flag
            if isinstance(dtype, _TEXTS):
                clicks = pl.col(name).cast(pl.String).str.to_lowercase().is_in(_CLICK_WORDS).fill_null(value=False)
                is_event_type = clicks.any() & ~clicks.all() & (clicks.mean() >= _FEWEST_CLICKS)
                marks[name, "holds click and other values"] = is_event_type
            if _EVENT_TYPE_NAME.fullmatch(" ".join(words_in(name))) and (dtype.is_numeric() or dtype == pl.String):
                numbers = whole_numbers(name, dtype)
                is_code = numbers.is_not_null().all() & numbers.n_unique().is_between(2, _MOST_CODES)
                marks[name, "seems to hold codes of events"] = is_code
        with reading(self.sources):
            columns = [mark.alias(f"{number}") for number, mark in enumerate(marks.values())]
            is_mark = scan_sources(self.sources).select(columns).collect(engine="streaming").row(0) if marks else ()
        as_numbers = replace(self.rules, click_counts=False, null_click=False)
        for name, holds in compress(marks, is_mark):
            how, dtype = f"--clicks-where {name}=VALUE", free[name]
            advice = f"Keep the rows that are clicks with {how}."
            if holds == _YES_OR_NO:
                is_text = isinstance(dtype, _TEXTS) and dtype != pl.String
                is_text |= dtype == pl.String and self._first_invalid(name, as_numbers, pl.lit(value=True)).height > 0
                how = f"{how} with the value that it has there" if is_text else f"--clicks-click {name}"
                advice = f"If it says which rows are clicks, use {how}."
            raise SchemaError(
                f"{self._where}: column {name!r} {holds} ({self._frequent_values(name)}) and plays no role, so that "
                f"every row would count as a click. {advice} If every row is a click, drop the column."
            )

    def _first_invalid(self, column: str, rules: ReadingRules, is_selected: pl.Expr) -> pl.DataFrame:
        """Read the first invalid value of a click column among the selected rows, as one row or none."""
        invalid = pl.any_horizontal(broken for broken, _ in read_click(column, self._schema, rules)[1])
        with reading(self.sources):
            return scan_sources(self.sources).filter(is_selected & invalid).select(column).head(1).collect()


def _flag(name: str, dtype: pl.DataType) -> pl.Expr | None:
    """Test whether a column holds yes and no alone, and no at least once (null is no); None for a type without them."""
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
