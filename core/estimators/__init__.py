"""Ways to get theta: each returns the same estimate from the same statistics.

An estimator is one file that declares its name, reference and needs, and registers itself here.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import Protocol

from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.errors import UsageError
from posbias.core.estimators.adjacent_chain import AdjacentChainEstimator
from posbias.core.estimators.allpairs import AllPairsEstimator
from posbias.core.estimators.conditional import ConditionalEstimator
from posbias.core.estimators.ctr import ClickRateEstimator
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.estimators.joint import JointEstimator
from posbias.core.estimators.randomized import RandomizedEstimator
from posbias.core.registry import choose
from posbias.core.schema import PREVIOUS_CLICK
from posbias.core.standard_errors.bootstrap import FEWEST_REPLICATES

__all__ = [
    "ConditionalEstimator",
    "Estimate",
    "EstimationOptions",
    "Estimator",
    "JointEstimator",
    "check_method",
    "estimator_names",
    "get_estimator",
    "methods_that_take",
]


class Estimator(Protocol):
    """A way to get theta."""

    @property
    def name(self) -> str:
        """The name on the command line."""
        ...

    @property
    def reference(self) -> str:
        """The paper that it is from."""
        ...

    @property
    def takes(self) -> tuple[str, ...]:
        """Which of the options that are not for all methods it knows."""
        ...

    @property
    def uses_strata(self) -> bool:
        """Whether it asks what shares one attractiveness, so that days and strata matter."""
        ...

    def check(self, plan: StatisticsPlan, options: EstimationOptions) -> None:
        """Raise a UsageError if it cannot serve such a plan."""
        ...

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        on_iteration: Callable[[str], None],
    ) -> Estimate:
        """Estimate theta per cell."""
        ...


MOST_REPLICATES = 10_000
"""Of a bootstrap: the ends of an interval are then known to a hundredth of its width."""

_OTHER_ESTIMATE = ("cluster", "bootstrap", "shape")
"""Options not for all methods without which the estimate is not the one that was asked for."""

_ESTIMATORS: dict[str, Estimator] = {
    estimator.name: estimator
    for estimator in (
        ConditionalEstimator(),
        JointEstimator(),
        AllPairsEstimator(),
        AdjacentChainEstimator(),
        RandomizedEstimator(),
        ClickRateEstimator(),
    )
}


def estimator_names() -> list[str]:
    """The registered estimators, in the order in which help shows them."""
    return list(_ESTIMATORS)


def methods_that_take(option: str) -> list[str]:
    """The estimators that know an option that is not for all."""
    return [name for name, estimator in _ESTIMATORS.items() if option in estimator.takes]


def check_method(name: str, plan: StatisticsPlan, options: EstimationOptions) -> None:
    """Find out, before anything is read, whether a method can do what is asked.

    Raises:
        UsageError: there is no such method, or it cannot.
    """
    estimator = get_estimator(name)
    for option in fields(EstimationOptions):
        asked = getattr(options, option.name)
        if option.name in _OTHER_ESTIMATE and asked != option.default and option.name not in estimator.takes:
            able = ", ".join(methods_that_take(option.name))
            raise UsageError(f"--{option.name} {asked}: --method {name} does not know it. Methods that do: {able}.")
    if options.shape != "free" and PREVIOUS_CLICK in plan.cell_columns:
        raise UsageError(
            f"--shape {options.shape}: a shape over positions says nothing about the previous click of the UBM. "
            "Use --model pbm, or leave the shape free."
        )
    if options.shape != "free" and (options.cluster != "query" or options.bootstrap):
        given = "--bootstrap" if options.bootstrap else "--cluster"
        raise UsageError(f"--shape {options.shape}: its errors are those by query. Leave out {given}.")
    if options.cluster == "session" and name != ConditionalEstimator.name:
        raise UsageError(f"--cluster session: only --method {ConditionalEstimator.name} knows it.")
    if options.bootstrap and options.cluster != "query":
        raise UsageError(f"--bootstrap: it draws queries, not {options.cluster}s. Leave out --cluster.")
    if options.bootstrap and not FEWEST_REPLICATES <= options.bootstrap <= MOST_REPLICATES:
        raise UsageError(
            f"--bootstrap {options.bootstrap}: at least {FEWEST_REPLICATES} replicates make an interval, and more than "
            f"{MOST_REPLICATES:,} make it no better."
        )
    estimator.check(plan, options)


def get_estimator(name: str) -> Estimator:
    """The estimator of that name.

    Raises:
        UsageError: there is none.
    """
    return choose("--method", name, _ESTIMATORS)
