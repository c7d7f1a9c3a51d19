"""What pages add to the measures of a click model, once as they are and once for each bootstrap sample of sessions.

In a bootstrap sample every session counts a Poisson(1) number of times, so that sums over parts of a log are made
apart from each other and in bounded memory. The draws are the same for all models: differences are paired.

Sources: Efron 1979; Chamandy et al. 2012 (Poisson bootstrap).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.likelihood import SMALLEST_PROBABILITY, log_of_clicks
from posbias.core.browsing.parameters import Parameters
from posbias.core.models.click_model import ClickModel
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION

EDGES = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0])
"""Of the bins of predicted probability by which calibration is judged."""

_PAGES_AT_ONCE, _NUMBERS_AT_ONCE = 1 << 13, 1 << 23
_UNIT = "unit"


def sample_weights(pages: PageBatch, samples: int, seed: int, number: int) -> Floats:
    """The weights of the pages of a batch, shape (B + 1, N): how often they occurred, then a draw for each sample.

    Args:
        pages: the batch.
        samples: B, bootstrap samples.
        seed: of the draws.
        number: of the batch in the log, so that each has draws of its own.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(number,)))
    weights = np.empty((samples + 1, pages.n_pages))
    weights[0] = pages.weight
    for of_sample in weights[1:]:  # one by one: all at once would be held as whole numbers, too
        of_sample[:] = rng.poisson(pages.weight)
    return weights


class ModelSums:
    """The sums of one model, first over the log as it is, then over each of B bootstrap samples."""

    def __init__(self, samples: int, n_positions: int) -> None:
        shape = samples + 1, n_positions + 1
        self.log_likelihood = np.zeros(samples + 1)  # of the mean over a session's positions of ln P(c_r | above)
        self.marginal = np.zeros(shape)  # by position, of log2 P(C_k = c_k)
        self.given_clicks = np.zeros(shape)  # by position, of log2 P(c_k | clicks above)
        self.impossible = 0.0  # impressions with a click that the model holds impossible
        self.predicted = np.zeros((3, len(EDGES) - 1))  # by bin: predictions, clicks and impressions
        self.squared = 0.0  # predicted minus observed click rate of each unit and position, weighted by impressions
        self.compared = 0.0  # impressions of these


class SharedSums:
    """What is the same for all models."""

    def __init__(self, samples: int, n_positions: int) -> None:
        self.n_positions = n_positions
        self.sessions = np.zeros(samples + 1)
        self.impressions = np.zeros((samples + 1, n_positions + 1))


@dataclass(frozen=True)
class JudgedModel:
    """A model with its parameters."""

    model: ClickModel
    parameters: Parameters


def add_pages(
    judged: Sequence[JudgedModel],
    batches: Sequence[PageBatch],
    weights: Floats,
    sums: Sequence[ModelSums],
    shared: SharedSums,
) -> pl.DataFrame:
    """Add a batch of pages to the sums of all models.

    Args:
        judged: the models.
        batches: the same pages for each of them, numbered by the units of each.
        weights: how often each page counts, shape (B + 1, N).
        sums: of each model.
        shared: of all.

    Returns:
        By `unit` of the first model and `position`: `impressions`, `clicks`, and the clicks predicted by each model.
    """
    rates: list[pl.DataFrame] = []
    n_pages = min(_PAGES_AT_ONCE, _NUMBERS_AT_ONCE // (shared.n_positions + 1))
    for start in range(0, batches[0].n_pages, n_pages):
        some = slice(start, start + n_pages)
        weight = weights[:, some]
        pieces = [batch.some(some) for batch in batches]
        first = pieces[0]
        shared.sessions += weight.sum(axis=1)
        shared.impressions += weight @ _by_position(first.shown.astype(np.float64), first, shared.n_positions)
        predicted = [_add(one, pages, weight, total) for one, pages, total in zip(judged, pieces, sums, strict=True)]
        rates.append(_rates(first, weight[0], predicted))
    return add_up_rates(rates)


def add_up_rates(rates: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Rates of several batches."""
    return pl.concat(rates).group_by(_UNIT, POSITION, maintain_order=True).sum()


def add_rates(rates: pl.DataFrame, sums: Sequence[ModelSums]) -> None:
    """Add how far predicted click rates are off to the sums of all models.

    Args:
        rates: of units that lie in no other such table.
        sums: of each model.
    """
    impressions = rates[IMPRESSIONS].to_numpy()
    observed = rates[CLICKS].to_numpy() / impressions
    for number, total in enumerate(sums):
        off = rates[_predicted(number)].to_numpy() / impressions - observed
        total.squared += float(impressions @ off**2)
        total.compared += float(impressions.sum())


def _add(judged: JudgedModel, pages: PageBatch, weight: Floats, total: ModelSums) -> Floats:
    """Add pages to the sums of a model; its click probabilities whatever was clicked above, shape (N, L)."""
    given = judged.model.given_clicks(judged.parameters, pages)
    marginal = judged.model.click_probability(judged.parameters, pages)
    n_positions = total.marginal.shape[1] - 1
    by_row = log_of_clicks(given, pages) * pages.shown
    total.log_likelihood += weight @ (by_row.sum(axis=1) / np.maximum(pages.shown.sum(axis=1), 1))
    of_marginal = log_of_clicks(marginal, pages) * pages.shown
    total.given_clicks += weight @ _by_position(by_row / np.log(2), pages, n_positions)
    total.marginal += weight @ _by_position(of_marginal / np.log(2), pages, n_positions)
    row_weight = weight[0][:, np.newaxis] * pages.shown
    total.impossible += float((row_weight * (pages.click & (given <= SMALLEST_PROBABILITY))).sum())
    place = np.clip(np.searchsorted(EDGES, given, side="right") - 1, 0, len(EDGES) - 2).ravel()
    for row, values in enumerate((given, pages.click.astype(np.float64), np.ones(given.shape))):
        total.predicted[row] += np.bincount(place, (row_weight * values).ravel(), minlength=len(EDGES) - 1)
    return marginal


def _by_position(values: Floats, pages: PageBatch, n_positions: int) -> Floats:
    """Values by rank as values by position, shape (N, K + 1)."""
    found = np.zeros((pages.n_pages, n_positions + 1))
    rows = np.arange(pages.n_pages)
    for rank in range(pages.n_ranks):
        found[rows, pages.position[:, rank]] += values[:, rank]
    return found


def _rates(pages: PageBatch, weight: Floats, predicted: Sequence[Floats]) -> pl.DataFrame:
    shown = pages.shown
    row_weight = np.broadcast_to(weight[:, np.newaxis], shown.shape)[shown]
    columns = {
        _UNIT: pages.unit[shown],
        POSITION: pages.position[shown],
        IMPRESSIONS: row_weight,
        CLICKS: row_weight * pages.click[shown],
    } | {_predicted(number): row_weight * values[shown] for number, values in enumerate(predicted)}
    return pl.DataFrame(columns).group_by(_UNIT, POSITION, maintain_order=True).sum()


def _predicted(number: int) -> str:
    return f"predicted {number}"
