"""Measures of click models from their sums, with standard errors and paired differences.

    log-likelihood           mean over sessions of the mean over their positions of ln P(c_r | c_1 .. c_(r-1))
    perplexity               mean over positions k of 2^(- mean log2 P(c_k)), whatever was clicked above
    conditional perplexity   the same with P(c_k | clicks above)
    rate error               root mean square of predicted minus observed click rate by (query, document) and position
    calibration error        mean over impressions of |clicks - predicted clicks| of their bin of predicted probability

1 is the perplexity of a model that knows every click, 2 that of a coin.

Sources: Dupret & Piwowarski 2008; Chuklin, Markov & de Rijke 2015, chapter 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.linalg import normal_quantile
from posbias.core.browsing.batch import Floats
from posbias.core.judging.sums import ModelSums, SharedSums

LEVEL = 0.05
"""Of the difference between the best model and all others together."""

LEAST_DIFFERENCE = 5e-6
"""Half of the last decimal of the table, in nats. A click that a model holds impossible counts as one of probability
1e-6: what the bounds on probabilities make of models that are the same comes to a few times 1e-9."""


@dataclass(frozen=True)
class Measured:
    """A measure with its standard error, over bootstrap samples of sessions."""

    value: float
    std_error: float


@dataclass(frozen=True)
class Difference:
    """A model's log-likelihood minus that of the best one."""

    value: float  # <= 0
    std_error: float  # paired
    significant: bool  # whether it is more than chance, the best having been picked out of all


class ModelMeasures:
    """The measures of one model, as above."""

    def __init__(self, sums: ModelSums, shared: SharedSums) -> None:
        self.sums = sums
        impressions = shared.impressions[:, shared.impressions[0] > 0]
        self.log_likelihoods = sums.log_likelihood / np.maximum(shared.sessions, 1)  # shape (B + 1,)
        self.log_likelihood = _measured(self.log_likelihoods)
        self.perplexity, self.perplexity_by_position = _perplexity(sums.marginal, shared, impressions)
        self.conditional_perplexity, self.conditional_perplexity_by_position = _perplexity(
            sums.given_clicks, shared, impressions
        )
        self.rate_error = float(np.sqrt(sums.squared / sums.compared)) if sums.compared else float("nan")
        predicted, clicks, shown = sums.predicted
        self.calibration_error = float(np.abs(clicks - predicted).sum() / max(float(shown.sum()), 1.0))
        self.impossible_clicks = sums.impossible  # their probability counts as 1e-6


def _perplexity(logs: Floats, shared: SharedSums, impressions: Floats) -> tuple[Measured, list[Measured]]:
    """The mean over positions, and that of each position that there is, in their order."""
    by_position = np.exp2(-logs[:, shared.impressions[0] > 0] / np.maximum(impressions, 1e-300))
    drawn = impressions > 0
    mean = np.where(drawn, by_position, 0.0).sum(axis=1) / np.maximum(drawn.sum(axis=1), 1)
    return _measured(mean), [_measured(column) for column in by_position.T]


def positions(shared: SharedSums) -> list[int]:
    """The positions that there are."""
    return [int(position) for position in np.flatnonzero(shared.impressions[0] > 0)]


def by_log_likelihood(measures: Sequence[ModelMeasures]) -> list[int]:
    """The numbers of the models, the best first."""
    return sorted(range(len(measures)), key=lambda number: -measures[number].log_likelihood.value)


def differences(measures: Sequence[ModelMeasures]) -> list[Difference]:
    """The log-likelihood of each model minus that of the best, with paired standard errors.

    The normal quantile is that of Bonferroni's level for as many comparisons as there are others. What is less than the
    table shows is no difference, however small its error.
    """
    best = measures[by_log_likelihood(measures)[0]].log_likelihoods
    limit = -float(normal_quantile(np.array(LEVEL / 2 / max(len(measures) - 1, 1))))
    found: list[Difference] = []
    for one in measures:
        paired = _measured(one.log_likelihoods - best)
        least = max(limit * paired.std_error, LEAST_DIFFERENCE)
        found.append(Difference(paired.value, paired.std_error, bool(-paired.value > least)))
    return found


def _measured(samples: Floats) -> Measured:
    """The value of the log, and the spread of the bootstrap samples."""
    spread = float(np.std(samples[1:], ddof=1)) if len(samples) > 2 else float("nan")  # noqa: PLR2004
    return Measured(float(samples[0]), spread)
