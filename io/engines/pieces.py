"""The rows of a bucket that a frequent query makes large, in pieces that go into memory."""

import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

from posbias.io.engines.buckets import Buckets
from posbias.io.temporary.directories import remove_tree
from posbias.io.temporary.files import temporary_files

_MOST_ROWS_AT_ONCE = 1 << 21  # worked on together: they and their copies take 200 to 500 MB


@contextmanager
def pieces_of(rows: pl.LazyFrame, column: str, scratch: Path) -> Generator[list[pl.LazyFrame]]:
    """The rows in pieces that go into memory, on disk while they are used; one piece where all of them do.

    Args:
        rows: of a bucket, at least one.
        column: each of its values lies in one piece.
        scratch: a directory of ours.
    """
    number = -(-rows.select(pl.len()).collect().item() // _MOST_ROWS_AT_ONCE)
    if number <= 1:
        yield [rows]
        return
    pieces = Buckets(scratch / f"pieces-{secrets.token_hex(16)}", number)
    try:
        with temporary_files(scratch):
            pieces.write([rows], judged=False, key=column)
        yield pieces.frames
    finally:
        remove_tree(pieces.folder)
