"""Logs of one row per page, with lists of documents and clicks: the same as one row per impression."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Posbias, Refused, Run

Write = Callable[[pl.DataFrame, Path], Any]

WRITERS: dict[str, Write] = {
    "parquet": pl.DataFrame.write_parquet,
    "ndjson": pl.DataFrame.write_ndjson,
    "arrow": pl.DataFrame.write_ipc,
}
PAGES: list[dict[str, object]] = [
    {"session": f"s{page}", "query": "q", "doc": [f"d{(page + at) % 3}" for at in range(3)], "click": clicks}
    for page, clicks in enumerate([[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 1]])
]


def nest(log: pl.DataFrame) -> pl.DataFrame:
    """One row per page, documents in the order of their positions."""
    pages = log.sort("session", "position").group_by("session", "query", maintain_order=True)
    return pages.agg("doc", "click", "position")


def write_pages(path: Path, pages: list[dict[str, object]]) -> Path:
    """Write pages as NDJSON, where values of any kind may stand anywhere."""
    path.write_text("".join(json.dumps(page) + "\n" for page in pages), encoding="utf-8")
    return path


def with_values(tmp_path: Path, page: int, **values: object) -> Path:
    """Write the good pages with other values in one of them."""
    pages = [dict(row) for row in PAGES]
    pages[page - 1] |= values
    return write_pages(tmp_path / "pages.ndjson", pages)


# --- the same result ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.slow
def test_a_log_in_lists_is_the_same_log(posbias: Posbias, log: pl.DataFrame, tmp_path: Path, model: str) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    flat = posbias("collect", tmp_path / "flat.parquet", "--model", model)
    for form, write in WRITERS.items():
        write(nest(log).drop("position"), tmp_path / f"nested.{form}")
        nested = posbias("collect", tmp_path / f"nested.{form}", "--model", model)
        assert nested.statistics.equals(flat.statistics), form
        assert nested.manifest["rows"] == flat.manifest["rows"], form


def test_a_list_of_positions_says_the_position_whatever_the_order(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    from_0 = nest(log).with_columns(pl.col("position").list.eval(pl.element() - 1))
    from_0.with_columns(pl.col("doc", "click", "position").list.reverse()).write_parquet(tmp_path / "nested.parquet")
    flat = posbias("collect", tmp_path / "flat.parquet")
    nested = posbias("collect", tmp_path / "nested.parquet", "--position-base", 0)
    assert nested.statistics.equals(flat.statistics)


def test_the_place_in_the_list_needs_no_position_base(posbias: Posbias, log: pl.DataFrame, tmp_path: Path) -> None:
    nest(log).drop("position").write_parquet(tmp_path / "nested.parquet")
    found = [posbias("collect", tmp_path / "nested.parquet", "--position-base", base).statistics for base in (0, 1)]
    assert found[0].equals(found[1])


def test_arrays_and_booleans_are_lists_too(posbias: Posbias, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    nested = nest(log).with_columns(
        pl.col("doc").list.to_array(4), pl.col("click").list.eval(pl.element().cast(pl.Boolean))
    )
    nested.write_parquet(tmp_path / "nested.parquet")
    flat, arrays = (posbias("collect", tmp_path / f"{name}.parquet") for name in ("flat", "nested"))
    assert arrays.statistics.equals(flat.statistics)


@pytest.mark.parametrize("layout", ["pointwise", "session"])
def test_training_files_from_lists_are_the_same(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path, layout: str
) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    nest(log).write_parquet(tmp_path / "nested.parquet")
    flat, nested = (posbias("run", tmp_path / f"{name}.parquet", "--layout", layout) for name in ("flat", "nested"))
    order = [name for name in ("session", "query", "doc", "label") if name in flat.training.columns]
    assert nested.training.sort(order).equals(flat.training.sort(order))


def test_without_a_session_each_row_of_each_file_is_a_page_of_its_own(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path
) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    pages = nest(log).drop("position", "session")
    half = pages.height // 2
    pages.head(half).write_parquet(tmp_path / "first.parquet")
    pages.tail(-half).write_parquet(tmp_path / "second.parquet")
    flat = posbias("collect", tmp_path / "flat.parquet", "--model", "ubm")
    nested = posbias("collect", tmp_path / "first.parquet", tmp_path / "second.parquet", "--model", "ubm")
    assert nested.statistics.equals(flat.statistics)


def test_a_file_of_pages_without_results_goes_with_the_others(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path
) -> None:
    nest(log).drop("position").with_columns(pl.col("doc").cast(pl.List(pl.Int32))).write_ndjson(tmp_path / "a.ndjson")
    write_pages(tmp_path / "b.ndjson", [{"session": 10**6, "query": "01", "doc": [], "click": []}])
    rows = posbias("collect", tmp_path / "a.ndjson", tmp_path / "b.ndjson").manifest["rows"]
    assert rows == {"read": log.height + 1, "used": log.height, "rejected": {"the page shows no document": 1}}


def test_a_column_per_page_is_that_of_all_its_documents(posbias: Posbias, log: pl.DataFrame, tmp_path: Path) -> None:
    flat = log.with_columns(device=pl.when(pl.col("session") % 2 == 0).then(pl.lit("phone")).otherwise(pl.lit("desk")))
    flat.write_parquet(tmp_path / "flat.parquet")
    pages = flat.sort("session", "position").group_by("session", "query", "device", maintain_order=True)
    pages.agg("doc", "click").write_parquet(tmp_path / "nested.parquet")
    found = [posbias("collect", tmp_path / f"{name}.parquet", "--context", "device") for name in ("flat", "nested")]
    assert found[1].statistics.equals(found[0].statistics)


def test_clicks_apart_meet_the_documents_of_a_list(posbias: Posbias, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    nest(log).drop("position", "click").write_parquet(tmp_path / "shown.parquet")
    clicks = log.filter(pl.col("click") == 1).select("session", "doc")
    pl.concat([clicks, clicks.head(1).with_columns(doc=pl.lit(-1, pl.Int64))]).write_parquet(tmp_path / "c.parquet")
    flat = posbias("collect", tmp_path / "flat.parquet")
    nested = posbias("collect", tmp_path / "shown.parquet", "--clicks", tmp_path / "c.parquet")
    assert nested.statistics.equals(flat.statistics)
    assert nested.manifest["rows"]["clicks"]["lost"] == {"clicks on a document that the page did not show": 1}


# --- what is wrong with it ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"click": [1, 0]}, "the lists of the page differ in length"),
        ({"doc": ["d0", "d1", "d2", "d3"]}, "the lists of the page differ in length"),
        ({"doc": []}, "the lists of the page differ in length"),
        ({"doc": None}, "the page lacks a list"),
        ({"click": None}, "the page lacks a list"),
        ({"doc": ["d0", None, "d2"]}, "the document is missing"),
        ({"click": [0, None, 1]}, "the click is missing"),
        ({"click": [0, 2, 1]}, "the click is neither 0 nor 1"),
        ({"click": [0, "yes", 1]}, "the click is neither 0 nor 1"),
        ({"query": None}, "the query is missing"),
    ],
)
def test_a_page_that_breaks_the_contract_is_named_by_file_and_row(
    refused: Refused, tmp_path: Path, values: dict[str, object], reason: str
) -> None:
    path = with_values(tmp_path, 2, **values)
    assert f"{reason}: {path} row 2" in refused("fit", path)


def test_pages_that_break_the_contract_are_left_out_and_counted(posbias: Posbias, tmp_path: Path) -> None:
    pages = [dict(page) for page in PAGES]
    pages[0]["click"] = [1, 0]
    pages[1]["doc"] = None
    pages[2] |= {"doc": [], "click": []}
    pages[3]["doc"] = ["d0", None, "d2"]
    path = write_pages(tmp_path / "pages.ndjson", pages)
    rows = posbias("collect", path, "--on-bad-rows", "drop", "--max-bad-rows", 0.5).manifest["rows"]
    assert rows["rejected"] == {
        "the document is missing": 1,
        "the page lacks a list": 1,
        "the lists of the page differ in length": 1,
        "the page shows no document": 1,
    }
    assert (rows["read"], rows["used"]) == (12, 8)


def test_a_document_twice_in_a_list_is_named_by_file_and_row(refused: Refused, tmp_path: Path) -> None:
    pages = [{name: value for name, value in page.items() if name != "session"} for page in PAGES]
    pages[3]["doc"] = ["d0", "d1", "d0"]
    first = write_pages(tmp_path / "first.ndjson", pages[:2])
    second = write_pages(tmp_path / "second.ndjson", pages[2:])
    assert f"the session shows a document twice: {second} row 2" in refused("fit", first, second)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"position": 1}, "It must hold a list too, with one entry per document. Without such a column"),
        ({"click": 1}, "'click' (--click) holds Int64. It must hold a list too"),
        ({"query": ["q"]}, "'query' (--query) holds lists"),
        ({"session": ["s"]}, "'session' (--session) holds lists"),
    ],
)
def test_a_column_of_the_wrong_shape_is_refused(
    refused: Refused, tmp_path: Path, values: dict[str, object], message: str
) -> None:
    path = write_pages(tmp_path / "pages.ndjson", [page | values for page in PAGES])
    assert message in refused("fit", path)


def test_a_flat_log_is_not_taken_for_a_nested_one(run_in_process: Run, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    done = run_in_process("fit", tmp_path / "flat.parquet", "-o", tmp_path / "out", "--input-format", "nested")
    assert done.returncode == 2
    assert "--input-format nested, but the documents are in no list: doc (Int64)" in done.stderr


def test_flat_and_nested_files_do_not_go_together(refused: Refused, log: pl.DataFrame, tmp_path: Path) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    nest(log).write_parquet(tmp_path / "nested.parquet")
    assert "List(Int64)" in refused("fit", tmp_path / "flat.parquet", tmp_path / "nested.parquet")
