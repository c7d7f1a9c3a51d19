"""Features that are numbers, their means and standard deviations, a run of rows at a time."""

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats
from posbias.core.errors import SchemaError
from posbias.core.learners.boosting import Rows, runs
from posbias.core.learners.data import Features, LearningData
from posbias.core.learners.growing import features_of


def numbers_of(data: LearningData, learner: str) -> Features:
    """The features of the documents, all of them numbers.

    Raises:
        SchemaError: one is text.
    """
    features = features_of(data)
    if features.categorical:
        raise SchemaError(
            f"--learner {learner}: learns from numbers, and the feature {features.names[features.categorical[0]]!r} is "
            "text. Leave it out, or make columns of 0 and 1 of it."
        )
    return features


def mean_and_scale(rows: Rows, wanted: Flags) -> tuple[Floats, Floats]:
    """The mean and the standard deviation of each feature, shapes (F,), over some rows.

    Missing and infinite values are left out. A feature that is constant or has no value has scale 1.

    Args:
        rows: shape (n, F).
        wanted: which rows, shape (n,).
    """
    mean = _mean(rows, wanted, None)
    variance = _mean(rows, wanted, mean)
    scale = np.sqrt(variance)
    return mean, np.where(scale > _CONSTANT * np.maximum(np.abs(mean), 1.0), scale, 1.0)


_CONSTANT = 1e-12  # relative to the mean: what rounding leaves of a feature without any spread


def _mean(rows: Rows, wanted: Flags, center: Floats | None) -> Floats:
    """The mean of each feature, or of its squared distance from a center, 0 where it has no value."""
    total, count = np.zeros(1), np.zeros(1)
    for chunk in runs(len(rows)):
        values = rows[chunk][wanted[chunk]]
        known = np.isfinite(values)
        values = np.where(known, values, 0.0) if center is None else np.where(known, values - center, 0.0) ** 2
        total, count = total + values.sum(axis=0), count + known.sum(axis=0)
    return total / np.maximum(count, 1)
