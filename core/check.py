"""Statistics of a log for `check`, the estimates to expect from it, and remarks.

It is the conditional fit itself, without what a fit compares it with. From a sample of queries, standard errors are
those of the sample times sqrt(queries in it / queries in all), as errors are clustered by query.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl
import scipy
from numpy.typing import NDArray

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.counts.checks import check_no_silent_position
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError, UsageError, plural
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.estimators.methods import ConditionalEstimator
from posbias.core.fit.fit import WANTED_CLICK_SHARE, check_cells
from posbias.core.log.clients import Clients
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, SESSION
from posbias.core.standard_errors.cluster import FEW_EFFECTIVE_CLUSTERS
from posbias.core.theta.conditional import NO_CLICKS, NOT_LINKED, ONE_WAY

_KEPT = 1 << 14
_ENOUGH = 4
_SEED = 20_260_105
_RANGE = 2.0**64


@dataclass(frozen=True)
class Sketch:
    """The smallest hashes of values, ascending, each once."""

    hashes: NDArray[np.uint64]

    @classmethod
    def of(cls, values: pl.Series) -> Self:
        """The sketch of a column."""
        return cls(_smallest(values.hash(_SEED).to_numpy()))

    @classmethod
    def union(cls, several: Sequence["Sketch"]) -> Self:
        """The sketch of all values that any of several has seen."""
        return cls(_smallest(np.concatenate([sketch.hashes for sketch in several])))

    @property
    def exact(self) -> bool:
        """Whether every value is kept."""
        return len(self.hashes) < _KEPT

    @property
    def number(self) -> int:
        """How many values there are, or about so many."""
        if self.exact:
            return len(self.hashes)
        return round((_KEPT - 1) / (float(self.hashes[-1]) / _RANGE))


def _smallest(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The smallest ones, each once: of many, a part that holds enough is looked at first."""
    at = _ENOUGH * _KEPT
    if len(hashes) > at:
        low = np.unique(hashes[hashes <= np.partition(hashes, at)[at]])
        if len(low) >= _KEPT:
            return low[:_KEPT]
    return np.unique(hashes)[:_KEPT]


_CONFIDENCE = 0.975
_QUERIES = "queries"
_N, _C = pl.col(IMPRESSIONS).cast(pl.Float64), pl.col(CLICKS).cast(pl.Float64)


@dataclass(frozen=True)
class PartFacts:
    """Counts of one part; `add_facts` adds them up to those of the log."""

    # per position `impressions`, `clicks`, `queries`, and the sums over queries of their squares and products
    positions: pl.DataFrame
    queries: int  # number of queries
    squares: float  # sum over queries of their squared impressions
    largest: tuple[str, float]  # the query with the most impressions, and how many
    docs: Sketch  # the documents, counted
    days: pl.DataFrame  # `day` and `impressions`, where the statistics keep days; else empty


@dataclass(frozen=True)
class LogFacts:
    """Counts of the whole log."""

    # `position`, `impressions`, `clicks`, `ctr`, `ctr_low`, `ctr_high`, sorted; the 95 % interval is clustered by
    # query, null where one query alone holds the position
    positions: pl.DataFrame
    queries: int  # number of queries
    effective_queries: float  # so many queries of one size are as concentrated: (sum n_q)^2 / sum n_q^2
    largest_query: str  # the query with the most impressions
    largest_share: float  # its share of the impressions
    docs: int  # number of documents
    docs_exact: bool  # whether that is exact, not an estimate within some percent
    days: dict[str, float]  # impressions by day, as 2026-01-31; empty where none are known

    @property
    def impressions(self) -> float:
        """All impressions."""
        return float(self.positions[IMPRESSIONS].sum())

    @property
    def clicks(self) -> float:
        """All clicks."""
        return float(self.positions[CLICKS].sum())


def facts_of(statistics: pl.DataFrame) -> PartFacts:
    """Facts of the statistics of whole queries.

    Args:
        statistics: `query`, `doc`, `position`, further keys, `impressions`, `clicks`; the rows of a query together.
    """
    query = pl.col(QUERY).rle_id().alias(_QUERIES)
    rows = statistics.select(query, POSITION, _N, _C)
    by_query = rows.group_by(_QUERIES, POSITION).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(_QUERIES, POSITION)
    sizes = by_query.group_by(_QUERIES, maintain_order=True).agg(pl.col(IMPRESSIONS).sum())[IMPRESSIONS]
    largest = sizes.arg_max() or 0
    n, c = pl.col(IMPRESSIONS), pl.col(CLICKS)
    sums = (n.sum(), c.sum(), (n > 0).sum().cast(pl.Float64).alias(_QUERIES))
    products = ((n * n).sum().alias("nn"), (n * c).sum().alias("nc"), (c * c).sum().alias("cc"))
    return PartFacts(
        positions=by_query.group_by(POSITION).agg(*sums, *products).filter(pl.col(_QUERIES) > 0).sort(POSITION),
        queries=len(sizes),
        squares=float((sizes * sizes).sum()),
        largest=(_in_words(statistics[QUERY][rows[_QUERIES].search_sorted(largest)]), sizes[largest]),
        docs=Sketch.of(statistics[DOC]),
        days=_days(statistics),
    )


def _in_words(key: object) -> str:
    """A key as text: that of several columns by its values."""
    return ", ".join(map(str, key.values())) if isinstance(key, dict) else str(key)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _days(statistics: pl.DataFrame) -> pl.DataFrame:
    if PERIOD not in statistics.columns:
        return pl.DataFrame(schema={"day": pl.Date, IMPRESSIONS: pl.Float64})
    return statistics.group_by(pl.col(PERIOD).cast(pl.Date).alias("day")).agg(_N.sum())


def add_facts(parts: Sequence[PartFacts]) -> LogFacts:
    """The facts of a log from those of all its parts."""
    sums = pl.concat([part.positions for part in parts]).group_by(POSITION).sum().sort(POSITION)
    total = float(sums[IMPRESSIONS].sum())
    name, size = max((part.largest for part in parts), key=lambda entry: entry[1])
    docs = Sketch.union([part.docs for part in parts])
    days = pl.concat([part.days for part in parts]).group_by("day").sum().sort("day")
    return LogFacts(
        positions=_rates(sums),
        queries=sum(part.queries for part in parts),
        effective_queries=total**2 / sum(part.squares for part in parts),
        largest_query=name,
        largest_share=size / total,
        docs=docs.number,
        docs_exact=docs.exact,
        days=dict(days.select(pl.col("day").cast(pl.String), IMPRESSIONS).iter_rows()),
    )


def _rates(sums: pl.DataFrame) -> pl.DataFrame:
    """Click rates p = C / N with their intervals.

    A ratio of sums over Q queries has the variance Q / (Q - 1) sum (c_q - p n_q)^2 / N^2 (Cochran 1977, section 6.4);
    the interval is that of Student's t with Q - 1 degrees of freedom, cut at 0 and 1.
    """
    n, c, nn, nc, cc = (sums[name].to_numpy() for name in (IMPRESSIONS, CLICKS, "nn", "nc", "cc"))
    queries = sums[_QUERIES].to_numpy()
    rate = c / n
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.maximum(cc - 2 * rate * nc + rate**2 * nn, 0.0) * queries / (queries - 1)
        half = scipy.special.stdtrit(np.maximum(queries - 1, 1), _CONFIDENCE) * np.sqrt(spread) / n
    half = np.where(queries > 1, half, np.nan)
    low, high = np.clip(rate - half, 0, 1), np.clip(rate + half, 0, 1)
    intervals = [pl.Series(name, values, nan_to_null=True) for name, values in (("ctr_low", low), ("ctr_high", high))]
    return sums.select(POSITION, IMPRESSIONS, CLICKS, pl.Series("ctr", rate), *intervals)


FEWEST_ROWS_OF_A_ROBOT = 4
"""Shorter pages may be clicked in full by a person."""


@dataclass(frozen=True)
class PageFacts:
    """Facts of a sample of whole pages, or of all."""

    pages: int  # how many were looked at
    rows: int  # impressions on them
    starting_late: int  # pages whose first position is not 1
    with_gaps: int  # pages that lack a position between their first and their last one
    long: int  # pages of at least `FEWEST_ROWS_OF_A_ROBOT` rows
    clicked_in_full: int  # those of them on which every row is clicked
    without_click: int  # pages without a click
    longest: int  # rows of the longest page


def page_facts(impressions: pl.LazyFrame) -> PageFacts:
    """Facts of the pages of canonical impressions with their sessions."""
    per_page = impressions.group_by(SESSION).agg(
        pl.len().cast(pl.Int64).alias("rows"),
        pl.col(CLICK).cast(pl.Int64).sum().alias("clicks"),
        pl.col(POSITION).min().alias("first"),
        pl.col(POSITION).max().alias("last"),
        pl.col(POSITION).n_unique().alias("places"),
    )
    long = pl.col("rows") >= FEWEST_ROWS_OF_A_ROBOT
    counts = {
        "pages": pl.len(),
        "rows": pl.col("rows").sum(),
        "starting_late": (pl.col("first") > 1).sum(),
        "with_gaps": (pl.col("last") - pl.col("first") + 1 > pl.col("places")).sum(),
        "long": long.sum(),
        "clicked_in_full": (long & (pl.col("clicks") == pl.col("rows"))).sum(),
        "without_click": (pl.col("clicks") == 0).sum(),
        "longest": pl.col("rows").max().fill_null(0),
    }
    totals = per_page.select(count.cast(pl.Int64).alias(name) for name, count in counts.items())
    return PageFacts(**totals.collect(engine="streaming").row(0, named=True))


@dataclass(frozen=True)
class Outlook:
    """The estimate to expect of one model on a log."""

    model: str  # its name
    reason: str | None  # why nothing can be estimated; None where something can
    # the cell columns, `impressions`, `clicks`, `identified`, `reason`, `std_error` (to expect, of the log of the
    # propensity; 0 at a reference, null where there is none), `linking_pairs`, `linking_clicks`
    cells: pl.DataFrame
    click_share: float  # share of the clicks in identified cells
    share: float = 1.0  # share of the log's queries that it rests on; 1 for all

    @property
    def errors(self) -> Floats:
        """The standard errors to expect, of identified cells other than references."""
        known = self.cells.filter(pl.col("identified") & (pl.col("std_error") > 0))
        return known["std_error"].to_numpy() if self.reason is None else np.empty(0)

    @property
    def carries(self) -> bool:
        """Whether the log carries an estimate that may be taken at face value, as far as the counts say."""
        return self.reason is None and self.click_share >= WANTED_CLICK_SHARE and bool(len(self.errors))


def outlook(statistics: SufficientStatistics, memory: int, share: float = 1.0) -> Outlook:
    """Forecast what the model of the statistics can estimate.

    Args:
        statistics: of the log, or of whole queries of it.
        memory: in bytes, of a fit.
        share: share of the queries that they hold.
    """
    model = statistics.plan.model.name
    counts = statistics.counts_by_cell()
    try:
        check_no_silent_position(statistics)
        check_cells(statistics, ConditionalEstimator.name, EstimationOptions(), memory, compare=False)
        with np.errstate(all="ignore" if statistics.plan.weighted else None):
            estimate = ConditionalEstimator().estimate(
                statistics, statistics.strata(), EstimationOptions(), lambda _: None
            )
    except (IdentifiabilityError, UsageError, np.linalg.LinAlgError, OverflowError) as error:
        nothing = counts.with_columns(
            pl.lit(value=False).alias("identified"),
            pl.lit(None, pl.String).alias("reason"),
            pl.lit(None, pl.Float64).alias("std_error"),
            pl.lit(0.0).alias("linking_pairs"),
            pl.lit(0.0).alias("linking_clicks"),
        )
        return Outlook(model, str(error), nothing, 0.0, share)
    linkage = estimate.linkage
    errors = estimate.intervals.std_error * np.sqrt(share)
    clicks = counts["clicks"].to_numpy()
    known = clicks[np.isfinite(estimate.propensity)].sum()
    cells = counts.with_columns(
        pl.Series("identified", linkage.identified),
        pl.Series("reason", linkage.reason, pl.String),
        pl.Series("std_error", errors, nan_to_null=True),
        pl.Series("linking_pairs", linkage.linking_pairs),
        pl.Series("linking_clicks", linkage.linking_clicks),
    )
    return Outlook(model, None, cells, float(known / clicks.sum()) if clicks.any() else 0.0, share)


@dataclass(frozen=True)
class Movement:
    """How documents move between cells."""

    pairs: float  # number of (query, document) pairs
    moved: float  # those of them that were shown in several cells
    linking: float  # those that were also clicked: only they say anything about propensities
    share: float  # impressions of pairs that moved, as a share of all

    def in_all(self, share: float) -> "Movement":
        """The same of the whole log, of whose queries these were a share."""
        return Movement(*(count / share for count in (self.pairs, self.moved, self.linking)), share=self.share)


def movement(table: CountTable) -> Movement:
    """How the pairs of a table move; equal pairs may stand in it once, with their number."""
    pairs = moved = linking = shown = shown_of_moved = 0.0
    for _, block in table.blocks():
        several = block.entries_of_unit > 1
        impressions = block.sum_by_unit(block.impressions) * block.multiplicity
        pairs += float(block.multiplicity.sum())
        moved += float(block.multiplicity[several].sum())
        linking += float(block.multiplicity[block.links].sum())
        shown += float(impressions.sum())
        shown_of_moved += float(impressions[several].sum())
    return Movement(pairs, moved, linking, shown_of_moved / shown)


LARGE_SHARE = 0.2
"""Share of the rows of one query, above which errors clustered by query rest on little else."""

ROBOTS_SHARE = 0.01
"""Share of the longer pages that are clicked in full, from which it is worth a sentence."""

TIMES_EXPECTED = 10
"""So many times what chance makes of the click rates of positions, that is."""

LARGE_CLIENT = 0.05
"""Share of the rows for one client."""

ODD_PAGES = 0.01
"""Share of pages with gaps, or that start late, from which they are worth a sentence."""

ROWS_OF_CUT_PAGES = 1.1
"""Fewer rows per page on average, at different positions, are no whole pages."""

WIDE_ERROR = 0.1
"""A standard error of log propensity: the interval is then about 20 % to either side."""

HOPELESS_ERROR = 1.0
"""Standard error at which an interval goes from a seventh to seven times the number."""

THIN_CLICKS = 100
STAYS = 0.5
LONG_PAGE = 1000


def warnings_of(
    facts: LogFacts, pages: PageFacts | None, clients: Clients | None, *, binned: bool = False, paged: bool = False
) -> Iterator[tuple[str, str]]:
    """What is odd about a log: codes and sentences.

    Of `binned` positions only the first of each bin is there; where it is `paged`, later pages of a list start late.
    """
    yield from _of_positions(facts, binned=binned)
    if facts.effective_queries < FEW_EFFECTIVE_CLUSTERS:
        sentence = (
            f"This log is worth about {plural(facts.effective_queries, 'queries')} of equal size, too few to know how "
            "far errors go. More different queries help; more traffic on the same ones does not."
        )
        yield "few-queries", sentence
    if facts.largest_share > LARGE_SHARE and facts.effective_queries < facts.queries / 2:
        sentence = (
            f"One query has {facts.largest_share:.0%} of the impressions ({facts.largest_query!r}): the "
            f"{facts.queries:,} queries are worth {facts.effective_queries:,.0f} of equal size."
        )
        yield "one-query-dominates", sentence
    if pages is not None and pages.pages:
        yield from _of_pages(pages, facts, paged=paged)
    if clients is not None and clients.robots is None and clients.share > LARGE_CLIENT:
        sentence = (
            f"One value of {clients.column!r} has {clients.share:.0%} of the first {clients.rows:,} rows. If it is a "
            "robot, leave its rows out."
        )
        yield "one-client-dominates", sentence


def _of_positions(facts: LogFacts, *, binned: bool) -> Iterator[tuple[str, str]]:
    positions: list[int] = facts.positions[POSITION].to_list()
    if positions[0] > 1:
        sentence = f"No result is shown above position {positions[0]}. Propensities will be relative to that position."
        yield "top-missing", sentence
    missing = positions[-1] - positions[0] + 1 - len(positions)
    if missing and not binned:
        sentence = f"{missing:,} positions between {positions[0]} and {positions[-1]} hold no result at all."
        yield "positions-missing", sentence
    silent = facts.positions.filter(pl.col(CLICKS) == 0).height
    if 0 < silent < len(positions):
        yield "positions-without-click", f"{silent:,} of {len(positions):,} positions have no click."


def _of_pages(pages: PageFacts, facts: LogFacts, *, paged: bool) -> Iterator[tuple[str, str]]:
    if pages.rows < ROWS_OF_CUT_PAGES * pages.pages and pages.starting_late > pages.pages / 2:
        sentence = (
            f"The {pages.pages:,} pages have {pages.rows / pages.pages:.1f} results each, most of them below position "
            "1: these are no whole pages. If the session is one row, or a time that differs from row to row, name the "
            "id of a page (--session). --model ubm and training files of pages need whole pages."
        )
        yield "pages-of-one-row", sentence
    elif not paged and pages.starting_late > ODD_PAGES * pages.pages:
        sentence = (
            f"{pages.starting_late / pages.pages:.1%} of the pages start below position 1. Were results above left "
            "out, or are these second pages?"
        )
        yield "pages-start-late", sentence
    if pages.with_gaps > ODD_PAGES * pages.pages:
        share = f"{pages.with_gaps / pages.pages:.1%}"
        yield "pages-with-gaps", f"{share} of the pages lack positions between their first and last."
    # If clicks were independent.
    expected = pages.long * math.prod(facts.positions["ctr"].head(FEWEST_ROWS_OF_A_ROBOT).to_list())
    if pages.clicked_in_full > max(ROBOTS_SHARE * pages.long, TIMES_EXPECTED * expected):
        sentence = (
            f"{pages.clicked_in_full:,} of {pages.long:,} pages of {FEWEST_ROWS_OF_A_ROBOT} results or more are "
            "clicked in full. Robots do that: leave their sessions out."
        )
        yield "robots", sentence
    if pages.longest > LONG_PAGE:
        yield (
            "long-page",
            f"The longest page has {pages.longest:,} results. Is it a robot, or a session that is no page?",
        )


def advice(facts: LogFacts, moved: Movement, outlooks: Sequence[Outlook]) -> Iterator[str]:
    """Sentences on what would help; none where nothing is lacking.

    Args:
        facts: what the counts say.
        moved: how documents move.
        outlooks: what models can say, the position-based one first.
    """
    expected = outlooks[0]
    reasons = set(expected.cells["reason"].drop_nulls().to_list())
    if expected.reason is not None or {NOT_LINKED, ONE_WAY} & reasons:
        yield (
            "Let the same document appear at different positions for the same query now and then, by more days, a "
            "changed ranker or a little randomisation."
        )
    elif moved.share < STAYS:
        yield (
            f"More sessions of the same queries would help: {1 - moved.share:.0%} of the impressions are of documents "
            "that were seen at one position only, and say nothing."
        )
    if NO_CLICKS in reasons:
        yield "More sessions would help: some positions were never clicked."
    if not len(expected.errors) or expected.errors.max() <= WIDE_ERROR:
        return
    yield "More different queries narrow the intervals; more sessions of the same queries hardly do."
    thin = facts.positions.filter(pl.col(CLICKS) < THIN_CLICKS)[POSITION].to_list()
    enough = [position for position in facts.positions[POSITION].to_list() if position not in thin]
    if thin and enough and min(thin) > max(enough) > 1:
        yield (
            f"Positions from {min(thin)} on have fewer than {THIN_CLICKS} clicks each: use --shape smooth or "
            f"--position-bins, or leave them out (--max-position {max(enough)})."
        )
    elif expected.cells.height > 2:  # noqa: PLR2004 - a curve has three points at least
        yield "With --shape smooth, neighbouring positions lend each other what they know."


def reasons_against(outlook: Outlook, facts: LogFacts) -> list[str]:
    """Why the log cannot carry an estimate by a model, in sentences; none where it can."""
    if outlook.reason is not None:
        return [outlook.reason]
    if not len(outlook.errors):
        held = f"{facts.queries:,} queries hold the clicks that say anything"
        return [f"no propensity has a standard error: {held}, and errors come from differences between queries."]
    reasons: list[str] = []
    if not outlook.carries:
        unknown = outlook.cells.filter(~pl.col("identified"))
        reasons.append(
            f"{unknown.height:,} of {outlook.cells.height:,} cells cannot be compared with the others, and hold "
            f"{1 - outlook.click_share:.1%} of the clicks."
        )
    if float(np.median(outlook.errors)) > HOPELESS_ERROR:
        reasons.append(f"the log is too small: half of the standard errors exceed {HOPELESS_ERROR:g}.")
    return reasons


def rows_of(facts: LogFacts) -> list[dict[str, object]]:
    """Positions as plain values: counts that are whole as whole numbers."""
    rows = facts.positions.to_dicts()
    return [{**row, **{name: _whole(row[name]) for name in (IMPRESSIONS, CLICKS)}} for row in rows]


def _whole(number: float) -> float | int:
    return int(number) if float(number).is_integer() else number
