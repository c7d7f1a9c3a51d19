"""Logarithms of probabilities, bounded away from minus infinity."""

import numpy as np

from posbias.core.browsing.batch import Floats, PageBatch
from posbias.core.browsing.parameters import Ratio

SMALLEST_PROBABILITY = 1e-6
"""Parameters keep this far from 0 and 1: at the ends, EM divides by zero, and a single click would be impossible."""


def within(probability: Floats) -> Floats:
    """Probabilities, kept from 0 and 1."""
    return np.array(np.clip(probability, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY))


def log_of_clicks(given_clicks: Floats, pages: PageBatch) -> Floats:
    """The logarithm of the probability of what happened, click or none, shape (N, L), bounded away from minus infinity.

    Args:
        given_clicks: the probability of a click, shape (N, L).
        pages: with clicks.
    """
    probability = within(given_clicks)
    return np.log(np.where(pages.click, probability, 1 - probability))


def log_of_decisions(decisions: Ratio, values: Floats) -> Floats:
    """The logarithm of x^f (1 - x)^(d - f), in the shape of the parameter.

    Args:
        decisions: d and those in favour, f.
        values: x, strictly between 0 and 1.
    """
    against = decisions.decided - decisions.favourable
    return decisions.favourable * np.log(values) + against * np.log1p(-values)
