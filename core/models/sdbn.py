"""The simplified dynamic Bayesian network: users go on until they are satisfied."""

import numpy as np

from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.parameters import Parameters, Ratio
from posbias.core.models.cascade import Posterior
from posbias.core.models.click_model import ATTRACTIVENESS
from posbias.core.models.dbn import SATISFACTION, DynamicBayesianNetworkModel


class SimplifiedDBNModel(DynamicBayesianNetworkModel):
    """SDBN: k(0) = 1, k(1) = 1 - s_qd.

    By EM. The closed form of the paper takes everybody who does not click again for satisfied by the last click, so
    that satisfaction and attractiveness are too large, on any number of pages.
    """

    name = "sdbn"
    reference = "Chapelle & Zhang 2009 (WWW), by maximum likelihood"
    about = "users go on until a document satisfies them"
    parameters = (ATTRACTIVENESS, SATISFACTION)

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """1 after a skip, after a click whoever is not satisfied."""
        return np.ones(pages.unit.shape), 1 - parameters[SATISFACTION.name][pages.unit]

    def continued(self, parameters: Parameters, pages: PageBatch, posterior: Posterior) -> dict[str, Ratio]:  # noqa: ARG002 - in the posterior
        """Every click that has a document below decides whether its user is satisfied."""
        decided = (pages.click & posterior.followed).astype(np.float64)
        return {SATISFACTION.name: Ratio(decided * (1 - posterior.went_on), decided)}

    def certain(self, pages: PageBatch) -> Flags:
        """Above the last click of a page; all of a page without clicks, as nobody leaves after a skip."""
        return pages.above_last_click | (pages.shown & ~pages.clicked)
