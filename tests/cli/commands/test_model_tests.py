"""What a fit says about whether its model holds: in words, in the manifest, by the exit code."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import polars as pl
import pytest

from posbias.core.simulation.simulate import SimulationOptions, simulate

Run = Callable[..., CompletedProcess[str]]

OPTIONS = SimulationOptions(n_queries=40, n_sessions=3_000, docs_per_query=10, n_positions=6, attractiveness_scale=0.5)
TINY_MEMORY = 100_000


def one_click_a_page(log: pl.DataFrame) -> pl.DataFrame:
    first = pl.col("click").cum_sum().over("session", order_by="position") == 1
    return log.with_columns((pl.col("click") * first).cast(pl.Int8).alias("click"))


def _tiny(_: str) -> int:
    return TINY_MEMORY


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    return simulate(OPTIONS).log


def section_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["estimate"]["model_tests"]


def test_a_log_that_keeps_one_click_per_page_is_doubted(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    one_click_a_page(log).write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "-o", "out")

    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "0.00 times as often as its other impressions let expect" in said
    assert "The position-based model does not hold" in said
    assert "No page has two clicks: the log keeps one click per page, or users stop at a click." in said
    found = section_of(tmp_path / "out")["clicks_above"]
    assert found["rejected"]
    assert found["observed_clicks"] == 0
    assert found["clusters"] > 20
    assert found["p_value"] <= found["p_value_adjusted"] < 0.05


@pytest.mark.slow
def test_trust_bias_is_told_with_what_it_does_to_weights(run_in_process: Run, tmp_path: Path) -> None:
    simulation = simulate(SimulationOptions(n_queries=60, n_sessions=12_000, docs_per_query=10, query_exponent=0.0))
    log = simulation.log.join(simulation.attractiveness, on=["query", "doc"], how="left", maintain_order="left")
    gamma, position = log["attractiveness"].to_numpy(), log["position"].to_numpy().astype(float)
    trusted = position**-0.7 * (0.98 * gamma + 0.4 / position * (1 - gamma))
    clicks = np.random.default_rng(1).random(len(gamma)) < trusted
    simulation.log.with_columns(pl.Series("click", clicks.astype(np.int8))).write_parquet(tmp_path / "log.parquet")
    done = run_in_process("run", "log.parquet", "-o", "out")

    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert "Popular results lose less with position than others" in said
    assert "weights of low positions are too large for popular documents and too small for others" in said


def test_a_log_that_follows_the_model_is_told_to_be_consistent_with_it(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "-o", "out")

    assert done.returncode == 0
    said, tests = " ".join(done.stderr.split()), section_of(tmp_path / "out")
    assert "Model check passed: popular and unpopular results lose clicks with position alike, and earlier" in said
    missed = [tests[name]["largest_missed_error"] for name in ("attractiveness", "clicks_above")]
    assert f"It could have missed that propensities are off by a factor of up to {np.exp(missed[0]):.3g} if" in said
    assert all(error > 0 for error in missed)
    assert section_of(tmp_path / "out")["impressions_of_pages"] == log.height


def test_clicks_by_the_number_of_clicks_above_stand_in_the_manifest_in_print_and_in_the_report(
    run_in_process: Run, tmp_path: Path
) -> None:
    simulate(replace(OPTIONS, model="ubm")).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "-o", "out")
    assert run_in_process("report", "out", "-o", "report.html").returncode == 0

    rows, page = section_of(tmp_path / "out")["by_clicks_above"], (tmp_path / "report.html").read_text()
    assert [row["clicks_above"] for row in rows] == [0, 1, 2, 3]
    said = " ".join(done.stderr.split())
    ratios = [f"{row['ratio']:.2f}" for row in rows]
    assert f"is clicked {', '.join(ratios[:3])} and {ratios[3]} times as often" in said
    for row in rows:
        assert row["interval"][0] < row["ratio"] < row["interval"][1]
        assert f"{row['ratio']:.3f}" in said
        assert f"{row['ratio']:.3f}" in page


@pytest.mark.parametrize(
    ("world", "options"),
    [
        ({"model": "ubm", "readiness": (0.3, 1.7), "n_sessions": 12_000, "n_positions": 10}, ("--model", "ubm")),
        ({"n_sessions": 6_000, "n_queries": 3_000, "attractiveness_scale": 1.0}, ("--method", "joint")),
        ({"theta": (1.0, 0.9, 0.85, 0.8, 0.75, 0.1)}, ("--shape", "power")),
        ({"theta": (1.0, 0.9, 0.85, 0.8, 0.75, 0.1)}, ("--position-bins", "1,2,4")),
    ],
    ids=["ubm whose users differ", "sparse by joint EM", "no power", "unequal bins"],
)
def test_a_warning_that_denies_what_was_assumed_ends_with_exit_code_1_whatever_the_model(
    run_in_process: Run, tmp_path: Path, world: dict[str, Any], options: tuple[str, ...]
) -> None:
    simulate(replace(OPTIONS, **world)).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", *options, "-o", "out")

    denials = ("does not hold", "do not use these propensities", "do not follow", "differ within a bin")
    assert any(denial in " ".join(done.stderr.split()) for denial in denials)
    assert done.returncode == 1


def test_from_statistics_what_pages_would_show_is_said_not_to_be_tested(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    one_click_a_page(log).write_parquet(tmp_path / "log.parquet")
    run_in_process("collect", "log.parquet", "-o", "counts")
    done = run_in_process("fit", "counts", "-o", "out")
    run_in_process("fit", "log.parquet", "-o", "whole")

    found, whole = section_of(tmp_path / "out"), section_of(tmp_path / "whole")
    assert "Whether earlier clicks on a page make a difference is not tested: it needs the pages of a log" in " ".join(
        done.stderr.split()
    )
    assert found["clicks_above"] is None
    assert found["last_click"] is None
    assert found["attractiveness"]["p_value"] == pytest.approx(whole["attractiveness"]["p_value"])


@pytest.mark.slow
def test_a_small_log_shows_all_of_its_pages_in_buckets_too(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = one_click_a_page(log).with_columns(pl.format("s{}", "session").alias("session"))
    named.write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", "-o", "at-once")
    monkeypatch.setattr("posbias.cli.work.engine.parse_memory", _tiny)
    done = run_in_process("fit", "log.parquet", "-o", "in-buckets")

    at_once, in_buckets = section_of(tmp_path / "at-once"), section_of(tmp_path / "in-buckets")
    assert done.returncode == 1
    assert in_buckets["impressions_of_pages"] == log.height
    for name in ("attractiveness", "clicks_above"):
        assert in_buckets[name]["clusters"] == at_once[name]["clusters"]
        assert in_buckets[name]["statistic"] == pytest.approx(at_once[name]["statistic"])


@pytest.mark.parametrize("n_queries", [40, 1], ids=["many queries", "one query"])
def test_of_a_large_log_a_sample_of_pages_is_looked_at(
    run_in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_queries: int
) -> None:
    monkeypatch.setattr("posbias.io.counting.pages.MOST_ROWS", 4_000)
    log = one_click_a_page(simulate(replace(OPTIONS, n_queries=n_queries)).log)
    log.write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", "-o", "out")

    found = section_of(tmp_path / "out")
    assert 1_000 <= found["impressions_of_pages"] <= 16_000
    assert (found["clicks_above"] is None) == (n_queries == 1)  # one query is one cluster


def test_sessions_and_queries_of_several_columns(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    split = one_click_a_page(log).with_columns(
        visit=pl.col("session") // 3, page=pl.format("p{}", pl.col("session") % 3)
    )
    split.drop("session").with_columns(site=pl.lit("a")).write_parquet(tmp_path / "log.parquet")
    done = run_in_process(
        *("fit", "log.parquet", "--session", "visit", "--session", "page"),
        *("--query", "site", "--query", "query", "-o", "out"),
    )

    assert done.returncode == 1
    assert section_of(tmp_path / "out")["clicks_above"]["rejected"]


def test_the_same_log_gives_the_same_bytes_whatever_the_order_of_its_rows(
    run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    log.sample(fraction=1, shuffle=True, seed=1).write_parquet(tmp_path / "shuffled.parquet")
    for name in ("log", "shuffled"):
        run_in_process("fit", f"{name}.parquet", "-o", name)

    assert section_of(tmp_path / "log") == section_of(tmp_path / "shuffled")
