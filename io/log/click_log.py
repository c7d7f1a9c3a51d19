"""A click log: its files, the roles of its columns, and its rows as canonical impressions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from io import BytesIO
from itertools import chain
from typing import Any

import polars as pl

from posbias.core.choices import DuplicateDocs
from posbias.core.errors import LogFormatError, RoleError, SchemaError
from posbias.core.log.impressions import (
    EARLIER_REJECTION,
    REJECTED,
    TIME_UNITS,
    ReadingRules,
    TimeUnit,
    canonical_impressions,
    page_keys,
    time_unit_of,
    whole_numbers,
)
from posbias.core.log.pages import PageRules
from posbias.core.roles import CLIENTS, TIMES, is_offset_name, is_page_name, plain_name, resolve_roles
from posbias.core.schema import CLICK, DOC, FLAGS, KEY_ROLES, PERIOD, POSITION, QUERY, SESSION, Roles
from posbias.io.log import lists
from posbias.io.log.clicks import (
    CLICKS,
    JOINED_CLICK,
    MOST_COMPARED,
    OUTCOME,
    STATED_POSITION,
    ClicksRequest,
    ClickTable,
    ImpressionLookup,
    JoinedClicks,
    join_lists,
    join_table,
)
from posbias.io.log.events import RAW_FILE, RAW_ROW, EventReader, EventsRequest, RawReader
from posbias.io.log.exports import Export, digest_of_counts, only_counts
from posbias.io.log.lists import DEFAULT_LIST_RULES, RESERVED_PREFIX, ListRules, Nesting, is_list
from posbias.io.log.scan import (
    FILE,
    ROW,
    check_headers,
    has_rows,
    holds_structs,
    reading,
    scan_sources,
    scan_with_place,
    schema_of,
)
from posbias.io.log.sources import PLAIN, Dialect, Source, check_unchanged, digests, each_source, read_end
from posbias.io.log.sql import Query, run_query
from posbias.io.log.text import check_dialect_matters, find_log_files


@dataclass(frozen=True)
class LogRequest:
    """The options of a log."""

    inputs: tuple[str, ...]  # files, globs, directories, URLs, or names of tables
    roles: Roles  # the columns that options name
    rules: ReadingRules
    clicks: ClicksRequest | None = None  # the table of clicks, where it is a second one
    needs_session: bool = False  # whether the command needs the session column
    form: str = "auto"  # a row is an impression ("flat") or a page ("nested"); "auto": by the type of the document
    events: EventsRequest | None = None  # conditions of impressions and clicks, where one table holds both
    raw: RawReader | None = None  # the reader of raw files of a known source
    max_bad_rows: float = 1.0  # largest share of invalid rows, 0 to 1
    dialect: Dialect = PLAIN  # of text files, those of the clicks as well
    duplicate_docs: DuplicateDocs = "error"  # treatment of a document that stands twice on a page
    lists: ListRules = DEFAULT_LIST_RULES  # for nested logs
    query: Query | None = None  # a query over the files, whose rows are the log
    tables: Callable[["LogRequest"], tuple[Source, ...]] | None = None  # writes files of the rows of tables of Spark
    detect_timestamp: bool = False  # whether to look for a column of times, as no option names it
    export: Export | None = None  # of counts that a warehouse exported

    def sources(self) -> tuple[Source, ...]:
        """Return the files of the log, or files with the rows of its query or tables.

        Raises:
            PosbiasError: as `find_log_files`, `run_query` and `tables`.
        """
        if self.tables is not None:
            return self.tables(self)
        files = find_log_files(self.inputs, self.dialect)
        return files if self.query is None else (run_query(self.query, files),)

    @property
    def where(self) -> str:
        """The log in messages: its first input, and the number of others."""
        return self.inputs[0] if len(self.inputs) == 1 else f"{self.inputs[0]} and {len(self.inputs) - 1} more"


_LENGTH_AND_MAGIC = 8  # bytes: the footer's length, and "PAR1"


def _longest_row_group(source: Source) -> int:
    """Read the number of rows of the longest row group from the footer of a Parquet file; 0 without row groups."""
    parquet: Any = import_module("pyarrow.parquet")  # only here: importing it takes time, and it has no types
    length = int.from_bytes(read_end(source, _LENGTH_AND_MAGIC)[:4], "little")
    metadata = parquet.read_metadata(BytesIO(read_end(source, length + _LENGTH_AND_MAGIC)))
    return max((metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)), default=0)


_TEXT_BYTES_PER_ROW = 40
_TEXT_BYTES_PER_ENTRY = 12  # of lists: document and click, but no session and no query
_COMPRESSION_RATIO = 5
_SAMPLED_ROWS = 10_000  # of timestamps
_SAMPLED_PAGES = 1000


@dataclass(frozen=True)
class Log:
    """An opened log. Only headers, footers and the first rows are read until an engine runs a plan."""

    request: LogRequest
    sources: tuple[Source, ...]
    click_sources: tuple[Source, ...]  # of the second table of clicks; otherwise empty
    roles: Roles  # the column of each role
    nesting: Nesting | None = None  # where a row is a page
    raw: RawReader | None = None  # the reader that still has to convert the files to rows of impressions
    raw_sources: tuple[Source, ...] = ()  # the raw files behind converted rows

    @property
    def has_sessions(self) -> bool:
        """Whether a session column tells pages apart."""
        return bool(self.roles.session)

    @property
    def guessed(self) -> tuple[tuple[str, str], ...]:
        """(option, column) of roles that were recognised by a likely, not certain name."""
        return (*self.roles.guessed, *(self._clicks.guessed if self.click_sources else ()))

    @property
    def docs_once(self) -> bool:
        """Whether only the first row counts of a document that stands twice on a page."""
        return self.has_sessions and self.request.duplicate_docs == "first"

    @property
    def page_rules(self) -> PageRules:
        """What a page may hold: repeated documents, several documents without queries, cells."""
        return PageRules(self.request.duplicate_docs == "keep", self.roles.no_query, self.roles.cell)

    @cached_property
    def schema(self) -> pl.Schema:
        """Schema of the canonical impressions, without reading rows."""
        raw = self._rows_before_join
        return canonical_impressions(raw, self.roles, raw.collect_schema(), self._rules_of_rows).collect_schema()

    @cached_property
    def rules(self) -> ReadingRules:
        """Reading rules with the unit of numeric timestamps; quarter hours become days if no time of day is known."""
        rules = replace(self._rules_of_rows, time_unit=self._time_unit())
        column = self.roles.timestamp
        if rules.period != "quarter":
            return rules
        rows = self._rows_before_join
        if column is None or rules.day is not None or (schema := rows.collect_schema())[column] == pl.Date:
            return replace(rules, period="day")
        with reading(self.sources):
            roles = replace(self.roles, features=())
            periods = canonical_impressions(rows.head(_SAMPLED_ROWS), roles, schema, rules).select(PERIOD).drop_nulls()
            moments = periods.collect(engine="streaming").to_series()
        return rules if (moments.dt.date().cast(moments.dtype) != moments).any() else replace(rules, period="day")

    @property
    def origins(self) -> tuple[Source, ...]:
        """The files of the user: raw ones where the rows were converted."""
        return self.raw_sources or self.sources

    @property
    def can_be_queried(self) -> bool:
        """Whether its files could be read through `--sql`: rows are not converted, and there is no query yet."""
        return not self.raw_sources and self.request.query is None

    @property
    def with_absolute_paths(self) -> "Log":
        """The same log for processes with another working directory."""
        sources, clicks = (tuple(one.with_absolute_path for one in of) for of in (self.sources, self.click_sources))
        return replace(self, sources=sources, click_sources=clicks)

    @cached_property
    def impressions(self) -> pl.LazyFrame:
        """Canonical impressions, with the codes of invalid rows in `rejected`."""
        raw = self._with_clicks(self._flat_rows)
        return canonical_impressions(raw, self.roles, raw.collect_schema(), self.rules)

    @property
    def flat_schema(self) -> pl.Schema:
        """The columns of the log and their types, where each row is one impression."""
        return self._flat_rows.collect_schema()

    @property
    def is_parquet(self) -> bool:
        """Whether all files are Parquet."""
        return all(source.format == "parquet" for source in self.sources)

    def slices(self, rows: int) -> list[pl.LazyFrame]:
        """Split the canonical impressions by file, and Parquet files into about `rows` impressions each.

        With a second table of clicks, `click` is 0 everywhere.
        """
        flat = self.flat_schema
        columns = [name for name in (*self.roles.columns(), EARLIER_REJECTION) if name in flat]
        unclicked = [pl.lit(0, pl.Int8).alias(JOINED_CLICK)] if self.click_sources else []  # events have the column
        schema = pl.Schema({name: flat[name] for name in columns} | ({JOINED_CLICK: pl.Int8()} if unclicked else {}))
        parts: list[pl.LazyFrame] = []
        for source in self.sources:
            scan, height = self._scan(source), _rows(source)
            step = max(int(rows / self._impressions_per_row(source)), 1)
            is_sliced = source.format == "parquet" and height > step
            for part in [scan.slice(start, step) for start in range(0, height, step)] if is_sliced else [scan]:
                raw = self._flatten(part, source).select(pl.col(name).cast(flat[name]) for name in columns)
                parts.append(canonical_impressions(raw.with_columns(unclicked), self.roles, schema, self.rules))
        return parts

    @property
    def clicked_keys(self) -> pl.LazyFrame:
        """Distinct `session` and `doc` of the second table of clicks."""
        return self._clicked(self.flat_schema).select(page_keys(self.roles))

    def first_rows(self, rows: int, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns, unconverted, of the first rows; each row is one impression."""
        with reading(self.sources):
            return self._flat_rows.select(list(dict.fromkeys(columns))).head(rows).collect(engine="streaming")

    def impressions_with_place(self, source: Source) -> pl.LazyFrame:
        """Scan the canonical impressions of one file with their `FILE`, `ROW` and raw values (`raw_` + column)."""
        rows = scan_with_place(source, self._text_columns)
        if RAW_ROW in rows.collect_schema():  # of converted rows: the place in the raw file
            rows = rows.with_columns(pl.col(RAW_FILE).cast(pl.String).alias(FILE), pl.col(RAW_ROW).alias(ROW))
        raw = self._with_clicks(self._flatten(rows, source))
        canonical = canonical_impressions(raw, self.roles, raw.collect_schema(), self.rules)
        return pl.concat([canonical, raw.select(pl.all().name.prefix("raw_"))], how="horizontal").rename(
            {f"raw_{FILE}": FILE, f"raw_{ROW}": ROW}
        )

    @cached_property
    def digests(self) -> dict[str, str]:
        """Path by digest of each file of impressions; a second table of clicks may serve several days, so is not in."""
        made_of = dict(chain.from_iterable(source.made_of for source in self.sources))
        return made_of or digests(
            self.sources,
            lambda source: (self.raw is not None and self.raw.reads_lines) or has_rows(source),
            Source.digest if self.request.export is None else digest_of_counts,
        )

    @cached_property
    def longest_row_group(self) -> int:
        """Impressions of the longest Parquet row group, the least that a reader holds in memory; 0 without Parquet."""
        parquet = [source for source in self.sources if source.format == "parquet"]
        longest = zip(each_source(_longest_row_group, parquet), parquet, strict=True)
        return max((int(rows * self._impressions_per_row(source)) for rows, source in longest), default=0)

    @property
    def rows_are_known(self) -> bool:
        """Whether `estimated_rows` is exact: for flat Parquet."""
        return self.nesting is None and self.is_parquet

    @cached_property
    def estimated_rows(self) -> int:
        """Number of impressions: of rows in Parquet, else estimated from bytes, times the mean length of lists."""
        return sum(int(_rows(source) * self._impressions_per_row(source)) for source in self.sources)

    @property
    def listed_clicks(self) -> list[pl.LazyFrame]:
        """One row per file for `join_lists`, where pages list the clicked documents; otherwise empty."""
        if self.nesting is None or not self.nesting.lists_clicks:
            return []
        return [self.nesting.clicks(self._scan(source)) for source in self.sources]

    def joined_clicks(
        self, shown: ImpressionLookup | None = None, listed: Sequence[pl.DataFrame] | None = None
    ) -> JoinedClicks | None:
        """Count the clicks of a second table or of lists by outcome; None where each row has its own click.

        Args:
            shown: looks impressions up by the keys of `page_keys`; None reads the files in this process.
            listed: the collected `listed_clicks`; None collects them in this process.
        """
        if lazy_clicks := self.listed_clicks:
            with reading(self.sources):
                files = listed or [clicks.collect(engine="streaming") for clicks in lazy_clicks]
            return join_lists(files, by_rank=self.nesting is not None and self.nesting.clicked_ranks is not None)
        if not self.click_sources:
            return None
        clicks = self._clicks.clicks(self.flat_schema)
        session, doc = (list(self.roles.session), list(self.roles.doc)) if shown is None else ([SESSION], [DOC])
        if shown is not None:
            clicks = clicks.select(*page_keys(self.roles), OUTCOME, STATED_POSITION)
        counts = clicks.group_by(pl.all()).agg(pl.len().cast(pl.Int64).alias(CLICKS))
        with reading([*self.sources, *self.click_sources]):
            clicks_by_key = counts.collect(engine="streaming")
            return join_table(clicks_by_key, session, doc, self._look_up if shown is None else shown)

    def _look_up(self, keys: pl.DataFrame | None, columns: Sequence[str]) -> pl.DataFrame:
        """Read columns of the distinct impressions with any of the keys; without keys, of the first impressions."""
        if keys is None:
            return self._flat_rows.select(columns).head(MOST_COMPARED).collect(engine="streaming")
        rows = self._flat_rows.select(list(dict.fromkeys([*keys.columns, *columns])))
        matches = rows.join(keys.lazy(), on=keys.columns, how="semi")
        return matches.select(columns).unique().collect(engine="streaming")

    def check_unchanged(self) -> None:
        """Raise LogFormatError if a file was changed, replaced or removed since the log was opened."""
        check_unchanged([*self.sources, *self.click_sources])

    @property
    def _rules_of_rows(self) -> ReadingRules:
        """Reading rules of impressions: with a second table of clicks, words for clicks apply to that alone."""
        rules = self.request.rules
        return replace(rules, values=rules.values.without_click_words) if self.click_sources else rules

    def _time_unit(self) -> TimeUnit | None:
        """Detect the unit of numeric timestamps in the first rows; None for other timestamps and unused ones.

        Raises:
            SchemaError: the numbers are times in no known unit.
        """
        column, rules = self.roles.timestamp, self.request.rules
        if column is None or rules.period is None or rules.day is not None or rules.values.timestamp_format:
            return None
        dtype = self.flat_schema[column]
        if not (dtype.is_numeric() or isinstance(dtype, pl.String)):
            return None
        with reading(self.sources):
            first = self._flat_rows.select(whole_numbers(column, dtype)).head(_SAMPLED_ROWS).collect(engine="streaming")
        numbers = first.to_series().drop_nulls()
        unit = time_unit_of(numbers)
        if unit is None and len(numbers):
            raise SchemaError(
                f"{self.request.where}: column {column!r} (--timestamp) holds {numbers[0]}, which is no time "
                f"in any known unit: {', '.join(known.words for known in TIME_UNITS)}. Write it in one of these, or "
                "as 2026-01-05."
            )
        return unit

    @property
    def _rows_before_join(self) -> pl.LazyFrame:
        """The impressions of all files, unconverted; with click 0 where clicks are joined later."""
        clicks = [pl.lit(0, pl.Int8).alias(JOINED_CLICK)] if self.raw is not None or self.click_sources else []
        return self._flat_rows.with_columns(clicks)

    @property
    def _flat_rows(self) -> pl.LazyFrame:
        """The impressions of all files, unconverted, one per row."""
        if self.nesting is None:
            return self._flatten(scan_sources(self.sources, self._text_columns), self.sources[0])
        flat = [self._flatten(self._scan(source), source) for source in self.sources]
        return flat[0] if len(flat) == 1 else pl.concat(flat, how="diagonal_relaxed")

    def _scan(self, source: Source) -> pl.LazyFrame:
        """Scan the rows of one file, with their numbers where these stand for pages."""
        if self.nesting is None or not self.nesting.row_is_page:
            return scan_sources([source], self._text_columns)
        return scan_with_place(source, self._text_columns)

    def _flatten(self, rows: pl.LazyFrame, source: Source) -> pl.LazyFrame:
        """Make one row per impression of rows of one file; of an export, retain the counts."""
        rows = rows if self.request.export is None else only_counts(rows)
        return rows if self.nesting is None else self.nesting.flat(rows, self.sources.index(source))

    def _impressions_per_row(self, source: Source) -> float:
        """Impressions per row of the file: 1 for flat logs, the mean list length for nested ones."""
        if self.nesting is None:
            return 1.0
        if source.format != "parquet":
            return _TEXT_BYTES_PER_ROW / _TEXT_BYTES_PER_ENTRY
        docs = self.nesting.lists[0]
        with reading([source]):
            first = self.nesting.with_lists(scan_sources([source])).select(docs).head(_SAMPLED_PAGES).collect()
        return max(first.explode(docs).height / max(first.height, 1), 1.0)

    @property
    def _text_columns(self) -> Sequence[str]:
        """Columns of numbers, which NDJSON reads as text."""
        roles = self.roles
        named = (roles.position, roles.page, roles.click, roles.weight, roles.impressions)
        return [name for name in named if name is not None and not name.startswith(RESERVED_PREFIX)]

    def _with_clicks(self, raw: pl.LazyFrame) -> pl.LazyFrame:
        """Join the second table of clicks as `JOINED_CLICK`, 0 or 1."""
        if not self.click_sources:
            return raw
        keys = [*self.roles.session, *self.roles.doc]
        clicked = self._clicked(raw.collect_schema()).with_columns(pl.lit(1, pl.Int8).alias(JOINED_CLICK))
        return raw.join(clicked, on=keys, how="left", maintain_order="left").with_columns(
            pl.col(JOINED_CLICK).fill_null(0)
        )

    def _clicked(self, shown: pl.Schema) -> pl.LazyFrame:
        """Distinct (session, doc) of the second table of clicks, with the names and types of the impressions."""
        return self._clicks.clicks(shown).select([*self.roles.session, *self.roles.doc]).unique()

    @cached_property
    def _clicks(self) -> ClickTable:
        request = self.request.clicks or ClicksRequest(())
        return ClickTable(request, self.click_sources, self.roles, self.request.rules, self.request.roles.click)


def _rows(source: Source) -> int:
    """Return the number of rows of a Parquet file, or estimate that of another one from its size."""
    if source.format == "parquet":
        with reading([source]):
            return scan_sources([source]).select(pl.len()).collect().item()
    size = source.bytes * (_COMPRESSION_RATIO if source.compressed else 1)
    return max(size // _TEXT_BYTES_PER_ROW, 1)


def good_rows(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """Filter the valid impressions."""
    return impressions.filter(pl.col(REJECTED) == 0).drop(REJECTED)


_UBI_ID, _UBI_FIELDS = "query_id", {"action_name", "user_query"}
"""Fields of UBI: every document has the first, and a query or an event one of the others."""


def open_log(request: LogRequest) -> Log:
    """Resolve the files of a log and the column of each role, and validate the schema.

    Raises:
        LogFormatError: a file is missing, cannot be read, or has another format than its source.
        SchemaError: a role has no column or several ones (RoleError), or a column of the wrong type.
        UsageError: an option of text files is given for files of another format.
    """
    where = request.where
    sources = request.sources()
    if (raw := request.raw) is not None:
        for source in sources:
            if source.format not in raw.formats:
                raise LogFormatError(f"{source.path}: is {source.format}. {raw.expected}")
        raw = raw.with_attributes(request.roles.features)
        columns = (*raw.columns, *raw.attributes)
        roles = resolve_roles(raw.roles(request.roles), columns, where=where, required=())
        return Log(request, sources, (), roles, raw=raw)
    click_sources = find_log_files(request.clicks.inputs, request.dialect) if request.clicks else ()
    if request.query is None:
        check_dialect_matters([*sources, *click_sources], request.dialect)
    columns = _columns_of(sources)
    click = request.roles.click
    if click_sources and click is not None and click not in (both := columns | _columns_of(click_sources)):
        raise SchemaError(
            f"{where}: there is no column {click!r} (--click), neither here nor in the table of clicks. The columns "
            f"are: {', '.join(both)}."
        )
    joins_clicks = request.events is not None or bool(click_sources)
    requested = replace(request.roles, click=None) if joins_clicks else request.roles
    requested = _with_page(request, requested, [*columns])
    resolve = partial(resolve_roles, columns=[*columns], where=where, only_named=[*filter(columns.get, columns)])
    nested = _is_nested(replace(request, roles=requested), sources[0], resolve)
    try:
        roles = _resolve(request, requested, columns, resolve, nested=nested)
    except RoleError as error:
        lists.check_one_name(sources, error.several)
        raise
    check_headers(sources, roles.columns())
    lists.check_files_agree(sources, roles)
    roles, cell_lists = _with_cells(roles, request, sources) if nested else (roles, ())
    base, schema = request.rules.position_base, schema_of(sources[0])
    entry_roles = roles if request.rules.click_ranks is None else replace(roles, click=None)
    nesting = lists.find_nesting(schema, entry_roles, base, request.lists, cell_lists, where=where) if nested else None
    if nesting is None:
        lists.check_flat(schema, roles, where=where)
    elif (top := request.rules.click_ranks) is not None and (click := roles.click) is not None:
        written = (click,) if request.lists.separator and schema[click] == pl.String else ()
        nesting = replace(nesting, written=(*nesting.written, *written), clicked_ranks=(click, top))
    roles = roles if nesting is None else nesting.roles(roles)
    if request.events is not None:
        request.events.check(sources)
        as_text = tuple(name for name in (roles.position, roles.page, roles.weight) if name is not None)
        extra = tuple(name for name in columns if plain_name(name) in CLIENTS | TIMES and not columns[name])
        reader = EventReader(request.events, roles, tuple(str(source.path) for source in sources), as_text, extra)
        roles = replace(roles, session=reader.page, click=JOINED_CLICK)
        log = Log(request, sources, (), roles, raw=reader)
    else:
        roles = replace(roles, click=JOINED_CLICK) if click_sources else roles
        log = Log(request, sources, click_sources, roles, nesting)
    with reading(sources):
        _ = log.schema
    return log


def _with_cells(roles: Roles, request: LogRequest, sources: Sequence[Source]) -> tuple[Roles, Sequence[str]]:
    """Return the columns of cells and features that are lists on nested pages, after the roles.

    In the roles the last of several cells is the position, if it is a list and no column is the position yet.
    """
    if not (roles.cell or roles.features):
        return roles, ()
    with reading(sources):
        first = scan_sources(sources[:1]).head(_SAMPLED_PAGES).collect()
    in_lists = lists.cells_in_lists(first, roles, request.lists)
    *others, last = roles.cell or ("",)
    is_position = roles.position is None and others and last in in_lists
    return replace(roles, position=last) if is_position else roles, in_lists


def _columns_of(sources: Sequence[Source]) -> dict[str, bool]:
    """Return the columns of all files and the paths of their fields, each with whether it has fields.

    A column with fields plays a role only if an option names it.
    """
    has_fields: dict[str, bool] = {}
    with reading(sources):
        for source in sources:
            for name, dtype in schema_of(source).items():
                has_fields[name] = has_fields.get(name, False) or holds_structs(dtype)
    return has_fields


def _with_page(request: LogRequest, requested: Roles, names: Sequence[str]) -> Roles:
    """Add the column that numbers results pages to the roles, if positions begin anew on each page (--page-size).

    Raises:
        SchemaError: no column has such a name.
    """
    paging = request.rules.paging
    if paging is None or requested.page is not None:
        return requested
    page = next(filter(is_offset_name if paging.size == 1 else is_page_name, names), None)
    if page is None:
        raise SchemaError(
            f"{request.where}: no column looks like the number of the results page (--page-size {paging.size}). Name "
            f"it with --page COLUMN. The columns are: {', '.join(names)}."
        )
    return replace(requested, page=page)


def _resolve(
    request: LogRequest, requested: Roles, columns: dict[str, bool], resolve: partial[Roles], *, nested: bool
) -> Roles:
    """Resolve the column of each role.

    Raises:
        SchemaError: a role has no column or several ones (RoleError), or a column plays two roles or holds structs.
    """
    where = request.where
    summed = request.roles.impressions is not None
    if summed and nested:
        raise SchemaError(
            f"{where}: the documents are in lists. A row of a table of sums (--impressions) is one query, document and "
            "position."
        )
    joins_clicks = request.clicks is not None or request.events is not None
    clicks_known = joins_clicks or requested.clicked is not None or request.lists.click_suffix is not None
    required = {DOC} if nested else {DOC, POSITION}
    required |= {SESSION} if joins_clicks or (request.needs_session and not nested) else set()
    required |= set() if clicks_known else {CLICK}
    required |= set() if requested.no_query else {QUERY}
    left_out = {CLICK} if clicks_known else {SESSION} if summed else set[str]()
    left_out |= {QUERY} if requested.no_query else set()
    left_out |= {SESSION} if requested.no_session else set()
    if requested.no_session and SESSION in required:
        raise SchemaError(f"{where}: --session none: pages are needed. Name the columns that tell them apart.")
    looked_for = [role for role in KEY_ROLES if role not in left_out]
    try:
        roles = resolve(requested, required=required, looked_for=looked_for)
    except RoleError as error:
        if _UBI_ID in columns and not _UBI_FIELDS.isdisjoint(columns):
            raise RoleError(*error.lines, "If these are OpenSearch UBI documents, use --input-format ubi.") from error
        raise
    if roles.click is not None and roles.click in {roles.position, *roles.ids()}:
        raise SchemaError(
            f"{where}: column {roles.click!r} (--click) plays another role already. Name the column that says "
            "whether a result was clicked: without it, nothing can be estimated."
        )
    played = {*roles.session, *roles.ids(), roles.click}
    for name in filter(played.__contains__, roles.cell):
        raise SchemaError(
            f"{where}: column {name!r} (--cell) plays another role already. Name what changes how a page is looked at, "
            "such as a row, a list or an advert above."
        )
    if summed and roles.impressions in {roles.position, roles.click, *roles.ids()}:
        raise SchemaError(
            f"{where}: column {roles.impressions!r} (--impressions) plays another role already. Name the column that "
            "says how many impressions a row adds up."
        )
    for role, names in ((SESSION, roles.session), (QUERY, roles.query), (DOC, roles.doc)):
        for name in (name for name in names if columns.get(name)):
            fields = [path for path in columns if path.startswith(f"{name}.")]
            raise SchemaError(
                f"{where}: column {name!r} ({FLAGS[role]}) holds structs. Name the field that is the id: "
                f"{', '.join(fields)}."
            )
    return roles


def _is_nested(request: LogRequest, source: Source, resolve: partial[Roles]) -> bool:
    """Return True if a row is a page: its documents are in a list.

    Raises:
        SchemaError: an option requires lists, and the documents are in none.
    """
    if request.form == "flat" or request.events is not None:
        return False
    with reading([source]):
        schema = schema_of(source)
    written = request.lists.separator is not None
    try:
        roles = resolve(request.roles, required=(DOC,), looked_for=(DOC,))
    except RoleError:  # to be reported with what else is missing
        return request.form == "nested" or written or any(map(is_list, schema.values()))
    types = [schema[name] for name in roles.doc if name in schema]
    nested = any(is_list(dtype) or (written and dtype == pl.String) for dtype in types)
    held = ", ".join(f"{name} ({schema.get(name)})" for name in roles.doc)
    if written and not nested:
        raise SchemaError(f"{source.path}: --list-separator reads text as lists, and documents are no text: {held}.")
    if request.form == "nested" and not nested:
        raise SchemaError(
            f"{source.path}: --input-format nested, but the documents are in no list: {held}. Name the column that "
            "holds the list with --doc COLUMN, or leave out --input-format."
        )
    if not nested and (request.roles.clicked or request.lists.click_suffix):
        option = "--clicked" if request.roles.clicked else "--click-suffix"
        raise SchemaError(
            f"{source.path}: {option} is about pages with their documents in a list, and the documents are in none: "
            f"{held}. If text is a list, name its separator with --list-separator."
        )
    return nested
