"""Team-draft interleaving: which of two rankers is preferred, by a verdict that holds at any number of looks.

A page is a draft of two rankings: in each round a coin says which ranker picks first, and both add the document that
they have highest and that is not on the page yet (Radlinski, Kurup & Joachims 2008). A click on a document of ranker A
is credited to A. Of a page i, of a query, or of a user,

    D_i = credit of A - credit of B,    n_i its pages,    S = sum D_i,    V = sum D_i^2,    N = sum n_i

and against the hypothesis that the difference is mu a page, with D_i - mu n_i in place of D_i,

    E(mu) = (1 + rho V(mu))^-1/2 exp(rho (S - mu N)^2 / (2 (1 + rho V(mu))))

E is a mixture of exp(l S - l^2 V / 2) over normal l of variance rho. Where both rankings are the same, the coin makes
the D of a page symmetric given all before, whatever users share, so that each of these is a supermartingale (de la Pena
1999), and P(E(0) >= 20 at any look) <= 5 %, exactly, for any number of pages. The 95 % interval {mu: E(mu) < 20} holds
at every look asymptotically, and so does E(0) of queries and users, of which V is multiplied by G / (G - 1), G =
(sum D^2)^2 / sum D^4, and which take G >= 20. rho is chosen before the data; any value is valid.

Left out of the credit is the common prefix of both rankings, which a coin decides (Chapelle, Joachims, Radlinski & Yue
2012); or all rounds in which both rankers order the two documents alike, which are pure noise as well.
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
"""The E from which there is a verdict: 1 / 0.05."""

FEWEST_CLUSTERS = 20.0
"""Effective queries or users below which nothing is concluded about others."""

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
"""Sums over pages; `credit` is that of both teams, `first_a` counts the pages on which A has the first document of a
team, `lead` is the documents of A at odd positions and of B at even ones minus the others, `longer_a` counts pages on
which A has two documents more than B, or more than that, `alone` those with two documents or more, all of one team,
`misranked` those on which a ranker has no rank for a document that it placed, or has that first one below where the
other has it, `unweighted` clicks at positions without a propensity, `mixed` pages with two outcomes, `mixed_users`
those with two users."""

SUMS_OF_USERS = (PAGES, DIFFERENCE, CREDIT, OUTCOME, FIRST_A, FIRST_B)

_LARGEST_WEIGHT = 5.0
_LARGEST_LOG_E = 700.0
_MOST_DOUBLINGS, _BISECTIONS = 60, 60
_BEYOND_ALL = 1 << 30  # the rank of a document that a ranker does not have


@dataclass(frozen=True)
class CreditRule:
    """How clicks are credited."""

    teams: tuple[object, object]  # the values of the two teams, A first; a document of another value is of neither
    team: str  # the columns of the log
    ranks: tuple[str, str] | None = None
    user: str | None = None
    outcome: str | None = None
    credit: Credit = "plain"
    propensities: Mapping[int, float] | None = None  # theta by position; clicks then weigh min(1 / theta, 5)

    def of_pages(self, rows: pl.LazyFrame) -> pl.DataFrame:
        """Sums of each page.

        Args:
            rows: canonical impressions of whole pages, with the columns of the log that the rule names.

        Returns:
            `query`, `period` and `user` where they are known, and `SUMS`; a row a page.
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
        own = {QUERY: pl.col(QUERY)} | ({PERIOD: pl.col(PERIOD)} if PERIOD in schema else {})
        own |= {USER: pl.col(self.user)} if self.user is not None else {}
        if self.outcome is not None:
            columns[OUTCOME] = pl.col(self.outcome).cast(pl.Float64)
        if self.ranks is not None:
            for name, column in zip((RANK_A, RANK_B), self.ranks, strict=True):
                columns[name] = whole_number(pl.col(column)).fill_null(_BEYOND_ALL)
        rows = rows.select(SESSION, *(of.alias(name) for name, of in (own | columns).items()))
        ours, of_team, alike = pl.col(TEAM) == 1, pl.col(TEAM) != 0, pl.col(RANK_A) == pl.col(RANK_B)
        counts, misranked, unranked = dict[str, pl.Expr](), pl.lit(0), pl.lit(value=False)
        if self.ranks is not None:
            rank, of_other = (
                pl.when(ours).then(one).otherwise(two) for one, two in ((RANK_A, RANK_B), (RANK_B, RANK_A))
            )
            counts["from"] = pl.when(~alike).then(POSITION).min()
            misranked, unranked = (rank > of_other).cast(pl.Int64), (of_team & (rank == _BEYOND_ALL)).any()
        # of the document of a team that stands first: 4 if it is of A, and 1 if it is misranked
        first = (
            pl.when(of_team).then(pl.col(POSITION).cast(pl.Int64) * 8 + ours.cast(pl.Int64) * 4 + misranked).min() % 8
        )
        team = pl.col(TEAM).cast(pl.Int32)  # `more`: documents of A than of B
        lead, more = (team * (pl.col(POSITION).cast(pl.Int32) % 2 * 2 - 1)).sum(), team.sum()
        placed = [pl.col(name).first() if name == QUERY else pl.col(name).min() for name in own]
        counts |= {
            DIFFERENCE: pl.col(DIFFERENCE).sum(),
            CREDIT: pl.col(DIFFERENCE).abs().sum(),
            FIRST_A: (first > 3).fill_null(value=False),  # noqa: PLR2004 - as above
            FIRST_B: (first < 2).fill_null(value=False),  # noqa: PLR2004 - as above
            LEAD: lead,
            LEAD_SQUARES: lead * lead,
            LONGER_A: more > 1,
            LONGER_B: more < -1,
            ALONE: (more.abs() > 1) & (more.abs() == team.abs().sum()),
            MISRANKED: unranked | (first % 2 == 1).fill_null(value=False),
            CLICKS: pl.col(CLICK).sum(),
            UNWEIGHTED: unweighted,
            MIXED: pl.lit(0) if self.outcome is None else pl.col(OUTCOME).min() < pl.col(OUTCOME).max(),
            OUTCOME: pl.lit(0.0) if self.outcome is None else pl.col(OUTCOME).max(),
            MIXED_USERS: pl.lit(0) if self.user is None else pl.col(USER).min() != pl.col(USER).max(),
        }
        sums = rows.group_by(SESSION).agg(*placed, **counts)
        left_out, credited = None, rows.filter(pl.col(DIFFERENCE) != 0)
        if self.credit == "pairs":
            place = (pl.col(POSITION).rank("ordinal").over(SESSION) - 1) // 2
            rounds = rows.filter(of_team).with_columns(place.alias("round"))
            orders = (pl.col(name).sort_by(POSITION) for name in (RANK_A, RANK_B))
            one, other = (order.first() < order.last() for order in orders)
            contested = (pl.len() == 2) & (one != other)  # noqa: PLR2004 - a pair
            contests = rounds.group_by(SESSION, "round").agg(contested=contested).filter("contested")
            left_out = rounds.filter(pl.col(DIFFERENCE) != 0).join(contests, on=[SESSION, "round"], how="anti")
        elif self.ranks is not None:  # what both rank alike may be in the common prefix
            prefix = credited.filter(alike).join(sums.select(SESSION, "from"), on=SESSION)
            left_out = prefix.filter(pl.col("from").is_null() | (pl.col(POSITION) < pl.col("from")))
        if left_out is not None:
            taken = left_out.group_by(SESSION).agg(
                pl.col(DIFFERENCE).sum().alias("taken"), pl.col(DIFFERENCE).abs().sum().alias("taken_credit")
            )
            rest = (
                pl.col(of) - pl.col(by).fill_null(0.0) for of, by in ((DIFFERENCE, "taken"), (CREDIT, "taken_credit"))
            )
            sums = sums.join(taken, on=SESSION, how="left").with_columns(*rest)
        squared = pl.col(DIFFERENCE) ** 2
        sums = sums.with_columns(
            pl.lit(1).alias(PAGES), squared.alias(SQUARES), squared.alias(LARGEST), pl.col(OUTCOME).fill_null(0.0)
        )
        whole = [name for name in SUMS if name not in {SQUARES, DIFFERENCE, CREDIT, OUTCOME}]
        columns = [*own, *SUMS, LARGEST]
        return sums.select(columns).with_columns(pl.col(whole).cast(pl.Int64)).collect(engine="streaming")


def whole_number(column: pl.Expr) -> pl.Expr:
    """Whole numbers of numbers or text (`3`, `3.0`); null for what is none, and for what is beyond 2^53."""
    number = column.cast(pl.Float64, strict=False)
    return pl.when(number == number.floor(), number.abs() <= 2.0**53).then(number).cast(pl.Int64)


def no_ranks(column: pl.Expr) -> pl.Expr:
    """Number of values that are neither a rank nor missing, as null, NaN and empty text are."""
    unknown = column.is_null() | column.cast(pl.Float64, strict=False).is_nan().fill_null(value=False)
    wrong = column.filter(~unknown & whole_number(column).is_null())
    return (wrong.cast(pl.String).str.strip_chars() != "").sum()


def add_up(sums: pl.LazyFrame, keys: Sequence[str]) -> pl.LazyFrame:
    """Sums by key, of pages or of other sums; `largest` is the largest square of a page.

    Of users and hours, `SUMS_OF_USERS`.
    """
    if USER in keys or HOUR in keys:
        return sums.group_by(*keys).agg(pl.col(SUMS_OF_USERS).sum())
    return sums.group_by(*keys).agg(pl.col(SUMS).sum(), pl.col(LARGEST).max())


def rho_for(squares: float) -> float:
    """The rho with which E is largest, about, where V is `squares` when the verdict falls."""
    needed = 2 * math.log(DECIDED)
    return (needed + math.log(needed) + 1) / squares


def log_e(total: float, squares: float, rho: float) -> float:
    """Log E of S and V."""
    return 0.5 * rho * total * total / (1 + rho * squares) - 0.5 * math.log1p(rho * squares)


@dataclass(frozen=True)
class Verdict:
    """What is known of a difference."""

    pages: float
    difference: float  # a page, A minus B; NaN without pages
    e_value: float  # e^700 at most; NaN where there are too few queries or users
    interval: tuple[float, float]  # NaN where E is; infinite where nothing is known on that side
    effective: float  # number of queries or users, as if all were alike; that of pages for pages
    total: float = 0.0  # S
    squares: float = 0.0  # V as E has it

    @property
    def winner(self) -> int:
        """1 for A, -1 for B, 0 while undecided."""
        return int(np.sign(self.difference)) if self.e_value >= DECIDED else 0

    @classmethod
    def of_pages(cls, pages: float, total: float, squares: float, rho: float) -> Self:
        """The verdict on this traffic, of pages each by itself: N, S and V."""
        return cls._of((pages, total, squares, total, pages), rho, pages, 1.0)

    @classmethod
    def of_clusters(cls, pages: Floats, totals: Floats, rho: float) -> Self:
        """The verdict for queries, or users, like those of the log.

        Args:
            pages: n of each, shape (G,).
            totals: D of each, shape (G,).
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
        """The verdict of N, S, V, sum n D and sum n^2."""
        pages, total, squares, cross, squared_pages = sums

        def log_e_of(mu: float) -> float:
            spread = squares - 2 * mu * cross + mu * mu * squared_pages
            return log_e(total - mu * pages, factor * max(spread, 0.0), rho)

        if not pages:
            return cls(0.0, math.nan, 1.0, (-math.inf, math.inf), 0.0)
        mean, limit = total / pages, math.log(DECIDED)
        ends = tuple(_first_beyond(log_e_of, mean, sign / pages, limit) for sign in (-1.0, 1.0))
        e_value = math.exp(min(log_e_of(0.0), _LARGEST_LOG_E))
        return cls(pages, mean, e_value, (ends[0], ends[1]), effective, total, factor * squares)


def _first_beyond(log_e_of: Callable[[float], float], start: float, step: float, limit: float) -> float:
    """The first mu on one side at which E reaches the limit; infinite where it never does."""
    inside = outside = start
    for _ in range(_MOST_DOUBLINGS):
        outside = start + step
        if log_e_of(outside) >= limit:
            break
        inside, step = outside, 2 * step
    else:
        return math.copysign(math.inf, step)
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if log_e_of(middle) < limit else (inside, middle)
    return outside


def repeated_coins(pages: Floats, first_a: Floats) -> tuple[float, float]:
    """Test whether the coin is thrown anew on each page: z, and the factor of the variance of the number of heads.

    Of the n pages of a query, a user or a day a begin with A. For fair and independent coins the sum of (2 a - n)^2 - n
    has mean 0, variance 2 sum n (n - 1) and third moment 8 sum n (n - 1) (n - 2): like those of a chi-squared variable
    (Pearson), of which z is the normal deviate (Wilson & Hilferty 1931).
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
