"""The measures of click models against their definitions, page by page, and their errors against fresh logs."""

from collections.abc import Sequence

import numpy as np
import pytest

from posbias.core.models import get_click_model
from posbias.core.models.judging import (
    JudgedModel,
    ModelMeasures,
    ModelSums,
    SharedSums,
    add_pages,
    add_rates,
    add_up_rates,
    differences_from_best,
    sample_weights,
    std_error,
)
from posbias.core.models.page_matrices import Floats, PageBatch

N_UNITS, N_POSITIONS, SAMPLES = 6, 5, 60


def pages(rng: np.random.Generator, n_pages: int, length: int) -> PageBatch:
    """Pages of units at positions with gaps, with clicks by chance."""
    unit = rng.permuted(np.tile(np.arange(N_UNITS), (n_pages, 1)), axis=1)[:, :length]
    position = np.sort(rng.permuted(np.tile(np.arange(1, N_POSITIONS + 1), (n_pages, 1)), axis=1)[:, :length], axis=1)
    click = rng.random((n_pages, length)) < 0.3
    return PageBatch(
        unit, position, click, np.ones(click.shape, dtype=np.bool_), rng.integers(1, 4, n_pages).astype(np.float64)
    )


def judged_models(names: Sequence[str], seed: int = 0) -> list[JudgedModel]:
    rng = np.random.default_rng(seed)
    found: list[JudgedModel] = []
    for name in names:
        model = get_click_model(name)
        values = {p.name: np.array(rng.uniform(0.2, 0.8, p.dimensions(N_UNITS, N_POSITIONS))) for p in model.parameters}
        found.append((model, values))
    return found


def measured(
    judged: Sequence[JudgedModel], batches: Sequence[PageBatch], seed: int = 0
) -> tuple[list[ModelMeasures], SharedSums]:
    sums = [ModelSums(SAMPLES, N_POSITIONS) for _ in judged]
    shared = SharedSums(SAMPLES, N_POSITIONS)
    rates = [
        add_pages(judged, [batch] * len(judged), sample_weights(batch, SAMPLES, seed, number), sums, shared)
        for number, batch in enumerate(batches)
    ]
    add_rates(add_up_rates(rates), sums)
    return [ModelMeasures(one, shared) for one in sums], shared


def rows_of(batch: PageBatch) -> list[tuple[int, int]]:
    """Page and rank of each impression, as often as its page occurred."""
    return [
        (page, rank)
        for page in range(batch.n_pages)
        for _ in range(int(batch.weight[page]))
        for rank in range(batch.n_ranks)
    ]


@pytest.mark.parametrize("name", ["pbm", "ubm", "dbn"])
def test_measures_are_those_of_the_definitions_row_by_row(name: str) -> None:
    rng = np.random.default_rng(1)
    batches = [pages(rng, 40, 3), pages(rng, 30, 5)]
    ((model, parameters),) = judged = judged_models([name])
    (found,), shared = measured(judged, batches)
    by_session: list[float] = []
    marginal: dict[int, list[float]] = {}
    conditional: dict[int, list[float]] = {}
    rates: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for batch in batches:
        given = model.given_clicks(parameters, batch)
        alone = model.click_probability(parameters, batch)
        for page in range(batch.n_pages):
            logs: list[float] = []
            for rank in range(batch.n_ranks):
                click = bool(batch.click[page, rank])
                logs.append(np.log(given[page, rank] if click else 1 - given[page, rank]))
            by_session += [float(np.mean(logs))] * int(batch.weight[page])
        for page, rank in rows_of(batch):
            click, place = bool(batch.click[page, rank]), int(batch.position[page, rank])
            for into, p in ((marginal, alone[page, rank]), (conditional, given[page, rank])):
                into.setdefault(place, []).append(float(np.log2(p if click else 1 - p)))
            rates.setdefault((int(batch.unit[page, rank]), place), []).append((float(click), float(alone[page, rank])))
    assert found.log_likelihood[0] == pytest.approx(np.mean(by_session))
    assert np.flatnonzero(shared.impressions[0] > 0).tolist() == sorted(marginal)
    for into, value in ((marginal, found.perplexity), (conditional, found.conditional_perplexity)):
        assert value[0] == pytest.approx(np.mean([2 ** -np.mean(logs) for logs in into.values()]))
    squared = [
        len(own) * (np.mean([click for click, _ in own]) - np.mean([p for _, p in own])) ** 2 for own in rates.values()
    ]
    assert found.rate_error == pytest.approx(np.sqrt(sum(squared) / sum(map(len, rates.values()))))


def simulated(name: str, truth: dict[str, Floats], seed: int) -> PageBatch:
    rng = np.random.default_rng(seed)
    blank = pages(rng, 400, 4)
    once = PageBatch(blank.unit, blank.position, blank.click, blank.shown, np.ones(blank.n_pages))
    return once.with_clicks(get_click_model(name).sample(truth, once, rng))


@pytest.mark.slow
def test_standard_errors_are_the_spread_over_fresh_logs() -> None:
    judged = judged_models(["pbm", "dctr"])
    truth = dict(judged[0][1])
    found = [measured(judged, [simulated("pbm", truth, seed)], seed)[0] for seed in range(80)]
    for measure in ("log_likelihood", "perplexity", "conditional_perplexity"):
        of_pbm: list[Floats] = [getattr(both[0], measure) for both in found]
        spread = float(np.std([one[0] for one in of_pbm], ddof=1))
        assert float(np.mean([std_error(one) for one in of_pbm])) == pytest.approx(spread, rel=0.25)


def test_differences_are_paired_and_no_winner_is_named_among_equals() -> None:
    """Two models of equal worth are told apart in about one log of twenty."""
    (model, first), (_, second) = judged_models(["pbm", "pbm"], seed=3)
    mixed = {name: (first[name] + second[name]) / 2 for name in first}
    same = [(model, mixed)] * 2
    (one, other), _ = measured(same, [simulated("pbm", mixed, 1)])
    assert [(value, significant) for value, _, significant in differences_from_best([one, other])] == [(0.0, False)] * 2


def test_a_better_model_wins_by_more_than_chance() -> None:
    judged = judged_models(["pbm", "dctr"])
    found, _ = measured(judged, [simulated("pbm", dict(judged[0][1]), 5)])
    (best, _, _), (_, error, significant) = differences_from_best(found)
    assert best == 0
    assert significant
    assert 0 < error < std_error(found[1].log_likelihood) * 2


def test_a_difference_smaller_than_the_table_shows_is_none() -> None:
    """CM is DCM in which nobody goes on after a click; here three users of a million do."""
    (cm,) = judged_models(["cm"])
    nearly = dict(cm[1]) | {"continuation": np.full(N_POSITIONS + 1, 3e-6)}
    judged = [cm, (get_click_model("dcm"), nearly)]
    apart = differences_from_best(measured(judged, [simulated("cm", dict(cm[1]), 4)])[0])
    assert 0 < max(-value for value, _, _ in apart) < 5e-6
    assert not any(significant for _, _, significant in apart)


def test_clicks_that_a_model_holds_impossible_are_counted() -> None:
    batch = pages(np.random.default_rng(2), 50, 4)
    (found,), _ = measured(judged_models(["cm"]), [batch])
    second = (np.cumsum(batch.click, axis=1) > 1) & batch.click
    assert found.impossible_clicks == (batch.weight[:, np.newaxis] * second).sum() > 0
