"""From impressions to pages as matrices."""

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from posbias.core.browsing.batch import Floats, Integers, PageBatch
from posbias.core.errors import SchemaError
from posbias.core.log.pages import in_page_order
from posbias.core.schema import CLICK, POSITION, PREVIOUS_CLICK, SESSION, WEIGHT

UNIT = "posbias_unit"
"""The column that numbers what is shown, from 0."""

MOST_RANKS = 1_000
"""Results of a page up to which click models are fitted: each pass over the pages goes down them one by one."""

_IMPRESSIONS_AT_ONCE = 1 << 16


def page_batches(impressions: pl.DataFrame) -> list[PageBatch]:
    """Pages as matrices, those of one length together, so that nothing is padded; equal pages once, with their number.

    Args:
        impressions: `session`, `position`, `click` and UNIT, in any order; `weight` where pages have one.
    """
    return [batch for (pages,) in pages_in_numberings(impressions, (UNIT,)) for batch in small_batches(pages)]


def pages_in_numberings(impressions: pl.DataFrame, units: Sequence[str]) -> list[tuple[pl.DataFrame, ...]]:
    """The different pages of each length, one row a page: what it shows, at which positions, and how often it occurred.

    What is shown may have several numberings, each with a frame of its own: a row is one page in each of them.

    Pages are different where they are in one of the numberings. (What was not learnt has one number for all, so that
    pages may be equal in one numbering and not in another.)

    Args:
        impressions: as of `page_batches`, with a column of each numbering in place of UNIT.
        units: these columns.

    Raises:
        SchemaError: the weights of a page differ, or it is too long.
    """
    in_order = in_page_order(impressions)
    session = in_order[SESSION]
    starts = np.flatnonzero((session != session.shift(1)).fill_null(value=True).to_numpy())
    length = np.diff(np.append(starts, in_order.height))
    longest = int(length.max(initial=0))
    if longest > MOST_RANKS:
        raise SchemaError(
            f"the page of session {session[int(starts[np.argmax(length)])]} shows {longest:,} results, and click "
            f"models are fitted rank by rank, to pages of up to {MOST_RANKS:,}. Leave out what stands further down "
            f"(fit --max-position {MOST_RANKS}), or use `posbias fit --model pbm`, which takes longer pages."
        )
    weight = _page_weights(in_order, starts, length) if WEIGHT in in_order.columns else None
    click = (in_order[CLICK] > 0).cast(pl.Int64).to_numpy()
    shown = {unit: 2 * in_order[unit].cast(pl.Int64).to_numpy() + click for unit in units}
    position = in_order[POSITION].cast(pl.Int32).to_numpy()
    found: list[tuple[pl.DataFrame, ...]] = []
    for n_ranks in np.unique(length).tolist():
        pages = np.flatnonzero(length == n_ranks)
        rows = starts[pages, np.newaxis] + np.arange(n_ranks, dtype=np.int64)
        frame = pl.DataFrame(
            {f"{unit} {rank}": shown[unit][rows[:, rank]] for unit in units for rank in range(n_ranks)}
            | {f"position {rank}": position[rows[:, rank]] for rank in range(n_ranks)}
            | {WEIGHT: np.ones(len(pages)) if weight is None else weight[pages]}
        )
        once = frame.group_by(pl.exclude(WEIGHT), maintain_order=True).sum()
        positions = [f"position {rank}" for rank in range(n_ranks)]
        shown_in = ([pl.col(f"{unit} {rank}").alias(f"shown {rank}") for rank in range(n_ranks)] for unit in units)
        found.append(tuple(once.select(*columns, *positions, WEIGHT) for columns in shown_in))
    return found


def _page_weights(in_order: pl.DataFrame, starts: Integers, length: Integers) -> Floats:
    """The weight of each page."""
    of_row = in_order[WEIGHT].cast(pl.Float64).to_numpy()
    weight = of_row[starts]
    differs = np.flatnonzero(of_row != np.repeat(weight, length))
    if len(differs):
        row = int(differs[0])
        raise SchemaError(
            f"--weight-column: the impressions of session {in_order[SESSION][row]} weigh "
            f"{np.repeat(weight, length)[row]:g} and {of_row[row]:g}. A click model counts whole pages: give all "
            "impressions of a page one weight, or leave the option out."
        )
    return weight


def as_batch(pages: pl.DataFrame) -> PageBatch:
    """The matrices of `pages_in_numberings`, their columns each in one piece, as models go down them rank by rank."""
    ranks = range(_n_ranks(pages))
    shown = _matrix([pages[f"shown {rank}"] for rank in ranks])
    alone = PREVIOUS_CLICK in pages.columns
    return PageBatch(
        unit=shown >> 1,
        position=_matrix([pages[f"position {rank}"] for rank in ranks]),
        click=(shown & 1) == 1,
        shown=np.ones(shown.shape, dtype=np.bool_, order="F"),
        weight=pages[WEIGHT].to_numpy(),
        clicked_above=_matrix([pages[PREVIOUS_CLICK]]) if alone else None,
    )


def _matrix(columns: Sequence[pl.Series]) -> Integers:
    """Columns side by side. Done in NumPy: for few rows Polars would take longer than what is done with them."""
    values = np.empty((len(columns[0]), len(columns)), dtype=np.int64, order="F")
    for number, column in enumerate(columns):
        values[:, number] = column.to_numpy()
    return values


def small_batches(pages: pl.DataFrame) -> Iterator[PageBatch]:
    """The same, so few pages at a time that what is computed of them stays in the processor's cache."""
    n_pages = max(_IMPRESSIONS_AT_ONCE // _n_ranks(pages), 1)
    return (as_batch(some) for some in pages.iter_slices(n_pages))


def _n_ranks(pages: pl.DataFrame) -> int:
    return sum(name.startswith("shown ") for name in pages.columns)
