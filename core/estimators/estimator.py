"""What a method says of itself: an estimator, which works on counts, or one that needs every impression's features."""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

from posbias.core.choices import Cluster
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.errors import UsageError
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.registry import Plugin


class Method(Plugin):
    """A way to get theta, as `--method` names it."""

    reference: ClassVar[str]  # the paper that it is from
    takes: ClassVar[tuple[str, ...]] = ()  # which of the `EstimationOptions` that are not for all methods it knows
    clusters: ClassVar[tuple[Cluster, ...]] = ("query", "pair")  # where it takes `cluster`, the usual one first
    uses_strata: ClassVar[bool] = True  # whether days and strata, which share one attractiveness, matter

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError if it cannot serve such a plan."""


class Estimator(Method):
    """A method that works on sufficient statistics."""

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


class MethodOfRows(Method):
    """A method that needs the features of every impression: `core.exposure` estimates by it."""

    clusters = ("session", "query")
    uses_strata = False

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError if rows cannot be read so, or examination depends on more than the position."""
        if plan.model.beside_position:
            raise UsageError(
                f"--method {self.name}: only with --model pbm; what is clicked above a document depends on it, so that "
                f"features cannot stand for its exposure below a click ({plan.model.beside_position})."
            )
        if plan.summed:
            raise UsageError(f"--method {self.name}: needs a row for each impression, and --impressions adds them up.")
