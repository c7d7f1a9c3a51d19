"""Every click model against the sum over all click patterns of short pages, and against its own simulation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from posbias.core.models import ClickModel, ExaminationModel, click_model_names, get_click_model
from posbias.core.models.cascade import CascadeModel
from posbias.core.models.em import EMOptions, fit
from posbias.core.models.page_matrices import (
    SMALLEST_PROBABILITY,
    Flags,
    Floats,
    PageBatch,
    PagesInMemory,
    Parameters,
    click_log_likelihood,
)

EXACT = 1e-9
ALL = click_model_names()
CASCADES = [name for name in ALL if isinstance(get_click_model(name), CascadeModel)]
EXAMINED = [name for name in ALL if isinstance(get_click_model(name), ExaminationModel)]
N_UNITS, N_POSITIONS = 4, 5


def random_parameters(model: ClickModel, rng: np.random.Generator) -> dict[str, Floats]:
    return {p.name: np.array(rng.uniform(0.05, 0.95, p.dimensions(N_UNITS, N_POSITIONS))) for p in model.parameters}


def page_with_all_patterns(rng: np.random.Generator, length: int) -> PageBatch:
    """One page, with gaps between its positions, once for each pattern of clicks."""
    position = np.sort(rng.choice(np.arange(1, N_POSITIONS + 1), length, replace=False))
    unit = rng.integers(0, N_UNITS + 1, length)
    patterns = np.array(list(product((False, True), repeat=length)))
    n = len(patterns)
    return PageBatch(
        np.tile(unit, (n, 1)), np.tile(position, (n, 1)), patterns, np.ones((n, length), dtype=np.bool_), np.ones(n)
    )


def probability_of_patterns(model: ClickModel, parameters: Parameters, pages: PageBatch) -> Floats:
    clicked = model.given_clicks(parameters, pages)
    return np.where(pages.click, clicked, 1 - clicked).prod(axis=1)


@dataclass(frozen=True)
class Way:
    """One way down a page: what was examined, what was clicked, and how likely that is."""

    examined: tuple[bool, ...]
    click: tuple[bool, ...]
    probability: float


def ways_down(a: Floats, after_skip: Floats, after_click: Floats) -> Iterator[Way]:
    """All of them under a cascade model, each step by the definition."""
    length = len(a)
    for n in range(1, length + 1):
        for clicks in product((False, True), repeat=n):
            probability = 1.0
            for rank, clicked in enumerate(clicks):
                probability *= a[rank] if clicked else 1 - a[rank]
                goes_on = after_click[rank] if clicked else after_skip[rank]
                if rank < n - 1:
                    probability *= goes_on
                elif n < length:
                    probability *= 1 - goes_on
            below = (False,) * (length - n)
            yield Way((True,) * n + below, clicks + below, probability)


@pytest.mark.parametrize("name", ALL)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 4))
def test_the_probabilities_of_all_click_patterns_add_up_to_one_and_to_the_click_probability(
    name: str, seed: int, length: int
) -> None:
    rng, model = np.random.default_rng(seed), get_click_model(name)
    parameters, pages = random_parameters(model, rng), page_with_all_patterns(rng, length)
    probability = probability_of_patterns(model, parameters, pages)
    assert probability.sum() == pytest.approx(1, abs=EXACT)
    assert model.click_probability(parameters, pages)[0] == pytest.approx(probability @ pages.click, abs=EXACT)


@pytest.mark.parametrize("name", CASCADES)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), length=st.integers(1, 4))
def test_a_cascade_agrees_with_the_sum_over_all_ways_down_the_page(name: str, seed: int, length: int) -> None:
    rng, model = np.random.default_rng(seed), get_click_model(name)
    assert isinstance(model, CascadeModel)
    parameters, pages = random_parameters(model, rng), page_with_all_patterns(rng, length)
    a = parameters["attractiveness"][pages.unit][0]
    ways = list(ways_down(a, *(values[0] for values in model.continuation(parameters, pages))))
    probability = probability_of_patterns(model, parameters, pages)
    posterior = model.posterior(parameters, pages).examined
    for row, pattern in enumerate(pages.click):
        of_pattern = [way for way in ways if way.click == tuple(pattern)]
        total = sum(way.probability for way in of_pattern)
        assert probability[row] == pytest.approx(total, abs=EXACT)
        if total > EXACT:
            examined = sum(way.probability * np.array(way.examined) for way in of_pattern) / total
            assert posterior[row] == pytest.approx(examined, abs=1e-7)


@pytest.mark.parametrize("name", EXAMINED)
@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_examination_times_attractiveness_is_the_click_probability_given_the_clicks_above(name: str, seed: int) -> None:
    rng, model = np.random.default_rng(seed), get_click_model(name)
    assert isinstance(model, ExaminationModel)
    parameters, pages = random_parameters(model, rng), page_with_all_patterns(rng, 3)
    clicked = model.examination(parameters, pages) * parameters["attractiveness"][pages.unit]
    assert model.given_clicks(parameters, pages) == pytest.approx(clicked, abs=EXACT)


@pytest.mark.parametrize("name", [name for name in ALL if not get_click_model(name).closed_form])
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_expected_counts_are_the_slope_of_the_likelihood(name: str, seed: int) -> None:
    """Fisher's identity: d log L / d x = (successes - trials x) / (x (1 - x)), at any parameters."""
    rng, model = np.random.default_rng(seed), get_click_model(name)
    pages = page_with_all_patterns(rng, 4)
    pages = replace(pages, weight=rng.uniform(0.5, 3, pages.n_pages))
    parameters = random_parameters(model, rng)
    assume(model.given_clicks(parameters, pages)[pages.click].min() > 2 * SMALLEST_PROBABILITY)  # no bound is met
    sums = sums_of(model, parameters, pages)
    for parameter in model.parameters:
        successes, trials = sums[parameter.name]
        x = parameters[parameter.name]
        slope = (successes - trials * x) / (x * (1 - x))
        for index in np.ndindex(x.shape):
            step = np.zeros(x.shape)
            step[index] = 1e-6
            up, down = (
                log_likelihood(model, parameters | {parameter.name: x + sign * step}, pages) for sign in (1, -1)
            )
            assert slope[index] == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-5)


def sums_of(model: ClickModel, parameters: Parameters, pages: PageBatch) -> dict[str, tuple[Floats, Floats]]:
    """The expected counts of all parameters, added up row by row."""
    found: dict[str, tuple[Floats, Floats]] = {}
    expected = model.expected(parameters, pages)
    for parameter in model.parameters:
        where = {
            "one": (),
            "unit": (pages.unit,),
            "position": (pages.position,),
            "position and previous click": (pages.position, pages.previous_click),
        }[parameter.shape]
        sums: list[Floats] = []
        for rows in (expected[parameter.name].successes, expected[parameter.name].trials):
            total = np.zeros(parameters[parameter.name].shape)
            np.add.at(total, where, pages.row_weight * rows if where else (pages.row_weight * rows).sum())
            sums.append(total)
        found[parameter.name] = (sums[0], sums[1])
    return found


def log_likelihood(model: ClickModel, parameters: Parameters, pages: PageBatch) -> float:
    return float((pages.row_weight * click_log_likelihood(model.given_clicks(parameters, pages), pages)).sum())


def simulated(name: str, n_pages: int, seed: int) -> tuple[dict[str, Floats], PagesInMemory]:
    """The truth, and pages of 5 of 30 documents in random order with clicks of a model; always one truth."""
    rng, model = np.random.default_rng(0), get_click_model(name)
    n_units, length = 30, 5
    truth = {p.name: np.array(rng.uniform(0.15, 0.85, p.dimensions(n_units, length))) for p in model.parameters}
    if name == "pbm":
        truth["examination"] = np.array([1.0, 1.0, 0.7, 0.5, 0.35, 0.25])
    if name == "ubm":
        position, above = np.indices((length + 1, length + 1))
        truth["examination"] = np.maximum(position - above, 1.0) ** -0.7
    if name == "dbn":
        truth["continuation"] = np.array(0.9)
    rng = np.random.default_rng(seed)
    unit = rng.permuted(np.tile(np.arange(n_units), (n_pages, 1)), axis=1)[:, :length]
    position = np.tile(np.arange(1, length + 1), (n_pages, 1))
    blank: Flags = np.zeros((n_pages, length), dtype=np.bool_)
    pages = PageBatch(unit, position, blank, ~blank, np.ones(n_pages))
    return truth, PagesInMemory((pages.with_clicks(model.sample(truth, pages, rng)),), n_units, length)


def fitted(name: str, shown: PagesInMemory) -> Parameters:
    found = fit(get_click_model(name), shown, EMOptions(), lambda: None)
    assert found.converged
    return found.parameters


@pytest.mark.parametrize("name", ALL)
@pytest.mark.slow_after(4)
def test_a_fit_comes_closer_to_the_truth_with_more_pages(name: str) -> None:
    model = get_click_model(name)
    truth, fresh = simulated(name, 2_000, 99)
    wanted = model.given_clicks(truth, fresh.batches[0])
    errors: list[float] = []
    for n_pages in (500, 20_000):
        found = model.given_clicks(fitted(name, simulated(name, n_pages, 3)[1]), fresh.batches[0])
        errors.append(float(np.sqrt(np.mean((found - wanted) ** 2))))
    assert errors[1] < 0.025
    assert errors[1] < max(0.5 * errors[0], 0.005)


@pytest.mark.parametrize("name", ALL)
def test_padding_says_nothing(name: str) -> None:
    model, (truth, shown) = get_click_model(name), simulated(name, 200, 2)
    (batch,) = shown.batches
    below = ((0, 0), (0, 3))
    wide = PageBatch(
        np.pad(batch.unit, below),
        np.pad(batch.position, below, constant_values=1),
        np.pad(batch.click, below),
        np.pad(batch.shown, below),
        batch.weight,
    )
    assert log_likelihood(model, truth, wide) == pytest.approx(log_likelihood(model, truth, batch))
    narrow_sums, wide_sums = (sums_of(model, truth, pages) for pages in (batch, wide))
    for parameter, sums in narrow_sums.items():
        for there, here in zip(sums, wide_sums[parameter], strict=True):
            assert here == pytest.approx(there)
    assert not model.sample(truth, wide, np.random.default_rng(0))[:, 5:].any()
