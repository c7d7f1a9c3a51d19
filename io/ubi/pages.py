"""Records of UBI, all those of each page together: which were shown and clicked, and the outcome of every record."""

import polars as pl

from posbias.io.log import lost_clicks
from posbias.io.log.lost_clicks import OUTCOME, Fate, whole_position
from posbias.io.log.raw import (
    ACTION,
    CLICKED,
    KIND,
    QUERY,
    RECORD,
    SHOWN,
    UNDECIDED,
    RawRules,
    Resolved,
    resolved,
    with_outcome,
)
from posbias.io.log.scan import FILE, ROW
from posbias.io.ubi.fields import (
    CLICK,
    COLUMNS,
    IMPRESSION,
    OBJECT_ID,
    OF_THE_QUERY,
    POSITION,
    QUERY_ID,
    USER_QUERY,
)
from posbias.io.ubi.outcomes import Outcome
from posbias.io.ubi.records import HITS, ORDINAL, ids_of

_IN_LIST = "place_in_list"
_LISTED = "listed"
_STATUS = "status"
_ON_PAGE = [QUERY_ID, OBJECT_ID]
_IDS = (
    pl.col(QUERY_ID).alias(lost_clicks.KEY),
    pl.col(QUERY_ID).alias(lost_clicks.PAGE),
    pl.col(OBJECT_ID).alias(lost_clicks.DOC),
)


BY_ORDINAL, PAGES, CONTRADICTING = "by_ordinal", "pages", "contradicting"
"""What is counted beside outcomes: rows whose position is an ordinal and not a place in a hit list; pages that have a
query, whether anything was shown or not; and those of them that were left out because records contradict each
other."""


def resolve(records: pl.DataFrame, rules: RawRules) -> Resolved:
    """Find what each page showed and what was clicked.

    A page is a query_id, and its query the user_query of its document. A query_id may have several documents: those
    without hits do not count beside one with hits; if the others differ, the page is left out.

    Args:
        records: of `read_records`; all of a page.
        rules: how they are read.
    """
    records = records.sort(FILE, ROW).with_row_index(RECORD)
    undecided = records.filter(pl.col(OUTCOME) == UNDECIDED)
    queries, pages = _queries(undecided.filter(pl.col(KIND) == QUERY), rules)
    known = records.filter((pl.col(KIND) == QUERY) & pl.col(QUERY_ID).is_not_null()).select(QUERY_ID).unique()
    events = _with_status(undecided.filter(pl.col(KIND).is_in((SHOWN, CLICKED))), known, pages)
    lost = events.filter(pl.col(_STATUS) > 0).select(RECORD, pl.col(_STATUS).alias(OUTCOME))
    events = events.filter(pl.col(_STATUS) == 0)
    if rules.impressions == "hits":
        impressions = pl.DataFrame(schema={RECORD: pl.UInt32, OUTCOME: pl.UInt8})
        shown, contradicting = _hits(pages), pl.Series(QUERY_ID, dtype=pl.String)
    else:
        impressions, shown, contradicting = _impressions(events.filter(pl.col(KIND) == SHOWN), pages, rules)
    clicks, clicked = _clicks(events.filter(pl.col(KIND) == CLICKED), shown, contradicting, rules)
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
    return resolved(
        records,
        [queries, lost, impressions, clicks, of_pages],
        _rows(shown, clicked, pages),
        shown,
        _IDS,
        whole_position(ORDINAL),
        {
            BY_ORDINAL: shown.filter(~pl.col(_LISTED)).height,
            PAGES: pages.height + disagreeing,
            CONTRADICTING: contradicting.len() + disagreeing,
        },
    )


def _queries(queries: pl.DataFrame, rules: RawRules) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The outcomes of the documents of queries that are no page, and the pages, one document each."""
    ids = ids_of(pl.col(HITS))
    queries = queries.with_columns(ids.fill_null([]).alias("ids")).with_columns(
        (pl.col("ids").list.len() > 0).alias(_LISTED),
        (pl.col("ids").list.n_unique() < pl.col("ids").list.len()).alias("repeats"),
    )
    good = queries.filter(~pl.col("repeats"))
    counts = pl.col(_LISTED)
    if rules.impressions == "events":
        counts |= ~pl.col(_LISTED).any().over(QUERY_ID)
    wanted = good.filter(counts)
    texts = pl.struct(USER_QUERY, pl.when(_LISTED).then(HITS))
    judged = wanted.with_columns(
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


def _with_status(events: pl.DataFrame, known: pl.DataFrame, pages: pl.DataFrame) -> pl.DataFrame:
    """Events with what speaks against their page, 0 where nothing does."""
    marks = (pl.lit(value=True).alias(name) for name in ("recorded", "used"))
    for those, mark in zip((known, pages), marks, strict=True):
        events = events.join(those.select(QUERY_ID, mark), on=QUERY_ID, how="left")
    is_click = pl.col(KIND) == CLICKED
    not_used = pl.when(is_click).then(int(Fate.PAGE_NOT_USED)).otherwise(int(Outcome.PAGE_NOT_USED))
    unknown = pl.when(is_click).then(int(Fate.OTHER_PAGE)).otherwise(int(Outcome.NO_QUERY))
    status = pl.when("used").then(0).when("recorded").then(not_used).otherwise(unknown)
    return events.with_columns(status.cast(pl.UInt8).alias(_STATUS)).drop("recorded", "used")


def _hits(pages: pl.DataFrame) -> pl.DataFrame:
    """What hit lists show: `query_id`, `object_id` and `position`, the place in the list from 1."""
    listed = pages.filter(_LISTED).select(QUERY_ID, pl.col("ids").alias(OBJECT_ID))
    places = pl.int_ranges(1, pl.col(OBJECT_ID).list.len().cast(pl.Int64) + 1).alias(POSITION)
    exploded = listed.with_columns(places).explode(OBJECT_ID, POSITION)
    return exploded.with_columns(pl.lit(value=True).alias(_LISTED))


def _impressions(
    events: pl.DataFrame, pages: pl.DataFrame, rules: RawRules
) -> tuple[pl.DataFrame, pl.DataFrame, pl.Series]:
    """The outcomes of impression events, what was shown, and the pages whose impressions contradict each other."""
    base = rules.bases.get(IMPRESSION)
    in_list = _hits(pages).select(*_ON_PAGE, pl.col(POSITION).alias(_IN_LIST))
    events = events.join(pages.select(QUERY_ID, _LISTED), on=QUERY_ID, how="left").join(
        in_list, on=_ON_PAGE, how="left"
    )
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
        events.filter(pl.col(OUTCOME) > 0).select(RECORD, OUTCOME),
        with_outcome(placed.filter(in_doubt), Outcome.CONTRADICTION),
        with_outcome(shown, Outcome.IMPRESSION),
        with_outcome(placed.filter(~in_doubt).join(shown, on=RECORD, how="anti"), Outcome.REPEATED_IMPRESSION),
    ]
    return pl.concat(outcomes), shown.select(*_ON_PAGE, POSITION, _LISTED), at_odds


def _clicks(
    events: pl.DataFrame, shown: pl.DataFrame, contradicting: pl.Series, rules: RawRules
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The outcomes of click events, and what was clicked: `query_id` and `object_id`."""
    in_doubt = pl.col(QUERY_ID).is_in(contradicting.implode())
    doubtful, events = events.filter(in_doubt), events.filter(~in_doubt)
    found = events.join(shown, on=_ON_PAGE, how="left", maintain_order="left")
    on_page = found.filter(pl.col(POSITION).is_not_null())
    elsewhere = _elsewhere(rules)
    good = on_page.filter(~elsewhere)
    first = good.unique(_ON_PAGE, keep="first", maintain_order=True)
    outcomes = [
        with_outcome(doubtful, Fate.PAGE_NOT_USED),
        with_outcome(found.filter(pl.col(POSITION).is_null()), Fate.NOT_SHOWN),
        with_outcome(on_page.filter(elsewhere), Fate.OTHER_POSITION),
        with_outcome(first, Fate.JOINED),
        with_outcome(good.join(first, on=RECORD, how="anti"), Fate.REPEATED),
    ]
    return pl.concat(outcomes), first.select(_ON_PAGE)


def _elsewhere(rules: RawRules) -> pl.Expr:
    """Whether the ordinal of a click, read from its action's base, is not that of the impression's ordinal."""
    known = [(action, rules.bases[action]) for action in rules.click_actions if action in rules.bases]
    differs = pl.lit(value=False)
    for action, base in known:
        differs |= (pl.col(ACTION) == action) & (pl.col(ORDINAL) - base + 1 != pl.col(POSITION))
    return differs.fill_null(value=False) & ~pl.col(_LISTED)


def _rows(shown: pl.DataFrame, clicked: pl.DataFrame, pages: pl.DataFrame) -> pl.DataFrame:
    """The log, page after page."""
    marked = clicked.with_columns(pl.lit(1, pl.Int8).alias(CLICK))
    rows = shown.join(marked, on=_ON_PAGE, how="left").with_columns(pl.col(CLICK).fill_null(0))
    of_page = pages.select(QUERY_ID, RECORD, USER_QUERY, *OF_THE_QUERY)
    return rows.join(of_page, on=QUERY_ID, how="inner").sort(RECORD, POSITION).select(COLUMNS)
