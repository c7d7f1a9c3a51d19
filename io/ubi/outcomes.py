"""What becomes of each line of UBI files. Every line has one outcome, so that those used and not used add up to all.

A real UBI log holds much that is no part of a page's impressions and clicks: repeated impressions, clicks on what was
not in the list, events of other actions or without a query. Such lines are counted and said, and do not stop a run.
What stops it is what no UBI client writes, or what shows that the options are wrong: `_FATAL`.
"""

from enum import IntEnum

from posbias.io.log.raw import Outcomes


class Outcome(IntEnum):
    """What becomes of a line."""

    QUERY = 1
    IMPRESSION = 2

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


_FATAL = (Outcome.NOT_AN_OBJECT, Outcome.UNKNOWN_DOCUMENT, Outcome.QUERY_WITHOUT_ID, Outcome.BELOW_BASE)
"""Lines that stop the run unless bad rows are dropped: damage, or a position base that shifts every position."""

_OTHERS: dict[int, str] = {
    Outcome.BLANK: "blank lines",
    Outcome.ACTION_LINE: "action lines of the bulk format",
    Outcome.NOT_AN_OBJECT: "lines that are not a JSON object",
    Outcome.UNKNOWN_DOCUMENT: "documents that are neither a query nor an event",
    Outcome.QUERY_WITHOUT_ID: "queries without a query_id",
    Outcome.BLANK_QUERY: "queries without a user_query",
    Outcome.BAD_HITS: "queries whose hit list is not a list of different ids",
    Outcome.NO_HITS: "queries without hits",
    Outcome.REPEATED_QUERY: "queries that were written before",
    Outcome.QUERIES_DISAGREE: "queries whose query_id has another user_query or hit list as well",
    Outcome.NO_IMPRESSIONS: "queries of which nothing was shown",
    Outcome.OTHER_ACTION: "events of other actions",
    Outcome.NOT_ASKED_FOR: "impression events, as hit lists say what was shown",
    Outcome.EVENT_WITHOUT_ID: "impressions without a query_id",
    Outcome.NO_OBJECT: "impressions without an object_id",
    Outcome.NO_QUERY: "impressions whose query was not recorded",
    Outcome.PAGE_NOT_USED: "impressions whose query is not used",
    Outcome.CONTRADICTION: "impressions and queries of pages with two documents at one position, or one at two",
    Outcome.NOT_IN_HITS: "impressions of a document that is not in the hit list",
    Outcome.NO_BASE: "impressions without a hit list: to read ordinals, say --position-base impression=N",
    Outcome.NO_ORDINAL: "impressions without a hit list and without a whole ordinal",
    Outcome.BELOW_BASE: "impressions whose ordinal is below the position base",
    Outcome.REPEATED_IMPRESSION: "impressions that were seen before",
}
"""Lines that did not make the log, as they stand in the manifest and in messages."""

OUTCOMES = Outcomes(
    shown={Outcome.QUERY: "queries", Outcome.IMPRESSION: "impressions"},
    others=_OTHERS,
    fatal=_FATAL,
    other_action=Outcome.OTHER_ACTION,
)
