"""Click models: how likely each click on a page is. A line in `choices` names each.

Those below `FactorisedModel` say how an impression maps to an examination cell, P(click) = theta_cell * gamma_pair:
they are what propensities are estimated for. The others are judged beside them.
"""

from posbias.core.choices import CLICK_MODELS, MODELS, Room
from posbias.core.models.click_model import ClickModel, FactorisedModel

__all__ = ["ClickModel", "FactorisedModel", "click_model_names", "get_click_model", "get_model", "model_names"]

_MODELS = Room[FactorisedModel](MODELS, "--model")
_CLICK_MODELS = Room[ClickModel](CLICK_MODELS, "--model")

model_names, get_model = _MODELS.names, _MODELS.get
click_model_names, get_click_model = _CLICK_MODELS.names, _CLICK_MODELS.get
