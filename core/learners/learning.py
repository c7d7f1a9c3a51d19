"""Common parts of learners: documents with their counts, losses, and boosting rounds.

    P(click | d, e) = theta_e gamma_d,   gamma_d = 1 / (1 + exp(-f_d))

    p_d = sum_e { c_de + (n_de - c_de) gamma_d (1 - theta_e) / (1 - theta_e gamma_d) }      n_d = sum_e n_de
    gradient of -log L by f_d:  n_d gamma_d - p_d          Hessian, its expected part:  n_d gamma_d (1 - gamma_d)

p_d is the expected number of impressions in which the document was attractive, given the clicks: the gradient is that
of logistic regression on these expected labels (generalised EM, one gradient step per M-step).

    sum_d { (C_d / 2) (1 - f_d)^2 + ((n_d - C_d) / 2) f_d^2 },   C_d = sum_e c_de / theta_e
    gradient by f_d:  n_d f_d - C_d

The expectation of this squared error is the error against attractiveness, as if all impressions were examined. With
theta = 1 it is the error against click rates.

Sources: Wang, Golbandi, Bendersky, Metzler & Najork 2018; Schnabel et al. 2016; Saito et al. 2020 (for clicks, where
examination without a click is not observed).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, reduce_rows
from posbias.core.choices import BALANCES, LEARNERS, Balance, LearningOptions, Room
from posbias.core.errors import IdentifiabilityError, SchemaError
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, Rows, TreeOptions, bin_rows, select_rows
from posbias.core.learners.models import FactorModel, Forest, RowModel
from posbias.core.training.layout import expected_attractions

LEAST_EXAMINATION = 1e-3
"""Lower bound of theta: smaller values would let a click outweigh whole logs."""

_BLOCK = 1 << 17  # impressions per block


@dataclass(frozen=True)
class Features:
    """Features of documents."""

    rows: Rows  # shape (D, F); NaN where missing, numbers of categories for text
    names: tuple[str, ...]  # F names
    categorical: tuple[int, ...] = ()  # numbers of categorical features


@dataclass(frozen=True)
class Pages:
    """Pages as shown: page i has the impressions `start[i]:start[i + 1]`, from the top."""

    start: Integers  # shape (P + 1,)
    document: Integers  # document of each impression, shape (N,)
    cell: Integers  # cell of each impression, shape (N,)
    click: Floats  # 0 or 1, shape (N,); a sum of weights where rows carry weights


@dataclass(frozen=True)
class LearningData:
    """A log of D (query, document)s, called documents here, sorted by query."""

    query: Integers  # number of each document's query, ascending, shape (D,)
    held_out: Flags  # whether a document's query is held out for validation, shape (D,)
    counts: CountTable  # impressions and clicks per document and cell
    examination: Floats  # theta of each cell as a probability, shape (K,); NaN where unknown
    position: Integers  # of each cell, from 1, shape (K,)
    features: Features | None = None  # of each document; None for learners without features
    pages: Pages | None = None  # None for learners from counts
    item: Integers | None = None  # number of the document, independent of the query (or user), shape (D,)
    knowledge: Floats | None = None  # score of each document by the logging ranker, shape (D,); None if not in the log
    weight: Floats | None = None  # weight of an impression of each document, shape (D,); None: 1
    covariance: Floats | None = None  # of log theta, shape (K, K); None where theta is assumed known
    randomized: CountTable | None = None  # counts of rows whose documents were placed at random; None if not needed
    curve: Integers | None = None  # number of each cell's values in further cell columns, shape (K,); None without them

    @property
    def place(self) -> Integers:
        """Number of each cell by position and `curve`, from 1, shape (K,): the position without further columns."""
        if self.curve is None:
            return self.position
        places = np.stack([self.position, self.curve])
        return np.unique(places, axis=1, return_inverse=True)[1].reshape(-1).astype(np.int64) + 1

    @property
    def n_documents(self) -> int:
        """Number of documents D."""
        return len(self.query)

    @property
    def known(self) -> Flags:
        """Cells with a theta, shape (K,)."""
        return np.isfinite(self.examination)

    @property
    def theta(self) -> Floats:
        """Theta in [LEAST_EXAMINATION, 1], shape (K,); 1 where unknown (see `known`)."""
        return np.where(self.known, np.clip(np.nan_to_num(self.examination), LEAST_EXAMINATION, 1.0), 1.0)

    @property
    def weighted(self) -> CountTable:
        """The counts, times `weight`."""
        if self.weight is None:
            return self.counts
        times = self.weight[self.counts.unit_of_entry]
        return replace(self.counts, impressions=self.counts.impressions * times, clicks=self.counts.clicks * times)

    def take(self, documents: Integers) -> "LearningData":
        """Select documents, by ascending number; without pages, which would be incomplete."""
        features = self.features

        def select(values: Any) -> Any:  # noqa: ANN401 - an array or None
            return None if values is None else values[documents]

        return replace(
            self,
            query=self.query[documents],
            held_out=self.held_out[documents],
            counts=self.counts.take(documents),
            features=None if features is None else replace(features, rows=select_rows(features.rows, documents)),
            pages=None,
            item=select(self.item),
            knowledge=select(self.knowledge),
            weight=select(self.weight),
        )

    @property
    def training(self) -> Integers:
        """Numbers of the documents to learn from, ascending."""
        return np.flatnonzero(~self.held_out)

    @property
    def validation(self) -> Integers:
        """Numbers of the held-out documents, ascending."""
        return np.flatnonzero(self.held_out)


@dataclass(frozen=True)
class Lists:
    """P pages of the same length L, from the top."""

    document: Integers  # index of the document among the scored ones, shape (P, L)
    cell: Integers  # shape (P, L)
    click: Floats  # 0 or 1, or a sum of weights, shape (P, L)


def clicked_lists(data: LearningData, documents: Integers) -> list[Lists]:
    """The pages of documents that have a click, in blocks of equal length; documents by their index among these.

    Args:
        data: a log with pages. All documents of a page are of one query.
        documents: of whole queries, ascending: `data.training` or `data.validation`.
    """
    if data.pages is None:
        raise ValueError("this learner needs pages")
    pages, place, lists = data.pages, np.full(data.n_documents, -1), list[Lists]()
    place[documents] = np.arange(len(documents))
    with_click = reduce_rows(np.add, pages.click, pages.start, 0.0) > 0
    clicked, length = with_click & (place[pages.document[pages.start[:-1]]] >= 0), np.diff(pages.start)
    for size in np.unique(length[clicked]).tolist():
        first, step = pages.start[:-1][clicked & (length == size)], max(_BLOCK // size, 1)
        for begin in range(0, len(first), step):
            shown: Integers = first[begin : begin + step, np.newaxis] + np.arange(size, dtype=np.int64)
            lists.append(Lists(place[pages.document[shown]], pages.cell[shown], pages.click[shown]))
    return lists


def lists_to_learn_from(data: LearningData, learner: str) -> list[Lists]:
    """`clicked_lists` of the documents to learn from.

    Raises:
        IdentifiabilityError: no page has a second document.
    """
    pages = clicked_lists(data, data.training)
    if not any(lists.document.shape[1] > 1 for lists in pages):
        raise IdentifiabilityError(
            f"--learner {learner}: no page that is learnt from has a click and a second document to rank the clicked "
            "one against. Name the columns of one results page with --session, or choose another learner, such as pbm."
        )
    return pages


def sample_negatives(data: LearningData, share: float, seed: int) -> LearningData:
    """Sample a share of the documents without a click at random, with their impressions times 1 / share.

    The expectation of every sum over documents, such as a loss and its gradient, is that of the whole log. Held-out
    documents are all retained.

    Args:
        data: the log, without pages.
        share: in (0, 1].
        seed: of the draw.
    """
    if share == 1.0:
        return data
    unclicked = (data.counts.sum_by_unit(data.counts.clicks) == 0) & ~data.held_out
    drawn = np.random.default_rng(seed).random(data.n_documents) < share
    kept = np.flatnonzero(drawn | ~unclicked)
    sample, times = data.take(kept), np.where(unclicked[kept], 1 / share, 1.0)
    impressions = sample.counts.impressions * times[sample.counts.unit_of_entry]
    return replace(sample, counts=replace(sample.counts, impressions=impressions))


def balance_weights(data: LearningData, balance: Balance) -> Floats | None:
    """Weights of the impressions of each document, shape (D,); None if all are 1.

    w_d = m (N / N_q)^a, N_q the impressions of the query of d, N their mean; a = 0, 1/2 and 1 for traffic, sqrt and
    query. m makes the weighted sum of impressions equal their number.
    """
    power = BALANCES[balance]
    if not power:
        return None
    impressions = data.counts.sum_by_unit(data.counts.impressions)
    by_query = np.bincount(data.query, impressions)
    factor = np.divide(by_query.mean(), by_query, out=np.ones_like(by_query), where=by_query > 0) ** power
    return (factor * (by_query.sum() / (factor @ by_query)))[data.query]


Source = Literal["counts", "pages"]
OnRound = Callable[[], None]

OF_TREES = ("trees", "learning_rate", "leaves", "leaf_documents")
"""The options of learners that grow trees."""

ROUND, TRAINING, VALIDATION = "round", "training", "validation"
"""The columns of a learning curve."""

RATES = (1e-4, 0.9)
"""Bounds of the click rate at the start of learning."""


def tree_options(options: LearningOptions) -> TreeOptions:
    """Map learning options to tree options."""
    leaf = options.leaf_documents or TreeOptions.leaf_rows
    return TreeOptions(
        options.trees, options.learning_rate, options.leaves, leaf, row_share=options.row_share, seed=options.seed
    )


Warnings = dict[str, dict[str, float]]
"""Figures of warnings against using the model, by code."""


@dataclass(frozen=True)
class Learned:
    """The result of a learner."""

    model: RowModel | FactorModel
    # The learning curve: `round` from 1, `training`, and `validation` (null without held-out queries), of the learner's
    # `measure`, larger is better
    curve: pl.DataFrame
    importance: pl.DataFrame | None = None  # `feature` (its number), `gain` and `splits` of models of trees
    # theta as estimated by the learner, relative to the first cell, shape (K,); None where it is given
    propensities: Floats | None = None
    report: dict[str, Any] = field(default_factory=dict[str, Any])  # further entries of the manifest
    warnings: Warnings = field(default_factory=dict[str, dict[str, float]])


class Loss(Protocol):
    """A loss of the scores of n documents."""

    def start(self) -> float:
        """The initial score: 0 for losses of differences of scores."""
        return 0.0

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the diagonal of the Hessian of the loss by the scores, shape (n,) each."""
        ...

    def per_impression(self, scores: Floats) -> float:
        """The value on the learning curve, larger is better."""
        ...


class Rounds:
    """The learning curve with the best round, for early stopping.

    Attributes:
        best: number of the round to use: that of the best validation if learning may stop early, else the last.
    """

    def __init__(self, patience: int | None) -> None:
        """Start without rounds.

        Args:
            patience: number of rounds without improvement after which to stop; None: never.
        """
        self._patience = patience
        self._rounds: list[tuple[int, float, float | None]] = []
        self._best_value = float("-inf")
        self._without = 0
        self.best = 0

    def add(self, number: int, training: float, validation: float | None) -> None:
        """Add a round: its number, ascending, and its values on the learning curve."""
        self._rounds.append((number, training, validation))
        if self._patience is None or validation is None or validation > self._best_value:
            self.best, self._without = number, 0
            self._best_value = self._best_value if validation is None else validation
        else:
            self._without += 1

    @property
    def over(self) -> bool:
        """Whether to stop: validation has not improved for `patience` rounds."""
        return self._patience is not None and self._without >= self._patience

    @property
    def last(self) -> int:
        """The number of the last round, 0 before the first."""
        return self._rounds[-1][0] if self._rounds else 0

    @property
    def curve(self) -> pl.DataFrame:
        """`round`, `training`, `validation`."""
        schema = {ROUND: pl.Int32, TRAINING: pl.Float64, VALIDATION: pl.Float64}
        return pl.DataFrame(self._rounds, schema=schema, orient="row")


PROBABILITY = "binary sigmoid:1"
"""LightGBM's objective of models whose scores are logits."""

RAW = "regression"
"""LightGBM's objective of models whose scores are predictions."""


@dataclass(frozen=True)
class Learner:
    """A method to learn a ranker from clicks.

    The family is called with the learner, the log, the options, and a function to call after every tree or pass; it
    raises IdentifiabilityError if the log has nothing to learn from.
    """

    name: str  # on the command line
    reference: str  # the paper that describes it
    family: Callable[["Learner", LearningData, LearningOptions, OnRound], Learned]
    fits: Any = None  # argument of the family: a function of losses (see `learn_trees`), a loss, or the joint of towers
    source: Source = "counts"  # "pages" if counts by query and document are not sufficient
    needs_features: bool = True  # otherwise it learns factors of queries and documents
    needs_randomized: bool = False  # whether it needs the rows that were placed at random
    uses_propensities: bool = True  # otherwise it needs none, or estimates them itself
    theta_for: str | None = None  # the option without which it uses no propensities either
    objective: str = PROBABILITY  # of a model of trees
    is_probability: bool = False  # whether 1 / (1 + exp(-score)) is an attractiveness
    measure: str = "log-likelihood per impression"  # on the learning curve, larger is better
    n_fits: int = 1  # number of ensembles of trees, at most
    takes: tuple[str, ...] = OF_TREES  # names of its options

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Call the family."""
        return self.family(self, data, options, on_round)

    def counts_and_theta(self, data: LearningData) -> tuple[CountTable, Floats]:
        """Counts of cells with a theta, and theta, shape (K,); all counts and 1 for learners without propensities."""
        if self.uses_propensities:
            return data.weighted.only_cells(data.known), data.theta
        return data.weighted, np.ones(data.counts.n_cells)


_LEARNERS = Room[Learner](LEARNERS, "--learner")

get_learner, learners_that_take = _LEARNERS.get, _LEARNERS.that_take


def randomized_learners() -> list[str]:
    """Names of the learners that need the rows placed at random."""
    return [name for name, learner in _LEARNERS.plugins.items() if learner.needs_randomized]


SetsOfRows = tuple[BinnedRows, list[BinnedRows]]
"""Training rows, and validation rows if there are any."""


Grown = tuple[BoostedTrees, Rounds]
"""Trees, and their learning curve with the number of trees to use."""


def features_of(data: LearningData, numeric_learner: str | None = None) -> Features:
    """The features of the documents.

    Args:
        data: a log with features.
        numeric_learner: name of the learner, if it does not support categorical features.

    Raises:
        SchemaError: it does not, and a feature is categorical.
    """
    features = data.features
    if features is None:
        raise ValueError("this learner needs features")
    if numeric_learner and features.categorical:
        raise SchemaError(
            f"--learner {numeric_learner}: learns from numbers, and the feature "
            f"{features.names[features.categorical[0]]!r} is text. Leave it out, or make columns of 0 and 1 of it."
        )
    return features


def binned(data: LearningData, options: LearningOptions) -> SetsOfRows:
    """Bin the features of training and validation documents."""
    features = features_of(data)
    return split_held_out(
        bin_rows(features.rows, features.names, features.categorical, tree_options(options)), data.held_out
    )


def split_held_out(rows: BinnedRows, held_out: Flags) -> SetsOfRows:
    """Split rows by a mask of held-out rows, shape (n,)."""
    if not held_out.any():
        return rows, []
    return rows.subset(np.flatnonzero(~held_out)), [rows.subset(np.flatnonzero(held_out))]


def grow(
    rows: SetsOfRows,
    losses: tuple[Loss, Loss],
    options: LearningOptions,
    on_round: OnRound,
    *,
    after_tree: Callable[[BoostedTrees], None] = lambda _: None,
    objective: Mapping[str, Any] | None = None,
) -> Grown:
    """Grow trees on a loss.

    Args:
        rows: training and validation rows.
        losses: of training and validation documents.
        options: number of trees, and early stopping.
        on_round: called after each tree.
        after_tree: called with the trees after each tree, to update parameters of the losses.
        objective: parameters of an objective of LightGBM, for rows with labels; the losses then only give the curve.
    """
    (loss, held_out), (training, validation) = losses, rows
    trees = BoostedTrees(training, loss.start(), validation, objective)
    rounds, is_split = Rounds(options.early_stopping), True
    while trees.n_trees < options.trees and is_split and not rounds.over:
        is_split = trees.grow(None if objective else loss.gradients)
        after_tree(trees)
        value = held_out.per_impression(trees.validation_scores()[0]) if validation else None
        rounds.add(trees.n_trees, loss.per_impression(trees.scores()), value)
        on_round()
    return trees, rounds


def learn_trees(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow trees on `learner.fits(learner, data)`, the losses of training and validation documents."""
    return learned_trees(grow(binned(data, options), learner.fits(learner, data), options, on_round), learner.objective)


def learned_trees(grown: Grown, objective: str) -> Learned:
    """The model of the first `Rounds.best` trees."""
    trees, rounds = grown
    model = Forest(trees.model_text(rounds.best, objective))
    return Learned(model, rounds.curve, importance_table([trees], rounds.best), report={"trees": rounds.best})


def importance_table(forests: Sequence[BoostedTrees], trees: int | None = None) -> pl.DataFrame:
    """Sum `gain` and `splits` by `feature` (its number) over the first trees of each forest."""
    parts = zip(*(forest.gain_and_splits(trees) for forest in forests), strict=True)
    gain, splits = (np.sum(part, axis=0) for part in parts)
    return pl.DataFrame({"feature": range(len(gain)), "gain": gain, "splits": splits})


def sigmoid(scores: Floats) -> Floats:
    """1 / (1 + exp(-f)), without overflow."""
    return scipy.special.expit(scores)


def logit(probability: float) -> float:
    """log(p / (1 - p)) of a probability between 0 and 1."""
    return float(scipy.special.logit(probability))


SMALLEST_HESSIAN = 1e-6
"""Lower bound of the Hessian of a row: LightGBM divides by sums of these."""

_TINY = 1e-300


class LossOfCounts:
    """A loss of the scores of documents by their counts."""

    def __init__(self, counts: CountTable, theta: Floats) -> None:
        """Store the counts of the documents, in cells with a theta in (0, 1], shape (K,)."""
        self.counts, self.theta = counts, theta

    @cached_property
    def impressions(self) -> Floats:
        """Impressions n_d, shape (D,)."""
        return self.counts.sum_by_unit(self.counts.impressions)


class ClickLikelihood(LossOfCounts):
    """The likelihood of the clicks of documents, or of given labels."""

    label: Floats | None = None  # y_d in place of p_d / n_d, shape (D,); the learning curve remains that of clicks
    offset: Floats | float = 0.0  # added to scores

    def start(self) -> float:
        """The constant score by which expected clicks equal clicks; 0 with an offset by document."""
        if np.ndim(self.offset):
            return 0.0
        expected = float((self.counts.impressions * self.theta[self.counts.cell]).sum())
        return logit(float(np.clip(self.counts.clicks.sum() / max(expected, _TINY), *RATES)))

    def labels(self, gamma: Floats) -> Floats:
        """Labels p_d, or n_d y_d, shape (D,)."""
        if self.label is not None:
            return self.impressions * self.label
        return expected_attractions(self.counts, self.theta, gamma)

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of -log L at scores of shape (D,)."""
        gamma, shown = sigmoid(self.offset + scores), self.impressions
        return shown * gamma - self.labels(gamma), np.maximum(shown * gamma * (1 - gamma), SMALLEST_HESSIAN)

    def per_impression(self, scores: Floats) -> float:
        """Log L per impression at scores of shape (D,)."""
        total, gamma = 0.0, sigmoid(self.offset + scores)
        for units, block in self.counts.blocks():
            chance = self.theta[block.cell] * block.spread(gamma[units])
            clicked = block.clicks * np.log(np.maximum(chance, _TINY))
            skipped = (block.impressions - block.clicks) * np.log1p(-np.minimum(chance, 1 - 1e-16))
            total += float((clicked + skipped).sum())
        return total / max(float(self.counts.impressions.sum()), _TINY)


def likelihoods(learner: Learner, data: LearningData) -> tuple[ClickLikelihood, ClickLikelihood]:
    """The likelihood of the clicks of training and validation documents."""
    counts, theta = learner.counts_and_theta(data)
    return ClickLikelihood(counts.take(data.training), theta), ClickLikelihood(counts.take(data.validation), theta)


class SquaredError(LossOfCounts):
    """Squared error of the scores of documents."""

    @cached_property
    def clicks(self) -> Floats:
        """Clicks weighted by 1 / theta, C_d, shape (D,)."""
        return self.counts.sum_by_unit(self.counts.clicks / self.theta[self.counts.cell])

    def start(self) -> float:
        """The mean of C_d / n_d over impressions."""
        return float(self.clicks.sum() / max(self.impressions.sum(), 1.0))

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian at scores of shape (D,)."""
        return self.impressions * scores - self.clicks, self.impressions

    def per_impression(self, scores: Floats) -> float:
        """Minus the squared error per impression."""
        error = self.clicks * (1 - scores) ** 2 + (self.impressions - self.clicks) * scores**2
        return -float(error.sum() / max(self.impressions.sum(), np.finfo(float).tiny))
