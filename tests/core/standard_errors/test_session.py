"""Errors by session: the same as by query where a session is a query, and the sums of parts."""

import numpy as np
import pytest
from dense import dense_counts
from small_logs import dense_table

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, Members, compress
from posbias.core.arrays.linalg import inverse
from posbias.core.counts.sufficient_statistics import Strata
from posbias.core.standard_errors.cluster import ClusterSums, cluster_errors, errors_from_sums
from posbias.core.standard_errors.column import session_sums
from posbias.core.theta.conditional import ConditionalFit, find_linkage, fit_conditional

THETA = np.array([1.0, 0.6, 0.4])


def log_of_clicks(seed: int, n_units: int = 60, n_pages: int = 40) -> tuple[CountTable, Integers, Integers, Integers]:
    """Strata, and unit, cell and page of every click; a page shows each of its query's three documents once.

    Unit 3 q + d is document d of query q, which has `n_pages` pages.
    """
    rng = np.random.default_rng(seed)
    n_queries = n_units // 3
    order = np.argsort(rng.random((n_queries, n_pages, 3)), axis=2)  # document by position
    unit = 3 * np.arange(n_queries)[:, None, None] + order
    attractiveness = rng.beta(2, 4, n_units)
    clicked = rng.random(unit.shape) < THETA * attractiveness[unit]
    cell = np.broadcast_to(np.arange(3), unit.shape)
    page = np.broadcast_to(np.arange(n_queries * n_pages).reshape(n_queries, n_pages, 1), unit.shape)
    counts = np.zeros((2, n_units, 3))
    np.add.at(counts[0], (unit, cell), 1)
    np.add.at(counts[1], (unit, cell), clicked)
    return dense_table(counts[0], counts[1]), unit[clicked], cell[clicked], page[clicked]


def fitted(strata: CountTable) -> ConditionalFit:
    table, _ = compress(strata)
    return fit_conditional(table, find_linkage(table))


def test_one_session_per_query_has_the_errors_by_query() -> None:
    strata, unit, cell, _ = log_of_clicks(1)
    fit = fitted(strata)
    table, signature = compress(strata)
    expected = cluster_errors(fit, Strata(table, Members(signature, np.arange(60) // 3)))
    found = errors_from_sums(fit.log_theta, fit.free_cells, session_sums(fit, strata, unit // 3, unit, cell))
    assert found.n_clusters == expected.n_clusters
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-9)
    np.testing.assert_allclose(found.effective_clusters, expected.effective_clusters, rtol=1e-9)
    np.testing.assert_allclose(found.high, expected.high, rtol=1e-9)


def test_the_information_of_all_sessions_is_that_of_the_fit() -> None:
    strata, unit, cell, page = log_of_clicks(2)
    fit = fitted(strata)
    sums = session_sums(fit, strata, page, unit, cell)
    np.testing.assert_allclose(sums.influence, np.diag(inverse(fit.information)), rtol=1e-9)
    assert sums.n_clusters == len(np.unique(page))


def test_sums_of_parts_that_share_no_session_are_those_of_the_whole() -> None:
    strata, unit, cell, page = log_of_clicks(3)
    fit = fitted(strata)
    whole = session_sums(fit, strata, page, unit, cell)

    def part(units: slice, clicks: Flags) -> tuple[CountTable, Integers, Integers, Integers]:
        rows = np.arange(60)[units]
        return strata.take(rows), page[clicks], unit[clicks] - rows[0], cell[clicks]

    parts: list[ClusterSums] = []
    for units, clicks in ((slice(0, 24), unit < 24), (slice(24, 60), unit >= 24)):
        table, session, row, shown_in = part(units, clicks)
        parts.append(session_sums(fit, table, session, row, shown_in))
    added = parts[0] + parts[1]
    np.testing.assert_allclose(added.outer, whole.outer, rtol=1e-9)
    np.testing.assert_allclose(added.influence_squared, whole.influence_squared, rtol=1e-9)
    assert added.n_clusters == whole.n_clusters


def test_clicks_that_say_nothing_are_left_out() -> None:
    strata, unit, cell, page = log_of_clicks(4)
    dense = np.pad(dense_counts(strata), ((0, 0), (0, 1), (0, 1)))
    dense[:, 60, 3] = 9, 2  # a document that is shown at one position only, which nothing else links
    wider = dense_table(dense[0], dense[1])
    fit = fitted(wider)
    assert fit.linkage.identified.tolist() == [True, True, True, False]
    found = session_sums(fit, wider, np.append(page, [-1, -2]), np.append(unit, [60, 60]), np.append(cell, [3, 3]))
    expected = session_sums(fitted(strata), strata, page, unit, cell)
    np.testing.assert_allclose(found.outer, expected.outer, rtol=1e-8)
    assert found.n_clusters == expected.n_clusters


@pytest.mark.parametrize("weight", [0.5, 3.0])
def test_a_common_weight_changes_no_error(weight: float) -> None:
    strata, unit, cell, page = log_of_clicks(5)
    once = errors_from_sums(*summed(strata, unit, cell, page, 1.0))
    heavier = CountTable(
        3, strata.start, strata.cell, weight * strata.impressions, weight * strata.clicks, strata.multiplicity
    )
    found = errors_from_sums(*summed(heavier, unit, cell, page, weight))
    np.testing.assert_allclose(found.std_error, once.std_error, rtol=1e-9)
    np.testing.assert_allclose(found.effective_clusters, once.effective_clusters, rtol=1e-9)


def summed(
    strata: CountTable, unit: Integers, cell: Integers, page: Integers, weight: float
) -> tuple[Floats, Integers, ClusterSums]:
    fit = fitted(strata)
    return (fit.log_theta, fit.free_cells, session_sums(fit, strata, page, unit, cell, np.full(len(unit), weight)))


@pytest.mark.slow
def test_errors_by_session_are_the_spread_over_logs() -> None:
    estimates: list[Floats] = []
    errors: list[Floats] = []
    for seed in range(150):
        strata, unit, cell, page = log_of_clicks(100 + seed)
        fit = fitted(strata)
        found = errors_from_sums(fit.log_theta, fit.free_cells, session_sums(fit, strata, page, unit, cell))
        estimates.append(fit.log_theta[1:])
        errors.append(found.std_error[1:])
    spread = np.std(estimates, axis=0)
    np.testing.assert_allclose(np.mean(errors, axis=0), spread, rtol=0.15)  # the spread of 150 logs is known to 6 %
