"""Estimate theta from features of impressions, for logs in which no document is shown twice for a query.

Two methods: `features`, the conditional estimate on strata of learned relevance and position; and `regression-em`.

Relevance f maximises the likelihood of the position-based model, P(click) = theta_k g, g = 1 / (1 + exp(-f)), by
gradient boosting with Fisher scoring steps, until the likelihood of the other fold has not improved for `PATIENCE`
rounds:

    p = c + (1 - c) g (1 - theta) / (1 - theta g),   gradient g - p,   Hessian theta g (1 - g)^2 / (1 - theta g)

Theta is the conditional estimate on the strata of the current f (below), updated every `ROUNDS_OF_THETA` rounds. The
moment estimate, theta_k = C_k / sum of g in cell k, would absorb the relevance that shrunken trees leave unexplained;
it is returned for comparison only. The Hessian of EM, g (1 - g), would make steps too small by a factor of theta.

Regression EM:

    E-step:  P(E=1, R=0 | c=0) = theta (1 - g) / (1 - theta g),   P(E=0, R=1 | c=0) = (1 - theta) g / (1 - theta g);
             a click says E = R = 1
    M-step:  theta_k = mean over the rows in cell k of c + (1 - c) P(E=1 | c=0)
             a label R drawn for each row with P(R=1 | c), and trees fitted anew to the labels by the logistic loss

The equations are those of Algorithm 1 (where each side of the expectation is conditional on no click); the steps stop
after a number of iterations. Theta starts from click rates, since it hardly moves from a flat start.

Source: Wang, Golbandi, Bendersky, Metzler & Najork 2018, Position bias estimation for unbiased learning to rank in
personal search.

Method `features`: a stratum b holds the rows of one fold and one context whose relevance f and place (the predicted log
position) lie between the same quantiles, `QUANTILES` of each. With exposure E_bk = sum of g over its rows in cell k and
clicks C_b,

    l(beta) = sum_b { sum_k c_bk beta_k - C_b log sum_k E_bk exp(beta_k) }

is the conditional likelihood with n := E, that of a Poisson regression with a constant per stratum and offset log E_bk.
The estimate is consistent if f or the place is right: within a stratum, the remaining relevance must be independent of
the position.

Errors: with p_b the shares of stratum b and lambda_b = C_b / sum_k E_bk theta_k, a cluster u has

    s_u = sum_i w_i (c_i - lambda_b theta_k g_i) (1_k - p_b),    H_u = sum_i w_i c_i (diag(p_b) - p_b p_b')

The second term of the residual accounts for the sampling of E_bk; it sums to 0 over all rows. The rest is as in
`standard_errors.cluster`.

`hidden_relevance`: relevance h that only the ranker knows, with E[h | k, x] = -rho (log k - E[log k | x]), biases
log theta_k by -rho log k. If it is as large as the known relevance and equally correlated with rank,

    rho = -cov(log g, log k | score, rank of the score on its page) / var(log k - place)

with quantiles of the score, or unconditionally without a score. The log may show that rho is smaller: the mean place z
of the other rows of a page affects the position of a row, but is independent of its relevance (an instrument). With
mu = lambda_b theta_k g, and z* the residual of z on strata and cells, weighted by w mu,

    delta = sum_i w_i (c_i - mu_i) z*_i / sum_i w_i mu_i z*_i^2,    rho = delta / pi,    errors by page

is 0 unless clicks depend on the ranker's hidden knowledge given k; pi is the slope of log k on z within strata.

Sources: Cinelli & Hazlett 2020, Altonji, Elder & Taber 2005 (the benchmark); Hausman 1978, Wooldridge 2015 (z).
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Self

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Hashes, Integers, Sums, starts, sum_by_number
from posbias.core.arrays.linalg import solve
from posbias.core.choices import Cluster
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators.estimate import (
    CurveEstimate,
    Estimate,
    EstimationOptions,
    OnIteration,
    candidate_references,
    conditional_estimate,
)
from posbias.core.estimators.methods import FeaturesMethod
from posbias.core.fit.diagnostics import HiddenRelevance
from posbias.core.learners.boosting import BinnedRows, BoostedTrees, TreeOptions
from posbias.core.learners.learning import logit, sigmoid
from posbias.core.learners.models import Forest
from posbias.core.standard_errors.cluster import ClusterSums, errors_from_sums
from posbias.core.standard_errors.column import sums_of_impressions
from posbias.core.standard_errors.contrasts import jackknife_ratio
from posbias.core.theta import conditional
from posbias.core.theta.conditional import ConditionalFit
from posbias.core.training.weights import split_hashes

FOLDS = 2

GradientsOfRows = Callable[[Integers, Floats], tuple[Floats, Floats]]
"""Function of row numbers and scores, shape (n,) each, that returns gradient and Hessian of the loss, shape (n,)."""


class CrossFoldTrees:
    """Cross-fitted boosted trees: one ensemble per fold, fitted on the rows of the other folds, a tree per round."""

    def __init__(self, rows: BinnedRows, fold: Integers, start: float) -> None:
        """Begin without a tree.

        Args:
            rows: all rows.
            fold: of each row, 0 .. `FOLDS` - 1, shape (n,).
            start: initial score.
        """
        self.scores = np.full(len(fold), start)  # out-of-fold scores
        self.rounds = 0  # number of rounds in which a tree split its rows
        self._testing = [np.flatnonzero(fold == number) for number in range(FOLDS)]
        self._training = [np.flatnonzero(fold != number) for number in range(FOLDS)]
        self._trees = [
            BoostedTrees(rows.subset(training), start, [rows.subset(testing)])
            for training, testing in zip(self._training, self._testing, strict=True)
        ]

    def grow(self, gradients: GradientsOfRows) -> bool:
        """Add a tree to each ensemble; return whether any splits its rows."""
        grown = False
        for trees, training, testing in zip(self._trees, self._training, self._testing, strict=True):
            if trees.grow(lambda scores, rows=training: gradients(rows, scores)):
                grown = True
                self.scores[testing] = trees.validation_scores()[0]
        self.rounds += grown
        return grown

    def forests(self) -> tuple[Forest, ...]:
        """Return the ensemble that predicts for each fold."""
        return tuple(Forest(trees.model_text()) for trees in self._trees)


_STEP, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_LARGEST = float(2**64)


def session_draws(sessions: pl.Series, seed: int) -> Hashes:
    """Draw a uniform 64-bit number for each session from its id and the seed, shape (n,).

    The hash of the id and the seed are mixed by SplitMix64 (Steele, Lea & Flood 2014).
    """
    mixed = np.array(split_hashes(sessions), np.int64).view(np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + _STEP * np.random.SeedSequence(seed).generate_state(1, np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def fold_numbers(draws: Hashes) -> Integers:
    """Return the fold of each session, 0 .. `FOLDS` - 1."""
    return (draws % np.uint64(FOLDS)).astype(np.int64)


def in_sample(draws: Hashes, share: float) -> Flags:
    """Return whether each page is in a sample of this share; a larger sample contains a smaller one."""
    return draws.astype(np.float64) < share * _LARGEST


RELEVANCE_TREES = 200
PLACE_TREES = 60
PATIENCE = 5
ROUNDS_OF_THETA = 10

_SMALLEST_HESSIAN = 1e-6
_NEARLY_SURE = 1e-9  # 1 - theta g below which it is rounding
_BINNED_BY = 100_000  # with fewer, LightGBM warns
_WORTH_THREADS = 20_000_000
_RATES = (1e-6, 1 - 1e-6)  # bounds of the initial mean of g


@dataclass(frozen=True)
class LearningRows:
    """The n impressions of some pages, in K cells."""

    cell: Integers  # number of each impression's cell, shape (n,)
    click: Floats  # 0 or 1, shape (n,)
    weight: Floats  # > 0, shape (n,)
    fold: Integers  # of its page, shape (n,)
    position: Integers  # of each cell, from 1, shape (K,)
    context: Integers  # number of each cell's context, shape (K,)

    def sum_by_cell(self, values: Floats) -> Floats:
        """Sum values, shape (n,), times weight by cell, shape (K,)."""
        return sum_by_number(self.cell, self.weight * values, len(self.position))

    def mean_by_cell(self, values: Floats) -> Floats:
        """Average values, shape (n,), by weight in each cell, shape (K,); 0 for a cell without rows."""
        return _ratio(self.sum_by_cell(values), self.sum_by_cell(np.ones(len(self.cell))))


@dataclass(frozen=True)
class Nuisances:
    """Nuisance functions, learned by cross-fitting."""

    relevance: tuple[Forest, ...]  # f, the trees for each fold
    place: tuple[Forest, ...]  # log(position), the trees for each fold
    scores: Floats  # f of the rows that they were learned on, out of fold, shape (n,)
    places: Floats  # log(position) of the same rows, out of fold, shape (n,)
    theta: Floats  # the moment estimate, relative to the largest of its context, shape (K,)


def options_of_trees(n_values: int) -> TreeOptions:
    """Return the options of both kinds of trees; few feature values are processed in one thread, which is faster.

    The number of threads does not change the trees.
    """
    threads = 1 if n_values < _WORTH_THREADS else 0
    return TreeOptions(rate=0.1, leaves=15, leaf_rows=100, bins=63, binned_by=_BINNED_BY, threads=threads)


def learn_nuisances(features: BinnedRows, rows: LearningRows) -> Nuisances:
    """Learn relevance f and place, the expected log position.

    Args:
        features: of the rows.
        rows: positions and clicks.

    Raises:
        IdentifiabilityError: there are too few rows, or the features say nothing.
    """
    needed, smallest = 2 * features.options.leaf_rows, int(np.bincount(rows.fold, minlength=FOLDS).min())
    if smallest < needed:
        raise IdentifiabilityError(
            f"features cannot be learnt from: of {len(rows.cell):,} rows, one half of the pages holds {smallest:,}, "
            f"and trees need at least {needed:,} in each. Add more days, or raise --sample-pages."
        )
    depth = np.log(rows.position[rows.cell])
    place = CrossFoldTrees(features, rows.fold, float(np.average(depth, weights=rows.weight)))
    for _ in range(PLACE_TREES):
        if not place.grow(lambda at, scores: (rows.weight[at] * (scores - depth[at]), rows.weight[at])):
            break
    theta, relevance = _relevance(features, rows, place.scores)
    if not relevance.rounds and not place.rounds:
        raise IdentifiabilityError(
            f"the features tell neither which of {len(rows.cell):,} rows are clicked nor where they stand, so that no "
            "rows can be compared as alike. Name other features (--features, --feature), or add more days."
        )
    return Nuisances(relevance.forests(), place.forests(), relevance.scores, place.scores, theta)


def _relevance(features: BinnedRows, rows: LearningRows, places: Floats) -> tuple[Floats, CrossFoldTrees]:
    """Learn relevance f; return the moment estimate of theta, shape (K,), and the trees of f."""
    impressions, clicks = rows.sum_by_cell(np.ones(len(rows.cell))), rows.sum_by_cell(rows.click)
    theta = _relative(_ratio(clicks, impressions), rows.context)
    rate = float(clicks.sum() / max((impressions * theta).sum(), _NEARLY_SURE))
    trees = CrossFoldTrees(features, rows.fold, logit(min(max(rate, _RATES[0]), _RATES[1])))
    likelihood: list[float] = []
    while len(likelihood) < RELEVANCE_TREES and max(likelihood[-PATIENCE:], default=0) >= max(likelihood, default=0):
        if len(likelihood) % ROUNDS_OF_THETA == 0:
            with suppress(IdentifiabilityError):  # where there is no conditional estimate, theta stays
                conditional_theta = _on_strata(rows, trees.scores, places)[0].theta
                theta = _relative(np.where(conditional_theta > 0, conditional_theta, theta), rows.context)

        def gradients(at: Integers, scores: Floats, theta: Floats = theta) -> tuple[Floats, Floats]:
            relevance, examined = sigmoid(scores), theta[rows.cell[at]]
            unclicked = np.maximum(1 - examined * relevance, _NEARLY_SURE)
            expected = np.where(rows.click[at] > 0, 1.0, relevance * (1 - examined) / unclicked)
            hessian = np.maximum(examined * relevance * (1 - relevance) ** 2 / unclicked, _SMALLEST_HESSIAN)
            return rows.weight[at] * (relevance - expected), rows.weight[at] * hessian

        if not trees.grow(gradients):
            break
        chance = np.clip(theta[rows.cell] * sigmoid(trees.scores), _NEARLY_SURE, 1 - _NEARLY_SURE)
        likelihood.append(float(rows.weight @ np.log(np.where(rows.click > 0, chance, 1 - chance))))
    return _relative(_ratio(clicks, rows.sum_by_cell(sigmoid(trees.scores))), rows.context), trees


def _on_strata(rows: LearningRows, scores: Floats, places: Floats) -> tuple[ConditionalFit, Integers]:
    """Return the conditional estimate on strata of scores and places, and the number of each row's stratum."""
    edges = StratumEdges.of(scores, places, rows.fold)
    stratum = edges.stratum(scores, places, rows.fold)
    scored = ScoredRows(stratum, rows.cell, sigmoid(scores), rows.click, rows.weight)
    table = ExposureCounts.of(scored, edges.n_strata, len(rows.position)).table(rows.context)
    fit = conditional.fit_conditional(table, conditional.find_linkage(table, rows.context))
    return fit, rows.context[rows.cell] * edges.n_strata + stratum


def _ratio(clicks: Floats, exposure: Floats) -> Floats:
    """Divide clicks by exposure, shape (n,) each; 0 without exposure."""
    return np.divide(clicks, exposure, out=np.zeros(len(clicks)), where=exposure > 0)


def _relative(theta: Floats, context: Integers) -> Floats:
    """Divide theta by the largest of its context, shape (K,)."""
    largest = np.zeros(int(context.max()) + 1)
    np.maximum.at(largest, context, theta)
    return _ratio(theta, largest[context])


ITERATIONS = 15
TREES = 20
RATE = 0.3

_FIRST_THETA = 0.9  # of the position with the largest click rate
_SURE = (1e-6, 1 - 1e-6)  # bounds of relevance


def expectation(theta: Floats, relevance: Floats, click: Floats) -> tuple[Floats, Floats]:
    """Return the E-step: P(E=1 | c) and P(R=1 | c) of each row, shape (n,) each.

    Args:
        theta: of each row's cell, in [0, 1].
        relevance: g, in (0, 1).
        click: 0 or 1.
    """
    unclicked = np.maximum(1 - theta * relevance, 1 - _SURE[1])
    examined = np.where(click > 0, 1.0, theta * (1 - relevance) / unclicked)
    return examined, np.where(click > 0, 1.0, relevance * (1 - theta) / unclicked)


def regression_em(
    features: BinnedRows, rows: LearningRows, seed: int, iterations: int, on_iteration: OnIteration
) -> Floats:
    """Estimate theta by cell by regression EM, shape (K,), in [0, 1].

    Args:
        features: of the rows.
        rows: positions and clicks.
        seed: of the random labels.
        iterations: number of EM steps.
        on_iteration: called with the progress.
    """
    draws = np.random.default_rng(seed)
    rate = rows.mean_by_cell(rows.click)
    theta = rate / max(float(rate.max()), 1 - _SURE[1]) * _FIRST_THETA
    relevance = np.full(len(rows.cell), min(max(2 * float(rate.max()), _SURE[0]), 0.5))
    for iteration in range(iterations):
        examined, relevant = expectation(theta[rows.cell], relevance, rows.click)
        label = (draws.random(len(relevance)) < relevant).astype(np.float64)
        relevance = regress_labels(features, rows, label)
        theta = rows.mean_by_cell(examined)
        on_iteration(f"regression EM {iteration + 1}")
    return theta


def regress_labels(features: BinnedRows, rows: LearningRows, label: Floats) -> Floats:
    """Fit new trees to the labels, and return the predicted relevance, shape (n,)."""
    mean = float(np.average(label, weights=rows.weight))
    steeper = replace(features, options=replace(features.options, rate=RATE))
    trees = BoostedTrees(steeper, logit(min(max(mean, _SURE[0]), _SURE[1])))

    def gradients(scores: Floats) -> tuple[Floats, Floats]:
        chance = sigmoid(scores)
        return rows.weight * (chance - label), rows.weight * np.maximum(chance * (1 - chance), _SURE[0])

    for _ in range(TREES):
        if not trees.grow(gradients):
            break
    return np.clip(sigmoid(trees.scores()), *_SURE)


QUANTILES = 20

FEWEST_ROWS = 25
"""Mean number of rows per stratum below which fewer quantiles are used."""


@dataclass(frozen=True)
class StratumEdges:
    """Boundaries of strata: the inner quantiles of f and of the place in each fold, shape (J, B - 1), ascending."""

    relevance: Floats
    place: Floats

    @classmethod
    def of(cls, scores: Floats, places: Floats, fold: Integers) -> Self:
        """Compute the quantiles of scores and places, shape (n,) each, by fold."""
        smallest = int(np.bincount(fold, minlength=FOLDS).min())
        bins = max(1, min(QUANTILES, int(np.sqrt(smallest / FEWEST_ROWS))))
        inner, in_fold = np.arange(1, bins) / bins, [fold == number for number in range(FOLDS)]

        def quantiles(values: Floats) -> Floats:
            return np.stack([np.quantile(values[rows], inner) if rows.any() else inner for rows in in_fold])

        return cls(quantiles(scores), quantiles(places))

    @property
    def n_strata(self) -> int:
        """Number of strata of one context."""
        return FOLDS * (self.relevance.shape[1] + 1) ** 2

    def stratum(self, scores: Floats, places: Floats, fold: Integers) -> Integers:
        """Return the number of each row's stratum within its context, shape (n,)."""
        stratum, bins = np.zeros(len(fold), np.int64), self.relevance.shape[1] + 1
        for number in range(FOLDS):
            rows = np.flatnonzero(fold == number)
            by_relevance = np.searchsorted(self.relevance[number], scores[rows], side="right")
            by_place = np.searchsorted(self.place[number], places[rows], side="right")
            stratum[rows] = (number * bins + by_relevance) * bins + by_place
        return stratum


@dataclass(frozen=True)
class ScoredRows:
    """Rows with exposure and stratum, arrays of shape (n,)."""

    stratum: Integers  # number of the row's stratum within its context
    cell: Integers  # number of its cell, which determines the context
    exposure: Floats  # g, in (0, 1)
    click: Floats  # 0 or 1
    weight: Floats  # > 0


@dataclass(frozen=True)
class ExposureCounts(Sums):
    """Exposure and clicks by stratum and cell; those of parts of a log add up."""

    exposure: Floats  # weighted sum of g, shape (S, K)
    clicks: Floats  # weighted sum of clicks, shape (S, K)

    @classmethod
    def of(cls, rows: ScoredRows, n_strata: int, n_cells: int) -> Self:
        """Sum the exposure and clicks of rows."""
        number, shape = rows.stratum * n_cells + rows.cell, (n_strata, n_cells)
        length = n_strata * n_cells
        return cls(
            sum_by_number(number, rows.weight * rows.exposure, length).reshape(shape),
            sum_by_number(number, rows.weight * rows.click, length).reshape(shape),
        )

    def table(self, context: Integers) -> CountTable:
        """Convert to a count table; the unit of stratum b in context c has number c S + b.

        Args:
            context: context number of each cell, from 0, shape (K,).
        """
        n_strata = len(self.exposure)
        stratum, cell = np.nonzero(self.exposure)
        unit = context[cell] * n_strata + stratum
        order = np.lexsort((cell, unit))
        n_units = n_strata * (int(context.max()) + 1)
        places = stratum[order], cell[order]
        return CountTable(
            n_cells=len(context),
            start=starts(np.bincount(unit, minlength=n_units)),
            cell=cell[order].astype(np.int64),
            impressions=self.exposure[places],
            clicks=self.clicks[places],
            multiplicity=np.ones(n_units),
        )


@dataclass(frozen=True)
class ExposureEstimate:
    """Fit to a whole log, from which the errors are computed part by part."""

    table: CountTable  # exposure and clicks of the whole log (`ExposureCounts.table`)
    fit: ConditionalFit
    context: Integers  # number of each cell's context, shape (K,)
    n_strata: int  # of one context

    def cluster_sums(self, rows: ScoredRows, cluster: Integers) -> ClusterSums:
        """Compute the sums over clusters of a part of whole clusters; the sums of parts add up.

        Args:
            rows: of the part.
            cluster: cluster of each row, any integers, shape (n,).
        """
        linked = conditional.linked_counts(self.table, self.fit.linkage)
        number = np.full(self.table.n_units, -1)
        number[linked.units] = np.arange(len(linked.units))
        row_unit = number[self.context[rows.cell] * self.n_strata + rows.stratum]
        known = np.flatnonzero((row_unit >= 0) & self.fit.linkage.identified[rows.cell])
        log_theta = self.fit.log_theta[linked.cells]
        _, log_total = conditional.click_shares(linked.table, log_theta)
        unit, cell = row_unit[known], np.searchsorted(linked.cells, rows.cell[known])
        expected = rows.exposure[known] * np.exp(np.log(linked.unit_clicks) - log_total)[unit] * np.exp(log_theta[cell])
        residual = rows.weight[known] * (rows.click[known] - expected)
        clicks = rows.weight[known] * rows.click[known]
        return sums_of_impressions(self.fit, linked, cluster[known], unit, cell, residual, clicks)


NOT_ALIKE = "no row like its own links it to the reference"


def fit_exposure(
    counts: ExposureCounts, statistics: SufficientStatistics, options: EstimationOptions
) -> ExposureEstimate:
    """Fit theta to exposure and clicks by stratum.

    Args:
        counts: of the whole log.
        statistics: of the same log; its cells are those of the counts.
        options: of the estimate.

    Raises:
        IdentifiabilityError: rows of a stratum are at one position only, or have no click.
        UsageError: there is no such reference cell.
    """
    context = statistics.context_of_cell
    table = counts.table(context)
    try:
        linkage = conditional.find_linkage(table, context, candidate_references(statistics, options.reference))
    except IdentifiabilityError as error:
        raise IdentifiabilityError(
            f"--method {FeaturesMethod.name}: no two positions can be compared by rows with like features: there are "
            f"{statistics.cell_totals[1].sum():,.0f} clicks in {statistics.n_cells} cells (positions). Add more days."
        ) from error
    reason = tuple(NOT_ALIKE if why == conditional.NOT_LINKED else why for why in linkage.reason)
    fit = conditional.fit_conditional(table, replace(linkage, reason=reason), **options.limits)
    return ExposureEstimate(table, fit, context, len(counts.exposure))


def features_estimate(fitted: ExposureEstimate, sums: Iterable[ClusterSums], by: Cluster) -> Estimate:
    """Return the estimate with its errors.

    Args:
        fitted: the fit to all rows.
        sums: sums over the clusters of each part of the log.
        by: kind of the clusters.
    """
    fit, no_pair = fitted.fit, np.zeros(len(fitted.context))
    curve = CurveEstimate(fit, errors_from_sums(fit.log_theta, fit.free_cells, reduce(add, sums)))
    estimate = conditional_estimate(FeaturesMethod.name, curve, fitted.table, by)
    return replace(estimate, linkage=replace(fit.linkage, linking_pairs=no_pair, linking_clicks=no_pair))


_WEAK = np.sqrt(10)
"""Standard errors of pi below which z is a weak instrument (Staiger & Stock 1997)."""


def hidden_relevance(rows: LearningRows, learned: Nuisances, page: Integers, score: Floats | None) -> HiddenRelevance:
    """Estimate the bias rho of theta from relevance that only the ranker knows (see the top of this module).

    Args:
        rows: the rows on which relevance and place were learned.
        learned: relevance and place.
        page: page number of each row, from 0, shape (n,).
        score: the ranker's score, shape (n,), ascending or descending; None if it is not in the log.
    """
    depth, weight, alike = np.log(rows.position[rows.cell]), rows.weight, np.zeros(len(page), np.int64)
    if score is not None:
        ranked = pl.DataFrame({"page": page, "score": score}).select(pl.col("score").rank("min").over("page"))
        edges = np.nanquantile(score, np.arange(1, QUANTILES) / QUANTILES)
        alike = ranked["score"].to_numpy().astype(np.int64) * QUANTILES + np.searchsorted(edges, score, side="right")
    log_relevance, log_position = (
        _centred(values, alike, weight) for values in (-np.logaddexp(0, -learned.scores), depth)
    )
    spread = float(weight @ (depth - learned.places) ** 2)
    # rho if hidden relevance is as strong as the known relevance; at least 0
    benchmark = max(-float(weight @ (log_relevance * log_position)) / spread, 0.0) if spread > 0 else 0.0
    try:
        fit, unit = _on_strata(rows, learned.scores, learned.places)
    except IdentifiabilityError:
        return HiddenRelevance(benchmark)
    (delta, error, degrees), (slope, slope_error) = _by_rivals(rows, learned, page, fit, unit)
    if not (error > 0 and abs(slope) > _WEAK * slope_error):
        return HiddenRelevance(benchmark)
    return HiddenRelevance(benchmark, delta / slope, error / abs(slope), degrees)


def _by_rivals(
    rows: LearningRows, learned: Nuisances, page: Integers, fit: ConditionalFit, unit: Integers
) -> tuple[tuple[float, float, float], tuple[float, float]]:
    """Return delta, its standard error and degrees of freedom; and pi and its standard error."""
    known = np.flatnonzero(fit.linkage.identified[rows.cell])
    cell, unit, known_page, weight = rows.cell[known], unit[known], page[known], rows.weight[known]
    n_units, n_pages = int(unit.max()) + 1, int(page.max()) + 1
    exposure = sigmoid(learned.scores[known]) * fit.theta[cell]
    clicks, unit_exposure = (sum_by_number(unit, weight * values, n_units) for values in (rows.click[known], exposure))
    mean = weight * exposure * _ratio(clicks, unit_exposure)[unit]
    page_places, page_rows = (sum_by_number(page, values, n_pages) for values in (learned.places, np.ones(len(page))))
    rivals = (page_places[page] - learned.places) / np.maximum(page_rows[page] - 1, 1)
    z = _centred(rivals[known], unit, mean)
    explained = np.zeros(len(rows.position))
    by_cell = sum_by_number(cell, mean * z, len(explained))
    explained[fit.free_cells] = solve(fit.information, by_cell[fit.free_cells])
    residual_z = _centred(z - explained[cell], unit, mean)  # z*
    residual, log_position = weight * rows.click[known] - mean, _centred(np.log(rows.position[cell]), unit, mean)
    (delta, error, degrees, _), (slope, slope_error, _, _) = (
        jackknife_ratio(sum_by_number(known_page, terms, n_pages), sum_by_number(known_page, mean * by**2, n_pages))
        for terms, by in ((residual * residual_z, residual_z), (mean * log_position * z, z))
    )
    return (delta, error, degrees), (slope, slope_error)


def _centred(values: Floats, group: Integers, weight: Floats) -> Floats:
    """Subtract the weighted mean of each value's group, shape (n,)."""
    number = int(group.max()) + 1
    return values - _ratio(sum_by_number(group, weight * values, number), sum_by_number(group, weight, number))[group]
