"""Columns that CSV can hold, for trainers to the letter, for people so that a spreadsheet takes text for text."""

import re

import polars as pl
import polars.selectors as cs

from posbias.core.errors import UsageError


def as_text_columns(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Write keys of several columns as JSON; everything else CSV holds as it is.

    Raises:
        UsageError: a column holds what text cannot hold.
    """
    columns: list[pl.Expr] = []
    for name, dtype in rows.collect_schema().items():
        if isinstance(dtype, pl.Binary | pl.List | pl.Array | pl.Duration | pl.Object):
            raise UsageError(f"column {name!r} holds {dtype}, which CSV cannot hold. Write Parquet instead.")
        columns.append(pl.col(name).struct.json_encode() if isinstance(dtype, pl.Struct) else pl.col(name))
    return rows.select(columns)


# What makes a formula of a cell, in wide letters too, and white space that spreadsheets skip before it.
_SIGNS = "[=+\\-@\uff1d\uff0b\uff0d\uff20]"
_FORMULA = rf"^([\x00-\x20]*{_SIGNS}|[\t\r\n])"
_FORMULA_INSIDE = rf"([;\t\r\n]\x20*)({_SIGNS})"  # where a cell begins if not the comma separates them


def as_spreadsheet_columns(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The same as `as_text_columns`, for people: an apostrophe keeps text from being read as a formula.

    Only text has one, and only where it begins with `=`, `+`, `-`, `@`, a tab or a line break, or has a semicolon, a
    tab or a line break before such a sign. Numbers stay as they are.

    Raises:
        UsageError: a column holds what text cannot hold.
    """
    texts = pl.col(pl.String).str.replace_all(_FORMULA_INSIDE, "${1}'${2}").str.replace(_FORMULA, "'${1}")
    columns = as_text_columns(rows).with_columns((cs.categorical() | cs.enum()).cast(pl.String)).with_columns(texts)
    return columns.rename(_named_as_text(columns.collect_schema().names()))


def _named_as_text(names: list[str]) -> dict[str, str]:
    """The header is a row of cells, too."""
    return {name: re.sub(_FORMULA, r"'\1", re.sub(_FORMULA_INSIDE, r"\1'\2", name)) for name in names}
