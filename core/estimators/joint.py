"""Joint EM: theta and gamma together, the textbook algorithm. Inconsistent on sparse logs, so it reports no errors."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from posbias.core.em import EMOptions, fit_joint
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.evidence import Evidence
from posbias.core.linkage import Linkage, find_linkage


@dataclass(frozen=True)
class JointEstimator:
    """EM with Bayesian averaging, accelerated by SQUAREM unless asked otherwise."""

    name: str = "joint"
    reference: str = "Dempster et al. 1977; Chuklin, Markov & de Rijke 2015; Varadhan & Roland 2008"

    def estimate(self, evidence: Evidence, options: EstimationOptions, on_iteration: Callable[[str], None]) -> Estimate:
        """Estimate theta and gamma; cells that the log cannot compare get none.

        Raises:
            IdentifiabilityError: nothing links two cells.
        """
        return self.estimate_like(evidence, options, find_linkage(evidence.strata_signatures), on_iteration)

    def estimate_like(
        self,
        evidence: Evidence,
        options: EstimationOptions,
        linkage: Linkage,
        on_iteration: Callable[[str], None],
    ) -> Estimate:
        """Estimate relative to a reference that is already chosen, to stand beside another estimate."""
        em_options = EMOptions(
            examination_prior=options.examination_prior,
            attractiveness_prior=options.attractiveness_prior,
            accelerate=options.accelerate,
        )
        if options.max_iterations is not None:
            em_options = replace(em_options, max_iterations=options.max_iterations)
        if options.tolerance is not None:
            em_options = replace(em_options, tolerance=options.tolerance)
        fit = fit_joint(
            evidence.pair_signatures,
            em_options,
            on_iteration=lambda number, change: on_iteration(f"joint EM {number}: {change:.1e}"),
        )
        known = np.where(linkage.identified, fit.examination, np.nan)
        nothing = np.full(evidence.n_cells, np.nan)
        return Estimate(
            method=self.name,
            linkage=linkage,
            propensity=known / fit.examination[linkage.reference_of],
            examination=known,
            std_error=nothing,
            ci_low=nothing,
            ci_high=nothing,
            effective_clusters=nothing,
            reason=linkage.reason,
            converged=fit.converged,
            iterations=fit.iterations,
            attractiveness=fit.attractiveness,
        )
