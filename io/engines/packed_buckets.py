"""Buckets of rows that are numbers of 64 bits, written and read several times faster than their columns."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from posbias.core.arrays.bit_fields import NUMBER, BitFields, bit_fields
from posbias.core.errors import LogFormatError
from posbias.core.log.impressions import REJECTED
from posbias.core.schema import CLICK, CLICKS, DOC, IMPRESSIONS, PERIOD, POSITION, QUERY, RANDOMIZED, SESSION
from posbias.io.engines.bucket_files import BUCKET, MOST_ROWS_OF_BLOCK, BucketFiles, can_be_open
from posbias.io.engines.buckets import Buckets, bucket_of, only_sessions
from posbias.io.engines.contract import ROWS
from posbias.io.log.log import Log, good_rows

_SEEN_ROWS = 1 << 16  # at either end of the log
_SHORT_SESSIONS = 1 << 28  # a sixteenth of what 32 bits hold
_LARGEST_OF_32_BITS = 2**32 - 1


ReadNumbers = Callable[[int], Iterator[pl.Series]]
"""Gives the numbers of a bucket, about so many at once."""


@dataclass(frozen=True)
class Numbers:
    """Rows as numbers."""

    buckets: tuple[ReadNumbers, ...]
    fields: BitFields  # what they say


@dataclass(frozen=True)
class PackedBuckets:
    """Rows on disk, in a directory of ours: their session, and all that they hold besides as one number.

    Rows that do not fit the bits lie in buckets of columns, and so do faulty ones. Those whose session is known lie
    apart from the others of their bucket, which are as many files further on.
    """

    folder: Path
    number: int  # B, of buckets that hold whole queries; faulty rows are in another one, the last
    fields: BitFields  # what the numbers say
    schema: pl.Schema  # the columns of rows, as the log has them
    short_session: pl.DataType | None  # the type in which sessions take fewer bytes, where there is one
    at_once: int  # blocks of rows that are sorted
    _height: dict[int, int] = field(default_factory=dict[int, int])  # of the files that there are
    _clicks: list[int] = field(default_factory=list[int])

    def write(self, frames: Iterable[pl.LazyFrame], again: Iterable[pl.LazyFrame], looked_at: pl.Expr | None) -> None:
        """Split rows, one frame after the other.

        Args:
            frames: the rows, marked in `rejected`.
            again: the same rows, which are read where some do not fit.
            looked_at: whether a row's session is known and its page looked at, so that it is kept; None where all are.

        Raises:
            LogFormatError: the log changed meanwhile.
        """
        fits = (pl.col(REJECTED) == 0) & self.fields.fit
        bucket, session = _short_number(bucket_of(QUERY, self.number)), list[pl.Expr]()
        if SESSION in self.schema:
            known = pl.col(SESSION).is_not_null() if looked_at is None else looked_at
            if self.short_session is None:
                session = [pl.col(SESSION)]
            else:
                session = [pl.col(SESSION).cast(self.short_session, wrap_numerical=True)]
                fits &= pl.col(SESSION).is_between(0, _LARGEST_OF_32_BITS) | ~known
            bucket = pl.when(known).then(bucket + _short_number(self.number + 1)).otherwise(bucket)
        bucket = pl.when(fits).then(bucket).otherwise(_short_number(self.number))
        number = self.fields.number.fill_null(0)  # what is here of rows that do not fit means nothing
        packed = (frame.select(number, *session, bucket.alias(BUCKET)) for frame in frames)
        height, clicks = self._split.write(packed, MOST_ROWS_OF_BLOCK, self.at_once, self._count_clicks)
        self._clicks.append(clicks)
        self._height.update({file: int(height[file]) for file in np.flatnonzero(height).tolist()})
        others = self._height.pop(self.number, 0)
        if others:
            self._others.write(frame.filter(~fits) for frame in only_sessions(again, looked_at))
            found, _ = self._others.count_rows()
            if found != others:
                raise LogFormatError(
                    f"{others:,} rows of the log were read twice, and were {found:,} the second time: it was changed "
                    "meanwhile. Run the command again."
                )

    @property
    def frames(self) -> list[pl.LazyFrame]:
        """The buckets that hold rows, in the order of their number."""
        return [self._frame(number, self._files_of(number)) for number in self._held]

    @property
    def with_session(self) -> list[pl.LazyFrame]:
        """Of these, the rows whose session is known."""
        known = pl.col(SESSION).is_not_null()
        files = ([file for file in self._files_of(number) if file > self.number] for number in self._held)
        return [
            self._frame(number, of_bucket).filter(known) for number, of_bucket in zip(self._held, files, strict=True)
        ]

    @property
    def numbers(self) -> Numbers | None:
        """The numbers of these buckets; None where some rows are none."""
        if any(self._others.holds(number) for number in range(self.number)):
            return None
        read = partial(self._split.pieces, NUMBER)
        return Numbers(tuple(partial(read, self._files_of(number)) for number in self._held), self.fields)

    @property
    def faulty(self) -> pl.LazyFrame:
        """The rows that break the contract; there are some."""
        return self._others.faulty

    def holds(self, number: int) -> bool:
        """Whether a bucket holds rows."""
        return bool(self._files_of(number)) or self._others.holds(number)

    def count_rows(self) -> tuple[int, pl.DataFrame]:
        """How many rows were written, and the `row_counts`."""
        _, counts = self._others.count_rows()
        if self._height:
            rows = sum(self._height.values())
            packed = {REJECTED: 0, ROWS: rows, IMPRESSIONS: rows, CLICKS: sum(self._clicks)}
            counts = pl.concat([counts, pl.DataFrame([packed], schema=counts.schema)])
        counts = counts.group_by(REJECTED).sum().sort(REJECTED)
        return int(counts[ROWS].sum()), counts

    @property
    def _split(self) -> BucketFiles:
        session = {SESSION: self.number + 1} if SESSION in self.schema else {}
        columns = {NUMBER: 0} | session
        return BucketFiles(self.folder / "packed", _files_for(self.number), columns)

    @property
    def _others(self) -> Buckets:
        return Buckets(self.folder / "others", self.number)

    @property
    def _held(self) -> list[int]:
        return [number for number in range(self.number) if self.holds(number)]

    def _count_clicks(self, rows: pl.DataFrame) -> int:
        """The clicks of rows that fit: the lowest bits of their numbers."""
        clicked = rows[NUMBER].to_numpy() & 1
        misfits = rows[BUCKET].to_numpy() == self.number
        return int(clicked.sum()) - int(clicked[misfits].sum())

    def _files_of(self, number: int) -> list[int]:
        """The files of a bucket that hold rows."""
        return [file for file in (number, number + self.number + 1) if file in self._height]

    def _scan(self, file: int) -> pl.LazyFrame:
        return pl.scan_ipc(self._split.path(file), hive_partitioning=False, glob=False)

    def _frame(self, number: int, files: Iterable[int]) -> pl.LazyFrame:
        """The rows of a bucket that are in some files, and those that are no numbers."""
        found = [self._rows(file) for file in files]
        if self._others.holds(number):
            found.append(self._others.frame(number).select(self.schema.names()))
        return pl.concat(found) if found else pl.LazyFrame(schema=self.schema)

    def _rows(self, file: int) -> pl.LazyFrame:
        """The rows of a file."""
        columns = self.fields.values
        if SESSION in self.schema:
            session = pl.col(SESSION) if file > self.number else pl.lit(None)
            columns.append(session.cast(self.schema[SESSION]).alias(SESSION))
        return self._scan(file).select(columns).select(self.schema.names())


def _short_number(number: pl.Expr | int) -> pl.Expr:
    """The number of a bucket, in 16 bits."""
    return (pl.lit(number) if isinstance(number, int) else number).cast(pl.UInt16, wrap_numerical=True)


def _files_for(number: int) -> int:
    """How many files buckets may take: one each for rows with and without a session, and one for what does not fit."""
    return 2 * number + 1


def packed_buckets(log: Log, folder: Path, number: int, at_once: int) -> PackedBuckets | None:
    """Buckets for the rows of a log; None where they cannot be numbers, or too many files would be open.

    The former is told by the first rows, and the last ones where a file has an end to read. It takes ids that are whole
    numbers, not too large (no 64-bit hashes), and no weights.

    Args:
        log: the rows.
        folder: a directory of ours.
        number: of buckets.
        at_once: how many blocks of rows are sorted at once.
    """
    rows = log.impressions
    schema = rows.drop(REJECTED).collect_schema()
    if log.click_sources or log.raw is not None or IMPRESSIONS in schema or not can_be_open(_files_for(number)):
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
    short = _short(seen[SESSION]) if session else None
    return PackedBuckets(folder, number, fields, schema, short, at_once)


def _short(sessions: pl.Series) -> pl.DataType | None:
    """A type of half the width, with room for sixteen times the largest."""
    if not sessions.dtype.is_integer():
        return None
    least, most = sessions.min(), sessions.max()
    if not isinstance(least, int) or not isinstance(most, int):
        return None
    return pl.UInt32() if least >= 0 and most < _SHORT_SESSIONS else None
