"""Examination of each impression of a log, page by page, under a click model that was fitted before."""

from collections.abc import Iterator, Mapping

import numpy as np
import polars as pl

from posbias.core.browsing.batch import Floats, Integers, PageBatch
from posbias.core.browsing.parameters import Parameters
from posbias.core.models.click_model import ExaminationModel
from posbias.core.schema import CLICK, POSITION, SESSION


def examination_of_rows(
    model: ExaminationModel, impressions: pl.DataFrame, of_rows: Mapping[str, Floats], shared: Parameters
) -> Floats:
    """P(E_r = 1 | c_1 .. c_(r-1)) of each impression.

    Args:
        model: the click model.
        impressions: `session`, `position`, `click` of whole pages, in page order; M rows.
        of_rows: the parameters by unit, each of the unit of the row, shape (M,).
        shared: the other parameters.

    Returns:
        Shape (M,), in [0, 1]; nan where a parameter is that decides it.
    """
    examined = np.empty(impressions.height)
    by_row = {name: np.append(values, np.nan) for name, values in of_rows.items()}
    for rows, batch in _pages(impressions):
        examined[rows] = model.examination({**shared, **by_row}, batch)
    return examined


def _pages(impressions: pl.DataFrame) -> Iterator[tuple[Integers, PageBatch]]:
    """Pages of one length at a time: the rows that they stand in, shape (N, L), and the pages, each row a unit."""
    session = impressions[SESSION]
    starts = np.flatnonzero((session != session.shift(1)).fill_null(value=True).to_numpy())
    length = np.diff(np.append(starts, impressions.height))
    click, position = (impressions[CLICK] > 0).to_numpy(), impressions[POSITION].cast(pl.Int64).to_numpy()
    for n_ranks in np.unique(length).tolist():
        below: Integers = np.arange(n_ranks, dtype=np.int64)
        rows: Integers = starts[length == n_ranks, np.newaxis] + below
        weight = np.ones(len(rows))
        yield rows, PageBatch(rows, position[rows], click[rows], np.ones((len(rows), n_ranks), dtype=np.bool_), weight)
