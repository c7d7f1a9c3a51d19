"""Conditional estimation: theta without gamma. Consistent on sparse logs, with errors clustered by query."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias.core.cluster_errors import cluster_errors
from posbias.core.conditional import fit_conditional, upper_limits_without_clicks
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.evidence import Evidence
from posbias.core.linkage import find_linkage


@dataclass(frozen=True)
class ConditionalEstimator:
    """Fixed-effects Poisson by Newton, CR3 errors over queries."""

    name: str = "conditional"
    reference: str = "Hausman, Hall & Griliches 1984; Wooldridge 1999; Bell & McCaffrey 2002"

    def estimate(self, evidence: Evidence, options: EstimationOptions, on_iteration: Callable[[str], None]) -> Estimate:
        """Estimate theta on the cells that the log can compare with the reference.

        Raises:
            IdentifiabilityError: nothing links two cells.
        """
        table = evidence.strata_signatures
        linkage = find_linkage(table)
        limits: dict[str, Any] = {"max_iterations": options.max_iterations, "tolerance": options.tolerance}
        fit = fit_conditional(
            table,
            linkage,
            on_iteration=lambda number, change: on_iteration(f"Newton {number}: {change:.1e}"),
            **{name: value for name, value in limits.items() if value is not None},
        )
        errors = cluster_errors(fit, table, linkage, evidence.member_signature, evidence.member_query)
        upper = upper_limits_without_clicks(fit, table, linkage)
        return Estimate(
            method=self.name,
            linkage=linkage,
            propensity=fit.theta,
            examination=fit.theta / np.nanmax(fit.theta),
            std_error=errors.std_error,
            ci_low=errors.low,
            ci_high=np.where(np.isnan(upper), errors.high, upper),
            effective_clusters=errors.effective_clusters,
            reason=tuple(unlinked or alone for unlinked, alone in zip(linkage.reason, errors.reason, strict=True)),
            converged=fit.converged,
            iterations=fit.iterations,
            details={
                "log_likelihood": fit.objective,
                "clusters": errors.n_clusters,
                "effective_clusters": _rounded(errors.effective_clusters),
            },
        )


def _rounded(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[float | None]:
    """To a tenth, for the manifest, null where there is no number."""
    return [None if np.isnan(value) else round(float(value), 1) for value in values]
