"""Pages with a list, and clicks that name their id: found by the values that link records, whatever they are called."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
from command_results import Posbias, Refused, Run

Record = dict[str, Any]


class Page(NamedTuple):
    """A list of three, from the top or from the fourth position on."""

    id: str
    query: str
    above: int
    docs: str
    clicked: str
    at: int  # seconds


PAGES = (
    Page("u-p1", "boots", 0, "abc", "b", 0),
    Page("u-p2", "boots", 3, "def", "d", 30),
    Page("u-p3", "socks", 0, "ghi", "", 60),
    Page("u-p4", "boots", 0, "bac", "ac", 90),
    Page("u-p5", "socks", 0, "hig", "g", 120),
)
LINKED = ("--input-format", "linked")


def expected(pages: Sequence[Page] = PAGES) -> list[tuple[str, str, int, int, int]]:
    """The counts by query, document and position."""
    counts = Counter[tuple[str, str, int, bool]]()
    for page in pages:
        counts.update((page.query, doc, page.above + n, doc in page.clicked) for n, doc in enumerate(page.docs, 1))
    keys = sorted({key[:3] for key in counts})
    return [(*key, counts[*key, False] + counts[*key, True], counts[*key, True]) for key in keys]


def places(page: Page) -> list[tuple[str, int]]:
    """What was clicked, with its place in the list."""
    return [(doc, page.docs.index(doc) + 1) for doc in page.clicked]


def when(page: Page, seconds: int = 0) -> str:
    """The time of a page."""
    return f"2026-01-05T10:{(page.at + seconds) // 60:02}:{(page.at + seconds) % 60:02}Z"


def events(shown: Callable[[Page], Record], click: Callable[[Page, str, int], Record]) -> list[Record]:
    """An event a page, and one a click."""
    return [event for page in PAGES for event in (shown(page), *(click(page, *place) for place in places(page)))]


def constructor() -> list[Record]:
    """The item is called otherwise when clicked; the page says its number; the kind is in the address."""
    address = "/v2/search_result_{}?c=client&_dt={}"
    return events(
        lambda p: {
            "url": address.format("load", p.at),
            "body": {"search_term": p.query, "result_id": p.id, "result_page": p.above // 3 + 1}
            | {"items": [{"item_id": doc, "slots": []} for doc in p.docs], "c": "client"},
        },
        lambda p, doc, place: {
            "url": address.format("click", p.at),
            "body": {"customer_id": doc, "result_id": p.id, "result_position_on_page": place, "c": "client"},
        },
    )


def google() -> list[Record]:
    """A click is a list of one; the page says how many results stand above."""
    return events(
        lambda p: {
            "eventType": "search",
            "attributionToken": p.id,
            "searchQuery": p.query,
            "productDetails": [{"product": {"id": doc}} for doc in p.docs],
            "offset": p.above,
            "eventTime": when(p),
        },
        lambda p, doc, _: {
            "eventType": "detail-page-view",
            "attributionToken": p.id,
            "productDetails": [{"product": {"id": doc}}],
            "eventTime": when(p, 5),
        },
    )


def athos() -> list[Record]:
    """Clicks stand before what they click on; the query is in the address of the page; variants have a parent."""
    found = events(
        lambda p: {
            "url": "/beacon/impression",
            "context": {"pageUrl": f"https://shop.example/?q={p.query}", "timestamp": when(p), "sessionId": "s1"},
            "data": {"responseId": p.id, "begin_offset": p.above}
            | {"results": [{"type": "product", "parentId": "p", "uid": doc} for doc in p.docs]},
        },
        lambda p, doc, _: {
            "url": "/beacon/clickthrough",
            "context": {"pageUrl": "https://shop.example/", "timestamp": when(p), "sessionId": "s1"},
            "data": {"responseId": p.id, "results": [{"type": "product", "parentId": "p", "uid": doc}]},
        },
    )
    renders = [{"url": "/beacon/render", "data": {"responseId": page.id}} for page in PAGES]
    carts = [{"url": "/beacon/addtocart", "data": {"responseId": "u-p1", "results": [{"type": "product", "uid": "c"}]}}]
    return [*renders, *carts, *reversed(found)]


def own_names() -> list[Record]:
    """Names of a shop's own; entries say their positions over all pages, and clicks count from 0."""
    return events(
        lambda p: {
            "ev": "answered",
            "rid": p.id,
            "phrase": p.query,
            "dev": "m",
            "goods": [{"gid": f"item-{doc}", "slot": p.above + n} for n, doc in enumerate(p.docs, 1)],
        },
        lambda p, doc, place: {
            "ev": "opened",
            "rid": p.id,
            "gid": f"item-{doc}",
            "pos": p.above + place - 1,
            "dev": "d",
        },
    )


def places_alone() -> list[Record]:
    """Clicks say a place, and nothing of what is there."""
    return events(
        lambda p: {"action": "shown", "search_uid": p.id, "q": p.query, "ids": [*p.docs], "first": p.above},
        lambda p, _, place: {"action": "clicked", "search_uid": p.id, "rank": place},
    )


def visits() -> list[Record]:
    """No page has an id: a click is on the last list of the visit that showed its item."""
    return events(
        lambda p: {"ev": "list", "sid": "v1", "query": p.query, "ts": when(p), "ids": [*p.docs], "offset": p.above},
        lambda p, doc, _: {"ev": "open", "sid": "v1", "doc": doc, "ts": when(p, 3)},
    )


def written(folder: Path, records: Sequence[Record], name: str = "log.ndjson") -> Path:
    """Write records."""
    file = folder / name
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return file


def counted(statistics: pl.DataFrame) -> list[tuple[str, str, int, int, int]]:
    """The counts by query, document and position."""
    rows = statistics.select("query", pl.col("doc").str.strip_prefix("item-"), "position", "impressions", "clicks")
    return sorted(rows.rows())


SHAPES = (google, own_names, constructor, athos, places_alone, visits)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_pages_and_clicks_are_joined_and_positions_go_on_over_pages(
    posbias: Posbias, tmp_path: Path, shape: Callable[[], list[Record]]
) -> None:
    found = posbias("collect", written(tmp_path, shape()), *LINKED)
    assert counted(found.statistics) == expected()


@pytest.mark.slow
def test_the_query_may_be_called_anything_where_documents_are_its_own(posbias: Posbias, tmp_path: Path) -> None:
    records = [
        {key if key != "phrase" else "wanted": value for key, value in record.items()} | {"rid": f"{record['rid']}-{n}"}
        for n in range(6)
        for record in own_names()
    ]
    found = posbias("collect", written(tmp_path, records), *LINKED)
    assert counted(found.statistics) == [(*ids, 6 * shown, 6 * clicks) for *ids, shown, clicks in expected()]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_check_names_the_form_and_the_fields(
    run_in_process: Run, tmp_path: Path, shape: Callable[[], list[Record]]
) -> None:
    found = json.loads(run_in_process("check", "--json", written(tmp_path, shape())).stdout)
    said = next(one["said"] for one in found["recognised"]["findings"] if "linked" in one["options"])
    assert said.startswith("each record with ")
    assert (" both name sid " in said) == (shape is visits)
    assert sum(row["clicks"] for row in found["positions"]) == 5


@pytest.mark.slow
def test_a_log_of_searches_and_one_of_clicks_are_joined_by_an_id_of_other_names(
    posbias: Posbias, tmp_path: Path
) -> None:
    searches = [
        {"id": p.id, "user": "v", "query": {"text": p.query}, "from": p.above, "hits": [{"_id": doc} for doc in p.docs]}
        for p in PAGES
    ]
    clicks = [{"search_id": p.id, "clicked": {"_id": doc, "rank": n}} for p in PAGES for doc, n in places(p)]
    files = [written(tmp_path, clicks, "clicks.ndjson"), written(tmp_path, searches, "searches.ndjson")]
    assert counted(posbias("collect", *files, *LINKED).statistics) == expected()


@pytest.mark.slow
def test_lists_may_be_text(posbias: Posbias, tmp_path: Path) -> None:
    rows = [("name", "serp", "phrase", "docs", "doc", "skip")]
    for page in PAGES:
        rows.append(("results", page.id, page.query, "|".join(page.docs), "", f"{page.above}"))
        rows += [("follow", page.id, "", "", doc, "") for doc in page.clicked]
    (tmp_path / "joined.csv").write_text("".join(f"{','.join(row)}\n" for row in rows), encoding="utf-8")
    payloads = [json.dumps(record).replace('"', '""') for record in google()]
    text = "".join(f'{n},"{payload}"\n' for n, payload in enumerate(payloads))
    (tmp_path / "payloads.csv").write_text(f"number,payload\n{text}", encoding="utf-8")
    for name in ("joined.csv", "payloads.csv"):
        assert counted(posbias("collect", tmp_path / name, *LINKED).statistics) == expected()


@pytest.mark.slow
def test_what_is_no_click_and_no_page_of_results_is_left_out(posbias: Posbias, tmp_path: Path) -> None:
    def of_page(kind: str, page: str, doc: str) -> Record:
        return {"eventType": kind, "attributionToken": page, "productDetails": [{"product": {"id": doc}}]}

    recommended = [{"product": {"id": doc}} for doc in "xyz"]
    more = [
        {"eventType": "search", "attributionToken": "u-r", "productDetails": recommended},
        of_page("detail-page-view", "u-r", "y"),
        *(of_page("add-to-cart", page, doc) for page, doc in (("u-p1", "b"), ("u-p4", "a"))),
        {"eventType": "detail-page-view", "productDetails": [{"product": {"id": "q"}}]},
        google()[0],
    ]
    found = posbias("collect", written(tmp_path, [*google(), *more]), *LINKED)
    assert counted(found.statistics) == expected()
    assert found.manifest["rows"]["raw"]["events"]["not_used"] == {
        "rows of other events": 5,
        "impressions that were seen before": 3,
    }


@pytest.mark.slow
def test_of_two_kinds_that_may_be_clicks_one_must_be_named(posbias: Posbias, refused: Refused, tmp_path: Path) -> None:
    previews = [
        {"ev": "previewed", "rid": page.id, "gid": f"item-{page.docs[2]}", "pos": page.above + 2} for page in PAGES
    ]
    file = written(tmp_path, [*own_names(), *previews])
    said = refused("collect", file, *LINKED)
    assert "no row has kind=click (--click-where)" in said
    assert "opened (5), previewed (5)" in said
    found = posbias("collect", file, *LINKED, "--click-where", "kind=opened")
    assert found.statistics["clicks"].sum() == 5


@pytest.mark.slow
def test_clicks_that_contradict_the_lists_stop(posbias: Posbias, refused: Refused, tmp_path: Path) -> None:
    records = [{key: value for key, value in record.items() if key != "goods"} for record in own_names()]
    for record, page in zip((one for one in records if one["ev"] == "answered"), PAGES, strict=True):
        record["goods"] = [{"gid": f"item-{doc}"} for doc in page.docs]
    said = refused("collect", written(tmp_path, records), *LINKED)
    assert "1 of 5 clicks say another pos than the place of their item in goods" in said
    for record in records:  # as the message says
        record.pop("pos", None)
    assert posbias("collect", written(tmp_path, records), *LINKED).statistics["clicks"].sum() == 5


@pytest.mark.slow
def test_pages_that_no_search_event_shows_are_named_by_the_positions_of_their_clicks(
    run_in_process: Run, tmp_path: Path
) -> None:
    def shown(page: Page) -> Record:
        if page.above:
            return {"url": "/custom?v=1", "customData": {"pagerNumber": 2}, "lastSearchQueryUid": "u-p1"}
        results = [{"documentUri": f"https://x/{doc}", "documentUriHash": f"hash{doc}"} for doc in page.docs]
        return {"url": "/search?v=1", "searchQueryUid": page.id, "queryText": page.query, "results": results}

    def click(page: Page, doc: str, place: int) -> Record:
        named = {
            "documentUri": f"https://x/{doc}",
            "documentUriHash": f"hash{doc}",
            "documentPosition": page.above + place,
        }
        return {"url": "/click?v=1", "searchQueryUid": "u-p1" if page.above else page.id} | named

    done = run_in_process("check", written(tmp_path, events(shown, click)), code=1)
    said = " ".join(done.stdout.split())
    assert "1 of 5 clicks (20.0%) are lost" in said
    assert "1 of them name positions from 4 on, below all that are joined: pages after the first are not logged" in said


CLICKS_ALONE: Mapping[str, Record] = {
    "typesense": {"name": "products_click_event", "data": {"q": "boots", "doc_id": "a", "position": 1}},
    "coveo": {
        "responseId": "r",
        "position": 1,
        "itemMetadata": {"uniqueFieldValue": "a"},
        "meta": {"type": "itemClick"},
    },
    "yext": {"action": "TITLE_CLICK", "entity": "a", "search": {"queryId": "q"}, "searchTerm": "boots", "count": 1},
    "relewise": {"$type": "Shop.TrackProductViewRequest, Shop", "productView": {"product": {"id": "a"}}},
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("client", CLICKS_ALONE)
@pytest.mark.parametrize("command", ["check", "run"])
def test_clicks_without_what_was_shown_are_refused_with_what_to_log(
    run_in_process: Run, tmp_path: Path, client: str, command: str
) -> None:
    out = () if command == "check" else ("-o", tmp_path / "out")
    file = written(tmp_path, [CLICKS_ALONE[client]] * 3)
    said = " ".join(run_in_process(command, file, *out, code=2).stderr.split())
    assert "nothing that was shown is logged" in said
    assert "an id of its own, the query, and the ids of all results from the top; repeat that id in each click" in said


@pytest.mark.slow
def test_clicks_of_a_client_are_joined_to_the_answers_that_the_service_logs(posbias: Posbias, tmp_path: Path) -> None:
    answers = [
        {"responseId": p.id, "q": p.query, "firstResult": p.above, "results": [{"permanentid": doc} for doc in p.docs]}
        for p in PAGES
    ]
    clicks = [
        {"responseId": p.id, "position": p.above + n, "itemMetadata": {"uniqueFieldValue": doc}}
        for p in PAGES
        for doc, n in places(p)
    ]
    files = [written(tmp_path, answers, "answers.ndjson"), written(tmp_path, clicks, "clicks.ndjson")]
    assert counted(posbias("collect", *files, *LINKED).statistics) == expected()


@pytest.mark.slow
def test_of_lists_of_one_second_the_last_was_clicked(posbias: Posbias, tmp_path: Path) -> None:
    typed = [page._replace(query=page.query[:2], docs=page.docs[::-1], clicked="") for page in PAGES]
    pages = [page for both in zip(typed, PAGES, strict=True) for page in both]
    records: list[Record] = []
    for p in pages:
        records.append(
            {"ev": "list", "sid": "v1", "query": p.query, "ts": when(p), "ids": [*p.docs], "offset": p.above}
        )
        records += [{"ev": "open", "sid": "v1", "doc": doc, "ts": when(p, 3)} for doc in p.clicked]
    found = posbias("collect", written(tmp_path, records), *LINKED)
    assert counted(found.statistics) == expected(pages)


CAPTURES = (
    "coveo-ua.paged",
    "constructorio-js-clickv2.paged",
    "google-retail.paged",
    "athos-beacon",
    "coveo-headless-legacy.paged",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTURES)
def test_what_clients_sent_is_counted_by_position(
    posbias: Posbias, shared_data: Path, tmp_path: Path, name: str
) -> None:
    folder = shared_data.parent / "cases" / "trackers"
    if not folder.is_dir():
        pytest.skip("what clients sent is not here")
    (tmp_path / "log.ndjson").write_bytes(gzip.decompress((folder / f"{name}.ndjson.gz").read_bytes()))
    truth = json.loads((folder / f"{name}.truth.json").read_text(encoding="utf-8"))
    logged = 6 if name.startswith("coveo") else 12  # Coveo's clients send no search event for the second page
    found = posbias("collect", tmp_path / "log.ndjson", *LINKED)
    by_position = found.statistics.group_by("position").agg(pl.sum("impressions", "clicks")).sort("position")
    assert by_position.rows() == [
        (int(at), counts["impressions"], counts["clicks"]) for at, counts in truth.items() if int(at) <= logged
    ]
