"""The ranker as a teacher: what it knows beyond the features, and how far a document's own clicks are believed."""

from dataclasses import replace

import numpy as np
import pytest
from learned import learn, scores
from learning_logs import hidden_relevance, rank_correlation
from present import present
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.learners.learning import LearningData
from posbias.core.learners.trees import initial_logits, ranker_knowledge, soft_labels


def one_cell(impressions: Floats, clicks: Floats) -> CountTable:
    """Documents that were all shown at one position."""
    return dense_table(np.asarray(impressions, float)[:, np.newaxis], np.asarray(clicks, float)[:, np.newaxis])


@pytest.mark.slow
def test_a_ranker_that_knows_more_than_the_features_teaches_a_model_of_the_features() -> None:
    data, truth = hidden_relevance(known=1.0, seed=0)
    unseen, of_unseen = hidden_relevance(known=1.0, seed=1)
    rows = present(unseen.features).rows[np.arange(unseen.n_documents)]
    taught, plain = (rank_correlation(scores(learn(name, data), rows), of_unseen) for name in ("distilled", "pbm"))
    assert taught > plain + 0.03
    assert len(truth) == data.n_documents


def test_the_rankers_score_says_what_it_knows_or_else_the_mean_log_position() -> None:
    data, _ = hidden_relevance(known=1.0, seed=0)
    shown = data.counts.sum_by_unit(data.counts.impressions)
    assert (shown == 1).all()
    np.testing.assert_allclose(ranker_knowledge(data), -np.log(data.position[data.counts.cell]))
    score = np.arange(float(data.n_documents))
    np.testing.assert_array_equal(ranker_knowledge(replace(data, knowledge=score)), score)


def test_a_document_that_was_never_shown_has_no_mean_position() -> None:
    counts = dense_table(np.array([[1.0, 1.0], [0.0, 0.0]]), np.zeros((2, 2)))
    query, none = np.zeros(2, int), np.zeros(2, bool)
    data = LearningData(query, none, counts, np.ones(2), np.array([1, 4]))
    np.testing.assert_allclose(ranker_knowledge(data), [-np.log(4) / 2, np.nan])


def test_learning_starts_at_the_rate_of_documents_that_the_ranker_likes_as_much() -> None:
    z, learnt = np.array([1.0, 1.0, 2.0, 2.0, np.nan]), np.arange(5)
    counts, theta = one_cell(np.full(5, 1000.0), np.array([100.0, 120.0, 300.0, 340.0, 50.0])), np.array([0.5])
    rate = 1 / (1 + np.exp(-initial_logits(counts, theta, z, learnt)))
    np.testing.assert_allclose(rate, [0.22, 0.22, 0.64, 0.64, 0.1], atol=1e-3)


def test_documents_that_were_shown_once_have_the_labels_of_their_like() -> None:
    gamma = np.array([0.2, 0.5, 0.7])
    label, spread = soft_labels(one_cell(np.ones(3), np.array([0.0, 1.0, 1.0])), np.array([0.4]), gamma)
    np.testing.assert_array_equal(label, gamma)
    assert spread == 0


def test_documents_that_were_shown_often_have_labels_of_their_own() -> None:
    clicks, theta, gamma = np.array([4e4, 2e4, 1e4]), np.array([0.5]), np.full(3, 0.4)
    label, _ = soft_labels(one_cell(np.full(3, 1e5), clicks), theta, gamma)
    np.testing.assert_allclose(label, clicks / 5e4, atol=2e-4)


@pytest.mark.parametrize("spread", [0.0, 0.05, 0.3])
def test_the_spread_within_documents_alike_is_found(spread: float) -> None:
    rng, n, shown, examined = np.random.default_rng(3), 20_000, 12, 0.5
    mean = rng.uniform(0.2, 0.6, n)
    size = 1 / spread - 1 if spread else np.inf
    own = rng.beta(mean * size, (1 - mean) * size) if spread else mean
    clicks = rng.binomial(shown, examined * own).astype(float)
    label, found = soft_labels(one_cell(np.full(n, float(shown)), clicks), np.array([examined]), mean)
    assert found == pytest.approx(spread, abs=0.01)
    errors = [np.mean((guess - own) ** 2) for guess in (label, mean, clicks / (shown * examined))]
    assert errors[0] <= min(errors[1:]) * 1.01 + 1e-4  # neither the like alone nor the own clicks alone do better
