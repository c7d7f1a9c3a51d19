"""Logs of one row per page, with its documents and clicks as lists: from lists to one row per impression."""

from dataclasses import dataclass, replace

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.log.impressions import FOUND_BEFORE, RowFault
from posbias.core.schema import FLAGS, POSITION, QUERY, SESSION, Roles
from posbias.io.log.scan import ROW

_PAGE = "posbias_page"
_PLACE = "posbias_place"
_ROWS_OF_A_FILE = 1 << 40
_SAMPLED_PAGES = 1000


@dataclass(frozen=True)
class Nesting:
    """How the rows of a log hold pages.

    Attributes:
        lists: the columns that hold a list with one entry per document.
        row_is_page: whether each row is a page of its own, for want of a session column.
        base: the number of the topmost position, where the place in the list says the position; None where a column
            does.
    """

    lists: tuple[str, ...]
    row_is_page: bool
    base: int | None

    def roles(self, named: Roles) -> Roles:
        """The roles of the flat rows: page and position also where no column of the log says them."""
        session = (_PAGE,) if self.row_is_page else named.session
        return replace(named, session=session, position=named.position if self.base is None else _PLACE)

    def flat(self, rows: pl.LazyFrame, file: int) -> pl.LazyFrame:
        """One row per entry of the lists; a page whose lists do not fit together is one row, marked in `FOUND_BEFORE`.

        Args:
            rows: rows of one file, with their number in `ROW` where each is a page of its own.
            file: the number of the file, so that pages of two files are not taken for one.
        """
        schema = rows.collect_schema()
        arrays = [name for name in self.lists if isinstance(schema[name], pl.Array)]
        rows = rows.with_columns(pl.col(name).arr.to_list() for name in arrays)
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
        return marked.with_columns(pl.when(whole).then(pl.col(name)).alias(name) for name in exploded).explode(exploded)

    def docs_per_page(self, rows: pl.LazyFrame) -> float:
        """The mean length of the lists of the first rows."""
        first = rows.select(self.lists[0]).head(_SAMPLED_PAGES).collect()
        return max(first.explode(self.lists[0]).height / max(first.height, 1), 1.0)


def holds_lists(dtype: pl.DataType) -> bool:
    """Whether a column has several values per row."""
    return isinstance(dtype, pl.List | pl.Array)


def find_nesting(schema: pl.Schema, roles: Roles, base: int, *, where: str) -> Nesting | None:
    """How the rows hold pages; None where each row is one impression.

    Args:
        schema: the log's columns.
        roles: what they mean.
        base: the number of the topmost position.
        where: what is being read, for the message.

    Raises:
        SchemaError: some columns hold lists, and others that should do not.
    """
    docs = [name for name in roles.doc if holds_lists(schema[name])]
    if not docs:
        return None
    for role, names in ((SESSION, roles.session), (QUERY, roles.query)):
        for name in names:
            if holds_lists(schema[name]):
                raise SchemaError(
                    f"{where}: column {name!r} ({FLAGS[role]}) holds lists, {schema[name]}. Where documents are in "
                    f"lists, a row is one page, with one {role}."
                )
    for role, name in ((POSITION, roles.position), ("click", roles.click)):
        if name is not None and not holds_lists(schema[name]):
            further = " Without such a column, positions are the places in the list." if role == POSITION else ""
            raise SchemaError(
                f"{where}: column {docs[0]!r} holds lists, {schema[docs[0]]}, but {name!r} ({FLAGS[role]}) holds "
                f"{schema[name]}. It must hold a list too, with one entry per document.{further}"
            )
    others = [name for name in roles.columns() if name not in docs and holds_lists(schema[name])]
    return Nesting(lists=(*docs, *others), row_is_page=not roles.session, base=base if roles.position is None else None)


def of_one_type(ours: pl.DataType, theirs: pl.DataType) -> bool:
    """Whether ids of two files are the same where they look the same."""
    if holds_lists(ours) and holds_lists(theirs):
        inner = [_inner(dtype) for dtype in (ours, theirs)]
        return any(isinstance(dtype, pl.Null) for dtype in inner) or of_one_type(*inner)
    return ours == theirs or (ours.is_integer() and theirs.is_integer())


def innermost(dtype: pl.DataType) -> pl.DataType:
    """The type of the entries of lists, or the type itself."""
    return _inner(dtype) if holds_lists(dtype) else dtype


def _inner(dtype: pl.DataType) -> pl.DataType:
    return pl.Series(dtype=dtype).explode().dtype
