"""`open_result` opens what `posbias fit` and `run` wrote, and nothing else; importing it is cheap."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import polars as pl
import pytest
from command_results import Posbias, reseal
from polars.testing import assert_frame_equal

from posbias.core.errors import LogFormatError, UsageError
from posbias.io import open_result

HEAVY = ("numpy", "pandas", "polars", "pyarrow", "rich", "scipy", "typer")
OF_TABLES = ("numpy", "polars")
"""What tables take."""


@pytest.mark.parametrize("command", ["fit", "run"])
def test_a_result_is_opened_with_its_tables_and_its_manifest(posbias: Posbias, path: Path, command: str) -> None:
    written = posbias(command, path, "--context", "device")

    found = open_result(str(written.folder))

    assert_frame_equal(found.propensities, written.propensities)
    assert isinstance(found.attractiveness, pl.LazyFrame)
    assert_frame_equal(found.attractiveness.collect(), written.attractiveness)
    assert found.manifest == written.manifest
    assert found.warnings == tuple(written.manifest["warnings"])
    assert found.model == "pbm"


def test_a_click_model_without_cells_has_no_propensities(posbias: Posbias, path: Path) -> None:
    found = open_result(posbias("fit", path, "--model", "dbn").folder)

    assert found.model == "dbn"
    assert found.attractiveness.collect().height > 0
    with pytest.raises(UsageError, match="--model dbn has no propensities"):
        _ = found.propensities


def test_a_result_is_found_after_the_directory_has_changed(
    posbias: Posbias, path: Path, monkeypatch: pytest.MonkeyPatch, impressions: pl.DataFrame
) -> None:
    written = posbias("fit", path, "--model", "dbn")
    monkeypatch.chdir(written.folder.parent)
    found = open_result(written.folder.name)
    monkeypatch.chdir("/")

    assert found.attractiveness.collect().height > 0
    assert found.weights_for(impressions)["weight"].is_not_null().all()


def test_what_is_no_fit_is_refused(posbias: Posbias, path: Path, tmp_path: Path) -> None:
    weighted = posbias("weight", path, "--propensities", posbias("fit", path).folder).folder

    with pytest.raises(LogFormatError, match=r"nowhere: is not there"):
        open_result(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no propensities"):
        open_result(weighted)
    with pytest.raises(UsageError, match="holds no propensities"):
        open_result(posbias("collect", path).folder)
    for name in ("s3://bucket/fit", "S3://bucket/fit", Path("s3://bucket/fit")):
        with pytest.raises(UsageError, match="lies in an object store"):
            open_result(name)
    with pytest.raises(UsageError, match=r"hdfs://\*\*\*@namenode/x\?\*\*\*: posbias cannot read or write hdfs: URLs"):
        open_result("hdfs://user:secret@namenode/x?token=secret")
    with pytest.raises(UsageError, match="holds a zero byte"):
        open_result("\0")
    with pytest.raises(UsageError, match=r"open_result\(5\): give the name of a directory"):
        open_result(cast("Any", 5))


def test_of_a_fit_for_each_value_one_is_opened(posbias: Posbias, path: Path) -> None:
    folder = posbias("fit", path, "--for-each", "device").folder

    with pytest.raises(UsageError, match="holds several fits"):
        open_result(folder)
    assert open_result(next(folder.glob("*phone*"))).propensities.height == 4


def test_a_damaged_result_is_refused(posbias: Posbias, path: Path) -> None:
    folder = posbias("fit", path).folder
    (folder / "propensities.parquet").write_bytes(b"PAR1 and no more PAR1")

    with pytest.raises(LogFormatError, match=r"propensities.parquet has 21 bytes, and had"):
        open_result(folder)
    reseal(folder)
    with pytest.raises(LogFormatError, match=r"propensities.parquet: cannot be read as Parquet"):
        open_result(folder)


def loaded(statement: str) -> set[str]:
    """Which of the heavy libraries a statement imports."""
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split()).intersection(HEAVY)


def test_to_import_the_door_is_cheap() -> None:
    assert loaded("import posbias.io") == set()
    assert loaded("from posbias.io import FitResult, fit, open_result") == set(OF_TABLES)
