"""`--arm`: what fits of logs and statistics say of experiment arms, and where arms cannot be compared."""

from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import polars as pl
import pytest
from arm_logs import log_of_arms
from command_results import Output, Run, manifest_of

WORLD = {"queries": 60, "pages": 100}
ARM = ("--arm", "arm", "--no-compare")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with logs of rankers: one that knows the user, one that learns, and fixed ones."""
    folder = tmp_path_factory.mktemp("arms")
    log_of_arms("knows the user", 0, **WORLD).write_parquet(folder / "knows.parquet")
    log_of_arms("fixed", 0, **WORLD).write_parquet(folder / "fixed.parquet")
    log_of_arms("fixed", 0, **WORLD, spread=0.0).write_parquet(folder / "alike.parquet")
    log_of_arms("learns", 0, **WORLD, spread=0.1).write_parquet(folder / "weak.parquet")
    return folder


def reasons_in(folder: Path) -> dict[str, Any]:
    """The reasons of a result that are about arms, by code."""
    return {reason["code"]: reason for reason in manifest_of(folder)["reasons"] if reason["code"].startswith("arms-")}


def arms_in(folder: Path) -> dict[str, float]:
    """The test of arms in a result, with the level of each arm."""
    section = manifest_of(folder)["estimate"]["arms"]
    return {name: value for name, value in section.items() if name != "levels"} | section["levels"]


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.slow
def test_arms_show_what_a_log_without_them_hides(run_in_process: Run, logs: Path, tmp_path: Path) -> None:
    run_in_process("fit", logs / "knows.parquet", "--no-compare", "-o", "plain", code=0)
    done = run_in_process("fit", logs / "knows.parquet", *ARM, "-o", "fit", code=1)

    assert "Do not use: experiment arms contradict the propensities." in words(done.stderr)
    assert "These propensities are wrong, as the ranker knows the user or learns from these clicks" in words(
        done.stderr
    )
    assert "Nearer, but not right, is the curve bent as the arms say (`arms_propensity`, strength F " in words(
        done.stderr
    )
    reason, test = reasons_in(tmp_path / "fit")["arms-contradict"], manifest_of(tmp_path / "fit")["estimate"]["arms"]
    assert reason["severity"] == "stop"
    assert test["rejected"]
    assert list(test["levels"]) == ["A", "B"]
    assert reason["figures"]["strength"] == test["strength_of_bends"] > 10
    table, plain = (pl.read_parquet(tmp_path / name / "propensities.parquet") for name in ("fit", "plain"))
    assert table["propensity"].equals(plain["propensity"])
    assert "arms_propensity" not in plain.columns
    off = [np.abs(table[name] * table["position"] ** 0.8 - 1).mean() for name in ("arms_propensity", "propensity")]
    assert off[0] < off[1] / 2
    assert (table["arms_ci_low"] <= table["arms_propensity"]).all()
    shown = run_in_process("show", "fit", code=0)
    assert "by arms" in shown.stdout
    assert "arms_propensity" in words(shown.stdout)


@pytest.mark.slow
def test_training_files_are_not_made_from_the_bent_curve(run_in_process: Run, logs: Path, tmp_path: Path) -> None:
    run_in_process("run", logs / "knows.parquet", *ARM, "-o", "run", code=1)
    run_in_process("run", logs / "knows.parquet", "--no-compare", "-o", "plain", code=0)

    assert Output(tmp_path / "run").training.equals(Output(tmp_path / "plain").training)


@pytest.mark.slow
def test_what_arms_say_has_its_severity_and_names_what_it_rests_on(
    run_in_process: Run, logs: Path, tmp_path: Path
) -> None:
    said = dict[str, CompletedProcess[str]]()
    for name, code, exit_code in (
        ("fixed", "arms-agree", 0),
        ("alike", "arms-say-too-little", 0),
        ("weak", "arms-contradict", 1),
        ("knows", "arms-contradict", 1),
    ):
        times = ("--timestamp", "none") if name == "weak" else ()
        said[name] = run_in_process("fit", logs / f"{name}.parquet", *ARM, *times, "-o", name, code=exit_code)
        assert list(reasons_in(tmp_path / name)) == [code]
    agree, alike, weak, bent = (next(iter(reasons_in(tmp_path / name).values())) for name in said)

    assert (agree["severity"], 0.02 < agree["figures"]["error"] < 0.4) == ("good", True)
    assert "Experiment arms (arm), which are drawn at random, say the same as all movement" in words(
        said["fixed"].stderr
    )
    assert "if what arms change is the same for all users, and they share what they learn from" in agree["sentence"]
    assert pl.read_parquet(tmp_path / "fixed" / "propensities.parquet")["arms_propensity"].null_count() == 8
    assert alike["sentence"] == (
        "The experiment arms (arm) move documents too little to show whether the ranker knows the user or learns from "
        "these clicks."
    )
    assert "propensity" not in weak["figures"]
    assert not any(word in weak["sentence"] for word in ("faster", "slowly"))
    falls = "faster" if bent["figures"]["by_arms"] < bent["figures"]["propensity"] else "more slowly"
    assert f"which falls {falls}: " in bent["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize("silent", ["A", "C"])
def test_an_arm_without_clicks_has_no_level(silent: str, run_in_process: Run, logs: Path, tmp_path: Path) -> None:
    arm = pl.when(pl.col("session") % 5 == 0).then(pl.lit(silent)).otherwise(pl.col("arm").replace("A", "B2"))
    click = pl.when(pl.col("session") % 5 == 0).then(0).otherwise("click").cast(pl.Int8)
    log = pl.read_parquet(logs / "fixed.parquet").with_columns(arm=arm, click=click)
    log.write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", *ARM, "--timestamp", "none", "-o", "fit")

    levels = manifest_of(tmp_path / "fit")["estimate"]["arms"]["levels"]
    assert levels == {silent: None, "B": 1.0, "B2": pytest.approx(1.0, abs=0.1)}
    assert reasons_in(tmp_path / "fit")["arms-agree"]["details"].count("?") == 1


@pytest.mark.slow
def test_days_that_are_collected_with_arms_say_what_the_log_says(
    run_in_process: Run, logs: Path, tmp_path: Path
) -> None:
    log = pl.read_parquet(logs / "knows.parquet").with_columns(day=pl.col("timestamp").dt.date())
    days = [str(day) for day in log["day"].unique().sort()]
    for day in days:
        log.filter(pl.col("day").cast(pl.String) == day).write_parquet(tmp_path / f"{day}.parquet")
        run_in_process("collect", f"{day}.parquet", "--arm", "arm", "--date", day, "--into", "store", code=0)
    run_in_process("fit", logs / "knows.parquet", *ARM, "-o", "whole", code=1)
    for inputs in (["store"], ["store", "--arm", "arm"]):
        run_in_process("fit", *inputs, "--period", "none", "--no-compare", "-o", "fit", "--force", code=1)
        assert arms_in(tmp_path / "fit") == pytest.approx(arms_in(tmp_path / "whole"), rel=1e-9)
        tables = [pl.read_parquet(tmp_path / name / "propensities.parquet") for name in ("fit", "whole")]
        for column in ("propensity", "arms_propensity", "arms_std_error", "arms_ci_low"):
            np.testing.assert_allclose(tables[0][column], tables[1][column], rtol=1e-9)

    assert " arms arm " in words(run_in_process("collect", "--info", "store", code=0).stdout)
    other = run_in_process("fit", "store", "--arm", "segment", "-o", "out", code=2)
    assert "--arm segment: the statistics were collected with --arm arm." in words(other.stderr)
    run_in_process("collect", logs / "fixed.parquet", "-o", "without", code=0)
    without = run_in_process("fit", "without", "--arm", "arm", "-o", "out", code=2)
    assert "--arm arm: the statistics were collected without --arm." in words(without.stderr)
    mixed = run_in_process("collect", "without", "store", "-o", "out", code=2)
    assert "arms None and ['arm']. Collect them with the same options." in words(mixed.stderr)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "options", "why"),
    [
        (pl.lit("A"), (), "the log has one (A)"),
        (pl.lit(None, pl.String), (), "no row has one"),
        (pl.col("arm"), ("--timestamp", "timestamp", "--decay", "0.9"), "that takes counts without weights or --decay"),
    ],
)
def test_arms_that_cannot_be_compared_are_named(
    change: pl.Expr, options: tuple[str, ...], why: str, run_in_process: Run, logs: Path, tmp_path: Path
) -> None:
    pl.read_parquet(logs / "knows.parquet").with_columns(arm=change).write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", *ARM, *options, "-o", "fit")

    assert reasons_in(tmp_path / "fit") == {
        "arms-not-tested": {
            "code": "arms-not-tested",
            "severity": "note",
            "sentence": f"Experiment arms (arm) are not compared: {why}.",
            "figures": {},
            "details": "",
        }
    }


@pytest.mark.slow
def test_contexts_share_one_bend(run_in_process: Run, logs: Path, tmp_path: Path) -> None:
    log = pl.read_parquet(logs / "knows.parquet").with_columns(device=pl.col("session") // 7 % 2)
    log.write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", *ARM, "--context", "device", "-o", "fit", code=1)

    assert "arms-contradict" in reasons_in(tmp_path / "fit")
    table = pl.read_parquet(tmp_path / "fit" / "propensities.parquet")
    moved = (table["arms_propensity"] / table["unshrunk_propensity"]).log()
    np.testing.assert_allclose(moved[:8], moved[8:], atol=1e-9)
