"""What speaks for and against a fit and its weights, in plain words."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from posbias.core.arrays.count_table import Floats
from posbias.core.counts.order import RowOrder
from posbias.core.errors import counted, population, shown
from posbias.core.estimators import get_estimator, get_method
from posbias.core.estimators.methods import ConditionalEstimator, JointEstimator, RandomizedEstimator
from posbias.core.fit.arms import MOST_ARMS, ArmsTest
from posbias.core.fit.diagnostics import NOTABLE, FromRows, JointComparison
from posbias.core.fit.fit import MOST_CELLS_BESIDE, WANTED_CLICK_SHARE, Fit
from posbias.core.fit.model_tests import (
    ATTRACTIVENESS,
    CLICKS_ABOVE,
    LAST_CLICK,
    MOST_ABOVE,
    ClicksBelow,
    ModelTests,
    OtherModels,
)
from posbias.core.fit.periods import (
    WITHIN,
    FeedbackTest,
    PeriodChoice,
    feedback_by_rows,
    movement_in_words,
    why,
    why_not,
)
from posbias.core.models import model_names
from posbias.core.schema import PREVIOUS_CLICK
from posbias.core.shapes import FREE
from posbias.core.standard_errors.cluster import FEW_EFFECTIVE_CLUSTERS
from posbias.core.standard_errors.contrasts import LEVEL, ContrastTest, ScoreTest
from posbias.core.training.scales import LEVEL_OF_SCALES, ScalesOfContexts
from posbias.core.training.weights import WeightSummary
from posbias.io.log.sql import sql_joined, sql_name, sql_where
from posbias.io.results.conclusions import CAUTION, GOOD, NOTE, STOP, Reason

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


JOINT = JointEstimator.name
OTHER_MODEL = "other-model-better"  # the code of the reason
_BY_LIKELIHOOD = {JOINT, ConditionalEstimator.name}
_NEARLY_ALL = 0.9995
_TWO_DECIMALS = 0.1
_ONE_PERCENT = 0.01
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
_OTHER_CLUSTERS = " If users, markets or days share more than a query does, name their column (--cluster-column)."
_MORE_TIME = (
    "Name times of day (--timestamp), the ranker's version (--period-column), or how often it learns (--period)."
)
_MORE_THAN_TIMES = (
    "Name the ranker's version (--period-column), or how often it learns (--period); else swap positions at random on "
    "a share of the pages (`posbias explore` plans it; --method randomized)."
)
_MORE_THAN_ROWS = (
    "Name the column of times (--timestamp COLUMN), by which periods are looked for within which it does not; without "
    "times, swap positions at random on a share of the pages (`posbias explore` plans it; --method randomized)."
)
NAMED = 5  # or the last before it, whose attention the conclusion names


def fit_headline(fit: Fit) -> str:
    """The attention that position 5, or the nearest that is known, gets; in each context, and below no click."""
    statistics, references = fit.statistics, fit.estimate.linkage.reference_of
    position, known = statistics.position_of_cell, np.isfinite(fit.estimate.propensity)
    compared = known & (position != position[references])
    clicks = counted(float(statistics.cell_totals[1].sum()), "clicks")
    if not compared.any():
        return f"{clicks} say nothing of how much attention positions get"
    named = position[compared]
    at = int(named[named <= NAMED].max(initial=0) or named.min())
    cells = np.flatnonzero(compared & (position == at))
    if PREVIOUS_CLICK in statistics.cells.columns:
        cells = cells[:1]  # the last click above, ascending: none
    shares = fit.estimate.propensity[cells]
    low, high = (f"{share:.2f}" if share >= _TWO_DECIMALS else f"{share:.2g}" for share in (shares.min(), shares.max()))
    share = low if low == high else f"{low} to {high}"
    below = " below no click" if PREVIOUS_CLICK in statistics.cells.columns else ""
    by = f", by {', '.join(statistics.plan.context)}" if low != high else ""
    against = " or ".join(sorted({str(position[reference]) for reference in references[cells]}))
    return (
        f"{clicks} on {counted(len(np.unique(position[known])), 'positions')}: position {at}{below} gets {share} of "
        f"the attention of position {against}{by}"
    )


def fit_reasons(fit: Fit, others: OtherModels | None = None, time: str | None = None) -> list[Reason]:
    """What speaks for and against a fit.

    Args:
        fit: it.
        others: the other click models, where they were looked at.
        time: the column of times of a log that a query can read.
    """
    return [
        *_convergence(fit),
        *_identification(fit),
        *_few_clusters(fit),
        *_feedback(fit),
        *_arms(fit),
        *_change(fit, time),
        *_against_textbook_em(fit),
        *_placements(fit),
        *_model_check(fit),
        *_rows(fit),
        *_shape(fit),
        *_bins(fit),
        *_other_model(fit, others),
        *_differences(fit),
    ]


def _differences(fit: Fit) -> Iterator[Reason]:
    """Differences between positions, contexts and clicks above that a log may lack."""
    if fit.contexts is not None and fit.contexts.n_contrasts:
        yield _contexts(fit, fit.contexts)
    if fit.contexts is not None:
        yield from _contexts_not_compared(fit)
    if fit.position_effect is not None and fit.position_effect.n_contrasts and not fit.position_effect.rejected:
        yield _no_effect(fit)
    if fit.previous_click is not None and fit.previous_click.n_contrasts:
        yield _silence(fit) or _previous_click(fit, fit.previous_click)


def weight_reasons(summary: WeightSummary) -> list[Reason]:
    """What speaks against training on files of weighted clicks."""
    weighted, lost = summary.clicks_weighted, summary.clicks_without_propensity
    if not weighted:
        sentence = "No click has a weight, so there is nothing to learn from these files."
        if lost:
            sentence += f" All {lost:,.0f} are at positions without a propensity."
        return [Reason("nothing-to-learn", STOP, sentence, {"clicks": lost})]
    return [] if not lost else [unweighted_clicks(lost, weighted + lost, "they are left out of the training files")]


def context_reasons(contexts: pl.DataFrame, scales: ScalesOfContexts | None, *, across: bool) -> list[Reason]:
    """What it does to weights and labels that each context has a first position of its own.

    Args:
        contexts: their columns, a row each.
        scales: how far they are apart; None where that was not looked at, as rows carry weights.
        across: whether documents of several pages are compared.
    """
    by = ", ".join(map(shown, contexts.columns))
    sentence = f"Weights of each {by} are relative to its own first position, and not on one scale. "
    if not across:
        sentence += "Within a page they are: learn from groups of pages, as a ranking loss does, not row by row."
        return [Reason("contexts-on-own-scales", NOTE, sentence)]
    if scales is None:
        sentence += f"Whether that matters is not tested with weights or --decay: fit and train each {by} by itself."
        return [Reason("contexts-on-own-scales", CAUTION, sentence)]
    details = f"documents of a query are shown or clicked alike in all of them: p = {scales.p_value:.1g}"
    figures: dict[str, float | str | None] = {"error": scales.error} if np.isfinite(scales.error) else {}
    apart = f"puts labels of documents of one query off against each other by {scales.error:.0%}"
    if not scales.matter:
        sentence += (
            f"That {apart}."
            if scales.p_value < LEVEL_OF_SCALES and scales.error >= _ONE_PERCENT
            else "That hardly matters within a query: as far as this log shows, its documents are shown alike in all, "
            "or clicked alike."
        )
        return [Reason("contexts-on-own-scales", NOTE, sentence, figures, details)]
    sentence += "Documents of one query are shown unevenly in them, and "
    if figures:
        farthest = int(np.nanargmax(np.abs(np.log(scales.scale))))
        figures["ratio"] = float(scales.scale[farthest])
        name = " / ".join(map(label_in_words, contexts.row(farthest)))
        sentence += (
            f"clicked more or less readily (for {name} {figures['ratio']:.2g} times as often as these weights let "
            f"expect); that {apart}."
        )
    else:
        sentence += "how far apart their weights are cannot be known, as no document is clicked in two of them."
    each, several = "_".join(contexts.columns), contexts.width > 1
    joined, again = (f" {sql_joined(contexts.columns, each)}", " with the same --sql") if several else ("", "")
    sentence += (
        f" Fit each {by} by itself (posbias fit LOGS{joined} --for-each {shlex.quote(each)} -o fits), then weigh or "
        f"train by each of these fits{again}, which leaves the rows of the others out."
    )
    return [Reason("contexts-on-own-scales", STOP, sentence, figures, details)]


def unweighted_clicks(lost: float, clicks: float, consequence: str) -> Reason:
    """Clicks at positions without a propensity; more than one in a hundred, and the rest says little."""
    severity = STOP if lost > (1 - WANTED_CLICK_SHARE) * clicks else CAUTION
    sentence = (
        f"{counted(lost, 'clicks')} of {clicks:,.0f} ({lost / clicks:.1%}) are at positions without a propensity: "
        f"{consequence}."
    )
    return Reason("clicks-without-propensity", severity, sentence, {"clicks": clicks, "without_propensity": lost})


ERRORS_UNKNOWN = Reason(
    "errors-unknown",
    CAUTION,
    "The errors of the propensities are not known: intervals take them as exact, and are too narrow if they are not.",
)
"""Against what is computed with propensities that have no standard errors."""


def left_out_reasons(documents: int) -> list[Reason]:
    """Documents that no row of judgments holds."""
    if not documents:
        return []
    verbs = "has no judgment and is" if documents == 1 else "have no judgment and are"
    where = "no position at which they were shown has a propensity"
    sentence = f"{counted(documents, 'documents')} {verbs} left out: {where}."
    return [Reason("documents-without-judgment", CAUTION, sentence, {"documents": documents})]


def _no_effect(fit: Fit) -> Reason:
    low, high = float(np.nanmin(fit.estimate.intervals.low)), float(np.nanmax(fit.estimate.intervals.high))
    sentence = (
        "Position makes no difference that this log shows. It could have missed propensities from "
        f"{low:.2f} to {high:.2f}; more different queries would show smaller differences."
    )
    return Reason("no-position-effect", NOTE, sentence, {"low": low, "high": high}, _rests_on(fit.position_effect, fit))


def _shape(fit: Fit) -> Iterator[Reason]:
    """Whether the curve has the shape that was chosen."""
    shape = fit.shape
    if shape is None:
        return
    figures = {"difference": float(np.exp(shape.test.difference))}
    if shape.warning is not None:
        sentence, details = _parted(shape.warning)
        yield Reason("shape-does-not-fit", STOP, sentence, figures, details)
    elif shape.test.n_contrasts:
        references = fit.estimate.linkage.references
        eta = [
            f"eta {value:.3f}, standard error {error:.3f}"
            for value, error in zip(shape.eta[references], shape.eta_error[references], strict=True)
            if np.isfinite(value) and np.isfinite(error)
        ]
        sentence = f"The {fit.options.shape} shape fits: the log does not speak against it."
        yield Reason("shape-fits", GOOD, sentence, {}, "; ".join([*eta, _rests_on(shape.test, fit)]))


def _bins(fit: Fit) -> Iterator[Reason]:
    """Whether the positions of a bin have one propensity."""
    if not fit.statistics.plan.position_bins:
        return
    if fit.bins is None or not fit.bins.contrasts.n_contrasts:
        sentence = "Whether the positions of a bin have one propensity is not tested: that takes the log itself."
        yield Reason("bins-not-tested", NOTE, sentence)
    elif fit.bins.warning is not None:
        sentence, details = _parted(fit.bins.warning)
        figures = {"ratio": float(np.exp(fit.bins.contrasts.difference))}
        yield Reason("bins-do-not-fit", STOP, f"{sentence} Use narrower bins.", figures, details)
    else:
        sentence = "The positions of each bin have one propensity, as far as the log shows."
        yield Reason("bins-fit", GOOD, sentence, {}, _rests_on(fit.bins.contrasts, fit))


_P_VALUE = re.compile(r" ?\((p = [^)]*)\)")


def _parted(warning: str) -> tuple[str, str]:
    """A warning without its p-value, and the p-value."""
    p_values = "; ".join(_P_VALUE.findall(warning))
    return _P_VALUE.sub("", warning), p_values


def _contexts(fit: Fit, test: ContrastTest) -> Reason:
    by = ", ".join(fit.statistics.plan.context)
    details = _rests_on(test, fit)
    if test.rejected:
        sentence = f"Propensities differ by {by}: use those of each {by}."
        return Reason("contexts-differ", NOTE, sentence, {}, details)
    sentence = f"Propensities do not differ by {by}, as far as this log shows."
    return Reason("contexts-alike", NOTE, sentence, {}, f"{details}. {_missed_between_contexts(fit, test)}")


def _contexts_not_compared(fit: Fit) -> Iterator[Reason]:
    """Contexts with different reference positions, which are not tested against each other, and what compares them."""
    position, linkage = fit.statistics.position_of_cell, fit.estimate.linkage
    known = np.flatnonzero(linkage.identified)
    references = np.unique(linkage.reference_of[known])
    if len(np.unique(position[references])) <= 1:
        return
    by = ", ".join(fit.statistics.plan.context)
    relative = [f"position {position[cell]} for {context_in_words(fit, int(cell))}" for cell in references]
    shared = np.unique(np.stack([position[known], linkage.reference_of[known]]), axis=1)[0]
    common, contexts = np.unique(shared, return_counts=True)
    most, number = int(contexts.max()), int(common[np.argmax(contexts)])
    which = "all" if most == len(references) else f"{most} of {len(references)}"
    advice = f"Use --reference {number}, which {which} show, to compare them." if most > 1 else "No two show the same."
    sentence = (
        f"Whether propensities differ by {by} is not tested between different reference positions, and they are "
        f"relative to {listed(relative, 'references')}. {advice}"
    )
    yield Reason("contexts-not-compared", NOTE, sentence, {"reference": number} if most > 1 else {})


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
        f"missed: {listed(sentences, 'contexts_found_by_four_of_five')}"
    )


def _rests_on(test: ContrastTest | None, fit: Fit) -> str:
    """A test's p-value, and on how many clusters it rests."""
    units = counted(fit.estimate.n_clusters, _clusters(fit))
    return units if test is None else f"p = {test.p_value:.1g}, {units}"


def _previous_click(fit: Fit, test: ContrastTest) -> Reason:
    details = _rests_on(test, fit)
    if not test.rejected:
        sentence = "The last click above makes no difference on this log: --model pbm does as well, with fewer numbers."
        return Reason("clicks-above-do-not-matter", NOTE, sentence, {}, details)
    sentence = (
        "Results below a click are looked at differently, as --model ubm assumes. Users who differ in how readily they "
        "click look the same, and then these propensities are wrong and those of --model pbm are right."
    )
    return Reason("clicks-above-matter", NOTE, sentence, {}, details)


def _silence(fit: Fit) -> Reason | None:
    """Cells without clicks below a click."""
    silence, test = fit.silence, fit.previous_click
    if silence is None or test is None or not test.rejected or not len(silence.cells):
        return None
    expected = float(np.nansum(silence.expected))
    number, below = len(silence.cells), fit.statistics.cells.filter(pl.col(PREVIOUS_CLICK) > 0).height
    which = (
        f"none of the {below} propensities below a click has" if number == below else f"{number} of {below} have not"
    )
    sentence = (
        f"Hardly anybody clicks twice: the log keeps one click per page, or users stop at a click ({which} a click, "
        f"where about {expected:,.0f} would be expected). Propensities below no click are right for such users; those "
        "of --model pbm are not."
    )
    return Reason("one-click-per-page", NOTE, sentence, {"expected_clicks": expected}, _rests_on(test, fit))


def _convergence(fit: Fit) -> Iterator[Reason]:
    estimate = fit.estimate
    iterations = counted(estimate.iterations, "iterations")
    figures = {"iterations": float(estimate.iterations)}
    if not estimate.converged:
        sentence = (
            f"The estimate is not finished: it ran for the requested {iterations}, and whether it had converged was "
            "not checked (--tolerance 0)."
            if fit.options.tolerance == 0
            else f"The estimate is not finished: it had not converged after {iterations}. Raise --max-iterations."
        )
        yield Reason("not-converged", STOP, sentence, figures, f"method {estimate.method}")
    if fit.joint is not None and fit.joint is not estimate and not fit.joint.converged:
        figures = {"iterations": float(fit.joint.iterations)}
        sentence = (
            "The comparison with textbook EM is not finished: it had not converged after "
            f"{counted(fit.joint.iterations, 'iterations')}. Your propensities do not use it."
        )
        yield Reason("textbook-em-not-converged", CAUTION, sentence, figures)


def _identification(fit: Fit) -> Iterator[Reason]:
    linkage, known = fit.estimate.linkage, np.isfinite(fit.estimate.propensity)
    if not linkage.identified[0] and not fit.statistics.plan.context:
        cell, reference = (cell_in_words(fit, number) for number in (0, int(linkage.references[0])))
        sentence = f"Propensities are relative to {reference}: no document compares {cell} with the others."
        yield Reason("other-reference", CAUTION, sentence)
    cells = len(known)
    by_shape_alone = int((known & ~linkage.identified).sum())
    if by_shape_alone:
        sentence = (
            f"{by_shape_alone} of {cells} propensities {'rests' if by_shape_alone == 1 else 'rest'} on the shape "
            "alone, not on clicks (column `reason` says which)."
        )
        yield Reason("shape-alone", CAUTION, sentence, {"propensities": by_shape_alone, "of": cells})
    lost, few = int((~known).sum()), fit.click_share < WANTED_CLICK_SHARE
    if lost:
        what = "propensities" if fit.statistics.cells.width > 1 else "positions"
        sentence = (
            f"{lost} of {cells} {what} {'is' if lost == 1 else 'are'} not known: no document compares them with the "
            f"others (column `reason` says why). The others hold {_share(fit.click_share)} of the clicks"
            + (", too few to rely on." if few else ".")
        )
        figures = {"unknown": lost, "of": cells, "click_share": fit.click_share}
        yield Reason("not-identified", STOP if few else CAUTION, sentence, figures)


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


def _few_clusters(fit: Fit) -> Iterator[Reason]:
    estimate, units = fit.estimate, _clusters(fit)
    known = estimate.intervals.effective_clusters[estimate.intervals.std_error > 0]
    few = known[known < FEW_EFFECTIVE_CLUSTERS]
    if not len(few):
        return
    intervals = "the intervals are" if len(few) == len(known) else f"{len(few)} of {len(known)} intervals are"
    worth = f"{few.min():.0f}" if round(few.min()) == round(few.max()) else f"{few.min():.0f} to {few.max():.0f}"
    sentence = f"A few {units} dominate: {intervals} as wide as with {worth} {units} of equal size."
    if estimate.errors_by == "query":
        sentence += _MORE_QUERIES + (_OTHER_CLUSTERS if _can_cluster_by_column(fit) else "")
    figures = {"worth_least": float(few.min()), "worth_most": float(few.max())}
    yield Reason("few-queries", CAUTION, sentence, figures)


def _can_cluster_by_column(fit: Fit) -> bool:
    able = "two-way" in get_estimator(fit.estimate.method).clusters
    return able and fit.options.shape == FREE and not fit.options.bootstrap


def _feedback(fit: Fit) -> Iterator[Reason]:
    """Whether the ranker learns from the clicks, as far as the order of documents over time shows it."""
    if fit.statistics.plan.period is None:
        if get_method(fit.estimate.method).uses_strata:
            yield reason_of_rows(fit.statistics.row_order)
        return
    start, more = f"--period {fit.options.period}: ", _what_helps(fit.period)
    details, given = start + why(fit.period), fit.options.period != "auto"
    if not fit.period.feedback_possible:
        if fit.period.survivor is not None:
            sentence, _, rest = why(fit.period).partition(". ")
            yield Reason("clicks-do-not-move-documents", GOOD, f"{sentence}.", {}, start + rest)
    elif fit.period.looks[-1].outcome == "little feedback" and fit.period.looks[-1].feedback is not None:
        yield _little_feedback(fit.period.looks[-1].feedback, details)
    elif fit.period.claims and given:
        sentence = (
            f"Whether documents move after clicks within {WITHIN[fit.period.used]} is not tested, as "
            f"{why_not(fit.period.looks[-1])}. If they do, the propensities are wrong: name times of day "
            "(--timestamp), or the ranker's version (--period-column)."
        )
        yield Reason("ranker-may-learn", CAUTION, sentence, {}, details)
    elif fit.period.claims or not fit.period.feedback_is_sure:
        sentence = (
            "If the ranker learns from these clicks, the propensities are wrong, and this log cannot rule that out. "
            f"{more}"
        )
        yield Reason("ranker-may-learn", CAUTION, sentence, {}, details)
    else:
        sentence = (
            "The ranker learns from these clicks: documents move after they are clicked, which makes the propensities "
            f"wrong by an unknown amount. {more}"
        )
        yield Reason("ranker-learns", STOP, sentence, {}, details)


def _what_helps(period: PeriodChoice) -> str:
    """What shows, or rules out, that the ranker learns within the shortest periods that were tried."""
    if period.looks and period.looks[-1].outcome == "nothing to compare":
        return (
            f"Finer times do not help, as nothing can be compared within {WITHIN[period.looks[-1].length]}: let some "
            "documents change places at random."
        )
    return _MORE_THAN_TIMES if period.looks and period.looks[-1].length == "hour" else _MORE_TIME


def reason_of_rows(order: RowOrder | None) -> Reason:
    """Whether the ranker learns from the clicks, by the order of the rows of a log that says no times.

    Args:
        order: what it says; None where rows have none, or nothing can be compared.
    """
    test = feedback_by_rows(order)
    if test is not None and test.rejected:
        sentence = (
            "The ranker learns from these clicks: in the order of the rows, documents move after they are clicked, "
            f"which makes the propensities wrong by an unknown amount. {_MORE_THAN_ROWS}"
        )
        return Reason("ranker-learns", STOP, sentence, {"move": test.move}, movement_in_words(test))
    if test is not None and test.moves:
        return _little_feedback(test, movement_in_words(test))
    details = "" if test is None else f"By the order of the rows: {movement_in_words(test)}"
    if test is not None and test.enough and order is not None and order.may_be_time:
        sentence = (
            "If the rows are in the order of time, documents do not move after they are clicked, and the ranker does "
            "not learn from these clicks. Else name the column of times (--timestamp COLUMN)."
        )
        return Reason("rows-in-order", NOTE, sentence, {}, details)
    sentence = (
        "Nothing in this log shows whether the ranker learns from these clicks; if it does, the propensities are "
        "wrong. Name the column of times (--timestamp COLUMN), or collect the logs with their days (--date)."
    )
    return Reason("ranker-not-tested", NOTE, sentence, {}, details)


def feedback_over_times(order: RowOrder | None) -> list[Reason]:
    """That the ranker seems to learn from the clicks of a log whose times have not been used yet, if it does."""
    test = feedback_by_rows(order)
    if test is None or not test.moves:
        return []
    sentence = (
        "The ranker seems to learn from these clicks: documents move after they are clicked. A run looks for periods "
        "within which they do not, and says whether there are any."
    )
    return [Reason("ranker-may-learn", CAUTION, sentence, {"move": test.move}, movement_in_words(test))]


def _little_feedback(test: FeedbackTest, details: str) -> Reason:
    """Movement after clicks that hardly matters."""
    error = NAMED**test.bias - 1
    sentence = (
        "The ranker learns a little from these clicks: in the order of the rows, documents move after they are "
        f"clicked, by which the propensity of position {NAMED} may be off by some {error:.1%}."
    )
    return Reason("ranker-learns-little", CAUTION, sentence, {"move": test.move, "error": error}, details)


def _arms(fit: Fit) -> Iterator[Reason]:
    """Whether experiment arms, which are drawn at random, move documents as all movement says."""
    arms, test, plan = fit.statistics.arms, fit.arms, fit.statistics.plan
    if arms is None or fit.estimate.method != ConditionalEstimator.name:
        return
    names, column = arms.drop_nulls()[plan.arms[0]], shown(plan.arms[0])
    why = {
        "that takes counts without weights or --decay": plan.weighted,
        f"the log has one ({label_in_words(names.first())})": len(names) == 1,
        "no row has one": not len(names),
        f"it has {len(names):,}, and {MOST_ARMS} are the most": len(names) > MOST_ARMS,
        f"there are more than {MOST_CELLS_BESIDE:,} propensities": fit.statistics.n_cells > MOST_CELLS_BESIDE,
    }
    for reason in (reason for reason, holds in why.items() if holds):
        yield Reason("arms-not-tested", NOTE, f"Experiment arms ({column}) are not compared: {reason}.")
        return
    position, move = _named_position(fit), ""
    figures: dict[str, float | str | None] = {"position": position}
    if test is None or not (test.rejected or test.enough):
        if test is not None and test.missed_slope * np.log(position) < np.log(_LARGEST_FACTOR):
            figures |= {"error": _off(test.missed_slope, position), "strength": test.strength}
            move = f": an error of less than {figures['error']:.0%} at position {position} might not show"
        sentence = (
            f"The experiment arms ({column}) move documents too little to show whether the ranker knows the user or "
            f"learns from these clicks{move}."
        )
        yield Reason("arms-say-too-little", NOTE, sentence, figures, _of_arms(test))
        return
    if not test.rejected:
        figures["error"] = error = _off(test.missed_slope, position)
        sentence = (
            f"Experiment arms ({column}), which are drawn at random, say the same as all movement: if what arms "
            "change is the same for all users, and they share what they learn from, the ranker neither knows the user "
            f"nor learns from these clicks so much that position {position} is off by {error:.0%}."
        )
        yield Reason("arms-agree", GOOD, sentence, figures, _of_arms(test))
        return
    yield _contradiction(fit, test, column, position)


def _contradiction(fit: Fit, test: ArmsTest, column: str, position: int) -> Reason:
    """That arms say something else than all movement, and how far they can be followed."""
    sentence = (
        "These propensities are wrong, as the ranker knows the user or learns from these clicks: what experiment arms "
        f"({column}) move at random contradicts them. "
    )
    figures: dict[str, float | str | None] = {"position": position, "strength": test.strength}
    if test.apart:
        sentence += (
            "How wrong is not known: each arm learns from its own clicks, and arms must share what they learn from."
        )
    elif test.bent is None:
        sentence += "The arms move documents too little to tell how wrong."
    else:
        cell, bent = int(np.flatnonzero(fit.statistics.position_of_cell == position)[0]), test.bent
        ours, theirs = float(fit.free.propensity[cell]), float(bent.propensity[cell])
        figures |= {"propensity": ours, "by_arms": theirs, "strength": bent.strength}
        sentence += (
            "Nearer, but not right, is the curve bent as the arms say (`arms_propensity`, strength F "
            f"{bent.strength:,.0f}), which falls {'faster' if theirs < ours else 'more slowly'}: {theirs:.2f} at "
            f"position {position} instead of {ours:.2f}. Do not use it where arms change more for some users, or learn "
            "from their own clicks; no weights are made from it."
        )
    sentence += " Name what the ranker knows (--stratify) or the times (--timestamp)."
    return Reason("arms-contradict", STOP, sentence, figures, _of_arms(test))


def _named_position(fit: Fit) -> int:
    """Position 5, or the last before it that is known, or the first one that is compared with another."""
    linkage, position = fit.free.linkage, fit.statistics.position_of_cell
    compared = position[linkage.identified & (position != position[linkage.reference_of])]
    return int(compared[compared <= NAMED].max(initial=0) or compared.min(initial=NAMED))


def _off(slope: float, position: int) -> float:
    """The relative error at a position of a curve whose eta is off."""
    return float(np.expm1(slope * np.log(position)))


def _of_arms(test: ArmsTest | None) -> str:
    if test is None:
        return ""
    missed = f", {test.missed_slope:.2g} shows in four of five such logs" if np.isfinite(test.missed_slope) else ""
    levels = " : ".join(f"{level:.3g}" if np.isfinite(level) else "?" for level in test.levels)
    return (
        f"arms against all movement: p = {test.p_value:.1g}, slope {test.difference:+.2g}{missed}; strength F "
        f"{test.strength:,.1f}; the same document is clicked {levels} times as often by arm"
    )


def _change(fit: Fit, time: str | None) -> Iterator[Reason]:
    """That positions matter differently on later days."""
    change = fit.change
    if change is None or not change.matters:
        return
    cell, day = change.test.largest, change.first_day
    before, after = float(change.before[cell]), float(change.after[cell])
    alone = "" if time is None else ", e.g. " + sql_where(f"CAST({sql_name(time)} AS DATE) >= '{day}'")
    sentence = (
        f"Positions matter differently on later days: {cell_in_words(fit, cell)} gets {before:.2g} before {day} and "
        f"{after:.2g} from then on, and its propensity lies between. If the page was changed, fit the days after "
        f"that alone{alone}."
    )
    figures = {"day": day, "before": before, "after": after}
    yield Reason("positions-changed", CAUTION, sentence, figures, _rests_on(change.test, fit))


def _against_textbook_em(fit: Fit) -> Iterator[Reason]:
    """How far joint EM is off, which is beside the point unless it is the estimate."""
    comparison = fit.comparison
    if comparison is None or not (comparison.biased or fit.estimate.method in _BY_LIKELIHOOD):
        return
    largest, figures = f"{comparison.largest_difference:.0%}", {"largest_difference": comparison.largest_difference}
    details = f"joint EM against the conditional estimate, {_cause(fit, comparison)}: p = {comparison.test.p_value:.1g}"
    if comparison.biased and fit.estimate.method == JOINT:
        sentence = f"Textbook EM is off by up to {largest} on this log. Use --method conditional."
        yield Reason("textbook-em-off", STOP, sentence, figures, details)
    elif comparison.biased:
        sentence = (
            f"For comparison only: textbook EM would be off by up to {largest} on this log. Your propensities do not "
            "use it."
        )
        yield Reason("textbook-em-off", NOTE, sentence, figures, details)
    elif comparison.test.n_contrasts:
        agrees = comparison.largest_difference <= NOTABLE
        sentence = (
            f"For comparison only: textbook EM agrees to within {comparison.largest_difference:.1%}."
            if agrees
            else f"For comparison only: textbook EM differs by up to {largest}, which may be chance on this log."
        )
        yield Reason("textbook-em-agrees", NOTE, sentence, figures, details)


def _cause(fit: Fit, comparison: JointComparison) -> str:
    """Whether the prior of joint EM or sparsity makes it biased."""
    if fit.causes is None or fit.joint is None or fit.joint.joint is None:
        return "few clicks per document"
    without = fit.causes.largest_without_prior(np.isfinite(comparison.test.p_values))
    prior = fit.joint.joint.options.attractiveness_prior
    if without < max(comparison.largest_difference / 2, NOTABLE):
        mostly = "" if without <= NOTABLE else "mostly "
        return f"{mostly}by its prior of {prior.mean:g}:{prior.strength:g}"
    return "few clicks per document"


def _placements(fit: Fit) -> Iterator[Reason]:
    """Whether randomised rows were placed at random."""
    if fit.estimate.method == RandomizedEstimator.name and not fit.placements:
        sentence = "Whether the rows were placed at random is not checked: that takes rows without weights or --decay."
        yield Reason("placement-not-checked", CAUTION, sentence)
    for test in fit.placements:
        figures, details = {"documents": test.documents, "queries": test.queries}, f"p = {test.p_value:.2g}"
        if not test.documents:
            sentence = (
                f"Whether the rows with {test.rows} were placed at random cannot be checked: no document is in them "
                "twice."
            )
            yield Reason("placement-not-checked", CAUTION, sentence, figures)
        if test.p_value < LEVEL:
            sentence = (
                f"The rows with {test.rows} may not have been placed at random: documents are at the same position "
                "more often than chance explains. Look at how they were placed."
            )
            details += f", correlation {test.correlation:.2f}"
            yield Reason("placement-not-random", CAUTION, sentence, figures, details)
        elif test.documents:
            shown_again = f"{counted(test.documents, 'documents')} shown more than once"
            sentence = f"The rows with {test.rows} look placed at random, by {shown_again}."
            yield Reason("placement-random", GOOD, sentence, figures, details)


def _model_check(fit: Fit) -> Iterator[Reason]:
    """Which tests of the model pass or fail, and what follows."""
    tests = fit.model_tests
    if tests is None or not tests.made:
        return
    if ATTRACTIVENESS in tests.rejected and tests.attractiveness is not None:
        yield _by_attractiveness(fit, tests.attractiveness, doubted=ATTRACTIVENESS in tests.doubts)
    if tests.depends_on_clicks_above:
        yield _by_clicks_above(fit, tests)
    passed = {name: one for name, one in tests.made.items() if not one.rejected}
    if passed:
        alike = "popular and unpopular results lose clicks with position alike"
        above = "earlier clicks on a page make no difference"
        if CLICKS_ABOVE not in passed:
            above = "it makes no difference where the last click above was"
        elif not tests.averages_users:
            above = "clicks above the last one make no difference"
        words = ", and ".join([alike] * (ATTRACTIVENESS in passed) + [above] * bool(passed.keys() - {ATTRACTIVENESS}))
        start = "The rest of the model check passed" if tests.rejected else "Model check passed"
        p_value = min(one.p_value_adjusted for one in passed.values())
        details = f"{start} (p = {p_value:.1g}). {_missed(passed, tests)}".rstrip()
        yield Reason("model-check-passed", GOOD, f"{words[0].upper()}{words[1:]}.", {}, details)
    if tests.why_no_pages:
        sentence = f"Whether earlier clicks on a page make a difference is not tested: {tests.why_no_pages}."
        yield Reason("clicks-above-not-tested", NOTE, sentence)


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


def _by_attractiveness(fit: Fit, test: ScoreTest, *, doubted: bool) -> Reason:
    propensity = fit.free.propensity
    lowest = int(np.nanargmin(propensity))
    ratio = float(propensity[lowest] ** test.difference_of_logs)
    loss, attractive, others = ("less", "large", "small") if ratio > 1 else ("more", "small", "large")
    sentence = (
        f"Position matters {loss} for popular results than for others: at {cell_in_words(fit, lowest)} their "
        f"propensity is {ratio:.2g} times that of the others, so that one weight for both is too {attractive} for "
        f"popular results and too {others} for the others. If devices show positions differently, name them "
        "(--context); if the ranker knows the user or the time, say so (--stratify, --timestamp)."
    )
    details = f"{_denial(fit, doubted=doubted)} (p = {test.p_value_adjusted:.1g})"
    return Reason("popular-results-differ", STOP if doubted else CAUTION, sentence, {"ratio": ratio}, details)


def _by_clicks_above(fit: Fit, tests: ModelTests) -> Reason:
    details: list[str] = []
    figures: dict[str, float | str | None] = {}
    doubted = bool(tests.depends_on_clicks_above & tests.doubts)
    if CLICKS_ABOVE in tests.rejected and tests.clicks_above is not None:
        details.append(f"by the number of clicks above: p = {tests.clicks_above.p_value_adjusted:.1g}")
    figures |= {f"ratio_below_{row.clicks_above}_clicks": row.ratio for row in tests.by_clicks_above}
    parts = [f"{_by_number(tests.by_clicks_above)} clicks"] if CLICKS_ABOVE in tests.rejected else []
    if LAST_CLICK in tests.rejected and tests.last_click is not None:
        one = tests.last_click
        figures["ratio_directly_below_the_only_click"] = ratio = one.observed_clicks / one.expected_clicks
        parts.append(
            f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'} often than expected directly below the only click"
        )
        details.append(f"by the place of the last click: p = {one.p_value_adjusted:.1g}")
    sentence = f"Clicks depend on the clicks above: the same document is clicked {', and '.join(parts)}. "
    above = tests.clicks_above
    if tests.users_may_differ:
        sentence += (
            "If some users or devices click more readily than others, propensities are right as means (--context tells "
            "devices apart); if robots click, leave them out; if a click changes what is looked at below, weights are "
            "off: compare with --model ubm."
        )
    elif tests.averages_users:
        never = above is not None and not above.observed_clicks
        one_click = "No page has two clicks: the log keeps one, or users stop at a click. " if never else ""
        sentence += f"{one_click}Weights are off where pages differ in that: compare with --model ubm."
    elif above is not None and above.difference_of_logs > 0:
        sentence += (
            "Users who differ in how readily they click look like this, and then propensities below a click are off: "
            "use --model pbm, whose mean over users is right."
        )
    else:
        sentence += "Weights are off below clicks: `posbias evaluate LOGS --models` compares other click models."
    if doubted:
        details.insert(0, _denial(fit, doubted=doubted))
    severity = STOP if doubted else CAUTION
    return Reason("clicks-depend-on-clicks", severity, sentence, figures, "; ".join(details))


def _by_number(rows: Sequence[ClicksBelow]) -> str:
    """E.g. `1, 1.1 and 0.7 times as often as expected, below 0, 1 and 2`."""
    ratios, numbers = [f"{row.ratio:.2f}" for row in rows], [clicks_above_in_words(row) for row in rows]
    ratio, number = (" and ".join([", ".join(words[:-1]), words[-1]]) for words in (ratios, numbers))
    return f"{ratio} times as often as expected, below {number}"


def clicks_above_in_words(row: ClicksBelow) -> str:
    """E.g. `2`, `3 or more`."""
    return f"{row.clicks_above}{' or more' if row.clicks_above == MOST_ABOVE else ''}"


def _other_model(fit: Fit, others: OtherModels | None) -> Iterator[Reason]:
    """Which other click model explains the clicks, where one does so by more than chance."""
    if others is None or others.better is None:
        return
    best, fitted = others.better, fit.statistics.plan.model
    follow = "It has no propensity by position."
    if best.name in model_names():
        follow = f"Its propensities (--model {best.name}) hold where users do not differ in how readily they click."
    sentence = (
        f"Another click model predicts these clicks better: {best.name}. {follow} Compare them on the whole log: "
        f"posbias evaluate LOGS --models {fitted.name},{best.name} -o judged."
    )
    details = (
        f"held-out log-likelihood per impression {best.gain:.2g} (standard error {best.std_error:.1g}, for queries "
        f"like these) above that of {fitted.name}, {others.log_likelihood:.3f}"
    )
    severity = STOP if fitted.beside_position else CAUTION
    yield Reason(OTHER_MODEL, severity, sentence, {"model": best.name, "gain": best.gain}, details)


def _denial(fit: Fit, *, doubted: bool) -> str:
    """That the model does not hold, or may not."""
    name = fit.statistics.plan.model.name
    model = {"pbm": "The position-based model", "ubm": "The user browsing model"}.get(name, f"--model {name}")
    return f"{model} does not hold" if doubted else f"{model} may not hold"


def hidden_errors(fit: Fit, slope: float) -> Floats:
    """By how much each propensity is too low if relevance that only the ranker sees adds a slope, shape (K,)."""
    position = fit.statistics.position_of_cell
    return 1 - (position / position[fit.estimate.linkage.reference_of]) ** -slope


def _hidden(fit: Fit, rows: FromRows) -> Iterator[Reason]:
    """What relevance that only the ranker sees would do, and whether rivals on the page show that there is some."""
    named, hidden, position = rows.score is not None, rows.hidden, fit.statistics.position_of_cell
    advice = "" if named else " Name the score that it sorts by (--ranker-score COLUMN)."
    if hidden is None and not named:
        sentence = f"If the ranker knows more of relevance than these features, propensities are wrong.{advice}"
        yield Reason("ranker-may-know-more", CAUTION, sentence)
    if hidden is None:
        return
    cell = int(np.argmax(np.where(position <= NAMED_POSITION, position, 0)))
    error, least = (float(hidden_errors(fit, slope)[cell]) for slope in (hidden.plausible, hidden.least))
    severity = STOP if error > LARGEST_HIDDEN_ERROR else NOTE if named else CAUTION
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
    yield Reason("ranker-may-know-more", severity, sentence, {"position": int(position[cell]), "error": error})
    if least > LARGEST_HIDDEN_ERROR:
        sentence = (
            f"The ranker knows more of relevance than these features show: propensities are too low, at position "
            f"{position[cell]} by more than {LARGEST_HIDDEN_ERROR:.0%}. At the same position, documents are clicked "
            f"more often the better the others on their page are.{advice or ' Name more features (--feature).'}"
        )
        yield Reason("ranker-knows-more", STOP, sentence, {"position": int(position[cell]), "error": least})


def _rows(fit: Fit) -> Iterator[Reason]:
    """What an estimate from rows and their features rests on, and what features cannot see."""
    rows, test = fit.from_rows, fit.against_pairs
    if rows is None:
        return
    yield from _hidden(fit, rows)
    if rows.pages < rows.pages_in_all:
        sentence = f"Relevance is learnt from {rows.pages:,} of {counted(rows.pages_in_all, 'pages')} (--sample-pages)."
        yield Reason("pages-sampled", NOTE, sentence, {"pages": rows.pages, "of": rows.pages_in_all})
    if test is None:
        return
    figures, details = {"pairs": test.pairs}, f"p = {test.p_value:.1g}"
    if not test.rejected:
        sentence = f"Documents that were shown at several positions say the same ({counted(test.pairs, 'pairs')})."
        yield Reason("pairs-agree", GOOD, sentence, figures, details)
        return
    how = "faster" if test.slope < 0 else "more slowly"
    also = "" if rows.score is not None else ", or name the ranker's score (--ranker-score COLUMN)"
    sentence = (
        f"Documents that were shown at several positions ({counted(test.pairs, 'pairs')}) contradict the features, by "
        f"which propensities fall {how} with the position. The ranker knows more of the documents than these features "
        f"show, or these documents are unlike the others. Use --method conditional{also}."
    )
    yield Reason("pairs-contradict-features", STOP, sentence, figures, details)
