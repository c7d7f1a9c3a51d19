"""Statistics of a log for `check`, the estimates to expect from it, remarks, and clients that click like robots.

The estimate is the conditional fit itself, without what a fit compares it with. From a sample of queries, standard
errors are those of the sample times sqrt(queries in it / queries in all), as errors are clustered by query.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import CountTable, Floats, Hashes
from posbias.core.counts.checks import check_no_silent_position
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.estimators.methods import ConditionalEstimator
from posbias.core.fit.fit import SUFFICIENT_CLICK_SHARE, check_cells
from posbias.core.log.pages import ENDS, FIRST, LAST, ShiftedPages, shifted_pages
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, SESSION
from posbias.core.theta.conditional import NO_CLICKS, NOT_LINKED, ONE_WAY

_KEPT = 1 << 14
_ENOUGH = 4
_SEED = 20_260_105
_RANGE = 2.0**64


def hashes_of(values: pl.Series) -> Hashes:
    """The hashes of values, of which `smallest_hashes` are a sketch that counts them; those of several parts unite."""
    return smallest_hashes(values.hash(_SEED).to_numpy())


def smallest_hashes(hashes: Hashes) -> Hashes:
    """The smallest hashes, ascending, each once: of many, a part that holds enough is looked at first."""
    at = _ENOUGH * _KEPT
    if len(hashes) > at:
        low = np.unique(hashes[hashes <= np.partition(hashes, at)[at]])
        if len(low) >= _KEPT:
            return low[:_KEPT]
    return np.unique(hashes)[:_KEPT]


def number_of(smallest: Hashes) -> tuple[int, bool]:
    """How many different values there are by the smallest hashes, and whether that is exact."""
    if len(smallest) < _KEPT:
        return len(smallest), True
    return round((_KEPT - 1) / (float(smallest[-1]) / _RANGE)), False


_CONFIDENCE = 0.975
_QUERIES = "queries"
_N, _C = pl.col(IMPRESSIONS).cast(pl.Float64), pl.col(CLICKS).cast(pl.Float64)


@dataclass(frozen=True)
class LogFacts:
    """Counts of a log, or of a part of it that holds whole queries; `add_facts` adds parts up."""

    positions: pl.DataFrame  # `position`, `impressions`, `clicks`; of a log sorted, with `ctr`
    queries: int  # number of queries
    squares: float  # sum over queries of their squared impressions
    largest_query: str  # the query with the most impressions
    largest_size: float  # and how many

    @property
    def impressions(self) -> float:
        """All impressions."""
        return float(self.positions[IMPRESSIONS].sum())

    @property
    def clicks(self) -> float:
        """All clicks."""
        return float(self.positions[CLICKS].sum())

    @property
    def effective_queries(self) -> float:
        """So many queries of one size are as concentrated: (sum n_q)^2 / sum n_q^2."""
        return self.impressions**2 / self.squares

    @property
    def largest_share(self) -> float:
        """Share of the impressions that the largest query has."""
        return self.largest_size / self.impressions


def facts_of(statistics: pl.DataFrame) -> LogFacts:
    """Facts of the statistics of whole queries.

    Args:
        statistics: `query`, `position`, `impressions`, `clicks`; the rows of a query together.
    """
    query = statistics.select(pl.col(QUERY).rle_id()).to_series().to_numpy()
    sizes = np.bincount(query, statistics[IMPRESSIONS].to_numpy())
    largest = int(sizes.argmax())
    sums = pl.col(IMPRESSIONS, CLICKS).sum().cast(pl.Float64)
    positions = statistics.group_by(POSITION).agg(sums).filter(pl.col(IMPRESSIONS) > 0)
    key: Any = statistics[QUERY][int(query.searchsorted(largest))]  # of several columns, a dict
    name = ", ".join(map(str, key.values())) if isinstance(key, dict) else str(key)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return LogFacts(positions, len(sizes), float(sizes @ sizes), name, float(sizes[largest]))


def add_facts(parts: Sequence[LogFacts]) -> LogFacts:
    """The facts of a log from those of all its parts."""
    sums = pl.concat([part.positions for part in parts]).group_by(POSITION).sum().sort(POSITION)
    largest = max(parts, key=lambda part: part.largest_size)
    return replace(
        largest,
        positions=sums.with_columns((pl.col(CLICKS) / pl.col(IMPRESSIONS)).alias("ctr")),
        queries=sum(part.queries for part in parts),
        squares=sum(part.squares for part in parts),
    )


@dataclass(frozen=True)
class LogDetails:
    """What `check` takes besides, of a log or of a part of it that holds whole queries; `add_details` adds parts up."""

    # per position `impressions`, `clicks`, `queries`, and the sums over queries of their squares and products
    positions: pl.DataFrame
    docs: Hashes  # the smallest hashes of documents; see `number_of`
    days: pl.Series  # ascending, where the statistics keep days; else empty


def details_of(statistics: pl.DataFrame) -> LogDetails:
    """Details of the statistics of whole queries, which have documents, too, and days where these are known."""
    rows = statistics.select(pl.col(QUERY).rle_id().alias(_QUERIES), POSITION, _N, _C)
    by_query = rows.group_by(_QUERIES, POSITION).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(_QUERIES, POSITION)
    n, c = pl.col(IMPRESSIONS), pl.col(CLICKS)
    sums = (n.sum(), c.sum(), (n > 0).sum().cast(pl.Float64).alias(_QUERIES))
    products = ((n * n).sum().alias("nn"), (n * c).sum().alias("nc"), (c * c).sum().alias("cc"))
    days = statistics[PERIOD] if PERIOD in statistics.columns else pl.Series(dtype=pl.Date)
    return LogDetails(
        positions=by_query.group_by(POSITION).agg(*sums, *products).filter(pl.col(_QUERIES) > 0).sort(POSITION),
        docs=hashes_of(statistics[DOC]),
        days=days.cast(pl.Date).unique(),
    )


def add_details(parts: Sequence[LogDetails]) -> LogDetails:
    """The details of a log from those of all its parts."""
    return LogDetails(
        positions=pl.concat([part.positions for part in parts]).group_by(POSITION).sum().sort(POSITION),
        docs=smallest_hashes(np.concatenate([part.docs for part in parts])),
        days=pl.concat([part.days for part in parts]).unique().sort(),
    )


def position_rows(details: LogDetails) -> list[dict[str, Any]]:
    """Click rates p = C / N by position, with their 95 % intervals.

    A ratio of sums over Q queries has the variance Q / (Q - 1) sum (c_q - p n_q)^2 / N^2 (Cochran 1977, section 6.4);
    the interval is that of Student's t with Q - 1 degrees of freedom, cut at 0 and 1.

    Returns:
        `position`, `impressions`, `clicks`, `ctr`, `ctr_low`, `ctr_high` of each, the ends None where one query alone
        holds the position; counts that are whole as whole numbers.
    """
    counts = (IMPRESSIONS, CLICKS, "nn", "nc", "cc", _QUERIES)
    n, c, nn, nc, cc, queries = (details.positions[name].to_numpy() for name in counts)
    rate = c / n
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.maximum(cc - 2 * rate * nc + rate**2 * nn, 0.0) * queries / (queries - 1)
        half = scipy.special.stdtrit(np.maximum(queries - 1, 1), _CONFIDENCE) * np.sqrt(spread) / n
    half = np.where(queries > 1, half, np.nan)
    rates = {"ctr": rate, "ctr_low": np.clip(rate - half, 0, 1), "ctr_high": np.clip(rate + half, 0, 1)}
    columns = [pl.Series(name, values, nan_to_null=True) for name, values in rates.items()]
    rows = details.positions.select(POSITION, IMPRESSIONS, CLICKS, *columns).to_dicts()
    for row in rows:
        row |= {name: int(row[name]) for name in (IMPRESSIONS, CLICKS) if row[name].is_integer()}
    return rows


ROWS_OF_LONG_PAGES = 4
"""Shorter pages may be clicked in full by a person."""


@dataclass(frozen=True)
class PageFacts:
    """Facts of a sample of whole pages, or of all."""

    pages: int  # how many were looked at
    rows: int  # impressions on them
    starting_late: int  # pages whose first position is not 1
    with_gaps: int  # pages that lack a position between their first and their last one
    lacking: int  # pages that lack a position above their last one
    long: int  # pages of at least `ROWS_OF_LONG_PAGES` rows
    clicked_in_full: int  # those of them on which every row is clicked
    without_click: int  # pages without a click
    longest: int  # rows of the longest page
    several_clicks: int  # pages with two clicks or more
    single: int  # pages of one row
    single_clicked: int  # those of them that are clicked
    shifted: ShiftedPages | None  # pages that count from another base than most
    thinned: "ThinnedPosition | None" = None  # where rows seem to be kept for their clicks
    # Of the longest pages, the number whose clicks are all in the upper third, and all in the lower third: pages of
    # ever shorter lengths are added until there are `_LONGEST` of the latter; 0 and 0 if there never are
    clicked_at_top: int = 0
    clicked_at_end: int = 0
    # Last position and number of pages, of the commonest last position at which pages hardly ever have a click
    never_clicked: tuple[int, int] = (0, 0)
    # The position that is most often missing inside pages, and the share of pages that have it
    least_logged: tuple[int, float] | None = None


@dataclass(frozen=True)
class ThinnedPosition:
    """A position that is seldom on pages, and clicked more often than the one above."""

    position: int
    shown: float  # share of the pages that go beyond it on which it is
    times_clicked: float  # its click rate as a multiple of that of the position above


def page_facts(impressions: pl.DataFrame, cell: Sequence[str] = ()) -> PageFacts:
    """Facts of the pages of canonical impressions with their sessions.

    Args:
        impressions: whole pages.
        cell: the further columns of cells: each of their values has a first position of its own, on each page where
            positions begin anew, else on pages that start with it.
    """
    clicked, above = pl.when(pl.col(CLICK) == 1).then(pl.col(POSITION)), pl.col(POSITION).min() - 1
    per_page = impressions.group_by(SESSION).agg(
        pl.len().cast(pl.Int64).alias("rows"),
        pl.col(CLICK).cast(pl.Int64).sum().alias("clicks"),
        pl.col(POSITION).max().alias(LAST),
        top=3 * (clicked.max() - above) <= pl.col(POSITION).max() - above,
        end=3 * (clicked.min() - above) > 2 * (pl.col(POSITION).max() - above),
    )
    anew = cell if cell and impressions.select(SESSION, POSITION).is_duplicated().any() else ()
    first = [pl.col(name).sort_by(POSITION).first() for name in cell if not anew]
    places = impressions.group_by(SESSION, *anew).agg(*ENDS, pl.col(POSITION).n_unique().alias("places"), *first)
    top = pl.col(FIRST).min().over(cell) if cell else 1
    ends = {
        "starting_late": (pl.col(FIRST) > top).sum(),
        "with_gaps": (pl.col(LAST) - pl.col(FIRST) + 1 > pl.col("places")).sum(),
        "lacking": (pl.col(LAST) > pl.col("places")).sum(),
    }
    long = pl.col("rows") >= ROWS_OF_LONG_PAGES
    counts = {
        "pages": pl.len(),
        "rows": pl.col("rows").sum(),
        "long": long.sum(),
        "clicked_in_full": (long & (pl.col("clicks") == pl.col("rows"))).sum(),
        "without_click": (pl.col("clicks") == 0).sum(),
        "several_clicks": (pl.col("clicks") > 1).sum(),
        "single": (pl.col("rows") == 1).sum(),
        "single_clicked": ((pl.col("rows") == 1) & (pl.col("clicks") > 0)).sum(),
        "longest": pl.col("rows").max().fill_null(0),
    }
    totals = [
        frame.select(count.cast(pl.Int64).alias(name) for name, count in of.items()).row(0, named=True)
        for frame, of in ((per_page, counts), (places, ends))
    ]
    thinned, at_top, at_end, never, least_logged = None, 0, 0, (0, 0), None
    if not cell:
        of_length = pl.len().cast(pl.Int64).alias("pages"), (pl.col("clicks") > 0).sum().alias("clicked")
        by_length = per_page.group_by(LAST).agg(pl.col("top", "end").sum(), *of_length).sort(LAST, descending=True)
        longest = by_length.filter(pl.col(LAST) > 2).with_columns(pl.col("top", "end").cum_sum())  # noqa: PLR2004
        at_top, at_end = next(longest.filter(pl.col("end") >= _LONGEST).select("top", "end").iter_rows(), (0, 0))
        hardly = pl.col("clicked") < _HARDLY_ANY * pl.col("pages") * (pl.col("clicked").sum() / pl.col("pages").sum())
        most = by_length.filter(hardly, pl.col(LAST) < pl.col(LAST).max()).sort("pages", LAST).tail(1)
        never = next(most.select(LAST, "pages").iter_rows(), (0, 0))
    if not cell and totals[1]["with_gaps"] > _GAPS * totals[0]["pages"]:
        rows = impressions.join(places.select(SESSION, FIRST, LAST), on=SESSION)
        thinned, least_logged = _thinned_position(rows, places)
    return PageFacts(
        **totals[0],
        **totals[1],
        shifted=shifted_pages(places, cell),
        thinned=thinned,
        clicked_at_top=at_top,
        clicked_at_end=at_end,
        never_clicked=never,
        least_logged=least_logged,
    )


_HARDLY_ANY = 0.01  # of the clicked pages among as many of all lengths
_LONGEST = 30  # pages that are clicked in their lower third alone
_GAPS = 0.05  # share of pages
_FEWEST_SPANNED = 100  # pages that have a position inside
_SELDOMER, _CLICKED_MORE, _CERTAIN = 0.7, 1.2, 5.0  # times as often as the position above; standard errors


def _thinned_position(
    rows: pl.DataFrame, pages: pl.DataFrame
) -> tuple[ThinnedPosition | None, tuple[int, float] | None]:
    """Find the position at which click rates rise most while rows inside pages go missing, and the rarest position.

    Args:
        rows: impressions, with the first and the last position of their page.
        pages: these by page.
    """
    inside = ((pl.col(FIRST) < pl.col(POSITION)) & (pl.col(POSITION) < pl.col(LAST))).sum()
    counts = rows.group_by(POSITION).agg(pl.len(), pl.col(CLICK).cast(pl.Int64).sum(), inside=inside).sort(POSITION)
    counts = counts.filter(pl.col(CLICK) > 0)
    position, shown, clicks, within = (counts[name].to_numpy() for name in (POSITION, "len", CLICK, "inside"))
    begun = np.searchsorted(np.sort(pages[FIRST].to_numpy()), position, "left")
    spanned = begun - np.searchsorted(np.sort(pages[LAST].to_numpy()), position, "right")  # pages that have it inside
    share = np.where(spanned > 0, within / np.maximum(spanned, 1), 1.0)
    of_many = np.where(spanned >= _FEWEST_SPANNED, share, 1.0)
    least = (int(position[of_many.argmin()]), float(of_many.min())) if len(position) else None
    times = clicks[1:] / shown[1:] / (clicks[:-1] / shown[:-1])
    found = (share[1:] < _SELDOMER * share[:-1]) & (times > _CLICKED_MORE)
    found &= np.log(times) > _CERTAIN * np.sqrt(1 / clicks[1:] + 1 / clicks[:-1])
    if not found.any():
        return None, least
    place = int(np.argmax(np.where(found, times, 0.0)))
    return ThinnedPosition(int(position[place + 1]), float(share[place + 1]), float(times[place])), least


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
    estimate: Estimate | None = None  # that is expected

    @property
    def errors(self) -> Floats:
        """The standard errors to expect, of identified cells other than references."""
        known = self.cells.filter(pl.col("identified") & (pl.col("std_error") > 0))
        return known["std_error"].to_numpy() if self.reason is None else np.empty(0)

    @property
    def carries(self) -> bool:
        """Whether the log carries an estimate that may be taken at face value, as far as the counts say."""
        return self.reason is None and self.click_share >= SUFFICIENT_CLICK_SHARE and bool(len(self.errors))


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
            identified=pl.lit(value=False),
            reason=pl.lit(None, pl.String),
            std_error=pl.lit(None, pl.Float64),
            linking_pairs=pl.lit(0.0),
            linking_clicks=pl.lit(0.0),
        )
        return Outlook(model, str(error), nothing, 0.0, share)
    linkage = estimate.linkage
    clicks = counts["clicks"].to_numpy()
    known = clicks[np.isfinite(estimate.propensity)].sum()
    cells = counts.with_columns(
        identified=pl.Series(linkage.identified),
        reason=pl.Series(linkage.reason, dtype=pl.String),
        std_error=pl.Series(estimate.intervals.std_error * np.sqrt(share), nan_to_null=True),
        linking_pairs=pl.Series(linkage.linking_pairs),
        linking_clicks=pl.Series(linkage.linking_clicks),
    )
    return Outlook(model, None, cells, float(known / clicks.sum()) if clicks.any() else 0.0, share, estimate)


@dataclass(frozen=True)
class Movement:
    """How documents move between cells."""

    pairs: float  # number of (query, document) pairs
    moved: float  # those of them that were shown in several cells
    linking: float  # those that were also clicked: only they say anything about propensities
    share: float  # impressions of pairs that moved, as a share of all


def movement(table: CountTable, of_queries: float = 1.0) -> Movement:
    """How the pairs of a log move.

    Args:
        table: the pairs; equal pairs may stand in it once, with their number.
        of_queries: the share of the log's queries that they belong to.
    """
    pairs = moved = linking = shown = shown_of_moved = 0.0
    for _, block in table.blocks():
        several = block.entries_of_unit > 1
        impressions = block.sum_by_unit(block.impressions) * block.multiplicity
        pairs += float(block.multiplicity.sum())
        moved += float(block.multiplicity[several].sum())
        linking += float(block.multiplicity[block.links].sum())
        shown += float(impressions.sum())
        shown_of_moved += float(impressions[several].sum())
    return Movement(*(count / of_queries for count in (pairs, moved, linking)), share=shown_of_moved / shown)


WIDE_ERROR = 0.1
"""A standard error of log propensity: the interval is then about 20 % to either side."""

HOPELESS_ERROR = 1.0
"""Standard error at which an interval goes from a seventh to seven times the number."""

THIN_CLICKS = 100
STAYS = 0.5


def advice(facts: LogFacts, moved: Movement, outlooks: Sequence[Outlook], *, by_cell: bool = False) -> dict[str, str]:
    """Sentences on what would help, by the code of the fault that gives the same advice, or by what helps.

    Args:
        facts: what the counts say.
        moved: how documents move.
        outlooks: what models can say, the position-based one first.
        by_cell: whether cells have further columns, along which nothing is smooth.
    """
    expected, sentences = outlooks[0], dict[str, str]()
    reasons = set(expected.cells["reason"].drop_nulls().to_list())
    if expected.reason is not None or {NOT_LINKED, ONE_WAY} & reasons:
        sentences["other positions"] = (
            "Let the same document appear at different positions for the same query now and then, by more days, a "
            "changed ranker or a little randomisation."
        )
    elif moved.share < STAYS:
        sentences["more sessions"] = (
            f"More sessions of the same queries would help: {1 - moved.share:.0%} of the impressions are of documents "
            "that were seen at one position only, and say nothing."
        )
    if NO_CLICKS in reasons:
        sentences["more clicks"] = "More sessions would help: some positions were never clicked."
    if not len(expected.errors) or expected.errors.max() <= WIDE_ERROR:
        return sentences
    sentences["few-queries"] = (
        "More different queries narrow the intervals; more sessions of the same queries hardly do."
    )
    thin = facts.positions.filter(pl.col(CLICKS) < THIN_CLICKS)[POSITION].to_list()
    enough = [position for position in facts.positions[POSITION].to_list() if position not in thin]
    if thin and enough and min(thin) > max(enough) > 1:
        use = "--position-bins" if by_cell else "--shape smooth or --position-bins"
        sentences["fewer positions"] = (
            f"Positions from {min(thin)} on have fewer than {THIN_CLICKS} clicks each: use {use}, or leave them out "
            f"(--max-position {max(enough)})."
        )
    elif expected.cells.height > 2 and not by_cell:  # noqa: PLR2004 - a curve has three points at least
        sentences["smooth"] = "With --shape smooth, neighbouring positions lend each other what they know."
    return sentences


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


CLIENT = "posbias_client"

FEWEST_CLIENTS = 20
"""Fewer are kinds of clients."""

_FEWEST_CLICKS = 20  # of a client that can stand out
_TIMES_AS_MANY = 5.0  # impressions of a client that can stand out, against the median
_TIMES_EXPECTED = 2.0  # its clicks, against those that its positions explain
_FLAT = 0.5  # between clicks that fall with position as those of others do, 0, and clicks anywhere, 1
_SPREAD = 0.3  # standard deviation of that between people
_NEARLY_ALL = 0.99  # share of its impressions that a robot clicks that clicks all
_LEVEL = 0.01
_FALSE = 0.1  # share of people among those that stand out, at most on average
_SMALLEST = 0.01  # share of the clicks from which they are worth a sentence
_HALVINGS = 40


@dataclass(frozen=True)
class Robots:
    """Clients that stand out together."""

    names: tuple[str, ...]  # with the most clicks first
    impressions: float  # their share of all
    clicks: float  # their share of all
    times: float  # their clicks, as multiples of those that others make at the same positions


@dataclass(frozen=True)
class Clients:
    """The clients of the first rows."""

    column: str  # that tells clients apart
    number: int  # of them
    rows: int  # that were looked at
    share: float  # of these, of the client with the most
    robots: Robots | None  # those that click like robots
    can_query: bool  # whether a query can leave some out


def robots_among(counts: pl.DataFrame) -> Robots | None:
    """Clients with far more impressions than most, twice as many clicks as positions explain, and at any position.

    Others, who have less than five times the median of impressions, click position k at the rate p_k. People click more
    or less often, but less further down: of client i with n_ik impressions and c_i clicks, q_ik has the odds of p_k
    times a factor such that sum_k n_ik q_ik = c_i. The mean of p_k over the clicks is then
    h_i = sum_k n_ik q_ik p_k / c_i, and over clicks anywhere it is r_i = sum_k n_ik p_k / n_i. So
    f_i = (h_i - mean over its clicks) / (h_i - r_i) is 0 for people and 1 for robots. P_i is the probability that a
    normal number of mean 0 and of the variance of f_i plus 0.3^2, as people differ, is as large; it is 1 where
    f_i < 1/2, and 0 where 99 % of its impressions are clicked. Among the t = 1, 2, 4, ... clients with the most
    impressions of those with at least 20 clicks and 2 sum_k n_ik p_k, some stand out where the probability that j of t
    people are at or below P_(j) is below 0.01 divided by the number of t, for any j (higher criticism: Donoho and Jin
    2004). These are the j with P_(j) <= 0.1 j / t (Benjamini and Hochberg 1995), for the t with the smallest
    probability.

    Args:
        counts: `CLIENT`, `position`, `impressions`, `clicks`.

    Returns:
        Those that stand out; None where there are none, or they have less than 1 % of the clicks.
    """
    sums = [pl.col(name).sum().cast(pl.Float64) for name in (IMPRESSIONS, CLICKS)]
    clients = counts.group_by(CLIENT).agg(*sums).sort(IMPRESSIONS, CLIENT, descending=True)
    heavy = clients.filter(pl.col(IMPRESSIONS) >= _TIMES_AS_MANY * pl.col(IMPRESSIONS).median())
    if not heavy.height or clients.height - heavy.height < FEWEST_CLIENTS:
        return None
    others = counts.join(heavy, on=CLIENT, how="anti").group_by(POSITION).agg((sums[1] / sums[0]).alias("rate"))
    rows = counts.join(heavy.select(CLIENT), on=CLIENT).join(others, on=POSITION)
    expected = rows.group_by(CLIENT).agg((pl.col(IMPRESSIONS) * pl.col("rate")).sum().alias("expected"))
    many = pl.col(CLICKS) >= pl.max_horizontal(pl.lit(_FEWEST_CLICKS), _TIMES_EXPECTED * pl.col("expected"))
    able = heavy.join(expected, on=CLIENT, maintain_order="left").filter(many).with_row_index("number")
    if not able.height:
        return None
    n, c = (able[name].to_numpy() for name in (IMPRESSIONS, CLICKS))
    tail = _tails(rows.join(able.select(CLIENT, "number"), on=CLIENT), n, c)
    sizes = np.unique(np.minimum(2 ** np.arange(len(c).bit_length() + 1), len(c)))
    best, chosen = _LEVEL / len(sizes), np.empty(0, np.int64)
    for size in sizes:
        order = np.argsort(tail[: int(size)], kind="stable")
        rank, ordered = np.arange(1.0, len(order) + 1), tail[order]
        chance = np.where(ordered < 1, scipy.special.betainc(rank, len(order) - rank + 1, ordered), 1.0).min()
        if chance <= best:
            best, chosen = chance, order[: np.flatnonzero(ordered <= _FALSE * rank / len(order)).max(initial=-1) + 1]
    names = able[chosen].sort(CLICKS, descending=True)[CLIENT].cast(pl.String)
    total, clicked = clients.select(IMPRESSIONS, CLICKS).sum().row(0)
    if not len(chosen) or c[chosen].sum() < _SMALLEST * clicked:
        return None
    of_all = float(n[chosen].sum() / total), float(c[chosen].sum() / clicked)
    return Robots(tuple(names), *of_all, times=float(c[chosen].sum() / able[chosen]["expected"].sum()))


def _tails(rows: pl.DataFrame, n: Floats, c: Floats) -> Floats:
    """P of each client."""
    of, shown, clicks, p = (rows[name].to_numpy() for name in ("number", IMPRESSIONS, CLICKS, "rate"))

    def by_client(values: Floats) -> Floats:
        return np.bincount(of, values, len(n)).astype(np.float64)

    low, high = np.full(len(n), -20.0), np.full(len(n), 20.0)
    q = p
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        factor = np.exp(middle)[of]
        q = factor * p / (1 - p + factor * p)
        above = by_client(shown * q) > c
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = by_client(clicks * p) / c
        people = by_client(shown * q * p) / by_client(shown * q)
        span = people - by_client(shown * p) / n
        error = np.sqrt((by_client(clicks * p * p) / c - mean**2) / c) / span
        flat = (people - mean) / span
        tail = scipy.special.ndtr(-(flat / np.sqrt(error**2 + _SPREAD**2)))
    tail = np.where((flat >= _FLAT) & (span > 0), tail, 1.0)
    return np.where(c >= _NEARLY_ALL * n, 0.0, tail)
