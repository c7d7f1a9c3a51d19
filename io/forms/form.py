"""Raw files of known sources, and records of any kind as a log of one row per impression, with an account of them.

The records of all files are written as Parquet, a script of `io/sources` reads them and joins clicks to what was shown,
and its rows are one Parquet file. DuckDB runs it, within a fraction of the memory.
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
from posbias.io.log.click_log import Log
from posbias.io.log.clicks import (
    AT,
    CLICKS,
    COMPARED,
    OUTCOME,
    REASONS,
    UNDECIDED,
    WITH_EXAMPLES,
    Example,
    Fate,
    JoinedClicks,
    RawLines,
    likeness,
)
from posbias.io.log.events import RawReader
from posbias.io.log.rejections import check_dropped
from posbias.io.log.scan import LINE, ROW, reading, scan_lines
from posbias.io.log.sources import Source, find_sources
from posbias.io.log.sql import connected, parquet_rows, quoted_name, shut_off, sql_text, write_parquet
from posbias.io.places.temporary import temporary_files
from posbias.io.sources import script


@dataclass(frozen=True)
class Form(Plugin, RawReader):
    """The raw files of a source, as it documents them, and how they are read."""

    has_actions: ClassVar[bool] = False  # whether its events have actions; --click-actions names those that are clicks
    line: ClassVar[re.Pattern[str] | None] = None  # its lines, where they hold no JSON
    may_lack_queries: ClassVar[bool] = False  # whether its pages may be those of a recommender (--no-query)

    columns = ("page", "query", "doc", "position", "click", "timestamp", "user", "visit")
    other_action = "events of other kinds"
    fixed_click_actions: ClassVar[tuple[str, ...]] = ()  # the actions that are clicks, where they cannot be chosen

    impressions: Impressions = "hits"  # what says that a document was shown, in UBI
    click_actions: tuple[str, ...] = ("click",)  # the actions that are clicks, where a source has several
    # the number of the topmost position in the ordinals of each action of UBI; no number, no trust: the official sample
    # mixes ordinals from 0 and from 1
    bases: Mapping[str, int] = dataclasses.field(default_factory=dict[str, int])
    no_query: bool = False  # whether pages have no query, where the source allows that
    attributes: tuple[str, ...] = ()  # paths of the fields of UBI's events that documents have as columns

    @property
    def variables(self) -> dict[str, str]:
        """What the scripts look up, in SQL."""
        paths = ["$" + "".join(f'."{name}"' for name in path.split(".")) for path in self.attributes]
        bases = ", ".join(f"{sql_text(action)}: {base}" for action, base in self.bases.items())
        return {
            "actions": f"[{', '.join(map(sql_text, self.click_actions))}]",
            "bases": f"CAST(MAP {{{bases}}} AS MAP(VARCHAR, BIGINT))",
            "by_events": str(self.impressions == "events"),
            "no_query": str(self.no_query),
            "attributes": f"[{', '.join(sql_text(path) for path in paths)}]::VARCHAR[]",
        }

    def knows_document(self, document: dict[str, Any]) -> bool:
        """Whether a JSON object is one of its lines."""
        del document
        return False

    def lacks_query(self, document: dict[str, Any]) -> bool | None:
        """Whether a page has no query; None for what is no page."""
        del document
        return None

    def knows_line(self, text: str) -> bool:
        """Whether a line, which holds no JSON, is one of its lines."""
        return self.line is not None and self.line.fullmatch(text.rstrip("\r\n\t ")) is not None

    def roles(self, requested: Roles) -> Roles:
        """The columns that were named, and those that are made for the others."""
        return requested.with_defaults(session="page", query="query", doc="doc")

    def judge(self, where: str, counts: Mapping[str, int], account: RawLines) -> None:
        """Check that pages were shown, and that clicks are not called otherwise.

        Raises:
            SchemaError: nothing was shown, or only other actions occur.
        """
        super().judge(where, counts, account)
        if not counts["clicks"] and account.other_actions:
            flag = "--click-actions" if self.has_actions else None
            raise self.no_clicks(where, self.fixed_click_actions or self.click_actions, account, flag)


Document = dict[str, Any]
_DECODER = msgspec.json.Decoder()


def document_of(text: str) -> Document | None:
    """The JSON object in a line: alone, after the name of an index and a tab, or as a hit of a search (`_source`)."""
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


def field(document: Document, path: str) -> Any:  # noqa: ANN401 - of whatever type it has
    """A field by its path, whose parts may be objects in objects or one dotted name."""
    if path in document:
        return document[path]
    first, _, rest = path.partition(".")
    inner = document.get(first)
    return field(cast("Document", inner), rest) if rest and isinstance(inner, dict) else None


_MOSTLY = 0.5


class Ubi(Form):
    """Documents of ubi_queries and ubi_events."""

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

    def knows_document(self, document: dict[str, Any]) -> bool:
        """A query or an event has the id of a query."""
        return "query_id" in document and not {"action_name", "user_query"}.isdisjoint(document)

    def keeping(self, names: Sequence[str]) -> "Ubi":
        """The reader of these fields of events, too."""
        return replace(self, attributes=tuple(name for name in names if name.startswith("event_attributes.")))

    @property
    def made(self) -> str:
        """The query for the rows of the log."""
        fields = [f"kept[{n}] AS {quoted_name(path)}" for n, path in enumerate(self.attributes, start=1)]
        return f"SELECT {', '.join(['* EXCLUDE (kept)', *fields])} FROM made"

    def roles(self, requested: Roles) -> Roles:
        """The columns that were named, and those of UBI for the others."""
        return requested.with_defaults(session="query_id", query="user_query", doc="object_id")

    def judge(self, where: str, counts: Mapping[str, int], account: RawLines) -> None:
        """Check that pages were shown, and that most of them do not contradict themselves.

        Raises:
            SchemaError: nothing was shown, or a query_id is no page.
        """
        pages, contradicting = counts["pages"], counts["contradicting"]
        if contradicting > _MOSTLY * pages:
            raise SchemaError(
                f"{where}: {contradicting:,} of {pages:,} pages contradict themselves: a query_id with several queries "
                "or hit lists, two documents at one position, or one at two. A query_id is one results page; too many "
                f"of them are not. {self.in_words(account)}"
            )
        if counts["rows"] and not counts["clicks"] and account.other_actions:
            raise self.no_clicks(where, self.click_actions, account)
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
_OF_VIEWS = {"page", "user", "session", "document", "path", "url", "at", "timestamp", "received_at", "time"}


class Elasticsearch(Form):
    """Events of behavioral analytics."""

    name = "elasticsearch"
    title = "Elasticsearch"
    fixed_click_actions = ("search_click",)
    expected = (
        "Events of behavioral analytics are read as NDJSON, one per line, plain, as bulk requests or as hits of a "
        "search (jq -c '.hits.hits[]'); name the file .ndjson or .jsonl (.gz, .zst)."
    )

    def knows_document(self, document: dict[str, Any]) -> bool:
        """An event has a session and one of these actions, or, as it was sent, what is searched for, or its path."""
        action, path = field(document, "event.action"), str(document.get("path") or document.get("url"))
        is_view = field(document, "page.url") is not None and document.keys() <= _OF_VIEWS
        is_sent = field(document, "search.query") is not None or path.endswith(_PATHS) or is_view
        return (action in _ACTIONS or (action is None and is_sent)) and field(document, "session.id") is not None


_NEEDED = {"ranking": "items", "interaction": "type", "item": "fields", "user": "fields"}
"""The field that an event of a kind has."""


class Metarank(Form):
    """Rankings, which say what was shown, and interactions, which say what was done with it."""

    name = "metarank"
    title = "Metarank"
    has_actions = True
    may_lack_queries = True
    expected = "Metarank's events are read as NDJSON, one per line; name the file .ndjson or .jsonl (.gz, .zst)."

    def lacks_query(self, document: dict[str, Any]) -> bool | None:
        """Whether a ranking is that of a recommender."""
        if document.get("event") != "ranking":
            return None
        fields: Any = document.get("fields")
        for entry in cast("list[Any]", fields if isinstance(fields, list) else []):
            if isinstance(entry, dict) and cast("Document", entry).get("name") == "query":
                return not str(cast("Document", entry).get("value") or "").strip()
        return True

    def knows_document(self, document: dict[str, Any]) -> bool:
        """A ranking has items, an interaction a type, and metadata fields."""
        return _NEEDED.get(str(document.get("event"))) in document and "timestamp" in document


class Yandex(Form):
    """Actions of sessions, between tabs."""

    name = "yandex"
    title = "Yandex"
    formats = ("tsv", "csv")
    expected = "Yandex's logs are text between tabs; name the file .tsv (.gz, .zst)."
    fixed_click_actions = ("C",)
    # a session, a time and an action, or the metadata of a session
    line = re.compile(r"[^\t]*\tM\t[^\t]*\t[^\t]+|[^\t]+\t\d+\t(?:[QT]\t.+|C\t[^\t]*(?:\t[^\t]+)?)")


_OF_MEMORY = 4  # DuckDB gets that fraction of it
_EXAMPLES = 2  # ids of lost clicks, by reason
_FIRST_FATAL = (
    "SELECT outcome, file, line FROM outcomes WHERE list_contains(?, outcome) "
    "QUALIFY row_number() OVER (PARTITION BY outcome ORDER BY file, line) <= 3 ORDER BY file, line"
)
"""The places of the first records that stop the run, by reason."""
_FATES = {fate.words: fate for fate in Fate}


def convert(log: Log, reader: RawReader, engine: Engine) -> tuple[Log, RawLines, JoinedClicks]:
    """Make a log of records.

    Returns:
        The log, in the engine's directory for temporary files, and the account of all records for the manifest:
        `lines`, those `used` by what they are, those `not_used` by reason, which add up to them; the `other_actions` by
        name, and where the `positions` of the rows come from, if there are several ways. And what became of its clicks.

    Raises:
        SchemaError: records are fatal, and bad rows stop the run; or there is no log in the files, or nothing at all,
            whether or not bad rows stop the run.
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
    with temporary_files(engine.scratch), connected(folder, engine.memory // _OF_MEMORY, where) as connection:
        for name, value in reader.variables.items():
            connection.execute(f"SET VARIABLE {name} = {value}")
        shut_off(connection, [read, made])
        connection.execute(f"CREATE VIEW records AS FROM {parquet_rows([read])}")
        connection.execute(f"{reader.view};{text}")
        tally = connection.execute("SELECT outcome, action, count(*) FROM outcomes GROUP BY ALL").fetchall()
        fatal = [why for why, role in outcomes.items() if role == "fatal"]
        places: list[tuple[str, int, int]] = connection.execute(_FIRST_FATAL, [fatal]).fetchall()
        (numbers,) = connection.execute("FROM counts").fetchall()
        counts = dict(zip((name for name, *_ in connection.description), numbers, strict=True))
        fates = connection.execute("SELECT outcome, place, count(*) FROM fates GROUP BY ALL").fetchall()
        coded = [(int(_FATES.get(why, UNDECIDED)), place, clicks) for why, place, clicks in fates]
        by_fate = pl.DataFrame(coded, schema={OUTCOME: pl.Int64, AT: pl.Int64, CLICKS: pl.Int64}, orient="row")
        clicks = JoinedClicks.of(by_fate, _examples(connection))
        write_parquet(connection, reader.made, made)
    read.unlink()
    if (schema := reader.schema(types)) is not None:
        with temporary_files(engine.scratch):
            made = _with_types(made, schema)
    number = dict.fromkeys((*outcomes, *_FATES), 0)
    for why, _, lines in tally:
        number[why] += lines
    others = [(-lines, action) for why, action, lines in tally if why == reader.other_action and action is not None]
    used = [why for why, role in outcomes.items() if role == "used"] + [Fate.JOINED.words]
    unused = [why for why, role in outcomes.items() if role != "used"] + [*REASONS.values()]
    account = RawLines(
        positions=UNSET
        if (by_ordinal := counts.get("by_ordinal")) is None  # from hit lists, or from ordinals, which UBI alone has
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
    reader.judge(where, counts, account)
    clicks.check(where)
    rules = replace(log.request.rules, position_base=1) if reader.of_lines else log.request.rules
    request, sources = replace(log.request, raw=None, events=None, rules=rules), tuple(find_sources([str(made)]))
    return replace(log, request=request, sources=sources, raw=None, raw_sources=log.sources), account, clicks


@contextmanager
def _reading(sources: Sequence[Source], reader: RawReader) -> Generator[None]:
    """Turn what cannot be read into an error that names the file, and the line where there are lines."""
    try:
        with reading(sources):
            yield
    except LogFormatError as error:
        for source in sources if reader.of_lines else ():
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
    """The file, or one with the same rows under the names and types of a schema, where DuckDB wrote others."""
    rows = pl.scan_parquet(file, hive_partitioning=False, glob=False)
    written = rows.collect_schema()
    if written == schema and [*written] == [*schema]:
        return file
    typed = file.with_name("typed.parquet")
    rows.rename(dict(zip(written, schema, strict=True))).select(
        pl.col(name).cast(of) for name, of in schema.items()
    ).sink_parquet(typed, compression="lz4")
    file.unlink()
    return typed


def _examples(connection: Any) -> list[Example]:  # noqa: ANN401 - as above
    """Ids of lost clicks, each with the one of those shown that is most like it."""
    examples = list[Example]()
    for fate, column in WITH_EXAMPLES.items():
        name = column.removeprefix("posbias_")
        lost = connection.execute(
            f"SELECT {name}, arg_min(key, n) FROM fates WHERE outcome = ? AND {name} IS NOT NULL GROUP BY {name} "
            f"ORDER BY min(n) LIMIT {_EXAMPLES}",
            [fate.words],
        ).fetchall()
        for named, key in lost:
            beside = "" if name == "page" else "WHERE key = ?"
            others = connection.execute(
                f"SELECT {name} FROM shown {beside} GROUP BY {name} HAVING {name} IS NOT NULL ORDER BY min(turn) "
                f"LIMIT {COMPARED}",
                [key] if beside else [],
            ).fetchall()
            texts = [_as_text(other) for (other,) in others]
            if texts:
                closest = max(texts, key=lambda other: likeness(_as_text(named), other))
                examples.append(Example(int(fate), _as_text(named), closest))
    return examples


def _as_text(value: object) -> str:
    """An id, of one column or several, as text."""
    return " ".join(map(_as_text, cast("dict[str, object]", value).values())) if isinstance(value, dict) else str(value)
