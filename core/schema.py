"""Column names of logs, statistics and results; the roles of a log's columns; and the periods of time.

A *session* is one results page shown once (not a visit). An *impression* is one (session, document, position).
A *position* is a slot, 1-based inside the tool. A *pair* is a (query, document). A *stratum* is a pair within a period
(week, day or hour), in which its attractiveness gamma is constant. Statistics store the start of the finest period.
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
"""Options that name the columns of roles."""

RESERVED = frozenset((*FLAGS, PREVIOUS_CLICK, RANDOMIZED, CLICKS, "rejected", "rows"))
"""Column names of posbias, which further columns of a log must not have."""

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
"""Columns of the tables of a fit."""

NAMES_TAKEN = {
    "--context": RESERVED | OUTPUT_COLUMNS,
    "--cell": RESERVED | OUTPUT_COLUMNS,
    "--for-each": RESERVED | OUTPUT_COLUMNS,
    **dict.fromkeys(("--stratify", "--period-column", "--cluster-column", "--arm"), RESERVED),
}
"""Names that a column must not have if it enters tables under its own name, by the option that names it."""

NO_PREVIOUS_CLICK = 0
"""Value of `previous_click` without a click above."""

# Well-known column names of each role, not case-sensitive; the role's own name comes first
ALIASES: dict[str, tuple[str, ...]] = {
    SESSION: (SESSION, "session_id", "serp_id", "page_view_id", "impression_id", "search_id"),
    QUERY: (QUERY, "query_id", "qid"),
    DOC: (DOC, "doc_id", "document", "document_id", "item_id", "product_id", "url"),
    POSITION: (POSITION, "pos", "rank", "ordinal"),
    CLICK: (CLICK, "clicked", "is_click", "clicks"),
}

KEY_ROLES = tuple(ALIASES)
"""Roles whose columns are recognised by name unless an option names them."""


NO_SUM_OF_RANKS = (
    "A sum or an average of positions, also a sum divided by impressions, is no position: what was shown at 1 and at 9 "
    "was never at 5. Export a row for each impression, or sums of each query, document and position."
)
"""Message that averages of positions cannot be used."""


@dataclass(frozen=True)
class Roles:
    """Columns of a log by role; several columns may form one key.

    In a request, roles without a column are to be recognised by name. In an opened log, all are resolved: `session` is
    empty and `click` None if the log has none.
    """

    session: tuple[str, ...] = ()
    query: tuple[str, ...] = ()
    doc: tuple[str, ...] = ()
    position: str | None = None
    click: str | None = None  # with `impressions`, the number of clicks
    weight: str | None = None
    timestamp: str | None = None
    cell: tuple[str, ...] = ()  # on which examination depends besides the position
    context: tuple[str, ...] = ()
    stratify: tuple[str, ...] = ()  # by which attractiveness may differ
    each: tuple[str, ...] = ()  # by which separate fits are made
    only: tuple[tuple[str, object], ...] = ()  # (column, value): rows with other values are dropped
    version: tuple[str, ...] = ()  # version of the ranker, by which attractiveness may differ
    cluster: tuple[str, ...] = ()  # clusters of standard errors
    arm: tuple[str, ...] = ()  # arm of an experiment
    randomized: tuple[RandomizedRows, ...] = ()
    features: tuple[str, ...] = ()
    features_by: str = "--feature"  # the option that names them, for messages
    impressions: str | None = None  # number of impressions, if a row is a sum
    counted: tuple[str, ...] = ()  # key columns of a table of sums: previous click, experiment
    clicked: str | None = None  # list of the clicked documents of a page
    page: str | None = None  # number of the results page, if positions start anew on each
    no_query: bool = False  # whether `query` is `doc`: a document is compared with itself only
    no_page: bool = False  # whether `page` must not be recognised by name
    no_session: bool = False  # whether `session` must not be recognised by name, as if each row with lists is a page
    guessed: tuple[tuple[str, str], ...] = ()  # (option, column) recognised by a likely, not certain name

    def with_defaults(self, session: str, query: str, doc: str) -> "Roles":
        """Fill roles without a column: with these keys, and with `position` and `click`."""
        key = {SESSION: self.session or (session,), QUERY: self.query or (query,), DOC: self.doc or (doc,)}
        return replace(self, **key, position=self.position or POSITION, click=self.click or CLICK)

    def ids(self) -> list[str]:
        """Return the columns of query and document, each once."""
        return list(dict.fromkeys([*self.query, *self.doc]))

    def columns(self) -> list[str]:
        """Return all columns that have a role, each once."""
        single = (self.position, self.page, self.click, self.clicked, self.weight, self.impressions, self.timestamp)
        names = [*self.session, *self.query, *self.doc, *(c for c in single if c is not None)]
        further = [*self.cell, *self.context, *self.stratify, *self.each, *self.version, *self.cluster, *self.arm]
        further += [*self.features, *self.counted, *(name for name, _ in self.only)]
        return list(dict.fromkeys([*names, *further, *(rows.column for rows in self.randomized)]))


Resolution = Literal["day", "hour", "quarter"]
"""Resolution of time in statistics: days (Date), hours, or quarters of an hour (Datetime)."""

RESOLUTIONS: tuple[Resolution, ...] = ("day", "hour", "quarter")
"""From the coarsest to the finest."""

Length = Literal["none", "week", "day", "hour"]
"""Length of the periods within which attractiveness is constant; `none`: the whole log."""

LENGTHS: tuple[Length, ...] = ("none", "week", "day", "hour")
"""From the coarsest to the finest."""

EVERY: dict[str, str] = {"week": "1w", "day": "1d", "hour": "1h", "quarter": "15m"}
"""Resolutions and lengths as Polars writes durations."""

COARSER = frozenset(f"posbias_{length}" for length in LENGTHS[1:])
"""Columns of periods coarser than those of the statistics."""

HALF = "posbias_half"
"""Column: whether a row lies in the later half of its stratum's impressions."""

ALTERNATE = "posbias_alternate"
"""Column: whether a row lies in every second period of its stratum, the second, the fourth and so on."""


def with_periods(frame: pl.DataFrame, unit: tuple[str, ...]) -> pl.DataFrame:
    """Add the columns of coarser periods that are among the key columns of a unit."""
    periods = [
        pl.col(PERIOD).dt.truncate(EVERY[length]).alias(f"posbias_{length}")
        for length in LENGTHS[1:]
        if f"posbias_{length}" in unit
    ]
    return frame.with_columns(periods) if periods else frame


def coarsest(resolutions: Sequence[Resolution | None]) -> Resolution | None:
    """Return the coarsest of several resolutions; None if one is None, or without any."""
    if None in resolutions:
        return None
    return next((resolution for resolution in RESOLUTIONS if resolution in resolutions), None)


def coarsen_periods(statistics: pl.LazyFrame, resolution: Resolution) -> pl.LazyFrame:
    """Truncate the periods of statistics to a coarser resolution; rows of equal keys are not merged."""
    period = pl.col(PERIOD).dt.truncate(EVERY[resolution])
    return statistics.with_columns(period.cast(pl.Date) if resolution == "day" else period)
