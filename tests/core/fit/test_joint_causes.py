"""What makes joint EM biased: its prior on logs with many impressions per pair, sparsity on those with few."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from present import present
from small_logs import statistics_of

from posbias.core.choices import BetaPrior
from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit import diagnostics
from posbias.core.fit.fit import Fit, fit_statistics
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.core.theta.joint import JointOptions, fit_joint

# 70 impressions per pair, and a tenth of them clicked at the top.
MANY = SimulationOptions(
    n_sessions=5_600, n_queries=80, docs_per_query=10, n_positions=10, query_exponent=0, attractiveness_scale=0.3
)
FEW = SimulationOptions(n_sessions=12_000, n_queries=8_000, docs_per_query=10, n_positions=5, seed=1)


@lru_cache
def fitted(options: SimulationOptions, asked: EstimationOptions | None = None) -> Fit:
    return fit_statistics(statistics_of(simulate(options).log), "conditional", asked or EstimationOptions())


def test_where_pairs_have_many_impressions_the_prior_is_the_cause() -> None:
    fit = fitted(MANY)
    comparison, causes = present(fit.comparison), present(fit.causes)

    assert comparison.biased
    assert comparison.largest_difference > 0.1
    assert causes.largest_without_prior(np.isfinite(causes.without_prior)) < 0.02


def test_where_pairs_have_few_impressions_sparsity_is_a_cause() -> None:
    causes = present(fitted(FEW).causes)
    assert causes.largest_without_prior(np.isfinite(causes.without_prior)) > 0.05


def test_without_a_prior_it_is_what_joint_em_without_one_says() -> None:
    fit = fitted(MANY)
    asked = JointOptions(diagnostics.NO_PRIOR, diagnostics.NO_PRIOR, tolerance=1e-8)
    theta = fit_joint(fit.statistics.pair_signatures, asked).examination

    expected = np.log(theta / theta[0] / fit.estimate.propensity)
    np.testing.assert_allclose(present(fit.causes).without_prior, expected, atol=0.005)


@pytest.mark.slow
def test_a_sample_of_the_pairs_tells_about_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    few = replace(FEW, n_sessions=30_000)
    whole = present(fitted(few).causes)
    monkeypatch.setattr(diagnostics, "LARGEST_SAMPLE", 15_000)
    fitted.cache_clear()
    sample = present(fitted(few).causes)

    assert not np.array_equal(sample.without_prior, whole.without_prior)
    np.testing.assert_allclose(sample.without_prior, whole.without_prior, atol=0.06)


@pytest.mark.slow
def test_nothing_more_is_run_where_joint_em_has_no_prior_or_is_not_biased() -> None:
    none = BetaPrior(0.5, 0.0)
    without = fitted(FEW, EstimationOptions(attractiveness_prior=none, examination_prior=none))
    dense = fitted(replace(MANY, n_sessions=30_000, n_queries=10, attractiveness_scale=1.0))

    assert without.comparison is not None
    assert without.causes is None
    assert not present(dense.comparison).biased
    assert dense.causes is None


def test_em_that_starts_elsewhere_ends_at_the_same_optimum() -> None:
    table = fitted(MANY).statistics.pair_signatures
    start = np.linspace(0.9, 0.2, table.n_cells)
    expected, found = fit_joint(table), fit_joint(table, start=start)

    assert found.objective == pytest.approx(expected.objective, rel=1e-10)
    np.testing.assert_allclose(found.examination, expected.examination, rtol=1e-4)
