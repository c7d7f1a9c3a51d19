"""What training files are made from: propensities, the prior of attractiveness, and how far theta may be off.

The covariance of log examination has a table of its own: the cell columns, and a list `covariance` with one entry for
each cell, in the order of the rows. Beside it may stand a list `shared_clicks`, likewise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.attractiveness.prior import AttractivenessPrior
from posbias.core.errors import LogFormatError

COVARIANCE = "covariance"
SHARED_CLICKS = "shared_clicks"

_ROUNDING = 1e-8  # of an entry, on both sides of the diagonal
_ROW = "posbias_row"


@dataclass(frozen=True)
class FittedTheta:
    """Theta as it was fitted."""

    propensities: pl.DataFrame  # the propensity table, a row per cell
    prior: AttractivenessPrior | None  # of attractiveness; None where it is not known, and is estimated from the log
    covariance: pl.DataFrame | None = None  # its table; None where the method has no errors, or the fit is older


def covariance_table(cells: pl.DataFrame, covariance: Floats, shared: Floats | None = None) -> pl.DataFrame:
    """The covariance of log examination as a table.

    Args:
        cells: the cell columns, K rows.
        covariance: shape (K, K).
        shared: the clicks that compare cells (`fit.shared_clicks`), shape (K, K).
    """
    matrices = {COVARIANCE: covariance} if shared is None else {COVARIANCE: covariance, SHARED_CLICKS: shared}
    return cells.with_columns(pl.Series(name, matrix, pl.List(pl.Float64)) for name, matrix in matrices.items())


def matrix_of(column: pl.Series) -> Floats:
    """A column of lists as a matrix, shape (K, K)."""
    return np.array(column.to_list(), np.float64).reshape(len(column), len(column))


def covariance_of(cells: pl.DataFrame, table: pl.DataFrame) -> Floats:
    """The covariance of log examination of some cells, shape (K, K); rows of cells that the table lacks are 0.

    Args:
        cells: the cell columns, K rows.
        table: as from `covariance_table`, of these or other cells.
    """
    keys = table.select(pl.col(name).cast(dtype) for name, dtype in cells.schema.items()).with_row_index(_ROW)
    row = cells.join(keys, on=cells.columns, how="left", maintain_order="left", nulls_equal=True)[_ROW]
    known = row.is_not_null().to_numpy()
    there = row.fill_null(0).to_numpy()
    whole = matrix_of(table[COVARIANCE])
    return np.where(np.outer(known, known), whole[np.ix_(there, there)], 0.0)


def check_covariance(table: pl.DataFrame, cells: Sequence[str], *, where: str) -> pl.DataFrame:
    """The table, if it can be a covariance of the cells of a propensity table.

    Args:
        table: what was read.
        cells: the cell columns.
        where: the file, for the message.

    Raises:
        LogFormatError: it cannot.
    """
    lists = [name for name in table.columns if name not in cells]
    expected = table.columns == [*cells, *lists] and lists in ([COVARIANCE], [COVARIANCE, SHARED_CLICKS])
    if not expected or any(table.schema[name] != pl.List(pl.Float64) for name in lists):
        raise LogFormatError(f"{where}: the columns must be {', '.join(cells)} and a list {COVARIANCE!r}.")
    for name in lists:
        if not (table[name].list.len() == table.height).fill_null(value=False).all():
            raise LogFormatError(f"{where}: {name!r} must have an entry for each of the {table.height} rows.")
    covariance = matrix_of(table[COVARIANCE])
    variance = np.diag(covariance)
    size = np.sqrt(np.outer(variance.clip(0), variance.clip(0)))
    if not ((variance >= 0).all() and _is_symmetric(covariance, size + _ROUNDING)):
        raise LogFormatError(f"{where}: {COVARIANCE!r} is no covariance: it must be finite and symmetric.")
    if SHARED_CLICKS in lists:
        shared = matrix_of(table[SHARED_CLICKS])
        if not ((shared >= 0).all() and _is_symmetric(shared, np.abs(shared) + 1)):
            raise LogFormatError(f"{where}: {SHARED_CLICKS!r} must be finite, at least 0 and symmetric.")
    return table


def _is_symmetric(matrix: Floats, size: Floats) -> bool:
    """Whether a matrix is finite, and symmetric but for rounding of entries of the given size."""
    return bool(np.isfinite(matrix).all() and (np.abs(matrix - matrix.T) <= _ROUNDING * size).all())
