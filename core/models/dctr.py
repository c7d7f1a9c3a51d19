"""Click-through rates by document."""

from posbias.core.browsing.parameters import Parameter
from posbias.core.models.click_rate import ClickRateModel


class DocumentCTRModel(ClickRateModel):
    """DCTR: P(C_r = 1) = rho_qd."""

    name = "dctr"
    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"
    about = "clicks depend on the document alone"
    parameters = (Parameter("click_rate", "unit"),)
