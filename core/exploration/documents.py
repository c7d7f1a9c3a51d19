"""Which documents of a query to show next: those that may be among its best.

A document's upper confidence bound is the 97.5 % quantile of the posterior of its attractiveness, taken for a Beta
distribution of the same mean m and standard deviation s, in which the errors of theta are included:

    u = quantile of Beta(m t, (1 - m) t) at .975,    t = m (1 - m) / s^2 - 1

With an alpha it is the mean and alpha standard deviations, u = min(m + alpha s, 1), as in LinUCB.

Worth showing are the documents whose bound lies above the k-th best mean of their query: each of them may be one of
the k best, and for the others the log already says that they are not. By the bound itself, good documents come first
(exploration that costs few clicks). Most is learnt where the bound reaches furthest beyond what is known:

    reach = u - max(m, k-th best mean of the query)

Sources: Auer, Cesa-Bianchi & Fischer 2002 (UCB); Kaufmann, Cappe & Garivier 2012 (Bayes-UCB, quantiles of posteriors);
Li, Chu, Langford & Schapire 2010 (alpha standard deviations).
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.arrays.linalg import beta_quantile
from posbias.core.schema import QUERY

ATTRACTIVENESS, STD_DEV = "attractiveness", "std_dev"
UCB, REACH = "ucb", "reach"
RANK, MEAN_RANK, REACH_RANK = "rank", "attractiveness_rank", "reach_rank"

LEVEL = 0.975
"""Of the quantile: the upper end of a 95 % interval."""

_LEAST_DEVIATION = 1e-12
_LEAST_MEAN = 1e-9


def upper_bounds(mean: Floats, std_dev: Floats) -> Floats:
    """The quantile of each posterior, shape (J,), at least its mean and at most 1.

    Args:
        mean: of attractiveness, from 0 to 1.
        std_dev: likewise, at least 0; above that of any distribution on [0, 1] with the mean, it is taken for this.
    """
    within = np.clip(mean, _LEAST_MEAN, 1 - _LEAST_MEAN)
    strength = within * (1 - within) / np.maximum(std_dev, _LEAST_DEVIATION) ** 2 - 1
    strength = np.maximum(strength, _LEAST_MEAN)
    bound = np.clip(beta_quantile(within * strength, (1 - within) * strength, LEVEL), mean, 1.0)
    return np.where(std_dev > _LEAST_DEVIATION, bound, mean)


def documents_to_show(
    pairs: pl.DataFrame, context: Sequence[str], top: int, alpha: float | None = None
) -> pl.DataFrame:
    """The documents that may be among the best of their query, each query's by their bound.

    Args:
        pairs: rows of `attractiveness.parquet`, each query whole and together.
        context: the columns within a query that tell contexts apart, each with best documents of its own.
        top: k, how many documents of a query count as its best.
        alpha: of the bound, at least 0; None for the quantile.

    Returns:
        Their rows, query by query and context by context, with `ucb`, `reach`, and what these say of the order there,
        from 1: `rank` (by the bound), `attractiveness_rank` (by the mean), `reach_rank`. Of a query with k documents
        or fewer, all of them.
    """
    known, error = (pairs[name].cast(pl.Float64).to_numpy() for name in (ATTRACTIVENESS, STD_DEV))
    bound = upper_bounds(known, error) if alpha is None else np.minimum(known + alpha * error, 1.0)
    group = (_QUERY, *context)
    mean, best = pl.col(ATTRACTIVENESS), pl.col(_BEST)
    ranked = (
        pairs.with_columns(pl.Series(UCB, bound), pl.col(QUERY).rle_id().alias(_QUERY))
        .sort(group, maintain_order=True)
        .with_columns(_rank(UCB, ATTRACTIVENESS, group).alias(RANK), _rank(ATTRACTIVENESS, UCB, group).alias(MEAN_RANK))
        .with_columns(mean.filter(pl.col(MEAN_RANK) == top).first().over(group).alias(_BEST))
        .with_columns((pl.col(UCB) - pl.max_horizontal(mean, best)).alias(REACH))
        .with_columns(_rank(REACH, UCB, group).alias(REACH_RANK))
    )
    worth = ranked.filter(best.is_null() | (pl.col(MEAN_RANK) <= top) | (pl.col(UCB) > best))
    return worth.sort(*group, RANK).select(*pairs.columns, UCB, REACH, RANK, MEAN_RANK, REACH_RANK)


_QUERY, _BEST = "posbias_query", "posbias_best"


def _rank(by: str, then: str, group: Sequence[str]) -> pl.Expr:
    """From 1, the largest first; equal ones in the order in which they come."""
    order = pl.struct(-pl.col(by), -pl.col(then)).rank("ordinal")
    return order.over(group).cast(pl.Int64)
