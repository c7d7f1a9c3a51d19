"""What cannot work is refused: exit code 2, one message that names the cause, and nothing is left behind.

Every case is a workshop that writes its input and returns the arguments; the command line then runs in an empty
directory, with the result and the temporary files in directories that must stay empty.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import polars as pl
import pytest

RunPosbias = Callable[..., CompletedProcess[str]]
MountTmpfs = Callable[[Path, str], Path]
Row = dict[str, object]

N_SESSIONS, N_POSITIONS = 40, 3
ROW = 5  # the row that is spoiled, counted from 1 after the header: session 1, position 2


def good_rows() -> list[Row]:
    """Rows of a small log that works: every document of a query stands at every position, and some are clicked."""
    return [
        {
            "session": f"s{session}",
            "query": f"q{session % 2}",
            "doc": f"d{(session // 2 + position) % N_POSITIONS}",
            "position": position,
            "click": int((session * 7 + position * 3) % (position + 2) == 0),
        }
        for session in range(N_SESSIONS)
        for position in range(1, N_POSITIONS + 1)
    ]


def csv_text(rows: list[Row]) -> str:
    """Rows as CSV; None is an empty field."""
    lines = [",".join(rows[0])]
    lines += [",".join("" if value is None else str(value) for value in row.values()) for row in rows]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Workshop:
    """Where a case makes its input."""

    folder: Path
    output: Path
    run: RunPosbias

    def write(self, name: str, content: str | bytes) -> Path:
        """Write a file."""
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def log(self, name: str = "log.csv", rows: list[Row] | None = None) -> Path:
        """Write a log: the good one, or other rows."""
        return self.write(name, csv_text(rows or good_rows()))

    def parquet(self, name: str = "log.parquet", rows: list[Row] | None = None) -> Path:
        """Write a log as Parquet."""
        path = self.folder / name
        pl.DataFrame(rows or good_rows()).write_parquet(path)
        return path

    def affected(self, column: str, value: object, name: str = "log.csv") -> Path:
        """Write the good log with another value in one row."""
        rows = good_rows()
        rows[ROW - 1][column] = value
        return self.log(name, rows)

    def collected(self, log: Path, name: str, *options: str) -> Path:
        """Collect statistics that are good."""
        path = self.folder / name
        done = self.run("collect", log, "-o", path, *options)
        assert done.returncode == 0, done.stderr
        return path


Make = Callable[[Workshop], list[str | Path]]


@pytest.fixture
def workshop(tmp_path: Path, run_in_process: RunPosbias) -> Workshop:
    """Return a workshop with empty directories for the result and for temporary files."""
    for name in ("input", "results", "scratch"):
        (tmp_path / name).mkdir()
    return Workshop(tmp_path / "input", tmp_path / "results" / "out", run_in_process)


def attempt(workshop: Workshop, *arguments: str | Path, **environment: str) -> CompletedProcess[str]:
    """Run a command with the result and the temporary files in the workshop's empty directories."""
    scratch = workshop.folder.parent / "scratch"
    # wide, so that what Typer frames does not break inside a word
    wide = {"COLUMNS": "250"} | environment
    return workshop.run(*arguments, "-o", workshop.output, "--temp-dir", scratch, **wide)


def assert_refused(done: CompletedProcess[str], workshop: Workshop, *says: str) -> None:
    """Exit code 2, one message that says all of `says`, and not a trace on disk."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(re.findall("posbias: error: |─ Error ─", done.stderr)) == 1, done.stderr
    for unwanted in ("Traceback", "panicked", "\x1b["):
        assert unwanted not in done.stderr
    for words in says:
        assert words in done.stderr
    assert left_in(workshop.output.parent) == []
    assert left_in(workshop.folder.parent / "scratch") == []


def left_in(folder: Path) -> list[str]:
    """Everything below a directory, hidden or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def case(name: str, make: Make, *says: str) -> object:
    return pytest.param(make, says, id=name)


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


def without(*columns: str) -> list[Row]:
    return [{key: value for key, value in row.items() if key not in columns} for row in good_rows()]


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


# --- rows -----------------------------------------------------------------------------------------------------

ROW_FAULTS = [
    ("session", None, "the session is missing", ()),
    ("query", None, "the query is missing", ()),
    ("doc", None, "the document is missing", ()),
    ("position", None, "the position is missing", ()),
    ("position", "1.5", "the position is not a whole number", ()),
    ("position", "abc", "the position is not a whole number", ()),
    ("position", "3000000000", "the position is not a whole number", ()),
    ("position", "0", "the position is below the base", ("--position-base 0",)),
    ("position", "-2", "the position is below the base", ()),
    ("click", None, "the click is missing", ()),
    ("click", "2", "the click is neither 0 nor 1", ("--click-counts",)),
    ("click", "-1", "the click is neither 0 nor 1", ()),
    ("click", "yes", "the click is neither 0 nor 1", ()),
    ("click", "nan", "the click is neither 0 nor 1", ()),
]
WEIGHT_FAULTS = ["0", "-1", "nan", "inf", "heavy", None]


def shown(column: str, value: object) -> str:
    """How a value stands in a message."""
    return f"({column} = {value!r})"


@pytest.mark.parametrize(("column", "value", "reason", "advice"), ROW_FAULTS)
def test_a_faulty_row_is_named_with_file_row_and_value(
    workshop: Workshop, column: str, value: str | None, reason: str, advice: tuple[str, ...]
) -> None:
    log = workshop.affected(column, value)
    says = (f"1 of {len(good_rows())} rows", f"1 x {reason}", f"{log} row {ROW} {shown(column, value)}", *advice)
    assert_refused(attempt(workshop, "run", log), workshop, *says, "--on-bad-rows drop")


@pytest.mark.parametrize(("column", "value", "reason", "advice"), ROW_FAULTS)
def test_a_faulty_row_is_left_out_and_counted_on_request(
    workshop: Workshop, column: str, value: str | None, reason: str, advice: tuple[str, ...]
) -> None:
    del advice
    done = attempt(workshop, "run", workshop.affected(column, value), "--on-bad-rows", "drop")
    assert done.returncode == 0, done.stderr
    assert rows_of(workshop) == {"read": 120, "used": 119, "rejected": {reason: 1}}
    assert f"1 left out (1 because {reason})" in done.stderr
    assert impressions_of(workshop) == 119


@pytest.mark.parametrize("value", WEIGHT_FAULTS)
def test_a_weight_that_is_not_above_0_is_named_and_left_out_on_request(workshop: Workshop, value: str | None) -> None:
    rows = [{**row, "times": 2} for row in good_rows()]
    rows[ROW - 1]["times"] = value
    log = workshop.log(rows=rows)
    reason = "the weight is not a number above 0"
    weighted = ("run", log, "--weight-column", "times")
    says = (f"1 x {reason}", f"{log} row {ROW} {shown('times', value)}")
    assert_refused(attempt(workshop, *weighted), workshop, *says)
    done = attempt(workshop, *weighted, "--on-bad-rows", "drop")
    assert done.returncode == 0, done.stderr
    assert rows_of(workshop) == {"read": 120, "used": 119, "rejected": {reason: 1}}
    assert impressions_of(workshop) == 2 * 119


def rows_of(workshop: Workshop) -> dict[str, object]:
    """What the manifest says about the rows."""
    return json.loads((workshop.output / "manifest.json").read_text(encoding="utf-8"))["rows"]


def impressions_of(workshop: Workshop) -> float:
    """Impressions that were counted."""
    return float(pl.read_parquet(workshop.output / "propensities.parquet")["impressions"].sum())


def test_positions_from_0_are_told_from_stray_ones_and_work_with_the_advice(workshop: Workshop) -> None:
    from_1 = workshop.log("from_1.csv")
    from_0 = workshop.log("from_0.csv", [{**row, "position": int(str(row["position"])) - 1} for row in good_rows()])
    done = attempt(workshop, "run", from_0)
    assert_refused(done, workshop, f"{N_SESSIONS} x the position is below the base", "say --position-base 0")
    found = {log: workshop.folder.parent / log.stem for log in (from_0, from_1)}
    assert workshop.run("fit", from_0, "-o", found[from_0], "--position-base", "0").returncode == 0
    assert workshop.run("fit", from_1, "-o", found[from_1]).returncode == 0
    tables = [(folder / "propensities.parquet").read_bytes() for folder in found.values()]
    assert tables[0] == tables[1]


def test_rows_are_located_in_their_own_file_among_several_of_every_format(workshop: Workshop) -> None:
    rows = good_rows()
    for number, name in ((1, "a"), (40, "b"), (120, "c")):  # the first row, one between, the last
        affected = [{**row, "session": f"{name}{row['session']}", "doc": str(row["doc"])} for row in rows]
        affected[number - 1]["position"] = -number
        frame = pl.DataFrame(affected)
        frame.write_csv(workshop.folder / f"{name}.csv")
        frame.write_parquet(workshop.folder / f"{name}.parquet", row_group_size=50)
        frame.write_ndjson(workshop.folder / f"{name}.ndjson")
    for ending in ("csv", "parquet", "ndjson"):
        files = [workshop.folder / f"{name}.{ending}" for name in "abc"]
        values = [-number if ending == "parquet" else str(-number) for number in (1, 40, 120)]  # text has no types
        places = [
            f"{file} row {number} {shown('position', value)}"
            for file, number, value in zip(files, (1, 40, 120), values, strict=True)
        ]
        done = attempt(workshop, "run", *files)
        assert_refused(done, workshop, "3 of 360 rows", "; ".join(places))


def test_only_the_first_rows_of_a_reason_are_shown(workshop: Workshop) -> None:
    rows = [{**row, "position": -1, "click": "maybe"} for row in good_rows()]
    done = attempt(workshop, "run", workshop.log(rows=rows))
    assert_refused(done, workshop, "120 of 120 rows", "120 x the position is below the base")
    assert done.stderr.count(" row ") == 3


def test_a_log_of_faulty_rows_only_is_refused_also_when_they_are_left_out(workshop: Workshop) -> None:
    rows: list[Row] = [{**row, "click": "maybe"} for row in good_rows()]
    done = attempt(workshop, "run", workshop.log(rows=rows), "--on-bad-rows", "drop")
    assert_refused(done, workshop, "every row was rejected", "120 x the click is neither 0 nor 1")


# --- pages ----------------------------------------------------------------------------------------------------


def visits() -> list[Row]:
    """Two results pages a visit, told apart by the time of the query."""
    return [
        {**row, "session": f"v{index // (2 * N_POSITIONS)}", "query_time": index // N_POSITIONS}
        for index, row in enumerate(good_rows())
    ]


@pytest.mark.parametrize("model", ["pbm", "ubm"])
def test_a_visit_is_told_from_a_session(workshop: Workshop, model: str) -> None:
    log = workshop.log(rows=[{("visit" if key == "session" else key): v for key, v in r.items()} for r in visits()])
    arguments = ("run", log, "--model", model)
    done = attempt(workshop, *arguments, "--session", "visit")
    assert_refused(done, workshop, "several queries", "a visit", "--session visit --session query_time", f"{log} row")
    done = attempt(workshop, *arguments, "--session", "visit", "--session", "query_time")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.parametrize(
    ("column", "reason"), [("doc", "shows a document twice"), ("position", "shows a position twice")]
)
def test_a_page_that_repeats_itself_is_named_and_left_out_on_request(
    workshop: Workshop, model: str, column: str, reason: str
) -> None:
    log = workshop.affected(column, good_rows()[ROW - 2][column])
    done = attempt(workshop, "run", log, "--model", model)
    assert_refused(done, workshop, "1 x the session", reason, f"{log} row 4 (session = 's1')", "--on-bad-rows drop")
    done = attempt(workshop, "run", log, "--model", model, "--on-bad-rows", "drop")
    assert done.returncode == 0, done.stderr
    assert rows_of(workshop) == {"read": 120, "used": 117, "rejected": {f"the session {reason}": 3}}


def test_visits_are_refused_even_where_faulty_pages_are_left_out(workshop: Workshop) -> None:
    done = attempt(workshop, "run", workshop.log(rows=visits()), "--on-bad-rows", "drop")
    assert_refused(done, workshop, "several queries", "a visit")


# --- what a log cannot say ------------------------------------------------------------------------------------

UNSAYABLE = [
    case(
        "no click", lambda w: ["run", w.log(rows=[{**row, "click": 0} for row in good_rows()])], "no click", "--click"
    ),
    case("one position", lambda w: ["run", w.log(rows=good_rows()[::N_POSITIONS])], "position"),
    case(
        "no pair at two positions",
        lambda w: ["run", w.log(rows=[{**row, "doc": f"d{row['position']}"} for row in good_rows()])],
        "no document was shown at two positions",
        "more days",
    ),
]


@pytest.mark.parametrize(("make", "says"), UNSAYABLE)
@pytest.mark.parametrize("method", ["conditional", "joint"])
def test_a_log_that_cannot_say_it_is_refused_with_what_would_help(
    workshop: Workshop, make: Make, says: tuple[str, ...], method: str
) -> None:
    assert_refused(attempt(workshop, *make(workshop), "--method", method), workshop, *says)


# --- the output -----------------------------------------------------------------------------------------------


def test_an_existing_result_is_kept_without_force(workshop: Workshop) -> None:
    log = workshop.log()
    assert attempt(workshop, "run", log).returncode == 0
    before = left_in(workshop.output.parent)
    done = attempt(workshop, "run", log)
    assert done.returncode == 2
    assert f"{workshop.output}: already exists" in done.stderr
    assert "--force" in done.stderr
    assert left_in(workshop.output.parent) == before


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_file_in_the_place_of_the_output_is_kept(workshop: Workshop, force: tuple[str, ...]) -> None:
    workshop.output.write_text("mine", encoding="utf-8")
    done = attempt(workshop, "run", workshop.log(), *force)
    assert done.returncode == 2
    assert f"{workshop.output}: is a file" in done.stderr
    assert workshop.output.read_text(encoding="utf-8") == "mine"
    assert left_in(workshop.output.parent) == ["out"]


@pytest.fixture
def read_only_place(tmp_path: Path, mount_tmpfs: MountTmpfs) -> Path:
    """Return a directory that even root cannot write in."""
    return mount_tmpfs(tmp_path / "read-only", "ro,size=1m")


@pytest.mark.parametrize("name", ["out", "new/parents/out"])
def test_a_read_only_place_is_named(workshop: Workshop, read_only_place: Path, name: str) -> None:
    done = workshop.run("run", workshop.log(), "-o", read_only_place / name)
    assert_refused(done, workshop, str(read_only_place), "Read-only file system")


def test_a_read_only_place_for_temporary_files_is_named(workshop: Workshop, read_only_place: Path) -> None:
    done = workshop.run("run", workshop.log(), "-o", workshop.output, "--temp-dir", read_only_place)
    assert_refused(done, workshop, str(read_only_place), "Read-only file system")


def test_a_place_for_temporary_files_that_does_not_exist_is_named(workshop: Workshop) -> None:
    done = workshop.run("run", workshop.log(), "-o", workshop.output, "--temp-dir", workshop.folder / "nowhere")
    assert_refused(done, workshop, "--temp-dir", "nowhere")


@pytest.mark.parametrize("named", ["log.csv", "*.csv", "."])
def test_force_never_deletes_the_logs(workshop: Workshop, named: str) -> None:
    log = workshop.log()
    done = workshop.run("run", workshop.folder / named, "-o", workshop.folder, "--force")
    assert_refused(done, workshop, str(workshop.folder), "--force")
    assert log.read_text(encoding="utf-8") == csv_text(good_rows())


def test_force_never_deletes_the_clicks_that_are_joined(workshop: Workshop) -> None:
    shown_log = workshop.log(rows=without("click"))
    held = workshop.folder / "held"
    held.mkdir()
    clicked = [{"session": row["session"], "doc": row["doc"]} for row in good_rows() if row["click"]]
    clicks = workshop.log("held/clicks.csv", clicked)
    done = workshop.run("run", shown_log, "--clicks", clicks, "-o", held, "--force")
    assert_refused(done, workshop, "--force")
    assert clicks.read_text(encoding="utf-8") == csv_text(clicked)


def test_force_never_deletes_the_propensities_that_are_read(workshop: Workshop) -> None:
    log, fit = workshop.log(), workshop.folder / "fit"
    assert workshop.run("fit", log, "-o", fit).returncode == 0
    done = workshop.run("weight", log, "--propensities", fit, "-o", fit, "--force")
    assert_refused(done, workshop, str(fit), "--force")
    assert (fit / "propensities.parquet").is_file()


# --- options --------------------------------------------------------------------------------------------------

BAD_OPTIONS = [
    (("--memory", "5 bananas"), "--memory 5 bananas"),
    (("--memory", "1MiB"), "--memory 1MiB"),
    (("--position-bins", "3,1"), "--position-bins 3,1"),
    (("--position-bins", "1,2,two"), "--position-bins 1,2,two"),
    (("--model", "nope"), "nope"),
    (("--method", "nope"), "nope"),
    (("--format", "nope"), "nope"),
    (("--layout", "nope"), "nope"),
    (("--max-position", "1"), "--max-position"),
    (("--min-propensity", "0"), "--min-propensity 0"),
    (("--min-propensity", "1.5"), "--min-propensity 1.5"),
    (("--attractiveness-prior", "5:2"), "5:2"),
    (("--examination-prior", "0.5"), "0.5"),
    (("--period", "day"), "--timestamp"),
    (("--max-iterations", "0"), "--max-iterations"),
    (("--no-such-option",), "--no-such-option"),
    (("--config", "nowhere.toml"), "nowhere.toml"),
]


@pytest.mark.parametrize(("options", "says"), BAD_OPTIONS)
def test_a_bad_option_is_named(workshop: Workshop, options: tuple[str, ...], says: str) -> None:
    assert_refused(attempt(workshop, "run", workshop.log(), *options), workshop, says)


@pytest.mark.parametrize("options", [("--model", "nope"), ("--method", "nope"), ("--format", "nope")])
def test_a_plug_in_that_does_not_exist_is_answered_with_those_that_do(
    workshop: Workshop, options: tuple[str, str]
) -> None:
    known = {"--model": ("pbm", "ubm"), "--method": ("conditional", "joint"), "--format": ("csv", "parquet")}
    assert_refused(attempt(workshop, "run", workshop.log(), *options), workshop, *known[options[0]])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('model = "ubm', ("posbias.toml", "not valid TOML")),
        ('modell = "ubm"', ("posbias.toml", "modell", "'model'")),
        ("[run]\nmin-propensty = 0.1\n", ("posbias.toml", "[run]", "min-propensty", "'min-propensity'")),
        ("[fit]\nmin-propensity = 0.1\n", ("posbias.toml", "[fit]", "min-propensity")),
        ("min-propensity = 'low'\n", ("min-propensity",)),
        ("run = 3\n", ("posbias.toml", "run")),
        ("[model]\npbm = true\n", ("model",)),
    ],
)
def test_a_configuration_that_cannot_work_is_named(workshop: Workshop, content: str, says: tuple[str, ...]) -> None:
    workshop.write("posbias.toml", content)
    scratch = workshop.folder.parent / "scratch"
    arguments = ("run", workshop.log(), "-o", workshop.output, "--temp-dir", scratch)
    done = workshop.run(*arguments, cwd=workshop.folder, COLUMNS="250")
    assert_refused(done, workshop, *says)


# --- statistics and propensities ------------------------------------------------------------------------------


def mixed(w: Workshop) -> list[str | Path]:
    log = w.log()
    return ["fit", log, w.collected(log, "statistics")]


def two_models(w: Workshop) -> list[str | Path]:
    days = w.log("one.csv"), w.affected("click", 1, "two.csv")
    return ["fit", w.collected(days[0], "s1"), w.collected(days[1], "s2", "--model", "ubm")]


def one_day_twice(w: Workshop) -> list[str | Path]:
    log = w.log()
    return ["collect", w.collected(log, "s1"), w.collected(log, "s2")]


def damaged_statistics(w: Workshop) -> list[str | Path]:
    statistics = w.collected(w.log(), "s1")
    part = statistics / "part-00000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    return ["fit", statistics]


def pages_from_statistics(w: Workshop) -> list[str | Path]:
    return ["run", w.collected(w.log(), "s1"), "--layout", "session"]


def not_a_fit(w: Workshop) -> list[str | Path]:
    log = w.log()
    return ["weight", log, "--propensities", w.collected(log, "s1")]


def other_cells(w: Workshop) -> list[str | Path]:
    log, fit = w.log(), w.folder / "fit"
    assert w.run("fit", log, "-o", fit, "--position-bins", "1,2").returncode == 0
    return ["weight", w.collected(log, "s1"), "--propensities", fit]


def damaged_fit(w: Workshop) -> list[str | Path]:
    log, fit = w.log(), w.folder / "fit"
    assert w.run("fit", log, "-o", fit).returncode == 0
    (fit / "propensities.parquet").write_bytes(b"PAR1")
    return ["weight", log, "--propensities", fit]


def damaged_manifest(w: Workshop) -> list[str | Path]:
    log, fit = w.log(), w.folder / "fit"
    assert w.run("fit", log, "-o", fit).returncode == 0
    (fit / "manifest.json").write_text("[1, 2", encoding="utf-8")
    return ["weight", log, "--propensities", fit]


def weight_with(name: str) -> Make:
    return lambda w: ["weight", w.log(), "--propensities", w.folder / name]


BUILDING_ON = [
    case("logs and statistics", mixed, "log.csv", "statistics"),
    case("statistics of two models", two_models, "s1", "s2", "pbm", "ubm"),
    case("the statistics of one day twice", one_day_twice, "s1", "s2"),
    case("damaged statistics", damaged_statistics, "part-00000.parquet", "truncated"),
    case("the session layout from statistics", pages_from_statistics, "s1", "--layout session needs the logs", "logs"),
    case("propensities that are not there", weight_with("nowhere"), "nowhere", "manifest.json"),
    case("propensities that are statistics", not_a_fit, "s1", "posbias fit"),
    case("propensities for other cells", other_cells, "position-bins 1,2", "ollect"),
    case("damaged propensities", damaged_fit, "propensities.parquet"),
    case("a damaged manifest", damaged_manifest, "manifest.json"),
]


@pytest.mark.parametrize(("make", "says"), BUILDING_ON)
def test_statistics_and_propensities_that_do_not_fit_are_named(
    workshop: Workshop, make: Make, says: tuple[str, ...]
) -> None:
    assert_refused(attempt(workshop, *make(workshop)), workshop, *says)
