"""Fits on disk: the manifest section of an estimate, and propensities of a fit, a table or a power of the position.

In the manifest, null replaces NaN and infinities.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path, PurePosixPath
from typing import Any, cast

import msgspec
import numpy as np
import polars as pl
from msgspec import UNSET, UnsetType

from posbias.core.arrays.count_table import Floats
from posbias.core.attractiveness import AttractivenessPrior
from posbias.core.choices import LARGEST_STRENGTH
from posbias.core.counts.checks import DEFAULT_MODEL, check_curves, counted_model
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.core.estimators.estimate import Estimate
from posbias.core.fit.fit import Fit
from posbias.core.fit.model_tests import ModelTests
from posbias.core.fit.periods import PeriodChoice
from posbias.core.fit.propensities import (
    PROPENSITY,
    SHARED_CLICKS,
    WEIGHT_PROPENSITY,
    ThetaEstimate,
    check_own_propensities,
    square_matrix,
)
from posbias.core.schema import CLICKS, IMPRESSIONS, OUTPUT_COLUMNS, POSITION, PREVIOUS_CLICK
from posbias.core.standard_errors.contrasts import ContrastTest
from posbias.io.fits.verdicts import hidden_errors, period_choice_in_words
from posbias.io.log.scan import reading, resolve_quotes, scan_sources
from posbias.io.log.sources import find_sources, format_by_name
from posbias.io.places.locations import Location, check_inside, location
from posbias.io.results.conclusions import CAUTION, condition_code
from posbias.io.results.manifest import StoredResult, open_stored
from posbias.io.results.tables import (
    ATTRACTIVENESS,
    FIT_FILES,
    PROPENSITIES,
    read_covariance,
    read_propensities,
    read_table,
)
from posbias.io.stores.metadata import Counted

MOST_CELLS = 10_000
"""Largest number of cells whose propensities the manifest repeats."""

Number = float | None


class _Period(msgspec.Struct, frozen=True):
    used: str


class _Clicks(msgspec.Struct, frozen=True):
    observed: list[Number]
    expected: list[Number]


class _Hidden(msgspec.Struct, frozen=True):
    slope_if_as_strong_as_features: float


class _FromRows(msgspec.Struct, frozen=True):
    hidden_relevance: _Hidden | None = None


class StoredEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of `estimate_section` that other commands read; UNSET if the method has no such field."""

    method: str
    converged: bool
    cells: int
    cells_identified: int
    errors_by: str | UnsetType = UNSET
    clusters: int | UnsetType = UNSET
    effective_clusters: list[Number] | UnsetType = UNSET
    shape: str | UnsetType = UNSET
    contexts_tau: float | UnsetType = UNSET
    click_share_identified: float
    period: _Period
    attractiveness_prior: AttractivenessPrior | None  # None if some pairs were summed up before the fit
    query_spread: float
    clicks: _Clicks
    cell_form: str | UnsetType = UNSET
    model_tests: ModelTests | None
    strata: float | UnsetType = UNSET
    from_rows: _FromRows | UnsetType = UNSET

    def __post_init__(self) -> None:
        """Raise ValueError for a prior out of range."""
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


def estimate_section(fit: Fit, *, all_pairs: bool = True) -> dict[str, Any]:
    """Section of the manifest on a fit; without the attractiveness prior unless `all_pairs`."""
    statistics, linkage, rows = fit.statistics, fit.estimate.linkage, fit.from_rows
    clusters, references = fit.estimate.n_clusters or None, linkage.references
    section = _common_section(fit.estimate) | {
        "references": scalar_rows(statistics.cells[references]),
        "comparable": [scalar_rows(statistics.cells[cells]) for cells in linkage.comparable()],
        "click_share_identified": fit.click_share,
        "period": period_section(fit.period),
        "arms": _arms_section(fit),
        "attractiveness_prior": fit.prior if all_pairs else None,
        "query_spread": fit.query_spread,
        "clicks": {"observed": statistics.cell_totals[1], "expected": fit.expected_clicks},
        "shape_against_free": contrast_section(None if fit.shape is None else fit.shape.test, clusters),
        "bins_against_free": contrast_section(None if fit.bins is None else fit.bins.contrasts, clusters),
        "contexts_differ": contrast_section(fit.contexts, clusters),
        "position_effect": contrast_section(fit.position_effect, clusters),
        "previous_click": contrast_section(fit.previous_click, clusters),
        "model_tests": fit.model_tests,
        "joint": None if fit.joint is None else _common_section(fit.joint),
        "joint_against_conditional": None,
        "joint_under_other_priors": None,
        "placed_at_random": [{**vars(test), "rows": str(test.rows)} for test in fit.placements],
    }
    if fit.smooth is not None and np.isfinite(fit.smooth.tau):
        section["smooth_tau"] = fit.smooth.tau
    if fit.cell_form is not None:
        section |= {
            "cell_form": fit.cell_form,
            "product_against_free": contrast_section(None if fit.form is None else fit.form.test, clusters),
            "cells_differ": {
                column.column: {
                    **(contrast_section(column.differences.test, clusters) or {}),
                    "found_by_four_of_five": np.exp(column.differences.test.detectable),
                }
                for column in fit.cell_columns
            },
        }
        if fit.form is not None:
            section["product_found_by_four_of_five"] = np.exp(fit.form.test.detectable)
        if fit.cell_form == "product":
            section["free_propensity"] = fit.free.propensity
    if fit.shape is not None:
        section |= {
            "shape": fit.options.shape,
            "eta": fit.shape.eta[references],
            "eta_std_error": fit.shape.eta_error[references],
            "free_propensity": fit.free.propensity,
        }
    elif fit.shrunk is not None:
        section |= {
            "contexts_tau": fit.shrunk.tau,
            "tau_by_context": fit.shrunk.tau_of_cell[references],
            "borrowed_by_context": fit.shrunk.borrowed_of_cell[references],
            "unshrunk_propensity": fit.free.propensity,
        }
    if fit.comparison is not None:
        section["joint_against_conditional"] = {
            "biased": fit.comparison.biased,
            "converged": fit.comparison.converged,
            "largest_difference": fit.comparison.largest_difference,
            "biased_cells": len(fit.comparison.biased_cells),
            "test": contrast_section(fit.comparison.test, fit.comparison.n_clusters),
        }
    if fit.free.fitted is not None and fit.covariance is not None and fit.shared_clicks is not None:
        section["strata"] = float(fit.free.fitted.strata.signatures.multiplicity.sum())
    if fit.contexts is not None:
        section["contexts_found_by_four_of_five"] = np.exp(fit.contexts.detectable)
    if fit.causes is not None:  # by cell, the ratio of theta to the conditional estimate, minus 1
        prior = fit.causes.estimated
        section["joint_under_other_priors"] = {
            "without_prior": np.expm1(fit.causes.without_prior),
            "with_estimated_prior": np.expm1(fit.causes.with_estimated),
            "estimated_prior": f"{prior.mean:.4g}:{prior.strength:.4g}",
        }
    if rows is not None:  # sample, hidden relevance, and the test against repeated pairs
        test, hidden = fit.against_pairs, rows.hidden
        section["from_rows"] = {
            "pages_learnt_from": rows.pages,
            "pages": rows.pages_in_all,
            "ranker_score": rows.score,
            "moment_propensity": rows.moment,
            "hidden_relevance": hidden
            and {
                "relative_error": hidden_errors(fit, hidden.plausible),  # by cell
                "slope_if_as_strong_as_features": hidden.benchmark,
                "slope_by_rivals": hidden.by_rivals,
                "slope_by_rivals_std_error": hidden.std_error,
                "slope_by_rivals_at_least": hidden.least,
            },
            "against_pairs": test
            and {
                "p_value": test.p_value,
                "slope": test.slope,
                "slope_std_error": test.slope_error,
                "pairs": test.pairs,
                "rejected": test.rejected,
            },
        }
    if fit.propensities.height <= MOST_CELLS:
        section["propensities"] = scalar_rows(fit.propensities)
    return plain(section)


def _common_section(estimate: Estimate) -> dict[str, Any]:
    """Fields that every estimate has, and its objective and clusters if any."""
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


def _arms_section(fit: Fit) -> dict[str, Any] | None:
    """Test of the estimate by experiment arms; None if there are no arms, or they do not move documents."""
    test, arms = fit.arms, fit.statistics.arms
    if test is None or arms is None:
        return None
    names = map(str, arms.drop_nulls().to_series())
    section = {name: value for name, value in vars(test).items() if name != "bent"}
    section |= {"rejected": test.rejected, "levels": dict(zip(names, test.levels.tolist(), strict=True))}
    bent = {} if test.bent is None else {"bends": test.bent.bends, "strength_of_bends": test.bent.strength}
    return section | bent


def contrast_section(test: ContrastTest | None, clusters: int | None) -> dict[str, Any] | None:
    """Section on a test of contrasts with standard errors over `clusters` clusters; None without a test."""
    if test is None:
        return None
    names = {"n_contrasts": "contrasts", "difference": "difference_of_logs"}
    fields = ("n_contrasts", "statistic", "degrees", "difference", "std_error", "p_value", "rejected")
    return plain({names.get(field, field): getattr(test, field) for field in fields} | {"clusters": clusters})


def period_section(period: PeriodChoice) -> dict[str, Any]:
    """Section on the choice of periods; only `used` if there was no choice."""
    if not period.looks:
        return {"used": period.used}
    pooled, daily, looks = period.estimate_by("none"), period.estimate_by("day"), list[dict[str, Any]]()
    names = {"detectable_move": "found_by_four_of_five"}
    names |= {name: f"{name}_of_slope" for name in ("bias", "missed_bias", "largest_bias")}
    for look in period.looks:
        feedback, estimate = None, look.estimate
        if look.feedback is not None:
            feedback = {names.get(name, name): value for name, value in vars(look.feedback).items()}
            feedback["rejected"] = look.feedback.rejected
        looks.append(
            {
                "length": look.length,
                "outcome": look.outcome,
                "propensity": None if estimate is None else estimate.propensity,
                "feedback": feedback,
                "halves": contrast_section(look.halves, None if estimate is None else estimate.n_clusters),
                "slope_width": look.slope_width,
            }
        )
    return plain(
        {
            "used": period.used,
            "why": period_choice_in_words(period),
            "survives": None if period.survivor is None else period.survivor.length,  # coarsest length without feedback
            "claim": period.claims,
            "looks": looks,
            "largest_ratio_of_standard_errors": period.error_ratio,
            "difference": contrast_section(period.difference, None if pooled is None else pooled.n_clusters),
            "pooled": None if pooled is None else pooled.propensity,
            "by_day": None if daily is None else daily.propensity,
        }
    )


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Replace arrays by lists, and NaN and infinities by None, recursively."""
    if isinstance(value, np.ndarray):
        return [number if isfinite(number) else None for number in cast("list[float]", value.tolist())]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: plain(entry) for name, entry in cast("Mapping[str, Any]", value).items()}
    return [plain(entry) for entry in cast("list[Any]", value)] if isinstance(value, list) else value


def scalar(value: object) -> str | float | None:
    """A value of a column for JSON; dates and other types as text."""
    return value if isinstance(value, str | int | float | None) else str(value)


def scalar_rows(table: pl.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table, with values for JSON."""
    return [{name: scalar(value) for name, value in row.items()} for row in table.iter_rows(named=True)]


class _Value(msgspec.Struct, frozen=True):
    folder: str | None

    def __post_init__(self) -> None:
        """Raise ValueError if the folder is not inside the result."""
        if self.folder is not None:
            check_inside(self.folder)


class _ForEach(msgspec.Struct, frozen=True):
    column: str | None = None
    values: tuple[_Value, ...] = ()
    value: str | float | bool | None = None


class _LogManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a manifest on the logs of a result, its column of --for-each, and its reasons."""

    for_each: _ForEach = _ForEach()
    sources: dict[str, str] = {}
    reasons: tuple[dict[str, Any], ...] = ()


class FitManifest(_LogManifest, msgspec.Struct, frozen=True, kw_only=True):
    """Fields of the manifest of a fit that other commands read."""

    counted: Counted
    estimate: StoredEstimate
    verdict: str = ""  # empty in earlier versions
    conclusion: str = ""


@dataclass(frozen=True)
class CellPropensities:
    """Propensities by cell: of a fit (`StoredFit`), or given in a table or as a power."""

    name: str  # of the directory or file, or power:ETA
    plan: StatisticsPlan  # plan of the cells
    theta: ThetaEstimate
    digests: dict[str, str] = field(default_factory=dict[str, str])  # of a table's files, by path

    @property
    def hidden_slope(self) -> float:
        """Slope of log theta by hidden relevance as strong as that of the features; 0 if not estimated."""
        return 0.0

    @property
    def files(self) -> list[str]:
        """Files to read."""
        return [] if self.name.startswith(POWER) else [self.name]


@dataclass(frozen=True, kw_only=True)
class StoredFit(CellPropensities):
    """A fit that `fit` or `run` wrote."""

    folder: Path
    estimate: StoredEstimate
    table: pl.DataFrame  # `propensities.parquet`
    refused: bool  # whether its verdict is "do not use"
    only: tuple[tuple[str, object], ...]  # column and value of --for-each whose rows it is of; empty for all rows
    condition: str | None  # code of the condition that its conclusion rests on
    sources: frozenset[str]  # digests of the log files
    cautions: frozenset[str]  # codes of its reasons of severity caution

    @property
    def hidden_slope(self) -> float:
        """See `CellPropensities`."""
        rows = self.estimate.from_rows
        hidden = None if rows is UNSET else rows.hidden_relevance
        return 0.0 if hidden is None else max(hidden.slope_if_as_strong_as_features, 0.0)

    @property
    def documents(self) -> Path:
        """Path of the attractiveness table."""
        return self.folder / f"{ATTRACTIVENESS}.parquet"

    @property
    def shared_clicks(self) -> Floats | None:
        """Number of clicks that compare two cells, shape (K, K); None if not stored."""
        matrices = self.theta.covariance
        if matrices is None or SHARED_CLICKS not in matrices.columns:
            return None
        return square_matrix(matrices[SHARED_CLICKS])


POWER = "power:"
LARGEST_POWER = 5.0
LAST_POSITION = 10_000
"""The last position with a propensity under a power."""


def read_theta(named: str | Path) -> CellPropensities:
    """Read the propensities that `--propensities` names: a result of `fit` or `run`, a table, or `power:ETA`.

    Raises:
        LogFormatError: the file is damaged, or holds values out of range.
        SchemaError: the table lacks a column, or a column is not numeric.
        UsageError: the directory holds no fit, or the power is out of range.
    """
    name = str(named)
    if not name.startswith(POWER):
        return _read_given_table(name) if is_table_or_power(name) else read_fit(location(name))
    try:
        eta = float(name.removeprefix(POWER))
    except ValueError:
        eta = nan
    if not 0 <= eta <= LARGEST_POWER:
        raise UsageError(
            f"--propensities {name}: give the power as a number from 0 to {LARGEST_POWER:g}: {POWER}1 stands for "
            "1 / position."
        )
    position = pl.int_range(1, LAST_POSITION + 1, dtype=pl.Int32, eager=True).alias(POSITION)
    table = pl.DataFrame({POSITION: position, PROPENSITY: position.cast(pl.Float64) ** -eta})  # theta_k = k^-eta
    return _given(name, table, (), {})


def is_table_or_power(name: str) -> bool:
    """Whether the name is that of a table or a power, not of a result."""
    if name.startswith(POWER):
        return True
    place = location(name)
    if isinstance(place, Path) and place.exists():
        return place.is_file()
    return format_by_name(PurePosixPath(name)) is not None


def _read_given_table(name: str) -> CellPropensities:
    """Read `position`, `propensity`, and any `previous_click` and contexts; ignore other columns that fits write."""
    sources = resolve_quotes(find_sources([name]))[0]
    with reading(sources):
        table = scan_sources(sources).collect()
    where = f"--propensities {name}"
    missing = [column for column in (POSITION, PROPENSITY) if column not in table.columns]
    if missing:
        raise SchemaError(
            f"{where}: has no column {missing[0]!r}. A table of propensities has {POSITION}, {PROPENSITY}, and perhaps "
            f"{PREVIOUS_CLICK} or columns of contexts. The columns are: {', '.join(table.columns)}."
        )
    if WEIGHT_PROPENSITY in table.columns and not table[WEIGHT_PROPENSITY].equals(table[PROPENSITY], null_equal=True):
        raise SchemaError(
            f"{where}: {PROPENSITY!r} and {WEIGHT_PROPENSITY!r} differ. Name the directory of the fit, or leave in the "
            f"table only the {PROPENSITY!r} to use."
        )
    for column in {POSITION, PREVIOUS_CLICK, PROPENSITY}.intersection(table.columns):
        if table.schema[column] == pl.String:  # a table of text
            dtype, kind = (pl.Float64, "number") if column == PROPENSITY else (pl.Int64, "whole number")
            numbers = table[column].cast(dtype, strict=False)
            wrong = (numbers.is_null() & table[column].is_not_null()).arg_true()
            if len(wrong):
                raise SchemaError(
                    f"{where}: row {wrong[0] + 1}: {column} is {table[column][int(wrong[0])]!r}; it must be a {kind}."
                )
            table = table.with_columns(numbers)
    taken = {POSITION, PREVIOUS_CLICK, IMPRESSIONS, CLICKS} | OUTPUT_COLUMNS
    context = tuple(column for column in table.columns if column not in taken)
    return _given(name, table, context, {str(source.path): source.digest() for source in sources})


def _given(name: str, table: pl.DataFrame, context: tuple[str, ...], digests: dict[str, str]) -> CellPropensities:
    model = counted_model("ubm" if PREVIOUS_CLICK in table.columns else DEFAULT_MODEL)
    check_curves(model, context, ())
    plan = StatisticsPlan(model, context=context)
    known = check_own_propensities(table, plan.cell_columns, where=f"--propensities {name}")
    return CellPropensities(name, plan, ThetaEstimate(known, None), digests)


def read_fit(place: Location) -> StoredFit:
    """Read the fit in a directory that `fit` or `run` wrote.

    Raises:
        LogFormatError: the fit is damaged, or was replaced while it was read.
        UsageError: the directory holds no fit.
    """
    with open_stored(place, FIT_FILES) as stored:
        return replace(fit_in(stored, f"--propensities {stored.folder}"), name=str(place))


def fit_in(stored: StoredResult, where: str) -> StoredFit:
    """Read the fit in an opened result; `where` begins error messages.

    Raises:
        LogFormatError: the fit is damaged.
        UsageError: the result holds no fit with propensities by cell, or several.
    """
    if "click_model" in stored.content:
        raise UsageError(
            f"{where}: holds a click model that has no propensity by position. It serves `posbias weight`; fit --model "
            "pbm or ubm for this command."
        )
    fits = fits_of_values(stored)
    if fits:
        raise UsageError(f"{where}: holds several fits (--for-each). Name one of them, such as {fits[0]}.")
    if "estimate" not in stored.content:
        raise UsageError(f"{where}: holds no propensities. Name the directory that `posbias fit` wrote.")
    manifest = stored.typed(FitManifest)
    plan, estimate, folder = manifest.counted.plan(), manifest.estimate, stored.folder
    known, covariance = read_propensities(folder, plan.cell_columns), read_covariance(folder, plan.cell_columns)
    by_cell = [estimate.clicks.observed, estimate.clicks.expected]
    by_cell += [] if estimate.effective_clusters is UNSET else [estimate.effective_clusters]
    differing = ["manifest.json"] if any(len(values) != known.height for values in by_cell) else []
    if covariance is not None and not covariance.select(plan.cell_columns).equals(known.select(plan.cell_columns)):
        differing.append("theta_covariance.parquet")
    if differing:
        raise LogFormatError(
            f"{folder}: {differing[0]} and propensities.parquet have other cells. Run `posbias fit` again."
        )
    each = manifest.for_each
    return StoredFit(
        str(folder),
        plan,
        ThetaEstimate(known, estimate.attractiveness_prior, covariance, plan.context),
        folder=folder,
        estimate=estimate,
        table=read_table(folder / f"{PROPENSITIES}.parquet"),
        only=() if each.column is None else ((each.column, each.value),),
        refused=manifest.verdict == "do not use",
        condition=condition_code(manifest.conclusion),
        sources=frozenset(manifest.sources),
        cautions=frozenset(str(entry.get("code")) for entry in manifest.reasons if entry.get("severity") == CAUTION),
    )


def fits_of_values(stored: StoredResult) -> list[Path]:
    """Directories of the fits of `fit --for-each`, one per value; empty for other results.

    Raises:
        LogFormatError: the manifest is damaged.
    """
    values = stored.typed(_LogManifest).for_each.values
    return [stored.folder / value.folder for value in values if value.folder is not None]
