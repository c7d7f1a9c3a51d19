"""`posbias fit --for-each`: for every value what a fit of its rows alone gives, the log read once, doubts marked."""

from pathlib import Path

import polars as pl
import pytest
from command_results import Output, manifest_of
from polars.testing import assert_frame_equal
from workshop import RunPosbias as Run

from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.counting import count
from posbias.io.engines.engine import Engine
from posbias.io.engines.local import LocalEngine

DONE, WITH_DOUBTS, UNUSABLE = 0, 1, 2


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log of two markets of different curves, over three days, with weights and devices."""
    folder = tmp_path_factory.mktemp("markets")
    made = [
        simulate(SimulationOptions("pbm", sessions, 30, 6, 5, eta=eta, seed=seed)).log.with_columns(
            market=pl.lit(market)
        )
        for market, sessions, eta, seed in (("de", 3000, 1.0, 1), ("fr", 2000, 0.4, 2))
    ]
    rows = pl.concat([frame.with_columns(session=pl.col("session") + 10_000 * k) for k, frame in enumerate(made)])
    rows = rows.with_columns(
        device=pl.col("session") % 2,
        user=pl.col("session") // 7,
        weight=1.0 + pl.col("session") % 3,
        timestamp=pl.datetime(2026, 1, 5) + pl.duration(days=pl.col("session") % 3),
    )
    rows.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(folder / "log.parquet")
    return folder / "log.parquet"


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--model ubm",
        "--timestamp timestamp --period day --decay 0.9",
        "--weight-column weight",
        "--context device --shrink none",
        "--arm device",
        "--stratify device --cluster-column user --max-position 4",
    ],
)
@pytest.mark.slow
def test_each_value_gets_what_a_fit_of_its_rows_alone_gives(
    run_in_process: Run, log: Path, options: str, tmp_path: Path
) -> None:
    words = options.split()
    run_in_process("fit", log, *words, "--for-each", "market", "-o", "each", code=(DONE, WITH_DOUBTS))
    for market in ("de", "fr"):
        pl.read_parquet(log).filter(market=market).write_parquet(tmp_path / f"{market}.parquet")
        run_in_process("fit", f"{market}.parquet", *words, "-o", market, code=(DONE, WITH_DOUBTS))
        each, alone = Output(tmp_path / "each" / f"market={market}"), Output(tmp_path / market)
        assert_frame_equal(each.propensities, alone.propensities, check_exact=True)
        assert_frame_equal(each.attractiveness, alone.attractiveness, check_exact=True)
        assert each.manifest["totals"] == alone.manifest["totals"]
        assert each.manifest["estimate"]["method"] == alone.manifest["estimate"]["method"]
        assert each.manifest["for_each"] == {"column": "market", "value": market}
    together = Output(tmp_path / "each").propensities
    for market in ("de", "fr"):
        own = Output(tmp_path / "each" / f"market={market}").propensities
        assert_frame_equal(together.filter(market=market).drop("market"), own, check_exact=True)


@pytest.mark.slow
def test_the_log_is_read_once(run_in_process: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, times = LocalEngine.read, list[Engine]()

    def counted(self: LocalEngine, *words: object, **more: object) -> object:
        times.append(self)
        return read(self, *words, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(LocalEngine, "read", counted)
    run_in_process("fit", log, "--for-each", "market", "--no-compare", "-o", "each", code=DONE)
    assert len(times) == 1


@pytest.mark.slow
def test_small_and_broken_values_are_marked_and_the_others_stand(run_in_process: Run, tmp_path: Path) -> None:
    rows = simulate(SimulationOptions("pbm", 20_000, 60, 6, 4, seed=4)).log
    size = pl.col("session")
    market = pl.when(size < 40).then(pl.lit("small")).when(size < 80).then(pl.lit("flat")).otherwise(pl.lit("large"))
    rows = rows.with_columns(market=market).filter((pl.col("market") != "flat") | (pl.col("position") == 1))
    rows.write_parquet(tmp_path / "log.parquet")

    done = run_in_process("fit", "log.parquet", "--for-each", "market", "--no-compare", "-o", "each", code=WITH_DOUBTS)

    said = {entry["value"]: entry for entry in Output(tmp_path / "each").manifest["for_each"]["values"]}
    assert (said["large"]["reliable"], said["large"]["why"]) == (True, None)
    assert said["small"]["reliable"] is False
    assert said["small"]["folder"] == "market=small"
    assert "without a propensity" in said["small"]["why"] or "poorly known" in said["small"]["why"]
    assert said["flat"]["folder"] is None
    assert said["flat"]["why"].startswith("no estimate: ")
    assert not (tmp_path / "each" / "market=flat").exists()
    assert "1 of 3 reliable" in done.stderr
    lines = [line.split()[0] for line in done.stderr.splitlines() if "no estimate" in line or "reliable" in line]
    assert lines[-2:] == ["large", "flat"] or "flat" in lines


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["pointwise", "session"])
def test_a_fit_of_a_value_weighs_the_rows_of_that_value_alone(
    layout: str, run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    run_in_process("fit", log, "--for-each", "market", "--no-compare", "-o", "each", code=DONE)
    pl.read_parquet(log).filter(market="de").write_parquet(tmp_path / "de.parquet")
    for name, rows in (("whole", log), ("alone", "de.parquet")):
        run_in_process("weight", rows, "--propensities", "each/market=de", "--layout", layout, "-o", name, code=DONE)

    whole, alone = (Output(tmp_path / name) for name in ("whole", "alone"))
    order = whole.training.columns[:4]
    assert_frame_equal(whole.training.sort(order), alone.training.sort(order), check_exact=True)
    assert whole.manifest["rows"]["used"] == whole.manifest["rows"]["read"] * 3 // 5 == alone.manifest["rows"]["used"]
    assert {reason["code"] for reason in whole.manifest["reasons"]} >= {"rows-of-one-value"}


@pytest.mark.slow
def test_all_that_reads_a_log_by_a_fit_of_a_value_reads_its_rows_alone(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    rows = pl.read_parquet(log).with_columns(day=pl.col("timestamp").dt.date())
    rows.write_parquet(tmp_path / "log.parquet")
    documents = rows.select("query", "doc", score=pl.col("doc").cast(pl.Float64)).unique()
    documents.write_parquet(tmp_path / "scores.parquet")
    run_in_process("fit", "log.parquet", "--for-each", "day", "-o", "each")
    with_fit = ("log.parquet", "--propensities", "each/day=2026-01-06")
    for words in (("predict", "--scores"), ("evaluate", "--scores"), ("train", "--features")):
        run_in_process(words[0], *with_fit, words[1], "scores.parquet", "-o", words[0])
        assert Output(tmp_path / words[0]).manifest["rows"]["used"] == rows.filter(pl.col("session") % 3 == 1).height


@pytest.mark.slow
def test_what_does_not_tell_the_rows_of_a_value_is_not_weighed_by_its_fit(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    run_in_process("fit", log, "--for-each", "market", "--no-compare", "-o", "each", code=DONE)
    run_in_process("collect", log, "-o", "counts", code=DONE)
    pl.read_parquet(log).filter(market="fr").write_parquet(tmp_path / "fr.parquet")
    pl.read_parquet(log).drop("market").write_parquet(tmp_path / "without.parquet")
    for rows, says in (
        ("counts", "counts holds counts, in which the values of market are added up, and the fit is of one of them"),
        ("fr.parquet", "every row was rejected (10,000 x the row is of another value than the fit"),
        ("without.parquet", "there is no column 'market' (--for-each of the fit)"),
    ):
        done = run_in_process("weight", rows, "--propensities", "each/market=de", "-o", "rows", code=UNUSABLE)
        assert says in " ".join(done.stderr.split())
        assert not (tmp_path / "rows").exists()


@pytest.mark.slow
def test_what_builds_on_a_fit_takes_that_of_a_value_and_is_told_so(run_in_process: Run, log: Path) -> None:
    run_in_process("fit", log, "--for-each", "market", "--no-compare", "-o", "each", code=DONE)

    run_in_process("weight", log, "--propensities", "each/market=de", "-o", "rows", code=DONE)
    run_in_process("compare", "each/market=de", "each/market=fr", code=DONE)
    shown = run_in_process("show", "each", code=DONE)
    assert "a fit for each market: 2 of 2 reliable" in shown.stdout
    assert "each/market=de" in run_in_process("explore", "each", "-o", "no").stderr


@pytest.mark.slow
def test_the_whole_is_replaced_as_one_and_not_where_something_else_lies_in_it(
    run_in_process: Run, log: Path, tmp_path: Path
) -> None:
    words = ("fit", log, "--for-each", "market", "-o", "each")
    run_in_process(*words, code=DONE)
    listed = manifest_of(tmp_path / "each")["files"]
    assert "market=de/manifest.json" in listed
    run_in_process(*words, "--force", code=DONE)

    (tmp_path / "each" / "market=de" / "notes.txt").write_text("mine", encoding="utf-8")
    refused = run_in_process(*words, "--force", code=UNUSABLE)

    assert "notes.txt" in refused.stderr
    assert (tmp_path / "each" / "market=de" / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_column_of_too_many_values_is_refused(
    run_in_process: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(count, "MOST_VALUES", 1)
    refused = run_in_process("fit", log, "--for-each", "market", "-o", "each", code=UNUSABLE)
    assert "column 'market' has 2 values" in refused.stderr
