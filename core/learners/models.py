"""Models that score documents: forests, networks and factors; and Adam, which trains networks and factors.

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
from posbias.core.learners.boosting import Rows, import_lightgbm, slices_of_size

Parameters = Mapping[str, NDArray[np.floating[Any]]]
"""Arrays of any precision, by name."""

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8


class Adam:
    """Adam (Kingma & Ba 2015), updating parameters in place."""

    def __init__(self, parameters: Parameters, rate: float, rates: Mapping[str, float] | None = None) -> None:
        """Start from parameters.

        Args:
            parameters: changed in place by every step.
            rate: learning rate.
            rates: learning rates of single parameters, by name.
        """
        self._steps = 0
        self._state = {
            name: (values, np.zeros_like(values), np.zeros_like(values), (rates or {}).get(name, rate))
            for name, values in parameters.items()
        }

    def step(self, gradients: Parameters) -> None:
        """Step against the gradients, by name of the parameter."""
        self._steps += 1
        for name, gradient in gradients.items():
            parameter, mean, square, rate = self._state[name]
            mean += (1 - _FIRST) * (gradient - mean)
            square += (1 - _SECOND) * (gradient**2 - square)
            spread = np.sqrt(square / (1 - _SECOND**self._steps)) + _TINY
            parameter -= rate * (mean / (1 - _FIRST**self._steps)) / spread


@dataclass(frozen=True)
class Forest:
    """A trusted LightGBM model file: LightGBM does not validate files, and an invalid child crashes the process."""

    text: str  # the file's content

    @cached_property
    def _booster(self) -> Any:  # noqa: ANN401 - LightGBM has no types
        return import_lightgbm().Booster(model_str=self.text)

    def scores(self, rows: Rows, threads: int = 0) -> Floats:
        """Raw scores of rows, shape (n,); NaN in a row is a missing value.

        Args:
            rows: shape (n, F).
            threads: number of threads; 0: all.
        """
        scores = np.empty(len(rows))
        for run in slices_of_size(len(rows)):
            values = np.asarray(rows[run], np.float64)
            scores[run] = self._booster.predict(values, raw_score=True, num_threads=threads)
        return scores


Arrays = Mapping[str, NDArray[np.generic]]
_Reals = TypeVar("_Reals", bound=NDArray[np.floating[Any]])

LARGEST_INPUT = 5.0
"""Standard deviations at which features are clipped, so that no outlier dominates a network."""


def standardized(rows: Floats, mean: Floats, scale: Floats) -> Floats:
    """Inputs of networks: x' = clip((x - mean) / scale, -5, 5), 0 where missing, shape (n, F)."""
    return np.nan_to_num(np.clip((rows - mean) / scale, -LARGEST_INPUT, LARGEST_INPUT))


def forward(rows: _Reals, weights: Sequence[_Reals], biases: Sequence[_Reals]) -> list[_Reals]:
    """Layers of a perceptron: h_0 = x', h_i = relu(h_{i-1} W_i + b_i), and last f = h W + b of shape (n, 1)."""
    layers: list[Any] = [rows]
    for weight, bias in zip(weights, biases, strict=True):
        hidden = layers[-1] @ weight + bias
        layers.append(np.maximum(hidden, 0) if len(layers) < len(weights) else hidden)
    return layers


@dataclass(frozen=True)
class NetworkModel:
    """A multilayer perceptron on standardised features with relu activations and one output; linear with one layer."""

    mean: Floats  # of each feature, shape (F,)
    scale: Floats  # standard deviation of each feature, 1 if constant, shape (F,)
    weights: tuple[Floats, ...]  # of each layer
    biases: tuple[Floats, ...]

    @property
    def n_features(self) -> int:
        """Number of features, F."""
        return len(self.mean)

    def scores(self, rows: Rows) -> Floats:
        """The score f of each row, shape (n,)."""
        scores = [
            forward(standardized(rows[chunk], self.mean, self.scale), self.weights, self.biases)[-1][:, 0]
            for chunk in slices_of_size(len(rows))
        ]
        return np.concatenate(scores) if scores else np.zeros(0)

    def arrays(self) -> dict[str, Floats]:
        """The arrays of `model.npz`, by name."""
        layers = {f"weight_{number}": weight for number, weight in enumerate(self.weights)}
        layers |= {f"bias_{number}": bias for number, bias in enumerate(self.biases)}
        return {"mean": self.mean, "scale": self.scale, **layers}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "NetworkModel":
        """Inverse of `arrays`.

        Raises:
            ValueError: names, shapes or values are not those of a network.
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
"""A model that scores documents by features; relevant documents have larger scores f."""


@dataclass(frozen=True)
class FactorModel:
    """Factors of queries (users) and documents (items), without features.

    f(q, d) = m + b_q + b_d + u_q . v_d;   b, u and v are 0 for queries and documents not seen in training
    """

    mean: float  # m
    query_bias: Floats  # b, shape (Q,)
    item_bias: Floats  # b, shape (I,)
    query_factors: Floats  # u, shape (Q, R)
    item_factors: Floats  # v, shape (I, R)

    def scores(self, query: Integers, item: Integers) -> Floats:
        """Scores of pairs of queries and documents by number, -1 if not seen in training, shape (n,)."""
        scores: Floats = self.mean + (_or_zero(self.query_bias, query) + _or_zero(self.item_bias, item))
        for query_factor, item_factor in zip(self.query_factors.T, self.item_factors.T, strict=True):
            scores = scores + _or_zero(query_factor, query) * _or_zero(item_factor, item)
        return scores

    def arrays(self) -> dict[str, Floats]:
        """The arrays of `model.npz`, by name."""
        return {name: np.asarray(values) for name, values in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "FactorModel":
        """Inverse of `arrays`.

        Raises:
            ValueError: names, shapes or values are not those of factors.
        """
        mean, b_query, b_item, u, v = finite = _finite(arrays, *cls.__dataclass_fields__)
        n_factors = u.shape[-1] if u.shape else 0
        shapes = [(), (b_query.size,), (b_item.size,), (b_query.size, n_factors), (b_item.size, n_factors)]
        if [array.shape for array in finite] != shapes:
            raise ValueError("its factors do not fit together")
        return cls(float(mean), b_query, b_item, u, v)


def _finite(arrays: Arrays, *names: str) -> list[Floats]:
    """Return arrays in the order of their names.

    Raises:
        ValueError: the arrays do not have exactly these names, or a number is not finite.
    """
    if set(arrays) != set(names):
        raise ValueError(f"it holds {', '.join(sorted(arrays)) or 'nothing'}, and should hold {', '.join(names)}")
    finite = [np.asarray(arrays[name], np.float64) for name in names]
    wrong = [name for name, array in zip(names, finite, strict=True) if not np.isfinite(array).all()]
    if wrong:
        raise ValueError(f"{wrong[0]} holds a number that is not finite")
    return finite


def _or_zero(values: Floats, number: Integers) -> Floats:
    """Values by number; 0 for number -1."""
    return np.append(values, 0.0)[number]
