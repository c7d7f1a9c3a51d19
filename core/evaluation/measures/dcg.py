"""Discounted cumulative gain: lambda = 1 / log2(1 + rank) in the first K ranks, 0 below, and without a score.

Source: Järvelin & Kekäläinen 2002; of clicks with weights, Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019.
"""

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.evaluation.measures.measure import Measure


class Dcg(Measure):
    """Discounted cumulative gain, up to a depth."""

    name = "dcg"
    label = "DCG"
    reference = "Agarwal et al. 2019"
    gain = True
    cut = True

    def values(self, rank: Integers, scored: Flags, last: Integers, depth: int) -> Floats:  # noqa: ARG002 - has no end
        """Lambda of documents."""
        return np.where(scored & (rank <= depth), 1.0 / np.log2(1.0 + rank), 0.0)
