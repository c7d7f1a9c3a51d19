"""OpenSearch UBI: queries and events become a log of pages, and every line of the files is accounted for."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Output, Posbias, Refused, Run

Document = dict[str, object]

UBI = ("--input-format", "ubi")
EVENTS = (*UBI, "--ubi-impressions", "events")
FROM_0 = ("--position-base", "impression=0")
SAMPLE = "opensearch_ubi_sample.ndjson.gz"


def query(page: str | None, text: str | None = "q", hits: object = None, **further: object) -> Document:
    """A document of `ubi_queries`."""
    found = {} if hits is None else {"query_response_hit_ids": hits}
    return {"application": "shop", "query_id": page, "user_query": text, **found, **further}


def event(page: str | None, action: str, doc: str | None = None, ordinal: object = None) -> Document:
    """A document of `ubi_events`."""
    position = {} if ordinal is None else {"position": {"ordinal": ordinal}}
    attributes = None if doc is None else {"object": {"object_id": doc, "object_id_field": "sku"}, **position}
    return {"action_name": action, "query_id": page, "session_id": "visit", "event_attributes": attributes}


def write(path: Path, documents: Iterable[Document | str]) -> Path:
    """Write documents, one per line; text is written as it is."""
    lines = [document if isinstance(document, str) else json.dumps(document) for document in documents]
    text = "".join(line + "\n" for line in lines)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def as_bulk(documents: Iterable[Document]) -> list[Document]:
    """Documents with the action lines of the bulk format."""
    found: list[Document] = []
    for document in documents:
        index = "ubi_events" if "action_name" in document else "ubi_queries"
        action: Document = {"index": {"_index": index}}
        found += [action, document]
    return found


def as_ubi(log: pl.DataFrame, *, hits: bool) -> list[Document]:
    """A log as UBI documents: what was shown as hit lists, or as events with ordinals from 0."""
    found: list[Document] = []
    pages = log.sort("session", "position").group_by("session", "query", maintain_order=True).agg("doc", "click")
    for session, text, docs, clicks in pages.iter_rows():
        page, shown = f"p{session}", [str(doc) for doc in docs]
        found.append(query(page, text, shown if hits else None))
        if not hits:
            found += [event(page, "impression", doc, place) for place, doc in enumerate(shown)]
        found += [event(page, "click", doc) for doc, click in zip(shown, clicks, strict=True) if click]
    return found


GOOD_HITS = [
    query("p1", hits=["a", "b", "c"]),
    query("p2", hits=["b", "c", "a"]),
    event("p1", "click", "b"),
    event("p2", "click", "b"),
]
GOOD_EVENTS = [
    query("p1"),
    query("p2"),
    *(event("p1", "impression", doc, place) for place, doc in enumerate("abc")),
    *(event("p2", "impression", doc, place) for place, doc in enumerate("bca")),
    event("p1", "click", "b", 1),
    event("p2", "click", "b", 0),
]


def account_of(output: Output) -> dict[str, Any]:
    """What became of the lines; those used and not used are all of them."""
    account = output.manifest["rows"]["ubi"]
    assert sum(account["used"].values()) + sum(account["not_used"].values()) == account["lines"]
    assert sum(account["other_actions"].values()) == account["not_used"].get("events of other actions", 0)
    assert sum(account["positions"].values()) == output.manifest["rows"]["read"]
    return account


# --- the same result ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["pbm", "ubm"])
@pytest.mark.slow
def test_a_log_as_ubi_is_the_same_log(posbias: Posbias, log: pl.DataFrame, tmp_path: Path, model: str) -> None:
    log.write_parquet(tmp_path / "flat.parquet")
    hits, events = as_ubi(log, hits=True), as_ubi(log, hits=False)
    write(tmp_path / "bulk.ndjson.gz", as_bulk(hits))
    write(tmp_path / "queries.ndjson", (one for one in events if "action_name" not in one))
    write(tmp_path / "events.ndjson", (one for one in events if "action_name" in one))
    flat = posbias("collect", tmp_path / "flat.parquet", "--model", model).statistics
    expected = flat.with_columns(pl.col("query", "doc").cast(pl.String)).sort(pl.all())
    from_hits = posbias("collect", tmp_path / "bulk.ndjson.gz", *UBI, "--model", model)
    from_events = posbias(
        "collect", tmp_path / "queries.ndjson", tmp_path / "events.ndjson", *EVENTS, *FROM_0, "--model", model
    )
    assert from_hits.statistics.equals(expected)
    assert from_events.statistics.equals(expected)
    assert account_of(from_hits)["not_used"] == {"action lines of the bulk format": len(hits)}
    assert account_of(from_events)["not_used"] == {}


def test_statistics_of_two_days_of_ubi_add_up_with_their_accounts(posbias: Posbias, tmp_path: Path) -> None:
    logs = [write(tmp_path / f"{day}.ndjson", [*GOOD_HITS, event(day, "click", "a")]) for day in ("first", "second")]
    days = [posbias("collect", log, *UBI) for log in logs]
    both = account_of(posbias("collect", *(day.folder for day in days)))
    assert both["lines"] == 10
    assert both["used"] == {"queries": 4, "impressions": 0, "clicks": 4}
    assert both["not_used"] == {"clicks on a page that was not recorded": 2}


def test_the_training_files_of_pages_carry_the_ids_of_ubi(posbias: Posbias, tmp_path: Path) -> None:
    path = write(tmp_path / "ubi.ndjson", GOOD_EVENTS)
    rows = posbias("run", path, *EVENTS, *FROM_0, "--layout", "session").training.sort("session", "position")
    assert rows.select("session", "query", "doc", "position", "click").rows() == [
        ("p1", "q", "a", 1, 0),
        ("p1", "q", "b", 2, 1),
        ("p1", "q", "c", 3, 0),
        ("p2", "q", "b", 1, 1),
        ("p2", "q", "c", 2, 0),
        ("p2", "q", "a", 3, 0),
    ]


def test_the_fields_of_a_query_can_be_context_and_day(posbias: Posbias, tmp_path: Path) -> None:
    pages = [
        {**page, "application": "app" if "2" in str(page["query_id"]) else "web", "timestamp": time}
        for page, time in zip(GOOD_HITS[:2], ("2026-01-05T10:00:00.000Z", 1767657600000), strict=True)
    ]
    path = write(tmp_path / "ubi.ndjson", [*pages, *GOOD_HITS[2:]])
    counted = posbias("collect", path, *UBI, "--context", "application", "--timestamp", "timestamp")
    days = (
        counted.statistics.select("application", pl.col("period").dt.date().cast(pl.String))
        .unique()
        .sort("application")
    )
    assert days.rows() == [("app", "2026-01-06"), ("web", "2026-01-05")]


# --- what is odd, and counted ---------------------------------------------------------------------------------

ODD_WITH_HITS: dict[str, list[Document | str]] = {
    "action lines of the bulk format": ['{"index": {}}', '{ "create":{"_index":"ubi_events","_id":"1"} }'],
    "blank lines": ["", "   "],
    "queries without a user_query": [query("p1", ""), query("p1", None, ["a"]), query("p8", "  ", ["a"])],
    "queries without hits": [query("p1"), query("p1", hits=[]), query("p8", hits=[])],
    "queries whose hit list is not a list of different ids": [
        query("p8", hits=["a", "b", "a"]),
        query("p8", hits=["a", None]),
        query("p8", hits="a"),
        query("p8", hits=[["a"]]),
        query("p8", hits=[""]),
    ],
    "queries that were written before": [GOOD_HITS[0], query("p2", hits=["b", "c", "a"], timestamp=5)],
    "queries whose query_id has another user_query or hit list as well": [
        query("p8", hits=["a"]),
        query("p8", hits=["a", "b"]),
        query("p9", "one", ["a"]),
        query("p9", "other", ["a"]),
    ],
    "impression events, as hit lists say what was shown": [event("p1", "impression", "a", 0)],
    "events of other actions": [event("p1", "add_to_cart", "a"), event(None, "search"), event("p7", "scroll", "x")],
    "clicks without the id of a page or visit": [event(None, "click", "a"), event("", "click", "a")],
    "clicks without a document": [event("p1", "click"), event("p1", "click", "")],
    "clicks on a page that was not recorded": [event("p7", "click", "a")],
    "clicks on a document that the page did not show": [event("p1", "click", "z")],
    "clicks that were seen before": [GOOD_HITS[2], event("p1", "click", "b", 7)],
}


@pytest.mark.parametrize("reason", ODD_WITH_HITS)
@pytest.mark.slow_after(4)
def test_what_is_odd_beside_hit_lists_is_counted_and_changes_nothing(
    posbias: Posbias, tmp_path: Path, reason: str
) -> None:
    odd = ODD_WITH_HITS[reason]
    found = posbias("collect", write(tmp_path / "ubi.ndjson", [*GOOD_HITS, *odd]), *UBI)
    account = account_of(found)
    assert account["not_used"] == {reason: len(odd)}
    assert account["used"] == {"queries": 2, "impressions": 0, "clicks": 2}
    assert found.manifest["rows"]["read"] == 6


ODD_WITH_EVENTS: dict[str, list[Document]] = {
    "impressions that were seen before": [event("p1", "impression", "a", 0), event("p2", "impression", "c", 1)],
    "impressions without a hit list and without a whole ordinal": [
        event("p1", "impression", "d"),
        event("p1", "impression", "d", 3.5),
        event("p1", "impression", "d", "third"),
    ],
    "queries of which nothing was shown": [query("p8"), query("p9", hits=["a"])],
    "impressions without an object_id": [event("p1", "impression")],
    "impressions without a query_id": [event(None, "impression", "a", 0)],
    "impressions whose query was not recorded": [event("p7", "impression", "a", 0)],
    "impressions and queries of pages with two documents at one position, or one at two": [
        query("p8"),
        event("p8", "impression", "a", 0),
        event("p8", "impression", "b", 0),
        event("p8", "click", "a", 0),
        query("p9"),
        event("p9", "impression", "a", 0),
        event("p9", "impression", "a", 1),
        event("p9", "click", "z", 1),
    ],
    "clicks on a document that the page did not show": [event("p1", "click", "z", 0)],
    "clicks whose ordinal says another position than the impression": [event("p1", "click", "a", 2)],
}


@pytest.mark.parametrize("reason", ODD_WITH_EVENTS)
@pytest.mark.slow_after(2)
def test_what_is_odd_among_events_is_counted_and_changes_nothing(posbias: Posbias, tmp_path: Path, reason: str) -> None:
    odd = ODD_WITH_EVENTS[reason]
    path = write(tmp_path / "ubi.ndjson", [*GOOD_EVENTS, *odd])
    found = posbias("collect", path, *EVENTS, "--position-base", "impression=0,click=0")
    account = account_of(found)
    of_pages = 0 if reason.startswith("clicks") else sum(record.get("action_name") == "click" for record in odd)
    of_clicks = {"clicks on a page that is not used": of_pages} if of_pages else {}
    assert account["not_used"] == {reason: len(odd) - of_pages, **of_clicks}
    assert account["used"] == {"queries": 2, "impressions": 6, "clicks": 2}
    assert account["positions"] == {"from_hit_lists": 0, "from_ordinals": 6}


def test_a_hit_list_says_the_position_of_an_impression_whatever_its_ordinal(posbias: Posbias, tmp_path: Path) -> None:
    shown = [event("p1", "impression", doc, ordinal) for doc, ordinal in (("a", 1), ("c", 7), ("z", 2))]
    path = write(tmp_path / "ubi.ndjson", [GOOD_HITS[0], *shown, GOOD_EVENTS[1], *GOOD_EVENTS[5:]])
    found = posbias("collect", path, *EVENTS, *FROM_0)
    account = account_of(found)
    assert account["not_used"] == {
        "impressions of a document that is not in the hit list": 1,
        "clicks on a document that the page did not show": 1,
    }
    assert account["positions"] == {"from_hit_lists": 2, "from_ordinals": 3}
    counted = found.statistics.select("doc", "position").sort(pl.all())
    assert counted.rows() == [("a", 1), ("a", 3), ("b", 1), ("c", 2), ("c", 3)]


def test_without_a_position_base_no_ordinal_is_read(posbias: Posbias, tmp_path: Path) -> None:
    path = write(tmp_path / "ubi.ndjson", [*GOOD_HITS[:1], event("p1", "impression", "a", 0), *GOOD_EVENTS[1:]])
    account = account_of(posbias("collect", path, *EVENTS))
    assert account["positions"] == {"from_hit_lists": 3, "from_ordinals": 0}
    reason = "impressions without a hit list: to read ordinals, say --position-base impression=N"
    assert account["not_used"][reason] == 3


def test_what_is_a_click_is_said_by_its_actions(posbias: Posbias, tmp_path: Path) -> None:
    path = write(tmp_path / "ubi.ndjson", [*GOOD_HITS, event("p1", "add_to_cart", "c"), event("p1", "buy", "a")])
    account = account_of(posbias("collect", path, *UBI, "--click-actions", "add_to_cart, buy"))
    assert account["used"]["clicks"] == 2
    assert account["other_actions"] == {"click": 2}


def test_older_hit_lists_and_ids_that_are_numbers_are_read(posbias: Posbias, tmp_path: Path) -> None:
    documents: list[Document] = [
        {"query_id": 1, "user_query": "q", "query_response_object_ids": [1, 2, 3]},
        {"query_id": 2, "user_query": "q", "query_response_object_ids": [2, 3, 1]},
        {"query_id": 1, "action_name": "click", "event_attributes": {"object": {"object_id": 2}}},
    ]
    account = account_of(posbias("collect", write(tmp_path / "ubi.ndjson", documents), *UBI))
    assert account["used"] == {"queries": 2, "impressions": 0, "clicks": 1}


# --- what is refused ------------------------------------------------------------------------------------------

BROKEN: dict[str, str] = {
    "[1, 2]": "lines that are not a JSON object",
    '{"query_id": "p1" "x": 1}': "lines that are not a JSON object",
    '"{text}"': "lines that are not a JSON object",
    '{"query_id": "p1"}': "documents that are neither a query nor an event",
    '{"user_query": "q", "query_response_hit_ids": ["a"]}': "queries without a query_id",
}


@pytest.mark.parametrize("line", BROKEN)
@pytest.mark.slow_after(1)
def test_a_damaged_line_stops_the_run_or_is_counted(
    refused: Refused, posbias: Posbias, tmp_path: Path, line: str
) -> None:
    first = write(tmp_path / "first.ndjson", GOOD_HITS[:2])
    second = write(tmp_path / "second.ndjson", [*GOOD_HITS[2:], "", line])
    assert f"1 x {BROKEN[line]}: {second} line 4" in refused("collect", first, second, *UBI)
    account = account_of(posbias("collect", first, second, *UBI, "--on-bad-rows", "drop", "--max-bad-rows", 0.5))
    assert account["not_used"] == {"blank lines": 1, BROKEN[line]: 1}


def test_a_log_most_of_whose_pages_contradict_themselves_is_refused(refused: Refused, tmp_path: Path) -> None:
    contradicting = [query(page, text, [text]) for page in ("p7", "p8", "p9") for text in ("one", "other")]
    path = write(tmp_path / "ubi.ndjson", [*GOOD_HITS, *contradicting])
    assert "3 of 5 pages contradict themselves" in refused("collect", path, *UBI, "--on-bad-rows", "drop")


# --- the official sample --------------------------------------------------------------------------------------


def test_every_line_of_the_official_sample_is_accounted_for(posbias: Posbias, shared_data: Path) -> None:
    text = gzip.decompress((shared_data / SAMPLE).read_bytes()).decode()
    documents = [json.loads(line) for line in text.splitlines()]
    actions = Counter(document["action_name"] for document in documents if "action_name" in document)
    account = account_of(posbias("collect", shared_data / SAMPLE, *UBI))
    assert account["lines"] == len(documents) == 7842
    assert account["not_used"]["action lines of the bulk format"] == sum("index" in one for one in documents) == 3921
    assert account["not_used"]["impression events, as hit lists say what was shown"] == actions.pop("impression")
    queries = account["used"]["queries"] + sum(
        lines for reason, lines in account["not_used"].items() if reason.startswith("queries")
    )
    assert queries == sum("user_query" in one and "action_name" not in one for one in documents) == 473
    clicks = actions.pop("click")
    assert account["other_actions"] == actions
    of_clicks = (
        "clicks that were seen before",
        "clicks on a page that is not used",
        "clicks on a page that was not recorded",
    )
    assert account["used"]["clicks"] + sum(account["not_used"][reason] for reason in of_clicks) == clicks == 287
    assert account["used"] == {"queries": 75, "impressions": 0, "clicks": 116}


@pytest.mark.slow
def test_the_events_of_the_official_sample_have_positions_where_they_can_be_known(
    posbias: Posbias, shared_data: Path
) -> None:
    base = ("--position-base", "impression=0,add_to_cart=1")
    known, read = (account_of(posbias("collect", shared_data / SAMPLE, *EVENTS, *more)) for more in ((), base))
    assert known["positions"] == {"from_hit_lists": 833, "from_ordinals": 0}
    assert read["positions"] == {"from_hit_lists": 833, "from_ordinals": 1000}
    assert read["used"] == {"queries": 253, "impressions": 1833, "clicks": 156}


def test_more_damaged_lines_than_allowed_stop_the_run(run_in_process: Run, tmp_path: Path) -> None:
    path = write(tmp_path / "ubi.ndjson", [*GOOD_HITS, '"{text}"', "{"])
    done = run_in_process("collect", path, *UBI, "--on-bad-rows", "drop", "-o", tmp_path / "out")
    assert done.returncode == 2
    total = len(GOOD_HITS) + 2
    assert f"would leave out 2 of {total} lines ({200 / total:.3g} %), and at most 5 % may be left out" in done.stderr
    assert "2 x lines that are not a JSON object" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("wrapped", ["hits", "index and tab", "oldest hit lists"])
def test_documents_are_read_however_they_were_exported(posbias: Posbias, tmp_path: Path, wrapped: str) -> None:
    writers: dict[str, Callable[[str], str]] = {
        "hits": lambda line: f'{{"_index": "ubi", "_id": "1", "_source": {line}}}',
        "index and tab": lambda line: f"ubi_events\t{line}",
        "oldest hit lists": lambda line: line.replace("query_response_hit_ids", "query_response_objects_ids"),
    }
    plain = [json.dumps(document) for document in GOOD_HITS]
    whole = posbias("collect", write(tmp_path / "plain.ndjson", plain), *UBI)
    found = posbias("collect", write(tmp_path / "other.ndjson", map(writers[wrapped], plain)), *UBI)
    assert found.manifest["rows"] == whole.manifest["rows"]
    assert found.manifest["statistics"]["clicks"] == 2


def test_where_no_event_is_a_click_the_actions_that_occur_are_named(run_in_process: Run, tmp_path: Path) -> None:
    shown = [document for document in GOOD_HITS if "action_name" not in document]
    others = [event("p1", "product_click", "b"), event("p2", "product_click", "b"), event("p1", "scroll")]
    done = run_in_process("collect", write(tmp_path / "ubi.ndjson", [*shown, *others]), *UBI, "-o", "out")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "no event has the action click (--click-actions), so that nothing is clicked" in said
    assert "The actions that occur are: product_click (2), scroll (1)." in said
