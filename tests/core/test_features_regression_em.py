"""Regression EM, held to Algorithm 1 of Wang et al. 2018: its steps by enumeration, and its iteration by hand."""

from itertools import product

import numpy as np
import pytest

from posbias.core import features as module
from posbias.core.arrays.count_table import Floats
from posbias.core.features import LearningRows, expectation, regression_em
from posbias.core.learners.boosting import BinnedRows, TreeOptions, bin_rows

THETA, RELEVANCE = np.array([0.9, 0.5, 0.2]), np.array([0.1, 0.6, 0.95])


def by_enumeration(theta: float, relevance: float, click: int) -> tuple[float, float]:
    """P(E=1 | c) and P(R=1 | c), by adding up what is possible with C = E R."""
    joint = {
        (examined, relevant): (theta if examined else 1 - theta) * (relevance if relevant else 1 - relevance)
        for examined, relevant in product((0, 1), (0, 1))
        if examined * relevant == click
    }
    total = sum(joint.values())
    examined = sum(p for (e, _), p in joint.items() if e) / total
    relevant = sum(p for (_, r), p in joint.items() if r) / total
    return examined, relevant


@pytest.mark.parametrize("click", [0, 1])
def test_the_e_step_is_the_posterior_of_examination_and_relevance(click: int) -> None:
    found = expectation(THETA, RELEVANCE, np.full(3, float(click)))
    wanted = np.array([by_enumeration(t, g, click) for t, g in zip(THETA, RELEVANCE, strict=True)])
    np.testing.assert_allclose(np.stack(found, axis=1), wanted, rtol=1e-12)


def learning_rows(cell: list[int], click: list[float], weight: list[float]) -> LearningRows:
    n_cells = max(cell) + 1
    zeros = np.zeros(len(cell), np.int64)
    return LearningRows(
        np.array(cell), np.array(click), np.array(weight), zeros, np.arange(1, n_cells + 1), np.zeros(n_cells, np.int64)
    )


def test_the_m_step_of_theta_is_the_mean_posterior_of_examination_by_position() -> None:
    rows = learning_rows([0, 0, 1, 1], [1, 0, 0, 0], [1, 1, 1, 3])
    np.testing.assert_allclose(rows.mean_by_cell(np.array([1.0, 0.4, 0.2, 0.6])), [0.7, (0.2 + 3 * 0.6) / 4])


def test_an_iteration_draws_labels_fits_trees_to_them_and_updates_theta(monkeypatch: pytest.MonkeyPatch) -> None:
    labels: list[Floats] = []
    given = np.array([0.3, 0.2, 0.5, 0.4])

    def regress(_features: BinnedRows, _rows: LearningRows, label: Floats) -> Floats:
        labels.append(label)
        return given

    monkeypatch.setattr(module, "regress_labels", regress)
    rows = learning_rows([0, 0, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1])
    features = BinnedRows(None, TreeOptions(), 4)  # which `regress` does not look at
    one, two = (regression_em(features, rows, 3, number, lambda _: None) for number in (1, 2))
    # By hand: both positions have the click rate 1/2, so that theta starts at .9 each, and g at 2 * 1/2, at most 1/2.
    unclicked = 0.9 * (1 - 0.5) / (1 - 0.9 * 0.5)
    np.testing.assert_allclose(one, [(1 + unclicked) / 2] * 2, rtol=1e-12)
    again = one * (1 - given[[1, 3]]) / (1 - one * given[[1, 3]])
    np.testing.assert_allclose(two, (1 + again) / 2, rtol=1e-12)
    relevant = 0.5 * (1 - 0.9) / (1 - 0.9 * 0.5)
    drawn = np.random.default_rng(3).random(4)
    np.testing.assert_array_equal(labels[0], drawn < np.array([1.0, relevant, 1.0, relevant]))


def test_trees_are_fitted_anew_to_the_labels() -> None:
    draws = np.random.default_rng(0)
    features = draws.normal(size=(5_000, 1))
    label = (draws.random(5_000) < np.where(features[:, 0] > 0, 0.8, 0.1)).astype(float)
    rows = learning_rows([0] * 5_000, label.tolist(), [1.0] * 5_000)
    found = module.regress_labels(bin_rows(features, ["a"], [], TreeOptions(leaf_rows=100)), rows, label)
    assert found[features[:, 0] > 0].mean() == pytest.approx(0.8, abs=0.03)
    assert found[features[:, 0] < 0].mean() == pytest.approx(0.1, abs=0.03)
