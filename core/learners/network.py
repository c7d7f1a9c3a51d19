"""A small multilayer perceptron with the gradients written out: all that towers need.

    h_0 = x,  h_i = relu(h_{i-1} W_i + b_i),  f = h W + b

Sources: Rumelhart, Hinton & Williams 1986; He et al. 2015 (the first weights).
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float32]
"""Networks work in single precision: it halves their time, and a minibatch is noisier than that."""

_LAST_LAYER = 0.1  # its first weights are smaller by this, so that learning begins near the constant


class Perceptron:
    """Layers, and what they made of the last rows.

    Attributes:
        weights: of each layer.
        biases: likewise.
    """

    def __init__(self, sizes: Sequence[int], rng: np.random.Generator) -> None:
        """Draw the first weights.

        Args:
            sizes: number of inputs, of hidden units of each layer, and 1.
            rng: draws them.
        """
        self.weights: list[Reals] = []
        for inputs, outputs in pairwise(sizes):
            drawn = rng.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)
            self.weights.append(drawn.astype(np.float32))
        self.weights[-1] *= np.float32(_LAST_LAYER)
        self.biases: list[Reals] = [np.zeros(outputs, np.float32) for outputs in sizes[1:]]
        self._inputs: list[Reals] = []

    @property
    def parameters(self) -> dict[str, Reals]:
        """What is learnt, by name."""
        return _named(self.weights, self.biases)

    def forward(self, rows: Reals) -> Reals:
        """F of rows, shape (n,)."""
        self._inputs = [rows]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden: Reals = self._inputs[-1] @ weight + bias
            self._inputs.append(_relu(hidden))
        last: Reals = self._inputs[-1] @ self.weights[-1] + self.biases[-1]
        return last[:, 0]

    def backward(self, slope: Reals, decay: float) -> dict[str, Reals]:
        """The gradients of the parameters, of a loss whose derivative by f of the last rows is given.

        Args:
            slope: shape (n,).
            decay: of half the squared weights, which the loss holds too.
        """
        behind: Reals = slope[:, np.newaxis]
        of_weights: list[Reals] = []
        of_biases: list[Reals] = []
        for layer in range(len(self.weights) - 1, -1, -1):
            of_weight: Reals = self._inputs[layer].T @ behind
            of_weight += decay * self.weights[layer]
            of_weights.append(of_weight)
            of_biases.append(behind.sum(axis=0))
            if layer:
                behind = (behind @ self.weights[layer].T) * (self._inputs[layer] > 0)
        return _named(of_weights[::-1], of_biases[::-1])

    def copy(self) -> list[Reals]:
        """The parameters as they are now."""
        return [parameter.copy() for parameter in self.parameters.values()]

    def restore(self, kept: Sequence[Reals]) -> None:
        """Go back to parameters of before."""
        for parameter, before in zip(self.parameters.values(), kept, strict=True):
            parameter[...] = before


def _relu(values: Reals) -> Reals:
    return values * (values > 0)


def _named(weights: Sequence[Reals], biases: Sequence[Reals]) -> dict[str, Reals]:
    of_weights = {f"weight_{layer}": weight for layer, weight in enumerate(weights)}
    return of_weights | {f"bias_{layer}": bias for layer, bias in enumerate(biases)}
