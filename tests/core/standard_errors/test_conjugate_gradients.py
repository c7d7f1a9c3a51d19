"""Several clusters left out together are what each is by itself."""

import numpy as np
import pytest

from posbias.core.arrays.unit_diagonal import inverse
from posbias.core.standard_errors.conjugate_gradients import ClusterEntries, adjust_together

N_CLUSTERS, N_CELLS = 6, 40


def entries(rng: np.random.Generator) -> ClusterEntries:
    """Clusters of five units, each shown in some cells; shares of a unit add up to less than 1 (the reference)."""
    place, share, start = list[int](), list[float](), [0]
    for cluster in range(N_CLUSTERS):
        for _ in range(5):
            cells = rng.choice(N_CELLS, rng.integers(1, 9), replace=False)
            place += (cluster * N_CELLS + cells).tolist()
            share += (rng.dirichlet(np.ones(len(cells) + 1))[1:]).tolist()
            start.append(len(place))
    weight = rng.integers(1, 9, 5 * N_CLUSTERS).astype(np.float64)
    return ClusterEntries(np.array(place), np.array(share), weight, np.array(start), (N_CLUSTERS, N_CELLS))


@pytest.mark.parametrize("others", [1e-3, 1.0, 100.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_adjusted_scores_solve_the_equations_of_each_cluster(seed: int, others: float) -> None:
    rng = np.random.default_rng(seed)
    clusters = entries(rng)
    each = np.stack([clusters.information_times(np.tile(unit, (N_CLUSTERS, 1))) for unit in np.eye(N_CELLS)], axis=2)
    np.testing.assert_allclose(each, each.transpose(0, 2, 1), atol=1e-12)
    whole = each.sum(axis=0) + others * np.eye(N_CELLS)
    scores = np.einsum("bkl,bl->bk", each, rng.normal(size=(N_CLUSTERS, N_CELLS)))  # a cluster's lie where it is shown
    adjusted, found = adjust_together(scores, inverse(whole), clusters)
    assert found.all()
    for of_cluster, own, score in zip(adjusted, each, scores, strict=True):
        change = inverse(whole - own) @ score
        wanted = whole @ change
        np.testing.assert_allclose(of_cluster, wanted, rtol=0, atol=1e-9 * np.abs(wanted).max())


def test_a_cluster_that_has_all_information_on_a_cell_is_not_found() -> None:
    alone = ClusterEntries(np.array([0]), np.array([0.5]), np.array([4.0]), np.array([0, 1]), (1, 2))
    # H is that cluster's information, in the first cell.
    _, found = adjust_together(np.array([[1.0, 0.0]]), np.eye(2), alone)
    assert not found.any()
