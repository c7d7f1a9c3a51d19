"""Text files that are written in pieces, one per part of the training set, and joined at the end."""

import os
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import polars as pl

_PIECE = ".piece"
_STEP = 1 << 30  # bytes copied at once


def piece_path(folder: Path, file: str, part: int) -> Path:
    """Where the piece of a file lies that one part writes."""
    return folder / f"{file}.{part:05d}{_PIECE}"


@contextmanager
def open_pieces(folder: Path, part: int, *files: str) -> Generator[list[BinaryIO]]:
    """The pieces of several files, open to be written."""
    with ExitStack() as stack:
        yield [stack.enter_context(piece_path(folder, file, part).open("wb")) for file in files]


def write_lines(rows: pl.DataFrame, piece: BinaryIO, separator: str = "\t", null: str = "") -> None:
    """Append rows to a piece, without a header; texts that hold the separator, a quote or a line end are quoted.

    Floats are written with the fewest digits that read back as the same number.
    """
    rows.write_csv(piece, include_header=False, separator=separator, null_value=null)


def write_whole_lines(lines: pl.Series, piece: BinaryIO) -> None:
    """Append lines to a piece as they are."""
    lines.to_frame().write_csv(piece, include_header=False, quote_style="never")


def join_pieces(folder: Path, file: str, *pieces_of: str, header: str = "") -> None:
    """Join pieces in the order of their parts; the pieces go.

    Args:
        folder: where the pieces lie.
        file: the file that they make.
        pieces_of: the files whose pieces are joined, one file after the other; the file's own if none is named.
        header: what stands before them in the file.
    """
    with (folder / file).open("wb") as whole:
        whole.write(header.encode())
        whole.flush()
        for name in pieces_of or (file,):
            for piece in _pieces(folder, name):
                with piece.open("rb") as source:
                    _append(source, whole)
                piece.unlink()


def _pieces(folder: Path, file: str) -> list[Path]:
    """The pieces of a file, in the order of their parts. `train.tsv.weight` has pieces of its own."""
    parts = {
        path: path.name[len(file) + 1 : -len(_PIECE)]
        for path in folder.glob(f"*{_PIECE}")
        if path.name.startswith(file)
    }
    return sorted((path for path, part in parts.items() if part.isdigit()), key=lambda path: int(parts[path]))


def _append(source: BinaryIO, whole: BinaryIO) -> None:
    """Copy within the file system, so that no byte passes through this process, or, where that cannot, byte by byte."""
    try:
        while os.copy_file_range(source.fileno(), whole.fileno(), _STEP):
            pass
    except (AttributeError, OSError):  # not on this system, or not on this file system: the rest is still to be read
        shutil.copyfileobj(source, whole)
        whole.flush()
