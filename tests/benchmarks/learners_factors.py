"""Learners without features, in three tables.

Clicks: NDCG@10 of all 200 items for each of 300 users, on the attractiveness that clicks are drawn from. Pages of ten
out of 200 items, by a ranker that knows what is popular; theta is 1 / k, and given. 3,000 pages, so that a pair that
was shown at all was shown about 1.4 times; in the second column a tenth of them shows items at random. `pair rate` is
sum c / theta over impressions. Penalties are chosen by impressions apart.

Ratings (`learners_ratings`) and Yandex's log (`learners_yandex`): see there.
"""

import argparse
from typing import Any

import numpy as np
from learners_ratings import improvements
from learners_yandex import YANDEX, later_clicks
from processes import table_console
from rich.box import SIMPLE_HEAD
from rich.table import Table

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.learners.data import LearningData
from posbias.core.learners.learner import LearningOptions
from posbias.core.learners.likelihood import SquaredError
from posbias.core.learners.links import sigmoid
from posbias.core.learners.methods import get_learner
from posbias.core.learners.models import FactorModel

_USERS, _ITEMS, _FACTORS, _POSITIONS, _PAGES = 300, 200, 4, 10, 3_000
AT_RANDOM = 0.1
LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "factors": ("factors", {}),
    "mf": ("mf", {}),
    "propensity-mf": ("propensity-mf", {}),
    "propensity-mf, --regularization 5": ("propensity-mf", {"regularization": 5.0}),
    "cause": ("cause", {}),
    "cause, --vectors control": ("cause", {"vectors": "control"}),
    "cause, --tie-distance absolute --tie 2": ("cause", {"tie_distance": "absolute", "tie": 2.0}),
}
_THETA = 1 / np.arange(1, _POSITIONS + 1)


def run(arguments: list[str]) -> None:
    """Print the mean over seeds, and its standard error."""
    parser = argparse.ArgumentParser(prog="learners.py factors")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("clicks", "ratings", "yandex"), help="one of the tables")
    asked = parser.parse_args(arguments)
    if asked.only in {None, "clicks"}:
        shares = {share: [_of_seed(seed, share) for seed in range(asked.seeds)] for share in (0.0, AT_RANDOM)}
        table = _table("clicks: NDCG@10", "learner", "all by the ranker", f"{AT_RANDOM:.0%} at random")
        for name in shares[AT_RANDOM][0]:
            table.add_row(name, *(_mean([row[name] for row in rows if name in row]) for rows in shares.values()))
        table_console().print(table)
    if asked.only in {None, "ratings"}:
        found = [dict(improvements(seed)) for seed in range(asked.seeds)]
        table = _table("ratings not at random: squared error taken off that of the mean", "learner", "taken off")
        for name in found[0]:
            table.add_row(name, _mean([row[name] for row in found]))
        table_console().print(table)
    if asked.only in {None, "yandex"}:
        _print_yandex()


def _print_yandex() -> None:
    if not YANDEX.exists():
        print("Yandex's log is not here")
        return
    table = _table("Yandex, later pages", "said of a document", "log-likelihood", "IPS-DCG", "judged")
    for name, likelihood, dcg, share in later_clicks():
        table.add_row(name, "-" if likelihood is None else f"{likelihood:.4f}", f"{dcg:.3f}", f"{share:.1%}")
    table_console().print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _mean(values: list[float]) -> str:
    """The mean over seeds, and its standard error."""
    if not values:
        return "-"
    error = f" ±{np.std(values, ddof=1) / np.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{error}"


def _of_seed(seed: int, at_random: float) -> dict[str, float]:
    data, truth = drawn(seed, at_random)
    assert data.item is not None
    loss = SquaredError(data.counts, data.theta)
    rates = np.zeros(truth.shape)
    rates[data.query, data.item] = loss.clicks / loss.impressions
    found = {"pair rate": _ndcg(rates, truth)}
    users, items = (numbers.ravel() for numbers in np.indices(truth.shape))
    for name, (learner, options) in LEARNERS.items():
        if learner == "cause" and not at_random:
            continue
        model = get_learner(learner).learn(data, LearningOptions(seed=seed, **options), lambda: None).model
        assert isinstance(model, FactorModel)
        found[name] = _ndcg(model.scores(users, items).reshape(truth.shape), truth)
    return found


def drawn(seed: int, at_random: float = 0.0) -> tuple[LearningData, Floats]:
    """A log, and the attractiveness of each user and item."""
    rng = np.random.default_rng(seed)
    of_user, of_item = (0.7 * rng.standard_normal((size, _FACTORS)) for size in (_USERS, _ITEMS))
    popular = 0.7 * rng.standard_normal(_ITEMS)
    truth = sigmoid(-1.5 + 0.3 * rng.standard_normal(_USERS)[:, np.newaxis] + popular + of_user @ of_item.T)
    users = np.append(np.arange(_USERS), rng.integers(_USERS, size=_PAGES - _USERS))
    noise = rng.gumbel(size=(_PAGES, _ITEMS))
    placed = np.arange(_PAGES) >= _PAGES * (1 - at_random)
    liking = np.where(placed[:, np.newaxis], 0, popular) + 0.8 * noise
    item = np.argsort(-liking, axis=1)[:, :_POSITIONS].ravel()
    user, cell = np.repeat(users, _POSITIONS), np.tile(np.arange(_POSITIONS), _PAGES)
    click = (rng.random(len(user)) < _THETA[cell] * truth[user, item]).astype(float)
    pairs, pair = np.unique(user * _ITEMS + item, return_inverse=True)

    def counted(weight: Floats) -> CountTable:
        shown, clicked = np.zeros((len(pairs), _POSITIONS)), np.zeros((len(pairs), _POSITIONS))
        np.add.at(shown, (pair, cell), weight)
        np.add.at(clicked, (pair, cell), weight * click)
        return CountTable.from_dense(shown, clicked)

    data = LearningData(
        query=pairs // _ITEMS,
        held_out=np.zeros(len(pairs), np.bool_),
        counts=counted(np.ones(len(pair))),
        examination=_THETA,
        position=np.arange(1, _POSITIONS + 1),
        item=np.unique(pairs % _ITEMS, return_inverse=True)[1],
        randomized=counted(np.repeat(placed, _POSITIONS).astype(float)),
    )
    return data, truth[:, np.unique(pairs % _ITEMS)]


def _ndcg(scores: Floats, truth: Floats) -> float:
    discount = 1 / np.log2(np.arange(2, 12))
    ranked = np.take_along_axis(truth, np.argsort(-scores, axis=1)[:, :10], axis=1)
    ideal = -np.sort(-truth, axis=1)[:, :10]
    return float(((ranked @ discount) / (ideal @ discount)).mean())
