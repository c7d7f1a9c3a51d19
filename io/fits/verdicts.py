"""What a reader must know before acting on a result, in words: verdicts, and warnings where they are bad."""

import numpy as np
import polars as pl

from posbias.core.estimators import ConditionalEstimator, JointEstimator, get_estimator
from posbias.core.estimators.placement_test import PlacementTest
from posbias.core.estimators.randomized import RandomizedEstimator
from posbias.core.fit.fit import WANTED_CLICK_SHARE, Fit
from posbias.core.fit.joint_comparison import NOTABLE, JointComparison
from posbias.core.fit.period_words import why
from posbias.core.priors import BetaPrior
from posbias.core.schema import PREVIOUS_CLICK
from posbias.core.shapes import FREE
from posbias.core.shapes.shape import ShapedEstimate
from posbias.core.standard_errors.contrasts import LEVEL, ContrastTest
from posbias.core.training.weights import WeightSummary
from posbias.core.wording import counted
from posbias.io.fits.cells_in_words import cell_in_words, context_in_words, listed
from posbias.io.fits.model_verdicts import model_verdicts, model_warnings
from posbias.io.fits.rows_verdicts import rows_verdicts, rows_warnings

FEW_EFFECTIVE_CLUSTERS = 10
JOINT = JointEstimator.name
_NEARLY_ALL = 0.9995
_PLURAL = {
    "query": "queries",
    "pair": "pairs",
    "session": "sessions",
    "column": "values of {}",
    "two-way": "queries or values of {}",
}
_MORE_QUERIES = " More queries would narrow the intervals; more sessions of the same queries hardly would."
_OTHER_CLUSTERS = (
    " The intervals allow for what queries share, not for what users, markets or days share across queries: if the log "
    "has such a column, name it with --cluster-column, and they allow for both."
)


def fit_verdicts(fit: Fit) -> list[str]:
    """What the log says about itself: nothing that is wrong, but worth a line."""
    said: list[str] = []
    if fit.period.survivor is not None:
        said.append(f"{why(fit.period)} (--period auto).")
    if fit.contexts is not None and fit.contexts.n_contrasts:
        said.append(_contexts(fit, fit.contexts))
    if fit.shape is not None and fit.shape.test.n_contrasts and fit.shape.warning is None:
        said.append(_shape(fit, fit.shape))
    said += _bins(fit)
    if fit.position_effect is not None and fit.position_effect.n_contrasts and not fit.position_effect.rejected:
        said.append(_no_effect(fit))
    if fit.previous_click is not None and fit.previous_click.n_contrasts:
        said += _silence(fit) or [_previous_click(fit, fit.previous_click)]
    said += [_placed_at_random(test) for test in fit.placements if test.documents and test.p_value >= LEVEL]
    said += model_verdicts(fit)
    said += rows_verdicts(fit)
    comparison = fit.comparison
    if comparison is not None and comparison.biased and fit.estimate.method != JOINT:
        said.append(f"{_biased(fit, comparison)} It is not used.")
    by_likelihood = fit.estimate.method in {JOINT, ConditionalEstimator.name}
    if by_likelihood and comparison is not None and comparison.test.n_contrasts and not comparison.biased:
        said.append(_not_sparse(comparison))
    return said


def fit_warnings(fit: Fit) -> list[str]:
    """What is wrong, or cannot be excluded."""
    return [
        *_convergence(fit),
        *_identification(fit),
        *_few_clusters(fit),
        *_feedback(fit),
        *_sparsity(fit),
        *_placements(fit),
        *model_warnings(fit),
        *rows_warnings(fit),
        *([fit.shape.warning] if fit.shape is not None and fit.shape.warning else []),
        *([fit.bins.warning] if fit.bins is not None and fit.bins.warning else []),
    ]


def weight_warnings(summary: WeightSummary) -> list[str]:
    """What a reader must know before training on the files."""
    lost = summary.clicks_without_propensity
    said: list[str] = []
    if not summary.clicks_weighted:
        said.append("no click has a weight: there is nothing to learn from these files.")
    if lost:
        said.append(f"{counted(lost, 'clicks')} in cells without a propensity: left out of the training files.")
    return said


def left_out_warnings(documents: int) -> list[str]:
    """What is said of documents that no row of judgments holds."""
    if not documents:
        return []
    verbs = "has no judgment and is" if documents == 1 else "have no judgment and are"
    where = "no position at which they were shown has a propensity"
    return [f"{counted(documents, 'documents')} {verbs} left out: {where}."]


def _no_effect(fit: Fit) -> str:
    units = counted(fit.estimate.n_clusters, _clusters(fit))
    low, high = np.nanmin(fit.estimate.intervals.low), np.nanmax(fit.estimate.intervals.high)
    return (
        "no position effect detected: no propensity differs significantly from 1. The intervals span "
        f"{low:.2f} - {high:.2f} ({units}); an effect within that range cannot be ruled out."
    )


def _shape(fit: Fit, shape: ShapedEstimate) -> str:
    references = fit.estimate.linkage.references
    eta = [
        f"eta {value:.3f}, standard error {error:.3f}"
        for value, error in zip(shape.eta[references], shape.eta_error[references], strict=True)
        if np.isfinite(value) and np.isfinite(error)
    ]
    fitted = f" ({'; '.join(eta)})" if eta else ""
    rests = _rests_on(shape.test, fit)
    return f"the {fit.options.shape} shape{fitted} is not rejected against the free estimate ({rests})."


def _bins(fit: Fit) -> list[str]:
    if not fit.statistics.plan.position_bins or (fit.bins is not None and fit.bins.warning):
        return []
    if fit.bins is None or not fit.bins.contrasts.n_contrasts:
        return ["the position bins are not tested: that takes the log itself, and positions that can be compared."]
    return [f"the position bins are not rejected against the free estimate ({_rests_on(fit.bins.contrasts, fit)})."]


def _contexts(fit: Fit, test: ContrastTest) -> str:
    by = ", ".join(fit.statistics.plan.context)
    if not test.rejected:
        return f"propensities do not differ significantly by {by} ({_rests_on(test, fit)}). {_missed(fit, test)}"
    return f"propensities differ by {by} ({_rests_on(test, fit)})."


def _missed(fit: Fit, test: ContrastTest) -> str:
    """How much contexts may differ although the test does not show it: for each, where least and where most."""
    reference = fit.estimate.linkage.reference_of
    tested = np.flatnonzero(np.isfinite(test.found_by_four_of_five))
    said: list[str] = []
    for first in np.unique(reference[tested]):
        cells = tested[reference[tested] == first]
        ordered = cells[np.argsort(test.found_by_four_of_five[cells], kind="stable")]
        factors = [
            f"{np.exp(test.found_by_four_of_five[cell]):.2f} (position {fit.statistics.position_of_cell[cell]})"
            for cell in ordered[[0, -1]][: len(ordered)]
        ]
        said.append(f"{' to '.join(factors)} for {context_in_words(fit, int(first))}")
    return (
        "Differences from the others by less than these factors, which four of five such logs show, may have been "
        f"missed: {listed(said, 'contexts_found_by_four_of_five')}."
    )


def _rests_on(test: ContrastTest, fit: Fit) -> str:
    """A test's p-value, and on how many clusters it rests."""
    units = counted(fit.estimate.n_clusters, _clusters(fit))
    return f"p = {test.p_value:.1g}, {units}"


def _previous_click(fit: Fit, test: ContrastTest) -> str:
    if not test.rejected:
        return (
            f"the previous click makes no significant difference ({_rests_on(test, fit)}): --model pbm does as well "
            "with fewer cells."
        )
    return (
        f"the previous click matters ({_rests_on(test, fit)}). The user browsing model predicts that, but users who "
        "differ in how readily they click produce the same pattern, and then this model is biased and --model pbm is "
        "not. It is not by itself a reason to prefer this model."
    )


def _silence(fit: Fit) -> list[str]:
    """What cells without clicks below a click say."""
    silence, test = fit.silence, fit.previous_click
    if silence is None or test is None or not test.rejected or not len(silence.cells):
        return []
    expected = float(np.nansum(silence.expected))
    number, below = len(silence.cells), fit.statistics.cells.filter(pl.col(PREVIOUS_CLICK) > 0).height
    which = f"none of the {below} cells below a click has" if number == below else f"{number} of {below} have not"
    sentence = (
        f"{which} a click, where about {expected:,.0f} would be expected if the previous click made no difference "
        f"({_rests_on(test, fit)}): the log keeps one click per page, or users stop at a click. The cells without a "
        "click above are right for such users; --model pbm is biased."
    )
    return [sentence]


def _convergence(fit: Fit) -> list[str]:
    estimate = fit.estimate
    said: list[str] = []
    iterations = counted(estimate.iterations, "iterations")
    if not estimate.converged and fit.options.tolerance == 0:
        said.append(
            f"{estimate.method} did not converge: it ran for the requested {iterations}, and convergence was "
            "not checked (tolerance 0)."
        )
    elif not estimate.converged:
        said.append(
            f"{estimate.method} did not converge in {iterations}: do not use these numbers. Raise --max-iterations."
        )
    if fit.joint is not None and fit.joint is not estimate and not fit.joint.converged:
        said.append(f"joint EM, run for comparison, did not converge in {counted(fit.joint.iterations, 'iterations')}.")
    return said


def _identification(fit: Fit) -> list[str]:
    linkage, known = fit.estimate.linkage, np.isfinite(fit.estimate.propensity)
    said: list[str] = []
    if not linkage.identified[0] and not fit.statistics.plan.context:
        said.append(
            f"{cell_in_words(fit, 0)} cannot be compared with other cells; propensities are relative to "
            f"{cell_in_words(fit, int(linkage.references[0]))}."
        )
    by_shape_alone = int((known & ~linkage.identified).sum())
    if by_shape_alone:
        rest = "rests" if by_shape_alone == 1 else "rest"
        said.append(f"{by_shape_alone} of {len(known)} propensities {rest} on the shape alone (see `reason`).")
    lost = int((~known).sum())
    if lost:
        said.append(
            f"{lost} of {len(known)} cells {'is' if lost == 1 else 'are'} not identified, and no propensity is given "
            f"(see `reason`). Identified cells hold {_share(fit.click_share)} of the clicks"
            + (", too few to rely on." if fit.click_share < WANTED_CLICK_SHARE else ".")
        )
    return said


def _share(share: float) -> str:
    return f"{share:.1%}" if share == 1 or share < _NEARLY_ALL else "more than 99.9%"


def _clusters(fit: Fit) -> str:
    """What the errors are clustered by, in the plural."""
    return _PLURAL[fit.estimate.errors_by or "query"].format(", ".join(fit.statistics.plan.clusters))


def _few_clusters(fit: Fit) -> list[str]:
    estimate, units = fit.estimate, _clusters(fit)
    known = estimate.intervals.effective_clusters[estimate.intervals.std_error > 0]
    few = known[known < FEW_EFFECTIVE_CLUSTERS]
    if not len(few):
        return []
    where = "" if len(few) == len(known) else f" for {len(few)} of {len(known)} intervals"
    worth = f"{few.min():.0f}" if round(few.min()) == round(few.max()) else f"{few.min():.0f} to {few.max():.0f}"
    sentence = f"few or very unequal {units}; effective number of {units}: about {worth}{where}."
    if estimate.errors_by != "query":
        return [sentence]
    return [sentence + _MORE_QUERIES + (_OTHER_CLUSTERS if _can_cluster_by_column(fit) else "")]


def _can_cluster_by_column(fit: Fit) -> bool:
    able = "two-way" in get_estimator(fit.estimate.method).clusters
    return able and fit.options.shape == FREE and not fit.options.bootstrap


def _feedback(fit: Fit) -> list[str]:
    if not fit.period.feedback_possible:
        return []
    found = f"--period auto: {why(fit.period)}"
    if fit.period.claims:
        biased = "If the ranker learns from these clicks, the propensities are biased"
        return [f"{found} {biased}, and this log cannot rule that out."]
    no_claim = (
        "The ranker learns from these clicks, and no periods were found within which it does not: no claim is made for "
        "these propensities. What helps: times of day (--timestamp), more sessions, the ranker's version "
        "(--period-column), or randomisation. If you know how often it learns, say so with --period."
    )
    return [f"{found} {no_claim}"]


def _sparsity(fit: Fit) -> list[str]:
    if fit.comparison is None or not fit.comparison.biased or fit.estimate.method != JOINT:
        return []
    return [f"{_biased(fit, fit.comparison)} Do not use it: choose --method conditional."]


def _not_sparse(comparison: JointComparison) -> str:
    if comparison.largest_difference <= NOTABLE:
        return f"joint EM agrees with the conditional estimate to within {comparison.largest_difference:.1%}."
    difference = f"{comparison.largest_difference:.0%}"
    return f"joint EM differs from the conditional estimate by up to {difference}, which may be chance on this log."


def _biased(fit: Fit, comparison: JointComparison) -> str:
    """That joint EM is biased, by how much, and what of it is its prior and what sparsity."""
    queries = "" if fit.clusters_compared is None else f", {counted(fit.clusters_compared, 'queries')}"
    said = f"by up to {comparison.largest_difference:.0%} (p = {comparison.test.p_value:.1g}{queries})"
    if fit.causes is None or fit.joint is None or fit.joint.joint is None:
        return f"sparse: joint EM is biased here, {said}."
    cells = np.isfinite(comparison.test.p_values)
    without = fit.causes.largest_without_prior(cells)
    estimated = fit.causes.largest_with_estimated(cells)
    prior = fit.joint.joint.options.attractiveness_prior
    both = f"by up to {without:.1%} without a prior{{}}, by up to {estimated:.1%} with one estimated from the log"
    if without <= NOTABLE:
        return f"joint EM is biased here by its prior of {_prior(prior)}, {said}; {both.format('')}."
    if without < comparison.largest_difference / 2:
        why = f"mostly by its prior of {_prior(prior)}"
        return f"joint EM is biased here, {said}, {why}; {both.format(', which is sparsity')}."
    return f"sparse: joint EM is biased here, {said}; {both.format(', which is sparsity')}."


def _prior(prior: BetaPrior) -> str:
    return f"{prior.mean:g}:{prior.strength:g}"


def _placed_at_random(test: PlacementTest) -> str:
    found = f"{counted(test.documents, 'documents')} shown more than once in {counted(test.queries, 'queries')}"
    return f"the rows with {test.rows} stand as if placed at random (p = {test.p_value:.2g}; {found})."


def _placements(fit: Fit) -> list[str]:
    """What cannot be known of randomised rows, or looks odd."""
    if fit.estimate.method == RandomizedEstimator.name and not fit.placements:
        return ["randomised rows with weights (or with --decay) are not checked for having been placed at random."]
    return [
        *(
            f"the rows with {test.rows} show no document twice, so that it cannot be checked whether they were placed "
            "at random."
            for test in fit.placements
            if not test.documents
        ),
        *(
            f"the rows with {test.rows} may not have been placed at random: documents stand at the same position more "
            f"often than chance explains (p = {test.p_value:.1g}, correlation {test.correlation:.2f})."
            for test in fit.placements
            if test.p_value < LEVEL
        ),
    ]
