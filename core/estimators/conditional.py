"""Conditional estimation: theta without gamma. Consistent on sparse logs, with errors clustered by query."""

from collections.abc import Callable

from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import Estimate, EstimationOptions, conditional_estimate, linkage_of
from posbias.core.estimators.estimator import Estimator
from posbias.core.standard_errors.cluster import cluster_errors
from posbias.core.standard_errors.contrasts import FittedStrata
from posbias.core.theta.conditional import fit_conditional


class ConditionalEstimator(Estimator):
    """Fixed-effects Poisson by Newton, CR3 errors over queries."""

    name = "conditional"
    reference = "Hausman, Hall & Griliches 1984; Wooldridge 1999; Bell & McCaffrey 2002"
    takes = ("cluster", "bootstrap", "shape", "shrink", "max_iterations", "tolerance")
    clusters = ("query", "pair", "session", "column", "two-way")

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        on_iteration: Callable[[str], None],
    ) -> Estimate:
        """Estimate theta on the cells that the log can compare with the reference."""
        fit = fit_conditional(
            strata.signatures,
            linkage_of(statistics, strata, options),
            on_iteration=lambda number, change: on_iteration(f"Newton {number}: {change:.1e}"),
            **options.limits,
        )
        behind = FittedStrata(strata, fit, cluster_errors(fit, strata))
        return conditional_estimate(self.name, behind, strata.signatures, "query")
