"""The covariance of theta as a table that is written and read again."""

import numpy as np
import polars as pl
import pytest

from posbias.core.errors import LogFormatError
from posbias.core.fit.propensities import cell_covariance, check_covariance, covariance_table

CELLS = pl.DataFrame({"position": [1, 2, 3]}, schema={"position": pl.Int32})
FACTOR = np.array([[0.0, 0.0, 0.0], [0.1, 0.2, 0.0], [0.1, -0.1, 0.3]])
COVARIANCE = FACTOR @ FACTOR.T


def test_a_covariance_is_the_same_again_for_cells_in_any_order() -> None:
    table = check_covariance(covariance_table(CELLS, COVARIANCE), ["position"], where="f")
    order = np.array([2, 0, 1])

    np.testing.assert_array_equal(cell_covariance(CELLS, table), COVARIANCE)
    np.testing.assert_array_equal(cell_covariance(CELLS[order], table), COVARIANCE[np.ix_(order, order)])


def test_cells_that_the_fit_did_not_have_add_no_error() -> None:
    cells = pl.DataFrame({"position": [2, 9]}, schema={"position": pl.Int64})
    found = cell_covariance(cells, covariance_table(CELLS, COVARIANCE))

    np.testing.assert_array_equal(found, [[COVARIANCE[1, 1], 0], [0, 0]])


def edited(row: int, column: int, value: float) -> pl.DataFrame:
    covariance = COVARIANCE.copy()
    covariance[row, column] = value
    return covariance_table(CELLS, covariance)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (edited(1, 2, 0.5), "must be finite and symmetric"),
        (edited(1, 1, np.nan), "must be finite and symmetric"),
        (edited(2, 2, -1.0), "must be finite and symmetric"),
        (covariance_table(CELLS, COVARIANCE).head(2), "an entry for each of the 2 rows"),
        (covariance_table(CELLS, COVARIANCE).rename({"position": "rank"}), "the columns must be position and a list"),
        (CELLS.with_columns(covariance=0.1), "the columns must be position and a list"),
    ],
)
def test_what_is_no_covariance_is_refused(table: pl.DataFrame, message: str) -> None:
    with pytest.raises(LogFormatError, match=message):
        check_covariance(table, ["position"], where="f")
