"""Whether joint EM is biased on a log: its estimate against the conditional one.

On sparse logs joint EM is inconsistent (Neyman & Scott 1948), the conditional estimate is not. With mu = theta gamma,

    D = log theta_joint - log theta_conditional
    u_je = (c - n mu) / (1 - mu),    v_je = (n - c) mu / (1 - mu)^2
    I = sum_j m_j (diag(v_j) - v_j v_j' / (sum_e v_je + w_j)) + diag(w_e)
    psi_g = I^-1 u_g - H^-1 s_g,     V = sum_g psi_g psi_g'     over the clusters (queries) g

u is the score of log theta, v minus its derivative, and I minus the derivative of the score once every gamma follows;
w = s (1 - v0) x / (1 - x)^2 is the curvature of the Beta prior of x = gamma_j or theta_e. The observed v and w, not
their expectations: where pairs are rare they differ, and V then understates or hides the bias.

"Joint EM is biased here" when in some cell D differs from 0 at the level .05 over all cells, and |exp D - 1| > 5 %. It
detects the bias by sparsity and by the prior only, which `joint_causes` tells apart: under feedback or personalisation
both estimates move together.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.arrays.linalg import by_unit_and_cell, gram
from posbias.core.arrays.members import Members
from posbias.core.arrays.unit_diagonal import pseudo_inverse
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.estimators.estimate import FittedJointly
from posbias.core.priors import BetaPrior
from posbias.core.standard_errors.contrasts import (
    LEVEL,
    ContrastTest,
    FittedStrata,
    ScoredEstimate,
    contrast_test,
    difference_errors,
    sum_by_cluster,
)
from posbias.core.theta.joint import LARGEST
from posbias.core.theta.linkage import Linkage

NOTABLE = 0.05
"""Relative difference between the two estimates that is worth a warning."""


@dataclass(frozen=True)
class JointComparison:
    """Joint EM against the conditional estimate."""

    log_ratio: Floats  # shape (K,), D, each estimate relative to the cell's reference; NaN where not identified
    std_error: Floats  # shape (K,), of D; NaN where there is none, 0 at the reference
    test: ContrastTest  # of all D at once
    converged: bool  # whether both estimates did; else no bias is claimed

    @property
    def biased_cells(self) -> Integers:
        """The cells in which joint EM is off by more than 5 %, beyond chance."""
        notable = np.abs(np.expm1(self.log_ratio)) > NOTABLE
        return np.flatnonzero(notable & (self.test.p_values < LEVEL) & self.converged)

    @property
    def biased(self) -> bool:
        """Whether joint EM is biased on this log."""
        return len(self.biased_cells) > 0

    @property
    def largest_difference(self) -> float:
        """The largest |exp D - 1| over the biased cells, or over all cells that are compared; NaN without any."""
        compared = self.biased_cells if self.biased else np.flatnonzero(np.isfinite(self.test.p_values))
        return float(np.abs(np.expm1(self.log_ratio[compared])).max()) if len(compared) else np.nan


def compare_with_joint(conditional: FittedStrata, joint: FittedJointly) -> JointComparison:
    """Compare the two estimates from the same pairs, or strata that share one attractiveness.

    Args:
        conditional: the conditional estimate. Its members are all pairs with a click and two cells at least, and others
            at will: the scores of those that are not among them, which only a prior makes differ from 0, count as
            clusters of their own.
        joint: joint EM on the same counts, run to convergence.
    """
    scored = _scored_joint(joint, conditional.strata, conditional.fit.linkage)
    log_ratio = scored.log_theta - conditional.fit.log_theta
    std_error, correlation = difference_errors(conditional.scored(), scored)
    test = contrast_test(log_ratio, std_error, conditional.errors.degrees, correlation=correlation)
    return JointComparison(log_ratio, std_error, test, converged=conditional.fit.converged and joint.fit.converged)


def _scored_joint(joint: FittedJointly, strata: Strata, linkage: Linkage) -> ScoredEstimate:
    table, members = strata.signatures, strata.members
    log_theta = np.log(np.where(linkage.identified, joint.fit.examination, 1.0))  # 0 without prior and clicks
    score, information = joint_slopes(joint, table)
    others = table.multiplicity - np.bincount(members.unit, minlength=table.n_units)
    alone = np.flatnonzero(others > 1 / 2)
    first = int(members.cluster.max(initial=-1)) + 1
    each = Members(
        np.concatenate([members.unit, alone]), np.concatenate([members.cluster, first + np.arange(len(alone))])
    )
    clusters, scores = sum_by_cluster(table, score, each)
    copies = np.concatenate([np.ones(len(clusters) - len(alone)), others[alone]])
    scores.data *= np.repeat(np.sqrt(copies), np.diff(scores.indptr))
    # Without a prior the information says nothing about the common scale of theta, which drops out of every ratio.
    inverse = pseudo_inverse(information)
    return ScoredEstimate(
        log_theta=np.where(linkage.identified, log_theta - log_theta[linkage.reference_of], np.nan),
        std_error=np.where(linkage.identified, 0.0, np.nan),
        degrees=np.full(table.n_cells, np.inf),
        clusters=clusters,
        scores=scores,
        response=inverse - inverse[linkage.reference_of],
    )


def joint_slopes(joint: FittedJointly, table: CountTable) -> tuple[Floats, Floats]:
    """The score of each entry of one copy of its unit, u, shape (R,), and the information I, shape (K, K).

    Both in terms of log theta, with every gamma at its optimum. A theta or gamma held at its upper bound does not move:
    such a gamma takes nothing away from I, and such a theta has no row in it.
    """
    theta, gamma = joint.fit.examination, joint.fit.attractiveness
    mu = table.spread(gamma) * theta[table.cell]
    score = (table.clicks - table.impressions * mu) / (1 - mu)
    value = (table.impressions - table.clicks) * mu / (1 - mu) ** 2
    curvature = table.sum_by_unit(value) + _curvature(joint.options.attractiveness_prior, gamma)
    lost = np.divide(table.multiplicity, curvature, out=np.zeros_like(curvature), where=curvature > 0)
    lost[gamma >= LARGEST] = 0.0
    information = np.diag(table.sum_by_cell(table.spread(table.multiplicity) * value))
    information += np.diag(_curvature(joint.options.examination_prior, theta))
    information -= gram(by_unit_and_cell(table, value * table.spread(np.sqrt(lost))))
    held = theta >= LARGEST
    information[held, :] = 0.0
    information[:, held] = 0.0
    return score, information


def _curvature(prior: BetaPrior, probability: Floats) -> Floats:
    """Minus the second derivative of the prior's logarithm in log x, s (1 - v) x / (1 - x)^2."""
    return prior.pseudo_skips * probability / (1 - probability) ** 2
