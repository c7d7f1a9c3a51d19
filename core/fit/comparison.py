"""Compare propensity curves over the same cells, of several fits or of the contexts of a single fit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.counts.sufficient_statistics import context_numbers, key_numbers
from posbias.core.fit.fit import Fit
from posbias.core.fit.propensities import PROPENSITY, STD_ERROR, cell_covariance, known_numbers
from posbias.core.standard_errors.cluster import t_quantile
from posbias.core.standard_errors.contrasts import (
    Differences,
    correlation_matrix,
    linear_contrasts,
    log_theta_covariance,
)

MOST_VALUES = 2_000
"""Largest number of propensities of all curves together: their covariance takes 32 MB."""

_NOTABLE = 0.01  # share of the variance of a contrast above which a term limits the degrees of freedom


@dataclass(frozen=True)
class Curves:
    """S curves of log propensity over the same K cells."""

    log_theta: Floats  # shape (S, K); NaN if unknown
    covariance: Floats  # shape (S K, S K), curve by curve; rows and columns without an error NaN, of references 0
    degrees: Floats  # degrees of freedom of the errors, shape (S, K); NaN without an error
    group: Integers  # number of the context of each cell, which has one reference, shape (K,)
    present: Flags  # whether the cell was shown, shape (S, K)
    correlated: bool = True  # whether correlations within a curve are known

    @property
    def shape(self) -> tuple[int, int]:
        """(S, K), numbers of curves and cells."""
        n_curves, n_cells = self.log_theta.shape
        return n_curves, n_cells

    @property
    def std_error(self) -> Floats:
        """Standard errors of log propensities, shape (S, K)."""
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.diag(self.covariance)).reshape(self.shape)

    def references(self) -> Integers:
        """Return a common reference for each cell, shape (K,): the cell of its group that most curves have with errors.

        Ties go to the cell that is the reference of most curves already, then to the first.
        """
        known = (np.isfinite(self.log_theta) & np.isfinite(self.std_error)).sum(axis=0)
        known = known * (self.shape[0] + 1) + (self.std_error == 0).sum(axis=0)
        chosen = np.empty(len(self.group), np.int64)
        for group in np.unique(self.group):
            cells = np.flatnonzero(self.group == group)
            chosen[cells] = cells[np.argmax(known[cells])]
        return chosen

    def relative_to(self, references: Integers) -> "Curves":
        """Return the curves relative to the given cells, shape (K,); unknown where the reference is unknown."""
        n_curves, n_cells = self.shape
        index = (np.arange(n_curves)[:, np.newaxis] * n_cells + references).ravel()
        log_theta, full = self.log_theta - self.log_theta[:, references], self.covariance
        covariance = full - full[index] - full[:, index] + full[np.ix_(index, index)]
        own, of_reference = self.std_error**2, self.std_error[:, references] ** 2
        with np.errstate(invalid="ignore"):
            limits = of_reference > _NOTABLE * (own + of_reference)
        degrees = np.where(limits, np.fmin(self.degrees, self.degrees[:, references]), self.degrees)
        return replace(self, log_theta=log_theta, covariance=covariance, degrees=degrees)

    def contrasts(self, contrasts: Floats) -> Differences:
        """Estimate and test M linear contrasts of log propensities, given by shape (M, S K)."""
        arguments = self.log_theta.ravel(), self.covariance, self.degrees.ravel()
        return linear_contrasts(contrasts, *arguments, correlated=self.correlated)


def change(curves: Curves) -> Differences:
    """Return the second of two curves minus the first, by cell: M = K contrasts."""
    identity = np.eye(curves.shape[1])
    return curves.contrasts(np.hstack([-identity, identity]))


def differences_from_others(curves: Curves) -> Differences:
    """Return each curve minus the precision-weighted mean of all other curves: M = S K contrasts, curve by curve."""
    n_curves, n_cells = curves.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.nan_to_num(curves.std_error**-2.0, posinf=0.0)
        weights = precision * (1 - np.eye(n_curves))[:, :, np.newaxis]  # curve, other curve, cell
        shares = weights / weights.sum(axis=1, keepdims=True)  # NaN if no other curve has an error
    means = np.einsum("sok,kl->skol", shares, np.eye(n_cells)).reshape(2 * [n_curves * n_cells])
    return curves.contrasts(np.eye(n_curves * n_cells) - means)


CURVE = "posbias_curve"
"""The context column whose values are the curves of one fit; the last column."""


def curves_by_context(fit: Fit, cells: pl.DataFrame, names: pl.Series) -> Curves:
    """Return the curves of a fit with the context `CURVE`.

    Args:
        fit: without a shape, by a method with clustered errors.
        cells: the cell columns without `CURVE`, K rows, each cell once.
        names: the S values of `CURVE`.
    """
    every_cell = names.to_frame(CURVE).join(cells, how="cross", maintain_order="left_right")
    row = key_numbers(fit.statistics.cells, every_cell, [*cells.columns, CURVE]).to_numpy().astype(np.float64)
    present, index = np.isfinite(row), np.nan_to_num(row).astype(np.int64)
    fitted, shape = fit.free.fitted, (len(names), cells.height)
    if fitted is None:
        raise TypeError(f"the {fit.free.method} method has no errors that curves share")
    covariance = log_theta_covariance(fitted.fit, fitted.errors)
    return Curves(
        log_theta=np.where(present, fitted.fit.log_theta[index], np.nan).reshape(shape),
        covariance=np.where(np.outer(present, present), covariance[np.ix_(index, index)], np.nan),
        degrees=np.where(present, fitted.errors.degrees[index], np.nan).reshape(shape),
        group=context_numbers(cells, [name for name in fit.statistics.plan.context if name != CURVE]),
        present=present.reshape(shape),
    )


_DEGREES, _PRESENT = "posbias_degrees", "posbias_present"
_NO_LIMIT = 1e9  # degrees of freedom of errors that do not come from clusters


@dataclass(frozen=True)
class SavedCurve:
    """The curve of a saved fit."""

    table: pl.DataFrame  # the cell columns, `propensity`, `std_error`; null if unknown
    covariance: pl.DataFrame | None  # covariance table of log examination (`covariance_table`)
    query_spread: float  # tau; the diagonal of the covariance includes tau^2
    effective_clusters: Sequence[float | None] | None  # by row of the table; None for errors without clusters
    clusters: int  # number of clusters


def curves_by_fit(fits: Sequence[SavedCurve], cells: pl.DataFrame, context: Sequence[str]) -> Curves:
    """Return the curves of S independent fits.

    Args:
        fits: the fits.
        cells: the cell columns, K rows, sorted by context, each cell once.
        context: the context columns among them.
    """
    group, n_cells = context_numbers(cells, context), cells.height
    log_theta, degrees = np.full((2, len(fits), n_cells), np.nan)
    covariance, present = np.zeros((len(fits) * n_cells,) * 2), np.zeros((len(fits), n_cells), np.bool_)
    for number, fit in enumerate(fits):
        effective = [None] * fit.table.height if fit.effective_clusters is None else fit.effective_clusters
        table = fit.table.with_columns(pl.Series(_DEGREES, effective, pl.Float64), pl.lit(value=True).alias(_PRESENT))
        keys = table.with_columns(pl.col(name).cast(dtype) for name, dtype in cells.schema.items())
        joined = cells.join(keys, on=cells.columns, how="left", maintain_order="left", nulls_equal=True)
        propensity, std_error, clusters = (
            joined[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in (PROPENSITY, STD_ERROR, _DEGREES)
        )
        log_theta[number] = np.log(propensity)
        std_error = np.where(np.isfinite(log_theta[number]), std_error, np.nan)
        degrees[number] = _NO_LIMIT
        if fit.effective_clusters is not None:
            degrees[number] = np.maximum(np.fmin(clusters, max(fit.clusters - 1, 1)), 1.0)
        correlation = np.eye(n_cells)
        if fit.covariance is not None:
            examined = cell_covariance(cells, fit.covariance)
            examined -= fit.query_spread**2 * np.diag((np.diag(examined) > 0).astype(np.float64))
            # log propensity is log examination minus that of the reference, the cell with an error of 0
            to_reference = np.eye(n_cells)
            for in_group in (np.flatnonzero(group == value) for value in np.unique(group)):
                references = in_group[std_error[in_group] == 0]
                if len(references):
                    to_reference[in_group, references[0]] -= 1.0
            correlation = correlation_matrix(to_reference @ examined @ to_reference.T)
        block = slice(number * n_cells, (number + 1) * n_cells)
        covariance[block, block] = np.outer(std_error, std_error) * correlation
        present[number] = joined[_PRESENT].fill_null(value=False).to_numpy()
    without = ~np.isfinite(np.diag(covariance))
    covariance[without, :] = covariance[:, without] = np.nan
    correlated = all(fit.covariance is not None for fit in fits)
    return Curves(log_theta, covariance, degrees, group, present, correlated)


DAY = "day"


def change_table(cells: pl.DataFrame, curves: Curves, differences: Differences) -> pl.DataFrame:
    """Tabulate the comparison of two curves, a row per cell.

    Args:
        cells: the cell columns, K rows.
        curves: two curves, relative to the same cells.
        differences: of `change`.

    Returns:
        The cell columns, `propensity_a`, `propensity_b`, `change` (b - a), `ratio` (b / a), `ratio_ci_low`,
        `ratio_ci_high`, `std_error` (of the logarithm of the ratio), `p_value`, `p_value_joint`, `reason` (why the cell
        is not compared). Unknown values are null.
    """
    first, second = np.exp(curves.log_theta)
    reasons = np.full(len(first), None, np.object_)
    for missing, reason in _missing(curves):
        reasons[missing[1]] = f"{reason} in b"
        reasons[missing[0]] = f"{reason} in a"
    numbers = {"propensity_a": first, "propensity_b": second, "change": second - first}
    return _with_ratios(cells, numbers, differences, reasons.tolist())


def day_table(cells: pl.DataFrame, days: pl.Series, curves: Curves, differences: Differences) -> pl.DataFrame:
    """Tabulate the comparison of each day with all other days, a row per day and cell.

    Args:
        cells: the cell columns, K rows.
        days: the S days.
        curves: a curve per day, relative to the same cells.
        differences: of `differences_from_others`.

    Returns:
        `day`, the cell columns, `propensity`, `other_days` (propensity by all other days), `change` (`propensity` -
        `other_days`), and the columns of `change_table` from `ratio` on.
    """
    is_reference = curves.std_error.ravel() == 0
    own, ratio = np.exp(curves.log_theta.ravel()), np.exp(np.where(is_reference, 0.0, differences.difference))
    reasons = np.full(own.size, None, np.object_)
    reasons[~np.isfinite(differences.difference) & ~is_reference] = "no other day has a propensity with an error"
    for missing, reason in _missing(curves):
        reasons[missing.ravel()] = reason
    every_day = days.alias(DAY).to_frame().join(cells, how="cross", maintain_order="left_right")
    numbers = {"propensity": own, "other_days": own / ratio, "change": own - own / ratio}
    return _with_ratios(every_day, numbers, differences, reasons.tolist())


def _missing(curves: Curves) -> list[tuple[Flags, str]]:
    """Flag cells without a standard error, a propensity, or impressions, shape (S, K) each; later reasons override."""
    return [
        (~np.isfinite(curves.std_error), "no standard error"),
        (~np.isfinite(curves.log_theta), "no propensity"),
        (~curves.present, "not shown"),
    ]


def _with_ratios(
    rows: pl.DataFrame, numbers: dict[str, Floats], differences: Differences, reasons: list[str | None]
) -> pl.DataFrame:
    """Add to rows the given numbers, the ratios with intervals and p-values, and reasons."""
    difference, error, degrees = differences.difference, differences.std_error, differences.degrees
    margin = t_quantile(degrees) * error
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        p_value = np.minimum(2 * scipy.special.stdtr(degrees, -(np.abs(difference) / error)), 1.0)
        numbers = numbers | {
            "ratio": np.exp(difference),
            "ratio_ci_low": np.exp(difference - margin),
            "ratio_ci_high": np.exp(difference + margin),
            "std_error": error,
            "p_value": np.where(error > 0, p_value, np.nan),
            "p_value_joint": np.where(error > 0, differences.test.p_values, np.nan),
        }
    columns = [known_numbers(name, values) for name, values in numbers.items()]
    return rows.with_columns(*columns, pl.Series("reason", reasons, pl.String))


def large_changes(table: pl.DataFrame, largest: float) -> pl.DataFrame:
    """Return the rows whose ratio is above 1 + `largest` or below its inverse, with an interval that excludes 1.

    Args:
        table: of `change_table` or `day_table`.
        largest: above 0.
    """
    ratio = pl.col("ratio")
    is_large = (ratio > 1 + largest) | (ratio < 1 / (1 + largest))
    return table.filter(is_large & ((pl.col("ratio_ci_low") > 1) | (pl.col("ratio_ci_high") < 1)))
