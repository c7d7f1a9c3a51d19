"""Find days that differ from the other days of a log: in their positions, without clicks, or in click rates.

`compare_days` compares each day with the nearest days. At position k, with n_dk impressions on day d and click rate r_k
of the other days, e = n_dk r_k clicks are expected, with variance

    (1 - r_k) e  +  e^2 (m_k (tau_k^2 / Q_dk + s^2) + u_k)

    tau_k^2   squared coefficient of variation of the click rates of queries
    Q_dk      effective number of queries, (sum_q n_dkq)^2 / sum_q n_dkq^2
    s         coefficient of variation of the click rates of days (a Monday is no Sunday)
    m_k       observed variance between the other days relative to these two terms; near 1 with few days
    u_k       squared relative error of r_k

An ordinary day is therefore not odd merely because it has millions of impressions.

The input is a small table by day d and position k, whatever the size of the statistics: impressions n_dk, clicks c_dk,
and the sums over queries q of n_dkq^2, n_dkq c_dkq and c_dkq^2, from which tau_k^2 and Q_dk follow.

`days_lacking_clicks` finds lost clicks: at a position of a day, or at all positions from one on, fewer than a tenth of
e = n_dk r_k, or on the whole day fewer than a quarter. Here r_k is the click rate of the quarter of the days with the
highest rate, so that many bad days do not hide each other. The deficit must be significant even if only half of e is
right, as after a redesign, at 1e-6: with v = tau_k^2 / Q_dk + .1^2, Chernoff's bound for a negative binomial variable
of mean e is

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
"""Column of the day as text, or of the name of another group of rows, such as a file."""

IMPRESSIONS_SQUARED, PRODUCT, CLICKS_SQUARED = "impressions_squared", "product", "clicks_squared"
"""Columns of the sums over queries of n^2, n c and c^2."""

_COUNTS = (IMPRESSIONS, CLICKS, IMPRESSIONS_SQUARED, PRODUCT, CLICKS_SQUARED)

BY_DAY = pl.Schema({DAY: pl.String(), POSITION: pl.Int32()} | dict.fromkeys(_COUNTS, pl.Float64()))
"""Columns of `count_by_day`."""


def count_by_day(statistics: pl.LazyFrame, day: pl.Expr) -> pl.LazyFrame:
    """Count statistics of whole queries by day and position, with the columns `BY_DAY`.

    Args:
        statistics: `query`, `position`, `impressions` and `clicks`; rows may have equal keys.
        day: expression of the day; it is cast to text after the grouping, as grouping by text is slow.
    """
    n, c = pl.col(IMPRESSIONS), pl.col(CLICKS)
    by_query = statistics.group_by(day.alias(DAY), QUERY, POSITION).agg(pl.col(IMPRESSIONS, CLICKS).sum().cast(float))
    sums = (n.sum(), c.sum(), (n * n).sum(), (n * c).sum(), (c * c).sum())
    counted = by_query.group_by(DAY, POSITION).agg(total.alias(name) for name, total in zip(_COUNTS, sums, strict=True))
    return counted.select(pl.col(name).cast(of_type) for name, of_type in BY_DAY.items())


def count_positions(impressions: pl.LazyFrame, day: str) -> pl.LazyFrame:
    """Count the impressions (not the clicks) of canonical impressions of one day by position, as `count_by_day`."""
    counted = impressions.filter(pl.col(POSITION) >= 1).group_by(POSITION).agg(pl.len().alias(IMPRESSIONS))
    rest = {name: pl.lit(0) for name in (CLICKS, PRODUCT, CLICKS_SQUARED)}
    named = counted.with_columns(pl.lit(day).alias(DAY), pl.col(IMPRESSIONS).alias(IMPRESSIONS_SQUARED), **rest)
    return named.select(pl.col(name).cast(of_type) for name, of_type in BY_DAY.items())


def merge_day_counts(counts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Sum the tables of `count_by_day` of all parts."""
    together = pl.concat([BY_DAY.to_frame(), *counts])
    return together.group_by(DAY, POSITION).agg(pl.col(_COUNTS).sum()).sort(DAY, POSITION)


NEAREST = 28
"""Number of other days that a day is compared with: four weeks, so that they include each day of the week."""

DAY_SPREAD = 0.1
"""Prior of s, the coefficient of variation of click rates between days."""

WORTH_OF_IT = 5.0
"""Weight of this prior, in days."""

FAR = 4.0
"""Standard errors from which a click rate is far from that of the other days."""

FEWEST_CLICKS = 10
"""Fewest clicks at a position on the other days for a comparison; also the count below which a normal approximation
replaces square roots."""

FEWEST_EXPECTED = 2.0
"""Fewest expected clicks of a day and position that enter the estimate of the variance between days."""

USED, UNUSED = 0.1, 0.005
"""A position is used if it has more than the first share of the impressions of the day's most frequent position, and
unused if it has less than the second."""

MOST_SHIFT = 2
"""Largest difference of position bases: positions start at 0 or 1, sometimes at 2."""

FEWEST_AT_USED, FEWEST_PAGES = 10, 100
"""Fewest impressions of a used position; fewest of the day's most frequent position to call another one unused."""


@dataclass(frozen=True)
class Change:
    """Click rate of a position on a day, and on the other days."""

    position: int
    rate: float  # on the day
    usual: float  # on the other days
    far: float  # difference in standard errors; negative if the day's rate is lower
    far_by_noise: float  # difference in standard errors without the variance between days, used with `beyond`

    @property
    def relative(self) -> float:
        """Relative change of the click rate, rate / usual - 1."""
        return self.rate / self.usual - 1


@dataclass(frozen=True)
class DayReport:
    """Comparison of a day with other days."""

    day: str  # its name
    others: int  # number of days that it was compared with
    positions: tuple[int, int] | None  # first and last used position
    usual_positions: tuple[int, int] | None  # first and last position that most of the others use
    gone: tuple[int, ...]  # positions that most of the others use, and that are unused on the day
    new: tuple[int, ...]  # positions that are used on the day, and that are unused on most of the others
    clicks: float  # on the day
    expected_clicks: float  # by the click rates of the others
    without_clicks: bool  # whether it has no clicks, significantly fewer than expected
    changes: tuple[Change, ...] = field(repr=False)  # of each position that it shows and where the others have clicks
    limit: float  # standard errors from which a rate is far off; grows with the number of days that are compared

    @property
    def far(self) -> tuple[Change, ...]:
        """Positions whose click rate is far off, the farthest first."""
        changes = [change for change in self.changes if abs(change.far) > self.limit]
        return tuple(sorted(changes, key=lambda change: -abs(change.far)))

    @property
    def misplaced(self) -> bool:
        """Whether there are gone or new positions."""
        return bool(self.gone or self.new)

    @property
    def starts_elsewhere(self) -> bool:
        """Whether its positions start one or two above or below the usual start, as with another base."""
        if self.positions is None or self.usual_positions is None or not self.misplaced:
            return False
        first, last = self.positions
        return 1 <= abs(first - self.usual_positions[0]) <= MOST_SHIFT and first < last

    @property
    def is_odd(self) -> bool:
        """Whether the day differs from the others in any way."""
        return self.misplaced or self.without_clicks or bool(self.far)

    def beyond(self, limit: float) -> Change | None:
        """Return the largest relative change above a limit that is not due to noise; None if there is none."""
        changes = [each for each in self.changes if abs(each.relative) > limit and abs(each.far_by_noise) > FAR]
        return max(changes, key=lambda change: abs(change.relative), default=None)


def compare_days(counts: pl.DataFrame, judged: Sequence[str], known: Sequence[str]) -> list[DayReport]:
    """Compare days with other days.

    Args:
        counts: from `merge_day_counts`.
        judged: the days to compare.
        known: the days to compare them with; if empty, each judged day is compared with the other judged days.

    Returns:
        One report per judged day that can be compared; of two judged days without known ones, for the later only.
    """
    days = _Days.of(counts)
    in_order = sorted(set(judged) & set(days.names))
    if len(in_order) == 2 and not known:  # noqa: PLR2004 - of two days that differ, the later one has changed
        in_order, known = in_order[1:], in_order[:1]
    limit = sqrt(FAR**2 + 2 * log(max(len(in_order), 1)))
    compared = ((day, nearest_days(day, [other for other in known or in_order if other != day])) for day in in_order)
    return [_look(days, day, others, limit) for day, others in compared if others]


_FEW, _FEW_OF_DAY = 0.1, 0.25  # share of the expected clicks of positions, or of a day, below which clicks were lost
_BETTER_DAYS = 0.75  # quantile of the days' click rates from which a day counts for the expected rate
_SURELY = log(1e6)


@dataclass(frozen=True)
class LackingDays:
    """Days and positions with hardly any clicks, though other days have many."""

    days: tuple[str, ...]  # days with lost clicks, in order
    of_days: int  # number of all days
    positions: tuple[int, ...]  # positions with lost clicks
    all_positions: tuple[int, ...]
    clicks: float  # number of missing clicks, by the click rates of the other days
    share: float  # of missing clicks in the expected clicks


def days_lacking_clicks(counts: pl.DataFrame | None, impressions: float | None = None) -> LackingDays | None:
    """Find days and positions whose clicks were lost; None if there are none, or no days.

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


_MOST_POSITIONS = 5  # that a message lists


def positions_in_words(positions: Sequence[int]) -> str:
    """Format ascending positions: position 3; positions 4 to 9; positions 1, 2, 5, 7, 8 and 2 more."""
    first, last = positions[0], positions[-1]
    if first == last:
        return f"position {first}"
    if last - first + 1 == len(positions):
        return f"positions {first} to {last}"
    more = f" and {len(positions) - _MOST_POSITIONS} more" if len(positions) > _MOST_POSITIONS else ""
    return f"positions {', '.join(map(str, positions[:_MOST_POSITIONS]))}{more}"


def _are_few(clicks: Floats, expected: Floats, variance: Floats, share: Floats | float) -> Flags:
    """Return whether clicks are below a share of the expected ones, and significantly below half; `variance` is v e."""
    e = np.maximum(expected, 1e-300)
    v = np.maximum(variance / e, DAY_SPREAD**2)
    half = e / 2
    by_ratio = clicks * np.log(np.maximum(clicks, 1e-300) / half)
    surprise = by_ratio - (clicks + 1 / v) * np.log((1 + v * clicks) / (1 + v * half))
    return (clicks < share * e) & (surprise > _SURELY)


def nearest_days(day: str, others: Sequence[str]) -> list[str]:
    """Return the `NEAREST` days around a day in the order of names: half before it and half after it, if there are."""
    before = sorted((other for other in others if other < day), reverse=True)
    after = sorted(other for other in others if other > day)
    half = NEAREST // 2
    n_before = min(len(before), max(half, NEAREST - len(after)))
    return sorted([*before[:n_before], *after[: NEAREST - n_before]])


@dataclass(frozen=True)
class _Days:
    """Counts as matrices of days by positions."""

    names: list[str]  # the days, in order
    positions: list[int]  # ascending
    tables: dict[str, Floats]  # by column of the counts, shape (D, K)

    used: Flags  # whether a day uses a position, shape (D, K)
    unused: Flags  # whether a position is unused; False on days with few impressions. Shape (D, K)

    @classmethod
    def of(cls, counts: pl.DataFrame) -> "_Days":
        """Convert the table of `merge_day_counts` to matrices."""
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
        """Return the row numbers of these days, without days that have no counts."""
        numbers = {name: number for number, name in enumerate(self.names)}
        return np.array([numbers[day] for day in days if day in numbers], dtype=np.int64)

    def named(self, which: Flags) -> tuple[int, ...]:
        """Return the positions where `which`, shape (K,), is True."""
        return tuple(position for position, holds in zip(self.positions, which.tolist(), strict=True) if holds)


def _between_queries(table: dict[str, Floats], rate: Floats) -> Floats:
    """Estimate tau_k^2 by the method of moments, shape (K,); at least the estimate pooled over positions.

    E sum_q (c_q - r n_q)^2 = sum_q n_q r (1 - r) + tau^2 r^2 sum_q n_q^2.
    """
    squares = table[IMPRESSIONS_SQUARED].sum(axis=0)
    deviations = (table[CLICKS_SQUARED] - 2 * rate * table[PRODUCT]).sum(axis=0) + rate**2 * squares
    excess = deviations - table[IMPRESSIONS].sum(axis=0) * rate * (1 - rate)
    size = rate**2 * squares
    pooled = max(excess.sum() / max(size.sum(), 1e-300), 0)
    return np.maximum(excess / np.maximum(size, 1e-300), pooled)


def _queries(table: dict[str, Floats]) -> Floats:
    """Return Q_dk, the effective number of queries, at least 1, same shape as the counts."""
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
        """Return the difference of clicks from expected clicks in standard errors, shape (K,).

        On the scale of square roots, as counts are skewed: 4 clicks with .5 expected may be chance. Without square
        roots if there are few clicks and fewer than expected, where these would exaggerate.
        """
        error = np.sqrt(np.maximum((1 - rate) * expected + expected**2 * relative_variance, 1e-300))
        by_roots: Floats = 2 * (np.sqrt(clicks) - np.sqrt(expected)) * np.sqrt(expected) / error
        return np.where(clicks > np.minimum(expected, FEWEST_CLICKS), by_roots, (clicks - expected) / error)

    far = standard_errors_off(apart + error)
    noise = standard_errors_off(np.minimum(spread, 1) * queries + error)
    # Usual positions are those of the seven days before (or after, if there are fewer), as positions may change
    before, after = [other for other in others if other < day][-7:], [other for other in others if other > day]
    recent = days.rows([*before, *after[: 7 - len(before)]])
    uses, lacks = (2 * holds[recent].sum(axis=0) > len(recent) for holds in (days.used, days.unused))
    used, usual = days.named(days.used[row]), days.named(uses)
    total = max(float(expected.sum()), 1e-300)
    varies = float(np.max(apart + error, initial=0, where=compared))
    # -log P(no clicks) if the expectation is gamma distributed with this squared coefficient of variation, against
    # -log P(a normal deviate is above the limit), for 2 or more standard errors
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
    """Return r_k, u_k, tau_k^2 and m_k (see the top of this module) from the other days, each of shape (K,).

    m_k is estimated at the position and over all positions; the larger is returned.

    Args:
        table: the counts of the other days, each of shape (D, K).
    """
    shown, clicks = table[IMPRESSIONS], table[CLICKS]
    total, n_days = shown.sum(axis=0), len(shown)
    rate = (clicks.sum(axis=0) + 0.5) / (total + 1)
    between = _between_queries(table, rate)
    expected, apart = shown * rate, between / _queries(table) + DAY_SPREAD**2
    own = (1 - rate) + expected * apart  # variance of clicks divided by their expectation
    informative = expected >= FEWEST_EXPECTED
    # Squared deviations without those of single clicks, and the expected variance without that of single clicks, both
    # relative to the whole variance
    more: Floats = np.where(informative, (4 * (np.sqrt(clicks) - np.sqrt(expected)) ** 2 - (1 - rate)) / own, 0)
    worth: Floats = np.where(informative, expected * apart / own, 0)
    lost = n_days / max(n_days - 1, 1)  # correction, as the rate is estimated from the same days
    cells = np.maximum(informative.sum(axis=1), 1)
    by_day, worth_by_day = more.sum(axis=1) / cells, worth.sum(axis=1) / cells
    of_all = (WORTH_OF_IT + lost * max(by_day.sum(), 0)) / (WORTH_OF_IT + worth_by_day.sum())
    of_each = (WORTH_OF_IT + lost * np.maximum(more.sum(axis=0), 0)) / (WORTH_OF_IT + worth.sum(axis=0))
    spread = np.maximum(of_each, of_all)
    share = shown / np.maximum(total, 1)
    error = (share**2 * spread * apart).sum(axis=0) + (1 - rate) / np.maximum(total * rate, 0.5)
    return rate, error, between, spread
