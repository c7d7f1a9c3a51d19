"""The Spark engine gives what the Polars engine gives: run for real, in local mode."""

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
from command_results import Output, Posbias
from log_faults import REFUSED
from log_forms import FORMS, small_log, write
from polars.testing import assert_frame_equal
from small_logs import log_in_order

import posbias as posbias_in_python
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.errors import EngineError, PosbiasError
from posbias.core.log.impressions import ReadingRules
from posbias.core.models import get_model
from posbias.core.schema import Roles
from posbias.core.simulation.simulate import SimulationOptions, simulate
from posbias.io.engines.spark import SparkEngine, SparkParts
from posbias.io.engines.spark_session import check_java
from posbias.io.log.click_log import LogRequest, open_log

pytestmark = pytest.mark.slow

THETA_TOLERANCE = 1e-9
MASTER = "local[2]"
SPARK = ("--engine", "spark", "--master", MASTER)
DROP = ("--on-bad-rows", "drop", "--max-bad-rows", 0.5)
RunPosbias = Callable[..., CompletedProcess[str]]
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


Both = Callable[..., tuple[Output, Output]]


@pytest.fixture(scope="module", autouse=True)
def session(tmp_path_factory: pytest.TempPathFactory) -> Generator[Any]:
    """Hold one Spark session of somebody else for all tests, or skip them where Spark cannot run."""
    pytest.importorskip("pyspark", reason="PySpark is not installed")
    try:
        check_java()
    except EngineError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JDK_JAVA_OPTIONS", FAST_START)
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        place = str(tmp_path_factory.mktemp("spark"))
        settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "3", "spark.local.dir": place}
        settings |= {"spark.ui.showConsoleProgress": "false", "spark.sql.warehouse.dir": f"{place}/warehouse"}
        opened = import_module("pyspark.sql").SparkSession.builder.master(MASTER).config(map=settings).getOrCreate()
        yield opened
        opened.stop()


@pytest.fixture
def both(posbias: Posbias) -> Both:
    """Return a function that runs a command by each engine."""

    def run(command: str, *arguments: object) -> tuple[Output, Output]:
        return posbias(command, *arguments), posbias(command, *arguments, *SPARK)

    return run


@pytest.fixture
def days(log: pl.DataFrame, tmp_path: Path) -> list[Path]:
    """Return a log of two days in files of several formats, with a device, a segment and weights."""
    frame = log.with_columns(
        pl.when(pl.col("session") % 2 == 0).then(pl.lit("tablet")).otherwise(pl.lit("phone")).alias("user.device"),
        segment=(pl.col("session") // 2 % 2).cast(pl.UInt8),
        weight=pl.when(pl.col("session") % 3 == 0).then(2.5).otherwise(1.0),
        day=pl.date(2026, 1, 5) + pl.duration(days=pl.col("session") % 2),
        price=pl.lit(1.5),
    )
    first, second = (frame.filter(pl.col("session") % 2 == share) for share in (0, 1))
    paths = [tmp_path / "first.parquet", tmp_path / "second.parquet"]
    first.write_parquet(paths[0])
    second.write_parquet(paths[1])
    return paths


@pytest.fixture
def features(days: list[Path], tmp_path: Path) -> Path:
    """Return a table of a number and a text by document."""
    docs = pl.concat(pl.read_parquet(day, columns=["doc"]) for day in days)["doc"].unique().sort()
    path = tmp_path / "features.csv"
    pl.DataFrame(
        {"doc": docs, "price": range(len(docs)), "kind": [f"kind {n % 3}" for n in range(len(docs))]}
    ).write_csv(path)
    return path


def lines_of(output: Output) -> list[str]:
    """The rows of a file of LightGBM, in any order."""
    return sorted((output.folder / "training" / "train.tsv").read_text(encoding="utf-8").splitlines())


def assert_same(spark: pl.DataFrame, polars: pl.DataFrame, keys: Sequence[str]) -> None:
    assert spark.schema == polars.schema
    assert_frame_equal(spark.sort(keys), polars.sort(keys), abs_tol=THETA_TOLERANCE, rel_tol=THETA_TOLERANCE)


SECTIONS = ("counted", "sources", "rows", "totals")


def assert_same_result(spark: Output, polars: Output, sections: Sequence[str] = SECTIONS) -> None:
    assert spark.propensities.height
    cells = [name for name in ("user.device", "position", "previous_click") if name in polars.propensities.columns]
    assert_same(spark.propensities, polars.propensities, cells)
    pairs = [name for name in polars.attractiveness.columns if name in ("query", "doc", "user.device")]
    assert_same(spark.attractiveness, polars.attractiveness, pairs)
    for section in sections:
        assert spark.manifest[section] == polars.manifest[section], section


def assert_same_statistics(spark: Output, polars: Output) -> None:
    found, expected = (pl.read_parquet(output.folder / "part-*.parquet") for output in (spark, polars))
    keys = expected.columns[:-2]
    summed = [frame.group_by(keys).agg(pl.col("impressions", "clicks").sum()) for frame in (found, expected)]
    assert_same(summed[0], summed[1], keys)
    for name in ("impressions", "clicks"):
        assert spark.manifest["statistics"][name] == polars.manifest["statistics"][name]


@pytest.mark.parametrize(
    "options",
    [
        ("--layout", "clicked-group", "--format", "lightgbm", "--features", "FEATURES", "--validation", "0.3"),
        ("--model", "ubm", "--cluster", "session", "--layout", "session"),
        ("--context", "user.device", "--weight-column", "weight", "--layout-options", "negatives=posterior"),
        ("--stratify", "segment", "--timestamp", "day", "--position-bins", "1,2,4", "--layout", "pairs"),
        ("--arm", "segment", "--timestamp", "day"),
        ("--cell", "user.device", "--layout", "session"),
    ],
    ids=["pbm", "ubm", "contexts and weights", "strata and days", "arms", "cells"],
)
def test_run_gives_what_it_gives_on_polars(
    both: Both, days: list[Path], features: Path, options: Sequence[str]
) -> None:
    polars, spark = both("run", *days, *(str(features) if word == "FEATURES" else word for word in options))
    assert_same_result(spark, polars)
    if "--arm" in options:
        tests: list[dict[str, Any]] = [output.manifest["estimate"]["arms"] for output in (spark, polars)]
        flat = [{name: value for name, value in test.items() if name != "levels"} | test["levels"] for test in tests]
        numbers = [{name: value for name, value in test.items() if value is not None} for test in flat]
        assert flat[0].keys() == flat[1].keys()
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-6)
        assert numbers[0]["p_value"] > 0
    found, expected = (output.training.drop("group", strict=False) for output in (spark, polars))
    assert_same(found, expected, expected.columns)
    if "lightgbm" in options:
        assert lines_of(spark) == lines_of(polars)
    assert spark.manifest["training_sets"] == polars.manifest["training_sets"]
    weights = [{k: v for k, v in of.manifest["weights"].items() if v is not None} for of in (spark, polars)]
    assert weights[0] == pytest.approx(weights[1], rel=THETA_TOLERANCE)


FURTHER = {
    "two tables": "nobody,0",
    **dict.fromkeys(("lists", "clicked ids", "clicks behind ids, without queries", "text of another dialect")),
    "times whose month is first": ",,,,,",
    **{fault.form: fault.line for fault in REFUSED},
}
"""Forms of each reader, with a line at the end of the last file that is left out."""


@pytest.mark.parametrize("form", FURTHER)
def test_a_log_of_any_form_is_counted_as_on_polars(both: Both, tmp_path: Path, form: str) -> None:
    files = write(tmp_path, FORMS[form].write(small_log()), "csv")
    with files[-1].open("ab") as file:
        file.write(f"{FURTHER[form]}\n".encode() if FURTHER[form] else b"")
    pages = "sums" not in form and not FORMS[form].no_query

    polars, spark = both("collect", *FORMS[form].words(files), *DROP, "--model", "ubm" if pages else "pbm")

    assert polars.manifest["statistics"]["impressions"] >= 1_190
    assert_same_statistics(spark, polars)
    assert spark.manifest["counted"] == polars.manifest["counted"]
    assert spark.manifest["rows"] == polars.manifest["rows"]


def test_a_grid_without_a_position_that_shows_documents_twice(both: Both, log: pl.DataFrame, tmp_path: Path) -> None:
    at, first = pl.col("position") - 1, pl.col("doc").first().over("session", order_by="position")
    twice = (pl.col("session") % 5 == 0) & (pl.col("position") == 4)
    grid = log.with_columns(
        pl.when(twice).then(first).otherwise("doc").alias("doc"), row=at // 2 + 1, column=at % 2 + 1
    )
    grid.drop("position").write_parquet(tmp_path / "grid.parquet")

    words = ("--cell", "row", "--cell", "column", "--duplicate-docs", "first")
    polars, spark = both("collect", tmp_path / "grid.parquet", *words)

    assert_same_statistics(spark, polars)
    assert polars.manifest["rows"]["rejected"] == {"the document stands further up on the page": 80}


def test_the_order_of_rows_is_that_of_the_files(both: Both, tmp_path: Path) -> None:
    learns = log_in_order(7, learns=3.0)
    for number in range(2):
        learns.filter(pl.col("session") // 1200 == number).write_parquet(tmp_path / f"log-{number}.parquet")
    tests = [
        one.manifest["estimate"]["period"]["looks"][0]["feedback"] for one in both("fit", tmp_path / "log-*.parquet")
    ]
    order_of_polars, order_of_spark = (
        one.manifest["segments"][0]["order"] for one in both("collect", tmp_path / "log-*.parquet")
    )

    assert tests[1]["rejected"]
    assert tests[1] == pytest.approx(tests[0], rel=1e-6)
    assert order_of_spark["pages"] == order_of_polars["pages"]
    assert order_of_spark["clicks"] == order_of_polars["clicks"]


def test_keys_of_types_that_spark_lacks_come_back_as_they_were(both: Both, log: pl.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    frame = log.with_columns(
        query=pl.col("query").cast(pl.Categorical),
        doc=pl.col("doc").cast(pl.UInt64) + 2**63,
        second=pl.col("doc").cast(pl.Datetime("ns", "UTC")),
        context=pl.time(pl.col("session") % 2),
        Context=pl.when(pl.col("session") % 2 == 0).then(pl.lit("a")),
    )
    frame.write_parquet(path)
    keys = (
        "--doc",
        "doc",
        "--doc",
        "second",
        "--context",
        "context",
        "--stratify",
        "Context",
        "--randomized-where",
        "Context=a@1,2",
    )
    polars, spark = both("collect", path, *keys)
    assert_same_statistics(spark, polars)


def test_statistics_are_those_of_polars_and_merge(posbias: Posbias, days: list[Path]) -> None:
    counting = ("--model", "ubm", "--max-position", 3)
    polars = posbias("collect", *days, *counting)
    by_spark = [posbias("collect", day, *counting, *SPARK).folder for day in days]
    for folder in by_spark:
        parts = sorted(folder.glob("part-*.parquet"))
        assert len(parts) > 1
        assert len({pl.read_parquet_metadata(part)["posbias"] for part in parts}) == 1
    merged = posbias("collect", *by_spark, *SPARK)
    assert_same_statistics(merged, polars)
    segments = merged.manifest["segments"]
    assert {name for segment in segments for name in segment["sources"]} == {*polars.manifest["segments"][0]["sources"]}
    assert_same_result(posbias("fit", by_spark[0], *SPARK), posbias("fit", by_spark[0]))


def test_weight_takes_a_fit_of_either_engine(both: Both, posbias: Posbias, days: list[Path]) -> None:
    fitted = posbias("fit", *days, *SPARK, "--csv")
    assert pl.read_csv(fitted.folder / "attractiveness.csv").height == fitted.attractiveness.height
    polars, spark = both("weight", *days, "--propensities", fitted.folder, "--format", "csv")
    rows = [pl.read_csv(output.folder / "training" / "rows" / "part-*.csv") for output in (polars, spark)]
    assert_same(rows[1], rows[0], ["query", "doc", "label"])


def test_predictions_are_those_of_polars_from_logs_and_from_statistics(
    both: Both, posbias: Posbias, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_parquet(tmp_path / "log.parquet")
    log.select("query", "doc").unique().with_columns(score=pl.col("doc").hash(1) % 100).write_parquet(
        tmp_path / "s.parquet"
    )
    fit, statistics = (posbias(name, tmp_path / "log.parquet").folder for name in ("fit", "collect"))
    of_log = both("predict", tmp_path / "log.parquet", "--propensities", fit, "--scores", tmp_path / "s.parquet")
    of_statistics = both("predict", statistics, "--propensities", fit, "--scores", tmp_path / "s.parquet")
    first, other = (pl.read_parquet(out.folder / "predictions.parquet") for out in of_log)
    assert_frame_equal(other, first, rel_tol=1e-9, abs_tol=1e-12)
    by_position = first.select(~pl.selectors.starts_with("ubm"))
    for out in of_statistics:
        other = pl.read_parquet(out.folder / "predictions.parquet").select(by_position.columns)
        assert_frame_equal(other, by_position, rel_tol=1e-9, abs_tol=1e-12)


def test_faulty_pages_that_a_sample_shows_are_left_out_everywhere(
    both: Both, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("posbias.io.engines.engine.SAMPLED_ROWS", log.height // 4)
    repeated = log.with_columns(doc=pl.when(pl.col("session") % 9 == 0).then(pl.col("doc").min()).otherwise("doc"))
    several = pl.when((pl.col("session") % 9 == 1) & (pl.col("position") == 1)).then(pl.lit("00")).otherwise("query")
    repeated.with_columns(query=several).write_parquet(tmp_path / "log.parquet")
    polars, spark = both("fit", tmp_path / "log.parquet", "--on-bad-rows", "drop", "--max-bad-rows", 0.5)
    assert len(polars.manifest["rows"]["rejected"]) == 2
    assert_same_result(spark, polars)


FAULTY = {
    "a row": pl.when(pl.int_range(pl.len()) < 2).then(0).otherwise("position").cast(pl.Int32).alias("position"),
    "a page": pl.when(pl.int_range(pl.len()) == 0).then(pl.lit("other")).otherwise("query").alias("query"),
    "nothing left": pl.col("position") + 5,
}
CLICKED = pl.col("click") == 1
KEPT = {
    "clicks only": CLICKED,
    "down to the last click": pl.col("position") <= pl.col("position").filter(CLICKED).max().over("session"),
}


@pytest.mark.parametrize("fault", [*FAULTY, *KEPT])
def test_faults_are_told_in_the_words_of_polars(
    fault: str, run_in_process: RunPosbias, log: pl.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "log.parquet"
    (log.filter(KEPT[fault]) if fault in KEPT else log.with_columns(FAULTY[fault])).write_parquet(path)
    arguments = ("fit", path, "--max-position", 4, "-o", tmp_path / "result")
    polars, spark = run_in_process(*arguments), run_in_process(*arguments, *SPARK)
    assert (polars.returncode, spark.returncode) == (2, 2)
    assert spark.stderr == polars.stderr
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("fault", "bad_rows", "code"),
    [(None, "error", 0), ("a row", "error", 2), ("a page", "drop", 0), ("a page", "error", 2)],
)
def test_spark_keeps_no_frame_when_a_command_is_done(
    session: Any,  # noqa: ANN401
    run_in_process: RunPosbias,
    log: pl.DataFrame,
    tmp_path: Path,
    fault: str | None,
    bad_rows: str,
    code: int,
) -> None:
    shown = log if fault is None else log.with_columns(FAULTY[fault])
    shown.drop("click").write_parquet(tmp_path / "log.parquet")
    log.filter(pl.col("click") == 1).select("session", "doc").write_parquet(tmp_path / "clicks.parquet")
    reading = ("--clicks", "clicks.parquet", "--on-bad-rows", bad_rows, "--max-position", 4)

    done = run_in_process("fit", "log.parquet", "-o", "result", *reading, *SPARK)

    assert done.returncode == code, done.stderr
    assert session.sparkContext._jsc.getPersistentRDDs().size() == 0


@pytest.mark.parametrize("keep_sessions", [False, True], ids=["pbm", "ubm"])
def test_a_query_that_holds_a_log_is_spread_over_the_workers_until_it_is_counted(
    session: Any,  # noqa: ANN401
    log: pl.DataFrame,
    tmp_path: Path,
    *,
    keep_sessions: bool,
) -> None:
    log.with_columns(query=pl.lit("home")).write_parquet(tmp_path / "log.parquet")
    opened = open_log(LogRequest((str(tmp_path / "log.parquet"),), Roles(), ReadingRules(1)))
    with closing(SparkEngine(1 << 30, tmp_path, session=session)) as engine:
        plan = StatisticsPlan(get_model("ubm" if keep_sessions else "pbm"))
        read = engine.read(opened, plan, keep_sessions=keep_sessions)
        counted = read.statistics(plan)
        pieces, buckets, counts = map(_rows_by_partition, (read.pieces, read.buckets, counted))
    assert sum(pieces) == sum(buckets) == log.height
    assert max(pieces) < 0.7 * log.height
    assert max(buckets) == log.height
    assert sum(counts) < log.height / 4


def _rows_by_partition(parts: SparkParts) -> list[int]:
    functions: Any = import_module("pyspark.sql.functions")
    return [row["count"] for row in parts.frame.groupBy(functions.spark_partition_id()).count().collect()]


def settings_of(session: Any) -> dict[str, str]:  # noqa: ANN401
    return dict(session.conf.getAll)


@pytest.fixture
def tables(session: Any, log: pl.DataFrame, tmp_path: Path) -> Path:  # noqa: ANN401
    """Return a log in a file, whose rows are also in two views of the session; one row in each is faulty."""
    position = pl.when(pl.col("session").is_in([4, 7]) & (pl.col("position") == 1)).then(0).otherwise("position")
    shown = log.with_columns(
        position=position, shown_at=pl.datetime(2026, 1, 5) + pl.duration(hours="session"), unused=pl.lit(1)
    )
    shown.write_parquet(tmp_path / "log.parquet")
    frame = session.read.parquet(str(tmp_path / "log.parquet"))
    for share in (0, 1):
        frame.filter(f"session % 2 = {share}").createOrReplaceTempView(f"clicks_{share}")
    session.sql("SELECT '1' AS query, 'd' AS doc, 1 AS position, 0 AS Click, 1 AS click").createOrReplaceTempView(
        "alike"
    )
    return tmp_path / "log.parquet"


@pytest.mark.parametrize(
    "words",
    [
        ("--table", "clicks_0", "--table", "clicks_1"),
        ("--sql", "SELECT * FROM clicks_0 UNION ALL SELECT * FROM clicks_1 -- both\n;"),
    ],
    ids=["tables", "query"],
)
def test_tables_of_the_session_give_what_their_rows_in_a_file_give(
    session: Any,  # noqa: ANN401
    posbias: Posbias,
    tables: Path,
    words: Sequence[str],
) -> None:
    before = settings_of(session)
    options = ("--model", "ubm", "--timestamp", "shown_at", "--on-bad-rows", "drop")
    polars, spark = posbias("fit", tables, *options), posbias("fit", *words, *options, *SPARK)
    assert_same_result(spark, polars, ("counted", "rows", "totals"))
    assert len(polars.manifest["rows"]["rejected"]) == 2
    assert f"spark: the session that was running ({MASTER}" in " ".join(spark.manifest["facts"])
    assert settings_of(session) == before
    assert session.range(3).count() == 3


@pytest.mark.parametrize("words", [("--table", "shuffled"), ("--sql", "SELECT * FROM shuffled")])
def test_the_rows_of_a_table_are_counted_as_one_day_alone_in_whatever_order_they_come(
    session: Any,  # noqa: ANN401
    run_in_process: RunPosbias,
    tables: Path,
    words: Sequence[str],
) -> None:
    rows = session.read.parquet(str(tables)).filter("position > 0")

    def add(day: str, order: str, code: int = 0) -> str:
        rows.repartition(4, order).sort(order).createOrReplaceTempView("shuffled")
        added = run_in_process("collect", *words, *SPARK, "--date", day, "--into", "store")
        assert added.returncode == code, added.stderr
        return added.stderr

    add("2026-01-05", "session")
    assert "as 2026-01-05 already" in add("2026-01-06", "doc", code=2)
    assert "counted again, and replaced" in add("2026-01-05", "doc")
    rows = rows.filter("session > 5")
    add("2026-01-06", "doc")


@pytest.mark.filterwarnings("ignore:A few queries dominate", "ignore:Nothing in this log shows whether the ranker")
def test_a_frame_of_spark_is_a_log_in_python(session: Any, tables: Path) -> None:  # noqa: ANN401
    views = session.catalog.listTables()
    frame = session.read.parquet(str(tables)).filter("session % 2 = 0")
    fit = posbias_in_python.fit(frame, engine="spark", on_bad_rows="drop")
    here = posbias_in_python.fit(frame.toArrow(), on_bad_rows="drop")
    assert_same(fit.propensities, here.propensities, ["position"])
    assert fit.manifest["rows"]["rejected"] == here.manifest["rows"]["rejected"]
    with pytest.raises(PosbiasError, match="the frame row"):
        posbias_in_python.fit(frame, engine="spark")
    assert session.catalog.listTables() == views


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--table nowhere.clicks --engine spark", "--table nowhere.clicks: [TABLE_OR_VIEW_NOT_FOUND]"),
        ("log.parquet --table clicks_0 --engine spark", "a log is in tables or in files"),
        ("--table clicks_0 --engine spark --doc sku", "table clicks_0: there is no column 'sku'"),
        ("--table clicks_0", "only --engine spark reads tables"),
        ("--table alike --engine spark", "--table alike: columns are called alike: 'Click' and 'click'"),
        ("--sql DROP_TABLE_x --engine spark", "--sql: [TABLE_OR_VIEW_NOT_FOUND]"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(
    run_in_process: RunPosbias, tables: Path, words: str, says: str
) -> None:
    done = run_in_process("fit", *words.split(), "-o", "result", code=2)
    assert says in " ".join(done.stderr.split())
    assert [file.name for file in tables.parent.iterdir()] == [tables.name]


def test_a_table_is_checked_and_rehearsed_without_a_file(run_in_process: RunPosbias, tables: Path) -> None:
    words = ("--table", "clicks_0", *SPARK)
    checked = json.loads(run_in_process("check", *words, "--json").stdout)
    assert {"--table", "clicks_0"} < {*checked["command"]}
    assert "table clicks_0" not in checked["command"]
    run_in_process("fit", *words, "-o", "result", "--dry-run", code=0)
    assert [file.name for file in tables.parent.iterdir()] == [tables.name]


@pytest.mark.parametrize(
    "words", ["--duplicate-docs first", "--duplicate-docs keep", "--duplicate-docs first --model ubm"]
)
def test_spark_counts_a_document_twice_on_a_page_as_is_said(
    both: Both, log: pl.DataFrame, tmp_path: Path, words: str
) -> None:
    deepest = pl.col("position") == pl.col("position").max().over("session")
    again = (pl.col("session") % 9 == 0) & deepest
    top = pl.col("doc").sort_by("position").first().over("session")
    log.with_columns(doc=pl.when(again).then(top).otherwise("doc")).write_parquet(tmp_path / "log.parquet")
    polars, spark = both("fit", tmp_path / "log.parquet", *words.split())
    assert bool(polars.manifest["rows"]["rejected"]) is ("first" in words)
    assert_same_result(spark, polars)


def test_a_log_is_checked_on_a_cluster_as_it_is_here(
    days: list[Path], run_in_process: RunPosbias, tmp_path: Path
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    here, there = (json.loads(run_in_process("check", *days, *engine, "--json").stdout) for engine in ((), SPARK))

    assert there["command"] == [*here["command"], *SPARK]
    for part in ("carries_estimate", "rows", "totals", "queries", "pages", "movement", "warnings"):
        assert there[part] == here[part]
    errors = [[cell["std_error"] for cell in found["models"]["ubm"]["cells"]] for found in (there, here)]
    assert errors[0] == pytest.approx(errors[1], nan_ok=True)
    assert {path.name for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("week.parquet --timestamp date", 1),
        ("even.parquet odd.parquet", 1),
        ("pages.parquet", 1),
        ("store new --gate 0.5", 2),
    ],
)
def test_odd_days_files_and_pages_are_found(run_in_process: RunPosbias, tmp_path: Path, words: str, code: int) -> None:
    options = SimulationOptions("pbm", 7_000, 50, 8, 5, 0.3, attractiveness_shape=(2.0, 2.0), days=7, seed=5)
    log = simulate(options).log.with_columns(date=pl.col("timestamp").cast(pl.Date)).drop("timestamp")
    day, page, shifted = pl.col("date"), pl.col("session"), pl.col("position") + 1
    last = log["date"].max()
    odd = pl.when(day == log["date"].min() + timedelta(days=3)).then(shifted).otherwise("position")  # type: ignore[reportOptionalOperand]
    log.with_columns(position=odd).write_parquet(tmp_path / "week.parquet")
    log.filter(page % 2 == 0).drop("date").write_parquet(tmp_path / "even.parquet")
    log.filter(page % 2 == 1).drop("date").with_columns(shifted).write_parquet(tmp_path / "odd.parquet")
    some = pl.when(page % 5 == 0).then(shifted).otherwise("position")
    log.drop("date").with_columns(position=some).write_parquet(tmp_path / "pages.parquet")
    if "store" in words:
        log.filter(day < last).write_parquet(tmp_path / "days.parquet")
        log.filter(day == last).with_columns(shifted).write_parquet(tmp_path / "last.parquet")
        for name, source in (("store", "days.parquet"), ("new", "last.parquet")):
            run_in_process("collect", source, "--timestamp", "date", "-o", name, code=0)
    said: list[tuple[int, object]] = []
    for number, engine in enumerate(((), SPARK)):
        done = run_in_process("collect", *words.split(), *engine, "--quiet", "-o", str(number))
        warnings = Output(tmp_path / str(number)).manifest["warnings"] if done.returncode < 2 else done.stderr
        said.append((done.returncode, warnings))
    assert said[0] == said[1]
    assert said[0][0] == code
