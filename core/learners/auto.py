"""The default ranker: a blend of two rankers, or a single ranker that is significantly better on held-out clicks.

    score = (1 - s) f_distilled / sd_distilled + s f_lambdarank / sd_lambdarank       sd within queries

`lambdarank` grades documents by clicks and positions, independently of features: best where the logging ranker knows
far more than the features, worst where it knows nothing. `distilled` relies on features first. The knowledge of the
logging ranker beyond the features is the gain in held-out likelihood by position, at the same theta:

    kappa = (l(features and position) - l(features)) / (l(features) - l(constant)),   s = kappa / (kappa + 0.15) <= 0.9

with l the log-likelihood of clicks of queries that trees have not seen. The constant .15 was chosen on simulated logs
(tests/benchmarks/rankers.py).

By three-fold cross-validation over queries, rankers are compared by DCG@10 of clicks corrected for position, among the
documents of a query (`core/evaluation`, as `posbias evaluate --candidates query`), with errors by query and of theta.
A ranker that is better than the blend by more than 2.5 standard errors replaces it. Not by likelihood, which may fall
while NDCG rises.

The scores are logits, a + b score, b by the likelihood of held-out clicks, a by the likelihood of all.

Sources: Wolpert 1992 (held-out scores); van der Laan, Polley & Hubbard 2007 (the same folds for choice and error);
Platt 1999 (a and b).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.choices import LearningOptions
from posbias.core.errors import IdentifiabilityError, SchemaError
from posbias.core.evaluation import clicked
from posbias.core.evaluation.clicked import CellWeights, RankingMeasures
from posbias.core.evaluation.estimates import Evaluation, Totals, Value
from posbias.core.learners import learning, trees
from posbias.core.learners.boosting import ModelText, scaled_sum
from posbias.core.learners.learning import ClickLikelihood, Learned, Learner, LearningData, OnRound, Rounds, Warnings
from posbias.core.learners.models import Forest
from posbias.core.schema import CLICKS, DOC, IMPRESSIONS, POSITION, QUERY

BLEND = ("distilled", "lambdarank")
NAIVE, LOGGED = "naive", "log's own order"
FOLDS, DEPTH = 3, 10
HALF = 0.15
"""Kappa at which s = 1/2."""

MOST = 0.9
"""Upper bound of s: kappa is unbounded where features predict hardly any click."""

CLEARLY = 2.5
"""Standard errors by which a single ranker must exceed the blend: 5 % for the best of four (Bonferroni)."""

_OTHERS = {learner.name: learner for learner in (trees.LAMBDARANK, trees.PBM, trees.NAIVE)}
_CANDIDATES = {trees.DISTILLED.name: trees.DISTILLED, **_OTHERS}
_FEWEST_QUERIES = 20
_MOST_DOCUMENTS = 300_000  # for the comparison, by sampling queries
_LEAST_WEIGHT = 0.01  # lower bound of theta in the comparison
_TINY = 1e-12
_MOST_STEPS, _LAST_STEP = 100, 1e-6  # of Newton's method


HeldOut = tuple[LearningData, Mapping[str, Floats], float]
"""Documents; their out-of-fold scores by ranker, of standard deviation 1 within queries, shape (D,); and kappa >= 0."""


@dataclass(frozen=True)
class Choice:
    """The shares of rankers in the blend, and its comparison."""

    shares: Mapping[str, float]  # by ranker
    kappa: float
    queries: int  # in the comparison
    gains: Mapping[str, tuple[Value, float]]  # gain in DCG@10 over `naive` and the log's own order, and their DCG@10
    slope: float  # b
    is_single: bool = False  # whether a single ranker replaces the blend


def learn_blend(_: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Compare the rankers on held-out queries, and learn the chosen rankers from all queries."""
    choice = choose(held_out_scores(data, options, on_round))
    learned = {name: _CANDIDATES[name].learn(data, options, on_round) for name, share in choice.shares.items() if share}
    rows, losses = learning.features_of(data).rows, learning.likelihoods(trees.PBM, data)
    models, factors, logits = list[ModelText](), list[float](), np.zeros(data.n_documents)
    for name, ranker in learned.items():
        if not isinstance(ranker.model, Forest):
            raise TypeError(f"{name} has no trees")
        scores = ranker.model.scores(rows)
        deviation = float(_centred(scores, data.query).std())
        models.append(ModelText.parse(ranker.model.text))
        factors.append(choice.slope * choice.shares[name] / deviation if deviation > _TINY else 0.0)
        logits += factors[-1] * scores
    ones = np.ones((len(data.training), 1))
    constant = float(calibration(losses[0], ones, logits[data.training])[0])
    summed = scaled_sum(models, factors, constant)
    text = replace(summed, head=summed.head | {"objective": learning.PROBABILITY}).complete()
    rounds = Rounds(None)
    fits = [
        loss.per_impression(constant + logits[documents])
        for loss, documents in zip(losses, (data.training, data.validation), strict=True)
        if len(documents)
    ]
    rounds.add(len(summed.trees), fits[0], fits[1] if len(fits) > 1 else None)
    shares = [  # of each model's gain, times its share of the blend
        table.with_columns(pl.col("gain") / max(float(table["gain"].sum()), _TINY) * choice.shares[name])
        for name, ranker in learned.items()
        if (table := ranker.importance) is not None
    ]
    chosen = {
        "shares": dict(choice.shares),
        "is_single": choice.is_single,
        "ranker_knowledge": choice.kappa,
        "queries": choice.queries,
        "measure": f"DCG@{DEPTH}",
        "against": {
            name: {
                "difference": value.value,
                "std_error": value.std_error,
                "ci_low": value.low,
                "ci_high": value.high,
                "of": base,
            }
            for name, (value, base) in choice.gains.items()
        },
    }
    return Learned(
        Forest(text),
        rounds.curve,
        pl.concat(shares).group_by("feature").agg(pl.col("gain", "splits").sum()).sort("feature"),
        report={"trees": len(summed.trees), "chosen": chosen},
        warnings=harm(choice, options.never_worse),
    )


def held_out_scores(data: LearningData, options: LearningOptions, on_round: OnRound) -> HeldOut | None:
    """Cross-validate the rankers on training queries; None with fewer than 20 queries, or too few clicks to learn."""
    data, options = data.take(data.training), replace(options, early_stopping=None)
    n_queries, share = int(data.query[-1]) + 1, min(1.0, _MOST_DOCUMENTS / data.n_documents)
    drawn = np.random.default_rng(options.seed).random(n_queries) < share if share < 1 else np.ones(n_queries, np.bool_)
    data = data.take(np.flatnonzero(drawn[data.query]))
    data = replace(data, query=np.unique(data.query, return_inverse=True)[1])
    n_queries = int(data.query[-1]) + 1
    if n_queries < _FEWEST_QUERIES:
        return None
    fold = (np.random.default_rng(options.seed).permutation(n_queries) % FOLDS)[data.query]
    scores = {name: np.zeros(data.n_documents) for name in _CANDIDATES}
    standardised = {name: np.zeros(data.n_documents) for name in _CANDIDATES}
    with_ranker = np.zeros(data.n_documents)  # logits by features and the ranker
    features = learning.features_of(data)
    try:
        for number in range(FOLDS):
            held_out = fold == number
            training = np.flatnonzero(~held_out)
            gain_share, logits = trees.teacher_logits(replace(data, held_out=held_out), options, on_round)
            with_ranker[held_out] = logits[held_out]
            part, rows = data.take(training), features.rows[np.flatnonzero(held_out)]
            models = {name: learner.learn(part, options, on_round).model for name, learner in _OTHERS.items()}
            teacher = gain_share, logits[training]
            models[trees.DISTILLED.name] = trees.distil(trees.DISTILLED, part, options, on_round, teacher).model
            for name, model in models.items():
                if isinstance(model, Forest):
                    scores[name][held_out] = model.scores(rows)
                    standardised[name][held_out] = _standardised(scores[name][held_out], data.query[held_out])
    except (SchemaError, IdentifiabilityError):  # two thirds of the log are too few
        return None
    likelihood = ClickLikelihood(data.weighted.only_cells(data.known), data.theta)
    constant = likelihood.per_impression(np.full(data.n_documents, likelihood.start()))
    by_features, by_both = (likelihood.per_impression(logits) for logits in (scores[trees.PBM.name], with_ranker))
    kappa = max(by_both - by_features, 0.0) / max(by_features - constant, _TINY)
    return data, standardised, kappa


def _centred(scores: Floats, query: Integers) -> Floats:
    """Scores minus the mean score of their query."""
    _, number = np.unique(query, return_inverse=True)
    return scores - (np.bincount(number, scores) / np.bincount(number))[number]


def _standardised(scores: Floats, query: Integers) -> Floats:
    """Scores with mean 0 in each query and standard deviation 1 within queries."""
    centred = _centred(scores, query)
    return centred / max(float(centred.std()), _TINY)


def choose(held_out: HeldOut | None) -> Choice:
    """Choose the blend, or a ranker that exceeds it by `CLEARLY`; `distilled` alone without held-out scores."""
    if held_out is None:
        return Choice({BLEND[0]: 1.0}, 0.0, 0, {}, 1.0)
    data, by_ranker, kappa = held_out
    share = min(kappa / (kappa + HALF), MOST)
    shares = {BLEND[0]: 1 - share, BLEND[1]: share}
    blend = _standardised(sum((part * by_ranker[name] for name, part in shares.items()), np.zeros(1)), data.query)
    names, scores = [*_CANDIDATES], [blend, *by_ranker.values()]
    evaluation = evaluate_learned(data, scores)
    better = {name: evaluation.difference(number, 1, clicked.DCG, "ips") for number, name in enumerate(names, start=2)}
    errors = {name: value.value / value.std_error for name, value in better.items() if value.std_error > 0}
    best, ranking = max(errors, key=lambda name: errors[name], default=NAIVE), 1
    is_single = errors.get(best, 0.0) > CLEARLY
    if is_single:
        shares, ranking = {best: 1.0}, 2 + names.index(best)
    against = {NAIVE: 2 + names.index(NAIVE), LOGGED: 0}
    gains = {
        name: (
            evaluation.difference(ranking, number, clicked.DCG, "ips"),
            evaluation.value(number, clicked.DCG, "ips").value,
        )
        for name, number in against.items()
    }
    likelihood = ClickLikelihood(data.weighted.only_cells(data.known), data.theta)
    slope = calibration(likelihood, np.column_stack([np.ones(data.n_documents), scores[ranking - 1]]))[1]
    return Choice(shares, kappa, int(data.query[-1]) + 1, gains, max(float(slope), _TINY), is_single)


def evaluate_learned(data: LearningData, scores: Sequence[Floats]) -> Evaluation:
    """Evaluate rankings 1, 2, ... by scores of shape (D,) each, and ranking 0, the log's own order."""
    counts = data.weighted
    document = counts.unit_of_entry
    rows = pl.DataFrame(
        {
            QUERY: data.query[document],
            DOC: document,
            POSITION: data.position[counts.cell],
            clicked.CELL: counts.cell,
            IMPRESSIONS: counts.impressions,
            CLICKS: counts.clicks,
        }
    )
    at_position = rows.group_by(QUERY, POSITION).agg(pl.col(IMPRESSIONS).sum())
    pages = at_position.group_by(QUERY).agg(pl.col(IMPRESSIONS).max().alias(clicked.PAGES)).sort(QUERY)
    by_query = pages.with_columns(pl.col(clicked.PAGES).round().cast(pl.Int64).alias(clicked.PAGE))
    documents = np.arange(data.n_documents)
    scored = [
        pl.DataFrame(
            {clicked.RANKING: np.full_like(documents, number), QUERY: data.query, DOC: documents, clicked.SCORE: score}
        )
        for number, score in enumerate(scores, start=1)
    ]
    lists = clicked.rank_lists(pl.concat(scored))
    cells = pl.DataFrame({clicked.CELL: np.arange(counts.n_cells), POSITION: data.position})
    weights = CellWeights(cells, np.where(data.known, data.theta, np.nan), _LEAST_WEIGHT)
    options = RankingMeasures(1 + len(scores), DEPTH, "query")
    sums = clicked.query_sums(clicked.page_rows(rows, by_query), lists, weights, options)
    totals = Totals.of(sums, lists, options, float(pages[clicked.PAGES].sum()))
    return Evaluation(totals, options, data.covariance)


def calibration(likelihood: ClickLikelihood, columns: Floats, offset: Floats | float = 0.0) -> Floats:
    """b, shape (m,), of the logits offset + columns b by maximum likelihood; columns of shape (D, m), the first all 1.

    By Newton steps with the expected part of the Hessian.
    """
    b = np.zeros(columns.shape[1])
    b[0] = likelihood.start() - np.mean(offset)
    for _ in range(_MOST_STEPS):
        gradient, hessian = likelihood.gradients(offset + columns @ b)
        # of least norm, as b is not unique where scores are constant
        step = np.linalg.lstsq(columns.T @ (hessian[:, np.newaxis] * columns), columns.T @ gradient)[0]
        b = b - step
        if np.abs(step).max() < _LAST_STEP:
            break
    return b


def harm(choice: Choice, margin: float) -> Warnings:
    """Warnings against replacing the log's own order by the ranker."""
    gain = choice.gains.get(LOGGED)
    if gain is None or not np.isfinite(gain[0].low):
        return {"ranker-not-compared": {"queries": choice.queries}}
    value, base = gain
    if not base > 0 or value.low / base >= -margin:
        return {}
    return {"ranker-may-lose": {"may_lose": float(-value.low / base), "allowed": margin}}


AUTO = Learner(
    "auto",
    "van der Laan et al. 2007",
    learn_blend,
    is_probability=True,
    n_fits=FOLDS * sum(learner.n_fits for learner in _CANDIDATES.values()) + trees.DISTILLED.n_fits + 1,
    takes=(*trees.DISTILLED.takes, "never_worse"),
)
