"""Which propensities weights are made from: the smooth curve exactly where the fitted one is too uncertain."""

import polars as pl

from posbias.core.training.thin_cells import choose_propensities

TABLE = pl.DataFrame(
    {
        "position": [1, 2, 3, 4, 5],
        "propensity": [1.0, 0.8, 2.1, 0.2, None],
        "examination": [1 / 2.1, 0.8 / 2.1, 1.0, 0.2 / 2.1, None],
        "std_error": [0.0, 0.25, 0.26, None, None],
        "smooth_propensity": [1.0, 0.7, 0.5, 0.4, 0.3],
        "smooth_std_error": [0.0, 0.1, 0.11, 0.12, 0.13],
    }
)


def test_the_smooth_curve_is_taken_where_the_error_is_beyond_the_limit_or_missing_and_makes_no_cell_known() -> None:
    chosen = choose_propensities(TABLE, "smooth")
    assert chosen.smooth == (3, 4)
    assert chosen.table["propensity"].to_list() == [1.0, 0.8, 0.5, 0.4, None]
    assert chosen.table["std_error"].to_list() == [0.0, 0.25, 0.11, 0.12, None]
    assert chosen.table["examination"].to_list() == [1.0, 0.8, 0.5, 0.4, None]


def test_fitted_propensities_stay_where_that_is_asked_for_or_there_is_no_smooth_curve() -> None:
    without = TABLE.with_columns(smooth_propensity=pl.lit(None, pl.Float64))
    for table, source in ((TABLE, "fitted"), (without, "smooth")):
        chosen = choose_propensities(table, source)  # pyright: ignore[reportArgumentType]
        assert chosen.smooth == ()
        assert chosen.table.equals(table)
