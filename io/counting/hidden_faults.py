"""Faults of a log that no row shows: robots among its clients, and rows without clicks that a table of sums lacks."""

from dataclasses import replace

import polars as pl

from posbias.core.counts.checks import WITHOUT, rows_left_out
from posbias.core.log.clients import CLIENT, FEWEST_CLIENTS, Clients, robots_among
from posbias.core.roles import CLIENTS, VISITS, plain
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS, POSITION
from posbias.io.engines.engine import ReadLog
from posbias.io.log.click_log import Log, good_rows
from posbias.io.log.scan import reading, schema_of
from posbias.io.log.sql import sql_name, sql_where
from posbias.io.results.conclusions import CAUTION, STOP, Reason

_ROWS, _ROWS_OF_FIT = 1_000_000, 1 << 17  # the first ones, that are looked at; a fit must not wait
_FEWEST = 1000
_NAMED = 3  # clients, in a sentence
# Share of the clicks of robots from which a log is not to be used, and the largest share of the clients that they are
# then: where very many stand out, these may be people who differ from the others
_HARMFUL, _FEW = 0.05, 0.005


def look_at_clients(log: Log, most: int = _ROWS) -> Clients | None:
    """The clients of the first rows, `most` of them; None where no column is called like one.

    Of several columns it is the one with most values; visits serve where no column holds users. The rows are read
    again: an engine keeps no column that it does not need.
    """
    if log.raw is not None or log.roles.impressions is not None:
        return None
    names = [*log.roles.cluster, *free_columns(log), *(log.roles.session if len(log.roles.session) > 1 else ())]
    columns = [name for name in names if plain(name) in CLIENTS] or [name for name in names if plain(name) in VISITS]
    if not columns:
        return None
    seen = replace(log, roles=replace(log.roles, cluster=tuple(columns), timestamp=None))
    with reading([*log.sources, *log.click_sources]):
        rows = good_rows(seen.impressions).select(*columns, POSITION, CLICK).head(most).collect(engine="streaming")
    column = columns[0] if len(columns) == 1 else max(columns, key=lambda name: rows[name].n_unique())
    shown, clicked = pl.len().cast(pl.Int64).alias(IMPRESSIONS), pl.col(CLICK).cast(pl.Int64).sum().alias(CLICKS)
    counts = rows.drop_nulls(column).group_by(pl.col(column).alias(CLIENT), POSITION).agg(shown, clicked)
    sizes = counts.group_by(CLIENT).agg(pl.col(IMPRESSIONS).sum())[IMPRESSIONS].to_list()
    if sum(sizes) < _FEWEST or len(sizes) < FEWEST_CLIENTS:
        return None
    can_query = not log.raw_sources and log.request.query is None
    return Clients(column, len(sizes), sum(sizes), max(sizes) / sum(sizes), robots_among(counts), can_query)


def reasons_of_clients(clients: Clients | None) -> list[Reason]:
    """That some clients click like robots; where few have 5 % of the clicks a log is not to be used."""
    robots = None if clients is None else clients.robots
    if clients is None or robots is None:
        return []
    named = [name.replace("'", "''") for name in robots.names[:_NAMED]]
    names = ", ".join(f"'{name}'" for name in named) + (", ..." if len(robots.names) > _NAMED else "")
    have, leave = ("has", "it") if len(robots.names) == 1 else ("have", "them")
    how = sql_where(f"({sql_name(clients.column)} IN ({names})) IS NOT TRUE")
    sentence = (
        f"{len(robots.names):,} of {clients.number:,} clients ({clients.column} {names}) {have} "
        f"{robots.impressions:.1%} of the impressions and {robots.clicks:.0%} of the clicks, {robots.times:.1f} times "
        "as many as others at the same positions, and hardly more at the top than below. Robots do that. Leave "
        f"{leave} out{f': {how}' if clients.can_query else ' of the files'}."
    )
    figures = {"clients": len(robots.names), "impressions": robots.impressions, "clicks": robots.clicks}
    few = len(robots.names) <= max(_FEW * clients.number, 1)
    severity = STOP if robots.clicks >= _HARMFUL and few else CAUTION
    return [Reason("robot-clients", severity, sentence, figures, f"clients: {', '.join(robots.names)}")]


def reasons_of_sums(read: ReadLog) -> list[Reason]:
    """That a table of sums lacks its rows without clicks."""
    if read.log.roles.impressions is None or read.log.request.export is not None:
        return []
    rows = pl.concat(read.pieces.map(_rows_by_size)).group_by(POSITION, IMPRESSIONS).sum()
    lacking = rows_left_out(rows)
    if lacking is None:
        return []
    how = sql_where(f"TRY_CAST({sql_name(read.log.roles.impressions)} AS BIGINT) >= {lacking.enough}")
    sentence = (
        f"Rows without clicks are missing: {lacking.without_click:,} of {lacking.rows:,} rows have none, where about "
        f"{lacking.expected:,.0f} more should be. What was shown there and not clicked is not counted, most of all at "
        "low positions, whose propensities are therefore too high. Export rows with 0 clicks, too. If that cannot be, "
        f"use only rows that hardly ever are without a click, of {lacking.enough:,} impressions or more: {how}."
    )
    figures = {"rows": lacking.rows, "without_click": lacking.without_click, "expected": lacking.expected}
    return [Reason("rows-without-clicks-missing", STOP, sentence, figures)]


def reasons_of_rows(read: ReadLog) -> list[Reason]:
    """What speaks against the rows of a log: robots among clients, and rows without clicks that are missing."""
    return [*reasons_of_clients(look_at_clients(read.log, _ROWS_OF_FIT)), *reasons_of_sums(read)]


def _rows_by_size(_: int, sums: pl.LazyFrame) -> pl.DataFrame:
    rows = pl.len().cast(pl.Int64).alias("rows")
    without = (pl.col(CLICK) == 0).sum().cast(pl.Int64).alias(WITHOUT)
    clicks = pl.col(CLICK).cast(pl.Int64).sum().alias(CLICKS)
    by_size = sums.group_by(POSITION, pl.col(IMPRESSIONS).cast(pl.Int64))
    return by_size.agg(rows, clicks, without).collect(engine="streaming")


def free_columns(log: Log) -> list[str]:
    """Columns of plain values that play no role."""
    schema, played = schema_of(log.sources[0]), {*log.roles.columns()}
    return [name for name in schema if name not in played and not schema[name].is_nested()]
