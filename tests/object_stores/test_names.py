"""Names of objects become no paths but those below the directory of copies, and are shown as text."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Protocol

import pytest

RunPosbias = Callable[..., CompletedProcess[str]]


class Bucket(Protocol):
    """What the tests ask of a bucket."""

    name: str
    url: Callable[[str], str]
    put: Callable[[str, bytes | Path], str]
    put_tree: Callable[[Path, str], str]


@pytest.fixture
def statistics(bucket: Bucket, log_file: Path, run_in_process: RunPosbias, tmp_path: Path) -> str:
    """Return the URL of statistics in the bucket."""
    assert run_in_process("collect", log_file, "-o", "statistics").returncode == 0
    return bucket.put_tree(tmp_path / "statistics", "a/statistics")


@pytest.mark.parametrize(
    "name",
    ["../../evil", "..", "/etc/evil", "a\x00b", "a\x1b[31mb"],
    ids=["up", "dots", "absolute", "zero byte", "escape"],
)
@pytest.mark.usefixtures("statistics")
def test_names_that_could_lead_elsewhere_are_one_clear_error(
    bucket: Bucket, run_in_process: RunPosbias, tmp_path: Path, name: str
) -> None:
    bucket.put(f"a/statistics/{name}", b"x")
    before = sorted(tmp_path.parent.rglob("*"))
    done = run_in_process("collect", "--info", bucket.url("a/statistics"), "--temp-dir", tmp_path)

    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(tmp_path.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "names", [("x" * 300,), ("b", "b/c"), ("b/c", "b")], ids=["long", "file and folder", "folder and file"]
)
@pytest.mark.usefixtures("statistics")
def test_names_that_no_disk_holds_do_not_matter_where_the_manifest_does_not_name_them(
    bucket: Bucket, run_in_process: RunPosbias, tmp_path: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        bucket.put(f"a/statistics/{name}", b"x")
    done = run_in_process("collect", "--info", bucket.url("a/statistics"), "--temp-dir", tmp_path)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["%2e%2e/%2e%2e/evil", "..\\..\\evil", "b/c", "~", "-rf", "*"])
@pytest.mark.usefixtures("statistics")
def test_names_that_only_look_like_ways_out_are_files(
    bucket: Bucket, run_in_process: RunPosbias, tmp_path: Path, name: str
) -> None:
    bucket.put(f"a/statistics/{name}", b"x")
    before = sorted(tmp_path.parent.rglob("*"))
    done = run_in_process("collect", "--info", bucket.url("a/statistics"), "--temp-dir", tmp_path)

    assert done.returncode == 0, done.stderr
    assert sorted(tmp_path.parent.rglob("*")) == before


@pytest.mark.parametrize("prefix", ["..", ".", "a/..", "a\x1b[31m\u202e"])
def test_a_prefix_that_is_no_name_is_one_clear_error(
    bucket: Bucket, log_file: Path, run_in_process: RunPosbias, prefix: str
) -> None:
    url = bucket.url(prefix)
    for command in (
        ("weight", log_file, "--propensities", url, "-o", "out"),
        ("collect", "--info", url),
        ("fit", url, "-o", "out"),
        ("fit", log_file, "-o", url),
    ):
        done = run_in_process(*command)
        assert done.returncode == 2, command
        assert "Traceback" not in done.stderr
        assert not {"\x1b", "\u202e"} & set(done.stderr)
