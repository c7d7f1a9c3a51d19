"""The profile of a log: named quantities, which the table of faults (`io/log/faults.toml`) compares with limits.

Sources are the counts (`PartsWithFacts`), a sample of whole pages, and the first rows.

Click rates by day come from the statistics, part by part. A new day is compared only with the nearest days of a store,
so that adding a day costs no more as the store grows.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from math import inf, prod
from pathlib import Path

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.check import (
    ROWS_OF_LONG_PAGES,
    LogDetails,
    LogFacts,
    Movement,
    Outlook,
    PageFacts,
    add_details,
    add_facts,
    log_details,
    log_facts,
    movement,
    outlook,
    page_facts,
)
from posbias.core.counts.checks import WITHOUT, CountedPages, count_pages, rows_left_out
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.odd_days import (
    DayReport,
    LackingDays,
    compare_days,
    count_by_day,
    count_positions,
    days_lacking_clicks,
    merge_day_counts,
    nearest_days,
    positions_in_words,
)
from posbias.core.counts.sufficient_statistics import PartStatistics, SufficientStatistics, compress_part, merge_parts
from posbias.core.fit.model_tests import ModelTests, run_model_tests
from posbias.core.log.pages import FEWER_THAN_EXPECTED
from posbias.core.models import get_model
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.standard_errors.cluster import FEW_EFFECTIVE_CLUSTERS
from posbias.io.counting.count import PartsWithFacts, store_part
from posbias.io.counting.first_rows import FirstRows, base_quantities, first_row_quantities, read_first_rows
from posbias.io.engines.engine import Engine, ReadLog, collected, sample_rows, sums_by
from posbias.io.log.click_log import Log
from posbias.io.log.faults import Quantity, faults_in, is_top
from posbias.io.log.scan import reading
from posbias.io.log.sql import sql_name, sql_text, sql_where
from posbias.io.progress import Progress
from posbias.io.results.conclusions import Reason
from posbias.io.stores.metadata import Part, Segment
from posbias.io.stores.store import Statistics, checked, scan_part

ROWS_OF_CHECK, ROWS_OF_OTHERS = 1_000_000, 1 << 17
"""Maximum number of first rows to analyse: for `check`, and for other commands, which must be fast."""

PAGES_OF_CHECK, PAGES_OF_OTHERS = 2_000_000, 1 << 17
"""Approximate number of rows in the sample of whole pages: for `check`, and for other commands."""

ROWS_TO_TEST = 1 << 17
"""Approximate number of rows in the sample of whole pages for tests of the model."""

# A document is a total of the others if it has half of the impressions at this share of the (query, position), and at
# so many at least, among those with so many documents
_NEARLY_ALL, _FEWEST_PLACES, _FEWEST_DOCS = 0.9, 20, 3
_HALVES, _PLACES, _ROWS = "halves", "places", "rows"
_FEWEST_LOST = 20  # fewest lost clicks to report: fewer may be chance
_HARDLY_ANY = 0.01  # of expected pages: where users leave after a click, pages are somewhat rarer than expected, too
_TIMES_EXPECTED = 10  # pages clicked in full are improbable above so many times their expected number
_SEED_OF_PAGES = 2
_FEW_ROWS = 20  # of a document, below which its weighted counts are no more than chance where weights go with clicks
_SURELY_DIFFERENT, _WEIGHTS_ALIKE = 5.0, 1.1  # standard errors, and the ratio of weights below which errors are small

_Quantities = dict[str, Quantity]


def facts_of_rows(read: ReadLog, plan: StatisticsPlan) -> LogFacts | None:
    """Compute the facts of a log from its rows, without statistics; None if it has no rows."""
    by_part = read.buckets.map(partial(_facts_of_rows, deepest=plan.max_position))
    facts_by_part = [facts for facts in by_part if facts is not None]
    return add_facts(facts_by_part) if facts_by_part else None


def _facts_of_rows(_: int, rows: pl.LazyFrame, deepest: int | None) -> LogFacts | None:
    shown = rows if deepest is None else rows.filter(pl.col(POSITION) <= deepest)
    weight = pl.col(WEIGHT) if WEIGHT in rows.collect_schema() else pl.lit(1, pl.Int64)
    weighed = shown.select(QUERY, POSITION, weight.alias(IMPRESSIONS), (weight * pl.col(CLICK)).alias(CLICKS))
    counts = weighed.group_by(QUERY, POSITION).sum().sort(QUERY).collect(engine="streaming")
    return log_facts(counts) if counts.height else None


def sample_of_pages(read: ReadLog, most: int, *, of_queries: bool = False) -> pl.DataFrame | None:
    """Sample whole pages, about `most` rows; with `of_queries`, all pages of some queries. None without sessions.

    If pages have several queries, sessions are sampled, so that pages stay whole.
    """
    pages = read.page_sample
    if pages is None:
        return None
    one_in = -(-pages.select(pl.len()).collect(engine="streaming").item() // most)
    key = QUERY if of_queries and not read.log.page_rules.several_queries else SESSION
    sample = pages if one_in <= 1 else pages.filter(pl.col(key).hash(_SEED_OF_PAGES) % one_in == 0)
    return sample.collect(engine="streaming")


def pages_to_test(read: ReadLog | None, plan: StatisticsPlan) -> CountedPages | None:
    """Count a sample of whole pages by the clicks above; None without pages or with weighted impressions."""
    pages = None if read is None or plan.weighted else read.page_sample
    if pages is None:
        return None
    sample = sample_rows([pages], ROWS_TO_TEST)[0]
    by_position = replace(plan, position_bins=())  # click rates differ within a bin of positions
    return count_pages(sample, by_position) if sample.height else None


def faults_of_log(
    read: ReadLog, facts: LogFacts | None, plan: StatisticsPlan, lost: LackingDays | None = None, *stated: str
) -> list[Reason]:
    """Return the faults of a log, without those of its columns (`column_faults`).

    Args:
        read: the log.
        facts: facts of its counts; None if there are no counts.
        plan: keys of the counts.
        lost: days and positions that lost clicks.
        stated: codes of reasons that are stated already, which replace some faults.
    """
    sample = sample_of_pages(read, PAGES_OF_OTHERS)
    pages = None if sample is None else page_facts(sample, read.log.roles.cell)
    first = read_first_rows(read, ROWS_OF_OTHERS, sample)
    return faults_in(profile(read, facts, plan, pages, first) | profile_of_days(lost, read.log), stated)


def profile(
    read: ReadLog, facts: LogFacts | None, plan: StatisticsPlan, pages: PageFacts | None, first: FirstRows | None
) -> _Quantities:
    """Return the quantities of a log; for the arguments see `faults_of_log`."""
    totals, log = read.totals, read.log
    sums = log.roles.impressions is not None and log.request.export is None
    left_out, clicks = totals.clicks_left_out, totals.clicks_read
    return {
        "clicks_read": clicks,
        "clicks_left_out": left_out,
        "share_of_clicks_left_out": left_out / max(clicks, 1),
        "most_clicks_left_out": max(log.request.max_bad_rows * clicks, _FEWEST_LOST),
        **(first_row_quantities(first, log) if first is not None else {}),
        **(_sum_quantities(read) | _total_row_quantities(read) if sums else {}),
        **(_weight_quantities(read, plan) if log.roles.weight is not None else {}),
        **(_count_quantities(facts, plan, log) if facts is not None else {}),
        **(_page_quantities(pages, read, facts, plan) if pages is not None and pages.pages else {}),
    }


def _count_quantities(facts: LogFacts, plan: StatisticsPlan, log: Log) -> _Quantities:
    """Quantities of positions and queries; a bin of positions is its first position."""
    positions: list[int] = facts.positions[POSITION].to_list()
    shown, base = dict(facts.positions.select(POSITION, IMPRESSIONS).iter_rows()), log.request.rules.position_base
    from_0 = base <= 0 and log.raw is None and not plan.position_bins
    return {
        "positions": len(positions),
        "first_position": positions[0],
        "last_position": positions[-1],
        "missing_positions": 0 if plan.position_bins else positions[-1] - positions[0] + 1 - len(positions),
        "clicks_at_first": float(facts.positions[CLICKS][0]),
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


def _page_quantities(pages: PageFacts, read: ReadLog, facts: LogFacts | None, plan: StatisticsPlan) -> _Quantities:
    """Quantities of a sample of pages, and of the ends of all pages."""
    ends, totals = read.totals.page_ends, read.totals
    # Expected numbers of pages hold for independent clicks; else there are more pages without a click.
    rates = [] if facts is None else facts.positions["ctr"].head(ROWS_OF_LONG_PAGES).to_list()
    rows_clicked = (ends.clicks_above + ends.ended) / max(ends.rows_above + ends.pages, 1)  # of pages with a click
    in_all, rows_of_page = ends.pages + ends.without_click, ends.rows_above / max(ends.pages, 1) + 1
    expected = in_all * (1 - rows_clicked) ** rows_of_page
    rate = np.zeros(0) if facts is None else facts.positions[CLICKS].to_numpy() / max(in_all, 1)  # clicks per page
    none = float(np.prod(1 - rate))
    several = pages.pages * (1 - none - none * float((rate / (1 - rate)).sum())) if (rate < 1).all() else 0.0
    thinned = pages.thinned
    quantities: _Quantities = {
        "pages": pages.pages,
        "single_pages": pages.single,
        "single_pages_clicked": pages.single_clicked / max(pages.single, 1),
        "pages_clicked_twice": pages.several_clicks,
        "pages_clicked_twice_expected": several,
        "most_pages_clicked_twice": several * _HARDLY_ANY,
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
        "pages_in_all": in_all,
        "pages_without_click": ends.without_click,
        "pages_without_click_expected": expected,
        "most_pages_without_click": expected * _HARDLY_ANY,
        "click_rate_above": ends.clicks_above / max(ends.rows_above, 1),
        "clicked_at_top": pages.clicked_at_top,
        "clicked_at_end": pages.clicked_at_end,
        "length_never_clicked": pages.never_clicked[0],
        "pages_never_clicked": pages.never_clicked[1],
        "clicks_never_made": pages.never_clicked[1] * (1 - pages.without_click / pages.pages),
        "few_clicked_at_top": pages.clicked_at_end / FEWER_THAN_EXPECTED,
    }
    if pages.least_logged is not None:
        position, share = pages.least_logged
        quantities |= {"lacking_position": position, "lacking_share": 1 - share, "times_too_high": 1 / max(share, 0.01)}
    if thinned is not None and thinned.position <= (plan.max_position or inf):
        quantities |= {
            "thinned_position": thinned.position,
            "thinned_above": thinned.position - 1,
            "thinned_shown": thinned.shown,
            "thinned_clicked": thinned.times_clicked,
        }
    if pages.shifted is not None:
        quantities |= base_quantities(pages.shifted, read.log)
    return quantities


def profile_of_days(lost: LackingDays | None, log: Log | None) -> _Quantities:
    """Quantities of days that lost clicks, with the option that excludes them.

    Args:
        lost: days and positions that lost clicks; None if there are none.
        log: the log; None for stores.
    """
    if lost is None:
        return {}
    first, start, end = lost.positions[0], lost.days[0], lost.days[-1]
    time = None if log is None or log.raw_sources else log.roles.timestamp
    how = "`posbias collect --into STORE --remove-day DAY` takes one out of a store"
    if time is not None:
        consecutive = (date.fromisoformat(end) - date.fromisoformat(start)).days + 1 == len(lost.days) > 1
        which = f"BETWEEN '{start}' AND '{end}'" if consecutive else f"IN ({', '.join(map(repr, lost.days))})"
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


def _sum_quantities(read: ReadLog) -> _Quantities:
    """Quantities of a table of sums that lacks rows without clicks; empty if it lacks none."""
    by_size = pl.col(POSITION), pl.col(IMPRESSIONS).cast(pl.Int64)
    counts = {
        _ROWS: pl.len().cast(pl.Int64),
        CLICKS: pl.col(CLICK).cast(pl.Int64).sum(),
        WITHOUT: (pl.col(CLICK) == 0).sum().cast(pl.Int64),
    }
    lacking, column = rows_left_out(sums_by(read.pieces, by_size, **counts)), read.log.roles.impressions
    if lacking is None or column is None:
        return {}
    return {
        "sums": lacking.rows,
        "sums_without_click": lacking.without_click,
        "sums_without_click_expected": lacking.expected,
        "enough_impressions": lacking.enough,
        "without_small_sums": sql_where(f"TRY_CAST({sql_name(column)} AS BIGINT) >= {lacking.enough}"),
    }


def _total_row_quantities(read: ReadLog) -> _Quantities:
    """Quantities of a document that is the total of the others in a table of sums; empty if there is none."""
    counts = pl.concat(read.buckets.map(_dominant_documents)).group_by(DOC).sum().sort(_HALVES, descending=True)
    places, halves = int(counts[_PLACES].sum()), counts.filter(pl.col(DOC).is_not_null()).head(1)
    if not halves.height or halves[_HALVES].item() < max(_NEARLY_ALL * places, _FEWEST_PLACES):
        return {}
    name = str(halves[DOC].item())
    how = sql_where(f"{sql_name(read.log.roles.doc[0])} <> {sql_text(name)}")
    return {"total_document": name, "total_places": halves[_HALVES].item(), "places": places, "without_total": how}


def _dominant_documents(_: int, sums: pl.LazyFrame) -> pl.DataFrame:
    """Count the (query, position) of three or more documents, by the document that has half of the impressions.

    Returns:
        `doc`, `halves` (their number) and `places`; the row with `doc` null has the number of all places.
    """
    place, shown = (QUERY, POSITION), pl.col(IMPRESSIONS)
    several = sums.group_by(*place, DOC).agg(shown.sum()).filter(pl.len().over(place) >= _FEWEST_DOCS)
    marked = several.with_columns((2 * shown == shown.sum().over(place)).cast(pl.Int64).alias(_HALVES)).collect()
    halves = marked.filter(pl.col(_HALVES) > 0).group_by(DOC).agg(pl.sum(_HALVES), pl.lit(0, pl.Int64).alias(_PLACES))
    places = pl.DataFrame({_HALVES: [0], _PLACES: [marked.select(place).n_unique()]})
    return pl.concat([halves, places.with_columns(pl.lit(None, marked[DOC].dtype).alias(DOC)).select(halves.columns)])


def _weight_quantities(read: ReadLog, plan: StatisticsPlan) -> _Quantities:
    """Quantities of weights: the means of rows with and without a click, and their ratio, also at one place of a query.

    With A and B the weights of rows with and without a click at one place, n1 and n0 their numbers, the ratio is

        sum_places n1 B / n  /  sum_places n0 A / n,    n = n1 + n0    (Mantel & Haenszel 1959)

    to which places whose weights are equal contribute nothing; its score is the difference of both sums over its
    standard error, clustered by query.
    """
    sums = {"weight": pl.col(WEIGHT).cast(pl.Float64).sum(), _ROWS: pl.len().cast(pl.Int64)}
    by_click = sums_by(read.pieces, [pl.col(CLICK)], **sums)
    means = dict(by_click.select(CLICK, pl.col("weight") / pl.col(_ROWS)).iter_rows())
    clicked, others = means.get(1, 0.0), means.get(0, 0.0)
    low, high = sorted((clicked, others))
    quantities: _Quantities = {
        "weight_clicked": clicked,
        "weight_unclicked": others,
        "ratio_of_weights": high / low if low > 0 else None,
        "clicked_weigh_less": clicked < others,
    }
    by_part = pl.concat(read.buckets.map(partial(_weights_in_place, plan=plan)))
    above, below, square, clicks, few = map(float, by_part.sum().row(0))
    differ = abs(above - below) > _SURELY_DIFFERENT * square**0.5
    if not differ or max(above, below) < _WEIGHTS_ALIKE * min(above, below):
        return quantities
    in_place: _Quantities = {"ratio_in_place": below / above, "share_of_few_rows": few / clicks}
    return quantities | in_place | {"clicked_weigh_less": above < below}


def _weights_in_place(_: int, rows: pl.LazyFrame, plan: StatisticsPlan) -> pl.DataFrame:
    """Sums of `_weight_quantities` over whole queries, one row, with all clicks and those of documents of few rows."""
    place, pair = (QUERY, POSITION, *plan.curve, *plan.strata), (*plan.pair_columns, *plan.strata)
    n, clicks, weight = pl.len().cast(pl.Float64), pl.col(CLICK).cast(pl.Float64), pl.col(WEIGHT).cast(pl.Float64)
    of_clicked = (weight * clicks).sum()
    above, below = (n - clicks.sum()) * of_clicked / n, clicks.sum() * (weight.sum() - of_clicked) / n
    both = (clicks.sum() > 0) & (clicks.sum() < n)
    places = rows.group_by(place).agg(above=above, below=below, both=both).filter("both")
    square = (pl.col("above").sum() - pl.col("below").sum()) ** 2
    queries = places.group_by(QUERY).agg(pl.sum("above", "below"), square=square)
    pairs = rows.group_by(pair).agg(n=n, clicks=clicks.sum())
    few = pl.col("clicks").filter(pl.col("n") < _FEW_ROWS).sum()
    of_pairs = pairs.select(pl.sum("clicks"), few=few)
    return pl.concat([queries.select(pl.sum("above", "below", "square")), of_pairs], how="horizontal").collect()


_ENOUGH_ROWS = 1 << 20
"""Approximate number of rows per counting to sum by day, as a sample of queries."""

_FIRST_ROWS = 100_000
"""Rows of a text file to find its first position: to read the whole file again would take too long."""

_WHOLE_FILE = 1 << 62
"""More rows than a file has: its slice is the whole file."""

DayComparison = tuple[list[DayReport], LackingDays | None]
"""Comparison of each new day with others, and the days and positions that lost clicks."""


def compare_days_of_log(segment: Segment, engine: Engine) -> DayComparison:
    """Compare each day of a log with its other days; a log of one day is not read."""
    if len(segment.days) < 2:  # noqa: PLR2004
        return [], None
    counts = _counts_by_day([segment], segment.days, engine)
    return compare_days(counts, segment.days, ()), days_lacking_clicks(counts)


def compare_merged_days(statistics: Sequence[Statistics], store: Statistics | None, engine: Engine) -> DayComparison:
    """Compare the days of statistics to be merged.

    Args:
        statistics: the statistics to merge; if one has no days, each is compared as a whole.
        store: the one of `statistics` to which the others are added: their days are compared with its days. None
            compares each day with all others.
        engine: engine that reads.

    Raises:
        StatisticsError: the statistics were replaced meanwhile.
    """
    with checked(statistics, engine.each, "nothing"):  # merging has validated the parts
        by_day = all(entry.metadata.plan.period for entry in statistics)
        others = [entry for entry in statistics if entry is not store]
        new = sorted({name for entry in others for name in _names(entry, by_day=by_day)})
        store_names = () if store is None else _names(store, by_day=by_day)
        known = [name for name in store_names if name not in new]
        if store is not None and not known:
            return [], None
        counts = [_count_names(entry, new, engine, by_day=by_day) for entry in others]
        if store is not None:
            nearest = {other for day in new for other in nearest_days(day, known)}
            counts.append(_count_names(store, nearest, engine, by_day=by_day))
        merged = merge_day_counts(counts)
        return compare_days(merged, new, known), days_lacking_clicks(merged if by_day else None)


def _names(statistics: Statistics, *, by_day: bool) -> tuple[str, ...]:
    """Names under which statistics are compared: their days, or their path if they are compared as a whole."""
    return tuple(statistics.days) if by_day else (str(statistics.path),)


def _count_names(statistics: Statistics, compared: Iterable[str], engine: Engine, *, by_day: bool) -> pl.DataFrame:
    """Sum the counts of statistics by name, for the names in `compared`."""
    own = _names(statistics, by_day=by_day)
    names = set(own) & set(compared)
    segments = [segment for segment in statistics.segments if names & set(segment.days if by_day else own)]
    return _counts_by_day(segments, names if by_day else own[0], engine)


def compare_files(log: Log, engine: Engine) -> list[DayReport]:
    """Return reports on files whose positions start elsewhere than in most files of the log.

    Other differences are not reported: files of countries or devices may differ in all else.
    """
    if len(log.sources) < 2 or log.nesting is not None or log.raw is not None or log.raw_sources or log.request.export:  # noqa: PLR2004
        return []
    names = [str(source.path) for source in log.sources]
    frames = [
        count_positions(frame if source.format == "parquet" else frame.head(_FIRST_ROWS), name)
        for source, frame, name in zip(log.sources, log.with_absolute_paths.slices(_WHOLE_FILE), names, strict=True)
    ]
    with reading(log.sources):
        counts = merge_day_counts(list(engine.each(frames, collected)))
    return [report for report in compare_days(counts, names, ()) if report.starts_elsewhere]


def _counts_by_day(segments: Sequence[Segment], name: str | Collection[str], engine: Engine) -> pl.DataFrame:
    """Sum the counts of segments by day, for a collection of days; or over all rows, under one name.

    Of a large segment only the first parts are read: each holds all counts of a sample of queries.
    """
    parts = list[Part]()
    for segment in segments:
        rows_of_part = max(int(segment.totals["rows"]) // (max(len(segment.parts), 1) * len(segment.countings)), 1)
        parts += [part.at(part.path.absolute()) for part in segment.parts[: -(-_ENOUGH_ROWS // rows_of_part)]]
    return merge_day_counts(list(engine.each(parts, partial(count_days_of_part, name=name))))


def count_days_of_part(part: Part, name: str | Collection[str]) -> pl.DataFrame:
    """Sum the counts of one part by day, for a collection of days; or over all rows, under one name."""
    if isinstance(name, str):
        return count_by_day(scan_part(part), pl.lit(name)).collect(engine="streaming")
    on_days = scan_part(part).filter(pl.col(PERIOD).cast(pl.Date).is_in(list(map(date.fromisoformat, name))))
    return count_by_day(on_days, pl.col(PERIOD).cast(pl.Date)).collect(engine="streaming")


PBM, UBM = "pbm", "ubm"

MOST_PARTS = 16
"""Most parts to compress: those of a larger log are a sample of queries, which are split into parts by their hash."""


@dataclass(frozen=True)
class LogSurvey:
    """Facts of a log, and the estimates to expect."""

    facts: LogFacts  # facts of all counts
    details: LogDetails  # further facts of all counts
    moved: Movement  # movement of documents between positions; estimated from a sample of queries if the log is large
    pages: PageFacts | None  # facts of `sample`; None without sessions
    sample: pl.DataFrame | None  # all pages of a sample of queries; None without sessions
    all_pages: int | None  # number of pages; an estimate if `sample` does not hold all; None without sessions
    outlooks: tuple[Outlook, ...]  # the estimate to expect of each model, the position-based one first
    why_not: dict[str, str]  # reasons why other models cannot be estimated
    statistics: SufficientStatistics  # counts of all or a sample of queries, by the position-based model
    tests: ModelTests | None  # tests of the position-based model; None if nothing can be estimated
    lost: LackingDays | None = None  # days and positions that lost clicks, by `statistics`


def survey_log(read: ReadLog, plan: StatisticsPlan, engine: Engine, progress: Progress) -> LogSurvey | None:
    """Survey a log; None if it has no row to count.

    Args:
        read: the log.
        plan: keys of the counts, by the position-based model.
        engine: engine that counts.
        progress: progress display.
    """
    survey = _survey_counts(read, plan, engine, progress) if read.rows.used else None
    if survey is None:
        return None
    facts, details, statistics, expected, lost = survey
    log = read.log
    why_no_ubm = {
        "it needs whole pages, and the log has no session column": not log.has_sessions,
        "it compares the documents of a page, and without queries each is compared with itself": (
            log.page_rules.several_queries
        ),
        "it takes no --context": bool(plan.context),
        "it takes no --cell": bool(plan.cell),
        "it takes no --duplicate-docs keep": log.page_rules.docs_repeat,
    }
    outlooks, why_not = [expected], next((reason for reason, holds in why_no_ubm.items() if holds), "")
    with progress.stage("looking at pages"):
        pages = sample_of_pages(read, PAGES_OF_CHECK, of_queries=True)
        if pages is not None and not why_not:
            ubm = replace(plan, model=get_model(UBM))
            in_cells = nw.from_native(ubm.with_cells_in_memory(pages).lazy())
            rows = ubm.count_in_cells(in_cells).to_native().sort(ubm.keys).collect()
            ubm_statistics: SufficientStatistics = merge_parts([compress_part(rows, ubm)], ubm)
            share = min(1.0, ubm_statistics.n_queries / facts.queries)
            outlooks.append(outlook(ubm_statistics, engine.memory, share))
        facts_of_pages = None if pages is None else page_facts(pages, log.roles.cell)
        fitted = None if expected.estimate is None else expected.estimate.fitted
        tests = None if fitted is None else run_model_tests(statistics, fitted, pages_to_test(read, plan), "none")
    all_pages = None
    if facts_of_pages is not None:
        all_pages = round(facts_of_pages.pages * read.rows.used / max(facts_of_pages.rows, 1))
    return LogSurvey(
        facts=facts,
        details=details,
        moved=movement(statistics.pair_signatures, expected.share),
        pages=facts_of_pages,
        sample=pages,
        all_pages=all_pages,
        outlooks=tuple(outlooks),
        why_not={UBM: why_not} if why_not else {},
        statistics=statistics,
        tests=tests,
        lost=lost,
    )


def _survey_part(
    number: int, statistics: pl.LazyFrame, plan: StatisticsPlan, folder: Path | None, most: int | None
) -> tuple[LogDetails, PartStatistics | None, pl.DataFrame] | None:
    """Return the details of a part; for the first `most` parts also its counts, and its sums by day. None if empty."""
    frame, by_day = statistics.collect(), merge_day_counts(())
    if not frame.height:
        return None
    if most is not None and number >= most:
        return log_details(frame), None, by_day
    part = compress_part(frame, plan)
    part = replace(part, pairs=part.pairs.clear())
    if plan.period and not plan.weighted:
        by_day = count_by_day(frame.lazy(), pl.col(PERIOD).cast(pl.Date)).collect()
    return log_details(frame), part if folder is None else store_part(part, number, folder), by_day


def _survey_counts(
    read: ReadLog, plan: StatisticsPlan, engine: Engine, progress: Progress
) -> tuple[LogFacts, LogDetails, SufficientStatistics, Outlook, LackingDays | None] | None:
    """Return facts, details, counts of a sample, the estimate to expect, and lost clicks; None if no row remains.

    If the first `MOST_PARTS` parts cannot be compared, all parts are compressed.
    """
    for most in (MOST_PARTS, None):
        counts = PartsWithFacts(read.statistics(plan))
        work = partial(_survey_part, plan=plan, folder=None if counts.in_memory else engine.scratch, most=most)
        parts = list[tuple[LogDetails, PartStatistics | None, pl.DataFrame]]()
        with progress.stage("counting", counts.number) as stage:
            for part in counts.map(work):
                stage.advance()
                parts += [] if part is None else [part]
        facts = counts.facts
        if facts is None:
            return None
        sample = [part for _, part, _ in parts if part is not None]
        if sample:
            statistics = merge_parts(sample, plan)
            expected = outlook(statistics, engine.memory, statistics.n_queries / facts.queries)
            if expected.carries or len(sample) == len(parts):
                lost = days_lacking_clicks(merge_day_counts([by_day for *_, by_day in parts]))
                return facts, add_details([details for details, *_ in parts]), statistics, expected, lost
    return None
