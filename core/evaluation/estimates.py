"""Values of rankings over a whole log with their errors by query, and differences between rankings."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.linalg import student_quantile, student_tail
from posbias.core.evaluation.measures import MEASURES, Measure
from posbias.core.evaluation.query_sums import N_PAGES, SUM_WEIGHT, Added, Asked, QuerySums, Rest, count_top

_ALL_BUT = 1e-9  # of the pages: a query that has more has them all


@dataclass(frozen=True)
class Totals(Added):
    """Sums over some queries g, those of the whole log at last; z_g are the P sums of a query."""

    sums: Floats  # sum of z_g, shape (P,)
    moments: Floats  # sum of z_g z_g' / (1 - share of the pages)^2, (P, P): what leaving queries out would change
    pages_squared: float  # sum of the squares of the pages of queries
    weight_squared: float  # sum of the squares of the weights of their clicks
    n_queries: int
    rest: Rest

    @classmethod
    def of(cls, found: QuerySums, lists: pl.DataFrame, asked: Asked, pages: float) -> "Totals":
        """Those of some whole queries.

        Args:
            found: their sums.
            lists: of these queries, perhaps of others.
            asked: what rankings are judged by.
            pages: of the whole log.
        """
        others = 1.0 - found.sums[:, N_PAGES] / pages
        left_out = found.sums / np.where(others > _ALL_BUT, others, np.inf)[:, None]
        top, never = count_top(found, lists, asked)
        return cls(
            sums=found.sums.sum(axis=0),
            moments=left_out.T @ left_out,
            pages_squared=float(np.sum(found.sums[:, N_PAGES] ** 2)),
            weight_squared=float(np.sum(found.sums[:, SUM_WEIGHT] ** 2)),
            n_queries=len(found.sums),
            rest=replace(found.rest, missing=replace(found.rest.missing, top=top, never_shown=never)),
        )


Estimator = Literal["naive", "ips", "snips"]
ESTIMATORS: tuple[Estimator, ...] = ("naive", "ips", "snips")

CONFIDENCE = 0.95

_MANY = 1e9  # degrees of freedom: as good as infinitely many


@dataclass(frozen=True)
class Value:
    """A value with its error; what is not known is NaN."""

    value: float
    std_error: float = np.nan
    margin: float = np.nan  # half the width of the 95 % interval
    std_error_of_theta: float = np.nan  # the part of the error that is that of theta
    degrees: float = np.nan  # of freedom

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.value - self.margin

    @property
    def high(self) -> float:
        """Its upper end."""
        return self.value + self.margin

    @property
    def p_value(self) -> float:
        """Of the value being 0, on both sides; NaN without an error."""
        if not self.std_error > 0:
            return np.nan
        return 2.0 * float(student_tail(np.array(abs(self.value) / self.std_error), np.array(min(self.degrees, _MANY))))


@dataclass(frozen=True)
class Evaluation:
    """The sums of a log, and how far theta may be off."""

    totals: Totals
    asked: Asked
    covariance: Floats | None  # of log theta, shape (K, K); None where theta is taken as known

    @property
    def effective_queries(self) -> float:
        """G*, by the pages of queries."""
        return float(self.totals.sums[N_PAGES]) ** 2 / self.totals.pages_squared

    def value(self, ranking: int, measure: Measure, estimator: Estimator) -> Value:
        """What a ranking is worth."""
        return self._with_error(self.term(ranking, measure, estimator), estimator)

    def difference(self, ranking: int, baseline: int, measure: Measure, estimator: Estimator) -> Value:
        """How much more than the baseline a ranking is worth."""
        one, other = self.term(ranking, measure, estimator), self.term(baseline, measure, estimator)
        between = Term(one.value - other.value, one.influence - other.influence, one.slope - other.slope)
        return self._with_error(between, estimator)

    def term(self, ranking: int, measure: Measure, estimator: Estimator) -> "Term":
        """A value, and how it depends on the sums and on log theta."""
        totals, moves, weight_moves = self.totals, self.totals.rest.moves, self.totals.rest.weight_moves
        column = self.asked.column(ranking, measure, weighted=estimator != "naive")
        by = SUM_WEIGHT if estimator == "snips" else N_PAGES
        divisor = float(totals.sums[by])
        influence, slope = np.zeros(len(totals.sums)), np.zeros(len(weight_moves))
        nowhere = ranking == 0 and self.asked.candidates == "query" and not measure.gain
        if divisor <= 0 or nowhere:
            return Term(np.nan, influence, slope)
        value = float(totals.sums[column]) / divisor
        influence[column] = 1.0 / divisor
        influence[by] -= value / divisor
        if estimator != "naive":
            slope = -moves[ranking, MEASURES.index(measure)] / divisor
        if estimator == "snips":
            slope = slope + value * weight_moves / divisor
        return Term(value, influence, slope)

    def _with_error(self, term: "Term", estimator: Estimator) -> Value:
        totals, value, n_queries = self.totals, term.value, self.totals.n_queries
        by, squared = (SUM_WEIGHT, totals.weight_squared) if estimator == "snips" else (N_PAGES, totals.pages_squared)
        if n_queries <= 1 or not np.isfinite(value):
            return Value(value)
        spread = float(term.influence @ totals.moments @ term.influence)
        of_log = max(spread, 0.0) * (n_queries - 1) / n_queries
        of_theta = 0.0 if self.covariance is None else max(float(term.slope @ self.covariance @ term.slope), 0.0)
        effective = float(totals.sums[by]) ** 2 / squared
        of_queries = max(min(effective, n_queries) - 1.0, 1.0)
        variance = of_log + of_theta
        if variance <= 0:
            return Value(value, 0.0, 0.0, 0.0, of_queries)
        degrees = of_queries * variance**2 / of_log**2 if of_log > 0 else np.inf
        error = float(np.sqrt(variance))
        return Value(value, error, t_quantile(degrees) * error, float(np.sqrt(of_theta)), degrees)


@dataclass(frozen=True)
class Term:
    """A value, and how it depends on the sums and on log theta."""

    value: float  # NaN where there is none
    influence: Floats  # its derivative by the sums, shape (P,)
    slope: Floats  # its derivative by log theta, shape (K,)


def t_quantile(degrees: float) -> float:
    """Half the width of the 95 % interval of a t distribution, infinitely many degrees being a normal one."""
    return float(student_quantile((1 + CONFIDENCE) / 2, np.array(min(degrees, _MANY))))


def holm(p_values: Floats) -> Floats:
    """P-values for which all of several comparisons hold together, by Holm's steps; NaN stays and does not count."""
    known = np.flatnonzero(np.isfinite(p_values))
    order = known[np.argsort(p_values[known], kind="stable")]
    steps = len(order) - np.arange(len(order))
    adjusted = np.full(len(p_values), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] * steps), 1.0)
    return adjusted
