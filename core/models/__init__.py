"""Click models: how likely each click on a page is. A line in `choices` names each.

Those below `FactorisedModel` say how an impression maps to an examination cell, P(click) = theta_cell * gamma_pair:
they are what propensities are estimated for. The others are judged beside them.
"""

from abc import abstractmethod
from functools import reduce
from operator import mul
from typing import ClassVar

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoLazyFrameT

from posbias.core.choices import CLICK_MODELS, MODELS, Plugin, Room
from posbias.core.models.page_matrices import Flags, Floats, PageBatch, Parameter, Parameters, Ratio
from posbias.core.schema import PAIR, POSITION

ATTRACTIVENESS = Parameter("attractiveness", "unit")
THETA = "examination"
"""The name of the parameter by cell of a factorised model."""


class ClickModel(Plugin):
    """A model of the clicks on a results page, from the top down.

    All its parameters are probabilities that are decided by impressions, so that EM divides, for each of them, the
    expected number of decisions in its favour by that of all (`expected`). Where these do not depend on the parameters
    (`closed_form`), the first division is the maximum of the likelihood.
    """

    reference: str  # the paper that is followed
    about: str  # what it says, in a line of help
    parameters: tuple[Parameter, ...]  # them, by their names
    unit_columns: tuple[str, ...] = PAIR  # what has a parameter by unit of its own
    closed_form: ClassVar[bool] = False  # whether one pass over the log estimates it
    # What a click depends on beside its unit, `position` and perhaps `previous_click`, where it depends on nothing
    # else on its page, so that impressions can be counted whatever page they are on, and the model be fitted from
    # statistics that tell these apart; none where it needs whole pages
    statistics_columns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """Sums by parameter, given all clicks of the pages: the expectation step, not yet weighted.

        Args:
            parameters: as they are.
            pages: with clicks.
        """

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1 | c_1 .. c_(r-1)), shape (N, L); any value where padded.

        That of `click_probability` where clicks do not depend on those above.
        """
        return self.click_probability(parameters, pages)

    def certain(self, pages: PageBatch) -> Flags:
        """Impressions that say the same whatever the parameters, so that EM adds them up only once, shape (N, L).

        On each page the top, nothing or all: so that P(clicks) is the product of what these decide, x or 1 - x of
        each parameter, and of the probability of the rest of the page, from its first impression on, as if it were a
        page of its own.
        """
        return np.zeros(pages.shown.shape, dtype=np.bool_)

    @abstractmethod
    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1) whatever was clicked above, shape (N, L); the clicks of the pages are not looked at."""

    def relevance(self, parameters: Parameters) -> Floats | None:
        """Value to rank documents by, shape (J + 1,): attractiveness, times satisfaction where the model has it.

        None where the model does not tell documents apart, or not without their position.
        """
        of_units = [parameters[parameter.name] for parameter in self.parameters if parameter.shape == "unit"]
        return reduce(mul, of_units) if of_units and self.unit_columns == PAIR else None

    def sample(self, parameters: Parameters, pages: PageBatch, rng: np.random.Generator) -> Flags:
        """Draw clicks from the top down, shape (N, L)."""
        click = np.zeros(pages.shown.shape, dtype=np.bool_)
        for rank in range(pages.n_ranks):
            probability = self.given_clicks(parameters, pages.with_clicks(click))[:, rank]
            click[:, rank] = (rng.random(pages.n_pages) < probability) & pages.shown[:, rank]
        return click


class ExaminationModel(ClickModel):
    """A click model in which a document must be examined to be clicked. Others have no propensities at all."""

    @abstractmethod
    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1 | c_1 .. c_(r-1)), in [0, 1], shape (N, L); any value where padded."""

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1 | clicks above) times attractiveness."""
        return self.examination(parameters, pages) * parameters[ATTRACTIVENESS.name][pages.unit]


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
        """Variables of a cell beside its position, in words; empty where there are none."""
        columns = [name for name in self.cell_columns if name != POSITION]
        return f"{' and '.join(columns)} (--model {self.name})" if columns else ""

    @abstractmethod
    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Add the cell columns to impressions (session, position, click, ...)."""

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """Add the cell columns to impressions in memory, whose rows may change their order, where that is faster."""
        return self.with_cells(nw.from_native(impressions.lazy())).to_native().collect()


class FactorisedClickModel(FactorisedModel, ExaminationModel):
    """A factorised model that also says how likely the clicks of a page are, so that it is judged beside others."""

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """A click was examined and attractive; without a click each is expected given that not both are."""
        theta, gamma = self.examination(parameters, pages), parameters[ATTRACTIVENESS.name][pages.unit]
        no_click = 1 - np.minimum(theta * gamma, _LARGEST_CLICK_PROBABILITY)
        one = np.ones(theta.shape)
        return {
            ATTRACTIVENESS.name: Ratio(np.where(pages.click, 1.0, gamma * (1 - theta) / no_click), one),
            THETA: Ratio(np.where(pages.click, 1.0, theta * (1 - gamma) / no_click), one),
        }

    def certain(self, pages: PageBatch) -> Flags:
        """The counts of impressions by themselves that were clicked: examined and attractive."""
        return pages.click if pages.n_ranks == 1 else super().certain(pages)


_MODELS = Room[FactorisedModel](MODELS, "--model")
_CLICK_MODELS = Room[ClickModel](CLICK_MODELS, "--model")

model_names, get_model = _MODELS.names, _MODELS.get
click_model_names, get_click_model = _CLICK_MODELS.names, _CLICK_MODELS.get
