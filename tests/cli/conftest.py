"""File systems of their own for tests: full, or read-only even for root."""

import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

MountTmpfs = Callable[[Path, str], Path]


@pytest.fixture
def mount_tmpfs() -> Generator[MountTmpfs]:
    """Yield a function that mounts an empty tmpfs with the given options, or skips where that is not permitted."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or mount is None or umount is None:
        pytest.skip("a file system of its own takes root, mount and umount")
    mounted: list[Path] = []

    def at(place: Path, options: str) -> Path:
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", place], check=False, capture_output=True)
        if done.returncode:
            pytest.skip("mounting is not permitted here")
        mounted.append(place)
        return place

    yield at
    for place in mounted:
        subprocess.run([umount, place], check=True)
