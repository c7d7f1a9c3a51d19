"""Ratings missing not at random: how much nearer to all of them learners of factors come than the mean of those given.

300 users, 200 items, ratings from 1 to 5, of which 6 % are given, the more likely the higher; .2 % more were asked for
at random. A tenth is held out, by which the penalty is chosen. Ratings are learnt as shares of a click,
(rating - 1) / 4. "MF" takes them as they are, "propensity MF" weighs each by 1 / its true propensity, and "cause" ties
those given to those asked for.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats
from posbias.core.learners.data import LearningData
from posbias.core.learners.learner import LearningOptions
from posbias.core.learners.links import sigmoid
from posbias.core.learners.methods import get_learner
from posbias.core.learners.models import FactorModel

_USERS, _ITEMS, _FACTORS = 300, 200, 4
_GIVEN, _ASKED, _NOISE, _HELD_OUT = 0.06, 0.03 * 0.06, 0.5, 0.1
_LEAST = 0.005  # propensities are not taken for less
_PENALTIES = (0.3, 1.0, 3.0, 10.0)
_TIES = (1.0, 10.0)


@dataclass(frozen=True)
class Ratings:
    """Who rated what.

    Attributes:
        truth: all ratings, shape (U, I).
        rating: what was said, shape (U, I).
        given: where one was given, shape (U, I).
        asked: where one was asked for at random and not given otherwise, shape (U, I).
        propensity: of giving one, shape (U, I).
        apart: which are held out, shape (U, I).
    """

    truth: Floats
    rating: Floats
    given: Floats
    asked: Floats
    propensity: Floats
    apart: Floats

    @classmethod
    def draw(cls, seed: int) -> "Ratings":
        """Draw ratings."""
        rng = np.random.default_rng(seed)
        of_user, of_item = 0.45 * rng.standard_normal((_USERS, 1)), 0.5 * rng.standard_normal(_ITEMS)
        liking = 0.5 * rng.standard_normal((_USERS, _FACTORS)) @ rng.standard_normal((_ITEMS, _FACTORS)).T
        truth: Floats = np.clip(3 + of_user + of_item + liking, 1, 5)
        chance = sigmoid(1.5 * (truth - 3))
        propensity = chance * _GIVEN / chance.mean()
        given = (rng.random(truth.shape) < propensity).astype(float)
        asked = (rng.random(truth.shape) < _ASKED) * (1 - given)
        rating = np.clip(truth + _NOISE * rng.standard_normal(truth.shape), 1, 5)
        return cls(truth, rating, given, asked, propensity, (rng.random(truth.shape) < _HELD_OUT).astype(float))

    def data(self, weight: Floats) -> LearningData:
        """What is not held out, each rating as so many impressions as its weight says."""
        weights = (self.given + self.asked) * (1 - self.apart) * weight
        pairs = np.flatnonzero(weights)
        return LearningData(
            query=pairs // _ITEMS,
            held_out=np.zeros(len(pairs), np.bool_),
            counts=self._counts(weights, pairs),
            examination=np.ones(1),
            position=np.ones(1, np.int64),
            item=pairs % _ITEMS,
            randomized=self._counts(self.asked * (1 - self.apart), pairs),
        )

    def _counts(self, weights: Floats, pairs: np.ndarray[tuple[int], np.dtype[np.int64]]) -> CountTable:
        shown = weights.ravel()[pairs]
        return CountTable.from_dense(
            shown[:, np.newaxis], (shown * (self.rating.ravel()[pairs] - 1) / 4)[:, np.newaxis]
        )

    @property
    def weight(self) -> Floats:
        """Inverse propensities, those asked for with weight 1, mean 1 over what is known."""
        weight = np.where(self.asked > 0, 1.0, 1 / np.maximum(self.propensity, _LEAST))
        return np.where(self.asked > 0, 1.0, weight / weight[self.given > 0].mean())


def improvements(seed: int) -> Iterator[tuple[str, float]]:
    """1 - the squared error of all ratings relative to that of the mean of those known, by learner."""
    ratings = Ratings.draw(seed)
    known = (ratings.given + ratings.asked) > 0
    base = float(((ratings.truth - ratings.rating[known].mean()) ** 2).mean())
    same = np.ones_like(ratings.truth)
    for name, learner, weight, judged in (
        ("MF", "mf", same, ratings.given + ratings.asked),
        ("propensity MF, true propensities", "mf", ratings.weight, (ratings.given + ratings.asked) * ratings.weight),
        ("factors", "factors", same, ratings.given + ratings.asked),
        ("cause", "cause", same, ratings.given + ratings.asked),
    ):
        data, apart = ratings.data(weight), judged * ratings.apart
        found = [_predicted(learner, data, asked) for asked in _asked(learner, seed)]
        errors = [float((apart * (ratings.rating - rating) ** 2).sum()) for rating in found]
        best = found[int(np.argmin(errors))]
        yield name, 1 - float(((best - ratings.truth) ** 2).mean()) / base


def _asked(learner: str, seed: int) -> list[LearningOptions]:
    ties = _TIES if learner == "cause" else (0.0,)
    return [LearningOptions(regularization=penalty, tie=tie, seed=seed) for penalty in _PENALTIES for tie in ties]


def _predicted(learner: str, data: LearningData, options: LearningOptions) -> Floats:
    model = get_learner(learner).learn(data, options, lambda: None).model
    assert isinstance(model, FactorModel)
    users, items = (numbers.ravel() for numbers in np.indices((_USERS, _ITEMS)))
    scores = model.scores(users, items)
    share = scores if learner == "mf" else sigmoid(scores)
    return (1 + 4 * share).reshape(_USERS, _ITEMS)
