"""The profile of a log: quantities by name, which the table of faults (`io/log/faults.toml`) compares with limits.

They come from the counts, as these are made (`WithFacts`), from a sample of whole pages, and from the first rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from math import inf, prod

import polars as pl

from posbias.core.check import ROWS_OF_LONG_PAGES, LogFacts, PageFacts, PartFacts, add_facts, facts_of, page_facts
from posbias.core.counts.checks import WITHOUT, rows_left_out
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.odd_days import LackingDays, positions_in_words
from posbias.core.log.clients import CLIENT, FEWEST_CLIENTS, Clients, robots_among
from posbias.core.log.pages import ShiftedPages
from posbias.core.roles import CLIENTS, VISITS, plain
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.standard_errors.cluster import FEW_EFFECTIVE_CLUSTERS
from posbias.io.engines.engine import Output, Parts, ReadLog
from posbias.io.log.click_log import Log, good_rows
from posbias.io.log.fault_table import Quantity, faults_in
from posbias.io.log.faults import is_top
from posbias.io.log.scan import reading
from posbias.io.log.sql import sql_name, sql_text, sql_where
from posbias.io.log.times import free_columns
from posbias.io.results.conclusions import Reason

ROWS_OF_CHECK, ROWS_OF_OTHERS = 1_000_000, 1 << 17
"""The first rows, in which clients are looked for, by `check` and by other commands, which must not wait for it."""

PAGES_OF_CHECK, PAGES_OF_OTHERS = 2_000_000, 1 << 17
"""The rows of whole pages, in which gaps and late starts are looked for, by `check` and by other commands."""

_FEWEST = 1000  # rows, by which clients are judged
_NAMED = 3  # clients, in a sentence
_FEW = 0.005  # share of the clients that robots are: where very many stand out, these may be people like others
_NEARLY_ALL, _FEWEST_PLACES, _ROWS_OF_TOTAL = 0.9, 20, 3
_HALVES, _PLACES, _SUM, _ROWS = "halves", "places", "weight_sum", "rows"
_FEWEST_LOST = 20  # clicks: fewer may be lost by chance
_TIMES_EXPECTED = 10  # so many times what chance makes of the click rates of positions, that is
_SEED_OF_PAGES = 2

_Quantities = dict[str, Quantity]


@dataclass(frozen=True)
class WithFacts:
    """Statistics in parts; the facts of each are taken while other work is done on it."""

    parts: Parts
    of_parts: list[PartFacts] = field(default_factory=list[PartFacts])

    @property
    def number(self) -> int | None:
        """How many parts there are at most, where that is known."""
        return self.parts.number

    @property
    def in_memory(self) -> bool:
        """Whether there is but one part, in the memory of this process."""
        return self.parts.in_memory

    def map(self, work: Callable[[int, pl.LazyFrame], Output]) -> Iterator[Output]:
        """Yield the results of a function for each part."""
        self.of_parts.clear()
        for facts, output in self.parts.map(partial(_with_facts, work=work)):
            self.of_parts.extend([facts] if facts else [])
            yield output

    @property
    def facts(self) -> LogFacts | None:
        """The facts of the parts that were worked on; None where they are empty."""
        return add_facts(self.of_parts) if self.of_parts else None


def _with_facts(
    number: int, statistics: pl.LazyFrame, work: Callable[[int, pl.LazyFrame], Output]
) -> tuple[PartFacts | None, Output]:
    frame = statistics.collect()
    return facts_of(frame) if frame.height else None, work(number, frame.lazy())


def facts_of_rows(read: ReadLog, plan: StatisticsPlan) -> LogFacts | None:
    """The facts of a log whose rows are not counted; None where none is left."""
    of_parts = read.buckets.map(partial(_facts_of_rows, deepest=plan.max_position))
    known = [facts for facts in of_parts if facts is not None]
    return add_facts(known) if known else None


def _facts_of_rows(_: int, rows: pl.LazyFrame, deepest: int | None) -> PartFacts | None:
    shown = rows if deepest is None else rows.filter(pl.col(POSITION) <= deepest)
    weight = pl.col(WEIGHT) if WEIGHT in rows.collect_schema() else pl.lit(1, pl.Int64)
    weighed = shown.select(QUERY, POSITION, weight.alias(IMPRESSIONS), (weight * pl.col(CLICK)).alias(CLICKS))
    counts = weighed.group_by(QUERY, POSITION).sum().sort(QUERY).collect(engine="streaming")
    return facts_of(counts) if counts.height else None


def sample_of_pages(read: ReadLog, most: int, *, of_queries: bool = False) -> pl.DataFrame | None:
    """About so many rows of whole pages at most, or all pages of some queries; None where a log has no sessions.

    A page whose documents belong to several queries is chosen by its session, as else parts of it would be.
    """
    pages = read.some_pages
    if pages is None:
        return None
    one_in = -(-pages.select(pl.len()).collect(engine="streaming").item() // most)
    key = QUERY if of_queries and not read.log.page_rules.several_queries else SESSION
    chosen = pages if one_in <= 1 else pages.filter(pl.col(key).hash(_SEED_OF_PAGES) % one_in == 0)
    return chosen.collect(engine="streaming")


def faults_of_log(
    read: ReadLog, facts: LogFacts | None, plan: StatisticsPlan, lost: LackingDays | None = None, *stated: str
) -> list[Reason]:
    """The faults of a log that was read, other than those that its columns show (`doubts`).

    Args:
        read: the log.
        facts: of its counts.
        plan: what was counted.
        lost: where clicks of days were lost.
        stated: codes of other reasons, with which some faults are not stated.
    """
    sample = sample_of_pages(read, PAGES_OF_OTHERS)
    pages = None if sample is None else page_facts(sample)
    clients = look_at_clients(read.log, ROWS_OF_OTHERS)
    return faults_in(profile(read, facts, plan, pages, clients) | profile_of_days(lost, read.log), stated)


def profile(
    read: ReadLog, facts: LogFacts | None, plan: StatisticsPlan, pages: PageFacts | None, clients: Clients | None
) -> _Quantities:
    """The quantities of a log that was read; the arguments are those of `faults_of_log` and what was looked at."""
    totals, log = read.totals, read.log
    sums = log.roles.impressions is not None and log.request.export is None
    left_out, clicks = totals.clicks_left_out, totals.clicks_read
    return {
        "clicks_read": clicks,
        "clicks_left_out": left_out,
        "share_of_clicks_left_out": left_out / max(clicks, 1),
        "most_clicks_left_out": max(log.request.max_bad_rows * clicks, _FEWEST_LOST),
        **of_clients(clients),
        **(_of_sums(read) | _of_total_rows(read) if sums else {}),
        **(_of_weights(read) if log.roles.weight is not None else {}),
        **(_of_counts(facts, plan, log) if facts is not None else {}),
        **(_of_pages(pages, read, facts) if pages is not None and pages.pages else {}),
    }


def _of_counts(facts: LogFacts, plan: StatisticsPlan, log: Log) -> _Quantities:
    """Positions and queries; of bins of positions only the first of each is there."""
    positions: list[int] = facts.positions[POSITION].to_list()
    shown, base = dict(facts.positions.select(POSITION, IMPRESSIONS).iter_rows()), log.request.rules.position_base
    from_0 = base <= 0 and log.raw is None and not plan.position_bins
    return {
        "positions": len(positions),
        "first_position": positions[0],
        "last_position": positions[-1],
        "missing_positions": 0 if plan.position_bins else positions[-1] - positions[0] + 1 - len(positions),
        "positions_without_click": int((facts.positions[CLICKS] == 0).sum()),
        "base": base,
        "second": base + 1,
        "shown_first": shown.get(1, 0),
        "shown_second": shown.get(2, 0),
        "rare_top": from_0 and 1 in shown and not is_top(1, shown),
        "queries": facts.queries,
        "effective_queries": facts.effective_queries,
        "few_queries": FEW_EFFECTIVE_CLUSTERS,
        "effective_share": facts.effective_queries / facts.queries,
        "largest_query": facts.largest_query,
        "largest_share": facts.largest_share,
    }


def _of_pages(pages: PageFacts, read: ReadLog, facts: LogFacts | None) -> _Quantities:
    """A sample of pages, and where all of them end."""
    ends, totals, shifted = read.totals.page_ends, read.totals, pages.shifted
    # If clicks were independent.
    rates = [] if facts is None else facts.positions["ctr"].head(ROWS_OF_LONG_PAGES).to_list()
    return {
        "pages": pages.pages,
        "rows_per_page": pages.rows / pages.pages,
        "pages_are_first": read.log.roles.page is None,
        "share_starting_late": pages.starting_late / pages.pages,
        "share_with_gaps": pages.with_gaps / pages.pages,
        "share_lacking_positions": pages.lacking / pages.pages,
        "longest_page": pages.longest,
        "long_pages": pages.long,
        "rows_of_long_pages": ROWS_OF_LONG_PAGES,
        "pages_clicked_in_full": pages.clicked_in_full,
        "share_clicked_in_full": pages.clicked_in_full / max(pages.long, 1),
        "improbably_clicked_in_full": _TIMES_EXPECTED * pages.long * prod(rates) if rates else inf,
        "click_rate": totals.clicked / max(totals.impressions, 1),
        "rows_weigh_alike": read.log.roles.weight is None,
        "pages_partly_cut_off": ends.partly_cut_off,
        "pages_ended": ends.ended,
        "pages_with_click": ends.pages,
        "share_ended": ends.ended / max(ends.pages, 1),
        "click_rate_above": ends.clicks_above / max(ends.rows_above, 1),
        **({} if shifted is None else _of_shifted(shifted)),
    }


def _of_shifted(shifted: ShiftedPages) -> _Quantities:
    """Pages that count from another base than most."""
    return {
        "shifted_pages": shifted.pages,
        "pages_of_several_rows": shifted.of,
        "shifted_first": shifted.span[0],
        "shifted_last": shifted.span[1],
        "usual_first": shifted.usual[0],
        "usual_last": shifted.usual[1],
    }


def profile_of_days(lost: LackingDays | None, log: Log | None) -> _Quantities:
    """Days that lost clicks, and how they are left out.

    Args:
        lost: where they were.
        log: that was counted; None of statistics.
    """
    if lost is None:
        return {}
    first, start, end = lost.positions[0], lost.days[0], lost.days[-1]
    time = None if log is None or log.raw_sources else log.roles.timestamp
    how = "`posbias collect --into STORE --remove-day DAY` takes one out of a store"
    if time is not None:
        in_a_row = (date.fromisoformat(end) - date.fromisoformat(start)).days + 1 == len(lost.days) > 1
        which = f"BETWEEN '{start}' AND '{end}'" if in_a_row else f"IN ({', '.join(map(repr, lost.days))})"
        how = sql_where(f"CAST({sql_name(time)} AS DATE) NOT {which}")
    down = lost.positions == lost.all_positions[lost.all_positions.index(first) :]
    instead = f", or these positions: --max-position {first - 1}" if down and first > lost.all_positions[0] + 1 else ""
    every = lost.positions == lost.all_positions
    return {
        "days": lost.of_days,
        "lost_days": len(lost.days),
        "span_of_lost_days": start if len(lost.days) == 1 else f"{start} to {end}",
        "all_lost_days": ", ".join(lost.days),
        "positions_of_lost_days": "all positions" if every else positions_in_words(lost.positions),
        "clicks_of_days_lost": lost.clicks,
        "share_of_clicks_lost": lost.share,
        "without_days": f"{how}{instead}",
    }


def look_at_clients(log: Log, most: int) -> Clients | None:
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


def of_clients(clients: Clients | None) -> _Quantities:
    """The largest client, and those that click like robots."""
    if clients is None:
        return {}
    known = {"client_column": clients.column, "largest_client": clients.share, "rows_of_clients": clients.rows}
    robots = clients.robots
    if robots is None:
        return known
    names = ", ".join(map(sql_text, robots.names[:_NAMED])) + (", ..." if len(robots.names) > _NAMED else "")
    how = sql_where(f"({sql_name(clients.column)} IN ({names})) IS NOT TRUE")
    return known | {
        "clients": clients.number,
        "few_clients": max(_FEW * clients.number, 1),
        "robots": len(robots.names),
        "robot_names": names,
        "all_robots": ", ".join(robots.names),
        "robot_impressions": robots.impressions,
        "robot_clicks": robots.clicks,
        "robot_times": robots.times,
        "without_robots": f": {how}" if clients.can_query else " of the files",
    }


def _of_sums(read: ReadLog) -> _Quantities:
    """Rows without clicks that a table of sums lacks."""
    rows = pl.concat(read.pieces.map(_rows_by_size)).group_by(POSITION, IMPRESSIONS).sum()
    lacking = rows_left_out(rows)
    if lacking is None or read.log.roles.impressions is None:
        return {}
    return {
        "sums": lacking.rows,
        "sums_without_click": lacking.without_click,
        "sums_without_click_expected": lacking.expected,
        "enough_impressions": lacking.enough,
        "without_small_sums": sql_where(
            f"TRY_CAST({sql_name(read.log.roles.impressions)} AS BIGINT) >= {lacking.enough}"
        ),
    }


def _rows_by_size(_: int, sums: pl.LazyFrame) -> pl.DataFrame:
    rows = pl.len().cast(pl.Int64).alias(_ROWS)
    without = (pl.col(CLICK) == 0).sum().cast(pl.Int64).alias(WITHOUT)
    clicks = pl.col(CLICK).cast(pl.Int64).sum().alias(CLICKS)
    by_size = sums.group_by(POSITION, pl.col(IMPRESSIONS).cast(pl.Int64))
    return by_size.agg(rows, clicks, without).collect(engine="streaming")


def _of_total_rows(read: ReadLog) -> _Quantities:
    """A document of a table of sums that is the total of the others."""
    counts = pl.concat(read.buckets.map(_half_of_place)).group_by(DOC).sum().sort(_HALVES, descending=True)
    places, halves = int(counts[_PLACES].sum()), counts.filter(pl.col(DOC).is_not_null()).head(1)
    if not halves.height or halves[_HALVES].item() < max(_NEARLY_ALL * places, _FEWEST_PLACES):
        return {}
    name = str(halves[DOC].item())
    how = sql_where(f"{sql_name(read.log.roles.doc[0])} <> {sql_text(name)}")
    return {"total_document": name, "total_places": halves[_HALVES].item(), "places": places, "without_total": how}


def _half_of_place(_: int, sums: pl.LazyFrame) -> pl.DataFrame:
    """By document, at how many positions of a query it has half of the impressions; without one, how many there are."""
    place, shown = (QUERY, POSITION), pl.col(IMPRESSIONS)
    several = sums.group_by(*place, DOC).agg(shown.sum()).filter(pl.len().over(place) >= _ROWS_OF_TOTAL)
    marked = several.with_columns((2 * shown == shown.sum().over(place)).cast(pl.Int64).alias(_HALVES)).collect()
    halves = marked.filter(pl.col(_HALVES) > 0).group_by(DOC).agg(pl.sum(_HALVES), pl.lit(0, pl.Int64).alias(_PLACES))
    places = pl.DataFrame({_HALVES: [0], _PLACES: [marked.select(place).n_unique()]})
    return pl.concat([halves, places.with_columns(pl.lit(None, marked[DOC].dtype).alias(DOC)).select(halves.columns)])


def _of_weights(read: ReadLog) -> _Quantities:
    """Mean weights of rows with a click, and of the others."""
    mean = pl.col(_SUM) / pl.col(_ROWS)
    sums = dict(pl.concat(read.pieces.map(_weight_by_click)).group_by(CLICK).sum().select(CLICK, mean).iter_rows())
    clicked, others = sums.get(1, 0.0), sums.get(0, 0.0)
    low, high = sorted((clicked, others))
    ratio = high / low if low > 0 else None
    return {"weight_clicked": clicked, "weight_unclicked": others, "ratio_of_weights": ratio}


def _weight_by_click(_: int, rows: pl.LazyFrame) -> pl.DataFrame:
    sums = pl.len().cast(pl.Int64).alias(_ROWS), pl.col(WEIGHT).cast(pl.Float64).sum().alias(_SUM)
    return rows.group_by(CLICK).agg(*sums).collect(engine="streaming")
