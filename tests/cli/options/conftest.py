"""A log for tests of options."""

from pathlib import Path

import pytest

from posbias.core.simulation.simulate import SimulationOptions, simulate


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a small log."""
    path = tmp_path / "log.parquet"
    simulate(SimulationOptions(n_sessions=300, n_queries=20, docs_per_query=5, n_positions=4)).log.write_parquet(path)
    return path
