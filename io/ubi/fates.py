"""What becomes of each line of UBI files. Every line has one fate, so that those used and not used add up to all.

A real UBI log holds much that is no part of a page's impressions and clicks: repeated impressions, clicks on what was
not in the list, events of other actions or without a query. Such lines are counted and said, and never stop a run.
What stops it, unless bad rows are dropped, is what UBI does not write: `DAMAGED`.
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

DAMAGED = (Fate.NOT_AN_OBJECT, Fate.UNKNOWN_DOCUMENT, Fate.QUERY_WITHOUT_ID)
"""Lines that no UBI plugin or client writes: the file is damaged, or is something else."""

REASONS: dict[Fate, str] = {
    Fate.BLANK: "blank line",
    Fate.ACTION_LINE: "action line of the bulk format",
    Fate.NOT_AN_OBJECT: "line that is not a JSON object",
    Fate.UNKNOWN_DOCUMENT: "document that is neither a query nor an event",
    Fate.QUERY_WITHOUT_ID: "query without a query_id",
    Fate.BLANK_QUERY: "query without a user_query",
    Fate.BAD_HITS: "query whose hit list is not a list of different ids",
    Fate.NO_HITS: "query without hits",
    Fate.REPEATED_QUERY: "query that was written before",
    Fate.QUERIES_DISAGREE: "query whose query_id has another query text or hit list as well",
    Fate.NO_IMPRESSIONS: "query of which nothing was shown",
    Fate.OTHER_ACTION: "event of another action",
    Fate.NOT_ASKED_FOR: "impression event, where impressions are the hit lists",
    Fate.EVENT_WITHOUT_ID: "event without a query_id",
    Fate.NO_OBJECT: "event without an object_id",
    Fate.NO_QUERY: "event whose query was not recorded",
    Fate.PAGE_NOT_USED: "event whose query is not used",
    Fate.CONTRADICTION: "event on a page that shows two documents at one position, or one at two",
    Fate.NOT_IN_HITS: "impression of a document that is not in the hit list",
    Fate.NO_BASE: "impression without a hit list, and no --position-base impression=N says how to read its ordinal",
    Fate.NO_ORDINAL: "impression without a whole number as its ordinal",
    Fate.BELOW_BASE: "impression whose ordinal is below the position base",
    Fate.REPEATED_IMPRESSION: "impression that was seen before",
    Fate.NOT_SHOWN: "click on a document that the page did not show",
    Fate.OTHER_POSITION: "click whose ordinal says another position than the impression",
    Fate.REPEATED_CLICK: "click that was seen before",
}
"""Lines that did not, as they stand in the manifest and in messages."""
