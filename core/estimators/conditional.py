"""Conditional estimation: theta without gamma. Consistent on sparse logs, with errors clustered by query."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import (
    Estimate,
    EstimationOptions,
    linkage_of,
    relative_to_largest,
)
from posbias.core.estimators.estimator import Estimator
from posbias.core.standard_errors.cluster import cluster_errors
from posbias.core.standard_errors.contrasts import FittedStrata
from posbias.core.theta.conditional import fit_conditional, upper_limits_without_clicks


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
            errors_by="query",
            n_clusters=errors.n_clusters,
        )
