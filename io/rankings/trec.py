"""Files of TREC, line by line: runs (`query Q0 doc rank score tag`) and qrels (`query iteration doc relevance`).

As in trec_eval, fields stand between blanks or tabs, and what a run says of ranks is not looked at.
"""

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from posbias.core.errors import LogFormatError
from posbias.io.log.scan import LINE, ROW, scan_lines
from posbias.io.log.sources import Source, named_paths

RUN, QRELS = ("query", "q0", "doc", "rank", "score", "tag"), ("query", "iteration", "doc", "relevance")
"""The fields of a line."""

_WHAT: dict[tuple[str, ...], str] = {RUN: "a line of a TREC run", QRELS: "a line of TREC qrels"}


@dataclass(frozen=True)
class TrecFile:
    """An opened file.

    Attributes:
        source: it.
        rows: its fields, as text; lines without any are left out.
    """

    source: Source
    rows: pl.LazyFrame


def open_trec(name: str, fields: tuple[str, ...]) -> TrecFile:
    """A file whose lines have these fields.

    Raises:
        LogFormatError: there is no such file, or a line has other fields.
    """
    source = _source(name)
    lines = scan_lines(source).with_columns(pl.col(LINE).str.strip_chars().str.strip_prefix("\ufeff"))
    lines = lines.filter(pl.col(LINE) != "")
    said = " ".join(fields)
    groups = "".join(rf"(?P<{field}>\S+)\s+" for field in fields[:-1]) + rf"(?P<{fields[-1]}>\S+)"
    found = pl.col(LINE).str.extract_groups(f"^{groups}$")
    try:
        others = lines.filter(found.struct.field(fields[0]).is_null()).head(1).collect(engine="streaming")
        is_empty = not lines.head(1).collect(engine="streaming").height
    except (pl.exceptions.PolarsError, OSError) as error:
        raise LogFormatError(f"{name}: cannot be read as text: {str(error).splitlines()[0]}.") from error
    if is_empty:
        raise LogFormatError(f"{name}: holds no line. {_WHAT[fields][:1].upper()}{_WHAT[fields][1:]} is {said}.")
    if others.height:
        number, line = others.select(ROW, LINE).row(0)
        raise LogFormatError(
            f"{name}: line {number} is not {_WHAT[fields]} ({said}): {line[:80]}. Is it a table? Then give "
            "it a name that says so, such as .csv or .parquet."
        )
    return TrecFile(source, lines.select(found.alias(LINE)).unnest(LINE))


def _source(name: str) -> Source:
    """One file.

    Raises:
        LogFormatError: there is none, or several.
    """
    places = named_paths(name)
    if len(places) != 1:
        raise LogFormatError(f"{name}: {'no such file' if not places else 'more than one file'}. Name one file.")
    place = places[0]
    if not isinstance(place, Path):
        raise LogFormatError(f"{name}: a TREC file is read from disk only. Copy it, or give a table.")
    if not place.is_file():
        raise LogFormatError(f"{name}: is not a file. Name a file of TREC.")
    state = place.stat()
    if state.st_size == 0:
        raise LogFormatError(f"{name}: the file is empty (0 bytes).")
    return Source(place, "tsv", (), state.st_size, state.st_mtime_ns)
