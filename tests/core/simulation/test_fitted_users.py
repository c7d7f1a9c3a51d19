"""What a simulation puts in, a fit of the same model finds again in the log."""

import numpy as np
import polars as pl
import pytest

from posbias.core.models import get_click_model
from posbias.core.models.em import EMOptions, fit
from posbias.core.models.page_matrices import UNIT, PagesInMemory, page_batches
from posbias.core.simulation.simulate import SimulationOptions, simulate


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("gctr", ()),
        ("rctr", ()),
        ("dcm", (("continuation", (0.9, 0.5, 0.7, 0.3)),)),
        ("dbn", (("continuation", (0.8,)),)),
        ("ccm", (("continuation_after_skip", (0.95,)),)),
    ],
)
def test_what_documents_share_comes_out_as_it_was_put_in(
    model: str, parameters: tuple[tuple[str, tuple[float, ...]], ...]
) -> None:
    options = SimulationOptions(
        model, 40_000, 20, 6, 4, parameters=parameters, attractiveness_shape=(2.0, 3.0), ranker_strength=0.5, seed=1
    )
    drawn = simulate(options)
    pair = pl.struct("query", "doc").rank("dense").cast(pl.Int64) - 1
    log = drawn.log.with_columns(pair.alias(UNIT))
    pages = PagesInMemory(tuple(page_batches(log)), log[UNIT].n_unique(), options.n_positions)
    found = fit(get_click_model(model), pages, EMOptions(), lambda: None).parameters
    truth = drawn.parameters
    if model == "dcm":
        truth = truth.filter(pl.col("position") < options.n_positions)  # nobody goes on from the last one

    for name, position, value in truth.iter_rows():
        at = () if position is None else position
        assert float(np.asarray(found[name])[at]) == pytest.approx(value, abs=0.03), (name, position)
