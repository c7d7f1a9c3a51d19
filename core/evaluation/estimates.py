"""Values of rankings over a whole log, their differences, errors by query, and finite-sample lower bounds.

Finite-sample lower bounds on a gain need no normal approximation. X_s = sum of w lambda over the clicks of page s is in
[0, b]; n pages are independent; theta is taken as known. With probability at least C = 1 - delta, for all M rankings at
once, and so for the best ranking,

    Hoeffding:            E X >= mean(X) - b sqrt(ln(M / delta) / (2 n))
    empirical Bernstein:  E X >= mean(X) - sqrt(2 V ln(2 M / delta) / n) - 7 b ln(2 M / delta) / (3 (n - 1))

each by itself (union bound: delta / M for each ranking). V is the sample variance of X. b does not depend on the
clicks: the largest weights of distinct positions, paired with the largest lambdas. For a mean of independent terms
McDiarmid's bound equals Hoeffding's.

Clipped weights are too small, and gains are at least 0, so that E X is at most the true gain, and a lower bound on E X
is one on the gain. An upper bound would need the bias of clipping. Self-normalised values are no means of independent
terms and have no such bounds.

Sources: Hoeffding 1963; McDiarmid 1989; Maurer & Pontil 2009, theorem 4 (empirical Bernstein).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import Floats, Sums
from posbias.core.arrays.tails import holm, tail_index, threshold
from posbias.core.evaluation import clicked
from posbias.core.evaluation.break_even import BreakEven
from posbias.core.evaluation.clicked import MEASURES, CellWeights, Measure, PooledSums, QuerySums, RankingMeasures
from posbias.core.schema import POSITION

_ALL_BUT = 1e-9  # share of the pages of other queries below which a query has all pages


@dataclass(frozen=True)
class Totals(Sums):
    """Totals over queries g with P sums z_g each; those of parts add up."""

    sums: Floats  # sum of z_g, shape (P,)
    moments: Floats  # sum of z_g z_g' / (1 - share of the pages)^2, shape (P, P), for the jackknife
    squares: Floats  # sum of z_g^2, shape (P,)
    n_queries: int
    pooled: PooledSums

    @classmethod
    def of(cls, queries: QuerySums, lists: pl.DataFrame, options: RankingMeasures, pages: float) -> "Totals":
        """Compute the totals of whole queries.

        Args:
            queries: their sums.
            lists: `RANKING`, `query`, `doc`, `RANK`; lists of other queries are ignored.
            options: rankings and measures.
            pages: number of pages of the whole log.
        """
        others = 1.0 - queries.sums[:, clicked.N_PAGES] / pages
        left_out = queries.sums / np.where(others > _ALL_BUT, others, np.inf)[:, None]
        top, never = clicked.count_top(queries, lists, options)
        return cls(
            sums=queries.sums.sum(axis=0),
            moments=left_out.T @ left_out,
            squares=np.sum(queries.sums**2, axis=0),
            n_queries=len(queries.sums),
            pooled=replace(queries.pooled, top=top, never_shown=never),
        )


Estimator = Literal["naive", "ips", "snips"]
ESTIMATORS: tuple[Estimator, ...] = ("naive", "ips", "snips")

CONFIDENCE = 0.95

_MANY = 1e9  # degrees of freedom: as good as infinitely many


@dataclass(frozen=True)
class Value:
    """An estimate with its error; NaN if unknown."""

    value: float
    std_error: float = np.nan
    margin: float = np.nan  # half width of the 95 % interval
    std_error_of_theta: float = np.nan  # part of the standard error due to theta
    degrees: float = np.nan  # degrees of freedom

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.value - self.margin

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.value + self.margin

    @property
    def p_value(self) -> float:
        """Two-sided p-value of the value 0; NaN without an error."""
        if not self.std_error > 0:
            return np.nan
        return 2.0 * float(scipy.special.stdtr(min(self.degrees, _MANY), -abs(self.value) / self.std_error))


@dataclass(frozen=True)
class Evaluation:
    """The totals of a log, and the errors of theta."""

    totals: Totals
    options: RankingMeasures
    covariance: Floats | None  # of log theta, shape (K, K); None if theta is taken as known

    @property
    def effective_queries(self) -> float:
        """Effective number of queries, (sum n)^2 / sum n^2 over their pages n."""
        return float(self.totals.sums[clicked.N_PAGES] ** 2 / self.totals.squares[clicked.N_PAGES])

    @property
    def pareto_k(self) -> tuple[float | None, float | None]:
        """Pareto k of the weights of clicks before clipping, and its upper threshold; None if unknown."""
        number, total = self.totals.pooled.weights
        weight = np.divide(total, number, out=np.zeros(len(number)), where=number > 0)
        return tail_index(weight, number), threshold(float(number.sum())) if number.any() else None

    def bent(self, number: int) -> "Evaluation":
        """Return the evaluation under a bend of theta, for self-normalised DCG only."""
        options, totals, pooled = self.options, self.totals, self.totals.pooled
        column, first = np.arange(len(totals.sums)), options.bent(number)
        column[clicked.SUM_WEIGHT] = first
        for ranking in range(options.n_rankings):
            column[options.column(ranking, MEASURES[0], weighted=True)] = first + 1 + ranking
        weight_moves, *moves = pooled.bent_moves[number]
        pooled = replace(pooled, moves=np.stack(moves)[:, np.newaxis], weight_moves=weight_moves)
        moments, squares = totals.moments[np.ix_(column, column)], totals.squares[column]
        totals = replace(totals, sums=totals.sums[column], moments=moments, squares=squares, pooled=pooled)
        scale = options.bends[number].power ** 2
        return replace(self, totals=totals, covariance=None if self.covariance is None else scale * self.covariance)

    def break_even(self, ranking: int, baseline: int) -> BreakEven:
        """Return the bends at which the sign of the difference in self-normalised DCG turns."""
        bent = (self.bent(number) for number in range(len(self.options.bends)))
        values = [each.difference(ranking, baseline, MEASURES[0], "snips") for each in (self, *bent)]
        unbent, *by_bend = ((value.value, value.low, value.high) for value in values)
        return BreakEven.of(unbent, by_bend)

    def value(self, ranking: int, measure: Measure, estimator: Estimator) -> Value:
        """Estimate the value of a ranking."""
        return self._with_error(*self.gradients(ranking, measure, estimator), estimator)

    def difference(self, ranking: int, baseline: int, measure: Measure, estimator: Estimator) -> Value:
        """Estimate the value of a ranking minus that of the baseline."""
        value, influence, slope = self.gradients(ranking, measure, estimator)
        base_value, base_influence, base_slope = self.gradients(baseline, measure, estimator)
        return self._with_error(value - base_value, influence - base_influence, slope - base_slope, estimator)

    def gradients(self, ranking: int, measure: Measure, estimator: Estimator) -> tuple[float, Floats, Floats]:
        """Return a value, NaN if undefined, and its derivatives by the sums, shape (P,), and log theta, shape (K,).

        ARP of the log's own ranking is undefined with candidates by query.
        """
        totals, moves, weight_moves = self.totals, self.totals.pooled.moves, self.totals.pooled.weight_moves
        column = self.options.column(ranking, measure, weighted=estimator != "naive")
        by = clicked.SUM_WEIGHT if estimator == "snips" else clicked.N_PAGES
        divisor = float(totals.sums[by])
        influence, slope = np.zeros(len(totals.sums)), np.zeros(len(weight_moves))
        undefined = ranking == 0 and self.options.candidates == "query" and not measure.gain
        if divisor <= 0 or undefined:
            return np.nan, influence, slope
        value = float(totals.sums[column]) / divisor
        influence[column] = 1.0 / divisor
        influence[by] -= value / divisor
        if estimator != "naive":
            slope = -moves[ranking, MEASURES.index(measure)] / divisor
        if estimator == "snips":
            slope = slope + value * weight_moves / divisor
        return value, influence, slope

    def _with_error(self, value: float, influence: Floats, slope: Floats, estimator: Estimator) -> Value:
        """Add the error: the jackknife over queries, and theta; degrees of freedom by Satterthwaite."""
        totals, n_queries = self.totals, self.totals.n_queries
        by = clicked.SUM_WEIGHT if estimator == "snips" else clicked.N_PAGES
        if n_queries <= 1 or not np.isfinite(value):
            return Value(value)
        spread = float(influence @ totals.moments @ influence)
        by_log = max(spread, 0.0) * (n_queries - 1) / n_queries
        by_theta = 0.0 if self.covariance is None else max(float(slope @ self.covariance @ slope), 0.0)
        effective = float(totals.sums[by] ** 2 / totals.squares[by])
        degrees_by_log = max(min(effective, n_queries) - 1.0, 1.0)
        variance = by_log + by_theta
        degrees = degrees_by_log * variance**2 / by_log**2 if by_log > 0 else np.inf
        error = float(np.sqrt(variance))
        return Value(value, error, t_quantile(degrees) * error, float(np.sqrt(by_theta)), degrees)


def t_quantile(degrees: float) -> float:
    """Return the 97.5 % quantile of Student's t; infinite degrees of freedom give that of the normal distribution."""
    return float(scipy.special.stdtrit(min(degrees, _MANY), (1 + CONFIDENCE) / 2))


def hoeffding(mean: float, n_pages: int, largest: float, confidence: float, n_rankings: int) -> float:
    """Return Hoeffding's lower bound on a mean of n terms in [0, b], valid for M rankings at once."""
    return mean - largest * math.sqrt(math.log(n_rankings / (1.0 - confidence)) / (2.0 * n_pages))


def empirical_bernstein(
    mean: float, variance: float, n_pages: int, largest: float, confidence: float, n_rankings: int
) -> float:
    """Return Maurer & Pontil's lower bound on a mean of n terms in [0, b], valid for M rankings; NaN for one term."""
    if n_pages <= 1:
        return math.nan
    log = math.log(2.0 * n_rankings / (1.0 - confidence))
    return mean - math.sqrt(2.0 * variance * log / n_pages) - 7.0 * largest * log / (3.0 * (n_pages - 1))


def largest_gain(weights: CellWeights, depth: int) -> float:
    """Return the largest weighted DCG@K of a page, b, with all positions clicked at their largest weights."""
    by_position = weights.cells.select(POSITION, pl.Series("weight", weights.weight)).group_by(POSITION)
    largest = np.sort(by_position.agg(pl.col("weight").max())["weight"].to_numpy())[::-1]
    n_ranks = min(depth, len(largest))
    return float(largest[:n_ranks] @ (1.0 / np.log2(np.arange(2.0, n_ranks + 2.0))))


BETTER, WORSE, NOT_SIGNIFICANT = "better", "worse", "not significant"
"""Verdicts, by p-values adjusted for the number of rankings."""

JUDGED = "judgments"
"""Stands for the estimator of NDCG, which is by judgments."""


@dataclass(frozen=True)
class Bound:
    """Finite-sample lower bounds."""

    confidence: float  # C, for all rankings at once
    weights: CellWeights

    def description(self, evaluation: Evaluation) -> dict[str, Any]:
        """Describe the assumptions, for the manifest."""
        return {
            "confidence": self.confidence,
            "holds_for": evaluation.options.n_rankings,
            "largest_gain_of_a_page": largest_gain(self.weights, evaluation.options.depth),
            "says": "a lower bound on DCG by IPS with clipped weights, which are at most the true ones, so that it "
            "bounds the true gain too; it holds for all rankings at once, and so for the best of them; pages are taken "
            "as independent and theta as known. There is none from above, which would need the bias of clipping, and "
            "none for self-normalised values.",
        }

    def bounds(self, evaluation: Evaluation, ranking: int, measure: Measure) -> tuple[float, float]:
        """Return Hoeffding's and the empirical Bernstein bound; NaN for measures other than gains."""
        if not measure.gain:
            return np.nan, np.nan
        pooled, options = evaluation.totals.pooled, evaluation.options
        total = float(evaluation.totals.sums[options.column(ranking, measure, weighted=True)])
        mean, squares = total / pooled.n_pages, float(pooled.squares[ranking, MEASURES.index(measure)])
        variance = max(squares - total * mean, 0.0) / max(pooled.n_pages - 1, 1)
        arguments = pooled.n_pages, largest_gain(self.weights, options.depth), self.confidence, options.n_rankings
        return hoeffding(mean, *arguments), empirical_bernstein(mean, variance, *arguments)


_METRIC_SCHEMA = {
    **dict.fromkeys(("ranking", "metric"), pl.String),
    "k": pl.Int64,
    "estimator": pl.String,
    **dict.fromkeys(("value", "std_error", "ci_low", "ci_high", "std_error_of_theta"), pl.Float64),
    "queries": pl.Int64,
    **dict.fromkeys(("hoeffding_bound", "bernstein_bound"), pl.Float64),
}
_DIFFERENCE_SCHEMA = {
    **dict.fromkeys(("ranking", "baseline", "metric"), pl.String),
    "k": pl.Int64,
    "estimator": pl.String,
    **dict.fromkeys(("difference", "std_error", "ci_low", "ci_high", "p_value", "p_value_holm"), pl.Float64),
    "verdict": pl.String,
}


def metric_table(
    evaluation: Evaluation, names: Sequence[str], judged: pl.DataFrame | None, bound: Bound | None
) -> pl.DataFrame:
    """Tabulate the values of rankings, a row per ranking, measure and estimator; unknown values are null.

    Args:
        evaluation: of the rankings.
        names: names of the rankings, the log's own first.
        judged: `ndcg_by_query`, if there are judgments.
        bound: lower bounds, if requested.

    Returns:
        `ranking`, `metric`, `k`, `estimator`, `value`, `std_error`, `ci_low`, `ci_high`, `std_error_of_theta`,
        `queries`, `hoeffding_bound`, `bernstein_bound`.
    """
    rows: list[tuple[object, ...]] = []
    totals, depth = evaluation.totals, evaluation.options.depth
    for number, name in enumerate(names):
        for measure in MEASURES:
            for estimator in ESTIMATORS:
                value = evaluation.value(number, measure, estimator)
                bounds = (np.nan, np.nan)
                if bound is not None and estimator == "ips" and totals.sums[clicked.N_PAGES] > 0:
                    bounds = bound.bounds(evaluation, number, measure)
                key = name, measure.name, depth if measure.gain else None, estimator
                rows.append((*key, *_numbers(value), value.std_error_of_theta, totals.n_queries, *bounds))
        if judged is not None and number:
            value = _mean(judged[str(number)].to_numpy())
            rows.append((name, clicked.NDCG, depth, JUDGED, *_numbers(value), np.nan, judged.height, np.nan, np.nan))
    return pl.DataFrame(rows, schema=_METRIC_SCHEMA, orient="row").with_columns(pl.col(pl.Float64).fill_nan(None))


def difference_table(
    evaluation: Evaluation, names: Sequence[str], baseline: int, judged: pl.DataFrame | None
) -> pl.DataFrame:
    """Tabulate differences from the baseline, a row per other ranking, measure and estimator; unknown values are null.

    P-values of a measure and estimator are adjusted for the number of rankings (Holm). Naive differences have no
    verdict, as they favour rankings similar to the log's own.

    Returns:
        `ranking`, `baseline`, `metric`, `k`, `estimator`, `difference`, `std_error`, `ci_low`, `ci_high`, `p_value`,
        `p_value_holm`, `verdict`.
    """
    others, depth = [number for number in range(len(names)) if number != baseline], evaluation.options.depth
    compared: list[tuple[str, int | None, str, bool, dict[int, Value]]] = []
    for measure in MEASURES:
        for estimator in ESTIMATORS:
            values = {number: evaluation.difference(number, baseline, measure, estimator) for number in others}
            compared.append((measure.name, depth if measure.gain else None, estimator, measure.gain, values))
    if judged is not None and baseline:
        base = judged[str(baseline)]
        values = {number: _mean((judged[str(number)] - base).to_numpy()) for number in others if number}
        compared.append((clicked.NDCG, depth, JUDGED, True, values))
    rows: list[tuple[object, ...]] = []
    for metric, k, estimator, gain, values in compared:
        p_values = np.array([value.p_value for value in values.values()])
        for (number, value), p_value, adjusted in zip(
            values.items(), p_values.tolist(), holm(p_values).tolist(), strict=True
        ):
            verdict = NOT_SIGNIFICANT
            if adjusted < 1 - CONFIDENCE:  # NaN is not
                verdict = BETTER if (value.value > 0) == gain else WORSE
            key = names[number], names[baseline], metric, k, estimator
            rows.append((*key, *_numbers(value), p_value, adjusted, None if estimator == "naive" else verdict))
    return pl.DataFrame(rows, schema=_DIFFERENCE_SCHEMA, orient="row").with_columns(pl.col(pl.Float64).fill_nan(None))


def _numbers(value: Value) -> tuple[float, float, float, float]:
    return value.value, value.std_error, value.low, value.high


def _mean(values: Floats) -> Value:
    """Return the mean over queries with its t interval."""
    n_queries, mean = len(values), float(np.mean(values))
    if n_queries <= 1:
        return Value(mean)
    error, degrees = float(np.std(values, ddof=1) / np.sqrt(n_queries)), n_queries - 1.0
    margin = t_quantile(degrees) * error
    return Value(mean, error, margin, np.nan, degrees)
