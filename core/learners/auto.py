"""The default ranker: a blend of two, or one that is clearly better by held-out clicks.

    score = (1 - s) f_distilled / sd_distilled + s f_lambdarank / sd_lambdarank       sd within queries

`lambdarank` grades a document by its clicks and by where the ranker puts documents, whatever their features: best where
the ranker knows far more than the features, and worst where it knows nothing. `distilled` asks of features first. How
much the ranker knows beyond the features is what position adds to held-out clicks at the same theta:

    kappa = (l(features and position) - l(features)) / (l(features) - l(nothing)),   s = kappa / (kappa + 0.15) <= 0.9

with l the log-likelihood of clicks of queries that trees have not seen. The constant was chosen on simulated logs
(tests/benchmarks/rankers.py).

All rankers are learnt on two thirds of the queries and compared on the third, three times. What is compared is DCG@10
by clicks that are corrected for position, among the documents of a query (`core/evaluation`, as `posbias evaluate
--candidates query`), with errors by query and of theta. One that is better than the blend by more than 2.5
standard errors is taken in its place. Not by likelihood: it falls where NDCG rises.

The scores are logits: a + b score, b by the likelihood of held-out clicks, a by that of all.

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
"""Kappa at which either of the blend counts half."""

MOST = 0.9
"""Share of `lambdarank` at most: where features predict hardly any click, kappa has no bound."""

CLEARLY = 2.5
"""Standard errors by which a single ranker must be better than the blend: 5 % for the best of four (Bonferroni)."""

_OTHERS = {learner.name: learner for learner in (trees.LAMBDARANK, trees.PBM, trees.NAIVE)}
_CANDIDATES = {trees.DISTILLED.name: trees.DISTILLED, **_OTHERS}
_FEWEST_QUERIES = 20
_MOST_DOCUMENTS = 300_000  # that rankers are compared on: of more, some queries are drawn
_LEAST_WEIGHT = 0.01  # theta below this is taken for this where a ranking is judged
_TINY = 1e-12
_MOST_STEPS, _ENOUGH = 100, 1e-6  # of Newton's method, and its last step


HeldOut = tuple[LearningData, Mapping[str, Floats], float]
"""Documents, their scores by rankers that have learnt from other queries, each with standard deviation 1 within
queries, shape (D,), and kappa, what the ranker knows beyond the features, >= 0."""


@dataclass(frozen=True)
class Choice:
    """The shares of rankers in the blend, and how it compares."""

    shares: Mapping[str, float]  # by ranker
    kappa: float
    queries: int
    gains: Mapping[str, tuple[Value, float]]  # over naive clicks and the log's order: in DCG@10, and the DCG@10 of that
    slope: float  # b
    is_single: bool = False  # whether one ranker is clearly better than the blend, and taken in its place


def learn_blend(_: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Compare the rankers on held-out queries, and learn what is chosen from all of them."""
    choice = choose(held_out_scores(data, options, on_round))
    learned = {name: _CANDIDATES[name].learn(data, options, on_round) for name, share in choice.shares.items() if share}
    rows, losses = learning.features_of(data).rows, learning.likelihoods(trees.PBM, data)
    models, factors, logits = list[ModelText](), list[float](), np.zeros(data.n_documents)
    for name, of_one in learned.items():
        if not isinstance(of_one.model, Forest):
            raise TypeError(f"{name} has no trees")
        scores = of_one.model.scores(rows)
        deviation = float(_centred(scores, data.query).std())
        models.append(ModelText.parse(of_one.model.text))
        factors.append(choice.slope * choice.shares[name] / deviation if deviation > _TINY else 0.0)
        logits += factors[-1] * scores
    alike = np.ones((len(data.training), 1))
    constant = float(calibration(losses[0], alike, logits[data.training])[0])
    summed = scaled_sum(models, factors, constant)
    text = replace(summed, head=summed.head | {"objective": learning.PROBABILITY}).complete()
    rounds = Rounds(None)
    fits = [
        loss.per_impression(constant + logits[some])
        for loss, some in zip(losses, (data.training, data.validation), strict=True)
        if len(some)
    ]
    rounds.add(len(summed.trees), fits[0], fits[1] if len(fits) > 1 else None)
    shares = [  # of gain of each model, times its share of the blend
        table.with_columns(pl.col("gain") / max(float(table["gain"].sum()), _TINY) * choice.shares[name])
        for name, of_one in learned.items()
        if (table := of_one.importance) is not None
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
    """Scores of documents by rankers that were learnt on other queries; None where there are too few queries."""
    data, options = data.take(data.training), replace(options, early_stopping=None)
    n_queries, share = int(data.query[-1]) + 1, min(1.0, _MOST_DOCUMENTS / data.n_documents)
    kept = np.random.default_rng(options.seed).random(n_queries) < share if share < 1 else np.ones(n_queries, np.bool_)
    data = data.take(np.flatnonzero(kept[data.query]))
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
            learnt = np.flatnonzero(~held_out)
            teacher, logits = trees.teacher_logits(replace(data, held_out=held_out), options, on_round)
            with_ranker[held_out] = logits[held_out]
            part, rows = data.take(learnt), features.rows[np.flatnonzero(held_out)]
            models = {name: learner.learn(part, options, on_round).model for name, learner in _OTHERS.items()}
            models[trees.DISTILLED.name] = trees.distil(
                trees.DISTILLED, part, options, on_round, (teacher, logits[learnt])
            ).model
            for name, model in models.items():
                if isinstance(model, Forest):
                    scores[name][held_out] = model.scores(rows)
                    standardised[name][held_out] = _standardised(scores[name][held_out], data.query[held_out])
    except (SchemaError, IdentifiabilityError):  # two thirds of so small a log cannot be learnt from
        return None
    likelihood = ClickLikelihood(data.weighted.only_cells(data.known), data.theta)
    nothing = likelihood.per_impression(np.full(data.n_documents, likelihood.start()))
    alone, more = (likelihood.per_impression(of) for of in (scores[trees.PBM.name], with_ranker))
    kappa = max(more - alone, 0.0) / max(alone - nothing, _TINY)
    return data, standardised, kappa


def _centred(scores: Floats, query: Integers) -> Floats:
    """Scores less the mean of their query."""
    _, number = np.unique(query, return_inverse=True)
    return scores - (np.bincount(number, scores) / np.bincount(number))[number]


def _standardised(scores: Floats, query: Integers) -> Floats:
    """Scores with mean 0 in each query and standard deviation 1 within queries."""
    centred = _centred(scores, query)
    return centred / max(float(centred.std()), _TINY)


def choose(held_out: HeldOut | None) -> Choice:
    """The blend, or what is better by more than its error."""
    if held_out is None:
        return Choice({BLEND[0]: 1.0}, 0.0, 0, {}, 1.0)
    data, by_ranker, kappa = held_out
    share = min(kappa / (kappa + HALF), MOST)
    shares = {BLEND[0]: 1 - share, BLEND[1]: share}
    blend = _standardised(sum((part * by_ranker[name] for name, part in shares.items()), np.zeros(1)), data.query)
    names, scores = [*_CANDIDATES], [blend, *by_ranker.values()]
    evaluation = evaluate_rankings(data, scores)
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


def evaluate_rankings(data: LearningData, scores: Sequence[Floats]) -> Evaluation:
    """Rankings 1, 2, ... of the documents of queries by scores, each of shape (D,), and the log's own, number 0."""
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
            {clicked.RANKING: np.full_like(documents, number), QUERY: data.query, DOC: documents, clicked.SCORE: of}
        )
        for number, of in enumerate(scores, start=1)
    ]
    lists = clicked.rank_lists(pl.concat(scored))
    cells = pl.DataFrame({clicked.CELL: np.arange(counts.n_cells), POSITION: data.position})
    weights = CellWeights(cells, np.where(data.known, data.theta, np.nan), _LEAST_WEIGHT)
    options = RankingMeasures(1 + len(scores), DEPTH, "query")
    sums = clicked.query_sums(clicked.page_rows(rows, by_query), lists, weights, options)
    totals = Totals.of(sums, lists, options, float(pages[clicked.PAGES].sum()))
    return Evaluation(totals, options, data.covariance)


def calibration(likelihood: ClickLikelihood, columns: Floats, offset: Floats | float = 0.0) -> Floats:
    """B, shape (m,), of the logits offset + columns b, columns of shape (D, m), the first of them all 1.

    By Newton steps on the likelihood of clicks, with the expected part of its Hessian.
    """
    b = np.zeros(columns.shape[1])
    b[0] = likelihood.start() - np.mean(offset)
    for _ in range(_MOST_STEPS):
        gradient, hessian = likelihood.gradients(offset + columns @ b)
        # of the least length, where scores say the same of all documents and b has no single value
        step = np.linalg.lstsq(columns.T @ (hessian[:, np.newaxis] * columns), columns.T @ gradient)[0]
        b = b - step
        if np.abs(step).max() < _ENOUGH:
            break
    return b


def harm(choice: Choice, margin: float) -> Warnings:
    """Warnings against putting the ranker in the place of the log's own order."""
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
