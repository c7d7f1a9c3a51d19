"""Pages with clicks as lists of equal length, for losses that compare what was shown together."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers, reduce_rows
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.data import LearningData

_BLOCK = 1 << 17  # impressions that are worked on at a time


@dataclass(frozen=True)
class Lists:
    """Some pages of one length L, from the top.

    Attributes:
        document: which of the scored documents stands there, shape (P, L).
        cell: its cell, shape (P, L).
        click: 0 or 1, or a sum of weights, shape (P, L).
    """

    document: Integers
    cell: Integers
    click: Floats


def clicked_lists(data: LearningData, documents: Integers) -> list[Lists]:
    """The pages that have a click and show some documents, which are numbered by their place among these.

    Args:
        data: a log with pages. All documents of a page are of one query.
        documents: those of some queries, ascending: to learn from, or set apart.
    """
    if data.pages is None:
        raise ValueError("this learner needs pages")
    pages = data.pages
    place = np.full(data.n_documents, -1)
    place[documents] = np.arange(len(documents))
    wanted = (reduce_rows(np.add, pages.click, pages.start, 0.0) > 0) & (place[pages.document[pages.start[:-1]]] >= 0)
    return [
        Lists(place[pages.document[shown]], pages.cell[shown], pages.click[shown])
        for shown in _impressions(pages.start, wanted)
    ]


def lists_to_learn_from(data: LearningData, learner: str) -> list[Lists]:
    """The pages that a learner learns from.

    Raises:
        IdentifiabilityError: nothing is ranked against anything there.
    """
    found = clicked_lists(data, data.learnt)
    if not any(lists.document.shape[1] > 1 for lists in found):
        raise IdentifiabilityError(
            f"--learner {learner}: no page that is learnt from has a click and a second document to rank the clicked "
            "one against. Name the columns of one results page with --session, or choose another learner, such as pbm."
        )
    return found


def _impressions(start: Integers, wanted: Flags) -> Iterator[Integers]:
    """The impressions of the wanted pages: blocks of pages of one length, shape (P, L)."""
    length = np.diff(start)
    for size in np.unique(length[wanted]).tolist():
        first = start[:-1][wanted & (length == size)]
        step = max(_BLOCK // size, 1)
        for begin in range(0, len(first), step):
            yield first[begin : begin + step, np.newaxis] + np.arange(size)
