"""The dynamic Bayesian network: users go on until they are satisfied, or have had enough."""

import numpy as np

from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio
from posbias.core.models.cascade import CascadeModel, Posterior
from posbias.core.models.click_model import ATTRACTIVENESS

SATISFACTION = Parameter("satisfaction", "unit")
CONTINUATION = Parameter("continuation", "one", start=0.9)


class DynamicBayesianNetworkModel(CascadeModel):
    """DBN: k(0) = gamma, k(1) = gamma (1 - s_qd)."""

    name = "dbn"
    reference = "Chapelle & Zhang 2009 (WWW)"
    about = "users go on until a document satisfies them, or they have had enough"
    parameters = (ATTRACTIVENESS, SATISFACTION, CONTINUATION)

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """Gamma after a skip, gamma (1 - s) after a click."""
        gamma = float(parameters[CONTINUATION.name])
        return np.full(pages.unit.shape, gamma), gamma * (1 - parameters[SATISFACTION.name][pages.unit])

    def continued(self, parameters: Parameters, pages: PageBatch, posterior: Posterior) -> dict[str, Ratio]:
        """Who leaves after a click was satisfied, or was not and had enough: s or (1 - s) (1 - gamma) of 1 - k(1)."""
        gamma, s = float(parameters[CONTINUATION.name]), parameters[SATISFACTION.name][pages.unit]
        clicked = (pages.click & posterior.followed).astype(np.float64)
        skipped = posterior.examined * posterior.followed * ~pages.click
        satisfied = clicked * (1 - posterior.went_on) * s / (1 - gamma * (1 - s))
        return {
            SATISFACTION.name: Ratio(satisfied, clicked),
            CONTINUATION.name: Ratio((clicked + skipped) * posterior.went_on, clicked - satisfied + skipped),
        }

    def certain(self, pages: PageBatch) -> Flags:
        """Above the last click of a page: its user went on, and was not satisfied."""
        return pages.above_last_click
