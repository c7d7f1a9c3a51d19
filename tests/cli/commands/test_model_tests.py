"""What a fit says about whether its model holds: in words, in the manifest, by the exit code."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

OPTIONS = SimulationOptions(n_queries=40, n_sessions=3_000, docs_per_query=10, n_positions=6, attractiveness_scale=0.5)


def one_click_a_page(log: pl.DataFrame) -> pl.DataFrame:
    first = pl.col("click").cum_sum().over("session", order_by="position") == 1
    return log.with_columns((pl.col("click") * first).cast(pl.Int8).alias("click"))


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    return simulate(OPTIONS).log


def section_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())["estimate"]["model_tests"]


@pytest.mark.parametrize(
    ("world", "options"),
    [
        ({"theta": (1.0, 0.9, 0.85, 0.8, 0.75, 0.1)}, ("--shape", "power")),
        ({"model": "ubm", "readiness": (0.3, 1.7), "n_sessions": 12_000, "n_positions": 10}, ("--model", "ubm")),
    ],
    ids=["no power", "ubm whose users differ"],
)
@pytest.mark.slow_after(1)
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


@pytest.mark.parametrize("n_queries", [40, 1], ids=["many queries", "one query"])
def test_of_a_large_log_a_sample_of_pages_is_looked_at(
    run_in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_queries: int
) -> None:
    monkeypatch.setattr("posbias.io.fits.new_fit.MOST_ROWS", 4_000)
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
