"""Ways to get theta: each returns the same estimate from the same evidence.

An estimator is one file that declares its name, reference and options, and registers itself here.
"""

from collections.abc import Callable
from typing import Protocol

from posbias.core.estimators.conditional import ConditionalEstimator
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.estimators.joint import JointEstimator
from posbias.core.evidence import Evidence
from posbias.core.registry import choose

__all__ = ["Estimate", "EstimationOptions", "Estimator", "JointEstimator", "get_estimator"]


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

    def estimate(self, evidence: Evidence, options: EstimationOptions, on_iteration: Callable[[str], None]) -> Estimate:
        """Estimate theta per cell."""
        ...


_ESTIMATORS: dict[str, Estimator] = {
    estimator.name: estimator for estimator in (ConditionalEstimator(), JointEstimator())
}


def get_estimator(name: str) -> Estimator:
    """The estimator of that name.

    Raises:
        UsageError: there is none.
    """
    return choose("--method", name, _ESTIMATORS)
