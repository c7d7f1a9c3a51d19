"""The pointwise layout: two rows per (query, document), its clicked and its unclicked part.

A document's n impressions become W+ for its clicks and W- = n - W+ for the rest. With click weights W+ may exceed n:
W- is then 0, and documents that were shown rarely are labelled too low, the more so the further down they stood
(gamma = .3, one impression: .30 at position 1, .24 at position 10). The expected label never exceeds n, but leans on
the prior of gamma, which is worse where pairs are shown rarely: a learner that can bend then ranks below one that
reads naive clicks. tests/benchmarks/README.md compares them.

Sources: Saito et al. 2019 (the layout); Wang et al. 2018 (expected labels).
"""

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.schema import WEIGHT
from posbias.core.training.layouts.layout import (
    GROUP,
    LABEL,
    LayoutOfCounts,
    RowsOfPairs,
    WeighedDocuments,
    WeightedCounts,
    sums_by_document,
)
from posbias.core.training.replicates import replicate_names
from posbias.core.training.weights import ClickWeights

_TINY = 1e-300  # theta = gamma = 1 leaves no impression without a click to explain: 0 of them, not 0/0


class PointwiseLayout(LayoutOfCounts):
    """W+ and W- of each document; any learner takes them that takes a weight per row."""

    name = "pointwise"
    ranked = False
    left_out = (GROUP,)
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
    documents, sums = sums_by_document(pairs, by_signature)
    shown, positive = sums[:, 1], np.delete(sums, 1, axis=1)
    negative = np.maximum(shown[:, np.newaxis] - positive, 0.0)
    weights = np.stack([positive, negative], axis=1).reshape(2 * documents.height, positive.shape[1])
    names = [WEIGHT, *replicate_names(positive.shape[1] - 1)]
    return documents[np.repeat(np.arange(documents.height), 2)].with_columns(
        pl.Series(LABEL, np.tile(np.array([1, 0], np.int8), documents.height)),
        *(pl.Series(name, weights[:, column]) for column, name in enumerate(names)),
    )
