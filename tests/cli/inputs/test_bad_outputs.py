"""Outputs, options and settings that cannot work are refused before anything is replaced."""

from pathlib import Path

import pytest
from workshop import MountTmpfs, Workshop, assert_refused, csv_text, good_rows, without

# --- the output -----------------------------------------------------------------------------------------------


@pytest.fixture
def read_only_place(tmp_path: Path, mount_tmpfs: MountTmpfs) -> Path:
    """Return a directory that even root cannot write in."""
    return mount_tmpfs(tmp_path / "read-only", "ro,size=1m")


@pytest.mark.parametrize("name", ["out", "new/parents/out"])
def test_a_read_only_place_is_named(workshop: Workshop, read_only_place: Path, name: str) -> None:
    done = workshop.run("run", workshop.log(), "-o", read_only_place / name)
    assert_refused(done, workshop, str(read_only_place), "Read-only file system")


def test_a_read_only_place_for_temporary_files_is_named(workshop: Workshop, read_only_place: Path) -> None:
    done = workshop.run("run", workshop.log(), "-o", workshop.output, "--temp-dir", read_only_place)
    assert_refused(done, workshop, str(read_only_place), "Read-only file system")


@pytest.mark.parametrize("named", ["log.csv", "*.csv", "."])
def test_force_never_deletes_the_logs(workshop: Workshop, named: str) -> None:
    log = workshop.log()
    done = workshop.run("run", workshop.folder / named, "-o", workshop.folder, "--force")
    assert_refused(done, workshop, str(workshop.folder), "--force")
    assert log.read_text(encoding="utf-8") == csv_text(good_rows())


def test_force_never_deletes_the_clicks_that_are_joined(workshop: Workshop) -> None:
    shown_log = workshop.log(rows=without("click"))
    held = workshop.folder / "held"
    held.mkdir()
    clicked = [{"session": row["session"], "doc": row["doc"]} for row in good_rows() if row["click"]]
    clicks = workshop.log("held/clicks.csv", clicked)
    done = workshop.run("run", shown_log, "--clicks", clicks, "-o", held, "--force")
    assert_refused(done, workshop, "--force")
    assert clicks.read_text(encoding="utf-8") == csv_text(clicked)


def test_force_never_deletes_the_propensities_that_are_read(workshop: Workshop) -> None:
    log, fit = workshop.log(), workshop.folder / "fit"
    assert workshop.run("fit", log, "-o", fit).returncode == 0
    done = workshop.run("weight", log, "--propensities", fit, "-o", fit, "--force")
    assert_refused(done, workshop, str(fit), "--force")
    assert (fit / "propensities.parquet").is_file()


# --- options --------------------------------------------------------------------------------------------------
