"""Pages in lists of other forms, structs, text, ids of clicked documents: the same log as a row per impression."""

import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Posbias, Refused, Run

from posbias.io.forms.page_structure import find_lists
from posbias.io.log.sources import find_sources

Page = dict[str, Any]


@pytest.fixture(scope="session")
def pages(log: pl.DataFrame) -> list[Page]:
    """Return the log page by page: the documents in the order of their positions, as text."""
    ordered = log.with_columns(doc=pl.format("d{}", "doc")).sort("session", "position")
    return ordered.group_by("session", "query", maintain_order=True).agg("doc", "click").to_dicts()


@pytest.fixture
def flat(log: pl.DataFrame, tmp_path: Path) -> Path:
    """Return the same log, a row per impression."""
    path = tmp_path / "flat.parquet"
    log.with_columns(doc=pl.format("d{}", "doc")).write_parquet(path)
    return path


def clicked(page: Page) -> list[str]:
    """Return the documents of a page that were clicked."""
    return [doc for doc, click in zip(page["doc"], page["click"], strict=True) if click]


def write_csv(path: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """Write rows of text."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def as_ndjson(path: Path, rows: Sequence[Page]) -> Path:
    """Write rows as NDJSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def structs(pages: list[Page], path: Path) -> Path:
    """Write pages as search services log them: documents and clicks in a list of structs."""
    rows = [
        {
            "event": {"id": page["session"], "query": {"text": page["query"]}},
            "results": [
                {"doc": {"sku": doc}, "click": click} for doc, click in zip(page["doc"], page["click"], strict=True)
            ],
        }
        for page in pages
    ]
    return as_ndjson(path.with_suffix(".ndjson"), rows)


def ids(pages: list[Page], path: Path) -> Path:
    """Write pages with a list of shown documents, and one of those clicked."""
    rows = [
        {"session": page["session"], "query": page["query"], "shown": page["doc"], "chosen": clicked(page)}
        for page in pages
    ]
    return as_ndjson(path.with_suffix(".ndjson"), rows)


def text(pages: list[Page], path: Path) -> Path:
    """Write lists as text, separated by semicolons."""
    rows = [
        [page["session"], page["query"], ";".join(page["doc"]), "; ".join(map(str, page["click"]))] for page in pages
    ]
    return write_csv(path.with_suffix(".csv"), ["session", "query", "items", "clicks"], rows)


def text_of_ids(pages: list[Page], path: Path) -> Path:
    """Write the shown and the clicked documents as text; a cell is empty where nothing was clicked."""
    rows = [[page["session"], page["query"], "|".join(page["doc"]), "|".join(clicked(page))] for page in pages]
    return write_csv(path.with_suffix(".csv"), ["session", "query", "shown", "chosen"], rows)


def json_lists(pages: list[Page], path: Path) -> Path:
    """Write JSON arrays into the cells of a table."""
    rows = [[page["session"], page["query"], json.dumps(page["doc"]), json.dumps(page["click"])] for page in pages]
    return write_csv(path.with_suffix(".csv"), ["session", "query", "doc", "click"], rows)


def suffixes(pages: list[Page], path: Path) -> Path:
    """Write clicks behind ids."""
    rows = [
        [page["session"], page["query"], " ".join(f"{d}-{c}" for d, c in zip(page["doc"], page["click"], strict=True))]
        for page in pages
    ]
    return write_csv(path.with_suffix(".csv"), ["session", "query", "impressions"], rows)


FORMS: dict[str, tuple[Callable[[list[Page], Path], Path], list[str]]] = {
    "structs": (
        structs,
        [
            "--session",
            "event.id",
            "--query",
            "event.query.text",
            "--doc",
            "results.doc.sku",
            "--click",
            "results.click",
        ],
    ),
    "clicked ids": (ids, ["--doc", "shown", "--clicked", "chosen"]),
    "text": (text, ["--doc", "items", "--list-separator", ";"]),
    "clicked ids as text": (
        text_of_ids,
        ["--doc", "shown", "--clicked", "chosen", "--list-separator", "|", "--null-click", "0"],
    ),
    "JSON": (json_lists, ["--list-separator", "json"]),
    "clicks behind ids": (
        suffixes,
        ["--doc", "impressions", "--list-separator", "space", "--click-suffix", "-", "--order-is-position"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.slow_after(1)
def test_a_log_in_lists_of_any_form_is_the_same_log(
    posbias: Posbias, pages: list[Page], flat: Path, tmp_path: Path, form: str, model: str
) -> None:
    write, options = FORMS[form]
    found = posbias("collect", write(pages, tmp_path / "pages"), *options, "--model", model)
    assert found.statistics.equals(posbias("collect", flat, "--model", model).statistics)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "structs"])
def test_the_options_of_a_form_are_found_in_its_first_rows(pages: list[Page], tmp_path: Path, form: str) -> None:
    write, options = FORMS[form]
    found = find_lists(find_sources([str(write(pages, tmp_path / "pages"))]))
    words = [word for finding in found for part in finding.options for word in part.split("=")]
    assert sorted(words) == sorted(options)
    assert all(finding.certain for finding in found) == (form != "clicks behind ids")


def test_no_lists_are_found_where_a_row_is_an_impression(flat: Path) -> None:
    assert find_lists(find_sources([str(flat)])) == []


def test_fields_of_structs_in_parquet_are_columns_for_every_option(
    posbias: Posbias, pages: list[Page], tmp_path: Path
) -> None:
    path = structs(pages, tmp_path / "pages")
    frame = pl.read_ndjson(path).with_columns(client=pl.struct(device=pl.lit("phone"), at=pl.lit("2026-01-05")))
    frame.write_parquet(tmp_path / "pages.parquet")
    options = ["--context", "client.device", "--timestamp", "client.at"]
    found = posbias("fit", tmp_path / "pages.parquet", *FORMS["structs"][1], *options)
    assert found.propensities["client.device"].unique().to_list() == ["phone"]
    assert found.manifest["days"]["first"] == "2026-01-05"


def test_fields_are_recognised_by_the_end_of_their_path_and_that_is_said(
    run_in_process: Run, pages: list[Page], tmp_path: Path
) -> None:
    path = structs(pages, tmp_path / "pages")
    renamed = path.read_text().replace('"doc": {"sku": ', '"doc": {"doc_id": ')
    path.write_text(renamed)
    result = run_in_process("collect", path, "-o", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    guessed = "--query event.query.text --doc results.doc.doc_id --click results.click"
    assert guessed in " ".join(result.stderr.split())


def test_a_struct_is_no_id(refused: Refused, pages: list[Page], tmp_path: Path) -> None:
    assert "holds structs. Name the field that is the id: results.doc.sku, results.click" in refused(
        "fit", structs(pages, tmp_path / "pages"), "--doc", "results"
    )


def test_clicks_on_documents_that_the_page_does_not_list_are_counted(
    posbias: Posbias, pages: list[Page], tmp_path: Path
) -> None:
    rows = [dict(page, clicked=[*clicked(page), "elsewhere", "elsewhere"]) for page in pages[:50]]
    path = as_ndjson(tmp_path / "pages.ndjson", [{key: row[key] for key in row if key != "click"} for row in rows])
    found = posbias("collect", path, "--clicked", "clicked").manifest
    assert found["rows"]["clicks"]["lost"] == {"clicks on a document that the page did not show": 2 * len(rows)}
    assert found["statistics"]["clicks"] == sum(len(clicked(page)) for page in pages[:50])


def test_the_order_of_documents_with_clicks_behind_their_ids_is_no_position_unless_that_is_said(
    refused: Refused, pages: list[Page], tmp_path: Path
) -> None:
    options = [word for word in FORMS["clicks behind ids"][1] if word != "--order-is-position"]
    assert "in random order, as those of MIND" in " ".join(
        refused("fit", suffixes(pages, tmp_path / "pages"), *options).split()
    )


BAD_CELLS = {
    "an entry without a click": ("d1-1 d2", "the click is missing"),
    "a click that is none": ("d1-1 d2-7", "the click is neither 0 nor 1"),
    "no entry": ("", "the page lacks a list"),
}


@pytest.mark.parametrize("case", BAD_CELLS)
def test_a_cell_that_is_no_list_is_shown_with_its_row(refused: Refused, tmp_path: Path, case: str) -> None:
    cell, said = BAD_CELLS[case]
    rows = [["q", "d1-0 d2-1"], ["q", cell], ["q", "d2-0 d1-1"]]
    path = write_csv(tmp_path / "log.csv", ["query", "doc"], rows)
    options = ["--list-separator", "space", "--click-suffix", "-", "--order-is-position"]
    stderr = refused("fit", path, *options)
    assert said in stderr
    assert "log.csv row 2" in stderr


def test_text_that_is_no_json_is_a_missing_list(refused: Refused, tmp_path: Path) -> None:
    path = write_csv(
        tmp_path / "log.csv", ["query", "doc", "click"], [["q", '["a", "b"]', "[0, 1]"], ["q", "a, b", "[0, 1]"]]
    )
    stderr = refused("fit", path, "--list-separator", "json")
    assert "1 x the page lacks a list" in stderr
    assert "log.csv row 2" in stderr
