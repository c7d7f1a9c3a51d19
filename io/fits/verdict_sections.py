"""What the manifest says about the tests of a fit: what each found, on how many clusters."""

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from posbias.core.arrays.count_table import Floats
from posbias.core.estimators.placement_test import PlacementTest
from posbias.core.fit.feedback import FeedbackTest
from posbias.core.fit.from_rows import FromRows, PairsTest
from posbias.core.fit.joint_causes import JointCauses
from posbias.core.fit.joint_comparison import JointComparison
from posbias.core.fit.period_words import why
from posbias.core.fit.periods import PeriodChoice, PeriodLook
from posbias.core.standard_errors.contrasts import ContrastTest

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
    """Whether clicks move documents.

    `found_by_four_of_five` is the move that four of five such logs would show; `largest_bias_of_slope` what feedback
    may do where the ranker learns.
    """

    move: float
    std_error: float
    degrees: float
    p_value: float
    rejected: bool
    found_by_four_of_five: float
    missed_bias_of_slope: Number
    largest_bias_of_slope: Number

    @classmethod
    def of(cls, test: FeedbackTest | None) -> "FeedbackSection | None":
        """What a test found, where there is one."""
        if test is None:
            return None
        missed, largest = (value if np.isfinite(value) else None for value in (test.missed_bias, test.largest_bias))
        return cls(test.move, test.std_error, test.degrees, test.p_value, test.rejected, test.found, missed, largest)


class PeriodLookSection(msgspec.Struct, frozen=True):
    """What was found by periods of one length."""

    length: str
    outcome: str
    propensity: list[Number] | None
    feedback: FeedbackSection | None
    halves: ContrastSection | None
    slope_width: Number

    @classmethod
    def of(cls, look: PeriodLook) -> "PeriodLookSection":
        """A look."""
        return cls(
            length=look.length,
            outcome=look.outcome,
            propensity=None if look.estimate is None else numbers(look.estimate.propensity),
            feedback=FeedbackSection.of(look.feedback),
            halves=ContrastSection.of(look.halves, None if look.estimate is None else look.estimate.n_clusters),
            slope_width=look.slope_width if np.isfinite(look.slope_width) else None,
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
            pooled=None if pooled is None else numbers(pooled.propensity),
            by_day=None if daily is None else numbers(daily.propensity),
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
            without_prior=numbers(np.expm1(causes.without_prior)),
            with_estimated_prior=numbers(np.expm1(causes.with_estimated)),
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


def numbers(values: Floats) -> list[Number]:
    """As they stand, null where there is no number."""
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> Number:
    return value if np.isfinite(value) else None


class PairsSection(msgspec.Struct, frozen=True):
    """The estimate from features against that from repeated pairs."""

    p_value: float
    slope: Number
    slope_std_error: Number
    pairs: int
    rejected: bool


class RowsSection(msgspec.Struct, frozen=True):
    """How an estimate was made from rows and their features."""

    pages_learnt_from: int
    pages: int
    ranker_score: str | None
    moment_propensity: list[Number] | None
    against_pairs: PairsSection | None

    @classmethod
    def of(cls, found: FromRows, test: PairsTest | None) -> "RowsSection":
        """What was found in the rows, and the test against pairs."""
        return cls(
            pages_learnt_from=found.pages,
            pages=found.pages_in_all,
            ranker_score=found.score,
            moment_propensity=None if found.moment is None else numbers(found.moment),
            against_pairs=None
            if test is None
            else PairsSection(test.p_value, test.slope, test.slope_error, test.pairs, test.rejected),
        )
