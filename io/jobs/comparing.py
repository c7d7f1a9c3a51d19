"""`compare`: differences between two fits, two statistics, or the days of a store; conditions that are met."""

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import polars as pl
from msgspec import UNSET

from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import StatisticsError, UsageError, plural, printable
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.estimators.methods import ConditionalEstimator
from posbias.core.fit import comparison
from posbias.core.fit.fit import fit_statistics
from posbias.core.fit.propensities import PROPENSITY, STD_ERROR
from posbias.io.counting.merge import count_days, count_sides
from posbias.io.engines.engine import Engine
from posbias.io.fits.saved_fit import StoredFit, fit_in, scalar_rows
from posbias.io.fits.verdicts import label_in_words
from posbias.io.jobs.tables import (
    Column,
    Printed,
    PrintedTable,
    Result,
    cell_column,
    first,
    interval_in_words,
    more,
    number_in_words,
)
from posbias.io.places.locations import Location, is_same, location
from posbias.io.results.conclusions import Reason, reason
from posbias.io.results.manifest import open_stored
from posbias.io.results.tables import FIT_FILES
from posbias.io.stores.store import find_statistics

COMPARISON = "comparison"

_A_AND_B = ("a", "b")
_MOST_DAYS = 10
_MOST_UNCOMPARED = 5


CONDITIONS = ("change", "rejected", "not-converged", "unidentified")


def check_conditions(max_change: float | None, fail_if: Sequence[str]) -> None:
    """Raise UsageError for an invalid --max-change or --fail-if."""
    if max_change is not None and not 0 < max_change < inf:
        raise UsageError(f"--max-change {max_change:g}: give a share above 0: 0.2 for a fifth.")
    for condition in fail_if:
        if condition not in CONDITIONS:
            raise UsageError(f"--fail-if {condition}: must be one of {', '.join(CONDITIONS)}.")


def compare(
    inputs: Sequence[str],
    engine: Engine,
    result: Result,
    *,
    by_day: bool = False,
    max_change: float | None = None,
    fail_if: Sequence[str] = (),
) -> pl.DataFrame:
    """Compare propensities; return the table of differences.

    Args:
        inputs: names of two fits or two statistics; with `by_day`, of statistics.
        engine: counts.
        result: receives tables, reasons and met conditions.
        by_day: compare the days of statistics.
        max_change: largest tolerated relative change.
        fail_if: conditions among `CONDITIONS` to report by the exit code.

    Raises:
        PosbiasError: an input cannot be read, inputs are not comparable, or a condition needs unknown errors.
    """
    if by_day:
        days, cells, curves, doubts, notes = _days(inputs, engine, result)
        kind, names, labels = "days", tuple(map(str, days)), [comparison.DAY, *cells.columns]
    else:
        kind, cells, curves, doubts, notes = _two(inputs, engine, result)
        days, names, labels = None, tuple(inputs), cells.columns
    references = curves.references()
    curves = curves.relative_to(references)
    if days is not None:
        differences = comparison.differences_from_others(curves)
        table = comparison.day_table(cells, days, curves, differences)
    else:
        differences = comparison.change(curves)
        others = np.setdiff1d(np.arange(cells.height), references)
        if not np.isfinite(curves.log_theta[:, others]).all(axis=0).any():
            raise UsageError(
                f"{inputs[0]} and {inputs[1]} have no two cells in common that both know: there is nothing to compare."
            )
        table = comparison.change_table(cells, curves, differences)
    met, conditions = _conditions(table, labels, differences, doubts, curves, max_change, fail_if, result)
    reference_cells = cells[np.unique(references)]
    title = f"propensities relative to {_in_words(reference_cells.row(0, named=True), cells.columns)}"
    if reference_cells.height > 1:
        title += f", and the same in {plural(reference_cells.height - 1, 'other contexts')}"
    if days is not None:
        report = _days_report(table, labels, f"{len(names)} days, {title}")
    else:
        report = _change_report(table, labels, names, title)
    result.headline, tested = _headline(table, labels, differences, by_day=by_day)
    result.printed += report
    result.reasons += [tested, *notes]
    result.condition_met = bool(conditions)
    test = differences.test
    known = test.n_contrasts > 0
    result.content |= {
        "schema": "posbias.comparison",
        COMPARISON: {
            "of": kind,
            "names": list(names),
            "test": {
                "contrasts": test.n_contrasts,
                "p_value": test.p_value if known else None,
                "statistic": test.statistic if known else None,
                "degrees": test.degrees if known else None,
            },
            "found": met,
            "conditions_met": conditions,
            "differences": scalar_rows(table),
        },
    }
    return table


_Doubts = tuple[bool, bool]
"""Whether all estimates converged, and whether a test rejects the model of an estimate."""

_Compared = tuple[pl.DataFrame, comparison.Curves, _Doubts, list[Reason]]
"""Cells, a curve of each side, doubts, and reasons on how the curves were estimated."""


def _days(inputs: Sequence[str], engine: Engine, result: Result) -> tuple[pl.Series, *_Compared]:
    """Count and fit the days of statistics; return the days and their curves."""
    statistics = find_statistics(inputs)
    if not statistics:
        raise UsageError(f"--by day: {inputs[0]} holds no statistics. Name what `posbias collect` wrote.")
    counted_days = count_days(statistics, engine, result.progress)
    days = counted_days.cells[comparison.CURVE].unique().sort()
    if len(days) < len(_A_AND_B):
        raise StatisticsError(f"--by day: {statistics[0].path} holds one day, and there is no other to compare with.")
    return days, *_fit_sides(counted_days, days), [reason("compared-together.days")]


def _two(inputs: Sequence[str], engine: Engine, result: Result) -> tuple[str, *_Compared]:
    """Open two fits, or count and fit two statistics; return the kind and the curves."""
    if len(inputs) != len(_A_AND_B):
        raise UsageError(
            f"{len(inputs)} given: name two results, or with --by day one store, whose days are then compared."
        )
    one, other = map(location, inputs)
    if is_same(one, other):
        raise UsageError(f"{other}: is named twice. Name two results.")
    statistics = [find_statistics([name]) for name in inputs]
    if all(statistics):
        both = count_sides(list(zip(_A_AND_B, statistics, strict=True)), engine, result.progress)
        return "statistics", *_fit_sides(both, pl.Series(_A_AND_B)), [reason("compared-together.sides")]
    if any(statistics):
        counts, other = (one, other) if statistics[0] else (other, one)
        raise UsageError(f"{counts} holds statistics, and {other} does not: name two fits, or two statistics.")
    return "fits", *_two_fits(inputs, [open_fit(one), open_fit(other)])


def open_fit(place: Location) -> StoredFit:
    """Open a fit to compare.

    Raises:
        LogFormatError: the fit is damaged, or was replaced while it was read.
        UsageError: the directory holds no fit.
    """
    with open_stored(place, FIT_FILES) as stored:
        if not {"estimate", "for_each"} & stored.content.keys():
            raise UsageError(
                f"{stored.folder}: is a result of `posbias {stored.command}`, which holds no propensities. Name two "
                "directories that `posbias fit` or `run` wrote, or two that `posbias collect` wrote."
            )
        return fit_in(stored, str(stored.folder))


def _two_fits(inputs: Sequence[str], fits: Sequence[StoredFit]) -> _Compared:
    """Curves of two fits; raise UsageError if their cells or references are not comparable."""
    plan, other = (fit.plan for fit in fits)
    both, again = f"{inputs[0]} and {inputs[1]}", "Fit both with the same options."
    for what, ours, theirs in (
        ("model", plan.model.name, other.model.name),
        ("position bins", ", ".join(map(str, plan.position_bins)), ", ".join(map(str, other.position_bins))),
        ("cell", ", ".join(plan.cell), ", ".join(other.cell)),
        ("context", ", ".join(plan.context), ", ".join(other.context)),
    ):
        if ours != theirs:
            raise UsageError(f"{both} have different cells: {what} {ours or 'none'} and {theirs or 'none'}. {again}")
    tables = [fit.theta.propensities.select(plan.cell_columns) for fit in fits]
    if tables[0].schema != tables[1].schema:
        raise UsageError(
            f"{both}: the columns of their cells differ in type: {dict(tables[0].schema)} and "
            f"{dict(tables[1].schema)}. Write the logs with the same types and fit again."
        )
    cells = pl.concat(tables).unique().sort(plan.cell_order, nulls_last=False).select(plan.cell_columns)
    _check_number(cells, len(fits))
    written, made_by, own = list[comparison.SavedCurve](), list[str](), list[set[int]]()
    is_reference = (pl.col(PROPENSITY) == 1) & (pl.col(STD_ERROR).fill_null(0) == 0)
    numbered = cells.with_row_index("posbias_row")
    for fit in fits:
        estimate, table = fit.estimate, fit.theta.propensities
        effective = None if estimate.effective_clusters is UNSET else estimate.effective_clusters
        clusters = 0 if estimate.clusters is UNSET else estimate.clusters
        written.append(comparison.SavedCurve(table, fit.theta.covariance, estimate.query_spread, effective, clusters))
        how = [f"the {estimate.method} method"]
        how += [] if estimate.shape is UNSET else [f"the shape {estimate.shape}"]
        how += [] if estimate.cell_form is UNSET else [f"{estimate.cell_form} cells"]
        how += [] if estimate.contexts_tau is UNSET else ["shrinkage of contexts"]
        made_by.append(" with ".join(how))
        keys = table.filter(is_reference).select(cells.columns)
        references = numbered.join(keys, on=cells.columns, how="semi", nulls_equal=True)["posbias_row"]
        own.append(set(references.to_list()))
    curves, notes = comparison.curves_by_fit(written, cells, plan.context), [reason("compared-apart")]
    if made_by[0] != made_by[1]:
        notes.append(reason("other-methods", a=made_by[0], b=made_by[1]))
    chosen, with_errors = set(curves.references().tolist()), bool(np.isfinite(curves.std_error).any(axis=1).all())
    if with_errors and not curves.correlated and any(not chosen <= mine for mine in own):
        raise UsageError(
            f"{both} are relative to different cells, and hold no covariance to tell how sure "
            "they are relative to the same. Fit both with the same --reference."
        )
    if own[0] != own[1]:
        notes.append(reason("other-references"))
    estimates = [fit.estimate for fit in fits]
    rejected = any(estimate.model_tests is not None and estimate.model_tests.rejected for estimate in estimates)
    return cells, curves, (all(estimate.converged for estimate in estimates), rejected), notes


def _fit_sides(statistics: SufficientStatistics, sides: pl.Series) -> tuple[pl.DataFrame, comparison.Curves, _Doubts]:
    """Cells, curves of all sides from one joint fit, and doubts about the fit."""
    plan = statistics.plan
    columns = [name for name in plan.cell_columns if name != comparison.CURVE]
    cells = statistics.cells.select(columns).unique().sort([name for name in plan.cell_order if name in columns])
    _check_number(cells, len(sides))
    options = EstimationOptions(
        cell_form="free" if plan.cell else None, shrink="none", period="auto" if plan.period else "none"
    )
    fit = fit_statistics(statistics, ConditionalEstimator.name, options, compare=False)
    rejected = fit.model_tests is not None and bool(fit.model_tests.rejected)
    return cells, comparison.curves_by_context(fit, cells, sides), (fit.estimate.converged, rejected)


def _check_number(cells: pl.DataFrame, n_curves: int) -> None:
    if cells.height * n_curves > comparison.MOST_VALUES:
        raise UsageError(
            f"{n_curves} curves of {cells.height:,} cells are more than can be compared at once, "
            f"{comparison.MOST_VALUES:,} in all. Compare fewer days, or count fewer positions (--max-position)."
        )


def _conditions(
    table: pl.DataFrame,
    labels: Sequence[str],
    differences: comparison.Differences,
    doubts: _Doubts,
    curves: comparison.Curves,
    max_change: float | None,
    fail_if: Sequence[str],
    result: Result,
) -> tuple[dict[str, str], list[str]]:
    """Return findings, each in words, and met conditions of --max-change and --fail-if; add reasons on these."""
    (converged, rejected), met = doubts, dict[str, str]()
    unknown = int((~np.isfinite(curves.log_theta)).sum())
    if differences.test.rejected:
        met["change"] = f"propensities differ (p = {differences.test.p_value:.1g})"
    if rejected:
        met["rejected"] = "a test says that the model does not hold"
    if not converged:
        met["not-converged"] = "an estimate did not converge"
    if unknown:
        met["unidentified"] = f"{unknown} of {curves.log_theta.size} propensities are not known"
    if (max_change is not None or "change" in fail_if) and not differences.test.n_contrasts:
        raise UsageError(
            "--max-change and --fail-if change need standard errors, and there are none to compare. Use a method that "
            "has them, such as --method conditional."
        )
    conditions = list[str]()
    far = table.clear() if max_change is None else comparison.large_changes(table, max_change)
    if far.height:
        row = far.sort((far["ratio"].log()).abs(), descending=True).row(0, named=True)
        conditions.append("max-change")
        figures = {"changed": far.height, "of": differences.difference.size, "largest_ratio": row["ratio"]}
        cell = _in_words(row, labels)
        result.reasons.append(reason("max-change-exceeded", figures, allowed=max_change, cell=cell))
    for condition in dict.fromkeys(fail_if):
        if condition in met:
            conditions.append(condition)
            result.reasons.append(reason("condition-met", {"condition": condition}, why=met[condition]))
    if "not-converged" in met:
        result.reasons.append(reason("not-converged.compared", why=met["not-converged"]))
    return met, conditions


def _change_report(table: pl.DataFrame, cells: Sequence[str], names: Sequence[str], title: str) -> list[Printed]:
    """Print two curves side by side."""
    rows = table.to_dicts()
    changes = ("-" if row["change"] is None else f"{row['change']:+.3f}" for row in rows)
    columns = (
        *(cell_column(name, rows) for name in cells),
        Column("a", first(number_in_words(row["propensity_a"]) for row in rows)),
        Column("b", first(number_in_words(row["propensity_b"]) for row in rows)),
        Column("change", first(changes), spare=1),
        *_ratio_columns(rows, "b / a"),
    )
    named = [f"{letter}: {name}" for letter, name in zip(_A_AND_B, names, strict=True)]
    below = more(len(rows), "cells in comparison.parquet (-o DIR)")
    return [*named, title, PrintedTable(columns, below), *_uncompared_lines(table, cells)]


def _days_report(table: pl.DataFrame, labels: Sequence[str], title: str) -> list[Printed]:
    """Print the days and cells that differ most from the other days."""
    compared = table.drop_nulls("p_value")
    rows = compared.sort("p_value", maintain_order=True).head(_MOST_DAYS).to_dicts()
    columns = (
        Column(comparison.DAY, first(str(row[comparison.DAY]) for row in rows), label=True),
        *(cell_column(name, rows) for name in labels[1:]),
        Column("propensity", first(number_in_words(row["propensity"]) for row in rows), folded="propen-\nsity"),
        Column("other days", first(number_in_words(row["other_days"]) for row in rows), folded="other\ndays"),
        *_ratio_columns(rows, "ratio"),
    )
    rest = max(compared.height - _MOST_DAYS, 0)
    below = (
        f"the {len(rows)} that differ most; {rest:,} more, and all days, in comparison.parquet (-o DIR)" if rest else ""
    )
    return [title, PrintedTable(columns, below), *_uncompared_lines(table, labels)]


def _headline(
    table: pl.DataFrame, labels: Sequence[str], differences: comparison.Differences, *, by_day: bool
) -> tuple[str, Reason]:
    """Result of the test of all differences, as a headline and as a reason."""
    test, between = differences.test, "between days" if by_day else "between a and b"
    if not test.n_contrasts:
        return f"changes {between} cannot be tested: no difference has a standard error", reason("change-not-tested")
    figures = {"compared": test.n_contrasts}
    details = f"p = {test.p_value:.1g}, {test.n_contrasts:,} differences together"
    if not test.rejected:
        unchanged = reason("propensities-unchanged", figures, details)
        return f"no propensity differs {between} by more than chance", unchanged
    row = table.row(test.largest, named=True)
    sides = ("other_days", "propensity") if by_day else ("propensity_a", "propensity_b")
    values = " and ".join(number_in_words(row[side]) for side in sides)
    headline = f"propensities differ {between}, most surely at {_in_words(row, labels)}: {values}"
    return headline, reason("propensities-changed", figures, details)


def _in_words(row: dict[str, Any], labels: Sequence[str]) -> str:
    """Name a row by its labels, e.g. `day 2026-01-05, position 3`."""
    return ", ".join(f"{printable(name).replace('_', ' ')} {label_in_words(row[name])}" for name in labels)


def _ratio_columns(rows: list[dict[str, Any]], heading: str) -> list[Column]:
    """Printed columns of the ratio, its interval and its joint p-value."""
    intervals = first(interval_in_words(row["ratio_ci_low"], row["ratio_ci_high"]) for row in rows)
    p_values = ("-" if row["p_value_joint"] is None else f"{row['p_value_joint']:.2g}" for row in rows)
    return [
        Column(heading, first(number_in_words(row["ratio"]) for row in rows)),
        Column("95 % interval", intervals, folded="95 %\ninterval", beside=True),
        Column("p, all\ntogether", first(p_values), folded="p", detail=True),
    ]


def _uncompared_lines(table: pl.DataFrame, labels: Sequence[str]) -> list[str]:
    """Lines on rows that are not compared, with the reason."""
    rows = table.filter(pl.col("reason").is_not_null()).to_dicts()
    sentences = [f"{_in_words(row, labels)}: {row['reason']}" for row in rows[:_MOST_UNCOMPARED]]
    rest = len(rows) - _MOST_UNCOMPARED
    return sentences + ([f"... and {rest:,} more, see `reason`"] if rest > 0 else [])
