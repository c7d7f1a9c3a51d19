"""The house rules that no linter knows: what stands at the top level, and what a module may be called."""

import re
import sys
from pathlib import Path, PurePosixPath

import pytest

TOP_LEVEL = {
    ".ci",
    ".gitignore",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "cli",
    "core",
    "io",
    "pyproject.toml",
    "requirements.lock",
    "sample_logs",
    "tests",
}
FOLDERS = ("cli", "core", "io")


@pytest.fixture(scope="module")
def modules(repository_files: set[str]) -> list[PurePosixPath]:
    """Return the Python files of the three folders."""
    paths = map(PurePosixPath, sorted(repository_files))
    return [path for path in paths if path.parts[0] in FOLDERS and path.suffix == ".py"]


def test_the_top_level_is_the_house_and_nothing_else(repository_files: set[str]) -> None:
    assert {PurePosixPath(name).parts[0] for name in repository_files} == TOP_LEVEL


def test_no_module_takes_the_name_of_one_in_the_standard_library(modules: list[PurePosixPath]) -> None:
    inside = [(path, name) for path in modules for name in (*path.parts[1:-1], path.stem)]

    assert [str(path) for path, name in inside if name in sys.stdlib_module_names] == []


def test_every_folder_tells_type_checkers_that_it_is_typed(repository_files: set[str]) -> None:
    assert {f"{folder}/py.typed" for folder in (*FOLDERS, "cli/posbias")} <= repository_files


def test_every_import_is_absolute(repository: Path, modules: list[PurePosixPath]) -> None:
    relative = re.compile(r"^\s*from\s+\.", re.MULTILINE)

    assert [str(path) for path in modules if relative.search((repository / path).read_text())] == []


def test_every_folder_is_a_package_and_the_repository_is_none(repository_files: set[str]) -> None:
    assert "__init__.py" not in repository_files
    assert {f"{folder}/__init__.py" for folder in (*FOLDERS, "cli/posbias")} <= repository_files
