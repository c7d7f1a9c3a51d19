"""What all documents share in a click model other than by cells: probabilities that are given, or have a default.

    rank CTR                    rho_k = rho theta_k
    trust bias                  P(click) = theta_k (eps+_k gamma + eps-_k (1 - gamma))
    DCM, DBN and click chain    see the models: how likely users are to go on

Sources: Agarwal, Wang, Li, Bendersky & Najork 2019 (trust bias); Vardasbi, de Rijke & Markov 2021 (its values);
Chapelle & Zhang 2009 (users of the DBN go on nine times out of ten).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import Floats
from posbias.core.browsing.parameters import Parameters
from posbias.core.models import get_click_model

CELL_MODELS = ("pbm", "ubm")
"""Models whose users examine by cell. Theta is all that their documents share."""


@dataclass(frozen=True)
class SharedParameter:
    """A probability that may be given by its name."""

    name: str  # by which it is given
    # Its values at positions from 1; the first one counts where it is the same at all of them
    default: Callable[[Floats], Floats] | float
    by_position: bool = False  # whether positions differ in it
    times_theta: bool = False  # whether the model's own parameter is this one times theta, and so by position
    makes: str | None = None  # the model's own parameter, where it has another name

    @property
    def of_model(self) -> str:
        """The name of the model's own parameter."""
        return self.makes or self.name

    def n_values(self, n_positions: int) -> int:
        """How many values it has."""
        return n_positions if self.by_position else 1


_CLICK_RATE = SharedParameter("click_rate", 1 / 3)  # as many clicks as on the mean document of Beta(1, 2)
_PERCEIVED = SharedParameter(
    "perceived_if_relevant",
    lambda position: 1 - (np.minimum(position, 20) + 1) / 100,
    by_position=True,
    times_theta=True,
    makes="click_if_relevant",
)
_PERCEIVED_IF_NOT = SharedParameter(
    "perceived_if_not_relevant",
    lambda position: 0.65 / np.minimum(position, 10),
    by_position=True,
    times_theta=True,
    makes="click_if_not_relevant",
)
_SHARED: Mapping[str, tuple[SharedParameter, ...]] = {
    **dict.fromkeys(CELL_MODELS, ()),
    "gctr": (_CLICK_RATE,),
    "rctr": (replace(_CLICK_RATE, times_theta=True),),
    "tpbm": (_PERCEIVED, _PERCEIVED_IF_NOT),
    "dcm": (SharedParameter("continuation", lambda position: 0.75 * position**-0.3, by_position=True),),
    "dbn": (SharedParameter("continuation", 0.9),),
    "ccm": (
        SharedParameter("continuation_after_skip", 0.9),
        SharedParameter("continuation_after_irrelevant_click", 0.7),
        SharedParameter("continuation_after_relevant_click", 0.3),
    ),
}


def shared_parameters(model: str) -> tuple[SharedParameter, ...]:
    """What may be given for a model; of one that is not known here, what it says itself, with EM's start."""
    if model in _SHARED:
        return _SHARED[model]
    return tuple(
        SharedParameter(parameter.name, parameter.start, parameter.shape == "position")
        for parameter in get_click_model(model).parameters
        if parameter.shape != "unit"
    )


def parameters_by_pair(model: str) -> tuple[str, ...]:
    """The names of what documents differ in."""
    if model in CELL_MODELS:
        return ("attractiveness",)
    return tuple(parameter.name for parameter in get_click_model(model).parameters if parameter.shape == "unit")


def uses_theta(model: str) -> bool:
    """Whether clicks depend on theta, given by cell or by an exponent eta."""
    by_rank = any(parameter.times_theta for parameter in shared_parameters(model))
    return by_rank or model in CELL_MODELS or has_rates_by_position(model)


def has_rates_by_position(model: str) -> bool:
    """Whether each document has a click rate of its own at each position."""
    return model not in CELL_MODELS and "position" in get_click_model(model).unit_columns


def values_by_position(parameter: SharedParameter, given: Mapping[str, tuple[float, ...]], n_positions: int) -> Floats:
    """The values of a shared parameter, shape (K,); one that is given once holds for all positions."""
    if parameter.name in given:
        return np.broadcast_to(np.array(given[parameter.name], dtype=np.float64), n_positions)
    default = parameter.default
    return default(np.arange(1.0, n_positions + 1)) if callable(default) else np.full(n_positions, default)


def model_parameters(model: str, given: Mapping[str, tuple[float, ...]], theta: Floats) -> Parameters:
    """The model's own parameters that documents share, as the model takes them.

    Args:
        model: its name.
        given: values by the name of a shared parameter.
        theta: shape (K,), examination by position.
    """
    shapes = {parameter.name: parameter for parameter in get_click_model(model).parameters}
    found: dict[str, Floats] = {}
    for parameter in shared_parameters(model):
        values = values_by_position(parameter, given, len(theta))
        values = values * theta if parameter.times_theta else values
        dimensions = shapes[parameter.of_model].dimensions(0, len(theta))
        by_position = np.concatenate([[0.0], values])  # positions count from 1
        found[parameter.of_model] = by_position if len(dimensions) == 1 else np.full(dimensions, values[0])
    return found
