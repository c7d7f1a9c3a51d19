"""What becomes of each line of UBI files. Every line has one fate, so that those used and not used add up to all.

A real UBI log holds much that is no part of a page's impressions and clicks: repeated impressions, clicks on what was
not in the list, events of other actions or without a query. Such lines are counted and said, and do not stop a run.
What stops it is what no UBI client writes, or what shows that the options are wrong: `FATAL`.
"""

from enum import IntEnum


class Fate(IntEnum):
    """What becomes of a line."""

    QUERY = 1
    IMPRESSION = 2
    CLICK = 3

    BLANK = 10
    ACTION_LINE = 11
    NOT_AN_OBJECT = 12
    UNKNOWN_DOCUMENT = 13
    QUERY_WITHOUT_ID = 14

    BLANK_QUERY = 20
    BAD_HITS = 21
    NO_HITS = 22
    REPEATED_QUERY = 23
    QUERIES_DISAGREE = 24
    NO_IMPRESSIONS = 25

    OTHER_ACTION = 30
    NOT_ASKED_FOR = 31
    EVENT_WITHOUT_ID = 32
    NO_OBJECT = 33
    NO_QUERY = 34
    PAGE_NOT_USED = 35
    CONTRADICTION = 36

    NOT_IN_HITS = 40
    NO_BASE = 41
    NO_ORDINAL = 42
    BELOW_BASE = 43
    REPEATED_IMPRESSION = 44

    NOT_SHOWN = 50
    OTHER_POSITION = 51
    REPEATED_CLICK = 52


USED = {Fate.QUERY: "queries", Fate.IMPRESSION: "impressions", Fate.CLICK: "clicks"}
"""Lines that made the log, as they stand in the manifest."""

FATAL = (Fate.NOT_AN_OBJECT, Fate.UNKNOWN_DOCUMENT, Fate.QUERY_WITHOUT_ID, Fate.BELOW_BASE)
"""Lines that stop the run unless bad rows are dropped: damage, or a position base that shifts every position."""

REASONS: dict[Fate, str] = {
    Fate.BLANK: "blank lines",
    Fate.ACTION_LINE: "action lines of the bulk format",
    Fate.NOT_AN_OBJECT: "lines that are not a JSON object",
    Fate.UNKNOWN_DOCUMENT: "documents that are neither a query nor an event",
    Fate.QUERY_WITHOUT_ID: "queries without a query_id",
    Fate.BLANK_QUERY: "queries without a user_query",
    Fate.BAD_HITS: "queries whose hit list is not a list of different ids",
    Fate.NO_HITS: "queries without hits",
    Fate.REPEATED_QUERY: "queries that were written before",
    Fate.QUERIES_DISAGREE: "queries whose query_id has another user_query or hit list as well",
    Fate.NO_IMPRESSIONS: "queries of which nothing was shown",
    Fate.OTHER_ACTION: "events of other actions",
    Fate.NOT_ASKED_FOR: "impression events, as hit lists say what was shown",
    Fate.EVENT_WITHOUT_ID: "events without a query_id",
    Fate.NO_OBJECT: "events without an object_id",
    Fate.NO_QUERY: "events whose query was not recorded",
    Fate.PAGE_NOT_USED: "events whose query is not used",
    Fate.CONTRADICTION: "events and queries of pages with two documents at one position, or one at two",
    Fate.NOT_IN_HITS: "impressions of a document that is not in the hit list",
    Fate.NO_BASE: "impressions without a hit list: to read ordinals, say --position-base impression=N",
    Fate.NO_ORDINAL: "impressions without a hit list and without a whole ordinal",
    Fate.BELOW_BASE: "impressions whose ordinal is below the position base",
    Fate.REPEATED_IMPRESSION: "impressions that were seen before",
    Fate.NOT_SHOWN: "clicks on a document that the page did not show",
    Fate.OTHER_POSITION: "clicks whose ordinal says another position than the impression",
    Fate.REPEATED_CLICK: "clicks that were seen before",
}
"""Lines that did not make the log, as they stand in the manifest and in messages."""
