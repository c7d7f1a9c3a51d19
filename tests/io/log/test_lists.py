"""Pages with their documents in a list: places, columns of a page, clicks apart, structs, and lists that are none."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Posbias, Refused, Run, manifest_of
from log_forms import FORMS, Event, small_log, write

PAGES: list[Event] = [
    {"session": f"s{page}", "query": "q", "doc": [f"d{(page + at) % 3}" for at in range(3)], "click": clicks}
    for page, clicks in enumerate([[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 1]])
]


def nest(log: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """One row per page, documents in the order of their positions."""
    pages = log.sort("session", "position").group_by("session", "query", *columns, maintain_order=True)
    return pages.agg("doc", "click", "position")


@pytest.fixture
def alike(posbias: Posbias, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that asserts that a log and its pages, in any number of files, are counted alike."""

    def same(flat: pl.DataFrame, pages: list[pl.DataFrame], *options: str, of_flat: tuple[str, ...] = ()) -> Any:  # noqa: ANN401
        files = write(tmp_path, {"flat": flat} | {f"pages-{number}": frame for number, frame in enumerate(pages)})
        found = posbias("collect", *files[1:], *options)
        assert found.statistics.equals(posbias("collect", files[0], *(of_flat or options)).statistics)
        return found.manifest

    return same


def test_the_place_in_the_list_needs_no_position_base(alike: Callable[..., Any], log: pl.DataFrame) -> None:
    alike(log, [nest(log).drop("position")], "--position-base", "0", of_flat=("--position-base", "1"))


def test_without_a_session_each_row_of_each_file_is_a_page_of_its_own(
    alike: Callable[..., Any], log: pl.DataFrame
) -> None:
    pages = nest(log).drop("position", "session")
    alike(log, [pages.head(200), pages.tail(-200)], "--model", "ubm")


def test_a_column_per_page_is_that_of_all_its_documents(alike: Callable[..., Any], log: pl.DataFrame) -> None:
    flat = log.with_columns(device=pl.when(pl.col("session") % 2 == 0).then(pl.lit("phone")).otherwise(pl.lit("desk")))
    alike(flat, [nest(flat, "device").drop("position")], "--context", "device")


def test_clicks_apart_meet_the_documents_of_a_list(posbias: Posbias, log: pl.DataFrame, tmp_path: Path) -> None:
    clicks = log.filter(pl.col("click") == 1).select("session", "doc")
    clicks = pl.concat([clicks, clicks.head(1).with_columns(doc=pl.lit(-1, pl.Int64))])
    shown = nest(log).drop("position", "click")
    flat, nested, apart = write(tmp_path, {"flat": log, "shown": shown, "c": clicks})
    found = posbias("collect", nested, "--clicks", apart)
    assert found.statistics.equals(posbias("collect", flat).statistics)
    assert found.manifest["rows"]["clicks"]["lost"] == {"clicks on a document that the page did not show": 1}


def test_a_file_of_pages_without_results_goes_with_the_others(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path
) -> None:
    pages = nest(log).drop("position").with_columns(pl.col("doc").cast(pl.List(pl.Int32)))
    empty: list[Event] = [{"session": 10**6, "query": "01", "doc": [], "click": []}]
    rows = posbias("collect", *write(tmp_path, {"a.ndjson": pages, "b.ndjson": empty})).manifest["rows"]
    assert rows == {"read": log.height + 1, "used": log.height, "rejected": {"the page shows no document": 1}}


def test_pages_that_break_the_contract_are_left_out_and_counted(posbias: Posbias, tmp_path: Path) -> None:
    changes: list[Event] = [{"click": [1, 0]}, {"doc": None}, {"doc": [], "click": []}, {"doc": ["d0", None, "d2"]}]
    pages = [page | change for page, change in zip(PAGES, [*changes, {}, {}], strict=True)]
    files = write(tmp_path, {"pages.ndjson": pages})
    rows = posbias("collect", *files, "--on-bad-rows", "drop", "--max-bad-rows", 0.5).manifest["rows"]
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
    files = write(tmp_path, {"first.ndjson": pages[:2], "second.ndjson": pages[2:]})
    assert f"the session shows a document twice: {files[1]} row 2" in refused("fit", *files)


def test_flat_and_nested_files_are_told_apart(refused: Refused, log: pl.DataFrame, tmp_path: Path) -> None:
    files = write(tmp_path, {"flat": log, "nested": nest(log)})
    assert "List(Int64)" in refused("fit", *files)


# --- structs, and ids of what was clicked -------------------------------------------------------------------------


def test_fields_of_structs_in_parquet_are_columns_for_every_option(posbias: Posbias, tmp_path: Path) -> None:
    (path,) = write(tmp_path, FORMS["structs"].write(small_log()))
    frame = pl.read_ndjson(path).with_columns(client=pl.struct(device=pl.lit("phone"), at=pl.lit("2026-01-05")))
    files = write(tmp_path, {"pages.parquet": frame})
    options = ["--context", "client.device", "--timestamp", "client.at"]
    found = posbias("fit", *FORMS["structs"].words(files), *options)
    assert found.propensities["client.device"].unique().to_list() == ["phone"]
    assert found.manifest["days"]["first"] == "2026-01-05"


def test_fields_are_recognised_by_the_end_of_their_path_and_that_is_said(run_in_process: Run, tmp_path: Path) -> None:
    (path,) = write(tmp_path, FORMS["structs"].write(small_log()))
    path.write_text(path.read_text().replace('"doc": {"sku": ', '"doc": {"doc_id": '))
    said = " ".join(run_in_process("collect", path, "-o", tmp_path / "out", code=0).stderr.split())
    assert "--query event.query.text --doc results.doc.doc_id --click results.click" in said


def test_a_struct_is_no_id(refused: Refused, tmp_path: Path) -> None:
    files = write(tmp_path, FORMS["structs"].write(small_log()))
    said = refused("fit", *files, "--doc", "results")
    assert "holds structs. Name the field that is the id: results.doc.sku, results.click" in said


def test_clicks_on_documents_that_the_page_does_not_list_are_counted(run_in_process: Run, tmp_path: Path) -> None:
    log = small_log()
    pages: list[Event] = [
        {"query": page.query, "doc": page.docs, "clicked": [*log.clicked(page), "elsewhere", "elsewhere"]}
        for page in log.pages
    ]
    files = write(tmp_path, {"pages.ndjson": pages})
    run_in_process("collect", *files, "--clicked", "clicked", "-o", "out")
    found = manifest_of(tmp_path / "out")
    assert found["rows"]["clicks"]["lost"] == {"clicks on a document that the page did not show": 2 * len(pages)}
    assert found["statistics"]["clicks"] == len(log.clicks)


def test_the_order_of_documents_with_clicks_behind_their_ids_is_no_position_unless_that_is_said(
    refused: Refused, tmp_path: Path
) -> None:
    words = FORMS["clicks behind ids"].words(write(tmp_path, FORMS["clicks behind ids"].write(small_log())))
    said = " ".join(refused("fit", *(word for word in words if word != "--order-is-position")).split())
    assert "in random order, as those of MIND" in said


@pytest.mark.parametrize(("option", "marks"), [("--clicked", ["d1", "d2"]), ("--click", [1, 2])])
def test_one_click_without_brackets_is_a_click(posbias: Posbias, tmp_path: Path, option: str, marks: list[Any]) -> None:
    cells = [json.dumps([marks[0]]), str(marks[0]), json.dumps(marks), ""]
    pages = pl.DataFrame({"query": "q", "doc": '["d1", "d2"]', "marks": cells})
    (file,) = write(tmp_path, {"pages": pages}, "csv")
    empty = ["--null-click", "0"] if option == "--clicked" else ["--click-ranks", "1"]
    statistics = posbias("collect", file, option, "marks", *empty, "--list-separator", "json").statistics
    clicks = statistics.group_by("position").agg(pl.col("clicks").sum()).sort("position")
    assert clicks["clicks"].to_list() == [3, 1]


def test_clicks_that_are_cut_off_are_no_pages_without_a_click(
    run_in_process: Run, posbias: Posbias, tmp_path: Path
) -> None:
    pages = pl.DataFrame({"query": "q", "doc": '["d1", "d2"]', "marks": ["[1]", "[1, 2", None, "[2]"]})
    write(tmp_path, {"pages": pages}, "csv")
    said = ["collect", "pages.csv", "--list-separator", "json"]
    refused = run_in_process(*said, "--click", "marks", "--click-ranks", "1", "-o", "refused", code=2)
    assert "row 2 (marks = " in refused.stderr
    ids = pages.with_columns(pl.col("marks").str.replace_all(r"(\d)", '"d$1"'))
    (file,) = write(tmp_path, {"ids": ids}, "csv")
    found = posbias(said[0], file, *said[2:], "--clicked", "marks", "--null-click", "0")
    assert found.manifest["rows"]["clicks"]["lost"] == {"clicks on a document that the page did not show": 1}


def test_a_field_that_is_a_list_on_some_lines_alone_is_read_as_text(
    run_in_process: Run, posbias: Posbias, tmp_path: Path
) -> None:
    marks = [1, [1, 2], []]
    pages = [json.dumps({"query": "q", "doc": [1, 2], "clicked": clicked}) for clicked in marks]
    (tmp_path / "log.ndjson").write_text("\n".join(pages), encoding="utf-8")
    said = ["collect", "log.ndjson", "--clicked", "clicked", "--list-separator", "json"]

    message = run_in_process(*said, "-o", "refused", code=2).stderr
    query = shlex.split(message.partition("--sql ")[2])[0].removesuffix(".")
    fields = ", ".join(f"CAST({name} AS VARCHAR) AS {name}" for name in ("doc", "clicked"))
    found = posbias(
        said[0], tmp_path / said[1], *said[2:], "--sql", query.replace("CAST(FIELD AS VARCHAR) AS FIELD", fields)
    )

    assert found.manifest["statistics"]["clicks"] == 3


@pytest.mark.parametrize(
    ("ranks", "lost"), [([[1, 3], [4]], 0), ([[3, 4], [3]], 3), ([[3]], 1), ([[1, 2]], 0)], ids=str
)
def test_ranks_beyond_lists_are_lost_clicks_unless_lists_were_cut_off(
    posbias: Posbias, tmp_path: Path, ranks: list[list[int]], lost: int
) -> None:
    clicked = [*ranks, *([[1], [2], []] * 50)]
    pages = pl.DataFrame({"query": "q", "doc": [["d1", "d2"]] * len(clicked), "clicked": clicked})
    (file,) = write(tmp_path, {"pages": pages}, "parquet")
    clicks = posbias("collect", file, "--click", "clicked", "--click-ranks", "1").manifest["rows"]["clicks"]
    assert sum(clicks["lost"].values()) == lost
    assert clicks["joined"] == sum(rank <= 2 for page in clicked for rank in page)
