"""AllPairs intervention harvesting: click rates of documents that were shown in two cells, all pairs at once."""

from collections.abc import Callable

from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import Estimate, EstimationOptions, clustered, linkage_of
from posbias.core.estimators.estimator import Estimator
from posbias.core.estimators.harvesting import harvest_allpairs


class AllPairsEstimator(Estimator):
    """Maximum of the weighted likelihood of all interventional sets, errors clustered by query."""

    name = "allpairs"
    reference = "Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019 (WSDM)"
    takes = ("cluster",)

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        on_iteration: Callable[[str], None],
    ) -> Estimate:
        """Estimate theta on the cells that the log can compare with the reference."""
        linkage = linkage_of(statistics, strata, options)
        harvested = harvest_allpairs(
            clustered(strata, options),
            linkage,
            on_iteration=lambda number, change: on_iteration(f"AllPairs {number}: {change:.1e}"),
        )
        return harvested.estimate(self.name, linkage, options)
