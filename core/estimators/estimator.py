"""What an estimator says of itself."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.estimators.estimate import Cluster, Estimate, EstimationOptions
from posbias.core.registry import Plugin


class Estimator(Plugin):
    """A way to get theta.

    Attributes:
        reference: the paper that it is from.
        takes: which of the `EstimationOptions` that are not for all methods it knows.
        clusters: by what its errors may be clustered, if it knows the option `cluster`.
        uses_strata: whether it asks what shares one attractiveness, so that days and strata matter.
    """

    reference: ClassVar[str]
    takes: ClassVar[tuple[str, ...]] = ()
    clusters: ClassVar[tuple[Cluster, ...]] = ("query", "pair")
    uses_strata: ClassVar[bool] = True

    def check(self, plan: StatisticsPlan, options: EstimationOptions) -> None:
        """Raise a UsageError if it cannot serve such a plan."""

    @abstractmethod
    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        on_iteration: Callable[[str], None],
    ) -> Estimate:
        """Estimate theta per cell.

        Args:
            statistics: the counts of the whole log.
            strata: the counts by what shares one attractiveness.
            options: what is asked.
            on_iteration: is told how far it is.

        Raises:
            IdentifiabilityError: nothing can be compared.
            UsageError: there is no such reference cell.
        """
