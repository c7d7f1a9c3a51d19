"""What the manifest says about a fit, as types: written from a `Fit`, and read again by whoever builds on it."""

from itertools import pairwise
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, UnsetType

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.attractiveness.prior import AttractivenessPrior
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.estimators.estimate import Estimate
from posbias.core.estimators.placement_test import PlacementTest
from posbias.core.fit.feedback import FeedbackTest
from posbias.core.fit.fit import Fit
from posbias.core.fit.joint_causes import JointCauses
from posbias.core.fit.joint_comparison import JointComparison
from posbias.core.fit.model_tests import ATTRACTIVENESS, TESTS, ModelTests
from posbias.core.fit.period_words import why
from posbias.core.fit.periods import PeriodChoice, PeriodLook
from posbias.core.priors import LARGEST_STRENGTH
from posbias.core.standard_errors.contrasts import ContrastTest
from posbias.io.stores.manifest_types import Position, Probability

Cell = dict[str, Any]
"""A cell by the values of its columns."""

Number = float | None
"""A number, or null where there is none."""


class ContrastSection(msgspec.Struct, frozen=True):
    """A test of contrasts; null where there is no contrast.

    It rests on `clusters` clusters, of which the deciding contrast has `degrees` degrees of freedom.
    """

    contrasts: int
    statistic: Number
    degrees: Number
    difference_of_logs: Number
    std_error: Number
    p_value: float
    rejected: bool
    clusters: int | None

    @classmethod
    def of(cls, test: ContrastTest | None, clusters: int | None) -> "ContrastSection | None":
        """What a test found, where there is one, on how many clusters."""
        if test is None:
            return None
        return cls(
            contrasts=test.n_contrasts,
            statistic=_number(test.statistic),
            degrees=_number(test.degrees),
            difference_of_logs=_number(test.difference),
            std_error=_number(test.std_error),
            p_value=test.p_value,
            rejected=test.rejected,
            clusters=clusters,
        )


class FeedbackSection(msgspec.Struct, frozen=True):
    """Whether clicks move documents; `found_by_four_of_five` is the move that four of five such logs would show."""

    move: float
    std_error: float
    degrees: float
    p_value: float
    rejected: bool
    found_by_four_of_five: float
    missed_bias_of_slope: Number

    @classmethod
    def of(cls, test: FeedbackTest | None) -> "FeedbackSection | None":
        """What a test found, where there is one."""
        if test is None:
            return None
        missed = test.missed_bias if np.isfinite(test.missed_bias) else None
        return cls(test.move, test.std_error, test.degrees, test.p_value, test.rejected, test.found, missed)


class PeriodLookSection(msgspec.Struct, frozen=True):
    """What was found by periods of one length."""

    length: str
    outcome: str
    propensity: list[Number] | None
    feedback: FeedbackSection | None
    halves: ContrastSection | None

    @classmethod
    def of(cls, look: PeriodLook) -> "PeriodLookSection":
        """A look."""
        return cls(
            length=look.length,
            outcome=look.outcome,
            propensity=None if look.estimate is None else _numbers(look.estimate.propensity),
            feedback=FeedbackSection.of(look.feedback),
            halves=ContrastSection.of(look.halves, None if look.estimate is None else look.estimate.n_clusters),
        )


class ScoreSection(msgspec.Struct, frozen=True):
    """A test of the model with one degree of freedom."""

    statistic: float
    degrees: float
    difference_of_logs: float
    std_error: float
    clusters: int
    p_value: float
    p_value_adjusted: float
    rejected: bool
    observed_clicks: float | UnsetType = UNSET
    expected_clicks: float | UnsetType = UNSET

    @classmethod
    def of(cls, name: str, tests: ModelTests) -> "ScoreSection | None":
        """What the test of that name found, where it could be made."""
        found = tests.found.get(name)
        if found is None:
            return None
        test, of_pages = found.test, name != ATTRACTIVENESS
        return cls(
            statistic=test.statistic,
            degrees=test.degrees,
            difference_of_logs=test.difference,
            std_error=test.std_error,
            clusters=found.n_clusters,
            p_value=test.p_value,
            p_value_adjusted=tests.adjusted[name],
            rejected=name in tests.rejected,
            observed_clicks=found.observed if of_pages else UNSET,
            expected_clicks=found.expected if of_pages else UNSET,
        )


class ModelSection(msgspec.Struct, frozen=True):
    """Whether the model holds: null where a test could not be made."""

    attractiveness: ScoreSection | None
    clicks_above: ScoreSection | None
    last_click: ScoreSection | None
    impressions_of_pages: int
    why_no_pages: str | UnsetType = UNSET

    @classmethod
    def of(cls, tests: ModelTests | None) -> "ModelSection | None":
        """What the tests found, where there are any."""
        if tests is None:
            return None
        return cls(
            *(ScoreSection.of(name, tests) for name in TESTS),
            impressions_of_pages=tests.impressions,
            why_no_pages=tests.why_no_pages or UNSET,
        )


class PeriodSection(msgspec.Struct, frozen=True):
    """The periods that were kept apart, and why; `survives` is the coarsest length without feedback within it."""

    used: str
    why: str | UnsetType = UNSET
    survives: str | UnsetType | None = UNSET
    claim: bool | UnsetType = UNSET
    looks: list[PeriodLookSection] | UnsetType = UNSET
    largest_ratio_of_standard_errors: Number | UnsetType = UNSET
    difference: ContrastSection | UnsetType | None = UNSET
    pooled: list[Number] | UnsetType | None = UNSET
    by_day: list[Number] | UnsetType | None = UNSET

    @classmethod
    def of(cls, period: PeriodChoice) -> "PeriodSection":
        """A choice; where there was nothing to choose, only what was used."""
        if not period.looks:
            return cls(period.used)
        pooled, daily = period.estimate_by("none"), period.estimate_by("day")
        return cls(
            used=period.used,
            why=why(period),
            survives=None if period.survivor is None else period.survivor.length,
            claim=period.claims,
            looks=[PeriodLookSection.of(look) for look in period.looks],
            largest_ratio_of_standard_errors=period.error_ratio if np.isfinite(period.error_ratio) else None,
            difference=ContrastSection.of(period.difference, None if pooled is None else pooled.n_clusters),
            pooled=None if pooled is None else _numbers(pooled.propensity),
            by_day=None if daily is None else _numbers(daily.propensity),
        )


class ComparisonSection(msgspec.Struct, frozen=True):
    """Joint EM against the conditional estimate."""

    biased: bool
    converged: bool
    largest_difference: Number
    biased_cells: int
    test: ContrastSection | None

    @classmethod
    def of(cls, comparison: JointComparison | None, clusters: int | None) -> "ComparisonSection | None":
        """What a comparison found, where there is one, on how many clusters."""
        if comparison is None:
            return None
        difference = comparison.largest_difference
        return cls(
            biased=comparison.biased,
            converged=comparison.converged,
            largest_difference=None if np.isnan(difference) else difference,
            biased_cells=len(comparison.biased_cells),
            test=ContrastSection.of(comparison.test, clusters),
        )


class CausesSection(msgspec.Struct, frozen=True):
    """Joint EM under other priors: theta relative to the reference over the conditional one, minus 1, by cell."""

    without_prior: list[Number]
    with_estimated_prior: list[Number]
    estimated_prior: str

    @classmethod
    def of(cls, causes: JointCauses | None) -> "CausesSection | None":
        """What was found, where EM is biased."""
        if causes is None:
            return None
        return cls(
            without_prior=_numbers(np.expm1(causes.without_prior)),
            with_estimated_prior=_numbers(np.expm1(causes.with_estimated)),
            estimated_prior=f"{causes.estimated.mean:.4g}:{causes.estimated.strength:.4g}",
        )


class PlacementSection(msgspec.Struct, frozen=True):
    """Whether the documents of randomised rows stand as if placed at random."""

    rows: str
    p_value: float
    correlation: float
    documents: int
    queries: int

    @classmethod
    def of(cls, test: PlacementTest) -> "PlacementSection":
        """What a test found."""
        return cls(str(test.rows), test.p_value, test.correlation, test.documents, test.queries)


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


class EstimateSection(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of theta. What a method does not have is left out."""

    method: str
    converged: bool
    iterations: int
    cells: int
    cells_identified: int
    evaluations: int | UnsetType = UNSET
    objective: float | UnsetType = UNSET
    log_likelihood: float | UnsetType = UNSET
    errors_by: str | UnsetType = UNSET
    clusters: int | UnsetType = UNSET
    effective_clusters: list[Number] | UnsetType = UNSET

    @classmethod
    def of(cls, estimate: Estimate) -> "EstimateSection":
        """An estimate."""
        return cls(**_described(estimate))


class FitSection(EstimateSection, frozen=True, kw_only=True):
    """A fit: its estimate, what was assumed, and what the log says about the assumptions."""

    shape: str | UnsetType = UNSET
    eta: list[Number] | UnsetType = UNSET
    eta_std_error: list[Number] | UnsetType = UNSET
    free_propensity: list[Number] | UnsetType = UNSET
    smooth_tau: Number | UnsetType = UNSET
    contexts_tau: float | UnsetType = UNSET
    tau_by_context: list[Number] | UnsetType = UNSET
    unshrunk_propensity: list[Number] | UnsetType = UNSET
    references: list[Cell]
    comparable: list[list[Cell]]
    click_share_identified: float
    period: PeriodSection
    attractiveness_prior: PriorSection
    query_spread: float
    clicks: dict[str, list[Number]]
    shape_against_free: ContrastSection | None
    bins_against_free: ContrastSection | None
    contexts_differ: ContrastSection | None
    position_effect: ContrastSection | None
    previous_click: ContrastSection | None
    model_tests: ModelSection | None
    joint: EstimateSection | None
    joint_against_conditional: ComparisonSection | None
    joint_under_other_priors: CausesSection | None
    placed_at_random: list[PlacementSection]


def fit_section(fit: Fit) -> FitSection:
    """What the manifest says about a fit."""
    statistics, linkage = fit.statistics, fit.estimate.linkage
    _, clicks = statistics.cell_totals
    clusters, by_query = fit.estimate.n_clusters or None, fit.clusters_compared
    return FitSection(
        **_described(fit.estimate),
        **_assumed(fit),
        references=_cells(statistics, linkage.references),
        comparable=[_cells(statistics, cells) for cells in linkage.comparable()],
        click_share_identified=fit.click_share,
        period=PeriodSection.of(fit.period),
        attractiveness_prior=PriorSection.of(fit.prior),
        query_spread=fit.theta_errors.query_spread,
        clicks={"observed": _numbers(clicks), "expected": _numbers(fit.expected_clicks)},
        shape_against_free=ContrastSection.of(None if fit.shape is None else fit.shape.test, clusters),
        bins_against_free=ContrastSection.of(None if fit.bins is None else fit.bins.contrasts, clusters),
        contexts_differ=ContrastSection.of(fit.contexts, clusters),
        position_effect=ContrastSection.of(fit.position_effect, clusters),
        previous_click=ContrastSection.of(fit.previous_click, clusters),
        model_tests=ModelSection.of(fit.model_tests),
        joint=None if fit.joint is None else EstimateSection.of(fit.joint),
        joint_against_conditional=ComparisonSection.of(fit.comparison, by_query),
        joint_under_other_priors=CausesSection.of(fit.causes),
        placed_at_random=[PlacementSection.of(test) for test in fit.placements],
    )


def _described(estimate: Estimate) -> dict[str, Any]:
    said: dict[str, Any] = {
        "method": estimate.method,
        "converged": estimate.converged,
        "iterations": estimate.iterations,
        "cells": len(estimate.propensity),
        "cells_identified": int(estimate.linkage.identified.sum()),
    }
    if estimate.joint is not None:
        said |= {"evaluations": estimate.joint.fit.evaluations, "objective": estimate.joint.fit.objective}
    if estimate.fitted is not None:
        said["log_likelihood"] = estimate.fitted.fit.objective
    if estimate.errors_by is not None:
        effective = _numbers(estimate.intervals.effective_clusters)
        said |= {
            "errors_by": estimate.errors_by,
            "clusters": estimate.n_clusters,
            "effective_clusters": [None if number is None else round(number, 1) for number in effective],
        }
    return said


def _assumed(fit: Fit) -> dict[str, Any]:
    """What was assumed beyond the model, and the estimate without it."""
    return _of_smooth(fit) | _of_shape(fit)


def _of_smooth(fit: Fit) -> dict[str, Any]:
    return {} if fit.smooth is None or not np.isfinite(fit.smooth.tau) else {"smooth_tau": fit.smooth.tau}


def _of_shape(fit: Fit) -> dict[str, Any]:
    references = fit.estimate.linkage.references
    if fit.shape is not None:
        return {
            "shape": fit.options.shape,
            "eta": _numbers(fit.shape.eta[references]),
            "eta_std_error": _numbers(fit.shape.eta_error[references]),
            "free_propensity": _numbers(fit.free.propensity),
        }
    if fit.shrunk is not None:
        return {
            "contexts_tau": fit.shrunk.tau,
            "tau_by_context": _numbers(fit.shrunk.tau_of_cell[references]),
            "unshrunk_propensity": _numbers(fit.free.propensity),
        }
    return {}


def _cells(statistics: SufficientStatistics, cells: Integers) -> list[Cell]:
    rows = statistics.cells[cells].rows(named=True)
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: object) -> object:
    """A value that JSON knows, else its text."""
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _numbers(values: Floats) -> list[Number]:
    """As they stand, null where there is no number."""
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> Number:
    return value if np.isfinite(value) else None
