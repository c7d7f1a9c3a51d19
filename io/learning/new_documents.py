"""Rows of a file that are to be scored: their keys, and their features as a model sees them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import SchemaError
from posbias.core.schema import ALIASES, DOC, QUERY
from posbias.io.features.columns import as_number
from posbias.io.features.rows import rows_per_chunk
from posbias.io.layouts.training_set import Feature
from posbias.io.learning.documents import check_numbers, encoded
from posbias.io.log.headers import check_headers
from posbias.io.log.quoting import resolve_quotes
from posbias.io.log.scan import reading, scan_sources
from posbias.io.log.sources import Source, find_sources


@dataclass(frozen=True)
class NewDocuments:
    """Rows to be scored."""

    sources: tuple[Source, ...]
    keys: dict[str, tuple[str, ...]]  # the columns that become `query` (where there are any) and `doc`, by role
    rows: pl.LazyFrame  # keys and features as they stand there
    features: tuple[Feature, ...]  # of the model, in their order

    def chunks(self, memory: int) -> Iterator[tuple[pl.DataFrame, Floats]]:
        """The rows in their order, some at a time: their keys, and their features, shape (n, F).

        Raises:
            LogFormatError: a file cannot be read.
            SchemaError: a feature that was numbers in training holds other text.
        """
        size = rows_per_chunk(len(self.features), memory)
        where = str(self.sources[0].path)
        with reading(self.sources):
            for rows in self.rows.collect_batches(chunk_size=size, maintain_order=True, engine="streaming"):
                schema = rows.schema
                numbers = rows.select(
                    pl.col(feature.name)
                    if feature.categories is not None
                    else _as_number(feature.name, schema[feature.name]).alias(feature.name)
                    for feature in self.features
                )
                check_numbers(rows, numbers, self.features, where)
                keys = {
                    role: pl.struct(names) if len(names) > 1 else pl.col(names) for role, names in self.keys.items()
                }
                yield rows.select(key.alias(role) for role, key in keys.items()), encoded(numbers, self.features)


def open_new_documents(
    inputs: Sequence[str], query: tuple[str, ...], doc: tuple[str, ...], features: Sequence[Feature]
) -> NewDocuments:
    """Find the rows to be scored. Only headers are read.

    Args:
        inputs: files, globs and directories.
        query: the columns of the query; none: the well-known one, if there is one.
        doc: the columns of the document; none: the well-known one.
        features: of the model.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: there is no document, or a feature is missing.
    """
    sources = resolve_quotes(find_sources(inputs, "Name a table of documents with the features of the model."))[0]
    where = str(sources[0].path)
    with reading(sources):
        raw = scan_sources(sources)
        schema = raw.collect_schema()
        check_headers(sources, schema)
    keys = {QUERY: _columns(QUERY, query, schema, where), DOC: _columns(DOC, doc, schema, where)}
    if not keys[DOC]:
        raise SchemaError(
            f"{where}: no column says which document a row is about. Name it with --doc COLUMN. The columns are: "
            f"{', '.join(schema)}."
        )
    lacking = [feature.name for feature in features if feature.name not in schema]
    if lacking:
        raise SchemaError(
            f"{where}: has no column {lacking[0]!r}{f' and {len(lacking) - 1} more' if len(lacking) > 1 else ''}, "
            "which the model learnt from. Add it, empty where it is not known."
        )
    for feature in features:
        dtype = schema[feature.name]
        if dtype.is_nested() or dtype.is_temporal() or (feature.categories is None and dtype == pl.Binary):
            raise SchemaError(f"{where}: the feature {feature.name!r} holds {dtype}; the model learnt from others.")
    named = {role: names for role, names in keys.items() if names}
    wanted = [*(name for names in named.values() for name in names), *(feature.name for feature in features)]
    return NewDocuments(sources, named, raw.select([*dict.fromkeys(wanted)]), tuple(features))


def _as_number(name: str, dtype: pl.DataType) -> pl.Expr:
    """A number; in text, true and false are 1 and 0, as booleans were in training."""
    number = as_number(name, dtype)
    if not isinstance(dtype, pl.String):
        return number
    word = pl.col(name).str.strip_chars().str.to_lowercase()
    return pl.when(word == "true").then(1.0).when(word == "false").then(0.0).otherwise(number)


def _columns(role: str, named: tuple[str, ...], schema: pl.Schema, where: str) -> tuple[str, ...]:
    """The columns that play a role.

    Raises:
        SchemaError: one that is named is not there, or several could be it.
    """
    for name in named:
        if name not in schema:
            raise SchemaError(f"{where}: has no column {name!r} (--{role}). The columns are: {', '.join(schema)}.")
    known = named or tuple(name for name in schema if name.lower() in ALIASES[role])
    if not named and len(known) > 1:
        raise SchemaError(f"{where}: {', '.join(known)} could be the {role}. Name it with --{role} COLUMN.")
    return known
