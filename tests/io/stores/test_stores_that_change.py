"""Statistics are what their manifest says, to the byte, from before they are read until all is read."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
from command_results import Run, contents, manifest_of

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.fits import saved_fit as previous_fit
from posbias.io.places.locations import checksum
from posbias.io.results.manifest import checksum_of_content
from posbias.io.stores import store as statistics_store

DAYS = ("2026-01-05", "2026-01-06", "2026-01-07")
READERS = {
    "fit": ("fit", "store", "-o", "out"),
    "merge": ("collect", "store", "3", "-o", "out"),
    "decay": ("collect", "store", "--decay", "0.9", "-o", "out"),
    "in place": ("collect", "store", "3", "-o", "store", "--force"),
    "info": ("collect", "--info", "store"),
    "weight": ("weight", "store", "--propensities", "f", "-o", "out"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for what all tests begin with."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def there(made: Path, run_in_process: Run, tmp_path: Path) -> Path:
    """Days 1 to 3, their merging `all`, and of the first two `store`; a fit `f`."""
    if not (made / "f").exists():
        log = simulate(SimulationOptions(n_sessions=300, n_queries=6, docs_per_query=6, n_positions=4, seed=7)).log
        for number, day in enumerate(DAYS, start=1):
            log.filter(pl.col("session") % 3 == number - 1).write_parquet(made / f"{number}.parquet")
            run_in_process("collect", f"{number}.parquet", "--date", day, "-o", str(number), cwd=made, code=0)
        run_in_process("collect", "1", "2", "-o", "store", cwd=made)
        run_in_process("collect", "1", "2", "3", "-o", "all", cwd=made)
        run_in_process("fit", "1", "-o", "f", "--no-compare", cwd=made)
    subprocess.run(["cp", "-a", f"{made}/.", tmp_path], check=True)  # noqa: S607 - it keeps hard links
    return tmp_path


def assert_refused(done: CompletedProcess[str], *says: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    for words in says:
        assert words in done.stderr


# --- damage ---------------------------------------------------------------------------------------------------


def flip(path: Path, place: int) -> None:
    """Change one bit, and nothing that `ls -l` shows."""
    content, status = bytearray(path.read_bytes()), path.stat()
    content[place] ^= 1
    path.unlink()  # a hard link of it stays whole
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("words", READERS.values(), ids=READERS)
def test_a_flipped_bit_is_an_error_that_names_the_file_before_a_number_is_used(
    there: Path, run_in_process: Run, words: tuple[str, ...]
) -> None:
    flip(there / "store" / "part-00001.parquet", 200)
    before = contents(there / "store")
    assert_refused(run_in_process(*words), "store/part-00001.parquet: is damaged")
    assert not (there / "out").exists()
    assert contents(there / "store") == before


@pytest.mark.slow
def test_a_flipped_bit_is_found_wherever_it_lies(there: Path, run_in_process: Run) -> None:
    part = there / "1" / "part-00000.parquet"
    whole = part.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 40)):
        flip(part, place)
        assert_refused(run_in_process("collect", "--info", "1"), "1/part-00000.parquet: is damaged")
        part.write_bytes(whole)
    run_in_process("collect", "--info", "1", code=0)


def right_checksums(folder: Path) -> None:
    """Write a manifest as one who wants us to read other parts would."""
    content = manifest_of(folder)
    for segment in content["segments"]:
        for part in segment["parts"]:
            written = (folder / part["name"]).read_bytes()
            part |= {"bytes": len(written), "xxh3_128": checksum([written])}
    content["checksum"] = checksum_of_content(content)
    (folder / "manifest.json").write_text(json.dumps(content))


CHANGES_OF_PARTS = {
    "type of counts": pl.col("clicks").cast(pl.Float64),
    "type of a key": pl.col("doc").cast(pl.String),
    "a column more": pl.lit(1).alias("more"),
}


@pytest.mark.parametrize("change", CHANGES_OF_PARTS.values(), ids=CHANGES_OF_PARTS)
def test_columns_are_held_against_the_manifest(there: Path, run_in_process: Run, change: pl.Expr) -> None:
    pl.read_parquet(there / "1" / "part-00000.parquet").with_columns(change).write_parquet(there / "part")
    (there / "part").replace(there / "1" / "part-00000.parquet")
    right_checksums(there / "1")
    for words in (("fit", "1", "-o", "out"), ("collect", "1", "2", "-o", "out"), ("collect", "--info", "1")):
        assert_refused(run_in_process(*words), "1/part-00000.parquet: holds other columns than the manifest says")
    assert not (there / "out").exists()


def test_totals_are_held_against_the_manifest_where_counts_are_used(there: Path, run_in_process: Run) -> None:
    run_in_process("collect", "1.parquet", "-o", "one", code=0)
    run_in_process("collect", "2.parquet", "-o", "two", code=0)
    for name in ("1", "one"):
        part = there / name / "part-00000.parquet"
        pl.read_parquet(part).with_columns(pl.col("clicks") + 1).write_parquet(there / "part")
        (there / "part").replace(part)
        right_checksums(there / name)
    for words in (
        ("fit", "1", "-o", "out"),
        ("collect", "--info", "1"),
        ("collect", "1", "2", "--decay", "0.5", "-o", "out"),
        ("collect", "two", "one", "-o", "out"),
    ):
        assert_refused(run_in_process(*words), "manifest")
    assert not (there / "out").exists()
    run_in_process("collect", "1", "2", "-o", "linked", code=0)  # no count of it was used
    assert_refused(run_in_process("fit", "linked", "-o", "out"), "linked", "the manifest says")


# --- files of another kind ------------------------------------------------------------------------------------


def to_link_elsewhere(part: Path) -> None:
    part.rename(part.parent.parent / "elsewhere.parquet")
    part.symlink_to("../elsewhere.parquet")


def to_link_inside(part: Path) -> None:
    part.rename(part.with_name("kept.parquet"))
    part.symlink_to("kept.parquet")


def to_directory(part: Path) -> None:
    part.unlink()
    part.mkdir()


def to_fifo(part: Path) -> None:
    part.unlink()
    os.mkfifo(part)


def to_device(part: Path) -> None:
    part.unlink()
    part.symlink_to("/dev/zero")


def to_loop(part: Path) -> None:
    part.unlink()
    part.symlink_to(part.name)


KINDS: dict[Callable[[Path], None], str] = {
    to_link_elsewhere: "a symbolic link",
    to_link_inside: "a symbolic link",
    to_directory: "a directory",
    to_fifo: "a FIFO",
    to_device: "a symbolic link",
    to_loop: "a symbolic link",
}


@pytest.mark.parametrize(("turn", "kind"), KINDS.items(), ids=[turn.__name__ for turn in KINDS])
def test_a_part_is_a_plain_file_of_the_store(
    there: Path, run_in_process: Run, turn: Callable[[Path], None], kind: str
) -> None:
    turn(there / "store" / "part-00000.parquet")
    for name, words in READERS.items():
        if name == "in place":  # there it is not even part of what --force may replace
            assert_refused(run_in_process(*words), "is not part of the result there")
        else:
            assert_refused(run_in_process(*words), "store/part-00000.parquet: this part", f"it is {kind}")
    assert not (there / "out").exists()


@pytest.mark.parametrize("turn", [to_directory, to_fifo, to_device], ids=["directory", "fifo", "device"])
def test_what_has_a_parts_name_and_is_not_in_the_manifest_is_an_error(
    there: Path, run_in_process: Run, turn: Callable[[Path], None]
) -> None:
    foreign = there / "store" / "part-00007.parquet"
    foreign.touch()
    turn(foreign)
    assert_refused(run_in_process(*READERS["fit"]), "part-00007.parquet: is not part of these statistics")


def test_a_store_that_has_lost_its_manifest_is_known_by_its_plain_parts(there: Path, run_in_process: Run) -> None:
    (there / "store" / "manifest.json").unlink()
    to_fifo(there / "store" / "part-00000.parquet")
    assert_refused(run_in_process(*READERS["fit"]), "the manifest is missing")


def test_what_a_user_keeps_beside_the_parts_is_left_alone(there: Path, run_in_process: Run) -> None:
    store = there / "store"
    (store / "notes.txt").write_text("mine")
    (store / "more").mkdir()
    shutil.copy(store / "part-00000.parquet", store / "more" / "part-00000.parquet")
    for name in ("fit", "merge", "info"):
        run_in_process(*READERS[name], *(["--force"] if name == "merge" else []), code=(0, 1))
    assert (store / "notes.txt").read_text() == "mine"
    assert (store / "more" / "part-00000.parquet").exists()


# --- stores that are replaced while they are read -------------------------------------------------------------


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that has something happen before or after the parts are checked."""
    real = statistics_store.check_contents  # what every check does

    def happens(work: Callable[[], None], *, before: bool) -> None:
        def check(*arguments: Any, counts: bool) -> None:  # noqa: ANN401
            if before:
                work()
            real(*arguments, counts=counts)
            if not before:
                work()

        monkeypatch.setattr(statistics_store, "check_contents", check)

    return happens


def replaced_by_more(folder: Path) -> None:
    """As a merge does: another directory takes the place, which shares files with the old one."""
    (folder / "store").rename(folder / "old")
    (folder / "all").rename(folder / "store")


def removed(folder: Path) -> None:
    (folder / "store").rename(folder / "old")


def one_part_replaced(folder: Path) -> None:
    shutil.copy(folder / "3" / "part-00000.parquet", folder / "new")
    (folder / "new").rename(folder / "store" / "part-00001.parquet")


def the_same_again(folder: Path) -> None:
    shutil.copytree(folder / "store", folder / "copy")
    shutil.rmtree(folder / "store")
    (folder / "copy").rename(folder / "store")


CHANGES = [replaced_by_more, removed, one_part_replaced, the_same_again]


@pytest.mark.parametrize(
    ("reader", "change"),
    [*(("fit", change) for change in CHANGES), *((reader, replaced_by_more) for reader in READERS if reader != "fit")],
)
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_a_store_that_is_replaced_while_it_is_read_is_an_error(
    there: Path,
    run_in_process: Run,
    meanwhile: Callable[..., None],
    reader: str,
    change: Callable[[Path], None],
    *,
    before: bool,
) -> None:
    meanwhile(lambda: change(there), before=before)
    done = run_in_process(*READERS[reader])
    assert_refused(done, "store: was replaced while it was read. Run the command again.")
    assert not (there / "out").exists()


def test_a_store_that_is_replaced_while_it_is_opened_is_an_error(
    there: Path, run_in_process: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = statistics_store.check_parts

    def check(folder: Path, segments: Sequence[statistics_store.Segment]) -> object:
        if folder.name == "store":
            replaced_by_more(there)
        return real(folder, segments)

    monkeypatch.setattr(statistics_store, "check_parts", check)
    assert_refused(run_in_process(*READERS["info"]), "store: was replaced while it was read")


def test_a_fit_that_is_replaced_while_it_is_read_is_an_error(
    there: Path, run_in_process: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = previous_fit.read_propensities

    def read(folder: Path, cells: Sequence[str]) -> pl.DataFrame:
        shutil.copytree(there / "f", there / "g")
        shutil.rmtree(there / "f")
        (there / "g").rename(there / "f")
        return real(folder, cells)

    monkeypatch.setattr(previous_fit, "read_propensities", read)
    assert_refused(run_in_process(*READERS["weight"]), "f: was replaced while it was read. Run the command again.")


# --- linking and copying --------------------------------------------------------------------------------------


def test_a_copy_is_checked_while_it_is_made(there: Path, run_in_process: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(source: Path, *_: object, **__: object) -> None:
        flip(source, 100)
        raise OSError

    monkeypatch.setattr("posbias.io.stores.store.os.link", link)
    assert_refused(run_in_process(*READERS["merge"]), "was replaced while it was")
    assert not (there / "out").exists()


def test_a_part_that_becomes_a_link_is_not_followed(
    there: Path, run_in_process: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there / "secret").write_text("of somebody else")
    real = os.link

    def link(source: Path, target: Path, **options: bool) -> None:
        source.unlink()
        source.symlink_to(there / "secret")
        real(source, target, **options)
        assert target.is_symlink() or "secret" not in target.read_text(errors="replace")

    monkeypatch.setattr("posbias.io.stores.store.os.link", link)
    assert_refused(run_in_process(*READERS["merge"]), "was replaced while it was read")
    assert not (there / "out").exists()
