"""Fit sufficient statistics: theta, joint EM for comparison, attractiveness, and tests of the assumptions."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats, Numbers
from posbias.core.arrays.threads import meanwhile
from posbias.core.attractiveness import AttractivenessPrior, estimate_prior, posterior_by_position, total_std_dev
from posbias.core.counts.checks import CountedPages, check_no_silent_position
from posbias.core.counts.sufficient_statistics import SufficientStatistics, dense_row_ranks
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators import check_method, get_estimator, get_method, methods
from posbias.core.estimators.estimate import Estimate, EstimationOptions, OnIteration
from posbias.core.estimators.methods import ConditionalEstimator, JointEstimator, PlacementTest, RandomizedEstimator
from posbias.core.fit import diagnostics, propensities
from posbias.core.fit.arms import MOST_ARMS, ArmsTest, arms_learn_separately, arms_test, learning_by_arm
from posbias.core.fit.diagnostics import BinsTest, CellColumnTest, FromRows, JointCauses, JointComparison, PairsTest
from posbias.core.fit.model_tests import ModelTests, run_model_tests
from posbias.core.fit.periods import ChangeOfTheta, PeriodChoice, change_of_theta, choose_period
from posbias.core.fit.propensities import ThetaEstimate, errors_of_theta, shared_clicks
from posbias.core.schema import CLICKS, IMPRESSIONS, POSITION
from posbias.core.shapes import FREE, ShapedEstimate, get_shape
from posbias.core.shapes.contexts import ShrunkContexts, compare_contexts
from posbias.core.shapes.linear import PowerShape, fit_product
from posbias.core.shapes.smooth import SmoothShape
from posbias.core.standard_errors.cluster import ClusterSums, Intervals
from posbias.core.standard_errors.column import LogFit
from posbias.core.standard_errors.contrasts import ContrastTest, StrataEstimate
from posbias.core.theta.conditional import SilenceTest

LARGEST_COMPARISON = 200_000
"""Largest number of signatures for which joint EM runs without a request."""

MOST_CELLS_BESIDE = 1_000
"""Largest number of cells for which joint EM and a smooth curve are computed without a request: their cost grows with
its cube."""

MOST_CELLS_OF_SLOW = 2_000
"""Largest number of cells for the bootstrap, clusters by a column, and shapes other than a power: each of their many
steps costs its cube."""

MOST_VALUES = 1_000
"""Largest number of values of a cell column: beyond, it is an id and no row or list of a page."""

PRODUCT_P_VALUE = 0.2
"""Smallest p-value with which the product form is chosen without a request. It is larger than a level of rejection, as
departures that a test misses make intervals too narrow."""

LARGEST_MISFIT = float(np.log(1.5))
"""Largest departure from the product form that its test may miss in one log of five, in log theta, median over cells,
if the form is chosen without a request."""

_MATRICES, _MATRICES_OF_PERIOD = 8, 4
"""Matrices of shape (K, K) in memory at the peak of an estimate with errors; and further ones per length of period."""

SUFFICIENT_CLICK_SHARE = 0.99
"""Share of the clicks in identified cells below which a result has a caution."""


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """An estimate under the requested form, shape or shrinkage, with the description of each; None if not applied."""

    estimate: Estimate
    form: ShapedEstimate | None = None  # product form of cells of several columns: an effect per value of each column
    shape: ShapedEstimate | None = None  # the requested shape, with its test against the free estimate
    smooth: ShapedEstimate | None = None  # smooth curve, for the weights of thin cells
    shrunk: ShrunkContexts | None = None  # shrinkage of contexts towards each other
    contexts: ContrastTest | None = None  # whether contexts differ; None with a single context


@dataclass(frozen=True, kw_only=True)
class Fit(Refinement):
    """An estimate with attractiveness and tests; a test is None if the log does not allow it.

    K cells, J pair signatures.
    """

    statistics: SufficientStatistics
    options: EstimationOptions
    free: Estimate  # without shape and shrinkage
    period: PeriodChoice  # length of period within which attractiveness is constant, with its tests
    change: ChangeOfTheta | None  # theta of earlier against later days; None without days
    arms: ArmsTest | None  # whether experiment arms agree with the estimate; None if arms do not move documents
    joint: Estimate | None  # joint (textbook) EM; None if it did not run
    comparison: JointComparison | None  # joint EM against the conditional estimate
    causes: JointCauses | None  # whether prior or sparsity biases joint EM; None if it is not biased
    prior: AttractivenessPrior
    attractiveness: Floats  # posterior mean of gamma, shape (J,)
    std_dev: Floats  # its standard deviation, with the errors of theta, shape (J,); NaN if gamma is the estimator's own
    query_spread: float  # tau >= 0, standard deviation of log theta between queries; 0 without evidence
    covariance: Floats | None  # of log examination, with tau^2, shape (K, K); None if the method has no errors
    position_effect: ContrastTest | None  # whether any propensity differs from 1
    cell_columns: tuple[CellColumnTest, ...]  # whether theta depends on each further column of cells
    previous_click: ContrastTest | None  # whether theta depends on the previous click, with UBM
    silence: SilenceTest | None  # cells below a click without clicks, with UBM
    placements: tuple[PlacementTest, ...]  # whether randomised rows were placed at random
    bins: BinsTest | None  # whether positions of a bin differ
    model_tests: ModelTests | None  # whether the model holds
    from_rows: FromRows | None  # details of a method that reads rows; None for other methods
    against_pairs: PairsTest | None  # estimate from features against estimate from repeated pairs

    @property
    def cell_form(self) -> str | None:
        """The form of the estimate for cells of several columns, `free` or `product`; None if cells are positions."""
        if not self.statistics.plan.cell:
            return None
        return "free" if self.form is None or self.estimate.propensity is self.free.propensity else "product"

    @cached_property
    def propensities(self) -> pl.DataFrame:
        """A row per cell, sorted by cell; unknown values are null, counts are integers unless they are sums of weights.

        The cell columns, `impressions`, `clicks`, `ctr`, `propensity` (relative to the reference cell = 1),
        `weight_propensity` (the weight of a click is its inverse, clipped), `examination` (in [0, 1]), `std_error` (of
        log propensity), `ci_low`, `ci_high`, `identified`, `reason`, `linking_pairs`, `linking_clicks`,
        `joint_propensity` (joint EM), `smooth_propensity`, `smooth_std_error`, `smooth_ci_low`, `smooth_ci_high`
        (smooth curve); with a method of features, `moment_propensity` (by its moment equation); with contexts,
        `unshrunk_propensity`, `unshrunk_ci_low`, `unshrunk_ci_high` (free estimate of each context); with arms,
        `arms_propensity`, `arms_std_error`, `arms_ci_low`, `arms_ci_high`.
        """
        statistics, estimate = self.statistics, self.estimate
        impressions, clicks = statistics.cell_totals
        linkage, fitted, intervals = estimate.linkage, estimate.propensity, estimate.intervals
        unknown = np.full(statistics.n_cells, np.nan), Intervals.unknown(linkage.reason)
        dtype = pl.Float64 if statistics.plan.weighted else pl.Int64
        smooth, smooth_intervals = unknown if self.smooth is None else (self.smooth.theta, self.smooth.intervals)
        if self.options.weigh_by == "fitted":
            for_weights = fitted
        else:
            for_weights = propensities.propensity_for_weights(fitted, intervals.std_error, smooth)
        columns = {
            propensities.PROPENSITY: fitted,
            propensities.WEIGHT_PROPENSITY: for_weights,
            propensities.EXAMINATION: estimate.examination,
            propensities.STD_ERROR: intervals.std_error,
            "ci_low": intervals.low,
            "ci_high": intervals.high,
        }
        further = {
            "joint_propensity": unknown[0] if self.joint is None else self.joint.propensity,
            propensities.SMOOTH_PROPENSITY: smooth,
            propensities.SMOOTH_STD_ERROR: smooth_intervals.std_error,
            "smooth_ci_low": smooth_intervals.low,
            "smooth_ci_high": smooth_intervals.high,
        }
        if self.from_rows is not None and self.from_rows.moment is not None:
            further["moment_propensity"] = self.from_rows.moment
        if statistics.plan.context:
            further["unshrunk_propensity"] = self.free.propensity
            further |= {"unshrunk_ci_low": self.free.intervals.low, "unshrunk_ci_high": self.free.intervals.high}
        if statistics.plan.arms:
            bent = None if self.arms is None else self.arms.bent
            by_arms, arms_intervals = unknown if bent is None else (bent.propensity, bent.intervals)
            further |= {"arms_propensity": by_arms, "arms_std_error": arms_intervals.std_error}
            further |= {"arms_ci_low": arms_intervals.low, "arms_ci_high": arms_intervals.high}
        return statistics.cells.with_columns(
            pl.Series(IMPRESSIONS, impressions).cast(dtype),
            pl.Series(CLICKS, clicks).cast(dtype),
            pl.Series("ctr", clicks / impressions),
            *(propensities.known_numbers(name, values) for name, values in columns.items()),
            pl.Series("identified", linkage.identified),
            pl.Series("reason", intervals.reason, dtype=pl.String),
            pl.Series("linking_pairs", linkage.linking_pairs).cast(pl.Int64),
            pl.Series("linking_clicks", linkage.linking_clicks).cast(dtype),
            *(propensities.known_numbers(name, values) for name, values in further.items()),
        )

    @cached_property
    def theta(self) -> ThetaEstimate:
        """The propensities, prior and errors from which training files are computed."""
        cells, covariance = self.statistics.cells, self.covariance
        table = None if covariance is None else propensities.covariance_table(cells, covariance, self.shared_clicks)
        return ThetaEstimate(self.propensities, self.prior, table, self.statistics.plan.context)

    @cached_property
    def shared_clicks(self) -> Floats | None:
        """Shared clicks M, shape (K, K); None where `propensities.shared_clicks` is."""
        return shared_clicks(self.statistics, self.free)

    @property
    def click_share(self) -> float:
        """Share of the clicks in cells with a propensity."""
        _, clicks = self.statistics.cell_totals
        return float(clicks[np.isfinite(self.estimate.propensity)].sum() / clicks.sum())

    @cached_property
    def expected_clicks(self) -> Floats:
        """Expected clicks by cell, shape (K,), NaN where not identified."""
        return diagnostics.expected_clicks(
            self.statistics.pair_signatures, self.estimate.examination, self.attractiveness
        )

    def pair_attractiveness(self, signature: Numbers) -> pl.DataFrame:
        """Return `attractiveness` and `std_dev` of pairs by their signatures, in the given order."""
        std_dev = pl.Series(self.std_dev[signature], nan_to_null=True)
        return pl.DataFrame({"attractiveness": self.attractiveness[signature], "std_dev": std_dev})


@dataclass(frozen=True)
class LogInputs:
    """Inputs from the log itself, which its sufficient statistics do not contain; empty if only statistics exist."""

    sum_sessions: Callable[[LogFit], ClusterSums] | None = None  # reads the log once more, for errors by session
    unbinned: SufficientStatistics | None = None  # by position, to test the bins of the statistics
    pages: Callable[[], CountedPages | None] = lambda: None  # samples pages, for tests of the model
    from_rows: FromRows | None = None  # estimate of a method that reads rows


def check_cells(
    statistics: SufficientStatistics, method: str, options: EstimationOptions, memory: int, *, compare: bool | None
) -> None:
    """Raise an error if the log has too many cells for an estimate.

    Args:
        statistics: the compressed log.
        method: the name of an estimator.
        options: of the estimate.
        memory: in bytes.
        compare: whether joint EM is requested for comparison.

    Raises:
        UsageError: a cell column is an id, the estimate exceeds the memory, or an option would take hours.
    """
    plan, number = statistics.plan, statistics.n_cells
    cells = f"The log has {number:,} cells ({' x '.join(name.replace('_', ' ') for name in plan.cell_columns)})"
    remedy = "Count fewer: --max-position N leaves out what was shown below position N, --position-bins 1,2,3,5,10,20"
    remedy += " gives the positions of a bin one propensity" + (
        ", or leave out a --cell or --context." if plan.curve else "."
    )
    values = {name: statistics.cells[name].n_unique() for name in plan.cell}
    widest = max(values, key=values.__getitem__, default="")
    if values.get(widest, 0) > MOST_VALUES:
        raise UsageError(
            f"--cell {widest}: {cells[0].lower()}{cells[1:]}, as this column has {values[widest]:,} different values. "
            "Is it an id? Name what changes how a page is looked at, such as a row, a list or an advert above."
        )
    slow = [f"--shape {options.shape}"] if options.shape not in {FREE, PowerShape.name} else []
    slow += ["--bootstrap"] * bool(options.bootstrap) + ["--cluster-column"] * bool(plan.clusters)
    if slow and number > MOST_CELLS_OF_SLOW:
        raise UsageError(
            f"{slow[0]}: {cells[0].lower()}{cells[1:]}, and it takes hours beyond {MOST_CELLS_OF_SLOW:,}. {remedy} "
            "Or leave the option out."
        )
    if not (get_method(method).clusters or compare):
        return
    matrices = _MATRICES + _MATRICES_OF_PERIOD * (len(plan.lengths) - 1) * (options.period == "auto")
    needed = matrices * number**2 * 8
    if needed > memory:
        most = int((memory / 8 / matrices) ** 0.5)
        raise UsageError(
            f"{cells}, and their standard errors would take {needed / 2**30:,.1f} GiB of memory; "
            f"{memory / 2**30:,.1f} GiB (--memory) are enough for {most:,} cells. {remedy}"
        )


def fit_statistics(
    statistics: SufficientStatistics,
    method: str,
    options: EstimationOptions,
    *,
    compare: bool | None = None,
    log: LogInputs | None = None,
    on_iteration: OnIteration = lambda _: None,
) -> Fit:
    """Estimate theta by the chosen method and by joint EM, then attractiveness given theta, and test assumptions.

    Args:
        statistics: the compressed log.
        method: the name of an estimator.
        options: of the estimate.
        compare: whether joint EM runs for comparison; None: up to `LARGEST_COMPARISON` signatures and
            `MOST_CELLS_BESIDE` cells.
        log: inputs from the log itself, if there is one.
        on_iteration: called with the progress.

    Raises:
        IdentifiabilityError: nothing links two cells, a position lacks its clicks, or the counts differ too much.
        UsageError: the method or reference cell does not exist, the method does not support an option, or errors by
            session are requested without a log.
    """
    check_method(method, statistics.plan, options)
    check_no_silent_position(statistics)
    try:
        with np.errstate(all="ignore" if statistics.plan.weighted else None):  # results are checked below
            fit = _fit(statistics, method, options, on_iteration, compare=compare, log=log or LogInputs())
    except (np.linalg.LinAlgError, OverflowError) as error:
        raise _unequal_counts(statistics) from error
    known = fit.estimate.propensity[fit.estimate.linkage.identified]
    if options.shape != FREE and not np.isfinite(known).any():
        raise IdentifiabilityError(
            f"--shape {options.shape}: the clicks determine no such curve, for which at least three linked positions "
            "are needed. Leave it out."
        )
    if not (np.isfinite(known).all() and (known > 0).all() and np.isfinite(fit.attractiveness).all()):
        raise _unequal_counts(statistics)
    return fit


def _unequal_counts(statistics: SufficientStatistics) -> IdentifiabilityError:
    """Return the error for counts too unequal to be added as floats, which only weights are."""
    counts = np.concatenate([statistics.pair_signatures.impressions, statistics.pair_signatures.clicks])
    counts = counts[counts > 0]
    return IdentifiabilityError(
        f"counts from {counts.min():.0e} to {counts.max():.0e} are too unequal for an estimate: beside the largest, "
        "the smallest are lost in rounding. Give weights (--weight-column) that differ less, or cut the largest."
    )


def _fit(
    statistics: SufficientStatistics,
    method: str,
    options: EstimationOptions,
    on_iteration: OnIteration,
    *,
    compare: bool | None,
    log: LogInputs,
) -> Fit:
    from_rows, is_conditional = log.from_rows, method == ConditionalEstimator.name
    default_limits = replace(options, max_iterations=None, tolerance=None)
    period, change = PeriodChoice(), None
    if get_method(method).uses_strata:
        conditional_options = options if is_conditional else default_limits
        period = choose_period(statistics, conditional_options, on_iteration)
        change = change_of_theta(statistics, period.used, conditional_options, on_iteration)
    strata = statistics.strata(period.used)
    unclustered = period.chosen if is_conditional else None if from_rows is None else from_rows.estimate
    unclustered = unclustered or get_estimator(method).estimate(statistics, strata, options, on_iteration)
    free = propensities.with_requested_errors(unclustered, statistics, options, period.used, log.sum_sessions)
    refinement = _refine(free, statistics, options)
    estimate = refinement.estimate
    joint, conditional, comparison, causes = estimate if method == JointEstimator.name else None, None, None, None
    small = strata.signatures.n_units <= LARGEST_COMPARISON and statistics.n_cells <= MOST_CELLS_BESIDE
    fitted = unclustered.fitted
    # The prior of gamma: that of the estimate, else the requested one, else estimated from the log
    beta, counts = options.attractiveness_prior, (statistics.pair_signatures, estimate.examination)
    if estimate.attractiveness is not None and estimate.joint is not None:
        beta = estimate.joint.options.attractiveness_prior
    with meanwhile(
        lambda: (
            AttractivenessPrior(beta.strength, beta.mean)
            if beta
            else estimate_prior(*counts, statistics.position_of_cell)
        )
    ) as prior_given_theta:
        if small if compare is None else compare:
            joint = joint or JointEstimator().estimate(
                statistics, strata, default_limits, on_iteration, estimate.linkage
            )
            conditional = (period.chosen or unclustered).fitted
            if conditional is None or conditional.strata is not strata:
                conditional = None
                with suppress(IdentifiabilityError):  # nothing links these strata
                    repeated = ConditionalEstimator().estimate(statistics, strata, default_limits, on_iteration)
                    conditional = repeated.fitted
            if conditional is not None and joint.joint is not None:
                comparison = diagnostics.compare_with_joint(conditional, joint.joint)
        with meanwhile(
            lambda: None if fitted is None else run_model_tests(statistics, fitted, log.pages(), period.used)
        ) as model_tests:
            spread, covariance = errors_of_theta(estimate)
            prior = prior_given_theta()
            if estimate.attractiveness is not None:
                attractiveness, std_dev = estimate.attractiveness, np.full(len(estimate.attractiveness), np.nan)
            else:
                attractiveness, std_dev = posterior_by_position(*counts, prior, statistics.position_of_cell)
                if covariance is not None:
                    std_dev = total_std_dev(*counts, covariance, attractiveness, std_dev)
    if joint is not None and joint.joint is not None and conditional is not None and comparison is not None:
        causes = diagnostics.find_causes(joint.joint, conditional, comparison, prior, statistics.position_of_cell)
    bins, against_pairs = None, None
    if log.unbinned is not None and free.fitted is not None:
        bins = diagnostics.bins_test(log.unbinned, statistics.plan, options, period.used)
    if from_rows is not None:
        against_pairs = diagnostics.compare_with_pairs(from_rows.estimate, statistics, options)
    previous_click, silence = diagnostics.previous_click_test(statistics, estimate)
    is_product = estimate.propensity is not free.propensity
    return Fit(
        **vars(refinement),
        statistics=statistics,
        options=options,
        free=free,
        period=period,
        change=change,
        arms=_test_arms(statistics, fitted, period) if is_conditional and fitted is not None else None,
        joint=joint,
        comparison=comparison,
        causes=causes,
        prior=prior,
        attractiveness=attractiveness,
        std_dev=std_dev,
        query_spread=spread,
        covariance=covariance,
        position_effect=diagnostics.position_effect_test(estimate, options.shape),
        cell_columns=diagnostics.cell_column_tests(statistics, estimate, product=is_product),
        previous_click=previous_click,
        silence=silence,
        placements=methods.placement_tests(statistics) if method == RandomizedEstimator.name else (),
        bins=bins,
        model_tests=model_tests(),
        from_rows=from_rows,
        against_pairs=against_pairs,
    )


def _test_arms(statistics: SufficientStatistics, fitted: StrataEstimate, period: PeriodChoice) -> ArmsTest | None:
    """Test the estimate from all movement against experiment arms; None without usable arms."""
    arms, few_cells = statistics.arms, statistics.n_cells <= MOST_CELLS_BESIDE
    if arms is None or statistics.plan.weighted or not (few_cells and 1 < arms.drop_nulls().height <= MOST_ARMS):
        return None
    test = arms_test(fitted, statistics.by_arm(period.used), statistics.position_of_cell)
    if test is None or not (test.rejected and statistics.plan.period):
        return test
    areas = np.concatenate(list(statistics.map_parts(partial(learning_by_arm, plan=statistics.plan))))
    apart = arms_learn_separately(areas, arms.drop_nulls()[IMPRESSIONS].to_numpy().astype(np.float64))
    return replace(test, apart=apart, bent=None if apart else test.bent)


def _refine(free: Estimate, statistics: SufficientStatistics, options: EstimationOptions) -> Refinement:
    """Apply the requested shape or form to the free estimate, or shrink its contexts.

    Raises:
        IdentifiabilityError: the product form, or a power in it, is requested and the log does not determine it.
    """
    fitted, curve, position, plan = free.fitted, free.conditional, statistics.position_of_cell, statistics.plan
    if curve is None or plan.model.beside_position:
        return Refinement(estimate=free)
    place = position if not plan.cell else dense_row_ranks(statistics.cells.select(POSITION, *plan.cell))
    contexts = compare_contexts(curve.fit, curve.errors, place) if plan.context else None
    unrefined = Refinement(estimate=free, contexts=contexts)
    if plan.cell:
        supported = "cell_form" in get_method(free.method).takes and free.errors_by == "query" and not options.bootstrap
        form, axes, context = None, statistics.axes_of_cell, statistics.context_of_cell
        power = position if options.shape == PowerShape.name else None
        if fitted is not None and supported and (power is None or axes.shape[1] > len(statistics.further_cell_columns)):
            form = fit_product(fitted, axes, context, power)
        requested = options.cell_form or "free"
        if form is not None and not options.cell_form:  # no departure, from a test with power
            detectable = form.test.detectable[np.isfinite(form.test.detectable)]
            has_power = len(detectable) > 0 and float(np.median(detectable)) <= LARGEST_MISFIT
            requested = "product" if has_power and form.test.p_value >= PRODUCT_P_VALUE else "free"
        if form is None and (requested == "product" or power is not None):
            flag = "--cell-form product" if power is None else f"--shape {options.shape}"
            raise IdentifiabilityError(
                f"{flag}: it would have as many numbers as there are cells, or the log does not determine its effects. "
                "Leave the option out."
            )
        if fitted is None or form is None or (requested == "free" and power is None):
            return replace(unrefined, form=form)
        shaped = replace(propensities.with_shape(free, fitted, form), of_form=form.covariance)
        return replace(unrefined, estimate=shaped, form=form, shape=None if power is None else form)
    if options.shape != FREE and fitted is not None:
        shape = get_shape(options.shape).fit(fitted, position)
        smooth = shape if options.shape == SmoothShape.name else None
        return replace(unrefined, estimate=propensities.with_shape(free, fitted, shape), shape=shape, smooth=smooth)
    if contexts is not None and options.shrink != "none":
        estimate, shrunk = propensities.with_shrinkage(free, curve, position)
        return replace(unrefined, estimate=estimate, shrunk=shrunk)
    thin = propensities.is_thin(free.propensity, free.intervals.std_error).any()
    if fitted is not None and contexts is None and statistics.n_cells <= MOST_CELLS_BESIDE and thin:
        with suppress(np.linalg.LinAlgError):  # the smooth curve was not requested
            smooth = get_shape(SmoothShape.name).fit(fitted, position)
            return replace(unrefined, smooth=smooth if smooth.converged else None)
    return unrefined
