"""Users who go down a page and may leave after each document: what clicks say of how far they went.

    P(E_1 = 1) = 1,  P(C_r = 1 | E_r = 1) = a_r,  P(E_(r+1) = 1 | E_r = 1, C_r = c) = k_r(c),  E_(r+1) = 0 if E_r = 0

k_r(0) after a document that was skipped, k_r(1) after one that was clicked: in these the cascade models differ.

Sources: Craswell et al. 2008; Chuklin, Markov & de Rijke 2015, chapters 3 and 4.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.browsing.batch import Flags, Floats, PageBatch

_LEAST = 1e-12


@dataclass(frozen=True)
class Cascade:
    """The probabilities of a user's steps down each page, all of shape (N, L).

    Attributes:
        attractiveness: a_r.
        after_skip: k_r(0).
        after_click: k_r(1).
    """

    attractiveness: Floats
    after_skip: Floats
    after_click: Floats

    def examined_given_clicks(self, click: Flags) -> Floats:
        """P(E_r = 1 | c_1 .. c_(r-1)), shape (N, L).

        e_1 = 1, e_(r+1) = k_r(1) after a click, else k_r(0) e_r (1 - a_r) / (1 - e_r a_r).
        """
        examined = np.ones(click.shape)
        for rank in range(click.shape[1] - 1):
            now, a = examined[:, rank], self.attractiveness[:, rank]
            still = now * (1 - a) / np.maximum(1 - now * a, _LEAST)
            examined[:, rank + 1] = np.where(
                click[:, rank], self.after_click[:, rank], self.after_skip[:, rank] * np.minimum(still, 1.0)
            )
        return examined

    def examined(self) -> Floats:
        """P(E_r = 1), shape (N, L): e_1 = 1, e_(r+1) = e_r (a_r k_r(1) + (1 - a_r) k_r(0))."""
        a = self.attractiveness
        goes_on = a * self.after_click + (1 - a) * self.after_skip
        examined = np.ones(a.shape)
        np.cumprod(goes_on[:, :-1], axis=1, out=examined[:, 1:])
        return examined

    def posterior(self, pages: PageBatch) -> "Posterior":
        """What is to be expected given all clicks of the pages.

        With b_r = P(no click from r on | E_r = 1) = (1 - a_r) (k_r(0) b_(r+1) + 1 - k_r(0)), 1 below the page:
        a user who was at r, with no click below, went on with probability k_r b_(r+1) / (k_r b_(r+1) + 1 - k_r).
        """
        click, shown = pages.click, pages.shown
        no_click_below = np.ones(click.shape)
        for rank in range(pages.n_ranks - 1, 0, -1):
            below = no_click_below[:, rank]
            skipped = self.after_skip[:, rank]
            quiet = (1 - self.attractiveness[:, rank]) * (skipped * below + 1 - skipped)
            no_click_below[:, rank - 1] = np.where(shown[:, rank], quiet, 1.0)
        k = np.where(click, self.after_click, self.after_skip)
        went_on_unseen = k * no_click_below / np.maximum(k * no_click_below + 1 - k, _LEAST)
        clicked_below = np.zeros(click.shape, dtype=np.bool_)
        clicked_below[:, :-1] = np.logical_or.accumulate(click[:, :0:-1], axis=1)[:, ::-1]
        went_on = np.where(clicked_below, 1.0, went_on_unseen)
        examined = np.ones(click.shape)
        np.cumprod(went_on[:, :-1], axis=1, out=examined[:, 1:])
        followed = np.zeros(click.shape, dtype=np.bool_)
        followed[:, :-1] = shown[:, 1:]
        return Posterior(examined * shown, went_on, followed)


@dataclass(frozen=True)
class Posterior:
    """What all clicks of a page say of its user, shape (N, L) each.

    Attributes:
        examined: P(E_r = 1 | c).
        went_on: P(E_(r+1) = 1 | E_r = 1, c).
        followed: whether there is an impression below, so that going on means something.
    """

    examined: Floats
    went_on: Floats
    followed: Flags
