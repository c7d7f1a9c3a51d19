"""Fields of structs as columns of their own, under their paths: `event.query.text`, or `results.doc` of a list."""

from collections.abc import Iterator

import polars as pl


def with_paths(frame: pl.LazyFrame) -> pl.LazyFrame:
    """The rows with a column for each field of a struct, or of the structs in a list; only those that are used cost.

    A column that is called like a path is that column.
    """
    schema = frame.collect_schema()
    fields = [field for name, dtype in schema.items() for field in _fields_below(name, pl.col(name), dtype)]
    return frame.with_columns(values.alias(path) for path, values in fields if path not in schema) if fields else frame


def are_structs(dtype: pl.DataType) -> bool:
    """Whether a column holds structs, or lists of them: its fields have paths."""
    return isinstance(dtype, pl.Struct) or _holds_structs(dtype)


def is_path(name: str, schema: pl.Schema) -> bool:
    """Whether a column is a field of another one."""
    return any(name.startswith(f"{column}.") for column, dtype in schema.items() if are_structs(dtype))


def _fields_below(path: str, values: pl.Expr, dtype: pl.DataType) -> Iterator[tuple[str, pl.Expr]]:
    """The fields below a column, or a field: those that are no structs themselves, with their values."""
    if isinstance(dtype, pl.Array) and isinstance(dtype.inner, pl.Struct):
        yield from _fields_below(path, values.arr.to_list(), pl.List(dtype.inner))
    elif isinstance(dtype, pl.List) and isinstance(dtype.inner, pl.Struct):
        for below, of_entry, inner in _inside("", pl.element(), dtype.inner):
            if not inner.is_nested():
                yield f"{path}{below}", values.list.eval(of_entry)
    elif isinstance(dtype, pl.Struct):
        for below, of_row, inner in _inside("", values, dtype):
            if _holds_structs(inner):
                yield from _fields_below(f"{path}{below}", of_row, inner)
            else:
                yield f"{path}{below}", of_row


def _inside(path: str, values: pl.Expr, dtype: pl.DataType) -> Iterator[tuple[str, pl.Expr, pl.DataType]]:
    """The fields of a struct and of the structs in it: path, values and type of each."""
    if not isinstance(dtype, pl.Struct):
        yield path, values, dtype
        return
    for field in dtype.fields:
        inner = pl.Series(dtype=field.dtype).dtype  # a type may be given as its class
        yield from _inside(f"{path}.{field.name}", values.struct.field(field.name), inner)


def _holds_structs(dtype: pl.DataType) -> bool:
    return isinstance(dtype, pl.List | pl.Array) and isinstance(dtype.inner, pl.Struct)
