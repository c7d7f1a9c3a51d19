"""Days of a log that do not look like the others: positions that come or go, no clicks, click rates that are far off.

A day is compared with those that are nearest to it. At position k, with n_dk impressions on day d and r_k the click
rate of the others together, e = n_dk r_k clicks are expected, and their number varies by

    (1 - r_k) e  +  e^2 (m_k (tau_k^2 / Q_dk + s^2) + u_k)

    tau_k^2   by how much the click rates of queries differ, relative to r_k; Q_dk is how many queries of equal size the
              day's are worth, (sum_q n_dkq)^2 / sum_q n_dkq^2
    s         how far days lie apart beyond that: a Monday is no Sunday
    m_k       how far the other days lie apart, in units of the terms above: where there are few, near 1
    u_k       the relative error of r_k

So neither the millions of impressions behind a day nor what all its pages share make an ordinary day stand out.

Click rates by day and position, and how far queries lie apart in them: a small table, from statistics of any size.

    impressions n_dk, clicks c_dk     day d, position k
    sums over queries q               of n_dkq^2, n_dkq c_dkq and c_dkq^2

The sums say how much of the differences between days is due to the queries that happened to be typed.

Clicks that were lost: at one position of a day, or at all from one on, there are fewer than a tenth of e = n_dk r_k, or
on the whole day fewer than a quarter. r_k is the click rate of the quarter of the days where it is highest, so that
many bad days do not hide each other. Even if half of e were right, as after a redesign, chance would do so less than
once in a million: with v = tau_k^2 / Q_dk + .1^2, Chernoff's bound of a negative binomial number of mean e is

    P(clicks <= c) <= exp(-c log(c / e) + (c + 1 / v) log((1 + v c) / (1 + v e)))
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log, log1p, pi, sqrt

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION, QUERY

DAY = "day"
"""The day as text; or another name of what is compared, such as that of a file."""

IMPRESSIONS_SQUARED, PRODUCT, CLICKS_SQUARED = "impressions_squared", "product", "clicks_squared"
"""Columns of sums over queries."""

_COUNTS = (IMPRESSIONS, CLICKS, IMPRESSIONS_SQUARED, PRODUCT, CLICKS_SQUARED)

BY_DAY = pl.Schema({DAY: pl.String(), POSITION: pl.Int32()} | dict.fromkeys(_COUNTS, pl.Float64()))
"""The columns of `count_by_day`."""


def count_by_day(statistics: pl.LazyFrame, day: pl.Expr) -> pl.LazyFrame:
    """Counts by day and position of statistics that hold whole queries.

    Args:
        statistics: `query`, `position`, `impressions` and `clicks`; rows may have equal keys.
        day: what becomes `day`, as text at the end: texts are slow to group by.
    """
    n, c = pl.col(IMPRESSIONS), pl.col(CLICKS)
    by_query = statistics.group_by(day.alias(DAY), QUERY, POSITION).agg(pl.col(IMPRESSIONS, CLICKS).sum().cast(float))
    sums = (n.sum(), c.sum(), (n * n).sum(), (n * c).sum(), (c * c).sum())
    counted = by_query.group_by(DAY, POSITION).agg(total.alias(name) for name, total in zip(_COUNTS, sums, strict=True))
    return counted.select(pl.col(name).cast(of_type) for name, of_type in BY_DAY.items())


def count_positions(impressions: pl.LazyFrame, day: str) -> pl.LazyFrame:
    """Impressions only, by day and position, of a log that is not yet counted."""
    counted = impressions.filter(pl.col(POSITION) >= 1).group_by(POSITION).agg(pl.len().alias(IMPRESSIONS))
    rest = {name: pl.lit(0) for name in (CLICKS, PRODUCT, CLICKS_SQUARED)}
    named = counted.with_columns(pl.lit(day).alias(DAY), pl.col(IMPRESSIONS).alias(IMPRESSIONS_SQUARED), **rest)
    return named.select(pl.col(name).cast(of_type) for name, of_type in BY_DAY.items())


def merge_day_counts(counts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The table of all parts together, from those of each."""
    together = pl.concat([BY_DAY.to_frame(), *counts])
    return together.group_by(DAY, POSITION).agg(pl.col(_COUNTS).sum()).sort(DAY, POSITION)


NEAREST = 28
"""Days with which one is compared: four weeks, so that each day of the week is among them."""

DAY_SPREAD = 0.1
"""By how much click rates of days differ where nothing else is known, as a standard deviation relative to the rate."""

WORTH_OF_IT = 5.0
"""How many days that is worth, beside those that there are."""

FAR = 4.0
"""Standard errors beyond which a click rate is far from that of the other days."""

FEWEST_CLICKS = 10
"""Clicks at a position on the other days, for their click rate to be compared with; and so few on a day are few."""

FEWEST_EXPECTED = 2.0
"""Cells of fewer expected clicks say nothing about how far days lie apart."""

USED, UNUSED = 0.1, 0.005
"""A position is used where it has more than this share of the impressions of the day's most frequent one, and unused
where it has less."""

MOST_SHIFT = 2
"""By how much bases differ at most: positions start at 0 or 1, at times at 2."""

FEWEST_AT_USED, FEWEST_PAGES = 10, 100
"""Impressions that it takes to say that a position is used, and, of the most frequent one, that another is not."""


@dataclass(frozen=True)
class Change:
    """The click rate of a position on a day, and on the other days."""

    position: int
    rate: float  # on the day
    usual: float  # on the other days
    far: float  # by how many standard errors they differ; negative where it is lower
    far_by_noise: float  # the same if days had nothing in common but the queries: what a limit on the change is held to

    @property
    def relative(self) -> float:
        """The change relative to the usual rate."""
        return self.rate / self.usual - 1


@dataclass(frozen=True)
class DayReport:
    """How a day looks beside others."""

    day: str  # its name
    others: int  # how many days it was compared with
    positions: tuple[int, int] | None  # the first and the last position that it uses
    usual_positions: tuple[int, int] | None  # those that most of the others use
    gone: tuple[int, ...]  # positions that most of the others use, and it does not
    new: tuple[int, ...]  # positions that it uses, and most of the others do not
    clicks: float  # on the day
    expected_clicks: float  # by the click rates of the others
    without_clicks: bool  # whether it has none although some must be expected
    # The click rate of each position that it shows and that the others have clicks at
    changes: tuple[Change, ...] = field(repr=False)
    limit: float  # standard errors beyond which such a rate is far off: more, where many days are judged at once

    @property
    def far(self) -> tuple[Change, ...]:
        """The positions whose click rate is far off, the farthest first."""
        changes = [change for change in self.changes if abs(change.far) > self.limit]
        return tuple(sorted(changes, key=lambda change: -abs(change.far)))

    @property
    def misplaced(self) -> bool:
        """Whether positions are gone or new."""
        return bool(self.gone or self.new)

    @property
    def starts_elsewhere(self) -> bool:
        """Whether its positions start one or two away from those of the others, as from another base."""
        if self.positions is None or self.usual_positions is None or not self.misplaced:
            return False
        first, last = self.positions
        return 1 <= abs(first - self.usual_positions[0]) <= MOST_SHIFT and first < last

    @property
    def is_odd(self) -> bool:
        """Whether there is anything to say."""
        return self.misplaced or self.without_clicks or bool(self.far)

    def beyond(self, limit: float) -> Change | None:
        """The largest relative change of a click rate, if it is beyond a limit, and not by noise alone."""
        changes = [one for one in self.changes if abs(one.relative) > limit and abs(one.far_by_noise) > FAR]
        return max(changes, key=lambda change: abs(change.relative), default=None)


def compare_days(counts: pl.DataFrame, judged: Sequence[str], known: Sequence[str]) -> list[DayReport]:
    """Compare days with others.

    Args:
        counts: as `merge_day_counts` gives them.
        judged: the days that are compared. They count among the others of each other only where there are no known
            ones.
        known: the days that they are compared with; empty for each with all others.

    Returns:
        One entry per judged day that can be compared.
    """
    days = _Days.of(counts)
    in_order = sorted(set(judged) & set(days.names))
    if len(in_order) == 2 and not known:  # noqa: PLR2004 - of two days that differ, the later one has changed
        in_order, known = in_order[1:], in_order[:1]
    limit = sqrt(FAR**2 + 2 * log(max(len(in_order), 1)))
    compared = ((day, nearest_days(day, [other for other in known or in_order if other != day])) for day in in_order)
    return [_look(days, day, others, limit) for day, others in compared if others]


_FEW, _FEW_OF_DAY = 0.1, 0.25  # of the expected clicks of positions, and of a whole day: fewer are lost
_BETTER_DAYS = 0.75  # the quantile of the days' click rates from which on they are usual
_SURELY = log(1e6)


@dataclass(frozen=True)
class LackingDays:
    """Days and positions with hardly any clicks, where other days have many."""

    days: tuple[str, ...]  # in order
    of_days: int  # how many there are
    positions: tuple[int, ...]
    all_positions: tuple[int, ...]
    clicks: float  # that are missing, by the click rates of the other days
    share: float  # of the clicks that there should be


def days_lacking_clicks(counts: pl.DataFrame | None, impressions: float | None = None) -> LackingDays | None:
    """Where clicks of days were lost; None where none were, or days are not known.

    Args:
        counts: see `merge_day_counts`; of all queries, or of a sample.
        impressions: of all queries.
    """
    if counts is None or counts.is_empty():
        return None
    days = _Days.of(counts)
    shown, clicks = days.tables[IMPRESSIONS], days.tables[CLICKS]
    rate = np.where(shown > USED * shown.max(axis=0), clicks / np.maximum(shown, 1), np.nan)
    better = {name: table * (rate >= np.nanquantile(rate, _BETTER_DAYS, axis=0)) for name, table in days.tables.items()}
    usual = better[CLICKS].sum(axis=0) / better[IMPRESSIONS].sum(axis=0)
    expected = shown * usual
    variance = expected * (_between_queries(better, usual) / _queries(days.tables) + DAY_SPREAD**2)
    below, e, v = (np.cumsum(table[:, ::-1], axis=1)[:, ::-1] for table in (clicks, expected, variance))
    share = np.where(np.arange(len(days.positions)) == 0, _FEW_OF_DAY, _FEW)
    lost = _are_few(clicks, expected, variance, _FEW) | (np.cumsum(_are_few(below, e, v, share), axis=1) > 0)
    lost &= clicks < _FEW_OF_DAY * expected
    usual = np.where(lost, 0, clicks).sum(axis=0) / np.maximum(np.where(lost, 0, shown).sum(axis=0), 1)
    missing = float(np.maximum(shown * usual - clicks, 0)[lost].sum())
    if not missing:
        return None
    at = lost.any(axis=1).tolist()
    return LackingDays(
        days=tuple(day for day, is_bad in zip(days.names, at, strict=True) if is_bad),
        of_days=len(days.names),
        positions=days.named(lost.any(axis=0)),
        all_positions=tuple(days.positions),
        clicks=missing * max((impressions or 0) / float(shown.sum()), 1),
        share=missing / (missing + float(clicks.sum())),
    )


_MOST_POSITIONS = 5  # that are named one by one


def positions_in_words(positions: Sequence[int]) -> str:
    """Ascending positions, e.g. position 3; positions 4 to 9; positions 1, 2, 5, 7, 8 and 2 more."""
    first, last = positions[0], positions[-1]
    if first == last:
        return f"position {first}"
    if last - first + 1 == len(positions):
        return f"positions {first} to {last}"
    more = f" and {len(positions) - _MOST_POSITIONS} more" if len(positions) > _MOST_POSITIONS else ""
    return f"positions {', '.join(map(str, positions[:_MOST_POSITIONS]))}{more}"


def _are_few(clicks: Floats, expected: Floats, variance: Floats, share: Floats | float) -> Flags:
    """Whether clicks are surely fewer than a share of the expected ones; `variance` is v e."""
    e = np.maximum(expected, 1e-300)
    v = np.maximum(variance / e, DAY_SPREAD**2)
    half = e / 2
    by_ratio = clicks * np.log(np.maximum(clicks, 1e-300) / half)
    surprise = by_ratio - (clicks + 1 / v) * np.log((1 + v * clicks) / (1 + v * half))
    return (clicks < share * e) & (surprise > _SURELY)


def nearest_days(day: str, others: Sequence[str]) -> list[str]:
    """The days next to one in the order of their names: those before it, or else after it."""
    before = sorted((other for other in others if other < day), reverse=True)
    after = sorted(other for other in others if other > day)
    half = NEAREST // 2
    n_before = min(len(before), max(half, NEAREST - len(after)))
    return sorted([*before[:n_before], *after[: NEAREST - n_before]])


@dataclass(frozen=True)
class _Days:
    """Counts as tables of days by positions."""

    names: list[str]  # the days, in order
    positions: list[int]  # the positions, ascending
    tables: dict[str, Floats]  # by column of the counts, shape (D, K)

    used: Flags  # whether a day uses a position, shape (D, K)
    unused: Flags  # whether a day does not use it; of thin days that is not known. Shape (D, K)

    @classmethod
    def of(cls, counts: pl.DataFrame) -> "_Days":
        """Lay out counts."""
        names, positions = counts[DAY].unique().sort().to_list(), counts[POSITION].unique().sort().to_list()
        at = (
            np.searchsorted(np.array(names), counts[DAY].to_numpy()),
            np.searchsorted(np.array(positions), counts[POSITION].to_numpy()),
        )
        tables: dict[str, Floats] = {}
        for column in _COUNTS:
            tables[column] = np.zeros((len(names), len(positions)))
            tables[column][at] = counts[column].to_numpy()
        shown = tables[IMPRESSIONS]
        most = shown.max(axis=1, keepdims=True)
        used, unused = (
            (shown > USED * most) & (shown >= FEWEST_AT_USED),
            (shown < UNUSED * most) & (most >= FEWEST_PAGES),
        )
        return cls(names, positions, tables, used, unused)

    def rows(self, days: Sequence[str]) -> Integers:
        """The rows of some days, those that have counts."""
        numbers = {name: number for number, name in enumerate(self.names)}
        return np.array([numbers[day] for day in days if day in numbers], dtype=np.int64)

    def named(self, which: Flags) -> tuple[int, ...]:
        """The positions for which something holds, shape (K,)."""
        return tuple(position for position, holds in zip(self.positions, which.tolist(), strict=True) if holds)


def _between_queries(table: dict[str, Floats], rate: Floats) -> Floats:
    """tau_k^2: what the squared deviations of queries exceed those of single clicks by; that of all positions at least.

    Sum_q (c_q - r n_q)^2 is sum_q n_q r (1 - r) + tau^2 r^2 sum_q n_q^2 on average.
    """
    squares = table[IMPRESSIONS_SQUARED].sum(axis=0)
    deviations = (table[CLICKS_SQUARED] - 2 * rate * table[PRODUCT]).sum(axis=0) + rate**2 * squares
    excess = deviations - table[IMPRESSIONS].sum(axis=0) * rate * (1 - rate)
    size = rate**2 * squares
    pooled = max(excess.sum() / max(size.sum(), 1e-300), 0)
    return np.maximum(excess / np.maximum(size, 1e-300), pooled)


def _queries(table: dict[str, Floats]) -> Floats:
    """Q_dk: how many queries of equal size the queries of each day and position are worth, 1 at least."""
    return np.maximum(table[IMPRESSIONS] ** 2 / np.maximum(table[IMPRESSIONS_SQUARED], 1e-300), 1)


def _look(days: _Days, day: str, others: Sequence[str], limit: float) -> DayReport:
    row, rows = days.rows([day])[0], days.rows(others)
    rate, error, between_queries, spread = _usual_rates({name: table[rows] for name, table in days.tables.items()})
    table = {name: of_all[row] for name, of_all in days.tables.items()}
    shown, clicks = table[IMPRESSIONS], table[CLICKS]
    compared = (shown > 0) & (days.tables[IMPRESSIONS][rows].sum(axis=0) > 0)
    informative = compared & (days.tables[CLICKS][rows].sum(axis=0) >= FEWEST_CLICKS)
    expected, queries = shown * rate * compared, between_queries / _queries(table)
    apart = spread * (queries + DAY_SPREAD**2)

    def standard_errors_off(relative_variance: Floats) -> Floats:
        """By how many standard errors clicks differ from what is expected.

        By square roots, as counts are skewed: 4 clicks where half a one is expected may be chance. But not below a few
        clicks, where those of counts that are lower than expected go too far.
        """
        error = np.sqrt(np.maximum((1 - rate) * expected + expected**2 * relative_variance, 1e-300))
        by_roots: Floats = 2 * (np.sqrt(clicks) - np.sqrt(expected)) * np.sqrt(expected) / error
        return np.where(clicks > np.minimum(expected, FEWEST_CLICKS), by_roots, (clicks - expected) / error)

    far = standard_errors_off(apart + error)
    noise = standard_errors_off(np.minimum(spread, 1) * queries + error)
    # Positions that are usual are those of the seven days before, or as many after as lack: they may have changed.
    before, after = [other for other in others if other < day][-7:], [other for other in others if other > day]
    recent = days.rows([*before, *after[: 7 - len(before)]])
    uses, lacks = (2 * holds[recent].sum(axis=0) > len(recent) for holds in (days.used, days.unused))
    used, usual = days.named(days.used[row]), days.named(uses)
    total = max(float(expected.sum()), 1e-300)
    varies = float(np.max(apart + error, initial=0, where=compared))
    # -log P(no clicks), where their expectation varies by a Gamma distribution of this squared relative deviation,
    # against -log P(a normal deviate is above the limit), for 2 or more standard errors.
    surprise = log1p(varies * total) / varies if varies > 0 else total
    enough = limit**2 / 2 + log(limit * sqrt(2 * pi))
    numbers = zip(days.positions, clicks / np.maximum(shown, 1e-300), rate, far, noise, informative, strict=True)
    return DayReport(
        day=day,
        others=len(rows),
        positions=(used[0], used[-1]) if used else None,
        usual_positions=(usual[0], usual[-1]) if usual else None,
        gone=days.named(days.unused[row] & uses),
        new=days.named(days.used[row] & lacks),
        clicks=float(clicks.sum()),
        expected_clicks=total,
        without_clicks=not clicks.any() and surprise > enough,
        changes=tuple(Change(position, *map(float, change)) for position, *change, has_clicks in numbers if has_clicks),
        limit=limit,
    )


def _usual_rates(table: dict[str, Floats]) -> tuple[Floats, Floats, Floats, Floats]:
    """The click rates r_k to expect by some days, u_k, tau_k^2 and m_k, each of shape (K,).

    m_k is by how much days lie farther apart than expected, at the position or at all of them, whichever is more.

    Args:
        table: the counts of the days, each of shape (D, K).
    """
    shown, clicks = table[IMPRESSIONS], table[CLICKS]
    total, n_days = shown.sum(axis=0), len(shown)
    rate = (clicks.sum(axis=0) + 0.5) / (total + 1)
    between = _between_queries(table, rate)
    expected, apart = shown * rate, between / _queries(table) + DAY_SPREAD**2
    own = (1 - rate) + expected * apart  # the variance of clicks, as a multiple of the expected number
    informative = expected >= FEWEST_EXPECTED
    # Squared deviations beyond those of single clicks, in units of the whole variance, and the share of the variance
    # that is not due to single clicks.
    more: Floats = np.where(informative, (4 * (np.sqrt(clicks) - np.sqrt(expected)) ** 2 - (1 - rate)) / own, 0)
    worth: Floats = np.where(informative, expected * apart / own, 0)
    lost = n_days / max(n_days - 1, 1)  # the rate is that of the same days
    cells = np.maximum(informative.sum(axis=1), 1)
    by_day, worth_by_day = more.sum(axis=1) / cells, worth.sum(axis=1) / cells
    of_all = (WORTH_OF_IT + lost * max(by_day.sum(), 0)) / (WORTH_OF_IT + worth_by_day.sum())
    of_each = (WORTH_OF_IT + lost * np.maximum(more.sum(axis=0), 0)) / (WORTH_OF_IT + worth.sum(axis=0))
    spread = np.maximum(of_each, of_all)
    share = shown / np.maximum(total, 1)
    error = (share**2 * spread * apart).sum(axis=0) + (1 - rate) / np.maximum(total * rate, 0.5)
    return rate, error, between, spread
