"""What a click model has estimated, or is told: probabilities, each by unit or shared by all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from posbias.core.browsing.batch import Floats, Integers
from posbias.core.priors import BetaPrior

Shape = Literal["unit", "one", "position", "position and previous click"]
"""What a parameter differs by: units, nothing, the position k (at index k), or k and the last click above (k, k')."""


@dataclass(frozen=True)
class Parameter:
    """One probability of a click model.

    Attributes:
        name: as in the paper's words: attractiveness, satisfaction, examination, continuation.
        shape: what it differs by.
        start: the value that EM starts with.
        prior: of a parameter by unit, where the log cannot tell it unless others are given; None where it can.
    """

    name: str
    shape: Shape
    start: float = 0.5
    prior: BetaPrior | None = None

    def dimensions(self, n_units: int, n_positions: int) -> tuple[int, ...]:
        """The shape of its array: (J + 1,), (), (K + 1,) or (K + 1, K + 1)."""
        by_position = n_positions + 1
        return {
            "unit": (n_units + 1,),
            "one": (),
            "position": (by_position,),
            "position and previous click": (by_position, by_position),
        }[self.shape]


Parameters = Mapping[str, Floats]
"""Values in [0, 1] by the name of a parameter. By unit, shape (J + 1,): the last is that of units never seen. By
position, shape (K + 1,), index k for position k; whoever asks for one below K gets that of K."""


@dataclass(frozen=True)
class Ratio:
    """What a batch says of one parameter: the expected number of times it was decided, and of those in its favour.

    Attributes:
        favourable: shape (N, L).
        decided: likewise, >= favourable.
    """

    favourable: Floats
    decided: Floats

    def times(self, weight: Floats) -> "Ratio":
        """Both as often as a weight says, shape (N, L)."""
        return Ratio(weight * self.favourable, weight * self.decided)


def at_position(values: Floats, position: Integers) -> Floats:
    """Values by position, shape (K + 1,), at positions of any shape; those beyond K get the value of K."""
    return values[np.minimum(position, len(values) - 1)]
