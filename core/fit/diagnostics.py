"""Expected and observed clicks, the previous click, and how far textbook EM is off.

On sparse logs joint EM is inconsistent (Neyman & Scott 1948), the conditional estimate is not. With mu = theta gamma,

    D = log theta_joint - log theta_conditional
    u_je = (c - n mu) / (1 - mu),    v_je = (n - c) mu / (1 - mu)^2
    I = sum_j m_j (diag(v_j) - v_j v_j' / (sum_e v_je + w_j)) + diag(w_e)
    psi_g = I^-1 u_g - H^-1 s_g,     V = sum_g psi_g psi_g'     over the clusters (queries) g

u is the score of log theta, v minus its derivative, and I minus the derivative of the score once every gamma follows;
w = s (1 - v0) x / (1 - x)^2 is the curvature of the Beta prior of x = gamma_j or theta_e. The observed v and w, not
their expectations: where pairs are rare they differ, and V then understates or hides the bias.

"Joint EM is biased here" when in some cell D differs from 0 at the level .05 over all cells, and |exp D - 1| > 5 %. It
detects the bias by sparsity and by the prior only, which `find_causes` tells apart: under feedback or personalisation
both estimates move together.

EM is run twice more beside the prior that it has: without any, where what is left is sparsity (Neyman & Scott 1948),
and with the prior of attractiveness that the log itself says. Both start from the conditional estimate and stop when
their bias is known to about a percent of itself; of a large log they take a sample of the pairs, and are compared with
the conditional estimate of the same sample.
"""

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import CountTable, Flags, Floats, Integers, Members
from posbias.core.arrays.linalg import by_unit_and_cell, gram, pseudo_inverse
from posbias.core.arrays.threads import thread_map
from posbias.core.attractiveness import AttractivenessPrior, estimate_prior, sample_units, shown_position
from posbias.core.choices import BetaPrior
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import SufficientStatistics, dense_row_ranks
from posbias.core.errors import IdentifiabilityError
from posbias.core.estimators.estimate import Estimate, EstimationOptions, relative_to_largest
from posbias.core.estimators.methods import ConditionalEstimator
from posbias.core.schema import NO_PREVIOUS_CLICK, POSITION, PREVIOUS_CLICK, Length
from posbias.core.shapes import FREE
from posbias.core.standard_errors import contrasts
from posbias.core.standard_errors.cluster import t_quantile
from posbias.core.standard_errors.contrasts import ContrastTest, Differences, ScoredEstimate, StrataEstimate
from posbias.core.theta.conditional import SilenceTest, find_linkage, fit_conditional, silence_test
from posbias.core.theta.joint import LARGEST, JointFit, JointOptions, fit_joint


def expected_clicks(table: CountTable, examination: Floats, attractiveness: Floats) -> Floats:
    """Clicks that a fit expects in each cell, sum_j m_j n_je theta_e gamma_j.

    Args:
        table: counts per unit (a pair or signature) and cell.
        examination: theta, shape (K,), in [0, 1]; NaN where not identified.
        attractiveness: gamma, shape (J,).

    Returns:
        Shape (K,), NaN where not identified.
    """
    attracted = np.zeros(table.n_cells)
    for units, block in table.blocks():
        attracted += block.sum_by_cell(block.impressions * block.spread(block.multiplicity * attractiveness[units]))
    return attracted * examination


def position_effect_test(estimate: Estimate, shape: str) -> ContrastTest | None:
    """Whether any propensity differs from 1, that of the reference; None where the estimate has no errors.

    With the errors that the intervals imply, so that the two cannot contradict each other; a cell without clicks counts
    by what its upper limit says. Under a power of the position one cell speaks for all that share an eta.
    """
    intervals, fitted = estimate.intervals, estimate.fitted
    tested, silence = intervals.std_error > 0, None
    if fitted is not None and shape == FREE:
        silence = silence_test(fitted.fit, fitted.strata.signatures, np.ones(len(tested)))
    if not tested.any() and (silence is None or not len(silence.cells)):
        return None
    clusters = np.maximum(np.nan_to_num(intervals.effective_clusters, nan=1.0), 1.0)
    log_theta = np.log(estimate.propensity)
    std_error = intervals.reach(log_theta) / t_quantile(clusters)
    if shape == "power":
        _, first = np.unique(np.where(tested, estimate.linkage.reference_of, -1), return_index=True)
        tested &= np.isin(np.arange(len(tested)), first)
    test = contrasts.contrast_test(
        np.where(tested, log_theta, np.nan),
        std_error,
        clusters,
        correlation=None if shape == "power" or tested.sum() > contrasts.MOST_CONTRASTS else estimate.correlation,
    )
    return test if silence is None else _with_silence(test, silence.p_value)


@dataclass(frozen=True)
class BinsTest:
    """Whether positions of one bin differ."""

    contrasts: ContrastTest  # log theta of a cell minus that of the first one in its bin
    positions: tuple[tuple[int, int], ...]  # of each contrast: that of the first one and that of the cell


def bins_test(
    unbinned: SufficientStatistics, plan: StatisticsPlan, options: EstimationOptions, period: Length
) -> BinsTest | None:
    """Whether the free estimate by position differs within the bins of a plan; None where nothing can be compared."""
    options = replace(options, reference=(), shape=FREE)
    try:
        free = ConditionalEstimator().estimate(unbinned, unbinned.strata(period), options, lambda _: None)
    except IdentifiabilityError:
        return None
    if free.fitted is None:
        return None
    bins = dense_row_ranks(plan.bin_cells(unbinned.cells).select(plan.cell_columns))
    pairs: list[tuple[int, int]] = []
    for one in np.unique(bins).tolist():
        first, *others = np.flatnonzero((bins == one) & free.linkage.identified).tolist() or [-1]
        pairs += [(first, other) for other in others]
    apart = contrasts.pairwise_contrasts([one for one, _ in pairs], [other for _, other in pairs], unbinned.n_cells)
    position = unbinned.position_of_cell.tolist()
    test = contrasts.linear_contrast_test(apart, free.fitted.fit, free.fitted.errors)
    return BinsTest(test, tuple((position[first], position[other]) for first, other in pairs))


def previous_click_test(
    statistics: SufficientStatistics, estimate: Estimate
) -> tuple[ContrastTest | None, SilenceTest | None]:
    """Whether theta_{r r'} depends on r', the last click above: each r' > 0 against r' = 0 at the same position r.

    A cell without clicks is judged by the lower end of the interval of the cell at its position with r' = 0.

    Returns:
        The test, and what cells below a click without a click say; None where the model knows no previous click or the
        estimate has no errors.
    """
    fitted = estimate.fitted
    if PREVIOUS_CLICK not in statistics.cells.columns or fitted is None:
        return None, None
    cells, first = statistics.cells.with_row_index("clicked"), pl.col(PREVIOUS_CLICK) == NO_PREVIOUS_CLICK
    without = cells.filter(first).select(POSITION, pl.col("clicked").alias("unclicked"))
    pairs = cells.filter(~first).join(without, on=POSITION, maintain_order="left")
    clicked, unclicked = (pairs[name].cast(pl.Int64).to_numpy() for name in ("clicked", "unclicked"))
    apart = contrasts.pairwise_contrasts(unclicked, clicked, statistics.n_cells)
    test = contrasts.linear_contrast_test(apart, fitted.fit, fitted.errors)
    theta = np.full(statistics.n_cells, np.nan)
    theta[clicked] = estimate.intervals.low[unclicked]
    silence = silence_test(fitted.fit, fitted.strata.signatures, theta)
    return _with_silence(test, silence.p_value[clicked]), silence


@dataclass(frozen=True)
class CellColumnTest:
    """Whether attention depends on a column of cells: each cell against the one with the reference's value there."""

    column: str
    cells: Integers  # shape (M,), cells with another value of the column than their reference
    against: Integers  # shape (M,), the cell that has the reference's value, and is alike in all other columns
    differences: Differences  # M contrasts of log theta, of cells - against


def cell_column_tests(
    statistics: SufficientStatistics, estimate: Estimate, *, product: bool
) -> tuple[CellColumnTest, ...]:
    """Whether theta depends on each further column of cells; nothing where the estimate has no errors.

    Args:
        statistics: the counts.
        estimate: of its cells.
        product: whether it has the product form. One contrast then says all of a value: that with the reference.
    """
    behind, reference_of = estimate.conditional, estimate.linkage.reference_of
    if behind is None:
        return ()
    tests, place = list[CellColumnTest](), statistics.axes_of_cell
    for column in statistics.further_cell_columns:
        axis = statistics.axes.index(column)
        others = np.column_stack([statistics.context_of_cell, np.delete(place, axis, axis=1)])
        alike = np.unique(others, axis=0, return_inverse=True)[1].ravel()
        own = place[:, axis] == place[reference_of, axis]
        at = np.full(len(own), -1)
        at[alike[own]] = np.flatnonzero(own)
        cells = np.flatnonzero(~own & (at[alike] >= 0))
        if product:
            cells = cells[at[alike[cells]] == reference_of[cells]]
            log_theta, error = np.log(estimate.propensity[cells]), estimate.intervals.std_error[cells]
            degrees = estimate.intervals.effective_clusters[cells]
            test = contrasts.contrast_test(log_theta, error, degrees)
            differences = Differences(log_theta, error, np.maximum(np.nan_to_num(degrees, nan=1.0), 1.0), test)
        else:
            apart = contrasts.pairwise_contrasts(at[alike[cells]], cells, statistics.n_cells)
            covariance = contrasts.covariance_of_cells(behind.fit, behind.errors)
            differences = contrasts.linear_contrasts(apart, behind.fit.log_theta, covariance, behind.errors.degrees)
        tests.append(CellColumnTest(column, cells, at[alike[cells]], differences))
    return tuple(tests)


def _with_silence(test: ContrastTest, p_value: Floats) -> ContrastTest:
    """A test with further contrasts: those cells without clicks that have a p-value, in the place of their contrast.

    The smallest p-value decides. That of a cell without clicks comes without a statistic.
    """
    silent = np.isfinite(p_value)
    number = test.n_contrasts + int(silent.sum())
    if number == test.n_contrasts:
        return test
    p_values = np.where(silent, p_value * number, test.p_values * (number / max(test.n_contrasts, 1)))
    p_values = np.minimum(p_values, 1.0)
    largest = int(np.nanargmin(p_values))
    decided = {"n_contrasts": number, "p_values": p_values, "p_value": float(p_values[largest]), "largest": largest}
    if silent[largest]:
        decided |= dict.fromkeys(("statistic", "degrees", "difference", "std_error"), np.nan)
    return replace(test, **decided)


@dataclass(frozen=True)
class HiddenRelevance:
    """Relevance that only the ranker sees, by the slope rho of the error of log theta over log position.

    Theta at position k is too low by 1 - (k / k_0)^-rho. See `core.features` for where both slopes come from.
    """

    imagined: float  # >= 0: if it were as strong as the relevance that is known
    seen: float = np.nan  # as the rivals of documents show it; nan where they show nothing
    std_error: float = np.nan  # of it
    degrees: float = np.nan  # of freedom of the error

    @property
    def least(self) -> float:
        """The lower limit of the interval of 95 % of what rivals show, at least 0."""
        return float(np.nan_to_num(max(self.seen - self._reach, 0.0)))

    @property
    def plausible(self) -> float:
        """As imagined, or the upper limit of what rivals show, if that is less."""
        return float(np.fmin(self.imagined, max(self.seen, 0.0) + self._reach))

    @property
    def _reach(self) -> float:
        return float(t_quantile(np.array([self.degrees]))[0]) * self.std_error


@dataclass(frozen=True)
class FromRows:
    """The estimate of a method that reads rows."""

    estimate: Estimate
    moment: Floats | None  # theta by the moment equation, relative to the same references, shape (K,)
    pages: int  # that its trees were grown on
    pages_in_all: int
    score: str | None  # the feature that is the ranker's score, if one is named
    hidden: HiddenRelevance | None = None  # how far relevance that only the ranker sees may put the estimate off


@dataclass(frozen=True)
class PairsTest:
    """The estimate from features against the conditional estimate from repeated pairs.

    Two things are tested, each at half of the level: the slope of the log ratio over log position, in which what the
    features do not show adds up, and every cell (Bonferroni). The variances of the two estimates add up: the clicks
    that they share make the difference vary less than that, so that false alarms are rarer than the level.
    """

    slope: float  # by how much log theta falls faster with log position by the features, relative to the pairs
    slope_error: float
    of_slope: ContrastTest
    of_cells: ContrastTest  # of the log ratios of the cells
    pairs: int  # how many link the most of them

    @property
    def p_value(self) -> float:
        """The smaller of the two, times two, at most 1."""
        return min(1.0, 2 * min(self.of_slope.p_value, self.of_cells.p_value))

    @property
    def rejected(self) -> bool:
        """Whether the two differ."""
        return self.p_value < contrasts.LEVEL


def compare_with_pairs(
    estimate: Estimate, statistics: SufficientStatistics, options: EstimationOptions
) -> PairsTest | None:
    """Compare with what repeated pairs say; None where nothing repeats, or one of the two has no errors."""
    features = estimate.conditional
    if features is None:
        return None
    own = replace(options, reference=(), max_iterations=None, tolerance=None)
    try:
        pairs = ConditionalEstimator().estimate(statistics, statistics.strata(), own, lambda _: None)
    except IdentifiabilityError:
        return None
    if pairs.fitted is None:
        return None
    # The cells that both know, relative to the references of the pairs.
    fits, n_cells, reference = (features.fit, pairs.fitted.fit), statistics.n_cells, pairs.linkage.reference_of
    variance = sum(contrasts.covariance_of_cells(of.fit, of.errors) for of in (features, pairs.fitted))
    known = np.isfinite(np.diag(variance))
    cells = np.flatnonzero(known & known[reference] & (reference != np.arange(n_cells)))
    if not len(cells):
        return None
    apart = contrasts.pairwise_contrasts(reference[cells], cells, n_cells)
    difference = apart @ (np.nan_to_num(fits[0].log_theta) - np.nan_to_num(fits[1].log_theta))
    # 1e-12: two cells may agree to the last click
    covariance = apart @ np.nan_to_num(variance) @ apart.T + 1e-12 * np.eye(len(cells))
    position = np.log(statistics.position_of_cell)
    direction = position[cells] - position[reference[cells]]
    weighed = scipy.linalg.cho_solve(scipy.linalg.cho_factor(covariance, lower=True, overwrite_a=True), direction)
    information = float(direction @ weighed)
    slope, error = float(difference @ weighed) / max(information, 1e-300), 1 / np.sqrt(max(information, 1e-300))
    degrees = np.minimum(features.errors.degrees, pairs.fitted.errors.degrees)[cells]
    fewest = np.array([np.nanmin(degrees, initial=np.inf)])
    return PairsTest(
        slope=slope,
        slope_error=float(error),
        of_slope=contrasts.contrast_test(np.array([slope]), np.array([error]), fewest),
        of_cells=contrasts.contrast_test(difference, np.sqrt(np.diag(covariance)), degrees),
        pairs=int(pairs.linkage.linking_pairs[cells].max()),
    )


NOTABLE = 0.05
"""Relative difference between the two estimates that is worth a warning."""


@dataclass(frozen=True)
class JointComparison:
    """Joint EM against the conditional estimate."""

    log_ratio: Floats  # shape (K,), D, each estimate relative to the cell's reference; NaN where not identified
    std_error: Floats  # shape (K,), of D; NaN where there is none, 0 at the reference
    test: ContrastTest  # of all D at once
    converged: bool  # whether both estimates did; else no bias is claimed
    n_clusters: int  # clusters (queries) that it rests on

    @property
    def biased_cells(self) -> Integers:
        """The cells in which joint EM is off by more than 5 %, beyond chance."""
        notable = np.abs(np.expm1(self.log_ratio)) > NOTABLE
        return np.flatnonzero(notable & (self.test.p_values < contrasts.LEVEL) & self.converged)

    @property
    def biased(self) -> bool:
        """Whether joint EM is biased on this log."""
        return len(self.biased_cells) > 0

    @property
    def largest_difference(self) -> float:
        """The largest |exp D - 1| over the biased cells, or over all cells that are compared; NaN without any."""
        compared = self.biased_cells if self.biased else np.flatnonzero(np.isfinite(self.test.p_values))
        return float(np.abs(np.expm1(self.log_ratio[compared])).max()) if len(compared) else np.nan


def compare_with_joint(conditional: StrataEstimate, joint: JointFit) -> JointComparison:
    """Compare the two estimates from the same pairs, or strata that share one attractiveness.

    Args:
        conditional: the conditional estimate. Its members are all pairs with a click and two cells at least, and others
            at will: the scores of those that are not among them, which only a prior makes differ from 0, count as
            clusters of their own.
        joint: joint EM on the same counts, run to convergence.
    """
    table, members, linkage = conditional.strata.signatures, conditional.strata.members, conditional.fit.linkage
    score, information = joint_derivatives(joint, table)
    others = table.multiplicity - np.bincount(members.unit, minlength=table.n_units)
    alone = np.flatnonzero(others > 1 / 2)
    first = int(members.cluster.max(initial=-1)) + 1
    each = Members(
        np.concatenate([members.unit, alone]), np.concatenate([members.cluster, first + np.arange(len(alone))])
    )
    clusters, counts = each.occurrences(table.n_units)
    scores = counts @ by_unit_and_cell(table, score)
    copies = np.concatenate([np.ones(len(clusters) - len(alone)), others[alone]])
    scores.data *= np.repeat(np.sqrt(copies), np.diff(scores.indptr))
    # Without a prior the information says nothing about the common scale of theta, which drops out of every ratio.
    inverse = pseudo_inverse(information)
    log_theta = np.log(np.where(linkage.identified, joint.examination, 1.0))  # 0 without prior and clicks
    scored = ScoredEstimate(
        log_theta=np.where(linkage.identified, log_theta - log_theta[linkage.reference_of], np.nan),
        std_error=np.where(linkage.identified, 0.0, np.nan),
        degrees=np.full(table.n_cells, np.inf),
        clusters=clusters,
        scores=scores,
        response=inverse - inverse[linkage.reference_of],
    )
    log_ratio = scored.log_theta - conditional.fit.log_theta
    std_error, correlation = contrasts.difference_errors(conditional.scored(), scored)
    test = contrasts.contrast_test(log_ratio, std_error, conditional.errors.degrees, correlation=correlation)
    both_converged = conditional.fit.converged and joint.converged
    return JointComparison(log_ratio, std_error, test, both_converged, conditional.errors.n_clusters)


def joint_derivatives(joint: JointFit, table: CountTable) -> tuple[Floats, Floats]:
    """The score of each entry of one copy of its unit, u, shape (R,), and the information I, shape (K, K).

    Both in terms of log theta, with every gamma at its optimum. A theta or gamma held at its upper bound does not move:
    such a gamma takes nothing away from I, and such a theta has no row in it.
    """
    theta, gamma = joint.examination, joint.attractiveness
    mu = table.spread(gamma) * theta[table.cell]
    score = (table.clicks - table.impressions * mu) / (1 - mu)
    value = (table.impressions - table.clicks) * mu / (1 - mu) ** 2
    # Of the priors' logarithms in log x, minus the second derivatives, s (1 - v) x / (1 - x)^2
    of_theta, of_gamma = joint.options.examination_prior.pseudo_skips, joint.options.attractiveness_prior.pseudo_skips
    curvature = table.sum_by_unit(value) + of_gamma * gamma / (1 - gamma) ** 2
    lost = np.divide(table.multiplicity, curvature, out=np.zeros_like(curvature), where=curvature > 0)
    lost[gamma >= LARGEST] = 0.0
    information = np.diag(table.sum_by_cell(table.spread(table.multiplicity) * value))
    information += np.diag(of_theta * theta / (1 - theta) ** 2)
    information -= gram(by_unit_and_cell(table, value * table.spread(np.sqrt(lost))))
    held = theta >= LARGEST
    information[held, :] = 0.0
    information[:, held] = 0.0
    return score, information


LARGEST_SAMPLE = 100_000
"""Pairs at most from which the causes are estimated: the bias is then known to one or two percent of theta."""

NO_PRIOR = BetaPrior(0.5, 0.0)

_TOLERANCE = 1e-4
_HIGHEST = 1 - 1e-3  # of theta where EM starts: at 1 it would stay


@dataclass(frozen=True)
class JointCauses:
    """Joint EM under other priors, against the conditional estimate."""

    without_prior: Floats  # shape (K,), log of EM's theta without a prior over the conditional one; NaN where unknown
    with_estimated: Floats  # shape (K,), the same with the prior estimated from the log
    estimated: BetaPrior  # that prior

    def largest_without_prior(self, cells: Flags) -> float:
        """The largest relative difference without a prior over the given cells, NaN without any."""
        known = self.without_prior[cells][np.isfinite(self.without_prior[cells])]
        return float(np.abs(np.expm1(known)).max()) if len(known) else np.nan


def find_causes(
    joint: JointFit,
    conditional: StrataEstimate,
    comparison: JointComparison,
    prior: AttractivenessPrior,
    position_of_cell: Integers,
) -> JointCauses | None:
    """Run joint EM without a prior and with the estimated one.

    Args:
        joint: joint EM.
        conditional: the conditional estimate from the same counts.
        comparison: of the two.
        prior: of attractiveness by position, as the log says it; EM knows one for all. Estimated where it is a given
            one, the same at all positions.
        position_of_cell: shape (K,), 1-based.

    Returns:
        The two comparisons; None where joint EM has no bias or no prior, or a sample of the log compares nothing.
    """
    options = joint.options
    if not comparison.biased or options.attractiveness_prior.strength == options.examination_prior.strength == 0:
        return None
    table, fit = conditional.strata.signatures, conditional.fit
    if not prior.positions:
        prior = estimate_prior(table, relative_to_largest(fit.theta, fit.linkage), position_of_cell)
    units, copies = sample_units(table.multiplicity, LARGEST_SAMPLE)
    if copies.sum() < table.multiplicity.sum():
        table = replace(table.take(units), multiplicity=copies)
        try:
            linkage = find_linkage(table, fit.linkage.reference_of, fit.linkage.references)
        except IdentifiabilityError:
            return None
        fit = fit_conditional(table, linkage)
    # One Beta prior with the mean and the variance of all units together, given the position of each.
    (means, _), copies = prior.at(shown_position(table, position_of_cell)), table.multiplicity
    mean = float(np.average(means, weights=copies))
    variance = float(np.average(means * (1 - means) / (prior.strength + 1) + (means - mean) ** 2, weights=copies))
    estimated = BetaPrior(mean, mean * (1 - mean) / variance - 1)
    known, reference = fit.linkage.identified, fit.linkage.reference_of
    theta = np.where(known, np.nan_to_num(fit.theta), 0.0)
    start = np.where(known, theta * (_HIGHEST / theta.max()), _HIGHEST / 2)

    def against(run: tuple[CountTable, JointOptions]) -> Floats:
        """Log of EM's theta over the conditional one, each relative to the cell's reference."""
        log_theta = np.log(np.where(known, fit_joint(*run, start=start).examination, 1.0))
        return np.where(known, log_theta - log_theta[reference] - fit.log_theta, np.nan)

    linking = table.take(np.flatnonzero(table.links))  # without a prior all others fit any theta
    options = JointOptions(NO_PRIOR, NO_PRIOR, tolerance=_TOLERANCE)
    runs = (linking, options), (table, JointOptions(attractiveness_prior=estimated, tolerance=_TOLERANCE))
    without_prior, with_estimated = thread_map(against, runs)
    return JointCauses(without_prior, with_estimated, estimated)
