"""Cells of several columns in words: against which they are held, their form, how attention differs by each column."""

from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest
from small_logs import PBM, log_by_value, statistics_of

from posbias.core.choices import CellForm
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.standard_errors.cluster import t_quantile
from posbias.io.fits.saved_fit import estimate_section
from posbias.io.fits.verdicts import fit_headline, fit_reasons
from posbias.io.results.conclusions import Reason

DIFFERENT = log_by_value(
    "examination", 1, n_pages=1000
)  # with the value 0, at position k theta_k becomes .6 theta_k^1.8
LAST = int(DIFFERENT["position"].max())  # type: ignore[arg-type]


def fitted(log: pl.DataFrame, cell_form: CellForm | None = None, cell: tuple[str, ...] = ("value",)) -> Fit:
    options = EstimationOptions(period="none", cell_form=cell_form)
    return fit_statistics(statistics_of(log, replace(PBM, cell=cell)), "conditional", options, compare=False)


@cache
def different(cell_form: CellForm | None = None) -> Fit:
    return fitted(DIFFERENT, cell_form)


def reasons(fit: Fit) -> dict[str, Reason]:
    return {reason.code: reason for reason in fit_reasons(fit)}


def test_the_headline_names_the_cell_that_others_are_held_against() -> None:
    fit = different("free")

    assert f"of the attention of position 1, value {reference_of(fit)}, by value" in fit_headline(fit)


def reference_of(fit: Fit) -> str:
    return fit.statistics.cells["value"][int(fit.estimate.linkage.references[0])]


def test_each_value_is_held_against_the_reference_at_the_first_and_the_last_position() -> None:
    fit = different("free")
    sentence = reasons(fit)["cells-differ"].sentence
    theta = {(row["position"], row["value"]): row["propensity"] for row in fit.propensities.to_dicts()}
    of = fit.cell_columns[0].differences
    ends = np.exp(of.difference + np.outer([-1, 1], t_quantile(of.degrees) * of.std_error)) * 100
    own, other = reference_of(fit), {"0": "1", "1": "0"}[reference_of(fit)]

    assert f"With value = {other}, position 1 gets {100 * theta[1, other]:.0f} % " in sentence
    assert f"({ends[0, 0]:.0f} to {ends[1, 0]:.0f}) and position {LAST} gets " in sentence
    assert f"gets {100 * theta[LAST, other] / theta[LAST, own]:.0f} % " in sentence
    assert sentence.endswith(f"of the attention that it has with value = {own}.")


@pytest.mark.parametrize(
    ("cell_form", "code", "severity"),
    [(None, "cell-form", "note"), ("free", "cell-form", "note"), ("product", "product-does-not-fit", "caution")],
)
def test_effects_that_do_not_multiply_are_a_caution_where_the_product_was_asked_for(
    cell_form: CellForm | None, code: str, severity: str
) -> None:
    reason = reasons(different(cell_form))[code]

    assert reason.severity == severity
    assert "do not multiply" in reason.sentence
    assert "p = " in reason.details


def test_where_the_product_misses_most_is_no_cell_alone_at_its_position() -> None:
    short = fitted(DIFFERENT.filter((pl.col("value") == reference_of(different())) | (pl.col("position") < LAST)))
    form = short.form
    assert form is not None
    off = form.log_theta - np.log(short.free.propensity)
    worst = int(np.argmax(np.abs(np.where(form.test.p_values < 0.05, off, 0))))

    assert short.statistics.cells["position"][worst] < LAST
    assert f"be {np.exp(off[worst]):.2f} times what the clicks say" in reasons(short)["cell-form"].sentence


def test_a_column_of_one_value_is_not_spoken_of() -> None:
    assert not {"cell-form", "cells-alike", "cells-differ"} & set(reasons(fitted(DIFFERENT.with_columns(value=1))))


def test_a_power_of_the_position_has_a_verdict_of_its_own() -> None:
    options = EstimationOptions(period="none", shape="power")
    statistics = statistics_of(DIFFERENT, replace(PBM, cell=("value",)))
    found = reasons(fit_statistics(statistics, "conditional", options, compare=False))

    assert "shape-does-not-fit" in found
    assert "cell-form" not in found
    assert "every position gets " in found["cells-differ"].sentence


def test_a_column_that_changes_nothing_may_be_left_out_and_what_could_be_missed_is_said() -> None:
    found = reasons(fitted(log_by_value("nothing", 1, n_pages=4000)))

    assert "--cell value may be left out" in found["cells-alike"].sentence
    assert "may have been missed" in found["cells-alike"].sentence
    assert found["cell-form"].severity == "good"
    assert f"{LAST + 1} numbers stand for {2 * LAST} cells" in found["cell-form"].sentence


def test_a_column_of_which_the_log_says_little_is_kept() -> None:
    log = DIFFERENT.filter((pl.col("value") == "1") & (pl.col("session") < 250))
    found = reasons(fitted(log.with_columns(value=pl.col("session") % 2 == 0)))

    assert "keep --cell value" in found["cells-alike"].sentence
    assert "may have been missed" in found["cells-alike"].sentence
    assert "does not say clearly" in found["cell-form"].sentence
    assert "--cell-form product takes it for granted" in found["cell-form"].sentence


def test_of_a_grid_the_cells_with_the_most_and_the_least_attention_are_named() -> None:
    log = DIFFERENT.with_columns(value=pl.col("value").cast(pl.Int64) + 2 * (pl.col("session") % 2))
    fit = fitted(log, "free")
    least = fit.propensities.sort("propensity").row(0, named=True)
    sentence = reasons(fit)["cells-differ"].sentence

    assert f"the least goes to position {least['position']}, value {least['value']}" in sentence
    assert "cells: other cells get" in fit_headline(fit)


@pytest.mark.slow
def test_a_value_whose_documents_are_nowhere_else_is_named_with_what_would_link_it() -> None:
    apart = pl.when(pl.col("value") == "0").then(pl.lit("only here ")).otherwise(pl.lit(""))
    log = DIFFERENT.with_columns(doc=apart + pl.col("doc").cast(pl.String))
    unknown = {"0", "1"} - {reference_of(different())}

    assert f"Nothing is known with value = {unknown.pop()}: " in reasons(fitted(log))["not-identified"].sentence


@pytest.mark.slow
def test_a_reference_other_than_the_preferred_one_is_named() -> None:
    often = reference_of(different())
    lost = (pl.col("value") == often) & (pl.col("position") == 1)
    log = DIFFERENT.with_columns(
        doc=pl.when(lost).then(pl.lit("x")).otherwise(pl.lit("")) + pl.col("doc").cast(pl.String)
    )
    sentence = reasons(fitted(log))["other-reference"].sentence

    assert f"no document compares position 1, value {often} with the others" in sentence
    assert "other-reference" not in reasons(different())


def test_the_manifest_has_the_form_and_both_tests() -> None:
    fit = different()
    stored = estimate_section(fit)

    assert stored["cell_form"] == "free"
    assert stored["product_against_free"]["rejected"]
    assert stored["cells_differ"]["value"]["rejected"]
    assert len(stored["cells_differ"]["value"]["found_by_four_of_five"]) == LAST
