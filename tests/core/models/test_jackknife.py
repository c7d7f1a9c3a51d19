"""Standard errors of what all documents share: by hand where a model has a closed form, by simulation where not."""

import numpy as np
import pytest

from posbias.core.models import get_click_model
from posbias.core.models.em import EMOptions, ModelEstimate, fit, standard_errors
from posbias.core.models.page_matrices import PageBatch, PagesInMemory

N_QUERIES, N_DOCS = 30, 4
GROUPS = np.append(np.repeat(np.arange(N_QUERIES) % 10, N_DOCS), 0)


def pages_of(n_pages: int, seed: int) -> PageBatch:
    """Whole pages of all documents of a query, each query in a random order."""
    rng = np.random.default_rng(seed)
    query = rng.integers(0, N_QUERIES, n_pages)
    unit = query[:, np.newaxis] * N_DOCS + np.stack([rng.permutation(N_DOCS) for _ in range(n_pages)])
    position = np.tile(np.arange(1, N_DOCS + 1), (n_pages, 1))
    shown = np.ones(unit.shape, dtype=np.bool_)
    return PageBatch(unit, position, np.zeros(unit.shape, dtype=np.bool_), shown, np.ones(n_pages))


def fitted(name: str, batch: PageBatch) -> tuple[ModelEstimate, dict[str, np.ndarray]]:
    model, pages = get_click_model(name), PagesInMemory((batch,), N_QUERIES * N_DOCS, N_DOCS)
    found = fit(model, pages, EMOptions(), lambda: None)
    return found, standard_errors(model, pages, GROUPS, found, EMOptions(), lambda: None)


def test_the_error_of_a_rate_is_that_of_rates_without_each_group() -> None:
    rng, batch = np.random.default_rng(1), pages_of(400, 1)
    batch = batch.with_clicks(rng.random(batch.unit.shape) < 0.3)
    _, errors = fitted("rctr", batch)

    group = GROUPS[batch.unit[:, 0]]
    without = np.array([batch.click[group != g].mean(axis=0) for g in range(10)])
    by_hand = np.sqrt(0.9 * ((without - without.mean(axis=0)) ** 2).sum(axis=0))
    assert errors["click_rate"][1:] == pytest.approx(by_hand, rel=1e-9)


def test_there_is_no_error_where_nothing_decides_or_the_estimate_lies_at_the_edge() -> None:
    batch = pages_of(400, 2)
    click = np.random.default_rng(2).random(batch.unit.shape) < 0.3
    click[:, 1] = False
    _, rates = fitted("rctr", batch.with_clicks(click))
    _, steps = fitted("dcm", batch.with_clicks(click))

    assert np.isfinite(rates["click_rate"]).tolist() == [False, True, False, True, True]
    assert np.isnan(steps["continuation"][[0, 2, 4]]).all()  # nobody clicks at 2, and nothing follows 4


@pytest.mark.parametrize(("name", "groups"), [("sdbn", GROUPS), ("rctr", np.zeros_like(GROUPS))])
def test_there_are_no_errors_without_anything_shared_or_with_one_group(name: str, groups: np.ndarray) -> None:
    batch = pages_of(50, 3).with_clicks(np.random.default_rng(3).random((50, N_DOCS)) < 0.3)
    model, pages = get_click_model(name), PagesInMemory((batch,), N_QUERIES * N_DOCS, N_DOCS)
    found = fit(model, pages, EMOptions(), lambda: None)

    assert standard_errors(model, pages, groups, found, EMOptions(), lambda: None) == {}
