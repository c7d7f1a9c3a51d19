"""Layouts of (query, document) pairs: `pointwise` and `judgments`.

A document's n impressions become W+ for its clicks and W- = n - W+ for the rest. With click weights W+ may exceed n:
W- is then 0, and documents that were shown rarely are labelled too low, the more so the further down they stood
(gamma = .3, one impression: .30 at position 1, .24 at position 10). The expected label never exceeds n, but leans on
the prior of gamma, which is worse where pairs are shown rarely: a learner that can bend then ranks below one that
reads naive clicks. tests/benchmarks/README.md compares them.

    posterior:  E[gamma | counts], the posterior mean of attractiveness
    coec:       sum_e c_e / sum_e n_e theta_e      clicks over expected clicks (per unit of attractiveness)
    ips:        sum_e c_e / theta_e  /  sum_e n_e

with theta clipped as in the weights; sums run over the cells that have a propensity. The last two are unbiased, ips
with more variance, and both noisy where a document was seldom shown; there the posterior is drawn to its prior, which
learners do better with (tests/benchmarks/README.md).

`label_std_dev` is that of the posterior, the errors of theta included; the two other rates have none, as a document
without clicks would have none. Over the contexts of a document variances add up.

    grade = min(floor(G label / top), G - 1)

G grades in equal steps; top is the label that a hundredth of the documents exceed, where there are contexts each
document in each of its contexts. Rankers with graded gains, and the judgment lists of search engines, take grades.
"""

from functools import partial

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.errors import StatisticsError
from posbias.core.schema import CLICKS, IMPRESSIONS, WEIGHT
from posbias.core.training import layout
from posbias.core.training.layout import LayoutOfCounts, Posterior, RowsOfPairs, WeighedDocuments, WeightedCounts
from posbias.core.training.weights import ClickWeights, WeightOptions, replicate_names

_TINY = 1e-300  # theta = gamma = 1 leaves no impression without a click to explain: 0 of them, not 0/0


class PointwiseLayout(LayoutOfCounts):
    """W+ and W- of each document; any learner takes them that takes a weight per row."""

    name = "pointwise"
    ranked = False
    left_out = (layout.GROUP,)
    takes = ("negatives",)

    def by_signature(self, counts: WeightedCounts) -> tuple[Floats, RowsOfPairs]:
        """W+ and the impressions of each signature, and W+ under replicate weights, shape (J, 2 + N)."""
        positive = None
        if counts.options.negatives == "posterior":
            posterior = counts.posterior()
            positive = expected_attractions(counts.signatures, posterior.examination, posterior.mean)
        return positive_and_shown(counts.signatures, counts.weights, positive), pointwise_rows

    def by_document(self, documents: WeighedDocuments) -> tuple[Floats, RowsOfPairs]:
        """W+, held at 0, and the impressions, shape (J, 2)."""
        return np.column_stack([np.maximum(documents.attracted, 0.0), documents.impressions]), pointwise_rows


def expected_attractions(signatures: CountTable, examination: Floats, attractiveness: Floats) -> Floats:
    """How many of a unit's impressions showed an attractive document, given the clicks: W+ without click weights.

        W+ = sum_e { c_e + (n_e - c_e) P(A = 1 | c = 0) },  P(A = 1 | c = 0) = gamma (1 - theta) / (1 - theta gamma)

    An impression is worth at most 1 whatever its cell's theta: there is no weight that could be clipped.

    Args:
        signatures: counts per (signature, cell).
        examination: theta as a probability, shape (K,), 0 < theta <= 1; NaN where a cell has none, and counts nothing.
        attractiveness: gamma, shape (J,), in [0, 1], on the scale of this theta.

    Returns:
        W+ of each signature, shape (J,), between its clicks and its impressions.
    """
    attractions = np.empty(signatures.n_units)
    known, theta = np.isfinite(examination), np.nan_to_num(examination)
    for units, block in signatures.blocks():
        theta_of, gamma = theta[block.cell], block.spread(attractiveness[units])
        attracted = gamma * (1 - theta_of) / np.maximum(1 - theta_of * gamma, _TINY)
        skips = block.impressions - block.clicks
        attractions[units] = block.sum_by_unit(known[block.cell] * (block.clicks + skips * attracted))
    return attractions


def positive_and_shown(signatures: CountTable, weights: ClickWeights, positive: Floats | None = None) -> Floats:
    """W+ and sum_e n_e of each signature over the cells that have a propensity, and W+ under each replicate weight.

    Args:
        signatures: counts per (signature, cell).
        weights: the weight of a click per cell, and N replicate weights.
        positive: W+ of each signature, shape (J,), as from `expected_attractions`; None: sum_e c_e w_e.

    Returns:
        Shape (J, 2 + N).
    """
    known, (weight, *further) = np.isfinite(weights.weight), np.nan_to_num([weights.weight, *weights.replicates])
    sums = np.empty((signatures.n_units, 2 + len(further)))
    for units, block in signatures.blocks():
        clicked = [block.sum_by_unit(block.clicks * of_cell[block.cell]) for of_cell in (weight, *further)]
        clicked[0] = clicked[0] if positive is None else positive[units]
        clicked.insert(1, block.sum_by_unit(block.impressions * known[block.cell]))
        sums[units] = np.stack(clicked, axis=1)
    return sums


def pointwise_rows(pairs: pl.DataFrame, by_signature: Floats) -> pl.DataFrame:
    """The rows of a part.

        label 1: W+           label 0: W- = max(sum_e n_e - W+, 0)

    Sums run over the cells that have a propensity, and over all rows of a document.

    Args:
        pairs: `query`, `doc`, `signature`, as for `sums_by_document`.
        by_signature: as from `positive_and_shown`, shape (J, 2 + N).

    Returns:
        `group`, `query`, `doc`, `label` (Int8), `weight` and replicate weights (Float64), in the order of the pairs,
        label 1 first.
    """
    documents, sums = layout.sums_by_document(pairs, by_signature)
    shown, positive = sums[:, 1], np.delete(sums, 1, axis=1)
    negative = np.maximum(shown[:, np.newaxis] - positive, 0.0)
    weights = np.stack([positive, negative], axis=1).reshape(2 * documents.height, positive.shape[1])
    names = [WEIGHT, *replicate_names(positive.shape[1] - 1)]
    return documents[np.repeat(np.arange(documents.height), 2)].with_columns(
        pl.Series(layout.LABEL, np.tile(np.array([1, 0], np.int8), documents.height)),
        *(pl.Series(name, weights[:, column]) for column, name in enumerate(names)),
    )


_ABOVE_TOP = 0.01  # of the documents: a few rates from next to no impressions must not stretch the scale


class JudgmentsLayout(LayoutOfCounts):
    """The debiased click rate of each document, and its grade."""

    name = "judgments"
    weighted = None
    graded = True
    one_row_each = True
    left_out = (layout.GROUP, WEIGHT)
    takes = ("rate", "grades")

    def by_signature(self, counts: WeightedCounts) -> tuple[Floats, RowsOfPairs]:
        """The terms of the rate of each signature, shape (J, 5)."""
        posterior = counts.posterior() if counts.options.rate == "posterior" else None
        terms = rate_terms(counts.signatures, counts.weights, counts.options, posterior)
        top = top_rate(terms, counts.signatures.multiplicity)
        return terms, partial(judgment_rows, top=top, grades=counts.options.grades, whole=counts.whole)

    def by_document(self, documents: WeighedDocuments) -> tuple[Floats, RowsOfPairs]:
        """The terms of each document; rates below 0, which trust bias leaves by chance, are held there."""
        shown = documents.impressions
        above, below = {
            "posterior": (shown * documents.relevance, shown),
            "coec": (documents.beyond, documents.expected),
            "ips": (documents.attracted, shown),
        }[documents.options.rate]
        unknown = np.full(len(shown), np.nan)
        terms = np.stack([shown, documents.clicks, np.maximum(above, 0.0), below, unknown], axis=1)
        top, grades = top_rate(terms, np.ones(len(terms))), documents.options.grades
        return terms, partial(judgment_rows, top=top, grades=grades, whole=documents.whole)


def rate_terms(
    signatures: CountTable, weights: ClickWeights, options: WeightOptions, posterior: Posterior | None = None
) -> Floats:
    """The terms of the rate of a document, by signature, over the cells that have a propensity.

    Args:
        signatures: counts per (signature, cell).
        weights: the propensity of each cell.
        options: clipping, and which rate.
        posterior: of each signature's attractiveness, for the rate of that name.

    Returns:
        Impressions, clicks, the rate's numerator and denominator, and the variance of the numerator, nan where it is
        not known, shape (J, 5).

    Raises:
        StatisticsError: the posterior is requested, and a signature has no attractiveness.
    """
    known = np.isfinite(weights.propensity)
    theta = np.where(known, np.maximum(np.nan_to_num(weights.propensity), options.min_propensity), 1.0)
    terms = np.empty((signatures.n_units, 5))
    unknown = np.full(signatures.n_units, np.nan)
    gamma = unknown if posterior is None else posterior.mean
    spread = unknown if posterior is None or posterior.std_dev is None else posterior.std_dev
    if options.rate == "posterior" and (len(gamma) != signatures.n_units or not np.isfinite(gamma).all()):
        raise StatisticsError(
            "--layout-options rate=posterior: some documents have no attractiveness, and no number stands for that. "
            "Estimate again, or use rate=coec or ips."
        )
    for units, block in signatures.blocks():
        shown, clicked = (known[block.cell] * counts for counts in (block.impressions, block.clicks))
        impressions, clicks = block.sum_by_unit(shown), block.sum_by_unit(clicked)
        if options.rate == "coec":
            above, below = clicks, block.sum_by_unit(shown * theta[block.cell])
        elif options.rate == "ips":
            above, below = block.sum_by_unit(clicked / theta[block.cell]), impressions
        else:
            above, below = impressions * gamma[units], impressions
        variance = (impressions * spread[units]) ** 2
        terms[units] = np.stack([impressions, clicks, above, below, variance], axis=1)
    return terms


def top_rate(terms: Floats, multiplicity: Floats) -> float:
    """The rate that a hundredth of the documents exceed; 0 where none was clicked.

    Args:
        terms: as from `rate_terms`, shape (J, 5).
        multiplicity: how many documents each signature stands for, shape (J,).
    """
    return top_of(np.divide(terms[:, 2], terms[:, 3], out=np.zeros(len(terms)), where=terms[:, 3] > 0), multiplicity)


def top_of(rate: Floats, multiplicity: Floats) -> float:
    """The rate that a hundredth of rates, shape (J,), exceed; 0 without any."""
    order = np.argsort(rate)
    above = multiplicity.sum() - np.cumsum(multiplicity[order])
    return float(rate[order][np.argmax(above <= _ABOVE_TOP * multiplicity.sum())]) if len(rate) else 0.0


def grades_of(label: Floats, top: float, grades: int) -> Integers:
    """The grade of each label, 0 .. grades - 1, same shape."""
    steps = np.floor(grades * label / top) if top > 0 else np.zeros(len(label))
    return np.minimum(steps, grades - 1).astype(np.int64)


def judgment_rows(pairs: pl.DataFrame, terms: Floats, *, top: float, grades: int, whole: bool) -> pl.DataFrame:
    """The rows of a part. Documents that no cell with a propensity has shown are left out.

    Args:
        pairs: `query`, `doc`, `signature`, as for `sums_by_document`.
        terms: as from `rate_terms`, shape (J, 4).
        top: as from `top_rate`.
        grades: number of grades G, at least 2.
        whole: whether impressions and clicks are whole numbers, not sums of weights.

    Returns:
        `group`, `query`, `doc`, `label` (Float64 >= 0), `label_std_dev` (null where it is not known), `grade` (Int32,
        0 .. G - 1), `impressions`, `clicks`, `weight` (1: judgments weigh the same).
    """
    documents, sums = layout.sums_by_document(pairs, terms)
    seen = sums[:, 3] > 0
    sums = sums[seen]
    label = sums[:, 2] / sums[:, 3]
    counts = pl.Int64 if whole else pl.Float64
    return documents.filter(pl.Series(seen)).with_columns(
        pl.Series(layout.LABEL, label),
        pl.Series(layout.LABEL_STD_DEV, np.sqrt(sums[:, 4]) / sums[:, 3]).fill_nan(None),
        pl.Series(layout.GRADE, grades_of(label, top, grades).astype(np.int32)),
        pl.Series(IMPRESSIONS, sums[:, 0]).cast(counts),
        pl.Series(CLICKS, sums[:, 1]).cast(counts),
        pl.lit(1.0).alias(WEIGHT),
    )
