"""A small multilayer perceptron with the gradients written out, and Adam: all that towers need.

    h_0 = x,  h_i = relu(h_{i-1} W_i + b_i),  f = h W + b

Sources: Rumelhart, Hinton & Williams 1986; He et al. 2015 (the first weights); Kingma & Ba 2015 (Adam).
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float32]
"""Networks work in single precision: it halves their time, and a minibatch is noisier than that."""

_FIRST_MOMENT, _SECOND_MOMENT, _TINY = 0.9, 0.999, 1e-8
_LAST_LAYER = 0.1  # its first weights are smaller by this, so that learning begins near the constant


class Adam:
    """Takes steps of a length that the noise of the gradients sets, in place."""

    def __init__(self, parameters: Sequence[Reals], rate: float) -> None:
        """Begin at the given parameters.

        Args:
            parameters: what is learnt.
            rate: the length of a step.
        """
        self._parameters, self._rate, self._steps = list(parameters), rate, 0
        self._mean = [np.zeros_like(parameter) for parameter in parameters]
        self._square = [np.zeros_like(parameter) for parameter in parameters]

    def step(self, gradients: Sequence[Reals]) -> None:
        """Take a step against gradients, one for each parameter."""
        self._steps += 1
        for number, gradient in enumerate(gradients):
            self._mean[number] += (1 - _FIRST_MOMENT) * (gradient - self._mean[number])
            self._square[number] += (1 - _SECOND_MOMENT) * (gradient * gradient - self._square[number])
            unbiased = self._mean[number] / (1 - _FIRST_MOMENT**self._steps)
            spread = np.sqrt(self._square[number] / (1 - _SECOND_MOMENT**self._steps))
            self._parameters[number] -= self._rate * unbiased / (spread + _TINY)


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
    def parameters(self) -> list[Reals]:
        """What is learnt: the weights, then the biases."""
        return [*self.weights, *self.biases]

    def forward(self, rows: Reals) -> Reals:
        """F of rows, shape (n,)."""
        self._inputs = [rows]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden: Reals = self._inputs[-1] @ weight + bias
            self._inputs.append(_relu(hidden))
        last: Reals = self._inputs[-1] @ self.weights[-1] + self.biases[-1]
        return last[:, 0]

    def backward(self, slope: Reals, decay: float) -> list[Reals]:
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
        return [*reversed(of_weights), *reversed(of_biases)]

    def copy(self) -> list[Reals]:
        """The parameters as they are now."""
        return [parameter.copy() for parameter in self.parameters]

    def restore(self, kept: Sequence[Reals]) -> None:
        """Go back to parameters of before."""
        for parameter, before in zip(self.parameters, kept, strict=True):
            parameter[...] = before


def _relu(values: Reals) -> Reals:
    return values * (values > 0)
