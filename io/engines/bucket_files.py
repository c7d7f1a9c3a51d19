"""Rows split into one file for each bucket: blocks of rows are sorted by bucket, and each piece goes to its file.

Several threads sort blocks. They are written in the order in which they are read, so that files do not depend on that.
"""

import resource
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from posbias.core.arrays.count_table import Integers, first_of_runs
from posbias.core.arrays.threads import at_once

BUCKET = "posbias_bucket"
"""The column that says in which bucket a row lies (UInt16)."""

MOST_ROWS_OF_BLOCK = 1 << 20
"""More would not be faster."""

_MOST_BUCKETS = 1 << 16
_LEAST_LENGTH_OF_RUNS = 3  # rows that stand together, on average, from which on that is used
_OTHER_FILES = 256  # that a process has open: logs, results, libraries


@dataclass(frozen=True)
class BucketFiles:
    """A file of Arrow IPC for each bucket that has rows, in a directory of ours."""

    folder: Path
    number: int  # of buckets
    columns: Mapping[str, int]  # what files hold, with the first bucket whose file holds it

    def write(
        self, frames: Iterable[pl.LazyFrame], block: int, blocks_at_once: int, tally: Callable[[pl.DataFrame], int]
    ) -> tuple[Integers, int]:
        """Split rows, one frame after the other.

        Args:
            frames: the rows, with BUCKET.
            block: how many are sorted together.
            blocks_at_once: how many blocks are.
            tally: a count over the rows of a block.

        Returns:
            How many rows each bucket has, shape (B,), and what all tallies add up to.
        """
        self.folder.mkdir(parents=True)
        batches = chain.from_iterable(
            frame.collect_batches(chunk_size=block, lazy=True, engine="streaming") for frame in frames
        )
        height, tallied = np.zeros(self.number, np.int64), 0
        sort = partial(_sorted_by_bucket, columns=self.columns, number=self.number, tally=tally)
        with ExitStack() as files:
            writers = dict[int, Any]()
            for sorted_block in at_once(sort, batches, blocks_at_once):
                for bucket, rows in sorted_block.pieces:
                    if bucket not in writers:
                        writers[bucket] = files.enter_context(self._writer(bucket, rows.schema))
                    writers[bucket].write_batch(rows)
                height += sorted_block.height
                tallied += sorted_block.tally
        return height, tallied

    def path(self, bucket: int) -> Path:
        """The file of a bucket; it is there if the bucket has rows."""
        return self.folder / f"{bucket:05d}.arrow"

    def pieces(self, column: str, buckets: Iterable[int], most: int) -> Iterator[pl.Series]:
        """A column of some buckets together, so many rows at once at most, not copied."""
        arrow: Any = import_module("pyarrow")  # only here: importing it takes time
        piece, rows = list[Any](), 0
        for values in chain.from_iterable(self._arrays(column, bucket) for bucket in buckets):
            first = 0
            while first < len(values):
                piece.append(values.slice(first, most - rows))
                first += len(piece[-1])
                rows += len(piece[-1])
                if rows == most:
                    yield pl.Series(arrow.chunked_array(piece))
                    piece, rows = [], 0
        if piece:
            yield pl.Series(arrow.chunked_array(piece))

    def _arrays(self, column: str, bucket: int) -> Iterator[Any]:
        """A column of a bucket, block by block."""
        arrow, ipc = import_module("pyarrow"), import_module("pyarrow.ipc")  # only here: importing them takes time
        only_this = ipc.IpcReadOptions(included_fields=[list(self.columns).index(column)])
        with arrow.memory_map(str(self.path(bucket))) as file:
            blocks = ipc.open_file(file, options=only_this)
            for number in range(blocks.num_record_batches):
                yield blocks.get_batch(number).column(0)

    def _writer(self, bucket: int, schema: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
        ipc: Any = import_module("pyarrow.ipc")  # only here: importing it takes time
        return ipc.new_file(str(self.path(bucket)), schema)  # not compressed: bits of ids are not much shorter then


def can_be_open(number: int) -> bool:
    """Whether so many files can be open at once; the system is asked for that."""
    wanted = number + _OTHER_FILES
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if least < wanted and (most == resource.RLIM_INFINITY or wanted <= most):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
        least = wanted
    return number <= _MOST_BUCKETS and (wanted <= least or least == resource.RLIM_INFINITY)


@dataclass(frozen=True)
class _Block:
    """Some rows, sorted by bucket."""

    columns: Mapping[str, tuple[Any, int]]  # Arrow arrays, and the row of the block that each begins with
    height: Integers  # rows in each bucket, shape (B,)
    tally: int  # a count over all rows

    @property
    def pieces(self) -> Iterator[tuple[int, Any]]:
        """The buckets that have rows, with these."""
        arrow: Any = import_module("pyarrow")  # only here: importing it takes time
        starts = (np.cumsum(self.height) - self.height).tolist()
        for bucket in np.flatnonzero(self.height).tolist():
            start, height = starts[bucket], int(self.height[bucket])
            held = {name: (of, start - first) for name, (of, first) in self.columns.items() if start >= first}
            yield bucket, arrow.record_batch({name: of.slice(at, height) for name, (of, at) in held.items()})


def _sorted_by_bucket(
    rows: pl.DataFrame, columns: Mapping[str, int], number: int, tally: Callable[[pl.DataFrame], int]
) -> _Block:
    rows = rows.rechunk()
    order, height = _order_by_bucket(rows[BUCKET].to_numpy(), number)
    first = {name: int(height[:of].sum()) for name, of in columns.items()}
    in_order = {name: (_arrow(rows[name].gather(order[at:])), at) for name, at in first.items()}
    return _Block(in_order, height, tally(rows))


def _order_by_bucket(bucket: NDArray[np.uint16], number: int) -> tuple[pl.Series, Integers]:
    """The rows of a block in the order of their buckets, as they came within each, and how many each has.

    Rows of one bucket that stand together, as those of a page do, are sorted as one.
    """
    first = first_of_runs(bucket)
    if len(first) * _LEAST_LENGTH_OF_RUNS > len(bucket):
        return pl.Series(_sorted_stably(bucket)), np.bincount(bucket, minlength=number)
    length, of_run = np.diff(first, append=len(bucket)), bucket[first]
    order = _sorted_stably(of_run)
    first, length = first[order].astype(np.uint32), length[order]
    before = (np.cumsum(length) - length).astype(np.uint32)
    rows = np.repeat(first - before, length) + np.arange(len(bucket), dtype=np.uint32)  # modulo 2^32
    height = np.bincount(of_run[order], weights=length, minlength=number).astype(np.int64)
    return pl.Series(rows), height


def _sorted_stably(bucket: NDArray[np.uint16]) -> Integers:
    return np.argsort(bucket, kind="stable")  # of 16 bits: a radix sort


def _arrow(values: pl.Series) -> Any:  # noqa: ANN401 - pyarrow has no types
    return cast("Any", values.to_arrow(compat_level=pl.CompatLevel.oldest()))
