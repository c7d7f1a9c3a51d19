"""Pages without the impressions that say the same whatever the parameters: what is left is all that EM passes over."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import polars as pl

from posbias.core.browsing.batch import Flags, PageBatch
from posbias.core.schema import WEIGHT

Certain = Callable[[PageBatch], Flags]
"""Which impressions of pages are certain, shape (N, L): on each page the top, nothing or all; see `ClickModel`."""


def uncertain_pages(batches: Iterable[PageBatch], certain: Certain) -> list[pl.DataFrame]:
    """What is left of the pages, as of `pages_in_numberings`: those of one length together, equal ones once.

    Args:
        batches: whole pages.
        certain: which of their impressions are left out.
    """
    by_length: dict[int, list[pl.DataFrame]] = {}
    for batch in batches:
        for pages in _cut(batch, certain(batch)):
            by_length.setdefault(pages.width // 2, []).append(pages)
    return [
        pl.concat(pages).group_by(pl.exclude(WEIGHT), maintain_order=True).sum().sort("shown 0", maintain_order=True)
        for _, pages in sorted(by_length.items())
    ]


def _cut(batch: PageBatch, certain: Flags) -> Iterator[pl.DataFrame]:
    """The pages of a batch from the first impression that is not certain, those that begin and end alike together."""
    first, end = (certain & batch.shown).sum(axis=1), batch.shown.sum(axis=1)
    spans = first * (batch.n_ranks + 1) + end
    shown = 2 * batch.unit + batch.click
    for span in np.unique(spans[first < end]).tolist():
        pages, (top, bottom) = np.flatnonzero(spans == span), divmod(span, batch.n_ranks + 1)
        ranks = range(top, bottom)
        yield pl.DataFrame(
            {f"shown {rank - top}": shown[pages, rank] for rank in ranks}
            | {f"position {rank - top}": batch.position[pages, rank].astype(np.int32) for rank in ranks}
            | {WEIGHT: batch.weight[pages]}
        )


def uncertain_rows(batches: Iterable[PageBatch], certain: Certain) -> Iterator[PageBatch]:
    """The same of pages of one impression each, in their order."""
    for batch in batches:
        left = ~certain(batch)[:, 0]
        if left.all():
            yield batch
        elif left.any():
            yield batch.some(np.flatnonzero(left))
