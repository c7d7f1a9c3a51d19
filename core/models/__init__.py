"""Click models: how an impression maps to an examination cell, P(click) = theta_cell * gamma_pair.

A factorised model is one file here: a class below `FactorisedModel`. It is found because it lies here.
"""

from posbias.core.models.model import FactorisedModel
from posbias.core.registry import Room

__all__ = ["FactorisedModel", "get_model", "model_names"]

_MODELS = Room(__name__, __path__, (FactorisedModel,), "--model")


def model_names() -> list[str]:
    """The models, in the order in which help shows them."""
    return _MODELS.names


def get_model(name: str) -> FactorisedModel:
    """The model of that name.

    Raises:
        UsageError: there is none.
    """
    return _MODELS.get(name)
