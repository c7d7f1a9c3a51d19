"""Click-through rates by rank."""

from posbias.core.browsing.parameters import Parameter
from posbias.core.models.click_rate import ClickRateModel


class RankCTRModel(ClickRateModel):
    """RCTR: P(C_r = 1) = rho_k, k the position."""

    name = "rctr"
    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"
    about = "clicks depend on the position alone"
    parameters = (Parameter("click_rate", "position"),)
