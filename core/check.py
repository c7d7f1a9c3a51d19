"""Survey a log for `check`: counts, facts of its pages, the estimate to expect, advice, and clients like robots.

The expected estimate is the conditional fit. From a sample of queries, standard errors are those of the sample times
sqrt(queries in the sample / queries in all), as errors are clustered by query.
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


def value_hashes(values: pl.Series) -> Hashes:
    """Return the smallest hashes of values, a sketch of their distinct count (bottom-k)."""
    return smallest_hashes(values.hash(_SEED).to_numpy())


def smallest_hashes(hashes: Hashes) -> Hashes:
    """Return the `_KEPT` smallest distinct hashes, ascending; of the concatenated sketches of parts, the sketch of all.

    In a long array the low part is deduplicated first.
    """
    at = _ENOUGH * _KEPT
    if len(hashes) > at:
        low = np.unique(hashes[hashes <= np.partition(hashes, at)[at]])
        if len(low) >= _KEPT:
            return low[:_KEPT]
    return np.unique(hashes)[:_KEPT]


def distinct_count(smallest: Hashes) -> tuple[int, bool]:
    """Estimate the number of distinct values from the smallest hashes, and return whether it is exact."""
    if len(smallest) < _KEPT:
        return len(smallest), True
    return round((_KEPT - 1) / (float(smallest[-1]) / _RANGE)), False


_CONFIDENCE = 0.975
_QUERIES = "queries"
_N, _C = pl.col(IMPRESSIONS).cast(pl.Float64), pl.col(CLICKS).cast(pl.Float64)


@dataclass(frozen=True)
class LogFacts:
    """Counts of a log, or of a part of whole queries; `add_facts` adds parts."""

    positions: pl.DataFrame  # `position`, `impressions`, `clicks`; of a whole log, sorted and with `ctr`
    queries: int  # number of queries
    squares: float  # sum over queries of squared impressions
    largest_query: str  # the query with most impressions
    largest_size: float  # impressions of the largest query

    @property
    def impressions(self) -> float:
        """Total impressions."""
        return float(self.positions[IMPRESSIONS].sum())

    @property
    def clicks(self) -> float:
        """Total clicks."""
        return float(self.positions[CLICKS].sum())

    @property
    def effective_queries(self) -> float:
        """Effective number of queries, (sum n_q)^2 / sum n_q^2."""
        return self.impressions**2 / self.squares

    @property
    def largest_share(self) -> float:
        """Share of the largest query in the impressions."""
        return self.largest_size / self.impressions


def log_facts(statistics: pl.DataFrame) -> LogFacts:
    """Compute the facts of whole queries.

    Args:
        statistics: `query`, `position`, `impressions`, `clicks`; the rows of a query are adjacent.
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
    """Add up the facts of all parts of a log."""
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
    """Further counts of a log for `check`, or of a part of whole queries; `add_details` adds parts."""

    positions: pl.DataFrame  # `position`, sums over queries `impressions` n, `clicks` c, `queries`, `nn`, `nc`, `cc`
    docs: Hashes  # smallest hashes of documents (`distinct_count`)
    days: pl.Series  # of a whole log, ascending; empty without days


def log_details(statistics: pl.DataFrame) -> LogDetails:
    """Compute the details of whole queries.

    Args:
        statistics: the columns of `log_facts`, `doc`, and `period` if days are known.
    """
    rows = statistics.select(pl.col(QUERY).rle_id().alias(_QUERIES), POSITION, _N, _C)
    by_query = rows.group_by(_QUERIES, POSITION).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(_QUERIES, POSITION)
    n, c = pl.col(IMPRESSIONS), pl.col(CLICKS)
    sums = (n.sum(), c.sum(), (n > 0).sum().cast(pl.Float64).alias(_QUERIES))
    products = ((n * n).sum().alias("nn"), (n * c).sum().alias("nc"), (c * c).sum().alias("cc"))
    days = statistics[PERIOD] if PERIOD in statistics.columns else pl.Series(dtype=pl.Date)
    return LogDetails(
        positions=by_query.group_by(POSITION).agg(*sums, *products).filter(pl.col(_QUERIES) > 0).sort(POSITION),
        docs=value_hashes(statistics[DOC]),
        days=days.cast(pl.Date).unique(),
    )


def add_details(parts: Sequence[LogDetails]) -> LogDetails:
    """Add up the details of all parts of a log."""
    return LogDetails(
        positions=pl.concat([part.positions for part in parts]).group_by(POSITION).sum().sort(POSITION),
        docs=smallest_hashes(np.concatenate([part.docs for part in parts])),
        days=pl.concat([part.days for part in parts]).unique().sort(),
    )


def position_rows(details: LogDetails) -> list[dict[str, Any]]:
    """Compute click rates p = C / N by position, with 95 % intervals.

    A ratio of sums over Q queries has the variance Q / (Q - 1) sum (c_q - p n_q)^2 / N^2 (Cochran 1977, section 6.4);
    the interval is that of Student's t with Q - 1 degrees of freedom, clipped to [0, 1].

    Returns:
        `position`, `impressions`, `clicks`, `ctr`, `ctr_low`, `ctr_high` by position; the interval is None at positions
        of a single query; integral counts are integers.
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
"""Smallest number of rows of a long page; users may click on all rows of a shorter page."""


@dataclass(frozen=True)
class PageFacts:
    """Facts of a sample of whole pages; counts are numbers of pages unless noted.

    Attributes:
        rows: number of impressions.
        starting_late: whose first position is not 1.
        with_gaps: without some position between the first and the last.
        lacking: without some position above the last.
        long: with at least `ROWS_OF_LONG_PAGES` rows.
        clicked_in_full: long, and with a click on every row.
        longest: number of rows of the longest page.
        several_clicks: with two clicks or more.
        single: of one row.
        single_clicked: of one row, clicked.
        shifted: pages that count positions from another base than most.
        thinned: position whose rows seem to be logged for their clicks.
        clicked_at_top: of the longest pages, those with all clicks in the upper third. Shorter pages are added until
            `clicked_at_end` is at least `_LONGEST`; both are 0 if it never is.
        clicked_at_end: of the longest pages, those with all clicks in the lower third.
        never_clicked: the most frequent last position of pages that hardly ever have a click, and its pages.
        least_logged: the position that is most often missing inside pages, and the share of pages with it.
    """

    pages: int
    rows: int
    starting_late: int
    with_gaps: int
    lacking: int
    long: int
    clicked_in_full: int
    without_click: int
    longest: int
    several_clicks: int
    single: int
    single_clicked: int
    shifted: ShiftedPages | None
    thinned: "ThinnedPosition | None" = None
    clicked_at_top: int = 0
    clicked_at_end: int = 0
    never_clicked: tuple[int, int] = (0, 0)
    least_logged: tuple[int, float] | None = None


@dataclass(frozen=True)
class ThinnedPosition:
    """A position that is often missing, and clicked more often than the position above."""

    position: int
    shown: float  # share of the pages that span it which contain it
    times_clicked: float  # click rate over that of the position above


def page_facts(impressions: pl.DataFrame, cell: Sequence[str] = ()) -> PageFacts:
    """Compute facts of pages.

    Args:
        impressions: canonical impressions of whole pages, with sessions.
        cell: further cell columns. Each of their values has its own first position: on each page if positions restart
            for each value, else on pages that start with the value.
    """
    clicked, above = pl.when(pl.col(CLICK) == 1).then(pl.col(POSITION)), pl.col(POSITION).min() - 1
    per_page = impressions.group_by(SESSION).agg(
        pl.len().cast(pl.Int64).alias("rows"),
        pl.col(CLICK).cast(pl.Int64).sum().alias("clicks"),
        pl.col(POSITION).max().alias(LAST),
        top=3 * (clicked.max() - above) <= pl.col(POSITION).max() - above,
        end=3 * (clicked.min() - above) > 2 * (pl.col(POSITION).max() - above),
    )
    restarting = cell if cell and impressions.select(SESSION, POSITION).is_duplicated().any() else ()
    first = [pl.col(name).sort_by(POSITION).first() for name in cell if not restarting]
    spans = impressions.group_by(SESSION, *restarting).agg(
        *ENDS, pl.col(POSITION).n_unique().alias("positions"), *first
    )
    top = pl.col(FIRST).min().over(cell) if cell else 1
    span_counts = {
        "starting_late": (pl.col(FIRST) > top).sum(),
        "with_gaps": (pl.col(LAST) - pl.col(FIRST) + 1 > pl.col("positions")).sum(),
        "lacking": (pl.col(LAST) > pl.col("positions")).sum(),
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
    of_pages, of_spans = (
        frame.select(count.cast(pl.Int64).alias(name) for name, count in columns.items()).row(0, named=True)
        for frame, columns in ((per_page, counts), (spans, span_counts))
    )
    thinned, at_top, at_end, never, least_logged = None, 0, 0, (0, 0), None
    if not cell:
        sizes = pl.len().cast(pl.Int64).alias("pages"), (pl.col("clicks") > 0).sum().alias("clicked")
        by_length = per_page.group_by(LAST).agg(pl.col("top", "end").sum(), *sizes).sort(LAST, descending=True)
        longest = by_length.filter(pl.col(LAST) > 2).with_columns(pl.col("top", "end").cum_sum())  # noqa: PLR2004
        at_top, at_end = next(longest.filter(pl.col("end") >= _LONGEST).select("top", "end").iter_rows(), (0, 0))
        hardly = pl.col("clicked") < _HARDLY_ANY * pl.col("pages") * (pl.col("clicked").sum() / pl.col("pages").sum())
        most = by_length.filter(hardly, pl.col(LAST) < pl.col(LAST).max()).sort("pages", LAST).tail(1)
        never = next(most.select(LAST, "pages").iter_rows(), (0, 0))
    if not cell and of_spans["with_gaps"] > _GAPS * of_pages["pages"]:
        rows = impressions.join(spans.select(SESSION, FIRST, LAST), on=SESSION)
        thinned, least_logged = _thinned_position(rows, spans)
    return PageFacts(
        **of_pages,
        **of_spans,
        shifted=shifted_pages(spans, cell),
        thinned=thinned,
        clicked_at_top=at_top,
        clicked_at_end=at_end,
        never_clicked=never,
        least_logged=least_logged,
    )


_HARDLY_ANY = 0.01  # share of clicked pages, relative to that of pages of all lengths
_LONGEST = 30  # smallest number of pages with all clicks in the lower third
_GAPS = 0.05  # share of pages with gaps
_FEWEST_SPANNED = 100  # smallest number of pages that span a position
_SELDOMER, _CLICKED_MORE, _CERTAIN = 0.7, 1.2, 5.0  # presence and click rate over the position above; standard errors


def _thinned_position(
    rows: pl.DataFrame, pages: pl.DataFrame
) -> tuple[ThinnedPosition | None, tuple[int, float] | None]:
    """Return the position with the largest rise of the click rate among positions often missing, and the rarest one.

    Args:
        rows: impressions, with the first and the last position of their page.
        pages: first and last position by page.
    """
    inside = ((pl.col(FIRST) < pl.col(POSITION)) & (pl.col(POSITION) < pl.col(LAST))).sum()
    counts = rows.group_by(POSITION).agg(pl.len(), pl.col(CLICK).cast(pl.Int64).sum(), inside=inside).sort(POSITION)
    counts = counts.filter(pl.col(CLICK) > 0)
    position, shown, clicks, present = (counts[name].to_numpy() for name in (POSITION, "len", CLICK, "inside"))
    begun = np.searchsorted(np.sort(pages[FIRST].to_numpy()), position, "left")
    spanned = begun - np.searchsorted(np.sort(pages[LAST].to_numpy()), position, "right")  # pages that extend beyond
    share = np.where(spanned > 0, present / np.maximum(spanned, 1), 1.0)
    frequent = np.where(spanned >= _FEWEST_SPANNED, share, 1.0)
    least = (int(position[frequent.argmin()]), float(frequent.min())) if len(position) else None
    times = clicks[1:] / shown[1:] / (clicks[:-1] / shown[:-1])
    thinned = (share[1:] < _SELDOMER * share[:-1]) & (times > _CLICKED_MORE)
    thinned &= np.log(times) > _CERTAIN * np.sqrt(1 / clicks[1:] + 1 / clicks[:-1])
    if not thinned.any():
        return None, least
    largest = int(np.argmax(np.where(thinned, times, 0.0)))
    return ThinnedPosition(int(position[largest + 1]), float(share[largest + 1]), float(times[largest])), least


@dataclass(frozen=True)
class Outlook:
    """The expected estimate of a model on a log.

    Attributes:
        model: name of the model.
        reason: why nothing can be estimated; None if the estimate succeeds.
        cells: the cell columns, `impressions`, `clicks`, `identified`, `reason`, `std_error` (expected, of log
            propensity; 0 at references, null if unknown), `linking_pairs`, `linking_clicks`.
        click_share: share of the clicks in identified cells.
        share: share of the log's queries in the sample.
        estimate: of the sample; None if it fails.
    """

    model: str
    reason: str | None
    cells: pl.DataFrame
    click_share: float
    share: float = 1.0
    estimate: Estimate | None = None

    @property
    def errors(self) -> Floats:
        """Expected standard errors of identified cells other than references."""
        known = self.cells.filter(pl.col("identified") & (pl.col("std_error") > 0))
        return known["std_error"].to_numpy() if self.reason is None else np.empty(0)

    @property
    def carries(self) -> bool:
        """Whether the counts allow an estimate with errors for nearly all clicks."""
        return self.reason is None and self.click_share >= SUFFICIENT_CLICK_SHARE and bool(len(self.errors))


def outlook(statistics: SufficientStatistics, memory: int, share: float = 1.0) -> Outlook:
    """Estimate theta by the model of the statistics, and expected standard errors for the whole log.

    Args:
        statistics: of the log, or of a sample of its queries.
        memory: available for a fit, in bytes.
        share: share of the log's queries in the statistics.
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
    """Movement of documents between cells."""

    pairs: float  # number of (query, document) pairs
    moved: float  # number of pairs shown in several cells
    linking: float  # number of pairs that were also clicked, which alone are informative of propensities
    share: float  # share of the impressions of moved pairs


def movement(table: CountTable, query_share: float = 1.0) -> Movement:
    """Measure the movement of documents.

    Args:
        table: counts of the pairs, or of their signatures with multiplicities.
        query_share: share of the log's queries in the table, by which numbers are scaled up.
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
    return Movement(*(count / query_share for count in (pairs, moved, linking)), share=shown_of_moved / shown)


WIDE_ERROR = 0.1
"""Standard error of log propensity above which advice is given: the interval is about 20 % to either side."""

HOPELESS_ERROR = 1.0
"""Standard error of log propensity with an interval from a seventh to seven times the propensity."""

THIN_CLICKS = 100
LITTLE_MOVEMENT = 0.5


def advice(facts: LogFacts, moved: Movement, outlooks: Sequence[Outlook], *, by_cell: bool = False) -> dict[str, str]:
    """Return sentences of advice, by the code of the fault with the same advice, or by a name of their own.

    Args:
        facts: of the log.
        moved: movement of documents.
        outlooks: of the models, the position-based one first.
        by_cell: whether cells have further columns, over which no curve is smooth.
    """
    expected, sentences = outlooks[0], dict[str, str]()
    reasons = set(expected.cells["reason"].drop_nulls().to_list())
    if expected.reason is not None or {NOT_LINKED, ONE_WAY} & reasons:
        sentences["other positions"] = (
            "Let the same document appear at different positions for the same query now and then, by more days, a "
            "changed ranker or a little randomisation."
        )
    elif moved.share < LITTLE_MOVEMENT:
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
    """Return sentences on why the log cannot carry an estimate by a model; empty if it can."""
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
"""Smallest number of clients; a column with fewer values holds kinds of clients."""

_FEWEST_CLICKS = 20  # smallest number of clicks of a robot
_TIMES_AS_MANY = 5.0  # smallest ratio of the impressions of a robot to the median of clients
_TIMES_EXPECTED = 2.0  # smallest ratio of the clicks of a robot to those expected at its positions
_FLAT = 0.5  # smallest flatness f of a robot: 0 if clicks fall with position as those of others, 1 if not at all
_SPREAD = 0.3  # standard deviation of f between people
_NEARLY_ALL = 0.99  # click rate of a robot that clicks on everything
_LEVEL = 0.01
_FALSE = 0.1  # expected share of people among detected clients
_SMALLEST = 0.01  # smallest share of the clicks of robots that is reported
_HALVINGS = 40


@dataclass(frozen=True)
class Robots:
    """Clients that click like robots."""

    names: tuple[str, ...]  # with most clicks first
    impressions: float  # share of all impressions
    clicks: float  # share of all clicks
    times: float  # ratio of their clicks to those of other clients at the same positions


@dataclass(frozen=True)
class Clients:
    """The clients of the first rows of a log."""

    column: str  # column of the client
    number: int  # number of clients
    rows: int  # number of rows
    share: float  # share of the client with most rows
    robots: Robots | None  # clients that click like robots
    can_query: bool  # whether a query can exclude clients


def robots_among(counts: pl.DataFrame) -> Robots | None:
    """Detect clients with far more impressions than most, twice the expected clicks, and clicks at any position.

    Ordinary clients, with less than five times the median of impressions, click at position k with rate p_k. People
    click more or less often, but less at low positions: for client i with n_ik impressions and c_i clicks, let q_ik
    have the odds of p_k times a factor such that sum_k n_ik q_ik = c_i. The expected mean of p_k over clicks is then
    h_i = sum_k n_ik q_ik p_k / c_i, and r_i = sum_k n_ik p_k / n_i if it clicks at random. The flatness
    f_i = (h_i - observed mean) / (h_i - r_i) is 0 for people and 1 for robots. P_i is the probability of a larger f_i
    under a normal distribution of mean 0 and the variance of f_i plus 0.3^2, between people; it is 1 if f_i < 1/2, and
    0 if 99 % of the impressions are clicked. Candidates have at least 20 clicks and 2 sum_k n_ik p_k. Among the t = 1,
    2, 4, ... candidates with most impressions, robots are present if for some j the probability that j of t people
    have P at or below P_(j) is at most 0.01 divided by the number of t (higher criticism: Donoho and Jin 2004). Robots
    have the j smallest P, for the largest j with P_(j) <= 0.1 j / t (Benjamini and Hochberg 1995), for the t with the
    smallest probability.

    Args:
        counts: `CLIENT`, `position`, `impressions`, `clicks`.

    Returns:
        The robots; None if there are none, or they have less than 1 % of the clicks.
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
    candidates = heavy.join(expected, on=CLIENT, maintain_order="left").filter(many).with_row_index("number")
    if not candidates.height:
        return None
    n, c = (candidates[name].to_numpy() for name in (IMPRESSIONS, CLICKS))
    tail = _flatness_p_values(rows.join(candidates.select(CLIENT, "number"), on=CLIENT), n, c)
    sizes = np.unique(np.minimum(2 ** np.arange(len(c).bit_length() + 1), len(c)))
    best, chosen = _LEVEL / len(sizes), np.empty(0, np.int64)
    for size in sizes:
        order = np.argsort(tail[: int(size)], kind="stable")
        rank, ordered = np.arange(1.0, len(order) + 1), tail[order]
        chance = np.where(ordered < 1, scipy.special.betainc(rank, len(order) - rank + 1, ordered), 1.0).min()
        if chance <= best:
            best, chosen = chance, order[: np.flatnonzero(ordered <= _FALSE * rank / len(order)).max(initial=-1) + 1]
    total, clicked = clients.select(IMPRESSIONS, CLICKS).sum().row(0)
    if not len(chosen) or c[chosen].sum() < _SMALLEST * clicked:
        return None
    robots = candidates[chosen].sort(CLICKS, descending=True)
    return Robots(
        names=tuple(robots[CLIENT].cast(pl.String)),
        impressions=float(n[chosen].sum() / total),
        clicks=float(c[chosen].sum() / clicked),
        times=float(c[chosen].sum() / candidates[chosen]["expected"].sum()),
    )


def _flatness_p_values(rows: pl.DataFrame, n: Floats, c: Floats) -> Floats:
    """Return P of each client, shape (n,).

    Args:
        rows: `number` (of the client), `impressions`, `clicks`, `rate` (p_k) by client and position.
        n: impressions by client.
        c: clicks by client.
    """
    client, shown, clicks, p = (rows[name].to_numpy() for name in ("number", IMPRESSIONS, CLICKS, "rate"))

    def by_client(values: Floats) -> Floats:
        return np.bincount(client, values, len(n)).astype(np.float64)

    low, high = np.full(len(n), -20.0), np.full(len(n), 20.0)
    q = p
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        factor = np.exp(middle)[client]
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
