"""Buckets of rows that are numbers of 64 bits, written and read several times faster than their columns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl

from posbias.core.arrays.bit_fields import NUMBER, BitFields, bit_fields
from posbias.core.log.impressions import REJECTED
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, RANDOMIZED, SESSION
from posbias.io.engines.buckets import BUCKET, Buckets, bucket_of_query
from posbias.io.engines.contract import ROWS
from posbias.io.engines.local_parts import Numbers
from posbias.io.log.log import Log, good_rows

_SEEN_ROWS = 1 << 16  # at either end of the log
_SHORT_SESSIONS = 1 << 28  # a sixteenth of what 32 bits hold


@dataclass(frozen=True)
class PackedBuckets:
    """Rows on disk, in a directory of ours: their session, and all that they hold besides as one number.

    Rows that do not fit the bits lie in buckets of columns, and so do faulty ones.

    Attributes:
        folder: where.
        number: of buckets that hold whole queries; faulty rows are in another one, the last.
        fields: what the numbers say.
        schema: the columns of rows, as the log has them.
        short_session: the type in which sessions take fewer bytes, where there is one.
    """

    folder: Path
    number: int
    fields: BitFields
    schema: pl.Schema
    short_session: pl.DataType | None

    def write(self, frames: Iterable[pl.LazyFrame], again: Iterable[pl.LazyFrame]) -> None:
        """Split rows, one frame after the other.

        Args:
            frames: the rows, marked in `rejected`.
            again: the same rows, which are read where some do not fit.
        """
        fits = (pl.col(REJECTED) == 0) & self.fields.fit
        session = [pl.col(SESSION)] if SESSION in self.schema else []
        if self.short_session is not None:
            short = pl.col(SESSION).cast(self.short_session, strict=False)
            fits &= short.is_not_null() | pl.col(SESSION).is_null()
            session = [short]
        bucket = bucket_of_query(self.number)
        if session:  # rows with one lie apart
            bucket = pl.when(pl.col(SESSION).is_null()).then(bucket).otherwise(bucket + self.number + 1)
        bucket = pl.when(fits).then(bucket).otherwise(self.number)
        number = pl.when(fits).then(self.fields.number).otherwise(0).alias(NUMBER)
        for at, frame in enumerate(frames):
            place = pl.PartitionBy(self.folder / f"{at:05d}", key=BUCKET, include_key=False)
            packed = frame.select(number, *session, bucket.alias(BUCKET))
            packed.sink_ipc(place, compression="lz4", mkdir=True, engine="streaming")
        if self.number in self._files:
            self._others.write(frame.filter(~fits) for frame in again)

    @property
    def frames(self) -> list[pl.LazyFrame]:
        """The buckets that hold rows, in the order of their number."""
        return [self._frame(number, self._files_of(number)) for number in self._held]

    @property
    def with_session(self) -> list[pl.LazyFrame]:
        """Of these, the rows whose session is known."""
        known = pl.col(SESSION).is_not_null()
        return [
            self._frame(number, self._files.get(self.number + 1 + number, [])).filter(known) for number in self._held
        ]

    @property
    def numbers(self) -> Numbers | None:
        """The numbers of these buckets; None where some rows are none."""
        if any(self._others.holds(number) for number in range(self.number)):
            return None
        return Numbers(tuple(_packed(self._files_of(number)).select(NUMBER) for number in self._held), self.fields)

    @property
    def faulty(self) -> pl.LazyFrame:
        """The rows that break the contract; there are some."""
        return self._others.faulty

    def holds(self, number: int) -> bool:
        """Whether a bucket holds rows."""
        return bool(self._files_of(number)) or self._others.holds(number)

    def count_rows(self) -> tuple[int, pl.DataFrame]:
        """How many rows were written, and the `row_counts`."""
        files = [path for number in range(self.number) for path in self._files_of(number)]
        _, counts = self._others.count_rows()
        if files:
            rows, clicks = pl.len().cast(pl.Int64), (pl.col(NUMBER) % 2).sum().cast(pl.Int64)
            fault = pl.lit(0, pl.UInt8).alias(REJECTED)
            packed = _packed(files).select(fault, rows.alias(ROWS), rows.alias(IMPRESSIONS), clicks.alias(CLICKS))
            counts = pl.concat([counts, packed.collect(engine="streaming")])
        counts = counts.group_by(REJECTED).sum().sort(REJECTED)
        return int(counts[ROWS].sum()), counts

    @property
    def _others(self) -> Buckets:
        return Buckets(self.folder / "others", self.number)

    @property
    def _held(self) -> list[int]:
        return [number for number in range(self.number) if self.holds(number)]

    @cached_property
    def _files(self) -> dict[int, list[Path]]:
        """The files by their bucket; those of rows with a session are counted from `number` + 1 on."""
        found = dict[int, list[Path]]()
        for path in sorted(self.folder.glob(f"*/{BUCKET}=*/*.ipc")):
            found.setdefault(int(path.parent.name.partition("=")[2]), []).append(path)
        return found

    def _files_of(self, number: int) -> list[Path]:
        return [*self._files.get(number, []), *self._files.get(self.number + 1 + number, [])]

    def _frame(self, number: int, files: Sequence[Path]) -> pl.LazyFrame:
        """The rows of a bucket that are in some files, and those that are no numbers."""
        found = list[pl.LazyFrame]()
        if files:
            session = [pl.col(SESSION).cast(self.schema[SESSION])] if SESSION in self.schema else []
            found.append(_packed(files).select(*self.fields.values, *session).select(self.schema.names()))
        if self._others.holds(number):
            found.append(self._others.frame(number).select(self.schema.names()))
        return pl.concat(found) if found else pl.LazyFrame(schema=self.schema)


def _packed(files: Sequence[Path]) -> pl.LazyFrame:
    return pl.scan_ipc(list(files), hive_partitioning=False, glob=False)


def packed_buckets(log: Log, folder: Path, number: int) -> PackedBuckets | None:
    """Buckets for the rows of a log; None where they cannot be numbers.

    That is told by the first rows, and the last ones where a file has an end to read. It takes ids that are whole
    numbers, not too large (no 64-bit hashes), and no weights.
    """
    rows = log.impressions
    schema = rows.drop(REJECTED).collect_schema()
    if log.click_sources or log.raw is not None or IMPRESSIONS in schema:
        return None
    first = (QUERY, DOC, *log.roles.context, PERIOD)
    last = (RANDOMIZED, POSITION, CLICK)
    between = [name for name in schema if name not in {SESSION, *first, *last}]
    names = [name for name in dict.fromkeys((*first, *between, *last)) if name in schema]
    if not all(schema[name].is_integer() or schema[name].is_temporal() or schema[name] == pl.Boolean for name in names):
        return None
    session = [SESSION] if SESSION in schema else []
    ends = [rows.head(_SEEN_ROWS), *([rows.tail(_SEEN_ROWS)] if log.rows_are_known else [])]
    seen = pl.concat(good_rows(end).select(*names, *session).collect(engine="streaming") for end in ends)
    fields = bit_fields(seen.select(names), growing=(QUERY, DOC), known={CLICK: 1})
    if fields is None:
        return None
    return PackedBuckets(folder, number, fields, schema, _short(seen[SESSION]) if session else None)


def _short(sessions: pl.Series) -> pl.DataType | None:
    """A type of half the width, with room for sixteen times the largest."""
    if not sessions.dtype.is_integer():
        return None
    least, most = sessions.min(), sessions.max()
    if not isinstance(least, int) or not isinstance(most, int):
        return None
    return pl.UInt32() if least >= 0 and most < _SHORT_SESSIONS else None
