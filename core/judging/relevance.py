"""How well a click model's relevance agrees with graded judgments, and whether it still depends on the ranker.

AUC: the probability that a relevant document has the larger value, ties counting one half, over pairs of documents of a
query; relevant is a grade above 0.

*Debiasedness.* Given how relevant documents are, a model's values should not tell where the ranker had put them. The
dependence is measured by the mutual information of ranks under a normal copula,

    I(value; place | grade) = - 1/2 log(1 - rho^2),

rho the correlation of the normal scores of value and mean shown position within documents of one query and grade, and
tested by permuting places within them.

Sources: Deffayet, Hager, Renders & de Rijke 2023 (SIGIR: conditional mutual information with the production ranker,
there estimated by nearest neighbours); Agarwal et al. 2005 (AUC).
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.linalg import normal_quantile
from posbias.core.browsing.batch import Floats
from posbias.core.schema import QUERY

VALUE, GRADE, PLACE = "value", "grade", "place"
"""Columns: the model's relevance, the judged grade, and the mean position at which the log shows the document."""

_LEAST = 2
_PERMUTATIONS = 999


@dataclass(frozen=True)
class Dependence:
    """What values still say about the ranker, given the grade."""

    information: float  # I, >= 0, in nats
    correlation: float  # rho: below 0 where documents that were shown higher have larger values
    p_value: float  # of no dependence, by permutation
    documents: int  # that were compared


def auc(judged: pl.DataFrame) -> float:
    """AUC over pairs of documents of a query; NaN where no query has both.

    Args:
        judged: QUERY, VALUE and GRADE.
    """
    ranked = judged.select(
        QUERY, pl.col(VALUE).rank("average").over(QUERY).alias("rank"), (pl.col(GRADE) > 0).alias("relevant")
    )
    by_query = ranked.group_by(QUERY).agg(
        pl.col("rank").filter("relevant").sum().alias("sum"),
        pl.col("relevant").sum().cast(pl.Float64).alias("n"),
        (~pl.col("relevant")).sum().cast(pl.Float64).alias("others"),
    )
    n, others, ranks = (by_query[name].to_numpy() for name in ("n", "others", "sum"))
    pairs = float((n * others).sum())
    return float((ranks - n * (n + 1) / 2)[n * others > 0].sum() / pairs) if pairs else float("nan")


def dependence_on_ranker(judged: pl.DataFrame, seed: int) -> Dependence | None:
    """What values say about places, given the grade; None where no two documents can be compared.

    Args:
        judged: QUERY, VALUE, GRADE and PLACE.
        seed: of the permutations.
    """
    groups = judged.with_columns(pl.len().over(QUERY, GRADE).alias("size")).filter(pl.col("size") >= _LEAST)
    if not groups.height:
        return None
    value, place = (_normal_scores(groups, column) for column in (VALUE, PLACE))
    group = groups.select(pl.struct(QUERY, GRADE).rank("dense")).to_series().to_numpy()
    if not (value @ value > 0 and place @ place > 0):
        return None
    rho = _correlation(value, place)
    rng = np.random.default_rng(seed)
    order = np.argsort(group, kind="stable")
    value, place, group = value[order], place[order], group[order]
    beyond = 1
    for _ in range(_PERMUTATIONS):
        drawn = place[np.lexsort((rng.random(len(place)), group))]
        beyond += abs(_correlation(value, drawn)) >= abs(rho) - 1e-12
    rho = float(np.clip(rho, -1 + 1e-12, 1 - 1e-12))
    return Dependence(-0.5 * float(np.log1p(-(rho**2))), rho, beyond / (_PERMUTATIONS + 1), groups.height)


def _normal_scores(groups: pl.DataFrame, column: str) -> Floats:
    """Ranks within query and grade as quantiles of the normal distribution, of mean 0 there."""
    rank = pl.col(column).rank("average").over(QUERY, GRADE)
    share = groups.select(((rank - 0.5) / pl.col("size")).alias("share")).to_series().to_numpy()
    scores = pl.DataFrame({QUERY: groups[QUERY], GRADE: groups[GRADE], "score": normal_quantile(share)})
    return scores.select(pl.col("score") - pl.col("score").mean().over(QUERY, GRADE)).to_series().to_numpy()


def _correlation(one: Floats, other: Floats) -> float:
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))
