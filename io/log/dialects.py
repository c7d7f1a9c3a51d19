"""How the text of a log is written, told from its first lines; said as the options that read it, never applied.

See `posbias.io.log.written_values` for what the values of single columns tell.
"""

import codecs
import csv
import re
from collections import Counter
from collections.abc import Sequence
from itertools import chain

from posbias.core.column_names import plain
from posbias.core.role_search import NAMES_IN_EXPORTS
from posbias.core.schema import ALIASES
from posbias.io.log.contents import is_packed, unpacked_start
from posbias.io.log.findings import Finding
from posbias.io.log.scan import TEXT_SEPARATORS
from posbias.io.log.sources import Source, read_start

_LOOKED_AT = 1 << 20  # bytes
_LINES = 1000
_MARKS = {b"\xef\xbb\xbf": "utf-8", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_KNOWN_MARKS = (",", ";", "\t", "|", " ")
_NAMES = {"\t": "tab", " ": "space"}
_NUMBER = re.compile(r"\s*[+-]?[0-9]+([.,][0-9]+)?\s*")
_WITH_COMMA = re.compile(r"\s*[+-]?[0-9]*,[0-9]+\s*")
_MOST = 0.95  # of the lines that have as many fields as the first


def find_dialects(sources: Sequence[Source]) -> list[Finding]:
    """What must be said of the text files of a log that it can be read: one finding for each option.

    Nothing is found where the files differ in it, nor in Parquet and Arrow.
    """
    found = [_of_file(source) for source in sources if source.format in {*TEXT_SEPARATORS, "ndjson", "json"}]
    return [finding for finding in dict.fromkeys(chain(*found)) if all(finding in of_file for of_file in found)]


def _of_file(source: Source) -> list[Finding]:
    head = read_start(source, _LOOKED_AT)
    cut = source.bytes > len(head)
    if is_packed(head):
        head, cut = unpacked_start(head), True
    encoding, certain = _encoding_of(head)
    text = codecs.getincrementaldecoder(encoding or "utf-8")(errors="replace").decode(head).removeprefix("\ufeff")
    lines = text.splitlines()
    lines = (lines[:-1] if cut and len(lines) > 1 else lines)[:_LINES]
    of_fields = _fields(lines, TEXT_SEPARATORS[source.format]) if source.format in TEXT_SEPARATORS and lines else []
    if encoding is None:
        return of_fields
    seems = "is" if certain else "is not UTF-8, and may be"
    return [Finding(f"the text {seems} {encoding}", ("--encoding", encoding), certain), *of_fields]


def _encoding_of(head: bytes) -> tuple[str | None, bool]:
    """The encoding, None for UTF-8 without a mark, and whether it is certain."""
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if marked is not None:
        return (None if marked == "utf-8" else marked), True
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return "cp1252", False
    zeros = head[1::2].count(0), head[::2].count(0)
    if max(zeros) * 4 > len(head):
        return ("utf-16-le" if zeros[0] > zeros[1] else "utf-16-be"), True
    return None, True


def _fields(lines: Sequence[str], usual: str) -> list[Finding]:
    """What is found of the lines of CSV and TSV."""
    mark = _separator_of(lines, usual)
    rows = [row for row in csv.reader(lines, delimiter=mark) if row]
    name = _NAMES.get(mark, mark)
    found = [] if mark == usual else [Finding(f"fields are separated by {name!r}", ("--separator", name))]
    if _is_data(rows):
        names = ",".join(f"c{number}" for number in range(1, len(rows[0]) + 1))
        said = f"the first line is a row, not a header; its {len(rows[0])} columns are called {names}"
        found.append(Finding(said, ("--no-header", "--columns", names)))
        has_commas = _has_commas(rows)
    else:
        has_commas = _has_commas(rows[1:])
    return [*found, Finding("numbers have a comma before their fraction", ("--decimal", ","))] if has_commas else found


def _separator_of(lines: Sequence[str], usual: str) -> str:
    """The mark that parts most lines in as many fields as the first, the one with the most fields; else the usual."""
    widths = {mark: [len(row) for row in csv.reader(lines, delimiter=mark) if row] for mark in _KNOWN_MARKS}
    even = {
        mark: counts[0]
        for mark, counts in widths.items()
        if counts and counts[0] > 1 and Counter(counts)[counts[0]] >= _MOST * len(counts)
    }
    if len(even) > 1:
        even.pop(" ", None)  # fields of any file may hold as many words
    if not even or even.get(usual) == max(even.values()) or usual == "\t" in even:
        return usual
    return max(even, key=lambda mark: (even[mark], mark == usual))


def _is_data(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row holds numbers where the others do, and no name of a column that is known."""
    first, others = rows[0], rows[1:]
    known = {plain(name) for names in (*ALIASES.values(), *NAMES_IN_EXPORTS.values()) for name in names}
    if any(plain(name.strip()) in known for name in first):
        return False
    in_first = {place for place, value in enumerate(first) if _NUMBER.fullmatch(value)}
    elsewhere = {
        place
        for place in range(len(first))
        if all(len(row) > place and _NUMBER.fullmatch(row[place]) for row in others)
    }
    return bool(in_first) and (not others or elsewhere <= in_first)


def _has_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Whether a column holds numbers with a comma, and no other fractions."""
    width = min(map(len, rows), default=0)
    columns = ([row[place] for row in rows if row[place].strip()] for place in range(width))
    return any(
        all(_NUMBER.fullmatch(value) and "." not in value for value in column)
        and any(_WITH_COMMA.fullmatch(value) for value in column)
        for column in columns
    )
