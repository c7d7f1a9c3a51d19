"""`--cell` from a file to its results, among columns that play no role."""

from pathlib import Path

import polars as pl
import pytest
from command_results import manifest_of
from small_logs import log_by_value
from workshop import RunPosbias

LOG = log_by_value("examination", 1, n_pages=600)


@pytest.mark.slow
def test_pages_below_a_named_advert_are_read_beside_other_columns(run_in_process: RunPosbias, tmp_path: Path) -> None:
    moved = LOG.with_columns(
        position=pl.col("position") + (pl.col("value") == "0"),
        advert=pl.col("value") == "0",
        seen=pl.col("session") % 5,
    )
    moved.drop("value").write_csv(tmp_path / "log.csv")
    run_in_process("fit", tmp_path / "log.csv", "--cell", "advert", "-o", tmp_path / "out", code=0)
    codes = {reason["code"] for reason in manifest_of(tmp_path / "out")["reasons"]}
    table = pl.read_parquet(tmp_path / "out" / "propensities.parquet")
    unnamed = run_in_process("fit", tmp_path / "log.csv", "-o", tmp_path / "plain", code=1)

    assert codes.isdisjoint({"pages-shifted", "pages-start-late"})
    assert table.group_by("advert").agg(pl.col("position").min()).sort("advert").rows() == [("false", 1), ("true", 2)]
    assert "use --cell advert instead" in " ".join(unnamed.stderr.split())
