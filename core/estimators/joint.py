"""Joint EM: theta and gamma together, the textbook algorithm. Inconsistent on sparse logs, so it reports no errors."""

from collections.abc import Callable

import numpy as np

from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import Estimate, EstimationOptions, FittedJointly, linkage_of
from posbias.core.estimators.estimator import Estimator
from posbias.core.standard_errors.intervals import Intervals
from posbias.core.theta.joint import EMOptions, fit_joint
from posbias.core.theta.linkage import Linkage


class JointEstimator(Estimator):
    """EM with Bayesian averaging, accelerated by SQUAREM unless asked otherwise."""

    name = "joint"
    reference = "Dempster et al. 1977; Chuklin, Markov & de Rijke 2015; Varadhan & Roland 2008"
    takes = ("max_iterations", "tolerance")

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        on_iteration: Callable[[str], None],
    ) -> Estimate:
        """Estimate theta and gamma; cells that the log cannot compare get none."""
        return self.estimate_like(statistics, strata, options, linkage_of(statistics, strata, options), on_iteration)

    def estimate_like(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        linkage: Linkage,
        on_iteration: Callable[[str], None],
    ) -> Estimate:
        """Estimate relative to references that are already chosen, to stand beside another estimate."""
        given = options.limits
        if options.attractiveness_prior is not None:
            given["attractiveness_prior"] = options.attractiveness_prior
        em_options = EMOptions(examination_prior=options.examination_prior, accelerate=options.accelerate, **given)
        fit = fit_joint(
            strata.signatures,
            em_options,
            on_iteration=lambda number, change: on_iteration(f"joint EM {number}: {change:.1e}"),
        )
        known = np.where(linkage.identified, fit.examination, np.nan)
        units_are_pairs = strata.signatures is statistics.pair_signatures
        return Estimate(
            method=self.name,
            linkage=linkage,
            propensity=known / fit.examination[linkage.reference_of],
            examination=known,
            intervals=Intervals.unknown(linkage.reason),
            converged=fit.converged,
            iterations=fit.iterations,
            attractiveness=fit.attractiveness if units_are_pairs else None,
            joint=FittedJointly(fit, em_options),
        )
