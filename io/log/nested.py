"""Logs of one row per page, with its documents and clicks as lists: from lists to one row per impression."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.log.impressions import FOUND_BEFORE, RowFault
from posbias.core.schema import CLICK, FLAGS, POSITION, QUERY, SESSION, Roles
from posbias.io.log.lost_clicks import BESIDE, CLICKED_IDS, ELSEWHERE, LONGEST_PAGE, LOST_ID, NAMED, READ
from posbias.io.log.scan import ROW
from posbias.io.log.written_values import NO_LIST_RULES, ListRules

_PAGE = "posbias_page"
_PLACE = "posbias_place"
_CLICK = "posbias_click"
_ROWS_OF_A_FILE = 1 << 40
_SAMPLED_PAGES = 1000


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
        """One row per entry of the lists; a page whose lists do not fit together is one row, marked in `FOUND_BEFORE`.

        Args:
            rows: rows of one file, with their number in `ROW` where each is a page of its own.
            file: the number of the file, so that pages of two files are not taken for one.
        """
        rows = self._read(rows)
        lengths = [pl.col(name).list.len() for name in self.lists]
        longest = pl.max_horizontal(length.fill_null(0) for length in lengths)
        fault = (
            pl.when(longest == 0, lengths[0] == 0)
            .then(int(RowFault.EMPTY_PAGE))
            .when(pl.any_horizontal(length.is_null() for length in lengths))
            .then(int(RowFault.LIST_MISSING))
            .when(pl.any_horizontal(length != longest for length in lengths))
            .then(int(RowFault.LISTS_UNEQUAL))
            .otherwise(0)
        )
        whole = pl.col(FOUND_BEFORE) == 0
        marked = rows.with_columns(fault.cast(pl.UInt8).alias(FOUND_BEFORE))
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
        return self._with_clicks(flat)

    def clicks(self, rows: pl.LazyFrame) -> pl.LazyFrame:
        """What became of the clicks of some rows, as one row: what `lost_clicks.join_lists` takes."""
        docs, clicked = pl.col(self.lists[0]), pl.col(self.clicked or "")
        pages = self._read(rows).select(docs, clicked)
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

    def docs_per_page(self, rows: pl.LazyFrame) -> float:
        """The mean length of the lists of the first rows."""
        first = self._read(rows).select(self.lists[0]).head(_SAMPLED_PAGES).collect()
        return max(first.explode(self.lists[0]).height / max(first.height, 1), 1.0)

    def _read(self, rows: pl.LazyFrame) -> pl.LazyFrame:
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

    def _with_clicks(self, flat: pl.LazyFrame) -> pl.LazyFrame:
        doc = pl.col(self.lists[0])
        if self.clicked is not None:
            return flat.with_columns(doc.is_in(pl.col(self.clicked)).alias(_CLICK))
        if self.rules.click_suffix is not None:
            return flat.with_columns(self.rules.id_of(doc), self.rules.click_of(doc).alias(_CLICK))
        return flat


def holds_lists(dtype: pl.DataType) -> bool:
    """Whether a column has several values per row."""
    return isinstance(dtype, pl.List | pl.Array)


def find_nesting(schema: pl.Schema, roles: Roles, base: int, rules: ListRules, *, where: str) -> Nesting | None:
    """How the rows hold pages; None where each row is one impression.

    Args:
        schema: the log's columns.
        roles: what they mean.
        base: the number of the topmost position.
        rules: how lists are read.
        where: what is being read, for the message.

    Raises:
        SchemaError: some columns hold lists, and others that should do not; or order may be no position.
    """
    of_each = (*roles.doc, *(name for name in (roles.position, roles.click, roles.clicked) if name is not None))
    written = [name for name in of_each if rules.separator is not None and schema[name] == pl.String]
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
            "stand in the order in which they were shown, say --order-is-position; or name a column of positions."
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
    """See that columns hold lists where the documents do, and one value where a page has one."""
    queries = () if roles.no_query else roles.query
    for role, names in ((SESSION, roles.session), (QUERY, queries)):
        for name in names:
            if name in in_lists:
                raise SchemaError(
                    f"{where}: column {name!r} ({FLAGS[role]}) holds lists, {schema[name]}. Where documents are in "
                    f"lists, a row is one page, with one {role}."
                )
    for role, name in ((POSITION, roles.position), (CLICK, roles.click), ("clicked", roles.clicked)):
        if name is not None and name not in in_lists:
            further = " Without such a column, positions are the places in the list." if role == POSITION else ""
            further += _IF_RANK if role == CLICK else ""
            entries = "the ids of the clicked documents" if role == "clicked" else "one entry per document"
            raise SchemaError(
                f"{where}: column {docs!r} holds {_lists(schema[docs])}, but {name!r} "
                f"({FLAGS.get(role, '--clicked')}) holds {schema[name]}. It must hold a list too, with {entries}."
                f"{further}{_IF_TEXT if schema[name] == pl.String else ''}"
            )


_IF_TEXT = " If its text is a list, say what separates the entries: --list-separator."
_IF_RANK = " If it holds the rank of the clicked result, say --click-ranks 0, or 1 where ranks count from 1."


def _lists(dtype: pl.DataType) -> str:
    return "lists, written as text" if dtype == pl.String else f"lists, {dtype}"


def _check_clicks(schema: pl.Schema, roles: Roles, rules: ListRules, written: Sequence[str], where: str) -> None:
    """See that clicks that are told by ids can be."""
    doc, *further = roles.doc
    if further and (roles.clicked is not None or rules.click_suffix is not None):
        option = "--clicked" if roles.clicked is not None else "--click-suffix"
        raise SchemaError(f"{where}: {option} needs the id of a document in one column, not in {', '.join(roles.doc)}.")
    ids = pl.String() if doc in written else innermost(schema[doc])
    if rules.click_suffix is not None and ids != pl.String:
        raise SchemaError(f"{where}: column {doc!r} (--doc) holds {ids}, and no click can stand behind that.")
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
        inner = [_inner(dtype) for dtype in (ours, theirs)]
        return any(isinstance(dtype, pl.Null) for dtype in inner) or of_one_type(*inner)
    return ours == theirs or (ours.is_integer() and theirs.is_integer())


def beyond_64_bits(ours: pl.DataType, theirs: pl.DataType) -> bool:
    """Whether whole numbers of two types have no type of 64 bits in common."""
    unsigned = pl.UInt64()
    return unsigned in (ours, theirs) and any(dtype.is_signed_integer() for dtype in (ours, theirs))


def innermost(dtype: pl.DataType) -> pl.DataType:
    """The type of the entries of lists, or the type itself."""
    return _inner(dtype) if holds_lists(dtype) else dtype


def _inner(dtype: pl.DataType) -> pl.DataType:
    return pl.Series(dtype=dtype).explode().dtype
