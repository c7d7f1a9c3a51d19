"""Names of objects become no paths but those below the directory of copies, and are shown as text."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

import pytest

from posbias.core.errors import ObjectStoreError, OutputError
from posbias.io.places.locations import location
from posbias.io.places.object_stores import on_disk

RunPosbias = Callable[..., CompletedProcess[str]]


class Bucket(Protocol):
    """What the tests ask of a bucket."""

    name: str
    url: Callable[[str], str]
    put: Callable[[str, bytes | Path], str]
    put_tree: Callable[[Path, str], str]


@pytest.fixture
def statistics(bucket: Bucket, log_file: Path, run_command: RunPosbias, tmp_path: Path) -> str:
    """Return the URL of statistics in the bucket."""
    assert run_command("collect", log_file, "-o", "statistics").returncode == 0
    return bucket.put_tree(tmp_path / "statistics", "a/statistics")


def around(folder: Path) -> set[Path]:
    """All below a directory, and what stands beside it: copies lie two levels down, which is as far up as names go."""
    return {*folder.rglob("*"), *folder.parent.iterdir()}


@pytest.mark.parametrize(
    "name",
    ["../../evil", "..", "/etc/evil", "a\x00b", "a\x1b[31mb"],
    ids=["up", "dots", "absolute", "zero byte", "escape"],
)
@pytest.mark.usefixtures("statistics")
def test_names_that_could_lead_elsewhere_are_one_clear_error(
    bucket: Bucket, run_command: RunPosbias, tmp_path: Path, name: str
) -> None:
    bucket.put(f"a/statistics/{name}", b"x")
    before = around(tmp_path)
    done = run_command("collect", "--info", bucket.url("a/statistics"), "--temp-dir", tmp_path)

    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert around(tmp_path) == before


NO_FILES = {
    "up": ("../../evil",),
    "dots": ("..",),
    "absolute": ("/etc/evil",),
    "long": ("x" * 300,),
    "file and folder": ("b", "b/c"),
    "zero byte": ("a\x00b",),
    "escape": ("a\x1b[31mb",),
}


@pytest.mark.parametrize("names", NO_FILES.values(), ids=NO_FILES)
def test_objects_whose_names_are_no_files_are_not_copied(
    bucket: Bucket, tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        bucket.put(f"a/b/{name}", b"x")
    before = around(tmp_path)
    with pytest.raises((ObjectStoreError, OutputError)), on_disk(location(bucket.url("a/b"))):
        pass

    assert {path for path in around(tmp_path) - before if "posbias-" not in str(path)} == set()


@pytest.mark.parametrize("names", NO_FILES.values(), ids=NO_FILES)
@pytest.mark.usefixtures("statistics")
def test_beside_statistics_they_are_left_alone_or_one_clear_error(
    bucket: Bucket, run_command: RunPosbias, tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        bucket.put(f"a/statistics/{name}", b"x")
    before = around(tmp_path)
    done = run_command("collect", "--info", bucket.url("a/statistics"), "--temp-dir", tmp_path)

    assert (done.returncode, len(done.stderr.splitlines())) in {(0, 0), (2, 1)}, done.stderr
    assert "\x1b" not in done.stderr
    assert around(tmp_path) == before


@pytest.mark.parametrize("name", ["%2e%2e/%2e%2e/evil", "..\\..\\evil", "b/c", "~", "-rf", "*"])
@pytest.mark.usefixtures("statistics")
def test_names_that_only_look_like_ways_out_are_files(
    bucket: Bucket, run_command: RunPosbias, tmp_path: Path, name: str
) -> None:
    bucket.put(f"a/statistics/{name}", b"x")
    before = around(tmp_path)
    done = run_command("collect", "--info", bucket.url("a/statistics"), "--temp-dir", tmp_path)

    assert done.returncode == 0, done.stderr
    assert around(tmp_path) == before


@pytest.mark.parametrize("prefix", ["..", ".", "a/..", "a\x1b[31m\u202e"])
def test_a_prefix_that_is_no_name_is_one_clear_error(
    bucket: Bucket, log_file: Path, run_command: RunPosbias, prefix: str
) -> None:
    url = bucket.url(prefix)
    for command in (
        ("weight", log_file, "--propensities", url, "-o", "out"),
        ("collect", "--info", url),
        ("fit", url, "-o", "out"),
        ("fit", log_file, "-o", url),
    ):
        done = run_command(*command)
        assert done.returncode == 2, command
        assert "Traceback" not in done.stderr
        assert not {"\x1b", "\u202e"} & set(done.stderr)
