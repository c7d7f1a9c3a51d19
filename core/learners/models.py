"""Models: forests, networks and factors; and Adam, which trains the latter two.

m <- .9 m + .1 g,   v <- .999 v + .001 g^2,   x <- x - rate (m / (1 - .9^t)) / (sqrt(v / (1 - .999^t)) + 1e-8)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.learners.boosting import Rows, import_lightgbm, runs

Parameters = Mapping[str, NDArray[np.floating[Any]]]
"""Arrays of whatever precision, by name."""

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8


class Adam:
    """Adam's steps down a gradient."""

    def __init__(self, parameters: Parameters, rate: float, rates: Mapping[str, float] | None = None) -> None:
        """Begin at parameters, which every step changes in place, at one rate; some may have rates of their own."""
        self._steps = 0
        self._state = {
            name: (values, np.zeros_like(values), np.zeros_like(values), (rates or {}).get(name, rate))
            for name, values in parameters.items()
        }

    def step(self, gradients: Parameters) -> None:
        """Take a step against gradients."""
        self._steps += 1
        for name, gradient in gradients.items():
            parameter, mean, square, rate = self._state[name]
            mean += (1 - _FIRST) * (gradient - mean)
            square += (1 - _SECOND) * (gradient**2 - square)
            spread = np.sqrt(square / (1 - _SECOND**self._steps)) + _TINY
            parameter -= rate * (mean / (1 - _FIRST**self._steps)) / spread


@dataclass(frozen=True)
class Forest:
    """A LightGBM model file that this process wrote: LightGBM believes what a file says, and a wrong child ends it."""

    text: str  # the file's content

    @cached_property
    def _booster(self) -> Any:  # noqa: ANN401 - LightGBM has no types
        return import_lightgbm().Booster(model_str=self.text)

    def scores(self, rows: Rows, threads: int = 0) -> Floats:
        """The raw scores of rows, NaN where a feature is missing, shape (n,), by so many threads; 0: all."""
        scores = np.empty(len(rows))
        for run in runs(len(rows)):
            values = np.asarray(rows[run], np.float64)
            scores[run] = self._booster.predict(values, raw_score=True, num_threads=threads)
        return scores


Arrays = Mapping[str, NDArray[np.generic]]
_Reals = TypeVar("_Reals", bound=NDArray[np.floating[Any]])

LARGEST_INPUT = 5.0
"""Standard deviations: a feature further out is taken for this far out, so that one value does not run a network."""


def standardized(rows: Floats, mean: Floats, scale: Floats) -> Floats:
    """Rows of shape (n, F) as networks see them: x' = clip((x - mean) / scale, -5, 5), 0 where missing."""
    return np.nan_to_num(np.clip((rows - mean) / scale, -LARGEST_INPUT, LARGEST_INPUT))


def layers_of(rows: _Reals, weights: Sequence[_Reals], biases: Sequence[_Reals]) -> list[_Reals]:
    """The layers of a perceptron, h_0 = x', h_i = relu(h_{i-1} W_i + b_i), and f = h W + b of shape (n, 1)."""
    layers: list[Any] = [rows]
    for weight, bias in zip(weights, biases, strict=True):
        hidden = layers[-1] @ weight + bias
        layers.append(np.maximum(hidden, 0) if len(layers) < len(weights) else hidden)
    return layers


@dataclass(frozen=True)
class NetworkModel:
    """A multilayer perceptron on standardised features: relu between layers, one number at the end.

    One layer is a linear model.
    """

    mean: Floats  # of each feature, shape (F,)
    scale: Floats  # its standard deviation, 1 where it is constant, shape (F,)
    weights: tuple[Floats, ...]  # of each layer
    biases: tuple[Floats, ...]

    @property
    def n_features(self) -> int:
        """Number of features, F."""
        return len(self.mean)

    def scores(self, rows: Rows) -> Floats:
        """The score f of each row, shape (n,)."""
        scores = [
            layers_of(standardized(rows[chunk], self.mean, self.scale), self.weights, self.biases)[-1][:, 0]
            for chunk in runs(len(rows))
        ]
        return np.concatenate(scores) if scores else np.zeros(0)

    def arrays(self) -> dict[str, Floats]:
        """The arrays of `model.npz`, by name."""
        layers = {f"weight_{number}": weight for number, weight in enumerate(self.weights)}
        layers |= {f"bias_{number}": bias for number, bias in enumerate(self.biases)}
        return {"mean": self.mean, "scale": self.scale, **layers}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> "NetworkModel":
        """The network that arrays hold.

        Raises:
            ValueError: they hold none.
        """
        n_layers = (len(arrays) - 2) // 2
        names = [f"{sort}_{number}" for sort in ("weight", "bias") for number in range(n_layers)]
        mean, scale, *layers = _finite(arrays, "mean", "scale", *names)
        weights, biases = tuple(layers[:n_layers]), tuple(layers[n_layers:])
        widths = [mean.size, *(bias.size for bias in biases)]
        shapes = [shape for above, below in pairwise(widths) for shape in ((above, below), (below,))]
        fits = [array.shape for layer in zip(weights, biases, strict=True) for array in layer] == shapes
        if not (fits and layers and widths[-1] == 1 and mean.shape == scale.shape == (mean.size,)):
            raise ValueError("its layers do not fit together")
        if (scale <= 0).any():
            raise ValueError("scale holds a number that is not above 0")
        return cls(mean, scale, weights, biases)


RowModel = Forest | NetworkModel
"""A model that scores documents by their features; the larger the score f, the more relevant."""


@dataclass(frozen=True)
class FactorModel:
    """Factors of queries (users) and documents (items), where there are no features.

    f(q, d) = m + b_q + b_d + u_q . v_d;   what was never seen has bias and factors 0
    """

    mean: float  # m
    query_bias: Floats  # b, shape (Q,)
    item_bias: Floats  # b, shape (I,)
    query_factors: Floats  # u, shape (Q, R)
    item_factors: Floats  # v, shape (I, R)

    def scores(self, query: Integers, item: Integers) -> Floats:
        """The score of queries and documents by their numbers, -1 for what was never seen, shape (n,)."""
        scores: Floats = self.mean + (_of(self.query_bias, query) + _of(self.item_bias, item))
        for of_query, of_item in zip(self.query_factors.T, self.item_factors.T, strict=True):
            scores = scores + _of(of_query, query) * _of(of_item, item)
        return scores

    def arrays(self) -> dict[str, Floats]:
        """The arrays of `model.npz`, by name."""
        return {name: np.asarray(values) for name, values in vars(self).items()}

    @classmethod
    def of_arrays(cls, arrays: Arrays) -> "FactorModel":
        """The factors that arrays hold.

        Raises:
            ValueError: they hold none.
        """
        mean, of_queries, of_items, queries, items = finite = _finite(arrays, *cls.__dataclass_fields__)
        n_factors = queries.shape[-1] if queries.shape else 0
        shapes = [(), (of_queries.size,), (of_items.size,), (of_queries.size, n_factors), (of_items.size, n_factors)]
        if [array.shape for array in finite] != shapes:
            raise ValueError("its factors do not fit together")
        return cls(float(mean), of_queries, of_items, queries, items)


def _finite(arrays: Arrays, *names: str) -> list[Floats]:
    """The arrays of the names, and no others.

    Raises:
        ValueError: one is missing, one is there that is not named, or one holds a number that is not finite.
    """
    if set(arrays) != set(names):
        raise ValueError(f"it holds {', '.join(sorted(arrays)) or 'nothing'}, and should hold {', '.join(names)}")
    finite = [np.asarray(arrays[name], np.float64) for name in names]
    wrong = [name for name, array in zip(names, finite, strict=True) if not np.isfinite(array).all()]
    if wrong:
        raise ValueError(f"{wrong[0]} holds a number that is not finite")
    return finite


def _of(values: Floats, number: Integers) -> Floats:
    """Values by number; 0 for number -1."""
    return np.append(values, 0.0)[number]
