"""Inverse propensity weights and the training layouts that carry them.

    weight of a click in cell e:  w_e = 1 / max(theta_e, tau)        weight of an unclicked impression: 1

tau is the minimum propensity. Self-normalised: w_e times (number of clicks / sum of w over the clicks).

In the pointwise layout a document's n impressions become W+ for its clicks and W- = n - W+ for the rest. With click
weights W+ may exceed n: W- is then 0, and documents that were shown rarely are labelled too low, the more so the
further down they stood (gamma = .3, one impression: .30 at position 1, .24 at position 10). The expected label never
exceeds n, but leans on the prior of gamma, which is worse where pairs are shown rarely: a learner that can bend then
ranks below one that reads naive clicks. tests/benchmarks/negatives.py compares them.

Sources: Joachims, Swaminathan & Schnabel 2017 (IPS); Swaminathan & Joachims 2015 (self-normalisation);
Saito et al. 2019 (the pointwise layout); Wang et al. 2018 (expected labels).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from posbias.core.evidence import SIGNATURE
from posbias.core.page_order import in_page_order
from posbias.core.schema import CLICK, DOC, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.signatures import CountTable, Floats
from posbias.core.statistics_plan import StatisticsPlan

Layout = Literal["pointwise", "session"]
Negatives = Literal["clamp", "posterior"]

LABEL = "label"
PROPENSITY = "propensity"
_CLICK_WEIGHT = "posbias_click_weight"
_SHOWN_POSITION = "posbias_shown_position"
_OWN_WEIGHT = "posbias_own_weight"
_TINY = 1e-300  # theta = gamma = 1 leaves no impression without a click to explain: 0 of them, not 0/0


@dataclass(frozen=True)
class WeightOptions:
    """How clicks are weighted.

    Attributes:
        min_propensity: tau, in (0, 1], relative to the reference cell.
        self_normalize: whether the weights of all clicks are scaled to a mean of 1.
        negatives: how the pointwise layout comes to W+ and W-: by click weights and the clamp at 0, or by the
            posterior probability that the document attracted, for dense logs only. The posterior has no click
            weights, so that neither of the options above touches it.
    """

    min_propensity: float = 0.01
    self_normalize: bool = False
    negatives: Negatives = "clamp"


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


def expected_attractions(signatures: CountTable, examination: Floats, attractiveness: Floats) -> Floats:
    """How many of a unit's impressions showed an attractive document, given the clicks: W+ without click weights.

        W+ = sum_e { c_e + (n_e - c_e) P(A = 1 | c = 0) },  P(A = 1 | c = 0) = gamma (1 - theta) / (1 - theta gamma)

    An impression is worth at most 1 whatever its cell's theta: there is no weight that could be clipped.

    Args:
        signatures: counts per (signature, cell).
        examination: theta as a probability, shape (K,), 0 < theta <= 1; NaN where a cell has none, and counts nothing.
        attractiveness: gamma, shape (J,), in [0, 1], on the scale of this theta.

    Returns:
        W+ of each signature, shape (J,), between its clicks and its impressions.
    """
    attractions = np.empty(signatures.n_units)
    known, theta = np.isfinite(examination), np.nan_to_num(examination)
    for units, block in signatures.blocks():
        theta_of, gamma = theta[block.cell], block.spread(attractiveness[units])
        attracted = gamma * (1 - theta_of) / np.maximum(1 - theta_of * gamma, _TINY)
        skips = block.impressions - block.clicks
        attractions[units] = block.sum_by_unit(known[block.cell] * (block.clicks + skips * attracted))
    return attractions


def positive_and_shown(signatures: CountTable, weights: ClickWeights, positive: Floats | None = None) -> Floats:
    """W+ and sum_e n_e of each signature over the cells that have a propensity, shape (J, 2).

    Args:
        signatures: counts per (signature, cell).
        weights: the weight of a click per cell.
        positive: W+ of each signature, shape (J,), as from `expected_attractions`; None: sum_e c_e w_e.
    """
    weight = np.nan_to_num(weights.weight)
    known = np.isfinite(weights.weight)
    sums = np.empty((signatures.n_units, 2))
    for units, block in signatures.blocks():
        clicked = block.sum_by_unit(block.clicks * weight[block.cell]) if positive is None else positive[units]
        sums[units] = np.stack([clicked, block.sum_by_unit(block.impressions * known[block.cell])], axis=1)
    return sums


def pointwise_rows(pairs: pl.DataFrame, by_signature: Floats) -> pl.DataFrame:
    """The pointwise layout: two rows per (query, document), its clicked and its unclicked part.

        label 1: W+           label 0: W- = max(sum_e n_e - W+, 0)

    Sums run over the cells that have a propensity, and over all rows of a document.

    Args:
        pairs: `query`, `doc`, `signature`; rows of one document (one per context, say) follow one another.
        by_signature: W+ and sum_e n_e of each signature, shape (J, 2), as from `positive_and_shown`.

    Returns:
        `query`, `doc`, `label` (Int8), `weight` (Float64), in the order of the pairs, label 1 first.
    """
    document = pairs.select(pl.struct(QUERY, DOC).rle_id()).to_series().to_numpy()
    first = np.flatnonzero(np.diff(document, prepend=-1))
    by_row = by_signature[pairs[SIGNATURE].to_numpy()]
    by_label = np.add.reduceat(by_row, first) if len(first) else by_row
    by_label[:, 1] = np.maximum(by_label[:, 1] - by_label[:, 0], 0.0)
    return pairs.select(QUERY, DOC)[np.repeat(first, 2)].with_columns(
        pl.Series(LABEL, np.tile(np.array([1, 0], np.int8), len(first))),
        pl.Series(WEIGHT, by_label.ravel()),
    )


def session_rows(impressions: pl.LazyFrame, plan: StatisticsPlan, weights: ClickWeights) -> pl.LazyFrame:
    """The session layout: the impressions as shown, by session and position.

    Clicks in a cell without a propensity are left out; a log's own weights multiply.

    Returns:
        `session`, `query`, `doc`, `position`, `click`, `propensity` (null where the cell has none), `weight`.
    """
    shown = impressions.with_columns(pl.col(POSITION).alias(_SHOWN_POSITION))
    own = pl.col(WEIGHT).cast(pl.Float64) if plan.weighted else pl.lit(1.0)
    in_cells = plan.with_cells_in_memory(in_page_order(shown.collect(engine="streaming")))
    weighted = in_cells.with_columns(own.alias(_OWN_WEIGHT)).join(
        weights.frame(), on=list(plan.cell_columns), how="left", nulls_equal=True, maintain_order="left"
    )
    clicked = pl.col(CLICK) == 1
    return (
        weighted.lazy()
        .filter(~clicked | pl.col(_CLICK_WEIGHT).is_not_null())
        .with_columns((pl.col(_OWN_WEIGHT) * pl.when(clicked).then(pl.col(_CLICK_WEIGHT)).otherwise(1.0)).alias(WEIGHT))
        .select(SESSION, QUERY, DOC, pl.col(_SHOWN_POSITION).alias(POSITION), CLICK, PROPENSITY, WEIGHT)
    )
