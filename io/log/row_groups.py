"""The row groups of Parquet files: whoever reads one decodes it whole."""

from collections.abc import Sequence
from importlib import import_module
from io import BytesIO
from typing import Any

from posbias.io.log.sources import Source, each_source, read_end

_LENGTH_AND_MAGIC = 8  # bytes: the footer's length, and "PAR1"


def longest_row_groups(sources: Sequence[Source]) -> list[int]:
    """How many rows the longest row group of each Parquet file has, by its footer; 0 in an empty file.

    Raises:
        OSError: a file cannot be read any more.
    """
    return list(each_source(_longest, sources))


def _longest(source: Source) -> int:
    parquet: Any = import_module("pyarrow.parquet")  # only here: importing it takes time, and it has no types
    length = int.from_bytes(read_end(source, _LENGTH_AND_MAGIC)[:4], "little")
    metadata = parquet.read_metadata(BytesIO(read_end(source, length + _LENGTH_AND_MAGIC)))
    return max((metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)), default=0)
