"""Counts that a query makes in a warehouse: they equal those of `collect`, and give the same fits."""

import importlib.util
import json
import math
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from command_results import Output, Posbias, Refused, Run
from patience import ended
from typer.testing import CliRunner

from posbias.cli.main import app
from posbias.core.simulation.simulate import SimulationOptions, simulate

COLUMNS = ("--session", "page", "--query", "search term", "--doc", "sku", "--position", "rank", "--click", "clicked")
DROP = ("--on-bad-rows", "drop", "--max-bad-rows", 0.5)

Query = Callable[..., pl.DataFrame]
"""Runs the query of `posbias sql` with options, in a dialect, and returns its result."""


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log with every fault of rows and pages, empty contexts, and ids with quotes and umlauts."""
    options = SimulationOptions(*("ubm", 900, 12, 6, 5), contexts=(1.0, 0.5), days=3, seed=4)
    drawn = simulate(options).log.sort("session", "position")
    drawn = drawn.select(
        page=pl.format("p{}", "session"),
        **{"search term": pl.format("q{}", "query")},
        sku=pl.when(pl.col("query") == pl.col("query").min())
        .then(pl.format("Ünï 'q' \"x\" {}", "doc"))
        .otherwise(pl.format("d{}", "doc")),
        rank=pl.col("position").cast(pl.Float64),
        clicked=pl.col("click").cast(pl.Int32),
        device=pl.when(pl.col("session") % 7 > 0).then(pl.format("device {}", "device")),
        time=pl.col("timestamp").dt.replace_time_zone(None),
        user=pl.format("u{}", pl.col("session") % 31),
        list=pl.when(pl.col("session") % 5 > 0).then(pl.format("list {}", pl.col("position") % 2)),
        arm=pl.when(pl.col("session") % 3 == 0).then(pl.lit("swap")).otherwise(pl.lit("usual")),
    )
    pages = drawn["page"].unique(maintain_order=True)
    at, later = pl.col("rank") == 2, pl.col("rank") == 5
    faults: list[tuple[str, pl.Expr, object]] = [
        ("page", at, None),
        ("search term", at, None),
        ("sku", at, None),
        ("rank", at, None),
        ("rank", at, 0.0),
        ("rank", at, 2.5),
        ("rank", at, 3e9),
        ("clicked", at, None),
        ("clicked", at, 2),
        ("time", at, None),
        ("search term", later, "another"),
        ("sku", pl.lit(value=True), "the same"),
        ("rank", later, 4.0),
    ]
    for number, (name, where, value) in enumerate(faults):
        is_there = where & (pl.col("page") == pages[10 * number])
        drawn = drawn.with_columns(pl.when(is_there).then(pl.lit(value)).otherwise(name).alias(name))
    return drawn.with_columns(
        pl.when(pl.col("page") == pages[1]).then(pl.lit(pages[2])).otherwise("page").alias("page")
    )


@pytest.fixture(scope="module")
def file(log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the log as a file."""
    path = tmp_path_factory.mktemp("warehouse") / "log.parquet"
    log.write_parquet(path)
    return path


def on_duckdb(text: str, log: Path) -> pl.DataFrame:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW shown AS FROM read_parquet('{log}')")
        connection.execute(f"COPY ({text}) TO '{log}.counts' (FORMAT parquet)")
    return pl.read_parquet(f"{log}.counts")


def on_sqlite(text: str, log: Path) -> pl.DataFrame:
    rows = pl.read_parquet(log).with_columns(pl.col("time").cast(pl.String))
    with sqlite3.connect(":memory:") as connection:
        names = ", ".join(f'"{name}"' for name in rows.columns)
        connection.execute(f"CREATE TABLE shown ({names})")
        values = ", ".join("?" * rows.width)
        connection.executemany(f"INSERT INTO shown VALUES ({values})", rows.iter_rows())  # noqa: S608 - of marks alone
        found = connection.execute(text)
        names = [name for name, *_ in found.description]
        return pl.DataFrame(found.fetchall(), schema=names, orient="row", infer_schema_length=None)


def on_postgres(text: str, log: Path) -> pl.DataFrame:
    if shutil.which("initdb") is None or shutil.which("psql") is None:
        pytest.skip("Postgres is not installed")
    kinds = {"String": "text", "Float64": "float8", "Int32": "int"}
    rows, owner = pl.read_parquet(log), "postgres" if os.geteuid() == 0 else None
    columns = ", ".join(f'"{name}" {kinds.get(str(dtype), "timestamp")}' for name, dtype in rows.schema.items())
    with tempfile.TemporaryDirectory(prefix="pg", dir="/tmp") as folder:  # a socket has a short path

        def run(*words: str, text: str | None = None) -> str:
            done = ended(words, check=True, input=text, cwd=folder, user=owner)
            return done.stdout

        if owner is not None:
            shutil.chown(folder, owner)
        run("initdb", "-D", "data", "-A", "trust", "-U", "me", "--no-sync", "--no-locale")
        run("pg_ctl", "-D", "data", "-o", f"-k {folder} -c listen_addresses=", "-l", "log", "-w", "start")
        try:
            psql = ("psql", "-h", folder, "-U", "me", "-d", "postgres", "-q", "-v", "ON_ERROR_STOP=1", "-c")
            run(*psql, f"CREATE TABLE shown ({columns})")
            run(*psql, "\\copy shown FROM pstdin CSV", text=rows.write_csv(include_header=False))
            found = run(*psql, f"COPY ({text}) TO STDOUT CSV HEADER")
        finally:
            run("pg_ctl", "-D", "data", "-m", "immediate", "stop")
    return pl.read_csv(found.encode(), infer_schema=False)


def in_a_process(script: str, text: str, log: Path) -> pl.DataFrame:
    """Return what a script makes of a query, in a process of its own: what it loads changes signals and threads."""
    out = Path(f"{log}.counts.parquet")
    out.unlink(missing_ok=True)
    command = [sys.executable, "-c", script, str(log), str(out)]  # Spark leaves a directory where it runs
    done = ended(command, input=text, cwd=log.parent)
    assert done.returncode == 0, done.stderr
    return pl.read_parquet(out)


def on_clickhouse(text: str, log: Path) -> pl.DataFrame:
    if importlib.util.find_spec("chdb") is None:
        pytest.skip("chdb is not installed")
    return in_a_process(
        "import sys; from chdb.session import Session; session = Session(); log, out = sys.argv[1:]\n"
        "session.query(f\"CREATE VIEW shown AS SELECT * FROM file('{log}')\")\n"
        "result = session.query(sys.stdin.read(), 'Parquet')\n"
        "open(out, 'wb').write(result.bytes())",
        text,
        log,
    )


def on_spark(text: str, log: Path) -> pl.DataFrame:
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        pytest.skip("PySpark or Java is not installed")
    return in_a_process(
        "import sys; from pyspark.sql import SparkSession; log, out = sys.argv[1:]\n"
        "settings = {'spark.ui.enabled': 'false', 'spark.sql.shuffle.partitions': '2'}\n"
        "settings['spark.sql.codegen.wholeStage'] = 'false'\n"
        "session = SparkSession.builder.master('local[2]').config(map=settings).getOrCreate()\n"
        "session.read.parquet(log).createOrReplaceTempView('shown')\n"
        "session.sql(sys.stdin.read()).toPandas().to_parquet(out)",
        text,
        log,
    )


ENGINES = {
    "duckdb": on_duckdb,
    "sqlite": on_sqlite,
    "postgres": on_postgres,
    "clickhouse": on_clickhouse,
    "spark": on_spark,
}


@pytest.fixture
def query(run_in_process: Run, file: Path) -> Query:
    """Return what runs the query of options."""

    def run(dialect: str, *options: object, of: Path = file) -> pl.DataFrame:
        printed = run_in_process("sql", "shown", "--dialect", dialect, *COLUMNS, *options, "--quiet")
        assert (printed.returncode, printed.stderr) == (0, "")
        return ENGINES[dialect](printed.stdout, of)

    return run


PLANS: dict[str, Sequence[str]] = {
    "pbm": (),
    "ubm": ("--model", "ubm"),
    "contexts": ("--context", "device"),
    "cells": ("--cell", "list", "--cell", "device"),  # a page whose position 4 stands twice, in two lists
    "days": ("--timestamp", "time"),
    "strata and clusters": ("--stratify", "device", "--cluster-column", "user"),
    "arms": ("--arm", "device"),
    "randomised": ("--randomized-where", "arm=swap@1,2", "--randomized-where", "arm=usual"),
    "words": ("--null-click", "0", "--true", "2"),
    "two columns of a page": ("--session", "user", "--click-counts", "--position-base", "0"),
}


def log_options(case: str) -> list[str]:
    """Return the options that count the log itself."""
    return [*COLUMNS, *PLANS[case], *(["--period", "day"] if case == "days" else [])]


def as_text(rows: pl.DataFrame) -> list[tuple[str, ...]]:
    """Return rows as warehouses write them, in one order."""
    whole = rows.with_columns(pl.col(pl.Float64).cast(pl.Int64))  # pandas has no null among whole numbers
    return sorted(tuple("" if value is None else str(value) for value in row) for row in whole.rows())


FAST = [*ENGINES][:4]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dialect", "case"),
    [*((dialect, case) for dialect in FAST for case in PLANS), *(("spark", "ubm"), ("spark", "days"))],
)
def test_counts_equal_those_of_collect_row_for_row_with_every_fault(
    posbias: Posbias, query: Query, file: Path, log: pl.DataFrame, tmp_path: Path, dialect: str, case: str
) -> None:
    exported = query(dialect, *PLANS[case])
    exported.write_parquet(tmp_path / "export.parquet")
    of_rows = exported.cast({"rejected": pl.Int64, "impressions": pl.Int64}).filter(pl.col("rejected") >= 0)
    assert of_rows["impressions"].sum() == log.height

    of_log = posbias("collect", file, *log_options(case), *DROP)
    of_export = posbias("collect", tmp_path / "export.parquet", *DROP)

    assert as_text(of_export.statistics) == as_text(of_log.statistics)
    assert len(of_log.manifest["rows"]["rejected"]) >= 9
    for section in ("counted", "rows", *(["key_types"] if dialect in {"duckdb", "sqlite"} else [])):
        assert of_export.manifest[section] == of_log.manifest[section]


CLICKS_AS_TEXT = [
    *("1", "01", "1e0", "1.00", "1.000000e+00", "0", "0e0", "0.00", "+1", "-0", "true", "F", None),
    *(" 1", "1 ", "abc", "", "1x", "1_0", "0x1", "nan", "inf", "1d"),
]
POSITIONS_AS_TEXT = [
    *("3", "10", "03", "3.0", "3e0", "2.5", "-1", "0", "3000000000", None),
    *(" 3", "3x", "abc", "", "nan", "inf", "0x3", "3_0", "3d"),
]
WRITTEN_NUMBERS: dict[str, tuple[list[Any], list[Any], pl.DataType]] = {
    "clicks as text": (["1"] * len(CLICKS_AS_TEXT), CLICKS_AS_TEXT, pl.String()),
    "positions as text": (POSITIONS_AS_TEXT, ["1"] * len(POSITIONS_AS_TEXT), pl.String()),
    "fractions": ([1.0, 2.5, math.nan, math.inf, -math.inf, 3e9, 0.0, -1.0, None, 7.0], [1.0] * 10, pl.Float64()),
    "decimals": ([Decimal(text) for text in ("1.00", "2.50", "3.00", "0.00")], [Decimal("1.00")] * 4, pl.Decimal(9, 2)),
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("dialect", "case"),
    [
        *((dialect, case) for dialect in ENGINES for case in ("clicks as text", "positions as text")),
        *((dialect, "fractions") for dialect in ("duckdb", "postgres", "clickhouse", "spark")),
        *((dialect, "decimals") for dialect in ("duckdb", "clickhouse")),
    ],
)
def test_numbers_are_read_as_collect_reads_them_whatever_their_type(
    posbias: Posbias, query: Query, tmp_path: Path, dialect: str, case: str
) -> None:
    positions, clicks, dtype = WRITTEN_NUMBERS[case]
    names = [f"n{number}" for number in range(len(positions))]
    ids = {"page": names, "search term": names, "sku": names, "time": ["2026-01-05"] * len(names)}
    read = pl.DataFrame({"rank": positions, "clicked": clicks}, {"rank": dtype, "clicked": dtype}, strict=False)
    file = tmp_path / "log.parquet"
    pl.DataFrame(ids).hstack(read).write_parquet(file)
    query(dialect, of=file).write_parquet(tmp_path / "export.parquet")
    drop = ("--on-bad-rows", "drop", "--max-bad-rows", 0.99)

    of_log = posbias("collect", file, *COLUMNS, "--timestamp", "none", *drop)
    of_export = posbias("collect", tmp_path / "export.parquet", *drop)

    assert as_text(of_export.statistics) == as_text(of_log.statistics)
    assert of_export.manifest["rows"] == of_log.manifest["rows"]


def test_an_export_goes_into_a_store_as_a_day(query: Query, run_in_process: Run, tmp_path: Path) -> None:
    query("duckdb").write_parquet(tmp_path / "export.parquet")
    run_in_process(
        "collect", tmp_path / "export.parquet", "--date", "2026-01-05", "--into", tmp_path / "store", *DROP, code=0
    )
    assert set(Output(tmp_path / "store").statistics["period"].cast(pl.String)) == {"2026-01-05"}


@pytest.mark.slow
def test_a_store_knows_an_export_by_its_counts_whatever_their_order_and_format(
    query: Query, run_in_process: Run, log: pl.DataFrame, tmp_path: Path
) -> None:
    def add(day: str, rows: pl.DataFrame, form: str, code: int) -> str:
        (rows.write_csv if form == "csv" else rows.write_parquet)(tmp_path / f"export.{form}")
        return run_in_process("collect", f"export.{form}", "--date", day, "--into", "store", *DROP, code=code).stderr

    rows = query("duckdb")
    add("2026-01-05", rows, "parquet", 0)
    for form in ("parquet", "csv"):
        assert "counted again, and replaced" in add("2026-01-05", rows.reverse(), form, 0)
        assert f"has counted export.{form} as 2026-01-05 already" in add("2026-01-06", rows.reverse(), form, 2)
    log.filter(pl.col("page") != "p7").write_parquet(tmp_path / "other.parquet")
    add("2026-01-06", query("duckdb", of=tmp_path / "other.parquet"), "parquet", 0)


def test_rows_that_were_left_out_stop_a_run(refused: Refused, query: Query, tmp_path: Path) -> None:
    query("duckdb").write_parquet(tmp_path / "export.parquet")
    said = refused("fit", tmp_path / "export.parquet")
    assert "1 x the query is missing" in said
    assert "5 x the session shows a document twice" in said
    assert "--on-bad-rows drop" in said


def test_pages_that_end_on_clicks_are_refused_as_of_a_log(
    refused: Refused, query: Query, file: Path, tmp_path: Path
) -> None:
    last = pl.col("rank").filter(pl.col("clicked") == 1).max().over("page")
    cut, export = tmp_path / "cut.parquet", tmp_path / "export.parquet"
    pl.read_parquet(file).filter((pl.col("rank") <= last) | last.is_null()).write_parquet(cut)
    query("duckdb", of=cut).write_parquet(export)

    said = [refused("fit", cut, *COLUMNS, *DROP), refused("fit", export, *DROP)]

    assert "down to the last click" in said[0]
    assert said[0].replace(str(cut), "") == said[1].replace(str(export), "")


LESS: dict[str, Sequence[str]] = {
    "numbers": ("--ids", "number", "--min-impressions", "350", "--model", "ubm"),
    "hashes": ("--ids", "hash", "--salt", 'it\'s \\ "salt"'),
    "some pages": ("--check-pages", "sample"),
}


@pytest.mark.parametrize(
    ("dialect", "case"),
    [
        *(("sqlite", "numbers"), ("spark", "hashes")),
        *((dialect, case) for dialect in ("postgres", "clickhouse") for case in LESS),
    ],
)
@pytest.mark.slow
def test_what_leaves_a_warehouse_is_the_same_in_all(query: Query, dialect: str, case: str) -> None:
    assert as_text(query(dialect, *LESS[case])) == as_text(query("duckdb", *LESS[case]))


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a log most of whose documents are seen once, or never clicked."""
    drawn = simulate(SimulationOptions(*("pbm", 600, 150, 8, 5), contexts=(1.0, 0.5), seed=4)).log
    path = tmp_path_factory.mktemp("sparse") / "log.parquet"
    names = {"session": "page", "query": "search term", "doc": "sku", "position": "rank", "click": "clicked"}
    drawn.rename(names).write_parquet(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("case", ["pbm", "ubm", "contexts"])
@pytest.mark.parametrize("ids", [("--ids", "number"), ("--ids", "hash", "--salt", "it's")])
def test_ids_need_not_leave_the_warehouse(
    posbias: Posbias, query: Query, sparse: Path, tmp_path: Path, ids: Sequence[str], case: str
) -> None:
    exported = query("duckdb", *PLANS[case], *ids, of=sparse)
    exported.write_parquet(tmp_path / "export.parquet")
    plain = query("duckdb", *PLANS[case], of=sparse)
    as_they_are = {str(value) for name in ("query", "doc") for value in plain[name].drop_nulls()}
    if ids[1] == "number":
        assert 3 * exported.height < 2 * plain.height
    else:
        assert as_they_are.isdisjoint(exported["query"].to_list() + exported["doc"].to_list())

    of_log = posbias("fit", sparse, *log_options(case))
    of_export = posbias("fit", tmp_path / "export.parquet")

    exact = ("impressions", "clicks", "linking_clicks", "identified", "reason")
    assert of_export.propensities.select(exact).equals(of_log.propensities.select(exact))
    for column in ("propensity", "std_error"):  # sums over queries, which are in another order
        digits = [output.propensities[column].fill_null(0) for output in (of_log, of_export)]
        assert ((digits[0] - digits[1]).abs() <= 1e-13 * digits[0]).all()
    assert (of_export.folder / "attractiveness.parquet").exists() == (ids[1] == "hash")


def test_a_sample_of_the_pages_is_a_sixteenth_whose_faults_are_no_account_of_all(
    query: Query, refused: Refused, tmp_path: Path
) -> None:
    every, some = query("duckdb"), query("duckdb", "--check-pages", "sample")
    of_rows = pl.col("rejected").is_between(1, 19)
    assert as_text(some.filter(of_rows)) == as_text(every.filter(of_rows))
    pages = [int(of.filter(pl.col("rejected").is_in([-1, -3]))["impressions"].sum()) for of in (every, some)]
    assert 10 * pages[1] < pages[0] < 25 * pages[1]
    some.with_columns(pl.col("rejected").replace(2, 21)).write_parquet(tmp_path / "export.parquet")
    assert "--check-pages all" in refused("fit", tmp_path / "export.parquet", *DROP)


@pytest.mark.slow
def test_weights_by_a_fit_to_numbers_are_those_of_the_log(
    posbias: Posbias, query: Query, sparse: Path, tmp_path: Path
) -> None:
    query("duckdb", "--ids", "number", of=sparse).write_parquet(tmp_path / "export.parquet")
    fits = [posbias("fit", sparse, *COLUMNS), posbias("fit", tmp_path / "export.parquet")]
    expected = "pointwise", "--layout-options", "negatives=posterior"  # which look at the prior of all documents
    labels = [
        posbias("weight", sparse, *COLUMNS, "--propensities", fit.folder, "--layout", *expected).training["label"]
        for fit in fits
    ]
    assert ((labels[0] - labels[1]).abs() < 1e-9).all()


def test_numbers_for_ids_serve_a_fit_alone(refused: Refused, query: Query, sparse: Path, tmp_path: Path) -> None:
    pl.read_parquet(sparse).filter(pl.col("page") > 5).write_parquet(tmp_path / "log.parquet")
    for name, log in (("one", sparse), ("other", tmp_path / "log.parquet")):
        query("duckdb", "--ids", "number", of=log).write_parquet(tmp_path / f"{name}.parquet")
    one = tmp_path / "one.parquet"
    assert "hold in this result alone" in refused("collect", one)
    assert "hold in this result alone" in refused("run", one)
    assert "needs all" in refused("fit", one, "--method", "allpairs")
    assert "stand for other ids in each" in refused("fit", one, tmp_path / "other.parquet")


def test_rare_queries_are_left_out_by_impressions_and_counted(
    posbias: Posbias, query: Query, log: pl.DataFrame, tmp_path: Path
) -> None:
    plain, without = query("duckdb"), query("duckdb", "--min-impressions", 350)
    without.write_parquet(tmp_path / "export.parquet")
    good = pl.col("rejected") == 0
    frequent = plain.filter(good).filter(pl.col("impressions").sum().over("query") >= 350)
    assert 0 < frequent.height < plain.filter(good).height
    assert as_text(without.filter(good)) == as_text(frequent)
    others = (pl.col("rejected") > 0) & (pl.col("rejected") != 33)
    assert as_text(without.filter(others)) == as_text(plain.filter(others))
    assert without.filter(pl.col("rejected") >= 0)["impressions"].sum() == log.height
    rejected = posbias("collect", tmp_path / "export.parquet", *DROP).manifest["rows"]["rejected"]
    assert rejected["the query has fewer impressions than --min-impressions"] > 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--session", "page"), "has no effect"),
        (("--context", "device"), "without --context"),
        (("--cluster", "session"), "needs the log itself"),
        (("--model", "ubm"), "collected with --model pbm"),
    ],
)
def test_what_an_export_does_not_hold_is_refused(
    refused: Refused, query: Query, tmp_path: Path, options: Sequence[str], why: str
) -> None:
    query("duckdb").write_parquet(tmp_path / "export.parquet")
    assert why in refused("fit", tmp_path / "export.parquet", *options, *DROP)


@pytest.mark.slow
def test_options_that_need_what_an_export_holds_are_taken(posbias: Posbias, query: Query, tmp_path: Path) -> None:
    query("duckdb", "--context", "device", "--timestamp", "time").write_parquet(tmp_path / "export.parquet")
    fitted = posbias("fit", tmp_path / "export.parquet", "--shrink", "none", "--period", "week", "--decay", 0.9, *DROP)
    assert fitted.propensities.filter(pl.col("propensity") != pl.col("unshrunk_propensity")).is_empty()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (pl.when(pl.col("rejected") != -4).then("about").alias("about"), "which says what was counted"),
        (pl.col("about").str.replace("pbm", "nonsense"), "does not describe counts"),
        (pl.col("about").str.replace('"version":2', '"version":9', literal=True), "does not describe counts"),
        (pl.col("rejected").replace(-1, 99), "has no meaning"),
        (pl.when(pl.col("rejected") == 0).then(None).otherwise("doc").alias("doc"), "the document is missing"),
        (pl.col("clicks") + pl.col("impressions"), "more clicks than impressions"),
    ],
)
def test_a_damaged_export_is_refused(
    refused: Refused, query: Query, sparse: Path, tmp_path: Path, change: pl.Expr, why: str
) -> None:
    query("duckdb", of=sparse).with_columns(change).write_parquet(tmp_path / "export.parquet")
    assert why in refused("fit", tmp_path / "export.parquet")


# --- what became of a result on its way ---------------------------------------------------------------------------

FULL = ("--model", "ubm", "--timestamp", "time", "--cluster-column", "user", "--randomized-where", "arm=swap@1,2")
ANY = ("--on-bad-rows", "drop", "--max-bad-rows", 1)
NUMBERS = (None, 0.4, -7, 1e13, float("nan"), "text")
CHANGED: dict[str, Sequence[object]] = {
    **dict.fromkeys(("rejected", "impressions", "clicks", "position", "previous_click", "randomized"), NUMBERS),
    **dict.fromkeys(("query", "doc"), (None,)),
    "period": (None, "text"),
    "about": (None, "text", "{}"),
}
OF_ALL_ROWS = ("rejected", "impressions", "clicks")
"""Columns that are read in all rows; the others are read in rows of counts, or in that of the description."""


@pytest.fixture(scope="module")
def full(log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    """Return the counts of some pages by everything that they may be counted by."""
    path = tmp_path_factory.mktemp("full") / "log.parquet"
    log.filter(pl.col("page").is_in(log["page"].unique(maintain_order=True)[200:260].to_list())).write_parquet(path)
    printed = CliRunner().invoke(app, ["sql", "shown", "--dialect", "duckdb", "--quiet", *COLUMNS, *FULL])
    return on_duckdb(printed.stdout, path)


def counted(files: Sequence[Path], run_in_process: Run, tmp_path: Path) -> tuple[int, object]:
    """Collect exports, whatever rows they left out; return the exit code, with the counts or the message."""
    done = run_in_process("collect", *files, "-o", tmp_path / "counted", "--force", *ANY)
    if done.returncode == 2:
        assert done.stderr.startswith("posbias: error: ")
        assert done.stderr.count("\n") == 1
        return 2, done.stderr
    return done.returncode, as_text(Output(tmp_path / "counted").statistics)


@pytest.mark.parametrize("column", CHANGED)
@pytest.mark.slow
def test_a_value_that_no_query_gives_is_refused_where_it_is_read(
    run_in_process: Run, full: pl.DataFrame, tmp_path: Path, column: str
) -> None:
    file = tmp_path / "export.parquet"
    full.write_parquet(file)
    unchanged = counted([file], run_in_process, tmp_path)
    assert unchanged[0] == 0
    for kind in (0, -1, -3, -4):
        first = (pl.col("rejected") == kind) & ((pl.col("rejected") == kind).cum_sum() == 1)
        for value in CHANGED[column]:
            held = pl.col(column)
            if isinstance(value, str):
                held = held.cast(pl.String)
            elif value is not None:
                held = held.cast(pl.Float64)
            full.with_columns(pl.when(first).then(pl.lit(value)).otherwise(held).alias(column)).write_parquet(file)
            is_read = column in OF_ALL_ROWS or kind == (-4 if column == "about" else 0)
            result = counted([file], run_in_process, tmp_path)
            assert result[0] == 2 if is_read else result == unchanged, (kind, value, result)


def first_half(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.head(rows.height // 2)


def second_half(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.tail(rows.height - rows.height // 2)


WHOLE: dict[str, Callable[[pl.DataFrame], Sequence[pl.DataFrame]]] = {
    "in parts": lambda rows: [first_half(rows), second_half(rows)],
    "in another order": lambda rows: [rows.reverse()],
    "with a column beside": lambda rows: [rows.with_columns(day=pl.lit("x"))],
    "as text": lambda rows: [rows.select(pl.all().cast(pl.String))],
    "as decimals": lambda rows: [rows.with_columns(pl.col(pl.Int64).cast(pl.Decimal(38, 0)))],
}
NOT_WHOLE: dict[str, tuple[Callable[[pl.DataFrame], Sequence[pl.DataFrame]], str]] = {
    "a part is missing": (lambda rows: [second_half(rows)], "some are missing, changed, or there twice"),
    "the other part is missing": (lambda rows: [first_half(rows)], "which says what was counted"),
    "a part twice": (lambda rows: [first_half(rows), first_half(rows), second_half(rows)], "hold the same counts"),
    "a part twice in another order": (
        lambda rows: [first_half(rows), first_half(rows).reverse(), second_half(rows)],
        "hold the same counts",
    ),
    "all twice": (lambda rows: [rows, rows.select(pl.all().cast(pl.String))], "hold the same counts"),
    "all twice in one file": (lambda rows: [pl.concat([rows, rows])], "holds all its counts 2 times"),
    "all, and a part": (lambda rows: [rows, first_half(rows)], "some are missing, changed, or there twice"),
    "a row twice": (lambda rows: [pl.concat([rows, rows.head(1)])], "some are missing, changed, or there twice"),
    "without a row": (lambda rows: [rows.slice(1)], "some are missing, changed, or there twice"),
    "without ends of pages": (
        lambda rows: [rows.filter(~pl.col("rejected").is_in([-1, -2, -3]))],
        "some are missing, changed, or there twice",
    ),
    "without a description": (lambda rows: [rows.filter(pl.col("rejected") > -4)], "which says what was counted"),
    "without rows": (lambda rows: [rows.head(0)], "which says what was counted"),
    "in capitals": (lambda rows: [rows.rename(str.upper)], "no column 'about'"),
    "a part without a column": (
        lambda rows: [first_half(rows), second_half(rows).drop("previous_click")],
        "no column 'previous_click'",
    ),
    "another experiment": (lambda rows: [rows.with_columns(randomized=pl.lit(2))], "rows of experiment 2, of 1"),
}


def written(frames: Sequence[pl.DataFrame], tmp_path: Path) -> list[Path]:
    """Write parts of an export."""
    files = [tmp_path / f"part-{number}.parquet" for number in range(len(frames))]
    for frame, file in zip(frames, files, strict=True):
        frame.write_parquet(file)
    return files


@pytest.mark.slow
def test_a_result_is_the_same_however_it_was_exported_as_a_whole(
    run_in_process: Run, full: pl.DataFrame, tmp_path: Path
) -> None:
    unchanged = counted(written([full], tmp_path), run_in_process, tmp_path)
    assert unchanged[0] == 0
    for name, arrange in WHOLE.items():
        assert counted(written(arrange(full), tmp_path), run_in_process, tmp_path) == unchanged, name


@pytest.mark.parametrize("case", [*NOT_WHOLE, *(f"without {name}" for name in ("about", "rejected", "previous_click"))])
def test_a_result_that_is_not_whole_is_refused(
    run_in_process: Run, full: pl.DataFrame, tmp_path: Path, case: str
) -> None:
    column = case.removeprefix("without ")
    arrange, why = NOT_WHOLE.get(case, (lambda rows: [rows.drop(column)], f"no column {column!r}"))
    code, said = counted(written(arrange(full), tmp_path), run_in_process, tmp_path)
    assert code == 2
    assert why in str(said)


@pytest.mark.slow
def test_parts_of_two_results_are_refused(run_in_process: Run, query: Query, sparse: Path, tmp_path: Path) -> None:
    pages = pl.read_parquet(sparse)
    halves = list[list[pl.DataFrame]]()
    for share in (0, 1):
        pages.filter(pl.col("page") % 2 == share).write_parquet(tmp_path / "log.parquet")
        export = query("duckdb", of=tmp_path / "log.parquet")
        halves.append([first_half(export), second_half(export)])
    code, said = counted(written([halves[0][0], halves[1][1]], tmp_path), run_in_process, tmp_path)
    assert (code, "some are missing, changed, or there twice" in str(said)) == (2, True)
    assert counted(written([*halves[0], *halves[1]], tmp_path), run_in_process, tmp_path)[0] == 0


@pytest.mark.parametrize(
    ("options", "what"), [(("--model", "ubm"), "click models"), (("--timestamp", "time"), "periods")]
)
def test_results_of_different_queries_are_refused_by_what_differs(
    refused: Refused, query: Query, tmp_path: Path, options: tuple[str, ...], what: str
) -> None:
    files = written([query("duckdb"), query("duckdb", *options)], tmp_path)
    for some in (files, files[::-1]):
        assert f"results of different queries, whose {what} ({options[0]}) differ" in refused("fit", *some)


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "weighted": lambda about: about["counted"].update(weighted=True),
    "model": lambda about: about["counted"].update(model="pbm"),
    "period": lambda about: about["counted"].update(period=None),
    "clusters": lambda about: about["counted"].update(clusters=[]),
    "randomized": lambda about: about["counted"].update(randomized=[]),
    "max_position": lambda about: about["counted"].update(max_position=3),
    "position_bins": lambda about: about["counted"].update(position_bins=[1, 3]),
    "pages": lambda about: about.update(check_pages=None),
    "some pages": lambda about: about.update(check_pages="sample"),
    "ids": lambda about: about.update(ids="number"),
    "min_impressions": lambda about: about.update(min_impressions=5),
    "an older version": lambda about: about.update(version=1),
    "a later version": lambda about: about.update(version=3),
    "no checksum": lambda about: about.pop("checksum"),
    "another field": lambda about: about.update(another=1),
    "nothing": lambda about: about.clear(),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_description_is_refused(run_in_process: Run, full: pl.DataFrame, tmp_path: Path, edit: str) -> None:
    about = json.loads(full.filter(pl.col("rejected") == -4)["about"].item())
    EDITS[edit](about)
    changed = pl.when(pl.col("rejected") == -4).then(pl.lit(json.dumps(about))).alias("about")
    code, said = counted(written([full.with_columns(changed)], tmp_path), run_in_process, tmp_path)
    assert code == 2
    assert "does not describe counts of this version of posbias" in str(said)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("order", '"order"'),
        ("event.query", "event.query"),
        ('"searchTerm"', '"searchTerm"'),
        ("x; DROP TABLE y --", '"x; DROP TABLE y --"'),
        ("x) FROM y", '"x) FROM y"'),
        ("it's", '"it\'s"'),
    ],
)
def test_names_are_quoted_where_they_must_be(run_in_process: Run, name: str, written: str) -> None:
    printed = run_in_process("sql", "a-b.shown", "--dialect", "postgres", "--query", name, "--quiet")
    assert f"{written} AS r_query" in printed.stdout
    assert 'FROM "a-b".shown' in printed.stdout


def test_a_context_in_quotes_is_a_column_of_the_result(
    posbias: Posbias, query: Query, run_in_process: Run, sparse: Path, tmp_path: Path
) -> None:
    assert (
        run_in_process("sql", "t", "--dialect", "snowflake", "--context", '"Device"').stdout.count('"Device" AS ') == 1
    )
    query("duckdb", "--context", '"device"', of=sparse).write_parquet(tmp_path / "export.parquet")
    assert posbias("collect", tmp_path / "export.parquet").manifest["counted"]["context"] == ["device"]


@pytest.mark.parametrize("dialect", ["bigquery", "snowflake", "redshift", "trino"])
@pytest.mark.slow_after(7)
@pytest.mark.parametrize("case", ["ubm", "days", "randomised"])
def test_every_dialect_has_a_query(run_in_process: Run, dialect: str, case: str) -> None:
    printed = run_in_process("sql", "shown", "--dialect", dialect, *COLUMNS, *PLANS[case], code=0)
    assert printed.stdout.startswith("WITH log_rows AS (")
