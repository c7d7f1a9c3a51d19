"""Pages with their weights: what the layouts that keep pages apart start from."""

from collections.abc import Sequence

import polars as pl

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.log.page_order import in_page_order
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.training.replicates import replicate_names
from posbias.core.training.weights import CLICK_WEIGHT, ClickWeights

_SHOWN_POSITION = "posbias_shown_position"
_OWN_WEIGHT = "posbias_own_weight"

WEIGHTED_CLICK = (pl.col(CLICK) == 1) & pl.col(WEIGHT).is_not_null()
"""The clicks that carry a weight: those in cells that have a propensity."""


def weighted_pages(
    impressions: pl.DataFrame, plan: StatisticsPlan, weights: ClickWeights, features: Sequence[str] = ()
) -> pl.DataFrame:
    """Impressions as shown, by session and position, with the weight of each.

        weight of a click in cell e: w_e        weight of an unclicked impression: 1

    With UBM, e is the cell of the session's own previous click. A log's own weights multiply.

    Returns:
        `session`, `query`, `doc`, `position`, `click`, `propensity` (null where the cell has none), `weight` (null for
        a click in such a cell), replicate weights, and the columns of the features.
    """
    shown = impressions.with_columns(pl.col(POSITION).alias(_SHOWN_POSITION))
    own = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    in_cells = plan.with_cells_in_memory(in_page_order(shown)).with_columns(own.alias(_OWN_WEIGHT))
    weighted = in_cells.join(
        weights.frame(), on=list(plan.cell_columns), how="left", nulls_equal=True, maintain_order="left"
    )
    replicates = replicate_names(len(weights.replicates))
    click_weights = {WEIGHT: CLICK_WEIGHT} | {name: f"{CLICK_WEIGHT}_{name}" for name in replicates}
    clicked = pl.col(CLICK) == 1
    return weighted.with_columns(
        (pl.col(_OWN_WEIGHT) * pl.when(clicked).then(pl.col(of_click)).otherwise(1.0)).alias(name)
        for name, of_click in click_weights.items()
    ).select(
        *(SESSION, QUERY, DOC, pl.col(_SHOWN_POSITION).alias(POSITION), CLICK, PROPENSITY),
        *(WEIGHT, *replicates, *features),
    )
