"""One log in the shapes that services and scripts write it in: `check` finds how to read each, and others say the same.

What a command refuses as it is, it reads with what its message, or `check`, says.
"""

import csv
import io
import json
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Posbias, Refused, Run

Page = dict[str, Any]
CLICKS = [[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0], [0, 0, 1]]
PAGES: list[Page] = [
    {"query": f"q{page % 3}", "doc": [f"d{page % 3}{(page + place) % 3}" for place in range(3)], "click": clicks}
    for page, clicks in enumerate(CLICKS * 3)
]
TRUTH = [(1, 24, 12), (2, 24, 6), (3, 24, 6)]
"""Positions, with their impressions and clicks."""


def lines(rows: Iterable[object], indent: int | None = None) -> str:
    """JSON objects, one after another."""
    return "".join(f"{json.dumps(row, indent=indent)}\n" for row in rows)


def table(rows: Iterable[dict[str, Any]], separator: str = ",", *, header: bool = True) -> str:
    """Text with fields."""
    first, *others = rows
    file = io.StringIO()
    if separator == "\t":
        named = [[*first]] if header else []
        return "".join("\t".join(map(str, row)) + "\n" for row in [*named, *(row.values() for row in (first, *others))])
    written = csv.DictWriter(file, [*first], delimiter=separator)
    written.writeheader()
    written.writerows([first, *others])
    return file.getvalue()


def flat(query: Callable[[str], str] = str) -> list[dict[str, object]]:
    """A row for each impression."""
    return [
        {"session": f"s{number}", "query": query(page["query"]), "doc": doc, "position": place, "click": click}
        for number, page in enumerate(PAGES)
        for place, (doc, click) in enumerate(zip(page["doc"], page["click"], strict=True), 1)
    ]


def structs(page: Page) -> list[dict[str, object]]:
    """The results of a page as objects."""
    return [{"doc": doc, "click": click} for doc, click in zip(page["doc"], page["click"], strict=True)]


def places(page: Page, top: int) -> list[int]:
    """The places of the clicks of a page."""
    return [place for place, click in enumerate(page["click"], top) if click]


def with_lists(write: Callable[[list[Any]], str], separator: str = ",") -> str:
    """A row for each page, with lists as text."""
    return table(
        ({"query": page["query"]} | {name: write(page[name]) for name in ("doc", "click")} for page in PAGES), separator
    )


BY_QUERY = {page["query"]: [other for other in PAGES if other["query"] == page["query"]] for page in PAGES}
SHAPES: dict[str, tuple[str, str]] = {
    "envelope.json": ("", json.dumps({"status": "ok", "data": PAGES})),
    "envelope-indented.json": ("", json.dumps({"took": 3, "data": PAGES}, indent=2)),
    "envelope-of-rows.json": ("", json.dumps({"meta": {"n": 1}, "rows": flat()}, indent=1)),
    "envelope-of-hits.json": ("", json.dumps({"hits": {"total": 24, "hits": [{"_source": page} for page in PAGES]}})),
    "envelope-of-ids.json": (
        "names",
        json.dumps(
            {"response": {"docs": [{"term" if name == "query" else name: row[name] for name in row} for row in flat()]}}
        ),
    ),
    "hits-with-slots.ndjson": (
        "names",
        lines(
            {
                "term": page["query"],
                "hits": [
                    {"page": place // 2, "slot": place % 2, "sku": doc, "picked": page["click"][place]}
                    for place, doc in enumerate(page["doc"])
                ],
            }
            for page in PAGES
        ),
    ),
    "array.ndjson": ("", json.dumps(PAGES)),
    "array-indented.jsonl": ("", json.dumps(PAGES, indent=4)),
    "objects-indented.json": ("", lines(PAGES, indent=2)),
    "requests.ndjson": ("", lines({"batch": flat()[at : at + 9], "sentAt": "x"} for at in range(0, 72, 9))),
    "python.csv": ("lists", with_lists(repr)),
    "flags-of-none.csv": (
        "lists",
        table(
            {"query": page["query"], "doc": repr(page["doc"]), "f": "[False, False, False]", "g": repr(page["click"])}
            for page in PAGES
        ),
    ),
    "tuples.csv": ("lists", with_lists(lambda entries: repr(tuple(entries)))),
    "numpy.csv": ("lists", with_lists(lambda entries: f"[{' '.join(map(repr, entries))}]")),
    "numpy-of-fractions.tsv": (
        "lists",
        with_lists(
            lambda entries: f"[{' '.join(f'{one}.' if isinstance(one, int) else repr(one) for one in entries)}]", "\t"
        ),
    ),
    "quotes.tsv": ("", table(flat('17" {}'.format), "\t")),
    "quotes-headerless.tsv": ("columns", table(flat('"{} x'.format), "\t", header=False)),
    "places.csv": (
        "lists",
        table(
            {"query": page["query"], "doc": "|".join(page["doc"]), "clicked": "|".join(map(str, places(page, 0)))}
            for page in PAGES
        ),
    ),
    "places.ndjson": (
        "places",
        lines({"query": page["query"], "doc": page["doc"], "tapped": places(page, 1)} for page in PAGES),
    ),
    "visits.ndjson": ("visit", lines({"session_id": at // 2} | page for at, page in enumerate(PAGES))),
    "pages-of-queries.ndjson": (
        "inner",
        lines(
            {"query": query, "pages": [{"page_id": at, "results": structs(page)} for at, page in enumerate(pages)]}
            for query, pages in BY_QUERY.items()
        ),
    ),
    "judgments.ndjson": (
        "inner",
        lines(
            {"keys": {"search_term": query}, "of": [{"session": structs(page)} for page in pages]}
            for query, pages in BY_QUERY.items()
        ),
    ),
    "semicolons.csv": ("separator", table(flat("shoes, {}".format), ";")),
    "shift-jis.csv": ("encoding", table(flat("くつ 表 {}".format))),
}
"""File, why commands do not read it as it is, and its content."""


def counted(posbias: Posbias, *words: str | Path) -> list[tuple[int, int, int]]:
    """The counts of a log, by position."""
    sums = posbias("collect", *words).statistics.group_by("position").agg(pl.col("impressions", "clicks").sum())
    return sums.sort("position").rows()


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("name", SHAPES)
def test_check_finds_how_a_shape_is_read(posbias: Posbias, run_in_process: Run, tmp_path: Path, name: str) -> None:
    _, text = SHAPES[name]
    path = tmp_path / name
    path.write_text(text, encoding="shift_jis" if name == "shift-jis.csv" else "utf-8")
    _, *words = json.loads(run_in_process("check", path, "--json").stdout)["command"]
    assert counted(posbias, *words) == TRUTH


SAID = {
    "": "",
    "visit": "If each row is a page, use --session none.",
    "inner": "Try: posbias collect --sql 'SELECT * EXCLUDE ({0}), unnest({0}, max_depth := 2) FROM log'",
    "separator": "Use --separator ';'.",
    "encoding": "Name its encoding with --encoding, e.g. cp1252 or shift_jis; `posbias check` recognises it.",
}
"""What a message says."""


@pytest.mark.slow_after(4)
@pytest.mark.parametrize("name", [name for name, (why, _) in SHAPES.items() if why in SAID])
def test_a_shape_is_read_as_it_is_or_refused_with_what_reads_it(
    posbias: Posbias, refused: Refused, tmp_path: Path, name: str
) -> None:
    why, text = SHAPES[name]
    path = tmp_path / name
    path.write_text(text, encoding="shift_jis" if name == "shift-jis.csv" else "utf-8")
    if not why:
        assert counted(posbias, path) == TRUTH
        return
    said = " ".join(refused("collect", path).split())
    assert SAID[why].format("pages" if name.startswith("pages") else "of") in said
    options = {
        "visit": ("--session", "none"),
        "separator": ("--separator", ";"),
        "encoding": ("--encoding", "shift_jis"),
        "inner": shlex.split(said.partition("Try: posbias collect ")[2])[:2],
    }
    of_structs = ("--doc", "results.doc" if name.startswith("pages") else "session.doc") if why == "inner" else ()
    assert counted(posbias, path, *options[why], *of_structs) == TRUTH


def test_a_document_with_a_list_of_its_positions_is_refused_with_the_query_that_reads_it(
    posbias: Posbias, run_in_process: Run, refused: Refused, tmp_path: Path
) -> None:
    path, both = tmp_path / "log.ndjson", {"position": [1, 2], "click": [1, 0]}
    path.write_text(
        lines({"query": "q", "sku": doc, "ranks": [1, 1], "clicked": [1, 0]} for doc in "ab"), encoding="utf-8"
    )
    assert "column 'ranks' (--position) holds lists" in run_in_process("check", path).stderr
    path.write_text(lines({"query": "q", "doc": doc} | both for doc in "ab"), encoding="utf-8")
    said = refused("collect", path)
    assert "column 'position' (--position) holds lists, and 'doc' (--doc) one value a row" in said
    _, query = shlex.split(said.partition("read ")[2].rstrip(".\n"))
    assert counted(posbias, path, "--sql", query) == [(1, 2, 2), (2, 2, 0)]
    path.write_text(lines({"query": "q", "doc": doc, "position": [1, 2], "click": 1} for doc in "ab"), encoding="utf-8")
    assert "--sql" not in refused("collect", path)


@pytest.mark.parametrize(("column", "lacking"), [("query", "query"), ("search_id", "session")])
@pytest.mark.slow_after(1)
def test_rows_without_a_query_or_search_are_refused_with_the_query_that_leaves_them_out(
    posbias: Posbias, run_in_process: Run, refused: Refused, tmp_path: Path, column: str, lacking: str
) -> None:
    path = tmp_path / "log.ndjson"
    shown = [{"search_id": f"s{at}"} | page for at, page in enumerate(PAGES)]
    path.write_text(lines([*shown, *({**page, column: None} for page in shown[:9])]), encoding="utf-8")
    said = refused("collect", path)
    assert f"27 x the {lacking} is missing" in said
    _, query = shlex.split(said.partition("leave them out: ")[2].partition(", with")[0].replace("COLUMN", column))
    assert counted(posbias, path, "--sql", query) == TRUTH
    assert "recommendations, leave them out: --sql" in " ".join(run_in_process("check", path).stdout.split())


def test_a_document_twice_without_queries_counts_twice(posbias: Posbias, run_in_process: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [{name: value for name, value in row.items() if name != "query"} for row in flat()]
    path.write_text(table([*rows[:-1], rows[-1] | {"doc": rows[-2]["doc"]}]), encoding="utf-8")
    _, *words = json.loads(run_in_process("check", path, "--json").stdout)["command"]
    assert words[-2:] == ["--duplicate-docs", "keep"]
    assert counted(posbias, *words) == TRUTH


def test_one_session_is_no_several(refused: Refused, tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(table([*flat(), *({**flat()[0], "query": "q9"},)]), encoding="utf-8")
    assert "1 session cannot be one results page each" in refused("collect", path)


@pytest.mark.slow
def test_the_time_of_a_page_is_no_date_beside_a_time_of_day(
    posbias: Posbias, run_in_process: Run, tmp_path: Path
) -> None:
    path = tmp_path / "log.csv"
    rows = list[dict[str, object]]()
    for row in flat():
        page = int(str(row["session"])[1:])
        of_visit = row | {"session": page // 6, "date": "2026-01-05", "event_time": 1767600000 + 60 * page}
        rows += [of_visit | {"kind": "shown"}] + ([of_visit | {"kind": "click"}] if row["click"] else [])
    path.write_text(table({name: row[name] for name in row if name != "click"} for row in rows), encoding="utf-8")
    _, *words = json.loads(run_in_process("check", path, "--json").stdout)["command"]
    assert words[words.index("--page-time") + 1] == "event_time"
    assert counted(posbias, *words) == TRUTH
