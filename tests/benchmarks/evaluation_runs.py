"""Evaluations in memory: what `posbias evaluate` computes, without files."""

from collections.abc import Sequence

import narwhals as nw
import numpy as np
import polars as pl
from recovery_logs import attempt, statistics_of

from posbias.core.choices import Candidates
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.estimators import EstimationOptions
from posbias.core.evaluation.estimates import Evaluation, Totals
from posbias.core.evaluation.ndcg import RANKING, SCORE, ranked
from posbias.core.evaluation.query_sums import Asked, query_sums
from posbias.core.evaluation.shown import CellWeights, counted_rows, pages_by_query, rows_of_pages, shown_of
from posbias.core.fit.fit import Fit
from posbias.core.fit.fitted_theta import FittedTheta
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.models import get_model
from posbias.io.layouts.pair_weights import covariance_of_theta, propensities_of_cells

PLAN = StatisticsPlan(get_model("pbm"))


def fitted(log: pl.DataFrame) -> FittedTheta:
    """Theta as `posbias fit` estimates it, with its errors."""
    found = attempt("conditional", statistics_of(log, PLAN), EstimationOptions())
    if isinstance(found, Fit):
        return found.theta
    raise RuntimeError(f"no propensities from this log: {found}")


def evaluated(
    log: pl.DataFrame,
    scores: Sequence[pl.DataFrame],
    theta: FittedTheta | pl.DataFrame,
    *,
    candidates: Candidates = "page",
    depth: int = 10,
    min_propensity: float = 0.01,
) -> tuple[Evaluation, CellWeights]:
    """Evaluate rankings.

    Args:
        log: `session`, `query`, `doc`, `position`, `click`.
        scores: `query`, `doc`, `score` of each ranking.
        theta: a fit, or the table of true propensities, which have no errors.
        candidates: what documents are ranked among.
        depth: K.
        min_propensity: at which weights are clipped.
    """
    table = theta.propensities if isinstance(theta, FittedTheta) else theta
    counts = PLAN.count_cells(nw.from_native(log.lazy())).to_native().collect().sort(PLAN.cell_order)
    cells = counts.select(PLAN.cell_columns)
    propensity = propensities_of_cells(cells, table, PROPENSITY).fill_null(np.nan).to_numpy()
    weights = CellWeights(cells, propensity, min_propensity)
    numbered = [
        own.select(pl.lit(number, pl.UInt16).alias(RANKING), "query", "doc", pl.col("score").alias(SCORE))
        for number, own in enumerate(scores, start=1)
    ]
    lists = ranked(pl.concat(numbered))
    asked = Asked(len(scores) + 1, depth, candidates)
    rows = rows_of_pages(log, PLAN, weights)
    pages = pages_by_query(rows)
    shown = shown_of(rows if candidates == "page" else counted_rows(rows), pages)
    found = query_sums(shown, lists, weights, asked)
    totals = Totals.of(found, lists, asked, float(found.sums[:, 0].sum()))
    covariance = covariance_of_theta(cells, table, theta) if isinstance(theta, FittedTheta) else None
    return Evaluation(totals, asked, covariance), weights
