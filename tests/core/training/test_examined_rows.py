"""Examination row by row, against the model's own on each page alone."""

import numpy as np
import polars as pl
import pytest

from posbias.core.models import ExaminationModel, FactorisedModel, click_model_names, get_click_model
from posbias.core.models.page_matrices import PageBatch
from posbias.core.training.weights import examination_of_rows

BY_PAGE = [
    name
    for name in click_model_names()
    if isinstance(get_click_model(name), ExaminationModel) and not isinstance(get_click_model(name), FactorisedModel)
]


@pytest.mark.parametrize("name", BY_PAGE)
@pytest.mark.parametrize("session", ["number", "text"])
def test_pages_of_all_lengths_have_the_examination_of_each_alone(name: str, session: str) -> None:
    rng, model = np.random.default_rng(4), get_click_model(name)
    assert isinstance(model, ExaminationModel)
    lengths = rng.integers(1, 6, 40)
    position = np.concatenate([np.sort(rng.choice(np.arange(1, 9), length, replace=False)) for length in lengths])
    ids = {"number": range(40), "text": [f"s{n:03d}" for n in range(40)]}[session]
    log = pl.DataFrame(
        {
            "session": [page for page, length in zip(ids, lengths, strict=True) for _ in range(length)],
            "position": position,
            "click": rng.integers(0, 2, len(position)),
        }
    )
    of_rows = {p.name: rng.uniform(0.1, 0.9, len(position)) for p in model.parameters if p.shape == "unit"}
    shared = {
        p.name: np.asarray(rng.uniform(0.1, 0.9, p.dimensions(0, 8))) for p in model.parameters if p.shape != "unit"
    }
    found = examination_of_rows(model, log, of_rows, shared)

    start = 0
    for length in lengths:
        page = slice(start, start := start + length)
        unit = np.arange(int(length), dtype=np.int64)[np.newaxis]
        click = (log["click"].to_numpy()[page] > 0)[np.newaxis]
        batch = PageBatch(unit, position[page][np.newaxis], click, np.ones_like(click), np.ones(1))
        own = {name: np.append(values[page], 0.5) for name, values in of_rows.items()}
        assert found[page] == pytest.approx(model.examination({**shared, **own}, batch)[0], abs=1e-12)
