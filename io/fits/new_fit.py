"""A fit made from counts: its files, and its section of the manifest.

A test is one object from where it is made (`core`) to the sentence about it and the manifest; null stands for what is
no number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from itertools import pairwise
from math import isfinite
from operator import add
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import polars as pl
from msgspec import UNSET, UnsetType

from posbias.core.arrays.count_table import Integers
from posbias.core.arrays.threads import meanwhile
from posbias.core.attractiveness import AttractivenessPrior
from posbias.core.choices import LARGEST_STRENGTH
from posbias.core.counts.checks import CountedPages, count_pages
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SIGNATURE, SufficientStatistics
from posbias.core.estimators.estimate import Estimate, EstimationOptions
from posbias.core.fit.diagnostics import FromRows, JointComparison
from posbias.core.fit.fit import BesideCounts, Fit, check_cells, fit_statistics
from posbias.core.fit.model_tests import ModelTests, OtherModels, can_compare, compare_models
from posbias.core.fit.periods import PeriodChoice, PeriodLook
from posbias.core.schema import CLICKS, IMPRESSIONS
from posbias.core.standard_errors.cluster import ClusterSums
from posbias.core.standard_errors.column import WholeLog
from posbias.core.standard_errors.contrasts import ContrastTest
from posbias.core.training.weights import as_count
from posbias.io.counting.count import CountedLog, PairsOfPart
from posbias.io.engines.engine import Engine, ReadLog, some_of
from posbias.io.fits.verdicts import fit_headline, fit_reasons, hidden_errors, why
from posbias.io.log.clicks import Rows
from posbias.io.progress import Progress
from posbias.io.results.conclusions import Reason
from posbias.io.results.tables import (
    ATTRACTIVENESS,
    PROPENSITIES,
    THETA_COVARIANCE,
    write_attractiveness_csv,
    write_small_table,
)
from posbias.io.stores.metadata import Counted, describe_decay, describe_plan

MOST_CELLS = 10_000
"""Of more cells, only the table of propensities says what is known, and not the manifest."""

Number = float | None
"""A number, or null where there is none."""

Cell = dict[str, Any]
"""A cell by the values of its columns."""


class _Period(msgspec.Struct, frozen=True):
    used: str


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
    period: _Period
    attractiveness_prior: AttractivenessPrior | None  # None where not all pairs were known
    query_spread: float
    clicks: _Clicks
    model_tests: ModelTests | None
    shape: str | UnsetType = UNSET
    contexts_tau: float | UnsetType = UNSET
    strata: float | UnsetType = UNSET
    errors_by: str | UnsetType = UNSET
    clusters: int = 0
    effective_clusters: list[Number] | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Find a prior that is none."""
        prior = self.attractiveness_prior or AttractivenessPrior(0.0, 0.5)
        positions, number = [0, *prior.positions], len(prior.positions)
        if (
            not all(0 < mean < 1 for mean in (prior.mean, *prior.means))
            or not all(0 <= strength <= LARGEST_STRENGTH for strength in (prior.strength, *prior.strengths))
            or any(after <= before for before, after in pairwise(positions))
            or len(prior.means) != number
            or len(prior.strengths) not in {0, number}
        ):
            raise ValueError("the prior of attractiveness has means, strengths or positions that it cannot have")


class FitManifest(msgspec.Struct, frozen=True):
    """Fields of the manifest of a fit that are read again."""

    counted: Counted
    estimate: StoredEstimate
    verdict: str = ""  # "" of earlier versions
    conclusion: str = ""


def fit_section(fit: Fit) -> dict[str, Any]:
    """The section of a fit in the manifest."""
    statistics, linkage = fit.statistics, fit.estimate.linkage
    clusters = fit.estimate.n_clusters or None
    section: dict[str, Any] = {
        **_estimate(fit.estimate),
        **_assumed(fit),
        "references": _cells(statistics, linkage.references),
        "comparable": [_cells(statistics, cells) for cells in linkage.comparable()],
        "click_share_identified": fit.click_share,
        "period": period_section(fit.period),
        "arms": _arms(fit),
        "attractiveness_prior": fit.prior,
        "query_spread": fit.query_spread,
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
    if fit.free.fitted is not None and fit.covariance is not None and fit.shared_clicks is not None:
        section["strata"] = float(fit.free.fitted.strata.signatures.multiplicity.sum())
    if fit.contexts is not None:
        section["contexts_found_by_four_of_five"] = np.exp(fit.contexts.detectable)
    if fit.causes is not None:  # theta relative to the reference over the conditional one, minus 1, by cell
        prior = fit.causes.estimated
        section["joint_under_other_priors"] = {
            "without_prior": np.expm1(fit.causes.without_prior),
            "with_estimated_prior": np.expm1(fit.causes.with_estimated),
            "estimated_prior": f"{prior.mean:.4g}:{prior.strength:.4g}",
        }
    if fit.from_rows is not None:
        section["from_rows"] = _rows_section(fit.from_rows, fit)
    if fit.propensities.height <= MOST_CELLS:
        section["propensities"] = _rows(fit.propensities)
    return plain(section)


def _estimate(estimate: Estimate) -> dict[str, Any]:
    """Fields of every estimate, and of some."""
    section: dict[str, Any] = {
        "method": estimate.method,
        "converged": estimate.converged,
        "iterations": estimate.iterations,
        "cells": len(estimate.propensity),
        "cells_identified": int(estimate.linkage.identified.sum()),
    }
    if estimate.joint is not None:
        section |= {"evaluations": estimate.joint.evaluations, "objective": estimate.joint.objective}
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
    """Assumptions beyond the model, and the estimate without them."""
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


def _arms(fit: Fit) -> dict[str, Any] | None:
    """What experiment arms say of the estimate; null where there are none, or they move nothing."""
    test, arms = fit.arms, fit.statistics.arms
    if test is None or arms is None:
        return None
    names = map(str, arms.drop_nulls().to_series())
    section = {name: value for name, value in vars(test).items() if name != "bent"}
    section |= {"rejected": test.rejected, "levels": dict(zip(names, test.levels.tolist(), strict=True))}
    bent = {} if test.bent is None else {"bends": test.bent.bends, "strength_of_bends": test.bent.strength}
    return section | bent


def contrast_section(test: ContrastTest | None, clusters: int | None) -> dict[str, Any] | None:
    """A test of contrasts on so many clusters; null where there is no contrast."""
    if test is None:
        return None
    names = {"n_contrasts": "contrasts", "difference": "difference_of_logs"}
    fields = ("n_contrasts", "statistic", "degrees", "difference", "std_error", "p_value", "rejected")
    return plain({names.get(field, field): getattr(test, field) for field in fields} | {"clusters": clusters})


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
    """Results for periods of one length."""
    feedback, names = None, {"detectable_move": "found_by_four_of_five"}
    names |= {name: f"{name}_of_slope" for name in ("bias", "missed_bias", "largest_bias")}
    if look.feedback is not None:
        feedback = {names.get(name, name): value for name, value in vars(look.feedback).items()}
        feedback["rejected"] = look.feedback.rejected
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


def _rows_section(rows: FromRows, fit: Fit) -> dict[str, Any]:
    """How an estimate was made from rows and their features, what they may hide, and what repeated pairs say of it."""
    against_pairs, test, hidden = None, fit.against_pairs, rows.hidden
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
        "hidden_relevance": None
        if hidden is None
        else {
            "relative_error": hidden_errors(fit, hidden.plausible),  # that it may make, by cell
            "slope_if_as_strong_as_features": hidden.imagined,
            "slope_by_rivals": hidden.seen,
            "slope_by_rivals_std_error": hidden.std_error,
            "slope_by_rivals_at_least": hidden.least,
        },
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


def write_attractiveness_of(
    counted: CountedLog, fit: Fit, engine: Engine, folder: Path, progress: Progress, *, csv: bool
) -> None:
    """Write the attractiveness of every pair, part by part, and as CSV if requested."""
    items = ((part, fit.attractiveness_of(part.signature)) for part in counted.parts)
    rows = partial(_attractiveness_rows, columns=counted.plan.pair_columns)
    with progress.stage("writing", len(counted.pairs)) as stage:
        for _ in engine.write_table(items, rows, folder / f"{ATTRACTIVENESS}.parquet"):
            stage.advance()
    if csv:
        write_attractiveness_csv(folder)


def _attractiveness_rows(item: tuple[PairsOfPart, pl.DataFrame], columns: Sequence[str]) -> pl.DataFrame:
    """The columns of the pairs of a part, `impressions`, `clicks`, `attractiveness`, `std_dev`, in their order."""
    part, of_signature = item
    pairs = part.kept.load()
    return pairs.select(*columns, IMPRESSIONS, CLICKS).hstack(of_signature[pairs[SIGNATURE]])


def sum_sessions(read: ReadLog, log: WholeLog) -> ClusterSums:
    """Sums for errors by session, from a log that was read with its sessions."""
    return reduce(add, read.buckets.map(partial(_sum_sessions, log=log)))


def _sum_sessions(_: int, impressions: pl.LazyFrame, log: WholeLog) -> ClusterSums:
    return log.sums_of(impressions)


SCHEMA = "posbias.result"


@dataclass(frozen=True)
class FitRequest:
    """How counts are fitted."""

    method: str  # the estimator's name
    options: EstimationOptions
    # whether joint EM is run as well, and whether other click models are looked at; None where that is quick
    compare: bool | None = None
    csv: bool = False  # whether tables are also written as CSV
    pairs: bool = True  # whether attractiveness is written


@dataclass(frozen=True)
class WrittenFit:
    """A fit whose tables are written."""

    fit: Fit
    headline: str  # the fit in one sentence
    reasons: tuple[Reason, ...]  # what speaks for and against it
    sections: dict[str, Any]  # of the manifest


def sections_of_reading(plan: StatisticsPlan, sources: dict[str, str], rows: Rows) -> dict[str, Any]:
    """Sections of the manifest about a log that was read."""
    return {"schema": SCHEMA, "counted": describe_plan(plan), "sources": sources, "rows": rows}


def sections_of_counts(counted: CountedLog) -> dict[str, Any]:
    """Sections of the manifest about what was read and counted."""
    statistics = counted.statistics
    impressions, clicks = statistics.cell_totals
    return {
        **sections_of_reading(counted.plan, counted.sources, counted.rows),
        "decay": describe_decay(counted.decay),
        "totals": {
            "queries": statistics.n_queries,
            "pairs": statistics.n_pairs,
            "signatures": statistics.pair_signatures.n_units,
            "impressions": as_count(impressions.sum()),
            "clicks": as_count(clicks.sum()),
        },
    }


def fit_counts(
    counted: CountedLog,
    request: FitRequest,
    engine: Engine,
    folder: Path,
    progress: Progress,
    from_rows: FromRows | None = None,
) -> WrittenFit:
    """Fit, and write propensities, their covariance and attractiveness.

    Args:
        counted: a log, or statistics.
        request: by which method, and how.
        engine: where the pairs are.
        folder: of the result.
        progress: where stages are reported.
        from_rows: the estimate of a method that reads rows.

    Raises:
        IdentifiabilityError: the requested estimate cannot be made from the log.
        UsageError: it has too many cells.
    """
    check_cells(counted.statistics, request.method, request.options, engine.memory, compare=request.compare)
    with progress.stage("fitting") as stage:
        fit = fit_statistics(
            counted.statistics,
            request.method,
            request.options,
            compare=request.compare,
            beside=BesideCounts(
                sum_sessions=None if counted.read is None else partial(sum_sessions, counted.read),
                unbinned=counted.unbinned,
                pages=partial(sample_pages, counted),
                from_rows=from_rows,
            ),
            on_iteration=stage.say,
        )
    if request.pairs:
        with meanwhile(lambda: (fit.theta, fit.expected_clicks)):  # the files and the manifest say them
            write_attractiveness_of(counted, fit, engine, folder, progress, csv=request.csv)
    write_small_table(fit.propensities, folder, PROPENSITIES, csv=request.csv)
    if fit.theta.covariance is not None:
        write_small_table(fit.theta.covariance, folder, THETA_COVARIANCE, csv=False)
    tests, sections = fit.model_tests, dict[str, Any]()
    doubted = tests is not None and bool(tests.rejected or counted.plan.model.beside_position)
    others = other_models(counted, progress) if doubted and request.compare is not False else None
    if others is not None:
        sections["other_models"] = {
            "log_likelihood": others.log_likelihood,
            "held_out_impressions": others.impressions,
            "models": [asdict(other) for other in others.others],
        }
    sections["estimate"] = fit_section(fit)
    if not request.pairs:
        sections["estimate"]["attractiveness_prior"] = None
    time = None if counted.read is None or counted.read.log.raw_sources else counted.read.log.roles.timestamp
    return WrittenFit(fit, fit_headline(fit), tuple(fit_reasons(fit, others, time)), sections)


MOST_ROWS = 1 << 17
"""Impressions that are looked at, about."""


def sample_pages(counted: CountedLog) -> CountedPages | None:
    """Whole pages of some queries, by what was clicked above; None where there are none or they are not needed."""
    if counted.plan.weighted:
        return None
    sample = _some_rows(counted, MOST_ROWS)
    by_position = replace(counted.plan, position_bins=())  # of a bin's positions, one is clicked more than the other
    return None if sample is None else count_pages(sample, by_position)


def other_models(counted: CountedLog, progress: Progress) -> OtherModels | None:
    """Which click models explain pages of the log better than the one that was fitted; None where nobody can say."""
    with progress.stage("looking at other click models"):
        sample = _some_rows(counted, MOST_ROWS // 2) if can_compare(counted.plan) else None
        return None if sample is None else compare_models(sample, counted.plan.model.name)


def _some_rows(counted: CountedLog, most: int) -> pl.DataFrame | None:
    """Impressions of whole pages; None where there are none."""
    pages = None if counted.read is None else counted.read.some_pages
    sample = None if pages is None else some_of([pages], most)[0]
    return sample if sample is not None and sample.height else None
