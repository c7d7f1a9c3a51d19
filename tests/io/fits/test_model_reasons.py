"""Failed tests of the click model in words."""

import numpy as np
import pytest
from small_logs import PBM, simulated, statistics_of

from posbias.core.estimators.estimate import EstimationOptions
from posbias.core.fit.fit import fit_statistics
from posbias.core.fit.model_tests import ModelTests
from posbias.core.simulation.simulate import SimulationOptions
from posbias.core.standard_errors.contrasts import ScoreTest
from posbias.io.fits.verdicts import fit_reasons, model_reasons


@pytest.mark.parametrize(
    ("delta", "theta", "says", "too"),
    [
        (
            -0.2,
            [1.0, 0.5, 0.25],
            "less for popular results than for others: at position 3 their propensity is 1.32 ",
            "large",
        ),
        (
            0.2,
            [1.0, 0.5, 0.25],
            "more for popular results than for others: at position 3 their propensity is 0.76 ",
            "small",
        ),
        # the first result is hidden: the second has twice its attention
        (
            0.2,
            [1.0, 2.0, 1.5],
            "more for popular results than for others: at position 2 their propensity is 1.22 ",
            "large",
        ),
        (
            -0.2,
            [1.0, 2.0, 1.5],
            "less for popular results than for others: at position 2 their propensity is 0.82 ",
            "small",
        ),
    ],
)
def test_popular_results_are_held_against_others_where_they_differ_most(
    delta: float, theta: list[float], says: str, too: str
) -> None:
    statistics = statistics_of(simulated(SimulationOptions(n_sessions=50, n_queries=5, n_positions=3)).log, PBM)
    test = ScoreTest(9.0, 50.0, delta, abs(delta) / 9, 51, 1e-9, 1e-9, rejected=True)
    found = next(model_reasons(statistics, np.array(theta), ModelTests(test)))

    assert says in found.sentence
    assert f"too {too} for popular results" in found.sentence


def test_click_rates_are_a_caution() -> None:
    statistics = statistics_of(simulated(SimulationOptions(n_sessions=200, n_queries=5, n_positions=3)).log, PBM)
    codes = {
        method: {found.code for found in fit_reasons(fit_statistics(statistics, method, EstimationOptions()))}
        for method in ("ctr", "conditional")
    }

    assert "click-rates" in codes["ctr"]
    assert "click-rates" not in codes["conditional"]
