"""Adjacent-chain intervention harvesting: ratios between neighbouring positions, multiplied from the reference on."""

from collections.abc import Callable

import numpy as np

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.errors import UsageError
from posbias.core.estimators.estimate import Estimate, EstimationOptions, clustered, linkage_of
from posbias.core.estimators.estimator import Estimator
from posbias.core.estimators.harvesting import harvest_adjacent_chain


class AdjacentChainEstimator(Estimator):
    """Product of the click-rate ratios of neighbours, with the jackknife's errors over queries."""

    name = "adjacent-chain"
    reference = "Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019 (WSDM)"
    takes = ("cluster",)

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError where a cell is more than a position: it needs cells in a row."""
        if plan.model.beside_position:
            raise UsageError(
                f"--method adjacent-chain: it goes from position to position, and cells that differ by "
                f"{plan.model.beside_position} do not lie in a row. Use --method allpairs, or --model pbm."
            )

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        on_iteration: Callable[[str], None],  # noqa: ARG002 - every estimator takes the same
    ) -> Estimate:
        """Estimate theta as far as the chain reaches."""
        linkage, context = linkage_of(statistics, strata, options), statistics.context_of_cell
        chains = [np.flatnonzero(context == number) for number in np.unique(context)]
        names = [f"position {position}" for position in statistics.position_of_cell]
        harvested = harvest_adjacent_chain(clustered(strata, options), linkage, chains, names)
        return harvested.estimate(self.name, linkage, options)
