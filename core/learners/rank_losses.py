"""Listwise and pairwise losses for boosted trees: weighted ranks, dual learning, and pairs of click rates.

    r_i = 1 + sum_{j on the page of i, j != i} log2(1 + exp(f_j - f_i))        at least the rank of i on its page
    loss = sum_{clicks i} w_i phi(r_i),   w_i = 1 / max(theta_i, LEAST_PROPENSITY)

    ipw-arp    phi(r) = r                     minimise sum r_i / theta_i
    ipw-dcg    phi(r) = -1 / log2(1 + r)      maximise sum 1 / (theta_i log2(1 + r_i))

    gradient by f_j:   sum_i w_i phi'(r_i) s_ij,          s_ij = 1 / (1 + exp(f_i - f_j)) / log 2
    gradient by f_i:  -w_i phi'(r_i) sum_j s_ij
    Hessian:           w_i phi'(r_i) s_ij (1 - s_ij log 2), of the tangent of phi at r_i

phi is increasing and concave, so that the tangent lies above it, and a step lowers the loss itself (convex-concave
procedure). Clicks in cells without a theta have weight 0; their documents remain among those ranked against.

The expectation of the first over clicks is the sum of the ranks of relevant documents, as if all were examined. The
2017 paper bounds the rank by hinges of a linear model (Propensity SVM-Rank); trees need a bound with a second
derivative, the logistic one of the 2019 paper. The second is a lower bound of the DCG of clicked documents, and not
convex: ranks near the top count more.

    ranking:       -sum_{clicks} (theta_1 / theta_k)  log softmax(f)_d      over the documents of the page
    examination:   -sum_{clicks} (gamma_1 / gamma_d)  log softmax(g)_k      over the positions of the page

gamma = softmax(f), theta = softmax(g); gamma_1 is that of the document at the top of the page, theta_1 that of the
first position. Only ratios within a page matter, so that lengths of pages do not. Weights are clipped at 100. With
every tree for f, each g_k takes half a Newton step, w_k = gamma_1 / gamma_d where k was clicked:

    g_k <- g_k - 1/2 sum_pages (W p_k - w_k) / sum_pages W p_k (1 - p_k),   p = softmax(g), W = sum_k w_k

The learning curve shows the mean over clicks of the log-likelihood softmax(f + g) of the clicked document. The paper
takes stochastic steps of a network for f; here trees take Newton steps, over all pages.

Sources: Joachims, Swaminathan & Schnabel 2017 (the weighted rank); Agarwal, Takatsu, Zaitsev & Joachims 2019 (PropARP,
PropDCG); Ai, Bi, Luo, Guo & Croft 2018 (dual learning).

    pairs (x_i, x_j) of a query, i with the significantly higher click rate;  h_0 = 0
    S_m = the pairs with h_{m-1}(x_i) < h_{m-1}(x_j) + tau
    g_m = boosted regression trees fitted to  (x_i, h_{m-1}(x_j) + tau)  and  (x_j, h_{m-1}(x_i) - tau)  of S_m
    h_m = (m h_{m-1} + eta g_m) / (m + 1)

which lowers sum max(0, h(x_j) - h(x_i) + tau)^2 / 2. The targets of a document of many pairs are replaced by their
mean, weighted with their number, which has the same least squares fit. Unrolled, h_M = eta / (M + 1) sum_m g_m: the
model file has the trees of all fits, scaled. eta is 1, and tau is 1 by default. With a margin penalty lambda, tau
minimises the objective of the paper after every fit,

    tau = argmin over tau >= 0 of  mean over pairs of max(0, tau - d)^2 / 2 - lambda tau^2,   d = h(x_i) - h(x_j)

which is finite for lambda < 1/2. Scores twice as large then have twice the tau and four times the (negative) objective,
which rewards growth as well as order, and is no criterion to stop.

    raw:        p_i = c_i / n_i against p_j = c_j / n_j, p = (c_i + c_j) / (n_i + n_j):
                z = (p_i - p_j) / sqrt(p (1 - p) (1 / n_i + 1 / n_j))
    corrected:  c_i of c_i + c_j clicks, by equal attractiveness binomial with probability E_i / (E_i + E_j),
                E = sum_k n_k theta_k:  the exact two-sided binomial test

Raw rates also differ by position; corrected rates compare clicks with examinations. The level of either test is that of
a single pair. Over all pairs of a log, "bonferroni" bounds the familywise error rate, "fdr" the false discovery rate
(Benjamini & Hochberg 1995).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy

from posbias.core.arrays.count_table import Flags, Floats, Integers, starts, sum_by_number
from posbias.core.choices import LearningOptions
from posbias.core.errors import IdentifiabilityError
from posbias.core.learners import learning
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, ModelText, bin_rows, scaled_sum
from posbias.core.learners.learning import Learned, Learner, LearningData, Lists, Loss, OnRound, Rounds
from posbias.core.learners.models import Forest

LEAST_PROPENSITY = 0.01
"""Lower limit at which propensities are clipped, as in training files."""


_LOG_2 = float(np.log(2))
_LARGEST_WEIGHT = 100.0
_TINY = 1e-300
_STEP = 0.5  # of a Newton step: theta and the ranker move at once


Cost = tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]
"""The cost phi(r) of a rank, and its derivative phi'(r) > 0."""

AVERAGE_RANK: Cost = (lambda rank: rank, np.ones_like)
DISCOUNTED_GAIN: Cost = (
    lambda rank: -1 / np.log2(1 + rank),
    lambda rank: 1 / ((1 + rank) * np.log(2) * np.log2(1 + rank) ** 2),
)


@dataclass(frozen=True)
class BoundedRanks(Loss):
    """Sum over clicks of w_i phi(r_i), r_i the bounded rank of the clicked document."""

    lists: list[Lists]
    weight: Floats  # w of a click in each cell, shape (K,)
    n_documents: int  # number of scored documents n
    cost: Cost

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss at scores of shape (n,)."""
        gradient, hessian = np.zeros(self.n_documents), np.zeros(self.n_documents)
        for weight, rank, above, clicked, shown in self._clicks(scores):
            pull = (weight * self.cost[1](rank) / _LOG_2)[:, np.newaxis] * above
            curvature = pull * (1 - above)
            gradient += self._sum(shown, pull) - self._sum(clicked, pull.sum(axis=1))
            hessian += self._sum(shown, curvature) + self._sum(clicked, curvature.sum(axis=1))
        return gradient, np.maximum(hessian, learning.SMALLEST_HESSIAN)

    def per_impression(self, scores: Floats) -> float:
        """Weighted mean of -phi(r_i) over clicks."""
        sums = [(float(weight @ self.cost[0](rank)), float(weight.sum())) for weight, rank, *_ in self._clicks(scores)]
        total, weight = sum(cost for cost, _ in sums), sum(weight for _, weight in sums)
        return -total / weight if weight else 0.0

    def _clicks(self, scores: Floats) -> Iterator[tuple[Floats, Floats, Floats, Integers, Integers]]:
        """Yield the C clicks i with a weight, by block of pages of equal length L.

        w_i and r_i, shape (C,); s_ij log 2, 0 for j = i, shape (C, L); documents i, shape (C,), and j, shape (C, L).
        """
        for lists in self.lists:
            weights = lists.click * self.weight[lists.cell]
            page, place = np.nonzero(weights)
            clicked, shown = lists.document[page, place], lists.document[page]
            excess = scores[shown] - scores[clicked][:, np.newaxis]
            rank = np.logaddexp(0.0, excess).sum(axis=1) / _LOG_2  # the term j = i is log2(1 + exp(0)) = 1
            above = learning.sigmoid(excess)
            above[np.arange(len(clicked)), place] = 0.0
            yield weights[page, place], rank, above, clicked, shown

    def _sum(self, document: Integers, values: Floats) -> Floats:
        return sum_by_number(document.ravel(), values.ravel(), self.n_documents)


def bounded_ranks(learner: Learner, data: LearningData, cost: Cost) -> tuple[BoundedRanks, BoundedRanks]:
    """Losses of training and validation documents, clicks weighted by 1 / propensity."""
    weight = np.where(data.known, 1 / np.maximum(data.theta, LEAST_PROPENSITY), 0.0)
    training = BoundedRanks(learning.lists_to_learn_from(data, learner.name), weight, len(data.training), cost)
    validation = BoundedRanks(learning.clicked_lists(data, data.validation), weight, len(data.validation), cost)
    return training, validation


def learn_dual(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow a tree and take a step of theta simultaneously, both from the state before."""
    equal = np.zeros_like(data.theta)  # g = 0: theta is 1 at the start
    loss = WeightedSoftmax(learning.lists_to_learn_from(data, learner.name), len(data.training), equal)
    held_out = WeightedSoftmax(learning.clicked_lists(data, data.validation), len(data.validation), equal)
    after, scores = list[Floats](), np.zeros(len(data.training))

    def step(trees: BoostedTrees) -> None:
        nonlocal scores
        gradient, hessian = examination_gradients(loss.lists, loss.examination, scores)
        moved = loss.examination - _STEP * gradient / np.maximum(hessian, learning.SMALLEST_HESSIAN)
        loss.examination = held_out.examination = moved - moved[np.argmin(data.position)]
        after.append(loss.examination)
        scores = trees.scores()

    grown = learning.grow(learning.binned(data, options), (loss, held_out), options, on_round, after_tree=step)
    return replace(learning.learned_trees(grown, learner.objective), propensities=np.exp(after[grown[1].best - 1]))


@dataclass
class WeightedSoftmax(Loss):
    """The loss of ranking in dual learning."""

    lists: list[Lists]  # pages with clicks
    n_documents: int  # number of scored documents n
    examination: Floats  # current g of each cell, 0 at the first position, shape (K,)

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss at scores of shape (n,)."""
        gradient, hessian = np.zeros(self.n_documents), np.zeros(self.n_documents)
        weight = np.minimum(np.exp(-self.examination), _LARGEST_WEIGHT)  # theta_1 / theta_k
        for block in self.lists:
            _add_softmax(block.click * weight[block.cell], scores, block.document, gradient, hessian)
        return gradient, np.maximum(hessian, learning.SMALLEST_HESSIAN)

    def per_impression(self, scores: Floats) -> float:
        """Mean over clicks of log softmax(f + g), which unlike the losses has no changing weights."""
        total = clicks = 0.0
        for block in self.lists:
            share = scipy.special.softmax(scores[block.document] + self.examination[block.cell], axis=1)
            total += float((block.click * np.log(np.maximum(share, _TINY))).sum())
            clicks += float(block.click.sum())
        return total / clicks if clicks else 0.0


def examination_gradients(lists: list[Lists], examination: Floats, scores: Floats) -> tuple[Floats, Floats]:
    """The gradient and the Hessian of the loss of examination by each g_k, shapes (K,)."""
    gradient, hessian = np.zeros_like(examination), np.zeros_like(examination)
    for block in lists:
        excess = scores[block.document] - scores[block.document[:, :1]]
        weight = block.click * np.exp(np.clip(-excess, -np.log(_LARGEST_WEIGHT), np.log(_LARGEST_WEIGHT)))
        _add_softmax(weight, examination, block.cell, gradient, hessian)
    return gradient, hessian


def _add_softmax(weight: Floats, values: Floats, number: Integers, gradient: Floats, hessian: Floats) -> None:
    """Add the derivatives of -sum w log softmax(values[number]) by row, w and number of shape (P, L)."""
    total, share = weight.sum(axis=1, keepdims=True), scipy.special.softmax(values[number], axis=1)
    gradient += sum_by_number(number.ravel(), (total * share - weight).ravel(), len(values))
    hessian += sum_by_number(number.ravel(), (total * share * (1 - share)).ravel(), len(values))


ETA = 1.0
TREES_OF_A_FIT = 20
"""Number of trees of each g_m."""

_BLOCK = 1 << 18  # pairs per block


@dataclass(frozen=True)
class RatePairs:
    """P pairs of documents of significantly different click rates."""

    higher: Integers  # documents with the higher click rate, shape (P,)
    lower: Integers  # documents with the lower click rate, shape (P,)
    n_tested: int  # number of pairs tested


def learn_from_pairs(_: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Select significant pairs, and repeatedly fit trees to pairs that are not in order by tau."""
    pairs, apart = (_significant_pairs(data, half, options) for half in (~data.held_out, data.held_out))
    if not len(pairs.higher):
        raise IdentifiabilityError(
            f"--learner gbrank: of {pairs.n_tested:,} pairs of documents, none has click rates that differ at the "
            f"level of {options.significance:g}. Add more days of logs, or raise significance."
        )
    features = learning.features_of(data)
    rows = bin_rows(features.rows, features.names, features.categorical, learning.tree_options(options))
    h, tau, fits = np.zeros(rows.n_rows), options.tau, list[BoostedTrees]()
    rounds = Rounds(options.early_stopping)
    while rounds.last < options.trees and not rounds.over:
        wrong = h[pairs.higher] < h[pairs.lower] + tau
        if not wrong.any():
            break
        n_trees = min(TREES_OF_A_FIT, options.trees - rounds.last)
        fits.append(fit(rows, targets(pairs.higher[wrong], pairs.lower[wrong], h, tau), n_trees, on_round))
        h = (len(fits) * h + ETA * fits[-1].validation_scores()[0]) / (len(fits) + 1)
        if options.margin_penalty:
            tau = best_margin(h[pairs.higher] - h[pairs.lower], options.margin_penalty)
        value = -hinge_loss(apart, h, tau) if len(apart.higher) else None
        rounds.add(rounds.last + n_trees, -hinge_loss(pairs, h, tau), value)
    best = fits[: -(-rounds.best // TREES_OF_A_FIT)]
    models = [ModelText.parse(trees.model_text()) for trees in best]
    average = scaled_sum(models, [ETA / (len(best) + 1)] * len(models))
    report = {"trees": rounds.best, "tau": tau, "pairs": len(pairs.higher), "pairs_tested": pairs.n_tested}
    return Learned(Forest(average.complete()), rounds.curve, learning.importance_table(best), report=report)


def best_margin(differences: Floats, penalty: float) -> float:
    """The tau >= 0 of the least objective, given the score differences d of pairs, shape (P,).

    With the k smallest differences below tau, the objective is (k / P - 2 lambda) tau^2 / 2 - tau sum d / P + ..., a
    parabola whose minimum is feasible between the k-th difference and the next, and above 0.
    """
    ordered = np.sort(differences)
    n_pairs, k = len(ordered), np.arange(1, len(ordered) + 1)
    curvature = k / n_pairs - 2 * penalty
    sums, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    tau = np.divide(sums / n_pairs, curvature, out=np.full(n_pairs, np.nan), where=curvature > 0)
    within = (tau >= np.maximum(ordered, 0)) & (tau <= np.append(ordered[1:], np.inf))
    value = (curvature * tau**2 / 2 - tau * sums / n_pairs + squares / (2 * n_pairs))[within]
    at_zero = float((np.maximum(0.0, -ordered) ** 2).mean() / 2)
    return float(tau[within][np.argmin(value)]) if len(value) and value.min() < at_zero else 0.0


def hinge_loss(pairs: RatePairs, h: Floats, tau: float) -> float:
    """Mean over pairs of max(0, h(x_j) - h(x_i) + tau)^2 / 2."""
    return float((np.maximum(0.0, h[pairs.lower] - h[pairs.higher] + tau) ** 2).mean() / 2)


Targets = tuple[Integers, Floats, Floats]
"""Documents of pairs, ascending; the mean target score and the number of pairs of each document."""


def fit(rows: BinnedRows, targets: Targets, n_trees: int, on_round: OnRound) -> BoostedTrees:
    """Fit regression trees g to target scores; all rows are the validation rows."""
    documents, target, weight = targets
    trees = BoostedTrees(rows.subset(documents), float(weight @ target / weight.sum()), [rows])
    while trees.n_trees < n_trees:
        on_round()
        if not trees.grow(lambda scores: (weight * (scores - target), weight)):
            break
    return trees


def targets(higher: Integers, lower: Integers, h: Floats, tau: float) -> Targets:
    """Target scores of the documents of pairs, given h and tau."""
    document = np.concatenate([higher, lower])
    target = np.concatenate([h[lower] + tau, h[higher] - tau])
    count = np.bincount(document, minlength=len(h)).astype(np.float64)
    documents = np.flatnonzero(count)
    return documents, sum_by_number(document, target, len(h))[documents] / count[documents], count[documents]


def _significant_pairs(data: LearningData, half: Flags, options: LearningOptions) -> RatePairs:
    """`significant_pairs` of the documents of a mask, shape (D,), in cells with a theta if rates are corrected."""
    counts = data.counts.only_cells(data.known) if options.corrected_rates else data.counts
    seen = counts.impressions * (data.theta[counts.cell] if options.corrected_rates else 1.0)
    return significant_pairs(data.query, counts.sum_by_unit(counts.clicks), counts.sum_by_unit(seen) * half, options)


def significant_pairs(query: Integers, clicks: Floats, exposure: Floats, options: LearningOptions) -> RatePairs:
    """Pairs of documents of a query whose click rates differ significantly.

    Args:
        query: of each document, ascending, shape (D,).
        clicks: c, shape (D,).
        exposure: n, or E for corrected rates, shape (D,). Documents without exposure are in no pair.
        options: the test (`corrected_rates`), its level, and the adjustment for multiple tests.
    """
    shown, level = np.flatnonzero(exposure > 0), options.significance
    test = clicks_differ if options.corrected_rates else rates_differ
    pairs, n_tested = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))], 0
    numbers, shown_query = np.arange(len(shown)), query[shown]
    later = np.searchsorted(shown_query, shown_query, side="right") - numbers - 1  # later documents of the query
    before, first = starts(later), 0
    while first < len(shown):
        last = int(np.searchsorted(before, int(before[first]) + _BLOCK, side="right")) - 1
        last = max(last, first + 1)
        i = np.repeat(numbers[first:last], later[first:last])
        j = i + 1 + np.arange(len(i)) - (before[i] - before[first])
        first, i, j = last, shown[i], shown[j]
        p_value, i_is_higher = test(clicks[i], exposure[i], clicks[j], exposure[j])
        n_tested += len(i)
        significant = p_value < level
        higher, lower = np.where(i_is_higher, i, j), np.where(i_is_higher, j, i)
        pairs.append((higher[significant], lower[significant], p_value[significant]))
    higher, lower, p_value = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    if len(p_value) and options.multiple_tests == "bonferroni":
        level /= n_tested
    elif len(p_value) and options.multiple_tests == "fdr":
        ordered = np.sort(p_value)
        below = np.flatnonzero(ordered <= level * np.arange(1, len(ordered) + 1) / n_tested)
        level = float(np.nextafter(ordered[below[-1]], np.inf)) if len(below) else 0.0
    significant = p_value < level
    return RatePairs(higher[significant], lower[significant], n_tested)


def rates_differ(c_i: Floats, n_i: Floats, c_j: Floats, n_j: Floats) -> tuple[Floats, Flags]:
    """Two-sided p-value of the z-test of equal click rates, and whether that of i is higher, shape (P,) each."""
    pooled = (c_i + c_j) / (n_i + n_j)
    error = np.sqrt(np.maximum(pooled * (1 - pooled), 0.0) * (1 / n_i + 1 / n_j))
    difference = c_i / n_i - c_j / n_j
    z = np.divide(difference, error, out=np.zeros_like(difference), where=error > 0)
    return 2 * scipy.special.ndtr(-np.abs(z)), difference > 0


def clicks_differ(c_i: Floats, e_i: Floats, c_j: Floats, e_j: Floats) -> tuple[Floats, Flags]:
    """Two-sided p-value of the binomial test of clicks given exposure, and whether i has more, shape (P,) each.

    The incomplete beta function interpolates between numbers of clicks, for sums of weights.
    """
    chance = e_i / (e_i + e_j)
    at_most = np.where(c_j > 0, scipy.special.betainc(np.maximum(c_j, _TINY), c_i + 1, 1 - chance), 1.0)
    at_least = np.where(c_i > 0, scipy.special.betainc(np.maximum(c_i, _TINY), c_j + 1, chance), 1.0)
    return np.minimum(1.0, 2 * np.minimum(at_most, at_least)), at_least < at_most


IPW_ARP = Learner(
    "ipw-arp",
    "Joachims et al. 2017; Agarwal et al. 2019",
    learning.learn_trees,
    partial(bounded_ranks, cost=AVERAGE_RANK),
    source="pages",
    measure="weighted mean of the bounded rank of clicked documents, negative",
    objective=learning.RAW,
)
IPW_DCG = replace(
    IPW_ARP,
    name="ipw-dcg",
    reference="Agarwal et al. 2019",
    fits=partial(bounded_ranks, cost=DISCOUNTED_GAIN),
    measure="weighted mean of the bounded discounted gain of clicked documents",
)
DLA = Learner(
    "dla",
    "Ai et al. 2018",
    learn_dual,
    source="pages",
    uses_propensities=False,
    measure="log-likelihood of which document of a page is clicked, per click",
    objective=learning.RAW,
)
GBRANK = Learner(
    "gbrank",
    "Zheng et al. 2007",
    learn_from_pairs,
    theta_for="corrected_rates",
    measure="squared hinge loss per pair, negative",
    takes=(*learning.OF_TREES, "corrected_rates", "significance", "multiple_tests", "tau", "margin_penalty"),
)
