"""Which propensities weights are made from: the smooth curve exactly where the fitted one is too uncertain."""

import polars as pl
import pytest

from posbias.core.choices import Source
from posbias.core.errors import LogFormatError
from posbias.core.fit.propensities import check_propensities, choose_propensities

OLD = pl.DataFrame(
    {
        "position": [1, 2, 3, 4, 5],
        "propensity": [1.0, 0.8, 2.1, 0.2, None],
        "examination": [1 / 2.1, 0.8 / 2.1, 1.0, 0.2 / 2.1, None],
        "std_error": [0.0, 0.25, 0.26, None, None],
        "smooth_propensity": [1.0, 0.7, 0.5, 0.4, 0.3],
        "smooth_std_error": [0.0, 0.1, 0.11, 0.12, 0.13],
    }
)
WITH_COLUMN = OLD.with_columns(weight_propensity=pl.Series([1.0, 0.8, 0.5, 0.4, None]))


@pytest.mark.parametrize("written", [OLD, WITH_COLUMN], ids=["an old result", "with the column"])
def test_the_smooth_curve_is_taken_where_the_error_is_beyond_the_limit_or_missing_and_makes_no_cell_known(
    written: pl.DataFrame,
) -> None:
    table = check_propensities(written, ["position"], where="t")
    chosen = choose_propensities(table, "smooth")
    assert chosen.smooth == (3, 4)
    assert table["weight_propensity"].to_list() == [1.0, 0.8, 0.5, 0.4, None]
    assert chosen.table["propensity"].equals(table["weight_propensity"])
    assert chosen.table["std_error"].to_list() == [0.0, 0.25, 0.11, 0.12, None]
    assert chosen.table["examination"].to_list() == [1.0, 0.8, 0.5, 0.4, None]


def test_weights_use_the_column_itself() -> None:
    """Nothing is computed anew, so that weights cannot differ from the table."""
    table = check_propensities(WITH_COLUMN.with_columns(std_error=0.0), ["position"], where="t")
    assert choose_propensities(table, "smooth").smooth == (3, 4)


@pytest.mark.parametrize("source", ["fitted", "smooth"])
def test_fitted_propensities_stay_where_that_is_asked_for_or_there_is_no_smooth_curve(source: Source) -> None:
    written = OLD if source == "fitted" else OLD.with_columns(smooth_propensity=pl.lit(None, pl.Float64))
    table = check_propensities(written, ["position"], where="t")
    chosen = choose_propensities(table, source)
    assert chosen.smooth == ()
    assert chosen.table.equals(table)


@pytest.mark.parametrize(
    "edited", [[1.0, 0.8, 0.5, 0.45, None], [1.0, 0.8, 0.5, 0.4, 0.3], [1.0, 0.8, 0.5, None, None]]
)
def test_a_weight_propensity_that_is_neither_of_the_propensities_is_refused(edited: list[float | None]) -> None:
    table = WITH_COLUMN.with_columns(weight_propensity=pl.Series(edited))
    with pytest.raises(LogFormatError, match="weight_propensity that is neither"):
        check_propensities(table, ["position"], where="t")
