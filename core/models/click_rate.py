"""Click-through rates: models without examination, whose clicks do not depend on each other."""

import numpy as np

from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio, at_position
from posbias.core.models.click_model import ClickModel
from posbias.core.schema import PAIR, POSITION


class ClickRateModel(ClickModel):
    """P(C_r = 1) = rho, a rate by what the one parameter of the model differs by."""

    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"
    closed_form = True
    statistics_columns = (POSITION,)

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:  # noqa: ARG002 - of any rates
        """Clicks and impressions."""
        return {self._rate: Ratio(pages.click.astype(np.float64), pages.shown.astype(np.float64))}

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """The rate, shape (N, L)."""
        rates = parameters[self._rate]
        shape = self.parameters[0].shape
        if shape == "one":
            return np.full(pages.unit.shape, float(rates))
        return rates[pages.unit] if shape == "unit" else at_position(rates, pages.position)

    def sample(self, parameters: Parameters, pages: PageBatch, rng: np.random.Generator) -> Flags:
        """Draw clicks, all at once."""
        return (rng.random(pages.shown.shape) < self.click_probability(parameters, pages)) & pages.shown

    @property
    def _rate(self) -> str:
        return self.parameters[0].name


class GlobalCTRModel(ClickRateModel):
    """GCTR: P(C_r = 1) = rho: what a model must beat to be one."""

    name = "gctr"
    about = "every impression is clicked equally often"
    parameters = (Parameter("click_rate", "one"),)


class RankCTRModel(ClickRateModel):
    """RCTR: P(C_r = 1) = rho_k, k the position."""

    name = "rctr"
    about = "clicks depend on the position alone"
    parameters = (Parameter("click_rate", "position"),)


class DocumentCTRModel(ClickRateModel):
    """DCTR: P(C_r = 1) = rho_qd."""

    name = "dctr"
    about = "clicks depend on the document alone"
    parameters = (Parameter("click_rate", "unit"),)


class RankDocumentCTRModel(ClickRateModel):
    """RDCTR: P(C_r = 1) = rho_qdk."""

    name = "rdctr"
    about = "a click rate for each document at each position"
    parameters = (Parameter("click_rate", "unit"),)
    unit_columns = (*PAIR, POSITION)
