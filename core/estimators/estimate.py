"""What every estimator takes and returns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from posbias.core.linkage import Linkage
from posbias.core.priors import BetaPrior
from posbias.core.signatures import Floats


@dataclass(frozen=True)
class EstimationOptions:
    """Priors and stopping rules; None leaves the choice to the estimator.

    Attributes:
        attractiveness_prior: Beta prior of gamma.
        examination_prior: Beta prior of theta, in joint EM.
        max_iterations: stop after so many, converged or not.
        tolerance: relative change at which an estimate has converged; 0 runs all iterations.
        accelerate: whether joint EM is accelerated.
    """

    attractiveness_prior: BetaPrior = BetaPrior(0.5, 2.0)
    examination_prior: BetaPrior = BetaPrior(0.5, 2.0)
    max_iterations: int | None = None
    tolerance: float | None = None
    accelerate: bool = True


@dataclass(frozen=True)
class Estimate:
    """Theta per cell, each array of shape (K,), nan where nothing is known.

    Attributes:
        method: the estimator's name.
        linkage: which cells are identified, and by what.
        propensity: theta relative to the reference cell = 1; above 1 where a slot is seen more.
        examination: on the probability scale, in [0, 1].
        std_error: of log propensity.
        ci_low: lower end of the 95 % interval of the propensity.
        ci_high: upper end; the upper limit alone where a cell has no clicks.
        effective_clusters: G*, the number of equal queries that the errors are worth; nan without errors.
        reason: why a cell has no propensity or no interval, else None.
        converged: whether the iterations converged.
        iterations: how many there were.
        attractiveness: gamma per pair signature where the method estimates it with theta, else None.
        details: further figures for the manifest.
    """

    method: str
    linkage: Linkage
    propensity: Floats
    examination: Floats
    std_error: Floats
    ci_low: Floats
    ci_high: Floats
    effective_clusters: Floats
    reason: Sequence[str | None]
    converged: bool
    iterations: int
    attractiveness: Floats | None = None
    details: dict[str, Any] = field(default_factory=dict[str, Any])

    def summary(self) -> dict[str, Any]:
        """What the manifest says about the estimate."""
        return {
            "method": self.method,
            "converged": self.converged,
            "iterations": self.iterations,
            "cells": len(self.propensity),
            "cells_identified": int(self.linkage.identified.sum()),
            **self.details,
        }
