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
from posbias.io.log.clicks import AT, CLICKS, OUTCOME, REASONS, WITH_EXAMPLES, Example, Fate, RawLines, find_examples
from posbias.io.log.scan import FILE, ROW
from posbias.io.log.sources import Source

ACTION, KIND, RECORD = "posbias_action", "posbias_kind", "posbias_record"
"""What the writer of a record calls it, what it is, and its number. What becomes of it is in `OUTCOME`."""

OTHER, SHOWN, CLICKED, QUERY = 0, 1, 2, 3
"""What a record is: none of the following, something that was shown, a click, or what was searched for (UBI)."""

UNDECIDED = 0
"""The outcome of a record that depends on other records of its page or visit."""

IMPRESSION = "impression"
"""The action of an event that says that a document was shown."""

CLICKED_EVENT = "posbias_click"
"""The column of clicks in a log that is made of the rows of an event table."""

_SHOWN_AT = "posbias_shown_at"
_NOT_USED = 10  # from this number on, an outcome is no part of the log

OF_FILE, OF_ROW = "posbias_of_file", "posbias_of_row"
"""Where a row that is made of another one comes from, so that a faulty one can be shown."""


@dataclass(frozen=True)
class RawRules:
    """What is said of raw files."""

    impressions: Impressions = "hits"  # what says that a document was shown, in UBI
    click_actions: tuple[str, ...] = ("click",)  # the actions that are clicks, where a source has several
    # the number of the topmost position in the ordinals of each action of UBI; no number, no trust: the official sample
    # mixes ordinals from 0 and from 1
    bases: Mapping[str, int] = field(default_factory=dict[str, int])
    no_query: bool = False  # whether pages have no query, where the source allows that


NO_RULES = RawRules()
"""Nothing was said of them."""


@dataclass(frozen=True)
class Outcomes:
    """What can become of a record. Every record has one outcome, so that they add up to all."""

    kinds: type[Coded]  # those below 10 make the log beside clicks, others do not
    fatal: tuple[Coded, ...]  # what stops the run, unless bad rows are dropped
    other_action: Coded  # what is of an action that is not asked for

    @property
    def used(self) -> dict[int, str]:
        """What made the log."""
        return {kind: kind.words for kind in (*self.kinds, Fate.JOINED) if kind < _NOT_USED or kind == Fate.JOINED}

    @property
    def reasons(self) -> dict[int, str]:
        """What did not."""
        return {**{kind: kind.words for kind in self.kinds if kind >= _NOT_USED}, **REASONS}


@dataclass(frozen=True)
class Resolved:
    """What was made of the records of some pages or visits."""

    rows: pl.DataFrame  # rows of the log
    outcomes: pl.DataFrame  # `OUTCOME`, `ACTION` and the place of each record
    clicks: pl.DataFrame  # `OUTCOME` and `AT` of clicks, and their number, `CLICKS`
    examples: Sequence[Example] = ()  # some ids of lost ones
    counts: Mapping[str, int] = field(default_factory=dict[str, int])  # what else is to be added up, by name


def resolved(
    records: pl.DataFrame,
    decided: Sequence[pl.DataFrame],
    rows: pl.DataFrame,
    shown: pl.DataFrame,
    ids: Sequence[pl.Expr],
    at: pl.Expr,
    counts: Mapping[str, int],
) -> Resolved:
    """What was made of some records.

    Args:
        records: all of them.
        decided: the outcomes that are known by other records.
        rows: rows of the log.
        shown: what was shown.
        ids: `KEY`, `PAGE` and `DOC` of `clicks`, of clicks and of what was shown.
        at: the position that a click names.
        counts: what else is to be added up, by name.
    """
    found = pl.concat(decided).select(RECORD, pl.col(OUTCOME).alias("posbias_decided"))
    outcome = pl.coalesce("posbias_decided", OUTCOME).alias(OUTCOME)
    slim = records.select(RECORD, OUTCOME, ACTION, FILE, ROW)  # without the lists of what was shown
    whole, clicks = (
        some.join(found, on=RECORD, how="left", maintain_order="left").with_columns(outcome)
        for some in (slim, records.filter(pl.col(KIND) == CLICKED))
    )
    lost = clicks.filter(pl.col(OUTCOME).is_in(list(WITH_EXAMPLES)))
    examples = find_examples(lost.select(OUTCOME, *ids), shown.select(ids)) if lost.height else []
    return Resolved(
        rows,
        whole.select(OUTCOME, ACTION, FILE, ROW),
        clicks.group_by(OUTCOME, at.alias(AT)).agg(pl.len().cast(pl.Int64).alias(CLICKS)),
        examples,
        {**counts, CLICKS: clicks.height},
    )


def with_outcome(records: pl.DataFrame, outcome: int) -> pl.DataFrame:
    """Records by their numbers, all with one outcome."""
    return records.select(RECORD, pl.lit(int(outcome), pl.UInt8).alias(OUTCOME))


def clicks_on_pages(
    clicks: pl.DataFrame, shown: pl.DataFrame, known: pl.DataFrame, page: list[str], on_page: list[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clicks on what their pages showed, by page and document, and what became of the others.

    Args:
        clicks: with the columns `page` and `on_page`.
        shown: likewise.
        known: the pages that were recorded, whether or not they are used.
        page: the columns of the page.
        on_page: those of the page and the document.
    """
    used = clicks.join(shown.select(page).unique(), on=page, how="semi", maintain_order="left")
    unused = clicks.join(used, on=RECORD, how="anti")
    recorded = unused.join(known, on=page, how="semi")
    found = used.join(shown.select(on_page).unique(), on=on_page, how="semi", maintain_order="left")
    outcomes = [
        with_outcome(recorded, Fate.PAGE_NOT_USED),
        with_outcome(unused.join(recorded, on=RECORD, how="anti"), Fate.OTHER_PAGE),
        with_outcome(used.join(found, on=RECORD, how="anti"), Fate.NOT_SHOWN),
    ]
    return found, pl.concat(outcomes)


def clicks_in_visits(
    clicks: pl.DataFrame, shown: pl.DataFrame, by: list[str], order: str, of_page: list[str], window: int | None = None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clicks on the last page of the visit that showed their document before, and what became of the others.

    Args:
        clicks: with the columns `by` and `order`; nulls match nothing.
        shown: likewise, and with the columns `of_page`.
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
    found = (
        clicks.select([*dict.fromkeys([RECORD, *by, order])])
        .sort(order, maintain_order=True)
        .join_asof(earlier, on=order, by=by, strategy="backward", check_sortedness=False)
    )
    is_shown = pl.col(_SHOWN_AT).is_not_null()
    in_time = pl.lit(value=True) if window is None else at - pl.col(_SHOWN_AT) <= window
    outcomes = [
        with_outcome(found.filter(~is_shown), Fate.NOT_SHOWN_BEFORE),
        with_outcome(found.filter(is_shown & ~in_time), Fate.TOO_LATE),
    ]
    return found.filter(is_shown & in_time), pl.concat(outcomes)


def first_clicks(clicks: pl.DataFrame, on_page: list[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clicked documents of pages, each once, and what became of every click on one, in their order."""
    first = clicks.unique(on_page, keep="first", maintain_order=True)
    again = clicks.join(first, on=RECORD, how="anti")
    return first.select(on_page), pl.concat([with_outcome(first, Fate.JOINED), with_outcome(again, Fate.REPEATED)])


class RawReader(ABC):
    """Makes a log of the lines or rows of raw files."""

    name: ClassVar[str]  # of the account in the manifest
    title: ClassVar[str]  # for people
    unit: ClassVar[str] = "lines"  # what the files consist of
    of_lines: ClassVar[bool] = (
        True  # whether they are read as lines of text, so that nothing is known of the log before
    )
    formats: ClassVar[tuple[str, ...]] = ("ndjson",)  # those of the files that are read
    expected: ClassVar[str] = ""  # what is said of another one
    columns: ClassVar[tuple[str, ...]] = ()  # of the log that is made; none where those of the files are kept
    outcomes: ClassVar[Outcomes]  # what can become of a record
    key: ClassVar[str]  # the column of the records by which all that belong together are found

    def roles(self, requested: Roles) -> Roles:
        """The columns that were named, and the usual ones for the others."""
        return requested

    @abstractmethod
    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """One record per line or row of a file: its place, `FILE` (a number) and `ROW`; `OUTCOME`, `ACTION`, `KIND`."""

    @abstractmethod
    def resolve(self, records: pl.DataFrame) -> Resolved:
        """What some records say together; all that belong together are among them."""

    def positions(self, rows: int, counts: Counter[str]) -> dict[str, int] | UnsetType:
        """Where the positions of so many rows come from, where there are several ways."""
        del rows, counts
        return UNSET

    def judge(self, where: str, rows: int, counts: Counter[str], account: RawLines) -> None:
        """See that there is a log in the files.

        Raises:
            SchemaError: there is none.
        """
        del counts
        if not rows:
            raise SchemaError(f"{where}: nothing that was shown could be read. {self.in_words(account)}")

    def in_words(self, account: RawLines) -> str:
        """What became of lines that are not used."""
        reasons = ", ".join(f"{lines:,} x {reason}" for reason, lines in account.not_used.items())
        return f"Of {account.lines:,} {self.unit}: {reasons}."

    def no_clicks(
        self, where: str, wanted: tuple[str, ...], account: RawLines, flag: str | None = "--click-actions"
    ) -> SchemaError:
        """The error where other actions occur, and none that is a click; the option says which are, if there is one."""
        how = "" if flag is None else f" ({flag})"
        return SchemaError(
            f"{where}: no event has the action {' or '.join(wanted)}{how}, so that nothing is clicked. The actions "
            f"that occur are: {actions_in_words(account)}."
        )


_MOST_ACTIONS = 10


def actions_in_words(account: RawLines) -> str:
    """The other actions that occur, most frequent first, with their counts."""
    found = sorted(account.other_actions.items(), key=lambda entry: (-entry[1], entry[0]))
    said = ", ".join(f"{action} ({lines:,})" for action, lines in found[:_MOST_ACTIONS])
    return said + (", ..." if len(found) > _MOST_ACTIONS else "")


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
