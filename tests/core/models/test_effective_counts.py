"""Effective counts: what a log says of a parameter whose decisions it does not show."""

from dataclasses import replace

import numpy as np
import pytest

from posbias.core.models import ClickModel, click_model_names, get_click_model
from posbias.core.models.em import EMOptions, ModelEstimate, fit
from posbias.core.models.page_matrices import (
    Floats,
    PageBatch,
    PagesInMemory,
    Parameters,
    Ratio,
    click_log_likelihood,
    effective_row_counts,
    effective_unit_counts,
)

ALL = [name for name in click_model_names() if any(p.shape == "unit" for p in get_click_model(name).parameters)]
N_DOCS = N_POSITIONS = 10
MEAN, STRENGTH = 0.35, 3.0


def truth_of(name: str, n_units: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Parameters by unit from one prior; examination falls with the position."""
    first, second = MEAN * STRENGTH, (1 - MEAN) * STRENGTH
    truth = {
        p.name: np.array(rng.beta(first, second, p.dimensions(n_units, N_POSITIONS)))
        for p in get_click_model(name).parameters
    }
    position, above = np.indices((N_POSITIONS + 1, N_POSITIONS + 1))
    if name == "pbm":
        truth["examination"] = 1.0 / np.maximum(np.arange(N_POSITIONS + 1), 1)
    if name == "ubm":
        truth["examination"] = np.maximum(position - above, 1.0) ** -0.7
    if name == "dbn":
        truth["continuation"] = np.array(0.9)
    return truth


def at_random_positions(name: str, n_queries: int, n_pages: int, seed: int = 0) -> PagesInMemory:
    """Pages of all documents of a query in random order, with clicks of a model."""
    rng, n_units = np.random.default_rng(seed), n_queries * N_DOCS
    query = rng.integers(0, n_queries, n_pages)
    order = rng.permuted(np.tile(np.arange(N_DOCS), (n_pages, 1)), axis=1)
    position = np.tile(np.arange(1, N_POSITIONS + 1), (n_pages, 1))
    shown = np.ones(order.shape, dtype=np.bool_)
    blank = PageBatch(query[:, np.newaxis] * N_DOCS + order, position, ~shown, shown, np.ones(n_pages))
    pages = blank.with_clicks(get_click_model(name).sample(truth_of(name, n_units, rng), blank, rng))
    return PagesInMemory(tuple(pages.take(slice(n, n + 5000)) for n in range(0, n_pages, 5000)), n_units, N_POSITIONS)


def log_likelihood(model: ClickModel, parameters: Parameters, pages: PageBatch) -> float:
    return float((pages.row_weight * click_log_likelihood(model.given_clicks(parameters, pages), pages)).sum())


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("seed", range(3))
def test_effective_counts_have_the_slope_and_the_curvature_of_the_likelihood(name: str, seed: int) -> None:
    model, rng = get_click_model(name), np.random.default_rng(seed)
    pages = replace(at_random_positions(name, 1, 60, seed).batches[0], weight=rng.uniform(0.5, 3, 60))
    parameters = {p.name: np.array(rng.uniform(0.1, 0.9, p.dimensions(N_DOCS, N_POSITIONS))) for p in model.parameters}
    for parameter in (p.name for p in model.parameters if p.shape == "unit"):
        x = parameters[parameter]
        rows = effective_row_counts(model.expected(parameters, pages)[parameter], x[pages.unit]).times(pages.row_weight)
        for unit in range(N_DOCS):
            f, d = (float(values[pages.unit == unit].sum()) for values in (rows.successes, rows.trials))
            step = np.where(np.arange(len(x)) == unit, 1e-4, 0.0)
            below, here, above = (
                log_likelihood(model, parameters | {parameter: x + sign * step}, pages) for sign in (-1, 0, 1)
            )
            assert f / x[unit] - (d - f) / (1 - x[unit]) == pytest.approx((above - below) / 2e-4, rel=1e-4, abs=1e-4)
            curvature = f / x[unit] ** 2 + (d - f) / (1 - x[unit]) ** 2
            assert curvature == pytest.approx(-(above - 2 * here + below) / 1e-8, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("name", [name for name in ALL if get_click_model(name).closed_form])
def test_where_all_is_seen_they_are_the_counts(name: str) -> None:
    model, pages = get_click_model(name), at_random_positions(name, 3, 200).batches[0]
    (parameter,) = model.parameters
    x = np.random.default_rng(1).uniform(1e-6, 1 - 1e-6, 3 * N_DOCS + 1)
    counts = model.expected({parameter.name: x}, pages)[parameter.name]
    found = effective_row_counts(counts, x[pages.unit])
    assert found.successes == pytest.approx(counts.successes, abs=1e-9)
    assert found.trials == pytest.approx(counts.trials, abs=1e-9)


def test_a_slope_that_no_counts_have_with_that_curvature_is_kept_alone() -> None:
    x = np.array([0.2, 0.2])
    slope, information = np.array([-3.0, 8.0]), np.array([1.0, 2.0])
    f, a = x**2 * ((1 - x) * information + slope), (1 - x) ** 2 * (x * information - slope)
    found = effective_unit_counts(Ratio(f, f + a), x)
    against = found.trials - found.successes
    assert found.successes[0] == 0
    assert against[1] == 0
    assert found.successes / x - against / (1 - x) == pytest.approx(slope)


def learnt(name: str, pages: PagesInMemory) -> ModelEstimate:
    found = fit(get_click_model(name), pages, EMOptions(), lambda: None)
    assert found.converged
    return found


@pytest.mark.parametrize("name", ["pbm", "ubm", "dbn"])
@pytest.mark.slow
def test_the_prior_is_that_of_the_truth_where_documents_are_shown_at_random(name: str) -> None:
    """Four standard errors of what 3,000 documents would tell that were themselves seen: .0044 and 3 percent."""
    prior = learnt(name, at_random_positions(name, 300, 60_000)).priors["attractiveness"]
    assert prior.mean == pytest.approx(MEAN, abs=4 * np.sqrt(MEAN * (1 - MEAN) / (1 + STRENGTH) / 3000))
    assert prior.strength == pytest.approx(STRENGTH, rel=0.12)


@pytest.mark.slow
def test_what_the_log_does_not_say_does_not_make_a_prior_strong() -> None:
    """Ten impressions a document, most of them far down the page, where most that is not clicked was not examined."""
    pages = at_random_positions("pbm", 600, 6000)
    assert learnt("pbm", pages).priors["attractiveness"].strength < 20
