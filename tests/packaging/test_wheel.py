"""The wheel holds what the repository holds: nothing is left out, nothing stale slips in."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDERS = ("cli/", "core/", "io/")


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    directory = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(directory)]
    subprocess.run([*build, str(repository)], cwd=directory, check=True, capture_output=True)
    (path,) = directory.glob("posbias-*-py3-none-any.whl")
    return zipfile.ZipFile(path)


@pytest.mark.slow
def test_the_wheel_holds_exactly_the_files_of_the_three_folders(
    wheel: zipfile.ZipFile, repository_files: set[str]
) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}

    held = {f"posbias/{name}" for name in repository_files if name.startswith(FOLDERS)}
    assert packed == {name.replace("posbias/cli/posbias/", "posbias/") for name in held}


@pytest.mark.slow
def test_the_wheel_installs_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    metadata = {name.partition(".dist-info/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}

    assert "posbias = posbias.cli.__main__:main" in wheel.read(metadata["entry_points.txt"]).decode()
    assert "licenses/LICENSE" in metadata


def test_editors_find_every_part_of_the_package_by_links(repository: Path) -> None:
    links = repository / "tests" / "links" / "posbias"
    parts = [*(repository / name for name in FOLDERS), *(repository / "cli" / "posbias").glob("[!_]*")]

    assert {path.name: path.resolve() for path in links.glob("[!_]*")} == {path.name: path for path in parts}
    assert (links / "__init__.py").samefile(repository / "cli" / "posbias" / "__init__.py")
