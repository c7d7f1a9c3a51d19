"""`posbias show`: what was printed when a result was made, from its files alone; what is no result is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from command_results import invoke, manifest_of, reseal
from workshop import RunPosbias as Run

from posbias.io.results.manifest import checksum_of_content

MADE = {
    "sim": "simulate --sessions 500 --queries 20 --docs-per-query 6 --positions 5 --days 2 --device 1 --device 2",
    "browsed": "simulate --sessions 300 --queries 10 --model dbn",
    "fit": "fit sim/log.parquet --no-compare",
    "by-device": "run sim/log.parquet --context device --validation 0.2 --no-compare",
    "ubm": "fit browsed/log.parquet --model ubm --no-compare",
    "counts": "collect sim/log.parquet --timestamp timestamp",
    "weighted": "weight sim/log.parquet --propensities fit",
    "planned": "explore fit",
    "ranker": "train sim/log.parquet --propensities fit --features docs.csv --learner-options trees=5",
    "scored": "score docs.csv --model ranker",
    "evaluated": "evaluate sim/log.parquet --propensities fit --scores <b>|new=scores.csv",
    "judged": "evaluate browsed/log.parquet --models pbm,dbn --samples 20",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each command printed when it made its result, by result; they stand in the folder `.` of it."""
    folder = tmp_path_factory.mktemp("shown")
    printed = {"": str(folder)}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, words in MADE.items():
            printed[name] = invoke(*words.split(), "-o", name, code=(0, 1)).stderr
            if name == "sim":
                pairs = pl.read_parquet("sim/log.parquet").select("query", "doc").unique(maintain_order=True)
                pairs.with_columns(score="doc").write_csv("scores.csv")
                pairs.with_columns(price=pl.col("doc") * 1.5).write_csv("docs.csv")
    return printed


def folder_of(made: dict[str, str]) -> Path:
    return Path(made[""])


@pytest.mark.parametrize("name", MADE)
def test_json_is_the_manifest_as_it_stands(run_in_process: Run, made: dict[str, str], name: str) -> None:
    done = run_in_process("show", name, "--format", "json", cwd=folder_of(made))

    assert (done.returncode, done.stdout) == (0, (folder_of(made) / name / "manifest.json").read_text(encoding="utf-8"))


def test_csv_of_training_files_is_their_weight_by_position(run_in_process: Run, made: dict[str, str]) -> None:
    done = run_in_process("show", "weighted", "--format", "csv", cwd=folder_of(made))

    assert done.stdout.splitlines()[0] == "position,clicks,weight_share"
    assert len(done.stdout.splitlines()) == 6


def test_the_curve_has_a_line_for_every_cell(run_in_process: Run, made: dict[str, str]) -> None:
    done = run_in_process("show", "by-device", "--plot", cwd=folder_of(made))

    drawn = done.stdout.splitlines()[-10:]
    assert [line.split()[:2] for line in drawn] == [[str(at), device] for device in "01" for at in range(1, 6)]
    assert all("●" in line for line in drawn)


def test_the_manifest_holds_the_propensities(made: dict[str, str]) -> None:
    manifest = manifest_of(folder_of(made) / "by-device")
    table = pl.read_parquet(folder_of(made) / "by-device" / "propensities.parquet")

    assert manifest["estimate"]["propensities"] == table.to_dicts()


# --- what is no result ------------------------------------------------------------------------------------------


def changed(folder: Path, change: Callable[[dict[str, object]], object], *, sealed: bool) -> None:
    """Change a manifest; where it is sealed, its checksum is that of what it says then."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    if sealed:
        manifest["checksum"] = checksum_of_content(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")


def _uneven(manifest: dict[str, object]) -> None:
    manifest["printed"] = [{"columns": [{"heading": "a", "cells": ["1"]}, {"heading": "b", "cells": []}]}]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "not there": (shutil.rmtree, "is not there"),
    "no manifest": (lambda at: (at / "manifest.json").unlink(), "holds no manifest.json"),
    "of another program": (lambda at: (at / "manifest.json").write_text('{"name": "x"}'), "was not written by posbias"),
    "no object": (lambda at: (at / "manifest.json").write_text("[1]"), "holds no JSON object"),
    "cut off": (lambda at: (at / "manifest.json").write_text('{"command": "fit", '), "is damaged"),
    "a link": (lambda at: (at / "manifest.json").unlink() or (at / "manifest.json").symlink_to("x"), "cannot be read"),
    "edited": (
        lambda at: changed(at, lambda said: said.update(warnings=[]) or said.update(x=1), sealed=False),
        "changed",
    ),
    "of other types": (lambda at: changed(at, lambda said: said.update(printed=7), sealed=True), "is damaged"),
    "a table of uneven columns": (lambda at: changed(at, _uneven, sealed=True), "differ in length"),
    "made before": (lambda at: changed(at, lambda said: said.pop("printed"), sealed=True), "Make it again"),
    "a table gone": (lambda at: (at / "propensities.parquet").unlink(), "propensities.parquet cannot be read"),
    "a table cut off": (lambda at: (at / "attractiveness.parquet").write_bytes(b"PAR1"), "has 4 bytes, and had"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_what_is_no_whole_result_is_refused(
    run_in_process: Run, made: dict[str, str], tmp_path: Path, how: str
) -> None:
    shutil.copytree(folder_of(made) / "fit", tmp_path / "copy")
    damage, expected = DAMAGE[how]
    damage(tmp_path / "copy")
    done = run_in_process("show", "copy")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("posbias: error: ")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_table_that_was_replaced_by_one_of_its_size_is_no_reason_for_a_traceback(
    run_in_process: Run, made: dict[str, str], tmp_path: Path
) -> None:
    shutil.copytree(folder_of(made) / "fit", tmp_path / "copy")
    table = tmp_path / "copy" / "propensities.parquet"
    table.write_bytes(b"x" * table.stat().st_size)
    for said in ("propensities.parquet: is damaged: its bytes are not those", "cannot be read as Parquet"):
        for words in (("--format", "csv"), ("--plot",)):
            done = run_in_process("show", "copy", *words)

            assert (done.returncode, done.stdout) == (2, "")
            assert said in done.stderr
        reseal(tmp_path / "copy")
