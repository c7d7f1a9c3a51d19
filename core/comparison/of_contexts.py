"""Curves from one fit of all counts, in which each curve is a context of its own: their errors are known together."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Integers
from posbias.core.comparison.curves import Curves
from posbias.core.fit.fit import Fit

CURVE = "posbias_curve"
"""The context column that tells curves apart; the last one."""


def curves_of(fit: Fit, cells: pl.DataFrame, names: pl.Series) -> Curves:
    """The curves of a fit with the context `CURVE`.

    Args:
        fit: free of shapes, by a method with clustered errors.
        cells: the cell columns without `CURVE`, K rows, each cell once.
        names: the values of `CURVE`, S of them.
    """
    wanted = names.to_frame(CURVE).join(cells, how="cross", maintain_order="left_right")
    held = fit.statistics.cells.with_row_index("posbias_row")
    row = wanted.join(held, on=[*cells.columns, CURVE], how="left", maintain_order="left", nulls_equal=True)
    at = row["posbias_row"].to_numpy().astype(np.float64)
    there, index = np.isfinite(at), np.nan_to_num(at).astype(np.int64)
    fitted, shape = fit.free.fitted, (len(names), cells.height)
    if fitted is None:
        raise TypeError(f"the {fit.free.method} method has no errors that curves share")
    n_cells, free = fit.statistics.n_cells, fitted.fit.free_cells
    covariance = np.full((n_cells, n_cells), np.nan)
    references = np.setdiff1d(np.flatnonzero(np.isfinite(fitted.fit.log_theta)), free)
    covariance[np.ix_(free, free)] = fitted.errors.covariance
    covariance[references], covariance[:, references] = 0.0, 0.0
    known = np.isfinite(np.diag(covariance))
    covariance[np.ix_(known, ~known)] = covariance[np.ix_(~known, known)] = np.nan
    whole = np.where(np.outer(there, there), covariance[np.ix_(index, index)], np.nan)
    return Curves(
        log_theta=np.where(there, fitted.fit.log_theta[index], np.nan).reshape(shape),
        covariance=whole,
        degrees=np.where(there, fitted.errors.degrees[index], np.nan).reshape(shape),
        group=groups_of(cells, [name for name in fit.statistics.plan.context if name != CURVE]),
        present=there.reshape(shape),
    )


def groups_of(cells: pl.DataFrame, context: Sequence[str]) -> Integers:
    """The number of each cell's context, shape (K,); the cells are sorted by context."""
    if not context:
        return np.zeros(cells.height, np.int64)
    return cells.select(pl.struct(context).rle_id()).to_series().to_numpy().astype(np.int64)
