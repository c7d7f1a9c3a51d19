"""What quotes in text files mean: marks around a field, or letters of it.

Readers swallow lines where they take one for the other: a query `"nike`, written as it was typed, opens a field that
ends at the next quote, lines further down.

CSV is read by RFC 4180: quotes around a field, doubled inside. TSV is written in two ways: like CSV by pandas, Spark or
BigQuery, to the letter by databases and most tools of the field. It is read like CSV unless quotes stand where no such
writer puts them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from posbias.core.errors import LogFormatError
from posbias.io.log.scan import LINE, ROW, TEXT_SEPARATORS, header_of, reading, scan_lines, separator_of
from posbias.io.log.sources import Source

_QUOTED = r'"(?:[^"]|"")*"'
_LONGEST_RECORD = 1000  # lines of one row: a snippet of text may have some
_SHOWN = 60  # letters
_QUOTES, _RECORD, _TEXT = "posbias_quotes", "posbias_record", "posbias_text"

Each = Callable[[Iterable[Source], Callable[[Source], "Quotes"]], Iterator["Quotes"]]
"""Does something to each source, as `Engine.each` does."""


@dataclass(frozen=True)
class Quotes:
    """What the quotes of one text file say."""

    in_header: bool  # whether names of columns are in quotes
    stray: int | None = None  # the first line where quotes do not mark fields, from 1; None where all of them may
    text: str = ""  # the beginning of that line


def _here(sources: Iterable[Source], work: Callable[[Source], "Quotes"]) -> Iterator["Quotes"]:
    return map(work, sources)


def resolve_quotes(sources: Sequence[Source], each: Each = _here) -> tuple[tuple[Source, ...], list[str]]:
    """Find out what quotes mean in text files. Each is read once for that.

    Returns:
        The sources with `quoted` set, and what is to be said about them.

    Raises:
        LogFormatError: quotes of CSV are not balanced, so that lines would be swallowed.
    """
    of_text = [source for source in sources if source.format in TEXT_SEPARATORS and source.quoted is None]
    with reading(of_text):
        found = dict(zip(of_text, each([source.from_anywhere for source in of_text], quotes_of), strict=True))
    for source, quotes in found.items():
        if quotes.stray is not None and (source.format == "csv" or quotes.in_header):
            raise LogFormatError(
                f"{source.path} line {quotes.stray}: a quote is opened but not closed at the end of a field, so "
                f"the lines that follow would be lost: {quotes.text!r}. Put such a field in quotes and double "
                'those inside ("5"" tv"), or write the log as Parquet.'
            )
    stray = next((source for source, quotes in found.items() if quotes.stray is not None), None)
    resolved = {source: replace(source, quoted=stray is None or quotes.in_header) for source, quotes in found.items()}
    said = [] if stray is None else [f"{stray.path} line {found[stray].stray}: quotes in TSV are read as letters."]
    return tuple(_resolved(source, resolved) for source in sources), said


def _resolved(source: Source, resolved: dict[Source, Source]) -> Source:
    found = resolved.get(source, source)
    return found if found.format == "tsv" or found.quoted is None else replace(found, quoted=True)


def quotes_of(source: Source) -> Quotes:
    """Read the lines that hold quotes."""
    separator, n_columns = separator_of(source), len(header_of(source))
    lines = scan_lines(source, lossy=True).filter(pl.col(LINE).str.contains('"', literal=True))
    quotes = pl.col(LINE).str.count_matches('"', literal=True)
    in_header = pl.col(ROW).min() == 1
    odd = quotes % 2 == 1
    wanted = [in_header.alias("in_header"), odd.any().alias("odd")]
    if source.format == "tsv":
        between = odd.cum_sum() % 2 == 1  # lines of a field that runs over several
        stray = ~odd & ~between & _is_stray(separator, n_columns)
        wanted.append(pl.col(ROW).filter(stray).min().alias("stray"))
    seen = lines.select(wanted).collect(engine="streaming").row(0, named=True)
    places = [seen.get("stray"), _first_swallowing(source, separator, n_columns) if seen["odd"] else None]
    first = min((place for place in places if place is not None), default=None)
    text = "" if first is None else lines.filter(pl.col(ROW) == first).select(LINE).collect().item()
    return Quotes(bool(seen["in_header"]), first, text[:_SHOWN])


def _is_stray(separator: str, n_columns: int) -> pl.Expr:
    """Whether a line with an even number of quotes holds some that mark no field."""
    mark = re.escape(separator)
    field = f'(?:[^"{mark}]*|{_QUOTED})'
    marked = pl.col(LINE).str.contains(f"^{field}(?:{mark}{field})*$")
    as_marked = _fields(pl.col(LINE).str.replace_all(_QUOTED, ""), separator)
    return ~marked | ((_fields(pl.col(LINE), separator) == n_columns) & (as_marked != n_columns))


def _fields(text: pl.Expr, separator: str) -> pl.Expr:
    return text.str.count_matches(separator, literal=True) + 1


def _first_swallowing(source: Source, separator: str, n_columns: int) -> int | None:
    """The first line from which a row runs over several lines that are no row together, or each of them one.

    Between a line with an odd number of quotes and the next one lies what a reader takes for one row.
    """
    text = pl.col(LINE).fill_null("")
    odd = text.str.count_matches('"', literal=True) % 2
    lines = scan_lines(source, lossy=True).with_columns(text, odd.alias(_QUOTES))
    rows = (
        lines.with_columns(pl.col(_QUOTES).cum_sum().alias(_RECORD))
        .filter((pl.col(_RECORD) % 2 == 1) | (pl.col(_QUOTES) == 1))
        .group_by((pl.col(_RECORD) + 1) // 2)
        .agg(
            pl.col(ROW).min(),
            pl.len().alias("lines"),
            (_fields(pl.col(LINE), separator) == n_columns).all().alias("rows_each"),
            pl.col(LINE).sort_by(ROW).head(_LONGEST_RECORD).str.join("\n").alias(_TEXT),
        )
    )
    without = pl.col(_TEXT).str.replace_all(_QUOTED, "")
    whole = ~without.str.contains(r'["\n]') & (_fields(without, separator) == n_columns)
    swallowing = rows.filter(pl.col("rows_each") | (pl.col("lines") > _LONGEST_RECORD) | ~whole)
    return swallowing.select(pl.col(ROW).min()).collect(engine="streaming").item()
