"""Events in the vendors' own schemas: recognised, and read as their flat twins, every event accounted for."""

import json
import re
import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import polars as pl
import pytest
from command_results import Posbias, Refused, Run
from make_logs import FORMS, draw_pages
from polars.testing import assert_frame_equal

from posbias.io.log.sql import Query, result_of
from posbias.io.log.text import find_log_files
from posbias.io.sources import NAMES, event_source

Event = dict[str, Any]
Page = tuple[int, str, list[str], list[str]]  # its number, query, what was shown, what was clicked
Write = Callable[[list[Page], Path], list[Path]]

START = 1_767_607_200  # seconds
PAGES_OF_A_VISIT = 3


def pages_of(log: pl.DataFrame) -> list[Page]:
    """Pages of a log, in their order."""
    texts = log.sort("session", "position").with_columns(pl.col("doc").cast(pl.String))
    found = texts.group_by("session", "query", maintain_order=True).agg(
        pl.col("doc"), clicked=pl.col("doc").filter(pl.col("click") == 1)
    )
    return found.rows()


def at(page: int, seconds: float = 0) -> float:
    """When something happened on a page."""
    return START + 60 * page + seconds


def iso(seconds: float) -> str:
    """A time as text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def visit(page: int) -> str:
    """Whose page it is."""
    return f"v{page // PAGES_OF_A_VISIT}"


def as_lines(events: list[Event], path: Path) -> list[Path]:
    """JSON, one object a line."""
    path.write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    return [path]


def ga4_events(pages: list[Page], top: int) -> list[Event]:
    """Events of GA4 as BigQuery holds them; the query is that of another event at the same address."""

    def event(page: int, seconds: float, name: str, term: str | None, items: list[Event]) -> Event:
        texts = {"page_location": f"https://shop.example/list?n={page}"} | ({"search_term": term} if term else {})
        params: list[Event] = [
            {"key": "ga_session_id", "value": {"string_value": None, "int_value": START + page // PAGES_OF_A_VISIT}},
            *({"key": key, "value": {"string_value": text, "int_value": None}} for key, text in texts.items()),
        ]
        return {
            "event_date": "20260105",
            "event_timestamp": int(at(page, seconds) * 1e6),
            "event_name": name,
            "event_params": params,
            "user_pseudo_id": visit(page),
            "items": items,
        }

    found: list[Event] = []
    for page, query, docs, clicked in pages:
        items = {
            doc: {"item_id": doc, "item_name": f"a {doc}", "item_list_index": str(place)}
            for place, doc in enumerate(docs, top)
        }
        found.append(event(page, 0, "view_search_results", query, []))
        found.append(event(page, 0.5, "view_item_list", None, list(items.values())))
        found += [event(page, 2, "select_item", None, [items[doc]]) for doc in clicked]
        found.append(event(page, 3, "scroll", None, []))
    return found


def ga4_parquet(pages: list[Page], folder: Path) -> list[Path]:
    """GA4 in Parquet, lists of structs."""
    pl.DataFrame(ga4_events(pages, top=0), infer_schema_length=None).write_parquet(folder / "events.parquet")
    return [folder / "events.parquet"]


def ga4_json(pages: list[Page], folder: Path) -> list[Path]:
    """GA4 in JSON, whole numbers as text."""
    events = [event | {"event_timestamp": str(event["event_timestamp"])} for event in ga4_events(pages, top=1)]
    return as_lines(events, folder / "events.json")


def shop_events(pages: list[Page], **common: object) -> list[Event]:
    """The calls of Segment's specification for shops."""
    found: list[Event] = []

    def track(page: int, seconds: float, event: str, properties: Event) -> None:
        when = iso(at(page, seconds))
        call = {"type": "track", "event": event, "anonymousId": visit(page), "messageId": f"m{len(found)}"}
        found.append(call | {"timestamp": when, "originalTimestamp": when, "properties": properties} | common)

    for page, query, docs, clicked in pages:
        products = [{"product_id": doc, "sku": f"s{doc}", "position": place} for place, doc in enumerate(docs, 1)]
        track(page, 0, "Products Searched", {"query": query})
        track(page, 1, "Product List Viewed", {"list_id": "search results", "products": products})
        for product in products:
            if product["product_id"] in clicked:
                track(page, 5, "Product Clicked", product)
                track(page, 6, "Product Viewed", product)
        track(page, 9, "Order Completed", {"order_id": "o", "products": products[:1]})
    return found


def segment(pages: list[Page], folder: Path) -> list[Path]:
    """Segment in an object store."""
    return as_lines(shop_events(pages, context={"library": {"name": "analytics.js"}}), folder / "segment.jsonl")


def segment_warehouse(pages: list[Page], folder: Path) -> list[Path]:
    """Segment's tables, one an event."""
    events = [
        {
            "id": event["messageId"],
            "anonymous_id": event["anonymousId"],
            "event": event["event"].lower().replace(" ", "_"),
            "event_text": event["event"],
            "original_timestamp": event["originalTimestamp"],
        }
        | {key: json.dumps(value) if key == "products" else value for key, value in event["properties"].items()}
        for event in shop_events(pages)
    ]
    names = ("products_searched", "product_list_viewed", "product_clicked")
    for name in names:
        pl.DataFrame([event for event in events if event["event"] == name]).write_parquet(folder / f"{name}.parquet")
    return [folder / f"{name}.parquet" for name in names]


def rudderstack(pages: list[Page], folder: Path) -> list[Path]:
    """RudderStack in an object store."""
    events = shop_events(pages, rudderId="r", channel="web", request_ip="192.0.2.1", context={"sessionId": 7})
    return as_lines(events, folder / "rudder.json")


def snowplow(pages: list[Page], folder: Path) -> list[Path]:
    """Snowplow's enriched events, as its SDKs for analytics write them."""
    vendor = "com_snowplowanalytics_snowplow"
    found: list[Event] = []

    def track(page: int, seconds: float, event: str, **nested: object) -> None:
        when = iso(at(page, seconds))
        known: Event = {"app_id": "shop", "event_id": f"e{len(found)}", "event_name": event, "domain_userid": "u"}
        known |= {"collector_tstamp": when, "derived_tstamp": when, "domain_sessionid": visit(page)}
        known[f"contexts_{vendor}_web_page_1"] = [{"id": f"w{page}"}]
        found.append(known | {key.replace("VENDOR", vendor): value for key, value in nested.items()})

    for page, query, docs, clicked in pages:
        products = {doc: {"id": doc, "price": 1.5, "position": place} for place, doc in enumerate(docs, 1)}
        track(page, 0, "page_view")
        track(page, 1, "site_search", unstruct_event_VENDOR_site_search_1={"terms": query.split(" ")})
        action = {"unstruct_event_VENDOR_ecommerce_snowplow_ecommerce_action_1": {"type": "list_view", "name": "l"}}
        track(page, 2, "ecommerce", contexts_VENDOR_ecommerce_product_1=[*products.values()], **action)
        action = {"unstruct_event_VENDOR_ecommerce_snowplow_ecommerce_action_1": {"type": "list_click", "name": "l"}}
        for doc in clicked:
            track(page, 3, "ecommerce", contexts_VENDOR_ecommerce_product_1=[products[doc]], **action)
    return as_lines(found, folder / "snowplow.jsonl")


def algolia(pages: list[Page], folder: Path) -> list[Path]:
    """Answers to searches, and the clicks on each page in one event with a list of positions from 1."""
    found: list[Event] = []
    for page, query, docs, clicked in pages:
        hits = [{"objectID": doc, "name": doc} for doc in docs]
        found.append({"queryID": f"q{page}", "query": query, "hits": hits, "page": 0, "hitsPerPage": 20})
        event = {"eventName": "e", "index": "products", "userToken": visit(page), "timestamp": int(at(page) * 1000)}
        if clicked:
            places = [docs.index(doc) + 1 for doc in clicked]
            event_of_clicks = {"eventType": "click", "queryID": f"q{page}", "objectIDs": clicked, "positions": places}
            found.append(event | event_of_clicks)
        found.append(event | {"eventType": "view", "objectIDs": docs[:2]})
    return as_lines(found, folder / "insights.jsonl")


def mixpanel_events(pages: list[Page], top: int) -> list[Event]:
    """Events whose lists are what was shown, and clicks that only say the place, from `top` on."""
    found: list[Event] = []
    for page, query, docs, clicked in pages:
        common = {"distinct_id": visit(page), "$insert_id": f"i{page}", "time": int(at(page))}
        found.append({"event": "Search Results Viewed", "properties": common | {"query": query, "results": docs}})
        for doc in clicked:
            place = {"position": docs.index(doc) + top, "time": int(at(page, 7))}
            found.append({"event": "Search Result Clicked", "properties": common | place})
        found.append({"event": "Added to Cart", "properties": common | {"items": docs[:1]}})
    return found


def mixpanel(pages: list[Page], folder: Path) -> list[Path]:
    """Mixpanel's raw export."""
    return as_lines(mixpanel_events(pages, top=0), folder / "export.jsonl")


def mixpanel_lists(pages: list[Page], folder: Path) -> list[Path]:
    """One event a page, with the list that was shown, and the list of the places that were clicked, from 0."""
    events: list[Event] = []
    for page, query, docs, clicked in pages:
        shown = {"term": query, "result_ids": docs, "clicked_positions": [docs.index(doc) for doc in clicked]}
        of_visit = {"time": int(at(page) * 1000), "distinct_id": visit(page)}
        events.append({"event": "search", "properties": of_visit | shown})
    return as_lines(events, folder / "export.jsonl")


def amplitude(pages: list[Page], folder: Path) -> list[Path]:
    """Amplitude's export; a search has an id."""
    found: list[Event] = []

    def track(page: int, seconds: float, event: str, **properties: object) -> None:
        when = datetime.fromtimestamp(at(page, seconds), UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        known: Event = {"event_type": event, "event_time": when, "amplitude_id": 42, "session_id": START * 1000}
        found.append(known | {"event_properties": {"search_id": f"s{page}"} | properties, "uuid": f"u{len(found)}"})

    for page, query, docs, clicked in pages:
        items = [{"item_id": doc, "rank": place} for place, doc in enumerate(docs, 1)]
        track(page, 0, "search_results_shown", search_term=query, items=items)
        for doc in clicked:
            track(page, 4000, "result_clicked", item_id=doc, rank=docs.index(doc) + 1)
    return as_lines(found, folder / "amplitude.json")


def adobe(pages: list[Page], folder: Path) -> list[Path]:
    """Adobe's data feed: results pages of two slots; a click is a product view with its page and slot."""
    found: list[Event] = []

    def hit(page: int, seconds: int, events: str, products: list[str], **variables: object) -> None:
        seen = {"post_visid_high": "31", "post_visid_low": str(page // PAGES_OF_A_VISIT), "visit_num": "1"}
        seen |= {"hit_time_gmt": str(int(at(page, seconds))), "exclude_hit": "0", "post_event_list": events}
        seen["post_product_list"] = ",".join(f";{product};;;;" for product in products)
        found.append(seen | {f"post_{name}": str(value) for name, value in variables.items()})

    for page, query, docs, clicked in pages:
        for number in (1, 2):
            shown = docs[2 * number - 2 : 2 * number]
            entries = [f"{doc};;;;eVar3={slot}" for slot, doc in enumerate(shown, 1)]
            hit(page, 0, "200", entries, evar1=query, evar2=number, evar3="")
        for doc in clicked:
            number, slot = divmod(docs.index(doc), 2)
            hit(page, 9, "2,201", [doc], evar1=query, evar2=number + 1, evar3=slot + 1)
        hit(page, 12, "2", ["other"], evar1="", evar2="", evar3="")
    pl.DataFrame(found).write_csv(folder / "hits.tsv", separator="\t")
    return [folder / "hits.tsv"]


def searches(pages: list[Page], folder: Path) -> list[Path]:
    """A line a search, with the places of what was clicked, from 0."""
    found: list[Event] = [
        {"request_id": f"r{page}", "query": query, "results": [{"id": doc} for doc in docs]}
        | {"clicked_positions": [docs.index(doc) for doc in clicked]}
        for page, query, docs, clicked in pages
    ]
    return as_lines(found, folder / "searches.jsonl")


def searches_with_docs(pages: list[Page], folder: Path) -> list[Path]:
    """The same under names of roles, from 1."""
    found: list[Event] = [
        {
            "session": f"s{page}",
            "query": query,
            "doc": docs,
            "clicked_positions": [docs.index(doc) + 1 for doc in clicked],
        }
        for page, query, docs, clicked in pages
    ]
    return as_lines(found, folder / "searches.jsonl")


WRITERS: dict[str, tuple[str, Write]] = {
    "algolia": ("algolia", algolia),
    "snowplow": ("snowplow", snowplow),
    "ga4 in json": ("ga4", ga4_json),
    "ga4 in parquet": ("ga4", ga4_parquet),
    "segment": ("segment", segment),
    "segment's tables": ("segment", segment_warehouse),
    "rudderstack": ("rudderstack", rudderstack),
    "mixpanel": ("mixpanel", mixpanel),
    "mixpanel's lists": ("mixpanel", mixpanel_lists),
    "amplitude": ("amplitude", amplitude),
    "adobe": ("adobe", adobe),
    "searches": ("searches", searches),
    "searches with docs": ("searches", searches_with_docs),
}


@pytest.fixture
def pages(log: pl.DataFrame) -> list[Page]:
    """Return the pages of the log."""
    return pages_of(log)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_source_is_recognised_and_read_as_its_flat_twin(
    posbias: Posbias, run_in_process: Run, log: pl.DataFrame, tmp_path: Path, writer: str
) -> None:
    name, write = WRITERS[writer]
    log.with_columns(pl.col("doc").cast(pl.String)).write_parquet(tmp_path / "flat.parquet")
    files = write(pages_of(log), tmp_path)
    check = json.loads(run_in_process("check", *files, "--json").stdout)
    assert check["carries_estimate"]
    command: list[str] = check["command"]
    assert command[: len(files) + 1] == ["run", *map(str, files)]
    assert command[command.index("--input-format") + 1] == name
    found, flat = posbias("collect", *command[1:]), posbias("collect", tmp_path / "flat.parquet")
    assert_frame_equal(found.statistics, flat.statistics)
    clicks = found.manifest["rows"]["clicks"]
    assert clicks["read"] == clicks["joined"] == log["click"].sum()


@pytest.mark.slow
def test_lost_and_repeated_clicks_and_other_events_are_counted(
    posbias: Posbias, pages: list[Page], tmp_path: Path
) -> None:
    events = mixpanel_events(pages, top=1)
    last = next(event for event in reversed(events) if event["event"] == "Search Result Clicked")
    before = {"time": int(at(0)), "distinct_id": visit(0), "product_id": "d"}
    unknown = {"time": int(at(1)), "distinct_id": "nobody", "product_id": "d"}
    lost = [{"event": "Product Tapped", "properties": properties} for properties in (before, unknown)]
    file = as_lines(
        [*events, last, *lost, {"event": "Results Tapped", "properties": before | {"product_id": ""}}],
        tmp_path / "e.jsonl",
    )
    found = posbias("collect", *file, "--input-format", "mixpanel").manifest["rows"]
    n_clicks = sum(len(clicked) for _, _, _, clicked in pages)
    assert found["clicks"] | {"joined": n_clicks, "read": n_clicks + 4} == found["clicks"]
    assert found["raw"]["events"]["used"] == {"impressions": 4 * len(pages), "clicks": n_clicks}
    not_used = found["raw"]["events"]["not_used"]
    assert not_used == {
        "rows of other events": len(pages),
        "clicks on a document that the visit had not shown before": 2,
        "clicks that were seen before": 1,
        "clicks without a document": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize("top", [0, 1])
def test_places_that_count_from_nowhere_known_are_refused_unless_it_is_said(
    posbias: Posbias, refused: Refused, pages: list[Page], tmp_path: Path, top: int
) -> None:
    middle = [(page, query, docs, docs[1:2]) for page, query, docs, _ in pages]  # neither the first nor the last
    file = as_lines(mixpanel_events(middle, top), tmp_path / "e.jsonl")
    said = refused("collect", *file, "--input-format", "mixpanel")
    assert f"they are {top + 1} to {top + 1}). Use --position-base 0 or --position-base 1." in said
    found = posbias("collect", *file, "--input-format", "mixpanel", "--position-base", top)
    by_position = found.statistics.group_by("position").agg(pl.sum("clicks")).sort("position")
    assert by_position["clicks"].to_list() == [0, len(pages), 0, 0]


def test_ids_come_out_of_a_source_to_the_letter(posbias: Posbias, pages: list[Page], tmp_path: Path) -> None:
    ids = {doc: str(uuid5(NAMESPACE_OID, doc)).upper() for _, _, docs, _ in pages for doc in docs}
    renamed = [
        (page, query, [ids[doc] for doc in docs], [ids[doc] for doc in clicked]) for page, query, docs, clicked in pages
    ]
    found = posbias("collect", *mixpanel_lists(renamed, tmp_path), "--input-format", "mixpanel").statistics
    assert {*found["doc"]} == {*ids.values()}


OF_TIMES = '"(event_time|timestamp|originalTimestamp|time|derived_tstamp|collector_tstamp)": ("[^"]*"|[0-9]+)'


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("written", ["2026-01-06T00:30:00+02:00", "2026-01-05T22:30:00.000Z", "2026-01-05 22:30:00"])
@pytest.mark.parametrize("write", [segment, algolia, mixpanel, amplitude, rudderstack, snowplow])
def test_times_of_a_source_are_those_of_utc(pages: list[Page], tmp_path: Path, write: Write, written: str) -> None:
    (file,) = write(pages[:9], tmp_path)
    lines = re.sub(OF_TIMES, rf'"\1": "{written}"', file.read_text(encoding="utf-8"))
    file.write_text(lines, encoding="utf-8")
    made = result_of(Query(event_source(write.__name__).text, 1 << 30, position_base=1), find_log_files([str(file)]))
    times = pl.read_parquet(str(made.origin))["timestamp"].drop_nulls()
    assert {*times} == {datetime(2026, 1, 5, 22, 30)}  # noqa: DTZ001 - of UTC, without a zone


def test_every_source_is_tested() -> None:
    assert {name for name, _ in WRITERS.values()} == set(NAMES)


# --- the table of the README ------------------------------------------------------------------------------------

Row = dict[str, Any]


def rows(pages: list[Page]) -> pl.DataFrame:
    """A row per impression."""
    found: list[Row] = [
        {"session": page, "query": query, "doc": doc, "position": place, "click": int(doc in clicked)}
        for page, query, docs, clicked in pages
        for place, doc in enumerate(docs, 1)
    ]
    return pl.DataFrame(found)


def renamed(*names: str) -> Write:
    """Rows whose columns have other names."""

    def write(pages: list[Page], folder: Path) -> list[Path]:
        frame = rows(pages)
        frame.rename(dict(zip(frame.columns, names, strict=True))).write_parquet(folder / "log.parquet")
        return [folder / "log.parquet"]

    return write


def in_two_tables(pages: list[Page], folder: Path) -> list[Path]:
    """Impressions and clicks apart."""
    frame = rows(pages)
    frame.drop("click").write_csv(folder / "log.csv")
    frame.filter(click=1).select("session", "doc").write_csv(folder / "clicks.csv")
    return [folder / "log.csv", folder / "clicks.csv"]


def as_events(pages: list[Page], folder: Path) -> list[Path]:
    """A table of events."""
    shown = rows(pages).with_columns(event=pl.lit("impression"))
    clicked = shown.filter(click=1).with_columns(event=pl.lit("click"))
    pl.concat([shown, clicked]).drop("click").write_csv(folder / "events.csv")
    return [folder / "events.csv"]


def as_sums(pages: list[Page], folder: Path) -> list[Path]:
    """Sums by query, document and position."""
    sums = rows(pages).group_by("query", "doc", "position").agg(impressions=pl.len(), clicks=pl.sum("click"))
    sums.write_parquet(folder / "sums.parquet")
    return [folder / "sums.parquet"]


def of_pages(**columns: Callable[[list[str], list[str]], object]) -> Write:
    """A row per page, with columns made of what was shown and what was clicked."""

    def write(pages: list[Page], folder: Path) -> list[Path]:
        return as_lines(
            [
                {"session": page, "query": query} | {name: make(docs, clicked) for name, make in columns.items()}
                for page, query, docs, clicked in pages
            ],
            folder / "pages.ndjson",
        )

    return write


def flags(docs: list[str], clicked: list[str]) -> list[int]:
    """Whether each document was clicked."""
    return [int(doc in clicked) for doc in docs]


def in_german(pages: list[Page], folder: Path) -> list[Path]:
    """Text between semicolons, in an old encoding."""
    frame = rows(pages).with_columns(
        click=pl.col("click").replace_strict({0: "nein", 1: "ja"}), query=pl.format("Größe {}", "query")
    )
    (folder / "log.csv").write_bytes(frame.write_csv(separator=";").encode("cp1252"))
    return [folder / "log.csv"]


def in_slots(pages: list[Page], folder: Path) -> list[Path]:
    """Ten slots a page; every other log's page is the second one of a search."""
    two = [
        (page, query, [*docs, *(f"x{n}" for n in range(len(docs), 12))], clicked)
        for page, query, docs, clicked in pages
    ]
    place = pl.col("position") - 1
    frame = rows(two).with_columns(page=place // 10 + 1, slot=place % 10 + 1).drop("position")
    frame.write_parquet(folder / "log.parquet")
    return [folder / "log.parquet"]


def of_others(name: str) -> Write:
    """A log of the room `logs_of_others`, whose pages are the same in all forms."""

    def write(_: list[Page], folder: Path) -> list[Path]:
        files = FORMS[name](draw_pages())
        for file, content in files.items():
            (folder / file).write_bytes(content)
        return [folder / file for file in files]

    return write


IN_TABLE: dict[str, Write] = {
    "LOG": renamed("session", "query", "doc", "position", "click"),
    "LOG --session serp --query q --doc sku --position slot --click clicked": renamed(
        "serp", "q", "sku", "slot", "clicked"
    ),
    "LOG --clicks CLICKS": in_two_tables,
    "LOG --impression-where event=impression --click-where event=click": as_events,
    "LOG --impressions impressions --click clicks": as_sums,
    "LOG of lists": of_pages(doc=lambda docs, _: docs, click=flags),
    "LOG --doc results.doc --click results.click": of_pages(
        results=lambda docs, clicked: [{"doc": doc, "click": int(doc in clicked)} for doc in docs]
    ),
    "LOG --doc shown --clicked clicked": of_pages(shown=lambda docs, _: docs, clicked=lambda _, clicked: clicked),
    "LOG --list-separator ';'": of_pages(
        doc=lambda docs, _: ";".join(docs), click=lambda docs, clicked: ";".join(map(str, flags(docs, clicked)))
    ),
    "LOG --list-separator space --click-suffix - --order-is-position --no-query": of_pages(
        doc=lambda docs, clicked: " ".join(f"{doc}-{int(doc in clicked)}" for doc in docs)
    ),
    "LOG --no-query": renamed("session", "other", "doc", "position", "click"),
    "LOG --separator ';' --encoding cp1252 --true ja --false nein": in_german,
    "LOG --page page --page-size 10 --position slot": in_slots,
    "LOG --sql 'SELECT s AS session, q AS query, d AS doc, p AS position, c AS click FROM log'": renamed(*"sqdpc"),
    **{f"LOG --input-format {name}": write for name, write in reversed(WRITERS.values())},
    "LOG --input-format ubi": of_others("ubi_1_0"),
    "LOG --input-format elasticsearch": of_others("behavioral_analytics"),
    "LOG --input-format metarank": of_others("metarank"),
    "LOG --input-format yandex": of_others("yandex"),
}


def lines_of_the_table(readme: str) -> list[str]:
    """The commands of the table, without `posbias run` and `-o out`; a row that names several sources is several."""
    table = readme.partition("## Your log is in\n")[2].partition("\n## ")[0]
    found: list[str] = []
    for first, others in re.findall(r"\| `posbias run (LOG[^`]*?) -o out`(?: \((.*)\))? \|", table):
        found.append(f"{first} of lists" if first in found else first)
        start = first.rpartition(" ")[0]
        found += [f"{start} {name}" for name in re.findall(r"`(\w+)`", others)]
    return found


def test_every_line_of_the_table_is_tested(repository: Path) -> None:
    document = (repository / "io" / "log" / "README.md").read_text(encoding="utf-8")

    assert sorted(lines_of_the_table(document)) == sorted(IN_TABLE)


@pytest.mark.slow
@pytest.mark.parametrize("line", IN_TABLE)
def test_a_line_of_the_table_reads_a_log_of_its_form(
    posbias: Posbias, pages: list[Page], tmp_path: Path, line: str
) -> None:
    log, *clicks = IN_TABLE[line](pages, tmp_path)
    words = shlex.split(line.removesuffix(" of lists"))
    instead = {"LOG": [log], "CLICKS": clicks}
    found = posbias("collect", *(name for word in words for name in instead.get(word, [word]))).statistics
    if IN_TABLE[line] in {
        IN_TABLE[f"LOG --input-format {name}"] for name in ("ubi", "elasticsearch", "metarank", "yandex")
    }:
        shown = [
            (docs, clicked) for _, _, docs, clicked in ((p.number, p.query, p.docs, p.clicked) for p in draw_pages())
        ]
    else:
        shown = [(docs, clicked) for _, _, docs, clicked in pages]
    by_position = found.filter(pl.col("position") <= len(shown[0][0])).group_by("position")
    counts = by_position.agg(pl.sum("impressions"), pl.sum("clicks")).sort("position")
    assert counts["impressions"].to_list() == [len(shown)] * len(shown[0][0])
    places = [docs.index(doc) for docs, clicked in shown for doc in clicked]
    assert counts["clicks"].to_list() == [places.count(place) for place in range(len(shown[0][0]))]
