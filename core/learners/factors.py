"""Matrix factorisation: factors of queries (users) and documents (items), without features.

    f(q, d) = m + b_q + b_d + u_q . v_d          minimise loss(f) + lambda / 2 (|b|^2 + |u|^2 + |v|^2)

`factors`: the likelihood of clicks, theta given, P(click | q, d, e) = theta_e / (1 + exp(-f)). `mf`: the squared error
of click rates, weighted by impressions, without theta. `propensity-mf`: the squared error, clicks weighted by 1 /
theta. These weights increase the variance of clicks by about the mean of 1 / theta over impressions, by which the
candidate penalties are scaled. The losses are `ClickLikelihood` and `SquaredError`.

`cause`: factors of clicks under random exposure, regularised towards those of the logging ranker's rows.

    f_c(q, d) = m_c + b_q + b_d + u_q . v_d            control: rows of the logging ranker
    f_t(q, d) = m_t + b_q + a_d + u_q . w_d            treatment: rows that were placed at random

    minimise  L_c(f_c) + L_t(f_t) + lambda / 2 (|b_q, b_d, a_d|^2 + |u, v, w|^2) + delta / 2 (|w - v|^2 + |a - b_d|^2)

L is the logistic loss of clicks. Both tasks share the user factors. This is CausE-prod of the paper: a control and a
treatment vector for each document. Scores are those of the treatment vectors (CausE-prod-T), or with `vectors=control`
of the control vectors (CausE-prod-C), on which rows at random act through the shared users and the tie. CausE-avg of
the paper is not implemented: its single control vector for all documents would carry over nothing specific to a
document. The distance is squared, or with `tie_distance=absolute` delta (|w - v|_1 + |a - b_d|_1), as in the paper's
code. Positions and propensities are not used.

Every step of Adam uses all documents. Held-out queries have no bias and no factors: validation measures the ranking for
unseen users. Unless given, lambda is the value of `PENALTIES` with which the factors of four fifths of the impressions
predict the remaining fifth best. Beyond some lambda the minimum has u = v = 0 (|u|^2 + |v|^2 over all u v' = X is twice
the nuclear norm of X), and every query has the same list.

Sources: Koren, Bell & Volinsky 2009 (the factors); Srebro, Rennie & Jaakkola 2005 (the nuclear norm); Wang et al. 2018
(the likelihood); Schnabel, Swaminathan, Singh, Chandak & Joachims 2016 and, for clicks, Saito et al. 2020
(propensities); Bonner & Vasile 2018 (causal embeddings).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers, sum_by_number
from posbias.core.choices import PENALTIES, LearningOptions, TieDistance
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners import learning
from posbias.core.learners.learning import ClickLikelihood, Learned, Learner, LearningData, OnRound, Rounds
from posbias.core.learners.models import Adam, FactorModel

_OPTIONS = ("factors", "regularization", "steps")
_RATE = 0.02
_INITIAL_SD = 0.1  # of the factors
_APART = 0.2  # share of the impressions for the choice of the penalty
_LEAST_FACTORS = 0.01
"""Factors are zero unless some |u_q . v_d| exceeds this share of the largest bias of a document."""

_TIED = ("item_bias", "item_factors")

TIES: Mapping[TieDistance, Callable[[Floats], Floats]] = {"squared": lambda apart: apart, "absolute": np.sign}
"""Derivatives by the difference of half the squared, and of the absolute distance."""


def tables(learner: Learner, data: LearningData) -> list[CountTable]:
    """The counts of each task, the last of which is evaluated: rows of the logging ranker, and rows placed at random.

    A single task for learners that do not distinguish them.
    """
    if not learner.needs_randomized:
        return [data.counts]
    if data.randomized is None:
        raise TypeError("this learner needs to know which rows were randomised")
    return [data.counts.subtract(data.randomized), data.randomized]


def learn_factors(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Learn factors with the given penalty, or with the penalty of best prediction.

    Returns:
        `regularization` and how it was chosen in the report; a warning if predictions are better without factors.

    Raises:
        IdentifiabilityError: the factors are zero, or there are too few impressions to choose the penalty.
    """
    if learner.needs_randomized:
        randomized = tables(learner, data)[1]
        if not randomized.take(data.training).impressions.any():
            raise IdentifiabilityError("no row that is learnt from was placed at random (--randomized-where).")
        if options.early_stopping is not None and not randomized.take(data.validation).impressions.any():
            raise IdentifiabilityError(
                "--early-stopping: no row of a held-out query was placed at random (--randomized-where). Hold more out "
                "with --validation, or leave it out."
            )
    counts, theta = learner.counts_and_theta(data)
    log, penalty = replace(data, counts=counts), options.regularization
    report, warnings = dict[str, Any](), learning.Warnings()

    def fit(log: LearningData, penalty: float) -> tuple[FactorModel, Rounds]:
        """Take steps of Adam, and return the model of the best round."""
        by_task, query, item = tables(learner, log), log.query[log.training], _items(log)[log.training]
        losses = [learner.fits(table.take(log.training), theta) for table in by_task]
        held_out = learner.fits(by_task[-1].take(log.validation), theta)
        parameters = start(log, [loss.start() for loss in losses], options)
        ranks_by = 0 if options.vectors == "control" else -1
        adam, rounds, kept = Adam(parameters, _RATE), Rounds(options.early_stopping), task_model(parameters, ranks_by)
        for number in range(1, options.steps + 1):
            by_score = [
                loss.gradients(task_model(parameters, task).scores(query, item))[0] for task, loss in enumerate(losses)
            ]
            adam.step(gradients(parameters, query, item, by_score, penalty, options))
            model = replace(task_model(parameters, ranks_by), mean=float(parameters["mean"][-1]))  # the evaluated one
            value = held_out.per_impression(_scores(model, log, log.validation)) if held_out.impressions.any() else None
            rounds.add(number, losses[-1].per_impression(model.scores(query, item)), value)
            kept = model if rounds.best == number else kept
            on_round()
            if rounds.over:
                break
        return kept, rounds

    if penalty is None:
        penalty, chosen_by, warnings = _choose(learner, log, theta, options.seed, fit)
        report["regularization_chosen_by"] = chosen_by
    model, rounds = fit(log, penalty)
    if not _has_factors(model, log):
        raise _no_factors(f"with regularization={penalty:g}", penalty)
    report = {"steps": rounds.best, "factors": options.factors, "regularization": penalty} | report
    return Learned(model, rounds.curve, report=report, warnings=warnings)


def _choose(
    learner: Learner,
    log: LearningData,
    theta: Floats,
    seed: int,
    learn: Callable[[LearningData, float], tuple[FactorModel, Rounds]],
) -> tuple[float, dict[str, Any], learning.Warnings]:
    """The penalty whose factors predict the impressions apart best, figures for the report, and a warning."""
    apart = impressions_apart(log, tables(learner, log)[-1], seed)
    if not apart.impressions.any():
        raise IdentifiabilityError(
            "there are too few impressions to set some apart and choose the penalty by them. Name one: "
            "--learner-options regularization=X."
        )
    rest = replace(log, counts=log.counts.subtract(apart))
    if learner.needs_randomized and log.randomized is not None:
        rest = replace(rest, randomized=log.randomized.subtract(apart))
    weights, shown = log.counts.impressions / theta[log.counts.cell], log.counts.impressions.sum()
    scale = float(weights.sum() / max(shown, 1.0)) if learner.fits is learning.SquaredError else 1.0
    loss, tried = learner.fits(apart.take(log.training), theta), dict[float, tuple[float, bool]]()
    for penalty in (scale * candidate for candidate in PENALTIES):
        model, _ = learn(rest, penalty)
        tried[penalty] = loss.per_impression(_scores(model, log, log.training)), _has_factors(model, log)
    with_factors = {penalty: value for penalty, (value, has) in tried.items() if has}
    if not with_factors:
        raise _no_factors(f"at every penalty from {min(tried):g} to {max(tried):g}", min(tried))
    penalty = max(with_factors, key=with_factors.__getitem__)
    chosen, best = with_factors[penalty], max(value for value, _ in tried.values())
    figures = {"with_factors": chosen, "without_factors": best}
    chosen_by: dict[str, Any] = {
        "impressions_apart": float(loss.impressions.sum()),
        "fits": len(tried) + 1,
        "tried": [{"regularization": key, "value": value, "factors": has} for key, (value, has) in tried.items()],
    }
    return penalty, chosen_by, {} if chosen >= best else {"factors-do-not-help": figures}


def _items(data: LearningData) -> Integers:
    if data.item is None:
        raise TypeError("factors need to know documents across queries")
    return data.item


def _scores(model: FactorModel, data: LearningData, documents: Integers) -> Floats:
    return model.scores(data.query[documents], _items(data)[documents])


def _has_factors(model: FactorModel, data: LearningData) -> bool:
    """Return whether some |u_q . v_d| exceeds `_LEAST_FACTORS` of the largest bias."""
    without_bias = replace(model, mean=0.0, query_bias=0 * model.query_bias, item_bias=0 * model.item_bias)
    largest = np.abs(_scores(without_bias, data, data.training)).max(initial=0.0)
    return bool(largest > _LEAST_FACTORS * np.abs(model.item_bias).max(initial=0.0))


def _no_factors(where: str, penalty: float) -> IdentifiabilityError:
    return IdentifiabilityError(
        f"the factors are zero {where}, so that every query would have the same list. Name a smaller penalty, such as "
        f"--learner-options regularization={penalty / 10:g}, or add more days of logs."
    )


def impressions_apart(data: LearningData, counts: CountTable, seed: int) -> CountTable:
    """Draw a fifth of the impressions of training documents at random, with their clicks.

    Sums of weights are not counts: their cells of documents are drawn as a whole.
    """
    rng, training = np.random.default_rng(seed), ~data.held_out[counts.unit_of_entry]
    shown, clicked = counts.impressions * training, counts.clicks * training
    if (shown == np.floor(shown)).all() and (clicked == np.floor(clicked)).all():
        apart = rng.binomial(shown.astype(np.int64), _APART)
        clicks = rng.hypergeometric(clicked.astype(np.int64), (shown - clicked).astype(np.int64), apart)
        return replace(counts, impressions=apart.astype(np.float64), clicks=clicks.astype(np.float64))
    kept = rng.random(len(shown)) < _APART
    return replace(counts, impressions=shown * kept, clicks=clicked * kept)


def start(data: LearningData, means: Sequence[float], options: LearningOptions) -> dict[str, Floats]:
    """Draw small initial factors, the same for each task; 0 for queries and documents that are only held out.

    Returns:
        `query_bias` (Q,), `query_factors` (Q, R), and of each task `mean` (T,), `item_bias` (T, I), `item_factors`
        (T, I, R).
    """
    rng, factors = np.random.default_rng(options.seed), list[Floats]()
    for numbers in (data.query, _items(data)):
        n_numbers = int(numbers.max()) + 1
        drawn = _INITIAL_SD * rng.standard_normal((n_numbers, options.factors))
        drawn[np.bincount(numbers[data.training], minlength=n_numbers) == 0] = 0.0
        factors.append(drawn)
    u, v = factors
    return {
        "mean": np.array(means),
        "query_bias": np.zeros(len(u)),
        "item_bias": np.zeros((len(means), len(v))),
        "query_factors": u,
        "item_factors": np.stack([v] * len(means)),
    }


def task_model(parameters: Mapping[str, Floats], task: int) -> FactorModel:
    """Copy the current parameters of a task to a model."""
    shared = {name: parameters[name].copy() for name in ("query_bias", "query_factors")}
    return FactorModel(float(parameters["mean"][task]), **shared, **{n: parameters[n][task].copy() for n in _TIED})


def gradients(
    parameters: Mapping[str, Floats],
    query: Integers,
    item: Integers,
    by_score: Sequence[Floats],
    strength: float,
    options: LearningOptions,
) -> dict[str, Floats]:
    """Gradients of losses and penalties by all parameters, in their shapes.

    Args:
        parameters: as from `start`.
        query: of each document, shape (n,).
        item: of each document, shape (n,).
        by_score: derivatives of each task's loss by its scores, shape (n,).
        strength: lambda.
        options: the strength and distance of the tie between two tasks.
    """
    slopes = {name: strength * values for name, values in parameters.items()}
    slopes["mean"] = np.array([slope.sum() for slope in by_score])
    query_factors, item_factors = parameters["query_factors"], parameters["item_factors"]
    for task, slope in enumerate(by_score):
        slopes["query_bias"] += sum_by_number(query, slope, len(query_factors))
        slopes["item_bias"][task] += sum_by_number(item, slope, item_factors.shape[1])
        for number, (u, v) in enumerate(zip(query_factors.T, item_factors[task].T, strict=True)):
            slopes["query_factors"][:, number] += sum_by_number(query, slope * v[item], len(u))
            slopes["item_factors"][task][:, number] += sum_by_number(item, slope * u[query], len(v))
    if len(by_score) > 1:
        for name in _TIED:
            pull = options.tie * TIES[options.tie_distance](parameters[name][1] - parameters[name][0])
            slopes[name] += np.stack([-pull, pull])
    return slopes


FACTORS = Learner(
    "factors",
    "Koren et al. 2009",
    learn_factors,
    ClickLikelihood,
    needs_features=False,
    is_probability=True,
    takes=_OPTIONS,
)
PROPENSITY_MF = replace(
    FACTORS,
    name="propensity-mf",
    reference="Schnabel et al. 2016",
    fits=learning.SquaredError,
    is_probability=False,
    measure="minus the squared error per impression",
)
MF = replace(PROPENSITY_MF, name="mf", reference=FACTORS.reference, uses_propensities=False)
CAUSE = replace(
    FACTORS,
    name="cause",
    reference="Bonner & Vasile 2018",
    needs_randomized=True,
    uses_propensities=False,
    is_probability=False,
    measure="log-likelihood per impression placed at random",
    takes=(*_OPTIONS, "tie", "tie_distance", "vectors"),
)
