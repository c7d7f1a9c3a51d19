"""Logs of the worlds of `value.py`, as learners see them."""

from dataclasses import replace
from typing import Any

import numpy as np
from value_measure import CONDITIONAL, JOINT, NAIVE, TRUE, estimated
from value_rows import Log
from value_worlds import Floats, Fold

from posbias.core.arrays.count_table import CountTable, sum_by_number
from posbias.core.learners.boosting import TreeOptions
from posbias.core.learners.data import Features, LearningData, Pages
from posbias.core.learners.learner import Learned, LearningOptions
from posbias.core.learners.methods import get_learner
from posbias.core.learners.models import RowModel

VALIDATION = 8
"""Networks stop by the clicks of one training query in so many."""

STOPPING = {"early_stopping": 6}
"""When they stop."""


def learning_data(fold: Fold, theta: Floats) -> LearningData:
    """The log of a fold, with propensities relative to the first position."""
    log = fold.log
    shown, document = np.unique(log["doc"].to_numpy(), return_inverse=True)
    cell = log["position"].to_numpy().astype(np.int64) - 1
    click = log["click"].to_numpy().astype(np.float64)
    n_cells = len(theta)
    key, size = document * n_cells + cell, len(shown) * n_cells
    impressions = np.bincount(key, minlength=size).reshape(len(shown), n_cells)
    session = log["session"].to_numpy()
    names = tuple(f"f{number}" for number in range(fold.documents.features.shape[1]))
    return LearningData(
        query=np.unique(fold.documents.query[shown], return_inverse=True)[1],
        held_out=np.zeros(len(shown), np.bool_),
        counts=CountTable.from_dense(
            impressions.astype(np.float64), sum_by_number(key, click, size).reshape(len(shown), n_cells)
        ),
        examination=theta / np.nanmax(theta),
        position=np.arange(1, n_cells + 1),
        features=Features(fold.documents.features[shown].astype(np.float64), names),
        pages=Pages(np.append(np.flatnonzero(np.diff(session, prepend=-1)), len(session)), document, cell, click),
    )


def with_validation(data: LearningData, seed: int) -> LearningData:
    """The same, some of its queries apart."""
    n_queries = int(data.query[-1]) + 1
    apart = np.random.default_rng(seed).choice(n_queries, n_queries // VALIDATION, replace=False)
    return replace(data, held_out=np.isin(data.query, apart))


def options_of(seed: int, **more: Any) -> LearningOptions:  # noqa: ANN401 - fields of the options
    """The usual options, in one thread."""
    return replace(LearningOptions(TreeOptions(threads=1, seed=seed), seed=seed), **more)


def learn(name: str, data: LearningData, options: LearningOptions) -> Learned:
    """What a learner makes of a log."""
    return get_learner(name).learn(data, options, lambda: None)


def scores(learned: Learned, fold: Fold) -> Floats:
    """The scores of all documents, also those that the log does not show."""
    if not isinstance(learned.model, RowModel):
        raise TypeError(f"{type(learned.model).__name__} needs no features")
    return learned.model.scores(fold.documents.features.astype(np.float64))


def propensities(fold: Fold, truth: Floats) -> dict[str, Floats]:
    """Propensities by where they come from."""
    log = Log.of(fold.log)
    return {
        NAIVE: np.ones(len(truth)),
        JOINT: estimated(log, "joint"),
        CONDITIONAL: estimated(log, "conditional"),
        TRUE: truth,
    }
