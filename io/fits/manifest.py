"""What the manifest says about a fit: written from a `Fit`, and read again, as `StoredEstimate`, by who builds on it.

A test is one object from where it is made (`core`) to the sentence about it and the manifest; null stands for what is
no number.
"""

from collections.abc import Mapping
from itertools import pairwise
from math import isfinite
from typing import Annotated, Any, cast

import msgspec
import numpy as np
import polars as pl
from msgspec import UNSET, Meta, UnsetType

from posbias.core.arrays.count_table import Integers
from posbias.core.attractiveness.prior import AttractivenessPrior
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.estimators.estimate import Estimate
from posbias.core.fit.fit import Fit
from posbias.core.fit.from_rows import FromRows, PairsTest
from posbias.core.fit.joint_comparison import JointComparison
from posbias.core.fit.model_tests import ModelTests
from posbias.core.fit.period_words import why
from posbias.core.fit.periods import PeriodChoice, PeriodLook
from posbias.core.priors import LARGEST_STRENGTH
from posbias.core.standard_errors.contrasts import ContrastTest
from posbias.io.stores.manifest import Counted, Position, Probability

MOST_CELLS = 10_000
"""Of more cells, only the table of propensities says what is known, and not the manifest."""

Number = float | None
"""A number, or null where there is none."""

Cell = dict[str, Any]
"""A cell by the values of its columns."""

Strength = Annotated[float, Meta(ge=0, le=LARGEST_STRENGTH)]


class PriorSection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prior of attractiveness."""

    mean: Probability
    strength: Strength
    positions: tuple[Position, ...]
    means: tuple[Probability, ...]
    strengths: tuple[Strength, ...] = ()

    def __post_init__(self) -> None:
        """Find what is no mean, or no strength, by position."""
        if len(self.positions) != len(self.means) or any(b <= a for a, b in pairwise(self.positions)):
            raise ValueError("positions do not ascend, or are not as many as means")
        if self.strengths and len(self.strengths) != len(self.positions):
            raise ValueError("strengths are not as many as positions")

    @classmethod
    def of(cls, prior: AttractivenessPrior) -> "PriorSection":
        """A prior."""
        return cls(prior.mean, prior.strength, prior.positions, prior.means, prior.strengths)

    def prior(self) -> AttractivenessPrior:
        """As a prior."""
        return AttractivenessPrior(self.strength, self.mean, self.positions, self.means, self.strengths)


class _Look(msgspec.Struct, frozen=True):
    length: str
    propensity: list[Number] | None


class _Period(msgspec.Struct, frozen=True):
    used: str
    looks: tuple[_Look, ...] = ()


class _Tested(msgspec.Struct, frozen=True):
    p_value: float
    rejected: bool


class _Clicks(msgspec.Struct, frozen=True):
    observed: list[Number]
    expected: list[Number]


class StoredEstimate(msgspec.Struct, frozen=True):
    """As much as is read again of what the manifest says about a fit; what a method does not have is left out."""

    method: str
    converged: bool
    cells: int
    cells_identified: int
    click_share_identified: float
    references: list[Cell]
    comparable: list[list[Cell]]
    period: _Period
    attractiveness_prior: PriorSection
    query_spread: float
    clicks: _Clicks
    contexts_differ: _Tested | None
    model_tests: ModelTests | None
    shape: str | UnsetType = UNSET
    contexts_tau: float | UnsetType = UNSET
    contexts_found_by_four_of_five: list[Number] = []
    strata: float | UnsetType = UNSET
    errors_by: str | UnsetType = UNSET
    clusters: int = 0
    effective_clusters: list[Number] | UnsetType = UNSET


class FitManifest(msgspec.Struct, frozen=True):
    """What is read again of the manifest of a fit."""

    counted: Counted
    estimate: StoredEstimate


def fit_section(fit: Fit) -> dict[str, Any]:
    """What the manifest says about a fit."""
    statistics, linkage = fit.statistics, fit.estimate.linkage
    clusters = fit.estimate.n_clusters or None
    section: dict[str, Any] = {
        **_estimate(fit.estimate),
        **_assumed(fit),
        "references": _cells(statistics, linkage.references),
        "comparable": [_cells(statistics, cells) for cells in linkage.comparable()],
        "click_share_identified": fit.click_share,
        "period": period_section(fit.period),
        "attractiveness_prior": PriorSection.of(fit.prior),
        "query_spread": fit.theta_errors.query_spread,
        "clicks": {"observed": statistics.cell_totals[1], "expected": fit.expected_clicks},
        "shape_against_free": contrast_section(None if fit.shape is None else fit.shape.test, clusters),
        "bins_against_free": contrast_section(None if fit.bins is None else fit.bins.contrasts, clusters),
        "contexts_differ": contrast_section(fit.contexts, clusters),
        "position_effect": contrast_section(fit.position_effect, clusters),
        "previous_click": contrast_section(fit.previous_click, clusters),
        "model_tests": fit.model_tests,
        "joint": None if fit.joint is None else _estimate(fit.joint),
        "joint_against_conditional": _comparison(fit.comparison, fit.clusters_compared),
        "joint_under_other_priors": None,
        "placed_at_random": [{**vars(test), "rows": str(test.rows)} for test in fit.placements],
    }
    if fit.shared_clicks is not None:
        section["strata"] = fit.shared_clicks.n_strata
    if fit.contexts is not None:
        section["contexts_found_by_four_of_five"] = np.exp(fit.contexts.found_by_four_of_five)
    if fit.causes is not None:  # theta relative to the reference over the conditional one, minus 1, by cell
        prior = fit.causes.estimated
        section["joint_under_other_priors"] = {
            "without_prior": np.expm1(fit.causes.without_prior),
            "with_estimated_prior": np.expm1(fit.causes.with_estimated),
            "estimated_prior": f"{prior.mean:.4g}:{prior.strength:.4g}",
        }
    if fit.from_rows is not None:
        section["from_rows"] = _rows_section(fit.from_rows, fit.against_pairs)
    if fit.propensities.height <= MOST_CELLS:
        section["propensities"] = _rows(fit.propensities)
    return plain(section)


def _estimate(estimate: Estimate) -> dict[str, Any]:
    """What every estimate has, and what some have."""
    section: dict[str, Any] = {
        "method": estimate.method,
        "converged": estimate.converged,
        "iterations": estimate.iterations,
        "cells": len(estimate.propensity),
        "cells_identified": int(estimate.linkage.identified.sum()),
    }
    if estimate.joint is not None:
        section |= {"evaluations": estimate.joint.fit.evaluations, "objective": estimate.joint.fit.objective}
    if estimate.fitted is not None:
        section["log_likelihood"] = estimate.fitted.fit.objective
    if estimate.errors_by is not None:
        section |= {
            "errors_by": estimate.errors_by,
            "clusters": estimate.n_clusters,
            "effective_clusters": [round(number, 1) for number in estimate.intervals.effective_clusters.tolist()],
        }
    return section


def _assumed(fit: Fit) -> dict[str, Any]:
    """What was assumed beyond the model, and the estimate without it."""
    references = fit.estimate.linkage.references
    section = {} if fit.smooth is None or not np.isfinite(fit.smooth.tau) else {"smooth_tau": fit.smooth.tau}
    if fit.shape is not None:
        return section | {
            "shape": fit.options.shape,
            "eta": fit.shape.eta[references],
            "eta_std_error": fit.shape.eta_error[references],
            "free_propensity": fit.free.propensity,
        }
    if fit.shrunk is not None:
        return section | {
            "contexts_tau": fit.shrunk.tau,
            "tau_by_context": fit.shrunk.tau_of_cell[references],
            "borrowed_by_context": fit.shrunk.borrowed_of_cell[references],
            "unshrunk_propensity": fit.free.propensity,
        }
    return section


def contrast_section(test: ContrastTest | None, clusters: int | None) -> dict[str, Any] | None:
    """A test of contrasts on so many clusters; null where there is no contrast."""
    return None if test is None else plain(_contrasts(test) | {"clusters": clusters})


def _contrasts(test: ContrastTest) -> dict[str, Any]:
    return {
        "contrasts": test.n_contrasts,
        "statistic": test.statistic,
        "degrees": test.degrees,
        "difference_of_logs": test.difference,
        "std_error": test.std_error,
        "p_value": test.p_value,
        "rejected": test.rejected,
    }


def period_section(period: PeriodChoice) -> dict[str, Any]:
    """The periods that were kept apart, and why; where there was nothing to choose, only what was used."""
    if not period.looks:
        return {"used": period.used}
    pooled, daily = period.estimate_by("none"), period.estimate_by("day")
    return plain(
        {
            "used": period.used,
            "why": why(period),
            "survives": None if period.survivor is None else period.survivor.length,  # the coarsest without feedback
            "claim": period.claims,
            "looks": [_look(look) for look in period.looks],
            "largest_ratio_of_standard_errors": period.error_ratio,
            "difference": contrast_section(period.difference, None if pooled is None else pooled.n_clusters),
            "pooled": None if pooled is None else pooled.propensity,
            "by_day": None if daily is None else daily.propensity,
        }
    )


def _look(look: PeriodLook) -> dict[str, Any]:
    """What was found by periods of one length."""
    feedback = None
    if look.feedback is not None:
        feedback = {
            "move": look.feedback.move,
            "std_error": look.feedback.std_error,
            "degrees": look.feedback.degrees,
            "p_value": look.feedback.p_value,
            "rejected": look.feedback.rejected,
            "found_by_four_of_five": look.feedback.found,
            "missed_bias_of_slope": look.feedback.missed_bias,
            "largest_bias_of_slope": look.feedback.largest_bias,
        }
    return {
        "length": look.length,
        "outcome": look.outcome,
        "propensity": None if look.estimate is None else look.estimate.propensity,
        "feedback": feedback,
        "halves": contrast_section(look.halves, None if look.estimate is None else look.estimate.n_clusters),
        "slope_width": look.slope_width,
    }


def _comparison(comparison: JointComparison | None, clusters: int | None) -> dict[str, Any] | None:
    """Joint EM against the conditional estimate."""
    if comparison is None:
        return None
    return {
        "biased": comparison.biased,
        "converged": comparison.converged,
        "largest_difference": comparison.largest_difference,
        "biased_cells": len(comparison.biased_cells),
        "test": contrast_section(comparison.test, clusters),
    }


def _rows_section(rows: FromRows, test: PairsTest | None) -> dict[str, Any]:
    """How an estimate was made from rows and their features, and what repeated pairs say of it."""
    against_pairs = None
    if test is not None:
        against_pairs = {
            "p_value": test.p_value,
            "slope": test.slope,
            "slope_std_error": test.slope_error,
            "pairs": test.pairs,
            "rejected": test.rejected,
        }
    return {
        "pages_learnt_from": rows.pages,
        "pages": rows.pages_in_all,
        "ranker_score": rows.score,
        "moment_propensity": rows.moment,
        "against_pairs": against_pairs,
    }


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A value with lists for arrays, and null for what is no number."""
    if isinstance(value, np.ndarray):
        return [number if isfinite(number) else None for number in cast("list[float]", value.tolist())]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in cast("Mapping[str, Any]", value).items()}
    return [plain(entry) for entry in cast("list[Any]", value)] if isinstance(value, list) else value


def _cells(statistics: SufficientStatistics, cells: Integers) -> list[Cell]:
    return _rows(statistics.cells[cells])


def _rows(table: pl.DataFrame) -> list[Cell]:
    """Rows with the text of values that JSON does not know."""
    known = (type(None), bool, int, float, str)
    return [
        {name: value if isinstance(value, known) else str(value) for name, value in row.items()}
        for row in table.iter_rows(named=True)
    ]
