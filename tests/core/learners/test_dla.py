"""`dla`: a ranker and theta that weigh each other's clicks (Ai et al. 2018)."""

from dataclasses import replace

import numpy as np
import pytest
from learned import few_pages, learn, page_of, slope, with_pages
from learning_logs import THETA, draw
from present import present

from posbias.core.arrays.count_table import Floats
from posbias.core.learners.learning import LearningData, clicked_lists
from posbias.core.learners.rank_losses import WeightedSoftmax, examination_gradients

EXAMINATION = np.array([0.0, -0.4, -1.0, -1.3, -2.0])


SMALL = few_pages()


def log_softmax(values: Floats) -> Floats:
    return np.asarray(values - np.log(np.exp(values).sum()))


def ranking_loss(data: LearningData, at: Floats) -> float:
    """Equation 8 of the paper, its weights given."""
    theta = np.exp(EXAMINATION)
    return -sum(
        float((click * theta[0] / theta[cell] * log_softmax(at[document])).sum())
        for document, cell, click in page_of(data)
    )


def examination_loss(data: LearningData, at: Floats, scores: Floats) -> float:
    """Equation 9, its weights given."""
    total = 0.0
    for document, cell, click in page_of(data):
        gamma = np.exp(log_softmax(scores[document]))
        total -= float((click * gamma[0] / gamma * log_softmax(at[cell])).sum())
    return total


def ranking_of(data: LearningData) -> WeightedSoftmax:
    return WeightedSoftmax(clicked_lists(data, data.training), data.n_documents, EXAMINATION)


def test_the_gradient_of_ranking_is_the_derivative_of_the_loss_of_the_paper() -> None:
    at = np.random.default_rng(0).standard_normal(SMALL.n_documents)
    gradient, hessian = ranking_of(SMALL).gradients(at)
    slopes = [slope(lambda found: ranking_loss(SMALL, found), at, number) for number in range(9)]
    np.testing.assert_allclose(gradient[:9], slopes, rtol=1e-6, atol=1e-8)
    assert (hessian > 0).all()


def test_the_gradient_of_examination_is_the_derivative_of_the_loss_of_the_paper() -> None:
    scores = np.random.default_rng(0).standard_normal(SMALL.n_documents)
    gradient, hessian = examination_gradients(clicked_lists(SMALL, SMALL.training), EXAMINATION, scores)
    for number in range(5):
        wanted = slope(lambda at: examination_loss(SMALL, at, scores), EXAMINATION, number)
        assert gradient[number] == pytest.approx(wanted, rel=1e-6, abs=1e-8)

        def one(at: Floats, number: int = number) -> float:
            return float(examination_gradients(clicked_lists(SMALL, SMALL.training), at, scores)[0][number])

        assert hessian[number] == pytest.approx(slope(one, EXAMINATION, number), rel=1e-5)


def test_at_the_truth_the_expected_gradients_are_zero() -> None:
    """One query, documents at random places: clicks as theta_k gamma_d leave nothing to learn, on either side."""
    rng = np.random.default_rng(0)
    gamma = np.array([0.9, 0.5, 0.2, 0.1, 0.05])
    orders = [rng.permutation(5).tolist() for _ in range(2_000)]
    data = with_pages(draw(), orders, [list(range(5))] * len(orders), [[0] * 5] * len(orders))
    pages = present(data.pages)
    data = replace(data, pages=replace(pages, click=THETA[pages.cell] * gamma[pages.document]))
    lists = clicked_lists(data, data.training)
    of_ranking, bend = WeightedSoftmax(lists, data.n_documents, np.log(THETA)).gradients(
        np.concatenate([np.log(gamma), np.zeros(data.n_documents - 5)])
    )
    np.testing.assert_allclose(of_ranking[:5] / bend[:5], 0, atol=1e-9)
    scores = np.concatenate([np.log(gamma), np.zeros(data.n_documents - 5)])
    of_examination, bend = examination_gradients(lists, np.log(THETA), scores)
    np.testing.assert_allclose(of_examination / bend, 0, atol=1e-9)


def test_it_finds_propensities_of_its_own_relative_to_the_first_position() -> None:
    found = present(learn("dla", draw()).propensities)
    assert found[0] == 1
    assert (np.diff(found) < 0).all()
    assert np.abs(found / THETA - 1).mean() < 0.25


def test_the_curve_is_how_likely_the_clicked_documents_are_among_those_of_their_page() -> None:
    at = np.random.default_rng(0).standard_normal(SMALL.n_documents)
    found = [
        float((click * log_softmax(at[document] + EXAMINATION[cell])).sum()) for document, cell, click in page_of(SMALL)
    ]
    clicks = sum(float(click.sum()) for _, _, click in page_of(SMALL))
    assert ranking_of(SMALL).per_impression(at) == pytest.approx(sum(found) / clicks)


def test_it_does_not_stop_because_its_weights_grow() -> None:
    learned = learn("dla", draw(held_out=0.3), trees=100, early_stopping=5)
    assert learned.report["trees"] > 10


def test_the_propensities_are_those_of_the_trees_that_are_kept() -> None:
    data = draw(held_out=0.3)
    stopped = learn("dla", data, early_stopping=3)
    trees = stopped.report["trees"]
    fewer = learn("dla", data, trees=trees)
    np.testing.assert_allclose(present(stopped.propensities), present(fewer.propensities), rtol=1e-12)
