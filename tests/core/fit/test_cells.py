"""Cells of several columns: what they are equal to, which cell is the reference, which form is chosen."""

from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
from present import present
from small_logs import PBM, UBM, log_by_value, statistics_of

from posbias.core.choices import CellForm
from posbias.core.counts.checks import check_curves
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import UsageError
from posbias.core.estimators import check_method
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.standard_errors.contrasts import log_theta_covariance

BY_VALUE = replace(PBM, cell=("value",))
LOG = log_by_value("examination", 1, n_pages=1000)  # with the value 0, at position k theta_k becomes .6 theta_k^1.8


def fitted(
    log: pl.DataFrame, plan: StatisticsPlan = BY_VALUE, parts: int = 1, cell_form: CellForm | None = "free"
) -> Fit:
    options = EstimationOptions(period="none", cell_form=cell_form if plan.cell else None)
    return fit_statistics(statistics_of(log, plan, parts), "conditional", options, compare=False)


@cache
def of_log(cell_form: CellForm) -> Fit:
    """The fit of `LOG`, made once for each form."""
    return fitted(LOG, cell_form=cell_form)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.slow_after(1)
def test_a_column_of_one_value_changes_no_bit(parts: int) -> None:
    without = fitted(LOG, PBM, parts)
    beside = fitted(LOG.with_columns(value=pl.lit("same")), parts=parts, cell_form=None)

    assert beside.propensities.drop("value").equals(without.propensities)
    assert beside.attractiveness.tolist() == without.attractiveness.tolist()
    assert beside.cell_form == "free"


def test_cells_are_those_that_a_single_number_codes() -> None:
    coded = LOG.with_columns(position=(2 * pl.col("position") - pl.col("value").cast(pl.Int32)).cast(pl.Int32))
    by_number, by_columns = fitted(coded, PBM), of_log("free")
    numbered = by_columns.propensities.with_columns(code=2 * pl.col("position") - pl.col("value").cast(pl.Int32))
    numbered = numbered.sort("code")
    reference = by_number.propensities["propensity"][int(np.flatnonzero(numbered["propensity"] == 1)[0])]

    assert numbered["propensity"].to_numpy() * reference == pytest.approx(
        by_number.propensities["propensity"].to_numpy(), rel=1e-9
    )


@pytest.mark.parametrize("often", ["0", "1"])
def test_the_reference_is_the_top_position_under_the_value_shown_most(often: str) -> None:
    rare = pl.col("session") % 3 > 0
    found = fitted(LOG.filter((pl.col("value") == often) | rare))

    assert found.propensities.filter(propensity=1.0).select("position", "value").rows() == [(1, often)]


def test_of_lists_shown_equally_often_the_one_with_most_clicks_has_the_reference() -> None:
    twice = pl.concat([LOG.with_columns(value=pl.lit("a list")), LOG.with_columns(value=pl.lit("best"))])
    second = (pl.col("value") == "best") | (pl.col("session") % 2 == 0)
    found = fitted(twice.with_columns(click=pl.when(second).then("click").otherwise(0)))

    assert found.propensities.filter(propensity=1.0).select("position", "value").rows() == [(1, "best")]


def test_a_list_whose_documents_are_nowhere_else_has_no_reference() -> None:
    lists = [LOG.with_columns(value=pl.lit(name), session=pl.col("session") + at) for at, name in enumerate("abc")]
    apart = lists[0].with_columns(doc=pl.col("doc") + 1000)
    shown_less = pl.when(pl.col("session") % 2 == 0).then("click").otherwise(0)
    found = fitted(pl.concat([apart, *(one.with_columns(click=shown_less) for one in lists[1:])]))
    known = found.propensities.filter(pl.col("propensity").is_not_null())["value"].unique().to_list()

    assert sorted(known) == ["b", "c"]


@pytest.mark.slow
def test_each_context_is_estimated_as_if_it_were_alone() -> None:
    log = LOG.with_columns(device=pl.col("query") % 2)
    both = fitted(log, replace(BY_VALUE, context=("device",)))
    for device in (0, 1):
        alone = fitted(log.filter(device=device))
        unshrunk = both.propensities.filter(device=device)["unshrunk_propensity"]
        assert unshrunk.to_numpy() == pytest.approx(alone.propensities["propensity"].to_numpy(), rel=1e-9)


def test_positions_that_follow_from_row_and_column_are_no_axis() -> None:
    grid = LOG.with_columns(row=(pl.col("position") - 1) // 4, column=(pl.col("position") - 1) % 4)

    assert statistics_of(grid, replace(PBM, cell=("row", "column"))).axes_of_cell.shape[1] == 2
    assert statistics_of(grid, replace(PBM, cell=("row",))).axes_of_cell.shape[1] == 2
    assert statistics_of(LOG, BY_VALUE).axes_of_cell.max(axis=0).tolist() == [7, 1]


@pytest.mark.slow
def test_the_form_is_chosen_by_its_test() -> None:
    alike = log_by_value("taste", 1, n_pages=1000)  # clicked half as often with the value 0, at all positions
    product, free = fitted(alike, cell_form=None), fitted(LOG, cell_form=None)

    assert (product.cell_form, free.cell_form) == ("product", "free")
    assert product.estimate.propensity.tolist() == present(product.form).theta.tolist()
    assert of_log("product").cell_form == "product"
    assert fitted(alike, cell_form="free").cell_form == "free"


def test_errors_of_products_go_together_as_their_effects_do() -> None:
    """What two positions differ by under one value they differ by under the other one: that has no error of its own."""
    product, free = of_log("product"), of_log("free")
    contrast = np.zeros(16)
    contrast[[0, 9]], contrast[[1, 8]] = 1, -1  # positions 1 and 2 under both values
    of_product, of_free = (
        contrast @ (found.covariance - found.query_spread**2 * np.eye(16)) @ contrast / (2 * np.trace(found.covariance))
        for found in (product, free)
        if found.covariance is not None
    )

    assert abs(of_product) < 1e-3
    assert of_free > 0.01


def test_a_form_that_its_test_could_not_see_fail_is_not_chosen() -> None:
    few = log_by_value("taste", 1, n_pages=1000).filter(pl.col("query") < 3)
    found = fitted(few, cell_form=None)

    assert not present(found.form).test.rejected
    assert found.cell_form == "free"


def test_a_power_of_the_position_has_one_eta_for_all_values() -> None:
    log = log_by_value("taste", 1, n_pages=1000)
    options = EstimationOptions(period="none", shape="power")
    found = fit_statistics(statistics_of(log, BY_VALUE), "conditional", options, compare=False)
    theta = found.propensities.sort("value", "position")["propensity"].to_numpy().reshape(2, 8)
    shape = present(found.shape)

    assert theta[:, 1:] / theta[:, :1] == pytest.approx(np.tile(np.arange(2, 9) ** -shape.eta[0], (2, 1)))
    assert theta.min() < 1
    assert shape.eta_error[0] > 0


@pytest.mark.parametrize(
    ("plan", "options", "method", "says"),
    [
        (BY_VALUE, EstimationOptions(shape="smooth"), "conditional", "--shape power"),
        (PBM, EstimationOptions(cell_form="free"), "conditional", "--cell"),
        (BY_VALUE, EstimationOptions(cell_form="product"), "joint", "--method joint does not support it"),
        (BY_VALUE, EstimationOptions(cell_form="product", cluster="pair"), "conditional", "clustered by query"),
        (BY_VALUE, EstimationOptions(), "features", "takes no --cell"),
    ],
)
def test_what_cells_cannot_have_is_refused(
    plan: StatisticsPlan, options: EstimationOptions, method: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        check_method(method, plan, options)


def test_a_column_is_a_cell_or_a_context_of_the_position_based_model() -> None:
    with pytest.raises(UsageError, match="--cell device: --context"):
        check_curves(PBM.model, ["device"], ["device"])
    with pytest.raises(UsageError, match="--cell: works only with --model pbm"):
        check_curves(UBM.model, [], ["device"])


def test_a_value_is_compared_with_the_references_at_the_same_position() -> None:
    found = of_log("free")
    (column,), behind = found.cell_columns, present(found.free.conditional)
    cells, covariance = found.statistics.cells, log_theta_covariance(behind.fit, behind.errors)
    for at, (one, other) in enumerate(zip(column.cells, column.against, strict=True)):
        assert cells["position"][int(one)] == cells["position"][int(other)]
        assert (cells["value"][int(one)], cells["value"][int(other)]) == ("0", "1")
        variance = covariance[one, one] + covariance[other, other] - 2 * covariance[one, other]
        assert column.differences.std_error[at] == pytest.approx(np.sqrt(variance))
        ratio = found.estimate.propensity[one] / found.estimate.propensity[other]
        assert column.differences.difference[at] == pytest.approx(np.log(ratio))


def test_one_contrast_says_all_of_a_value_of_the_product() -> None:
    found = of_log("product")
    (column,) = found.cell_columns
    (cell,) = column.cells
    theta = found.estimate.propensity.reshape(2, -1)

    assert np.exp(column.differences.difference) == pytest.approx([found.estimate.propensity[cell]])
    assert theta[0] / theta[1] == pytest.approx(float(found.estimate.propensity[cell]))
    assert column.differences.std_error == pytest.approx(found.estimate.intervals.std_error[[cell]])


def test_rows_and_columns_are_axes_of_positions_that_follow_from_them() -> None:
    log = LOG.with_columns(row=(pl.col("position") - 1) // 2, column=(pl.col("position") - 1) % 2)
    found = fitted(log, replace(PBM, cell=("row", "column")))
    by_row, by_column = found.cell_columns
    place = found.statistics.cells.select("row", "column").to_numpy()

    assert found.statistics.axes == ("row", "column")
    assert (place[by_row.cells, 1] == place[by_row.against, 1]).all()
    assert (place[by_column.cells, 0] == place[by_column.against, 0]).all()
