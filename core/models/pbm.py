"""The position-based model: examination depends on the position alone."""

import narwhals as nw
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Parameters, at_position
from posbias.core.models.click_model import ATTRACTIVENESS
from posbias.core.models.model import FactorisedClickModel
from posbias.core.schema import POSITION


class PositionBasedModel(FactorisedClickModel):
    """PBM: P(click) = theta_k * gamma_qd, k the position. K cells."""

    name = "pbm"
    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"
    about = "examination depends on the position"
    parameters = (ATTRACTIVENESS, Parameter("examination", "position"))
    statistics_columns = (POSITION,)

    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """The position is the cell: nothing to add."""
        return impressions

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """Nothing to add here either."""
        return impressions

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Theta of the position."""
        return at_position(parameters[self.theta.name], pages.position)

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Theta times gamma, whatever was clicked above."""
        return self.given_clicks(parameters, pages)
