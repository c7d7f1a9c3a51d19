"""The global click-through rate: what a model must beat to be one."""

from posbias.core.browsing.parameters import Parameter
from posbias.core.models.click_rate import ClickRateModel


class GlobalCTRModel(ClickRateModel):
    """GCTR: P(C_r = 1) = rho."""

    name = "gctr"
    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"
    about = "every impression is clicked equally often"
    parameters = (Parameter("click_rate", "one"),)
