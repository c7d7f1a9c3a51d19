"""Statistics of a log by position and query, and numbers of distinct values, in bounded memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.arrays.linalg import student_quantile
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY

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
    """What one part says; `add_facts` makes those of the log of them."""

    # per position `impressions`, `clicks`, `queries`, and the sums over queries of their squares and products
    positions: pl.DataFrame
    queries: int  # number of queries
    squares: float  # sum over queries of their squared impressions
    largest: tuple[str, float]  # the query with the most impressions, and how many
    docs: Sketch  # the documents, counted
    days: pl.DataFrame  # `day` and `impressions`, where the statistics keep days; else empty


@dataclass(frozen=True)
class LogFacts:
    """What the whole log says."""

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
    """What the statistics of whole queries say.

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
        half = student_quantile(_CONFIDENCE, np.maximum(queries - 1, 1)) * np.sqrt(spread) / n
    half = np.where(queries > 1, half, np.nan)
    low, high = np.clip(rate - half, 0, 1), np.clip(rate + half, 0, 1)
    intervals = [pl.Series(name, values, nan_to_null=True) for name, values in (("ctr_low", low), ("ctr_high", high))]
    return sums.select(POSITION, IMPRESSIONS, CLICKS, pl.Series("ctr", rate), *intervals)
