"""Between scores and probabilities."""

from importlib import import_module
from typing import cast

from posbias.core.arrays.count_table import Floats


def sigmoid(scores: Floats) -> Floats:
    """1 / (1 + exp(-f)), without overflow."""
    return cast("Floats", import_module("scipy.special").expit(scores))


def logit(probability: float) -> float:
    """log(p / (1 - p)) of a probability between 0 and 1."""
    return float(import_module("scipy.special").logit(probability))
