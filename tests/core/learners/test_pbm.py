"""The default learner, and the naive one beside it."""

from dataclasses import replace

import numpy as np
import pytest
from learned import learn, scores
from learning_logs import UNSEEN, draw, rank_correlation, true_scores
from present import present

from posbias.core.arrays.count_table import Floats
from posbias.core.learners.learning import ClickLikelihood, Features, LearningData, sample_negatives, sigmoid


@pytest.fixture(scope="module")
def data() -> LearningData:
    return draw()


def test_pbm_ranks_documents_that_it_has_not_seen_by_what_clicks_are_drawn_from(data: LearningData) -> None:
    found = scores(learn("pbm", data), UNSEEN)
    assert rank_correlation(found, true_scores(UNSEEN)) > 0.97
    assert np.abs(sigmoid(found) - sigmoid(true_scores(UNSEEN))).mean() < 0.06  # on the probability scale


def test_naive_takes_what_the_ranker_likes_for_relevance(data: LearningData) -> None:
    naive, corrected = (rank_correlation(scores(learn(name, data), UNSEEN), UNSEEN[:, 1]) for name in ("naive", "pbm"))
    assert naive > corrected + 0.2


def test_cells_without_a_theta_teach_nothing(data: LearningData) -> None:
    theta = data.examination.copy()
    theta[-1] = np.nan
    without = replace(data, examination=theta, counts=data.counts.only_cells(np.arange(len(theta)) < len(theta) - 1))
    np.testing.assert_array_equal(
        scores(learn("pbm", replace(data, examination=theta)), UNSEEN), scores(learn("pbm", without), UNSEEN)
    )


def test_learning_stops_once_held_out_queries_fare_no_better() -> None:
    data = draw(held_out=0.3)
    learned = learn("pbm", data, trees=400, early_stopping=5)
    best = learned.report["trees"]
    assert best + 5 == learned.curve["round"].max()
    assert learned.curve["validation"].arg_max() == best - 1
    fewer = learn("pbm", data, trees=best)
    rows = np.asarray(present(data.features).rows)
    np.testing.assert_allclose(scores(learned, rows), scores(fewer, rows), atol=1e-12)


def test_importance_names_the_feature_that_tells(data: LearningData) -> None:
    importance = present(learn("pbm", data).importance)
    assert importance.sort("gain", descending=True)["feature"][0] == 0


def test_losses_of_logs_with_fewer_negatives_are_those_of_the_whole_log_on_average() -> None:
    data = draw(held_out=0.2)
    rows = present(data.features).rows[np.arange(data.n_documents)]
    numbered = np.column_stack([np.arange(float(data.n_documents)), rows])
    data = replace(data, features=Features(numbered, ("number", "telling", "liked")))
    at = np.random.default_rng(1).standard_normal(data.n_documents)

    def sums(log: LearningData, score: Floats) -> Floats:
        """Log-likelihood, gradient by weights of the features, and clicks."""
        loss, rows = ClickLikelihood(log.counts.take(log.training), log.theta), present(log.features).rows[log.training]
        own = score[log.training]
        likelihood = loss.per_impression(own) * loss.counts.impressions.sum()
        return np.array([likelihood, *(loss.gradients(own)[0] @ rows), loss.counts.clicks.sum()])

    sparse = replace(
        data, counts=replace(data.counts, clicks=np.where(data.counts.cell % 2, 0, data.counts.clicks // 9))
    )
    whole, found = sums(sparse, at), list[Floats]()
    for seed in range(300):
        log = sample_negatives(sparse, 0.25, seed)
        kept = present(log.features).rows[np.arange(log.n_documents)][:, 0].astype(int)
        assert log.n_documents < 0.8 * sparse.n_documents
        assert len(log.validation) == len(sparse.validation)
        found.append(sums(log, at[kept]))
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    np.testing.assert_array_less(np.abs(np.mean(found, axis=0) - whole), 4 * error + 1e-9)


@pytest.mark.parametrize("name", ["pbm", "naive", "position-feature"])
def test_a_quarter_of_the_negatives_teaches_nearly_the_same(name: str) -> None:
    data = draw(preference=0.0)
    few = np.random.default_rng(2).binomial(data.counts.clicks.astype(np.int64), 0.03).astype(np.float64)
    sparse = replace(data, counts=replace(data.counts, clicks=few))
    shallow = {"trees": 30, "leaves": 4, "leaf_documents": 40}

    def attractiveness(log: LearningData) -> float:
        return float(sigmoid(scores(learn(name, log, **shallow), UNSEEN)).mean())

    whole = attractiveness(sparse)
    fewer = [attractiveness(sample_negatives(sparse, 0.25, seed)) for seed in range(4)]
    assert np.mean(fewer) == pytest.approx(whole, rel=0.2)
    assert attractiveness(_unweighted(sparse, 0.25)) > 1.8 * whole


def _unweighted(data: LearningData, share: float) -> LearningData:
    log = sample_negatives(data, share, 0)
    clicked = log.counts.sum_by_unit(log.counts.clicks)[log.counts.unit_of_entry] > 0
    own = np.where(clicked, log.counts.impressions, share * log.counts.impressions)
    return replace(log, counts=replace(log.counts, impressions=own))
