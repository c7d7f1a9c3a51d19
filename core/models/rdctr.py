"""Click-through rates by document and rank."""

from posbias.core.browsing.parameters import Parameter
from posbias.core.models.click_rate import ClickRateModel
from posbias.core.schema import PAIR, POSITION


class RankDocumentCTRModel(ClickRateModel):
    """RDCTR: P(C_r = 1) = rho_qdk."""

    name = "rdctr"
    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"
    about = "a click rate for each document at each position"
    parameters = (Parameter("click_rate", "unit"),)
    unit_columns = (*PAIR, POSITION)
