"""Values that are written as text: lists, words for a click, forms of times."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import polars as pl

from posbias.core.errors import UsageError
from posbias.core.log.text_values import TextValues
from posbias.io.log.findings import Finding

JSON, SPACE, TAB = "json", "space", "tab"
"""The separators that have names."""

_NAMES = f"{JSON}, {SPACE} or {TAB}"

_ENTRY = r'(?:"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)'
_FLAT_LIST = rf"^\s*\[\s*(?:{_ENTRY}\s*(?:,\s*{_ENTRY}\s*)*)?\]\s*$"


@dataclass(frozen=True)
class ListRules:
    """How lists are read that are no lists to the file's format, or say more than ids."""

    # what stands between the entries of a list that is written as text, or `JSON`, or `SPACE`; None where no text is a
    # list
    separator: str | None = None
    # what stands between an id and its click, as in `N1-0 N2-1`; None where ids are ids alone
    click_suffix: str | None = None
    # whether documents stand in the order in which they were shown, where that is in doubt
    order_is_position: bool = False

    @classmethod
    def parse(cls, separator: str | None, click_suffix: str | None, *, order_is_position: bool) -> Self:
        """Read options.

        Raises:
            UsageError: a letter or digit is no separator.
        """
        said = {
            f"--list-separator {separator}": ("" if separator in {JSON, SPACE, TAB} else separator, f";, or {_NAMES}"),
            f"--click-suffix {click_suffix}": (click_suffix, "-"),
        }
        for option, (mark, usual) in said.items():
            if any(map(str.isalnum, mark or "")):
                raise UsageError(f"{option}: letters and digits stand in ids. Give a mark such as {usual}.")
        return cls("\t" if separator == TAB else separator, click_suffix, order_is_position)

    def as_list(self, column: str) -> pl.Expr:
        """A column of text as lists of text; null where it is no list. An entry of no text is null."""
        text = pl.col(column)
        if self.separator == JSON:
            return pl.when(text.str.contains(_FLAT_LIST)).then(text).str.json_decode(pl.List(pl.String))
        if self.separator is None or self.separator == SPACE:
            return text.str.extract_all(r"\S+")
        entry = pl.element().str.strip_chars()
        entries = text.str.split(self.separator).list.eval(pl.when(entry != "").then(entry))
        return pl.when(text.str.strip_chars() == "").then(pl.lit([], pl.List(pl.String))).otherwise(entries)

    def id_of(self, entry: pl.Expr) -> pl.Expr:
        """The id of an entry with a click behind it."""
        return entry.str.replace(f"{self._suffix}$", "")

    def click_of(self, entry: pl.Expr) -> pl.Expr:
        """The click behind the id of an entry; null where there is none."""
        return entry.str.extract(f"{self._suffix}$")

    @property
    def _suffix(self) -> str:
        mark = re.escape(self.click_suffix or "")
        return f"{mark}([0-9]+|true|false)"


NO_LIST_RULES = ListRules()
"""No text is a list, and ids are ids alone."""


_WORDS = (
    ("yes", "no"),
    ("y", "n"),
    ("on", "off"),
    ("true", "false"),
    ("ja", "nein"),
    ("ja", "nee"),
    ("ja", "nej"),
    ("j", "n"),
    ("oui", "non"),
    ("o", "n"),
    ("si", "no"),
    ("sí", "no"),
    ("sì", "no"),
    ("s", "n"),
    ("sim", "não"),
    ("sim", "nao"),
    ("tak", "nie"),
    ("да", "нет"),
    ("vrai", "faux"),
    ("wahr", "falsch"),
    ("clicked", "not clicked"),
)
_READ_ALREADY = {"0", "1", "0.0", "1.0", "true", "t", "false", "f"}
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S%.f", " %I:%M %p", " %I:%M:%S %p")
_DAYS = (
    "%d.%m.%Y",
    *("%d/%m/%Y", "%m/%d/%Y"),
    *("%d-%m-%Y", "%m-%d-%Y"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
    *("%Y/%m/%d", "%Y.%m.%d"),
    *("%d %b %Y", "%b %d %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y"),
)
_ZONED = ("%a, %d %b %Y %H:%M:%S %z", "%d/%b/%Y:%H:%M:%S %z", "%a %b %d %H:%M:%S %Y")
_FORMS = tuple(day + clock for day in _DAYS for clock in _CLOCKS) + _ZONED


def find_click_words(values: Iterable[str | None]) -> Finding | None:
    """The two words of a click column that is all yes and no in a common language, beside what is read already."""
    found = {value.strip().lower() for value in values if value is not None and value.strip()} - _READ_ALREADY
    if not found:
        return None
    for true, false in _WORDS:
        # Some of these words, that mean the same in every other pair.
        as_true, as_false = {yes for yes, _ in _WORDS if yes in found}, {no for _, no in _WORDS if no in found}
        if found <= {true, false} and (found == {true, false} or not as_true & as_false):
            return Finding(f"clicks are {true!r} and {false!r}", ("--true", true, "--false", false))
    return None


def find_timestamp_format(values: Iterable[str | None]) -> Finding | None:
    """The form in which all times are written, where it is none that is read already.

    Where a day and a month could be either, `certain` is False, and both forms are said; the first is the option.
    """
    texts = [value.strip() for value in values if value is not None and value.strip()]
    fitting = [form for form in _FORMS if texts and _fits(form, texts)]
    if not fitting:
        return None
    first = fitting[0]
    if len(fitting) == 1:
        return Finding(f"times such as {texts[0]!r} are written {first}", ("--timestamp-format", first))
    said = " or ".join(fitting)
    return Finding(
        f"times such as {texts[0]!r} may be written {said}: no day is above 12, so that day and month cannot be "
        "told apart",
        ("--timestamp-format", first),
        certain=False,
    )


def _fits(form: str, texts: Sequence[str]) -> bool:
    values = TextValues(timestamp_format=form)
    try:
        read = pl.DataFrame({"text": texts}).select(values.time(pl.col("text"))).to_series()
    except pl.exceptions.PolarsError:
        return False
    return not read.null_count() and bool(read.dt.year().is_between(1980, 2099).all())
