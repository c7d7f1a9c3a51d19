"""What the statistics of a log say of its positions and queries: sums over parts, each of which holds whole queries."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.linalg import student_quantile
from posbias.core.check.distinct import Sketch
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY

_CONFIDENCE = 0.975
_QUERIES = "queries"
_N, _C = pl.col(IMPRESSIONS).cast(pl.Float64), pl.col(CLICKS).cast(pl.Float64)


@dataclass(frozen=True)
class PartFacts:
    """What one part says; `add_facts` makes those of the log of them.

    Attributes:
        positions: per position `impressions`, `clicks`, `queries`, and the sums over queries of their squares and
            products.
        queries: number of queries.
        squares: sum over queries of their squared impressions.
        largest: the query with the most impressions, and how many.
        docs: the documents, counted.
        days: `day` and `impressions`, where the statistics keep days; else empty.
    """

    positions: pl.DataFrame
    queries: int
    squares: float
    largest: tuple[str, float]
    docs: Sketch
    days: pl.DataFrame


@dataclass(frozen=True)
class LogFacts:
    """What the whole log says.

    Attributes:
        positions: `position`, `impressions`, `clicks`, `ctr`, `ctr_low`, `ctr_high`, sorted; the 95 % interval is
            clustered by query, null where one query alone holds the position.
        queries: number of queries.
        effective_queries: so many queries of one size are as concentrated: (sum n_q)^2 / sum n_q^2.
        largest_query: the query with the most impressions.
        largest_share: its share of the impressions.
        docs: number of documents.
        docs_exact: whether that is exact, not an estimate within some percent.
        days: impressions by day, as 2026-01-31; empty where none are known.
    """

    positions: pl.DataFrame
    queries: int
    effective_queries: float
    largest_query: str
    largest_share: float
    docs: int
    docs_exact: bool
    days: dict[str, float]

    @property
    def impressions(self) -> float:
        """All impressions."""
        return float(self.positions[IMPRESSIONS].sum())

    @property
    def clicks(self) -> float:
        """All clicks."""
        return float(self.positions[CLICKS].sum())


def facts_of(statistics: pl.DataFrame) -> PartFacts:
    """What the statistics of whole queries say: `query`, `doc`, `position`, further keys, `impressions`, `clicks`."""
    by_query = statistics.group_by(QUERY, POSITION).agg(_N.sum(), _C.sum())
    sums = [_N.sum(), _C.sum(), pl.len().alias(_QUERIES)]
    sums += [(_N * _N).sum().alias("nn"), (_N * _C).sum().alias("nc"), (_C * _C).sum().alias("cc")]
    per_query = by_query.group_by(QUERY).agg(_N.sum())
    sizes = per_query[IMPRESSIONS]
    at = int(sizes.arg_max() or 0)
    return PartFacts(
        positions=by_query.group_by(POSITION).agg(sums),
        queries=per_query.height,
        squares=float((sizes * sizes).sum()),
        largest=(_in_words(per_query[QUERY][at]), float(sizes[at])),
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
    queries = sums[_QUERIES].to_numpy().astype(np.float64)
    rate = c / n
    with np.errstate(divide="ignore", invalid="ignore"):
        spread = np.maximum(cc - 2 * rate * nc + rate**2 * nn, 0.0) * queries / (queries - 1)
        half = student_quantile(_CONFIDENCE, np.maximum(queries - 1, 1)) * np.sqrt(spread) / n
    half = np.where(queries > 1, half, np.nan)
    low, high = np.clip(rate - half, 0, 1), np.clip(rate + half, 0, 1)
    intervals = [pl.Series(name, values, nan_to_null=True) for name, values in (("ctr_low", low), ("ctr_high", high))]
    return sums.select(POSITION, IMPRESSIONS, CLICKS, pl.Series("ctr", rate), *intervals)
