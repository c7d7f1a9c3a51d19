"""The cascade model: users go down to the first click, and leave."""

import numpy as np

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.parameters import Parameters, Ratio
from posbias.core.models.cascade import CascadeModel
from posbias.core.models.click_model import ATTRACTIVENESS
from posbias.core.schema import POSITION, PREVIOUS_CLICK


class CascadeOfOneClickModel(CascadeModel):
    """CM: k(0) = 1, k(1) = 0. A second click on a page is impossible."""

    name = "cm"
    reference = "Craswell et al. 2008 (WSDM)"
    about = "users go down to the first click, and leave"
    parameters = (ATTRACTIVENESS,)
    closed_form = True
    statistics_columns = (POSITION, PREVIOUS_CLICK)

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:  # noqa: ARG002 - fixed
        """1 after a skip, 0 after a click."""
        return np.ones(pages.unit.shape), np.zeros(pages.unit.shape)

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:  # noqa: ARG002 - nothing to find
        """1 down to the first click, then 0."""
        return ((pages.previous_click == 0) & pages.shown).astype(np.float64)

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """All is examined down to the first click; what comes below, even clicks, says nothing."""
        seen = self.examination(parameters, pages)
        return {ATTRACTIVENESS.name: Ratio(pages.click * seen, seen)}
