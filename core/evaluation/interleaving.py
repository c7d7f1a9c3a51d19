"""Team-draft interleaving: which of two rankers is preferred, by a verdict that is valid at any number of looks.

A page is a draft of two rankings: in each round a coin decides which ranker picks first, and each adds its highest
document that is not on the page yet (Radlinski, Kurup & Joachims 2008). A click on a document of ranker A is credited
to A. For a page i, a query, or a user,

    D_i = credit of A - credit of B,    n_i its pages,    S = sum D_i,    V = sum D_i^2,    N = sum n_i

and the evidence against the hypothesis that the difference is mu per page, with D_i - mu n_i in place of D_i, is

    E(mu) = (1 + rho V(mu))^-1/2 exp(rho (S - mu N)^2 / (2 (1 + rho V(mu))))

E is a mixture of exp(l S - l^2 V / 2) over normal l of variance rho. If both rankings are the same, the coin makes the
D of a page symmetric given the past, whatever users have in common, so that each of these is a supermartingale (de la
Pena 1999), and P(E(0) >= 20 at any look) <= 5 %, exactly, for any number of pages. The 95 % interval {mu: E(mu) < 20}
is valid at every look asymptotically. So is E(0) of queries and users, with V multiplied by G / (G - 1), G =
(sum D^2)^2 / sum D^4, and G >= 20. rho must be chosen before the data; any value is valid.

The credit excludes the common prefix of both rankings, which a coin decides (Chapelle, Joachims, Radlinski & Yue 2012);
or all rounds in which both rankers order the two documents alike, which are pure noise as well.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import Credit
from posbias.core.schema import CLICK, PERIOD, POSITION, QUERY, SESSION

DECIDED = 20.0
"""Smallest E with a verdict: 1 / 0.05."""

FEWEST_CLUSTERS = 20.0
"""Smallest effective number of queries or users with a verdict."""

TEAM, RANK_A, RANK_B, USER, OUTCOME = "team", "rank_a", "rank_b", "user", "outcome"
PAGES, DIFFERENCE, SQUARES, CREDIT = "pages", "difference", "squares", "credit"
FIRST_A, FIRST_B, LONGER_A, LONGER_B, ALONE = "first_a", "first_b", "longer_a", "longer_b", "alone"
MISRANKED, CLICKS, UNWEIGHTED, MIXED, LARGEST = "misranked", "clicks", "unweighted", "mixed", "largest"
HOUR = "hour"
LEAD, LEAD_SQUARES, MIXED_USERS = "lead", "lead_squares", "mixed_users"
SUMS = (
    *(PAGES, DIFFERENCE, SQUARES, CREDIT, OUTCOME, FIRST_A, FIRST_B, LEAD, LEAD_SQUARES),
    *(LONGER_A, LONGER_B, ALONE, MISRANKED, CLICKS, UNWEIGHTED, MIXED, MIXED_USERS),
)
"""Sums over pages.

`credit` is of both teams; `first_a` counts pages whose first document of a team is of A; `lead` is the number of
documents of A at odd and of B at even positions minus that of all others; `longer_a` counts pages with at least two
documents more of A than of B; `alone` pages with at least two documents, all of one team; `misranked` pages on which a
ranker has no rank for a document that it placed, or a lower rank than the other ranker for the first one; `unweighted`
clicks at positions without a propensity; `mixed` pages with two outcomes; `mixed_users` pages with two users."""

SUMS_OF_USERS = (PAGES, DIFFERENCE, CREDIT, OUTCOME, FIRST_A, FIRST_B)

_LARGEST_WEIGHT = 5.0
_LARGEST_LOG_E = 700.0
_MOST_DOUBLINGS, _BISECTIONS = 60, 60
_UNRANKED = 1 << 30  # rank of a document that a ranker does not have


@dataclass(frozen=True)
class CreditRule:
    """The rule by which clicks are credited, and the columns that it needs."""

    teams: tuple[object, object]  # values of `team`, A first; documents with other values are of neither team
    team: str  # column of the team
    ranks: tuple[str, str] | None = None  # columns of the ranks by A and B
    user: str | None = None  # column of the user
    outcome: str | None = None  # column of the outcome of the page
    credit: Credit = "plain"
    propensities: Mapping[int, float] | None = None  # theta by position; clicks then weigh min(1 / theta, 5)

    def page_sums(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """Compute the sums of each page.

        Args:
            rows: canonical impressions of whole pages, with the columns of the rule.

        Returns:
            `query`, `period` and `user` if known, `SUMS` and `largest`; a row per page.
        """
        schema = rows.collect_schema()
        a, b = (pl.col(self.team) == pl.lit(value, schema[self.team]) for value in self.teams)
        sign = (a.cast(pl.Int8) - b.cast(pl.Int8)).fill_null(0)
        click, weight, unweighted = pl.col(CLICK).cast(pl.Float64), pl.lit(1.0), pl.lit(0)
        if self.propensities is not None:
            theta = pl.col(POSITION).replace_strict(dict(self.propensities), default=None, return_dtype=pl.Float64)
            weight = (1 / theta).clip(upper_bound=_LARGEST_WEIGHT)
            unweighted = click.filter(theta.is_null()).sum()
        columns = {TEAM: sign, POSITION: pl.col(POSITION), CLICK: click}
        columns[DIFFERENCE] = (sign * click * weight).fill_null(0.0)
        page_keys = {QUERY: pl.col(QUERY)} | ({PERIOD: pl.col(PERIOD)} if PERIOD in schema else {})
        page_keys |= {USER: pl.col(self.user)} if self.user is not None else {}
        if self.outcome is not None:
            columns[OUTCOME] = pl.col(self.outcome).cast(pl.Float64)
        if self.ranks is not None:
            for name, column in zip((RANK_A, RANK_B), self.ranks, strict=True):
                columns[name] = whole_number(pl.col(column)).fill_null(_UNRANKED)
        rows = rows.select(SESSION, *(column.alias(name) for name, column in (page_keys | columns).items()))
        is_a, in_team, same_rank = pl.col(TEAM) == 1, pl.col(TEAM) != 0, pl.col(RANK_A) == pl.col(RANK_B)
        counts, misranked, unranked = dict[str, pl.Expr](), pl.lit(0), pl.lit(value=False)
        if self.ranks is not None:
            rank, other_rank = (
                pl.when(is_a).then(own).otherwise(other) for own, other in ((RANK_A, RANK_B), (RANK_B, RANK_A))
            )
            counts["from"] = pl.when(~same_rank).then(POSITION).min()
            misranked, unranked = (rank > other_rank).cast(pl.Int64), (in_team & (rank == _UNRANKED)).any()
        # 4 if the first document of a team is of A, plus 1 if it is misranked
        first = (
            pl.when(in_team).then(pl.col(POSITION).cast(pl.Int64) * 8 + is_a.cast(pl.Int64) * 4 + misranked).min() % 8
        )
        team = pl.col(TEAM).cast(pl.Int32)
        lead, surplus_of_a = (team * (pl.col(POSITION).cast(pl.Int32) % 2 * 2 - 1)).sum(), team.sum()
        keys = [pl.col(name).first() if name == QUERY else pl.col(name).min() for name in page_keys]
        counts |= {
            DIFFERENCE: pl.col(DIFFERENCE).sum(),
            CREDIT: pl.col(DIFFERENCE).abs().sum(),
            FIRST_A: (first > 3).fill_null(value=False),  # noqa: PLR2004 - as above
            FIRST_B: (first < 2).fill_null(value=False),  # noqa: PLR2004 - as above
            LEAD: lead,
            LEAD_SQUARES: lead * lead,
            LONGER_A: surplus_of_a > 1,
            LONGER_B: surplus_of_a < -1,
            ALONE: (surplus_of_a.abs() > 1) & (surplus_of_a.abs() == team.abs().sum()),
            MISRANKED: unranked | (first % 2 == 1).fill_null(value=False),
            CLICKS: pl.col(CLICK).sum(),
            UNWEIGHTED: unweighted,
            MIXED: pl.lit(0) if self.outcome is None else pl.col(OUTCOME).min() < pl.col(OUTCOME).max(),
            OUTCOME: pl.lit(0.0) if self.outcome is None else pl.col(OUTCOME).max(),
            MIXED_USERS: pl.lit(0) if self.user is None else pl.col(USER).min() != pl.col(USER).max(),
        }
        sums = rows.group_by(SESSION).agg(*keys, **counts)
        excluded, credited = None, rows.filter(pl.col(DIFFERENCE) != 0)
        if self.credit == "pairs":
            number = (pl.col(POSITION).rank("ordinal").over(SESSION) - 1) // 2
            rounds = rows.filter(in_team).with_columns(number.alias("round"))
            orders = (pl.col(name).sort_by(POSITION) for name in (RANK_A, RANK_B))
            by_a, by_b = (order.first() < order.last() for order in orders)
            contested = (pl.len() == 2) & (by_a != by_b)  # noqa: PLR2004 - a pair
            contests = rounds.group_by(SESSION, "round").agg(contested=contested).filter("contested")
            excluded = rounds.filter(pl.col(DIFFERENCE) != 0).join(contests, on=[SESSION, "round"], how="anti")
        elif self.ranks is not None:  # the common prefix
            prefix = credited.filter(same_rank).join(sums.select(SESSION, "from"), on=SESSION)
            excluded = prefix.filter(pl.col("from").is_null() | (pl.col(POSITION) < pl.col("from")))
        if excluded is not None:
            by_page = excluded.group_by(SESSION).agg(
                pl.col(DIFFERENCE).sum().alias("excluded"), pl.col(DIFFERENCE).abs().sum().alias("excluded_credit")
            )
            sums = sums.join(by_page, on=SESSION, how="left").with_columns(
                pl.col(DIFFERENCE) - pl.col("excluded").fill_null(0.0),
                pl.col(CREDIT) - pl.col("excluded_credit").fill_null(0.0),
            )
        squared = pl.col(DIFFERENCE) ** 2
        sums = sums.with_columns(
            pl.lit(1).alias(PAGES), squared.alias(SQUARES), squared.alias(LARGEST), pl.col(OUTCOME).fill_null(0.0)
        )
        integers = [name for name in SUMS if name not in {SQUARES, DIFFERENCE, CREDIT, OUTCOME}]
        sums = sums.select(*page_keys, *SUMS, LARGEST).with_columns(pl.col(integers).cast(pl.Int64))
        return sums.collect(engine="streaming")


def whole_number(column: pl.Expr) -> pl.Expr:
    """Convert numbers or text (`3`, `3.0`) to integers; null for other values, and beyond 2^53."""
    number = column.cast(pl.Float64, strict=False)
    return pl.when(number == number.floor(), number.abs() <= 2.0**53).then(number).cast(pl.Int64)


def count_invalid_ranks(column: pl.Expr) -> pl.Expr:
    """Count values that are neither a rank nor missing (null, NaN or empty text)."""
    unknown = column.is_null() | column.cast(pl.Float64, strict=False).is_nan().fill_null(value=False)
    wrong = column.filter(~unknown & whole_number(column).is_null())
    return (wrong.cast(pl.String).str.strip_chars() != "").sum()


def add_up(sums: pl.LazyFrame, keys: Sequence[str]) -> pl.LazyFrame:
    """Add up sums of pages, or such sums, by key; `largest` is the maximum.

    By user or hour, only `SUMS_OF_USERS` are returned.
    """
    if USER in keys or HOUR in keys:
        return sums.group_by(*keys).agg(pl.col(SUMS_OF_USERS).sum())
    return sums.group_by(*keys).agg(pl.col(SUMS).sum(), pl.col(LARGEST).max())


def rho_for(squares: float) -> float:
    """Return the rho that about maximises E if V is `squares` at the time of the verdict."""
    needed = 2 * math.log(DECIDED)
    return (needed + math.log(needed) + 1) / squares


def log_e(total: float, squares: float, rho: float) -> float:
    """Return log E for S = `total` and V = `squares`."""
    return 0.5 * rho * total * total / (1 + rho * squares) - 0.5 * math.log1p(rho * squares)


@dataclass(frozen=True)
class Verdict:
    """The difference of credit between two rankers, with its evidence."""

    pages: float
    difference: float  # A minus B per page; NaN without pages
    e_value: float  # E(0), at most e^700; NaN with too few queries or users
    interval: tuple[float, float]  # 95 %; NaN if E is, infinite on a side without a limit
    effective: float  # effective number of queries or users; for pages, their number
    total: float = 0.0  # S
    squares: float = 0.0  # V, with the factor G / (G - 1)

    @property
    def winner(self) -> int:
        """1 for A, -1 for B, 0 while undecided."""
        return int(np.sign(self.difference)) if self.e_value >= DECIDED else 0

    @classmethod
    def of_pages(cls, pages: float, total: float, squares: float, rho: float) -> Self:
        """Compute the verdict for the traffic of the log, by page: N, S and V."""
        return cls._of((pages, total, squares, total, pages), rho, pages, 1.0)

    @classmethod
    def of_clusters(cls, pages: Floats, totals: Floats, rho: float) -> Self:
        """Compute the verdict for queries or users like those of the log.

        Args:
            pages: n by query or user, shape (G,).
            totals: D by query or user, shape (G,).
            rho: of the mixture.
        """
        n, total, squared = float(pages.sum()), float(totals.sum()), totals**2
        squares, fourth = float(squared.sum()), float((squared**2).sum())
        effective = squares**2 / fourth if fourth > 0 else 0.0
        if effective < FEWEST_CLUSTERS:
            return cls(n, total / n if n else math.nan, math.nan, (math.nan, math.nan), effective)
        sums = n, total, squares, float(pages @ totals), float(pages @ pages)
        return cls._of(sums, rho, effective, effective / (effective - 1))

    @classmethod
    def _of(cls, sums: tuple[float, float, float, float, float], rho: float, effective: float, factor: float) -> Self:
        """Compute the verdict from N, S, V, sum n D and sum n^2; V is multiplied by `factor`."""
        pages, total, squares, cross, squared_pages = sums

        def log_e_at(mu: float) -> float:
            spread = squares - 2 * mu * cross + mu * mu * squared_pages
            return log_e(total - mu * pages, factor * max(spread, 0.0), rho)

        if not pages:
            return cls(0.0, math.nan, 1.0, (-math.inf, math.inf), 0.0)
        mean = total / pages
        low, high = (_limit(log_e_at, mean, sign / pages) for sign in (-1.0, 1.0))
        e_value = math.exp(min(log_e_at(0.0), _LARGEST_LOG_E))
        return cls(pages, mean, e_value, (low, high), effective, total, factor * squares)


def _limit(log_e_at: Callable[[float], float], start: float, step: float) -> float:
    """Return the mu nearest to `start`, in the direction of `step`, with E = `DECIDED`; infinite without one."""
    limit = math.log(DECIDED)
    inside = outside = start
    for _ in range(_MOST_DOUBLINGS):
        outside = start + step
        if log_e_at(outside) >= limit:
            break
        inside, step = outside, 2 * step
    else:
        return math.copysign(math.inf, step)
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if log_e_at(middle) < limit else (inside, middle)
    return outside


def repeated_coins(pages: Floats, first_a: Floats) -> tuple[float, float]:
    """Test whether the coin is thrown independently on each page, by query, user or day.

    Of n pages, a begin with A. For fair and independent coins the sum of (2 a - n)^2 - n has mean 0, variance
    2 sum n (n - 1) and third moment 8 sum n (n - 1) (n - 2). It is approximated by a chi-squared variable with the same
    moments (Pearson), whose normal deviate is z (Wilson & Hilferty 1931).

    Args:
        pages: n, shape (G,).
        first_a: a, shape (G,).

    Returns:
        z, and the ratio of the variance of the number of heads to that of independent coins; 1 without pages.
    """
    odd, pairs = (2 * first_a - pages) ** 2, pages * (pages - 1)
    second, third = float(pairs.sum()), float((pairs * (pages - 2)).sum())
    z = float((odd - pages).sum()) / math.sqrt(2 * second) if second else 0.0
    if third > 0:
        freedom = second**3 / third**2
        root = max(1 + z * math.sqrt(2 / freedom), 0.0) ** (1 / 3)
        z = (root - 1 + 2 / (9 * freedom)) * math.sqrt(4.5 * freedom)
    number = float(pages.sum())
    return z, (float(odd.sum()) / number if number else 1.0)
