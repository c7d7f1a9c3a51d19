"""Logs that a query makes of files: the rows of any form, and no query that does anything else than select them."""

import gzip
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from patience import PATIENCE

from posbias.core.errors import UsageError
from posbias.io.log.sql import Query, result_of, sql_name, sql_text, sql_where
from posbias.io.log.text import find_log_files

ROWS = pl.DataFrame({"session": [1, 1, 2], "doc": ["a", "b", "007"], "position": [1, 2, 1], "click": [0, 1, 0]})
MEMORY = 512 << 20


def selected(query: str, *files: Path) -> pl.DataFrame:
    """Return the rows of a query over files."""
    made = result_of(Query(query, MEMORY), find_log_files([str(file) for file in files]))
    return pl.read_parquet(str(made.origin))


@pytest.mark.parametrize("name", ["log.parquet", "log.csv", "log.tsv", "log.ndjson", "log.csv.gz", "log.arrow"])
def test_a_query_sees_the_rows_of_files_of_every_form(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name.endswith("parquet"):
        ROWS.write_parquet(file)
    elif name.endswith("ndjson"):
        ROWS.write_ndjson(file)
    elif name.endswith("arrow"):
        ROWS.write_ipc(file)
    else:
        text = ROWS.write_csv(separator="\t" if name.endswith("tsv") else ",").encode()
        file.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    found = selected("SELECT CAST(position AS INT) AS position, doc FROM log WHERE doc <> 'b' ORDER BY doc", file)
    assert found.rows() == [(1, "007"), (1, "a")]


@pytest.mark.parametrize(
    "name", ["user", "user id", 'the "user"', "it's", "$(exit 3)", "`exit 3`", "a\\", "!!", "two\nlines"]
)
def test_an_advised_query_is_one_that_a_shell_and_duckdb_read_and_that_runs_nothing(tmp_path: Path, name: str) -> None:
    rows = ROWS.with_columns(pl.col("doc").replace("b", name)).rename({"doc": name})
    rows.write_parquet(tmp_path / "log.parquet")
    option = sql_where(f"{sql_name(name)} <> {sql_text(name)}")
    command = ["/bin/sh", "-c", f"printf '%s\\0' {option}"]
    read_by_shell = subprocess.run(command, capture_output=True, text=True, check=True)
    flag, query, _ = read_by_shell.stdout.split("\0")

    assert [flag, query] == shlex.split(option)
    assert flag == "--sql"
    assert selected(query, tmp_path / "log.parquet")[name].to_list() == ["a", "007"]


def test_fields_that_only_late_lines_have_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "log.ndjson"
    file.write_text('{"a": {"x": 1}}\n' * 3000 + '{"a": {"y": "late"}}\n', encoding="utf-8")
    assert selected("SELECT a.y AS y FROM log WHERE a.y IS NOT NULL", file).rows() == [("late",)]


def test_values_of_folders_are_columns_and_files_of_several_forms_are_one_view(tmp_path: Path) -> None:
    for day, form in (("1", "parquet"), ("2", "ndjson")):
        file = tmp_path / f"day={day}" / f"log.{form}"
        file.parent.mkdir()
        (ROWS.write_parquet if form == "parquet" else ROWS.write_ndjson)(file)
    found = selected("SELECT day, COUNT(*) AS n, SUM(click) AS c FROM log GROUP BY day ORDER BY day", tmp_path)
    assert found.rows() == [("1", 3, 1), ("2", 3, 1)]
    assert found.schema["c"] == pl.Int64


HOSTILE = {
    "COPY log TO 'stolen.csv'": "is COPY",
    "ATTACH 'other.db'": "is ATTACH",
    "INSTALL httpfs": "is LOAD",
    "LOAD httpfs": "is LOAD",
    "SET memory_limit = '900GB'": "is SET",
    "PRAGMA database_list": "PRAGMA",
    "CREATE TABLE t AS FROM log": "is CREATE",
    "DROP VIEW log": "is DROP",
    "EXPORT DATABASE 'stolen'": "is EXPORT",
    "FROM log; COPY log TO 'stolen.csv'": "is SELECT and COPY",
    "-- nothing": "is empty",
    "SELECT * FROM read_csv('/etc/passwd')": "Cannot access file",
    "SELECT * FROM '/etc/passwd'": "does not exist",
    "SELECT content FROM read_text('/etc/passwd')": "Cannot access file",
    "SELECT * FROM read_blob('/etc/passwd')": "Cannot access file",
    "SELECT * FROM glob('/etc/*')": "Cannot access file",
    "SELECT * FROM read_parquet('https://example.com/a.parquet')": "Cannot access file",
    "SELECT * FROM sniff_csv('/etc/passwd')": "Cannot access file",
    "SELECT * FROM query('COPY log TO ''stolen.csv''')": "single SELECT",
    "SELECT getenv('HOME')": "does not exist",
    "WITH RECURSIVE r AS (SELECT 1 x UNION ALL SELECT x FROM r) SELECT COUNT(*) FROM r": "may never end",
    "FROM query('WITH RECURSIVE r AS (SELECT 1 x UNION ALL SELECT x FROM r) SELECT COUNT(*) FROM r')": "may never end",
}


@pytest.mark.parametrize("query", HOSTILE)
def test_a_query_that_does_more_than_select_from_the_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ROWS.write_parquet("log.parquet")
    with pytest.raises(UsageError) as refused:
        selected(query, Path("log.parquet"))
    assert HOSTILE[query] in str(refused.value)
    assert [file.name for file in tmp_path.iterdir()] == ["log.parquet"]


def test_an_error_names_the_line_and_the_column_of_the_query(tmp_path: Path) -> None:
    ROWS.write_parquet(tmp_path / "log.parquet")
    with pytest.raises(UsageError, match=r"^--sql, line 2, column 2: .*zzz"):
        selected("SELECT 'ü' AS u,\n zzz FROM log", tmp_path / "log.parquet")
    with pytest.raises(UsageError, match=r"^--sql, line 1, column 8: .*INT32"):
        selected("SELECT CAST(doc AS INT) AS d FROM log", tmp_path / "log.parquet")


@pytest.mark.slow
def test_an_endless_query_is_stopped_by_ctrl_c_and_leaves_nothing(tmp_path: Path) -> None:
    ROWS.write_parquet(tmp_path / "log.parquet")
    (tmp_path / "temporary").mkdir()
    endless = "SELECT COUNT(*) FROM log, range(1000000000000) AS a, range(1000000000000) AS b WHERE a.range <> b.range"
    words = ["run", "log.parquet", "--sql", endless, "-o", "out", "--temp-dir", "temporary"]
    with subprocess.Popen([sys.executable, "-m", "posbias.cli", *words], cwd=tmp_path, stderr=subprocess.PIPE) as run:
        try:
            while not [*(tmp_path / "temporary").rglob("result.parquet")]:
                assert run.poll() is None
                time.sleep(0.1)
            run.send_signal(signal.SIGINT)
            _, said = run.communicate(timeout=PATIENCE)
        finally:
            run.kill()
    assert run.returncode == 130
    assert b"nothing was written" in said
    assert {path.name for path in tmp_path.iterdir()} == {"log.parquet", "temporary"}
    assert [*(tmp_path / "temporary").iterdir()] == []
