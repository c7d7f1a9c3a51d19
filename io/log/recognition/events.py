"""What the rows of a table of events say: whether their session is a page or a visit, and where positions begin."""

import polars as pl

from posbias.core.column_names import TIMES, plain
from posbias.io.log.event_table import EventReader
from posbias.io.log.findings import Finding
from posbias.io.log.log import Log
from posbias.io.log.recognition.roles import option
from posbias.io.log.scan import reading, scan_sources, schema_of

_ROWS_OF_EVENTS = 200_000
_EVENT_VISITS = 0.1
"""Share of the sessions that show several queries, or a position twice, from which they are visits."""


def find_page_time(log: Log) -> list[Finding]:
    """The column of the time that tells the pages of a visit apart, where a session is a visit."""
    events = log.raw
    if not isinstance(events, EventReader) or events.request.time is not None:
        return []
    schema = schema_of(log.sources[0])
    time = next((name for name in schema if plain(name) in TIMES and name not in log.roles.columns()), None)
    if time is None or not _are_visits(log, events):
        return []
    said = f"a session ({', '.join(events.found.session)}) is a visit: a page is what it shows at one time, by {time!r}"
    return [Finding(said, option("--page-time", time), certain=False)]


def find_base_of_events(log: Log) -> list[Finding]:
    """Whether positions of impressions count from 0."""
    events = log.raw
    if not isinstance(events, EventReader) or events.found.position is None:
        return []
    position = pl.col(events.found.position).cast(pl.Float64, strict=False)
    with reading(log.sources):
        found = _shown(log, events).select(position).collect(engine="streaming").to_series().drop_nulls()
    base = log.request.rules.position_base - 1
    if not len(found) or found.min() != base:
        return []
    return [Finding(f"positions count from {base}", option("--position-base", str(base)))]


def _shown(log: Log, events: EventReader) -> pl.LazyFrame:
    """The impressions among the first rows."""
    return scan_sources(log.sources).head(_ROWS_OF_EVENTS).filter(events.is_shown(schema_of(log.sources[0])))


def _are_visits(log: Log, events: EventReader) -> bool:
    roles = events.found
    names = [*roles.session, *roles.query, *roles.doc, *([roles.position] if roles.position else [])]
    with reading(log.sources):
        shown = _shown(log, events).select(list(dict.fromkeys(names))).unique().collect(engine="streaming")
    if not shown.height:
        return False
    queries = pl.struct(roles.query).n_unique() > 1
    again = pl.col(roles.position).n_unique() < pl.len() if roles.position else pl.lit(value=False)
    visits = shown.group_by(roles.session).agg((queries | again).alias("visit"))["visit"]
    return visits.sum() > _EVENT_VISITS * len(visits)
