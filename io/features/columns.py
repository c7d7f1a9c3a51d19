"""Which columns a model can learn from, and how each is read: as numbers, or as text of few distinct values."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import polars as pl

from posbias.core.errors import SchemaError
from posbias.core.fit.propensities import PROPENSITY
from posbias.core.role_search import check_readable
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, POSITION, QUERY, SESSION, WEIGHT
from posbias.core.training.layouts import GROUP, LABEL
from posbias.core.training.layouts.judgments import GRADE, LABEL_STD_DEV
from posbias.core.training.layouts.preferences import LOSER, LOSER_ROW, WINNER, WINNER_ROW
from posbias.core.training.replicates import is_replicate
from posbias.io.layouts.training_set import Feature

MOST_CATEGORIES = 100_000
"""Distinct texts of a feature. What has more is an id, of which a model learns nothing about others."""

_ROW_COLUMNS = frozenset(
    (
        *(GROUP, SESSION, QUERY, DOC, POSITION, CLICK, CLICKS, IMPRESSIONS, LABEL, GRADE, PROPENSITY, WEIGHT),
        *(LABEL_STD_DEV, WINNER, LOSER, WINNER_ROW, LOSER_ROW),
    )
)
_ROW_NUMBERS = frozenset(("__index_level_0__", "Unnamed: 0"))
_OWN_PREFIX = "posbias_"
_MISSING_MARKS = ("na", "n/a", "#n/a", "null", "none", "nil", "\\n", "-", "?", "missing")  # in lower case
_AS_FLOAT64 = (pl.Decimal, pl.Int128, pl.UInt128, pl.Null)
TEXTS = (pl.String, pl.Categorical, pl.Enum)


@dataclass(frozen=True)
class FeatureColumns:
    """Columns to learn from."""

    features: tuple[Feature, ...]  # them, in their order
    # how each is read from the raw column: numbers as numbers (true and false as 1 and 0), text as text
    read: tuple[pl.Expr, ...]


def feature_columns(
    frames: Sequence[pl.LazyFrame], names: Sequence[str], untyped: Collection[str], where: str
) -> FeatureColumns:
    """Find out what columns hold. Only text is read for that; numbers are known by their type.

    Args:
        frames: parts of one table, all with the same columns.
        names: the columns.
        untyped: those that come from files without types (CSV): they hold numbers if every value is one.
        where: what is being read, for messages.

    Raises:
        SchemaError: a column's name is taken, or no model can learn from it.
    """
    schema = frames[0].collect_schema()
    check_columns(schema, names, where)
    texts = [name for name in names if isinstance(schema[name], TEXTS)]
    in_text = [name for name in texts if name in untyped]
    with_words = [
        frame.select(_is_word(pl.col(name)).any() for name in in_text).collect(engine="streaming") for frame in frames
    ]
    numbers = {name for name in in_text if not any(found[name].any() for found in with_words)}
    words = {name: _text(name, untyped) for name in texts if name not in numbers}
    categories = _categories(frames, words, untyped, where)
    features = tuple(Feature(name, categories.get(name)) for name in names)
    read = (_text(name, untyped) if name in categories else as_number(name, schema[name]).alias(name) for name in names)
    return FeatureColumns(features, tuple(read))


def check_columns(schema: pl.Schema, names: Sequence[str], where: str) -> None:
    """See that features have names of their own, and types that a model can learn from.

    Raises:
        SchemaError: one has not.
    """
    check_names(names, where)
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


def check_names(names: Sequence[str], where: str) -> None:
    """Features must have names that nothing else has in a row, and be no row numbers.

    Raises:
        SchemaError: a name is taken, or says that the column numbers the rows.
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


def _text(name: str, untyped: Collection[str]) -> pl.Expr:
    text = pl.col(name).cast(pl.String)
    return pl.when(text.str.strip_chars() != "").then(text).alias(name) if name in untyped else text


def as_number(name: str, dtype: pl.DataType) -> pl.Expr:
    """A feature as trainers take numbers; null where a text is none."""
    if isinstance(dtype, TEXTS):
        return pl.col(name).str.strip_chars().cast(pl.Float64, strict=False)
    if isinstance(dtype, pl.Boolean):
        return pl.col(name).cast(pl.Int8)
    if isinstance(dtype, pl.Float16):
        return pl.col(name).cast(pl.Float32)
    return pl.col(name).cast(pl.Float64) if isinstance(dtype, _AS_FLOAT64) else pl.col(name)


def _is_word(text: pl.Expr) -> pl.Expr:
    value = text.str.strip_chars()
    return value.cast(pl.Float64, strict=False).is_null() & (value != "")


def _categories(
    frames: Sequence[pl.LazyFrame], texts: dict[str, pl.Expr], untyped: Collection[str], where: str
) -> dict[str, tuple[str, ...]]:
    """The distinct values of columns of text, in ascending order.

    Raises:
        SchemaError: there are too many, or they are numbers but for marks of missing values.
    """
    if not texts:
        return {}
    found: dict[str, set[str]] = {name: set() for name in texts}
    for frame in frames:
        for batch in frame.select(*texts.values()).collect_batches(maintain_order=False, engine="streaming"):
            for name, values in found.items():
                values.update(batch[name].drop_nulls().unique())
                if len(values) > MOST_CATEGORIES:
                    _check_marks(name, values, untyped, where)
                    raise SchemaError(
                        f"{where}: the feature {name!r} holds more than {MOST_CATEGORIES:,} different texts: it looks "
                        "like an id or free text. Leave the column out, or write what it says as numbers."
                    )
    for name, values in found.items():
        _check_marks(name, values, untyped, where)
    return {name: tuple(sorted(values)) for name, values in found.items()}


def _check_marks(name: str, values: Collection[str], untyped: Collection[str], where: str) -> None:
    """Numbers among which missing values are marked would be taken for text."""
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
    """Trainers do not take infinite values.

    Args:
        frame: features as they were read, and keys.
        names: the features.
        keys: what tells the row, for the message.
        where: what is being read, for the message.

    Raises:
        SchemaError: there is one.
    """
    schema = frame.collect_schema()
    floats = [name for name in names if schema[name].is_float()]
    if not floats:
        return
    found = frame.select(pl.col(name).is_infinite().any() for name in floats).collect(engine="streaming")
    for name in floats:
        if found[name].any():
            rows = frame.filter(pl.col(name).is_infinite()).select(*keys, name).collect(engine="streaming")
            example = rows.sort(*keys)
            raise SchemaError(
                f"{where}: the feature {name!r} is {example[name][0]} for {described(example, keys)}"
                f"{f' and {rows.height - 1:,} more' if rows.height > 1 else ''}: trainers need finite numbers. "
                "Leave the value empty, or write a large number."
            )


def described(rows: pl.DataFrame, keys: Sequence[str], number: int = 0) -> str:
    """The keys of one row, for a message."""
    return ", ".join(f"{key} {value!r}" for key, value in rows.select(keys).row(number, named=True).items())
