"""The dependent click model: after a click, users go on as often as its position says."""

import numpy as np

from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio, at_position
from posbias.core.models.cascade import CascadeModel, Posterior
from posbias.core.models.click_model import ATTRACTIVENESS

CONTINUATION_BY_POSITION = Parameter("continuation", "position")


class DependentClickModel(CascadeModel):
    """DCM: k(0) = 1, k(1) = lambda_k, k the position.

    By EM. The closed form of the paper takes everybody who does not click again for somebody who left at the last
    click, so that lambda is too small, and attractiveness too large, on any number of pages.
    """

    name = "dcm"
    reference = "Guo, Liu & Wang 2009 (WSDM), by maximum likelihood"
    about = "users go on after a click, as often as its position says"
    parameters = (ATTRACTIVENESS, CONTINUATION_BY_POSITION)

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """1 after a skip, lambda after a click."""
        return np.ones(pages.unit.shape), at_position(parameters[CONTINUATION_BY_POSITION.name], pages.position)

    def continued(self, parameters: Parameters, pages: PageBatch, posterior: Posterior) -> dict[str, Ratio]:  # noqa: ARG002 - in the posterior
        """Every click that has a document below decides whether its user goes on."""
        decided = (pages.click & posterior.followed).astype(np.float64)
        return {CONTINUATION_BY_POSITION.name: Ratio(decided * posterior.went_on, decided)}

    def certain(self, pages: PageBatch) -> Flags:
        """Above the last click of a page; all of a page without clicks, as nobody leaves after a skip."""
        return pages.above_last_click | (pages.shown & ~pages.clicked)
