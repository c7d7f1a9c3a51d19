"""Scales of contexts: the error of labels if the documents of a query are shown unequally in contexts.

Propensities are relative to the first position of their own context x, however much attention that position gets, so
that debiased clicks in x are on a scale of x. The label of a document over all contexts is off by a factor
f = sum_x pi_x R_x: pi_x is the share of its impressions in x, and the scale R_x is the ratio of clicks on the same
documents in x and in the context y with most impressions, at the same exposure e_x = sum_k n_xk theta_xk (Mantel &
Haenszel 1959):

    R_x = sum a / sum b,   a = c_x e_y / (e_x + e_y),   b = c_y e_x / (e_x + e_y)      over the documents of all queries

If the documents of a query have equal shares, f is the same for all of them, and their order is right, however long
pages are in x. Otherwise f varies between documents by more than the chance by which a document is on some pages and
not on others. With n_d impressions of document d, and x = R_x / (sum_y n_y R_y / n) - 1 relative to the query's mean,

    P_d = (sum_x n_dx x)^2 - sum_x n_dx x^2,     v = sum_x W_x x^2 / (n^2 - sum_x W_x)
    T = sum_d P_d / (n_d - 1) + n_d v,           U = sum_d (P_d + n_d (n_d - 1) v) / n

P sums over pairs of impressions on different pages (a document is on a page once); v corrects for the estimated mean
over pages of unequal length. A page of L results adds L^2 to W_x = sum_k (2 k - 1) n_xk, if position k is the k-th most
frequent of the context. sqrt(sum T / sum n_d) is the relative error of labels within queries. U has mean 0, however few
pages there are, if page lengths depend on the context alone. Student's t of the sum of U over the queries tests whether
documents are shown equally, and that of sum (a - b), with the errors of theta, whether they are clicked equally.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import CountTable, Floats, Integers, sum_by_number
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, QUERY

CONTEXT, EXPOSURE, ON_PAGE = "posbias_context", "posbias_exposure", "posbias_on_page"
"""Columns of counts by document and context: the context number, the exposure, and the document's part of W_x."""

LARGEST_ERROR_OF_LABELS, LEVEL_OF_SCALES = 0.05, 0.01
"""Error of labels within queries from which they must not be used, and the level of its test."""


@dataclass(frozen=True)
class ScalesOfContexts:
    """Scales of X contexts, and their effect on labels."""

    scale: Floats  # R, shape (X,), 1 for the context with most impressions; NaN if unknown
    error: float  # relative error of labels within queries; NaN if some R is unknown
    p_value: float  # of equal clicks or equal shares in all contexts (either makes labels right)

    @property
    def matter(self) -> bool:
        """Whether labels and weights within a query are not comparable."""
        return self.p_value < LEVEL_OF_SCALES and not self.error < LARGEST_ERROR_OF_LABELS


def pairs_on_page(impressions: Floats, context: Integers) -> Floats:
    """Return the contribution 2 k - 1 of an impression in each cell to W of its context, shape (K,)."""
    order = np.lexsort((-impressions, context))
    rank = np.arange(len(order)) - np.searchsorted(context[order], context[order])
    return (2 * rank[np.argsort(order)] + 1).astype(np.float64)


def counts_of_signatures(table: CountTable, theta: Floats, on_page: Floats) -> Floats:
    """Return the clicks, exposure and part of W of each signature, shape (J, 3).

    Args:
        table: counts per signature and cell.
        theta: shape (K,); clicks in cells with NaN do not count.
        on_page: from `pairs_on_page`, shape (K,).
    """
    known = np.isfinite(theta)
    sums = np.empty((table.n_units, 3))
    for units, block in table.blocks():
        values_of_entries = (
            block.clicks * known[block.cell],
            block.impressions * np.nan_to_num(theta)[block.cell],
            block.impressions * on_page[block.cell],
        )
        sums[units] = np.stack([block.sum_by_unit(values) for values in values_of_entries], axis=1)
    return sums


def match_contexts(counts: pl.DataFrame, largest: int, n_contexts: int) -> Floats:
    """Sum a, b, (a - b)^2, a + b and (a + b)^2 over queries, by context, shape (X, 5); the sums of parts add up.

    Args:
        counts: by document and context, of whole queries.
        largest: number of the context y with most impressions.
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
    """Return R of each context from the sums of all parts, shape (X,); NaN if unknown."""
    above, below = matched.T[:2]
    known = (above > 0) & (below > 0)
    scale = np.divide(above, below, out=np.full(len(above), np.nan), where=known)
    scale[largest] = 1.0
    return scale


def unevenness(counts: pl.DataFrame, scale: Floats) -> Floats:
    """Sum T, U, U^2, n and n^2 over queries, shape (5, 1); the sums of parts add up.

    Args:
        counts: by document and context, of whole queries.
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
    """Judge the effect of the scales on labels from the sums of all parts.

    Args:
        scale: R, shape (X,).
        matched: the sums of `match_contexts`, shape (X, 5).
        error: relative standard error of R due to theta, shape (X,).
        known: `unevenness` of each part, with R = 1 where it is unknown.
        unknown: the same with R = 1 where it is known, and 1/2 where it is not; empty if all are known.
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
    """Return one-sided p-values of sums over queries, by Student's t with the effective number of queries less 1.

    Args:
        total: the sums.
        squares: sums of the squared terms.
        weight: sums of the weights of the queries.
        squared: sums of the squared weights.
    """
    some = squares > 0
    t = np.divide(total, np.sqrt(squares), out=np.zeros_like(total), where=some)
    degrees = np.divide(weight**2, squared, out=np.ones_like(total), where=squared > 0) - 1
    return np.where(some, scipy.special.stdtr(np.maximum(degrees, 1.0), -t), 1.0)
