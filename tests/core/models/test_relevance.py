"""Agreement of a model's relevance with judgments, and its dependence on the ranker."""

import numpy as np
import polars as pl
import pytest
from present import present

from posbias.core.models.judging import auc, dependence_on_ranker


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    judged = pl.DataFrame(
        {"query": ["a"] * 4 + ["b"] * 2, "value": [0.9, 0.5, 0.5, 0.1, 0.2, 0.3], "grade": [1, 0, 1, 0, 0, 0]}
    )
    # a: (.9, .5) (.9, .1) (.5, .1) right, (.5, .5) a tie; b has no relevant document
    assert auc(judged) == pytest.approx(3.5 / 4)


def test_auc_of_queries_without_two_kinds_is_not_known() -> None:
    assert np.isnan(auc(pl.DataFrame({"query": [1, 1], "value": [0.1, 0.2], "grade": [0, 0]})))


def judged(rng: np.random.Generator, bias: float) -> pl.DataFrame:
    """Values that follow the grade and, by `bias`, also the place that a ranker of the same grades gave."""
    n = 600
    grade = rng.integers(0, 3, n)
    noise = rng.standard_normal(n)
    place = -grade + noise
    value = grade - bias * noise + rng.standard_normal(n)
    return pl.DataFrame({"query": np.repeat(np.arange(30), 20), "grade": grade, "place": place, "value": value})


@pytest.mark.slow
def test_values_that_follow_only_the_grade_are_seldom_said_to_depend_on_the_ranker() -> None:
    found = [present(dependence_on_ranker(judged(np.random.default_rng(seed), 0.0), seed)) for seed in range(60)]
    p_values = [p_value for _, p_value in found]
    assert np.mean(np.array(p_values) < 0.05) < 0.13


def test_values_that_follow_the_place_within_a_grade_are_found() -> None:
    slope, p_value = present(dependence_on_ranker(judged(np.random.default_rng(0), 0.5), 0))
    assert p_value < 0.01
    assert slope < -0.2


def test_single_documents_cannot_be_compared() -> None:
    rows = pl.DataFrame({"query": [1, 2], "grade": [0, 0], "place": [1.0, 2.0], "value": [0.1, 0.2]})
    assert dependence_on_ranker(rows, 0) is None
