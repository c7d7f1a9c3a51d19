"""Cascade models: users go down a page and may leave after each document.

    P(E_1 = 1) = 1,  P(C_r = 1 | E_r = 1) = a_r,  P(E_(r+1) = 1 | E_r = 1, C_r = c) = k_r(c),  E_(r+1) = 0 if E_r = 0

The models differ in the probability of continuation after a skipped document, k_r(0), and after a click, k_r(1).

Sources: Craswell et al. 2008; Chuklin, Markov & de Rijke 2015, chapters 3 and 4.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from posbias.core.models import ATTRACTIVENESS, ExaminationModel
from posbias.core.models.page_matrices import Flags, Floats, PageBatch, Parameter, Parameters, Ratio, at_position
from posbias.core.schema import POSITION, PREVIOUS_CLICK

_LEAST = 1e-12


@dataclass(frozen=True)
class StatePosterior:
    """Posterior of examination and continuation given all clicks of a page, shape (N, L) each."""

    examined: Floats  # P(E_r = 1 | c)
    went_on: Floats  # P(E_(r+1) = 1 | E_r = 1, c)
    followed: Flags  # whether there is an impression below, without which continuation has no trial


class CascadeModel(ExaminationModel):
    """A model in which a document is examined only if the document above was."""

    certain_above_click: ClassVar[bool] = False  # whether impressions above the last click of a page are certain
    leaves_after_skip: ClassVar[bool] = True  # otherwise pages without clicks are certain, too

    @abstractmethod
    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """k_r(0) and k_r(1), shape (N, L) each."""

    def other_ratios(self, parameters: Parameters, pages: PageBatch, posterior: StatePosterior) -> dict[str, Ratio]:  # noqa: ARG002 - of models with more parameters
        """Trials and successes of all parameters but attractiveness, which they may replace."""
        return {}

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """Examined documents are trials of attractiveness, clicks are successes."""
        posterior = self.posterior(parameters, pages)
        attractiveness = Ratio(pages.click.astype(np.float64), posterior.examined)
        return {ATTRACTIVENESS.name: attractiveness} | self.other_ratios(parameters, pages, posterior)

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """P(E_r = 1 | c_1 .. c_(r-1)), shape (N, L).

        e_1 = 1, e_(r+1) = k_r(1) after a click, else k_r(0) e_r (1 - a_r) / (1 - e_r a_r).
        """
        attractiveness = parameters[ATTRACTIVENESS.name][pages.unit]
        after_skip, after_click = self.continuation(parameters, pages)
        examined = np.ones(pages.click.shape)
        for rank in range(pages.n_ranks - 1):
            e, a = examined[:, rank], attractiveness[:, rank]
            skipped = np.minimum(e * (1 - a) / np.maximum(1 - e * a, _LEAST), 1.0)
            examined[:, rank + 1] = np.where(pages.click[:, rank], after_click[:, rank], after_skip[:, rank] * skipped)
        return examined

    def click_probability(self, parameters: Parameters, pages: PageBatch) -> Floats:
        """Return e_r a_r, with e_1 = 1, e_(r+1) = e_r (a_r k_r(1) + (1 - a_r) k_r(0)), shape (N, L)."""
        a, (after_skip, after_click) = parameters[ATTRACTIVENESS.name][pages.unit], self.continuation(parameters, pages)
        goes_on = a * after_click + (1 - a) * after_skip
        examined = np.ones(a.shape)
        np.cumprod(goes_on[:, :-1], axis=1, out=examined[:, 1:])
        return examined * a

    def posterior(self, parameters: Parameters, pages: PageBatch) -> StatePosterior:
        """The posterior given all clicks of the pages.

        With b_r = P(no click from r on | E_r = 1) = (1 - a_r) (k_r(0) b_(r+1) + 1 - k_r(0)), 1 below the page:
        without a click below r, P(E_(r+1) = 1 | E_r = 1, c) = k_r b_(r+1) / (k_r b_(r+1) + 1 - k_r); else it is 1.
        """
        attractiveness = parameters[ATTRACTIVENESS.name][pages.unit]
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
        return StatePosterior(examined * shown, went_on, followed)

    def certain(self, pages: PageBatch) -> Flags:
        """Impressions above the last click of a page; all of pages without clicks if nobody leaves after a skip."""
        if not self.certain_above_click:
            return super().certain(pages)
        clicks_from = np.cumsum(pages.click[:, ::-1], axis=1, dtype=np.int64)[:, ::-1]  # on the impression and below
        above_last_click = clicks_from - pages.click > 0
        if self.leaves_after_skip:
            return above_last_click
        return above_last_click | (pages.shown & (clicks_from[:, :1] == 0))

    def sample(self, parameters: Parameters, pages: PageBatch, rng: np.random.Generator) -> Flags:
        """Draw examination and clicks from the top down."""
        attractiveness = parameters[ATTRACTIVENESS.name][pages.unit]
        after_skip, after_click = self.continuation(parameters, pages)
        click = np.zeros(pages.shown.shape, dtype=np.bool_)
        examines = np.ones(pages.n_pages, dtype=np.bool_)
        for rank in range(pages.n_ranks):
            drawn = rng.random((2, pages.n_pages))
            clicked = examines & pages.shown[:, rank] & (drawn[0] < attractiveness[:, rank])
            click[:, rank] = clicked
            examines &= drawn[1] < np.where(clicked, after_click[:, rank], after_skip[:, rank])
        return click


class CascadeOfOneClickModel(CascadeModel):
    """CM: k(0) = 1, k(1) = 0. Second clicks on a page are impossible."""

    name = "cm"
    reference = "Craswell et al. 2008 (WSDM)"
    about = "users go down to the first click, and leave"
    parameters = (ATTRACTIVENESS,)
    closed_form = True
    statistics_columns = (POSITION, PREVIOUS_CLICK)

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:  # noqa: ARG002 - fixed
        """Return k(0) = 1 and k(1) = 0."""
        return np.ones(pages.unit.shape), np.zeros(pages.unit.shape)

    def examination(self, parameters: Parameters, pages: PageBatch) -> Floats:  # noqa: ARG002 - not estimated
        """Return 1 down to the first click, then 0."""
        return ((pages.previous_click == 0) & pages.shown).astype(np.float64)

    def expected(self, parameters: Parameters, pages: PageBatch) -> dict[str, Ratio]:
        """Impressions down to the first click are trials; impressions and clicks below are ignored."""
        examined = self.examination(parameters, pages)
        return {ATTRACTIVENESS.name: Ratio(pages.click * examined, examined)}


CONTINUATION_BY_POSITION = Parameter("continuation", "position")


class DependentClickModel(CascadeModel):
    """DCM: k(0) = 1, k(1) = lambda_k, k the position.

    By EM. The closed form of the paper assumes that users who do not click again left at the last click: its lambda is
    too small, and its attractiveness too large, on any number of pages.
    """

    name = "dcm"
    reference = "Guo, Liu & Wang 2009 (WSDM), by maximum likelihood"
    about = "users go on after a click, as often as its position says"
    parameters = (ATTRACTIVENESS, CONTINUATION_BY_POSITION)
    certain_above_click, leaves_after_skip = True, False

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """Return k(0) = 1 and k(1) = lambda of the position."""
        return np.ones(pages.unit.shape), at_position(parameters[CONTINUATION_BY_POSITION.name], pages.position)

    def other_ratios(self, parameters: Parameters, pages: PageBatch, posterior: StatePosterior) -> dict[str, Ratio]:  # noqa: ARG002 - in the posterior
        """Clicks with a document below are trials of lambda."""
        trials = (pages.click & posterior.followed).astype(np.float64)
        return {CONTINUATION_BY_POSITION.name: Ratio(trials * posterior.went_on, trials)}


AFTER_SKIP = Parameter("continuation_after_skip", "one", start=0.9)
AFTER_IRRELEVANT = Parameter("continuation_after_irrelevant_click", "one", start=0.7)
AFTER_RELEVANT = Parameter("continuation_after_relevant_click", "one", start=0.3)


class ClickChainModel(CascadeModel):
    """CCM: k(0) = tau_1, k(1) = tau_2 (1 - a_qd) + tau_3 a_qd.

    Attractiveness and relevance are the same here: a clicked document is relevant with probability a_qd, so that
    continuation after a click is informative on a_qd, too.
    """

    name = "ccm"
    reference = "Guo et al. 2009 (WWW), by EM (Chuklin, Markov & de Rijke 2015)"
    about = "users go on after a click, the less often the better the document"
    parameters = (ATTRACTIVENESS, AFTER_SKIP, AFTER_IRRELEVANT, AFTER_RELEVANT)

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """Return k(0) = tau_1 and k(1) = tau_2 (1 - a) + tau_3 a."""
        skipped, irrelevant, relevant = (
            float(parameters[tau.name]) for tau in (AFTER_SKIP, AFTER_IRRELEVANT, AFTER_RELEVANT)
        )
        a = parameters[ATTRACTIVENESS.name][pages.unit]
        return np.full(a.shape, skipped), irrelevant * (1 - a) + relevant * a

    def other_ratios(self, parameters: Parameters, pages: PageBatch, posterior: StatePosterior) -> dict[str, Ratio]:
        """Clicks with a document below are a second trial of attractiveness, and trials of tau_2 or tau_3.

        P(relevant, went on | c) and P(relevant, left | c) follow from P(went on | c).
        """
        irrelevant, relevant = (float(parameters[tau.name]) for tau in (AFTER_IRRELEVANT, AFTER_RELEVANT))
        mask = pages.click & posterior.followed
        a, on = parameters[ATTRACTIVENESS.name][pages.unit[mask]], posterior.went_on[mask]
        k = irrelevant * (1 - a) + relevant * a
        relevant_on, relevant_off = on * a * relevant / k, (1 - on) * a * (1 - relevant) / (1 - k)

        def unmasked(values: Floats) -> Floats:
            array = np.zeros(mask.shape)
            array[mask] = values
            return array

        clicked, was_relevant = mask.astype(np.float64), unmasked(relevant_on + relevant_off)
        skipped = posterior.examined * (posterior.followed & ~pages.click)
        return {
            ATTRACTIVENESS.name: Ratio(pages.click + was_relevant, posterior.examined + clicked),
            AFTER_SKIP.name: Ratio(skipped * posterior.went_on, skipped),
            AFTER_IRRELEVANT.name: Ratio(unmasked(on - relevant_on), clicked - was_relevant),
            AFTER_RELEVANT.name: Ratio(unmasked(relevant_on), was_relevant),
        }


SATISFACTION = Parameter("satisfaction", "unit")
CONTINUATION = Parameter("continuation", "one", start=0.9)


class DynamicBayesianNetworkModel(CascadeModel):
    """DBN: k(0) = gamma, k(1) = gamma (1 - s_qd)."""

    name = "dbn"
    reference = "Chapelle & Zhang 2009 (WWW)"
    about = "users go on until a document satisfies them, or they have had enough"
    parameters = (ATTRACTIVENESS, SATISFACTION, CONTINUATION)
    certain_above_click = True  # users went on past all impressions above the last click, unsatisfied

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """Return k(0) = gamma and k(1) = gamma (1 - s)."""
        gamma = float(parameters[CONTINUATION.name])
        return np.full(pages.unit.shape, gamma), gamma * (1 - parameters[SATISFACTION.name][pages.unit])

    def other_ratios(self, parameters: Parameters, pages: PageBatch, posterior: StatePosterior) -> dict[str, Ratio]:
        """P(satisfied | click, left) = s / (1 - k(1)); clicks that do not satisfy, and skips, are trials of gamma."""
        gamma, s = float(parameters[CONTINUATION.name]), parameters[SATISFACTION.name][pages.unit]
        clicked = (pages.click & posterior.followed).astype(np.float64)
        skipped = posterior.examined * posterior.followed * ~pages.click
        satisfied = clicked * (1 - posterior.went_on) * s / (1 - gamma * (1 - s))
        return {
            SATISFACTION.name: Ratio(satisfied, clicked),
            CONTINUATION.name: Ratio((clicked + skipped) * posterior.went_on, clicked - satisfied + skipped),
        }


class SimplifiedDBNModel(DynamicBayesianNetworkModel):
    """SDBN: k(0) = 1, k(1) = 1 - s_qd.

    By EM. The closed form of the paper assumes that users who do not click again were satisfied by the last click: its
    satisfaction and attractiveness are too large, on any number of pages.
    """

    name = "sdbn"
    reference = "Chapelle & Zhang 2009 (WWW), by maximum likelihood"
    about = "users go on until a document satisfies them"
    parameters = (ATTRACTIVENESS, SATISFACTION)
    leaves_after_skip = False

    def continuation(self, parameters: Parameters, pages: PageBatch) -> tuple[Floats, Floats]:
        """Return k(0) = 1 and k(1) = 1 - s."""
        return np.ones(pages.unit.shape), 1 - parameters[SATISFACTION.name][pages.unit]

    def other_ratios(self, parameters: Parameters, pages: PageBatch, posterior: StatePosterior) -> dict[str, Ratio]:  # noqa: ARG002 - in the posterior
        """Clicks with a document below are trials of satisfaction."""
        trials = (pages.click & posterior.followed).astype(np.float64)
        return {SATISFACTION.name: Ratio(trials * (1 - posterior.went_on), trials)}
