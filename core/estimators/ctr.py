"""The naive click rate: what people often take for a propensity. For comparison only, so it reports no errors."""

from collections.abc import Callable

import numpy as np

from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import Estimate, EstimationOptions, linkage_of_clicks, relative_to_largest
from posbias.core.estimators.estimator import Estimator
from posbias.core.standard_errors.intervals import Intervals


class ClickRateEstimator(Estimator):
    """theta_e / theta_ref = click rate in e / click rate in the reference: right only if documents stand at random."""

    name = "ctr"
    reference = "Craswell et al. 2008 (the baseline)"
    uses_strata = False

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,  # noqa: ARG002 - every estimator takes the same
        options: EstimationOptions,
        on_iteration: Callable[[str], None],  # noqa: ARG002
    ) -> Estimate:
        """Click rates relative to that of the reference, the first cell with a click."""
        impressions, clicks = statistics.cell_totals
        linkage = linkage_of_clicks(statistics, options)
        rate = np.where(linkage.identified, clicks / impressions, np.nan)
        propensity = rate / rate[linkage.reference_of]
        return Estimate(
            method=self.name,
            linkage=linkage,
            propensity=propensity,
            examination=relative_to_largest(propensity, linkage),
            intervals=Intervals.unknown(linkage.reason),
            converged=True,
            iterations=0,
        )
