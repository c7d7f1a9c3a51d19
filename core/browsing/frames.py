"""From impressions to pages as matrices."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.browsing.batch import PageBatch
from posbias.core.log.page_order import in_page_order
from posbias.core.schema import CLICK, POSITION, SESSION, WEIGHT

UNIT = "posbias_unit"
"""The column that numbers what is shown, from 0."""


def page_batches(impressions: pl.DataFrame) -> list[PageBatch]:
    """Pages as matrices, those of one length together, so that nothing is padded; equal pages once, with their number.

    Args:
        impressions: see `grouped_pages`.
    """
    return [as_batch(pages) for pages in grouped_pages(impressions)]


def grouped_pages(impressions: pl.DataFrame) -> list[pl.DataFrame]:
    """The different pages of each length, one row a page: what it shows, at which positions, and how often it occurred.

    Args:
        impressions: `session`, `position`, `click` and UNIT, in any order; `weight` where pages have one, that of
            their first impression.
    """
    in_order = in_page_order(impressions)
    session = in_order[SESSION]
    starts = np.flatnonzero((session != session.shift(1)).fill_null(value=True).to_numpy())
    length = np.diff(np.append(starts, in_order.height))
    weight = in_order[WEIGHT].cast(pl.Float64).to_numpy()[starts] if WEIGHT in in_order.columns else None
    shown = 2 * in_order[UNIT].cast(pl.Int64).to_numpy() + (in_order[CLICK] > 0).cast(pl.Int64).to_numpy()
    position = in_order[POSITION].cast(pl.Int32).to_numpy()
    found: list[pl.DataFrame] = []
    for n_ranks in np.unique(length).tolist():
        pages = np.flatnonzero(length == n_ranks)
        rows = starts[pages, np.newaxis] + np.arange(n_ranks, dtype=np.int64)
        frame = pl.DataFrame(
            {f"shown {rank}": shown[rows[:, rank]] for rank in range(n_ranks)}
            | {f"position {rank}": position[rows[:, rank]] for rank in range(n_ranks)}
            | {WEIGHT: np.ones(len(pages)) if weight is None else weight[pages]}
        )
        found.append(frame.group_by(pl.exclude(WEIGHT), maintain_order=True).sum())
    return found


def as_batch(pages: pl.DataFrame) -> PageBatch:
    """The matrices of `grouped_pages`, their columns each in one piece, as models go down them rank by rank."""
    n_ranks = (pages.width - 1) // 2
    values = pages.select(pl.exclude(WEIGHT).cast(pl.Int64)).to_numpy(order="fortran")
    shown, position = values[:, :n_ranks], values[:, n_ranks:]
    return PageBatch(
        unit=shown >> 1,
        position=position,
        click=(shown & 1) == 1,
        shown=np.ones(shown.shape, dtype=np.bool_, order="F"),
        weight=pages[WEIGHT].to_numpy(),
    )


@dataclass(frozen=True)
class PagesInMemory:
    """Pages to learn from, held in memory.

    Attributes:
        batches: the pages.
        n_units: J.
        n_positions: K.
    """

    batches: tuple[PageBatch, ...]
    n_units: int
    n_positions: int

    def __iter__(self) -> Iterator[PageBatch]:
        """The batches."""
        return iter(self.batches)
