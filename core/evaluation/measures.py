"""Measures of a ranking by clicks: lambda, by which a click counts at the rank that a ranking gives its document.

    DCG    discounted cumulative gain: lambda = 1 / log2(1 + rank) in the first K ranks, 0 below, and without a score
    ARP    average relevance position: lambda = rank; without a score, the last rank that there is

Sources: Järvelin & Kekäläinen 2002, of clicks with weights Agarwal, Zaitsev, Wang, Li, Najork & Joachims 2019 (DCG);
Joachims, Swaminathan & Schnabel 2017 (the sum of the ranks of what is relevant, from clicks with weights).
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers


@dataclass(frozen=True)
class Measure:
    """A measure."""

    name: str  # in the tables
    label: str  # in words, without the cutoff
    gain: bool  # whether more is better, and only the first K ranks count

    def title(self, depth: int) -> str:
        """In words, e.g. `DCG@10`."""
        return f"{self.label}@{depth}" if self.gain else self.label

    def values(self, rank: Integers, scored: Flags, last: Integers, depth: int) -> Floats:
        """Lambda of documents, each of shape (N,).

        Args:
            rank: among the candidates, from 1.
            scored: whether the ranking holds the document; it has a rank only then.
            last: what counts as the last rank there.
            depth: K.
        """
        if self.gain:
            return np.where(scored & (rank <= depth), 1.0 / np.log2(1.0 + rank), 0.0)
        return np.where(scored, rank, last).astype(np.float64)


MEASURES = DCG, ARP = Measure("dcg", "DCG", gain=True), Measure("arp", "ARP", gain=False)
"""All of them, in the order of tables."""
