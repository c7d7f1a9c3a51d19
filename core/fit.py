"""From evidence to a fit: theta, what textbook EM says beside it, and attractiveness."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from posbias.core.attractiveness import posterior
from posbias.core.errors import UsageError
from posbias.core.estimators import Estimate, EstimationOptions, JointEstimator, get_estimator
from posbias.core.evidence import SIGNATURE, Evidence
from posbias.core.propensities import propensity_table
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, QUERY
from posbias.core.signatures import Floats, Integers

LARGEST_COMPARISON = 200_000
"""Signatures up to which joint EM runs beside the chosen method without being asked."""

WANTED_CLICK_SHARE = 0.99
"""Share of the clicks that identified cells must cover for a result that needs no caution."""


@dataclass(frozen=True)
class Fit:
    """What a fit found.

    Attributes:
        estimate: theta per cell, with errors.
        propensities: the propensity table.
        joint: textbook EM, where it ran.
        attractiveness: posterior mean of gamma per pair signature.
        std_dev: its standard deviation, nan where the method has none.
        click_share: share of the clicks that lie in identified cells.
        unchecked: whether all iterations were asked for, so that convergence was not looked at.
    """

    estimate: Estimate
    propensities: pl.DataFrame
    joint: Estimate | None
    attractiveness: Floats
    std_dev: Floats
    click_share: float
    unchecked: bool

    @property
    def converged(self) -> bool:
        """Whether the chosen estimate converged."""
        return self.estimate.converged

    def attractiveness_rows(self, pairs: pl.DataFrame, signature_of_part: Integers) -> pl.DataFrame:
        """Attractiveness of each pair of a part.

        Returns:
            `query`, `doc`, `impressions`, `clicks`, `attractiveness`, `std_dev`, in the order of the pairs.
        """
        signature = signature_of_part[pairs[SIGNATURE].to_numpy()]
        return pairs.select(QUERY, DOC, IMPRESSIONS, CLICKS).with_columns(
            pl.Series("attractiveness", self.attractiveness[signature]),
            pl.Series("std_dev", self.std_dev[signature], nan_to_null=True),
        )

    def summary(self) -> dict[str, Any]:
        """What the manifest says about the fit."""
        joint = self.joint
        return {
            **self.estimate.summary(),
            "click_share_identified": self.click_share,
            "joint": None if joint is None else joint.summary(),
        }


def fit_evidence(
    evidence: Evidence,
    method: str,
    options: EstimationOptions,
    *,
    compare: bool | None,
    weighted: bool,
    on_iteration: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Estimate theta by the chosen method, run joint EM beside it, then attractiveness given theta.

    Args:
        evidence: the compressed log.
        method: the name of an estimator.
        options: priors and stopping rules.
        compare: whether joint EM runs beside it; None: if there are at most `LARGEST_COMPARISON` signatures.
        weighted: whether counts are sums of weights.
        on_iteration: is told how the estimation proceeds.

    Raises:
        IdentifiabilityError: nothing links two cells.
        UsageError: the method cannot do what was asked.
    """
    if method == JointEstimator.name and evidence.has_strata:
        raise UsageError("--method joint knows no strata: leave out --stratify and --period, or choose another method.")
    estimate = get_estimator(method).estimate(evidence, options, on_iteration)
    joint = estimate if method == JointEstimator.name else None
    if joint is None and (compare if compare is not None else evidence.pair_signatures.n_units <= LARGEST_COMPARISON):
        own_rules = replace(options, max_iterations=None, tolerance=None)
        joint = JointEstimator().estimate_like(evidence, own_rules, estimate.linkage, on_iteration)
    if estimate.attractiveness is not None:
        mean, std_dev = estimate.attractiveness, np.full(len(estimate.attractiveness), np.nan)
    else:
        mean, std_dev = posterior(evidence.pair_signatures, estimate.examination, options.attractiveness_prior)
    _, clicks = evidence.cell_totals()
    return Fit(
        estimate=estimate,
        propensities=propensity_table(
            evidence, estimate, None if joint is None else joint.propensity, weighted=weighted
        ),
        joint=joint,
        attractiveness=mean,
        std_dev=std_dev,
        click_share=float(clicks[estimate.linkage.identified].sum() / clicks.sum()),
        unchecked=options.tolerance == 0,
    )
