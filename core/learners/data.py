"""What learners learn from: documents with their counts, features, and the pages that showed them where these count."""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers
from posbias.core.learners.boosting import Rows

LEAST_EXAMINATION = 1e-3
"""Theta below this is taken for this: a click there would otherwise outweigh whole logs."""


@dataclass(frozen=True)
class Features:
    """What is known of each document.

    Attributes:
        rows: shape (D, F); nan where a value is missing, and the place among the categories for text.
        names: of the features, F of them.
        categorical: which of them are categories.
    """

    rows: Rows
    names: tuple[str, ...]
    categorical: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pages:
    """Pages as they were shown: page i owns the impressions `start[i]:start[i + 1]`, from the top.

    Attributes:
        start: shape (P + 1,).
        document: the number of the document of each impression, shape (N,).
        cell: its cell, shape (N,).
        click: 0 or 1, shape (N,); a sum of weights where rows carry weights.
    """

    start: Integers
    document: Integers
    cell: Integers
    click: Floats

    @property
    def n_pages(self) -> int:
        """Number of pages P."""
        return len(self.start) - 1

    @property
    def page_of_impression(self) -> Integers:
        """The page of each impression, shape (N,)."""
        return np.repeat(np.arange(self.n_pages), np.diff(self.start))


@dataclass(frozen=True)
class LearningData:
    """A log, as learners see it. A document is a (query, document); those of a query stand together.

    Attributes:
        query: the number of each document's query, ascending, shape (D,).
        held_out: whether a document's query is set apart for validation, shape (D,).
        counts: impressions and clicks per document and cell.
        examination: theta of each cell as a probability, shape (K,); nan where it is not known.
        position: the position of each cell, from 1, shape (K,).
        features: of each document; None where learners do without.
        pages: as shown; None where only counts are needed.
        item: the number of the document itself, whatever the query, shape (D,): that of a recommended item, where the
            query is a user. None where no learner asks for it.
        randomized: impressions and clicks per document and cell among rows whose documents were placed at random; None
            where no learner asks for them.
    """

    query: Integers
    held_out: Flags
    counts: CountTable
    examination: Floats
    position: Integers
    features: Features | None = None
    pages: Pages | None = None
    item: Integers | None = None
    randomized: CountTable | None = None

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
