"""Factors of what clicks would be under random exposure: those of all documents, moved by the rows placed at random.

    f_c(q, d) = m_c + b_q + b_d + u_q . v_d            control: rows of the logging ranker
    f_t(q, d) = m_t + b_q + a_d + u_q . w_d            treatment: rows that were placed at random

    minimise  L_c(f_c) + L_t(f_t) + lambda / 2 (|b_q, b_d, a_d|^2 + |u, v, w|^2) + delta / 2 (|w - v|^2 + |a - b_d|^2)

L is the logistic loss of clicks. Both tasks share the users. Few rows at random move a document where they must, and
leave it where the many others put it.

This is CausE-prod of the paper: a control and a treatment vector for each document. Scores are those of the treatment
vectors (CausE-prod-T), or with `--vectors control` of the control vectors (CausE-prod-C); then rows at random matter by
the users that both tasks share, and by the tie. CausE-avg has one control vector for all documents, towards which
nothing of what the logging ranker's rows say of each could be carried over. The distance is squared, or with
`--tie-distance absolute` delta (|w - v|_1 + |a - b_d|_1), as in the paper's code. Positions and propensities do not
enter.

Source: Bonner & Vasile 2018.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers
from posbias.core.choices import TieDistance
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.data import LearningData
from posbias.core.learners.factorizing import OF_FACTORS, Fit, descend, model_of, penalized, start, with_penalty
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.likelihood import ClickLikelihood
from posbias.core.learners.models import FactorModel

CONTROL, TREATMENT = "control", "treatment"
_OF_QUERIES = ("query_bias", "query_factors")
_OF_TASK = ("mean", "item_bias", "item_factors")
_TIED = ("item_bias", "item_factors")


class CausELearner(Learner):
    """Causal embeddings."""

    name = "cause"
    reference = "Bonner & Vasile 2018"
    about = "factors of queries and documents, on clicks of the logging ranker and of rows placed at random"
    needs_features = False
    needs_randomized = True
    takes = (*OF_FACTORS, "tie", "tie_distance", "vectors")
    uses_propensities = False
    measure = "log-likelihood per impression placed at random"

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Find the factors of both tasks, and keep the vectors that are asked for."""
        if data.randomized is None:
            raise TypeError("this learner needs to know which rows were randomised")
        if not data.randomized.take(data.learnt).impressions.any():
            raise IdentifiabilityError("no row that is learnt from was placed at random (--randomized-where).")
        if options.early_stopping is not None and not data.randomized.take(data.apart).impressions.any():
            raise IdentifiabilityError(
                "--early-stopping: no row of a held-out query was placed at random (--randomized-where). Hold more out "
                "with --validation, or leave it out."
            )
        return with_penalty(data, partial(_learn, options=options, on_round=on_round), _clicks, options, placed=True)


def _learn(data: LearningData, strength: float, options: LearningOptions, on_round: OnRound) -> Learned:
    if data.item is None or data.randomized is None:
        raise TypeError("this learner needs to know documents across queries, and which rows were randomised")
    query, item = data.query[data.learnt], data.item[data.learnt]
    placed = data.randomized.take(data.learnt)
    losses = {CONTROL: _clicks(data.counts.take(data.learnt).less(placed)), TREATMENT: _clicks(placed)}
    parameters = _both(start(data, 0.0, options), {task: loss.start() for task, loss in losses.items()})

    def gradients() -> dict[str, Floats]:
        by_score = {
            task: loss.gradients(model_of(of_task(parameters, task)).scores(query, item))[0]
            for task, loss in losses.items()
        }
        return tied(parameters, query, item, by_score, strength, pull=TIES[options.tie_distance], tie=options.tie)

    def model() -> FactorModel:
        mean = parameters[f"{TREATMENT}_mean"]  # of what is judged, whichever vectors rank
        return model_of(of_task(parameters, options.vectors) | {"mean": mean})

    apart = _clicks(data.randomized.take(data.apart))
    fit = Fit(data, losses[TREATMENT], apart if apart.impressions.any() else None)
    return descend(parameters, gradients, model, fit, options, on_round)


TIES: Mapping[TieDistance, Callable[[Floats], Floats]] = {"squared": lambda apart: apart, "absolute": np.sign}
"""The derivative of half the squared distance, and of the absolute one, by a difference."""


def tied(
    parameters: Mapping[str, Floats],
    query: Integers,
    item: Integers,
    by_score: Mapping[str, Floats],
    strength: float,
    pull: Callable[[Floats], Floats],
    tie: float,
) -> dict[str, Floats]:
    """The gradient of both losses and all penalties, by every parameter.

    Args:
        parameters: as they are.
        query: of each document, shape (n,).
        item: likewise.
        by_score: the derivative of each task's loss by its score, likewise.
        strength: lambda.
        pull: the derivative of the distance by a difference (`TIES`).
        tie: delta.
    """
    found: dict[str, Floats] = {name: -strength * parameters[name] for name in _OF_QUERIES}  # else it counts twice
    for task in (CONTROL, TREATMENT):
        of_loss = penalized(of_task(parameters, task), query, item, by_score[task], strength)
        for name in _OF_QUERIES:
            found[name] = found[name] + of_loss[name]
        found |= {f"{task}_{name}": of_loss[name] for name in _OF_TASK}
    for name in _TIED:
        control, treatment = f"{CONTROL}_{name}", f"{TREATMENT}_{name}"
        together = tie * pull(parameters[treatment] - parameters[control])
        found[treatment] = found[treatment] + together
        found[control] = found[control] - together
    return found


def of_task(parameters: Mapping[str, Floats], task: str) -> dict[str, Floats]:
    """The parameters of a task, named as for factors of one task."""
    own = {name: parameters[f"{task}_{name}"] for name in _OF_TASK}
    return own | {name: parameters[name] for name in _OF_QUERIES}


def _both(of_one: Mapping[str, Floats], means: Mapping[str, float]) -> dict[str, Floats]:
    """Two tasks that begin alike, but for their means."""
    both = {name: of_one[name] for name in _OF_QUERIES}
    for task, mean in means.items():
        both |= {f"{task}_{name}": of_one[name].copy() for name in _TIED}
        both[f"{task}_mean"] = np.array([mean])
    return both


def _clicks(counts: CountTable) -> ClickLikelihood:
    """The logistic loss of clicks as they are."""
    return ClickLikelihood(counts, np.ones(counts.n_cells))
