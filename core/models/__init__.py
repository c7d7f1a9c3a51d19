"""Click models: the probability of each click on a page.

Propensities are estimated for subclasses of `FactorisedModel`, which map impressions to examination cells,
P(click) = theta_cell * gamma_pair. All are listed in `choices`, and compared by held-out clicks.
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

    All parameters are probabilities of Bernoulli trials, so that EM divides the expected successes of each parameter by
    its expected trials (`expected`). Where these do not depend on the parameters (`closed_form`), the first M-step is
    the maximum of the likelihood.
    """

    reference: str  # the paper that is followed
    about: str  # a line of help
    parameters: tuple[Parameter, ...]
    unit_columns: tuple[str, ...] = PAIR  # columns of a unit, which has its own parameters of shape "unit"
    closed_form: ClassVar[bool] = False  # whether one pass over the log estimates it
    # The columns on which a click depends besides its unit, `position` and perhaps `previous_click`: counts by these
    # columns are sufficient. Empty for models that need whole pages.
    statistics_columns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """E-step: expected trials and successes of each impression by parameter, shape (N, L), given all clicks.

        Without weights; any value where padded.
        """

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1 | c_1 .. c_(r-1)), shape (N, L); any value where padded.

        By default `click_probability`, for models without dependence on the clicks above.
        """
        return self.click_probability(parameters, pages)

    def certain(self, pages: PageBatch) -> Flags:
        """Impressions whose `expected` does not depend on the parameters, summed only once by EM, shape (N, L).

        The first impressions of a page, none or all, such that P(clicks) is the product of their likelihood, x or 1 - x
        of each parameter, and of the probability of the rest as a page of its own.
        """
        return np.zeros(pages.shown.shape, dtype=np.bool_)

    @abstractmethod
    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1), marginal over the clicks above, shape (N, L); does not depend on `pages.click`."""

    def relevance(self, parameters: Parameters) -> Floats | None:
        """Value to rank documents by, shape (J + 1,): attractiveness, times satisfaction if the model has it.

        None for models without parameters by document, and for those by document and position.
        """
        by_unit = [parameters[parameter.name] for parameter in self.parameters if parameter.shape == "unit"]
        return reduce(mul, by_unit) if by_unit and self.unit_columns == PAIR else None

    def sample(self, parameters: Parameters, pages: PageBatch, rng: np.random.Generator) -> Flags:
        """Draw clicks from the top down, shape (N, L)."""
        click = np.zeros(pages.shown.shape, dtype=np.bool_)
        for rank in range(pages.n_ranks):
            probability = self.given_clicks(parameters, pages.with_clicks(click))[:, rank]
            click[:, rank] = (rng.random(pages.n_pages) < probability) & pages.shown[:, rank]
        return click


class ExaminationModel(ClickModel):
    """A click model in which a document must be examined to be clicked. Other models have no propensities."""

    @abstractmethod
    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1 | c_1 .. c_(r-1)), in [0, 1], shape (N, L); any value where padded."""

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Return P(E_r = 1 | clicks above) times attractiveness, shape (N, L)."""
        return self.examination(parameters, pages) * parameters[ATTRACTIVENESS.name][pages.unit]


_LARGEST_CLICK_PROBABILITY = 1 - 1e-9


class FactorisedModel(Plugin):
    """A click model in which examination depends on a cell and attractiveness on the pair.

    P(C_r = 1 | c_1 .. c_(r-1)) = theta_cell * gamma_qd
    """

    reference: ClassVar[str]  # the paper that introduced it
    # The columns of a cell, whole numbers, the position first
    cell_columns: ClassVar[tuple[str, ...]] = (POSITION,)
    needs_session: ClassVar[bool] = False  # whether a cell depends on other impressions of the page

    @property
    def beside_position(self) -> str:
        """Cell columns besides the position, for messages; empty if there are none."""
        columns = [name for name in self.cell_columns if name != POSITION]
        return f"{' and '.join(columns)} (--model {self.name})" if columns else ""

    @abstractmethod
    def with_cells(self, impressions: nw.LazyFrame[IntoLazyFrameT]) -> nw.LazyFrame[IntoLazyFrameT]:
        """Add the cell columns to impressions (session, position, click, ...)."""

    def with_cells_in_memory(self, impressions: pl.DataFrame) -> pl.DataFrame:
        """Add the cell columns to impressions in memory, in any order of rows; subclasses may be faster."""
        return self.with_cells(nw.from_native(impressions.lazy())).to_native().collect()


class FactorisedClickModel(FactorisedModel, ExaminationModel):
    """A factorised model of whole pages, which can be compared with other click models."""

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """Clicks are examined and attractive; without a click, P(E = 1, A = 0) and P(E = 0, A = 1) over 1 - P(click).

        Every impression is a trial of both parameters.
        """
        theta, gamma = self.examination(parameters, pages), parameters[ATTRACTIVENESS.name][pages.unit]
        no_click = 1 - np.minimum(theta * gamma, _LARGEST_CLICK_PROBABILITY)
        one = np.ones(theta.shape)
        return {
            ATTRACTIVENESS.name: Ratio(np.where(pages.click, 1.0, gamma * (1 - theta) / no_click), one),
            THETA: Ratio(np.where(pages.click, 1.0, theta * (1 - gamma) / no_click), one),
        }

    def certain(self, pages: PageBatch) -> Flags:
        """Clicked impressions of single-impression pages: examined and attractive."""
        return pages.click if pages.n_ranks == 1 else super().certain(pages)


_MODELS = Room[FactorisedModel](MODELS, "--model")
_CLICK_MODELS = Room[ClickModel](CLICK_MODELS, "--model")

model_names, get_model = _MODELS.names, _MODELS.get
click_model_names, get_click_model = _CLICK_MODELS.names, _CLICK_MODELS.get
