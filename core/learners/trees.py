"""Trees on counts: the likelihood of the position-based model, and baselines.

`pbm`, the default, theta given: it counts every impression once, without weights that would need clipping, and
estimates attractiveness as a probability. The equations are those of `ClickLikelihood`.

`naive`: click rates, theta = 1; the difference to `pbm` is the effect of position bias on a ranker.

`position-feature`: position as one more feature, fixed at 1 when predicting.

    P(click | d, k) = 1 / (1 + exp(-f(x_d, k))),   score of d = f(x_d, 1)

A row is a document at a position, with its n impressions and c clicks: gradient n p - c, Hessian n p (1 - p). In the
model file position is fixed at 1: splits by position are removed with their unreachable branches, so that the file
predicts f(x, 1) from the features alone.

`regression-em`, as published: theta and relevance learnt together, with sampled labels.

    P(E = 1, R = 1 | c = 0, d, k) = 0
    P(E = 1 | c = 0, d, k) = theta_k (1 - gamma_d) / (1 - theta_k gamma_d)
    P(R = 1 | c = 0, d, k) = gamma_d (1 - theta_k) / (1 - theta_k gamma_d)          both are 1 where c = 1

Every round draws a label R of each impression from its probability, grows a tree on the gradient of logistic regression
on these labels, and then sets

    theta_k = mean over the impressions at k of c + (1 - c) P(E = 1 | c = 0, d, k)

The labels of all impressions of a document at a position are one binomial draw. Theta starts at the click rates by
position over their maximum. The scale of theta is not identified by clicks; `learned_propensities.parquet` has theta
relative to the first cell.

`lambdarank`: LightGBM's LambdaMART on graded documents.

    grade_d = the grade of d by the layout of judgments: equal steps of E[gamma_d | counts], theta given
    lambda_ij = -sigma / (1 + exp(sigma (f_i - f_j))) |change of NDCG if i and j are swapped|,  grade_i > grade_j

with the gain 2^grade - 1, one group per query, pairs not normalised (`lambdarank_norm=false`). The learning curve shows
NDCG on these grades. Grades instead of clicked groups: on the logs of tests/benchmarks/README.md the two do not differ
significantly where pages show most of a query's documents, and clicked groups are far worse where pages show few of
many (.13 against .17 on ClueWeb09). Grades need counts only.

`distilled`: the logging ranker as a teacher of a model of the features alone.

The logging ranker uses more than the features x. So positions are informative on gamma beyond x, which a model of x
alone ignores: P(click | x, k) = theta_k E[gamma | x, k] depends on k twice.

    stage 1   gamma1 = E[gamma | x, z]: the likelihood of clicks given theta, on x and on z, the ranker's score, or
              minus the mean log position of the document. Trees start from the rate sum C_d / sum E_d of the documents
              in each twentieth of z.
    labels    y_d = gamma1_d + Z_d (C_d / E_d - gamma1_d),   C_d clicks, E_d = sum_e n_de theta_e
    stage 2   gamma = E[y | x]: the likelihood of y given the features, by impression: E[gamma | x], averaged over z.

Z_d is the credibility of the document's own clicks:

    Var(gamma_d | x, z) = rho v_d,   v_d = gamma1_d (1 - gamma1_d),   A_d = sum_e n_de theta_e^2
    rho = sum_d {(C_d - E_d gamma1_d)^2 - E_d gamma1_d + A_d gamma1_d^2} / sum_d v_d (E_d^2 - A_d), within [0, 1]
    Z_d = rho v_d E_d^2 / (rho v_d E_d^2 + E_d gamma1_d - A_d (gamma1_d^2 + rho v_d))

It is 0 where every document was shown once, and tends to 1 with the impressions of the document.

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
"""The position of all documents at prediction."""

OBJECTIVE = "lambdarank"
PARAMETERS = {"objective": OBJECTIVE, "lambdarank_norm": False, "metric": "none"}

_TINY = 1e-12
_GROUPS = 20  # quantile groups of z
_MOST_DOCUMENTS = 10_000  # per query, in LightGBM


def learn_with_position(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow trees on documents at positions, and fix the position."""
    features, counts = learning.features_of(data), data.counts
    rows_per_document = counts.n_entries / max(counts.n_units, 1)
    trees = learning.tree_options(options)
    trees = replace(trees, leaf_rows=max(round(trees.leaf_rows * rows_per_document), 1))
    rows = bin_beside(features, counts.unit_of_entry, data.place[counts.cell], "position", trees)
    sets = learning.split_held_out(rows, data.held_out[counts.unit_of_entry])
    grown, rounds = learning.grow(sets, losses_by_entry(data), options, on_round)
    model = ModelText.parse(grown.model_text(rounds.best, learner.objective))
    importance = learning.importance_table([grown], rounds.best)
    share = importance["gain"][-1] / (importance["gain"].sum() or 1.0)
    return Learned(
        Forest(model.without_last_feature(TOP).complete()),
        rounds.curve,
        importance.head(-1),  # without the position
        report={"trees": rounds.best, "share_of_gain_of_position": float(share)},
    )


def losses_by_entry(data: LearningData) -> tuple[ClickLikelihood, ClickLikelihood]:
    """The likelihood of the clicks of training and validation documents, with a score for each document and cell."""
    training, validation = (
        replace(counts, start=np.arange(counts.n_entries + 1), multiplicity=np.ones(counts.n_entries))
        for counts in (data.counts.take(documents) for documents in (data.training, data.validation))
    )
    theta = np.ones(training.n_cells)
    return ClickLikelihood(training, theta), ClickLikelihood(validation, theta)


def bin_beside(
    features: learning.Features, document: Integers, column: NDArray[np.generic], name: str, options: TreeOptions
) -> BinnedRows:
    """Bin the features of documents, by ascending number, with a further column; `_` makes its name unique."""
    while name in features.names:
        name += "_"

    def read(index: slice | Integers) -> Floats:
        return np.column_stack([features.rows[document[index]], column[index].astype(np.float64)])

    rows = RowsBy(len(document), read)
    return bin_rows(rows, [*features.names, name], features.categorical, options)


def learn_with_theta(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Alternate between a tree on newly drawn labels and a step of theta."""
    training, validation = data.counts.take(data.training), data.counts.take(data.validation)
    clicks, shown = (training.sum_by_cell(values) for values in (training.clicks, training.impressions))
    rate = np.divide(clicks, shown, out=np.full(training.n_cells, np.nan), where=shown > 0)
    highest = float(np.nanmax(rate)) if np.isfinite(rate).any() else 0.0
    theta = np.nan_to_num(np.clip(rate / highest if highest else rate, learning.LEAST_EXAMINATION, 1.0), nan=1.0)
    loss, held_out = (SampledLabels(counts, theta, options.seed) for counts in (training, validation))
    thetas: list[Floats] = []

    def step(trees: BoostedTrees) -> None:
        theta = expected_examination(loss.counts, loss.theta, learning.sigmoid(trees.scores()))
        thetas.append(theta)
        loss.theta = held_out.theta = np.nan_to_num(theta, nan=1.0)

    grown = learning.grow(learning.binned(data, options), (loss, held_out), options, on_round, after_tree=step)
    theta = thetas[grown[1].best - 1]
    known = theta[np.isfinite(theta)]
    relative = theta / known[0] if len(known) else theta
    return replace(learning.learned_trees(grown, learner.objective), propensities=relative)


def expected_examination(counts: CountTable, theta: Floats, gamma: Floats) -> Floats:
    """The mean of c + (1 - c) P(E = 1 | c = 0, d, k) by cell, shape (K,); NaN without impressions."""
    total, shown = np.zeros(counts.n_cells), np.zeros(counts.n_cells)
    for units, block in counts.blocks():
        theta_e, gamma_d = theta[block.cell], block.spread(gamma[units])
        examined = theta_e * (1 - gamma_d) / np.maximum(1 - theta_e * gamma_d, _TINY)
        total += block.sum_by_cell(block.clicks + (block.impressions - block.clicks) * examined)
        shown += block.sum_by_cell(block.impressions)
    return np.divide(total, shown, out=np.full(counts.n_cells, np.nan), where=shown > 0)


class SampledLabels(ClickLikelihood):
    """Logistic regression on labels drawn anew for every tree; the caller updates `theta`."""

    def __init__(self, counts: CountTable, theta: Floats, seed: int) -> None:
        """Store the counts of the documents and the initial theta, shape (K,)."""
        super().__init__(counts, theta)
        self._rng = np.random.default_rng(seed)

    def labels(self, gamma: Floats) -> Floats:
        """Draw labels R, and sum them by document, shape (D,)."""
        labels = np.empty(self.counts.n_units)
        for units, block in self.counts.blocks():
            theta, gamma_d = self.theta[block.cell], block.spread(gamma[units])
            chance = np.clip(gamma_d * (1 - theta) / np.maximum(1 - theta * gamma_d, _TINY), 0, 1)
            trials = block.impressions - block.clicks
            whole: Integers = np.floor(trials + _TINY).astype(np.int64)
            drawn: Floats = self._rng.binomial(whole, chance).astype(np.float64)
            rest = np.maximum(trials - whole, 0.0)
            if rest.any():  # of sums of weights: the fractional trial succeeds or fails as a whole
                drawn += rest * (self._rng.random(len(rest)) < chance)
            labels[units] = block.sum_by_unit(block.clicks + drawn)
        return labels


def learn_from_grades(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow LambdaMART on graded documents."""
    losses, features = graded(data), learning.features_of(data)
    all_rows = bin_rows(features.rows, features.names, features.categorical, learning.tree_options(options))
    sets = list[BinnedRows]()
    for loss in losses:
        if len(loss.rows):
            sets.append(all_rows.subset(loss.rows))
            dataset = sets[-1].dataset.construct()
            dataset.set_label(loss.grade.astype(np.float64))
            dataset.set_group(np.unique(loss.query, return_counts=True)[1])
    training, *validation = sets
    grown = learning.grow((training, validation), losses, options, on_round, objective=PARAMETERS)
    return learning.learned_trees(grown, learner.objective)


def graded(data: LearningData) -> tuple["Graded", "Graded"]:
    """Grade training and validation documents with impressions in cells with a theta, by the prior of the former."""
    theta = np.where(data.known, data.theta, np.nan)
    seen = data.counts.only_cells(data.known).entries_of_unit > 0
    training, validation = np.flatnonzero(seen & ~data.held_out), np.flatnonzero(seen & data.held_out)
    prior = estimate_prior(compress(data.counts.take(training))[0], theta, data.position)

    def gamma(documents: Integers) -> Floats:
        signatures, number = compress(data.counts.take(documents))
        return posterior_by_position(signatures, theta, prior, data.position)[0][number]

    values = gamma(training)
    top, grades = top_value(values, np.ones(len(values))), WeightOptions.grades
    return (
        Graded(training, data.query[training], grade_labels(values, top, grades)),
        Graded(validation, data.query[validation], grade_labels(gamma(validation), top, grades)),
    )


@dataclass(frozen=True)
class Graded(Loss):
    """NDCG of graded documents; LightGBM computes the gradients.

    Raises:
        SchemaError: a query has more documents than LightGBM supports.
    """

    rows: Integers  # numbers of the documents, shape (n,)
    query: Integers  # number of each document's query, ascending, shape (n,)
    grade: Integers  # of each document, from 0, shape (n,)

    def __post_init__(self) -> None:
        """Validate the number of documents per query."""
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
        """Mean NDCG with the gain 2^grade - 1, over queries with a grade above 0."""
        dcg, ideal = self._dcg(scores), self._dcg(self.grade.astype(np.float64))
        return float((dcg[ideal > 0] / ideal[ideal > 0]).mean()) if (ideal > 0).any() else 0.0

    def _dcg(self, scores: Floats) -> Floats:
        """DCG of each query, its documents by descending score."""
        order = np.lexsort((-scores, self.query))
        rank = np.arange(len(scores)) - np.searchsorted(self.query, self.query) + 1  # sorted by query already
        return sum_by_number(self.query, (np.exp2(self.grade[order]) - 1) / np.log2(1 + rank), 0)


def distil(
    learner: Learner,
    data: LearningData,
    options: LearningOptions,
    on_round: OnRound,
    teacher: tuple[float, Floats] | None = None,
) -> Learned:
    """Stage 2: grow trees on the soft labels of the teacher, by default `teacher_logits`."""
    share, logits = teacher or teacher_logits(data, options, on_round)
    training, validation = learning.likelihoods(learner, data)
    counts, gamma = data.counts.take(data.training).only_cells(data.known), learning.sigmoid(logits)
    training.label, spread = soft_labels(counts, data.theta, gamma[data.training])
    validation.label = gamma[data.validation]
    grown = learning.grow(learning.binned(data, options), (training, validation), options, on_round)
    learned = learning.learned_trees(grown, learner.objective)
    return replace(learned, report=learned.report | {"share_of_gain_of_ranker": share, "spread_within_alike": spread})


def ranker_knowledge(data: LearningData) -> Floats:
    """z, shape (D,): the ranker's score if known, else minus the mean log position, NaN without impressions."""
    if data.knowledge is not None:
        return data.knowledge
    counts = data.counts
    shown = counts.sum_by_unit(counts.impressions)
    total = counts.sum_by_unit(counts.impressions * -np.log(data.position[counts.cell]))
    return np.divide(total, shown, out=np.full(len(shown), np.nan), where=shown > 0)


def teacher_logits(data: LearningData, options: LearningOptions, on_round: OnRound) -> tuple[float, Floats]:
    """Stage 1: z's share of the gain, and the logits of gamma1 of training and validation documents, shape (D,)."""
    features, z = learning.features_of(data), ranker_knowledge(data)
    rows = bin_beside(features, np.arange(data.n_documents), z, "ranker", learning.tree_options(options))
    counts = data.weighted.only_cells(data.known)
    start = initial_logits(counts, data.theta, z, data.training)
    training, validation = (
        ClickLikelihood(counts.take(documents), data.theta) for documents in (data.training, data.validation)
    )
    training.offset, validation.offset = start[data.training], start[data.validation]
    sets = learning.split_held_out(rows, data.held_out)
    trees, rounds = learning.grow(sets, (training, validation), options, on_round)
    scores, (gain, _) = start.copy(), trees.gain_and_splits(rounds.best)
    scores[data.training] += trees.scores()
    if sets[1]:
        scores[data.validation] += trees.validation_scores()[0]
    return float(gain[-1] / (gain.sum() or 1.0)), scores


def initial_logits(counts: CountTable, theta: Floats, z: Floats, training: Integers) -> Floats:
    """The logit of sum C / sum E over the training documents in the document's quantile group of z, shape (D,)."""
    known = z[training][np.isfinite(z[training])]
    edges = np.unique(np.quantile(known, np.arange(1, _GROUPS) / _GROUPS)) if len(known) else np.zeros(0)
    group = np.where(np.isfinite(z), np.searchsorted(edges, z, side="right"), len(edges) + 1)
    clicks, examined = counts.sum_by_unit(counts.clicks), counts.sum_by_unit(counts.impressions * theta[counts.cell])
    mean = clicks[training].sum() / max(examined[training].sum(), _TINY)
    sums = [np.bincount(group[training], values[training], len(edges) + 2) for values in (clicks, examined)]
    rate = np.clip((sums[0] + mean) / (sums[1] + 1.0), *learning.RATES)  # plus one examination at the mean rate
    return np.log(rate / (1 - rate))[group]


def soft_labels(counts: CountTable, theta: Floats, gamma: Floats) -> tuple[Floats, float]:
    """y, shape (D,), and rho.

    Args:
        counts: of the documents, in cells with a theta.
        theta: in (0, 1], shape (K,).
        gamma: gamma1, shape (D,), in (0, 1).
    """
    shown, theta_e = counts.impressions, theta[counts.cell]
    clicks, examined = counts.sum_by_unit(counts.clicks), counts.sum_by_unit(shown * theta_e)
    squares, v = counts.sum_by_unit(shown * theta_e**2), gamma * (1 - gamma)
    denominator = float((v * np.maximum(examined**2 - squares, 0.0)).sum())
    excess = float(((clicks - examined * gamma) ** 2 - examined * gamma + squares * gamma**2).sum())
    rho = min(max(excess / denominator, 0.0), 1.0) if denominator > _TINY else 0.0
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
