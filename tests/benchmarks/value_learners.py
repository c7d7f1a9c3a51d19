"""The learners, each the same for every source of propensities.

100 small trees everywhere, chosen beforehand. Pages repeat the same documents, so that a leaf must hold as many rows as
`LEAF_DOCUMENTS` documents have on average. All else is the library's default, such as how far down lambdarank looks,
with one exception that was chosen after true labels of the same worlds were looked at (`value.py` says what it gains):
LightGBM and XGBoost usually divide what a group teaches by how wrong its ranking still is, so that groups do not count
as their weights say. That is off, for the labels themselves and for the methods without weights too.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from value_rows import TrainingRows

# Their types are incomplete, or there are none.
catboost: Any = import_module("catboost")
lightgbm: Any = import_module("lightgbm")
xgboost: Any = import_module("xgboost")

Floats = NDArray[np.float64]
Features = NDArray[np.float32]
Learner = Callable[[TrainingRows, Features], Floats]
"""Train on rows, given the features of all documents, shape (N, F); the scores of all documents, shape (N,)."""

ROUNDS, LEARNING_RATE = 100, 0.1
LEAVES, DEPTH = 15, 4
LEAF_DOCUMENTS = 10


def binary(training: TrainingRows, features: Features) -> Floats:
    """LightGBM classifies weighted rows."""
    rows = training.rows.filter(pl.col("weight") > 0)
    return _lightgbm("binary", rows, features, weight=rows["weight"].to_numpy())


def regression(training: TrainingRows, features: Features) -> Floats:
    """LightGBM predicts the label by least squares."""
    return _lightgbm("regression", training.rows, features)


def lambdarank(training: TrainingRows, features: Features) -> Floats:
    """LightGBM's lambdarank with a weight per row."""
    rows = _with_clicks(training.rows)
    return _lightgbm("lambdarank", rows, features, weight=rows["weight"].to_numpy(), group=_group_sizes(rows))


def graded_lambdarank(training: TrainingRows, features: Features) -> Floats:
    """LightGBM's lambdarank on grades."""
    return lambdarank(TrainingRows(training.rows.with_columns(label=pl.col("grade"))), features)


def lambdarank_by_position(training: TrainingRows, features: Features) -> Floats:
    """LightGBM's lambdarank, which learns a bias of each position beside the trees; no weights."""
    rows = _with_clicks(training.rows)
    return _lightgbm("lambdarank", rows, features, group=_group_sizes(rows), position=rows["position"].to_numpy())


def _lightgbm(objective: str, rows: pl.DataFrame, features: Features, **fields: NDArray[Any]) -> Floats:
    parameters = {
        "objective": objective,
        "learning_rate": LEARNING_RATE,
        "num_leaves": LEAVES,
        "lambdarank_norm": False,
        "min_data_in_leaf": round(LEAF_DOCUMENTS * rows.height / rows["doc"].n_unique()),
        "num_threads": 1,
        "verbose": -1,
    }
    data = lightgbm.Dataset(features[rows["doc"].to_numpy()], rows["label"].to_numpy(), params=parameters, **fields)
    return lightgbm.train(parameters, data, ROUNDS).predict(features, num_threads=1)


def xgboost_groups(training: TrainingRows, features: Features) -> Floats:
    """XGBoost's rank:ndcg with a weight per group."""
    rows = training.rows
    weight = rows.group_by("group", maintain_order=True).agg(pl.first("weight"))["weight"].to_numpy()
    return _xgboost(rows, features, weight)


def xgboost_unbiased(training: TrainingRows, features: Features) -> Floats:
    """XGBoost's unbiased lambdarank, which takes the row order within a page as the position; no weights."""
    return _xgboost(_with_clicks(training.rows), features, None, lambdarank_unbiased=True)


def _xgboost(rows: pl.DataFrame, features: Features, weight: Floats | None, **more: bool) -> Floats:
    parameters = {
        **more,
        "lambdarank_normalization": False,
        "objective": "rank:ndcg",
        "eta": LEARNING_RATE,
        "max_depth": DEPTH,
        "nthread": 1,
    }
    data = xgboost.QuantileDMatrix(
        features[rows["doc"].to_numpy()], rows["label"].to_numpy(), weight=weight, group=_group_sizes(rows), nthread=1
    )
    return xgboost.train(parameters, data, ROUNDS).inplace_predict(features)


def pair_logit(training: TrainingRows, features: Features) -> Floats:
    """CatBoost's PairLogit on weighted preferences."""
    rows, preferences = training.rows, training.preferences
    if preferences is None:
        raise ValueError("pair_logit learns from preferences, and there are none.")
    pool = catboost.Pool(
        features[rows["doc"].to_numpy()],
        label=rows["label"].to_numpy(),
        group_id=rows["group"].to_numpy(),
        pairs=preferences.select("winner_row", "loser_row").to_numpy(),
        pairs_weight=preferences["weight"].to_numpy(),
    )
    parameters = {"loss_function": "PairLogit", "iterations": ROUNDS, "learning_rate": LEARNING_RATE, "depth": DEPTH}
    quiet = {"thread_count": 1, "verbose": False, "allow_writing_files": False}
    return catboost.CatBoost({**parameters, **quiet}).fit(pool).predict(features, thread_count=1)


def _group_sizes(rows: pl.DataFrame) -> NDArray[np.int32]:
    """Rows per group; the rows of a group follow one another."""
    return rows["group"].rle().struct.field("len").to_numpy().astype(np.int32)


def _with_clicks(rows: pl.DataFrame) -> pl.DataFrame:
    """The groups that have a click: the others hold no pair, and say nothing to a ranking loss."""
    return rows.filter((pl.col("label") > 0).any().over("group"))
