"""Inverse propensity weights and the training layouts that carry them.

    weight of a click in cell e:  w_e = 1 / max(theta_e, tau)        weight of an unclicked impression: 1

tau is the minimum propensity. Self-normalised: w_e times (number of clicks / sum of w over the clicks).

Sources: Joachims, Swaminathan & Schnabel 2017 (IPS); Swaminathan & Joachims 2015 (self-normalisation);
Saito et al. 2019 (the pointwise layout).
"""

from dataclasses import dataclass
from typing import Literal

import narwhals as nw
import numpy as np
import polars as pl

from posbias.core.evidence import SIGNATURE
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.signatures import CountTable, Floats
from posbias.core.statistics_plan import StatisticsPlan

Layout = Literal["pointwise", "session"]

LABEL = "label"
PROPENSITY = "propensity"
_CLICK_WEIGHT = "posbias_click_weight"
_SHOWN_POSITION = "posbias_shown_position"
_OWN_WEIGHT = "posbias_own_weight"


@dataclass(frozen=True)
class WeightOptions:
    """How clicks are weighted.

    Attributes:
        min_propensity: tau, in (0, 1], relative to the reference cell.
        self_normalize: whether the weights of all clicks are scaled to a mean of 1.
    """

    min_propensity: float = 0.01
    self_normalize: bool = False


@dataclass(frozen=True)
class ClickWeights:
    """The weight of a click in each cell, and what the weighting does to the whole log.

    Attributes:
        cells: the cell columns, one row per cell.
        propensity: theta, shape (K,), nan where the cell has none.
        weight: w, shape (K,), nan where the cell has no propensity.
        summary: counts and effective sample sizes, for the manifest.
    """

    cells: pl.DataFrame
    propensity: Floats
    weight: Floats
    summary: dict[str, float | int | None]

    def frame(self) -> pl.DataFrame:
        """The cell columns with `propensity` and the click weight, null where the cell has none."""
        return self.cells.with_columns(
            pl.Series(PROPENSITY, self.propensity, nan_to_null=True),
            pl.Series(_CLICK_WEIGHT, self.weight, nan_to_null=True),
        )


def click_weights(
    cells: pl.DataFrame, propensity: Floats, impressions: Floats, clicks: Floats, options: WeightOptions
) -> ClickWeights:
    """Weights per cell from propensities and the log's totals per cell, each of shape (K,)."""
    known = np.isfinite(propensity)
    counted = np.where(known, clicks, 0.0)
    unclipped = 1.0 / np.where(known, propensity, np.nan)
    clipped = known & (np.nan_to_num(propensity) < options.min_propensity)
    weight = np.where(clipped, 1.0 / options.min_propensity, unclipped)
    total = float(np.nansum(counted * weight))
    factor = float(counted.sum()) / total if options.self_normalize and total > 0 else 1.0
    summary: dict[str, float | int | None] = {
        "clicks_weighted": as_count(counted.sum()),
        "clicks_without_propensity": as_count(clicks[~known].sum()),
        "impressions_without_propensity": as_count(impressions[~known].sum()),
        "clicks_clipped": as_count(clicks[clipped].sum()),
        "weight_before_clipping": float(np.nansum(counted * unclipped)),
        "weight_after_clipping": total,
        "self_normalization_factor": factor,
        "effective_sample_size_before_clipping": _effective_sample_size(counted, unclipped),
        "effective_sample_size": _effective_sample_size(counted, weight),
    }
    return ClickWeights(cells, propensity, weight * factor, summary)


def as_count(number: float) -> float | int:
    """A sum of counts as a whole number, where it is one; sums of weights stay as they are."""
    return int(number) if float(number).is_integer() else float(number)


def _effective_sample_size(clicks: Floats, weight: Floats) -> float | None:
    """(sum w)^2 / sum w^2 over the clicked impressions."""
    squares = float(np.nansum(clicks * weight**2))
    return float(np.nansum(clicks * weight)) ** 2 / squares if squares > 0 else None


def pointwise_rows(pairs: pl.DataFrame, signatures: CountTable, weights: ClickWeights) -> pl.DataFrame:
    """The pointwise layout: two rows per (query, document), its clicked and its unclicked part.

        label 1: W+ = sum_e c_e w_e           label 0: W- = max(sum_e n_e - W+, 0)

    Sums run over the cells that have a propensity.

    Args:
        pairs: `query`, `doc`, `signature`.
        signatures: counts per (signature, cell).
        weights: the weight of a click per cell.

    Returns:
        `query`, `doc`, `label` (Int8), `weight` (Float64), in the order of the pairs, label 1 first.
    """
    known = np.isfinite(weights.weight)[signatures.cell]
    click_weight = np.nan_to_num(weights.weight)[signatures.cell]
    positive = signatures.sum_by_unit(signatures.clicks * click_weight)
    shown = signatures.sum_by_unit(signatures.impressions * known)
    by_label = np.stack([positive, np.maximum(shown - positive, 0.0)], axis=1)
    signature_of_pair = pairs[SIGNATURE].to_numpy()
    row = np.repeat(np.arange(pairs.height), 2)
    return pairs.select(QUERY, DOC)[row].with_columns(
        pl.Series(LABEL, np.tile(np.array([1, 0], np.int8), pairs.height)),
        pl.Series(WEIGHT, by_label[signature_of_pair].ravel()),
    )


def session_rows(impressions: pl.LazyFrame, plan: StatisticsPlan, weights: ClickWeights) -> pl.LazyFrame:
    """The session layout: the impressions as shown, by session and position.

    Clicks in a cell without a propensity are left out; a log's own weights multiply.

    Returns:
        `session`, `query`, `doc`, `position`, `click`, `propensity` (null where the cell has none), `weight`.
    """
    shown = impressions.with_columns(pl.col(POSITION).alias(_SHOWN_POSITION))
    own = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    in_cells = plan.with_cells(nw.from_native(shown)).to_native().with_columns(own.alias(_OWN_WEIGHT))
    weighted = in_cells.join(weights.frame().lazy(), on=list(plan.model.cell_columns), how="left")
    clicked = pl.col(CLICK) == 1
    return (
        weighted.filter(~clicked | pl.col(_CLICK_WEIGHT).is_not_null())
        .with_columns((pl.col(_OWN_WEIGHT) * pl.when(clicked).then(pl.col(_CLICK_WEIGHT)).otherwise(1.0)).alias(WEIGHT))
        .select(SESSION, QUERY, DOC, pl.col(_SHOWN_POSITION).alias(POSITION), CLICK, PROPENSITY, WEIGHT)
        .sort(SESSION, POSITION)
    )
