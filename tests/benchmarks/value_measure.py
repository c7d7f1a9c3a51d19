"""One log, every method: what the rankers that learn from it are worth on queries that nobody has searched for yet."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from recovery_logs import attempt
from value_learners import (
    Learner,
    binary,
    graded_lambdarank,
    lambdarank,
    lambdarank_by_position,
    pair_logit,
    regression,
    xgboost_groups,
    xgboost_unbiased,
)
from value_rows import USUAL, Log, TrainingRows, training_rows
from value_worlds import FILES, Documents, Fold, Setting, draw_folds

from posbias.core.estimators import EstimationOptions
from posbias.core.fit.fit import Fit
from posbias.core.training.weights import WeightOptions

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NAIVE, JOINT, CONDITIONAL, TRUE = "naive clicks", "joint EM", "conditional", "true propensities"
SOURCES = (NAIVE, JOINT, CONDITIONAL, TRUE)
NONE = ""

LOGGING, LABELS = "logging ranker", "true labels: LightGBM lambdarank"
DEPTHS = (5, 10)
"""How far down a ranking NDCG looks."""

RANKING, THETA_ERROR = "ranking", "mean |error| of theta"


BY_POSTERIOR = WeightOptions(rate="posterior")


@dataclass(frozen=True)
class Method:
    """A layout and the learner that reads it.

    Attributes:
        name: what the table calls it.
        layout: of the training rows.
        learn: from them.
        options: how rows are weighted and labelled.
        reads_pages: whether it reads the log page by page: slow, so that it runs on a setting's first seeds only.
        weighted: whether it takes weights; if not, it sees the naive rows once.
    """

    name: str
    layout: str
    learn: Learner
    options: WeightOptions = USUAL
    reads_pages: bool = False
    weighted: bool = True


METHODS = (
    Method("LightGBM lambdarank with positions", "session", lambdarank_by_position, reads_pages=True, weighted=False),
    Method("XGBoost lambdarank_unbiased", "session", xgboost_unbiased, reads_pages=True, weighted=False),
    Method("pointwise: LightGBM binary", "pointwise", binary),
    Method("pairs: CatBoost PairLogit", "pairs", pair_logit),
    Method("judgments: LightGBM regression", "judgments", regression, BY_POSTERIOR),
    Method("judgments: LightGBM lambdarank", "judgments", graded_lambdarank, BY_POSTERIOR),
    Method("clicked-group: LightGBM lambdarank", "clicked-group", lambdarank, reads_pages=True),
    Method("clicked-group: XGBoost rank:ndcg", "clicked-group", xgboost_groups, reads_pages=True),
    Method("session: LightGBM lambdarank", "session", lambdarank, reads_pages=True),
)


def measure(task: tuple[Setting, int]) -> pl.DataFrame:
    """One seed of a setting: `method`, `source` (of the propensities), `fold` and NDCG, or the error of theta."""
    setting, seed = task
    documents = Documents.read(FILES[setting.dataset])
    methods = [method for method in METHODS if seed < setting.page_seeds or not method.reads_pages]
    rows = [
        {"method": method, "source": source, "fold": number, **values}
        for number, fold in enumerate(draw_folds(documents, setting, seed))
        for method, source, values in _measure_fold(fold, setting.examination, methods)
    ]
    return pl.DataFrame(rows)


def _measure_fold(fold: Fold, truth: Floats, methods: list[Method]) -> Iterator[tuple[str, str, dict[str, float]]]:
    log = Log.of(fold.log)
    propensities = {
        NAIVE: np.ones(len(truth)),
        JOINT: estimated(log, "joint"),
        CONDITIONAL: estimated(log, "conditional"),
        TRUE: truth,
    }
    for source in (JOINT, CONDITIONAL):
        yield THETA_ERROR, source, {"theta": float(np.nanmean(np.abs(propensities[source] - truth)))}
    for name, source, score in _rankings(fold, log, propensities, methods):
        yield name, source, {f"NDCG@{depth}": ndcg(fold.documents, score, fold.held_out, depth) for depth in DEPTHS}


def _rankings(
    fold: Fold, log: Log, propensities: dict[str, Floats], methods: list[Method]
) -> Iterator[tuple[str, str, Floats]]:
    """Every method, the source of its propensities, and the scores of all documents."""
    features = fold.documents.features
    yield LOGGING, NONE, fold.logging_score
    yield LABELS, NONE, lambdarank(judged_rows(fold), features)
    for method in methods:
        for source in SOURCES if method.weighted else (NAIVE,):
            rows = training_rows(log, propensities[source], method.layout, method.options)
            yield method.name, source if method.weighted else NONE, method.learn(rows, features)


def estimated(log: Log, method: str) -> Floats:
    """Propensities by position, relative to the first, as `posbias fit` estimates them; NaN where it finds none."""
    fit = attempt(method, log.statistics, EstimationOptions())
    if isinstance(fit, Fit):
        return fit.estimate.propensity
    raise RuntimeError(f"{method}: no propensities from this log: {fit}")


def judged_rows(fold: Fold) -> TrainingRows:
    """The training queries' documents with their labels."""
    documents = fold.documents
    judged = np.flatnonzero(np.isin(documents.query, fold.training))
    columns = {"group": documents.query[judged], "doc": judged, "label": documents.label[judged]}
    return TrainingRows(pl.DataFrame(columns).with_columns(weight=pl.lit(1.0)))


def ndcg(documents: Documents, score: Floats, queries: Integers, depth: int) -> float:
    """Mean NDCG, gain 2 ** y - 1, of ranking all documents by score, over the queries that have a relevant one."""
    discount = 1 / np.log2(np.arange(2, depth + 2))
    found = list[float]()
    for query in queries.tolist():
        rows = documents.of_query(query)
        gain = np.exp2(documents.label[rows]) - 1
        best = -np.sort(-gain)[:depth]
        if best[0] > 0:
            ranked = gain[np.argsort(-score[rows], kind="stable")[:depth]]
            found.append(float(ranked @ discount[: len(ranked)] / (best @ discount[: len(best)])))
    return float(np.mean(found))
