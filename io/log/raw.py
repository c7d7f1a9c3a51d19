"""Files that hold no rows of impressions: what makes a log of their lines or rows, and accounts for every one."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
from msgspec import UNSET, UnsetType

from posbias.core.choices import Impressions
from posbias.core.errors import SchemaError
from posbias.core.schema import RequestedRoles
from posbias.io.log.lost_clicks import AT, CLICKS, OUTCOME, REASONS, WITH_EXAMPLES, Example, Fate, find_examples
from posbias.io.log.rows import RawLines
from posbias.io.log.scan import FILE, ROW
from posbias.io.log.sources import Source

ACTION, KIND, RECORD = "posbias_action", "posbias_kind", "posbias_record"
"""What the writer of a record calls it, what it is, and its number. What becomes of it is in `OUTCOME`."""

OTHER, SHOWN, CLICKED, QUERY = 0, 1, 2, 3
"""What a record is: none of the following, something that was shown, a click, or what was searched for (UBI)."""

UNDECIDED = 0
"""The outcome of a record that depends on other records of its page or visit."""

CLICKED_EVENT = "posbias_click"
"""The column of clicks in a log that is made of the rows of an event table."""

OF_FILE, OF_ROW = "posbias_of_file", "posbias_of_row"
"""Where a row that is made of another one comes from, so that a faulty one can be shown."""


@dataclass(frozen=True)
class RawRules:
    """What is said of raw files.

    Attributes:
        impressions: what says that a document was shown, in UBI.
        click_actions: the actions that are clicks, where a source has several.
        bases: the number of the topmost position in the ordinals of each action of UBI; no number, no trust: the
            official sample mixes ordinals from 0 and from 1.
        no_query: whether pages have no query, where the source allows that.
    """

    impressions: Impressions = "hits"
    click_actions: tuple[str, ...] = ("click",)
    bases: Mapping[str, int] = field(default_factory=dict[str, int])
    no_query: bool = False


@dataclass(frozen=True)
class Outcomes:
    """What can become of a record. Every record has one outcome, so that they add up to all.

    Attributes:
        shown: what made the log beside clicks, as it stands in the manifest.
        others: what did not, beside clicks, as it stands there and in messages.
        fatal: what stops the run, unless bad rows are dropped.
        other_action: what is of an action that is not asked for.
    """

    shown: Mapping[int, str]
    others: Mapping[int, str]
    fatal: tuple[int, ...]
    other_action: int

    @property
    def used(self) -> dict[int, str]:
        """What made the log."""
        return {**self.shown, Fate.JOINED: "clicks"}

    @property
    def reasons(self) -> dict[int, str]:
        """What did not."""
        return {**self.others, **REASONS}


@dataclass(frozen=True)
class Resolved:
    """What was made of the records of some pages or visits.

    Attributes:
        rows: rows of the log.
        outcomes: `OUTCOME`, `ACTION` and the place of each record.
        clicks: `OUTCOME` and `AT` of clicks, and their number, `CLICKS`.
        examples: some ids of lost ones.
        counts: what else is to be added up, by name.
    """

    rows: pl.DataFrame
    outcomes: pl.DataFrame
    clicks: pl.DataFrame
    examples: Sequence[Example] = ()
    counts: Mapping[str, int] = field(default_factory=dict[str, int])


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
        ids: `KEY`, `PAGE` and `DOC` of `lost_clicks`, of clicks and of what was shown.
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


class RawReader(ABC):
    """Makes a log of the lines or rows of raw files.

    Attributes:
        name: of the account in the manifest.
        title: for people.
        unit: what the files consist of.
        of_lines: whether they are read as lines of text, so that nothing is known of the log before.
        formats: those of the files that are read.
        expected: what is said of another one.
        columns: of the log that is made; none where the columns of the files are kept.
        outcomes: what can become of a record.
        key: the column of the records by which all that belong together are found.
    """

    name: str
    title: str
    unit: str = "lines"
    of_lines: bool = True
    formats: tuple[str, ...] = ("ndjson",)
    expected: str = ""
    columns: tuple[str, ...] = ()
    outcomes: Outcomes
    key: str

    def roles(self, requested: RequestedRoles) -> RequestedRoles:
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


def last_before(clicks: pl.DataFrame, shown: pl.DataFrame, by: list[str], order: str, found: list[str]) -> pl.DataFrame:
    """Clicks with the last of the shown documents that is the same and not later, null where there is none.

    Args:
        clicks: with the columns `by` and `order`; nulls match nothing.
        shown: likewise, and with the columns that are `found`.
        by: what must be the same, such as visit and document.
        order: when it was.
        found: columns of `shown` that are joined.
    """
    return clicks.sort(order, maintain_order=True).join_asof(
        shown.drop_nulls([*by, order]).sort(order, maintain_order=True).select(*by, order, *found),
        on=order,
        by=by,
        strategy="backward",
        check_sortedness=False,
    )
