"""Training rows from a log and propensities, as `posbias weight` makes them."""

from dataclasses import dataclass

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.attractiveness.prior import estimate_prior, posterior_by_position
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SIGNATURE, SufficientStatistics, compress_part, merge_parts
from posbias.core.models import get_model
from posbias.core.schema import CLICK, DOC, POSITION, WEIGHT
from posbias.core.training.layouts import GROUP, LABEL
from posbias.core.training.layouts.clicked_groups import clicked_group_rows
from posbias.core.training.layouts.judgments import judgment_rows, rate_terms, top_rate
from posbias.core.training.layouts.layout import Posterior, weighted_pages
from posbias.core.training.layouts.pointwise import pointwise_rows, positive_and_shown
from posbias.core.training.layouts.preferences import preference_rows
from posbias.core.training.layouts.session import session_rows
from posbias.core.training.weights import ClickWeights, WeightOptions, click_weights

Floats = NDArray[np.float64]

PLAN = StatisticsPlan(get_model("pbm"))
USUAL = WeightOptions()


@dataclass(frozen=True)
class TrainingRows:
    """What a learner is given.

    Attributes:
        rows: `group`, `doc`, `label`, `weight`, the rows of a group together; `position` where rows are impressions,
            `grade` where they are judgments.
        preferences: `winner_row`, `loser_row`, `weight` in the layout of pairs; None in the others.
    """

    rows: pl.DataFrame
    preferences: pl.DataFrame | None = None


@dataclass(frozen=True)
class Log:
    """A log and its counts.

    Attributes:
        impressions: `session`, `query`, `doc`, `position`, `click`.
        statistics: their counts, compressed.
        pairs: `query`, `doc`, `signature` of the statistics.
    """

    impressions: pl.DataFrame
    statistics: SufficientStatistics
    pairs: pl.DataFrame

    @classmethod
    def of(cls, impressions: pl.DataFrame) -> "Log":
        """Count and compress."""
        statistics = PLAN.count(nw.from_native(impressions.lazy())).to_native().collect()
        part = compress_part(statistics.sort(PLAN.keys), PLAN)
        statistics = merge_parts([part], PLAN)
        signature = statistics.signature_of_part[0][part.pairs[SIGNATURE].to_numpy()]
        return cls(impressions, statistics, part.pairs.with_columns(pl.Series(SIGNATURE, signature)))


def training_rows(log: Log, propensity: Floats, layout: str, options: WeightOptions = USUAL) -> TrainingRows:
    """Weight a log.

    Args:
        log: what was shown and clicked.
        propensity: of each of its positions, relative to the first, NaN where there is none, shape (K,).
        layout: what the rows are.
        options: how they are weighted and labelled.
    """
    weights = click_weights(log.statistics.cells, propensity, *log.statistics.cell_totals, options)
    if layout == "pointwise":
        return TrainingRows(pointwise_rows(log.pairs, positive_and_shown(log.statistics.pair_signatures, weights)))
    if layout == "judgments":
        return TrainingRows(_judgments(log, weights, options))
    pages = weighted_pages(log.impressions, PLAN, weights)
    if layout == "pairs":
        return TrainingRows(*preference_rows(pages, "query"))
    if layout == "clicked-group":
        return TrainingRows(clicked_group_rows(pages, "query"))
    return TrainingRows(session_rows(pages, "session").select(GROUP, DOC, POSITION, pl.col(CLICK).alias(LABEL), WEIGHT))


def _judgments(log: Log, weights: ClickWeights, options: WeightOptions) -> pl.DataFrame:
    signatures = log.statistics.pair_signatures
    posterior = None
    if options.rate == "posterior":
        gamma = _attractiveness(log.statistics, weights.propensity)
        posterior = Posterior(weights.propensity, gamma, None)
    terms = rate_terms(signatures, weights, options, posterior)
    top = top_rate(terms, signatures.multiplicity)
    return judgment_rows(log.pairs, terms, top=top, grades=options.grades, whole=True)


def _attractiveness(statistics: SufficientStatistics, propensity: Floats) -> Floats:
    """The posterior mean of gamma by signature, its prior estimated from the same counts."""
    examination, position = propensity / np.nanmax(propensity), statistics.position_of_cell
    prior = estimate_prior(statistics.pair_signatures, examination, position)
    gamma, _ = posterior_by_position(statistics.pair_signatures, examination, prior, position)
    return gamma
