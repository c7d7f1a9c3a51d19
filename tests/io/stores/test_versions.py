"""A store of every version that there was opens, or says what to do; none is changed unless a day goes into it.

`of_versions/version_N` was written by the posbias of that version, from logs of two days; versions 1 and 2 knew no days
and hold the first. The current version's was made by `collect --into`, so a change of the format shows here; its days
lie together, as a month that is over: a later day was there, and was removed.
"""

import shutil
from pathlib import Path

import polars as pl
import pytest
from command_results import Run, contents

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.results.manifest import checksum_of_content, json_text, open_manifest
from posbias.io.stores.metadata import OLDEST, VERSION

STORES = Path(__file__).parent / "of_versions"
DAYS = ("2026-01-05", "2026-01-06")
READ = range(OLDEST, VERSION + 1)


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return the log that the stores were made of."""
    drawn = simulate(SimulationOptions(n_sessions=240, n_queries=8, docs_per_query=5, n_positions=4, seed=3)).log
    return drawn.select("session", "query", "doc", "position", "click")


def test_there_is_a_store_of_every_version() -> None:
    assert sorted(path.name for path in STORES.iterdir()) == [f"version_{n}" for n in range(1, VERSION + 1)]


@pytest.mark.parametrize("version", READ)
@pytest.mark.slow
def test_an_older_store_opens_and_says_what_its_logs_say(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame, version: int
) -> None:
    shutil.copytree(STORES / f"version_{version}", tmp_path / "store")
    day = pl.col("session") % len(DAYS)
    log.with_columns(date=day.replace_strict(list(range(len(DAYS))), DAYS)).write_parquet(tmp_path / "log.parquet")
    for words in (("store",), ("log.parquet", "--timestamp", "date")):
        run_in_process("fit", *words, "--no-compare", "-o", f"fit-{words[0]}", code=(0, 1))

    table = "propensities.parquet"
    assert (tmp_path / "fit-store" / table).read_bytes() == (tmp_path / "fit-log.parquet" / table).read_bytes()
    assert contents(tmp_path / "store") == contents(STORES / f"version_{version}")


@pytest.mark.parametrize("version", READ)
def test_a_day_goes_into_an_older_store_and_makes_it_one_of_the_current_version(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame, version: int
) -> None:
    shutil.copytree(STORES / f"version_{version}", tmp_path / "store")
    log.filter(pl.col("session") % 2 == 1).head(400).write_parquet(tmp_path / "log.parquet")
    run_in_process("collect", "log.parquet", "--date", DAYS[1], "--into", "store", "--replace-day", code=(0, 1))

    manifest = open_manifest(tmp_path / "store")
    assert manifest is not None
    assert manifest.content["version"] == VERSION
    assert manifest.content["rows"]["read"] == 480 + 400
    kept = "part-00000.parquet"  # of the first day, in stores whose days lie apart
    assert pl.read_parquet(tmp_path / "store" / kept).equals(pl.read_parquet(STORES / "version_5" / kept))


def test_a_store_of_a_version_that_is_not_read_says_what_to_do_and_stays(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    later = tmp_path / f"version_{VERSION + 1}"
    for version in range(1, OLDEST):
        shutil.copytree(STORES / f"version_{version}", tmp_path / f"version_{version}")
    shutil.copytree(STORES / f"version_{VERSION}", later)
    manifest = open_manifest(later)
    assert manifest is not None
    content = {**manifest.content, "version": VERSION + 1, "segments": "of a form that is not known yet"}
    del content["checksum"]
    (later / "manifest.json").write_text(json_text({**content, "checksum": checksum_of_content(content)}))
    before = {path.name: contents(path) for path in tmp_path.glob("version_*")}
    assert len(before) == OLDEST

    for name in before:
        what = "Use the posbias that wrote them" if name == later.name else "Collect them again"
        for words in (("fit", name, "-o", "out"), ("collect", "log.parquet", "--date", DAYS[0], "--into", name)):
            done = run_in_process(*words, code=2)
            said = " ".join(done.stderr.split())
            assert f"{name}: these statistics have version" in said, said
            assert what in said
    assert {path.name: contents(path) for path in tmp_path.glob("version_*")} == before
