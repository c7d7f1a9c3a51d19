"""Users who go down a page and may leave after each document: what clicks say of how far they went.

    P(E_1 = 1) = 1,  P(C_r = 1 | E_r = 1) = a_r,  P(E_(r+1) = 1 | E_r = 1, C_r = c) = k_r(c),  E_(r+1) = 0 if E_r = 0

k_r(0) after a document that was skipped, k_r(1) after one that was clicked: in these the cascade models differ.

Sources: Craswell et al. 2008; Chuklin, Markov & de Rijke 2015, chapters 3 and 4.
"""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from posbias.core.browsing.batch import Flags, Floats, PageBatch
from posbias.core.browsing.parameters import Parameters, Ratio
from posbias.core.models.click_model import ATTRACTIVENESS, ExaminationModel

_LEAST = 1e-12


@dataclass(frozen=True)
class Posterior:
    """What all clicks of a page say of its user, shape (N, L) each."""

    examined: Floats  # P(E_r = 1 | c)
    went_on: Floats  # P(E_(r+1) = 1 | E_r = 1, c)
    followed: Flags  # whether there is an impression below, so that going on means something


class CascadeModel(ExaminationModel):
    """A model in which a document is examined only after the one above it."""

    @abstractmethod
    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """P(E_(r+1) = 1 | E_r = 1, C_r), after a skip and after a click: k_r(0) and k_r(1), shape (N, L) each."""

    def continued(self, parameters: Parameters, pages: PageBatch, posterior: Posterior) -> dict[str, Ratio]:  # noqa: ARG002 - of models with more parameters
        """What pages say of all parameters but attractiveness, which may stand there where more is said of it."""
        return {}

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """Attractiveness is decided wherever a document was examined, in its favour by a click."""
        posterior = self.posterior(parameters, pages)
        attractiveness = Ratio(pages.click.astype(np.float64), posterior.examined)
        return {ATTRACTIVENESS.name: attractiveness} | self.continued(parameters, pages, posterior)

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1 | c_1 .. c_(r-1)), shape (N, L).

        e_1 = 1, e_(r+1) = k_r(1) after a click, else k_r(0) e_r (1 - a_r) / (1 - e_r a_r).
        """
        attractiveness = self._attractiveness(parameters, pages)
        after_skip, after_click = self.continuation(parameters, pages)
        examined = np.ones(pages.click.shape)
        for rank in range(pages.n_ranks - 1):
            now, a = examined[:, rank], attractiveness[:, rank]
            still = now * (1 - a) / np.maximum(1 - now * a, _LEAST)
            examined[:, rank + 1] = np.where(
                pages.click[:, rank], after_click[:, rank], after_skip[:, rank] * np.minimum(still, 1.0)
            )
        return examined

    def given_clicks(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1 | clicks above) times attractiveness."""
        return self.examination(parameters, pages) * self._attractiveness(parameters, pages)

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1) times attractiveness: e_1 = 1, e_(r+1) = e_r (a_r k_r(1) + (1 - a_r) k_r(0))."""
        a, (after_skip, after_click) = self._attractiveness(parameters, pages), self.continuation(parameters, pages)
        goes_on = a * after_click + (1 - a) * after_skip
        examined = np.ones(a.shape)
        np.cumprod(goes_on[:, :-1], axis=1, out=examined[:, 1:])
        return examined * a

    def posterior(self, parameters: Parameters, pages: PageBatch) -> Posterior:
        """What is to be expected given all clicks of the pages.

        With b_r = P(no click from r on | E_r = 1) = (1 - a_r) (k_r(0) b_(r+1) + 1 - k_r(0)), 1 below the page:
        a user who was at r, with no click below, went on with probability k_r b_(r+1) / (k_r b_(r+1) + 1 - k_r).
        """
        attractiveness = self._attractiveness(parameters, pages)
        after_skip, after_click = self.continuation(parameters, pages)
        click, shown = pages.click, pages.shown
        no_click_below = np.ones(click.shape)
        for rank in range(pages.n_ranks - 1, 0, -1):
            below, skipped = no_click_below[:, rank], after_skip[:, rank]
            quiet = (1 - attractiveness[:, rank]) * (skipped * below + 1 - skipped)
            no_click_below[:, rank - 1] = np.where(shown[:, rank], quiet, 1.0)
        k = np.where(click, after_click, after_skip)
        went_on_unseen = k * no_click_below / np.maximum(k * no_click_below + 1 - k, _LEAST)
        clicked_below = np.zeros(click.shape, dtype=np.bool_)
        clicked_below[:, :-1] = np.logical_or.accumulate(click[:, :0:-1], axis=1)[:, ::-1]
        went_on = np.where(clicked_below, 1.0, went_on_unseen)
        examined = np.ones(click.shape)
        np.cumprod(went_on[:, :-1], axis=1, out=examined[:, 1:])
        followed = np.zeros(click.shape, dtype=np.bool_)
        followed[:, :-1] = shown[:, 1:]
        return Posterior(examined * shown, went_on, followed)

    def sample(self, parameters: Parameters, pages: PageBatch, rng: np.random.Generator) -> Flags:
        """Draw examination and clicks from the top down."""
        attractiveness = self._attractiveness(parameters, pages)
        after_skip, after_click = self.continuation(parameters, pages)
        click = np.zeros(pages.shown.shape, dtype=np.bool_)
        here = np.ones(pages.n_pages, dtype=np.bool_)
        for rank in range(pages.n_ranks):
            drawn = rng.random((2, pages.n_pages))
            clicked = here & pages.shown[:, rank] & (drawn[0] < attractiveness[:, rank])
            click[:, rank] = clicked
            here &= drawn[1] < np.where(clicked, after_click[:, rank], after_skip[:, rank])
        return click

    @staticmethod
    def _attractiveness(parameters: Parameters, pages: PageBatch) -> Floats:
        return parameters[ATTRACTIVENESS.name][pages.unit]
