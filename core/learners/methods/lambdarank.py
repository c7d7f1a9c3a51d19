"""LightGBM's lambdarank on graded documents.

    grade_d = the grade that the layout of judgments gives d: equal steps of E[gamma_d | counts], theta given

    lambda_ij = -sigma / (1 + exp(sigma (f_i - f_j))) |change of NDCG if i and j change places|,  grade_i > grade_j

with the gain 2^grade - 1, one group for each query, each pair counted as it is (`lambdarank_norm=false`). The learning
curve shows NDCG on these grades.

Grades and not clicked groups: on the worlds of tests/benchmarks/value.py the two are within noise of each other where
pages show most of a query's documents, and clicked groups fall far behind where they show few of many (.13 against .17
on ClueWeb09). Grades need counts only.

Source: Burges 2010 (LambdaMART); Ke et al. 2017.
"""

from dataclasses import dataclass

import numpy as np

from posbias.core.arrays.compression import compress
from posbias.core.arrays.count_table import Floats, Integers, sum_by_number
from posbias.core.attractiveness.prior import AttractivenessPrior, estimate_prior, posterior_by_position
from posbias.core.errors import SchemaError
from posbias.core.learners.boosting import BoostedTrees, bin_rows
from posbias.core.learners.data import LearningData
from posbias.core.learners.growing import features_of, grow_by
from posbias.core.learners.learner import Learned, Learner, LearningOptions, OnRound
from posbias.core.training.layouts.judgments import grades_of, top_of
from posbias.core.training.weights import WeightOptions

OBJECTIVE = "lambdarank"
PARAMETERS = {"objective": OBJECTIVE, "lambdarank_norm": False, "metric": "none"}
GRADES = WeightOptions.grades

_MOST_DOCUMENTS = 10_000  # of a query, which LightGBM ranks


class LambdaRankLearner(Learner):
    """LightGBM's lambdarank on grades of attractiveness."""

    name = "lambdarank"
    reference = "Burges 2010"
    about = "lambdarank on the grades of the layout of judgments"
    measure = "NDCG on grades"

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Grade the documents that a cell with a theta has shown, and let LightGBM rank them."""
        seen = data.counts.only_cells(data.known).entries_of_unit > 0
        learnt, apart = (np.flatnonzero(seen & wanted) for wanted in (~data.held_out, data.held_out))
        grading = Grading.of(data, learnt)
        graded, held_out = (Graded(data.query[those], grading.grades(data, those)) for those in (learnt, apart))
        features = features_of(data)
        rows = bin_rows(features.rows, features.names, features.categorical, options.trees)
        trees = BoostedTrees(
            rows.subset(learnt).graded(graded.grade, graded.query),
            0.0,
            [rows.subset(apart).graded(held_out.grade, held_out.query)] if len(apart) else [],
            PARAMETERS,
        )
        grown = grow_by(trees.grow, trees, graded, held_out if len(apart) else None, options, on_round)
        return grown.learned(OBJECTIVE)


@dataclass(frozen=True)
class Grading:
    """How documents are graded.

    Attributes:
        prior: of attractiveness.
        top: the attractiveness that a hundredth of the documents exceed.
    """

    prior: AttractivenessPrior
    top: float

    @classmethod
    def of(cls, data: LearningData, documents: Integers) -> "Grading":
        """As some documents have it: those to learn from."""
        signatures, _ = compress(data.counts.take(documents))
        prior = estimate_prior(signatures, _theta(data), data.position)
        gamma = _attractiveness(data, documents, prior)
        return cls(prior, top_of(gamma, np.ones(len(gamma))))

    def grades(self, data: LearningData, documents: Integers) -> Integers:
        """The grades of documents, same shape."""
        return grades_of(_attractiveness(data, documents, self.prior), self.top, GRADES)


def _theta(data: LearningData) -> Floats:
    return np.where(data.known, data.theta, np.nan)


def _attractiveness(data: LearningData, documents: Integers, prior: AttractivenessPrior) -> Floats:
    """E[gamma | counts] of documents."""
    signatures, number = compress(data.counts.take(documents))
    return posterior_by_position(signatures, _theta(data), prior, data.position)[0][number]


@dataclass(frozen=True)
class Graded:
    """Documents with grades.

    Attributes:
        query: the number of each document's query, ascending, shape (n,).
        grade: from 0, likewise.

    Raises:
        SchemaError: a query has more documents than LightGBM ranks.
    """

    query: Integers
    grade: Integers

    def __post_init__(self) -> None:
        """Count the documents of queries."""
        most = int(np.bincount(self.query).max(initial=0))
        if most > _MOST_DOCUMENTS:
            raise SchemaError(
                f"--learner lambdarank: a query has {most:,} documents, and LightGBM ranks at most {_MOST_DOCUMENTS:,} "
                "of a query. Choose another learner, such as pbm."
            )

    def per_impression(self, scores: Floats) -> float:
        """NDCG with the gain 2^grade - 1, the mean over the queries whose grades differ from 0."""
        query = np.unique(self.query, return_inverse=True)[1]
        n_queries = int(query.max(initial=-1)) + 1
        found, best = (self._gain(query, n_queries, by) for by in (scores, self.grade.astype(np.float64)))
        some = best > 0
        return float((found[some] / best[some]).mean()) if some.any() else 0.0

    def _gain(self, query: Integers, n_queries: int, by: Floats) -> Floats:
        """DCG of each query, its documents in descending order of a value."""
        order = np.lexsort((-by, query))
        rank = np.arange(len(query)) - np.searchsorted(query, query) + 1  # in their order, queries stand as before
        return sum_by_number(query, (np.exp2(self.grade[order]) - 1) / np.log2(1 + rank), n_queries)
