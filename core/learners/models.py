"""What has been learnt: something that scores documents, and that a file holds."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.errors import LogFormatError
from posbias.core.learners.boosting import Rows, runs
from posbias.core.learners.forest import Forest

Arrays = Mapping[str, NDArray[np.generic]]


class RowModel(ABC):
    """A model that scores a document by its features."""

    @abstractmethod
    def scores(self, rows: Rows) -> Floats:
        """The score f of each row, shape (n,): the larger, the more relevant."""


@dataclass(frozen=True)
class TreeModel(RowModel):
    """Boosted trees.

    Attributes:
        forest: LightGBM's model file.
    """

    forest: Forest

    def scores(self, rows: Rows) -> Floats:
        """The raw scores of the trees."""
        return self.forest.scores(rows)


@dataclass(frozen=True)
class NetworkModel(RowModel):
    """A multilayer perceptron on standardised features: relu between layers, one number at the end.

        x' = clip((x - mean) / scale, -5, 5), 0 where missing;   h_0 = x',  h_i = relu(h_{i-1} W_i + b_i),  f = h W + b

    One layer is a linear model.

    Attributes:
        mean: of each feature, shape (F,).
        scale: its standard deviation, 1 where it is constant, shape (F,).
        weights: of each layer.
        biases: likewise.
    """

    mean: Floats
    scale: Floats
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    def standardized(self, rows: Floats) -> Floats:
        """Rows of shape (n, F) as the network sees them."""
        return np.nan_to_num(np.clip((rows - self.mean) / self.scale, -LARGEST_INPUT, LARGEST_INPUT))

    def scores(self, rows: Rows) -> Floats:
        """What the network says of rows."""
        found = [self._scores(self.standardized(rows[chunk])) for chunk in runs(len(rows))]
        return np.concatenate(found) if found else np.zeros(0)

    def _scores(self, hidden: Floats) -> Floats:
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = np.maximum(hidden @ weight + bias, 0.0)
        last: Floats = hidden @ self.weights[-1] + self.biases[-1]
        return last[:, 0]

    def arrays(self) -> dict[str, Floats]:
        """What `model.npz` holds."""
        layers = {f"weight_{number}": weight for number, weight in enumerate(self.weights)}
        layers |= {f"bias_{number}": bias for number, bias in enumerate(self.biases)}
        return {"mean": self.mean, "scale": self.scale, **layers}

    @classmethod
    def of_arrays(cls, arrays: Arrays, where: str) -> "NetworkModel":
        """The network that arrays hold.

        Raises:
            LogFormatError: they hold none.
        """
        try:
            found = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
            layers = sum(name.startswith("weight_") for name in found)
            model = cls(
                found["mean"],
                found["scale"],
                tuple(found[f"weight_{number}"] for number in range(layers)),
                tuple(found[f"bias_{number}"] for number in range(layers)),
            )
            fits = layers > 0 and model.scores(np.zeros((1, len(model.mean)))).shape == (1,)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise LogFormatError(f"{where}: holds no network: {error}. Train again.") from error
        if not fits:
            raise LogFormatError(f"{where}: holds no network. Train again.")
        return model


LARGEST_INPUT = 5.0
"""Standard deviations: a feature further out is taken for this far out, so that one value does not run a network."""


@dataclass(frozen=True)
class FactorModel:
    """Factors of queries (users) and documents (items), where there are no features.

        f(q, d) = m + b_q + b_d + u_q . v_d;   what was never seen has bias and factors 0

    Attributes:
        mean: m.
        query_bias: b, shape (Q,).
        item_bias: b, shape (I,).
        query_factors: u, shape (Q, R).
        item_factors: v, shape (I, R).
    """

    mean: float
    query_bias: Floats
    item_bias: Floats
    query_factors: Floats
    item_factors: Floats

    def scores(self, query: Integers, item: Integers) -> Floats:
        """The score of queries and documents by their numbers, -1 for what was never seen, shape (n,)."""
        biases = _of(self.query_bias, query) + _of(self.item_bias, item)
        found: Floats = self.mean + biases
        for of_query, of_item in zip(self.query_factors.T, self.item_factors.T, strict=True):
            found = found + _of(of_query, query) * _of(of_item, item)
        return found

    def arrays(self) -> dict[str, Floats]:
        """What `model.npz` holds."""
        return {
            "mean": np.array(self.mean),
            "query_bias": self.query_bias,
            "item_bias": self.item_bias,
            "query_factors": self.query_factors,
            "item_factors": self.item_factors,
        }

    @classmethod
    def of_arrays(cls, arrays: Arrays, where: str) -> "FactorModel":
        """The factors that arrays hold.

        Raises:
            LogFormatError: they hold none.
        """
        try:
            found = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
            model = cls(float(found.pop("mean")), **found)
            shapes = (model.query_factors.shape, model.item_factors.shape)
            n_factors = shapes[0][1]
            fits = shapes == ((*model.query_bias.shape, n_factors), (*model.item_bias.shape, n_factors))
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise LogFormatError(f"{where}: holds no factors: {error}. Train again.") from error
        if not fits:
            raise LogFormatError(f"{where}: holds no factors. Train again.")
        return model


def _of(values: Floats, number: Integers) -> Floats:
    """Values by number; 0 for number -1."""
    return np.append(values, 0.0)[number]
