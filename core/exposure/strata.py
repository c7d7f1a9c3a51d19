"""Strata of rows that are alike, and the conditional likelihood on them with exposure in the place of impressions.

A stratum b holds the rows of one fold and one context whose relevance f and place lie between the same quantiles:
`QUANTILES` of each. With the exposure E_bk = sum of g over its rows in cell k (g = 1 / (1 + exp(-f))) and its clicks
C_b,

    l(beta) = sum_b { sum_k c_bk beta_k - C_b log sum_k E_bk exp(beta_k) }

is the conditional likelihood with n := E, which is also that of a Poisson regression with a constant for each stratum
and the offset log E_bk. It is right if either f or the place is: within a stratum, what is left of a document's
relevance must not go with its position.

Source: Chernozhukov et al. 2018 (cross-fitting); Rosenbaum & Rubin 1984 (strata of what decides the position).
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from posbias.core.arrays.count_table import CountTable, Floats, Integers, starts, sum_by_number
from posbias.core.exposure.cross_fitting import FOLDS

QUANTILES = 20

FEWEST_ROWS = 25
"""In a stratum, on average: of fewer rows, fewer quantiles are taken."""


@dataclass(frozen=True)
class StratumEdges:
    """Where strata end: the inner quantiles of f and of the place in each fold, shape (J, B - 1), ascending."""

    relevance: Floats
    place: Floats

    @classmethod
    def of(cls, scores: Floats, places: Floats, fold: Integers) -> Self:
        """The quantiles of some rows, each array of shape (n,)."""
        smallest = int(np.bincount(fold, minlength=FOLDS).min())
        bins = max(1, min(QUANTILES, int(np.sqrt(smallest / FEWEST_ROWS))))
        return cls(_quantiles(scores, fold, bins), _quantiles(places, fold, bins))

    @property
    def n_strata(self) -> int:
        """Number of strata of one context."""
        return FOLDS * self._bins**2

    @property
    def _bins(self) -> int:
        return self.relevance.shape[1] + 1

    def stratum(self, scores: Floats, places: Floats, fold: Integers) -> Integers:
        """The number of each row's stratum within its context, shape (n,)."""
        found = np.zeros(len(fold), np.int64)
        for one in range(FOLDS):
            rows = np.flatnonzero(fold == one)
            by_relevance = np.searchsorted(self.relevance[one], scores[rows], side="right")
            by_place = np.searchsorted(self.place[one], places[rows], side="right")
            found[rows] = (one * self._bins + by_relevance) * self._bins + by_place
        return found


def _quantiles(values: Floats, fold: Integers, bins: int) -> Floats:
    inner = np.arange(1, bins) / bins
    found = [np.quantile(values[fold == one], inner) if (fold == one).any() else inner for one in range(FOLDS)]
    return np.stack(found).astype(np.float64)


@dataclass(frozen=True)
class ScoredRows:
    """Rows as the likelihood needs them, each array of shape (n,)."""

    stratum: Integers  # number of the row's stratum within its context
    cell: Integers  # number of its cell, which tells its context
    exposure: Floats  # g, in (0, 1)
    click: Floats  # 0 or 1
    weight: Floats  # > 0


@dataclass(frozen=True)
class ExposureCounts:
    """Exposure and clicks by stratum and cell; those of two parts of a log add up."""

    exposure: Floats  # weighted sum of g, shape (S, K)
    clicks: Floats  # weighted sum of clicks, shape (S, K)

    @classmethod
    def of(cls, rows: ScoredRows, n_strata: int, n_cells: int) -> Self:
        """Of some rows."""
        number, shape = rows.stratum * n_cells + rows.cell, (n_strata, n_cells)
        length = n_strata * n_cells
        return cls(
            sum_by_number(number, rows.weight * rows.exposure, length).reshape(shape),
            sum_by_number(number, rows.weight * rows.click, length).reshape(shape),
        )

    def __add__(self, other: "ExposureCounts") -> "ExposureCounts":
        return ExposureCounts(self.exposure + other.exposure, self.clicks + other.clicks)

    def table(self, context: Integers) -> CountTable:
        """As a table whose units are stratum by stratum within context by context: number c S + b.

        Args:
            context: the number of each cell's context, from 0, shape (K,).
        """
        n_strata = len(self.exposure)
        stratum, cell = np.nonzero(self.exposure)
        unit = context[cell] * n_strata + stratum
        order = np.lexsort((cell, unit))
        n_units = n_strata * (int(context.max()) + 1)
        found = stratum[order], cell[order]
        return CountTable(
            n_cells=len(context),
            start=starts(np.bincount(unit, minlength=n_units)),
            cell=cell[order].astype(np.int64),
            impressions=self.exposure[found],
            clicks=self.clicks[found],
            multiplicity=np.ones(n_units),
        )
