"""A lower room never imports a higher one: the contracts in pyproject.toml name every room, and fail when broken."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"

BROKEN = {
    "core": ("core/theta/conditional.py", "posbias.core.fit.fit"),
    "io": ("io/places/ownership.py", "posbias.io.results.manifest"),
    "cli": ("cli/options/option.py", "posbias.cli.work.requests"),
    "across": ("core/choices.py", "posbias.io.progress"),
    "pure": ("core/log/values.py", "os"),
}
"""A file of a lower room, and what it may not import."""


@pytest.fixture(scope="module")
def settings(repository: Path) -> dict[str, Any]:
    """Return the contracts."""
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]


@pytest.mark.parametrize("part", ["core", "io", "cli"])
def test_every_room_has_its_floor(part: str, repository: Path, settings: dict[str, Any]) -> None:
    contract = next(entry for entry in settings["contracts"] if entry.get("containers") == [f"posbias.{part}"])
    named = {room for floor in contract["layers"] for room in floor.replace(" ", "").split("|")}
    held = {
        path.stem for path in (repository / part).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }

    assert contract["exhaustive"]
    assert named == held - {"__init__"}


@pytest.mark.slow
@pytest.mark.parametrize("where", BROKEN)
def test_an_import_upwards_breaks_its_contract(where: str, repository: Path, tmp_path: Path) -> None:
    package = tmp_path / "site" / "posbias"
    for part in ("core", "io", "cli"):
        shutil.copytree(repository / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "cli" / "posbias" / "__init__.py", package)
    shutil.copy(repository / "pyproject.toml", tmp_path)

    def lint() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            # -S: an editable install hooks imports, and would find the repository instead of the copy.
            [sys.executable, "-S", "-c", LINT],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path])},
            capture_output=True,
            text=True,
            check=False,
        )

    name, imported = BROKEN[where]
    file = package / name
    kept = lint()
    file.write_text(f"{file.read_text(encoding='utf-8')}\nimport {imported}\n", encoding="utf-8")
    broken = lint()

    assert kept.returncode == 0, kept.stdout
    assert broken.returncode == 1
    assert f"is not allowed to import {'posbias' if where != 'pure' else 'os'}" in broken.stdout
    assert imported in broken.stdout
