"""One small log in every form in which logs come: how it is written, and the options that read it.

The log is made up: 240 pages of 5 results for 6 queries of 7 documents each, clicked as the position-based model says.
Where the forms of other tools are documented:

- `behavioral analytics`: Elasticsearch guide 8.x, "Behavioral Analytics events reference"
- `ga4`: https://developers.google.com/analytics/devguides/collection/ga4/reference/events (view_item_list, select_item)
- `metarank`: doc/event-schema.md of metarank/metarank
- `mind`: https://github.com/msnews/msnews.github.io/blob/master/assets/doc/introduction.md (behaviors.tsv)
- `ubi 1.0`: the schema of OpenSearch UBI 1.0 (query_response_objects_ids), as index<TAB>{json} lines
- `relevance prediction`: http://imat-relpred.yandex.ru/en/datasets
"""

import csv
import gzip
import io
import json
import random
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

Event = dict[str, Any]
Files = Mapping[str, pl.DataFrame | Iterable[object] | str | bytes]
"""Content by name: a frame, lines (JSON where they are no text), or the content itself."""

START = 1_767_607_200  # seconds: 2026-01-05 10:00 UTC
THETA = (1.0, 0.7, 0.5, 0.35, 0.25)
QUERIES = ("boots", "red shoes", "rain coat", "Söckchen", "wool hat", "gloves")


class Page(NamedTuple):
    """A results page: its number, its query, and what was shown, from the top."""

    number: int
    query: str
    docs: Sequence[str]


class Click(NamedTuple):
    """A click: on which page, on what, and whether it is dated before the page was shown."""

    page: int | None
    doc: str | None
    early: bool = False


@dataclass(frozen=True)
class Log:
    """Pages and clicks, in the order of time; a visit has several pages."""

    pages: Sequence[Page]
    clicks: Sequence[Click]
    pages_of_a_visit: int = 3

    def clicked(self, page: Page) -> list[Any]:
        """Return the documents that were clicked on a page."""
        return [click.doc for click in self.clicks if click.page == page.number]

    @property
    def rows(self) -> Iterator[tuple[Page, int, str, int]]:
        """Return page, position, document and click of each impression."""
        for page in self.pages:
            clicked = self.clicked(page)
            yield from ((page, at, doc, int(doc in clicked)) for at, doc in enumerate(page.docs, 1))

    @property
    def frame(self) -> pl.DataFrame:
        """Return a row per impression under well-known names, with the time of its page."""
        rows = [
            (page.number, page.query, doc, at, click, _moment(_at(page.number))) for page, at, doc, click in self.rows
        ]
        return pl.DataFrame(rows, ["session", "query", "doc", "position", "click", "timestamp"], orient="row")

    def visit(self, page: int | None) -> str | None:
        """Return the visit of a page."""
        return None if page is None else f"v{page // self.pages_of_a_visit}"


@cache
def small_log() -> Log:
    """Draw the pages and clicks, the same every time."""
    drawn = random.Random(20260105)  # noqa: S311
    pages, clicks = list[Page](), list[Click]()
    for number in range(240):
        about = number % len(QUERIES)
        docs = [f"sku-{about}{doc}" for doc in range(7)]
        drawn.shuffle(docs)
        pages.append(Page(number, QUERIES[about], docs[: len(THETA)]))
        clicks += [
            Click(number, doc)
            for at, doc in enumerate(pages[-1].docs)
            if drawn.random() < THETA[at] * (0.25 + 0.1 * int(doc[-1]))
        ]
    return Log(pages, clicks)


def write(folder: Path, files: Files, ending: str = "parquet") -> list[Path]:
    """Write files as their endings say; a frame without an ending takes the given one."""
    paths = list[Path]()
    for name, content in files.items():
        path = folder / name
        if isinstance(content, pl.DataFrame):
            path = path if path.suffix else path.with_suffix(f".{ending}")
            writers = {"csv": content.write_csv, "ndjson": content.write_ndjson, "arrow": content.write_ipc}
            writers.get(path.suffix[1:], content.write_parquet)(path)
        else:
            lines = () if isinstance(content, str | bytes) else content
            text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
            raw = content if isinstance(content, bytes) else (content if isinstance(content, str) else text).encode()
            path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
        paths.append(path)
    return paths


@dataclass(frozen=True)
class Form:
    """A form of logs.

    Args:
        write: makes the files of a log.
        options: the options that read it, without the files.
        found: the options that `check` finds, where they are others; None where it needs to be told.
        no_query: whether the form has no queries.
    """

    write: Callable[[Log], Files]
    options: str = ""
    found: str | None = ""
    no_query: bool = False

    def words(self, files: Sequence[Path]) -> list[str]:
        """Return the words that read the log; a second file stands where CLICKS is."""
        words, rest = shlex.split(self.options), [str(file) for file in files]
        return [*rest[:1], *words[: words.index("CLICKS")], *rest[1:]] if "CLICKS" in words else [*rest, *words]

    def words_found(self) -> list[str]:
        """Return the options that `check` finds."""
        return shlex.split(self.found or self.options)


def _at(page: int | None, seconds: float = 0) -> float:
    """Return when something happened on a page."""
    return START + 420 * (page or 0) + seconds


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _iso(seconds: float) -> str:
    return _moment(seconds).isoformat(timespec="milliseconds") + "Z"


def _clicked_at(click: Click, seconds: float = 9) -> float:
    return _at(click.page, -1 if click.early else seconds)


def _name(page: int | None) -> str | None:
    return None if page is None else f"p{page:04d}"


def _table(header: Sequence[str] | None, rows: Iterable[Sequence[object]], separator: str = ",") -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerows([*([] if header is None else [header]), *rows])
    return text.getvalue()


# --- a row per impression ---------------------------------------------------------------------------------------


def selected(query: str) -> Callable[[Log], Files]:
    """Rows of impressions as a query selects them."""
    whole = " ".join(["SELECT", query, *(["FROM self"] if "FROM self" not in query else [])])
    return lambda log: {"log": log.frame.sql(whole)}


def sums(frame: pl.DataFrame) -> pl.DataFrame:
    """Add up impressions and clicks."""
    return frame.group_by("query", "doc", "position").agg(views=pl.len(), clicks=pl.col("click").sum())


def semicolons(log: Log) -> Files:
    """A spreadsheet's export: semicolons, a decimal comma, cp1252, yes and no, positions from 0, names of one's own."""
    found = [
        (
            f"{_moment(_at(page.number)):%d.%m.%Y %H:%M}",
            _name(page.number),
            page.query,
            doc,
            at - 1,
            ("nein", "ja")[click],
        )
        for page, at, doc, click in log.rows
    ]
    header = ("Zeit", "serp_id", "search_phrase", "product_sku", "slot_index", "was_clicked", "price")
    return {"semicolons.csv": _table(header, ((*row, "9,5") for row in found), ";").encode("cp1252")}


def in_german(log: Log) -> Files:
    frame = log.frame.drop("timestamp").with_columns(pl.col("click").replace_strict({0: "nein", 1: "ja"}))
    return {"log.csv": frame.write_csv(separator=";").encode("cp1252")}


def without_header(log: Log) -> Files:
    """A dump of a database without names."""
    found = [(_name(page.number), page.query, doc, at, click) for page, at, doc, click in log.rows]
    return {"without_header.tsv": _table(None, found, "\t")}


def json_array(log: Log) -> Files:
    names = ("sessionId", "queryText", "documentUri", "documentPosition", "wasClicked")
    found = [
        dict(zip(names, (_name(page.number), page.query, doc, at, click), strict=True))
        for page, at, doc, click in log.rows
    ]
    return {"json_array.json": json.dumps(found) + "\n"}


# --- clicks apart ---------------------------------------------------------------------------------------------------


def two_tables(log: Log) -> Files:
    """Impressions, and a table of clicks."""
    shown = [(_name(page.number), page.query, doc, at) for page, at, doc, _ in log.rows]
    clicks = [(_name(click.page), click.doc) for click in log.clicks]
    texts = dict.fromkeys(("session", "query", "doc"), pl.String())
    return {
        "shown": pl.DataFrame(shown, texts | {"position": pl.Int64()}, orient="row"),
        "clicks": pl.DataFrame(clicks, {"session": pl.String(), "doc": pl.String()}, orient="row"),
    }


def events_of(log: Log, *, again: bool = False) -> Iterator[tuple[object, ...]]:
    """Kind, page, visit, time, query, document and position of each event, clicks last; some were sent twice."""
    for page in log.pages:
        shown = [
            ("impression", _name(page.number), log.visit(page.number), _at(page.number), page.query, doc, at)
            for at, doc in enumerate(page.docs, 1)
        ]
        yield from (*shown, *shown[: page.number % 3 if again else 0])
    for number, click in enumerate(log.clicks):
        of_click = (_name(click.page), log.visit(click.page), _clicked_at(click), None, click.doc, None)
        yield from [("click", *of_click)] * (1 + number % 2 if again else 1)
    if again:
        yield from (("scroll", _name(page.number), None, None, None, None, None) for page in log.pages)


KINDS = ("event_type", "page", "visit", "time", "query", "doc", "position")


def _events(log: Log, *, again: bool = False) -> pl.DataFrame:
    types = dict.fromkeys(KINDS, pl.String()) | {"time": pl.Float64(), "position": pl.Int64()}
    frame = pl.DataFrame(list(events_of(log, again=again)), types, orient="row")
    return frame.with_columns(pl.from_epoch((pl.col("time") * 1000).cast(pl.Int64), "ms").alias("time"))


def events(log: Log) -> Files:
    """One table of impressions and clicks, some of them sent twice."""
    frame = _events(log, again=True).drop("visit", "time")
    return {"events": frame.rename({"page": "page_view_id", "doc": "item_id"})}


def events_by_page(log: Log) -> Files:
    """The same, without repetitions, clicks first, as the README has them."""
    return {"events": _events(log).reverse().drop("visit", "time").rename({"event_type": "event", "page": "session"})}


def visits(log: Log) -> Files:
    """Events of visits with times, and no id of the page; positions from 0."""
    frame = _events(log).drop("page").with_columns(pl.col("position") - 1)
    return {"visits": frame.rename({"visit": "session_id", "time": "timestamp", "doc": "doc_id"})}


def ga4_rows(log: Log) -> Files:
    """Items of view_item_list and select_item, flat, as they are queried from BigQuery; indices from 1."""
    frame = _events(log).drop("visit", "time")
    names = ("event_name", "search_id", "search_term", "item_id", "item_list_index")
    kinds = {"impression": "view_item_list", "click": "select_item"}
    renamed = frame.rename(dict(zip(frame.columns, names, strict=True)))
    return {"ga4.csv": renamed.with_columns(pl.col("event_name").replace_strict(kinds))}


# --- a row per page -------------------------------------------------------------------------------------------------


def pages(name: str, **columns: Callable[[Page, list[str]], object]) -> Callable[[Log], Files]:
    """A row per page, with columns made of the page and of what was clicked: lines of JSON, or a table of text."""

    def files(log: Log) -> Files:
        found = [{column: make(page, log.clicked(page)) for column, make in columns.items()} for page in log.pages]
        if not name.endswith("sv"):
            return {name: found}
        return {name: _table(list(columns), [[*row.values()] for row in found])}

    return files


def _session(page: Page, _: list[str]) -> object:
    return page.number


def _query(page: Page, _: list[str]) -> object:
    return page.query


def _docs(page: Page, _: list[str]) -> list[str]:
    return list(page.docs)


def _chosen(_: Page, clicked: list[str]) -> list[str]:
    return clicked


def _flags(page: Page, clicked: list[str]) -> list[int]:
    return [int(doc in clicked) for doc in page.docs]


def _places(base: int) -> Callable[[Page, list[str]], list[int]]:
    return lambda page, clicked: [page.docs.index(doc) + base for doc in clicked]


def _text(make: Callable[[Page, list[str]], Sequence[object]], mark: str) -> Callable[[Page, list[str]], str]:
    return lambda page, clicked: mark.join(map(str, make(page, clicked)))


def _json(make: Callable[[Page, list[str]], object]) -> Callable[[Page, list[str]], str]:
    return lambda page, clicked: json.dumps(make(page, clicked))


def _suffixed(page: Page, clicked: list[str]) -> str:
    return " ".join(f"{doc}-{int(doc in clicked)}" for doc in page.docs)


OF_PAGE = {"session": _session, "query": _query}


def nested(change: Callable[[pl.DataFrame], pl.DataFrame], name: str) -> Callable[[Log], Files]:
    """Lists of documents, clicks and positions."""

    def files(log: Log) -> Files:
        of_pages = log.frame.group_by("session", "query", maintain_order=True).agg("doc", "click", "position")
        return {name: change(of_pages)}

    return files


def mind(log: Log, histories: tuple[str, ...] = ("", "N1", "N1 N2")) -> Files:
    """MIND's behaviors.tsv: impression id, user, time, history, and the shown news with their clicks. No header."""
    found = [
        (page.number + 1, "U1", f"{_moment(_at(page.number)):%m/%d/%Y %I:%M:%S %p}", history, _suffixed(page, clicked))
        for page, clicked, history in zip(log.pages, map(log.clicked, log.pages), cycle(histories), strict=False)
    ]
    return {"mind.tsv": _table(None, found, "\t")}


# --- files of other tools ---------------------------------------------------------------------------------------------


def metarank(log: Log) -> Files:
    """Metarank's ranking and interaction events; clicks come before the rankings."""
    found = list[Event]()

    def about(page: int | None) -> Event:
        return {"timestamp": str(int(_at(page) * 1000)), "user": f"u{(page or 0) % 50}", "session": log.visit(page)}

    for number, (page, doc, _) in enumerate(log.clicks):
        interaction = {"event": "interaction", "id": f"i{number}", "ranking": _name(page), "type": "click", "item": doc}
        found.append(interaction | about(page) | {"fields": []})
    for page in log.pages:
        fields = [{"name": "source", "value": "search"}, {"name": "query", "value": page.query}]
        items = [{"id": doc, "relevancy": 1.0} for doc in page.docs]
        ranking = {"event": "ranking", "id": _name(page.number), "fields": fields, "items": items}
        found.append(ranking | about(page.number))
    return {"metarank.jsonl": found}


def metarank_feed(log: Log) -> Files:
    """The same of a recommender, whose rankings have no query, after metadata of an item."""
    found: list[Any] = [*metarank(log)["metarank.jsonl"]][::-1]
    found.insert(0, {"event": "item", "id": "m1", "timestamp": "1", "item": "a"})
    return {"feed.jsonl": [event | {"fields": []} for event in found]}


def dotted(event: Event) -> Event:
    names = {"event.action": event["event"]["action"], "session.id": event["session"]["id"]}
    return names | {name: value for name, value in event.items() if name not in {"event", "session"}}


WRAPPED: dict[str, Callable[[Event], object]] = {
    "hits": lambda event: {"_index": "x", "_id": "1", "_score": 1.0, "_source": event},
    "index and tab": lambda event: "events\t" + json.dumps(event),
    "dotted names": dotted,
    "numbers as times": lambda event: (
        event | {"@timestamp": int(datetime.fromisoformat(event["@timestamp"]).timestamp() * 1000)}
    ),
}
"""Ways in which documents of Elasticsearch are exported."""


def behavioral_analytics(log: Log, *, wrap: Callable[[Event], object] = lambda event: event) -> Files:
    """Events of Elasticsearch's behavioral analytics."""
    queries = {page.number: page.query for page in log.pages}
    found: list[Event] = []
    for page, action, at, more in (
        *((page.number, "search", _at(page.number), page.docs) for page in log.pages),
        *((click.page, "search_click", _clicked_at(click), click.doc) for click in log.clicks),
    ):
        search: Event = {"query": None if page is None else queries.get(page, "none")}
        event = {"@timestamp": _iso(at), "event": {"action": action}, "user": {"id": "u"}}
        event |= {"session": {"id": log.visit(page)}, "search": search}
        if action == "search":
            search["results"] = {"items": [{"document": {"id": doc, "index": "products"}} for doc in more or ()]}
        else:
            event["document"] = {"id": more}
        found.append(event)
    return {"events.ndjson": map(wrap, found)}


def relevance_prediction(log: Log) -> Files:
    """Actions of Yandex's Relevance Prediction Challenge: session, time, Q or C, query, region, documents."""
    found = [
        *(
            "\t".join(
                [str(log.visit(page.number)), str(int(_at(page.number)) - START + 1), "Q", page.query, "0", *page.docs]
            )
            for page in log.pages
        ),
        *(f"{log.visit(click.page)}\t{int(_clicked_at(click)) - START + 1}\tC\t{click.doc}" for click in log.clicks),
    ]
    return {"yandex.tsv": found}


def personalized_search(log: Log) -> Files:
    """Actions of Yandex's Personalized Web Search Challenge, whose clicks name their page."""
    found = list[str]()
    for page in log.pages:
        visit, number = divmod(page.number, log.pages_of_a_visit)
        found += [f"{visit}\tM\t1\t7"] if number == 0 else []
        docs = (f"{doc},9" for doc in page.docs)
        found.append("\t".join([str(visit), str(number), "Q", str(number), page.query, "1,2", *docs]))
        found += [f"{visit}\t{number + 5}\tC\t{number}\t{doc}" for doc in log.clicked(page)]
    return {"yandex.tsv": found}


def ubi_query(page: str | None, text: str | None = "q", hits: object = None, **further: object) -> Event:
    """A document of `ubi_queries`."""
    found = {} if hits is None else {"query_response_hit_ids": hits}
    return {"application": "shop", "query_id": page, "user_query": text, **found, **further}


def ubi_event(page: str | None, action: str, doc: str | None = None, ordinal: object = None) -> Event:
    """A document of `ubi_events`."""
    position = {} if ordinal is None else {"position": {"ordinal": ordinal}}
    attributes = None if doc is None else {"object": {"object_id": doc, "object_id_field": "sku"}, **position}
    return {"action_name": action, "query_id": page, "session_id": "visit", "event_attributes": attributes}


def _ubi_documents(log: Log) -> list[Event]:
    clicks = [ubi_event(_name(click.page), "click", click.doc) for click in log.clicks]
    return clicks + [ubi_query(_name(page.number), page.query, page.docs) for page in log.pages]


def ubi(log: Log) -> Files:
    """OpenSearch UBI: clicks, and queries with hit lists."""
    return {"ubi.ndjson": _ubi_documents(log)}


def ubi_hits(log: Log) -> Files:
    """The same as answers to searches hold them."""
    return {"ubi.ndjson": map(WRAPPED["hits"], _ubi_documents(log))}


def ubi_bulk(log: Log) -> Files:
    """The same with the action lines of the bulk format."""
    lines = list[object]()
    for document in _ubi_documents(log):
        lines += [{"index": {"_index": "ubi_events" if "action_name" in str(document) else "ubi_queries"}}, document]
    return {"ubi.ndjson.gz": lines}


def ubi_1_0(log: Log) -> Files:
    """The same with the field names of the first version, each line behind the name of its index."""
    texts = (json.dumps(document) for document in _ubi_documents(log))
    return {
        "ubi.ndjson": ["ubi\t" + text.replace("query_response_hit_ids", "query_response_objects_ids") for text in texts]
    }


def ubi_impressions(log: Log) -> Files:
    """Queries without hit lists, and what was shown as events, in files of their own."""
    shown = [ubi_event(_name(page.number), "impression", doc, at - 1) for page, at, doc, _ in log.rows]
    clicks = [ubi_event(_name(click.page), "click", click.doc) for click in log.clicks]
    return {
        "queries.ndjson": [ubi_query(_name(page.number), page.query) for page in log.pages],
        "events.ndjson": [*shown, *clicks],
    }


# --- sources that are a query -----------------------------------------------------------------------------------------


def _ga4_events(log: Log, top: int) -> list[Event]:
    """Events of GA4 as BigQuery holds them; the query is that of another event at the same address."""
    found: list[Event] = []

    def track(page: int, seconds: float, name: str, term: str | None, items: Sequence[Event]) -> None:
        texts = {"page_location": f"https://shop.example/list?n={page}"} | ({"search_term": term} if term else {})
        session = START + page // log.pages_of_a_visit
        params: list[Event] = [
            {"key": "ga_session_id", "value": {"string_value": None, "int_value": session}},
            *({"key": key, "value": {"string_value": text, "int_value": None}} for key, text in texts.items()),
        ]
        event = {"event_date": "20260105", "event_timestamp": int(_at(page, seconds) * 1e6), "event_name": name}
        found.append(event | {"event_params": params, "user_pseudo_id": log.visit(page), "items": items})

    for page in log.pages:
        items = {
            doc: {"item_id": doc, "item_name": f"a {doc}", "item_list_index": str(place)}
            for place, doc in enumerate(page.docs, top)
        }
        track(page.number, 0, "view_search_results", page.query, [])
        track(page.number, 0.5, "view_item_list", None, list(items.values()))
        for doc in log.clicked(page):
            track(page.number, 2, "select_item", None, [items[doc]])
        track(page.number, 3, "scroll", None, [])
    return found


def ga4_parquet(log: Log) -> Files:
    """Lists of structs."""
    return {"events.parquet": pl.DataFrame(_ga4_events(log, top=0), infer_schema_length=None)}


def ga4_json(log: Log) -> Files:
    """Lines, with whole numbers as text."""
    texts = (event | {"event_timestamp": str(event["event_timestamp"])} for event in _ga4_events(log, top=1))
    return {"events.json": texts}


def _shop_events(log: Log, **common: object) -> list[Event]:
    """The calls of Segment's specification for shops."""
    found: list[Event] = []

    def track(page: int, seconds: float, event: str, properties: Event) -> None:
        when = _iso(_at(page, seconds))
        call = {"type": "track", "event": event, "anonymousId": log.visit(page), "messageId": f"m{len(found)}"}
        found.append(call | {"timestamp": when, "originalTimestamp": when, "properties": properties} | common)

    for page in log.pages:
        products = [{"product_id": doc, "sku": f"s{doc}", "position": place} for place, doc in enumerate(page.docs, 1)]
        track(page.number, 0, "Products Searched", {"query": page.query})
        track(page.number, 1, "Product List Viewed", {"list_id": "search results", "products": products})
        for product in products:
            if product["product_id"] in log.clicked(page):
                track(page.number, 5, "Product Clicked", product)
                track(page.number, 6, "Product Viewed", product)
        track(page.number, 9, "Order Completed", {"order_id": "o", "products": products[:1]})
    return found


def segment(log: Log) -> Files:
    """Segment in an object store."""
    return {"segment.jsonl": _shop_events(log, context={"library": {"name": "analytics.js"}})}


def segment_warehouse(log: Log) -> Files:
    """Segment's tables, one an event."""
    found: dict[str, list[Event]] = {}
    for event in _shop_events(log):
        name = event["event"].lower().replace(" ", "_")
        row = {"id": event["messageId"], "anonymous_id": event["anonymousId"], "event": name}
        row |= {"event_text": event["event"], "original_timestamp": event["originalTimestamp"]}
        properties = event["properties"].items()
        row |= {key: json.dumps(value) if key == "products" else value for key, value in properties}
        found.setdefault(name, []).append(row)
    names = ("products_searched", "product_list_viewed", "product_clicked")
    return {f"{name}.parquet": pl.DataFrame(found[name]) for name in names}


def rudderstack(log: Log) -> Files:
    """RudderStack in an object store."""
    common: Event = {"rudderId": "r", "channel": "web", "request_ip": "192.0.2.1", "context": {"sessionId": 7}}
    return {"rudder.json": _shop_events(log, **common)}


def snowplow(log: Log) -> Files:
    """Snowplow's enriched events, as its SDKs for analytics write them."""
    vendor, found = "com_snowplowanalytics_snowplow", list[Event]()
    action = "unstruct_event_VENDOR_ecommerce_snowplow_ecommerce_action_1"

    def track(page: int, seconds: float, event: str, nested: Event) -> None:
        when = _iso(_at(page, seconds))
        known: Event = {"app_id": "shop", "event_id": f"e{len(found)}", "event_name": event, "domain_userid": "u"}
        known |= {"collector_tstamp": when, "derived_tstamp": when, "domain_sessionid": log.visit(page)}
        known[f"contexts_{vendor}_web_page_1"] = [{"id": f"w{page}"}]
        found.append(known | {key.replace("VENDOR", vendor): value for key, value in nested.items()})

    for page in log.pages:
        products = {doc: {"id": doc, "price": 1.5, "position": place} for place, doc in enumerate(page.docs, 1)}
        track(page.number, 0, "page_view", {})
        track(page.number, 1, "site_search", {"unstruct_event_VENDOR_site_search_1": {"terms": page.query.split(" ")}})
        for kind, docs in (("list_view", page.docs), *(("list_click", [doc]) for doc in log.clicked(page))):
            of_products = {"contexts_VENDOR_ecommerce_product_1": [products[doc] for doc in docs]}
            track(page.number, 2, "ecommerce", of_products | {action: {"type": kind, "name": "l"}})
    return {"snowplow.jsonl": found}


def algolia(log: Log) -> Files:
    """Answers to searches, and the clicks on each page in one event with a list of positions from 1."""
    found: list[Event] = []
    for page in log.pages:
        hits, clicked = [{"objectID": doc, "name": doc} for doc in page.docs], log.clicked(page)
        found.append({"queryID": f"q{page.number}", "query": page.query, "hits": hits, "page": 0, "hitsPerPage": 20})
        event: Event = {"eventName": "e", "index": "products", "userToken": log.visit(page.number)}
        event["timestamp"] = int(_at(page.number) * 1000)
        if clicked:
            of_clicks = {"objectIDs": clicked, "positions": _places(1)(page, clicked)}
            found.append(event | {"eventType": "click", "queryID": f"q{page.number}"} | of_clicks)
        found.append(event | {"eventType": "view", "objectIDs": page.docs[:2]})
    return {"insights.jsonl": found}


def linked(log: Log) -> Files:
    """A shop's own events: a page with its results, and clicks that name its id."""
    found: list[Event] = []
    for page in log.pages:
        answer: Event = {"request": f"r{page.number}", "at": _iso(_at(page.number))}
        hits = [{"_id": doc, "brand": "b"} for doc in page.docs]
        found.append({"event": "answered"} | answer | {"keywords": page.query, "hits": hits})
        for place, doc in enumerate(page.docs, 1):
            if doc in log.clicked(page):
                found.append({"event": "opened"} | answer | {"hit": {"_id": doc, "rank": place}})
    return {"shop.jsonl": found}


def mixpanel_events(log: Log, top: int) -> list[Event]:
    """Events whose lists are what was shown, and clicks that only say the place, from `top` on."""
    found: list[Event] = []
    for page in log.pages:
        common: Event = {"distinct_id": log.visit(page.number), "$insert_id": f"i{page.number}"}
        common["time"] = int(_at(page.number))
        shown = {"query": page.query, "results": page.docs}
        found.append({"event": "Search Results Viewed", "properties": common | shown})
        for place in _places(top)(page, log.clicked(page)):
            clicked = {"position": place, "time": int(_at(page.number, 7))}
            found.append({"event": "Search Result Clicked", "properties": common | clicked})
        found.append({"event": "Added to Cart", "properties": common | {"items": page.docs[:1]}})
    return found


def mixpanel(log: Log) -> Files:
    """Mixpanel's raw export."""
    return {"export.jsonl": mixpanel_events(log, top=0)}


def mixpanel_lists(log: Log) -> Files:
    """One event a page, with the list that was shown, and the list of the places that were clicked, from 0."""
    found: list[Event] = []
    for page in log.pages:
        shown = {"term": page.query, "result_ids": page.docs, "clicked_positions": _places(0)(page, log.clicked(page))}
        about = {"time": int(_at(page.number) * 1000), "distinct_id": log.visit(page.number)}
        found.append({"event": "search", "properties": about | shown})
    return {"export.jsonl": found}


def amplitude(log: Log) -> Files:
    """Amplitude's export; a search has an id."""
    found: list[Event] = []

    def track(page: int, seconds: float, event: str, **properties: object) -> None:
        when = _moment(_at(page, seconds)).strftime("%Y-%m-%d %H:%M:%S.%f")
        known: Event = {"event_type": event, "event_time": when, "amplitude_id": 42, "session_id": START * 1000}
        found.append(known | {"event_properties": {"search_id": f"s{page}"} | properties, "uuid": f"u{len(found)}"})

    for page in log.pages:
        items = [{"item_id": doc, "rank": place} for place, doc in enumerate(page.docs, 1)]
        track(page.number, 0, "search_results_shown", search_term=page.query, items=items)
        for doc in log.clicked(page):
            track(page.number, 4000, "result_clicked", item_id=doc, rank=page.docs.index(doc) + 1)
    return {"amplitude.json": found}


def posthog(log: Log) -> Files:
    """PostHog's export, with the properties as text; there is no id of a search, and a person has several pages."""
    found: list[Event] = []

    def capture(page: int, seconds: float, event: str, **properties: object) -> None:
        known: Event = {"uuid": f"u{len(found)}", "event": event, "distinct_id": log.visit(page)}
        text = json.dumps({"$lib": "web"} | properties)
        found.append(known | {"timestamp": _iso(_at(page, seconds)), "properties": text})

    for page in log.pages:
        capture(page.number, 0, "results_viewed", query=page.query, results=page.docs)
        for doc in log.clicked(page):
            capture(page.number, 7, "result_clicked", item_id=doc)
    return {"posthog.jsonl": found}


def adobe(log: Log) -> Files:
    """Adobe's data feed: results pages of two slots; a click is a product view with its page and slot."""
    found: list[Event] = []

    def hit(page: int, seconds: int, events: str, products: list[str], **variables: object) -> None:
        visit = str(page // log.pages_of_a_visit)
        seen = {"post_visid_high": "31", "post_visid_low": visit, "visit_num": "1", "exclude_hit": "0"}
        seen |= {"hit_time_gmt": str(int(_at(page, seconds))), "post_event_list": events}
        seen["post_product_list"] = ",".join(f";{product};;;;" for product in products)
        found.append(seen | {f"post_{name}": str(value) for name, value in variables.items()})

    for page in log.pages:
        for first in range(0, len(page.docs), 2):
            entries = [f"{doc};;;;eVar3={slot}" for slot, doc in enumerate(page.docs[first : first + 2], 1)]
            hit(page.number, 0, "200", entries, evar1=page.query, evar2=first // 2 + 1, evar3="")
        for doc in log.clicked(page):
            number, slot = divmod(page.docs.index(doc), 2)
            hit(page.number, 9, "2,201", [doc], evar1=page.query, evar2=number + 1, evar3=slot + 1)
        hit(page.number, 12, "2", ["other"], evar1="", evar2="", evar3="")
    return {"hits.tsv": pl.DataFrame(found).write_csv(separator="\t")}


def _in_text(line: str) -> tuple[str, Form]:
    name, query, options, *found = (part.strip() for part in f"{line} ".split(" -> "))
    of_check = None if found == ["none"] else "".join(found)
    return name, Form(selected(query), options, of_check, no_query="--no-query" in options)


FORMS: dict[str, Form] = {
    **dict(map(_in_text, Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines())),
    "semicolons": Form(
        semicolons,
        "--query search_phrase --doc product_sku --position slot_index --click was_clicked --timestamp Zeit "
        "--position-base 0 --true ja --false nein --separator ';' --encoding cp1252 --decimal , "
        "--timestamp-format '%d.%m.%Y %H:%M'",
    ),
    "text of another dialect": Form(in_german, "--separator ';' --encoding cp1252 --true ja --false nein"),
    "without header": Form(
        without_header, "--session c1 --query c2 --doc c3 --position c4 --click c5 --no-header --columns c1,c2,c3,c4,c5"
    ),
    "a JSON array": Form(
        json_array, "--query queryText --doc documentUri --position documentPosition --click wasClicked"
    ),
    # --- clicks apart
    "two tables": Form(two_tables, "--clicks CLICKS", None),
    "events": Form(events, "--impression-where event_type=impression --click-where event_type=click"),
    "events of the README": Form(events_by_page, "--impression-where event=impression --click-where event=click"),
    "visits": Form(
        visits,
        "--position-base 0 --impression-where event_type=impression --click-where event_type=click "
        "--page-time timestamp",
    ),
    "ga4, flat": Form(
        ga4_rows,
        "--query search_term --position item_list_index --impression-where event_name=view_item_list "
        "--click-where event_name=select_item",
    ),
    # --- a row per page
    "lists": Form(nested(lambda log: log.drop("position"), "nested.parquet")),
    "lists in NDJSON": Form(nested(lambda log: log.drop("position"), "nested.ndjson")),
    "lists in Arrow": Form(nested(lambda log: log.drop("position"), "nested.arrow")),
    "lists from the last position": Form(
        nested(
            lambda log: log.with_columns(pl.col("position").list.eval(pl.element() - 1)).with_columns(
                pl.col("doc", "click", "position").list.reverse()
            ),
            "nested.parquet",
        ),
        "--position-base 0",
    ),
    "arrays and booleans": Form(
        nested(
            lambda log: log.with_columns(
                pl.col("doc").list.to_array(len(THETA)), pl.col("click").list.eval(pl.element().cast(pl.Boolean))
            ),
            "nested.parquet",
        )
    ),
    "structs": Form(
        pages(
            "pages.ndjson",
            event=lambda page, _: {"id": page.number, "query": {"text": page.query}},
            results=lambda page, clicked: [{"doc": {"sku": doc}, "click": int(doc in clicked)} for doc in page.docs],
        ),
        "--session event.id --query event.query.text --doc results.doc.sku --click results.click",
        "--query event.query.text --doc results.doc.sku --click results.click",
    ),
    "structs of the README": Form(
        pages(
            "pages.ndjson",
            **OF_PAGE,
            results=lambda page, clicked: [{"doc": doc, "click": int(doc in clicked)} for doc in page.docs],
        ),
        "--doc results.doc --click results.click",
    ),
    "clicked ids": Form(
        pages("pages.ndjson", **OF_PAGE, shown=_docs, clicked=_chosen), "--doc shown --clicked clicked"
    ),
    "text": Form(
        pages("pages.csv", **OF_PAGE, items=_text(_docs, ";"), clicks=_text(_flags, "; ")),
        "--doc items --list-separator ';'",
    ),
    "text of the README": Form(
        pages("pages.ndjson", **OF_PAGE, doc=_text(_docs, ";"), click=_text(_flags, ";")), "--list-separator ';'"
    ),
    "clicked ids as text": Form(
        pages("pages.csv", **OF_PAGE, shown=_text(_docs, "|"), chosen=_text(_chosen, "|")),
        "--doc shown --clicked chosen --list-separator '|' --null-click 0",
    ),
    "JSON in cells": Form(
        pages("pages.csv", **OF_PAGE, doc=_json(_docs), click=_json(_flags)), "--list-separator json"
    ),
    "clicks behind ids": Form(
        pages("pages.csv", **OF_PAGE, impressions=_suffixed),
        "--doc impressions --list-separator space --click-suffix=- --order-is-position",
    ),
    "clicks behind ids, without queries": Form(
        pages("pages.ndjson", **OF_PAGE, doc=_suffixed),
        "--list-separator space --click-suffix - --order-is-position --no-query",
        None,
        no_query=True,
    ),
    **{
        name: Form(
            rows,
            "--no-query --doc c5 --list-separator space --click-suffix=- --order-is-position --no-header "
            "--columns c1,c2,c3,c4,c5",
            no_query=True,
        )
        for name, rows in {"mind": mind, "mind, as many words a line": partial(mind, histories=("N1 N2",))}.items()
    },
    # --- files of other tools
    "metarank": Form(metarank, "--input-format metarank"),
    "metarank's feed": Form(metarank_feed, "--input-format metarank --no-query", no_query=True),
    "behavioral analytics": Form(behavioral_analytics, "--input-format elasticsearch"),
    **{
        f"behavioral analytics, {name}": Form(partial(behavioral_analytics, wrap=wrap), "--input-format elasticsearch")
        for name, wrap in WRAPPED.items()
    },
    "relevance prediction": Form(relevance_prediction, "--input-format yandex"),
    "personalized search": Form(personalized_search, "--input-format yandex"),
    "ubi": Form(ubi, "--input-format ubi"),
    "ubi, hits": Form(ubi_hits, "--input-format ubi"),
    "ubi, bulk": Form(ubi_bulk, "--input-format ubi"),
    "ubi 1.0": Form(ubi_1_0, "--input-format ubi"),
    "ubi, impressions as events": Form(
        ubi_impressions, "--input-format ubi --ubi-impressions events --position-base impression=0,click=0", None
    ),
    # --- sources that are a query
    "algolia": Form(algolia, "--input-format algolia"),
    "linked": Form(linked, "--input-format linked"),
    "snowplow": Form(snowplow, "--input-format snowplow"),
    "ga4 in JSON": Form(ga4_json, "--input-format ga4"),
    "ga4 in Parquet": Form(ga4_parquet, "--position-base 0 --input-format ga4"),
    "segment": Form(segment, "--input-format segment"),
    "segment's tables": Form(segment_warehouse, "--input-format segment"),
    "rudderstack": Form(rudderstack, "--input-format rudderstack"),
    "mixpanel": Form(mixpanel, "--input-format mixpanel"),
    "mixpanel's lists": Form(mixpanel_lists, "--input-format mixpanel"),
    "amplitude": Form(amplitude, "--input-format amplitude"),
    "posthog": Form(posthog, "--input-format posthog"),
    "adobe": Form(adobe, "--input-format adobe"),
    "searches": Form(
        pages(
            "searches.jsonl",
            request_id=_session,
            query=_query,
            results=lambda page, _: [{"id": doc} for doc in page.docs],
            clicked_positions=_places(0),
        ),
        "--input-format searches",
    ),
    "searches with docs": Form(
        pages("searches.jsonl", **OF_PAGE, doc=_docs, clicked_positions=_places(1)), "--input-format searches"
    ),
}
