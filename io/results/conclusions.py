"""The conclusion of a command: a verdict, what speaks for and against it, and the next command.

Every command ends with one; it is printed first, and stands first in the manifest and in `--json`. Where the verdict is
"do not use" the exit code is 1, or 3 where a condition of `compare` is met, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Literal

import msgspec

Severity = Literal["good", "note", "caution", "stop"]
"""How much a reason weighs: it speaks for the result, is worth a line, calls for care, or forbids to use the result."""

Verdict = Literal["good", "with care", "do not use"]

GOOD, NOTE, CAUTION, STOP = "good", "note", "caution", "stop"

CODES: dict[str, str] = {
    # logs
    "clicks-lost": "clicks are lost",
    "clicks-left-out": "clicks are left out",
    "clicks-of-days-lost": "clicks of some days are missing",
    "columns-guessed": "columns were guessed from their names",
    "counts-not-used": "a column of counts was not used",
    "odd-dates": "some dates cannot be right",
    "log-not-valid": "the log breaks the rules",
    "no-estimate": "the log cannot carry an estimate",
    "top-missing": "no result is at position 1",
    "top-seldom-shown": "the first position is hardly shown",
    "positions-missing": "positions hold no result",
    "positions-without-click": "positions have no click",
    "one-query-dominates": "one query dominates",
    "one-client-dominates": "one client dominates",
    "pages-start-late": "pages start below position 1",
    "pages-of-one-row": "pages have one result each",
    "total-rows": "totals stand among the documents",
    "pages-with-gaps": "pages have gaps",
    "pages-end-on-clicks": "pages often end on a click",
    "weights-depend-on-clicks": "weights depend on clicks",
    "robots": "robots may have clicked",
    "robot-clients": "some clients click like robots",
    "rows-without-clicks-missing": "rows without clicks are missing",
    "long-page": "a page is too long for people",
    "advice": "more would help",
    # fits
    "not-converged": "the estimate is not finished",
    "not-identified": "some propensities are not known",
    "other-reference": "the first position cannot be compared",
    "shape-alone": "some propensities rest on the shape alone",
    "few-queries": "a few queries dominate",
    "fit-not-usable": "its propensities are not to be used",
    "clicks-do-not-move-documents": "clicks do not move documents",
    "ranker-may-learn": "the ranker may learn from these clicks",
    "ranker-learns": "the ranker learns from these clicks",
    "ranker-learns-little": "the ranker learns a little from these clicks",
    "ranker-not-tested": "whether the ranker learns from these clicks is not tested",
    "rows-in-order": "the ranker does not learn from these clicks, if the rows are in the order of time",
    "arms-agree": "experiment arms agree",
    "arms-contradict": "experiment arms contradict the propensities",
    "arms-say-too-little": "experiment arms say too little",
    "arms-not-tested": "experiment arms are not compared",
    "positions-changed": "positions matter differently in the later half of the log",
    "textbook-em-off": "textbook EM is off on this log",
    "textbook-em-agrees": "textbook EM agrees",
    "textbook-em-not-converged": "the comparison with textbook EM is not finished",
    "placement-random": "documents are placed at random",
    "placement-not-random": "documents may not be placed at random",
    "placement-not-checked": "whether documents are placed at random is not checked",
    "model-check-passed": "the model check passed",
    "popular-results-differ": "popular results lose clicks with position differently",
    "clicks-depend-on-clicks": "clicks depend on other clicks of their page",
    "clicks-above-not-tested": "the effect of earlier clicks is not tested",
    "clicks-above-matter": "earlier clicks matter",
    "clicks-above-do-not-matter": "earlier clicks do not matter",
    "one-click-per-page": "hardly anybody clicks twice",
    "other-model-better": "another click model predicts these clicks better",
    "ranker-may-know-more": "the ranker may know more than the features",
    "ranker-knows-more": "the ranker knows more than the features",
    "pages-sampled": "relevance is learnt from a sample of pages",
    "pairs-agree": "documents shown at several positions agree",
    "pairs-contradict-features": "documents shown at several positions contradict the features",
    "shape-fits": "the shape fits",
    "shape-does-not-fit": "the curve does not have this shape",
    "bins-fit": "the bins fit",
    "bins-do-not-fit": "propensities differ within a bin",
    "bins-not-tested": "the bins are not tested",
    "contexts-differ": "contexts differ",
    "contexts-alike": "contexts do not differ",
    "contexts-not-compared": "contexts are not compared with each other",
    "no-position-effect": "position makes no difference",
    "attractiveness-not-written": "attractiveness is not written",
    "option-without-effect": "an option had no effect",
    "values-not-reliable": "some values have no reliable propensities",
    "no-propensity-by-position": "the click model has no propensity by position",
    # statistics by day
    "odd-day": "a day does not look like the others",
    "days-twice": "days may be counted twice",
    "day-not-there": "the day was not there",
    "pages-shifted": "pages count from another base",
    # weights and rankers
    "own-propensities": "propensities are given, not estimated",
    "rows-of-one-value": "rows of one value alone are read",
    "weights-from-a-curve": "some weights come from a smooth curve",
    "clicks-without-propensity": "clicks are at positions without a propensity",
    "nothing-to-learn": "there is nothing to learn",
    "contexts-on-own-scales": "weights of contexts are not on one scale",
    "documents-without-judgment": "documents have no judgment",
    "rows-without-features": "rows have no features",
    "feature-varies": "a feature is not one number for a document",
    "ranker-chosen": "which ranker was chosen",
    "ranker-compared": "the ranker against another",
    "ranker-not-compared": "too few queries compare the ranker with the log's own order",
    "ranker-may-lose": "the ranker may lose clicks against the log's own order",
    "factors-do-not-help": "factors do not help",
    # evaluations and predictions
    "errors-unknown": "the errors of the propensities are not known",
    "one-query": "all pages have one query",
    "scores-missing": "a ranking lacks scores",
    "never-shown": "a ranking shows documents that were never shown",
    "pages-not-filled": "a ranking has too few documents",
    "ranking-compared": "a ranking against the baseline",
    "clicks-predicted": "the clicks of a ranking",
    "pages-as-predicted": "pages are clicked as predicted",
    "pages-not-checked": "the prediction is not checked by pages",
    "click-models-disagree": "click models disagree",
    "click-models-not-compared": "click models are not compared",
    "propensities-fitted-here": "propensities are fitted to these pages",
    "training-dates-unknown": "the rankings may have learned from these clicks",
    "learned-from-these-clicks": "a ranking has learned from these clicks",
    "documents-not-seen": "most held-out documents are new",
    "positions-not-seen": "held-out sessions go further down",
    "no-clicks-held-out": "the held-out sessions have no click",
    "clicks-impossible": "a model holds clicks impossible",
    "follows-the-ranker": "a model still follows the ranker",
    # comparisons, plans, simulations
    "propensities-changed": "propensities changed",
    "propensities-unchanged": "propensities did not change",
    "change-not-tested": "a change cannot be tested",
    "compared-together": "shared queries are allowed for",
    "compared-apart": "shared queries are not allowed for",
    "other-methods": "the methods differ",
    "other-references": "the references differ",
    "max-change-exceeded": "propensities changed by more than allowed",
    "condition-met": "a condition of --fail-if is met",
    "no-interval-after": "some propensities will still have no interval",
    "queries-left-out": "queries are left out",
}
"""What each code means, in few words that go on a sentence."""

STOPS = frozenset(
    {
        "clicks-lost",
        "clicks-left-out",
        "log-not-valid",
        "no-estimate",
        "clicks-of-days-lost",
        "robot-clients",
        "rows-without-clicks-missing",
        "total-rows",
        "pages-with-gaps",
        "not-converged",
        "not-identified",
        "ranker-learns",
        "arms-contradict",
        "textbook-em-off",
        "popular-results-differ",
        "clicks-depend-on-clicks",
        "other-model-better",
        "ranker-may-know-more",
        "ranker-knows-more",
        "pairs-contradict-features",
        "shape-does-not-fit",
        "bins-do-not-fit",
        "values-not-reliable",
        "odd-day",
        "pages-shifted",
        "clicks-without-propensity",
        "nothing-to-learn",
        "contexts-on-own-scales",
        "ranker-not-compared",
        "ranker-may-lose",
        "factors-do-not-help",
        "learned-from-these-clicks",
    }
)
"""The codes that may be reasons not to use a result; what others say makes the verdict "with care" at most."""

CONDITIONS = {
    "ranker-not-tested": "if the ranker did not learn from these clicks",
    "rows-in-order": "if the rows are in the order of time",
}
"""What a result rests on although nothing shows it, by the code of the reason that says so."""

_MOST_NAMED = 2  # reasons that the conclusion names


class Reason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that speaks for or against a result, or is worth knowing.

    Raises:
        ValueError: the code is not in `CODES`, or says stop and is not in `STOPS`.
    """

    code: str
    severity: Severity
    sentence: str  # what it means, the number, what to do
    figures: Mapping[str, float | str | None] = {}  # the numbers of the sentence; null for what is no number
    details: str = ""  # the test, its p-value, and names: printed under --details alone

    def __post_init__(self) -> None:
        """Refuse a code that is not documented, and numbers that JSON does not know."""
        if self.code not in (STOPS if self.severity == STOP else CODES):
            raise ValueError(f"{self.code!r} is not in CODES, or may not be a stop")
        known = {name: _plain(value) for name, value in self.figures.items()}
        msgspec.structs.force_setattr(self, "figures", known)


class Conclusion(msgspec.Struct, frozen=True):
    """What a reader must know first: the first sections of a manifest."""

    verdict: Verdict
    conclusion: str  # a sentence, first what it rests on although nothing shows it: "if ..."
    next: str | None  # the command to type next
    reasons: tuple[Reason, ...]


def conclude(headline: str, reasons: Sequence[Reason], following: str | None) -> Conclusion:
    """Draw a conclusion; the verdict is as bad as the worst of the reasons.

    Args:
        headline: the result in one sentence, without its full stop.
        reasons: what speaks for and against it.
        following: the next command.
    """
    stops, cautions = (_meanings(reasons, severity) for severity in (STOP, CAUTION))
    verdict: Verdict = "do not use" if stops else "with care" if cautions else "good"
    sentence = f"{headline}; but {cautions}" if cautions else headline
    rests_on = [CONDITIONS[reason.code] for reason in reasons if reason.code in CONDITIONS]
    sentence = stops or ": ".join([*dict.fromkeys(rests_on), sentence])
    return Conclusion(verdict, f"{sentence}.", following, tuple(reasons))


def _meanings(reasons: Sequence[Reason], severity: Severity) -> str:
    """The first reasons of a severity in few words each."""
    codes = list(dict.fromkeys(reason.code for reason in reasons if reason.severity == severity))
    named = [CODES[code] for code in codes[:_MOST_NAMED]]
    return ", and ".join(named) + (f" ({len(codes) - _MOST_NAMED} more below)" if len(codes) > _MOST_NAMED else "")


def _plain(value: float | str | None) -> float | str | None:
    return value if not isinstance(value, float) or isfinite(value) else None


def is_refused(reasons: Iterable[Reason]) -> bool:
    """Whether the verdict is "do not use"."""
    return any(reason.severity == STOP for reason in reasons)


def warnings_in(reasons: Iterable[Reason]) -> list[str]:
    """The sentences that speak against a result."""
    return [reason.sentence for reason in reasons if reason.severity in {CAUTION, STOP}]


def sections_of(conclusion: Conclusion) -> dict[str, Any]:
    """The first sections of a manifest, and what `--json` prints first."""
    return msgspec.to_builtins(conclusion)
