"""Writes one log in the forms in which other tools write theirs, each in its documented schema, as small files.

    python tests/io/logs_of_others/make_logs.py FOLDER

All of it is made up: 240 pages of 5 results were shown for 6 queries of 7 documents each, and clicked as the
position-based model says. A file holds these pages and nothing else that counts. Where the forms are documented:

- `behavioral_analytics`: Elasticsearch guide 8.x, "Behavioral Analytics events reference"
- `ga4`: https://developers.google.com/analytics/devguides/collection/ga4/reference/events (view_item_list, select_item)
- `metarank`: doc/event-schema.md of metarank/metarank
- `mind`: https://github.com/msnews/msnews.github.io/blob/master/assets/doc/introduction.md (behaviors.tsv)
- `ubi_1_0`: the schema of OpenSearch UBI 1.0 (query_response_objects_ids), as index<TAB>{json} lines
- `yandex`: http://imat-relpred.yandex.ru/en/datasets
"""

import csv
import io
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

THETA = (1.0, 0.7, 0.5, 0.35, 0.25)
QUERIES = ("boots", "red shoes", "rain coat", "socks", "wool hat", "gloves")
DOCS_PER_QUERY, N_PAGES = 7, 240
START = datetime(2026, 1, 5, 8, tzinfo=UTC)


@dataclass(frozen=True)
class Page:
    """A results page: what was shown for a query, from the top, and whether it was clicked."""

    number: int
    query: str
    docs: tuple[str, ...]
    clicks: tuple[int, ...]

    @property
    def name(self) -> str:
        """The id of the page."""
        return f"p{self.number:04d}"

    @property
    def time(self) -> datetime:
        """When it was shown."""
        return START + timedelta(minutes=7 * self.number)

    @property
    def clicked(self) -> list[str]:
        """The documents that were clicked."""
        return [doc for doc, click in zip(self.docs, self.clicks, strict=True) if click]

    @property
    def rows(self) -> Iterator[tuple[int, str, int]]:
        """Position, document and click of each result."""
        return zip(range(1, len(self.docs) + 1), self.docs, self.clicks, strict=True)


def draw_pages() -> list[Page]:
    """The pages, the same every time."""
    drawn = random.Random(20260105)  # noqa: S311
    pages: list[Page] = []
    for number in range(N_PAGES):
        about = number % len(QUERIES)
        docs = [f"sku-{about}{doc}" for doc in range(DOCS_PER_QUERY)]
        drawn.shuffle(docs)
        shown = tuple(docs[: len(THETA)])
        clicks = tuple(int(drawn.random() < THETA[at] * (0.25 + 0.1 * int(doc[-1]))) for at, doc in enumerate(shown))
        pages.append(Page(number, QUERIES[about], shown, clicks))
    return pages


Write = Callable[[Sequence[Page]], dict[str, bytes]]
"""The files of a form, by name."""


def _table(header: Sequence[str] | None, rows: Sequence[Sequence[object]], separator: str = ",") -> str:
    text = io.StringIO()
    written = csv.writer(text, delimiter=separator, lineterminator="\n")
    written.writerows([*([] if header is None else [header]), *rows])
    return text.getvalue()


def _lines(documents: Sequence[object]) -> bytes:
    return "".join(json.dumps(document) + "\n" for document in documents).encode()


def flat(pages: Sequence[Page]) -> dict[str, bytes]:
    """A row per impression, under well-known names."""
    rows = [(page.name, page.query, doc, at, click) for page in pages for at, doc, click in page.rows]
    return {"flat.csv": _table(("session", "query", "doc", "position", "click"), rows).encode()}


def semicolons(pages: Sequence[Page]) -> dict[str, bytes]:
    """A spreadsheet's export: semicolons, a decimal comma, cp1252, yes and no, positions from 0, names of one's own."""
    rows = [
        (
            page.time.strftime("%d.%m.%Y %H:%M"),
            page.name,
            page.query,
            f"{doc} Größe",
            at - 1,
            "ja" if click else "nein",
            "9,5",
        )
        for page in pages
        for at, doc, click in page.rows
    ]
    header = ("Zeit", "serp_id", "search_phrase", "product_sku", "slot_index", "was_clicked", "price")
    return {"semicolons.csv": _table(header, rows, ";").encode("cp1252")}


def without_header(pages: Sequence[Page]) -> dict[str, bytes]:
    """A dump of a database without names."""
    rows = [(page.name, page.query, doc, at, click) for page in pages for at, doc, click in page.rows]
    return {"without_header.tsv": _table(None, rows, "\t").encode()}


def structs(pages: Sequence[Page]) -> dict[str, bytes]:
    """A search service's own log: a line per request, its results as objects."""
    return {
        "structs.jsonl": _lines(
            [
                {
                    "request": {"id": page.name, "query": {"text": page.query}},
                    "results": [{"doc": {"id": doc}, "clicked": bool(click)} for _, doc, click in page.rows],
                }
                for page in pages
            ]
        )
    }


def text_lists(pages: Sequence[Page]) -> dict[str, bytes]:
    """Lists in the cells of a table: what was shown, and what was clicked."""
    rows = [(page.name, page.query, "|".join(page.docs), "|".join(page.clicked)) for page in pages]
    return {"text_lists.csv": _table(("request_id", "search_term", "shown_items", "clicked_items"), rows).encode()}


def json_array(pages: Sequence[Page]) -> dict[str, bytes]:
    """One JSON array of rows."""
    rows = [
        {
            "sessionId": page.name,
            "queryText": page.query,
            "documentUri": doc,
            "documentPosition": at,
            "wasClicked": click,
        }
        for page in pages
        for at, doc, click in page.rows
    ]
    return {"json_array.json": (json.dumps(rows) + "\n").encode()}


def sums(pages: Sequence[Page]) -> dict[str, bytes]:
    """A table that adds up impressions and clicks."""
    counts: dict[tuple[str, str, int], list[int]] = {}
    for page in pages:
        for at, doc, click in page.rows:
            count = counts.setdefault((page.query, doc, at), [0, 0])
            count[0] += 1
            count[1] += click
    rows = [(*key, *count) for key, count in sorted(counts.items())]
    return {"sums.csv": _table(("query", "product_id", "rank", "impressions", "clicks"), rows).encode()}


def events(pages: Sequence[Page]) -> dict[str, bytes]:
    """One table of impressions and clicks, some of them sent twice."""
    rows: list[tuple[object, ...]] = []
    for page in pages:
        shown = [("impression", page.name, page.query, doc, at) for at, doc, _ in page.rows]
        clicked = [("click", page.name, page.query, doc, at) for at, doc, click in page.rows if click]
        rows += [
            *shown,
            *shown[: page.number % 3],
            *clicked,
            *clicked[: page.number % 2],
            ("scroll", page.name, "", "", ""),
        ]
    return {"events.csv": _table(("event_type", "page_view_id", "query", "item_id", "position"), rows).encode()}


def visits(pages: Sequence[Page]) -> dict[str, bytes]:
    """Events of visits with times, and no id of the page; positions from 0."""
    rows: list[tuple[object, ...]] = []
    for page in pages:
        visit = f"v{page.number // 3}"
        rows += [("impression", visit, page.time.isoformat(), page.query, doc, at - 1) for at, doc, _ in page.rows]
        rows += [
            ("click", visit, (page.time + timedelta(seconds=9 + at)).isoformat(), page.query, doc, at - 1)
            for at, doc, click in page.rows
            if click
        ]
    return {
        "visits.csv": _table(("event_type", "session_id", "timestamp", "query", "doc_id", "position"), rows).encode()
    }


def ga4(pages: Sequence[Page]) -> dict[str, bytes]:
    """Items of view_item_list and select_item, flat, as they are queried from BigQuery; indices from 1."""
    rows: list[tuple[object, ...]] = []
    for page in pages:
        rows += [("view_item_list", page.name, page.query, doc, at) for at, doc, _ in page.rows]
        rows += [("select_item", page.name, page.query, doc, at) for at, doc, click in page.rows if click]
    return {"ga4.csv": _table(("event_name", "search_id", "search_term", "item_id", "item_list_index"), rows).encode()}


def mind(pages: Sequence[Page]) -> dict[str, bytes]:
    """MIND's behaviors.tsv: impression id, user, time, history, and the shown news with their clicks. No header."""
    rows = [
        (
            page.number + 1,
            f"U{page.number % 50}",
            page.time.strftime("%m/%d/%Y %I:%M:%S %p"),
            " ".join(f"N{item}" for item in range(page.number % 4)),
            " ".join(f"{doc}-{click}" for _, doc, click in page.rows),
        )
        for page in pages
    ]
    return {"mind.tsv": _table(None, rows, "\t").encode()}


def metarank(pages: Sequence[Page]) -> dict[str, bytes]:
    """Metarank's ranking and interaction events, and metadata of items."""
    lines: list[object] = []
    for page in pages:
        about = {
            "timestamp": str(int(page.time.timestamp() * 1000)),
            "user": f"u{page.number % 50}",
            "session": page.name,
        }
        query = [{"name": "query", "value": page.query}]
        items = [{"id": doc, "relevancy": 1.0} for doc in page.docs]
        lines.append({"event": "ranking", "id": page.name, **about, "fields": query, "items": items})
        lines += [
            {
                "event": "interaction",
                "id": f"{page.name}-{doc}",
                "ranking": page.name,
                **about,
                "type": "click",
                "item": doc,
                "fields": [],
            }
            for doc in page.clicked
        ]
    item = {
        "event": "item",
        "id": "m1",
        "item": "sku-00",
        "timestamp": "1767600000000",
        "fields": [{"name": "price", "value": 9.5}],
    }
    return {"metarank.jsonl": _lines([item, *lines])}


def metarank_feed(pages: Sequence[Page]) -> dict[str, bytes]:
    """Metarank's events of a recommender, whose rankings have no query."""
    lines = [json.loads(line) for line in metarank(pages)["metarank.jsonl"].splitlines()]
    without = [line | ({"fields": []} if line["event"] == "ranking" else {}) for line in lines]
    return {"metarank_feed.jsonl": _lines(without)}


def behavioral_analytics(pages: Sequence[Page]) -> dict[str, bytes]:
    """Events of Elasticsearch's behavioral analytics."""
    lines: list[object] = []
    for page in pages:
        about = {"session": {"id": f"s{page.number // 2}"}, "user": {"id": f"u{page.number % 50}"}}
        items = [{"document": {"id": doc, "index": "products"}} for doc in page.docs]
        found = {"query": page.query, "results": {"items": items, "total_results": 7}}
        lines.append({"@timestamp": page.time.isoformat(), "event": {"action": "search"}, **about, "search": found})
        lines += [
            {
                "@timestamp": (page.time + timedelta(seconds=5 + at)).isoformat(),
                "event": {"action": "search_click"},
                **about,
                "search": {"query": page.query},
                "document": {"id": doc, "index": "products"},
            }
            for at, doc in enumerate(page.clicked)
        ]
        if page.number % 5 == 0:
            lines.append({"@timestamp": page.time.isoformat(), "event": {"action": "page_view"}, **about})
    return {"behavioral_analytics.ndjson": _lines(lines)}


def ubi_1_0(pages: Sequence[Page]) -> dict[str, bytes]:
    """OpenSearch UBI with the field names of its first version, each line behind the name of its index."""
    lines: list[str] = []
    for page in pages:
        query = {"query_id": page.name, "user_query": page.query, "query_response_objects_ids": list(page.docs)}
        lines.append("ubi_queries\t" + json.dumps(query))
        for doc in page.clicked:
            event = {"query_id": page.name, "action_name": "click", "event_attributes": {"object": {"object_id": doc}}}
            lines.append("ubi_events\t" + json.dumps(event))
    return {"ubi_1_0.ndjson": ("\n".join(lines) + "\n").encode()}


def yandex(pages: Sequence[Page]) -> dict[str, bytes]:
    """Yandex's Relevance Prediction Challenge: numbers for queries and URLs."""
    number = {doc: 100 + at for at, doc in enumerate(sorted({doc for page in pages for doc in page.docs}))}
    lines: list[tuple[object, ...]] = []
    for page in pages:
        session, time = page.number // 2, 1000 * (page.number % 2)
        lines.append((session, time, "Q", QUERIES.index(page.query), 7, *(number[doc] for doc in page.docs)))
        lines += [(session, time + 10 + at, "C", number[doc]) for at, doc in enumerate(page.clicked)]
    return {"yandex.tsv": _table(None, lines, "\t").encode()}


FORMS: dict[str, Write] = {
    write.__name__: write
    for write in (
        *(
            flat,
            semicolons,
            without_header,
            structs,
            text_lists,
            json_array,
            sums,
            events,
            visits,
            ga4,
            mind,
            metarank,
            metarank_feed,
        ),
        *(metarank, metarank_feed, behavioral_analytics, ubi_1_0, yandex),
    )
}


if __name__ == "__main__":
    drawn_pages = draw_pages()
    for files in (write(drawn_pages) for write in FORMS.values()):
        for name, content in files.items():
            (Path(sys.argv[1]) / name).write_bytes(content)
