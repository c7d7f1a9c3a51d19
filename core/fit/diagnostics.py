"""What a fit says about itself: clicks expected and observed, whether the previous click matters."""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators.conditional import ConditionalEstimator
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.periods import Length
from posbias.core.schema import NO_PREVIOUS_CLICK, POSITION, PREVIOUS_CLICK
from posbias.core.shapes import FREE
from posbias.core.standard_errors.contrasts import (
    MOST_CONTRASTS,
    ContrastTest,
    contrast_test,
    linear_contrast_test,
    pairwise_contrasts,
)
from posbias.core.standard_errors.leave_one_out import t_quantile
from posbias.core.theta.conditional import Silence, silence_of_cells


def expected_clicks(table: CountTable, examination: Floats, attractiveness: Floats) -> Floats:
    """Clicks that a fit expects in each cell, sum_j m_j n_je theta_e gamma_j.

    Args:
        table: counts per unit (a pair or signature) and cell.
        examination: theta, shape (K,), in [0, 1]; NaN where not identified.
        attractiveness: gamma, shape (J,).

    Returns:
        Shape (K,), NaN where not identified.
    """
    attracted = np.zeros(table.n_cells)
    for units, block in table.blocks():
        attracted += block.sum_by_cell(block.impressions * block.spread(block.multiplicity * attractiveness[units]))
    return attracted * examination


def position_effect_test(estimate: Estimate, shape: str) -> ContrastTest | None:
    """Whether any propensity differs from 1, that of the reference; None where the estimate has no errors.

    With the errors that the intervals imply, so that the two cannot contradict each other; a cell without clicks counts
    by what its upper limit says. Under a power of the position one cell speaks for all that share an eta.
    """
    intervals, fitted = estimate.intervals, estimate.fitted
    tested, silence = intervals.std_error > 0, None
    if fitted is not None and shape == FREE:
        silence = silence_of_cells(fitted.fit, fitted.strata.signatures, np.ones(len(tested)))
    if not tested.any() and (silence is None or not len(silence.cells)):
        return None
    clusters = np.maximum(np.nan_to_num(intervals.effective_clusters, nan=1.0), 1.0)
    log_theta = np.log(estimate.propensity)
    std_error = intervals.reach(log_theta) / t_quantile(clusters)
    if shape == "power":
        _, first = np.unique(np.where(tested, estimate.linkage.reference_of, -1), return_index=True)
        tested &= np.isin(np.arange(len(tested)), first)
    test = contrast_test(
        np.where(tested, log_theta, np.nan),
        std_error,
        clusters,
        correlation=None if shape == "power" or tested.sum() > MOST_CONTRASTS else estimate.correlation,
    )
    return test if silence is None else _with_silence(test, silence.p_value)


@dataclass(frozen=True)
class BinsTest:
    """Whether positions of one bin differ."""

    contrasts: ContrastTest  # log theta of a cell minus that of the first one in its bin
    positions: tuple[tuple[int, int], ...]  # of each contrast: that of the first one and that of the cell

    @property
    def warning(self) -> str | None:
        """What to say where they differ by more than chance."""
        if not self.contrasts.rejected:
            return None
        first, other = self.positions[self.contrasts.largest]
        return (
            f"Propensities differ within a bin: at position {other} they are {np.exp(self.contrasts.difference):.2f} "
            f"times those at position {first} (p = {self.contrasts.p_value:.2g}), and --position-bins gives both one "
            "number."
        )


def bins_test(
    unbinned: SufficientStatistics, plan: StatisticsPlan, options: EstimationOptions, period: Length
) -> BinsTest | None:
    """Whether the free estimate by position differs within the bins of a plan; None where nothing can be compared."""
    options = replace(options, reference=(), shape=FREE)
    try:
        free = ConditionalEstimator().estimate(unbinned, unbinned.strata(period), options, lambda _: None)
    except IdentifiabilityError:
        return None
    if free.fitted is None:
        return None
    bins = plan.in_bins(unbinned.cells).select(pl.struct(plan.cell_columns).rank("dense")).to_series().to_numpy()
    pairs: list[tuple[int, int]] = []
    for one in np.unique(bins).tolist():
        first, *others = np.flatnonzero((bins == one) & free.linkage.identified).tolist() or [-1]
        pairs += [(first, other) for other in others]
    contrasts = pairwise_contrasts([one for one, _ in pairs], [other for _, other in pairs], unbinned.n_cells)
    position = unbinned.position_of_cell.tolist()
    test = linear_contrast_test(contrasts, free.fitted.fit, free.fitted.errors)
    return BinsTest(test, tuple((position[first], position[other]) for first, other in pairs))


def previous_click_test(statistics: SufficientStatistics, estimate: Estimate) -> ContrastTest | None:
    """Whether theta_{r r'} depends on r', the last click above: each r' > 0 against r' = 0 at the same position r.

    A cell without clicks is judged by the lower end of the interval of the cell at its position with r' = 0.

    Returns:
        The test, or None where the model knows no previous click or the estimate has no errors.
    """
    if PREVIOUS_CLICK not in statistics.cells.columns or estimate.fitted is None:
        return None
    clicked, unclicked = _below_clicks(statistics)
    contrasts = pairwise_contrasts(unclicked, clicked, statistics.n_cells)
    test = linear_contrast_test(contrasts, estimate.fitted.fit, estimate.fitted.errors)
    silence = silence_below_clicks(statistics, estimate)
    return test if silence is None else _with_silence(test, silence.p_value[clicked])


def silence_below_clicks(statistics: SufficientStatistics, estimate: Estimate) -> Silence | None:
    """What the cells below a click say that have no click; None where the model knows no previous click."""
    if PREVIOUS_CLICK not in statistics.cells.columns or estimate.fitted is None:
        return None
    theta = np.full(statistics.n_cells, np.nan)
    clicked, unclicked = _below_clicks(statistics)
    theta[clicked] = estimate.intervals.low[unclicked]
    return silence_of_cells(estimate.fitted.fit, estimate.fitted.strata.signatures, theta)


def _below_clicks(statistics: SufficientStatistics) -> tuple[Integers, Integers]:
    """The cells below a click, and for each the cell at its position without a click above, where there is one."""
    rows = list(enumerate(statistics.cells.select(POSITION, PREVIOUS_CLICK).iter_rows()))
    without = {position: cell for cell, (position, previous) in rows if previous == NO_PREVIOUS_CLICK}
    pairs = [
        (cell, without[position])
        for cell, (position, previous) in rows
        if previous != NO_PREVIOUS_CLICK and position in without
    ]
    clicked, unclicked = np.array(pairs, np.int64).reshape(-1, 2).T
    return clicked, unclicked


def _with_silence(test: ContrastTest, p_value: Floats) -> ContrastTest:
    """A test with further contrasts: those cells without clicks that have a p-value, in the place of their contrast.

    The smallest p-value decides. That of a cell without clicks comes without a statistic.
    """
    silent = np.isfinite(p_value)
    number = test.n_contrasts + int(silent.sum())
    if number == test.n_contrasts:
        return test
    p_values = np.where(silent, p_value * number, test.p_values * (number / max(test.n_contrasts, 1)))
    p_values = np.minimum(p_values, 1.0)
    largest = int(np.nanargmin(p_values))
    decided = {"n_contrasts": number, "p_values": p_values, "p_value": float(p_values[largest]), "largest": largest}
    if silent[largest]:
        decided |= dict.fromkeys(("statistic", "degrees", "difference", "std_error"), np.nan)
    return replace(test, **decided)
