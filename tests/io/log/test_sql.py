"""Logs that a query makes of files: the rows of any form, and no query that does anything else than select them."""

import gzip
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl
import pytest
from patience import PATIENCE, ended

from posbias.core.errors import LogFormatError, SchemaError, UsageError
from posbias.io.log.sql import Query, run_query, sql_coalesced, sql_name, sql_text, sql_where
from posbias.io.log.text import find_log_files

ROWS = pl.DataFrame({"session": [1, 1, 2], "doc": ["a", "b", "007"], "position": [1, 2, 1], "click": [0, 1, 0]})
MEMORY = 512 << 20

RunPosbias = Callable[..., subprocess.CompletedProcess[str]]


def selected(query: str, *files: Path) -> pl.DataFrame:
    """Return the rows of a query over files."""
    made = run_query(Query(query, MEMORY), find_log_files([str(file) for file in files]))
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
    read_by_shell = ended(command, check=True)
    flag, query, _ = read_by_shell.stdout.split("\0")

    assert [flag, query] == shlex.split(option)
    assert flag == "--sql"
    assert selected(query, tmp_path / "log.parquet")[name].to_list() == ["a", "007"]


def test_fields_that_only_late_lines_have_are_seen(tmp_path: Path) -> None:
    file = tmp_path / "log.ndjson"
    file.write_text('{"a": {"x": 1}}\n' * 3000 + '{"a": {"y": "late"}}\n', encoding="utf-8")
    assert selected("SELECT a.y AS y FROM log WHERE a.y IS NOT NULL", file).rows() == [("late",)]


CLICKS = {"Click": [0], "click": [1]}
LINES = ('{"Click": 0}\n', '{"click": 1}\n')
NESTED = [{"shown": [{"Doc": "a", "doc": "b"}]}]
ALIKE: dict[str, tuple[dict[str, bytes | pl.DataFrame], str]] = {
    "Parquet": ({"log.parquet": pl.DataFrame(CLICKS)}, "log.parquet: columns are called alike: 'Click' and 'click'"),
    "Arrow": ({"log.arrow": pl.DataFrame(CLICKS)}, "log.arrow: columns are called alike: 'Click' and 'click'"),
    "text": ({"log.csv": b"Click,click\n0,1\n"}, "log.csv: columns are called alike: 'Click' and 'click'"),
    "text, to the letter": ({"log.tsv": b"click\tclick\n0\t1\n"}, "columns are called alike: 'click' and 'click'"),
    "an array": (
        {"log.json": b'[{"Click": 0, "click": 1}]'},
        "log.json: columns are called alike: 'Click' and 'click'",
    ),
    "a line": ({"log.ndjson": b'{"Click": 0, "click": 1}\n'}, "columns are called alike: 'Click' and 'click'"),
    "lines": ({"log.ndjson": "".join(LINES).encode()}, "log.ndjson: columns are called alike: 'Click' and 'click'"),
    "lines of two files": (
        {f"{number}.ndjson": line.encode() for number, line in enumerate(LINES)},
        "0.ndjson and 1.ndjson: columns are called alike: 'Click' and 'click'",
    ),
    "fields": ({"log.parquet": pl.DataFrame({"page": NESTED})}, "called alike: 'page.shown.Doc' and 'page.shown.doc'"),
    "fields of lines": (
        {"log.ndjson": b'{"shown": [{"Doc": 1}, {"doc": 2}]}\n'},
        "log.ndjson: columns are called alike: 'shown.Doc' and 'shown.doc'",
    ),
    "a folder": ({"Day=5/log.parquet": pl.DataFrame({"day": [4]})}, "log.parquet: columns are called alike: 'day' and"),
    "a folder of lines": ({"Day=5/log.ndjson": b'{"day": 4}'}, "log.ndjson: columns are called alike: 'day' and 'Day'"),
}


@pytest.mark.parametrize("form", ALIKE)
def test_columns_that_differ_in_case_alone_are_no_log_of_a_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    files, says = ALIKE[form]
    for name, content in files.items():
        Path(name).parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            Path(name).write_bytes(content)
        else:
            (content.write_ipc if name.endswith("arrow") else content.write_parquet)(name)
    with pytest.raises(SchemaError) as refused:
        selected("SELECT COUNT(*) AS n FROM log", *map(Path, files))
    assert says in str(refused.value)
    instead = "" if " and 1." in says else ", or read the log without --sql"
    assert f"Rename one of them{instead}." in str(refused.value)


def test_columns_that_are_not_alike_for_duckdb_are_read(tmp_path: Path) -> None:
    (tmp_path / "log.ndjson").write_text('{"click": 1, "Click_1": 2, "Ä": 3, "ä": 4}\n', encoding="utf-8")
    assert selected("FROM log", tmp_path / "log.ndjson").rows() == [(1, 2, 3, 4)]


def test_files_that_write_a_column_otherwise_have_it_in_common(tmp_path: Path) -> None:
    for number, name in enumerate(("Click", "click", "CLICK")):
        of_file = pl.DataFrame({name: [str(number)], "page": [[{name: number}]]})
        of_file.write_parquet(tmp_path / f"{number}.parquet")
        of_file.write_ipc(tmp_path / f"{number}.arrow")
        of_file.select(name).write_csv(tmp_path / f"{number}.csv")
        of_file.select(name, form=None).write_csv(tmp_path / f"{number}.tsv", separator="\t")
    (tmp_path / "3.ndjson").write_text('{"cLick": "3"}\n', encoding="utf-8")
    sources = find_log_files([str(tmp_path / "*.[cpt]*")])
    *_, advised = shlex.split(sql_coalesced(("Click", "click"), sources))
    rows = selected(advised, tmp_path)
    assert sorted(rows["Click"]) == [*"0000", *"1111", *"2222", "3"]
    nested = selected("SELECT unnest(page).click AS click FROM log", tmp_path)["click"]
    assert sorted(nested) == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("form", ["csv", "ndjson"])
def test_the_advice_for_files_that_write_a_column_otherwise_works(
    run_in_process: RunPosbias, tmp_path: Path, form: str
) -> None:
    for number, name in enumerate(("click", "Click")):
        rows = ROWS.with_columns(query=pl.lit("q"), session=ROWS["session"] + 10 * number).rename({"click": name})
        (rows.write_csv if form == "csv" else rows.write_ndjson)(tmp_path / f"{number}.{form}")
    command = ["collect", f"0.{form}", f"1.{form}", "-o", "out"]
    refused = run_in_process(*command, code=2).stderr
    if form == "csv":
        *_, query = shlex.split(refused.strip().removesuffix("."))
        assert "and 2 clicks are counted" in run_in_process(*command, "--sql", query, code=0).stderr
    else:
        assert refused.endswith("If so, rename one of them.\n")
        assert run_in_process(*command, "--sql", "FROM log", code=2).stderr.endswith("Rename one of them.\n")


TEXTS = [
    *("550E8400-E29B-41D4-A716-446655440000", "{550E8400-E29B-41D4-A716-446655440000}", "007", "1e5", "1.50", "-0"),
    *("2026-01-05", "20260105", "01/05/2026", "12:30", "12:30:00", "2026-01-05T10:00:00Z", "2026-01-05 10:00:00+02:00"),
    *("true", "null", "NaN", " x ", "", "1" * 40, "0x10", "1_000", "3 days", '{"a":1}', "[1]", "é\n", '"q"', "\\N"),
]


@pytest.mark.parametrize("form", ["ndjson", "json", "nested.ndjson", "csv", "tsv", "parquet"])
def test_text_stays_what_it_is(tmp_path: Path, form: str) -> None:
    file, row = tmp_path / f"log.{form}", {f"c{number}": text for number, text in enumerate(TEXTS)}
    query = "SELECT * FROM log"
    if form == "parquet":
        pl.DataFrame([row]).write_parquet(file)
    elif form in {"csv", "tsv"}:
        pl.DataFrame([row]).write_csv(file, separator="\t" if form == "tsv" else ",")
    elif form == "nested.ndjson":
        file.write_text(json.dumps({"page": {"shown": [row]}}), encoding="utf-8")
        query = "SELECT unnest(page.shown[1]) FROM log"
    else:
        file.write_text(json.dumps([row] if form == "json" else row), encoding="utf-8")
    assert selected(query, file).row(0) == (*TEXTS,)


NUMBERS: dict[str, tuple[str, list[object]]] = {
    "whole": ("7, -5, null", [7, -5, None]),
    "fractions": ("1.5, 2, 1e5", [1.5, 2.0, 100000.0]),
    "beyond fractions": ("9007199254740993, -9223372036854775808", [9007199254740993, -9223372036854775808]),
    "beyond signs": ("18446744073709551615, 1, null", [18446744073709551615, 1, None]),
    "beyond signs, with some": ("18446744073709551615, -1", ["18446744073709551615", "-1"]),
    "beyond fractions, with some": ("9007199254740993, 0.5, null", ["9007199254740993", "0.5", None]),
    "beyond 64 bits": ("123456789012345678901234567890", ["123456789012345678901234567890"]),
    "booleans": ("true, false", [True, False]),
    "with text": ('1, "x", true, 1.5', ["1", "x", "true", "1.5"]),
    "with an object": ('{"b": "x"}, "x", [1]', ['{"b":"x"}', "x", "[1]"]),
}


@pytest.mark.slow_after(8)
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("place", ["rows", "a list", "fields"])
def test_numbers_of_json_stay_numbers_where_one_type_holds_them_all(tmp_path: Path, kind: str, place: str) -> None:
    written, values = NUMBERS[kind]
    file, each = tmp_path / "log.ndjson", [json.dumps(value) for value in json.loads(f"[{written}]")]
    if place == "rows":
        lines, query = [f'{{"doc": {value}}}' for value in each], "SELECT doc FROM log"
    elif place == "a list":
        lines, query = [f'{{"doc": [{written}]}}'], "SELECT doc FROM log"
    else:
        entries = [f'{{"doc": {value}}}' for value in each]
        lines = [f'{{"page": [{", ".join(entries)}]}}']
        query = "SELECT unnest(page).doc AS doc FROM log"
    file.write_text("\n".join(lines), encoding="utf-8")
    if "signs" in kind and duckdb.__version__ < "1.5":  # which takes them for signed numbers, and refuses them
        with pytest.raises(UsageError):
            selected(query, file)
        return
    docs = selected(query, file)["doc"].to_list()
    assert (docs[0] if place == "a list" else docs) == values


@pytest.mark.parametrize(("largest", "fractions"), [(2**53 - 1, pl.Float64), (2**24 - 1, pl.Float32)])
@pytest.mark.parametrize("form", ["0.parquet", "day=1/0.ndjson"])
@pytest.mark.parametrize("nested", [False, True])
def test_whole_numbers_beside_fractions_are_exact_or_refused(
    tmp_path: Path, largest: int, fractions: type[pl.DataType], form: str, *, nested: bool
) -> None:
    def write(name: str, docs: pl.Series) -> Path:
        file, rows = tmp_path / name, pl.DataFrame({"doc": docs})
        file.parent.mkdir(exist_ok=True)
        rows = rows.select(page=pl.struct(results=pl.struct("doc").implode())) if nested else rows
        (rows.write_ndjson if name.endswith("ndjson") else rows.write_parquet)(file)
        return file

    query = "SELECT unnest(page.results).doc AS doc FROM log" if nested else "SELECT doc FROM log"
    files = write(form, pl.Series([largest])), write("1.parquet", pl.Series([1.5, None], dtype=fractions))
    assert {*selected(query, *files)["doc"]} == {largest, 1.5, None}
    write(form, pl.Series([largest + 2, 1]))
    column = "page.results.doc" if nested else "doc"
    with pytest.raises(SchemaError, match=rf"{form}: column '{column}' .* beside the fractions in .*1.parquet"):
        selected(query, *files)


def test_an_object_whose_names_are_data_is_read(tmp_path: Path) -> None:
    file = tmp_path / "log.ndjson"
    rows = [{"doc": number or "a", "scores": {f"d{number} {n}": n / 7 for n in range(9)}} for number in range(100)]
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert selected('SELECT MAX(doc) AS doc, MAX(scores."d7 8") AS score FROM log', file).rows() == [("a", 8 / 7)]


@pytest.mark.parametrize("name", ["log[1].ndjson", "log.json", "log[1].ndjson.gz"])
def test_lines_are_read_whatever_the_name_of_their_file_says(tmp_path: Path, name: str) -> None:
    file, lines = tmp_path / name, '{"doc": "a"}\n' * 1200 + '{"late": "x"}\n'
    file.write_bytes(gzip.compress(lines.encode()) if name != "log[1].ndjson" else lines.encode())
    (tmp_path / "log1.ndjson").write_text('{"late": "another"}\n', encoding="utf-8")
    assert selected("SELECT late FROM log WHERE late IS NOT NULL", file).rows() == [("x",)]


@pytest.mark.parametrize("line", ["[1]", "3", '{"": 1}', "{"])
def test_a_line_that_is_no_object_with_names_is_an_error_that_names_the_file(tmp_path: Path, line: str) -> None:
    file = tmp_path / "log.ndjson"
    file.write_text(f'{{"a": 1}}\n{line}\n', encoding="utf-8")
    if line == '{"": 1}' and duckdb.__version__ < "2":
        assert selected("SELECT a FROM log", file).rows() == [(1,), (None,)]
        return
    with pytest.raises(LogFormatError, match=re.escape(str(file))):
        selected("SELECT a FROM log", file)


@pytest.mark.slow
def test_days_are_those_of_utc_wherever_the_machine_stands(run_posbias: RunPosbias, tmp_path: Path) -> None:
    at = datetime(2026, 1, 6, 1, tzinfo=UTC)
    ROWS.with_columns(shown=pl.lit(at)).write_parquet(tmp_path / "log.parquet")
    query = "SELECT 'q' AS query, * EXCLUDE (shown), CAST(shown AS DATE) AS day FROM log"
    done = run_posbias(
        *("collect", "log.parquet", "--sql", query, "--timestamp", "day", "-o", "o"), TZ="America/New_York"
    )
    assert "days: 2026-01-06" in done.stderr


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_time_that_a_query_cannot_hold_is_named_by_its_file_and_row(tmp_path: Path, zone: str | None) -> None:
    file, milliseconds = tmp_path / "log.parquet", [0, -(2**63), 0]
    ROWS.with_columns(time=pl.Series(milliseconds).cast(pl.Datetime("ms", zone))).write_parquet(file)
    with pytest.raises(SchemaError, match=r"log.parquet row 2: column 'time' holds -9,.* read the log without --sql"):
        selected("SELECT doc, time FROM log", file)


def test_values_of_folders_are_columns_and_files_of_several_forms_are_one_view(tmp_path: Path) -> None:
    for day, form in (("1", "parquet"), ("2", "ndjson")):
        file = tmp_path / f"day={day}" / f"log.{form}"
        file.parent.mkdir()
        (ROWS.write_parquet if form == "parquet" else ROWS.write_ndjson)(file)
    found = selected("SELECT day, COUNT(*) AS n, SUM(click) AS c FROM log GROUP BY day ORDER BY day", tmp_path)
    assert found.rows() == [("1", 3, 1), ("2", 3, 1)]
    assert found.schema["c"] == pl.Int64


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
