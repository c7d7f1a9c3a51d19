"""A table of impressions and clicks in one: read as its flat twin, and every row of it accounted for."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Output, Posbias, Refused
from polars.testing import assert_frame_equal

EVENTS = ("--impression-where", "event_type=impression", "--click-where", "event_type=click")
IN_A_VISIT = (*EVENTS, "--session", "visit", "--page-time", "time")
HEADER = "event_type,session,query,doc,position"
GOOD = [
    *("impression,p1,q,a,1", "impression,p1,q,b,2", "impression,p1,q,c,3", "click,p1,q,b,2"),
    *("impression,p2,q,b,1", "impression,p2,q,a,2", "impression,p2,q,c,3", "click,p2,q,b,1"),
    *("impression,p3,q,c,1", "impression,p3,q,a,2", "impression,p3,q,b,3"),
]
START = datetime(2026, 1, 5, 10, tzinfo=UTC).replace(tzinfo=None)


def as_events(log: pl.DataFrame) -> pl.DataFrame:
    """A log as events, those of clicks without a query and a position, in no order."""
    clicked = log.filter(pl.col("click") == 1).select("session", "doc", event_type=pl.lit("click"))
    shown = log.drop("click").with_columns(event_type=pl.lit("impression"))
    return pl.concat([shown, clicked], how="diagonal_relaxed").sample(fraction=1, shuffle=True, seed=3)


def account(output: Output) -> dict[str, Any]:
    """What became of the rows of events; they add up."""
    found: dict[str, Any] = output.manifest["rows"]["raw"]["events"]
    assert found["lines"] == sum(found["used"].values()) + sum(found["not_used"].values())
    return found


def write(path: Path, rows: list[str], header: str = HEADER) -> Path:
    """Write a table of events."""
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.slow
def test_impressions_and_clicks_may_lie_in_files_of_their_own_below_any_folder(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    for kind, events in as_events(log).partition_by("event_type", as_dict=True).items():
        events.write_parquet(tmp_path / f"{kind[0]}.parquet")
    (temporary := tmp_path / "doc=zz [x]*'{y}").mkdir()  # which is no column of what is written below it
    words = (tmp_path / "impression.parquet", tmp_path / "click.parquet", *EVENTS, "--temp-dir", temporary)
    found = posbias("collect", *words)
    assert_frame_equal(found.statistics, posbias("collect", tmp_path / "flat.parquet").statistics)


@pytest.mark.slow
def test_events_that_are_read_in_slices_keep_their_clicks(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    as_events(log).write_parquet(tmp_path / "events.parquet")
    flat = posbias("collect", tmp_path / "flat.parquet").statistics
    monkeypatch.setattr("posbias.cli.work.execution.parse_memory", lambda _: 100_000)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    found = posbias("collect", tmp_path / "events.parquet", *EVENTS).statistics
    assert_frame_equal(found, flat, check_row_order=False)


@pytest.mark.slow
def test_the_names_of_columns_are_free(posbias: Posbias, tmp_path: Path) -> None:
    good = posbias("collect", write(tmp_path / "good.csv", GOOD), *EVENTS)
    other = write(tmp_path / "other.csv", GOOD, "event_type,line,query,doc,position")
    assert_frame_equal(posbias("collect", other, *EVENTS, "--session", "line").statistics, good.statistics)


def test_any_of_several_values_is_a_click(posbias: Posbias, tmp_path: Path) -> None:
    path = write(tmp_path / "events.csv", [*GOOD, "buy,p3,q,c,1", "view,p3,q,c,1"])
    both = posbias("collect", path, *EVENTS, "--click-where", "event_type=buy")
    assert account(both)["used"]["clicks"] == 3
    assert account(both)["other_actions"] == {"view": 1}


def in_visits(*events: tuple[str, int, str, str, str, int | None]) -> pl.DataFrame:
    """Events: kind, seconds since the start, visit, query, document, position."""
    names = ["event_type", "time", "visit", "query", "doc", "position"]
    found = pl.DataFrame(events, schema=names, orient="row")
    return found.with_columns(time=pl.lit(START) + pl.duration(seconds="time"))


PAGES = (
    *(("impression", 0, "v1", "q", doc, place) for place, doc in enumerate("abc", 1)),
    *(("impression", 60, "v1", "q", doc, place) for place, doc in enumerate("bac", 1)),
    *(("impression", 10, "v2", "q", doc, place) for place, doc in enumerate("abc", 1)),
)
CLICKS = (
    ("click", 5, "v1", "", "b", None),  # of the first page: second position
    ("click", 60, "v1", "", "c", None),  # of the second page, at the same moment: third position
    ("click", 80, "v1", "", "b", None),  # of the second page: first position
)
CLICKED = {("a", 1): 0, ("a", 2): 0, ("b", 1): 1, ("b", 2): 1, ("c", 3): 1}


def clicked_cells(output: Output) -> dict[tuple[str, int], int]:
    """Clicks by document and position."""
    return {(row["doc"], row["position"]): row["clicks"] for row in output.statistics.iter_rows(named=True)}


@pytest.mark.parametrize(
    "time",
    [
        pl.col("time"),
        pl.col("time").dt.replace_time_zone("Europe/Berlin"),
        pl.col("time").dt.strftime("%Y-%m-%d %H:%M:%S"),
        pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%S.%3fZ"),
        pl.col("time").dt.strftime("%Y-%m-%dT%H:%M:%S+02:00"),
        pl.col("time").dt.strftime("%Y%m%d%H%M%S").cast(pl.Int64),
        *(pl.col("time").dt.epoch(unit) for unit in ("s", "ms", "us", "ns")),
        pl.col("time").dt.epoch("ms").cast(pl.String),
    ],
    ids=["datetime", "zone", "text", "iso", "offset", "digits", "s", "ms", "us", "ns", "ms as text"],
)
@pytest.mark.slow_after(4)
def test_a_click_belongs_to_the_last_impression_of_its_document_in_the_visit(
    posbias: Posbias, tmp_path: Path, time: pl.Expr
) -> None:
    in_visits(*CLICKS, *PAGES).with_columns(time=time).write_parquet(tmp_path / "events.parquet")
    found = posbias("collect", tmp_path / "events.parquet", *IN_A_VISIT)
    assert clicked_cells(found) == CLICKED
    assert account(found)["not_used"] == {}


@pytest.mark.slow
def test_the_window_says_how_late_a_click_may_come(posbias: Posbias, tmp_path: Path) -> None:
    in_visits(*PAGES, *CLICKS).write_parquet(tmp_path / "events.parquet")
    for window, clicks in (("4s", 1), ("5s", 2), ("19s", 2), ("20s", 3)):
        found = posbias("collect", tmp_path / "events.parquet", *IN_A_VISIT, "--click-window", window)
        assert account(found)["used"]["clicks"] == clicks


def test_training_files_carry_contexts_and_numbers_of_a_table_without_types(posbias: Posbias, tmp_path: Path) -> None:
    rows = [f"{row},{place % 3},phone" for place, row in enumerate(GOOD)]
    path = write(tmp_path / "events.csv", rows, f"{HEADER},price,device")
    options = ("--feature", "price", "--context", "device", "--method", "ctr", "--layout", "session")
    training = posbias("run", path, *EVENTS, *options).training
    assert training["price"].dtype.is_numeric()
    assert training["click"].sum() == 2


def test_a_page_of_one_time_ends_where_the_next_begins(posbias: Posbias, tmp_path: Path) -> None:
    events = in_visits(*PAGES, *CLICKS)
    later = events.with_columns(visit=pl.format("{}x", "visit"), time=pl.col("time") + timedelta(days=1))
    pl.concat([events, later]).write_parquet(tmp_path / "events.parquet")
    found = posbias("collect", tmp_path / "events.parquet", *IN_A_VISIT, "--timestamp", "time")
    assert found.manifest["rows"]["read"] == 18
    assert found.statistics["clicks"].sum() == 6


@pytest.mark.slow
def test_impressions_of_a_page_may_be_less_than_a_second_apart(posbias: Posbias, tmp_path: Path) -> None:
    at_once = in_visits(*PAGES, *CLICKS)
    delay = pl.duration(milliseconds=300 * pl.col("position").fill_null(4))
    at_once.write_parquet(tmp_path / "at_once.parquet")
    at_once.with_columns(pl.col("time") + delay).sort("doc").write_parquet(tmp_path / "apart.parquet")
    words = (*IN_A_VISIT, "--model", "ubm")
    found = posbias("collect", tmp_path / "apart.parquet", *words)
    assert_frame_equal(found.statistics, posbias("collect", tmp_path / "at_once.parquet", *words).statistics)


def test_times_that_make_a_page_of_every_row_are_refused(refused: Refused, tmp_path: Path) -> None:
    pages = [("impression", 60 * page + 2 * at, "v1", "q", f"d{at}", at) for page in range(30) for at in range(1, 6)]
    in_visits(*pages, ("click", 12, "v1", "", "d1", None)).write_parquet(tmp_path / "events.parquet")
    message = refused("collect", tmp_path / "events.parquet", *IN_A_VISIT)
    assert "the 150 impressions would be 150 pages, nearly all with one result" in message
    assert "Name the id of a page with --session instead" in message


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "column",
    [
        pl.col("position").cast(pl.Duration("ms")),
        pl.time(1, 2, "position"),
        pl.lit(START).dt.replace_time_zone("Europe/Berlin"),
        pl.lit(START).cast(pl.Datetime("ns")),
        pl.lit(START.date()),
        pl.format("{}", "position").cast(pl.Categorical),
        pl.col("position").cast(pl.Decimal(20, 3)),
        pl.lit(2**64 - 1, pl.UInt64),
        pl.lit(float("nan")),
        pl.lit(None),
    ],
    ids=str,
)
def test_columns_of_any_type_and_case_are_those_of_the_flat_log(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path, column: pl.Expr
) -> None:
    log = log.head(400).with_columns(column.alias("Extra"), pl.col("position").alias("extra"), DOC=pl.lit("x"))
    log.write_parquet(tmp_path / "flat.parquet")
    as_events(log).write_parquet(tmp_path / "events.parquet")
    words = ("--context", "Extra", "--context", "extra", "--doc", "doc")
    flat = posbias("collect", tmp_path / "flat.parquet", *words).statistics
    assert_frame_equal(posbias("collect", tmp_path / "events.parquet", *EVENTS, *words).statistics, flat)


@pytest.mark.parametrize("time", [pl.time(10, 0, 0), pl.duration(seconds=5), pl.lit(value=True)], ids=str)
def test_a_column_of_another_type_is_no_time(refused: Refused, tmp_path: Path, time: pl.Expr) -> None:
    in_visits(*PAGES, *CLICKS).with_columns(time=time).write_parquet(tmp_path / "events.parquet")
    assert "12 x rows without a time that can be read (--page-time)" in refused(
        "collect", tmp_path / "events.parquet", *IN_A_VISIT
    )


def test_ids_of_several_columns_do_not_collide(posbias: Posbias, tmp_path: Path) -> None:
    rows = [f"impression,{page},q,{doc},{place}" for page in ("a ,b", "a, b") for place, doc in enumerate("xy", 1)]
    rows += ["click,a , b,q,x,", "click,a ,b,q,y,"]
    path = write(tmp_path / "events.csv", rows, "event_type,one,two,query,doc,position")
    found = posbias("collect", path, *EVENTS, "--session", "one", "--session", "two")
    assert account(found)["not_used"] == {"clicks on a page that was not recorded": 1}
    assert clicked_cells(found) == {("x", 1): 0, ("y", 2): 1}
