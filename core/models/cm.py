"""The cascade model: users go down to the first click, and leave."""

import numpy as np

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.cascade import Posterior
from posbias.core.browsing.parameters import Parameters, Ratio
from posbias.core.models.cascade import ATTRACTIVENESS, CascadeModel
from posbias.core.schema import POSITION, PREVIOUS_CLICK


class CascadeOfOneClickModel(CascadeModel):
    """CM: k(0) = 1, k(1) = 0. A second click on a page is impossible."""

    name = "cm"
    reference = "Craswell et al. 2008 (WSDM)"
    about = "users go down to the first click, and leave"
    parameters = (ATTRACTIVENESS,)
    closed_form = True
    statistics_columns = (POSITION, PREVIOUS_CLICK)

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Attractiveness, where no click stands above."""
        return self.examination(parameters, pages) * parameters[ATTRACTIVENESS.name][pages.unit]

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:  # noqa: ARG002 - nothing to find
        """1 down to the first click, then 0."""
        return pages.before_first_click.astype(np.float64)

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:  # noqa: ARG002 - of any values
        """All is examined down to the first click; what comes below, even clicks, says nothing."""
        seen = pages.before_first_click
        return {ATTRACTIVENESS.name: Ratio((pages.click & seen).astype(np.float64), seen.astype(np.float64))}

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:  # noqa: ARG002 - fixed
        """1 after a skip, 0 after a click."""
        return np.ones(pages.unit.shape), np.zeros(pages.unit.shape)

    def continued(
        self,
        parameters: Parameters,  # noqa: ARG002 - nothing to find
        pages: PageBatch,  # noqa: ARG002
        posterior: Posterior,  # noqa: ARG002
    ) -> dict[str, Ratio]:
        """Nothing."""
        return {}
