"""Raw files of known sources, in their documented schema: read as their flat twins, every line accounted for."""

import gzip
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Output, Posbias, Refused
from polars.testing import assert_frame_equal
from typer.testing import CliRunner

from posbias.cli.main import app

Document = dict[str, Any]
Pages = list[tuple[int, str, list[str], list[str]]]

EPOCH = 1_767_607_200_000  # milliseconds
PAGES_OF_A_VISIT = 3


def pages_of(log: pl.DataFrame) -> Pages:
    """Session, query, what was shown and what was clicked, page by page."""
    texts = log.sort("session", "position").with_columns(pl.col("doc").cast(pl.String))
    found = texts.group_by("session", "query", maintain_order=True).agg(
        pl.col("doc"), clicked=pl.col("doc").filter(pl.col("click") == 1)
    )
    return found.rows()


def as_metarank(pages: Pages) -> list[str]:
    """Rankings and interactions, those before the rankings."""
    clicks: list[Document] = [
        {"event": "interaction", "id": f"i{session}{doc}", "ranking": f"r{session}", "timestamp": str(EPOCH + session)}
        | {"user": "u", "session": "s", "type": "click", "item": doc, "fields": []}
        for session, _, _, clicked in pages
        for doc in clicked
    ]
    rankings: list[Document] = [
        {"event": "ranking", "id": f"r{session}", "timestamp": str(EPOCH + session), "user": "u", "session": "s"}
        | {"fields": [{"name": "source", "value": "search"}, {"name": "query", "value": query}]}
        | {"items": [{"id": doc, "relevancy": 1.0} for doc in docs]}
        for session, query, docs, _ in pages
    ]
    return [json.dumps(event) for event in (*clicks, *rankings)]


def as_elasticsearch(pages: Pages) -> list[str]:
    """Searches and clicks, several pages in a session."""
    found: list[Document] = []
    for session, query, docs, clicked in pages:
        at, visit = EPOCH + 60_000 * session, f"s{session // PAGES_OF_A_VISIT}"
        items = [{"document": {"id": doc, "index": "products"}, "page": {"url": "https://x"}} for doc in docs]
        search = {"query": query, "results": {"items": items, "total_results": len(docs)}}
        common: Document = {"session": {"id": visit}, "user": {"id": "u"}, "search": search}
        found.append({"@timestamp": at, "event": {"action": "search"}} | common)
        found += [
            {"@timestamp": at + 1_000, "event": {"action": "search_click"}, "document": {"id": doc}} | common
            for doc in clicked
        ]
    return [json.dumps(event) for event in found]


def as_relevance_prediction(pages: Pages) -> list[str]:
    """Actions of the Relevance Prediction Challenge, several pages in a session."""
    found: list[str] = []
    for session, query, docs, clicked in pages:
        visit, time = session // PAGES_OF_A_VISIT, 100 * (session % PAGES_OF_A_VISIT)
        found.append("\t".join([str(visit), str(time), "Q", query, "0", *docs]))
        found += [f"{visit}\t{time + 3}\tC\t{doc}" for doc in clicked]
    return found


def as_personalized_search(pages: Pages) -> list[str]:
    """Actions of the Personalized Web Search Challenge, several pages in a session."""
    found: list[str] = []
    for session, query, docs, clicked in pages:
        visit, page = divmod(session, PAGES_OF_A_VISIT)
        found += [f"{visit}\tM\t1\t7"] if page == 0 else []
        found.append("\t".join([str(visit), str(page), "Q", str(page), query, "1,2", *(f"{doc},9" for doc in docs)]))
        found += [f"{visit}\t{page + 5}\tC\t{page}\t{doc}" for doc in clicked]
    return found


WRITERS: dict[str, tuple[Callable[[Pages], list[str]], str, str]] = {
    "metarank": (as_metarank, "metarank", "jsonl"),
    "elasticsearch": (as_elasticsearch, "elasticsearch", "ndjson"),
    "relevance prediction": (as_relevance_prediction, "yandex", "tsv"),
    "personalized search": (as_personalized_search, "yandex", "tsv"),
}


def write(path: Path, lines: Sequence[str]) -> Path:
    """Write lines."""
    text = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def account(output: Output, form: str) -> dict[str, Any]:
    """What became of the lines; they add up."""
    found: dict[str, Any] = output.manifest["rows"]["raw"][form]
    assert found["lines"] == sum(found["used"].values()) + sum(found["not_used"].values())
    return found


@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.parametrize("writer", WRITERS)
def test_the_files_of_a_source_are_the_same_log(
    posbias: Posbias, log: pl.DataFrame, tmp_path: Path, writer: str, model: str
) -> None:
    lines_of, form, suffix = WRITERS[writer]
    log.with_columns(pl.col("doc").cast(pl.String)).write_parquet(tmp_path / "flat.parquet")
    flat = posbias("collect", tmp_path / "flat.parquet", "--model", model)
    path = write(tmp_path / f"raw.{suffix}", lines_of(pages_of(log)))
    found = posbias("collect", path, "--input-format", form, "--model", model, "--timestamp", "none")
    assert_frame_equal(found.statistics, flat.statistics)
    assert account(found, form)["used"] == {"pages": 400, "clicks": log["click"].sum()}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.slow
def test_several_files_are_the_same_log(posbias: Posbias, log: pl.DataFrame, tmp_path: Path, writer: str) -> None:
    lines_of, form, suffix = WRITERS[writer]
    lines = lines_of(pages_of(log))
    whole = posbias("collect", write(tmp_path / f"raw.{suffix}", lines), "--input-format", form)
    first, second = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    paths = [write(tmp_path / f"first.{suffix}", first), write(tmp_path / f"second.{suffix}.gz", second)]
    parts = posbias("collect", *paths, "--input-format", form)
    assert_frame_equal(parts.statistics, whole.statistics)
    assert account(parts, form) == account(whole, form)


SMALL: Pages = [(3, "q", ["a", "b", "c"], ["b"]), (4, "q", ["b", "a", "c"], ["b"]), (5, "q", ["c", "a", "b"], [])]


def ranking(**changes: object) -> str:
    """A ranking, changed."""
    return json.dumps(json.loads(as_metarank(SMALL)[-1]) | {"id": "r9"} | changes)


def interaction(**changes: object) -> str:
    """A click on the first ranking, changed."""
    return json.dumps(json.loads(as_metarank(SMALL)[0]) | changes)


def search(action: str = "search", at: int = 10**6, **changes: object) -> str:
    """A search of the first session, changed."""
    found = json.loads(as_elasticsearch(SMALL)[0]) | {"event": {"action": action}, "@timestamp": EPOCH + at}
    return json.dumps(found | changes)


def results(*docs: str, query: str | None = "q") -> Document:
    """What a search says of these results."""
    return {"query": query, "results": {"items": [{"document": {"id": doc}} for doc in docs]}}


ODD: list[tuple[str, str, str]] = [
    ("metarank", '{"event": "item", "id": "1", "timestamp": "1", "item": "a", "fields": []}', "events of other kinds"),
    ("metarank", '{"event": "user", "id": "1", "timestamp": "1", "user": "a", "fields": []}', "events of other kinds"),
    ("metarank", interaction(type="purchase"), "events of other kinds"),
    ("metarank", "", "blank lines"),
    ("metarank", as_metarank(SMALL)[-1], "pages that were seen before"),
    ("metarank", ranking(items=[]), "pages that showed nothing"),
    ("metarank", ranking(items=[{"id": "a"}, {"id": "a"}]), "pages whose list does not hold different ids"),
    ("metarank", ranking(items=[{"id": None}]), "pages whose list does not hold different ids"),
    ("metarank", ranking(items="a"), "pages whose list does not hold different ids"),
    ("metarank", ranking(fields=[{"name": "query", "value": " "}]), "pages without a query"),
    ("metarank", ranking(fields=None), "pages without a query"),
    ("metarank", ranking(id=None), "pages without an id"),
    ("metarank", interaction(ranking=None), "clicks without the id of a page or visit"),
    ("metarank", interaction(item=""), "clicks without a document"),
    ("metarank", interaction(ranking="r77"), "clicks on a page that was not recorded"),
    ("metarank", interaction(item="z"), "clicks on a document that the page did not show"),
    ("metarank", interaction(id="again"), "clicks that were seen before"),
    ("elasticsearch", search("page_view"), "events of other kinds"),
    ("elasticsearch", '{"index": {"_index": "x"}}', "action lines of the bulk format"),
    ("elasticsearch", '{"create": {"_id": "}{", "dynamic_templates": {"a": "b"}}}', "action lines of the bulk format"),
    ("elasticsearch", as_elasticsearch(SMALL)[0], "pages that were seen before"),
    ("elasticsearch", search(session=None), "pages without an id"),
    ("elasticsearch", search(search=results("a", query="")), "pages without a query"),
    ("elasticsearch", search(search=results()), "pages that showed nothing"),
    ("elasticsearch", search(search=results("a", "a")), "pages whose list does not hold different ids"),
    (
        "elasticsearch",
        search("search_click", document={"id": "z"}),
        "clicks on a document that the visit had not shown",
    ),
    ("elasticsearch", search("search_click", -1, document={"id": "a"}), "clicks on a document that the visit had not"),
    (
        *("elasticsearch", search("search_click", document={"id": "b"}, search=results(query="other"))),
        "clicks on a document that the visit had not shown",
    ),
    ("elasticsearch", search("search_click", session=None, document={"id": "a"}), "clicks without the id of a page"),
    ("elasticsearch", search("search_click"), "clicks without a document"),
    ("elasticsearch", search("search_click", 242_000, document={"id": "b"}), "clicks that were seen before"),
    ("yandex", "1\tM\t3\t7", "events of other kinds"),
    ("yandex", "1\t900\tT\t0\tq\t1\ta,9\tb,9", "events of other kinds"),
    ("yandex", "1\t0\tQ\tq\t0\ta\tb\tc", "pages that were seen before"),
    ("yandex", "1\t900\tQ\tq\t0", "pages that showed nothing"),
    ("yandex", "1\t900\tQ\tq\t0\ta\ta", "pages whose list does not hold different ids"),
    ("yandex", "1\t900\tC\tz", "clicks on a document that the visit had not shown before"),
    ("yandex", "8\t900\tC\ta", "clicks on a document that the visit had not shown before"),
    ("yandex", "1\t900\tC\t77\ta", "clicks on a page that was not recorded"),
    ("yandex", "1\t104\tC\tb", "clicks that were seen before"),
]
SMALL_FILES = {"metarank": as_metarank, "elasticsearch": as_elasticsearch, "yandex": as_relevance_prediction}
SUFFIXES = {"metarank": "ndjson", "elasticsearch": "ndjson", "yandex": "tsv"}


@pytest.fixture(scope="module")
def small_statistics(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], pl.DataFrame]:
    """Return a function that gives the statistics of the small log, from a file of this form."""

    @cache
    def of(form: str) -> pl.DataFrame:
        folder = tmp_path_factory.mktemp("small")
        path = write(folder / f"good.{SUFFIXES[form]}", SMALL_FILES[form](SMALL))
        words = ["collect", str(path), "--input-format", form, "-o", str(folder / "out")]
        assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
        return Output(folder / "out").statistics

    return of


@pytest.mark.parametrize(("form", "line", "reason"), ODD)
@pytest.mark.slow_after(2)
def test_what_is_odd_is_counted_and_changes_nothing(
    small_statistics: Callable[[str], pl.DataFrame], posbias: Posbias, tmp_path: Path, form: str, line: str, reason: str
) -> None:
    path = write(tmp_path / f"odd.{SUFFIXES[form]}", [*SMALL_FILES[form](SMALL), line])
    odd = posbias("collect", path, "--input-format", form)
    assert_frame_equal(odd.statistics, small_statistics(form))
    not_used = account(odd, form)["not_used"]
    assert [count for why, count in not_used.items() if why.startswith(reason)] == [1], not_used
    assert sum(not_used.values()) == 1


def test_a_page_that_contradicts_itself_is_left_out_with_its_clicks(posbias: Posbias, tmp_path: Path) -> None:
    lines = as_metarank(SMALL)
    lines.append(ranking(id="r3", items=[{"id": "z"}]))
    found = account(posbias("collect", write(tmp_path / "m.jsonl", lines), "--input-format", "metarank"), "metarank")
    assert found["used"] == {"pages": 2, "clicks": 1}
    assert found["not_used"] == {
        "pages whose id has another query or list as well": 2,
        "clicks on a page that is not used": 1,
    }


def test_a_click_belongs_to_the_last_page_of_the_visit_that_showed_its_document(
    posbias: Posbias, tmp_path: Path
) -> None:
    lines = ["1\t0\tQ\tq\t0\ta\tb", "1\t10\tQ\tq\t0\tb\ta", "1\t11\tC\ta", "1\t20\tQ\tq\t0\tc\td", "1\t21\tC\ta"]
    lines += ["2\t0\tQ\tq\t0\ta\tb", "2\t0\tC\tb"]
    found = posbias("collect", write(tmp_path / "log.tsv", lines), "--input-format", "yandex")
    clicked = found.statistics.filter(pl.col("clicks") > 0)
    assert clicked.select("doc", "position", "clicks").rows() == [("a", 2, 1), ("b", 2, 1)]
    assert account(found, "yandex")["not_used"] == {"clicks that were seen before": 1}


def test_a_page_is_its_documents_whatever_their_domains(posbias: Posbias, tmp_path: Path) -> None:
    lines = ["1\t0\tQ\t0\tq\t1,2\ta,b\tb,b\tc,a", "1\t5\tC\t0\tb", "1\t9\tQ\t1\tq\t1,2\tb,a\ta,c\tc,c", "1\t9\tC\t1\tc"]
    found = posbias("collect", write(tmp_path / "log.tsv", lines), "--input-format", "yandex")
    assert account(found, "yandex")["used"] == {"pages": 2, "clicks": 2}
    clicked = found.statistics.filter(pl.col("clicks") > 0)
    assert clicked.select("doc", "position").rows() == [("b", 2), ("c", 3)]


def test_ids_are_text_to_the_letter(posbias: Posbias, tmp_path: Path) -> None:
    ids = [
        2**53 + 1,
        2**64 - 1,
        -(2**63),
        2**70,
        "007",
        "1e5",
        "2026-01-05",
        "NaN",
        "A\u0000b",
        "0A1B2C3D-0000-0000-0000-000000000000",
    ]
    lines = [ranking(id=page, items=[{"id": doc} for doc in docs]) for page, docs in enumerate((ids, ids[::-1]))]
    lines += [interaction(ranking=0, item=doc) for doc in ids]
    found = posbias("collect", write(tmp_path / "m.jsonl", lines), "--input-format", "metarank")
    assert account(found, "metarank")["used"] == {"pages": 2, "clicks": len(ids)}
    assert {*found.statistics["doc"]} == {*map(str, ids)}


def test_the_second_page_of_a_search_begins_below_the_first(posbias: Posbias, tmp_path: Path) -> None:
    lines = as_elasticsearch(SMALL)
    second = results("d", "e") | {"page": {"current": 2, "size": 3}}
    lines += [search(search=second), search("search_click", 10**6 + 9, search=second, document={"id": "e"})]
    found = posbias("collect", write(tmp_path / "events.ndjson", lines), "--input-format", "elasticsearch")
    lower = found.statistics.filter(pl.col("position") > 3)
    assert lower.select("doc", "position", "clicks").rows() == [("d", 4, 0), ("e", 5, 1)]


@pytest.mark.parametrize("wrapped", ["hits", "index and tab", "dotted names", "iso times"])
def test_events_of_elasticsearch_are_read_however_they_were_exported(
    posbias: Posbias, tmp_path: Path, wrapped: str
) -> None:
    def dotted(event: Document) -> Document:
        return {"event.action": event["event"]["action"], "session.id": event["session"]["id"]} | {
            name: value for name, value in event.items() if name not in {"event", "session"}
        }

    def iso(event: Document) -> Document:
        seconds = pl.Series([event["@timestamp"]]).cast(pl.Datetime("ms")).dt.strftime("%Y-%m-%dT%H:%M:%S.%3fZ")
        return event | {"@timestamp": seconds[0]}

    writers: dict[str, Callable[[Document], str]] = {
        "hits": lambda event: json.dumps({"_index": "x", "_id": "1", "_score": 1.0, "_source": event}),
        "index and tab": lambda event: "events\t" + json.dumps(event),
        "dotted names": lambda event: json.dumps(dotted(event)),
        "iso times": lambda event: json.dumps(iso(event)),
    }
    plain = as_elasticsearch(SMALL)
    lines = [writers[wrapped](json.loads(line)) for line in plain]
    form = ("--input-format", "elasticsearch")
    found = posbias("collect", write(tmp_path / "wrapped.ndjson", lines), *form)
    assert_frame_equal(found.statistics, posbias("collect", write(tmp_path / "plain.ndjson", plain), *form).statistics)


def test_what_is_a_click_of_metarank_is_said_by_its_types(posbias: Posbias, tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", [*as_metarank(SMALL), interaction(type="purchase", item="c")])
    found = posbias("collect", path, "--input-format", "metarank", "--click-actions", "click,purchase")
    assert account(found, "metarank")["used"]["clicks"] == 3


def test_users_and_days_of_a_source_can_be_used(posbias: Posbias, log: pl.DataFrame, tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", as_metarank(pages_of(log)))
    options = ("--timestamp", "timestamp", "--cluster-column", "user", "--cluster", "column")
    found = posbias("fit", path, "--input-format", "metarank", *options)
    assert found.manifest["days"]["first"] == "2026-01-05"


BROKEN: list[tuple[str, str, str]] = [
    ("metarank", '{"event": "ranking", ', "1 x lines that are not in this format: {file} line 6"),
    ("metarank", "[1]", "1 x lines that are not in this format: {file} line 6"),
    ("metarank", "[" * 100_000, "1 x lines that are not in this format: {file} line 6"),
    ("metarank", '{"event": "shown"}', "1 x lines of an unknown kind: {file} line 6"),
    ("metarank", ranking(timestamp="yesterday"), "1 x lines without a time that can be read: {file} line 6"),
    ("elasticsearch", '{"session": {"id": "s"}}', "1 x lines of an unknown kind: {file} line 6"),
    (
        "elasticsearch",
        json.dumps(json.loads(search()) | {"@timestamp": None}),
        "1 x lines without a time that can be read: {file} line 6",
    ),
    ("yandex", "1\tsoon\tQ\tq\t0\ta", "1 x lines that are not in this format: {file} line 6"),
    ("yandex", "1 0 Q q 0 a", "1 x lines that are not in this format: {file} line 6"),
    ("yandex", "1\t0\tX\tq\t0\ta", "1 x lines that are not in this format: {file} line 6"),
]


@pytest.mark.parametrize(("form", "line", "said"), BROKEN)
@pytest.mark.slow_after(2)
def test_a_damaged_line_stops_the_run_or_is_dropped(
    small_statistics: Callable[[str], pl.DataFrame],
    refused: Refused,
    posbias: Posbias,
    tmp_path: Path,
    form: str,
    line: str,
    said: str,
) -> None:
    path = write(tmp_path / f"bad.{SUFFIXES[form]}", [*SMALL_FILES[form](SMALL), line])
    assert said.format(file=path) in refused("collect", path, "--input-format", form)
    dropping = ("--on-bad-rows", "drop", "--max-bad-rows", 0.2)
    dropped = posbias("collect", path, "--input-format", form, *dropping)
    assert_frame_equal(dropped.statistics, small_statistics(form))


@pytest.mark.parametrize("form", SMALL_FILES)
def test_a_file_that_is_not_utf_8_is_named_with_the_line(refused: Refused, tmp_path: Path, form: str) -> None:
    path = write(tmp_path / ("raw.tsv" if form == "yandex" else "raw.ndjson"), SMALL_FILES[form](SMALL))
    path.write_bytes(path.read_bytes() + b"\xff\n")
    assert f"{path} line 6: is not UTF-8." in refused("collect", path, "--input-format", form)
