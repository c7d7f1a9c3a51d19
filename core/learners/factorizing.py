"""Factors of queries (users) and documents (items), found by gradients of a loss of scores.

    f(q, d) = m + b_q + b_d + u_q . v_d          minimise loss(f) + lambda / 2 (|b|^2 + |u|^2 + |v|^2)

Every step of Adam sees all documents. A query that is held out has no bias and no factors: validation says how well
documents are ranked for users that were never seen.

Source: Koren, Bell & Volinsky 2009.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from posbias.core.arrays.count_table import Floats, Integers, sum_by_number
from posbias.core.choices import USUAL_PENALTY
from posbias.core.learners.adam import Adam
from posbias.core.learners.data import LearningData
from posbias.core.learners.growing import Rounds
from posbias.core.learners.learner import Learned, LearningOptions, OnRound
from posbias.core.learners.models import FactorModel

OF_FACTORS = ("factors", "regularization", "steps")
"""The options of learners of factors."""

_RATE = 0.02
_SPREAD = 0.1  # of the factors at the start


class LossOfScores(Protocol):
    """What is minimised."""

    def start(self) -> float:
        """The score that all documents begin with."""
        ...

    def gradients(self, scores: Floats) -> tuple[Floats, Any]:
        """The derivative of the loss by each score, and what else trees want."""
        ...

    def per_impression(self, scores: Floats) -> float:
        """How well scores fit, the larger the better."""
        ...


def strength_of(options: LearningOptions, usual: float = USUAL_PENALTY) -> float:
    """The penalty that is asked for, or the usual one."""
    return usual if options.regularization is None else options.regularization


def factorize(
    data: LearningData,
    loss: LossOfScores,
    apart: LossOfScores | None,
    options: LearningOptions,
    on_round: OnRound,
    usual: float = USUAL_PENALTY,
) -> Learned:
    """Find factors.

    Args:
        data: the log, with items.
        loss: of the documents to learn from.
        apart: of those held out, if there are any.
        options: what is asked.
        on_round: is called after every step.
        usual: the penalty, unless one is asked for.
    """
    if data.item is None:
        raise TypeError("factors need to know documents across queries")
    query, item = data.query[data.learnt], data.item[data.learnt]
    parameters, strength = start(data, loss.start(), options), strength_of(options, usual)

    def gradients() -> dict[str, Floats]:
        by_score = loss.gradients(model_of(parameters).scores(query, item))[0]
        return penalized(parameters, query, item, by_score, strength)

    fit = Fit(data, loss, apart)
    return descend(parameters, gradients, lambda: model_of(parameters), fit, options, on_round)


@dataclass(frozen=True)
class Fit:
    """How well factors fit.

    Attributes:
        data: the log, with items.
        loss: of the documents to learn from.
        apart: of those held out, if there are any.
    """

    data: LearningData
    loss: LossOfScores
    apart: LossOfScores | None

    def of(self, model: FactorModel) -> tuple[float, float | None]:
        """How well a model fits what is learnt from, and what is held out."""
        learnt = self.loss.per_impression(self._scores(model, self.data.learnt))
        return learnt, self.apart.per_impression(self._scores(model, self.data.apart)) if self.apart else None

    def _scores(self, model: FactorModel, documents: Integers) -> Floats:
        if self.data.item is None:
            raise TypeError("factors need to know documents across queries")
        return model.scores(self.data.query[documents], self.data.item[documents])


def descend(
    parameters: dict[str, Floats],
    gradients: Callable[[], dict[str, Floats]],
    model: Callable[[], FactorModel],
    fit: Fit,
    options: LearningOptions,
    on_round: OnRound,
) -> Learned:
    """Take steps of Adam, and keep the best.

    Args:
        parameters: where to begin; they change in place.
        gradients: the derivatives by all parameters, as these are now.
        model: what the parameters say now, a copy.
        fit: how good that is.
        options: what is asked.
        on_round: is called after every step.
    """
    adam, rounds = Adam(parameters, _RATE), Rounds(options.early_stopping)
    kept = model()
    for number in range(1, options.steps + 1):
        adam.step(gradients())
        found = model()
        rounds.add(number, *fit.of(found))
        if rounds.best == number:
            kept = found
        on_round()
        if rounds.over:
            break
    return Learned(kept, rounds.curve, report={"steps": rounds.best, "factors": options.factors})


def penalized(
    parameters: Mapping[str, Floats], query: Integers, item: Integers, by_score: Floats, strength: float
) -> dict[str, Floats]:
    """The gradient of the loss and its penalty, by every parameter.

    Args:
        parameters: as they are.
        query: of each document, shape (n,).
        item: likewise.
        by_score: the derivative of the loss by its score, likewise.
        strength: lambda.
    """
    of_query, of_item = parameters["query_factors"], parameters["item_factors"]
    wide = by_score[:, np.newaxis]
    return {
        "mean": np.array([by_score.sum()]),
        "query_bias": _added(query, by_score, parameters["query_bias"], strength),
        "item_bias": _added(item, by_score, parameters["item_bias"], strength),
        "query_factors": _added(query, wide * of_item[item], of_query, strength),
        "item_factors": _added(item, wide * of_query[query], of_item, strength),
    }


def _added(number: Integers, values: Floats, parameter: Floats, strength: float) -> Floats:
    """Values added up by number, and the derivative of the penalty."""
    if values.ndim == 1:
        return strength * parameter + sum_by_number(number, values, len(parameter))
    columns = [sum_by_number(number, column, len(parameter)) for column in values.T]
    return strength * parameter + np.column_stack(columns)


def start(data: LearningData, mean: float, options: LearningOptions) -> dict[str, Floats]:
    """Small factors drawn at random; 0 for what is only held out, which no gradient moves.

    Args:
        data: the log, with items.
        mean: the score that all documents begin with.
        options: what is asked.
    """
    if data.item is None:
        raise TypeError("factors need to know documents across queries")
    n_queries, n_items = int(data.query.max()) + 1, int(data.item.max()) + 1
    rng = np.random.default_rng(options.seed)
    of_query, of_item = (_SPREAD * rng.standard_normal((size, options.factors)) for size in (n_queries, n_items))
    of_query[np.bincount(data.query[data.learnt], minlength=n_queries) == 0] = 0.0
    of_item[np.bincount(data.item[data.learnt], minlength=n_items) == 0] = 0.0
    return {
        "mean": np.array([mean]),
        "query_bias": np.zeros(n_queries),
        "item_bias": np.zeros(n_items),
        "query_factors": of_query,
        "item_factors": of_item,
    }


def model_of(parameters: Mapping[str, Floats]) -> FactorModel:
    """The model that parameters are now, a copy."""
    copies = {name: values.copy() for name, values in parameters.items() if name != "mean"}
    return FactorModel(float(parameters["mean"][0]), **copies)
