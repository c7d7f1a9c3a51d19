"""Faults of a log that no row shows: robots, days that lost clicks, sums without unclicked rows, unknown positions."""

from dataclasses import replace
from datetime import date

import polars as pl

from posbias.core.counts.checks import WITHOUT, rows_left_out
from posbias.core.counts.odd_days import LackingDays, positions_in_words
from posbias.core.errors import plural
from posbias.core.log.clients import CLIENT, FEWEST_CLIENTS, Clients, robots_among
from posbias.core.roles import CLIENTS, VISITS, plain
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT
from posbias.io.engines.engine import ReadLog
from posbias.io.log.click_log import Log, good_rows
from posbias.io.log.faults import is_top, shown_at
from posbias.io.log.scan import reading
from posbias.io.log.sql import sql_name, sql_text, sql_where
from posbias.io.log.times import free_columns
from posbias.io.results.conclusions import CAUTION, NOTE, STOP, Reason

_ROWS, _ROWS_OF_FIT = 1_000_000, 1 << 17  # the first ones, that are looked at; a fit must not wait
_FEWEST = 1000
_NAMED = 3  # clients, in a sentence
# Share of the clicks of robots from which a log is not to be used, and the largest share of the clients that they are
# then: where very many stand out, these may be people who differ from the others
_HARMFUL, _FEW = 0.05, 0.005
_NEARLY_ALL, _FEWEST_PLACES, _ROWS_OF_TOTAL = 0.9, 20, 3
_HALVES, _PLACES = "halves", "places"
_FEWEST_LOST = 20  # clicks: fewer may be lost by chance
_MOST_PAGES, _HIGH_RATE = 0.4, 1 / 3  # of pages, and of rows that are clicked: more is rare in a whole log
_OTHER_WEIGHT, _SUM = 1.5, "weight_sum"


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
    names = ", ".join(map(sql_text, robots.names[:_NAMED])) + (", ..." if len(robots.names) > _NAMED else "")
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


def reasons_of_days(lost: LackingDays | None, log: Log | None) -> list[Reason]:
    """That clicks of some days were lost; 5 % of all, and the log is not to be used.

    Args:
        lost: where they were.
        log: that was counted; None of statistics.
    """
    if lost is None:
        return []
    first, start, end = lost.positions[0], lost.days[0], lost.days[-1]
    time = None if log is None or log.raw_sources else log.roles.timestamp
    how = "`posbias collect --into STORE --remove-day DAY` takes one out of a store"
    if time is not None:
        in_a_row = (date.fromisoformat(end) - date.fromisoformat(start)).days + 1 == len(lost.days) > 1
        which = f"BETWEEN '{start}' AND '{end}'" if in_a_row else f"IN ({', '.join(map(repr, lost.days))})"
        how = sql_where(f"CAST({sql_name(time)} AS DATE) NOT {which}")
    where = "all positions" if lost.positions == lost.all_positions else positions_in_words(lost.positions)
    down = lost.positions == lost.all_positions[lost.all_positions.index(first) :]
    instead = f", or these positions: --max-position {first - 1}" if down and first > lost.all_positions[0] + 1 else ""
    span = start if len(lost.days) == 1 else f"{start} to {end}"
    sentence = (
        f"Clicks are missing on {len(lost.days)} of {plural(lost.of_days, 'days')} ({span}) at {where}: about "
        f"{lost.clicks:,.0f}, {lost.share:.1%} of all, by the other days. If they were not logged or are still to "
        f"come, leave these days out: {how}{instead}."
    )
    figures = {"days": len(lost.days), "clicks": lost.clicks, "share": lost.share}
    severity = STOP if lost.share >= _HARMFUL else CAUTION
    return [Reason("clicks-of-days-lost", severity, sentence, figures, f"days: {', '.join(lost.days)}")]


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


def reasons_of_total_rows(read: ReadLog) -> list[Reason]:
    """That a document of a table of sums is the total of the others."""
    if read.log.roles.impressions is None or read.log.request.export is not None:
        return []
    counts = pl.concat(read.buckets.map(_half_of_place)).group_by(DOC).sum().sort(_HALVES, descending=True)
    places, halves = int(counts[_PLACES].sum()), counts.filter(pl.col(DOC).is_not_null()).head(1)
    if not halves.height or halves[_HALVES].item() < max(_NEARLY_ALL * places, _FEWEST_PLACES):
        return []
    name = str(halves[DOC].item())
    how = sql_where(f"{sql_name(read.log.roles.doc[0])} <> {sql_text(name)}")
    sentence = (
        f"Document {name!r} has as many impressions as all others together, at {halves[_HALVES].item():,} of "
        f"{places:,} positions of queries: it is their total, and counts them twice. Leave its rows out: {how}."
    )
    return [Reason("total-rows", STOP, sentence, {"places": places, "halves": halves[_HALVES].item()})]


def _half_of_place(_: int, sums: pl.LazyFrame) -> pl.DataFrame:
    """By document, at how many positions of a query it has half of the impressions; without one, how many there are."""
    place, shown = (QUERY, POSITION), pl.col(IMPRESSIONS)
    several = sums.group_by(*place, DOC).agg(shown.sum()).filter(pl.len().over(place) >= _ROWS_OF_TOTAL)
    marked = several.with_columns((2 * shown == shown.sum().over(place)).cast(pl.Int64).alias(_HALVES)).collect()
    halves = marked.filter(pl.col(_HALVES) > 0).group_by(DOC).agg(pl.sum(_HALVES), pl.lit(0, pl.Int64).alias(_PLACES))
    places = pl.DataFrame({_HALVES: [0], _PLACES: [marked.select(place).n_unique()]})
    return pl.concat([halves, places.with_columns(pl.lit(None, marked[DOC].dtype).alias(DOC)).select(halves.columns)])


def reasons_of_left_out(read: ReadLog) -> list[Reason]:
    """How many clicks are lost with rows that are left out; with more than --max-bad-rows a log is not to be used."""
    lost, clicks = read.totals.clicks_left_out, read.totals.clicks_read
    if not lost:
        return []
    sentence, severity = f"{lost:,} of {clicks:,} clicks ({lost / clicks:.1%}) are on rows that are left out.", NOTE
    if lost > max(read.log.request.max_bad_rows * clicks, _FEWEST_LOST):
        sentence, severity = f"{sentence[:-1]}: the rest is no fair part of what was clicked. Mend these rows.", STOP
    return [Reason("clicks-left-out", severity, sentence, {"clicks": lost, "of": clicks})]


def reasons_of_pages(read: ReadLog) -> list[Reason]:
    """That rows without clicks were thinned out, or that some pages were logged only down to their last click."""
    if read.some_pages is None:
        return []
    reasons, rate = list[Reason](), read.totals.clicked / max(read.totals.impressions, 1)
    if rate > _HIGH_RATE and read.log.roles.weight is None:
        lacks = pl.col(POSITION).max() > pl.col(POSITION).n_unique()
        of_pages = read.some_pages.head(_ROWS_OF_FIT).group_by(SESSION).agg(lacks.alias(WITHOUT))
        lacking = of_pages.select(pl.col(WITHOUT).mean()).collect(engine="streaming").item() or 0.0
        sentence = (
            f"{rate:.0%} of the rows are clicked, and {lacking:.0%} of the pages lack results above others. If rows "
            "without a click were thinned out, propensities are far too high at low positions. Export all rows, or "
            "thin out whole pages."
        )
        stop = Reason("pages-with-gaps", STOP, sentence, {"clicked": rate, "lacking": lacking})
        reasons += [stop] if lacking > _MOST_PAGES else []
    ends = read.totals.page_ends
    if ends.partly_cut_off:
        sentence = (
            f"{ends.ended / ends.pages:.0%} of the pages with a click end on one, where results above are clicked at a "
            f"rate of {ends.clicks_above / ends.rows_above:.0%}. If some clients log pages only down to the last "
            "click, propensities are too high at low positions. Leave these clients out."
        )
        reasons.append(Reason("pages-end-on-clicks", CAUTION, sentence, {"ended": ends.ended, "pages": ends.pages}))
    return reasons


def reasons_of_weights(read: ReadLog) -> list[Reason]:
    """That rows with clicks weigh less or more than others."""
    if read.log.roles.weight is None:
        return []
    sums = dict(pl.concat(read.pieces.map(_weight_by_click)).group_by(CLICK).sum().select(CLICK, _MEAN).iter_rows())
    clicked, others = sums.get(1, 0.0), sums.get(0, 0.0)
    if not 0 < max(clicked, others) > _OTHER_WEIGHT * min(clicked, others) > 0:
        return []
    sentence = (
        f"Rows with a click weigh {clicked:.3g} on average, the others {others:.3g}: rows seem to be sampled by their "
        "clicks. Weights make up for that only where each document has many rows; with few, propensities are too low "
        "at low positions. Export all rows, or sample whole pages."
    )
    return [Reason("weights-depend-on-clicks", CAUTION, sentence, {"clicked": clicked, "others": others})]


def reasons_of_base(log: Log) -> list[Reason]:
    """That few impressions are at the first position of a log that counts from 0 or below: these may be unknown."""
    base = log.request.rules.position_base
    if base > 0 or log.raw is not None:
        return []
    with reading([*log.sources, *log.click_sources]):
        shown = shown_at(good_rows(log.impressions).head(_ROWS_OF_FIT))
    if is_top(1, shown) or 1 not in shown:
        return []
    sentence = (
        f"Position {base} has {shown[1]:,} impressions, and position {base + 1} {shown.get(2, 0):,}: a list has its "
        f"first place about as often as its second. If {base} means that a position is unknown, leave these rows out: "
        f"--on-bad-rows drop, without --position-base {base}."
    )
    return [Reason("top-seldom-shown", CAUTION, sentence, {"first": shown[1], "second": shown.get(2, 0)})]


def reasons_of_rows(read: ReadLog) -> list[Reason]:
    """What speaks against the rows of a log: robots among clients, and rows and clicks that are missing."""
    clients = reasons_of_clients(look_at_clients(read.log, _ROWS_OF_FIT))
    return [*clients, *reasons_beside_clients(read)]


def reasons_beside_clients(read: ReadLog) -> list[Reason]:
    """What speaks against the rows besides their clients, of which `check` looks at more."""
    return [
        *reasons_of_sums(read),
        *reasons_of_total_rows(read),
        *reasons_of_left_out(read),
        *reasons_of_pages(read),
        *reasons_of_weights(read),
        *reasons_of_base(read.log),
    ]


_MEAN = pl.col(_SUM) / pl.col("rows")


def _weight_by_click(_: int, rows: pl.LazyFrame) -> pl.DataFrame:
    sums = pl.len().cast(pl.Int64).alias("rows"), pl.col(WEIGHT).cast(pl.Float64).sum().alias(_SUM)
    return rows.group_by(CLICK).agg(*sums).collect(engine="streaming")


def _rows_by_size(_: int, sums: pl.LazyFrame) -> pl.DataFrame:
    rows = pl.len().cast(pl.Int64).alias("rows")
    without = (pl.col(CLICK) == 0).sum().cast(pl.Int64).alias(WITHOUT)
    clicks = pl.col(CLICK).cast(pl.Int64).sum().alias(CLICKS)
    by_size = sums.group_by(POSITION, pl.col(IMPRESSIONS).cast(pl.Int64))
    return by_size.agg(rows, clicks, without).collect(engine="streaming")
