"""What tests of whole processes share: a log to work on, and a place for results."""

from pathlib import Path

import pytest

from posbias.core.simulation.simulate import SimulationOptions, simulate


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of a few thousand impressions."""
    path = tmp_path_factory.mktemp("log") / "log.parquet"
    simulate(SimulationOptions(n_sessions=1_000, n_queries=50, docs_per_query=6, n_positions=4)).log.write_parquet(path)
    return path


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return the directory in which results stand."""
    (tmp_path / "results").mkdir()
    return tmp_path / "results"
