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


def test_a_place_for_temporary_files_that_does_not_exist_is_named(workshop: Workshop) -> None:
    done = workshop.run("run", workshop.log(), "-o", workshop.output, "--temp-dir", workshop.folder / "nowhere")
    assert_refused(done, workshop, "--temp-dir", "nowhere")


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


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('model = "ubm', ("posbias.toml", "not valid TOML")),
        ('modell = "ubm"', ("posbias.toml", "modell", "'model'")),
        ("[run]\nmin-propensty = 0.1\n", ("posbias.toml", "[run]", "min-propensty", "'min-propensity'")),
        ("[fit]\nmin-propensity = 0.1\n", ("posbias.toml", "[fit]", "min-propensity")),
        ("min-propensity = 'low'\n", ("min-propensity",)),
        ("run = 3\n", ("posbias.toml", "run")),
        ("[model]\npbm = true\n", ("model",)),
    ],
)
def test_a_configuration_that_cannot_work_is_named(workshop: Workshop, content: str, says: tuple[str, ...]) -> None:
    workshop.write("posbias.toml", content)
    scratch = workshop.folder.parent / "scratch"
    arguments = ("run", workshop.log(), "-o", workshop.output, "--temp-dir", scratch)
    done = workshop.run(*arguments, cwd=workshop.folder, COLUMNS="250")
    assert_refused(done, workshop, *says)
