"""The estimators `conditional`, `randomized`, `joint`, `ctr`, `features` and `regression-em`.

`placement_tests` tests whether rows described as randomised were placed at random. The sum of w_d (see `sum_placements`
in `core.counts.counting_plan`) has mean 0 under randomisation, and is positive if documents tend to have the same
position each time: if only one arm of a swap is described, or rows that the ranker placed. With its variance V
estimated from the queries within the bounds of any randomisation, and the skewness of a chi-square distribution,

    V = min(max(sum_q w_q^2, lowest), highest),    c = V / lowest,    nu = V / (2 c^2)
    p = P(chi-square with nu degrees > (sum w + c nu) / c)

Rows are refused if p < .001 and the correlation of a document's positions is large: users who reload a page raise it
slightly.
"""

from dataclasses import dataclass, replace

import numpy as np
import scipy

from posbias.core.choices import RandomizedRows
from posbias.core.counts.counting_plan import StatisticsPlan
from posbias.core.counts.sufficient_statistics import Strata, SufficientStatistics
from posbias.core.errors import IdentifiabilityError, UsageError
from posbias.core.estimators.estimate import (
    Estimate,
    EstimationOptions,
    Estimator,
    MethodOfRows,
    OnIteration,
    conditional_estimate,
    linkage_of,
    linkage_of_clicks,
    relative_to_largest,
)
from posbias.core.schema import POSITION, RANDOMIZED
from posbias.core.standard_errors.cluster import Intervals, cluster_errors
from posbias.core.standard_errors.contrasts import StrataEstimate
from posbias.core.theta.conditional import Linkage, fit_conditional
from posbias.core.theta.joint import JointOptions, fit_joint


class ConditionalEstimator(Estimator):
    """Fixed-effects Poisson by Newton, CR3 errors over queries."""

    name = "conditional"
    reference = "Hausman, Hall & Griliches 1984; Wooldridge 1999; Bell & McCaffrey 2002"
    takes = ("cluster", "bootstrap", "shape", "cell_form", "shrink", "max_iterations", "tolerance")
    clusters = ("query", "pair", "session", "column", "two-way")

    def estimate(
        self, statistics: SufficientStatistics, strata: Strata, options: EstimationOptions, on_iteration: OnIteration
    ) -> Estimate:
        """Estimate theta of the identified cells."""
        fit = fit_conditional(
            strata.signatures,
            linkage_of(statistics, strata, options),
            on_iteration=lambda number, change: on_iteration(f"Newton {number}: {change:.1e}"),
            **options.limits,
        )
        behind = StrataEstimate(strata, fit, cluster_errors(fit, strata))
        return conditional_estimate(self.name, behind, strata.signatures, "query")


class FeaturesMethod(MethodOfRows):
    """Fixed-effects Poisson on strata of predicted relevance and place, errors clustered by page."""

    name = "features"
    reference = "Hausman, Hall & Griliches 1984; Rosenbaum & Rubin 1984; Chernozhukov et al. 2018"
    takes = ("cluster", "shrink", "max_iterations", "tolerance")


class RegressionEMMethod(MethodOfRows):
    """EM whose M-step for relevance fits trees to sampled labels."""

    name = "regression-em"
    reference = "Wang et al. 2018"
    takes = ("max_iterations",)


class JointEstimator(Estimator):
    """EM with Bayesian averaging, accelerated by SQUAREM unless that is switched off."""

    name = "joint"
    reference = "Dempster et al. 1977; Chuklin, Markov & de Rijke 2015; Varadhan & Roland 2008"
    takes = ("max_iterations", "tolerance")

    def estimate(
        self,
        statistics: SufficientStatistics,
        strata: Strata,
        options: EstimationOptions,
        on_iteration: OnIteration,
        linkage: Linkage | None = None,
    ) -> Estimate:
        """Estimate theta and gamma, as beside another estimate with its linkage; incomparable cells get none."""
        linkage = linkage or linkage_of(statistics, strata, options)
        given = options.limits
        if options.attractiveness_prior is not None:
            given["attractiveness_prior"] = options.attractiveness_prior
        em_options = JointOptions(examination_prior=options.examination_prior, accelerate=options.accelerate, **given)
        fit = fit_joint(
            strata.signatures,
            em_options,
            on_iteration=lambda number, change: on_iteration(f"joint EM {number}: {change:.1e}"),
        )
        known = np.where(linkage.identified, fit.examination, np.nan)
        units_are_pairs = strata.signatures is statistics.pair_signatures
        return Estimate(
            method=self.name,
            linkage=linkage,
            propensity=known / fit.examination[linkage.reference_of],
            examination=known,
            intervals=Intervals.unknown(linkage.reason),
            converged=fit.converged,
            iterations=fit.iterations,
            attractiveness=fit.attractiveness if units_are_pairs else None,
            joint=fit,
        )


class ClickRateEstimator(Estimator):
    """theta_e / theta_ref = click rate in e / click rate in the reference: right only if documents stand at random."""

    name = "ctr"
    reference = "Craswell et al. 2008 (the baseline)"
    uses_strata = False

    def estimate(
        self, statistics: SufficientStatistics, strata: Strata, options: EstimationOptions, on_iteration: OnIteration
    ) -> Estimate:
        """Divide the click rates by that of the reference, by default the first cell with a click."""
        del strata, on_iteration  # every estimator takes the same
        impressions, clicks = statistics.cell_totals
        linkage = linkage_of_clicks(statistics, options)
        rate = np.where(linkage.identified, clicks / impressions, np.nan)
        propensity = rate / rate[linkage.reference_of]
        return Estimate(
            method=self.name,
            linkage=linkage,
            propensity=propensity,
            examination=relative_to_largest(propensity, linkage),
            intervals=Intervals.unknown(linkage.reason),
            converged=True,
            iterations=0,
        )


REFUSED_BELOW = 0.001
"""P-value below which rows are refused as not randomised: one properly randomised log in a thousand."""

NOTABLE_CORRELATION = 0.02
"""Correlation of the positions of one document from which on rows are refused: one arm of a swap has .1 to 1."""

_ONE_ARM = 0.99


@dataclass(frozen=True)
class PlacementTest:
    """Test of one description of randomised rows: whether they were placed at random."""

    rows: RandomizedRows  # the description
    p_value: float  # of such an excess if documents were placed at random; 1 where nothing can be compared
    correlation: float  # of the positions of a document from one of its rows to another, 0 under randomisation
    documents: int  # (query, document) shown more than once among these rows; 0: nothing can be compared
    queries: int  # how many queries they belong to

    @property
    def refused(self) -> bool:
        """Whether random placement is rejected."""
        return self.p_value < REFUSED_BELOW and self.correlation >= NOTABLE_CORRELATION


def placement_tests(statistics: SufficientStatistics) -> tuple[PlacementTest, ...]:
    """Test each description of randomised rows that fits some row; no tests if rows carry weights."""
    if statistics.placements is None:
        return ()
    sums = {row[RANDOMIZED]: row for row in statistics.placements.sums.iter_rows(named=True)}
    shown = set(statistics.placements.shown[RANDOMIZED].to_list())
    tests: list[PlacementTest] = []
    for number, rows in enumerate(statistics.plan.randomized, start=1):
        if number not in shown:
            continue
        if number not in sums:
            tests.append(PlacementTest(rows, 1.0, 0.0, 0, 0))
            continue
        of_rows = sums[number]
        lowest = of_rows["lowest_variance"]
        variance = min(max(of_rows["excess_squared"], lowest), of_rows["highest_variance"])
        scale = variance / lowest
        degrees = variance / (2 * scale**2)
        p_value = scipy.special.gammaincc(degrees / 2, max(of_rows["excess"] / scale + degrees, 0.0) / 2)
        correlation, counts = of_rows["together"] / of_rows["pairs"], (of_rows["documents"], of_rows["queries"])
        tests.append(PlacementTest(rows, float(p_value), correlation, *map(int, counts)))
    return tuple(tests)


def check_placements(statistics: SufficientStatistics) -> None:
    """Check that the rows described as randomised can have been placed at random.

    Raises:
        IdentifiabilityError: a position that was named has no row, or documents stand where they stood before.
    """
    if statistics.placements is None:
        return
    shown = set(statistics.placements.shown.select(RANDOMIZED, POSITION).iter_rows())
    bins = statistics.plan.position_bins
    for number, rows in enumerate(statistics.plan.randomized, start=1):
        binned = {at: max((first for first in bins if first <= at), default=at) for at in rows.positions}
        missing = [at for at in rows.positions if (number, binned[at]) not in shown]
        if missing and len(missing) < len(rows.positions):
            listed = ", ".join(map(str, missing))
            raise IdentifiabilityError(
                f"Of the rows with {rows} (--randomized-where), none is at position {listed}: documents cannot have "
                "been exchanged with it. Name the positions between which they were."
            )
    for test in placement_tests(statistics):
        if not test.refused:
            continue
        marked = (
            f"The rows with {test.rows} (--randomized-where) were not placed at random: of {test.documents:,} "
            f"documents that are shown there more than once, in {test.queries:,} queries,"
        )
        if test.correlation >= _ONE_ARM:
            raise IdentifiabilityError(
                f"{marked} each stands at the same position every time. Only one arm of the experiment is marked, or "
                "no row was moved. Mark all rows that took part: those that were moved and those that were not."
            )
        raise IdentifiabilityError(
            f"{marked} many stand at the same position time and again (correlation {test.correlation:.2f}, p = "
            f"{test.p_value:.1g}). Mark all rows that took part in the experiment, moved or not, and no others; and "
            "name the positions among which documents were exchanged (COLUMN=VALUE@1,5) unless it was the whole page."
        )


class RandomizedEstimator(Estimator):
    """Click-rate ratios within each query and experiment.

    Where documents are placed at random among positions, the mean attractiveness at each of these positions is the
    same, alpha_gq, within a query q and an experiment g (whole pages shuffled, or two positions swapped):

        E[c_gqe] = n_gqe theta_e alpha_gq

    This is the conditional model with (q, g) in place of a pair. On pages of equal length its estimate is the ratio of
    click rates; on others it compares positions within queries only, so that short pages do not bias it. Swap
    experiments of several pairs of positions are chained by maximum likelihood.
    """

    name = "randomized"
    reference = "Wang et al. 2016 (SIGIR); Joachims, Swaminathan & Schnabel 2017 (swap experiments)"
    takes = ("cluster", "bootstrap", "shape", "shrink", "max_iterations", "tolerance")
    uses_strata = False

    def check(self, plan: StatisticsPlan) -> None:
        """Raise a UsageError where no randomised rows are named, or clicks matter, which no randomisation controls."""
        if plan.model.beside_position:
            raise UsageError(f"--method randomized: {plan.model.beside_position} is not randomised. Use --model pbm.")
        if not plan.randomized:
            raise UsageError(
                "--method randomized: name the rows that were logged under randomisation, for example "
                "--randomized-where policy=random (with statistics: when they are collected)."
            )

    def estimate(
        self, statistics: SufficientStatistics, strata: Strata, options: EstimationOptions, on_iteration: OnIteration
    ) -> Estimate:
        """Estimate theta from the randomised rows alone.

        Raises:
            IdentifiabilityError: no row is marked as randomised, they were not placed at random, or they compare no
                two positions.
        """
        del strata  # the rows are strata of their own
        rows = f"{' or '.join(map(str, statistics.plan.randomized))} (--randomized-where)"
        if not statistics.randomized.signatures.n_units:
            raise IdentifiabilityError(f"no row has {rows}, so there is nothing to estimate from.")
        check_placements(statistics)
        try:
            estimate = ConditionalEstimator().estimate(statistics, statistics.randomized, options, on_iteration)
        except IdentifiabilityError as error:
            raise IdentifiabilityError(f"Of the rows with {rows}: {error}") from error
        return replace(estimate, method=self.name)
