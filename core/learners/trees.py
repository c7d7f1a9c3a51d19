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

`distilled`: the ranker as a teacher: what it knows beyond the features reaches a model of the features alone.

A ranker orders by more than the features that are learnt from. Where it puts a document says something of gamma then,
which a model of x alone has to throw away: P(click | x, k) = theta_k E[gamma | x, k] depends on k twice.

    stage 1   gamma1 = E[gamma | x, z]: the likelihood of clicks given theta, on features and on z, what the ranker
              knows: its score, or the mean log position of the document. Trees start from the rate of the documents
              with such a z, sum C_d / sum E_d over each twentieth of them.
    labels    y_d = gamma1_d + Z_d (C_d / E_d - gamma1_d),   C_d clicks, E_d = sum_e n_de theta_e
    stage 2   gamma = E[y | x]: the likelihood of y given the features, an impression each. Averaged over z it is
              E[gamma | x], whatever the ranker knew.

Z_d is the credibility of the document's own clicks beside those of its like:

    Var(gamma_d | x, z) = rho v_d,   v_d = gamma1_d (1 - gamma1_d),   A_d = sum_e n_de theta_e^2
    rho = sum_d {(C_d - E_d gamma1_d)^2 - E_d gamma1_d + A_d gamma1_d^2} / sum_d v_d (E_d^2 - A_d), within [0, 1]
    Z_d = rho v_d E_d^2 / (rho v_d E_d^2 + E_d gamma1_d - A_d (gamma1_d^2 + rho v_d))

It is 0 where every document was shown once, and goes to 1 as it is shown more often.

Sources: Wang, Golbandi, Bendersky, Metzler & Najork 2018 (the M-step of regression EM with theta given; regression EM,
section 4); Joachims 2002 (clicks as labels); Friedman 2001 (boosted logistic regression); Guo et al. 2019 (position as
an input with a fixed value in serving, their baseline); Burges 2010 (LambdaMART); Ke et al. 2017; Vapnik & Vashist 2009
(features that only learning has); Lopez-Paz, Bottou, Schölkopf & Vapnik 2016 (through soft labels); Bühlmann 1967
(credibility).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from posbias.core.arrays.count_table import CountTable, Floats, Integers, compress, sum_by_number
from posbias.core.attractiveness import estimate_prior, posterior_by_position
from posbias.core.choices import LearningOptions
from posbias.core.errors import SchemaError
from posbias.core.learners import learning
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, ModelText, RowsBy, TreeOptions, bin_rows
from posbias.core.learners.learning import ClickLikelihood, Learned, Learner, LearningData, Loss, OnRound
from posbias.core.learners.models import Forest
from posbias.core.training.layout import grade_labels, top_value
from posbias.core.training.weights import WeightOptions

TOP = 1.0
"""The position that all documents are given when they are scored."""

OBJECTIVE = "lambdarank"
PARAMETERS = {"objective": OBJECTIVE, "lambdarank_norm": False, "metric": "none"}

_TINY = 1e-12
_GROUPS = 20  # of documents with alike z
_MOST_DOCUMENTS = 10_000  # of a query, which LightGBM ranks


def learn_with_position(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow trees on every document at every position, and take the position out of them."""
    features, counts = learning.features_of(data), data.counts
    each = counts.n_entries / max(counts.n_units, 1)  # so that a leaf holds as many documents as it should
    trees = learning.tree_options(options)
    trees = replace(trees, leaf_rows=max(round(trees.leaf_rows * each), 1))
    rows = bin_beside(features, counts.unit_of_entry, data.place[counts.cell], "position", trees)
    sets = learning.split_rows(rows, data.held_out[counts.unit_of_entry])
    grown, rounds = learning.grow(sets, losses_by_entry(data), options, on_round)
    seeing = ModelText.parse(grown.model_text(rounds.best, learner.objective))
    importance = learning.importance_of([grown], rounds.best)
    share = importance["gain"][-1] / (importance["gain"].sum() or 1.0)
    return Learned(
        Forest(seeing.without_last_feature(TOP).complete()),
        rounds.curve,
        importance.head(-1),  # the position is no feature that a reader asks about
        report={"trees": rounds.best, "share_of_gain_of_position": float(share)},
    )


def losses_by_entry(data: LearningData) -> tuple[ClickLikelihood, ClickLikelihood]:
    """The likelihood of clicks, each entry with a score of its own."""
    learnt, apart = (
        replace(counts, start=np.arange(counts.n_entries + 1), multiplicity=np.ones(counts.n_entries))
        for counts in (data.counts.take(documents) for documents in (data.learnt, data.apart))
    )
    return ClickLikelihood(learnt, np.ones(learnt.n_cells)), ClickLikelihood(apart, np.ones(apart.n_cells))


def bin_beside(
    features: learning.Features, document: Integers, column: NDArray[np.generic], name: str, options: TreeOptions
) -> BinnedRows:
    """Bin the features of documents, by ascending number, with a column behind, under a name that no feature has."""
    while name in features.names:
        name += "_"
    rows = RowsBy(
        len(document), lambda some: np.column_stack([features.rows[document[some]], column[some].astype(np.float64)])
    )
    return bin_rows(rows, [*features.names, name], features.categorical, options)


def learn_with_theta(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow a tree on labels that are drawn anew for every tree, and take a step of theta, in turn."""
    learnt = data.counts.take(data.learnt)
    shown = learnt.sum_by_cell(learnt.impressions)
    rate = np.divide(learnt.sum_by_cell(learnt.clicks), shown, out=np.full(learnt.n_cells, np.nan), where=shown > 0)
    highest = float(np.nanmax(rate)) if np.isfinite(rate).any() else 0.0
    theta = np.nan_to_num(np.clip(rate / highest if highest else rate, learning.LEAST_EXAMINATION, 1.0), nan=1.0)
    loss, held_out = (SampledLabels(of, theta, options.seed) for of in (learnt, data.counts.take(data.apart)))
    after: list[Floats] = []

    def step(trees: BoostedTrees) -> None:
        theta = expected_examination(loss.counts, loss.theta, learning.sigmoid(trees.scores()))
        after.append(theta)
        loss.theta = held_out.theta = np.nan_to_num(theta, nan=1.0)

    grown = learning.grow(learning.binned(data, options), (loss, held_out), options, on_round, after_tree=step)
    theta = after[grown[1].best - 1]
    known = theta[np.isfinite(theta)]
    relative = theta / known[0] if len(known) else theta
    return replace(learning.learned_by(grown, learner.objective), propensities=relative)


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
            trials = block.impressions - block.clicks
            whole: Integers = np.floor(trials + _TINY).astype(np.int64)
            drawn: Floats = self._rng.binomial(whole, chance).astype(np.float64)
            rest = np.maximum(trials - whole, 0.0)
            if rest.any():  # of a sum of weights: what is left beyond whole trials succeeds or fails as one
                drawn += rest * (self._rng.random(len(rest)) < chance)
            labels[units] = block.sum_by_unit(block.clicks + drawn)
        return labels


def learn_from_grades(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grade the documents, and let LightGBM rank them."""
    losses, features = graded(data), learning.features_of(data)
    whole = bin_rows(features.rows, features.names, features.categorical, learning.tree_options(options))
    sets = list[BinnedRows]()
    for loss in losses:
        if len(loss.rows):
            sets.append(whole.subset(loss.rows))
            dataset = sets[-1].dataset.construct()
            dataset.set_label(loss.grade.astype(np.float64))
            dataset.set_group(np.unique(loss.query, return_counts=True)[1])  # rows that are ranked together
    learnt, *apart = sets
    grown = learning.grow((learnt, apart), losses, options, on_round, objective=PARAMETERS)
    return learning.learned_by(grown, learner.objective)


def graded(data: LearningData) -> tuple["Graded", "Graded"]:
    """NDCG of the documents that a cell with a theta has shown, graded by those to learn from."""
    theta = np.where(data.known, data.theta, np.nan)
    seen = data.counts.only_cells(data.known).entries_of_unit > 0
    learnt, apart = (np.flatnonzero(seen & half) for half in (~data.held_out, data.held_out))
    prior = estimate_prior(compress(data.counts.take(learnt))[0], theta, data.position)
    gamma = list[Floats]()
    for documents in (learnt, apart):
        signatures, number = compress(data.counts.take(documents))
        gamma.append(posterior_by_position(signatures, theta, prior, data.position)[0][number])
    top, grades = top_value(gamma[0], np.ones(len(gamma[0]))), WeightOptions.grades
    parts = zip((learnt, apart), gamma, strict=True)
    one, other = (Graded(rows, data.query[rows], grade_labels(of_rows, top, grades)) for rows, of_rows in parts)
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


def distil(
    learner: Learner,
    data: LearningData,
    options: LearningOptions,
    on_round: OnRound,
    teacher: tuple[float, Floats] | None = None,
) -> Learned:
    """Learn from features and the ranker (`taught`, unless that is given), then its labels from features alone."""
    share, logits = teacher or taught(data, options, on_round)
    learnt, apart = learning.likelihoods(learner, data)
    own, gamma = data.counts.take(data.learnt).only_cells(data.known), learning.sigmoid(logits)
    learnt.label, spread = soft_labels(own, data.theta, gamma[data.learnt])
    apart.label = gamma[data.apart]
    grown = learning.grow(learning.binned(data, options), (learnt, apart), options, on_round)
    learned = learning.learned_by(grown, learner.objective)
    return replace(learned, report=learned.report | {"share_of_gain_of_ranker": share, "spread_within_alike": spread})


def ranker_knowledge(data: LearningData) -> Floats:
    """Z of each document, shape (D,): the ranker's score, or else minus the mean log position, nan if never shown."""
    if data.knowledge is not None:
        return data.knowledge
    counts = data.counts
    shown = counts.sum_by_unit(counts.impressions)
    of_positions = counts.sum_by_unit(counts.impressions * -np.log(data.position[counts.cell]))
    return np.divide(of_positions, shown, out=np.full(len(shown), np.nan), where=shown > 0)


def taught(data: LearningData, options: LearningOptions, on_round: OnRound) -> tuple[float, Floats]:
    """Stage 1: z's share of the gain, and the logit of gamma1 of each document, also of those held out, shape (D,)."""
    features, z = learning.features_of(data), ranker_knowledge(data)
    whole = bin_beside(features, np.arange(data.n_documents), z, "ranker", learning.tree_options(options))
    counts = data.weighted.only_cells(data.known)
    start = rate_of_alike(counts, data.theta, z, data.learnt)
    learnt, apart = (ClickLikelihood(counts.take(some), data.theta) for some in (data.learnt, data.apart))
    learnt.offset, apart.offset = start[data.learnt], start[data.apart]
    sets = learning.split_rows(whole, data.held_out)
    trees, rounds = learning.grow(sets, (learnt, apart), options, on_round)
    scores, (gain, _) = start.copy(), trees.gain_and_splits(rounds.best)
    scores[data.learnt] += trees.scores()
    if sets[1]:
        scores[data.apart] += trees.scores_apart()[0]
    return float(gain[-1] / (gain.sum() or 1.0)), scores


def rate_of_alike(counts: CountTable, theta: Floats, z: Floats, learnt: np.ndarray) -> Floats:
    """The logit of C / E of the documents to learn from with such a z, shape (D,)."""
    known = z[learnt][np.isfinite(z[learnt])]
    edges = np.unique(np.quantile(known, np.arange(1, _GROUPS) / _GROUPS)) if len(known) else np.zeros(0)
    group = np.where(np.isfinite(z), np.searchsorted(edges, z, side="right"), len(edges) + 1)
    clicks, examined = counts.sum_by_unit(counts.clicks), counts.sum_by_unit(counts.impressions * theta[counts.cell])
    mean = clicks[learnt].sum() / max(examined[learnt].sum(), _TINY)
    of_group = [np.bincount(group[learnt], values[learnt], len(edges) + 2) for values in (clicks, examined)]
    rate = np.clip((of_group[0] + mean) / (of_group[1] + 1.0), *learning.RATES)  # as if one more had been examined
    return np.log(rate / (1 - rate))[group]


def soft_labels(counts: CountTable, theta: Floats, gamma: Floats) -> tuple[Floats, float]:
    """Y of each document, shape (D,), and rho.

    Args:
        counts: of the documents, in cells that have a theta.
        theta: in (0, 1], shape (K,).
        gamma: gamma1, shape (D,), in (0, 1).
    """
    shown, of_entry = counts.impressions, theta[counts.cell]
    clicks, examined = counts.sum_by_unit(counts.clicks), counts.sum_by_unit(shown * of_entry)
    squares, v = counts.sum_by_unit(shown * of_entry**2), gamma * (1 - gamma)
    left = float((v * np.maximum(examined**2 - squares, 0.0)).sum())
    beyond = float(((clicks - examined * gamma) ** 2 - examined * gamma + squares * gamma**2).sum())
    rho = min(max(beyond / left, 0.0), 1.0) if left > _TINY else 0.0
    signal = rho * v * examined**2
    noise = np.maximum(examined * gamma - squares * (gamma**2 + rho * v), _TINY)
    own = np.divide(clicks, examined, out=gamma.copy(), where=examined > 0)
    return np.clip(gamma + signal / (signal + noise) * (own - gamma), *learning.RATES), rho


_OF_COUNTS = (*learning.OF_TREES, "negative_share")
PBM = Learner(
    "pbm",
    "Wang et al. 2018",
    learning.learn_trees,
    learning.likelihoods,
    is_probability=True,
    takes=(*_OF_COUNTS, "balance"),
)
NAIVE = replace(PBM, name="naive", reference="Friedman 2001", uses_propensities=False)
POSITION_FEATURE = replace(
    NAIVE, name="position-feature", reference="Guo et al. 2019", family=learn_with_position, takes=_OF_COUNTS
)
REGRESSION_EM = replace(
    NAIVE, name="regression-em", reference=PBM.reference, family=learn_with_theta, takes=learning.OF_TREES
)
LAMBDARANK = Learner("lambdarank", "Burges 2010", learn_from_grades, measure="NDCG on grades", objective=OBJECTIVE)
DISTILLED = replace(
    PBM,
    name="distilled",
    reference="Lopez-Paz et al. 2016",
    family=distil,
    n_fits=2,
    takes=(*PBM.takes, "ranker_score"),
)
