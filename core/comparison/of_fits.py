"""Curves of several fits: what one says of the errors of another is not known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.comparison.curves import Curves
from posbias.core.comparison.of_contexts import groups_of
from posbias.core.fit.fitted_theta import covariance_of
from posbias.core.fit.propensities import PROPENSITY, STD_ERROR
from posbias.core.standard_errors.contrasts import correlation_of

_DEGREES, _PRESENT = "posbias_degrees", "posbias_present"
_NO_LIMIT = 1e9  # degrees of freedom of errors that do not come from clusters


@dataclass(frozen=True)
class FittedCurve:
    """A fit as it was written.

    Attributes:
        table: the cell columns, `propensity`, `std_error`; null where not known.
        covariance: the table of the covariance of log examination; None where there is none.
        query_spread: tau, of which tau^2 is on the diagonal of the covariance.
        effective_clusters: by row of the table, of the errors; None where they do not come from clusters.
        clusters: how many there are.
    """

    table: pl.DataFrame
    covariance: pl.DataFrame | None
    query_spread: float
    effective_clusters: Sequence[float | None] | None
    clusters: int


def curves_of_fits(fits: Sequence[FittedCurve], cells: pl.DataFrame, context: Sequence[str]) -> Curves:
    """The curves of several fits, each with errors of its own.

    Args:
        fits: S of them.
        cells: the cell columns, K rows, sorted by context, each cell once.
        context: those of the columns that are contexts.
    """
    group = groups_of(cells, context)
    n_cells = cells.height
    covariance = np.zeros((len(fits) * n_cells, len(fits) * n_cells))
    curves = [_curve(fit, cells, group) for fit in fits]
    for number, (_, own, _, _) in enumerate(curves):
        block = slice(number * n_cells, (number + 1) * n_cells)
        covariance[block, block] = own
    without = ~np.isfinite(np.diag(covariance))
    covariance[without, :] = covariance[:, without] = np.nan
    return Curves(
        log_theta=np.array([log_theta for log_theta, _, _, _ in curves]),
        covariance=covariance,
        degrees=np.array([degrees for _, _, degrees, _ in curves]),
        group=group,
        present=np.array([present for _, _, _, present in curves]),
        correlated=all(fit.covariance is not None for fit in fits),
    )


def _curve(fit: FittedCurve, cells: pl.DataFrame, group: Integers) -> tuple[Floats, Floats, Floats, Flags]:
    """Log propensities, their covariance and degrees of freedom, on the given cells, and which of these there are."""
    effective = [None] * fit.table.height if fit.effective_clusters is None else fit.effective_clusters
    table = fit.table.with_columns(pl.Series(_DEGREES, effective, pl.Float64), pl.lit(value=True).alias(_PRESENT))
    keys = table.with_columns(pl.col(name).cast(dtype) for name, dtype in cells.schema.items())
    found = cells.join(keys, on=cells.columns, how="left", maintain_order="left", nulls_equal=True)
    log_theta = np.log(_numbers(found[PROPENSITY]))
    std_error = np.where(np.isfinite(log_theta), _numbers(found[STD_ERROR]), np.nan)
    degrees = np.full(len(group), _NO_LIMIT)
    if fit.effective_clusters is not None:
        degrees = np.maximum(np.fmin(_numbers(found[_DEGREES]), max(fit.clusters - 1, 1)), 1.0)
    correlation = np.eye(len(group))
    if fit.covariance is not None:
        examined = covariance_of(cells, fit.covariance)
        examined -= fit.query_spread**2 * np.diag((np.diag(examined) > 0).astype(np.float64))
        correlation = correlation_of(_relative(examined, std_error, group))
    present = found[_PRESENT].fill_null(value=False).to_numpy()
    return log_theta, np.outer(std_error, std_error) * correlation, degrees, present


def _relative(covariance: Floats, std_error: Floats, group: Integers) -> Floats:
    """The covariance of log propensity, from that of log examination: relative to what has an error of 0."""
    to_reference = np.eye(len(group))
    for number in np.unique(group):
        cells = np.flatnonzero(group == number)
        references = cells[std_error[cells] == 0]
        if len(references):
            to_reference[cells, references[0]] -= 1.0
    return to_reference @ covariance @ to_reference.T


def _numbers(column: pl.Series) -> Floats:
    return column.cast(pl.Float64).fill_null(np.nan).to_numpy().astype(np.float64)
