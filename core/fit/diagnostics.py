"""Diagnostics of a fit: expected clicks, contrasts between cells, and the bias of joint (textbook) EM.

On sparse logs joint EM is inconsistent (Neyman & Scott 1948), the conditional estimate is not. With mu = theta gamma,

    D = log theta_joint - log theta_conditional
    u_je = (c - n mu) / (1 - mu),    v_je = (n - c) mu / (1 - mu)^2
    I = sum_j m_j (diag(v_j) - v_j v_j' / (sum_e v_je + w_j)) + diag(w_e)
    psi_g = I^-1 u_g - H^-1 s_g,     V = sum_g psi_g psi_g'     over the clusters (queries) g

u is the score of log theta, v minus its derivative, and I minus the derivative of the score profiled over all gamma;
w = s (1 - v0) x / (1 - x)^2 is the curvature of the Beta prior (mean v0, strength s) of x = gamma_j or theta_e. v and w
are observed, not expected: with rare pairs the two differ, and expected information would hide the bias.

Joint EM counts as biased if D differs from 0 in some cell, at level .05 over all cells, and |exp D - 1| > 5 % there.
Only the biases by sparsity and by the prior are detected, which `find_causes` separates: under feedback or
personalisation both estimates are biased alike.

For the causes EM runs twice more: without a prior, where the remaining bias is that of sparsity, and with the prior of
attractiveness estimated from the log. Both runs start from the conditional estimate and stop when the bias is known to
about a percent of itself. In a large log they use a sample of pairs, as does the conditional estimate compared.
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
    """Return the expected clicks by cell, sum_j m_j n_je theta_e gamma_j, shape (K,), NaN where not identified.

    Args:
        table: counts by unit (pair or signature) and cell.
        examination: theta, shape (K,), in [0, 1]; NaN where not identified.
        attractiveness: gamma, shape (J,).
    """
    attracted = np.zeros(table.n_cells)
    for units, block in table.blocks():
        attracted += block.sum_by_cell(block.impressions * block.spread(block.multiplicity * attractiveness[units]))
    return attracted * examination


def position_effect_test(estimate: Estimate, shape: str) -> ContrastTest | None:
    """Test whether any propensity differs from 1, that of the reference; None if the estimate has no errors.

    Errors are those implied by the intervals, so that test and intervals agree; a cell without clicks contributes the
    p-value of its `silence_test`. Under a power of the position, one cell of each context is tested.
    """
    intervals, fitted = estimate.intervals, estimate.fitted
    tested, silence = intervals.std_error > 0, None
    if fitted is not None and shape == FREE:
        silence = silence_test(fitted.fit, fitted.strata.signatures, np.ones(len(tested)))
    if not tested.any() and (silence is None or not len(silence.cells)):
        return None
    clusters = np.maximum(np.nan_to_num(intervals.effective_clusters, nan=1.0), 1.0)
    log_theta = np.log(estimate.propensity)
    std_error = intervals.half_width(log_theta) / t_quantile(clusters)
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
    """Test whether positions of a bin differ."""

    contrasts: ContrastTest  # log theta of each cell minus that of the first identified cell of its bin
    positions: tuple[tuple[int, int], ...]  # positions of the first cell and of the other cell, by contrast


def bins_test(
    unbinned: SufficientStatistics, plan: StatisticsPlan, options: EstimationOptions, period: Length
) -> BinsTest | None:
    """Test whether the free estimate by position differs within the bins of a plan; None if nothing is identified."""
    options = replace(options, reference=(), shape=FREE)
    try:
        free = ConditionalEstimator().estimate(unbinned, unbinned.strata(period), options, lambda _: None)
    except IdentifiabilityError:
        return None
    if free.fitted is None:
        return None
    bins = dense_row_ranks(plan.bin_cells(unbinned.cells).select(plan.cell_columns))
    pairs: list[tuple[int, int]] = []
    for number in np.unique(bins).tolist():
        cells = np.flatnonzero((bins == number) & free.linkage.identified).tolist()
        pairs += [(cells[0], other) for other in cells[1:]]
    within = contrasts.pairwise_contrasts(
        [first for first, _ in pairs], [other for _, other in pairs], unbinned.n_cells
    )
    position = unbinned.position_of_cell.tolist()
    test = contrasts.linear_contrast_test(within, free.fitted.fit, free.fitted.errors)
    return BinsTest(test, tuple((position[first], position[other]) for first, other in pairs))


def previous_click_test(
    statistics: SufficientStatistics, estimate: Estimate
) -> tuple[ContrastTest | None, SilenceTest | None]:
    """Test whether theta_{r r'} depends on r', the last click above: each r' > 0 against r' = 0 at the same position r.

    A cell without clicks is compared with the lower end of the interval of the cell with r' = 0 at its position.

    Returns:
        The test, and that of cells below a click without clicks; None for models without a previous click, and for
        estimates without errors.
    """
    fitted = estimate.fitted
    if PREVIOUS_CLICK not in statistics.cells.columns or fitted is None:
        return None, None
    cells, is_unclicked = statistics.cells.with_row_index("clicked"), pl.col(PREVIOUS_CLICK) == NO_PREVIOUS_CLICK
    without = cells.filter(is_unclicked).select(POSITION, pl.col("clicked").alias("unclicked"))
    pairs = cells.filter(~is_unclicked).join(without, on=POSITION, maintain_order="left")
    clicked, unclicked = (pairs[name].cast(pl.Int64).to_numpy() for name in ("clicked", "unclicked"))
    by_click = contrasts.pairwise_contrasts(unclicked, clicked, statistics.n_cells)
    test = contrasts.linear_contrast_test(by_click, fitted.fit, fitted.errors)
    theta = np.full(statistics.n_cells, np.nan)
    theta[clicked] = estimate.intervals.low[unclicked]
    silence = silence_test(fitted.fit, fitted.strata.signatures, theta)
    return _with_silence(test, silence.p_value[clicked]), silence


@dataclass(frozen=True)
class CellColumnTest:
    """Test whether theta depends on a column of cells: each cell against the cell with the reference's value of it."""

    column: str
    cells: Integers  # cells whose value differs from that of their reference, shape (M,)
    against: Integers  # cells with the reference's value, equal in all other columns, shape (M,)
    differences: Differences  # M contrasts of log theta, `cells` - `against`


def cell_column_tests(
    statistics: SufficientStatistics, estimate: Estimate, *, product: bool
) -> tuple[CellColumnTest, ...]:
    """Test whether theta depends on each further column of cells; empty if the estimate has no errors.

    Args:
        statistics: the compressed log.
        estimate: of its cells.
        product: whether it has the product form, in which a value of a column has one contrast, with the reference.
    """
    curve, reference_of = estimate.conditional, estimate.linkage.reference_of
    if curve is None:
        return ()
    tests, values = list[CellColumnTest](), statistics.axes_of_cell
    for column in statistics.further_cell_columns:
        axis = statistics.axes.index(column)
        others = np.column_stack([statistics.context_of_cell, np.delete(values, axis, axis=1)])
        number = np.unique(others, axis=0, return_inverse=True)[1].ravel()
        has_reference_value = values[:, axis] == values[reference_of, axis]
        counterpart = np.full(len(number), -1)
        counterpart[number[has_reference_value]] = np.flatnonzero(has_reference_value)
        counterpart = counterpart[number]
        cells = np.flatnonzero(~has_reference_value & (counterpart >= 0))
        if product:
            cells = cells[counterpart[cells] == reference_of[cells]]
            log_theta, error = np.log(estimate.propensity[cells]), estimate.intervals.std_error[cells]
            degrees = estimate.intervals.effective_clusters[cells]
            test = contrasts.contrast_test(log_theta, error, degrees)
            differences = Differences(log_theta, error, np.maximum(np.nan_to_num(degrees, nan=1.0), 1.0), test)
        else:
            by_value = contrasts.pairwise_contrasts(counterpart[cells], cells, statistics.n_cells)
            covariance = contrasts.log_theta_covariance(curve.fit, curve.errors)
            differences = contrasts.linear_contrasts(by_value, curve.fit.log_theta, covariance, curve.errors.degrees)
        tests.append(CellColumnTest(column, cells, counterpart[cells], differences))
    return tuple(tests)


def _with_silence(test: ContrastTest, p_value: Floats) -> ContrastTest:
    """Add contrasts of cells without clicks to a test; the smallest p-value decides.

    Args:
        test: its contrasts of these cells are NaN.
        p_value: of each contrast, shape (M,); NaN except in cells without clicks. It has no statistic.
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
    """Bias of log theta from relevance that only the ranker knows: its slope -rho over log position.

    Theta at position k is underestimated by the factor (k / k_0)^-rho. The slopes are defined in `core.features`.
    """

    benchmark: float  # rho >= 0 if hidden relevance is as strong as the known relevance
    by_rivals: float = np.nan  # rho by the rivals of documents; NaN if they are a weak instrument
    std_error: float = np.nan  # of `by_rivals`
    degrees: float = np.nan  # degrees of freedom of the error

    @property
    def least(self) -> float:
        """Lower limit of the 95 % interval of rho by rivals, at least 0; 0 if unknown."""
        return float(np.nan_to_num(max(self.by_rivals - self._margin, 0.0)))

    @property
    def plausible(self) -> float:
        """The smaller of `benchmark` and the upper limit of rho by rivals."""
        return float(np.fmin(self.benchmark, max(self.by_rivals, 0.0) + self._margin))

    @property
    def _margin(self) -> float:
        return float(t_quantile(np.array([self.degrees]))[0]) * self.std_error


@dataclass(frozen=True)
class FromRows:
    """The estimate of a method that reads rows, with its details."""

    estimate: Estimate
    moment: Floats | None  # theta by the moment equation, relative to the same references, shape (K,)
    pages: int  # sampled pages, on which trees were trained
    pages_in_all: int
    score: str | None  # name of the feature with the ranker's score
    hidden: HiddenRelevance | None = None  # possible bias from relevance that only the ranker knows


@dataclass(frozen=True)
class PairsTest:
    """Test of the estimate from features against the conditional estimate from repeated pairs.

    Each at half of the level: the slope of the log ratio over log position, in which effects that the features do not
    show add up, and all cells (Bonferroni). The variances of the two estimates are added, although they share clicks:
    the difference varies less, so that false alarms are rarer than the level.
    """

    slope: float  # slope of log theta by features minus by pairs over log position
    slope_error: float  # standard error of the slope
    slope_test: ContrastTest
    cells_test: ContrastTest  # of the log ratios by cell
    pairs: int  # largest number of pairs that link a cell

    @property
    def p_value(self) -> float:
        """The smaller p-value times two, at most 1."""
        return min(1.0, 2 * min(self.slope_test.p_value, self.cells_test.p_value))

    @property
    def rejected(self) -> bool:
        """Whether the two estimates differ."""
        return self.p_value < contrasts.LEVEL


def compare_with_pairs(
    estimate: Estimate, statistics: SufficientStatistics, options: EstimationOptions
) -> PairsTest | None:
    """Compare an estimate with that from repeated pairs; None if no pair repeats, or an estimate has no errors."""
    features = estimate.conditional
    if features is None:
        return None
    options = replace(options, reference=(), max_iterations=None, tolerance=None)
    try:
        pairs = ConditionalEstimator().estimate(statistics, statistics.strata(), options, lambda _: None)
    except IdentifiabilityError:
        return None
    if pairs.fitted is None:
        return None
    # Cells identified in both, relative to the references of the pairs
    fits, n_cells, reference = (features.fit, pairs.fitted.fit), statistics.n_cells, pairs.linkage.reference_of
    variance = sum(contrasts.log_theta_covariance(curve.fit, curve.errors) for curve in (features, pairs.fitted))
    known = np.isfinite(np.diag(variance))
    cells = np.flatnonzero(known & known[reference] & (reference != np.arange(n_cells)))
    if not len(cells):
        return None
    to_reference = contrasts.pairwise_contrasts(reference[cells], cells, n_cells)
    difference = to_reference @ (np.nan_to_num(fits[0].log_theta) - np.nan_to_num(fits[1].log_theta))
    # 1e-12: two cells may agree to the last click
    covariance = to_reference @ np.nan_to_num(variance) @ to_reference.T + 1e-12 * np.eye(len(cells))
    position = np.log(statistics.position_of_cell)
    direction = position[cells] - position[reference[cells]]
    weighted = scipy.linalg.cho_solve(scipy.linalg.cho_factor(covariance, lower=True, overwrite_a=True), direction)
    information = float(direction @ weighted)
    slope, error = float(difference @ weighted) / max(information, 1e-300), 1 / np.sqrt(max(information, 1e-300))
    degrees = np.minimum(features.errors.degrees, pairs.fitted.errors.degrees)[cells]
    fewest = np.array([np.nanmin(degrees, initial=np.inf)])
    return PairsTest(
        slope=slope,
        slope_error=float(error),
        slope_test=contrasts.contrast_test(np.array([slope]), np.array([error]), fewest),
        cells_test=contrasts.contrast_test(difference, np.sqrt(np.diag(covariance)), degrees),
        pairs=int(pairs.linkage.linking_pairs[cells].max()),
    )


NOTABLE = 0.05
"""Relative difference between joint EM and the conditional estimate that is worth a warning."""


@dataclass(frozen=True)
class JointComparison:
    """Joint EM against the conditional estimate."""

    log_ratio: Floats  # D, each estimate relative to the cell's reference, shape (K,); NaN where not identified
    std_error: Floats  # of D, shape (K,); 0 at references, NaN without an error
    test: ContrastTest  # of D = 0 in all cells
    converged: bool  # whether both estimates converged; else no bias is claimed
    n_clusters: int  # number of clusters (queries)

    @property
    def biased_cells(self) -> Integers:
        """Cells in which joint EM is biased by more than 5 %, beyond chance."""
        notable = np.abs(np.expm1(self.log_ratio)) > NOTABLE
        return np.flatnonzero(notable & (self.test.p_values < contrasts.LEVEL) & self.converged)

    @property
    def biased(self) -> bool:
        """Whether joint EM is biased on this log."""
        return len(self.biased_cells) > 0

    @property
    def largest_difference(self) -> float:
        """The largest |exp D - 1| over the biased cells, else over all tested cells; NaN without tested cells."""
        compared = self.biased_cells if self.biased else np.flatnonzero(np.isfinite(self.test.p_values))
        return float(np.abs(np.expm1(self.log_ratio[compared])).max()) if len(compared) else np.nan


def compare_with_joint(conditional: StrataEstimate, joint: JointFit) -> JointComparison:
    """Compare joint EM and the conditional estimate from the same strata.

    Args:
        conditional: the conditional estimate. Its members include all pairs with a click and two or more cells. The
            scores of pairs that are not members, which differ from 0 only with a prior, are clusters of their own.
        joint: joint EM on the same counts, run to convergence.
    """
    table, members, linkage = conditional.strata.signatures, conditional.strata.members, conditional.fit.linkage
    score, information = joint_derivatives(joint, table)
    others = table.multiplicity - np.bincount(members.unit, minlength=table.n_units)
    alone = np.flatnonzero(others > 1 / 2)
    first = int(members.cluster.max(initial=-1)) + 1
    all_members = Members(
        np.concatenate([members.unit, alone]), np.concatenate([members.cluster, first + np.arange(len(alone))])
    )
    clusters, counts = all_members.occurrences(table.n_units)
    scores = counts @ by_unit_and_cell(table, score)
    copies = np.concatenate([np.ones(len(clusters) - len(alone)), others[alone]])
    scores.data *= np.repeat(np.sqrt(copies), np.diff(scores.indptr))
    # Without a prior the scale of theta has no information; it cancels in every ratio
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
    """Return the score u of each entry of one copy of its unit, shape (R,), and the information I, shape (K, K).

    Both are by log theta, profiled over gamma. A gamma at its upper bound is constant and reduces no information; a
    theta at its upper bound has a row and a column of zeros.
    """
    theta, gamma = joint.examination, joint.attractiveness
    mu = table.spread(gamma) * theta[table.cell]
    score = (table.clicks - table.impressions * mu) / (1 - mu)
    value = (table.impressions - table.clicks) * mu / (1 - mu) ** 2
    # Curvature of the priors, w
    theta_skips = joint.options.examination_prior.pseudo_skips
    gamma_skips = joint.options.attractiveness_prior.pseudo_skips
    curvature = table.sum_by_unit(value) + gamma_skips * gamma / (1 - gamma) ** 2
    lost = np.divide(table.multiplicity, curvature, out=np.zeros_like(curvature), where=curvature > 0)
    lost[gamma >= LARGEST] = 0.0
    information = np.diag(table.sum_by_cell(table.spread(table.multiplicity) * value))
    information += np.diag(theta_skips * theta / (1 - theta) ** 2)
    information -= gram(by_unit_and_cell(table, value * table.spread(np.sqrt(lost))))
    at_bound = theta >= LARGEST
    information[at_bound, :] = 0.0
    information[:, at_bound] = 0.0
    return score, information


LARGEST_SAMPLE = 100_000
"""Largest number of pairs from which causes are estimated: the bias is then known to one or two percent of theta."""

NO_PRIOR = BetaPrior(0.5, 0.0)

_TOLERANCE = 1e-4
_HIGHEST = 1 - 1e-3  # largest theta at the start of EM, which would not leave 1


@dataclass(frozen=True)
class JointCauses:
    """Bias of joint EM under other priors, as log of its theta over the conditional estimate, NaN if unknown."""

    without_prior: Floats  # shape (K,)
    with_estimated: Floats  # with the prior estimated from the log, shape (K,)
    estimated: BetaPrior  # that prior

    def largest_without_prior(self, cells: Flags) -> float:
        """Return the largest relative bias without a prior over the given cells; NaN if unknown in all."""
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
        comparison: of the two estimates.
        prior: of attractiveness; estimated here unless it is by position, as an estimated prior is. EM has one prior
            for all positions.
        position_of_cell: shape (K,), 1-based.

    Returns:
        The biases; None if joint EM has no bias or no prior, or a sample of the log does not link cells.
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
    # A single Beta prior with the mean and variance of the mixture over positions
    (means, _), copies = prior.at(shown_position(table, position_of_cell)), table.multiplicity
    mean = float(np.average(means, weights=copies))
    variance = float(np.average(means * (1 - means) / (prior.strength + 1) + (means - mean) ** 2, weights=copies))
    estimated = BetaPrior(mean, mean * (1 - mean) / variance - 1)
    known, reference = fit.linkage.identified, fit.linkage.reference_of
    theta = np.where(known, np.nan_to_num(fit.theta), 0.0)
    start = np.where(known, theta * (_HIGHEST / theta.max()), _HIGHEST / 2)

    def bias(run: tuple[CountTable, JointOptions]) -> Floats:
        """Return the log ratio of EM's theta to the conditional one, each relative to the cell's reference."""
        log_theta = np.log(np.where(known, fit_joint(*run, start=start).examination, 1.0))
        return np.where(known, log_theta - log_theta[reference] - fit.log_theta, np.nan)

    linking = table.take(np.flatnonzero(table.links))  # without a prior, any theta fits the other pairs
    options = JointOptions(NO_PRIOR, NO_PRIOR, tolerance=_TOLERANCE)
    runs = (linking, options), (table, JointOptions(attractiveness_prior=estimated, tolerance=_TOLERANCE))
    without_prior, with_estimated = thread_map(bias, runs)
    return JointCauses(without_prior, with_estimated, estimated)
