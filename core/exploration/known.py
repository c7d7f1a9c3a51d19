"""What a fit says about its cells, as curves: one for each context, whose cells are compared with each other."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Flags, Floats, Integers
from posbias.core.errors import LogFormatError
from posbias.core.exploration.curve import NORMAL, Curve, Strata
from posbias.core.fit.shared_clicks import working_theta
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION

_FREE, _UNSHRUNK = "", "unshrunk_"
_STD_ERROR = "std_error"


@dataclass(frozen=True)
class KnownFit:
    """What is read of a fit to say what further pages would tell."""

    table: pl.DataFrame  # `propensities.parquet`, K rows
    context: tuple[str, ...]  # the columns of contexts
    shared: Floats  # the shared clicks, shape (K, K)
    query_spread: float  # tau, the standard deviation of log theta between queries
    effective_clusters: Floats  # G of each cell, shape (K,), NaN where it has none
    strata: Strata  # what becomes of further pages
    n_strata: float  # number of strata

    @property
    def wanted(self) -> dict[str, str]:
        """The columns that are needed, by what they stand for; with contexts, those of each one's own data."""
        of = _UNSHRUNK if self.context else _FREE
        return {name: f"{of}{name}" for name in ("propensity", "ci_low", "ci_high")}

    def check(self, *, where: str) -> None:
        """See that the table is one of a fit.

        Raises:
            LogFormatError: a column is missing, or holds no numbers.
        """
        columns = [*self.wanted.values(), IMPRESSIONS, CLICKS, *(() if self.context else (_STD_ERROR,))]
        for name in columns:
            dtype = self.table.schema.get(name)
            if dtype is None or not (dtype.is_numeric() or dtype == pl.Null):
                raise LogFormatError(f"{where}: has no numbers in a column {name!r}. Run `posbias fit` again.")
        counts = self.table.select(pl.col(IMPRESSIONS, CLICKS).cast(pl.Float64))
        broken = counts.filter(~((pl.col(CLICKS) >= 0) & (pl.col(IMPRESSIONS) > 0) & pl.col(IMPRESSIONS).is_finite()))
        if broken.height or counts.null_count().sum_horizontal().item():
            raise LogFormatError(f"{where}: a cell has no impressions, or no counts. Run `posbias fit` again.")

    def numbers(self, name: str) -> Floats:
        """A column of the table, NaN where nothing is known."""
        return self.table[name].cast(pl.Float64).fill_null(np.nan).to_numpy()

    @property
    def context_of_cell(self) -> Integers:
        """The number of each cell's context, shape (K,)."""
        if not self.context:
            return np.zeros(self.table.height, np.int64)
        return self.table.select(pl.struct(self.context).rle_id()).to_series().to_numpy().astype(np.int64)

    def curves(self) -> list[Curve]:
        """One curve for each context, in the order of the rows."""
        position, context = self.table[POSITION].to_numpy().astype(np.int64), self.context_of_cell
        propensity = self.numbers(self.wanted["propensity"])
        theta = working_theta(propensity, self.numbers(IMPRESSIONS), self.numbers(CLICKS), position, context)
        return [self._curve(context == number, position, propensity, theta) for number in np.unique(context)]

    def _curve(self, cells: Flags, position: Integers, propensity: Floats, theta: Floats) -> Curve:
        impressions, clicks = self.numbers(IMPRESSIONS)[cells], self.numbers(CLICKS)[cells]
        with np.errstate(divide="ignore", invalid="ignore"):
            width = np.log(self.numbers(self.wanted["ci_high"])) - np.log(self.numbers(self.wanted["ci_low"]))
        width = width[cells]
        error = width / (2 * NORMAL) if self.context else self.numbers(_STD_ERROR)[cells]
        known = np.isfinite(width) & np.isfinite(error)
        is_reference = (propensity[cells] == 1) & (width == 0)
        return Curve(
            position=position[cells],
            theta=theta[cells],
            impressions=impressions,
            clicks=clicks,
            shared=self.shared[np.ix_(cells, cells)],
            std_error=np.where(known, error, np.inf),
            width=np.where(known, width, np.inf),
            constant=self.query_spread**2 / self._clusters[cells],
            reference=int(np.argmax(is_reference) if is_reference.any() else np.argmax(clicks)),
            strata=self.strata,
            known_strata=max(1 - self.n_strata / max(float(self.numbers(IMPRESSIONS).sum()), 1.0), 0.0),
        )

    @property
    def _clusters(self) -> Floats:
        """G, where a cell has none that of the others."""
        known = np.isfinite(self.effective_clusters) & (self.effective_clusters >= 1)
        usual = float(np.median(self.effective_clusters[known])) if known.any() else 1.0
        return np.where(known, self.effective_clusters, usual)
