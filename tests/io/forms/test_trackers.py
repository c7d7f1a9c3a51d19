"""What clients of trackers send: recognised, and read with the counts of what was shown and clicked by position."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl
import pytest
from command_results import Output, Posbias, Refused, Run
from log_forms import Event, write

CAPTURES = Path(__file__).parents[4] / "shared/cases/trackers"
DOCS = ("abcd", "badc", "cbda")
CLICKED = ("b", "a", None)
COUNTS = [(1, 3, 0), (2, 3, 2), (3, 3, 0), (4, 3, 0)]
"""Position, impressions and clicks of these three searches."""


def counts(output: Output) -> list[tuple[int, int, int]]:
    """Position, impressions and clicks."""
    rows = output.statistics.group_by("position").agg(pl.sum("impressions", "clicks")).sort("position")
    return [(int(position), int(shown), int(clicks)) for position, shown, clicks in rows.rows()]


def searches(track: Callable[[int, str, Event], Event]) -> list[Event]:
    """Events of three searches, each 60 s after the one before, and of recommendations below them, clicked too."""
    events = list[Event]()
    for number, (docs, clicked) in enumerate(zip(DOCS, CLICKED, strict=True)):
        at, about = 60 * number, {"query": "boots", "search_id": f"s{number}"}
        events.append(track(at, "Results Viewed", about | {"products": [{"product_id": doc} for doc in docs]}))
        events.append(track(at + 1, "Similar Viewed", {"products": [{"product_id": doc} for doc in ("x", docs[1])]}))
        if clicked:
            events.append(track(at + 2, "Result Clicked", about | {"product_id": clicked}))
        events.append(track(at + 3, "Similar Clicked", {"product_id": "x"}))
    return events


def iso(second: int) -> str:
    return f"2026-01-05T10:{second // 60:02}:{second % 60:02}Z"


def amplitude_sent(at: int, name: str, properties: Event) -> Event:
    event: Event = {"time": 1767607200000 + 1000 * at, "insert_id": f"{name}{at}", "event_type": name, "user_id": "u"}
    return event | {"event_properties": properties}


def mixpanel_sent(at: int, name: str, properties: Event) -> Event:
    return {"event": name, "properties": {"token": "t", "distinct_id": "u", "mp_lib": "node", "n": at} | properties}


def posthog(at: int, name: str, properties: Event) -> Event:
    event: Event = {"uuid": f"{name}{at}", "event": name, "distinct_id": "u", "timestamp": iso(at)}
    return event | {"properties": json.dumps({"$lib": "web", "$session_id": "s"} | properties)}


def snowplow_of_a_server(at: int, name: str, properties: Event) -> Event:
    listed = properties.get("products", [{"product_id": properties.get("product_id")}])
    action = {"type": "list_click" if "Clicked" in name else "list_view", "name": properties.get("query", "related")}
    schema = "com_snowplowanalytics_snowplow_ecommerce"
    event: Event = {"event_id": f"{name}{at}", "app_id": "shop", "collector_tstamp": iso(at), "user_id": "u"}
    event |= {"derived_tstamp": iso(at), "domain_userid": None, "event_name": "snowplow_ecommerce_action"}
    event[f"unstruct_event_{schema}_snowplow_ecommerce_action_1"] = action
    entries = [{"id": product["product_id"], "position": at} for at, product in enumerate(listed, 1)]
    return event | {f"contexts_{schema}_product_1": entries}


def without_the_rest(events: Iterable[Event]) -> list[Event]:
    """Events of searches alone: a server of Snowplow has no query to tell lists apart by."""
    return [event for event in events if "Similar" not in event["event_id"]]


def algolia_sent() -> list[Event]:
    """Views that name no search, and clicks that name no view."""
    events = list[Event]()
    for number, (docs, clicked) in enumerate(zip(DOCS, CLICKED, strict=True)):
        event: Event = {"index": "products", "userToken": "u", "timestamp": 1767607200000 + 60000 * number}
        events.append(event | {"eventType": "view", "eventName": "Viewed", "objectIDs": [*docs]})
        click: Event = {"eventType": "click", "eventName": "Clicked", "queryID": f"q{number}"}
        if clicked:
            events.append(event | click | {"objectIDs": [clicked], "positions": [docs.index(clicked) + 1]})
    return events


def elastic_sent(change: Callable[[Event], Event] = lambda event: event) -> list[Event]:
    """Bodies without a time; the path says what they are."""
    events = list[Event]()
    for docs, clicked in zip(DOCS, CLICKED, strict=True):
        common: Event = {"session": {"id": "s"}, "user": {"id": "u"}}
        items = [{"document": {"id": doc}, "page": {"url": f"/p/{doc}"}} for doc in docs]
        search = {"query": "boots", "results": {"items": items}}
        events.append({"path": "/_application/analytics/shop/event/search", "search": search} | common)
        if clicked:
            click: Event = {"path": "/_application/analytics/shop/event/search_click", "search": {"query": "boots"}}
            events.append(click | {"document": {"id": clicked}, "page": {"url": f"/p/{clicked}"}} | common)
    return [*map(change, events)]


def without_path(event: Event) -> Event:
    return {name: value for name, value in event.items() if name != "path"}


def clicks_by_address(event: Event) -> Event:
    return {name: value for name, value in event.items() if name != "document"}


def known_by_address(event: Event) -> Event:
    """No id of a document in what was shown, and both in clicks."""
    items = event["search"].get("results", {}).get("items", [])
    search = event["search"] | ({"results": {"items": [{"page": item["page"]} for item in items]}} if items else {})
    return event | {"search": search}


SENT: Mapping[str, tuple[Sequence[str], Callable[[], Sequence[Event]]]] = {
    "elasticsearch": (["--input-format", "elasticsearch"], elastic_sent),
    "amplitude": (["--input-format", "amplitude"], lambda: searches(amplitude_sent)),
    "amplitude's request": (
        ["--input-format", "amplitude"],
        lambda: [{"api_key": "k", "events": searches(amplitude_sent)[:4]}, {"events": searches(amplitude_sent)[4:]}],
    ),
    "mixpanel": (["--input-format", "mixpanel"], lambda: searches(mixpanel_sent)),
    "posthog": (["--input-format", "posthog"], lambda: searches(posthog)),
    "snowplow": (["--input-format", "snowplow"], lambda: without_the_rest(searches(snowplow_of_a_server))),
    "algolia": (["--no-query", "--input-format", "algolia"], algolia_sent),
    "without path": (["--input-format", "elasticsearch"], lambda: elastic_sent(without_path)),
    "clicks by address": (["--input-format", "elasticsearch"], lambda: elastic_sent(clicks_by_address)),
    "known by address": (["--input-format", "elasticsearch"], lambda: elastic_sent(known_by_address)),
}


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", SENT)
def test_what_clients_send_is_recognised_and_counted(
    posbias: Posbias, run_in_process: Run, tmp_path: Path, name: str
) -> None:
    options, events = SENT[name]
    (file,) = write(tmp_path, {"sent.ndjson": events()})
    checked = json.loads(run_in_process("check", file, "--json").stdout)
    assert checked["command"][2:] == options
    assert counts(posbias("collect", file, *options)) == COUNTS


@pytest.mark.slow
def test_views_whose_places_clicks_contradict_are_refused(refused: Refused, tmp_path: Path) -> None:
    events = [event | ({"positions": [4]} if "positions" in event else {}) for event in algolia_sent()]
    said = refused("collect", *write(tmp_path, {"e.ndjson": events}), "--input-format", "algolia", "--no-query")
    assert "of 2 clicks after a search, 2 are on such a view, 2 of them at another place. Send queryID" in said


@pytest.mark.slow
def test_events_with_neither_times_nor_ids_of_pages_are_refused(refused: Refused, tmp_path: Path) -> None:
    events = [
        event | {"properties": {name: value for name, value in event["properties"].items() if name != "search_id"}}
        for event in searches(mixpanel_sent)
    ]
    said = refused("collect", *write(tmp_path, {"e.ndjson": events}), "--input-format", "mixpanel")
    assert "no event has a time that can be read, and lists and clicks name no common id of a page" in said


@pytest.mark.slow
def test_searches_of_elasticsearch_that_do_not_log_their_results_are_named(refused: Refused, tmp_path: Path) -> None:
    events = elastic_sent(lambda event: event | {"search": {"query": "boots"}})
    said = refused("collect", *write(tmp_path, {"e.ndjson": events}), "--input-format", "elasticsearch")
    assert "3 x searches that do not log what they showed (search.results)" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capture", "options"),
    {
        "algolia-client-insights": ["--no-query", "--input-format", "algolia"],
        "amplitude-raw": ["--input-format", "amplitude"],
        "amplitude-two-lists": ["--input-format", "amplitude"],
        "elastic": ["--input-format", "elasticsearch"],
        "elastic.stored": ["--input-format", "elasticsearch"],
        "segment-two-lists": ["--input-format", "segment"],
        "snowplow-node.stored": ["--input-format", "snowplow"],
        "snowplow-two-lists.stored": ["--input-format", "snowplow"],
    }.items(),
)
def test_captures_of_clients_are_counted_as_they_were_made(
    posbias: Posbias, run_in_process: Run, capture: str, options: Sequence[str]
) -> None:
    file = CAPTURES / f"{capture}.ndjson.gz"
    if not file.exists():
        pytest.skip("../shared is missing")
    of = capture.removesuffix(".stored").replace("amplitude-raw", "amplitude-two-lists")  # the same searches
    truth = json.loads((CAPTURES / f"{of}.truth.json").read_text(encoding="utf-8"))
    checked = json.loads(run_in_process("check", file, "--json").stdout)
    assert checked["command"][2:] == options
    found = counts(posbias("collect", file, *options))
    assert found == [(int(at), counted["impressions"], counted["clicks"]) for at, counted in truth.items()]
