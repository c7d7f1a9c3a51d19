"""Cells of several columns in every form of a log: the counts are those of places that are coded by one number."""

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
from command_results import Posbias, Refused
from polars.testing import assert_frame_equal

COLUMNS = 3
PAIR = ("query", "doc")
BLOCK, GRID = ("--cell", "block"), ("--cell", "row", "--cell", "column")
HIT = pl.col("click") == 1


@pytest.fixture(scope="module")
def pages() -> pl.DataFrame:
    """Return 60 pages of two rows and three columns, a third of them below a block."""
    place, page = pl.col("place"), pl.col("session")
    shown = pl.DataFrame({"session": range(60)}).join(pl.DataFrame({"place": range(6)}), how="cross")
    return shown.select(
        "session",
        query=pl.format("q{}", page % 4),
        doc=pl.format("d{}", (place + page // 4) % 9),
        row=place // COLUMNS + 1,
        column=place % COLUMNS + 1,
        place=place + 1,
        block=page % 3 == 0,
        click=(pl.concat_str("session", place * 7 + 3).hash(1) % 4 == 0).cast(pl.Int8),
    )


def listed(pages: pl.DataFrame, *of_page: str) -> pl.DataFrame:
    """One row a page, with lists."""
    return pages.group_by("session", "query", *of_page, maintain_order=True).agg(
        name for name in pages.columns if name not in {"session", "query", *of_page}
    )


def joined(pages: pl.DataFrame, *of_page: str) -> str:
    """The same as CSV, its lists as text."""
    rows = listed(pages, *of_page)
    lists = [name for name, dtype in rows.schema.items() if isinstance(dtype, pl.List)]
    return rows.with_columns(pl.col(lists).cast(pl.List(pl.String)).list.join("|")).write_csv()


def events(pages: pl.DataFrame) -> pl.DataFrame:
    """A row for each result that was shown, and one for each click, which says of nothing else."""
    shown = pages.drop("click").with_columns(event=pl.lit("view"))
    clicked = pages.filter(HIT).select("session", "query", "doc", event=pl.lit("tap"))
    return pl.concat([shown, clicked], how="diagonal")


def sums(pages: pl.DataFrame) -> pl.DataFrame:
    keys = [name for name in pages.columns if name not in {"session", "click"}]
    return pages.group_by(keys, maintain_order=True).agg(shown=pl.len(), click=pl.col("click").cast(pl.Int64).sum())


OF_BLOCKS = ["session", "query", "doc", pl.col("place").alias("position"), "block", "click"]
OF_GRIDS = ["session", "query", "doc", "row", "column", "click"]
WORDS = pl.when("block").then(pl.lit("an answer"))
EVENTS = ("--impression-where", "event=view", "--click-where", "event=tap")
Form = tuple[str, Callable[[pl.DataFrame], pl.DataFrame | str], tuple[str, ...]]
FORMS: dict[str, Form] = {
    "booleans": ("parquet", lambda pages: pages, ()),
    "booleans as text": ("csv", lambda pages: pages.write_csv(), ()),
    "numbers as text": ("csv", lambda pages: pages.with_columns(pl.col("block").cast(pl.Int8)).write_csv(), ()),
    "fractions": ("parquet", lambda pages: pages.with_columns(pl.col("block") * 0.5), ()),
    "words, or nothing": ("parquet", lambda pages: pages.with_columns(block=WORDS), ()),
    "words, or nothing, as text": ("csv", lambda pages: pages.with_columns(block=WORDS).write_csv(), ()),
    "lines of JSON": ("jsonl", lambda pages: pages.write_ndjson(), ()),
    "a value of the page": ("parquet", lambda pages: listed(pages, "block"), ()),
    "places in the list": ("parquet", lambda pages: listed(pages, "block").drop("position"), ()),
    "a list": ("parquet", listed, ()),
    "a value of the page, beside text": ("csv", lambda pages: joined(pages, "block"), ("--list-separator", "|")),
    "a list as text": ("csv", joined, ("--list-separator", "|")),
    "events": ("parquet", events, EVENTS),
    "sums": ("csv", lambda pages: sums(pages).write_csv(), ("--impressions", "shown")),
    "a query": (
        "parquet",
        lambda pages: pages.rename({"block": "b"}),
        ("--sql", "SELECT * EXCLUDE (b), CASE WHEN b THEN 'yes' ELSE 'no' END AS block FROM log"),
    ),
}
NO = ("false", "0", "0.0", "", "no")  # values of the column, as text, where there is no block
GRIDS: dict[str, Form] = {
    "rows": ("parquet", lambda pages: pages, ()),
    "rows in any order": ("csv", lambda pages: pages.sample(fraction=1, shuffle=True, seed=1).write_csv(), ()),
    "fractions": ("parquet", lambda pages: pages.with_columns(pl.col("row", "column").cast(pl.Float64)), ()),
    "lists": ("parquet", listed, ()),
    "lists as text": ("csv", joined, ("--list-separator", "|")),
    "events": ("parquet", events, EVENTS),
    "sums": ("csv", lambda pages: sums(pages).write_csv(), ("--impressions", "shown")),
    "documents once": ("parquet", lambda pages: pages, ("--duplicate-docs", "first", "--check-pages", "all")),
    "numbers from 0": (
        "parquet",
        lambda pages: pages.with_columns(pl.col("row", "column") - 1),
        ("--position-base", "0"),
    ),
}


def written(folder: Path, form: Form, pages: pl.DataFrame) -> Path:
    ending, write, _ = form
    path, content = folder / f"log.{ending}", write(pages)
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    else:
        content.write_parquet(path)
    return path


def by_number(counts: pl.DataFrame, number: pl.Expr) -> pl.DataFrame:
    """Counts with the number of the place as the position."""
    counts = counts.select(*PAIR, number.cast(pl.Int64).alias("place"), "impressions", "clicks")
    return counts.sort(*PAIR, "place")


@pytest.mark.slow_after(6)
@pytest.mark.parametrize("name", FORMS)
def test_a_block_above_is_counted_in_every_form_as_places_of_their_own(
    posbias: Posbias, pages: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    form, shown = FORMS[name], pages.select(OF_BLOCKS)
    coded = shown.with_columns(pl.col("position") + pl.col("block").cast(pl.Int64) * 6)
    coded.write_parquet(tmp_path / "coded.parquet")

    counted = posbias("collect", written(tmp_path, form, shown), *BLOCK, *form[2]).statistics

    is_block = ~pl.col("block").cast(pl.String).fill_null("").is_in(NO)
    of_number = posbias("collect", tmp_path / "coded.parquet", "--click", "click").statistics
    assert_frame_equal(
        by_number(counted, pl.col("position") + is_block.cast(pl.Int64) * 6), by_number(of_number, pl.col("position"))
    )


@pytest.mark.slow_after(4)
@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_without_a_position_is_counted_in_every_form_as_numbered_places(
    posbias: Posbias, pages: pl.DataFrame, tmp_path: Path, name: str
) -> None:
    form = GRIDS[name]
    pages.select("session", "query", "doc", "click", position="place").write_parquet(tmp_path / "coded.parquet")

    found = posbias("collect", written(tmp_path, form, pages.select(OF_GRIDS)), *GRID, *form[2])

    first = int(name == "numbers from 0")
    place = (pl.col("row").cast(pl.Int32) - 1 + first) * COLUMNS + pl.col("column").cast(pl.Int32) + first
    of_number = posbias("collect", tmp_path / "coded.parquet", "--click", "click").statistics
    assert_frame_equal(by_number(found.statistics, place), by_number(of_number, pl.col("position")))
    assert found.manifest["counted"]["cell"] == ["row", "column"]
    assert found.statistics["position"].to_list() == (found.statistics["column"].cast(pl.Int32) + first).to_list()


def test_a_block_above_is_counted_with_clicks_apart(posbias: Posbias, pages: pl.DataFrame, tmp_path: Path) -> None:
    shown = pages.select(OF_BLOCKS)
    shown.write_parquet(tmp_path / "log.parquet")
    shown.drop("click").write_parquet(tmp_path / "shown.parquet")
    shown.filter(HIT).select("session", "doc").write_parquet(tmp_path / "clicks.parquet")

    apart = posbias("collect", tmp_path / "shown.parquet", "--clicks", tmp_path / "clicks.parquet", *BLOCK)

    assert_frame_equal(apart.statistics, posbias("collect", tmp_path / "log.parquet", *BLOCK).statistics)


def test_an_id_as_a_cell_is_refused_before_a_table_of_its_cells_is_made(
    refused: Refused, log: pl.DataFrame, tmp_path: Path
) -> None:
    many = pl.concat([log.with_columns(pl.col("session") + 1000 * copy) for copy in range(3)])
    many.with_columns(user=pl.col("session")).write_parquet(tmp_path / "log.parquet")

    message = " ".join(refused("fit", tmp_path / "log.parquet", "--cell", "user").split())

    assert "--cell user: the log has 4,800 cells (position x user)" in message
    assert "this column has 1,200 different values" in message
    assert "Is it an id?" in message
