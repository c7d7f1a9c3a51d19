"""What learners learn from: documents with their counts, features, and the pages that showed them where these count."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, reduce_rows
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.boosting import Rows

LEAST_EXAMINATION = 1e-3
"""Theta below this is taken for this: a click there would otherwise outweigh whole logs."""

_BLOCK = 1 << 17  # impressions that are worked on at a time


@dataclass(frozen=True)
class Features:
    """What is known of each document."""

    rows: Rows  # shape (D, F); nan where a value is missing, and the place among the categories for text
    names: tuple[str, ...]  # F of them
    categorical: tuple[int, ...] = ()  # which of them are categories


@dataclass(frozen=True)
class Pages:
    """Pages as they were shown: page i owns the impressions `start[i]:start[i + 1]`, from the top."""

    start: Integers  # shape (P + 1,)
    document: Integers  # the number of the document of each impression, shape (N,)
    cell: Integers  # its cell, shape (N,)
    click: Floats  # 0 or 1, shape (N,); a sum of weights where rows carry weights

    def of_impressions(self, documents: Flags) -> Iterator[Integers]:
        """The impressions of pages that have a click and begin with some documents, shape (P, L), by length.

        Args:
            documents: which, shape (D,).
        """
        with_click = reduce_rows(np.add, self.click, self.start, 0.0) > 0
        wanted, length = with_click & documents[self.document[self.start[:-1]]], np.diff(self.start)
        for size in np.unique(length[wanted]).tolist():
            first = self.start[:-1][wanted & (length == size)]
            step = max(_BLOCK // size, 1)
            for begin in range(0, len(first), step):
                yield first[begin : begin + step, np.newaxis] + np.arange(size)


@dataclass(frozen=True)
class LearningData:
    """A log, as learners see it. A document is a (query, document); those of a query stand together."""

    query: Integers  # the number of each document's query, ascending, shape (D,)
    held_out: Flags  # whether a document's query is set apart for validation, shape (D,)
    counts: CountTable  # impressions and clicks per document and cell
    examination: Floats  # theta of each cell as a probability, shape (K,); nan where it is not known
    position: Integers  # of each cell, from 1, shape (K,)
    features: Features | None = None  # of each document; None where learners do without
    pages: Pages | None = None  # as shown; None where only counts are needed
    item: Integers | None = None  # the number of the document itself, whatever the query (or user), shape (D,), or None
    randomized: CountTable | None = None  # counts of rows whose documents were placed at random; None if not needed

    @property
    def n_documents(self) -> int:
        """Number of documents D."""
        return len(self.query)

    @property
    def known(self) -> Flags:
        """The cells that have a theta, shape (K,)."""
        return np.isfinite(self.examination)

    @property
    def theta(self) -> Floats:
        """Theta in [LEAST_EXAMINATION, 1], shape (K,); 1 where it is not known, which `known` tells."""
        return np.where(self.known, np.clip(np.nan_to_num(self.examination), LEAST_EXAMINATION, 1.0), 1.0)

    @property
    def learnt(self) -> Integers:
        """The documents to learn from, ascending."""
        return np.flatnonzero(~self.held_out)

    @property
    def apart(self) -> Integers:
        """The documents that are set apart, ascending."""
        return np.flatnonzero(self.held_out)


@dataclass(frozen=True)
class Lists:
    """Some pages of one length L, from the top."""

    document: Integers  # which of the scored documents stands there, shape (P, L)
    cell: Integers  # its cell, shape (P, L)
    click: Floats  # 0 or 1, or a sum of weights, shape (P, L)


def clicked_lists(data: LearningData, documents: Integers) -> list[Lists]:
    """The pages that have a click and show some documents, which are numbered by their place among these.

    Args:
        data: a log with pages. All documents of a page are of one query.
        documents: those of some queries, ascending: to learn from, or set apart.
    """
    if data.pages is None:
        raise ValueError("this learner needs pages")
    pages, place = data.pages, np.full(data.n_documents, -1)
    place[documents] = np.arange(len(documents))
    return [
        Lists(place[pages.document[shown]], pages.cell[shown], pages.click[shown])
        for shown in pages.of_impressions(place >= 0)
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


@dataclass(frozen=True)
class SomeRows:
    """Some rows of features that need not be in memory."""

    rows: Rows
    kept: Integers  # numbers of the rows, shape (n,)

    def __len__(self) -> int:
        """Number of rows n."""
        return len(self.kept)

    def __getitem__(self, wanted: slice | Integers, /) -> Floats:
        """Some of them, shape (m, F)."""
        return self.rows[self.kept[wanted]]


def with_fewer_negatives(data: LearningData, share: float, seed: int) -> LearningData:
    """A log with a share of the documents without a click, drawn at random, each counted 1 / share times.

    Every sum over documents, such as a loss and its gradient, has the whole log's as its expectation. Documents that
    are held out all stay as they are.

    Args:
        data: the log, without pages.
        share: in (0, 1].
        seed: of the draw.
    """
    if share == 1.0:
        return data
    unclicked = (data.counts.sum_by_unit(data.counts.clicks) == 0) & ~data.held_out
    drawn = np.random.default_rng(seed).random(data.n_documents) < share
    kept = np.flatnonzero(drawn | ~unclicked)
    counts = data.counts.take(kept)
    times = np.where(unclicked[kept], 1 / share, 1.0)
    features = data.features
    return replace(
        data,
        query=data.query[kept],
        held_out=data.held_out[kept],
        counts=replace(counts, impressions=counts.impressions * times[counts.unit_of_entry]),
        features=None if features is None else replace(features, rows=SomeRows(features.rows, kept)),
        item=None if data.item is None else data.item[kept],
    )


def relative(theta: Floats) -> Floats:
    """Theta of cells relative to the first one that has any, same shape."""
    known = theta[np.isfinite(theta)]
    return theta / known[0] if len(known) else theta
