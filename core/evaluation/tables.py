"""What is written: values of each ranking, and their differences from a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.evaluation.bounds import empirical_bernstein, hoeffding, largest_gain, sample_variance
from posbias.core.evaluation.estimates import CONFIDENCE, ESTIMATORS, Estimator, Evaluation, Value, holm, t_quantile
from posbias.core.evaluation.measures import Measure, measures
from posbias.core.evaluation.ndcg import NDCG
from posbias.core.evaluation.query_sums import N_PAGES
from posbias.core.evaluation.shown import CellWeights

BETTER, WORSE, NOT_SIGNIFICANT = "better", "worse", "not significant"
"""Verdicts: by the p-value that holds for all rankings together."""

JUDGED = "judgments"
"""Where NDCG comes from: no estimator."""


@dataclass(frozen=True)
class Bound:
    """A finite-sample lower bound that is asked for.

    Attributes:
        confidence: C, with which it holds for all rankings at once.
        weights: of the cells.
    """

    confidence: float
    weights: CellWeights

    def description(self, evaluation: Evaluation) -> dict[str, Any]:
        """What it rests on, for the manifest."""
        return {
            "confidence": self.confidence,
            "holds_for": evaluation.asked.n_rankings,
            "largest_gain_of_a_page": largest_gain(self.weights, evaluation.asked.depth),
            "says": "a lower bound on DCG by IPS with clipped weights, which are at most the true ones, so that it "
            "bounds the true gain too; it holds for all rankings at once, and so for the best of them; pages are taken "
            "as independent and theta as known. There is none from above, which would need the bias of clipping, and "
            "none for self-normalised values.",
        }

    def of(self, evaluation: Evaluation, ranking: int, measure: Measure) -> tuple[float, float]:
        """Hoeffding's and the empirical Bernstein bound; NaN where there is none."""
        if not measure.gain:
            return np.nan, np.nan
        totals, number = evaluation.totals, measures().index(measure)
        n_pages = totals.n_pages
        total = float(totals.sums[evaluation.asked.column(ranking, number, weighted=True)])
        largest = largest_gain(self.weights, evaluation.asked.depth)
        variance = sample_variance(total, float(totals.squares[ranking, number]), n_pages)
        mean = total / n_pages
        n_rankings = evaluation.asked.n_rankings
        return (
            hoeffding(mean, n_pages, largest, self.confidence, n_rankings),
            empirical_bernstein(mean, variance, n_pages, largest, self.confidence, n_rankings),
        )


@dataclass(frozen=True)
class Comparison:
    """What is compared with what.

    Attributes:
        names: of the rankings, the log's own first.
        baseline: the number of the one that the others are compared with.
    """

    names: tuple[str, ...]
    baseline: int

    @property
    def others(self) -> list[int]:
        """The numbers of the others."""
        return [number for number in range(len(self.names)) if number != self.baseline]


def comparison(names: Sequence[str], baseline: int) -> Comparison:
    """All others with the baseline."""
    return Comparison(tuple(names), baseline)


_METRICS = {
    **dict.fromkeys(("ranking", "metric"), pl.String),
    "k": pl.Int64,
    "estimator": pl.String,
    **dict.fromkeys(("value", "std_error", "ci_low", "ci_high", "std_error_of_theta"), pl.Float64),
    "queries": pl.Int64,
    **dict.fromkeys(("hoeffding_bound", "bernstein_bound"), pl.Float64),
}
_DIFFERENCES = {
    **dict.fromkeys(("ranking", "baseline", "metric"), pl.String),
    "k": pl.Int64,
    "estimator": pl.String,
    **dict.fromkeys(("difference", "std_error", "ci_low", "ci_high", "p_value", "p_value_holm"), pl.Float64),
    "verdict": pl.String,
}


def metric_table(
    evaluation: Evaluation, names: Sequence[str], judged: pl.DataFrame | None, bound: Bound | None
) -> pl.DataFrame:
    """A row for each ranking, measure and estimator; what is not known is null.

    Args:
        evaluation: of the rankings.
        names: of them, the log's own first.
        judged: NDCG by query, if there are judgments.
        bound: lower bounds, if they are asked for.

    Returns:
        `ranking`, `metric`, `k`, `estimator`, `value`, `std_error`, `ci_low`, `ci_high`, `std_error_of_theta`,
        `queries`, `hoeffding_bound`, `bernstein_bound`.
    """
    rows: list[tuple[object, ...]] = []
    for number, name in enumerate(names):
        for measure in measures():
            for estimator in ESTIMATORS:
                found = evaluation.value(number, measure, estimator)
                low = (np.nan, np.nan)
                if bound is not None and estimator == "ips" and evaluation.totals.sums[N_PAGES] > 0:
                    low = bound.of(evaluation, number, measure)
                said = name, measure.name, _depth(evaluation, measure), estimator
                rows.append((*said, *_numbers(found), found.std_error_of_theta, evaluation.totals.n_queries, *low))
        if judged is not None and number:
            found = _mean(judged[str(number)].to_numpy())
            said = name, NDCG, evaluation.asked.depth, JUDGED
            rows.append((*said, *_numbers(found), np.nan, judged.height, np.nan, np.nan))
    return _table(rows, _METRICS)


def difference_table(evaluation: Evaluation, compared: Comparison, judged: pl.DataFrame | None) -> pl.DataFrame:
    """A row for each ranking but the baseline, measure and estimator; what is not known is null.

    P-values of one measure and estimator are corrected together (Holm). Naive clicks have no verdict: they favour
    rankings that are like the log's own.

    Returns:
        `ranking`, `baseline`, `metric`, `k`, `estimator`, `difference`, `std_error`, `ci_low`, `ci_high`, `p_value`,
        `p_value_holm`, `verdict`.
    """
    rows: list[tuple[object, ...]] = []
    for measure in measures():
        for estimator in ESTIMATORS:
            others = compared.others
            found = [evaluation.difference(number, compared.baseline, measure, estimator) for number in others]
            said = measure.name, _depth(evaluation, measure), estimator
            rows += _compared(compared, others, found, said, sign=1 if measure.gain else -1)
    if judged is not None and compared.baseline:
        others = [number for number in compared.others if number]
        base = judged[str(compared.baseline)]
        found = [_mean((judged[str(number)] - base).to_numpy()) for number in others]
        rows += _compared(compared, others, found, (NDCG, evaluation.asked.depth, JUDGED), sign=1)
    return _table(rows, _DIFFERENCES)


def _compared(
    compared: Comparison,
    others: Sequence[int],
    found: Sequence[Value],
    said: tuple[str, int | None, Estimator | str],
    *,
    sign: int,
) -> list[tuple[object, ...]]:
    p_values = np.array([value.p_value for value in found])
    adjusted = holm(p_values)
    rows: list[tuple[object, ...]] = []
    for number, value, p_value, together in zip(others, found, p_values, adjusted, strict=True):
        verdict = None if said[-1] == "naive" else _verdict(sign * value.value, float(together))
        names = compared.names[number], compared.names[compared.baseline]
        rows.append((*names, *said, *_numbers(value), float(p_value), float(together), verdict))
    return rows


def _verdict(gained: float, p_value: float) -> str:
    if not p_value < 1 - CONFIDENCE:  # NaN is none
        return NOT_SIGNIFICANT
    return BETTER if gained > 0 else WORSE


def _depth(evaluation: Evaluation, measure: Measure) -> int | None:
    return evaluation.asked.depth if measure.cut else None


def _numbers(found: Value) -> tuple[float, float, float, float]:
    return found.value, found.std_error, found.low, found.high


def _mean(values: Floats) -> Value:
    """A mean over queries with its t interval."""
    n_queries, mean = len(values), float(np.mean(values))
    if n_queries <= 1:
        return Value(mean, *[np.nan] * 4)
    error, degrees = float(np.std(values, ddof=1) / np.sqrt(n_queries)), n_queries - 1.0
    margin = t_quantile(degrees) * error
    return Value(mean, error, margin, np.nan, degrees)


def _table(rows: Sequence[tuple[object, ...]], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col(pl.Float64).fill_nan(None))
