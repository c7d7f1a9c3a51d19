"""Inverse propensity weights.

    weight of a click in cell e:  w_e = 1 / max(theta_e, tau)        weight of an unclicked impression: 1

tau is the minimum propensity. Self-normalised: w_e times (number of clicks / sum of w over the clicks).

Sources: Joachims, Swaminathan & Schnabel 2017 (IPS); Swaminathan & Joachims 2015 (self-normalisation).
"""

from dataclasses import dataclass, field
from numbers import Real

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import Negatives, Rate
from posbias.core.errors import UsageError
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.schema import CLICKS, POSITION
from posbias.core.training.replicates import replicate_names

CLICK_WEIGHT = "posbias_click_weight"


@dataclass(frozen=True)
class WeightOptions:
    """How clicks are weighted, and what layouts that add them up make of them.

    Attributes:
        min_propensity: tau, in (0, 1], relative to the reference cell.
        self_normalize: whether the weights of all clicks are scaled to a mean of 1.
        negatives: how the pointwise layout comes to W+ and W-: by click weights and the clamp at 0, or by the
            posterior probability that the document attracted, for dense logs only. The posterior has no click
            weights, so that neither of the options above touches it.
        rate: the label of the layout of judgments.
        grades: number of grades there, at least 2.
        replicates: number of replicate weights, which vary with the errors of theta.
    """

    min_propensity: float = 0.01
    self_normalize: bool = False
    negatives: Negatives = "clamp"
    rate: Rate = "posterior"
    grades: int = 5
    replicates: int = 0


def check_min_propensity(least: float) -> None:
    """See that a minimum propensity is one.

    Raises:
        UsageError: it is no number in (0, 1].
    """
    if not isinstance(least, Real) or not 0 < least <= 1:
        raise UsageError(f"--min-propensity {least}: must be above 0 and at most 1.")


@dataclass(frozen=True)
class WeightSummary:
    """What weighting does to a log: counts of clicks and impressions (sums of weights where rows carry some).

    Attributes:
        clicks_weighted: clicks in cells with a propensity.
        clicks_without_propensity: clicks in the other cells.
        impressions_without_propensity: impressions in the other cells.
        clicks_clipped: clicks whose propensity is below the minimum.
        weight_before_clipping: sum of 1 / theta over the weighted clicks.
        weight_after_clipping: sum of w over them.
        self_normalization_factor: by which all weights are multiplied; 1 without self-normalisation.
        effective_sample_size_before_clipping: (sum u w)^2 / sum (u w)^2 over the clicks, u the weight that a row
            carries (1 where rows carry none); None without a weighted click, and where only sums of u are known.
        effective_sample_size: the same with clipped weights.
    """

    clicks_weighted: float
    clicks_without_propensity: float
    impressions_without_propensity: float
    clicks_clipped: float
    weight_before_clipping: float
    weight_after_clipping: float
    self_normalization_factor: float
    effective_sample_size_before_clipping: float | None
    effective_sample_size: float | None


@dataclass(frozen=True)
class ClickWeights:
    """The weight of a click in each cell, and what the weighting does to the whole log.

    Attributes:
        cells: the cell columns, one row per cell.
        propensity: theta, shape (K,), nan where the cell has none.
        weight: w, shape (K,), nan where the cell has no propensity.
        summary: counts and effective sample sizes, for the manifest.
        by_position: `position`, `clicks`, `weight_share` (of the weight of all clicks), by position.
        replicates: replicate weights, shape (N, K), nan where the cell has no propensity.
    """

    cells: pl.DataFrame
    propensity: Floats
    weight: Floats
    summary: WeightSummary
    by_position: pl.DataFrame
    replicates: Floats = field(default_factory=lambda: np.empty((0, 0)))

    def frame(self) -> pl.DataFrame:
        """The cell columns with `propensity` and the click weight, null where the cell has none."""
        return self.cells.with_columns(
            pl.Series(PROPENSITY, self.propensity, nan_to_null=True),
            pl.Series(CLICK_WEIGHT, self.weight, nan_to_null=True),
            *(
                pl.Series(f"{CLICK_WEIGHT}_{name}", weight, nan_to_null=True)
                for name, weight in zip(replicate_names(len(self.replicates)), self.replicates, strict=True)
            ),
        )


def click_weights(
    cells: pl.DataFrame,
    propensity: Floats,
    impressions: Floats,
    clicks: Floats,
    options: WeightOptions,
    *,
    squared_clicks: Floats | None = None,
    replicates: Floats | None = None,
) -> ClickWeights:
    """Weights per cell from propensities and the log's totals per cell, each of shape (K,).

    Args:
        cells: the cell columns, one row per cell.
        propensity: theta, nan where a cell has none.
        impressions: their number, or the sum of the weights u that rows carry.
        clicks: likewise.
        options: clipping and normalisation.
        squared_clicks: the sum of u^2 over the clicks, where rows carry weights; nan where it is not known.
        replicates: other propensities to make replicate weights of, shape (N, K), nan where theta is.
    """
    known = np.isfinite(propensity)
    counted = np.where(known, clicks, 0.0)
    squared = np.where(known, clicks if squared_clicks is None else squared_clicks, 0.0)
    unclipped = 1.0 / np.where(known, propensity, np.nan)
    clipped = known & (np.nan_to_num(propensity) < options.min_propensity)
    weight = np.where(clipped, 1.0 / options.min_propensity, unclipped)
    total = float(np.nansum(counted * weight))
    factor = float(counted.sum()) / total if options.self_normalize and total > 0 else 1.0
    summary = WeightSummary(
        clicks_weighted=as_count(counted.sum()),
        clicks_without_propensity=as_count(clicks[~known].sum()),
        impressions_without_propensity=as_count(impressions[~known].sum()),
        clicks_clipped=as_count(clicks[clipped].sum()),
        weight_before_clipping=float(np.nansum(counted * unclipped)),
        weight_after_clipping=total,
        self_normalization_factor=factor,
        effective_sample_size_before_clipping=_effective_sample_size(counted, squared, unclipped),
        effective_sample_size=_effective_sample_size(counted, squared, weight),
    )
    shares = _by_position(cells, counted, weight)
    other = np.empty((0, len(propensity))) if replicates is None else replicates
    of_replicates = np.array([_replicate(row, counted, options) for row in other]).reshape(other.shape)
    return ClickWeights(cells, propensity, weight * factor, summary, shares, of_replicates)


def _replicate(propensity: Floats, clicks: Floats, options: WeightOptions) -> Floats:
    """The weights under other propensities, shape (K,); `clicks` are 0 where a cell has none."""
    weight = 1.0 / np.maximum(propensity, options.min_propensity)
    total = float(np.nansum(clicks * weight))
    return weight * (float(clicks.sum()) / total) if options.self_normalize and total > 0 else weight


def _by_position(cells: pl.DataFrame, clicks: Floats, weight: Floats) -> pl.DataFrame:
    weighted = pl.Series("weight_share", np.nan_to_num(clicks * weight))
    sums = cells.select(POSITION, pl.Series(CLICKS, clicks), weighted).group_by(POSITION).sum().sort(POSITION)
    share = pl.col("weight_share") / pl.col("weight_share").sum()
    as_counts = pl.Int64 if np.all(clicks == np.floor(clicks)) else pl.Float64
    return sums.with_columns(share.fill_nan(None), pl.col(CLICKS).cast(as_counts))


def as_count(number: float) -> float | int:
    """A sum of counts as a whole number, where it is one; sums of weights stay as they are."""
    return int(number) if float(number).is_integer() else float(number)


def _effective_sample_size(clicks: Floats, squared: Floats, weight: Floats) -> float | None:
    """(sum u w)^2 / sum (u w)^2 over the clicked impressions; None where there is none, or u is not known."""
    squares = float(np.sum(np.where(squared == 0, 0.0, squared * weight**2)))
    return float(np.nansum(clicks * weight)) ** 2 / squares if squares > 0 else None
