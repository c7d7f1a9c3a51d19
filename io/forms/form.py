"""Forms of raw files: lines as records, and pages and clicks, all those of a page or visit together, as a log.

A line is a page with the documents that it showed, a click, or something else. It is read by itself, so that one odd
line is that line's own fault.

Raw files as a log of one row per impression, in temporary files, with an account of every line.

All records of a page, or of a visit, come together by its id, in parts on disk, so that memory is bounded.
"""

import shutil
from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self, cast

import msgspec
import polars as pl

from posbias.core.choices import Plugin
from posbias.core.errors import Coded, LogFormatError, SchemaError
from posbias.core.schema import Roles
from posbias.io.engines.engine import Engine
from posbias.io.log.click_log import Log
from posbias.io.log.clicks import CLICKS, OUTCOME, UNDECIDED, Fate, JoinedClicks, RawLines
from posbias.io.log.faults import check_dropped
from posbias.io.log.raw import (
    ACTION,
    CLICKED,
    KIND,
    NO_RULES,
    OTHER,
    RECORD,
    SHOWN,
    Joined,
    RawReader,
    RawRules,
    Resolved,
    clicks_in_visits,
    clicks_on_pages,
    mark_clicked,
    text_moment,
    with_outcome,
)
from posbias.io.log.scan import FILE, LINE, ROW, reading, scan_lines
from posbias.io.log.sources import Source, find_sources
from posbias.io.places.temporary import temporary_files

KEY, PAGE, VISIT, QUERY, DOCS, FIRST = "key", "page", "visit", "query", "docs", "first"
DOC, TIMESTAMP, USER, MOMENT, POSITION, CLICK = "doc", "timestamp", "user", "moment", "position", "click"

_COLUMNS = (PAGE, QUERY, DOC, POSITION, CLICK, TIMESTAMP, USER, VISIT)
_SAME = "same"
_ON_PAGE = [PAGE, DOC]
_LINES_AT_ONCE = 2048  # as objects, which take ten times what they take in columns


@dataclass(frozen=True)
class Form(Plugin, RawReader):
    """The raw files of a source, as it documents them, and how they are read."""

    has_actions: ClassVar[bool] = False  # whether its events have actions; --click-actions names those that are clicks
    may_lack_queries: ClassVar[bool] = False  # whether its pages may be those of a recommender (--no-query)

    rules: RawRules = NO_RULES

    def reader(self, rules: RawRules) -> Self:
        """The reader that makes a log of such files."""
        return replace(self, rules=rules)

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
        del text
        return False


class Outcome(Coded):
    """The outcome of a line."""

    SHOWN = 1, "pages"

    BLANK = 10, "blank lines"
    ACTION_LINE = 11, "action lines of the bulk format"
    NOT_READ = 12, "lines that are not in this format"
    UNKNOWN = 13, "lines of an unknown kind"
    NO_TIME = 14, "lines without a time that can be read"
    OTHER_ACTION = 15, "events of other kinds"

    NO_ID = 20, "pages without an id"
    NO_QUERY = 21, "pages without a query"
    NO_DOCS = 22, "pages that showed nothing"
    BAD_DOCS = 23, "pages whose list does not hold different ids"
    REPEATED_PAGE = 24, "pages that were seen before"
    PAGES_DISAGREE = 25, "pages whose id has another query or list as well"


class Line(NamedTuple):
    """A line as it was read."""

    outcome: int = UNDECIDED  # as far as the line alone decides it
    kind: int = OTHER
    action: str | None = None  # what its writer calls it, where that is of interest
    key: str | None = None  # what it has in common with all lines that belong together: the id of the page, or visit
    page: str | None = None  # null for a click that is joined by visit
    visit: str | None = None
    query: str | None = None
    docs: list[str] | None = None  # what a page showed, from the top
    first: int = 1  # the position of the first of them
    doc: str | None = None  # what was clicked
    timestamp: str | None = None
    user: str | None = None


_RECORD_TYPES: dict[str, pl.DataType] = {
    OUTCOME: pl.UInt8(),
    KIND: pl.UInt8(),
    ACTION: pl.String(),
    KEY: pl.String(),
    PAGE: pl.String(),
    VISIT: pl.String(),
    QUERY: pl.String(),
    DOCS: pl.List(pl.String()),
    FIRST: pl.Int64(),
    DOC: pl.String(),
    TIMESTAMP: pl.String(),
    USER: pl.String(),
}
"""The columns of records: the fields of a line."""


@dataclass(frozen=True)
class PageForm(Form):
    """A source each of whose lines is a page with what it showed, a click, or something else."""

    clicked_by: ClassVar[tuple[str, ...]] = (VISIT,)  # what a click that names no page has in common with its page
    click_actions: ClassVar[tuple[str, ...]] = ()  # the actions that are clicks, where they cannot be chosen
    columns = _COLUMNS
    kinds = Outcome
    fatal = (Outcome.NOT_READ, Outcome.UNKNOWN, Outcome.NO_TIME)
    other_action = Outcome.OTHER_ACTION
    key = KEY
    order = (MOMENT, FILE, ROW)

    @abstractmethod
    def read(self, text: str) -> Line:
        """A line as it was read."""

    def roles(self, requested: Roles) -> Roles:
        """The columns that were named, and those that are made for the others."""
        return requested.or_else(session=PAGE, query=QUERY, doc=DOC, position=POSITION, click=CLICK)

    def ids(self) -> tuple[pl.Expr, pl.Expr, pl.Expr]:
        """The page or visit, the page, and the document."""
        return pl.col(KEY), pl.col(PAGE), pl.col(DOC)

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """One record per line."""

        def of_lines(lines: pl.Series) -> pl.Series:
            starts = range(0, max(len(lines), 1), _LINES_AT_ONCE)
            return pl.concat(of_some(lines.slice(at, _LINES_AT_ONCE)) for at in starts).to_struct("record")

        def of_some(lines: pl.Series) -> pl.DataFrame:
            read = [self.read(line) if line and not line.isspace() else Line(Outcome.BLANK) for line in lines]
            columns = {name: [line[place] for line in read] for place, name in enumerate(_RECORD_TYPES)}
            return pl.DataFrame(columns, schema=_RECORD_TYPES)

        record = pl.col(LINE).map_batches(of_lines, return_dtype=pl.Struct(_RECORD_TYPES), is_elementwise=True)
        records = scan_lines(source).select(pl.lit(number, pl.UInt32).alias(FILE), ROW, record.alias("record"))
        timeless = (pl.col(OUTCOME) == UNDECIDED) & pl.col(MOMENT).is_null()
        outcome = pl.when(timeless).then(int(Outcome.NO_TIME)).otherwise(pl.col(OUTCOME))
        timed = records.unnest("record").with_columns(text_moment(pl.col(TIMESTAMP)).alias(MOMENT))
        return timed.with_columns(outcome.cast(pl.UInt8).alias(OUTCOME))

    def join(self, records: pl.DataFrame, undecided: pl.DataFrame) -> Joined:
        """Impressions of pages, and their clicks."""
        pages, of_pages = _pages(undecided.filter(pl.col(KIND) == SHOWN))
        places = pl.int_ranges(pl.col(FIRST), pl.col(FIRST) + pl.col(DOCS).list.len().cast(pl.Int64)).alias(POSITION)
        listed = pages.select(RECORD, KEY, PAGE, *self.clicked_by, DOCS, places)
        shown = listed.explode(DOCS, POSITION).rename({DOCS: DOC})
        clicks = undecided.filter(pl.col(KIND) == CLICKED)
        known = records.filter(pl.col(KIND) == SHOWN).select(PAGE).drop_nulls().unique()
        on_page, of_those = clicks_on_pages(clicks.filter(pl.col(PAGE).is_not_null()), shown, known, [PAGE], _ON_PAGE)
        by_visit, by = clicks.filter(pl.col(PAGE).is_null()), [*self.clicked_by, DOC]
        in_visit, of_these = clicks_in_visits(by_visit, shown, by, RECORD, [PAGE])
        clicked = pl.concat(some.select(RECORD, *_ON_PAGE) for some in (on_page, in_visit))
        marked = shown.select(RECORD, *_ON_PAGE, POSITION)
        rows, of_clicked = mark_clicked(marked, clicked.sort(RECORD), _ON_PAGE, CLICK)
        of_page = pages.select(RECORD, QUERY, TIMESTAMP, USER, VISIT)
        rows = rows.join(of_page, on=RECORD, how="left", maintain_order="left")
        return rows.select(_COLUMNS), shown, [of_pages, of_those, of_these, of_clicked], {}

    def judge(self, where: str, rows: int, counts: Counter[str], account: RawLines) -> None:
        """Check that pages were shown, and that clicks are not called otherwise.

        Raises:
            SchemaError: nothing was shown, or only other actions occur.
        """
        super().judge(where, rows, counts, account)
        if not counts[CLICKS] and account.other_actions:
            flag = "--click-actions" if self.has_actions else None
            raise self.no_clicks(where, self.click_actions or self.rules.click_actions, account, flag)


def _pages(pages: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The pages, each once, and what became of every line of one."""
    same = pl.concat_str(QUERY, FIRST, pl.col(DOCS).list.join("\0"), separator="\0")
    judged = pages.with_columns(same.alias(_SAME)).with_columns(
        (pl.col(_SAME).n_unique().over(PAGE) > 1).alias("disagrees"),
        (pl.col(RECORD) == pl.col(RECORD).min().over(PAGE)).alias("is_first"),
    )
    agreed = judged.filter(~pl.col("disagrees"))
    kept = agreed.filter("is_first")
    outcomes = [
        with_outcome(kept, Outcome.SHOWN),
        with_outcome(agreed.filter(~pl.col("is_first")), Outcome.REPEATED_PAGE),
        with_outcome(judged.filter("disagrees"), Outcome.PAGES_DISAGREE),
    ]
    return kept.drop(_SAME, "disagrees", "is_first", DOC), pl.concat(outcomes)


def page_line(line: Line) -> Line:
    """A page, and what the line alone says against it."""
    cases = (
        (line.page is None, Outcome.NO_ID),
        (line.query is None, Outcome.NO_QUERY),
        (line.docs == [], Outcome.NO_DOCS),
        (line.docs is None or len({*line.docs}) < len(line.docs), Outcome.BAD_DOCS),
    )
    outcome = next((case for holds, case in cases if holds), UNDECIDED)
    return line._replace(kind=SHOWN, outcome=outcome)


def click_line(line: Line) -> Line:
    """A click, and what the line alone says against it."""
    if line.key is None:
        return line._replace(kind=CLICKED, outcome=Fate.NO_PAGE)
    return line._replace(kind=CLICKED, outcome=UNDECIDED if line.doc is not None else Fate.NO_DOC)


# --- JSON -------------------------------------------------------------------------------------------------------

Document = dict[str, Any]
_DECODER = msgspec.json.Decoder()
_OF_BULK = ("index", "create", "update", "delete")


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


def is_action_line(document: Document) -> bool:
    """Whether an object is an action line of the bulk format."""
    return len(document) == 1 and next(iter(document)) in _OF_BULK and isinstance(next(iter(document.values())), dict)


def field(document: Document, path: str) -> Any:  # noqa: ANN401 - of whatever type it has
    """A field by its path, whose parts may be objects in objects or one dotted name."""
    if path in document:
        return document[path]
    first, _, rest = path.partition(".")
    inner = document.get(first)
    return field(cast("Document", inner), rest) if rest and isinstance(inner, dict) else None


def text_of(value: object) -> str | None:
    """An id or a text; None where a value is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    text = str(value)
    return text if text.strip() else None


def ids_in(items: object, path: str) -> list[str] | None:
    """The ids of a list of objects; None where it is no list, or one has no id."""
    if not isinstance(items, list):
        return None
    ids: list[str] = []
    for item in cast("Sequence[object]", items):
        known = text_of(field(cast("Document", item), path)) if isinstance(item, dict) else None
        if known is None:
            return None
        ids.append(known)
    return ids


_PART, _LINES = "posbias_part", "lines"
_BYTES_PER_PART = 128 << 20  # of text; as rows with their ids it takes several times that
_OF_MEMORY = 32  # a part takes that fraction of the memory at most
_COMPRESSION_RATIO = 10  # raw files repeat themselves
_SHOWN = 3


def convert(log: Log, reader: RawReader, engine: Engine) -> tuple[Log, RawLines, JoinedClicks]:
    """Make a log of raw files.

    Returns:
        The log, in the engine's directory for temporary files, and the account of all lines for the manifest: `lines`,
        those `used` by what they are, those `not_used` by reason, which add up to them; the `other_actions` by name,
        and where the `positions` of the rows come from, if there are several ways. And what became of its clicks.

    Raises:
        SchemaError: lines are fatal, and bad rows stop the run; or there is no log in the files, or nothing at all,
            whether or not bad rows stop the run.
        LogFormatError: a file cannot be read.
    """
    raw, made = engine.scratch / "raw-records", engine.scratch / "raw"
    made.mkdir()
    n_parts = _parts_for(log, engine)
    records = pl.concat(
        [reader.records(source, number) for number, source in enumerate(log.sources)], how="vertical_relaxed"
    )
    key = pl.col(reader.key)
    part = pl.when(key.is_null()).then(pl.col(ROW).cast(pl.UInt64)).otherwise(key.hash()) % n_parts
    with _reading(log.sources, reader), temporary_files(engine.scratch):
        records.with_columns(part.cast(pl.Int64).alias(_PART)).sink_parquet(
            pl.PartitionBy(raw, key=_PART, include_key=False), compression="lz4", mkdir=True
        )
    if not raw.exists():
        raise SchemaError(f"{log.request.inputs[0]}: the log holds no {reader.unit}.")
    parts, lines, fatal = list[Resolved](), list[pl.DataFrame](), list[pl.DataFrame]()
    is_fatal = pl.col(OUTCOME).is_in([*map(int, reader.fatal)])
    for folder in sorted(raw.iterdir()):
        written = pl.scan_parquet(sorted(folder.glob("*.parquet")), hive_partitioning=False, glob=False)
        part = reader.resolve(written.collect())
        with temporary_files(engine.scratch):
            part.rows.write_parquet(made / f"{folder.name}.parquet", compression="lz4")
        lines.append(part.outcomes.group_by(OUTCOME, ACTION).agg(pl.len().cast(pl.Int64).alias(_LINES)))
        damaged = part.outcomes.filter(is_fatal).sort(FILE, ROW)
        fatal.append(damaged.group_by(OUTCOME, maintain_order=True).head(_SHOWN))
        parts.append(replace(part, rows=part.rows.select(pl.len()), outcomes=damaged.clear()))
    shutil.rmtree(raw)
    rows, counts = (
        sum(part.rows.item() for part in parts),
        sum((Counter(part.counts) for part in parts), Counter[str]()),
    )
    account = _account(pl.concat(lines), rows, counts, reader)
    where, reasons = log.request.inputs[0], reader.reasons
    if engine.on_bad_rows == "error":
        _stop_at_fatal_lines(log, reader, pl.concat(fatal), account)
    fatal_reasons = {reasons[outcome] for outcome in reader.fatal}
    dropped = {why: number for why, number in account.not_used.items() if why in fatal_reasons}
    check_dropped(where, dropped, account.lines, log.request.max_bad_rows, reader.unit)
    reader.judge(where, rows, counts, account)
    examples = [example for part in parts for example in part.examples]
    clicks = JoinedClicks.of(pl.concat(part.clicks for part in parts), examples)
    clicks.check(where)
    return log.made_of_raw(find_sources([str(made)])), account, clicks


@contextmanager
def _reading(sources: Sequence[Source], reader: RawReader) -> Generator[None]:
    """Turn what cannot be read into an error that names the file, and the line where there are lines."""
    try:
        with reading(sources):
            yield
    except LogFormatError as error:
        broken = next(filter(None, map(_not_utf8, sources)), None) if reader.of_lines else None
        raise LogFormatError(broken or str(error)) from error


def _not_utf8(source: Source) -> str | None:
    """The message about a file that is not UTF-8."""
    try:
        scan_lines(source).select(pl.col(LINE).str.len_bytes().sum()).collect(engine="streaming")
    except pl.exceptions.PolarsError:
        damaged = pl.col(LINE).str.contains("\ufffd", literal=True)
        first = scan_lines(source, lossy=True).filter(damaged).select(ROW).head(1).collect(engine="streaming")
        return f"{source.path} line {first.item()}: is not UTF-8. Write the file as UTF-8." if first.height else None
    return None


def _parts_for(log: Log, engine: Engine) -> int:
    """How many parts the records are split into."""
    packed = ("parquet", "ipc")
    size = sum(
        source.bytes * (_COMPRESSION_RATIO if source.compressed or source.format in packed else 1)
        for source in log.sources
    )
    return 1 + size // min(_BYTES_PER_PART, max(engine.memory // _OF_MEMORY, 1))


def _account(lines: pl.DataFrame, rows: int, counts: Counter[str], reader: RawReader) -> RawLines:
    """The account of all lines."""
    numbers = dict(lines.group_by(OUTCOME).agg(pl.col(_LINES).sum()).iter_rows())
    others = lines.filter(pl.col(OUTCOME) == reader.other_action).drop_nulls(ACTION)
    others = others.group_by(ACTION).agg(pl.col(_LINES).sum()).sort(_LINES, ACTION, descending=[True, False])
    return RawLines(
        lines=sum(numbers.values()),
        used={name: numbers.get(outcome, 0) for outcome, name in reader.used.items()},
        not_used={reason: numbers[outcome] for outcome, reason in reader.reasons.items() if outcome in numbers},
        other_actions=dict(others.iter_rows()),
        positions=reader.positions(rows, counts),
    )


def _stop_at_fatal_lines(log: Log, reader: RawReader, fatal: pl.DataFrame, account: RawLines) -> None:
    fatal = fatal.sort(OUTCOME, FILE, ROW)
    if not fatal.height:
        return
    lines = [f"Some {reader.unit} cannot be read as {reader.title}:"]
    for outcome in fatal[OUTCOME].unique(maintain_order=True):
        first: list[tuple[int, int]] = fatal.filter(pl.col(OUTCOME) == outcome).head(_SHOWN).select(FILE, ROW).rows()
        places = "; ".join(f"{log.sources[file].path} {reader.unit[:-1]} {row}" for file, row in first)
        why = reader.reasons[outcome]
        lines.append(f"  {account.not_used[why]:,} x {why}: {places}")
    lines.append(f"Fix the files or the options, or drop these {reader.unit} with --on-bad-rows drop.")
    raise SchemaError(*lines)
