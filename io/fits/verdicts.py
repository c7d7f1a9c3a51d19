"""What a reader must know before acting on a result, in words, and whether it is to be taken at face value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.errors import counted, population, shown
from posbias.core.estimators import get_estimator
from posbias.core.estimators.methods import ConditionalEstimator, JointEstimator, PlacementTest, RandomizedEstimator
from posbias.core.fit.diagnostics import NOTABLE, FromRows, JointComparison, PairsTest
from posbias.core.fit.fit import WANTED_CLICK_SHARE, Fit
from posbias.core.fit.model_tests import (
    ATTRACTIVENESS,
    CLICKS_ABOVE,
    LAST_CLICK,
    MOST_ABOVE,
    ClicksBelow,
    ModelTests,
    OtherModels,
)
from posbias.core.fit.periods import why
from posbias.core.models import model_names
from posbias.core.schema import PREVIOUS_CLICK
from posbias.core.shapes import FREE
from posbias.core.shapes.shape import ShapedEstimate
from posbias.core.standard_errors.contrasts import LEVEL, ContrastTest, ScoreTest
from posbias.core.training.weights import WeightSummary

_MOST = 6  # contexts that a sentence names


def cell_in_words(fit: Fit, number: int) -> str:
    """A cell by its columns, e.g. `position 3, previous click 1`."""
    row = fit.statistics.cells.row(number, named=True)
    return ", ".join(f"{shown(name).replace('_', ' ')} {label_in_words(value)}" for name, value in row.items())


def context_in_words(fit: Fit, number: int) -> str:
    """The context of a cell by its values, e.g. `phone / Norway`."""
    row = fit.statistics.cells.row(number, named=True)
    return " / ".join(label_in_words(row[name]) for name in fit.statistics.plan.context)


def listed(entries: Sequence[str], rest: str) -> str:
    """The first entries of several, and in which field of the manifest the rest is."""
    more = len(entries) - _MOST
    return ", ".join(entries[:_MOST]) + (f" and {more} more (`{rest}` in manifest.json)" if more > 0 else "")


def label_in_words(value: object) -> str:
    """A value of a column of cells."""
    return "(none)" if value is None else shown(str(value))


FEW_EFFECTIVE_CLUSTERS = 10
JOINT = JointEstimator.name
_NEARLY_ALL = 0.9995
NAMED_POSITION = 10  # or the last before it, whose error by hidden relevance is named
LARGEST_HIDDEN_ERROR = 0.25  # that is no doubt: see tests/benchmarks/README.md
_LARGEST_FACTOR = 10.0  # an error beyond it is as good as any
_PLURAL = {
    "query": "queries",
    "pair": "pairs",
    "session": "sessions",
    "column": "values of {}",
    "two-way": "queries or values of {}",
}
_MORE_QUERIES = " More different queries narrow the intervals; more traffic on the same ones does not."
_OTHER_CLUSTERS = (
    " The intervals allow for what queries share, not for what users, markets or days share across queries: if the log "
    "has such a column, name it with --cluster-column, and they allow for both."
)


class Weight(IntEnum):
    """How much a sentence about a fit weighs."""

    NOTE = 0
    CAUTION = 1
    DOUBT = 2  # the propensities are not to be taken at face value: exit code 1


@dataclass(frozen=True)
class Verdict:
    """A sentence about a fit. That it denies the model and that the command ends with exit code 1 is one decision."""

    sentence: str
    weight: Weight = Weight.NOTE


def fit_verdicts(fit: Fit, others: OtherModels | None = None) -> list[Verdict]:
    """What the log says about a fit: notes, then what is wrong or cannot be excluded.

    Args:
        fit: it.
        others: the other click models, where they were looked at.
    """
    return [
        *map(Verdict, _notes(fit)),
        *_convergence(fit),
        *_identification(fit),
        *_few_clusters(fit),
        *_feedback(fit),
        *_sparsity(fit),
        *_placements(fit),
        *_model_doubts(fit),
        *_rows_doubts(fit),
        *_assumption(None if fit.shape is None else fit.shape.warning),
        *_assumption(None if fit.bins is None else fit.bins.warning),
        *_other_model(fit, others),
    ]


def _notes(fit: Fit) -> Iterator[str]:
    """Nothing that is wrong, but worth a line."""
    if fit.period.survivor is not None:
        yield f"{why(fit.period)} (--period auto)."
    if fit.contexts is not None and fit.contexts.n_contrasts:
        yield _contexts(fit, fit.contexts)
    if fit.shape is not None and fit.shape.test.n_contrasts and fit.shape.warning is None:
        yield _shape(fit, fit.shape)
    yield from _bins(fit)
    if fit.position_effect is not None and fit.position_effect.n_contrasts and not fit.position_effect.rejected:
        yield _no_effect(fit)
    if fit.previous_click is not None and fit.previous_click.n_contrasts:
        yield _silence(fit) or _previous_click(fit, fit.previous_click)
    yield from [_placed_at_random(test) for test in fit.placements if test.documents and test.p_value >= LEVEL]
    yield from _model_check(fit)
    yield from _rows_notes(fit)
    comparison = fit.comparison
    if comparison is not None and comparison.biased and fit.estimate.method != JOINT:
        yield (
            "For comparison only: textbook EM would be off by up to "
            f"{comparison.largest_difference:.0%} on this log{_cause(fit, comparison)}. Your propensities do not use "
            "it."
        )
    by_likelihood = fit.estimate.method in {JOINT, ConditionalEstimator.name}
    if by_likelihood and comparison is not None and comparison.test.n_contrasts and not comparison.biased:
        yield _not_sparse(comparison)


def _assumption(warning: str | None) -> list[Verdict]:
    """What the log says against the shape of the curve, or against bins."""
    return [Verdict(warning, Weight.DOUBT)] if warning else []


def weight_warnings(summary: WeightSummary) -> list[str]:
    """What a reader must know before training on the files."""
    lost = summary.clicks_without_propensity
    sentences: list[str] = []
    if not summary.clicks_weighted:
        sentences.append("no click has a weight: there is nothing to learn from these files.")
    if lost:
        sentences.append(f"{counted(lost, 'clicks')} in cells without a propensity: left out of the training files.")
    return sentences


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


def _bins(fit: Fit) -> Iterator[str]:
    if not fit.statistics.plan.position_bins or (fit.bins is not None and fit.bins.warning):
        return
    if fit.bins is None or not fit.bins.contrasts.n_contrasts:
        yield "the position bins are not tested: that takes the log itself, and positions that can be compared."
        return
    yield f"the position bins are not rejected against the free estimate ({_rests_on(fit.bins.contrasts, fit)})."


def _contexts(fit: Fit, test: ContrastTest) -> str:
    by = ", ".join(fit.statistics.plan.context)
    if not test.rejected:
        missed = _missed_between_contexts(fit, test)
        return f"propensities do not differ significantly by {by} ({_rests_on(test, fit)}). {missed}"
    return f"propensities differ by {by} ({_rests_on(test, fit)})."


def _missed_between_contexts(fit: Fit, test: ContrastTest) -> str:
    """How much contexts may differ although the test does not show it: for each, where least and where most."""
    reference = fit.estimate.linkage.reference_of
    tested = np.flatnonzero(np.isfinite(test.detectable))
    sentences: list[str] = []
    for first in np.unique(reference[tested]):
        cells = tested[reference[tested] == first]
        ordered = cells[np.argsort(test.detectable[cells], kind="stable")]
        factors = [
            f"{np.exp(test.detectable[cell]):.2f} (position {fit.statistics.position_of_cell[cell]})"
            for cell in ordered[[0, -1]][: len(ordered)]
        ]
        sentences.append(f"{' to '.join(factors)} for {context_in_words(fit, int(first))}")
    return (
        "Differences from the others by less than these factors, which four of five such logs show, may have been "
        f"missed: {listed(sentences, 'contexts_found_by_four_of_five')}."
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


def _silence(fit: Fit) -> str:
    """What cells without clicks below a click say."""
    silence, test = fit.silence, fit.previous_click
    if silence is None or test is None or not test.rejected or not len(silence.cells):
        return ""
    expected = float(np.nansum(silence.expected))
    number, below = len(silence.cells), fit.statistics.cells.filter(pl.col(PREVIOUS_CLICK) > 0).height
    which = f"none of the {below} cells below a click has" if number == below else f"{number} of {below} have not"
    return (
        f"{which} a click, where about {expected:,.0f} would be expected if the previous click made no difference "
        f"({_rests_on(test, fit)}): the log keeps one click per page, or users stop at a click. The cells without a "
        "click above are right for such users; --model pbm is biased."
    )


def _convergence(fit: Fit) -> Iterator[Verdict]:
    estimate = fit.estimate
    iterations = counted(estimate.iterations, "iterations")
    if not estimate.converged:
        sentence = (
            f"{estimate.method} did not converge: it ran for the requested {iterations}, and convergence was "
            "not checked (tolerance 0)."
            if fit.options.tolerance == 0
            else f"{estimate.method} did not converge in {iterations}: do not use these numbers. Raise "
            "--max-iterations."
        )
        yield Verdict(sentence, Weight.DOUBT)
    if fit.joint is not None and fit.joint is not estimate and not fit.joint.converged:
        iterations = counted(fit.joint.iterations, "iterations")
        yield Verdict(f"joint EM, run for comparison, did not converge in {iterations}.", Weight.CAUTION)


def _identification(fit: Fit) -> Iterator[Verdict]:
    linkage, known = fit.estimate.linkage, np.isfinite(fit.estimate.propensity)
    if not linkage.identified[0] and not fit.statistics.plan.context:
        sentence = (
            f"{cell_in_words(fit, 0)} cannot be compared with other cells; propensities are relative to "
            f"{cell_in_words(fit, int(linkage.references[0]))}."
        )
        yield Verdict(sentence, Weight.CAUTION)
    by_shape_alone = int((known & ~linkage.identified).sum())
    if by_shape_alone:
        rest = "rests" if by_shape_alone == 1 else "rest"
        sentence = f"{by_shape_alone} of {len(known)} propensities {rest} on the shape alone (see `reason`)."
        yield Verdict(sentence, Weight.CAUTION)
    lost, few = int((~known).sum()), fit.click_share < WANTED_CLICK_SHARE
    if lost:
        sentence = (
            f"{lost} of {len(known)} cells {'is' if lost == 1 else 'are'} not identified, and no propensity is given "
            f"(see `reason`). Identified cells hold {_share(fit.click_share)} of the clicks"
            + (", too few to rely on." if few else ".")
        )
        yield Verdict(sentence, Weight.DOUBT if few else Weight.CAUTION)


def _share(share: float) -> str:
    return f"{share:.1%}" if share == 1 or share < _NEARLY_ALL else "more than 99.9%"


def _clusters(fit: Fit) -> str:
    """What the errors are clustered by, in the plural."""
    return _PLURAL[fit.estimate.errors_by or "query"].format(", ".join(fit.statistics.plan.clusters))


def whom_intervals_are_about(fit: Fit) -> str:
    """For which queries, sessions or others the intervals of a fit hold."""
    if fit.estimate.errors_by == "session":
        return population("more sessions of these queries")
    return population(f"{_clusters(fit).replace(' or ', ' and ')} like these")


def _few_clusters(fit: Fit) -> Iterator[Verdict]:
    estimate, units = fit.estimate, _clusters(fit)
    known = estimate.intervals.effective_clusters[estimate.intervals.std_error > 0]
    few = known[known < FEW_EFFECTIVE_CLUSTERS]
    if not len(few):
        return
    where = "" if len(few) == len(known) else f" for {len(few)} of {len(known)} intervals"
    worth = f"{few.min():.0f}" if round(few.min()) == round(few.max()) else f"{few.min():.0f} to {few.max():.0f}"
    sentence = f"A few {units} dominate: this log is worth about {worth} {units}{where}."
    if estimate.errors_by == "query":
        sentence += _MORE_QUERIES + (_OTHER_CLUSTERS if _can_cluster_by_column(fit) else "")
    yield Verdict(sentence, Weight.CAUTION)


def _can_cluster_by_column(fit: Fit) -> bool:
    able = "two-way" in get_estimator(fit.estimate.method).clusters
    return able and fit.options.shape == FREE and not fit.options.bootstrap


def _feedback(fit: Fit) -> Iterator[Verdict]:
    if not fit.period.feedback_possible:
        return
    found = f"--period auto: {why(fit.period)}"
    if fit.period.claims:
        biased = "If the ranker learns from these clicks, the propensities are biased"
        yield Verdict(f"{found} {biased}, and this log cannot rule that out.", Weight.CAUTION)
        return
    no_claim = (
        "The ranker learns from these clicks, and no periods were found within which it does not: no claim is made for "
        "these propensities. What helps: times of day (--timestamp), more sessions, the ranker's version "
        "(--period-column), or randomisation. If you know how often it learns, say so with --period."
    )
    yield Verdict(f"{found} {no_claim}", Weight.DOUBT)


def _sparsity(fit: Fit) -> Iterator[Verdict]:
    comparison = fit.comparison
    if comparison is None or not comparison.biased or fit.estimate.method != JOINT:
        return
    sentence = (
        f"EM is off by up to {comparison.largest_difference:.0%} on this log{_cause(fit, comparison)}: do not use "
        f"these propensities, choose --method conditional (p = {comparison.test.p_value:.1g})."
    )
    yield Verdict(sentence, Weight.DOUBT)


def _not_sparse(comparison: JointComparison) -> str:
    if comparison.largest_difference <= NOTABLE:
        return f"joint EM agrees with the conditional estimate to within {comparison.largest_difference:.1%}."
    difference = f"{comparison.largest_difference:.0%}"
    return f"joint EM differs from the conditional estimate by up to {difference}, which may be chance on this log."


def _cause(fit: Fit, comparison: JointComparison) -> str:
    """Whether the prior of joint EM or sparsity makes it biased."""
    if fit.causes is None or fit.joint is None or fit.joint.joint is None:
        return " (it is sparse)"
    without = fit.causes.largest_without_prior(np.isfinite(comparison.test.p_values))
    prior = fit.joint.joint.options.attractiveness_prior
    if without < max(comparison.largest_difference / 2, NOTABLE):
        mostly = "" if without <= NOTABLE else "mostly "
        return f" ({mostly}by its prior of {prior.mean:g}:{prior.strength:g})"
    return " (it is sparse)"


def _placed_at_random(test: PlacementTest) -> str:
    found = f"{counted(test.documents, 'documents')} shown more than once in {counted(test.queries, 'queries')}"
    return f"the rows with {test.rows} stand as if placed at random (p = {test.p_value:.2g}; {found})."


def _placements(fit: Fit) -> list[Verdict]:
    """What cannot be known of randomised rows, or looks odd."""
    sentences: list[str] = []
    if fit.estimate.method == RandomizedEstimator.name and not fit.placements:
        sentences.append(
            "randomised rows with weights (or with --decay) are not checked for having been placed at random."
        )
    for test in fit.placements:
        if not test.documents:
            sentences.append(
                f"the rows with {test.rows} show no document twice, so that it cannot be checked whether they were "
                "placed at random."
            )
        if test.p_value < LEVEL:
            sentences.append(
                f"the rows with {test.rows} may not have been placed at random: documents stand at the same position "
                f"more often than chance explains (p = {test.p_value:.1g}, correlation {test.correlation:.2f})."
            )
    return [Verdict(sentence, Weight.CAUTION) for sentence in sentences]


def _model_check(fit: Fit) -> Iterator[str]:
    """Which tests of the model passed, and what they could have missed."""
    tests = fit.model_tests
    passed = {} if tests is None else {name: one for name, one in tests.made.items() if not one.rejected}
    if tests is None or not tests.made:
        return
    if passed:
        alike = "popular and unpopular results lose clicks with position alike"
        above = "earlier clicks on a page make no difference"
        if CLICKS_ABOVE not in passed:
            above = "it makes no difference where the last click above was"
        elif not tests.averages_users:
            above = "clicks above the last one make no difference"
        parts = [alike] * (ATTRACTIVENESS in passed) + [above] * bool(passed.keys() - {ATTRACTIVENESS})
        p_value = min(one.p_value_adjusted for one in passed.values())
        start = "The rest of the model check passed" if tests.rejected else "Model check passed"
        yield f"{start}: {', and '.join(parts)} (p = {p_value:.1g}). {_missed(passed, tests)}".rstrip()
    if tests.why_no_pages:
        yield f"Whether earlier clicks on a page make a difference is not tested: {tests.why_no_pages}."


def _missed(passed: Mapping[str, ScoreTest], tests: ModelTests) -> str:
    """The largest error that the tests could have missed; nothing of what another one of them denies."""
    above = "earlier clicks matter" if tests.averages_users else "users differ in how readily they click"
    parts: list[str] = []
    for cause, names in (("users trust high positions", {ATTRACTIVENESS}), (above, {CLICKS_ABOVE, LAST_CLICK})):
        errors = [passed[name].largest_missed_error for name in names & passed.keys()]
        if errors and not names & tests.rejected:
            known = [error for error in errors if error is not None]
            small = len(known) == len(errors) and max(known) < np.log(_LARGEST_FACTOR)
            parts.append(f"by {f'a factor of up to {np.exp(max(known)):.3g}' if small else 'any factor'} if {cause}")
    return f"It could have missed that propensities are off {', or '.join(parts)}." if parts else ""


def _model_doubts(fit: Fit) -> Iterator[Verdict]:
    """Which tests the model fails, and what follows."""
    tests = fit.model_tests
    if tests is None:
        return
    if ATTRACTIVENESS in tests.rejected and tests.attractiveness is not None:
        weight = Weight.DOUBT if ATTRACTIVENESS in tests.doubts else Weight.CAUTION
        yield Verdict(_by_attractiveness(fit, tests.attractiveness, weight), weight)
    if tests.depends_on_clicks_above:
        weight = Weight.DOUBT if tests.depends_on_clicks_above & tests.doubts else Weight.CAUTION
        yield Verdict(_by_clicks_above(fit, tests, weight), weight)


def _by_attractiveness(fit: Fit, test: ScoreTest, weight: Weight) -> str:
    propensity = fit.free.propensity
    lowest = int(np.nanargmin(propensity))
    ratio = float(propensity[lowest] ** test.difference_of_logs)
    loss, attractive, others = ("less", "large", "small") if ratio > 1 else ("more", "small", "large")
    return (
        f"Popular results lose {loss} with position than others: at {cell_in_words(fit, lowest)} their propensity is "
        f"about {ratio:.2g} times that of other documents of their query (p = {test.p_value_adjusted:.1g}). "
        f"{_denial(fit, weight)}: weights of low positions are too {attractive} for popular "
        f"documents and too {others} for others. A ranker that knows more of the user or the time than this log tells "
        "looks the same (--stratify, --timestamp), and so do devices that show positions differently (--context)."
    )


def _by_clicks_above(fit: Fit, tests: ModelTests, weight: Weight) -> str:
    parts: list[str] = []
    if CLICKS_ABOVE in tests.rejected and tests.clicks_above is not None:
        p_value = tests.clicks_above.p_value_adjusted
        parts.append(f"{_by_number(tests.by_clicks_above)} clicks (p = {p_value:.1g})")
    if LAST_CLICK in tests.rejected and tests.last_click is not None:
        one = tests.last_click
        ratio = one.observed_clicks / one.expected_clicks
        often = f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'} often than expected"
        parts.append(f"{often} directly below its page's only click (p = {one.p_value_adjusted:.1g})")
    cell = "at the same position" if tests.averages_users else "in the same cell"
    sentence = f"The same document {cell} is clicked {', and '.join(parts)}. "
    if tests.users_may_differ:
        return sentence + (
            "Where that is because users or devices differ, propensities are right as means over them (--context tells "
            "devices apart); where a click above changes what is looked at below, weights are off (--model ubm)."
        )
    if not tests.averages_users:
        above = tests.clicks_above
        more = above is not None and above.difference_of_logs > 0
        return f"{sentence}{_denial(fit, weight)}: " + (
            "users who differ in how readily they click look like this, and then propensities below a click are off. "
            "--model pbm gives the mean over users, which such users leave right."
            if more
            else "weights are off below clicks. `posbias evaluate LOGS --models` compares other click models."
        )
    never = tests.clicks_above is not None and not tests.clicks_above.observed_clicks
    return (
        f"{sentence}{_denial(fit, weight)}: its propensities are means over what was clicked above, and "
        "weights are off where pages differ in that. "
        + ("No page has two clicks: the log keeps one click per page, or users stop at a click. " if never else "")
        + "Compare with --model ubm."
    )


def _by_number(rows: Sequence[ClicksBelow]) -> str:
    """E.g. `1, 1.1 and 0.7 times as often as its other impressions let expect, below 0, 1 and 2`."""
    ratios, numbers = [f"{row.ratio:.2f}" for row in rows], [clicks_above_in_words(row) for row in rows]
    ratio, number = (" and ".join([", ".join(words[:-1]), words[-1]]) for words in (ratios, numbers))
    return f"{ratio} times as often as its other impressions let expect, below {number}"


def clicks_above_in_words(row: ClicksBelow) -> str:
    """E.g. `2`, `3 or more`."""
    return f"{row.clicks_above}{' or more' if row.clicks_above == MOST_ABOVE else ''}"


def _other_model(fit: Fit, others: OtherModels | None) -> Iterator[Verdict]:
    """Which other click model explains the clicks, where one does so by more than chance."""
    if others is None or others.better is None:
        return
    best, fitted = others.better, fit.statistics.plan.model
    follow = "It has no propensity by position."
    if best.name in model_names():
        follow = f"Its propensities (--model {best.name}) hold where users do not differ in how readily they click."
    if fitted.beside_position:
        follow = f"{_denial(fit, Weight.DOUBT)}. {follow}"
    gain = f"{best.gain:.2g} (standard error {best.std_error:.1g}, for queries like these)"
    yield Verdict(
        f"Of the click models, {best.name} predicts held-out clicks best: its log-likelihood per impression is "
        f"{gain} above that of {fitted.name}, {others.log_likelihood:.3f}. {follow} "
        f"`posbias evaluate LOGS --models {fitted.name},{best.name}` compares them on the whole log.",
        Weight.DOUBT if fitted.beside_position else Weight.CAUTION,
    )


def _denial(fit: Fit, weight: Weight) -> str:
    """That the model does not hold, or may not."""
    name = fit.statistics.plan.model.name
    model = {"pbm": "The position-based model", "ubm": "The user browsing model"}.get(name, f"--model {name}")
    return f"{model} does not hold" if weight is Weight.DOUBT else f"{model} may not hold"


def _rows_notes(fit: Fit) -> Iterator[str]:
    """From how many pages relevance was learnt, and that repeated pairs agree."""
    rows, test = fit.from_rows, fit.against_pairs
    if rows is not None and rows.pages < rows.pages_in_all:
        yield (f"relevance is learnt from {rows.pages:,} of {counted(rows.pages_in_all, 'pages')} (--sample-pages).")
    if test is not None and not test.rejected:
        yield f"the pairs that repeat do not contradict the features ({_on_pairs(test)})."


def hidden_errors(fit: Fit, slope: float) -> Floats:
    """By how much each propensity is too low if relevance that only the ranker sees adds a slope, shape (K,)."""
    position = fit.statistics.position_of_cell
    return 1 - (position / position[fit.estimate.linkage.reference_of]) ** -slope


def _hidden(fit: Fit, rows: FromRows) -> Iterator[Verdict]:
    """What relevance that only the ranker sees would do, and whether rivals on the page show that there is some."""
    named, hidden, position = rows.score is not None, rows.hidden, fit.statistics.position_of_cell
    advice = "" if named else " Name the score that it sorts by (--ranker-score COLUMN)."
    if hidden is None and not named:
        sentence = f"If the ranker knows more of relevance than these features, propensities are wrong.{advice}"
        yield Verdict(sentence, Weight.CAUTION)
    if hidden is None:
        return
    cell = int(np.argmax(np.where(position <= NAMED_POSITION, position, 0)))
    error, least = (float(hidden_errors(fit, slope)[cell]) for slope in (hidden.plausible, hidden.least))
    weight = Weight.DOUBT if error > LARGEST_HIDDEN_ERROR else Weight.NOTE if named else Weight.CAUTION
    sentence = (
        f"If the ranker knows as much of relevance beyond {'its score' if named else 'these features'} as they show, "
        f"propensities are too low far down the page, at position {position[cell]} by up to {error:.0%}. No interval "
        f"includes that.{advice}"
    )
    if f"{error:.0%}" == "0%":  # which would be read as a promise
        sentence = (
            f"Pages are not ordered by these features{' beyond the score' if named else ''}. If relevance that they do "
            f"not show orders them, propensities are too low, and nothing here says how far.{advice}"
        )
    yield Verdict(sentence, weight)
    if least > LARGEST_HIDDEN_ERROR:
        yield Verdict(
            f"The ranker knows more of relevance than these features show: propensities are too low, at position "
            f"{position[cell]} by more than {LARGEST_HIDDEN_ERROR:.0%}. At the same position, documents are clicked "
            f"more often the better the others on their page are.{advice or ' Name more features (--feature).'}",
            Weight.DOUBT,
        )


def _rows_doubts(fit: Fit) -> Iterator[Verdict]:
    """What features cannot see, and whether repeated pairs contradict them."""
    rows, test = fit.from_rows, fit.against_pairs
    if rows is None:
        return
    yield from _hidden(fit, rows)
    if test is not None and test.rejected:
        how = "faster" if test.slope < 0 else "more slowly"
        also = "" if rows.score is not None else ", or name the ranker's score (--ranker-score COLUMN)"
        sentence = (
            f"the pairs that repeat contradict the features ({_on_pairs(test)}): by the features, propensities fall "
            f"{how} with the position. The ranker knows more of the documents than these features show, or the pairs "
            f"that repeat are unlike the others. Use --method conditional{also}."
        )
        yield Verdict(sentence, Weight.DOUBT)


def _on_pairs(test: PairsTest) -> str:
    return f"p = {test.p_value:.1g}, {counted(test.pairs, 'pairs')} at several positions"
