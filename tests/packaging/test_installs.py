"""A wheel and a source distribution install from a file, with pip, pipx and uv, and what is installed runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

IMPORTED = "import posbias, posbias.io.places.locations as rooms; print(posbias.__version__, rooms.__file__)"


def done(*words: object, **variables: str) -> str:
    """Run a program outside the repository; return its output."""
    command = [str(word) for word in words]
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    result = subprocess.run(command, cwd="/", env=settings, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def python_with(module: str) -> str:
    """The first Python that has an installer; skip where none has."""
    for python in (sys.executable, "python3"):
        if (
            subprocess.run([python, "-m", module, "--version"], cwd="/", capture_output=True, check=False).returncode
            == 0
        ):
            return python
    pytest.skip(f"{module} is not installed")


@pytest.fixture(scope="module")
def files(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the wheel and the source distribution; skip where their dependencies cannot be fetched."""
    folder = tmp_path_factory.mktemp("files")
    pip = [python_with("pip"), "-m", "pip", "download", "--no-deps", "-q", "--no-cache-dir", "-d", str(folder / "any")]
    reached = subprocess.run([*pip, "shellingham"], cwd="/", capture_output=True, text=True, check=False)
    if reached.returncode:
        pytest.skip(f"no package index can be reached: {reached.stderr.strip().splitlines()[-1]}")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(repository)]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    return {"wheel": next(folder.glob("*.whl")), "sdist": next(folder.glob("*.tar.gz"))}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_uv_runs_what_it_installs_from_a_file(files: dict[str, Path], kind: str) -> None:
    uv = python_with("uv")

    assert done(uv, "-m", "uv", "tool", "run", "--from", files[kind], "posbias", "--version") == "posbias 0.1.0\n"


def test_pipx_runs_what_it_installs_from_a_file(files: dict[str, Path], tmp_path: Path) -> None:
    pipx = python_with("pipx")
    words = ("-m", "pipx", "run", "--spec", files["wheel"], "posbias", "--version")

    assert done(pipx, *words, PIPX_HOME=str(tmp_path)) == "posbias 0.1.0\n"


def test_pip_installs_a_source_distribution_that_completes_and_is_imported(
    files: dict[str, Path], tmp_path: Path, sample_logs: Path
) -> None:
    done(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    done(python_with("pip"), "-m", "pip", "--python", python, "install", "-q", files["sdist"])

    assert done(python, "-c", IMPORTED).startswith(f"0.1.0 {tmp_path}")
    assert "_POSBIAS_COMPLETE=complete_bash" in done(tmp_path / "venv" / "bin" / "posbias", "--show-completion", "bash")
    log = sample_logs / "web_search.parquet"
    assert "propensity" in done(python, "-c", f"import posbias; print(posbias.fit({str(log)!r}).propensities.columns)")
