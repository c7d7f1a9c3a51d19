"""What the units of a table stand for, and how that falls into clusters."""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.count_table import Integers, Numbers
from posbias.core.arrays.linalg import Sparse, counted


@dataclass(frozen=True)
class Members:
    """The members of units, each in a cluster: of equal pairs or strata a table keeps one unit, and all are members."""

    unit: Numbers  # shape (N,), the unit (signature) of each member, in 0 .. J - 1
    cluster: Numbers  # shape (N,), what it shares its errors with, as a rule its query; any whole numbers

    def among(self, units: Integers) -> "Members":
        """The members of the given units, shape (U,), which are numbered 0 .. U - 1 in that order."""
        number = np.full(max(int(self.unit.max(initial=-1)), int(units.max(initial=-1))) + 1, -1)
        number[units] = np.arange(len(units))
        unit = number[self.unit]
        return Members(unit[unit >= 0], self.cluster[unit >= 0])

    def by_cluster(self) -> "Members":
        """The members sorted by cluster, with the clusters numbered from 0."""
        _, cluster = np.unique(self.cluster, return_inverse=True)
        order = np.argsort(cluster, kind="stable")
        return Members(self.unit[order], cluster[order])

    def counted(self, n_units: int) -> tuple[Integers, Sparse]:
        """The clusters, ascending, shape (G,), and how many members of each unit each of them holds, shape (G, J)."""
        clusters, row = np.unique(self.cluster, return_inverse=True)
        unit = self.unit.astype(np.int64, copy=False)
        return clusters.astype(np.int64, copy=False), counted(row, unit, (len(clusters), n_units))
