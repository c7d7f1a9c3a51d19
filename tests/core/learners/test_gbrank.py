"""`gbrank`: pairs of documents whose click rates differ, and averaged fits to them (Zheng et al. 2007)."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from learned import learn, scores
from learning_logs import UNSEEN, draw, rank_correlation, true_scores
from small_logs import dense_table

from posbias.core.arrays.count_table import Floats
from posbias.core.choices import LearningOptions, MultipleTests
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners import rank_losses
from posbias.core.learners.learning import Features, Learned, LearningData
from posbias.core.learners.rank_losses import (
    RatePairs,
    best_margin,
    clicks_differ,
    hinge_loss,
    rates_differ,
    significant_pairs,
    targets,
)

scipy: Any = import_module("scipy.stats")  # no types

RNG = np.random.default_rng(0)
CLICKS = RNG.integers(0, 20, (2, 60)).astype(float)
SHOWN = CLICKS + RNG.integers(1, 60, (2, 60))


# --- which pairs ------------------------------------------------------------------------------------------------


def test_corrected_clicks_are_compared_by_the_exact_binomial_test() -> None:
    """Twice the smaller tail; SciPy's one-sided tests are the tails."""
    found, one_is_higher = clicks_differ(CLICKS[0], SHOWN[0], CLICKS[1], SHOWN[1])
    for number in range(60):
        one, both = int(CLICKS[0, number]), int(CLICKS[:, number].sum())
        chance = SHOWN[0, number] / SHOWN[:, number].sum()
        tails = (
            [scipy.binomtest(one, both, chance, side).pvalue for side in ("less", "greater")] if both else [1.0, 1.0]
        )
        assert found[number] == pytest.approx(min(1.0, 2 * min(tails)))
        assert one_is_higher[number] == (tails[1] < tails[0])


def test_raw_rates_are_compared_by_two_proportions() -> None:
    """The square of z is Pearson's chi-squared of the table of two by two."""
    found, _ = rates_differ(CLICKS[0], SHOWN[0], CLICKS[1], SHOWN[1])
    for number in range(60):
        one, other = CLICKS[:, number]
        table = [[one, SHOWN[0, number] - one], [other, SHOWN[1, number] - other]]
        wanted = scipy.chi2_contingency(table, correction=False).pvalue if one + other else 1.0
        assert found[number] == pytest.approx(wanted)


def pairs_of(p_values: list[float], multiple_tests: MultipleTests, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many of pairs with these p-values are significant at .05."""
    waiting = list(p_values)

    def tested(one: Floats, *_: Floats) -> tuple[Floats, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
        return np.array([waiting.pop(0) for _ in one]), np.ones(len(one), np.bool_)

    monkeypatch.setattr(rank_losses, "clicks_differ", tested)
    query = np.repeat(np.arange(len(p_values)), 2)  # two documents each: as many pairs as queries
    ones = np.ones(len(query))
    found = significant_pairs(query, ones, ones, LearningOptions(multiple_tests=multiple_tests))
    assert found.n_tested == len(p_values)
    return len(found.higher)


@pytest.mark.parametrize(("multiple_tests", "wanted"), [("none", 6), ("bonferroni", 2), ("fdr", 4)])
def test_the_level_allows_for_many_pairs(
    multiple_tests: MultipleTests, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten tests: .05 each; .005 each; the largest k with p_(k) <= .005 k, which is 4: .019 <= .02, .03 > .025."""
    p_values = [0.04, 0.001, 0.9, 0.019, 0.012, 0.5, 0.03, 0.004, 0.7, 0.2]
    assert pairs_of(p_values, multiple_tests, monkeypatch) == wanted


def test_all_pairs_of_a_query_are_tested_and_none_across_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    query = np.sort(RNG.integers(0, 20, 300))
    clicks, shown = RNG.binomial(30, 0.3, 300).astype(float), RNG.uniform(5, 60, 300)

    def found(block: int) -> RatePairs:
        monkeypatch.setattr(rank_losses, "_BLOCK", block)
        return significant_pairs(query, clicks, shown, LearningOptions())

    at_once, in_blocks = found(1 << 20), found(50)
    assert at_once.n_tested == sum(size * (size - 1) // 2 for size in np.bincount(query).tolist())
    assert (query[at_once.higher] == query[at_once.lower]).all()
    assert (clicks[at_once.higher] / shown[at_once.higher] > clicks[at_once.lower] / shown[at_once.lower]).all()
    np.testing.assert_array_equal(at_once.higher, in_blocks.higher)
    np.testing.assert_array_equal(at_once.lower, in_blocks.lower)


def test_documents_that_were_not_shown_are_in_no_pair() -> None:
    clicks, shown = np.array([50.0, 0, 5]), np.array([100.0, 0, 100])
    found = significant_pairs(np.zeros(3, np.int64), clicks, shown, LearningOptions())
    assert (found.higher.tolist(), found.lower.tolist(), found.n_tested) == ([0], [2], 1)


# --- what is learnt from them -----------------------------------------------------------------------------------


def test_targets_are_the_other_score_and_tau() -> None:
    h = np.array([0.5, 2.0, -1.0, 9.0])
    documents, target, weight = targets(np.array([0, 0]), np.array([1, 2]), h, 0.7)
    assert documents.tolist() == [0, 1, 2]
    assert weight.tolist() == [2, 1, 1]
    np.testing.assert_allclose(target, [((2.0 + 0.7) + (-1.0 + 0.7)) / 2, 0.5 - 0.7, 0.5 - 0.7])


def learn_from(rows: Floats, pairs: RatePairs, trees: int, monkeypatch: pytest.MonkeyPatch) -> Learned:
    """What is learnt from pairs, which are those of held-out queries too."""

    def found(*_: object) -> RatePairs:
        return pairs

    monkeypatch.setattr(rank_losses, "_significant_pairs", found)
    number = np.zeros(len(rows), np.int64)
    counts = dense_table(np.ones((len(rows), 1)), np.zeros((len(rows), 1)))
    features = Features(rows, ("a", "b"))
    data = LearningData(number, number > 0, counts, np.ones(1), np.ones(1, np.int64), features=features)
    return learn("gbrank", data, trees=trees)


def test_fits_are_averaged_as_the_paper_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """h_m = (m h_{m-1} + g_m) / (m + 1): by hand, each g_m from LightGBM, against the model file."""
    lightgbm: Any = import_module("lightgbm")  # its types are incomplete
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((400, 2))
    higher, lower = rng.integers(0, 400, 3_000), rng.integers(0, 400, 3_000)
    swap = rows[higher, 0] + rng.standard_normal(3_000) < rows[lower, 0]
    pairs = RatePairs(np.where(swap, lower, higher), np.where(swap, higher, lower), 3_000)
    found = scores(learn_from(rows, pairs, 60, monkeypatch), rows)

    h = np.zeros(400)
    parameters = {"learning_rate": 0.1, "num_leaves": 15, "min_data_in_leaf": 10, "num_threads": 1, "verbose": -1}
    for m in (1, 2, 3):
        wrong = h[pairs.higher] < h[pairs.lower] + 1
        i, j = pairs.higher[wrong], pairs.lower[wrong]
        inputs = np.concatenate([rows[i], rows[j]])  # one row each, as the paper has it
        wanted = np.concatenate([h[j] + 1, h[i] - 1])
        of_paper = {**parameters, "objective": "regression", "min_data_in_leaf": 10 * len(inputs) // 400}
        g = lightgbm.train(of_paper, lightgbm.Dataset(inputs, wanted), 20)
        h = (m * h + np.asarray(g.predict(rows))) / (m + 1)
    assert rank_correlation(found, h) > 0.98
    assert np.abs(found - h).mean() < 0.05


def test_the_curve_is_the_loss_of_the_model_that_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((300, 2))
    order = np.argsort(-rows[:, 0])
    pairs = RatePairs(order[:150], order[150:], 150)
    learned = learn_from(rows, pairs, 50, monkeypatch)
    assert learned.curve["round"].to_list() == [20, 40, 50]
    assert learned.curve["training"][-1] == pytest.approx(-hinge_loss(pairs, scores(learned, rows), 1.0))


def test_scores_are_as_far_apart_as_tau_says_and_their_order_does_not_depend_on_it() -> None:
    data, rows = draw(), UNSEEN[:500]
    one, twice = (scores(learn("gbrank", data, tau=tau), rows) for tau in (1.0, 2.0))
    np.testing.assert_allclose(twice, 2 * one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.05, 0.2, 0.45])
@pytest.mark.parametrize("mean", [-1.0, 0.0, 0.5, 3.0])
def test_the_margin_is_the_least_of_the_papers_objective(penalty: float, mean: float) -> None:
    apart = np.sort(np.random.default_rng(3).normal(mean, 1.0, 200))
    sums, squares = (np.pad(np.cumsum(apart**power), (1, 0)) for power in (1, 2))

    def objective(tau: Floats) -> Floats:
        """Mean of max(0, tau - apart)^2 / 2, less penalty tau^2: by sums, as the grid is long."""
        below = np.searchsorted(apart, tau)
        return (below * tau**2 - 2 * tau * sums[below] + squares[below]) / (2 * len(apart)) - penalty * tau**2

    found = best_margin(apart, penalty)
    assert objective(np.array([found]))[0] <= objective(np.linspace(0, 400, 400_001)).min() + 1e-6


def test_with_a_margin_penalty_tau_follows_the_scores_and_documents_are_ranked_as_well() -> None:
    data, rows = draw(), UNSEEN
    learned = learn("gbrank", data, margin_penalty=0.2)
    assert learned.report["tau"] != 1.0
    assert rank_correlation(scores(learned, rows), true_scores(rows)) > 0.8


@pytest.mark.slow
def test_it_stops_once_held_out_pairs_fare_no_better_and_keeps_the_best() -> None:
    data = draw(held_out=0.4)
    learned = learn("gbrank", data, trees=2_000, early_stopping=1)
    kept = learned.report["trees"]
    assert kept == learned.curve["round"][int(np.argmax(learned.curve["validation"].to_numpy()))]
    fewer = learn("gbrank", data, trees=kept)
    rows = UNSEEN[:50]
    np.testing.assert_allclose(scores(learned, rows), scores(fewer, rows), rtol=0, atol=1e-12)


def test_corrected_rates_rank_by_attractiveness_and_raw_ones_by_what_the_ranker_likes() -> None:
    data, rows = draw(), UNSEEN
    corrected, raw = (scores(learn("gbrank", data, corrected_rates=asked), rows) for asked in (True, False))
    assert rank_correlation(corrected, true_scores(rows)) > 0.8
    assert rank_correlation(raw, rows[:, 1]) > rank_correlation(corrected, rows[:, 1]) + 0.2


def test_a_log_without_a_significant_pair_is_an_error_that_says_how_many_were_tested() -> None:
    with pytest.raises(IdentifiabilityError, match=r"of 1,596 pairs .* none .* level of 1e-300"):
        learn("gbrank", draw(), significance=1e-300)
