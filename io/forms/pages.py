"""Pages and clicks of a source, all those of a page or visit together, as a log."""

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from posbias.core.schema import RequestedRoles
from posbias.io.forms.form import Form
from posbias.io.forms.lines import (
    DOC,
    DOCS,
    FIRST,
    KEY,
    MOMENT,
    OUTCOMES,
    PAGE,
    POSITION,
    QUERY,
    TIMESTAMP,
    USER,
    VISIT,
    Line,
    Outcome,
    read_records,
)
from posbias.io.log import lost_clicks
from posbias.io.log.lost_clicks import CLICKS, OUTCOME, Fate, whole_position
from posbias.io.log.raw import (
    CLICKED,
    KIND,
    RECORD,
    SHOWN,
    UNDECIDED,
    Outcomes,
    RawReader,
    RawRules,
    Resolved,
    last_before,
    resolved,
    with_outcome,
)
from posbias.io.log.rows import RawLines
from posbias.io.log.scan import FILE, ROW
from posbias.io.log.sources import Source

CLICK = "click"
COLUMNS = (PAGE, QUERY, DOC, POSITION, CLICK, TIMESTAMP, USER, VISIT)
"""The columns of the log that is made."""

_SAME = "same"
_IDS = (pl.col(KEY).alias(lost_clicks.KEY), pl.col(PAGE).alias(lost_clicks.PAGE), pl.col(DOC).alias(lost_clicks.DOC))
_ON_PAGE = [PAGE, DOC]


class PageForm(Form):
    """A source each of whose lines is a page with what it showed, a click, or something else.

    Attributes:
        formats: those of its files.
        expected: what is said of another one.
        clicked_by: what a click without the id of a page has in common with its page, beside the document.
        wanted: the actions that are clicks, where they cannot be chosen.
    """

    formats: ClassVar[tuple[str, ...]] = ("ndjson",)
    expected: ClassVar[str] = ""
    clicked_by: ClassVar[tuple[str, ...]] = (VISIT,)
    wanted: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read(self, text: str, rules: RawRules) -> Line:
        """What a line says."""

    def reader(self, rules: RawRules) -> RawReader:
        """What makes a log of such files."""
        return PageReader(self, rules, self.name, self.title, self.formats, self.expected)


@dataclass(frozen=True)
class PageReader(RawReader):
    """Makes a log of pages and clicks.

    Attributes:
        form: how lines are read.
        rules: what is said of them.
    """

    form: PageForm
    rules: RawRules
    name: str
    title: str
    formats: tuple[str, ...]
    expected: str
    columns: tuple[str, ...] = COLUMNS
    outcomes: Outcomes = OUTCOMES
    key: str = KEY

    def roles(self, requested: RequestedRoles) -> RequestedRoles:
        """The columns that were named, and those that are made for the others."""
        return requested.or_else(session=PAGE, query=QUERY, doc=DOC, position=POSITION, click=CLICK)

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """One record per line."""
        form, rules = self.form, self.rules
        records = read_records(source, number, lambda text: form.read(text, rules))
        timeless = (pl.col(OUTCOME) == UNDECIDED) & pl.col(MOMENT).is_null()
        outcome = pl.when(timeless).then(int(Outcome.NO_TIME)).otherwise(pl.col(OUTCOME))
        return records.with_columns(outcome.cast(pl.UInt8).alias(OUTCOME))

    def resolve(self, records: pl.DataFrame) -> Resolved:
        """What each page showed, and what was clicked."""
        records = records.sort(MOMENT, FILE, ROW).with_row_index(RECORD)
        undecided = records.filter(pl.col(OUTCOME) == UNDECIDED)
        pages, of_pages = _pages(undecided.filter(pl.col(KIND) == SHOWN))
        shown = _shown(pages, self.form.clicked_by)
        clicks = undecided.filter(pl.col(KIND) == CLICKED)
        by_page, by_visit = clicks.filter(pl.col(PAGE).is_not_null()), clicks.filter(pl.col(PAGE).is_null())
        known = records.filter(pl.col(KIND) == SHOWN).select(PAGE).drop_nulls().unique()
        on_page, of_those = _clicks_on_pages(by_page, shown, known)
        in_visit, of_these = _clicks_in_visits(by_visit, shown, self.form.clicked_by)
        clicked, of_clicked = _first_clicks(pl.concat([on_page, in_visit]))
        return resolved(
            records,
            [of_pages, of_those, of_these, of_clicked],
            _rows(shown, clicked, pages),
            shown,
            _IDS,
            whole_position(POSITION),
            {},
        )

    def judge(self, where: str, rows: int, counts: Counter[str], account: RawLines) -> None:
        """See that pages were shown, and that clicks are not called otherwise.

        Raises:
            SchemaError: nothing was shown, or only other actions occur.
        """
        super().judge(where, rows, counts, account)
        if not counts[CLICKS] and account.other_actions:
            flag = "--click-actions" if self.form.has_actions else None
            raise self.no_clicks(where, self.form.wanted or self.rules.click_actions, account, flag)


def _pages(pages: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The pages, each once, and what became of every line of one."""
    same = pl.concat_str(QUERY, FIRST, pl.col(DOCS).list.join("\0"), separator="\0")
    judged = pages.with_columns(same.alias(_SAME)).with_columns(
        (pl.col(_SAME).n_unique().over(PAGE) > 1).alias("disagrees"),
        (pl.col(RECORD) == pl.col(RECORD).min().over(PAGE)).alias("is_first"),
    )
    agreed = judged.filter(~pl.col("disagrees"))
    kept = agreed.filter("is_first")
    outcomes = [
        with_outcome(kept, Outcome.SHOWN),
        with_outcome(agreed.filter(~pl.col("is_first")), Outcome.REPEATED_PAGE),
        with_outcome(judged.filter("disagrees"), Outcome.PAGES_DISAGREE),
    ]
    return kept.drop(_SAME, "disagrees", "is_first", DOC), pl.concat(outcomes)


def _shown(pages: pl.DataFrame, clicked_by: tuple[str, ...]) -> pl.DataFrame:
    """The documents of pages, with their positions, and what clicks may have in common with them."""
    places = pl.int_ranges(pl.col(FIRST), pl.col(FIRST) + pl.col(DOCS).list.len().cast(pl.Int64)).alias(POSITION)
    wanted = pages.select(RECORD, KEY, PAGE, *clicked_by, DOCS, places)
    return wanted.explode(DOCS, POSITION).rename({DOCS: DOC})


def _clicks_on_pages(
    clicks: pl.DataFrame, shown: pl.DataFrame, known: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clicks on what their pages showed, by page and document, and what became of the others."""
    used = clicks.join(shown.select(PAGE).unique(), on=PAGE, how="semi", maintain_order="left")
    unused = clicks.join(used, on=RECORD, how="anti")
    recorded = unused.join(known, on=PAGE, how="semi")
    found = used.join(shown.select(_ON_PAGE), on=_ON_PAGE, how="semi", maintain_order="left")
    outcomes = [
        with_outcome(recorded, Fate.PAGE_NOT_USED),
        with_outcome(unused.join(recorded, on=RECORD, how="anti"), Fate.OTHER_PAGE),
        with_outcome(used.join(found, on=RECORD, how="anti"), Fate.NOT_SHOWN),
    ]
    return found.select(RECORD, *_ON_PAGE), pl.concat(outcomes)


def _clicks_in_visits(
    clicks: pl.DataFrame, shown: pl.DataFrame, clicked_by: tuple[str, ...]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clicks on the last page of the visit that showed their document before, and what became of the others."""
    by = [*clicked_by, DOC]
    found = last_before(clicks.select(RECORD, *by), shown.select(RECORD, *by, PAGE), by, RECORD, [PAGE])
    lost = found.filter(pl.col(PAGE).is_null())
    return found.drop_nulls(PAGE).select(RECORD, *_ON_PAGE), with_outcome(lost, Fate.NOT_SHOWN_BEFORE)


def _first_clicks(clicks: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The clicked documents of pages, each once, and what became of every click."""
    first = clicks.sort(RECORD).unique(_ON_PAGE, keep="first", maintain_order=True)
    outcomes = [
        with_outcome(first, Fate.JOINED),
        with_outcome(clicks.join(first, on=RECORD, how="anti"), Fate.REPEATED),
    ]
    return first.select(_ON_PAGE), pl.concat(outcomes)


def _rows(shown: pl.DataFrame, clicked: pl.DataFrame, pages: pl.DataFrame) -> pl.DataFrame:
    """The log, page after page."""
    marked = clicked.with_columns(pl.lit(1, pl.Int8).alias(CLICK))
    rows = shown.select(RECORD, *_ON_PAGE, POSITION).join(marked, on=_ON_PAGE, how="left", maintain_order="left")
    of_page = pages.select(RECORD, QUERY, TIMESTAMP, USER, VISIT)
    rows = rows.join(of_page, on=RECORD, how="left", maintain_order="left")
    return rows.with_columns(pl.col(CLICK).fill_null(0)).select(COLUMNS)
