"""Conditional estimation: theta without gamma. Consistent on sparse logs, with errors clustered by query."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import (
    Estimate,
    EstimationOptions,
    linkage_of,
    relative_to_largest,
    rounded,
)
from posbias.core.standard_errors.cluster import cluster_errors
from posbias.core.standard_errors.contrasts import FittedStrata
from posbias.core.theta.conditional import fit_conditional, upper_limits_without_clicks


@dataclass(frozen=True)
class ConditionalEstimator:
    """Fixed-effects Poisson by Newton, CR3 errors over queries."""

    name: str = "conditional"
    reference: str = "Hausman, Hall & Griliches 1984; Wooldridge 1999; Bell & McCaffrey 2002"
    takes: tuple[str, ...] = ("cluster", "bootstrap", "shape", "max_iterations", "tolerance")
    uses_strata: bool = True

    def check(self, plan: StatisticsPlan, options: EstimationOptions) -> None:
        """It needs nothing special."""

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        on_iteration: Callable[[str], None],
    ) -> Estimate:
        """Estimate theta on the cells that the log can compare with the reference.

        Raises:
            IdentifiabilityError: nothing links two cells.
            UsageError: there is no such reference cell.
        """
        linkage = linkage_of(statistics, strata, options)
        limits: dict[str, Any] = {"max_iterations": options.max_iterations, "tolerance": options.tolerance}
        fit = fit_conditional(
            strata.signatures,
            linkage,
            on_iteration=lambda number, change: on_iteration(f"Newton {number}: {change:.1e}"),
            **{name: value for name, value in limits.items() if value is not None},
        )
        errors = cluster_errors(fit, strata)
        upper = upper_limits_without_clicks(fit, strata.signatures)
        reason = tuple(unlinked or alone for unlinked, alone in zip(linkage.reason, errors.reason, strict=True))
        return Estimate(
            method=self.name,
            linkage=linkage,
            propensity=fit.theta,
            examination=relative_to_largest(fit.theta, linkage),
            intervals=replace(errors, high=np.where(np.isnan(upper), errors.high, upper), reason=reason),
            converged=fit.converged,
            iterations=fit.iterations,
            fitted=FittedStrata(strata, fit, errors),
            details={
                "log_likelihood": fit.objective,
                "errors_by": "query",
                "clusters": errors.n_clusters,
                "effective_clusters": rounded(errors.effective_clusters),
            },
        )
