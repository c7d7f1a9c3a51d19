"""Result randomisation: click rates of impressions whose document was placed at random."""

from collections.abc import Callable
from dataclasses import replace

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators.conditional import ConditionalEstimator
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.estimators.estimator import Estimator
from posbias.core.estimators.placement_test import check_placements


class RandomizedEstimator(Estimator):
    """Click-rate ratios within each query and experiment.

    Where documents are placed at random among positions, the mean attractiveness at each of these positions is the
    same, alpha_gq, within a query q and an experiment g (whole pages shuffled, or two positions swapped):

        E[c_gqe] = n_gqe theta_e alpha_gq

    This is the conditional model with (q, g) in place of a pair. On pages of equal length its estimate is the ratio of
    click rates; on others it compares positions within queries only, so that short pages do not bias it. Swap
    experiments of several pairs of positions are chained by maximum likelihood.
    """

    name = "randomized"
    reference = "Wang et al. 2016 (SIGIR); Joachims, Swaminathan & Schnabel 2017 (swap experiments)"
    takes = ("cluster", "bootstrap", "shape", "shrink", "max_iterations", "tolerance")
    uses_strata = False

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError where no randomised rows are named, or clicks matter, which no randomisation controls."""
        if plan.model.beside_position:
            raise UsageError(f"--method randomized: {plan.model.beside_position} is not randomised. Use --model pbm.")
        if not plan.randomized:
            raise UsageError(
                "--method randomized: say which rows were logged under randomisation, for example "
                "--randomized-where policy=random (with statistics: when they are collected)."
            )

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,  # noqa: ARG002 - every estimator takes the same
        options: EstimationOptions,
        on_iteration: Callable[[str], None],
    ) -> Estimate:
        """Estimate theta from the randomised rows alone.

        Raises:
            IdentifiabilityError: no row is marked as randomised, they were not placed at random, or they compare no
                two positions.
        """
        rows = f"{' or '.join(map(str, statistics.plan.randomized))} (--randomized-where)"
        if not statistics.randomized.signatures.n_units:
            raise IdentifiabilityError(f"no row has {rows}, so there is nothing to estimate from.")
        check_placements(statistics)
        try:
            estimate = ConditionalEstimator().estimate(statistics, statistics.randomized, options, on_iteration)
        except IdentifiabilityError as error:
            raise IdentifiabilityError(f"Of the rows with {rows}: {error}") from error
        return replace(estimate, method=self.name)
