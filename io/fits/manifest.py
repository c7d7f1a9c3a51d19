"""What the manifest says about a fit, as types: written from a `Fit`, and read again by whoever builds on it."""

from itertools import pairwise
from math import isfinite
from typing import Annotated, Any

import msgspec
import numpy as np
import polars as pl
from msgspec import UNSET, Meta, UnsetType

from posbias.core.arrays.count_table import Integers
from posbias.core.attractiveness.prior import AttractivenessPrior
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.estimators.estimate import Estimate
from posbias.core.fit.fit import Fit
from posbias.core.fit.model_tests import ModelTests
from posbias.core.priors import LARGEST_STRENGTH
from posbias.io.fits.verdict_sections import (
    CausesSection,
    ComparisonSection,
    ContrastSection,
    Number,
    PeriodSection,
    PlacementSection,
    RowsSection,
    numbers,
)
from posbias.io.stores.manifest import Position, Probability

MOST_CELLS = 10_000
"""Of more cells, only the table of propensities says what is known, and not the manifest."""

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
    borrowed_by_context: list[Number] | UnsetType = UNSET
    unshrunk_propensity: list[Number] | UnsetType = UNSET
    references: list[Cell]
    comparable: list[list[Cell]]
    click_share_identified: float
    period: PeriodSection
    attractiveness_prior: PriorSection
    query_spread: float
    strata: float | UnsetType = UNSET
    clicks: dict[str, list[Number]]
    shape_against_free: ContrastSection | None
    bins_against_free: ContrastSection | None
    contexts_differ: ContrastSection | None
    contexts_found_by_four_of_five: list[Number] | UnsetType = UNSET
    position_effect: ContrastSection | None
    previous_click: ContrastSection | None
    model_tests: ModelTests | None
    joint: EstimateSection | None
    joint_against_conditional: ComparisonSection | None
    joint_under_other_priors: CausesSection | None
    placed_at_random: list[PlacementSection]
    from_rows: RowsSection | UnsetType = UNSET
    propensities: list[Cell] | UnsetType = UNSET


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
        strata=UNSET if fit.shared_clicks is None else fit.shared_clicks.n_strata,
        clicks={"observed": numbers(clicks), "expected": numbers(fit.expected_clicks)},
        shape_against_free=ContrastSection.of(None if fit.shape is None else fit.shape.test, clusters),
        bins_against_free=ContrastSection.of(None if fit.bins is None else fit.bins.contrasts, clusters),
        contexts_differ=ContrastSection.of(fit.contexts, clusters),
        contexts_found_by_four_of_five=UNSET
        if fit.contexts is None
        else numbers(np.exp(fit.contexts.found_by_four_of_five)),
        position_effect=ContrastSection.of(fit.position_effect, clusters),
        previous_click=ContrastSection.of(fit.previous_click, clusters),
        model_tests=fit.model_tests,
        joint=None if fit.joint is None else EstimateSection.of(fit.joint),
        joint_against_conditional=ComparisonSection.of(fit.comparison, by_query),
        joint_under_other_priors=CausesSection.of(fit.causes),
        placed_at_random=[PlacementSection.of(test) for test in fit.placements],
        from_rows=UNSET if fit.from_rows is None else RowsSection.of(fit.from_rows, fit.against_pairs),
        propensities=_rows(fit.propensities) if fit.propensities.height <= MOST_CELLS else UNSET,
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
        effective = numbers(estimate.intervals.effective_clusters)
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
            "eta": numbers(fit.shape.eta[references]),
            "eta_std_error": numbers(fit.shape.eta_error[references]),
            "free_propensity": numbers(fit.free.propensity),
        }
    if fit.shrunk is not None:
        return {
            "contexts_tau": fit.shrunk.tau,
            "tau_by_context": numbers(fit.shrunk.tau_of_cell[references]),
            "borrowed_by_context": numbers(fit.shrunk.borrowed_of_cell[references]),
            "unshrunk_propensity": numbers(fit.free.propensity),
        }
    return {}


def _cells(statistics: SufficientStatistics, cells: Integers) -> list[Cell]:
    return _rows(statistics.cells[cells])


def _rows(table: pl.DataFrame) -> list[Cell]:
    return [{name: _plain(value) for name, value in row.items()} for row in table.iter_rows(named=True)]


def _plain(value: object) -> object:
    """A value that JSON knows, else its text."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
