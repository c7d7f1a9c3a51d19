"""TianGong-ST: sessions of the search engine Sogou as XML (Chen et al., CIKM 2019; http://www.thuir.cn/tiangong-st).

    <session num=..> <interaction num=..> <query_id>, <query>
        <results> <result rank=..> <docid>
        <clicked> <click> <rank>

The page of the data describes no schema: these elements are those that published programs read from the file; its
clicks name the rank of a result. Elements beside them are passed over. A document type, which could define entities, is
refused.
"""

import gzip
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, ClassVar, NoReturn
from xml.parsers import expat

import polars as pl
from polars.io.plugins import register_io_source

from posbias.core.errors import LogFormatError
from posbias.io.forms.lines import MOMENT, RECORD_TYPES, Line, click_line, page_line, records_of
from posbias.io.forms.pages import PageForm, PageReader
from posbias.io.log.raw import RawReader, RawRules
from posbias.io.log.scan import FILE, ROW
from posbias.io.log.sources import Source

_PIECE = 1 << 20  # bytes
_RECORDS_AT_ONCE = 20_000
_MOST_DIGITS = 9
_GZIP = ".gz"
_TYPES = {FILE: pl.UInt32(), ROW: pl.UInt32(), **RECORD_TYPES, MOMENT: pl.Int64()}


class TianGong(PageForm):
    """A page is an interaction; its clicks name the ranks of its results."""

    name: ClassVar[str] = "tiangong"
    title: ClassVar[str] = "TianGong-ST"
    formats: ClassVar[tuple[str, ...]] = ("xml",)
    expected: ClassVar[str] = "TianGong-ST is XML; name the file .xml (.xml.gz)."
    wanted: ClassVar[tuple[str, ...]] = ("click",)

    def read(self, text: str, rules: RawRules) -> NoReturn:
        """It has no lines."""
        raise NotImplementedError

    def reader(self, rules: RawRules) -> RawReader:
        """What makes a log of such a file."""
        return TianGongReader(self, rules, self.name, self.title, self.formats, self.expected)

    def knows_text(self, start: str) -> bool:
        """Whether a file that begins so has interactions with results."""
        return "<interaction" in start and "<results" in start


@dataclass(frozen=True)
class TianGongReader(PageReader):
    """Makes a log of pages and their clicks."""

    unit: str = "records"

    def records(self, source: Source, number: int) -> pl.LazyFrame:
        """One record for each page, and for each click."""

        def frames(
            with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, batch_size: int | None
        ) -> Iterator[pl.DataFrame]:
            del n_rows, batch_size
            for frame in _frames(source, number):
                kept = frame if predicate is None else frame.filter(predicate)
                yield kept if with_columns is None else kept.select(with_columns)

        return register_io_source(frames, schema=pl.Schema(_TYPES))


def _frames(source: Source, number: int) -> Iterator[pl.DataFrame]:
    """The records of a file, some at a time; each has the line where its page begins, and they are in order."""
    rows, records, before = list[int](), list[Line](), 0
    for row, found in _pages(source):
        records += found
        rows += [row] * len(found)
        if len(records) >= _RECORDS_AT_ONCE:
            yield _frame(number, rows, records, before)
            before += len(records)
            rows, records = [], []
    yield _frame(number, rows, records, before)


def _frame(number: int, rows: list[int], records: list[Line], before: int) -> pl.DataFrame:
    order = pl.int_range(before, before + len(records), dtype=pl.Int64, eager=True).alias(MOMENT)
    placed = records_of(records).with_columns(
        pl.lit(number, pl.UInt32).alias(FILE), pl.Series(ROW, rows, pl.UInt32), order
    )
    return placed.select(list(_TYPES))


def _pages(source: Source) -> Iterator[tuple[int, list[Line]]]:
    """The line of each interaction, its page, and its clicks."""
    content = _Content(str(source.path))
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = lambda name, attributes: content.begin(name, attributes, parser.CurrentLineNumber)
    parser.EndElementHandler = content.end
    parser.CharacterDataHandler = content.add
    parser.StartDoctypeDeclHandler = content.refuse
    with _opened(source) as file:
        while True:
            piece = file.read(_PIECE)
            try:
                parser.Parse(piece, not piece)
            except expat.ExpatError as error:
                said = f"{source.path} line {error.lineno}: is no whole XML: {expat.ErrorString(error.code)}."
                raise LogFormatError(said) from error
            yield from content.taken()
            if not piece:
                return


@contextmanager
def _opened(source: Source) -> Generator[BinaryIO]:
    place = source.place
    if not isinstance(place, Path):
        raise LogFormatError(f"{source.path}: XML is read from a disk only. Copy it there.")
    with place.open("rb") as file:
        if place.suffix.lower() == _GZIP:
            with gzip.open(file, "rb") as unpacked:
                yield unpacked  # type: ignore[misc]
        else:
            yield file


@dataclass
class _Content:
    """What is known of the elements that are open.

    Attributes:
        path: of the file, for messages.
    """

    path: str
    session: str = ""
    row: int = 0
    interaction: str = ""
    text: list[str] = field(default_factory=list[str])
    query: dict[str, str] = field(default_factory=dict[str, str])
    results: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])
    clicked: list[str] = field(default_factory=list[str])
    in_clicks: bool = False
    found: list[tuple[int, list[Line]]] = field(default_factory=list[tuple[int, list[Line]]])

    def refuse(self, *_: object) -> None:
        """Stop at a document type.

        Raises:
            LogFormatError: always.
        """
        raise LogFormatError(f"{self.path}: has a document type, which could define entities. Remove it.")

    def begin(self, name: str, attributes: Mapping[str, str], line: int) -> None:
        """An element begins."""
        self.text.clear()
        if name == "session":
            self.session = attributes.get("num", "")
        elif name == "interaction":
            self.interaction, self.row, self.query = attributes.get("num", ""), line, {}
            self.results, self.clicked = [], []
        elif name == "result":
            self.results.append((attributes.get("rank", ""), None))
        elif name == "clicked":
            self.in_clicks = True

    def add(self, text: str) -> None:
        """Text between tags."""
        self.text.append(text)

    def end(self, name: str) -> None:
        """An element ends."""
        said = "".join(self.text).strip()
        self.text.clear()
        if name in {"query", "query_id"} and said:
            self.query[name] = said
        elif name == "docid" and self.results and not self.in_clicks:
            self.results[-1] = (self.results[-1][0], said or None)
        elif name == "rank" and self.in_clicks:
            self.clicked.append(said)
        elif name == "clicked":
            self.in_clicks = False
        elif name == "interaction":
            self.found.append((self.row, list(self._records())))

    def taken(self) -> list[tuple[int, list[Line]]]:
        """What was found since this was last asked."""
        found, self.found = self.found, []
        return found

    def _records(self) -> Iterator[Line]:
        page = f"{self.session} {self.interaction}"
        ranks = [_rank(rank) for rank, _ in self.results]
        by_rank = {rank: doc for rank, (_, doc) in zip(ranks, self.results, strict=True)}
        docs = [by_rank[rank] for rank in sorted(by_rank)]
        whole = sorted(ranks) == list(range(1, len(ranks) + 1)) and None not in docs
        shown = [doc for doc in docs if doc is not None] if whole else None
        query = self.query.get("query_id") or self.query.get("query")
        common = Line(key=page, page=page, visit=self.session)
        yield page_line(common._replace(query=query, docs=[] if not self.results else shown))
        for rank in self.clicked:
            number = _rank(rank)
            doc = by_rank.get(number) if number else None
            position = number if whole and doc is not None else None
            yield click_line(common._replace(doc=doc, action="click", position=position))


def _rank(text: str) -> int:
    """A rank, from 1; 0 for what is none, or has more digits than the ranks of any page."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else 0
