"""The workshop of tests of what is refused."""

from pathlib import Path

import pytest
from workshop import RunPosbias, Workshop


@pytest.fixture
def workshop(tmp_path: Path, run_in_process: RunPosbias) -> Workshop:
    """Return a workshop with empty directories for the result and for temporary files."""
    for name in ("input", "results", "scratch"):
        (tmp_path / name).mkdir()
    return Workshop(tmp_path / "input", tmp_path / "results" / "out", run_in_process)
