"""Options of the estimation, from the command line to the files: what they do, and what they say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

WORLD = SimulationOptions(n_sessions=8_000, n_queries=20, docs_per_query=6, n_positions=4, query_exponent=0.0, seed=4)


@pytest.fixture(scope="module")
def dense_log() -> pl.DataFrame:
    """Two devices with different propensities, days, and a tenth of the sessions in random order."""
    world = replace(WORLD, randomized_share=0.1)
    desktop = simulate(replace(world, eta=0.5)).log.with_columns(device=pl.lit("desktop"))
    phone = simulate(replace(world, eta=1.5, seed=5)).log.with_columns(
        pl.col("session") + 10**6, device=pl.lit("phone")
    )
    return pl.concat([desktop, phone]).with_columns(
        day=pl.date(2026, 1, 5) + pl.duration(days=pl.col("session") % 5),
    )


@pytest.fixture
def log(dense_log: pl.DataFrame, tmp_path: Path) -> Path:
    """The dense log on disk."""
    dense_log.write_parquet(tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def propensities(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "propensities.parquet")


def estimate_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["estimate"]


@pytest.mark.slow
def test_statistics_keep_what_later_fits_may_need(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    words = ("--timestamp", "day", "--context", "device", "--randomized-where", "policy=random")
    assert run_in_process("collect", log, *words, "-o", "statistics").returncode == 0
    part = pl.read_parquet(tmp_path / "statistics" / "*.parquet")
    assert part.columns == ["query", "doc", "position", "device", "period", "randomized", "impressions", "clicks"]

    for choice in (("--period", "none"), ("--period", "day"), (), ("--method", "randomized"), ("--method", "joint")):
        kept = run_in_process("fit", "statistics", *choice, "-o", "kept", "--force")
        whole = run_in_process("fit", log, *words, *choice, "-o", "whole", "--force")
        assert (kept.returncode, whole.returncode) == (0, 0), kept.stderr
        assert propensities(tmp_path / "kept").equals(propensities(tmp_path / "whole"))


def test_a_log_that_says_too_little_of_feedback_is_warned_of(
    run_in_process: Run, dense_log: pl.DataFrame, tmp_path: Path
) -> None:
    few = dense_log.filter(pl.col("session") < 60).with_columns(day=pl.date(2020, 1, 1) + pl.duration(days="session"))
    few.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "--timestamp", "day", "-o", "out")

    assert "this log cannot rule that out" in " ".join(done.stderr.split())
    choice = estimate_in(tmp_path / "out")["period"]
    assert (choice["used"], choice["survives"], choice["claim"]) == ("none", None, True)


@pytest.mark.slow
def test_errors_by_session_are_the_same_in_one_bucket_and_in_many(
    run_in_process: Run, dense_log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense_log.with_columns(session=pl.col("session").cast(pl.String)).write_parquet(tmp_path / "log.parquet")
    words = ("fit", "log.parquet", "--cluster", "session", "--stratify", "device")
    assert run_in_process(*words, "-o", "one").returncode == 1  # the devices' propensities differ, and one is fitted
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 10_000)
    assert run_in_process(*words, "-o", "many").returncode == 1

    one, many = (propensities(tmp_path / name)["std_error"].to_list() for name in ("one", "many"))
    assert one == pytest.approx(many, rel=1e-9)


def test_few_pairs_are_called_pairs(run_in_process: Run, log: Path) -> None:
    few = ("--cluster", "pair", "--method", "allpairs", "--max-position", "2")
    rare = pl.read_parquet(log).filter(pl.col("query") == 0, pl.col("doc") < 3)
    rare.write_parquet(log)
    done = run_in_process("fit", log, *few, "-o", "out")

    assert "A few pairs dominate: this log is worth about" in " ".join(done.stderr.split())


def test_a_common_weight_changes_neither_propensities_nor_errors(
    run_in_process: Run, log: Path, dense_log: pl.DataFrame, tmp_path: Path
) -> None:
    assert run_in_process("fit", log, "--no-compare", "-o", "plain").returncode == 0
    plain = propensities(tmp_path / "plain")
    for weight in (1e-12, 1e9):
        dense_log.with_columns(w=pl.lit(weight)).write_parquet(log)
        words = ("--weight-column", "w", "--no-compare", "--force")
        assert run_in_process("fit", log, *words, "-o", "weighted").returncode == 0
        weighted = propensities(tmp_path / "weighted")
        for name in ("propensity", "std_error", "ci_high"):
            assert weighted[name].to_list() == pytest.approx(plain[name].to_list(), rel=1e-6)


def test_huge_weights_leave_attractiveness_a_number(
    run_in_process: Run, log: Path, dense_log: pl.DataFrame, tmp_path: Path
) -> None:
    clicked = dense_log.with_columns(
        click=pl.when(pl.col("position") == 1).then(1).otherwise("click").cast(pl.Int8),
        w=pl.when(pl.col("position") == 1).then(1e12).otherwise(1.0),
    )
    clicked.write_parquet(log)
    done = run_in_process("run", log, "--weight-column", "w", "--negatives", "posterior", "-o", "out")
    gamma = pl.read_parquet(tmp_path / "out" / "attractiveness.parquet")["attractiveness"]

    assert done.returncode == 0, done.stderr
    assert gamma.is_between(0, 1).all()
    assert pl.read_parquet(tmp_path / "out" / "training" / "rows" / "*.parquet")["weight"].is_finite().all()


def test_a_log_of_contexts_that_the_fit_does_not_know_is_weighted_with_doubts(
    run_in_process: Run, log: Path, dense_log: pl.DataFrame
) -> None:
    assert run_in_process("fit", log, "--context", "device", "-o", "fit").returncode == 0
    dense_log.with_columns(device=pl.lit("watch")).write_parquet(log)
    unknown = run_in_process("weight", log, "--propensities", "fit", "-o", "weights")
    dense_log.with_columns(device=pl.lit(1)).write_parquet(log)
    mistyped = run_in_process("weight", log, "--propensities", "fit", "-o", "others")

    assert unknown.returncode == 1
    assert "in cells without a propensity" in unknown.stderr
    assert mistyped.returncode == 2
    assert "holds Int32 in this log and String in the fit" in " ".join(mistyped.stderr.split())


@pytest.fixture(scope="module")
def deep_log() -> pl.DataFrame:
    """Three pages of 9,000 positions, on two devices."""
    number = 9_000
    position = pl.int_range(1, number + 1, eager=True)
    pages = (
        pl.DataFrame({"position": position}).with_columns(
            session=pl.lit(page),
            query=pl.lit("q"),
            doc=(pl.col("position") + 7 * page) % number,
            click=(pl.col("position") * (page + 3) % 5 == 0).cast(pl.Int8),
            device=pl.lit("phone" if page else "desktop"),
        )
        for page in range(3)
    )
    return pl.concat(pages)


@pytest.mark.parametrize(
    "command",
    [
        ["fit"],
        ["run"],
        ["fit", "--model", "ubm"],
        ["fit", "--context", "device"],
        ["fit", "--for-each", "device"],
        ["fit", "--method", "allpairs"],
        ["fit", "--shape", "smooth", "--memory", "64GiB"],
        ["fit", "--bootstrap", "99", "--memory", "64GiB"],
        ["fit", "--cluster-column", "device", "--memory", "64GiB"],
    ],
    ids=" ".join,
)
def test_more_cells_than_memory_holds_are_refused_before_anything_is_computed(
    run_in_process: Run, deep_log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        pytest.fail("computed")

    monkeypatch.setattr("posbias.io.fits.new_fit.fit_statistics", never)
    deep_log.write_parquet(tmp_path / "log.parquet")
    result = run_in_process(*command, str(tmp_path / "log.parquet"), "-o", str(tmp_path / "out"))
    assert result.returncode == 2
    assert "cells (position" in result.stderr
    assert "--max-position" in result.stderr
    assert "--position-bins" in result.stderr
    assert not (tmp_path / "out").exists()


def test_pages_too_long_to_go_down_rank_by_rank_are_refused(
    run_in_process: Run, deep_log: pl.DataFrame, tmp_path: Path
) -> None:
    deep_log.write_parquet(tmp_path / "log.parquet")
    result = run_in_process("fit", str(tmp_path / "log.parquet"), "--model", "dbn", "-o", str(tmp_path / "out"))
    assert result.returncode == 2
    assert "9,000 results" in result.stderr
    assert "--max-position" in result.stderr
    assert not (tmp_path / "out").exists()
