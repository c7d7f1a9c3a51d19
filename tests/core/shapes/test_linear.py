"""The product form of cells: its optimum and errors against ones written out, and cells that nothing links."""

import numpy as np
import pytest
import scipy
from dense import by_cluster, dense_counts, log_likelihood, scores_and_information
from present import present
from small_logs import dense_table, fitted_pairs, side_by_side

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.arrays.optimize import Limits
from posbias.core.shapes import SHAPE_ALONE, ShapedEstimate
from posbias.core.shapes.linear import fit_product
from posbias.core.standard_errors.contrasts import StrataEstimate

ROWS, COLUMNS = np.array([1.0, 0.6, 0.4]), np.array([1.0, 0.8, 0.5, 0.7])
THETA = np.outer(ROWS, COLUMNS).ravel()
AXES = np.stack(np.meshgrid(np.arange(3), np.arange(4), indexing="ij"), axis=-1).reshape(-1, 2)
ONE = np.zeros(len(THETA), np.int64)
N_QUERIES = 12


def log_of(theta: Floats, seed: int = 3, mean: float = 4.0, without: Integers | None = None) -> StrataEstimate:
    """The free estimate of 120 pairs of 12 queries; no pair is shown in some cells."""
    rng = np.random.default_rng(seed)
    shown = np.where(np.isin(np.arange(len(theta)), [] if without is None else without), 0.0, mean)
    impressions = rng.poisson(shown * np.ones((120, 1)))
    clicks = rng.binomial(impressions, rng.beta(2, 3, (120, 1)) * theta)
    pairs = dense_table(impressions.astype(np.float64), clicks.astype(np.float64))
    return fitted_pairs(pairs, np.arange(120) % N_QUERIES)


def design(axes: Integers = AXES) -> Floats:
    """One column for each value of an axis but the first, shape (K, P)."""
    return np.concatenate([axis[:, np.newaxis] == np.unique(axis)[1:] for axis in axes.T], axis=1).astype(np.float64)


def product(free: StrataEstimate, axes: Integers = AXES) -> ShapedEstimate:
    return present(fit_product(free, axes, ONE))


def test_the_product_is_the_most_likely_one() -> None:
    free = log_of(THETA)
    counts = dense_counts(free.strata.signatures.take(free.strata.members.unit))

    def loss(gamma: Floats) -> float:
        return -log_likelihood(*counts, design() @ gamma)

    best = scipy.optimize.minimize(loss, np.zeros(design().shape[1]), method="BFGS", options={"gtol": 1e-8}).x

    assert product(free).log_theta == pytest.approx(design() @ best, abs=1e-5)


def test_a_long_log_takes_no_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posbias.core.shapes.linear._LIMITS", Limits(4.0, 1e-9, max_iterations=12))
    found = product(log_of(THETA**3, mean=1e5))

    assert found.converged
    assert found.theta == pytest.approx(THETA**3, rel=0.02)


def test_errors_are_those_of_leaving_out_a_query() -> None:
    free = log_of(THETA)
    found = product(free)
    members = free.strata.members
    counts = dense_counts(free.strata.signatures.take(members.unit))
    scores, information = (
        by_cluster(of_pairs @ design(), members.cluster) for of_pairs in scores_and_information(*counts, found.theta)
    )
    information = design().T @ information
    whole = information.sum(axis=0)
    changes = np.zeros((N_QUERIES, 5))
    for query in range(N_QUERIES):
        changes[query] = np.linalg.solve(whole - information[query], scores[query])
    of_effects = (N_QUERIES - 1) / N_QUERIES * changes.T @ changes

    expected = np.sqrt(np.diag(design() @ of_effects @ design().T))

    assert found.intervals.std_error == pytest.approx(expected, rel=1e-3)


def test_a_cell_that_nothing_links_has_the_number_of_its_effects() -> None:
    free = log_of(THETA, without=np.array([7]))
    found = product(free)

    assert np.isnan(free.fit.log_theta[7])
    assert found.log_theta[7] == pytest.approx(found.log_theta[4] + found.log_theta[3], abs=1e-9)
    assert found.intervals.reason[7] == SHAPE_ALONE
    assert found.intervals.low[7] < found.theta[7] < found.intervals.high[7]
    assert found.intervals.std_error[7] > max(found.intervals.std_error[[3, 4]])


def test_a_value_without_a_click_has_no_number() -> None:
    found = product(log_of(THETA * (AXES[:, 0] != 1)))

    assert np.isnan(found.log_theta).tolist() == (AXES[:, 0] == 1).tolist()


def test_a_form_with_as_many_numbers_as_cells_is_none() -> None:
    assert fit_product(log_of(THETA), np.stack([AXES[:, 0], np.arange(len(THETA))], axis=1), ONE) is None


def test_names_of_values_do_not_matter() -> None:
    free = log_of(THETA)
    renamed = np.stack([np.array([5, 0, 9])[AXES[:, 0]], np.array([2, 7, 1, 0])[AXES[:, 1]]], axis=1)
    first, second = product(free), product(free, renamed)

    assert second.log_theta == pytest.approx(first.log_theta, abs=1e-9)
    assert second.intervals.std_error == pytest.approx(first.intervals.std_error, rel=1e-6)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_a_cell_that_leaves_the_product_is_seen(factor: float) -> None:
    theta = THETA.copy()
    theta[6] *= factor

    assert product(log_of(theta, mean=40.0)).test.rejected == (factor != 1.0)


def test_each_context_has_effects_of_its_own() -> None:
    one, other = log_of(THETA), log_of(THETA**2, seed=4)
    counts = (dense_counts(of.strata.signatures.take(of.strata.members.unit)) for of in (one, other))
    impressions, clicks = map(side_by_side, *counts)
    free = fitted_pairs(dense_table(impressions, clicks), np.arange(len(impressions)) % 9, 2)
    both = present(fit_product(free, np.tile(AXES, (2, 1)), np.repeat([0, 1], 12))).log_theta

    assert both[:12] == pytest.approx(product(one).log_theta, abs=1e-8)
    assert both[12:] == pytest.approx(product(other).log_theta, abs=1e-8)
