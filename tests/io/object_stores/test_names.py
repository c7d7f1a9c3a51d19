"""Names of objects become no paths but those below the directory of copies, and are shown as text."""

from pathlib import Path

import pytest
from command_results import Run
from object_store import Bucket

from posbias.core.errors import ObjectStoreError, OutputError
from posbias.io.places.locations import location
from posbias.io.places.object_stores import on_disk


def around(folder: Path) -> set[Path]:
    """All below a directory, and what stands beside it: copies lie two levels down, which is as far up as names go."""
    return {*folder.rglob("*"), *folder.parent.iterdir()}


NO_FILES = {
    "up": ("../../evil",),
    "dots": ("..",),
    "absolute": ("/etc/evil",),
    "long": ("x" * 300,),
    "file and folder": ("b", "b/c"),
    "zero byte": ("a\x00b",),
    "escape": ("a\x1b[31mb",),
}
LOOK_LIKE_WAYS_OUT = ("%2e%2e/%2e%2e/evil", "..\\..\\evil", "b/c", "~", "-rf", "*")
BESIDE_STATISTICS = [
    *((NO_FILES[kind], {2}) for kind in ("up", "dots", "absolute", "zero byte", "escape")),
    *((NO_FILES[kind], {0, 2}) for kind in ("long", "file and folder")),
    *(((name,), {0}) for name in LOOK_LIKE_WAYS_OUT),
]


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


@pytest.mark.slow_after(5)
@pytest.mark.parametrize(("names", "codes"), BESIDE_STATISTICS, ids=str)
def test_names_beside_statistics_that_could_lead_elsewhere_are_one_clear_error(
    bucket: Bucket, statistics: str, run_command: Run, tmp_path: Path, names: tuple[str, ...], codes: set[int]
) -> None:
    for name in names:
        bucket.put(f"statistics/{name}", b"x")
    before = around(tmp_path)
    done = run_command("collect", "--info", statistics, "--temp-dir", tmp_path)

    assert done.returncode in codes, done.stderr
    assert len(done.stderr.splitlines()) == done.returncode // 2
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr
    assert around(tmp_path) == before


@pytest.mark.parametrize("prefix", ["..", ".", "a/..", "a\x1b[31m\u202e"])
def test_a_prefix_that_is_no_name_is_one_clear_error(
    bucket: Bucket, log_file: Path, run_command: Run, prefix: str
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
