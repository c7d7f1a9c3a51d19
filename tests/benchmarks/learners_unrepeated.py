"""The logs of `value.py` as if no (query, document) pair were ever shown twice: personal search, or fresh items.

Every impression is a document of its own, on a page that is its own query. Its features are those of the document times
1 + noise / 10, so that no row is an id. Propensities are those of `fit --method features`.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from value_measure import CONDITIONAL, JOINT, NAIVE, TRUE
from value_worlds import Floats, Fold

from posbias.core.arrays.count_table import CountTable
from posbias.core.exposure.nuisances import LearningRows, learn_nuisances, tree_options
from posbias.core.exposure.regression_em import regression_em
from posbias.core.exposure.strata import ExposureCounts, ScoredRows, StratumEdges
from posbias.core.learners.boosting import BinnedRows, bin_rows
from posbias.core.learners.data import Features, LearningData, Pages
from posbias.core.learners.links import sigmoid
from posbias.core.theta.conditional import fit_conditional
from posbias.core.theta.linkage import find_linkage

_JITTER = 0.1
_SERIES = 11  # of random draws


@dataclass(frozen=True)
class Unrepeated:
    """The impressions of a log, each a document of its own.

    Attributes:
        features: of each, shape (N, F).
        page: of each, ascending, shape (N,).
        cell: where it stood, shape (N,).
        click: shape (N,).
    """

    features: Floats
    page: np.ndarray[tuple[int], np.dtype[np.int64]]
    cell: np.ndarray[tuple[int], np.dtype[np.int64]]
    click: Floats

    @classmethod
    def of(cls, fold: Fold, seed: int) -> "Unrepeated":
        """Make every impression of a log its own document."""
        log = fold.log.sort("session", "position")
        rng = np.random.default_rng(np.random.SeedSequence([_SERIES, seed]))
        shown = fold.documents.features[log["doc"].to_numpy()].astype(np.float64)
        page, cell, click = (
            log.select(pl.col("session").rle_id().cast(pl.Int64), pl.col("position") - 1, "click")[:, number].to_numpy()
            for number in range(3)
        )
        features = shown * (1 + _JITTER * rng.standard_normal(shown.shape))
        return cls(features, page, cell.astype(np.int64), click.astype(np.float64))

    def data(self, theta: Floats) -> LearningData:
        """As learners see it, with propensities relative to the first position."""
        n_rows, n_cells = len(self.cell), len(theta)
        names = tuple(f"f{number}" for number in range(self.features.shape[1]))
        return LearningData(
            query=self.page,
            held_out=np.zeros(n_rows, np.bool_),
            counts=CountTable(n_cells, np.arange(n_rows + 1), self.cell, np.ones(n_rows), self.click, np.ones(n_rows)),
            examination=theta / np.nanmax(theta),
            position=np.arange(1, n_cells + 1),
            features=Features(self.features, names),
            pages=Pages(
                np.append(np.flatnonzero(np.diff(self.page, prepend=-1)), n_rows),
                np.arange(n_rows),
                self.cell,
                self.click,
            ),
        )

    def propensities(self, truth: Floats, seed: int) -> dict[str, Floats]:
        """Propensities by where they come from: the place of the conditional ones is taken by those from features."""
        draws = np.random.default_rng(np.random.SeedSequence([_SERIES, seed, 1]))
        n_pages = int(self.page[-1]) + 1
        rows = LearningRows(
            self.cell,
            self.click,
            np.ones(len(self.cell)),
            draws.integers(2, size=n_pages)[self.page],
            np.arange(1, len(truth) + 1),
            np.zeros(len(truth), np.int64),
        )
        names = [f"f{number}" for number in range(self.features.shape[1])]
        binned = bin_rows(self.features, names, [], tree_options(1))
        return {
            NAIVE: np.ones(len(truth)),
            JOINT: regression_em(binned, rows, seed),
            CONDITIONAL: _from_features(binned, rows),
            TRUE: truth,
        }


def _from_features(binned: BinnedRows, rows: LearningRows) -> Floats:
    """The conditional likelihood on strata of relevance and predicted position."""
    learned = learn_nuisances(binned, rows)
    edges = StratumEdges.of(learned.scores, learned.places, rows.fold)
    stratum = edges.stratum(learned.scores, learned.places, rows.fold)
    scored = ScoredRows(stratum, rows.cell, sigmoid(learned.scores), rows.click, rows.weight)
    table = ExposureCounts.of(scored, edges.n_strata, len(rows.position)).table(rows.context)
    theta = fit_conditional(table, find_linkage(table)).theta
    return theta / theta[0]
