"""The ids of queries and documents that have factors, in files beside these."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import polars as pl
from polars.exceptions import PolarsError

from posbias.core.arrays.count_table import Integers
from posbias.core.errors import LogFormatError, SchemaError
from posbias.core.schema import DOC, QUERY
from posbias.io.results.tables import read_table

QUERIES, DOCUMENTS = "queries.parquet", "documents.parquet"
_NUMBER = "posbias_number"


@dataclass(frozen=True)
class Ids:
    """Which queries and documents have factors.

    Attributes:
        queries: in the order of their numbers.
        documents: likewise.
    """

    queries: pl.Series
    documents: pl.Series

    def files(self) -> dict[str, bytes]:
        """The content of the files, by name: a row for each, its place the place of its factors."""
        return {QUERIES: _packed(self.queries.alias(QUERY)), DOCUMENTS: _packed(self.documents.alias(DOC))}

    @classmethod
    def read(cls, folder: Path) -> "Ids":
        """The ids beside a model.

        Raises:
            LogFormatError: a file holds none.
        """
        return cls(_ids_in(folder / QUERIES, QUERY), _ids_in(folder / DOCUMENTS, DOC))

    def numbers(self, rows: pl.DataFrame) -> tuple[Integers, Integers]:
        """The numbers of the queries and documents of rows; -1 for what was never seen.

        Raises:
            SchemaError: rows have no query, or ids that cannot be compared with those of the model.
        """
        if QUERY not in rows.columns:
            raise SchemaError("the model ranks by query and document, and no column says the query. Name it: --query.")
        return _numbers(self.queries, rows[QUERY], "query"), _numbers(self.documents, rows[DOC], "doc")


def _numbers(known: pl.Series, wanted: pl.Series, role: str) -> Integers:
    numbered = known.alias("id").to_frame().with_row_index(_NUMBER)
    try:
        asked = wanted.cast(known.dtype, strict=False).alias("id").to_frame()
        found = asked.join(numbered, on="id", how="left", maintain_order="left", nulls_equal=False)
    except PolarsError as error:
        raise SchemaError(f"--{role}: holds {wanted.dtype}, and the model knows {known.dtype}.") from error
    return found[_NUMBER].cast(pl.Int64).fill_null(-1).to_numpy().astype(np.int64)


def _packed(ids: pl.Series) -> bytes:
    file = BytesIO()
    ids.to_frame().write_parquet(file)
    return file.getvalue()


def _ids_in(path: Path, column: str) -> pl.Series:
    table = read_table(path)
    if table.columns != [column] or table[column].has_nulls() or table[column].is_duplicated().any():
        raise LogFormatError(f"{path}: does not hold one column {column!r} of ids, each once. Train again.")
    return table[column]
