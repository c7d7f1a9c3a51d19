"""Documents and clicks in lists, nested or as text, and words that stand for values."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Self

import polars as pl

from posbias.core.errors import SchemaError, UsageError
from posbias.core.log.impressions import EARLIER_REJECTION, RowRejection, TextValues
from posbias.core.schema import CLICK, FLAGS, POSITION, QUERY, SESSION, Roles
from posbias.io.log.clicks import BESIDE, CLICKED_IDS, ELSEWHERE, LONGEST_PAGE, LOST_ID, NAMED, READ
from posbias.io.log.scan import ROW, reading, scan_sources, schema_of
from posbias.io.log.sources import Source
from posbias.io.log.sql import as_one, rows_of_structs, sql_unnested


@dataclass(frozen=True)
class Finding:
    """One thing that was recognised."""

    text: str  # a sentence, without its first capital and its full stop
    options: tuple[str, ...] = ()  # words of the command line that declare it; none where it is the default
    certain: bool = True  # whether it follows from the data; a guess is marked as one


JSON, SPACE, TAB = "json", "space", "tab"
"""The separators that have names."""

_NAMES = f"{JSON}, {SPACE} or {TAB}"

_ENTRY = r'(?:"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)'
_FLAT_LIST = rf"^\s*\[\s*(?:{_ENTRY}\s*(?:,\s*{_ENTRY}\s*)*)?\]\s*$"
_OF_PYTHON = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|True|False|None|nan)"""
_PYTHON_LIST = rf"(?s)^\s*[\[(]\s*(?:{_OF_PYTHON}[\s,]+)*(?:{_OF_PYTHON}\s*)?[\])]\s*$"
"""Lists and tuples as Python prints them, arrays as NumPy does, without commas; `[1 2 ... 9]` lacks entries."""


@dataclass(frozen=True)
class ListRules:
    """How lists are read that are no lists to the file's format, or say more than ids."""

    # what stands between the entries of a list that is written as text, or `JSON`, or `SPACE`; None where no text is a
    # list
    separator: str | None = None
    # what stands between an id and its click, as in `N1-0 N2-1`; None where ids are ids alone
    click_suffix: str | None = None
    # whether documents stand in the order in which they were shown, where that is in doubt
    order_is_position: bool = False

    @classmethod
    def parse(cls, separator: str | None, click_suffix: str | None, *, order_is_position: bool) -> Self:
        """Read options.

        Raises:
            UsageError: a letter or digit is no separator.
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
        """A column of text as lists of text; null where it is no list. An entry of no text is null."""
        text = pl.col(column)
        if self.separator == JSON:
            of_json = pl.when(text.str.contains(_FLAT_LIST)).then(text).str.json_decode(pl.List(pl.String))
            entry = pl.when(~pl.element().is_in(["None", "nan"])).then(pl.element())
            entry = entry.str.replace(r"^(-?[0-9]+\.)$", "${1}0")  # of NumPy: 1.
            entry = entry.str.replace("(?s)^['\"](.*)['\"]$", "$1").str.replace_all(r"\\(['\"\\])", "$1")
            printed = pl.when(text.str.contains(_PYTHON_LIST)).then(text).str.extract_all(_OF_PYTHON).list.eval(entry)
            return of_json.fill_null(printed)
        if self.separator is None or self.separator == SPACE:
            return text.str.extract_all(r"\S+")
        entry = pl.element().str.strip_chars()
        entries = text.str.split(self.separator).list.eval(pl.when(entry != "").then(entry))
        return pl.when(text.str.strip_chars() == "").then(pl.lit([], pl.List(pl.String))).otherwise(entries)


NO_LIST_RULES = ListRules()
"""Rules by which no text is a list, and ids have no clicks behind them."""


_PAIRS = (
    "yes/no, y/n, on/off, true/false, ja/nein, ja/nee, ja/nej, j/n, oui/non, o/n, si/no, sí/no, sì/no, s/n, sim/não, "
    "sim/nao, tak/nie, да/нет, vrai/faux, wahr/falsch, clicked/not clicked"
)
_WORDS = [(true, false) for true, _, false in (pair.partition("/") for pair in _PAIRS.split(", "))]
_READ_ALREADY = {"0", "1", "0.0", "1.0", "true", "t", "false", "f"}
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
_ZONED = ("%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y")
_ISO_DAY = r"^\d{4}-\d{2}-\d{2}([ T]\d{2}:|$)"
_TIMES = 100  # values that are looked at
_DIGITS = re.compile(r"\d+")
_FORMS = tuple(day + clock for day in _DAYS for clock in _CLOCKS) + _ZONED


def find_click_words(values: Iterable[str | None]) -> Finding | None:
    """The words of a click column that is all yes and no in a common language, beside what is read already."""
    words = {value.strip().lower() for value in values if value is not None and value.strip()} - _READ_ALREADY
    if not words:
        return None
    for true, false in _WORDS:
        # Some of these words, that mean the same in every other pair.
        as_true, as_false = {yes for yes, _ in _WORDS if yes in words}, {no for _, no in _WORDS if no in words}
        if words <= {true, false} and (words == {true, false} or not as_true & as_false):
            held = [(flag, word) for flag, word in (("--true", true), ("--false", false)) if word in words]
            in_words = " and ".join(repr(word) for _, word in held)
            return Finding(f"clicks are written {in_words}", tuple(chain(*held)))
    return None


def find_timestamp_format(values: Iterable[str | None]) -> Finding | None:
    """The form in which all times are written, where it is none that is read already.

    Where a day and a month could be either, `certain` is False, and both forms are named; the first is the option.
    """
    texts = [value.strip() for value in values if value is not None and value.strip()]
    may_be = texts and all(len(_DIGITS.findall(text)) > 1 for text in texts)  # a year and a day at least
    fitting = [form for form in _FORMS if may_be and _fits(form, texts)]
    fitting = [form for form in fitting if form == (whole := form.removesuffix(_FRACTION)) or whole not in fitting]
    if not fitting:
        return None
    first = fitting[0]
    if len(fitting) == 1:
        return Finding(f"times such as {texts[0]!r} are written {first}", ("--timestamp-format", first))
    forms = " or ".join(fitting)
    return Finding(
        f"times such as {texts[0]!r} may be written {forms}: no day is above 12, so that day and month cannot be "
        "distinguished",
        ("--timestamp-format", first),
        certain=False,
    )


def holds_times(column: pl.Series) -> bool:
    """Whether all values are dates or times, or texts of such."""
    if column.dtype.is_temporal():
        return True
    if column.dtype != pl.String:
        return False
    texts = column.drop_nulls().unique(maintain_order=True).head(_TIMES).str.strip_chars()
    is_iso = texts.str.contains(_ISO_DAY).all()
    return bool(len(texts)) and (is_iso or find_timestamp_format(texts) is not None)


def _fits(form: str, texts: Sequence[str]) -> bool:
    values = TextValues(timestamp_format=form)
    try:
        read = pl.DataFrame({"text": texts}).select(values.time(pl.col("text"))).to_series()
    except pl.exceptions.PolarsError:
        return False
    return not read.null_count() and bool(read.dt.year().is_between(1980, 2099).all())


_PAGE = "posbias_page"
_PLACE = "posbias_place"
_CLICK = "posbias_click"
_ROWS_OF_A_FILE = 1 << 40


@dataclass(frozen=True)
class Nesting:
    """How the rows of a log hold pages."""

    lists: tuple[str, ...]  # the columns that hold a list with one entry per document; the documents first
    row_is_page: bool  # whether each row is a page of its own, for want of a session column
    # the number of the topmost position, where the place in the list says the position; None where a column does
    base: int | None
    rules: ListRules = NO_LIST_RULES  # how lists are read
    written: tuple[str, ...] = ()  # the columns whose lists are written as text
    # the column that lists the clicked documents, where no column has an entry for each document
    clicked: str | None = None

    def roles(self, named: Roles) -> Roles:
        """The roles of the flat rows: page, position and click also where no column of the log says them."""
        session = (_PAGE,) if self.row_is_page else named.session
        made = self.clicked is not None or self.rules.click_suffix is not None
        return replace(
            named,
            session=session,
            position=named.position if self.base is None else _PLACE,
            click=_CLICK if made else named.click,
            clicked=None,
        )

    def flat(self, rows: pl.LazyFrame, file: int) -> pl.LazyFrame:
        """One row per entry of the lists; a page whose lists do not fit together is one row, with `EARLIER_REJECTION`.

        Args:
            rows: rows of one file, with their number in `ROW` where each is a page of its own.
            file: the number of the file, so that pages of two files are not taken for one.
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
        whole = pl.col(EARLIER_REJECTION) == 0
        marked = rows.with_columns(fault.cast(pl.UInt8).alias(EARLIER_REJECTION))
        exploded = list(self.lists)
        if self.base is not None:
            exploded.append(_PLACE)
            place = pl.int_ranges(self.base, longest.cast(pl.Int64) + self.base)
            marked = marked.with_columns(place.alias(_PLACE))
        if self.row_is_page:
            page = pl.col(ROW).cast(pl.Int64) + file * _ROWS_OF_A_FILE
            marked = marked.with_columns(page.alias(_PAGE))
        # The lists of a page that is marked become null, and null is one row.
        flat = marked.with_columns(pl.when(whole).then(pl.col(name)).alias(name) for name in exploded).explode(exploded)
        doc = pl.col(self.lists[0])
        if self.clicked is not None:
            return flat.with_columns(doc.is_in(pl.col(self.clicked)).alias(_CLICK))
        if self.rules.click_suffix is not None:
            behind = f"{re.escape(self.rules.click_suffix)}([0-9]+|true|false)$"  # null where there is none
            return flat.with_columns(doc.str.replace(behind, ""), doc.str.extract(behind).alias(_CLICK))
        return flat

    def clicks(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The fates of the clicks of some rows, as one row for `clicks.join_lists`."""
        docs, clicked = pl.col(self.lists[0]), pl.col(self.clicked or "")
        pages = self.with_lists(rows).select(docs, clicked)
        named = clicked.list.drop_nulls()
        sums = pages.select(
            clicked.list.len().cast(pl.Int64).sum().alias(READ),
            named.list.len().cast(pl.Int64).sum().alias(NAMED),
            named.list.set_intersection(docs).list.len().cast(pl.Int64).sum().alias(CLICKED_IDS),
        )
        listed = docs.fill_null([])
        some = pages.filter(named.list.set_difference(listed).list.len() > 0).explode(self.clicked or "")
        elsewhere = some.filter(clicked.is_not_null() & ~clicked.is_in(listed))
        of_first = docs.first().list.head(LONGEST_PAGE).cast(pl.List(pl.String)).alias(BESIDE)
        lost = elsewhere.select(
            pl.len().cast(pl.Int64).alias(ELSEWHERE), clicked.first().cast(pl.String).alias(LOST_ID), of_first
        )
        return pl.concat([sums, lost], how="horizontal")

    def with_lists(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """The rows with lists in all columns that hold some, those of clicked documents with ids of their type."""
        schema = rows.collect_schema()
        names = self.lists if self.clicked is None else (*self.lists, self.clicked)
        arrays = [name for name in names if isinstance(schema[name], pl.Array)]
        rows = rows.with_columns(pl.col(name).arr.to_list() for name in arrays)
        rows = rows.with_columns(self.rules.as_list(name).alias(name) for name in self.written if name not in arrays)
        if self.clicked is None:
            return rows
        ids = pl.List(innermost(rows.select(self.lists[0]).collect_schema()[self.lists[0]]))
        return rows.with_columns(pl.col(self.clicked).cast(ids, strict=False))


def holds_lists(dtype: pl.DataType) -> bool:
    """Whether a column has several values per row."""
    return isinstance(dtype, pl.List | pl.Array)


def find_inner_pages(schema: pl.Schema) -> list[Finding]:
    """The query that makes a row of each entry of a list whose entries hold lists, such as the pages of a query."""
    for name, dtype in schema.items():
        entry = innermost(dtype) if holds_lists(dtype) else None
        if isinstance(entry, pl.Struct) and any(isinstance(field.dtype, pl.List) for field in entry.fields):
            text = f"{name!r} holds lists within lists: each of its entries is read as a row"
            return [Finding(text, ("--sql", rows_of_structs(name)))]
    return []


def check_flat(schema: pl.Schema, roles: Roles, *, where: str) -> None:
    """Check that a row that is one impression has one position.

    Raises:
        SchemaError: it has a list of them.
    """
    position, click = roles.position, roles.click
    if position is None or not holds_lists(schema[position]):
        return
    advice = "If a row is a page, name the column that lists its documents (--doc)."
    if click is not None and holds_lists(schema[click]):
        advice += f" If it is a document with all its places, read {sql_unnested((position, click))}."
    raise SchemaError(
        f"{where}: column {position!r} (--position) holds lists, and {roles.doc[0]!r} (--doc) one value a row. {advice}"
    )


def cells_in_lists(first: pl.DataFrame, roles: Roles, rules: ListRules) -> list[str]:
    """Columns of cells and others that are kept, with an entry for each document of a page.

    Of text, that is so in all of the first rows.
    """
    names = dict.fromkeys((*roles.cell, *roles.features))
    texts = [name for name in names if first[name].dtype == pl.String and rules.separator is not None]
    doc = first[roles.doc[0]] if roles.doc else pl.Series()
    docs = rules.as_list(doc.name) if doc.dtype == pl.String else pl.col(doc.name).cast(pl.List(pl.String))
    alike = [(rules.as_list(name).list.len() == docs.list.len()).all().alias(name) for name in texts]
    found = first.select(alike).row(0, named=True) if texts else {}
    return [name for name in names if holds_lists(first[name].dtype) or found.get(name)]


def find_nesting(
    schema: pl.Schema, roles: Roles, base: int, rules: ListRules, cells: Sequence[str] = (), *, where: str
) -> Nesting | None:
    """How the rows hold pages; None where each row is one impression.

    Args:
        schema: the log's columns.
        roles: what they mean.
        base: the number of the topmost position.
        rules: how lists are read.
        cells: columns of cells, and others that are kept, that hold lists.
        where: what is being read, for the message.

    Raises:
        SchemaError: some columns hold lists, and others that should do not; or order may be no position.
    """
    of_each = (*roles.doc, *(name for name in (roles.position, roles.click, roles.clicked) if name is not None), *cells)
    written = [name for name in dict.fromkeys(of_each) if rules.separator is not None and schema[name] == pl.String]
    in_lists = [name for name, dtype in schema.items() if holds_lists(dtype) or name in written]
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
    """Check that columns hold lists where the documents do, and one value where a page has one."""
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
    """Raise SchemaError unless clicks can be given by ids."""
    doc, *further = roles.doc
    if further and (roles.clicked is not None or rules.click_suffix is not None):
        option = "--clicked" if roles.clicked is not None else "--click-suffix"
        raise SchemaError(f"{where}: {option} needs the id of a document in one column, not in {', '.join(roles.doc)}.")
    ids = pl.String() if doc in written else innermost(schema[doc])
    if rules.click_suffix is not None and ids != pl.String:
        raise SchemaError(f"{where}: column {doc!r} (--doc) holds {ids}, behind which no click can be written.")
    if roles.clicked is None:
        return
    theirs = pl.String() if roles.clicked in written else innermost(schema[roles.clicked])
    if theirs not in (ids, pl.Null()) and not (theirs.is_integer() and ids.is_integer()):
        raise SchemaError(
            f"{where}: the ids in {doc!r} are {ids}, those in {roles.clicked!r} (--clicked) {theirs}. Write both with "
            "the same type."
        )


def of_one_type(ours: pl.DataType, theirs: pl.DataType) -> bool:
    """Whether ids of two files are the same where they look the same."""
    if holds_lists(ours) and holds_lists(theirs):
        inner = [innermost(dtype) for dtype in (ours, theirs)]
        return any(isinstance(dtype, pl.Null) for dtype in inner) or of_one_type(*inner)
    return ours == theirs or (ours.is_integer() and theirs.is_integer())


def innermost(dtype: pl.DataType) -> pl.DataType:
    """The type of the entries of lists, or the type itself."""
    return pl.Series(dtype=dtype).explode().dtype if holds_lists(dtype) else dtype


_INEXACT = 2**53  # from there on, several whole numbers are one as a fraction
OURS = "posbias_"
"""How the names of columns begin that no log has."""


def check_renamed(sources: Sequence[Source], several: Mapping[str, Sequence[str]]) -> None:
    """Check that no column is called otherwise in other files, so that several could play its role.

    Args:
        sources: the files of the log.
        several: the columns that could each play a role, by the option that names it.

    Raises:
        SchemaError: each file has another one of them.
    """
    for flag, names in several.items():
        held = [[name for name in names if name in schema_of(source)] for source in sources]
        if all(len(of_file) == 1 for of_file in held):
            first, *others = dict.fromkeys(name for (name,) in held)
            where = next(source.path for source, (name,) in zip(sources, held, strict=True) if name == others[0])
            raise SchemaError(
                f"{where}: has no column {first!r}, which {sources[0].path} has, and {others[0]!r} could be the same "
                f"({flag}). If so, {as_one((first, *others), sources)}."
            )


def _check_exact_ids(source: Source, roles: Roles) -> None:
    """Check that the ids of NDJSON, whose numbers are fractions where some are, stay what they are.

    Raises:
        SchemaError: some are too large for that.
    """
    for column in (*roles.session, *roles.ids()) if source.format == "ndjson" else ():
        dtype = schema_of(source)[column]
        if innermost(dtype).is_float():
            values = pl.col(column).explode() if holds_lists(dtype) else pl.col(column)
            with reading([source]):
                largest = scan_sources([source]).select(values.abs().max()).collect(engine="streaming").item()
            if (largest or 0) >= _INEXACT:
                raise SchemaError(
                    f"{source.path}: column {column!r} holds fractions, beside which whole numbers from 2**53 on are "
                    "not exact: several ids would become one. Write its values as text, in quotes."
                )


def check_files_agree(sources: Sequence[Source], roles: Roles) -> None:
    """Every file must have the columns that play a role, and ids of one type.

    Raises:
        SchemaError: a file lacks a column, or holds ids as text where another one holds numbers.
    """
    first = sources[0]
    for source in sources:
        for column in roles.columns():
            if column not in schema_of(source):
                having = next(other for other in sources if column in schema_of(other))
                new = [name for name in schema_of(source) if name not in schema_of(having)]
                same = [f" If {name!r} is the same, {as_one((column, name), sources)}." for name in new]
                raise SchemaError(
                    f"{source.path}: has no column {column!r}, which {having.path} has. "
                    f"The columns are: {', '.join(schema_of(source).names())}.{same[0] if len(same) == 1 else ''}"
                )
        for column in (name for name in schema_of(source) if name.startswith(OURS)):
            raise SchemaError(f"{source.path}: the name of column {column!r} is taken by posbias. Rename it.")
        for column in roles.ids():
            if isinstance(innermost(schema_of(source)[column]), pl.Int128 | pl.UInt128):
                raise SchemaError(
                    f"{source.path}: column {column!r} holds 128-bit integers, which few tools read. Write ids as text."
                )
            ours, theirs = schema_of(source)[column], schema_of(first)[column]
            whole = {innermost(ours), innermost(theirs)}
            if pl.UInt64() in whole and any(dtype.is_signed_integer() for dtype in whole):
                raise SchemaError(
                    f"column {column!r} holds {theirs} in {first.path} and {ours} in {source.path}: only integers of "
                    "128 bits hold both, which few tools read. Write the files with the same type."
                )
            if not of_one_type(ours, theirs):
                raise SchemaError(
                    f"column {column!r} holds {theirs} in {first.path} and {ours} in {source.path}: the same id would "
                    "count as two. Write the files with the same type."
                )
        _check_exact_ids(source, roles)
