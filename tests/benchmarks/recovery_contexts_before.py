"""Contexts shrunk with one strength for all and correlations by context alone: the former way, for comparison.

    b | beta ~ N(beta, V),    beta = X mu + deviation,    mu flat,    tau ~ half-Cauchy(1)
    Cov(deviation_k, deviation_l) = tau^2 min(|x_k|, |x_l|) within a context on one side of its reference, else 0

V has the half-widths of the free estimate's intervals over z_.975 and the correlations of the inverse information.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.arrays.unit_diagonal import inverse
from posbias.core.standard_errors.cluster import ClusterErrors
from posbias.core.standard_errors.intervals import Intervals
from posbias.core.theta.conditional import ConditionalFit

_NORMAL = 1.959963984540054  # 97.5 % quantile

_TAU = np.geomspace(1e-3, 10.0, 61)
"""Where tau is looked at, per square root of a unit of log position: from no difference to factors of thousands."""

_ESTIMABLE = 1e-8  # what may be left of a row of X outside the rows with data, by rounding


@dataclass(frozen=True)
class ShrunkContexts:
    """Propensities of contexts that borrow from each other.

    Attributes:
        log_theta: shape (K,), posterior mean of log theta, 0 at the references; NaN where not identified, or where no
            context has an interval at that position.
        intervals: its posterior standard deviation and interval, in which few clusters count.
        tau: posterior mean of tau: the standard deviation by which a context leaves the shared curve at e times its
            reference's position.
    """

    log_theta: Floats
    intervals: Intervals
    tau: float


def shrink_with_one_strength(fit: ConditionalFit, errors: ClusterErrors, position_of_cell: Integers) -> ShrunkContexts:
    """Shrink the contexts' curves towards the one they share.

    Args:
        fit: the free estimate of all contexts side by side; the cells of one reference are a context.
        errors: its clustered errors.
        position_of_cell: shape (K,), >= 1.
    """
    mean, std_error, tau = _Family(fit, errors, position_of_cell).posterior()
    log_theta = np.where(np.isnan(fit.log_theta), np.nan, 0.0)
    sd = log_theta.copy()
    log_theta[fit.free_cells], sd[fit.free_cells] = mean, std_error
    with np.errstate(over="ignore"):  # an interval without an upper end has none
        high = np.exp(log_theta + _NORMAL * sd)
    return ShrunkContexts(
        log_theta=log_theta,
        intervals=Intervals(
            std_error=sd,
            low=np.exp(log_theta - _NORMAL * sd),
            high=np.where(np.isinf(high), np.nan, high),
            effective_clusters=errors.effective_clusters,
            reason=(None,) * len(sd),
        ),
        tau=tau,
    )


class _Family:
    """The normal model of all contexts on the F free cells, of which the `seen` have an interval.

    With V = L L' and L^-1 W L'^-1 = U diag(lambda) U', W the walk's covariance at tau = 1, the rotation R = U'L^-1
    makes the model diagonal for every tau at once: R y has the covariance diag(1 + tau^2 lambda).

    Attributes:
        walk: shape (F, F), W.
        design: shape (F, P), X in coordinates of mu that the seen cells determine.
        spectrum: shape (S,), lambda.
        seen_values: shape (S,), R y.
        seen_design: shape (S, P), R X on the seen cells.
        seen_walk: shape (S, F), R W between the seen cells and all.
        estimable: shape (F,), cells whose part of mu the seen cells determine.
    """

    def __init__(self, fit: ConditionalFit, errors: ClusterErrors, position_of_cell: Integers) -> None:
        free = fit.free_cells
        reference = fit.linkage.reference_of[free]
        noise = _noise(fit, errors)
        seen = np.flatnonzero(np.isfinite(np.diag(noise)) & (np.diag(noise) > 0))
        self.walk = _walk(reference, np.log(position_of_cell[free] / position_of_cell[reference]))
        design = _design(position_of_cell[free], position_of_cell[reference])
        basis = _row_space(design[seen])
        self.design = design @ basis
        self.estimable = np.abs(design - self.design @ basis.T).max(axis=1, initial=0.0) < _ESTIMABLE
        whiten = np.linalg.inv(np.linalg.cholesky(noise[np.ix_(seen, seen)])).astype(np.float64)
        spectrum, axes = np.linalg.eigh(whiten @ self.walk[np.ix_(seen, seen)] @ whiten.T)
        rotation = axes.T @ whiten
        self.spectrum = np.maximum(spectrum, 0.0)
        self.seen_values = rotation @ fit.log_theta[free[seen]]
        self.seen_design = rotation @ self.design[seen]
        self.seen_walk = rotation @ self.walk[seen]

    def posterior(self) -> tuple[Floats, Floats, float]:
        """Posterior means and standard deviations of beta, each of shape (F,), and the posterior mean of tau."""
        means, variances, log_weights = zip(*(self._given(tau) for tau in _TAU.tolist()), strict=True)
        weight = np.exp(np.array(log_weights) - max(log_weights))
        weight /= weight.sum()
        mean = weight @ np.array(means)
        variance = weight @ (np.array(variances) + (np.array(means) - mean) ** 2)
        mean[~self.estimable] = np.nan
        variance[~self.estimable] = np.nan
        return mean, np.sqrt(variance), float(weight @ _TAU)

    def _given(self, tau: float) -> tuple[Floats, Floats, float]:
        """Means and variances of beta given tau, and the log of tau's posterior weight, up to a constant.

        With S = V + tau^2 W:  -2 log weight = log|S| + log|X'S^-1 X| + (y - X mu)'S^-1 (y - X mu) - 2 log prior.
        """
        scale = 1 + tau**2 * self.spectrum
        weighted = self.seen_design / scale[:, np.newaxis]
        precision = weighted.T @ self.seen_design
        of_mu = inverse(precision)
        mu = of_mu @ (weighted.T @ self.seen_values)
        residual = self.seen_values - self.seen_design @ mu
        gain = tau**2 * self.seen_walk / scale[:, np.newaxis]
        rest = self.design - gain.T @ self.seen_design
        variance = tau**2 * (np.diag(self.walk) - np.einsum("sf,sf->f", self.seen_walk, gain))
        variance += np.einsum("fp,pq,fq->f", rest, of_mu, rest)
        deviance = np.log(scale).sum() + np.linalg.slogdet(precision)[1] + residual @ (residual / scale)
        log_prior = np.log(tau / (1 + tau**2))  # half-Cauchy(1), times the width tau of a step of the grid
        return self.design @ mu + gain.T @ residual, variance, float(log_prior - deviance / 2)


def _walk(context: Integers, x: Floats) -> Floats:
    """Covariance at tau = 1 of random walks that start at x = 0, one a context and side, shape (F, F)."""
    together = (context[:, np.newaxis] == context) & (np.outer(x, x) > 0)
    return together * np.minimum.outer(np.abs(x), np.abs(x))


def _design(position: Integers, reference: Integers) -> Floats:
    """X: mu at the cell's position minus mu at its reference's, shape (F, number of positions)."""
    positions = np.unique(np.concatenate([position, reference]))
    return (position[:, np.newaxis] == positions).astype(np.float64) - (reference[:, np.newaxis] == positions)


def _row_space(matrix: Floats) -> Floats:
    """An orthonormal basis of the space that the rows span, as columns."""
    _, sizes, rows = np.linalg.svd(matrix, full_matrices=False)
    return rows[sizes > _ESTIMABLE].T.astype(np.float64)


def _noise(fit: ConditionalFit, errors: ClusterErrors) -> Floats:
    """V on the free cells, shape (F, F): the intervals' half-widths over z_.975, with the information's correlations.

    Rows and columns of cells without a finite interval are not finite.
    """
    free = fit.free_cells
    with np.errstate(divide="ignore"):  # an interval from 0 says nothing
        half_width = (np.log(errors.high[free]) - np.log(errors.low[free])) / 2
    model = inverse(fit.information)
    scale = half_width / _NORMAL / np.sqrt(np.diag(model))
    return model * np.outer(scale, scale)
