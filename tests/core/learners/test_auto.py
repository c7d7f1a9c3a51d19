"""The default learner: which rankers are blended, when one is taken alone, and what is said of it."""

from dataclasses import replace

import numpy as np
import pytest
from learned import learn, scores
from learning_logs import draw, hidden_relevance
from present import present

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import Balance, LearningOptions
from posbias.core.evaluation.estimates import Value
from posbias.core.learners.auto import (
    BLEND,
    HALF,
    LOGGED,
    MOST,
    NAIVE,
    Choice,
    HeldOut,
    calibration,
    choose,
    harm,
    held_out_scores,
)
from posbias.core.learners.learning import ClickLikelihood, LearningData, balance_weights, sigmoid

RANKERS = ("distilled", "lambdarank", "pbm", "naive")
FEW = LearningOptions(trees=30, learning_rate=0.1, row_share=1.0)


def standardised(data: LearningData, scores: Floats) -> Floats:
    mean = np.bincount(data.query, scores) / np.bincount(data.query)
    centred = scores - mean[data.query]
    return centred / (centred.std() or 1.0)


def held_out(data: LearningData, by_ranker: dict[str, Floats], kappa: float) -> HeldOut:
    return data, {name: standardised(data, by_ranker[name]) for name in RANKERS}, kappa


@pytest.fixture(scope="module")
def shown_once() -> tuple[LearningData, Floats]:
    return hidden_relevance(known=0.0, seed=0)


def test_a_ranker_that_is_clearly_better_than_the_blend_is_taken_alone(shown_once: tuple[LearningData, Floats]) -> None:
    data, truth = shown_once
    rng = np.random.default_rng(0)
    noise = {name: rng.standard_normal(data.n_documents) for name in RANKERS}
    chosen = choose(held_out(data, noise | {"pbm": truth}, 0.1))
    assert chosen.shares == {"pbm": 1.0}
    assert chosen.gains[NAIVE][0].low > 0


def test_rankers_that_clicks_do_not_tell_apart_are_blended_by_what_the_ranker_knows(
    shown_once: tuple[LearningData, Floats],
) -> None:
    data, truth = shown_once
    rng = np.random.default_rng(0)
    alike = {name: truth + 0.3 * rng.standard_normal(data.n_documents) for name in RANKERS}
    chosen = choose(held_out(data, alike, HALF))
    assert chosen.shares == {BLEND[0]: 0.5, BLEND[1]: 0.5}
    assert choose(held_out(data, alike, 0.0)).shares == {BLEND[0]: 1.0, BLEND[1]: 0.0}
    assert choose(held_out(data, alike, 1e6)).shares == {BLEND[0]: 1 - MOST, BLEND[1]: MOST}


@pytest.mark.slow
def test_what_the_ranker_knows_beyond_the_features_is_seen_in_held_out_clicks() -> None:
    found = [held_out_scores(hidden_relevance(known=known, seed=2)[0], FEW, lambda: None) for known in (0.0, 1.0)]
    nothing, much = (one[2] for one in found if one is not None)
    assert nothing < 0.1
    assert much > 0.15


def test_scores_are_logits_of_what_clicks_say(shown_once: tuple[LearningData, Floats]) -> None:
    data, _ = shown_once
    score = standardised(data, np.random.default_rng(4).standard_normal(data.n_documents))
    rng = np.random.default_rng(5)
    p = data.theta[data.counts.cell] * sigmoid(-0.5 + 0.8 * score)[data.counts.unit_of_entry]
    clicks = rng.binomial(400, p).astype(float)
    counts = replace(data.counts, impressions=np.full(len(clicks), 400.0), clicks=clicks)
    likelihood, ones = ClickLikelihood(counts, data.theta), np.ones(len(score))
    np.testing.assert_allclose(calibration(likelihood, np.column_stack([ones, score])), (-0.5, 0.8), atol=0.02)
    found = calibration(likelihood, ones[:, np.newaxis], offset=3 + 0.8 * score)
    np.testing.assert_allclose(found, [-3.5], atol=0.02)


def test_scores_that_say_the_same_of_all_documents_say_nothing(shown_once: tuple[LearningData, Floats]) -> None:
    data, _ = shown_once
    likelihood = ClickLikelihood(data.weighted.only_cells(data.known), data.theta)
    ones = np.ones(data.n_documents)
    alone = calibration(likelihood, ones[:, np.newaxis])

    np.testing.assert_allclose(calibration(likelihood, np.column_stack([ones, 0 * ones])), (alone[0], 0.0), atol=1e-9)
    assert 0 <= choose(held_out(data, dict.fromkeys(RANKERS, ones), 0.1)).slope < 1e-9


@pytest.mark.slow
def test_the_model_is_the_blend_of_the_rankers_that_are_learnt_from_all_queries() -> None:
    data = draw()
    options = {"trees": 30}
    learned = learn("auto", data, **options)
    chosen = learned.report["chosen"]
    rows = present(data.features).rows[np.arange(data.n_documents)]
    blend = np.zeros(len(rows))
    for name, share in {name: share for name, share in chosen["shares"].items() if share}.items():
        of_one = scores(learn(name, data, **options), rows)
        mean = np.bincount(data.query, of_one) / np.bincount(data.query)
        blend += share * of_one / (of_one - mean[data.query]).std()
    found = scores(learned, rows)
    slope, constant = np.polyfit(blend, found, 1)
    assert slope > 0
    np.testing.assert_allclose(found, constant + slope * blend, atol=1e-9)
    examined, clicks = data.theta[data.counts.cell], data.counts.clicks.sum()
    predicted = (data.counts.impressions * examined) @ sigmoid(found)[data.counts.unit_of_entry]
    assert predicted == pytest.approx(clicks, rel=0.02)


def test_too_few_queries_to_compare_give_the_taught_ranker_and_say_so() -> None:
    data = draw()
    few = data.take(np.flatnonzero(data.query < 10))
    chosen = choose(held_out_scores(few, FEW, lambda: None))
    assert chosen.shares == {"distilled": 1.0}
    assert [*harm(chosen, 0.05)] == ["ranker-not-compared"]


@pytest.mark.parametrize(("low", "warned"), [(-0.04, False), (-0.06, True), (0.01, False)])
def test_a_ranker_that_may_lose_more_than_the_margin_is_warned_of(low: float, *, warned: bool) -> None:
    gains = {LOGGED: (Value(0.0, 1.0, margin=-2 * low), 2.0)}
    assert bool(harm(Choice({"distilled": 1.0}, 0.0, 100, gains, 1.0), 0.05)) == warned


@pytest.mark.parametrize(("balance", "power"), [("traffic", 0.0), ("sqrt", 0.5), ("query", 1.0)])
def test_queries_count_by_a_power_of_their_impressions_and_all_together_as_before(
    balance: Balance, power: float
) -> None:
    data = draw()
    weight = balance_weights(data, balance)
    impressions = data.counts.sum_by_unit(data.counts.impressions)
    if weight is None:
        assert power == 0
        return
    assert (weight * impressions).sum() == pytest.approx(impressions.sum())
    of_query = np.bincount(data.query, impressions)
    np.testing.assert_allclose(weight * of_query[data.query] ** power, weight[0] * of_query[0] ** power)
