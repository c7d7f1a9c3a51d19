"""AllPairs intervention harvesting: click rates of documents that were shown in two cells, all pairs at once."""

from collections.abc import Callable
from dataclasses import dataclass

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import Estimate, EstimationOptions, clustered, from_harvest, linkage_of
from posbias.core.estimators.harvesting import harvest_allpairs


@dataclass(frozen=True)
class AllPairsEstimator:
    """Maximum of the weighted likelihood of all interventional sets, errors clustered by query."""

    name: str = "allpairs"
    reference: str = "Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019 (WSDM)"
    takes: tuple[str, ...] = ("cluster",)
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
        found = harvest_allpairs(
            clustered(strata, options),
            linkage,
            on_iteration=lambda number, change: on_iteration(f"AllPairs {number}: {change:.1e}"),
        )
        return from_harvest(self.name, linkage, found, options)
