"""GBrank: trees fitted to pairs of documents that a ranking has in the wrong order, the fits averaged.

    pairs (x_i, x_j) of a query, i with the significantly higher click rate;  h_0 = 0
    S_m = the pairs with h_{m-1}(x_i) < h_{m-1}(x_j) + tau
    g_m = boosted regression trees fitted to  (x_i, h_{m-1}(x_j) + tau)  and  (x_j, h_{m-1}(x_i) - tau)  of S_m
    h_m = (m h_{m-1} + eta g_m) / (m + 1)

which lowers sum max(0, h(x_j) - h(x_i) + tau)^2 / 2. A document of many pairs has many targets: their mean, weighted
with their number, has the same least squares. Unrolled, h_M = eta / (M + 1) sum_m g_m: the model file holds the trees
of all fits, scaled. eta is fixed at 1, and tau at 1 or what is named. With a margin penalty lambda, tau is after every
fit what the paper's objective makes it,

    tau = argmin over tau >= 0 of  mean over pairs of max(0, tau - d)^2 / 2 - lambda tau^2,   d = h(x_i) - h(x_j)

which is finite for lambda < 1/2. Scores twice as large then have a tau twice as large and an objective four times as
far below 0, so that it rewards growth as well as order, and cannot say when to stop.

The paper takes its pairs from judgments and from clicks whose counts differ significantly; here click rates are
compared as `click_rate_pairs` says.

Source: Zheng, Chen, Sun & Zha 2007 (algorithm 1).
"""

from dataclasses import dataclass, replace

import numpy as np

from posbias.core.arrays.count_table import Flags, Floats, Integers, sum_by_number
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, bin_rows
from posbias.core.learners.click_rate_pairs import RatePairs, significant_pairs
from posbias.core.learners.data import LearningData
from posbias.core.learners.forest import Forest
from posbias.core.learners.growing import Rounds, features_of, importance_of
from posbias.core.learners.learner import OF_TREES, Learned, Learner, LearningOptions, OnRound
from posbias.core.learners.model_text import ModelText, scaled_sum
from posbias.core.learners.models import TreeModel

ETA = 1.0
TREES_OF_A_FIT = 20
"""How many trees each g_m has."""


class GBRankLearner(Learner):
    """Averaged fits to pairs of documents whose click rates differ."""

    name = "gbrank"
    reference = "Zheng et al. 2007"
    about = "pairs of documents whose click rates differ significantly"
    does_without = "raw_rates"
    measure = "squared hinge loss per pair, negative"
    takes = (*OF_TREES, "raw_rates", "significance", "multiple_tests", "tau", "margin_penalty")

    def learn(self, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
        """Find the pairs, and fit again and again to those in the wrong order."""
        pairs, apart = (_pairs(data, wanted, options) for wanted in (~data.held_out, data.held_out))
        if not len(pairs.higher):
            raise IdentifiabilityError(
                f"--learner gbrank: of {pairs.n_tested:,} pairs of documents, none has click rates that differ at the "
                f"level of {options.significance:g}. Add more days of logs, or raise --significance."
            )
        features = features_of(data)
        rows = bin_rows(features.rows, features.names, features.categorical, options.trees)
        learned = learn_from(rows, pairs, apart, options, on_round)
        return replace(learned, report=learned.report | {"pairs": len(pairs.higher), "pairs_tested": pairs.n_tested})


def _pairs(data: LearningData, wanted: Flags, options: LearningOptions) -> RatePairs:
    """The pairs of some documents, by the clicks and the exposure of the cells that count."""
    counts = data.counts.only_cells(data.known) if options.corrected else data.counts
    seen = counts.impressions * (data.theta[counts.cell] if options.corrected else 1.0)
    return significant_pairs(
        data.query,
        counts.sum_by_unit(counts.clicks),
        counts.sum_by_unit(seen) * wanted,
        corrected=options.corrected,
        level=options.significance,
        multiple_tests=options.multiple_tests,
    )


@dataclass(frozen=True)
class Fit:
    """One of the fits.

    Attributes:
        trees: its trees g.
        scores: what they say of all documents, shape (D,).
    """

    trees: BoostedTrees
    scores: Floats


def learn_from(
    rows: BinnedRows, pairs: RatePairs, apart: RatePairs, options: LearningOptions, on_round: OnRound
) -> Learned:
    """Fit until there are trees enough, until no pair is left to fit, or until held-out pairs fare no better."""
    h, tau = np.zeros(rows.n_rows), options.tau
    fits: list[Fit] = []
    rounds = Rounds(options.early_stopping)
    while rounds.last < options.trees.trees and not rounds.over:
        wrong = h[pairs.higher] < h[pairs.lower] + tau
        if not wrong.any():
            break
        n_trees = min(TREES_OF_A_FIT, options.trees.trees - rounds.last)
        fits.append(fit(rows, pairs.higher[wrong], pairs.lower[wrong], h, tau, n_trees, on_round))
        h = (len(fits) * h + ETA * fits[-1].scores) / (len(fits) + 1)
        if options.margin_penalty:
            tau = best_margin(h[pairs.higher] - h[pairs.lower], options.margin_penalty)
        value = -hinge_loss(apart, h, tau) if len(apart.higher) else None
        rounds.add(rounds.last + n_trees, -hinge_loss(pairs, h, tau), value)
    learned = _average(fits[: -(-rounds.best // TREES_OF_A_FIT)], rounds)
    return replace(learned, report=learned.report | {"tau": tau})


def _average(fits: list[Fit], rounds: Rounds) -> Learned:
    """The model h_M = eta / (M + 1) sum_m g_m."""
    models = [ModelText.parse(one.trees.model_text()) for one in fits]
    model = TreeModel(Forest(scaled_sum(models, ETA / (len(fits) + 1)).complete()))
    importance = importance_of([one.trees for one in fits])
    return Learned(model, rounds.curve, importance, report={"trees": rounds.best})


def best_margin(apart: Floats, penalty: float) -> float:
    """The tau >= 0 that the objective is least at, given how far apart the scores of pairs are, shape (P,).

    With the k least differences below tau it is a parabola, (k / P - 2 lambda) tau^2 / 2 - tau sum d / P + ..., whose
    lowest point counts where it lies between the k-th difference and the next, and above 0.
    """
    ordered = np.sort(apart)
    n_pairs, k = len(ordered), np.arange(1, len(ordered) + 1)
    bend = k / n_pairs - 2 * penalty
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    tau = np.divide(sums / n_pairs, bend, out=np.full(n_pairs, np.nan), where=bend > 0)
    within = (tau >= np.maximum(ordered, 0)) & (tau <= np.append(ordered[1:], np.inf))
    value = (bend * tau**2 / 2 - tau * sums / n_pairs + squares / (2 * n_pairs))[within]
    at_zero = float((np.maximum(0.0, -ordered) ** 2).mean() / 2)
    return float(tau[within][np.argmin(value)]) if len(value) and value.min() < at_zero else 0.0


def hinge_loss(pairs: RatePairs, h: Floats, tau: float) -> float:
    """max(0, h(x_j) - h(x_i) + tau)^2 / 2, the mean over pairs."""
    return float((np.maximum(0.0, h[pairs.lower] - h[pairs.higher] + tau) ** 2).mean() / 2)


def fit(
    rows: BinnedRows, higher: Integers, lower: Integers, h: Floats, tau: float, n_trees: int, on_round: OnRound
) -> Fit:
    """Regression trees g on what the documents of some pairs should score."""
    documents, target, weight = targets(higher, lower, h, tau)
    start = float(weight @ target / weight.sum())
    trees = BoostedTrees(rows.subset(documents), start, [rows])
    while trees.n_trees < n_trees:
        on_round()
        if not trees.grow(lambda scores: (weight * (scores - target), weight)):
            break
    return Fit(trees, trees.scores_apart()[0])


def targets(higher: Integers, lower: Integers, h: Floats, tau: float) -> tuple[Integers, Floats, Floats]:
    """The documents of pairs, ascending; the mean of what each should score, and in how many pairs it is."""
    document = np.concatenate([higher, lower])
    target = np.concatenate([h[lower] + tau, h[higher] - tau])
    count = np.bincount(document, minlength=len(h)).astype(np.float64)
    some = np.flatnonzero(count)
    return some, sum_by_number(document, target, len(h))[some] / count[some], count[some]
