"""Weights of several contexts, each relative to its own first position: what is said, and what is refused."""

import shlex
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from arm_logs import log_of_arms
from command_results import Run, manifest_of

CODE = "contexts-on-own-scales"
CONTEXT = ("--context", "device", "--no-compare")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with logs of two devices, of which B gets 45 % of the attention of A."""
    folder = tmp_path_factory.mktemp("devices")
    for name, spread in (("even", 0.0), ("uneven", 0.45)):
        log = log_of_arms("fixed", 1, queries=60, pages=60, spread=spread, level=0.45)
        log.rename({"arm": "device"}).write_parquet(folder / f"{name}.parquet")
    documents = pl.DataFrame({"query": range(60)}).join(pl.DataFrame({"doc": range(12)}), how="cross")
    documents.with_columns(width=pl.col("doc") % 5).write_csv(folder / "features.csv")
    return folder


def reason_in(folder: Path) -> dict[str, Any]:
    (reason,) = (reason for reason in manifest_of(folder)["reasons"] if reason["code"] == CODE)
    return reason


@pytest.mark.slow
def test_documents_that_are_shown_alike_in_all_contexts_keep_their_order(
    run_in_process: Run, logs: Path, tmp_path: Path
) -> None:
    run_in_process("run", logs / "even.parquet", *CONTEXT, "-o", "run", code=0)

    reason = reason_in(tmp_path / "run")
    assert reason["severity"] == "note"
    assert reason["sentence"].startswith(
        "Weights of each device are relative to its own first position, and not on one scale. That hardly matters"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "code"),
    [("pointwise", 1), ("judgments", 1), ("session", 0), ("session --layout-options group=query", 1), ("pairs", 0)],
)
def test_labels_of_documents_that_are_shown_unevenly_are_refused(
    layout: str, code: int, run_in_process: Run, logs: Path, tmp_path: Path
) -> None:
    run_in_process("fit", logs / "uneven.parquet", *CONTEXT, "-o", "fit", code=0)
    done = run_in_process(
        "weight", logs / "uneven.parquet", "--propensities", "fit", "--layout", *layout.split(), "-o", "out", code=code
    )

    reason = reason_in(tmp_path / "out")
    assert reason["severity"] == ("stop" if code else "note")
    if code:
        assert reason["figures"]["ratio"] == pytest.approx(0.45, abs=0.05)
        assert 0.1 < reason["figures"]["error"] < 0.2
        assert f"for B {reason['figures']['ratio']:.2g} times as often" in " ".join(done.stderr.split())
        assert "posbias fit LOGS --for-each device -o fits" in " ".join(done.stderr.split())
    else:
        assert "Within a page they are" in reason["sentence"]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("spread", "level", "device", "error"),
    [(0.0, 1.0, "B", None), (0.45, 1.0, "A", None), (0.0, 0.45, "B", 0.09), (0.45, 0.45, "A", 0.2)],
)
def test_pages_of_different_length_put_labels_off_only_as_far_as_documents_are_shown_unevenly(
    spread: float, level: float, device: str, error: float | None, run_in_process: Run, tmp_path: Path
) -> None:
    log = log_of_arms("fixed", 1, queries=80, pages=60, spread=spread, level=level).rename({"arm": "device"})
    log.filter((pl.col("device") != device) | (pl.col("position") <= 4)).write_parquet(tmp_path / "log.parquet")
    run_in_process("run", "log.parquet", *CONTEXT, "--timestamp", "none", "-o", "run", code=int(error is not None))

    found = reason_in(tmp_path / "run")["figures"]["error"]
    assert found == pytest.approx(error, rel=0.1) if error else found < 0.03


@pytest.mark.slow
def test_no_error_is_invented_where_no_document_is_clicked_in_two_contexts(
    run_in_process: Run, logs: Path, tmp_path: Path
) -> None:
    apart = pl.col("doc") + 100 * (pl.col("device") == "B")
    for name, doc, code in (("apart", apart, 1), ("shared", "doc", 0)):
        silent = (pl.col("device") == "B") & (name == "shared")
        log = pl.read_parquet(logs / "even.parquet").with_columns(doc, pl.when(~silent).then("click").otherwise(0))
        log.write_parquet(tmp_path / "log.parquet")
        run_in_process("run", "log.parquet", *CONTEXT, "-o", name)
        reason = reason_in(tmp_path / name)
        assert reason["severity"] == ("stop" if code else "note")
        assert not {"error", "ratio"} & reason["figures"].keys()
        assert "%" not in reason["sentence"]
        assert ("cannot be known, as no document is clicked in two of them" in reason["sentence"]) is bool(code)


@pytest.mark.slow
def test_the_fit_of_each_context_that_is_advised_works(run_in_process: Run, logs: Path, tmp_path: Path) -> None:
    both = ("--context", "device", "--context", "segment", "--no-compare")
    run_in_process("run", logs / "uneven.parquet", *both, "-o", "run", code=1)
    advised = shlex.split(reason_in(tmp_path / "run")["sentence"].partition("(posbias ")[2].partition("), then")[0])
    sql = advised[2:4]

    assert sql[0] == "--sql"
    run_in_process("fit", logs / "uneven.parquet", *advised[2:])
    one = "fits/device_segment=A-1"
    run_in_process("weight", logs / "uneven.parquet", *sql, "--propensities", one, "-o", "weighed", code=0)
    rows = pl.read_parquet(logs / "uneven.parquet").filter(device="A", segment=1).height
    assert manifest_of(tmp_path / "weighed")["rows"]["used"] == rows


@pytest.mark.slow
def test_statistics_and_logs_say_the_same(run_in_process: Run, logs: Path, tmp_path: Path) -> None:
    run_in_process("collect", logs / "uneven.parquet", "--context", "device", "-o", "counts", code=0)
    run_in_process("run", logs / "uneven.parquet", *CONTEXT, "-o", "run", code=1)
    run_in_process("weight", "counts", "--propensities", "run", "-o", "counted", code=1)
    grouped = ("--layout", "session", "--layout-options", "group=query")
    run_in_process("weight", logs / "uneven.parquet", "--propensities", "run", *grouped, "-o", "pages", code=1)

    of_log, of_counts, of_pages = (reason_in(tmp_path / name)["figures"] for name in ("run", "counted", "pages"))
    assert of_counts == of_log
    assert of_pages == pytest.approx(of_log)


@pytest.mark.slow
def test_a_ranker_of_documents_is_refused_where_contexts_show_them_unevenly(
    run_in_process: Run, logs: Path, tmp_path: Path
) -> None:
    for name, code in (("even", 0), ("uneven", 1)):
        run_in_process("fit", logs / f"{name}.parquet", *CONTEXT, "-o", f"fit-{name}", code=0)
        learn = ("--learner", "pbm", "--learner-options", "trees=3", "--features", logs / "features.csv")
        given = ("--propensities", f"fit-{name}", *learn, "-o", f"ranker-{name}")
        run_in_process("train", logs / f"{name}.parquet", *given, code=code)
        assert reason_in(tmp_path / f"ranker-{name}")["severity"] == ("stop" if code else "note")


@pytest.mark.slow
def test_one_context_and_no_context_are_on_one_scale(run_in_process: Run, logs: Path, tmp_path: Path) -> None:
    pl.read_parquet(logs / "uneven.parquet").filter(pl.col("device") == "A").write_parquet(tmp_path / "a.parquet")
    run_in_process("run", "a.parquet", *CONTEXT, "-o", "run", code=0)
    run_in_process("run", logs / "uneven.parquet", "--no-compare", "-o", "plain", code=0)

    codes = {reason["code"] for name in ("run", "plain") for reason in manifest_of(tmp_path / name)["reasons"]}
    assert CODE not in codes


@pytest.mark.slow
def test_weighted_rows_are_not_tested(run_in_process: Run, logs: Path, tmp_path: Path) -> None:
    log = pl.read_parquet(logs / "even.parquet").with_columns(copies=1.0 + pl.col("session") % 2)
    log.write_parquet(tmp_path / "log.parquet")
    run_in_process("run", "log.parquet", *CONTEXT, "--weight-column", "copies", "-o", "run", code=0)

    assert reason_in(tmp_path / "run")["severity"] == "caution"
