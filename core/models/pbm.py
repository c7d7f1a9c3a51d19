"""The position-based model: examination depends on the position alone."""

import narwhals as nw
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.models.model import FactorisedModel


class PositionBasedModel(FactorisedModel):
    """PBM: P(click) = theta_k * gamma_qd, k the position. K cells."""

    name = "pbm"
    rank = 0
    reference = "Craswell et al. 2008 (WSDM); Chuklin, Markov & de Rijke 2015"

    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """The position is the cell: nothing to add."""
        return impressions

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """Nothing to add here either."""
        return impressions
