"""The account of rows and clicks: read, used, rejected or lost, and why.

Every form of log in which clicks stand apart from impressions counts them here, and every command judges them here.
A click that is sent twice is no loss: its impression is clicked.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Annotated, Any, NamedTuple, cast

import msgspec
import polars as pl
from msgspec import UNSET, Meta, UnsetType

from posbias.core.errors import Coded, SchemaError
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

OUTCOME, AT, KEY, PAGE, DOC, CLICKS = (f"posbias_{name}" for name in ("outcome", "at", "key", "page", "doc", "clicks"))
"""Columns of clicks: what becomes of them (`Fate`), the position that they name, what they are joined by (a page or a
visit), their page and document as text, and how many they are."""

_IS_SHOWN, _HAS_PAGE = "posbias_is_shown", "posbias_has_page"
_LARGEST_POSITION = 50  # of those that are counted by themselves
_POSITIONS = 5  # of them in a message
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

WITH_EXAMPLES = {Fate.OTHER_PAGE: PAGE, Fate.NOT_SHOWN: DOC, Fate.NOT_SHOWN_BEFORE: DOC}
"""Fates of clicks whose id, of the page or of the document, may be written otherwise than in impressions."""

_UNREADABLE = "clicks that cannot be read"


class Example(NamedTuple):
    """An id that a lost click names, beside the closest one that was shown."""

    fate: int
    named: str
    shown: str

    @property
    def adds_to_id(self) -> bool:
        """Whether one id is the other with something added, so that whole pages or documents lose their clicks."""
        short, long = sorted((self.named, self.shown), key=len)
        return short in long and not long.replace(short, "", 1).isdigit()


@dataclass(frozen=True)
class JoinedClicks:
    """The clicks of a log, with some ids of lost ones."""

    counts: Clicks
    examples: tuple[Example, ...] = ()

    @classmethod
    def of(cls, clicks: pl.DataFrame, examples: Sequence[Example] = ()) -> "JoinedClicks":
        """Add up clicks with `OUTCOME`, `AT` and `CLICKS`; what is no `Fate` cannot be read."""
        fates, read, lost = Counter[int](), Counter[int](), Counter[int]()
        for fate, at, number in clicks.group_by(OUTCOME, AT).agg(pl.col(CLICKS).sum()).iter_rows():
            is_lost = fate not in {Fate.JOINED, Fate.REPEATED}
            fates[fate] += number
            if at is not None:
                read[at] += number
                lost[at] += number if is_lost else 0
        reasons = Counter[str]()
        for fate, number in sorted(fates.items()):
            if number and fate not in {Fate.JOINED, Fate.REPEATED}:
                reasons[REASONS.get(fate, _UNREADABLE)] += number
        by_position = {str(at): ClicksAtPosition(read[at], lost[at]) for at in sorted(read)}
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
    written_differently = any(one.adds_to_id for one in examples)
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
    return _ADVICE.get(max(clicks.lost, key=lambda why: clicks.lost[why]), "Look at them in the files.")


def _by_position(clicks: Clicks) -> str:
    """The meaning of the loss, and where it is."""
    meaning = " Propensities are wrong where clicks at some positions are lost more often than at others"
    shares = {int(at): counts.lost / counts.read for at, counts in clicks.by_position.items() if counts.read}
    named = ", ".join(f"{shares[at]:.0%} at {at}" for at in sorted(shares)[:_POSITIONS])
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
        clicks: `OUTCOME`, `KEY`, `PAGE`, `DOC`, as text.
        shown: `KEY`, `PAGE`, `DOC`, as text, at least of what has a key of those clicks.
    """
    examples: list[Example] = []
    for fate, column in WITH_EXAMPLES.items():
        lost = clicks.filter(pl.col(OUTCOME) == fate).drop_nulls(column).unique(column, maintain_order=True)
        for key, named in lost.head(_EXAMPLES).select(KEY, column).iter_rows():
            beside = shown if column == PAGE else shown.filter(pl.col(KEY) == key)
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
    texts = (as_text(page).alias(KEY), as_text(page).alias(PAGE), as_text(doc).alias(DOC))
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
    named_ids = lost.select(fate, key, key.alias(PAGE), pl.col(LOST_ID).alias(DOC))
    shown = lost.select(key, key.alias(PAGE), pl.col(BESIDE).alias(DOC)).explode(DOC)
    return JoinedClicks.of(clicks, find_examples(named_ids, shown))
