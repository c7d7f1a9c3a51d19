"""Which click model explains pages that contradict the one that was fitted: by held-out clicks of a sample of them.

Every model is fitted to the pages of three sessions in four, and judged by the log-likelihood of the others,

    mean over impressions of log P(c_r | c_1 .. c_(r-1)),

in pairs with the model that was fitted. With the sums d_g of the differences of a query and its n_g impressions, the
standard error of their ratio is the jackknife's over queries, as everywhere: for queries like these.

Source: Chuklin, Markov & de Rijke 2015, chapter 5.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import sum_by_number
from posbias.core.arrays.linalg import student_quantile
from posbias.core.browsing.batch import Floats
from posbias.core.browsing.em import EMOptions, fit
from posbias.core.browsing.frames import MOST_RANKS, UNIT, page_batches
from posbias.core.browsing.in_memory import PagesInMemory
from posbias.core.browsing.likelihood import log_of_clicks
from posbias.core.counts.plan import StatisticsPlan
from posbias.core.models import click_model_names, get_click_model
from posbias.core.models.click_rate import ClickRateModel
from posbias.core.schema import PAIR, POSITION, QUERY, SESSION
from posbias.core.standard_errors.score_test import ratio_of_sums

_HELD_OUT = 4  # one session in so many
_SEED = 3
_PASSES = 60  # of EM: enough to tell models apart, in seconds
_LEVEL = 0.01


@dataclass(frozen=True)
class OtherModel:
    """A model beside the one that was fitted."""

    name: str
    gain: float  # of its held-out log-likelihood per impression over that of the fitted one
    std_error: float  # of the gain, by query


@dataclass(frozen=True)
class OtherModels:
    """The other models, the best first."""

    log_likelihood: float  # of the fitted model, per held-out impression
    impressions: int  # that were held out
    queries: int  # of these
    others: tuple[OtherModel, ...]

    @property
    def better(self) -> OtherModel | None:
        """The best, where it is better than the fitted one by more than chance, however many were tried."""
        if not self.others:
            return None
        best = self.others[0]
        limit = student_quantile(1 - _LEVEL / len(self.others), np.array([self.queries - 1.0]))[0]
        return best if best.gain > limit * best.std_error else None


def can_compare(plan: StatisticsPlan) -> bool:
    """Whether the fitted model is one of those that are judged by pages: without contexts, bins and weights."""
    whole = not (plan.context or plan.position_bins or plan.weighted or plan.summed)
    return whole and plan.model.name in click_model_names()


def compare_models(pages: pl.DataFrame, fitted: str) -> OtherModels | None:
    """Judge the click models that know examination or trust, beside the one that was fitted.

    Args:
        pages: canonical impressions of whole pages.
        fitted: the name of the model.

    Returns:
        None where no session is left to learn from, or fewer than two queries to judge by, and where pages are too long
        for most models.
    """
    if int(pages.group_by(SESSION).len().select(pl.max("len")).item()) > MOST_RANKS:
        return None
    numbered = pages.with_columns((pl.struct(PAIR).rank("dense").cast(pl.Int64) - 1).alias(UNIT))
    held_out = pl.col(SESSION).hash(_SEED) % _HELD_OUT == 0
    learnt, judged = numbered.filter(~held_out), numbered.filter(held_out)
    if not learnt.height or judged[QUERY].n_unique() == 1:
        return None
    n_units, n_positions = int(numbered[UNIT].n_unique()), int(numbered.select(pl.max(POSITION)).item())
    training = PagesInMemory(tuple(page_batches(learnt)), n_units, n_positions)
    names = [name for name in click_model_names() if not isinstance(get_click_model(name), ClickRateModel)]
    names = [fitted, *(name for name in names if name != fitted)]
    batches = page_batches(judged)
    of_unit = numbered.unique(UNIT).sort(UNIT)[QUERY].rank("dense").to_numpy()
    _, query = np.unique(of_unit[np.concatenate([batch.unit[:, 0] for batch in batches])], return_inverse=True)
    weight = np.concatenate([batch.weight for batch in batches])
    number = int(query.max()) + 1
    shown = sum_by_number(query, weight * np.concatenate([batch.shown.sum(axis=1) for batch in batches]), number)
    judged_by = PagesInMemory(tuple(batches), n_units, n_positions)
    own, *theirs = (sum_by_number(query, weight * _by_page(name, training, judged_by), number) for name in names)
    models = [
        OtherModel(name, *ratio_of_sums(of_other - own, shown)[:2])
        for name, of_other in zip(names[1:], theirs, strict=True)
    ]
    return OtherModels(
        log_likelihood=float(own.sum() / shown.sum()),
        impressions=judged.height,
        queries=len(shown),
        others=tuple(sorted(models, key=lambda model: -model.gain)),
    )


def _by_page(name: str, training: PagesInMemory, judged: PagesInMemory) -> Floats:
    """The log-likelihood of each different page under a model."""
    model = get_click_model(name)
    parameters = fit(model, training, EMOptions(passes=_PASSES), lambda: None).parameters
    sums = [log_of_clicks(model.given_clicks(parameters, batch), batch).sum(axis=1) for batch in judged.batches]
    return np.concatenate(sums)
