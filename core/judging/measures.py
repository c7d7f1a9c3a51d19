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
from functools import cached_property

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
    """A model's log-likelihood minus that of the best one.

    Attributes:
        value: <= 0.
        std_error: paired.
        significant: whether it is more than chance, the best having been picked out of all.
    """

    value: float
    std_error: float
    significant: bool


@dataclass(frozen=True)
class ModelMeasures:
    """The measures of one model."""

    sums: ModelSums
    shared: SharedSums

    @cached_property
    def log_likelihood(self) -> Measured:
        """See above."""
        return _measured(self.log_likelihoods)

    @property
    def log_likelihoods(self) -> Floats:
        """Of the log, and of each bootstrap sample, shape (B + 1,)."""
        return self.sums.log_likelihood / np.maximum(self.shared.sessions, 1)

    @cached_property
    def perplexity(self) -> Measured:
        """See above."""
        return _measured(self._mean_perplexity(self.sums.marginal))

    @cached_property
    def conditional_perplexity(self) -> Measured:
        """See above."""
        return _measured(self._mean_perplexity(self.sums.given_clicks))

    @property
    def perplexity_by_position(self) -> list[Measured]:
        """Of the positions that there are, in their order."""
        return [_measured(column) for column in self._perplexity(self.sums.marginal).T]

    @property
    def conditional_perplexity_by_position(self) -> list[Measured]:
        """Likewise."""
        return [_measured(column) for column in self._perplexity(self.sums.given_clicks).T]

    @property
    def rate_error(self) -> float:
        """See above."""
        return float(np.sqrt(self.sums.squared / self.sums.compared)) if self.sums.compared else float("nan")

    @property
    def calibration_error(self) -> float:
        """See above."""
        predicted, clicks, impressions = self.sums.predicted
        return float(np.abs(clicks - predicted).sum() / max(float(impressions.sum()), 1.0))

    @property
    def impossible_clicks(self) -> float:
        """Clicks that the model holds impossible: their probability counts as 1e-6."""
        return self.sums.impossible

    def _perplexity(self, logs: Floats) -> Floats:
        """By sample and position, shape (B + 1, positions)."""
        there = self.shared.impressions[0] > 0
        return np.exp2(-logs[:, there] / np.maximum(self.shared.impressions[:, there], 1e-300))

    def _mean_perplexity(self, logs: Floats) -> Floats:
        drawn = self.shared.impressions[:, self.shared.impressions[0] > 0] > 0
        perplexity = np.where(drawn, self._perplexity(logs), 0.0)
        return perplexity.sum(axis=1) / np.maximum(drawn.sum(axis=1), 1)


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
