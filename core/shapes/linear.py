"""Log-linear forms: the product form of cells, and powers of the position.

    log theta_e = sum_p x_ep gamma_p,  x_ref = 0

Product: one effect for each value of each axis of the page, theta_e = prod_a f_a(v_a(e)) / prod_a f_a(v_a(ref)). The
axes a are the position and each further column of a cell (a row and a column of a grid: R + C - 1 numbers in place of
R C; a position below a block: K + B - 1). Power: theta_k = (position_k / position_ref)^-eta, an effect of the logarithm
of the position, with one eta for each group of cells.

The conditional likelihood l (see `core.theta.conditional`) is maximised over gamma by Newton's method,

    (X'H X) step = X'gradient

in the estimable directions of gamma. The whole table counts, including cells that are not linked to their reference.
Errors are CR3 over clusters: without cluster g, gamma changes by

    (X'(H - H_g) X)^-1 X's_g

exactly so for every cluster where effects share no unit; otherwise with X'H X as the inverted matrix for clusters of
small leverage. A form is tested against the free estimate, cell by cell (`contrasts.difference_test`).

Sources: Joachims, Swaminathan & Schnabel 2017 (powers); Guo et al. 2020 (KDD: rows and columns of grids); de
Leon-Martinez et al. 2026 (carousels); Bell & McCaffrey 2002 (CR3).
"""

from dataclasses import replace

import numpy as np

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.shapes import ONE_END, SHAPE_ALONE, CurveShape, ShapedEstimate, all_counts, in_sloped_group
from posbias.core.standard_errors import cluster, contrasts
from posbias.core.standard_errors.contrasts import ScoredEstimate, StrataEstimate
from posbias.core.theta.conditional import Likelihood, click_shares, linked_counts

_LIMITS = optimize.Limits(longest_step=4.0, tolerance=1e-11, stalled=optimize.ROUNDING)  # of a log propensity
_RIDGE = 1e-10  # share of the information that remains without the only cluster that has any
_ROUNDING = 1e-9  # of an effect, or a share of the information
_IDENTICAL = 1e-5  # share of the error of independent clicks: below it, clusters are identical
_BLOCK = 4_000_000  # numbers per block, 32 MB
_NO_ERROR = 20.0  # standard error of log theta above which a single cluster determines an effect


def fit_product(
    free: StrataEstimate, axes: Integers, group_of_cell: Integers, power_of: Integers | None = None
) -> ShapedEstimate | None:
    """Fit one effect for each value of each axis.

    Args:
        free: the free estimate.
        axes: shape (K, A), the value of each cell on each axis, by number.
        group_of_cell: shape (K,), the context of each cell; each context has its own effects.
        power_of: shape (K,), positions >= 1: the first axis is a power of them; None: one effect for each value.

    Returns:
        The estimate; None where the form has as many parameters as there are free cells, or clicks do not determine
        its effects.
    """
    table = free.strata.signatures
    clicks = table.sum_by_cell(table.spread(table.multiplicity) * table.clicks)
    values = [np.unique(np.stack([group_of_cell, axis]), axis=1, return_inverse=True)[1].ravel() for axis in axes.T]
    # The effect of a value without clicks is minus infinity.
    usable = np.logical_and.reduce([np.bincount(value, clicks)[value] > 0 for value in values])
    columns = [(value[:, np.newaxis] == np.unique(value)).astype(np.float64) for value in values]
    if power_of is not None:
        columns[0] = -np.log(power_of)[:, np.newaxis] * (group_of_cell[:, np.newaxis] == np.unique(group_of_cell))
    effects, reference_of = np.concatenate(columns, axis=1), free.fit.linkage.reference_of
    form = fit_linear(free, effects - effects[reference_of], usable)
    if form is None or not form.converged:
        return None
    if power_of is None:
        return form
    return _with_severity(form, power_of, reference_of, (axes[:, 1:] == axes[reference_of, 1:]).all(axis=1))


class PowerShape(CurveShape):
    """Power of the position."""

    name = "power"

    def fit(self, free: StrataEstimate, position_of_cell: Integers) -> ShapedEstimate:
        """Fit theta_k = (position_k / position_ref)^-eta, with one eta for each group of cells.

        Args:
            free: the free estimate; the cells of one reference are a group.
            position_of_cell: shape (K,), >= 1.
        """
        log_position, reference_of = np.log(position_of_cell), free.fit.linkage.reference_of
        x = log_position - log_position[reference_of]
        sloped = in_sloped_group(all_counts(free), x)
        in_group = (reference_of[:, np.newaxis] == np.unique(reference_of)) & sloped[:, np.newaxis]
        form = fit_linear(free, -x[:, np.newaxis] * in_group, sloped) if sloped.any() else None
        unknown, no_intervals = np.full(len(x), np.nan), cluster.Intervals.unknown((ONE_END,) * len(x))
        if form is None:
            no_test = contrasts.contrast_test(np.empty(0), np.empty(0), np.empty(0))
            return ShapedEstimate(unknown, no_intervals, True, no_test, unknown, unknown)
        log_theta = np.where(sloped, form.log_theta, np.nan)
        form = replace(form, log_theta=log_theta, intervals=form.intervals.where(sloped, no_intervals))
        return _with_severity(form, position_of_cell, reference_of, np.ones(len(x), np.bool_))


def _with_severity(form: ShapedEstimate, position: Integers, reference_of: Integers, along: Flags) -> ShapedEstimate:
    """Add eta, its error, and the position of the worst fit where the form is rejected.

    Args:
        form: the fit.
        position: shape (K,).
        reference_of: shape (K,), the reference of each cell.
        along: shape (K,), cells that differ from their reference in position alone; eta is theirs.
    """
    x = np.log(position / position[reference_of])
    furthest = np.array([np.argmax(np.abs(x) * along * (reference_of == first)) for first in reference_of])
    with np.errstate(invalid="ignore", divide="ignore"):  # x = 0 in a group of one cell
        eta, error = -(form.log_theta / x)[furthest], (form.intervals.std_error / np.abs(x))[furthest]
    misfit = (int(position[form.test.largest]),) if form.test.rejected else ()
    return replace(form, misfit=misfit, eta=eta, eta_error=error)


def fit_linear(free: StrataEstimate, effects: Floats, usable: Flags) -> ShapedEstimate | None:
    """Fit log theta = X gamma.

    Args:
        free: the free estimate.
        effects: X, shape (K, P), 0 at references.
        usable: shape (K,), cells whose counts are used, with the references.

    Returns:
        The estimate, without misfit and eta, NaN in cells whose effects are not estimable; None where the form has no
        estimable effect, or as many as there are free cells, or no finite optimum.
    """
    linkage, n_cells, table = free.fit.linkage, len(effects), free.strata.signatures
    shown = np.bincount(table.take(np.flatnonzero(table.links)).cell, minlength=n_cells) > 0
    shown[linkage.reference_of] = True
    counts = linked_counts(table, replace(linkage, identified=usable & shown))
    cells, table = counts.cells, counts.table
    likelihood = Likelihood(counts)
    start: Floats = np.zeros(len(cells))
    initial = _information(likelihood, start, effects[cells])
    rounding = _ROUNDING**2 * (effects[cells] ** 2).T @ likelihood.expected(start)
    weight = np.sqrt(np.where(np.diag(initial) > rounding, np.diag(initial), 0.0))
    scaled = np.divide(effects, weight, out=np.zeros_like(effects), where=weight > 0)
    unit = weight + (weight == 0)
    size, axis = np.linalg.eigh(initial / np.outer(unit, unit))
    axis = axis[:, size > _ROUNDING]
    if not 0 < axis.shape[1] < len(counts.free):
        return None
    estimable = np.abs(scaled - scaled @ axis @ axis.T).max(axis=1) < _ROUNDING
    estimable &= ~((effects != 0) & (weight == 0)).any(axis=1)
    design = scaled @ axis
    design = design / np.abs(design).max(axis=0)  # X of the estimable directions, shape (K, P)
    linked_design: Floats = design[cells]

    def propose(gamma: Floats) -> optimize.Proposal:
        beta = linked_design @ gamma
        slope = linked_design.T @ (likelihood.cell_clicks - likelihood.expected(beta))
        step = linalg.solve(_information(likelihood, beta, linked_design), slope)
        enough = optimize.ENOUGH_ASCENT * slope
        return step, lambda step: not likelihood.gain(beta, linked_design @ step) >= float(enough @ step), None

    try:
        gamma, converged, _ = optimize.climb(propose, np.zeros(int(linked_design.shape[1])), _LIMITS)
    except np.linalg.LinAlgError:  # clicks lie at one end only
        return None
    log_theta = np.where(estimable, design @ gamma, np.nan)
    fit = replace(free.fit, log_theta=design @ gamma)
    scores = cluster.cluster_scores(fit, free.strata, counts)
    inverse = linalg.inverse(_information(likelihood, fit.log_theta[cells], linked_design))
    sums = _cluster_sums(scores, design, inverse)
    spread, click_error = np.sqrt(sums.variance), np.sqrt(np.einsum("kp,pq,kq->k", design, inverse, design))
    not_reference = click_error > 0
    identical = not_reference & (spread <= _IDENTICAL * click_error)
    alone = not_reference & ((spread > _NO_ERROR) | (sums.effective_clusters < 1 + _ROUNDING))
    error = np.where(estimable & ~identical & ~alone, spread, np.nan)
    margin = cluster.t_quantile(sums.degrees) * error
    reason = np.full(n_cells, None, object)
    reason[~linkage.identified] = SHAPE_ALONE
    reason[identical] = cluster.IDENTICAL_CLUSTERS
    reason[alone] = cluster.ONE_CLUSTER
    reason[~estimable] = [why or ONE_END for cell, why in enumerate(linkage.reason) if not estimable[cell]]
    effective = np.where(np.isfinite(error) & not_reference, sums.effective_clusters, np.nan)
    response = design @ inverse @ linked_design.T
    shaped = ScoredEstimate(log_theta, error, np.full(n_cells, np.inf), scores.numbers, scores.scores, response)
    test, ends = contrasts.difference_test(shaped, free.scored()), (log_theta - margin, log_theta + margin)
    numbers = np.stack([log_theta, error, np.exp(ends[0]), cluster.finite_exp(ends[1]), effective])
    return ShapedEstimate.from_numbers(
        numbers, tuple(reason.tolist()), converged=converged, test=test, covariance=sums.covariance
    )


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


def _cluster_sums(scores: cluster.ClusterScores, design: Floats, inverse: Floats) -> cluster.ClusterSums:
    """Sums over clusters of their influence on log theta of all K cells.

    Args:
        scores: of the clusters, on I cells.
        design: X of all cells, shape (K, P).
        inverse: (X'H X)^-1, shape (P, P).
    """
    table, n_cells = scores.linked.table, len(design)
    effects, response = design[scores.linked.cells], design @ inverse
    by_unit = linalg.by_unit_and_cell(table, scores.shares)
    change, mean = (scores.scores @ effects) @ inverse, by_unit @ effects
    distance = by_unit @ np.einsum("ip,pq,iq->i", effects, inverse, effects)
    leverage = scores.weight @ (distance - np.einsum("sp,pq,sq->s", mean, inverse, mean))
    information = linalg.inverse(inverse)
    coupled = np.count_nonzero(information) > len(information)
    if not coupled:  # one effect for each group of cells: X'H_g X is diagonal, too
        own, total = scores.weight @ (by_unit @ effects**2 - mean**2), np.diag(information)
        change *= total / np.maximum(total - own, _RIDGE * total)
    for row in cluster.split_by_leverage(leverage)[1].tolist() if coupled else ():
        first, last = scores.weight.indptr[row : row + 2]
        units, clicks = scores.weight.indices[first:last], scores.weight.data[first:last]
        expected = by_unit[units].T @ clicks
        own = effects.T @ (expected[:, np.newaxis] * effects) - mean[units].T @ (clicks[:, np.newaxis] * mean[units])
        ridge = information * (1 + _RIDGE * np.eye(len(own)))  # regular also if this cluster alone informs an effect
        change[row] = np.linalg.solve(ridge - own, information @ change[row])
    influence, squared, number = np.zeros((3, n_cells))
    width = max(1, _BLOCK // max(table.n_units, len(scores.numbers), 1))
    for first in range(0, n_cells, width):
        columns = slice(first, first + width)
        q = effects @ response[columns].T
        own = scores.weight @ (by_unit @ q**2 - (by_unit @ q) ** 2).clip(0.0)
        influence[columns], squared[columns] = own.sum(axis=0), (own**2).sum(axis=0)
        number[columns] = (own > _ROUNDING * influence[columns]).sum(axis=0)
    return cluster.ClusterSums(
        outer=design @ (change.T @ change) @ design.T,
        influence=influence,
        influence_squared=np.where(squared > 0, squared, 1.0),
        clusters_of_cell=number,
        n_clusters=len(scores.numbers),
        alone=np.zeros(n_cells, np.bool_),
    )
