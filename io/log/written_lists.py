"""Lists that are written as text: split at a separator, or read as JSON; and clicks that are written behind ids."""

import re
from dataclasses import dataclass
from typing import Self

import polars as pl

from posbias.core.errors import UsageError

JSON, SPACE, TAB = "json", "space", "tab"
"""The separators that have names."""

_NAMES = f"{JSON}, {SPACE} or {TAB}"

_ENTRY = r'(?:"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null)'
_FLAT_LIST = rf"^\s*\[\s*(?:{_ENTRY}\s*(?:,\s*{_ENTRY}\s*)*)?\]\s*$"


@dataclass(frozen=True)
class ListRules:
    """How lists are read that are no lists to the file's format, or say more than ids.

    Attributes:
        separator: what stands between the entries of a list that is written as text, or `JSON`, or `SPACE`; None where
            no text is a list.
        click_suffix: what stands between an id and its click, as in `N1-0 N2-1`; None where ids are ids alone.
        order_is_position: whether documents stand in the order in which they were shown, where that is in doubt.
    """

    separator: str | None = None
    click_suffix: str | None = None
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
