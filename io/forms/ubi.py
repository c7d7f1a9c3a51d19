"""OpenSearch UBI: lines become records, records pages, and every record has one outcome."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import polars as pl

from posbias.core.errors import Coded, SchemaError
from posbias.core.schema import Roles
from posbias.io.forms.form import Form
from posbias.io.log.clicks import CLICKS, OUTCOME, UNDECIDED, Fate, RawLines, fates_on_pages, whole_position
from posbias.io.log.raw import (
    ACTION,
    CLICKED,
    IMPRESSION,
    KIND,
    OTHER,
    QUERY,
    RECORD,
    SHOWN,
    Joined,
    RawRules,
    first_that_holds,
    mark_clicked,
    with_outcome,
)
from posbias.io.log.scan import FILE, LINE, ROW, scan_lines
from posbias.io.log.sources import Source

QUERY_ID, USER_QUERY, OBJECT_ID, ACTION_NAME = "query_id", "user_query", "object_id", "action_name"
POSITION, CLICK = "position", "click"
OF_THE_QUERY = ("timestamp", "client_id", "application")
"""Further fields of a query that belong to its page, as text."""

COLUMNS = (QUERY_ID, USER_QUERY, OBJECT_ID, POSITION, CLICK, *OF_THE_QUERY)
"""The columns of the log that is made of UBI documents."""


class Outcome(Coded):
    """The outcome of a line."""

    QUERY = 1, "queries"
    IMPRESSION = 2, "impressions"

    BLANK = 10, "blank lines"
    ACTION_LINE = 11, "action lines of the bulk format"
    NOT_AN_OBJECT = 12, "lines that are not a JSON object"
    UNKNOWN_DOCUMENT = 13, "documents that are neither a query nor an event"
    QUERY_WITHOUT_ID = 14, "queries without a query_id"

    BLANK_QUERY = 20, "queries without a user_query"
    BAD_HITS = 21, "queries whose hit list is not a list of different ids"
    NO_HITS = 22, "queries without hits"
    REPEATED_QUERY = 23, "queries that were written before"
    QUERIES_DISAGREE = 24, "queries whose query_id has another user_query or hit list as well"
    NO_IMPRESSIONS = 25, "queries of which nothing was shown"

    OTHER_ACTION = 30, "events of other actions"
    LISTED_INSTEAD = 31, "impression events, as hit lists say what was shown"
    EVENT_WITHOUT_ID = 32, "impressions without a query_id"
    NO_OBJECT = 33, "impressions without an object_id"
    NO_QUERY = 34, "impressions whose query was not recorded"
    PAGE_NOT_USED = 35, "impressions whose query is not used"
    CONTRADICTION = 36, "impressions and queries of pages with two documents at one position, or one at two"

    NOT_IN_HITS = 40, "impressions of a document that is not in the hit list"
    NO_BASE = 41, "impressions without a hit list: to read ordinals, say --position-base impression=N"
    NO_ORDINAL = 42, "impressions without a hit list and without a whole ordinal"
    BELOW_BASE = 43, "impressions whose ordinal is below the position base"
    REPEATED_IMPRESSION = 44, "impressions that were seen before"


HITS, ORDINAL = "hits", "ordinal"

_RESPONSE, _OLDER_HITS, _OLDEST_HITS = "response", "older_hits", "oldest_hits"
_OF_EVENTS = {
    OBJECT_ID: "$.event_attributes.object.object_id",
    ORDINAL: "$.event_attributes.position.ordinal",
}
_ONLY_IN_QUERIES = {
    USER_QUERY: "$.user_query",  # events may have it too, but are known by their action
    _RESPONSE: "$.query_response_id",
    HITS: "$.query_response_hit_ids",
    _OLDER_HITS: "$.query_response_object_ids",  # UBI 1.0
    _OLDEST_HITS: "$.query_response_objects_ids",  # OpenSearch 2.15, "UBI index schemas"
}
_OF_QUERIES = _ONLY_IN_QUERIES | {name: f"$.{name}" for name in OF_THE_QUERY}
_COLUMNS = (FILE, ROW, KIND, OUTCOME, QUERY_ID, USER_QUERY, HITS, ACTION, OBJECT_ID, ORDINAL, *OF_THE_QUERY)
_ACTION_LINE = r'^\s*\{\s*"(?:index|create|update|delete)"\s*:\s*\{[^{}]*\}\s*\}\s*$'
_ID = r'(?:"(?:[^"\\]|\\.)+"|-?[0-9][0-9.eE+-]*)'
_LIST_OF_IDS = rf"^\[(?:{_ID}(?:,{_ID})*)?\]$"


def _read_records(lines: pl.LazyFrame, rules: RawRules) -> pl.LazyFrame:
    """One record per line.

    Args:
        lines: `LINE`, with the place in `FILE` and `ROW`.
        rules: how documents are read.

    Returns:
        `FILE`, `ROW`, `KIND`, `OUTCOME` (0 where other records decide), the ids and texts of the document (null where
        it has none), `hits` (as JSON) and `ordinal` (Float64).
    """
    line, action = pl.col(LINE), pl.col(ACTION)
    is_event = action.is_in((IMPRESSION, *rules.click_actions))
    is_rest = action.is_null() & ~pl.col("is_action_line")
    # To look up a field is to parse the line: so only lines that may have it are parsed. Null costs nothing.
    of_event, of_rest, of_both = (pl.when(where).then(line) for where in (is_event, is_rest, is_event | is_rest))
    fields = lines.with_columns(
        _no_blank(line.str.json_path_match(f"$.{ACTION_NAME}")).alias(ACTION),
        line.str.contains(_ACTION_LINE).alias("is_action_line"),
    ).select(
        FILE,
        ROW,
        ACTION,
        "is_action_line",
        line.fill_null("").str.strip_chars().str.head(1).alias("start"),
        (is_rest & of_rest.str.json_path_match("$").is_null()).alias("is_broken"),
        _no_blank(of_both.str.json_path_match("$.query_id")).alias(QUERY_ID),
        *(of_event.str.json_path_match(path).alias(name) for name, path in _OF_EVENTS.items()),
        *(of_rest.str.json_path_match(path).alias(name) for name, path in _OF_QUERIES.items()),
    )
    kind = (
        pl.when(action == IMPRESSION)
        .then(SHOWN)
        .when(is_event)
        .then(CLICKED)
        .when(action.is_null() & pl.any_horizontal(pl.col(name).is_not_null() for name in _ONLY_IN_QUERIES))
        .then(QUERY)
        .otherwise(OTHER)
    )
    read = fields.with_columns(
        kind.cast(pl.UInt8).alias(KIND),
        *(_no_blank(pl.col(name)) for name in (USER_QUERY, OBJECT_ID)),
        pl.coalesce(HITS, _OLDER_HITS, _OLDEST_HITS).alias(HITS),
        pl.col(ORDINAL).cast(pl.Float64, strict=False),
    )
    return read.with_columns(_outcome(rules).alias(OUTCOME)).select(_COLUMNS)


def _no_blank(text: pl.Expr) -> pl.Expr:
    return pl.when(text.str.strip_chars() != "").then(text)


def _outcome(rules: RawRules) -> pl.Expr:
    """The outcome as far as the record alone decides it."""
    kind = pl.col(KIND)
    cases: list[tuple[pl.Expr, int]] = [
        (pl.col("start") == "", Outcome.BLANK),
        ((pl.col("start") != "{") | pl.col("is_broken"), Outcome.NOT_AN_OBJECT),
        (pl.col("is_action_line"), Outcome.ACTION_LINE),
        ((kind == OTHER) & pl.col(ACTION).is_null(), Outcome.UNKNOWN_DOCUMENT),
        (kind == OTHER, Outcome.OTHER_ACTION),
        ((kind == QUERY) & pl.col(QUERY_ID).is_null(), Outcome.QUERY_WITHOUT_ID),
        ((kind == QUERY) & pl.col(USER_QUERY).is_null(), Outcome.BLANK_QUERY),
        ((kind == QUERY) & ~pl.col(HITS).str.contains(_LIST_OF_IDS), Outcome.BAD_HITS),
        ((kind == SHOWN) & (rules.impressions == "hits"), Outcome.LISTED_INSTEAD),
        ((kind == SHOWN) & pl.col(QUERY_ID).is_null(), Outcome.EVENT_WITHOUT_ID),
        ((kind == SHOWN) & pl.col(OBJECT_ID).is_null(), Outcome.NO_OBJECT),
        ((kind == CLICKED) & pl.col(QUERY_ID).is_null(), Fate.NO_PAGE),
        ((kind == CLICKED) & pl.col(OBJECT_ID).is_null(), Fate.NO_DOC),
    ]
    return first_that_holds(cases)


_IN_LIST = "place_in_list"
_LISTED = "listed"
_ON_PAGE = [QUERY_ID, OBJECT_ID]


BY_ORDINAL, PAGES, CONTRADICTING = "by_ordinal", "pages", "contradicting"
"""Counts beside outcomes: rows whose position is an ordinal and not a place in a hit list; pages that have a
query, whether anything was shown or not; and those of them that were left out because records contradict each
other."""


def _join(records: pl.DataFrame, undecided: pl.DataFrame, rules: RawRules) -> Joined:
    """Find what each page showed and what was clicked.

    A page is a query_id, and its query the user_query of its document. A query_id may have several documents: those
    without hits do not count beside one with hits; if the others differ, the page is left out.

    Args:
        records: of `_read_records`; all of a page.
        undecided: those whose outcome depends on others.
        rules: how they are read.
    """
    queries, pages = _queries(undecided.filter(pl.col(KIND) == QUERY), rules)
    known = records.filter((pl.col(KIND) == QUERY) & pl.col(QUERY_ID).is_not_null()).select(QUERY_ID).unique()
    if rules.impressions == "hits":
        impressions = pl.DataFrame(schema={RECORD: pl.UInt32, OUTCOME: pl.UInt8})
        shown, contradicting = _hits(pages), pl.Series(QUERY_ID, dtype=pl.String)
    else:
        impressions, shown, contradicting = _impressions(undecided.filter(pl.col(KIND) == SHOWN), known, pages, rules)
    used = pages.filter(~pl.col(QUERY_ID).is_in(contradicting.implode()))
    clicks = fates_on_pages(undecided.filter(pl.col(KIND) == CLICKED), shown, used, known, [QUERY_ID], _ON_PAGE)
    clicked, of_lost = _clicks(clicks, shown, rules)
    rows, of_clicked = mark_clicked(shown, clicked, _ON_PAGE, CLICK)
    rows = rows.join(pages.select(QUERY_ID, RECORD, USER_QUERY, *OF_THE_QUERY), on=QUERY_ID, how="inner")
    of_pages = pages.select(
        RECORD,
        pl.when(pl.col(QUERY_ID).is_in(contradicting.implode()))
        .then(int(Outcome.CONTRADICTION))
        .when(pl.col(QUERY_ID).is_in(shown[QUERY_ID].unique().implode()))
        .then(int(Outcome.QUERY))
        .otherwise(int(Outcome.NO_IMPRESSIONS))
        .cast(pl.UInt8)
        .alias(OUTCOME),
    )
    disagreeing = (
        queries.filter(pl.col(OUTCOME) == Outcome.QUERIES_DISAGREE).join(records, on=RECORD)[QUERY_ID].n_unique()
    )
    counts = {
        BY_ORDINAL: shown.filter(~pl.col(_LISTED)).height,
        PAGES: pages.height + disagreeing,
        CONTRADICTING: contradicting.len() + disagreeing,
    }
    decided = [queries, impressions, of_lost, of_clicked, of_pages]
    return rows.sort(RECORD, POSITION).select(COLUMNS), shown, decided, counts


def _queries(queries: pl.DataFrame, rules: RawRules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The outcomes of the documents of queries that are no page, and the pages, one document each."""
    ids = pl.col(HITS).str.json_decode(pl.List(pl.String))  # those that were taken for good
    queries = queries.with_columns(ids.fill_null([]).alias("ids")).with_columns(
        (pl.col("ids").list.len() > 0).alias(_LISTED),
        (pl.col("ids").list.n_unique() < pl.col("ids").list.len()).alias("repeats"),
    )
    good = queries.filter(~pl.col("repeats"))
    counts = pl.col(_LISTED)
    if rules.impressions == "events":
        counts |= ~pl.col(_LISTED).any().over(QUERY_ID)
    used = good.filter(counts)
    texts = pl.struct(USER_QUERY, pl.when(_LISTED).then(HITS))
    judged = used.with_columns(
        (texts.n_unique().over(QUERY_ID) > 1).alias("disagrees"),
        pl.col(RECORD).min().over(QUERY_ID).alias("first"),
    )
    pages = judged.filter(~pl.col("disagrees") & (pl.col(RECORD) == pl.col("first")))
    others = judged.join(pages, on=RECORD, how="anti")
    outcomes = [
        with_outcome(queries.filter("repeats"), Outcome.BAD_HITS),
        with_outcome(good.filter(~counts), Outcome.NO_HITS),
        with_outcome(others.filter("disagrees"), Outcome.QUERIES_DISAGREE),
        with_outcome(others.filter(~pl.col("disagrees")), Outcome.REPEATED_QUERY),
    ]
    return pl.concat(outcomes), pages.select(RECORD, QUERY_ID, USER_QUERY, "ids", _LISTED, *OF_THE_QUERY)


def _hits(pages: pl.DataFrame) -> pl.DataFrame:
    """Impressions of hit lists: `query_id`, `object_id` and `position`, the place in the list from 1."""
    listed = pages.filter(_LISTED).select(QUERY_ID, pl.col("ids").alias(OBJECT_ID))
    places = pl.int_ranges(1, pl.col(OBJECT_ID).list.len().cast(pl.Int64) + 1).alias(POSITION)
    exploded = listed.with_columns(places).explode(OBJECT_ID, POSITION)
    return exploded.with_columns(pl.lit(value=True).alias(_LISTED))


def _impressions(
    events: pl.DataFrame, known: pl.DataFrame, pages: pl.DataFrame, rules: RawRules
) -> tuple[pl.DataFrame, pl.DataFrame, pl.Series]:
    """The outcomes of impression events, what was shown, and the pages whose impressions contradict each other."""
    base = rules.bases.get(IMPRESSION)
    unused = events.join(pages, on=QUERY_ID, how="anti")
    events = events.join(pages.select(QUERY_ID, _LISTED), on=QUERY_ID, how="inner", maintain_order="left")
    in_list = _hits(pages).select(*_ON_PAGE, pl.col(POSITION).alias(_IN_LIST))
    events = events.join(in_list, on=_ON_PAGE, how="left", maintain_order="left")
    whole = pl.col(ORDINAL).is_finite() & (pl.col(ORDINAL) == pl.col(ORDINAL).floor())
    below = pl.col(ORDINAL) < (0 if base is None else base)
    outcome = (
        pl.when(_LISTED)
        .then(pl.when(pl.col(_IN_LIST).is_null()).then(int(Outcome.NOT_IN_HITS)).otherwise(0))
        .when(pl.lit(base is None))
        .then(int(Outcome.NO_BASE))
        .when(~whole.fill_null(value=False))
        .then(int(Outcome.NO_ORDINAL))
        .when(below)
        .then(int(Outcome.BELOW_BASE))
        .otherwise(0)
    )
    by_ordinal = (pl.col(ORDINAL) - (base or 0) + 1).cast(pl.Int64, strict=False)
    position = pl.when(_LISTED).then(_IN_LIST).otherwise(by_ordinal).alias(POSITION)
    events = events.with_columns(outcome.cast(pl.UInt8).alias(OUTCOME), position)
    placed = events.filter(pl.col(OUTCOME) == 0)
    different = placed.select(*_ON_PAGE, POSITION).unique().group_by(QUERY_ID)
    counts = different.agg(rows=pl.len(), docs=pl.col(OBJECT_ID).n_unique(), places=pl.col(POSITION).n_unique())
    at_odds = counts.filter(pl.min_horizontal("docs", "places") < pl.col("rows"))[QUERY_ID]
    in_doubt = pl.col(QUERY_ID).is_in(at_odds.implode())
    shown = placed.filter(~in_doubt).unique(_ON_PAGE, keep="first", maintain_order=True)
    outcomes = [
        with_outcome(unused.join(known, on=QUERY_ID, how="semi"), Outcome.PAGE_NOT_USED),
        with_outcome(unused.join(known, on=QUERY_ID, how="anti"), Outcome.NO_QUERY),
        events.filter(pl.col(OUTCOME) > 0).select(RECORD, OUTCOME),
        with_outcome(placed.filter(in_doubt), Outcome.CONTRADICTION),
        with_outcome(shown, Outcome.IMPRESSION),
        with_outcome(placed.filter(~in_doubt).join(shown, on=RECORD, how="anti"), Outcome.REPEATED_IMPRESSION),
    ]
    return pl.concat(outcomes), shown.select(*_ON_PAGE, POSITION, _LISTED), at_odds


def _clicks(clicks: pl.DataFrame, shown: pl.DataFrame, rules: RawRules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The click events that count, and the outcomes of the others."""
    judged = clicks.join(shown, on=_ON_PAGE, how="left", maintain_order="left")
    # The ordinal of a click, read from its action's base, is not that of the impression's ordinal.
    differs = pl.lit(value=False)
    for action in (action for action in rules.click_actions if action in rules.bases):
        differs |= (pl.col(ACTION) == action) & (pl.col(ORDINAL) - rules.bases[action] + 1 != pl.col(POSITION))
    elsewhere = differs.fill_null(value=False) & ~pl.col(_LISTED).fill_null(value=True)
    is_joined = pl.col(OUTCOME) == UNDECIDED
    outcomes = [
        judged.filter(~is_joined).select(RECORD, OUTCOME),
        with_outcome(judged.filter(is_joined & elsewhere), Fate.OTHER_POSITION),
    ]
    return judged.filter(is_joined & ~elsewhere), pl.concat(outcomes)


_MOSTLY = 0.5
_INDEX_AND_TAB = r"^[^{\t]*\t\s*\{"


@dataclass(frozen=True)
class Ubi(Form):
    """Documents of ubi_queries and ubi_events."""

    name = "ubi"
    title = "UBI"
    has_actions = True
    formats = ("ndjson", "tsv")
    expected = (
        "UBI documents are read as NDJSON, one per line, plain or as bulk requests; name the file .ndjson or .jsonl "
        "(.gz, .zst)."
    )
    columns = COLUMNS
    kinds = Outcome
    # Damage, or a position base that shifts every position.
    fatal = (Outcome.NOT_AN_OBJECT, Outcome.UNKNOWN_DOCUMENT, Outcome.QUERY_WITHOUT_ID, Outcome.BELOW_BASE)
    other_action = Outcome.OTHER_ACTION
    key = QUERY_ID

    def knows_document(self, document: dict[str, Any]) -> bool:
        """A query or an event has the id of a query."""
        return QUERY_ID in document and not {ACTION_NAME, USER_QUERY}.isdisjoint(document)

    def roles(self, requested: Roles) -> Roles:
        """The columns that were named, and those of UBI for the others."""
        return requested.or_else(session=QUERY_ID, query=USER_QUERY, doc=OBJECT_ID, position=POSITION, click=CLICK)

    def ids(self) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
        """The query, and the object."""
        return pl.col(QUERY_ID), pl.col(QUERY_ID), pl.col(OBJECT_ID)

    def named_position(self) -> pl.Expr:
        """The ordinal that a click names."""
        return whole_position(ORDINAL)

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """One record per line."""
        lines = scan_lines(source).with_columns(_document().alias(LINE), pl.lit(number, pl.UInt32).alias(FILE))
        return _read_records(lines, self.rules)

    def join(self, records: pl.DataFrame, undecided: pl.DataFrame) -> Joined:
        """Impressions and outcomes of the records of some pages."""
        return _join(records, undecided, self.rules)

    def positions(self, rows: int, counts: Counter[str]) -> dict[str, int]:
        """From hit lists, or from ordinals."""
        return {"from_hit_lists": rows - counts[BY_ORDINAL], "from_ordinals": counts[BY_ORDINAL]}

    def judge(self, where: str, rows: int, counts: Counter[str], account: RawLines) -> None:
        """Check that pages were shown, and that most of them do not contradict themselves.

        Raises:
            SchemaError: nothing was shown, or a query_id is no page.
        """
        pages, contradicting = counts[PAGES], counts[CONTRADICTING]
        if contradicting > _MOSTLY * pages:
            raise SchemaError(
                f"{where}: {contradicting:,} of {pages:,} pages contradict themselves: a query_id with several queries "
                "or hit lists, two documents at one position, or one at two. A query_id is one results page; too many "
                f"of them are not. {self.in_words(account)}"
            )
        if rows and not counts[CLICKS] and account.other_actions:
            raise self.no_clicks(where, self.rules.click_actions, account)
        if rows:
            return
        advice = "Nothing that was shown could be read."
        if self.rules.impressions == "hits":
            advice = (
                "No query has a hit list (query_response_hit_ids). If the log has impression events, use "
                "--ubi-impressions events --position-base impression=N, where N is the ordinal of the topmost position."
            )
        raise SchemaError(f"{where}: {advice} {self.in_words(account)}")


def _document() -> pl.Expr:
    """The document of a line: alone, after the name of its index and a tab, or as a hit of a search (`_source`)."""
    line = pl.col(LINE)
    alone = pl.when(line.str.starts_with("{")).then(line).otherwise(line.str.replace(_INDEX_AND_TAB, "{"))
    is_hit = line.str.contains('"_source"', literal=True)
    return pl.when(is_hit).then(pl.coalesce(alone.str.json_path_match("$._source"), alone)).otherwise(alone)
