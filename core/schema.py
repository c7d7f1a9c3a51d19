"""The glossary as columns: which role each column of a log plays, and by which names it is known.

A *session* is one results page shown once (not a visit). An *impression* is one (session, document, position).
A *position* is a slot, 1-based inside the tool. A *pair* is a (query, document).

Periods: how finely statistics keep time, and how long the parts of a log are within which gamma is one.

A stratum is a pair within a week, a day or an hour. Statistics keep the beginning of what is finest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from posbias.core.choices import RandomizedRows

SESSION = "session"
QUERY = "query"
DOC = "doc"
POSITION = "position"
CLICK = "click"
WEIGHT = "weight"
PERIOD = "period"
PREVIOUS_CLICK = "previous_click"
RANDOMIZED = "randomized"
IMPRESSIONS = "impressions"
CLICKS = "clicks"

PAIR = (QUERY, DOC)

FLAGS: dict[str, str] = {
    SESSION: "--session",
    QUERY: "--query",
    DOC: "--doc",
    POSITION: "--position",
    CLICK: "--click",
    WEIGHT: "--weight-column",
    IMPRESSIONS: "--impressions",
    PERIOD: "--timestamp",
}
"""The options that name the columns of roles."""

RESERVED = frozenset((*FLAGS, PREVIOUS_CLICK, RANDOMIZED, CLICKS, "rejected", "rows"))
"""Names of our own, which no further column of a log may take."""

OUTPUT_COLUMNS = frozenset(
    (
        *("ctr", "propensity", "weight_propensity", "examination", "std_error", "ci_low", "ci_high"),
        *("identified", "reason"),
        *("linking_pairs", "linking_clicks", "joint_propensity", "attractiveness", "std_dev", "signature"),
        *("smooth_propensity", "smooth_std_error", "smooth_ci_low", "smooth_ci_high"),
        *("unshrunk_propensity", "unshrunk_ci_low", "unshrunk_ci_high"),
        *("covariance", "shared_clicks", "moment_propensity"),
        *("arms_propensity", "arms_std_error", "arms_ci_low", "arms_ci_high", "cell_number"),
    )
)
"""Columns beside contexts: those of the tables of a fit, and of what they are made from."""

NAMES_TAKEN = {
    "--context": RESERVED | OUTPUT_COLUMNS,
    "--cell": RESERVED | OUTPUT_COLUMNS,
    "--for-each": RESERVED | OUTPUT_COLUMNS,
    **dict.fromkeys(("--stratify", "--period-column", "--cluster-column", "--arm"), RESERVED),
}
"""The names that a column cannot have which goes into tables under its own name, by the option that names it."""

NO_PREVIOUS_CLICK = 0
"""The value of `previous_click` where nothing above was clicked."""

# Well-known column names per role, compared without regard to case. The role's own name comes first.
ALIASES: dict[str, tuple[str, ...]] = {
    SESSION: (SESSION, "session_id", "serp_id", "page_view_id", "impression_id", "search_id"),
    QUERY: (QUERY, "query_id", "qid"),
    DOC: (DOC, "doc_id", "document", "document_id", "item_id", "product_id", "url"),
    POSITION: (POSITION, "pos", "rank", "ordinal"),
    CLICK: (CLICK, "clicked", "is_click", "clicks"),
}

KEY_ROLES = tuple(ALIASES)
"""The roles whose columns are recognised by name unless they are named."""


NO_SUM_OF_RANKS = (
    "A sum or an average of positions, also a sum divided by impressions, is no position: what was shown at 1 and at 9 "
    "was never at 5. Export a row for each impression, or sums of each query, document and position."
)
"""Why averages of positions are refused, and what to do."""


@dataclass(frozen=True)
class Roles:
    """Which columns of a log play which role, several of which may form one key.

    A request names some of them, or none: the others are recognised by their names. Of an opened log, `session` is
    empty and `click` None where it has none.
    """

    session: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    doc: tuple[str, ...] = ()
    position: str | None = None
    click: str | None = None  # the number of clicks, where a row stands for several impressions
    weight: str | None = None
    timestamp: str | None = None
    cell: tuple[str, ...] = ()  # with the position, what examination depends on
    context: tuple[str, ...] = ()
    stratify: tuple[str, ...] = ()  # tells strata apart
    each: tuple[str, ...] = ()  # tells whole fits apart
    only: tuple[tuple[str, object], ...] = ()  # columns, and the values of the rows that are read; others are left out
    version: tuple[str, ...] = ()  # that of the ranker, which tells strata apart
    cluster: tuple[str, ...] = ()  # for standard errors alone
    arm: tuple[str, ...] = ()  # which arm of an experiment a page was in
    randomized: tuple[RandomizedRows, ...] = ()
    features: tuple[str, ...] = ()
    features_by: str = "--feature"  # the options that name them
    impressions: str | None = None  # how many a row stands for
    counted: tuple[str, ...] = ()  # numbers by which a table of sums was counted already: of cells and experiments
    clicked: str | None = None  # lists the documents of a page that were clicked
    page: str | None = None  # numbers results pages on which positions begin anew
    no_query: bool = False  # then `query` is `doc`: a document is compared with itself
    no_page: bool = False  # whether no column numbers results pages, whatever its name
    no_session: bool = False  # whether no column tells pages apart, whatever its name: a row with lists is one
    guessed: tuple[tuple[str, str], ...] = ()  # options with columns that were taken from likely, not certain names

    def with_defaults(self, session: str, query: str, doc: str) -> "Roles":
        """The columns that were named, and these for the others, beside `position` and `click`."""
        key = {SESSION: self.session or (session,), QUERY: self.query or (query,), DOC: self.doc or (doc,)}
        return replace(self, **key, position=self.position or POSITION, click=self.click or CLICK)

    def ids(self) -> list[str]:
        """The columns that tell pairs apart, each once, in the log's own names."""
        return list(dict.fromkeys([*self.query, *self.doc]))

    def columns(self) -> list[str]:
        """Every column that plays a role, each once, in the log's own names."""
        single = (self.position, self.page, self.click, self.clicked, self.weight, self.impressions, self.timestamp)
        names = [*self.session, *self.query, *self.doc, *(c for c in single if c is not None)]
        further = [*self.cell, *self.context, *self.stratify, *self.each, *self.version, *self.cluster, *self.arm]
        further += [*self.features, *self.counted, *(name for name, _ in self.only)]
        return list(dict.fromkeys([*names, *further, *(rows.column for rows in self.randomized)]))


Resolution = Literal["day", "hour", "quarter"]
"""Resolution of time in statistics: days (as dates), hours, or quarters of an hour (as times)."""

RESOLUTIONS: tuple[Resolution, ...] = ("day", "hour", "quarter")
"""From the coarsest to the finest."""

Length = Literal["none", "week", "day", "hour"]
"""How long a period is within which attractiveness is one; `none` for the whole log."""

LENGTHS: tuple[Length, ...] = ("none", "week", "day", "hour")
"""From the coarsest to the finest."""

EVERY: dict[str, str] = {"week": "1w", "day": "1d", "hour": "1h", "quarter": "15m"}
"""Resolutions in Polars' words."""

COARSER = frozenset(f"posbias_{length}" for length in LENGTHS[1:])
"""The columns of periods that are coarser than what statistics keep."""

HALF = "posbias_half"
"""Whether a row lies in the later half of its stratum, by impressions."""


def with_periods(frame: pl.DataFrame, unit: tuple[str, ...]) -> pl.DataFrame:
    """Statistics, or impressions, with the columns of periods that a unit has and the statistics have not."""
    made = [
        pl.col(PERIOD).dt.truncate(EVERY[length]).alias(f"posbias_{length}")
        for length in LENGTHS[1:]
        if f"posbias_{length}" in unit
    ]
    return frame.with_columns(made) if made else frame


def coarsest(kept: Sequence[Resolution | None]) -> Resolution | None:
    """The finest resolution that all of several statistics have."""
    if None in kept:
        return None
    return next((resolution for resolution in RESOLUTIONS if resolution in kept), None)


def coarsen_periods(statistics: pl.LazyFrame, kept: Resolution) -> pl.LazyFrame:
    """Statistics that keep time more finely, with coarser periods; rows of equal keys are not added up."""
    period = pl.col(PERIOD).dt.truncate(EVERY[kept])
    return statistics.with_columns(period.cast(pl.Date) if kept == "day" else period)
