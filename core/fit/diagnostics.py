"""What a fit says about itself: clicks expected and observed, whether the previous click matters."""

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.arrays.linalg import student_quantile
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.estimators.estimate import Estimate, Shape
from posbias.core.schema import NO_PREVIOUS_CLICK, POSITION, PREVIOUS_CLICK
from posbias.core.standard_errors.cluster import CONFIDENCE
from posbias.core.standard_errors.contrasts import ContrastTest, contrast_test, linear_contrast_test


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


def position_effect_test(estimate: Estimate, shape: Shape) -> ContrastTest | None:
    """Whether any propensity differs from 1, that of the reference; None where the estimate has no errors.

    With the errors that the intervals imply, so that the two cannot contradict each other. Under a power of the
    position one cell speaks for all that share an eta.
    """
    intervals = estimate.intervals
    tested = intervals.std_error > 0
    if not tested.any():
        return None
    clusters = np.maximum(np.nan_to_num(intervals.effective_clusters, nan=1.0), 1.0)
    width = np.log(intervals.high) - np.log(intervals.low)
    std_error = width / 2 / student_quantile((1 + CONFIDENCE) / 2, clusters)
    if shape == "power":
        _, first = np.unique(np.where(tested, estimate.linkage.reference_of, -1), return_index=True)
        tested &= np.isin(np.arange(len(tested)), first)
    return contrast_test(np.where(tested, np.log(estimate.propensity), np.nan), std_error, clusters)


def previous_click_test(statistics: SufficientStatistics, estimate: Estimate) -> ContrastTest | None:
    """Whether theta_{r r'} depends on r', the last click above: each r' > 0 against r' = 0 at the same position r.

    Returns:
        The test, or None where the model knows no previous click or the estimate has no errors.
    """
    if PREVIOUS_CLICK not in statistics.cells.columns or estimate.fitted is None:
        return None
    rows = list(enumerate(statistics.cells.select(POSITION, PREVIOUS_CLICK).iter_rows()))
    without = {position: cell for cell, (position, previous) in rows if previous == NO_PREVIOUS_CLICK}
    pairs = [
        (cell, without[position])
        for cell, (position, previous) in rows
        if previous != NO_PREVIOUS_CLICK and position in without
    ]
    contrasts = np.zeros((len(pairs), statistics.n_cells))
    for row, (clicked, unclicked) in enumerate(pairs):
        contrasts[row, clicked], contrasts[row, unclicked] = 1.0, -1.0
    return linear_contrast_test(contrasts, estimate.fitted.fit, estimate.fitted.errors)
