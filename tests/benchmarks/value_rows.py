"""Training rows from a log and propensities, as `posbias weight` makes them with its usual options."""

from dataclasses import dataclass

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.evidence import SIGNATURE, Evidence, compress_part, merge_parts
from posbias.core.layouts import GROUP, LABEL, LAYOUTS, LayoutName
from posbias.core.layouts.clicked_groups import clicked_group_rows
from posbias.core.layouts.judgments import GRADE, judgment_rows, rate_terms, top_rate
from posbias.core.layouts.pages import weighted_pages
from posbias.core.layouts.pointwise import pointwise_rows, positive_and_shown
from posbias.core.layouts.preferences import preference_rows
from posbias.core.layouts.session import session_rows
from posbias.core.models import get_model
from posbias.core.schema import CLICK, DOC, POSITION, WEIGHT
from posbias.core.statistics_plan import StatisticsPlan
from posbias.core.weights import ClickWeights, WeightOptions, click_weights

Floats = NDArray[np.float64]

PLAN = StatisticsPlan(get_model("pbm"))
OPTIONS = WeightOptions()


@dataclass(frozen=True)
class TrainingRows:
    """What a learner is given.

    Attributes:
        rows: `group`, `doc`, `label`, `weight`, the rows of a group together; `position` where rows are impressions.
        preferences: `winner_row`, `loser_row`, `weight` in the layout of pairs; None in the others.
    """

    rows: pl.DataFrame
    preferences: pl.DataFrame | None = None


@dataclass(frozen=True)
class Log:
    """A log and its counts.

    Attributes:
        impressions: `session`, `query`, `doc`, `position`, `click`.
        evidence: their counts, compressed.
        pairs: `query`, `doc`, `signature` of the evidence.
    """

    impressions: pl.DataFrame
    evidence: Evidence
    pairs: pl.DataFrame

    @classmethod
    def of(cls, impressions: pl.DataFrame) -> "Log":
        """Count and compress."""
        statistics = PLAN.count(nw.from_native(impressions.lazy())).to_native().collect()
        part = compress_part(statistics.sort(PLAN.keys), PLAN)
        evidence = merge_parts([part], PLAN)
        signature = evidence.signature_of_part[0][part.pairs[SIGNATURE].to_numpy()]
        return cls(impressions, evidence, part.pairs.with_columns(pl.Series(SIGNATURE, signature)))


def training_rows(log: Log, propensity: Floats, layout: LayoutName) -> TrainingRows:
    """Weight a log.

    Args:
        log: what was shown and clicked.
        propensity: of each of its positions, relative to the first, NaN where there is none, shape (K,).
        layout: what the rows are.
    """
    weights = click_weights(log.evidence.cells, propensity, *log.evidence.cell_totals(), OPTIONS)
    if not LAYOUTS[layout].from_pages:
        return TrainingRows(_by_document(log, weights, layout))
    pages = weighted_pages(log.impressions, PLAN, weights)
    if layout == "pairs":
        return TrainingRows(*preference_rows(pages, "query"))
    if layout == "clicked-group":
        return TrainingRows(clicked_group_rows(pages, "query"))
    return TrainingRows(session_rows(pages, "session").select(GROUP, DOC, POSITION, pl.col(CLICK).alias(LABEL), WEIGHT))


def _by_document(log: Log, weights: ClickWeights, layout: LayoutName) -> pl.DataFrame:
    signatures = log.evidence.pair_signatures
    if layout == "pointwise":
        return pointwise_rows(log.pairs, positive_and_shown(signatures, weights))
    terms = rate_terms(signatures, weights, OPTIONS)
    top = top_rate(terms, signatures.multiplicity)
    graded = judgment_rows(log.pairs, terms, top=top, grades=OPTIONS.grades, whole=True)
    return graded.with_columns(pl.col(GRADE).alias(LABEL))
