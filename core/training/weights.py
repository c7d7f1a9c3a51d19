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
    """How clicks are weighted, and what layouts that add them up make of them."""

    min_propensity: float = 0.01  # tau, in (0, 1], relative to the reference cell
    self_normalize: bool = False  # whether the weights of all clicks are scaled to a mean of 1
    # how the pointwise layout comes to W+ and W-: by click weights and the clamp at 0, or by the posterior
    # probability that the document attracted, for dense logs only. The posterior has no click weights, so that
    # neither of the options above touches it
    negatives: Negatives = "clamp"
    rate: Rate = "posterior"  # the label of the layout of judgments
    grades: int = 5  # number of grades there, at least 2
    replicates: int = 0  # number of replicate weights, which vary with the errors of theta


def check_min_propensity(least: float) -> None:
    """See that a minimum propensity is one.

    Raises:
        UsageError: it is no number in (0, 1].
    """
    if not isinstance(least, Real) or not 0 < least <= 1:
        raise UsageError(f"--min-propensity {least}: must be above 0 and at most 1.")


@dataclass(frozen=True)
class WeightSummary:
    """What weighting does to a log: counts of clicks and impressions (sums of weights where rows carry some)."""

    clicks_weighted: float  # clicks in cells with a propensity
    clicks_without_propensity: float  # clicks in the other cells
    impressions_without_propensity: float  # impressions in the other cells
    clicks_clipped: float  # clicks whose propensity is below the minimum
    weight_before_clipping: float  # sum of 1 / theta over the weighted clicks
    weight_after_clipping: float  # sum of w over them
    self_normalization_factor: float  # by which all weights are multiplied; 1 without self-normalisation
    # (sum u w)^2 / sum (u w)^2 over the clicks, u the weight that a row carries (1 where rows carry none); None
    # without a weighted click, and where only sums of u are known
    effective_sample_size_before_clipping: float | None
    effective_sample_size: float | None  # the same with clipped weights


@dataclass(frozen=True)
class ClickWeights:
    """The weight of a click in each cell, and what the weighting does to the whole log."""

    cells: pl.DataFrame  # the cell columns, one row per cell
    propensity: Floats  # theta, shape (K,), nan where the cell has none
    weight: Floats  # w, shape (K,), nan where the cell has no propensity
    summary: WeightSummary  # counts and effective sample sizes, for the manifest
    by_position: pl.DataFrame  # `position`, `clicks`, `weight_share` (of the weight of all clicks), by position
    # replicate weights, shape (N, K), nan where the cell has no propensity
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
    weighted = pl.Series("weight_share", np.nan_to_num(counted * weight))
    sums = cells.select(POSITION, pl.Series(CLICKS, counted), weighted).group_by(POSITION).sum().sort(POSITION)
    share = pl.col("weight_share") / pl.col("weight_share").sum()
    as_counts = pl.Int64 if np.all(counted == np.floor(counted)) else pl.Float64
    shares = sums.with_columns(share.fill_nan(None), pl.col(CLICKS).cast(as_counts))
    other = np.empty((0, len(propensity))) if replicates is None else replicates
    of_replicates = 1.0 / np.maximum(other, options.min_propensity)
    if options.self_normalize:
        totals = np.nansum(counted * of_replicates, axis=1, keepdims=True)
        of_replicates *= np.divide(counted.sum(), totals, out=np.ones_like(totals), where=totals > 0)
    return ClickWeights(cells, propensity, weight * factor, summary, shares, of_replicates)


def as_count(number: float) -> float | int:
    """A sum of counts as a whole number, where it is one; sums of weights stay as they are."""
    return int(number) if float(number).is_integer() else float(number)


def effective(total: float, squares: float) -> float | None:
    """(sum u w)^2 / sum (u w)^2 over the clicked impressions; None where there is none, or u is not known."""
    return total**2 / squares if squares > 0 else None


def _effective_sample_size(clicks: Floats, squared: Floats, weight: Floats) -> float | None:
    squares = float(np.sum(np.where(squared == 0, 0.0, squared * weight**2)))
    return effective(float(np.nansum(clicks * weight)), squares)
