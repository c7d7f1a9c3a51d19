"""What every click model answers, whatever its examination depends on."""

from abc import abstractmethod
from functools import reduce
from operator import mul
from typing import ClassVar

import numpy as np

from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio
from posbias.core.registry import Plugin
from posbias.core.schema import PAIR

ATTRACTIVENESS = Parameter("attractiveness", "unit")


class ClickModel(Plugin):
    """A model of the clicks on a results page, from the top down.

    All its parameters are probabilities that are decided by impressions, so that EM divides, for each of them, the
    expected number of decisions in its favour by that of all (`expected`). Where these do not depend on the parameters
    (`closed_form`), the first division is the maximum of the likelihood.
    """

    reference: ClassVar[str]  # the paper that is followed
    about: ClassVar[str]  # what it says, in a line of help
    parameters: ClassVar[tuple[Parameter, ...]]  # them, by their names
    unit_columns: ClassVar[tuple[str, ...]] = PAIR  # what has a parameter by unit of its own
    closed_form: ClassVar[bool] = False  # whether one pass over the log estimates it
    # What a click depends on beside its unit, `position` and perhaps `previous_click`, where it depends on nothing
    # else on its page, so that impressions can be counted whatever page they are on, and the model be fitted from
    # statistics that tell these apart; none where it needs whole pages
    statistics_columns: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """By parameter, what pages say of it given all their clicks: the expectation step, not yet weighted.

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
        """Which impressions say the same whatever the parameters, so that EM need ask them only once, shape (N, L).

        On each page the top, nothing or all: so that P(clicks) is the product of what these decide, x or 1 - x of
        each parameter, and of the probability of the rest of the page, from its first impression on, as if it were a
        page of its own.
        """
        return np.zeros(pages.shown.shape, dtype=np.bool_)

    @abstractmethod
    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(C_r = 1) whatever was clicked above, shape (N, L); the clicks of the pages are not looked at."""

    def relevance(self, parameters: Parameters) -> Floats | None:
        """By what documents are ranked, shape (J + 1,): attractiveness, times satisfaction where the model has it.

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
