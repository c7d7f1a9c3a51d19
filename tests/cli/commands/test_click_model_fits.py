"""Click models without a propensity by cell, from a log to training files: what was put in comes out."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import polars as pl
import pytest
from command_results import reseal
from polars.testing import assert_frame_equal

from posbias.core.models import click_model_names, model_names

RunPosbias = Callable[..., CompletedProcess[str]]
WORLD = (
    "--sessions",
    "6000",
    "--queries",
    "12",
    "--docs-per-query",
    "10",
    "--positions",
    "6",
    "--attractiveness",
    "2:2",
)
UNCLIPPED = ("--min-propensity", "1e-4")  # what clipping leaves out is a bias
BY_PAGE = [name for name in click_model_names() if name not in model_names()]


def in_twenty_parts(*_: object) -> int:
    """Return how many parts a log has: more than it has queries, so that some are empty."""
    return 20


@pytest.fixture
def done(run_in_process: RunPosbias) -> Callable[..., CompletedProcess[str]]:
    """Return a function that runs a command that must succeed."""

    def run(*words: str | Path) -> CompletedProcess[str]:
        found = run_in_process(*words)
        assert found.returncode == 0, found.stderr
        return found

    return run


def trust_of(truth: pl.DataFrame) -> pl.DataFrame:
    """Alpha and beta by position, from the parameters of a simulation."""
    p, q = (
        truth.filter(pl.col("parameter") == name)["value"] for name in ("click_if_relevant", "click_if_not_relevant")
    )
    return pl.DataFrame({"position": np.arange(1, len(p) + 1), "alpha": p - q, "beta": q})


def simulated(done: RunPosbias, tmp_path: Path, model: str) -> list[str]:
    """Simulate a log, and return the options that fit its model."""
    done("simulate", *WORLD, "--model", model, "-o", "sim")
    if model != "tpbm":
        return ["--model", model]
    trust_of(pl.read_parquet(tmp_path / "sim/parameters_truth.parquet")).write_csv(tmp_path / "trust.csv")
    return ["--model", model, "--trust", "trust.csv"]


@pytest.mark.parametrize("model", BY_PAGE)
@pytest.mark.slow_after(4)
def test_what_was_put_in_comes_out(done: RunPosbias, tmp_path: Path, model: str) -> None:
    done("fit", "sim/log.parquet", *simulated(done, tmp_path, model), "-o", "fit")
    found = pl.read_parquet(tmp_path / "fit/parameters.parquet")
    truth_table = tmp_path / "sim/parameters_truth.parquet"
    if not truth_table.exists():  # documents share nothing
        assert found["value"].is_null().all()
        return
    truth = pl.read_parquet(truth_table)

    keys = ["parameter", "position"]
    shared = found.filter(pl.col("value").is_not_null())
    joined = shared.join(truth, on=keys, nulls_equal=True, suffix="_truth")
    assert joined.height == shared.height
    assert ((joined["value"] - joined["value_truth"]).abs() < 0.08).all()
    if model != "tpbm":
        apart = (joined["value"] - joined["value_truth"]) / joined["std_error"]
        assert (apart.abs() < 5).all()


@pytest.mark.parametrize("model", [name for name in BY_PAGE if name not in {"gctr", "rctr"}])
def test_documents_have_the_parameters_that_they_were_given(done: RunPosbias, tmp_path: Path, model: str) -> None:
    done("fit", "sim/log.parquet", *simulated(done, tmp_path, model), "-o", "fit")
    found = pl.read_parquet(tmp_path / "fit/attractiveness.parquet")
    truth = pl.read_parquet(tmp_path / "sim/attractiveness_truth.parquet")
    keys = ["query", "doc", *(["position"] if model == "rdctr" else [])]
    joined = found.join(truth, on=keys, suffix="_truth")

    assert found.height == found.select(keys).n_unique() == joined.height
    assert found["impressions"].sum() == 36_000
    names = [name for name in found.columns if f"{name}_truth" in joined.columns]
    assert names
    for name in names:
        assert np.corrcoef(joined[name], joined[f"{name}_truth"])[0, 1] > (0.5 if name == "satisfaction" else 0.8)


@pytest.mark.parametrize("model", ["dcm", "ccm", "dbn", "sdbn", "tpbm"])
def test_weighted_clicks_estimate_attractiveness_without_its_prior(
    done: RunPosbias, tmp_path: Path, model: str
) -> None:
    options = simulated(done, tmp_path, model)
    done("run", "sim/log.parquet", *options, "--layout", "judgments", "--rate", "ips", *UNCLIPPED, "-o", "run")
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
    simulated(done, tmp_path, "dbn")
    weighting = ("--layout", layout)
    done("run", "sim/log.parquet", "--model", "dbn", *weighting, "-o", "run")
    done("fit", "sim/log.parquet", "--model", "dbn", "-o", "fit")
    done("weight", "sim/log.parquet", "--propensities", "fit", *weighting, "-o", "weighted")
    monkeypatch.setattr("posbias.io.engines.local.fewest_parts", in_twenty_parts)
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


def test_weights_of_pages_are_one_over_examination_given_the_clicks_above(done: RunPosbias, tmp_path: Path) -> None:
    simulated(done, tmp_path, "dcm")
    done("run", "sim/log.parquet", "--model", "dcm", "--layout", "session", "-o", "run")
    rows = pl.read_parquet(tmp_path / "run/training/rows/part-*.parquet")
    first = rows.sort("session", "position").group_by("session", maintain_order=True).first()
    clicked = rows.filter(click=1)

    assert (first["propensity"] == 1).all()
    assert rows["propensity"].is_between(0, 1).all()
    assert (clicked["weight"] - 1 / clicked["propensity"]).abs().max() < 1e-9  # type: ignore[operator]
    assert (rows.filter(click=0)["weight"] == 1).all()
    assert clicked["weight"].max() > 1.5  # type: ignore[operator]


def test_a_second_click_under_the_cascade_model_has_no_weight_and_that_is_said(
    done: RunPosbias, run_in_process: RunPosbias, tmp_path: Path
) -> None:
    simulated(done, tmp_path, "dcm")
    found = run_in_process("run", "sim/log.parquet", "--model", "cm", "-o", "run", "--json")
    manifest = json.loads(found.stdout)

    assert found.returncode == 1
    assert manifest["weights"]["clicks_without_propensity"] > 1000
    assert "left out of the training files" in " ".join(manifest["warnings"])


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("fit", "log.parquet", "--model", "tpbm"), "clicks alone do not tell trust bias from attractiveness"),
        (("fit", "log.parquet", "--model", "dbn", "--trust", "t.csv"), "only --model tpbm"),
        (
            ("fit", "log.parquet", "--model", "dbn", "--method", "joint"),
            "under --model dbn, nothing is estimated by cell",
        ),
        (("fit", "log.parquet", "--model", "pmb"), "--model pmb: unknown name; choose from pbm, ubm, "),
        (("fit", "log.parquet", "--model", "pmb"), "Did you mean pbm?"),
        (("collect", "log.parquet", "--model", "dbn"), "needs whole pages"),
        (("run", "log.parquet", "--model", "rctr"), "has no examination"),
        (
            ("run", "log.parquet", "--model", "dbn", "--replicates", "3"),
            "--replicates 3: the errors of the examination",
        ),
        (("run", "log.parquet", "--model", "dbn", "--negatives", "posterior"), "--negatives posterior: is not known"),
        (
            ("run", "log.parquet", "--model", "tpbm", "--trust", "t.csv", "--layout", "session"),
            "worth less than nothing",
        ),
        (
            ("run", "log.parquet", "--model", "tpbm", "--trust", "t.csv", "--self-normalize"),
            "not defined under trust bias",
        ),
        (
            ("fit", "log.parquet", "--model", "tpbm", "--trust", "short.csv"),
            "says nothing of position 2, which the log shows",
        ),
        (("fit", "counts", "--model", "dbn"), "needs whole pages, and counts holds counts by position"),
        (("fit", "counts", "--model", "cm"), "Collect them with --model ubm, or give the logs"),
        (("fit", "log.parquet", "--model", "dbn", "--no-query"), "without queries (--no-query)"),
    ],
)
def test_what_cannot_be_done_is_one_clear_error(
    done: RunPosbias, run_in_process: RunPosbias, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    rows = [(page, 1, page % 2 + k, k, int((page + k) % 3 == 0)) for page in range(60) for k in (1, 2)]
    log = pl.DataFrame(rows, schema=["session", "query", "doc", "position", "click"], orient="row")
    log.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "t.csv").write_text("position,alpha,beta\n1,.5,.1\n2,.3,.1\n")
    (tmp_path / "short.csv").write_text("position,alpha,beta\n1,.5,.1\n")
    done("collect", "log.parquet", "-o", "counts")
    found = run_in_process(*words, "-o", "out")

    assert found.returncode == 2
    assert said in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["train", "explore", "evaluate"])
def test_commands_that_need_propensities_by_position_say_that_a_click_model_has_none(
    done: RunPosbias, run_in_process: RunPosbias, tmp_path: Path, command: str
) -> None:
    simulated(done, tmp_path, "cm")
    done("fit", "sim/log.parquet", "--model", "cm", "-o", "fit")
    log = pl.read_parquet(tmp_path / "sim/log.parquet")
    log.select("query", "doc").unique().with_columns(score=pl.lit(1.0), x=pl.lit(2)).write_parquet(
        tmp_path / "f.parquet"
    )
    words = {
        "train": ("sim/log.parquet", "--propensities", "fit", "--features", "f.parquet"),
        "evaluate": ("sim/log.parquet", "--propensities", "fit", "--scores", "f.parquet"),
        "explore": ("fit",),
    }[command]
    found = run_in_process(command, *words, "-o", "out")

    assert found.returncode == 2
    assert "has no propensity by position" in " ".join(found.stderr.split())


def cut(fit: Path) -> None:
    (fit / "parameters.parquet").write_bytes(b"PAR1")


def without_documents(fit: Path) -> None:
    (fit / "attractiveness.parquet").unlink()


def of_something_else(fit: Path) -> None:
    pl.DataFrame({"parameter": ["x"]}).write_parquet(fit / "parameters.parquet")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut, "cannot be read as Parquet"),
        (without_documents, "holds no attractiveness.parquet"),
        (of_something_else, "is damaged"),
    ],
)
def test_a_damaged_fit_is_one_clear_error(
    done: RunPosbias, run_in_process: RunPosbias, tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    simulated(done, tmp_path, "dbn")
    done("fit", "sim/log.parquet", "--model", "dbn", "-o", "fit")
    damage(tmp_path / "fit")
    reseal(tmp_path / "fit")
    found = run_in_process("weight", "sim/log.parquet", "--propensities", "fit", "-o", "out")

    assert found.returncode == 2
    assert said in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize("model", ["ccm", pytest.param("ubm", marks=pytest.mark.slow)])
def test_a_fit_of_ubm_names_a_model_that_predicts_clicks_better(
    tmp_path: Path, run_in_process: RunPosbias, model: str
) -> None:
    words = ("--model", model, "--seed", "1", "--sessions", "3000", "--queries", "60", "-o", "sim")
    assert run_in_process("simulate", *words, cwd=tmp_path).returncode == 0
    done = run_in_process("fit", "sim/log.parquet", "--model", "ubm", "-o", "fit", cwd=tmp_path)
    said = " ".join((done.stdout + done.stderr).split())
    assert ("ccm predicts held-out clicks best" in said) == (model == "ccm")
    assert done.returncode == (1 if model == "ccm" else 0)
