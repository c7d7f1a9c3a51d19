"""`posbias fit`: what its options do, from the command line to the files, and what it says of them."""

from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import polars as pl
import pytest
from command_results import manifest_of
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
    return pl.concat([desktop, phone]).with_columns(day=pl.date(2026, 1, 5) + pl.duration(days=pl.col("session") % 5))


@pytest.fixture
def log(dense_log: pl.DataFrame, tmp_path: Path) -> Path:
    """The dense log on disk."""
    dense_log.write_parquet(tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


def propensities(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "propensities.parquet")


def estimate_in(folder: Path) -> dict[str, Any]:
    return manifest_of(folder)["estimate"]


@pytest.mark.slow
def test_statistics_keep_what_later_fits_may_need(run_in_process: Run, log: Path, tmp_path: Path) -> None:
    words = ("--timestamp", "day", "--context", "device", "--randomized-where", "policy=random")
    run_in_process("collect", log, *words, "-o", "statistics", code=0)
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


def test_few_pairs_are_called_pairs(run_in_process: Run, log: Path) -> None:
    few = ("--cluster", "pair", "--method", "allpairs", "--max-position", "2", "--timestamp", "none")
    rare = pl.read_parquet(log).filter(pl.col("query") == 0, pl.col("doc") < 3)
    rare.write_parquet(log)
    done = run_in_process("fit", log, *few, "--no-compare", "-o", "out")

    assert "A few pairs dominate: " in " ".join(done.stderr.split())


def test_huge_weights_leave_attractiveness_a_number(
    run_in_process: Run, log: Path, dense_log: pl.DataFrame, tmp_path: Path
) -> None:
    clicked = dense_log.with_columns(
        click=pl.when(pl.col("position") == 1).then(pl.col("session") % 10 > 0).otherwise("click").cast(pl.Int8),
        w=pl.when(pl.col("position") == 1).then(1e12).otherwise(1.0),
    )
    clicked.write_parquet(log)
    run_in_process("run", log, "--weight-column", "w", "--layout-options", "negatives=posterior", "-o", "out", code=0)
    gamma = pl.read_parquet(tmp_path / "out" / "attractiveness.parquet")["attractiveness"]

    assert gamma.is_between(0, 1).all()
    assert pl.read_parquet(tmp_path / "out" / "training" / "rows" / "*.parquet")["weight"].is_finite().all()


@pytest.mark.slow
def test_devices_with_other_first_positions_are_compared_with_the_reference_that_is_named(
    run_in_process: Run, log: Path, dense_log: pl.DataFrame
) -> None:
    dense_log.filter((pl.col("device") == "desktop") | (pl.col("position") > 1)).write_parquet(log)
    words = ("fit", log, "--context", "device", "-o", "out", "--force")

    apart = run_in_process(*words).stderr
    assert "not tested between different reference positions" in apart
    assert "relative to position 1 for desktop, position 2 for phone. Use --reference 2, which all show" in apart

    together = run_in_process(*words, "--reference", "2").stderr
    assert "not tested between different reference positions" not in together
    assert "Propensities differ by device" in together


@pytest.mark.slow
def test_a_log_of_contexts_that_the_fit_does_not_know_is_weighted_with_doubts(
    run_in_process: Run, log: Path, dense_log: pl.DataFrame
) -> None:
    run_in_process("fit", log, "--context", "device", "--no-compare", "-o", "fit", code=0)
    dense_log.with_columns(device=pl.lit("watch")).write_parquet(log)
    unknown = run_in_process("weight", log, "--propensities", "fit", "-o", "weights", code=1)
    dense_log.with_columns(device=pl.lit(1)).write_parquet(log)
    mistyped = run_in_process("weight", log, "--propensities", "fit", "-o", "others", code=2)

    assert "at positions without a propensity" in unknown.stderr
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


@pytest.mark.slow_after(4)
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

    monkeypatch.setattr("posbias.io.jobs.fit.fit_statistics", never)
    deep_log.write_parquet(tmp_path / "log.parquet")
    result = run_in_process(*command, str(tmp_path / "log.parquet"), "-o", str(tmp_path / "out"), code=2)
    assert "cells (position" in result.stderr
    assert "--max-position" in result.stderr
    assert "--position-bins" in result.stderr
    assert not (tmp_path / "out").exists()


def test_pages_too_long_to_go_down_rank_by_rank_are_refused(
    run_in_process: Run, deep_log: pl.DataFrame, tmp_path: Path
) -> None:
    deep_log.write_parquet(tmp_path / "log.parquet")
    result = run_in_process("fit", str(tmp_path / "log.parquet"), "--model", "dbn", "-o", str(tmp_path / "out"), code=2)
    assert "9,000 results" in result.stderr
    assert "--max-position" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def markets(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def errors_in(folder: Path) -> list[float]:
    return pl.read_parquet(folder / "propensities.parquet")["std_error"].to_list()[1:]


@pytest.mark.slow
def test_a_log_of_few_queries_is_told_of_columns_that_cut_across_them(
    run_in_process: Run, markets: Path, tmp_path: Path
) -> None:
    pl.read_parquet(markets).filter(pl.col("query") < 6).write_parquet(tmp_path / "few.parquet")

    def said(*options: str) -> str:
        done = run_in_process("fit", "few.parquet", *options, "-o", "out", "--force", code=(0, 1))
        return " ".join(done.stderr.split())

    advice = "If users, markets or days share more than a query does, name their column (--cluster-column)."
    assert advice in said()
    for where_it_does_not_work in (
        ("--cluster-column", "market"),
        ("--method", "allpairs"),
        ("--shape", "power"),
        ("--bootstrap", "99"),
    ):
        without = said(*where_it_does_not_work)
        assert " of equal size." in without
        assert advice not in without


@pytest.mark.slow
def test_statistics_of_days_that_keep_the_column_say_what_the_log_says(
    run_in_process: Run, markets: Path, tmp_path: Path
) -> None:
    keep = ("--cluster-column", "market")
    run_in_process("fit", markets, *keep, "--no-compare", "-o", "whole", code=0)
    for number, (_, rows) in enumerate(pl.read_parquet(markets).group_by("day", maintain_order=True)):
        rows.write_parquet(tmp_path / f"day-{number}.parquet")
        run_in_process("collect", f"day-{number}.parquet", *keep, "-o", f"statistics-{number}", code=0)
    days = sorted(tmp_path.glob("statistics-*"))
    assert len(days) == 4
    run_in_process("collect", *days, "-o", "store", code=0)
    for inputs, name in ((days, "of-days"), (["store"], "of-store")):
        run_in_process("fit", *inputs, "--no-compare", "-o", name, code=0)
        assert estimate_in(tmp_path / name)["errors_by"] == "two-way"
        np.testing.assert_allclose(errors_in(tmp_path / name), errors_in(tmp_path / "whole"), rtol=1e-12)
    run_in_process("fit", "store", "--cluster", "query", "--no-compare", "-o", "by-query", code=0)
    run_in_process("fit", markets, "--no-compare", "-o", "plain", code=0)
    assert errors_in(tmp_path / "by-query") == errors_in(tmp_path / "plain")


@pytest.mark.slow
def test_rows_without_a_value_are_one_cluster(run_in_process: Run, markets: Path, tmp_path: Path) -> None:
    rows = pl.read_parquet(markets)
    unknown = rows.with_columns(market=pl.when(pl.col("market") > 0).then("market"))
    unknown.write_parquet(tmp_path / "unknown.parquet")
    for name in (markets, "unknown.parquet"):
        run_in_process("fit", name, "--cluster-column", "market", "--no-compare", "-o", Path(name).stem, code=0)

    np.testing.assert_allclose(errors_in(tmp_path / "unknown"), errors_in(tmp_path / "log"), rtol=1e-12)


RICH = SimulationOptions(n_sessions=6_000, n_queries=40, docs_per_query=8, n_positions=5, query_exponent=0.0, seed=3)
STEP = replace(RICH, theta=(1.0, 0.9, 0.8, 0.3, 0.3))


@pytest.mark.slow
@pytest.mark.parametrize(("bins", "hold"), [("1,2,3,4", True), ("1,2,4", True), ("1,3", False)])
def test_bins_are_tested_against_positions(bins: str, hold: bool, run_in_process: Run, tmp_path: Path) -> None:  # noqa: FBT001
    simulate(STEP if hold else RICH).log.write_parquet(tmp_path / "log.parquet")
    if bins == "1,2,4":
        simulate(replace(STEP, theta=(1.0, 0.8, 0.8, 0.3, 0.3))).log.write_parquet(tmp_path / "log.parquet")
    done = run_in_process("fit", "log.parquet", "-o", "out", "--position-bins", bins)
    assert done.returncode == (0 if hold else 1), done.stderr
    test = manifest_of(tmp_path / "out")["estimate"]["bins_against_free"]
    assert test["rejected"] is not hold
    assert ("The positions of each bin have one propensity" in done.stderr) is hold
    assert ("Propensities differ within a bin" in done.stderr) is not hold


# Users examine every document until they click one: P(seen) falls to .75 at the last position.
def said(done: CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split())


def test_one_arm_of_a_swap_is_refused_and_nothing_is_written(run_in_process: Run, tmp_path: Path) -> None:
    log = simulate(SimulationOptions(n_sessions=6_000, n_queries=40, docs_per_query=8, n_positions=5)).log
    part = (pl.col("session") % 3 == 0).cast(pl.Int8)
    log.with_columns(arm=part).write_parquet(tmp_path / "log.parquet")
    words = ("--method", "randomized", "--randomized-where", "arm=1@1,4")
    done = run_in_process("fit", "log.parquet", *words, "-o", "out", code=2)

    assert "The rows with arm=1@1,4 (--randomized-where) were not placed at random" in said(done)
    assert not (tmp_path / "out").exists()
    run_in_process("collect", "log.parquet", *words[2:], "-o", "store", code=0)
    run_in_process("fit", "store", *words[:2], "-o", "out", code=2)


def test_sums_of_weights_have_no_effective_sample_size(run_in_process: Run, tmp_path: Path) -> None:
    log = simulate(SimulationOptions(n_sessions=2_000, n_queries=40, docs_per_query=8, n_positions=4)).log
    log.with_columns(w=pl.lit(2.0)).write_parquet(tmp_path / "log.parquet")
    run_in_process("collect", "log.parquet", "--weight-column", "w", "-o", "store", code=0)
    run_in_process("fit", "store", "--no-compare", "-o", "fit", code=0)
    run_in_process("weight", "store", "--propensities", "fit", "-o", "weights", code=0)

    assert manifest_of(tmp_path / "weights")["weights"]["effective_sample_size"] is None


OPTIONS = SimulationOptions(n_queries=40, n_sessions=3_000, docs_per_query=10, n_positions=6, attractiveness_scale=0.5)


def one_click_a_page(drawn: pl.DataFrame) -> pl.DataFrame:
    first = pl.col("click").cum_sum().over("session", order_by="position") == 1
    return drawn.with_columns((pl.col("click") * first).cast(pl.Int8).alias("click"))


@pytest.fixture(scope="module")
def drawn() -> pl.DataFrame:
    return simulate(OPTIONS).log


def section_of(folder: Path) -> dict[str, Any]:
    return manifest_of(folder)["estimate"]["model_tests"]


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
    done = run_in_process("fit", "log.parquet", *options, "-o", "out", "--details", code=1)

    denials = ("does not hold", "Use --method conditional", "do not follow", "differ within a bin")
    assert any(denial in " ".join(done.stderr.split()) for denial in denials)


@pytest.mark.slow
def test_from_statistics_what_pages_would_show_is_said_not_to_be_tested(
    run_in_process: Run, drawn: pl.DataFrame, tmp_path: Path
) -> None:
    one_click_a_page(drawn).write_parquet(tmp_path / "log.parquet")
    run_in_process("collect", "log.parquet", "-o", "counts")
    done = run_in_process("fit", "counts", "--no-compare", "-o", "out")
    run_in_process("fit", "log.parquet", "--no-compare", "-o", "whole")

    found, whole = section_of(tmp_path / "out"), section_of(tmp_path / "whole")
    assert "Whether earlier clicks on a page make a difference is not tested: it needs the pages of a log" in " ".join(
        done.stderr.split()
    )
    assert found["clicks_above"] is None
    assert found["last_click"] is None
    assert found["attractiveness"]["p_value"] == pytest.approx(whole["attractiveness"]["p_value"])


@pytest.mark.slow
@pytest.mark.parametrize("n_queries", [40, 1], ids=["many queries", "one query"])
def test_of_a_large_log_a_sample_of_pages_is_looked_at(
    run_in_process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_queries: int
) -> None:
    monkeypatch.setattr("posbias.io.counting.profile.ROWS_TO_TEST", 4_000)
    drawn = one_click_a_page(simulate(replace(OPTIONS, n_queries=n_queries)).log)
    drawn.write_parquet(tmp_path / "log.parquet")
    run_in_process("fit", "log.parquet", "-o", "out")

    found = section_of(tmp_path / "out")
    assert 1_000 <= found["impressions_of_pages"] <= 16_000
    assert (found["clicks_above"] is None) == (n_queries == 1)  # one query is one cluster


@pytest.mark.slow
def test_the_same_log_gives_the_same_bytes_whatever_the_order_of_its_rows(
    run_in_process: Run, drawn: pl.DataFrame, tmp_path: Path
) -> None:
    drawn.write_parquet(tmp_path / "log.parquet")
    drawn.sample(fraction=1, shuffle=True, seed=1).write_parquet(tmp_path / "shuffled.parquet")
    for name in ("log", "shuffled"):
        run_in_process("fit", f"{name}.parquet", "--no-compare", "-o", name)

    assert section_of(tmp_path / "log") == section_of(tmp_path / "shuffled")


@pytest.fixture(scope="module")
def learning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of a ranker that takes note of clicks four times a day, and of its version."""
    options = SimulationOptions(
        n_sessions=12_000, n_queries=100, n_positions=4, days=10, feedback_strength=4.0, updates_per_day=4
    )
    path = tmp_path_factory.mktemp("learning") / "log.parquet"
    log = simulate(replace(options, attractiveness_scale=0.5)).log
    version = pl.col("timestamp").dt.truncate("6h").dt.strftime("%m%d-%H")
    log.with_columns(version=version).write_parquet(path)
    return path


@pytest.mark.slow
def test_the_version_of_the_ranker_answers_a_ranker_that_learns_within_the_day(
    run_in_process: Run, learning: Path, tmp_path: Path
) -> None:
    words = ("--timestamp", "timestamp", "--period-column", "version")
    run_in_process("fit", learning, *words, "--no-compare", "-o", "out", code=0)

    assert estimate_in(tmp_path / "out")["period"]["survives"] == "none"
    assert propensities(tmp_path / "out")["propensity"].to_list() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4], rel=0.15)
    run_in_process("collect", learning, *words, "-o", "store", code=0)
    run_in_process("fit", "store", "--period-column", "version", "--no-compare", "-o", "again", code=0)
    assert propensities(tmp_path / "again").equals(propensities(tmp_path / "out"))
    refused = run_in_process("fit", "store", "--period-column", "other", "-o", "no", code=2)
    assert "--period-column other" in refused.stderr


@pytest.mark.slow
def test_a_store_of_quarters_of_an_hour_says_what_the_log_says(
    run_in_process: Run, learning: Path, tmp_path: Path
) -> None:
    run_in_process("collect", learning, "--timestamp", "timestamp", "-o", "store", code=0)
    assert pl.read_parquet(tmp_path / "store" / "*.parquet").schema["period"] == pl.Datetime("us")
    for choice in ("auto", "none", "week", "day", "hour"):
        kept = run_in_process("fit", "store", "--period", choice, "-o", "kept", "--force")
        whole = run_in_process(
            "fit", learning, "--timestamp", "timestamp", "--period", choice, "-o", "whole", "--force"
        )
        assert kept.returncode == whole.returncode == (0 if choice == "hour" else 1), kept.stderr
        assert propensities(tmp_path / "kept").equals(propensities(tmp_path / "whole"))
