"""Clicks in a table of their own: which rows are clicks is said, or plain to see, or asked for."""

from pathlib import Path

import polars as pl
import pytest
from command_results import Run

CLICKS = 3
COLLECT = ("collect", "shown.parquet", "--clicks", "clicks.parquet", "-o", "out", "--force")


@pytest.fixture
def table(tmp_path: Path) -> pl.DataFrame:
    """Write a log without clicks of 4 pages of 3 documents; return `session`, `doc` and whether it was clicked."""
    log = pl.DataFrame({"session": [n // 3 for n in range(12)], "doc": [f"d{n % 5}" for n in range(12)]})
    log = log.with_columns(query=pl.lit("q"), position=pl.int_range(12) % 3 + 1)
    log.write_parquet(tmp_path / "shown.parquet")
    return log.select("session", "doc", was=pl.int_range(12) % 4 == 0)


def clicks(run: Run, folder: Path, *words: str) -> int:
    """How many clicks are counted."""
    run(*COLLECT, *words, code=0)
    return int(pl.read_parquet(sorted((folder / "out").rglob("*.parquet")))["clicks"].sum())


def refusal(run: Run, folder: Path, *words: str) -> str:
    """What is said where nothing is written."""
    done = run(*COLLECT, *words, code=2)
    assert not (folder / "out").exists()
    return done.stderr


ZERO_ONE = {
    "booleans": pl.col("was"),
    "numbers": pl.col("was").cast(pl.Int64),
    "fractions": pl.col("was").cast(pl.Float64),
    "text": pl.col("was").cast(pl.Int8).cast(pl.String),
    "categories": pl.col("was").cast(pl.Int8).cast(pl.String).cast(pl.Categorical),
    "one or null": pl.when("was").then(1),
}


@pytest.mark.parametrize("kind", ZERO_ONE)
def test_a_column_of_zeros_and_ones_that_is_not_known_stops(
    run_in_process: Run, tmp_path: Path, table: pl.DataFrame, kind: str
) -> None:
    table.select("session", "doc", was_it=ZERO_ONE[kind]).write_parquet(tmp_path / "clicks.parquet")

    said = refusal(run_in_process, tmp_path)

    assert "clicks.parquet: column 'was_it' says yes or no" in said
    how = "--clicks-where was_it=VALUE" if kind == "categories" else "--clicks-click was_it"
    assert f"If it says which rows are clicks, use {how}" in said
    assert "If every row is a click, drop the column." in said


@pytest.mark.parametrize("kind", [kind for kind in ZERO_ONE if kind not in {"one or null", "categories"}])
def test_a_click_column_of_any_name_can_be_named(
    run_in_process: Run, tmp_path: Path, table: pl.DataFrame, kind: str
) -> None:
    table.select("session", "doc", was_it=ZERO_ONE[kind]).write_parquet(tmp_path / "clicks.parquet")

    assert clicks(run_in_process, tmp_path, "--clicks-click", "was_it") == CLICKS
    assert clicks(run_in_process, tmp_path, "--click", "was_it") == CLICKS


def test_a_column_of_yes_and_no_stops_with_the_option_that_reads_it(
    run_in_process: Run, tmp_path: Path, table: pl.DataFrame
) -> None:
    words = table.with_columns(answer=pl.when("was").then(pl.lit("Yes")).otherwise(pl.lit("No"))).drop("was")
    words.write_parquet(tmp_path / "clicks.parquet")

    assert "use --clicks-where answer=VALUE" in refusal(run_in_process, tmp_path)
    assert "--clicks-where answer=VALUE" in refusal(run_in_process, tmp_path, "--clicks-click", "answer")
    assert clicks(run_in_process, tmp_path, "--clicks-where", "answer=Yes") == CLICKS


@pytest.mark.parametrize("dtype", [pl.String(), pl.Categorical(), pl.Enum(["buy", "click", "hover"])])
def test_events_of_which_some_are_clicks_stop_until_it_is_said_which_ones(
    run_in_process: Run, tmp_path: Path, table: pl.DataFrame, dtype: pl.DataType
) -> None:
    kind = pl.when("was").then(pl.lit("click")).otherwise(pl.lit("hover"))
    events = table.select("session", "doc", event=pl.when(pl.col("doc") == "d1").then(pl.lit("buy")).otherwise(kind))
    events.with_columns(pl.col("event").cast(dtype)).write_parquet(tmp_path / "clicks.parquet")
    bought = events.filter(pl.col("event") == "buy").height

    assert "column 'event' holds click and other values (hover, buy, click)" in refusal(run_in_process, tmp_path)
    clicked = clicks(run_in_process, tmp_path, "--clicks-where", "event=click")
    both = clicks(run_in_process, tmp_path, "--clicks-where", "event=click", "--clicks-where", "event=buy")
    assert (clicked, both) == (events.filter(pl.col("event") == "click").height, clicked + bought)
    assert "no row has event=clicked (--clicks-where). 'event' holds: hover, buy, click." in refused_again(
        run_in_process, "event=clicked"
    )


@pytest.mark.parametrize("name", ["event_type", "userAction", "type"])
def test_codes_of_events_stop_until_it_is_said_which_ones_are_clicks(
    run_in_process: Run, tmp_path: Path, table: pl.DataFrame, name: str
) -> None:
    events = table.select("session", "doc", pl.when("was").then(1).otherwise(2).alias(name))
    events.write_parquet(tmp_path / "clicks.parquet")

    assert f"column '{name}' seems to hold codes of events (2, 1)" in refusal(run_in_process, tmp_path)
    assert clicks(run_in_process, tmp_path, "--clicks-where", f"{name}=1") == CLICKS


@pytest.mark.parametrize("name", ["device_type", "transaction", "event_count"])
def test_other_columns_of_few_numbers_do_not_stop(
    run_in_process: Run, tmp_path: Path, table: pl.DataFrame, name: str
) -> None:
    table.filter("was").with_columns(pl.int_range(2, CLICKS + 2).alias(name)).drop("was").write_parquet(
        tmp_path / "clicks.parquet"
    )

    assert clicks(run_in_process, tmp_path) == CLICKS


def refused_again(run: Run, where: str) -> str:
    """What is said against a condition."""
    done = run(*COLLECT[:-3], "-o", "other", "--clicks-where", where, code=2)
    return done.stderr


def test_where_every_row_is_a_click_no_other_column_stops(
    run_in_process: Run, tmp_path: Path, table: pl.DataFrame
) -> None:
    only = table.filter("was").select(
        *("session", "doc"),
        position=pl.int_range(pl.len()) % 2,
        always=pl.lit(1),
        sure=pl.lit(value=True),
        dwell=pl.int_range(pl.len()),
        nothing=pl.lit(None, pl.Int64),
        comment=pl.lit("click"),
        query=pl.Series(["click", "clack", "cluck"]),
    )
    only.write_parquet(tmp_path / "clicks.parquet")

    assert clicks(run_in_process, tmp_path) == CLICKS


def test_a_known_click_column_is_taken_and_of_two_both_are_named(
    run_in_process: Run, tmp_path: Path, table: pl.DataFrame
) -> None:
    known = table.select("session", "doc", wasNot=~pl.col("was"), isClick=pl.col("was"))
    known.write_parquet(tmp_path / "clicks.parquet")
    assert clicks(run_in_process, tmp_path) == CLICKS

    known.rename({"isClick": "clicked", "wasNot": "click"}).write_parquet(tmp_path / "clicks.parquet")
    done = run_in_process(*COLLECT, code=2)
    assert "2 columns could be the click: click, clicked. Choose one with --clicks-click COLUMN." in done.stderr


def test_keys_of_other_names_are_named_for_the_table_of_clicks(
    run_in_process: Run, tmp_path: Path, table: pl.DataFrame
) -> None:
    apart = table.filter("was").select(page=pl.col("session"), thing=pl.col("doc"))
    apart.write_parquet(tmp_path / "clicks.parquet")

    said = refusal(run_in_process, tmp_path)
    assert "no column looks like the session" in said
    assert "--clicks-session COLUMN" in said
    assert "--clicks-doc COLUMN" in said
    assert clicks(run_in_process, tmp_path, "--clicks-session", "page", "--clicks-doc", "thing") == CLICKS


def test_as_many_columns_make_up_a_key_on_both_sides(run_in_process: Run, tmp_path: Path, table: pl.DataFrame) -> None:
    log = pl.read_parquet(tmp_path / "shown.parquet").with_columns(visit=pl.col("session") // 2)
    log.rename({"session": "page"}).write_parquet(tmp_path / "shown.parquet")
    apart = table.filter("was").select("doc", v=pl.col("session") // 2, p=pl.col("session"))
    apart.write_parquet(tmp_path / "clicks.parquet")
    ours = ("--session", "visit", "--session", "page")

    said = refusal(run_in_process, tmp_path, *ours, "--clicks-session", "p")
    assert "the session of the impressions is visit, page, that of the clicks p." in said
    assert "Name as many columns with --clicks-session, in the same order." in said
    assert clicks(run_in_process, tmp_path, *ours, "--clicks-session", "v", "--clicks-session", "p") == CLICKS


def test_numbers_are_compared_as_numbers(run_in_process: Run, tmp_path: Path, table: pl.DataFrame) -> None:
    table.select("session", "doc", kind=pl.when("was").then(2.0).otherwise(3.5)).write_parquet(
        tmp_path / "clicks.parquet"
    )

    assert clicks(run_in_process, tmp_path, "--clicks-where", "kind=2") == CLICKS
