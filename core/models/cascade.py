"""The family of the cascade: users go down a page, document by document, and leave sooner or later."""

from abc import abstractmethod

import numpy as np

from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.cascade import Cascade, Posterior
from posbias.core.browsing.parameters import Parameter, Parameters, Ratio
from posbias.core.models.click_model import ExaminationModel

ATTRACTIVENESS = Parameter("attractiveness", "unit")


class CascadeModel(ExaminationModel):
    """A model in which a document is examined only after the one above it; see `posbias.core.browsing.cascade`."""

    @abstractmethod
    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """P(E_(r+1) = 1 | E_r = 1, C_r), after a skip and after a click, shape (N, L) each."""

    @abstractmethod
    def continued(self, parameters: Parameters, pages: PageBatch, posterior: Posterior) -> dict[str, Ratio]:
        """What pages say of all parameters but attractiveness, which may stand there where more is said of it."""

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """Attractiveness is decided wherever a document was examined, in its favour by a click."""
        posterior = self.cascade(parameters, pages).posterior(pages)
        attractiveness = Ratio(pages.click.astype(np.float64), posterior.examined)
        return {ATTRACTIVENESS.name: attractiveness} | self.continued(parameters, pages, posterior)

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1 | clicks above) times attractiveness."""
        cascade = self.cascade(parameters, pages)
        return cascade.examined_given_clicks(pages.click) * cascade.attractiveness

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1) times attractiveness."""
        cascade = self.cascade(parameters, pages)
        return cascade.examined() * cascade.attractiveness

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1 | clicks above)."""
        return self.cascade(parameters, pages).examined_given_clicks(pages.click)

    def relevance(self, parameters: Parameters) -> Floats | None:
        """Attractiveness."""
        return parameters[ATTRACTIVENESS.name]

    def sample(self, parameters: Parameters, pages: PageBatch, rng: np.random.Generator) -> Flags:
        """Draw examination and clicks from the top down."""
        cascade = self.cascade(parameters, pages)
        click = np.zeros(pages.shown.shape, dtype=np.bool_)
        here = np.ones(pages.n_pages, dtype=np.bool_)
        for rank in range(pages.n_ranks):
            drawn = rng.random((2, pages.n_pages))
            clicked = here & pages.shown[:, rank] & (drawn[0] < cascade.attractiveness[:, rank])
            click[:, rank] = clicked
            here &= drawn[1] < np.where(clicked, cascade.after_click[:, rank], cascade.after_skip[:, rank])
        return click

    def cascade(self, parameters: Parameters, pages: PageBatch) -> Cascade:
        """The steps down each page."""
        return Cascade(parameters[ATTRACTIVENESS.name][pages.unit], *self.continuation(parameters, pages))
