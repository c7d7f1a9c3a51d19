"""Sixteen rankers of different worth, all from one log: good ones, and those that position bias misleads.

Boosted trees on counts by document and position, one row a document. Of the position-based model with theta given,

    gradient = n_d g_d - sum over positions of c + (n - c) g (1 - theta) / (1 - theta g),    Hessian = n_d g_d (1 - g_d)

with g = sigmoid(f); naive is theta = 1. By pages, the softmax loss over a page's documents, of clicks that weigh
1 / theta (list-wise IPW), or with theta learned the other way round at once (DLA, Ai et al. 2018).
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from value_learners import LEAF_DOCUMENTS, LEARNING_RATE, LEAVES, binary
from value_rows import Log, training_rows
from value_worlds import SHOWN, Fold

lightgbm: Any = import_module("lightgbm")

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

PBM_ROUNDS, NAIVE_ROUNDS, PAGE_ROUNDS = (5, 10, 20, 50, 100, 200, 400), (10, 50, 100, 400), 100
_SMALLEST = 1e-6
_MAXIMAL = 100.0  # relevance relative to that of the first document


def rankers(fold: Fold, log: pl.DataFrame, theta: Floats) -> dict[str, Floats]:
    """Scores of all documents, by ranker.

    Args:
        fold: documents and the logging ranker.
        log: to learn from.
        theta: by position, shape (SHOWN,).
    """
    features, counts, ones = fold.documents.features, Log.of(log), np.ones(SHOWN)
    found = {"logging": fold.logging_score}
    for name, propensity in (("naive", ones), ("conditional", theta)):
        found[f"pointwise {name}"] = binary(training_rows(counts, propensity, "pointwise"), features)
    found |= {f"PBM {n}": score for n, score in _boosted(features, log, theta, PBM_ROUNDS).items()}
    found |= {f"naive {n}": score for n, score in _boosted(features, log, ones, NAIVE_ROUNDS).items()}
    found["list-wise IPW"] = _by_page(features, log, theta)
    found["DLA"] = _by_page(features, log, None)
    return found


@dataclass
class _Trees:
    """Trees on rows of documents, one more at a step."""

    features: NDArray[np.float32]
    start: float

    def __post_init__(self) -> None:
        settings = {
            "objective": "none",
            "learning_rate": LEARNING_RATE,
            "num_leaves": LEAVES,
            "num_threads": 1,
            "verbose": -1,
            "min_data_in_leaf": LEAF_DOCUMENTS,
            "min_sum_hessian_in_leaf": 1e-3,
        }
        data = lightgbm.Dataset(self.features, np.zeros(len(self.features)), params=settings, free_raw_data=False)
        self.trees = lightgbm.Booster(settings, data)
        self.score = np.full(len(self.features), self.start)

    def step(self, gradient: Floats, hessian: Floats) -> None:
        """Add a tree."""

        def derivatives(_: Floats, __: object) -> tuple[Floats, Floats]:
            return gradient, np.maximum(hessian, _SMALLEST)

        self.trees.update(fobj=derivatives)
        last = self.trees.current_iteration() - 1
        self.score += self.trees.predict(self.features, num_threads=1, start_iteration=last, num_iteration=1)


def _boosted(
    features: NDArray[np.float32], log: pl.DataFrame, theta: Floats, rounds: tuple[int, ...]
) -> dict[int, Floats]:
    """The likelihood of the position-based model, after so many rounds."""
    counts = log.group_by("doc", "position").agg(n=pl.len(), c=pl.col("click").cast(pl.Int64).sum()).sort("doc")
    doc, position, n, c = (counts[name].to_numpy() for name in counts.columns)
    docs, row = np.unique(doc, return_inverse=True)
    at, shown = np.clip(theta / np.nanmax(theta), 1e-3, 1)[position - 1], np.bincount(row, n)
    rate = np.clip(c.sum() / (n @ at), 1e-4, 0.9)
    trees = _Trees(features[docs], float(np.log(rate / (1 - rate))))
    found = dict[int, Floats]()
    for number in range(1, max(rounds) + 1):
        of_doc = _sigmoid(trees.score)
        g = of_doc[row]
        attracted = c + (n - c) * g * (1 - at) / (1 - at * g)
        trees.step(shown * of_doc - np.bincount(row, attracted), shown * of_doc * (1 - of_doc))
        if number in rounds:
            found[number] = trees.trees.predict(features, num_threads=1)
    return found


def _sigmoid(score: Floats) -> Floats:
    return 1 / (1 + np.exp(-score))


def _by_page(features: NDArray[np.float32], log: pl.DataFrame, theta: Floats | None) -> Floats:
    """The softmax loss over pages; theta is learned at once where it is not given."""
    page = log["session"].rank("dense").to_numpy().astype(np.int64) - 1
    place = log["position"].to_numpy().astype(np.int64) - 1
    docs, row = np.unique(log["doc"].to_numpy(), return_inverse=True)
    document, click = np.full((page.max() + 1, SHOWN), -1), np.zeros((page.max() + 1, SHOWN))
    document[page, place], click[page, place] = row, log["click"].to_numpy()
    some = click.sum(axis=1) > 0
    document, click = document[some], click[some]
    there, trees = document >= 0, _Trees(features[docs], 0.0)
    log_theta = np.zeros(SHOWN) if theta is None else np.log(theta)
    for _ in range(PAGE_ROUNDS):
        share = _softmax(np.where(there, trees.score[document], -np.inf))
        weighted = click / np.maximum(np.exp(log_theta - log_theta[0]), 0.01)
        total = weighted.sum(axis=1, keepdims=True)
        terms = total * share - weighted, total * share * (1 - share)
        gradient, hessian = (np.bincount(document[there], term[there], len(docs)).astype(np.float64) for term in terms)
        trees.step(gradient, hessian)
        if theta is None:
            relevance = np.clip(share / share[:, :1], 1 / _MAXIMAL, _MAXIMAL)
            log_theta = _theta_step(log_theta, there, click / np.maximum(relevance, 1 / _MAXIMAL))
    return trees.trees.predict(features, num_threads=1)


def _softmax(score: Floats) -> Floats:
    largest = score.max(axis=1, keepdims=True)
    shares = np.exp(score - largest)
    return shares / shares.sum(axis=1, keepdims=True)


def _theta_step(log_theta: Floats, there: NDArray[np.bool_], weighted: Floats) -> Floats:
    """Half a Newton step of the softmax loss over positions."""
    examined = np.where(there, np.exp(log_theta), 0.0)
    examined /= examined.sum(axis=1, keepdims=True)
    total = weighted.sum(axis=1, keepdims=True)
    gradient = (total * examined - weighted).sum(axis=0)
    hessian = (total * examined * (1 - examined)).sum(axis=0)
    moved = log_theta - 0.5 * gradient / np.maximum(hessian, 1e-9)
    return moved - moved[0]
