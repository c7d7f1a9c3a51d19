"""OpenSearch UBI: queries and events become a log of pages, and every line of the files is accounted for."""

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from command_results import Output, Posbias, Refused, Run
from log_forms import Event, ubi_event, ubi_query, write

UBI = ("--input-format", "ubi")
EVENTS = (*UBI, "--ubi-impressions", "events")
FROM_0 = ("--position-base", "impression=0")
SAMPLE = "opensearch_ubi_sample.ndjson.gz"


def written(path: Path, documents: Iterable[Event | str]) -> Path:
    """Write documents, one per line."""
    (file,) = write(path.parent, {path.name: documents})
    return file


GOOD_HITS = [
    ubi_query("p1", hits=["a", "b", "c"]),
    ubi_query("p2", hits=["b", "c", "a"]),
    ubi_event("p1", "click", "b"),
    ubi_event("p2", "click", "b"),
]
GOOD_EVENTS = [
    ubi_query("p1"),
    ubi_query("p2"),
    *(ubi_event("p1", "impression", doc, place) for place, doc in enumerate("abc")),
    *(ubi_event("p2", "impression", doc, place) for place, doc in enumerate("bca")),
    ubi_event("p1", "click", "b", 1),
    ubi_event("p2", "click", "b", 0),
]


def account_of(output: Output) -> dict[str, Any]:
    """Return what became of the lines; those used and not used are all of them."""
    account = output.manifest["rows"]["ubi"]
    assert sum(account["used"].values()) + sum(account["not_used"].values()) == account["lines"]
    assert sum(account["other_actions"].values()) == account["not_used"].get("events of other actions", 0)
    assert sum(account["positions"].values()) == output.manifest["rows"]["read"]
    return account


@pytest.mark.slow
def test_statistics_of_two_days_of_ubi_add_up_with_their_accounts(posbias: Posbias, tmp_path: Path) -> None:
    logs = [
        written(tmp_path / f"{day}.ndjson", [*GOOD_HITS, ubi_event(day, "click", "a")]) for day in ("first", "second")
    ]
    days = [posbias("collect", log, *UBI) for log in logs]
    both = account_of(posbias("collect", *(day.folder for day in days)))
    assert both["lines"] == 10
    assert both["used"] == {"queries": 4, "impressions": 0, "clicks": 4}
    assert both["not_used"] == {"clicks on a page that was not recorded": 2}


@pytest.mark.slow
def test_the_training_files_of_pages_carry_the_ids_of_ubi(posbias: Posbias, tmp_path: Path) -> None:
    path = written(tmp_path / "ubi.ndjson", GOOD_EVENTS)
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
    path = written(tmp_path / "ubi.ndjson", [*pages, *GOOD_HITS[2:]])
    counted = posbias("collect", path, *UBI, "--context", "application", "--timestamp", "timestamp")
    days = (
        counted.statistics.select("application", pl.col("period").dt.date().cast(pl.String))
        .unique()
        .sort("application")
    )
    assert days.rows() == [("app", "2026-01-06"), ("web", "2026-01-05")]


def test_a_hit_list_says_the_position_of_an_impression_whatever_its_ordinal(posbias: Posbias, tmp_path: Path) -> None:
    shown = [ubi_event("p1", "impression", doc, ordinal) for doc, ordinal in (("a", 1), ("c", 7), ("z", 2))]
    path = written(tmp_path / "ubi.ndjson", [GOOD_HITS[0], *shown, GOOD_EVENTS[1], *GOOD_EVENTS[5:]])
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
    path = written(tmp_path / "ubi.ndjson", [*GOOD_HITS[:1], ubi_event("p1", "impression", "a", 0), *GOOD_EVENTS[1:]])
    account = account_of(posbias("collect", path, *EVENTS))
    assert account["positions"] == {"from_hit_lists": 3, "from_ordinals": 0}
    reason = "impressions without a hit list: to read ordinals, say --position-base impression=N"
    assert account["not_used"][reason] == 3


def test_what_is_a_click_is_said_by_its_actions(posbias: Posbias, tmp_path: Path) -> None:
    path = written(
        tmp_path / "ubi.ndjson", [*GOOD_HITS, ubi_event("p1", "add_to_cart", "c"), ubi_event("p1", "buy", "a")]
    )
    account = account_of(posbias("collect", path, *UBI, "--click-actions", "add_to_cart, buy"))
    assert account["used"]["clicks"] == 2
    assert account["other_actions"] == {"click": 2}


def test_older_hit_lists_and_ids_that_are_numbers_are_read(posbias: Posbias, tmp_path: Path) -> None:
    documents: list[Event] = [
        {"query_id": 1, "user_query": "q", "query_response_object_ids": [1, 2, 3]},
        {"query_id": 2, "user_query": "q", "query_response_object_ids": [2, 3, 1]},
        {"query_id": 1, "action_name": "click", "event_attributes": {"object": {"object_id": 2}}},
    ]
    account = account_of(posbias("collect", written(tmp_path / "ubi.ndjson", documents), *UBI))
    assert account["used"] == {"queries": 2, "impressions": 0, "clicks": 1}


def test_a_log_most_of_whose_pages_contradict_themselves_is_refused(refused: Refused, tmp_path: Path) -> None:
    contradicting = [ubi_query(page, text, [text]) for page in ("p7", "p8", "p9") for text in ("one", "other")]
    path = written(tmp_path / "ubi.ndjson", [*GOOD_HITS, *contradicting])
    assert "3 of 5 pages contradict themselves" in refused("collect", path, *UBI, "--on-bad-rows", "drop")


@pytest.mark.slow
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
    path = written(tmp_path / "ubi.ndjson", [*GOOD_HITS, '"{text}"', "{"])
    done = run_in_process("collect", path, *UBI, "--on-bad-rows", "drop", "-o", tmp_path / "out", code=2)
    total = len(GOOD_HITS) + 2
    assert f"would leave out 2 of {total} lines ({200 / total:.3g} %), and at most 5 % may be left out" in done.stderr
    assert "2 x lines that are not a JSON object" in done.stderr
    assert not (tmp_path / "out").exists()


def test_where_no_event_is_a_click_the_actions_that_occur_are_named(run_in_process: Run, tmp_path: Path) -> None:
    shown = [document for document in GOOD_HITS if "action_name" not in document]
    others = [ubi_event("p1", "product_click", "b"), ubi_event("p2", "product_click", "b"), ubi_event("p1", "scroll")]
    done = run_in_process("collect", written(tmp_path / "ubi.ndjson", [*shown, *others]), *UBI, "-o", "out", code=2)
    said = " ".join(done.stderr.split())
    assert "no event has the action click (--click-actions), so that nothing is clicked" in said
    assert "The actions that occur are: product_click (2), scroll (1)." in said


def pages_of_a_search(*requests: object) -> list[Event]:
    """The documents of two pages of a search, whose requests are given, and clicks on both."""
    lists = zip(("abc", "def"), requests, strict=True)
    answers = [
        ubi_query("p1", hits=[*docs]) | ({} if request is None else {"query": request, "query_response_id": docs})
        for docs, request in lists
    ]
    return [*answers, answers[0], ubi_event("p1", "click", "b"), ubi_event("p1", "click", "d", 0)]


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "requests",
    [
        ('{"from": 0, "query": {"match": {"title": "q"}}}', '{"from": 3, "size": 3}'),
        ({"query": {"match_all": {}}}, {"from": 3}),
    ],
)
@pytest.mark.parametrize("options", [UBI, EVENTS], ids=["hits", "events"])
def test_the_next_page_of_a_search_begins_where_its_request_says(
    posbias: Posbias, tmp_path: Path, requests: Sequence[object], options: Sequence[str]
) -> None:
    shown = [ubi_event("p1", "impression", doc, 0) for doc in "abcdef"] if options is EVENTS else []
    path = written(tmp_path / "ubi.ndjson", [*pages_of_a_search(*requests), *shown])
    found = posbias("collect", path, *options)
    rows = found.statistics.select("doc", "position", "clicks").sort("position").rows()
    assert rows == [("a", 1, 0), ("b", 2, 1), ("c", 3, 0), ("d", 4, 1), ("e", 5, 0), ("f", 6, 0)]
    assert account_of(found)["used"]["queries"] == 2
    assert account_of(found)["not_used"] == {"queries that were written before": 1}


def test_two_hit_lists_of_a_search_that_may_begin_anywhere_are_not_used(
    posbias: Posbias, refused: Refused, tmp_path: Path
) -> None:
    path = written(tmp_path / "ubi.ndjson", pages_of_a_search(None, None))
    assert "3 x queries whose query_id has another hit list as well, and no `from` in `query`" in refused(
        "collect", path, *UBI
    )
    single = [ubi_query("p3", hits=["x", "y"], query='{"from": 10}'), ubi_event("p3", "click", "y")]
    found = posbias("collect", written(tmp_path / "second.ndjson", [*GOOD_HITS, *single]), *UBI)
    assert found.statistics.filter(pl.col("doc") == "y").select("position", "clicks").rows() == [(12, 1)]
