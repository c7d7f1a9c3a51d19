"""From sufficient statistics to a fit: theta, textbook EM beside it, attractiveness, and what a reader must know."""

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
from posbias.core.fit.arms import MOST_ARMS, ArmsTest, arms_test, learn_apart, learning_by_arm
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
from posbias.core.standard_errors.column import WholeLog
from posbias.core.standard_errors.contrasts import ContrastTest, StrataEstimate
from posbias.core.theta.conditional import SilenceTest

LARGEST_COMPARISON = 200_000
"""Signatures up to which joint EM runs beside the chosen method without a request."""

MOST_CELLS_BESIDE = 1_000
"""Cells up to which joint EM and a smooth curve are made beside an estimate without a request: their work grows
with the cube of that."""

MOST_CELLS_OF_SLOW = 2_000
"""Cells up to which there are curves other than a power, the bootstrap and clusters by a column: each of their many
steps takes as many operations as the cube of that."""

MOST_VALUES = 1_000
"""Most values of a column of a cell: no page has so many rows or lists, and an id has."""

CLEARLY = 0.2
"""P-value of its test from which on the product form is chosen without a request: more than not to be rejected, as what
a test misses makes intervals too narrow."""

LARGEST_MISFIT = float(np.log(1.5))
"""How far a cell may leave the product form, in log theta, that its test misses in one log of five, in the median of
the cells, so that the form is chosen without a request: with less power it says nothing for it."""

_MATRICES, _MATRICES_OF_PERIOD = 8, 4
"""Numbers for each two cells that an estimate with errors holds at its peak; and further ones, for each length of
periods that is looked at."""

WANTED_CLICK_SHARE = 0.99
"""Share of the clicks that identified cells must cover for a result that needs no caution."""


@dataclass(frozen=True, kw_only=True)
class Refined:
    """An estimate under what was requested of its curve; None what it does not have."""

    estimate: Estimate  # with the options of the request, but without its shape
    form: ShapedEstimate | None = None  # of cells of several columns: one effect for each value of each of them
    shape: ShapedEstimate | None = None  # under the requested shape, against the free estimate
    smooth: ShapedEstimate | None = None  # a smooth curve beside a thin free estimate: weights are made from it
    shrunk: ShrunkContexts | None = None  # how far contexts borrow from each other, where they do
    contexts: ContrastTest | None = None  # whether the contexts differ, where there are several


@dataclass(frozen=True, kw_only=True)
class Fit(Refined):
    """An estimate with its tests; None where the log does not allow them."""

    statistics: SufficientStatistics  # what it was made from
    options: EstimationOptions
    free: Estimate  # without a shape, and without contexts that borrow from each other
    period: PeriodChoice  # the length of periods that were kept apart, and why
    change: ChangeOfTheta | None  # whether theta of earlier days is that of later ones, where days are known
    arms: ArmsTest | None  # whether experiment arms agree with the estimate, where arms are known and move documents
    joint: Estimate | None  # textbook EM, where it ran
    comparison: JointComparison | None  # joint EM against the conditional estimate, where both ran
    causes: JointCauses | None  # whether its prior or sparsity makes joint EM biased, where it is
    prior: AttractivenessPrior
    attractiveness: Floats  # posterior mean of gamma per pair signature
    std_dev: Floats  # its standard deviation, theta's own errors included; nan where the method has none
    query_spread: float  # tau >= 0, the standard deviation of log theta between queries; 0 where nothing shows it
    covariance: Floats | None  # of log examination, tau^2 included, shape (K, K), where the method has errors
    position_effect: ContrastTest | None  # whether any propensity differs from 1
    cell_columns: tuple[CellColumnTest, ...]  # whether attention depends on each further column of cells
    previous_click: ContrastTest | None  # whether the previous click matters, with UBM
    silence: SilenceTest | None  # what cells below a click say that have no click, with UBM
    placements: tuple[PlacementTest, ...]  # whether randomised rows were placed at random
    bins: BinsTest | None  # whether positions of one bin differ
    model_tests: ModelTests | None  # whether the model holds
    from_rows: FromRows | None  # of a method that reads rows, where it is one of them
    against_pairs: PairsTest | None  # the estimate from features against that from repeated pairs

    @property
    def cell_form(self) -> str | None:
        """The form of cells of several columns that the estimate has: `free` or `product`; None for other cells."""
        if not self.statistics.plan.cell:
            return None
        return "free" if self.form is None or self.estimate.propensity is self.free.propensity else "product"

    @cached_property
    def propensities(self) -> pl.DataFrame:
        """One row per cell, sorted by cell; counts are whole numbers unless they are sums of weights.

        The cell columns, `impressions`, `clicks`, `ctr`, `propensity` (relative to the reference cell = 1),
        `weight_propensity` (a click weighs 1 / it before clipping), `examination` (in [0, 1]), `std_error` (of log
        propensity), `ci_low`, `ci_high`, `identified`, `reason`, `linking_pairs`, `linking_clicks`,
        `joint_propensity` (textbook EM), `smooth_propensity`, `smooth_std_error`, `smooth_ci_low`, `smooth_ci_high`
        (the smooth curve, where there is one); of a method of features, `moment_propensity` (by its moment equation);
        with contexts, `unshrunk_propensity`, `unshrunk_ci_low` and `unshrunk_ci_high` (what the data of each say,
        without a shape); of a log with arms, `arms_propensity`, `arms_std_error`, `arms_ci_low` and `arms_ci_high`.
        What is not known is null.
        """
        statistics, estimate = self.statistics, self.estimate
        impressions, clicks = statistics.cell_totals
        linkage, fitted, intervals = estimate.linkage, estimate.propensity, estimate.intervals
        unknown = np.full(statistics.n_cells, np.nan)
        dtype = pl.Float64 if statistics.plan.weighted else pl.Int64
        nothing = unknown, Intervals.unknown(linkage.reason)
        curve, of_curve = nothing if self.smooth is None else (self.smooth.theta, self.smooth.intervals)
        by_errors = propensities.for_weights(fitted, intervals.std_error, curve)
        numbers = {
            propensities.PROPENSITY: fitted,
            propensities.WEIGHT_PROPENSITY: fitted if self.options.weigh_by == "fitted" else by_errors,
            propensities.EXAMINATION: estimate.examination,
            propensities.STD_ERROR: intervals.std_error,
            "ci_low": intervals.low,
            "ci_high": intervals.high,
        }
        others = {
            "joint_propensity": unknown if self.joint is None else self.joint.propensity,
            propensities.SMOOTH_PROPENSITY: curve,
            propensities.SMOOTH_STD_ERROR: of_curve.std_error,
            "smooth_ci_low": of_curve.low,
            "smooth_ci_high": of_curve.high,
        }
        if self.from_rows is not None and self.from_rows.moment is not None:
            others["moment_propensity"] = self.from_rows.moment
        if statistics.plan.context:
            own, of_own = self.free.propensity, self.free.intervals
            others |= {"unshrunk_propensity": own, "unshrunk_ci_low": of_own.low, "unshrunk_ci_high": of_own.high}
        if statistics.plan.arms:
            bent = None if self.arms is None else self.arms.bent
            by_arms, of_arms = nothing if bent is None else (bent.propensity, bent.intervals)
            others |= {"arms_propensity": by_arms, "arms_std_error": of_arms.std_error}
            others |= {"arms_ci_low": of_arms.low, "arms_ci_high": of_arms.high}
        return statistics.cells.with_columns(
            pl.Series(IMPRESSIONS, impressions).cast(dtype),
            pl.Series(CLICKS, clicks).cast(dtype),
            pl.Series("ctr", clicks / impressions),
            *(propensities.known_numbers(name, values) for name, values in numbers.items()),
            pl.Series("identified", linkage.identified),
            pl.Series("reason", intervals.reason, dtype=pl.String),
            pl.Series("linking_pairs", linkage.linking_pairs).cast(pl.Int64),
            pl.Series("linking_clicks", linkage.linking_clicks).cast(dtype),
            *(propensities.known_numbers(name, values) for name, values in others.items()),
        )

    @cached_property
    def theta(self) -> ThetaEstimate:
        """The propensities, prior and errors from which training files are made."""
        cells, covariance = self.statistics.cells, self.covariance
        table = None if covariance is None else propensities.covariance_table(cells, covariance, self.shared_clicks)
        return ThetaEstimate(self.propensities, self.prior, table, self.statistics.plan.context)

    @cached_property
    def shared_clicks(self) -> Floats | None:
        """Which clicks compare which cells, shape (K, K); None where that is not known."""
        return shared_clicks(self.statistics, self.free)

    @property
    def click_share(self) -> float:
        """Share of the clicks that lie in cells with a propensity."""
        _, clicks = self.statistics.cell_totals
        return float(clicks[np.isfinite(self.estimate.propensity)].sum() / clicks.sum())

    @cached_property
    def expected_clicks(self) -> Floats:
        """Clicks that the fit expects in each cell, shape (K,), nan where it is not identified."""
        return diagnostics.expected_clicks(
            self.statistics.pair_signatures, self.estimate.examination, self.attractiveness
        )

    def attractiveness_of(self, signature: Numbers) -> pl.DataFrame:
        """`attractiveness` and `std_dev` of pair signatures, in their order."""
        std_dev = pl.Series(self.std_dev[signature], nan_to_null=True)
        return pl.DataFrame({"attractiveness": self.attractiveness[signature], "std_dev": std_dev})


@dataclass(frozen=True)
class BesideCounts:
    """Results from the log itself, beside its counts; empty where there are only statistics."""

    sum_sessions: Callable[[WholeLog], ClusterSums] | None = None  # goes over the log once more, for errors by session
    unbinned: SufficientStatistics | None = None  # the log by position, where the statistics have bins: they are tested
    pages: Callable[[], CountedPages | None] = lambda: None  # samples its pages, for tests of the model
    from_rows: FromRows | None = None  # of a method that reads rows


def check_cells(
    statistics: SufficientStatistics, method: str, options: EstimationOptions, memory: int, *, compare: bool | None
) -> None:
    """See, before anything is computed, that an estimate for all cells fits into memory.

    Args:
        statistics: the compressed log.
        method: the name of an estimator.
        options: of the estimate.
        memory: in bytes.
        compare: whether joint EM is to run beside it.

    Raises:
        UsageError: it does not, or a curve through so many cells would take hours.
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
    beside: BesideCounts | None = None,
    on_iteration: OnIteration = lambda _: None,
) -> Fit:
    """Estimate theta by the chosen method, run joint EM beside it, then attractiveness given theta.

    Args:
        statistics: the compressed log.
        method: the name of an estimator.
        options: of the estimate.
        compare: whether joint EM runs beside it; None: if there are at most `LARGEST_COMPARISON` signatures.
        beside: what the log itself says beside the counts, where there is one.
        on_iteration: called with the progress.

    Raises:
        IdentifiabilityError: nothing links two cells, a position lacks its clicks, or the counts differ too much.
        UsageError: there is no such method or reference cell, or the method does not support an option, or errors by
            session are requested and there is no log.
    """
    check_method(method, statistics.plan, options)
    check_no_silent_position(statistics)
    try:
        with np.errstate(all="ignore" if statistics.plan.weighted else None):  # what is no number is checked below
            fit = _fit(statistics, method, options, on_iteration, compare=compare, beside=beside or BesideCounts())
    except (np.linalg.LinAlgError, OverflowError) as error:
        raise _too_unequal(statistics) from error
    known = fit.estimate.propensity[fit.estimate.linkage.identified]
    if not (np.isfinite(known).all() and (known > 0).all() and np.isfinite(fit.attractiveness).all()):
        raise _too_unequal(statistics)
    return fit


def _too_unequal(statistics: SufficientStatistics) -> IdentifiabilityError:
    """The counts leave the range in which numbers add up: only weights do that."""
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
    beside: BesideCounts,
) -> Fit:
    from_rows, is_default = beside.from_rows, method == ConditionalEstimator.name
    own_rules = replace(options, max_iterations=None, tolerance=None)
    period, change = PeriodChoice(), None
    if get_method(method).uses_strata:
        rules = options if is_default else own_rules
        period = choose_period(statistics, rules, on_iteration)
        change = change_of_theta(statistics, period.used, rules, on_iteration)
    strata = statistics.strata(period.used)
    free = period.chosen if is_default else None if from_rows is None else from_rows.estimate
    free = free or get_estimator(method).estimate(statistics, strata, options, on_iteration)
    judged = propensities.with_requested_errors(free, statistics, options, period.used, beside.sum_sessions)
    refined = _refined(judged, statistics, options)
    estimate = refined.estimate
    joint, conditional, comparison, causes = estimate if method == JointEstimator.name else None, None, None, None
    small = strata.signatures.n_units <= LARGEST_COMPARISON and statistics.n_cells <= MOST_CELLS_BESIDE
    fitted = free.fitted
    # The prior of gamma: the one behind the estimate, or that was requested, or what the log says
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
            joint = joint or JointEstimator().estimate(statistics, strata, own_rules, on_iteration, estimate.linkage)
            conditional = (period.chosen or free).fitted
            if conditional is None or conditional.strata is not strata:
                conditional = None
                with suppress(IdentifiabilityError):  # nothing links these strata
                    conditional = ConditionalEstimator().estimate(statistics, strata, own_rules, on_iteration).fitted
            if conditional is not None and joint.joint is not None:
                comparison = diagnostics.compare_with_joint(conditional, joint.joint)
        with meanwhile(
            lambda: None if fitted is None else run_model_tests(statistics, fitted, beside.pages(), period.used)
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
    tested_arms = _test_arms(statistics, fitted, period) if is_default and fitted is not None else None
    tested_bins = beside.unbinned if judged.fitted is not None else None
    previous_click, silence = diagnostics.previous_click_test(statistics, estimate)
    return Fit(
        **vars(refined),
        statistics=statistics,
        options=options,
        free=judged,
        period=period,
        change=change,
        arms=tested_arms,
        joint=joint,
        comparison=comparison,
        causes=causes,
        prior=prior,
        attractiveness=attractiveness,
        std_dev=std_dev,
        query_spread=spread,
        covariance=covariance,
        position_effect=diagnostics.position_effect_test(estimate, options.shape),
        cell_columns=diagnostics.cell_column_tests(
            statistics, estimate, product=estimate.propensity is not judged.propensity
        ),
        previous_click=previous_click,
        silence=silence,
        placements=methods.placement_tests(statistics) if method == RandomizedEstimator.name else (),
        bins=None if tested_bins is None else diagnostics.bins_test(tested_bins, statistics.plan, options, period.used),
        model_tests=model_tests(),
        from_rows=from_rows,
        against_pairs=None
        if from_rows is None
        else diagnostics.compare_with_pairs(from_rows.estimate, statistics, options),
    )


def _test_arms(statistics: SufficientStatistics, fitted: StrataEstimate, period: PeriodChoice) -> ArmsTest | None:
    """Compare the estimate from all movement with experiment arms, where that can be."""
    arms, few_cells = statistics.arms, statistics.n_cells <= MOST_CELLS_BESIDE
    if arms is None or statistics.plan.weighted or not (few_cells and 1 < arms.drop_nulls().height <= MOST_ARMS):
        return None
    test = arms_test(fitted, statistics.by_arm(period.used), statistics.position_of_cell)
    if test is None or not (test.rejected and statistics.plan.period):
        return test
    areas = np.concatenate(list(statistics.map_parts(partial(learning_by_arm, plan=statistics.plan))))
    apart = learn_apart(areas, arms.drop_nulls()[IMPRESSIONS].to_numpy().astype(np.float64))
    return replace(test, apart=apart, bent=None if apart else test.bent)


def _refined(free: Estimate, statistics: SufficientStatistics, options: EstimationOptions) -> Refined:
    """The estimate under the requested shape or form, or with its contexts shrunk, and the description of that."""
    fitted, behind, position, plan = free.fitted, free.conditional, statistics.position_of_cell, statistics.plan
    if behind is None or plan.model.beside_position:
        return Refined(estimate=free)
    place = position if not plan.cell else dense_row_ranks(statistics.cells.select(POSITION, *plan.cell))
    of_free = Refined(
        estimate=free, contexts=compare_contexts(behind.fit, behind.errors, place) if plan.context else None
    )
    if plan.cell:
        takes = "cell_form" in get_method(free.method).takes and free.errors_by == "query" and not options.bootstrap
        form, axes, context = None, statistics.axes_of_cell, statistics.context_of_cell
        power = position if options.shape == PowerShape.name else None
        if fitted is not None and takes and (power is None or axes.shape[1] > len(statistics.further_cell_columns)):
            form = fit_product(fitted, axes, context, power)
        wanted = options.cell_form or "free"
        if form is not None and not options.cell_form:  # the test would have seen what matters, and saw nothing
            seen = form.test.detectable[np.isfinite(form.test.detectable)]
            holds = len(seen) > 0 and form.test.p_value >= CLEARLY and float(np.median(seen)) <= LARGEST_MISFIT
            wanted = "product" if holds else "free"
        if form is None and (wanted == "product" or power is not None):
            flag = "--cell-form product" if power is None else f"--shape {options.shape}"
            raise IdentifiabilityError(
                f"{flag}: it would have as many numbers as there are cells, or the log does not determine its effects. "
                "Leave the option out."
            )
        if fitted is None or form is None or (wanted == "free" and power is None):
            return replace(of_free, form=form)
        shaped = replace(propensities.with_shape(free, fitted, form), of_form=form.covariance)
        return replace(of_free, estimate=shaped, form=form, shape=None if power is None else form)
    if options.shape != FREE and fitted is not None:
        shape = get_shape(options.shape).fit(fitted, position)
        smooth = shape if options.shape == SmoothShape.name else None
        return replace(of_free, estimate=propensities.with_shape(free, fitted, shape), shape=shape, smooth=smooth)
    if of_free.contexts is not None and options.shrink != "none":
        estimate, shrunk = propensities.with_shrinkage(free, behind, position)
        return replace(of_free, estimate=estimate, shrunk=shrunk)
    thin = propensities.is_thin(free.propensity, free.intervals.std_error).any()
    if fitted is not None and of_free.contexts is None and statistics.n_cells <= MOST_CELLS_BESIDE and thin:
        with suppress(np.linalg.LinAlgError):  # nobody requested it: the free estimate stands without it
            smooth = get_shape(SmoothShape.name).fit(fitted, position)
            return replace(of_free, smooth=smooth if smooth.converged else None)
    return of_free
