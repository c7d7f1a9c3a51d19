"""Standard errors clustered two ways at once, by query and by a column of the log that cuts across queries.

With V_q, V_c and V_qc the covariances of log theta clustered by query, by column, and by what both have in common,

    V = V_q + V_c - V_qc

with negative eigenvalues set to 0 (Cameron, Gelbach & Miller 2011). Where few clusters leave a variance below that of
one way alone, it is raised to that, and its covariances with it (MacKinnon, Nielsen & Webb 2024). Each cell has the
degrees of freedom of the way that has fewer.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats
from posbias.core.arrays.linalg import student_quantile
from posbias.core.standard_errors.leave_one_out import AGREEMENT, CONFIDENCE, ClusterSums


@dataclass(frozen=True)
class TwoWaySums:
    """The sums over the clusters of each way, and over those of both at once."""

    query: ClusterSums
    column: ClusterSums
    both: ClusterSums

    @property
    def covariance(self) -> Floats:
        """V, shape (F, F), in an array of its own."""
        return self._covariance.copy()

    @property
    def variance(self) -> Floats:
        """V_kk, shape (F,)."""
        return np.diag(self._covariance)

    @cached_property
    def _covariance(self) -> Floats:
        ways = self.query.covariance, self.column.covariance
        values, vectors = np.linalg.eigh(ways[0] + ways[1] - self.both.covariance)
        covariance = (vectors * np.maximum(values, 0.0)) @ vectors.T
        variance = np.diag(covariance)
        one_way = np.maximum(np.diag(ways[0]), np.diag(ways[1]))
        if not (variance > 0).all():  # nothing to raise: what one way says
            covariance, variance = covariance + np.diag(one_way), variance + one_way
        with np.errstate(divide="ignore", invalid="ignore"):
            raised = np.where(variance > 0, np.sqrt(np.maximum(one_way / variance, 1.0)), 1.0)
        return covariance * np.outer(raised, raised)

    @property
    def agreeing(self) -> Flags:
        """Cells on which the clusters agree to the last click, shape (F,)."""
        return self.variance <= AGREEMENT**2

    @property
    def alone(self) -> Flags:
        """Cells that one query, or one value of the column, alone identifies, shape (F,)."""
        return self.query.alone | self.column.alone

    @property
    def effective_clusters(self) -> Floats:
        """The lower G*_k of the two ways, shape (F,)."""
        return np.minimum(self.query.effective_clusters, self.column.effective_clusters)

    @property
    def degrees(self) -> Floats:
        """nu_k, degrees of freedom, shape (F,)."""
        return np.minimum(self.query.degrees, self.column.degrees)

    @property
    def quantile(self) -> Floats:
        """t_{.975, nu_k}, shape (F,)."""
        return student_quantile((1 + CONFIDENCE) / 2, self.degrees)

    @property
    def n_clusters(self) -> int:
        """The number of clusters of the way that has fewer."""
        return min(self.query.n_clusters, self.column.n_clusters)
