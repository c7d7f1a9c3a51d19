"""What features say of a row: how relevant its document is, and where the ranker would place it.

Relevance f maximises the likelihood of the position-based model, P(click) = theta_k g, g = 1 / (1 + exp(-f)), one tree
a round, with theta_k = C_k / sum of g in cell k after each, divided by its maximum:

    p = c + (1 - c) g (1 - theta) / (1 - theta g),   gradient g - p,   Hessian g (1 - g)

The place is the least-squares prediction of log(position). Both are cross-fitted by page.

The theta of the last round is the moment estimate. It takes up what trees that are shrunk leave unexplained, and is
kept for comparison.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers, sum_by_number
from posbias.core.errors import IdentifiabilityError
from posbias.core.exposure.cross_fitting import FOLDS, CrossFitted
from posbias.core.learners.boosting import BinnedRows, TreeOptions
from posbias.core.learners.forest import Forest
from posbias.core.learners.links import logit, sigmoid

RELEVANCE_TREES = 200
PLACE_TREES = 60

_SMALLEST_HESSIAN = 1e-6
_NEARLY_SURE = 1e-9  # 1 - theta g, below which it is rounding
_BINNED_BY = 100_000  # with fewer, LightGBM warns
_WORTH_THREADS = 20_000_000
_RATES = (1e-6, 1 - 1e-6)  # between which the mean of g starts


@dataclass(frozen=True)
class LearningRows:
    """The impressions of some pages, n, in K cells."""

    cell: Integers  # number of each impression's cell, shape (n,)
    click: Floats  # 0 or 1, shape (n,)
    weight: Floats  # > 0, shape (n,)
    fold: Integers  # of its page, shape (n,)
    position: Integers  # of each cell, from 1, shape (K,)
    context: Integers  # number of each cell's context, shape (K,)

    def sum_by_cell(self, values: Floats) -> Floats:
        """The weighted sum of values by cell, shape (K,)."""
        return sum_by_number(self.cell, self.weight * values, len(self.position))

    def mean_by_cell(self, values: Floats) -> Floats:
        """The weighted mean of values by cell, shape (K,); 0 for a cell without rows."""
        return _ratio(self.sum_by_cell(values), self.sum_by_cell(np.ones(len(self.cell))))


@dataclass(frozen=True)
class Nuisances:
    """What was learned."""

    relevance: tuple[Forest, ...]  # f, the trees for each fold
    place: tuple[Forest, ...]  # log(position), likewise
    scores: Floats  # f of the rows that they were learned on, out of fold, shape (n,)
    places: Floats  # log(position) of them, likewise
    theta: Floats  # the moment estimate, relative to the largest of its context, shape (K,)


def tree_options(n_values: int) -> TreeOptions:
    """How the trees of both are grown, on so many values of features: threads wait for each other where these are few.

    The same rows give the same trees, whatever the number of threads.
    """
    threads = 1 if n_values < _WORTH_THREADS else 0
    return TreeOptions(rate=0.1, leaves=15, leaf_rows=100, bins=63, binned_by=_BINNED_BY, threads=threads)


def learn_nuisances(features: BinnedRows, rows: LearningRows) -> Nuisances:
    """Learn relevance and place.

    Args:
        features: of the rows.
        rows: where they were shown, and which were clicked.

    Raises:
        IdentifiabilityError: there are too few rows, or the features say nothing.
    """
    needed, smallest = 2 * features.options.leaf_rows, int(np.bincount(rows.fold, minlength=FOLDS).min())
    if smallest < needed:
        raise IdentifiabilityError(
            f"features cannot be learnt from: of {len(rows.cell):,} rows, one half of the pages holds {smallest:,}, "
            f"and trees need at least {needed:,} in each. Add more days, or raise --sample-pages."
        )
    theta, relevance = _relevance(features, rows)
    place = _place(features, rows)
    if not relevance.rounds and not place.rounds:
        raise IdentifiabilityError(
            f"the features tell neither which of {len(rows.cell):,} rows are clicked nor where they stand, so that no "
            "rows can be compared as alike. Name other features (--features, --feature), or add more days."
        )
    return Nuisances(relevance.forests(), place.forests(), relevance.scores, place.scores, theta)


def _relevance(features: BinnedRows, rows: LearningRows) -> tuple[Floats, CrossFitted]:
    impressions, clicks = rows.sum_by_cell(np.ones(len(rows.cell))), rows.sum_by_cell(rows.click)
    theta = _relative(_ratio(clicks, impressions), rows.context)
    rate = float(clicks.sum() / max((impressions * theta).sum(), _NEARLY_SURE))
    trees = CrossFitted(features, rows.fold, logit(min(max(rate, _RATES[0]), _RATES[1])))
    for _ in range(RELEVANCE_TREES):

        def gradients(of: Integers, scores: Floats, theta: Floats = theta) -> tuple[Floats, Floats]:
            relevance, examined = sigmoid(scores), theta[rows.cell[of]]
            unclicked = relevance * (1 - examined) / np.maximum(1 - examined * relevance, _NEARLY_SURE)
            expected = np.where(rows.click[of] > 0, 1.0, unclicked)
            hessian = np.maximum(relevance * (1 - relevance), _SMALLEST_HESSIAN)
            return rows.weight[of] * (relevance - expected), rows.weight[of] * hessian

        if not trees.grow(gradients):
            break
        theta = _relative(_ratio(clicks, rows.sum_by_cell(sigmoid(trees.scores))), rows.context)
    return theta, trees


def _place(features: BinnedRows, rows: LearningRows) -> CrossFitted:
    place = np.log(rows.position[rows.cell])
    trees = CrossFitted(features, rows.fold, float(np.average(place, weights=rows.weight)))
    for _ in range(PLACE_TREES):
        if not trees.grow(lambda of, scores: (rows.weight[of] * (scores - place[of]), rows.weight[of])):
            break
    return trees


def _ratio(clicks: Floats, exposure: Floats) -> Floats:
    return np.divide(clicks, exposure, out=np.zeros(len(clicks)), where=exposure > 0)


def _relative(theta: Floats, context: Integers) -> Floats:
    """Divided by the largest of its context."""
    largest = np.zeros(int(context.max()) + 1)
    np.maximum.at(largest, context, theta)
    return _ratio(theta, largest[context])
