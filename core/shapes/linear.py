"""Forms that are linear in effects: the product form of cells, and powers of the position.

    log theta_e = sum_p x_ep gamma_p,  x_ref = 0

Product: one effect for each value of each axis of the page, theta_e = prod_a f_a(v_a(e)) / prod_a f_a(v_a(ref)). The
axes a are the position and each further column of a cell (a row and a column of a grid: R + C - 1 numbers in place of
R C; a position below a block: K + B - 1). Power: theta_k = (position_k / position_ref)^-eta, the effect of the
logarithm of the position, with one eta for each group of cells.

The conditional likelihood l (see `core.theta.conditional`) is maximised over gamma by Newton's method,

    (X'H X) step = X'gradient

in the directions of gamma about which clicks say something. The whole table counts, also cells that the log does not
link with the reference. Errors are CR3 over clusters: leaving a cluster g out changes gamma by

    (X'(H - H_g) X)^-1 X's_g

This is exact for every cluster where effects share no unit; else X'H X takes the place of the inverted matrix for
clusters of little leverage. The test of a form compares it with the free estimate, cell by cell
(`contrasts.difference_test`).

Sources: Joachims, Swaminathan & Schnabel 2017 (powers); Guo et al. 2020 (KDD: rows and columns of grids); de
Leon-Martinez et al. 2026 (carousels); Bell & McCaffrey 2002 (CR3).
"""

from dataclasses import replace

import numpy as np

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.shapes import ONE_END, SHAPE_ALONE, CurveShape, ShapedEstimate, counts_of_all_cells, units_with_slope
from posbias.core.standard_errors import cluster, contrasts
from posbias.core.standard_errors.contrasts import ScoredEstimate, StrataEstimate
from posbias.core.theta.conditional import Likelihood, click_shares, linked_counts

_LIMITS = optimize.Limits(longest_step=4.0, tolerance=1e-11, stalled=optimize.ROUNDING)  # of a log propensity
_ALONE = 1e-10  # share of the information that stays when the only cluster that has some is left out
_NOTHING = 1e-9  # of an effect, or a share of the information: rounding
_AGREE = 1e-5  # share of the error by clicks: clusters that agree to the last one leave rounding
_BLOCK = 4_000_000  # numbers in one block of work, 32 MB
_NO_ERROR = 20.0  # of log theta: one cluster alone says something about an effect


def fit_product(
    free: StrataEstimate, axes: Integers, group_of_cell: Integers, power_of: Integers | None = None
) -> ShapedEstimate | None:
    """Fit one effect for each value of each axis.

    Args:
        free: the free estimate, a number a cell.
        axes: shape (K, A), the value of each cell on each axis, by number.
        group_of_cell: shape (K,), the context of each cell, which has effects of its own.
        power_of: shape (K,), positions >= 1 of which the first axis is a power; None gives it an effect for each value.

    Returns:
        The estimate, and its test against the free one; None where the form has as many numbers as there are cells, or
        clicks do not determine its effects.
    """
    table = free.strata.signatures
    clicks = table.sum_by_cell(table.spread(table.multiplicity) * table.clicks)
    values = [np.unique(np.stack([group_of_cell, axis]), axis=1, return_inverse=True)[1].ravel() for axis in axes.T]
    # A value of an axis without any click has no effect that is a number.
    usable = np.logical_and.reduce([np.bincount(value, clicks)[value] > 0 for value in values])
    columns = [(value[:, np.newaxis] == np.unique(value)).astype(np.float64) for value in values]
    if power_of is not None:
        of_group = group_of_cell[:, np.newaxis] == np.unique(group_of_cell)
        columns[0] = -np.log(power_of)[:, np.newaxis] * of_group
    effects, reference_of = np.concatenate(columns, axis=1), free.fit.linkage.reference_of
    form = fit_linear(free, effects - effects[reference_of], usable)
    if form is None or not form.converged or power_of is None:
        return form if form is not None and form.converged else None
    return _with_severity(form, power_of, reference_of, (axes[:, 1:] == axes[reference_of, 1:]).all(axis=1))


class PowerShape(CurveShape):
    """A power of the position."""

    name = "power"

    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> ShapedEstimate:
        """Fit theta_k = (position_k / position_ref)^-eta, with one eta for each group of cells.

        Args:
            free: the free estimate; the cells of one reference are a group.
            position_of_cell: shape (K,), >= 1.
        """
        log_position, reference_of = np.log(position_of_cell), free.fit.linkage.reference_of
        down = log_position - log_position[reference_of]
        # There is an optimum where some click lies before the last, and some after the first cell of its unit.
        counts = counts_of_all_cells(free.strata.signatures, free.fit.linkage)
        reference = reference_of[counts.table.cell[counts.table.start[:-1]]]
        ends = units_with_slope(counts, down[counts.table.cell])
        sloped = np.logical_and(*(np.isin(reference_of, reference[inner]) for inner in ends))
        of_group = (reference_of[:, np.newaxis] == np.unique(reference_of)) & sloped[:, np.newaxis]
        form = fit_linear(free, -down[:, np.newaxis] * of_group, sloped) if sloped.any() else None
        unknown, reason = np.full(len(down), np.nan), (ONE_END,) * len(down)
        if form is None:
            nothing = contrasts.contrast_test(np.empty(0), np.empty(0), np.empty(0))
            return ShapedEstimate(unknown, cluster.Intervals.unknown(reason), True, nothing, unknown, unknown)
        intervals, log_theta = form.intervals, np.where(sloped, form.log_theta, np.nan)
        form = replace(form, log_theta=log_theta, intervals=intervals.where(sloped, cluster.Intervals.unknown(reason)))
        return _with_severity(form, position_of_cell, reference_of, np.ones(len(down), np.bool_))


def _with_severity(form: ShapedEstimate, position: Integers, reference_of: Integers, along: Flags) -> ShapedEstimate:
    """A form with eta, read where the position alone leads furthest from each reference, and where it does not fit."""
    down = np.log(position / position[reference_of])
    furthest = np.array([np.argmax(np.abs(down) * along * (reference_of == first)) for first in reference_of])
    with np.errstate(invalid="ignore", divide="ignore"):  # a group of one cell
        eta, error = -(form.log_theta / down)[furthest], (form.intervals.std_error / np.abs(down))[furthest]
    misfit = (int(position[form.test.largest]),) if form.test.rejected else ()
    return replace(form, misfit=misfit, eta=eta, eta_error=error)


def fit_linear(free: StrataEstimate, effects: Floats, usable: Flags) -> ShapedEstimate | None:
    """Fit log theta = X gamma.

    Args:
        free: the free estimate.
        effects: X, shape (K, P), 0 at references.
        usable: shape (K,), cells whose counts are used; the references among them.

    Returns:
        The estimate, without misfit and eta; None where the form has as many numbers as there are cells, or none. A
        cell has a number where clicks determine the effects that make it.
    """
    linkage, n_cells, table = free.fit.linkage, len(effects), free.strata.signatures
    shown = np.bincount(table.take(np.flatnonzero(table.links)).cell, minlength=n_cells) > 0
    shown[linkage.reference_of] = True
    counts = linked_counts(table, replace(linkage, identified=usable & shown))
    cells, table = counts.cells, counts.table
    likelihood = Likelihood(counts)
    start: Floats = np.zeros(len(cells))
    flat = _information(likelihood, start, effects[cells])
    rounding = _NOTHING**2 * (effects[cells] ** 2).T @ likelihood.expected(start)
    weight = np.sqrt(np.where(np.diag(flat) > rounding, np.diag(flat), 0.0))
    scaled = np.divide(effects, weight, out=np.zeros_like(effects), where=weight > 0)
    unit = weight + (weight == 0)
    size, axis = np.linalg.eigh(flat / np.outer(unit, unit))
    axis = axis[:, size > _NOTHING]
    if not 0 < axis.shape[1] < len(counts.free):
        return None
    estimable = (np.abs(scaled - scaled @ axis @ axis.T).max(axis=1) < _NOTHING) & ~(
        (effects != 0) & (weight == 0)
    ).any(1)
    by_effect = scaled @ axis
    by_effect = by_effect / np.abs(by_effect).max(axis=0)  # shape (K, P), in terms of the estimable effects
    inside: Floats = by_effect[cells]

    def propose(gamma: Floats) -> optimize.Proposal:
        beta = inside @ gamma
        slope = inside.T @ (likelihood.cell_clicks - likelihood.expected(beta))
        step = linalg.solve(_information(likelihood, beta, inside), slope)
        enough = optimize.ENOUGH_ASCENT * slope
        return step, lambda step: not likelihood.gain(beta, inside @ step) >= float(enough @ step), None

    try:
        gamma, converged, _ = optimize.climb(propose, np.zeros(int(inside.shape[1])), _LIMITS)
    except np.linalg.LinAlgError:  # clicks lie at one end only
        return None
    log_theta = np.where(estimable, by_effect @ gamma, np.nan)
    fit = replace(free.fit, log_theta=by_effect @ gamma)
    scores = cluster.cluster_scores(fit, free.strata, counts)
    inverse = linalg.inverse(_information(likelihood, fit.log_theta[cells], inside))
    sums = _left_out(scores, by_effect, inverse)
    spread, by_clicks = np.sqrt(sums.variance), np.sqrt(np.einsum("kp,pq,kq->k", by_effect, inverse, by_effect))
    without = dict.fromkeys(
        np.flatnonzero((spread <= _AGREE * by_clicks) & (by_clicks > 0)).tolist(), cluster.IDENTICAL_CLUSTERS
    )
    lonely = (by_clicks > 0) & ((spread > _NO_ERROR) | (sums.effective_clusters < 1 + _NOTHING))
    without |= dict.fromkeys(np.flatnonzero(lonely).tolist(), cluster.ONE_CLUSTER)
    error = np.where(estimable & ~np.isin(np.arange(n_cells), list(without)), spread, np.nan)
    margin = cluster.t_quantile(sums.degrees) * error
    pairs = zip(estimable.tolist(), linkage.identified.tolist(), linkage.reason, strict=True)
    reason = tuple(
        (without.get(cell) or (None if linked else SHAPE_ALONE)) if known else why or ONE_END
        for cell, (known, linked, why) in enumerate(pairs)
    )
    effective = np.where(np.isfinite(error) & (by_clicks > 0), sums.effective_clusters, np.nan)
    response = by_effect @ inverse @ inside.T
    of_form = ScoredEstimate(log_theta, error, np.full(n_cells, np.inf), scores.numbers, scores.scores, response)
    test, ends = contrasts.difference_test(of_form, free.scored()), (log_theta - margin, log_theta + margin)
    numbers = np.stack([log_theta, error, np.exp(ends[0]), cluster.finite_exp(ends[1]), effective])
    return ShapedEstimate.of(numbers, reason, converged=converged, test=test, covariance=sums.covariance)


def _information(likelihood: Likelihood, beta: Floats, effects: Floats) -> Floats:
    """X'H X = X' diag(expected clicks) X - sum_j w_j (X'p_j)(X'p_j)', shape (P, P).

    Args:
        likelihood: of I cells.
        beta: shape (I,).
        effects: X, shape (I, P).
    """
    total = np.zeros((effects.shape[1],) * 2)
    for units, block in likelihood.table.blocks():
        by_unit, weight = linalg.by_unit_and_cell(block, click_shares(block, beta)[0]), likelihood.weight[units]
        mean = (by_unit @ effects) * np.sqrt(weight)[:, np.newaxis]
        total += effects.T @ ((by_unit.T @ weight)[:, np.newaxis] * effects) - mean.T @ mean
    return total


def _left_out(scores: cluster.ClusterScores, by_effect: Floats, inverse: Floats) -> cluster.ClusterSums:
    """The sums of leaving out one cluster at a time, over all K cells.

    Args:
        scores: of the clusters, on I cells.
        by_effect: X of all cells, shape (K, P).
        inverse: (X'H X)^-1, shape (P, P).
    """
    table, n_cells = scores.linked.table, len(by_effect)
    effects, response = by_effect[scores.linked.cells], by_effect @ inverse
    by_unit = linalg.by_unit_and_cell(table, scores.shares)
    change, mean = (scores.scores @ effects) @ inverse, by_unit @ effects
    distance = by_unit @ np.einsum("ip,pq,iq->i", effects, inverse, effects)
    leverage = scores.weight @ (distance - np.einsum("sp,pq,sq->s", mean, inverse, mean))
    information = linalg.inverse(inverse)
    coupled = np.count_nonzero(information) > len(information)
    if not coupled:  # one effect for each group of cells: all clusters at once, X'H_g X being diagonal, too
        own, whole = scores.weight @ (by_unit @ effects**2 - mean**2), np.diag(information)
        change *= whole / np.maximum(whole - own, _ALONE * whole)
    for which in cluster.split_by_leverage(leverage)[1].tolist() if coupled else ():
        first, last = scores.weight.indptr[which : which + 2]
        units, clicks = scores.weight.indices[first:last], scores.weight.data[first:last]
        expected = by_unit[units].T @ clicks
        own = effects.T @ (expected[:, np.newaxis] * effects) - mean[units].T @ (clicks[:, np.newaxis] * mean[units])
        held = information * (1 + _ALONE * np.eye(len(own)))  # where the cluster alone says something about an effect
        change[which] = np.linalg.solve(held - own, information @ change[which])
    influence, squared, number = np.zeros((3, n_cells))
    width = max(1, _BLOCK // max(table.n_units, len(scores.numbers), 1))
    for first in range(0, n_cells, width):
        columns = slice(first, first + width)
        along = effects @ response[columns].T
        of_click = (by_unit @ along**2 - (by_unit @ along) ** 2).clip(0.0)
        of_cluster = scores.weight @ of_click
        influence[columns], squared[columns] = of_cluster.sum(axis=0), (of_cluster**2).sum(axis=0)
        number[columns] = (of_cluster > _NOTHING * influence[columns]).sum(axis=0)
    return cluster.ClusterSums(
        outer=by_effect @ (change.T @ change) @ by_effect.T,
        influence=influence,
        influence_squared=np.where(squared > 0, squared, 1.0),
        clusters_of_cell=number,
        n_clusters=len(scores.numbers),
        alone=np.zeros(n_cells, np.bool_),
    )
