"""Scales of contexts: by how much labels of one query are off where its documents are unevenly shown in contexts.

A propensity is relative to the first position of its own context x, whatever that one gets. What clicks say of a
document in x is on the scale of x, and its label, over all contexts, is off by f = sum_x pi_x R_x: pi_x is the share of
its impressions in x, and R_x how often the same documents are clicked in x for the same exposure e_x = sum_k n_xk
theta_xk, relative to the context y with most impressions (Mantel & Haenszel 1959; 1/2 where no document is clicked in
both, so that it is not known):

    R_x = sum c_x e_y / (e_x + e_y)  /  sum c_y e_x / (e_x + e_y)          over the documents of all queries

Where the documents of a query have equal shares, f is the same for all of them, and their order is right. Otherwise it
is more than chance makes of it: a document that is shown regardless of the context is on a random n of the N pages of
its query, N_x of them in x, so that

    T_q = sum_d n_d { (S_d^2 - Q_d) / (n_d (n_d - 1)) - (S^2 - Q) / (N (N - 1)) } / (S / N)^2
    S_d = sum_x n_dx R_x,   Q_d = sum_x n_dx R_x^2;      S = sum_x N_x R_x,   Q = sum_x N_x R_x^2

has mean 0, and sqrt(sum_q T_q / sum n) is the relative error of labels against those of the same query.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats, Integers, sum_by_number
from posbias.core.arrays.linalg import student_tail
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, QUERY

CONTEXT, EXPOSURE, AT_TOP = "posbias_context", "posbias_exposure", "posbias_at_top"
"""Columns of the counts of a document in a context: its number, and beside `impressions` and `clicks` the exposure, and
the impressions at the position where the context shows most."""

LARGEST_ERROR_OF_LABELS, LEVEL_OF_SCALES = 0.05, 0.01
"""Error of labels within a query from which on they are not to be used, and the level at which it must be no chance."""

_NOT_KNOWN = 0.5  # how often documents are clicked in a context that shares none with others: as an example


@dataclass(frozen=True)
class ScalesOfContexts:
    """How far contexts are apart, and what that does to labels."""

    scale: Floats  # R, shape (X,), 1 of the context with most impressions; NaN where it is not known
    error: float  # the relative error of labels against those of the same query
    p_value: float  # of documents that are shown alike in all contexts, one-sided

    @property
    def matter(self) -> bool:
        """Whether labels and weights of one query are not to be compared."""
        return self.error >= LARGEST_ERROR_OF_LABELS and self.p_value < LEVEL_OF_SCALES


def most_shown(impressions: Floats, context: Integers) -> Integers:
    """The cell of each context that has most impressions, shape (X,), of (K,) each."""
    order = np.lexsort((-impressions, context))
    return order[np.unique(context[order], return_index=True)[1]]


def counts_of_signatures(table: CountTable, theta: Floats, at_top: Integers) -> Floats:
    """Clicks, exposure and impressions at the top of each signature, shape (J, 3).

    Args:
        table: the counts.
        theta: shape (K,), NaN where a cell has none, whose clicks count nothing.
        at_top: the cells of `most_shown`.
    """
    known, top = np.isfinite(theta), np.isin(np.arange(len(theta)), at_top)
    sums = np.empty((table.n_units, 3))
    for units, block in table.blocks():
        of_entries = (
            block.clicks * known[block.cell],
            block.impressions * np.nan_to_num(theta)[block.cell],
            block.impressions * top[block.cell],
        )
        sums[units] = np.stack([block.sum_by_unit(values) for values in of_entries], axis=1)
    return sums


def match_contexts(counts: pl.DataFrame, largest: int, n_contexts: int) -> Floats:
    """The sums above and below in R of each context, shape (X, 2); those of parts add up.

    Args:
        counts: of documents in contexts, those of whole queries.
        largest: the number of the context with most impressions.
        n_contexts: X.
    """
    rows = counts.select(QUERY, DOC, CONTEXT, e=EXPOSURE, c=CLICKS)
    others = rows.filter(pl.col(CONTEXT) != largest)
    both = others.join(rows.filter(pl.col(CONTEXT) == largest), on=[QUERY, DOC], suffix="_y").filter(
        pl.col("e") + pl.col("e_y") > 0
    )
    share = pl.col("e_y") / (pl.col("e") + pl.col("e_y"))
    sums = both.select(CONTEXT, above=pl.col("c") * share, below=pl.col("c_y") * (1 - share))
    context = sums[CONTEXT].to_numpy().astype(np.int64)
    return np.stack([sum_by_number(context, sums[of].to_numpy(), n_contexts) for of in ("above", "below")], axis=1)


def scale_of(matched: Floats, largest: int) -> Floats:
    """R of each context from the sums of all parts, shape (X,); NaN where it is not known."""
    above, below = matched.T
    known = (above > 0) & (below > 0)
    scale = np.divide(above, below, out=np.full(len(above), np.nan), where=known)
    scale[largest] = 1.0
    return scale


def unevenness(counts: pl.DataFrame, scale: Floats) -> Floats:
    """The sums over queries of T, T^2, n and n^2, shape (4,); those of parts add up.

    Args:
        counts: of documents in contexts, those of whole queries.
        scale: R, shape (X,).
    """
    known = pl.Series(np.where(np.isnan(scale), _NOT_KNOWN, scale))
    of_context = counts.select(QUERY, DOC, IMPRESSIONS, AT_TOP, r=known.gather(counts[CONTEXT]))
    n, r = pl.col(IMPRESSIONS).cast(pl.Float64), pl.col("r")
    documents = of_context.group_by(QUERY, DOC, maintain_order=True).agg(
        n=n.sum(), square=(n * r).sum() ** 2 - (n * r**2).sum()
    )
    own = documents.filter(pl.col("n") > 1).group_by(QUERY, maintain_order=True)
    sums = own.agg(pl.col("n").sum(), own=(pl.col("square") / (pl.col("n") - 1)).sum())
    pages = pl.col(AT_TOP).cast(pl.Float64)
    of_pages = of_context.group_by(QUERY, maintain_order=True).agg(
        pages=pages.sum(), total=(pages * r).sum(), square=(pages * r).sum() ** 2 - (pages * r**2).sum()
    )
    both = sums.join(of_pages.filter(pl.col("pages") > 1), on=QUERY, maintain_order="left")
    expected = pl.col("n") * pl.col("square") / pl.col("pages") / (pl.col("pages") - 1)
    mean = pl.col("total") / pl.col("pages")
    t, weight = both.select(t=(pl.col("own") - expected) / mean**2, n="n").to_numpy().T.astype(np.float64)
    return np.array([t.sum(), (t**2).sum(), weight.sum(), (weight**2).sum()])


def scales_from(scale: Floats, sums: Sequence[Floats]) -> ScalesOfContexts:
    """What the sums of all parts say."""
    total, squares, weight, squared = np.sum(sums, axis=0)
    if not squares > 0:
        return ScalesOfContexts(scale, 0.0, 1.0)
    degrees = np.array([max(weight**2 / squared - 1, 1.0)])
    p_value = float(student_tail(np.array([total / np.sqrt(squares)]), degrees)[0])
    return ScalesOfContexts(scale, float(np.sqrt(max(total, 0.0) / weight)), p_value)
