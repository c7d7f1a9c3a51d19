"""Click models whose examination depends on a cell that all documents share."""

from abc import abstractmethod
from typing import ClassVar

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio
from posbias.core.models.click_model import ATTRACTIVENESS, ExaminationModel
from posbias.core.registry import Plugin
from posbias.core.schema import POSITION

_LARGEST_CLICK_PROBABILITY = 1 - 1e-9


class FactorisedModel(Plugin):
    """A click model in which examination depends on a cell and attractiveness on the pair.

    P(C_r = 1 | c_1 .. c_(r-1)) = theta_cell * gamma_qd
    """

    reference: ClassVar[str]  # the paper that introduced it
    # The columns that make up a cell, whole numbers, the position first
    cell_columns: ClassVar[tuple[str, ...]] = (POSITION,)
    needs_session: ClassVar[bool] = False  # whether a cell depends on what else happened on the page

    @property
    def beside_position(self) -> str:
        """What else than its position tells a cell, in words; empty where nothing does."""
        columns = [name for name in self.cell_columns if name != POSITION]
        return f"{' and '.join(columns)} (--model {self.name})" if columns else ""

    @abstractmethod
    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Add the cell columns to impressions (session, position, click, ...)."""

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """The same for impressions in memory, whose rows may change their order, where that can be done faster."""
        return self.with_cells(nw.from_native(impressions.lazy())).to_native().collect()


class FactorisedClickModel(FactorisedModel, ExaminationModel):
    """A factorised model that also says how likely the clicks of a page are, so that it is judged beside others."""

    @property
    def theta(self) -> Parameter:
        """The parameter by cell."""
        return self.parameters[1]

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """What was clicked was examined and attractive; of what was not, each is expected given that not both are."""
        theta, gamma = self.examination(parameters, pages), parameters[ATTRACTIVENESS.name][pages.unit]
        no_click = 1 - np.minimum(theta * gamma, _LARGEST_CLICK_PROBABILITY)
        one = np.ones(theta.shape)
        return {
            ATTRACTIVENESS.name: Ratio(np.where(pages.click, 1.0, gamma * (1 - theta) / no_click), one),
            self.theta.name: Ratio(np.where(pages.click, 1.0, theta * (1 - gamma) / no_click), one),
        }

    def certain(self, pages: PageBatch) -> Flags:
        """What stands for itself and was clicked: it was examined and attractive."""
        return pages.click if pages.n_ranks == 1 else super().certain(pages)

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Theta times gamma."""
        return self.examination(parameters, pages) * parameters[ATTRACTIVENESS.name][pages.unit]
