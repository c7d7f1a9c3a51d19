"""How many pages of a log have one click, and how many have several: whether a log knows second clicks at all."""

from dataclasses import dataclass
from math import exp
from typing import Self

import polars as pl

from posbias.core.schema import CLICKS

_NEARLY_NONE = 0.05
_CERTAIN = 0.001


@dataclass(frozen=True)
class ClickedPages:
    """Pages (sessions) of two rows or more by their clicks, of a log or of a sample of its sessions.

    Attributes:
        pages: with or without a click.
        rows: on all of them.
        several: with two clicks or more.
        clicks: on all of them.
    """

    pages: int
    rows: int
    several: int
    clicks: int

    @classmethod
    def of(cls, pages: pl.LazyFrame) -> Self:
        """Count the `pages` of a log."""
        counts = (
            pages.filter(pl.col("rows") > 1)
            .select(
                pages=pl.len(),
                rows=pl.col("rows").sum(),
                several=(pl.col(CLICKS) > 1).sum(),
                clicks=pl.col(CLICKS).sum().fill_null(0),
            )
            .collect(engine="streaming")
        )
        return cls(**counts.row(0, named=True))

    @property
    def expected_several(self) -> float:
        """Pages with several clicks if each click were made for itself, and all pages were alike.

        With m clicks and r rows to a page, S (1 - (1 + m) / e^m) (1 - 1 / r). Where pages differ there would be more.
        """
        if not self.clicks:
            return 0.0
        mean = self.clicks / self.pages
        return self.pages * (1 - (1 + mean) * exp(-mean)) * (1 - self.pages / self.rows)

    @property
    def only_first_clicks(self) -> bool:
        """Whether hardly any page has several clicks where many would be expected."""
        expected = self.expected_several
        return self.several <= _NEARLY_NONE * expected and exp(-expected * (1 - _NEARLY_NONE) ** 2 / 2) < _CERTAIN
