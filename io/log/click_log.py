"""A log, opened: what is known of it beforehand, the roles of its columns, its rows as impressions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib import import_module
from io import BytesIO
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
from posbias.io.log.clicks import (
    AT,
    CLICKS,
    COMPARED,
    MADE_CLICK,
    OUTCOME,
    ClicksRequest,
    ClickTable,
    JoinedClicks,
    Shown,
    join_lists,
    join_table,
)
from posbias.io.log.events import OF_FILE, OF_ROW, EventReader, EventsRequest, RawReader
from posbias.io.log.exports import Export, digest_of_counts, only_counts
from posbias.io.log.lists import (
    NO_LIST_RULES,
    OURS,
    ListRules,
    Nesting,
    cells_in_lists,
    check_files_agree,
    check_flat,
    check_renamed,
    find_nesting,
    holds_lists,
)
from posbias.io.log.scan import (
    FILE,
    ROW,
    are_structs,
    check_headers,
    has_rows,
    reading,
    scan_sources,
    scan_with_place,
    schema_of,
)
from posbias.io.log.sources import PLAIN, Dialect, Source, check_unchanged, digests, each_source, read_end
from posbias.io.log.sql import Query, result_of
from posbias.io.log.text import check_dialect_matters, find_log_files


@dataclass(frozen=True)
class LogRequest:
    """A log as the command line describes it."""

    inputs: tuple[str, ...]  # files, globs and directories
    roles: Roles  # the columns that were named
    rules: ReadingRules  # how values are read
    clicks: ClicksRequest | None = None  # a second table that holds the clicks, where impressions and clicks are apart
    needs_session: bool = False  # whether the work cannot be done without the session column
    # what a row is: an impression (flat), a page (nested), or one of these, by the document column (auto)
    form: str = "auto"
    events: EventsRequest | None = None  # which rows are impressions and which are clicks, where one table holds both
    raw: RawReader | None = None  # what makes the log, where the files are the raw ones of a known source
    max_bad_rows: float = 1.0  # share of the rows that may be left out because they break the contract
    dialect: Dialect = PLAIN  # how files of text are written, those of the clicks as well
    duplicate_docs: DuplicateDocs = "error"  # what becomes of a document that stands twice on a page
    lists: ListRules = NO_LIST_RULES  # how lists are read, where a row is a page
    query: Query | None = None  # what makes the rows of the log, where the files hold others
    # makes files of its rows, if they are in tables of a catalog
    tables: Callable[["LogRequest"], tuple[Source, ...]] | None = None
    finds_times: bool = False  # whether a column of times is looked for, as none was named
    export: Export | None = None  # what counts of a warehouse say beside their rows, where the files are such

    def sources(self) -> tuple[Source, ...]:
        """Its files, or those with the rows of the query or of tables.

        Raises:
            PosbiasError: as `find_log_files`, `result_of` and `tables`.
        """
        if self.tables is not None:
            return self.tables(self)
        files = find_log_files(self.inputs, self.dialect)
        return files if self.query is None else (result_of(self.query, files),)

    @property
    def where(self) -> str:
        """The name of the log in messages."""
        return self.inputs[0] if len(self.inputs) == 1 else f"{self.inputs[0]} and {len(self.inputs) - 1} more"


_LENGTH_AND_MAGIC = 8  # bytes: the footer's length, and "PAR1"


def _longest_row_group(source: Source) -> int:
    """How many rows the longest row group of a Parquet file has, by its footer; 0 in an empty file."""
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
    """An opened log. Nothing is read but headers, footers and some timestamps until an engine runs a plan."""

    request: LogRequest
    sources: tuple[Source, ...]  # its files, and those of the clicks if they are apart
    click_sources: tuple[Source, ...]
    roles: Roles  # the column of each role
    nesting: Nesting | None = None  # how rows hold pages, where a row is not one impression
    raw: RawReader | None = None  # what makes a log of the files, where they hold no rows of impressions yet
    raw_sources: tuple[Source, ...] = ()  # the files that its rows were made of, where they were made

    @property
    def has_sessions(self) -> bool:
        """Whether pages can be distinguished."""
        return bool(self.roles.session)

    @property
    def guessed(self) -> tuple[tuple[str, str], ...]:
        """Options with their columns: what was taken from names that are likely, but not certain."""
        return (*self.roles.guessed, *(self._clicks.guessed if self.click_sources else ()))

    @property
    def docs_once(self) -> bool:
        """Whether of a document that stands twice on a page only the first row counts."""
        return self.has_sessions and self.request.duplicate_docs == "first"

    @property
    def page_rules(self) -> PageRules:
        """The rules of pages."""
        return PageRules(self.request.duplicate_docs == "keep", self.roles.no_query, self.roles.cell)

    @cached_property
    def schema(self) -> pl.Schema:
        """The columns of canonical impressions and their types. No row is read for that."""
        raw = self._unclicked
        return canonical_impressions(raw, self.roles, raw.collect_schema(), self._rules_of_rows).collect_schema()

    @cached_property
    def rules(self) -> ReadingRules:
        """How values are read, with the unit of timestamps that are numbers; days, where no time of day is known."""
        rules = replace(self._rules_of_rows, time_unit=self._time_unit())
        column = self.roles.timestamp
        if rules.period != "quarter":
            return rules
        shown = self._unclicked
        if column is None or rules.day is not None or shown.collect_schema()[column] == pl.Date:
            return replace(rules, period="day")
        with reading(self.sources):
            roles, first = replace(self.roles, features=()), shown.head(_SAMPLED_ROWS)
            periods = canonical_impressions(first, roles, shown.collect_schema(), rules).select(PERIOD).drop_nulls()
            moments = periods.collect(engine="streaming").to_series()
        return rules if (moments.dt.date().cast(moments.dtype) != moments).any() else replace(rules, period="day")

    @property
    def origins(self) -> tuple[Source, ...]:
        """The files that its rows come from."""
        return self.raw_sources or self.sources

    @property
    def from_anywhere(self) -> "Log":
        """The same log for processes that work in another directory: its files under their full names."""
        sources, clicks = ([source.with_absolute_path for source in of] for of in (self.sources, self.click_sources))
        return replace(self, sources=tuple(sources), click_sources=tuple(clicks))

    @cached_property
    def impressions(self) -> pl.LazyFrame:
        """Canonical impressions; those that break the row contract are marked in `rejected`."""
        raw = self._with_clicks(self._shown)
        return canonical_impressions(raw, self.roles, raw.collect_schema(), self.rules)

    @property
    def flat_schema(self) -> pl.Schema:
        """The columns of its rows, each an impression that is not read yet."""
        return self._shown.collect_schema()

    @property
    def is_parquet(self) -> bool:
        """Whether all files are Parquet."""
        return all(source.format == "parquet" for source in self.sources)

    def slices(self, rows: int) -> list[pl.LazyFrame]:
        """The impressions file by file, Parquet files in slices of so many rows.

        Where clicks are apart, `click` is 0 in all of them.
        """
        whole = self._shown.collect_schema()
        columns = [name for name in (*self.roles.columns(), EARLIER_REJECTION) if name in whole]
        unclicked = [pl.lit(0, pl.Int8).alias(MADE_CLICK)] if self.click_sources else []  # of events, it is there
        schema = pl.Schema({name: whole[name] for name in columns} | ({MADE_CLICK: pl.Int8()} if unclicked else {}))
        parts: list[pl.LazyFrame] = []
        for source in self.sources:
            scanned, height = self._scanned(source), _rows(source)
            step = max(int(rows / self._impressions_per_row(source)), 1)
            is_sliced = source.format == "parquet" and height > step
            slices = [scanned.slice(at, step) for at in range(0, height, step)] if is_sliced else [scanned]
            for slice_ in slices:
                raw = self._flat(slice_, source).select(pl.col(name).cast(whole[name]) for name in columns)
                parts.append(canonical_impressions(raw.with_columns(unclicked), self.roles, schema, self.rules))
        return parts

    @property
    def clicked_keys(self) -> pl.LazyFrame:
        """`session` and `doc` of the clicks, each once, where clicks are apart."""
        return self._clicked(self._shown.collect_schema()).select(page_keys(self.roles))

    def first_rows(self, rows: int, columns: Sequence[str]) -> pl.DataFrame:
        """Some columns of the first rows, as they stand there, a row for each impression."""
        with reading(self.sources):
            return self._shown.select(list(dict.fromkeys(columns))).head(rows).collect(engine="streaming")

    def impressions_with_place(self, source: Source) -> pl.LazyFrame:
        """The impressions of one file, raw values and place beside them, to show the faulty ones."""
        rows = scan_with_place(source, self._as_text)
        if OF_ROW in rows.collect_schema():  # the place of those that rows were made of
            rows = rows.with_columns(pl.col(OF_FILE).cast(pl.String).alias(FILE), pl.col(OF_ROW).alias(ROW))
        raw = self._with_clicks(self._flat(rows, source))
        canonical = canonical_impressions(raw, self.roles, raw.collect_schema(), self.rules)
        return pl.concat([canonical, raw.select(pl.all().name.prefix("raw_"))], how="horizontal").rename(
            {f"raw_{FILE}": FILE, f"raw_{ROW}": ROW}
        )

    @cached_property
    def digests(self) -> dict[str, str]:
        """Path by digest of each source of impressions. A table of clicks may serve several days."""
        made_of = dict(one for source in self.sources for one in source.made_of)
        return made_of or digests(
            self.sources,
            lambda source: (self.raw is not None and self.raw.of_lines) or has_rows(source),
            Source.digest if self.request.export is None else digest_of_counts,
        )

    @cached_property
    def longest_row_group(self) -> int:
        """Impressions of the longest row group of its Parquet files, which a reader decodes whole."""
        parquet = [source for source in self.sources if source.format == "parquet"]
        longest = zip(each_source(_longest_row_group, parquet), parquet, strict=True)
        return max((int(rows * self._impressions_per_row(source)) for rows, source in longest), default=0)

    @property
    def rows_are_known(self) -> bool:
        """Whether the estimate of rows is exact: Parquet says how many it has."""
        return self.nesting is None and self.is_parquet

    @cached_property
    def estimated_rows(self) -> int:
        """Rows: exact for Parquet, estimated from the size otherwise."""
        return sum(int(_rows(source) * self._impressions_per_row(source)) for source in self.sources)

    @property
    def listed_clicks(self) -> list[pl.LazyFrame]:
        """The fates of the clicks of each file, one row each, where pages list the clicked documents."""
        if self.nesting is None or self.nesting.clicked is None:
            return []
        return [self.nesting.clicks(self._scanned(source)) for source in self.sources]

    def joined_clicks(
        self, shown: Shown | None = None, listed: Sequence[pl.DataFrame] | None = None
    ) -> JoinedClicks | None:
        """The fates of the clicks; None where each row says whether it was clicked.

        Args:
            shown: the impressions by the keys of `page_keys`, where others hold them than this process.
            listed: the `listed_clicks`, where others hold them.
        """
        if self.listed_clicks:
            with reading(self.sources):
                frames = (
                    [frame.collect(engine="streaming") for frame in self.listed_clicks] if listed is None else listed
                )
            return join_lists(frames)
        if not self.click_sources:
            return None
        clicks = self._clicks.clicks(self._shown.collect_schema())
        session, doc = (list(self.roles.session), list(self.roles.doc)) if shown is None else ([SESSION], [DOC])
        if shown is not None:
            clicks = clicks.select(*page_keys(self.roles), OUTCOME, AT)
        counted = clicks.group_by(pl.all()).agg(pl.len().cast(pl.Int64).alias(CLICKS))
        with reading([*self.sources, *self.click_sources]):
            clicks_by_key = counted.collect(engine="streaming")
            return join_table(clicks_by_key, session, doc, self._among if shown is None else shown)

    def _among(self, some: pl.DataFrame | None, columns: Sequence[str]) -> pl.DataFrame:
        """Columns of the impressions: each row once of those whose keys are among some, or of the first ones."""
        if some is None:
            return self._shown.select(columns).head(COMPARED).collect(engine="streaming")
        rows = self._shown.select(list(dict.fromkeys([*some.columns, *columns])))
        matches = rows.join(some.lazy(), on=some.columns, how="semi")
        return matches.select(columns).unique().collect(engine="streaming")

    def check_unchanged(self) -> None:
        """Raise LogFormatError unless its files are still those that were opened.

        Raises:
            LogFormatError: one was changed, replaced or removed meanwhile.
        """
        check_unchanged([*self.sources, *self.click_sources])

    @property
    def _rules_of_rows(self) -> ReadingRules:
        """How impressions are read: words of a click column are those of the table of clicks, where there is one."""
        rules = self.request.rules
        return replace(rules, values=rules.values.without_click_words) if self.click_sources else rules

    def _time_unit(self) -> TimeUnit | None:
        """The unit of timestamps that are numbers, by the first rows; None where they are none, or are not used.

        Raises:
            SchemaError: they are numbers of no known unit.
        """
        column, rules = self.roles.timestamp, self.request.rules
        if column is None or rules.period is None or rules.day is not None or rules.values.timestamp_format:
            return None
        shown = self._shown
        dtype = shown.collect_schema()[column]
        if not (dtype.is_numeric() or isinstance(dtype, pl.String)):
            return None
        with reading(self.sources):
            first = shown.select(whole_numbers(column, dtype)).head(_SAMPLED_ROWS).collect(engine="streaming")
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
    def _unclicked(self) -> pl.LazyFrame:
        """The rows of all files, none of them clicked where clicks are joined later."""
        clicks = [pl.lit(0, pl.Int8).alias(MADE_CLICK)] if self.raw is not None or self.click_sources else []
        return self._shown.with_columns(clicks)

    @property
    def _shown(self) -> pl.LazyFrame:
        """The rows of all files, one per impression."""
        if self.nesting is None:
            return self._flat(scan_sources(self.sources, self._as_text), self.sources[0])
        flat = [self._flat(self._scanned(source), source) for source in self.sources]
        return flat[0] if len(flat) == 1 else pl.concat(flat, how="diagonal_relaxed")

    def _scanned(self, source: Source) -> pl.LazyFrame:
        """Rows of one file as they are in it, with their numbers where those are needed."""
        if self.nesting is None or not self.nesting.row_is_page:
            return scan_sources([source], self._as_text)
        return scan_with_place(source, self._as_text)

    def _flat(self, rows: pl.LazyFrame, source: Source) -> pl.LazyFrame:
        """Rows of one file, one per impression."""
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
    def _as_text(self) -> Sequence[str]:
        roles = self.roles
        named = (roles.position, roles.page, roles.click, roles.weight, roles.impressions)
        return [name for name in named if name is not None and not name.startswith(OURS)]

    def _with_clicks(self, raw: pl.LazyFrame) -> pl.LazyFrame:
        if not self.click_sources:
            return raw
        keys = [*self.roles.session, *self.roles.doc]
        clicked = self._clicked(raw.collect_schema()).with_columns(pl.lit(1, pl.Int8).alias(MADE_CLICK))
        return raw.join(clicked, on=keys, how="left", maintain_order="left").with_columns(
            pl.col(MADE_CLICK).fill_null(0)
        )

    def _clicked(self, shown: pl.Schema) -> pl.LazyFrame:
        """The clicked (session, doc), each once, under the names and types of the impressions' table."""
        return self._clicks.clicks(shown).select([*self.roles.session, *self.roles.doc]).unique()

    @cached_property
    def _clicks(self) -> ClickTable:
        request = self.request.clicks or ClicksRequest(())
        return ClickTable(request, self.click_sources, self.roles, self.request.rules, self.request.roles.click)


def _rows(source: Source) -> int:
    if source.format == "parquet":
        with reading([source]):
            return scan_sources([source]).select(pl.len()).collect().item()
    size = source.bytes * (_COMPRESSION_RATIO if source.compressed else 1)
    return max(size // _TEXT_BYTES_PER_ROW, 1)


def good_rows(impressions: pl.LazyFrame) -> pl.LazyFrame:
    """The impressions that keep the row contract."""
    return impressions.filter(pl.col(REJECTED) == 0).drop(REJECTED)


_ID_OF_UBI, _ONE_OF_UBI = "query_id", {"action_name", "user_query"}


def open_log(request: LogRequest) -> Log:
    """Find the files of a log and the column of each role.

    Raises:
        LogFormatError: a file is missing or cannot be read, or is not of the format of its source.
        SchemaError: a role has no column, or more than one, or rows are not what they should be.
    """
    where = request.where
    sources = request.sources()
    if (raw := request.raw) is not None:
        for source in sources:
            if source.format not in raw.formats:
                raise LogFormatError(f"{source.path}: is {source.format}. {raw.expected}")
        raw = raw.keeping(request.roles.features)
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
    apart = request.events is not None or bool(click_sources)
    requested = replace(request.roles, click=None) if apart else request.roles
    requested = _with_page(request, requested, [*columns])
    resolve = partial(resolve_roles, columns=[*columns], where=where, only_named=[*filter(columns.get, columns)])
    nested = _is_nested(replace(request, roles=requested), sources[0], resolve)
    try:
        roles = _find_roles(request, requested, columns, resolve, nested=nested)
    except RoleError as error:
        check_renamed(sources, error.several)
        raise
    check_headers(sources, roles.columns())
    check_files_agree(sources, roles)
    roles, of_cells = _with_cells(roles, request, sources) if nested else (roles, ())
    base = request.rules.position_base
    of_entries = roles if request.rules.click_ranks is None else replace(roles, click=None)
    schema = schema_of(sources[0])
    nesting = find_nesting(schema, of_entries, base, request.lists, of_cells, where=where) if nested else None
    if nesting is None:
        check_flat(schema, roles, where=where)
    elif request.rules.click_ranks is not None and request.lists.separator and schema[roles.click or ""] == pl.String:
        nesting = replace(nesting, written=(*nesting.written, roles.click or ""))
    roles = roles if nesting is None else nesting.roles(roles)
    if request.events is not None:
        request.events.check(sources)
        as_text = tuple(name for name in (roles.position, roles.page, roles.weight) if name is not None)
        kept = tuple(name for name in columns if plain_name(name) in CLIENTS | TIMES and not columns[name])
        reader = EventReader(request.events, roles, tuple(str(source.path) for source in sources), as_text, kept)
        roles = replace(roles, session=reader.page, click=MADE_CLICK)
        log = Log(request, sources, (), roles, raw=reader)
    else:
        roles = replace(roles, click=MADE_CLICK) if click_sources else roles
        log = Log(request, sources, click_sources, roles, nesting)
    with reading(sources):
        _ = log.schema
    return log


def _with_cells(roles: Roles, request: LogRequest, sources: Sequence[Source]) -> tuple[Roles, Sequence[str]]:
    """The columns of roles on nested pages, the position among them where lists of cells say it, and such lists."""
    if not (roles.cell or roles.features):
        return roles, ()
    with reading(sources):
        first = scan_sources(sources[:1]).head(_SAMPLED_PAGES).collect()
    in_lists = cells_in_lists(first, roles, request.lists)
    *others, last = roles.cell or ("",)
    says_all = roles.position is None and others and last in in_lists
    return replace(roles, position=last) if says_all else roles, in_lists


def _columns_of(sources: Sequence[Source]) -> dict[str, bool]:
    """The columns of some files, with the paths of fields, and whether each has fields.

    One with fields plays a role only if it is named.
    """
    has_fields: dict[str, bool] = {}
    with reading(sources):
        for source in sources:
            for name, dtype in schema_of(source).items():
                has_fields[name] = has_fields.get(name, False) or are_structs(dtype)
    return has_fields


def _with_page(request: LogRequest, requested: Roles, names: Sequence[str]) -> Roles:
    """The columns that were named, and the one that numbers results pages, where positions begin anew on each.

    Raises:
        SchemaError: no column is called so.
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


def _find_roles(
    request: LogRequest, requested: Roles, columns: dict[str, bool], resolve: partial[Roles], *, nested: bool
) -> Roles:
    """The columns of the roles that are needed, and of others.

    Raises:
        SchemaError: a role has no column, or more than one, or rows are not what they should be.
    """
    where = request.where
    summed = request.roles.impressions is not None
    if summed and nested:
        raise SchemaError(
            f"{where}: the documents are in lists. A row of a table of sums (--impressions) is one query, document and "
            "position."
        )
    apart = request.clicks is not None or request.events is not None
    clicks_known = apart or requested.clicked is not None or request.lists.click_suffix is not None
    required = {DOC} if nested else {DOC, POSITION}
    required |= {SESSION} if apart or (request.needs_session and not nested) else set()
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
        if _ID_OF_UBI in columns and not _ONE_OF_UBI.isdisjoint(columns):
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
    """Whether a row is a page, because it says so or because its documents are in a list.

    Raises:
        SchemaError: it should be, and is not.
    """
    if request.form == "flat" or request.events is not None:
        return False
    with reading([source]):
        schema = schema_of(source)
    written = request.lists.separator is not None
    try:
        roles = resolve(request.roles, required=(DOC,), looked_for=(DOC,))
    except RoleError:  # to be reported with what else is missing
        return request.form == "nested" or written or any(map(holds_lists, schema.values()))
    types = [schema[name] for name in roles.doc if name in schema]
    nested = any(holds_lists(dtype) or (written and dtype == pl.String) for dtype in types)
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
