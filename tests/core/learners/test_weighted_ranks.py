"""`ipw-arp` and `ipw-dcg`: weighted ranks of clicked documents (Joachims et al. 2017, Agarwal et al. 2019)."""

from dataclasses import replace

import numpy as np
import pytest
from learned import few_pages, learn, page_of, slope, with_pages
from learning_logs import THETA, draw

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.learning import Learner, LearningData
from posbias.core.learners.rank_losses import IPW_ARP, IPW_DCG, LEAST_PROPENSITY, BoundedRanks

LEARNERS = [IPW_ARP, IPW_DCG]


def ranks_of(data: LearningData, learner: Learner = LEARNERS[0]) -> BoundedRanks:
    """The loss of the documents to learn from."""
    return learner.fits(learner, data)[0]


SMALL = few_pages()


def loss_by_hand(data: LearningData, at: Floats, learner: Learner) -> float:
    """The sum over the clicks, one after the other, as the papers write it."""
    total = 0.0
    for document, cell, click in page_of(data):
        for place in np.flatnonzero(click):
            others = np.delete(document, place)
            rank = 1 + np.log2(1 + np.exp(at[others] - at[document[place]])).sum()
            cost = rank if learner.name == "ipw-arp" else -1 / np.log2(1 + rank)
            total += float(cost / THETA[cell[place]])
    return total


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: learner.name)
def test_the_gradient_is_the_derivative_of_the_weighted_measure(learner: Learner) -> None:
    at = np.random.default_rng(0).standard_normal(SMALL.n_documents)
    gradient, hessian = ranks_of(SMALL, learner).gradients(at)
    slopes = [slope(lambda found: loss_by_hand(SMALL, found, learner), at, number) for number in range(9)]
    np.testing.assert_allclose(gradient[:9], slopes, rtol=1e-6, atol=1e-8)
    assert (hessian > 0).all()


def test_the_hessian_of_the_average_rank_is_its_second_derivative() -> None:
    at = np.random.default_rng(0).standard_normal(SMALL.n_documents)
    loss = ranks_of(SMALL)
    _, hessian = loss.gradients(at)
    for number in range(8):
        bend = slope(lambda found, number=number: float(loss.gradients(found)[0][number]), at, number)
        assert hessian[number] == pytest.approx(max(bend, 1e-6), rel=1e-5)


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: learner.name)
def test_the_learning_curve_is_the_weighted_mean(learner: Learner) -> None:
    at = np.random.default_rng(1).standard_normal(SMALL.n_documents)
    weights = sum(float((click / THETA[cell]).sum()) for _, cell, click in page_of(SMALL))
    found = ranks_of(SMALL, learner).per_impression(at)
    assert found == pytest.approx(-loss_by_hand(SMALL, at, learner) / weights)


def test_the_bound_is_at_least_the_rank_and_is_the_rank_at_the_top() -> None:
    page = with_pages(SMALL, [[0, 1, 2]], [[0, 1, 2]], [[0, 1, 0]])
    loss = ranks_of(page)
    at = np.zeros(SMALL.n_documents)
    for others, rank in (([-40.0, -40.0], 1), ([40.0, -40.0], 2), ([40.0, 40.0], 3)):
        at[[0, 2]] = others
        assert -loss.per_impression(at) >= rank
    at[[0, 2]] = -40.0
    assert -loss.per_impression(at) == pytest.approx(1.0)


@pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: learner.name)
def test_a_step_of_trees_lowers_the_loss(learner: Learner) -> None:
    curve = learn(learner.name, draw()).curve["training"]
    assert curve.diff().drop_nulls().min() > 0  # type: ignore[operator]


def test_clicks_weigh_the_inverse_of_propensities_that_are_clipped() -> None:
    theta = np.array([1.0, 0.5, 0.001, np.nan, 0.2])
    loss = ranks_of(replace(SMALL, examination=theta))
    np.testing.assert_allclose(loss.weight, [1, 2, 1 / LEAST_PROPENSITY, 0, 5])


def test_clicks_without_a_propensity_teach_nothing_and_their_documents_are_still_ranked_against() -> None:
    unknown = replace(SMALL, examination=np.where(np.arange(len(THETA)) == 1, np.nan, THETA))
    page = with_pages(unknown, [[0, 1, 2]], [[0, 1, 2]], [[0, 1, 1]])
    gradient, _ = ranks_of(page).gradients(np.zeros(page.n_documents))
    pull = 1 / THETA[2] / 2 / np.log(2)
    np.testing.assert_allclose(gradient[:3], [pull, pull, -2 * pull])


@pytest.mark.parametrize("name", ["ipw-arp", "ipw-dcg", "dla"])
def test_pages_of_one_document_teach_nothing_and_that_is_an_error(name: str) -> None:
    lonely = with_pages(draw(), [[0], [1], [2]], [[0], [1], [0]], [[1], [1], [0]])
    with pytest.raises(IdentifiabilityError, match=f"--learner {name}: no page .* a second document"):
        learn(name, lonely)
