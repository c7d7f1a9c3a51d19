"""Learners of factors: their gradients, what held-out queries do to them, and what propensities change."""

from dataclasses import replace

import numpy as np
import pytest
from learning_logs import draw
from present import present
from small_logs import dense_table

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import LearningOptions, TieDistance
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.factors import gradients, impressions_apart, start, task_model
from posbias.core.learners.learning import ClickLikelihood, LearningData, SquaredError, get_learner, sigmoid
from posbias.core.learners.models import Adam, FactorModel

NAMES = ["factors", "mf", "propensity-mf", "cause"]


def with_items(held_out: float = 0.0) -> LearningData:
    """A log in which the documents of all queries are the same eight."""
    data = draw(held_out=held_out)
    placed = replace(data.counts, clicks=np.minimum(data.counts.clicks, np.floor(data.counts.impressions / 2)))
    placed = replace(placed, impressions=np.ceil(data.counts.impressions / 2))
    return replace(data, features=None, item=np.arange(data.n_documents) % 8, randomized=placed)


def learnt(name: str, data: LearningData, options: LearningOptions) -> FactorModel:
    model = get_learner(name).learn(data, options, lambda: None).model
    assert isinstance(model, FactorModel)
    return model


def test_adams_first_step_is_the_rate_and_its_second_is_the_published_one() -> None:
    at = {"x": np.array([1.0, -2.0])}
    adam = Adam(at, 0.1)
    adam.step({"x": np.array([3.0, -0.5])})
    np.testing.assert_allclose(at["x"], [0.9, -1.9], atol=1e-7)
    adam.step({"x": np.array([1.0, -0.5])})
    mean, square = (0.9 * 0.3 + 0.1 * 1) / (1 - 0.81), (0.999 * 0.009 + 0.001) / (1 - 0.999**2)
    np.testing.assert_allclose(at["x"], [0.9 - 0.1 * mean / np.sqrt(square), -1.8], atol=1e-7)


@pytest.mark.parametrize(
    ("kinds", "distance"),
    [
        ((ClickLikelihood,), "squared"),
        ((SquaredError,), "squared"),
        ((ClickLikelihood, ClickLikelihood), "squared"),
        ((ClickLikelihood, ClickLikelihood), "absolute"),
    ],
)
def test_gradients_are_those_of_all_losses_and_penalties(
    kinds: tuple[type[ClickLikelihood | SquaredError], ...], distance: TieDistance
) -> None:
    data, rng, strength, tie = with_items(), np.random.default_rng(1), 2.0, 3.0
    query, item, placed = data.query, present(data.item), present(data.randomized)
    tables = [data.counts.subtract(placed), placed][-len(kinds) :]
    losses = [kind(table, data.theta) for kind, table in zip(kinds, tables, strict=True)]
    options = LearningOptions(factors=3, tie=tie, tie_distance=distance)
    parameters = {
        name: 0.3 * rng.standard_normal(values.shape)
        for name, values in start(data, [0.0] * len(kinds), options).items()
    }

    def total() -> float:
        found = strength / 2 * sum(float((values**2).sum()) for name, values in parameters.items() if name != "mean")
        for task, loss in enumerate(losses):
            fit = loss.per_impression(task_model(parameters, task).scores(query, item))
            found -= float(loss.impressions.sum()) * fit / (2 if isinstance(loss, SquaredError) else 1)
        if len(losses) > 1:
            apart = np.concatenate(
                [np.diff(parameters[name], axis=0).ravel() for name in ("item_bias", "item_factors")]
            )
            found += tie * float((apart**2 / 2 if distance == "squared" else np.abs(apart)).sum())
        return found

    by_score = [loss.gradients(task_model(parameters, task).scores(query, item))[0] for task, loss in enumerate(losses)]
    found = gradients(parameters, query, item, by_score, strength, options)
    assert set(found) == set(parameters)
    for name, values in parameters.items():
        for place in (0, values.size - 1):
            flat = values.reshape(-1)
            kept, around = flat[place], list[float]()
            for step in (1e-4, -1e-4):
                flat[place] = kept + step
                around.append(total())
            flat[place] = kept
            assert found[name].reshape(-1)[place] == pytest.approx((around[0] - around[1]) / 2e-4, rel=1e-4, abs=1e-3)


def test_propensities_of_one_leave_matrix_factorization_as_it_is() -> None:
    data = replace(with_items(), examination=np.ones(5))
    asked = LearningOptions(steps=20, regularization=5.0)
    one, other = (learnt(name, data, asked) for name in ("mf", "propensity-mf"))
    np.testing.assert_allclose(one.query_factors, other.query_factors)


def best_by_least_squares(data: LearningData, penalty: float, factors: int) -> float:
    """The least penalised error that alternating least squares come to, each step in closed form."""
    loss, rng = SquaredError(data.counts, data.theta), np.random.default_rng(0)
    numbers = (data.query, present(data.item))
    sides = [
        np.column_stack([0.1 * rng.standard_normal((n.max() + 1, factors)), np.zeros(n.max() + 1)]) for n in numbers
    ]
    mean, scores = loss.start(), np.zeros(data.n_documents)
    for _ in range(200):
        for own, other in ((0, 1), (1, 0)):
            given = sides[other][numbers[other]]
            rows = np.column_stack([given[:, :-1], np.ones(len(given))])
            rest = loss.clicks - loss.impressions * (mean + given[:, -1])
            for number in range(len(sides[own])):
                of = numbers[own] == number
                normal = (rows[of].T * loss.impressions[of]) @ rows[of] + penalty * np.eye(factors + 1)
                sides[own][number] = np.linalg.solve(normal, rows[of].T @ rest[of])
        users, items = (side[number] for side, number in zip(sides, numbers, strict=True))
        moved = users[:, -1] + items[:, -1] + (users[:, :-1] * items[:, :-1]).sum(axis=1)
        mean = float((loss.clicks - loss.impressions * moved).sum() / loss.impressions.sum())
        scores = np.asarray(mean + moved, np.float64)
    return penalized_error(loss, scores, penalty, *sides)


def penalized_error(loss: SquaredError, scores: Floats, penalty: float, *parameters: Floats) -> float:
    error = -loss.impressions.sum() * loss.per_impression(scores) / 2
    return float(error + penalty / 2 * sum(float((values**2).sum()) for values in parameters))


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [5.0, 100.0])
def test_steps_come_to_what_least_squares_find(penalty: float) -> None:
    data = with_items()
    model = learnt("propensity-mf", data, LearningOptions(factors=2, regularization=penalty, steps=600))
    arrays = model.arrays()
    sides = [values for name, values in arrays.items() if name != "mean"]
    loss = SquaredError(data.counts, data.theta)
    found = penalized_error(loss, model.scores(data.query, present(data.item)), penalty, *sides)
    assert found <= best_by_least_squares(data, penalty, 2) * 1.002


def drawn(spread: float, pages: int = 4_000, seed: int = 0) -> tuple[LearningData, Floats]:
    """Pages of five of twelve items at random for 30 users, and the attractiveness of each item to each of them.

    Args:
        spread: of the score u . v of tastes; beside it there is what all users like.
        pages: their number.
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    users, items, theta = 30, 12, 1 / np.arange(1, 6)
    tastes = rng.standard_normal((users, 2)) @ rng.standard_normal((items, 2)).T
    truth = sigmoid(-1 + 0.5 * rng.standard_normal(items) + spread * tastes)
    shown = np.argsort(rng.random((pages, items)), axis=1)[:, :5]
    user = rng.integers(users, size=pages)
    click = rng.random(shown.shape) < theta * truth[user[:, np.newaxis], shown]
    counts = np.zeros((2, users, items, 5))
    np.add.at(counts[0], (user[:, np.newaxis], shown, np.arange(5)), 1)
    np.add.at(counts[1], (user[:, np.newaxis], shown, np.arange(5)), click)
    everything = dense_table(*counts.reshape(2, -1, 5))
    query, item = (numbers.ravel() for numbers in np.indices(truth.shape))
    held_out = np.zeros(len(query), np.bool_)
    return LearningData(query, held_out, everything, theta, np.arange(1, 6), item=item, randomized=everything), truth


@pytest.mark.slow
@pytest.mark.parametrize("name", ["factors", "mf", "propensity-mf"])
def test_the_penalty_that_impressions_apart_choose_tells_users_apart(name: str) -> None:
    """A usual one may not: at 100, `propensity-mf` had the same list for everybody."""
    data, truth = drawn(spread=1.0)
    found = get_learner(name).learn(data, LearningOptions(steps=150), lambda: None)
    assert isinstance(found.model, FactorModel)
    scores = found.model.scores(data.query, data.item).reshape(truth.shape)  # pyright: ignore[reportArgumentType]
    of_taste = [values - values.mean(axis=0) for values in (scores, truth)]
    assert np.corrcoef(*(values.ravel() for values in of_taste))[0, 1] > 0.75
    tried = found.report["regularization_chosen_by"]["tried"]
    best = max(tried, key=lambda one: one["value"])
    assert (found.report["regularization"], found.warnings) == (best["regularization"], {})


def test_factors_that_are_zero_are_an_error_that_names_the_penalty() -> None:
    data = drawn(spread=1.0)[0]
    with pytest.raises(
        IdentifiabilityError, match=r"zero with regularization=10000, .* --learner-options regularization=1000,"
    ):
        learnt("propensity-mf", data, LearningOptions(regularization=10_000.0))


def test_without_impressions_to_set_apart_a_penalty_must_be_named() -> None:
    data = with_items()
    one = np.zeros_like(data.counts.impressions)
    one[0] = 1.0
    few = replace(data, randomized=replace(data.counts, impressions=one, clicks=0 * one))
    with pytest.raises(IdentifiabilityError, match="Name one: --learner-options regularization=X"):
        learnt("cause", few, LearningOptions(steps=2))


@pytest.mark.slow
def test_where_users_do_not_differ_a_warning_says_that_factors_did_not_help() -> None:
    data = drawn(spread=0.0, pages=300)[0]
    found = get_learner("mf").learn(data, LearningOptions(), lambda: None)
    assert [*found.warnings] == ["factors-do-not-help"]


@pytest.mark.parametrize("weight", [1.0, 0.7])
def test_impressions_apart_are_a_part_of_those_learnt_from(weight: float) -> None:
    data = with_items(held_out=0.3)
    counts = replace(data.counts, impressions=weight * data.counts.impressions, clicks=weight * data.counts.clicks)
    apart = impressions_apart(data, counts, 0)
    share = apart.impressions.sum() / (counts.impressions * ~data.held_out[counts.unit_of_entry]).sum()
    assert share == pytest.approx(0.2, abs=0.05)
    assert apart.clicks.sum() > 0
    assert (apart.clicks <= apart.impressions).all()
    assert (apart.impressions <= counts.impressions).all()
    assert not apart.impressions[data.held_out[counts.unit_of_entry]].any()


@pytest.mark.parametrize("name", NAMES)
def test_held_out_queries_have_no_factors_and_change_nothing(name: str) -> None:
    data = with_items(held_out=0.3)
    blank, unclicked = (
        replace(table, clicks=np.where(data.held_out[table.unit_of_entry], 0, table.clicks))
        for table in (data.counts, present(data.randomized))
    )
    blanked = replace(data, counts=blank, randomized=unclicked)
    one, other = (learnt(name, log, LearningOptions(steps=20)) for log in (data, blanked))
    np.testing.assert_array_equal(one.item_factors, other.item_factors)
    apart = np.unique(data.query[data.validation])
    assert not one.query_factors[apart].any()
    assert not one.query_bias[apart].any()


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_what_is_drawn(name: str) -> None:
    one, same, other = (learnt(name, with_items(), LearningOptions(steps=5, seed=seed)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(one.query_factors, same.query_factors)
    assert not np.array_equal(one.query_factors, other.query_factors)


def test_what_was_never_seen_has_bias_and_factors_0() -> None:
    model = FactorModel(1.0, np.array([2.0]), np.array([4.0]), np.array([[3.0]]), np.array([[5.0]]))
    np.testing.assert_array_equal(model.scores(np.array([0, -1, 0, -1]), np.array([0, 0, -1, -1])), [22, 5, 3, 1])


def test_arrays_that_hold_no_factors_are_refused() -> None:
    arrays = learnt("mf", with_items(), LearningOptions(steps=1)).arrays()
    assert FactorModel.from_arrays(arrays).mean == arrays["mean"]
    for wrong in ({}, arrays | {"item_factors": np.zeros((8, 2))}, arrays | {"more": np.zeros(1)}):
        with pytest.raises(ValueError, match=r"and should hold mean|do not fit together"):
            FactorModel.from_arrays(wrong)
