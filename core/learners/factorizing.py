"""Factors of queries (users) and documents (items), found by gradients of a loss of scores.

    f(q, d) = m + b_q + b_d + u_q . v_d          minimise loss(f) + lambda / 2 (|b|^2 + |u|^2 + |v|^2)

Every step of Adam sees all documents. A query that is held out has no bias and no factors: validation says how well
documents are ranked for users that were never seen.

Unless it is named, lambda is that of `PENALTIES` with which the factors of four fifths of the impressions predict the
other fifth best. Beyond some lambda the minimum has u = v = 0 (|u|^2 + |v|^2 over all u v' = X is twice the nuclear
norm of X), and every query has the same list.

Sources: Koren, Bell & Volinsky 2009; Srebro, Rennie & Jaakkola 2005 (the nuclear norm).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers, sum_by_number
from posbias.core.choices import PENALTIES
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.adam import Adam
from posbias.core.learners.data import LearningData
from posbias.core.learners.growing import Rounds
from posbias.core.learners.learner import Learned, LearningOptions, OnRound
from posbias.core.learners.models import FactorModel, RowModel

OF_FACTORS = ("factors", "regularization", "steps")
"""The options of learners of factors."""

_RATE = 0.02
_SPREAD = 0.1  # of the factors at the start
_APART = 0.2  # of the impressions, to choose the penalty by
_LEAST_FACTORS = 0.01
"""Of the largest bias of a document: the least that |u_q . v_d| must come to somewhere for factors not to be zero."""


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


LossOf = Callable[[CountTable], LossOfScores]
"""The loss of some documents with these counts."""


def factorize(
    data: LearningData, loss_of: LossOf, options: LearningOptions, on_round: OnRound, scale: float = 1.0
) -> Learned:
    """Find factors.

    Args:
        data: the log, with items.
        loss_of: what is minimised.
        options: what is asked.
        on_round: is called after every step.
        scale: by which the penalties to choose from are multiplied.

    Raises:
        IdentifiabilityError: the factors are zero.
    """

    def learn(log: LearningData, strength: float) -> Learned:
        if log.item is None:
            raise TypeError("factors need to know documents across queries")
        query, item = log.query[log.learnt], log.item[log.learnt]
        loss = loss_of(log.counts.take(log.learnt))
        parameters = start(log, loss.start(), options)

        def gradients() -> dict[str, Floats]:
            by_score = loss.gradients(model_of(parameters).scores(query, item))[0]
            return penalized(parameters, query, item, by_score, strength)

        fit = Fit(log, loss, loss_of(log.counts.take(log.apart)) if len(log.apart) else None)
        return descend(parameters, gradients, lambda: model_of(parameters), fit, options, on_round)

    return with_penalty(data, learn, loss_of, options, scale=scale)


def with_penalty(
    data: LearningData,
    learn: Callable[[LearningData, float], Learned],
    loss_of: LossOf,
    options: LearningOptions,
    *,
    scale: float = 1.0,
    placed: bool = False,
) -> Learned:
    """Learn with the penalty that is named, or with the one that predicts impressions apart best.

    Args:
        data: the log.
        learn: finds factors, given a log and a penalty.
        loss_of: what is minimised.
        options: what is asked.
        scale: by which the penalties to choose from are multiplied.
        placed: whether only impressions that were placed at random are set apart.

    Returns:
        What was learnt; in the report, `regularization` and what it was chosen by. A warning where no factors predict
        better.

    Raises:
        IdentifiabilityError: the factors are zero, or no impression could be set apart.
    """
    if options.regularization is not None:
        penalty = options.regularization
        learned = learn(data, penalty)
        _check_factors(learned, data, penalty)
        return replace(learned, report=learned.report | {"regularization": penalty})
    apart = impressions_apart(data, data.randomized if placed and data.randomized else data.counts, options.seed)
    rest = replace(
        data,
        counts=data.counts.less(apart),
        randomized=data.randomized.less(apart) if placed and data.randomized else data.randomized,
    )
    if not apart.impressions.any():
        raise IdentifiabilityError(
            "there are too few impressions to set some apart and choose the penalty by them. Name one: "
            "--regularization X."
        )
    loss, tried = loss_of(apart.take(data.learnt)), dict[float, tuple[float, bool]]()
    for penalty in (scale * one for one in PENALTIES):
        model = learn(rest, penalty).model
        tried[penalty] = loss.per_impression(_scores(model, data, data.learnt)), _has_factors(model, data)
    with_factors = {penalty: value for penalty, (value, has) in tried.items() if has}
    if not with_factors:
        raise _no_factors(f"at every penalty from {min(tried):g} to {max(tried):g}", min(tried))
    penalty = max(with_factors, key=with_factors.__getitem__)
    learned = learn(data, penalty)
    _check_factors(learned, data, penalty)
    best = max(value for value, _ in tried.values())
    chosen_by: dict[str, Any] = {
        "impressions_apart": float(apart.take(data.learnt).impressions.sum()),
        "fits": len(tried) + 1,
        "tried": [{"regularization": one, "value": value, "factors": has} for one, (value, has) in tried.items()],
    }
    return replace(
        learned,
        report=learned.report | {"regularization": penalty, "regularization_chosen_by": chosen_by},
        warnings=() if with_factors[penalty] >= best else (_better_without(with_factors[penalty], best),),
    )


def _better_without(chosen: float, best: float) -> str:
    return (
        "Factors did not help on this log: impressions that were set apart are predicted better when every query has "
        f"the same list ({best:.5f} per impression) than by any factors ({chosen:.5f}). More pages per query would "
        "help; --regularization X names a penalty of your own."
    )


def _has_factors(model: FactorModel | RowModel, data: LearningData) -> bool:
    """Whether factors move any document by more than `_LEAST_FACTORS` of what biases do."""
    if not isinstance(model, FactorModel) or data.item is None:
        raise TypeError("factors need to know documents across queries")
    query, item = data.query[data.learnt], data.item[data.learnt]
    moved = replace(model, mean=0.0, query_bias=0 * model.query_bias, item_bias=0 * model.item_bias)
    largest = np.abs(moved.scores(query, item)).max(initial=0.0)
    return bool(largest > _LEAST_FACTORS * np.abs(model.item_bias).max(initial=0.0))


def _check_factors(learned: Learned, data: LearningData, penalty: float) -> None:
    if not _has_factors(learned.model, data):
        raise _no_factors(f"with --regularization {penalty:g}", penalty)


def _no_factors(where: str, penalty: float) -> IdentifiabilityError:
    return IdentifiabilityError(
        f"the factors are zero {where}, so that every query would have the same list. Name a smaller penalty, such as "
        f"--regularization {penalty / 10:g}, or add more days of logs."
    )


def impressions_apart(data: LearningData, counts: CountTable, seed: int) -> CountTable:
    """A fifth of the impressions of documents that are learnt from, drawn at random, with their clicks.

    Sums of weights are not counts of draws: there a cell of a document stands apart as a whole.
    """
    rng, learnt = np.random.default_rng(seed), ~data.held_out[counts.unit_of_entry]
    shown, clicked = counts.impressions * learnt, counts.clicks * learnt
    if (shown == np.floor(shown)).all() and (clicked == np.floor(clicked)).all():
        apart = rng.binomial(shown.astype(np.int64), _APART)
        clicks = rng.hypergeometric(clicked.astype(np.int64), (shown - clicked).astype(np.int64), apart)
        return replace(counts, impressions=apart.astype(np.float64), clicks=clicks.astype(np.float64))
    kept = rng.random(len(shown)) < _APART
    return replace(counts, impressions=shown * kept, clicks=clicked * kept)


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
        learnt = self.loss.per_impression(_scores(model, self.data, self.data.learnt))
        return learnt, self.apart.per_impression(_scores(model, self.data, self.data.apart)) if self.apart else None


def _scores(model: FactorModel | RowModel, data: LearningData, documents: Integers) -> Floats:
    if data.item is None or not isinstance(model, FactorModel):
        raise TypeError("factors need to know documents across queries")
    return model.scores(data.query[documents], data.item[documents])


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
