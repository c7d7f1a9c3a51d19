"""Rows and pages that cannot be counted, and documents twice on a page: named, left out, or counted as is said."""

import json
from pathlib import Path

import polars as pl
import pytest
from command_results import manifest_of
from workshop import N_POSITIONS, ROW, Row, Workshop, assert_refused, attempt, good_rows

from posbias.core.simulation.simulate import SimulationOptions, simulate

# --- rows -----------------------------------------------------------------------------------------------------

WEIGHT_FAULTS = ["0", "heavy", None]


def shown(column: str, value: object) -> str:
    """How a value stands in a message."""
    return f"({column} = {value!r})"


@pytest.mark.parametrize("value", WEIGHT_FAULTS)
def test_a_weight_that_is_not_above_0_is_named_and_left_out_on_request(workshop: Workshop, value: str | None) -> None:
    rows = [{**row, "times": 2} for row in good_rows()]
    rows[ROW - 1]["times"] = value
    log = workshop.log(rows=rows)
    reason = "the weight is not a number above 0"
    weighted = ("collect", log, "--weight-column", "times")
    says = (f"1 x {reason}", f"{log} row {ROW} {shown('times', value)}")
    assert_refused(attempt(workshop, *weighted), workshop, *says)
    done = attempt(workshop, *weighted, "--on-bad-rows", "drop")
    assert done.returncode == 0, done.stderr
    assert rows_of(workshop) == {"read": 120, "used": 119, "rejected": {reason: 1}}
    assert impressions_of(workshop) == 2 * 119


def rows_of(workshop: Workshop) -> dict[str, object]:
    """What the manifest says about the rows."""
    return manifest_of(workshop.output)["rows"]


def impressions_of(workshop: Workshop) -> float:
    """Impressions that were counted."""
    return float(pl.read_parquet(workshop.output / "part-*.parquet")["impressions"].sum())


def test_rows_are_located_in_their_own_file_among_several_of_every_format(workshop: Workshop) -> None:
    rows = good_rows()
    for number, name in ((1, "a"), (40, "b"), (120, "c")):  # the first row, one between, the last
        broken = [{**row, "session": f"{name}{row['session']}", "doc": str(row["doc"])} for row in rows]
        broken[number - 1]["position"] = -number
        frame = pl.DataFrame(broken)
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
        done = attempt(workshop, "collect", *files)
        assert_refused(done, workshop, "3 of 360 rows", "; ".join(places))


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
    arguments = ("collect", log, "--model", model)
    done = attempt(workshop, *arguments, "--session", "visit")
    assert_refused(done, workshop, "several queries", "a visit", "--session visit --session query_time", f"{log} row")
    done = attempt(workshop, *arguments, "--session", "visit", "--session", "query_time")
    assert done.returncode == 0, done.stderr


def test_visits_are_refused_even_where_faulty_pages_are_left_out(workshop: Workshop) -> None:
    done = attempt(workshop, "collect", workshop.log(rows=visits()), "--on-bad-rows", "drop")
    assert_refused(done, workshop, "several queries", "a visit")


def with_clicks_missing(n_rows: int) -> list[Row]:
    """The good log, of which the first rows lack the click."""
    return [{**row, "click": None if number < n_rows else row["click"]} for number, row in enumerate(good_rows())]


def test_as_many_bad_rows_as_allowed_are_left_out_and_not_one_more(workshop: Workshop) -> None:
    done = attempt(workshop, "collect", workshop.log("six.csv", with_clicks_missing(6)), "--on-bad-rows", "drop")
    assert done.returncode == 0, done.stderr
    seven = workshop.log("seven.csv", with_clicks_missing(7))
    done = workshop.run("collect", seven, "--on-bad-rows", "drop", "-o", workshop.folder / "seven")
    assert done.returncode == 2
    assert "7 of 120 rows" in done.stderr
    assert not (workshop.folder / "seven").exists()


def only_clicks_written(value: object) -> list[Row]:
    """The good log with nothing, or something else, where no click was."""
    return [{**row, "click": 1 if row["click"] else value} for row in good_rows()]


@pytest.mark.parametrize("form", ["csv", "quoted csv", "parquet", "boolean", "ndjson", "lists"])
@pytest.mark.slow_after(3)
def test_an_empty_click_cell_is_no_click_where_that_is_said(workshop: Workshop, form: str) -> None:
    full, empty = pl.DataFrame(good_rows()), pl.DataFrame(only_clicks_written(None))
    path = workshop.folder / f"empty.{'parquet' if form in ('parquet', 'boolean') else form.rpartition(' ')[2]}"
    if "csv" in form:
        quoted = "quoted" in form
        text = empty.with_columns(pl.col("click").cast(pl.String).fill_null(" ")) if quoted else empty
        text.write_csv(path, quote_style="always" if quoted else "necessary")
        full = full.with_columns(pl.col("session", "query", "doc").cast(pl.String))
    elif form == "lists":
        path = path.with_suffix(".ndjson")
        empty.group_by("session", "query", maintain_order=True).agg("doc", "position", "click").write_ndjson(path)
    elif form == "ndjson":
        empty.write_ndjson(path)
    else:
        written = empty.with_columns(click=pl.col("click") == 1) if form == "boolean" else empty
        written.write_parquet(path)
    done = attempt(workshop, "collect", path, "--null-click", "0")
    assert done.returncode == 0, done.stderr
    full.write_parquet(workshop.folder / "full.parquet")
    assert workshop.run("collect", workshop.folder / "full.parquet", "-o", workshop.folder / "full").returncode == 0
    tables = [
        pl.read_parquet(at / "part-*.parquet").sort(pl.all()) for at in (workshop.output, workshop.folder / "full")
    ]
    assert tables[0].equals(tables[1])


def test_an_empty_click_cell_in_a_table_of_clicks_is_no_click_where_that_is_said(workshop: Workshop) -> None:
    shown = [{key: value for key, value in row.items() if key != "click"} for row in good_rows()]
    clicks = [{key: row[key] for key in ("session", "doc", "click")} for row in only_clicks_written(None)]
    apart = (workshop.log("shown.csv", shown), "--clicks", workshop.log("clicks.csv", clicks))
    assert_refused(attempt(workshop, "collect", *apart), workshop, "'click' says how often a row was clicked")
    done = attempt(workshop, "collect", *apart, "--null-click", "0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["statistics"]["clicks"] == sum(int(str(row["click"])) for row in good_rows())


TWICE = 40
"""Pages on which the document of position 1 also stands at position 3."""


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    """Return a log of 500 pages of 4 positions, on some of which a document stands twice."""
    shown = simulate(SimulationOptions(n_sessions=500, n_queries=10, docs_per_query=6, n_positions=4, seed=5)).log
    again = (pl.col("session") < TWICE) & (pl.col("position") == 3)
    top = pl.col("doc").filter(pl.col("position") == 1).first().over("session")
    return shown.with_columns(doc=pl.when(again).then(top).otherwise("doc"))


@pytest.fixture
def path(workshop: Workshop, log: pl.DataFrame) -> Path:
    """Return the log as a file, in which sessions lie scattered."""
    file = workshop.folder / "log.parquet"
    log.sample(fraction=1.0, shuffle=True, seed=1).write_parquet(file)
    return file


def reduce_to(memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave commands so little memory that they work in buckets, where that is asked for."""

    def tiny(_: str) -> int:
        return 600_000

    if memory == "buckets":
        monkeypatch.setattr("posbias.cli.work.execution.parse_memory", tiny)


def counts_of(workshop: Workshop) -> list[tuple[int, int]]:
    """Impressions and clicks by position."""
    return pl.read_parquet(workshop.output / "propensities.parquet").sort("position")["impressions", "clicks"].rows()


def by_position(log: pl.DataFrame) -> list[tuple[int, int]]:
    """The same, counted by hand."""
    counted = log.group_by("position").agg(pl.len(), pl.col("click").cast(pl.Int64).sum()).sort("position")
    return counted["len", "click"].rows()


@pytest.mark.parametrize("model", ["pbm", "ubm"])
def test_a_document_twice_stops_the_run_and_the_error_names_the_option(
    workshop: Workshop, path: Path, model: str
) -> None:
    for said in ((), ("--duplicate-docs", "error")):
        done = attempt(workshop, "fit", path, "--model", model, *said)
        assert_refused(done, workshop, f"{TWICE} x the session shows a document twice", "--duplicate-docs first")


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("memory", ["whole", "buckets"])
@pytest.mark.parametrize("command", ["fit", "run"])
def test_first_counts_the_first_row_with_its_own_click(
    workshop: Workshop, path: Path, log: pl.DataFrame, command: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce_to(memory, monkeypatch)
    done = attempt(workshop, command, path, "--duplicate-docs", "first")
    assert done.returncode == 0, done.stderr
    once = log.filter((pl.col("session") >= TWICE) | (pl.col("position") != 3))
    assert counts_of(workshop) == by_position(once)
    reason = "the document stands further up on the page"
    assert rows_of(workshop) == {"read": 2000, "used": 2000 - TWICE, "rejected": {reason: TWICE}}
    assert f"{TWICE} left out ({TWICE} because {reason})" in done.stderr


@pytest.mark.parametrize("memory", ["whole", "buckets"])
@pytest.mark.slow_after(1)
def test_keep_counts_every_row_at_its_position(
    workshop: Workshop, path: Path, log: pl.DataFrame, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce_to(memory, monkeypatch)
    done = attempt(workshop, "fit", path, "--duplicate-docs", "keep", "--check-pages", "all")
    assert done.returncode == 0, done.stderr
    assert counts_of(workshop) == by_position(log)
    assert rows_of(workshop) == {"read": 2000, "used": 2000, "rejected": {}}


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["whole", "buckets"])
def test_first_counts_nothing_below_a_click_that_is_left_out_in_ubm(
    workshop: Workshop, path: Path, log: pl.DataFrame, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reduce_to(memory, monkeypatch)
    clicked = log.filter(pl.col("session") < TWICE, pl.col("position") == 3, pl.col("click") == 1).height
    assert clicked > 0
    done = attempt(workshop, "fit", path, "--duplicate-docs", "first", "--model", "ubm")
    assert done.returncode == 0, done.stderr
    assert rows_of(workshop)["rejected"] == {
        "the document stands further up on the page": TWICE,
        "a repeated document was clicked further up on the page": clicked,
    }


@pytest.mark.parametrize("said", ["first", "keep"])
def test_a_visit_is_no_page_that_shows_a_document_twice(workshop: Workshop, log: pl.DataFrame, said: str) -> None:
    file = workshop.folder / "visits.parquet"
    log.filter(pl.col("session") >= TWICE).with_columns(session=pl.col("query")).write_parquet(file)
    done = attempt(workshop, "fit", file, "--duplicate-docs", said)
    assert_refused(done, workshop, "cannot be one results page", "this looks like a visit")
