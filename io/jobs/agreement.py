"""Whether propensities are those of the pages whose clicks they correct."""

from collections.abc import Iterator

import numpy as np
import polars as pl

from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics, context_numbers
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators import get_estimator
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.comparison import Curves, change
from posbias.core.fit.propensities import cell_covariance, log_covariance
from posbias.core.schema import CLICK, CLICKS, IMPRESSIONS
from posbias.core.standard_errors.cluster import t_quantile
from posbias.io.counting.count import CountedLog, compress_parts
from posbias.io.counting.profile import ROWS_TO_TEST, sample_of_pages
from posbias.io.engines.engine import Engine, ReadLog
from posbias.io.fits.saved_fit import CellPropensities, StoredFit
from posbias.io.fits.verdicts import cell_in_words
from posbias.io.progress import Progress
from posbias.io.results.conclusions import Reason, reason
from posbias.io.training.laid_out import examination_of_cells

_LEVEL = 0.01  # of the test of all cells together
_MUCH = np.log(1.2)  # difference of log propensities that its interval must exceed: less may be another week
_NO_LIMIT = 1e9  # degrees of freedom of errors that include few clusters


def disagreement(
    fitted: CellPropensities, data: CountedLog | ReadLog, engine: Engine, progress: Progress
) -> Iterator[Reason]:
    """Compare propensities with those that a log's own clicks show, for weights; see `disagreement_of`.

    Fits that keep attractiveness apart by time, stratum or experiment are not tested, as these counts do not: their
    weights are right where the ranker learns or knows the user, and a fit to these counts is not.
    """
    if data.plan.weighted or (isinstance(fitted, StoredFit) and not _is_pooled(fitted)):
        return
    if isinstance(data, CountedLog):
        yield from disagreement_of(fitted, data.statistics, case=".of-weights")
        return
    sample = sample_of_pages(data, ROWS_TO_TEST, of_queries=True)
    if sample is not None and sample.height:
        rows = data.plan.with_cells_in_memory(sample).with_columns(
            pl.lit(1, pl.Int64).alias(IMPRESSIONS), pl.col(CLICK).cast(pl.Int64).alias(CLICKS)
        )
        yield from disagreement_of_rows(fitted, rows, data.plan, engine, progress, case=".of-weights")


def disagreement_of_rows(
    fitted: CellPropensities,
    rows: pl.DataFrame,
    plan: StatisticsPlan,
    engine: Engine,
    progress: Progress,
    case: str = "",
) -> Iterator[Reason]:
    """Compare propensities with those of counted rows (the keys, `impressions`, `clicks`) of whole queries."""
    counts = rows.group_by(plan.keys).agg(pl.col(IMPRESSIONS, CLICKS).sum()).sort(plan.keys)
    folder = engine.scratch / "agreement"
    folder.mkdir(mode=0o700)
    statistics, _ = compress_parts(engine.parts_of([counts.lazy()]), plan, engine, progress, folder=folder)
    yield from disagreement_of(fitted, statistics, case)


def disagreement_of(fitted: CellPropensities, statistics: SufficientStatistics, case: str = "") -> Iterator[Reason]:
    """Yield a reason if a conditional fit to the counts differs from the propensities, significantly and by much."""
    strata = statistics.strata()
    try:
        own = get_estimator("conditional").estimate(statistics, strata, EstimationOptions(), lambda _: None)
    except IdentifiabilityError:
        return
    spread, cells = log_covariance(own), statistics.cells
    if spread is None or not own.converged:
        return
    given = np.log(examination_of_cells(cells, fitted.theta.propensities))
    table = fitted.theta.covariance
    known, zero = np.zeros_like(spread) if table is None else cell_covariance(cells, table), np.zeros_like(spread)
    with np.errstate(divide="ignore"):
        log_theta = np.stack([given, np.log(own.examination)])
    curves = Curves(
        log_theta,
        np.block([[known, zero], [zero, spread]]),
        np.full(log_theta.shape, _NO_LIMIT),
        context_numbers(cells, statistics.plan.context),
        np.isfinite(log_theta),
    )
    references = curves.references()
    curves = curves.relative_to(references)
    found = change(curves)
    margin = t_quantile(found.degrees) * found.std_error
    beyond = np.where(found.test.p_values < _LEVEL, np.abs(found.difference) - margin, -np.inf)
    at = int(np.argmax(beyond))
    if beyond[at] > _MUCH:
        difference, ratios = found.difference[at], ("ratio_ci_low", "ratio", "ratio_ci_high")
        figures = {
            name: float(np.exp(difference + sign * margin[at])) for name, sign in zip(ratios, (-1, 0, 1), strict=True)
        }
        figures |= dict(zip(("given", "own"), np.exp(curves.log_theta[:, at]).tolist(), strict=True))
        yield reason(
            "propensities-of-other-pages" + case,
            figures,
            name=fitted.name,
            cell=cell_in_words(statistics, at),
            reference=cell_in_words(statistics, int(references[at])),
        )


def _is_pooled(fit: StoredFit) -> bool:
    """Whether a fit compares each pair with itself over its whole log, as the conditional estimate of counts does."""
    estimate, plan = fit.estimate, fit.plan
    return estimate.method == "conditional" and estimate.period.used == "none" and not (plan.strata or plan.randomized)
