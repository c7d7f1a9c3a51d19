"""Formats of known sources, and the conversion of their records to a log of one row per impression.

The records of all files are written as Parquet. A script of `io/sources`, run by DuckDB in a fraction of the memory,
joins clicks to impressions, and its rows are written as Parquet again.
"""

import dataclasses
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
import polars as pl
from msgspec import UNSET

from posbias.core.choices import Impressions, Plugin
from posbias.core.errors import LogFormatError, SchemaError
from posbias.core.schema import Roles
from posbias.io.engines.engine import Engine
from posbias.io.log import clicks
from posbias.io.log.click_log import Log
from posbias.io.log.clicks import ClickOutcome, JoinedClicks, RawLines
from posbias.io.log.events import RawReader
from posbias.io.log.rejections import check_dropped
from posbias.io.log.scan import LINE, ROW, reading, scan_lines
from posbias.io.log.sources import Source, find_sources
from posbias.io.log.sql import connect, parquet_rows, quoted_name, restrict, sql_text, write_parquet
from posbias.io.places.temporary import temporary_files
from posbias.io.sources import script


@dataclass(frozen=True)
class Form(Plugin, RawReader):
    """The raw files of a source, in its documented format."""

    has_actions: ClassVar[bool] = False  # whether --click-actions chooses the events that are clicks
    line: ClassVar[re.Pattern[str] | None] = None  # pattern of lines that are no JSON
    may_lack_queries: ClassVar[bool] = False  # whether pages may be those of a recommender (--no-query)

    columns = ("page", "query", "doc", "position", "click", "timestamp", "user", "visit")
    other_action = "events of other kinds"
    fixed_click_actions: ClassVar[tuple[str, ...]] = ()  # actions that are clicks, where the source fixes them

    impressions: Impressions = "hits"  # what UBI counts as shown: hit lists of queries, or events
    click_actions: tuple[str, ...] = ("click",)  # actions that are clicks, where --click-actions chooses
    # The topmost ordinal of each action of UBI. Ordinals of other actions are not read: the official sample mixes those
    # from 0 and from 1.
    bases: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    no_query: bool = False  # whether pages have no query
    attributes: tuple[str, ...] = ()  # paths of fields of UBI's events to add as columns of documents

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the scripts, as SQL expressions."""
        paths = ["$" + "".join(f'."{name}"' for name in path.split(".")) for path in self.attributes]
        bases = ", ".join(f"{sql_text(action)}: {base}" for action, base in self.bases.items())
        return {
            "actions": f"[{', '.join(map(sql_text, self.click_actions))}]",
            "bases": f"CAST(MAP {{{bases}}} AS MAP(VARCHAR, BIGINT))",
            "by_events": str(self.impressions == "events"),
            "no_query": str(self.no_query),
            "attributes": f"[{', '.join(sql_text(path) for path in paths)}]::VARCHAR[]",
        }

    def matches_document(self, document: dict[str, Any]) -> bool:
        """Return True if a JSON object is a record of the source."""
        del document
        return False

    def lacks_query(self, document: dict[str, Any]) -> bool | None:
        """Return True if a JSON object is a page without a query, False for one with a query; None for no page."""
        del document
        return None

    def matches_line(self, text: str) -> bool:
        """Return True if a line that is no JSON is a record of the source."""
        return self.line is not None and self.line.fullmatch(text.rstrip("\r\n\t ")) is not None

    def roles(self, requested: Roles) -> Roles:
        """Fill roles that no option names with the columns of the script."""
        return requested.with_defaults(session="page", query="query", doc="doc")

    def check_counts(self, where: str, counts: Mapping[str, int], account: RawLines) -> None:
        """Raise SchemaError if there are no impressions, or no clicks but events of other actions."""
        super().check_counts(where, counts, account)
        if not counts["clicks"] and account.other_actions:
            flag = "--click-actions" if self.has_actions else None
            raise self.no_clicks_error(where, self.fixed_click_actions or self.click_actions, account, flag)


Document = dict[str, Any]
_DECODER = msgspec.json.Decoder()


def parse_document(text: str) -> Document | None:
    """Parse the JSON object of a line: alone, after the name of an index and a tab, or in `_source` of a search hit.

    Returns:
        The object; None if there is none.
    """
    if not text.startswith("{"):
        text = text.rpartition("\t")[2] if "\t" in text.partition("{")[0] else text
    try:
        value = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    document = cast("Document", value)
    source = document.get("_source")
    return cast("Document", source) if isinstance(source, dict) else document


def field(document: Document, path: str) -> Any:  # noqa: ANN401 - of any type of JSON
    """Return the value at a dotted path, of nested objects or of names with dots; None if there is none."""
    if path in document:
        return document[path]
    first, _, rest = path.partition(".")
    inner = document.get(first)
    return field(cast("Document", inner), rest) if rest and isinstance(inner, dict) else None


_MOSTLY = 0.5


class Ubi(Form):
    """OpenSearch User Behavior Insights: documents of ubi_queries and ubi_events."""

    name = "ubi"
    title = "UBI"
    has_actions = True
    formats = ("ndjson", "tsv")
    expected = (
        "UBI documents are read as NDJSON, one per line, plain or as bulk requests; name the file .ndjson or .jsonl "
        "(.gz, .zst)."
    )
    columns = ("query_id", "user_query", "object_id", "position", "click", "timestamp", "client_id", "application")
    other_action = "events of other actions"

    def matches_document(self, document: dict[str, Any]) -> bool:
        """Return True for a `query_id` with the text of a query or the action of an event."""
        return "query_id" in document and not {"action_name", "user_query"}.isdisjoint(document)

    def with_attributes(self, names: Sequence[str]) -> "Ubi":
        """Return a reader that adds fields of `event_attributes` as columns."""
        return replace(self, attributes=tuple(name for name in names if name.startswith("event_attributes.")))

    @property
    def rows_query(self) -> str:
        """The query for the rows of the log, with the attributes under their paths."""
        fields = [f"kept[{n}] AS {quoted_name(path)}" for n, path in enumerate(self.attributes, start=1)]
        return f"SELECT {', '.join(['* EXCLUDE (kept)', *fields])} FROM made"

    def roles(self, requested: Roles) -> Roles:
        """Fill roles that no option names with the columns of UBI."""
        return requested.with_defaults(session="query_id", query="user_query", doc="object_id")

    def check_counts(self, where: str, counts: Mapping[str, int], account: RawLines) -> None:
        """Raise SchemaError if there are no impressions or clicks, or most pages contradict themselves."""
        pages, contradicting = counts["pages"], counts["contradicting"]
        if contradicting > _MOSTLY * pages:
            raise SchemaError(
                f"{where}: {contradicting:,} of {pages:,} pages contradict themselves: a query_id with several queries "
                "or hit lists, two documents at one position, or one at two. A query_id is one results page; too many "
                f"of them are not. {self.in_words(account)}"
            )
        if counts["rows"] and not counts["clicks"] and account.other_actions:
            raise self.no_clicks_error(where, self.click_actions, account)
        if counts["rows"]:
            return
        advice = "Nothing that was shown could be read."
        if self.impressions == "hits":
            advice = (
                "No query has a hit list (query_response_hit_ids). If the log has impression events, use "
                "--ubi-impressions events --position-base impression=N, where N is the ordinal of the topmost position."
            )
        raise SchemaError(f"{where}: {advice} {self.in_words(account)}")


_ACTIONS = ("search", "search_click", "page_view", "pageview")
_PATHS = tuple(f"/event/{action}" for action in _ACTIONS)
_VIEW_FIELDS = {"page", "user", "session", "document", "path", "url", "at", "timestamp", "received_at", "time"}


class Elasticsearch(Form):
    """Elasticsearch's behavioral analytics: events, stored or as sent by the client."""

    name = "elasticsearch"
    title = "Elasticsearch"
    fixed_click_actions = ("search_click",)
    expected = (
        "Events of behavioral analytics are read as NDJSON, one per line, plain, as bulk requests or as hits of a "
        "search (jq -c '.hits.hits[]'); name the file .ndjson or .jsonl (.gz, .zst)."
    )

    def matches_document(self, document: dict[str, Any]) -> bool:
        """Return True for a session with a known action or, as sent, with a search, a path of the API, or a view."""
        action, path = field(document, "event.action"), str(document.get("path") or document.get("url"))
        is_view = field(document, "page.url") is not None and document.keys() <= _VIEW_FIELDS
        is_sent = field(document, "search.query") is not None or path.endswith(_PATHS) or is_view
        return (action in _ACTIONS or (action is None and is_sent)) and field(document, "session.id") is not None


_REQUIRED_FIELDS = {"ranking": "items", "interaction": "type", "item": "fields", "user": "fields"}
"""A field that every event of a type has."""


class Metarank(Form):
    """Metarank: rankings (the documents of a page), interactions with them, and metadata."""

    name = "metarank"
    title = "Metarank"
    has_actions = True
    may_lack_queries = True
    expected = "Metarank's events are read as NDJSON, one per line; name the file .ndjson or .jsonl (.gz, .zst)."

    def lacks_query(self, document: dict[str, Any]) -> bool | None:
        """Return True if a ranking has no field `query`, or an empty one; None for other events."""
        if document.get("event") != "ranking":
            return None
        fields: Any = document.get("fields")
        for entry in cast("list[Any]", fields if isinstance(fields, list) else []):
            if isinstance(entry, dict) and cast("Document", entry).get("name") == "query":
                return not str(cast("Document", entry).get("value") or "").strip()
        return True

    def matches_document(self, document: dict[str, Any]) -> bool:
        """Return True for an event with a time and the required field of its type."""
        return _REQUIRED_FIELDS.get(str(document.get("event"))) in document and "timestamp" in document


class Yandex(Form):
    """Logs of Yandex's challenges: actions of sessions, in tab-separated text."""

    name = "yandex"
    title = "Yandex"
    formats = ("tsv", "csv")
    expected = "Yandex's logs are text between tabs; name the file .tsv (.gz, .zst)."
    fixed_click_actions = ("C",)
    # SESSION M ..., the metadata of a session, or SESSION TIME ACTION ..., queries (Q, T) and clicks (C)
    line = re.compile(r"[^\t]*\tM\t[^\t]*\t[^\t]+|[^\t]+\t\d+\t(?:[QT]\t.+|C\t[^\t]*(?:\t[^\t]+)?)")


_MEMORY_DIVISOR = 4  # DuckDB gets a quarter of the memory
_EXAMPLES = 2  # ids of lost clicks, by reason
_FIRST_FATAL = (
    "SELECT outcome, file, line FROM outcomes WHERE list_contains(?, outcome) "
    "QUALIFY row_number() OVER (PARTITION BY outcome ORDER BY file, line) <= 3 ORDER BY file, line"
)
"""(outcome, file, line) of the first three records of each fatal outcome."""
_OUTCOMES = {outcome.words: outcome for outcome in ClickOutcome}
_SCHEMA = {clicks.OUTCOME: pl.Int64, clicks.STATED_POSITION: pl.Int64, clicks.CLICKS: pl.Int64}


def convert(log: Log, reader: RawReader, engine: Engine) -> tuple[Log, RawLines, JoinedClicks]:
    """Convert records to a log of one row per impression.

    Returns:
        The log, in the engine's directory for temporary files; the account of all records for the manifest, whose
        `used` and `not_used` add up to `lines`; and the counts of clicks.

    Raises:
        SchemaError: there are fatal records, and bad rows stop the run or are too many; or there are no records, or
            none of impressions or clicks.
        LogFormatError: a file cannot be read.
    """
    folder, where = engine.scratch / "raw", log.request.inputs[0]
    folder.mkdir()
    read, made = folder / "records.parquet", folder / "rows.parquet"
    records = pl.concat([reader.records(source, n) for n, source in enumerate(log.sources)], how="diagonal_relaxed")
    text, outcomes = script(reader.script)
    with _reading(log.sources, reader), temporary_files(engine.scratch):
        records.sink_parquet(read, compression="lz4", statistics=False)
        types = records.collect_schema()
    with temporary_files(engine.scratch), connect(folder, engine.memory // _MEMORY_DIVISOR, where) as connection:
        for name, value in reader.variables.items():
            connection.execute(f"SET VARIABLE {name} = {value}")
        restrict(connection, [read, made])
        connection.execute(f"CREATE VIEW records AS FROM {parquet_rows([read])}")
        connection.execute(f"{reader.view};{text}")
        tally = connection.execute("SELECT outcome, action, count(*) FROM outcomes GROUP BY ALL").fetchall()
        fatal = [why for why, role in outcomes.items() if role == "fatal"]
        places: list[tuple[str, int, int]] = connection.execute(_FIRST_FATAL, [fatal]).fetchall()
        (numbers,) = connection.execute("FROM counts").fetchall()
        counts = dict(zip((name for name, *_ in connection.description), numbers, strict=True))
        by_outcome = connection.execute("SELECT outcome, place, count(*) FROM click_outcomes GROUP BY ALL").fetchall()
        coded = [(int(_OUTCOMES.get(why, clicks.UNDECIDED)), *numbers) for why, *numbers in by_outcome]
        joined = JoinedClicks.count(pl.DataFrame(coded, schema=_SCHEMA, orient="row"), _examples(connection))
        write_parquet(connection, reader.rows_query, made)
    read.unlink()
    if (schema := reader.schema(types)) is not None:
        with temporary_files(engine.scratch):
            made = _with_types(made, schema)
    number = dict.fromkeys((*outcomes, *_OUTCOMES), 0)
    for why, _, lines in tally:
        number[why] += lines
    others = [(-lines, action) for why, action, lines in tally if why == reader.other_action and action is not None]
    used = [why for why, role in outcomes.items() if role == "used"] + [ClickOutcome.JOINED.words]
    unused = [why for why, role in outcomes.items() if role != "used"] + [*clicks.LOSS_REASONS.values()]
    account = RawLines(
        positions=UNSET
        if (by_ordinal := counts.get("by_ordinal")) is None  # only UBI has hit lists and ordinals
        else {"from_hit_lists": counts["rows"] - by_ordinal, "from_ordinals": by_ordinal},
        lines=sum(number.values()),
        used={why: number[why] for why in used},
        not_used={why: number[why] for why in unused if number[why]},
        other_actions={action: -lines for lines, action in sorted(others)},
    )
    if not account.lines:
        raise SchemaError(f"{where}: the log holds no {reader.unit}.")
    dropped = {why: number[why] for why in fatal if number[why]}
    if dropped and engine.on_bad_rows == "error":
        shown = list[str]()
        for why, lines in dropped.items():
            first = [f"{log.sources[file].path} {reader.unit[:-1]} {line}" for of, file, line in places if of == why]
            shown.append(f"  {lines:,} x {why}: {'; '.join(first)}")
        advice = f"Fix the files or the options, or drop these {reader.unit} with --on-bad-rows drop."
        raise SchemaError(f"Some {reader.unit} cannot be read as {reader.title}:", *shown, advice)
    check_dropped(where, dropped, account.lines, log.request.max_bad_rows, reader.unit)
    reader.check_counts(where, counts, account)
    joined.check(where, "" if log.request.query else reader.otherwise)
    rules = replace(log.request.rules, position_base=1) if reader.reads_lines else log.request.rules
    request, sources = replace(log.request, raw=None, events=None, rules=rules), tuple(find_sources([str(made)]))
    return replace(log, request=request, sources=sources, raw=None, raw_sources=log.sources), account, joined


@contextmanager
def _reading(sources: Sequence[Source], reader: RawReader) -> Generator[None]:
    """Translate errors of Polars to LogFormatError, which names the line if one is not UTF-8."""
    try:
        with reading(sources):
            yield
    except LogFormatError as error:
        for source in sources if reader.reads_lines else ():
            try:
                scan_lines(source).select(pl.col(LINE).str.len_bytes().sum()).collect(engine="streaming")
            except pl.exceptions.PolarsError:
                damaged = pl.col(LINE).str.contains("\ufffd", literal=True)
                lines = scan_lines(source, lossy=True).filter(damaged).select(ROW).head(1).collect(engine="streaming")
                for line in lines.to_series():
                    raise LogFormatError(
                        f"{source.path} line {line}: is not UTF-8. Write the file as UTF-8."
                    ) from error
        raise


def _with_types(file: Path, schema: pl.Schema) -> Path:
    """Return the file, or a copy of its rows with the names and types of a schema if DuckDB wrote others."""
    rows = pl.scan_parquet(file, hive_partitioning=False, glob=False)
    written = rows.collect_schema()
    if written == schema and [*written] == [*schema]:
        return file
    typed = file.with_name("typed.parquet")
    rows.rename(dict(zip(written, schema, strict=True))).select(
        pl.col(name).cast(dtype) for name, dtype in schema.items()
    ).sink_parquet(typed, compression="lz4")
    file.unlink()
    return typed


def _examples(connection: Any) -> list[clicks.Example]:  # noqa: ANN401 - DuckDB's types are not complete
    """Pair ids of lost clicks with the most similar ids of impressions."""
    examples = list[clicks.Example]()
    for outcome, column in clicks.COMPARED_IDS.items():
        name = column.removeprefix("posbias_")
        lost = connection.execute(
            f"SELECT {name}, arg_min(key, n) FROM click_outcomes WHERE outcome = ? AND {name} IS NOT NULL "
            f"GROUP BY {name} ORDER BY min(n) LIMIT {_EXAMPLES}",
            [outcome.words],
        ).fetchall()
        for value, key in lost:
            same_key = "" if name == "page" else "WHERE key = ?"
            others = connection.execute(
                f"SELECT {name} FROM shown {same_key} GROUP BY {name} HAVING {name} IS NOT NULL ORDER BY min(turn) "
                f"LIMIT {clicks.MOST_COMPARED}",
                [key] if same_key else [],
            ).fetchall()
            if others:
                lost_id, shown = _id_text(value), [_id_text(other) for (other,) in others]
                closest = max(shown, key=lambda other: clicks.similarity(lost_id, other))
                examples.append(clicks.Example(int(outcome), lost_id, closest))
    return examples


def _id_text(value: object) -> str:
    """Join the columns of an id to one text."""
    return " ".join(map(_id_text, cast("dict[str, object]", value).values())) if isinstance(value, dict) else str(value)
