"""Curves over the same cells, from several fits or from the contexts of one, and tests of what differs between them."""

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
from posbias.core.standard_errors.contrasts import Differences, correlation_of, covariance_of_cells, linear_contrasts

MOST_VALUES = 2_000
"""Most propensities of all curves together: with more their covariance is not made (32 MB)."""

_NOTABLE = 0.01  # share of a contrast's variance from which on a part limits the degrees of freedom


@dataclass(frozen=True)
class Curves:
    """Several curves."""

    log_theta: Floats  # shape (S, K); NaN where not known
    covariance: Floats  # shape (S K, S K), of the errors; NaN beside what has no error, 0 beside the references
    degrees: Floats  # shape (S, K), degrees of freedom of the errors; NaN where there is none
    group: Integers  # shape (K,): cells of one number can be compared with each other
    present: Flags  # shape (S, K), whether the cell was shown at all
    correlated: bool = True  # whether correlations within a curve are known

    @property
    def shape(self) -> tuple[int, int]:
        """Number of curves S and of cells K."""
        n_curves, n_cells = self.log_theta.shape
        return n_curves, n_cells

    @property
    def std_error(self) -> Floats:
        """Standard errors of log propensities, shape (S, K)."""
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.diag(self.covariance)).reshape(self.shape)

    def references(self) -> Integers:
        """The cell that each cell is compared with, shape (K,): of its group, one that most curves know.

        Of several, that of which most are relative already; then the first.
        """
        known = (np.isfinite(self.log_theta) & np.isfinite(self.std_error)).sum(axis=0)
        known = known * (self.shape[0] + 1) + (self.std_error == 0).sum(axis=0)
        chosen = np.empty(len(self.group), np.int64)
        for group in np.unique(self.group):
            cells = np.flatnonzero(self.group == group)
            chosen[cells] = cells[np.argmax(known[cells])]
        return chosen

    def relative_to(self, references: Integers) -> "Curves":
        """The curves relative to these cells; not known where the reference is not."""
        n_curves, n_cells = self.shape
        chosen = (np.arange(n_curves)[:, np.newaxis] * n_cells + references).ravel()
        log_theta = self.log_theta - self.log_theta[:, references]
        whole = self.covariance
        covariance = whole - whole[chosen] - whole[:, chosen] + whole[np.ix_(chosen, chosen)]
        own, of_reference = self.std_error**2, self.std_error[:, references] ** 2
        with np.errstate(invalid="ignore"):
            limits = of_reference > _NOTABLE * (own + of_reference)
        degrees = np.where(limits, np.fmin(self.degrees, self.degrees[:, references]), self.degrees)
        return replace(self, log_theta=log_theta, covariance=covariance, degrees=degrees)

    def contrasts(self, contrasts: Floats) -> Differences:
        """Contrasts of log propensities, of shape (M, S K)."""
        numbers = self.log_theta.ravel(), self.covariance, self.degrees.ravel()
        return linear_contrasts(contrasts, *numbers, correlated=self.correlated)


def change(curves: Curves) -> Differences:
    """The second of two curves minus the first, cell by cell, M = K."""
    each = np.eye(curves.shape[1])
    return curves.contrasts(np.hstack([-each, each]))


def differences_from_others(curves: Curves) -> Differences:
    """Each curve minus what the others say together, M = S K, curve by curve."""
    n_curves, n_cells = curves.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.nan_to_num(curves.std_error**-2.0, posinf=0.0)
    contrasts = np.eye(n_curves * n_cells)
    for cell in range(n_cells):
        at = np.arange(n_curves) * n_cells + cell
        for curve in range(n_curves):
            weight = precision[:, cell].copy()
            weight[curve] = 0.0
            if weight.sum() > 0:
                contrasts[at[curve], at] -= weight / weight.sum()
            else:
                contrasts[at[curve], at[curve]] = np.nan
    return curves.contrasts(contrasts)


CURVE = "posbias_curve"
"""The context column that tells curves apart; the last one."""


def curves_of(fit: Fit, cells: pl.DataFrame, names: pl.Series) -> Curves:
    """The curves of a fit with the context `CURVE`.

    Args:
        fit: free of shapes, by a method with clustered errors.
        cells: the cell columns without `CURVE`, K rows, each cell once.
        names: the values of `CURVE`, S of them.
    """
    every_cell = names.to_frame(CURVE).join(cells, how="cross", maintain_order="left_right")
    at = key_numbers(fit.statistics.cells, every_cell, [*cells.columns, CURVE]).to_numpy().astype(np.float64)
    there, index = np.isfinite(at), np.nan_to_num(at).astype(np.int64)
    fitted, shape = fit.free.fitted, (len(names), cells.height)
    if fitted is None:
        raise TypeError(f"the {fit.free.method} method has no errors that curves share")
    covariance = covariance_of_cells(fitted.fit, fitted.errors)
    return Curves(
        log_theta=np.where(there, fitted.fit.log_theta[index], np.nan).reshape(shape),
        covariance=np.where(np.outer(there, there), covariance[np.ix_(index, index)], np.nan),
        degrees=np.where(there, fitted.errors.degrees[index], np.nan).reshape(shape),
        group=context_numbers(cells, [name for name in fit.statistics.plan.context if name != CURVE]),
        present=there.reshape(shape),
    )


_DEGREES, _PRESENT = "posbias_degrees", "posbias_present"
_NO_LIMIT = 1e9  # degrees of freedom of errors that do not come from clusters


@dataclass(frozen=True)
class SavedCurve:
    """A fit as it was written."""

    table: pl.DataFrame  # the cell columns, `propensity`, `std_error`; null where not known
    covariance: pl.DataFrame | None  # the table of the covariance of log examination; None where there is none
    query_spread: float  # tau, of which tau^2 is on the diagonal of the covariance
    # by row of the table, of the errors; None where they do not come from clusters
    effective_clusters: Sequence[float | None] | None
    clusters: int  # how many there are


def curves_by_fit(fits: Sequence[SavedCurve], cells: pl.DataFrame, context: Sequence[str]) -> Curves:
    """The curves of several fits, each with errors of its own.

    Args:
        fits: S of them.
        cells: the cell columns, K rows, sorted by context, each cell once.
        context: those of the columns that are contexts.
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
            # That of log propensity, from that of log examination: relative to what has an error of 0.
            to_reference = np.eye(n_cells)
            for of_group in (np.flatnonzero(group == value) for value in np.unique(group)):
                references = of_group[std_error[of_group] == 0]
                if len(references):
                    to_reference[of_group, references[0]] -= 1.0
            correlation = correlation_of(to_reference @ examined @ to_reference.T)
        block = slice(number * n_cells, (number + 1) * n_cells)
        covariance[block, block] = np.outer(std_error, std_error) * correlation
        present[number] = joined[_PRESENT].fill_null(value=False).to_numpy()
    without = ~np.isfinite(np.diag(covariance))
    covariance[without, :] = covariance[:, without] = np.nan
    correlated = all(fit.covariance is not None for fit in fits)
    return Curves(log_theta, covariance, degrees, group, present, correlated)


DAY = "day"


def change_table(cells: pl.DataFrame, curves: Curves, differences: Differences) -> pl.DataFrame:
    """One row per cell.

    Args:
        cells: the cell columns, K rows.
        curves: two of them, relative to the same cells.
        differences: of `change`.

    Returns:
        The cell columns, `propensity_a`, `propensity_b`, `change` (b - a), `ratio` (b / a), `ratio_ci_low`,
        `ratio_ci_high`, `std_error` (of the logarithm of the ratio), `p_value`, `p_value_joint`, `reason` (why it is
        not compared). What is not known is null.
    """
    first, second = np.exp(curves.log_theta)
    reasons = np.full(len(first), None, np.object_)
    for unknown, reason in _unknown(curves):
        reasons[unknown[1]] = f"{reason} in b"
        reasons[unknown[0]] = f"{reason} in a"
    numbers = {"propensity_a": first, "propensity_b": second, "change": second - first}
    return _with_ratios(cells, numbers, differences, reasons.tolist())


def day_table(cells: pl.DataFrame, days: pl.Series, curves: Curves, differences: Differences) -> pl.DataFrame:
    """One row per day and cell.

    Args:
        cells: the cell columns, K rows.
        days: S of them.
        curves: a curve per day, relative to the same cells.
        differences: of `differences_from_others`.

    Returns:
        `day`, the cell columns, `propensity`, `other_days` (what the others say together), `change` (from that), and
        the rest as in `change_table`.
    """
    is_reference = curves.std_error.ravel() == 0
    own, apart = np.exp(curves.log_theta.ravel()), np.exp(np.where(is_reference, 0.0, differences.difference))
    reasons = np.full(own.size, None, np.object_)
    reasons[~np.isfinite(differences.difference) & ~is_reference] = "no other day has a propensity with an error"
    for unknown, reason in _unknown(curves):
        reasons[unknown.ravel()] = reason
    every_day = days.alias(DAY).to_frame().join(cells, how="cross", maintain_order="left_right")
    numbers = {"propensity": own, "other_days": own / apart, "change": own - own / apart}
    return _with_ratios(every_day, numbers, differences, reasons.tolist())


def _unknown(curves: Curves) -> list[tuple[Flags, str]]:
    """Which cells of which curves have no error, no propensity, or nothing, the most important last; (S, K)."""
    return [
        (~np.isfinite(curves.std_error), "no standard error"),
        (~np.isfinite(curves.log_theta), "no propensity"),
        (~curves.present, "not shown"),
    ]


def _with_ratios(
    rows: pl.DataFrame, numbers: dict[str, Floats], differences: Differences, reasons: list[str | None]
) -> pl.DataFrame:
    """Rows with numbers of their own, the columns of ratios with the interval and the test of each, and reasons."""
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


def beyond(table: pl.DataFrame, largest: float) -> pl.DataFrame:
    """The rows whose propensity has changed by more than a share, up or down, and by more than its error.

    Args:
        table: of `change_table` or `day_table`.
        largest: above 0; with 0.5, a propensity may be half as high again, or by that factor lower.
    """
    ratio = pl.col("ratio")
    far = (ratio > 1 + largest) | (ratio < 1 / (1 + largest))
    return table.filter(far & ((pl.col("ratio_ci_low") > 1) | (pl.col("ratio_ci_high") < 1)))
