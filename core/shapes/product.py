"""The product form of cells: one effect for each value of each axis of the page.

    log theta_e = sum_a effect_a(v_a(e)) - sum_a effect_a(v_a(ref))

The axes a are the position and each further column of a cell (a row and a column of a grid: R + C - 1 numbers in place
of R C; a position below a block: K + B - 1). Within the span X of the effects the conditional likelihood l (see
`core.theta.conditional`) is maximised by Newton's method, beta = X gamma:

    (X'H X) step = X'gradient

Errors are CR3 over clusters, as those of the free estimate: leaving a cluster g out changes gamma by
(X'(H - H_g) X)^-1 X's_g. They are computed on the cells, with a penalty on what leaves the span that holds it at 0. The
test of the form compares it with the free estimate, cell by cell (`contrasts.difference_test`).

Sources: Guo et al. 2020 (KDD: rows and columns of grids); de Leon-Martinez et al. 2026 (carousels); Bell & McCaffrey
2002 (CR3).
"""

from dataclasses import replace

import numpy as np

from posbias.core.arrays import linalg, optimize
from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.shapes import SHAPE_ALONE, ShapedEstimate
from posbias.core.standard_errors import contrasts
from posbias.core.standard_errors.cluster import (
    Intervals,
    LeaveOneOut,
    errors_from_sums,
    scores_of_members,
    t_quantile,
    upper_end,
)
from posbias.core.standard_errors.contrasts import ScoredEstimate, StrataEstimate
from posbias.core.theta.conditional import NO_CLICKS, ONE_WAY, Likelihood, LinkedCounts, linked_counts

_LIMITS = optimize.Limits(longest_step=8.0, tolerance=1e-11, stalled=optimize.ROUNDING)  # of a log propensity
_HELD = 1e7  # the penalty on what leaves the span, relative to the largest information
_EFFECT = 0.01  # precision of effects when a cluster is left out: they lie within -20 .. 20, whichever that is
_NOTHING = 1e-9  # of a row or a singular value: rounding


def fit_product(free: StrataEstimate, axes: Integers, group_of_cell: Integers) -> ShapedEstimate | None:
    """Fit one effect for each value of each axis.

    Cells that no clicked document links with the reference, even through others, and values of an axis without any
    click say nothing. A cell has a number where the effects that make it are known from others, too.

    Args:
        free: the free estimate, a number a cell.
        axes: shape (K, A), the value of each cell on each axis, by number.
        group_of_cell: shape (K,), the context of each cell, which has effects of its own.

    Returns:
        The estimate, and its test against the free one; None where the form has as many numbers as there are cells, or
        clicks do not determine its effects.
    """
    strata, linkage, reference_of = free.strata, free.fit.linkage, free.fit.linkage.reference_of
    table, n_cells = strata.signatures, strata.signatures.n_cells
    clicks = table.sum_by_cell(table.spread(table.multiplicity) * table.clicks)
    values = [np.unique(np.stack([group_of_cell, axis]), axis=1, return_inverse=True)[1].ravel() for axis in axes.T]
    linked = np.array([reason in {None, NO_CLICKS, ONE_WAY} for reason in linkage.reason])
    for value in values:
        linked &= np.bincount(value, clicks * linked)[value] > 0
    counts = linked_counts(table, replace(linkage, identified=linked))
    cells, inner = counts.cells, counts.free
    every = np.concatenate([value[:, np.newaxis] == np.unique(value) for value in values], axis=1).astype(np.float64)
    every -= every[reference_of]
    _, size, axis = np.linalg.svd(every[cells], full_matrices=False)
    axis = axis[size > _NOTHING * size.max(initial=1.0)].T  # an orthonormal basis of the effects that are told apart
    if not 0 < axis.shape[1] < len(inner):
        return None
    effects = every @ axis
    span, to_effects = np.linalg.qr(effects[cells[inner]])
    best = _maximum(counts, span)
    if best is None:
        return None
    beta, information = best
    largest, identity = float(np.diag(information).max()), np.eye(len(inner))
    penalty = _HELD * largest * (identity - span @ span.T) + _EFFECT * identity
    log_theta = np.full(n_cells, np.nan)
    log_theta[cells] = beta
    fit = replace(free.fit, log_theta=log_theta, free_cells=cells[inner], information=information + penalty)
    clusters, members = strata.members.among(counts.units).occurrences(len(counts.units))
    scores = scores_of_members(fit, counts, members, np.ones(len(clusters)))
    errors = errors_from_sums(log_theta, fit.free_cells, LeaveOneOut(fit, scores, held=True).sums())
    response = np.zeros((n_cells, len(cells)))
    response[np.ix_(fit.free_cells, inner)] = span @ np.linalg.solve(span.T @ information @ span, span.T)
    scored = ScoredEstimate(log_theta, errors.std_error, errors.degrees, clusters, scores.scores, response)
    test = contrasts.difference_test(scored, free.scored())
    # Cells that nothing links, and whose effects are those of others that are.
    told = np.abs(every - effects @ axis.T).max(axis=1) < _NOTHING
    others = np.flatnonzero(told & ~linked & np.isin(reference_of, cells))
    share = effects[others] @ np.linalg.solve(to_effects, span.T)
    spread = np.sqrt(np.maximum(np.einsum("mk,kl,ml->m", share, errors.covariance, share), 0.0))
    log_theta[others] = share @ beta[inner]
    fewest = float(np.nanmin(errors.degrees[fit.free_cells], initial=np.inf))
    margin = t_quantile(np.full(len(others), fewest)) * spread
    numbers = [errors.std_error, errors.low, errors.high, errors.effective_clusters]
    of_others = [spread, np.exp(log_theta[others] - margin), upper_end(log_theta[others] + margin), np.nan]
    for array, these in zip(numbers, of_others, strict=True):
        array[others] = these
    alone = ~linkage.identified & np.isfinite(log_theta)
    pairs = zip(alone, np.isfinite(log_theta), errors.reason, linkage.reason, strict=True)
    reason = tuple(SHAPE_ALONE if rests else own if known else why for rests, known, own, why in pairs)
    unknown = np.full(n_cells, np.nan)
    std_error, low, high, effective = numbers
    intervals = Intervals(std_error, low, high, effective, reason)
    return ShapedEstimate(log_theta, intervals, converged=True, test=test, misfit=(), eta=unknown, eta_error=unknown)


def _maximum(counts: LinkedCounts, span: Floats) -> tuple[Floats, Floats] | None:
    """The most likely beta within the span of the effects, and minus the Hessian there; None where there is none.

    Args:
        counts: the units that say something about I cells, F of them free.
        span: an orthonormal basis of the effects on the free cells, shape (F, P).

    Returns:
        Shape (I,), 0 at the references; and shape (F, F).
    """
    likelihood, inner = Likelihood(counts), counts.free

    def within(beta: Floats) -> tuple[Floats, Floats]:
        gradient, information = likelihood.slopes(beta)
        return span.T @ gradient[inner], information[np.ix_(inner, inner)]

    def propose(beta: Floats) -> optimize.Proposal:
        slope, information = within(beta)
        along, step = linalg.solve(span.T @ information @ span, slope), np.zeros_like(beta)
        step[inner] = span @ along

        def falls_short(step: Floats) -> bool:
            return not likelihood.gain(beta, step) >= optimize.ENOUGH_ASCENT * float(slope @ (span.T @ step[inner]))

        return step, falls_short, None

    try:
        beta, converged, _ = optimize.climb(propose, np.zeros(len(counts.cells)), _LIMITS)
    except np.linalg.LinAlgError:  # clicks lie at one end only
        return None
    return (beta, within(beta)[1]) if converged else None
