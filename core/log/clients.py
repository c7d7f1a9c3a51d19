"""Clients of a log (users, cookies, addresses) that click like robots."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import Floats
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION

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
