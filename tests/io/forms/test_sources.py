"""Raw files of known sources: what belongs together, what ids and times are, and how they may be exported."""

import re
from datetime import datetime
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

import polars as pl
import pytest
from command_results import Output, Posbias, Refused
from log_faults import SMALL, changed, search, write_small
from log_forms import FORMS, Click, Event, Log, mixpanel_events, small_log, write

from posbias.io.log.sql import Query, run_query
from posbias.io.log.text import find_log_files
from posbias.io.sources import event_source

METARANK, YANDEX = ("--input-format", "metarank"), ("--input-format", "yandex")
ELASTICSEARCH, MIXPANEL = ("--input-format", "elasticsearch"), ("--input-format", "mixpanel")
METARANK_FIELDS = ("--timestamp", "timestamp", "--cluster-column", "user", "--cluster", "column")


def account(output: Output) -> dict[str, dict[str, int]]:
    """Return what became of the lines."""
    (found,) = output.manifest["rows"]["raw"].values()
    return found


def clicked(output: Output) -> list[tuple[str, int, int]]:
    """Return document, position and clicks where there is a click."""
    return output.statistics.filter(pl.col("clicks") > 0).select("doc", "position", "clicks").rows()


def test_a_page_that_contradicts_itself_is_left_out_with_its_clicks(posbias: Posbias, tmp_path: Path) -> None:
    path = write_small(tmp_path, "metarank", [changed("ranking", id="p0003", items=[{"id": "z"}])])
    found = account(posbias("collect", *path, *METARANK))
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
    found = posbias("collect", *write(tmp_path, {"log.tsv": lines}), *YANDEX)
    assert clicked(found) == [("a", 2, 1), ("b", 2, 1)]
    assert account(found)["not_used"] == {"clicks that were seen before": 1}


def test_a_page_is_its_documents_whatever_their_domains(posbias: Posbias, tmp_path: Path) -> None:
    lines = ["1\t0\tQ\t0\tq\t1,2\ta,b\tb,b\tc,a", "1\t5\tC\t0\tb", "1\t9\tQ\t1\tq\t1,2\tb,a\ta,c\tc,c", "1\t9\tC\t1\tc"]
    found = posbias("collect", *write(tmp_path, {"log.tsv": lines}), *YANDEX)
    assert account(found)["used"] == {"pages": 2, "clicks": 2}
    assert clicked(found) == [("b", 2, 1), ("c", 3, 1)]


def test_ids_are_text_to_the_letter(posbias: Posbias, tmp_path: Path) -> None:
    ids = [
        *(2**53 + 1, 2**64 - 1, -(2**63), 2**70, "007", "1e5", "2026-01-05", "NaN", "A\u0000b"),
        "0A1B2C3D-0000-0000-0000-000000000000",
    ]
    lines = [
        changed("ranking", id=page, items=[{"id": doc} for doc in docs]) for page, docs in enumerate((ids, ids[::-1]))
    ]
    lines += [changed("interaction", ranking=0, item=doc) for doc in ids]
    found = posbias("collect", *write(tmp_path, {"m.jsonl": lines}), *METARANK)
    assert account(found)["used"] == {"pages": 2, "clicks": len(ids)}
    assert {*found.statistics["doc"]} == {*map(str, ids)}


@pytest.mark.slow
def test_ids_come_out_of_a_query_to_the_letter(posbias: Posbias, tmp_path: Path) -> None:
    ids = {doc: str(uuid5(NAMESPACE_OID, doc)).upper() for page in small_log().pages for doc in page.docs}
    pages = [page._replace(docs=[ids[doc] for doc in page.docs]) for page in small_log().pages]
    clicks = [Click(page, ids[doc or ""]) for page, doc, _ in small_log().clicks]
    files = write(tmp_path, FORMS["mixpanel's lists"].write(Log(pages, clicks)))
    assert {*posbias("collect", *files, *MIXPANEL).statistics["doc"]} == {*ids.values()}


@pytest.mark.slow
def test_the_second_page_of_a_search_begins_below_the_first(posbias: Posbias, tmp_path: Path) -> None:
    second: Event = {"query": "q", "page": {"current": 2, "size": 3}}
    second["results"] = {"items": [{"document": {"id": doc}} for doc in "de"]}
    lines = [search(search=second), search("search_click", search=second, document={"id": "e"})]
    found = posbias("collect", *write_small(tmp_path, "behavioral analytics", lines), *ELASTICSEARCH)
    lower = found.statistics.filter(pl.col("position") > 3)
    assert lower.select("doc", "position", "clicks").rows() == [("d", 4, 0), ("e", 5, 1)]


def test_what_is_a_click_of_metarank_is_said_by_its_types(posbias: Posbias, tmp_path: Path) -> None:
    path = write_small(tmp_path, "metarank", [changed("interaction", type="purchase", item="c")])
    assert account(posbias("collect", *path, *METARANK, "--click-actions", "click,purchase"))["used"]["clicks"] == 3


@pytest.mark.slow
def test_users_and_days_of_a_source_can_be_used(posbias: Posbias, tmp_path: Path) -> None:
    files = write(tmp_path, FORMS["metarank"].write(small_log()))
    assert posbias("fit", *files, *METARANK, *METARANK_FIELDS).manifest["days"]["first"] == "2026-01-05"


@pytest.mark.parametrize("form", ["metarank", "behavioral analytics", "relevance prediction"])
def test_a_file_that_is_not_utf_8_is_named_with_the_line(refused: Refused, tmp_path: Path, form: str) -> None:
    (path,) = write_small(tmp_path, form)
    path.write_bytes(path.read_bytes() + b"\xff\n")
    assert f"{path} line 6: is not UTF-8." in refused("collect", path, *FORMS[form].words([]))


# --- sources that are a query -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_lost_and_repeated_clicks_and_other_events_are_counted(posbias: Posbias, tmp_path: Path) -> None:
    events = mixpanel_events(small_log(), top=1)
    last = next(event for event in reversed(events) if event["event"] == "Search Result Clicked")
    before = {name: events[0]["properties"][name] for name in ("time", "distinct_id")} | {"product_id": "d"}
    lost = [
        {"event": "Product Tapped", "properties": properties}
        for properties in (before, before | {"distinct_id": "nobody"})
    ]
    timeless = {"event": "Results Tapped", "properties": before | {"product_id": ""}}
    found = posbias("collect", *write(tmp_path, {"e.jsonl": [*events, last, *lost, timeless]}), *MIXPANEL)
    n_clicks = len(small_log().clicks)
    clicks = found.manifest["rows"]["clicks"]
    assert clicks | {"joined": n_clicks, "read": n_clicks + 4} == clicks
    assert account(found)["used"] == {"impressions": 1200, "clicks": n_clicks}
    assert account(found)["not_used"] == {
        "rows of other events": 240,
        "clicks on a document that the visit had not shown before": 2,
        "clicks that were seen before": 1,
        "clicks without a document": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize("top", [0, 1])
def test_places_that_count_from_nowhere_known_are_refused_unless_it_is_said(
    posbias: Posbias, refused: Refused, tmp_path: Path, top: int
) -> None:
    pages = small_log().pages
    middle = Log(pages, [Click(page.number, page.docs[1]) for page in pages])  # neither the first nor the last
    file = write(tmp_path, {"e.jsonl": mixpanel_events(middle, top)})
    said = refused("collect", *file, *MIXPANEL)
    assert f"they are {top + 1} to {top + 1}). Use --position-base 0 or --position-base 1." in said
    found = posbias("collect", *file, *MIXPANEL, "--position-base", top)
    by_position = found.statistics.group_by("position").agg(pl.sum("clicks")).sort("position")
    assert by_position["clicks"].to_list() == [0, len(pages), 0, 0, 0]


OF_TIMES = '"(event_time|timestamp|originalTimestamp|time|derived_tstamp|collector_tstamp)": ("[^"]*"|[0-9]+)'


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("written", ["2026-01-06T00:30:00+02:00", "2026-01-05T22:30:00.000Z", "2026-01-05 22:30:00"])
@pytest.mark.parametrize("name", ["segment", "algolia", "mixpanel", "amplitude", "rudderstack", "snowplow"])
def test_times_of_a_source_are_those_of_utc(tmp_path: Path, name: str, written: str) -> None:
    (file,) = write(tmp_path, FORMS[name].write(SMALL))
    lines = re.sub(OF_TIMES, rf'"\1": "{written}"', file.read_text(encoding="utf-8"))
    file.write_text(lines, encoding="utf-8")
    made = run_query(Query(event_source(name).text, 1 << 30, position_base=1), find_log_files([str(file)]))
    times = pl.read_parquet(str(made.origin))["timestamp"].drop_nulls()
    assert {*times} == {datetime(2026, 1, 5, 22, 30)}  # noqa: DTZ001 - of UTC, without a zone


def shop_event(event: str, second: int, **properties: object) -> Event:
    """An event of Segment of one visitor."""
    when = f"2026-01-05T10:{second // 60:02}:{second % 60:02}Z"
    common: Event = {"type": "track", "event": event, "messageId": f"m{second}{event}", "anonymousId": "v"}
    return common | {"timestamp": when, "properties": properties}


def a_search_and_what_is_recommended(number: int) -> list[Event]:
    """A search for which a is clicked, then recommendations of which c and b are; b was a result, too."""
    at = 30 * number
    return [
        shop_event("Search Viewed", at, query="boots", search_id=f"s{number}", product_ids=["a", "b"]),
        shop_event("Recommendations Viewed", at + 2, placement="below", product_ids=["c", "b"]),
        shop_event("Product Clicked", at + 3, product_id="a", search_id=f"s{number}"),
        shop_event("Recommendation Clicked", at + 4, product_id="c", placement="below"),
        shop_event("Recommendation Clicked", at + 5, position=2 - number % 2),
    ]


@pytest.mark.slow
def test_lists_without_a_query_beside_some_with_one_are_no_results_pages(posbias: Posbias, tmp_path: Path) -> None:
    events = [event for number in range(3) for event in a_search_and_what_is_recommended(number)]
    found = posbias("collect", *write(tmp_path, {"e.jsonl": events}), "--input-format", "segment")
    assert clicked(found) == [("a", 1, 3)]
    assert account(found)["used"] == {"impressions": 6, "clicks": 3}
    assert account(found)["not_used"] == {"rows of other events": 9}


@pytest.mark.slow
def test_lists_of_other_names_than_results_after_searches_are_left_out_with_bare_clicks_on_them(
    posbias: Posbias, tmp_path: Path
) -> None:
    events = list[Event]()
    for at in range(0, 40, 20):
        events += [
            shop_event("Products Searched", at, query="boots"),
            shop_event("Product List Viewed", at + 1, list_id="search results", product_ids=["a", "b"]),
            shop_event("Product List Viewed", at + 3, list_id="product page", product_ids=["c", "a"]),
            shop_event("Product Clicked", at + 5, product_id="b"),
            shop_event("Product Clicked", at + 6, product_id="c"),
        ]
    found = posbias("collect", *write(tmp_path, {"e.jsonl": events}), "--input-format", "segment")
    assert clicked(found) == [("b", 2, 2)]
    assert account(found)["used"] == {"impressions": 4, "clicks": 2}


@pytest.mark.slow
def test_of_lists_of_one_second_a_place_is_one_of_the_last(posbias: Posbias, tmp_path: Path) -> None:
    events = list[Event]()
    for at in range(0, 40, 20):
        events += [
            shop_event("Search Viewed", at, query="bo", product_ids=["a", "b"]),
            shop_event("Search Viewed", at, query="boots", product_ids=["b", "a"]),
            shop_event("Product Clicked", at + 3, position=1),
        ]
    found = posbias(
        "collect", *write(tmp_path, {"e.jsonl": events}), "--input-format", "segment", "--position-base", "1"
    )
    assert clicked(found) == [("b", 1, 2)]


@pytest.mark.slow
def test_named_lists_of_one_page_are_a_page_each(posbias: Posbias, tmp_path: Path) -> None:
    shown = {"query": "boots", "search_id": "s1"}
    events = [
        shop_event("Shown", 1, **shown, list_name="organic", product_ids=["a", "b"]),
        shop_event("Shown", 1, **shown, list_name="sponsored", product_ids=["c", "a"]),
        shop_event("Clicked", 2, search_id="s1", list_name="sponsored", product_id="a"),
        shop_event("Clicked", 3, search_id="s1", product_id="b"),
    ]
    found = posbias("collect", *write(tmp_path, {"e.jsonl": events}), "--input-format", "segment")
    assert clicked(found) == [("a", 2, 1), ("b", 2, 1)]
    assert found.statistics.get_column("impressions").sum() == 4


@pytest.mark.slow
def test_an_id_of_a_list_that_is_used_once_is_no_query(posbias: Posbias, tmp_path: Path) -> None:
    events = [shop_event("Products Searched", 0, query="boots")]
    for number in range(12):
        events.append(shop_event("Product List Viewed", 9 * number + 1, list_id=f"l{number}", product_ids=["a", "b"]))
        events.append(shop_event("Product Clicked", 9 * number + 2, list_id=f"l{number}", product_id="b"))
    found = posbias("collect", *write(tmp_path, {"e.jsonl": events}), "--input-format", "segment")
    assert found.statistics.get_column("query").unique().to_list() == ["boots"]
    assert clicked(found) == [("b", 2, 12)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["search results", "boots"])
def test_lists_of_other_names_beside_those_of_results_are_left_out(posbias: Posbias, tmp_path: Path, name: str) -> None:
    events = list[Event]()
    for at, name_of_event, of, docs in (
        (0, "view_item_list", name, ["a", "b"]),
        (1, "view_item_list", "related", ["c", "a"]),
        (2, "select_item", name, ["b"]),
        (3, "select_item", "related", ["c"]),
    ):
        items = [{"item_id": doc, "item_list_name": of} for doc in docs]
        params = [{"key": "search_term", "value": {"string_value": "boots", "int_value": None}}]
        common: Event = {"event_name": name_of_event, "event_timestamp": 1767600000000000 + at * 1000000}
        events.append(common | {"user_pseudo_id": "u", "event_params": params, "items": items})
    found = posbias("collect", *write(tmp_path, {"e.json": events}), "--input-format", "ga4")
    assert clicked(found) == [("b", 2, 1)]
    assert account(found)["used"] == {"impressions": 2, "clicks": 1}
    assert account(found)["not_used"] == {"rows of other events": 3}
