"""A table of features beside the log: found, its keys told from its features, its types brought to those of the log."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.schema import ALIASES, DOC, QUERY, Roles
from posbias.io.features.columns import TEXTS, check_columns, feature_columns
from posbias.io.layouts.training_set import Feature
from posbias.io.log.headers import check_headers
from posbias.io.log.log import Log
from posbias.io.log.quoting import resolve_quotes
from posbias.io.log.scan import reading, scan_sources, schema_of, untyped_columns
from posbias.io.log.sources import Source, find_sources

_INSTEAD = "Name a table of features by query and document, or by document."


@dataclass(frozen=True)
class FeatureTable:
    """An opened table of features."""

    sources: tuple[Source, ...]  # its files
    keys: tuple[str, ...]  # what a row is about: `query` and `doc`, or `doc` alone
    features: tuple[Feature, ...]  # its other columns
    rows: pl.LazyFrame  # the keys, in the types of the log, and the features. Rows without a key are left out.

    @property
    def where(self) -> str:
        """What it is called in messages."""
        return _where(self.sources)


@dataclass(frozen=True)
class KeyedTable:
    """A table about queries and documents, as its headers say."""

    sources: tuple[Source, ...]  # its files
    schema: pl.Schema  # the types of its columns
    keys: dict[str, pl.Expr]  # what a row is about: `query` and `doc`, or `doc` alone; each in the type of the log
    names: list[str]  # its other columns
    raw: pl.LazyFrame  # its rows as they stand there. Those without a key are left out.

    @property
    def where(self) -> str:
        """What it is called in messages."""
        return _where(self.sources)


def check_features(log: Log | None, tables: Sequence[str], columns: Sequence[str]) -> None:
    """Find wrong features before the log is read: no more than headers is read.

    Args:
        log: the log; None for statistics.
        tables: files, globs or directories each.
        columns: those of the log.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: there is no key or no feature, a key cannot meet the log's, or a feature cannot be one.
    """
    if log is None or (log.raw is not None and log.raw.of_lines):  # what its columns are is known when it has been read
        for table in tables:
            find_sources([table], _INSTEAD)
        return
    schema = log.schema
    check_columns(schema, columns, str(log.sources[0].path))
    taken = list(columns)
    for table in tables:
        taken += read_head(find_sources([table], _INSTEAD), log.roles, schema, taken).names


def is_in_a_table(name: str, tables: Sequence[str]) -> bool:
    """Whether one of some tables has a column of that name.

    Raises:
        LogFormatError: a file is missing or cannot be read.
    """
    return any(name in schema_of(find_sources([table], _INSTEAD)[0]) for table in tables)


def open_features(
    inputs: Sequence[str], roles: Roles, id_types: Mapping[str, pl.DataType], taken: Collection[str] = ()
) -> FeatureTable:
    """Find the files of a table of features, its keys and its features. Only columns of text are read for that.

    Args:
        inputs: files, globs and directories.
        roles: the columns of the log; keys have the log's names here too, or a well-known one.
        id_types: the types of `query` and `doc` in canonical impressions.
        taken: features that come from elsewhere.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: there is no key or no feature, a key cannot meet the log's, or a feature cannot be one.
    """
    head = read_head(resolve_quotes(find_sources(inputs, _INSTEAD))[0], roles, id_types, taken)
    with reading(head.sources):
        untyped = untyped_columns(head.sources, head.schema)
        found = feature_columns([head.raw], head.names, untyped, _where(head.sources))
    keys = [key.alias(role) for role, key in head.keys.items()]
    return FeatureTable(head.sources, tuple(head.keys), found.features, head.raw.select(*keys, *found.read))


def read_head(
    sources: Sequence[Source], roles: Roles, id_types: Mapping[str, pl.DataType], taken: Collection[str]
) -> KeyedTable:
    """What the headers of files say, the other columns being features; see `open_features` for the rest."""
    head = read_keys(sources, roles, id_types)
    if not head.names:
        raise SchemaError(f"{head.where}: holds no feature, only the columns {', '.join(head.schema)}.")
    for name in head.names:
        if name in taken:
            raise SchemaError(f"{head.where}: there is another feature {name!r}. Rename one of them.")
    check_columns(head.schema, head.names, head.where)
    return head


def read_keys(sources: Sequence[Source], roles: Roles, id_types: Mapping[str, pl.DataType]) -> KeyedTable:
    """Find the keys of a table by the headers of its files, and bring them to the types of the log.

    Args:
        sources: its files.
        roles: the columns of the log; keys have the log's names here too, or a well-known one.
        id_types: the types of `query` and `doc` in canonical impressions.

    Raises:
        LogFormatError: a file cannot be read.
        SchemaError: there is no document, or a key cannot meet the log's.
    """
    where = _where(sources)
    with reading(sources):
        raw = scan_sources(sources)
        schema = raw.collect_schema()
        check_headers(sources, schema)
        _check_files_agree(sources)
    columns = _key_columns(roles, schema, where)
    used = {name for theirs in columns.values() for name in theirs}
    keys: dict[str, pl.Expr] = {}
    for role, theirs in columns.items():
        ours = roles.query if role == QUERY else roles.doc
        key = id_types[role]  # a struct, if there are several columns
        fields = key.to_schema() if len(ours) > 1 and isinstance(key, pl.Struct) else None
        types = [key] if fields is None else [cast("pl.DataType", fields[name]) for name in ours]
        parts = [
            as_key(name, schema[name], dtype, where).alias(our)
            for name, our, dtype in zip(theirs, ours, types, strict=True)
        ]
        keys[role] = parts[0] if len(parts) == 1 else pl.struct(parts)
        raw = raw.filter(part.is_not_null() for part in parts)
    return KeyedTable(tuple(sources), schema, keys, [name for name in schema if name not in used], raw)


def _where(sources: Sequence[Source]) -> str:
    return f"{sources[0].path} and {len(sources) - 1} more" if len(sources) > 1 else str(sources[0].path)


def _check_files_agree(sources: Sequence[Source]) -> None:
    """Every file must have the same columns, of one kind.

    Raises:
        SchemaError: one has others.
    """
    first = sources[0]
    expected = schema_of(first)
    for source in sources:
        schema = schema_of(source)
        for name in [*expected, *schema]:
            if name not in schema or name not in expected:
                having, lacking = (first, source) if name in expected else (source, first)
                raise SchemaError(f"{lacking.path}: has no column {name!r}, which {having.path} has.")
            ours, theirs = schema[name], expected[name]
            if isinstance(ours, TEXTS) != isinstance(theirs, TEXTS) and pl.Null not in (ours, theirs):
                raise SchemaError(
                    f"column {name!r} holds {theirs} in {first.path} and {ours} in {source.path}. Write the files with "
                    "the same type."
                )


def _key_columns(roles: Roles, schema: pl.Schema, where: str) -> dict[str, tuple[str, ...]]:
    """The table's columns of `query` (where it has it) and of `doc`.

    Raises:
        SchemaError: there is no document, or only half of a key.
    """
    doc = _columns_of(DOC, roles.doc, list(schema), where)
    if not doc:
        raise SchemaError(
            f"{where}: no column says which document a row is about. Name it as the log does: {', '.join(roles.doc)}. "
            f"The columns are: {', '.join(schema)}."
        )
    whole_query = set(roles.query) <= set(schema)  # a column may belong to both keys
    query = _columns_of(QUERY, roles.query, [name for name in schema if whole_query or name not in doc], where)
    return {QUERY: query, DOC: doc} if query else {DOC: doc}


def _columns_of(role: str, ours: Sequence[str], names: Sequence[str], where: str) -> tuple[str, ...]:
    """The columns of a key: those of the log's names, else one of a well-known name, else none."""
    lacking = [name for name in ours if name not in names]
    if not lacking:
        return tuple(ours)
    if len(lacking) < len(ours):
        raise SchemaError(
            f"{where}: has no column {lacking[0]!r}: in the log, {', '.join(ours)} name the {role} together. Add it."
        )
    known = [name for name in names if name.lower() in ALIASES[role]]
    if len(known) > 1 or (known and len(ours) > 1):
        raise SchemaError(
            f"{where}: {', '.join(known)} could be the {role}. Name the columns as the log does: {', '.join(ours)}."
        )
    return tuple(known)


def as_key(name: str, theirs: pl.DataType, ours: pl.DataType, where: str) -> pl.Expr:
    """A column of a key in the type of the log's ids; null where that cannot hold the value.

    Raises:
        SchemaError: the two types cannot meet.
    """
    if theirs == ours:
        return pl.col(name)
    if isinstance(theirs, TEXTS) and (isinstance(ours, TEXTS) or ours.is_numeric()):
        return pl.col(name).cast(pl.String).cast(ours, strict=False)
    if theirs.is_integer() and (ours.is_integer() or isinstance(ours, TEXTS)):
        return pl.col(name).cast(pl.String if isinstance(ours, TEXTS) else ours, strict=False).cast(ours, strict=False)
    raise SchemaError(
        f"{where}: column {name!r} holds {theirs}, the ids of the log are {ours}. Write both with the same type."
    )
