"""Lines of UBI files as records: what each line is, and its outcome as far as the line alone decides it.

A UBI document has whatever fields its writer liked, of whatever type. So a line is read as text and asked for single
fields, and one odd line is that line's own fault.
"""

import polars as pl

from posbias.io.log.lost_clicks import OUTCOME, Fate
from posbias.io.log.raw import ACTION, CLICKED, KIND, OTHER, QUERY, SHOWN, RawRules, first_that_holds
from posbias.io.log.scan import FILE, LINE, ROW
from posbias.io.ubi.fields import ACTION_NAME, IMPRESSION, OBJECT_ID, OF_THE_QUERY, QUERY_ID, USER_QUERY
from posbias.io.ubi.outcomes import Outcome

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


def read_records(lines: pl.LazyFrame, rules: RawRules) -> pl.LazyFrame:
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
    # To ask a line for a field is to parse it: so only those lines are asked that may have it. Null costs nothing.
    of_event, of_rest, of_both = (pl.when(where).then(line) for where in (is_event, is_rest, is_event | is_rest))
    asked = lines.with_columns(
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
    read = asked.with_columns(
        kind.cast(pl.UInt8).alias(KIND),
        *(_no_blank(pl.col(name)) for name in (USER_QUERY, OBJECT_ID)),
        pl.coalesce(HITS, _OLDER_HITS, _OLDEST_HITS).alias(HITS),
        pl.col(ORDINAL).cast(pl.Float64, strict=False),
    )
    return read.with_columns(_outcome(rules).alias(OUTCOME)).select(_COLUMNS)


def ids_of(hits: pl.Expr) -> pl.Expr:
    """The ids in hit lists that `read_records` took for good."""
    return hits.str.json_decode(pl.List(pl.String))


def _no_blank(text: pl.Expr) -> pl.Expr:
    return pl.when(text.str.strip_chars() != "").then(text)


def _outcome(rules: RawRules) -> pl.Expr:
    """What the record alone says."""
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
        ((kind == SHOWN) & (rules.impressions == "hits"), Outcome.NOT_ASKED_FOR),
        ((kind == SHOWN) & pl.col(QUERY_ID).is_null(), Outcome.EVENT_WITHOUT_ID),
        ((kind == SHOWN) & pl.col(OBJECT_ID).is_null(), Outcome.NO_OBJECT),
        ((kind == CLICKED) & pl.col(QUERY_ID).is_null(), Fate.NO_PAGE),
        ((kind == CLICKED) & pl.col(OBJECT_ID).is_null(), Fate.NO_DOC),
    ]
    return first_that_holds(cases)
