"""The columns of the files of a log: no two may pass for one, and all files must have the same."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import Roles
from posbias.io.log.nested import beyond_64_bits, innermost, of_one_type
from posbias.io.log.scan import header_of, reading, schema_of
from posbias.io.log.sources import Source

OURS = "posbias_"
"""How the names of columns begin that no log has."""

_RENAMED = "_duplicated_"  # by Polars


def check_headers(sources: Sequence[Source], columns: Iterable[str]) -> None:
    """See that each file has one column of each of these names, and none that differs from it by blanks only.

    Raises:
        SchemaError: a name stands twice, so that nobody knows which column is meant.
    """
    wanted = {name.strip() for name in columns if name.strip()}
    for source in sources:
        for alike in _alike(source).values():
            if len(alike) > 1 and alike[0].strip() in wanted:
                raise SchemaError(
                    f"{source.path}: {len(alike)} columns are called alike: {', '.join(map(repr, alike))}. Rename all "
                    "but one of them."
                )


def _alike(source: Source) -> dict[str, list[str]]:
    """The names of the columns by what is left of them without blanks."""
    with reading([source]):
        names = list(schema_of(source))
        if any(_RENAMED in name for name in names):
            names = header_of(source) or names
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[name.strip()].append(name)
    return alike


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
                raise SchemaError(
                    f"{source.path}: has no column {column!r}, which {having.path} has. "
                    f"The columns are: {', '.join(schema_of(source).names())}."
                )
        for column in (name for name in schema_of(source) if name.startswith(OURS)):
            raise SchemaError(f"{source.path}: the name of column {column!r} is taken by posbias. Rename it.")
        for column in roles.ids():
            if isinstance(innermost(schema_of(source)[column]), pl.Int128 | pl.UInt128):
                raise SchemaError(
                    f"{source.path}: column {column!r} holds 128-bit integers, which few tools read. Write ids as text."
                )
            ours, theirs = schema_of(source)[column], schema_of(first)[column]
            if beyond_64_bits(innermost(ours), innermost(theirs)):
                raise SchemaError(
                    f"column {column!r} holds {theirs} in {first.path} and {ours} in {source.path}: only integers of "
                    "128 bits hold both, which few tools read. Write the files with the same type."
                )
            if not of_one_type(ours, theirs):
                raise SchemaError(
                    f"column {column!r} holds {theirs} in {first.path} and {ours} in {source.path}: the same id would "
                    "count as two. Write the files with the same type."
                )
