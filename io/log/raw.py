"""Files that hold no rows of impressions: what makes a log of their lines or rows, and accounts for every one."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import polars as pl
from msgspec import UNSET, UnsetType

from posbias.core.choices import Impressions
from posbias.core.errors import Coded, SchemaError
from posbias.core.schema import Roles
from posbias.io.log.clicks import (
    AT,
    CLICKS,
    DOC,
    KEY,
    OUTCOME,
    PAGE,
    REASONS,
    UNDECIDED,
    WITH_EXAMPLES,
    Example,
    Fate,
    RawLines,
    fates_on_pages,
    find_examples,
)
from posbias.io.log.scan import FILE, ROW
from posbias.io.log.sources import Source

ACTION, KIND, RECORD = "posbias_action", "posbias_kind", "posbias_record"
"""Columns of a record: its action, its kind, and its number. Its outcome is in `OUTCOME`."""

OTHER, SHOWN, CLICKED, QUERY = 0, 1, 2, 3
"""Kinds of records: none of the following, something that was shown, a click, or what was searched for (UBI)."""

IMPRESSION = "impression"
"""The action of an event that says that a document was shown."""

_SHOWN_AT = "posbias_shown_at"
_NOT_USED = 10  # from this number on, an outcome is no part of the log

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


@dataclass(frozen=True)
class Resolved:
    """The impressions and outcomes of the records of some pages or visits."""

    rows: pl.DataFrame  # rows of the log
    outcomes: pl.DataFrame  # `OUTCOME`, `ACTION` and the place of each record
    clicks: pl.DataFrame  # `OUTCOME` and `AT` of clicks, and their number, `CLICKS`
    examples: Sequence[Example] = ()  # some ids of lost ones
    counts: Mapping[str, int] = field(default_factory=dict[str, int])  # what else is to be added up, by name


def with_outcome(records: pl.DataFrame, outcome: int) -> pl.DataFrame:
    """Records by their numbers, all with one outcome."""
    return records.select(RECORD, pl.lit(int(outcome), pl.UInt8).alias(OUTCOME))


def clicks_on_pages(
    clicks: pl.DataFrame, shown: pl.DataFrame, known: pl.DataFrame, page: list[str], on_page: list[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clicks on what their pages showed, and what became of the others; see `fates_on_pages`."""
    judged = fates_on_pages(clicks, shown, shown, known, page, on_page)
    is_joined = pl.col(OUTCOME) == UNDECIDED
    return judged.filter(is_joined), judged.filter(~is_joined).select(RECORD, OUTCOME)


def clicks_in_visits(
    clicks: pl.DataFrame, shown: pl.DataFrame, by: list[str], order: str, of_page: list[str], window: int | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clicks on the last page of the visit that showed their document before, and what became of the others.

    Args:
        clicks: with the columns `by` and `order`; nulls match nothing.
        shown: with the columns `by`, `order` and `of_page`.
        by: what must be the same: visit and document.
        order: when it was.
        of_page: further columns of the page, which clicks take over.
        window: how much later a click may be, if not at any time.
    """
    at = pl.col(order)
    earlier = (
        shown.drop_nulls([*by, order])
        .sort(order, maintain_order=True)
        .select(*by, order, at.alias(_SHOWN_AT), *of_page)
    )
    last_shown = (
        clicks.select([*dict.fromkeys([RECORD, *by, order])])
        .sort(order, maintain_order=True)
        .join_asof(earlier, on=order, by=by, strategy="backward", check_sortedness=False)
    )
    is_shown = pl.col(_SHOWN_AT).is_not_null()
    in_time = pl.lit(value=True) if window is None else at - pl.col(_SHOWN_AT) <= window
    outcomes = [
        with_outcome(last_shown.filter(~is_shown), Fate.NOT_SHOWN_BEFORE),
        with_outcome(last_shown.filter(is_shown & ~in_time), Fate.TOO_LATE),
    ]
    return last_shown.filter(is_shown & in_time), pl.concat(outcomes)


def mark_clicked(
    shown: pl.DataFrame, clicks: pl.DataFrame, on_page: list[str], column: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Impressions, with 1 in a column where they were clicked, else 0; and the outcome of each click, in order."""
    first = clicks.unique(on_page, keep="first", maintain_order=True)
    again = clicks.join(first, on=RECORD, how="anti")
    marked = first.select(*on_page, pl.lit(1, pl.Int8).alias(column))
    rows = shown.join(marked, on=on_page, how="left", maintain_order="left").with_columns(pl.col(column).fill_null(0))
    return rows, pl.concat([with_outcome(first, Fate.JOINED), with_outcome(again, Fate.REPEATED)])


Joined = tuple[pl.DataFrame, pl.DataFrame, Sequence[pl.DataFrame], Mapping[str, int]]
"""Rows of the log, what was shown, the outcomes that are known by other records, and what else is to be added up."""


class RawReader(ABC):
    """Makes a log of the lines or rows of raw files."""

    name: ClassVar[str]  # of the account in the manifest
    title: ClassVar[str]  # for people
    unit: ClassVar[str] = "lines"  # what the files consist of
    of_lines: ClassVar[bool] = (
        True  # whether they are read as lines of text, so that nothing is known of the log before
    )
    formats: ClassVar[tuple[str, ...]] = ("ndjson",)  # those of the files that are read
    expected: ClassVar[str] = ""  # the message about another one
    columns: ClassVar[tuple[str, ...]] = ()  # of the log that is made; none where those of the files are kept
    kinds: ClassVar[type[Coded]]  # what can become of a record; beside clicks, those below 10 make the log
    fatal: ClassVar[tuple[Coded, ...]]  # what stops the run, unless bad rows are dropped
    other_action: ClassVar[Coded]  # the outcome of a record of another action
    key: ClassVar[str]  # the column of the records that all which belong together share
    order: ClassVar[tuple[str, ...]] = (FILE, ROW)  # the columns by which records are sorted

    @property
    def used(self) -> dict[int, str]:
        """The outcomes of records that made the log, in words. Every record has one outcome, so that they add up."""
        return {kind: kind.words for kind in (*self.kinds, Fate.JOINED) if kind < _NOT_USED or kind == Fate.JOINED}

    @property
    def reasons(self) -> dict[int, str]:
        """The outcomes of the others, in words."""
        return {**{kind: kind.words for kind in self.kinds if kind >= _NOT_USED}, **REASONS}

    @abstractmethod
    def ids(self) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
        """As text, of clicks and of what was shown: what they are joined by, their page and their document."""

    def named_position(self) -> pl.Expr:
        """The position that a click names."""
        return pl.lit(None, pl.Int64)

    def roles(self, requested: Roles) -> Roles:
        """The columns that were named, and the usual ones for the others."""
        return requested

    @abstractmethod
    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """One record per line or row of a file: its place, `FILE` (a number) and `ROW`; `OUTCOME`, `ACTION`, `KIND`."""

    @abstractmethod
    def join(self, records: pl.DataFrame, undecided: pl.DataFrame) -> Joined:
        """Join clicks to what was shown.

        Args:
            records: all of some pages or visits, in their order, with their numbers in `RECORD`.
            undecided: those of them whose outcome is `UNDECIDED`.
        """

    def resolve(self, records: pl.DataFrame) -> Resolved:
        """Impressions and outcomes of some records; all that belong together are among them."""
        records = records.sort(*self.order).with_row_index(RECORD)
        rows, shown, decided, counts = self.join(records, records.filter(pl.col(OUTCOME) == UNDECIDED))
        decisions = pl.concat(decided).select(RECORD, pl.col(OUTCOME).alias("posbias_decided"))
        outcome = pl.coalesce("posbias_decided", OUTCOME).alias(OUTCOME)
        slim = records.select(RECORD, OUTCOME, ACTION, FILE, ROW)  # without the lists of what was shown
        whole, clicks = (
            some.join(decisions, on=RECORD, how="left", maintain_order="left").with_columns(outcome)
            for some in (slim, records.filter(pl.col(KIND) == CLICKED))
        )
        lost = clicks.filter(pl.col(OUTCOME).is_in(list(WITH_EXAMPLES)))
        ids = [text.alias(name) for text, name in zip(self.ids(), (KEY, PAGE, DOC), strict=True)]
        examples = find_examples(lost.select(OUTCOME, *ids), shown.select(ids)) if lost.height else []
        return Resolved(
            rows,
            whole.select(OUTCOME, ACTION, FILE, ROW),
            clicks.group_by(OUTCOME, self.named_position().alias(AT)).agg(pl.len().cast(pl.Int64).alias(CLICKS)),
            examples,
            {**counts, CLICKS: clicks.height},
        )

    def positions(self, rows: int, counts: Counter[str]) -> dict[str, int] | UnsetType:
        """Where the positions of so many rows come from, where there are several ways."""
        del rows, counts
        return UNSET

    def judge(self, where: str, rows: int, counts: Counter[str], account: RawLines) -> None:
        """Check that there is a log in the files.

        Raises:
            SchemaError: there is none.
        """
        del counts
        if not rows:
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


def first_that_holds(cases: Sequence[tuple[pl.Expr, int]]) -> pl.Expr:
    """The outcome of the first case that holds; `UNDECIDED` where none does."""
    outcome = pl.lit(UNDECIDED)
    for holds, case in reversed(cases):
        outcome = pl.when(holds).then(int(case)).otherwise(outcome)
    return outcome.cast(pl.UInt8)


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
