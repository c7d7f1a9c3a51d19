"""Trees on counts: the likelihood of the position-based model, and what is compared with it.

`pbm`, the default, theta given: it counts every impression once, so that no weight has to be clipped, and gives
attractiveness itself, on the probability scale. The equations are those of `ClickLikelihood`.

`naive`: click rates as they stand, theta taken as 1. What position bias does to a ranker shows in the difference.

`position-feature`: position as one more feature, fixed at 1 when predicting.

    P(click | d, k) = 1 / (1 + exp(-f(x_d, k))),   score of d = f(x_d, 1)

One row is a document at a position, with its n impressions and c clicks: gradient n p - c, Hessian n p (1 - p). The
model file does not know positions: at every split of the position, rows go where position 1 goes, so that the split and
what lies behind it are taken out of the tree. What is left predicts f(x, 1) from the features alone.

`regression-em`, as published: theta and relevance learnt together, with sampled labels.

    P(E = 1, R = 1 | c = 0, d, k) = 0
    P(E = 1 | c = 0, d, k) = theta_k (1 - gamma_d) / (1 - theta_k gamma_d)
    P(R = 1 | c = 0, d, k) = gamma_d (1 - theta_k) / (1 - theta_k gamma_d)          both are 1 where c = 1

Every round draws a label R of each impression from its probability, grows a tree on the gradient of logistic regression
on these labels, and then sets

    theta_k = mean over the impressions at k of c + (1 - c) P(E = 1 | c = 0, d, k)

Impressions of a document at one position are alike, so that their labels are one binomial draw. Theta starts at the
click rates by position over the largest of them. It is on the probability scale as the model has it, which clicks do
not fix; `learned_propensities.parquet` holds it relative to the first cell.

`lambdarank`: LightGBM's, on graded documents.

    grade_d = the grade that the layout of judgments gives d: equal steps of E[gamma_d | counts], theta given
    lambda_ij = -sigma / (1 + exp(sigma (f_i - f_j))) |change of NDCG if i and j change places|,  grade_i > grade_j

with the gain 2^grade - 1, one group for each query, each pair counted as it is (`lambdarank_norm=false`). The learning
curve shows NDCG on these grades. Grades and not clicked groups: on the logs of tests/benchmarks/README.md the two are
within noise of each other where pages show most of a query's documents, and clicked groups fall far behind where they
show few of many (.13 against .17 on ClueWeb09). Grades need counts only.

Sources: Wang, Golbandi, Bendersky, Metzler & Najork 2018 (the M-step of regression EM with theta given; regression EM,
section 4); Joachims 2002 (clicks as labels); Friedman 2001 (boosted logistic regression); Guo et al. 2019 (position as
an input with a fixed value in serving, their baseline); Burges 2010 (LambdaMART); Ke et al. 2017.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from posbias.core.arrays.count_table import CountTable, Floats, Integers, compress, sum_by_number
from posbias.core.attractiveness import estimate_prior, posterior_by_position
from posbias.core.choices import LearningOptions
from posbias.core.errors import SchemaError
from posbias.core.learners import learning
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, ModelText, TreeOptions, bin_rows
from posbias.core.learners.learning import ClickLikelihood, Features, Learned, Learner, LearningData, Loss, OnRound
from posbias.core.learners.models import Forest
from posbias.core.training.pair_layouts import grades_of, top_of
from posbias.core.training.weights import WeightOptions

TOP = 1.0
"""The position that all documents are given when they are scored."""

OBJECTIVE = "lambdarank"
PARAMETERS = {"objective": OBJECTIVE, "lambdarank_norm": False, "metric": "none"}

_TINY = 1e-12
_MOST_DOCUMENTS = 10_000  # of a query, which LightGBM ranks


def learn_from_clicks(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow trees on the likelihood of clicks."""
    losses = learning.likelihoods(data, *learner.examined(data))
    return learning.grow(learning.binned(data, options), losses, options, on_round).learned(learner.objective)


def learn_with_position(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow trees on every document at every position, and take the position out of them."""
    features, counts = learning.features_of(data), data.counts
    each = counts.n_entries / max(counts.n_units, 1)  # so that a leaf holds as many documents as it should
    trees = learning.tree_options(options)
    trees = replace(trees, leaf_rows=max(round(trees.leaf_rows * each), 1))
    rows = DocumentsAtPositions(features, counts.unit_of_entry, data.position[counts.cell])
    sets = learning.split_rows(rows.binned("position", trees), data.held_out[counts.unit_of_entry])
    grown = learning.grow(sets, losses_by_entry(data), options, on_round)
    seeing = ModelText.parse(grown.trees.model_text(grown.best, learner.objective))
    importance = learning.importance_of([grown.trees], grown.best)
    share = importance["gain"][-1] / (importance["gain"].sum() or 1.0)
    return Learned(
        Forest(seeing.without_last_feature(TOP).complete()),
        grown.curve,
        importance.head(-1),  # the position is no feature that a reader asks about
        report={"trees": grown.best, "share_of_gain_of_position": float(share)},
    )


def losses_by_entry(data: LearningData) -> tuple[ClickLikelihood, ClickLikelihood]:
    """The likelihood of clicks, each entry with a score of its own."""
    learnt, apart = (_by_entry(data.counts.take(documents)) for documents in (data.learnt, data.apart))
    return ClickLikelihood(learnt, np.ones(learnt.n_cells)), ClickLikelihood(apart, np.ones(apart.n_cells))


def _by_entry(counts: CountTable) -> CountTable:
    """A table in which each entry is a unit."""
    return replace(counts, start=np.arange(counts.n_entries + 1), multiplicity=np.ones(counts.n_entries))


@dataclass(frozen=True)
class DocumentsAtPositions:
    """Rows of features, each document once for each position, with the position behind."""

    features: Features
    document: Integers  # of each row, ascending, shape (R,)
    position: NDArray[np.generic]  # of each row, or what else is known of it, shape (R,)

    def __len__(self) -> int:
        """Number of rows R."""
        return len(self.document)

    def __getitem__(self, rows: slice | Integers, /) -> Floats:
        """Some rows, shape (n, F + 1)."""
        return np.column_stack([self.features.rows[self.document[rows]], self.position[rows].astype(np.float64)])

    def binned(self, name: str, options: TreeOptions) -> BinnedRows:
        """Bin the rows, the position under a name that no feature has."""
        while name in self.features.names:
            name += "_"
        return bin_rows(self, [*self.features.names, name], self.features.categorical, options)


def learn_with_theta(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow a tree on labels that are drawn anew for every tree, and take a step of theta, in turn."""
    learnt = data.counts.take(data.learnt)
    theta = first_examination(learnt)
    loss, held_out = (SampledLabels(of, theta, options.seed) for of in (learnt, data.counts.take(data.apart)))
    after: list[Floats] = []

    def step(trees: BoostedTrees) -> None:
        theta = expected_examination(loss.counts, loss.theta, learning.sigmoid(trees.scores()))
        after.append(theta)
        loss.theta = held_out.theta = np.nan_to_num(theta, nan=1.0)

    grown = learning.grow(learning.binned(data, options), (loss, held_out), options, on_round, after_tree=step)
    return replace(grown.learned(learner.objective), propensities=learning.relative(after[grown.best - 1]))


def first_examination(counts: CountTable) -> Floats:
    """Click rates by cell over the largest of them, shape (K,); 1 where nothing was shown."""
    shown = counts.sum_by_cell(counts.impressions)
    rate = np.divide(counts.sum_by_cell(counts.clicks), shown, out=np.full(counts.n_cells, np.nan), where=shown > 0)
    highest = float(np.nanmax(rate)) if np.isfinite(rate).any() else 0.0
    return np.nan_to_num(np.clip(rate / highest if highest else rate, learning.LEAST_EXAMINATION, 1.0), nan=1.0)


def expected_examination(counts: CountTable, theta: Floats, gamma: Floats) -> Floats:
    """The mean of c + (1 - c) P(E = 1 | c = 0, d, k) at each cell, shape (K,); nan where nothing was shown."""
    total, shown = np.zeros(counts.n_cells), np.zeros(counts.n_cells)
    for units, block in counts.blocks():
        of_entry, gamma_of = theta[block.cell], block.spread(gamma[units])
        examined = of_entry * (1 - gamma_of) / np.maximum(1 - of_entry * gamma_of, _TINY)
        total += block.sum_by_cell(block.clicks + (block.impressions - block.clicks) * examined)
        shown += block.sum_by_cell(block.impressions)
    return np.divide(total, shown, out=np.full(counts.n_cells, np.nan), where=shown > 0)


class SampledLabels(ClickLikelihood):
    """Logistic regression on labels that are drawn anew for every tree, theta as it stands then."""

    def __init__(self, counts: CountTable, theta: Floats, seed: int) -> None:
        """Take the counts of the documents, the theta to begin with, and the seed of the labels."""
        super().__init__(counts, theta)
        self._rng = np.random.default_rng(seed)

    def labels(self, gamma: Floats) -> Floats:
        """The sum of the labels R that are drawn for each document, shape (D,)."""
        labels = np.empty(self.counts.n_units)
        for units, block in self.counts.blocks():
            theta, gamma_of = self.theta[block.cell], block.spread(gamma[units])
            chance = np.clip(gamma_of * (1 - theta) / np.maximum(1 - theta * gamma_of, _TINY), 0, 1)
            labels[units] = block.sum_by_unit(block.clicks + self._drawn(block.impressions - block.clicks, chance))
        return labels

    def _drawn(self, trials: Floats, chance: Floats) -> Floats:
        """How many trials succeed; what is left of a sum of weights beyond whole trials succeeds or fails as one."""
        whole: Integers = np.floor(trials + _TINY).astype(np.int64)
        drawn: Floats = self._rng.binomial(whole, chance).astype(np.float64)
        rest = np.maximum(trials - whole, 0.0)
        if rest.any():
            drawn += rest * (self._rng.random(len(rest)) < chance)
        return drawn


def learn_from_grades(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grade the documents, and let LightGBM rank them."""
    losses, features = graded(data), learning.features_of(data)
    whole = bin_rows(features.rows, features.names, features.categorical, learning.tree_options(options))
    learnt, *apart = (whole.subset(of.rows).graded(of.grade, of.query) for of in losses if len(of.rows))
    grown = learning.grow((learnt, apart), losses, options, on_round, objective=PARAMETERS)
    return grown.learned(learner.objective)


def graded(data: LearningData) -> tuple["Graded", "Graded"]:
    """NDCG of the documents that a cell with a theta has shown, graded by those to learn from."""
    theta = np.where(data.known, data.theta, np.nan)
    seen = data.counts.only_cells(data.known).entries_of_unit > 0
    learnt, apart = (np.flatnonzero(seen & half) for half in (~data.held_out, data.held_out))
    prior = estimate_prior(compress(data.counts.take(learnt))[0], theta, data.position)

    def attractiveness(documents: Integers) -> Floats:
        signatures, number = compress(data.counts.take(documents))
        return posterior_by_position(signatures, theta, prior, data.position)[0][number]

    gamma = attractiveness(learnt)
    top, grades = top_of(gamma, np.ones(len(gamma))), WeightOptions.grades
    parts = ((learnt, gamma), (apart, attractiveness(apart)))
    one, other = (Graded(rows, data.query[rows], grades_of(of_rows, top, grades)) for rows, of_rows in parts)
    return one, other


@dataclass(frozen=True)
class Graded(Loss):
    """Documents with grades.

    Raises:
        SchemaError: a query has more documents than LightGBM ranks.
    """

    rows: Integers  # the documents, shape (n,)
    query: Integers  # the number of each document's query, ascending, shape (n,)
    grade: Integers  # of each document, from 0, shape (n,)

    def __post_init__(self) -> None:
        """Count the documents of queries."""
        most = int(np.bincount(self.query).max(initial=0))
        if most > _MOST_DOCUMENTS:
            raise SchemaError(
                f"--learner lambdarank: a query has {most:,} documents, and LightGBM ranks at most {_MOST_DOCUMENTS:,} "
                "of a query. Choose another learner, such as pbm."
            )

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """Unused: LightGBM computes its own gradients."""
        raise NotImplementedError

    def per_impression(self, scores: Floats) -> float:
        """NDCG with the gain 2^grade - 1, the mean over the queries whose grades differ from 0."""
        gain, best = self._gain(scores), self._gain(self.grade.astype(np.float64))
        return float((gain[best > 0] / best[best > 0]).mean()) if (best > 0).any() else 0.0

    def _gain(self, by: Floats) -> Floats:
        """DCG of each query, its documents in descending order of a value."""
        order = np.lexsort((-by, self.query))
        rank = np.arange(len(by)) - np.searchsorted(self.query, self.query) + 1  # queries stand as before
        return sum_by_number(self.query, (np.exp2(self.grade[order]) - 1) / np.log2(1 + rank), 0)


_OF_COUNTS = (*learning.OF_TREES, "negative_share")
PBM = Learner("pbm", "Wang et al. 2018", learn_from_clicks, is_probability=True, takes=(*_OF_COUNTS, "balance"))
NAIVE = replace(PBM, name="naive", reference="Friedman 2001", uses_propensities=False)
POSITION_FEATURE = Learner(
    "position-feature",
    "Guo et al. 2019",
    learn_with_position,
    uses_propensities=False,
    is_probability=True,
    takes=_OF_COUNTS,
)
REGRESSION_EM = Learner(
    "regression-em", "Wang et al. 2018", learn_with_theta, uses_propensities=False, is_probability=True
)
LAMBDARANK = Learner("lambdarank", "Burges 2010", learn_from_grades, measure="NDCG on grades", objective=OBJECTIVE)
