"""Why joint EM is biased on a log: its prior, or sparsity.

EM is run twice more beside the prior that it has: without any, where what is left is sparsity (Neyman & Scott 1948),
and with the prior of attractiveness that the log itself says. Both start from the conditional estimate and stop when
their bias is known to about a percent of itself; of a large log they take a sample of the pairs, and are compared with
the conditional estimate of the same sample.
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers
from posbias.core.attractiveness.prior import AttractivenessPrior, sample_units, shown_position
from posbias.core.errors import IdentifiabilityError
from posbias.core.priors import BetaPrior
from posbias.core.theta.conditional import ConditionalFit, fit_conditional
from posbias.core.theta.joint import EMOptions, fit_joint
from posbias.core.theta.linkage import find_linkage

LARGEST_SAMPLE = 100_000
"""Pairs at most from which the causes are told: the bias is then known to one or two percent of theta."""

NO_PRIOR = BetaPrior(0.5, 0.0)

_TOLERANCE = 1e-4
_HIGHEST = 1 - 1e-3  # of theta where EM starts: at 1 it would stay


@dataclass(frozen=True)
class JointCauses:
    """Joint EM under other priors, against the conditional estimate."""

    without_prior: Floats  # shape (K,), log of EM's theta without a prior over the conditional one; NaN where unknown
    with_estimated: Floats  # shape (K,), the same with the prior estimated from the log
    estimated: BetaPrior  # that prior

    def largest_without_prior(self, cells: Flags) -> float:
        """The largest relative difference without a prior over the given cells, NaN without any."""
        known = self.without_prior[cells][np.isfinite(self.without_prior[cells])]
        return float(np.abs(np.expm1(known)).max()) if len(known) else np.nan


def find_causes(
    conditional: ConditionalFit, table: CountTable, prior: AttractivenessPrior, position_of_cell: Integers
) -> JointCauses | None:
    """Run joint EM without a prior and with the estimated one.

    Args:
        conditional: the conditional estimate.
        table: the counts that it is from.
        prior: of attractiveness by position, as the log says it; EM knows one for all.
        position_of_cell: shape (K,), 1-based.

    Returns:
        The two comparisons, or None where a sample of the log compares nothing.
    """
    units, copies = sample_units(table.multiplicity, LARGEST_SAMPLE)
    fit = conditional
    if copies.sum() < table.multiplicity.sum():
        table = replace(table.take(units), multiplicity=copies)
        try:
            linkage = find_linkage(table, fit.linkage.reference_of, fit.linkage.references)
        except IdentifiabilityError:
            return None
        fit = fit_conditional(table, linkage)
    estimated = pooled_prior(prior, shown_position(table, position_of_cell), table)
    linking = table.take(np.flatnonzero(table.links))  # without a prior all others fit any theta
    return JointCauses(
        without_prior=_against(fit, linking, EMOptions(NO_PRIOR, NO_PRIOR, tolerance=_TOLERANCE)),
        with_estimated=_against(fit, table, EMOptions(attractiveness_prior=estimated, tolerance=_TOLERANCE)),
        estimated=estimated,
    )


def pooled_prior(prior: AttractivenessPrior, position: Integers, table: CountTable) -> BetaPrior:
    """One Beta prior with the mean and the variance of all units together, given the position of each."""
    means, copies = prior.mean_at(position), table.multiplicity
    mean = float(np.average(means, weights=copies))
    variance = float(np.average(means * (1 - means) / (prior.strength + 1) + (means - mean) ** 2, weights=copies))
    return BetaPrior(mean, mean * (1 - mean) / variance - 1)


def _against(fit: ConditionalFit, table: CountTable, options: EMOptions) -> Floats:
    """Log of EM's theta over the conditional one, each relative to the cell's reference."""
    known = fit.linkage.identified
    theta = np.where(known, np.nan_to_num(fit.theta), 0.0)
    start = np.where(known, theta * (_HIGHEST / theta.max()), _HIGHEST / 2)
    joint = np.log(np.where(known, fit_joint(table, options, start=start).examination, 1.0))
    return np.where(known, joint - joint[fit.linkage.reference_of] - fit.log_theta, np.nan)
