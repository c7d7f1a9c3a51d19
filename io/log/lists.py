"""Documents and clicks in lists, nested or as text; words for clicks and formats of times; files that disagree."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import polars as pl

from posbias.core.errors import SchemaError, UsageError
from posbias.core.log.impressions import EARLIER_REJECTION, RowRejection, TextValues
from posbias.core.schema import CLICK, FLAGS, POSITION, QUERY, SESSION, Roles
from posbias.io.log.clicks import (
    BOTH_CLICKED,
    CLICKED_DOCS,
    ENTRIES,
    LISTED_IDS,
    LONGEST_PAGE,
    LOST_ID,
    NOT_LISTED,
    SEVERAL_CLICKS,
    WITH_ID,
)
from posbias.io.log.scan import ROW, reading, scan_sources, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.sql import sql_coalesced, sql_of_structs, sql_unnested


@dataclass(frozen=True)
class Finding:
    """A property of a log that was recognised in its data."""

    text: str  # a sentence, without its first capital and its full stop
    options: tuple[str, ...] = ()  # words of the command line that declare it; empty for a default
    certain: bool = True  # whether it follows from the data; False for a guess


JSON, SPACE, TAB = "json", "space", "tab"
"""Names of separators."""

_NAMES = f"{JSON}, {SPACE} or {TAB}"

_ENTRY = r'(?:"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)'
_FLAT_LIST = rf"^\s*\[\s*(?:{_ENTRY}\s*(?:,\s*{_ENTRY}\s*)*)?\]\s*$"
_PY_ENTRY = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|True|False|None|nan)"""
_PY_LIST = rf"(?s)^\s*[\[(]\s*(?:{_PY_ENTRY}[\s,]+)*(?:{_PY_ENTRY}\s*)?[\])]\s*$"
"""Printed lists and tuples of Python, and arrays of NumPy, without commas; not `[1 2 ... 9]`, which lacks entries."""


@dataclass(frozen=True)
class ListRules:
    """How to parse lists in text, and clicks behind ids."""

    separator: str | None = None  # between entries of a list in text, or `JSON` or `SPACE`; None: no text is a list
    click_suffix: str | None = None  # between an id and its click, "-" in `N1-0 N2-1`; None: ids have no clicks
    order_is_position: bool = False  # whether the order of ids with clicks is the displayed one

    @classmethod
    def parse(cls, separator: str | None, click_suffix: str | None, *, order_is_position: bool) -> Self:
        """Parse --list-separator and --click-suffix.

        Raises:
            UsageError: one contains a letter or digit.
        """
        marks = {
            f"--list-separator {separator}": ("" if separator in {JSON, SPACE, TAB} else separator, f";, or {_NAMES}"),
            f"--click-suffix {click_suffix}": (click_suffix, "-"),
        }
        for option, (mark, usual) in marks.items():
            if any(map(str.isalnum, mark or "")):
                raise UsageError(f"{option}: letters and digits occur in ids. Give a mark such as {usual}.")
        return cls("\t" if separator == TAB else separator, click_suffix, order_is_position)

    def as_list(self, column: str) -> pl.Expr:
        """Split a text column into lists of text, null if it is no list; empty entries are null."""
        text = pl.col(column)
        if self.separator == JSON:
            json_lists = pl.when(text.str.contains(_FLAT_LIST)).then(text).str.json_decode(pl.List(pl.String))
            entry = pl.when(~pl.element().is_in(["None", "nan"])).then(pl.element())
            entry = entry.str.replace(r"^(-?[0-9]+\.)$", "${1}0")  # of NumPy: 1.
            entry = entry.str.replace("(?s)^['\"](.*)['\"]$", "$1").str.replace_all(r"\\(['\"\\])", "$1")
            printed = pl.when(text.str.contains(_PY_LIST)).then(text).str.extract_all(_PY_ENTRY).list.eval(entry)
            return json_lists.fill_null(printed)
        if self.separator is None or self.separator == SPACE:
            return text.str.extract_all(r"\S+")
        entry = pl.element().str.strip_chars()
        entries = text.str.split(self.separator).list.eval(pl.when(entry != "").then(entry))
        return pl.when(text.str.strip_chars() == "").then(pl.lit([], pl.List(pl.String))).otherwise(entries)

    def as_clicked(self, column: str) -> pl.Expr:
        """Split a text column of clicked ids or ranks; text that is no list is one entry, so not lost unseen."""
        text = pl.col(column).str.strip_chars()
        one = pl.when(~text.str.to_lowercase().is_in(["", "null", "none", "nan"])).then(pl.concat_list(text))
        return pl.coalesce(self.as_list(column), one)


DEFAULT_LIST_RULES = ListRules()
"""No text is a list, and ids have no clicks behind them."""


_PAIRS = (
    "yes/no, y/n, on/off, true/false, ja/nein, ja/nee, ja/nej, j/n, oui/non, o/n, si/no, sí/no, sì/no, s/n, sim/não, "
    "sim/nao, tak/nie, да/нет, vrai/faux, wahr/falsch, clicked/not clicked"
)
_WORDS = [(true, false) for true, _, false in (pair.partition("/") for pair in _PAIRS.split(", "))]
_DEFAULT_WORDS = {"0", "1", "0.0", "1.0", "true", "t", "false", "f"}
_FRACTION = "%.f"  # of a second, which may be left out
_CLOCKS = ("", " %H:%M", " %H:%M:%S", f" %H:%M:%S{_FRACTION}", " %I:%M %p", " %I:%M:%S %p")
_DAYS = (
    "%d.%m.%Y",
    *("%d/%m/%Y", "%m/%d/%Y"),
    *("%d-%m-%Y", "%m-%d-%Y"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
    *("%Y/%m/%d", "%Y.%m.%d"),
    *("%d %b %Y", "%b %d %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_ZONED = (
    "%a, %d %b %Y %H:%M:%S %z",
    "%a, %d %b %Y %H:%M:%S GMT",
    "%d/%b/%Y:%H:%M:%S %z",
    "%a %b %d %H:%M:%S %Y",
    "%Y%m%dT%H%M%SZ",
)
_ISO_DAY = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:|$)"
_EXAMINED_TIMES = 100  # distinct values
_DIGITS = re.compile(r"\d+")
_FORMATS = tuple(day + clock for day in _DAYS for clock in _CLOCKS) + _ZONED


def find_click_words(values: Iterable[str | None]) -> Finding | None:
    """Recognise the words for yes and no of a click column, in a common language; None if all are read by default."""
    words = {value.strip().lower() for value in values if value is not None and value.strip()} - _DEFAULT_WORDS
    if not words:
        return None
    # One word alone can be the yes of one language and the no of another.
    is_ambiguous = any(yes in words for yes, _ in _WORDS) and any(no in words for _, no in _WORDS)
    for true, false in _WORDS:
        if words == {true, false} or (words < {true, false} and not is_ambiguous):
            held = [(flag, word) for flag, word in (("--true", true), ("--false", false)) if word in words]
            in_words = " and ".join(repr(word) for _, word in held)
            return Finding(f"clicks are written {in_words}", tuple(chain(*held)))
    return None


def find_timestamp_format(values: Iterable[str | None]) -> Finding | None:
    """Recognise the common format of all times; None if there is none, or they are read by default.

    Where day and month cannot be told apart, `certain` is False, the text names both formats and the option the first.
    """
    texts = [value.strip() for value in values if value is not None and value.strip()]
    if not texts or any(len(_DIGITS.findall(text)) <= 1 for text in texts):  # a year and a day at least
        return None
    formats = [form for form in _FORMATS if _fits(form, texts)]
    formats = [form for form in formats if form == (whole := form.removesuffix(_FRACTION)) or whole not in formats]
    if not formats:
        return None
    option = ("--timestamp-format", formats[0])
    if len(formats) == 1:
        return Finding(f"times such as {texts[0]!r} are written {formats[0]}", option)
    return Finding(
        f"times such as {texts[0]!r} may be written {' or '.join(formats)}: no day is above 12, so that day and month "
        "cannot be distinguished",
        option,
        certain=False,
    )


def holds_times(column: pl.Series) -> bool:
    """Return True for dates and times, and for texts that are all dates or times."""
    if column.dtype.is_temporal():
        return True
    if column.dtype != pl.String:
        return False
    texts = column.drop_nulls().unique(maintain_order=True).head(_EXAMINED_TIMES).str.strip_chars()
    is_iso = texts.str.contains(_ISO_DAY).all()
    return bool(len(texts)) and (is_iso or find_timestamp_format(texts) is not None)


def _fits(form: str, texts: Sequence[str]) -> bool:
    """Return True if all texts are times of 1980 to 2099 in a format."""
    values = TextValues(timestamp_format=form)
    try:
        times = pl.DataFrame({"text": texts}).select(values.time(pl.col("text"))).to_series()
    except pl.exceptions.PolarsError:
        return False
    return not times.null_count() and bool(times.dt.year().is_between(1980, 2099).all())


_PAGE = "posbias_page"
_PLACE = "posbias_place"
_CLICK = "posbias_click"
_LISTED = "posbias_listed"
_MOST_ROWS = 1 << 40  # of one file, so that page numbers of files differ


@dataclass(frozen=True)
class Nesting:
    """The columns of a log whose rows are pages."""

    lists: tuple[str, ...]  # columns of lists with one entry per document; the documents first
    row_is_page: bool  # whether each row is a page of its own, as there is no session column
    base: int | None  # the topmost position, where the index in the list is the position; None: a column has positions
    rules: ListRules = DEFAULT_LIST_RULES
    written: tuple[str, ...] = ()  # columns of lists in text
    clicked: str | None = None  # the column of lists of clicked documents, where no column has a click per document
    clicked_ranks: tuple[str, int] | None = None  # the column of clicked ranks, and the number of the topmost one

    def roles(self, requested: Roles) -> Roles:
        """Return the roles of the flat rows, with the columns that `flat` adds for page, position and click."""
        adds_click = self.clicked is not None or self.rules.click_suffix is not None
        return replace(
            requested,
            session=(_PAGE,) if self.row_is_page else requested.session,
            position=requested.position if self.base is None else _PLACE,
            click=_CLICK if adds_click else requested.click,
            clicked=None,
        )

    def flat(self, rows: pl.LazyFrame, file: int) -> pl.LazyFrame:
        """Make one row per entry of the lists, and of an invalid page one row, with its code in `EARLIER_REJECTION`.

        Args:
            rows: rows of one file, with their number in `ROW` where each is a page of its own.
            file: number of the file from 0; page ids are row numbers + file * 2**40.
        """
        rows = self.with_lists(rows)
        lengths = [pl.col(name).list.len() for name in self.lists]
        longest = pl.max_horizontal(length.fill_null(0) for length in lengths)
        fault = (
            pl.when(longest == 0, lengths[0] == 0)
            .then(int(RowRejection.EMPTY_PAGE))
            .when(pl.any_horizontal(length.is_null() for length in lengths))
            .then(int(RowRejection.LIST_MISSING))
            .when(pl.any_horizontal(length != longest for length in lengths))
            .then(int(RowRejection.LISTS_UNEQUAL))
            .otherwise(0)
        )
        marked = rows.with_columns(fault.cast(pl.UInt8).alias(EARLIER_REJECTION))
        exploded = list(self.lists)
        if self.base is not None:
            exploded.append(_PLACE)
            positions = pl.int_ranges(self.base, longest.cast(pl.Int64) + self.base)
            marked = marked.with_columns(positions.alias(_PLACE))
        if self.row_is_page:
            page = pl.col(ROW).cast(pl.Int64) + file * _MOST_ROWS
            marked = marked.with_columns(page.alias(_PAGE))
        # The lists of an invalid page become null, and null is one row.
        is_valid = pl.col(EARLIER_REJECTION) == 0
        lists = (pl.when(is_valid).then(pl.col(name)).alias(name) for name in exploded)
        flat = marked.with_columns(lists).explode(exploded)
        doc = pl.col(self.lists[0])
        if self.clicked is not None:
            return flat.with_columns(doc.is_in(pl.col(self.clicked)).alias(_CLICK))
        if self.rules.click_suffix is not None:
            suffix = f"{re.escape(self.rules.click_suffix)}([0-9]+|true|false)$"  # extracts null without a match
            return flat.with_columns(doc.str.replace(suffix, ""), doc.str.extract(suffix).alias(_CLICK))
        return flat

    @property
    def lists_clicks(self) -> bool:
        """Whether pages list what was clicked, by document or rank, so that the list of documents may lack it."""
        return self.clicked is not None or self.clicked_ranks is not None

    def clicks(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Count the listed clicks of rows by outcome, as one row for `clicks.join_lists`; ranks count as documents."""
        rows, docs, clicked = self.with_lists(rows), pl.col(self.lists[0]), pl.col(self.clicked or "")
        if self.clicked_ranks is not None:
            column, top = self.clicked_ranks
            docs = pl.int_ranges(top, docs.list.len().cast(pl.Int64) + top)
            several = is_list(rows.collect_schema()[column])
            ranks = (
                pl.col(column).cast(pl.List(pl.String)) if several else pl.concat_list(pl.col(column).cast(pl.String))
            )
            clicked = (
                ranks.list.drop_nulls().cast(pl.List(pl.Float64), strict=False).cast(pl.List(pl.Int64), strict=False)
            )
        pages = rows.select(docs.alias(_LISTED), clicked.alias(_CLICK))
        docs, clicked = pl.col(_LISTED), pl.col(_CLICK)
        ids, listed = clicked.list.drop_nulls(), docs.fill_null([])
        within, beyond = ids.list.set_intersection(docs).list.len(), ids.list.set_difference(listed).list.len()
        sums = pages.select(
            clicked.list.len().cast(pl.Int64).sum().alias(ENTRIES),
            ids.list.len().cast(pl.Int64).sum().alias(WITH_ID),
            within.cast(pl.Int64).sum().alias(CLICKED_DOCS),
            ((beyond > 0) & (within + beyond > 1)).cast(pl.Int64).sum().alias(SEVERAL_CLICKS),
            ((beyond > 0) & (within > 0)).cast(pl.Int64).sum().alias(BOTH_CLICKED),
        )
        incomplete = pages.filter(beyond > 0).explode(_CLICK)
        lost = incomplete.filter(clicked.is_not_null() & ~clicked.is_in(listed)).select(
            pl.len().cast(pl.Int64).alias(NOT_LISTED),
            clicked.first().cast(pl.String).alias(LOST_ID),
            docs.first().list.head(LONGEST_PAGE).cast(pl.List(pl.String)).alias(LISTED_IDS),
        )
        return pl.concat([sums, lost], how="horizontal")

    def with_lists(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """Convert arrays and lists in text to lists, and the clicked documents to the type of the documents."""
        schema = rows.collect_schema()
        names = self.lists if self.clicked is None else (*self.lists, self.clicked)
        arrays = [name for name in names if isinstance(schema[name], pl.Array)]
        rows = rows.with_columns(pl.col(name).arr.to_list() for name in arrays)
        for name in self.written:
            read = self.rules.as_list if name in self.lists else self.rules.as_clicked
            rows = rows if name in arrays else rows.with_columns(read(name).alias(name))
        if self.clicked is None:
            return rows
        ids = pl.List(entry_type(rows.select(self.lists[0]).collect_schema()[self.lists[0]]))
        return rows.with_columns(pl.col(self.clicked).cast(ids, strict=False))


def is_list(dtype: pl.DataType) -> bool:
    """Return True for lists and arrays."""
    return isinstance(dtype, pl.List | pl.Array)


def find_inner_pages(schema: pl.Schema) -> list[Finding]:
    """Recognise a list of structs that hold lists, such as the pages of a query; return the query that unnests it."""
    for name, dtype in schema.items():
        entry = entry_type(dtype) if is_list(dtype) else None
        if isinstance(entry, pl.Struct) and any(isinstance(field.dtype, pl.List) for field in entry.fields):
            text = f"{name!r} holds lists within lists: each of its entries is read as a row"
            return [Finding(text, ("--sql", sql_of_structs(name)))]
    return []


def check_flat(schema: pl.Schema, roles: Roles, *, where: str) -> None:
    """Raise SchemaError if the position of a flat log is a list."""
    position, click = roles.position, roles.click
    if position is None or not is_list(schema[position]):
        return
    advice = "If a row is a page, name the column that lists its documents (--doc)."
    if click is not None and is_list(schema[click]):
        advice += f" If it is a document with all its places, read {sql_unnested((position, click))}."
    raise SchemaError(
        f"{where}: column {position!r} (--position) holds lists, and {roles.doc[0]!r} (--doc) one value a row. {advice}"
    )


def cells_in_lists(first: pl.DataFrame, roles: Roles, rules: ListRules) -> list[str]:
    """Return the columns of cells and features with an entry for each document of a page.

    These are lists, and texts whose lists have as many entries as those of the documents in all of the first rows.
    """
    names = dict.fromkeys((*roles.cell, *roles.features))
    texts = [name for name in names if first[name].dtype == pl.String and rules.separator is not None]
    doc = first[roles.doc[0]] if roles.doc else pl.Series()
    docs = rules.as_list(doc.name) if doc.dtype == pl.String else pl.col(doc.name).cast(pl.List(pl.String))
    same_length = [(rules.as_list(name).list.len() == docs.list.len()).all().alias(name) for name in texts]
    is_aligned = first.select(same_length).row(0, named=True) if texts else {}
    return [name for name in names if is_list(first[name].dtype) or is_aligned.get(name)]


def find_nesting(
    schema: pl.Schema, roles: Roles, base: int, rules: ListRules, cells: Sequence[str] = (), *, where: str
) -> Nesting | None:
    """Determine which columns hold the lists of pages; None where each row is one impression.

    Args:
        schema: the columns of the log.
        roles: the column of each role.
        base: the number of the topmost position.
        rules: options of lists.
        cells: columns of cells and features that are lists.
        where: the log, for messages.

    Raises:
        SchemaError: a column is a list and should be a single value, or the reverse; types of ids differ; or the order
            of documents with clicks behind their ids may be random.
    """
    per_doc = (*roles.doc, *(name for name in (roles.position, roles.click, roles.clicked) if name is not None), *cells)
    written = [name for name in dict.fromkeys(per_doc) if rules.separator is not None and schema[name] == pl.String]
    in_lists = [name for name, dtype in schema.items() if is_list(dtype) or name in written]
    docs = [name for name in roles.doc if name in in_lists]
    if not docs:
        return None
    _check_lists(schema, roles, docs[0], in_lists, where)
    _check_clicks(schema, roles, rules, written, where)
    if rules.click_suffix is not None and roles.position is None and not rules.order_is_position:
        raise SchemaError(
            f"{where}: clicks behind ids (--click-suffix) are the form of logs that were published with the documents "
            "of a page in random order, as those of MIND, and there the place in the list is no position. If yours "
            "stand in the order in which they were shown, use --order-is-position; or name a column of positions."
        )
    others = [name for name in roles.columns() if name not in (*docs, roles.clicked) and name in in_lists]
    return Nesting(
        lists=(*docs, *others),
        row_is_page=not roles.session,
        base=base if roles.position is None else None,
        rules=rules,
        written=tuple(written),
        clicked=roles.clicked,
    )


def _check_lists(schema: pl.Schema, roles: Roles, docs: str, in_lists: Sequence[str], where: str) -> None:
    """Raise SchemaError if sessions or queries are lists, or if positions, clicks or clicked documents are none."""
    queries = () if roles.no_query else roles.query
    for role, names in ((SESSION, roles.session), (QUERY, queries)):
        for name in names:
            if name in in_lists:
                raise SchemaError(
                    f"{where}: column {name!r} ({FLAGS[role]}) holds lists, {schema[name]}. Where documents are in "
                    f"lists, a row is one page, with one {role}."
                )
    held = "lists, written as text" if schema[docs] == pl.String else f"lists, {schema[docs]}"
    for role, name in ((POSITION, roles.position), (CLICK, roles.click), ("clicked", roles.clicked)):
        if name is not None and name not in in_lists:
            further = " Without such a column, positions are the places in the list." if role == POSITION else ""
            further += _IF_RANK if role == CLICK else ""
            entries = "the ids of the clicked documents" if role == "clicked" else "one entry per document"
            raise SchemaError(
                f"{where}: column {docs!r} holds {held}, but {name!r} "
                f"({FLAGS.get(role, '--clicked')}) holds {schema[name]}. It must hold a list too, with {entries}."
                f"{further}{_IF_TEXT if schema[name] == pl.String else ''}"
            )


_IF_TEXT = " If its text is a list, name its separator with --list-separator."
_IF_RANK = " If it holds the rank of the clicked result, use --click-ranks 0, or 1 where ranks count from 1."


def _check_clicks(schema: pl.Schema, roles: Roles, rules: ListRules, written: Sequence[str], where: str) -> None:
    """Raise SchemaError if clicks are given by ids that are several columns, no text, or of another type."""
    doc, *further = roles.doc
    if further and (roles.clicked is not None or rules.click_suffix is not None):
        option = "--clicked" if roles.clicked is not None else "--click-suffix"
        raise SchemaError(f"{where}: {option} needs the id of a document in one column, not in {', '.join(roles.doc)}.")
    ids = pl.String() if doc in written else entry_type(schema[doc])
    if rules.click_suffix is not None and ids != pl.String:
        raise SchemaError(f"{where}: column {doc!r} (--doc) holds {ids}, behind which no click can be written.")
    if roles.clicked is None:
        return
    theirs = pl.String() if roles.clicked in written else entry_type(schema[roles.clicked])
    if theirs not in (ids, pl.Null()) and not (theirs.is_integer() and ids.is_integer()):
        raise SchemaError(
            f"{where}: the ids in {doc!r} are {ids}, those in {roles.clicked!r} (--clicked) {theirs}. Write both with "
            "the same type."
        )


def are_comparable(ours: pl.DataType, theirs: pl.DataType) -> bool:
    """Return True if ids of two files can be compared: equal types, integers of any width, or lists of such types."""
    if is_list(ours) and is_list(theirs):
        entries = [entry_type(dtype) for dtype in (ours, theirs)]
        return any(isinstance(dtype, pl.Null) for dtype in entries) or are_comparable(*entries)
    return ours == theirs or (ours.is_integer() and theirs.is_integer())


def entry_type(dtype: pl.DataType) -> pl.DataType:
    """Return the type of the entries of a list; another type unchanged."""
    return pl.Series(dtype=dtype).explode().dtype if is_list(dtype) else dtype


_INEXACT = 2**53  # from here on, a double stands for several integers
RESERVED_PREFIX = "posbias_"
"""Prefix of columns that posbias adds to a log."""


def check_one_name(sources: Sequence[Source], candidates: Mapping[str, Sequence[str]]) -> None:
    """Raise SchemaError if each file has exactly one candidate for a role, under different names.

    Args:
        sources: the files of the log.
        candidates: several columns for a role, by the option that names it; no file has all of them.
    """
    for flag, names in candidates.items():
        held = [[name for name in names if name in schema_of(source)] for source in sources]
        if all(len(columns) == 1 for columns in held):
            first, *others = dict.fromkeys(name for (name,) in held)
            where = next(source.path for source, (name,) in zip(sources, held, strict=True) if name == others[0])
            raise SchemaError(
                f"{where}: has no column {first!r}, which {sources[0].path} has, and {others[0]!r} could be the same "
                f"({flag}). If so, {sql_coalesced((first, *others), sources)}."
            )


def _check_exact_ids(source: Source, roles: Roles) -> None:
    """Raise SchemaError if ids of NDJSON are doubles from 2**53 on, where different integers become one id."""
    for column in (*roles.session, *roles.ids()) if source.format == "ndjson" else ():
        dtype = schema_of(source)[column]
        if entry_type(dtype).is_float():
            values = pl.col(column).explode() if is_list(dtype) else pl.col(column)
            with reading([source]):
                largest = scan_sources([source]).select(values.abs().max()).collect(engine="streaming").item()
            if (largest or 0) >= _INEXACT:
                raise SchemaError(
                    f"{source.path}: column {column!r} holds fractions, beside which whole numbers from 2**53 on are "
                    "not exact: several ids would become one. Write its values as text, in quotes."
                )


def check_files_agree(sources: Sequence[Source], roles: Roles) -> None:
    """Check the columns of roles in each file.

    Raises:
        SchemaError: a file lacks a column; a name begins with the reserved prefix; or ids are 128-bit integers, inexact
            numbers, or of types that cannot be compared.
    """
    first = sources[0]
    for source in sources:
        for column in roles.columns():
            if column not in schema_of(source):
                having = next(other for other in sources if column in schema_of(other))
                new = [name for name in schema_of(source) if name not in schema_of(having)]
                same = [f" If {name!r} is the same, {sql_coalesced((column, name), sources)}." for name in new]
                raise SchemaError(
                    f"{source.path}: has no column {column!r}, which {having.path} has. "
                    f"The columns are: {', '.join(schema_of(source).names())}.{same[0] if len(same) == 1 else ''}"
                )
        for column in (name for name in schema_of(source) if name.startswith(RESERVED_PREFIX)):
            raise SchemaError(f"{source.path}: the name of column {column!r} is taken by posbias. Rename it.")
        for column in roles.ids():
            if isinstance(entry_type(schema_of(source)[column]), pl.Int128 | pl.UInt128):
                raise SchemaError(
                    f"{source.path}: column {column!r} holds 128-bit integers, which few tools read. Write ids as text."
                )
            ours, theirs = schema_of(source)[column], schema_of(first)[column]
            types = {entry_type(ours), entry_type(theirs)}
            if pl.UInt64() in types and any(dtype.is_signed_integer() for dtype in types):
                raise SchemaError(
                    f"column {column!r} holds {theirs} in {first.path} and {ours} in {source.path}: only integers of "
                    "128 bits hold both, which few tools read. Write the files with the same type."
                )
            if not are_comparable(ours, theirs):
                raise SchemaError(
                    f"column {column!r} holds {theirs} in {first.path} and {ours} in {source.path}: the same id would "
                    "count as two. Write the files with the same type."
                )
        _check_exact_ids(source, roles)
