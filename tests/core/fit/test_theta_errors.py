"""Errors of theta in attractiveness: against numeric derivatives, and against the truth of simulated logs."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from present import present
from small_logs import PBM, counted, dense_table, statistics_of

from posbias.core.arrays.count_table import Flags, Floats  # noqa: TC001
from posbias.core.attractiveness import posterior, total_std_dev
from posbias.core.choices import BetaPrior
from posbias.core.counts.sufficient_statistics import SIGNATURE, compress_part, merge_parts
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.fit.propensities import log_covariance, query_spread
from posbias.core.schema import IMPRESSIONS
from posbias.core.simulation.simulate import SimulationOptions, simulate

THETA = np.array([1.0, 0.5, 0.25])
WORLD = SimulationOptions(
    n_sessions=8_000, n_queries=40, docs_per_query=12, n_positions=6, attractiveness_scale=0.5, query_exponent=0.0
)


def fitted(options: SimulationOptions) -> tuple[Fit, pl.DataFrame]:
    """A fit of a simulated log, and its pairs with their true attractiveness."""
    simulation = simulate(options)
    part = compress_part(counted(simulation.log), PBM)
    statistics = merge_parts([part], PBM)
    fit = fit_statistics(statistics, "conditional", EstimationOptions(), compare=False)
    signature = statistics.signature_of_part[0][part.pairs[SIGNATURE].to_numpy()]
    said = part.pairs.select("query", "doc", IMPRESSIONS).hstack(fit.pair_attractiveness(signature))
    truth = simulation.attractiveness.rename({"attractiveness": "truth"})
    return fit, said.join(truth, on=["query", "doc"], how="inner")


def test_the_error_of_theta_moves_attractiveness_as_its_derivative_says() -> None:
    impressions = np.array([[4_000.0, 300.0, 0.0], [50_000.0, 10.0, 9_000.0], [0.0, 0.0, 20_000.0]])
    clicks: Floats = np.round(impressions * THETA * np.array([[0.3], [0.6], [0.1]])).astype(np.float64)
    table = dense_table(impressions, clicks)
    prior = BetaPrior(0.3, 4)
    mean, std_dev = posterior(table, THETA, prior)
    step = 1e-3
    slope = np.stack(
        [
            (posterior(table, THETA * np.exp(move), prior)[0] - posterior(table, THETA * np.exp(-move), prior)[0])
            / (2 * step)
            for move in step * np.eye(3)
            if (THETA * np.exp(move) <= 1).all()
        ],
        axis=1,
    )
    covariance = np.diag([0.0, 0.04, 0.09])
    covariance[1, 2] = covariance[2, 1] = 0.03
    found = total_std_dev(table, THETA, covariance, mean, std_dev) ** 2 - std_dev**2
    expected = np.einsum("je,ef,jf->j", slope, covariance[1:, 1:], slope)
    np.testing.assert_allclose(found, expected, rtol=0.02)


def test_the_spread_of_theta_between_queries_is_found() -> None:
    fits = [fitted(replace(WORLD, theta_shock=shock))[0] for shock in (0.0, 0.3)]
    quiet, loud = (query_spread(present(fit.estimate.fitted)) for fit in fits)
    assert quiet < 0.05
    assert loud == pytest.approx(0.3, abs=0.06)


@pytest.mark.slow
def test_std_dev_says_how_far_attractiveness_is_off_where_queries_differ() -> None:
    """Of the documents that were shown most, too: there the counts alone are sure of the wrong number."""
    covered: list[Flags] = []
    most_shown: list[Flags] = []
    for seed in range(3):
        fit, pairs = fitted(replace(WORLD, theta_shock=0.3, seed=seed))
        assert fit.query_spread > 0.15
        off = (
            pairs.select((pl.col("attractiveness") - pl.col("truth")).abs() / pl.col("std_dev")).to_series().to_numpy()
        )
        covered.append(off < 1.96)
        most_shown.append((off < 1.96)[pairs[IMPRESSIONS].to_numpy() > pairs[IMPRESSIONS].quantile(0.9)])
    assert np.concatenate(covered).mean() > 0.9
    assert np.concatenate(most_shown).mean() > 0.9


def test_errors_are_on_the_scale_of_examination() -> None:
    """The largest propensity is 1 there, without an error, whatever the reference is."""
    statistics = statistics_of(simulate(WORLD).log)
    by_reference = [
        fit_statistics(statistics, "conditional", EstimationOptions(reference=(place,)), compare=False).estimate
        for place in (1, 4)
    ]
    covariances = [present(log_covariance(estimate)) for estimate in by_reference]
    for covariance in covariances:
        np.testing.assert_allclose(covariance[0], 0.0, atol=1e-12)
    first, other = (np.sqrt(np.diag(covariance)) for covariance in covariances)
    np.testing.assert_allclose(first[1:], other[1:], rtol=0.35)
