"""What the packaging tests share: the files that make up the repository, as git sees them."""

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repository_files(repository: Path) -> set[str]:
    """Return the tracked files, and those that are new and not ignored; skip outside a git checkout."""
    git = shutil.which("git")
    if git is None or not (repository / ".git").exists():
        pytest.skip(f"{repository} is not a git checkout, or git is not installed")
    listing = subprocess.run(
        [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=repository,
        check=True,
        capture_output=True,
        text=True,
    )
    files = listing.stdout.rstrip("\0").split("\0")
    return {name for name in files if (repository / name).exists()}
