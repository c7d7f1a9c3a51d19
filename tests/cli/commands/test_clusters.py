"""Standard errors by a column of the log on the command line, from logs and from statistics that keep it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight markets, each with a curve of its own, over four days."""
    simulation = simulate(SimulationOptions(n_sessions=4_000, n_queries=150, docs_per_query=8, n_positions=5, days=4))
    rng = np.random.default_rng(5)
    market = pl.Series(rng.integers(0, 8, 4_000))
    rows = simulation.log.join(simulation.attractiveness, on=["query", "doc"], how="left", maintain_order="left")
    rows = rows.with_columns(market=market[rows["session"]])
    shock = np.exp(rng.normal(0, 0.4, (8, 5)))
    position = rows["position"].to_numpy()
    seen = np.minimum(shock[rows["market"].to_numpy(), position - 1] / position, 1)
    clicks = rng.random(rows.height) < seen * rows["attractiveness"].to_numpy()
    path = tmp_path_factory.mktemp("clusters") / "log.parquet"
    rows.drop("attractiveness").with_columns(
        click=pl.Series(clicks.astype(np.int8)), day=pl.col("timestamp").dt.date()
    ).write_parquet(path)
    return path


def estimate_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["estimate"]


def errors_in(folder: Path) -> list[float]:
    return pl.read_parquet(folder / "propensities.parquet")["std_error"].to_list()[1:]


def test_errors_see_what_markets_share_and_propensities_stay(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    assert run_in_process("fit", log, "-o", "query").returncode == 0
    done = run_in_process("fit", log, "--cluster-column", "market", "-o", "two-way")
    assert done.returncode == 0, done.stderr
    assert "this log is worth about" in " ".join(done.stderr.split())
    assert (
        run_in_process("fit", log, "--cluster-column", "market", "--cluster", "column", "-o", "column").returncode == 0
    )

    by_query, both, column = (estimate_in(tmp_path / name) for name in ("query", "two-way", "column"))
    assert (by_query["errors_by"], both["errors_by"], column["errors_by"]) == ("query", "two-way", "column")
    assert (both["clusters"], column["clusters"]) == (8, 8)
    names = ("query", "two-way", "column")
    propensities = [pl.read_parquet(tmp_path / name / "propensities.parquet")["propensity"] for name in names]
    assert propensities[0].equals(propensities[1])
    assert propensities[0].equals(propensities[2])
    assert min(np.divide(errors_in(tmp_path / "two-way"), errors_in(tmp_path / "query"))) > 1.3


def test_a_log_of_few_queries_is_told_of_columns_that_cut_across_them(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    pl.read_parquet(log).filter(pl.col("query") < 6).write_parquet(tmp_path / "few.parquet")

    def said(*options: str) -> str:
        done = run_in_process("fit", "few.parquet", *options, "-o", "out", "--force")
        assert done.returncode in {0, 1}, done.stderr
        return " ".join(done.stderr.split())

    advice = "not for what users, markets or days share across queries: if the log has such a column, name it"
    assert f"{advice} with --cluster-column, and they allow for both." in said()
    for where_it_does_not_work in (
        ("--cluster-column", "market"),
        ("--method", "allpairs"),
        ("--shape", "power"),
        ("--bootstrap", "99"),
    ):
        without = said(*where_it_does_not_work)
        assert "this log is worth about" in without
        assert advice not in without


@pytest.mark.slow
def test_statistics_of_days_that_keep_the_column_say_what_the_log_says(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    keep = ("--cluster-column", "market")
    assert run_in_process("fit", log, *keep, "-o", "whole").returncode == 0
    for number, (_, rows) in enumerate(pl.read_parquet(log).group_by("day", maintain_order=True)):
        rows.write_parquet(tmp_path / f"day-{number}.parquet")
        done = run_in_process("collect", f"day-{number}.parquet", *keep, "-o", f"statistics-{number}")
        assert done.returncode == 0, done.stderr
    days = sorted(tmp_path.glob("statistics-*"))
    assert len(days) == 4
    assert run_in_process("collect", *days, "-o", "store").returncode == 0
    for inputs, name in ((days, "of-days"), (["store"], "of-store")):
        done = run_in_process("fit", *inputs, "-o", name)
        assert done.returncode == 0, done.stderr
        assert estimate_in(tmp_path / name)["errors_by"] == "two-way"
        np.testing.assert_allclose(errors_in(tmp_path / name), errors_in(tmp_path / "whole"), rtol=1e-12)
    assert run_in_process("fit", "store", "--cluster", "query", "-o", "by-query").returncode == 0
    assert run_in_process("fit", log, "-o", "plain").returncode == 0
    assert errors_in(tmp_path / "by-query") == errors_in(tmp_path / "plain")


def test_rows_without_a_value_are_one_cluster(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(log)
    unknown = rows.with_columns(market=pl.when(pl.col("market") > 0).then("market"))
    unknown.write_parquet(tmp_path / "unknown.parquet")
    for name in (log, "unknown.parquet"):
        assert run_in_process("fit", name, "--cluster-column", "market", "-o", Path(name).stem).returncode == 0

    np.testing.assert_allclose(errors_in(tmp_path / "unknown"), errors_in(tmp_path / "log"), rtol=1e-12)
