"""Tables of features: their keys, and the columns that a model can learn from, as numbers or as categories of text."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.roles import check_readable
from posbias.core.schema import ALIASES, CLICK, CLICKS, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT, Roles
from posbias.core.training.layout import GRADE, GROUP, LABEL, LABEL_STD_DEV, LOSER, LOSER_ROW, WINNER, WINNER_ROW
from posbias.core.training.weights import CELL_NUMBER, is_replicate
from posbias.io.log.click_log import Log
from posbias.io.log.scan import check_headers, reading, resolve_quotes, scan_sources, schema_of, untyped_columns
from posbias.io.log.sources import Source, find_sources
from posbias.io.training.laid_out import Feature

MOST_CATEGORIES = 100_000
"""Most distinct texts of a feature: a column with more is an id or free text."""

_ROW_COLUMNS = frozenset(
    (
        *(GROUP, SESSION, QUERY, DOC, POSITION, CLICK, CLICKS, IMPRESSIONS, LABEL, GRADE, PROPENSITY, WEIGHT),
        *(LABEL_STD_DEV, WINNER, LOSER, WINNER_ROW, LOSER_ROW, CELL_NUMBER),
    )
)
_ROW_NUMBERS = frozenset(("__index_level_0__", "Unnamed: 0"))
_OWN_PREFIX = "posbias_"
_MISSING_MARKS = ("na", "n/a", "#n/a", "null", "none", "nil", "\\n", "-", "?", "missing")  # in lower case
_AS_FLOAT64 = (pl.Decimal, pl.Int128, pl.UInt128, pl.Null)
TEXTS = (pl.String, pl.Categorical, pl.Enum)


def feature_columns(
    frames: Sequence[pl.LazyFrame], names: Sequence[str], untyped: Collection[str], where: str
) -> tuple[tuple[Feature, ...], tuple[pl.Expr, ...]]:
    """Determine whether columns are numeric or categorical. Only columns of text are read for that.

    Args:
        frames: parts of one table, all with the same columns.
        names: the columns.
        untyped: columns from files without types (CSV): they are numeric if every value is a number.
        where: name of the table, for messages.

    Returns:
        The features in their order, and the expression of each from the raw column: numbers (booleans as 1 and 0), or
        text.

    Raises:
        SchemaError: the name of a column is reserved, or no model can learn from its values.
    """
    schema = frames[0].collect_schema()
    check_columns(schema, names, where)
    texts = [name for name in names if isinstance(schema[name], TEXTS)]
    candidates = [name for name in texts if name in untyped]
    has_words = [
        frame.select(_is_word(pl.col(name)).any() for name in candidates).collect(engine="streaming")
        for frame in frames
    ]
    numbers = {name for name in candidates if not any(frame[name].any() for frame in has_words)}
    words = {name: _text(name, untyped) for name in texts if name not in numbers}
    categories = _categories(frames, words, untyped, where)
    features = tuple(Feature(name, categories.get(name)) for name in names)
    expressions = (
        _text(name, untyped) if name in categories else as_number(name, schema[name]).alias(name) for name in names
    )
    return features, tuple(expressions)


def check_columns(schema: pl.Schema, names: Sequence[str], where: str) -> None:
    """Check that features have no reserved names, are no row numbers, and have types that a model can learn from.

    Raises:
        SchemaError: a feature has a reserved name, is a row number, or has another type.
    """
    for name in names:
        if not name.strip() or name in _ROW_NUMBERS:
            raise SchemaError(
                f"{where}: the column {name!r} looks like the row numbers that pandas writes. Write the table with "
                "index=False, or give the column a name."
            )
        check_readable(name, where)
        if name in _ROW_COLUMNS or name.startswith(_OWN_PREFIX) or is_replicate(name):
            raise SchemaError(
                f"{where}: the feature {name!r} has a name that is reserved in training files. Rename the column."
            )
    for name in names:
        dtype = schema[name]
        if dtype.is_numeric() or isinstance(dtype, (*TEXTS, pl.Boolean, pl.Null)):
            continue
        advice = "Leave the column out, or write it as numbers or text."
        if dtype.is_temporal():
            advice = "Write it as a number, e.g. the days or seconds up to a fixed day, or leave the column out."
        elif dtype.is_nested():
            advice = "Write each of its values into a column of its own, or leave the column out."
        raise SchemaError(f"{where}: the feature {name!r} holds {dtype}, which trainers do not accept. {advice}")


def _text(name: str, untyped: Collection[str]) -> pl.Expr:
    """Convert a column to text; blank text of files without types is null."""
    text = pl.col(name).cast(pl.String)
    return pl.when(text.str.strip_chars() != "").then(text).alias(name) if name in untyped else text


def as_number(name: str, dtype: pl.DataType) -> pl.Expr:
    """Convert a feature to a type of number that trainers accept; null for text that is no number."""
    if isinstance(dtype, TEXTS):
        return pl.col(name).str.strip_chars().cast(pl.Float64, strict=False)
    if isinstance(dtype, pl.Boolean):
        return pl.col(name).cast(pl.Int8)
    if isinstance(dtype, pl.Float16):
        return pl.col(name).cast(pl.Float32)
    return pl.col(name).cast(pl.Float64) if isinstance(dtype, _AS_FLOAT64) else pl.col(name)


def _is_word(text: pl.Expr) -> pl.Expr:
    """Return the condition that text is neither blank nor a number."""
    value = text.str.strip_chars()
    return value.cast(pl.Float64, strict=False).is_null() & (value != "")


def _categories(
    frames: Sequence[pl.LazyFrame], texts: dict[str, pl.Expr], untyped: Collection[str], where: str
) -> dict[str, tuple[str, ...]]:
    """Return the distinct values of columns of text, in ascending order.

    Raises:
        SchemaError: a column has too many values, or only numbers and marks of missing values.
    """
    if not texts:
        return {}
    distinct: dict[str, set[str]] = {name: set() for name in texts}
    for frame in frames:
        for batch in frame.select(*texts.values()).collect_batches(maintain_order=False, engine="streaming"):
            for name, values in distinct.items():
                values.update(batch[name].drop_nulls().unique())
                if len(values) > MOST_CATEGORIES:
                    _check_marks(name, values, untyped, where)
                    raise SchemaError(
                        f"{where}: the feature {name!r} holds more than {MOST_CATEGORIES:,} different texts: it looks "
                        "like an id or free text. Leave the column out, or write what it says as numbers."
                    )
    for name, values in distinct.items():
        _check_marks(name, values, untyped, where)
    return {name: tuple(sorted(values)) for name, values in distinct.items()}


def _check_marks(name: str, values: Collection[str], untyped: Collection[str], where: str) -> None:
    """Check that values are not numbers and marks of missing values, which would be categories.

    Raises:
        SchemaError: all values that are no numbers are marks of missing values.
    """
    if name not in untyped:
        return
    text = pl.Series(sorted(values), dtype=pl.String)
    words = text.filter(pl.select(_is_word(pl.lit(text))).to_series())
    marks = words.str.strip_chars().str.to_lowercase().is_in(_MISSING_MARKS)
    if len(words) < len(text) and len(words) and marks.all():
        raise SchemaError(
            f"{where}: the feature {name!r} holds numbers and {words[0]!r}. If that stands for a missing value, "
            "leave it empty."
        )


def check_finite(frame: pl.LazyFrame, names: Sequence[str], keys: Sequence[str], where: str) -> None:
    """Check that features have no infinite values, which trainers reject.

    Args:
        frame: features and keys.
        names: the features.
        keys: key columns, for the message.
        where: name of the table, for the message.

    Raises:
        SchemaError: a value is infinite.
    """
    schema = frame.collect_schema()
    floats = [name for name in names if schema[name].is_float()]
    if not floats:
        return
    infinite = frame.select(pl.col(name).is_infinite().any() for name in floats).collect(engine="streaming")
    for name in floats:
        if infinite[name].any():
            rows = frame.filter(pl.col(name).is_infinite()).select(*keys, name).collect(engine="streaming")
            example = rows.sort(*keys)
            raise SchemaError(
                f"{where}: the feature {name!r} is {example[name][0]} for {key_text(example, keys)}"
                f"{f' and {rows.height - 1:,} more' if rows.height > 1 else ''}: trainers need finite numbers. "
                "Leave the value empty, or write a large number."
            )


def key_text(rows: pl.DataFrame, keys: Sequence[str], number: int = 0) -> str:
    """Return the keys of row `number` as text, e.g. `query 'shoes', doc 17`."""
    return ", ".join(f"{key} {value!r}" for key, value in rows.select(keys).row(number, named=True).items())


_INSTEAD = "Name a table of features by query and document, or by document."


@dataclass(frozen=True)
class FeatureTable:
    """An opened table of features."""

    where: str  # name in messages
    sources: tuple[Source, ...]
    keys: tuple[str, ...]  # `query` and `doc`, or `doc` only
    features: tuple[Feature, ...]
    rows: pl.LazyFrame  # keys, in the types of the log, and features, without rows whose key is null


@dataclass(frozen=True)
class KeyedTable:
    """A table by query and document, or by document, of which only the headers were read."""

    where: str  # name in messages
    sources: tuple[Source, ...]
    schema: pl.Schema
    keys: dict[str, pl.Expr]  # expressions of `query` and `doc`, or of `doc`, in the types of the log
    names: list[str]  # other columns
    raw: pl.LazyFrame  # raw rows, without rows whose key is null


def check_features(log: Log | None, tables: Sequence[str], columns: Sequence[str]) -> None:
    """Check features by headers only, before the log is read.

    Args:
        log: the log; None for statistics.
        tables: tables of features: files, globs or directories.
        columns: features that are columns of the log.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: a table has no key or no feature, a key has another type than in the log, or a feature is invalid.
    """
    if log is None or (log.raw is not None and log.raw.reads_lines):  # its columns are not known yet
        for table in tables:
            find_sources([table], _INSTEAD)
        return
    schema = log.schema
    check_columns(schema, columns, str(log.sources[0].path))
    taken = list(columns)
    for table in tables:
        taken += read_head(find_sources([table], _INSTEAD), log.roles, schema, taken).names


def is_in_a_table(name: str, tables: Sequence[str]) -> bool:
    """Return whether a table of features has a column.

    Raises:
        LogFormatError: a file is missing or cannot be read.
    """
    return any(name in schema_of(find_sources([table], _INSTEAD)[0]) for table in tables)


def open_features(
    inputs: Sequence[str], roles: Roles, id_types: Mapping[str, pl.DataType], taken: Collection[str] = ()
) -> FeatureTable:
    """Open a table of features. Only columns of text are read.

    Args:
        inputs: files, globs and directories.
        roles: columns of the log; key columns have the same names in the table, or well-known names.
        id_types: types of `query` and `doc` in canonical impressions.
        taken: names of other features.

    Raises:
        LogFormatError: a file is missing or cannot be read.
        SchemaError: the table has no key or no feature, a key has another type than in the log, or a feature is
            invalid.
    """
    head = read_head(resolve_quotes(find_sources(inputs, _INSTEAD))[0], roles, id_types, taken)
    with reading(head.sources):
        untyped = untyped_columns(head.sources, head.schema)
        features, expressions = feature_columns([head.raw], head.names, untyped, head.where)
    rows = head.raw.select(*(key.alias(role) for role, key in head.keys.items()), *expressions)
    return FeatureTable(head.where, head.sources, tuple(head.keys), features, rows)


def read_head(
    sources: Sequence[Source], roles: Roles, id_types: Mapping[str, pl.DataType], taken: Collection[str]
) -> KeyedTable:
    """Read the headers of a table of features; for arguments and errors see `open_features`."""
    head = read_keys(sources, roles, id_types)
    if not head.names:
        raise SchemaError(f"{head.where}: holds no feature, only the columns {', '.join(head.schema)}.")
    for name in head.names:
        if name in taken:
            raise SchemaError(f"{head.where}: there is another feature {name!r}. Rename one of them.")
    check_columns(head.schema, head.names, head.where)
    return head


def read_keys(sources: Sequence[Source], roles: Roles, id_types: Mapping[str, pl.DataType]) -> KeyedTable:
    """Read the headers of a table, and convert its keys to the types of the log.

    Args:
        sources: files of the table.
        roles: columns of the log; key columns have the same names in the table, or well-known names.
        id_types: types of `query` and `doc` in canonical impressions.

    Raises:
        LogFormatError: a file cannot be read.
        SchemaError: the files differ, there is no column of documents, or a key has another type than in the log.
    """
    where = f"{sources[0].path} and {len(sources) - 1} more" if len(sources) > 1 else str(sources[0].path)
    with reading(sources):
        raw = scan_sources(sources)
        schema = raw.collect_schema()
        check_headers(sources, schema)
        _check_files_agree(sources)
    doc = key_columns(DOC, roles.doc, list(schema), where)
    if not doc:
        raise SchemaError(
            f"{where}: no column says which document a row is about. Name it as the log does: {', '.join(roles.doc)}. "
            f"The columns are: {', '.join(schema)}."
        )
    whole_query = set(roles.query) <= set(schema)  # a column may belong to both keys
    query = key_columns(QUERY, roles.query, [name for name in schema if whole_query or name not in doc], where)
    columns = {QUERY: query, DOC: doc} if query else {DOC: doc}
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
    return KeyedTable(where, tuple(sources), schema, keys, [name for name in schema if name not in used], raw)


def _check_files_agree(sources: Sequence[Source]) -> None:
    """Check that all files have the same columns, and that a column is text in all of them or in none.

    Raises:
        SchemaError: a file differs from the first one.
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


def key_columns(
    role: str, named: Sequence[str], names: Sequence[str], where: str, *, by_option: bool = False
) -> tuple[str, ...]:
    """Return the key columns of a role: the named columns, else one with a well-known name, else none.

    Args:
        role: `query` or `doc`.
        named: columns of the role, by an option or in the log.
        names: columns of the table.
        where: name of the table, for messages.
        by_option: whether an option named the columns: they must then exist.

    Raises:
        SchemaError: a column is missing, or several have well-known names.
    """
    lacking = [name for name in named if name not in names]
    if not lacking and (named or not by_option):
        return tuple(named)
    if lacking and by_option:
        raise SchemaError(f"{where}: has no column {lacking[0]!r} (--{role}). The columns are: {', '.join(names)}.")
    if len(lacking) < len(named):
        raise SchemaError(
            f"{where}: has no column {lacking[0]!r}: in the log, {', '.join(named)} name the {role} together. Add it."
        )
    known = [name for name in names if name.lower() in ALIASES[role]]
    if len(known) > 1 or (known and len(named) > 1):
        how = f"it with --{role} COLUMN" if by_option else f"the columns as the log does: {', '.join(named)}"
        raise SchemaError(f"{where}: {', '.join(known)} could be the {role}. Name {how}.")
    return tuple(known)


def as_key(name: str, theirs: pl.DataType, ours: pl.DataType, where: str) -> pl.Expr:
    """Convert a key column to the type of the log's ids; null for values that this type cannot represent.

    Raises:
        SchemaError: values of the two types are never equal.
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
