"""Two fits, two statistics or the days of a store, read and compared."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from msgspec import UNSET

from posbias.cli.options.comparing import ComparingOptions
from posbias.cli.report.result import is_same
from posbias.core.comparison.curves import (
    CURVE,
    MOST_VALUES,
    Curves,
    Differences,
    FittedCurve,
    change,
    curves_of,
    curves_of_fits,
    from_others,
)
from posbias.core.comparison.tables import change_table, day_table
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import StatisticsError, UsageError
from posbias.core.estimators import ConditionalEstimator
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.fit.propensities import PROPENSITY, STD_ERROR
from posbias.io.counting.sides import count_days, count_sides
from posbias.io.engines.engine import Engine
from posbias.io.fits.read import StoredFit, open_compared
from posbias.io.places.locations import location
from posbias.io.progress import Progress
from posbias.io.stores.store import Statistics, find_statistics

_A_AND_B = ("a", "b")


@dataclass(frozen=True)
class Comparison:
    """What was compared, and what came out.

    Attributes:
        of: `fits`, `statistics` or `days`.
        names: of the two sides, or the days.
        cells: the cell columns.
        references: the cells that the others are relative to.
        table: a row per cell, or per day and cell.
        found: all contrasts together.
        met: which conditions are met, whoever asks, each with what is so.
        notes: what a reader should know of how it was compared.
    """

    of: str
    names: tuple[str, ...]
    cells: tuple[str, ...]
    references: pl.DataFrame
    table: pl.DataFrame
    found: Differences
    met: dict[str, str]
    notes: tuple[str, ...]


def comparison_of(inputs: Sequence[str], asked: ComparingOptions, engine: Engine, progress: Progress) -> Comparison:
    """Compare what is named.

    Raises:
        PosbiasError: it cannot be read, or cannot be compared.
    """
    if asked.by == "day":
        return _compare_days(inputs, engine, progress)
    if len(inputs) != len(_A_AND_B):
        raise UsageError(
            f"{len(inputs)} given: name two results, or with --by day one store, whose days are then compared."
        )
    first, second = map(location, inputs)
    if is_same(first, second):
        raise UsageError(f"{second}: is named twice. Name two results.")
    statistics = [find_statistics([name]) for name in inputs]
    if all(statistics):
        return _compare_statistics(inputs, statistics, engine, progress)
    if any(statistics):
        counts, other = (first, second) if statistics[0] else (second, first)
        raise UsageError(f"{counts} holds statistics, and {other} does not: name two fits, or two statistics.")
    return _compare_fits(inputs, [open_compared(first), open_compared(second)])


def _compare_days(inputs: Sequence[str], engine: Engine, progress: Progress) -> Comparison:
    statistics = find_statistics(inputs)
    if not statistics:
        raise UsageError(f"--by day: {inputs[0]} holds no statistics. Name what `posbias collect` wrote.")
    counted = count_days(statistics, engine, progress)
    days = counted.cells[CURVE].unique().sort()
    if len(days) < len(_A_AND_B):
        raise StatisticsError(f"--by day: {statistics[0].path} holds one day, and there is no other to compare with.")
    cells, fit = _fitted(counted, len(days))
    curves = curves_of(fit, cells, days)
    references = curves.references()
    curves = curves.relative_to(references)
    found = from_others(curves)
    note = "a fit per day; their errors are clustered by query over all days, so that what days share counts once."
    return Comparison(
        "days",
        tuple(map(str, days)),
        tuple(cells.columns),
        cells[np.unique(references)],
        day_table(cells, days, curves, found),
        found,
        _met(found, _Verdicts.of(fit), curves),
        (note,),
    )


def _compare_statistics(
    inputs: Sequence[str], statistics: Sequence[Sequence[Statistics]], engine: Engine, progress: Progress
) -> Comparison:
    counted = count_sides(list(zip(_A_AND_B, statistics, strict=True)), engine, progress)
    cells, fit = _fitted(counted, len(_A_AND_B))
    curves = curves_of(fit, cells, pl.Series(_A_AND_B))
    note = (
        "a fit of each; their errors are clustered by query over both, so that queries and clicks that both hold are "
        "allowed for."
    )
    return _of_two("statistics", inputs, cells, curves, _Verdicts.of(fit), (note,))


def _compare_fits(inputs: Sequence[str], fits: Sequence[StoredFit]) -> Comparison:
    first, second = (fit.plan for fit in fits)
    _check_cells(inputs, first, second)
    tables = [fit.theta.propensities.select(first.cell_columns) for fit in fits]
    if tables[0].schema != tables[1].schema:
        raise UsageError(
            f"{inputs[0]} and {inputs[1]}: the columns of their cells differ in type: {dict(tables[0].schema)} and "
            f"{dict(tables[1].schema)}. Write the logs with the same types and fit again."
        )
    cells = pl.concat(tables).unique().sort(first.cell_order, nulls_last=False).select(first.cell_columns)
    _check_number(cells, len(fits))
    curves = curves_of_fits([_curve_of(fit) for fit in fits], cells, first.context)
    notes = [
        (
            "the errors of two fits are taken as independent. Queries and clicks that both hold make the two err "
            "alike, so that a change is found less often than it could be: compare statistics, and that is allowed for."
        )
    ]
    made_by = [_made_by(fit) for fit in fits]
    if made_by[0] != made_by[1]:
        notes.append(f"a is by {made_by[0]}, b by {made_by[1]}: they may differ by that alone.")
    own = [_references_of(fit, cells) for fit in fits]
    chosen, with_errors = set(curves.references().tolist()), bool(np.isfinite(curves.std_error).any(axis=1).all())
    if with_errors and not curves.correlated and any(not chosen <= mine for mine in own):
        raise UsageError(
            f"{inputs[0]} and {inputs[1]} are relative to different cells, and hold no covariance to tell how sure "
            "they are relative to the same. Fit both with the same --reference."
        )
    if own[0] != own[1]:
        notes.append("a and b are relative to different cells; both are shown relative to the same.")
    estimates = [fit.estimate for fit in fits]
    rejected = any(estimate.model_tests is not None and estimate.model_tests.rejected for estimate in estimates)
    verdicts = _Verdicts(all(estimate.converged for estimate in estimates), rejected)
    return _of_two("fits", inputs, cells, curves, verdicts, tuple(notes))


def _curve_of(fit: StoredFit) -> FittedCurve:
    estimate = fit.estimate
    effective = None if estimate.effective_clusters is UNSET else estimate.effective_clusters
    return FittedCurve(
        fit.theta.propensities, fit.theta.covariance, estimate.query_spread, effective, estimate.clusters
    )


def _made_by(fit: StoredFit) -> str:
    """How a fit was estimated, in words."""
    estimate = fit.estimate
    how = [f"the {estimate.method} method"]
    how += [] if estimate.shape is UNSET else [f"the shape {estimate.shape}"]
    how += [] if estimate.contexts_tau is UNSET else ["shrinkage of contexts"]
    return " with ".join(how)


@dataclass(frozen=True)
class _Verdicts:
    """Whether all estimates converged, and whether a test rejects the model of one of them."""

    converged: bool
    rejected: bool

    @classmethod
    def of(cls, fit: Fit) -> "_Verdicts":
        return cls(fit.converged, fit.model_tests is not None and bool(fit.model_tests.rejected))


def _of_two(
    of: str, inputs: Sequence[str], cells: pl.DataFrame, curves: Curves, verdicts: _Verdicts, notes: tuple[str, ...]
) -> Comparison:
    references = curves.references()
    curves = curves.relative_to(references)
    found = change(curves)
    others = np.setdiff1d(np.arange(cells.height), references)
    if not np.isfinite(curves.log_theta[:, others]).all(axis=0).any():
        raise UsageError(
            f"{inputs[0]} and {inputs[1]} have no two cells in common that both know: there is nothing to compare."
        )
    return Comparison(
        of,
        tuple(inputs),
        tuple(cells.columns),
        cells[np.unique(references)],
        change_table(cells, curves, found),
        found,
        _met(found, verdicts, curves),
        notes,
    )


def _fitted(counted: SufficientStatistics, n_curves: int) -> tuple[pl.DataFrame, Fit]:
    """The cells of all curves, and one fit of all."""
    plan = counted.plan
    columns = [name for name in plan.cell_columns if name != CURVE]
    order = [name for name in plan.cell_order if name != CURVE]
    cells = counted.cells.select(columns).unique().sort(order)
    _check_number(cells, n_curves)
    options = EstimationOptions(shrink="none", period="auto" if plan.period else "none")
    return cells, fit_statistics(counted, ConditionalEstimator.name, options, compare=False)


def _check_number(cells: pl.DataFrame, n_curves: int) -> None:
    if cells.height * n_curves > MOST_VALUES:
        raise UsageError(
            f"{n_curves} curves of {cells.height:,} cells are more than can be compared at once, {MOST_VALUES:,} in "
            "all. Compare fewer days, or count fewer positions (--max-position)."
        )


def _check_cells(inputs: Sequence[str], first: StatisticsPlan, second: StatisticsPlan) -> None:
    """See that the cells of two fits mean the same.

    Raises:
        UsageError: they do not.
    """
    for what, ours, theirs in (
        ("model", first.model.name, second.model.name),
        ("position bins", first.position_bins, second.position_bins),
        ("context", first.context, second.context),
    ):
        if ours != theirs:
            said = [", ".join(map(str, side)) if isinstance(side, tuple) else side for side in (ours, theirs)]
            raise UsageError(
                f"{inputs[0]} and {inputs[1]} have different cells: {what} {said[0] or 'none'} and {said[1] or 'none'}"
                ". Fit both with the same options."
            )


def _references_of(fit: StoredFit, cells: pl.DataFrame) -> set[int]:
    """The cells that a fit is relative to."""
    is_one = (pl.col(PROPENSITY) == 1) & (pl.col(STD_ERROR).fill_null(0) == 0)
    keys = fit.theta.propensities.filter(is_one).select(cells.columns)
    numbered = cells.with_row_index("posbias_row")
    return set(numbered.join(keys, on=cells.columns, how="semi", nulls_equal=True)["posbias_row"].to_list())


def _met(found: Differences, verdicts: _Verdicts, curves: Curves) -> dict[str, str]:
    """What is so of what `--fail-if` asks about."""
    unknown = int((~np.isfinite(curves.log_theta)).sum())
    met: dict[str, str] = {}
    if found.test.rejected:
        met["change"] = f"propensities differ (p = {found.test.p_value:.1g})"
    if verdicts.rejected:
        met["rejected"] = "a test says that the model does not hold"
    if not verdicts.converged:
        met["not-converged"] = "an estimate did not converge"
    if unknown:
        met["unidentified"] = f"{unknown} of {curves.log_theta.size} propensities are not known"
    return met
