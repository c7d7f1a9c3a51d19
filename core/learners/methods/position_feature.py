"""Position as one more feature of boosted trees, fixed at 1 when predicting.

    P(click | d, k) = 1 / (1 + exp(-f(x_d, k))),   score of d = f(x_d, 1)

One row is a document at a position, with its n impressions and c clicks: gradient n p - c, Hessian n p (1 - p).

The model file does not know positions: at every split of the position, rows go where position 1 goes, so that the split
and what lies behind it are taken out of the tree. What is left predicts f(x, 1) from the features alone.

Source: Guo et al. 2019 (position as an input with a fixed value in serving, their baseline).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.learners.boosting import BinnedRows, Rows, bin_rows
from posbias.core.learners.data import Features, LearningData
from posbias.core.learners.forest import Forest
from posbias.core.learners.growing import PROBABILITY, Grown, features_of, grow, split_rows
from posbias.core.learners.learner import OF_TREES, Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.links import logit, sigmoid
from posbias.core.learners.model_text import ModelText
from posbias.core.learners.models import TreeModel

TOP = 1.0
"""The position that all documents are given when they are scored."""

_FLATTEST = 1e-6  # the least Hessian of a row
_RATES = (1e-4, 0.9)  # what the start is kept within
_TINY = 1e-300


class PositionFeatureLearner(Learner):
    """Boosted trees on clicks, given the features and the position."""

    name = "position-feature"
    reference = "Guo et al. 2019"
    about = "trees that see the position, fixed at 1 when predicting"
    uses_propensities = False
    is_probability = True
    takes = (*OF_TREES, "negative_share")

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grow trees on every document at every position, and take the position out of them."""
        loss, held_out = (ClickRates(data.counts.take(documents)) for documents in (data.learnt, data.apart))
        rows = split_rows(_binned(data, options), data.held_out[data.counts.unit_of_entry])
        grown = grow(rows, loss, held_out if len(data.apart) else None, options, on_round)
        return _at_the_top(grown)


def _binned(data: LearningData, options: LearningOptions) -> BinnedRows:
    """The rows; a leaf holds as many as documents are asked for, each with the positions that it has on average."""
    features, counts = features_of(data), data.counts
    positions_each = counts.n_entries / max(counts.n_units, 1)
    trees = replace(options.trees, leaf_rows=max(round(options.trees.leaf_rows * positions_each), 1))
    rows = DocumentsAtPositions(features, counts.unit_of_entry, data.position[counts.cell])
    return bin_rows(rows, [*features.names, _name(features.names)], features.categorical, trees)


def _name(others: Sequence[str]) -> str:
    """What LightGBM calls the position as long as trees grow: no name of a feature."""
    name = "position"
    while name in others:
        name += "_"
    return name


def _at_the_top(grown: Grown) -> Learned:
    """What the trees say of documents at position 1; the position itself is no feature that a reader asks about."""
    importance = grown.importance
    whole = ModelText.parse(grown.trees.model_text(grown.best, PROBABILITY))
    shares = importance["gain"] / (importance["gain"].sum() or 1.0)
    return Learned(
        TreeModel(Forest(whole.without_last_feature(TOP).complete())),
        grown.curve,
        importance.head(importance.height - 1),
        report={"trees": grown.best, "share_of_gain_of_position": float(shares[-1])},
    )


@dataclass(frozen=True)
class DocumentsAtPositions:
    """Rows of features, each document once for each position, with the position behind.

    Attributes:
        features: of the documents.
        document: of each row, ascending, shape (R,).
        position: likewise.
    """

    features: Features
    document: Integers
    position: Integers

    def __len__(self) -> int:
        """Number of rows R."""
        return len(self.document)

    def __getitem__(self, wanted: slice | Integers, /) -> Floats:
        """Some rows, shape (n, F + 1)."""
        document = self.document[wanted]
        position = self.position[wanted].astype(np.float64)
        return np.column_stack([_rows_of(self.features.rows, document), position])


def _rows_of(rows: Rows, document: Integers) -> Floats:
    """The rows of documents, read as one run where they stand together."""
    if not len(document):
        return rows[0:0]
    first, last = int(document[0]), int(document[-1])
    if (np.diff(document) >= 0).all() and last - first < len(document):
        return rows[first : last + 1][document - first]
    return rows[document]


@dataclass(frozen=True)
class ClickRates:
    """The likelihood of clicks, each entry of a table with a score of its own.

    Attributes:
        counts: R entries.
    """

    counts: CountTable

    @cached_property
    def _shown(self) -> float:
        return float(self.counts.impressions.sum())

    def start(self) -> float:
        """The score at which as many clicks are expected as there are."""
        return logit(float(np.clip(self.counts.clicks.sum() / max(self._shown, _TINY), *_RATES)))

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The derivatives n p - c and n p (1 - p) at scores of shape (R,)."""
        shown, chance = self.counts.impressions, sigmoid(scores)
        return shown * chance - self.counts.clicks, np.maximum(shown * chance * (1 - chance), _FLATTEST)

    def per_impression(self, scores: Floats) -> float:
        """The log-likelihood per impression at scores of shape (R,)."""
        clicks, skips = self.counts.clicks, self.counts.impressions - self.counts.clicks
        total = -(clicks @ np.logaddexp(0.0, -scores) + skips @ np.logaddexp(0.0, scores))
        return float(total) / max(self._shown, _TINY)
