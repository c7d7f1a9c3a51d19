r"""Replicate weights: what the click weights would be under other propensities that the log allows as well.

    theta_r = theta exp(z_r),  z_r ~ N(0, V),  r = 1 .. N        w_r = 1 / max(theta_r, tau)

V is the covariance of log theta; the reference cell has none. A model that is trained, or a sum that is taken, with
each of the N weights in turn varies by what the errors of theta do to it. All clicks of a cell share its error, so that
no number of clicks makes it smaller. What the clicks themselves vary by is not in it.

The draws are the same in every run.

Source: Wolter 2007, Introduction to Variance Estimation (replicate weights).
"""

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.fit.propensities import PROPENSITY, STD_ERROR
from posbias.core.schema import POSITION, PREVIOUS_CLICK, WEIGHT

_ROW, _REFERENCE = "posbias_row", "posbias_reference"
_SEED = 20_070_101
_NAME = re.compile(rf"replicate_{WEIGHT}_[0-9]+")


def replicate_names(number: int) -> list[str]:
    """The columns of so many replicate weights."""
    return [f"replicate_{WEIGHT}_{draw}" for draw in range(1, number + 1)]


def is_replicate(name: str) -> bool:
    """Whether a column is called like replicate weights."""
    return _NAME.fullmatch(name) is not None


def weight_columns(columns: Iterable[str]) -> list[str]:
    """The column of weights and those of replicate weights, in their order."""
    return [name for name in columns if name == WEIGHT or is_replicate(name)]


def draw_propensities(propensity: Floats, covariance: Floats, number: int) -> Floats:
    """Propensities that the log allows as well.

    Args:
        propensity: theta, shape (K,), nan where a cell has none.
        covariance: of log theta, shape (K, K).
        number: N.

    Returns:
        Shape (N, K), nan where `propensity` is.
    """
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn = np.random.default_rng(_SEED).standard_normal((number, len(propensity))) @ root.T
    return propensity * np.exp(drawn)


def relative_covariance(table: pl.DataFrame, examination: Floats, std_error: Floats) -> Floats:
    """The covariance of the logarithms of propensities, which are relative to a reference cell.

    Args:
        table: the cell columns, `propensity` and `std_error` of a fit, K rows.
        examination: the covariance of log examination, which is relative to the largest cell, up to a constant on the
            diagonal, shape (K, K).
        std_error: of the log propensities to take, shape (K,): where it is not the fit's, they are not either; the
            correlations stay.

    Returns:
        Shape (K, K), 0 where a cell has no propensity.
    """
    cells = np.arange(table.height)
    constant = np.min(np.diag(examination), initial=np.inf)
    reference = _references(table)
    relative = np.eye(table.height)
    relative[cells[reference >= 0], reference[reference >= 0]] -= 1.0
    covariance = relative @ (examination - constant * np.eye(table.height)) @ relative.T
    spread = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    fitted = table[STD_ERROR].cast(pl.Float64).fill_null(np.nan).to_numpy()
    wanted = np.where(std_error == fitted, spread, np.nan_to_num(std_error))
    factor = np.divide(wanted, spread, out=np.zeros_like(spread), where=spread > 0)
    scaled = covariance * np.outer(factor, factor)
    alone = np.where(spread > 0, 0.0, wanted)
    return np.asarray(scaled + np.diag(alone**2))


def _references(table: pl.DataFrame) -> npt.NDArray[np.int64]:
    """The row of each cell's reference, that of its context, whose propensity is 1 without an error; -1 for none."""
    contexts = [name for name in table.columns if name not in (POSITION, PREVIOUS_CLICK, PROPENSITY, STD_ERROR)]
    is_reference = (pl.col(PROPENSITY) == 1) & (pl.col(STD_ERROR) == 0)
    first = pl.col(_ROW).filter(is_reference).min()
    found = table.with_row_index(_ROW).with_columns((first.over(contexts) if contexts else first).alias(_REFERENCE))
    return found[_REFERENCE].cast(pl.Int64).fill_null(-1).to_numpy()
