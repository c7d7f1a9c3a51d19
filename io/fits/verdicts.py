"""Reasons to trust or doubt a fit and its weights: conditions that select entries of `io/results/reasons.toml`."""

import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import scipy

from posbias.core.arrays.count_table import Floats, Integers
from posbias.core.counts.order import RowOrder
from posbias.core.counts.sufficient_statistics import SufficientStatistics
from posbias.core.errors import plural, population, printable
from posbias.core.estimators import get_estimator, get_method
from posbias.core.estimators.estimate import candidate_references
from posbias.core.estimators.methods import (
    ClickRateEstimator,
    ConditionalEstimator,
    JointEstimator,
    RandomizedEstimator,
)
from posbias.core.fit.arms import MOST_ARMS
from posbias.core.fit.diagnostics import NOTABLE
from posbias.core.fit.fit import LARGEST_MISFIT, MOST_CELLS_BESIDE, SUFFICIENT_CLICK_SHARE, Fit
from posbias.core.fit.model_tests import (
    ATTRACTIVENESS,
    CLICKS_ABOVE,
    LAST_CLICK,
    MOST_ABOVE,
    ClicksBelow,
    ModelTests,
    OtherModels,
    loss_by_position,
)
from posbias.core.fit.periods import FeedbackTest, PeriodChoice, PeriodLook, feedback_by_rows
from posbias.core.fit.plot_data import MOST_LINES_OF_CELLS
from posbias.core.models import model_names
from posbias.core.schema import POSITION, PREVIOUS_CLICK, Length
from posbias.core.shapes import FREE
from posbias.core.standard_errors.cluster import FEW_EFFECTIVE_CLUSTERS, t_quantile
from posbias.core.standard_errors.contrasts import LEVEL, ContrastTest
from posbias.core.theta.conditional import NO_CLICKS
from posbias.core.training.scales import LEVEL_OF_SCALES, ScalesOfContexts
from posbias.core.training.weights import WeightSummary
from posbias.io.log.sql import sql_joined, sql_name, sql_where
from posbias.io.results.conclusions import CAUTION, NOTE, STOP, Reason, Severity, reason, sentence

if TYPE_CHECKING:
    from posbias.core.evaluation.break_even import BreakEven

_MOST_LISTED = 6  # entries that a sentence enumerates


def cell_in_words(statistics: SufficientStatistics, number: int, *, context: bool = True) -> str:
    """Name a cell by its column values, with or without its context, e.g. `position 3, previous click 1`."""
    row = statistics.cells.row(number, named=True)
    names = statistics.axes if statistics.plan.cell else statistics.plan.model.cell_columns
    names += statistics.plan.context if context else ()
    return ", ".join(f"{printable(name).replace('_', ' ')} {label_in_words(row[name])}" for name in names)


def references_in_words(fit: Fit, references: Integers) -> str:
    """Name reference cells without their contexts, e.g. `position 1 or 2`."""
    if fit.statistics.plan.cell:
        return " or ".join(
            dict.fromkeys(cell_in_words(fit.statistics, int(cell), context=False) for cell in references)
        )
    return f"{POSITION} {' or '.join(map(str, np.unique(fit.statistics.position_of_cell[references])))}"


def context_in_words(fit: Fit, number: int) -> str:
    """Name the context of a cell by its values, e.g. `phone / Norway`."""
    row = fit.statistics.cells.row(number, named=True)
    return " / ".join(label_in_words(row[name]) for name in fit.statistics.plan.context)


def listed(entries: Sequence[str], rest: str) -> str:
    """Join the first six entries with commas; of more, name the manifest field `rest` that holds all."""
    more = len(entries) - _MOST_LISTED
    return ", ".join(entries[:_MOST_LISTED]) + (f" and {more} more (`{rest}` in manifest.json)" if more > 0 else "")


def label_in_words(value: object) -> str:
    """Format a value of a cell column; null is `(none)`."""
    return "(none)" if value is None else printable(str(value))


OTHER_MODEL = "other-model-better"
"""Code of the reason."""

_BY_LIKELIHOOD = {JointEstimator.name, ConditionalEstimator.name}
_NEARLY_ALL = 0.9995
_TWO_DECIMALS = 0.1
_ONE_PERCENT = 0.01
_HIDDEN_ERROR_POSITION = 10  # whose error by hidden relevance is reported; else the last position before it
_LARGEST_HIDDEN_ERROR = 0.25  # larger ones stop: see tests/benchmarks/README.md
_LARGEST_NAMED_FACTOR = 10.0  # larger errors are reported as "any factor"
_CLUSTER_UNITS = {
    "query": "queries",
    "pair": "pairs",
    "session": "sessions",
    "column": "values of {}",
    "two-way": "queries or values of {}",
}
NAMED = 5
"""Position whose attention the conclusion names; else the last known one before it."""


def fit_headline(fit: Fit) -> str:
    """Summarise a fit in one sentence: theta of position 5, or of the nearest known one, over all curves."""
    statistics, references = fit.statistics, fit.estimate.linkage.reference_of
    position, known = statistics.position_of_cell, np.isfinite(fit.estimate.propensity)
    compared = known & (position != position[references])
    curves = len(np.unique(statistics.curve_of_cell)) if statistics.plan.cell else 0
    if curves and not compared.any():
        compared = known & (np.arange(len(known)) != references)
    clicks = plural(float(statistics.cell_totals[1].sum()), "clicks")
    if not compared.any():
        return f"{clicks} say nothing of how much attention positions get"
    named = position[compared]
    at = int(named[named <= NAMED].max(initial=0) or named.min())
    if curves > MOST_LINES_OF_CELLS:  # no position stands for a grid
        compared = known & (np.arange(len(known)) != references)
    cells = np.flatnonzero(compared & ((position == at) | (curves > MOST_LINES_OF_CELLS)))
    if PREVIOUS_CLICK in statistics.cells.columns:
        cells = cells[:1]  # the last click above, ascending: none
    shares = fit.estimate.propensity[cells]
    low, high = (f"{share:.2f}" if share >= _TWO_DECIMALS else f"{share:.2g}" for share in (shares.min(), shares.max()))
    share = low if low == high else f"{low} to {high}"
    below = " below no click" if PREVIOUS_CLICK in statistics.cells.columns else ""
    by = f", by {', '.join(statistics.plan.curve)}" if low != high and curves <= MOST_LINES_OF_CELLS else ""
    on = plural(int(known.sum()), "cells") if curves else plural(len(np.unique(position[known])), "positions")
    who = "other cells get" if curves > MOST_LINES_OF_CELLS else f"position {at}{below} gets"
    return f"{clicks} on {on}: {who} {share} of the attention of {references_in_words(fit, references[cells])}{by}"


def fit_reasons(fit: Fit, others: OtherModels | None = None, time: str | None = None) -> list[Reason]:
    """Reasons for and against a fit, in the order of print.

    Args:
        fit: a fit of cells.
        others: held-out comparison with other click models; None if it was not made.
        time: the log's column of times, to name in an example query; None leaves the example out.
    """
    return [
        *_estimate_reasons(fit),
        *([reason("click-rates")] if fit.estimate.method == ClickRateEstimator.name else ()),
        *_cluster_reasons(fit),
        *_feedback_reasons(fit),
        *_arm_reasons(fit),
        *_drift_reasons(fit),
        *_change_reasons(fit, time),
        *_textbook_em_reasons(fit),
        *_placement_reasons(fit),
        *model_reasons(fit.statistics, fit.free.propensity, fit.model_tests),
        *_feature_reasons(fit),
        *_shape_and_bin_reasons(fit),
        *_cell_form_reasons(fit),
        *_cell_column_reasons(fit),
        *_other_model_reasons(fit, others),
        *_difference_reasons(fit),
    ]


def _estimate_reasons(fit: Fit) -> Iterator[Reason]:
    """Convergence, the reference, and propensities that are unknown or rest on the shape alone."""
    estimate, linkage, known = fit.estimate, fit.estimate.linkage, np.isfinite(fit.estimate.propensity)
    if not estimate.converged:
        code = "not-converged.unchecked" if fit.options.tolerance == 0 else "not-converged"
        yield reason(code, {"iterations": float(estimate.iterations)}, f"method {estimate.method}")
    if fit.joint is not None and fit.joint is not estimate and not fit.joint.converged:
        yield reason("textbook-em-not-converged", {"iterations": float(fit.joint.iterations)})
    first = int(candidate_references(fit.statistics, ())[0])
    if not linkage.identified[first] and not fit.statistics.plan.context:
        first, reference = (cell_in_words(fit.statistics, number) for number in (first, int(linkage.references[0])))
        yield reason("other-reference", first=first, reference=reference)
    by_shape_alone = int((known & ~linkage.identified).sum())
    if by_shape_alone:
        what = "product form" if fit.statistics.plan.cell else "shape"
        yield reason("shape-alone", {"propensities": by_shape_alone, "of": len(known)}, what=what)
    lost, share = int((~known).sum()), fit.click_share
    if lost:
        few, cells = share < SUFFICIENT_CLICK_SHARE, fit.statistics.cells
        reasons = zip(linkage.reason, known, strict=True)
        unlinked = pl.Series([why != NO_CLICKS and not is_known for why, is_known in reasons])
        values = [  # values of cell columns all of whose cells are unknown for lack of linking documents
            f"{printable(name)} = {label_in_words(value)}"
            for name in fit.statistics.plan.cell
            for value in list[object](cells[name].unique(maintain_order=True))
            if unlinked.filter(cells[name].eq_missing(value)).all()
        ]
        yield reason(
            "not-identified",
            {"unknown": lost, "of": len(known), "click_share": share},
            severity=STOP if few else CAUTION,
            columns=cells.width > 1,
            share=f"{share:.1%}" if share == 1 or share < _NEARLY_ALL else "more than 99.9%",
            few=few,
            what_links=sentence("what-links", values=listed(values, "propensities")) if values else "",
        )


def _cluster_units(fit: Fit) -> str:
    """Noun, in the plural, of the clusters of the standard errors."""
    return _CLUSTER_UNITS[fit.estimate.errors_by or "query"].format(", ".join(fit.statistics.plan.clusters))


def _test_details(test: ContrastTest | None, fit: Fit) -> str:
    """Format the p-value of a test and the number of clusters, e.g. `p = 0.03, 467 queries`."""
    units = plural(fit.estimate.n_clusters, _cluster_units(fit))
    return units if test is None else f"p = {test.p_value:.1g}, {units}"


def interval_scope(fit: Fit) -> str:
    """Sentence on the population that the intervals of a fit hold for."""
    if fit.estimate.errors_by == "session":
        return population("more sessions of these queries")
    return population(f"{_cluster_units(fit).replace(' or ', ' and ')} like these")


def _cluster_reasons(fit: Fit) -> Iterator[Reason]:
    """Intervals that rest on fewer than `FEW_EFFECTIVE_CLUSTERS` effective clusters."""
    estimate, by_query = fit.estimate, fit.estimate.errors_by == "query"
    known = estimate.intervals.effective_clusters[estimate.intervals.std_error > 0]
    few = known[known < FEW_EFFECTIVE_CLUSTERS]
    if not len(few):
        return
    low, high = f"{few.min():.0f}", f"{few.max():.0f}"
    yield reason(
        "few-queries",
        {"worth_least": float(few.min()), "worth_most": float(few.max())},
        units=_cluster_units(fit),
        intervals="the intervals are" if len(few) == len(known) else f"{len(few)} of {len(known)} intervals are",
        worth=low if low == high else f"{low} to {high}",
        queries=by_query,
        by_column=by_query
        and "two-way" in get_estimator(estimate.method).clusters
        and fit.options.shape == FREE
        and not fit.options.bootstrap,
    )


# --- feedback: whether the ranker learns from the clicks ---

_WINDOW: dict[Length, str] = {"none": "the whole log", "week": "a week", "day": "a day", "hour": "an hour"}
_LOSSLESS_RATIO = 1.005  # the largest ratio of standard errors that rounds to 1.00


def period_choice_in_words(choice: PeriodChoice) -> str:
    """Explain the choice of periods in sentences; empty if there was no choice."""
    if not choice.looks:
        return ""
    case, survivor = "" if choice.used == "none" else ".apart", choice.survivor
    estimated = sentence(f"estimated{case}", length=choice.used)
    if survivor is not None and survivor.feedback is not None:
        moved = " and ".join(_WINDOW[look.length] for look in choice.looks if look.outcome == "feedback")
        moved = moved and f" (within {moved} they do)"
        values = {"within": _WINDOW[choice.used], "moved": moved, "movement": _movement_clause(survivor.feedback)}
        return sentence("why-these-periods", estimated=estimated, **values)
    reasons = "; ".join(f"within {_WINDOW[look.length]} {_objection(look)}" for look in choice.looks)
    cost = sentence("cost-of-periods", lossless=choice.error_ratio < _LOSSLESS_RATIO, ratio=choice.error_ratio)
    cost = f", {cost}" if choice.used != "none" and len(choice.looks) > 1 else ""
    return f"{estimated}{cost}. {reasons[0].upper()}{reasons[1:]}."


def _objection(look: PeriodLook) -> str:
    """Explain why a period length was rejected."""
    test, case = look.feedback, look.outcome.replace(" ", "-")
    if look.outcome == "says too little":
        if test is None or not np.isfinite(test.missed_bias):
            case = "no-movement"
        elif not test.enough:
            case = "too-small"
        else:
            case = "in-doubt" if test.largest_bias > look.slope_width else "halves-may-differ"
    elif look.outcome not in {"nothing to compare", "cannot be looked into"}:
        case = "clicks-move" if test is not None and test.moves else "halves-differ"
    return sentence(
        f"why-not-these-periods.{case}",
        log=look.length == "none",
        move="" if test is None else _shift_in_words(test.move),
        p_value=np.nan if test is None else test.p_value,
        missed=np.nan if test is None else test.missed_bias,
        largest=np.nan if test is None else test.largest_bias,
        width=look.slope_width,
        p_of_halves=np.nan if look.halves is None else look.halves.p_value,
    )


def _movement_clause(test: FeedbackTest) -> str:
    """Sentence on how far documents move after clicks, with its interval and the smallest detectable bias."""
    reach = float(scipy.special.stdtrit(test.degrees, 1 - LEVEL / 2)) * test.std_error
    low, high = 100 * (test.move - reach), 100 * (test.move + reach)
    return sentence("movement", move=_shift_in_words(test.move), low=low, high=high, missed=test.missed_bias)


def _shift_in_words(move: float) -> str:
    """Format a relative change of rank, e.g. `1.2 % higher`."""
    return f"{100 * abs(move):.2g} % {'higher' if move >= 0 else 'lower'}"


def _feedback_reasons(fit: Fit) -> Iterator[Reason]:
    """Evidence of feedback from the order of documents over time, or over rows if the log has no times."""
    if fit.statistics.plan.period is None:
        if get_method(fit.estimate.method).uses_strata:
            arms_agree = fit.arms is not None and fit.arms.enough and not fit.arms.rejected
            yield row_order_reason(fit.statistics.row_order, NOTE if arms_agree else CAUTION)
        return
    period, start = fit.period, f"--period {fit.options.period}: "
    details, last = start + period_choice_in_words(period), period.looks[-1] if period.looks else None
    if last is None:
        return
    if period.survivor is not None:
        first, _, rest = period_choice_in_words(period).partition(". ")
        yield reason("clicks-do-not-move-documents", {}, start + rest, why=first)
        return
    helps = {"nothing to compare": "what-helps.beyond-comparison"}.get(
        last.outcome, "what-helps.beyond-times" if last.length == "hour" else "what-helps"
    )
    what_helps = sentence(helps, within=_WINDOW[last.length])
    if last.outcome == "little feedback" and last.feedback is not None:
        yield _little_feedback(last.feedback, details)
    elif period.claims and fit.options.period != "auto":
        yield reason("ranker-may-learn.within", {}, details, within=_WINDOW[period.used], why=_objection(last))
    elif period.claims or not period.feedback_is_sure:
        yield reason("ranker-may-learn", {}, details, what_helps=what_helps)
    else:
        drifts = any(look.feedback is not None and look.feedback.drifts for look in period.looks)
        yield reason("ranker-learns.or-age" if drifts else "ranker-learns", {}, details, what_helps=what_helps)


def row_order_reason(order: RowOrder | None, open_question: Severity = CAUTION) -> Reason:
    """Evidence of feedback from the row order of a log without times.

    Args:
        order: sums over rows in their order; None if rows are unordered or nothing can be compared.
        open_question: severity if only times could settle the question.
    """
    test = feedback_by_rows(order)
    if test is not None and test.rejected:
        return reason("ranker-learns.by-rows", {"move": test.move}, _movement_clause(test))
    if test is not None and test.moves:
        return _little_feedback(test, _movement_clause(test))
    details = "" if test is None else f"By the order of the rows: {_movement_clause(test)}"
    in_order = test is not None and test.enough and order is not None and order.may_be_time
    return reason("rows-in-order" if in_order else "ranker-not-tested", {}, details, severity=open_question)


def feedback_before_a_run(order: RowOrder | None) -> list[Reason]:
    """Warn before a fit, by row order, that the ranker may learn from the clicks; empty if documents do not move."""
    test = feedback_by_rows(order)
    if test is None or not test.moves:
        return []
    return [reason("ranker-may-learn.before-a-run", {"move": test.move}, _movement_clause(test))]


def _little_feedback(test: FeedbackTest, details: str) -> Reason:
    """Reason for movement after clicks whose bias is small."""
    figures = {"move": test.move, "error": NAMED**test.bias - 1}
    return reason("ranker-learns-little", figures, details, position=NAMED)


def _arm_reasons(fit: Fit) -> Iterator[Reason]:
    """Test of the estimate against movement between experiment arms, which are assigned at random."""
    arms, test, plan = fit.statistics.arms, fit.arms, fit.statistics.plan
    if arms is None or fit.estimate.method != ConditionalEstimator.name:
        return
    names, column = arms.drop_nulls()[plan.arms[0]], printable(plan.arms[0])
    obstacles = {
        "that takes counts without weights or --decay": plan.weighted,
        f"the log has one ({label_in_words(names.first())})": len(names) == 1,
        "no row has one": not len(names),
        f"it has {len(names):,}, and {MOST_ARMS} are the most": len(names) > MOST_ARMS,
        f"there are more than {MOST_CELLS_BESIDE:,} propensities": fit.statistics.n_cells > MOST_CELLS_BESIDE,
    }
    for obstacle in (obstacle for obstacle, holds in obstacles.items() if holds):
        yield reason("arms-not-tested", column=column, why=obstacle)
        return
    # position 5, else the last identified one before it, else the first identified one
    linkage, positions = fit.free.linkage, fit.statistics.position_of_cell
    compared = positions[linkage.identified & (positions != positions[linkage.reference_of])]
    position = int(compared[compared <= NAMED].max(initial=0) or compared.min(initial=NAMED))
    figures: dict[str, float | str | None] = {"position": position}
    if test is None:
        yield reason("arms-say-too-little", figures, column=column)
        return
    missed = f", {test.missed_slope:.2g} shows in four of five such logs" if np.isfinite(test.missed_slope) else ""
    levels = " : ".join(f"{level:.3g}" if np.isfinite(level) else "?" for level in test.levels)
    values = {"p_value": test.p_value, "difference": test.difference, "strength": test.strength}
    details = sentence("arms-details", **values, missed=missed, levels=levels)
    log_error = test.missed_slope * np.log(position)
    if test.rejected and (test.apart or test.bent is None):
        figures["strength"] = test.strength
        yield reason(f"arms-contradict.{'apart' if test.apart else 'weak'}", figures, details, column=column)
    elif test.rejected and test.bent is not None:
        cell = int(np.flatnonzero(positions == position)[0])
        ours, theirs = float(fit.free.propensity[cell]), float(test.bent.propensity[cell])
        figures |= {"strength": test.bent.strength, "propensity": ours, "by_arms": theirs}
        yield reason("arms-contradict", figures, details, column=column, faster=theirs < ours)
    elif test.enough:
        yield reason("arms-agree", {**figures, "error": float(np.expm1(log_error))}, details, column=column)
    elif log_error < np.log(_LARGEST_NAMED_FACTOR):
        figures |= {"error": float(np.expm1(log_error)), "strength": test.strength}
        yield reason("arms-say-too-little.by", figures, details, column=column)
    else:
        yield reason("arms-say-too-little", figures, details, column=column)


def _drift_reasons(fit: Fit) -> Iterator[Reason]:
    """Documents that only fall, or only rise, within the periods of the estimate."""
    test = next((look.feedback for look in fit.period.looks if look.length == fit.period.used), None)
    position = fit.statistics.position_of_cell
    known = np.flatnonzero(np.isfinite(fit.estimate.propensity))
    if test is None or not test.drifts or not len(known):
        return
    lowest = int(known[position[known].argmax()])
    figures = {"drift": test.drift, "factor": float(position[lowest] ** abs(test.drift))}
    yield reason("documents-drift", figures, cell=cell_in_words(fit.statistics, lowest), falling=test.drift > 0)


def _change_reasons(fit: Fit, time: str | None) -> Iterator[Reason]:
    """Change of propensities from some day on."""
    change = fit.change
    if change is None or not change.matters:
        return
    cell, day = change.test.largest, change.first_day
    figures = {"day": day, "before": float(change.before[cell]), "after": float(change.after[cell])}
    example = "" if time is None else ", e.g. " + sql_where(f"CAST({sql_name(time)} AS DATE) >= '{day}'")
    details = _test_details(change.test, fit)
    yield reason("positions-changed", figures, details, cell=cell_in_words(fit.statistics, cell), example=example)


# --- tests of the model and of further assumptions ---


def _textbook_em_reasons(fit: Fit) -> Iterator[Reason]:
    """Bias of joint EM against the conditional estimate; for comparison only unless joint EM is the estimate."""
    comparison, is_joint = fit.comparison, fit.estimate.method == JointEstimator.name
    if comparison is None or not (comparison.biased or fit.estimate.method in _BY_LIKELIHOOD):
        return
    if comparison.biased:
        code = "textbook-em-off" if is_joint else "textbook-em-off.beside"
    elif comparison.test.n_contrasts:
        code = "textbook-em-agrees" + ("" if comparison.largest_difference <= NOTABLE else ".by-chance")
    else:
        return
    cause = "few clicks per document"
    if fit.causes is not None and fit.joint is not None and fit.joint.joint is not None:
        without = fit.causes.largest_without_prior(np.isfinite(comparison.test.p_values))
        prior = fit.joint.joint.options.attractiveness_prior
        if without < max(comparison.largest_difference / 2, NOTABLE):
            cause = f"{'' if without <= NOTABLE else 'mostly '}by its prior of {prior.mean:g}:{prior.strength:g}"
    details = f"joint EM against the conditional estimate, {cause}: p = {comparison.test.p_value:.1g}"
    yield reason(code, {"largest_difference": comparison.largest_difference}, details)


def _placement_reasons(fit: Fit) -> Iterator[Reason]:
    """Tests that randomised rows were placed at random."""
    if fit.estimate.method == RandomizedEstimator.name and not fit.placements:
        yield reason("placement-not-checked.weighted")
    for test in fit.placements:
        figures, details = {"documents": test.documents, "queries": test.queries}, f"p = {test.p_value:.2g}"
        if not test.documents:
            yield reason("placement-not-checked", figures, rows=test.rows)
        if test.p_value < LEVEL:
            details += f", correlation {test.correlation:.2f}"
            yield reason("placement-not-random", figures, details, rows=test.rows)
        elif test.documents:
            yield reason("placement-random", figures, details, rows=test.rows)


def model_reasons(statistics: SufficientStatistics, theta: Floats, tests: ModelTests | None) -> Iterator[Reason]:
    """Passed and failed score tests of the click model.

    Args:
        statistics: counts of the log.
        theta: free estimate under the model, shape (K,).
        tests: None if none could be made.
    """
    if tests is None or not tests.results:
        return
    model = statistics.plan.model.name
    if ATTRACTIVENESS in tests.rejected and tests.attractiveness is not None:
        test, doubted = tests.attractiveness, ATTRACTIVENESS in tests.doubts
        log_ratio = test.difference_of_logs * loss_by_position(theta)
        cell = int(np.nanargmax(np.abs(log_ratio)))
        ratio = float(np.exp(log_ratio[cell]))
        details = f"{_model_doubt(model, doubted=doubted)} (p = {test.p_value_adjusted:.1g})"
        severity = STOP if doubted else CAUTION
        values = {"cell": cell_in_words(statistics, cell), "less": test.difference_of_logs < 0, "higher": ratio > 1}
        yield reason("popular-results-differ", {"ratio": ratio}, details, severity=severity, **values)
    if tests.depends_on_clicks_above:
        yield _clicks_above_reason(model, tests)
    passed = {name: test for name, test in tests.results.items() if not test.rejected}
    if passed:
        above = "clicks above the last one make no difference"
        if CLICKS_ABOVE not in passed:
            above = "it makes no difference where the last click above was"
        elif tests.averages_users:
            above = "earlier clicks on a page make no difference"
        alike = "popular and unpopular results lose clicks with position alike"
        words = ", and ".join([alike] * (ATTRACTIVENESS in passed) + [above] * bool(passed.keys() - {ATTRACTIVENESS}))
        start = "The rest of the model check passed" if tests.rejected else "Model check passed"
        p_value = min(test.p_value_adjusted for test in passed.values())
        matter = "earlier clicks matter" if tests.averages_users else "users differ in how readily they click"
        causes = {"users trust high positions": {ATTRACTIVENESS}, matter: {CLICKS_ABOVE, LAST_CLICK}}
        missed = list[str]()  # largest errors that passed tests could have missed, of causes no other test rejects
        for cause, names in causes.items():
            errors = [passed[name].largest_missed_error for name in names & passed.keys()]
            if errors and not names & tests.rejected:
                known = [error for error in errors if error is not None]
                small = len(known) == len(errors) and max(known) < np.log(_LARGEST_NAMED_FACTOR)
                size = f"a factor of up to {np.exp(max(known)):.3g}" if small else "any factor"
                missed.append(f"by {size} if {cause}")
        details = f"{start} (p = {p_value:.1g})."
        details += f" It could have missed that propensities are off {', or '.join(missed)}." if missed else ""
        yield reason("model-check-passed", {}, details, passed=f"{words[0].upper()}{words[1:]}")
    if tests.why_no_pages:
        yield reason("clicks-above-not-tested", why=tests.why_no_pages)


def _model_doubt(name: str, *, doubted: bool) -> str:
    """Sentence that the model does not hold, or may not."""
    model = {"pbm": "The position-based model", "ubm": "The user browsing model"}.get(name, f"--model {name}")
    return f"{model} does not hold" if doubted else f"{model} may not hold"


def _clicks_above_reason(model: str, tests: ModelTests) -> Reason:
    """Reason for clicks that depend on the number or the place of clicks above."""
    doubted, above = bool(tests.depends_on_clicks_above & tests.doubts), tests.clicks_above
    details, parts, rows = [_model_doubt(model, doubted=doubted)] if doubted else [], list[str](), tests.by_clicks_above
    figures: dict[str, float | str | None] = {f"ratio_below_{row.clicks_above}_clicks": row.ratio for row in rows}
    if CLICKS_ABOVE in tests.rejected:
        columns = [f"{row.ratio:.2f}" for row in rows], [clicks_above_in_words(row) for row in rows]
        ratio, number = (" and ".join([", ".join(words[:-1]), words[-1]]) for words in columns)
        parts.append(f"{ratio} times as often as expected, below {number} clicks")
        if above is not None:
            details.append(f"by the number of clicks above: p = {above.p_value_adjusted:.1g}")
    if LAST_CLICK in tests.rejected and tests.last_click is not None:
        last = tests.last_click
        figures["ratio_directly_below_the_only_click"] = ratio = last.observed_clicks / last.expected_clicks
        than = f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'} often than expected"
        parts.append(f"{than} directly below the only click")
        details.append(f"by the place of the last click: p = {last.p_value_adjusted:.1g}")
    case = ""
    if tests.users_may_differ:
        case = ".of-users"
    elif tests.averages_users:
        case = ".one-click" if above is not None and not above.observed_clicks else ".of-pages"
    elif above is not None and above.difference_of_logs > 0:
        case = ".readiness"
    code, severity = f"clicks-depend-on-clicks{case}", STOP if doubted else CAUTION
    return reason(code, figures, "; ".join(details), severity=severity, parts=", and ".join(parts))


def clicks_above_in_words(row: ClicksBelow) -> str:
    """Format the number of clicks above, e.g. `2`, `3 or more`."""
    return f"{row.clicks_above}{' or more' if row.clicks_above == MOST_ABOVE else ''}"


def _other_model_reasons(fit: Fit, others: OtherModels | None) -> Iterator[Reason]:
    """The best other click model, if it predicts held-out clicks significantly better."""
    if others is None or others.better is None:
        return
    best, fitted = others.better, fit.statistics.plan.model
    values = {"gain": best.gain, "std_error": best.std_error, "than": fitted.name, "of": others.log_likelihood}
    code = f"{OTHER_MODEL}.of-propensities" if best.name in model_names() else OTHER_MODEL
    severity = STOP if fitted.beside_position else CAUTION
    details, figures = sentence("held-out-gain", **values), {"model": best.name, "gain": best.gain}
    yield reason(code, figures, details, severity=severity, fitted=fitted.name)


def hidden_errors(fit: Fit, slope: float) -> Floats:
    """Relative error 1 - (k / k_reference)^-slope of each propensity under hidden relevance of this slope, (K,)."""
    position = fit.statistics.position_of_cell
    return 1 - (position / position[fit.estimate.linkage.reference_of]) ** -slope


def _feature_reasons(fit: Fit) -> Iterator[Reason]:
    """Limits of an estimate from features: hidden relevance, sampled pages, and disagreement with repeated pairs."""
    rows, test = fit.from_rows, fit.against_pairs
    if rows is None:
        return
    named, hidden, positions = rows.score is not None, rows.hidden, fit.statistics.position_of_cell
    if hidden is not None:  # errors under plausible hidden relevance, and under the least that rivals imply
        cell = int(np.argmax(np.where(positions <= _HIDDEN_ERROR_POSITION, positions, 0)))
        error, least = (float(hidden_errors(fit, slope)[cell]) for slope in (hidden.plausible, hidden.least))
        severity, position = STOP if error > _LARGEST_HIDDEN_ERROR else NOTE if named else CAUTION, int(positions[cell])
        code = "ranker-may-know-more" + (".by-nothing" if f"{error:.0%}" == "0%" else "")  # else read as a promise
        yield reason(code, {"position": position, "error": error}, severity=severity, named=named)
        if least > _LARGEST_HIDDEN_ERROR:
            figures = {"position": position, "error": least}
            yield reason("ranker-knows-more", figures, least=_LARGEST_HIDDEN_ERROR, named=named)
    elif not named:
        yield reason("ranker-may-know-more.unknown", named=named)
    if rows.pages < rows.pages_in_all:
        yield reason("pages-sampled", {"pages": rows.pages, "of": rows.pages_in_all})
    if test is not None:
        code = "pairs-contradict-features" if test.rejected else "pairs-agree"
        figures, faster = {"pairs": test.pairs}, test.slope < 0
        yield reason(code, figures, f"p = {test.p_value:.1g}", named=named, faster=faster)


def _shape_and_bin_reasons(fit: Fit) -> Iterator[Reason]:
    """Tests of the chosen shape, and of equal propensities within position bins."""
    shape, bins = fit.shape, fit.bins
    if shape is not None and shape.misfit:
        test, difference = shape.test, float(np.exp(shape.test.difference))
        values = dict(zip(("position", "next_position"), shape.misfit, strict=False))
        code = f"shape-does-not-fit.{fit.options.shape}"
        yield reason(code, {"difference": difference}, f"p = {test.p_value:.2g}", **values)
    elif shape is not None and shape.test.n_contrasts:
        references = fit.estimate.linkage.references
        eta = [
            f"eta {value:.3f}, standard error {error:.3f}"
            for value, error in zip(shape.eta[references], shape.eta_error[references], strict=True)
            if np.isfinite(value) and np.isfinite(error)
        ]
        yield reason("shape-fits", {}, "; ".join([*eta, _test_details(shape.test, fit)]), shape=fit.options.shape)
    if not fit.statistics.plan.position_bins:
        return
    if bins is None or not bins.contrasts.n_contrasts:
        yield reason("bins-not-tested")
    elif bins.contrasts.rejected:
        test, (first, other) = bins.contrasts, bins.positions[bins.contrasts.largest]
        figures = {"ratio": float(np.exp(test.difference))}
        yield reason("bins-do-not-fit", figures, f"p = {test.p_value:.2g}", first=first, other=other)
    else:
        yield reason("bins-fit", {}, _test_details(bins.contrasts, fit))


_TWO_DIGITS = 9.95  # per cent, from which on there are no decimals


def _cell_form_reasons(fit: Fit) -> Iterator[Reason]:
    """Test of the product form: effects of position and of further cell columns multiply."""
    statistics, form, product = fit.statistics, fit.form, fit.cell_form == "product"
    if not statistics.plan.cell or fit.estimate.conditional is None or fit.shape is not None:
        return
    *names, last = (printable(name).replace("_", " ") for name in statistics.axes)
    values: dict[str, Any] = {"axes": f"{', '.join(names)} and {last}"}
    if statistics.cells.select(statistics.plan.cell).n_unique() == 1:  # a cell is a position
        return
    if form is None or not form.test.n_contrasts:
        yield reason("cell-form.not-tested", **values)
        return
    context, test, axes = statistics.context_of_cell, form.test, statistics.axes_of_cell
    effects = [len(np.unique(np.stack([context, axis]), axis=1).T) for axis in axes.T]
    values |= {"cells": len(axes), "numbers": sum(effects) - (len(effects) - 1) * len(np.unique(context))}
    # The largest deviation among cells that reject the product; cells alone at their position hardly deviate.
    off = np.where(test.p_values < LEVEL, form.log_theta - np.log(fit.free.propensity), np.nan)
    where = int(np.nanargmax(np.abs(off))) if test.rejected else test.largest
    values |= {"where": cell_in_words(fit.statistics, where), "missed": _detectable(fit, test, np.arange(len(axes)))}
    own = "cell-form.product-fits" if fit.options.cell_form == "free" else "cell-form.little-known"
    code = "cell-form" if product else own
    if test.rejected:
        code = "product-does-not-fit" if product else "cell-form.free"
    ratio = float(np.exp(off[where] if test.rejected else test.difference))
    yield reason(code, {"ratio": ratio}, _test_details(test, fit), **values)


def _cell_column_reasons(fit: Fit) -> Iterator[Reason]:
    """Differences of theta by each further cell column: value by value, or the extremes of a grid."""
    statistics, estimate, many = fit.statistics, fit.estimate, dict[str, str]()
    for column in fit.cell_columns:
        gaps, by, details = column.differences, printable(column.column), _test_details(column.differences.test, fit)
        if not gaps.test.n_contrasts:
            continue
        if not gaps.test.rejected:
            small = float(np.nanmedian(gaps.test.detectable)) <= LARGEST_MISFIT
            code = "cells-alike" if small else "cells-alike.little-known"
            yield reason(code, {}, details, by=by, missed=_detectable(fit, gaps.test, column.cells))
            continue
        # Compare curves along the first of the other axes, at the reference's values of the rest.
        along, *rest = [axis for axis, name in enumerate(statistics.axes) if name != column.column]
        place, reference = statistics.axes_of_cell, estimate.linkage.reference_of[column.cells]
        beside = (place[column.cells][:, rest] == place[reference][:, rest]).all(axis=1) & np.isfinite(gaps.difference)
        if len(set(statistics.cells[column.column])) > MOST_LINES_OF_CELLS or not beside.any():
            many[by] = details
            continue
        reach, name, gets = t_quantile(gaps.degrees) * gaps.std_error, statistics.axes[along], dict[str, list[str]]()
        ends = 100 * np.exp(np.stack([gaps.difference, gaps.difference - reach, gaps.difference + reach]))
        for at in np.flatnonzero(beside):
            row = statistics.cells.row(int(column.cells[at]), named=True)
            value = " / ".join(label_in_words(row[name]) for name in (column.column, *statistics.plan.context))
            what = printable(name).replace("_", " ")
            what = f"every {what}" if fit.cell_form == "product" else f"{what} {label_in_words(row[name])}"
            gets.setdefault(value, []).append(f"{what} gets {_percentage(*ends[:, at])}")
        each = [f"with {by} = {value}, {' and '.join(dict.fromkeys((on[0], on[-1])))}" for value, on in gets.items()]
        shares = listed(each, "propensities")
        base = label_in_words(statistics.cells[column.column][int(column.against[0])])
        yield reason("cells-differ", {}, details, shares=f"{shares[0].upper()}{shares[1:]}", by=by, base=base)
    if many:
        theta, intervals, shares = estimate.propensity, estimate.intervals, list[str]()
        ends = {"most": int(np.nanargmax(theta)), "least": int(np.nanargmin(theta))}
        reference = int(estimate.linkage.reference_of[ends["most"]])
        for which, at in ends.items():
            if at != reference:
                share = _percentage(*(100 * float(values[at]) for values in (theta, intervals.low, intervals.high)))
                shares.append(f"the {which} goes to {cell_in_words(fit.statistics, at)}: {share}")
        values: dict[str, Any] = {"by": " and ".join(many), "reference": cell_in_words(fit.statistics, reference)}
        yield reason("cells-differ.many", {}, "; ".join(many.values()), shares=", and ".join(shares), **values)


def _percentage(value: float, low: float, high: float) -> str:
    """Format a percentage with its interval, e.g. `40 % (35 to 46)`; no interval if low >= high or it is NaN."""
    share, *ends = (f"{number:.0f}" if number >= _TWO_DIGITS else f"{number:.2g}" for number in (value, low, high))
    return f"{share} %" + (f" ({' to '.join(ends)})" if low < high else "")


def _detectable(fit: Fit, test: ContrastTest, cells: Integers) -> str:
    """Smallest and largest factor detectable with power 0.8 over contrasts, each with its cell."""
    known = np.flatnonzero(np.isfinite(test.detectable))
    ends = dict.fromkeys(int(known[pick(test.detectable[known])]) for pick in (np.argmin, np.argmax))
    return " to ".join(
        f"{np.exp(test.detectable[at]):.2f} ({cell_in_words(fit.statistics, int(cells[at]))})" for at in ends
    )


# --- differences between positions, contexts and clicks above ---

_FEWEST_OF_LIST = 5  # at and above, a flat curve is a caution: people read lists from the top


def _difference_reasons(fit: Fit) -> Iterator[Reason]:
    """Tests of differences between contexts, positions and clicks above."""
    contexts, effect, previous = fit.contexts, fit.position_effect, fit.previous_click
    by = ", ".join(fit.statistics.plan.context)
    if contexts is not None and contexts.n_contrasts:
        details = _test_details(contexts, fit)
        if contexts.rejected:
            yield reason("contexts-differ", {}, details, by=by)
        else:
            yield reason("contexts-alike", {}, f"{details}. {_detectable_of_contexts(fit, contexts)}", by=by)
    position, linkage = fit.statistics.position_of_cell, fit.estimate.linkage
    known = np.flatnonzero(linkage.identified)
    references = np.unique(linkage.reference_of[known])
    if contexts is not None and len(np.unique(position[references])) > 1:  # contexts relative to different positions
        relative = [f"position {position[cell]} for {context_in_words(fit, int(cell))}" for cell in references]
        values: dict[str, Any] = {"by": by, "relative": listed(relative, "references")}
        shared = np.unique(np.stack([position[known], linkage.reference_of[known]]), axis=1)[0]
        common, n_contexts = np.unique(shared, return_counts=True)
        most, number = int(n_contexts.max()), int(common[np.argmax(n_contexts)])
        which = "all" if most == len(references) else f"{most} of {len(references)}"
        code = "contexts-not-compared" + ("" if most > 1 else ".none-shared")
        yield reason(code, {"reference": number} if most > 1 else {}, which=which, **values)
    if effect is not None and effect.n_contrasts and not effect.rejected:
        intervals, flat = fit.estimate.intervals, int(np.isfinite(fit.estimate.propensity).sum()) >= _FEWEST_OF_LIST
        missed = {"low": float(np.nanmin(intervals.low)), "high": float(np.nanmax(intervals.high))}
        code = "no-position-effect.of-list" if flat else "no-position-effect"
        yield reason(code, missed, _test_details(effect, fit), severity=CAUTION if flat else NOTE)
    if previous is None or not previous.n_contrasts:
        return
    silence, details = fit.silence, _test_details(previous, fit)
    if not previous.rejected:
        yield reason("clicks-above-do-not-matter", {}, details)
    elif silence is None or not len(silence.cells):
        yield reason("clicks-above-matter", {}, details)
    else:  # too few second clicks
        number, below = len(silence.cells), fit.statistics.cells.filter(pl.col(PREVIOUS_CLICK) > 0).height
        none = f"none of the {below} propensities below a click has"
        which, expected = none if number == below else f"{number} of {below} have not", np.nansum(silence.expected)
        yield reason("one-click-per-page", {"expected_clicks": float(expected)}, details, which=which)


def _detectable_of_contexts(fit: Fit, test: ContrastTest) -> str:
    """Sentence on the factors by which contexts may differ undetected (power 0.8): least and most of each context."""
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
    return sentence("missed-between-contexts", missed=listed(sentences, "contexts_found_by_four_of_five"))


# --- weights ---


def weight_reasons(summary: WeightSummary) -> list[Reason]:
    """Reasons against training on weighted clicks."""
    weighted, lost = summary.clicks_weighted, summary.clicks_without_propensity
    if not weighted:
        return [reason("nothing-to-learn", {"clicks": lost}, any=bool(lost))]
    left_out = [unweighted_reason(lost, weighted + lost, "they are left out of the training files")] if lost else []
    return left_out + heavy_weight_reasons(summary.pareto_k, summary.pareto_k_at_most)


def pareto_clause(pareto_k: float | None, at_most: float | None) -> str:
    """Clause on Pareto k of the weights and its limit `at_most`; empty if no click is weighted."""
    if at_most is None:
        return ""
    if pareto_k is None:
        return "; too few different weights for Pareto k"
    below, decide = ("below", "do not decide") if pareto_k < at_most else ("not below", "decide")
    return f"; Pareto k {pareto_k:.2f} ({below} {at_most:.2f}: a few clicks {decide})"


def heavy_weight_reasons(pareto_k: float | None, at_most: float | None) -> list[Reason]:
    """Warn if a few large weights dominate: Pareto k >= `at_most`."""
    if pareto_k is None or at_most is None or pareto_k < at_most:
        return []
    return [reason("heavy-weights", {"pareto_k": pareto_k, "at_most": at_most})]


def unweighted_reason(lost: float, clicks: float, consequence: str) -> Reason:
    """Reason for clicks without a propensity; a stop if their share exceeds 1 - `SUFFICIENT_CLICK_SHARE`."""
    severity = STOP if lost > (1 - SUFFICIENT_CLICK_SHARE) * clicks else CAUTION
    figures, values = {"clicks": clicks, "without_propensity": lost}, {"share": lost / clicks}
    return reason("clicks-without-propensity", figures, severity=severity, consequence=consequence, **values)


def break_even_reason(ranking: str, other: str, held: "BreakEven", cells: pl.DataFrame, theta: Floats) -> Reason:
    """Range of position bias (powers of theta) over which one ranking stays better than another.

    Args:
        ranking: name of the first ranking.
        other: name of the second ranking.
        held: difference of the rankings, and the powers and hidden shares at which its sign turns.
        cells: the cell columns, K rows; attention is relative to the first cell with a known theta, on its curve.
        theta: propensities, shape (K,), NaN if unknown.
    """
    from posbias.core.evaluation.break_even import POWERS, SHARES  # noqa: PLC0415 - for rankings alone

    below, above, hidden = held.below, held.above, held.hidden
    figures: dict[str, float | str | None] = {"ranking": ranking, "other": other, "verdict": "unclear"}
    turns = {"turns_below": below, "turns_above": above} | ({"turns_at_hidden": hidden} if hidden else {})
    for name, turn in turns.items():
        figures |= {name: turn.at, f"{name}_ci_low": turn.first, f"{name}_ci_high": turn.last}
    position, known, instance = cells[POSITION].to_numpy(), np.flatnonzero(theta > 0), ""
    turning = [turn.at for turn in (below, above) if np.isfinite(turn.at)]
    nearest = min(turning, key=lambda at: abs(at - 1), default=None)
    if nearest is not None and len(known):
        labels = [name for name in cells.columns if name not in (POSITION, PREVIOUS_CLICK)]
        rows = cells.to_dicts()
        curve = [", ".join(f"{printable(name)} {label_in_words(row[name])}" for name in labels) for row in rows]
        first, own = known[0], known[[curve[cell] == curve[known[0]] for cell in known]]
        named = own[np.argmax(np.where(position[own] <= NAMED, position[own], 0))]
        attention = float(theta[named] / theta[first])
        figures |= {"position": float(position[named]), "attention": attention, "attention_at_turn": attention**nearest}
        if named != first:
            places = {"place": position[named], "first": position[first], "curve": f" ({curve[first]})" * bool(labels)}
            instance = sentence("verdict-turns", **places, turned=attention**nearest, attention=attention)
    if not held.clear:
        clear = [f"below {below.first:.2f} times"] if below.first > 0 else []
        clear += [f"above {above.last:.2f} times"] if above.last < max(POWERS) else []
        beyond = f"; it is {' and '.join(clear)} that" if clear else ""
        return reason("verdict-holds.unclear", figures, clear=beyond)
    better = held.estimate[0] > 0
    figures["verdict"] = "better" if better else "worse"
    low, high, more = "none", f"{max(POWERS):g} times", ""
    if np.isfinite(below.at):
        low = f"{below.at:.2f} times (95 % interval {below.first:.2f} to {below.last:.2f})"
    elif np.isfinite(below.last):
        low = f"none (surely from {below.last:.2f} times)"
    if np.isfinite(above.at):
        most = f"{above.last:.2f}" if above.last < max(POWERS) else f"{max(POWERS):g} or more"
        high = f"{above.at:.2f} times (95 % interval {above.first:.2f} to {most})"
    elif np.isfinite(above.first):
        high += f" (surely up to {above.first:.2f} times)"
    if hidden is not None and np.isfinite(hidden.at):
        interval = f"95 % interval {hidden.first:.2f} to {hidden.last:.2f}"
        more = f"It turns if features hide {hidden.at:.2f} times ({interval}) as much relevance as they show."
    elif hidden is not None:
        surely = f" (surely up to {hidden.first:.2f} times)" if np.isfinite(hidden.first) else ""
        more = f"It does not turn if features hide up to {max(SHARES):g} times{surely} as much relevance as they show."
    ahead, behind = (ranking, other) if better else (other, ranking)
    values: dict[str, Any] = {"ahead": ahead, "behind": behind, "low": low, "high": high, "instance": instance}
    return reason("verdict-holds", figures, hidden=more, **values)


ERRORS_UNKNOWN = reason("errors-unknown")
"""Reason against results computed from propensities without standard errors."""


def context_reasons(contexts: pl.DataFrame, scales: ScalesOfContexts | None, *, across: bool) -> list[Reason]:
    """Effect on weights and labels of propensities that are relative to each context's own first position.

    Args:
        contexts: the context columns, one row per context.
        scales: estimated scale of each context; None if not estimated, as rows carry weights.
        across: whether training compares documents of several pages.
    """
    values: dict[str, Any] = {"by": ", ".join(map(printable, contexts.columns))}
    if not across or scales is None:
        case = "not-tested" if across else "within-a-page"
        return [reason(f"contexts-on-own-scales.{case}", **values)]
    details = f"documents of a query are shown or clicked alike in all of them: p = {scales.p_value:.1g}"
    figures: dict[str, float | str | None] = {"error": scales.error} if np.isfinite(scales.error) else {}
    if not scales.matter:
        case = "a-little" if scales.p_value < LEVEL_OF_SCALES and scales.error >= _ONE_PERCENT else "hardly"
        return [reason(f"contexts-on-own-scales.{case}", figures, details, **values, error=scales.error)]
    each, several = "_".join(contexts.columns), contexts.width > 1
    values |= {"each": shlex.quote(each), "again": " with the same --sql" if several else ""}
    values |= {"joined": f" {sql_joined(contexts.columns, each)}" if several else ""}
    if not figures:
        return [reason("contexts-on-own-scales.unknown", figures, details, **values)]
    farthest = int(np.nanargmax(np.abs(np.log(scales.scale))))
    figures["ratio"] = float(scales.scale[farthest])
    name = " / ".join(map(label_in_words, contexts.row(farthest)))
    return [reason("contexts-on-own-scales", figures, details, **values, context=name)]
