"""Common parts of learners: documents with their counts, losses, and trees grown round by round.

    P(click | d, e) = theta_e gamma_d,   gamma_d = 1 / (1 + exp(-f_d))

    p_d = sum_e { c_de + (n_de - c_de) gamma_d (1 - theta_e) / (1 - theta_e gamma_d) }      n_d = sum_e n_de
    gradient of -log L by f_d:  n_d gamma_d - p_d          Hessian, its expected part:  n_d gamma_d (1 - gamma_d)

p_d is how many of the impressions showed an attractive document, as far as clicks say: the gradient is that of logistic
regression on these expected labels (generalised EM, one gradient step per M-step).

    sum_d { (C_d / 2) (1 - f_d)^2 + ((n_d - C_d) / 2) f_d^2 },   C_d = sum_e c_de / theta_e
    gradient by f_d:  n_d f_d - C_d

Its expectation is the error against attractiveness: that of all impressions, had all of them been examined. With theta
1 it is the error against click rates.

Sources: Wang, Golbandi, Bendersky, Metzler & Najork 2018; Schnabel et al. 2016; Saito et al. 2020 (for clicks, which do
not say that a document was examined in vain).
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
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, Rows, TreeOptions, bin_rows, some_rows
from posbias.core.learners.models import FactorModel, Forest, RowModel
from posbias.core.training.layout import expected_attractions

LEAST_EXAMINATION = 1e-3
"""Theta below this is taken for this: a click there would otherwise outweigh whole logs."""

_BLOCK = 1 << 17  # impressions that are worked on at a time


@dataclass(frozen=True)
class Features:
    """The features of each document."""

    rows: Rows  # shape (D, F); nan where a value is missing, and the place among the categories for text
    names: tuple[str, ...]  # F of them
    categorical: tuple[int, ...] = ()  # which of them are categories


@dataclass(frozen=True)
class Pages:
    """Pages as they were shown: page i owns the impressions `start[i]:start[i + 1]`, from the top."""

    start: Integers  # shape (P + 1,)
    document: Integers  # the number of the document of each impression, shape (N,)
    cell: Integers  # its cell, shape (N,)
    click: Floats  # 0 or 1, shape (N,); a sum of weights where rows carry weights


@dataclass(frozen=True)
class LearningData:
    """A log, as learners see it. A document is a (query, document); those of a query stand together."""

    query: Integers  # the number of each document's query, ascending, shape (D,)
    held_out: Flags  # whether a document's query is set apart for validation, shape (D,)
    counts: CountTable  # impressions and clicks per document and cell
    examination: Floats  # theta of each cell as a probability, shape (K,); nan where it is not known
    position: Integers  # of each cell, from 1, shape (K,)
    features: Features | None = None  # of each document; None where learners do without
    pages: Pages | None = None  # as shown; None where only counts are needed
    item: Integers | None = None  # the number of the document itself, whatever the query (or user), shape (D,), or None
    knowledge: Floats | None = None  # the ranker's own score of each document, shape (D,); None where the log lacks it
    weight: Floats | None = None  # what an impression of each document counts, shape (D,); None: 1
    covariance: Floats | None = None  # of log theta, shape (K, K); None where theta is taken as known
    randomized: CountTable | None = None  # counts of rows whose documents were placed at random; None if not needed
    curve: Integers | None = None  # of cells of several columns: the number of each one's values, shape (K,)

    @property
    def place(self) -> Integers:
        """The position of each cell; of cells of several columns their number by position, from 1, shape (K,)."""
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
        """The cells that have a theta, shape (K,)."""
        return np.isfinite(self.examination)

    @property
    def theta(self) -> Floats:
        """Theta in [LEAST_EXAMINATION, 1], shape (K,); 1 where it is not known, which `known` tells."""
        return np.where(self.known, np.clip(np.nan_to_num(self.examination), LEAST_EXAMINATION, 1.0), 1.0)

    @property
    def weighted(self) -> CountTable:
        """The counts, times what an impression of each document counts."""
        if self.weight is None:
            return self.counts
        times = self.weight[self.counts.unit_of_entry]
        return replace(self.counts, impressions=self.counts.impressions * times, clicks=self.counts.clicks * times)

    def take(self, documents: Integers) -> "LearningData":
        """The log of documents, by ascending number; without pages, which would lack the other documents."""
        features = self.features

        def of(values: Any) -> Any:  # noqa: ANN401 - an array or None
            return None if values is None else values[documents]

        return replace(
            self,
            query=self.query[documents],
            held_out=self.held_out[documents],
            counts=self.counts.take(documents),
            features=None if features is None else replace(features, rows=some_rows(features.rows, documents)),
            pages=None,
            item=of(self.item),
            knowledge=of(self.knowledge),
            weight=of(self.weight),
        )

    @property
    def learnt(self) -> Integers:
        """The documents to learn from, ascending."""
        return np.flatnonzero(~self.held_out)

    @property
    def apart(self) -> Integers:
        """The documents that are set apart, ascending."""
        return np.flatnonzero(self.held_out)


@dataclass(frozen=True)
class Lists:
    """P pages of one length L, from the top."""

    document: Integers  # which of the scored documents stands there, shape (P, L)
    cell: Integers  # its cell, shape (P, L)
    click: Floats  # 0 or 1, or a sum of weights, shape (P, L)


def clicked_lists(data: LearningData, documents: Integers) -> list[Lists]:
    """The pages that have a click and show some documents, which are numbered by their place among these.

    Args:
        data: a log with pages. All documents of a page are of one query.
        documents: those of some queries, ascending: to learn from, or set apart.
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
    """The pages that a learner learns from.

    Raises:
        IdentifiabilityError: nothing is ranked against anything there.
    """
    pages = clicked_lists(data, data.learnt)
    if not any(lists.document.shape[1] > 1 for lists in pages):
        raise IdentifiabilityError(
            f"--learner {learner}: no page that is learnt from has a click and a second document to rank the clicked "
            "one against. Name the columns of one results page with --session, or choose another learner, such as pbm."
        )
    return pages


def with_fewer_negatives(data: LearningData, share: float, seed: int) -> LearningData:
    """A log with a share of the documents without a click, drawn at random, each counted 1 / share times.

    Every sum over documents, such as a loss and its gradient, has the whole log's as its expectation. Documents that
    are held out all stay as they are.

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
    some, times = data.take(kept), np.where(unclicked[kept], 1 / share, 1.0)
    more = some.counts.impressions * times[some.counts.unit_of_entry]
    return replace(some, counts=replace(some.counts, impressions=more))


def balance_weights(data: LearningData, balance: Balance) -> Floats | None:
    """Weights of the impressions of each document, shape (D,); None where each counts 1.

    w_d = m (N / N_q)^a, N_q the impressions of the query of d, N their mean; a = 0, 1/2 and 1 for traffic, sqrt and
    query. m keeps the sum over all impressions.
    """
    power = BALANCES[balance]
    if not power:
        return None
    impressions = data.counts.sum_by_unit(data.counts.impressions)
    of_query = np.bincount(data.query, impressions)
    factor = np.divide(of_query.mean(), of_query, out=np.ones_like(of_query), where=of_query > 0) ** power
    return (factor * (of_query.sum() / (factor @ of_query)))[data.query]


Source = Literal["counts", "pages"]
OnRound = Callable[[], None]

OF_TREES = ("trees", "learning_rate", "leaves", "leaf_documents")
"""The options of learners that grow trees."""

ROUND, TRAINING, VALIDATION = "round", "training", "validation"
"""The columns of a learning curve."""

RATES = (1e-4, 0.9)
"""Limits of the click rate that learning starts with."""


def tree_options(options: LearningOptions) -> TreeOptions:
    """Map the options of learning to those of trees."""
    leaf = options.leaf_documents or TreeOptions.leaf_rows
    return TreeOptions(
        options.trees, options.learning_rate, options.leaves, leaf, row_share=options.row_share, seed=options.seed
    )


Warnings = dict[str, dict[str, float]]
"""The figures of reasons not to use what was learnt, by their codes."""


@dataclass(frozen=True)
class Learned:
    """The result of a learner."""

    model: RowModel | FactorModel  # scores documents
    # `round` from 1, `training` and, with validation, `validation`: what is learnt by, per impression unless the
    # learner says otherwise, larger is better
    curve: pl.DataFrame
    importance: pl.DataFrame | None = None  # `feature` (its number), `gain` and `splits`, where the model is trees
    # theta as the learner itself estimates it, relative to the first cell, shape (K,); None where it is given
    propensities: Floats | None = None
    report: dict[str, Any] = field(default_factory=dict[str, Any])  # what else the manifest says
    warnings: Warnings = field(default_factory=dict[str, dict[str, float]])  # why not to use it


class Loss(Protocol):
    """A loss of the scores of some documents, which falls as the scores get better."""

    def start(self) -> float:
        """The score to start with: 0 where only differences of scores count."""
        return 0.0

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss by each score, shapes (n,)."""
        ...

    def per_impression(self, scores: Floats) -> float:
        """The value on the learning curve, the larger the better."""
        ...


class Rounds:
    """The learning curve, which round was the best, and when to stop."""

    def __init__(self, patience: int | None) -> None:
        """Begin without a round.

        Args:
            patience: after how many rounds without a better one to stop; None: never.
        """
        self._patience = patience
        self._rounds: list[tuple[int, float, float | None]] = []
        self._best_value = float("-inf")
        self._without = 0
        self.best = 0  # the number of the round that is kept: the best where learning may stop early, else the last

    def add(self, number: int, training: float, validation: float | None) -> None:
        """Take note of a round: its number, ascending, and how well it fits."""
        self._rounds.append((number, training, validation))
        if self._patience is None or validation is None or validation > self._best_value:
            self.best, self._without = number, 0
            self._best_value = self._best_value if validation is None else validation
        else:
            self._without += 1

    @property
    def over(self) -> bool:
        """True once held-out queries have fared no better for as many rounds as it takes to stop."""
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
"""LightGBM's name of a model whose scores are logits."""

RAW = "regression"
"""LightGBM's name of a model whose scores are the values themselves."""


@dataclass(frozen=True)
class Learner:
    """A way to learn a ranker from clicks.

    Its family is called with it, the log (only what this learner needs is there), the options, and what to call after
    every tree or pass. It raises IdentifiabilityError if the log has nothing to learn from.
    """

    name: str  # on the command line
    reference: str  # the paper that describes it
    family: Callable[["Learner", LearningData, LearningOptions, OnRound], Learned]
    fits: Any = None  # what its family fits: losses (see `learn_trees`), or how towers are joined
    source: Source = "counts"  # by query and document, for which statistics will do, or pages
    needs_features: bool = True  # else it learns from who saw what
    needs_randomized: bool = False  # to know which rows were placed at random
    uses_propensities: bool = True  # else it needs none, or estimates its own
    theta_for: str | None = None  # the switch without which it takes no theta all the same
    objective: str = PROBABILITY  # of a model of trees
    is_probability: bool = False  # 1 / (1 + exp(-score)) is an attractiveness
    measure: str = "log-likelihood per impression"  # what its learning curve shows, the larger the better
    n_fits: int = 1  # so many times trees are grown, at most
    takes: tuple[str, ...] = OF_TREES

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Learn, as the family does."""
        return self.family(self, data, options, on_round)

    def examined(self, data: LearningData) -> tuple[CountTable, Floats]:
        """The counts to learn from, and theta, shape (K,): of cells that have one, or of all and 1 if it takes none."""
        if self.uses_propensities:
            return data.weighted.only_cells(data.known), data.theta
        return data.weighted, np.ones(data.counts.n_cells)


_LEARNERS = Room[Learner](LEARNERS, "--learner")

get_learner, learners_that_take = _LEARNERS.get, _LEARNERS.that_take


def learners_from_randomized() -> list[str]:
    """The learners that need to know which rows were placed at random."""
    return [name for name, learner in _LEARNERS.plugins.items() if learner.needs_randomized]


SetsOfRows = tuple[BinnedRows, list[BinnedRows]]
"""Rows to learn from, and those that are set apart, if there are any."""


Grown = tuple[BoostedTrees, Rounds]
"""Trees, and the learning curve with the number of those that are kept."""


def features_of(data: LearningData, of_numbers: str | None = None) -> Features:
    """The features of the documents, which not all logs have.

    Args:
        data: the log.
        of_numbers: the learner that takes no text, if it is one of these.

    Raises:
        SchemaError: it is, and a feature is text.
    """
    features = data.features
    if features is None:
        raise ValueError("this learner needs features")
    if of_numbers and features.categorical:
        raise SchemaError(
            f"--learner {of_numbers}: learns from numbers, and the feature {features.names[features.categorical[0]]!r} "
            "is text. Leave it out, or make columns of 0 and 1 of it."
        )
    return features


def binned(data: LearningData, options: LearningOptions) -> SetsOfRows:
    """The features of the documents to learn from, and of those that are set apart, if there are any."""
    features = features_of(data)
    return split_rows(
        bin_rows(features.rows, features.names, features.categorical, tree_options(options)), data.held_out
    )


def split_rows(rows: BinnedRows, held_out: Flags) -> SetsOfRows:
    """Rows in two, by whether they are held out, shape (n,)."""
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
        rows: features to learn from, and those apart.
        losses: of the documents to learn from, and of those apart.
        options: how many trees, and when to stop.
        on_round: is called after each.
        after_tree: is shown the trees after each, for losses that have something of their own to update.
        objective: one of LightGBM's own, for rows that have its labels; then the losses only say how well trees fit.
    """
    (loss, held_out), (learn_from, apart) = losses, rows
    trees = BoostedTrees(learn_from, loss.start(), apart, objective)
    rounds, is_split = Rounds(options.early_stopping), True
    while trees.n_trees < options.trees and is_split and not rounds.over:
        is_split = trees.grow(None if objective else loss.gradients)
        after_tree(trees)
        value = held_out.per_impression(trees.scores_apart()[0]) if apart else None
        rounds.add(trees.n_trees, loss.per_impression(trees.scores()), value)
        on_round()
    return trees, rounds


def learn_trees(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow trees on the losses that the learner fits, of the documents to learn from and of those set apart."""
    return learned_by(grow(binned(data, options), learner.fits(learner, data), options, on_round), learner.objective)


def learned_by(grown: Grown, objective: str) -> Learned:
    """The model of the trees that are kept."""
    trees, rounds = grown
    model = Forest(trees.model_text(rounds.best, objective))
    return Learned(model, rounds.curve, importance_of([trees], rounds.best), report={"trees": rounds.best})


def importance_of(forests: Sequence[BoostedTrees], trees: int | None = None) -> pl.DataFrame:
    """`feature` (its number), `gain` and `splits`, of the first trees of each."""
    gain, splits = (
        np.sum(each, axis=0) for each in zip(*(forest.gain_and_splits(trees) for forest in forests), strict=True)
    )
    return pl.DataFrame({"feature": range(len(gain)), "gain": gain, "splits": splits})


def sigmoid(scores: Floats) -> Floats:
    """1 / (1 + exp(-f)), without overflow."""
    return scipy.special.expit(scores)


def logit(probability: float) -> float:
    """log(p / (1 - p)) of a probability between 0 and 1."""
    return float(scipy.special.logit(probability))


_FLATTEST = 1e-6  # the least Hessian of a row: LightGBM divides by sums of them
_TINY = 1e-300


class LossOfCounts:
    """A loss of the scores of some documents by their counts."""

    def __init__(self, counts: CountTable, theta: Floats) -> None:
        """Take the counts of the documents, in cells that have a theta, in (0, 1], shape (K,)."""
        self.counts, self.theta = counts, theta

    @cached_property
    def impressions(self) -> Floats:
        """Impressions n_d, shape (D,)."""
        return self.counts.sum_by_unit(self.counts.impressions)


class ClickLikelihood(LossOfCounts):
    """The likelihood of some documents' clicks, or of labels that are given."""

    label: Floats | None = None  # y_d in place of p_d / n_d, shape (D,); the learning curve is that of clicks
    offset: Floats | float = 0.0  # to which scores are added

    def start(self) -> float:
        """The score of every document for which expected clicks are those that are there; 0 beside an offset."""
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
        return shown * gamma - self.labels(gamma), np.maximum(shown * gamma * (1 - gamma), _FLATTEST)

    def per_impression(self, scores: Floats) -> float:
        """Log L per impression at scores of shape (D,)."""
        total, gamma = 0.0, sigmoid(self.offset + scores)
        for units, block in self.counts.blocks():
            chance = self.theta[block.cell] * block.spread(gamma[units])
            of_clicks = block.clicks * np.log(np.maximum(chance, _TINY))
            of_skips = (block.impressions - block.clicks) * np.log1p(-np.minimum(chance, 1 - 1e-16))
            total += float((of_clicks + of_skips).sum())
        return total / max(float(self.counts.impressions.sum()), _TINY)


def likelihoods(learner: Learner, data: LearningData) -> tuple[ClickLikelihood, ClickLikelihood]:
    """The likelihood of the clicks of the documents to learn from, and of those set apart."""
    counts, theta = learner.examined(data)
    return ClickLikelihood(counts.take(data.learnt), theta), ClickLikelihood(counts.take(data.apart), theta)


class SquaredError(LossOfCounts):
    """The error of some documents' scores."""

    @cached_property
    def clicks(self) -> Floats:
        """Clicks C_d, shape (D,)."""
        return self.counts.sum_by_unit(self.counts.clicks / self.theta[self.counts.cell])

    def start(self) -> float:
        """The mean, at which boosting starts."""
        return float(self.clicks.sum() / max(self.impressions.sum(), 1.0))

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian at scores of shape (D,)."""
        return self.impressions * scores - self.clicks, self.impressions

    def per_impression(self, scores: Floats) -> float:
        """Minus the squared error per impression."""
        missed = self.clicks * (1 - scores) ** 2 + (self.impressions - self.clicks) * scores**2
        return -float(missed.sum() / max(self.impressions.sum(), np.finfo(float).tiny))
