"""Learners without features: NDCG@10 of all 200 items for each of 300 users, on the attractiveness that clicks are drawn from.

Pages of ten out of 200 items, by a ranker that knows what is popular; theta is 1 / k, and given. 3,000 pages, so that a
pair that was shown at all was shown about 1.4 times. `pair rate` is sum c / theta over impressions.
"""  # noqa: E501

import argparse

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.learners.data import LearningData
from posbias.core.learners.learner import LearningOptions
from posbias.core.learners.links import sigmoid
from posbias.core.learners.methods import get_learner
from posbias.core.learners.models import FactorModel
from posbias.core.learners.squared_error import SquaredError

_USERS, _ITEMS, _FACTORS, _POSITIONS, _PAGES = 300, 200, 4, 10, 3_000
_THETA = 1 / np.arange(1, _POSITIONS + 1)


def run(arguments: list[str]) -> None:
    """Print the mean over seeds, and its standard error."""
    parser = argparse.ArgumentParser(prog="learners.py factors")
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args(arguments).seeds
    found = [_of_seed(seed) for seed in range(seeds)]
    for name in found[0]:
        values = np.array([row[name] for row in found])
        error = values.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else float("nan")
        print(f"{name:<16}{values.mean():.3f} +- {error:.3f}", flush=True)


def _of_seed(seed: int) -> dict[str, float]:
    data, truth = _drawn(seed)
    assert data.item is not None
    loss = SquaredError(data.counts, data.theta)
    rates = np.zeros(truth.shape)
    rates[data.query, data.item] = loss.clicks / loss.impressions
    found = {"pair rate": _ndcg(rates, truth)}
    users, items = (numbers.ravel() for numbers in np.indices(truth.shape))
    for name in ("factors", "mf", "propensity-mf"):
        model = get_learner(name).learn(data, LearningOptions(seed=seed), lambda: None).model
        assert isinstance(model, FactorModel)
        found[name] = _ndcg(model.scores(users, items).reshape(truth.shape), truth)
    return found


def _drawn(seed: int) -> tuple[LearningData, Floats]:
    """A log, and the attractiveness of each user and item."""
    rng = np.random.default_rng(seed)
    of_user, of_item = (0.7 * rng.standard_normal((size, _FACTORS)) for size in (_USERS, _ITEMS))
    popular = 0.7 * rng.standard_normal(_ITEMS)
    truth = sigmoid(-1.5 + 0.3 * rng.standard_normal(_USERS)[:, np.newaxis] + popular + of_user @ of_item.T)
    users = np.append(np.arange(_USERS), rng.integers(_USERS, size=_PAGES - _USERS))
    liking = popular + 0.8 * rng.gumbel(size=(_PAGES, _ITEMS))
    item = np.argsort(-liking, axis=1)[:, :_POSITIONS].ravel()
    user, cell = np.repeat(users, _POSITIONS), np.tile(np.arange(_POSITIONS), _PAGES)
    click = (rng.random(len(user)) < _THETA[cell] * truth[user, item]).astype(float)
    pairs, pair = np.unique(user * _ITEMS + item, return_inverse=True)
    shape = (len(pairs), _POSITIONS)
    shown, clicked = np.zeros(shape), np.zeros(shape)
    np.add.at(shown, (pair, cell), 1.0)
    np.add.at(clicked, (pair, cell), click)
    data = LearningData(
        query=pairs // _ITEMS,
        held_out=np.zeros(len(pairs), np.bool_),
        counts=CountTable.from_dense(shown, clicked),
        examination=_THETA,
        position=np.arange(1, _POSITIONS + 1),
        item=np.unique(pairs % _ITEMS, return_inverse=True)[1],
    )
    return data, truth[:, np.unique(pairs % _ITEMS)]


def _ndcg(scores: Floats, truth: Floats) -> float:
    discount = 1 / np.log2(np.arange(2, 12))
    ranked = np.take_along_axis(truth, np.argsort(-scores, axis=1)[:, :10], axis=1)
    ideal = -np.sort(-truth, axis=1)[:, :10]
    return float(((ranked @ discount) / (ideal @ discount)).mean())
