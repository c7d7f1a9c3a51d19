"""Adam, the optimiser.

    m <- .9 m + .1 g,   v <- .999 v + .001 g^2,   x <- x - rate (m / (1 - .9^t)) / (sqrt(v / (1 - .999^t)) + 1e-8)

Source: Kingma & Ba 2015.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Parameters = Mapping[str, NDArray[np.floating[Any]]]
"""Arrays of whatever precision, by name."""

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8


class Adam:
    """Takes steps downhill."""

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
