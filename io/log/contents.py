"""What a file is by its first bytes, where its name does not say it."""

import gzip
import io
import zlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, BinaryIO

_MAGIC = {b"PAR1": "parquet", b"ARROW1": "ipc"}
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_PIECE = 1 << 20  # bytes
DAMAGED = (EOFError, OSError, zlib.error)
"""What is raised where a packed file is damaged, or ends before its time."""

_OF_NO_TEXT = frozenset({*range(9), *range(14, 27)})


def format_of_content(start: bytes) -> str | None:
    """The format of a file that begins so: an object per line, an array of them, or text with tabs or without.

    Returns:
        "parquet", "ipc", "ndjson", "json", "tsv" or "csv"; None where it is no text.
    """
    known = next((form for magic, form in _MAGIC.items() if start.startswith(magic)), None)
    if known is not None:
        return known
    start = unpacked_start(start)
    is_wide = wide_encoding(start) is not None
    for mark in _MARKS:
        start = start.removeprefix(mark)
    if is_wide:
        start = start.replace(b"\0", b"")
    if not start.strip() or not _OF_NO_TEXT.isdisjoint(start):
        return None
    first = start.lstrip()
    if first.startswith(b"{"):
        return "ndjson"
    if first.startswith(b"[") and first[1:].lstrip()[:1] in {b"{", b"]", b""}:
        return "json"
    line = first.splitlines()[0]
    return "tsv" if b"\t" in line else "csv"


def wide_encoding(start: bytes) -> str | None:
    """The form of UTF-16 that text begins in, by its mark or by the zero byte of its first letter; None for others."""
    if start.startswith(_MARKS[1:]):
        return "utf-16"
    zeros = [place for place, byte in enumerate(start[:2]) if byte == 0]
    return {0: "utf-16-be", 1: "utf-16-le"}[zeros[0]] if len(zeros) == 1 else None


def is_packed(start: bytes) -> bool:
    """Whether a file that begins so is packed by gzip or zstd."""
    return start.startswith((_GZIP, _ZSTD))


def unpacked(packed: BinaryIO) -> Iterator[bytes]:
    """The content of a file, without gzip or zstd around it, piece by piece.

    Raises:
        EOFError, OSError, zlib.error: it is damaged, or ends before its time.
    """
    start = packed.read(len(_ZSTD))
    packed.seek(0)
    stream: Any = packed
    if start.startswith(_GZIP):
        stream = gzip.GzipFile(fileobj=packed)
    elif start == _ZSTD:
        arrow: Any = import_module("pyarrow")  # only here: importing it takes time
        stream = arrow.CompressedInputStream(arrow.PythonFile(packed, mode="r"), "zstd")
    while piece := stream.read(_PIECE):
        yield piece


def unpacked_start(start: bytes) -> bytes:
    """The beginning of a file, without its wrapper where it is packed by gzip or zstd."""
    if not is_packed(start):
        return start
    found = b""
    try:
        for piece in unpacked(io.BytesIO(start)):
            found += piece
    except DAMAGED:  # it is but the beginning
        return found
    return found
