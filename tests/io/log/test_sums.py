"""Tables that add up impressions and clicks: they give the estimates of the log that they were made from, or none."""

from pathlib import Path

import polars as pl
import pytest
from command_results import Posbias, Refused, Run

from posbias.core.simulation.simulate import SimulationOptions, simulate

KEYS = ("query", "doc", "position", "device", "segment", "policy", "day")
SUMS = ("--impressions", "impressions", "--click", "clicks")
NO_TIMES = ("--timestamp", "none")


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log of 1,500 pages, of two devices, two segments and two days, some of it at random."""
    options = SimulationOptions(
        *("pbm", 1500, 12, 6, 5), segments=2, contexts=(1.0, 0.5), days=2, randomized_share=0.4, seed=4
    )
    frame = simulate(options).log
    return frame.with_columns(day=pl.col("timestamp").dt.date())


@pytest.fixture(scope="module")
def sums(log: pl.DataFrame) -> pl.DataFrame:
    """Return its sums, in no order."""
    added = log.group_by(KEYS).agg(pl.len().alias("impressions"), pl.col("click").cast(pl.Int64).sum().alias("clicks"))
    return added.sample(fraction=1.0, shuffle=True, seed=1)


CASES = {
    "plain": (),
    "contexts": ("--context", "device"),
    "strata": ("--stratify", "segment"),
    "days": ("--timestamp", "day", "--period", "day"),
    "bins": ("--position-bins", "1,2,4"),
    "the first positions": ("--max-position", 3),
    "arms": ("--arm", "segment"),
    "randomised": ("--randomized-where", "policy=random", "--method", "randomized"),
    "joint": ("--method", "joint"),
    "bootstrap": ("--bootstrap", 20),
    "decay": ("--timestamp", "day", "--decay", 0.5),
}


@pytest.mark.parametrize(("ending", "case"), [*(("parquet", case) for case in CASES), ("csv", next(iter(CASES)))])
@pytest.mark.slow
def test_estimates_equal_those_of_the_log_to_the_last_digit(
    posbias: Posbias, tmp_path: Path, log: pl.DataFrame, sums: pl.DataFrame, ending: str, case: str
) -> None:
    write = {"parquet": pl.DataFrame.write_parquet, "csv": pl.DataFrame.write_csv}[ending]
    write(log.drop("session"), tmp_path / f"log.{ending}")
    write(sums, tmp_path / f"sums.{ending}")

    words = (*CASES[case], *(() if "--timestamp" in CASES[case] else NO_TIMES))
    of_log = posbias("fit", tmp_path / f"log.{ending}", *words)
    of_sums = posbias("fit", tmp_path / f"sums.{ending}", *SUMS, *words)

    assert of_sums.propensities.equals(of_log.propensities)
    assert of_sums.attractiveness.equals(of_log.attractiveness)
    for section in ("totals", "counted", "conclusion"):
        assert of_sums.manifest[section] == of_log.manifest[section]
    estimates = [output.manifest["estimate"] for output in (of_sums, of_log)]
    for estimate in estimates:
        estimate.pop("placed_at_random", None)  # a correlation, whose last digit varies from run to run
        estimate.pop("period")  # of a log, also by the order of its rows
    assert estimates[0] == estimates[1]


def test_sessions_of_the_log_change_nothing_of_what_is_counted(
    posbias: Posbias, tmp_path: Path, log: pl.DataFrame, sums: pl.DataFrame
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    sums.write_parquet(tmp_path / "sums.parquet")

    of_sums = posbias("collect", tmp_path / "sums.parquet", *SUMS, *NO_TIMES).statistics

    assert of_sums.equals(posbias("collect", tmp_path / "log.parquet", *NO_TIMES).statistics)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["pointwise", "judgments"])
def test_training_files_of_run_and_weight_equal_those_of_the_log(
    posbias: Posbias, tmp_path: Path, log: pl.DataFrame, sums: pl.DataFrame, layout: str
) -> None:
    log.drop("session").write_parquet(tmp_path / "log.parquet")
    sums.write_parquet(tmp_path / "sums.parquet")
    of_log = posbias("run", tmp_path / "log.parquet", *NO_TIMES, "--layout", layout)

    ran = posbias("run", tmp_path / "sums.parquet", *SUMS, *NO_TIMES, "--layout", layout)
    propensities = ("--propensities", ran.folder)
    weighted = posbias("weight", tmp_path / "sums.parquet", *SUMS, *propensities, "--layout", layout)

    expected = rows(of_log.folder)
    assert expected.height
    assert rows(ran.folder).equals(expected)
    assert rows(weighted.folder).equals(expected)


def rows(folder: Path) -> pl.DataFrame:
    """The training rows of a result."""
    return pl.read_parquet(sorted((folder / "training").rglob("*.parquet")))


@pytest.mark.slow
def test_parts_of_sums_add_up_also_with_the_log_itself(
    posbias: Posbias, tmp_path: Path, log: pl.DataFrame, sums: pl.DataFrame
) -> None:
    """A table of each day, or a store of sums beside one of a log: the same statistics."""
    log.write_parquet(tmp_path / "log.parquet")
    first, second = (log["day"].unique().sort().to_list())[:2]
    for day in (first, second):
        sums.filter(pl.col("day") == day).write_parquet(tmp_path / f"sums-{day}.parquet")
    log.filter(pl.col("day") == first).write_parquet(tmp_path / "first.parquet")
    whole = posbias("fit", tmp_path / "log.parquet", *NO_TIMES)

    assert posbias("fit", tmp_path / "sums-*.parquet", *SUMS, *NO_TIMES).propensities.equals(whole.propensities)
    of_log = posbias("collect", tmp_path / "first.parquet", *NO_TIMES)
    of_sums = posbias("collect", tmp_path / f"sums-{second}.parquet", *SUMS, *NO_TIMES)
    merged = posbias("fit", of_log.folder, of_sums.folder)
    assert merged.propensities.equals(whole.propensities)


@pytest.mark.slow
def test_a_table_in_several_buckets_gives_the_same(
    posbias: Posbias, tmp_path: Path, sums: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums.write_parquet(tmp_path / "sums.parquet")
    whole = posbias("collect", tmp_path / "sums.parquet", *SUMS)
    monkeypatch.setattr("posbias.io.engines.local._ROWS_THAT_STAY_IN_CACHE", 100)
    monkeypatch.setattr("posbias.io.engines.local._MOST_ROWS_AT_ONCE", 30)

    split = posbias("collect", tmp_path / "sums.parquet", *SUMS)

    assert split.statistics.equals(whole.statistics)


TABLE = pl.DataFrame({"query": "q", "doc": ["a", "b", "a", "b"], "position": [1, 2, 2, 1]})


def test_rows_that_add_up_nothing_are_left_out_and_counted(run_in_process: Run, tmp_path: Path) -> None:
    TABLE.with_columns(impressions=pl.Series([5, 0, 3, 2]), clicks=1 - TABLE["position"] // 2).write_parquet(
        tmp_path / "sums.parquet"
    )

    done = run_in_process("collect", "sums.parquet", *SUMS, "-o", "out", code=0)

    assert "4 read, 1 left out (1 because the row adds up no impression)" in done.stderr
    assert "10 impressions and" in done.stderr


@pytest.mark.parametrize(
    ("words", "says", "further"),
    [
        (
            "--click-counts --weight-column impressions",
            "Use --impressions impressions --click clicks, instead of --click-counts",
            "and --weight-column",
        ),
        ("--click-counts", "Use --impressions impressions --click clicks, instead of --click-counts", ""),
        (
            "--weight-column impressions",
            "If a row adds up impressions and clicks, use --impressions impressions --click clicks",
            "instead of --weight-column",
        ),
        ("", "If a row adds up impressions and clicks, use --impressions impressions --click clicks", ""),
    ],
)
def test_sums_that_are_read_as_clicks_are_refused_with_the_right_option(
    refused: Refused, tmp_path: Path, sums: pl.DataFrame, words: str, says: str, further: str
) -> None:
    sums.write_csv(tmp_path / "sums.csv")

    stderr = refused("fit", "sums.csv", *words.split())

    assert says in stderr
    assert further in stderr
    assert ("--weight-column" in stderr) == bool(further)


def test_weights_and_counts_of_clicks_of_a_log_are_no_sums(
    run_in_process: Run, tmp_path: Path, log: pl.DataFrame
) -> None:
    """Weights of a sample, or clicks that were repeated, in a log of impressions with or without pages."""
    counts = log.with_columns(click=pl.col("click").cast(pl.Int64) * 2, times=10, views=1 + pl.col("doc") % 2)
    counts.write_parquet(tmp_path / "pages.parquet")
    counts.drop("session").write_parquet(tmp_path / "rows.parquet")

    for number, name in enumerate(("pages", "rows")):
        words = (f"{name}.parquet", "--click-counts", "--weight-column", "times", "-o", f"out-{number}")
        run_in_process("collect", *words, code=0)


def test_a_number_of_impressions_that_nobody_named_is_said(run_in_process: Run, tmp_path: Path) -> None:
    TABLE.with_columns(impressions=5, clicks=1).write_parquet(tmp_path / "sums.parquet")

    done = run_in_process("collect", "sums.parquet", "-o", "out", "--quiet", code=0)

    assert (
        "'impressions' was not used. If a row adds up impressions, name it: --impressions impressions." in done.stderr
    )


def test_sums_without_any_impression_that_is_not_clicked_are_clicks_only(run_in_process: Run, tmp_path: Path) -> None:
    rows = pl.DataFrame({"query": 1, "doc": range(40), "position": [1, 2, 3, 4] * 10, "clicks": 9, "shown": 9})
    rows.write_parquet(tmp_path / "sums.parquet")
    rows.with_columns(shown=30).write_parquet(tmp_path / "whole.parquet")
    refused = run_in_process(
        "collect", "sums.parquet", "--impressions", "shown", "--click", "clicks", "-o", "no", code=2
    )
    run_in_process("collect", "whole.parquet", "--impressions", "shown", "--click", "clicks", "-o", "yes", code=0)

    assert "360 of 360 impressions are clicked" in refused.stderr


def test_an_empty_number_of_clicks_is_none_where_null_click_says_so(run_in_process: Run, tmp_path: Path) -> None:
    rows = pl.DataFrame({"query": 1, "doc": range(40), "position": [1, 2, 3, 4] * 10, "clicks": 3, "shown": 9})
    empty = rows.with_columns(clicks=pl.when(pl.col("doc") % 2 == 0).then("clicks"))
    empty.write_csv(tmp_path / "sums.csv")
    words = ("collect", "sums.csv", "--impressions", "shown", "--click", "clicks", "-o", "out")
    run_in_process(*words, code=2)
    done = run_in_process(*words, "--null-click", "0", code=0)

    assert "360 impressions and 60 clicks" in done.stderr
