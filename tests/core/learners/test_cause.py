"""Causal embeddings: their gradients, what ties the two tasks, and a log that needs both."""

from dataclasses import replace

import numpy as np
import pytest
from present import present
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, sum_by_number
from posbias.core.choices import LearningOptions
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.learning import LearningData, get_learner, sigmoid
from posbias.core.learners.models import FactorModel

USERS, ITEMS = 80, 20
BIASED, PLACED = 60, 8  # impressions of a user: of the logging ranker, and placed at random


def counted(user: Integers, item: Integers, click: Floats, of: Flags) -> CountTable:
    """Counts of some impressions, by user and item, in one cell."""
    pair = (user * ITEMS + item)[of]
    shown, clicked = (np.bincount(pair, weights, USERS * ITEMS) for weights in (np.ones(len(pair)), click[of]))
    return dense_table(shown[:, np.newaxis].astype(float), clicked[:, np.newaxis].astype(float))


def drawn(seed: int = 0, placed: int = PLACED) -> tuple[LearningData, Floats]:
    """A log whose ranker gives some items the better places, and the score of each user and item at random places.

    What is liked by whom shows only in the many rows of that ranker; how much it favoured which item, only in the few
    others.
    """
    rng = np.random.default_rng(seed)
    liking = 1.2 * rng.standard_normal((USERS, 2)) @ rng.standard_normal((ITEMS, 2)).T
    truth = liking + 0.5 * rng.standard_normal(ITEMS)
    favour = 2.0 * rng.standard_normal(ITEMS)
    user = np.repeat(np.arange(USERS), BIASED + placed)
    at_random = np.tile(np.arange(BIASED + placed) >= BIASED, USERS)
    item = rng.integers(ITEMS, size=len(user))
    score = truth[user, item] - 1 + np.where(at_random, 0.0, favour[item])
    click = (rng.random(len(user)) < sigmoid(score)).astype(float)
    everything = np.ones(len(user), np.bool_)
    data = LearningData(
        query=np.repeat(np.arange(USERS), ITEMS),
        held_out=np.zeros(USERS * ITEMS, np.bool_),
        counts=counted(user, item, click, everything),
        examination=np.ones(1),
        position=np.array([1]),
        item=np.tile(np.arange(ITEMS), USERS),
        randomized=counted(user, item, click, at_random),
    )
    return data, truth


def learnt(name: str, data: LearningData, **options: float | str) -> FactorModel:
    asked = replace(LearningOptions(factors=2, regularization=1.0, tie=1.0, steps=120), **options)  # pyright: ignore[reportArgumentType]
    model = get_learner(name).learn(data, asked, lambda: None).model
    assert isinstance(model, FactorModel)
    return model


def agreement(model: FactorModel, truth: Floats) -> float:
    """The correlation of scores and truth within users, on average."""
    user, item = np.indices(truth.shape)
    scores = model.scores(user.ravel(), item.ravel()).reshape(truth.shape)
    return float(np.mean([np.corrcoef(*rows)[0, 1] for rows in zip(scores, truth, strict=True)]))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_kinds_of_rows_rank_better_than_either_alone(seed: int) -> None:
    data, truth = drawn(seed)
    both = agreement(learnt("cause", data), truth)
    alone = [agreement(learnt("factors", replace(data, counts=counts)), truth) for counts in _of_each_kind(data)]
    assert both > max(alone) + 0.05
    assert both > agreement(learnt("factors", data), truth) + 0.05  # all rows, as if they were alike


def _of_each_kind(data: LearningData) -> tuple[CountTable, CountTable]:
    """Counts of the logging ranker and of random places."""
    return data.counts.subtract(present(data.randomized)), present(data.randomized)


def test_a_strong_tie_leaves_documents_where_the_many_rows_put_them() -> None:
    data = drawn()[0]
    few = learnt("cause", data, tie=0.0, regularization=5.0)
    tied_up = learnt("cause", data, tie=100.0, regularization=5.0)
    of_control = learnt("factors", replace(data, counts=_of_each_kind(data)[0]), regularization=5.0)
    correlations = [np.corrcoef(model.item_bias, of_control.item_bias)[0, 1] for model in (few, tied_up)]
    assert correlations[0] < 0.6
    assert correlations[1] > 0.95


def test_control_vectors_rank_as_the_ranker_of_the_log_favours() -> None:
    data, truth = drawn()
    control, treatment = (learnt("cause", data, vectors=vectors) for vectors in ("control", "treatment"))
    of_control = learnt("factors", replace(data, counts=_of_each_kind(data)[0]))
    np.testing.assert_array_equal(control.query_factors, treatment.query_factors)
    assert control.mean == treatment.mean
    assert np.corrcoef(control.item_bias, of_control.item_bias)[0, 1] > 0.9
    assert agreement(control, truth) < agreement(treatment, truth)


def test_without_rows_of_the_ranker_the_others_are_learnt_from() -> None:
    data, truth = drawn(placed=30)
    only = replace(data, counts=present(data.randomized))
    assert agreement(learnt("cause", only), truth) > 0.3


def test_no_row_at_random_is_an_error() -> None:
    data = drawn()[0]
    nothing = present(data.randomized).only_cells(np.zeros(1, np.bool_))
    with pytest.raises(IdentifiabilityError, match="placed at random"):
        learnt("cause", replace(data, randomized=nothing))


def test_learning_does_not_stop_early_by_rows_that_are_not_there() -> None:
    data = drawn()[0]
    apart, rows = data.query >= USERS // 2, present(data.randomized)
    kept = np.where(apart[rows.unit_of_entry], 0, rows.impressions)
    placed = dense_table(
        *(sum_by_number(rows.unit_of_entry, values, rows.n_units)[:, np.newaxis] for values in (kept, rows.clicks))
    )
    none_apart = replace(data, held_out=apart, randomized=placed)
    with pytest.raises(IdentifiabilityError, match="no row of a held-out query was placed at random"):
        learnt("cause", none_apart, early_stopping=5)
    learned = get_learner("cause").learn(none_apart, LearningOptions(steps=3), lambda: None)
    assert learned.curve["validation"].null_count() == learned.curve.height


def test_counts_less_a_part_of_them_are_the_other_part() -> None:
    rng = np.random.default_rng(2)
    one, other = (rng.poisson(0.7, (20, 4)).astype(float) for _ in range(2))
    clicks = [rng.binomial(shown.astype(int), 0.4).astype(float) for shown in (one, other)]
    whole = dense_table(one + other, clicks[0] + clicks[1])
    found, wanted = whole.subtract(dense_table(other, clicks[1])), dense_table(one, clicks[0])
    for name in ("start", "cell", "impressions", "clicks", "multiplicity"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
