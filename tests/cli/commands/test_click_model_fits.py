"""Click models without a propensity by cell, from a log to training files: what was put in comes out."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal
from workshop import RunPosbias

WORLD = ("--queries", "12", "--docs-per-query", "10", "--positions", "6", "--attractiveness", "2:2")
UNCLIPPED = ("--min-propensity", "1e-4")  # what clipping leaves out is a bias


def in_thirteen_parts(*_: object) -> int:
    """Return how many parts a log has: more than it has queries, so that some are empty."""
    return 13


@pytest.fixture
def done(run_in_process: RunPosbias) -> Callable[..., CompletedProcess[str]]:
    """Return a function that runs a command that must succeed."""

    def run(*words: str | Path) -> CompletedProcess[str]:
        return run_in_process(*words, code=0)

    return run


def trust_of(truth: pl.DataFrame) -> pl.DataFrame:
    """Alpha and beta by position, from the parameters of a simulation."""
    p, q = (
        truth.filter(pl.col("parameter") == name)["value"] for name in ("click_if_relevant", "click_if_not_relevant")
    )
    return pl.DataFrame({"position": np.arange(1, len(p) + 1), "alpha": p - q, "beta": q})


def simulated(done: RunPosbias, tmp_path: Path, model: str, sessions: int = 6000) -> list[str]:
    """Simulate a log, and return the options that fit its model."""
    done("simulate", *WORLD, "--sessions", str(sessions), "--model", model, "-o", "sim")
    if model != "tpbm":
        return ["--model", model]
    trust_of(pl.read_parquet(tmp_path / "sim/parameters_truth.parquet")).write_csv(tmp_path / "trust.csv")
    return ["--model", model, "--trust", "trust.csv"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dcm", "ccm", "dbn", "sdbn", "tpbm"])
def test_weighted_clicks_estimate_attractiveness_without_its_prior(
    done: RunPosbias, tmp_path: Path, model: str
) -> None:
    options = simulated(done, tmp_path, model)
    done(
        "run",
        "sim/log.parquet",
        *options,
        "--layout",
        "judgments",
        "--layout-options",
        "rate=ips",
        *UNCLIPPED,
        "-o",
        "run",
    )
    truth = pl.read_parquet(tmp_path / "sim/attractiveness_truth.parquet")
    judged = pl.read_parquet(tmp_path / "run/training/rows/part-*.parquet").join(truth, on=["query", "doc"])
    judged = judged.with_columns(click_rate=pl.col("clicks") / pl.col("impressions"))
    value = "relevance" if model == "tpbm" else "attractiveness"

    error, naive = (judged[rate] - judged[value] for rate in ("label", "click_rate"))
    assert judged.height == 120
    assert rms(error) < 0.6 * rms(naive)
    assert abs(np.average(error, weights=judged["impressions"])) < 0.03


def rms(error: pl.Series) -> float:
    return float(np.sqrt((error.to_numpy() ** 2).mean()))


@pytest.mark.parametrize("layout", ["pointwise", "session", "judgments", "pairs", "clicked-group"])
@pytest.mark.slow
def test_run_is_fit_then_weight_and_the_size_of_parts_changes_nothing(
    done: RunPosbias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    simulated(done, tmp_path, "dbn", sessions=1500)
    weighting = ("--layout", layout)
    done("run", "sim/log.parquet", "--model", "dbn", *weighting, "-o", "run")
    done("fit", "sim/log.parquet", "--model", "dbn", "-o", "fit")
    done("weight", "sim/log.parquet", "--propensities", "fit", *weighting, "-o", "weighted")
    monkeypatch.setattr("posbias.io.engines.engine.fewest_parts", in_thirteen_parts)
    done("run", "sim/log.parquet", "--model", "dbn", *weighting, "-o", "run-in-parts")
    done("weight", "sim/log.parquet", "--propensities", "fit", *weighting, "-o", "in-parts")

    names = ("run", "weighted", "run-in-parts", "in-parts")
    whole, after, run_in_parts, in_parts = (rows_of(tmp_path / name) for name in names)
    assert whole.equals(after)
    for other in (run_in_parts, in_parts):
        one, same = (rows.drop("group", strict=False) for rows in (whole, other))
        assert_frame_equal(one, same, rel_tol=0, abs_tol=1e-9)


def rows_of(result: Path) -> pl.DataFrame:
    rows = pl.read_parquet(result / "training/rows/part-*.parquet")
    names = [name for name in rows.columns if name != "group"]
    return rows.sort(pl.selectors.by_name(names) - pl.selectors.float(), pl.selectors.float().round(6))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "counted"), [("gctr", "pbm"), ("rctr", "pbm"), ("dctr", "ubm"), ("rdctr", "pbm"), ("cm", "ubm")]
)
def test_statistics_say_what_the_log_says(done: RunPosbias, tmp_path: Path, model: str, counted: str) -> None:
    simulated(done, tmp_path, "pbm" if model != "cm" else "cm")
    done("fit", "sim/log.parquet", "--model", model, "-o", "of-log")
    done("collect", "sim/log.parquet", "--model", counted, "-o", "counts")
    done("fit", "counts", "--model", model, "-o", "of-counts")

    for table in ("parameters", "attractiveness"):
        paths = [tmp_path / folder / f"{table}.parquet" for folder in ("of-log", "of-counts")]
        assert paths[0].exists() == paths[1].exists()
        if paths[0].exists():
            of_log, of_counts = map(pl.read_parquet, paths)
            ids = [name for name in ("parameter", "query", "doc", "position") if name in of_log.columns]
            assert_frame_equal(of_log.sort(ids), of_counts.sort(ids), check_dtypes=False)


@pytest.mark.slow
def test_a_document_that_the_fit_has_not_seen_has_the_mean_of_the_prior(done: RunPosbias, tmp_path: Path) -> None:
    simulated(done, tmp_path, "dbn")
    log = pl.read_parquet(tmp_path / "sim/log.parquet")
    log.filter(pl.col("query") != log["query"][0]).write_parquet(tmp_path / "without.parquet")
    done("fit", "without.parquet", "--model", "dbn", "-o", "fit")
    done("weight", "sim/log.parquet", "--propensities", "fit", "--layout", "session", "-o", "weighted")
    rows = pl.read_parquet(tmp_path / "weighted/training/rows/part-*.parquet").filter(query=log["query"][0])
    table = pl.read_parquet(tmp_path / "fit/parameters.parquet")
    a, s = (table.filter(parameter=name)["prior_mean"].item() for name in ("attractiveness", "satisfaction"))
    gamma = table.filter(parameter="continuation")["value"].item()

    second = rows.sort("session", "position").group_by("session", maintain_order=True).agg(pl.all().head(2))
    for clicks, values in zip(second["click"], second["propensity"], strict=True):
        expected = gamma * (1 - s) if clicks[0] else gamma * (1 - a) / (1 - a)
        assert values[1] == pytest.approx(expected)
