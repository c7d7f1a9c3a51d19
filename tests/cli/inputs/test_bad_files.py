"""Files and columns that cannot be read are refused: one message that names the cause, and nothing is left behind."""

import json
import os
import shutil
from pathlib import Path

import pytest
from workshop import ROW, Make, Workshop, assert_refused, attempt, case, csv_text, good_rows, without

# --- files ----------------------------------------------------------------------------------------------------


def truncated(w: Workshop) -> list[str | Path]:
    whole = w.parquet("whole.parquet").read_bytes()
    return ["run", w.write("log.parquet", whole[: len(whole) // 2])]


def corrupted(w: Workshop) -> list[str | Path]:
    whole = bytearray(w.parquet("whole.parquet").read_bytes())
    whole[4:400] = bytes(396)
    return ["run", w.write("log.parquet", bytes(whole))]


def damaged_footer(w: Workshop) -> list[str | Path]:
    whole = bytearray(w.parquet("whole.parquet").read_bytes())
    whole[-60:-8] = b"\xff" * 52
    return ["run", w.write("log.parquet", bytes(whole))]


def empty_directory(w: Workshop) -> list[str | Path]:
    (w.folder / "day").mkdir()
    return ["run", w.folder / "day"]


def ragged(w: Workshop) -> list[str | Path]:
    return ["run", w.write("log.csv", csv_text(good_rows()) + "s99,q0,d0,1,0,surplus,more\n")]


def invalid_utf8(w: Workshop) -> list[str | Path]:
    return ["run", w.write("log.csv", csv_text(good_rows()).encode() + b"s\xff\xfe,q0,d0,1,0\n")]


def broken_ndjson(w: Workshop) -> list[str | Path]:
    lines = [json.dumps(row) for row in good_rows()]
    lines[ROW - 1] = lines[ROW - 1][:-5]
    return ["run", w.write("log.ndjson", "\n".join(lines) + "\n")]


def other_columns(w: Workshop) -> list[str | Path]:
    rows = [{key: value for key, value in row.items() if key != "click"} for row in good_rows()]
    return ["run", w.parquet("a.parquet"), w.parquet("b.parquet", rows)]


def same_file(w: Workshop) -> list[str | Path]:
    log = w.log()
    return ["run", log, log]


def same_file_by_link(w: Workshop) -> list[str | Path]:
    log = w.log()
    (w.folder / "link.csv").symlink_to(log)
    return ["run", log, w.folder / "link.csv"]


def same_bytes(w: Workshop) -> list[str | Path]:
    log = w.log()
    return ["run", log, Path(shutil.copy(log, w.folder / "copy.csv"))]


def a_fifo(w: Workshop) -> list[str | Path]:
    os.mkfifo(w.folder / "pipe.csv")
    return ["run", w.folder / "pipe.csv"]


FILES = [
    case("no such file", lambda w: ["run", w.folder / "nowhere.csv"], "nowhere.csv", "no such file"),
    case("a glob without a match", lambda w: ["run", w.folder / "*.parquet"], "*.parquet", "no file matches"),
    case("an empty directory", empty_directory, "day", "holds no log file"),
    case("an empty CSV file", lambda w: ["run", w.write("log.csv", "")], "log.csv", "empty"),
    case("an empty Parquet file", lambda w: ["run", w.write("log.parquet", "")], "log.parquet", "empty"),
    case("an empty NDJSON file", lambda w: ["run", w.write("log.ndjson", "")], "log.ndjson", "empty"),
    case(
        "a header only",
        lambda w: ["run", w.write("log.csv", "session,query,doc,position,click\n")],
        "log.csv",
        "no rows",
    ),
    case("a truncated Parquet file", truncated, "log.parquet", "truncated"),
    case("a Parquet file with a damaged middle", corrupted, "log.parquet", "cannot be read as parquet"),
    case("a Parquet file with a damaged footer", damaged_footer, "log.parquet", "cannot be read as parquet"),
    case("text named Parquet", lambda w: ["run", w.write("log.parquet", csv_text(good_rows()))], "not a Parquet file"),
    case("an unknown ending", lambda w: ["run", w.log("log.xlsx")], "log.xlsx", "Known endings", ".parquet"),
    case("a ragged CSV", ragged, "log.csv", "cannot be read as csv"),
    case("a CSV that is not UTF-8", invalid_utf8, "log.csv", "cannot be read as csv"),
    case("a broken NDJSON line", broken_ndjson, "log.ndjson", "cannot be read as ndjson"),
    case("files with other columns", other_columns, "b.parquet", "click"),
    case("the same file twice", same_file, "log.csv", "twice"),
    case("the same file twice, once by a link", same_file_by_link, "link.csv", "twice"),
    case("a copy under another name", same_bytes, "copy.csv", "log.csv", "same data"),
    case("a pipe, which can be read only once", a_fifo, "pipe.csv", "neither a file nor a directory"),
]


@pytest.mark.parametrize(("make", "says"), FILES)
def test_a_file_that_cannot_be_read_is_named(workshop: Workshop, make: Make, says: tuple[str, ...]) -> None:
    assert_refused(attempt(workshop, *make(workshop)), workshop, *says)


# --- columns --------------------------------------------------------------------------------------------------


def two_queries(w: Workshop) -> list[str | Path]:
    return ["run", w.log(rows=[{**row, "query_id": row["query"]} for row in good_rows()])]


COLUMNS = [
    case("a missing column", lambda w: ["run", w.log(rows=without("doc"))], "log.csv", "doc", "--doc"),
    case("no click column", lambda w: ["run", w.log(rows=without("click"))], "log.csv", "click", "--click"),
    case("an ambiguous column", two_queries, "log.csv", "query, query_id", "--query"),
    case(
        "a named column that is not there",
        lambda w: ["run", w.log(), "--position", "positon"],
        "log.csv",
        "'positon'",
        "--position",
        "did you mean 'position'?",
    ),
    case(
        "a session column that is not there",
        lambda w: ["run", w.log(), "--session", "visit"],
        "no column 'visit'",
        "--session",
    ),
    case(
        "UBM without a session column",
        lambda w: ["run", w.log(rows=without("session")), "--model", "ubm"],
        "session",
        "--session",
    ),
    case(
        "the session layout without a session column",
        lambda w: ["run", w.log(rows=without("session")), "--layout", "session"],
        "session",
        "--session",
    ),
]


@pytest.mark.parametrize(("make", "says"), COLUMNS)
def test_a_column_that_cannot_be_found_is_named(workshop: Workshop, make: Make, says: tuple[str, ...]) -> None:
    assert_refused(attempt(workshop, *make(workshop)), workshop, *says)


@pytest.mark.parametrize(("lacking", "having"), [("a", "b"), ("b", "a")])
def test_of_two_files_the_one_that_lacks_a_column_is_named_first(workshop: Workshop, lacking: str, having: str) -> None:
    shorter, whole = workshop.log(f"{lacking}.csv", without("session")), workshop.log(f"{having}.csv")
    done = attempt(workshop, "run", workshop.folder)
    assert_refused(done, workshop, f"{shorter}: has no column 'session', which {whole} has")
