"""What holds for every learner from features."""

import re
from dataclasses import replace

import numpy as np
import pytest
from learned import learn, scores
from learning_logs import THETA, UNSEEN, draw, rank_correlation, true_scores
from present import present

from posbias.core.choices import LEARNERS
from posbias.core.learners.learning import LearningData, get_learner

FROM_FEATURES = [name for name in LEARNERS if get_learner(name).needs_features]
HELD_OUT = 0.3


def without_clicks_apart(data: LearningData) -> LearningData:
    """The same log, but that nothing of held-out queries was clicked."""
    counts, pages = data.counts, present(data.pages)
    return replace(
        data,
        counts=replace(counts, clicks=np.where(data.held_out[counts.unit_of_entry], 0, counts.clicks)),
        pages=replace(pages, click=np.where(data.held_out[pages.document], 0, pages.click)),
    )


@pytest.mark.parametrize("name", FROM_FEATURES)
@pytest.mark.slow_after(4)
def test_a_learner_ranks_better_than_what_the_logging_ranker_likes(name: str) -> None:
    found = scores(learn(name, draw()), UNSEEN)
    liking = 0.5 * UNSEEN[:, 0] + UNSEEN[:, 1]
    assert rank_correlation(found, true_scores(UNSEEN)) > rank_correlation(liking, true_scores(UNSEEN)) + 0.2


@pytest.mark.parametrize("name", FROM_FEATURES)
@pytest.mark.slow
def test_held_out_queries_are_not_learnt_from(name: str) -> None:
    data = draw(held_out=HELD_OUT)
    learned, other = (learn(name, log) for log in (data, without_clicks_apart(data)))
    np.testing.assert_array_equal(scores(learned, UNSEEN), scores(other, UNSEEN))
    assert learned.curve["validation"].null_count() == 0
    assert learned.curve["training"].equals(other.curve["training"])


@pytest.mark.parametrize("name", FROM_FEATURES)
@pytest.mark.slow
def test_the_same_log_and_seed_give_the_same_model(name: str) -> None:
    one, other = (learn(name, draw(), seed=5) for _ in range(2))
    np.testing.assert_array_equal(scores(one, UNSEEN), scores(other, UNSEEN))


@pytest.mark.parametrize("name", [name for name in FROM_FEATURES if not get_learner(name).uses_propensities])
@pytest.mark.slow_after(2)
def test_a_learner_that_takes_no_propensities_does_not_look_at_them(name: str) -> None:
    data = draw()
    one, other = (scores(learn(name, replace(data, examination=theta)), UNSEEN) for theta in (THETA, np.ones(5)))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_names_its_paper(name: str) -> None:
    assert re.search(r"\b(19|20)\d\d\b", get_learner(name).reference)
