"""Which propensities weights are made from: the fitted ones, or a smooth curve where those are too uncertain.

A weight is 1 / theta, so that an error of theta goes into all clicks of its cell. Where the relative standard error of
the fitted propensity is beyond a limit, the smooth curve that a fit writes beside it is nearer to the truth.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.choices import LARGEST_ERROR, Source
from posbias.core.fit.propensities import EXAMINATION, PROPENSITY, SMOOTH_PROPENSITY, SMOOTH_STD_ERROR, STD_ERROR
from posbias.core.fit.refinements import is_thin
from posbias.core.schema import POSITION


@dataclass(frozen=True)
class ChosenPropensities:
    """A propensity table to make weights from.

    Attributes:
        table: with the chosen `propensity`, its `examination` and `std_error`.
        smooth: the positions that have the smooth curve's.
        known: how many cells have a propensity.
        largest_error: standard error of log propensity up to which the fitted one is taken.
    """

    table: pl.DataFrame
    smooth: tuple[int, ...]
    known: int
    largest_error: float = LARGEST_ERROR


def choose_propensities(table: pl.DataFrame, source: Source) -> ChosenPropensities:
    """The propensities to make weights from.

    Args:
        table: of a fit: the cells, `propensity`, `examination`, `std_error`, `smooth_propensity`.
        source: `fitted` takes them as they are; `smooth` takes the smooth curve where the standard error is beyond
            the limit or missing, and there is a smooth curve.
    """
    fitted, smooth, error = (
        table[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in (PROPENSITY, SMOOTH_PROPENSITY, STD_ERROR)
    )
    chosen = is_thin(fitted, error) & np.isfinite(smooth) & (smooth != fitted) & (source == "smooth")
    known = int(np.isfinite(fitted).sum())
    if not chosen.any():
        return ChosenPropensities(table, (), known)
    propensity = np.where(chosen, smooth, fitted)
    error_of_smooth = table[SMOOTH_STD_ERROR].cast(pl.Float64).fill_null(np.nan).to_numpy()
    changed = table.with_columns(
        pl.Series(STD_ERROR, np.where(chosen, error_of_smooth, error), nan_to_null=True),
        pl.Series(PROPENSITY, propensity, nan_to_null=True),
        pl.Series(EXAMINATION, propensity / np.nanmax(propensity), nan_to_null=True),
    )
    positions: list[int] = table[POSITION].filter(pl.Series(chosen)).to_list()
    return ChosenPropensities(changed, tuple(positions), known)
