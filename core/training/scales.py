"""Scales of contexts: by how much labels of one query are off where its documents are unevenly shown in contexts.

A propensity is relative to the first position of its own context x, whatever that one gets. What clicks say of a
document in x is on the scale of x, and its label, over all contexts, is off by f = sum_x pi_x R_x: pi_x is the share of
its impressions in x, and R_x how often the same documents are clicked in x for the same exposure e_x = sum_k n_xk
theta_xk, relative to the context y with most impressions (Mantel & Haenszel 1959):

    R_x = sum a / sum b,   a = c_x e_y / (e_x + e_y),   b = c_y e_x / (e_x + e_y)      over the documents of all queries

Where the documents of a query have equal shares, f is the same for all of them, and their order is right, however long
pages are in x. Otherwise it differs from its mean by more than chance, which makes a document's pages a few of all. Of
a document with n_d impressions, and x = R_x / (sum_y n_y R_y / n) - 1 relative to the mean of the query's impressions,

    P_d = (sum_x n_dx x)^2 - sum_x n_dx x^2,     v = sum_x W_x x^2 / (n^2 - sum_x W_x)
    T = sum_d P_d / (n_d - 1) + n_d v,           U = sum_d (P_d + n_d (n_d - 1) v) / n

P adds up pairs of impressions on different pages (a document is on a page once); v is what the mean, of pages that are
more or less long, makes of them. A page of L results is L^2 in W_x = sum_k (2 k - 1) n_xk, where the context shows
position k k-th most often. sqrt(sum T / sum n_d) is the relative error of labels against those of the same query. U
has mean 0 however few pages there are, if page lengths go by context; Student's t of its sum over the queries says
whether documents are shown alike, that of sum (a - b), with the errors of theta, whether they are clicked alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import CountTable, Floats, Integers, sum_by_number
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, QUERY

CONTEXT, EXPOSURE, ON_PAGE = "posbias_context", "posbias_exposure", "posbias_on_page"
"""Columns of the counts of a document in a context: its number, and beside `impressions` and `clicks` the exposure, and
its part of W_x."""

LARGEST_ERROR_OF_LABELS, LEVEL_OF_SCALES = 0.05, 0.01
"""Error of labels within a query from which on they are not to be used, and the level at which it must be no chance."""


@dataclass(frozen=True)
class ScalesOfContexts:
    """The distance between contexts, and its effect on labels."""

    scale: Floats  # R, shape (X,), 1 of the context with most impressions; NaN where it is not known
    error: float  # the relative error of labels against those of the same query; NaN where some R is not known
    p_value: float  # of documents that are shown alike in all contexts, or clicked alike

    @property
    def matter(self) -> bool:
        """True if labels and weights of one query are not to be compared."""
        return self.p_value < LEVEL_OF_SCALES and not self.error < LARGEST_ERROR_OF_LABELS


def pairs_on_page(impressions: Floats, context: Integers) -> Floats:
    """The contribution of an impression of each cell to W of its context, shape (K,)."""
    order = np.lexsort((-impressions, context))
    rank = np.arange(len(order)) - np.searchsorted(context[order], context[order])
    return (2 * rank[np.argsort(order)] + 1).astype(np.float64)


def counts_of_signatures(table: CountTable, theta: Floats, on_page: Floats) -> Floats:
    """Clicks, exposure and part of W of each signature, shape (J, 3).

    Args:
        table: the counts.
        theta: shape (K,), NaN where a cell has none, whose clicks count nothing.
        on_page: the `pairs_on_page`.
    """
    known = np.isfinite(theta)
    sums = np.empty((table.n_units, 3))
    for units, block in table.blocks():
        of_entries = (
            block.clicks * known[block.cell],
            block.impressions * np.nan_to_num(theta)[block.cell],
            block.impressions * on_page[block.cell],
        )
        sums[units] = np.stack([block.sum_by_unit(values) for values in of_entries], axis=1)
    return sums


def match_contexts(counts: pl.DataFrame, largest: int, n_contexts: int) -> Floats:
    """Sums of a, b, (a - b)^2, a + b and (a + b)^2 over the queries, by context, shape (X, 5); those of parts add up.

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
    share, a, b = pl.col("e_y") / (pl.col("e") + pl.col("e_y")), pl.col("a"), pl.col("b")
    of_query = both.group_by(QUERY, CONTEXT, maintain_order=True).agg(
        a=(pl.col("c") * share).sum(), b=(pl.col("c_y") * (1 - share)).sum()
    )
    sums = of_query.select(a, b, difference=(a - b) ** 2, both=a + b, squared=(a + b) ** 2)
    context = of_query[CONTEXT].to_numpy().astype(np.int64)
    return np.stack([sum_by_number(context, of.to_numpy(), n_contexts) for of in sums], axis=1, dtype=np.float64)


def context_scales(matched: Floats, largest: int) -> Floats:
    """R of each context from the sums of all parts, shape (X,); NaN where it is not known."""
    above, below = matched.T[:2]
    known = (above > 0) & (below > 0)
    scale = np.divide(above, below, out=np.full(len(above), np.nan), where=known)
    scale[largest] = 1.0
    return scale


def unevenness(counts: pl.DataFrame, scale: Floats) -> Floats:
    """The sums over queries of T, U, U^2, n and n^2, shape (5, 1); those of parts add up.

    Args:
        counts: of documents in contexts, those of whole queries.
        scale: R, shape (X,).
    """
    n, w, x, t, u = (pl.col(name) for name in "nwxtu")
    rows = counts.select(
        QUERY, DOC, n=pl.col(IMPRESSIONS).cast(pl.Float64), w=ON_PAGE, x=pl.Series(scale).gather(counts[CONTEXT])
    ).with_columns(x=x * n.sum().over(QUERY) / (n * x).sum().over(QUERY) - 1)
    documents = rows.group_by(QUERY, DOC, maintain_order=True).agg(
        n.sum(), w.sum(), u=(n * x).sum() ** 2 - (n * x**2).sum(), chance=(w * x**2).sum()
    )
    pairs, chance = n.sum() ** 2 - w.sum(), pl.col("chance").sum()
    queries = documents.group_by(QUERY, maintain_order=True).agg(
        n.filter(n > 1).sum(),
        t=(u / (n - 1)).filter(n > 1).sum() + n.filter(n > 1).sum() * chance / pairs,
        u=(u.sum() + (n * (n - 1)).sum() * chance / pairs) / n.sum(),
    )
    sums = queries.filter(u.is_finite() & t.is_finite()).select(t, u, u2=u**2, n=n, n2=n**2).sum()
    return sums.to_numpy().T.astype(np.float64)


def judge_scales(
    scale: Floats, matched: Floats, error: Floats, known: Sequence[Floats], unknown: Sequence[Floats]
) -> ScalesOfContexts:
    """Scales and errors from the sums of all parts.

    Args:
        scale: R, shape (X,).
        matched: the sums behind it.
        error: the relative standard error of R by those of theta, shape (X,).
        known: `unevenness` of all parts, where R is 1 if it is not known.
        unknown: the same with R = 1 where it is known, and 1/2 where it is not; empty where all are known.
    """
    total, *apart = np.sum([np.zeros((5, 1)), *known], axis=0)
    others = np.isfinite(scale) & (scale != 1)
    a, b, squares, *weights = matched[others].T
    squares = squares + ((a + b) / 2 * error[others]) ** 2
    of_scale = 2 * others.sum() * _p_of_sums(np.abs(a - b), squares, *weights)
    p_value = float(max(*_p_of_sums(*apart), of_scale.min(initial=1.0)))
    judged = ScalesOfContexts(scale, float(np.sqrt(max(total[0], 0.0) / max(apart[2][0], 1.0))), p_value)
    if judged.matter or not unknown:
        return judged
    return ScalesOfContexts(scale, np.nan, float(_p_of_sums(*np.sum(unknown, axis=0)[1:])[0]))


def _p_of_sums(total: Floats, squares: Floats, weight: Floats, squared: Floats) -> Floats:
    """P that sums over queries are larger by chance, from those of their squares, and of their weights and squares."""
    some = squares > 0
    t = np.divide(total, np.sqrt(squares), out=np.zeros_like(total), where=some)
    degrees = np.divide(weight**2, squared, out=np.ones_like(total), where=squared > 0) - 1
    return np.where(some, scipy.special.stdtr(np.maximum(degrees, 1.0), -t), 1.0)
