"""Trees on pages, by losses of lists and of pairs.

    r_i = 1 + sum_{j on the page of i, j != i} log2(1 + exp(f_j - f_i))        at least the rank of i on its page
    loss = sum_{clicks i} w_i phi(r_i),   w_i = 1 / max(theta_i, LEAST_PROPENSITY)

    ipw-arp    phi(r) = r                     minimise sum r_i / theta_i
    ipw-dcg    phi(r) = -1 / log2(1 + r)      maximise sum 1 / (theta_i log2(1 + r_i))

    gradient by f_j:   sum_i w_i phi'(r_i) s_ij,          s_ij = 1 / (1 + exp(f_i - f_j)) / log 2
    gradient by f_i:  -w_i phi'(r_i) sum_j s_ij
    Hessian:           w_i phi'(r_i) s_ij (1 - s_ij log 2), phi taken for the straight line that touches it at r_i

phi rises; where it bends downwards, the line lies above it, so that a step lowers the loss itself (the convex-concave
procedure). Clicks in cells without a theta weigh nothing; their documents are ranked against, as all that was shown.

In expectation over clicks the first is the sum of the ranks of relevant documents, as if all had been examined. The
2017 paper bounds the rank by hinges of a linear model (Propensity SVM-Rank); trees need a bound with a second
derivative, the logistic one of the 2019 paper. The second is a lower bound of the DCG of clicked documents, and not
convex: ranks near the top count more than those far down.

    ranking:       -sum_{clicks} (theta_1 / theta_k)  log softmax(f)_d      over the documents of the page
    examination:   -sum_{clicks} (gamma_1 / gamma_d)  log softmax(g)_k      over the positions of the page

gamma = softmax(f), theta = softmax(g); gamma_1 is that of the document at the top of the page, theta_1 that of the
first position. Only ratios within a page count, so that sums over pages of different lengths do not mix. Weights are
clipped at 100. With every tree for f, each g_k takes half a Newton step, w_k = gamma_1 / gamma_d where k was clicked:

    g_k <- g_k - 1/2 sum_pages (W p_k - w_k) / sum_pages W p_k (1 - p_k),   p = softmax(g), W = sum_k w_k

The learning curve shows how likely it is, per click, that of a page's documents this one was clicked: softmax(f + g).
The paper takes stochastic steps of a network for f; here trees take Newton steps, over all pages.

Sources: Joachims, Swaminathan & Schnabel 2017 (the weighted rank); Agarwal, Takatsu, Zaitsev & Joachims 2019 (PropARP,
PropDCG); Ai, Bi, Luo, Guo & Croft 2018 (dual learning).

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

    raw:        p_i = c_i / n_i against p_j = c_j / n_j, p = (c_i + c_j) / (n_i + n_j):
                z = (p_i - p_j) / sqrt(p (1 - p) (1 / n_i + 1 / n_j))
    corrected:  c_i of c_i + c_j clicks, where equal attractiveness would have each be one of i with probability
                E_i / (E_i + E_j),  E = sum_k n_k theta_k:  the exact two-sided binomial test

Raw rates differ because documents stood at different positions; corrected ones compare clicks with examinations. Both
levels hold for a single pair. Over all pairs of a log, "bonferroni" bounds the chance of any false one, "fdr" the
expected share of false discoveries (Benjamini & Hochberg 1995).
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
"""The cost phi(r) of a rank, and its slope phi'(r) > 0."""

AVERAGE_RANK: Cost = (lambda rank: rank, np.ones_like)
DISCOUNTED_GAIN: Cost = (
    lambda rank: -1 / np.log2(1 + rank),
    lambda rank: 1 / ((1 + rank) * np.log(2) * np.log2(1 + rank) ** 2),
)


@dataclass(frozen=True)
class BoundedRanks(Loss):
    """The weighted ranks of the clicked documents of some pages, and what a rank costs: phi."""

    lists: list[Lists]
    weight: Floats  # of a click in each cell, shape (K,)
    n_documents: int  # number of scored documents n
    cost: Cost

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss at scores of shape (n,)."""
        gradient, hessian = np.zeros(self.n_documents), np.zeros(self.n_documents)
        for weight, rank, above, clicked, shown in self._clicks(scores):
            pull = (weight * self.cost[1](rank) / _LOG_2)[:, np.newaxis] * above
            bend = pull * (1 - above)
            gradient += self._sum(shown, pull) - self._sum(clicked, pull.sum(axis=1))
            hessian += self._sum(shown, bend) + self._sum(clicked, bend.sum(axis=1))
        return gradient, np.maximum(hessian, learning.SMALLEST_HESSIAN)

    def per_impression(self, scores: Floats) -> float:
        """-phi of the bounded rank, the weighted mean over the clicks."""
        sums = [(float(weight @ self.cost[0](rank)), float(weight.sum())) for weight, rank, *_ in self._clicks(scores)]
        total, weight = sum(cost for cost, _ in sums), sum(weight for _, weight in sums)
        return -total / weight if weight else 0.0

    def _clicks(self, scores: Floats) -> Iterator[tuple[Floats, Floats, Floats, Integers, Integers]]:
        """The C weighted clicks i of pages of one length L at a time.

        w_i and r_i, shape (C,); s_ij log 2, 0 for i itself, shape (C, L); the documents i, shape (C,), and j, (C, L).
        """
        for lists in self.lists:
            weights = lists.click * self.weight[lists.cell]
            page, place = np.nonzero(weights)
            clicked, shown = lists.document[page, place], lists.document[page]
            excess = scores[shown] - scores[clicked][:, np.newaxis]
            rank = np.logaddexp(0.0, excess).sum(axis=1) / _LOG_2  # i itself gives the 1, as log2(1 + exp(0))
            above = learning.sigmoid(excess)
            above[np.arange(len(clicked)), place] = 0.0
            yield weights[page, place], rank, above, clicked, shown

    def _sum(self, document: Integers, values: Floats) -> Floats:
        return sum_by_number(document.ravel(), values.ravel(), self.n_documents)


def ranks_of_clicks(learner: Learner, data: LearningData, cost: Cost) -> tuple[BoundedRanks, BoundedRanks]:
    """The ranks of the clicks, weighted by the propensities of their cells."""
    weight = np.where(data.known, 1 / np.maximum(data.theta, LEAST_PROPENSITY), 0.0)
    learnt, apart = learning.lists_to_learn_from(data, learner.name), learning.clicked_lists(data, data.validation)
    return BoundedRanks(learnt, weight, len(data.training), cost), BoundedRanks(
        apart, weight, len(data.validation), cost
    )


def learn_dual(learner: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Grow a tree on weighted clicks and take a step of theta, at once: both sides move from one place."""
    even = np.zeros_like(data.theta)  # theta is 1 to begin with
    loss = WeightedSoftmax(learning.lists_to_learn_from(data, learner.name), len(data.training), even)
    held_out = WeightedSoftmax(learning.clicked_lists(data, data.validation), len(data.validation), even)
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
    """The loss of ranking."""

    lists: list[Lists]  # pages with clicks
    n_documents: int  # number of scored documents n
    examination: Floats  # g of each cell, 0 at the first position, as it stands, shape (K,)

    def gradients(self, scores: Floats) -> tuple[Floats, Floats]:
        """The gradient and the Hessian of the loss at scores of shape (n,)."""
        gradient, hessian = np.zeros(self.n_documents), np.zeros(self.n_documents)
        of_cell = np.minimum(np.exp(-self.examination), _LARGEST_WEIGHT)  # theta_1 / theta_k
        for block in self.lists:
            _add_softmax(block.click * of_cell[block.cell], scores, block.document, gradient, hessian)
        return gradient, np.maximum(hessian, learning.SMALLEST_HESSIAN)

    def per_impression(self, scores: Floats) -> float:
        """Log softmax(f + g) of what was clicked, the mean over the clicks.

        Both losses change with their weights; this one does not, and rises as ranker and theta come to explain clicks.
        """
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
    """Add the derivatives of -sum w log softmax of the values with these numbers, each row a page, shape (P, L)."""
    whole, share = weight.sum(axis=1, keepdims=True), scipy.special.softmax(values[number], axis=1)
    gradient += sum_by_number(number.ravel(), (whole * share - weight).ravel(), len(values))
    hessian += sum_by_number(number.ravel(), (whole * share * (1 - share)).ravel(), len(values))


ETA = 1.0
TREES_OF_A_FIT = 20
"""Number of trees of each g_m."""

_BLOCK = 1 << 18  # pairs that are tested at a time


@dataclass(frozen=True)
class RatePairs:
    """Pairs of documents."""

    higher: Integers  # the documents with the higher click rate, shape (P,)
    lower: Integers  # the others, shape (P,)
    n_tested: int  # how many pairs there were


def learn_from_pairs(_: Learner, data: LearningData, options: LearningOptions, on_round: OnRound) -> Learned:
    """Find the pairs, and fit again and again to those in the wrong order."""
    pairs, apart = (_pairs_of(data, half, options) for half in (~data.held_out, data.held_out))
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
    kept = fits[: -(-rounds.best // TREES_OF_A_FIT)]
    models = [ModelText.parse(trees.model_text()) for trees in kept]
    average = scaled_sum(models, [ETA / (len(kept) + 1)] * len(models))
    report = {"trees": rounds.best, "tau": tau, "pairs": len(pairs.higher), "pairs_tested": pairs.n_tested}
    return Learned(Forest(average.complete()), rounds.curve, learning.importance_table(kept), report=report)


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


Targets = tuple[Integers, Floats, Floats]
"""The documents of pairs, ascending; the mean of what each should score, and in how many pairs it is."""


def fit(rows: BinnedRows, targets: Targets, n_trees: int, on_round: OnRound) -> BoostedTrees:
    """Regression trees g on what the documents of some pairs should score; all rows are followed."""
    documents, target, weight = targets
    trees = BoostedTrees(rows.subset(documents), float(weight @ target / weight.sum()), [rows])
    while trees.n_trees < n_trees:
        on_round()
        if not trees.grow(lambda scores: (weight * (scores - target), weight)):
            break
    return trees


def targets(higher: Integers, lower: Integers, h: Floats, tau: float) -> Targets:
    """The target scores of the documents of some pairs, at h and tau."""
    document = np.concatenate([higher, lower])
    target = np.concatenate([h[lower] + tau, h[higher] - tau])
    count = np.bincount(document, minlength=len(h)).astype(np.float64)
    some = np.flatnonzero(count)
    return some, sum_by_number(document, target, len(h))[some] / count[some], count[some]


def _pairs_of(data: LearningData, half: Flags, options: LearningOptions) -> RatePairs:
    """The pairs of some documents, by the clicks and the exposure of the cells that count."""
    counts = data.counts.only_cells(data.known) if options.corrected_rates else data.counts
    seen = counts.impressions * (data.theta[counts.cell] if options.corrected_rates else 1.0)
    return significant_pairs(data.query, counts.sum_by_unit(counts.clicks), counts.sum_by_unit(seen) * half, options)


def significant_pairs(query: Integers, clicks: Floats, exposure: Floats, options: LearningOptions) -> RatePairs:
    """The pairs of documents of a query whose click rates differ.

    Args:
        query: of each document, ascending, shape (D,).
        clicks: c, shape (D,).
        exposure: n, or E where rates are corrected, shape (D,). Documents without any are in no pair.
        options: which test, the level below which a p-value counts as significant, and what that is about.
    """
    shown, level = np.flatnonzero(exposure > 0), options.significance
    test = clicks_differ if options.corrected_rates else rates_differ
    pairs, n_tested = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))], 0
    numbers, of_shown = np.arange(len(shown)), query[shown]
    later = np.searchsorted(of_shown, of_shown, side="right") - numbers - 1  # documents of the query behind each
    before, first = starts(later), 0
    while first < len(shown):  # all pairs of documents of a query, each once, some at a time
        last = int(np.searchsorted(before, int(before[first]) + _BLOCK, side="right")) - 1
        last = max(last, first + 1)
        here = np.repeat(numbers[first:last], later[first:last])
        there = here + 1 + np.arange(len(here)) - (before[here] - before[first])
        first, one, other = last, shown[here], shown[there]
        p_value, one_is_higher = test(clicks[one], exposure[one], clicks[other], exposure[other])
        n_tested += len(one)
        kept = p_value < level
        higher, lower = np.where(one_is_higher, one, other), np.where(one_is_higher, other, one)
        pairs.append((higher[kept], lower[kept], p_value[kept]))
    higher, lower, p_value = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    if len(p_value) and options.multiple_tests == "bonferroni":
        level /= n_tested
    elif len(p_value) and options.multiple_tests == "fdr":
        ordered = np.sort(p_value)
        below = np.flatnonzero(ordered <= level * np.arange(1, len(ordered) + 1) / n_tested)
        level = float(np.nextafter(ordered[below[-1]], np.inf)) if len(below) else 0.0
    kept = p_value < level
    return RatePairs(higher[kept], lower[kept], n_tested)


def rates_differ(one: Floats, of_one: Floats, other: Floats, of_other: Floats) -> tuple[Floats, Flags]:
    """The two-sided p-value of equal raw click rates, and whether the first is the higher one, shapes (P,)."""
    pooled = (one + other) / (of_one + of_other)
    error = np.sqrt(np.maximum(pooled * (1 - pooled), 0.0) * (1 / of_one + 1 / of_other))
    difference = one / of_one - other / of_other
    z = np.divide(difference, error, out=np.zeros_like(difference), where=error > 0)
    return 2 * scipy.special.ndtr(-np.abs(z)), difference > 0


def clicks_differ(one: Floats, of_one: Floats, other: Floats, of_other: Floats) -> tuple[Floats, Flags]:
    """The two-sided p-value of clicks that split as exposure does, and whether the first has more, shapes (P,).

    Sums of weights take the place of numbers of clicks as they are: the incomplete beta function goes between them.
    """
    chance = of_one / (of_one + of_other)
    at_most = np.where(other > 0, scipy.special.betainc(np.maximum(other, _TINY), one + 1, 1 - chance), 1.0)
    at_least = np.where(one > 0, scipy.special.betainc(np.maximum(one, _TINY), other + 1, chance), 1.0)
    return np.minimum(1.0, 2 * np.minimum(at_most, at_least)), at_least < at_most


IPW_ARP = Learner(
    "ipw-arp",
    "Joachims et al. 2017; Agarwal et al. 2019",
    learning.learn_trees,
    partial(ranks_of_clicks, cost=AVERAGE_RANK),
    source="pages",
    measure="weighted mean of the bounded rank of clicked documents, negative",
    objective=learning.RAW,
)
IPW_DCG = replace(
    IPW_ARP,
    name="ipw-dcg",
    reference="Agarwal et al. 2019",
    fits=partial(ranks_of_clicks, cost=DISCOUNTED_GAIN),
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
