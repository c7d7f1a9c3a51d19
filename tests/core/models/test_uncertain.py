"""What is certain is added up once: all pages say no more than that, and what is left of them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from posbias.core.models import ClickModel, click_model_names, get_click_model
from posbias.core.models.em import EMOptions, ExpectedTrials, expected_sums, fit
from posbias.core.models.page_matrices import (
    PageBatch,
    PagesInMemory,
    Ratio,
    bernoulli_log_likelihood,
    small_batches,
    uncertain_pages,
)

N_UNITS, N_POSITIONS, LENGTH = 8, 6, 4
BY_EM = [name for name in click_model_names() if not get_click_model(name).closed_form]
CASCADES = [name for name in BY_EM if not get_click_model(name).statistics_columns]


def pages_of(name: str, rng: np.random.Generator) -> PageBatch:
    """Pages of one to four impressions, padded, with gaps between their positions, and with weights."""
    n = 400
    unit = rng.permuted(np.tile(np.arange(N_UNITS), (n, 1)), axis=1)[:, :LENGTH]
    position = np.sort(rng.permuted(np.tile(np.arange(N_POSITIONS) + 1, (n, 1)), axis=1)[:, :LENGTH], axis=1)
    shown = np.arange(LENGTH) < rng.integers(1, LENGTH + 1, (n, 1))
    blank = PageBatch(unit, position, np.zeros_like(shown), shown, rng.uniform(0.5, 2.0, n))
    model = get_click_model(name)
    return blank.with_clicks(model.sample(parameters_of(model, rng), blank, rng))


def parameters_of(model: ClickModel, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {p.name: rng.uniform(0.1, 0.9, p.dimensions(N_UNITS, N_POSITIONS)) for p in model.parameters}


def nothing(model: ClickModel) -> ExpectedTrials:
    shapes = {p.name: p.dimensions(N_UNITS, N_POSITIONS) for p in model.parameters}
    return ExpectedTrials({name: Ratio(np.zeros(shape), np.zeros(shape)) for name, shape in shapes.items()}, 0.0, 0.0)


@pytest.mark.parametrize("name", BY_EM)
@pytest.mark.parametrize("seed", range(3))
def test_pages_say_what_is_certain_of_them_and_what_is_left_says(name: str, seed: int) -> None:
    rng, model = np.random.default_rng(seed), get_click_model(name)
    pages = PagesInMemory((pages_of(name, rng),), N_UNITS, N_POSITIONS)
    some, others = parameters_of(model, rng), parameters_of(model, rng)
    if model.statistics_columns:
        whole = pages.signatures(model.statistics_columns)
        of_unit = np.arange(whole.n_units + 1) % (N_UNITS + 1)
        some, others = (by_signature(model, values, of_unit) for values in (some, others))
        zero = replace_shapes(model, whole.n_units)
    else:
        whole, zero = pages, nothing(model)
    left = whole.uncertain(model.certain)
    multiplicity = getattr(whole, "multiplicity", None)
    found = partial(expected_sums, model, model.parameters, times=multiplicity)

    certain = found(others, whole, zero, only_certain=True)
    together = found(some, left, certain, likelihood=True)
    at_once = found(some, whole, zero, likelihood=True)
    assert together.impressions == pytest.approx(at_once.impressions)
    for parameter, ratio in at_once.ratios.items():
        assert together.ratios[parameter].successes == pytest.approx(ratio.successes, abs=1e-9)
        assert together.ratios[parameter].trials == pytest.approx(ratio.trials, abs=1e-9)
    of_certain = 0.0
    for p in model.parameters:
        logs = bernoulli_log_likelihood(certain.ratios[p.name], some[p.name])
        times = multiplicity if p.shape == "unit" and multiplicity is not None else 1.0
        of_certain += float((times * logs).sum())
    assert together.log_likelihood + of_certain == pytest.approx(at_once.log_likelihood)


def by_signature(model: ClickModel, values: dict[str, np.ndarray], of_unit: np.ndarray) -> dict[str, np.ndarray]:
    return {p.name: values[p.name][of_unit] if p.shape == "unit" else values[p.name] for p in model.parameters}


def replace_shapes(model: ClickModel, n_units: int) -> ExpectedTrials:
    zero = nothing(model)
    by_unit = Ratio(np.zeros(n_units + 1), np.zeros(n_units + 1))
    return replace(zero, ratios={**zero.ratios, **{p.name: by_unit for p in model.parameters if p.shape == "unit"}})


@pytest.mark.parametrize("name", BY_EM)
def test_what_is_asked_once_gives_the_parameters_of_asking_each_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = get_click_model(name)
    pages = PagesInMemory((pages_of(name, np.random.default_rng(3)),), N_UNITS, N_POSITIONS)
    options = EMOptions(passes=30, tolerance=-1.0)  # all of them: where EM rests hangs on last bits
    once = fit(model, pages, options, lambda: None)
    monkeypatch.setattr(type(model), "certain", ClickModel.certain)
    each_time = fit(model, pages, options, lambda: None)
    assert once.passes == each_time.passes
    for parameter, values in each_time.parameters.items():
        assert once.parameters[parameter] == pytest.approx(values, abs=1e-7)  # extrapolation magnifies rounding


@pytest.mark.parametrize("name", CASCADES)
def test_fewer_pages_are_left_and_none_of_them_is_padded(name: str) -> None:
    batch = pages_of(name, np.random.default_rng(4))
    left = [some for pages in uncertain_pages([batch], get_click_model(name).certain) for some in small_batches(pages)]
    assert all(some.shown.all() for some in left)
    shown = sum(int(some.shown.sum()) for some in left)
    assert shown <= batch.shown.sum()
    assert name == "ccm" or shown < 0.9 * batch.shown.sum()


@pytest.mark.parametrize("name", ["dcm", "sdbn"])
def test_pages_without_clicks_are_certain_where_nobody_leaves_after_a_skip(name: str) -> None:
    batch = pages_of(name, np.random.default_rng(5))
    without = batch.with_clicks(np.zeros_like(batch.click))
    assert get_click_model(name).certain(without).sum() == batch.shown.sum()
    assert uncertain_pages([without], get_click_model(name).certain) == []
