"""Average relevance position: lambda = rank; without a score, the last rank that there is.

Source: Joachims, Swaminathan & Schnabel 2017 (the sum of the ranks of what is relevant, from clicks with weights).
"""

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.evaluation.measures.measure import Measure


class Arp(Measure):
    """Average relevance position: less is better."""

    name = "arp"
    label = "ARP"
    reference = "Joachims, Swaminathan & Schnabel 2017"
    gain = False
    cut = False

    def values(self, rank: Integers, scored: Flags, last: Integers, depth: int) -> Floats:  # noqa: ARG002 - all count
        """Lambda of documents."""
        return np.where(scored, rank, last).astype(np.float64)
