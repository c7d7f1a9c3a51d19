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

They are computed on the cells, where a penalty holds what leaves the span of X at 0. The test of a form compares it
with the free estimate, cell by cell (`contrasts.difference_test`).

Sources: Joachims, Swaminathan & Schnabel 2017 (powers); Guo et al. 2020 (KDD: rows and columns of grids); de
Leon-Martinez et al. 2026 (carousels); Bell & McCaffrey 2002 (CR3).
"""

from dataclasses import replace

import numpy as np

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.shapes import ONE_END, SHAPE_ALONE, CurveShape, ShapedEstimate, counts_of_all_cells, units_with_slope
from posbias.core.standard_errors import contrasts
from posbias.core.standard_errors.cluster import (
    AGREEING,
    ONE_CLUSTER,
    Intervals,
    LeaveOneOut,
    scores_of_members,
    t_quantile,
    upper_end,
)
from posbias.core.standard_errors.contrasts import ScoredEstimate, StrataEstimate
from posbias.core.theta.conditional import Likelihood, LinkedCounts, linked_counts

_LIMITS = optimize.Limits(longest_step=4.0, tolerance=1e-11, stalled=optimize.ROUNDING)  # of a log propensity
_HELD = 1e7  # the penalty on what leaves the span, relative to the information
_ALONE = 1e-10  # the same for effects, so that a cluster can be left out that alone says something about one
_NOTHING = 1e-9  # of an effect, or a share of the information: rounding
_AGREE = 1e-5  # share of the error by clicks: clusters that agree to the last one leave rounding
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
            return ShapedEstimate(unknown, Intervals.unknown(reason), True, nothing, (), unknown, unknown)
        intervals, log_theta = form.intervals, np.where(sloped, form.log_theta, np.nan)
        numbers = (intervals.std_error, intervals.low, intervals.high, intervals.effective_clusters)
        known = [np.where(sloped, of, np.nan) for of in numbers]
        why = tuple(of if has else ONE_END for of, has in zip(intervals.reason, sloped.tolist(), strict=True))
        intervals = Intervals(known[0], known[1], known[2], known[3], why)
        form = replace(form, log_theta=log_theta, intervals=intervals)
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
    cells, inner, likelihood = counts.cells, counts.free, Likelihood(counts)
    own = effects[cells[inner]]
    information = likelihood.slopes(np.zeros(len(cells)))[1][np.ix_(inner, inner)]
    weight = np.sqrt(np.einsum("fp,fg,gp->p", own, information, own).clip(0.0))
    scaled = np.divide(effects, weight, out=np.zeros_like(effects), where=weight > 0)
    size, axis = np.linalg.eigh(scaled[cells[inner]].T @ information @ scaled[cells[inner]])
    axis = axis[:, size > _NOTHING]
    if not 0 < axis.shape[1] < len(inner):
        return None
    told = (np.abs(scaled - scaled @ axis @ axis.T).max(axis=1) < _NOTHING) & ~((effects != 0) & (weight == 0)).any(1)
    span, to_effects = np.linalg.qr(scaled[cells[inner]] @ axis)
    best = _maximum(counts, likelihood, span)
    if best is None:
        return None
    beta, converged = best
    information = likelihood.slopes(beta)[1][np.ix_(inner, inner)]
    # D^1/2 (I - Q Q') D^1/2 with D the information's diagonal and Q D^1/2 times the span, orthonormal
    root = np.sqrt(np.diag(information))
    along, _ = np.linalg.qr(root[:, np.newaxis] * span)
    penalty = _HELD * (np.eye(len(inner)) - along @ along.T) + _ALONE * np.eye(len(inner))
    log_theta = np.full(n_cells, np.nan)
    log_theta[cells] = beta
    fit = replace(free.fit, log_theta=log_theta, free_cells=cells[inner])
    fit = replace(fit, information=information + root[:, np.newaxis] * penalty * root)
    clusters, members = free.strata.members.among(counts.units).occurrences(len(counts.units))
    scores = scores_of_members(fit, counts, members, np.ones(len(clusters)))
    inverse: Floats = (span @ np.linalg.solve(span.T @ information @ span, span.T)).astype(np.float64)
    sums = LeaveOneOut(fit, scores, held=True, inverse=inverse).sums()
    # All cells by their effects, also those that were not shown with others.
    share = scaled @ axis @ np.linalg.solve(to_effects, span.T)
    response = np.zeros((n_cells, len(cells)))
    response[:, inner] = share @ inverse
    spread, by_clicks = (
        np.sqrt(np.einsum("kf,fg,kg->k", share, of, share).clip(0.0)) for of in (sums.covariance, inverse)
    )
    log_theta = np.where(told, share @ beta[inner], np.nan)
    degrees = np.full(n_cells, np.min(sums.degrees, initial=np.inf))
    degrees[fit.free_cells] = sums.degrees
    without = dict.fromkeys(np.flatnonzero((spread <= _AGREE * by_clicks) & (by_clicks > 0)).tolist(), AGREEING)
    without |= dict.fromkeys(np.flatnonzero(spread > _NO_ERROR).tolist(), ONE_CLUSTER)
    without |= dict.fromkeys(fit.free_cells[sums.effective_clusters < 1 + _NOTHING].tolist(), ONE_CLUSTER)
    error = np.where(told & ~np.isin(np.arange(n_cells), list(without)), spread, np.nan)
    margin = t_quantile(degrees) * error
    margin[error == 0] = 0.0
    effective = np.full(n_cells, np.nan)
    effective[fit.free_cells] = np.where(np.isfinite(error)[fit.free_cells], sums.effective_clusters, np.nan)
    pairs = zip(told.tolist(), linkage.identified.tolist(), linkage.reason, strict=True)
    reason = tuple(
        (without.get(cell) or (None if linked else SHAPE_ALONE)) if known else why or ONE_END
        for cell, (known, linked, why) in enumerate(pairs)
    )
    of_form = ScoredEstimate(log_theta, error, np.full(n_cells, np.inf), clusters, scores.scores, response)
    unknown = np.full(n_cells, np.nan)
    return ShapedEstimate(
        log_theta=log_theta,
        intervals=Intervals(error, np.exp(log_theta - margin), upper_end(log_theta + margin), effective, reason),
        converged=converged,
        test=contrasts.difference_test(of_form, free.scored()),
        misfit=(),
        eta=unknown,
        eta_error=unknown,
    )


def _maximum(counts: LinkedCounts, likelihood: Likelihood, span: Floats) -> tuple[Floats, bool] | None:
    """The most likely beta within a span of effects, 0 at the references, and whether it was reached.

    Args:
        counts: the units that say something about I cells, F of them free.
        likelihood: theirs.
        span: an orthonormal basis of the effects on the free cells, shape (F, P).

    Returns:
        Shape (I,); None where clicks lie at one end only.
    """
    inner = counts.free

    def propose(beta: Floats) -> optimize.Proposal:
        gradient, information = likelihood.slopes(beta)
        slope, step = span.T @ gradient[inner], np.zeros_like(beta)
        step[inner] = span @ linalg.solve(span.T @ information[np.ix_(inner, inner)] @ span, slope)

        def falls_short(step: Floats) -> bool:
            return not likelihood.gain(beta, step) >= optimize.ENOUGH_ASCENT * float(slope @ (span.T @ step[inner]))

        return step, falls_short, None

    try:
        beta, converged, _ = optimize.climb(propose, np.zeros(len(counts.cells)), _LIMITS)
    except np.linalg.LinAlgError:
        return None
    return beta, converged
