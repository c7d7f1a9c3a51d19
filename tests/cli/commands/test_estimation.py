"""Options of the estimation, from the command line to the files: what they do, and what they say."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest

from posbias.core.simulation.simulate import SimulationOptions, simulate

Run = Callable[..., CompletedProcess[str]]

WORLD = SimulationOptions(n_sessions=8_000, n_queries=20, docs_per_query=6, n_positions=4, query_exponent=0.0, seed=4)
SPARSE = SimulationOptions(
    n_sessions=20_000, n_queries=10_000, docs_per_query=20, n_positions=10, query_exponent=0.7, seed=2
)


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


def test_contexts_have_propensities_and_attractiveness_of_their_own(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    done = run_in_process("run", log, "--context", "device", "-o", "out")
    table = propensities(tmp_path / "out")
    gamma = pl.read_parquet(tmp_path / "out" / "attractiveness.parquet")

    assert done.returncode == 0, done.stderr
    assert table.columns[:4] == ["position", "device", "impressions", "clicks"]
    assert table.select("device", "position").rows() == [(d, k) for d in ("desktop", "phone") for k in range(1, 5)]
    last = dict(table.filter(position=4).select("device", "propensity").iter_rows())
    assert last["desktop"] > 3 * last["phone"]
    assert gamma.columns == ["query", "doc", "device", "impressions", "clicks", "attractiveness", "std_dev"]
    assert gamma.select("query", "doc", "device").is_unique().all()
    assert "position 1 of each device" in done.stderr
    found = estimate_in(tmp_path / "out")
    assert found["references"] == [{"position": 1, "device": "desktop"}, {"position": 1, "device": "phone"}]
    assert [len(cells) for cells in found["comparable"]] == [4, 4]


def test_the_unshrunk_estimate_stands_beside_the_shrunk_one(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    done = run_in_process("fit", log, "--context", "device", "-o", "shrunk")
    alone = run_in_process("fit", log, "--context", "device", "--shrink", "none", "-o", "alone")
    shrunk, free = propensities(tmp_path / "shrunk"), propensities(tmp_path / "alone")

    assert done.returncode == alone.returncode == 0, done.stderr
    for own, name in (
        ("unshrunk_propensity", "propensity"),
        ("unshrunk_ci_low", "ci_low"),
        ("unshrunk_ci_high", "ci_high"),
    ):
        assert shrunk[own].to_list() == free[name].to_list() == free[own].to_list()
        assert shrunk[own].to_list() != shrunk[name].to_list()
        assert all(f"{value:.3f}" in done.stderr for value in shrunk[own])
    assert "each device is shrunk towards the others" in " ".join(done.stderr.split())
    assert "shrunk" not in alone.stderr
    section = estimate_in(tmp_path / "shrunk")
    assert len(section["tau_by_context"]) == len(section["references"])
    desktop, phone = section["borrowed_by_context"]
    said = " ".join(done.stderr.split())
    assert f"borrowed from the others: desktop {desktop:.0%}, phone {phone:.0%}." in said
    assert "The intervals hold for each device by itself" in said
    assert "borrowed" not in alone.stderr
    assert "contexts_tau" not in estimate_in(tmp_path / "alone")


@pytest.mark.slow
def test_a_log_copied_into_devices_has_the_errors_of_the_log(
    run_in_process: Run, sample_logs: Path, tmp_path: Path
) -> None:
    sample = pl.read_parquet(sample_logs / "web_search.parquet")
    copies = [
        sample.with_columns(pl.format("{} " + name, "session").alias("session"), device=pl.lit(name)) for name in "abcd"
    ]
    pl.concat(copies).write_parquet(tmp_path / "copies.parquet")
    sample.write_parquet(tmp_path / "plain.parquet")
    for name, words in (("plain", ()), ("copies", ("--context", "device"))):
        assert run_in_process("fit", f"{name}.parquet", "--no-compare", *words, "-o", name).returncode == 0
    plain, copied = propensities(tmp_path / "plain"), propensities(tmp_path / "copies").filter(pl.col("device") == "a")

    assert copied["propensity"].to_list() == pytest.approx(plain["propensity"].to_list(), rel=1e-4)
    for end in ("ci_low", "ci_high"):
        assert copied[end].to_list() == pytest.approx(plain[end].to_list(), rel=1e-3)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--shrink", "none"), "only contexts are shrunk"),
        (
            ("--shrink", "none", "--context", "device", "--shape", "power"),
            "contexts are not shrunk under --shape power",
        ),
        (("--shrink", "none", "--context", "device", "--method", "ctr"), "--method ctr does not support it"),
    ],
)
def test_shrink_is_refused_where_nothing_is_shrunk(
    run_in_process: Run, log: Path, words: tuple[str, ...], why: str
) -> None:
    done = run_in_process("fit", log, *words, "-o", "out")
    assert done.returncode == 2
    assert why in " ".join(done.stderr.split())


def test_the_pointwise_layout_has_two_rows_per_pair_whatever_the_contexts(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    assert run_in_process("run", log, "--context", "device", "-o", "out").returncode == 0
    rows = pl.read_parquet(tmp_path / "out" / "training" / "rows" / "*.parquet")
    clicks = pl.read_parquet(log).join(propensities(tmp_path / "out"), on=["position", "device"])
    expected = clicks.filter(pl.col("click") == 1).select((1 / pl.col("propensity")).sum()).item()

    assert rows.select("query", "doc", "label").is_unique().all()
    assert rows.filter(label=1)["weight"].sum() == pytest.approx(expected)


@pytest.mark.slow
def test_weight_takes_the_contexts_of_the_fit(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    for layout in ("pointwise", "session"):
        whole = run_in_process("run", log, "--context", "device", "--layout", layout, "-o", "whole", "--force")
        fit = run_in_process("fit", log, "--context", "device", "-o", "fit", "--force")
        weight = run_in_process("weight", log, "--propensities", "fit", "--layout", layout, "-o", "weights", "--force")

        assert (whole.returncode, fit.returncode, weight.returncode) == (0, 0, 0), weight.stderr
        written = [
            pl.read_parquet(tmp_path / name / "training" / "rows" / "*.parquet") for name in ("whole", "weights")
        ]
        assert written[0].equals(written[1])
    other = run_in_process("weight", log, "--propensities", "fit", "--context", "policy", "-o", "other")
    assert other.returncode == 2
    assert "differ by device" in other.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--context", "position"), "--context position"),
        (("--context", "device", "--stratify", "device"), "--context already lets attractiveness differ by it"),
        (("--context", "device", "--model", "ubm"), "--model pbm"),
        (("--context", "nowhere"), "no column 'nowhere'"),
        (("--randomized-where", "policy"), "COLUMN=VALUE"),
        (("--randomized-where", "policy=random@1,1"), "different whole numbers"),
        (("--randomized-where", "nowhere=1"), "no column 'nowhere'"),
        (("--method", "randomized"), "--randomized-where"),
        (("--reference", "top"), "--reference top"),
        (("--reference", "9"), "positions run from 1 to 4"),
        (("--reference", "1,0"), "1 number"),
        (("--period", "day"), "--timestamp COLUMN"),
    ],
)
def test_options_that_cannot_work_are_errors_that_say_why(
    run_in_process: Run, log: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = run_in_process("fit", log, "-o", "out", *words)

    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()


def test_randomised_rows_say_what_the_whole_log_says(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    words = ("--method", "randomized", "--randomized-where", "policy=random")
    done = run_in_process("fit", log, *words, "-o", "out")
    marked = pl.read_parquet(log).filter(policy="random").group_by("position").agg(pl.mean("click")).sort("position")

    assert done.returncode == 0, done.stderr
    rate = marked["click"] / marked["click"][0]
    assert propensities(tmp_path / "out")["propensity"].to_list() == pytest.approx(rate.to_list())
    assert propensities(tmp_path / "out")["impressions"].sum() == pl.read_parquet(log).height


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


@pytest.mark.slow
def test_by_default_a_log_of_a_ranker_that_does_not_learn_is_not_parted(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    for choice, used in (((), "none"), (("--period", "none"), "none"), (("--period", "day"), "day")):
        done = run_in_process("fit", log, "--timestamp", "day", *choice, "-o", "out", "--force")
        assert done.returncode == 0, done.stderr
        assert estimate_in(tmp_path / "out")["period"]["used"] == used
    automatic = run_in_process("fit", log, "--timestamp", "day", "-o", "out", "--force")
    said = " ".join(automatic.stderr.split())
    assert "no feedback shows within the whole log" in said
    assert "would show in four of five such logs" in said
    choice = estimate_in(tmp_path / "out")["period"]
    assert (choice["survives"], choice["claim"]) == ("none", True)
    assert len(choice["pooled"]) == 4


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
def test_a_sparse_log_is_called_one_and_a_dense_one_is_not(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    simulate(SPARSE).log.write_parquet(tmp_path / "sparse.parquet")
    words = "For comparison only: textbook EM would be off by up to"
    sparse = run_in_process("fit", "sparse.parquet", "-o", "sparse")
    dense = run_in_process("fit", log, "--context", "device", "-o", "dense")

    assert words in sparse.stderr
    assert words not in dense.stderr
    assert estimate_in(tmp_path / "sparse")["joint_against_conditional"]["biased"] is True
    assert estimate_in(tmp_path / "dense")["joint_against_conditional"]["biased"] is False
    unasked = run_in_process("fit", "sparse.parquet", "--no-compare", "-o", "unasked")
    assert words not in unasked.stderr
    assert estimate_in(tmp_path / "unasked")["joint_against_conditional"] is None


def test_clicks_expected_by_the_fit_stand_beside_the_observed_ones(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    assert run_in_process("fit", log, "--context", "device", "-o", "out").returncode == 0
    clicks = estimate_in(tmp_path / "out")["clicks"]

    assert clicks["observed"] == propensities(tmp_path / "out")["clicks"].to_list()
    assert clicks["expected"] == pytest.approx(clicks["observed"], rel=0.05)


@pytest.mark.parametrize(
    ("model", "words"), [("pbm", "makes no significant difference"), ("ubm", "the previous click matters")]
)
def test_whether_the_previous_click_matters_is_said_without_recommending_a_model(
    run_in_process: Run, tmp_path: Path, model: str, words: str
) -> None:
    world = SimulationOptions(
        n_sessions=20_000, n_queries=100, docs_per_query=8, n_positions=4, query_exponent=0.0, seed=3
    )
    simulate(replace(world, model="ubm" if model == "ubm" else "pbm")).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "--model", "ubm", "-o", "out")

    said = " ".join(done.stderr.split())
    assert words in said
    assert "use --model ubm" not in said.lower()


def test_a_log_without_position_bias_is_said_to_show_none(run_in_process: Run, tmp_path: Path) -> None:
    simulate(replace(WORLD, eta=0.0, seed=6)).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "-o", "out")
    table = propensities(tmp_path / "out")

    assert "no position effect detected" in done.stderr
    assert (table["ci_low"] <= 1).all()
    assert (table["ci_high"] >= 1).all()


@pytest.mark.parametrize("words", [("--cluster", "pair"), ("--cluster", "session"), ("--bootstrap", "300")])
@pytest.mark.slow
def test_other_errors_leave_the_propensities_as_they_are(
    run_in_process: Run, log: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    done = run_in_process("fit", log, *words, "-o", "other")
    assert done.returncode == 0, done.stderr
    assert run_in_process("fit", log, "-o", "plain").returncode == 0
    other, plain = propensities(tmp_path / "other"), propensities(tmp_path / "plain")

    assert other["propensity"].equals(plain["propensity"])
    width = [(table["ci_high"] / table["ci_low"]).log()[1:] for table in (other, plain)]
    lowest = 1 - 1e-9 if "--bootstrap" in words else 0.4  # the bootstrap never narrows an interval
    assert (width[0] / width[1]).is_between(lowest, 2.5).all()
    if "--bootstrap" not in words:
        assert (width[0] - width[1]).abs().to_numpy().min() > 1e-6


@pytest.mark.slow
def test_a_bootstrap_is_the_same_for_the_same_seed(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        assert run_in_process("fit", log, "--bootstrap", "100", "--seed", seed, "-o", name).returncode == 0
    a, b, c = (propensities(tmp_path / name) for name in "abc")

    assert a.equals(b)
    assert not a.equals(c)


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


def test_errors_by_session_need_the_log(run_in_process: Run, log: Path) -> None:
    assert run_in_process("collect", log, "-o", "statistics").returncode == 0
    done = run_in_process("fit", "statistics", "--cluster", "session", "-o", "out")

    assert done.returncode == 2
    assert "--cluster session needs the logs" in done.stderr


def test_a_power_of_the_position_is_fitted_with_its_exponent(run_in_process: Run, tmp_path: Path) -> None:
    simulate(replace(WORLD, eta=0.8)).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "--shape", "power", "-o", "out")
    found = estimate_in(tmp_path / "out")
    table = propensities(tmp_path / "out")

    assert found["eta"][0] == pytest.approx(0.8, abs=4 * found["eta_std_error"][0])
    assert table["propensity"].to_list() == pytest.approx((table["position"] ** -found["eta"][0]).to_list())
    assert "the power shape (eta 0." in " ".join(done.stderr.split())


def test_a_power_of_the_position_is_rejected_where_the_log_says_otherwise(run_in_process: Run, tmp_path: Path) -> None:
    simulate(replace(WORLD, theta=(1.0, 0.9, 0.85, 0.2))).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "--shape", "power", "-o", "out")

    assert done.returncode == 1
    assert "warning: Propensities do not follow a power" in " ".join(done.stderr.split())
    assert estimate_in(tmp_path / "out")["shape_against_free"]["rejected"] is True


def test_a_monotone_shape_never_rises(run_in_process: Run, tmp_path: Path) -> None:
    simulate(replace(WORLD, theta=(1.0, 0.4, 0.6, 0.3))).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "--shape", "monotone", "-o", "out")
    theta = propensities(tmp_path / "out")["propensity"]

    assert (theta.diff().drop_nulls() <= 0).all()
    assert theta[1] == pytest.approx(theta[2])
    assert "warning:" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "joint", "--bootstrap", "100"), "--method joint does not support it"),
        (("--method", "allpairs", "--shape", "power"), "Methods that do: conditional, randomized"),
        (("--method", "allpairs", "--cluster", "session"), "only --method conditional"),
        (("--shape", "power", "--model", "ubm"), "says nothing about previous_click (--model ubm)"),
        (("--shape", "power", "--cluster", "pair"), "Leave out --cluster"),
        (("--bootstrap", "100", "--cluster", "pair"), "it resamples queries"),
        (("--bootstrap", "7"), "at least"),
        (("--method", "adjacent-chain", "--model", "ubm"), "--method allpairs"),
        (("--method", "nonsense"), "choose from conditional, joint"),
    ],
)
def test_methods_refuse_what_they_do_not_know_before_anything_is_read(
    run_in_process: Run, log: Path, words: tuple[str, ...], message: str
) -> None:
    done = run_in_process("fit", log, "-o", "out", *words)

    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize("method", ["conditional", "joint", "allpairs", "adjacent-chain", "ctr"])
def test_every_method_writes_the_same_table(run_in_process: Run, log: Path, tmp_path: Path, method: str) -> None:
    done = run_in_process("fit", log, "--context", "device", "--method", method, "-o", "out")
    table = propensities(tmp_path / "out")

    assert done.returncode == 0, done.stderr
    assert table.columns == [
        *("position", "device", "impressions", "clicks", "ctr", "propensity", "weight_propensity", "examination"),
        *("std_error", "ci_low", "ci_high", "identified", "reason", "linking_pairs", "linking_clicks"),
        "joint_propensity",
        *("smooth_propensity", "smooth_std_error", "smooth_ci_low", "smooth_ci_high"),
        *("unshrunk_propensity", "unshrunk_ci_low", "unshrunk_ci_high"),
    ]
    assert table["propensity"].null_count() == 0
    assert table["joint_propensity"].null_count() == 0
    has_errors = method not in {"joint", "ctr"}
    assert table["std_error"].null_count() == (0 if has_errors else table.height)


@pytest.mark.parametrize("method", ["conditional", "joint"])
def test_expected_labels_add_up_to_the_impressions_and_are_the_same_from_run_and_weight(
    run_in_process: Run, log: Path, tmp_path: Path, method: str
) -> None:
    words = ("--negatives", "posterior")
    assert run_in_process("run", log, *words, "--method", method, "-o", "run").returncode == 0
    assert run_in_process("weight", log, *words, "--propensities", "run", "-o", "weight").returncode == 0
    run, weight = (pl.read_parquet(tmp_path / name / "training" / "rows" / "*.parquet") for name in ("run", "weight"))
    shown = pl.read_parquet(log).group_by("query", "doc").agg(n=pl.len(), clicks=pl.sum("click").cast(pl.Int64))
    labels = run.pivot("label", index=["query", "doc"], values="weight").join(shown, on=["query", "doc"])

    assert run.equals(weight)
    assert (labels["1"] + labels["0"]).to_list() == pytest.approx(labels["n"].to_list())
    assert (labels["1"] >= labels["clicks"] - 1e-9).all()


def test_expected_labels_are_for_the_pointwise_layout(run_in_process: Run, log: Path) -> None:
    done = run_in_process("run", log, "--negatives", "posterior", "--layout", "session", "-o", "out")

    assert done.returncode == 2
    assert "only to --layout pointwise" in done.stderr


def test_methods_without_strata_do_not_care_for_days(run_in_process: Run, tmp_path: Path) -> None:
    fixed = pl.DataFrame(
        {"query": [1, 1], "doc": [1, 2], "position": [1, 2], "click": [1, 1], "day": ["2026-01-05", "2026-01-05"]}
    )
    fixed.write_parquet(tmp_path / "fixed.parquet")
    done = run_in_process("fit", "fixed.parquet", "--method", "ctr", "--timestamp", "day", "-o", "out")

    assert done.returncode == 0, done.stderr
    assert propensities(tmp_path / "out")["propensity"].to_list() == [1, 1]


@pytest.mark.slow
def test_errors_by_session_are_the_same_bytes_every_time(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        assert run_in_process("fit", log, "--cluster", "session", "-o", name).returncode == 0
    written = {(tmp_path / name / "propensities.parquet").read_bytes() for name in ("a", "b", "c")}

    assert len(written) == 1


def test_few_pairs_are_called_pairs(run_in_process: Run, log: Path) -> None:
    few = ("--cluster", "pair", "--method", "allpairs", "--max-position", "2")
    rare = pl.read_parquet(log).filter(pl.col("query") == 0, pl.col("doc") < 3)
    rare.write_parquet(log)
    done = run_in_process("fit", log, *few, "-o", "out")

    assert "A few pairs dominate: this log is worth about" in " ".join(done.stderr.split())


def test_a_power_beside_a_context_without_errors_can_be_written(
    run_in_process: Run, dense_log: pl.DataFrame, tmp_path: Path
) -> None:
    rare = pl.when(pl.col("session") == 17).then(pl.lit("rare")).otherwise("device")
    dense_log.with_columns(device=rare).write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "--context", "device", "--shape", "power", "-o", "out")

    assert done.returncode == 0, done.stderr
    assert estimate_in(tmp_path / "out")["eta"][:2] == pytest.approx([0.5, 1.5], abs=0.1)


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


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("click=1", "holds the clicks"),
        ("policy=random@1", "at least two positions"),
        ("policy=random@1,99", "Of the rows with policy=random@1,99"),
        ("policy=nothing", "no row has policy=nothing"),
    ],
)
def test_randomised_rows_that_cannot_serve_are_named(run_in_process: Run, log: Path, rows: str, message: str) -> None:
    done = run_in_process("fit", log, "--method", "randomized", "--randomized-where", rows, "-o", "out")

    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


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

    monkeypatch.setattr("posbias.io.fits.fit.fit_statistics", never)
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


def test_as_many_cells_as_memory_is_said_to_hold_are_fitted(
    run_in_process: Run, deep_log: pl.DataFrame, tmp_path: Path
) -> None:
    log = str(tmp_path / "log.parquet")
    deep_log.write_parquet(log)
    refused = run_in_process("fit", log, "-o", str(tmp_path / "out"), "--memory", "256MiB")
    most = re.search(r"enough for ([\d,]+) cells", refused.stderr)
    assert most is not None
    number = int(most[1].replace(",", ""))
    arguments = ["fit", log, "-o", str(tmp_path / "out"), "--memory", "256MiB", "--max-position"]
    assert run_in_process(*arguments, str(number + 1)).returncode == 2
    assert run_in_process(*arguments, str(number)).returncode < 2
    assert propensities(tmp_path / "out").height == number
